/*
 * test_stats.c: what the engine counts: distributions against sorted lists, counts of runs
 * that are known, and the two forms of the statistics against each other.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/collect.h"
#include "core/stats.h"

/* ---- distributions ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A bucket's ends are a factor of 2.5 apart at most. */
static void check_quantile(const fti_times *t, const double *sorted, size_t count, double q) {
    double wanted = sorted[(size_t)ceil(q * (double)count) - 1], found = fti_times_quantile(t, q);
    if (!(found <= 2.6 * wanted && wanted <= 2.6 * found))
        fail_msg("quantile %g of %zu is %g, wanted about %g", q, count, found, wanted);
    assert_true(found >= sorted[0] && found <= sorted[count - 1]);
}

static void distributions(void **state) {
    (void)state;
    static const size_t counts[] = {1, 2, 30, 1000};
    static double values[1000];
    uint64_t seed = 9;
    for (size_t c = 0; c < FTI_COUNT(counts); c++) {
        fti_times t = {.count = 0};
        double sum = 0;
        assert_true(fti_times_quantile(&t, 0.5) == 0);
        for (size_t i = 0; i < counts[c]; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            values[i] = 3e-6 * pow(10, 8 * (double)(seed >> 40) / (1 << 24)); /* 3 us to 300 s */
            sum += values[i];
            fti_times_add(&t, values[i]);
        }
        qsort(values, counts[c], sizeof *values, by_value);
        for (int q = 1; q < 10; q++) check_quantile(&t, values, counts[c], q / 10.0);
        assert_int_equal(t.count, counts[c]);
        assert_true(fabs(t.sum - sum) <= 1e-9 * sum);
        assert_true(t.least == values[0] && t.most == values[counts[c] - 1]);
    }
    fti_times t = {.count = 0}; /* borders belong below; what passes them all is kept */
    fti_times_add(&t, 1e-6);
    fti_times_add(&t, 500);
    fti_times_add(&t, 5000);
    assert_true(t.counts[0] == 1 && t.counts[FTI_TIME_BOUNDS - 1] == 1);
    assert_int_equal(t.counts[FTI_TIME_BOUNDS], 1);
    assert_true(fti_times_quantile(&t, 1) == 5000);
}

/* ---- a run that is known ---- */

static uint64_t number_of(const json_t *o, const char *group, const char *key) {
    const json_t *value = json_object_get(group ? json_object_get(o, group) : o, key);
    if (!json_is_integer(value)) fail_msg("no number %s in %s", key, group ? group : "it");
    return (uint64_t)json_integer_value(value);
}

/* The value of the line that begins with `name` and a space. */
static double line_of(const char *text, const char *name) {
    size_t size = strlen(name);
    for (const char *at = text; (at = strstr(at, name)) != NULL; at++)
        if ((at == text || at[-1] == '\n') && at[size] == ' ') return strtod(at + size, NULL);
    fail_msg("no line %s", name);
    return 0;
}

static void check_distribution(const json_t *o, const char *text, const char *key, uint64_t count) {
    char name[96];
    double last = 0;
    const json_t *t = json_object_get(o, key);
    static const char *const rising[] = {"min", "p50", "p90", "p99", "max"};
    assert_int_equal(number_of(o, key, "count"), count);
    for (size_t i = 0; i < FTI_COUNT(rising); i++) {
        double value = json_real_value(json_object_get(t, rising[i]));
        assert_true(value >= last);
        last = value;
    }
    assert_true(last > 0 && json_real_value(json_object_get(t, "sum")) >= last);
    snprintf(name, sizeof name, "freetoken_%s_count", key);
    assert_true(line_of(text, name) == (double)count);
    snprintf(name, sizeof name, "freetoken_%s_bucket{le=\"+Inf\"}", key);
    assert_true(line_of(text, name) == (double)count);
    snprintf(name, sizeof name, "freetoken_%s_bucket{le=\"500\"}", key);
    assert_true(line_of(text, name) == (double)count);
    snprintf(name, sizeof name, "freetoken_%s_sum", key);
    assert_true(fabs(line_of(text, name) - json_real_value(json_object_get(t, "sum"))) < 1e-6);
}

/* Every line is a comment or a name of ours with one number. */
static void check_form(const char *text) {
    size_t types = 0, lines = 0;
    for (const char *end; *text; text = end + 1) {
        end = strchr(text, '\n');
        assert_non_null(end);
        lines++;
        if (*text == '#') {
            types += strncmp(text, "# TYPE freetoken_", 17) == 0;
            continue;
        }
        assert_memory_equal(text, "freetoken_", 10);
        const char *space = memchr(text, ' ', (size_t)(end - text));
        char *rest;
        assert_non_null(space);
        assert_true(strtod(space, &rest) >= 0 && rest == end);
    }
    assert_true(types >= 15 && lines > 3 * types);
}

static char *text_of(const ftk_engine *engine) {
    char *text = NULL;
    ftk_error err = FTK_ERROR_INIT;
    if (ftk_engine_stats_text(engine, &text, &err) != FTK_OK) fail_msg("%s", err.message);
    check_form(text);
    return text;
}

static void check_counts(const json_t *o, const char *text) {
    static const struct {
        const char *group, *key, *line;
        uint64_t wanted;
    } rows[] = {
        {NULL, "requests_ended", NULL, 7},
        {"ended_by", "length", "freetoken_requests_ended_total{finish=\"length\"}", 6},
        {"ended_by", "cancelled", "freetoken_requests_ended_total{finish=\"cancelled\"}", 1},
        {"ended_by", "error", "freetoken_requests_ended_total{finish=\"error\"}", 0},
        {NULL, "prompt_rows", "freetoken_rows_total{kind=\"prompt\"}", 24},
        {NULL, "decode_rows", "freetoken_rows_total{kind=\"decode\"}", 24},
        {NULL, "steps", "freetoken_steps_total", 15},
        {"decode_histogram", "2", "freetoken_decode_batch_total{size=\"2\"}", 12},
        {"rows_histogram", "8", "freetoken_step_rows_total{size=\"8\"}", 3},
        {"held_steps", "slot", "freetoken_steps_held_total{for=\"slot\"}", 10},
        {"held_steps", "pages", "freetoken_steps_held_total{for=\"pages\"}", 0},
        {NULL, "state_slots", "freetoken_state_slots", 5}, /* three of them for snapshots */
        {NULL, "pages", "freetoken_kv_pages", 8},
        {NULL, "pages_used", "freetoken_kv_pages_used", 0},
        {"waiting_for", "turn", "freetoken_requests_waiting{for=\"turn\"}", 0}};
    for (size_t i = 0; i < FTI_COUNT(rows); i++) {
        uint64_t found = number_of(o, rows[i].group, rows[i].key);
        if (found != rows[i].wanted)
            fail_msg("%s is %lu, wanted %lu", rows[i].key, found, rows[i].wanted);
        if (rows[i].line) assert_true(line_of(text, rows[i].line) == (double)found);
    }
}

/* Six requests of 4 and 5 tokens by twos: three rounds of one step with both prompts and four
 * with two rows; and one that is cancelled before it starts. */
static void counts_of_a_known_run(void **state) {
    (void)state;
    const char *const settings[] = {"scheduler.max_running", "2", "memory.kv_tokens", "512", NULL};
    ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
    stories story = stories_load(engine);
    collected *c = calloc(7, sizeof *c);
    assert_non_null(c);
    for (size_t i = 0; i < 7; i++) {
        shape p = {.start = 9 * i, .size = 4, .max_tokens = 5};
        submit_shape(engine, &story, &p, &c[i]);
    }
    assert_int_equal(ftk_cancel(engine, c[6].id, NULL), FTK_OK);
    step(engine);
    json_t *o = stats_of(engine);
    char *text = text_of(engine);
    assert_int_equal(number_of(o, "waiting_for", "slot"), 1);
    assert_int_equal(number_of(o, "waiting_for", "turn"), 3);
    assert_int_equal(number_of(o, NULL, "requests_running"), 2);
    assert_true(line_of(text, "freetoken_requests_waiting{for=\"turn\"}") == 3);
    assert_true(line_of(text, "freetoken_kv_pages_used") == 2);
    json_decref(o);
    ftk_report_free(text);
    step_to_end(engine);
    for (size_t i = 0; i < 6; i++) expect_ended(&c[i], FTK_FINISH_LENGTH);
    o = stats_of(engine);
    text = text_of(engine);
    check_counts(o, text);
    check_distribution(o, text, "queue_seconds", 6);
    check_distribution(o, text, "first_token_seconds", 6);
    check_distribution(o, text, "between_tokens_seconds", 24);
    json_decref(o);
    ftk_report_free(text);
    free(story.ids);
    free(c);
    ftk_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distributions),
        cmocka_unit_test(counts_of_a_known_run),
    };
    return cmocka_run_group_tests_name("test_stats", tests, NULL, NULL);
}
