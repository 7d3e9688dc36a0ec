/*
 * line_input.h: lines that a person types: edited with a history where libedit was
 * built in and both ends are a terminal, plain otherwise. One reader at a time.
 */
#ifndef FTI_CLI_LINE_INPUT_H
#define FTI_CLI_LINE_INPUT_H

#include "cli/text.h"

typedef struct fti_cli_lines fti_cli_lines;

typedef enum {
    FTI_CLI_LINE,
    FTI_CLI_LINE_DROPPED, /* Ctrl-C: what was typed counts for nothing */
    FTI_CLI_LINE_END      /* Ctrl-D, or the end of the input */
} fti_cli_line_result;

/* `prompt` is shown on terminals only, and must outlive the reader. */
fti_cli_lines *fti_cli_lines_open(const char *prompt);
/* `line` is replaced, and ends without a newline. */
fti_cli_line_result fti_cli_lines_next(fti_cli_lines *lines, fti_cli_text *line);
void fti_cli_lines_close(fti_cli_lines *lines);

#endif
