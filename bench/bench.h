/* bench.h: the commands of `freetoken-bench` and the values of their options. */
#ifndef FTI_BENCH_BENCH_H
#define FTI_BENCH_BENCH_H

#include "cli/options.h"

typedef struct fti_bench_values {
    const char *model;
    const char *model_b;
    const char *prompt;
    const char *file;
    const char *output;
    const char *scenario;
    const char *cause;
    fti_cli_list set; /* KEY=VALUE */
    fti_cli_list set_b;
    const char *command; /* of a peer; the next as well */
    const char *pattern;
    double timeout;
    uint32_t pairs;
    fti_cli_list weights; /* names of types */
    uint64_t chunk;       /* bytes of one read, 0: the library's */
    const char *direct;   /* auto, on or off */
    bool no_bandwidth;
    const char *skew;
    const char *types;
    uint64_t seed;
    uint32_t prompt_tokens; /* 0: the scenario's default; the same of the next */
    uint32_t tokens;
    uint32_t batch;
    uint32_t repeat;
    uint32_t warmup;
    bool prose;
    bool cold;
    bool csv;
    bool sparse;
    bool measure;
    const char *record, *trace; /* of residency; the next as well */
    const char *slots;
    const char *policy;
    bool per_layer;
} fti_bench_values;

static inline const fti_bench_values *fti_bench_values_of(const fti_cli_call *call) {
    return call->tables[1].values;
}

/* decode, prefill, batch and load: the command's name is the scenario's. */
int fti_bench_measure(const fti_cli_call *call);
int fti_bench_compare(const fti_cli_call *call);
int fti_bench_synth(const fti_cli_call *call);
int fti_bench_peer(const fti_cli_call *call);
int fti_bench_kernels(const fti_cli_call *call);
int fti_bench_read_file(const fti_cli_call *call);
int fti_bench_provider_cost(const fti_cli_call *call);
int fti_bench_profile_command(const fti_cli_call *call);
int fti_bench_residency(const fti_cli_call *call);
/* The half of it that replays a trace. */
int fti_bench_replay(const fti_cli_call *call);

#endif
