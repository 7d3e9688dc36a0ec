/*
 * tokenizer.h: byte-level BPE from checkpoint metadata. The core owns the
 * algorithm and the tables; which pattern splits text before BPE comes from the
 * model's provider, so there is no table of model names here. Immutable after
 * create, so any number of threads may use one.
 */
#ifndef FTI_TOKENIZER_H
#define FTI_TOKENIZER_H

#include "core/checkpoint.h"

typedef struct fti_tokenizer fti_tokenizer;

/* Token types of tokenizer.ggml.token_type. */
enum {
    FTI_TOKEN_NORMAL = 1,
    FTI_TOKEN_UNKNOWN = 2,
    FTI_TOKEN_CONTROL = 3,
    FTI_TOKEN_USER = 4,
    FTI_TOKEN_UNUSED = 5,
    FTI_TOKEN_BYTE = 6
};

typedef struct fti_ids {
    int32_t *data;
    size_t count;
    size_t capacity;
} fti_ids;
bool fti_ids_push(fti_ids *ids, int32_t id); /* false: out of memory */
void fti_ids_free(fti_ids *ids);

/* Strings are read from the checkpoint's mapping, which must outlive the
 * tokenizer. Failures: FTK_E_CKPT_TOKENIZER (naming the key), FTK_E_NO_MEMORY. */
ftk_status fti_tokenizer_create(const fti_checkpoint *checkpoint, ftk_str pretokenizer,
                                fti_tokenizer **out, ftk_error *err) FTI_WARN_UNUSED;
void fti_tokenizer_free(fti_tokenizer *tokenizer);

/* Appends the ids of `text` to `ids`. Control tokens written in the text are
 * recognised only with `special`; user-defined ones too, so that without it no
 * text can stand for a token that is not text. Bytes that are not UTF-8 become
 * byte tokens: decoding gives back exactly the bytes that went in. */
ftk_status fti_tokenizer_encode(const fti_tokenizer *tokenizer, ftk_str text, bool special,
                                fti_ids *ids, ftk_error *err) FTI_WARN_UNUSED;

size_t fti_tokenizer_size(const fti_tokenizer *tokenizer);
int fti_tokenizer_type(const fti_tokenizer *tokenizer, int32_t id); /* 0: no such id */
/* Text of a token as the bytes it decodes to; control tokens give their name,
 * unused ones nothing. Owned by the tokenizer. */
ftk_str fti_tokenizer_piece(const fti_tokenizer *tokenizer, int32_t id);

#endif
