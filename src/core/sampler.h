/*
 * sampler.h: chooses the next token from a row of logits, and says how likely it
 * was. Randomness is counter-based: the draw for a position is a function of
 * (seed, position) alone, so what else runs, and in which order, cannot change it.
 * Ties go to the lowest id everywhere.
 *
 * In this order: logit bias, repetition, presence and frequency penalty,
 * temperature, top-k, top-p, min-p, draw. docs/numerics.md ("Sampling") defines each
 * to the bit, in f32 and integers, so that a device can take the host's place.
 */
#ifndef FTI_SAMPLER_H
#define FTI_SAMPLER_H

#include "core/base.h"
#include "freetoken/freetoken.h"

enum {
    FTI_MAX_LOGPROBS = 20,
    FTI_MAX_BIASES = 1024,
    FTI_MAX_VOCABULARY = 1 << 24 /* the sum of weights then fits 64 bits */
};

typedef struct fti_sampling {
    float temperature;            /* 0: greedy; bias and penalties still apply */
    float top_p;                  /* (0, 1]; 1: off */
    float min_p;                  /* [0, 1); 0: off */
    float repetition_penalty;     /* above 0; 1: off */
    float presence_penalty;       /* 0: off; a negative one favours repetition */
    float frequency_penalty;      /* the same, for each occurrence */
    uint32_t top_k;               /* 0: off */
    uint32_t penalty_last;        /* tokens that penalties look back on; 0: all of history */
    uint32_t logprobs;            /* most likely tokens to report; 0: no log-probabilities */
    uint32_t bias_count;          /* at most FTI_MAX_BIASES */
    const ftk_logit_bias *biases; /* borrowed; an id that comes twice gets both */
    uint64_t seed;
} fti_sampling;

/* Everything off, greedy. */
#define FTI_SAMPLING_INIT                                                                          \
    { .top_p = 1, .repetition_penalty = 1 }

typedef struct fti_sample_result {
    int32_t id;
    /* With sampling.logprobs > 0, from the softmax of the logits as they came in, over
     * the allowed ids: */
    float logprob;                     /* of id */
    uint32_t top_count;                /* below sampling.logprobs if fewer logits are finite */
    int32_t top_ids[FTI_MAX_LOGPROBS]; /* [top_count] falling, ties by rising id */
    float top_logprobs[FTI_MAX_LOGPROBS];
} fti_sample_result;

/* FTK_E_ARGUMENT with the range if a value is outside it, or a bias names an id
 * outside the vocabulary. */
ftk_status fti_sampling_check(const fti_sampling *sampling, size_t vocabulary, ftk_error *err);

typedef struct fti_sampler fti_sampler;
/* Scratch for a vocabulary of `size`, at most FTI_MAX_VOCABULARY; ids for which
 * allowed[id] is 0 are never chosen or reported (copied; NULL allows all). One
 * thread at a time may use it; it carries nothing from one call to the next. */
ftk_status fti_sampler_create(size_t size, const uint8_t *allowed, fti_sampler **out,
                              ftk_error *err);
void fti_sampler_free(fti_sampler *sampler);

/* The token for `position` (index of the token being chosen, prompt included).
 * `history` holds the sequence so far, prompt included, oldest first; it may be NULL
 * if history_count is 0, and is read only where a penalty needs it: penalties cost
 * time in proportion to it, not to the vocabulary. Allocates nothing, leaves logits
 * as they are, and on a failure *result too. FTK_E_NON_FINITE if an allowed logit is
 * NaN or +infinity, or all are -infinity; FTK_E_ARGUMENT if sampling or an id of the
 * history is out of range, or biases ban every token. */
ftk_status fti_sample(fti_sampler *sampler, const float *logits, const fti_sampling *sampling,
                      const int32_t *history, size_t history_count, uint64_t position,
                      fti_sample_result *result, ftk_error *err) FTI_WARN_UNUSED;

/* 64 random bits for (seed, position, draw): Philox4x32-10. */
uint64_t fti_random(uint64_t seed, uint64_t position, uint32_t draw);

#endif
