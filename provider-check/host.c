/*
 * host.c: the mock's ftk_host: reports, memory, capabilities, interfaces; and where
 * failures are injected.
 */
#include "mock.h"

#include <stdio.h>
#include <stdlib.h>

/* activation_format and activation_bytes have neither context nor stream. */
static _Thread_local fti_pc_mock *current;

fti_pc_mock *fti_pc_current(void) {
    return current;
}

fti_pc_mock *fti_pc_of_stream(ftk_stream *stream, const char *operation) {
    fti_pc_mock *m = current;
    bool ours = m && stream == fti_pc_stream(m);
    fti_pc_check(ours, "%s was given a stream that is not this step's: use step->stream",
                 operation);
    if (!ours || !m->call) return NULL;
    fti_pc_check(strcmp(m->call, "run") == 0, "%s was called in %s: work is enqueued by run only",
                 operation, m->call);
    return m;
}

/* ---- the call in progress ---- */

/* Legal by the contract: a computed weight is filled from the host, there and nowhere else. */
static bool may_touch_device(const char *call) {
    return strcmp(call, "load_weights") == 0;
}

void fti_pc_begin(fti_pc_mock *m, const char *call) {
    m->call = call;
    m->reported = false;
    m->errors = 0;
    m->told = m->repeated = FTK_OK;
    m->message[0] = 0;
    m->must_fail = false;
    m->fired_before = m->fired;
    if (m->fired)
        fti_pc_at("%s, after the failure of %s(%s)", call, m->injected, m->subject);
    else if (m->failure.call)
        fti_pc_at("%s, with host call %llu to fail", call, (unsigned long long)m->failure.call);
    else if (m->failure.allocation)
        fti_pc_at("%s, with no memory from allocation %llu on", call,
                  (unsigned long long)m->failure.allocation);
    else
        fti_pc_at("%s", call);
    current = m;
    if (!may_touch_device(call)) fti_pc_close(m);
    (void)fti_pc_trap(strcmp(call, "run") == 0 ? FTI_PC_STEPS : FTI_PC_CALLS);
}

void fti_pc_compare_state(fti_pc_mock *m, const char *who) {
    fti_pc_state now;
    fti_pc_state_take(&now);
    fti_pc_state_compare(&m->state_before, &now, m->shared ? FTI_PC_OF_THREAD : FTI_PC_OF_ALL, who);
    m->state_before = now; /* said once, not after every call from here on */
}

void fti_pc_leave(fti_pc_mock *m) {
    (void)fti_pc_trap(FTI_PC_HOSTS);
    fti_pc_open(m);
    /* Calls that nothing happens to are looked at in other passes; here are thousands. */
    bool injects = m->failure.call || m->failure.allocation;
    if (!injects || m->fired != m->fired_before || strcmp(m->call, "destroy") == 0)
        fti_pc_compare_state(m, m->call);
    current = NULL;
}

void fti_pc_judge_reports(const fti_pc_mock *m, ftk_status status) {
    fti_pc_check(m->errors < 2,
                 "%s reported %u errors, wanted one: call host->report once for a failure, where "
                 "it is found, and pass the status on",
                 m->call, m->errors);
    fti_pc_check(m->errors == 0 || status != FTK_OK,
                 "%s reported an error and returned FTK_OK: found '%s', wanted its status, or a "
                 "report of severity WARNING",
                 m->call, m->message);
    fti_pc_check(status == FTK_OK || m->repeated != status,
                 "%s reported %s a second time: what the checkpoint reader found it has reported, "
                 "return its status",
                 m->call, ftk_status_name(m->repeated));
}

ftk_status fti_pc_judge(fti_pc_mock *m, ftk_status status) {
    const char *call = m->call;
    fti_pc_judge_reports(m, status);
    m->call = NULL;
    fti_pc_check(status <= 0, "%s returned the positive status %d: statuses are 0 or negative",
                 call, status);
    if (m->must_fail)
        fti_pc_check(status != FTK_OK, "%s returned FTK_OK although %s failed: pass the failure on",
                     call, m->injected);
    if (status == FTK_OK) return FTK_OK;
    fti_pc_check(m->reported,
                 "%s failed with %s and reported nothing%s%s: call host->report once with "
                 "severity ERROR: what was found, what was wanted, where",
                 call, ftk_status_name(status), m->fired ? " after the failure of " : "",
                 m->fired ? m->injected : "");
    if (!m->failure.call && !m->failure.allocation && strcmp(call, "match") != 0)
        fti_pc_find("%s failed with %s: %s", call, ftk_status_name(status), m->message);
    return status;
}

ftk_status fti_pc_end(fti_pc_mock *m, ftk_status status) {
    fti_pc_leave(m);
    return fti_pc_judge(m, status);
}

bool fti_pc_enter(fti_pc_mock *m, fti_pc_kind kind, const char *name, ftk_str subject) {
    m->calls++;
    if (m->failure.call == 0 || m->calls != m->failure.call) return false;
    m->fired = true;
    if (kind == FTI_PC_FAILS) m->must_fail = true;
    snprintf(m->injected, sizeof m->injected, "%s", name);
    snprintf(m->subject, sizeof m->subject, "%.*s", FTI_STR_ARGS(subject));
    fti_pc_at("%s, at the failure of %s(%s), host call %llu", m->call ? m->call : "?", name,
              m->subject, (unsigned long long)m->calls);
    return true;
}

void fti_pc_only_graph_safe(const fti_pc_mock *m, const char *name) {
    bool run = m->call && strcmp(m->call, "run") == 0;
    fti_pc_check(!run,
                 "%s was called in run%s: only operators, kernels and report are graph safe; "
                 "do it in create, plan_weights or load_weights",
                 name, m->capturing ? " while the host captures" : "");
}

/* ---- reports ---- */

static void report(ftk_core_ctx *ctx, int32_t severity, ftk_status status, ftk_str message) {
    FTI_PC_HOST_CALL;
    fti_pc_mock *m = fti_pc_of_ctx(ctx);
    fti_pc_check(severity >= FTK_SEVERITY_DEBUG && severity <= FTK_SEVERITY_ERROR,
                 "report was called with severity %d, wanted %d to %d", severity,
                 FTK_SEVERITY_DEBUG, FTK_SEVERITY_ERROR);
    fti_pc_check(message.size > 0 && message.data && !memchr(message.data, '\n', message.size),
                 "report was called without a message, or with one of several lines");
    if (severity < FTK_SEVERITY_ERROR) return;
    fti_pc_check(status < 0,
                 "report was called with severity ERROR and status %d, wanted a "
                 "negative one",
                 status);
    if (m->told != FTK_OK && status == m->told) m->repeated = status;
    m->reported = true;
    m->errors++;
    snprintf(m->message, sizeof m->message, "%.*s", FTI_STR_ARGS(message));
}

/* ---- memory ---- */

static bool out_of_memory(fti_pc_mock *m) {
    const ftk_str nothing = {NULL, 0};
    m->allocations++;
    bool fails = fti_pc_enter(m, FTI_PC_FAILS, "alloc", nothing);
    if (m->failure.allocation == 0 || m->allocations < m->failure.allocation) return fails;
    m->fired = m->must_fail = true;
    snprintf(m->injected, sizeof m->injected, "alloc");
    return true;
}

static void *alloc(ftk_core_ctx *ctx, uint64_t bytes, uint64_t align) {
    FTI_PC_HOST_CALL;
    fti_pc_mock *m = fti_pc_of_ctx(ctx);
    fti_pc_only_graph_safe(m, "alloc");
    fti_pc_check(m->call && strcmp(m->call, "match") != 0,
                 "alloc was called in match, which only looks");
    bool power = (align & (align - 1)) == 0;
    fti_pc_check(power,
                 "alloc was asked for alignment %llu, wanted a power "
                 "of two",
                 (unsigned long long)align);
    if (out_of_memory(m) || !power) return NULL;
    fti_pc_area *block = fti_pc_area_aligned("a block of host->alloc", bytes, align, 0);
    if (!block) return NULL;
    block->next = m->blocks;
    m->blocks = block;
    m->live++;
    return block->data;
}

static void release(ftk_core_ctx *ctx, void *memory) {
    FTI_PC_HOST_CALL;
    fti_pc_mock *m = fti_pc_of_ctx(ctx);
    fti_pc_only_graph_safe(m, "release");
    if (!memory) return;
    fti_pc_area **link = &m->blocks;
    while (*link && (*link)->data != memory) link = &(*link)->next;
    fti_pc_area *block = *link;
    fti_pc_check(block != NULL, "release was given a pointer that is no live block: released "
                                "twice, or of another owner");
    if (!block) return;
    fti_pc_check(fti_pc_area_intact(block), "%llu bytes were allocated, and written beyond",
                 (unsigned long long)block->bytes);
    *link = block->next;
    m->live--;
    memset(block->data, 0xDD, (size_t)block->bytes); /* what is read after this is seen */
    fti_pc_area_free(block);
}

/* ---- capabilities and interfaces ---- */

static ftk_status capability(ftk_core_ctx *ctx, ftk_str name, int64_t *value) {
    FTI_PC_HOST_CALL;
    fti_pc_mock *m = fti_pc_of_ctx(ctx);
    fti_pc_only_graph_safe(m, "capability");
    if (fti_pc_enter(m, FTI_PC_ANSWERS, "capability", name)) return FTK_E_NOT_FOUND;
    return m->backend->ops->capability(m->backend, name, value);
}

static const void *query(ftk_core_ctx *ctx, ftk_str name, uint32_t level) {
    FTI_PC_HOST_CALL;
    fti_pc_mock *m = fti_pc_of_ctx(ctx);
    fti_pc_only_graph_safe(m, "query");
    if (fti_pc_enter(m, FTI_PC_ANSWERS, "query", name) || level != 0 || !name.data) return NULL;
    if (fti_str_is(name, "checkpoint_reader")) return &fti_pc_reader;
    if (fti_str_is(name, "operators")) return &fti_pc_operators;
    if (fti_str_is(name, "kernels")) return &fti_pc_kernels;
    return NULL;
}

const ftk_host fti_pc_host = {
    .struct_size = (uint32_t)sizeof(ftk_host),
    .api_level = FTK_API_LEVEL,
    .min_provider_level = FTK_MIN_PROVIDER_LEVEL,
    .core_version = FTK_STR(FTK_VERSION_STRING),
    .report = report,
    .alloc = alloc,
    .release = release,
    .capability = capability,
    .query = query,
};
