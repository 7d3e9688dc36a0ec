/* queue.c: see queue.h. */
#include "sched/queue.h"

#include <stddef.h>

static void link_by_rank(fti_queue *q, fti_waiter *w) {
    fti_waiter *at = q->last;
    while (at && at->priority < w->priority) at = at->before;
    w->before = at;
    w->after = at ? at->after : q->first;
    *(w->before ? &w->before->after : &q->first) = w;
    *(w->after ? &w->after->before : &q->last) = w;
}

static void link_by_age(fti_queue *q, fti_waiter *w) {
    w->older = q->youngest;
    w->younger = NULL;
    *(w->older ? &w->older->younger : &q->oldest) = w;
    q->youngest = w;
}

void fti_queue_add(fti_queue *q, fti_waiter *w) {
    link_by_rank(q, w);
    link_by_age(q, w);
    q->count++;
}

void fti_queue_remove(fti_queue *q, fti_waiter *w) {
    *(w->before ? &w->before->after : &q->first) = w->after;
    *(w->after ? &w->after->before : &q->last) = w->before;
    if (q->oldest == w) q->overtakings = 0; /* another one is the oldest now */
    *(w->older ? &w->older->younger : &q->oldest) = w->younger;
    *(w->younger ? &w->younger->older : &q->youngest) = w->older;
    q->count--;
}

fti_waiter *fti_queue_next(const fti_queue *q) {
    return q->overtakings < FTI_OVERTAKINGS ? q->first : q->oldest;
}

static fti_wait what_lacks(const fti_waiter *w, const fti_room *room) {
    if (room->slots == 0) return FTI_WAIT_SLOT;
    return w->pages > room->pages ? FTI_WAIT_PAGES : FTI_WAIT_STEP;
}

fti_waiter *fti_queue_start(fti_queue *q, const fti_room *room) {
    fti_waiter *next = fti_queue_next(q);
    if (!next || what_lacks(next, room) != FTI_WAIT_STEP) return NULL;
    if (next != q->oldest) q->overtakings++;
    fti_queue_remove(q, next);
    return next;
}

fti_wait fti_queue_reason(const fti_queue *q, const fti_waiter *w, const fti_room *room) {
    return w == fti_queue_next(q) ? what_lacks(w, room) : FTI_WAIT_TURN;
}

const char *fti_wait_text(fti_wait reason) {
    static const char *const texts[FTI_WAIT_REASONS] = {"step", "turn", "slot", "pages"};
    return texts[reason];
}
