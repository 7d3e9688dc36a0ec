/* statistics.c: see statistics.h. */
#include "statistics.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/text.h"
#include "core/philox.h"

#define RESAMPLES  2000u
#define NORMAL_MAD 1.4826 /* standard deviation of a normal distribution over its MAD */

static int compare(const void *a, const void *b) {
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median_of_sorted(const double *values, size_t count) {
    return (values[(count - 1) / 2] + values[count / 2]) / 2.0;
}

/* Sorts `values`. */
static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare);
    return median_of_sorted(values, count);
}

static double *copy_of(const double *values, size_t count) {
    double *copy = fti_cli_alloc(count, sizeof *copy);
    memcpy(copy, values, count * sizeof *copy);
    return copy;
}

static double noise_of(const double *values, size_t count, double middle) {
    if (middle == 0.0) return 0.0;
    double *distances = fti_cli_alloc(count, sizeof *distances);
    for (size_t i = 0; i < count; i++) distances[i] = fabs(values[i] - middle);
    double spread = NORMAL_MAD * median(distances, count);
    free(distances);
    return spread / fabs(middle);
}

/* Index below `count` of draw `draw` of resample `resample`; `stream` keeps two series
 * apart. */
static size_t draw_index(uint32_t resample, size_t draw, uint32_t stream, size_t count) {
    uint32_t words[4] = {(uint32_t)draw, (uint32_t)(draw >> 32), resample, stream};
    fti_philox4x32_10(words, 0x66746B62u, 0x656E6368u);
    return (size_t)(((uint64_t)words[0] * count) >> 32);
}

static double resampled_median(const double *values, size_t count, uint32_t resample,
                               uint32_t stream, double *scratch) {
    for (size_t i = 0; i < count; i++) scratch[i] = values[draw_index(resample, i, stream, count)];
    return median(scratch, count);
}

/* Sorts `estimates` and takes what lies between its 2.5th and 97.5th percentile. */
static void set_interval(fti_bench_statistics *s, double *estimates) {
    qsort(estimates, RESAMPLES, sizeof *estimates, compare);
    s->low = estimates[RESAMPLES / 40];
    s->high = estimates[RESAMPLES - 1 - RESAMPLES / 40];
}

fti_bench_statistics fti_bench_describe(const double *values, size_t count) {
    double *scratch = copy_of(values, count);
    double *estimates = fti_cli_alloc(RESAMPLES, sizeof *estimates);
    fti_bench_statistics s = {.count = count, .median = median(scratch, count)};
    s.min = scratch[0];
    s.max = scratch[count - 1];
    s.noise = noise_of(values, count, s.median);
    for (uint32_t r = 0; r < RESAMPLES; r++)
        estimates[r] = resampled_median(values, count, r, 0, scratch);
    set_interval(&s, estimates);
    free(estimates);
    free(scratch);
    return s;
}

/* One sample says nothing of the noise, and so nothing of a direction. */
static fti_bench_ratio judge(fti_bench_statistics of, size_t samples) {
    fti_bench_ratio ratio = {.of = of, .claim = samples >= FTI_BENCH_CLAIM_SAMPLES};
    bool holds_one = of.low <= 1.0 && of.high >= 1.0;
    bool within_noise = fabs(of.median - 1.0) < of.noise;
    if (samples < 2 || holds_one || within_noise) return ratio;
    ratio.difference = of.median > 1.0 ? FTI_BENCH_B_GREATER : FTI_BENCH_B_LESS;
    return ratio;
}

fti_bench_ratio fti_bench_compare_pairs(const double *a, const double *b, size_t count) {
    double *ratios = fti_cli_alloc(count, sizeof *ratios);
    for (size_t i = 0; i < count; i++) ratios[i] = b[i] / a[i];
    fti_bench_ratio ratio = judge(fti_bench_describe(ratios, count), count);
    free(ratios);
    return ratio;
}

fti_bench_ratio fti_bench_compare_series(const double *a, size_t a_count, const double *b,
                                         size_t b_count) {
    fti_bench_statistics left = fti_bench_describe(a, a_count);
    fti_bench_statistics right = fti_bench_describe(b, b_count);
    fti_bench_statistics s = {.count = a_count < b_count ? a_count : b_count,
                              .median = right.median / left.median,
                              .min = right.min / left.max,
                              .max = right.max / left.min,
                              .noise = left.noise > right.noise ? left.noise : right.noise};
    double *scratch = fti_cli_alloc(a_count > b_count ? a_count : b_count, sizeof *scratch);
    double *estimates = fti_cli_alloc(RESAMPLES, sizeof *estimates);
    for (uint32_t r = 0; r < RESAMPLES; r++) {
        double below = resampled_median(a, a_count, r, 1, scratch);
        estimates[r] = resampled_median(b, b_count, r, 2, scratch) / below;
    }
    set_interval(&s, estimates);
    free(estimates);
    free(scratch);
    return judge(s, s.count);
}
