/*
 * dot_x86.h: what the dot products of x86-64 share, whatever the instruction set: how a
 * panel is gone through. For a single row of activations it is read from its first byte to
 * its last, block after block. That is the order that the processor foresees, so nothing is
 * prefetched by hand, and nothing is unpacked to memory. Included by the headers of the
 * instruction sets, which define what is declared below.
 */
#ifndef FTI_CPU_DOT_X86_H
#define FTI_CPU_DOT_X86_H

#include <immintrin.h>

#include "backend/cpu/kernels.h"
#include "freetoken/device/dot.h"

#define PIECE_GROUPS 16u /* groups of 256 columns that a panel is taken through at once */

/* A group of A32 activations: eight leaves. `start` is what an instruction set begins the
 * leaves' sums with, if it has an offset to take off: those of the even leaves first. */
typedef struct q8_inputs {
    const int8_t *a;
    const float *d;
    _Alignas(16) int32_t start[8];
} q8_inputs;

/* What four blocks of a K-quant have to say, before the activations' scales. */
INLINE __m128 single_blocks(uint32_t type, const uint8_t *const *block, const int8_t *const *a,
                            const uint8_t *const *sums);
/* The four pairs of eight leaves of Q8_0. */
INLINE __m128 single_leaves(const uint8_t *block, const q8_inputs *in);
/* Columns first .. first + 255 of a row of activations. */
INLINE void read_q8_inputs(const fti_cpu_matrix *m, const uint8_t *row, uint32_t first,
                           q8_inputs *out);
/* A panel of a K-quant for any number of rows of activations. */
INLINE void tile_k(uint32_t type, const fti_cpu_matrix *m, const uint8_t *const *rows,
                   uint32_t row_count, const tile *t, panel_sums acc);
/* `blocks` leaves of Q8_0 from column `first` on, for every row of a tile. */
static void tile_group_q8_0(const fti_cpu_matrix *m, const uint8_t *const *rows, uint32_t row_count,
                            uint32_t first, uint32_t blocks, const tile *t, panel_sums acc);

/* While part `part` of `parts` of a panel is at work, asks for the same part of the weights
 * that come next. Sixteen rows that are read side by side are more than the processor foresees;
 * asked for in the order of memory, and into the second level, they arrive in time. */
INLINE void fetch_next(const fti_cpu_matrix *m, const tile *t, uint32_t part, uint32_t parts) {
    size_t bytes = PANEL_ROWS * (size_t)m->row_bytes / parts;
    if (!t->next) return;
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)t->next + part * bytes + i, _MM_HINT_T1);
}

INLINE uint32_t k_bytes(uint32_t type) {
    return type == FTK_TYPE_Q4_K   ? FTK_Q4_K_BYTES
           : type == FTK_TYPE_Q5_K ? FTK_Q5_K_BYTES
                                   : FTK_Q6_K_BYTES;
}

/* d and dmin of four blocks of Q4_K or Q5_K. */
INLINE void read_pairs(const uint8_t *const *block, __m128 *d, __m128 *dmin) {
    int32_t two[4];
    for (uint32_t k = 0; k < 4; k++) memcpy(&two[k], block[k], sizeof two[k]);
    __m256 all = _mm256_cvtph_ps(_mm_set_epi32(two[3], two[2], two[1], two[0]));
    __m128 low = _mm256_castps256_ps128(all), high = _mm256_extractf128_ps(all, 1);
    *d = _mm_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0));
    *dmin = _mm_shuffle_ps(low, high, _MM_SHUFFLE(3, 1, 3, 1));
}

INLINE __m128 four_halves(const uint8_t *p0, const uint8_t *p1, const uint8_t *p2,
                          const uint8_t *p3) {
    __m128i half = _mm_cvtsi32_si128(ftk_load_u16(p0));
    half = _mm_insert_epi16(half, ftk_load_u16(p1), 1);
    half = _mm_insert_epi16(half, ftk_load_u16(p2), 2);
    half = _mm_insert_epi16(half, ftk_load_u16(p3), 3);
    return _mm_cvtph_ps(half);
}

/* Four halves, `stride` bytes apart. */
INLINE __m128 read_halves(const uint8_t *p, size_t stride) {
    return four_halves(p, p + stride, p + 2 * stride, p + 3 * stride);
}

/* From the exact sums of scale * q * q_a and, unless the type is Q6_K, of minimum * q_a. */
INLINE __m128 join(uint32_t type, __m128 d, __m128 dmin, __m128i whole, __m128i offset) {
    __m128 product = _mm_cvtepi32_ps(whole);
    if (type == FTK_TYPE_Q6_K) return _mm_mul_ps(d, product);
    return _mm_fmsub_ps(d, product, _mm_mul_ps(dmin, _mm_cvtepi32_ps(offset)));
}

INLINE __m128 join_blocks(uint32_t type, const uint8_t *const *block, __m128i whole,
                          __m128i offset) {
    __m128 d, dmin = _mm_setzero_ps();
    if (type == FTK_TYPE_Q6_K)
        d = four_halves(block[0] + 208, block[1] + 208, block[2] + 208, block[3] + 208);
    else
        read_pairs(block, &d, &dmin);
    return join(type, d, dmin, whole, offset);
}

/* Place of a group of columns in a panel; they are met row after row. */
typedef struct place {
    uint32_t row;
    uint32_t group;
} place;

INLINE void step(place *at, uint32_t groups) {
    if (++at->group < groups) return;
    at->group = 0;
    at->row++;
}

/* Groups first .. first + groups - 1 of row_count rows; the terms are added one group
 * after the other, as the definition has it. Past the last block it is taken again. */
INLINE void single_piece(uint32_t type, const fti_cpu_matrix *m, const uint8_t *const *rows,
                         uint32_t row_count, uint32_t first, uint32_t groups, const uint8_t *in,
                         float *acc) {
    float terms[PANEL_ROWS * PIECE_GROUPS];
    const uint8_t *d = in + m->cols + 4 * (size_t)first;
    const uint8_t *sums_at = in + m->cols + (size_t)(m->cols / 256) * 4 + 32 * (size_t)first;
    place at = {0, 0};
    for (uint32_t b = 0; b < row_count * groups; b += 4) {
        const uint8_t *block[4], *sums[4];
        const int8_t *a[4];
#pragma GCC unroll 4
        for (uint32_t k = 0; k < 4; k++) {
            block[k] = rows[at.row] + (size_t)(first + at.group) * k_bytes(type);
            a[k] = (const int8_t *)in + 256 * (size_t)(first + at.group);
            sums[k] = sums_at + 32 * (size_t)at.group;
            if (b + k + 1 < row_count * groups) step(&at, groups);
        }
        _mm_storeu_ps(terms + b, single_blocks(type, block, a, sums));
    }
    for (uint32_t r = 0; r < row_count; r++) {
        for (uint32_t u = 0; u < groups; u++) {
            float scale;
            memcpy(&scale, d + 4 * (size_t)u, sizeof scale);
            acc[r] += scale * terms[r * groups + u];
        }
    }
}

/* `type` is a constant where this is called, so each type gets a loop of its own. */
INLINE void single_k(uint32_t type, const fti_cpu_matrix *m, const uint8_t *const *rows,
                     uint32_t row_count, const uint8_t *in, float *acc) {
    uint32_t groups = m->cols / 256;
    for (uint32_t u = 0; u < groups; u += PIECE_GROUPS)
        single_piece(type, m, rows, row_count, u,
                     groups - u < PIECE_GROUPS ? groups - u : PIECE_GROUPS, in, acc);
}

INLINE __m128 sum_pairs(__m128 p0, __m128 p1, __m128 p2, __m128 p3) {
    _MM_TRANSPOSE4_PS(p0, p1, p2, p3);
    return _mm_add_ps(_mm_add_ps(_mm_add_ps(p0, p1), p2), p3);
}

/* Whole groups first .. first + groups - 1 of row_count rows of Q8_0. */
INLINE void single_q8_0(const uint8_t *const *rows, uint32_t row_count, uint32_t first,
                        uint32_t groups, const q8_inputs *in, float *acc) {
    float terms[PANEL_ROWS * PIECE_GROUPS];
    place at = {0, 0};
    for (uint32_t b = 0; b < row_count * groups; b += 4) {
        __m128 p[4];
#pragma GCC unroll 4
        for (uint32_t k = 0; k < 4; k++) {
            size_t block = (size_t)(first + at.group) * 8 * FTK_Q8_0_BYTES;
            p[k] = single_leaves(rows[at.row] + block, &in[at.group]);
            if (b + k + 1 < row_count * groups) step(&at, groups);
        }
        _mm_storeu_ps(terms + b, sum_pairs(p[0], p[1], p[2], p[3]));
    }
    for (uint32_t r = 0; r < row_count; r++)
        for (uint32_t u = 0; u < groups; u++) acc[r] += terms[r * groups + u];
}

static void single_groups_q8_0(const fti_cpu_matrix *m, const uint8_t *const *rows,
                               uint32_t row_count, const uint8_t *row, float *acc) {
    uint32_t groups = m->cols / 256;
    for (uint32_t u = 0; u < groups; u += PIECE_GROUPS) {
        q8_inputs in[PIECE_GROUPS];
        uint32_t count = groups - u < PIECE_GROUPS ? groups - u : PIECE_GROUPS;
        for (uint32_t i = 0; i < count; i++) read_q8_inputs(m, row, 256 * (u + i), &in[i]);
        single_q8_0(rows, row_count, u, count, in, acc);
    }
}

/* ---- any number of rows of activations ---- */

INLINE void panel_k(uint32_t type, const fti_cpu_matrix *m, const uint8_t *const *rows,
                    uint32_t row_count, const tile *t, panel_sums acc) {
    if (t->count == 1)
        single_k(type, m, rows, row_count, t->in[0], acc[0]);
    else
        tile_k(type, m, rows, row_count, t, acc);
}

/* acc[n] += terms, group after group. t->in[n] is a row in A256. */
static void dot_panel_k(const fti_cpu_matrix *m, const uint8_t *const *rows, uint32_t row_count,
                        const tile *t, panel_sums acc) {
    if (m->type == FTK_TYPE_Q4_K)
        panel_k(FTK_TYPE_Q4_K, m, rows, row_count, t, acc);
    else if (m->type == FTK_TYPE_Q5_K)
        panel_k(FTK_TYPE_Q5_K, m, rows, row_count, t, acc);
    else
        panel_k(FTK_TYPE_Q6_K, m, rows, row_count, t, acc);
}

/* The same for rows in A32; a group that is not whole goes through the tiles. */
static void dot_panel_q8_0(const fti_cpu_matrix *m, const uint8_t *const *rows, uint32_t row_count,
                           const tile *t, panel_sums acc) {
    uint32_t first = 0;
    if (t->count == 1) {
        single_groups_q8_0(m, rows, row_count, t->in[0], acc[0]);
        first = m->cols / 256 * 256;
    }
    for (; first < m->cols; first += 256) {
        fetch_next(m, t, first / 256, (m->cols + 255) / 256);
        tile_group_q8_0(m, rows, row_count, first, row_left(m->cols, first) / 32, t, acc);
    }
}

#endif
