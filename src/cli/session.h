/*
 * session.h: from a command line to an open engine: which configuration, what
 * overrides it, how opening is shown and interrupted; and text to tokens.
 * Functions that return int give an exit code, after printing why.
 */
#ifndef FTI_CLI_SESSION_H
#define FTI_CLI_SESSION_H

#include <jansson.h>

#include "cli/options.h"
#include "freetoken/freetoken.h"

#define FTI_CLI_SYSTEM_CONFIG "/etc/freetoken/config.yaml"

/* $XDG_CONFIG_HOME/freetoken/config.yaml or ~/.config/..., where the variable's value is
 * followed through symbolic links; NULL if neither variable is set. Free with free(). */
char *fti_cli_user_config(void);

/* Loads the configuration that the options choose and applies the others. */
int fti_cli_load_config(const fti_cli_common *common, ftk_config **out);

/* What is found and allowed under the configuration that the options choose, as
 * ftk_providers_report has it; the caller releases it. */
int fti_cli_providers_report(const fti_cli_common *common, json_t **report);

/* Applies the common options to a configuration. */
int fti_cli_apply_options(ftk_config *config, const fti_cli_common *common);

/* Loads the configuration and opens the model; the engine is the caller's. */
int fti_cli_open(const fti_cli_common *common, const char *model, uint32_t stop_after,
                 ftk_engine **out);

/* The same under a configuration that the caller has loaded, as it is. */
int fti_cli_open_with(const ftk_config *config, const char *model, uint32_t stop_after,
                      ftk_engine **out);

/* From here on Ctrl-C is noted instead of ending the program; a second one ends
 * it. */
void fti_cli_catch_interrupt(void);
bool fti_cli_interrupted(void);
/* From here on no Ctrl-C ends the program: each is noted until it is forgotten, and
 * interrupts a read. */
void fti_cli_keep_interrupts(void);
void fti_cli_forget_interrupt(void);

/* Token ids of `text`, to be released with free(). */
int fti_cli_encode(const ftk_engine *engine, const char *text, size_t size, bool special,
                   int32_t **ids, size_t *count);

/* The prompt of -p TEXT or -f FILE, encoded. An empty one is a usage error. */
int fti_cli_encode_prompt(const ftk_engine *engine, const char *text, const char *file,
                          bool special, int32_t **ids, size_t *count);
/* Usage error unless exactly one of the two is given. */
int fti_cli_check_prompt(const char *text, const char *file);

#endif
