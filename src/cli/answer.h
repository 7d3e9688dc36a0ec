/*
 * answer.h: one request run to its end, for the commands that generate: its text
 * as whole characters, in order, as it becomes certain; Ctrl-C cancels it.
 */
#ifndef FTI_CLI_ANSWER_H
#define FTI_CLI_ANSWER_H

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/text.h"
#include "freetoken/freetoken.h"

typedef struct fti_cli_answer {
    bool stream;  /* text also goes to standard output as it comes */
    bool broken;  /* standard output cannot be written: said when it is closed */
    bool ended;   /* the request is done */
    json_t *ids;  /* of the tokens, if not NULL */
    json_t *tops; /* [{id, logprob, top: [{id, logprob}]}] of the tokens, if not NULL */
    ftk_error error;
    ftk_generate_result result;
    uint64_t reused_tokens, preemptions; /* as its DONE event says */
    fti_cli_text text;                   /* all of it; the caller frees data */
    fti_cli_utf8 utf8;
} fti_cli_answer;

/* Before its first event; its parts are released by the other. */
void fti_cli_answer_begin(fti_cli_answer *answer);
void fti_cli_answer_free(fti_cli_answer *answer);

/* Takes an event of the request that `user`, a fti_cli_answer, is the answer to: the
 * callback of a request. Cancels it once Ctrl-C was pressed. */
int fti_cli_answer_event(void *user, const ftk_event *event);

/* What `run` says of an answer that has its ids: prompt_tokens, tokens, text, finish, hash
 * and logprobs. */
json_t *fti_cli_answer_json(const fti_cli_answer *answer);

/* Submits `request`, with its callback replaced, and runs steps until it has ended. An
 * exit code, after printing why; a cancelled answer is none of these failures. */
int fti_cli_run_answer(ftk_engine *engine, ftk_request *request, fti_cli_answer *answer);

/* "stop", "length" or "cancelled". */
const char *fti_cli_finish_name(uint32_t finish);

/* The sampling options of a line, as a request has them; release biases with free().
 * A usage error if they do not fit together. */
int fti_cli_fill_sampling(const fti_cli_call *call, ftk_sampling *sampling,
                          ftk_logit_bias **biases);

/* Sets what the sampling options say, as if one of them had been on the line. */
void fti_cli_turn_sampling_on(const fti_cli_values *values, ftk_sampling *sampling);

#endif
