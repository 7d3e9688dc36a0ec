/*
 * test_engine.c: how the public functions behave around the computing: arguments
 * that are refused, calls out of order, opening that stops or is cancelled, where
 * generation ends, engines beside each other, and callers with an unusual
 * floating-point environment.
 */
#include "support/model_files.h"

#include <fenv.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "core/checkpoint.h"
#include "core/engine.h"

/* ---- a small model ---- */

static fti_synth_model half_full_model(void) {
    fti_synth_model m = small_model();
    m.dims.interval = 2;
    return m;
}

static text small_path(void) {
    return in_scratch("small.gguf");
}

static ftk_engine *open_until(uint32_t stop_after) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = NULL;
    if (fixture_try_open(small_path().s, NULL, stop_after, &engine, &err) != FTK_OK)
        fail_msg("%s", err.message);
    return engine;
}

/* ---- arguments ---- */

static ftk_error record;

static void check_refusal(int pass, ftk_status wanted, ftk_status found) {
    if (pass == 1) {
        assert_int_equal(found, wanted);
        return;
    }
    expect_status(found, wanted, &record, "");
    assert_true(strlen(record.message) > 10);
    record = (ftk_error)FTK_ERROR_INIT;
}

/* Makes the call with a record of the error (ERR), which must be filled in, and
 * without one. */
#define ERR (pass_ == 1 ? NULL : &record)
#define REFUSES(status_, call)                                                                     \
    for (int pass_ = 0; pass_ < 2; pass_++) check_refusal(pass_, (status_), (call))

static void null_arguments_of_configuration(void **state) {
    (void)state;
    ftk_config *config = load_config(), *out = NULL;
    REFUSES(FTK_E_ARGUMENT, ftk_config_load(NULL, &out, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_config_load(FTK_CONFIG, NULL, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_config_parse(NULL, 5, "x", &out, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_config_parse("{}", 2, "x", NULL, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_config_set(NULL, "numerics", "exact", ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_config_set(config, NULL, "exact", ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_config_set(config, "numerics", NULL, ERR));
    ftk_config_free(config);
    ftk_config_free(NULL);
}

static void null_arguments_of_reports(void **state) {
    (void)state;
    ftk_config *config = load_config();
    char *json = NULL;
    REFUSES(FTK_E_ARGUMENT, ftk_inspect(NULL, &json, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_inspect(DEMO_MODEL, NULL, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_providers_report(NULL, &json, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_providers_report(config, NULL, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_provider_describe(NULL, &json, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_provider_describe(FTK_PROVIDER_DIR, NULL, ERR));
    assert_null(json);
    ftk_config_free(config);
    ftk_report_free(NULL);
}

static void null_arguments_of_engines(void **state) {
    (void)state;
    ftk_config *config = load_config();
    ftk_engine *none = (ftk_engine *)(void *)config;
    REFUSES(FTK_E_ARGUMENT, ftk_engine_open(NULL, DEMO_MODEL, NULL, &none, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_engine_open(config, NULL, NULL, &none, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_engine_open(config, DEMO_MODEL, NULL, NULL, ERR));
    ftk_config_free(config);

    ftk_engine *engine = open_until(0);
    char *json = NULL;
    REFUSES(FTK_E_ARGUMENT, ftk_engine_provenance(NULL, &json, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_engine_provenance(engine, NULL, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_engine_memory(NULL, &json, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_engine_memory(engine, NULL, ERR));
    assert_null(json);
    assert_int_equal(ftk_engine_vocabulary(NULL), 0);
    assert_int_equal(ftk_engine_context(NULL), 0);
    assert_int_equal(ftk_engine_layers(NULL), 0);
    assert_int_equal(ftk_engine_hidden(NULL), 0);
    assert_int_equal(ftk_token_is_end(NULL, 0), 0);
    ftk_engine_close(engine);
    ftk_engine_close(NULL);
}

static void null_arguments_of_text(void **state) {
    (void)state;
    ftk_engine *engine = open_until(0);
    int32_t ids[4];
    size_t n;
    const char *piece;
    REFUSES(FTK_E_ARGUMENT, ftk_tokenize(NULL, "a", 1, 0, ids, 4, &n, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_tokenize(engine, NULL, 1, 0, ids, 4, &n, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_tokenize(engine, "a", 1, 0, NULL, 4, &n, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_tokenize(engine, "a", 1, 0, ids, 4, NULL, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_tokenize(engine, "a", 1, 2, ids, 4, &n, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_token_text(NULL, 0, &piece, &n, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_token_text(engine, 0, NULL, &n, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_token_text(engine, 0, &piece, NULL, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_token_text(engine, -1, &piece, &n, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_token_text(engine, 512, &piece, &n, ERR));
    n = 99;
    assert_int_equal(ftk_tokenize(engine, NULL, 0, 0, NULL, 0, &n, NULL), FTK_OK);
    assert_int_equal(n, 0);
    ftk_engine_close(engine);
}

static void null_arguments_of_running(void **state) {
    (void)state;
    ftk_engine *engine = open_until(0);
    const int32_t ids[] = {1, 2};
    const ftk_generate_options generate = FTK_GENERATE_OPTIONS_INIT;
    const ftk_evaluate_options evaluate = FTK_EVALUATE_OPTIONS_INIT;
    REFUSES(FTK_E_ARGUMENT, ftk_generate(NULL, ids, 2, &generate, NULL, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_generate(engine, NULL, 2, &generate, NULL, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_generate(engine, ids, 2, NULL, NULL, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_evaluate(NULL, ids, 2, &evaluate, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_evaluate(engine, NULL, 2, &evaluate, ERR));
    REFUSES(FTK_E_ARGUMENT, ftk_evaluate(engine, ids, 2, NULL, ERR));
    /* Nobody need listen. */
    assert_int_equal(ftk_evaluate(engine, ids, 2, &evaluate, NULL), FTK_OK);
    ftk_engine_close(engine);
}

static void wrong_struct_sizes(void **state) {
    (void)state;
    ftk_config *config = load_config();
    ftk_engine *engine = open_until(0), *none = NULL;
    const int32_t ids[] = {1, 2};
    const uint32_t wrong[] = {0, 8, UINT32_MAX};
    for (size_t i = 0; i < FTI_COUNT(wrong); i++) {
        ftk_open_options open = FTK_OPEN_OPTIONS_INIT;
        ftk_generate_options generate = FTK_GENERATE_OPTIONS_INIT, sampled = generate;
        ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
        ftk_evaluate_options evaluate = FTK_EVALUATE_OPTIONS_INIT;
        generate.max_tokens = sampled.max_tokens = 1;
        open.struct_size = wrong[i];
        REFUSES(FTK_E_ARGUMENT, ftk_engine_open(config, DEMO_MODEL, &open, &none, ERR));
        assert_null(none);
        result.struct_size = wrong[i];
        REFUSES(FTK_E_ARGUMENT, ftk_generate(engine, ids, 2, &generate, &result, ERR));
        generate.struct_size = wrong[i];
        REFUSES(FTK_E_ARGUMENT, ftk_generate(engine, ids, 2, &generate, NULL, ERR));
        sampled.sampling.struct_size = wrong[i];
        REFUSES(FTK_E_ARGUMENT, ftk_generate(engine, ids, 2, &sampled, NULL, ERR));
        evaluate.struct_size = wrong[i];
        REFUSES(FTK_E_ARGUMENT, ftk_evaluate(engine, ids, 2, &evaluate, ERR));
    }
    ftk_open_options open = FTK_OPEN_OPTIONS_INIT;
    open.stop_after = 4;
    REFUSES(FTK_E_ARGUMENT, ftk_engine_open(config, DEMO_MODEL, &open, &none, ERR));
    ftk_engine_close(engine);
    ftk_config_free(config);
}

static void sampling_out_of_range(void **state) {
    (void)state;
    ftk_engine *engine = open_until(0);
    const int32_t ids[] = {1, 2};
    const ftk_sampling good = FTK_SAMPLING_INIT;
    ftk_sampling bad[] = {good, good, good, good, good, good};
    bad[0].temperature = -1;
    bad[1].temperature = (float)NAN;
    bad[2].top_p = 0;
    bad[3].top_p = 1.5f;
    bad[4].min_p = 1;
    bad[5].min_p = -0.5f;
    for (size_t i = 0; i < FTI_COUNT(bad); i++) {
        ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
        options.max_tokens = 1;
        options.sampling = bad[i];
        REFUSES(FTK_E_ARGUMENT, ftk_generate(engine, ids, 2, &options, NULL, ERR));
    }
    ftk_engine_close(engine);
}

/* ---- stages ---- */

static void check_running_is_refused(ftk_engine *engine) {
    const int32_t ids[] = {1, 2};
    const ftk_generate_options generate = FTK_GENERATE_OPTIONS_INIT;
    const ftk_evaluate_options evaluate = FTK_EVALUATE_OPTIONS_INIT;
    REFUSES(FTK_E_STATE, ftk_generate(engine, ids, 2, &generate, NULL, ERR));
    REFUSES(FTK_E_STATE, ftk_evaluate(engine, ids, 2, &evaluate, ERR));
}

static void check_text_works(const ftk_engine *engine) {
    int32_t ids[4];
    size_t n, size;
    const char *piece;
    ftk_error err = FTK_ERROR_INIT;
    expect_status(ftk_tokenize(engine, "et", 2, 0, ids, 4, &n, &err), FTK_OK, &err, "");
    assert_int_equal(n, 1);
    expect_status(ftk_token_text(engine, ids[0], &piece, &size, &err), FTK_OK, &err, "");
    assert_memory_equal(piece, "et", 2);
    assert_int_equal(size, 2);
    expect_status(ftk_tokenize(engine, "x<|im_end|>", 11, 1, ids, 1, &n, &err), FTK_OK, &err, "");
    assert_int_equal(n, 2);
    assert_int_equal(ftk_token_is_end(engine, 512 - 26 + 2), 1);
    assert_int_equal(ftk_token_is_end(engine, 5), 0);
}

static void stopping_on_the_way(void **state) {
    (void)state;
    char *json = NULL;
    ftk_error e = FTK_ERROR_INIT;
    ftk_engine *engine = open_until(FTK_OPEN_CONFIGURED);
    assert_int_equal(ftk_engine_vocabulary(engine), 512);
    assert_int_equal(ftk_engine_layers(engine), 4);
    assert_int_equal(ftk_engine_hidden(engine), 256);
    assert_int_equal(ftk_engine_context(engine), 0);
    check_text_works(engine);
    check_running_is_refused(engine);
    REFUSES(FTK_E_STATE, ftk_engine_memory(engine, &json, ERR));
    assert_null(json);
    expect_status(ftk_engine_provenance(engine, &json, &e), FTK_OK, &e, "");
    assert_non_null(strstr(json, "\"configure model\""));
    ftk_report_free(json);
    ftk_engine_close(engine);

    engine = open_until(FTK_OPEN_PLANNED);
    assert_int_equal(ftk_engine_context(engine), 32768);
    check_text_works(engine);
    check_running_is_refused(engine);
    expect_status(ftk_engine_memory(engine, &json, &e), FTK_OK, &e, "");
    assert_non_null(strstr(json, "\"allocated\": 0,"));
    ftk_report_free(json);
    ftk_engine_close(engine);

    engine = open_until(FTK_OPEN_READY);
    check_text_works(engine);
    expect_status(ftk_engine_provenance(engine, &json, &e), FTK_OK, &e, "");
    assert_non_null(strstr(json, "\"stage\": \"ready\""));
    ftk_report_free(json);
    ftk_engine_close(engine);
}

static void lifecycle_refuses_every_other_order(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    for (int reached = 0; reached < FTI_STAGE_COUNT; reached++)
        for (int next = 0; next <= FTI_STAGE_COUNT; next++) {
            fti_lifecycle l = {(fti_stage)reached, false};
            fti_stage stage = (fti_stage)next;
            ftk_status order = next == reached + 1 ? FTK_OK : FTK_E_STATE;
            ftk_status need = next <= reached ? FTK_OK : FTK_E_STATE;
            expect_status(fti_lifecycle_begin(&l, stage, &err), order, &err, fti_stage_text(stage));
            expect_status(fti_lifecycle_need(&l, stage, &err), need, &err, fti_stage_text(stage));
            /* After a failure nothing is left but to close. */
            assert_int_equal(fti_lifecycle_end(&l, stage, FTK_E_IO), FTK_E_IO);
            assert_int_equal(l.reached, reached);
            expect_status(fti_lifecycle_begin(&l, (fti_stage)(reached + 1), &err), FTK_E_STATE,
                          &err, "close the engine");
            expect_status(fti_lifecycle_need(&l, FTI_STAGE_NEW, &err), FTK_E_STATE, &err, "needs");
        }
    fti_lifecycle l = {FTI_STAGE_NEW, false};
    for (int stage = 1; stage < FTI_STAGE_COUNT; stage++) {
        assert_int_equal(fti_lifecycle_begin(&l, (fti_stage)stage, &err), FTK_OK);
        assert_int_equal(fti_lifecycle_end(&l, (fti_stage)stage, FTK_OK), FTK_OK);
        assert_int_equal(l.reached, stage);
    }
    assert_string_equal(fti_stage_text(FTI_STAGE_READY), "ready");
}

/* ---- cancelling ---- */

typedef struct canceller {
    size_t calls;
    size_t cancel_at; /* call that says so; SIZE_MAX: none */
    uint64_t last_total;
} canceller;

static int count_or_cancel(void *user, const char *stage, uint64_t done, uint64_t total) {
    canceller *c = user;
    assert_true(strlen(stage) > 0);
    assert_true(done < total);
    c->last_total = total;
    return c->calls++ == c->cancel_at;
}

static ftk_status open_with(canceller *c, ftk_engine **engine, ftk_error *err) {
    ftk_config *config = load_config();
    ftk_open_options options = FTK_OPEN_OPTIONS_INIT;
    options.progress = count_or_cancel;
    options.user = c;
    ftk_status status = ftk_engine_open(config, small_path().s, &options, engine, err);
    ftk_config_free(config);
    return status;
}

static void opening_cancelled_anywhere(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine;
    canceller all = {0, SIZE_MAX, 0};
    expect_status(open_with(&all, &engine, &err), FTK_OK, &err, "");
    ftk_engine_close(engine);
    assert_true(all.calls > 50); /* stages and weights */
    size_t descriptors = open_descriptors();
    for (size_t i = 0; i < all.calls; i++) {
        canceller c = {0, i, 0};
        engine = (ftk_engine *)(void *)&c;
        expect_status(open_with(&c, &engine, &err), FTK_E_CANCELLED, &err, "cancelled");
        assert_null(engine);
        assert_int_equal(c.calls, i + 1);
    }
    assert_int_equal(open_descriptors(), descriptors);
    engine = open_until(0);
    ftk_engine_close(engine);
}

/* ---- where generation ends ---- */

typedef struct tokens {
    int32_t ids[80];
    size_t count;
    size_t stop_at; /* 0: never */
} tokens;

static int keep(void *user, int32_t id, const char *piece, size_t size) {
    tokens *t = user;
    assert_true(piece || size == 0);
    t->ids[t->count++] = id;
    return t->count == t->stop_at;
}

static ftk_generate_result generate(ftk_engine *engine, size_t prompt, uint32_t max_tokens,
                                    bool ignore_end, tokens *out) {
    int32_t ids[80];
    for (size_t i = 0; i < FTI_COUNT(ids); i++) ids[i] = (int32_t)(i * 7 % 400);
    ftk_error err = FTK_ERROR_INIT;
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
    options.max_tokens = max_tokens;
    options.ignore_end = ignore_end;
    options.on_token = keep;
    options.user = out;
    out->count = 0;
    if (ftk_generate(engine, ids, prompt, &options, &result, &err) != FTK_OK)
        fail_msg("%s", err.message);
    assert_int_equal(result.tokens, out->count);
    assert_int_equal(result.prompt_tokens, prompt);
    return result;
}

static void context_ends_generation(void **state) {
    (void)state;
    const char *const settings[] = {"memory.kv_tokens", "64", NULL};
    ftk_engine *engine = fixture_open(small_path().s, settings);
    assert_int_equal(ftk_engine_context(engine), 64);
    const size_t prompts[] = {1, 2, 63, 64};
    for (size_t i = 0; i < FTI_COUNT(prompts); i++) {
        tokens t = {.stop_at = 0};
        ftk_generate_result r = generate(engine, prompts[i], 0, true, &t);
        assert_int_equal(r.finish, FTK_FINISH_LENGTH);
        assert_int_equal(r.tokens, 64 - prompts[i] + 1);
        assert_int_equal(r.prefill_steps, 1);
        assert_int_equal(r.decode_steps, 64 - prompts[i]);
    }
    ftk_error err = FTK_ERROR_INIT;
    const int32_t ids[65] = {0};
    const ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    expect_status(ftk_generate(engine, ids, 65, &options, NULL, &err), FTK_E_CONTEXT, &err, "65");
    ftk_engine_close(engine);
}

static void limits_end_generation(void **state) {
    (void)state;
    ftk_engine *engine = open_until(0);
    tokens whole = {.stop_at = 0}, t = whole;
    ftk_generate_result r = generate(engine, 5, 40, true, &whole);
    assert_int_equal(r.tokens, 40);
    assert_int_equal(r.finish, FTK_FINISH_LENGTH);
    for (uint32_t n = 1; n <= 3; n++) {
        r = generate(engine, 5, n, true, &t);
        assert_int_equal(r.tokens, n);
        assert_int_equal(r.finish, FTK_FINISH_LENGTH);
        assert_memory_equal(t.ids, whole.ids, n * sizeof *t.ids);
        t.stop_at = n;
        r = generate(engine, 5, 40, true, &t);
        assert_int_equal(r.tokens, n);
        assert_int_equal(r.finish, FTK_FINISH_CANCELLED);
        assert_int_equal(r.decode_steps, n - 1);
        t.stop_at = 0;
    }
    ftk_engine_close(engine);
}

static int stop_evaluating(void *user, size_t position, const float *logits, const float *layers) {
    size_t *last = user;
    assert_non_null(logits);
    assert_null(layers);
    *last = position;
    return position == 4;
}

static void evaluation_stops_when_told(void **state) {
    (void)state;
    ftk_engine *engine = open_until(0);
    ftk_error err = FTK_ERROR_INIT;
    const int32_t ids[9] = {0};
    size_t last = 99;
    ftk_evaluate_options options = FTK_EVALUATE_OPTIONS_INIT;
    options.on_logits = stop_evaluating;
    options.user = &last;
    expect_status(ftk_evaluate(engine, ids, 9, &options, &err), FTK_E_CANCELLED, &err,
                  "position 4");
    assert_int_equal(last, 4);
    ftk_engine_close(engine);
}

/* The same weights in files that end at a token which they are known to choose. */
static void end_token_stops(void **state) {
    (void)state;
    ftk_engine *engine = open_until(0);
    tokens free_run = {.stop_at = 0}, t = free_run;
    uint64_t hash = generate(engine, 5, 24, true, &free_run).hash;
    uint64_t hashes[24];
    for (uint32_t n = 1; n < 24; n++) hashes[n] = generate(engine, 5, n, true, &t).hash;
    ftk_engine_close(engine);

    const size_t picks[] = {0, 3, 17};
    for (size_t i = 0; i < FTI_COUNT(picks); i++) {
        size_t first = 0;
        while (free_run.ids[first] != free_run.ids[picks[i]]) first++;
        const fti_synth_meta end = {.key = "tokenizer.ggml.eos_token_id",
                                    .type = FTI_SYNTH_U32,
                                    .number = (uint64_t)free_run.ids[picks[i]]};
        fti_synth_model m = half_full_model();
        m.metas = &end;
        m.meta_count = 1;
        engine = fixture_open(write_model(&m, "end.gguf").s, NULL);
        assert_int_equal(ftk_token_is_end(engine, free_run.ids[picks[i]]), 1);
        ftk_generate_result r = generate(engine, 5, 24, false, &t);
        assert_int_equal(r.finish, FTK_FINISH_STOP);
        assert_int_equal(r.tokens, first);
        assert_memory_equal(t.ids, free_run.ids, first * sizeof *t.ids);
        if (first > 0) assert_int_equal(r.hash, hashes[first]);
        r = generate(engine, 5, 24, true, &t);
        assert_int_equal(r.finish, FTK_FINISH_LENGTH);
        assert_int_equal(r.hash, hash);
        ftk_engine_close(engine);
    }
}

/* ---- engines beside each other ---- */

#define STORY "Once upon a time there was a little"

static uint64_t story_hash(ftk_engine *engine, uint64_t seed) {
    size_t count;
    ftk_error err = FTK_ERROR_INIT;
    int32_t *ids = fixture_tokenize(engine, STORY, strlen(STORY), &count);
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
    options.max_tokens = 32;
    options.ignore_end = 1;
    options.sampling.temperature = seed ? 0.9f : 0.0f;
    options.sampling.seed = seed;
    if (ftk_generate(engine, ids, count, &options, &result, &err) != FTK_OK)
        fail_msg("%s", err.message);
    free(ids);
    return result.hash;
}

typedef struct neighbour {
    ftk_engine *engine;
    uint64_t seed;
    uint64_t hash;
    pthread_t thread;
} neighbour;

/* No check here: cmocka's belong to the main thread. */
static void *run_neighbour(void *argument) {
    neighbour *n = argument;
    int32_t ids[16];
    size_t count = 0;
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
    options.max_tokens = 32;
    options.ignore_end = 1;
    options.sampling.temperature = n->seed ? 0.9f : 0.0f;
    options.sampling.seed = n->seed;
    for (int i = 0; i < 3; i++) {
        if (ftk_tokenize(n->engine, STORY, strlen(STORY), 1, ids, 16, &count, NULL) != FTK_OK ||
            ftk_generate(n->engine, ids, count, &options, &result, NULL) != FTK_OK)
            return NULL;
    }
    n->hash = result.hash;
    return NULL;
}

static void two_engines_at_once(void **state) {
    (void)state;
    const char *const threads[] = {"backend.threads", "2", NULL};
    ftk_engine *alone = fixture_open(DEMO_MODEL, threads);
    uint64_t greedy = story_hash(alone, 0), sampled = story_hash(alone, 7);
    assert_int_not_equal(greedy, sampled);
    ftk_engine_close(alone);

    neighbour n[2] = {{.seed = 0}, {.seed = 7}};
    for (int i = 0; i < 2; i++) n[i].engine = fixture_open(DEMO_MODEL, threads);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&n[i].thread, NULL, run_neighbour, &n[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(n[i].thread, NULL);
    assert_int_equal(n[0].hash, greedy);
    assert_int_equal(n[1].hash, sampled);
    for (int i = 0; i < 2; i++) ftk_engine_close(n[i].engine);
}

/* Opening and closing in two threads: what the loader's registry is locked for. */
static void *open_and_close(void *argument) {
    size_t *opened = argument;
    for (int i = 0; i < 4; i++) {
        ftk_engine *engine = NULL;
        if (fixture_try_open(small_path().s, NULL, 0, &engine, NULL) == FTK_OK) (*opened)++;
        ftk_engine_close(engine);
    }
    return NULL;
}

static void opening_in_two_threads(void **state) {
    (void)state;
    pthread_t threads[2];
    size_t opened[2] = {0, 0};
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, &opened[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    assert_int_equal(opened[0] + opened[1], 8);
}

/* ---- what closing leaves ---- */

static size_t lines_with(const char *path, const char *part) {
    FILE *f = fopen(path, "r");
    char line[4096];
    size_t count = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) count += strstr(line, part) != NULL;
    assert_int_equal(fclose(f), 0);
    return count;
}

static size_t running_threads(void) {
    DIR *folder = opendir("/proc/self/task");
    size_t count = 0;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) count += entry->d_name[0] != '.';
    assert_int_equal(closedir(folder), 0);
    return count;
}

/* A thread that was joined may be listed for a moment longer. */
static void wait_for_threads(size_t wanted) {
    for (int i = 0; i < 1000 && running_threads() > wanted; i++) usleep(1000);
    assert_int_equal(running_threads(), wanted);
}

static void closing_leaves_nothing(void **state) {
    (void)state;
    size_t descriptors = 0, heap = 0, threads = running_threads();
    for (int i = 0; i < 20; i++) {
        ftk_engine *engine = fixture_open(small_path().s, NULL);
        tokens t = {.stop_at = 0};
        generate(engine, 5, 3, true, &t);
        assert_true(lines_with("/proc/self/maps", "small.gguf") > 0);
        ftk_engine_close(engine);
        assert_int_equal(lines_with("/proc/self/maps", "small.gguf"), 0);
        if (i == 4) {
            descriptors = open_descriptors();
            heap = mallinfo2().uordblks;
        }
    }
    assert_int_equal(open_descriptors(), descriptors);
    wait_for_threads(threads);
    /* Fifteen rounds that each forgot an engine would show; single blocks are
     * LeakSanitizer's part, since the allocator's own bookkeeping of threads that came
     * and went moves this figure by some kilobytes. */
    assert_true(mallinfo2().uordblks < heap + 65536);
}

/* ---- the caller's floating-point environment ---- */

typedef struct answers {
    uint64_t greedy, sampled;
    float *logits;
    size_t count;
} answers;

static answers ask(const char *model) {
    const char *const settings[] = {"backend.threads", "2", "memory.kv_tokens", "256", NULL};
    ftk_engine *engine = fixture_open(model, settings);
    answers a = {.greedy = story_hash(engine, 0), .sampled = story_hash(engine, 3)};
    int32_t ids[12];
    for (int i = 0; i < 12; i++) ids[i] = 100 + i;
    a.logits = fixture_logits(engine, ids, 12, 5);
    a.count = 12u * ftk_engine_vocabulary(engine);
    ftk_engine_close(engine);
    return a;
}

static void check_same_answers(const answers *a, const answers *b) {
    assert_int_equal(a->greedy, b->greedy);
    assert_int_equal(a->sampled, b->sampled);
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->logits, b->logits, a->count * sizeof *a->logits);
}

static text faint_path(void) {
    return in_scratch("faint.gguf");
}

/* A model whose residual stream, begun with subnormal embeddings, stays subnormal: where
 * they are flushed, all logits are 0. */
static void write_faint_model(void) {
    fti_synth_model m = half_full_model();
    for (int i = 0; i < FTI_SYNTH_CLASSES; i++) m.types[i] = FTK_TYPE_F32;
    text path = write_model(&m, "faint.gguf");
    ftk_error err = FTK_ERROR_INIT;
    fti_checkpoint *c;
    size_t size, index;
    unsigned char *data = read_file(path.s, &size);
    if (fti_checkpoint_open(path.s, &c, &err) != FTK_OK) fail_msg("%s", err.message);
    assert_true(fti_checkpoint_find_tensor(c, fti_str("token_embd.weight"), &index));
    const fti_tensor *t = fti_checkpoint_tensor(c, index);
    float *values = (float *)(void *)(data + t->offset);
    for (uint64_t i = 0; i < t->dims[0] * t->dims[1]; i++) values[i] *= 1e-38f;
    fti_checkpoint_close(c);
    write_file(path.s, data, size, 0644);
    free(data);
}

static void rounding_of_the_caller(void **state) {
    (void)state;
    const int modes[] = {FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD};
    answers wanted = ask(DEMO_MODEL);
    for (size_t i = 0; i < FTI_COUNT(modes); i++) {
        assert_int_equal(fesetround(modes[i]), 0);
        answers found = ask(DEMO_MODEL);
        int mode = fegetround();
        fesetround(FE_TONEAREST);
        assert_int_equal(mode, modes[i]);
        check_same_answers(&found, &wanted);
        free(found.logits);
    }
    free(wanted.logits);
}

#if defined(__x86_64__)
#define HAVE_CONTROL    1
#define CONTROL_FLAGS   0x3fu
#define CONTROL_DEFAULT 0x1f80u

/* Control registers that a host may have: exceptions masked, no flag up. */
static const unsigned registers[] = {
    0x9f80u, /* FTZ */
    0x1fc0u, /* DAZ */
    0x5f80u, /* up */
    0x3f80u, /* down */
    0xdfc0u, /* FTZ, DAZ, up */
    0xbfc0u, /* FTZ, DAZ, down */
    0xffc0u, /* FTZ, DAZ, toward zero */
};

static unsigned get_control(void) {
    return _mm_getcsr();
}

static void set_control(unsigned control) {
    _mm_setcsr(control);
}

#elif defined(__aarch64__)
#define HAVE_CONTROL    1
#define CONTROL_FLAGS   0u /* in a register of their own */
#define CONTROL_DEFAULT 0u

static const unsigned registers[] = {
    0x01000000u, /* FZ */
    0x00080000u, /* FZ16 */
    0x02000000u, /* DN: one NaN for all */
    0x04000000u, /* AHP: halves without infinity */
    0x00400000u, /* up */
    0x00800000u, /* down */
    0x01480000u, /* FZ, FZ16, up */
    0x07c80000u, /* all of them, toward zero */
};

static unsigned get_control(void) {
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control) : : "memory");
    return (unsigned)control;
}

static void set_control(unsigned control) {
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)control) : "memory");
}

#endif

#ifdef HAVE_CONTROL

static void check_register(unsigned control, const char *model, const answers *wanted) {
    unsigned before = get_control();
    set_control(control);
    answers found = ask(model);
    unsigned after = get_control();
    set_control(before);
    /* Flags may go up in the test's own code. */
    assert_int_equal(after & ~CONTROL_FLAGS, control);
    check_same_answers(&found, wanted);
    free(found.logits);
}

static void flushing_of_the_caller(void **state) {
    (void)state;
    write_faint_model();
    text faint = faint_path();
    answers demo = ask(DEMO_MODEL), subnormal = ask(faint.s);
    bool any = false;
    for (size_t i = 0; i < subnormal.count; i++) any |= subnormal.logits[i] != 0.0f;
    assert_true(any);
    for (size_t i = 0; i < FTI_COUNT(registers); i++) {
        check_register(registers[i], faint.s, &subnormal);
        if (!FIXTURE_SLOW_BUILD) check_register(registers[i], DEMO_MODEL, &demo);
    }
    free(demo.logits);
    free(subnormal.logits);
}

/* The register as callbacks of the library find it. */
typedef struct seen {
    unsigned open, generate, evaluate;
} seen;

static int see_open(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)stage;
    (void)done;
    (void)total;
    ((seen *)user)->open = get_control();
    return 0;
}

static int see_generate(void *user, int32_t id, const char *piece, size_t size) {
    (void)id;
    (void)piece;
    (void)size;
    ((seen *)user)->generate = get_control();
    return 0;
}

static int see_evaluate(void *user, size_t position, const float *logits, const float *layers) {
    (void)position;
    (void)logits;
    (void)layers;
    ((seen *)user)->evaluate = get_control();
    return 0;
}

/* Calls each entry that computes, and a failing one, noting the register after
 * each; returns the number of calls that did what they should. */
static int call_entries(const ftk_config *config, const char *model, seen *s, unsigned after[4]) {
    const int32_t ids[] = {1, 2, 3};
    ftk_engine *engine = NULL;
    ftk_open_options open = FTK_OPEN_OPTIONS_INIT;
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    ftk_evaluate_options evaluate = FTK_EVALUATE_OPTIONS_INIT;
    open.progress = see_open;
    options.on_token = see_generate;
    evaluate.on_logits = see_evaluate;
    open.user = options.user = evaluate.user = s;
    options.max_tokens = 3;
    options.ignore_end = 1;
    int good = ftk_engine_open(config, model, &open, &engine, NULL) == FTK_OK;
    after[0] = get_control();
    good += ftk_generate(engine, ids, 3, &options, NULL, NULL) == FTK_OK;
    after[1] = get_control();
    good += ftk_evaluate(engine, ids, 3, &evaluate, NULL) == FTK_OK;
    after[2] = get_control();
    ftk_engine_close(engine);
    good += ftk_engine_open(config, scratch, &open, &engine, NULL) == FTK_E_CKPT_READ;
    after[3] = get_control();
    return good;
}

static void check_entries(const ftk_config *config, const char *model, unsigned control) {
    seen s = {0, 0, 0};
    unsigned before = get_control(), after[4];
    set_control(control);
    int good = call_entries(config, model, &s, after);
    set_control(before);
    assert_int_equal(good, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(after[i], control);
    assert_int_equal(s.open & ~CONTROL_FLAGS, CONTROL_DEFAULT);
    assert_int_equal(s.generate & ~CONTROL_FLAGS, CONTROL_DEFAULT);
    assert_int_equal(s.evaluate & ~CONTROL_FLAGS, CONTROL_DEFAULT);
}

/* All that runs inside runs in the environment that results are defined in, and
 * every entry gives the register back as it was, flags included. */
static void entries_restore_the_register(void **state) {
    (void)state;
    text path = small_path();
    ftk_config *config = load_config();
    for (size_t i = 0; i < FTI_COUNT(registers); i++) check_entries(config, path.s, registers[i]);
    ftk_config_free(config);
}

#endif

static int setup(void **state) {
    if (scratch_setup(state) != 0) return -1;
    fti_synth_model m = half_full_model();
    write_model(&m, "small.gguf");
    return 0;
}

/* What a provider gets from the host: aligned as asked, zeroed, NULL for nonsense. */
static void host_memory_is_aligned(void **state) {
    (void)state;
    static const uint64_t good[] = {0, 1, 8, 16, 64, 4096, 65536};
    static const uint64_t bad[] = {3, 24, 4095, UINT64_MAX, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        unsigned char *memory = fti_host.alloc(NULL, 100, good[i]);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % (good[i] > 16 ? good[i] : 16), 0);
        for (size_t k = 0; k < 100; k++) assert_int_equal(memory[k], 0);
        memset(memory, 0xa5, 100);
        fti_host.release(NULL, memory);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_null(fti_host.alloc(NULL, 100, bad[i]));
    assert_null(fti_host.alloc(NULL, UINT64_MAX, 64));
    fti_host.release(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_memory_is_aligned),
        cmocka_unit_test(null_arguments_of_configuration),
        cmocka_unit_test(null_arguments_of_reports),
        cmocka_unit_test(null_arguments_of_engines),
        cmocka_unit_test(null_arguments_of_text),
        cmocka_unit_test(null_arguments_of_running),
        cmocka_unit_test(wrong_struct_sizes),
        cmocka_unit_test(sampling_out_of_range),
        cmocka_unit_test(stopping_on_the_way),
        cmocka_unit_test(lifecycle_refuses_every_other_order),
        cmocka_unit_test(opening_cancelled_anywhere),
        cmocka_unit_test(context_ends_generation),
        cmocka_unit_test(limits_end_generation),
        cmocka_unit_test(evaluation_stops_when_told),
        cmocka_unit_test(end_token_stops),
        cmocka_unit_test(two_engines_at_once),
        cmocka_unit_test(opening_in_two_threads),
        cmocka_unit_test(closing_leaves_nothing),
        cmocka_unit_test(rounding_of_the_caller),
#ifdef HAVE_CONTROL
        cmocka_unit_test(flushing_of_the_caller),
        cmocka_unit_test(entries_restore_the_register),
#endif
    };
    return cmocka_run_group_tests_name("test_engine", tests, setup, scratch_teardown);
}
