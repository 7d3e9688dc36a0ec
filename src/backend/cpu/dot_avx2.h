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

#include "backend/cpu/dot_x86.h"

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

/* Scales and minima of Q4_K and Q5_K, eight of 6 bits each in 12 bytes: the scales as
 * 16-bit values in both halves of *scales, every minimum twice in a row in *minima, as the
 * sums of 16 activations are met. */
static inline void read_scales(const uint8_t *block, __m256i *scales, __m256i *minima) {
    uint32_t s[3];
    memcpy(s, block + 4, sizeof s);
    const uint32_t low6 = 0x3f3f3f3fu, low4 = 0x0f0f0f0fu, low2 = 0x03030303u;
    uint64_t sc = (s[0] & low6) | (uint64_t)((s[2] & low4) | (s[0] >> 6 & low2) << 4) << 32;
    uint64_t mn = (s[1] & low6) | (uint64_t)((s[2] >> 4 & low4) | (s[1] >> 6 & low2) << 4) << 32;
    __m128i sc16 = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)sc));
    __m128i mn16 = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)mn));
    *scales = _mm256_broadcastsi128_si256(sc16);
    *minima = _mm256_set_m128i(_mm_unpackhi_epi16(mn16, mn16), _mm_unpacklo_epi16(mn16, mn16));
}

/* The j-th of eight 16-bit values that stand in both halves, in every place. */
static inline __m256i spread(__m256i both, int j) {
    return _mm256_shuffle_epi8(both, _mm256_set1_epi16((short)(0x0100 + 0x0202 * j)));
}

static inline float half_at(const uint8_t *p) {
    return _cvtsh_ss(ftk_load_u16(p));
}

static void unpack_scales(const uint8_t *block, k_panel *p, uint32_t r) {
    __m256i scales, minima;
    read_scales(block, &scales, &minima);
    for (int j = 0; j < 8; j++) store(p->scale[r][j], spread(scales, j));
    store(p->sums[r], minima);
    p->d[r] = half_at(block);
    p->dmin[r] = half_at(block + 2);
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

/* The j-th of four pairs of 16-bit values that stand in both halves: its first value
 * throughout the lower half, its second throughout the upper one. */
static inline __m256i spread_pair(__m256i both, int j) {
    const __m256i pair = _mm256_set_m128i(_mm_set1_epi16(0x0302), _mm_set1_epi16(0x0100));
    return _mm256_shuffle_epi8(both, _mm256_add_epi8(pair, _mm256_set1_epi8((char)(4 * j))));
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
    for (int j = 0; j < 8; j++) store(p->scale[r][j], spread_pair(j < 4 ? lo : hi, j & 3));
    p->d[r] = half_at(block + 208);
    p->dmin[r] = 0.0f;
}

/* ---- K-quants ---- */

/* What four rows have to say to one row of activations, before the lanes are added:
 * sums of scale * q * q_a, and of minimum (or, in Q6_K, scale) * q_a. */
typedef struct k_sums {
    __m256i whole[PANEL_ROWS];
    __m256i offset[PANEL_ROWS];
} k_sums;

/* Terms of the four rows. */
static inline __m128 k_join(const k_sums *x, uint32_t type, const float *d4, const float *dmin4,
                            float d_a) {
    __m128i whole = fold4(x->whole[0], x->whole[1], x->whole[2], x->whole[3]);
    __m128i offset = fold4(x->offset[0], x->offset[1], x->offset[2], x->offset[3]);
    if (type == FTK_TYPE_Q6_K) whole = _mm_sub_epi32(whole, _mm_slli_epi32(offset, 5));
    __m128 term = join(type, _mm_loadu_ps(d4), _mm_loadu_ps(dmin4), whole, offset);
    return _mm_mul_ps(_mm_set1_ps(d_a), term);
}

static inline __m256i scaled(__m256i q, const int8_t *a, __m256i scale) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(q, load(a)), scale);
}

/* Rows of activations that share one reading of an unpacked panel. */
#define SHARED_ROWS 4u

/* Sums of row r of a panel for SHARED_ROWS rows of activations: q and scale are loaded once
 * for all of them, since loads are what bounds this loop. */
static inline void shared_whole(const k_panel *p, uint32_t r, const int8_t *const *a, k_sums *x) {
    __m256i s0 = _mm256_setzero_si256(), s1 = s0, s2 = s0, s3 = s0;
    for (uint32_t j = 0; j < 8; j++) {
        __m256i q = load(p->q[r] + 32 * j), scale = load(p->scale[r][j]);
        s0 = _mm256_add_epi32(s0, scaled(q, a[0] + 32 * j, scale));
        s1 = _mm256_add_epi32(s1, scaled(q, a[1] + 32 * j, scale));
        s2 = _mm256_add_epi32(s2, scaled(q, a[2] + 32 * j, scale));
        s3 = _mm256_add_epi32(s3, scaled(q, a[3] + 32 * j, scale));
    }
    x[0].whole[r] = s0;
    x[1].whole[r] = s1;
    x[2].whole[r] = s2;
    x[3].whole[r] = s3;
}

/* Adds the terms of an unpacked panel of group u for SHARED_ROWS rows of activations;
 * `in` may name a row more than once, but only the first `count` are added. */
INLINE void add_shared(uint32_t type, const k_panel *p, const fti_cpu_matrix *m, uint32_t u,
                       const uint8_t *const *in, uint32_t count, float (*acc)[PANEL_ROWS]) {
    size_t scales = m->cols, sums_at = scales + (size_t)(m->cols / 256) * 4;
    const int8_t *a[SHARED_ROWS];
    k_sums x[SHARED_ROWS];
    for (uint32_t n = 0; n < SHARED_ROWS; n++) a[n] = (const int8_t *)in[n] + 256 * (size_t)u;
    for (uint32_t r = 0; r < PANEL_ROWS; r++) shared_whole(p, r, a, x);
    for (uint32_t n = 0; n < count; n++) {
        float d_a;
        __m256i sums = load(in[n] + sums_at + 32 * (size_t)u);
        memcpy(&d_a, in[n] + scales + 4 * (size_t)u, sizeof d_a);
        for (uint32_t r = 0; r < PANEL_ROWS; r++)
            x[n].offset[r] = _mm256_madd_epi16(load(p->sums[r]), sums);
        __m128 term = k_join(&x[n], type, p->d, p->dmin, d_a);
        _mm_storeu_ps(acc[n], _mm_add_ps(_mm_loadu_ps(acc[n]), term));
    }
}

/* ---- K-quants met by a single row of activations: nothing is unpacked to memory ---- */

static inline __m256i whole_q4_k(const uint8_t *block, const int8_t *a, __m256i scales) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i even = _mm256_setzero_si256(), odd = even;
    for (int i = 0; i < 4; i++) {
        __m256i b = load(block + 16 + 32 * i);
        __m256i q0 = _mm256_and_si256(b, low), q1 = _mm256_and_si256(_mm256_srli_epi16(b, 4), low);
        even = _mm256_add_epi32(even, scaled(q0, a + 64 * i, spread(scales, 2 * i)));
        odd = _mm256_add_epi32(odd, scaled(q1, a + 64 * i + 32, spread(scales, 2 * i + 1)));
    }
    return _mm256_add_epi32(even, odd);
}

static inline __m256i whole_q5_k(const uint8_t *block, const int8_t *a, __m256i scales) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i high = load(block + 16), even = _mm256_setzero_si256(), odd = even;
    for (int i = 0; i < 4; i++) {
        __m256i b = load(block + 48 + 32 * i);
        __m256i q0 = _mm256_or_si256(_mm256_and_si256(b, low), fifth_bit(high, 2 * i));
        __m256i q1 = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), low),
                                     fifth_bit(high, 2 * i + 1));
        even = _mm256_add_epi32(even, scaled(q0, a + 64 * i, spread(scales, 2 * i)));
        odd = _mm256_add_epi32(odd, scaled(q1, a + 64 * i + 32, spread(scales, 2 * i + 1)));
    }
    return _mm256_add_epi32(even, odd);
}

/* Half h (128 columns) of a Q6_K block; `scales` has the half's eight in both halves. */
static inline __m256i half_q6_k(const uint8_t *block, uint32_t h, const int8_t *a, __m256i scales) {
    const __m256i low = _mm256_set1_epi8(15), two = _mm256_set1_epi8(0x30);
    __m256i x = load(block + 64 * h), y = load(block + 64 * h + 32);
    __m256i high = load(block + 128 + 32 * h);
    __m256i h0 = _mm256_and_si256(_mm256_slli_epi16(high, 4), two);
    __m256i h1 = _mm256_and_si256(_mm256_slli_epi16(high, 2), two);
    __m256i h2 = _mm256_and_si256(high, two);
    __m256i h3 = _mm256_and_si256(_mm256_srli_epi16(high, 2), two);
    __m256i q0 = _mm256_or_si256(_mm256_and_si256(x, low), h0);
    __m256i q1 = _mm256_or_si256(_mm256_and_si256(y, low), h1);
    __m256i q2 = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(x, 4), low), h2);
    __m256i q3 = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(y, 4), low), h3);
    __m256i left = _mm256_add_epi32(scaled(q0, a, spread_pair(scales, 0)),
                                    scaled(q1, a + 32, spread_pair(scales, 1)));
    __m256i right = _mm256_add_epi32(scaled(q2, a + 64, spread_pair(scales, 2)),
                                     scaled(q3, a + 96, spread_pair(scales, 3)));
    return _mm256_add_epi32(left, right);
}

INLINE void single_block(uint32_t type, const uint8_t *block, const int8_t *a, __m256i sums,
                         __m256i *whole, __m256i *offset) {
    if (type == FTK_TYPE_Q6_K) {
        __m256i s = _mm256_cvtepi8_epi16(
            _mm_loadu_si128((const __m128i *)(const void *)(block + 192)));
        *whole = _mm256_add_epi32(half_q6_k(block, 0, a, _mm256_permute4x64_epi64(s, 0x44)),
                                  half_q6_k(block, 1, a + 128, _mm256_permute4x64_epi64(s, 0xEE)));
        *offset = _mm256_madd_epi16(s, sums);
        return;
    }
    __m256i scales, minima;
    read_scales(block, &scales, &minima);
    *whole = type == FTK_TYPE_Q4_K ? whole_q4_k(block, a, scales) : whole_q5_k(block, a, scales);
    *offset = _mm256_madd_epi16(minima, sums);
}

INLINE __m128 single_blocks(uint32_t type, const uint8_t *const *block, const int8_t *const *a,
                            const uint8_t *const *sums) {
    __m256i whole[4], offset[4];
#pragma GCC unroll 4
    for (uint32_t k = 0; k < 4; k++)
        single_block(type, block[k], a[k], load(sums[k]), &whole[k], &offset[k]);
    __m128i all = fold4(whole[0], whole[1], whole[2], whole[3]);
    __m128i off = fold4(offset[0], offset[1], offset[2], offset[3]);
    if (type == FTK_TYPE_Q6_K) all = _mm_sub_epi32(all, _mm_slli_epi32(off, 5));
    return join_blocks(type, block, all, off);
}

/* ---- K-quants, any number of rows of activations ---- */

static void unpack_k(uint32_t type, const uint8_t *block, k_panel *p, uint32_t r) {
    if (type == FTK_TYPE_Q4_K)
        unpack_q4_k(block, p, r);
    else if (type == FTK_TYPE_Q5_K)
        unpack_q5_k(block, p, r);
    else
        unpack_q6_k(block, p, r);
}

INLINE void tile_k(uint32_t type, const fti_cpu_matrix *m, const uint8_t *const *rows,
                   uint32_t row_count, const tile *t, panel_sums acc) {
    (void)row_count;
    k_panel p;
    for (uint32_t u = 0; u < m->cols / 256; u++) {
        for (uint32_t r = 0; r < PANEL_ROWS; r++)
            unpack_k(type, rows[r] + (size_t)u * k_bytes(type), &p, r);
        for (uint32_t n = 0; n < t->count; n += SHARED_ROWS) {
            const uint8_t *in[SHARED_ROWS];
            uint32_t count = t->count - n < SHARED_ROWS ? t->count - n : SHARED_ROWS;
            for (uint32_t i = 0; i < SHARED_ROWS; i++) in[i] = t->in[n + (i < count ? i : 0)];
            add_shared(type, &p, m, u, in, count, acc + n);
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

/* The four pairs p_0 .. p_3 of one row from its exact leaves and its scales. */
static inline __m128 q8_join(__m128i low, __m128i high, __m256 d_w, __m256 d_a) {
    __m256 i = _mm256_cvtepi32_ps(_mm256_set_m128i(high, low));
    __m256 e = _mm256_mul_ps(d_w, d_a);
    __m256 even = _mm256_moveldup_ps(_mm256_mul_ps(e, i));
    __m256 joined = _mm256_fmadd_ps(e, i, even); /* odd lanes: fma(e', i', e * i) */
    return _mm_shuffle_ps(_mm256_castps256_ps128(joined), _mm256_extractf128_ps(joined, 1),
                          _MM_SHUFFLE(3, 1, 3, 1));
}

/* Pairs of one row whose leaves lie `stride` bytes apart. `a` and `d_a` have eight leaves. */
INLINE __m128 q8_pairs(const int8_t *w, uint32_t stride, __m256 d_w, const int8_t *a, __m256 d_a) {
    __m128i low = fold4(leaf(w, a), leaf(w + stride, a + 32), leaf(w + 2 * stride, a + 64),
                        leaf(w + 3 * stride, a + 96));
    w += 4 * stride;
    __m128i high = fold4(leaf(w, a + 128), leaf(w + stride, a + 160), leaf(w + 2 * stride, a + 192),
                         leaf(w + 3 * stride, a + 224));
    return q8_join(low, high, d_w, d_a);
}

INLINE void read_q8_inputs(const fti_cpu_matrix *m, const uint8_t *row, uint32_t first,
                           q8_inputs *out) {
    out->a = (const int8_t *)row + first;
    out->d = (const float *)(const void *)(row + m->cols + first / 32 * 4);
}

INLINE __m128 single_leaves(const uint8_t *block, const q8_inputs *in) {
    const uint32_t b = FTK_Q8_0_BYTES;
    __m256 d = _mm256_set_m128(read_halves(block + 4 * (size_t)b, b), read_halves(block, b));
    return q8_pairs((const int8_t *)block + 2, b, d, in->a, _mm256_loadu_ps(in->d));
}

static inline __m128 q8_terms(const q8_panel *p, const int8_t *a, __m256 d_a) {
    __m128 x[PANEL_ROWS];
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        x[r] = q8_pairs(p->w[r], 32, _mm256_load_ps(p->d[r]), a, d_a);
    return sum_pairs(x[0], x[1], x[2], x[3]);
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

/* A group of `blocks` leaves for every row of a tile. */
static void tile_group_q8_0(const fti_cpu_matrix *m, const uint8_t *const *rows, uint32_t row_count,
                            uint32_t first, uint32_t blocks, const tile *t, panel_sums acc) {
    (void)row_count;
    q8_panel p;
    q8_tail tail;
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *data = rows[r] + (size_t)(first / 32) * FTK_Q8_0_BYTES;
        unpack_q8_0(data, blocks, &p, r);
    }
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

#endif
