/*
 * completion.c: completion for bash, and for zsh through bashcompinit, from the
 * tables of a program. A placeholder in capitals that names a file or a model is
 * completed with files, one that lists words (on|off) with these, others not at all.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/manual.h"
#include "cli/output.h"

static bool in_command(const fti_cli_option *row, uint32_t groups) {
    return (row->groups & groups) != 0;
}

static void put_names(const fti_cli_option *rows, size_t count, uint32_t groups) {
    for (size_t i = 0; i < count; i++) {
        if (!in_command(&rows[i], groups)) continue;
        (void)printf(" --%s", rows[i].name);
        if (rows[i].letter) (void)printf(" -%c", rows[i].letter);
    }
}

/* The words in lower case of "[list | check | allow NAME]". */
static void put_words(const char *arguments) {
    const char *at = arguments;
    while (*at) {
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz");
        if (length) (void)printf(" %.*s", (int)length, at);
        at += length ? length : 1;
    }
}

static void put_choices(const fti_cli_program *program, const fti_cli_command *command) {
    (void)fputs("options='", stdout);
    put_names(program->options, program->option_count, command->groups);
    put_names(fti_cli_common_options, fti_cli_common_option_count, command->groups);
    (void)fputs("'\n        words='", stdout);
    put_words(command->arguments);
    (void)fputs("'", stdout);
}

static void put_command(const fti_cli_program *program, const fti_cli_command *command) {
    (void)printf("    %s)\n        ", command->name);
    put_choices(program, command);
    (void)fputs(" ;;\n", stdout);
}

static bool is_file(const char *placeholder) {
    static const char *const names[] = {"FILE", "MODEL", "FOLDER"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(placeholder, names[i]) == 0) return true;
    }
    return false;
}

static void put_values(const fti_cli_option *rows, size_t count, uint32_t groups) {
    for (size_t i = 0; i < count; i++) {
        const char *placeholder = rows[i].placeholder;
        if (!placeholder || !in_command(&rows[i], groups)) continue;
        (void)printf("    --%s", rows[i].name);
        if (rows[i].letter) (void)printf(" | -%c", rows[i].letter);
        if (is_file(placeholder)) {
            (void)fputs(") return ;;\n", stdout);
            continue;
        }
        (void)fputs(") values='", stdout);
        if (islower((unsigned char)placeholder[0])) {
            for (; *placeholder; placeholder++) {
                (void)fputc(*placeholder == '|' ? ' ' : *placeholder, stdout);
            }
        }
        (void)fputs("' taken=1 ;;\n", stdout);
    }
}

static void put_identifier(void) {
    (void)fputc('_', stdout);
    for (const char *c = fti_cli_program_name; *c; c++) {
        (void)fputc(isalnum((unsigned char)*c) ? *c : '_', stdout);
    }
    (void)fputs("_complete", stdout);
}

/* In "--option=value" the shell takes the equals sign for a word of its own. */
static const char *const beginning =
    "() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
    "    local options='' words='' values='' taken=''\n"
    "    COMPREPLY=()\n"
    "    if [ \"$cur\" = '=' ]; then\n"
    "        cur=''\n"
    "    elif [ \"$prev\" = '=' ] && [ \"$COMP_CWORD\" -ge 2 ]; then\n"
    "        prev=${COMP_WORDS[COMP_CWORD-2]}\n"
    "    fi\n";

static const char *const ending = "    esac\n"
                                  "    if [ -n \"$taken\" ]; then\n"
                                  "        COMPREPLY=($(compgen -W \"$values\" -- \"$cur\"))\n"
                                  "        compopt +o default +o bashdefault 2>/dev/null\n"
                                  "    elif [ \"${cur#-}\" != \"$cur\" ]; then\n"
                                  "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
                                  "    elif [ \"$COMP_CWORD\" -eq 2 ]; then\n"
                                  "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                                  "    fi\n"
                                  "}\n";

static void put_command_names(const fti_cli_program *program) {
    for (size_t i = 0; i < program->command_count; i++) {
        (void)printf("%s%s", i ? " " : "", program->commands[i].name);
    }
}

/* Which options and words there are to choose from. */
static void put_commands(const fti_cli_program *program) {
    if (fti_cli_wordless(program->commands)) {
        (void)fputs("    ", stdout);
        put_choices(program, program->commands);
        (void)fputs("\n", stdout);
        return;
    }
    (void)fputs("    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W '",
                stdout);
    put_command_names(program);
    (void)fputs(" help --help --version' -- \"$cur\"))\n        return\n    fi\n", stdout);
    (void)fputs("    case ${COMP_WORDS[1]} in\n    help) words='", stdout);
    put_command_names(program);
    (void)fputs("' ;;\n", stdout);
    for (size_t i = 0; i < program->command_count; i++) put_command(program, &program->commands[i]);
    (void)fputs("    esac\n", stdout);
}

static void put_function(const fti_cli_program *program) {
    put_identifier();
    (void)fputs(beginning, stdout);
    put_commands(program);
    (void)fputs("    case $prev in\n", stdout);
    uint32_t groups = 0;
    for (size_t i = 0; i < program->command_count; i++) groups |= program->commands[i].groups;
    put_values(program->options, program->option_count, groups);
    put_values(fti_cli_common_options, fti_cli_common_option_count, groups);
    (void)fputs(ending, stdout);
}

static void put_registration(const char *call) {
    (void)printf("%s -o bashdefault -o default -F ", call);
    put_identifier();
}

void fti_cli_complete_bash(const fti_cli_program *program) {
    (void)printf("# bash completion for %s\n", fti_cli_program_name);
    put_function(program);
    put_registration("complete");
    (void)printf(" %s\n", fti_cli_program_name);
}

/* The file is the completion function itself, loaded at first use: it registers the
 * real one and then serves the call at hand. */
void fti_cli_complete_zsh(const fti_cli_program *program) {
    (void)printf("#compdef %s\nautoload -U +X bashcompinit && bashcompinit\n",
                 fti_cli_program_name);
    put_function(program);
    put_registration("complete");
    (void)printf(" %s\n", fti_cli_program_name);
    put_registration("_bash_complete");
    (void)fputc('\n', stdout);
}
