/* lanes_avx512.h: sixteen f32 lanes as one AVX-512 register. */
#ifndef FTI_CPU_LANES_AVX512_H
#define FTI_CPU_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANE_HEADS 8u /* sums in registers at a time */

typedef __m512 lanes16;

INLINE lanes16 lanes_zero(void) {
    return _mm512_setzero_ps();
}

INLINE lanes16 lanes_every(float x) {
    return _mm512_set1_ps(x);
}

INLINE lanes16 lanes_load(const float *p) {
    return _mm512_loadu_ps(p);
}

INLINE lanes16 lanes_load_f16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

INLINE lanes16 lanes_load_bf16(const uint8_t *p) {
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE lanes16 lanes_load_i8(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

/* One half in every lane. */
INLINE lanes16 lanes_every_f16(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return _mm512_set1_ps(_cvtsh_ss(half));
}

INLINE void lanes_store(float *p, lanes16 x) {
    _mm512_storeu_ps(p, x);
}

INLINE lanes16 lanes_add(lanes16 a, lanes16 b) {
    return _mm512_add_ps(a, b);
}

INLINE lanes16 lanes_mul(lanes16 a, lanes16 b) {
    return _mm512_mul_ps(a, b);
}

INLINE lanes16 lanes_fma(lanes16 a, lanes16 b, lanes16 c) {
    return _mm512_fmadd_ps(a, b, c);
}

/* As ftk_lanes_fold: halves upon each other until one is left. */
INLINE float lanes_fold(lanes16 x) {
    __m256 v8 = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}

#endif
