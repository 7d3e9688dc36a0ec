/*
 * selftest.c: holds every kernel variant of this machine against the reference,
 * bit for bit, replays against eager runs, and, with a model, whole generations
 * against each other.
 */
#include "core/engine.h"
#include "core/fpenv.h"
#include "core/selftest.h"

#include <inttypes.h>
#include <stdio.h>

/* A backend that is held against the reference. */
typedef struct variant {
    const char *name;
    uint32_t kernel_mask;
    uint32_t threads;
    bool graph; /* recorded, then replayed */
} variant;

#define NARROW (FTI_CPU_MASK_AVX2 | FTI_CPU_MASK_NEON) /* of x86 and of ARM */

/* Three threads divide nothing evenly. */
static const variant variants[] = {
    {"kernels=reference threads=3", 0, 3, false},
    {"kernels=reference graph", 0, 1, true},
    {"kernels=0x9 threads=3", NARROW, 3, false},
    {"kernels=auto threads=1", UINT32_MAX, 1, false},
    {"kernels=auto threads=3", UINT32_MAX, 3, false},
    {"kernels=auto threads=3 graph", UINT32_MAX, 3, true},
};

typedef struct machine {
    const variant *kind;
    fti_backend *backend;
    ftk_stream *stream;
} machine;

/* What one variant made of all shapes of one check. */
typedef struct verdict {
    unsigned shapes;
    uint64_t values;
    char problem[200]; /* "": none */
} verdict;

typedef struct selftest {
    machine reference;
    machine others[FTI_COUNT(variants)];
    bool faster; /* this machine has kernels beside the reference */
    json_t *checks;
    unsigned passed, failed, skipped;
} selftest;

/* ---- the report ---- */

static void record(selftest *t, const char *name, const char *which, const char *status,
                   const char *detail) {
    if (strcmp(status, "ok") == 0) t->passed++;
    if (strcmp(status, "failed") == 0) t->failed++;
    if (strcmp(status, "skipped") == 0) t->skipped++;
    json_t *check = json_object();
    fti_json_set(&check, "name", fti_json_str(fti_str(name)));
    fti_json_set(&check, "variant", fti_json_str(fti_str(which)));
    fti_json_set(&check, "status", json_string(status));
    fti_json_set(&check, "detail", fti_json_str(fti_str(detail)));
    fti_json_append(&t->checks, check);
}

static void record_verdict(selftest *t, const char *name, size_t i, const verdict *v) {
    char detail[sizeof v->problem];
    if (variants[i].kernel_mask != 0 && !t->faster) {
        record(t, name, variants[i].name, "skipped",
               "this machine has no feature that another kernel than the reference needs");
        return;
    }
    (void)snprintf(detail, sizeof detail, "%u shapes, %" PRIu64 " values equal", v->shapes,
                   v->values);
    bool ok = v->problem[0] == '\0';
    record(t, name, variants[i].name, ok ? "ok" : "failed", ok ? detail : v->problem);
}

static json_t *features(const fti_backend *backend) {
    json_t *list = json_array();
    const char *name;
    for (size_t i = 0; (name = backend->ops->capability_name(backend, i)) != NULL; i++)
        fti_json_append(&list, json_string(name));
    return list;
}

static ftk_status report(selftest *t, char **json, ftk_error *err) {
    const fti_backend *backend = t->others[FTI_COUNT(variants) - 1].backend;
    json_t *o = json_object();
    fti_json_set(&o, "backend", json_string(backend->ops->name));
    fti_json_set(&o, "features", features(backend));
    fti_json_set(&o, "checks", json_incref(t->checks));
    fti_json_set(&o, "passed", json_integer(t->passed));
    fti_json_set(&o, "failed", json_integer(t->failed));
    fti_json_set(&o, "skipped", json_integer(t->skipped));
    return fti_json_dump(o, json, err);
}

/* ---- backends ---- */

static ftk_status open_machine(const variant *kind, machine *m, ftk_error *err) {
    const fti_backend_options options = {.threads = kind->threads,
                                         .kernel_mask = kind->kernel_mask};
    m->kind = kind;
    FTI_TRY(fti_cpu_backend_create(&options, &m->backend, err));
    return m->backend->ops->stream_create(m->backend, &m->stream, err);
}

static void close_machine(machine *m) {
    if (m->stream) m->backend->ops->stream_destroy(m->stream);
    if (m->backend) m->backend->ops->destroy(m->backend);
}

static ftk_status open_machines(selftest *t, ftk_error *err) {
    static const variant reference = {"reference", 0, 1, false};
    FTI_TRY(open_machine(&reference, &t->reference, err));
    for (size_t i = 0; i < FTI_COUNT(variants); i++)
        FTI_TRY(open_machine(&variants[i], &t->others[i], err));
    const fti_backend *last = t->others[FTI_COUNT(variants) - 1].backend;
    int64_t value = 0;
    t->faster = last->ops->capability(last, fti_str("cpu.avx2"), &value) == FTK_OK ||
                last->ops->capability(last, fti_str("cpu.neon_dotprod"), &value) == FTK_OK;
    return FTK_OK;
}

/* ---- operators ---- */

static ftk_status enqueue(const machine *m, const fti_problem_kind *kind, const fti_problem *p,
                          uint8_t *device, ftk_error *err) {
    const fti_backend_ops *ops = m->backend->ops;
    fti_graph *graph = NULL;
    if (!m->kind->graph) return kind->run(p, m->backend->operators, m->stream, device);
    FTI_TRY(ops->capture_begin(m->stream));
    ftk_status status = kind->run(p, m->backend->operators, m->stream, device);
    ftk_status ended = ops->capture_end(m->stream, &graph, err);
    if (status == FTK_OK) status = ended;
    if (status == FTK_OK) status = ops->graph_launch(m->stream, graph);
    if (status == FTK_OK) status = ops->stream_sync(m->stream, NULL);
    if (graph) ops->graph_destroy(graph);
    return status;
}

static ftk_status solve(const machine *m, const fti_problem_kind *kind, const fti_problem *p,
                        uint32_t *out, ftk_error *err) {
    const fti_backend_ops *ops = m->backend->ops;
    void *device = NULL;
    FTI_TRY(ops->alloc(m->backend, p->bytes, "a problem of the self-test", &device, err));
    ftk_status status = ops->upload(m->stream, device, p->image, p->bytes);
    if (status == FTK_OK) status = enqueue(m, kind, p, device, err);
    if (status == FTK_OK)
        status = ops->download(m->stream, out, (const uint8_t *)device + p->out, p->out_bytes);
    ftk_status synced = ops->stream_sync(m->stream, NULL);
    ops->release(m->backend, device, p->bytes);
    return status == FTK_OK ? synced : status;
}

static bool is_nan_bits(uint32_t bits) {
    return (bits & 0x7FFFFFFFu) > 0x7F800000u;
}

/* A check that compares nothing but zeroes or not-a-numbers would pass for ever. */
static bool has_content(const uint32_t *words, uint64_t count) {
    uint64_t numbers = 0;
    for (uint64_t i = 0; i < count; i++)
        if (words[i] << 1 != 0 && !is_nan_bits(words[i])) numbers++;
    return numbers * 3 > count;
}

/* Payloads of not-a-numbers are not promised. */
static void compare(const fti_problem *p, const uint32_t *got, const uint32_t *wanted, verdict *v) {
    uint64_t count = p->out_bytes / sizeof *got;
    v->shapes++;
    v->values += count;
    for (uint64_t i = 0; i < count && !v->problem[0]; i++) {
        if (got[i] == wanted[i] || (is_nan_bits(got[i]) && is_nan_bits(wanted[i]))) continue;
        (void)snprintf(v->problem, sizeof v->problem,
                       "%u columns, %u rows, %u inputs: word %" PRIu64 " of %" PRIu64
                       " is 0x%08x, the reference has 0x%08x",
                       p->cols, p->rows, p->inputs, i, count, got[i], wanted[i]);
    }
}

static void note_status(verdict *v, ftk_status status) {
    if (status == FTK_OK || v->problem[0]) return;
    (void)snprintf(v->problem, sizeof v->problem, "cannot be run: %s", ftk_status_text(status));
}

static ftk_status check_shape(selftest *t, const fti_problem_kind *kind, const fti_problem *p,
                              verdict *verdicts, ftk_error *err) {
    uint32_t *wanted = fti_calloc(2, (size_t)p->out_bytes);
    if (!wanted) return fti_no_memory(err, 2 * p->out_bytes, "results of the self-test");
    uint32_t *got = wanted + p->out_bytes / sizeof *wanted;
    ftk_status status = solve(&t->reference, kind, p, wanted, err);
    bool content = has_content(wanted, p->out_bytes / sizeof *wanted);
    for (size_t i = 0; i < FTI_COUNT(variants); i++) {
        verdict *v = &verdicts[i];
        ftk_status own = status == FTK_OK ? solve(&t->others[i], kind, p, got, err) : status;
        note_status(v, own);
        if (own == FTK_OK) compare(p, got, wanted, v);
        if (!content && !v->problem[0])
            (void)snprintf(v->problem, sizeof v->problem, "the reference gave no numbers");
    }
    fti_free(wanted);
    return FTK_OK;
}

static ftk_status check_operator(selftest *t, const fti_problem_kind *kind, uint32_t type,
                                 ftk_error *err) {
    verdict verdicts[FTI_COUNT(variants)] = {{0, 0, ""}};
    ftk_status status = FTK_OK;
    for (size_t shape = 0; status != FTK_E_NOT_FOUND; shape++) {
        fti_problem p = {0};
        status = fti_problem_make(kind, t->reference.backend->operators, type, shape, &p, err);
        if (status == FTK_E_UNSUPPORTED || status == FTK_E_NOT_FOUND) continue;
        if (status == FTK_OK) status = check_shape(t, kind, &p, verdicts, err);
        fti_problem_free(&p);
        FTI_TRY(status);
    }
    char name[64];
    (void)snprintf(name, sizeof name, "%s%s%s", kind->name, kind->typed ? "/" : "",
                   kind->typed ? fti_type_name(type) : "");
    for (size_t i = 0; i < FTI_COUNT(variants) && verdicts[0].shapes > 0; i++)
        record_verdict(t, name, i, &verdicts[i]);
    return FTK_OK;
}

static ftk_status check_operators(selftest *t, ftk_error *err) {
    for (size_t k = 0; k < fti_problem_kind_count; k++) {
        const fti_problem_kind *kind = &fti_problem_kinds[k];
        uint32_t types = kind->typed ? FTI_PROBLEM_TYPES : 1;
        for (uint32_t type = 0; type < types; type++) FTI_TRY(check_operator(t, kind, type, err));
    }
    return FTK_OK;
}

static bool uses_avx512(const machine *m) {
    int64_t value;
    return m->backend->ops->capability(m->backend, fti_str("cpu.avx512_vnni"), &value) == FTK_OK;
}

/* Agreement means something only if each variant ran what it names. */
static void check_counts(selftest *t) {
    for (size_t i = 0; i < FTI_COUNT(variants); i++) {
        const machine *m = &t->others[i];
        fti_stream_counts c;
        char detail[120];
        bool vectors = m->kind->kernel_mask != 0 && t->faster;
        m->backend->ops->stream_counts(m->stream, &c);
        bool ok = (c.vector > 0) == vectors && (c.reference > 0) == !vectors &&
                  c.avx512 == (uses_avx512(m) ? c.vector : 0) && (c.replays > 0) == m->kind->graph;
        (void)snprintf(detail, sizeof detail,
                       "%" PRIu64 " reference operators, %" PRIu64 " with AVX2 or NEON, %" PRIu64
                       " with AVX-512, %" PRIu64 " replays",
                       c.reference, c.vector - c.avx512, c.avx512, c.replays);
        record(t, "what ran", m->kind->name, ok ? "ok" : "failed", detail);
    }
}

/* ---- a model ---- */

#define PROMPT "Once upon a time, in 1234 words: "
#define TOKENS 16u

typedef struct setting {
    const char *name;
    uint32_t kernel_mask;
    fti_switch graphs;
} setting;

static const setting settings[] = {
    {"kernels=reference graphs=off", 0, FTI_OFF},
    {"kernels=reference graphs=on", 0, FTI_ON},
    {"kernels=0x9 graphs=on", NARROW, FTI_ON},
    {"kernels=auto graphs=off", UINT32_MAX, FTI_OFF},
    {"kernels=auto graphs=on", UINT32_MAX, FTI_ON},
};

static ftk_status generate(ftk_engine *engine, ftk_generate_result *result, ftk_error *err) {
    int32_t ids[64];
    size_t count = 0;
    FTI_TRY(ftk_tokenize(engine, PROMPT, sizeof PROMPT - 1, 0, ids, FTI_COUNT(ids), &count, err));
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    options.max_tokens = TOKENS;
    options.ignore_end = 1;
    return ftk_generate(engine, ids, count < FTI_COUNT(ids) ? count : FTI_COUNT(ids), &options,
                        result, err);
}

static ftk_status run_model(const ftk_config *config, const char *path, const setting *s,
                            ftk_generate_result *result, ftk_error *err) {
    struct ftk_config own = *config;
    own.kernel_mask = s->kernel_mask;
    own.graphs = s->graphs;
    ftk_engine *engine = NULL;
    *result = (ftk_generate_result)FTK_GENERATE_RESULT_INIT;
    FTI_TRY(ftk_engine_open(&own, path, NULL, &engine, err));
    ftk_status status = generate(engine, result, err);
    ftk_engine_close(engine);
    return status;
}

static void judge(selftest *t, const setting *s, const ftk_generate_result *r,
                  const ftk_generate_result *first) {
    char detail[160];
    bool replayed = r->graph_replays > 0;
    bool same = r->hash == first->hash && r->tokens == first->tokens;
    if (replayed != (s->graphs == FTI_ON)) {
        (void)snprintf(detail, sizeof detail, "graphs were %s, but %" PRIu64 " steps were replayed",
                       s->graphs == FTI_ON ? "on" : "off", r->graph_replays);
        record(t, "model", s->name, "failed", detail);
        return;
    }
    int size = snprintf(detail, sizeof detail,
                        "%" PRIu64 " tokens, hash %016" PRIx64 ", %" PRIu64 " steps replayed",
                        r->tokens, r->hash, r->graph_replays);
    if (!same)
        (void)snprintf(detail + size, sizeof detail - (size_t)size,
                       "; the reference has %016" PRIx64, first->hash);
    record(t, "model", s->name, same ? "ok" : "failed", detail);
}

/* The first setting is the reference: without it there is nothing to say. */
static ftk_status check_model(selftest *t, const ftk_config *config, const char *path,
                              ftk_error *err) {
    ftk_generate_result first = FTK_GENERATE_RESULT_INIT;
    FTI_TRY(run_model(config, path, &settings[0], &first, err));
    for (size_t i = 0; i < FTI_COUNT(settings); i++) {
        ftk_generate_result result = first;
        ftk_error failure = FTK_ERROR_INIT;
        ftk_status status = i == 0 ? FTK_OK
                                   : run_model(config, path, &settings[i], &result, &failure);
        if (status == FTK_OK) {
            judge(t, &settings[i], &result, &first);
        } else {
            record(t, "model", settings[i].name, "failed", failure.message);
        }
    }
    return FTK_OK;
}

/* ---- the call ---- */

static ftk_status check_backend(const ftk_config *config, ftk_error *err) {
    if (config->backend == FTI_BACKEND_AUTO || config->backend == FTI_BACKEND_CPU) return FTK_OK;
    return fti_fail(err, FTK_E_DEVICE_UNAVAILABLE,
                    "%s: backend.kind is %s, which this build does not have: use cpu or auto",
                    config->origin, config->backend == FTI_BACKEND_CUDA ? "cuda" : "hip");
}

static ftk_status test_all(selftest *t, const ftk_config *config, const char *model_path,
                           char **json, ftk_error *err) {
    FTI_TRY(open_machines(t, err));
    FTI_TRY(check_operators(t, err));
    check_counts(t);
    if (model_path) FTI_TRY(check_model(t, config, model_path, err));
    return report(t, json, err);
}

ftk_status ftk_selftest(const ftk_config *config, const char *model_path, char **json,
                        ftk_error *err) {
    if (!config || !json) return fti_fail(err, FTK_E_ARGUMENT, "config and json must not be NULL");
    FTI_TRY(check_backend(config, err));
    selftest t = {.checks = json_array()};
    fti_fpenv saved = fti_fpenv_enter();
    ftk_status status = test_all(&t, config, model_path, json, err);
    fti_fpenv_leave(saved);
    for (size_t i = 0; i < FTI_COUNT(variants); i++) close_machine(&t.others[i]);
    close_machine(&t.reference);
    json_decref(t.checks);
    return status;
}
