/* test_statistics.c: medians, intervals and noise; when two series differ. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "statistics.h"

const char fti_cli_program_name[] = "test_statistics";

/* Scatter between 0 and 1 that is the same in every run. */
static double scatter(uint32_t i) {
    uint32_t x = i * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (double)x / 4294967296.0;
}

static void fill(double *values, size_t count, double level, double spread, uint32_t seed) {
    for (size_t i = 0; i < count; i++)
        values[i] = level * (1.0 + spread * (scatter(seed + (uint32_t)i) - 0.5));
}

static void medians(void **state) {
    (void)state;
    const double odd[] = {3.0, 1.0, 2.0};
    fti_bench_statistics s = fti_bench_describe(odd, 3);
    assert_true(s.median == 2.0 && s.min == 1.0 && s.max == 3.0);
    assert_true(odd[0] == 3.0); /* not sorted in place: samples keep their order */
    const double even[] = {10.0, 4.0, 1.0, 2.0};
    s = fti_bench_describe(even, 4);
    assert_true(s.median == 3.0 && s.min == 1.0 && s.max == 10.0);
    const double one[] = {5.0};
    s = fti_bench_describe(one, 1);
    assert_true(s.median == 5.0 && s.low == 5.0 && s.high == 5.0 && s.noise == 0.0);
}

/* 1.4826 times the median distance from the median, over the median. */
static void noise(void **state) {
    (void)state;
    const double values[] = {98.0, 99.0, 100.0, 102.0, 500.0}; /* distances 0 1 2 2 400 */
    assert_true(fabs(fti_bench_describe(values, 5).noise - 0.029652) < 1e-12);
    const double same[] = {7.0, 7.0, 7.0};
    assert_true(fti_bench_describe(same, 3).noise == 0.0);
}

/* The interval of the median of n values lies around it and narrows with n; the exact
 * distribution of a resampled median of three is known: each end value has 7 of 27. */
static void intervals(void **state) {
    (void)state;
    double values[400];
    fill(values, 400, 100.0, 0.2, 1);
    fti_bench_statistics few = fti_bench_describe(values, 20);
    fti_bench_statistics many = fti_bench_describe(values, 400);
    assert_true(few.min <= few.low && few.low < few.median && few.median < few.high);
    assert_true(many.low < many.median && many.median < many.high);
    assert_true(many.high - many.low < 0.5 * (few.high - few.low));
    assert_true(many.low > 97.0 && many.high < 103.0);
    const double three[] = {1.0, 2.0, 3.0};
    few = fti_bench_describe(three, 3);
    assert_true(few.low == 1.0 && few.high == 3.0);
}

/* Repeated with a sample drawn anew, the interval holds the true median about 95 times
 * of 100: neither never nor always. */
static void interval_covers(void **state) {
    (void)state;
    size_t held = 0;
    for (uint32_t round = 0; round < 200; round++) {
        double values[25];
        fill(values, 25, 100.0, 1.0, 1000u + 25u * round);
        fti_bench_statistics s = fti_bench_describe(values, 25);
        held += s.low <= 100.0 && 100.0 <= s.high;
    }
    assert_in_range(held, 178, 199);
}

static void repeatable(void **state) {
    (void)state;
    double values[30];
    fill(values, 30, 10.0, 0.3, 77);
    fti_bench_statistics first = fti_bench_describe(values, 30);
    fti_bench_statistics second = fti_bench_describe(values, 30);
    assert_memory_equal(&first, &second, sizeof first);
}

/* Pairs that drift together by half still show a difference of 5 %. */
static void pairs_cancel_drift(void **state) {
    (void)state;
    double a[20], b[20];
    for (uint32_t i = 0; i < 20; i++) {
        double level = 100.0 + 5.0 * i;
        a[i] = level * (1.0 + 0.004 * scatter(i));
        b[i] = 1.05 * level * (1.0 + 0.004 * scatter(100 + i));
    }
    fti_bench_ratio r = fti_bench_compare_pairs(a, b, 20);
    assert_int_equal(r.difference, FTI_BENCH_B_GREATER);
    assert_true(r.claim);
    assert_true(fabs(r.of.median - 1.05) < 0.005);
    r = fti_bench_compare_pairs(b, a, 20);
    assert_int_equal(r.difference, FTI_BENCH_B_LESS);
    /* Apart from each other the drift drowns it. */
    assert_int_equal(fti_bench_compare_series(a, 20, b, 20).difference, FTI_BENCH_NO_DIFFERENCE);
}

static void no_difference(void **state) {
    (void)state;
    double a[40], b[40];
    fill(a, 40, 100.0, 0.02, 5);
    fill(b, 40, 100.0, 0.02, 900);
    assert_int_equal(fti_bench_compare_pairs(a, b, 40).difference, FTI_BENCH_NO_DIFFERENCE);
    /* Certain, since the interval leaves out 1, but smaller than the noise of a pair. */
    for (size_t i = 0; i < 40; i++) b[i] = a[i] * (i % 5 == 0 ? 0.97 : 1.001 + 0.00065 * (double)i);
    fti_bench_ratio r = fti_bench_compare_pairs(a, b, 40);
    assert_true(r.of.low > 1.0);
    assert_true(r.of.median - 1.0 < r.of.noise);
    assert_int_equal(r.difference, FTI_BENCH_NO_DIFFERENCE);
}

/* No noise by the middle of the values, but a median that five of twelve pairs deny. */
static void interval_holds_one(void **state) {
    (void)state;
    double a[12], b[12];
    for (size_t i = 0; i < 12; i++) {
        a[i] = 100.0;
        b[i] = i % 12 < 7 ? 105.0 : 90.0;
    }
    fti_bench_ratio r = fti_bench_compare_pairs(a, b, 12);
    assert_true(r.of.median == 1.05 && r.of.noise == 0.0);
    assert_true(r.of.low < 1.0 && r.of.high > 1.0);
    assert_int_equal(r.difference, FTI_BENCH_NO_DIFFERENCE);
}

static void few_claim_nothing(void **state) {
    (void)state;
    double a[10], b[10];
    fill(a, 10, 100.0, 0.01, 1);
    fill(b, 10, 200.0, 0.01, 60);
    assert_false(fti_bench_compare_pairs(a, b, 9).claim);
    const double one = 100.0, two = 200.0;
    assert_int_equal(fti_bench_compare_pairs(&one, &two, 1).difference, FTI_BENCH_NO_DIFFERENCE);
    assert_int_equal(fti_bench_compare_series(&one, 1, &two, 1).difference,
                     FTI_BENCH_NO_DIFFERENCE);
    assert_true(fti_bench_compare_pairs(a, b, 10).claim);
    assert_false(fti_bench_compare_series(a, 10, b, 9).claim);
    fti_bench_ratio r = fti_bench_compare_series(a, 10, b, 10);
    assert_true(r.claim);
    assert_int_equal(r.difference, FTI_BENCH_B_GREATER);
    assert_true(r.of.min <= r.of.low && r.of.low <= r.of.median && r.of.high <= r.of.max);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians),
        cmocka_unit_test(noise),
        cmocka_unit_test(intervals),
        cmocka_unit_test(interval_covers),
        cmocka_unit_test(repeatable),
        cmocka_unit_test(pairs_cancel_drift),
        cmocka_unit_test(no_difference),
        cmocka_unit_test(few_claim_nothing),
        cmocka_unit_test(interval_holds_one),
    };
    return cmocka_run_group_tests_name("test_statistics", tests, NULL, NULL);
}
