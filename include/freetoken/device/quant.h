/*
 * device/quant.h: the weight blocks that operators read (GGUF layouts, little
 * endian, byte arrays without alignment) and what their bits mean, as integers
 * for the exact dot product and as f32.
 *
 * 32 values; nibble j of `qs` is value j if low, j + 16 if high:
 *   Q8_0    34 bytes: d f16, q[32] i8                             q * d
 *   Q4_0    18: d f16, qs[16]                                     (q-8) * d
 *   Q4_1    20: d, m f16, qs[16]                                  q * d + m
 *   Q5_0    22: d f16, fifth bits u32, qs[16]                     (q-16) * d
 *   Q5_1    24: d, m f16, fifth bits u32, qs[16]                  q * d + m
 *   IQ4_NL  18: d f16, qs[16]                                     table[q] * d
 *   MXFP4   17: exponent u8, qs[16]                               e2m1[q] * 2^(e-128)
 * 64 values in four sub-blocks of 16:
 *   NVFP4   36: four UE4M3 scales, qs[32]                         e2m1[q] * (scale/2)
 * 256 values:
 *   Q2_K    84: 16 pairs of 4-bit scale and minimum, 64 bytes of 2-bit q, d, dmin
 *                                                                 (d*sc)*q - dmin*m
 *   Q3_K   110: 32 bytes of high bits, 64 of low pairs, 12 of 6-bit scales, d
 *                                                                 (d*(sc-32))*(q-4)
 *   Q4_K   144: d, dmin f16, 12 bytes of 6-bit scales and minima for 8
 *          sub-blocks, 128 bytes of nibbles                       (d*sc)*q - dmin*m
 *   Q5_K   176: as Q4_K with 32 bytes of fifth bits before the nibbles
 *   Q6_K   210: 128 bytes of low nibbles, 64 of high pairs, 16 i8 scales, d
 *                                                                 (d*sc)*(q-32)
 *   IQ4_XS 136: d f16, high pairs u16 and low nibbles[4] of 8 scales, qs[128]
 *                                                                 (d*(sc-32))*table[q]
 */
#ifndef FREETOKEN_DEVICE_QUANT_H
#define FREETOKEN_DEVICE_QUANT_H

#include "base.h"

#define FTK_Q4_0_BYTES   18u
#define FTK_Q4_1_BYTES   20u
#define FTK_Q5_0_BYTES   22u
#define FTK_Q5_1_BYTES   24u
#define FTK_Q8_0_BYTES   34u
#define FTK_IQ4_NL_BYTES 18u
#define FTK_MXFP4_BYTES  17u
#define FTK_NVFP4_BYTES  36u
#define FTK_Q2_K_BYTES   84u
#define FTK_Q3_K_BYTES   110u
#define FTK_Q4_K_BYTES   144u
#define FTK_Q5_K_BYTES   176u
#define FTK_Q6_K_BYTES   210u
#define FTK_IQ4_XS_BYTES 136u

/* ---- code tables ------------------------------------------------------------ */

/* What a nibble of IQ4_NL and IQ4_XS stands for. Two words of bytes instead of an
 * array: device code has no static tables in inline functions. */
FTK_DEVICE_FN int8_t ftk_iq4_code(uint32_t nibble) {
    uint64_t half = nibble & 8u ? 0x7159453526190d01ull : 0xf6eaddcfbfad9881ull;
    return (int8_t)(uint8_t)(half >> (8u * (nibble & 7u)));
}

/* Twice the E2M1 number of a nibble: 0, 1, 2, 3, 4, 6, 8, 12, the upper bit being
 * its sign. */
FTK_DEVICE_FN int8_t ftk_e2m1_code(uint32_t nibble) {
    int magnitude = (int)(0xc8643210u >> (4u * (nibble & 7u)) & 15u);
    return (int8_t)(nibble & 8u ? -magnitude : magnitude);
}

/* Half of the E8M0 power of two, 2^(e - 128), since the codes are doubled; 255 is
 * NaN. The two smallest are f32 subnormals. */
FTK_DEVICE_FN float ftk_e8m0_half(uint8_t e) {
    if (e == 255) return ftk_f32_from_bits(0x7fc00000u);
    return ftk_f32_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1u) << 23);
}

/* Half of the UE4M3 number, since the codes are doubled. Bit 7 is not used; 0x7f,
 * the code of NaN, counts as 0, as writers of such files have it. */
FTK_DEVICE_FN float ftk_ue4m3_half(uint8_t x) {
    uint32_t exponent = x >> 3 & 15u;
    uint32_t fraction = x & 7u;
    if (x == 0x7f) return 0.0f;
    if (exponent == 0) return (float)fraction * 0.0009765625f; /* 2^-10 */
    return ftk_f32_from_bits((exponent + 119u) << 23 | fraction << 20);
}

/* ---- 32 values ---------------------------------------------------------------- */

/* A block of 32 as integers: value i is q[i] * d + m. Types without a minimum have
 * m = +0, and their values are the product alone. */
typedef struct ftk_leaf {
    int8_t q[32];
    float d;
    float m;
} ftk_leaf;

FTK_DEVICE_FN void ftk_leaf_nibbles(const uint8_t *qs, int offset, ftk_leaf *out) {
    for (uint32_t j = 0; j < 16; j++) {
        out->q[j] = (int8_t)((int)(qs[j] & 15u) - offset);
        out->q[j + 16] = (int8_t)((int)(qs[j] >> 4) - offset);
    }
}

/* Adds 16 where the bit of a value is set. */
FTK_DEVICE_FN void ftk_leaf_fifth_bits(const uint8_t *qh, ftk_leaf *out) {
    for (uint32_t j = 0; j < 32; j++)
        out->q[j] = (int8_t)(out->q[j] + (int)((uint32_t)qh[j / 8] >> (j % 8) & 1u) * 16);
}

FTK_DEVICE_FN void ftk_q8_0_decode(const uint8_t *block, ftk_leaf *out) {
    memcpy(out->q, block + 2, sizeof out->q);
    out->d = ftk_f16_to_f32(ftk_load_u16(block));
    out->m = 0.0f;
}

FTK_DEVICE_FN void ftk_q4_0_decode(const uint8_t *block, ftk_leaf *out) {
    ftk_leaf_nibbles(block + 2, 8, out);
    out->d = ftk_f16_to_f32(ftk_load_u16(block));
    out->m = 0.0f;
}

FTK_DEVICE_FN void ftk_q4_1_decode(const uint8_t *block, ftk_leaf *out) {
    ftk_leaf_nibbles(block + 4, 0, out);
    out->d = ftk_f16_to_f32(ftk_load_u16(block));
    out->m = ftk_f16_to_f32(ftk_load_u16(block + 2));
}

FTK_DEVICE_FN void ftk_q5_0_decode(const uint8_t *block, ftk_leaf *out) {
    ftk_leaf_nibbles(block + 6, 16, out);
    ftk_leaf_fifth_bits(block + 2, out);
    out->d = ftk_f16_to_f32(ftk_load_u16(block));
    out->m = 0.0f;
}

FTK_DEVICE_FN void ftk_q5_1_decode(const uint8_t *block, ftk_leaf *out) {
    ftk_leaf_nibbles(block + 8, 0, out);
    ftk_leaf_fifth_bits(block + 4, out);
    out->d = ftk_f16_to_f32(ftk_load_u16(block));
    out->m = ftk_f16_to_f32(ftk_load_u16(block + 2));
}

FTK_DEVICE_FN void ftk_iq4_nl_decode(const uint8_t *block, ftk_leaf *out) {
    for (uint32_t j = 0; j < 16; j++) {
        out->q[j] = ftk_iq4_code(block[2 + j] & 15u);
        out->q[j + 16] = ftk_iq4_code((uint32_t)block[2 + j] >> 4);
    }
    out->d = ftk_f16_to_f32(ftk_load_u16(block));
    out->m = 0.0f;
}

FTK_DEVICE_FN void ftk_mxfp4_decode(const uint8_t *block, ftk_leaf *out) {
    for (uint32_t j = 0; j < 16; j++) {
        out->q[j] = ftk_e2m1_code(block[1 + j] & 15u);
        out->q[j + 16] = ftk_e2m1_code((uint32_t)block[1 + j] >> 4);
    }
    out->d = ftk_e8m0_half(block[0]);
    out->m = 0.0f;
}

/* `minima` is 1 for Q4_1 and Q5_1. */
FTK_DEVICE_FN void ftk_leaf_values(const ftk_leaf *leaf, int minima, float *y) {
    for (uint32_t i = 0; i < 32; i++) {
        float v = (float)leaf->q[i] * leaf->d;
        y[i] = minima ? v + leaf->m : v;
    }
}

/* ---- 64 values ---------------------------------------------------------------- */

/* Value i is q[i] * d[i / 16]. */
typedef struct ftk_nv_block {
    int8_t q[64];
    float d[4];
} ftk_nv_block;

FTK_DEVICE_FN void ftk_nvfp4_decode(const uint8_t *block, ftk_nv_block *out) {
    for (uint32_t s = 0; s < 4; s++) {
        const uint8_t *qs = block + 4 + 8 * s;
        out->d[s] = ftk_ue4m3_half(block[s]);
        for (uint32_t j = 0; j < 8; j++) {
            out->q[16 * s + j] = ftk_e2m1_code(qs[j] & 15u);
            out->q[16 * s + 8 + j] = ftk_e2m1_code((uint32_t)qs[j] >> 4);
        }
    }
}

FTK_DEVICE_FN void ftk_nv_values(const ftk_nv_block *block, float *y) {
    for (uint32_t i = 0; i < 64; i++) y[i] = (float)block->q[i] * block->d[i / 16];
}

/* ---- 256 values ----------------------------------------------------------------- */

/* A block of 256 as integers: value i is d * scale[i / 16] * q[i] - dmin *
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

/* Two bits of value i out of the 64 bytes that Q2_K and Q3_K keep them in. */
FTK_DEVICE_FN uint32_t ftk_k_pair(const uint8_t *qs, uint32_t i) {
    return (uint32_t)qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3u;
}

FTK_DEVICE_FN void ftk_q2_k_decode(const uint8_t *block, ftk_k_block *out) {
    for (uint32_t i = 0; i < 256; i++) out->q[i] = (int8_t)ftk_k_pair(block + 16, i);
    for (uint32_t j = 0; j < 16; j++) {
        out->scale[j] = (int16_t)(block[j] & 15);
        out->min[j] = (int16_t)(block[j] >> 4);
    }
    out->d = ftk_f16_to_f32(ftk_load_u16(block + 80));
    out->dmin = ftk_f16_to_f32(ftk_load_u16(block + 82));
}

/* Sub-block j's scale of Q3_K, -32..31: four bits from the first eight bytes, two
 * from the last four. */
FTK_DEVICE_FN int ftk_q3_k_scale(const uint8_t *s, uint32_t j) {
    uint32_t low = j < 8 ? s[j] & 15u : (uint32_t)s[j - 8] >> 4;
    uint32_t high = (uint32_t)s[8 + j % 4] >> (2 * (j / 4)) & 3u;
    return (int)(low | high << 4) - 32;
}

FTK_DEVICE_FN void ftk_q3_k_decode(const uint8_t *block, ftk_k_block *out) {
    for (uint32_t i = 0; i < 256; i++) {
        int high = block[i % 32] >> (i / 32) & 1;
        out->q[i] = (int8_t)((int)ftk_k_pair(block + 32, i) - (high ? 0 : 4));
    }
    for (uint32_t j = 0; j < 16; j++) {
        out->scale[j] = (int16_t)ftk_q3_k_scale(block + 96, j);
        out->min[j] = 0;
    }
    out->d = ftk_f16_to_f32(ftk_load_u16(block + 108));
    out->dmin = 0.0f;
}

FTK_DEVICE_FN void ftk_iq4_xs_decode(const uint8_t *block, ftk_k_block *out) {
    uint32_t high = ftk_load_u16(block + 2);
    for (uint32_t b = 0; b < 8; b++) {
        const uint8_t *qs = block + 8 + 16 * b;
        uint32_t low = (uint32_t)block[4 + b / 2] >> (4 * (b % 2)) & 15u;
        int scale = (int)(low | (high >> (2 * b) & 3u) << 4) - 32;
        for (uint32_t j = 0; j < 16; j++) {
            out->q[32 * b + j] = ftk_iq4_code(qs[j] & 15u);
            out->q[32 * b + 16 + j] = ftk_iq4_code((uint32_t)qs[j] >> 4);
        }
        out->scale[2 * b] = out->scale[2 * b + 1] = (int16_t)scale;
        out->min[2 * b] = out->min[2 * b + 1] = 0;
    }
    out->d = ftk_f16_to_f32(ftk_load_u16(block));
    out->dmin = 0.0f;
}

/* Values of a decoded block of 256. `minima` is 1 for Q2_K, Q4_K and Q5_K. */
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

#endif
