/*
 * forward.c: one step through the model, reading as the model is defined: a
 * mixer (gated delta net or gated attention) and a mixture of experts per layer,
 * on f32 activations. Everything is enqueued on the step's stream; shapes depend
 * on the step's counts alone, so a captured step can be replayed.
 */
#include "qwen36.h"

/* Where the intermediates of a step lie. Mixer and experts use the same memory,
 * one after the other. */
typedef struct workspace {
    float *x;      /* [rows][hidden] residual stream */
    float *normed; /* [rows][hidden] */
    void *normed_packed;
    /* mixer */
    float *projected; /* [rows][conv_channels] or [rows][heads][2][head_dim] */
    float *convolved; /* [rows][conv_channels] */
    float *z;         /* [rows][value_heads * state_dim] */
    float *alpha;     /* [rows][value_heads] */
    float *beta;      /* [rows][value_heads] */
    float *k;         /* [rows][kv_heads * head_dim] */
    float *v;         /* [rows][kv_heads * head_dim] */
    float *mixed;     /* [rows][input of the output projection] */
    void *mixed_packed;
    /* experts */
    float *router; /* [rows][experts] */
    ftk_routing routing;
    float *gate; /* [rows * used][expert_ff], becomes the hidden vector */
    float *up;   /* [rows * used][expert_ff] */
    void *expert_packed;
    float *contributions; /* [rows * used][hidden] */
    float *shared_gate;   /* [rows][shared_ff] */
    float *shared_up;     /* [rows][shared_ff] */
    void *shared_packed;
    float *shared;       /* [rows][hidden] */
    float *shared_logit; /* [rows] */
    /* head */
    float *last; /* [rows][hidden] */
    void *last_packed;
    uint64_t bytes;
} workspace;

#define ALL_FORMATS (FTK_ACT_A32 | FTK_ACT_A256)

/* Lays arrays one after the other from `base`; with a NULL base only the size
 * counts. */
typedef struct arena {
    char *base;
    uint64_t used;
    uint64_t high;
} arena;

static void *take(arena *a, uint64_t bytes) {
    void *p = a->base ? a->base + a->used : NULL;
    a->used += (bytes + 63) / 64 * 64;
    if (a->used > a->high) a->high = a->used;
    return p;
}

static float *take_floats(arena *a, uint64_t rows, uint64_t n) {
    return take(a, rows * n * sizeof(float));
}

static void *take_packed(arena *a, const ftk_model *m, uint64_t rows, uint64_t cols) {
    return take(a, m->ops->activation_bytes(ALL_FORMATS, rows, cols));
}

static uint64_t mixed_width(const qwen36_config *c) {
    uint64_t linear = (uint64_t)c->value_heads * c->state_dim,
             full = (uint64_t)c->heads * c->head_dim;
    return linear > full ? linear : full;
}

static void lay_mixer(arena *a, const ftk_model *m, uint64_t rows, workspace *w) {
    const qwen36_config *c = &m->config;
    uint64_t qg = 2 * (uint64_t)c->heads * c->head_dim;
    w->projected = take_floats(a, rows, qg > c->conv_channels ? qg : c->conv_channels);
    w->convolved = take_floats(a, rows, c->conv_channels);
    w->z = take_floats(a, rows, (uint64_t)c->value_heads * c->state_dim);
    w->alpha = take_floats(a, rows, c->value_heads);
    w->beta = take_floats(a, rows, c->value_heads);
    w->k = take_floats(a, rows, (uint64_t)c->kv_heads * c->head_dim);
    w->v = take_floats(a, rows, (uint64_t)c->kv_heads * c->head_dim);
    w->mixed = take_floats(a, rows, mixed_width(c));
    w->mixed_packed = take_packed(a, m, rows, mixed_width(c));
}

static void lay_experts(arena *a, const ftk_model *m, uint64_t rows, workspace *w) {
    const qwen36_config *c = &m->config;
    uint64_t pairs = rows * c->used_experts;
    w->router = take_floats(a, rows, c->experts);
    w->routing = (ftk_routing){
        .rows = (uint32_t)rows, .used = c->used_experts, .expert_count = c->experts};
    w->routing.experts = take(a, pairs * sizeof(int32_t));
    w->routing.weights = take_floats(a, pairs, 1);
    w->routing.offsets = take(a, ((uint64_t)c->experts + 1) * sizeof(int32_t));
    w->routing.pairs = take(a, pairs * sizeof(int32_t));
    w->gate = take_floats(a, pairs, c->expert_ff);
    w->up = take_floats(a, pairs, c->expert_ff);
    w->expert_packed = take_packed(a, m, pairs, c->expert_ff);
    w->contributions = take_floats(a, pairs, c->hidden);
    w->shared_gate = take_floats(a, rows, c->shared_ff);
    w->shared_up = take_floats(a, rows, c->shared_ff);
    w->shared_packed = take_packed(a, m, rows, c->shared_ff);
    w->shared = take_floats(a, rows, c->hidden);
    w->shared_logit = take_floats(a, rows, 1);
}

static void lay_workspace(const ftk_model *m, uint64_t rows, void *base, workspace *w) {
    arena a = {base, 0, 0};
    w->x = take_floats(&a, rows, m->config.hidden);
    w->normed = take_floats(&a, rows, m->config.hidden);
    w->normed_packed = take_packed(&a, m, rows, m->config.hidden);
    uint64_t common = a.used;
    lay_mixer(&a, m, rows, w);
    a.used = common;
    lay_experts(&a, m, rows, w);
    a.used = common;
    w->last = take_floats(&a, rows, m->config.hidden);
    w->last_packed = take_packed(&a, m, rows, m->config.hidden);
    w->bytes = a.high;
}

uint64_t qwen36_workspace_bytes(const ftk_model *m, uint32_t rows) {
    workspace w;
    lay_workspace(m, rows, NULL, &w);
    return w.bytes;
}

uint64_t qwen36_layer_state_floats(const qwen36_config *c) {
    return (uint64_t)(c->conv_kernel - 1) * c->conv_channels +
           (uint64_t)c->value_heads * c->state_dim * c->state_dim;
}

/* A step at work. The first failure is kept and later calls do nothing, so that
 * the layers below read as a list of operations. */
typedef struct pass {
    ftk_model *m;
    const ftk_step *step;
    workspace w;
    ftk_status status;
} pass;

#define ENQUEUE(p, call)                                                                           \
    do {                                                                                           \
        if ((p)->status == FTK_OK) (p)->status = (call);                                           \
    } while (0)

static void norm(pass *p, const float *x, const ftk_weight *weight, float *y, uint32_t rows) {
    ftk_op_rms_norm op = {.x = x,
                          .weight = weight->data,
                          .y = y,
                          .x_row_stride = weight->cols,
                          .y_row_stride = weight->cols,
                          .rows = rows,
                          .groups = 1,
                          .n = (uint32_t)weight->cols,
                          .eps = p->m->config.eps};
    ENQUEUE(p, p->m->ops->rms_norm(p->step->stream, &op));
}

/* RMS norm of each head inside rows of `row_stride` floats, in place. */
static void head_norm(pass *p, float *x, const ftk_weight *weight, uint64_t row_stride,
                      uint64_t head_stride, uint32_t heads) {
    ftk_op_rms_norm op = {.x = x,
                          .weight = weight->data,
                          .y = x,
                          .x_row_stride = row_stride,
                          .x_group_stride = head_stride,
                          .y_row_stride = row_stride,
                          .y_group_stride = head_stride,
                          .rows = p->step->rows,
                          .groups = heads,
                          .n = (uint32_t)weight->cols,
                          .eps = p->m->config.eps};
    ENQUEUE(p, p->m->ops->rms_norm(p->step->stream, &op));
}

static ftk_activation quantize(pass *p, const float *x, void *packed, uint64_t rows, uint64_t cols,
                               uint32_t formats) {
    ftk_op_quantize op = {{.x = x,
                           .packed = packed,
                           .x_stride = cols,
                           .rows = (uint32_t)rows,
                           .cols = (uint32_t)cols,
                           .formats = formats}};
    if (formats) ENQUEUE(p, p->m->ops->quantize(p->step->stream, &op));
    return op.act;
}

/* y = factor * x, or y += with FTK_SCALE_ACCUMULATE; `index` chooses one for each row. */
static void scale(pass *p, const ftk_weight *factor, const int32_t *index, const float *x, float *y,
                  uint64_t rows, uint64_t n, uint32_t flags) {
    ftk_op_scale op = {.x = x,
                       .factors = factor->data,
                       .index = index,
                       .y = y,
                       .x_stride = n,
                       .y_stride = n,
                       .rows = (uint32_t)rows,
                       .n = (uint32_t)n,
                       .factor_count = (uint32_t)factor->cols,
                       .required = flags};
    ENQUEUE(p, p->m->ops->scale(p->step->stream, &op));
}

/* y = factor * (weight . act), or y += with FTK_MATMUL_ACCUMULATE, where the product
 * needs room if there is a factor. Only the residual stream is added to, by matrices
 * that stand behind every reader of the normed values: their room is free. */
static void matmul(pass *p, const ftk_weight *weight, const ftk_weight *factor,
                   const ftk_activation *act, float *y, uint32_t flags) {
    bool adds = (flags & FTK_MATMUL_ACCUMULATE) != 0;
    float *product = factor && adds ? p->w.normed : y;
    ftk_op_matmul op = {.weight = weight,
                        .act = *act,
                        .y = product,
                        .y_stride = weight->rows,
                        .required = factor ? 0 : flags};
    ENQUEUE(p, p->m->ops->matmul(p->step->stream, &op));
    if (factor)
        scale(p, factor, NULL, product, y, act->rows, weight->rows,
              adds ? FTK_SCALE_ACCUMULATE : 0);
}

/* The product with tensor T_... of a layer. */
static void project(pass *p, const qwen36_layer *l, int tensor, const ftk_activation *act, float *y,
                    uint32_t flags) {
    matmul(p, l->w[tensor], l->factor[tensor], act, y, flags);
}

/* The products of each pair with its expert of bank B_... */
static void grouped(pass *p, const qwen36_layer *l, int part, const ftk_activation *act, float *y,
                    uint32_t divisor) {
    const ftk_bank_view *bank = l->experts[part];
    const ftk_weight *factor = l->bank_factor[part];
    const ftk_routing *r = &p->w.routing;
    ftk_op_grouped_matmul op = {.bank = bank,
                                .act = *act,
                                .routing = *r,
                                .y = y,
                                .y_stride = bank->rows,
                                .act_divisor = divisor};
    ENQUEUE(p, p->m->ops->grouped_matmul(p->step->stream, &op));
    if (factor)
        scale(p, factor, factor->cols > 1 ? r->experts : NULL, y, y, (uint64_t)r->rows * r->used,
              bank->rows, 0);
}

/* gate becomes silu(gate) * up */
static void swiglu(pass *p, float *gate, const float *up, uint64_t rows, uint64_t n) {
    ftk_op_swiglu op = {.gate = gate,
                        .up = up,
                        .y = gate,
                        .gate_stride = n,
                        .up_stride = n,
                        .y_stride = n,
                        .rows = (uint32_t)rows,
                        .n = (uint32_t)n};
    ENQUEUE(p, p->m->ops->swiglu(p->step->stream, &op));
}

static void gather(pass *p, const float *x, float *y) {
    uint32_t hidden = p->m->config.hidden;
    ftk_op_gather_rows op = {.x = x,
                             .index = p->step->logit_rows,
                             .y = y,
                             .x_stride = hidden,
                             .y_stride = hidden,
                             .count = p->step->logit_count,
                             .n = hidden};
    if (p->step->logit_count) ENQUEUE(p, p->m->ops->gather_rows(p->step->stream, &op));
}

static void launch(pass *p, const char *name, ftk_cpu_kernel function, const void *args,
                   uint32_t args_bytes, uint64_t items) {
    ftk_cpu_launch l = {(uint32_t)sizeof l, args_bytes, qwen36_str(name), function, args, items};
    ENQUEUE(p, p->m->kernels->launch_cpu(p->step->stream, &l));
}

/* State of layer `cache` among the linear ones: first the convolution's inputs,
 * at `floats` from there the matrices. */
static qwen36_sequences state_of(const pass *p, uint32_t cache, uint64_t floats) {
    uint64_t layer = qwen36_layer_state_floats(&p->m->config);
    char *base = p->m->state.base;
    return (qwen36_sequences){.sequence_rows = p->step->sequence_rows,
                              .state_slots = p->step->state_slots,
                              .state = base + (cache * layer + floats) * sizeof(float),
                              .slot_stride = p->m->state.slot_stride};
}

static void delta_net(pass *p, const qwen36_layer *l) {
    const ftk_model *m = p->m;
    const qwen36_config *c = &m->config;
    uint64_t conv_floats = (uint64_t)(c->conv_kernel - 1) * c->conv_channels;
    qwen36_conv_args conv = {.seq = state_of(p, l->cache, 0),
                             .u = p->w.projected,
                             .weight = l->w[T_CONV]->data,
                             .y = p->w.convolved,
                             .channels = c->conv_channels,
                             .taps = c->conv_kernel};
    uint64_t blocks = (c->conv_channels + QWEN36_CONV_BLOCK - 1) / QWEN36_CONV_BLOCK;
    launch(p, "qwen36/conv", m->chosen.conv, &conv, (uint32_t)sizeof conv,
           p->step->sequences * blocks);
    qwen36_delta_args delta = {.seq = state_of(p, l->cache, conv_floats),
                               .qkv = p->w.convolved,
                               .alpha = p->w.alpha,
                               .beta = p->w.beta,
                               .a = l->w[T_A]->data,
                               .dt = l->w[T_DT]->data,
                               .o = p->w.mixed,
                               .channels = c->conv_channels,
                               .key_heads = c->key_heads,
                               .value_heads = c->value_heads,
                               .dim = c->state_dim,
                               .grouped_value_heads = c->grouped_value_heads,
                               .eps = c->eps};
    launch(p, "qwen36/delta", m->chosen.delta, &delta, (uint32_t)sizeof delta,
           (uint64_t)p->step->sequences * c->value_heads);
    qwen36_gated_norm_args gated = {.o = p->w.mixed,
                                    .z = p->w.z,
                                    .weight = l->w[T_SSM_NORM]->data,
                                    .y = p->w.mixed,
                                    .heads = c->value_heads,
                                    .dim = c->state_dim,
                                    .eps = c->eps};
    launch(p, "qwen36/gated_norm", m->chosen.gated_norm, &gated, (uint32_t)sizeof gated,
           (uint64_t)p->step->rows * c->value_heads);
}

static void linear_mixer(pass *p, const qwen36_layer *l, const ftk_activation *a) {
    project(p, l, T_QKV, a, p->w.projected, 0);
    project(p, l, T_Z, a, p->w.z, 0);
    project(p, l, T_BETA, a, p->w.beta, 0);
    project(p, l, T_ALPHA, a, p->w.alpha, 0);
    delta_net(p, l);
    ftk_activation y = quantize(p, p->w.mixed, p->w.mixed_packed, p->step->rows,
                                l->w[T_SSM_OUT]->cols, l->mixed_formats);
    project(p, l, T_SSM_OUT, &y, p->w.x, FTK_MATMUL_ACCUMULATE);
}

static void rope(pass *p, float *x, uint64_t row_stride, uint64_t head_stride, uint32_t heads) {
    ftk_op_rope op = {.x = x,
                      .positions = p->step->positions,
                      .row_stride = row_stride,
                      .head_stride = head_stride,
                      .theta = p->m->config.rope_theta,
                      .rows = p->step->rows,
                      .heads = heads,
                      .rotary_dim = p->m->config.rotary_dim};
    ENQUEUE(p, p->m->ops->rope(p->step->stream, &op));
}

static void attend(pass *p, const qwen36_layer *l) {
    const qwen36_config *c = &p->m->config;
    uint64_t q_row = 2 * (uint64_t)c->heads * c->head_dim, q_head = 2 * (uint64_t)c->head_dim;
    uint64_t kv_row = (uint64_t)c->kv_heads * c->head_dim;
    const ftk_kv_view *kv = (const ftk_kv_view *)(const void *)((const char *)p->m->kv +
                                                                (uint64_t)l->cache *
                                                                    p->m->kv_stride);
    head_norm(p, p->w.projected, l->w[T_Q_NORM], q_row, q_head, c->heads);
    head_norm(p, p->w.k, l->w[T_K_NORM], kv_row, c->head_dim, c->kv_heads);
    rope(p, p->w.projected, q_row, q_head, c->heads);
    rope(p, p->w.k, kv_row, c->head_dim, c->kv_heads);
    ftk_op_kv_append append = {.step = p->step,
                               .kv = kv,
                               .k = p->w.k,
                               .v = p->w.v,
                               .k_stride = kv_row,
                               .v_stride = kv_row};
    ENQUEUE(p, p->m->ops->kv_append(p->step->stream, &append));
    ftk_op_attention attention = {.step = p->step,
                                  .kv = kv,
                                  .q = p->w.projected,
                                  .o = p->w.mixed,
                                  .q_row_stride = q_row,
                                  .q_head_stride = q_head,
                                  .o_row_stride = (uint64_t)c->heads * c->head_dim,
                                  .heads = c->heads,
                                  .scale = p->m->attention_scale};
    ENQUEUE(p, p->m->ops->attention(p->step->stream, &attention));
    qwen36_attention_gate_args gate = {p->w.projected, p->w.mixed, c->heads, c->head_dim};
    launch(p, "qwen36/attention_gate", p->m->chosen.attention_gate, &gate, (uint32_t)sizeof gate,
           (uint64_t)p->step->rows * c->heads);
}

static void full_mixer(pass *p, const qwen36_layer *l, const ftk_activation *a) {
    project(p, l, T_Q, a, p->w.projected, 0);
    project(p, l, T_K, a, p->w.k, 0);
    project(p, l, T_V, a, p->w.v, 0);
    attend(p, l);
    ftk_activation o = quantize(p, p->w.mixed, p->w.mixed_packed, p->step->rows, l->w[T_O]->cols,
                                l->mixed_formats);
    project(p, l, T_O, &o, p->w.x, FTK_MATMUL_ACCUMULATE);
}

static ftk_activation routed_experts(pass *p, const qwen36_layer *l, const ftk_activation *f) {
    const qwen36_config *c = &p->m->config;
    uint64_t pairs = (uint64_t)p->step->rows * c->used_experts;
    ftk_op_route route = {
        .logits = p->w.router,
        .logits_stride = c->experts,
        .routing = p->w.routing,
        .row_sequence = p->step->row_sequence,
    };
    ftk_op_ensure ensure = {l->experts[B_GATE], p->w.routing};
    ENQUEUE(p, p->m->ops->route(p->step->stream, &route));
    ENQUEUE(p, p->m->ops->ensure(p->step->stream, &ensure));
    grouped(p, l, B_GATE, f, p->w.gate, c->used_experts);
    grouped(p, l, B_UP, f, p->w.up, c->used_experts);
    swiglu(p, p->w.gate, p->w.up, pairs, c->expert_ff);
    return quantize(p, p->w.gate, p->w.expert_packed, pairs, c->expert_ff, l->expert_formats);
}

static ftk_activation shared_expert(pass *p, const qwen36_layer *l) {
    const qwen36_config *c = &p->m->config;
    swiglu(p, p->w.shared_gate, p->w.shared_up, p->step->rows, c->shared_ff);
    return quantize(p, p->w.shared_gate, p->w.shared_packed, p->step->rows, c->shared_ff,
                    l->shared_formats);
}

static void moe(pass *p, const qwen36_layer *l) {
    const qwen36_config *c = &p->m->config;
    norm(p, p->w.x, l->w[T_POST_NORM], p->w.normed, p->step->rows);
    ftk_activation f = quantize(p, p->w.normed, p->w.normed_packed, p->step->rows, c->hidden,
                                l->moe_formats);
    /* Products that do not need each other follow each other, so that a graph may run them
     * at the same time. */
    project(p, l, T_ROUTER, &f, p->w.router, 0);
    project(p, l, T_SHARED_GATE_INP, &f, p->w.shared_logit, 0);
    project(p, l, T_SHARED_GATE, &f, p->w.shared_gate, 0);
    project(p, l, T_SHARED_UP, &f, p->w.shared_up, 0);
    ftk_activation hidden = routed_experts(p, l, &f), shared = shared_expert(p, l);
    grouped(p, l, B_DOWN, &hidden, p->w.contributions, 1);
    project(p, l, T_SHARED_DOWN, &shared, p->w.shared, 0);
    ftk_op_combine combine = {.contributions = p->w.contributions,
                              .weights = p->w.routing.weights,
                              .shared = p->w.shared,
                              .shared_gate = p->w.shared_logit,
                              .residual = p->w.x,
                              .y = p->w.x,
                              .stride = c->hidden,
                              .rows = p->step->rows,
                              .used = c->used_experts,
                              .n = c->hidden};
    ENQUEUE(p, p->m->ops->combine(p->step->stream, &combine));
}

static void layer(pass *p, uint32_t index) {
    const qwen36_layer *l = &p->m->layers[index];
    uint32_t hidden = p->m->config.hidden;
    norm(p, p->w.x, l->w[T_ATTN_NORM], p->w.normed, p->step->rows);
    ftk_activation a = quantize(p, p->w.normed, p->w.normed_packed, p->step->rows, hidden,
                                l->mixer_formats);
    if (l->linear)
        linear_mixer(p, l, &a);
    else
        full_mixer(p, l, &a);
    moe(p, l);
    if (p->step->layer_outputs)
        gather(p, p->w.x, p->step->layer_outputs + (uint64_t)index * p->step->logit_count * hidden);
}

static void head(pass *p) {
    if (!p->step->logit_count) return;
    gather(p, p->w.x, p->w.last);
    norm(p, p->w.last, p->m->g[G_OUTPUT_NORM], p->w.last, p->step->logit_count);
    ftk_activation a = quantize(p, p->w.last, p->w.last_packed, p->step->logit_count,
                                p->m->config.hidden, p->m->output_format);
    matmul(p, p->m->g[G_OUTPUT], p->m->g_factor[G_OUTPUT], &a, p->step->logits, 0);
}

ftk_status qwen36_run(ftk_model *m, const ftk_step *step) {
    pass p = {.m = m, .step = step, .status = FTK_OK};
    lay_workspace(m, step->rows, step->workspace, &p.w);
    if (step->required != 0 || p.w.bytes > step->workspace_bytes || step->logit_count > step->rows)
        return qwen36_fail(m->host, m->ctx, FTK_E_ARGUMENT,
                           "step of %u rows and %u logit rows does not keep to the plan",
                           step->rows, step->logit_count);
    ftk_op_embed embed = {.table = m->g[G_EMBED],
                          .tokens = step->tokens,
                          .y = p.w.x,
                          .y_stride = m->config.hidden,
                          .rows = step->rows};
    ENQUEUE(&p, m->ops->embed(step->stream, &embed));
    if (m->g_factor[G_EMBED])
        scale(&p, m->g_factor[G_EMBED], NULL, p.w.x, p.w.x, step->rows, m->config.hidden, 0);
    for (uint32_t i = 0; i < m->config.layers; i++) layer(&p, i);
    head(&p);
    if (p.status != FTK_OK)
        return qwen36_fail(m->host, m->ctx, p.status,
                           "the backend refused an operation of the step");
    return FTK_OK;
}
