/*
 * options.h: what a program's commands and options are called, what they mean
 * and how they are read: one table each, from which parsing, help and "did you
 * mean" all come.
 */
#ifndef FTI_CLI_OPTIONS_H
#define FTI_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    FTI_CLI_FLAG,   /* bool */
    FTI_CLI_TEXT,   /* const char * */
    FTI_CLI_U32,    /* uint32_t */
    FTI_CLI_U64,    /* uint64_t */
    FTI_CLI_NUMBER, /* double */
    FTI_CLI_LIST    /* fti_cli_list: may be given again, up to `max` times */
} fti_cli_kind;

/* The bit of commands that open no engine: of the common options they know --json and
 * --help. */
#define FTI_CLI_NO_ENGINE 0x80000000u

#define FTI_CLI_LIST_MAX 64
typedef struct fti_cli_list {
    const char *items[FTI_CLI_LIST_MAX];
    size_t count;
} fti_cli_list;

typedef struct fti_cli_option {
    const char *name;
    const char *placeholder; /* NULL for flags */
    const char *help;
    const char *key; /* configuration key that the text is for; otherwise NULL */
    size_t offset;   /* of the value in the struct that the table describes */
    uint32_t groups; /* known to commands that share a bit */
    fti_cli_kind kind;
    double min, max; /* of FTI_CLI_U32 and FTI_CLI_NUMBER, inclusive */
    char letter;     /* 0: none */
} fti_cli_option;

/* Rows, and where their values go. Bit i of `given`: row i was on the line. */
typedef struct fti_cli_table {
    const fti_cli_option *rows;
    size_t count;
    void *values;
    uint64_t given;
} fti_cli_table;

/* What every command takes. Texts with a configuration key are given to the
 * library as they are. */
typedef struct fti_cli_common {
    const char *config;
    const char *backend;
    const char *device_budget;
    const char *context;
    const char *threads;
    const char *numerics;
    const char *graphs;
    bool json;
    bool help;
} fti_cli_common;

extern const fti_cli_option fti_cli_common_options[];
extern const size_t fti_cli_common_option_count;

/* A command line after parsing. */
typedef struct fti_cli_call {
    const struct fti_cli_command *command;
    fti_cli_common common;
    fti_cli_table tables[2]; /* common options, the program's own */
    char **arguments;        /* those that are no options, NULL at the end */
    size_t argument_count;
} fti_cli_call;

typedef struct fti_cli_command {
    const char *name;
    const char *arguments; /* as usage shows them */
    const char *summary;
    const char *details; /* paragraphs for help, the last one an example */
    uint32_t groups;
    size_t min_arguments;
    size_t max_arguments;
    int (*run)(const fti_cli_call *call); /* exit code */
} fti_cli_command;

/* A program with one command, of the program's own name, is called without its word. */
typedef struct fti_cli_program {
    const char *summary;
    const fti_cli_command *commands;
    size_t command_count;
    const fti_cli_option *options;
    size_t option_count; /* at most 64 */
    void *values;        /* what the options describe, holding the defaults */
} fti_cli_program;

/* The whole of a program's main. */
int fti_cli_main(const fti_cli_program *program, int argc, char **argv);

/* True if `command` is called without its word. */
bool fti_cli_wordless(const fti_cli_command *command);

/* True if the program's own option `name` was on the line. */
bool fti_cli_given(const fti_cli_call *call, const char *name);

/* Reads argv[1...] (argv[0] is the command) into call->tables and ->arguments,
 * which must have room for argc entries. 0, or the usage exit code. */
int fti_cli_parse(fti_cli_call *call, int argc, char **argv);

/* Strict decimal numbers; false if `text` is anything else. */
bool fti_cli_parse_u64(const char *text, uint64_t *value);
bool fti_cli_parse_number(const char *text, double *value);

/* Nearest of `count` names, which lie `stride` bytes apart; NULL if none is
 * close. */
const char *fti_cli_nearest(const char *word, const char *const *first, size_t count,
                            size_t stride);

#endif
