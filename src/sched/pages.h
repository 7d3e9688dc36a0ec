/*
 * pages.h: which KV pages, state slots and units of swap space are free, and how many hold
 * those that are not. Counts only: a page is a number, and nobody here knows what lies
 * behind it. Taking is all or nothing.
 */
#ifndef FTI_PAGES_H
#define FTI_PAGES_H

#include "core/base.h"

#define FTI_PAGE_TOKENS 64u /* positions of a KV page */

typedef struct fti_numbers {
    int32_t *free;     /* a stack: the last `available` given back are taken first */
    uint32_t *holders; /* [count] who hold each, 0: it is free */
    uint32_t count;
    uint32_t available;
} fti_numbers;

bool fti_numbers_create(fti_numbers *pool, uint32_t count); /* false: out of memory */
void fti_numbers_destroy(fti_numbers *pool);
/* Takes `n` free numbers into out[n], each with one holder, or none and returns false. */
bool fti_numbers_take(fti_numbers *pool, uint32_t n, int32_t *out);
/* One holder more of each number, which must have one already. */
void fti_numbers_hold(fti_numbers *pool, const int32_t *numbers, uint32_t n);
/* One holder less of each; without any a number is free. False, and nothing happens to that
 * number, if it had none. */
bool fti_numbers_give(fti_numbers *pool, const int32_t *numbers, uint32_t n);

#endif
