/* options.c: the common options, and reading a command line by the tables. */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/text.h"

#define ALL_COMMANDS UINT32_MAX
#define ENGINE       (ALL_COMMANDS & ~FTI_CLI_NO_ENGINE)
#define MAX_ROWS     64
#define FIRST_CODE   1000 /* getopt's codes of rows lie above all characters */

#define COMMON(member) offsetof(fti_cli_common, member)

const fti_cli_option fti_cli_common_options[] = {
    {"config", "FILE", "configuration (default: the user's, then /etc/freetoken/config.yaml)", NULL,
     COMMON(config), ENGINE, FTI_CLI_TEXT, 0, 0, 'c'},
    {"backend", "auto|cpu|cuda|hip", "what computes", "backend.kind", COMMON(backend), ENGINE,
     FTI_CLI_TEXT, 0, 0, 0},
    {"device-budget", "SIZE", "device memory that may be used, such as 8GiB", "memory.device",
     COMMON(device_budget), ENGINE, FTI_CLI_TEXT, 0, 0, 0},
    {"ctx", "N", "positions that the key/value cache holds", "memory.kv_tokens", COMMON(context),
     ENGINE, FTI_CLI_TEXT, 0, 0, 0},
    {"threads", "N", "threads of the CPU backend", "backend.threads", COMMON(threads), ENGINE,
     FTI_CLI_TEXT, 0, 0, 't'},
    {"numerics", "exact|float", "exact, or float (slow; to verify a model)", "numerics",
     COMMON(numerics), ENGINE, FTI_CLI_TEXT, 0, 0, 0},
    {"graphs", "auto|on|off", "replay captured steps", "backend.graphs", COMMON(graphs), ENGINE,
     FTI_CLI_TEXT, 0, 0, 0},
    {"json", NULL, "print one JSON object and nothing else on standard output", NULL, COMMON(json),
     ALL_COMMANDS, FTI_CLI_FLAG, 0, 0, 0},
    {"help", NULL, "explain the command", NULL, COMMON(help), ALL_COMMANDS, FTI_CLI_FLAG, 0, 0,
     'h'},
};
const size_t fti_cli_common_option_count = sizeof fti_cli_common_options /
                                           sizeof fti_cli_common_options[0];

bool fti_cli_parse_u64(const char *text, uint64_t *value) {
    if (!isdigit((unsigned char)text[0])) return false;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (*end || errno) return false;
    *value = number;
    return true;
}

/* Digits, sign, point and exponent only: strtod also reads hexadecimal, infinity
 * and nan. */
bool fti_cli_parse_number(const char *text, double *value) {
    if (!text[0] || text[strspn(text, "0123456789.eE+-")]) return false;
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (end == text || *end || errno || !isfinite(number)) return false;
    *value = number;
    return true;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

#define MAX_WORD 40

static size_t edit_distance(const char *a, const char *b) {
    size_t row[MAX_WORD + 1];
    size_t width = strlen(b);
    if (strlen(a) > MAX_WORD || width > MAX_WORD) return SIZE_MAX;
    for (size_t j = 0; j <= width; j++) row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= width; j++) {
            size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = least(replaced, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[width];
}

const char *fti_cli_nearest(const char *word, const char *const *first, size_t count,
                            size_t stride) {
    const char *best = NULL;
    size_t limit = strlen(word) / 3 + 1;
    for (size_t i = 0; i < count; i++) {
        const char *name = *(const char *const *)(const void *)((const char *)first + i * stride);
        size_t distance = edit_distance(word, name);
        if (distance > limit) continue;
        best = name;
        if (distance == 0) break;
        limit = distance - 1;
    }
    return best;
}

bool fti_cli_given(const fti_cli_call *call, const char *name) {
    const fti_cli_table *table = &call->tables[1];
    for (size_t i = 0; i < table->count; i++) {
        if (strcmp(table->rows[i].name, name) == 0) return (table->given >> i & 1) != 0;
    }
    return false;
}

/* The rows that a command knows, as getopt wants them. */
typedef struct line_spec {
    struct option longs[MAX_ROWS + 1];
    const char *names[MAX_ROWS];
    char letters[2 + 2 * MAX_ROWS + 1];
    size_t letter_count;
    size_t count;
} line_spec;

static void add_row(line_spec *spec, const fti_cli_option *row, int code) {
    int value = row->kind == FTI_CLI_FLAG ? no_argument : required_argument;
    spec->names[spec->count] = row->name;
    spec->longs[spec->count++] = (struct option){row->name, value, NULL, code};
    if (!row->letter) return;
    spec->letters[spec->letter_count++] = row->letter;
    if (value == required_argument) spec->letters[spec->letter_count++] = ':';
}

/* '-' gives arguments in place, whatever POSIXLY_CORRECT says; ':' tells a missing
 * value from an unknown option. */
static void make_spec(const fti_cli_call *call, line_spec *spec) {
    *spec = (line_spec){.letters = "-:", .letter_count = 2};
    for (size_t t = 0; t < 2; t++) {
        const fti_cli_table *table = &call->tables[t];
        for (size_t i = 0; i < table->count && spec->count < MAX_ROWS; i++) {
            if (!(table->rows[i].groups & call->command->groups)) continue;
            add_row(spec, &table->rows[i], FIRST_CODE + (int)(t * MAX_ROWS + i));
        }
    }
}

/* Row of a long option's code or of a letter. */
static const fti_cli_option *find_row(fti_cli_call *call, int code, fti_cli_table **table,
                                      size_t *index) {
    for (size_t t = 0; t < 2; t++) {
        *table = &call->tables[t];
        for (size_t i = 0; i < (*table)->count; i++) {
            const fti_cli_option *row = &(*table)->rows[i];
            if (!(row->groups & call->command->groups)) continue;
            *index = i;
            if (code == row->letter || code == FIRST_CODE + (int)(t * MAX_ROWS + i)) return row;
        }
    }
    return NULL;
}

static int bad_value(const fti_cli_option *row, const char *text) {
    const char *what = row->kind == FTI_CLI_NUMBER ? "a number" : "a whole number";
    if (row->kind == FTI_CLI_U64) {
        return fti_cli_usage("--%s: '%s' is not %s below 2^64", row->name, text, what);
    }
    return fti_cli_usage("--%s: '%s' is not %s from %g to %.10g", row->name, text, what, row->min,
                         row->max);
}

static int append_item(const fti_cli_option *row, fti_cli_list *list, const char *text) {
    if (list->count >= (size_t)row->max) {
        return fti_cli_usage("--%s: given more than %.0f times", row->name, row->max);
    }
    list->items[list->count++] = text;
    return 0;
}

static int store(const fti_cli_option *row, void *values, const char *text) {
    void *at = (char *)values + row->offset;
    uint64_t whole = 0;
    double number = 0.0;
    switch (row->kind) {
    case FTI_CLI_FLAG: *(bool *)at = true; return 0;
    case FTI_CLI_TEXT: *(const char **)at = text; return 0;
    case FTI_CLI_LIST: return append_item(row, at, text);
    case FTI_CLI_U64:
        if (!fti_cli_parse_u64(text, (uint64_t *)at)) return bad_value(row, text);
        return 0;
    case FTI_CLI_U32:
        if (!fti_cli_parse_u64(text, &whole)) return bad_value(row, text);
        number = (double)whole;
        break;
    case FTI_CLI_NUMBER:
        if (!fti_cli_parse_number(text, &number)) return bad_value(row, text);
        break;
    }
    if (number < row->min || number > row->max) return bad_value(row, text);
    if (row->kind == FTI_CLI_U32) *(uint32_t *)at = (uint32_t)whole;
    if (row->kind == FTI_CLI_NUMBER) *(double *)at = number;
    return 0;
}

static int unknown_option(fti_cli_call *call, const line_spec *spec, const char *word) {
    fti_cli_table *table;
    size_t index;
    const char *command = call->command->name;
    const fti_cli_option *row = optopt ? find_row(call, optopt, &table, &index) : NULL;
    if (row) return fti_cli_usage("--%s takes no value", row->name);
    if (optopt) {
        return fti_cli_usage("%s has no option -%c; 'help %s' lists them", command, optopt,
                             command);
    }
    char *name = fti_cli_format("%.*s", (int)strcspn(word + 2, "="), word + 2);
    const char *near = fti_cli_nearest(name, spec->names, spec->count, sizeof spec->names[0]);
    int code = near
                   ? fti_cli_usage("%s has no option --%s; did you mean --%s?", command, name, near)
                   : fti_cli_usage("%s has no option --%s (or it is cut too short); 'help %s' "
                                   "lists them",
                                   command, name, command);
    free(name);
    return code;
}

static int take_option(fti_cli_call *call, const line_spec *spec, int code, char **argv) {
    fti_cli_table *table;
    size_t index;
    if (code == 1) {
        call->arguments[call->argument_count++] = optarg;
        return 0;
    }
    if (code == '?') return unknown_option(call, spec, argv[optind - 1]);
    const fti_cli_option *row = find_row(call, code == ':' ? optopt : code, &table, &index);
    if (!row) return fti_cli_usage("%s: cannot read the options", call->command->name);
    if (code == ':') return fti_cli_usage("--%s wants a value: %s", row->name, row->placeholder);
    table->given |= UINT64_C(1) << index;
    return store(row, table->values, optarg);
}

int fti_cli_parse(fti_cli_call *call, int argc, char **argv) {
    line_spec spec;
    make_spec(call, &spec);
    opterr = 0;
    optind = 0; /* start anew, and forget an earlier line */
    for (;;) {
        int code = getopt_long(argc, argv, spec.letters, spec.longs, NULL);
        if (code == -1) break;
        int failed = take_option(call, &spec, code, argv);
        if (failed) return failed;
    }
    while (optind < argc) call->arguments[call->argument_count++] = argv[optind++];
    return 0;
}
