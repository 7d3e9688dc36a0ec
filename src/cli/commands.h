/* commands.h: the commands of `freetoken` and the values of their options. */
#ifndef FTI_CLI_COMMANDS_H
#define FTI_CLI_COMMANDS_H

#include "cli/options.h"

typedef struct fti_cli_values {
    const char *prompt;
    const char *file;
    const char *out;
    double temperature;
    double top_p;
    double min_p;
    uint64_t seed;
    uint32_t top_k;
    uint32_t max_tokens;
    uint32_t chunk;
    uint32_t window;
    bool greedy;
    bool ignore_end;
    bool special;
    bool plain;
    bool plan;
    bool tensors;
    bool update;
} fti_cli_values;

static inline const fti_cli_values *fti_cli_values_of(const fti_cli_call *call) {
    return call->tables[1].values;
}

int fti_cli_run(const fti_cli_call *call);
int fti_cli_tokenize(const fti_cli_call *call);
int fti_cli_logits(const fti_cli_call *call);
int fti_cli_perplexity(const fti_cli_call *call);
int fti_cli_inspect(const fti_cli_call *call);
int fti_cli_providers(const fti_cli_call *call);
int fti_cli_allow(const fti_cli_call *call, const char *which); /* providers allow */

#endif
