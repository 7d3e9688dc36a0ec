/*
 * device/dot.h: the dot products that define every matrix product, and the
 * packed activations that they read. The definition depends on the number of
 * columns alone, never on the machine:
 *
 *  - activations are rounded to signed bytes, one f32 scale per 256 (A256, read
 *    by types of 256-element blocks) or per 32 columns (A32, read by the smaller
 *    blocks);
 *  - inside a group of 256 columns, sums are exact integers (256-element blocks),
 *    or eight leaves joined by a fixed handful of f32 operations;
 *  - y = +0, then the groups' terms are added from left to right;
 *  - float weights: 16 lanes by column modulo 16, fma in each, then folded.
 */
#ifndef FREETOKEN_DEVICE_DOT_H
#define FREETOKEN_DEVICE_DOT_H

#include "quant.h"

/* ---- packed activations ------------------------------------------------------
 * Row r starts at packed + r * ftk_act_row_bytes(formats, cols). In a row stands
 * the A32 part, if it has one, then the A256 part; each is a multiple of 64
 * bytes. A32: q i8[cols], d f32[cols / 32]. A256: q i8[cols], d f32[cols / 256],
 * s i16[cols / 16], the sum of each 16 q. The values 1 and 2 are FTK_ACT_A32 and
 * FTK_ACT_A256 of provider.h. */
FTK_DEVICE_FN uint64_t ftk_act_a32_bytes(uint64_t cols) {
    return (cols + cols / 32 * 4 + 63) & ~(uint64_t)63;
}

FTK_DEVICE_FN uint64_t ftk_act_a256_bytes(uint64_t cols) {
    return (cols + cols / 256 * 4 + cols / 16 * 2 + 63) & ~(uint64_t)63;
}

FTK_DEVICE_FN uint64_t ftk_act_row_bytes(uint32_t formats, uint64_t cols) {
    return (formats & 1u ? ftk_act_a32_bytes(cols) : 0) +
           (formats & 2u ? ftk_act_a256_bytes(cols) : 0);
}

/* Where the part of one format begins in a row that has `formats`. */
FTK_DEVICE_FN uint64_t ftk_act_offset(uint32_t formats, uint32_t format, uint64_t cols) {
    return format == 2u && (formats & 1u) ? ftk_act_a32_bytes(cols) : 0;
}

/* Nearest integer, ties to even, of |v| < 2^22. */
FTK_DEVICE_FN float ftk_round_small(float v) {
    return (v + 12582912.0f) - 12582912.0f;
}

/* Rounds n values to bytes in -127..127 and returns their scale. Infinity or NaN
 * anywhere gives a NaN scale; a maximum below 2^-100 gives +0; both with q = 0. */
FTK_DEVICE_FN float ftk_quantize(const float *x, uint32_t n, int8_t *q) {
    uint32_t max = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t m = ftk_f32_bits(x[i]) & 0x7fffffffu;
        max = m > max ? m : max;
    }
    if (max >= 0x7f800000u || max < 0x0d800000u) {
        memset(q, 0, n);
        return max >= 0x7f800000u ? ftk_f32_from_bits(0x7fc00000u) : 0.0f;
    }
    float d = ftk_f32_from_bits(max) / 127.0f;
    float r = 1.0f / d;
    for (uint32_t i = 0; i < n; i++) {
        float v = ftk_round_small(x[i] * r);
        v = v > 127.0f ? 127.0f : v;
        v = v < -127.0f ? -127.0f : v;
        q[i] = (int8_t)(int)v;
    }
    return d;
}

/* A block of Q8_0 out of 32 values, as caches keep them: d = f16(max / 127), bytes are the
 * nearest of x / d, at most 127. The product of both is exact in f32. Infinity or NaN
 * anywhere gives a NaN scale. */
FTK_DEVICE_FN void ftk_q8_0_encode(const float *x, uint8_t *block) {
    uint32_t max = 0;
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t m = ftk_f32_bits(x[i]) & 0x7fffffffu;
        max = m > max ? m : max;
    }
    uint16_t half = max >= 0x7f800000u ? 0x7e00u : ftk_f32_to_f16(ftk_f32_from_bits(max) / 127.0f);
    float d = ftk_f16_to_f32(half);
    float r = max < 0x7f800000u && half ? 1.0f / d : 0.0f;
    memcpy(block, &half, sizeof half);
    for (uint32_t i = 0; i < 32; i++) {
        float v = max < 0x7f800000u ? ftk_round_small(x[i] * r) : 0.0f;
        v = v > 127.0f ? 127.0f : v;
        v = v < -127.0f ? -127.0f : v;
        int8_t q = (int8_t)(int)v;
        memcpy(block + 2 + i, &q, 1);
    }
}

FTK_DEVICE_FN void ftk_quantize_a32(const float *x, uint64_t cols, uint8_t *part) {
    int8_t *q = (int8_t *)part;
    for (uint64_t b = 0; b < cols / 32; b++) {
        float d = ftk_quantize(x + 32 * b, 32, q + 32 * b);
        memcpy(part + cols + 4 * b, &d, sizeof d);
    }
}

FTK_DEVICE_FN void ftk_quantize_a256(const float *x, uint64_t cols, uint8_t *part) {
    int8_t *q = (int8_t *)part;
    uint8_t *sums = part + cols + cols / 256 * 4;
    for (uint64_t u = 0; u < cols / 256; u++) {
        float d = ftk_quantize(x + 256 * u, 256, q + 256 * u);
        memcpy(part + cols + 4 * u, &d, sizeof d);
    }
    for (uint64_t k = 0; k < cols / 16; k++) {
        int sum = 0;
        for (uint32_t i = 0; i < 16; i++) sum += q[16 * k + i];
        int16_t s = (int16_t)sum;
        memcpy(sums + 2 * k, &s, sizeof s);
    }
}

/* ---- blocks of 256: one term per group ------------------------------------------ */

/* Weights of a group with the integer scales folded in: |w| <= 4096, so pairs of
 * products still fit 32 bits and the sum over the group is exact. */
typedef struct ftk_k_group {
    int16_t w[256];
    int16_t min[16];
    float d;
    float dmin;
    int32_t minima; /* 0: type without minima */
} ftk_k_group;

FTK_DEVICE_FN void ftk_k_fold(const ftk_k_block *block, int minima, ftk_k_group *out) {
    for (uint32_t j = 0; j < 16; j++) {
        int scale = block->scale[j];
        for (uint32_t l = 0; l < 16; l++)
            out->w[16 * j + l] = (int16_t)(scale * block->q[16 * j + l]);
    }
    memcpy(out->min, block->min, sizeof out->min);
    out->d = block->d;
    out->dmin = block->dmin;
    out->minima = minima;
}

FTK_DEVICE_FN int32_t ftk_idot(const int16_t *w, const int8_t *q, uint32_t n) {
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (int32_t)w[i] * (int32_t)q[i];
    return sum;
}

/* Term of one group: q, s and d are the activation's for the same 256 columns. */
FTK_DEVICE_FN float ftk_k_term(const ftk_k_group *g, const int8_t *q, const int16_t *s, float d) {
    float product = (float)ftk_idot(g->w, q, 256);
    if (!g->minima) return d * (g->d * product);
    int32_t sum = 0;
    for (uint32_t k = 0; k < 16; k++) sum += (int32_t)g->min[k] * (int32_t)s[k];
    float offset = g->dmin * (float)sum;
    return d * ftk_fma(g->d, product, -offset);
}

/* ---- blocks of 32: eight leaves per group of 256 ------------------------------ */

/* Weights of a group; leaves past the end of the row are not read. */
typedef struct ftk_leaf_group {
    int16_t w[256];
    float d[8];
    float m[8];
    int32_t minima; /* 0: type without minima */
} ftk_leaf_group;

/* Puts leaf j into its group. */
FTK_DEVICE_FN void ftk_leaf_fold(const ftk_leaf *leaf, uint32_t j, ftk_leaf_group *out) {
    for (uint32_t l = 0; l < 32; l++) out->w[32 * j + l] = (int16_t)leaf->q[l];
    out->d[j] = leaf->d;
    out->m[j] = leaf->m;
}

/* Joins eight leaves: e[j] is the product of both scales, f[j] the exact dot. */
FTK_DEVICE_FN float ftk_leaf_join(const float *e, const float *f) {
    float p0 = ftk_fma(e[1], f[1], e[0] * f[0]);
    float p1 = ftk_fma(e[3], f[3], e[2] * f[2]);
    float p2 = ftk_fma(e[5], f[5], e[4] * f[4]);
    float p3 = ftk_fma(e[7], f[7], e[6] * f[6]);
    return ((p0 + p1) + p2) + p3;
}

/* What leaf j adds in a type with minima: its offset meets the sum of the bytes. */
FTK_DEVICE_FN float ftk_leaf_min_term(const ftk_leaf_group *g, uint32_t j, const int8_t *q,
                                      float d) {
    int32_t sum = 0;
    for (uint32_t l = 0; l < 32; l++) sum += q[32 * j + l];
    float product = (float)ftk_idot(g->w + 32 * (size_t)j, q + 32 * (size_t)j, 32);
    float scale = g->d[j] * d;
    return ftk_fma(g->m[j], d * (float)sum, scale * product);
}

/* Term of one group of `leaves` (1..8) leaves. */
FTK_DEVICE_FN float ftk_leaf_term(const ftk_leaf_group *g, uint32_t leaves, const int8_t *q,
                                  const float *d) {
    float e[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    float f[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (uint32_t j = 0; j < leaves; j++) {
        if (g->minima) {
            f[j] = ftk_leaf_min_term(g, j, q, d[j]);
            continue;
        }
        e[j] = g->d[j] * d[j];
        f[j] = (float)ftk_idot(g->w + 32 * (size_t)j, q + 32 * (size_t)j, 32);
    }
    if (!g->minima) return ftk_leaf_join(e, f);
    return (((f[0] + f[1]) + (f[2] + f[3])) + (f[4] + f[5])) + (f[6] + f[7]);
}

/* ---- NVFP4: eight leaves of two sub-blocks per group of 256 ------------------- */

typedef struct ftk_nv_group {
    int16_t w[256];
    float d[16]; /* of 16 columns each */
} ftk_nv_group;

/* Puts block b (64 columns) into its group. */
FTK_DEVICE_FN void ftk_nv_fold(const ftk_nv_block *block, uint32_t b, ftk_nv_group *out) {
    for (uint32_t l = 0; l < 64; l++) out->w[64 * b + l] = (int16_t)block->q[l];
    for (uint32_t s = 0; s < 4; s++) out->d[4 * b + s] = block->d[s];
}

/* Term of one group of `leaves` (2, 4, 6 or 8) leaves. A scale has four significant
 * bits and a sub-block's dot fifteen, so each product is exact, and a leaf is the
 * exact sum of two of them, rounded once. */
FTK_DEVICE_FN float ftk_nv_term(const ftk_nv_group *g, uint32_t leaves, const int8_t *q,
                                const float *d) {
    float e[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    float f[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (uint32_t j = 0; j < leaves; j++) {
        size_t at = 32 * (size_t)j;
        float even = g->d[2 * j] * (float)ftk_idot(g->w + at, q + at, 16);
        f[j] = ftk_fma(g->d[2 * j + 1], (float)ftk_idot(g->w + at + 16, q + at + 16, 16), even);
        e[j] = d[j];
    }
    return ftk_leaf_join(e, f);
}

/* ---- float weights ------------------------------------------------------------ */

/* Adds columns 0 .. n-1 to the 16 lanes; n is a multiple of 16 except at the end
 * of a row. Lanes begin at +0. */
FTK_DEVICE_FN void ftk_lanes_add(float *lanes, const float *w, const float *x, uint64_t n) {
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t l = 0; l < 16; l++) lanes[l] = ftk_fma(w[i + l], x[i + l], lanes[l]);
    for (uint32_t l = 0; i + l < n; l++) lanes[l] = ftk_fma(w[i + l], x[i + l], lanes[l]);
}

FTK_DEVICE_FN float ftk_lanes_fold(const float *lanes) {
    float v[8];
    for (uint32_t l = 0; l < 8; l++) v[l] = lanes[l] + lanes[l + 8];
    for (uint32_t l = 0; l < 4; l++) v[l] = v[l] + v[l + 4];
    for (uint32_t l = 0; l < 2; l++) v[l] = v[l] + v[l + 2];
    return v[0] + v[1];
}

FTK_DEVICE_FN float ftk_dot_f32(const float *w, const float *x, uint64_t n) {
    float lanes[16] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f,
                       0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    ftk_lanes_add(lanes, w, x, n);
    return ftk_lanes_fold(lanes);
}

/* 1 / sqrt(mean of squares + eps), the factor of an RMS norm; the norm is then
 * (x * factor) * weight. */
FTK_DEVICE_FN float ftk_rms_factor(const float *x, uint64_t n, float eps) {
    float mean = ftk_dot_f32(x, x, n) / (float)n;
    return 1.0f / ftk_sqrt(mean + eps);
}

#endif
