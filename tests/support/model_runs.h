/*
 * model_runs.h: what tests share that compare what models compute: logits of a fixed
 * prompt, their comparison, and the engine's reports.
 */
#ifndef TESTS_MODEL_RUNS_H
#define TESTS_MODEL_RUNS_H

#include "support/model_files.h"

#include <math.h>

#include "core/checkpoint.h"
#include "support/counts.h"

#define MAX_TOKENS 64

static const char *const float_mode[] __attribute__((unused)) = {"numerics", "float", NULL};

/* ---- logits ---- */

static inline void fill_ids(int32_t *ids, size_t count, uint32_t vocabulary) {
    for (size_t i = 0; i < count; i++) ids[i] = (int32_t)((i * 37 + 11) % (vocabulary - 26));
}

typedef struct logits {
    float *data; /* free() */
    size_t count;
} logits;

/* Of `tokens` tokens in steps of `chunk` rows (0: in one), which are counted. */
static inline logits run(ftk_engine *engine, size_t tokens, uint32_t chunk) {
    int32_t ids[MAX_TOKENS];
    fill_ids(ids, tokens, ftk_engine_vocabulary(engine));
    fti_stream_counts before = counts_now(engine);
    float *data = fixture_logits(engine, ids, tokens, chunk);
    counts_expect_steps(engine, &before, tokens, chunk ? chunk : tokens, 1, true);
    return (logits){data, tokens * ftk_engine_vocabulary(engine)};
}

static inline logits run_file(const char *path, const char *const *settings, size_t tokens) {
    ftk_engine *engine = fixture_open(path, settings);
    logits l = run(engine, tokens, 0);
    ftk_engine_close(engine);
    return l;
}

static inline bool all_finite(logits l) {
    for (size_t i = 0; i < l.count; i++)
        if (!isfinite(l.data[i])) return false;
    return true;
}

/* Deviation of the logits from their mean: what a difference is measured by. */
static inline double deviation(logits l) {
    double sum = 0, squares = 0, n = (double)l.count;
    for (size_t i = 0; i < l.count; i++) {
        sum += (double)l.data[i];
        squares += (double)l.data[i] * (double)l.data[i];
    }
    return sqrt(squares / n - sum / n * (sum / n));
}

static inline double largest_difference(logits a, logits b) {
    double worst = 0;
    assert_int_equal(a.count, b.count);
    for (size_t i = 0; i < a.count; i++) {
        double d = fabs((double)a.data[i] - (double)b.data[i]);
        if (!(d <= worst)) worst = d; /* a NaN stays */
    }
    return worst;
}

/* The logits of a live model, equal bit by bit; `what` is for messages. */
static inline void assert_same_bits(logits found, logits wanted, const char *what) {
    assert_int_equal(found.count, wanted.count);
    double spread = deviation(wanted);
    if (!(spread > 0.01) || !isfinite(spread)) fail_msg("%s: logits of a dead model", what);
    if (memcmp(found.data, wanted.data, found.count * sizeof *found.data) != 0)
        fail_msg("%s: logits differ, by %.3g at most", what, largest_difference(found, wanted));
}

/* Opens the file, expects these logits of it, and closes it. */
static inline void expect_logits(const char *path, const char *const *settings, size_t tokens,
                                 logits wanted, const char *what) {
    logits found = run_file(path, settings, tokens);
    assert_same_bits(found, wanted, what);
    free(found.data);
}

/* ---- reports ---- */

static inline json_t *report(ftk_status (*ask)(const ftk_engine *, char **, ftk_error *),
                             const ftk_engine *engine) {
    char *json;
    ftk_error err = FTK_ERROR_INIT;
    if (ask(engine, &json, &err) != FTK_OK) fail_msg("%s", err.message);
    json_t *o = json_loads(json, 0, NULL);
    assert_non_null(o);
    ftk_report_free(json);
    return o;
}

static inline uint64_t json_number(const json_t *o, const char *key) {
    const json_t *value = json_object_get(o, key);
    if (!json_is_integer(value)) fail_msg("no number '%s' in the report", key);
    return (uint64_t)json_integer_value(value);
}

/* True if a note of the provenance holds `part`. */
static inline bool noted(const ftk_engine *engine, const char *part) {
    json_t *provenance = report(ftk_engine_provenance, engine), *note;
    size_t i;
    bool found = false;
    json_array_foreach(json_object_get(provenance, "notes"), i, note)
        found |= strstr(json_string_value(note), part) != NULL;
    json_decref(provenance);
    return found;
}

static inline uint64_t sum_of_tensors(const char *path) {
    ftk_error err = FTK_ERROR_INIT;
    fti_checkpoint *c;
    uint64_t sum = 0;
    if (fti_checkpoint_open(path, &c, &err) != FTK_OK) fail_msg("%s", err.message);
    for (size_t i = 0; i < fti_checkpoint_tensor_count(c); i++)
        sum += fti_checkpoint_tensor(c, i)->bytes;
    fti_checkpoint_close(c);
    return sum;
}

/* Weights that the engine has copied; with those that it maps, all of the file's. */
static inline uint64_t copied_weights(const ftk_engine *engine, const char *path) {
    json_t *m = report(ftk_engine_memory, engine);
    uint64_t copied = json_number(m, "weights_allocated"),
             mapped = json_number(m, "weights_mapped");
    assert_int_equal(copied + mapped, sum_of_tensors(path));
    assert_int_equal(json_number(m, "allocated"), json_number(m, "total"));
    json_decref(m);
    return copied;
}

#endif
