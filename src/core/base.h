/*
 * base.h: what every file of the library may use: error reporting, checked
 * arithmetic, growable text. Internal names begin with fti_; nothing here is
 * exported.
 */
#ifndef FTI_BASE_H
#define FTI_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "freetoken/provider.h"
#include "freetoken/status.h"

#if defined(__GNUC__)
#define FTI_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define FTI_WARN_UNUSED  __attribute__((warn_unused_result))
#else
#define FTI_PRINTF(f, a)
#define FTI_WARN_UNUSED
#endif

#define FTI_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Returns `status` after writing it and the message to `err` (NULL is allowed). The message is
 * one line that may be printed anywhere: what is no printable text in it is escaped. Where it is
 * too long, its strings lose their middle, the longest first. One that is finished (another
 * failure's message, a list with its own limit) is passed as %-s: it gives way last. */
ftk_status fti_fail(ftk_error *err, ftk_status status, const char *format, ...) FTI_PRINTF(3, 4);
ftk_status fti_failv(ftk_error *err, ftk_status status, const char *format, va_list args);

/* The text alone, into `out`. */
void fti_message(char *out, size_t capacity, const char *format, va_list args);

/* A name from outside as a message shows it, for those that need it shorter than a message has
 * room for. */
typedef struct fti_shown {
    char text[88];
} fti_shown;
fti_shown fti_show(ftk_str name);

/* Out-of-memory answer with the amount asked for (0: not known) and what it was for. */
ftk_status fti_no_memory(ftk_error *err, uint64_t bytes, const char *what);

#define FTI_TRY(expression)                                                                        \
    do {                                                                                           \
        ftk_status fti_try_status_ = (expression);                                                 \
        if (fti_try_status_ != FTK_OK) return fti_try_status_;                                     \
    } while (0)

/* ---- checked arithmetic: false on overflow, the result is then undefined ---- */
static inline bool fti_add_u64(uint64_t a, uint64_t b, uint64_t *sum) {
    return !__builtin_add_overflow(a, b, sum);
}
static inline bool fti_mul_u64(uint64_t a, uint64_t b, uint64_t *product) {
    return !__builtin_mul_overflow(a, b, product);
}
/* Rounds up to a power of two `align`. */
static inline bool fti_align_u64(uint64_t value, uint64_t align, uint64_t *out) {
    uint64_t sum;
    if (!fti_add_u64(value, align - 1, &sum)) return false;
    *out = sum & ~(align - 1);
    return true;
}

/* ---- allocation: the one pair of functions; zeroed, NULL on failure or overflow ---- */
void *fti_calloc(size_t count, size_t size);
void *fti_realloc(void *old, size_t count, size_t size); /* not zeroed */
void fti_free(void *p);
char *fti_strndup(const char *text, size_t size);
/* Allocations of this process so far, those of backends included: a test that finds
 * it unchanged has proof that steps allocate nothing. No result depends on it. */
uint64_t fti_allocation_count(void);
void fti_count_allocation(void); /* for memory that does not come from the functions above */

/* ---- strings ---- */
static inline ftk_str fti_str(const char *c_string) {
    ftk_str s = {c_string, c_string ? strlen(c_string) : 0};
    return s;
}
static inline bool fti_str_eq(ftk_str a, ftk_str b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, (size_t)a.size) == 0);
}
static inline bool fti_str_is(ftk_str a, const char *c_string) {
    return fti_str_eq(a, fti_str(c_string));
}
/* Bytes of the UTF-8 character at the front (no overlong forms, surrogates or
 * values past U+10FFFF), 0 if there is none. size > 0. */
size_t fti_utf8_length(const uint8_t *bytes, size_t size);
/* Precision and text for a "%.*s" conversion: a precision is an int. */
static inline int fti_str_len(ftk_str s) {
    return s.size > 4096 ? 4096 : (int)s.size;
}
#define FTI_STR_ARGS(s) fti_str_len(s), (s).data ? (s).data : ""

/* Growable text. Appends do nothing after a failed allocation; check `failed`
 * once at the end. Free with fti_text_free. data is NUL-terminated. */
typedef struct fti_text {
    char *data;
    size_t size;
    size_t capacity;
    bool failed;
} fti_text;
void fti_text_append(fti_text *text, const char *data, size_t size);
void fti_text_printf(fti_text *text, const char *format, ...) FTI_PRINTF(2, 3);
void fti_text_free(fti_text *text);

/* Nearest of `count` names by edit distance, for "did you mean"; NULL if none is
 * close. */
const char *fti_nearest(ftk_str word, const char *const *names, size_t count);

#endif
