/* program.c: the frame of both programs: which command, its help, its checks. */
#include <stdlib.h>
#include <string.h>

#include "cli/manual.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/text.h"

static const fti_cli_command *find_command(const fti_cli_program *program, const char *name) {
    for (size_t i = 0; i < program->command_count; i++) {
        if (strcmp(program->commands[i].name, name) == 0) return &program->commands[i];
    }
    return NULL;
}

static int unknown_command(const fti_cli_program *program, const char *name) {
    if (name[0] == '-') {
        return fti_cli_usage("%s stands before a command; options follow it: '%s help' lists "
                             "the commands",
                             name, fti_cli_program_name);
    }
    const char *near = fti_cli_nearest(name, &program->commands[0].name, program->command_count,
                                       sizeof program->commands[0]);
    if (near) return fti_cli_usage("no command '%s'; did you mean '%s'?", name, near);
    return fti_cli_usage("no command '%s'; '%s help' lists them", name, fti_cli_program_name);
}

static void print_options(const fti_cli_option *rows, size_t count, uint32_t groups) {
    for (size_t i = 0; i < count; i++) {
        const fti_cli_option *row = &rows[i];
        if (!(row->groups & groups)) continue;
        char *left = fti_cli_format("%c%c%c --%s%s%s", row->letter ? '-' : ' ',
                                    row->letter ? row->letter : ' ', row->letter ? ',' : ' ',
                                    row->name, row->placeholder ? " " : "",
                                    row->placeholder ? row->placeholder : "");
        (void)printf("  %-32s %s\n", left, row->help);
        free(left);
    }
}

bool fti_cli_wordless(const fti_cli_command *command) {
    return strcmp(command->name, fti_cli_program_name) == 0;
}

static int help_command(const fti_cli_program *program, const fti_cli_command *command) {
    bool wordless = fti_cli_wordless(command);
    (void)printf("usage: %s%s%s [OPTIONS] %s\n\n%s\n\noptions:\n", fti_cli_program_name,
                 wordless ? "" : " ", wordless ? "" : command->name, command->arguments,
                 command->details);
    print_options(program->options, program->option_count, command->groups);
    if (!wordless) (void)printf("\noptions of every command:\n");
    print_options(fti_cli_common_options, fti_cli_common_option_count, command->groups);
    return 0;
}

static void list_commands(const fti_cli_program *program) {
    (void)printf("usage: %s COMMAND [OPTIONS] ...\n\n%s\n\ncommands:\n", fti_cli_program_name,
                 program->summary);
    for (size_t i = 0; i < program->command_count; i++) {
        (void)printf("  %-12s %s\n", program->commands[i].name, program->commands[i].summary);
    }
    (void)printf("  %-12s %s\n", "help COMMAND", "options of a command and an example");
    (void)printf("\n  --version    the release that is running\n");
    (void)printf("\nExit codes: 0 ok, 1 run failed, 2 usage, 3 configuration, 4 provider "
                 "refused,\n5 checkpoint refused, 6 does not fit, 7 device.\n");
}

static int write_manual(const fti_cli_program *program, const char *which) {
    bool whole = which && strcmp(which, "all") == 0;
    if (fti_cli_wordless(program->commands)) {
        fti_cli_man_command(program, program->commands);
        return 0;
    }
    if (!which || whole) {
        fti_cli_man_program(program, whole);
        return 0;
    }
    const fti_cli_command *command = find_command(program, which);
    if (!command) return unknown_command(program, which);
    fti_cli_man_command(program, command);
    return 0;
}

/* `help --man [COMMAND | all]`, `help --completion SHELL` and `help --commands`: for
 * those who package the program. */
static int generate(const fti_cli_program *program, const char *what, const char *which) {
    bool completion = which && strcmp(what, "--completion") == 0;
    if (strcmp(what, "--man") == 0) return write_manual(program, which);
    if (strcmp(what, "--commands") == 0) {
        for (size_t i = 0; i < program->command_count; i++) {
            (void)printf("%s\n", program->commands[i].name);
        }
    } else if (completion && strcmp(which, "bash") == 0) {
        fti_cli_complete_bash(program);
    } else if (completion && strcmp(which, "zsh") == 0) {
        fti_cli_complete_zsh(program);
    } else {
        return fti_cli_usage("help takes a command, --commands, --man [COMMAND | all] or "
                             "--completion bash|zsh");
    }
    return 0;
}

static int help(const fti_cli_program *program, const char *name) {
    if (!name) {
        list_commands(program);
        return 0;
    }
    const fti_cli_command *command = find_command(program, name);
    return command ? help_command(program, command) : unknown_command(program, name);
}

static int check_arguments(const fti_cli_call *call) {
    const fti_cli_command *command = call->command;
    if (call->argument_count < command->min_arguments) {
        return fti_cli_usage("%s wants %s; see '%s help %s'", command->name, command->arguments,
                             fti_cli_program_name, command->name);
    }
    if (call->argument_count > command->max_arguments) {
        return fti_cli_usage("%s: '%s' is one argument too many: it takes '%s'", command->name,
                             call->arguments[command->max_arguments], command->arguments);
    }
    return 0;
}

static int run_command(const fti_cli_program *program, const fti_cli_command *command, int argc,
                       char **argv) {
    fti_cli_call call = {.command = command};
    call.tables[0] = (fti_cli_table){fti_cli_common_options, fti_cli_common_option_count,
                                     &call.common, 0};
    call.tables[1] = (fti_cli_table){program->options, program->option_count, program->values, 0};
    call.arguments = fti_cli_alloc((size_t)argc + 1, sizeof(char *));
    int code = fti_cli_parse(&call, argc, argv);
    if (code == 0 && call.common.help) {
        code = help_command(program, command);
    } else if (code == 0) {
        code = check_arguments(&call);
        if (code == 0) code = command->run(&call);
    }
    free(call.arguments);
    return code;
}

static int dispatch(const fti_cli_program *program, int argc, char **argv) {
    if (argc < 2 && fti_cli_wordless(program->commands)) {
        return run_command(program, program->commands, argc, argv);
    }
    if (argc < 2) {
        return fti_cli_usage("no command; '%s help' lists them", fti_cli_program_name);
    }
    const char *word = argv[1];
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        (void)printf("%s %s\n", fti_cli_program_name, ftk_version());
        return 0;
    }
    if (strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        if (argc > 2 && argv[2][0] == '-') return generate(program, argv[2], argv[3]);
        if (fti_cli_wordless(program->commands)) return help(program, program->commands->name);
        return help(program, argc > 2 ? argv[2] : NULL);
    }
    if (fti_cli_wordless(program->commands)) {
        return run_command(program, program->commands, argc, argv);
    }
    const fti_cli_command *command = find_command(program, word);
    if (!command) return unknown_command(program, word);
    return run_command(program, command, argc - 1, argv + 1);
}

int fti_cli_main(const fti_cli_program *program, int argc, char **argv) {
    fti_cli_prepare_streams();
    return fti_cli_finish(dispatch(program, argc, argv));
}
