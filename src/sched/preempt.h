/*
 * preempt.h: whom to take off the machine so that another request fits. A pure decision
 * over counts.
 */
#ifndef FTI_PREEMPT_H
#define FTI_PREEMPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A running request, as a victim. Counts only what comes free with it: a page that others
 * hold too does not. */
typedef struct fti_victim {
    int32_t priority;
    uint32_t pages;
    uint32_t slots;
    bool chosen; /* the answer */
} fti_victim;

/* Marks victims among running[count], in order of admission, until `pages` and `slots` come
 * free: only such as have a priority below `below`, the lowest first, of equals the last
 * admitted. No more than are needed; none, and false, if all of them would not do. */
bool fti_choose_victims(fti_victim *running, size_t count, int32_t below, uint32_t pages,
                        uint32_t slots);

#endif
