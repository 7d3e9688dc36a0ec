/* summary.c: medians, rates and the check that makes a series void. */
#include "summary.h"

#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

fti_bench_spread fti_bench_spread_of(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare);
    double median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
    return (fti_bench_spread){median, values[0], values[count - 1]};
}

static double rate(uint64_t count, double seconds) {
    return seconds > 0.0 ? (double)count / seconds : 0.0;
}

/* The first token comes from the prompt's last step, so steps are counted, not
 * tokens. */
double fti_bench_decode_rate(const ftk_generate_result *result) {
    return rate(result->decode_steps, result->decode_seconds);
}

double fti_bench_prefill_rate(const ftk_generate_result *result) {
    return rate(result->prompt_tokens, result->prefill_seconds);
}

const char *fti_bench_void_reason(const ftk_generate_result *results, size_t count,
                                  uint64_t tokens) {
    for (size_t i = 0; i < count; i++) {
        if (results[i].hash != results[0].hash) return "runs differ in their tokens";
        if (results[i].tokens != tokens) return "a run ended before all tokens were generated";
    }
    return NULL;
}
