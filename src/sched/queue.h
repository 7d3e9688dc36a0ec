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

/* What a request takes when it starts, all or nothing; and what is free. */
typedef struct fti_room {
    uint32_t slots;   /* of recurrent state, those for its snapshots included */
    uint32_t pages;   /* of the KV cache */
    uint32_t swap;    /* units of swap space on the host */
    uint32_t experts; /* of each layer: what a row touches must fit in the device's banks */
} fti_room;

/* Lies in what waits; the queue owns nothing and allocates nothing. */
typedef struct fti_waiter {
    struct fti_waiter *before, *after;  /* by priority, then age */
    struct fti_waiter *older, *younger; /* by age */
    uint64_t arrival;                   /* its age: the smaller, the older */
    int32_t priority;                   /* the larger, the sooner */
    bool overdue;                       /* it started as the oldest, out of its priority's turn */
    fti_room needs;
} fti_waiter;

typedef struct fti_queue {
    fti_waiter *first, *last;
    fti_waiter *oldest, *youngest;
    uint32_t count;
    uint32_t overtakings; /* starts in a row that have left the oldest behind */
} fti_queue;

typedef enum fti_wait {
    FTI_WAIT_STEP,    /* for the next step, with which it starts */
    FTI_WAIT_TURN,    /* behind others */
    FTI_WAIT_SLOT,    /* for a running request to end: all state slots are taken */
    FTI_WAIT_PAGES,   /* for KV pages */
    FTI_WAIT_SWAP,    /* for swap space, without which it could not be taken off the machine */
    FTI_WAIT_EXPERTS, /* for room in the expert banks */
    FTI_WAIT_REASONS
} fti_wait;

/* By its arrival, which no other waiter has: one that was preempted is not the youngest. Time
 * grows with the number of waiters of lower priority, and of younger ones. */
void fti_queue_add(fti_queue *queue, fti_waiter *waiter);
void fti_queue_remove(fti_queue *queue, fti_waiter *waiter);
/* Whose turn it is, NULL if nobody waits. */
fti_waiter *fti_queue_next(const fti_queue *queue);
/* Takes the one whose turn it is out of the queue, if it fits whole; else NULL. Sets
 * `overdue`: such a one should not be preempted by the priorities that it has waited for. */
fti_waiter *fti_queue_start(fti_queue *queue, const fti_room *room);
/* Why a waiter of this queue has not started. */
fti_wait fti_queue_reason(const fti_queue *queue, const fti_waiter *waiter, const fti_room *room);
/* "step", "turn", "slot", "pages", "swap", "experts": part of the statistics' format. */
const char *fti_wait_text(fti_wait reason);

#endif
