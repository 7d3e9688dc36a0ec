/*
 * gguf.h: what checkpoint.c and gguf.c share: the inside of a checkpoint, the
 * index over names, the form of error messages, and the parser's one entry.
 */
#ifndef FTI_GGUF_H
#define FTI_GGUF_H

#include "core/checkpoint.h"

/* Hash index over an array of records whose first member is their name. The array
 * may still be growing, but must not move. Slots hold a record number + 1. */
typedef struct fti_name_index {
    const void *records;
    size_t stride;
    uint32_t *slots;
    uint64_t mask;
} fti_name_index;

typedef enum fti_index_result {
    FTI_INDEX_ADDED,
    FTI_INDEX_DUPLICATE,
    FTI_INDEX_CROWDED /* more colliding names than chance can give */
} fti_index_result;

struct fti_checkpoint {
    char *path;
    const uint8_t *data;
    uint64_t size;
    bool mapped;    /* data is ours to unmap */
    int descriptor; /* of the file that was judged, ours to close; -1: bytes of the caller's */
    unsigned version;
    fti_meta *metas;
    size_t meta_count;
    fti_name_index meta_index;
    fti_tensor *tensors;
    size_t tensor_count;
    fti_name_index tensor_index;
    uint64_t split_number;   /* of this file among the shards, from 0 */
    uint64_t split_count;    /* 1: not split */
    uint64_t split_tensors;  /* of all shards together, 0: not stated */
    fti_checkpoint **shards; /* [split_count] in a first shard that is complete, else
                                NULL; owned but for the first, which is this one */
};

#define FTI_GGUF_MAX_TENSORS 100000u

/* Slots that an index for `count` records has: at most half of them fill up. */
static inline uint64_t fti_index_slots(uint64_t count) {
    uint64_t slots = 8;
    while (slots < 2 * count) slots *= 2;
    return slots;
}
bool fti_index_init(fti_name_index *index, const void *records, size_t stride,
                    size_t count) FTI_WARN_UNUSED;
fti_index_result fti_index_add(fti_name_index *index, size_t record,
                               size_t *duplicate_of) FTI_WARN_UNUSED;
bool fti_index_find(const fti_name_index *index, ftk_str name, size_t *record);

/* Fails with "PATH: MESSAGE". */
ftk_status fti_checkpoint_fail(const fti_checkpoint *checkpoint, ftk_error *err, ftk_status status,
                               const char *format, ...) FTI_PRINTF(4, 5);

/* "UINT32", "STRING", ...; NULL for an unknown value type. */
const char *fti_meta_type_name(uint32_t type);
/* Bytes of one element; 0 for strings, arrays and unknown types. */
uint32_t fti_meta_type_bytes(uint32_t type);

/* Reads data[0..size) into version, metas, tensors and split numbers. What was
 * allocated before a failure stays in the checkpoint, for close to free. */
ftk_status fti_gguf_parse(fti_checkpoint *checkpoint, ftk_error *err) FTI_WARN_UNUSED;
/* Refuses block types of another version of the quantisation; part of parsing, to be
 * repeated over the tensors of all shards. */
ftk_status fti_gguf_check_quantization(const fti_checkpoint *checkpoint,
                                       ftk_error *err) FTI_WARN_UNUSED;

#endif
