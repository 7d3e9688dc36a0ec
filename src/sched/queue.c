/* queue.c: see queue.h. */
#include "sched/queue.h"

#include <stddef.h>

static bool ranks_before(const fti_waiter *a, const fti_waiter *b) {
    return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

static void link_by_rank(fti_queue *q, fti_waiter *w) {
    fti_waiter *at = q->last;
    while (at && ranks_before(w, at)) at = at->before;
    w->before = at;
    w->after = at ? at->after : q->first;
    *(w->before ? &w->before->after : &q->first) = w;
    *(w->after ? &w->after->before : &q->last) = w;
}

static void link_by_age(fti_queue *q, fti_waiter *w) {
    fti_waiter *at = q->youngest;
    while (at && at->arrival > w->arrival) at = at->older;
    w->older = at;
    w->younger = at ? at->younger : q->oldest;
    *(w->older ? &w->older->younger : &q->oldest) = w;
    *(w->younger ? &w->younger->older : &q->youngest) = w;
}

void fti_queue_add(fti_queue *q, fti_waiter *w) {
    link_by_rank(q, w);
    link_by_age(q, w);
    if (q->oldest == w) q->overtakings = 0; /* nobody has overtaken this one yet */
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
    const fti_room *n = &w->needs;
    if (n->slots > room->slots) return FTI_WAIT_SLOT;
    if (n->pages > room->pages) return FTI_WAIT_PAGES;
    if (n->swap > room->swap) return FTI_WAIT_SWAP;
    return n->experts > room->experts ? FTI_WAIT_EXPERTS : FTI_WAIT_STEP;
}

fti_waiter *fti_queue_start(fti_queue *q, const fti_room *room) {
    fti_waiter *next = fti_queue_next(q);
    if (!next || what_lacks(next, room) != FTI_WAIT_STEP) return NULL;
    if (next != q->oldest) q->overtakings++;
    next->overdue = next != q->first;
    fti_queue_remove(q, next);
    return next;
}

fti_wait fti_queue_reason(const fti_queue *q, const fti_waiter *w, const fti_room *room) {
    return w == fti_queue_next(q) ? what_lacks(w, room) : FTI_WAIT_TURN;
}

const char *fti_wait_text(fti_wait reason) {
    static const char *const texts[FTI_WAIT_REASONS] = {"step",  "turn", "slot",
                                                        "pages", "swap", "experts"};
    return texts[reason];
}
