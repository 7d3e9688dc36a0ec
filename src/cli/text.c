/* text.c: growable text, file reading and the incremental UTF-8 decoder. */
#include "cli/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"

static void out_of_memory(void) {
    fti_cli_error("out of memory");
    exit(ftk_status_exit_code(FTK_E_NO_MEMORY));
}

void *fti_cli_alloc(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) out_of_memory();
    return memory;
}

static void reserve(fti_cli_text *text, size_t more) {
    size_t wanted;
    if (__builtin_add_overflow(text->size, more, &wanted) || wanted > SIZE_MAX / 2) out_of_memory();
    if (text->data && wanted < text->capacity) return;
    size_t capacity = wanted + wanted / 2 + 64;
    char *data = realloc(text->data, capacity);
    if (!data) out_of_memory();
    text->data = data;
    text->capacity = capacity;
}

void fti_cli_append(fti_cli_text *text, const char *data, size_t size) {
    reserve(text, size);
    if (size) memcpy(text->data + text->size, data, size);
    text->size += size;
    text->data[text->size] = '\0';
}

static void append_format(fti_cli_text *text, const char *format, va_list args) {
    char *line = NULL;
    int size = vasprintf(&line, format, args);
    if (size < 0) out_of_memory();
    fti_cli_append(text, line, (size_t)size);
    free(line);
}

void fti_cli_printf(fti_cli_text *text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    append_format(text, format, args);
    va_end(args);
}

char *fti_cli_format(const char *format, ...) {
    fti_cli_text text = {0};
    va_list args;
    va_start(args, format);
    append_format(&text, format, args);
    va_end(args);
    return text.data;
}

static bool read_stream(FILE *file, fti_cli_text *text) {
    for (;;) {
        reserve(text, 65536);
        size_t got = fread(text->data + text->size, 1, 65536, file);
        text->size += got;
        text->data[text->size] = '\0';
        if (got < 65536) return !ferror(file);
    }
}

bool fti_cli_read_file(const char *path, fti_cli_text *text) {
    if (strcmp(path, "-") == 0) return read_stream(stdin, text);
    FILE *file = fopen(path, "rbe");
    if (!file) return false;
    bool ok = read_stream(file, text);
    int reason = errno;
    (void)fclose(file);
    errno = reason;
    return ok;
}

static void replace(fti_cli_utf8 *state, fti_cli_text *out) {
    fti_cli_append(out, "\xEF\xBF\xBD", 3);
    state->have = state->need = 0;
}

/* Bounds of the second byte exclude overlong forms, surrogates and everything
 * beyond U+10FFFF. */
static void begin_character(fti_cli_utf8 *state, uint8_t byte, fti_cli_text *out) {
    state->low = 0x80;
    state->high = 0xBF;
    if (byte < 0x80) {
        fti_cli_append(out, (const char *)&byte, 1);
        return;
    }
    if (byte < 0xC2 || byte > 0xF4) {
        replace(state, out);
        return;
    }
    state->need = (uint8_t)(byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3);
    if (byte == 0xE0) state->low = 0xA0;
    if (byte == 0xED) state->high = 0x9F;
    if (byte == 0xF0) state->low = 0x90;
    if (byte == 0xF4) state->high = 0x8F;
    state->pending[0] = (char)byte;
    state->have = 1;
}

void fti_cli_utf8_feed(fti_cli_utf8 *state, const char *data, size_t size, fti_cli_text *out) {
    for (size_t i = 0; i < size; i++) {
        uint8_t byte = (uint8_t)data[i];
        if (state->need && (byte < state->low || byte > state->high)) replace(state, out);
        if (!state->need) {
            begin_character(state, byte, out);
            continue;
        }
        state->pending[state->have++] = (char)byte;
        state->low = 0x80;
        state->high = 0xBF;
        if (--state->need == 0) {
            fti_cli_append(out, state->pending, state->have);
            state->have = 0;
        }
    }
}

void fti_cli_utf8_finish(fti_cli_utf8 *state, fti_cli_text *out) {
    if (state->need) replace(state, out);
}
