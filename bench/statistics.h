/*
 * statistics.h: what a series of measured values says, and whether two series
 * differ. Everything is repeatable: resampling draws from a counter-based generator
 * with a fixed key, so the same values always give the same intervals.
 *
 * Noise is the spread of single values relative to their median: 1.4826 times the
 * median absolute deviation, divided by the median. For values that scatter normally
 * it is the relative standard deviation, and single outliers do not move it.
 */
#ifndef FTI_BENCH_STATISTICS_H
#define FTI_BENCH_STATISTICS_H

#include <stdbool.h>
#include <stddef.h>

/* Fewer samples than these support no claim. */
#define FTI_BENCH_CLAIM_SAMPLES 10u

typedef struct fti_bench_statistics {
    size_t count;
    double median, min, max;
    double low, high; /* 95 % bootstrap interval of the median; of one value: itself */
    double noise;     /* see above; 0 if the median is 0 */
} fti_bench_statistics;

/* Of `count` > 0 values, which keep their order. An even number has the mean of its two
 * middle values as median. */
fti_bench_statistics fti_bench_describe(const double *values, size_t count);

typedef enum {
    FTI_BENCH_NO_DIFFERENCE, /* the interval holds 1, it is below the noise, or that is unknown */
    FTI_BENCH_B_GREATER,
    FTI_BENCH_B_LESS
} fti_bench_difference;

typedef struct fti_bench_ratio {
    fti_bench_statistics of; /* the ratios B / A; its noise is what a difference must exceed */
    fti_bench_difference difference;
    bool claim; /* enough samples to say so */
} fti_bench_ratio;

/* Of `count` > 0 pairs measured side by side: statistics of the ratio within each pair, so
 * that what slows both halves of a pair cancels. Values are greater than 0. */
fti_bench_ratio fti_bench_compare_pairs(const double *a, const double *b, size_t count);

/* Of two series measured at different times: the ratio of the medians, each resampled on
 * its own; the noise is the greater one of the two. min and max are those of the ratios
 * of single values. */
fti_bench_ratio fti_bench_compare_series(const double *a, size_t a_count, const double *b,
                                         size_t b_count);

#endif
