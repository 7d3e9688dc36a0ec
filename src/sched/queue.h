/*
 * queue.h: who waits, who of them starts next, and why the others do not. A pure decision
 * over counts.
 *
 * The highest priority starts first, and inside a priority the one that came first. If it
 * does not fit, nobody starts: small requests never pass a large one whose turn it is, or
 * it would wait for ever. So that no priority starves, the oldest request of all has its
 * turn after FTI_OVERTAKINGS others have started before it, whatever its priority.
 */
#ifndef FTI_QUEUE_H
#define FTI_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#define FTI_OVERTAKINGS 7u

/* Lies in what waits; the queue owns nothing and allocates nothing. */
typedef struct fti_waiter {
    struct fti_waiter *before, *after;  /* by priority, then age */
    struct fti_waiter *older, *younger; /* by age */
    int32_t priority;                   /* the larger, the sooner */
    uint32_t pages;                     /* that it needs whole, beside one state slot */
} fti_waiter;

typedef struct fti_queue {
    fti_waiter *first, *last;
    fti_waiter *oldest, *youngest;
    uint32_t count;
    uint32_t overtakings; /* starts in a row that have left the oldest behind */
} fti_queue;

/* What is free. */
typedef struct fti_room {
    uint32_t slots;
    uint32_t pages;
} fti_room;

typedef enum fti_wait {
    FTI_WAIT_STEP,  /* for the next step, with which it starts */
    FTI_WAIT_TURN,  /* behind others */
    FTI_WAIT_SLOT,  /* for a running request to end: all state slots are taken */
    FTI_WAIT_PAGES, /* for KV pages */
    FTI_WAIT_REASONS
} fti_wait;

/* Newly arrived: younger than all. Time grows with the number of waiters of lower priority. */
void fti_queue_add(fti_queue *queue, fti_waiter *waiter);
void fti_queue_remove(fti_queue *queue, fti_waiter *waiter);
/* Whose turn it is, NULL if nobody waits. */
fti_waiter *fti_queue_next(const fti_queue *queue);
/* Takes the one whose turn it is out of the queue, if it fits whole; else NULL. */
fti_waiter *fti_queue_start(fti_queue *queue, const fti_room *room);
/* Why a waiter of this queue has not started. */
fti_wait fti_queue_reason(const fti_queue *queue, const fti_waiter *waiter, const fti_room *room);
/* "step", "turn", "slot", "pages": part of the statistics' format. */
const char *fti_wait_text(fti_wait reason);

#endif
