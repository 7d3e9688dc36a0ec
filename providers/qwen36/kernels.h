/*
 * kernels.h: the model's own CPU kernels. Each is a function over a range of
 * independent items, with its arguments in a struct; kernels_impl.h defines
 * them once, and is compiled for the baseline and for AVX2 with equal bits.
 */
#ifndef QWEN36_KERNELS_H
#define QWEN36_KERNELS_H

#include <freetoken/provider.h>

/* The rows of a step that belong to sequences, and where their state is. */
typedef struct qwen36_sequences {
    const int32_t *sequence_rows;
    const int32_t *state_slots;
    char *state;          /* of this layer, of slot 0 */
    uint64_t slot_stride; /* bytes */
} qwen36_sequences;

/* Causal depthwise convolution and SiLU over the raw projections, item =
 * (sequence, block of QWEN36_CONV_BLOCK channels):
 *   y[t][c] = silu(sum_k w[c][k] * u[t - taps + 1 + k][c]), oldest tap first,
 * the inputs before the step coming from the state, which is advanced. */
#define QWEN36_CONV_BLOCK 256u
typedef struct qwen36_conv_args {
    qwen36_sequences seq;
    const float *u;      /* [rows][channels] */
    const float *weight; /* [channels][taps] */
    float *y;            /* [rows][channels] */
    uint32_t channels;
    uint32_t taps;
} qwen36_conv_args;

/* Gated delta rule, token by token, item = (sequence, value head). For each row,
 * with q and k normalised to unit length (q also divided by sqrt(dim)):
 *   alpha = exp(a * softplus(alpha_in + dt)), beta = sigmoid(beta_in)
 *   d = beta * (v - alpha * S^T k)
 *   o = alpha * S^T q + (k . q) d          (equals S'^T q)
 *   S' = alpha * S + k d^T
 * S is [dim key][dim value]. S^T k and S^T q are taken in one pass: eight
 * segments of dim / 8 keys, each summed by fma in order, then folded 4, 2, 1. */
typedef struct qwen36_delta_args {
    qwen36_sequences seq;
    const float *qkv;   /* [rows][channels]: q heads, k heads, v heads */
    const float *alpha; /* [rows][value_heads] */
    const float *beta;  /* [rows][value_heads] */
    const float *a;     /* [value_heads], negative */
    const float *dt;    /* [value_heads] */
    float *o;           /* [rows][value_heads * dim] */
    uint32_t channels;
    uint32_t key_heads;
    uint32_t value_heads;
    uint32_t dim;
    uint32_t grouped_value_heads;
    float eps;
} qwen36_delta_args;

/* y = rmsnorm(o) * weight * silu(z) per value head, item = (row, head). y may
 * be o. */
typedef struct qwen36_gated_norm_args {
    const float *o;
    const float *z;
    const float *weight; /* [dim] */
    float *y;
    uint32_t heads;
    uint32_t dim;
    float eps;
    uint32_t reserved0;
} qwen36_gated_norm_args;

/* o *= sigmoid(gate), item = (row, head); the gate of a head follows its query. */
typedef struct qwen36_attention_gate_args {
    const float *qg; /* [rows][heads][2][dim] */
    float *o;        /* [rows][heads][dim] */
    uint32_t heads;
    uint32_t dim;
} qwen36_attention_gate_args;

/* Which key head a value head reads. GGUF files carry the value heads reordered so
 * that head i reads key head i mod key_heads; the original checkpoint groups them,
 * value_heads / key_heads in a row per key head. */
static inline uint32_t qwen36_key_head(uint32_t value_head, uint32_t key_heads,
                                       uint32_t value_heads, uint32_t grouped) {
    return grouped ? value_head / (value_heads / key_heads) : value_head % key_heads;
}

#define QWEN36_MAX_DIM  256u /* of a linear head */
#define QWEN36_MAX_TAPS 16u

typedef struct qwen36_kernel_set {
    ftk_cpu_kernel conv;
    ftk_cpu_kernel delta;
    ftk_cpu_kernel gated_norm;
    ftk_cpu_kernel attention_gate;
} qwen36_kernel_set;

extern const qwen36_kernel_set qwen36_kernels_reference;
#if defined(__x86_64__)
extern const qwen36_kernel_set qwen36_kernels_avx2;
#endif

#endif
