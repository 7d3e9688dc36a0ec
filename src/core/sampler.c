/*
 * sampler.c: see sampler.h.
 *
 * Candidates are the allowed ids whose adjusted logit is finite, ranked by it,
 * highest first, then by id. A weight is exp((logit - highest) / temperature),
 * rounded down to a multiple of 2^-39 and held as an integer: sums of weights are
 * exact, whoever adds them in whatever order. Filters narrow the set of candidates;
 * the draw walks what is left by rising id, so nothing has to be sorted for it.
 *
 * Ranks are needed by top-k and top-p alone, and found by heaps: k of n cost
 * n + k log n, and the usual nucleus of a large vocabulary is a handful.
 */
#include "core/sampler.h"

#include <float.h>
#include <math.h>

#include "core/philox.h"
#include "freetoken/device/math.h"

/* Weights as integers. Two to the 24 of them, the largest vocabulary, fit 64 bits. */
#define WEIGHT_ONE 0x1p39f
#define WEIGHTLESS (-28.0f) /* exp of it is below 2^-39 */

/* Loops over the vocabulary that are compiled twice: without the instruction a fused
 * multiply-add is a call, and the bits are the same. */
#define BULK __attribute__((always_inline)) static inline

struct fti_sampler {
    size_t size;
    uint8_t *allowed; /* NULL: all */
    uint64_t *keys;   /* [size] candidates; an unsigned key sorts as their ranks do */
    float *values;    /* [size] adjusted logits; of chosen candidates, then their weights */
    uint32_t *counts; /* [size] occurrences in the history; all 0 between calls */
};

uint64_t fti_random(uint64_t seed, uint64_t position, uint32_t draw) {
    uint32_t words[4] = {(uint32_t)position, (uint32_t)(position >> 32), draw, 0};
    fti_philox4x32_10(words, (uint32_t)seed, (uint32_t)(seed >> 32));
    return (uint64_t)words[1] << 32 | words[0];
}

/* ---- arguments ---- */

static ftk_status out_of_range(ftk_error *err, const char *name, float found, const char *wanted) {
    return fti_fail(err, FTK_E_ARGUMENT, "sampling: %s is %g; wanted %s", name, (double)found,
                    wanted);
}

static ftk_status check_biases(const fti_sampling *sampling, size_t vocabulary, ftk_error *err) {
    if (sampling->bias_count > FTI_MAX_BIASES)
        return fti_fail(err, FTK_E_ARGUMENT, "sampling: %u logit biases; wanted at most %d",
                        sampling->bias_count, FTI_MAX_BIASES);
    if (sampling->bias_count > 0 && !sampling->biases)
        return fti_fail(err, FTK_E_ARGUMENT,
                        "sampling: %u logit biases at NULL; wanted their address, or a count of 0",
                        sampling->bias_count);
    for (uint32_t i = 0; i < sampling->bias_count; i++) {
        const ftk_logit_bias *b = &sampling->biases[i];
        if (b->id < 0 || (size_t)b->id >= vocabulary)
            return fti_fail(err, FTK_E_ARGUMENT,
                            "sampling: logit bias %u is for token %d; wanted an id from 0 to %zu",
                            i, b->id, vocabulary - 1);
        if (!(b->bias <= FLT_MAX))
            return fti_fail(err, FTK_E_ARGUMENT,
                            "sampling: logit bias %u, of token %d, is %g; wanted a finite number, "
                            "or -inf to ban the token",
                            i, b->id, (double)b->bias);
    }
    return FTK_OK;
}

/* Written so that NaN fails every comparison. */
ftk_status fti_sampling_check(const fti_sampling *sampling, size_t vocabulary, ftk_error *err) {
    const fti_sampling *s = sampling;
    if (!(s->temperature >= 0 && isfinite(s->temperature)))
        return out_of_range(err, "temperature", s->temperature,
                            "a finite number of at least 0 (0 is greedy)");
    if (!(s->top_p > 0 && s->top_p <= 1))
        return out_of_range(err, "top_p", s->top_p, "more than 0 and at most 1 (1 is off)");
    if (!(s->min_p >= 0 && s->min_p < 1))
        return out_of_range(err, "min_p", s->min_p, "at least 0 (off) and less than 1");
    if (!(s->repetition_penalty > 0 && isfinite(s->repetition_penalty)))
        return out_of_range(err, "repetition_penalty", s->repetition_penalty,
                            "a finite number above 0 (1 is off)");
    if (!isfinite(s->presence_penalty))
        return out_of_range(err, "presence_penalty", s->presence_penalty,
                            "a finite number (0 is off)");
    if (!isfinite(s->frequency_penalty))
        return out_of_range(err, "frequency_penalty", s->frequency_penalty,
                            "a finite number (0 is off)");
    if (s->logprobs > FTI_MAX_LOGPROBS)
        return fti_fail(err, FTK_E_ARGUMENT, "sampling: logprobs is %u; wanted at most %d",
                        s->logprobs, FTI_MAX_LOGPROBS);
    return check_biases(s, vocabulary, err);
}

static bool mask_has_one(size_t size, const uint8_t *allowed) {
    if (!allowed) return true;
    for (size_t i = 0; i < size; i++)
        if (allowed[i]) return true;
    return false;
}

ftk_status fti_sampler_create(size_t size, const uint8_t *allowed, fti_sampler **out,
                              ftk_error *err) {
    *out = NULL;
    if (size == 0 || size > FTI_MAX_VOCABULARY)
        return fti_fail(err, FTK_E_ARGUMENT,
                        "sampler: vocabulary of %zu tokens; wanted 1 to %d, the number of logits",
                        size, FTI_MAX_VOCABULARY);
    if (!mask_has_one(size, allowed))
        return fti_fail(err, FTK_E_ARGUMENT,
                        "sampler: all %zu tokens are masked out; allow at least one", size);
    fti_sampler *s = fti_calloc(1, sizeof *s);
    if (!s) return fti_no_memory(err, sizeof *s, "the sampler");
    s->size = size;
    s->keys = fti_calloc(size, sizeof *s->keys);
    s->values = fti_calloc(size, sizeof *s->values);
    s->counts = fti_calloc(size, sizeof *s->counts);
    if (allowed) s->allowed = fti_calloc(size, 1);
    if (!s->keys || !s->values || !s->counts || (allowed && !s->allowed)) {
        fti_sampler_free(s);
        size_t each = sizeof *s->keys + sizeof *s->values + sizeof *s->counts + 1;
        return fti_no_memory(err, (uint64_t)size * each, "the sampler");
    }
    if (allowed) memcpy(s->allowed, allowed, size);
    *out = s;
    return FTK_OK;
}

void fti_sampler_free(fti_sampler *sampler) {
    if (!sampler) return;
    fti_free(sampler->allowed);
    fti_free(sampler->keys);
    fti_free(sampler->values);
    fti_free(sampler->counts);
    fti_free(sampler);
}

static bool is_allowed(const fti_sampler *s, size_t id) {
    return !s->allowed || s->allowed[id];
}

/* Lowest id among the highest logits of the allowed ids. */
static ftk_status find_best(const fti_sampler *s, const float *logits, uint64_t position,
                            size_t *best, ftk_error *err) {
    float highest = -INFINITY;
    for (size_t i = 0; i < s->size; i++) {
        if (!is_allowed(s, i)) continue;
        if (!(logits[i] <= FLT_MAX))
            return fti_fail(err, FTK_E_NON_FINITE,
                            "logits for position %llu: token %zu has %g; wanted finite values: the "
                            "model's computation overflowed or its weights are damaged",
                            (unsigned long long)position, i, (double)logits[i]);
        if (logits[i] > highest) {
            highest = logits[i];
            *best = i;
        }
    }
    if (highest > -INFINITY) return FTK_OK;
    return fti_fail(err, FTK_E_NON_FINITE,
                    "logits for position %llu: every allowed token has -inf; wanted at least one "
                    "finite value: the model's computation overflowed or its weights are damaged",
                    (unsigned long long)position);
}

/* ---- bias and penalties ---- */

/* The part of the history that penalties look at. */
typedef struct window {
    const int32_t *ids;
    size_t count;
} window;

static bool has_penalty(const fti_sampling *how) {
    return how->repetition_penalty != 1 || how->presence_penalty != 0 ||
           how->frequency_penalty != 0;
}

static ftk_status open_window(const fti_sampler *s, const fti_sampling *how, const int32_t *history,
                              size_t count, window *out, ftk_error *err) {
    *out = (window){0};
    if (!has_penalty(how) || count == 0) return FTK_OK;
    if (!history)
        return fti_fail(err, FTK_E_ARGUMENT,
                        "sampling: a history of %zu tokens at NULL; wanted its address, or a count "
                        "of 0",
                        count);
    size_t from = how->penalty_last > 0 && how->penalty_last < count ? count - how->penalty_last
                                                                     : 0;
    for (size_t i = from; i < count; i++)
        if (history[i] < 0 || (size_t)history[i] >= s->size)
            return fti_fail(err, FTK_E_ARGUMENT,
                            "sampling: token %zu of the history is %d; wanted an id from 0 to %zu",
                            i, history[i], s->size - 1);
    *out = (window){history + from, count - from};
    return FTK_OK;
}

/* A finite logit stays finite: only a ban takes a token out. */
static float saturate(float value) {
    if (value > FLT_MAX) return FLT_MAX;
    return value < -FLT_MAX ? -FLT_MAX : value;
}

static void add_biases(float *values, const fti_sampling *how) {
    for (uint32_t i = 0; i < how->bias_count; i++) {
        float *value = &values[how->biases[i].id];
        float bias = how->biases[i].bias;
        if (isinf(*value)) continue;
        *value = isinf(bias) ? -INFINITY : saturate(*value + bias);
    }
}

static float penalised(float value, uint32_t count, const fti_sampling *how) {
    if (isinf(value)) return value;
    value = saturate(value > 0 ? value / how->repetition_penalty : value * how->repetition_penalty);
    value = saturate(value - how->presence_penalty);
    return saturate(value - how->frequency_penalty * (float)count);
}

/* Two passes over the window: count, then settle each id at its first occurrence,
 * which leaves its count at 0 for the next ones and the next call. */
static void apply_penalties(fti_sampler *s, const fti_sampling *how, const window *w) {
    for (size_t i = 0; i < w->count; i++) s->counts[w->ids[i]]++;
    for (size_t i = 0; i < w->count; i++) {
        size_t id = (size_t)w->ids[i];
        if (s->counts[id] == 0) continue;
        s->values[id] = penalised(s->values[id], s->counts[id], how);
        s->counts[id] = 0;
    }
}

/* Adjusted logits into values, with -inf for whatever is no candidate. */
static void adjust(fti_sampler *s, const float *logits, const fti_sampling *how, const window *w) {
    for (size_t i = 0; i < s->size; i++) s->values[i] = is_allowed(s, i) ? logits[i] : -INFINITY;
    add_biases(s->values, how);
    apply_penalties(s, how, w);
}

static ftk_status find_best_adjusted(const fti_sampler *s, size_t *best, ftk_error *err) {
    float highest = -INFINITY;
    for (size_t i = 0; i < s->size; i++) {
        if (s->values[i] <= highest) continue;
        highest = s->values[i];
        *best = i;
    }
    if (highest > -INFINITY) return FTK_OK;
    return fti_fail(err, FTK_E_ARGUMENT,
                    "sampling: logit biases of -inf ban every token that could be chosen; leave "
                    "at least one");
}

/* ---- ranks ---- */

/* A smaller key ranks higher. Adding zero makes -0 and +0 one value. */
static uint64_t candidate_key(float logit, size_t id) {
    uint32_t bits = ftk_f32_bits(logit + 0.0f);
    uint32_t descending = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
    return (uint64_t)descending << 32 | (uint32_t)id;
}

static size_t id_of(uint64_t key) {
    return (size_t)(uint32_t)key;
}

static void sift_down(uint64_t *heap, size_t count, size_t at) {
    uint64_t key = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= key) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = key;
}

static void heapify(uint64_t *heap, size_t count) {
    for (size_t i = count / 2; i > 0; i--) sift_down(heap, count, i - 1);
}

/* Moves the smallest key behind the heap, which is left with count - 1. */
static void take_top(uint64_t *heap, size_t count) {
    uint64_t top = heap[0];
    heap[0] = heap[count - 1];
    heap[count - 1] = top;
    sift_down(heap, count - 1, 0);
}

static size_t collect_all(fti_sampler *s) {
    size_t count = 0;
    for (size_t i = 0; i < s->size; i++)
        if (!isinf(s->values[i])) s->keys[count++] = candidate_key(s->values[i], i);
    return count;
}

/* The `limit` best, in no order. Meanwhile keys are inverted, so that the heap has
 * the worst of them on top: nearly every candidate costs one comparison with it. */
static size_t collect_best(fti_sampler *s, size_t limit) {
    uint64_t *keys = s->keys;
    size_t count = 0;
    for (size_t i = 0; i < s->size; i++) {
        if (isinf(s->values[i])) continue;
        uint64_t inverted = ~candidate_key(s->values[i], i);
        if (count < limit) {
            keys[count++] = inverted;
            if (count == limit) heapify(keys, limit);
        } else if (inverted > keys[0]) {
            keys[0] = inverted;
            sift_down(keys, limit, 0);
        }
    }
    for (size_t i = 0; i < count; i++) keys[i] = ~keys[i];
    return count;
}

/* ---- weights and the draw ---- */

/* exp(x) for x <= 0. */
static float weight_of(float x) {
    return x < WEIGHTLESS ? 0.0f : ftk_exp(x);
}

static uint64_t to_integer(float weight) {
    return (uint64_t)(weight * WEIGHT_ONE);
}

/* Puts weights in the place of the candidates' logits. */
BULK void weigh_in(fti_sampler *s, size_t count, float highest, float temperature) {
    for (size_t i = 0; i < count; i++) {
        float *value = &s->values[id_of(s->keys[i])];
        *value = weight_of((*value - highest) / temperature);
    }
}

/* Sum of the weights of logits as they came in. */
BULK uint64_t raw_mass_in(const fti_sampler *s, const float *logits, float highest) {
    uint64_t sum = 0;
    for (size_t i = 0; i < s->size; i++)
        if (is_allowed(s, i)) sum += to_integer(weight_of(logits[i] - highest));
    return sum;
}

#ifdef __x86_64__
__attribute__((target("fma"))) static void weigh_fma(fti_sampler *s, size_t count, float highest,
                                                     float temperature) {
    weigh_in(s, count, highest, temperature);
}

__attribute__((target("fma"))) static uint64_t raw_mass_fma(const fti_sampler *s,
                                                            const float *logits, float highest) {
    return raw_mass_in(s, logits, highest);
}

static void weigh(fti_sampler *s, size_t count, float highest, float temperature) {
    if (__builtin_cpu_supports("fma"))
        weigh_fma(s, count, highest, temperature);
    else
        weigh_in(s, count, highest, temperature);
}

static uint64_t raw_mass(const fti_sampler *s, const float *logits, float highest) {
    if (__builtin_cpu_supports("fma")) return raw_mass_fma(s, logits, highest);
    return raw_mass_in(s, logits, highest);
}
#else
#define weigh    weigh_in
#define raw_mass raw_mass_in
#endif

/* 0 below `floor`: the smallest weight that min-p lets pass. */
static uint64_t weight_at(const fti_sampler *s, size_t i, double floor) {
    uint64_t weight = to_integer(s->values[id_of(s->keys[i])]);
    return (double)weight >= floor ? weight : 0;
}

static uint64_t mass(const fti_sampler *s, size_t count, double floor) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += weight_at(s, i, floor);
    return sum;
}

/* Keeps the fewest first candidates that hold `share` of the mass. */
static size_t cut_nucleus(fti_sampler *s, size_t count, double share) {
    double wanted = share * (double)mass(s, count, 0);
    uint64_t sum = 0;
    size_t left = count;
    heapify(s->keys, count);
    while (left > 0 && (left == count || (double)sum < wanted)) {
        take_top(s->keys, left--);
        sum += weight_at(s, left, 0);
    }
    memmove(s->keys, s->keys + left, (count - left) * sizeof *s->keys);
    return count - left;
}

/* Turns keys into ids, rising: taking the largest each time fills from behind. */
static void order_by_id(uint64_t *keys, size_t count) {
    for (size_t i = 0; i < count; i++) keys[i] = ~(uint64_t)id_of(keys[i]);
    heapify(keys, count);
    for (size_t left = count; left > 1; left--) take_top(keys, left);
    for (size_t i = 0; i < count; i++) keys[i] = ~keys[i];
}

/* floor(a * b / 2^64) */
static uint64_t multiply_high(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)a * b >> 64);
}

/* The candidate, by rising id, at which the running sum of weights passes the target.
 * Sums are exact and the target lies below the whole: the last one takes what no
 * other did. */
static size_t walk(const fti_sampler *s, size_t count, double floor, uint64_t random) {
    uint64_t target = multiply_high(random, mass(s, count, floor));
    size_t i = 0;
    for (; i + 1 < count; i++) {
        uint64_t weight = weight_at(s, i, floor);
        if (target < weight) break;
        target -= weight;
    }
    return id_of(s->keys[i]);
}

static size_t draw(fti_sampler *s, const fti_sampling *how, float highest, uint64_t position) {
    bool limited = how->top_k > 0 && how->top_k < s->size;
    bool nucleus = how->top_p < 1;
    size_t count = limited ? collect_best(s, how->top_k) : collect_all(s);
    weigh(s, count, highest, how->temperature);
    if (nucleus) count = cut_nucleus(s, count, (double)how->top_p);
    if (limited || nucleus) order_by_id(s->keys, count);
    double floor = (double)how->min_p * (double)WEIGHT_ONE;
    return walk(s, count, floor, fti_random(how->seed, position, 0));
}

/* ---- log-probabilities ---- */

/* The `limit` best by rank: insertion, since nearly every id loses to the last. */
static uint32_t find_top(const fti_sampler *s, const float *logits, uint32_t limit, uint64_t *top) {
    uint32_t count = 0;
    for (size_t i = 0; i < s->size; i++) {
        if (!is_allowed(s, i) || isinf(logits[i])) continue;
        uint64_t key = candidate_key(logits[i], i);
        if (count == limit && key > top[limit - 1]) continue;
        uint32_t at = count < limit ? count++ : limit - 1;
        for (; at > 0 && top[at - 1] > key; at--) top[at] = top[at - 1];
        top[at] = key;
    }
    return count;
}

static void report(const fti_sampler *s, const float *logits, float highest, uint32_t limit,
                   fti_sample_result *result) {
    uint64_t top[FTI_MAX_LOGPROBS];
    double total = (double)raw_mass(s, logits, highest) / (double)WEIGHT_ONE;
    double base = ftk_log_f64(total);
    result->logprob = (float)((double)logits[result->id] - (double)highest - base);
    result->top_count = find_top(s, logits, limit, top);
    for (uint32_t i = 0; i < result->top_count; i++) {
        size_t id = id_of(top[i]);
        result->top_ids[i] = (int32_t)id;
        result->top_logprobs[i] = (float)((double)logits[id] - (double)highest - base);
    }
}

/* ---- one token ---- */

/* Puts the adjusted logits into the sampler and chooses among them. */
static ftk_status choose_adjusted(fti_sampler *s, const float *logits, const fti_sampling *how,
                                  const window *w, uint64_t position, size_t *chosen,
                                  ftk_error *err) {
    adjust(s, logits, how, w);
    FTI_TRY(find_best_adjusted(s, chosen, err));
    if (how->temperature > 0) *chosen = draw(s, how, s->values[*chosen], position);
    return FTK_OK;
}

ftk_status fti_sample(fti_sampler *sampler, const float *logits, const fti_sampling *sampling,
                      const int32_t *history, size_t history_count, uint64_t position,
                      fti_sample_result *result, ftk_error *err) {
    size_t best = 0;
    window w;
    FTI_TRY(fti_sampling_check(sampling, sampler->size, err));
    FTI_TRY(open_window(sampler, sampling, history, history_count, &w, err));
    FTI_TRY(find_best(sampler, logits, position, &best, err));
    size_t chosen = best;
    if (sampling->temperature > 0 || sampling->bias_count > 0 || w.count > 0)
        FTI_TRY(choose_adjusted(sampler, logits, sampling, &w, position, &chosen, err));
    result->id = (int32_t)chosen;
    result->logprob = 0;
    result->top_count = 0;
    if (sampling->logprobs > 0) report(sampler, logits, logits[best], sampling->logprobs, result);
    return FTK_OK;
}
