/*
 * tokenizer_parts.h: the two halves behind tokenizer.c. The splitter, in
 * pretokenizer.c, cuts text into pieces with the provider's pattern; BPE, in
 * bpe.c, turns the bytes of one piece into ids. Both are immutable once created;
 * what a call changes lives in a work area of that call.
 */
#ifndef FTI_TOKENIZER_PARTS_H
#define FTI_TOKENIZER_PARTS_H

#include "core/tokenizer.h"

/* ---- bpe.c ---- */

/* Bytes that a token text of the byte alphabet (printable bytes stand for
 * themselves, the other 68 for U+0100 onwards) spells: at most text.size of them.
 * False if the text holds a character outside the alphabet. */
bool fti_alphabet_decode(ftk_str text, uint8_t *out, size_t *size);

/* The tokens that BPE may produce. */
typedef struct fti_bpe_vocabulary {
    const ftk_str *pieces;  /* by id, decoded */
    const uint8_t *spelled; /* by id: 1 if BPE may produce it */
    size_t size;
    const ftk_str *merges; /* by rank, as stored: "left right" */
    size_t merge_count;
    const fti_checkpoint *checkpoint; /* for messages */
} fti_bpe_vocabulary;

typedef struct fti_bpe fti_bpe;
ftk_status fti_bpe_create(const fti_bpe_vocabulary *vocabulary, fti_bpe **out,
                          ftk_error *err) FTI_WARN_UNUSED;
void fti_bpe_free(fti_bpe *bpe);
int32_t fti_bpe_byte(const fti_bpe *bpe, uint8_t byte);

typedef struct fti_bpe_symbol fti_bpe_symbol;
typedef struct fti_bpe_work {
    fti_bpe_symbol *symbols;
    uint64_t *heap;
    size_t heap_count;
    size_t capacity; /* symbols; the heap has room for twice as many */
} fti_bpe_work;      /* starts zeroed */
void fti_bpe_work_free(fti_bpe_work *work);

/* Appends the ids of one piece; false: out of memory. size < 2^31. */
bool fti_bpe_encode(const fti_bpe *bpe, fti_bpe_work *work, const uint8_t *bytes, size_t size,
                    fti_ids *ids) FTI_WARN_UNUSED;

/* ---- pretokenizer.c ---- */

typedef struct fti_splitter fti_splitter;
/* `jit` allows PCRE2's compiler where there is one; results are the same. On
 * failure the message is PCRE2's; the caller knows whose pattern it is. */
ftk_status fti_splitter_create(ftk_str pattern, bool jit, fti_splitter **out,
                               ftk_error *err) FTI_WARN_UNUSED;
void fti_splitter_free(fti_splitter *splitter);

typedef struct fti_split fti_split;
ftk_status fti_split_begin(const fti_splitter *splitter, fti_split **out,
                           ftk_error *err) FTI_WARN_UNUSED;
void fti_split_end(fti_split *split);
/* End of the piece that begins at `at` < text.size; text must be valid UTF-8 and
 * `at` the start of a character. A character that the pattern does not match is a
 * piece of its own. */
ftk_status fti_split_next(fti_split *split, ftk_str text, size_t at, size_t *end,
                          ftk_error *err) FTI_WARN_UNUSED;

#endif
