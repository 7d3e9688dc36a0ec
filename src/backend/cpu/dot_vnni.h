/*
 * dot_vnni.h: the dot products of device/dot.h with AVX-512 and VNNI, thirty-two weight
 * rows at a time. Integers are exact in any order, and the few f32 operations of a
 * group are those of the definition, so the bits are the reference's. Included by
 * kernels_impl.h on behalf of kernels_vnni.c; tile, panel_sums and PANEL_ROWS (32)
 * are defined there.
 *
 * One row of activations: the panel is read from its first byte to its last, block
 * after block, as memory likes it, and nothing is unpacked to memory. More rows: a group
 * of 256 columns is unpacked once with one weight row in each 32-bit lane, four columns
 * in its bytes; the dot product of a lane then needs no sum across lanes, and every four
 * bytes of activations meet sixteen rows in one instruction.
 */
#ifndef FTI_CPU_DOT_VNNI_H
#define FTI_CPU_DOT_VNNI_H

#include "backend/cpu/dot_x86.h"

/* ---- lanes ---- */

INLINE __m512i load512(const void *p) {
    return _mm512_loadu_si512(p);
}

INLINE __m256i load256(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE __m128i load128(const void *p) {
    return _mm_loadu_si128((const __m128i *)p);
}

/* Four bytes in every lane. */
INLINE __m512i every(const void *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

INLINE __m512i both_halves(__m256i v) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(v), v, 1);
}

/* Lanes 0..7 of four vectors added up, and lanes 8..15. */
INLINE void fold_halves(const __m512i z[4], __m128i *low, __m128i *high) {
    __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(z[0], z[1]),
                                 _mm512_unpackhi_epi32(z[0], z[1]));
    __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(z[2], z[3]),
                                 _mm512_unpackhi_epi32(z[2], z[3]));
    __m512i c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    __m256i l = _mm512_castsi512_si256(c), h = _mm512_extracti64x4_epi64(c, 1);
    *low = _mm_add_epi32(_mm256_castsi256_si128(l), _mm256_extracti128_si256(l, 1));
    *high = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

/* ---- one row of activations: K-quants ---- */

/* Scales 0..7 and minima 0..7 of Q4_K and Q5_K as sixteen 16-bit values: twice eight of
 * 6 bits, packed in the last 12 of the block's first 16 bytes. */
INLINE __m256i read_scales(__m128i head) {
    const __m128i shifts = _mm_set_epi32(4, 0, 0, 0);
    const __m128i low = _mm_set_epi32(0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f);
    const __m128i top = _mm_set_epi32(0x30303030, 0, 0x30303030, 0);
    __m128i main = _mm_and_si128(
        _mm_srlv_epi32(_mm_shuffle_epi32(head, _MM_SHUFFLE(3, 2, 3, 1)), shifts), low);
    __m128i more = _mm_and_si128(
        _mm_srli_epi32(_mm_shuffle_epi32(head, _MM_SHUFFLE(2, 2, 1, 1)), 2), top);
    return _mm256_cvtepu8_epi16(_mm_or_si128(main, more));
}

/* The scales of sub-blocks 2 i and 2 i + 1, one in each half. */
INLINE __m512i pick_scales(__m256i scales, int i) {
    const __m512i halves = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(1), 1);
    __m512i index = _mm512_add_epi16(halves, _mm512_set1_epi16((short)(2 * i)));
    return _mm512_permutexvar_epi16(index, _mm512_castsi256_si512(scales));
}

/* Every minimum twice in a row, as the sums of 16 activations are met. */
INLINE __m256i pick_minima(__m256i scales) {
    const __m256i index = _mm256_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8,
                                           8);
    return _mm256_permutexvar_epi16(index, scales);
}

INLINE __m512i add_scaled(__m512i sum, __m512i q, const int8_t *a, __m512i scale) {
    return _mm512_dpwssd_epi32(sum, _mm512_maddubs_epi16(q, load512(a)), scale);
}

/* 64 nibbles in the order of their columns: low ones of 32 bytes, then the high ones. */
INLINE __m512i nibbles(const uint8_t *bytes) {
    const __m512i shifts = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0);
    __m512i b = _mm512_srlv_epi64(both_halves(load256(bytes)), shifts);
    return _mm512_and_si512(b, _mm512_set1_epi8(15));
}

/* Sums of scale * q * q_a in lanes 0..7, of minimum * q_a in lanes 8..15. */
INLINE __m512i single_q4_q5(uint32_t type, const uint8_t *block, const int8_t *a,
                            const uint8_t *sums) {
    __m256i scales = read_scales(load128(block));
    __m512i even = _mm512_setzero_si512(), odd = even, high = even;
    const uint8_t *low = block + 16;
    if (type == FTK_TYPE_Q5_K) {
        high = both_halves(load256(block + 16));
        low += 32;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i q = nibbles(low + 32 * i);
        if (type == FTK_TYPE_Q5_K) {
            const __m512i bits = _mm512_inserti64x4(_mm512_set1_epi8((char)(1 << 2 * i)),
                                                    _mm256_set1_epi8((char)(2 << 2 * i)), 1);
            q = _mm512_mask_add_epi8(q, _mm512_test_epi8_mask(high, bits), q, _mm512_set1_epi8(16));
        }
        if (i & 1)
            odd = add_scaled(odd, q, a + 64 * i, pick_scales(scales, i));
        else
            even = add_scaled(even, q, a + 64 * i, pick_scales(scales, i));
    }
    __m512i all = _mm512_add_epi32(even, odd);
    __m256i whole = _mm256_add_epi32(_mm512_castsi512_si256(all),
                                     _mm512_extracti64x4_epi64(all, 1));
    __m256i offset = _mm256_madd_epi16(pick_minima(scales), load256(sums));
    return _mm512_inserti64x4(_mm512_castsi256_si512(whole), offset, 1);
}

/* Scales 4 i .. 4 i + 3 of Q6_K, eight times each. */
INLINE __m512i pick_four(__m256i scales, int i) {
    const __m512i quarters = _mm512_set_epi16(3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,
                                              1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512i index = _mm512_add_epi16(quarters, _mm512_set1_epi16((short)(4 * i)));
    return _mm512_permutexvar_epi16(index, _mm512_castsi256_si512(scales));
}

/* `low` with bits 4 and 5 taken from `high`. */
INLINE __m512i with_high(__m512i low, __m512i high) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x30), high, low, 0xCA);
}

/* Sums of scale * (q - 32) * q_a in lanes 0..7. */
INLINE __m512i single_q6(const uint8_t *block, const int8_t *a, const uint8_t *sums) {
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i left = _mm512_set_epi64(2, 2, 2, 2, 4, 4, 4, 4);
    const __m512i right = _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0);
    __m256i scales = _mm256_cvtepi8_epi16(load128(block + 192));
    __m512i even = _mm512_setzero_si512(), odd = even;
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m512i q = load512(block + 64 * h);
        __m512i high = both_halves(load256(block + 128 + 32 * h));
        __m512i q0 = with_high(_mm512_and_si512(q, low), _mm512_sllv_epi64(high, left));
        __m512i q1 = with_high(_mm512_and_si512(_mm512_srli_epi16(q, 4), low),
                               _mm512_srlv_epi64(high, right));
        even = add_scaled(even, q0, a + 128 * h, pick_four(scales, 2 * h));
        odd = add_scaled(odd, q1, a + 128 * h + 64, pick_four(scales, 2 * h + 1));
    }
    __m512i all = _mm512_add_epi32(even, odd);
    __m256i whole = _mm256_add_epi32(_mm512_castsi512_si256(all),
                                     _mm512_extracti64x4_epi64(all, 1));
    __m256i offset = _mm256_madd_epi16(scales, load256(sums));
    return _mm512_castsi256_si512(_mm256_sub_epi32(whole, _mm256_slli_epi32(offset, 5)));
}

INLINE __m128 single_blocks(uint32_t type, const uint8_t *const *block, const int8_t *const *a,
                            const uint8_t *const *sums) {
    __m512i z[4];
    __m128i whole, offset;
#pragma GCC unroll 4
    for (uint32_t k = 0; k < 4; k++)
        z[k] = type == FTK_TYPE_Q6_K ? single_q6(block[k], a[k], sums[k])
                                     : single_q4_q5(type, block[k], a[k], sums[k]);
    fold_halves(z, &whole, &offset);
    return join_blocks(type, block, whole, offset);
}

/* ---- sixteen rows, one in each lane ---- */

/* Sixteen bytes of every row: out[k] has their k-th four bytes. */
INLINE void read_quads(const uint8_t *const *rows, size_t at, __m512i out[4]) {
    __m512i z[4];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) {
        z[i] = _mm512_castsi128_si512(load128(rows[i] + at));
        z[i] = _mm512_inserti32x4(z[i], load128(rows[4 + i] + at), 1);
        z[i] = _mm512_inserti32x4(z[i], load128(rows[8 + i] + at), 2);
        z[i] = _mm512_inserti32x4(z[i], load128(rows[12 + i] + at), 3);
    }
    __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
    __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), d = _mm512_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

/* The half in bits 0..15, or in bits 16..31, of every lane as a float. */
INLINE __m512 low_half(__m512i v) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
}

INLINE __m512 high_half(__m512i v) {
    return low_half(_mm512_srli_epi32(v, 16));
}

/* A K-quant group of sixteen rows: value = d * scale * (q - bias) - dmin * min. */
typedef struct k_panel {
    __m512i q[64];     /* of four columns */
    __m512i scale[16]; /* of 32 columns (Q4_K, Q5_K) or 16 (Q6_K) */
    __m512i min[4];    /* of 32 columns, two neighbours as a pair of 16 bits */
    __m512 d;
    __m512 dmin;
} k_panel;

INLINE __m512i byte_of(__m512i v, int j) {
    return _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)(8 * j)), _mm512_set1_epi32(255));
}

/* Bytes j and j + 1 of every lane as 16-bit values. */
INLINE __m512i byte_pair(__m512i v, int j) {
    return _mm512_or_si512(byte_of(v, j), _mm512_slli_epi32(byte_of(v, j + 1), 16));
}

INLINE void unpack_scales(const uint8_t *const *rows, size_t at, k_panel *p) {
    const __m512i low6 = _mm512_set1_epi32(0x3f3f3f3f), low4 = _mm512_set1_epi32(0x0f0f0f0f);
    const __m512i top2 = _mm512_set1_epi32(0x30303030);
    __m512i head[4];
    read_quads(rows, at, head);
    p->d = low_half(head[0]);
    p->dmin = high_half(head[0]);
    __m512i sc0 = _mm512_and_si512(head[1], low6), mn0 = _mm512_and_si512(head[2], low6);
    __m512i sc1 = _mm512_or_si512(_mm512_and_si512(head[3], low4),
                                  _mm512_and_si512(_mm512_srli_epi32(head[1], 2), top2));
    __m512i mn1 = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(head[3], 4), low4),
                                  _mm512_and_si512(_mm512_srli_epi32(head[2], 2), top2));
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        p->scale[j] = byte_of(sc0, j);
        p->scale[4 + j] = byte_of(sc1, j);
    }
    p->min[0] = byte_pair(mn0, 0);
    p->min[1] = byte_pair(mn0, 2);
    p->min[2] = byte_pair(mn1, 0);
    p->min[3] = byte_pair(mn1, 2);
}

INLINE __m512i low_nibbles(__m512i v) {
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

INLINE __m512i high_nibbles(__m512i v) {
    return low_nibbles(_mm512_srli_epi32(v, 4));
}

static void unpack_q4_k(const uint8_t *const *rows, size_t at, k_panel *p) {
    unpack_scales(rows, at, p);
    for (uint32_t i = 0; i < 8; i++) { /* 16 bytes: 16 low nibbles, 32 columns on 16 high ones */
        __m512i v[4];
        __m512i *q = p->q + i / 2 * 16 + i % 2 * 4;
        read_quads(rows, at + 16 + 16 * (size_t)i, v);
        for (uint32_t k = 0; k < 4; k++) {
            q[k] = low_nibbles(v[k]);
            q[8 + k] = high_nibbles(v[k]);
        }
    }
}

/* 16 in each byte whose bit `bit` is set. */
INLINE __m512i fifth_bit(__m512i high, uint32_t bit) {
    __m512i at_zero = _mm512_and_si512(_mm512_srli_epi32(high, bit), _mm512_set1_epi8(1));
    return _mm512_slli_epi32(at_zero, 4);
}

static void unpack_q5_k(const uint8_t *const *rows, size_t at, k_panel *p) {
    __m512i high[8];
    unpack_scales(rows, at, p);
    read_quads(rows, at + 16, high);
    read_quads(rows, at + 32, high + 4);
    for (uint32_t i = 0; i < 8; i++) {
        __m512i v[4];
        const __m512i *h = high + i % 2 * 4;
        __m512i *q = p->q + i / 2 * 16 + i % 2 * 4;
        read_quads(rows, at + 48 + 16 * (size_t)i, v);
        for (uint32_t k = 0; k < 4; k++) {
            q[k] = _mm512_or_si512(low_nibbles(v[k]), fifth_bit(h[k], i / 2 * 2));
            q[8 + k] = _mm512_or_si512(high_nibbles(v[k]), fifth_bit(h[k], i / 2 * 2 + 1));
        }
    }
}

/* 64 bytes of low bits and 32 of high ones are 128 columns. */
static void unpack_half_q6_k(const uint8_t *const *rows, size_t low, size_t high, __m512i *q) {
    for (uint32_t i = 0; i < 2; i++) {
        __m512i x[4], y[4], h[4];
        read_quads(rows, low + 16 * (size_t)i, x);
        read_quads(rows, low + 32 + 16 * (size_t)i, y);
        read_quads(rows, high + 16 * (size_t)i, h);
        for (uint32_t k = 0; k < 4; k++) {
            __m512i *to = q + 4 * i + k;
            to[0] = with_high(low_nibbles(x[k]), _mm512_slli_epi32(h[k], 4));
            to[8] = with_high(low_nibbles(y[k]), _mm512_slli_epi32(h[k], 2));
            to[16] = with_high(high_nibbles(x[k]), h[k]);
            to[24] = with_high(high_nibbles(y[k]), _mm512_srli_epi32(h[k], 2));
        }
    }
}

static void unpack_q6_k(const uint8_t *const *rows, size_t at, k_panel *p) {
    __m512i v[4];
    unpack_half_q6_k(rows, at, at + 128, p->q);
    unpack_half_q6_k(rows, at + 64, at + 160, p->q + 32);
    read_quads(rows, at + 192, v);
    for (uint32_t k = 0; k < 4; k++) {
        p->scale[4 * k] = _mm512_srai_epi32(_mm512_slli_epi32(v[k], 24), 24);
        p->scale[4 * k + 1] = _mm512_srai_epi32(_mm512_slli_epi32(v[k], 16), 24);
        p->scale[4 * k + 2] = _mm512_srai_epi32(_mm512_slli_epi32(v[k], 8), 24);
        p->scale[4 * k + 3] = _mm512_srai_epi32(v[k], 24);
    }
    read_quads(rows, at + 194, v); /* ends where the block ends */
    p->d = high_half(v[3]);
    p->dmin = _mm512_setzero_ps();
}

/* A panel is two halves of sixteen rows: every four bytes of activations that are spread over
 * the lanes meet both, and there are eight sums that do not wait for each other. */
#define HALF   16u
#define HALVES (PANEL_ROWS / HALF)

/* Rows of activations that share one reading of an unpacked panel. */
#define SHARED_ROWS 4u

/* How many of `left` rows come next: five are three and two, since one alone has too few sums. */
INLINE uint32_t next_rows(uint32_t left) {
    return left == SHARED_ROWS + 1 ? SHARED_ROWS - 1 : left < SHARED_ROWS ? left : SHARED_ROWS;
}

/* Rows of activations in A256 as one group sees them. */
typedef struct k_inputs {
    /* Q4_K, Q5_K: sums of 32 q_a, 16 bits each; Q6_K: -32 times those of 16, 32 bits each. */
    _Alignas(64) int32_t sums[SHARED_ROWS][16];
    const int8_t *a[SHARED_ROWS];
    float d[SHARED_ROWS];
} k_inputs;

INLINE void read_k_inputs(uint32_t type, const uint8_t *row, size_t sums_at, size_t d_at,
                          uint32_t n, k_inputs *in) {
    __m256i sums = load256(row + sums_at);
    memcpy(&in->d[n], row + d_at, sizeof in->d[n]);
    if (type == FTK_TYPE_Q6_K) {
        __m512i times = _mm512_slli_epi32(_mm512_cvtepi16_epi32(sums), 5);
        _mm512_store_si512(in->sums[n], _mm512_sub_epi32(_mm512_setzero_si512(), times));
    } else {
        __m256i pairs = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
        _mm_store_si128((__m128i *)(void *)in->sums[n], _mm256_cvtepi32_epi16(pairs));
    }
}

typedef __m512i quad_sums[HALVES][SHARED_ROWS];

/* In a register from here on: compilers would read it again for every use. */
INLINE __m512i held(__m512i v) {
    __asm__("" : "+v"(v));
    return v;
}

/* Adds the products of `quads` times four columns. q[h] are those of half h, `stride` apart. */
INLINE void add_quads(const __m512i *q, size_t stride, uint32_t halves, const int8_t *const *a,
                      uint32_t first, uint32_t quads, uint32_t count, quad_sums sum) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < quads; i++) {
        __m512i w[HALVES];
#pragma GCC unroll 2
        for (uint32_t h = 0; h < halves; h++) w[h] = held(q[h * stride + first + i]);
#pragma GCC unroll 4
        for (uint32_t n = 0; n < count; n++) {
            __m512i four = every(a[n] + 4 * (size_t)(first + i));
#pragma GCC unroll 2
            for (uint32_t h = 0; h < halves; h++)
                sum[h][n] = _mm512_dpbusd_epi32(sum[h][n], w[h], four);
        }
    }
}

/* Sums of minimum * q_a. */
INLINE void sum_minima(const k_panel *p, uint32_t halves, const k_inputs *in, uint32_t count,
                       quad_sums offset) {
#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; j++) {
#pragma GCC unroll 4
        for (uint32_t n = 0; n < count; n++) {
            __m512i two = every(in->sums[n] + j);
#pragma GCC unroll 2
            for (uint32_t h = 0; h < halves; h++)
                offset[h][n] = _mm512_dpwssd_epi32(offset[h][n], p[h].min[j], two);
        }
    }
}

INLINE void clear_sums(quad_sums sum) {
#pragma GCC unroll 2
    for (uint32_t h = 0; h < HALVES; h++)
#pragma GCC unroll 4
        for (uint32_t n = 0; n < SHARED_ROWS; n++) sum[h][n] = _mm512_setzero_si512();
}

/* `type`, `halves` and `count` are constants where this is called. */
INLINE void k_terms(uint32_t type, const k_panel *p, uint32_t halves, const k_inputs *in,
                    uint32_t count, float (*acc)[PANEL_ROWS]) {
    const uint32_t parts = type == FTK_TYPE_Q6_K ? 16 : 8, quads = 64 / parts;
    quad_sums whole, offset;
    clear_sums(whole);
    for (uint32_t j = 0; j < parts; j++) {
        quad_sums sum;
        clear_sums(sum);
#pragma GCC unroll 4
        for (uint32_t n = 0; n < count && type == FTK_TYPE_Q6_K; n++)
            sum[0][n] = sum[HALVES - 1][n] = every(in->sums[n] + j);
        add_quads(p->q, sizeof *p / sizeof *p->q, halves, in->a, j * quads, quads, count, sum);
#pragma GCC unroll 2
        for (uint32_t h = 0; h < halves; h++)
#pragma GCC unroll 4
            for (uint32_t n = 0; n < count; n++)
                whole[h][n] = _mm512_add_epi32(whole[h][n],
                                               _mm512_mullo_epi32(sum[h][n], p[h].scale[j]));
    }
    clear_sums(offset);
    if (type != FTK_TYPE_Q6_K) sum_minima(p, halves, in, count, offset);
#pragma GCC unroll 4
    for (uint32_t n = 0; n < count; n++) {
#pragma GCC unroll 2
        for (uint32_t h = 0; h < halves; h++) {
            float *to = acc[n] + HALF * h;
            __m512 x = _mm512_cvtepi32_ps(whole[h][n]), scale = _mm512_set1_ps(in->d[n]);
            __m512 y = _mm512_mul_ps(p[h].dmin, _mm512_cvtepi32_ps(offset[h][n]));
            x = type == FTK_TYPE_Q6_K ? _mm512_mul_ps(p[h].d, x) : _mm512_fmsub_ps(p[h].d, x, y);
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_mul_ps(scale, x)));
        }
    }
}

INLINE void k_terms_of(uint32_t type, const k_panel *p, uint32_t halves, const k_inputs *in,
                       uint32_t count, float (*acc)[PANEL_ROWS]) {
    switch (count) {
    case 1: k_terms(type, p, halves, in, 1, acc); break;
    case 2: k_terms(type, p, halves, in, 2, acc); break;
    case 3: k_terms(type, p, halves, in, 3, acc); break;
    default: k_terms(type, p, halves, in, SHARED_ROWS, acc);
    }
}

/* Group u of a panel for every row of a tile. */
INLINE void tile_group_k(uint32_t type, const fti_cpu_matrix *m, const k_panel *p, uint32_t halves,
                         uint32_t u, const tile *t, panel_sums acc) {
    size_t d_at = m->cols + 4 * (size_t)u;
    size_t sums_at = m->cols + (size_t)(m->cols / 256) * 4 + 32 * (size_t)u;
    uint32_t count;
    for (uint32_t n = 0; n < t->count; n += count) {
        k_inputs in;
        count = next_rows(t->count - n);
        for (uint32_t i = 0; i < count; i++) {
            in.a[i] = (const int8_t *)t->in[n + i] + 256 * (size_t)u;
            read_k_inputs(type, t->in[n + i], sums_at, d_at, i, &in);
        }
        if (halves == 1)
            k_terms_of(type, p, 1, &in, count, acc + n);
        else
            k_terms_of(type, p, HALVES, &in, count, acc + n);
    }
}

INLINE void tile_k(uint32_t type, const fti_cpu_matrix *m, const uint8_t *const *rows,
                   uint32_t row_count, const tile *t, panel_sums acc) {
    k_panel p[HALVES];
    uint32_t halves = row_count > HALF ? HALVES : 1;
    for (uint32_t u = 0; u < m->cols / 256; u++) {
        size_t at = (size_t)u * k_bytes(type);
        fetch_next(m, t, u, m->cols / 256);
        for (uint32_t h = 0; h < halves; h++) {
            if (type == FTK_TYPE_Q4_K)
                unpack_q4_k(rows + HALF * h, at, &p[h]);
            else if (type == FTK_TYPE_Q5_K)
                unpack_q5_k(rows + HALF * h, at, &p[h]);
            else
                unpack_q6_k(rows + HALF * h, at, &p[h]);
        }
        tile_group_k(type, m, p, halves, u, t, acc);
    }
}

/* ---- Q8_0 ----
 * A weight w is taken as the unsigned w + 128; 128 times the sum of the leaf's
 * activations comes off again. */

/* The activations of a group with fewer than eight leaves, filled up with zeros. */
typedef struct q8_tail {
    _Alignas(64) int8_t a[256];
    _Alignas(32) float d[8];
} q8_tail;

INLINE void sum_leaves(const int8_t *a, int32_t *start) {
    const __m512i times = _mm512_set1_epi8(-128); /* as unsigned bytes: 128 */
    __m512i z[4];
    __m128i even, odd;
#pragma GCC unroll 4
    for (uint32_t k = 0; k < 4; k++)
        z[k] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), times, load512(a + 64 * (size_t)k));
    fold_halves(z, &even, &odd);
    _mm_store_si128((__m128i *)(void *)start, _mm_sub_epi32(_mm_setzero_si128(), even));
    _mm_store_si128((__m128i *)(void *)(start + 4), _mm_sub_epi32(_mm_setzero_si128(), odd));
}

INLINE void read_q8_inputs(const fti_cpu_matrix *m, const uint8_t *row, uint32_t first,
                           q8_inputs *out) {
    out->a = (const int8_t *)row + first;
    out->d = (const float *)(const void *)(row + m->cols + first / 32 * 4);
    sum_leaves(out->a, out->start);
}

static void read_q8_tail(const fti_cpu_matrix *m, const uint8_t *row, uint32_t first,
                         uint32_t blocks, q8_tail *tail, q8_inputs *out) {
    memset(tail, 0, sizeof *tail);
    memcpy(tail->a, row + first, 32 * (size_t)blocks);
    memcpy(tail->d, row + m->cols + first / 32 * 4, blocks * sizeof *tail->d);
    out->a = tail->a;
    out->d = tail->d;
    sum_leaves(out->a, out->start);
}

INLINE __m128 single_leaves(const uint8_t *block, const q8_inputs *in) {
    const __m512i flip = _mm512_set1_epi8(-128);
    __m512i z[4];
    __m128i even, odd;
#pragma GCC unroll 4
    for (uint32_t k = 0; k < 4; k++) {
        const uint8_t *w = block + 2 * (size_t)FTK_Q8_0_BYTES * k;
        __m512i q = _mm512_inserti64x4(_mm512_castsi256_si512(load256(w + 2)),
                                       load256(w + 2 + FTK_Q8_0_BYTES), 1);
        z[k] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_xor_si512(q, flip),
                                   load512(in->a + 64 * (size_t)k));
    }
    fold_halves(z, &even, &odd);
    even = _mm_add_epi32(even, load128(in->start));
    odd = _mm_add_epi32(odd, load128(in->start + 4));
    __m256 d = _mm256_loadu_ps(in->d);
    __m128 low = _mm256_castps256_ps128(d), high = _mm256_extractf128_ps(d, 1);
    __m128 d_even = _mm_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0));
    __m128 d_odd = _mm_shuffle_ps(low, high, _MM_SHUFFLE(3, 1, 3, 1));
    __m128 e = _mm_mul_ps(read_halves(block, 2 * FTK_Q8_0_BYTES), d_even);
    __m128 o = _mm_mul_ps(read_halves(block + FTK_Q8_0_BYTES, 2 * FTK_Q8_0_BYTES), d_odd);
    return _mm_fmadd_ps(o, _mm_cvtepi32_ps(odd), _mm_mul_ps(e, _mm_cvtepi32_ps(even)));
}

/* Sixteen rows of a group, one in each lane; absent leaves have d = +0. */
typedef struct q8_panel {
    __m512i q[64]; /* w + 128 of four columns */
    __m512 d[8];
} q8_panel;

static void unpack_q8_0(const uint8_t *const *rows, uint32_t first, uint32_t blocks, q8_panel *p) {
    const __m512i flip = _mm512_set1_epi8(-128);
    for (uint32_t j = 0; j < 8; j++) {
        size_t at = (size_t)(first / 32 + j) * FTK_Q8_0_BYTES;
        _Alignas(32) uint16_t d[HALF] = {0};
        __m512i v[8];
        if (j < blocks) {
            for (uint32_t r = 0; r < HALF; r++) memcpy(&d[r], rows[r] + at, sizeof d[r]);
            read_quads(rows, at + 2, v);
            read_quads(rows, at + 18, v + 4);
        } else {
            for (uint32_t k = 0; k < 8; k++) v[k] = _mm512_setzero_si512();
        }
        p->d[j] = _mm512_cvtph_ps(load256(d));
        for (uint32_t k = 0; k < 8; k++) p->q[8 * j + k] = _mm512_xor_si512(v[k], flip);
    }
}

/* Two leaves, the first of them even, of every row: pair[h][n] = what they say together. */
INLINE void q8_pair(const q8_panel *p, uint32_t halves, const q8_inputs *in, const int8_t *const *a,
                    uint32_t count, uint32_t j, __m512 (*pair)[SHARED_ROWS]) {
#pragma GCC unroll 2
    for (uint32_t odd = 0; odd < 2; odd++) {
        quad_sums sum;
        clear_sums(sum);
#pragma GCC unroll 4
        for (uint32_t n = 0; n < count; n++)
            sum[0][n] = sum[HALVES - 1][n] = every(&in[n].start[odd * 4 + j / 2]);
        add_quads(p->q, sizeof *p / sizeof *p->q, halves, a, 8 * (j + odd), 8, count, sum);
#pragma GCC unroll 4
        for (uint32_t n = 0; n < count; n++) {
            __m512 d_a = _mm512_set1_ps(in[n].d[j + odd]);
#pragma GCC unroll 2
            for (uint32_t h = 0; h < halves; h++) {
                __m512 f = _mm512_cvtepi32_ps(sum[h][n]), e = _mm512_mul_ps(p[h].d[j + odd], d_a);
                pair[h][n] = odd ? _mm512_fmadd_ps(e, f, pair[h][n]) : _mm512_mul_ps(e, f);
            }
        }
    }
}

/* `halves` and `count` are constants where this is called. */
INLINE void q8_terms(const q8_panel *p, uint32_t halves, const q8_inputs *in, uint32_t count,
                     float (*acc)[PANEL_ROWS]) {
    __m512 total[HALVES][SHARED_ROWS], pair[HALVES][SHARED_ROWS];
    const int8_t *a[SHARED_ROWS];
    for (uint32_t n = 0; n < count; n++) a[n] = in[n].a;
    q8_pair(p, halves, in, a, count, 0, total);
    for (uint32_t j = 2; j < 8; j += 2) {
        q8_pair(p, halves, in, a, count, j, pair);
#pragma GCC unroll 2
        for (uint32_t h = 0; h < halves; h++)
#pragma GCC unroll 4
            for (uint32_t n = 0; n < count; n++)
                total[h][n] = _mm512_add_ps(total[h][n], pair[h][n]);
    }
#pragma GCC unroll 4
    for (uint32_t n = 0; n < count; n++) {
#pragma GCC unroll 2
        for (uint32_t h = 0; h < halves; h++) {
            float *to = acc[n] + HALF * h;
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), total[h][n]));
        }
    }
}

INLINE void q8_terms_of(const q8_panel *p, uint32_t halves, const q8_inputs *in, uint32_t count,
                        float (*acc)[PANEL_ROWS]) {
    switch (count) {
    case 1: q8_terms(p, halves, in, 1, acc); break;
    case 2: q8_terms(p, halves, in, 2, acc); break;
    case 3: q8_terms(p, halves, in, 3, acc); break;
    default: q8_terms(p, halves, in, SHARED_ROWS, acc);
    }
}

/* A group of `blocks` leaves for every row of a tile. */
static void tile_group_q8_0(const fti_cpu_matrix *m, const uint8_t *const *rows, uint32_t row_count,
                            uint32_t first, uint32_t blocks, const tile *t, panel_sums acc) {
    q8_panel p[HALVES];
    q8_tail tail[SHARED_ROWS];
    q8_inputs in[SHARED_ROWS];
    uint32_t halves = row_count > HALF ? HALVES : 1, count;
    for (uint32_t h = 0; h < halves; h++) unpack_q8_0(rows + HALF * h, first, blocks, &p[h]);
    for (uint32_t n = 0; n < t->count; n += count) {
        count = next_rows(t->count - n);
        for (uint32_t i = 0; i < count; i++) {
            if (blocks == 8)
                read_q8_inputs(m, t->in[n + i], first, &in[i]);
            else
                read_q8_tail(m, t->in[n + i], first, blocks, &tail[i], &in[i]);
        }
        if (halves == 1)
            q8_terms_of(p, 1, in, count, acc + n);
        else
            q8_terms_of(p, HALVES, in, count, acc + n);
    }
}

#endif
