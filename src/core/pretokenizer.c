/*
 * pretokenizer.c: splits text into the pieces that BPE works on, with a PCRE2
 * pattern.
 *
 * Long runs are what makes a pattern matcher fall over, so: the text is known to
 * be valid UTF-8 and is not checked again for each piece (that would be
 * quadratic); the pattern is compiled anchored, so a piece costs what matching it
 * costs and nothing is searched; PCRE2 keeps backtracking in a bounded heap, not
 * on the stack; and the limit on steps grows with the text, because giving back a
 * run of a million spaces one by one takes a million legitimate steps. Compiled
 * code may run out of its small stack where the interpreter would not: then the
 * interpreter answers.
 */
#include "core/tokenizer_parts.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define HEAP_LIMIT_KIB 262144u
#define DEPTH_LIMIT    1000000u
#define BASE_STEPS     10000000u
#define STEPS_PER_BYTE 16u

struct fti_splitter {
    pcre2_general_context *memory;
    pcre2_code *code;
};

struct fti_split {
    const fti_splitter *splitter;
    pcre2_match_data *data;
    pcre2_match_context *context;
};

static void *pcre2_allocate(size_t size, void *unused) {
    (void)unused;
    return fti_realloc(NULL, size, 1);
}

static void pcre2_release(void *block, void *unused) {
    (void)unused;
    fti_free(block);
}

static ftk_status compile(fti_splitter *splitter, ftk_str pattern, ftk_error *err) {
    int code;
    PCRE2_SIZE offset;
    PCRE2_UCHAR message[160] = {0};
    pcre2_compile_context *context = pcre2_compile_context_create(splitter->memory);
    if (!context) return fti_no_memory(err, 256, "the pre-tokeniser's pattern");
    splitter->code = pcre2_compile((PCRE2_SPTR)pattern.data, pattern.size,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C,
                                   &code, &offset, context);
    pcre2_compile_context_free(context);
    if (splitter->code) return FTK_OK;
    if (code == PCRE2_ERROR_HEAP_FAILED)
        return fti_no_memory(err, pattern.size, "the pre-tokeniser's pattern");
    pcre2_get_error_message(code, message, sizeof message);
    return fti_fail(err, FTK_E_CKPT_TOKENIZER, "offset %zu: %s", (size_t)offset,
                    (const char *)message);
}

ftk_status fti_splitter_create(ftk_str pattern, bool jit, fti_splitter **out, ftk_error *err) {
    *out = NULL;
    fti_splitter *splitter = fti_calloc(1, sizeof *splitter);
    if (splitter)
        splitter->memory = pcre2_general_context_create(pcre2_allocate, pcre2_release, NULL);
    if (!splitter || !splitter->memory) {
        fti_splitter_free(splitter);
        return fti_no_memory(err, sizeof *splitter, "the pre-tokeniser");
    }
    ftk_status status = compile(splitter, pattern, err);
    if (status != FTK_OK) {
        fti_splitter_free(splitter);
        return status;
    }
    /* A platform without JIT, or one that forbids executable memory, interprets. */
    if (jit) (void)pcre2_jit_compile(splitter->code, PCRE2_JIT_COMPLETE);
    *out = splitter;
    return FTK_OK;
}

void fti_splitter_free(fti_splitter *splitter) {
    if (!splitter) return;
    pcre2_code_free(splitter->code);
    pcre2_general_context_free(splitter->memory);
    fti_free(splitter);
}

ftk_status fti_split_begin(const fti_splitter *splitter, fti_split **out, ftk_error *err) {
    fti_split *split = fti_calloc(1, sizeof *split);
    if (split) {
        split->splitter = splitter;
        split->data = pcre2_match_data_create(1, splitter->memory);
        split->context = pcre2_match_context_create(splitter->memory);
    }
    if (!split || !split->data || !split->context) {
        fti_split_end(split);
        *out = NULL;
        return fti_no_memory(err, sizeof *split, "splitting text");
    }
    pcre2_set_heap_limit(split->context, HEAP_LIMIT_KIB);
    pcre2_set_depth_limit(split->context, DEPTH_LIMIT);
    *out = split;
    return FTK_OK;
}

void fti_split_end(fti_split *split) {
    if (!split) return;
    pcre2_match_data_free(split->data);
    pcre2_match_context_free(split->context);
    fti_free(split);
}

static uint32_t step_limit(uint64_t bytes) {
    uint64_t steps = BASE_STEPS + bytes * STEPS_PER_BYTE;
    return steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps;
}

static int match_at(fti_split *split, ftk_str text, size_t at, uint32_t options) {
    return pcre2_match(split->splitter->code, (PCRE2_SPTR)text.data, text.size, at,
                       PCRE2_NO_UTF_CHECK | options, split->data, split->context);
}

static ftk_status match_failed(int code, size_t at, ftk_error *err) {
    PCRE2_UCHAR message[160] = {0};
    if (code == PCRE2_ERROR_NOMEMORY) return fti_no_memory(err, 0, "splitting text");
    pcre2_get_error_message(code, message, sizeof message);
    return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                    "pre-tokeniser: byte %zu of the text: PCRE2 says \"%s\"; wanted a pattern that "
                    "needs few steps per byte: tell the provider's maker, or split the text",
                    at, (const char *)message);
}

ftk_status fti_split_next(fti_split *split, ftk_str text, size_t at, size_t *end, ftk_error *err) {
    pcre2_set_match_limit(split->context, step_limit(text.size - at));
    int found = match_at(split, text, at, 0);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) found = match_at(split, text, at, PCRE2_NO_JIT);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) return match_failed(found, at, err);
    /* An empty match takes nothing, so it counts as none. */
    const PCRE2_SIZE *border = pcre2_get_ovector_pointer(split->data);
    if (found >= 0 && border[1] > at)
        *end = border[1];
    else
        *end = at + fti_utf8_length((const uint8_t *)text.data + at, (size_t)text.size - at);
    return FTK_OK;
}
