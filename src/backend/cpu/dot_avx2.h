/*
 * dot_avx2.h: the dot products of device/dot.h with AVX2 intrinsics, four weight
 * rows at a time. Integers are exact in any order, and the few f32 operations of a
 * group are those of the definition with the four rows in the lanes, so the bits are
 * the reference's. Included by kernels_impl.h on behalf of kernels_avx2.c; tile, panel_sums
 * and PANEL_ROWS (four) are defined there.
 *
 * A group of 256 columns is unpacked once to unsigned bytes and 16-bit scales, then
 * used for every row of activations. No product pair leaves 16 bits: 2 * 63 * 127
 * and, for Q8_0 with signs moved to the activations, 2 * 128 * 127.
 */
#ifndef FTI_CPU_DOT_AVX2_H
#define FTI_CPU_DOT_AVX2_H

#include <immintrin.h>

#include "backend/cpu/kernels.h"
#include "freetoken/device/dot.h"

/* Four rows of one K-quant group: value = d * scale * (q - bias) - dmin * min. */
typedef struct k_panel {
    _Alignas(32) uint8_t q[PANEL_ROWS][256];
    _Alignas(32) int16_t scale[PANEL_ROWS][8][16]; /* of 32 columns, as madd takes them */
    _Alignas(32) int16_t sums[PANEL_ROWS][16];     /* what the sums of 16 q_a are taken with */
    float d[PANEL_ROWS];
    float dmin[PANEL_ROWS];
} k_panel;

/* Sums of the lanes of four vectors, in order. */
static inline __m128i fold4(__m256i a, __m256i b, __m256i c, __m256i d) {
    __m256i ab = _mm256_hadd_epi32(a, b), cd = _mm256_hadd_epi32(c, d);
    __m256i all = _mm256_hadd_epi32(ab, cd);
    return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

static inline __m256i load(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline void store(void *p, __m256i v) {
    _mm256_store_si256((__m256i *)p, v);
}

/* ---- unpacking ---- */

/* Scales and minima of Q4_K and Q5_K: eight of 6 bits each in 12 bytes. */
static void unpack_scales(const uint8_t *block, k_panel *p, uint32_t r) {
    uint32_t s[3];
    memcpy(s, block + 4, sizeof s);
    const uint32_t low6 = 0x3f3f3f3fu, low4 = 0x0f0f0f0fu, low2 = 0x03030303u;
    uint64_t scales = (s[0] & low6) | (uint64_t)((s[2] & low4) | (s[0] >> 6 & low2) << 4) << 32;
    uint64_t minima = (s[1] & low6) | (uint64_t)((s[2] >> 4 & low4) | (s[1] >> 6 & low2) << 4)
                                          << 32;
    __m128i sc = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)scales));
    __m128i mn = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)minima));
    __m256i both = _mm256_broadcastsi128_si256(sc);
    for (int j = 0; j < 8; j++) {
        __m256i lane = _mm256_set1_epi16((short)(0x0100 + 0x0202 * j));
        store(p->scale[r][j], _mm256_shuffle_epi8(both, lane));
    }
    __m256i pairs = _mm256_set_m128i(_mm_unpackhi_epi16(mn, mn), _mm_unpacklo_epi16(mn, mn));
    store(p->sums[r], pairs);
    p->d[r] = ftk_f16_to_f32(ftk_load_u16(block));
    p->dmin[r] = ftk_f16_to_f32(ftk_load_u16(block + 2));
}

static void unpack_q4_k(const uint8_t *block, k_panel *p, uint32_t r) {
    const __m256i low = _mm256_set1_epi8(15);
    unpack_scales(block, p, r);
    for (uint32_t i = 0; i < 4; i++) {
        __m256i b = load(block + 16 + 32 * i);
        store(p->q[r] + 64 * i, _mm256_and_si256(b, low));
        store(p->q[r] + 64 * i + 32, _mm256_and_si256(_mm256_srli_epi16(b, 4), low));
    }
}

/* 16 in each byte whose bit `bit` is set. */
static inline __m256i fifth_bit(__m256i high, int bit) {
    __m256i mask = _mm256_set1_epi8((char)(1 << bit));
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(high, mask), mask);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

static void unpack_q5_k(const uint8_t *block, k_panel *p, uint32_t r) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i high = load(block + 16);
    unpack_scales(block, p, r);
    for (int i = 0; i < 4; i++) {
        __m256i b = load(block + 48 + 32 * i);
        __m256i even = _mm256_and_si256(b, low);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi16(b, 4), low);
        store(p->q[r] + 64 * i, _mm256_or_si256(even, fifth_bit(high, 2 * i)));
        store(p->q[r] + 64 * i + 32, _mm256_or_si256(odd, fifth_bit(high, 2 * i + 1)));
    }
}

/* q stays in 0..63: the 32 is taken off through the sums of the activations. */
static void unpack_q6_k(const uint8_t *block, k_panel *p, uint32_t r) {
    const __m256i low = _mm256_set1_epi8(15), two = _mm256_set1_epi8(0x30);
    for (uint32_t h = 0; h < 2; h++) {
        __m256i a = load(block + 64 * h), b = load(block + 64 * h + 32);
        __m256i high = load(block + 128 + 32 * h);
        uint8_t *q = p->q[r] + 128 * h;
        __m256i h0 = _mm256_and_si256(_mm256_slli_epi16(high, 4), two);
        __m256i h1 = _mm256_and_si256(_mm256_slli_epi16(high, 2), two);
        __m256i h2 = _mm256_and_si256(high, two);
        __m256i h3 = _mm256_and_si256(_mm256_srli_epi16(high, 2), two);
        store(q, _mm256_or_si256(_mm256_and_si256(a, low), h0));
        store(q + 32, _mm256_or_si256(_mm256_and_si256(b, low), h1));
        store(q + 64, _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), low), h2));
        store(q + 96, _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), low), h3));
    }
    __m128i s8 = _mm_loadu_si128((const __m128i *)(const void *)(block + 192));
    __m256i s16 = _mm256_cvtepi8_epi16(s8);
    store(p->sums[r], s16);
    __m256i lo = _mm256_permute4x64_epi64(s16, 0x44), hi = _mm256_permute4x64_epi64(s16, 0xEE);
    const __m256i half = _mm256_set_m128i(_mm_set1_epi16(0x0302), _mm_set1_epi16(0x0100));
    for (int j = 0; j < 8; j++) {
        __m256i lane = _mm256_add_epi8(half, _mm256_set1_epi8((char)(4 * (j & 3))));
        store(p->scale[r][j], _mm256_shuffle_epi8(j < 4 ? lo : hi, lane));
    }
    p->d[r] = ftk_f16_to_f32(ftk_load_u16(block + 208));
    p->dmin[r] = 0.0f;
}

/* ---- K-quants ---- */

static inline __m256i dot256(const k_panel *p, uint32_t r, const int8_t *a) {
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t j = 0; j < 8; j++) {
        __m256i pairs = _mm256_maddubs_epi16(load(p->q[r] + 32 * j), load(a + 32 * j));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, load(p->scale[r][j])));
    }
    return sum;
}

/* Terms of the four rows for one row of activations. */
static inline __m128 k_terms(const k_panel *p, uint32_t type, const int8_t *a, const int16_t *s,
                             float d_a) {
    __m256i sums = load(s);
    __m128i whole = fold4(dot256(p, 0, a), dot256(p, 1, a), dot256(p, 2, a), dot256(p, 3, a));
    __m128i offset = fold4(
        _mm256_madd_epi16(load(p->sums[0]), sums), _mm256_madd_epi16(load(p->sums[1]), sums),
        _mm256_madd_epi16(load(p->sums[2]), sums), _mm256_madd_epi16(load(p->sums[3]), sums));
    __m128 d = _mm_loadu_ps(p->d), scale = _mm_set1_ps(d_a);
    if (type == FTK_TYPE_Q6_K) {
        whole = _mm_sub_epi32(whole, _mm_slli_epi32(offset, 5));
        return _mm_mul_ps(scale, _mm_mul_ps(d, _mm_cvtepi32_ps(whole)));
    }
    __m128 minima = _mm_mul_ps(_mm_loadu_ps(p->dmin), _mm_cvtepi32_ps(offset));
    return _mm_mul_ps(scale, _mm_fmsub_ps(d, _mm_cvtepi32_ps(whole), minima));
}

static void unpack_k(uint32_t type, const uint8_t *block, k_panel *p, uint32_t r) {
    if (type == FTK_TYPE_Q4_K)
        unpack_q4_k(block, p, r);
    else if (type == FTK_TYPE_Q5_K)
        unpack_q5_k(block, p, r);
    else
        unpack_q6_k(block, p, r);
}

/* acc[n] += terms, group after group. t->in[n] is a row in A256. */
static void dot_panel_k(const fti_cpu_matrix *m, const uint8_t *const *rows, const tile *t,
                        panel_sums acc) {
    uint32_t bytes = m->type == FTK_TYPE_Q4_K   ? FTK_Q4_K_BYTES
                     : m->type == FTK_TYPE_Q5_K ? FTK_Q5_K_BYTES
                                                : FTK_Q6_K_BYTES;
    uint32_t groups = m->cols / 256;
    size_t scales = m->cols, sums = scales + (size_t)groups * 4;
    k_panel p;
    for (uint32_t u = 0; u < groups; u++) {
        for (uint32_t r = 0; r < PANEL_ROWS; r++)
            unpack_k(m->type, rows[r] + (size_t)u * bytes, &p, r);
        for (uint32_t n = 0; n < t->count; n++) {
            float d_a;
            memcpy(&d_a, t->in[n] + scales + 4 * (size_t)u, sizeof d_a);
            const int8_t *a = (const int8_t *)t->in[n] + 256 * (size_t)u;
            const int16_t *s = (const int16_t *)(const void *)(t->in[n] + sums) + 16 * (size_t)u;
            __m128 term = k_terms(&p, m->type, a, s, d_a);
            _mm_storeu_ps(acc[n], _mm_add_ps(_mm_loadu_ps(acc[n]), term));
        }
    }
}

/* ---- Q8_0 ---- */

/* Four rows of a group of at most eight leaves; absent leaves have d = +0. */
typedef struct q8_panel {
    _Alignas(32) int8_t w[PANEL_ROWS][256];
    _Alignas(32) float d[PANEL_ROWS][8];
} q8_panel;

static void unpack_q8_0(const uint8_t *data, uint32_t blocks, q8_panel *p, uint32_t r) {
    _Alignas(16) uint16_t d[8] = {0};
    for (uint32_t j = 0; j < blocks; j++) {
        const uint8_t *block = data + (size_t)FTK_Q8_0_BYTES * j;
        memcpy(&d[j], block, sizeof d[j]);
        store(p->w[r] + 32 * j, load(block + 2));
    }
    for (uint32_t j = blocks; j < 8; j++) memset(p->w[r] + 32 * (size_t)j, 0, 32);
    _mm256_store_ps(p->d[r], _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)d)));
}

static inline __m256i leaf(const int8_t *w, const int8_t *a) {
    __m256i weights = load(w);
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights),
                                         _mm256_sign_epi8(load(a), weights));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* The four pairs p_0 .. p_3 of one row. `a` and `d_a` have eight leaves. */
static inline __m128 q8_pairs(const q8_panel *p, uint32_t r, const int8_t *a, __m256 d_a) {
    const int8_t *w = p->w[r];
    __m128i low = fold4(leaf(w, a), leaf(w + 32, a + 32), leaf(w + 64, a + 64),
                        leaf(w + 96, a + 96));
    __m128i high = fold4(leaf(w + 128, a + 128), leaf(w + 160, a + 160), leaf(w + 192, a + 192),
                         leaf(w + 224, a + 224));
    __m256 i = _mm256_cvtepi32_ps(_mm256_set_m128i(high, low));
    __m256 e = _mm256_mul_ps(_mm256_load_ps(p->d[r]), d_a);
    __m256 even = _mm256_moveldup_ps(_mm256_mul_ps(e, i));
    __m256 joined = _mm256_fmadd_ps(e, i, even); /* odd lanes: fma(e', i', e * i) */
    return _mm_shuffle_ps(_mm256_castps256_ps128(joined), _mm256_extractf128_ps(joined, 1),
                          _MM_SHUFFLE(3, 1, 3, 1));
}

static inline __m128 q8_terms(const q8_panel *p, const int8_t *a, __m256 d_a) {
    __m128 p0 = q8_pairs(p, 0, a, d_a), p1 = q8_pairs(p, 1, a, d_a);
    __m128 p2 = q8_pairs(p, 2, a, d_a), p3 = q8_pairs(p, 3, a, d_a);
    _MM_TRANSPOSE4_PS(p0, p1, p2, p3);
    return _mm_add_ps(_mm_add_ps(_mm_add_ps(p0, p1), p2), p3);
}

/* The activations of a group with fewer than eight leaves, filled up with zeros. */
typedef struct q8_tail {
    _Alignas(32) int8_t a[256];
    _Alignas(32) float d[8];
} q8_tail;

static void fill_tail(const int8_t *a, const float *d, uint32_t blocks, q8_tail *tail) {
    memset(tail, 0, sizeof *tail);
    memcpy(tail->a, a, (size_t)blocks * 32);
    memcpy(tail->d, d, blocks * sizeof *d);
}

static void dot_panel_q8_0(const fti_cpu_matrix *m, const uint8_t *const *rows, const tile *t,
                           panel_sums acc) {
    q8_panel p;
    q8_tail tail;
    for (uint32_t first = 0; first < m->cols; first += 256) {
        uint32_t blocks = m->cols - first < 256 ? (m->cols - first) / 32 : 8;
        for (uint32_t r = 0; r < PANEL_ROWS; r++)
            unpack_q8_0(rows[r] + (size_t)(first / 32) * FTK_Q8_0_BYTES, blocks, &p, r);
        for (uint32_t n = 0; n < t->count; n++) {
            const int8_t *a = (const int8_t *)t->in[n] + first;
            const float *d = (const float *)(const void *)(t->in[n] + m->cols) + first / 32;
            if (blocks < 8) {
                fill_tail(a, d, blocks, &tail);
                a = tail.a;
                d = tail.d;
            }
            __m128 term = q8_terms(&p, a, _mm256_loadu_ps(d));
            _mm_storeu_ps(acc[n], _mm_add_ps(_mm_loadu_ps(acc[n]), term));
        }
    }
}

#endif
