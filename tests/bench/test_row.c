/* test_row.c: rows there and back as JSON; what makes one void or unfit for a claim. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/output.h"
#include "row.h"

const char fti_cli_program_name[] = "test_row";

/* `count` runs, of which the first `warmup` are warm-up and take ten times as long. */
static void make_row(fti_bench_row *row, size_t warmup, size_t count) {
    double values[32] = {0};
    json_t *runs = json_array();
    fti_bench_row_init(row, "decode", FTI_BENCH_MODEL_EXECUTION);
    for (size_t i = 0; i < count; i++) {
        double value = i < warmup ? 1.0 : 10.0 + 0.1 * (double)i;
        if (i >= warmup) values[i - warmup] = value;
        json_array_append_new(
            runs, json_pack("{s:b, s:n, s:f}", "warmup", i < warmup, "dropped", "x", value));
    }
    fti_bench_row_figure(row, "x", "tok/s", false, values, count - warmup);
    fti_bench_row_set(&row->runs, runs);
    fti_bench_row_set(&row->settings, json_pack("{s:s, s:i}", "model", "m", "tokens", 8));
    fti_bench_row_set(&row->histogram, json_pack("{s:i}", "1", 7));
    (void)strcpy(row->hash, "0123456789abcdef");
}

/* Voids it if something is amiss; the reason must hold `part`. */
static void expect_void(fti_bench_row *row, const char *part) {
    fti_bench_row_check(row);
    assert_non_null(row->void_reason);
    if (!strstr(row->void_reason, part)) fail_msg("'%s' lacks '%s'", row->void_reason, part);
    json_t *json = fti_bench_row_json(row);
    assert_true(json_is_false(json_object_get(json, "valid")));
    assert_true(json_is_false(json_object_get(json, "claim")));
    assert_int_equal(json_object_size(json_object_get(json, "figures")), 0);
    json_decref(json);
    fti_bench_row_free(row);
}

static void there_and_back(void **state) {
    (void)state;
    fti_bench_row row, again;
    char *why;
    make_row(&row, 1, 12);
    fti_bench_row_figure(&row, "y", "s", true, (const double[]){1.0 / 3.0, 0.1}, 2);
    row.figure_count = 1; /* y belongs to no run: kept out of the check */
    fti_bench_row_check(&row);
    assert_null(row.void_reason);
    json_t *json = fti_bench_row_json(&row);
    char *text = json_dumps(json, 0);
    json_t *parsed = json_loads(text, 0, NULL);
    assert_true(fti_bench_row_read(parsed, &again, &why));
    assert_null(again.void_reason);
    json_t *second = fti_bench_row_json(&again);
    assert_true(json_equal(json, second));
    assert_int_equal(again.figures[0].count, 11);
    assert_true(again.figures[0].values[3] == row.figures[0].values[3]);
    assert_string_equal(again.hash, "0123456789abcdef");
    json_decref(second);
    json_decref(parsed);
    json_decref(json);
    free(text);
    fti_bench_row_free(&again);
    row.figure_count = 2;
    fti_bench_row_free(&row);
}

/* The commit, the cause, the histogram, the machine and the provenance are in every row. */
static void complete(void **state) {
    (void)state;
    static const char *const keys[] = {
        "format",  "scenario", "cause",     "valid", "void_reason",     "claim",     "hash",
        "figures", "version",  "commit",    "time",  "no_claim_reason", "histogram", "settings",
        "details", "runs",     "measuring", "knobs", "machine",         "provenance"};
    fti_bench_row row;
    make_row(&row, 1, 3);
    json_t *json = fti_bench_row_json(&row);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        assert_non_null(json_object_get(json, keys[i]));
    assert_int_equal(json_object_size(json), sizeof keys / sizeof keys[0]);
    assert_true(strlen(fti_cli_member(json, "commit")) >= 7);
    const json_t *x = json_object_get(json_object_get(json, "figures"), "x");
    assert_string_equal(fti_cli_member(x, "unit"), "tok/s");
    assert_true(json_real_value(json_object_get(x, "min")) == 10.1);
    assert_int_equal(json_array_size(json_object_get(x, "samples")), 2);
    json_decref(json);
    fti_bench_row_free(&row);
}

/* Planted: the warm-up's value among the samples; a sample left out; a value changed. */
static void warmup_counted(void **state) {
    (void)state;
    fti_bench_row row;
    double values[12];
    make_row(&row, 1, 12);
    memcpy(values + 1, row.figures[0].values, 11 * sizeof *values);
    values[0] = 1.0;
    row.figure_count = 0;
    free(row.figures[0].name);
    free(row.figures[0].unit);
    free(row.figures[0].values);
    fti_bench_row_figure(&row, "x", "tok/s", false, values, 12);
    expect_void(&row, "x counts 12 runs, but 11 were measured after the warm-up");

    make_row(&row, 1, 12);
    row.figures[0].count--;
    expect_void(&row, "x counts 10 runs, but 11");

    make_row(&row, 1, 12);
    row.figures[0].values[4] = 99.0;
    expect_void(&row, "other values than the runs");

    /* The same in a saved file: the mark of the warm-up taken off. */
    make_row(&row, 1, 12);
    json_t *json = fti_bench_row_json(&row);
    fti_bench_row_free(&row);
    json_object_set_new(json_array_get(json_object_get(json, "runs"), 0), "warmup", json_false());
    char *why;
    assert_true(fti_bench_row_read(json, &row, &why));
    json_decref(json);
    expect_void(&row, "x counts 11 runs, but 12");
}

/* A dropped run is no measured one. */
static void dropped(void **state) {
    (void)state;
    fti_bench_row row;
    make_row(&row, 1, 12);
    json_object_set_new(json_array_get(row.runs, 11), "dropped", json_string("the clock stepped"));
    row.figures[0].count--;
    fti_bench_row_check(&row);
    assert_null(row.void_reason);
    fti_bench_row_free(&row);
    make_row(&row, 1, 12);
    json_object_set_new(json_array_get(row.runs, 5), "dropped", json_string("the clock stepped"));
    row.figures[0].count--; /* the wrong one is missing */
    expect_void(&row, "other values");
}

static void expect_no_claim(fti_bench_row *row, const char *part) {
    char buffer[128];
    const char *lacks = fti_bench_row_no_claim(row, buffer, sizeof buffer);
    if (part && (!lacks || !strstr(lacks, part))) fail_msg("'%s' lacks '%s'", lacks, part);
    if (!part && lacks) fail_msg("no claim: %s", lacks);
    fti_bench_row_free(row);
}

static void claims(void **state) {
    (void)state;
    fti_bench_row row;
    make_row(&row, 1, 11);
    expect_no_claim(&row, NULL);
    make_row(&row, 1, 10);
    expect_no_claim(&row, "9 samples: a claim needs 10");
    make_row(&row, 0, 12);
    expect_no_claim(&row, "no warm-up");
    make_row(&row, 1, 12);
    fti_bench_row_set(&row.measuring, json_pack("{s:f}", "share", 0.0021));
    expect_no_claim(&row, "measuring took 0.21 % of a step");
    make_row(&row, 1, 12);
    fti_bench_row_set(&row.measuring, json_pack("{s:f}", "share", 0.0019));
    expect_no_claim(&row, NULL);
    make_row(&row, 1, 12);
    fti_bench_row_void(&row, "first %d", 1);
    fti_bench_row_void(&row, "second");
    expect_no_claim(&row, "first 1");
}

/* `key` of a good row set to `value` (NULL: left out) cannot be read. */
static void expect_unreadable(const char *key, json_t *value, const char *part) {
    fti_bench_row row, again;
    char *why;
    make_row(&row, 1, 12);
    json_t *json = fti_bench_row_json(&row);
    if (value)
        json_object_set_new(json, key, value);
    else
        json_object_del(json, key);
    assert_false(fti_bench_row_read(json, &again, &why));
    if (!strstr(why, part)) fail_msg("'%s' lacks '%s'", why, part);
    free(why);
    json_decref(json);
    fti_bench_row_free(&row);
}

static void unreadable(void **state) {
    (void)state;
    expect_unreadable("format", NULL, "no row of freetoken-bench");
    expect_unreadable("format", json_integer(2), "row format 2, and 1 is known");
    expect_unreadable("cause", json_string("luck"), "'luck'");
    expect_unreadable("figures", json_object(), "no figures");
    expect_unreadable("figures", json_pack("{s:{s:[s]}}", "x", "samples", "a"), "'x'");
    expect_unreadable("figures", json_pack("{s:{s:[]}}", "x", "samples"), "'x'");
    fti_bench_row row;
    char *why;
    json_t *number = json_integer(3);
    assert_false(fti_bench_row_read(number, &row, &why));
    json_decref(number);
    free(why);
}

static void causes(void **state) {
    (void)state;
    for (int i = 0; i < FTI_BENCH_CAUSES; i++) {
        fti_bench_cause cause = FTI_BENCH_CAUSES;
        assert_true(fti_bench_cause_of(fti_bench_cause_text((fti_bench_cause)i), &cause));
        assert_int_equal(cause, i);
    }
    fti_bench_cause cause;
    assert_false(fti_bench_cause_of("model", &cause));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back), cmocka_unit_test(complete),
        cmocka_unit_test(warmup_counted), cmocka_unit_test(dropped),
        cmocka_unit_test(claims),         cmocka_unit_test(unreadable),
        cmocka_unit_test(causes),
    };
    return cmocka_run_group_tests_name("test_row", tests, NULL, NULL);
}
