/*
 * device/math.h: exp, log1p, sigmoid, SiLU, softplus, sine and cosine with the
 * same bits on every backend. Only + - * /, fma, comparisons and bit casts: no
 * libm, whose results differ from one system to the next.
 *
 * Errors against the exact value: exp 1 ulp, sigmoid 3 ulp, SiLU 3 ulp (above -87,
 * where exp(x) is no subnormal), log1p 1 ulp, softplus 2 ulp, sine and cosine 1
 * ulp for angles up to 2^24.
 */
#ifndef FREETOKEN_DEVICE_MATH_H
#define FREETOKEN_DEVICE_MATH_H

#include "base.h"

/* Adding and subtracting 1.5 * 2^23 (2^52 in double) rounds to the nearest
 * integer, ties to even, and leaves that integer in the low bits of the sum. */
#define FTK_ROUND_F32 12582912.0f
#define FTK_ROUND_F64 6755399441055744.0

/* 2^n for -126 <= n <= 127. Arithmetic on bits only: defined for any n, which a
 * NaN argument makes arbitrary. */
FTK_DEVICE_FN float ftk_exp2i(uint32_t n) {
    return ftk_f32_from_bits((n + 127u) << 23);
}

/* Overflow gives infinity, underflow subnormals and then 0. */
FTK_DEVICE_FN float ftk_exp(float x) {
    float c = x < -104.0f ? -104.0f : x;
    c = c > 89.0f ? 89.0f : c;
    float sum = ftk_fma(c, 1.44269504f, FTK_ROUND_F32);
    float n = sum - FTK_ROUND_F32;
    /* ln 2 = high + low; n * high is exact for |n| < 2^9. */
    float r = ftk_fma(n, -0.693145752f, c);
    r = ftk_fma(n, -1.42860682e-6f, r);
    float p = 1.98412701e-4f; /* 1/7!, then down to 1/0! */
    p = ftk_fma(p, r, 1.38888892e-3f);
    p = ftk_fma(p, r, 8.33333377e-3f);
    p = ftk_fma(p, r, 4.16666679e-2f);
    p = ftk_fma(p, r, 1.66666672e-1f);
    p = ftk_fma(p, r, 0.5f);
    p = ftk_fma(p, r, 1.0f);
    p = ftk_fma(p, r, 1.0f);
    /* Two factors, so that neither leaves the normal range: -151 <= n <= 129. */
    uint32_t biased = ftk_f32_bits(sum) - ftk_f32_bits(FTK_ROUND_F32) + 256u;
    uint32_t half = biased >> 1;
    return (p * ftk_exp2i(half - 128u)) * ftk_exp2i(biased - half - 128u);
}

/* 1 / (1 + exp(-x)), accurate in both tails. */
FTK_DEVICE_FN float ftk_sigmoid(float x) {
    float e = ftk_exp(x < 0.0f ? x : -x);
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* x * sigmoid(x); NaN for minus infinity, as the formula has it: x e, or x 1, over 1 + e.
 * The factor is chosen by its bits, since floats in only one arm of a choice keep
 * compilers from taking several x at a time. */
FTK_DEVICE_FN float ftk_silu(float x) {
    float e = ftk_exp(x < 0.0f ? x : -x);
    uint32_t below = 0u - (uint32_t)(x < 0.0f);
    uint32_t factor = (ftk_f32_bits(e) & below) | (0x3f800000u & ~below);
    return (x * ftk_f32_from_bits(factor)) / (1.0f + e);
}

/* Splits a positive normal double into m * 2^k with sqrt(1/2) <= m < sqrt(2). */
FTK_DEVICE_FN double ftk_split_f64(double x, double *k) {
    uint64_t bits = ftk_f64_bits(x);
    /* Offset by the bits of sqrt(1/2): the exponent field then counts from there. */
    uint64_t shifted = bits - 0x3fe6a09e667f3bcdull;
    int64_t exponent = (int64_t)((shifted >> 52) + 1024u) % 4096 - 1024;
    *k = (double)exponent;
    return ftk_f64_from_bits(bits - (uint64_t)exponent * (1ull << 52));
}

/* log(1 + f) for -0.3 < f < 0.42, as 2 atanh(f / (2 + f)). */
FTK_DEVICE_FN double ftk_log1p_core(double f) {
    double s = f / (2.0 + f);
    double z = s * s;
    double p = 1.0 / 21.0;
    p = ftk_fma_f64(p, z, 1.0 / 19.0);
    p = ftk_fma_f64(p, z, 1.0 / 17.0);
    p = ftk_fma_f64(p, z, 1.0 / 15.0);
    p = ftk_fma_f64(p, z, 1.0 / 13.0);
    p = ftk_fma_f64(p, z, 1.0 / 11.0);
    p = ftk_fma_f64(p, z, 1.0 / 9.0);
    p = ftk_fma_f64(p, z, 1.0 / 7.0);
    p = ftk_fma_f64(p, z, 1.0 / 5.0);
    p = ftk_fma_f64(p, z, 1.0 / 3.0);
    p = p * z;
    return ftk_fma_f64(2.0 * s, p, 2.0 * s);
}

/* Natural logarithm of a positive normal double; relative error below 2^-49. */
FTK_DEVICE_FN double ftk_log_f64(double x) {
    double k;
    double m = ftk_split_f64(x, &k);
    double low = ftk_log1p_core(m - 1.0);
    low = ftk_fma_f64(k, 2.3190468138462996e-17, low);
    return ftk_fma_f64(k, 0.693147180559945286, low);
}

/* log(1 + x); NaN below -1, minus infinity at -1. */
FTK_DEVICE_FN float ftk_log1p(float x) {
    if (!(x > -1.0f))
        return x == -1.0f ? -ftk_f32_from_bits(0x7f800000u) : ftk_f32_from_bits(0x7fc00000u);
    if (x == 0.0f || ftk_f32_bits(x) == 0x7f800000u) return x;
    double f = (double)x;
    if (f > -0.29 && f < 0.41) return (float)ftk_log1p_core(f);
    return (float)ftk_log_f64(1.0 + f);
}

/* log(1 + exp(x)), by definition x itself above 20. */
FTK_DEVICE_FN float ftk_softplus(float x) {
    return x > 20.0f ? x : ftk_log1p(ftk_exp(x));
}

/* Sine and cosine of an angle, |angle| up to 2^24. */
FTK_DEVICE_FN void ftk_sincos(double angle, float *sine, float *cosine) {
    double sum = ftk_fma_f64(angle, 0.63661977236758134, FTK_ROUND_F64); /* 2 / pi */
    double n = sum - FTK_ROUND_F64;
    double r = ftk_fma_f64(n, -1.5707963267948966, angle);
    r = ftk_fma_f64(n, -6.123233995736766e-17, r);
    double z = r * r;
    double s = -1.0 / 39916800.0; /* -1/11! */
    s = ftk_fma_f64(s, z, 1.0 / 362880.0);
    s = ftk_fma_f64(s, z, -1.0 / 5040.0);
    s = ftk_fma_f64(s, z, 1.0 / 120.0);
    s = ftk_fma_f64(s, z, -1.0 / 6.0);
    s = ftk_fma_f64(s * z, r, r);
    double c = 1.0 / 479001600.0; /* 1/12! */
    c = ftk_fma_f64(c, z, -1.0 / 3628800.0);
    c = ftk_fma_f64(c, z, 1.0 / 40320.0);
    c = ftk_fma_f64(c, z, -1.0 / 720.0);
    c = ftk_fma_f64(c, z, 1.0 / 24.0);
    c = ftk_fma_f64(c, z, -0.5);
    c = ftk_fma_f64(c, z, 1.0);
    uint64_t quadrant = ftk_f64_bits(sum);
    double a = quadrant & 1u ? c : s;
    double b = quadrant & 1u ? s : c;
    *sine = (float)(quadrant & 2u ? -a : a);
    *cosine = (float)((quadrant + 1u) & 2u ? -b : b);
}

/* exp(x) in double for |x| < 700, relative error below 2^-51. */
FTK_DEVICE_FN double ftk_exp_f64(double x) {
    double sum = ftk_fma_f64(x, 1.4426950408889634, FTK_ROUND_F64);
    double n = sum - FTK_ROUND_F64;
    double r = ftk_fma_f64(n, -0.693147180559945286, x);
    r = ftk_fma_f64(n, -2.3190468138462996e-17, r);
    double p = 1.0 / 87178291200.0; /* 1/14!, then down to 1/0! */
    p = ftk_fma_f64(p, r, 1.0 / 6227020800.0);
    p = ftk_fma_f64(p, r, 1.0 / 479001600.0);
    p = ftk_fma_f64(p, r, 1.0 / 39916800.0);
    p = ftk_fma_f64(p, r, 1.0 / 3628800.0);
    p = ftk_fma_f64(p, r, 1.0 / 362880.0);
    p = ftk_fma_f64(p, r, 1.0 / 40320.0);
    p = ftk_fma_f64(p, r, 1.0 / 5040.0);
    p = ftk_fma_f64(p, r, 1.0 / 720.0);
    p = ftk_fma_f64(p, r, 1.0 / 120.0);
    p = ftk_fma_f64(p, r, 1.0 / 24.0);
    p = ftk_fma_f64(p, r, 1.0 / 6.0);
    p = ftk_fma_f64(p, r, 0.5);
    p = ftk_fma_f64(p, r, 1.0);
    p = ftk_fma_f64(p, r, 1.0);
    uint64_t exponent = ftk_f64_bits(sum) - ftk_f64_bits(FTK_ROUND_F64) + 1023u;
    return p * ftk_f64_from_bits(exponent << 52);
}

/* theta^(-2j / dim), the turn per position of a rotary pair, from log_theta =
 * ftk_log_f64(theta). Relative error below 2^-45 for theta up to 10^9. */
FTK_DEVICE_FN double ftk_rope_frequency(double log_theta, uint32_t j, uint32_t dim) {
    double power = (double)(2u * j) / (double)dim;
    return ftk_exp_f64(-(power * log_theta));
}

#endif
