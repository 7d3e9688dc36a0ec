/* bench.h: the scenarios of `freetoken-bench` and the values of their options. */
#ifndef FTI_BENCH_BENCH_H
#define FTI_BENCH_BENCH_H

#include "cli/options.h"

typedef struct fti_bench_values {
    const char *model;
    const char *prompt;
    uint32_t prompt_tokens;
    uint32_t tokens;
    uint32_t repeat;
    uint32_t warmup;
} fti_bench_values;

static inline const fti_bench_values *fti_bench_values_of(const fti_cli_call *call) {
    return call->tables[1].values;
}

int fti_bench_decode(const fti_cli_call *call);

#endif
