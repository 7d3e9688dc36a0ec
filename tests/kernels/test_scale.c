/*
 * test_scale.c: the scale operator against one multiplication per value: factors for
 * all rows and by index, sums whose product is rounded first, in place and with
 * strides, on any number of threads, recorded and replayed.
 */
#include "kernels/rig.h"

#include <math.h>

enum { ROWS = 7, N = 37, X_STRIDE = 40, Y_STRIDE = 43, FACTORS = 5 };

static const int32_t indices[ROWS] = {0, 4, 2, -1, 3, 5, 1}; /* two are none */

typedef struct data {
    float x[ROWS * X_STRIDE];
    float y[ROWS * Y_STRIDE];
    float factors[FACTORS];
} data;

static void fill(data *d) {
    uint64_t seed = 11;
    rnd_floats(&seed, d->x, ROWS * X_STRIDE);
    rnd_floats(&seed, d->y, ROWS * Y_STRIDE);
    rnd_floats(&seed, d->factors, FACTORS);
    d->x[3] = INFINITY;
    d->x[4] = -0.0f;
    d->x[5] = 0x1p-140f;
}

/* volatile: the product is rounded whatever the compiler would rather do. */
static float wanted_of(const data *d, uint32_t row, uint32_t i, bool indexed, bool adds) {
    int32_t index = indexed ? indices[row] : 0;
    float y = d->y[row * Y_STRIDE + i];
    if (index < 0 || index >= FACTORS || i >= N) return y;
    volatile float product = d->x[row * X_STRIDE + i] * d->factors[index];
    return adds ? y + product : product;
}

static void check(rig *r, bool indexed, bool adds) {
    static data d;
    float wanted[ROWS * Y_STRIDE];
    guarded g;
    fill(&d);
    float *y = guarded_floats(&g, ROWS * Y_STRIDE);
    memcpy(y, d.y, sizeof d.y);
    for (uint32_t i = 0; i < ROWS * Y_STRIDE; i++)
        wanted[i] = wanted_of(&d, i / Y_STRIDE, i % Y_STRIDE, indexed, adds);
    ftk_op_scale op = {d.x,
                       d.factors,
                       indexed ? indices : NULL,
                       y,
                       X_STRIDE,
                       Y_STRIDE,
                       ROWS,
                       N,
                       indexed ? (uint32_t)FACTORS : 1u,
                       adds ? FTK_SCALE_ACCUMULATE : 0};
    assert_int_equal(r->op->scale(r->stream, &op), FTK_OK);
    assert_same_floats(y, wanted, ROWS * Y_STRIDE, adds ? "scale and add" : "scale");
    guarded_free(&g);
}

static void every_form(void **state) {
    (void)state;
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        for (int indexed = 0; indexed < 2; indexed++)
            for (int adds = 0; adds < 2; adds++) check(&r, indexed, adds);
        rig_close(&r);
    }
}

static void in_place_and_replayed(void **state) {
    (void)state;
    float x[4] = {1, 2, 3, 4}, factor = 0.5f;
    rig r = rig_open(4);
    fti_graph *graph = NULL;
    ftk_op_scale op = {x, &factor, NULL, x, 2, 2, 2, 2, 1, 0};
    assert_int_equal(r.backend->ops->capture_begin(r.stream), FTK_OK);
    assert_int_equal(r.op->scale(r.stream, &op), FTK_OK);
    assert_int_equal(r.backend->ops->capture_end(r.stream, &graph, NULL), FTK_OK);
    assert_true(x[3] == 4);
    factor = 0.25f; /* read when it runs */
    for (int i = 0; i < 2; i++)
        assert_int_equal(r.backend->ops->graph_launch(r.stream, graph), FTK_OK);
    const float wanted[] = {1.0f / 16, 2.0f / 16, 3.0f / 16, 4.0f / 16};
    assert_same_floats(x, wanted, 4, "in place, twice");
    r.backend->ops->graph_destroy(graph);
    rig_close(&r);
}

/* More work than a thread gets alone, so that rows are dealt out. */
static void many_rows(void **state) {
    (void)state;
    enum { MANY = 500, WIDTH = 300 };
    float *x = malloc((size_t)MANY * WIDTH * sizeof *x),
          *y = malloc((size_t)MANY * WIDTH * sizeof *y);
    int32_t index[MANY];
    float factors[3] = {0.3f, -1.7f, 1e-3f};
    uint64_t seed = 5;
    assert_true(x && y);
    rnd_floats(&seed, x, (size_t)MANY * WIDTH);
    for (int i = 0; i < MANY; i++) index[i] = (int32_t)rnd_below(&seed, 3);
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        ftk_op_scale op = {x, factors, index, y, WIDTH, WIDTH, MANY, WIDTH, 3, 0};
        assert_int_equal(r.op->scale(r.stream, &op), FTK_OK);
        for (size_t i = 0; i < (size_t)MANY * WIDTH; i++)
            assert_true(same_float(y[i], x[i] * factors[index[i / WIDTH]]));
        rig_close(&r);
    }
    free(x);
    free(y);
}

static void refusals(void **state) {
    (void)state;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, factor = 2;
    rig r = rig_open(0);
    const ftk_op_scale good = {x, &factor, NULL, x, 4, 4, 2, 4, 1, 0};
    ftk_op_scale bad[7] = {good, good, good, good, good, good, good};
    bad[0].x = NULL;
    bad[1].factors = NULL;
    bad[2].y = NULL;
    bad[3].x_stride = 3;
    bad[4].y_stride = 3;
    bad[5].factor_count = 0;
    bad[6].required = 2;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(r.op->scale(r.stream, &bad[i]), FTK_E_ARGUMENT);
    for (int i = 0; i < 8; i++) assert_true(x[i] == (float)(i + 1));
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form),
        cmocka_unit_test(in_place_and_replayed),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("test_scale", tests, NULL, NULL);
}
