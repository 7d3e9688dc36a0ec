/*
 * rig.h: what the kernel tests share: backends of every variant and thread
 * count, random data, buffers with guard bytes on both sides, comparison by bits.
 */
#ifndef TESTS_KERNELS_RIG_H
#define TESTS_KERNELS_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- backends ---- */

typedef struct rig {
    fti_backend *backend;
    ftk_stream *stream;
    const ftk_if_operators *op;
} rig;

typedef struct setup {
    uint32_t mask;
    uint32_t threads;
} setup;

/* The reference on one thread comes first; every other one must agree with it. */
static const setup setups[] = {
    {0, 1},
    {UINT32_MAX, 1},
    {0, 2},
    {UINT32_MAX, 2},
    {UINT32_MAX, 4},
#if defined(__x86_64__) /* which has more than one set of vector kernels */
    {FTI_CPU_MASK_AVX2, 1},
    {FTI_CPU_MASK_AVX2, 3},
#endif
};

static inline rig rig_open_as(uint32_t mask, uint32_t threads, bool float_numerics) {
    fti_backend_options options = {
        .threads = threads, .kernel_mask = mask, .float_numerics = float_numerics};
    ftk_error error = FTK_ERROR_INIT;
    rig r = {NULL, NULL, NULL};
    if (fti_cpu_backend_create(&options, &r.backend, &error) != FTK_OK)
        fail_msg("%s", error.message);
    assert_int_equal(r.backend->ops->stream_create(r.backend, &r.stream, &error), FTK_OK);
    r.op = r.backend->operators;
    return r;
}

static inline rig rig_open(size_t i) {
    return rig_open_as(setups[i].mask, setups[i].threads, false);
}

static inline void rig_close(rig *r) {
    r->backend->ops->stream_destroy(r->stream);
    r->backend->ops->destroy(r->backend);
}

/* ---- random data ---- */

static inline uint32_t rnd(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

static inline uint32_t rnd_below(uint64_t *state, uint32_t n) {
    return rnd(state) % n;
}

/* Uniform in [-1, 1). */
static inline float rnd_unit(uint64_t *state) {
    return (float)((int32_t)rnd(state) >> 8) / 8388608.0f;
}

static inline void rnd_floats(uint64_t *state, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = rnd_unit(state);
}

/* ---- guarded memory: 64-byte aligned, garbage inside, a pattern around ---- */

#define GUARD 64u

typedef struct guarded {
    void *data;
    size_t bytes;
} guarded;

static inline guarded guarded_new(size_t bytes) {
    void *base = NULL;
    size_t whole = (bytes + 63) / 64 * 64 + 2 * GUARD;
    assert_int_equal(posix_memalign(&base, 64, whole), 0);
    memset(base, 0xa5, whole);
    return (guarded){(uint8_t *)base + GUARD, bytes};
}

static inline float *guarded_floats(guarded *g, size_t n) {
    *g = guarded_new(n * sizeof(float));
    return g->data;
}

static inline void guarded_free(guarded *g) {
    const uint8_t *p = g->data;
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(p[-1 - (ptrdiff_t)i], 0xa5);
        assert_int_equal(p[g->bytes + i], 0xa5);
    }
    free((uint8_t *)g->data - GUARD);
}

/* ---- comparison ---- */

static inline uint32_t bits_of(float f) {
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}

static inline float from_bits(uint32_t b) {
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

/* NaN payloads are not promised. */
static inline bool same_float(float a, float b) {
    return bits_of(a) == bits_of(b) || (a != a && b != b);
}

static inline void assert_same_floats(const float *got, const float *wanted, size_t n,
                                      const char *what) {
    for (size_t i = 0; i < n; i++)
        if (!same_float(got[i], wanted[i]))
            fail_msg("%s: value %zu is %a, wanted %a", what, i, (double)got[i], (double)wanted[i]);
}

#endif
