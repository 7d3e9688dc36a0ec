/* test_compare.c: ratios and verdicts of two rows; what makes a comparison void. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/output.h"
#include "compare.h"

const char fti_cli_program_name[] = "test_compare";

static void make_row(fti_bench_row *row, double level, int threads) {
    double rates[12], seconds[12];
    for (int i = 0; i < 12; i++) {
        rates[i] = level * (1.0 + 0.001 * i);
        seconds[i] = 1.0 / rates[i];
    }
    fti_bench_row_init(row, "decode", FTI_BENCH_BACKEND);
    fti_bench_row_figure(row, "rate", "tok/s", false, rates, 12);
    fti_bench_row_figure(row, "time", "s", true, seconds, 12);
    fti_bench_row_set(&row->provenance,
                      json_pack("{s:{s:{s:i}}}", "policy", "backend.threads", "value", threads));
    (void)strcpy(row->hash, "00000000000000aa");
}

static void free_rows(fti_bench_row rows[2]) {
    fti_bench_row_free(&rows[0]);
    fti_bench_row_free(&rows[1]);
}

static void expect_verdict(const fti_bench_comparison *c, size_t figure, const char *part) {
    char *verdict = fti_bench_verdict(c, figure);
    if (!strstr(verdict, part)) fail_msg("'%s' lacks '%s'", verdict, part);
    free(verdict);
}

static void verdicts(void **state) {
    (void)state;
    fti_bench_row rows[2];
    fti_bench_comparison c;
    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 120.0, 2);
    assert_int_equal(fti_bench_compare_rows(rows, NULL, &c), 0);
    assert_null(c.void_reason);
    assert_false(c.interleaved);
    assert_int_equal(c.count, 2);
    assert_true(fabs(c.ratios[0].of.median - 1.2) < 1e-9);
    expect_verdict(&c, 0, "B is better: 1.2000 times A");
    expect_verdict(&c, 1, "B is better: 0.8333 times A"); /* less time */
    json_t *json = fti_bench_comparison_json(&c);
    const json_t *rate = json_object_get(json_object_get(json, "ratios"), "rate");
    assert_true(json_is_true(json_object_get(rate, "claim")));
    assert_string_equal(fti_cli_member(rate, "difference"), "B greater");
    assert_string_equal(fti_cli_member(json_array_get(json_object_get(json, "knobs"), 0), "path"),
                        "backend.threads");
    assert_string_equal(fti_cli_member(json_object_get(json, "a"), "scenario"), "decode");
    json_decref(json);
    fti_bench_comparison_free(&c);
    free_rows(rows);

    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 100.2, 2);
    assert_int_equal(fti_bench_compare_rows(rows, NULL, &c), 0);
    expect_verdict(&c, 0, "no difference seen");
    fti_bench_comparison_free(&c);
    rows[1].figures[0].count = 9;
    assert_int_equal(fti_bench_compare_rows(rows, NULL, &c), 0);
    expect_verdict(&c, 0, "(no claim: 9 samples, and 10 are needed)");
    fti_bench_comparison_free(&c);
    free_rows(rows);
}

/* Compares rows of which B is faster, and expects `part` in the verdict, and no claim. */
static void expect_no_claim(fti_bench_row rows[2], const char *part) {
    fti_bench_comparison c;
    assert_int_equal(fti_bench_compare_rows(rows, NULL, &c), 0);
    assert_null(c.void_reason);
    expect_verdict(&c, 0, part);
    json_t *json = fti_bench_comparison_json(&c);
    const json_t *rate = json_object_get(json_object_get(json, "ratios"), "rate");
    assert_true(json_is_false(json_object_get(rate, "claim")));
    assert_true(strlen(fti_cli_member(rate, "no_claim_reason")) > 0);
    json_decref(json);
    fti_bench_comparison_free(&c);
    free_rows(rows);
}

/* A ratio is worth no more than its rows. */
static void rows_without_claim(void **state) {
    (void)state;
    fti_bench_row rows[2];
    for (size_t i = 0; i < 2; i++) {
        make_row(&rows[0], 100.0, 1);
        make_row(&rows[1], 120.0, 2);
        fti_bench_row_set(&rows[i].measuring, json_pack("{s:f}", "share", 0.5));
        expect_no_claim(rows, i ? "times A (no claim: B makes none: measuring took 50 %"
                                : "times A (no claim: A makes none: measuring took 50 %");
    }
}

/* Nothing differs, or one sample: no better and no worse. */
static void no_direction(void **state) {
    (void)state;
    fti_bench_row rows[2];
    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 120.0, 1);
    expect_no_claim(rows, "noise: A and B are the same (no claim: no knob differs");
    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 120.0, 2);
    rows[0].figures[0].count = rows[1].figures[0].count = 1;
    expect_no_claim(rows, "no direction: the noise of one sample is not known (no claim: ");
}

/* One says that more is better, the other that less is. */
static void other_measure(void **state) {
    (void)state;
    fti_bench_row rows[2];
    fti_bench_comparison c;
    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 120.0, 2);
    rows[1].figures[0].less_is_better = true;
    assert_int_equal(fti_bench_compare_rows(rows, NULL, &c), 0);
    assert_int_equal(c.count, 1);
    assert_string_equal(c.figures[0]->name, "time");
    fti_bench_comparison_free(&c);
    free_rows(rows);
}

static void expect_void(fti_bench_row rows[2], const char *part) {
    fti_bench_comparison c;
    assert_int_equal(fti_bench_compare_rows(rows, NULL, &c), 0);
    if (!c.void_reason || !strstr(c.void_reason, part))
        fail_msg("'%s' lacks '%s'", c.void_reason, part);
    json_t *json = fti_bench_comparison_json(&c);
    assert_true(json_is_false(json_object_get(json, "valid")));
    assert_int_equal(json_object_size(json_object_get(json, "ratios")), 0);
    json_decref(json);
    fti_bench_comparison_free(&c);
    free_rows(rows);
}

static void hashes_must_agree(void **state) {
    (void)state;
    fti_bench_row rows[2];
    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 120.0, 2);
    rows[1].hash[3] = '1';
    expect_void(rows, "different tokens: hash 00000000000000aa and 00010000000000aa");
    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 120.0, 2);
    fti_bench_row_void(&rows[1], "it was planted");
    expect_void(rows, "B is void: it was planted");
}

static void expect_refused(fti_bench_row rows[2], const char *cause, int code) {
    fti_bench_comparison c;
    assert_int_equal(fti_bench_compare_rows(rows, cause, &c), code);
    free_rows(rows);
}

static void refused(void **state) {
    (void)state;
    fti_bench_row rows[2];
    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 120.0, 2);
    expect_refused(rows, "scheduling", 1);
    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 120.0, 2);
    expect_refused(rows, "luck", 2);
    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 120.0, 2);
    rows[1].cause = FTI_BENCH_SCHEDULING;
    expect_refused(rows, NULL, 1);
    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 120.0, 1);
    rows[0].cause = rows[1].cause = FTI_BENCH_NOT_ATTRIBUTABLE; /* another engine's */
    expect_refused(rows, NULL, 1);
    make_row(&rows[0], 100.0, 1);
    make_row(&rows[1], 120.0, 1);
    rows[1].cause = FTI_BENCH_NOT_ATTRIBUTABLE;
    expect_refused(rows, "backend", 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts),          cmocka_unit_test(rows_without_claim),
        cmocka_unit_test(no_direction),      cmocka_unit_test(other_measure),
        cmocka_unit_test(hashes_must_agree), cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests_name("test_compare", tests, NULL, NULL);
}
