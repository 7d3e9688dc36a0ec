/*
 * operators.c: the "operators" and "kernels" interfaces: every argument that the
 * host can see is checked here, once, and turned into a command. What lies in
 * device memory (tokens, positions, offsets) is the core's responsibility.
 */
#include "backend/cpu/cpu.h"

#include "freetoken/device/dot.h"

/* Multiplications that are worth giving to another thread. */
#define WORTH_A_THREAD 32768u

_Static_assert(sizeof(fti_cpu_matmul) <= FTK_KERNEL_ARGS_MAX &&
                   sizeof(fti_cpu_grouped) <= FTK_KERNEL_ARGS_MAX &&
                   sizeof(fti_cpu_attention) <= FTK_KERNEL_ARGS_MAX &&
                   sizeof(fti_cpu_kv_append) <= FTK_KERNEL_ARGS_MAX &&
                   sizeof(ftk_op_rms_norm) <= FTK_KERNEL_ARGS_MAX &&
                   sizeof(ftk_op_combine) <= FTK_KERNEL_ARGS_MAX &&
                   sizeof(ftk_op_scale) <= FTK_KERNEL_ARGS_MAX,
               "arguments of a kernel must fit a recorded command");

static uint64_t grain_of(uint64_t work_per_item) {
    return work_per_item >= WORTH_A_THREAD ? 1 : WORTH_A_THREAD / (work_per_item + 1) + 1;
}

/* Whole panels, since a kernel does the work of one also for a part of it. */
static uint64_t panel_grain_of(uint64_t work_per_item) {
    return (grain_of(work_per_item) + FTI_CPU_PANEL - 1) / FTI_CPU_PANEL * FTI_CPU_PANEL;
}

/* ---- types ------------------------------------------------------------------- */

typedef struct type_facts {
    uint32_t type;
    uint32_t format; /* FTK_ACT_, 0 for float types */
    uint32_t block;  /* elements */
    uint32_t bytes;  /* of a block */
} type_facts;

static const type_facts types[] = {
    {FTK_TYPE_F32, 0, 1, 4},
    {FTK_TYPE_F16, 0, 1, 2},
    {FTK_TYPE_BF16, 0, 1, 2},
    {FTK_TYPE_Q8_0, FTK_ACT_A32, 32, FTK_Q8_0_BYTES},
    {FTK_TYPE_Q4_K, FTK_ACT_A256, 256, FTK_Q4_K_BYTES},
    {FTK_TYPE_Q5_K, FTK_ACT_A256, 256, FTK_Q5_K_BYTES},
    {FTK_TYPE_Q6_K, FTK_ACT_A256, 256, FTK_Q6_K_BYTES},
    {FTK_TYPE_Q4_0, FTK_ACT_A32, 32, FTK_Q4_0_BYTES},
    {FTK_TYPE_Q4_1, FTK_ACT_A32, 32, FTK_Q4_1_BYTES},
    {FTK_TYPE_Q5_0, FTK_ACT_A32, 32, FTK_Q5_0_BYTES},
    {FTK_TYPE_Q5_1, FTK_ACT_A32, 32, FTK_Q5_1_BYTES},
    {FTK_TYPE_Q2_K, FTK_ACT_A256, 256, FTK_Q2_K_BYTES},
    {FTK_TYPE_Q3_K, FTK_ACT_A256, 256, FTK_Q3_K_BYTES},
    {FTK_TYPE_IQ4_NL, FTK_ACT_A32, 32, FTK_IQ4_NL_BYTES},
    {FTK_TYPE_IQ4_XS, FTK_ACT_A256, 256, FTK_IQ4_XS_BYTES},
    {FTK_TYPE_MXFP4, FTK_ACT_A32, 32, FTK_MXFP4_BYTES},
    {FTK_TYPE_NVFP4, FTK_ACT_A32, 64, FTK_NVFP4_BYTES},
};

static const type_facts *find_type(uint32_t type) {
    for (size_t i = 0; i < FTI_COUNT(types); i++)
        if (types[i].type == type) return &types[i];
    return NULL;
}

static ftk_status activation_format(uint32_t weight_type, uint32_t *format) {
    const type_facts *facts = find_type(weight_type);
    if (!facts) return FTK_E_UNSUPPORTED;
    *format = facts->format;
    return FTK_OK;
}

static uint64_t activation_bytes(uint32_t formats, uint64_t rows, uint64_t cols) {
    return rows * ftk_act_row_bytes(formats, cols);
}

/* ---- checks that several operators share --------------------------------------- */

static bool make_matrix(uint32_t type, uint32_t layout, uint64_t cols, uint64_t row_bytes,
                        const void *data, fti_cpu_matrix *out) {
    const type_facts *facts = find_type(type);
    if (!facts || layout != FTK_LAYOUT_RAW || !data) return false;
    if (cols == 0 || cols > UINT32_MAX || cols % facts->block) return false;
    if (row_bytes < cols / facts->block * facts->bytes) return false;
    if (facts->block == 1 && (uintptr_t)data % facts->bytes) return false;
    *out = (fti_cpu_matrix){data, row_bytes, type, (uint32_t)cols};
    return true;
}

static bool formats_fit(uint32_t formats, uint32_t cols) {
    if (formats & ~(FTK_ACT_A32 | FTK_ACT_A256)) return false;
    if ((formats & FTK_ACT_A32) && cols % 32) return false;
    return !((formats & FTK_ACT_A256) && cols % 256);
}

/* Where the rows that a weight of `type` reads are: packed, or the floats. */
static bool make_inputs(const ftk_activation *act, uint32_t type, bool as_float,
                        fti_cpu_inputs *out) {
    uint32_t format = find_type(type)->format;
    if (as_float || format == 0) {
        if (!act->x || act->x_stride < act->cols) return false;
        *out = (fti_cpu_inputs){(const uint8_t *)act->x, act->x_stride * sizeof(float)};
        return true;
    }
    if (!act->packed || !(act->formats & format) || !formats_fit(act->formats, act->cols))
        return false;
    const uint8_t *packed = act->packed;
    *out = (fti_cpu_inputs){packed + ftk_act_offset(act->formats, format, act->cols),
                            ftk_act_row_bytes(act->formats, act->cols)};
    return true;
}

static bool reads_float(const fti_cpu_backend *backend, uint32_t type) {
    return backend->float_numerics || find_type(type)->format == 0;
}

static bool make_cache(const ftk_step *step, const ftk_kv_view *kv, fti_cpu_cache *out) {
    if (!step || !kv || !kv->keys || !kv->values) return false;
    if (!step->positions || !step->row_sequence || !step->block_table) return false;
    bool blocks = kv->type == FTK_TYPE_Q8_0;
    if (!blocks && kv->type != FTK_TYPE_F16 && kv->type != FTK_TYPE_BF16 &&
        kv->type != FTK_TYPE_F32)
        return false;
    if (blocks && (kv->key_dim % 32 || kv->value_dim % 32)) return false;
    if (kv->kv_heads == 0 || kv->page_tokens == 0) return false;
    if (kv->key_dim == 0 || kv->key_dim > FTI_CPU_MAX_HEAD_DIM) return false;
    if (kv->value_dim == 0 || kv->value_dim > FTI_CPU_MAX_HEAD_DIM) return false;
    *out = (fti_cpu_cache){
        .positions = step->positions,
        .row_sequence = step->row_sequence,
        .block_table = step->block_table,
        .keys = kv->keys,
        .values = kv->values,
        .block_stride = step->block_stride,
        .type = kv->type,
        .kv_heads = kv->kv_heads,
        .key_dim = kv->key_dim,
        .value_dim = kv->value_dim,
        .page_tokens = kv->page_tokens,
    };
    return true;
}

static bool routing_fits(const ftk_routing *r) {
    if (!r->experts || !r->weights || !r->offsets || !r->pairs) return false;
    if (r->expert_count == 0 || r->expert_count > FTI_CPU_MAX_EXPERTS) return false;
    if (r->used == 0 || r->used > r->expert_count) return false;
    return (uint64_t)r->rows * r->used <= INT32_MAX;
}

static const fti_cpu_kernels *kernels_of(ftk_stream *stream) {
    return &fti_cpu_stream_backend(stream)->kernels;
}

/* ---- operators -------------------------------------------------------------------- */

static ftk_status embed(ftk_stream *stream, const ftk_op_embed *op) {
    const ftk_weight *table = op->table;
    fti_cpu_embed args = {.tokens = op->tokens, .y = op->y, .y_stride = op->y_stride};
    if (!table || !op->tokens || !op->y || op->y_stride < table->cols ||
        !make_matrix(table->type, table->layout, table->cols, table->row_bytes, table->data,
                     &args.table))
        return fti_cpu_refuse(stream);
    args.table_rows = table->rows;
    return fti_cpu_enqueue(stream, kernels_of(stream)->embed, &args, sizeof args, op->rows,
                           grain_of(table->cols));
}

static ftk_status rms_norm(ftk_stream *stream, const ftk_op_rms_norm *op) {
    if (!op->x || !op->weight || !op->y || op->n == 0) return fti_cpu_refuse(stream);
    return fti_cpu_enqueue(stream, kernels_of(stream)->rms_norm, op, sizeof *op, op->rows,
                           grain_of((uint64_t)op->groups * op->n));
}

static ftk_status quantize(ftk_stream *stream, const ftk_op_quantize *op) {
    const ftk_activation *act = &op->act;
    if (act->formats == 0) return FTK_OK;
    if (!act->x || !act->packed || (uintptr_t)act->packed % 64 || act->x_stride < act->cols ||
        !formats_fit(act->formats, act->cols))
        return fti_cpu_refuse(stream);
    if (fti_cpu_stream_backend(stream)->float_numerics) return FTK_OK;
    return fti_cpu_enqueue(stream, kernels_of(stream)->quantize, act, sizeof *act, act->rows,
                           grain_of((uint64_t)4 * act->cols));
}

static fti_cpu_span rows_of(const void *begin, uint64_t rows, uint64_t stride) {
    return (fti_cpu_span){begin, rows * stride};
}

static ftk_status matmul(ftk_stream *stream, const ftk_op_matmul *op) {
    const ftk_weight *w = op->weight;
    fti_cpu_matmul args = {.y = op->y, .y_stride = op->y_stride, .rows = op->act.rows};
    if (!w || !op->y || (op->required & ~FTK_MATMUL_ACCUMULATE) || op->y_stride < w->rows ||
        w->cols != op->act.cols ||
        !make_matrix(w->type, w->layout, w->cols, w->row_bytes, w->data, &args.weight))
        return fti_cpu_refuse(stream);
    args.as_float = reads_float(fti_cpu_stream_backend(stream), w->type);
    args.accumulate = (op->required & FTK_MATMUL_ACCUMULATE) != 0;
    if (!make_inputs(&op->act, w->type, args.as_float, &args.in)) return fti_cpu_refuse(stream);
    uint64_t work = w->cols * op->act.rows;
    const fti_cpu_reach reach = {rows_of(op->y, op->act.rows, op->y_stride * sizeof *op->y),
                                 {rows_of(args.in.data, op->act.rows, args.in.stride)}};
    return fti_cpu_enqueue_product(stream, kernels_of(stream)->matmul, &args, sizeof args,
                                   op->act.rows ? w->rows : 0,
                                   args.as_float ? grain_of(work) : panel_grain_of(work), &reach);
}

static ftk_status grouped_matmul(ftk_stream *stream, const ftk_op_grouped_matmul *op) {
    const ftk_bank_view *b = op->bank;
    const ftk_routing *r = &op->routing;
    fti_cpu_grouped args = {.y = op->y, .y_stride = op->y_stride, .divisor = op->act_divisor};
    if (!b || !op->y || !routing_fits(r) || op->y_stride < b->rows || b->cols != op->act.cols ||
        r->expert_count != b->experts ||
        !make_matrix(b->type, b->layout, b->cols, b->row_bytes, b->base, &args.expert))
        return fti_cpu_refuse(stream);
    if ((op->act_divisor != 1 && op->act_divisor != r->used) ||
        (uint64_t)op->act.rows * op->act_divisor < (uint64_t)r->rows * r->used)
        return fti_cpu_refuse(stream);
    args.as_float = reads_float(fti_cpu_stream_backend(stream), b->type);
    if (!make_inputs(&op->act, b->type, args.as_float, &args.in)) return fti_cpu_refuse(stream);
    args.expert_stride = b->expert_stride;
    args.offsets = r->offsets;
    args.pairs = r->pairs;
    args.experts = b->experts;
    args.rows = b->rows;
    uint64_t pairs = (uint64_t)r->rows * r->used, busy = pairs < b->experts ? pairs : b->experts;
    args.shares = busy * ((b->rows + FTI_CPU_PANEL - 1) / FTI_CPU_PANEL);
    uint64_t grain = grain_of(b->cols * FTI_CPU_PANEL * (pairs / (busy + 1) + 1));
    if (b->slots) return fti_cpu_enqueue_slots(stream, b, &args, grain);
    const fti_cpu_reach reach = {rows_of(op->y, pairs, op->y_stride * sizeof *op->y),
                                 {rows_of(args.in.data, op->act.rows, args.in.stride),
                                  rows_of(r->offsets, (uint64_t)b->experts + 1, sizeof *r->offsets),
                                  rows_of(r->pairs, pairs, sizeof *r->pairs)}};
    return fti_cpu_enqueue_product(stream, kernels_of(stream)->grouped_matmul, &args, sizeof args,
                                   args.shares, grain, &reach);
}

static ftk_status ensure(ftk_stream *stream, const ftk_op_ensure *op) {
    if (!op->bank || !routing_fits(&op->routing) || op->routing.expert_count != op->bank->experts)
        return fti_cpu_refuse(stream);
    if (!op->bank->slots) return FTK_OK;
    return fti_cpu_enqueue_ensure(stream, op->bank, op->routing.offsets);
}

static ftk_status rope(ftk_stream *stream, const ftk_op_rope *op) {
    if (!op->x || !op->positions || op->rotary_dim % 2 || op->rotary_dim > FTI_CPU_MAX_HEAD_DIM ||
        !(op->theta >= 1.0 && op->theta <= 1e12))
        return fti_cpu_refuse(stream);
    fti_cpu_rope args = {
        .x = op->x,
        .positions = op->positions,
        .row_stride = op->row_stride,
        .head_stride = op->head_stride,
        .theta = op->theta,
        .heads = op->heads,
        .rotary_dim = op->rotary_dim,
    };
    return fti_cpu_enqueue(stream, kernels_of(stream)->rope, &args, sizeof args, op->rows,
                           grain_of((uint64_t)op->rotary_dim * (op->heads + 16u)));
}

static ftk_status kv_append(ftk_stream *stream, const ftk_op_kv_append *op) {
    fti_cpu_kv_append args = {
        .k = op->k, .v = op->v, .k_stride = op->k_stride, .v_stride = op->v_stride};
    if (!op->k || !op->v || !make_cache(op->step, op->kv, &args.cache))
        return fti_cpu_refuse(stream);
    return fti_cpu_enqueue(
        stream, kernels_of(stream)->kv_append, &args, sizeof args, op->step->rows,
        grain_of((uint64_t)op->kv->kv_heads * (op->kv->key_dim + op->kv->value_dim)));
}

/* Heads that share one pass over the keys: as many as leave work for all threads. */
static uint32_t attention_tile_size(const fti_cpu_backend *backend, uint64_t rows,
                                    uint32_t per_kv_head) {
    uint32_t tile = per_kv_head < FTI_CPU_MAX_TILE ? per_kv_head : FTI_CPU_MAX_TILE;
    uint32_t threads = fti_pool_threads(backend->pool);
    while (tile > 1 && rows * ((per_kv_head + tile - 1) / tile) < threads) tile = (tile + 1) / 2;
    return tile;
}

static ftk_status attention(ftk_stream *stream, const ftk_op_attention *op) {
    fti_cpu_attention args = {
        .q = op->q,
        .o = op->o,
        .q_row_stride = op->q_row_stride,
        .q_head_stride = op->q_head_stride,
        .o_row_stride = op->o_row_stride,
        .heads = op->heads,
        .scale = op->scale,
    };
    if (!op->q || !op->o || op->heads == 0 || !make_cache(op->step, op->kv, &args.cache) ||
        op->heads % op->kv->kv_heads)
        return fti_cpu_refuse(stream);
    uint32_t per_kv_head = op->heads / op->kv->kv_heads;
    uint64_t passes = (uint64_t)op->step->rows * op->kv->kv_heads;
    args.tile = attention_tile_size(fti_cpu_stream_backend(stream), passes, per_kv_head);
    args.tiles = (per_kv_head + args.tile - 1) / args.tile;
    return fti_cpu_enqueue(stream, kernels_of(stream)->attention, &args, sizeof args,
                           passes * args.tiles, 1);
}

static ftk_status route(ftk_stream *stream, const ftk_op_route *op) {
    const ftk_routing *r = &op->routing;
    if (!op->logits || !routing_fits(r) || op->logits_stride < r->expert_count)
        return fti_cpu_refuse(stream);
    FTI_TRY(fti_cpu_enqueue(stream, kernels_of(stream)->route, op, sizeof *op, r->rows,
                            grain_of((uint64_t)r->expert_count * (r->used + 16u))));
    return fti_cpu_enqueue(stream, kernels_of(stream)->group, op, sizeof *op, 1, 1);
}

static ftk_status swiglu(ftk_stream *stream, const ftk_op_swiglu *op) {
    if (!op->gate || !op->up || !op->y) return fti_cpu_refuse(stream);
    /* An exponential is worth some thirty multiplications of a product. */
    return fti_cpu_enqueue(stream, kernels_of(stream)->swiglu, op, sizeof *op, op->rows,
                           grain_of((uint64_t)32 * op->n));
}

static ftk_status combine(ftk_stream *stream, const ftk_op_combine *op) {
    if (!op->contributions || !op->weights || !op->residual || !op->y || op->stride < op->n)
        return fti_cpu_refuse(stream);
    return fti_cpu_enqueue(stream, kernels_of(stream)->combine, op, sizeof *op, op->rows,
                           grain_of((uint64_t)op->n * (op->used + 1u)));
}

static ftk_status gather_rows(ftk_stream *stream, const ftk_op_gather_rows *op) {
    if (!op->x || !op->index || !op->y || op->y_stride < op->n) return fti_cpu_refuse(stream);
    return fti_cpu_enqueue(stream, kernels_of(stream)->gather_rows, op, sizeof *op, op->count,
                           grain_of(op->n));
}

static ftk_status scale(ftk_stream *stream, const ftk_op_scale *op) {
    if (!op->x || !op->factors || !op->y || op->factor_count == 0 || op->x_stride < op->n ||
        op->y_stride < op->n || (op->required & ~FTK_SCALE_ACCUMULATE))
        return fti_cpu_refuse(stream);
    return fti_cpu_enqueue(stream, fti_cpu_scale, op, sizeof *op, op->rows, grain_of(op->n));
}

const ftk_if_operators fti_cpu_operators = {
    .struct_size = sizeof(ftk_if_operators),
    .level = 0,
    .activation_format = activation_format,
    .activation_bytes = activation_bytes,
    .embed = embed,
    .rms_norm = rms_norm,
    .quantize = quantize,
    .matmul = matmul,
    .rope = rope,
    .kv_append = kv_append,
    .attention = attention,
    .route = route,
    .grouped_matmul = grouped_matmul,
    .swiglu = swiglu,
    .combine = combine,
    .gather_rows = gather_rows,
    .scale = scale,
    .ensure = ensure,
};

/* ---- the provider's own kernels ---------------------------------------------------- */

static ftk_status launch_cpu(ftk_stream *stream, const ftk_cpu_launch *launch) {
    if (launch->struct_size < sizeof *launch || !launch->function ||
        launch->args_bytes > FTK_KERNEL_ARGS_MAX || (launch->args_bytes && !launch->args))
        return fti_cpu_refuse(stream);
    return fti_cpu_enqueue(stream, launch->function, launch->args, launch->args_bytes,
                           launch->items, 1);
}

const ftk_if_kernels fti_cpu_launcher = {
    .struct_size = sizeof(ftk_if_kernels),
    .level = 0,
    .launch_cpu = launch_cpu,
};
