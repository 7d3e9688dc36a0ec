/*
 * test_golden.c: the model against reference outputs: the demo checkpoint's
 * weights, dequantised and run by an independent implementation in f32.
 * numerics: float must agree closely; numerics: exact rounds activations to eight
 * bits, so a near-tie may fall the other way: it is held to statistics.
 */
#include "support/engine_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOLERANCE 5e-3f

/* Recorded positions: of all prompts, or of all but the long one. */
#define POSITIONS (FIXTURE_SLOW_BUILD ? 25 : 36)

static const char *const float_settings[] = {"numerics", "float", NULL};

/* ---- what one prompt gives at the positions that the reference recorded ---- */

typedef struct recorded {
    const golden *g;
    const json_t *prompt;
    size_t last; /* last position of the prompt */
    float worst; /* largest difference of a logit */
    float worst_hidden;
    int top1_equal, positions;
    double *kl; /* one per position, appended */
} recorded;

static size_t argmax(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static double log_sum_exp(const float *x, size_t n) {
    double top = x[argmax(x, n)], sum = 0;
    for (size_t i = 0; i < n; i++) sum += exp(x[i] - top);
    return top + log(sum);
}

static double divergence(const float *reference, const float *x, size_t n) {
    double a = log_sum_exp(reference, n), b = log_sum_exp(x, n), kl = 0;
    for (size_t i = 0; i < n; i++) kl += exp(reference[i] - a) * ((reference[i] - a) - (x[i] - b));
    return kl;
}

static float largest_difference(const float *a, const float *b, size_t n) {
    float worst = 0;
    for (size_t i = 0; i < n; i++) {
        float d = fabsf(a[i] - b[i]);
        if (!(d <= worst)) worst = d; /* a NaN stays */
    }
    return worst;
}

static size_t value_of(const json_t *object, const char *key) {
    return (size_t)json_integer_value(json_object_get(object, key));
}

static void compare_hidden(recorded *r, const float *layers, size_t hidden) {
    const json_t *offsets = json_object_get(r->prompt, "hidden_last_offset");
    for (size_t l = 0; l < json_array_size(offsets); l++) {
        size_t at = (size_t)json_integer_value(json_array_get(offsets, l));
        float d = largest_difference(r->g->values + at, layers + l * hidden, hidden);
        if (!(d <= r->worst_hidden)) r->worst_hidden = d;
    }
}

static int compare_position(void *user, size_t position, const float *logits, const float *layers) {
    recorded *r = user;
    size_t vocabulary = value_of(r->g->root, "vocab_size");
    const json_t *positions = json_object_get(r->prompt, "positions");
    for (size_t i = 0; i < json_array_size(positions); i++) {
        if ((size_t)json_integer_value(json_array_get(positions, i)) != position) continue;
        const float *reference = r->g->values + value_of(r->prompt, "logits_offset") +
                                 i * vocabulary;
        float d = largest_difference(reference, logits, vocabulary);
        if (!(d <= r->worst)) r->worst = d;
        r->kl[r->positions++] = divergence(reference, logits, vocabulary);
        r->top1_equal += argmax(reference, vocabulary) == argmax(logits, vocabulary);
    }
    if (position == r->last) compare_hidden(r, layers, 256);
    return 0;
}

static void run_prompt(ftk_engine *engine, recorded *r) {
    size_t count;
    int32_t *ids = golden_ids(json_object_get(r->prompt, "ids"), &count);
    r->last = count - 1;
    ftk_error error = FTK_ERROR_INIT;
    ftk_evaluate_options options = FTK_EVALUATE_OPTIONS_INIT;
    options.on_logits = compare_position;
    options.user = r;
    options.want_layers = 1;
    if (ftk_evaluate(engine, ids, count, &options, &error) != FTK_OK) fail_msg("%s", error.message);
    free(ids);
}

/* Runs every prompt; `kl` has room for all recorded positions. */
static recorded run_prompts(const golden *g, const char *const *settings, double *kl) {
    recorded r = {.g = g, .kl = kl};
    ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
    assert_int_equal(ftk_engine_hidden(engine), 256);
    size_t i;
    json_t *prompt;
    json_array_foreach(json_object_get(g->set, "prompts"), i, prompt) {
        if (FIXTURE_SLOW_BUILD && json_array_size(json_object_get(prompt, "ids")) > 100) continue;
        r.prompt = prompt;
        run_prompt(engine, &r);
    }
    ftk_engine_close(engine);
    return r;
}

static void a12_float_mode_matches_reference(void **state) {
    (void)state;
    golden g = golden_load();
    double kl[64];
    recorded r = run_prompts(&g, float_settings, kl);
    print_message(
        "float: %d positions, largest logit difference %.2e, largest hidden difference %.2e, "
        "top-1 equal at %d\n",
        r.positions, (double)r.worst, (double)r.worst_hidden, r.top1_equal);
    assert_int_equal(r.positions, POSITIONS);
    assert_true(r.worst <= TOLERANCE);
    assert_true(r.worst_hidden <= TOLERANCE);
    assert_int_equal(r.top1_equal, POSITIONS);
    golden_free(&g);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void exact_mode_stays_close_to_reference(void **state) {
    (void)state;
    golden g = golden_load();
    double kl[64];
    recorded r = run_prompts(&g, NULL, kl);
    qsort(kl, (size_t)r.positions, sizeof *kl, compare_doubles);
    double median = (kl[r.positions / 2 - 1] + kl[r.positions / 2]) / 2;
    print_message("exact: top-1 equal at %d of %d positions, median KL %.2e, largest KL %.2e\n",
                  r.top1_equal, r.positions, median, kl[r.positions - 1]);
    assert_int_equal(r.positions, POSITIONS);
    assert_true(r.top1_equal >= POSITIONS - 2);
    assert_true(median <= 0.001);
    golden_free(&g);
}

/* ---- greedy continuation ---- */

typedef struct token_list {
    int32_t ids[64];
    size_t count;
} token_list;

static int keep_token(void *user, int32_t id, const char *text, size_t size) {
    token_list *list = user;
    (void)text;
    (void)size;
    list->ids[list->count++] = id;
    return 0;
}

/* Steps that must agree: up to the first whose margin is so small that rounding
 * may decide it. */
static size_t decided_steps(const json_t *margins) {
    size_t n = 0;
    while (n < json_array_size(margins) && json_number_value(json_array_get(margins, n)) >= 0.02)
        n++;
    return n;
}

static void check_continuation(ftk_engine *engine, const json_t *prompt, size_t *checked) {
    size_t count, wanted;
    int32_t *ids = golden_ids(json_object_get(prompt, "ids"), &count);
    int32_t *greedy = golden_ids(json_object_get(prompt, "greedy"), &wanted);
    token_list list = {.count = 0};
    ftk_error error = FTK_ERROR_INIT;
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    options.max_tokens = (uint32_t)wanted;
    options.ignore_end = 1;
    options.on_token = keep_token;
    options.user = &list;
    if (wanted > 0 && ftk_generate(engine, ids, count, &options, NULL, &error) != FTK_OK)
        fail_msg("%s", error.message);
    size_t decided = decided_steps(json_object_get(prompt, "greedy_margin"));
    for (size_t i = 0; i < decided; i++) assert_int_equal(list.ids[i], greedy[i]);
    *checked += decided;
    free(ids);
    free(greedy);
}

static void greedy_continuations_match_reference(void **state) {
    (void)state;
    golden g = golden_load();
    ftk_engine *engine = fixture_open(DEMO_MODEL, float_settings);
    size_t i, checked = 0;
    json_t *prompt;
    json_array_foreach(json_object_get(g.set, "prompts"), i,
                       prompt) if (!FIXTURE_SLOW_BUILD || checked < 16)
        check_continuation(engine, prompt, &checked);
    print_message("float: %zu greedy steps equal\n", checked);
    assert_true(checked >= (FIXTURE_SLOW_BUILD ? 16 : 100));
    ftk_engine_close(engine);
    golden_free(&g);
}

/* ---- likelihood of a text ---- */

/* Mean negative log-likelihood of stories.txt, relative to the reference. */
static double story_nll(const char *const *settings, const char *name) {
    if (FIXTURE_SLOW_BUILD) {
        print_message("skip: 7206 tokens take too long under a sanitizer; plain builds run them\n");
        skip();
    }
    golden g = golden_load();
    size_t size, count, scored;
    char *text = fixture_read(FTK_TEST_DATA "/stories.txt", &size);
    ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
    int32_t *ids = fixture_tokenize(engine, text, size, &count);
    assert_int_equal(count, 7206);
    double nll = fixture_nll(engine, ids, count, 1024, &scored);
    double reference = json_number_value(
        json_object_get(json_object_get(g.set, "nll"), "mean_nll"));
    assert_int_equal(scored, value_of(json_object_get(g.set, "nll"), "tokens_scored"));
    print_message("%s: mean NLL over %zu tokens of stories.txt %.5f, reference %.5f (%+.3f %%)\n",
                  name, scored, nll, reference, 100 * (nll / reference - 1));
    ftk_engine_close(engine);
    free(ids);
    free(text);
    golden_free(&g);
    return nll / reference - 1;
}

static void likelihood_in_float_mode(void **state) {
    (void)state;
    assert_true(fabs(story_nll(float_settings, "float")) < 1e-4);
}

static void likelihood_in_exact_mode(void **state) {
    (void)state;
    assert_true(fabs(story_nll(NULL, "exact")) < 0.01);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a12_float_mode_matches_reference),
        cmocka_unit_test(exact_mode_stays_close_to_reference),
        cmocka_unit_test(greedy_continuations_match_reference),
        cmocka_unit_test(likelihood_in_float_mode),
        cmocka_unit_test(likelihood_in_exact_mode),
    };
    return cmocka_run_group_tests_name("test_golden", tests, NULL, NULL);
}
