/*
 * delta_avx2.h: the pass over a head's state with AVX2. Sixteen columns at a time stay in
 * registers for the length of a segment, and what the token before has left to add is added
 * to a segment just before the next token reads it: the state is read and written once for
 * each token. The operations and their order are those of the plain functions in
 * kernels_impl.h, which includes this file.
 */
#ifndef QWEN36_DELTA_AVX2_H
#define QWEN36_DELTA_AVX2_H

#include <immintrin.h>

#define COLUMNS 16u

/* S becomes alpha * S + k d^T, with these of a token. */
typedef struct delta_update {
    float alpha;
    const float *k;
    const float *d;
} delta_update;

static inline __m256 updated(const float *S, __m256 alpha, __m256 k, __m256 d) {
    return _mm256_fmadd_ps(k, d, _mm256_mul_ps(alpha, _mm256_loadu_ps(S)));
}

/* COLUMNS columns of `rows` rows of the state. `past` may be NULL; whether it is, is a
 * constant where this is called. */
static inline __attribute__((always_inline)) void pass_columns(float *S, uint32_t dim,
                                                               uint32_t rows,
                                                               const delta_update *past,
                                                               const float *k, const float *q,
                                                               float *sk, float *sq) {
    __m256 k0 = _mm256_setzero_ps(), k1 = k0, q0 = k0, q1 = k0, d0 = k0, d1 = k0, alpha = k0;
    if (past) {
        alpha = _mm256_set1_ps(past->alpha);
        d0 = _mm256_loadu_ps(past->d);
        d1 = _mm256_loadu_ps(past->d + 8);
    }
    for (uint32_t i = 0; i < rows; i++, S += dim) {
        __m256 s0, s1, k_i = _mm256_set1_ps(k[i]), q_i = _mm256_set1_ps(q[i]);
        _mm_prefetch((const char *)(S + (size_t)rows * dim), _MM_HINT_T0); /* next segment */
        if (past) {
            __m256 k_past = _mm256_set1_ps(past->k[i]);
            s0 = updated(S, alpha, k_past, d0);
            s1 = updated(S + 8, alpha, k_past, d1);
            _mm256_storeu_ps(S, s0);
            _mm256_storeu_ps(S + 8, s1);
        } else {
            s0 = _mm256_loadu_ps(S);
            s1 = _mm256_loadu_ps(S + 8);
        }
        k0 = _mm256_fmadd_ps(s0, k_i, k0);
        k1 = _mm256_fmadd_ps(s1, k_i, k1);
        q0 = _mm256_fmadd_ps(s0, q_i, q0);
        q1 = _mm256_fmadd_ps(s1, q_i, q1);
    }
    _mm256_storeu_ps(sk, k0);
    _mm256_storeu_ps(sk + 8, k1);
    _mm256_storeu_ps(sq, q0);
    _mm256_storeu_ps(sq + 8, q1);
}

static void pass_state(float *S, uint32_t dim, const delta_update *past, const float *k,
                       const float *q, segment_sums sk, segment_sums sq) {
    uint32_t rows = dim / 8;
    for (uint32_t p = 0; p < 8; p++, S += (size_t)rows * dim, k += rows, q += rows) {
        for (uint32_t j = 0; j < dim; j += COLUMNS) {
            if (past) {
                delta_update here = {past->alpha, past->k + (size_t)p * rows, past->d + j};
                pass_columns(S + j, dim, rows, &here, k, q, sk[p] + j, sq[p] + j);
            } else {
                pass_columns(S + j, dim, rows, NULL, k, q, sk[p] + j, sq[p] + j);
            }
        }
    }
}

/* Rows lie far apart, so that the processor does not foresee the next one. */
static void fetch_token(const qwen36_delta_args *a, uint32_t head, int32_t row) {
    uint32_t key_head = qwen36_key_head(head, a->key_heads, a->value_heads, a->grouped_value_heads);
    const uint32_t heads[] = {key_head, a->key_heads + key_head, 2 * a->key_heads + head};
    const float *u = a->qkv + (size_t)row * a->channels;
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t j = 0; j < a->dim; j += 16)
            _mm_prefetch((const char *)(u + (size_t)heads[i] * a->dim + j), _MM_HINT_T0);
}

/* The same as delta_rows_plain, for dim a multiple of COLUMNS. */
static void delta_rows_avx2(const qwen36_delta_args *a, float *S, uint32_t head, int32_t row,
                            int32_t end) {
    uint32_t dim = a->dim, turn = 0;
    float k[2][QWEN36_MAX_DIM], d[2][QWEN36_MAX_DIM];
    segment_sums sk, sq;
    delta_update past = {0.0f, NULL, NULL};
    for (; row < end; row++, turn ^= 1) {
        delta_token t;
        read_token(a, head, row, k[turn], &t);
        if (row + 1 < end) fetch_token(a, head, row + 1);
        pass_state(S, dim, past.k ? &past : NULL, k[turn], t.q, sk, sq);
        finish_token(&t, k[turn], sk, sq, dim, d[turn]);
        past = (delta_update){t.alpha, k[turn], d[turn]};
    }
    update_state(S, past.alpha, past.k, past.d, dim);
}

#endif
