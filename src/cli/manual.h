/*
 * manual.h: what is made of a program's tables besides its help: manual pages in
 * man(7) and completion for shells. Printed to standard output.
 */
#ifndef FTI_CLI_MANUAL_H
#define FTI_CLI_MANUAL_H

#include "cli/options.h"

/* PROGRAM-COMMAND(1). */
void fti_cli_man_command(const fti_cli_program *program, const fti_cli_command *command);
/* PROGRAM(1); with `whole` the commands' pages are sections of it. */
void fti_cli_man_program(const fti_cli_program *program, bool whole);

void fti_cli_complete_bash(const fti_cli_program *program);
void fti_cli_complete_zsh(const fti_cli_program *program);

#endif
