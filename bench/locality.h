/* locality.h: what a trace says of routing itself, whatever the slots. */
#ifndef FTI_BENCH_LOCALITY_H
#define FTI_BENCH_LOCALITY_H

#include "trace.h"

/* Of one layer. Traffic is counted in rows: one row that one expert computes is 1. */
typedef struct fti_locality {
    uint32_t touched;  /* experts that the trace uses at all */
    uint32_t for_most; /* as many of the busiest as take 90 % of the traffic */
    double entropy;    /* bits; log2(experts) if all are used alike */
    double again;      /* of a decode step's experts, those of the decode step before it: share */
    double again_even; /* the same if each step drew as many evenly */
} fti_locality;

void fti_locality_of(const fti_trace *trace, size_t layer, fti_locality *out);

#endif
