/*
 * device/quant.h: the weight blocks that operators read (GGUF layouts, little
 * endian, byte arrays without alignment) and what their bits mean, as integers
 * for the exact dot product and as f32.
 *
 *   Q8_0   34 bytes,  32 values: d f16, q[32] i8                  value = q * d
 *   Q4_K  144 bytes, 256 values: d, dmin f16, 12 bytes of 6-bit scales and
 *         minima for 8 sub-blocks, 128 bytes of nibbles           (d*sc)*q - dmin*m
 *   Q5_K  176 bytes: as Q4_K with 32 bytes of fifth bits before the nibbles
 *   Q6_K  210 bytes: 128 bytes of low nibbles, 64 of high pairs, 16 i8 scales, d
 *                                                                 (d*sc)*(q-32)
 */
#ifndef FREETOKEN_DEVICE_QUANT_H
#define FREETOKEN_DEVICE_QUANT_H

#include "base.h"

#define FTK_Q8_0_BYTES 34u
#define FTK_Q4_K_BYTES 144u
#define FTK_Q5_K_BYTES 176u
#define FTK_Q6_K_BYTES 210u

/* A K-quant block as integers: value i is d * scale[i / 16] * q[i] - dmin *
 * min[i / 16]. Types without minima have min = 0 and dmin = +0. */
typedef struct ftk_k_block {
    int8_t q[256];
    int16_t scale[16];
    int16_t min[16];
    float d;
    float dmin;
} ftk_k_block;

/* Scale (0..63) and minimum (0..63) of sub-block j out of the 12 packed bytes. */
FTK_DEVICE_FN uint32_t ftk_k_scale(const uint8_t *s, uint32_t j) {
    if (j < 4) return s[j] & 63u;
    return (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
}

FTK_DEVICE_FN uint32_t ftk_k_min(const uint8_t *s, uint32_t j) {
    if (j < 4) return s[j + 4] & 63u;
    return (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
}

FTK_DEVICE_FN void ftk_k_scales(const uint8_t *block, ftk_k_block *out) {
    out->d = ftk_f16_to_f32(ftk_load_u16(block));
    out->dmin = ftk_f16_to_f32(ftk_load_u16(block + 2));
    for (uint32_t j = 0; j < 8; j++) {
        int16_t scale = (int16_t)ftk_k_scale(block + 4, j);
        int16_t min = (int16_t)ftk_k_min(block + 4, j);
        out->scale[2 * j] = out->scale[2 * j + 1] = scale;
        out->min[2 * j] = out->min[2 * j + 1] = min;
    }
}

FTK_DEVICE_FN void ftk_q4_k_decode(const uint8_t *block, ftk_k_block *out) {
    const uint8_t *qs = block + 16;
    ftk_k_scales(block, out);
    for (uint32_t p = 0; p < 4; p++) {
        for (uint32_t l = 0; l < 32; l++) {
            out->q[64 * p + l] = (int8_t)(qs[32 * p + l] & 15);
            out->q[64 * p + 32 + l] = (int8_t)(qs[32 * p + l] >> 4);
        }
    }
}

FTK_DEVICE_FN void ftk_q5_k_decode(const uint8_t *block, ftk_k_block *out) {
    const uint8_t *qh = block + 16;
    const uint8_t *qs = block + 48;
    ftk_k_scales(block, out);
    for (uint32_t p = 0; p < 4; p++) {
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t high = (uint32_t)qh[l] >> (2 * p);
            out->q[64 * p + l] = (int8_t)((qs[32 * p + l] & 15u) | (high & 1u) << 4);
            out->q[64 * p + 32 + l] = (int8_t)((uint32_t)(qs[32 * p + l] >> 4) | (high & 2u) << 3);
        }
    }
}

FTK_DEVICE_FN void ftk_q6_k_decode(const uint8_t *block, ftk_k_block *out) {
    for (uint32_t h = 0; h < 2; h++) {
        const uint8_t *ql = block + 64 * h;
        const uint8_t *qh = block + 128 + 32 * h;
        int8_t *q = out->q + 128 * h;
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t b = qh[l];
            q[l] = (int8_t)((int)((ql[l] & 15u) | (b & 3u) << 4) - 32);
            q[32 + l] = (int8_t)((int)((ql[32 + l] & 15u) | (b >> 2 & 3u) << 4) - 32);
            q[64 + l] = (int8_t)((int)((uint32_t)(ql[l] >> 4) | (b >> 4 & 3u) << 4) - 32);
            q[96 + l] = (int8_t)((int)((uint32_t)(ql[32 + l] >> 4) | (b >> 6 & 3u) << 4) - 32);
        }
    }
    for (uint32_t j = 0; j < 16; j++) {
        out->scale[j] = (int16_t)(int8_t)block[192 + j];
        out->min[j] = 0;
    }
    out->d = ftk_f16_to_f32(ftk_load_u16(block + 208));
    out->dmin = 0.0f;
}

/* Values of a decoded K-quant block. `minima` is 0 for Q6_K. */
FTK_DEVICE_FN void ftk_k_values(const ftk_k_block *block, int minima, float *y) {
    for (uint32_t j = 0; j < 16; j++) {
        float scale = block->d * (float)block->scale[j];
        float min = block->dmin * (float)block->min[j];
        for (uint32_t l = 0; l < 16; l++) {
            float v = scale * (float)block->q[16 * j + l];
            y[16 * j + l] = minima ? v - min : v;
        }
    }
}

FTK_DEVICE_FN void ftk_q8_0_values(const uint8_t *block, float *y) {
    float d = ftk_f16_to_f32(ftk_load_u16(block));
    for (uint32_t l = 0; l < 32; l++) y[l] = (float)(int8_t)block[2 + l] * d;
}

#endif
