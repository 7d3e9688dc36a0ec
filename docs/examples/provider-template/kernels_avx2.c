/* kernels_avx2.c: the kernels with AVX2, eight values at a time. Run only where the core
 * reports cpu.avx2: see the variant table in provider.c. */
#include "kernels.h"

#include <immintrin.h>

void template_relu2_avx2(const void *args, uint64_t begin, uint64_t end) {
    const template_relu2_args *a = args;
    const __m256 zero = _mm256_setzero_ps();
    uint64_t i = begin * a->n, last = end * a->n;
    for (; i + 8 <= last; i += 8) {
        /* With NaN or two zeros the maximum is its second operand, as in the reference. */
        __m256 x = _mm256_max_ps(_mm256_loadu_ps(a->x + i), zero);
        _mm256_storeu_ps(a->x + i, _mm256_mul_ps(x, x));
    }
    for (; i < last; i++) {
        float x = a->x[i] > 0.0f ? a->x[i] : 0.0f;
        a->x[i] = x * x;
    }
}
