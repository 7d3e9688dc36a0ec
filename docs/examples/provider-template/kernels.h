/*
 * kernels.h: the provider's own CPU kernels: what its model needs and no operator of
 * the core computes. Each is a function over a range of independent items, which the
 * core's threads share; what it computes for an item may not depend on the range.
 */
#ifndef TEMPLATE_KERNELS_H
#define TEMPLATE_KERNELS_H

#include <freetoken/provider.h>

/* x = max(x, 0)^2 in place; NaN becomes 0. Item: one row of n floats. */
typedef struct template_relu2_args {
    float *x;
    uint64_t n;
} template_relu2_args;

void template_relu2_reference(const void *args, uint64_t begin, uint64_t end);
#if defined(__x86_64__)
void template_relu2_avx2(const void *args, uint64_t begin, uint64_t end);
#endif

#endif
