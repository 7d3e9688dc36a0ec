/*
 * weights.c: the declarative plan. One table says which tensors a layer has and
 * what shape each must be; from it come the plan of dense tensors and expert
 * banks, and, after loading, the layers' pointers to views.
 *
 * Names and shapes are those of GGUF files of architecture qwen35moe, as
 * llama.cpp's converter writes them (its value transformations, 1 + w in norms
 * and -exp in ssm_a, are already in the file), and the variations that are in
 * use: query, key and value or gate and up in one tensor, ssm_dt without a suffix,
 * vectors in 16 bits, which load_weights widens, NVFP4 matrices with a factor beside
 * them.
 */
#include "qwen36.h"

#include <stdio.h>

#include <freetoken/device/base.h>

enum { ANY_LAYER, FULL_LAYER, LINEAR_LAYER };

typedef struct spec {
    const char *suffix;
    int kind;
    bool f32; /* read by kernels and norms, not by a matmul */
    uint64_t rows, cols;
} spec;

static void layer_specs(const qwen36_config *c, spec out[T_COUNT]) {
    uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
    uint64_t v = (uint64_t)c->value_heads * c->state_dim;
    const spec table[T_COUNT] = {
        [T_ATTN_NORM] = {"attn_norm.weight", ANY_LAYER, true, 1, c->hidden},
        [T_POST_NORM] = {"post_attention_norm.weight", ANY_LAYER, true, 1, c->hidden},
        [T_ROUTER] = {"ffn_gate_inp.weight", ANY_LAYER, false, c->experts, c->hidden},
        [T_SHARED_GATE_INP] = {"ffn_gate_inp_shexp.weight", ANY_LAYER, false, 1, c->hidden},
        [T_SHARED_GATE] = {"ffn_gate_shexp.weight", ANY_LAYER, false, c->shared_ff, c->hidden},
        [T_SHARED_UP] = {"ffn_up_shexp.weight", ANY_LAYER, false, c->shared_ff, c->hidden},
        [T_SHARED_DOWN] = {"ffn_down_shexp.weight", ANY_LAYER, false, c->hidden, c->shared_ff},
        [T_Q] = {"attn_q.weight", FULL_LAYER, false, 2 * q, c->hidden},
        [T_K] = {"attn_k.weight", FULL_LAYER, false, kv, c->hidden},
        [T_V] = {"attn_v.weight", FULL_LAYER, false, kv, c->hidden},
        [T_O] = {"attn_output.weight", FULL_LAYER, false, c->hidden, q},
        [T_Q_NORM] = {"attn_q_norm.weight", FULL_LAYER, true, 1, c->head_dim},
        [T_K_NORM] = {"attn_k_norm.weight", FULL_LAYER, true, 1, c->head_dim},
        [T_QKV] = {"attn_qkv.weight", LINEAR_LAYER, false, c->conv_channels, c->hidden},
        [T_Z] = {"attn_gate.weight", LINEAR_LAYER, false, v, c->hidden},
        [T_ALPHA] = {"ssm_alpha.weight", LINEAR_LAYER, false, c->value_heads, c->hidden},
        [T_BETA] = {"ssm_beta.weight", LINEAR_LAYER, false, c->value_heads, c->hidden},
        [T_CONV] = {"ssm_conv1d.weight", LINEAR_LAYER, true, c->conv_channels, c->conv_kernel},
        [T_DT] = {"ssm_dt.bias", LINEAR_LAYER, true, 1, c->value_heads},
        [T_A] = {"ssm_a", LINEAR_LAYER, true, 1, c->value_heads},
        [T_SSM_NORM] = {"ssm_norm.weight", LINEAR_LAYER, true, 1, c->state_dim},
        [T_SSM_OUT] = {"ssm_out.weight", LINEAR_LAYER, false, c->hidden, v},
    };
    memcpy(out, table, sizeof table);
}

static void global_specs(const qwen36_config *c, spec out[G_COUNT]) {
    out[G_EMBED] = (spec){"token_embd.weight", ANY_LAYER, false, c->vocabulary, c->hidden};
    out[G_OUTPUT_NORM] = (spec){"output_norm.weight", ANY_LAYER, true, 1, c->hidden};
    out[G_OUTPUT] = (spec){"output.weight", ANY_LAYER, false, c->vocabulary, c->hidden};
}

static const char *const bank_suffix[B_COUNT] = {"ffn_gate_exps.weight", "ffn_up_exps.weight",
                                                 "ffn_down_exps.weight"};
static const char *const bank_part[B_COUNT] = {"gate", "up", "down"};

#define FUSED_QKV     "attn_qkv.weight"
#define FUSED_GATE_UP "ffn_gate_up_exps.weight"

static bool in_layer(ftk_model *m, uint32_t layer, const char *suffix) {
    char name[64];
    uint64_t index;
    snprintf(name, sizeof name, "blk.%u.%s", layer, suffix);
    return m->reader->find_tensor(m->ctx, qwen36_str(name), &index) == FTK_OK;
}

static ftk_status find(ftk_model *m, const char *name, uint64_t *index, ftk_tensor_info *info) {
    ftk_str s = qwen36_str(name);
    if (m->reader->find_tensor(m->ctx, s, index) != FTK_OK)
        return qwen36_fail(m->host, m->ctx, FTK_E_CKPT_TENSOR,
                           "tensor '%s' is missing: the file is incomplete or badly converted, "
                           "fetch or convert it again",
                           name);
    ftk_status status = m->reader->tensor(m->ctx, *index, info);
    if (status == FTK_OK) return FTK_OK;
    return qwen36_fail(m->host, m->ctx, status, "tensor '%s' cannot be described by the host",
                       name);
}

static const char *type_name(uint32_t type) {
    switch (type) {
    case FTK_TYPE_F16: return "F16";
    case FTK_TYPE_BF16: return "BF16";
    case FTK_TYPE_Q8_0: return "Q8_0";
    case FTK_TYPE_Q4_K: return "Q4_K";
    case FTK_TYPE_Q5_K: return "Q5_K";
    case FTK_TYPE_Q6_K: return "Q6_K";
    default: return "other";
    }
}

static ftk_status check_shape(ftk_model *m, const char *name, const ftk_tensor_info *t, uint64_t d0,
                              uint64_t d1, uint64_t d2) {
    if (t->dims[0] == d0 && t->dims[1] == d1 && t->dims[2] == d2 && t->dims[3] == 1) return FTK_OK;
    return qwen36_fail(m->host, m->ctx, FTK_E_CKPT_TENSOR,
                       "tensor '%s' has shape {%llu, %llu, %llu, %llu}, wanted {%llu, %llu, %llu, "
                       "1} by the metadata: convert the model again",
                       name, (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                       (unsigned long long)t->dims[2], (unsigned long long)t->dims[3],
                       (unsigned long long)d0, (unsigned long long)d1, (unsigned long long)d2);
}

/* Finds `name`, which must have this shape, and a type that its readers take. */
static ftk_status find_source(ftk_model *m, const char *name, const spec *s, uint64_t *index,
                              ftk_tensor_info *info) {
    ftk_status status = find(m, name, index, info);
    if (status == FTK_OK) status = check_shape(m, name, info, s->cols, s->rows, 1);
    if (status != FTK_OK) return status;
    m->source_count++;
    if (!s->f32 || info->type == FTK_TYPE_F32 || info->type == FTK_TYPE_F16 ||
        info->type == FTK_TYPE_BF16)
        return FTK_OK;
    return qwen36_fail(m->host, m->ctx, FTK_E_CKPT_TYPE,
                       "tensor '%s' has type %s (%u), wanted F32, F16 or BF16: quantise the model "
                       "again and leave such tensors as they are",
                       name, type_name(info->type), info->type);
}

/* Adds s->rows rows of a tensor, from byte `offset` on, to the plan. */
static void add_rows(ftk_model *m, const char *name, const spec *s, uint64_t index, uint64_t offset,
                     uint32_t type, uint64_t *slot) {
    bool widened = s->f32 && type != FTK_TYPE_F32;
    uint64_t at = m->tensor_count++;
    snprintf(m->names[at], sizeof m->names[at], "%s", name);
    m->tensors[at] = (ftk_tensor_plan){.name = qwen36_str(m->names[at]),
                                       .tensor = index,
                                       .offset = offset,
                                       .rows = s->rows,
                                       .cols = s->cols,
                                       .source = widened ? FTK_SOURCE_COMPUTED : FTK_SOURCE_TENSOR,
                                       .type = widened ? FTK_TYPE_F32 : type};
    *slot = at;
}

static ftk_status plan_tensor(ftk_model *m, const char *name, const spec *s, uint64_t *slot) {
    uint64_t index;
    ftk_tensor_info info = {.struct_size = (uint32_t)sizeof info};
    ftk_status status = find_source(m, name, s, &index, &info);
    if (status == FTK_OK) add_rows(m, name, s, index, 0, info.type, slot);
    return status;
}

/* The factor of a matrix of type NVFP4, NAME.scale beside NAME.weight: one number, or,
 * for a bank of experts, one of each. Other types carry all of their scales in blocks. */
static ftk_status plan_factor(ftk_model *m, const char *name, uint32_t type, uint64_t experts,
                              uint64_t *slot) {
    char scale[64];
    uint64_t index;
    ftk_tensor_info info = {.struct_size = (uint32_t)sizeof info};
    size_t stem = strlen(name);
    *slot = NO_TENSOR;
    if (type != FTK_TYPE_NVFP4) return FTK_OK;
    if (stem > 7 && strcmp(name + stem - 7, ".weight") == 0) stem -= 7;
    snprintf(scale, sizeof scale, "%.*s.scale", (int)stem, name);
    if (m->reader->find_tensor(m->ctx, qwen36_str(scale), &index) != FTK_OK) return FTK_OK;
    ftk_status status = find(m, scale, &index, &info);
    if (status != FTK_OK) return status;
    spec s = {scale, ANY_LAYER, true, 1, info.dims[0] == 1 ? 1 : experts};
    m->factor_count++;
    return plan_tensor(m, scale, &s, slot);
}

static ftk_status plan_matrix(ftk_model *m, const char *name, const spec *s, uint64_t *slot,
                              uint64_t *factor) {
    ftk_status status = plan_tensor(m, name, s, slot);
    if (status != FTK_OK) return status;
    return plan_factor(m, name, m->tensors[*slot].type, 1, factor);
}

/* Query and gate, key and value out of one tensor, in this order. */
static ftk_status plan_fused_attention(ftk_model *m, uint32_t layer, const spec specs[T_COUNT]) {
    static const int parts[] = {T_Q, T_K, T_V};
    char name[64];
    uint64_t index, offset = 0;
    ftk_tensor_info info = {.struct_size = (uint32_t)sizeof info};
    spec whole = specs[T_Q];
    whole.rows += specs[T_K].rows + specs[T_V].rows;
    snprintf(name, sizeof name, "blk.%u." FUSED_QKV, layer);
    ftk_status status = find_source(m, name, &whole, &index, &info);
    if (status != FTK_OK) return status;
    uint64_t factor;
    status = plan_factor(m, name, info.type, 1, &factor);
    for (size_t i = 0; status == FTK_OK && i < sizeof parts / sizeof *parts; i++) {
        const spec *s = &specs[parts[i]];
        add_rows(m, name, s, index, offset, info.type, &m->layers[layer].plan[parts[i]]);
        m->layers[layer].factor_plan[parts[i]] = factor;
        offset += info.bytes / whole.rows * s->rows;
    }
    return status;
}

/* The part of the experts that begins at row `first` of `rows_stored` in each. */
static ftk_status plan_bank(ftk_model *m, uint32_t layer, int part, const char *suffix,
                            uint64_t first, uint64_t rows_stored) {
    const qwen36_config *c = &m->config;
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", layer, suffix);
    uint64_t rows = part == B_DOWN ? c->hidden : c->expert_ff;
    uint64_t cols = part == B_DOWN ? c->expert_ff : c->hidden;
    uint64_t index;
    ftk_tensor_info info = {.struct_size = (uint32_t)sizeof info};
    ftk_status status = find(m, name, &index, &info);
    if (status == FTK_OK) status = check_shape(m, name, &info, cols, rows_stored, c->experts);
    if (status != FTK_OK) return status;
    if (first == 0) m->source_count++;
    uint64_t at = (uint64_t)layer * B_COUNT + (uint64_t)part;
    uint64_t stride = info.bytes / c->experts;
    m->bank_parts[at] = (ftk_bank_part){.part = qwen36_str(bank_part[part]),
                                        .tensor = index,
                                        .offset = stride / rows_stored * first,
                                        .expert_stride = stride,
                                        .rows = rows,
                                        .cols = cols,
                                        .layer = layer,
                                        .experts = c->experts,
                                        .used = c->used_experts,
                                        .type = info.type};
    m->layers[layer].bank[part] = at;
    uint64_t *factors = m->layers[layer].bank_factor_plan;
    if (first == 0) return plan_factor(m, name, info.type, c->experts, &factors[part]);
    factors[part] = factors[B_GATE]; /* of the same tensor */
    return FTK_OK;
}

static ftk_status plan_experts(ftk_model *m, uint32_t layer) {
    uint64_t ff = m->config.expert_ff;
    bool fused = !in_layer(m, layer, bank_suffix[B_GATE]) && in_layer(m, layer, FUSED_GATE_UP);
    ftk_status status = FTK_OK;
    for (int part = 0; status == FTK_OK && part < B_COUNT; part++) {
        if (fused && part != B_DOWN)
            status = plan_bank(m, layer, part, FUSED_GATE_UP, part == B_UP ? ff : 0, 2 * ff);
        else
            status = plan_bank(m, layer, part, bank_suffix[part], 0,
                               part == B_DOWN ? m->config.hidden : ff);
    }
    return status;
}

static ftk_status plan_dense(ftk_model *m, uint32_t layer, const spec specs[T_COUNT]) {
    qwen36_layer *l = &m->layers[layer];
    bool fused = !l->linear && !in_layer(m, layer, specs[T_Q].suffix) &&
                 in_layer(m, layer, FUSED_QKV);
    for (int t = 0; t < T_COUNT; t++) {
        l->plan[t] = l->factor_plan[t] = NO_TENSOR;
        if (specs[t].kind == (l->linear ? FULL_LAYER : LINEAR_LAYER)) continue;
        if (fused && (t == T_Q || t == T_K || t == T_V)) continue;
        const char *suffix = specs[t].suffix;
        if (t == T_DT && !in_layer(m, layer, suffix) && in_layer(m, layer, "ssm_dt"))
            suffix = "ssm_dt";
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s", layer, suffix);
        ftk_status status = plan_matrix(m, name, &specs[t], &l->plan[t], &l->factor_plan[t]);
        if (status != FTK_OK) return status;
    }
    return fused ? plan_fused_attention(m, layer, specs) : FTK_OK;
}

static ftk_status plan_layer(ftk_model *m, uint32_t layer) {
    spec specs[T_COUNT];
    layer_specs(&m->config, specs);
    qwen36_layer *l = &m->layers[layer];
    ftk_status status = plan_dense(m, layer, specs);
    if (status == FTK_OK) status = plan_experts(m, layer);
    if (status == FTK_OK && !l->linear)
        m->kv_layers[l->cache] = (ftk_kv_layer){.layer = layer,
                                                .kv_heads = m->config.kv_heads,
                                                .key_dim = m->config.head_dim,
                                                .value_dim = m->config.head_dim};
    return status;
}

/* The output matrix, or the embedding where a file ties the two. */
static ftk_status plan_globals(ftk_model *m) {
    spec specs[G_COUNT];
    global_specs(&m->config, specs);
    uint64_t index;
    bool tied = m->reader->find_tensor(m->ctx, qwen36_str("output.weight"), &index) != FTK_OK;
    for (int g = 0; g < G_COUNT; g++) {
        if (g == G_OUTPUT && tied) {
            m->global[g] = m->global[G_EMBED];
            m->global_factor[g] = m->global_factor[G_EMBED];
            qwen36_note(m->host, m->ctx, FTK_SEVERITY_INFO,
                        "no output.weight: the token embedding is the output matrix");
            continue;
        }
        ftk_status status = plan_matrix(m, specs[g].suffix, &specs[g], &m->global[g],
                                        &m->global_factor[g]);
        if (status != FTK_OK) return status;
    }
    return FTK_OK;
}

/* A type that no operator reads adds nothing: the core refuses the plan for it,
 * with the type's name. */
static uint32_t format_of(ftk_model *m, uint32_t type) {
    uint32_t format;
    return m->ops->activation_format(type, &format) == FTK_OK ? format : 0;
}

/* Which activation formats the readers of each intermediate ask for. */
static void plan_formats(ftk_model *m, qwen36_layer *l) {
    const struct {
        uint32_t *formats;
        int tensor;
    } dense[] = {
        {&l->mixer_formats, l->linear ? T_QKV : T_Q},
        {&l->mixer_formats, l->linear ? T_Z : T_K},
        {&l->mixer_formats, l->linear ? T_ALPHA : T_V},
        {&l->mixer_formats, l->linear ? T_BETA : T_V},
        {&l->mixed_formats, l->linear ? T_SSM_OUT : T_O},
        {&l->moe_formats, T_ROUTER},
        {&l->moe_formats, T_SHARED_GATE_INP},
        {&l->moe_formats, T_SHARED_GATE},
        {&l->moe_formats, T_SHARED_UP},
        {&l->shared_formats, T_SHARED_DOWN},
    };
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++)
        *dense[i].formats |= format_of(m, m->tensors[l->plan[dense[i].tensor]].type);
    for (int part = 0; part < B_COUNT; part++)
        *(part == B_DOWN ? &l->expert_formats
                         : &l->moe_formats) |= format_of(m, m->bank_parts[l->bank[part]].type);
}

static uint64_t count_named(ftk_model *m, const char *ending) {
    uint64_t total = m->reader->tensor_count(m->ctx), count = 0, size = strlen(ending);
    for (uint64_t i = 0; i < total; i++) {
        ftk_tensor_info t = {.struct_size = (uint32_t)sizeof t};
        if (m->reader->tensor(m->ctx, i, &t) != FTK_OK || t.name.size < size) continue;
        count += memcmp(t.name.data + (t.name.size - size), ending, (size_t)size) == 0;
    }
    return count;
}

/* Scales that no product is multiplied with; the number of them. */
static uint64_t note_scales(ftk_model *m) {
    uint64_t inputs = count_named(m, ".input_scale");
    uint64_t left = count_named(m, ".scale") - m->factor_count;
    if (inputs)
        qwen36_note(m->host, m->ctx, FTK_SEVERITY_INFO,
                    "%llu tensor%s NAME.input_scale not used: made for activations of four bits, "
                    "and the activations here have scales of their own",
                    (unsigned long long)inputs, inputs == 1 ? "" : "s");
    if (left)
        qwen36_note(m->host, m->ctx, FTK_SEVERITY_WARNING,
                    "%llu tensor%s NAME.scale not used: beside no NVFP4 matrix of the text model",
                    (unsigned long long)left, left == 1 ? "" : "s");
    return inputs + left;
}

/* Tensors that nothing here reads are fine (vision, MTP, scales), but are said. */
static void note_unused(ftk_model *m) {
    uint64_t total = m->reader->tensor_count(m->ctx);
    uint64_t known = m->source_count + note_scales(m);
    if (total > known)
        qwen36_note(m->host, m->ctx,
                    m->config.mtp_blocks ? FTK_SEVERITY_INFO : FTK_SEVERITY_WARNING,
                    "%llu of %llu tensors are not part of the text model and are not used",
                    (unsigned long long)(total - known), (unsigned long long)total);
}

static ftk_status allocate_plan(ftk_model *m) {
    uint64_t layers = m->config.layers;
    uint64_t dense = layers * (2 * T_COUNT + B_COUNT) + 2 * G_COUNT; /* with factors */
    m->tensors = m->host->alloc(m->ctx, dense * sizeof *m->tensors, 0);
    m->names = m->host->alloc(m->ctx, dense * sizeof *m->names, 0);
    m->bank_parts = m->host->alloc(m->ctx, layers * B_COUNT * sizeof *m->bank_parts, 0);
    m->kv_layers = m->host->alloc(m->ctx, (m->kv_layer_count + 1) * sizeof *m->kv_layers, 0);
    if (m->tensors && m->names && m->bank_parts && m->kv_layers) return FTK_OK;
    return qwen36_fail(m->host, m->ctx, FTK_E_NO_MEMORY, "out of host memory for the weight plan");
}

ftk_status qwen36_plan_weights(ftk_model *m, ftk_plan *plan) {
    ftk_status status = allocate_plan(m);
    if (status == FTK_OK) status = plan_globals(m);
    for (uint32_t i = 0; status == FTK_OK && i < m->config.layers; i++) {
        status = plan_layer(m, i);
        if (status == FTK_OK) plan_formats(m, &m->layers[i]);
    }
    if (status != FTK_OK) return status;
    m->output_format = format_of(m, m->tensors[m->global[G_OUTPUT]].type);
    note_unused(m);

    plan->tensor_stride = (uint32_t)sizeof *m->tensors;
    plan->tensors = m->tensors;
    plan->tensor_count = m->tensor_count;
    plan->bank_part_stride = (uint32_t)sizeof *m->bank_parts;
    plan->bank_parts = m->bank_parts;
    plan->bank_part_count = (uint64_t)m->config.layers * B_COUNT;
    plan->kv_layer_stride = (uint32_t)sizeof *m->kv_layers;
    plan->kv_layers = m->kv_layers;
    plan->kv_layer_count = m->kv_layer_count;
    plan->state_bytes = m->linear_count * qwen36_layer_state_floats(&m->config) * sizeof(float);
    for (uint64_t i = 0; i < plan->bucket_count; i++)
        plan->bucket_workspace_bytes[i] = qwen36_workspace_bytes(m, plan->bucket_rows[i]);
    return FTK_OK;
}

/* NULL for NO_TENSOR. */
static const ftk_weight *weight_at(const ftk_weight_views *views, uint64_t i) {
    if (i == NO_TENSOR) return NULL;
    return (const ftk_weight *)(const void *)((const char *)views->weights +
                                              i * views->weight_stride);
}

/* Converts a vector of 16-bit floats. */
static ftk_status widen(ftk_model *m, const ftk_tensor_plan *t, float *out) {
    uint16_t piece[1024];
    const uint64_t room = sizeof piece / sizeof *piece, total = t->rows * t->cols;
    ftk_tensor_info info = {.struct_size = (uint32_t)sizeof info};
    ftk_status status = m->reader->tensor(m->ctx, t->tensor, &info);
    for (uint64_t at = 0; status == FTK_OK && at < total; at += room) {
        uint64_t n = total - at < room ? total - at : room;
        status = m->reader->read(m->ctx, t->tensor, at * sizeof *piece, n * sizeof *piece, piece);
        for (uint64_t i = 0; status == FTK_OK && i < n; i++)
            out[at + i] = info.type == FTK_TYPE_F16 ? ftk_f16_to_f32(piece[i])
                                                    : ftk_bf16_to_f32(piece[i]);
    }
    return status;
}

static void attach_layer(qwen36_layer *l, const ftk_weight_views *views) {
    for (int t = 0; t < T_COUNT; t++) {
        l->w[t] = weight_at(views, l->plan[t]);
        l->factor[t] = weight_at(views, l->factor_plan[t]);
    }
    for (int part = 0; part < B_COUNT; part++) {
        const char *banks = (const char *)views->banks;
        l->experts[part] = (const ftk_bank_view *)(const void *)(banks + l->bank[part] *
                                                                             views->bank_stride);
        l->bank_factor[part] = weight_at(views, l->bank_factor_plan[part]);
    }
}

ftk_status qwen36_load_weights(ftk_model *m, const ftk_weight_views *views) {
    for (uint64_t i = 0; i < m->tensor_count; i++) {
        if (m->tensors[i].source != FTK_SOURCE_COMPUTED) continue;
        ftk_status status = widen(m, &m->tensors[i], views->computed[i]);
        if (status != FTK_OK) return status;
    }
    for (int g = 0; g < G_COUNT; g++) {
        m->g[g] = weight_at(views, m->global[g]);
        m->g_factor[g] = weight_at(views, m->global_factor[g]);
    }
    for (uint32_t i = 0; i < m->config.layers; i++) attach_layer(&m->layers[i], views);
    return FTK_OK;
}
