/*
 * weights.c: the plan: which tensors the model reads, as data. The core checks it, sums
 * up the memory, loads what has a source, and hands back views in the same order.
 */
#include "template.h"

#include <stdio.h>

/* A tensor of the checkpoint. Rows of 0: a vector, which norms read as f32. */
typedef struct spec {
    const char *suffix;
    uint64_t rows, cols;
} spec;

static spec model_spec(const template_config *c, int g) {
    const spec specs[G_COUNT] = {
        [G_EMBED] = {"token_embd.weight", c->vocabulary, c->hidden},
        [G_OUTPUT_NORM] = {"output_norm.weight", 0, c->hidden},
        [G_OUTPUT] = {"output.weight", c->vocabulary, c->hidden},
    };
    return specs[g];
}

static spec layer_spec(const template_config *c, int t) {
    const uint64_t kv = (uint64_t)c->kv_heads * c->head_dim;
    const spec specs[T_COUNT] = {
        [T_ATTN_NORM] = {"attn_norm.weight", 0, c->hidden},
        [T_Q] = {"attn_q.weight", c->hidden, c->hidden},
        [T_K] = {"attn_k.weight", kv, c->hidden},
        [T_V] = {"attn_v.weight", kv, c->hidden},
        [T_O] = {"attn_output.weight", c->hidden, c->hidden},
        [T_FFN_NORM] = {"ffn_norm.weight", 0, c->hidden},
        [T_UP] = {"ffn_up.weight", c->ff, c->hidden},
        [T_DOWN] = {"ffn_down.weight", c->hidden, c->ff},
    };
    return specs[t];
}

/* Shapes are the file's claim: they must be what the metadata makes of them. */
static ftk_status check_tensor(ftk_model *m, const char *name, const spec *s,
                               const ftk_tensor_info *info) {
    const uint64_t rows = s->rows ? s->rows : 1;
    if (info->dims[0] != s->cols || info->dims[1] != rows || info->dims[2] != 1 ||
        info->dims[3] != 1)
        return template_fail(m->host, m->ctx, FTK_E_CKPT_TENSOR,
                             "tensor '%s': found %llu x %llu values, wanted %llu x %llu: convert "
                             "the model again",
                             name, (unsigned long long)info->dims[1],
                             (unsigned long long)info->dims[0], (unsigned long long)rows,
                             (unsigned long long)s->cols);
    if (s->rows == 0 && info->type != FTK_TYPE_F32)
        return template_fail(m->host, m->ctx, FTK_E_CKPT_TYPE,
                             "tensor '%s': found type %u, wanted F32 (0): quantise the model "
                             "again and leave vectors as they are",
                             name, info->type);
    return FTK_OK;
}

/* Entry `at` of the plan. Types of matrices are left to the core: it refuses those that
 * no operator of the backend reads. */
static ftk_status plan_tensor(ftk_model *m, uint64_t at, const spec *s) {
    const char *name = m->names[at];
    ftk_tensor_info info = {.struct_size = (uint32_t)sizeof info};
    uint64_t index = 0;
    if (m->reader->find_tensor(m->ctx, template_str(name), &index) != FTK_OK ||
        m->reader->tensor(m->ctx, index, &info) != FTK_OK)
        return template_fail(m->host, m->ctx, FTK_E_CKPT_TENSOR,
                             "tensor '%s' is missing: fetch or convert the model again", name);
    m->tensors[at] = (ftk_tensor_plan){.name = template_str(name),
                                       .tensor = index,
                                       .rows = s->rows ? s->rows : 1,
                                       .cols = s->cols,
                                       .source = FTK_SOURCE_TENSOR,
                                       .type = info.type};
    return check_tensor(m, name, s, &info);
}

static uint64_t layer_entry(uint32_t layer, int t) {
    return G_COUNT + (uint64_t)layer * T_COUNT + (uint64_t)t;
}

static ftk_status plan_layer(ftk_model *m, uint32_t layer) {
    for (int t = 0; t < T_COUNT; t++) {
        const spec s = layer_spec(&m->config, t);
        const uint64_t at = layer_entry(layer, t);
        snprintf(m->names[at], sizeof m->names[at], "blk.%u.%s", layer, s.suffix);
        ftk_status status = plan_tensor(m, at, &s);
        if (status != FTK_OK) return status;
    }
    m->kv_layers[layer] = (ftk_kv_layer){.layer = layer,
                                         .kv_heads = m->config.kv_heads,
                                         .key_dim = m->config.head_dim,
                                         .value_dim = m->config.head_dim};
    return FTK_OK;
}

static ftk_status plan_model(ftk_model *m) {
    for (int g = 0; g < G_COUNT; g++) {
        const spec s = model_spec(&m->config, g);
        snprintf(m->names[g], sizeof m->names[g], "%s", s.suffix);
        ftk_status status = plan_tensor(m, (uint64_t)g, &s);
        if (status != FTK_OK) return status;
    }
    return FTK_OK;
}

/* Host memory comes from the core and goes back in destroy, also after a failure. */
static ftk_status allocate(ftk_model *m, uint64_t tensors) {
    const ftk_host *host = m->host;
    m->tensors = host->alloc(m->ctx, tensors * sizeof *m->tensors, 0);
    m->names = host->alloc(m->ctx, tensors * sizeof *m->names, 0);
    m->kv_layers = host->alloc(m->ctx, m->config.layers * sizeof *m->kv_layers, 0);
    if (m->tensors && m->names && m->kv_layers) return FTK_OK;
    return template_fail(host, m->ctx, FTK_E_NO_MEMORY, "out of host memory for the weight plan");
}

ftk_status template_plan_weights(ftk_model *m, ftk_plan *plan) {
    const uint64_t tensors = layer_entry(m->config.layers, 0);
    ftk_status status = allocate(m, tensors);
    if (status == FTK_OK) status = plan_model(m);
    for (uint32_t i = 0; status == FTK_OK && i < m->config.layers; i++) status = plan_layer(m, i);
    if (status != FTK_OK) return status;
    plan->tensors = m->tensors;
    plan->tensor_count = tensors;
    plan->tensor_stride = (uint32_t)sizeof *m->tensors;
    plan->kv_layers = m->kv_layers;
    plan->kv_layer_count = m->config.layers;
    plan->kv_layer_stride = (uint32_t)sizeof *m->kv_layers;
    /* A dense model has no expert banks; the stride is stated all the same. */
    plan->bank_part_stride = (uint32_t)sizeof(ftk_bank_part);
    for (uint64_t i = 0; i < plan->bucket_count; i++)
        plan->bucket_workspace_bytes[i] = template_workspace_bytes(m, plan->bucket_rows[i]);
    return FTK_OK;
}

/* Everything has a source, so that there is nothing to compute: the views are kept. */
ftk_status template_load_weights(ftk_model *m, const ftk_weight_views *views) {
    m->weights = *views;
    return FTK_OK;
}

static const ftk_weight *weight_at(const ftk_model *m, uint64_t at) {
    return (const ftk_weight *)(const void *)((const char *)m->weights.weights +
                                              at * m->weights.weight_stride);
}

const ftk_weight *template_layer_weight(const ftk_model *m, uint32_t layer, int t) {
    return weight_at(m, layer_entry(layer, t));
}

const ftk_weight *template_model_weight(const ftk_model *m, int g) {
    return weight_at(m, (uint64_t)g);
}
