/*
 * kernels_impl.h: the source of the kernels, plain C, compiled once per variant
 * with FTI_CPU_KERNEL_TABLE naming the table that it defines. The arithmetic is
 * that of device/dot.h and device/math.h; this file adds the loops around it:
 * weights are decoded once and used for up to ROW_TILE rows of activations.
 * A file that defines FTI_CPU_FAST_DOT brings its own dot_panel_k (Q4_K, Q5_K, Q6_K)
 * and dot_panel_q8_0, in a header that it names there, and may set PANEL_ROWS; the other
 * types take the path below everywhere. FTI_CPU_LANES names the sixteen lanes of an
 * instruction set, for attention and the conversion of halves.
 */
#include "backend/backend.h"
#include "backend/cpu/kernels.h"

#include "freetoken/device/dot.h"
#include "freetoken/device/math.h"

#define ROW_TILE 128u /* rows of activations for one reading of a weight */
#ifndef PANEL_ROWS
#define PANEL_ROWS 4u /* weight rows that a dot product takes at a time */
#endif

/* For what must be compiled anew for each constant that it is called with. */
#define INLINE static inline __attribute__((always_inline))

/* ---- decoding ------------------------------------------------------------- */

/* How the blocks of a type are read: by one of the three decoders. */
typedef struct block_reader {
    uint32_t type;
    uint32_t bytes;
    bool minima;
    void (*decode_k)(const uint8_t *, ftk_k_block *);
    void (*decode_leaf)(const uint8_t *, ftk_leaf *);
} block_reader;

static const block_reader block_readers[] = {
    {FTK_TYPE_Q8_0, FTK_Q8_0_BYTES, false, NULL, ftk_q8_0_decode},
    {FTK_TYPE_Q4_K, FTK_Q4_K_BYTES, true, ftk_q4_k_decode, NULL},
    {FTK_TYPE_Q5_K, FTK_Q5_K_BYTES, true, ftk_q5_k_decode, NULL},
    {FTK_TYPE_Q6_K, FTK_Q6_K_BYTES, false, ftk_q6_k_decode, NULL},
    {FTK_TYPE_Q4_0, FTK_Q4_0_BYTES, false, NULL, ftk_q4_0_decode},
    {FTK_TYPE_Q4_1, FTK_Q4_1_BYTES, true, NULL, ftk_q4_1_decode},
    {FTK_TYPE_Q5_0, FTK_Q5_0_BYTES, false, NULL, ftk_q5_0_decode},
    {FTK_TYPE_Q5_1, FTK_Q5_1_BYTES, true, NULL, ftk_q5_1_decode},
    {FTK_TYPE_Q2_K, FTK_Q2_K_BYTES, true, ftk_q2_k_decode, NULL},
    {FTK_TYPE_Q3_K, FTK_Q3_K_BYTES, false, ftk_q3_k_decode, NULL},
    {FTK_TYPE_IQ4_NL, FTK_IQ4_NL_BYTES, false, NULL, ftk_iq4_nl_decode},
    {FTK_TYPE_IQ4_XS, FTK_IQ4_XS_BYTES, false, ftk_iq4_xs_decode, NULL},
    {FTK_TYPE_MXFP4, FTK_MXFP4_BYTES, false, NULL, ftk_mxfp4_decode},
};

/* NULL for float types and NVFP4. */
static const block_reader *reader_of(uint32_t type) {
    for (size_t i = 0; i < FTI_COUNT(block_readers); i++)
        if (block_readers[i].type == type) return &block_readers[i];
    return NULL;
}

static uint32_t row_left(uint32_t cols, uint32_t first) {
    return cols - first < 256 ? cols - first : 256;
}

static void decode_nvfp4_values(const uint8_t *blocks, uint32_t n, float *out) {
    ftk_nv_block block;
    for (uint32_t i = 0; i < n; i += 64) {
        ftk_nvfp4_decode(blocks + (size_t)(i / 64) * FTK_NVFP4_BYTES, &block);
        ftk_nv_values(&block, out + i);
    }
}

static void decode_block_values(uint32_t type, const uint8_t *row, uint32_t first, uint32_t n,
                                float *out) {
    const block_reader *r = reader_of(type);
    ftk_k_block block;
    ftk_leaf leaf;
    if (!r) {
        decode_nvfp4_values(row + (size_t)(first / 64) * FTK_NVFP4_BYTES, n, out);
    } else if (r->decode_k) {
        r->decode_k(row + (size_t)(first / 256) * r->bytes, &block);
        ftk_k_values(&block, r->minima, out);
    } else {
        for (uint32_t i = 0; i < n; i += 32) {
            r->decode_leaf(row + (size_t)((first + i) / 32) * r->bytes, &leaf);
            ftk_leaf_values(&leaf, r->minima, out + i);
        }
    }
}

/* Values of columns first .. first + n - 1 of a row as f32; first is a multiple of
 * 256 and n at most 256. */
static void decode_values(const fti_cpu_matrix *m, const uint8_t *row, uint32_t first, uint32_t n,
                          float *out) {
    switch (m->type) {
    case FTK_TYPE_F32: memcpy(out, row + 4 * (size_t)first, n * sizeof *out); break;
    case FTK_TYPE_F16:
        for (uint32_t i = 0; i < n; i++)
            out[i] = ftk_f16_to_f32(ftk_load_u16(row + 2 * (size_t)(first + i)));
        break;
    case FTK_TYPE_BF16:
        for (uint32_t i = 0; i < n; i++)
            out[i] = ftk_bf16_to_f32(ftk_load_u16(row + 2 * (size_t)(first + i)));
        break;
    default: decode_block_values(m->type, row, first, n, out);
    }
}

static void embed(const void *args, uint64_t begin, uint64_t end) {
    const fti_cpu_embed *a = args;
    for (uint64_t r = begin; r < end; r++) {
        float *y = a->y + r * a->y_stride;
        int32_t token = a->tokens[r];
        if (token < 0 || (uint64_t)token >= a->table_rows) {
            memset(y, 0, a->table.cols * sizeof *y);
            continue;
        }
        const uint8_t *row = a->table.data + (uint64_t)token * a->table.row_bytes;
        for (uint32_t i = 0; i < a->table.cols; i += 256)
            decode_values(&a->table, row, i, row_left(a->table.cols, i), y + i);
    }
}

/* ---- matrix products -------------------------------------------------------- */

/* Up to ROW_TILE rows of activations and where their results go: the result of
 * weight row i is y[n][i]. */
typedef struct tile {
    const uint8_t *in[ROW_TILE];
    float *y[ROW_TILE];
    uint32_t count;
    const uint8_t *next; /* weights that will be wanted after these; NULL: not known */
} tile;

/* Results of a panel of weight rows for the rows of a tile. */
typedef float panel_sums[ROW_TILE][PANEL_ROWS];

static void dot_k(const fti_cpu_matrix *m, const block_reader *reader, const uint8_t *row,
                  const tile *t, uint32_t r, panel_sums acc) {
    size_t scales = m->cols;
    size_t sums = scales + m->cols / 256 * 4;
    ftk_k_block block;
    ftk_k_group group;
    for (uint32_t u = 0; u < m->cols / 256; u++) {
        reader->decode_k(row + (size_t)u * reader->bytes, &block);
        ftk_k_fold(&block, reader->minima, &group);
        for (uint32_t n = 0; n < t->count; n++) {
            const uint8_t *in = t->in[n];
            const int8_t *q = (const int8_t *)in + 256 * (size_t)u;
            const int16_t *s = (const int16_t *)(const void *)(in + sums) + 16 * (size_t)u;
            const float *d = (const float *)(const void *)(in + scales) + u;
            acc[n][r] += ftk_k_term(&group, q, s, *d);
        }
    }
}

/* Bytes and scales of A32 activations from column `first` on. */
static const int8_t *a32_bytes(const tile *t, uint32_t n, uint32_t first) {
    return (const int8_t *)t->in[n] + first;
}

static const float *a32_scales(const fti_cpu_matrix *m, const tile *t, uint32_t n, uint32_t first) {
    return (const float *)(const void *)(t->in[n] + m->cols) + first / 32;
}

static void dot_leaves(const fti_cpu_matrix *m, const block_reader *reader, const uint8_t *row,
                       const tile *t, uint32_t r, panel_sums acc) {
    ftk_leaf leaf;
    ftk_leaf_group group;
    group.minima = reader->minima;
    for (uint32_t first = 0; first < m->cols; first += 256) {
        uint32_t leaves = row_left(m->cols, first) / 32;
        for (uint32_t j = 0; j < leaves; j++) {
            reader->decode_leaf(row + (size_t)(first / 32 + j) * reader->bytes, &leaf);
            ftk_leaf_fold(&leaf, j, &group);
        }
        for (uint32_t n = 0; n < t->count; n++)
            acc[n][r] += ftk_leaf_term(&group, leaves, a32_bytes(t, n, first),
                                       a32_scales(m, t, n, first));
    }
}

static void dot_nvfp4(const fti_cpu_matrix *m, const uint8_t *row, const tile *t, uint32_t r,
                      panel_sums acc) {
    ftk_nv_block block;
    ftk_nv_group group;
    for (uint32_t first = 0; first < m->cols; first += 256) {
        uint32_t columns = row_left(m->cols, first);
        for (uint32_t b = 0; b < columns / 64; b++) {
            ftk_nvfp4_decode(row + (size_t)(first / 64 + b) * FTK_NVFP4_BYTES, &block);
            ftk_nv_fold(&block, b, &group);
        }
        for (uint32_t n = 0; n < t->count; n++)
            acc[n][r] += ftk_nv_term(&group, columns / 32, a32_bytes(t, n, first),
                                     a32_scales(m, t, n, first));
    }
}

/* The path that every block type has; `row_count` rows of the panel are wanted. */
static void dot_panel_plain(const fti_cpu_matrix *m, const uint8_t *const *rows, uint32_t row_count,
                            const tile *t, panel_sums acc) {
    const block_reader *reader = reader_of(m->type);
    for (uint32_t r = 0; r < row_count; r++) {
        if (!reader)
            dot_nvfp4(m, rows[r], t, r, acc);
        else if (reader->decode_k)
            dot_k(m, reader, rows[r], t, r, acc);
        else
            dot_leaves(m, reader, rows[r], t, r, acc);
    }
}

/* A faster one for a panel, NULL where this compilation has none. All rows of the panel may
 * be read and have results, as many as are wanted must. */
typedef void (*fast_dot)(const fti_cpu_matrix *, const uint8_t *const *, uint32_t, const tile *,
                         panel_sums);

#ifdef FTI_CPU_FAST_DOT
#include FTI_CPU_FAST_DOT
static fast_dot fast_dot_of(uint32_t type) {
    switch (type) {
    case FTK_TYPE_Q8_0: return dot_panel_q8_0;
    case FTK_TYPE_Q4_K:
    case FTK_TYPE_Q5_K:
    case FTK_TYPE_Q6_K: return dot_panel_k;
    default: return NULL;
    }
}
#else
static fast_dot fast_dot_of(uint32_t type) {
    (void)type;
    return NULL;
}
#endif

#ifdef FTI_CPU_LANES
#include FTI_CPU_LANES
#include "backend/cpu/float_lanes.h"
#define IN_LANES(dim, fast) ((dim) % 16 == 0 ? (fast) : 0)
#else
#define IN_LANES(dim, fast) 0
#endif

/* The same for weights that are floats themselves. */
static fast_dot fast_float_of(const fti_cpu_matrix *m) {
    bool floats = m->type == FTK_TYPE_F32 || m->type == FTK_TYPE_F16 || m->type == FTK_TYPE_BF16;
    if (!floats) return NULL;
    return IN_LANES(m->cols, dot_panel_float);
}

static void dot_float(const fti_cpu_matrix *m, const uint8_t *row, const tile *t, uint32_t r,
                      panel_sums acc) {
    float lanes[ROW_TILE][16];
    float values[256];
    memset(lanes, 0, t->count * sizeof lanes[0]);
    for (uint32_t first = 0; first < m->cols; first += 256) {
        uint32_t n = row_left(m->cols, first);
        decode_values(m, row, first, n, values);
        for (uint32_t i = 0; i < t->count; i++)
            ftk_lanes_add(lanes[i], values, (const float *)(const void *)t->in[i] + first, n);
    }
    for (uint32_t i = 0; i < t->count; i++) acc[i][r] = ftk_lanes_fold(lanes[i]);
}

/* acc[n][r] = weight row r of the panel . activations of n. */
static void dot_panel(const fti_cpu_matrix *m, bool as_float, const uint8_t *const *rows,
                      uint32_t row_count, const tile *t, panel_sums acc) {
    fast_dot fast = as_float ? fast_float_of(m) : fast_dot_of(m->type);
    memset(acc, 0, t->count * sizeof acc[0]);
    if (as_float && !fast) {
        for (uint32_t r = 0; r < row_count; r++) dot_float(m, rows[r], t, r, acc);
    } else if (fast) {
        fast(m, rows, row_count, t, acc);
    } else {
        dot_panel_plain(m, rows, row_count, t, acc);
    }
}

/* A single row of activations reads on and on as the processor foresees, but for where another
 * stretch begins: so much of it is asked for while the one before ends. */
#define STRETCH_START 2048u

static void fetch_stretch(const fti_cpu_matrix *m, uint64_t rows, const uint8_t *start) {
    uint64_t bytes = rows * m->row_bytes < STRETCH_START ? rows * m->row_bytes : STRETCH_START;
    for (uint64_t i = 0; i < bytes; i += 64) __builtin_prefetch(start + i, 0, 2);
}

/* Rows begin .. end - 1 of a matrix for the rows of a tile. A panel that would
 * reach past the end repeats its last row and drops what comes of it. `after`: the
 * weights that come then, or NULL. */
static void dot_rows(const fti_cpu_matrix *m, bool as_float, bool accumulate, uint64_t begin,
                     uint64_t end, tile *t, const uint8_t *after) {
    panel_sums acc;
    const uint8_t *rows[PANEL_ROWS];
    for (uint64_t i = begin; i < end; i += PANEL_ROWS) {
        uint32_t count = end - i < PANEL_ROWS ? (uint32_t)(end - i) : PANEL_ROWS;
        for (uint32_t r = 0; r < PANEL_ROWS; r++)
            rows[r] = m->data + (i + (r < count ? r : count - 1)) * m->row_bytes;
        t->next = i + PANEL_ROWS < end ? m->data + (i + PANEL_ROWS) * m->row_bytes : after;
        if (t->count == 1 && after && t->next == after) fetch_stretch(m, PANEL_ROWS, after);
        dot_panel(m, as_float, rows, count, t, acc);
        for (uint32_t n = 0; n < t->count; n++) {
            float *y = t->y[n] + i;
            for (uint32_t r = 0; r < count; r++) y[r] = accumulate ? y[r] + acc[n][r] : acc[n][r];
        }
    }
}

static void matmul(const void *args, uint64_t begin, uint64_t end) {
    const fti_cpu_matmul *a = args;
    tile t;
    for (uint32_t first = 0; first < a->rows; first += ROW_TILE) {
        t.count = a->rows - first < ROW_TILE ? a->rows - first : ROW_TILE;
        for (uint32_t n = 0; n < t.count; n++) {
            t.in[n] = a->in.data + (uint64_t)(first + n) * a->in.stride;
            t.y[n] = a->y + (uint64_t)(first + n) * a->y_stride;
        }
        dot_rows(&a->weight, a->as_float, a->accumulate, begin, end, &t,
                 first + ROW_TILE < a->rows ? a->weight.data + begin * a->weight.row_bytes : NULL);
    }
}

/* Expert `e` or the first one after it that has pairs; a->experts: there is none. */
static uint32_t busy_expert(const fti_cpu_grouped *a, uint32_t e) {
    while (e < a->experts && a->offsets[e + 1] == a->offsets[e]) e++;
    return e;
}

/* The expert at place `at` of the list, or of this id; and its weights. */
static uint32_t expert_id(const fti_cpu_grouped *a, uint32_t at) {
    return a->list ? (uint32_t)a->list[at].expert : at;
}

static const uint8_t *expert_data(const fti_cpu_grouped *a, uint32_t at) {
    uint64_t slot = a->list ? (uint64_t)a->list[at].slot : at;
    return a->expert.data + slot * a->expert_stride;
}

/* Rows begin .. end - 1 of one expert, for all of its pairs; then comes `after`. */
static void expert_rows(const fti_cpu_grouped *a, uint32_t at, uint64_t begin, uint64_t end,
                        const uint8_t *after) {
    fti_cpu_matrix expert = a->expert;
    uint32_t e = expert_id(a, at);
    tile t;
    expert.data = expert_data(a, at);
    for (int32_t first = a->offsets[e], stop = a->offsets[e + 1]; first < stop;
         first += (int32_t)ROW_TILE) {
        bool last = stop - first <= (int32_t)ROW_TILE;
        t.count = last ? (uint32_t)(stop - first) : ROW_TILE;
        for (uint32_t n = 0; n < t.count; n++) {
            uint64_t pair = (uint32_t)a->pairs[first + (int32_t)n];
            t.in[n] = a->in.data + pair / a->divisor * a->in.stride;
            t.y[n] = a->y + pair * a->y_stride;
        }
        dot_rows(&expert, a->as_float, false, begin, end, &t,
                 last ? after : expert.data + begin * expert.row_bytes);
    }
}

/* Experts in the order in which they run: those of the list, by their place in it, or all
 * that have pairs, by their id. */
static uint32_t first_expert(const fti_cpu_grouped *a) {
    return a->list ? 0 : busy_expert(a, 0);
}

static uint32_t expert_after(const fti_cpu_grouped *a, uint32_t at) {
    return a->list ? at + 1 : busy_expert(a, at + 1);
}

static uint64_t busy_experts(const fti_cpu_grouped *a) {
    uint64_t busy = 0;
    if (a->list) return a->listed;
    for (uint32_t e = 0; e < a->experts; e++) busy += a->offsets[e + 1] != a->offsets[e];
    return busy;
}

/* Which experts have pairs is known here and not when the work is cut up. So the panels of
 * those that do are counted through, one expert after the other, and each item has an equal
 * share of them: a thread reads long stretches of memory instead of a piece of every expert. */
static void grouped_matmul(const void *args, uint64_t begin, uint64_t end) {
    const fti_cpu_grouped *a = args;
    uint64_t panels = (a->rows + PANEL_ROWS - 1) / PANEL_ROWS, before = 0;
    uint64_t all = busy_experts(a) * panels;
    uint64_t first = begin * all / a->shares, last = end * all / a->shares;
    for (uint32_t at = first_expert(a); before < last; before += panels) {
        uint32_t next = expert_after(a, at);
        uint64_t from = before < first ? first - before : 0;
        uint64_t to = last - before < panels ? last - before : panels;
        bool more = before + panels < last;
        if (from < to)
            expert_rows(a, at, from * PANEL_ROWS, to == panels ? a->rows : to * PANEL_ROWS,
                        more ? expert_data(a, next) : NULL);
        at = next;
    }
}

static void quantize(const void *args, uint64_t begin, uint64_t end) {
    const ftk_activation *a = args;
    uint64_t stride = ftk_act_row_bytes(a->formats, a->cols);
    for (uint64_t r = begin; r < end; r++) {
        const float *x = a->x + r * a->x_stride;
        uint8_t *row = (uint8_t *)a->packed + r * stride;
        if (a->formats & FTK_ACT_A32) ftk_quantize_a32(x, a->cols, row);
        if (a->formats & FTK_ACT_A256)
            ftk_quantize_a256(x, a->cols, row + ftk_act_offset(a->formats, FTK_ACT_A256, a->cols));
    }
}

/* ---- rows -------------------------------------------------------------------- */

static void rms_norm(const void *args, uint64_t begin, uint64_t end) {
    const ftk_op_rms_norm *a = args;
    for (uint64_t r = begin; r < end; r++) {
        for (uint32_t g = 0; g < a->groups; g++) {
            const float *x = a->x + r * a->x_row_stride + g * a->x_group_stride;
            float *y = a->y + r * a->y_row_stride + g * a->y_group_stride;
            float factor = ftk_rms_factor(x, a->n, a->eps);
            for (uint32_t i = 0; i < a->n; i++) y[i] = (x[i] * factor) * a->weight[i];
        }
    }
}

static void rope(const void *args, uint64_t begin, uint64_t end) {
    const fti_cpu_rope *a = args;
    float sine[FTI_CPU_MAX_HEAD_DIM / 2];
    float cosine[FTI_CPU_MAX_HEAD_DIM / 2];
    uint32_t half = a->rotary_dim / 2;
    double log_theta = ftk_log_f64(a->theta);
    for (uint64_t r = begin; r < end; r++) {
        for (uint32_t j = 0; j < half; j++) {
            double frequency = ftk_rope_frequency(log_theta, j, a->rotary_dim);
            ftk_sincos((double)a->positions[r] * frequency, &sine[j], &cosine[j]);
        }
        for (uint32_t h = 0; h < a->heads; h++) {
            float *x = a->x + r * a->row_stride + h * a->head_stride;
            for (uint32_t j = 0; j < half; j++) {
                float u = x[j];
                float v = x[j + half];
                x[j] = ftk_fma(u, cosine[j], -(v * sine[j]));
                x[j + half] = ftk_fma(v, cosine[j], u * sine[j]);
            }
        }
    }
}

static void swiglu(const void *args, uint64_t begin, uint64_t end) {
    const ftk_op_swiglu *a = args;
    /* y may be gate or up: results pass through a buffer so that the loop with
     * the arithmetic has no aliasing to fear. */
    float buffer[64];
    for (uint64_t r = begin; r < end; r++) {
        const float *gate = a->gate + r * a->gate_stride;
        const float *up = a->up + r * a->up_stride;
        float *y = a->y + r * a->y_stride;
        for (uint32_t first = 0; first < a->n; first += 64) {
            uint32_t n = a->n - first < 64 ? a->n - first : 64;
            for (uint32_t i = 0; i < n; i++) buffer[i] = ftk_silu(gate[first + i]) * up[first + i];
            memcpy(y + first, buffer, n * sizeof *y);
        }
    }
}

static void combine(const void *args, uint64_t begin, uint64_t end) {
    const ftk_op_combine *a = args;
    float sum[256];
    for (uint64_t r = begin; r < end; r++) {
        const float *weights = a->weights + r * a->used;
        float gate = a->shared_gate ? ftk_sigmoid(a->shared_gate[r]) : 1.0f;
        for (uint32_t first = 0; first < a->n; first += 256) {
            uint32_t n = row_left(a->n, first);
            uint64_t at = r * a->stride + first;
            memset(sum, 0, n * sizeof *sum);
            for (uint32_t k = 0; k < a->used; k++) {
                const float *c = a->contributions + (r * a->used + k) * a->stride + first;
                for (uint32_t i = 0; i < n; i++) sum[i] = ftk_fma(weights[k], c[i], sum[i]);
            }
            for (uint32_t i = 0; a->shared && i < n; i++)
                sum[i] = ftk_fma(gate, a->shared[at + i], sum[i]);
            for (uint32_t i = 0; i < n; i++) a->y[at + i] = a->residual[at + i] + sum[i];
        }
    }
}

static void gather_rows(const void *args, uint64_t begin, uint64_t end) {
    const ftk_op_gather_rows *a = args;
    for (uint64_t i = begin; i < end; i++)
        memcpy(a->y + i * a->y_stride, a->x + (uint64_t)a->index[i] * a->x_stride,
               a->n * sizeof *a->y);
}

/* ---- routing ------------------------------------------------------------------ */

static void softmax(const float *logits, uint32_t n, float *p) {
    float max = logits[0];
    for (uint32_t e = 1; e < n; e++) max = logits[e] > max ? logits[e] : max;
    for (uint32_t e = 0; e < n; e++) p[e] = ftk_exp(logits[e] - max);
    float sum = 0.0f;
    for (uint32_t e = 0; e < n; e++) sum += p[e];
    for (uint32_t e = 0; e < n; e++) p[e] = p[e] / sum;
}

/* The largest entry that is not taken (taken ones are negative); the first one
 * left if nothing compares, so that NaN still gives distinct experts. */
static uint32_t take_largest(float *p, uint32_t n, float *value) {
    uint32_t best = n;
    for (uint32_t e = 0; e < n; e++) {
        if (p[e] < 0.0f) continue;
        if (best == n || p[e] > p[best]) best = e;
    }
    *value = p[best];
    p[best] = -1.0f;
    return best;
}

static void route(const void *args, uint64_t begin, uint64_t end) {
    const ftk_op_route *a = args;
    const ftk_routing *routing = &a->routing;
    float p[FTI_CPU_MAX_EXPERTS];
    for (uint64_t r = begin; r < end; r++) {
        int32_t *experts = routing->experts + r * routing->used;
        float *weights = routing->weights + r * routing->used;
        float sum = 0.0f;
        softmax(a->logits + r * a->logits_stride, routing->expert_count, p);
        for (uint32_t k = 0; k < routing->used; k++) {
            experts[k] = (int32_t)take_largest(p, routing->expert_count, &weights[k]);
            sum += weights[k];
        }
        for (uint32_t k = 0; k < routing->used; k++) weights[k] = weights[k] / sum;
    }
}

static bool is_real_row(const ftk_op_route *op, uint64_t row) {
    return !op->row_sequence || op->row_sequence[row] >= 0;
}

/* Counting sort. While pairs are placed, offsets[e] is the next free place of
 * expert e, in the end the start of e + 1: one shift makes it right again. */
static void group(const void *args, uint64_t begin, uint64_t end) {
    const ftk_op_route *op = args;
    const ftk_routing *a = &op->routing;
    uint64_t pairs = (uint64_t)a->rows * a->used;
    (void)begin;
    (void)end;
    memset(a->offsets, 0, ((size_t)a->expert_count + 1) * sizeof *a->offsets);
    for (uint64_t i = 0; i < pairs; i++)
        if (is_real_row(op, i / a->used)) a->offsets[a->experts[i] + 1]++;
    for (uint32_t e = 0; e < a->expert_count; e++) a->offsets[e + 1] += a->offsets[e];
    for (uint64_t i = 0; i < pairs; i++)
        if (is_real_row(op, i / a->used)) a->pairs[a->offsets[a->experts[i]]++] = (int32_t)i;
    for (uint32_t e = a->expert_count; e > 0; e--) a->offsets[e] = a->offsets[e - 1];
    a->offsets[0] = 0;
}

/* ---- attention ------------------------------------------------------------------ */

/* Index of position p's vector of KV head 0, in vectors. */
static uint64_t cache_vector(const fti_cpu_cache *c, uint64_t sequence, uint32_t p) {
    uint64_t page = (uint32_t)c->block_table[sequence * c->block_stride + p / c->page_tokens];
    return (page * c->page_tokens + p % c->page_tokens) * c->kv_heads;
}

static void store_vector(uint32_t type, uint8_t *out, const float *x, uint32_t n) {
    uint16_t *half = (uint16_t *)(void *)out;
    switch (type) {
    case FTK_TYPE_F32: memcpy(out, x, n * sizeof *x); break;
    case FTK_TYPE_F16:
        for (uint32_t i = 0; i < n; i++) half[i] = ftk_f32_to_f16(x[i]);
        break;
    case FTK_TYPE_BF16:
        for (uint32_t i = 0; i < n; i++) half[i] = ftk_f32_to_bf16(x[i]);
        break;
    default:
        for (uint32_t i = 0; i < n; i += 32)
            ftk_q8_0_encode(x + i, out + (size_t)(i / 32) * FTK_Q8_0_BYTES);
    }
}

static const float *load_vector(uint32_t type, const uint8_t *in, uint32_t n, float *buffer) {
    const uint16_t *half = (const uint16_t *)(const void *)in;
    ftk_leaf leaf;
    switch (type) {
    case FTK_TYPE_F32: return (const float *)(const void *)in;
    case FTK_TYPE_F16:
        for (uint32_t i = 0; i < n; i++) buffer[i] = ftk_f16_to_f32(half[i]);
        break;
    case FTK_TYPE_BF16:
        for (uint32_t i = 0; i < n; i++) buffer[i] = ftk_bf16_to_f32(half[i]);
        break;
    default:
        for (uint32_t i = 0; i < n; i += 32) {
            ftk_q8_0_decode(in + (size_t)(i / 32) * FTK_Q8_0_BYTES, &leaf);
            ftk_leaf_values(&leaf, 0, buffer + i);
        }
    }
    return buffer;
}

static void kv_append(const void *args, uint64_t begin, uint64_t end) {
    const fti_cpu_kv_append *a = args;
    const fti_cpu_cache *c = &a->cache;
    for (uint64_t r = begin; r < end; r++) {
        int32_t sequence = c->row_sequence[r];
        if (sequence < 0) continue;
        uint64_t at = cache_vector(c, (uint64_t)sequence, (uint32_t)c->positions[r]);
        store_vector(c->type, (uint8_t *)c->keys + at * fti_kv_bytes(c->type, c->key_dim),
                     a->k + r * a->k_stride, c->kv_heads * c->key_dim);
        store_vector(c->type, (uint8_t *)c->values + at * fti_kv_bytes(c->type, c->value_dim),
                     a->v + r * a->v_stride, c->kv_heads * c->value_dim);
    }
}

#define BLK         FTI_CPU_ATTENTION_BLK
#define KEPT_BLOCKS 16u /* whose scores stay between the two passes */

typedef float score_block[FTI_CPU_MAX_TILE][BLK];

/* One row of queries against the keys and values of one KV head. */
typedef struct attention_tile {
    const fti_cpu_attention *a;
    uint64_t sequence;
    uint32_t kv_head;
    uint32_t positions; /* visible ones: 0 .. positions - 1 */
    uint32_t heads;
    const float *q[FTI_CPU_MAX_TILE];
    float *o[FTI_CPU_MAX_TILE];
    float max[FTI_CPU_MAX_TILE];
    float sum[FTI_CPU_MAX_TILE];
    float total[FTI_CPU_MAX_TILE][FTI_CPU_MAX_HEAD_DIM];
    score_block scores[KEPT_BLOCKS];
} attention_tile;

static uint32_t block_size(const attention_tile *t, uint32_t first) {
    return t->positions - first < BLK ? t->positions - first : BLK;
}

static const uint8_t *key_at(const attention_tile *t, uint32_t p) {
    const fti_cpu_cache *c = &t->a->cache;
    uint64_t at = cache_vector(c, t->sequence, p) + t->kv_head;
    return (const uint8_t *)c->keys + at * fti_kv_bytes(c->type, c->key_dim);
}

static const uint8_t *value_at(const attention_tile *t, uint32_t p) {
    const fti_cpu_cache *c = &t->a->cache;
    uint64_t at = cache_vector(c, t->sequence, p) + t->kv_head;
    return (const uint8_t *)c->values + at * fti_kv_bytes(c->type, c->value_dim);
}

static void score_plain(const attention_tile *t, uint32_t first, score_block out) {
    const fti_cpu_cache *c = &t->a->cache;
    float buffer[FTI_CPU_MAX_HEAD_DIM];
    uint32_t n = block_size(t, first);
    for (uint32_t i = 0; i < n; i++) {
        const float *key = load_vector(c->type, key_at(t, first + i), c->key_dim, buffer);
        for (uint32_t h = 0; h < t->heads; h++)
            out[h][i] = t->a->scale * ftk_dot_f32(t->q[h], key, c->key_dim);
    }
}

/* Adds a block's partial sums of weighted values, each begun at +0, to the totals. */
static void weigh_plain(attention_tile *t, uint32_t first, score_block s) {
    const fti_cpu_cache *c = &t->a->cache;
    float buffer[FTI_CPU_MAX_HEAD_DIM];
    float part[FTI_CPU_MAX_TILE][FTI_CPU_MAX_HEAD_DIM];
    uint32_t n = block_size(t, first);
    for (uint32_t h = 0; h < t->heads; h++) memset(part[h], 0, c->value_dim * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        const float *v = load_vector(c->type, value_at(t, first + i), c->value_dim, buffer);
        for (uint32_t h = 0; h < t->heads; h++)
            for (uint32_t d = 0; d < c->value_dim; d++)
                part[h][d] = ftk_fma(s[h][i], v[d], part[h][d]);
    }
    for (uint32_t h = 0; h < t->heads; h++)
        for (uint32_t d = 0; d < c->value_dim; d++) t->total[h][d] += part[h][d];
}

#ifdef FTI_CPU_LANES
#include "backend/cpu/attention_lanes.h"
#endif

typedef void (*score_block_of)(const attention_tile *, uint32_t, score_block);
typedef void (*weigh_block_of)(attention_tile *, uint32_t, score_block);

static void score_positions(const attention_tile *t, uint32_t first, score_block out) {
    score_block_of fast = IN_LANES(t->a->cache.key_dim, score_by_lanes);
    (fast ? fast : score_plain)(t, first, out);
}

static void weigh_values(attention_tile *t, uint32_t first, score_block s) {
    weigh_block_of fast = IN_LANES(t->a->cache.value_dim, weigh_by_lanes);
    (fast ? fast : weigh_plain)(t, first, s);
}

static void find_maxima(attention_tile *t) {
    score_block late;
    for (uint32_t h = 0; h < t->heads; h++) t->max[h] = -ftk_f32_from_bits(0x7f800000u);
    for (uint32_t first = 0; first < t->positions; first += BLK) {
        float(*s)[BLK] = first / BLK < KEPT_BLOCKS ? t->scores[first / BLK] : late;
        uint32_t n = block_size(t, first);
        score_positions(t, first, s);
        for (uint32_t h = 0; h < t->heads; h++)
            for (uint32_t i = 0; i < n; i++) t->max[h] = s[h][i] > t->max[h] ? s[h][i] : t->max[h];
    }
}

/* Adds what one block has to say to the totals. `s` holds its scores and becomes its
 * weights. */
static void add_block(attention_tile *t, uint32_t first, score_block s) {
    uint32_t n = block_size(t, first);
    for (uint32_t h = 0; h < t->heads; h++) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < n; i++) s[h][i] = ftk_exp(s[h][i] - t->max[h]);
        for (uint32_t i = 0; i < n; i++) sum += s[h][i];
        t->sum[h] += sum;
    }
    weigh_values(t, first, s);
}

static void attend(attention_tile *t) {
    uint32_t dim = t->a->cache.value_dim;
    score_block late;
    find_maxima(t);
    for (uint32_t h = 0; h < t->heads; h++) {
        t->sum[h] = 0.0f;
        memset(t->total[h], 0, dim * sizeof(float));
    }
    for (uint32_t first = 0; first < t->positions; first += BLK) {
        if (first / BLK < KEPT_BLOCKS) {
            add_block(t, first, t->scores[first / BLK]);
        } else {
            score_positions(t, first, late);
            add_block(t, first, late);
        }
    }
    for (uint32_t h = 0; h < t->heads; h++)
        for (uint32_t d = 0; d < dim; d++) t->o[h][d] = t->total[h][d] / t->sum[h];
}

static void attention(const void *args, uint64_t begin, uint64_t end) {
    const fti_cpu_attention *a = args;
    const fti_cpu_cache *c = &a->cache;
    uint32_t per_kv_head = a->heads / c->kv_heads;
    attention_tile t;
    t.a = a;
    for (uint64_t i = begin; i < end; i++) {
        uint64_t r = i / a->tiles / c->kv_heads;
        if (c->row_sequence[r] < 0) continue;
        uint32_t first = (uint32_t)(i % a->tiles) * a->tile;
        t.sequence = (uint64_t)c->row_sequence[r];
        t.positions = (uint32_t)c->positions[r] + 1;
        t.kv_head = (uint32_t)(i / a->tiles % c->kv_heads);
        t.heads = per_kv_head - first < a->tile ? per_kv_head - first : a->tile;
        for (uint32_t h = 0; h < t.heads; h++) {
            uint64_t head = (uint64_t)t.kv_head * per_kv_head + first + h;
            t.q[h] = a->q + r * a->q_row_stride + head * a->q_head_stride;
            t.o[h] = a->o + r * a->o_row_stride + head * c->value_dim;
        }
        attend(&t);
    }
}

const fti_cpu_kernels FTI_CPU_KERNEL_TABLE = {
    .embed = embed,
    .rms_norm = rms_norm,
    .quantize = quantize,
    .matmul = matmul,
    .rope = rope,
    .kv_append = kv_append,
    .attention = attention,
    .route = route,
    .group = group,
    .grouped_matmul = grouped_matmul,
    .swiglu = swiglu,
    .combine = combine,
    .gather_rows = gather_rows,
};
