/*
 * steps.c: what a step does, apart from the call that asks for it. As on a device, `run`
 * only puts work on the stream; it is executed when the call is over. While host code of
 * the provider runs, device memory is closed to it: its addresses are opaque.
 */
#include "mock.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

/* ---- closed memory ---- */

static struct sigaction previous_action;

static const char *what_was_done(const void *context) {
#if defined(__x86_64__)
    const ucontext_t *c = context;
    return c->uc_mcontext.gregs[REG_ERR] & 2 ? "writes" : "reads";
#else
    (void)context;
    return "touches";
#endif
}

static bool in_mapped(const fti_pc_mock *m, const void *at) {
    for (uint32_t i = 0; i < m->mapped_count; i++)
        if ((const char *)at >= m->mapped[i].base &&
            (const char *)at < m->mapped[i].base + m->mapped[i].bytes)
            return true;
    return false;
}

/* The name of what lies there, NULL if it is nothing of the device's. */
static const char *name_of(const fti_pc_mock *m, const void *at) {
    const fti_pc_area *area = fti_pc_device_area(&m->memory, at);
    if (!area) area = fti_pc_device_area(&m->weight_memory, at);
    if (area) return area->name;
    if (fti_pc_device_holds(&m->memory, at)) return "device memory";
    return fti_pc_device_holds(&m->weight_memory, at) || in_mapped(m, at) ? "a weight" : NULL;
}

static void protect(fti_pc_mock *m, int memory, int weights) {
    fti_pc_device_protect(&m->memory, memory);
    fti_pc_device_protect(&m->weight_memory, weights);
    for (uint32_t i = 0; i < m->mapped_count; i++)
        mprotect(m->mapped[i].base, (size_t)m->mapped[i].bytes, weights & PROT_READ);
}

/* What faults elsewhere faults again, for whoever is responsible. */
static void on_fault(int number, siginfo_t *info, void *context) {
    fti_pc_doing doing = fti_pc_trap(FTI_PC_HOSTS);
    fti_pc_mock *m = fti_pc_current();
    const char *name = m && m->closed ? name_of(m, info->si_addr) : NULL;
    if (name) {
        fti_pc_find("%s %s %s from host code: addresses of device memory are opaque outside "
                    "operators and kernels; what depends on its contents is for a kernel",
                    m->call, what_was_done(context), name);
        fti_pc_open(m);
    } else {
        sigaction(number, &previous_action, NULL);
    }
    (void)fti_pc_trap(doing);
}

static void install(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &previous_action);
}

void fti_pc_watch_faults(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

void fti_pc_close(fti_pc_mock *m) {
    if (m->dry || m->memory.count + m->weight_memory.count + m->mapped_count == 0) return;
    protect(m, PROT_NONE, PROT_NONE);
    m->closed = true;
}

void fti_pc_open(fti_pc_mock *m) {
    if (!m->closed) return;
    m->closed = false;
    protect(m, PROT_READ | PROT_WRITE, PROT_READ);
}

/* ---- weights that are read where the checkpoint is mapped ---- */

static int by_address(const void *a, const void *b) {
    const fti_pc_range *x = a, *y = b;
    return x->base < y->base ? -1 : x->base > y->base;
}

/* Whole pages only: others hold something else too. */
void fti_pc_close_mapped(fti_pc_mock *m, const void *from, uint64_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)from + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)from + (uintptr_t)bytes) / page * page;
    if (m->shared || end <= first) return;
    if (m->mapped_count % FTI_PC_RANGES_STEP == 0) {
        fti_pc_range *grown = realloc(m->mapped,
                                      (m->mapped_count + FTI_PC_RANGES_STEP) * sizeof *grown);
        if (!grown) return;
        m->mapped = grown;
    }
    m->mapped[m->mapped_count++] = (fti_pc_range){(char *)first, end - first};
}

/* Neighbours become one: thousands of tensors are few ranges. */
void fti_pc_join_mapped(fti_pc_mock *m) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint32_t kept = 0;
    if (m->mapped_count == 0) return;
    qsort(m->mapped, m->mapped_count, sizeof *m->mapped, by_address);
    for (uint32_t i = 1; i < m->mapped_count; i++) {
        fti_pc_range *last = &m->mapped[kept];
        const fti_pc_range *next = &m->mapped[i];
        char *end = next->base + next->bytes;
        if (next->base > last->base + last->bytes + page)
            m->mapped[++kept] = *next;
        else if (end > last->base + last->bytes)
            last->bytes = (uint64_t)(end - last->base);
    }
    m->mapped_count = kept + 1;
}

/* ---- work ---- */

struct fti_pc_work {
    struct fti_pc_work *older;
    fti_pc_mock *mock;
    fti_pc_launch launch; /* function NULL: what an operator wrote */
    const void *at;
    uint64_t bytes;
    bool floats;
};

void fti_pc_run_kernel(const fti_pc_launch *l, ftk_cpu_kernel function, const void *args,
                       uint64_t begin, uint64_t end) {
    char who[112];
    fti_pc_fp fp = fti_pc_fp_take();
    fti_pc_doing doing = fti_pc_trap(FTI_PC_STEPS);
    function(args, begin, end);
    (void)fti_pc_trap(doing);
    snprintf(who, sizeof who, "the kernel %s", l->name);
    fti_pc_fp_restore(fp, who);
}

typedef struct work_args {
    fti_pc_work *work;
} work_args;

/* A kernel of the mock's own, in whose place on the stream the work is done. */
static void execute(const void *args, uint64_t begin, uint64_t end) {
    const fti_pc_work *w = ((const work_args *)args)->work;
    (void)begin;
    (void)end;
    fti_pc_mock *m = w->mock;
    if (!w->launch.function) {
        if (m->on_write) m->on_write(m, w->at, w->bytes, w->floats);
    } else if (m->on_launch) {
        m->on_launch(m, &w->launch);
    } else {
        fti_pc_at("the kernel %s", w->launch.name);
        if (w->launch.items > 0)
            fti_pc_run_kernel(&w->launch, w->launch.function, w->launch.args, 0, w->launch.items);
    }
}

static ftk_status put(fti_pc_mock *m, const fti_pc_work *work) {
    fti_pc_work *w = malloc(sizeof *w);
    if (!w) return FTK_E_NO_MEMORY;
    *w = *work;
    w->mock = m;
    w->older = m->work;
    m->work = w;
    const work_args args = {w};
    const ftk_cpu_launch l = {.struct_size = (uint32_t)sizeof l,
                              .args_bytes = (uint32_t)sizeof args,
                              .name = FTK_STR("mock/execute"),
                              .function = execute,
                              .args = &args,
                              .items = 1};
    return m->backend->kernels->launch_cpu(m->real, &l);
}

ftk_status fti_pc_put_kernel(fti_pc_mock *m, const ftk_cpu_launch *l) {
    fti_pc_work work = {
        .launch = {.function = l->function, .items = l->items, .args_bytes = l->args_bytes}};
    snprintf(work.launch.name, sizeof work.launch.name, "%.*s", FTI_STR_ARGS(l->name));
    if (l->args_bytes > 0) memcpy(work.launch.args, l->args, l->args_bytes);
    return put(m, &work);
}

void fti_pc_put_write(fti_pc_mock *m, const void *at, uint64_t bytes, bool floats) {
    const fti_pc_work work = {.at = at, .bytes = bytes, .floats = floats};
    (void)put(m, &work);
}

static void forget(fti_pc_mock *m, const fti_pc_work *until) {
    while (m->work != until) {
        fti_pc_work *older = m->work->older;
        free(m->work);
        m->work = older;
    }
}

void fti_pc_forget_work(fti_pc_mock *m) {
    forget(m, NULL);
}

/* ---- run ---- */

ftk_status fti_pc_call_run(fti_pc_mock *m, const ftk_step *step, fti_graph **work) {
    *work = NULL;
    bool recording = !m->dry && m->backend->ops->capture_begin(m->real) == FTK_OK;
    fti_pc_begin(m, "run");
    ftk_status status = m->table->run(m->model, step);
    fti_pc_leave(m);
    if (recording) (void)m->backend->ops->capture_end(m->real, work, NULL);
    return status;
}

bool fti_pc_execute(fti_pc_mock *m, fti_graph *work) {
    fti_pc_keep_slots(m);
    ftk_status status = m->backend->ops->graph_launch(m->real, work);
    fti_pc_at("run");
    fti_pc_check_foreign_slots(m);
    fti_pc_compare_state(m, "a kernel of run");
    return status == FTK_OK;
}

/* Logits that were not asked for are not written: they are a pattern before the step. */
#define UNWRITTEN 0xFFu

static void check_logits(const fti_pc_mock *m, const ftk_step *step) {
    uint64_t wanted = (uint64_t)step->logit_count * m->info.vocabulary, finite = 0;
    const float *logits = fti_pc_logits(m, 0);
    for (uint64_t i = 0; i < wanted; i++) finite += __builtin_isfinite(logits[i]) ? 1 : 0;
    fti_pc_check(finite == wanted, "run left %llu of %llu logits unwritten or not finite",
                 (unsigned long long)(wanted - finite), (unsigned long long)wanted);
    for (uint64_t i = wanted * sizeof(float); i < m->logits->bytes; i++)
        if ((unsigned char)m->logits->data[i] != UNWRITTEN) {
            fti_pc_find("run wrote behind the %u rows of logits that were asked for",
                        step->logit_count);
            return;
        }
}

ftk_status fti_pc_run(fti_pc_mock *m, const ftk_step *step) {
    const fti_pc_work *before = m->work;
    fti_graph *work = NULL;
    if (!m->dry) memset(m->logits->data, UNWRITTEN, (size_t)m->logits->bytes);
    ftk_status status = fti_pc_judge(m, fti_pc_call_run(m, step, &work));
    if (status == FTK_OK && !m->dry && (!work || !fti_pc_execute(m, work)))
        status = FTK_E_PROVIDER_CONTRACT; /* an operator was refused, which was found there */
    if (work) m->backend->ops->graph_destroy(work);
    forget(m, before);
    if (status != FTK_OK || m->dry) return status;
    fti_pc_check_areas(m);
    check_logits(m, step);
    return FTK_OK;
}

fti_graph *fti_pc_capture(fti_pc_mock *m, const ftk_step *step) {
    fti_graph *work = NULL;
    m->capturing = true;
    ftk_status status = fti_pc_judge(m, fti_pc_call_run(m, step, &work));
    m->capturing = false;
    fti_pc_check(status != FTK_OK || work, "the step could not be captured");
    fti_pc_check_areas(m);
    return work;
}
