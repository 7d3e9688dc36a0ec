/* main.c: the tables of `freetoken-bench`: its scenarios and their options. */
#include "bench.h"
#include "cli/output.h"

const char fti_cli_program_name[] = "freetoken-bench";

enum { DECODE = 1u << 0 };

#define VALUE(member) offsetof(fti_bench_values, member)

static const fti_cli_option option_table[] = {
    {"model", "MODEL", "the checkpoint to run", NULL, VALUE(model), DECODE, FTI_CLI_TEXT, 0, 0,
     'm'},
    {"tokens", "N", "tokens to generate in every run (default 128)", NULL, VALUE(tokens), DECODE,
     FTI_CLI_U32, 2, 1e9, 'n'},
    {"repeat", "N", "runs that are measured (default 5)", NULL, VALUE(repeat), DECODE, FTI_CLI_U32,
     1, 10000, 0},
    {"warmup", "N", "runs before them that are not (default 1)", NULL, VALUE(warmup), DECODE,
     FTI_CLI_U32, 0, 10000, 0},
    {"prompt", "TEXT", "the prompt", NULL, VALUE(prompt), DECODE, FTI_CLI_TEXT, 0, 0, 'p'},
    {"prompt-tokens", "N", "a prompt of N tokens: the default prompt's, over and over", NULL,
     VALUE(prompt_tokens), DECODE, FTI_CLI_U32, 1, 1e9, 0},
};

static const fti_cli_command command_table[] = {
    {"decode", "", "speed of one stream",
     "Generates the same tokens several times with one request at a time, past end tokens,\n"
     "and prints median, least and greatest speed, prompt and generation apart. The hash\n"
     "of the tokens must be the same in every run; otherwise the figures are void and the\n"
     "exit code is 1.\n\n"
     "example: freetoken-bench decode --model model.gguf --tokens 128 --repeat 5 --json",
     DECODE, 0, 0, fti_bench_decode},
};

int main(int argc, char **argv) {
    fti_bench_values values = {.tokens = 128, .repeat = 5, .warmup = 1};
    const fti_cli_program program = {
        "Measures libfreetoken on this machine. Every figure names its cause and carries the\n"
        "hash of what was computed.",
        command_table,
        sizeof command_table / sizeof command_table[0],
        option_table,
        sizeof option_table / sizeof option_table[0],
        &values};
    return fti_cli_main(&program, argc, argv);
}
