/*
 * device/base.h: what every header for kernel authors stands on: one spelling of
 * "function for host and device", bit casts, fused multiply-add, correctly
 * rounded square root and the 16-bit float types.
 *
 * These headers are one source for C99 and later, C++11 and later, CUDA and HIP.
 * Their results are defined bit by bit, under these conditions: round to nearest
 * even, no flushing of denormals, no contraction (-ffp-contract=off, nvcc
 * -fmad=false), correctly rounded division. NaN payloads are not promised.
 */
#ifndef FREETOKEN_DEVICE_BASE_H
#define FREETOKEN_DEVICE_BASE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#include <math.h>
#define FTK_DEVICE_FN __host__ __device__ static inline
#else
#define FTK_DEVICE_FN static inline
#endif

FTK_DEVICE_FN uint32_t ftk_f32_bits(float f) {
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}

FTK_DEVICE_FN float ftk_f32_from_bits(uint32_t b) {
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

FTK_DEVICE_FN uint64_t ftk_f64_bits(double f) {
    uint64_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}

FTK_DEVICE_FN double ftk_f64_from_bits(uint64_t b) {
    double f;
    memcpy(&f, &b, sizeof f);
    return f;
}

/* a * b + c with one rounding. */
FTK_DEVICE_FN float ftk_fma(float a, float b, float c) {
#if defined(__CUDACC__) || defined(__HIPCC__)
    return fmaf(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

FTK_DEVICE_FN double ftk_fma_f64(double a, double b, double c) {
#if defined(__CUDACC__) || defined(__HIPCC__)
    return fma(a, b, c);
#else
    return __builtin_fma(a, b, c);
#endif
}

FTK_DEVICE_FN float ftk_sqrt(float x) {
#if defined(__CUDACC__) || defined(__HIPCC__)
    return sqrtf(x);
#else
    return __builtin_sqrtf(x);
#endif
}

/* Unaligned little-endian f16 or bf16 bits out of a block. */
FTK_DEVICE_FN uint16_t ftk_load_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | (uint32_t)p[1] << 8);
}

/* Exact. The product turns f16 subnormals into f32 normals without a branch. */
FTK_DEVICE_FN float ftk_f16_to_f32(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t special = (h & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    float f = ftk_f32_from_bits(magnitude) * 5.192296858534828e33f; /* 2^112 */
    uint32_t bits = special ? (special | magnitude) : ftk_f32_bits(f);
    return ftk_f32_from_bits(bits | (uint32_t)(h & 0x8000u) << 16);
}

/* Nearest, ties to even; overflow gives infinity, NaN gives 0x7e00 with its sign. */
FTK_DEVICE_FN uint16_t ftk_f32_to_f16(float f) {
    uint32_t bits = ftk_f32_bits(f);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        /* In [0.5, 1) an f32 ends at 2^-24, the f16 subnormal step: adding 0.5
         * rounds the value there, and its low bits are the answer. */
        float rounded = ftk_f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (ftk_f32_bits(rounded) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

FTK_DEVICE_FN float ftk_bf16_to_f32(uint16_t h) {
    return ftk_f32_from_bits((uint32_t)h << 16);
}

/* Nearest, ties to even; overflow gives infinity, NaN gives 0x7fc0 with its sign. */
FTK_DEVICE_FN uint16_t ftk_f32_to_bf16(float f) {
    uint32_t bits = ftk_f32_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16 & 0x8000u) | 0x7fc0u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
