/*
 * qwen36.h: shared inside the provider. A model is configured once (config.c),
 * states its weights as data (weights.c), and runs steps (forward.c) with the
 * core's operators and its own CPU kernels (kernels.h).
 */
#ifndef QWEN36_H
#define QWEN36_H

#include <stdbool.h>
#include <string.h>

#include <freetoken/provider.h>

#include "kernels.h"

typedef struct qwen36_config {
    uint32_t layers;     /* trunk blocks; MTP blocks are not among them */
    uint32_t mtp_blocks; /* trailing blocks that are recognised and left out */
    uint32_t context;
    uint32_t hidden;
    uint32_t vocabulary;
    uint32_t heads;
    uint32_t kv_heads;
    uint64_t kv_entries; /* of a head_count_kv that is a list by layer, 0: it is a number */
    uint32_t head_dim;
    uint32_t rotary_dim;
    uint32_t experts;
    uint32_t used_experts;
    uint32_t expert_ff;
    uint32_t shared_ff;
    uint32_t conv_kernel;
    uint32_t key_heads; /* of the linear layers; queries have as many */
    uint32_t value_heads;
    uint32_t state_dim; /* key and value dimension of a linear head */
    uint32_t conv_channels;
    uint32_t grouped_value_heads; /* 1: value head i reads key head i / r, else i mod key_heads */
    float eps;
    double rope_theta;
} qwen36_config;

/* Tensors of a block, in the order of the specification table in weights.c. */
enum {
    T_ATTN_NORM,
    T_POST_NORM,
    T_ROUTER,
    T_SHARED_GATE_INP,
    T_SHARED_GATE,
    T_SHARED_UP,
    T_SHARED_DOWN,
    /* full attention */
    T_Q,
    T_K,
    T_V,
    T_O,
    T_Q_NORM,
    T_K_NORM,
    /* linear attention */
    T_QKV,
    T_Z,
    T_ALPHA,
    T_BETA,
    T_CONV,
    T_DT,
    T_A,
    T_SSM_NORM,
    T_SSM_OUT,
    T_COUNT
};
enum { B_GATE, B_UP, B_DOWN, B_COUNT };
enum { G_EMBED, G_OUTPUT_NORM, G_OUTPUT, G_COUNT };

typedef struct qwen36_layer {
    bool linear;
    uint32_t cache;                     /* index among the layers of its kind */
    uint64_t plan[T_COUNT];             /* index in the plan, NO_TENSOR where the kind has none */
    uint64_t bank[B_COUNT];             /* index among the bank parts */
    uint64_t factor_plan[T_COUNT];      /* of factors beside weights, NO_TENSOR: none */
    uint64_t bank_factor_plan[B_COUNT]; /* the same of experts */
    const ftk_weight *w[T_COUNT];       /* after load_weights */
    const ftk_weight *factor[T_COUNT];  /* one number, or NULL */
    const ftk_bank_view *experts[B_COUNT];
    const ftk_weight *bank_factor[B_COUNT]; /* one number or one per expert, or NULL */
    /* activation formats that the readers of each intermediate need */
    uint32_t mixer_formats;  /* of the normed input of the mixer */
    uint32_t mixed_formats;  /* of the input of the output projection */
    uint32_t moe_formats;    /* of the normed input of router and experts */
    uint32_t expert_formats; /* of the input of the experts' down matrix */
    uint32_t shared_formats; /* of the input of the shared expert's down matrix */
} qwen36_layer;

#define NO_TENSOR UINT64_MAX

/* How answers open in dialogues: see chat.c. */
typedef enum {
    QWEN36_NO_CHAT, /* no template: not trained on dialogues */
    QWEN36_THINKING_NONE,
    QWEN36_THINKING_EMPTY,
    QWEN36_THINKING_SWITCH
} qwen36_thinking;

struct ftk_model {
    const ftk_host *host;
    ftk_core_ctx *ctx;
    const ftk_if_checkpoint_reader *reader;
    const ftk_if_operators *ops;
    const ftk_if_kernels *kernels;
    qwen36_config config;
    int32_t end_tokens[8];
    uint32_t end_token_count;
    qwen36_thinking thinking;
    qwen36_layer *layers;

    ftk_tensor_plan *tensors;
    uint64_t tensor_count;
    uint64_t source_count; /* tensors of the checkpoint that the plan reads */
    char (*names)[64];     /* one per tensor plan */
    ftk_bank_part *bank_parts;
    ftk_kv_layer *kv_layers;
    uint64_t kv_layer_count;
    uint64_t linear_count;
    uint64_t factor_count; /* tensors of factors that the plan reads */
    uint64_t global[G_COUNT];
    uint64_t global_factor[G_COUNT]; /* as factor_plan */
    const ftk_weight *g[G_COUNT];
    const ftk_weight *g_factor[G_COUNT];
    uint32_t output_format;
    float attention_scale;

    const ftk_kv_view *kv;
    uint32_t kv_stride;
    ftk_state_view state;
    qwen36_kernel_set chosen;
};

/* Reports `format` as an error of this model's context and returns `status`. */
ftk_status qwen36_fail(const ftk_host *host, ftk_core_ctx *ctx, ftk_status status,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
void qwen36_note(const ftk_host *host, ftk_core_ctx *ctx, int32_t severity, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
ftk_str qwen36_str(const char *text);

ftk_status qwen36_configure(struct ftk_model *m); /* fills config, end tokens, layer kinds */

ftk_status qwen36_plan_weights(ftk_model *m, ftk_plan *plan);
ftk_status qwen36_load_weights(ftk_model *m, const ftk_weight_views *views);

qwen36_thinking qwen36_thinking_of(ftk_str chat_template);
ftk_status qwen36_format_chat(const ftk_model *m, const ftk_chat_in *in, const ftk_chat_out *out);

ftk_status qwen36_run(ftk_model *m, const ftk_step *step);
/* Bytes of workspace for a step of `rows` rows with as many logit rows. */
uint64_t qwen36_workspace_bytes(const ftk_model *m, uint32_t rows);

/* Floats of recurrent state of one sequence and one linear layer: the last
 * conv_kernel - 1 raw inputs of the convolution, then one state_dim x state_dim
 * matrix per value head. */
uint64_t qwen36_layer_state_floats(const qwen36_config *config);

#endif
