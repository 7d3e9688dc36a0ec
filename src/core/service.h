/*
 * service.h: the requests of an engine and what they hold, as the two files that work on it
 * see it: serve.c runs requests, holdings.c decides what of the engine's memory they have.
 */
#ifndef FTI_SERVICE_H
#define FTI_SERVICE_H

#include <pthread.h>

#include "core/engine.h"
#include "core/request.h"
#include "core/stats.h"
#include "sched/preempt.h"

struct fti_service {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* work has come, an event was queued, a step has ended */
    pthread_t thread;
    bool threaded; /* the engine's own thread runs steps */
    bool stop;     /* it shall end */
    bool stepping; /* somebody has the right to run steps */

    fti_request *requests, *last; /* in order of arrival, ended ones with events included */
    uint64_t next_id, next_event;
    fti_queue waiting;
    fti_request **runners; /* [sequences] in order of admission */
    uint32_t running;
    bool cancelling; /* a request has been cancelled that may not have ended */

    /* holdings.c */
    fti_numbers slots; /* of recurrent state: of running requests, and snapshots */
    fti_numbers pages; /* of the KV cache */
    fti_numbers units; /* of swap space, each as large as a page with all its layers */
    fti_prefix prefix;
    bool caches; /* ended requests leave something in `prefix` */
    bool overcommits;
    bool reserves;          /* there is a slot for a snapshot of every running request */
    uint32_t sequences;     /* most running requests */
    uint32_t experts, used; /* of a layer: in the banks, and that one row touches */
    fti_swap swap;
    fti_victim *victims; /* [sequences] */

    /* Of the step at hand; only the thread that runs steps touches these. */
    fti_request **batch; /* [sequences] */
    fti_request_counts *counts;
    fti_step_share *shares;
    fti_sequence *sequence_parts;

    double stepped; /* when its logits came */

    fti_stats stats;
};

double fti_now(void); /* seconds, monotonic */

/* ---- holdings.c ---- */

/* After the engine's memory is there. fti_holdings_destroy takes back what a failure left. */
ftk_status fti_holdings_create(ftk_engine *engine, fti_service *service, ftk_error *err);
void fti_holdings_destroy(fti_service *service);

/* FTK_E_DOES_NOT_FIT for a request that could never start. */
ftk_status fti_holdings_check(const fti_service *service, const fti_request *request,
                              ftk_error *err);
/* Under the lock: a request that has arrived, or was taken off the machine, waits. */
void fti_holdings_wait(ftk_engine *engine, fti_request *request);

/* Without the lock, by the thread that runs steps: starts whoever fits, preempts whom that
 * is to be done for. `failed` is called for a request whose memory could not be filled. */
void fti_holdings_admit(ftk_engine *engine,
                        void (*failed)(ftk_engine *, fti_request *, const ftk_error *));
/* Room for `positions` positions of a running request that has less, if need be by preempting
 * others or this one itself. False: somebody was preempted, the step must be decided anew. */
bool fti_holdings_grow(ftk_engine *engine, fti_request *request, uint64_t positions);
/* After a step: keeps the state of a request where others may go on from. `before`: positions
 * that it had run before. */
void fti_holdings_snapshot(ftk_engine *engine, fti_request *request, uint64_t before);

/* Under the lock: everything that a request holds, however it ends. `keep`: what it has run
 * is sound, and may be gone on from. */
void fti_holdings_release(fti_service *service, fti_request *request, bool keep);

/* Under the lock: what is free, or comes free when the prefix cache forgets. */
fti_room fti_holdings_room(const fti_service *service);
/* Under the lock: NULL if each page, slot and unit has as many holders as there are requests
 * and nodes that say they hold it, and the free ones are just the others; else what is not. */
const char *fti_holdings_fault(const fti_service *service);

#endif
