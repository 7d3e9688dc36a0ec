/*
 * scale.c: the kernel of the scale operator. One multiplication per value has the
 * same bits however it is compiled, and is nothing beside the matrix product before
 * it: so there is one version for every instruction set.
 */
#include "backend/cpu/cpu.h"

static void scale_row(const ftk_op_scale *a, const float *x, float f, float *y) {
    if (a->required & FTK_SCALE_ACCUMULATE) {
        for (uint32_t i = 0; i < a->n; i++) {
            float product = f * x[i];
            y[i] += product;
        }
    } else {
        for (uint32_t i = 0; i < a->n; i++) y[i] = f * x[i];
    }
}

void fti_cpu_scale(const void *args, uint64_t begin, uint64_t end) {
    const ftk_op_scale *a = args;
    for (uint64_t r = begin; r < end; r++) {
        uint32_t index = a->index ? (uint32_t)a->index[r] : 0; /* negative: none */
        if (index >= a->factor_count) continue;
        scale_row(a, a->x + r * a->x_stride, a->factors[index], a->y + r * a->y_stride);
    }
}
