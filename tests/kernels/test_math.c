/* test_math.c: accuracy of device/math.h against long double, and its corners. */
#include "rig.h"

#include <math.h>

#include "freetoken/device/math.h"

/* |got - exact| in units of the last place of a float at `exact`. */
static double ulps(float got, long double exact) {
    int exponent;
    frexpl(exact, &exponent);
    if (exponent < -125) exponent = -125;
    return (double)fabsl(((long double)got - exact) / ldexpl(1, exponent - 24));
}

typedef struct sweep {
    float (*function)(float);
    long double (*exact)(long double);
    float from;
    float to;
    double bound;
} sweep;

static long double exact_sigmoid(long double x) {
    return 1 / (1 + expl(-x));
}

static long double exact_silu(long double x) {
    return x / (1 + expl(-x));
}

static long double exact_softplus(long double x) {
    return x > 20 ? x : log1pl(expl(x));
}

static void run_sweep(const sweep *s) {
    uint64_t seed = 3;
    double worst = 0;
    float at = 0;
    for (int i = 0; i < 400000; i++) {
        float fraction = (float)i / 400000.0f;
        float x = s->from + (s->to - s->from) * fraction;
        if (i % 2) x = ldexpf(rnd_unit(&seed), (int)rnd_below(&seed, 40) - 32);
        if (x < s->from || x > s->to) continue;
        double error = ulps(s->function(x), s->exact((long double)x));
        if (error > worst) {
            worst = error;
            at = x;
        }
    }
    if (!(worst <= s->bound)) fail_msg("%.3f ulp at %a, allowed %.2f", worst, (double)at, s->bound);
}

static void exp_is_accurate(void **state) {
    (void)state;
    run_sweep(&(sweep){ftk_exp, expl, -104, 88.722f, 1.0});
    run_sweep(&(sweep){ftk_exp, expl, -104, -86, 1.0});
    run_sweep(&(sweep){ftk_exp, expl, -1, 1, 1.0});
}

static void exp_corners(void **state) {
    (void)state;
    assert_true(ftk_exp(0) == 1.0f);
    assert_true(ftk_exp(-0.0f) == 1.0f);
    assert_true(ftk_exp(INFINITY) == INFINITY);
    assert_true(ftk_exp(89.5f) == INFINITY);
    assert_true(ftk_exp(88.73f) == INFINITY);
    assert_true(isfinite(ftk_exp(88.722f)));
    assert_int_equal(bits_of(ftk_exp(-INFINITY)), 0);
    assert_int_equal(bits_of(ftk_exp(-3e38f)), 0);
    assert_int_equal(bits_of(ftk_exp(-104)), 0);
    assert_int_equal(bits_of(ftk_exp(-103)), 1);
    assert_true(isnan(ftk_exp(NAN)));
    assert_true(isnan(ftk_exp(-NAN)));
}

/* Never decreasing, over every float of some stretches. */
static void exp_is_monotonic_enough(void **state) {
    (void)state;
    static const float starts[] = {-103.9f, -88.0f, -1.0f, -0.35f, 0.34f, 20.0f, 88.0f};
    for (size_t s = 0; s < COUNT(starts); s++) {
        float last = ftk_exp(starts[s]);
        float x = starts[s];
        for (int i = 0; i < 20000; i++) {
            x = nextafterf(x, INFINITY);
            float e = ftk_exp(x);
            if (e < last) assert_true(ulps(e, (long double)last) <= 1.0);
            last = e;
        }
    }
}

static void others_are_accurate(void **state) {
    (void)state;
    run_sweep(&(sweep){ftk_sigmoid, exact_sigmoid, -103, 90, 3.0});
    run_sweep(&(sweep){ftk_silu, exact_silu, -87, 90, 3.0});
    run_sweep(&(sweep){ftk_log1p, log1pl, -0.999999f, 100, 0.51});
    run_sweep(&(sweep){ftk_log1p, log1pl, 0, 3.4e38f, 0.51});
    run_sweep(&(sweep){ftk_softplus, exact_softplus, -80, 25, 1.6});
}

static void other_corners(void **state) {
    (void)state;
    assert_true(ftk_sigmoid(0) == 0.5f);
    assert_true(ftk_sigmoid(INFINITY) == 1.0f);
    assert_int_equal(bits_of(ftk_sigmoid(-INFINITY)), 0);
    assert_true(isnan(ftk_sigmoid(NAN)));
    assert_true(ftk_silu(INFINITY) == INFINITY);
    assert_true(ftk_silu(-200) == 0.0f);
    assert_true(isnan(ftk_silu(-INFINITY)));
    assert_true(isnan(ftk_silu(NAN)));
    assert_int_equal(bits_of(ftk_log1p(-0.0f)), 0x80000000u);
    assert_true(ftk_log1p(-1) == -INFINITY);
    assert_true(isnan(ftk_log1p(-1.5f)));
    assert_true(isnan(ftk_log1p(NAN)));
    assert_true(ftk_log1p(INFINITY) == INFINITY);
    assert_int_equal(bits_of(ftk_log1p(from_bits(1))), 1);
    assert_true(ftk_softplus(20.5f) == 20.5f);
    assert_true(ftk_softplus(INFINITY) == INFINITY);
    assert_int_equal(bits_of(ftk_softplus(-INFINITY)), 0);
    assert_true(isnan(ftk_softplus(NAN)));
    assert_true(ftk_softplus(-50) > 0);
}

static void check_sincos(double angle) {
    float s;
    float c;
    ftk_sincos(angle, &s, &c);
    long double es = sinl((long double)angle);
    long double ec = cosl((long double)angle);
    /* Near a zero of the function what counts is the absolute error. */
    if (!(ulps(s, es) <= 1.0 || fabsl((long double)s - es) < 1e-15L) ||
        !(ulps(c, ec) <= 1.0 || fabsl((long double)c - ec) < 1e-15L))
        fail_msg("angle %a: %a %a", angle, (double)s, (double)c);
}

static void sincos_is_accurate(void **state) {
    (void)state;
    uint64_t seed = 9;
    for (int i = 0; i < 300000; i++) {
        double unit = (double)rnd(&seed) / 4294967296.0;
        check_sincos(unit * 16777216.0);
        check_sincos(-unit * 300000.0);
        check_sincos(unit * 10.0);
        check_sincos((double)(i * 16) / 17.0);
    }
    for (int n = 0; n < 100000; n++) check_sincos(n * 1.5707963267948966);
    float s;
    float c;
    ftk_sincos(0, &s, &c);
    assert_true(s == 0.0f && c == 1.0f);
}

static void frequencies_are_accurate(void **state) {
    (void)state;
    static const double thetas[] = {1, 2, 10000, 500000, 1e6, 1e7, 1e9};
    static const uint32_t dims[] = {2, 64, 128, 256};
    for (size_t t = 0; t < COUNT(thetas); t++) {
        for (size_t d = 0; d < COUNT(dims); d++) {
            for (uint32_t j = 0; j < dims[d] / 2; j++) {
                double got = ftk_rope_frequency(ftk_log_f64(thetas[t]), j, dims[d]);
                long double exact = powl((long double)thetas[t],
                                         -2.0L * (long double)j / (long double)dims[d]);
                assert_true(fabsl((long double)got / exact - 1) <= ldexpl(1, -45));
                if (j == 0) assert_true(got == 1.0);
            }
        }
    }
}

static void double_log_and_exp(void **state) {
    (void)state;
    uint64_t seed = 21;
    for (int i = 0; i < 200000; i++) {
        double x = ldexp(1 + fabs((double)rnd_unit(&seed)), (int)rnd_below(&seed, 2000) - 1000);
        if (i % 4 == 0) x = 1 + (double)rnd_unit(&seed) / 3;
        if (x != 1) {
            long double exact = logl((long double)x);
            assert_true(fabsl((long double)ftk_log_f64(x) / exact - 1) <= ldexpl(1, -49));
        }
        double y = (double)rnd_unit(&seed) * 690;
        assert_true(fabsl((long double)ftk_exp_f64(y) / expl((long double)y) - 1) <=
                    ldexpl(1, -51));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(exp_corners),
        cmocka_unit_test(exp_is_monotonic_enough),
        cmocka_unit_test(others_are_accurate),
        cmocka_unit_test(other_corners),
        cmocka_unit_test(sincos_is_accurate),
        cmocka_unit_test(frequencies_are_accurate),
        cmocka_unit_test(double_log_and_exp),
    };
    return cmocka_run_group_tests_name("test_math", tests, NULL, NULL);
}
