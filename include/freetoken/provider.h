/*
 * provider.h: the contract between libfreetoken and a model provider.
 *
 * A provider is a shared object that holds everything the engine must know of
 * one model family. The core loads it only if the operator's configuration
 * allows it by name and path; then it sees exactly this header: one exported
 * function, freetoken_provider_v1(), that returns a constant table.
 *
 * Level 0 is experimental: host and provider must state the same level.
 *
 * Rules for every struct that crosses the boundary:
 *  1. The first member is uint32_t struct_size, set by whoever allocates it.
 *  2. Members are only ever appended; retired ones stay as reserved.
 *  3. There is no implicit padding; sizes are multiples of 8 (LP64 only).
 *  4. Readers ask FTK_HAS(p, member) before they read a member that is younger
 *     than level 0; function slots may also be NULL where that is stated.
 *  5. The callee writes members inside the caller's size, one by one.
 *  6. Arrays of structs carry a stride in bytes.
 *  7. Fixed-width integers, float, pointers and ftk_str only. Constants are
 *     macros.
 *  8. Unknown bits in a word named `required` are refused, in `hint` ignored.
 *  9. Interfaces are asked for by name and level: host->query("operators", 0).
 *     Argument structs of an interface's functions (ftk_op_..., ftk_activation,
 *     ftk_routing) carry no size: an interface's level fixes them, and a change
 *     to one is a new level of that interface.
 *
 * Ownership: a pointer handed to a function is valid until that function
 * returns, unless its declaration says otherwise. Strings are UTF-8 and not
 * NUL-terminated. A provider never prints, exits, aborts, starts threads,
 * reads the environment or throws across the boundary.
 *
 * Threads: calls on one model are serialised by the core; two models may run
 * at the same time, so a provider has no mutable globals.
 */
#ifndef FREETOKEN_PROVIDER_H
#define FREETOKEN_PROVIDER_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"
#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FTK_HAS(p, member)                                                                         \
    ((p)->struct_size >= offsetof(__typeof__(*(p)), member) + sizeof((p)->member))

typedef struct ftk_str {
    const char *data; /* may be NULL when size is 0 */
    uint64_t size;    /* bytes */
} ftk_str;

/* For string literals only. */
#define FTK_STR(literal)                                                                           \
    { (literal), sizeof(literal) - 1 }

typedef struct ftk_core_ctx ftk_core_ctx; /* core: the engine that calls */
typedef struct ftk_model ftk_model;       /* provider: one configured instance */
typedef struct ftk_stream ftk_stream;     /* backend: ordered queue of work */

/* ---- types of tensor data --------------------------------------------- */

/* Element and block types, by their GGUF numbers. Block layouts are in
 * device/quant.h. */
#define FTK_TYPE_F32    0u
#define FTK_TYPE_F16    1u
#define FTK_TYPE_Q4_0   2u
#define FTK_TYPE_Q4_1   3u
#define FTK_TYPE_Q5_0   6u
#define FTK_TYPE_Q5_1   7u
#define FTK_TYPE_Q8_0   8u
#define FTK_TYPE_Q2_K   10u
#define FTK_TYPE_Q3_K   11u
#define FTK_TYPE_Q4_K   12u
#define FTK_TYPE_Q5_K   13u
#define FTK_TYPE_Q6_K   14u
#define FTK_TYPE_IQ4_NL 20u
#define FTK_TYPE_IQ4_XS 23u
#define FTK_TYPE_I32    26u
#define FTK_TYPE_BF16   30u
#define FTK_TYPE_MXFP4  39u
#define FTK_TYPE_NVFP4  40u

/* How the bytes of a weight are arranged. RAW: rows one after the other, each
 * row cols / block_elements blocks, as the checkpoint has them. */
#define FTK_LAYOUT_RAW 0u

/* A matrix that operators read: y[rows] = W[rows x cols] . x[cols]. The core
 * makes it from the plan; `data` is a device address, valid until destroy. */
typedef struct ftk_weight {
    uint32_t struct_size;
    uint32_t type;   /* FTK_TYPE_ */
    uint32_t layout; /* FTK_LAYOUT_ */
    uint32_t reserved0;
    uint64_t rows;
    uint64_t cols;
    uint64_t row_bytes;
    const void *data;
} ftk_weight;

/* One part (gate, up, down, ...) of the experts of one layer: expert e's
 * matrix starts at base + slot(e) * expert_stride, slot(e) being e when `slots`
 * is NULL and slots[e] otherwise. Device addresses. Only the core makes views.
 *
 * Where `slots` is not NULL there are fewer slots than experts, slots[e] is -1 for an expert
 * that lies elsewhere, and what it says changes while a step runs: operators->ensure brings what
 * a step needs, and only operators->grouped_matmul reads such a bank. A provider's own kernel
 * may read a bank without `slots`. */
typedef struct ftk_bank_view {
    uint32_t struct_size;
    uint32_t type;
    uint32_t layout;
    uint32_t experts;
    uint64_t rows;
    uint64_t cols;
    uint64_t row_bytes;
    uint64_t expert_stride;
    const void *base;
    const int32_t *slots;
} ftk_bank_view;

/* Rows of activations as operators read them. `x` is f32; `packed` is filled
 * by the quantize operator in the formats named, and must have room for
 * operators->activation_bytes(formats, rows, cols). Device addresses. */
typedef struct ftk_activation {
    const float *x;
    void *packed;
    uint64_t x_stride; /* floats from row to row of x */
    uint32_t rows;
    uint32_t cols;
    uint32_t formats; /* FTK_ACT_ bits; 0 when only F32, F16 or BF16 weights read it */
    uint32_t reserved0;
} ftk_activation;

#define FTK_ACT_A32  1u /* signed bytes, f32 scale per 32: read by 32- and 64-element blocks */
#define FTK_ACT_A256 2u /* signed bytes, f32 scale per 256: read by 256-element block types */

/* ---- one step ---------------------------------------------------------- */

/* Keys and values of one attention layer, in pages of page_tokens positions.
 * Position p of sequence s lies in page t = block_table[s * block_stride +
 * p / page_tokens], at element ((t * page_tokens + p % page_tokens) * kv_heads
 * + head) * dim. Device addresses, owned by the core, valid until destroy. */
typedef struct ftk_kv_view {
    uint32_t struct_size;
    uint32_t type; /* of keys and values: FTK_TYPE_ F16, BF16, Q8_0 or F32 */
    uint32_t kv_heads;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t page_tokens;
    void *keys;
    void *values;
} ftk_kv_view;

/* Recurrent state: sequence s has state_bytes at base + state_slots[s] *
 * slot_stride, zeroed by the core before a sequence's first token. */
typedef struct ftk_state_view {
    uint32_t struct_size;
    uint32_t reserved0;
    void *base;
    uint64_t slot_stride; /* bytes */
} ftk_state_view;

/*
 * One step of the engine: `rows` token rows of `sequences` sequences. The rows
 * of sequence s are sequence_rows[s] .. sequence_rows[s + 1] - 1, in order of
 * position; a sequence may have none. Row r belongs to row_sequence[r], or is
 * padding if that is negative: then its values are computed or not as suits
 * the operator, nothing is written to caches or state, and no other row may
 * depend on it.
 *
 * Arrays are device memory and keep their addresses from step to step, so that
 * a captured step can be replayed with other contents. Only the counts are
 * known to the host.
 */
typedef struct ftk_step {
    uint32_t struct_size;
    uint32_t required; /* none defined */
    uint32_t rows;
    uint32_t sequences;
    uint32_t logit_count;         /* rows of logits asked for */
    uint32_t block_stride;        /* entries of block_table per sequence */
    ftk_stream *stream;           /* everything goes here */
    const int32_t *tokens;        /* [rows] */
    const int32_t *positions;     /* [rows], from 0 */
    const int32_t *row_sequence;  /* [rows] */
    const int32_t *sequence_rows; /* [sequences + 1] */
    const int32_t *state_slots;   /* [sequences] */
    const int32_t *block_table;   /* [sequences][block_stride] */
    const int32_t *logit_rows;    /* [logit_count] row indices */
    float *logits;                /* out: [logit_count][vocabulary] */
    float *layer_outputs;         /* out, or NULL: [layers][logit_count][hidden], the
                                     residual stream after each layer */
    void *workspace;              /* 64-byte aligned, contents undefined */
    uint64_t workspace_bytes;     /* at least what the plan stated for this many rows */
} ftk_step;

/* ---- host interfaces ---------------------------------------------------- */

#define FTK_SEVERITY_DEBUG   0
#define FTK_SEVERITY_INFO    1
#define FTK_SEVERITY_WARNING 2
#define FTK_SEVERITY_ERROR   3

/*
 * The host table: process lifetime, constant. A provider keeps the pointer per
 * model (from create), never in a global.
 */
typedef struct ftk_host {
    uint32_t struct_size;
    uint32_t api_level;
    uint32_t min_provider_level;
    uint32_t reserved0;
    ftk_str core_version;

    /* Adds a message to the record of the running call. The text is copied. A
     * function that fails must report once with severity ERROR what was found,
     * what was wanted, and where; INFO and WARNING become notes of the
     * provenance. */
    void (*report)(ftk_core_ctx *, int32_t severity, ftk_status status, ftk_str message);

    /* Host memory, zeroed, aligned to `align` (a power of two, 0 for 16); NULL
     * when there is none. Released by release(), at the latest in destroy. */
    void *(*alloc)(ftk_core_ctx *, uint64_t bytes, uint64_t align);
    void (*release)(ftk_core_ctx *, void *);

    /* Value of a named capability ("cpu.avx2", ...), FTK_E_NOT_FOUND if the core
     * does not report it. */
    ftk_status (*capability)(ftk_core_ctx *, ftk_str name, int64_t *value);

    /* Interface table of process lifetime, or NULL if name or level is unknown. There are
     * "checkpoint_reader", "operators" and "kernels", each at level 0. Names kept for what
     * comes: "log", "telemetry", "bank_view", "prepared_copy", "stream", "event",
     * "residency", "graph_safe", "state", "reasoning", "tool_calls", "multimodal". None is, or
     * will be, for scheduling, admission, residency policy or capture. */
    const void *(*query)(ftk_core_ctx *, ftk_str name, uint32_t level);
} ftk_host;

typedef struct ftk_tensor_info {
    uint32_t struct_size;
    uint32_t type; /* FTK_TYPE_ number, also of types that no operator reads */
    uint32_t n_dims;
    uint32_t reserved0;
    uint64_t dims[4]; /* dims[0] is contiguous; absent ones are 1 */
    uint64_t bytes;
    ftk_str name; /* valid while the model lives */
} ftk_tensor_info;

/*
 * "checkpoint_reader", level 0: metadata and tensors of the open checkpoint,
 * whatever its container. Getters return FTK_E_NOT_FOUND for an absent key and
 * FTK_E_CKPT_METADATA for one of the wrong type or out of range; only the latter
 * is reported. Integers of any stored width are accepted where the value fits.
 * Valid in match, create, plan_weights and load_weights.
 */
typedef struct ftk_if_checkpoint_reader {
    uint32_t struct_size;
    uint32_t level;
    ftk_status (*get_u64)(ftk_core_ctx *, ftk_str key, uint64_t min, uint64_t max, uint64_t *value);
    ftk_status (*get_f64)(ftk_core_ctx *, ftk_str key, double *value);
    ftk_status (*get_bool)(ftk_core_ctx *, ftk_str key, uint32_t *value);
    ftk_status (*get_str)(ftk_core_ctx *, ftk_str key, ftk_str *value);
    /* Array of integers or booleans: its length, and one element. */
    ftk_status (*array_size)(ftk_core_ctx *, ftk_str key, uint64_t *size);
    ftk_status (*array_i64)(ftk_core_ctx *, ftk_str key, uint64_t index, int64_t *value);
    /* Index of the first element of an array of strings that equals `value`. */
    ftk_status (*array_find_str)(ftk_core_ctx *, ftk_str key, ftk_str value, uint64_t *index);
    uint64_t (*tensor_count)(ftk_core_ctx *);
    ftk_status (*tensor)(ftk_core_ctx *, uint64_t index, ftk_tensor_info *info);
    ftk_status (*find_tensor)(ftk_core_ctx *, ftk_str name, uint64_t *index);
    /* Copies `bytes` bytes from `offset` on of a tensor's stored data to host memory:
     * for computed tensors, which load_weights converts. FTK_E_ARGUMENT, reported,
     * outside the tensor. */
    ftk_status (*read)(ftk_core_ctx *, uint64_t tensor, uint64_t offset, uint64_t bytes, void *out);
} ftk_if_checkpoint_reader;

/*
 * "operators", level 0: the generic unfused operators. Each enqueues work on a
 * stream and returns; arguments are copied, what they point to is device memory
 * and must stay valid until the work has run. All are legal while the core
 * captures. Values are f32; every row is computed by the same operations in the
 * same order whatever else is in the step. They fail only with FTK_E_ARGUMENT
 * (a type or shape that the operator does not take: nothing was enqueued) or
 * FTK_E_DEVICE_*.
 */
typedef struct ftk_op_embed { /* y[r] = table[tokens[r]], decoded to f32 */
    const ftk_weight *table;
    const int32_t *tokens;
    float *y; /* [rows][y_stride] */
    uint64_t y_stride;
    uint32_t rows;
    uint32_t reserved0;
} ftk_op_embed;

/* y = x / sqrt(mean(x^2) + eps) * w over n values, for each row and group at
 * row * row_stride + group * group_stride (floats). y may be x. */
typedef struct ftk_op_rms_norm {
    const float *x;
    const float *weight; /* [n] */
    float *y;
    uint64_t x_row_stride;
    uint64_t x_group_stride;
    uint64_t y_row_stride;
    uint64_t y_group_stride;
    uint32_t rows;
    uint32_t groups;
    uint32_t n;
    float eps;
} ftk_op_rms_norm;

/* Fills act->packed from act->x in each format of act->formats. */
typedef struct ftk_op_quantize {
    ftk_activation act;
} ftk_op_quantize;

/* y[r] = weight . act[r], or y[r] += with FTK_MATMUL_ACCUMULATE (the product is
 * completed before it is added). */
#define FTK_MATMUL_ACCUMULATE 1u
typedef struct ftk_op_matmul {
    const ftk_weight *weight;
    ftk_activation act;
    float *y; /* [act.rows][y_stride] */
    uint64_t y_stride;
    uint32_t required; /* FTK_MATMUL_ */
    uint32_t reserved0;
} ftk_op_matmul;

/* Rotary position embedding, in place, halves paired: for j < rotary_dim / 2
 * the pair (x[j], x[j + rotary_dim / 2]) is turned by position * theta^(-2j /
 * rotary_dim). Dimensions from rotary_dim up are left alone. */
typedef struct ftk_op_rope {
    float *x; /* row * row_stride + head * head_stride */
    const int32_t *positions;
    uint64_t row_stride;
    uint64_t head_stride;
    double theta;
    uint32_t rows;
    uint32_t heads;
    uint32_t rotary_dim;
    uint32_t reserved0;
} ftk_op_rope;

/* Writes each row's key and value at its position. Padding rows are skipped. */
typedef struct ftk_op_kv_append {
    const ftk_step *step; /* fields are copied */
    const ftk_kv_view *kv;
    const float *k; /* row * k_stride + head * key_dim */
    const float *v;
    uint64_t k_stride;
    uint64_t v_stride;
} ftk_op_kv_append;

/* Causal grouped-query attention: query head h reads KV head h / (heads /
 * kv_heads), keys 0 .. position; o = softmax(scale * q.K) . V. Reads what
 * kv_append wrote, this step's rows included. */
typedef struct ftk_op_attention {
    const ftk_step *step; /* fields are copied */
    const ftk_kv_view *kv;
    const float *q; /* row * q_row_stride + head * q_head_stride */
    float *o;       /* row * o_row_stride + head * value_dim */
    uint64_t q_row_stride;
    uint64_t q_head_stride;
    uint64_t o_row_stride;
    uint32_t heads;
    float scale;
} ftk_op_attention;

/* Result of routing, and the same grouped by expert for the grouped matmul:
 * pairs (row * used + rank) of expert e are pairs[offsets[e] ..
 * offsets[e + 1] - 1], ascending. Device memory of the caller. */
typedef struct ftk_routing {
    int32_t *experts; /* [rows][used], by falling probability, ties to the lower id */
    float *weights;   /* [rows][used] */
    int32_t *offsets; /* [expert_count + 1] */
    int32_t *pairs;   /* [rows * used] */
    uint32_t rows;
    uint32_t used;
    uint32_t expert_count;
    uint32_t reserved0;
} ftk_routing;

/* p = softmax(logits) over all experts; the `used` largest, divided by their
 * sum. */
typedef struct ftk_op_route {
    const float *logits; /* [rows][logits_stride] */
    uint64_t logits_stride;
    ftk_routing routing;
    /* The step's, or NULL: rows that are padding get experts and weights, but no place among
     * the pairs, so that nothing is fetched or multiplied for them. */
    const int32_t *row_sequence;
} ftk_op_route;

/* Brings the experts of a layer that its routing names to where grouped_matmul reads them.
 * Called once for each layer and routing, after route and before the first grouped_matmul of the
 * layer; what needs no routed expert (a shared one) is best put between, since what is missing
 * comes meanwhile. The layer's grouped_matmuls must all have been called before the next ensure.
 * Nothing happens where the bank has no `slots`. */
typedef struct ftk_op_ensure {
    const ftk_bank_view *bank; /* any part of the layer: it stands for all of them */
    ftk_routing routing;
} ftk_op_ensure;

/* y[pair] = bank[expert of pair] . act[pair / act_divisor], for every pair that the routing
 * lists: act_divisor is `used` when activations are per row, 1 when they are per pair. */
typedef struct ftk_op_grouped_matmul {
    const ftk_bank_view *bank;
    ftk_activation act;
    ftk_routing routing;
    float *y; /* [rows * used][y_stride] */
    uint64_t y_stride;
    uint32_t act_divisor;
    uint32_t reserved0;
} ftk_op_grouped_matmul;

/* y = silu(gate) * up, n values per row. y may be gate or up. */
typedef struct ftk_op_swiglu {
    const float *gate;
    const float *up;
    float *y;
    uint64_t gate_stride;
    uint64_t up_stride;
    uint64_t y_stride;
    uint32_t rows;
    uint32_t n;
} ftk_op_swiglu;

/* y = residual + (sum over ranks in rank order of weight * contribution
 *                 + sigmoid(shared_gate) * shared). y may be residual. */
typedef struct ftk_op_combine {
    const float *contributions; /* [rows * used][stride] */
    const float *weights;       /* [rows][used] */
    const float *shared;        /* [rows][stride], or NULL */
    const float *shared_gate;   /* [rows] logits, or NULL: 1 */
    const float *residual;      /* [rows][stride] */
    float *y;                   /* [rows][stride] */
    uint64_t stride;
    uint32_t rows;
    uint32_t used;
    uint32_t n;
    uint32_t reserved0;
} ftk_op_combine;

/* y[i] = x[index[i]], n values each. */
typedef struct ftk_op_gather_rows {
    const float *x;
    const int32_t *index;
    float *y;
    uint64_t x_stride;
    uint64_t y_stride;
    uint32_t count;
    uint32_t n;
} ftk_op_gather_rows;

/* y[r] = x[r] * f, or y[r] += with FTK_SCALE_ACCUMULATE (the product is rounded
 * before it is added), n values each; f is factors[index[r]], or factors[0] where
 * index is NULL. A row whose index is not below factor_count is left alone. y may
 * be x. What follows a matmul whose weights have a factor beside them. */
#define FTK_SCALE_ACCUMULATE 1u
typedef struct ftk_op_scale {
    const float *x;
    const float *factors;
    const int32_t *index; /* [rows], or NULL */
    float *y;
    uint64_t x_stride;
    uint64_t y_stride;
    uint32_t rows;
    uint32_t n;
    uint32_t factor_count;
    uint32_t required; /* FTK_SCALE_ */
} ftk_op_scale;

typedef struct ftk_if_operators {
    uint32_t struct_size;
    uint32_t level;
    /* The FTK_ACT_ format that a matmul of this weight type reads; 0 for float
     * types. FTK_E_UNSUPPORTED if no operator reads the type. */
    ftk_status (*activation_format)(uint32_t weight_type, uint32_t *format);
    /* Room for `packed`; a multiple of 64. */
    uint64_t (*activation_bytes)(uint32_t formats, uint64_t rows, uint64_t cols);
    ftk_status (*embed)(ftk_stream *, const ftk_op_embed *);
    ftk_status (*rms_norm)(ftk_stream *, const ftk_op_rms_norm *);
    ftk_status (*quantize)(ftk_stream *, const ftk_op_quantize *);
    ftk_status (*matmul)(ftk_stream *, const ftk_op_matmul *);
    ftk_status (*rope)(ftk_stream *, const ftk_op_rope *);
    ftk_status (*kv_append)(ftk_stream *, const ftk_op_kv_append *);
    ftk_status (*attention)(ftk_stream *, const ftk_op_attention *);
    ftk_status (*route)(ftk_stream *, const ftk_op_route *);
    ftk_status (*grouped_matmul)(ftk_stream *, const ftk_op_grouped_matmul *);
    ftk_status (*swiglu)(ftk_stream *, const ftk_op_swiglu *);
    ftk_status (*combine)(ftk_stream *, const ftk_op_combine *);
    ftk_status (*gather_rows)(ftk_stream *, const ftk_op_gather_rows *);
    ftk_status (*scale)(ftk_stream *, const ftk_op_scale *);
    ftk_status (*ensure)(ftk_stream *, const ftk_op_ensure *);
} ftk_if_operators;

/*
 * "kernels", level 0: the provider's own code on the device. On the CPU a
 * kernel is a function over items begin .. end - 1 of `items`; the core's pool
 * calls it from several threads on disjoint ranges, and captured steps call it
 * again on replay. What it computes for an item may not depend on the range.
 */
#define FTK_KERNEL_ARGS_MAX 256u /* bytes of arguments that a launch copies */
typedef void (*ftk_cpu_kernel)(const void *args, uint64_t begin, uint64_t end);

typedef struct ftk_cpu_launch {
    uint32_t struct_size;
    uint32_t args_bytes; /* at most FTK_KERNEL_ARGS_MAX; copied */
    ftk_str name;        /* "owner/kernel", static storage */
    ftk_cpu_kernel function;
    const void *args;
    uint64_t items;
} ftk_cpu_launch;

typedef struct ftk_if_kernels {
    uint32_t struct_size;
    uint32_t level;
    ftk_status (*launch_cpu)(ftk_stream *, const ftk_cpu_launch *);
} ftk_if_kernels;

/* ---- what a provider says of itself -------------------------------------- */

typedef struct ftk_capability_need {
    ftk_str name;
    int64_t min_value;
} ftk_capability_need;

/* One implementation of an operation. Rows of a table stand in order of
 * preference; the last one is the exact reference and needs nothing. The core
 * chooses, and records why each row above the chosen one was passed over. */
typedef struct ftk_variant {
    ftk_str name; /* "owner/operation_variant" */
    const ftk_capability_need *needs;
    uint64_t need_count;
} ftk_variant;

typedef struct ftk_variant_table {
    uint32_t struct_size;
    uint32_t variant_stride;
    ftk_str operation;
    const ftk_variant *variants;
    uint64_t variant_count; /* at least 1 */
} ftk_variant_table;

/* Why a variant was passed over; a closed list. */
#define FTK_REASON_NONE                0u
#define FTK_REASON_CAPABILITY_MISSING  1u
#define FTK_REASON_VALUE_TOO_LOW       2u
#define FTK_REASON_TYPE                3u
#define FTK_REASON_SHAPE               4u
#define FTK_REASON_ALIGNMENT           5u
#define FTK_REASON_POLICY              6u
#define FTK_REASON_NOT_GRAPH_SAFE      7u
#define FTK_REASON_SELF_TEST           8u
#define FTK_REASON_BUILD_LACKS_BACKEND 9u

/* Identity: what manifest, ELF note and this table must agree on. Lists are
 * separated by single spaces. */
typedef struct ftk_identity {
    uint32_t struct_size;
    uint32_t api_level;
    uint32_t min_host_level;
    uint32_t reserved0;
    ftk_str name;
    ftk_str version;
    ftk_str core_range;    /* semver range of libfreetoken, e.g. ">=0.1.0 <0.2.0" */
    ftk_str architectures; /* values of general.architecture */
    ftk_str containers;    /* "gguf" ... */
    ftk_str backends;      /* "cpu" ... */
    ftk_str license;
    /* Targets that the provider's device code was built for: "sm_90 gfx1201". Empty if it
     * brings none. An engine on a device of another target refuses it before it is loaded. */
    ftk_str device_code;
    /* What it claims its (architecture, container) pairs as. "model" or empty: it owns the
     * architectures. "format": it only adds the containers to architectures that another
     * allowed provider owns. */
    ftk_str provides;
} ftk_identity;

/* The ELF note that repeats the identity, so that it can be read without running
 * code: owner "freetoken", type 1, text of `key=value` lines. Use once, at file
 * scope; arguments are string literals, levels as decimal strings. */
#define FTK_NOTE_OWNER "freetoken"
#define FTK_NOTE_TYPE  1u
#define FTK_PROVIDER_NOTE(name, version, api_level, min_host_level, core_range, architectures,     \
                          containers, backends, license)                                           \
    FTK_PROVIDER_NOTE_MORE(name, version, api_level, min_host_level, core_range, architectures,    \
                           containers, backends, license, "")
/* The same with the lines that most providers do not need: `more` is one of the two below, or
 * both side by side. */
#define FTK_NOTE_DEVICE_CODE(targets) "device_code=" targets "\\n"
#define FTK_NOTE_PROVIDES(what)       "provides=" what "\\n"
#define FTK_PROVIDER_NOTE_MORE(name, version, api_level, min_host_level, core_range,               \
                               architectures, containers, backends, license, more)                 \
    __asm__(".pushsection .note.freetoken,\"a\",%note\n"                                           \
            ".balign 4\n"                                                                          \
            ".long 2f-1f\n"                                                                        \
            ".long 4f-3f\n"                                                                        \
            ".long 1\n"                                                                            \
            "1: .asciz \"freetoken\"\n"                                                            \
            "2: .balign 4\n"                                                                       \
            "3: .ascii \"name=" name "\\nversion=" version "\\napi_level=" api_level               \
            "\\nmin_host_level=" min_host_level "\\ncore_range=" core_range                        \
            "\\narchitectures=" architectures "\\ncontainers=" containers "\\nbackends=" backends  \
            "\\nlicense=" license "\\n" more "\"\n"                                                \
            "4: .balign 4\n"                                                                       \
            ".popsection\n")

/* ---- lifecycle ------------------------------------------------------------ */

/* match: is this checkpoint ours, and can this machine run it? No allocation,
 * no device use. Returns FTK_OK with `claimed` 0 or 1; FTK_E_PROVIDER_HARDWARE
 * with a report if it is ours but the capabilities do not suffice. */
typedef struct ftk_match_in {
    uint32_t struct_size;
    uint32_t reserved0;
    ftk_str architecture;
    ftk_str container;
    ftk_str backend; /* "cpu" ... */
} ftk_match_in;

typedef struct ftk_match_out {
    uint32_t struct_size;
    uint32_t claimed;
} ftk_match_out;

/* create: parse the configuration. Host memory only. Errors name the key. */
typedef struct ftk_create_in {
    uint32_t struct_size;
    uint32_t reserved0;
    ftk_str architecture;
    ftk_str container;
    ftk_str backend;
    ftk_str options; /* provider_options.NAME of the configuration as a JSON object, or empty */
} ftk_create_in;

/* What the core needs to know of the model. Strings and arrays live as long as
 * the model. */
typedef struct ftk_model_info {
    uint32_t struct_size;
    uint32_t layers;
    uint32_t hidden;
    uint32_t vocabulary; /* rows of logits */
    uint32_t context;    /* positions that the model was made for */
    uint32_t end_token_count;
    const int32_t *end_tokens; /* ids that end generation */
    ftk_str pretokenizer;      /* PCRE2 pattern that splits text before BPE */
} ftk_model_info;

/* plan_weights: everything the core must allocate and load, as data. */
#define FTK_SOURCE_TENSOR   0u /* loaded by the core from tensor `tensor` */
#define FTK_SOURCE_COMPUTED 1u /* filled by load_weights */

/* A dense matrix or vector. View i of load_weights belongs to entry i. */
typedef struct ftk_tensor_plan {
    ftk_str name;    /* for messages */
    uint64_t tensor; /* index in the checkpoint; ignored for computed ones */
    uint64_t offset; /* first byte inside it; rows are contiguous */
    uint64_t rows;
    uint64_t cols;
    uint32_t source; /* FTK_SOURCE_ */
    uint32_t type;
} ftk_tensor_plan;

/* One part of one layer's experts. Expert e is at offset + e * expert_stride of
 * tensor `tensor`. View i of load_weights belongs to entry i. */
typedef struct ftk_bank_part {
    ftk_str part; /* "gate", "up", "down", ... */
    uint64_t tensor;
    uint64_t offset;
    uint64_t expert_stride;
    uint64_t rows;
    uint64_t cols;
    uint32_t layer;
    uint32_t experts;
    uint32_t used; /* experts that one row reads */
    uint32_t type;
} ftk_bank_part;

typedef struct ftk_kv_layer {
    uint32_t layer;
    uint32_t kv_heads;
    uint32_t key_dim;
    uint32_t value_dim;
} ftk_kv_layer;

/* Arrays are the provider's and live until destroy. */
typedef struct ftk_plan {
    uint32_t struct_size;
    uint32_t tensor_stride;
    const ftk_tensor_plan *tensors;
    uint64_t tensor_count;
    const ftk_bank_part *bank_parts;
    uint64_t bank_part_count;
    const ftk_kv_layer *kv_layers;
    uint64_t kv_layer_count;
    uint32_t bank_part_stride;
    uint32_t kv_layer_stride;
    uint64_t state_bytes; /* recurrent state of one sequence */
    /* Rows of the steps that the core intends to run, largest first (in), and an
     * upper bound of the workspace each needs with as many logit rows (out, the
     * caller's array). */
    const uint32_t *bucket_rows;
    uint64_t *bucket_workspace_bytes;
    uint64_t bucket_count;
} ftk_plan;

/* Views of what was loaded; arrays are the core's and live until destroy. */
typedef struct ftk_weight_views {
    uint32_t struct_size;
    uint32_t weight_stride;
    const ftk_weight *weights; /* [tensor_count] */
    uint64_t weight_count;
    const ftk_bank_view *banks; /* [bank_part_count] */
    uint64_t bank_count;
    uint32_t bank_stride;
    uint32_t reserved0;
    /* Host addresses through which load_weights fills computed tensors: one per
     * tensor, NULL for those that have a source. */
    void *const *computed;
} ftk_weight_views;

typedef struct ftk_cache_views {
    uint32_t struct_size;
    uint32_t kv_stride;
    const ftk_kv_view *kv; /* [kv_layer_count] */
    uint64_t kv_count;
    ftk_state_view state;
} ftk_cache_views;

/* prepare_for_runtime: `chosen[i]` is the row of variants[i] that the core
 * selected. The provider resolves its policy for good. */
typedef struct ftk_prepare_in {
    uint32_t struct_size;
    uint32_t max_rows;
    const uint32_t *chosen;
    uint64_t chosen_count;
} ftk_prepare_in;

typedef struct ftk_prepare_out {
    uint32_t struct_size;
    uint32_t graph_safe; /* 1: run may be captured for every bucket */
} ftk_prepare_out;

/* format_chat: a dialogue as pieces of text, in order, each either control (markers of
 * turns: special tokens in it are recognised) or plain (what a person or the model wrote:
 * they are not). */
typedef struct ftk_chat_turn {
    ftk_str role; /* "system", "user", "assistant" */
    ftk_str content;
} ftk_chat_turn;

#define FTK_CHAT_HINT_NO_THINKING 1u

typedef struct ftk_chat_in {
    uint32_t struct_size;
    uint32_t turn_stride;
    const ftk_chat_turn *turns;
    uint64_t turn_count;
    uint32_t required;    /* none defined */
    uint32_t hint;        /* FTK_CHAT_HINT_ */
    uint32_t open_answer; /* 1: end with the opening of an assistant's turn */
    uint32_t reserved0;
} ftk_chat_in;

/* Pieces go to `piece`; the text is copied. Since any thread may ask, a failure is told
 * here and not through report: `message` has room for message_size bytes with NUL. */
typedef struct ftk_chat_out {
    uint32_t struct_size;
    uint32_t message_size;
    char *message;
    void (*piece)(void *user, ftk_str text, uint32_t control);
    void *user;
} ftk_chat_out;

/*
 * The provider's table: static, constant, the same on every call of the entry.
 * Order of calls: match, create, plan_weights, load_weights, attach_cache,
 * prepare_for_runtime, run ..., destroy. destroy is legal after any create that
 * succeeded, exactly once, and cannot fail.
 */
typedef struct ftk_provider {
    uint32_t struct_size;
    uint32_t reserved0;
    const ftk_identity *identity;
    const ftk_variant_table *const *variants; /* [variant_table_count] */
    uint64_t variant_table_count;
    ftk_status (*match)(const ftk_host *, ftk_core_ctx *, const ftk_match_in *, ftk_match_out *);
    ftk_status (*create)(const ftk_host *, ftk_core_ctx *, const ftk_create_in *, ftk_model_info *,
                         ftk_model **);
    ftk_status (*plan_weights)(ftk_model *, ftk_plan *);
    ftk_status (*load_weights)(ftk_model *, const ftk_weight_views *);
    ftk_status (*attach_cache)(ftk_model *, const ftk_cache_views *);
    ftk_status (*prepare_for_runtime)(ftk_model *, const ftk_prepare_in *, ftk_prepare_out *);
    ftk_status (*run)(ftk_model *, const ftk_step *);
    void (*destroy)(ftk_model *);
    /* Optional: may be NULL. Reads the model only, and may be called from any thread
     * between create and destroy, during run included. FTK_E_UNSUPPORTED: the model
     * was not trained on dialogues. */
    ftk_status (*format_chat)(const ftk_model *, const ftk_chat_in *, const ftk_chat_out *);
} ftk_provider;

#define FTK_PROVIDER_ENTRY "freetoken_provider_v1"
typedef const ftk_provider *(*ftk_provider_entry)(void);

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const ftk_provider *
freetoken_provider_v1(void);

#ifdef __cplusplus
}
#endif
#endif
