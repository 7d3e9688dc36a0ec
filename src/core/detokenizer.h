/*
 * detokenizer.h: bytes of tokens to text that never ends inside a character. At most
 * three bytes are held back: the beginning of a character that more bytes may still
 * complete. Bytes that cannot become a character pass through as they are, so that all
 * the text together is exactly the bytes that went in.
 */
#ifndef FTI_DETOKENIZER_H
#define FTI_DETOKENIZER_H

#include "core/base.h"

typedef struct fti_detokenizer {
    char held[4];
    uint32_t held_size;
} fti_detokenizer;

/* Bytes at the end of `text` that begin a character but do not complete it: 0 to 3. */
size_t fti_incomplete_tail(const char *text, size_t size);

/* Appends what `bytes` makes certain to `out`, which must have room for
 * size + 3 bytes; returns how many were written. */
size_t fti_detokenizer_push(fti_detokenizer *d, const char *bytes, size_t size, char *out);
/* Writes what is held back (at most 3 bytes) and starts anew. */
size_t fti_detokenizer_flush(fti_detokenizer *d, char *out);

#endif
