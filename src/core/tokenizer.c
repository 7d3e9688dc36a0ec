/*
 * tokenizer.c: reads the tokenizer of a checkpoint, checks all of it, and turns
 * text into ids and ids into bytes.
 *
 * Text is cut three times: at added tokens, at bytes that are not UTF-8, and by
 * the provider's pattern; bpe.c merges what remains.
 * - Added tokens (control and user-defined) count only if the caller asks for
 *   them. They are found from left to right, the longest one at each place.
 *   Without `special` the text "<|im_end|>" is ten characters, whoever wrote it.
 * - A byte that is not part of a valid character becomes its byte token, and the
 *   text on each side of it is a span of its own.
 * - Text is not normalised to NFC, although the tokenizers of this family declare
 *   it: decoding must give back the bytes that went in, positions in the text must
 *   stay positions, and nearly all text is NFC already. An e with a combining
 *   accent therefore encodes as it is written.
 */
#include "core/tokenizer.h"

#include <limits.h>
#include <stdlib.h>

#include "core/gguf.h"
#include "core/tokenizer_parts.h"

#define MAX_ENTRIES (1u << 24)

#define KEY_MODEL  "tokenizer.ggml.model"
#define KEY_PRE    "tokenizer.ggml.pre"
#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES  "tokenizer.ggml.token_type"
#define KEY_SCORES "tokenizer.ggml.scores"
#define KEY_MERGES "tokenizer.ggml.merges"

typedef struct added_token {
    ftk_str text;
    int32_t id;
} added_token;

struct fti_tokenizer {
    size_t size;
    uint8_t *types;
    ftk_str *pieces;
    uint8_t *spellings; /* bytes of all tokens of the byte alphabet */
    fti_bpe *bpe;
    fti_splitter *splitter;
    added_token *added;    /* sorted by text */
    uint32_t by_byte[257]; /* added tokens that begin with b: [by_byte[b], by_byte[b + 1]) */
};

/* ---- growing lists of ids ---- */

bool fti_ids_push(fti_ids *ids, int32_t id) {
    if (ids->count == ids->capacity) {
        size_t capacity = ids->capacity ? 2 * ids->capacity : 64;
        int32_t *data = fti_realloc(ids->data, capacity, sizeof *data);
        if (!data) return false;
        ids->data = data;
        ids->capacity = capacity;
    }
    ids->data[ids->count++] = id;
    return true;
}

void fti_ids_free(fti_ids *ids) {
    fti_free(ids->data);
    memset(ids, 0, sizeof *ids);
}

/* ---- reading the checkpoint ---- */

/* One status for all that is wrong with a tokenizer, whoever found it. */
static ftk_status as_tokenizer_error(ftk_status status, ftk_error *err) {
    if (status == FTK_OK || status == FTK_E_NO_MEMORY) return status;
    if (err) err->status = FTK_E_CKPT_TOKENIZER;
    return FTK_E_CKPT_TOKENIZER;
}

static ftk_status check_model(const fti_checkpoint *checkpoint, ftk_error *err) {
    ftk_str model;
    ftk_status status = fti_meta_get_str(checkpoint, fti_str(KEY_MODEL), &model, err);
    if (status == FTK_E_NOT_FOUND)
        return fti_checkpoint_fail(checkpoint, err, FTK_E_CKPT_TOKENIZER,
                                   KEY_MODEL
                                   " is missing; wanted \"gpt2\" (byte-level BPE); convert "
                                   "the model again, with its tokenizer");
    if (status != FTK_OK) return as_tokenizer_error(status, err);
    if (fti_str_is(model, "gpt2")) return FTK_OK;
    return fti_checkpoint_fail(checkpoint, err, FTK_E_CKPT_TOKENIZER,
                               KEY_MODEL
                               ": found \"%s\", wanted \"gpt2\" (byte-level BPE), the one "
                               "kind that is supported; use a checkpoint of such a model",
                               fti_show(model).text);
}

/* An array that must be there, with 1 to MAX_ENTRIES elements; NULL if it is not,
 * with `err` written. */
static const fti_meta *find_array(const fti_checkpoint *checkpoint, const char *key,
                                  ftk_error *err) {
    const fti_meta *meta = fti_checkpoint_find_meta(checkpoint, fti_str(key));
    if (!meta)
        fti_checkpoint_fail(
            checkpoint, err, FTK_E_CKPT_TOKENIZER,
            "%s is missing; wanted an array; convert the model again, with its tokenizer", key);
    else if (meta->type != FTI_META_ARRAY)
        fti_checkpoint_fail(
            checkpoint, err, FTK_E_CKPT_TOKENIZER,
            "%s: found a value of type %u, wanted an array; convert the model again", key,
            (unsigned)meta->type);
    else if (meta->count < 1 || meta->count > MAX_ENTRIES)
        fti_checkpoint_fail(checkpoint, err, FTK_E_CKPT_TOKENIZER,
                            "%s: found %llu elements, wanted 1 to %u; convert the model again", key,
                            (unsigned long long)meta->count, MAX_ENTRIES);
    else
        return meta;
    return NULL;
}

static ftk_status wrong_elements(const fti_checkpoint *checkpoint, const char *key,
                                 const fti_meta *meta, const char *wanted, ftk_error *err) {
    return fti_checkpoint_fail(checkpoint, err, FTK_E_CKPT_TOKENIZER,
                               "%s: found elements of type %u, wanted %s; convert the model again",
                               key, (unsigned)meta->element_type, wanted);
}

static ftk_status wrong_count(const fti_checkpoint *checkpoint, const char *key,
                              const fti_meta *meta, size_t wanted, ftk_error *err) {
    return fti_checkpoint_fail(
        checkpoint, err, FTK_E_CKPT_TOKENIZER,
        "%s: found %llu elements, wanted %zu, one for each token; convert the "
        "model again",
        key, (unsigned long long)meta->count, wanted);
}

static ftk_status read_strings(const fti_checkpoint *checkpoint, const char *key, ftk_str **out,
                               size_t *count, ftk_error *err) {
    const fti_meta *meta = find_array(checkpoint, key, err);
    if (!meta) return FTK_E_CKPT_TOKENIZER;
    if (meta->element_type != FTI_META_STRING)
        return wrong_elements(checkpoint, key, meta, "strings (8)", err);
    ftk_str *strings = fti_calloc((size_t)meta->count, sizeof *strings);
    if (!strings) return fti_no_memory(err, meta->count * sizeof *strings, key);
    ftk_status status = fti_meta_get_strings(checkpoint, fti_str(key), strings, meta->count, err);
    if (status != FTK_OK) {
        fti_free(strings);
        return as_tokenizer_error(status, err);
    }
    *out = strings;
    *count = (size_t)meta->count;
    return FTK_OK;
}

static uint32_t little_u32(const uint8_t *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

/* Types are read as they lie, four bytes each: the element type is what makes
 * that safe. */
static ftk_status read_types(fti_tokenizer *tokenizer, const fti_checkpoint *checkpoint,
                             ftk_error *err) {
    const fti_meta *meta = find_array(checkpoint, KEY_TYPES, err);
    if (!meta) return FTK_E_CKPT_TOKENIZER;
    if (meta->element_type != FTI_META_I32 && meta->element_type != FTI_META_U32)
        return wrong_elements(checkpoint, KEY_TYPES, meta, "32-bit integers (5)", err);
    if (meta->count != tokenizer->size)
        return wrong_count(checkpoint, KEY_TYPES, meta, tokenizer->size, err);
    tokenizer->types = fti_calloc(tokenizer->size, 1);
    if (!tokenizer->types) return fti_no_memory(err, tokenizer->size, KEY_TYPES);
    for (size_t id = 0; id < tokenizer->size; id++) {
        uint32_t type = little_u32(meta->data + 4 * id);
        if (type < FTI_TOKEN_NORMAL || type > FTI_TOKEN_BYTE)
            return fti_checkpoint_fail(checkpoint, err, FTK_E_CKPT_TOKENIZER,
                                       KEY_TYPES "[%zu]: found %u, wanted 1 (normal) to 6 (byte); "
                                                 "convert the model again",
                                       id, type);
        tokenizer->types[id] = (uint8_t)type;
    }
    return FTK_OK;
}

/* BPE has no use for scores, but a file whose arrays disagree is damaged. */
static ftk_status check_scores(const fti_tokenizer *tokenizer, const fti_checkpoint *checkpoint,
                               ftk_error *err) {
    if (!fti_checkpoint_find_meta(checkpoint, fti_str(KEY_SCORES))) return FTK_OK;
    const fti_meta *meta = find_array(checkpoint, KEY_SCORES, err);
    if (!meta) return FTK_E_CKPT_TOKENIZER;
    if (meta->element_type != FTI_META_F32)
        return wrong_elements(checkpoint, KEY_SCORES, meta, "32-bit floats (6)", err);
    if (meta->count != tokenizer->size)
        return wrong_count(checkpoint, KEY_SCORES, meta, tokenizer->size, err);
    return FTK_OK;
}

static ftk_status check_token_ids(const fti_tokenizer *tokenizer, const fti_checkpoint *checkpoint,
                                  ftk_error *err) {
    static const char *const keys[] = {
        "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.padding_token_id", "tokenizer.ggml.unknown_token_id"};
    for (size_t i = 0; i < FTI_COUNT(keys); i++) {
        uint64_t id;
        ftk_status status = fti_meta_get_u64(checkpoint, fti_str(keys[i]), 0, tokenizer->size - 1,
                                             &id, err);
        if (status != FTK_E_NOT_FOUND) FTI_TRY(as_tokenizer_error(status, err));
    }
    return FTK_OK;
}

/* ---- building the tables ---- */

static bool is_text(uint8_t type) {
    return type == FTI_TOKEN_NORMAL || type == FTI_TOKEN_BYTE;
}

static bool is_added(uint8_t type) {
    return type == FTI_TOKEN_CONTROL || type == FTI_TOKEN_USER;
}

/* Turns texts into pieces. `spelled` marks what BPE may produce: tokens of text
 * in the byte alphabet. One of text outside it stays readable as it is written,
 * but no bytes lead to it. */
static ftk_status spell_tokens(fti_tokenizer *tokenizer, uint8_t *spelled, ftk_error *err) {
    uint64_t total = 0;
    for (size_t id = 0; id < tokenizer->size; id++)
        if (is_text(tokenizer->types[id])) total += tokenizer->pieces[id].size;
    uint8_t *next = tokenizer->spellings = fti_calloc((size_t)total, 1);
    if (!next) return fti_no_memory(err, total, KEY_TOKENS);
    for (size_t id = 0; id < tokenizer->size; id++) {
        ftk_str *piece = &tokenizer->pieces[id];
        size_t size;
        if (tokenizer->types[id] == FTI_TOKEN_UNUSED) *piece = fti_str("");
        if (!is_text(tokenizer->types[id]) || !fti_alphabet_decode(*piece, next, &size)) continue;
        *piece = (ftk_str){(const char *)next, size};
        spelled[id] = 1;
        next += size;
    }
    return FTK_OK;
}

static ftk_status build_bpe(fti_tokenizer *tokenizer, const fti_checkpoint *checkpoint,
                            const uint8_t *spelled, ftk_error *err) {
    ftk_str *merges = NULL;
    size_t count = 0;
    FTI_TRY(read_strings(checkpoint, KEY_MERGES, &merges, &count, err));
    fti_bpe_vocabulary vocabulary = {tokenizer->pieces, spelled, tokenizer->size, merges, count,
                                     checkpoint};
    ftk_status status = fti_bpe_create(&vocabulary, &tokenizer->bpe, err);
    fti_free(merges);
    return status;
}

static int compare_added(const void *a, const void *b) {
    const added_token *x = a, *y = b;
    size_t shared = (size_t)(x->text.size < y->text.size ? x->text.size : y->text.size);
    int order = memcmp(x->text.data, y->text.data, shared);
    if (order != 0) return order;
    if (x->text.size != y->text.size) return x->text.size < y->text.size ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Leaves one token for each text, that with the lowest id. */
static size_t drop_duplicates(added_token *added, size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || !fti_str_eq(added[kept - 1].text, added[i].text)) added[kept++] = added[i];
    return kept;
}

static ftk_status build_added(fti_tokenizer *tokenizer, ftk_error *err) {
    size_t count = 0;
    for (size_t id = 0; id < tokenizer->size; id++) count += is_added(tokenizer->types[id]);
    added_token *added = tokenizer->added = fti_calloc(count, sizeof *added);
    if (!added) return fti_no_memory(err, count * sizeof *added, "the added tokens");
    count = 0;
    for (size_t id = 0; id < tokenizer->size; id++) {
        ftk_str text = tokenizer->pieces[id];
        if (is_added(tokenizer->types[id]) && text.size > 0)
            added[count++] = (added_token){text, (int32_t)id};
    }
    qsort(added, count, sizeof *added, compare_added);
    count = drop_duplicates(added, count);
    for (size_t i = 0; i < count; i++) tokenizer->by_byte[(uint8_t)added[i].text.data[0] + 1]++;
    for (size_t b = 0; b < 256; b++) tokenizer->by_byte[b + 1] += tokenizer->by_byte[b];
    return FTK_OK;
}

static ftk_status build_splitter(fti_tokenizer *tokenizer, const fti_checkpoint *checkpoint,
                                 ftk_str pattern, ftk_error *err) {
    ftk_str name = fti_str("");
    /* Only for the message; a provider that insists on the name checks it itself. */
    if (fti_meta_get_str(checkpoint, fti_str(KEY_PRE), &name, NULL) != FTK_OK) name = fti_str("");
    if (pattern.size == 0)
        return fti_checkpoint_fail(
            checkpoint, err, FTK_E_CKPT_TOKENIZER,
            KEY_PRE " \"%s\": found an empty pre-tokeniser pattern, wanted a "
                    "PCRE2 pattern; the provider does not know how this model splits text",
            fti_show(name).text);
    ftk_error why = FTK_ERROR_INIT;
    ftk_status status = fti_splitter_create(pattern, true, &tokenizer->splitter, &why);
    if (status == FTK_OK) return FTK_OK;
    if (status == FTK_E_NO_MEMORY) return fti_fail(err, status, "%-s", why.message);
    return fti_checkpoint_fail(checkpoint, err, status,
                               KEY_PRE " \"%s\": the provider's pre-tokeniser pattern does not "
                                       "compile: %s; update the provider",
                               fti_show(name).text, why.message);
}

static ftk_status build_vocabulary(fti_tokenizer *tokenizer, const fti_checkpoint *checkpoint,
                                   ftk_error *err) {
    uint8_t *spelled = fti_calloc(tokenizer->size, 1);
    if (!spelled) return fti_no_memory(err, tokenizer->size, KEY_TOKENS);
    ftk_status status = spell_tokens(tokenizer, spelled, err);
    if (status == FTK_OK) status = build_bpe(tokenizer, checkpoint, spelled, err);
    fti_free(spelled);
    return status;
}

static ftk_status build(fti_tokenizer *tokenizer, const fti_checkpoint *checkpoint, ftk_str pattern,
                        ftk_error *err) {
    FTI_TRY(check_model(checkpoint, err));
    FTI_TRY(read_strings(checkpoint, KEY_TOKENS, &tokenizer->pieces, &tokenizer->size, err));
    FTI_TRY(read_types(tokenizer, checkpoint, err));
    FTI_TRY(check_scores(tokenizer, checkpoint, err));
    FTI_TRY(check_token_ids(tokenizer, checkpoint, err));
    FTI_TRY(build_splitter(tokenizer, checkpoint, pattern, err));
    FTI_TRY(build_vocabulary(tokenizer, checkpoint, err));
    return build_added(tokenizer, err);
}

ftk_status fti_tokenizer_create(const fti_checkpoint *checkpoint, ftk_str pretokenizer,
                                fti_tokenizer **out, ftk_error *err) {
    *out = NULL;
    fti_tokenizer *tokenizer = fti_calloc(1, sizeof *tokenizer);
    if (!tokenizer) return fti_no_memory(err, sizeof *tokenizer, "the tokenizer");
    ftk_status status = build(tokenizer, checkpoint, pretokenizer, err);
    if (status == FTK_OK)
        *out = tokenizer;
    else
        fti_tokenizer_free(tokenizer);
    return status;
}

void fti_tokenizer_free(fti_tokenizer *tokenizer) {
    if (!tokenizer) return;
    fti_splitter_free(tokenizer->splitter);
    fti_bpe_free(tokenizer->bpe);
    fti_free(tokenizer->added);
    fti_free(tokenizer->spellings);
    fti_free(tokenizer->pieces);
    fti_free(tokenizer->types);
    fti_free(tokenizer);
}

/* ---- encoding ---- */

typedef struct encoding {
    const fti_tokenizer *tokenizer;
    fti_split *split;
    fti_bpe_work work;
    fti_ids *ids;
    ftk_error *err;
} encoding;

static ftk_status no_room(const encoding *e) {
    return fti_no_memory(e->err, (uint64_t)e->ids->count * sizeof(int32_t), "token ids");
}

/* First entry of the sorted [low, high), all equal before byte `depth` and longer
 * than that, whose byte there is at least `byte`. */
static size_t first_at_least(const added_token *added, size_t low, size_t high, size_t depth,
                             unsigned byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uint8_t)added[middle].text.data[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest added token that `text` begins with, or NULL: narrows the sorted
 * tokens byte by byte, so many tokens with one beginning cost no more than one. */
static const added_token *match_added(const fti_tokenizer *tokenizer, const uint8_t *text,
                                      size_t size) {
    const added_token *added = tokenizer->added, *longest = NULL;
    size_t low = tokenizer->by_byte[text[0]], high = tokenizer->by_byte[text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        if (added[low].text.size == depth) longest = &added[low++];
        if (depth == size) break;
        low = first_at_least(added, low, high, depth, text[depth]);
        high = first_at_least(added, low, high, depth, text[depth] + 1u);
    }
    return longest;
}

/* Valid UTF-8 only. */
static ftk_status encode_span(encoding *e, const uint8_t *text, size_t size) {
    ftk_str span = {(const char *)text, size};
    for (size_t at = 0, end = 0; at < size; at = end) {
        FTI_TRY(fti_split_next(e->split, span, at, &end, e->err));
        if (!fti_bpe_encode(e->tokenizer->bpe, &e->work, text + at, end - at, e->ids))
            return fti_no_memory(e->err, end - at, "merging a piece of text");
    }
    return FTK_OK;
}

/* Any bytes. */
static ftk_status encode_fragment(encoding *e, const uint8_t *text, size_t size) {
    size_t span = 0;
    for (size_t at = 0; at < size;) {
        size_t length = fti_utf8_length(text + at, size - at);
        if (length > 0) {
            at += length;
            continue;
        }
        FTI_TRY(encode_span(e, text + span, at - span));
        if (!fti_ids_push(e->ids, fti_bpe_byte(e->tokenizer->bpe, text[at]))) return no_room(e);
        span = ++at;
    }
    return encode_span(e, text + span, size - span);
}

static ftk_status encode_special(encoding *e, const uint8_t *text, size_t size) {
    size_t fragment = 0;
    for (size_t at = 0; at < size;) {
        const added_token *token = match_added(e->tokenizer, text + at, size - at);
        if (!token) {
            at++;
            continue;
        }
        FTI_TRY(encode_fragment(e, text + fragment, at - fragment));
        if (!fti_ids_push(e->ids, token->id)) return no_room(e);
        at += (size_t)token->text.size;
        fragment = at;
    }
    return encode_fragment(e, text + fragment, size - fragment);
}

ftk_status fti_tokenizer_encode(const fti_tokenizer *tokenizer, ftk_str text, bool special,
                                fti_ids *ids, ftk_error *err) {
    if (text.size > INT32_MAX)
        return fti_fail(err, FTK_E_ARGUMENT,
                        "tokenizer: text of %llu bytes; wanted at most %d: split it",
                        (unsigned long long)text.size, INT32_MAX);
    if (text.size == 0) return FTK_OK;
    encoding e = {.tokenizer = tokenizer, .ids = ids, .err = err};
    size_t before = ids->count;
    FTI_TRY(fti_split_begin(tokenizer->splitter, &e.split, err));
    const uint8_t *bytes = (const uint8_t *)text.data;
    ftk_status status = special ? encode_special(&e, bytes, (size_t)text.size)
                                : encode_fragment(&e, bytes, (size_t)text.size);
    if (status != FTK_OK) ids->count = before;
    fti_split_end(e.split);
    fti_bpe_work_free(&e.work);
    return status;
}

/* ---- tokens ---- */

size_t fti_tokenizer_size(const fti_tokenizer *tokenizer) {
    return tokenizer->size;
}

static bool has_id(const fti_tokenizer *tokenizer, int32_t id) {
    return id >= 0 && (size_t)id < tokenizer->size;
}

int fti_tokenizer_type(const fti_tokenizer *tokenizer, int32_t id) {
    return has_id(tokenizer, id) ? tokenizer->types[id] : 0;
}

ftk_str fti_tokenizer_piece(const fti_tokenizer *tokenizer, int32_t id) {
    return has_id(tokenizer, id) ? tokenizer->pieces[id] : fti_str("");
}
