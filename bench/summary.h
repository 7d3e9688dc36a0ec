/*
 * summary.h: what a series of runs adds up to, and whether it may be believed:
 * every run of a series must have computed the same tokens.
 */
#ifndef FTI_BENCH_SUMMARY_H
#define FTI_BENCH_SUMMARY_H

#include <stdbool.h>
#include <stddef.h>

#include "freetoken/freetoken.h"

typedef struct fti_bench_spread {
    double median, min, max;
} fti_bench_spread;

/* Of `count` > 0 values, which are sorted in place. An even number has the mean of
 * its two middle values as median. */
fti_bench_spread fti_bench_spread_of(double *values, size_t count);

double fti_bench_decode_rate(const ftk_generate_result *result);  /* steps per second */
double fti_bench_prefill_rate(const ftk_generate_result *result); /* tokens per second */

/* NULL if all runs, warm-up included, delivered `tokens` tokens with one hash;
 * otherwise why the series is void. */
const char *fti_bench_void_reason(const ftk_generate_result *results, size_t count,
                                  uint64_t tokens);

#endif
