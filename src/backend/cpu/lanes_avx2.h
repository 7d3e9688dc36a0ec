/* lanes_avx2.h: sixteen f32 lanes as two AVX registers. */
#ifndef FTI_CPU_LANES_AVX2_H
#define FTI_CPU_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANE_HEADS 4u /* sums in registers at a time */

typedef struct lanes16 {
    __m256 low;
    __m256 high;
} lanes16;

INLINE lanes16 lanes_zero(void) {
    return (lanes16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

INLINE lanes16 lanes_every(float x) {
    return (lanes16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

INLINE lanes16 lanes_load(const float *p) {
    return (lanes16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

INLINE lanes16 lanes_load_f16(const uint8_t *p) {
    const __m128i *h = (const __m128i *)(const void *)p;
    return (lanes16){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}

INLINE __m256 widen_bf16(const uint8_t *p) {
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE lanes16 lanes_load_bf16(const uint8_t *p) {
    return (lanes16){widen_bf16(p), widen_bf16(p + 16)};
}

INLINE __m256 widen_i8(const uint8_t *p) {
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

INLINE lanes16 lanes_load_i8(const uint8_t *p) {
    return (lanes16){widen_i8(p), widen_i8(p + 8)};
}

/* One half in every lane. */
INLINE lanes16 lanes_every_f16(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return lanes_every(_cvtsh_ss(half));
}

INLINE void lanes_store(float *p, lanes16 x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
}

INLINE lanes16 lanes_add(lanes16 a, lanes16 b) {
    return (lanes16){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

INLINE lanes16 lanes_mul(lanes16 a, lanes16 b) {
    return (lanes16){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

INLINE lanes16 lanes_fma(lanes16 a, lanes16 b, lanes16 c) {
    return (lanes16){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

/* As ftk_lanes_fold: halves upon each other until one is left. */
INLINE float lanes_fold(lanes16 x) {
    __m256 v8 = _mm256_add_ps(x.low, x.high);
    __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}

#endif
