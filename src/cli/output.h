/*
 * output.h: everything the programs write: error lines, JSON, tables' numbers,
 * and files that appear whole or not at all.
 */
#ifndef FTI_CLI_OUTPUT_H
#define FTI_CLI_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "freetoken/freetoken.h"

#define FTI_CLI_EXIT_FAILED 1
#define FTI_CLI_EXIT_USAGE  2

/* Each program defines its own. */
extern const char fti_cli_program_name[];

/* "PROGRAM: error: ..." as one line on stderr, whatever the text holds. */
void fti_cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same; returns the exit code of the status. */
int fti_cli_fail(ftk_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fti_cli_fail_with(const ftk_error *err);
int fti_cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Makes file descriptors 0 to 2 safe to use and turns a closed pipe, or a file that
 * may not grow, into a write error. Once, first of all. */
void fti_cli_prepare_streams(void);
/* Closes stdout. `code`, or FTI_CLI_EXIT_FAILED with an error line if anything
 * that was written could not be. */
int fti_cli_finish(int code);
/* Flushes what was printed so far; false if it cannot be written. */
bool fti_cli_flush(void);

/* Prints `object` as one line and releases it. */
void fti_cli_print_json(json_t *object);
void fti_cli_write_json(FILE *stream, json_t *object);
/* What became of a call that makes a report: its exit code, after printing why, or the report
 * parsed, which the caller releases. */
int fti_cli_reported(ftk_status status, const ftk_error *err, char *const *json, json_t **report);
/* Parses and frees a report of the library. */
json_t *fti_cli_report(char *json);
/* JSON string of bytes that need not be UTF-8. */
json_t *fti_cli_json_text(const char *data, size_t size);
/* "" if the member is absent or no string. */
const char *fti_cli_member(const json_t *object, const char *key);

/* "22.9 MiB" in a buffer of the caller. */
typedef struct fti_cli_size {
    char text[32];
} fti_cli_size;
const char *fti_cli_size_text(uint64_t bytes, fti_cli_size *buffer);

/* ---- what comes from outside, for people ----
 * Names, paths and texts of files may hold anything. As it may be shown on a terminal: control
 * characters, those that change the direction of text or break lines, and bytes that are no
 * UTF-8 as \xNN. JSON stays as it is. */

/* In quotes: quotes and backslashes are escaped too. Free with free(). */
char *fti_cli_shown(const char *data, size_t size);
/* Without. */
char *fti_cli_plain(const char *text);
/* A copy of a report with every key and text so. */
json_t *fti_cli_shown_report(const json_t *report);
/* Prints with the whole result so, but for the ends of lines: texts that may hold some go through
 * one of the others first. */
void fti_cli_say(FILE *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* True if stderr is a terminal: progress may be shown there. */
bool fti_cli_interactive(void);
/* Puts a line of progress on stderr in place of the one shown before; error lines make it
 * go by themselves. Plain characters only, so that any terminal can do it. */
void fti_cli_line_show(const char *format, ...) __attribute__((format(printf, 1, 2)));
void fti_cli_line_clear(void);

/* A file under construction: written beside `path` and renamed over it by
 * commit. A path that names a device or pipe is written directly. */
typedef struct fti_cli_file {
    FILE *stream;
    char *path;
    char *temporary; /* NULL: written directly */
} fti_cli_file;
/* All return false with errno set. `mode` is that of open(2). */
bool fti_cli_file_begin(fti_cli_file *file, const char *path, unsigned mode);
bool fti_cli_file_commit(fti_cli_file *file);
/* Removes what was written; errno is kept. Nothing happens after a commit. */
void fti_cli_file_abandon(fti_cli_file *file);

#endif
