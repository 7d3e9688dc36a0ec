/*
 * test_sampler.c: the generator against published vectors, and the sampler
 * against distributions and borders that can be worked out by hand, and against
 * its definition, carried out slowly.
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
#include "freetoken/device/math.h"

static const fti_sampling off = FTI_SAMPLING_INIT;
static const fti_sampling plain = {
    .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7};

static fti_sampler *sampler(size_t size, const uint8_t *allowed) {
    fti_sampler *s;
    ftk_error err = FTK_ERROR_INIT;
    if (fti_sampler_create(size, allowed, &s, &err) != FTK_OK) fail_msg("%s", err.message);
    return s;
}

static fti_sample_result sample(fti_sampler *s, const float *logits, fti_sampling how,
                                const int32_t *history, size_t count, uint64_t position) {
    fti_sample_result result = {.id = -1, .logprob = 5, .top_count = 99};
    ftk_error err = FTK_ERROR_INIT;
    if (fti_sample(s, logits, &how, history, count, position, &result, &err) != FTK_OK)
        fail_msg("%s", err.message);
    return result;
}

static int32_t draw(fti_sampler *s, const float *logits, fti_sampling how, uint64_t position) {
    return sample(s, logits, how, NULL, 0, position).id;
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

/* Both the check and the call answer, and a failed call leaves the result alone. */
static void check_says(fti_sampling how, const char *word) {
    static const float logits[2] = {0, 1};
    fti_sampler *s = sampler(2, NULL);
    ftk_status wanted = word ? FTK_E_ARGUMENT : FTK_OK;
    fti_sample_result result = {.id = 77, .logprob = 5, .top_count = 9};
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(fti_sampling_check(&how, 2, &err), wanted);
    if (word && !strstr(err.message, word)) fail_msg("no '%s' in: %s", word, err.message);
    assert_int_equal(fti_sample(s, logits, &how, NULL, 0, 0, &result, NULL), wanted);
    assert_true(word ? result.id == 77 : result.id == 0 || result.id == 1);
    assert_true(!word || (result.top_count == 9 && result.logprob == 5));
    fti_sampler_free(s);
}

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
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        fti_sampling how = off;
        how.temperature = cases[i].temperature;
        how.top_p = cases[i].top_p;
        how.min_p = cases[i].min_p;
        how.top_k = UINT32_MAX;
        check_says(how, cases[i].word);
    }
}

static void penalty_ranges(void **state) {
    (void)state;
    static const struct {
        float repetition, presence, frequency;
        uint32_t logprobs;
        const char *word;
    } cases[] = {
        {1, 0, 0, FTI_MAX_LOGPROBS, NULL},
        {FLT_TRUE_MIN, FLT_MAX, -FLT_MAX, 0, NULL},
        {FLT_MAX, -FLT_MAX, FLT_MAX, 0, NULL},
        {0, 0, 0, 0, "repetition_penalty is 0"},
        {-0.0f, 0, 0, 0, "repetition_penalty"},
        {-1, 0, 0, 0, "repetition_penalty is -1"},
        {NAN, 0, 0, 0, "repetition_penalty"},
        {INFINITY, 0, 0, 0, "repetition_penalty is inf"},
        {1, NAN, 0, 0, "presence_penalty"},
        {1, INFINITY, 0, 0, "presence_penalty"},
        {1, -INFINITY, 0, 0, "presence_penalty"},
        {1, 0, NAN, 0, "frequency_penalty"},
        {1, 0, INFINITY, 0, "frequency_penalty"},
        {1, 0, -INFINITY, 0, "frequency_penalty"},
        {1, 0, 0, FTI_MAX_LOGPROBS + 1, "logprobs is 21; wanted at most 20"},
        {1, 0, 0, UINT32_MAX, "logprobs"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        fti_sampling how = plain;
        how.repetition_penalty = cases[i].repetition;
        how.presence_penalty = cases[i].presence;
        how.frequency_penalty = cases[i].frequency;
        how.logprobs = cases[i].logprobs;
        check_says(how, cases[i].word);
    }
}

static void bias_ranges(void **state) {
    (void)state;
    static const struct {
        ftk_logit_bias bias;
        const char *word;
    } cases[] = {
        {{0, 0}, NULL},
        {{1, FLT_MAX}, NULL},
        {{0, -INFINITY}, NULL},
        {{2, 0}, "logit bias 1 is for token 2; wanted an id from 0 to 1"},
        {{-1, 0}, "token -1"},
        {{INT32_MAX, 0}, "token 2147483647"},
        {{1, NAN}, "logit bias 1, of token 1, is nan"},
        {{1, INFINITY}, "is inf"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        const ftk_logit_bias biases[2] = {{0, 1}, cases[i].bias};
        fti_sampling how = plain;
        how.biases = biases;
        how.bias_count = 2;
        check_says(how, cases[i].word);
    }
    static ftk_logit_bias many[FTI_MAX_BIASES + 1];
    fti_sampling how = plain;
    how.biases = many;
    how.bias_count = FTI_MAX_BIASES;
    check_says(how, NULL);
    how.bias_count++;
    check_says(how, "1025 logit biases; wanted at most 1024");
    how.biases = NULL;
    how.bias_count = 1;
    check_says(how, "NULL");
    how.bias_count = 0;
    check_says(how, NULL);
}

/* Only what a penalty reads is looked at. */
static void history_is_checked_where_it_is_read(void **state) {
    (void)state;
    static const float logits[3] = {0, 1, 2};
    static const struct {
        int32_t history[4];
        size_t count;
        uint32_t last;
        float presence;
        const char *word;
    } cases[] = {
        {{0, 1, 2, 0}, 4, 0, 1, NULL},
        {{3, 1, 2, 0}, 4, 3, 1, NULL},
        {{3, 1, 2, 0}, 4, 0, 0, NULL},
        {{3, 1, 2, 0}, 4, 4, 1, "token 0 of the history is 3; wanted an id from 0 to 2"},
        {{0, 1, 2, -1}, 4, 1, 1, "token 3 of the history is -1"},
        {{0, 1, 2, 9}, 4, UINT32_MAX, 1, "token 3"},
    };
    fti_sampler *s = sampler(3, NULL);
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        fti_sampling how = off;
        how.presence_penalty = cases[i].presence;
        how.penalty_last = cases[i].last;
        fti_sample_result result = {.id = 77};
        ftk_error err = FTK_ERROR_INIT;
        ftk_status status = fti_sample(s, logits, &how, cases[i].history, cases[i].count, 0,
                                       &result, &err);
        assert_int_equal(status, cases[i].word ? FTK_E_ARGUMENT : FTK_OK);
        assert_int_equal(result.id, cases[i].word ? 77 : 2);
        if (cases[i].word && !strstr(err.message, cases[i].word)) fail_msg("%s", err.message);
    }
    fti_sampling how = off;
    how.presence_penalty = 3;
    ftk_error err = FTK_ERROR_INIT;
    fti_sample_result result;
    assert_int_equal(fti_sample(s, logits, &how, NULL, 5, 0, &result, &err), FTK_E_ARGUMENT);
    assert_non_null(strstr(err.message, "history of 5 tokens at NULL"));
    assert_int_equal(sample(s, logits, how, NULL, 0, 0).id, 2);
    fti_sampler_free(s);
}

static void create_refuses_nonsense(void **state) {
    (void)state;
    static const uint8_t none[3] = {0, 0, 0};
    fti_sampler *s;
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(fti_sampler_create(0, NULL, &s, &err), FTK_E_ARGUMENT);
    assert_int_equal(fti_sampler_create((size_t)FTI_MAX_VOCABULARY + 1, NULL, &s, &err),
                     FTK_E_ARGUMENT);
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
            fti_sampling how = plain;
            how.temperature = greedy ? 0 : 0.01f;
            ftk_error err = FTK_ERROR_INIT;
            fti_sample_result result = {.id = -1};
            ftk_status status = fti_sample(s, cases[i].logits, &how, NULL, 0, 41, &result, &err);
            assert_int_equal(status, cases[i].word ? FTK_E_NON_FINITE : FTK_OK);
            assert_int_equal(result.id, cases[i].word ? -1 : 1);
            if (!cases[i].word) continue;
            assert_non_null(strstr(err.message, cases[i].word));
            assert_non_null(strstr(err.message, "position 41"));
        }
    }
    fti_sampler_free(s);
}

/* An id whose weight rounds to 0 is never drawn. */
static void weightless_is_never_drawn(void **state) {
    (void)state;
    static const float logits[5] = {-INFINITY, 0, -2000, 0, -27.04f};
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
    fti_sampler *s = sampler(6, NULL), *masked = sampler(6, mask), *four = sampler(4, NULL);
    assert_int_equal(draw(s, ties, off, 0), 1);
    assert_int_equal(draw(masked, ties, off, 0), 3);
    assert_int_equal(draw(four, zeros, off, 0), 1);
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
        fti_sampling cold = plain;
        cold.temperature = round % 2 ? 1e-7f : FLT_TRUE_MIN;
        cold.seed = round;
        assert_int_equal(draw(s, logits, cold, round), draw(s, logits, off, round));
        cold.temperature = 5;
        cold.top_k = 1;
        assert_int_equal(draw(s, logits, cold, round), draw(s, logits, off, round));
        cold.top_k = 0;
        cold.top_p = FLT_MIN;
        assert_int_equal(draw(s, logits, cold, round), draw(s, logits, off, round));
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
    const float border = ftk_exp(-1.0f);
    double all_but_last[4], best[4];
    softmax(logits, 4, 1, all_but_last);
    memcpy(best, all_but_last, sizeof best);
    keep_only(all_but_last, 4, 0x7);
    keep_only(best, 4, 0x2);
    fti_sampling how = plain;
    how.min_p = border;
    check_distribution(logits, 4, NULL, how, all_but_last);
    how.min_p = nextafterf(border, 1);
    check_distribution(logits, 4, NULL, how, best);
    /* After temperature: exp(-1 / 0.5) is below the border. */
    how.min_p = border;
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
    fti_sampling how = {.temperature = 0.9f,
                        .top_p = 0.98f,
                        .min_p = 1e-4f,
                        .repetition_penalty = 1,
                        .top_k = 700,
                        .seed = 42};
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

/* ---- bias and penalties ---- */

/* Greedy shows the adjusted logits: which id is highest among two. */
static void expect_greedy(const float *logits, size_t size, fti_sampling how,
                          const int32_t *history, size_t count, int32_t wanted) {
    fti_sampler *s = sampler(size, NULL);
    assert_int_equal(sample(s, logits, how, history, count, 0).id, wanted);
    how.temperature = 1;
    how.top_k = 1;
    assert_int_equal(sample(s, logits, how, history, count, 0).id, wanted);
    fti_sampler_free(s);
}

static void biases_move_and_ban(void **state) {
    (void)state;
    static const float logits[4] = {1, 2, 3, -INFINITY};
    static const struct {
        ftk_logit_bias biases[3];
        uint32_t count;
        int32_t wanted;
    } cases[] = {
        {{{0, 1.75f}}, 1, 2},
        {{{0, 2}}, 1, 0},
        {{{2, -INFINITY}}, 1, 1},
        {{{2, -INFINITY}, {1, -INFINITY}}, 2, 0},
        {{{2, -INFINITY}, {2, 100}}, 2, 1},
        {{{2, 100}, {2, -INFINITY}}, 2, 1},
        {{{0, 1}, {0, 0.75f}, {0, 0.5f}}, 3, 0},
        {{{3, FLT_MAX}}, 1, 2},
        {{{1, FLT_MAX}, {1, FLT_MAX}, {1, FLT_MAX}}, 3, 1},
        {{{2, -FLT_MAX}, {2, -FLT_MAX}, {1, -INFINITY}}, 3, 0},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        fti_sampling how = off;
        how.biases = cases[i].biases;
        how.bias_count = cases[i].count;
        expect_greedy(logits, 4, how, NULL, 0, cases[i].wanted);
    }
}

static void a_ban_of_everything_is_refused(void **state) {
    (void)state;
    static const float logits[3] = {1, 2, -INFINITY};
    static const uint8_t mask[3] = {0, 1, 1};
    static const ftk_logit_bias biases[2] = {{1, -INFINITY}, {0, 50}};
    fti_sampler *s = sampler(3, mask);
    for (int t = 0; t < 2; t++) {
        fti_sampling how = off;
        how.temperature = (float)t;
        how.biases = biases;
        how.bias_count = 2;
        fti_sample_result result = {.id = 77};
        ftk_error err = FTK_ERROR_INIT;
        assert_int_equal(fti_sample(s, logits, &how, NULL, 0, 0, &result, &err), FTK_E_ARGUMENT);
        assert_non_null(strstr(err.message, "ban every token"));
        assert_int_equal(result.id, 77);
    }
    fti_sampler_free(s);
}

/* Powers of two: every border is exact, and a tie goes to id 0. */
static void penalties_by_hand(void **state) {
    (void)state;
    static const int32_t history[5] = {2, 1, 0, 1, 1};
    static const struct {
        float other, penalised; /* logits of ids 0 and 1; id 1 stands three times */
        float repetition, presence, frequency;
        int32_t wanted;
    } cases[] = {
        {2, 4, 2, 0, 0, 0},
        {2, 4.5f, 2, 0, 0, 1},
        {-2, -1, 2, 0, 0, 0},
        {-2, -0.75f, 2, 0, 0, 1},
        {2, 0.5f, 0.25f, 0, 0, 0},
        {2, 0.75f, 0.25f, 0, 0, 1},
        {-1, -4, 0.25f, 0, 0, 0},
        {-1, -3.5f, 0.25f, 0, 0, 1},
        {1, 3, 1, 2, 0, 0},
        {1, 3.25f, 1, 2, 0, 1},
        {1, 2.5f, 1, 0, 0.5f, 0},
        {1, 2.75f, 1, 0, 0.5f, 1},
        {1, -0.5f, 1, 0, -0.5f, 0},
        {1, -0.25f, 1, 0, -0.5f, 1},
        /* (x / 2 - 1) - 3 * 0.5; the other orders would differ. */
        {1, 7, 2, 1, 0.5f, 0},
        {1, 7.5f, 2, 1, 0.5f, 1},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        const float logits[3] = {cases[i].other, cases[i].penalised, -500};
        fti_sampling how = off;
        how.repetition_penalty = cases[i].repetition;
        how.presence_penalty = cases[i].presence;
        how.frequency_penalty = cases[i].frequency;
        const int32_t without_0[4] = {2, 1, 1, 1};
        expect_greedy(logits, 3, how, without_0, 4, cases[i].wanted);
    }
    /* Bias comes first: (1 + 3) / 4 ties with 1, where 1 / 4 + 3 would win. */
    static const ftk_logit_bias bias = {1, 3};
    static const float logits[3] = {1, 1, -500};
    fti_sampling how = off;
    how.biases = &bias;
    how.bias_count = 1;
    how.repetition_penalty = 4;
    expect_greedy(logits, 3, how, history + 3, 2, 0);
    /* The last 2 of the history are 1 1, the last 3 have 0 too. */
    static const float even[3] = {5, 5, 4.5f};
    how = off;
    how.presence_penalty = 1;
    for (uint32_t last = 0; last <= 6; last++) {
        static const int32_t wanted[7] = {0, 0, 0, 2, 2, 0, 0};
        how.penalty_last = last;
        expect_greedy(even, 3, how, history, 5, wanted[last]);
    }
}

/* Finite values stay finite, whatever the penalties. */
static void extreme_penalties(void **state) {
    (void)state;
    static const float logits[4] = {FLT_MAX, -FLT_MAX, 1, -1}, values[] = {-FLT_MAX, 0, FLT_MAX},
                       repetitions[] = {FLT_TRUE_MIN, 1, FLT_MAX};
    static const int32_t history[6] = {0, 1, 2, 3, 0, 0};
    fti_sampler *s = sampler(4, NULL);
    for (size_t i = 0; i < 27; i++) {
        fti_sampling how = plain;
        how.repetition_penalty = repetitions[i / 9];
        how.presence_penalty = values[i / 3 % 3];
        how.frequency_penalty = values[i % 3];
        how.logprobs = 4;
        for (uint64_t p = 0; p < 20; p++) {
            how.temperature = p % 2 ? FLT_MAX : 0.01f;
            fti_sample_result r = sample(s, logits, how, history, 6, p);
            assert_in_range(r.id, 0, 3);
            assert_true(!isnan(r.logprob) && r.logprob <= 0);
        }
    }
    fti_sampler_free(s);
}

/* No penalty brings back what is masked, banned or at -infinity: at this temperature
 * every finite logit is drawn often. */
static void penalties_revive_nothing(void **state) {
    (void)state;
    static const float logits[5] = {1, 2, -INFINITY, 3, 4};
    static const uint8_t mask[5] = {1, 1, 1, 0, 1};
    static const int32_t history[5] = {0, 1, 2, 3, 4};
    static const ftk_logit_bias ban = {1, -INFINITY};
    fti_sampler *s = sampler(5, mask);
    fti_sampling how = plain;
    how.temperature = FLT_MAX;
    how.repetition_penalty = 0.5f;
    how.presence_penalty = -1;
    how.frequency_penalty = -1;
    how.biases = &ban;
    how.bias_count = 1;
    uint32_t counts[5] = {0};
    for (uint64_t p = 0; p < 300; p++) counts[sample(s, logits, how, history, 5, p).id]++;
    assert_true(counts[0] > 50 && counts[4] > 50);
    assert_int_equal(counts[0] + counts[4], 300);
    fti_sampler_free(s);
}

/* ---- the definition, slowly ---- */

typedef struct slow {
    size_t size, kept;
    float *logits;
    int32_t *order;
    uint64_t *weights; /* by id; 0 for what a filter dropped */
} slow;

static const float *compared;

static int by_rank(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (compared[x] != compared[y]) return compared[x] > compared[y] ? -1 : 1;
    return (x > y) - (x < y);
}

static float clamped(double value) {
    return (float)fmin(fmax(value, -(double)FLT_MAX), (double)FLT_MAX);
}

/* One id at a time, each with its own look at the whole window and at all biases. */
static void slow_adjust(slow *z, const float *logits, const fti_sampling *how,
                        const int32_t *history, size_t count) {
    size_t window = how->penalty_last && how->penalty_last < count ? how->penalty_last : count;
    for (size_t id = 0; id < z->size; id++) {
        float x = logits[id];
        uint32_t seen = 0;
        for (uint32_t b = 0; b < how->bias_count; b++) {
            if ((size_t)how->biases[b].id != id) continue;
            x = x + how->biases[b].bias;
        }
        for (size_t i = count - window; i < count; i++) seen += (size_t)history[i] == id;
        if (seen && x > -INFINITY) {
            x = x > 0 ? clamped((double)(x / how->repetition_penalty))
                      : clamped((double)(x * how->repetition_penalty));
            x = clamped((double)(x - how->presence_penalty));
            float product = (float)seen * how->frequency_penalty;
            x = clamped((double)(x - product));
        }
        z->logits[id] = x;
    }
}

static void slow_filter(slow *z, const fti_sampling *how) {
    uint64_t total = 0, sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < z->size; i++) z->order[i] = (int32_t)i;
    compared = z->logits;
    qsort(z->order, z->size, sizeof *z->order, by_rank);
    z->kept = how->top_k && how->top_k < z->size ? how->top_k : z->size;
    memset(z->weights, 0, z->size * sizeof *z->weights);
    for (size_t i = 0; i < z->kept; i++) {
        float x = (z->logits[z->order[i]] - z->logits[z->order[0]]) / how->temperature;
        total += z->weights[z->order[i]] = (uint64_t)floor(ldexp((double)ftk_exp(x), 39));
    }
    for (; n < z->kept; n++) {
        if (n > 0 && how->top_p < 1 && (double)sum >= (double)how->top_p * (double)total) break;
        sum += z->weights[z->order[n]];
    }
    for (size_t i = n; i < z->kept; i++) z->weights[z->order[i]] = 0;
    for (size_t i = 0; i < z->size; i++)
        if (ldexp((double)z->weights[i], -39) < (double)how->min_p) z->weights[i] = 0;
}

static uint64_t high_product(uint64_t a, uint64_t b) {
    uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & 0xffffffffu);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

static int32_t slow_sample(const float *logits, size_t size, const fti_sampling *how,
                           const int32_t *history, size_t count, uint64_t position) {
    slow z = {.size = size,
              .logits = malloc(size * sizeof(float)),
              .order = malloc(size * sizeof(int32_t)),
              .weights = malloc(size * sizeof(uint64_t))};
    assert_true(z.logits && z.order && z.weights);
    slow_adjust(&z, logits, how, history, count);
    slow_filter(&z, how);
    uint64_t mass = 0, sum = 0;
    for (size_t i = 0; i < size; i++) mass += z.weights[i];
    uint64_t target = high_product(fti_random(how->seed, position, 0), mass);
    int32_t chosen = -1;
    for (size_t i = 0; i < size && chosen < 0; i++)
        if ((sum += z.weights[i]) > target) chosen = (int32_t)i;
    free(z.logits);
    free(z.order);
    free(z.weights);
    return chosen;
}

enum { SLOW_SIZE = 1500, SLOW_HISTORY = 64 };

static void random_case(uint64_t round, float *logits, int32_t *history, ftk_logit_bias *biases,
                        fti_sampling *how) {
    static const uint32_t top_k[] = {0, 1, 2, 20, SLOW_SIZE - 1, SLOW_SIZE, 5000};
    static const float top_p[] = {1, 0.95f, 0.3f, 0.999f}, min_p[] = {0, 0.05f, 0.5f};
    static const float repetition[] = {1, 1.1f, 0.5f}, presence[] = {0, 1.5f, -0.7f, 0, 0.3f};
    static const float frequency[] = {0, 0.2f, 0, 0, -0.1f, 1, 0};
    fill_random(logits, SLOW_SIZE, round);
    /* Steps of a quarter: many ties. */
    for (size_t i = 0; round % 2 && i < SLOW_SIZE; i++) logits[i] = rintf(logits[i] * 4) / 4;
    for (size_t i = 0; i < SLOW_SIZE; i += 97) logits[i] = -INFINITY;
    for (size_t i = 0; i < SLOW_HISTORY; i++)
        history[i] = (int32_t)(fti_random(round, i, 1) % (i % 2 ? 8 : SLOW_SIZE));
    for (size_t i = 0; i < SLOW_HISTORY; i++) {
        float bias = (float)(fti_random(round, i, 2) % 4096) / 128 - 16;
        biases[i] = (ftk_logit_bias){(int32_t)(fti_random(round, i, 3) % SLOW_SIZE),
                                     i % 5 ? bias : -INFINITY};
    }
    *how = (fti_sampling){.temperature = 0.3f + (float)(round % 5),
                          .top_p = top_p[round % 4],
                          .min_p = min_p[round % 3],
                          .repetition_penalty = repetition[round / 2 % 3],
                          .presence_penalty = presence[round / 3 % 5],
                          .frequency_penalty = frequency[round / 5 % 7],
                          .top_k = top_k[round % 7],
                          .penalty_last = (uint32_t)(round % 11 * 8),
                          .logprobs = (uint32_t)(round % 3 * 10),
                          .bias_count = round % 4 == 3 ? SLOW_HISTORY : 0,
                          .biases = biases,
                          .seed = round};
}

/* One sampler for all rounds, so that anything left over from one shows in the next. */
static void equals_the_slow_definition(void **state) {
    (void)state;
    static float logits[SLOW_SIZE], before[SLOW_SIZE];
    int32_t history[SLOW_HISTORY];
    ftk_logit_bias biases[SLOW_HISTORY];
    fti_sampler *s = sampler(SLOW_SIZE, NULL);
    size_t moved = 0;
    for (uint64_t round = 0; round < 840; round++) {
        fti_sampling how, bare;
        random_case(round, logits, history, biases, &how);
        memcpy(before, logits, sizeof before);
        int32_t id = sample(s, logits, how, history, SLOW_HISTORY, round).id;
        assert_memory_equal(logits, before, sizeof before);
        assert_int_equal(id, slow_sample(logits, SLOW_SIZE, &how, history, SLOW_HISTORY, round));
        bare = how;
        bare.bias_count = 0;
        bare.repetition_penalty = 1;
        bare.presence_penalty = bare.frequency_penalty = 0;
        moved += id != sample(s, logits, bare, history, SLOW_HISTORY, round).id;
        how.temperature = 0;
        id = sample(s, logits, how, history, SLOW_HISTORY, round).id;
        how.temperature = 1;
        how.top_k = 1;
        assert_int_equal(id, slow_sample(logits, SLOW_SIZE, &how, history, SLOW_HISTORY, round));
    }
    assert_true(moved > 100);
    fti_sampler_free(s);
}

/* A failed call leaves nothing behind that the next one would see. */
static void failures_leave_no_trace(void **state) {
    (void)state;
    static float logits[SLOW_SIZE], damaged[SLOW_SIZE];
    int32_t history[SLOW_HISTORY], broken[SLOW_HISTORY];
    ftk_logit_bias biases[SLOW_HISTORY];
    fti_sampling how;
    random_case(3, logits, history, biases, &how);
    how.presence_penalty = 2;
    how.penalty_last = 0;
    memcpy(damaged, logits, sizeof damaged);
    memcpy(broken, history, sizeof broken);
    damaged[SLOW_SIZE - 1] = NAN;
    broken[SLOW_HISTORY - 1] = SLOW_SIZE;
    fti_sampler *s = sampler(SLOW_SIZE, NULL);
    for (uint64_t p = 0; p < 50; p++) {
        fti_sample_result r = {0};
        assert_int_equal(fti_sample(s, damaged, &how, history, SLOW_HISTORY, p, &r, NULL),
                         FTK_E_NON_FINITE);
        assert_int_equal(fti_sample(s, logits, &how, broken, SLOW_HISTORY, p, &r, NULL),
                         FTK_E_ARGUMENT);
        assert_int_equal(sample(s, logits, how, history, SLOW_HISTORY, p).id,
                         slow_sample(logits, SLOW_SIZE, &how, history, SLOW_HISTORY, p));
    }
    fti_sampler_free(s);
}

/* The walk goes by rising id: with equal weights, the draw is the random number. */
static void equal_weights_split_the_range(void **state) {
    (void)state;
    static const float equal[4] = {1, 1, 1, 1};
    fti_sampler *s = sampler(4, NULL);
    for (uint64_t p = 0; p < 500; p++)
        assert_int_equal(draw(s, equal, plain, p), fti_random(plain.seed, p, 0) >> 62);
    fti_sampler_free(s);
}

/* ---- log-probabilities ---- */

static void expect_near(float found, long double wanted) {
    long double error = fabsl((long double)found - wanted);
    if (!(error <= 2e-6L * (1 + fabsl(wanted))))
        fail_msg("%.9g, wanted %.9Lg", (double)found, wanted);
}

/* Against the softmax of the raw logits, whatever the sampling. */
static void logprobs_are_of_the_raw_softmax(void **state) {
    (void)state;
    static float logits[SLOW_SIZE];
    static uint8_t mask[SLOW_SIZE];
    static float masked[SLOW_SIZE];
    int32_t history[SLOW_HISTORY], order[SLOW_SIZE];
    ftk_logit_bias biases[SLOW_HISTORY];
    for (size_t i = 0; i < SLOW_SIZE; i++) mask[i] = i % 7 != 2;
    fti_sampler *s = sampler(SLOW_SIZE, mask);
    for (uint64_t round = 0; round < 200; round++) {
        fti_sampling how;
        random_case(round, logits, history, biases, &how);
        if (round % 10 == 0) how.temperature = 0;
        how.logprobs = 1 + (uint32_t)round % FTI_MAX_LOGPROBS;
        long double sum = 0;
        for (size_t i = 0; i < SLOW_SIZE; i++) {
            masked[i] = mask[i] ? logits[i] : -INFINITY;
            if (!mask[i]) logits[i] = i % 2 ? NAN : INFINITY;
            sum += expl((long double)masked[i]);
            order[i] = (int32_t)i;
        }
        compared = masked;
        qsort(order, SLOW_SIZE, sizeof *order, by_rank);
        fti_sample_result r = sample(s, logits, how, history, SLOW_HISTORY, round);
        assert_int_equal(r.top_count, how.logprobs);
        for (size_t i = 0; i < r.top_count; i++) {
            assert_int_equal(r.top_ids[i], order[i]);
            expect_near(r.top_logprobs[i], (long double)masked[order[i]] - logl(sum));
            if (r.top_ids[i] == r.id) assert_true(r.logprob == r.top_logprobs[i]);
        }
        expect_near(r.logprob, (long double)masked[r.id] - logl(sum));
        how.logprobs = 0;
        fti_sample_result without = sample(s, logits, how, history, SLOW_HISTORY, round);
        assert_int_equal(without.id, r.id);
        assert_int_equal(without.top_count, 0);
        assert_true(without.logprob == 0);
    }
    fti_sampler_free(s);
}

static void logprobs_sum_to_one(void **state) {
    (void)state;
    static const float cases[][8] = {{0.5f, -1, 2, 0, 1.5f, -3, 2, 1},
                                     {5000, 5001, 4999, 5000, 5000, 5002, 5000, 4990},
                                     {-7, -7, -7, -7, -7, -7, -7, -7},
                                     {0, -INFINITY, 40, 3, -INFINITY, 39, -40, 0}};
    static const uint32_t counts[] = {8, 8, 8, 6};
    fti_sampler *s = sampler(8, NULL);
    for (size_t c = 0; c < FTI_COUNT(cases); c++) {
        fti_sampling how = plain;
        how.logprobs = 8;
        fti_sample_result r = sample(s, cases[c], how, NULL, 0, c);
        double sum = 0;
        assert_int_equal(r.top_count, counts[c]);
        for (size_t i = 0; i < r.top_count; i++) sum += exp((double)r.top_logprobs[i]);
        assert_true(fabs(sum - 1) < 2e-6);
        for (size_t i = 1; i < r.top_count; i++)
            assert_true(
                r.top_logprobs[i] < r.top_logprobs[i - 1] ||
                (r.top_logprobs[i] == r.top_logprobs[i - 1] && r.top_ids[i] > r.top_ids[i - 1]));
    }
    /* A certain token; and a range that no probability has. */
    static const float certain[2] = {-2000, 3}, wide[2] = {-FLT_MAX, FLT_MAX};
    fti_sampler *two = sampler(2, NULL);
    fti_sampling how = plain;
    how.logprobs = 2;
    fti_sample_result r = sample(two, certain, how, NULL, 0, 0);
    assert_true(r.logprob == 0 && r.top_logprobs[1] == -2003);
    r = sample(two, wide, how, NULL, 0, 0);
    assert_true(r.logprob == 0 && r.top_logprobs[1] == -INFINITY);
    fti_sampler_free(s);
    fti_sampler_free(two);
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
        fti_sampling how = plain;
        how.temperature = 50;
        how.top_p = p % 2 ? 1 : 0.9f;
        how.top_k = (uint32_t)(p % 40);
        how.logprobs = FTI_MAX_LOGPROBS;
        fti_sample_result result = sample(s, logits, how, NULL, 0, p);
        assert_int_equal(result.id % 3, 1);
        assert_int_equal(result.top_count, FTI_MAX_LOGPROBS);
        for (size_t i = 0; i < result.top_count; i++) assert_int_equal(result.top_ids[i] % 3, 1);
    }
    fti_sampler_free(s);
}

/* A million unlikely tokens weigh something together: e^-22 is 150 units of 2^-39. */
static void long_tails_count(void **state) {
    (void)state;
    enum { SIZE = 1 << 20 };
    float *logits = malloc(SIZE * sizeof *logits);
    assert_non_null(logits);
    for (size_t i = 0; i < SIZE; i++) logits[i] = i == 3 ? 2 : -20;
    fti_sampler *s = sampler(SIZE, NULL);
    fti_sampling how = off;
    how.logprobs = 2;
    fti_sample_result r = sample(s, logits, how, NULL, 0, 0);
    long double sum = logl(1 + (SIZE - 1) * expl(-22));
    assert_int_equal(r.id, 3);
    expect_near(r.logprob, -sum);
    expect_near(r.top_logprobs[1], -22 - sum);
    assert_int_equal(r.top_ids[1], 0);
    fti_sampler_free(s);
    free(logits);
}

int main(void) {
    const struct CMUnitTest test_sampler[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(random_uses_all_its_arguments),
        cmocka_unit_test(sampling_ranges),
        cmocka_unit_test(penalty_ranges),
        cmocka_unit_test(bias_ranges),
        cmocka_unit_test(history_is_checked_where_it_is_read),
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
        cmocka_unit_test(biases_move_and_ban),
        cmocka_unit_test(a_ban_of_everything_is_refused),
        cmocka_unit_test(penalties_by_hand),
        cmocka_unit_test(extreme_penalties),
        cmocka_unit_test(penalties_revive_nothing),
        cmocka_unit_test(equals_the_slow_definition),
        cmocka_unit_test(failures_leave_no_trace),
        cmocka_unit_test(equal_weights_split_the_range),
        cmocka_unit_test(logprobs_are_of_the_raw_softmax),
        cmocka_unit_test(logprobs_sum_to_one),
        cmocka_unit_test(long_tails_count),
        cmocka_unit_test(the_mask_is_copied_and_kept),
    };
    return cmocka_run_group_tests_name("test_sampler", test_sampler, NULL, NULL);
}
