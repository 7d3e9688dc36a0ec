/*
 * synth_model.h: writes GGUF checkpoints of architecture qwen35moe whose weights
 * are random but sane: right shapes, valid blocks, activations that neither die
 * out nor explode. Quantised blocks are drawn directly, never computed from
 * floats, so a file is written as fast as the disk takes it.
 *
 * The bytes follow from the seed, the shape and the types alone: not from the
 * number of threads, nor from what else is in the file. Tests bend a file by
 * listing edits to tensors and metadata; the file stays well-formed, with every
 * tensor lying where its header says.
 */
#ifndef FTI_TESTS_SYNTH_MODEL_H
#define FTI_TESTS_SYNTH_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "freetoken/status.h"

typedef struct fti_synth_dims {
    uint32_t hidden, layers, experts, used, ff, shared_ff;
    uint32_t heads, kv_heads, head_dim, rope_dim; /* full attention */
    uint32_t key_heads, value_heads, state, conv; /* linear attention */
    uint32_t interval;                            /* every interval-th layer has full attention */
    uint32_t vocabulary, context;
} fti_synth_dims;

/* Tensors that share a type. */
enum {
    FTI_SYNTH_EMBEDDING,
    FTI_SYNTH_OUTPUT,
    FTI_SYNTH_ATTENTION,  /* full attention */
    FTI_SYNTH_LINEAR,     /* linear attention, without the next */
    FTI_SYNTH_ALPHA_BETA, /* its two small gates */
    FTI_SYNTH_GATE_UP,    /* routed experts */
    FTI_SYNTH_DOWN,
    FTI_SYNTH_SHARED, /* the shared expert */
    FTI_SYNTH_CLASSES
};

/* Beside the FTK_TYPE_ numbers, for DOWN: Q6_K in the layers where a mix of the
 * Q4_K_M kind spends more bits, Q5_K in the others. */
#define FTI_SYNTH_MIX 1000u

/* GGUF's numbers of value types. */
enum {
    FTI_SYNTH_U16 = 2,
    FTI_SYNTH_U32 = 4,
    FTI_SYNTH_I32 = 5,
    FTI_SYNTH_F32 = 6,
    FTI_SYNTH_BOOL = 7,
    FTI_SYNTH_STRING = 8,
    FTI_SYNTH_ARRAY = 9,
    FTI_SYNTH_U64 = 10,
    FTI_SYNTH_LEFT_OUT = 99 /* no number of GGUF's: the key is not written */
};

/* A metadata key to write instead of the usual one, or in addition. */
typedef struct fti_synth_meta {
    const char *key;
    uint32_t type;
    uint64_t number;  /* of integers and booleans: the low bytes */
    float real;       /* of F32 */
    const char *text; /* of STRING */
    /* Of ARRAY: integers or booleans. An array of STRING can only be empty. */
    uint32_t element_type;
    const uint64_t *elements;
    uint64_t count;
} fti_synth_meta;

/* A change to the tensor `name`. What is 0 or NULL stays as it is. */
typedef struct fti_synth_edit {
    const char *name;
    int left_out;
    const char *new_name;
    const uint32_t *type; /* types without a generator here are filled with zeros */
    uint32_t n_dims;
    uint64_t dims[3];
} fti_synth_edit;

/* A tensor that the architecture does not have, filled with small numbers. */
typedef struct fti_synth_extra {
    const char *name;
    uint32_t type;
    uint64_t columns, rows;
} fti_synth_extra;

typedef struct fti_synth_model {
    fti_synth_dims dims;
    uint32_t types[FTI_SYNTH_CLASSES];
    uint64_t seed;
    const char *label; /* general.size_label */
    uint32_t threads;  /* that write, 0: one per processor */
    uint32_t alignment;
    uint32_t integer_type; /* of the architecture's integer keys */
    uint32_t mtp_blocks;   /* trailing blocks for drafting, counted in block_count */

    const fti_synth_meta *metas;
    size_t meta_count;
    const fti_synth_edit *edits;
    size_t edit_count;
    const fti_synth_extra *extras;
    size_t extra_count;
} fti_synth_model;

/* Hidden size 256, 4 layers, 8 experts of which 2 are used, vocabulary 2048: 8 MB. */
fti_synth_model fti_synth_tiny(void);
/* The layer shapes of 35B-A3B with 8 layers, 64 experts and a vocabulary of 49664:
 * a fifth of its work per token, 1.4 GB. */
fti_synth_model fti_synth_medium(void);

/* Writes the file, replacing what is there. FTK_E_ARGUMENT for shapes that cannot
 * be written, FTK_E_IO, FTK_E_NO_MEMORY; after a failure there is no file. */
ftk_status fti_synth_write(const fti_synth_model *model, const char *path, ftk_error *err);

#endif
