/*
 * kernels_impl.h: the bodies of kernels.h in plain C with explicit fma, so that
 * every compilation gives the same bits. Included once per instruction set, after
 * QWEN36_SET names the kernel set to define.
 */
#include "kernels.h"

#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <freetoken/device/dot.h>
#include <freetoken/device/math.h>

/* The weights of a block of channels, tap after tap, so that channels lie side by side. */
typedef float conv_taps[QWEN36_MAX_TAPS][QWEN36_CONV_BLOCK];

static void read_taps(const qwen36_conv_args *a, uint32_t first, uint32_t n, conv_taps w) {
    const float *weight = a->weight + (size_t)first * a->taps;
    uint32_t c = 0;
#ifdef __AVX2__
    for (; c + 4 <= n && a->taps == 4; c += 4) {
        __m128 t0 = _mm_loadu_ps(weight + 4 * c), t1 = _mm_loadu_ps(weight + 4 * c + 4);
        __m128 t2 = _mm_loadu_ps(weight + 4 * c + 8), t3 = _mm_loadu_ps(weight + 4 * c + 12);
        _MM_TRANSPOSE4_PS(t0, t1, t2, t3);
        _mm_storeu_ps(&w[0][c], t0);
        _mm_storeu_ps(&w[1][c], t1);
        _mm_storeu_ps(&w[2][c], t2);
        _mm_storeu_ps(&w[3][c], t3);
    }
#endif
    for (; c < n; c++)
        for (uint32_t k = 0; k < a->taps; k++) w[k][c] = weight[(size_t)c * a->taps + k];
}

/* y = silu of the sums over the taps; `window` is as below. */
static void conv_row(uint32_t past, uint32_t n, conv_taps w, float (*window)[QWEN36_CONV_BLOCK],
                     const float *u, float *y) {
    float sum[QWEN36_CONV_BLOCK] = {0.0f};
    for (uint32_t k = 0; k < past; k++)
        for (uint32_t c = 0; c < n; c++) sum[c] = ftk_fma(w[k][c], window[k][c], sum[c]);
    for (uint32_t c = 0; c < n; c++) sum[c] = ftk_fma(w[past][c], u[c], sum[c]);
    for (uint32_t c = 0; c < n; c++) sum[c] = ftk_silu(sum[c]);
    memcpy(y, sum, n * sizeof *y);
}

/* One channel block of one sequence. `window` holds the taps - 1 raw inputs
 * before the row at hand, oldest first, as the state does. */
static void conv_rows(const qwen36_conv_args *a, float *state, uint32_t first, uint32_t n,
                      int32_t row, int32_t end) {
    uint32_t past = a->taps - 1;
    float window[QWEN36_MAX_TAPS - 1][QWEN36_CONV_BLOCK];
    conv_taps w;
    read_taps(a, first, n, w);
    for (uint32_t k = 0; k < past; k++)
        memcpy(window[k], state + (size_t)k * a->channels + first, n * sizeof(float));
    for (; row < end; row++) {
        const float *u = a->u + (size_t)row * a->channels + first;
        conv_row(past, n, w, window, u, a->y + (size_t)row * a->channels + first);
        memmove(window[0], window[1], (past - 1) * sizeof window[0]);
        memcpy(window[past - 1], u, n * sizeof(float));
    }
    for (uint32_t k = 0; k < past; k++)
        memcpy(state + (size_t)k * a->channels + first, window[k], n * sizeof(float));
}

static void conv(const void *args, uint64_t begin, uint64_t end) {
    const qwen36_conv_args *a = args;
    uint32_t blocks = (a->channels + QWEN36_CONV_BLOCK - 1) / QWEN36_CONV_BLOCK;
    for (uint64_t item = begin; item < end; item++) {
        uint64_t s = item / blocks;
        uint32_t first = (uint32_t)(item % blocks) * QWEN36_CONV_BLOCK;
        uint32_t n = a->channels - first < QWEN36_CONV_BLOCK ? a->channels - first
                                                             : QWEN36_CONV_BLOCK;
        int32_t row = a->seq.sequence_rows[s], last = a->seq.sequence_rows[s + 1];
        if (row == last) continue;
        char *slot = a->seq.state + (uint64_t)a->seq.state_slots[s] * a->seq.slot_stride;
        conv_rows(a, (float *)(void *)slot, first, n, row, last);
    }
}

/* y = x / sqrt(sum x^2 + eps) * scale */
static void unit_length(const float *x, uint32_t n, float eps, float scale, float *y) {
    float inverse = scale / ftk_sqrt(ftk_dot_f32(x, x, n) + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] * inverse;
}

/* Sums over the eight segments of the keys. */
typedef float segment_sums[8][QWEN36_MAX_DIM];

static void fold_segments(segment_sums part, uint32_t dim) {
    for (uint32_t half = 4; half > 0; half /= 2)
        for (uint32_t p = 0; p < half; p++)
            for (uint32_t j = 0; j < dim; j++) part[p][j] += part[p + half][j];
}

/* What one token brings to one head. */
typedef struct delta_token {
    float q[QWEN36_MAX_DIM];
    const float *v;
    float *o;
    float alpha;
    float beta;
} delta_token;

static void read_token(const qwen36_delta_args *a, uint32_t head, int32_t row, float *k,
                       delta_token *t) {
    uint32_t dim = a->dim;
    uint32_t key_head = qwen36_key_head(head, a->key_heads, a->value_heads, a->grouped_value_heads);
    const float *u = a->qkv + (size_t)row * a->channels;
    size_t at = (size_t)row * a->value_heads + head;
    unit_length(u + (size_t)key_head * dim, dim, a->eps, 1.0f / ftk_sqrt((float)dim), t->q);
    unit_length(u + (size_t)(a->key_heads + key_head) * dim, dim, a->eps, 1.0f, k);
    t->v = u + (size_t)(2 * a->key_heads + head) * dim;
    t->o = a->o + at * dim;
    t->alpha = ftk_exp(a->a[head] * ftk_softplus(a->alpha[at] + a->dt[head]));
    t->beta = ftk_sigmoid(a->beta[at]);
}

/* o and d from the segments' sums of S^T k and S^T q. */
static void finish_token(const delta_token *t, const float *k, segment_sums sk, segment_sums sq,
                         uint32_t dim, float *restrict d) {
    float kq = ftk_dot_f32(k, t->q, dim);
    float *restrict o = t->o;
    fold_segments(sk, dim);
    fold_segments(sq, dim);
    for (uint32_t j = 0; j < dim; j++) {
        d[j] = t->beta * (t->v[j] - t->alpha * sk[0][j]);
        o[j] = ftk_fma(d[j], kq, t->alpha * sq[0][j]);
    }
}

static void update_state(float *restrict S, float alpha, const float *k, const float *d,
                         uint32_t dim) {
    for (uint32_t i = 0; i < dim; i++) {
        float *row = S + (size_t)i * dim;
        for (uint32_t j = 0; j < dim; j++) row[j] = ftk_fma(k[i], d[j], alpha * row[j]);
    }
}

static void sum_segment(const float *S, const float *k, const float *q, uint32_t dim, float *sk,
                        float *sq) {
    memset(sk, 0, dim * sizeof(float));
    memset(sq, 0, dim * sizeof(float));
    for (uint32_t i = 0; i < dim / 8; i++) {
        const float *row = S + (size_t)i * dim;
        for (uint32_t j = 0; j < dim; j++) {
            sk[j] = ftk_fma(row[j], k[i], sk[j]);
            sq[j] = ftk_fma(row[j], q[i], sq[j]);
        }
    }
}

static void delta_rows_plain(const qwen36_delta_args *a, float *S, uint32_t head, int32_t row,
                             int32_t end) {
    uint32_t dim = a->dim, segment = dim / 8;
    float k[QWEN36_MAX_DIM], d[QWEN36_MAX_DIM];
    segment_sums sk, sq;
    for (; row < end; row++) {
        delta_token t;
        read_token(a, head, row, k, &t);
        for (uint32_t p = 0, i = 0; p < 8; p++, i += segment)
            sum_segment(S + (size_t)i * dim, k + i, t.q + i, dim, sk[p], sq[p]);
        finish_token(&t, k, sk, sq, dim, d);
        update_state(S, t.alpha, k, d, dim);
    }
}

#ifdef __AVX2__
#include "delta_avx2.h"
#define IN_COLUMNS(dim, fast) ((dim) % COLUMNS == 0 ? (fast) : delta_rows_plain)
#else
#define IN_COLUMNS(dim, fast) delta_rows_plain
#endif

static void delta(const void *args, uint64_t begin, uint64_t end) {
    const qwen36_delta_args *a = args;
    for (uint64_t item = begin; item < end; item++) {
        uint64_t s = item / a->value_heads;
        uint32_t head = (uint32_t)(item % a->value_heads);
        int32_t row = a->seq.sequence_rows[s], last = a->seq.sequence_rows[s + 1];
        if (row == last) continue;
        char *slot = a->seq.state + (uint64_t)a->seq.state_slots[s] * a->seq.slot_stride;
        float *S = (float *)(void *)slot + (size_t)head * a->dim * a->dim;
        IN_COLUMNS(a->dim, delta_rows_avx2)(a, S, head, row, last);
    }
}

static void gated_norm(const void *args, uint64_t begin, uint64_t end) {
    const qwen36_gated_norm_args *a = args;
    for (uint64_t item = begin; item < end; item++) {
        const float *o = a->o + item * a->dim, *z = a->z + item * a->dim;
        float *y = a->y + item * a->dim;
        float scale = ftk_rms_factor(o, a->dim, a->eps);
        for (uint32_t i = 0; i < a->dim; i++) y[i] = o[i] * scale * a->weight[i] * ftk_silu(z[i]);
    }
}

static void attention_gate(const void *args, uint64_t begin, uint64_t end) {
    const qwen36_attention_gate_args *a = args;
    for (uint64_t item = begin; item < end; item++) {
        const float *gate = a->qg + (2 * item + 1) * a->dim;
        float *o = a->o + item * a->dim;
        for (uint32_t i = 0; i < a->dim; i++) o[i] *= ftk_sigmoid(gate[i]);
    }
}

const qwen36_kernel_set QWEN36_SET = {conv, delta, gated_norm, attention_gate};
