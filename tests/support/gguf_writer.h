/*
 * gguf_writer.h: for tests of checkpoints: builds GGUF bytes in memory, as valid
 * or as broken as the test wants, since every call appends exactly what it is
 * told; and walks whatever a reader made of such bytes, to prove that all of it
 * lies inside them.
 */
#ifndef FTI_TESTS_GGUF_WRITER_H
#define FTI_TESTS_GGUF_WRITER_H

#include "core/checkpoint.h"

/* Start from {0}; fti_gw_free returns it to that. Running out of memory ends the
 * test program. */
typedef struct fti_gguf_writer {
    uint8_t *data;
    size_t size;
    size_t capacity;
} fti_gguf_writer;

void fti_gw_free(fti_gguf_writer *w);

/* ---- raw bytes ---- */
void fti_gw_raw(fti_gguf_writer *w, const void *data, size_t size);
void fti_gw_fill(fti_gguf_writer *w, uint8_t byte, size_t count);
void fti_gw_u8(fti_gguf_writer *w, uint8_t value);
void fti_gw_u16(fti_gguf_writer *w, uint16_t value);
void fti_gw_u32(fti_gguf_writer *w, uint32_t value);
void fti_gw_u64(fti_gguf_writer *w, uint64_t value);
void fti_gw_f32(fti_gguf_writer *w, float value);
void fti_gw_f64(fti_gguf_writer *w, double value);
/* Length, then the bytes; `_sized` may hold NULs. */
void fti_gw_string(fti_gguf_writer *w, const char *text);
void fti_gw_string_sized(fti_gguf_writer *w, const char *text, size_t size);
/* Zeros up to a multiple of `alignment`. */
void fti_gw_pad(fti_gguf_writer *w, size_t alignment);
/* Overwrites what is already there. */
void fti_gw_patch_u32(fti_gguf_writer *w, size_t at, uint32_t value);
void fti_gw_patch_u64(fti_gguf_writer *w, size_t at, uint64_t value);

/* ---- records ---- */
void fti_gw_header(fti_gguf_writer *w, uint32_t version, uint64_t tensors, uint64_t keys);
/* Name and value type; the value follows. */
void fti_gw_key(fti_gguf_writer *w, const char *key, uint32_t type);
/* Everything of an array up to its elements. */
void fti_gw_array(fti_gguf_writer *w, const char *key, uint32_t element_type, uint64_t count);
/* An integer or boolean of any width: the low bytes of `value`. */
void fti_gw_integer(fti_gguf_writer *w, const char *key, uint32_t type, uint64_t value);
void fti_gw_text(fti_gguf_writer *w, const char *key, const char *value);
void fti_gw_tensor(fti_gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *dims,
                   uint32_t type, uint64_t offset);

/* Bytes of one scalar of a value type; 0 for strings, arrays and unknown ones. */
size_t fti_gw_scalar_bytes(uint32_t type);

/* ---- walking ---- */

/* Reads every byte that the checkpoint hands out and holds each statement of
 * checkpoint.h against data[0..size), from which it was made. NULL, or what was
 * found to be wrong. */
const char *fti_checkpoint_walk(const fti_checkpoint *checkpoint, const void *data, size_t size);

#endif
