/*
 * checkpoint.h: one reader interface over checkpoint containers: typed metadata,
 * tensors, payload. Checks are total: what parses is safe to use (every offset
 * lies in the file, every size was computed without overflow, every string is
 * inside the mapping), and what is refused was refused before memory was spent.
 * The file is mapped read-only and never copied; a file that is truncated by
 * somebody else afterwards raises SIGBUS in the process, as with any mapping.
 *
 * A model split over several files is one checkpoint: its path and metadata are
 * those of the first shard, its tensors those of all, in order of shards.
 */
#ifndef FTI_CHECKPOINT_H
#define FTI_CHECKPOINT_H

#include "core/base.h"

/* Weights that are read where they lie in the file begin at a multiple of this; GGUF's default
 * is 32. */
#define FTI_WEIGHT_ALIGN 32u

/* Value types, by their GGUF numbers. */
enum {
    FTI_META_U8 = 0,
    FTI_META_I8 = 1,
    FTI_META_U16 = 2,
    FTI_META_I16 = 3,
    FTI_META_U32 = 4,
    FTI_META_I32 = 5,
    FTI_META_F32 = 6,
    FTI_META_BOOL = 7,
    FTI_META_STRING = 8,
    FTI_META_ARRAY = 9,
    FTI_META_U64 = 10,
    FTI_META_I64 = 11,
    FTI_META_F64 = 12,
    FTI_META_TYPES = 13
};

typedef struct fti_meta {
    ftk_str key;
    uint32_t type;         /* FTI_META_ */
    uint32_t element_type; /* of an array */
    uint64_t count;        /* elements of an array; 1 otherwise */
    const uint8_t *data;   /* first element as stored (little-endian, unaligned) */
    uint64_t bytes;        /* of data; for a STRING the text alone, without its length */
} fti_meta;

typedef struct fti_tensor {
    ftk_str name;
    uint32_t type;
    uint32_t n_dims;
    uint64_t dims[4];   /* absent ones are 1 */
    uint64_t row_bytes; /* bytes of dims[0] elements */
    uint64_t bytes;
    uint64_t offset; /* from the start of the file */
    uint64_t shard;  /* the file, from 0 */
} fti_tensor;

typedef struct fti_checkpoint fti_checkpoint;

/* Opens by content. Statuses: FTK_E_CKPT_READ, _FORMAT, _TRUNCATED, _VERSION,
 * _TYPE. Messages begin with the path. Any shard of a split model may be given:
 * the others are looked for in its folder, by the names that numbering them
 * gives, and every one that is missing or does not belong is named. */
ftk_status fti_checkpoint_open(const char *path, fti_checkpoint **out,
                               ftk_error *err) FTI_WARN_UNUSED;
/* The same over memory that the caller keeps alive; `name` stands for the path in
 * messages. A shard is refused: the others could not be found. */
ftk_status fti_checkpoint_from_memory(const void *data, size_t size, const char *name,
                                      fti_checkpoint **out, ftk_error *err) FTI_WARN_UNUSED;
void fti_checkpoint_close(fti_checkpoint *checkpoint);

const char *fti_checkpoint_path(const fti_checkpoint *checkpoint);
const char *fti_checkpoint_container(const fti_checkpoint *checkpoint); /* "gguf" */
unsigned fti_checkpoint_version(const fti_checkpoint *checkpoint);
/* Sum over all shards. */
uint64_t fti_checkpoint_file_bytes(const fti_checkpoint *checkpoint);
uint64_t fti_checkpoint_shard_count(const fti_checkpoint *checkpoint); /* 1: not split */

/* One file of the checkpoint; all of it is valid until close. */
typedef struct fti_shard {
    const char *path;
    const uint8_t *data; /* the mapping */
    uint64_t bytes;      /* when it was opened */
    int descriptor;      /* for reading; -1: the checkpoint lies in the caller's memory */
} fti_shard;
/* False if there is no such shard. */
bool fti_checkpoint_shard(const fti_checkpoint *checkpoint, uint64_t number, fti_shard *out);

size_t fti_checkpoint_meta_count(const fti_checkpoint *checkpoint);
const fti_meta *fti_checkpoint_meta(const fti_checkpoint *checkpoint, size_t index);
const fti_meta *fti_checkpoint_find_meta(const fti_checkpoint *checkpoint, ftk_str key);

size_t fti_checkpoint_tensor_count(const fti_checkpoint *checkpoint);
const fti_tensor *fti_checkpoint_tensor(const fti_checkpoint *checkpoint, size_t index);
bool fti_checkpoint_find_tensor(const fti_checkpoint *checkpoint, ftk_str name, size_t *index);
/* Payload of a tensor in the mapping: `bytes` bytes, valid until close. */
const void *fti_checkpoint_payload(const fti_checkpoint *checkpoint, size_t index);

/* Typed values. FTK_E_NOT_FOUND without a message if the key is absent;
 * FTK_E_CKPT_METADATA with one if it has another type or does not fit. Integers
 * may be stored in any width; floats are never read as integers. */
ftk_status fti_meta_get_u64(const fti_checkpoint *, ftk_str key, uint64_t min, uint64_t max,
                            uint64_t *value, ftk_error *err);
ftk_status fti_meta_get_f64(const fti_checkpoint *, ftk_str key, double *value, ftk_error *err);
ftk_status fti_meta_get_bool(const fti_checkpoint *, ftk_str key, bool *value, ftk_error *err);
ftk_status fti_meta_get_str(const fti_checkpoint *, ftk_str key, ftk_str *value, ftk_error *err);
/* An array whose elements are integers or booleans, read as int64. */
ftk_status fti_meta_get_i64_at(const fti_checkpoint *, ftk_str key, uint64_t index, int64_t *value,
                               ftk_error *err);
ftk_status fti_meta_get_count(const fti_checkpoint *, ftk_str key, uint64_t *count, ftk_error *err);
/* An array of strings: fills out[count], which the caller allocated. */
ftk_status fti_meta_get_strings(const fti_checkpoint *, ftk_str key, ftk_str *out, uint64_t count,
                                ftk_error *err);

/* Name of a tensor type ("Q4_K", "type 97"), and elements and bytes of its block;
 * false for unknown and removed types. */
const char *fti_type_name(uint32_t type);
bool fti_type_block(uint32_t type, uint32_t *elements, uint32_t *bytes);
/* Of `cols` elements; 0 if the type has no blocks, or cols is 0 or no multiple of one. */
uint64_t fti_type_row_bytes(uint32_t type, uint64_t cols);

#endif
