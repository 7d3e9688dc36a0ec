/*
 * test_exact.c: promise 2: the bits of a position's logits do not depend on how
 * the prompt was cut, on the number of threads, on graphs, or on which compiled
 * variant of a kernel ran.
 */
#include "support/engine_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/counts.h"

/* Tokens of the demo text: more than one KV page, and block borders. */
#define TOKENS (FIXTURE_SLOW_BUILD ? 70 : 200)

typedef struct reference {
    int32_t *ids;
    float *logits; /* fed whole, two threads */
    size_t vocabulary;
} reference;

static reference ref;

static int make_reference(void **state) {
    (void)state;
    size_t size, count;
    char *text = fixture_read(FTK_TEST_DATA "/stories.txt", &size);
    ftk_engine *engine = fixture_open(DEMO_MODEL, NULL);
    ref.ids = fixture_tokenize(engine, text, size, &count);
    ref.vocabulary = ftk_engine_vocabulary(engine);
    ref.logits = fixture_logits(engine, ref.ids, TOKENS, TOKENS);
    ftk_engine_close(engine);
    free(text);
    return 0;
}

static int drop_reference(void **state) {
    (void)state;
    free(ref.ids);
    free(ref.logits);
    return 0;
}

/* Bitwise, so that -0 and NaN count too. Prints the first difference. */
static void assert_same(const float *logits, size_t tokens, const char *what) {
    for (size_t i = 0; i < tokens * ref.vocabulary; i++)
        if (memcmp(&logits[i], &ref.logits[i], sizeof *logits) != 0)
            fail_msg("%s: position %zu, token %zu: %.9g, wanted %.9g", what, i / ref.vocabulary,
                     i % ref.vocabulary, (double)logits[i], (double)ref.logits[i]);
}

/* What the settings of an engine are meant to make run. */
typedef struct expected {
    bool reference;   /* kernels, on a machine with others */
    bool eager;       /* no graphs */
    uint32_t threads; /* 0: any number */
} expected;

static void expect_ran(const ftk_engine *engine, const expected *e, const fti_stream_counts *before,
                       size_t count, uint32_t chunk) {
    bool plain = e->reference || !counts_vector_machine(engine);
    counts_expect_steps(engine, before, count, chunk, 1, !e->eager);
    counts_expect_kernels(engine, before, plain);
    if (e->threads) counts_expect_threads(engine, e->threads);
}

static void check_chunks(const char *const *settings, const expected *e, const uint32_t *chunks,
                         size_t count, const char *what) {
    ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
    for (size_t i = 0; i < count; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s, chunks of %u", what, chunks[i]);
        fti_stream_counts before = counts_now(engine);
        float *logits = fixture_logits(engine, ref.ids, TOKENS, chunks[i]);
        expect_ran(engine, e, &before, TOKENS, chunks[i]);
        assert_same(logits, TOKENS, name);
        free(logits);
    }
    ftk_engine_close(engine);
}

static void prompt_cut_anywhere(void **state) {
    (void)state;
    const uint32_t chunks[] = {7, 64, 65, 1, 512, 2, 3, 5, 16, 63, 127, 128, 199};
    check_chunks(NULL, &(expected){0}, chunks,
                 FIXTURE_SLOW_BUILD ? 3 : sizeof chunks / sizeof *chunks, "default");
}

/* Each split of a short prompt into two steps. */
static void prompt_of_every_length(void **state) {
    (void)state;
    ftk_engine *engine = fixture_open(DEMO_MODEL, NULL);
    for (size_t n = 1; n <= (FIXTURE_SLOW_BUILD ? 5 : 20); n++) {
        uint32_t chunk = n > 1 ? (uint32_t)n - 1 : 1;
        fti_stream_counts before = counts_now(engine);
        float *logits = fixture_logits(engine, ref.ids, n, chunk);
        expect_ran(engine, &(expected){0}, &before, n, chunk);
        assert_same(logits, n, "short prompts");
        free(logits);
    }
    ftk_engine_close(engine);
}

static void any_number_of_threads(void **state) {
    (void)state;
    const uint32_t chunks[] = {33, 200, 1};
    const char *const counts[] = {"1", "2", "4"};
    for (size_t i = 0; i < 3; i++) {
        const char *const settings[] = {"backend.threads", counts[i], NULL};
        char name[32];
        snprintf(name, sizeof name, "%s threads", counts[i]);
        const expected e = {.threads = (uint32_t)atoi(counts[i])};
        check_chunks(settings, &e, chunks, FIXTURE_SLOW_BUILD ? 1 : 3, name);
    }
}

static void graphs_on_and_off(void **state) {
    (void)state;
    const uint32_t chunks[] = {1, 200};
    const char *const on[] = {"backend.graphs", "on", NULL}, *const off[] = {"backend.graphs",
                                                                             "off", NULL};
    check_chunks(on, &(expected){0}, chunks, 2, "graphs on");
    check_chunks(off, &(expected){.eager = true}, chunks, 2, "graphs off");
}

static void reference_kernels(void **state) {
    (void)state;
    const uint32_t chunks[] = {200, 1};
    const char *const settings[] = {"backend.kernels", "reference", NULL};
    check_chunks(settings, &(expected){.reference = true}, chunks, FIXTURE_SLOW_BUILD ? 1 : 2,
                 "reference kernels");
}

/* ---- types of the KV cache ---- */

#define KV_TOKENS ((size_t)40)

static float *logits_with(const char *kv_type, const char *kernels, uint32_t chunk) {
    const char *const settings[] = {"memory.kv_type", kv_type, "backend.kernels", kernels, NULL};
    ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
    expected e = {.reference = strcmp(kernels, "reference") == 0};
    fti_stream_counts before = counts_now(engine);
    float *logits = fixture_logits(engine, ref.ids, KV_TOKENS, chunk);
    expect_ran(engine, &e, &before, KV_TOKENS, chunk);
    ftk_engine_close(engine);
    return logits;
}

/* Root of the mean square difference from what the default type gives. */
static double away_from_default(const float *logits) {
    double sum = 0.0;
    size_t n = KV_TOKENS * ref.vocabulary;
    for (size_t i = 0; i < n; i++) {
        double d = (double)logits[i] - (double)ref.logits[i];
        sum += d * d;
    }
    return sqrt(sum / (double)n);
}

/* Each type has bits of its own, and they depend on nothing else; being near the default
 * says that what is kept is what was computed. */
static void types_of_the_cache(void **state) {
    (void)state;
    static const struct {
        const char *type;
        double near;
    } types[] = {{"f16", 0.0}, {"f32", 0.2}, {"bf16", 0.2}, {"q8_0", 0.2}};
    for (size_t t = 0; t < FTI_COUNT(types); t++) {
        float *plain = logits_with(types[t].type, "reference", KV_TOKENS);
        double away = away_from_default(plain);
        print_message("cache %s: logits are %.3g (RMS) from the default's\n", types[t].type, away);
        assert_true(away <= types[t].near);
        assert_true((away == 0.0) == (types[t].near == 0.0));
        for (uint32_t chunk = 1; chunk <= 9; chunk += 8) {
            float *fast = logits_with(types[t].type, "auto", chunk);
            assert_memory_equal(fast, plain, KV_TOKENS * ref.vocabulary * sizeof *fast);
            free(fast);
        }
        free(plain);
    }
}

/* ---- generated tokens ---- */

static ftk_generate_result generate(ftk_engine *engine, uint32_t chunk, uint32_t tokens,
                                    const ftk_sampling *s) {
    ftk_error error = FTK_ERROR_INIT;
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
    options.max_tokens = tokens;
    options.ignore_end = 1;
    options.chunk = chunk;
    if (s) options.sampling = *s;
    if (ftk_generate(engine, ref.ids, 40, &options, &result, &error) != FTK_OK)
        fail_msg("%s", error.message);
    assert_int_equal(result.tokens, tokens);
    return result;
}

#define MANY (FIXTURE_SLOW_BUILD ? 24 : 128)

/* Generation equals the prompt fed as one: prompt or generated makes no difference. */
static void generated_tokens_equal_a_prompt(void **state) {
    (void)state;
    ftk_engine *engine = fixture_open(DEMO_MODEL, NULL);
    ftk_generate_result whole = generate(engine, 0, MANY, NULL);
    ftk_generate_result by_token = generate(engine, 1, MANY, NULL);
    assert_int_equal(whole.hash, by_token.hash);
    assert_int_equal(whole.graph_replays, MANY - 1);
    assert_int_equal(by_token.prefill_steps, 40);
    ftk_engine_close(engine);

    const char *const off[] = {"backend.graphs", "off", "backend.threads", "1", NULL};
    engine = fixture_open(DEMO_MODEL, off);
    ftk_generate_result eager = generate(engine, 0, MANY, NULL);
    assert_int_equal(eager.graph_replays, 0);
    assert_int_equal(eager.hash, whole.hash);
    ftk_engine_close(engine);
}

/* The same request again, after others that left state behind. */
static void repeated_requests(void **state) {
    (void)state;
    ftk_engine *engine = fixture_open(DEMO_MODEL, NULL);
    ftk_generate_result first = generate(engine, 0, 64, NULL);
    free(fixture_logits(engine, ref.ids + 50, 17, 0));
    ftk_generate_result second = generate(engine, 7, 64, NULL);
    assert_int_equal(first.hash, second.hash);
    ftk_engine_close(engine);
}

static void seeds_decide_sampling(void **state) {
    (void)state;
    ftk_engine *engine = fixture_open(DEMO_MODEL, NULL);
    ftk_sampling s = FTK_SAMPLING_INIT;
    s.temperature = 0.8f;
    s.top_k = 40;
    s.seed = 7;
    uint64_t a = generate(engine, 0, 48, &s).hash, b = generate(engine, 1, 48, &s).hash;
    s.seed = 8;
    uint64_t c = generate(engine, 0, 48, &s).hash;
    assert_int_equal(a, b);
    assert_int_not_equal(a, c);
    ftk_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompt_cut_anywhere),
        cmocka_unit_test(prompt_of_every_length),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(graphs_on_and_off),
        cmocka_unit_test(types_of_the_cache),
        cmocka_unit_test(reference_kernels),
        cmocka_unit_test(generated_tokens_equal_a_prompt),
        cmocka_unit_test(repeated_requests),
        cmocka_unit_test(seeds_decide_sampling),
    };
    return cmocka_run_group_tests_name("test_exact", tests, make_reference, drop_reference);
}
