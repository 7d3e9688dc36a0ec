/*
 * sampler.h: chooses the next token from a row of logits. Randomness is counter-
 * based: the draw for a position is a function of (seed, position) alone, so
 * what else runs, and in which order, cannot change it. Ties go to the lowest
 * id everywhere.
 */
#ifndef FTI_SAMPLER_H
#define FTI_SAMPLER_H

#include "core/base.h"

typedef struct fti_sampling {
    float temperature; /* 0: greedy */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1); 0: off */
    uint32_t top_k;    /* 0: off */
    uint64_t seed;
} fti_sampling;

/* FTK_E_ARGUMENT with the range if a value is outside it. */
ftk_status fti_sampling_check(const fti_sampling *sampling, ftk_error *err);

typedef struct fti_sampler fti_sampler;
/* Scratch for a vocabulary of `size`; ids for which allowed[id] is 0 are never
 * chosen (copied; NULL allows all). */
ftk_status fti_sampler_create(size_t size, const uint8_t *allowed, fti_sampler **out,
                              ftk_error *err);
void fti_sampler_free(fti_sampler *sampler);

/* The token for `position` (index of the token being chosen, prompt included).
 * FTK_E_NON_FINITE if an allowed logit is NaN or +infinity, or all are
 * -infinity. Order of filters: temperature, top-k, top-p, min-p. */
ftk_status fti_sample(fti_sampler *sampler, const float *logits, const fti_sampling *sampling,
                      uint64_t position, int32_t *id, ftk_error *err) FTI_WARN_UNUSED;

/* 64 random bits for (seed, position, draw): Philox4x32-10. */
uint64_t fti_random(uint64_t seed, uint64_t position, uint32_t draw);

#endif
