/*
 * selftest_problems.c: shapes, data and calls of each operator for the self-test.
 */
#include "core/selftest.h"

#include <math.h>

#include "core/checkpoint.h"

enum { EXPERTS = 6, USED = 2, PAGE = 64, KV_HEADS = 2, QUERY_HEADS = 4 };

/* ---- data ---- */

static uint32_t next_random(uint64_t *seed) {
    uint64_t z = *seed += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(z >> 32);
}

/* Mostly [-1, 1), with zeroes of both signs, denormals and large values between. */
static void fill_floats(float *x, size_t count, uint64_t *seed) {
    static const float odd[] = {0.0f, -0.0f, 1e-42f, -1e-40f, 0x1p-100f, 3e4f, -7e3f};
    for (size_t i = 0; i < count; i++) {
        uint32_t r = next_random(seed);
        x[i] = r % 41 ? (float)((int32_t)r >> 8) / 8388608.0f : odd[(r >> 8) % FTI_COUNT(odd)];
    }
}

/* Bytes of a block that hold exponents of its scales. With bit 6 clear a scale of
 * any format is finite, so that a random block says something. */
typedef struct scale_bytes {
    uint32_t type; /* as containers number them */
    uint8_t count;
    uint8_t at[4];
} scale_bytes;

static const scale_bytes scale_table[] = {
    {0, 1, {3}},           /* F32 */
    {1, 1, {1}},           /* F16 */
    {2, 1, {1}},           /* Q4_0 */
    {3, 2, {1, 3}},        /* Q4_1 */
    {6, 1, {1}},           /* Q5_0 */
    {7, 2, {1, 3}},        /* Q5_1 */
    {8, 1, {1}},           /* Q8_0 */
    {10, 2, {81, 83}},     /* Q2_K */
    {11, 1, {109}},        /* Q3_K */
    {12, 2, {1, 3}},       /* Q4_K */
    {13, 2, {1, 3}},       /* Q5_K */
    {14, 1, {209}},        /* Q6_K */
    {20, 1, {1}},          /* IQ4_NL */
    {23, 1, {1}},          /* IQ4_XS */
    {30, 1, {1}},          /* BF16 */
    {39, 1, {0}},          /* MXFP4 */
    {40, 4, {0, 1, 2, 3}}, /* NVFP4 */
};

static void tame_block(uint32_t type, uint8_t *block, uint32_t bytes) {
    for (size_t i = 0; i < FTI_COUNT(scale_table); i++) {
        const scale_bytes *s = &scale_table[i];
        if (s->type != type) continue;
        for (uint32_t k = 0; k < s->count; k++) block[s->at[k]] &= 0xBFu;
        return;
    }
    for (uint32_t k = 0; k < bytes; k++) block[k] &= 0xBFu;
}

/* Random blocks, and between them those with all their bits alike: the limits of
 * every field. The last row's scales are left as they come, not-a-number included. */
static void fill_blocks(const fti_problem *p, uint64_t rows, uint64_t *seed) {
    uint32_t elements = 1, bytes = 1;
    (void)fti_type_block(p->type, &elements, &bytes);
    uint64_t blocks = rows * (p->cols / elements);
    uint8_t *data = p->image + p->weights;
    for (uint64_t i = 0; i < blocks; i++) {
        uint8_t *block = data + i * bytes;
        uint32_t limit = next_random(seed) % 12;
        for (uint32_t k = 0; k < bytes; k++)
            block[k] = limit == 0   ? 0xFFu
                       : limit == 1 ? 0x80u
                       : limit == 2 ? 0u
                                    : (uint8_t)next_random(seed);
        if (rows == 1 || i < blocks - p->cols / elements) tame_block(p->type, block, bytes);
    }
}

/* Among several rows of activations one is zero and one is not finite. */
static void fill_activations(const fti_problem *p, uint64_t *seed) {
    float *x = (float *)(void *)(p->image + p->x);
    fill_floats(x, (size_t)p->inputs * p->cols, seed);
    if (p->inputs < 5) return;
    memset(x + 3 * (size_t)p->cols, 0, p->cols * sizeof *x);
    x[4 * (size_t)p->cols + 17] = INFINITY;
}

/* ---- the image ---- */

static uint64_t place(fti_problem *p, uint64_t bytes) {
    uint64_t at = p->bytes;
    p->bytes += (bytes + 63) / 64 * 64;
    return at;
}

static uint64_t floats(uint64_t a, uint64_t b) {
    return a * b * sizeof(float);
}

static float *floats_at(uint8_t *base, uint64_t at) {
    return (float *)(void *)(base + at);
}

static int32_t *ints_at(uint8_t *base, uint64_t at) {
    return (int32_t *)(void *)(base + at);
}

static void place_out(fti_problem *p, uint64_t bytes) {
    p->out = place(p, bytes);
    p->out_bytes = bytes;
}

static ftk_weight weight_of(const fti_problem *p, uint8_t *base) {
    return (ftk_weight){(uint32_t)sizeof(ftk_weight),
                        p->type,
                        FTK_LAYOUT_RAW,
                        0,
                        p->rows,
                        p->cols,
                        p->row_bytes,
                        base + p->weights};
}

static ftk_activation activation_of(const fti_problem *p, uint8_t *base) {
    return (ftk_activation){
        floats_at(base, p->x), base + p->packed, p->cols, p->inputs, p->cols, p->formats, 0};
}

/* ---- operators with a weight ---- */

static void plan_embed(fti_problem *p) {
    p->weights = place(p, p->rows * p->row_bytes);
    p->ints = place(p, floats(p->inputs, 1));
    place_out(p, floats(p->inputs, p->cols));
}

static void fill_embed(fti_problem *p, uint64_t *seed) {
    fill_blocks(p, p->rows, seed);
    for (uint32_t i = 0; i < p->inputs; i++)
        ints_at(p->image, p->ints)[i] = (int32_t)(i * 7 % p->rows);
}

static ftk_status run_embed(const fti_problem *p, const ftk_if_operators *op, ftk_stream *stream,
                            uint8_t *base) {
    const ftk_weight table = weight_of(p, base);
    const ftk_op_embed embed = {
        &table, ints_at(base, p->ints), floats_at(base, p->out), p->cols, p->inputs, 0};
    return op->embed(stream, &embed);
}

static void plan_matmul(fti_problem *p) {
    p->weights = place(p, p->rows * p->row_bytes);
    p->x = place(p, floats(p->inputs, p->cols));
    p->packed = place(p, p->packed_bytes);
    place_out(p, floats(p->inputs, p->rows));
}

static void fill_matmul(fti_problem *p, uint64_t *seed) {
    fill_blocks(p, p->rows, seed);
    fill_activations(p, seed);
}

static ftk_status run_matmul(const fti_problem *p, const ftk_if_operators *op, ftk_stream *stream,
                             uint8_t *base) {
    const ftk_weight weight = weight_of(p, base);
    const ftk_op_quantize quantize = {activation_of(p, base)};
    ftk_op_matmul matmul = {&weight, quantize.act, floats_at(base, p->out), p->rows, 0, 0};
    FTI_TRY(op->quantize(stream, &quantize));
    FTI_TRY(op->matmul(stream, &matmul));
    matmul.required = FTK_MATMUL_ACCUMULATE;
    return op->matmul(stream, &matmul);
}

/* The routing and the products of the chosen experts, compared together. */
static void plan_experts(fti_problem *p) {
    uint64_t pairs = (uint64_t)p->inputs * USED;
    p->weights = place(p, EXPERTS * p->rows * p->row_bytes);
    p->x = place(p, floats(p->inputs, p->cols));
    p->x2 = place(p, floats(p->inputs, EXPERTS));
    p->packed = place(p, p->packed_bytes);
    place_out(p, floats(pairs, 3) + floats(EXPERTS + 1, 1) + floats(pairs, p->rows));
}

static void fill_experts(fti_problem *p, uint64_t *seed) {
    float *logits = floats_at(p->image, p->x2);
    fill_blocks(p, (uint64_t)EXPERTS * p->rows, seed);
    fill_activations(p, seed);
    for (uint32_t i = 0; i < p->inputs * EXPERTS; i++)
        logits[i] = (float)(int32_t)(next_random(seed) % 4);
}

static ftk_routing routing_at(const fti_problem *p, uint8_t *base, uint32_t used, uint32_t experts,
                              float **rest) {
    uint64_t pairs = (uint64_t)p->inputs * used;
    int32_t *chosen = ints_at(base, p->out);
    float *weights = floats_at(base, p->out + floats(pairs, 1));
    int32_t *grouped = ints_at(base, p->out + floats(pairs, 2));
    int32_t *offsets = ints_at(base, p->out + floats(pairs, 3));
    *rest = floats_at(base, p->out + floats(pairs, 3) + floats(experts + 1, 1));
    return (ftk_routing){chosen, weights, offsets, grouped, p->inputs, used, experts, 0};
}

static ftk_status run_experts(const fti_problem *p, const ftk_if_operators *op, ftk_stream *stream,
                              uint8_t *base) {
    float *y;
    const ftk_op_route route = {floats_at(base, p->x2), EXPERTS,
                                routing_at(p, base, USED, EXPERTS, &y), NULL};
    const ftk_bank_view bank = {(uint32_t)sizeof bank,
                                p->type,
                                FTK_LAYOUT_RAW,
                                EXPERTS,
                                p->rows,
                                p->cols,
                                p->row_bytes,
                                p->rows * p->row_bytes,
                                base + p->weights,
                                NULL};
    const ftk_op_quantize quantize = {activation_of(p, base)};
    const ftk_op_grouped_matmul matmul = {&bank, quantize.act, route.routing, y, p->rows, USED, 0};
    FTI_TRY(op->route(stream, &route));
    FTI_TRY(op->quantize(stream, &quantize));
    return op->grouped_matmul(stream, &matmul);
}

/* ---- operators without one: rows are groups or heads, inputs the rows of a step ---- */

static void plan_rms_norm(fti_problem *p) {
    p->x = place(p, floats((uint64_t)p->inputs * p->rows, p->cols));
    p->x2 = place(p, floats(p->cols, 1));
    place_out(p, floats((uint64_t)p->inputs * p->rows, p->cols));
}

static void fill_rms_norm(fti_problem *p, uint64_t *seed) {
    fill_floats(floats_at(p->image, p->x), (size_t)p->inputs * p->rows * p->cols, seed);
    fill_floats(floats_at(p->image, p->x2), p->cols, seed);
}

static ftk_status run_rms_norm(const fti_problem *p, const ftk_if_operators *op, ftk_stream *stream,
                               uint8_t *base) {
    uint64_t row = (uint64_t)p->rows * p->cols;
    const ftk_op_rms_norm norm = {floats_at(base, p->x),
                                  floats_at(base, p->x2),
                                  floats_at(base, p->out),
                                  row,
                                  p->cols,
                                  row,
                                  p->cols,
                                  p->inputs,
                                  p->rows,
                                  p->cols,
                                  1e-6f};
    return op->rms_norm(stream, &norm);
}

static void plan_rope(fti_problem *p) {
    p->ints = place(p, floats(p->inputs, 1));
    place_out(p, floats((uint64_t)p->inputs * p->rows, p->cols));
}

static void fill_rope(fti_problem *p, uint64_t *seed) {
    static const int32_t positions[] = {0, 1, 63, 64, 4095, 100000, 1048575};
    fill_floats(floats_at(p->image, p->out), (size_t)p->inputs * p->rows * p->cols, seed);
    for (uint32_t i = 0; i < p->inputs; i++)
        ints_at(p->image, p->ints)[i] = positions[i % FTI_COUNT(positions)];
}

static ftk_status run_rope(const fti_problem *p, const ftk_if_operators *op, ftk_stream *stream,
                           uint8_t *base) {
    const ftk_op_rope rope = {floats_at(base, p->out),
                              ints_at(base, p->ints),
                              (uint64_t)p->rows * p->cols,
                              p->cols,
                              1e7,
                              p->inputs,
                              p->rows,
                              p->cols / 4 * 2,
                              0};
    return op->rope(stream, &rope);
}

static uint32_t pages_of(const fti_problem *p) {
    return (p->inputs + PAGE - 1) / PAGE;
}

/* weights: the pages of keys and values; x: queries; x2: new keys, then values;
 * ints: positions, sequence of each row, block table. */
static void plan_attention(fti_problem *p) {
    p->weights = place(p, (uint64_t)pages_of(p) * PAGE * KV_HEADS * p->cols * 2 * 2);
    p->x = place(p, floats((uint64_t)p->inputs * QUERY_HEADS, p->cols));
    p->x2 = place(p, floats((uint64_t)p->inputs * KV_HEADS * 2, p->cols));
    p->ints = place(p, floats(p->inputs, 2) + floats(pages_of(p), 1));
    place_out(p, floats((uint64_t)p->inputs * QUERY_HEADS, p->cols));
}

static void fill_attention(fti_problem *p, uint64_t *seed) {
    int32_t *ints = ints_at(p->image, p->ints);
    fill_floats(floats_at(p->image, p->x), (size_t)p->inputs * QUERY_HEADS * p->cols, seed);
    fill_floats(floats_at(p->image, p->x2), (size_t)p->inputs * KV_HEADS * 2 * p->cols, seed);
    for (uint32_t i = 0; i < p->inputs; i++) ints[i] = (int32_t)i;
    for (uint32_t i = 0; i < pages_of(p); i++)
        ints[2 * (size_t)p->inputs + i] = (int32_t)(pages_of(p) - 1 - i);
}

static ftk_status run_attention(const fti_problem *p, const ftk_if_operators *op,
                                ftk_stream *stream, uint8_t *base) {
    uint64_t kv_row = (uint64_t)KV_HEADS * p->cols;
    uint64_t q_row = (uint64_t)QUERY_HEADS * p->cols;
    float *k = floats_at(base, p->x2);
    const ftk_kv_view kv = {(uint32_t)sizeof kv,
                            FTK_TYPE_F16,
                            KV_HEADS,
                            p->cols,
                            p->cols,
                            PAGE,
                            base + p->weights,
                            base + p->weights + pages_of(p) * PAGE * kv_row * 2};
    const ftk_step step = {.struct_size = (uint32_t)sizeof step,
                           .rows = p->inputs,
                           .sequences = 1,
                           .block_stride = pages_of(p),
                           .stream = stream,
                           .positions = ints_at(base, p->ints),
                           .row_sequence = ints_at(base, p->ints) + p->inputs,
                           .block_table = ints_at(base, p->ints) + 2 * (size_t)p->inputs};
    const ftk_op_kv_append append = {&step, &kv, k, k + p->inputs * kv_row, kv_row, kv_row};
    const ftk_op_attention attention = {
        &step,       &kv,   floats_at(base, p->x), floats_at(base, p->out), q_row, p->cols, q_row,
        QUERY_HEADS, 0.125f};
    FTI_TRY(op->kv_append(stream, &append));
    return op->attention(stream, &attention);
}

/* Many experts with ties: rows choose 8 of cols. */
static void plan_route(fti_problem *p) {
    uint64_t pairs = (uint64_t)p->inputs * p->rows;
    p->x = place(p, floats(p->inputs, p->cols));
    place_out(p, floats(pairs, 3) + floats(p->cols + 1, 1));
}

static void fill_route(fti_problem *p, uint64_t *seed) {
    float *logits = floats_at(p->image, p->x);
    for (uint32_t i = 0; i < p->inputs * p->cols; i++) {
        uint32_t r = next_random(seed);
        logits[i] = r & 1u ? (float)(r % 5) : (float)((int32_t)r >> 8) / 1048576.0f;
    }
}

static ftk_status run_route(const fti_problem *p, const ftk_if_operators *op, ftk_stream *stream,
                            uint8_t *base) {
    float *end;
    const ftk_op_route route = {floats_at(base, p->x), p->cols,
                                routing_at(p, base, p->rows, p->cols, &end), NULL};
    return op->route(stream, &route);
}

static void plan_swiglu(fti_problem *p) {
    p->x = place(p, floats(p->inputs, p->cols));
    p->x2 = place(p, floats(p->inputs, p->cols));
    place_out(p, floats(p->inputs, p->cols));
}

static void fill_swiglu(fti_problem *p, uint64_t *seed) {
    static const float steep[] = {-104.0f, -88.0f, 88.8f, 1e4f, -1e4f};
    float *gate = floats_at(p->image, p->x);
    size_t count = (size_t)p->inputs * p->cols;
    fill_floats(gate, count, seed);
    fill_floats(floats_at(p->image, p->x2), count, seed);
    for (size_t i = 0; i < count; i += 9) gate[i] = steep[i % FTI_COUNT(steep)];
}

static ftk_status run_swiglu(const fti_problem *p, const ftk_if_operators *op, ftk_stream *stream,
                             uint8_t *base) {
    const ftk_op_swiglu swiglu = {floats_at(base, p->x),
                                  floats_at(base, p->x2),
                                  floats_at(base, p->out),
                                  p->cols,
                                  p->cols,
                                  p->cols,
                                  p->inputs,
                                  p->cols};
    return op->swiglu(stream, &swiglu);
}

/* rows: experts per row. x: their contributions; x2: weights, shared, gates. */
static void plan_combine(fti_problem *p) {
    p->x = place(p, floats((uint64_t)p->inputs * p->rows, p->cols));
    p->x2 = place(p, floats(p->inputs, (uint64_t)p->rows + p->cols + 1));
    place_out(p, floats(p->inputs, p->cols));
}

static void fill_combine(fti_problem *p, uint64_t *seed) {
    size_t inputs = p->inputs;
    fill_floats(floats_at(p->image, p->x), inputs * p->rows * p->cols, seed);
    fill_floats(floats_at(p->image, p->x2), inputs * (p->rows + p->cols + 1), seed);
    fill_floats(floats_at(p->image, p->out), inputs * p->cols, seed);
}

static ftk_status run_combine(const fti_problem *p, const ftk_if_operators *op, ftk_stream *stream,
                              uint8_t *base) {
    float *weights = floats_at(base, p->x2);
    float *shared = weights + (size_t)p->inputs * p->rows;
    float *y = floats_at(base, p->out);
    const ftk_op_combine combine = {floats_at(base, p->x),
                                    weights,
                                    shared,
                                    shared + (size_t)p->inputs * p->cols,
                                    y,
                                    y,
                                    p->cols,
                                    p->inputs,
                                    p->rows,
                                    p->cols,
                                    0};
    return op->combine(stream, &combine);
}

static void plan_gather(fti_problem *p) {
    p->x = place(p, floats(p->rows, p->cols));
    p->ints = place(p, floats(p->inputs, 1));
    place_out(p, floats(p->inputs, p->cols));
}

static void fill_gather(fti_problem *p, uint64_t *seed) {
    fill_floats(floats_at(p->image, p->x), (size_t)p->rows * p->cols, seed);
    for (uint32_t i = 0; i < p->inputs; i++)
        ints_at(p->image, p->ints)[i] = (int32_t)(next_random(seed) % p->rows);
}

static ftk_status run_gather(const fti_problem *p, const ftk_if_operators *op, ftk_stream *stream,
                             uint8_t *base) {
    const ftk_op_gather_rows gather = {floats_at(base, p->x),
                                       ints_at(base, p->ints),
                                       floats_at(base, p->out),
                                       p->cols,
                                       p->cols,
                                       p->inputs,
                                       p->cols};
    return op->gather_rows(stream, &gather);
}

const fti_problem_kind fti_problem_kinds[] = {
    {"embed", true, run_embed, plan_embed, fill_embed},
    {"matmul", true, run_matmul, plan_matmul, fill_matmul},
    {"experts", true, run_experts, plan_experts, fill_experts},
    {"rms_norm", false, run_rms_norm, plan_rms_norm, fill_rms_norm},
    {"rope", false, run_rope, plan_rope, fill_rope},
    {"attention", false, run_attention, plan_attention, fill_attention},
    {"route", false, run_route, plan_route, fill_route},
    {"swiglu", false, run_swiglu, plan_swiglu, fill_swiglu},
    {"combine", false, run_combine, plan_combine, fill_combine},
    {"gather_rows", false, run_gather, plan_gather, fill_gather},
};
const size_t fti_problem_kind_count = FTI_COUNT(fti_problem_kinds);

/* ---- shapes ---- */

typedef struct shape {
    uint32_t cols, rows, inputs;
} shape;

/* Widths with and without remainders of every vector and group; row counts that
 * leave remainders of the kernels' tiles. */
static const shape typed_shapes[] = {{256, 5, 1}, {512, 9, 5},  {2048, 7, 70},
                                     {288, 6, 3}, {800, 11, 2}, {259, 4, 3}};
static const shape plain_shapes[] = {{64, 8, 1}, {130, 3, 7}, {256, 8, 66}, {96, 5, 130}};

static bool set_type(fti_problem *p, const ftk_if_operators *op) {
    uint32_t elements, bytes;
    if (op->activation_format(p->type, &p->formats) != FTK_OK) return false;
    if (!fti_type_block(p->type, &elements, &bytes) || p->cols % elements) return false;
    p->row_bytes = (uint64_t)p->cols / elements * bytes;
    if (p->formats) p->packed_bytes = op->activation_bytes(p->formats, p->inputs, p->cols);
    return true;
}

ftk_status fti_problem_make(const fti_problem_kind *kind, const ftk_if_operators *op, uint32_t type,
                            size_t index, fti_problem *out, ftk_error *err) {
    size_t count = kind->typed ? FTI_COUNT(typed_shapes) : FTI_COUNT(plain_shapes);
    if (index >= count) return FTK_E_NOT_FOUND;
    shape s = kind->typed ? typed_shapes[index] : plain_shapes[index];
    *out = (fti_problem){.type = type, .rows = s.rows, .cols = s.cols, .inputs = s.inputs};
    if (kind->typed && !set_type(out, op)) return FTK_E_UNSUPPORTED;
    kind->plan(out);
    out->image = fti_calloc(1, (size_t)out->bytes);
    if (!out->image) return fti_no_memory(err, out->bytes, "a problem of the self-test");
    uint64_t seed = type * 1000u + index + 1;
    kind->fill(out, &seed);
    return FTK_OK;
}

void fti_problem_free(fti_problem *problem) {
    fti_free(problem->image);
    problem->image = NULL;
}
