/*
 * stats.h: what has run, counted: steps, executed batch sizes, times that requests have
 * waited; and its two forms, JSON and the text format of Prometheus. serve.c counts, under
 * its lock; nothing here allocates but the reports.
 */
#ifndef FTI_STATS_H
#define FTI_STATS_H

#include <jansson.h>

#include "core/base.h"
#include "freetoken/freetoken.h"
#include "sched/queue.h"

#define FTI_TIME_BOUNDS 27u /* 1, 2, 5, 10, ... microseconds to 500 s */

/* A distribution of seconds. counts[i]: at most bound i and above the one before; the last:
 * above all bounds. */
typedef struct fti_times {
    uint64_t counts[FTI_TIME_BOUNDS + 1];
    uint64_t count;
    double sum, least, most;
} fti_times;

void fti_times_add(fti_times *times, double seconds);
/* The value that a part `q` of all lies below: exact to its bucket, linear inside; 0 if there
 * are none. */
double fti_times_quantile(const fti_times *times, double q);

/* Experts that lie in slots, since the engine was opened; each once for a step and layer. */
typedef struct fti_expert_stats {
    uint64_t needed;  /* by rows of steps, */
    uint64_t hits;    /* and of those the ones that lay in slots; the others came from the file */
    uint64_t evicted; /* that lost their slot */
    uint64_t rings;   /* layers of steps that needed more experts than there were slots */
    uint64_t waits;   /* for bytes that had not come when it was their turn */
    uint64_t bytes;   /* that came from the file */
} fti_expert_stats;

typedef struct fti_stats {
    fti_expert_stats experts;
    uint64_t steps, replays, prompt_rows, decode_rows;
    uint64_t reused;                      /* tokens that the prefix cache had */
    uint64_t recomputed;                  /* rows that had run before a preemption */
    uint64_t preempted[2];                /* to be computed again; to swap space */
    uint64_t ended[FTK_FINISH_ERROR + 1]; /* requests, by finish */
    uint64_t held[FTI_WAIT_REASONS];      /* steps that the next request did not start with */
    uint64_t *by_rows;                    /* [rows + 1] steps that ran so many rows */
    uint64_t *by_sequences; /* [sequences + 1] steps in which so many requests decoded */
    uint32_t rows, sequences;
    fti_times queue;       /* from submission to admission */
    fti_times first_token; /* from submission to the first token */
    fti_times token;       /* between two tokens of a request */
} fti_stats;

/* With what holds at this moment. */
typedef struct fti_stats_view {
    const fti_stats *stats;
    uint32_t running, waiting;
    uint32_t waits_for[FTI_WAIT_REASONS];
    uint32_t pages_used, pages, slots_used, slots;
    uint32_t pages_cached, slots_cached; /* not used, and not free: the prefix cache has them */
    uint32_t units_used, units;          /* of swap space */
    uint64_t forgotten_pages, forgotten_snapshots;
} fti_stats_view;

bool fti_stats_create(fti_stats *stats, uint32_t rows, uint32_t sequences);
void fti_stats_destroy(fti_stats *stats);
json_t *fti_stats_json(const fti_stats_view *view); /* NULL: out of memory */
void fti_stats_text(const fti_stats_view *view, fti_text *out);

#endif
