/*
 * steps.h: which rows of which requests run next. A pure decision over counts.
 *
 * Every request of which only the token chosen last has not run gets one row. What room the
 * step has left goes to those that have more to catch up with, their prompts, or after a
 * preemption also tokens chosen before (below: prompts): to those of the highest priority first,
 * inside a priority to those that were admitted first. So that no prompt stands still behind others
 * that keep coming, an eighth of the room, at least one row, goes to the one that was admitted
 * first before that.
 */
#ifndef FTI_STEPS_H
#define FTI_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FTI_FIRST_PROMPT_SHARE 8u /* one part in so many */

typedef struct fti_request_counts {
    uint64_t prompt;   /* tokens of the prompt */
    uint64_t chosen;   /* tokens chosen so far, of which the last has not run */
    uint64_t computed; /* positions that have run */
    uint64_t cut;      /* no step runs rows before and after this position; 0: none */
    uint32_t chunk;    /* most rows of a prompt in one step, at least 1 */
    int32_t priority;  /* the larger, the sooner */
} fti_request_counts;

typedef struct fti_step_share {
    uint64_t first; /* position of the first row */
    uint32_t rows;  /* 0: this request takes no part */
    bool decode;    /* the token chosen last, as against a piece of the prompt */
    bool samples;   /* its last row is followed by a new token */
} fti_step_share;

/* Shares of `count` running requests, in order of admission, in one step of at most
 * `most_rows` rows (at least `count`). Returns the rows of the step. */
uint32_t fti_next_step(const fti_request_counts *requests, size_t count, uint32_t most_rows,
                       fti_step_share *shares);

#endif
