/*
 * test_ops.c: the operators other than matrix products. Each result is compared
 * bit for bit with a scalar reading of its definition, on every variant and
 * thread count, and with a double-precision formula within a tolerance.
 */
#include "blocks.h"

#include "freetoken/device/math.h"
#include "freetoken/device/quant.h"

static void assert_near(float got, double wanted, double tolerance, const char *what) {
    if (!(fabs((double)got - wanted) <= tolerance))
        fail_msg("%s: %.9g, wanted %.9g", what, (double)got, wanted);
}

/* ---- RMS norm ---- */

static void rms_norm_case(rig *r, uint32_t rows, uint32_t groups, uint32_t n, float scale) {
    uint64_t seed = n;
    uint64_t group_stride = n + 5;
    uint64_t row_stride = groups * group_stride + 1;
    float *x = malloc(rows * row_stride * sizeof *x);
    float *w = malloc(n * sizeof *w);
    float *wanted = malloc(n * sizeof *wanted);
    guarded g;
    float *y = guarded_floats(&g, rows * row_stride);
    rnd_floats(&seed, x, rows * row_stride);
    rnd_floats(&seed, w, n);
    for (uint64_t i = 0; i < rows * row_stride; i++) x[i] *= scale;
    ftk_op_rms_norm op = {x,    w,      y, row_stride, group_stride, row_stride, group_stride,
                          rows, groups, n, 1e-6f};
    assert_int_equal(r->op->rms_norm(r->stream, &op), FTK_OK);
    for (uint32_t i = 0; i < rows * groups; i++) {
        uint64_t at = i / groups * row_stride + i % groups * group_stride;
        double sum = 0;
        float factor = 1.0f / sqrtf(ref_lanes(x + at, x + at, n) / (float)n + 1e-6f);
        for (uint32_t k = 0; k < n; k++) {
            sum += (double)x[at + k] * (double)x[at + k];
            wanted[k] = x[at + k] * factor * w[k];
        }
        assert_same_floats(y + at, wanted, n, "rms_norm");
        double exact = (double)x[at] / sqrt(sum / n + 1e-6) * (double)w[0];
        assert_near(y[at], exact, fabs(exact) * 1e-5, "rms_norm");
        assert_int_equal(bits_of(y[at + n]), 0xa5a5a5a5u);
    }
    op.y = x;
    assert_int_equal(r->op->rms_norm(r->stream, &op), FTK_OK);
    assert_same_floats(x, y, n, "rms_norm in place");
    guarded_free(&g);
    free(wanted);
    free(w);
    free(x);
}

static void rms_norm(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 15, 16, 17, 128, 256, 2048};
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        for (size_t i = 0; i < COUNT(sizes); i++) {
            rms_norm_case(&r, 3, 2, sizes[i], 1);
            rms_norm_case(&r, 70, 1, sizes[i], 1e-3f);
            rms_norm_case(&r, 1, 16, sizes[i], 0);
        }
        rig_close(&r);
    }
}

/* ---- rope ---- */

static void rope_case(rig *r, uint32_t dim, double theta, uint32_t heads) {
    enum { ROWS = 9, HEAD = 256 };
    static const int32_t positions[ROWS] = {0, 1, 2, 63, 1000, 32767, 262143, -5, 16777215};
    uint64_t seed = dim;
    uint64_t stride = (uint64_t)heads * HEAD + 7;
    float *before = malloc(ROWS * stride * sizeof *before);
    guarded g;
    float *x = guarded_floats(&g, ROWS * stride);
    rnd_floats(&seed, before, ROWS * stride);
    memcpy(x, before, ROWS * stride * sizeof *x);
    ftk_op_rope op = {x, positions, stride, HEAD, theta, ROWS, heads, dim, 0};
    assert_int_equal(r->op->rope(r->stream, &op), FTK_OK);
    for (uint32_t i = 0; i < ROWS * heads; i++) {
        uint64_t at = i / heads * stride + i % heads * HEAD;
        int32_t turn = positions[i / heads];
        double position = (double)turn;
        for (uint32_t j = 0; j < dim / 2; j++) {
            double angle = position * pow(theta, -2.0 * j / dim);
            double u = before[at + j];
            double v = before[at + j + dim / 2];
            assert_near(x[at + j], u * cos(angle) - v * sin(angle), 3e-7, "rope u");
            assert_near(x[at + j + dim / 2], v * cos(angle) + u * sin(angle), 3e-7, "rope v");
            float s;
            float c;
            ftk_sincos(position * ftk_rope_frequency(ftk_log_f64(theta), j, dim), &s, &c);
            float vs = (float)v * s;
            float us = (float)u * s;
            assert_true(same_float(x[at + j], fmaf((float)u, c, -vs)));
            assert_true(same_float(x[at + j + dim / 2], fmaf((float)v, c, us)));
        }
        assert_same_floats(x + at + dim, before + at + dim, HEAD - dim, "dimensions left alone");
    }
    guarded_free(&g);
    free(before);
}

static void rope(void **state) {
    (void)state;
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        rope_case(&r, 64, 1e7, 4);
        rope_case(&r, 256, 10000, 1);
        rope_case(&r, 2, 1e6, 3);
        rope_case(&r, 0, 1e6, 1);
        float x[8] = {0};
        int32_t position = 1;
        ftk_op_rope bad = {x, &position, 8, 8, 1e4, 1, 1, 3, 0};
        assert_int_equal(r.op->rope(r.stream, &bad), FTK_E_ARGUMENT);
        bad.rotary_dim = 4;
        bad.theta = NAN;
        assert_int_equal(r.op->rope(r.stream, &bad), FTK_E_ARGUMENT);
        rig_close(&r);
    }
}

/* ---- routing ---- */

static void ref_route(const float *logits, uint32_t n, uint32_t used, int32_t *experts,
                      float *weights) {
    float *p = malloc(n * sizeof *p);
    float max = logits[0];
    float sum = 0;
    float picked = 0;
    for (uint32_t e = 0; e < n; e++) max = logits[e] > max ? logits[e] : max;
    for (uint32_t e = 0; e < n; e++) p[e] = ftk_exp(logits[e] - max);
    for (uint32_t e = 0; e < n; e++) sum += p[e];
    for (uint32_t e = 0; e < n; e++) p[e] /= sum;
    for (uint32_t k = 0; k < used; k++) {
        uint32_t best = 0;
        for (uint32_t e = n; e-- > 0;)
            if (p[e] >= p[best] || p[best] < 0) best = e;
        experts[k] = (int32_t)best;
        weights[k] = p[best];
        picked += p[best];
        p[best] = -1;
    }
    for (uint32_t k = 0; k < used; k++) weights[k] /= picked;
    free(p);
}

static void check_groups(const ftk_routing *r, uint32_t real_rows) {
    assert_int_equal(r->offsets[0], 0);
    assert_int_equal(r->offsets[r->expert_count], real_rows * r->used);
    for (uint32_t e = 0; e < r->expert_count; e++) {
        assert_true(r->offsets[e] <= r->offsets[e + 1]);
        for (int32_t i = r->offsets[e]; i < r->offsets[e + 1]; i++) {
            assert_int_equal(r->experts[r->pairs[i]], e);
            if (i > r->offsets[e]) assert_true(r->pairs[i] > r->pairs[i - 1]);
        }
    }
}

/* Every third row is padding: none of its pairs is listed. */
static void route_leaves_out_padding(rig *r, ftk_op_route *op) {
    int32_t sequence[70];
    uint32_t real = 0;
    for (uint32_t i = 0; i < op->routing.rows; i++) {
        sequence[i] = i % 3 == 1 ? -1 : (int32_t)i;
        real += sequence[i] >= 0;
    }
    op->row_sequence = sequence;
    assert_int_equal(r->op->route(r->stream, op), FTK_OK);
    check_groups(&op->routing, real);
    for (uint32_t i = 0; i < real * op->routing.used; i++)
        assert_true(sequence[(uint32_t)op->routing.pairs[i] / op->routing.used] >= 0);
    op->row_sequence = NULL;
}

static void route_case(rig *r, uint32_t rows, uint32_t n, uint32_t used, float coarse) {
    uint64_t seed = n + rows;
    uint64_t stride = n + 2;
    float *logits = malloc((rows + 1) * stride * sizeof *logits);
    guarded g[4] = {guarded_new(rows * used * 4), guarded_new(rows * used * 4),
                    guarded_new((n + 1) * 4), guarded_new(rows * used * 4)};
    for (uint64_t i = 0; i < rows * stride; i++) {
        float v = rnd_unit(&seed) * 8;
        logits[i] = coarse > 0 ? floorf(v / coarse) * coarse : v; /* coarse: many ties */
    }
    ftk_op_route op = {
        logits, stride, {g[0].data, g[1].data, g[2].data, g[3].data, rows, used, n, 0}, NULL};
    assert_int_equal(r->op->route(r->stream, &op), FTK_OK);
    for (uint32_t i = 0; i < rows; i++) {
        int32_t experts[32];
        float weights[32];
        ref_route(logits + i * stride, n, used, experts, weights);
        assert_memory_equal(op.routing.experts + i * used, experts, used * 4);
        assert_same_floats(op.routing.weights + i * used, weights, used, "route weights");
    }
    check_groups(&op.routing, rows);
    route_leaves_out_padding(r, &op);
    for (size_t i = 0; i < COUNT(g); i++) guarded_free(&g[i]);
    free(logits);
}

/* A row of NaN must not disturb the others, nor give ids out of range. */
static void route_survives_nan(rig *r) {
    enum { N = 16, USED = 4 };
    float logits[3 * N];
    int32_t experts[3 * USED];
    float weights[3 * USED];
    int32_t offsets[N + 1];
    int32_t pairs[3 * USED];
    for (int i = 0; i < 3 * N; i++) logits[i] = i / N == 1 ? NAN : (float)(i % 7);
    ftk_op_route op = {logits, N, {experts, weights, offsets, pairs, 3, USED, N, 0}, NULL};
    assert_int_equal(r->op->route(r->stream, &op), FTK_OK);
    for (int k = 0; k < USED; k++) assert_int_equal(experts[USED + k], k);
    check_groups(&op.routing, 3);
    assert_true(weights[0] == weights[0] && weights[2 * USED] == weights[2 * USED]);
    op.routing.used = N + 1;
    assert_int_equal(r->op->route(r->stream, &op), FTK_E_ARGUMENT);
    op.routing.used = 0;
    assert_int_equal(r->op->route(r->stream, &op), FTK_E_ARGUMENT);
    op.routing.used = USED;
    op.routing.rows = 0;
    assert_int_equal(r->op->route(r->stream, &op), FTK_OK);
    for (int e = 0; e <= N; e++) assert_int_equal(offsets[e], 0);
}

static void route(void **state) {
    (void)state;
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        route_case(&r, 1, 256, 8, 0);
        route_case(&r, 70, 256, 8, 0.5f);
        route_case(&r, 33, 4, 4, 2);
        route_case(&r, 5, 1, 1, 0);
        route_case(&r, 70, 64, 2, 20);
        route_survives_nan(&r);
        rig_close(&r);
    }
}

/* ---- element by element ---- */

static void swiglu_case(rig *r, uint32_t n) {
    enum { ROWS = 70, STRIDE = 515 };
    static float gate[ROWS * STRIDE];
    static float up[ROWS * STRIDE];
    uint64_t seed = n;
    guarded g;
    float *y = guarded_floats(&g, ROWS * STRIDE);
    rnd_floats(&seed, gate, ROWS * STRIDE);
    rnd_floats(&seed, up, ROWS * STRIDE);
    for (size_t k = 0; k < ROWS * STRIDE; k += 3) gate[k] *= 60;
    ftk_op_swiglu op = {gate, up, y, STRIDE, STRIDE, STRIDE, ROWS, n};
    assert_int_equal(r->op->swiglu(r->stream, &op), FTK_OK);
    for (size_t k = 0; k < ROWS * STRIDE; k++) {
        if (k % STRIDE >= n) {
            assert_int_equal(bits_of(y[k]), 0xa5a5a5a5u);
            continue;
        }
        double exact = (double)gate[k] / (1 + exp(-(double)gate[k])) * (double)up[k];
        assert_near(y[k], exact, fabs(exact) * 5e-7 + 1e-37, "swiglu");
        assert_true(same_float(y[k], ftk_silu(gate[k]) * up[k]));
    }
    op.y = gate;
    assert_int_equal(r->op->swiglu(r->stream, &op), FTK_OK);
    for (size_t row = 0; row < ROWS; row++)
        assert_same_floats(gate + row * STRIDE, y + row * STRIDE, n, "swiglu in place");
    guarded_free(&g);
}

static void swiglu(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 63, 64, 65, 512};
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        for (size_t i = 0; i < COUNT(sizes); i++) swiglu_case(&r, sizes[i]);
        rig_close(&r);
    }
}

static void combine_case(rig *r, uint32_t rows, uint32_t used, uint32_t n, int shared) {
    uint64_t seed = rows + n;
    uint64_t stride = n + 1;
    float *c = malloc(rows * used * stride * sizeof *c);
    float *w = malloc(rows * used * sizeof *w);
    float *s = malloc(rows * stride * sizeof *s);
    float *gate = malloc(rows * sizeof *gate);
    guarded g;
    float *y = guarded_floats(&g, rows * stride);
    rnd_floats(&seed, c, rows * used * stride);
    rnd_floats(&seed, w, rows * used);
    rnd_floats(&seed, s, rows * stride);
    rnd_floats(&seed, gate, rows);
    rnd_floats(&seed, y, rows * stride);
    float *residual = malloc(rows * stride * sizeof *residual);
    memcpy(residual, y, rows * stride * sizeof *y);
    ftk_op_combine op = {
        c, w, shared > 0 ? s : NULL, shared > 1 ? gate : NULL, y, y, stride, rows, used, n, 0};
    assert_int_equal(r->op->combine(r->stream, &op), FTK_OK);
    for (uint64_t i = 0; i < rows * stride; i++) {
        uint64_t row = i / stride;
        float sum = 0;
        double exact = (double)residual[i];
        if (i % stride == n) {
            assert_true(same_float(y[i], residual[i]));
            continue;
        }
        for (uint32_t k = 0; k < used; k++) {
            float part = c[(row * used + k) * stride + i % stride];
            sum = fmaf(w[row * used + k], part, sum);
            exact += (double)w[row * used + k] * (double)part;
        }
        float factor = shared > 1 ? ftk_sigmoid(gate[row]) : 1;
        if (shared) sum = fmaf(factor, s[i], sum);
        if (shared) exact += (double)s[i] * (shared > 1 ? 1 / (1 + exp(-(double)gate[row])) : 1);
        assert_true(same_float(y[i], residual[i] + sum));
        assert_near(y[i], exact, 3e-6, "combine");
    }
    guarded_free(&g);
    free(residual);
    free(gate);
    free(s);
    free(w);
    free(c);
}

static void combine(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(setups); i++) {
        rig r = rig_open(i);
        for (int shared = 0; shared < 3; shared++) {
            combine_case(&r, 1, 8, 2048, shared);
            combine_case(&r, 70, 3, 257, shared);
            combine_case(&r, 2, 1, 5, shared);
        }
        rig_close(&r);
    }
}

static void gather_rows(void **state) {
    (void)state;
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        float x[20 * 33];
        int32_t index[7] = {19, 0, 0, 5, 18, 7, 19};
        guarded g;
        float *y = guarded_floats(&g, 7 * 40);
        for (int i = 0; i < 20 * 33; i++) x[i] = (float)i;
        ftk_op_gather_rows op = {x, index, y, 33, 40, 7, 32};
        assert_int_equal(r.op->gather_rows(r.stream, &op), FTK_OK);
        for (int i = 0; i < 7; i++) {
            assert_same_floats(y + i * 40, x + index[i] * 33, 32, "gather_rows");
            assert_int_equal(bits_of(y[i * 40 + 32]), 0xa5a5a5a5u);
        }
        guarded_free(&g);
        rig_close(&r);
    }
}

/* ---- attention ---- */

typedef struct shape {
    uint32_t type, kv_heads, key_dim, value_dim, page, heads, context;
} shape;

static const shape shapes[] = {
    {FTK_TYPE_F16, 2, 256, 256, 16, 16, 200}, {FTK_TYPE_F32, 2, 64, 64, 16, 8, 130},
    {FTK_TYPE_F16, 1, 72, 40, 8, 3, 70},      {FTK_TYPE_F32, 3, 16, 24, 5, 3, 65},
    {FTK_TYPE_F16, 1, 32, 32, 64, 20, 1300},  {FTK_TYPE_BF16, 2, 64, 48, 16, 10, 130},
    {FTK_TYPE_BF16, 1, 40, 24, 8, 3, 70},     {FTK_TYPE_Q8_0, 2, 256, 96, 16, 18, 200},
    {FTK_TYPE_Q8_0, 1, 32, 64, 5, 2, 66},
};

enum { SEQUENCES = 3, MAX_PAGES = 96 };

/* A paged cache of three sequences and a step over some of their rows. */
typedef struct world {
    shape s;
    uint32_t pages; /* per sequence */
    int32_t table[SEQUENCES * MAX_PAGES];
    guarded keys;
    guarded values;
    float *k; /* [sequence][position][kv_heads * key_dim] */
    float *v;
    ftk_kv_view view;
} world;

static size_t cached_bytes(const shape *s, size_t elements) {
    if (s->type == FTK_TYPE_Q8_0) return elements / 32 * FTK_Q8_0_BYTES;
    return elements * (s->type == FTK_TYPE_F32 ? 4 : 2);
}

static void world_init(world *w, const shape *s) {
    uint64_t seed = s->key_dim;
    w->s = *s;
    w->pages = (s->context + s->page - 1) / s->page;
    assert_true(w->pages <= MAX_PAGES);
    uint32_t total = SEQUENCES * w->pages;
    for (uint32_t i = 0; i < total; i++) w->table[i] = (int32_t)((i * 7 + 2) % total);
    if (total % 7 == 0)
        for (uint32_t i = 0; i < total; i++) w->table[i] = (int32_t)(total - 1 - i);
    size_t slots = (size_t)total * s->page * s->kv_heads;
    w->keys = guarded_new(slots * cached_bytes(s, s->key_dim));
    w->values = guarded_new(slots * cached_bytes(s, s->value_dim));
    size_t positions = (size_t)SEQUENCES * s->context * s->kv_heads;
    w->k = malloc(positions * s->key_dim * sizeof(float));
    w->v = malloc(positions * s->value_dim * sizeof(float));
    rnd_floats(&seed, w->k, positions * s->key_dim);
    rnd_floats(&seed, w->v, positions * s->value_dim);
    w->view = (ftk_kv_view){sizeof w->view, s->type, s->kv_heads,  s->key_dim,
                            s->value_dim,   s->page, w->keys.data, w->values.data};
}

static void world_free(world *w) {
    guarded_free(&w->keys);
    guarded_free(&w->values);
    free(w->k);
    free(w->v);
}

static ftk_step step_of(const world *w, const int32_t *positions, const int32_t *sequences,
                        uint32_t rows) {
    ftk_step step = {.struct_size = sizeof step, .rows = rows, .sequences = SEQUENCES};
    step.positions = positions;
    step.row_sequence = sequences;
    step.block_table = w->table;
    step.block_stride = w->pages;
    return step;
}

/* Writes all positions of all sequences, with padding rows in between that would
 * hit position 0 of sequence 0 if they were not skipped. */
static void append_all(rig *r, world *w) {
    const shape *s = &w->s;
    uint32_t k_size = s->kv_heads * s->key_dim;
    uint32_t v_size = s->kv_heads * s->value_dim;
    uint32_t rows = s->context + 2;
    int32_t *positions = calloc(rows, sizeof *positions);
    int32_t *sequences = malloc(rows * sizeof *sequences);
    float *k = malloc(rows * (size_t)k_size * sizeof *k);
    float *v = malloc(rows * (size_t)v_size * sizeof *v);
    for (int32_t q = 0; q < SEQUENCES; q++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < rows; i++) {
            bool padding = i == 1 || i == rows - 1;
            uint32_t p = padding ? 0 : n++;
            size_t from = (size_t)q * s->context + p;
            positions[i] = (int32_t)p;
            sequences[i] = padding ? -1 - (int32_t)i : q;
            for (uint32_t d = 0; d < k_size; d++)
                k[i * k_size + d] = padding ? 99 : w->k[from * k_size + d];
            for (uint32_t d = 0; d < v_size; d++)
                v[i * v_size + d] = padding ? 99 : w->v[from * v_size + d];
        }
        ftk_step step = step_of(w, positions, sequences, rows);
        ftk_op_kv_append op = {&step, &w->view, k, v, k_size, v_size};
        assert_int_equal(r->op->kv_append(r->stream, &op), FTK_OK);
    }
    free(positions);
    free(sequences);
    free(k);
    free(v);
}

/* Nearest bf16 by arithmetic: what lies above 8 significant bits is a multiple of the step. */
static float nearest_bf16(float x) {
    int exponent;
    if (x == 0.0f) return x;
    (void)frexpf(x, &exponent);
    double step = ldexp(1.0, exponent - 8);
    return (float)(nearbyint((double)x / step) * step);
}

/* The 32 values that stand together with x[d], and what Q8_0 makes of x[d]. */
static float nearest_q8_0(const float *x, uint32_t d) {
    const float *block = x + d / 32 * 32;
    float max = 0;
    for (uint32_t i = 0; i < 32; i++) max = fabsf(block[i]) > max ? fabsf(block[i]) : max;
    float scale = ftk_f16_to_f32(ftk_f32_to_f16(max / 127.0f));
    volatile float inverse = 1.0f / scale;
    volatile float scaled = x[d] * inverse;
    int q = (int)nearbyintf(scaled); /* no -0 */
    return scale * (float)(q > 127 ? 127 : q < -127 ? -127 : q);
}

/* What the cache keeps of element d of a vector. */
static float kept(const shape *s, const float *x, uint32_t d) {
    switch (s->type) {
    case FTK_TYPE_F16: return ftk_f16_to_f32(ftk_f32_to_f16(x[d]));
    case FTK_TYPE_BF16: return nearest_bf16(x[d]);
    case FTK_TYPE_Q8_0: return nearest_q8_0(x, d);
    default: return x[d];
    }
}

/* Element d of a vector as it lies in the cache. */
static float cached(const shape *s, const uint8_t *vector, uint32_t d) {
    const uint8_t *block = vector + d / 32 * FTK_Q8_0_BYTES;
    float x;
    switch (s->type) {
    case FTK_TYPE_F16: return half_at(vector + 2 * (size_t)d);
    case FTK_TYPE_BF16: return ftk_bf16_to_f32(ftk_load_u16(vector + 2 * (size_t)d));
    case FTK_TYPE_Q8_0: return half_at(block) * (float)(int8_t)block[2 + d % 32];
    default: memcpy(&x, vector + 4 * (size_t)d, sizeof x); return x;
    }
}

static void check_cache(const world *w) {
    const shape *s = &w->s;
    for (uint32_t i = 0; i < SEQUENCES * s->context * s->kv_heads; i++) {
        uint32_t p = i / s->kv_heads % s->context;
        uint32_t q = i / s->kv_heads / s->context;
        uint32_t page = (uint32_t)w->table[q * w->pages + p / s->page];
        size_t slot = (page * s->page + p % s->page) * s->kv_heads + i % s->kv_heads;
        const uint8_t *at = (uint8_t *)w->keys.data + slot * cached_bytes(s, s->key_dim);
        for (uint32_t d = 0; d < s->key_dim; d++)
            assert_true(same_float(cached(s, at, d), kept(s, w->k + (size_t)i * s->key_dim, d)));
    }
}

static void ref_attention(const world *w, const float *q, uint32_t sequence, uint32_t position,
                          uint32_t kv_head, float scale, float *o) {
    const shape *s = &w->s;
    float *p = malloc((position + 1) * sizeof *p);
    float key[256];
    float max = -INFINITY;
    float sum = 0;
    for (uint32_t i = 0; i <= position; i++) {
        size_t at = ((size_t)sequence * s->context + i) * s->kv_heads + kv_head;
        for (uint32_t d = 0; d < s->key_dim; d++) key[d] = kept(s, w->k + at * s->key_dim, d);
        p[i] = scale * ref_lanes(q, key, s->key_dim);
        max = p[i] > max ? p[i] : max;
    }
    for (uint32_t i = 0; i <= position; i++) p[i] = ftk_exp(p[i] - max);
    for (uint32_t b = 0; b <= position; b += 64) {
        float part = 0;
        for (uint32_t i = b; i <= position && i < b + 64; i++) part += p[i];
        sum += part;
    }
    for (uint32_t d = 0; d < s->value_dim; d++) {
        float total = 0;
        for (uint32_t b = 0; b <= position; b += 64) {
            float part = 0;
            for (uint32_t i = b; i <= position && i < b + 64; i++) {
                size_t at = ((size_t)sequence * s->context + i) * s->kv_heads + kv_head;
                part = fmaf(p[i], kept(s, w->v + at * s->value_dim, d), part);
            }
            total += part;
        }
        o[d] = total / sum;
    }
    free(p);
}

/* The textbook formula in double. */
static double exact_attention(const world *w, const float *q, uint32_t sequence, uint32_t position,
                              uint32_t kv_head, double scale, uint32_t d) {
    const shape *s = &w->s;
    double sum = 0;
    double o = 0;
    for (uint32_t i = 0; i <= position; i++) {
        size_t at = ((size_t)sequence * s->context + i) * s->kv_heads + kv_head;
        double dot = 0;
        for (uint32_t k = 0; k < s->key_dim; k++)
            dot += (double)q[k] * (double)kept(s, w->k + at * s->key_dim, k);
        double p = exp(scale * dot);
        sum += p;
        o += p * (double)kept(s, w->v + at * s->value_dim, d);
    }
    return o / sum;
}

static void attention_case(rig *r, world *w, uint32_t first_row, uint32_t rows) {
    enum { ROWS = 8 };
    const shape *s = &w->s;
    int32_t last = (int32_t)s->context - 1;
    int32_t positions[ROWS] = {0, last, 63, 0, 64, 1, last, last / 2};
    int32_t sequences[ROWS] = {0, 2, 1, -1, 0, 1, 1, 2};
    uint64_t head_stride = s->key_dim + 3;
    uint64_t q_stride = s->heads * head_stride;
    uint64_t o_stride = (uint64_t)s->heads * s->value_dim + 5;
    float *q = malloc((ROWS * q_stride + 1) * sizeof *q);
    float wanted[256];
    guarded g;
    float *o = guarded_floats(&g, rows * o_stride);
    uint64_t seed = 4;
    rnd_floats(&seed, q, ROWS * q_stride);
    ftk_step step = step_of(w, positions + first_row, sequences + first_row, rows);
    float scale = 1.0f / sqrtf((float)s->key_dim) * 3;
    ftk_op_attention op = {&step,    &w->view, q + first_row * q_stride,
                           o,        q_stride, head_stride,
                           o_stride, s->heads, scale};
    assert_int_equal(r->op->attention(r->stream, &op), FTK_OK);
    for (uint32_t i = 0; i < rows * s->heads; i++) {
        uint32_t row = first_row + i / s->heads;
        uint32_t head = i % s->heads;
        const float *got = o + (uint64_t)(i / s->heads) * o_stride + head * s->value_dim;
        if (sequences[row] < 0) {
            assert_int_equal(bits_of(got[0]), 0xa5a5a5a5u);
            continue;
        }
        const float *query = q + row * q_stride + head * head_stride;
        uint32_t sequence = (uint32_t)sequences[row];
        uint32_t position = (uint32_t)positions[row];
        uint32_t kv_head = head * s->kv_heads / s->heads;
        ref_attention(w, query, sequence, position, kv_head, scale, wanted);
        assert_same_floats(got, wanted, s->value_dim, "attention");
        double exact = exact_attention(w, query, sequence, position, kv_head, (double)scale, 1);
        assert_near(got[1], exact, 1e-5, "attention");
    }
    guarded_free(&g);
    free(q);
}

static void attention(void **state) {
    (void)state;
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        for (size_t i = 0; i < COUNT(shapes); i++) {
            /* The reference calls fma as a function: its long case once is enough. */
            if (shapes[i].context > 1000 && s != 1 && s != 4) continue;
            world w;
            world_init(&w, &shapes[i]);
            append_all(&r, &w);
            check_cache(&w);
            attention_case(&r, &w, 0, 8);
            for (uint32_t row = 1; row < 5; row++) attention_case(&r, &w, row, 1);
            world_free(&w);
        }
        rig_close(&r);
    }
}

static void attention_refuses(void **state) {
    (void)state;
    rig r = rig_open(0);
    world w;
    world_init(&w, &shapes[3]);
    float x[256] = {0};
    int32_t zero = 0;
    ftk_step step = step_of(&w, &zero, &zero, 1);
    const ftk_op_attention good = {&step, &w.view, x, x, 64, 16, 80, 3, 1};
    ftk_kv_view views[4] = {w.view, w.view, w.view, w.view};
    views[0].type = FTK_TYPE_Q4_0;
    views[1].key_dim = 513;
    views[2].page_tokens = 0;
    views[3].keys = NULL;
    for (size_t i = 0; i < COUNT(views); i++) {
        ftk_op_attention bad = good;
        ftk_op_kv_append append = {&step, &views[i], x, x, 64, 80};
        bad.kv = &views[i];
        assert_int_equal(r.op->attention(r.stream, &bad), FTK_E_ARGUMENT);
        assert_int_equal(r.op->kv_append(r.stream, &append), FTK_E_ARGUMENT);
    }
    ftk_op_attention bad = good;
    bad.heads = 4; /* not a multiple of 3 */
    assert_int_equal(r.op->attention(r.stream, &bad), FTK_E_ARGUMENT);
    world_free(&w);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm),  cmocka_unit_test(rope),
        cmocka_unit_test(route),     cmocka_unit_test(swiglu),
        cmocka_unit_test(combine),   cmocka_unit_test(gather_rows),
        cmocka_unit_test(attention), cmocka_unit_test(attention_refuses),
    };
    return cmocka_run_group_tests_name("test_ops", tests, NULL, NULL);
}
