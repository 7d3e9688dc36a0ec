/*
 * test_matmul.c: matmul and grouped_matmul of every weight type, variant and
 * thread count against scalar references, bit for bit.
 */
#include "blocks.h"

static const uint32_t widths[] = {32, 64, 96, 256, 288, 320, 512, 800, 1984, 2048, 4096};

/* A matrix, activations and their products. */
typedef struct problem {
    const block_type *type;
    uint32_t rows;
    uint32_t cols;
    uint32_t inputs;
    uint64_t row_bytes;
    uint64_t x_stride;
    uint8_t *weights;
    float *x;
    ftk_weight view;
} problem;

static problem problem_new(const block_type *t, uint32_t rows, uint32_t cols, uint32_t inputs,
                           uint64_t seed) {
    problem p = {.type = t, .rows = rows, .cols = cols, .inputs = inputs};
    p.row_bytes = (uint64_t)cols / t->elements * t->bytes;
    p.x_stride = cols + 4;
    p.weights = malloc(rows * p.row_bytes);
    p.x = malloc(inputs * p.x_stride * sizeof(float));
    seed = seed * 1000003 + t->type * 31 + cols + 1;
    fill_weights(t, p.weights, rows, cols, &seed);
    rnd_floats(&seed, p.x, inputs * p.x_stride);
    p.view = (ftk_weight){sizeof p.view, t->type, FTK_LAYOUT_RAW, 0,
                          rows,          cols,    p.row_bytes,    p.weights};
    return p;
}

static void problem_free(problem *p) {
    free(p->weights);
    free(p->x);
}

static uint32_t formats_for(const problem *p) {
    if (p->type->elements == 1) return 0;
    if (p->type->elements < 256) return p->cols % 256 ? FTK_ACT_A32 : FTK_ACT_A32 | FTK_ACT_A256;
    return p->rows % 2 ? FTK_ACT_A256 : FTK_ACT_A32 | FTK_ACT_A256;
}

/* Quantises and multiplies `inputs` rows from x on, as a step would. */
static void multiply(rig *r, const problem *p, const float *x, uint32_t inputs, float *y,
                     uint64_t y_stride, uint32_t flags) {
    uint32_t formats = formats_for(p);
    guarded packed = guarded_new(r->op->activation_bytes(formats, inputs, p->cols));
    ftk_activation act = {x, packed.data, p->x_stride, inputs, p->cols, formats, 0};
    ftk_op_quantize quantize = {act};
    ftk_op_matmul matmul = {&p->view, act, y, y_stride, flags, 0};
    assert_int_equal(r->op->quantize(r->stream, &quantize), FTK_OK);
    assert_int_equal(r->op->matmul(r->stream, &matmul), FTK_OK);
    guarded_free(&packed);
}

static void check_products(const problem *p, const float *y, uint64_t y_stride, bool as_float) {
    for (uint32_t n = 0; n < p->inputs; n++) {
        for (uint32_t i = 0; i < p->rows; i++) {
            const uint8_t *row = p->weights + i * p->row_bytes;
            const float *x = p->x + n * p->x_stride;
            float wanted = as_float ? ref_dot_float(p->type->type, row, x, p->cols)
                                    : ref_dot(p->type->type, row, x, p->cols);
            float got = y[n * y_stride + i];
            if (!same_float(got, wanted))
                fail_msg("%s cols %u, row %u, input %u of %u: %a, wanted %a", p->type->name,
                         p->cols, i, n, p->inputs, (double)got, (double)wanted);
        }
        for (uint64_t i = p->rows; i < y_stride; i++)
            assert_int_equal(bits_of(y[n * y_stride + i]), 0xa5a5a5a5u);
    }
}

static void for_each_problem(void (*run)(const problem *)) {
    static const uint32_t inputs[] = {1, 2, 5, 63, 64, 65, 70};
    size_t turn = 0;
    for (size_t t = 0; t < COUNT(block_types); t++) {
        for (size_t c = 0; c < COUNT(widths); c++) {
            if (widths[c] % block_types[t].elements) continue;
            uint32_t n = widths[c] > 1024 ? 1 + (uint32_t)(turn % 3) : inputs[turn % COUNT(inputs)];
            turn++;
            problem p = problem_new(&block_types[t], 5 + (uint32_t)(turn % 8), widths[c], n, turn);
            run(&p);
            problem_free(&p);
        }
    }
    for (size_t t = 0; t < 3; t++) { /* float rows may end anywhere */
        problem p = problem_new(&block_types[t], 4, 259 + (uint32_t)t * 5, 3, 40 + t);
        run(&p);
        problem_free(&p);
    }
}

static void check_exact(const problem *p) {
    uint64_t y_stride = p->rows + 3;
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        guarded g;
        float *y = guarded_floats(&g, p->inputs * y_stride);
        multiply(&r, p, p->x, p->inputs, y, y_stride, 0);
        check_products(p, y, y_stride, false);
        guarded_free(&g);
        rig_close(&r);
    }
}

static void exact_products(void **state) {
    (void)state;
    for_each_problem(check_exact);
}

static void check_float_mode(const problem *p) {
    if (p->inputs > 5) return;
    for (uint32_t v = 0; v < 2; v++) {
        rig r = rig_open_as(v ? UINT32_MAX : 0, 1 + v, true);
        guarded g;
        float *y = guarded_floats(&g, p->inputs * (uint64_t)p->rows);
        multiply(&r, p, p->x, p->inputs, y, p->rows, 0);
        check_products(p, y, p->rows, true);
        guarded_free(&g);
        rig_close(&r);
    }
}

static void float_mode_products(void **state) {
    (void)state;
    for_each_problem(check_float_mode);
}

/* The exact and the float product of ordinary data are close: no reading of the
 * definition can be wrong in both the same way. */
static void both_modes_agree_roughly(void **state) {
    (void)state;
    rig exact = rig_open(1);
    rig floats = rig_open_as(UINT32_MAX, 1, true);
    for (size_t t = 0; t < COUNT(block_types); t++) {
        problem p = problem_new(&block_types[t], 40, 2048, 2, 99);
        float a[80];
        float b[80];
        double error = 0;
        double size = 0;
        multiply(&exact, &p, p.x, 2, a, 40, 0);
        multiply(&floats, &p, p.x, 2, b, 40, 0);
        for (int i = 0; i < 80; i++) {
            error += pow((double)a[i] - (double)b[i], 2);
            size += pow((double)b[i], 2);
        }
        assert_true(sqrt(error / size) < 0.02);
        problem_free(&p);
    }
    rig_close(&exact);
    rig_close(&floats);
}

/* Every integer at its limit, so that a narrower accumulator would overflow. */
static void limits(void **state) {
    (void)state;
    static const struct {
        uint8_t fill, scale;
    } cases[] = {{0xff, 0xff}, {0xff, 0x80}, {0x00, 0x80}, {0x80, 0x7f}};
    for (size_t t = 3; t < COUNT(block_types); t++) {
        for (size_t c = 0; c < COUNT(cases); c++) {
            problem p = problem_new(&block_types[t], 4, 512, 4, c);
            for (uint64_t i = 0; i < p.rows * p.row_bytes / p.type->bytes; i++) {
                uint8_t *b = p.weights + i * p.type->bytes;
                memset(b, cases[c].fill, p.type->bytes);
                if (p.type->type == FTK_TYPE_Q6_K) memset(b + 192, cases[c].scale, 16);
                if (scale_at(p.type->type) >= 0) put_half(b + scale_at(p.type->type), 0x7bff);
                if (minimum_at(p.type->type) >= 0) put_half(b + minimum_at(p.type->type), 0x03ff);
                if (p.type->type == FTK_TYPE_MXFP4) b[0] = c % 2 ? 254 : 0;
            }
            for (uint32_t n = 0; n < p.inputs; n++)
                for (uint32_t i = 0; i < 512; i++)
                    p.x[n * p.x_stride + i] = (n & 1u) && (n & 2u ? i & 1u : 1) ? -3.0f : 3.0f;
            check_exact(&p);
            problem_free(&p);
        }
    }
}

/* Zeros, denormals, negative zero, tiny and non-finite activations. */
static void unusual_activations(void **state) {
    (void)state;
    static const float values[] = {0,          -0.0f, 1e-42f,   -1e-42f,   0x1p-100f,
                                   -0x1p-101f, 3e38f, INFINITY, -INFINITY, NAN};
    for (size_t t = 0; t < COUNT(block_types); t++) {
        problem p = problem_new(&block_types[t], 6, 768, COUNT(values), 7);
        for (uint32_t n = 0; n < p.inputs; n++) {
            float *x = p.x + n * p.x_stride;
            for (uint32_t i = 0; i < 256; i++) x[256 + i] = values[n];
            if (n < 7)
                for (uint32_t i = 0; i < 768; i++) x[i] = i % 3 ? values[n] : 0;
        }
        check_exact(&p);
        problem_free(&p);
    }
}

static void non_finite_input_gives_nan(void **state) {
    (void)state;
    rig r = rig_open(1);
    for (size_t t = 3; t < COUNT(block_types); t++) {
        problem p = problem_new(&block_types[t], 3, 512, 2, 8);
        float y[6];
        p.x[17] = -INFINITY;
        multiply(&r, &p, p.x, 2, y, 3, 0);
        for (int i = 0; i < 3; i++) {
            assert_true(y[i] != y[i]);
            assert_true(isfinite(y[3 + i]));
        }
        problem_free(&p);
    }
    rig_close(&r);
}

static void rows_alone_and_together(void **state) {
    (void)state;
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        for (size_t t = 0; t < COUNT(block_types); t++) {
            problem p = problem_new(&block_types[t], 33, 512, 70, 3);
            float *together = malloc(70 * 33 * sizeof *together);
            float alone[33];
            multiply(&r, &p, p.x, 70, together, 33, 0);
            for (uint32_t n = 0; n < 70; n++) {
                multiply(&r, &p, p.x + n * p.x_stride, 1, alone, 33, 0);
                assert_same_floats(alone, together + n * 33, 33, p.type->name);
            }
            free(together);
            problem_free(&p);
        }
        rig_close(&r);
    }
}

static void accumulate_adds_the_whole_product(void **state) {
    (void)state;
    rig r = rig_open(1);
    for (size_t t = 0; t < COUNT(block_types); t++) {
        problem p = problem_new(&block_types[t], 9, 512, 3, 4);
        float product[27];
        float y[27];
        float wanted[27];
        uint64_t seed = 1;
        rnd_floats(&seed, y, 27);
        multiply(&r, &p, p.x, 3, product, 9, 0);
        for (int i = 0; i < 27; i++) wanted[i] = y[i] + product[i];
        multiply(&r, &p, p.x, 3, y, 9, FTK_MATMUL_ACCUMULATE);
        assert_same_floats(y, wanted, 27, p.type->name);
        problem_free(&p);
    }
    rig_close(&r);
}

static void matmul_refuses(void **state) {
    (void)state;
    rig r = rig_open(1);
    problem p = problem_new(&block_types[4], 8, 512, 2, 5);
    guarded g;
    float *y = guarded_floats(&g, 16);
    guarded packed = guarded_new(r.op->activation_bytes(3, 2, 512));
    memset(packed.data, 0, packed.bytes);
    const ftk_activation act = {p.x, packed.data, p.x_stride, 2, 512, FTK_ACT_A256, 0};
    const ftk_op_matmul good = {&p.view, act, y, 8, 0, 0};
    ftk_weight views[5] = {p.view, p.view, p.view, p.view, p.view};
    ftk_op_matmul bad[12];
    for (size_t i = 0; i < COUNT(bad); i++) bad[i] = good;
    views[0].type = 16; /* IQ2_XXS */
    views[1].layout = 1;
    views[2].row_bytes--;
    views[3].cols = 500;
    views[4].data = NULL;
    for (size_t i = 0; i < COUNT(views); i++) bad[i].weight = &views[i];
    bad[5].weight = NULL;
    bad[6].y = NULL;
    bad[7].y_stride = 7;
    bad[8].required = 2;
    bad[9].act.packed = NULL;
    bad[10].act.formats = FTK_ACT_A32;
    bad[11].act.cols = 256;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(r.op->matmul(r.stream, &bad[i]), FTK_E_ARGUMENT);
    for (int i = 0; i < 16; i++) assert_int_equal(bits_of(y[i]), 0xa5a5a5a5u);
    assert_int_equal(r.op->matmul(r.stream, &good), FTK_OK);
    guarded_free(&packed);
    guarded_free(&g);
    problem_free(&p);
    rig_close(&r);
}

/* Sizes as the arithmetic around kernels sees them: whatever is narrowed to 32 bits on the
 * way looks like a small matrix, and would be taken. */
static void g17_shapes_beyond_32_bits(void **state) {
    (void)state;
    static const uint64_t edges[] = {1ull << 31, 1ull << 32, 1ull << 33, 1ull << 48};
    rig r = rig_open(1);
    problem p = problem_new(&block_types[4], 8, 512, 2, 5);
    guarded packed = guarded_new(r.op->activation_bytes(3, 2, 512));
    float y[16] = {0};
    memset(packed.data, 0, packed.bytes);
    const ftk_activation act = {p.x, packed.data, p.x_stride, 2, 512, FTK_ACT_A256, 0};
    const int32_t token = 0;
    uint64_t row = r.op->activation_bytes(3, 1, 512);
    assert_true(row > 512);
    for (size_t i = 0; i < COUNT(edges); i++) {
        for (uint64_t more = 0; more < 2; more++) {
            uint64_t rows = edges[i] - 1 + more;
            assert_true(r.op->activation_bytes(3, rows, 512) == rows * row);
            uint64_t cols = edges[i] + 4096 * more; /* 9/8 bytes each as A32, 73/64 as A256 */
            assert_true(r.op->activation_bytes(3, 1, cols) == cols / 64 * 145);
        }
        ftk_weight tall = p.view, wide = p.view;
        tall.rows += edges[i];
        wide.cols += edges[i];
        const ftk_op_matmul many_rows = {&tall, act, y, 8, 0, 0};
        const ftk_op_matmul many_cols = {&wide, act, y, 8, 0, 0};
        const ftk_op_embed embed = {
            .table = &wide, .tokens = &token, .y = y, .y_stride = 512, .rows = 1};
        assert_int_equal(r.op->matmul(r.stream, &many_rows), FTK_E_ARGUMENT);
        assert_int_equal(r.op->matmul(r.stream, &many_cols), FTK_E_ARGUMENT);
        assert_int_equal(r.op->embed(r.stream, &embed), FTK_E_ARGUMENT);
    }
    guarded_free(&packed);
    problem_free(&p);
    rig_close(&r);
}

/* ---- experts ---- */

typedef struct experts {
    problem p; /* rows: all experts' rows, one after the other */
    uint32_t count;
    uint32_t rows; /* of one expert */
    ftk_bank_view bank;
    int32_t chosen[70 * 4];
    float weights[70 * 4];
    int32_t offsets[17];
    int32_t pairs[70 * 4];
    ftk_routing routing;
} experts;

/* Routes row n to `used` experts from a skewed choice, so that some get none and
 * some more than a tile. */
static void experts_init(experts *e, const block_type *t, uint32_t expert_rows, uint32_t rows,
                         bool per_pair) {
    enum { USED = 3 };
    e->count = 12;
    e->rows = expert_rows;
    e->p = problem_new(t, e->count * e->rows, 512, per_pair ? rows * USED : rows, rows);
    e->bank = (ftk_bank_view){sizeof e->bank, t->type, FTK_LAYOUT_RAW, e->count,
                              e->rows,        512,     e->p.row_bytes, e->rows * e->p.row_bytes,
                              e->p.weights,   NULL};
    int32_t at = 0;
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t k = 0; k < USED; k++)
            e->chosen[i * USED + k] = (int32_t)(k == 0 ? 4 : k == 1 ? 5 + i % 4 : 9 + i % 2);
    for (uint32_t x = 0; x < e->count; x++) {
        e->offsets[x] = at;
        for (uint32_t i = 0; i < rows * USED; i++)
            if (e->chosen[i] == (int32_t)x) e->pairs[at++] = (int32_t)i;
    }
    e->offsets[e->count] = at;
    e->routing = (ftk_routing){e->chosen, e->weights, e->offsets, e->pairs,
                               rows,      USED,       e->count,   0};
}

/* ---- the same in slots, fewer than the batch needs ---- */

typedef struct slots {
    const experts *e;
    uint8_t *memory; /* [SLOTS] */
    int32_t state[64];
    uint64_t copies;
    fti_bank_pool *pool;
} slots;

enum { SLOTS = 4 };

static ftk_status copy_expert(void *self, uint32_t layer, uint32_t expert, uint32_t part,
                              uint32_t slot, uint64_t *ticket, ftk_error *err) {
    slots *s = self;
    uint64_t bytes = s->e->bank.expert_stride;
    assert_true(layer == 1 && part == 0 && slot < SLOTS);
    memcpy(s->memory + slot * bytes, s->e->p.weights + expert * bytes, bytes);
    *ticket = ++s->copies;
    (void)err;
    return FTK_OK;
}

static bool always(void *self, uint64_t ticket) {
    return ticket <= ((slots *)self)->copies;
}

static ftk_status at_once(void *self, uint64_t ticket, ftk_error *err) {
    (void)err;
    return always(self, ticket) ? FTK_OK : FTK_E_INTERNAL;
}

static const fti_mover_ops mover = {copy_expert, always, at_once};

static void slots_init(slots *s, rig *r, experts *e) {
    *s = (slots){.e = e, .memory = malloc(SLOTS * e->bank.expert_stride)};
    const fti_bank_desc desc = {.layers = 2,
                                .experts = e->count,
                                .slots = SLOTS,
                                .parts = 1,
                                .part_memory = {{s->memory, SLOTS * e->bank.expert_stride}},
                                .memory = s->state,
                                .mover = {&mover, s}};
    assert_true(fti_residency_elements(2, e->count, SLOTS) <= 64);
    assert_int_equal(fti_bank_pool_create(&desc, &s->pool, NULL), FTK_OK);
    assert_int_equal(r->backend->ops->bank_attach(r->backend, s->pool, NULL), FTK_OK);
    e->bank.slots = fti_bank_residency(s->pool)->slot_of + e->count;
    e->bank.base = s->memory;
}

static void slots_free(slots *s, rig *r) {
    r->backend->ops->bank_detach(r->backend, s->pool);
    fti_bank_pool_destroy(s->pool);
    free(s->memory);
}

/* What asks for experts that nobody brought is an error of the work, not of the call. */
static void unbrought(rig *r, const ftk_op_grouped_matmul *op) {
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(r->op->grouped_matmul(r->stream, op), FTK_OK);
    assert_int_equal(r->backend->ops->stream_sync(r->stream, &err), FTK_E_PROVIDER_CONTRACT);
    assert_non_null(strstr(err.message, "ensure"));
    assert_int_equal(r->backend->ops->stream_sync(r->stream, &err), FTK_OK);
}

static void grouped_case(rig *r, const block_type *t, uint32_t expert_rows, uint32_t rows,
                         bool per_pair, bool in_slots) {
    experts e;
    slots s;
    guarded g;
    experts_init(&e, t, expert_rows, rows, per_pair);
    if (in_slots) slots_init(&s, r, &e);
    uint32_t used = e.routing.used;
    uint64_t y_stride = e.rows + 2;
    float *y = guarded_floats(&g, rows * used * y_stride);
    uint32_t formats = formats_for(&e.p);
    guarded packed = guarded_new(r->op->activation_bytes(formats, e.p.inputs, 512));
    ftk_activation act = {e.p.x, packed.data, e.p.x_stride, e.p.inputs, 512, formats, 0};
    ftk_op_quantize quantize = {act};
    ftk_op_grouped_matmul op = {&e.bank, act, e.routing, y, y_stride, per_pair ? 1 : used, 0};
    assert_int_equal(r->op->quantize(r->stream, &quantize), FTK_OK);
    ftk_op_ensure ensure = {&e.bank, e.routing};
    if (in_slots) unbrought(r, &op);
    assert_int_equal(r->op->ensure(r->stream, &ensure), FTK_OK);
    assert_int_equal(r->op->grouped_matmul(r->stream, &op), FTK_OK);
    assert_int_equal(r->backend->ops->stream_sync(r->stream, NULL), FTK_OK);
    for (uint32_t pair = 0; pair < rows * used; pair++) {
        int32_t expert = e.chosen[pair];
        const float *x = e.p.x + (per_pair ? pair : pair / used) * e.p.x_stride;
        for (uint32_t i = 0; i < e.rows; i++) {
            const uint8_t *row = e.p.weights + ((uint32_t)expert * e.rows + i) * e.p.row_bytes;
            assert_true(same_float(y[pair * y_stride + i], ref_dot(t->type, row, x, 512)));
        }
        assert_int_equal(bits_of(y[pair * y_stride + e.rows]), 0xa5a5a5a5u);
    }
    op.act_divisor = 2;
    assert_int_equal(r->op->grouped_matmul(r->stream, &op), FTK_E_ARGUMENT);
    op.act_divisor = per_pair ? 1 : used;
    op.routing.expert_count--;
    assert_int_equal(r->op->grouped_matmul(r->stream, &op), FTK_E_ARGUMENT);
    if (in_slots)
        unbrought(r, &(ftk_op_grouped_matmul){&e.bank, act, e.routing, y, y_stride,
                                              per_pair ? 1 : used, 0}); /* a second time */
    if (in_slots) slots_free(&s, r);
    guarded_free(&packed);
    guarded_free(&g);
    problem_free(&e.p);
}

static void grouped_products(void **state) {
    (void)state;
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        for (size_t t = 0; t < COUNT(block_types); t++) {
            grouped_case(&r, &block_types[t], 11, 1, false, t % 2);
            grouped_case(&r, &block_types[t], 11, 2, true, true);
            /* So many panels that threads begin and end inside of an expert. */
            grouped_case(&r, &block_types[t], 203, 2, false, true);
            if (s < 2) grouped_case(&r, &block_types[t], 11, 70, t % 2, s == 1);
        }
        rig_close(&r);
    }
}

/* Weight rows that fill panels or end inside one, single rows of activations and every
 * remainder of those that share a reading, and widths around the pieces of a panel. */
static void panels_of_every_size(void **state) {
    (void)state;
    static const uint32_t fast[] = {FTK_TYPE_Q8_0, FTK_TYPE_Q4_K, FTK_TYPE_Q5_K, FTK_TYPE_Q6_K};
    static const uint32_t rows[] = {1, 3, 16, 17, 37}, around[] = {256, 768, 4096, 4608};
    uint32_t inputs = 1;
    for (size_t t = 0; t < COUNT(block_types); t++) {
        bool wanted = false;
        for (size_t i = 0; i < COUNT(fast); i++) wanted |= block_types[t].type == fast[i];
        for (size_t i = 0; wanted && i < COUNT(rows) * COUNT(around); i++) {
            problem p = problem_new(&block_types[t], rows[i % COUNT(rows)], around[i / COUNT(rows)],
                                    inputs, i);
            check_exact(&p);
            problem_free(&p);
            inputs = inputs % 6 + 1;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_products),
        cmocka_unit_test(panels_of_every_size),
        cmocka_unit_test(float_mode_products),
        cmocka_unit_test(both_modes_agree_roughly),
        cmocka_unit_test(limits),
        cmocka_unit_test(unusual_activations),
        cmocka_unit_test(non_finite_input_gives_nan),
        cmocka_unit_test(rows_alone_and_together),
        cmocka_unit_test(accumulate_adds_the_whole_product),
        cmocka_unit_test(matmul_refuses),
        cmocka_unit_test(g17_shapes_beyond_32_bits),
        cmocka_unit_test(grouped_products),
    };
    return cmocka_run_group_tests_name("test_matmul", tests, NULL, NULL);
}
