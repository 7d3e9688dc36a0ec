/*
 * scenario.h: what can be measured, as a table: how many streams, what each run yields,
 * which cause the figures may be attributed to. Running one is subject.h's.
 */
#ifndef FTI_BENCH_SCENARIO_H
#define FTI_BENCH_SCENARIO_H

#include "bench.h"
#include "row.h"
#include "sample.h"

typedef struct fti_bench_yield {
    const char *name, *unit;
    bool less_is_better;
    double (*of)(const fti_bench_sample *sample);
    bool optional; /* left out of rows in which it is not above 0 in every run */
} fti_bench_yield;

typedef struct fti_bench_scenario {
    const char *name;
    fti_bench_cause cause;
    bool many;    /* --batch streams together instead of one */
    bool opens;   /* every run opens the engine anew */
    bool by_rows; /* its histogram counts rows of prompts, not requests that decode */
    uint32_t tokens, prompt_tokens;            /* defaults; 0 prompt tokens: the one-line prompt */
    fti_bench_yield yields[FTI_BENCH_FIGURES]; /* up to the first without a name */
} fti_bench_scenario;

/* NULL, after a usage error that lists them, if there is none of that name. */
const fti_bench_scenario *fti_bench_find_scenario(const char *name);

#endif
