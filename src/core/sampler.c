/*
 * sampler.c: see sampler.h.
 *
 * Candidates are the allowed ids with a finite logit, ordered by logit, highest
 * first, then by id. Every filter keeps a prefix of that order: top-k by count,
 * top-p by mass, min-p by weight relative to the best. So candidates are put in
 * order lazily, by popping a heap: k of n cost n + k log n, and the usual draw
 * from a large vocabulary looks at a handful; with top-k the heap holds no more
 * than k from the start. Weights are doubles; masses are
 * added in candidate order, except that the mass of the whole vocabulary, which
 * is needed before anything is ordered, is added by rising id.
 */
#include "core/sampler.h"

#include <float.h>
#include <math.h>

#include "core/philox.h"

struct fti_sampler {
    size_t size;
    uint8_t *allowed; /* NULL: all */
    uint64_t *keys;   /* candidates; an unsigned key sorts as the order above does */
};

uint64_t fti_random(uint64_t seed, uint64_t position, uint32_t draw) {
    uint32_t words[4] = {(uint32_t)position, (uint32_t)(position >> 32), draw, 0};
    fti_philox4x32_10(words, (uint32_t)seed, (uint32_t)(seed >> 32));
    return (uint64_t)words[1] << 32 | words[0];
}

/* Written so that NaN fails every comparison. */
ftk_status fti_sampling_check(const fti_sampling *sampling, ftk_error *err) {
    if (!(sampling->temperature >= 0 && isfinite(sampling->temperature)))
        return fti_fail(err, FTK_E_ARGUMENT,
                        "sampling: temperature is %g; wanted a finite number of at least 0 (0 is "
                        "greedy)",
                        (double)sampling->temperature);
    if (!(sampling->top_p > 0 && sampling->top_p <= 1))
        return fti_fail(err, FTK_E_ARGUMENT,
                        "sampling: top_p is %g; wanted more than 0 and at most 1 (1 is off)",
                        (double)sampling->top_p);
    if (!(sampling->min_p >= 0 && sampling->min_p < 1))
        return fti_fail(err, FTK_E_ARGUMENT,
                        "sampling: min_p is %g; wanted at least 0 (off) and less than 1",
                        (double)sampling->min_p);
    return FTK_OK;
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
    if (size == 0 || size > INT32_MAX)
        return fti_fail(err, FTK_E_ARGUMENT,
                        "sampler: vocabulary of %zu tokens; wanted 1 to %d, the number of logits",
                        size, INT32_MAX);
    if (!mask_has_one(size, allowed))
        return fti_fail(err, FTK_E_ARGUMENT,
                        "sampler: all %zu tokens are masked out; allow at least one", size);
    fti_sampler *sampler = fti_calloc(1, sizeof *sampler);
    if (!sampler) return fti_no_memory(err, sizeof *sampler, "the sampler");
    sampler->size = size;
    sampler->keys = fti_calloc(size, sizeof *sampler->keys);
    if (allowed) sampler->allowed = fti_calloc(size, 1);
    if (!sampler->keys || (allowed && !sampler->allowed)) {
        fti_sampler_free(sampler);
        return fti_no_memory(err, (uint64_t)size * (sizeof *sampler->keys + 1), "the sampler");
    }
    if (allowed) memcpy(sampler->allowed, allowed, size);
    *out = sampler;
    return FTK_OK;
}

void fti_sampler_free(fti_sampler *sampler) {
    if (!sampler) return;
    fti_free(sampler->allowed);
    fti_free(sampler->keys);
    fti_free(sampler);
}

/* Lowest id among the highest logits. */
static ftk_status find_best(const fti_sampler *sampler, const float *logits, uint64_t position,
                            size_t *best, ftk_error *err) {
    float highest = -INFINITY;
    for (size_t i = 0; i < sampler->size; i++) {
        if (sampler->allowed && !sampler->allowed[i]) continue;
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

/* A smaller key is a better candidate. Adding zero makes -0 and +0 one value. */
static uint64_t candidate_key(float logit, size_t id) {
    float value = logit + 0.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t descending = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
    return (uint64_t)descending << 32 | (uint32_t)id;
}

/* One choice: keys[0, live) is a heap with the best on top, and behind it lie the
 * candidates taken so far, the i-th at keys[count - 1 - i]. */
typedef struct choice {
    uint64_t *keys;
    size_t count;
    size_t live;
    const float *logits;
    double highest;
    double temperature;
    double min_weight;
} choice;

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

static size_t candidate(choice *c, size_t i) {
    while (c->count - c->live <= i) {
        uint64_t top = c->keys[0];
        c->live--;
        c->keys[0] = c->keys[c->live];
        c->keys[c->live] = top;
        sift_down(c->keys, c->live, 0);
    }
    return (size_t)(uint32_t)c->keys[c->count - 1 - i];
}

/* Probability relative to the best candidate, whose weight is exactly 1. */
static double weight(const choice *c, size_t id) {
    return exp(((double)c->logits[id] - c->highest) / c->temperature);
}

static void heapify(uint64_t *heap, size_t count) {
    for (size_t i = count / 2; i > 0; i--) sift_down(heap, count, i - 1);
}

static bool is_candidate(const fti_sampler *sampler, const float *logits, size_t id) {
    return (!sampler->allowed || sampler->allowed[id]) && !isinf(logits[id]);
}

static void collect_all(choice *c, const fti_sampler *sampler) {
    for (size_t i = 0; i < sampler->size; i++)
        if (is_candidate(sampler, c->logits, i))
            c->keys[c->count++] = candidate_key(c->logits[i], i);
}

/* Meanwhile the keys are inverted, so that the heap has the worst of the best on
 * top: nearly every candidate costs one comparison with it. */
static void collect_best(choice *c, const fti_sampler *sampler, size_t limit) {
    for (size_t i = 0; i < sampler->size; i++) {
        if (!is_candidate(sampler, c->logits, i)) continue;
        uint64_t inverted = ~candidate_key(c->logits[i], i);
        if (c->count < limit) {
            c->keys[c->count++] = inverted;
            if (c->count == limit) heapify(c->keys, limit);
        } else if (inverted > c->keys[0]) {
            c->keys[0] = inverted;
            sift_down(c->keys, limit, 0);
        }
    }
    for (size_t i = 0; i < c->count; i++) c->keys[i] = ~c->keys[i];
}

/* Mass of all candidates whose weight reaches `floor`, while they lie by id. */
static double mass_of_all(const choice *c, double floor) {
    double mass = 0;
    for (size_t i = 0; i < c->count; i++) {
        double w = weight(c, (size_t)(uint32_t)c->keys[i]);
        if (w >= floor) mass += w;
    }
    return mass;
}

static double mass_in_order(choice *c, double floor) {
    double mass = 0;
    for (size_t i = 0; i < c->count; i++) {
        double w = weight(c, candidate(c, i));
        if (w < floor) break;
        mass += w;
    }
    return mass;
}

/* Shortens `kept` to the fewest first candidates that hold `share` of `mass`, and
 * then to those that min-p lets pass; returns their mass. */
static double cut_nucleus(choice *c, size_t *kept, double share, double mass) {
    double sum = 0, wanted = share * mass;
    for (size_t i = 0; i < *kept; i++) {
        double w = weight(c, candidate(c, i));
        if (w < c->min_weight || sum >= wanted) {
            *kept = i;
            break;
        }
        sum += w;
    }
    return sum;
}

/* First candidate at which the running mass passes `target`. Rounding can leave
 * the sum a hair short of it: then the last one that has any mass. */
static size_t pick(choice *c, size_t kept, double target) {
    size_t chosen = candidate(c, 0);
    double sum = 0;
    for (size_t i = 0; i < kept && sum <= target; i++) {
        size_t id = candidate(c, i);
        double w = weight(c, id);
        if (w < c->min_weight || w <= 0) break;
        sum += w;
        chosen = id;
    }
    return chosen;
}

static size_t choose(choice *c, const fti_sampler *sampler, const fti_sampling *sampling,
                     uint64_t position) {
    bool limited = sampling->top_k > 0 && sampling->top_k < sampler->size;
    bool nucleus = sampling->top_p < 1;
    /* Top-p comes before min-p, so its mass counts what min-p will drop. */
    double floor = nucleus ? 0 : c->min_weight, mass = 0;
    if (limited) {
        collect_best(c, sampler, sampling->top_k);
    } else {
        collect_all(c, sampler);
        mass = mass_of_all(c, floor);
    }
    c->live = c->count;
    heapify(c->keys, c->count);
    if (limited) mass = mass_in_order(c, floor);
    size_t kept = c->count;
    if (nucleus) mass = cut_nucleus(c, &kept, (double)sampling->top_p, mass);
    double unit = (double)(fti_random(sampling->seed, position, 0) >> 11) * 0x1p-53;
    return pick(c, kept, unit * mass);
}

ftk_status fti_sample(fti_sampler *sampler, const float *logits, const fti_sampling *sampling,
                      uint64_t position, int32_t *id, ftk_error *err) {
    size_t chosen = 0;
    FTI_TRY(fti_sampling_check(sampling, err));
    FTI_TRY(find_best(sampler, logits, position, &chosen, err));
    if (sampling->temperature > 0) {
        choice c = {.keys = sampler->keys,
                    .logits = logits,
                    .highest = (double)logits[chosen],
                    .temperature = (double)sampling->temperature,
                    .min_weight = (double)sampling->min_p};
        chosen = choose(&c, sampler, sampling, position);
    }
    *id = (int32_t)chosen;
    return FTK_OK;
}
