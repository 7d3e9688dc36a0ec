/*
 * blocks.h: an independent reading of the weight blocks, one element at a time,
 * and random or extreme blocks, for the kernel tests.
 */
#ifndef TESTS_KERNELS_BLOCKS_H
#define TESTS_KERNELS_BLOCKS_H

#include <math.h>

#include "rig.h"

typedef struct block_type {
    uint32_t type;
    uint32_t elements;
    uint32_t bytes;
    const char *name;
} block_type;

static const block_type block_types[] = {
    {FTK_TYPE_F32, 1, 4, "F32"},       {FTK_TYPE_F16, 1, 2, "F16"},
    {FTK_TYPE_BF16, 1, 2, "BF16"},     {FTK_TYPE_Q8_0, 32, 34, "Q8_0"},
    {FTK_TYPE_Q4_K, 256, 144, "Q4_K"}, {FTK_TYPE_Q5_K, 256, 176, "Q5_K"},
    {FTK_TYPE_Q6_K, 256, 210, "Q6_K"}, {FTK_TYPE_Q4_0, 32, 18, "Q4_0"},
    {FTK_TYPE_Q4_1, 32, 20, "Q4_1"},   {FTK_TYPE_Q5_0, 32, 22, "Q5_0"},
    {FTK_TYPE_Q5_1, 32, 24, "Q5_1"},   {FTK_TYPE_Q2_K, 256, 84, "Q2_K"},
    {FTK_TYPE_Q3_K, 256, 110, "Q3_K"}, {FTK_TYPE_IQ4_NL, 32, 18, "IQ4_NL"},
    {FTK_TYPE_MXFP4, 32, 17, "MXFP4"}, {FTK_TYPE_IQ4_XS, 256, 136, "IQ4_XS"},
    {FTK_TYPE_NVFP4, 64, 36, "NVFP4"},
};

/* Where a block has its f16 scale and its f16 minimum; -1: none of that kind. */
static inline int scale_at(uint32_t type) {
    switch (type) {
    case FTK_TYPE_Q2_K: return 80;
    case FTK_TYPE_Q3_K: return 108;
    case FTK_TYPE_Q6_K: return 208;
    case FTK_TYPE_MXFP4:
    case FTK_TYPE_NVFP4: return -1;
    default: return 0;
    }
}

static inline int minimum_at(uint32_t type) {
    switch (type) {
    case FTK_TYPE_Q2_K: return 82;
    case FTK_TYPE_Q4_1:
    case FTK_TYPE_Q5_1:
    case FTK_TYPE_Q4_K:
    case FTK_TYPE_Q5_K: return 2;
    default: return -1;
    }
}

static inline bool is_k(uint32_t type) {
    for (size_t i = 0; i < COUNT(block_types); i++)
        if (block_types[i].type == type) return block_types[i].elements == 256;
    return false;
}

static inline float ref_half(uint32_t h) {
    int exponent = (int)(h >> 10 & 31);
    double fraction = h & 1023;
    double v = exponent == 0    ? ldexp(fraction, -24)
               : exponent == 31 ? (fraction > 0 ? (double)NAN : (double)INFINITY)
                                : ldexp(1024 + fraction, exponent - 25);
    return (float)(h & 0x8000u ? -v : v);
}

static inline float half_at(const uint8_t *p) {
    return ref_half((uint32_t)p[0] | (uint32_t)p[1] << 8);
}

/* One weight: value = d * scale * q - dmin * min, or q * d + m in small blocks.
 * Float types: d = 1, and f. */
typedef struct element {
    int q;
    int scale;
    int min;
    float d;
    float dmin;
    float m;
    float f;
} element;

static const int iq4_codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

/* Twice a number of one sign, two exponent bits and one fraction bit. */
static inline int e2m1_doubled(int nibble) {
    int exponent = nibble / 2 % 4;
    double v = exponent == 0 ? 0.5 * (nibble % 2) : ldexp(1 + 0.5 * (nibble % 2), exponent - 1);
    return (int)(nibble >= 8 ? -2 * v : 2 * v);
}

static inline float ref_e8m0(int e) {
    return e == 255 ? NAN : (float)ldexp(1, e - 127);
}

static inline float ref_ue4m3(int x) {
    int exponent = x / 8 % 16;
    int fraction = x % 8;
    if (x == 0x7f) return 0;
    if (exponent == 0) return (float)ldexp(fraction, -9);
    return (float)ldexp(8 + fraction, exponent - 10);
}

static inline int nibble_of(const uint8_t *qs, int i, int half) {
    return i < half ? qs[i] % 16 : qs[i - half] / 16;
}

static inline element leaf_element(uint32_t type, const uint8_t *b, int i) {
    element e = {.scale = 1, .d = type == FTK_TYPE_MXFP4 ? ref_e8m0(b[0]) / 2 : half_at(b)};
    if (minimum_at(type) >= 0) e.m = half_at(b + 2);
    switch (type) {
    case FTK_TYPE_Q4_0: e.q = nibble_of(b + 2, i, 16) - 8; break;
    case FTK_TYPE_Q4_1: e.q = nibble_of(b + 4, i, 16); break;
    case FTK_TYPE_Q5_0:
        e.q = nibble_of(b + 6, i, 16) + 16 * (b[2 + i / 8] >> i % 8 & 1) - 16;
        break;
    case FTK_TYPE_Q5_1: e.q = nibble_of(b + 8, i, 16) + 16 * (b[4 + i / 8] >> i % 8 & 1); break;
    case FTK_TYPE_IQ4_NL: e.q = iq4_codes[nibble_of(b + 2, i, 16)]; break;
    case FTK_TYPE_MXFP4: e.q = e2m1_doubled(nibble_of(b + 1, i, 16)); break;
    default: e.q = (int8_t)b[2 + i];
    }
    return e;
}

static inline element nvfp4_element(const uint8_t *b, int i) {
    element e = {.scale = 1, .d = ref_ue4m3(b[i / 16]) / 2};
    e.q = e2m1_doubled(nibble_of(b + 4 + i / 16 * 8, i % 16, 8));
    return e;
}

static inline element k2_element(const uint8_t *b, int i) {
    element e = {.d = half_at(b + 80), .dmin = half_at(b + 82)};
    e.scale = b[i / 16] % 16;
    e.min = b[i / 16] / 16;
    e.q = b[16 + 32 * (i / 128) + i % 32] >> (i % 128 / 32 * 2) & 3;
    return e;
}

static inline element k3_element(const uint8_t *b, int i) {
    element e = {.d = half_at(b + 108)};
    int k = i / 16;
    int low = nibble_of(b + 96, k, 8);
    int high = b[96 + 8 + k % 4] >> (k / 4 * 2) & 3;
    e.scale = low + 16 * high - 32;
    e.q = b[32 + 32 * (i / 128) + i % 32] >> (i % 128 / 32 * 2) & 3;
    if (!(b[i % 32] & 1 << i / 32)) e.q -= 4;
    return e;
}

static inline element xs_element(const uint8_t *b, int i) {
    element e = {.d = half_at(b)};
    int sub = i / 32;
    int high = (b[2] + 256 * b[3]) >> (2 * sub) & 3;
    e.scale = (sub % 2 ? b[4 + sub / 2] / 16 : b[4 + sub / 2] % 16) + 16 * high - 32;
    e.q = iq4_codes[nibble_of(b + 8 + 16 * sub, i % 32, 16)];
    return e;
}

static inline void sub_scales(const uint8_t *s, int j, element *e) {
    if (j < 4) {
        e->scale = s[j] % 64;
        e->min = s[j + 4] % 64;
    } else {
        e->scale = s[j + 4] % 16 + 16 * (s[j - 4] / 64);
        e->min = s[j + 4] / 16 + 16 * (s[j] / 64);
    }
}

static inline element k45_element(const uint8_t *b, int i, bool five) {
    element e = {.d = half_at(b), .dmin = half_at(b + 2)};
    int j = i / 32;
    int byte = (five ? b + 48 : b + 16)[i / 64 * 32 + i % 32];
    sub_scales(b + 4, j, &e);
    e.q = j % 2 ? byte / 16 : byte % 16;
    if (five && (b[16 + i % 32] >> j & 1)) e.q += 16;
    return e;
}

static inline element k6_element(const uint8_t *b, int i) {
    element e = {.d = half_at(b + 208), .scale = (int8_t)b[192 + i / 16]};
    int half = i / 128;
    int quarter = i % 128 / 32;
    int l = i % 32;
    int low = b[64 * half + 32 * (quarter % 2) + l];
    low = quarter < 2 ? low % 16 : low / 16;
    e.q = low + 16 * (b[128 + 32 * half + l] >> (2 * quarter) & 3) - 32;
    return e;
}

static inline element element_of(uint32_t type, const uint8_t *row, uint32_t i) {
    element e = {.d = 1};
    uint32_t bits;
    switch (type) {
    case FTK_TYPE_F32: memcpy(&e.f, row + 4 * (size_t)i, 4); return e;
    case FTK_TYPE_F16: e.f = half_at(row + 2 * (size_t)i); return e;
    case FTK_TYPE_BF16:
        bits = (uint32_t)row[2 * (size_t)i] << 16 | (uint32_t)row[2 * (size_t)i + 1] << 24;
        e.f = from_bits(bits);
        return e;
    case FTK_TYPE_NVFP4: return nvfp4_element(row + i / 64 * 36, (int)(i % 64));
    case FTK_TYPE_Q2_K: return k2_element(row + i / 256 * 84, (int)(i % 256));
    case FTK_TYPE_Q3_K: return k3_element(row + i / 256 * 110, (int)(i % 256));
    case FTK_TYPE_IQ4_XS: return xs_element(row + i / 256 * 136, (int)(i % 256));
    case FTK_TYPE_Q4_K: return k45_element(row + i / 256 * 144, (int)(i % 256), false);
    case FTK_TYPE_Q5_K: return k45_element(row + i / 256 * 176, (int)(i % 256), true);
    case FTK_TYPE_Q6_K: return k6_element(row + i / 256 * 210, (int)(i % 256));
    default: break;
    }
    for (size_t t = 0; t < COUNT(block_types); t++)
        if (block_types[t].type == type)
            return leaf_element(type, row + i / 32 * block_types[t].bytes, (int)(i % 32));
    return e;
}

/* The value as f32, in the order of operations that the format defines. */
static inline float value_of(uint32_t type, const uint8_t *row, uint32_t i) {
    element e = element_of(type, row, i);
    if (e.scale == 0 && !is_k(type)) return e.f;
    float product = (float)e.q * e.d;
    if (!is_k(type)) return minimum_at(type) < 0 ? product : product + e.m;
    float scaled = e.d * (float)e.scale * (float)e.q;
    if (minimum_at(type) < 0) return scaled;
    float min = e.dmin * (float)e.min;
    return scaled - min;
}

static inline void put_half(uint8_t *p, uint32_t h) {
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* A finite f16: normal and subnormal, of either sign. */
static inline uint32_t rnd_half(uint64_t *state) {
    uint32_t exponent = rnd_below(state, 8) == 0 ? 0 : 6 + rnd_below(state, 8);
    return rnd_below(state, 2) << 15 | exponent << 10 | rnd_below(state, 1024);
}

/* Fills `rows` rows with random blocks; every fourth block has all its bits set
 * or clear in the integer fields: the limits of the format. */
static inline void fill_weights(const block_type *t, uint8_t *data, uint64_t rows, uint64_t cols,
                                uint64_t *state) {
    uint64_t blocks = rows * (cols / t->elements);
    for (uint64_t i = 0; i < blocks; i++) {
        uint8_t *b = data + i * t->bytes;
        float f = rnd_unit(state);
        if (t->type == FTK_TYPE_F32) {
            memcpy(b, &f, 4);
            continue;
        }
        if (t->elements == 1) {
            put_half(b, t->type == FTK_TYPE_F16 ? rnd_half(state) : bits_of(f) >> 16);
            continue;
        }
        uint32_t extreme = rnd_below(state, 8);
        for (uint32_t k = 0; k < t->bytes; k++)
            b[k] = extreme == 0 ? 0xff : extreme == 1 ? 0x80 : (uint8_t)rnd(state);
        if (scale_at(t->type) >= 0) put_half(b + scale_at(t->type), rnd_half(state));
        if (minimum_at(t->type) >= 0) put_half(b + minimum_at(t->type), rnd_half(state));
        if (t->type == FTK_TYPE_MXFP4)
            b[0] = (uint8_t)(extreme == 2 ? rnd_below(state, 3) : 116 + rnd_below(state, 12));
    }
}

/* ---- the definition of packed activations and products, in plain scalars ---- */

static inline float ref_quantize(const float *x, uint32_t n, int *q) {
    float max = 0;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) finite = false;
        if (fabsf(x[i]) > max) max = fabsf(x[i]);
    }
    for (uint32_t i = 0; i < n; i++) q[i] = 0;
    if (!finite) return NAN;
    if (max < ldexpf(1, -100)) return 0;
    float d = max / 127.0f;
    float r = 1.0f / d;
    for (uint32_t i = 0; i < n; i++) {
        float v = x[i] * r;
        v = nearbyintf(v);
        q[i] = v > 127 ? 127 : v < -127 ? -127 : (int)v;
    }
    return d;
}

static inline float ref_term_k(uint32_t type, const uint8_t *row, uint32_t first, const int *q,
                               float d) {
    int64_t product = 0;
    int64_t minima = 0;
    element e = {0};
    for (uint32_t i = 0; i < 256; i++) {
        e = element_of(type, row, first + i);
        product += (int64_t)e.scale * e.q * q[i];
        minima += (int64_t)e.min * q[i];
    }
    assert_true(product >= INT32_MIN && product <= INT32_MAX);
    float v = e.d * (float)product;
    if (minimum_at(type) >= 0) {
        float offset = e.dmin * (float)minima;
        v = fmaf(e.d, (float)product, -offset);
    }
    return d * v;
}

/* The four pairs of a group, then their sum. */
static inline float ref_join(const float *pairs) {
    float sum = pairs[0] + pairs[1];
    sum += pairs[2];
    return sum + pairs[3];
}

static inline float ref_term_leaf(uint32_t type, const uint8_t *row, uint32_t first, uint32_t n,
                                  const int *q, const float *d) {
    float e[8] = {0};
    float f[8] = {0};
    float m[8] = {0};
    float pairs[4];
    int sums[8] = {0};
    for (uint32_t i = 0; i < n; i++) {
        element w = element_of(type, row, first + i);
        e[i / 32] = w.d * d[i / 32];
        m[i / 32] = w.m;
        f[i / 32] += (float)(w.q * q[i]); /* exact: below 2^24 */
        sums[i / 32] += q[i];
    }
    for (uint32_t k = 0; k < 4; k++) {
        float even = e[2 * k] * f[2 * k];
        float odd = e[2 * k + 1] * f[2 * k + 1];
        if (minimum_at(type) < 0) {
            pairs[k] = fmaf(e[2 * k + 1], f[2 * k + 1], even);
            continue;
        }
        for (uint32_t j = 2 * k; j < 2 * k + 2 && j < n / 32; j++) {
            float offset = d[j] * (float)sums[j];
            *(j % 2 ? &odd : &even) = fmaf(m[j], offset, j % 2 ? odd : even);
        }
        pairs[k] = even + odd;
    }
    return ref_join(pairs);
}

/* A leaf is the exact sum of 32 products of scale, code and byte, which a double
 * holds, rounded to f32. */
static inline float ref_term_nvfp4(const uint8_t *row, uint32_t first, uint32_t n, const int *q,
                                   const float *d) {
    double exact[8] = {0};
    float pairs[4];
    for (uint32_t i = 0; i < n; i++) {
        element w = element_of(FTK_TYPE_NVFP4, row, first + i);
        exact[i / 32] += (double)w.d * (w.q * q[i]);
    }
    for (uint32_t k = 0; k < 4; k++) {
        bool there = 2 * k < n / 32;
        float even = there ? d[2 * k] * (float)exact[2 * k] : 0;
        pairs[k] = there ? fmaf(d[2 * k + 1], (float)exact[2 * k + 1], even) : 0;
    }
    return ref_join(pairs);
}

static inline float ref_lanes(const float *a, const float *b, uint32_t n) {
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++) lanes[i % 16] = fmaf(a[i], b[i], lanes[i % 16]);
    for (uint32_t width = 8; width >= 1; width /= 2)
        for (uint32_t l = 0; l < width; l++) lanes[l] += lanes[l + width];
    return lanes[0];
}

/* y = row . x with weights as floats. */
static inline float ref_dot_float(uint32_t type, const uint8_t *row, const float *x,
                                  uint32_t cols) {
    float *w = malloc(cols * sizeof *w);
    for (uint32_t i = 0; i < cols; i++) w[i] = value_of(type, row, i);
    float y = ref_lanes(w, x, cols);
    free(w);
    return y;
}

/* y = row . x in the exact mode. */
static inline float ref_dot(uint32_t type, const uint8_t *row, const float *x, uint32_t cols) {
    float y = 0;
    int q[256];
    float d[8];
    bool floats = type == FTK_TYPE_F32 || type == FTK_TYPE_F16 || type == FTK_TYPE_BF16;
    if (floats) return ref_dot_float(type, row, x, cols);
    for (uint32_t first = 0; first < cols; first += 256) {
        uint32_t n = cols - first < 256 ? cols - first : 256;
        if (is_k(type)) {
            d[0] = ref_quantize(x + first, 256, q);
            y += ref_term_k(type, row, first, q, d[0]);
        } else {
            for (uint32_t j = 0; j < n / 32; j++)
                d[j] = ref_quantize(x + first + 32 * j, 32, q + 32 * j);
            y += type == FTK_TYPE_NVFP4 ? ref_term_nvfp4(row, first, n, q, d)
                                        : ref_term_leaf(type, row, first, n, q, d);
        }
    }
    return y;
}

#endif
