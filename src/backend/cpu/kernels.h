/*
 * kernels.h: what the operators hand to the kernels, and the tables of kernels.
 * Each kernel is a function over a range of items, as the pool and recorded
 * graphs call it; its arguments fit FTK_KERNEL_ARGS_MAX. What an item computes
 * depends on nothing but its arguments: not on the range, nor on the table.
 */
#ifndef FTI_CPU_KERNELS_H
#define FTI_CPU_KERNELS_H

#include "core/base.h"
#include "sched/residency.h"

#define FTI_CPU_MAX_HEAD_DIM  512u  /* of keys, values and rotary parts */
#define FTI_CPU_MAX_EXPERTS   1024u /* of one layer */
#define FTI_CPU_MAX_TILE      8u    /* query heads that share one pass over keys */
#define FTI_CPU_PANEL         32u   /* weight rows that the widest kernels take at a time */
#define FTI_CPU_ATTENTION_BLK 64u   /* positions in one partial sum; part of the definition */

/* Rows of a weight matrix of any readable type. */
typedef struct fti_cpu_matrix {
    const uint8_t *data;
    uint64_t row_bytes;
    uint32_t type;
    uint32_t cols;
} fti_cpu_matrix;

/* Rows that a matrix is multiplied with: one part of the packed activations, or
 * f32 values when the weights are taken as floats. */
typedef struct fti_cpu_inputs {
    const uint8_t *data;
    uint64_t stride; /* bytes */
} fti_cpu_inputs;

typedef struct fti_cpu_embed {
    fti_cpu_matrix table;
    uint64_t table_rows;
    const int32_t *tokens;
    float *y;
    uint64_t y_stride;
} fti_cpu_embed; /* item: row */

typedef struct fti_cpu_matmul {
    fti_cpu_matrix weight;
    fti_cpu_inputs in;
    float *y;
    uint64_t y_stride;
    uint32_t rows; /* of activations */
    bool accumulate;
    bool as_float;
} fti_cpu_matmul; /* item: row of the weight */

typedef struct fti_cpu_grouped {
    fti_cpu_matrix expert; /* data: of slot 0 */
    uint64_t expert_stride;
    /* Those experts alone, in these slots; NULL: all that have pairs, each in that of its id. */
    const fti_residency_entry *list;
    const int32_t *offsets;
    const int32_t *pairs;
    fti_cpu_inputs in;
    float *y;
    uint64_t y_stride;
    uint64_t rows;   /* of an expert */
    uint64_t shares; /* items that the panels of all experts with pairs are dealt out to */
    uint32_t listed;
    uint32_t experts;
    uint32_t divisor;
    bool as_float;
} fti_cpu_grouped; /* item: share */

typedef struct fti_cpu_rope {
    float *x;
    const int32_t *positions;
    uint64_t row_stride;
    uint64_t head_stride;
    double theta;
    uint32_t heads;
    uint32_t rotary_dim;
} fti_cpu_rope; /* item: row */

/* The fields of a step and of a KV view that a position needs to be found. */
typedef struct fti_cpu_cache {
    const int32_t *positions;
    const int32_t *row_sequence;
    const int32_t *block_table;
    void *keys;
    void *values;
    uint32_t block_stride;
    uint32_t type;
    uint32_t kv_heads;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t page_tokens;
} fti_cpu_cache;

typedef struct fti_cpu_kv_append {
    fti_cpu_cache cache;
    const float *k;
    const float *v;
    uint64_t k_stride;
    uint64_t v_stride;
} fti_cpu_kv_append; /* item: row */

typedef struct fti_cpu_attention {
    fti_cpu_cache cache;
    const float *q;
    float *o;
    uint64_t q_row_stride;
    uint64_t q_head_stride;
    uint64_t o_row_stride;
    uint32_t heads;
    uint32_t tile;  /* heads of one item, at most FTI_CPU_MAX_TILE */
    uint32_t tiles; /* per KV head */
    float scale;
} fti_cpu_attention; /* item: (row, KV head, tile) */

typedef struct fti_cpu_kernels {
    ftk_cpu_kernel embed;          /* fti_cpu_embed */
    ftk_cpu_kernel rms_norm;       /* ftk_op_rms_norm; item: row */
    ftk_cpu_kernel quantize;       /* ftk_activation; item: row */
    ftk_cpu_kernel matmul;         /* fti_cpu_matmul */
    ftk_cpu_kernel rope;           /* fti_cpu_rope */
    ftk_cpu_kernel kv_append;      /* fti_cpu_kv_append */
    ftk_cpu_kernel attention;      /* fti_cpu_attention */
    ftk_cpu_kernel route;          /* ftk_op_route; item: row */
    ftk_cpu_kernel group;          /* ftk_op_route; one item: fills offsets and pairs */
    ftk_cpu_kernel grouped_matmul; /* fti_cpu_grouped */
    ftk_cpu_kernel swiglu;         /* ftk_op_swiglu; item: row */
    ftk_cpu_kernel combine;        /* ftk_op_combine; item: row */
    ftk_cpu_kernel gather_rows;    /* ftk_op_gather_rows; item: row */
} fti_cpu_kernels;

/* The reference, and the same source compiled for AVX2 and FMA, for AVX-512 and VNNI, and for
 * NEON with dot products of bytes. */
extern const fti_cpu_kernels fti_cpu_kernels_c;
#if defined(__x86_64__)
extern const fti_cpu_kernels fti_cpu_kernels_avx2;
extern const fti_cpu_kernels fti_cpu_kernels_vnni;
#elif defined(__aarch64__)
extern const fti_cpu_kernels fti_cpu_kernels_neon;
#endif

#endif
