/*
 * recorder.h: routing as it happens. The provider that is linked into this program is handed a
 * table of operators whose grouped_matmul notes which experts a layer uses: the routing that it
 * is called with lies in memory that can be read, since the CPU backend runs eagerly. The layer is
 * known by the bank.
 */
#ifndef FTI_BENCH_RECORDER_H
#define FTI_BENCH_RECORDER_H

#include <stdbool.h>

#include "freetoken/provider.h"
#include "trace.h"

typedef struct fti_recorder {
    fti_trace trace;       /* begun when a model's weights have been planned */
    uint32_t prompt_count; /* positions below it are rows of prompts */
    bool on;               /* notes nothing while it is false */
    const char *fault;     /* what could not be noted; NULL: nothing */
} fti_recorder;

/* An entry that gives `real`'s provider behind that table, recording into `into`, which outlives
 * every engine that is opened with it. One at a time. */
ftk_provider_entry fti_recorder_entry(ftk_provider_entry real, fti_recorder *into);

#endif
