/*
 * float_lanes.h: rows of float weights times rows of floats with sixteen lanes in registers,
 * a few of each at a time, so that sums do not wait for each other and what is loaded is used
 * more than once. The operations and their order are those of dot_float in kernels_impl.h,
 * which includes this file after the lanes of an instruction set.
 */
#ifndef FTI_CPU_FLOAT_LANES_H
#define FTI_CPU_FLOAT_LANES_H

#define FLOAT_INPUTS 4u /* rows of activations that meet FLOAT_PAIR weight rows at a time */
#define FLOAT_PAIR   2u
#define FLOAT_ALONE  4u /* weight rows for one row of activations */

/* Elements column .. column + 15 of a row of float weights. */
INLINE lanes16 lanes_of_row(uint32_t type, const uint8_t *row, uint32_t column) {
    switch (type) {
    case FTK_TYPE_F32: return lanes_load((const float *)(const void *)row + column);
    case FTK_TYPE_F16: return lanes_load_f16(row + 2 * (size_t)column);
    default: return lanes_load_bf16(row + 2 * (size_t)column);
    }
}

INLINE const float *float_input(const tile *t, uint32_t n) {
    return (const float *)(const void *)t->in[n];
}

/* Weight rows r .. r + w_count - 1 times activations n .. n + x_count - 1; the counts and the
 * type are constants where this is called. */
INLINE void float_block(uint32_t type, uint32_t cols, const uint8_t *const *rows, uint32_t r,
                        uint32_t w_count, const tile *t, uint32_t n, uint32_t x_count,
                        panel_sums acc) {
    lanes16 sum[FLOAT_ALONE][FLOAT_INPUTS];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < w_count; i++)
#pragma GCC unroll 4
        for (uint32_t k = 0; k < x_count; k++) sum[i][k] = lanes_zero();
    for (uint32_t column = 0; column < cols; column += 16) {
        lanes16 x[FLOAT_INPUTS];
#pragma GCC unroll 4
        for (uint32_t k = 0; k < x_count; k++) x[k] = lanes_load(float_input(t, n + k) + column);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < w_count; i++) {
            lanes16 w = lanes_of_row(type, rows[r + i], column);
#pragma GCC unroll 4
            for (uint32_t k = 0; k < x_count; k++) sum[i][k] = lanes_fma(w, x[k], sum[i][k]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < w_count; i++)
#pragma GCC unroll 4
        for (uint32_t k = 0; k < x_count; k++) acc[n + k][r + i] = lanes_fold(sum[i][k]);
}

INLINE void float_panel(uint32_t type, const fti_cpu_matrix *m, const uint8_t *const *rows,
                        uint32_t row_count, const tile *t, panel_sums acc) {
    uint32_t r = 0, n = 0;
    for (; r + FLOAT_ALONE <= row_count && t->count == 1; r += FLOAT_ALONE)
        float_block(type, m->cols, rows, r, FLOAT_ALONE, t, 0, 1, acc);
    for (; r + FLOAT_PAIR <= row_count; r += FLOAT_PAIR) {
        for (n = 0; n + FLOAT_INPUTS <= t->count; n += FLOAT_INPUTS)
            float_block(type, m->cols, rows, r, FLOAT_PAIR, t, n, FLOAT_INPUTS, acc);
        for (; n < t->count; n++) float_block(type, m->cols, rows, r, FLOAT_PAIR, t, n, 1, acc);
    }
    for (; r < row_count; r++)
        for (n = 0; n < t->count; n++) float_block(type, m->cols, rows, r, 1, t, n, 1, acc);
}

static void dot_panel_float(const fti_cpu_matrix *m, const uint8_t *const *rows, uint32_t row_count,
                            const tile *t, panel_sums acc) {
    switch (m->type) {
    case FTK_TYPE_F32: float_panel(FTK_TYPE_F32, m, rows, row_count, t, acc); break;
    case FTK_TYPE_F16: float_panel(FTK_TYPE_F16, m, rows, row_count, t, acc); break;
    default: float_panel(FTK_TYPE_BF16, m, rows, row_count, t, acc);
    }
}

#endif
