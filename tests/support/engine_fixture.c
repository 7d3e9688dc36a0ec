/* engine_fixture.c: see engine_fixture.h. */
#include "support/engine_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

ftk_status fixture_try_open(const char *model, const char *const *settings, uint32_t stop_after,
                            ftk_engine **out, ftk_error *err) {
    ftk_config *config;
    ftk_status status = ftk_config_load(FTK_CONFIG, &config, err);
    if (status != FTK_OK) return status;
    for (; status == FTK_OK && settings && *settings; settings += 2)
        status = ftk_config_set(config, settings[0], settings[1], err);
    ftk_open_options options = FTK_OPEN_OPTIONS_INIT;
    options.stop_after = stop_after;
    if (status == FTK_OK) status = ftk_engine_open(config, model, &options, out, err);
    ftk_config_free(config);
    return status;
}

ftk_engine *fixture_open(const char *model, const char *const *settings) {
    ftk_error error = FTK_ERROR_INIT;
    ftk_engine *engine = NULL;
    if (fixture_try_open(model, settings, FTK_OPEN_READY, &engine, &error) != FTK_OK)
        fail_msg("opening %s: %s", model, error.message);
    return engine;
}

int32_t *fixture_tokenize(const ftk_engine *engine, const char *text, size_t size, size_t *count) {
    ftk_error error = FTK_ERROR_INIT;
    if (ftk_tokenize(engine, text, size, FTK_TOKENIZE_SPECIAL, NULL, 0, count, &error) != FTK_OK)
        fail_msg("%s", error.message);
    int32_t *ids = calloc(*count + 1, sizeof *ids);
    assert_non_null(ids);
    assert_int_equal(
        ftk_tokenize(engine, text, size, FTK_TOKENIZE_SPECIAL, ids, *count, count, &error), 0);
    return ids;
}

typedef struct logit_sink {
    float *data;
    size_t vocabulary;
    size_t next;
} logit_sink;

static int keep_logits(void *user, size_t position, const float *logits, const float *layers) {
    logit_sink *sink = user;
    (void)layers;
    assert_int_equal(position, sink->next++);
    memcpy(sink->data + position * sink->vocabulary, logits, sink->vocabulary * sizeof *logits);
    return 0;
}

float *fixture_logits(ftk_engine *engine, const int32_t *ids, size_t count, uint32_t chunk) {
    ftk_error error = FTK_ERROR_INIT;
    logit_sink sink = {.vocabulary = ftk_engine_vocabulary(engine)};
    sink.data = calloc(count * sink.vocabulary, sizeof *sink.data);
    assert_non_null(sink.data);
    ftk_evaluate_options options = FTK_EVALUATE_OPTIONS_INIT;
    options.chunk = chunk;
    options.on_logits = keep_logits;
    options.user = &sink;
    if (ftk_evaluate(engine, ids, count, &options, &error) != FTK_OK) fail_msg("%s", error.message);
    assert_int_equal(sink.next, count);
    return sink.data;
}

char *fixture_read(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *data = malloc((size_t)n + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)n, f), n);
    data[n] = 0;
    fclose(f);
    *size = (size_t)n;
    return data;
}

golden golden_load(void) {
    golden g = {0};
    json_error_t error;
    g.root = json_load_file(FTK_TEST_DATA "/golden.json", JSON_ALLOW_NUL, &error);
    if (!g.root) fail_msg("golden.json:%d: %s", error.line, error.text);
    g.set = json_object_get(json_object_get(g.root, "sets"), "ud_q4_k_m");
    assert_non_null(g.set);
    size_t bytes;
    g.values = (float *)(void *)fixture_read(FTK_TEST_DATA "/golden.bin", &bytes);
    g.value_count = bytes / sizeof(float);
    return g;
}

void golden_free(golden *g) {
    json_decref(g->root);
    free(g->values);
}

int32_t *golden_ids(const json_t *list, size_t *count) {
    *count = json_array_size(list);
    int32_t *ids = calloc(*count + 1, sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < *count; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

typedef struct nll_sink {
    const int32_t *ids;
    size_t count;
    size_t vocabulary;
    double sum;
    size_t scored;
} nll_sink;

static int add_nll(void *user, size_t position, const float *logits, const float *layers) {
    nll_sink *s = user;
    (void)layers;
    if (position + 1 >= s->count) return 0;
    double top = logits[0], sum = 0;
    for (size_t i = 1; i < s->vocabulary; i++)
        if (logits[i] > top) top = logits[i];
    for (size_t i = 0; i < s->vocabulary; i++) sum += exp(logits[i] - top);
    s->sum += top + log(sum) - logits[s->ids[position + 1]];
    s->scored++;
    return 0;
}

double fixture_nll(ftk_engine *engine, const int32_t *ids, size_t count, size_t window,
                   size_t *scored) {
    ftk_error error = FTK_ERROR_INIT;
    nll_sink sink = {.vocabulary = ftk_engine_vocabulary(engine)};
    for (size_t at = 0; at < count; at += window) {
        sink.ids = ids + at;
        sink.count = count - at < window ? count - at : window;
        ftk_evaluate_options options = FTK_EVALUATE_OPTIONS_INIT;
        options.on_logits = add_nll;
        options.user = &sink;
        if (ftk_evaluate(engine, sink.ids, sink.count, &options, &error) != FTK_OK)
            fail_msg("%s", error.message);
    }
    *scored = sink.scored;
    return sink.sum / (double)sink.scored;
}
