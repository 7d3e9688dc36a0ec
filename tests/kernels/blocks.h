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
    {FTK_TYPE_Q6_K, 256, 210, "Q6_K"},
};

static inline bool is_k(uint32_t type) {
    return type == FTK_TYPE_Q4_K || type == FTK_TYPE_Q5_K || type == FTK_TYPE_Q6_K;
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

/* One weight: value = d * scale * q - dmin * min. Float types: d = 1, and f. */
typedef struct element {
    int q;
    int scale;
    int min;
    float d;
    float dmin;
    float f;
} element;

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
    case FTK_TYPE_Q8_0:
        e.d = half_at(row + i / 32 * 34);
        e.q = (int8_t)row[i / 32 * 34 + 2 + i % 32];
        e.scale = 1;
        return e;
    case FTK_TYPE_Q4_K: return k45_element(row + i / 256 * 144, (int)(i % 256), false);
    case FTK_TYPE_Q5_K: return k45_element(row + i / 256 * 176, (int)(i % 256), true);
    default: return k6_element(row + i / 256 * 210, (int)(i % 256));
    }
}

/* The value as f32, in the order of operations that the format defines. */
static inline float value_of(uint32_t type, const uint8_t *row, uint32_t i) {
    element e = element_of(type, row, i);
    if (!is_k(type)) return type == FTK_TYPE_Q8_0 ? (float)e.q * e.d : e.f;
    float scaled = e.d * (float)e.scale * (float)e.q;
    if (type == FTK_TYPE_Q6_K) return scaled;
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
        put_half(b + (t->type == FTK_TYPE_Q6_K ? 208 : 0), rnd_half(state));
        if (t->type == FTK_TYPE_Q4_K || t->type == FTK_TYPE_Q5_K) put_half(b + 2, rnd_half(state));
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
    if (type != FTK_TYPE_Q6_K) {
        float offset = e.dmin * (float)minima;
        v = fmaf(e.d, (float)product, -offset);
    }
    return d * v;
}

static inline float ref_term_q8(const uint8_t *row, uint32_t first, uint32_t n, const int *q,
                                const float *d) {
    float e[8] = {0};
    float f[8] = {0};
    for (uint32_t i = 0; i < n; i++) {
        element w = element_of(FTK_TYPE_Q8_0, row, first + i);
        e[i / 32] = w.d * d[i / 32];
        f[i / 32] += (float)(w.q * q[i]); /* exact: below 2^24 */
    }
    float sum = 0;
    for (uint32_t k = 0; k < 4; k++) {
        float even = e[2 * k] * f[2 * k];
        float pair = fmaf(e[2 * k + 1], f[2 * k + 1], even);
        sum = k == 0 ? pair : sum + pair;
    }
    return sum;
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
    if (!is_k(type) && type != FTK_TYPE_Q8_0) return ref_dot_float(type, row, x, cols);
    for (uint32_t first = 0; first < cols; first += 256) {
        uint32_t n = cols - first < 256 ? cols - first : 256;
        if (is_k(type)) {
            d[0] = ref_quantize(x + first, 256, q);
            y += ref_term_k(type, row, first, q, d[0]);
        } else {
            for (uint32_t j = 0; j < n / 32; j++)
                d[j] = ref_quantize(x + first + 32 * j, 32, q + 32 * j);
            y += ref_term_q8(row, first, n, q, d);
        }
    }
    return y;
}

#endif
