/*
 * pages.h: which KV pages and state slots are free. Counts only: a page is a number,
 * and nobody here knows what lies behind it. Reservation is all or nothing.
 */
#ifndef FTI_PAGES_H
#define FTI_PAGES_H

#include "core/base.h"

#define FTI_PAGE_TOKENS 64u /* positions of a KV page */

typedef struct fti_numbers {
    int32_t *free;  /* a stack: the last `available` given back are taken first */
    uint8_t *taken; /* [count], so that giving back twice is noticed */
    uint32_t count;
    uint32_t available;
} fti_numbers;

bool fti_numbers_create(fti_numbers *pool, uint32_t count); /* false: out of memory */
void fti_numbers_destroy(fti_numbers *pool);
/* Takes `n` numbers into out[n], or none and returns false. */
bool fti_numbers_take(fti_numbers *pool, uint32_t n, int32_t *out);
/* Gives `n` numbers back. False, and nothing happens to a number that was not taken. */
bool fti_numbers_give(fti_numbers *pool, const int32_t *numbers, uint32_t n);

#endif
