/* kernels_reference.c: the kernels in plain C, for any machine. They define the result:
 * every other variant must give the same bits. */
#include "kernels.h"

void template_relu2_reference(const void *args, uint64_t begin, uint64_t end) {
    const template_relu2_args *a = args;
    for (uint64_t i = begin * a->n; i < end * a->n; i++) {
        float x = a->x[i] > 0.0f ? a->x[i] : 0.0f;
        a->x[i] = x * x;
    }
}
