/* base.c: see base.h. */
#include "core/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

const char *ftk_status_name(ftk_status status) {
    switch (status) {
#define FTI_NAME_CASE(name, number, text)                                                          \
    case number: return #name;
        FTK_STATUS_LIST(FTI_NAME_CASE)
#undef FTI_NAME_CASE
    default: return "FTK_E_UNKNOWN";
    }
}

const char *ftk_status_text(ftk_status status) {
    switch (status) {
#define FTI_TEXT_CASE(name, number, text)                                                          \
    case number: return text;
        FTK_STATUS_LIST(FTI_TEXT_CASE)
#undef FTI_TEXT_CASE
    default: return "unknown status";
    }
}

int ftk_status_exit_code(ftk_status status) {
    if (status == FTK_OK) return 0;
    int family = status < 0 ? -status / 100 : 1;
    return family >= 1 && family <= 7 ? family : 1;
}

ftk_status fti_failv(ftk_error *err, ftk_status status, const char *format, va_list args) {
    if (err) {
        err->status = status;
        fti_message(err->message, sizeof err->message, format, args);
    }
    return status;
}

ftk_status fti_fail(ftk_error *err, ftk_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fti_failv(err, status, format, args);
    va_end(args);
    return status;
}

ftk_status fti_no_memory(ftk_error *err, uint64_t bytes, const char *what) {
    if (bytes == 0) return fti_fail(err, FTK_E_NO_MEMORY, "out of host memory for %s", what);
    return fti_fail(err, FTK_E_NO_MEMORY, "out of host memory: %llu bytes for %s",
                    (unsigned long long)bytes, what);
}

static atomic_ullong allocations;

void fti_count_allocation(void) {
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
}

uint64_t fti_allocation_count(void) {
    return atomic_load_explicit(&allocations, memory_order_relaxed);
}

void *fti_calloc(size_t count, size_t size) {
    fti_count_allocation();
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
    return calloc(1, bytes ? bytes : 1);
}

void *fti_realloc(void *old, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
    fti_count_allocation();
    return realloc(old, bytes ? bytes : 1);
}

void fti_free(void *p) {
    free(p);
}

char *fti_strndup(const char *text, size_t size) {
    char *copy = fti_calloc(size + 1, 1);
    if (copy && size) memcpy(copy, text, size);
    return copy;
}

static bool text_reserve(fti_text *text, size_t more) {
    if (text->failed) return false;
    if (more < text->capacity - text->size) return true;
    size_t capacity;
    if (__builtin_add_overflow(text->size, more, &capacity) ||
        __builtin_mul_overflow(capacity + 64, (size_t)2, &capacity)) {
        text->failed = true;
        return false;
    }
    char *data = fti_realloc(text->data, capacity, 1);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void fti_text_append(fti_text *text, const char *data, size_t size) {
    if (!text_reserve(text, size)) return;
    if (size) memcpy(text->data + text->size, data, size);
    text->size += size;
    text->data[text->size] = 0;
}

void fti_text_printf(fti_text *text, const char *format, ...) {
    char small[256];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof small) {
        fti_text_append(text, small, (size_t)n);
    } else if (n >= 0 && text_reserve(text, (size_t)n)) {
        vsnprintf(text->data + text->size, (size_t)n + 1, format, again);
        text->size += (size_t)n;
    }
    va_end(again);
}

void fti_text_free(fti_text *text) {
    fti_free(text->data);
    memset(text, 0, sizeof *text);
}

#define NEAREST_MAX 48 /* longer words have no near names */

static size_t edit_distance(const char *a, size_t n, const char *b, size_t m) {
    size_t row[NEAREST_MAX + 1];
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            size_t best = row[j] + 1 < row[j - 1] + 1 ? row[j] + 1 : row[j - 1] + 1;
            diagonal = row[j];
            row[j] = change < best ? change : best;
        }
    }
    return row[m];
}

const char *fti_nearest(ftk_str word, const char *const *names, size_t count) {
    if (word.size == 0 || word.size > NEAREST_MAX) return NULL;
    const char *nearest = NULL;
    size_t best = (size_t)word.size / 3 + 2;
    for (size_t i = 0; i < count; i++) {
        size_t m = strlen(names[i]);
        if (m > NEAREST_MAX) continue;
        size_t d = edit_distance(word.data, (size_t)word.size, names[i], m);
        if (d < best) {
            best = d;
            nearest = names[i];
        }
    }
    return nearest;
}
