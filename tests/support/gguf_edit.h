/*
 * gguf_edit.h: takes a GGUF file apart into its keys and tensors, lets a test
 * rename, join, cut and drop tensors, and writes the result as one file or as the
 * shards of a split model. Failures fail the running test.
 */
#ifndef TESTS_GGUF_EDIT_H
#define TESTS_GGUF_EDIT_H

#include "core/checkpoint.h"

typedef struct fti_edit_tensor {
    char name[64];
    uint32_t type;
    uint32_t n_dims;
    uint64_t dims[4];
    uint8_t *data;
    uint64_t bytes;
} fti_edit_tensor;

typedef struct fti_gguf_edit {
    fti_checkpoint *source; /* metadata are read from here when writing */
    fti_edit_tensor *tensors;
    size_t count, capacity;
} fti_gguf_edit;

fti_gguf_edit fti_ge_load(const char *path);
void fti_ge_free(fti_gguf_edit *e);

/* NULL if there is none of that name. */
fti_edit_tensor *fti_ge_find(fti_gguf_edit *e, const char *name);
void fti_ge_remove(fti_gguf_edit *e, const char *name);
/* Adds a tensor; the data are copied, NULL stands for zeros. */
fti_edit_tensor *fti_ge_add(fti_gguf_edit *e, const char *name, uint32_t type, uint32_t n_dims,
                            const uint64_t *dims, const void *data);
/* Replaces the named tensors by one, `name`: slice by slice (dims[2]) the rows of each
 * of them in turn. They must be alike but for their number of rows. */
void fti_ge_join_rows(fti_gguf_edit *e, const char *name, const char *const *parts, size_t count);

/* All of it as one file, with the source's metadata. */
void fti_ge_save(const fti_gguf_edit *e, const char *path);

/* What a shard says of itself, and its tensors first .. first + count - 1. */
typedef struct fti_edit_shard {
    uint32_t number, shards, tensors; /* split.no, .count, .tensors.count */
    size_t first, count;
    uint32_t alignment; /* 0: the default */
    const char *name;   /* general.name of a later shard, or NULL */
} fti_edit_shard;

/* Shard 0 gets the source's metadata, later ones only their own keys. */
void fti_ge_save_shard(const fti_gguf_edit *e, const fti_edit_shard *shard, const char *path);

#endif
