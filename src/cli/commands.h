/* commands.h: the commands of `freetoken` and the values of their options. */
#ifndef FTI_CLI_COMMANDS_H
#define FTI_CLI_COMMANDS_H

#include <jansson.h>

#include "cli/options.h"

typedef struct fti_cli_values {
    const char *prompt;
    const char *file;
    const char *out;
    double temperature;
    double top_p;
    double min_p;
    double repetition_penalty;
    double presence_penalty;
    double frequency_penalty;
    uint64_t seed;
    uint32_t top_k;
    uint32_t max_tokens;
    uint32_t chunk;
    uint32_t window;
    uint32_t penalty_last;
    uint32_t logprobs;
    const char *requests;
    const char *output;
    uint32_t batch;
    fti_cli_list stop;
    fti_cli_list biases;
    const char *system;
    bool greedy;
    bool ignore_end;
    bool special;
    bool plain;
    bool plan;
    bool tensors;
    bool update;
    bool no_thinking;
    bool ordered;
    bool keep_going;
} fti_cli_values;

static inline const fti_cli_values *fti_cli_values_of(const fti_cli_call *call) {
    return call->tables[1].values;
}

int fti_cli_run(const fti_cli_call *call);
int fti_cli_chat(const fti_cli_call *call);
int fti_cli_tokenize(const fti_cli_call *call);
int fti_cli_logits(const fti_cli_call *call);
int fti_cli_perplexity(const fti_cli_call *call);
int fti_cli_inspect(const fti_cli_call *call);
int fti_cli_providers(const fti_cli_call *call);
int fti_cli_selftest(const fti_cli_call *call);
int fti_cli_allow(const fti_cli_call *call, const char *which); /* providers allow */
/* A line of `providers` for each other place of this provider's name. */
void fti_cli_print_same_name(const json_t *provider, const char *indent);
/* providers explain MODEL, or ARCHITECTURE CONTAINER; `container` may be NULL. */
int fti_cli_explain(const fti_cli_call *call, const char *model, const char *container);

#endif
