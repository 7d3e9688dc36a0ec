/*
 * request_line.h: one line of a file of requests: a JSON object whose keys are known and
 * whose values are of the right kind and range, as a request of the library.
 */
#ifndef FTI_CLI_REQUEST_LINE_H
#define FTI_CLI_REQUEST_LINE_H

#include <jansson.h>
#include <stdbool.h>

#include "freetoken/freetoken.h"

#define FTI_CLI_MAX_STOPS 16

/* What a request is where its line is silent. A line with a sampling key starts from
 * `sampled`, as a command line does. */
typedef struct fti_cli_request_defaults {
    ftk_request request;
    ftk_sampling sampled;
} fti_cli_request_defaults;

typedef struct fti_cli_request_line {
    ftk_request request; /* points into the rest; do not move it */
    json_t *id;          /* string or integer, NULL if the line has none */
    json_t *object;
    ftk_message *messages;
    int32_t *tokens;
    const char *stops[FTI_CLI_MAX_STOPS];
} fti_cli_request_line;

/* False with `err` filled: what is wrong, found and wanted. `line` is to be released, and
 * its id to be used, either way. */
bool fti_cli_request_line_read(const char *text, size_t size,
                               const fti_cli_request_defaults *defaults, fti_cli_request_line *line,
                               ftk_error *err);
void fti_cli_request_line_free(fti_cli_request_line *line);

#endif
