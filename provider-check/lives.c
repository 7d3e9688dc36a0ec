/*
 * lives.c: whole lives of a model: in order, ended early, refused, and with a failure
 * at every call of the host.
 */
#include "mock.h"

#include <stdio.h>

/* A prompt in two chunks, beside another sequence, then single rows. */
static ftk_status run_steps(fti_pc_mock *m) {
    static const struct {
        fti_pc_part parts[3];
        uint32_t count, rows;
    } steps[] = {
        {{{1, 0, 0, 9, 1}}, 1, 9},
        {{{1, 0, 9, 3, 3}, {2, 3, 0, 2, 0}}, 2, 5},
        {{{1, 0, 12, 1, 1}, {2, 3, 2, 1, 1}, {3, 1, 0, 0, 0}}, 3, 3},
        {{{2, 3, 3, 1, 0}}, 1, 1},
    };
    for (size_t i = 0; i < FTI_COUNT(steps); i++)
        FTI_TRY(fti_pc_step(m, steps[i].parts, steps[i].count, steps[i].rows, 0xFF));
    return FTK_OK;
}

static void live(const fti_pc_target *target, const ftk_provider *table, bool dry) {
    fti_pc_mock *m = fti_pc_mock_new(target, table);
    if (!m) return;
    m->dry = dry;
    if (fti_pc_bring(m, FTI_PC_PREPARED, NULL) == FTK_OK) (void)run_steps(m);
    fti_pc_mock_end(m);
}

/* The C library's own caches fill during the first lives; a leak goes on. */
#define LIVES 20
#define LAST  4

/* Grows to the end; so would nothing that is only kept for the next life. */
static void check_growth(const uint64_t used[LIVES], const char *what, const char *advice) {
    bool grows = true;
    for (int i = LIVES - LAST; i < LIVES; i++) grows = grows && used[i] > used[i - 1];
    fti_pc_check(
        !grows, "each life of a model leaves %llu bytes of %s behind, wanted 0 after destroy: %s",
        (unsigned long long)((used[LIVES - 1] - used[LIVES - LAST]) / (LAST - 1)), what, advice);
}

void fti_pc_pass_lifecycle(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    uint64_t heap[LIVES] = {0}, mapped[LIVES] = {0};
    if (!table) return;
    live(target, table, false);
    for (int i = 0; i < LIVES; i++) {
        live(target, table, true);
        fti_pc_memory_use used = fti_pc_memory_used();
        heap[i] = used.heap;
        mapped[i] = used.mapped;
    }
    check_growth(heap, "the heap", "take memory from host->alloc, and release it");
    check_growth(mapped, "mappings", "take memory from host->alloc; what is mapped is unmapped");
}

void fti_pc_pass_destroy(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    for (int stage = FTI_PC_CREATED; table && stage <= FTI_PC_PREPARED; stage++) {
        fti_pc_mock *m = fti_pc_mock_new(target, table);
        if (!m) return;
        (void)fti_pc_bring(m, (fti_pc_stage)stage, NULL);
        fti_pc_mock_end(m);
        fti_pc_checked();
    }
}

/* ---- refusals ---- */

/* The model stays usable, and ours to destroy, after a refused call. */
static void check_refused(fti_pc_mock *m, ftk_status status, const char *what) {
    fti_pc_check(status < 0, "%s was accepted: refuse it", what);
    fti_pc_check(m->reported, "%s was refused without a report", what);
}

/* Neither injected nor a fault: the caller judges the status. */
static ftk_status call_run(fti_pc_mock *m, const ftk_step *step) {
    fti_graph *work;
    ftk_status status = fti_pc_call_run(m, step, &work);
    fti_pc_judge_reports(m, status);
    m->call = NULL;
    if (work) m->backend->ops->graph_destroy(work);
    return status;
}

static void refuse_options(const fti_pc_target *target, const ftk_provider *table) {
    fti_pc_mock *m = fti_pc_mock_new(target, table);
    const ftk_create_in in = {.struct_size = (uint32_t)sizeof in,
                              .architecture = target->architecture,
                              .container = fti_str(fti_checkpoint_container(target->checkpoint)),
                              .backend = fti_str("cpu"),
                              .options = fti_str("{\"no_such_option_of_any_provider\": 1}")};
    ftk_model_info info = {.struct_size = (uint32_t)sizeof info};
    if (!m) return;
    fti_pc_begin(m, "create");
    ftk_status status = table->create(&fti_pc_host, fti_pc_ctx(m), &in, &info, &m->model);
    fti_pc_leave(m);
    fti_pc_judge_reports(m, status);
    m->call = NULL;
    check_refused(m, status, "an unknown key in provider_options");
    if (status != FTK_OK) m->model = NULL;
    fti_pc_mock_end(m);
}

static void refuse_steps(const fti_pc_target *target, const ftk_provider *table) {
    const fti_pc_part part = {1, 0, 0, 1, 1};
    fti_pc_mock *m = fti_pc_mock_new(target, table);
    if (!m) return;
    if (fti_pc_bring(m, FTI_PC_PREPARED, NULL) == FTK_OK) {
        ftk_step step = fti_pc_fill_step(m, &part, 1, 1);
        step.required = 0x80000000u;
        check_refused(m, call_run(m, &step), "a step with an unknown bit in `required`");
        (void)run_steps(m);
    }
    fti_pc_mock_end(m);
}

void fti_pc_pass_refusals(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    if (!table) return;
    refuse_options(target, table);
    refuse_steps(target, table);
}

/* ---- chat ---- */

typedef struct pieces {
    uint64_t count;
    uint64_t bytes;
    bool bad;
} pieces;

static void take_piece(void *user, ftk_str text, uint32_t control) {
    pieces *p = user;
    p->count++;
    p->bytes += text.size;
    p->bad = p->bad || control > 1 || (text.size > 0 && !text.data);
}

#define MESSAGE 40u /* less than any message needs: it must be cut, with its NUL */
#define BEYOND  24u

static ftk_status chat(fti_pc_mock *m, uint32_t required, pieces *p) {
    static const ftk_chat_turn turns[] = {
        {FTK_STR("system"), FTK_STR("Be brief.")},
        {FTK_STR("user"), FTK_STR("Is 7 < 8?")},
        {FTK_STR("assistant"), FTK_STR("Yes.")},
        {FTK_STR("user"), {NULL, 0}},
    };
    const ftk_chat_in in = {.struct_size = (uint32_t)sizeof in,
                            .turn_stride = (uint32_t)sizeof turns[0],
                            .turns = turns,
                            .turn_count = FTI_COUNT(turns),
                            .required = required,
                            .hint = 0xFFFFFFFFu, /* unknown bits are ignored */
                            .open_answer = 1};
    char message[MESSAGE + BEYOND];
    memset(message, 'x', sizeof message);
    const ftk_chat_out out = {.struct_size = (uint32_t)sizeof out,
                              .message_size = MESSAGE,
                              .message = message,
                              .piece = take_piece,
                              .user = p};
    fti_pc_begin(m, "format_chat");
    ftk_status status = m->table->format_chat(m->model, &in, &out);
    fti_pc_leave(m);
    m->call = NULL;
    for (size_t i = MESSAGE; i < sizeof message; i++)
        if (message[i] != 'x') {
            fti_pc_find("format_chat wrote more than message_size bytes of message");
            break;
        }
    if (status != FTK_OK)
        fti_pc_check(message[0] != 'x' && memchr(message, 0, MESSAGE),
                     "format_chat failed with %s and left no message", ftk_status_name(status));
    return status;
}

static void check_chat(fti_pc_mock *m) {
    pieces first = {0}, second = {0}, none = {0};
    ftk_status status = chat(m, 0, &first);
    fti_pc_check(status == FTK_OK || status == FTK_E_UNSUPPORTED,
                 "format_chat of a plain dialogue failed with %s", ftk_status_name(status));
    fti_pc_check(chat(m, 0, &second) == status && second.count == first.count &&
                     second.bytes == first.bytes,
                 "format_chat gave other pieces for the same dialogue");
    fti_pc_check(!first.bad, "format_chat gave a piece that is neither plain nor control, or "
                             "without text");
    fti_pc_check(status != FTK_OK || first.count > 0, "format_chat gave no pieces");
    fti_pc_check(chat(m, 0x80000000u, &none) < 0,
                 "format_chat accepted an unknown bit in `required`: refuse it");
}

void fti_pc_pass_chat(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    if (!table) return;
    if (!table->format_chat) {
        fti_pc_skip("the provider has no format_chat");
        return;
    }
    fti_pc_mock *m = fti_pc_mock_new(target, table);
    if (!m) return;
    if (fti_pc_bring(m, FTI_PC_CREATED, NULL) == FTK_OK) check_chat(m);
    fti_pc_mock_end(m);
}

/* ---- injected failures ---- */

/* One life with a failure in it; false once there is nothing left to fail. Nothing is
 * computed: what a failing step would have computed is of no interest. */
static bool fail_once(const fti_pc_target *target, const ftk_provider *table,
                      fti_pc_failure failure) {
    fti_pc_mock *m = fti_pc_mock_new(target, table);
    if (!m) return false;
    m->failure = failure;
    m->dry = true;
    if (fti_pc_bring(m, FTI_PC_PREPARED, NULL) == FTK_OK) (void)run_steps(m);
    bool fired = m->fired;
    fti_pc_mock_end(m);
    fti_pc_checked();
    return fired;
}

/* The channel remembers where the sweep is, for the process that goes on after a crash. */
static void sweep(const fti_pc_target *target, bool memory) {
    const ftk_provider *table = fti_pc_load(target);
    fti_pc_channel *c = fti_pc_the_channel();
    if (c->next == 0) c->next = 1;
    for (; table; c->next++) {
        const fti_pc_failure failure = {memory ? 0 : c->next, memory ? c->next : 0};
        if (!fail_once(target, table, failure)) break;
    }
}

void fti_pc_pass_failures(const fti_pc_target *target) {
    sweep(target, false);
}

void fti_pc_pass_memory(const fti_pc_target *target) {
    sweep(target, true);
}
