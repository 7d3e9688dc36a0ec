/*
 * steps.h: which rows of a request run next. A pure decision over counts: a
 * request runs its prompt in chunks, then one row per step.
 */
#ifndef FTI_STEPS_H
#define FTI_STEPS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fti_request_counts {
    uint64_t prompt;   /* tokens of the prompt */
    uint64_t chosen;   /* tokens chosen so far, not all of which have run */
    uint64_t computed; /* positions that have run */
} fti_request_counts;

typedef struct fti_step_choice {
    uint64_t first; /* position of the first row */
    uint32_t rows;  /* 0: nothing left to run */
    bool decode;    /* one chosen token, as against a piece of the prompt */
    bool samples;   /* its last row is followed by a new token */
} fti_step_choice;

/* At most `chunk` rows (at least 1). */
fti_step_choice fti_next_step(const fti_request_counts *counts, uint32_t chunk);

#endif
