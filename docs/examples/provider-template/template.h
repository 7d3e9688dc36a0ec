/*
 * template.h: shared inside the provider. A model is configured once (config.c),
 * states its weights as data (weights.c), and then runs steps (forward.c).
 *
 * The architecture: an embedding; per layer RMS norm, attention with grouped queries
 * and rotary positions, residual, RMS norm, down(relu(up)^2), residual; at the end a
 * norm and an output matrix.
 */
#ifndef TEMPLATE_H
#define TEMPLATE_H

#include <stdbool.h>
#include <string.h>

#include <freetoken/provider.h>

#include "kernels.h"

typedef struct template_config {
    uint32_t layers;
    uint32_t context;
    uint32_t hidden;
    uint32_t vocabulary;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim; /* hidden / heads */
    uint32_t ff;
    float eps;
    double rope_theta;
} template_config;

/* Weights in the order of the plan: first those of the model, then each layer's. */
enum { G_EMBED, G_OUTPUT_NORM, G_OUTPUT, G_COUNT };
enum { T_ATTN_NORM, T_Q, T_K, T_V, T_O, T_FFN_NORM, T_UP, T_DOWN, T_COUNT };

/* One configured instance. Nothing is global: two may run at the same time. */
struct ftk_model {
    const ftk_host *host;
    ftk_core_ctx *ctx;
    const ftk_if_checkpoint_reader *reader;
    const ftk_if_operators *ops;
    const ftk_if_kernels *kernels;
    template_config config;
    int32_t end_token;
    bool has_end_token;
    bool has_dialogue;

    ftk_tensor_plan *tensors; /* [G_COUNT + layers * T_COUNT] */
    char (*names)[64];        /* of the same */
    ftk_kv_layer *kv_layers;  /* [layers] */

    ftk_weight_views weights; /* after load_weights */
    ftk_cache_views cache;    /* after attach_cache */
    ftk_cpu_kernel relu2;     /* the chosen variant, after prepare_for_runtime */
};

static inline ftk_str template_str(const char *text) {
    ftk_str s = {text, strlen(text)};
    return s;
}

static inline bool template_is(ftk_str s, const char *text) {
    return s.size == strlen(text) && memcmp(s.data, text, (size_t)s.size) == 0;
}

/* Reports the failure of the running call to the core, and returns `status`. */
ftk_status template_fail(const ftk_host *host, ftk_core_ctx *ctx, ftk_status status,
                         const char *format, ...) __attribute__((format(printf, 4, 5)));

ftk_status template_configure(ftk_model *m);

ftk_status template_plan_weights(ftk_model *m, ftk_plan *plan);
ftk_status template_load_weights(ftk_model *m, const ftk_weight_views *views);
/* Weight `t` of layer `layer`, and weight `g` of the model. */
const ftk_weight *template_layer_weight(const ftk_model *m, uint32_t layer, int t);
const ftk_weight *template_model_weight(const ftk_model *m, int g);

uint64_t template_workspace_bytes(const ftk_model *m, uint32_t rows);
ftk_status template_run(ftk_model *m, const ftk_step *step);

ftk_status template_format_chat(const ftk_model *m, const ftk_chat_in *in, const ftk_chat_out *out);

#endif
