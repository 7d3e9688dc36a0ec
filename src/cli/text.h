/*
 * text.h: growable text, whole files, and the decoder that turns the bytes of
 * tokens into characters. Running out of memory here ends the program with the
 * exit code of FTK_E_NO_MEMORY, so no caller has to ask.
 */
#ifndef FTI_CLI_TEXT_H
#define FTI_CLI_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *fti_cli_alloc(size_t count, size_t size); /* zeroed */
char *fti_cli_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* data is NUL-terminated once anything was appended; free it with free(). */
typedef struct fti_cli_text {
    char *data;
    size_t size;
    size_t capacity;
} fti_cli_text;
void fti_cli_append(fti_cli_text *text, const char *data, size_t size);
void fti_cli_printf(fti_cli_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Appends a whole file ("-": standard input); false with errno set. */
bool fti_cli_read_file(const char *path, fti_cli_text *text);

/* A character that may arrive in parts. Start from zeroes. */
typedef struct fti_cli_utf8 {
    char pending[4];
    uint8_t have;
    uint8_t need;      /* bytes that are still missing */
    uint8_t low, high; /* what the next one may be */
} fti_cli_utf8;

/* Appends the characters that `data` completes; what can never become one is
 * replaced by U+FFFD. */
void fti_cli_utf8_feed(fti_cli_utf8 *state, const char *data, size_t size, fti_cli_text *out);
/* The end: an incomplete character becomes U+FFFD. */
void fti_cli_utf8_finish(fti_cli_utf8 *state, fti_cli_text *out);

#endif
