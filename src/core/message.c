/*
 * message.c: the text of a failure. Formats as printf does, with two additions: whatever could
 * change how a terminal or a log shows the line is escaped, and strings that are too long for
 * it are shortened in their middle, so that the words around them, advice included, stay whole.
 */
#include "core/base.h"

#include <stdio.h>

/* What a failure may fill of its record: those that put a place before it need the rest. */
#define PREFIX_ROOM   240u
#define PREFIX_WANTED 120u
#define LEAST_SHOWN   24u /* no string is made shorter than this while others can give way */
#define GAP           "..."
#define UNIT_ROOM     16u /* of four escaped bytes */
#define STRINGS       16u /* of one message; more are not shortened */

/* ---- characters ---- */

static uint32_t code_of(const uint8_t *bytes, size_t length) {
    if (length == 1) return bytes[0];
    uint32_t code = bytes[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) code = code << 6 | (bytes[i] & 0x3Fu);
    return code;
}

static bool is_between(uint32_t code, uint32_t first, uint32_t last) {
    return code >= first && code <= last;
}

/* Controls, and what reorders or breaks lines: the bidirectional controls of Unicode and its
 * two separators. */
static bool is_plain(uint32_t code) {
    return code >= 0x20 && !is_between(code, 0x7F, 0x9F) && code != 0x061C &&
           !is_between(code, 0x200E, 0x200F) && !is_between(code, 0x2028, 0x202E) &&
           !is_between(code, 0x2066, 0x2069);
}

/* Writes the character or stray byte at the front as it is shown; how much of `text` that was
 * goes to `taken`. What is shown is shown again as it is. */
static size_t show_unit(const char *text, size_t size, char out[UNIT_ROOM], size_t *taken) {
    const uint8_t *bytes = (const uint8_t *)text;
    size_t length = fti_utf8_length(bytes, size);
    *taken = length ? length : 1;
    if (length && is_plain(code_of(bytes, length))) {
        memcpy(out, text, length);
        return length;
    }
    if (bytes[0] == '\n') {
        out[0] = '\\';
        out[1] = 'n';
        return 2;
    }
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < *taken; i++) {
        const char escape[] = {'\\', 'x', digits[bytes[i] >> 4], digits[bytes[i] & 15]};
        memcpy(out + 4 * i, escape, sizeof escape);
    }
    return 4 * *taken;
}

static size_t shown_size(const char *text, size_t size) {
    char unit[UNIT_ROOM];
    size_t shown = 0;
    for (size_t at = 0, taken; at < size; at += taken)
        shown += show_unit(text + at, size - at, unit, &taken);
    return shown;
}

/* ---- the line ---- */

typedef struct line {
    char *out;
    size_t room, size;        /* without the final NUL; nothing follows a part that is missing */
    size_t limit, kept_limit; /* of each string, of each finished text */
    size_t words, kept;       /* what words and numbers, and finished texts, take as they are */
    size_t strings[STRINGS];  /* what each of the others takes */
    size_t count;
} line;

static void emit(line *l, const char *text, size_t size) {
    if (size > l->room - l->size) {
        l->room = l->size;
        return;
    }
    memcpy(l->out + l->size, text, size);
    l->size += size;
}

/* Both ends of what is longer than `limit`. */
static void emit_string(line *l, const char *text, size_t size, size_t limit) {
    char unit[UNIT_ROOM];
    const size_t gap = sizeof GAP - 1, whole = shown_size(text, size);
    const size_t left = whole <= limit ? whole : limit <= gap ? 0 : limit - gap;
    const size_t tail = left / 2;
    bool cut = false;
    if (!l->out) return;
    for (size_t at = 0, shown = 0, taken; at < size; at += taken) {
        size_t n = show_unit(text + at, size - at, unit, &taken);
        bool drop = whole > limit && shown + n > left - tail && shown < whole - tail;
        if (drop && !cut) emit(l, GAP, gap);
        if (!drop) emit(l, unit, n);
        cut = cut || drop;
        shown += n;
    }
}

static void emit_words(line *l, const char *text, size_t size) {
    l->words += shown_size(text, size);
    emit_string(l, text, size, SIZE_MAX);
}

/* ---- conversions ---- */

typedef struct arguments {
    va_list list;
} arguments;

typedef struct conversion {
    const char *flags;
    int flag_count, width, precision; /* -1: none */
    char size;                        /* of an integer: 'l', 'L' for ll, 'j', 'z', 't', or 0 */
    char kind;
} conversion;

static int read_number(const char **at, arguments *a) {
    if (**at == '*') {
        (*at)++;
        return va_arg(a->list, int);
    }
    int n = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++) n = n * 10 + (**at - '0');
    return n;
}

/* What stands behind a '%'. */
static const char *read_conversion(const char *at, arguments *a, conversion *c) {
    *c = (conversion){.flags = at, .precision = -1};
    c->flag_count = (int)strspn(at, "-+ #0");
    at += c->flag_count;
    c->width = read_number(&at, a);
    if (*at == '.') {
        at++;
        c->precision = read_number(&at, a);
    }
    for (; *at && strchr("hljzt", *at); at++) c->size = c->size == 'l' ? 'L' : *at;
    c->kind = *at;
    return *at ? at + 1 : at;
}

static intmax_t take_signed(arguments *a, char size) {
    switch (size) {
    case 'l': return va_arg(a->list, long);
    case 'L': return va_arg(a->list, long long);
    case 'j': return va_arg(a->list, intmax_t);
    case 'z':
    case 't': return va_arg(a->list, ptrdiff_t);
    default: return va_arg(a->list, int);
    }
}

static uintmax_t take_unsigned(arguments *a, char size) {
    switch (size) {
    case 'l': return va_arg(a->list, unsigned long);
    case 'L': return va_arg(a->list, unsigned long long);
    case 'j': return va_arg(a->list, uintmax_t);
    case 'z':
    case 't': return va_arg(a->list, size_t);
    default: return va_arg(a->list, unsigned);
    }
}

static void emit_number(line *l, const conversion *c, arguments *a) {
    char spec[24], text[400]; /* a double in full has some 310 digits */
    const bool whole = strchr("diouxX", c->kind) != NULL;
    snprintf(spec, sizeof spec, "%%%.*s*.*%s%c", c->flag_count, c->flags, whole ? "j" : "",
             c->kind);
    int n;
    if (c->kind == 'd' || c->kind == 'i')
        n = snprintf(text, sizeof text, spec, c->width, c->precision, take_signed(a, c->size));
    else if (whole)
        n = snprintf(text, sizeof text, spec, c->width, c->precision, take_unsigned(a, c->size));
    else
        n = snprintf(text, sizeof text, spec, c->width, c->precision, va_arg(a->list, double));
    if (n > 0) emit_words(l, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static void emit_text(line *l, const conversion *c, const char *text) {
    if (!text) text = "(null)";
    size_t size = c->precision < 0 ? strlen(text) : strnlen(text, (size_t)c->precision);
    size_t whole = shown_size(text, size);
    if (memchr(c->flags, '-', (size_t)c->flag_count)) {
        l->kept += whole;
        emit_string(l, text, size, l->kept_limit);
    } else if (l->count == STRINGS) {
        emit_words(l, text, size);
    } else {
        l->strings[l->count++] = whole;
        emit_string(l, text, size, l->limit);
    }
}

static const char *emit_conversion(line *l, const char *format, arguments *a) {
    conversion c;
    format = read_conversion(format, a, &c);
    if (c.kind == 's') {
        emit_text(l, &c, va_arg(a->list, const char *));
    } else if (c.kind == 'c') {
        const char character = (char)va_arg(a->list, int);
        emit_words(l, &character, 1);
    } else if (c.kind == '%') {
        emit_words(l, "%", 1);
    } else if (c.kind == 'p') {
        char address[24];
        snprintf(address, sizeof address, "%p", va_arg(a->list, void *));
        emit_words(l, address, strlen(address));
    } else if (c.kind) {
        emit_number(l, &c, a);
    }
    return format;
}

static void walk(line *l, const char *format, va_list args) {
    arguments a;
    va_copy(a.list, args);
    l->size = l->words = l->kept = l->count = 0;
    while (*format) {
        size_t n = strcspn(format, "%");
        emit_words(l, format, n);
        format += n;
        if (*format) format = emit_conversion(l, format + 1, &a);
    }
    va_end(a.list);
}

/* ---- limits ---- */

static size_t size_of_others(const line *l, size_t limit) {
    size_t sum = l->words;
    for (size_t i = 0; i < l->count; i++) sum += l->strings[i] < limit ? l->strings[i] : limit;
    return sum;
}

/* The longest strings give way first, all to the same size. */
static void choose_limits(line *l, size_t room) {
    size_t wanted = room > 2 * PREFIX_ROOM ? room - PREFIX_ROOM : room;
    if (l->kept && wanted < l->kept + PREFIX_WANTED) wanted = l->kept + PREFIX_WANTED;
    if (wanted > room) wanted = room;
    if (size_of_others(l, SIZE_MAX) + l->kept > wanted) {
        l->limit = wanted;
        while (l->limit > LEAST_SHOWN && size_of_others(l, l->limit) + l->kept > wanted) l->limit--;
    }
    size_t others = size_of_others(l, l->limit);
    if (others + l->kept > room) l->kept_limit = others < room ? room - others : 0;
}

void fti_message(char *out, size_t capacity, const char *format, va_list args) {
    line l = {.limit = SIZE_MAX, .kept_limit = SIZE_MAX};
    walk(&l, format, args);
    choose_limits(&l, capacity - 1);
    l.out = out;
    l.room = capacity - 1;
    walk(&l, format, args);
    out[l.size] = 0;
}

fti_shown fti_show(ftk_str text) {
    fti_shown shown;
    line l = {.out = shown.text, .room = sizeof shown.text - 1};
    emit_string(&l, text.data ? text.data : "", (size_t)text.size, l.room);
    shown.text[l.size] = 0;
    return shown;
}

/* ---- UTF-8 ---- */

size_t fti_utf8_length(const uint8_t *bytes, size_t size) {
    uint8_t lead = bytes[0];
    if (lead < 0x80) return 1;
    size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || length > size) return 0;
    /* The second byte carries what makes a form overlong, a surrogate or too large. */
    uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (bytes[1] < low || bytes[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if ((bytes[i] & 0xC0u) != 0x80u) return 0;
    return length;
}
