/*
 * synth_plan.h: what a synthetic checkpoint of the family qwen35moe holds: its shapes,
 * tensors and header, and so every byte of the file. The file is a function of the
 * description alone; any range of it can be made at any time, in any thread.
 */
#ifndef FTI_BENCH_SYNTH_PLAN_H
#define FTI_BENCH_SYNTH_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/text.h"
#include "freetoken/status.h"
#include "synth_blocks.h"

/* Tensors that share a type. */
typedef enum fti_synth_class {
    FTI_SYNTH_CLASS_EMBEDDING,
    FTI_SYNTH_CLASS_OUTPUT,
    FTI_SYNTH_CLASS_ATTENTION,  /* full attention */
    FTI_SYNTH_CLASS_LINEAR,     /* linear attention, without the next */
    FTI_SYNTH_CLASS_ALPHA_BETA, /* its two small gates */
    FTI_SYNTH_CLASS_GATE_UP,    /* routed experts */
    FTI_SYNTH_CLASS_DOWN,
    FTI_SYNTH_CLASS_SHARED, /* the shared expert */
    FTI_SYNTH_CLASS_COUNT
} fti_synth_class;

/* Beside the FTK_TYPE_ numbers, for DOWN: Q6_K in the layers where a mix of the
 * Q4_K_M kind spends more bits, Q5_K in the others. */
#define FTI_SYNTH_TYPE_MIX 1000u

typedef struct fti_synth_shape {
    const char *name; /* of the kind */
    uint32_t hidden, layers, experts, used, ff, shared_ff;
    uint32_t heads, kv_heads, head_dim, rope_dim; /* full attention */
    uint32_t key_heads, value_heads, state, conv; /* linear attention */
    uint32_t interval;                            /* every interval-th layer has full attention */
    uint32_t vocabulary, context;
} fti_synth_shape;

typedef struct fti_synth_description {
    fti_synth_shape shape;
    uint32_t types[FTI_SYNTH_CLASS_COUNT];
    uint64_t seed;
    /* How fast experts lose popularity from rank to rank; 0: all are alike, and routing
     * follows the whole residual stream. See synth_routing.h. */
    double skew;
} fti_synth_description;

/* The shapes of `kind` with default types, seed 1, no skew; false if there is none. */
bool fti_synth_describe(const char *kind, fti_synth_description *out);
/* "tiny, medium, ..." for messages. */
const char *fti_synth_kinds(void);

/* Applies "CLASS=TYPE,CLASS=TYPE,..."; NULL, or what is wrong with it, in `buffer`. */
typedef struct fti_synth_message {
    char text[256];
} fti_synth_message;
const char *fti_synth_set_types(fti_synth_description *d, const char *list,
                                fti_synth_message *buffer);

/* What skewing does to a tensor. */
typedef enum fti_synth_role {
    FTI_SYNTH_PLAIN,
    FTI_SYNTH_TABLE,      /* embedding: the first channel is the same for all tokens */
    FTI_SYNTH_WRITER,     /* writes to the residual stream: not to its first channels */
    FTI_SYNTH_ROUTER,     /* reads the first channels only */
    FTI_SYNTH_ROUTER_NORM /* the norm before it: leaves the first channel as it is */
} fti_synth_role;

typedef struct fti_synth_tensor {
    char name[64];
    fti_synth_values values;
    fti_synth_role role;
    uint32_t layer; /* of a router */
    uint32_t n_dims;
    uint64_t dims[3];
    uint64_t offset; /* from the end of the header */
    uint64_t bytes;
} fti_synth_tensor;

typedef struct fti_synth_plan {
    fti_synth_description d;
    fti_synth_tensor *tensors;
    size_t tensor_count;
    fti_cli_text header; /* padded to where the payload begins */
    uint64_t file_bytes;
    /* Channels at the front of the residual stream that no layer writes to, 0 without
     * skew. */
    uint32_t kept_channels;
} fti_synth_plan;

/* FTK_E_ARGUMENT for types that do not fit the shapes or the skew. */
ftk_status fti_synth_plan_make(const fti_synth_description *d, fti_synth_plan *out, ftk_error *err);
void fti_synth_plan_free(fti_synth_plan *plan);

const fti_synth_tensor *fti_synth_plan_find(const fti_synth_plan *plan, const char *name);

/* Bytes [offset, offset + size) of the file, which must lie inside it. */
void fti_synth_plan_read(const fti_synth_plan *plan, uint64_t offset, size_t size, uint8_t *out);

/* Rank of every expert of a layer by popularity, 0 for the most popular: a permutation
 * of [0, experts) that differs from layer to layer. */
void fti_synth_ranks(const fti_synth_plan *plan, uint32_t layer, uint32_t *ranks);

/* Header bytes, as synth_header.c makes them; for fti_synth_plan_make only. */
void fti_synth_header_write(fti_synth_plan *plan);

#endif
