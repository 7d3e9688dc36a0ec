/*
 * requests.h: `freetoken run --requests`: a file of requests through one engine, a line
 * of JSON for each result.
 */
#ifndef FTI_CLI_REQUESTS_H
#define FTI_CLI_REQUESTS_H

#include "cli/commands.h"
#include "freetoken/freetoken.h"

/* `defaults` is what the options of the line say. An exit code, after printing why. */
int fti_cli_run_requests(const fti_cli_call *call, const ftk_request *defaults);

#endif
