/* manual.c: manual pages from the tables of a program. */
#include "cli/manual.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/output.h"
#include "freetoken/freetoken.h"

/* Text as roff reads it back unchanged: no escapes, no requests, plain quotes and
 * hyphens that can be copied into a shell. */
static void put_text(const char *text, size_t size) {
    bool line_start = true;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (line_start && (c == '.' || c == '\'')) (void)fputs("\\&", stdout);
        line_start = c == '\n';
        switch (c) {
        case '\\': (void)fputs("\\e", stdout); break;
        case '-': (void)fputs("\\-", stdout); break;
        case '\'': (void)fputs("\\(aq", stdout); break;
        case '`': (void)fputs("\\(ga", stdout); break;
        case '~': (void)fputs("\\(ti", stdout); break;
        case '^': (void)fputs("\\(ha", stdout); break;
        default: (void)fputc(c, stdout); break;
        }
    }
}

static void put(const char *text) {
    put_text(text, strlen(text));
}

static void put_bold(const char *text) {
    (void)fputs("\\fB", stdout);
    put(text);
    (void)fputs("\\fR", stdout);
}

static void put_upper(const char *text) {
    for (; *text; text++) {
        char c = (char)(toupper)((unsigned char)*text);
        put_text(&c, 1);
    }
}

static void put_title(const char *name, const char *command) {
    (void)fputs(".TH \"", stdout);
    put_upper(name);
    if (command) {
        (void)fputs("\\-", stdout);
        put_upper(command);
    }
    (void)printf("\" 1 \"\" \"freetoken %s\" \"User commands\"\n.SH NAME\n", ftk_version());
}

/* Paragraphs are filled, but for those that have columns. */
static void put_paragraph(const char *text, size_t size) {
    bool columns = memmem(text, size, "  ", 2) != NULL;
    (void)fputs(columns ? ".PP\n.nf\n" : ".PP\n", stdout);
    put_text(text, size);
    (void)fputs(columns ? "\n.fi\n" : "\n", stdout);
}

#define EXAMPLE "example: "

/* The details end with examples, which share a heading. */
static void put_details(const char *details, const char *heading) {
    for (const char *at = details; *at;) {
        const char *end = strstr(at, "\n\n");
        size_t size = end ? (size_t)(end - at) : strlen(at);
        if (strncmp(at, EXAMPLE, sizeof EXAMPLE - 1) == 0) {
            (void)printf("%s\n.nf\n", heading);
            heading = ".PP";
            put_text(at + sizeof EXAMPLE - 1, size - (sizeof EXAMPLE - 1));
            (void)fputs("\n.fi\n", stdout);
        } else {
            put_paragraph(at, size);
        }
        at += size + (end ? 2 : 0);
    }
}

static void put_option(const fti_cli_option *row) {
    (void)fputs(".TP\n", stdout);
    if (row->letter) (void)printf("\\fB\\-%c\\fR, ", row->letter);
    (void)fputs("\\fB\\-\\-", stdout);
    put(row->name);
    (void)fputs("\\fR", stdout);
    if (row->placeholder) {
        (void)fputs(" \\fI", stdout);
        put(row->placeholder);
        (void)fputs("\\fR", stdout);
    }
    (void)fputc('\n', stdout);
    put(row->help);
    if (row->key) {
        (void)fputs(" (configuration key ", stdout);
        put_bold(row->key);
        (void)fputc(')', stdout);
    }
    (void)fputc('\n', stdout);
}

static void put_options(const fti_cli_option *rows, size_t count, uint32_t groups) {
    for (size_t i = 0; i < count; i++) {
        if (rows[i].groups & groups) put_option(&rows[i]);
    }
}

static void put_common(uint32_t groups) {
    if (groups != FTI_CLI_NO_ENGINE) (void)fputs(".SH \"OPTIONS OF EVERY COMMAND\"\n", stdout);
    put_options(fti_cli_common_options, fti_cli_common_option_count, groups);
}

static void put_end(const char *see_also) {
    (void)fputs(".SH \"EXIT STATUS\"\n", stdout);
    put("0 ok, 1 run failed, 2 usage, 3 configuration, 4 provider refused, 5 checkpoint refused, "
        "6 does not fit, 7 device.\n");
    (void)fputs(".SH FILES\n.TP\n", stdout);
    put("$XDG_CONFIG_HOME/freetoken/config.yaml, ~/.config/freetoken/config.yaml\n");
    put("the user's configuration\n");
    (void)fputs(".TP\n", stdout);
    put("/etc/freetoken/config.yaml\n");
    put("the configuration of the machine, for users who have none\n");
    (void)printf(".SH \"SEE ALSO\"\n%s\n", see_also);
}

static void put_synopsis(const fti_cli_command *command) {
    put_bold(fti_cli_program_name);
    if (!fti_cli_wordless(command)) {
        (void)fputc(' ', stdout);
        put_bold(command->name);
    }
    (void)fputs(" [\\fIOPTIONS\\fR] ", stdout);
    put(command->arguments);
    (void)fputc('\n', stdout);
}

void fti_cli_man_command(const fti_cli_program *program, const fti_cli_command *command) {
    bool wordless = fti_cli_wordless(command);
    put_title(fti_cli_program_name, wordless ? NULL : command->name);
    put(fti_cli_program_name);
    if (!wordless) {
        (void)fputs("\\-", stdout);
        put(command->name);
    }
    (void)fputs(" \\- ", stdout);
    put(command->summary);
    (void)fputs("\n.SH SYNOPSIS\n", stdout);
    put_synopsis(command);
    (void)fputs(".SH DESCRIPTION\n", stdout);
    put_details(command->details, ".SH EXAMPLES");
    (void)fputs(".SH OPTIONS\n", stdout);
    put_options(program->options, program->option_count, command->groups);
    put_common(command->groups);
    if (wordless) return;
    put_end("\\fBfreetoken\\fR(1), \\fBfreetoken.yaml\\fR(5)");
}

static void put_section(const fti_cli_program *program, const fti_cli_command *command) {
    (void)fputs(".SS \"", stdout);
    put(command->name);
    (void)fputs("\"\n", stdout);
    put_synopsis(command);
    put_details(command->details, ".PP\nExample:");
    put_options(program->options, program->option_count, command->groups);
}

static void put_entry(const fti_cli_command *command) {
    (void)fputs(".TP\n\\fB", stdout);
    put(fti_cli_program_name);
    (void)fputs("\\-", stdout);
    put(command->name);
    (void)fputs("\\fR(1)\n", stdout);
    put(command->summary);
    (void)fputc('\n', stdout);
}

void fti_cli_man_program(const fti_cli_program *program, bool whole) {
    put_title(fti_cli_program_name, NULL);
    put(fti_cli_program_name);
    (void)fputs(" \\- ", stdout);
    put(program->summary);
    (void)fputs("\n.SH SYNOPSIS\n", stdout);
    put_bold(fti_cli_program_name);
    (void)fputs(" \\fICOMMAND\\fR [\\fIOPTIONS\\fR] ...\n.br\n", stdout);
    put_bold(fti_cli_program_name);
    (void)fputs(" \\fBhelp\\fR [\\fICOMMAND\\fR]\n.br\n", stdout);
    put_bold(fti_cli_program_name);
    (void)fputs(" \\fB\\-\\-version\\fR\n.SH COMMANDS\n", stdout);
    for (size_t i = 0; i < program->command_count; i++) {
        if (whole) put_section(program, &program->commands[i]);
        if (!whole) put_entry(&program->commands[i]);
    }
    put_common(UINT32_MAX);
    put_end(whole ? "\\fBfreetoken\\fR(1), \\fBfreetoken.yaml\\fR(5)"
                  : "\\fBfreetoken.yaml\\fR(5)");
}
