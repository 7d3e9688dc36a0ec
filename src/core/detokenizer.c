/* detokenizer.c: see detokenizer.h, and the public detokenizer over it. */
#include "core/detokenizer.h"

#include "core/engine.h"

/* Bytes of the character that `lead` begins, by its first byte; 0: begins none. */
static size_t character_size(unsigned char lead) {
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    if (lead >= 0xF0 && lead <= 0xF4) return 4;
    return lead < 0x80 ? 1 : 0;
}

/* Whether `second` may follow `lead`: rules out overlong forms, surrogates and what lies
 * beyond U+10FFFF, which no further byte could mend. */
static bool may_follow(unsigned char lead, unsigned char second) {
    if ((second & 0xC0) != 0x80) return false;
    if (lead == 0xE0) return second >= 0xA0;
    if (lead == 0xED) return second <= 0x9F;
    if (lead == 0xF0) return second >= 0x90;
    if (lead == 0xF4) return second <= 0x8F;
    return true;
}

size_t fti_incomplete_tail(const char *text, size_t size) {
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        unsigned char c = (unsigned char)text[size - back];
        if ((c & 0xC0) == 0x80) continue;
        size_t whole = character_size(c);
        bool second_fits = back < 2 || may_follow(c, (unsigned char)text[size - back + 1]);
        return whole > back && second_fits ? back : 0;
    }
    return 0;
}

size_t fti_detokenizer_push(fti_detokenizer *d, const char *bytes, size_t size, char *out) {
    memcpy(out, d->held, d->held_size);
    if (size) memcpy(out + d->held_size, bytes, size);
    size_t all = d->held_size + size, tail = fti_incomplete_tail(out, all);
    memcpy(d->held, out + all - tail, tail);
    d->held_size = (uint32_t)tail;
    return all - tail;
}

size_t fti_detokenizer_flush(fti_detokenizer *d, char *out) {
    size_t size = d->held_size;
    memcpy(out, d->held, size);
    d->held_size = 0;
    return size;
}

/* ---- public ---- */

struct ftk_detokenizer {
    const ftk_engine *engine;
    fti_detokenizer state;
    char *buffer;
    size_t capacity;
};

ftk_status ftk_detokenizer_create(const ftk_engine *engine, ftk_detokenizer **out, ftk_error *err) {
    if (!engine || !out) return fti_fail(err, FTK_E_ARGUMENT, "engine and out must not be NULL");
    *out = NULL;
    FTI_TRY(fti_engine_need(engine, FTI_STAGE_CREATE, err));
    ftk_detokenizer *d = fti_calloc(1, sizeof *d);
    if (!d) return fti_no_memory(err, sizeof *d, "a detokenizer");
    d->engine = engine;
    d->capacity = engine->longest_piece + 4;
    d->buffer = fti_calloc(d->capacity, 1);
    if (d->buffer) {
        *out = d;
        return FTK_OK;
    }
    ftk_status status = fti_no_memory(err, d->capacity, "a detokenizer");
    fti_free(d);
    return status;
}

ftk_status ftk_detokenizer_push(ftk_detokenizer *d, int32_t id, const char **text, size_t *size,
                                ftk_error *err) {
    if (!d || !text || !size)
        return fti_fail(err, FTK_E_ARGUMENT, "detokenizer, text and size must not be NULL");
    const char *bytes;
    size_t count;
    FTI_TRY(ftk_token_text(d->engine, id, &bytes, &count, err));
    *size = fti_detokenizer_push(&d->state, bytes, count, d->buffer);
    *text = d->buffer;
    return FTK_OK;
}

size_t ftk_detokenizer_flush(ftk_detokenizer *d, const char **text) {
    if (!d || !text) return 0;
    *text = d->buffer;
    return fti_detokenizer_flush(&d->state, d->buffer);
}

void ftk_detokenizer_free(ftk_detokenizer *d) {
    if (!d) return;
    fti_free(d->buffer);
    fti_free(d);
}
