/*
 * forward.c: one step through the model. Nothing is computed here: operations are put on
 * the step's stream, and the core may record them once and replay them for later steps.
 * So shapes depend on the step's counts alone, and whatever differs from step to step is
 * read from the step's device arrays by the operations themselves.
 */
#include "template.h"

#include <freetoken/device/base.h>

#include "identity.h"

/* Where the intermediates of a step lie, one after the other in the step's workspace. */
typedef struct workspace {
    float *x;      /* [rows][hidden] residual stream */
    float *normed; /* [rows][hidden] */
    float *q;      /* [rows][hidden] */
    float *k;      /* [rows][kv_heads * head_dim] */
    float *v;      /* [rows][kv_heads * head_dim] */
    float *mixed;  /* [rows][hidden] what attention gives */
    float *up;     /* [rows][ff] */
    void *packed;  /* the activations of one matmul, rounded as its weights want them */
    uint64_t bytes;
} workspace;

/* With a NULL base only the size counts. */
static void *take(char *base, uint64_t *used, uint64_t bytes) {
    char *p = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return p;
}

static void lay_workspace(const ftk_model *m, uint64_t rows, void *base, workspace *w) {
    const template_config *c = &m->config;
    const uint64_t hidden = rows * c->hidden * sizeof(float), ff = rows * c->ff * sizeof(float);
    const uint64_t kv = rows * c->kv_heads * c->head_dim * sizeof(float);
    const uint32_t widest = c->ff > c->hidden ? c->ff : c->hidden;
    uint64_t used = 0;
    w->x = take(base, &used, hidden);
    w->normed = take(base, &used, hidden);
    w->q = take(base, &used, hidden);
    w->k = take(base, &used, kv);
    w->v = take(base, &used, kv);
    w->mixed = take(base, &used, hidden);
    w->up = take(base, &used, ff);
    w->packed = take(base, &used,
                     m->ops->activation_bytes(FTK_ACT_A32 | FTK_ACT_A256, rows, widest));
    w->bytes = used;
}

uint64_t template_workspace_bytes(const ftk_model *m, uint32_t rows) {
    workspace w;
    lay_workspace(m, rows, NULL, &w);
    return w.bytes;
}

/* A step at work. The first failure is kept and later calls do nothing, so that the
 * layers below read as a list of operations. */
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
    const ftk_op_rms_norm op = {.x = x,
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

/* `x` as the weights first[0 .. count - 1], which all read it, want it: each type of
 * weight reads floats or one format of rounded activations. */
static ftk_activation inputs(pass *p, const float *x, uint32_t rows, const ftk_weight *first,
                             uint32_t count) {
    const ftk_if_operators *ops = p->m->ops;
    ftk_op_quantize op = {{.x = x,
                           .packed = p->w.packed,
                           .x_stride = first->cols,
                           .rows = rows,
                           .cols = (uint32_t)first->cols}};
    for (uint32_t i = 0; i < count; i++) {
        const ftk_weight *w =
            (const ftk_weight *)(const void *)((const char *)first +
                                               i * (uint64_t)p->m->weights.weight_stride);
        uint32_t format = 0;
        ENQUEUE(p, ops->activation_format(w->type, &format));
        op.act.formats |= format;
    }
    if (op.act.formats) ENQUEUE(p, ops->quantize(p->step->stream, &op));
    return op.act;
}

static void matmul(pass *p, const ftk_weight *weight, const ftk_activation *act, float *y,
                   uint32_t flags) {
    const ftk_op_matmul op = {
        .weight = weight, .act = *act, .y = y, .y_stride = weight->rows, .required = flags};
    ENQUEUE(p, p->m->ops->matmul(p->step->stream, &op));
}

static void rope(pass *p, float *x, uint32_t heads) {
    const uint32_t dim = p->m->config.head_dim;
    const ftk_op_rope op = {.x = x,
                            .positions = p->step->positions,
                            .row_stride = (uint64_t)heads * dim,
                            .head_stride = dim,
                            .theta = p->m->config.rope_theta,
                            .rows = p->step->rows,
                            .heads = heads,
                            .rotary_dim = dim};
    ENQUEUE(p, p->m->ops->rope(p->step->stream, &op));
}

/* Keys and values go to the cache first: a row then attends to all positions up to its
 * own, those of this step included. */
static void attend(pass *p, uint32_t layer) {
    const template_config *c = &p->m->config;
    const ftk_cache_views *cache = &p->m->cache;
    const ftk_kv_view *kv = (const ftk_kv_view *)(const void *)((const char *)cache->kv +
                                                                (uint64_t)layer * cache->kv_stride);
    const uint64_t kv_row = (uint64_t)c->kv_heads * c->head_dim;
    const ftk_op_kv_append append = {.step = p->step,
                                     .kv = kv,
                                     .k = p->w.k,
                                     .v = p->w.v,
                                     .k_stride = kv_row,
                                     .v_stride = kv_row};
    ENQUEUE(p, p->m->ops->kv_append(p->step->stream, &append));
    const ftk_op_attention attention = {.step = p->step,
                                        .kv = kv,
                                        .q = p->w.q,
                                        .o = p->w.mixed,
                                        .q_row_stride = c->hidden,
                                        .q_head_stride = c->head_dim,
                                        .o_row_stride = c->hidden,
                                        .heads = c->heads,
                                        .scale = 1.0f / ftk_sqrt((float)c->head_dim)};
    ENQUEUE(p, p->m->ops->attention(p->step->stream, &attention));
}

/* The provider's own kernel, with the function of the variant that the core chose. */
static void relu2(pass *p, float *x, uint32_t rows) {
    const template_relu2_args args = {x, p->m->config.ff};
    const ftk_cpu_launch launch = {.struct_size = (uint32_t)sizeof launch,
                                   .args_bytes = (uint32_t)sizeof args,
                                   .name = FTK_STR(PROVIDER_NAME "/relu2"),
                                   .function = p->m->relu2,
                                   .args = &args,
                                   .items = rows};
    ENQUEUE(p, p->m->kernels->launch_cpu(p->step->stream, &launch));
}

static void gather(pass *p, const float *x, float *y) {
    const uint32_t hidden = p->m->config.hidden;
    const ftk_op_gather_rows op = {.x = x,
                                   .index = p->step->logit_rows,
                                   .y = y,
                                   .x_stride = hidden,
                                   .y_stride = hidden,
                                   .count = p->step->logit_count,
                                   .n = hidden};
    if (op.count) ENQUEUE(p, p->m->ops->gather_rows(p->step->stream, &op));
}

static void run_layer(pass *p, uint32_t layer) {
    const ftk_model *m = p->m;
    const uint32_t rows = p->step->rows;
    const ftk_weight *w[T_COUNT];
    for (int t = 0; t < T_COUNT; t++) w[t] = template_layer_weight(m, layer, t);

    norm(p, p->w.x, w[T_ATTN_NORM], p->w.normed, rows);
    ftk_activation a = inputs(p, p->w.normed, rows, w[T_Q], 3); /* Q, K and V */
    matmul(p, w[T_Q], &a, p->w.q, 0);
    matmul(p, w[T_K], &a, p->w.k, 0);
    matmul(p, w[T_V], &a, p->w.v, 0);
    rope(p, p->w.q, m->config.heads);
    rope(p, p->w.k, m->config.kv_heads);
    attend(p, layer);
    a = inputs(p, p->w.mixed, rows, w[T_O], 1);
    matmul(p, w[T_O], &a, p->w.x, FTK_MATMUL_ACCUMULATE);

    norm(p, p->w.x, w[T_FFN_NORM], p->w.normed, rows);
    a = inputs(p, p->w.normed, rows, w[T_UP], 1);
    matmul(p, w[T_UP], &a, p->w.up, 0);
    relu2(p, p->w.up, rows);
    a = inputs(p, p->w.up, rows, w[T_DOWN], 1);
    matmul(p, w[T_DOWN], &a, p->w.x, FTK_MATMUL_ACCUMULATE);

    float *outputs = p->step->layer_outputs;
    if (outputs)
        gather(p, p->w.x, outputs + (uint64_t)layer * p->step->logit_count * m->config.hidden);
}

/* Logits only of the rows that were asked for. */
static void run_head(pass *p) {
    const ftk_weight *output = template_model_weight(p->m, G_OUTPUT);
    const uint32_t rows = p->step->logit_count;
    if (rows == 0) return;
    gather(p, p->w.x, p->w.normed);
    norm(p, p->w.normed, template_model_weight(p->m, G_OUTPUT_NORM), p->w.normed, rows);
    ftk_activation a = inputs(p, p->w.normed, rows, output, 1);
    matmul(p, output, &a, p->step->logits, 0);
}

ftk_status template_run(ftk_model *m, const ftk_step *step) {
    pass p = {.m = m, .step = step, .status = FTK_OK};
    lay_workspace(m, step->rows, step->workspace, &p.w);
    if (step->required != 0 || p.w.bytes > step->workspace_bytes || step->logit_count > step->rows)
        return template_fail(m->host, m->ctx, FTK_E_ARGUMENT,
                             "step of %u rows and %u logit rows does not keep to the plan",
                             step->rows, step->logit_count);
    const ftk_op_embed embed = {.table = template_model_weight(m, G_EMBED),
                                .tokens = step->tokens,
                                .y = p.w.x,
                                .y_stride = m->config.hidden,
                                .rows = step->rows};
    ENQUEUE(&p, m->ops->embed(step->stream, &embed));
    for (uint32_t i = 0; i < m->config.layers; i++) run_layer(&p, i);
    run_head(&p);
    if (p.status == FTK_OK) return FTK_OK;
    return template_fail(m->host, m->ctx, p.status, "the backend refused an operation of the step");
}
