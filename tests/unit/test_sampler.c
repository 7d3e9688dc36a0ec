/*
 * test_sampler.c: the generator against published vectors, and the sampler
 * against distributions and filter borders that can be worked out by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>

#include "core/philox.h"
#include "core/sampler.h"

static const fti_sampling plain = {.temperature = 1, .top_p = 1, .min_p = 0, .top_k = 0, .seed = 7};

static fti_sampler *sampler(size_t size, const uint8_t *allowed) {
    fti_sampler *s;
    ftk_error err = FTK_ERROR_INIT;
    if (fti_sampler_create(size, allowed, &s, &err) != FTK_OK) fail_msg("%s", err.message);
    return s;
}

static int32_t draw(fti_sampler *s, const float *logits, fti_sampling how, uint64_t position) {
    int32_t id = -1;
    ftk_error err = FTK_ERROR_INIT;
    if (fti_sample(s, logits, &how, position, &id, &err) != FTK_OK) fail_msg("%s", err.message);
    return id;
}

/* ---- random numbers ---- */

static void philox_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < FTI_COUNT(vectors); i++) {
        uint32_t words[4];
        memcpy(words, vectors[i].counter, sizeof words);
        fti_philox4x32_10(words, vectors[i].key[0], vectors[i].key[1]);
        assert_memory_equal(words, vectors[i].answer, sizeof words);
    }
}

/* Seed is the key, position and draw are the counter, low words first. */
static void random_uses_all_its_arguments(void **state) {
    (void)state;
    assert_true(fti_random(0, 0, 0) == 0xe169c58d6627e8d5u);
    uint32_t words[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0};
    fti_philox4x32_10(words, 0xa4093822, 0x299f31d0);
    uint64_t wanted = (uint64_t)words[1] << 32 | words[0];
    assert_true(fti_random(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x13198a2e) == wanted);
}

/* ---- arguments ---- */

static void sampling_ranges(void **state) {
    (void)state;
    static const struct {
        float temperature, top_p, min_p;
        const char *word; /* NULL: accepted */
    } cases[] = {
        {0, 1, 0, NULL},
        {FLT_MAX, FLT_MIN, 0.999f, NULL},
        {1e-45f, 1, 0, NULL},
        {-0.0f, 1, 0, NULL},
        {-1e-45f, 1, 0, "temperature"},
        {NAN, 1, 0, "temperature"},
        {INFINITY, 1, 0, "temperature"},
        {-INFINITY, 1, 0, "temperature"},
        {1, 0, 0, "top_p"},
        {1, -0.1f, 0, "top_p"},
        {1, 1.0000001f, 0, "top_p"},
        {1, NAN, 0, "top_p"},
        {1, INFINITY, 0, "top_p"},
        {1, 1, 1, "min_p"},
        {1, 1, -1e-45f, "min_p"},
        {1, 1, NAN, "min_p"},
        {1, 1, INFINITY, "min_p"},
    };
    fti_sampler *s = sampler(2, NULL);
    static const float logits[2] = {0, 1};
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        fti_sampling how = {cases[i].temperature, cases[i].top_p, cases[i].min_p, UINT32_MAX, 0};
        ftk_status wanted = cases[i].word ? FTK_E_ARGUMENT : FTK_OK;
        ftk_error err = FTK_ERROR_INIT;
        int32_t id = 77;
        assert_int_equal(fti_sampling_check(&how, &err), wanted);
        if (wanted != FTK_OK) assert_non_null(strstr(err.message, cases[i].word));
        assert_int_equal(fti_sample(s, logits, &how, 0, &id, NULL), wanted);
        assert_true(wanted == FTK_OK ? id == 0 || id == 1 : id == 77);
    }
    fti_sampler_free(s);
}

static void create_refuses_nonsense(void **state) {
    (void)state;
    static const uint8_t none[3] = {0, 0, 0};
    fti_sampler *s;
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(fti_sampler_create(0, NULL, &s, &err), FTK_E_ARGUMENT);
    assert_int_equal(fti_sampler_create((size_t)INT32_MAX + 1, NULL, &s, &err), FTK_E_ARGUMENT);
    assert_int_equal(fti_sampler_create(3, none, &s, &err), FTK_E_ARGUMENT);
    assert_non_null(strstr(err.message, "all 3 tokens"));
    assert_null(s);
    fti_sampler_free(NULL);
}

/* ---- numbers that are none ---- */

static void non_finite_logits(void **state) {
    (void)state;
    static const uint8_t mask[4] = {1, 1, 0, 1};
    fti_sampler *s = sampler(4, mask);
    static const struct {
        float logits[4];
        const char *word; /* NULL: accepted, and id 1 wins */
    } cases[] = {
        {{0, 1, NAN, 0}, NULL},
        {{-INFINITY, 1, INFINITY, -INFINITY}, NULL},
        {{-FLT_MAX, FLT_MAX, 0, -FLT_MAX}, NULL},
        {{0, 1, 0, NAN}, "token 3 has nan"},
        {{0, 1, 0, -NAN}, "token 3"},
        {{INFINITY, 1, 0, 0}, "token 0 has inf"},
        {{-INFINITY, -INFINITY, 5, -INFINITY}, "every allowed token"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        for (int greedy = 0; greedy < 2; greedy++) {
            fti_sampling how = {greedy ? 0 : 0.01f, 1, 0, 0, 3};
            ftk_error err = FTK_ERROR_INIT;
            int32_t id = -1;
            ftk_status status = fti_sample(s, cases[i].logits, &how, 41, &id, &err);
            assert_int_equal(status, cases[i].word ? FTK_E_NON_FINITE : FTK_OK);
            assert_int_equal(id, cases[i].word ? -1 : 1);
            if (!cases[i].word) continue;
            assert_non_null(strstr(err.message, cases[i].word));
            assert_non_null(strstr(err.message, "position 41"));
        }
    }
    fti_sampler_free(s);
}

/* An id without mass is not drawn, even if the sum of weights falls short. */
static void weightless_is_never_drawn(void **state) {
    (void)state;
    static const float logits[5] = {-INFINITY, 0, -2000, 0, -INFINITY};
    fti_sampler *s = sampler(5, NULL);
    for (uint64_t p = 0; p < 2000; p++) {
        int32_t id = draw(s, logits, plain, p);
        assert_true(id == 1 || id == 3);
    }
    fti_sampler_free(s);
}

/* ---- greedy ---- */

static void greedy_takes_the_lowest_of_equals(void **state) {
    (void)state;
    static const float ties[6] = {-1, 2, 0, 2, 2, 1}, zeros[4] = {-1, -0.0f, 0.0f, -0.0f};
    static const uint8_t mask[6] = {1, 0, 1, 1, 1, 1};
    fti_sampling greedy = {.temperature = 0, .top_p = 1};
    fti_sampler *s = sampler(6, NULL), *masked = sampler(6, mask), *four = sampler(4, NULL);
    assert_int_equal(draw(s, ties, greedy, 0), 1);
    assert_int_equal(draw(masked, ties, greedy, 0), 3);
    assert_int_equal(draw(four, zeros, greedy, 0), 1);
    fti_sampler_free(s);
    fti_sampler_free(masked);
    fti_sampler_free(four);
}

static void fill_random(float *logits, size_t size, uint64_t seed) {
    for (size_t i = 0; i < size; i++)
        logits[i] = (float)((double)(fti_random(seed, i, 9) >> 11) * 0x1p-53 * 20 - 10);
}

static void cold_equals_greedy(void **state) {
    (void)state;
    enum { SIZE = 501 };
    float logits[SIZE];
    fti_sampler *s = sampler(SIZE, NULL);
    for (uint64_t round = 0; round < 200; round++) {
        fill_random(logits, SIZE, round);
        fti_sampling greedy = {.temperature = 0, .top_p = 1}, cold = plain;
        cold.temperature = round % 2 ? 1e-7f : FLT_TRUE_MIN;
        cold.seed = round;
        assert_int_equal(draw(s, logits, cold, round), draw(s, logits, greedy, round));
        cold.temperature = 5;
        cold.top_k = 1;
        assert_int_equal(draw(s, logits, cold, round), draw(s, logits, greedy, round));
        cold.top_k = 0;
        cold.top_p = FLT_MIN;
        assert_int_equal(draw(s, logits, cold, round), draw(s, logits, greedy, round));
    }
    fti_sampler_free(s);
}

/* ---- distributions ---- */

/* Draws `n` times and holds the counts against `wanted` probabilities; the border
 * is five standard deviations of the statistic, and seeds are fixed. */
static void check_distribution(const float *logits, size_t size, const uint8_t *allowed,
                               fti_sampling how, const double *wanted) {
    enum { N = 40000, MOST = 16 };
    uint32_t counts[MOST] = {0};
    fti_sampler *s = sampler(size, allowed);
    for (uint64_t p = 0; p < N; p++) counts[draw(s, logits, how, p)]++;
    double statistic = 0, freedom = -1;
    for (size_t i = 0; i < size; i++) {
        if (wanted[i] <= 0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        double expected = wanted[i] * N, difference = counts[i] - expected;
        statistic += difference * difference / expected;
        freedom += 1;
    }
    if (statistic > freedom + 5 * sqrt(2 * freedom)) fail_msg("chi-square %g", statistic);
    fti_sampler_free(s);
}

static void softmax(const float *logits, size_t size, double temperature, double *out) {
    double sum = 0;
    for (size_t i = 0; i < size; i++) sum += out[i] = exp((double)logits[i] / temperature);
    for (size_t i = 0; i < size; i++) out[i] /= sum;
}

static void keep_only(double *p, size_t size, unsigned mask) {
    double sum = 0;
    for (size_t i = 0; i < size; i++) sum += p[i] *= mask >> i & 1;
    for (size_t i = 0; i < size; i++) p[i] /= sum;
}

static const float eight[8] = {0.5f, -1, 2, 0, 1.5f, -3, 2, 1};

static void draws_follow_the_distribution(void **state) {
    (void)state;
    static const float temperatures[] = {0.5f, 1, 2.5f};
    static const uint8_t mask[8] = {1, 1, 0, 1, 1, 0, 1, 1};
    double p[8];
    for (size_t i = 0; i < FTI_COUNT(temperatures); i++) {
        fti_sampling how = plain;
        how.temperature = temperatures[i];
        how.seed = 100 + i;
        softmax(eight, 8, (double)how.temperature, p);
        check_distribution(eight, 8, NULL, how, p);
        keep_only(p, 8, 0xDB);
        check_distribution(eight, 8, mask, how, p);
    }
}

/* Logits far from zero have the same distribution, so nothing overflows. */
static void only_differences_matter(void **state) {
    (void)state;
    double p[8];
    float high[8], low[8];
    for (size_t i = 0; i < 8; i++) {
        high[i] = eight[i] + 4096;
        low[i] = eight[i] - 4096;
    }
    softmax(eight, 8, 1, p);
    check_distribution(high, 8, NULL, plain, p);
    check_distribution(low, 8, NULL, plain, p);
}

/* Rank order of eight[]: ids 2 6 (tie) 4 7 0 3 1 5. */
static void top_k_keeps_the_best(void **state) {
    (void)state;
    static const unsigned kept[] = {0x04, 0x44, 0x54, 0xD4, 0xD5, 0xDD, 0xDF, 0xFF, 0xFF};
    for (uint32_t k = 1; k <= 9; k++) {
        double p[8];
        fti_sampling how = plain;
        how.top_k = k;
        how.seed = k;
        softmax(eight, 8, 1, p);
        keep_only(p, 8, kept[k - 1]);
        check_distribution(eight, 8, NULL, how, p);
    }
    /* Zeros of both signs are one value. */
    static const float zeros[3] = {-0.0f, 0, -1};
    static const double first[3] = {1, 0, 0};
    fti_sampling how = plain;
    how.top_k = 1;
    check_distribution(zeros, 3, NULL, how, first);
}

/* Equal logits have weights of exactly 1: borders are exact. */
static void top_p_keeps_the_fewest_that_reach_it(void **state) {
    (void)state;
    static const float equal[8] = {3, 3, 3, 3, 3, 3, 3, 3};
    static const struct {
        float top_p;
        unsigned kept;
    } cases[] = {{0.125f, 0x01}, {0.1250001f, 0x03}, {0.25f, 0x03}, {0.5f, 0x0F},
                 {0.51f, 0x1F},  {0.875f, 0x7F},     {0.876f, 0xFF}};
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        double p[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        fti_sampling how = plain;
        how.top_p = cases[i].top_p;
        keep_only(p, 8, cases[i].kept);
        check_distribution(equal, 8, NULL, how, p);
    }
    /* Unequal: 2 and 6 hold 0.590 of the mass, 4 makes it 0.769. */
    double p[8];
    fti_sampling how = plain;
    how.top_p = 0.6f;
    softmax(eight, 8, 1, p);
    keep_only(p, 8, 0x54);
    check_distribution(eight, 8, NULL, how, p);
}

static void min_p_is_relative_to_the_best(void **state) {
    (void)state;
    static const float logits[4] = {-1, 0, -1, -4};
    const float border = (float)exp(-1.0);
    double all_but_last[4], best[4];
    softmax(logits, 4, 1, all_but_last);
    memcpy(best, all_but_last, sizeof best);
    keep_only(all_but_last, 4, 0x7);
    keep_only(best, 4, 0x2);
    fti_sampling how = plain;
    how.min_p = nextafterf(border, 0);
    check_distribution(logits, 4, NULL, how, all_but_last);
    how.min_p = nextafterf(border, 1);
    check_distribution(logits, 4, NULL, how, best);
    /* After temperature: exp(-1 / 0.5) is below the border. */
    how.min_p = nextafterf(border, 0);
    how.temperature = 0.5f;
    check_distribution(logits, 4, NULL, how, best);
}

/* Each pair of filters in a case where the other order would keep another set. */
static void filters_come_in_order(void **state) {
    (void)state;
    double p[8];
    /* Of the four best, 2 and 6 hold 0.672; of all eight only 0.590. */
    fti_sampling how = plain;
    how.top_k = 4;
    how.top_p = 0.64f;
    softmax(eight, 8, 1, p);
    keep_only(p, 8, 0x44);
    check_distribution(eight, 8, NULL, how, p);
    /* min-p 0.5 leaves 2, 6, 4, of which 2 and 6 hold 0.767; of all eight 0.590. */
    how = plain;
    how.top_p = 0.7f;
    how.min_p = 0.5f;
    softmax(eight, 8, 1, p);
    keep_only(p, 8, 0x54);
    check_distribution(eight, 8, NULL, how, p);
    /* min-p cuts a nucleus: top-p alone would keep 2, 6, 4, 7. */
    how.top_p = 0.8f;
    check_distribution(eight, 8, NULL, how, p);
    /* At temperature 0.25 2 and 6 hold 0.927. */
    how = plain;
    how.temperature = 0.25f;
    how.top_p = 0.8f;
    softmax(eight, 8, 0.25, p);
    keep_only(p, 8, 0x44);
    check_distribution(eight, 8, NULL, how, p);
    how = plain;
    how.top_k = 5;
    how.min_p = 0.3f;
    softmax(eight, 8, 1, p);
    keep_only(p, 8, 0xD4);
    check_distribution(eight, 8, NULL, how, p);
}

/* ---- determinism ---- */

static void draws_depend_on_seed_and_position_only(void **state) {
    (void)state;
    enum { SIZE = 1000, N = 300 };
    float logits[SIZE], other[SIZE];
    int32_t first[N];
    fill_random(logits, SIZE, 1);
    fill_random(other, SIZE, 2);
    for (size_t i = 0; i < SIZE; i++) logits[i] /= 8;
    fti_sampling how = {
        .temperature = 0.9f, .top_p = 0.98f, .min_p = 1e-4f, .top_k = 700, .seed = 42};
    fti_sampler *a = sampler(SIZE, NULL), *b = sampler(SIZE, NULL);
    for (uint64_t p = 0; p < N; p++) first[p] = draw(a, logits, how, p);
    size_t differ_by_seed = 0, differ_by_position = 0;
    for (uint64_t p = N; p-- > 0;) {
        fti_sampling noise = plain;
        draw(b, other, noise, p);
        assert_int_equal(draw(b, logits, how, p), first[p]);
        noise = how;
        noise.seed += (uint64_t)1 << 40;
        differ_by_seed += draw(b, logits, noise, p) != first[p];
        differ_by_position += draw(b, logits, how, p + ((uint64_t)1 << 40)) != first[p];
    }
    assert_true(differ_by_seed > N / 2);
    assert_true(differ_by_position > N / 2);
    fti_sampler_free(a);
    fti_sampler_free(b);
}

static const float *compared;

static int by_rank(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (compared[x] != compared[y]) return compared[x] > compared[y] ? -1 : 1;
    return (x > y) - (x < y);
}

/* The draw by its definition: sort everything, cut, walk. */
static int32_t slow_sample(const float *logits, size_t size, const fti_sampling *how,
                           uint64_t position) {
    int32_t *order = malloc(size * sizeof *order), chosen = -1;
    double *w = malloc(size * sizeof *w), mass = 0, sum = 0;
    assert_true(order && w);
    for (size_t i = 0; i < size; i++) order[i] = (int32_t)i;
    compared = logits;
    qsort(order, size, sizeof *order, by_rank);
    size_t kept = how->top_k && how->top_k < size ? how->top_k : size;
    for (size_t i = 0; i < size; i++)
        w[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) /
                   (double)how->temperature);
    for (size_t i = 0; i < kept; i++) mass += w[i];
    size_t nucleus = 0;
    for (; nucleus < kept && (how->top_p >= 1 || sum < (double)how->top_p * mass); nucleus++)
        sum += w[nucleus];
    for (kept = nucleus; kept > 1 && w[kept - 1] < (double)how->min_p;) kept--;
    mass = 0;
    for (size_t i = 0; i < kept; i++) mass += w[i];
    double target = (double)(fti_random(how->seed, position, 0) >> 11) * 0x1p-53 * mass;
    sum = 0;
    for (size_t i = 0; i < kept && chosen < 0; i++)
        if ((sum += w[i]) > target) chosen = order[i];
    free(order);
    free(w);
    return chosen;
}

static void equals_the_slow_definition(void **state) {
    (void)state;
    enum { SIZE = 3000 };
    static float logits[SIZE];
    fti_sampler *s = sampler(SIZE, NULL);
    static const uint32_t top_k[] = {0, 1, 2, 20, 2999, 3000, 5000};
    static const float top_p[] = {1, 0.95f, 0.3f, 0.999f}, min_p[] = {0, 0.05f, 0.5f};
    for (uint64_t round = 0; round < 420; round++) {
        fill_random(logits, SIZE, round);
        /* Steps of a quarter: many ties. */
        for (size_t i = 0; round % 2 && i < SIZE; i++) logits[i] = rintf(logits[i] * 4) / 4;
        fti_sampling how = {.temperature = 0.3f + (float)(round % 5),
                            .top_p = top_p[round % 4],
                            .min_p = min_p[round % 3],
                            .top_k = top_k[round % 7],
                            .seed = round};
        assert_int_equal(draw(s, logits, how, round), slow_sample(logits, SIZE, &how, round));
    }
    fti_sampler_free(s);
}

static void the_mask_is_copied_and_kept(void **state) {
    (void)state;
    enum { SIZE = 64 };
    uint8_t mask[SIZE];
    float logits[SIZE];
    fill_random(logits, SIZE, 5);
    for (size_t i = 0; i < SIZE; i++) mask[i] = i % 3 == 1 ? 255 : 0;
    fti_sampler *s = sampler(SIZE, mask);
    memset(mask, 1, sizeof mask);
    for (uint64_t p = 0; p < 3000; p++) {
        fti_sampling how = {
            .temperature = 50, .top_p = p % 2 ? 1 : 0.9f, .top_k = (uint32_t)(p % 40), .seed = 1};
        assert_int_equal(draw(s, logits, how, p) % 3, 1);
    }
    fti_sampler_free(s);
}

int main(void) {
    const struct CMUnitTest test_sampler[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(random_uses_all_its_arguments),
        cmocka_unit_test(sampling_ranges),
        cmocka_unit_test(create_refuses_nonsense),
        cmocka_unit_test(non_finite_logits),
        cmocka_unit_test(weightless_is_never_drawn),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(cold_equals_greedy),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(only_differences_matter),
        cmocka_unit_test(top_k_keeps_the_best),
        cmocka_unit_test(top_p_keeps_the_fewest_that_reach_it),
        cmocka_unit_test(min_p_is_relative_to_the_best),
        cmocka_unit_test(filters_come_in_order),
        cmocka_unit_test(draws_depend_on_seed_and_position_only),
        cmocka_unit_test(equals_the_slow_definition),
        cmocka_unit_test(the_mask_is_copied_and_kept),
    };
    return cmocka_run_group_tests_name("test_sampler", test_sampler, NULL, NULL);
}
