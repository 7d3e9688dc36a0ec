/*
 * dot_neon.h: the dot products of device/dot.h with NEON and its dot products of bytes, four
 * weight rows at a time. Integers are exact in any order, and the few f32 operations of a
 * group are those of the definition with the four rows in the lanes, so the bits are the
 * reference's. Included by kernels_impl.h on behalf of kernels_neon.c; tile, panel_sums and
 * PANEL_ROWS (four) are defined there.
 *
 * The activations of a group of 256 columns fill half of the registers and meet the rows one
 * after the other. For a single row of activations weights are unpacked on the way; for more
 * they are unpacked once to signed bytes.
 */
#ifndef FTI_CPU_DOT_NEON_H
#define FTI_CPU_DOT_NEON_H

#include <arm_neon.h>

#include "backend/cpu/kernels.h"
#include "freetoken/device/dot.h"

#define GROUP_VECTORS 16u /* of 16 bytes */
#define CHUNK_VECTORS 4u

/* ---- lanes ---- */

/* Sums of the lanes of four vectors, in order. */
INLINE int32x4_t fold4(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d) {
    return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
}

/* Four halves as floats. */
INLINE float32x4_t four_halves(const uint8_t *p0, const uint8_t *p1, const uint8_t *p2,
                               const uint8_t *p3) {
    const uint16_t halves[4] = {ftk_load_u16(p0), ftk_load_u16(p1), ftk_load_u16(p2),
                                ftk_load_u16(p3)};
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves)));
}

INLINE void load_group(const int8_t *a, int8x16_t *out) {
#pragma GCC unroll 16
    for (uint32_t i = 0; i < GROUP_VECTORS; i++) out[i] = vld1q_s8(a + (size_t)16 * i);
}

INLINE void add_to(float *acc, float32x4_t terms) {
    vst1q_f32(acc, vaddq_f32(vld1q_f32(acc), terms));
}

/* ---- K-quants: one block ---- */

INLINE uint32_t k_bytes(uint32_t type) {
    return type == FTK_TYPE_Q4_K   ? FTK_Q4_K_BYTES
           : type == FTK_TYPE_Q5_K ? FTK_Q5_K_BYTES
                                   : FTK_Q6_K_BYTES;
}

/* Scales and minima of a block: value = d * scale * q - dmin * min. */
typedef struct k_head {
    int32_t scale[16]; /* of 16 columns (Q6_K) or the first eight, of 32 */
    int16x8_t min;     /* of 32 columns; none in Q6_K */
} k_head;

INLINE void store_scales(int16x8_t scales, int32_t *out) {
    vst1q_s32(out, vmovl_s16(vget_low_s16(scales)));
    vst1q_s32(out + 4, vmovl_s16(vget_high_s16(scales)));
}

INLINE int16x8_t widen_bytes(uint64_t eight) {
    return vreinterpretq_s16_u16(vmovl_u8(vcreate_u8(eight)));
}

/* Q4_K and Q5_K pack eight scales and eight minima of 6 bits in 12 bytes. */
INLINE void read_head(uint32_t type, const uint8_t *block, k_head *h) {
    if (type == FTK_TYPE_Q6_K) {
        int8x16_t scales = vreinterpretq_s8_u8(vld1q_u8(block + 192));
        store_scales(vmovl_s8(vget_low_s8(scales)), h->scale);
        store_scales(vmovl_s8(vget_high_s8(scales)), h->scale + 8);
        return;
    }
    uint32_t s[3];
    memcpy(s, block + 4, sizeof s);
    const uint32_t low6 = 0x3f3f3f3fu, low4 = 0x0f0f0f0fu, low2 = 0x03030303u;
    uint32_t scale = (s[2] & low4) | (s[0] >> 6 & low2) << 4;
    uint32_t min = (s[2] >> 4 & low4) | (s[1] >> 6 & low2) << 4;
    store_scales(widen_bytes((s[0] & low6) | (uint64_t)scale << 32), h->scale);
    h->min = widen_bytes((s[1] & low6) | (uint64_t)min << 32);
}

/* Bits of `v` moved up by `by` places, or down if that is negative, as far as `mask` goes. */
INLINE uint8x16_t moved(uint8x16_t v, int by, uint8_t mask) {
    return vandq_u8(vshlq_u8(v, vdupq_n_s8((int8_t)by)), vdupq_n_u8(mask));
}

/* Columns 64 c .. 64 c + 63: in Q4_K and Q5_K 32 low nibbles and the 32 high ones above them,
 * in Q6_K the low or the high nibbles of 64 bytes. */
INLINE void read_chunk(uint32_t type, const uint8_t *block, uint32_t c, int8x16_t *q) {
    bool six = type == FTK_TYPE_Q6_K;
    const uint8_t *low = six ? block + (size_t)64 * (c / 2)
                             : block + (type == FTK_TYPE_Q5_K ? 48 : 16) + (size_t)32 * c;
    const uint8_t *high = six ? block + 128 + (size_t)32 * (c / 2) : block + 16;
#pragma GCC unroll 4
    for (uint32_t i = 0; i < CHUNK_VECTORS; i++) {
        bool upper = six ? c % 2 == 1 : i >= 2;
        uint8x16_t b = vld1q_u8(low + (size_t)16 * (six ? i : i % 2));
        b = upper ? vshrq_n_u8(b, 4) : vandq_u8(b, vdupq_n_u8(15));
        if (type != FTK_TYPE_Q4_K) {
            uint8x16_t h = vld1q_u8(high + (size_t)16 * (i % 2));
            int bit = six ? (int)(2 * (i / 2) + 4 * (c % 2)) : (int)(2 * c + i / 2);
            b = vorrq_u8(b, moved(h, 4 - bit, six ? 0x30 : 0x10));
        }
        q[i] = vreinterpretq_s8_u8(b);
        if (six) q[i] = vsubq_s8(q[i], vdupq_n_s8(32));
    }
}

/* Adds scale * q * q_a over the columns of a chunk. */
INLINE int32x4_t add_chunk(uint32_t type, int32x4_t sum, const int8x16_t *q, const int8x16_t *a,
                           const int32_t *scale) {
    const int32x4_t zero = vdupq_n_s32(0);
    if (type == FTK_TYPE_Q6_K) {
#pragma GCC unroll 4
        for (uint32_t i = 0; i < CHUNK_VECTORS; i++)
            sum = vmlaq_n_s32(sum, vdotq_s32(zero, q[i], a[i]), scale[i]);
        return sum;
    }
    int32x4_t first = vdotq_s32(vdotq_s32(zero, q[0], a[0]), q[1], a[1]);
    int32x4_t second = vdotq_s32(vdotq_s32(zero, q[2], a[2]), q[3], a[3]);
    return vmlaq_n_s32(vmlaq_n_s32(sum, first, scale[0]), second, scale[1]);
}

INLINE uint32_t first_scale(uint32_t type, uint32_t chunk) {
    return type == FTK_TYPE_Q6_K ? 4 * chunk : 2 * chunk;
}

/* ---- K-quants: four rows ---- */

/* Group u of a row in A256. */
typedef struct k_input {
    const int8_t *a;
    const uint8_t *sums; /* of 16 q_a, 16 bits each */
    float d;
} k_input;

INLINE k_input read_input(const fti_cpu_matrix *m, const uint8_t *row, uint32_t u) {
    k_input in;
    in.a = (const int8_t *)row + 256 * (size_t)u;
    in.sums = row + m->cols + (size_t)(m->cols / 256) * 4 + 32 * (size_t)u;
    memcpy(&in.d, row + m->cols + 4 * (size_t)u, sizeof in.d);
    return in;
}

/* What four rows have to say to one row of activations, before the lanes are added. */
typedef struct k_sums {
    int32x4_t whole[PANEL_ROWS];  /* of scale * q * q_a */
    int32x4_t offset[PANEL_ROWS]; /* of min * q_a */
} k_sums;

/* No sum of 32 q_a leaves 16 bits. */
INLINE int32x4_t dot_minima(int16x8_t min, const uint8_t *sums) {
    int16x8_t low = vreinterpretq_s16_u8(vld1q_u8(sums));
    int16x8_t high = vreinterpretq_s16_u8(vld1q_u8(sums + 16));
    int16x8_t pairs = vpaddq_s16(low, high);
    return vmlal_high_s16(vmull_s16(vget_low_s16(min), vget_low_s16(pairs)), min, pairs);
}

INLINE float32x4_t join(uint32_t type, const uint8_t *const *block, const k_sums *x, float d_a) {
    const size_t at = type == FTK_TYPE_Q6_K ? 208 : 0;
    float32x4_t d = four_halves(block[0] + at, block[1] + at, block[2] + at, block[3] + at);
    int32x4_t whole = fold4(x->whole[0], x->whole[1], x->whole[2], x->whole[3]);
    float32x4_t term = vmulq_f32(d, vcvtq_f32_s32(whole));
    if (type != FTK_TYPE_Q6_K) {
        float32x4_t dmin = four_halves(block[0] + 2, block[1] + 2, block[2] + 2, block[3] + 2);
        int32x4_t offset = fold4(x->offset[0], x->offset[1], x->offset[2], x->offset[3]);
        float32x4_t less = vnegq_f32(vmulq_f32(dmin, vcvtq_f32_s32(offset)));
        term = vfmaq_f32(less, d, vcvtq_f32_s32(whole));
    }
    return vmulq_f32(vdupq_n_f32(d_a), term);
}

/* `type` is a constant where this is called, so each type gets a loop of its own. */
INLINE void single_k(uint32_t type, const fti_cpu_matrix *m, const uint8_t *const *rows,
                     const uint8_t *row, float *acc) {
    for (uint32_t u = 0; u < m->cols / 256; u++) {
        const k_input in = read_input(m, row, u);
        const uint8_t *block[PANEL_ROWS];
        int8x16_t a[GROUP_VECTORS];
        k_sums x;
        load_group(in.a, a);
        for (uint32_t r = 0; r < PANEL_ROWS; r++) {
            k_head head;
            block[r] = rows[r] + (size_t)u * k_bytes(type);
            read_head(type, block[r], &head);
            x.whole[r] = vdupq_n_s32(0);
#pragma GCC unroll 4
            for (uint32_t c = 0; c < 4; c++) {
                int8x16_t q[CHUNK_VECTORS];
                read_chunk(type, block[r], c, q);
                x.whole[r] = add_chunk(type, x.whole[r], q, a + CHUNK_VECTORS * c,
                                       head.scale + first_scale(type, c));
            }
            if (type != FTK_TYPE_Q6_K) x.offset[r] = dot_minima(head.min, in.sums);
        }
        add_to(acc, join(type, block, &x, in.d));
    }
}

/* A group of four rows, unpacked. */
typedef struct k_panel {
    const uint8_t *block[PANEL_ROWS];
    int8x16_t q[PANEL_ROWS][GROUP_VECTORS];
    k_head head[PANEL_ROWS];
} k_panel;

INLINE void unpack(uint32_t type, const uint8_t *const *rows, uint32_t u, k_panel *p) {
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        p->block[r] = rows[r] + (size_t)u * k_bytes(type);
        read_head(type, p->block[r], &p->head[r]);
#pragma GCC unroll 4
        for (uint32_t c = 0; c < 4; c++)
            read_chunk(type, p->block[r], c, p->q[r] + CHUNK_VECTORS * c);
    }
}

INLINE void add_terms(uint32_t type, const k_panel *p, const k_input *in, float *acc) {
    int8x16_t a[GROUP_VECTORS];
    k_sums x;
    load_group(in->a, a);
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        x.whole[r] = vdupq_n_s32(0);
#pragma GCC unroll 4
        for (uint32_t c = 0; c < 4; c++)
            x.whole[r] = add_chunk(type, x.whole[r], p->q[r] + CHUNK_VECTORS * c,
                                   a + CHUNK_VECTORS * c, p->head[r].scale + first_scale(type, c));
        if (type != FTK_TYPE_Q6_K) x.offset[r] = dot_minima(p->head[r].min, in->sums);
    }
    add_to(acc, join(type, p->block, &x, in->d));
}

INLINE void tile_k(uint32_t type, const fti_cpu_matrix *m, const uint8_t *const *rows,
                   const tile *t, panel_sums acc) {
    k_panel p;
    for (uint32_t u = 0; u < m->cols / 256; u++) {
        unpack(type, rows, u, &p);
        for (uint32_t n = 0; n < t->count; n++) {
            const k_input in = read_input(m, t->in[n], u);
            add_terms(type, &p, &in, acc[n]);
        }
    }
}

INLINE void panel_k(uint32_t type, const fti_cpu_matrix *m, const uint8_t *const *rows,
                    const tile *t, panel_sums acc) {
    if (t->count == 1)
        single_k(type, m, rows, t->in[0], acc[0]);
    else
        tile_k(type, m, rows, t, acc);
}

/* acc[n] += terms, group after group. t->in[n] is a row in A256. */
static void dot_panel_k(const fti_cpu_matrix *m, const uint8_t *const *rows, uint32_t row_count,
                        const tile *t, panel_sums acc) {
    (void)row_count;
    if (m->type == FTK_TYPE_Q4_K)
        panel_k(FTK_TYPE_Q4_K, m, rows, t, acc);
    else if (m->type == FTK_TYPE_Q5_K)
        panel_k(FTK_TYPE_Q5_K, m, rows, t, acc);
    else
        panel_k(FTK_TYPE_Q6_K, m, rows, t, acc);
}

/* ---- Q8_0 ---- */

/* Eight leaves of four rows, where they lie, and their scales. */
typedef struct q8_panel {
    const uint8_t *blocks[PANEL_ROWS];
    float32x4_t even[PANEL_ROWS];
    float32x4_t odd[PANEL_ROWS];
} q8_panel;

static void read_q8_panel(const uint8_t *const *blocks, q8_panel *p) {
    const size_t b = FTK_Q8_0_BYTES;
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *at = blocks[r];
        p->blocks[r] = at;
        p->even[r] = four_halves(at, at + 2 * b, at + 4 * b, at + 6 * b);
        p->odd[r] = four_halves(at + b, at + 3 * b, at + 5 * b, at + 7 * b);
    }
}

/* The pairs p_0 .. p_3 of row r. */
INLINE float32x4_t q8_pairs(const q8_panel *p, uint32_t r, const int8x16_t *a, float32x4x2_t d_a) {
    int32x4_t leaf[8];
#pragma GCC unroll 8
    for (uint32_t j = 0; j < 8; j++) {
        const int8_t *w = (const int8_t *)p->blocks[r] + (size_t)FTK_Q8_0_BYTES * j + 2;
        leaf[j] = vdotq_s32(vdupq_n_s32(0), vld1q_s8(w), a[2 * j]);
        leaf[j] = vdotq_s32(leaf[j], vld1q_s8(w + 16), a[2 * j + 1]);
    }
    float32x4_t even = vcvtq_f32_s32(fold4(leaf[0], leaf[2], leaf[4], leaf[6]));
    float32x4_t odd = vcvtq_f32_s32(fold4(leaf[1], leaf[3], leaf[5], leaf[7]));
    float32x4_t product = vmulq_f32(vmulq_f32(p->even[r], d_a.val[0]), even);
    return vfmaq_f32(product, vmulq_f32(p->odd[r], d_a.val[1]), odd);
}

/* ((p_0 + p_1) + p_2) + p_3 of four rows. */
INLINE float32x4_t sum_pairs(const float32x4_t *p) {
    float32x4_t even01 = vuzp1q_f32(p[0], p[1]), odd01 = vuzp2q_f32(p[0], p[1]);
    float32x4_t even23 = vuzp1q_f32(p[2], p[3]), odd23 = vuzp2q_f32(p[2], p[3]);
    float32x4_t sum = vaddq_f32(vuzp1q_f32(even01, even23), vuzp1q_f32(odd01, odd23));
    sum = vaddq_f32(sum, vuzp2q_f32(even01, even23));
    return vaddq_f32(sum, vuzp2q_f32(odd01, odd23));
}

INLINE void q8_terms(const q8_panel *p, const int8_t *q, const float *d, float *acc) {
    int8x16_t a[GROUP_VECTORS];
    float32x4_t pairs[PANEL_ROWS];
    load_group(q, a);
    for (uint32_t r = 0; r < PANEL_ROWS; r++) pairs[r] = q8_pairs(p, r, a, vld2q_f32(d));
    add_to(acc, sum_pairs(pairs));
}

/* The last group of a row with fewer than eight leaves, filled up with zeros. */
static void q8_tail(const fti_cpu_matrix *m, const uint8_t *const *rows, uint32_t first,
                    const tile *t, panel_sums acc) {
    uint8_t weights[PANEL_ROWS][8 * FTK_Q8_0_BYTES] = {{0}};
    const uint8_t *blocks[PANEL_ROWS];
    const uint32_t leaves = row_left(m->cols, first) / 32;
    q8_panel p;
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        blocks[r] = weights[r];
        memcpy(weights[r], rows[r] + (size_t)(first / 32) * FTK_Q8_0_BYTES,
               (size_t)leaves * FTK_Q8_0_BYTES);
    }
    read_q8_panel(blocks, &p);
    for (uint32_t n = 0; n < t->count; n++) {
        int8_t q[256] = {0};
        float d[8] = {0.0f};
        memcpy(q, a32_bytes(t, n, first), (size_t)leaves * 32);
        memcpy(d, a32_scales(m, t, n, first), leaves * sizeof *d);
        q8_terms(&p, q, d, acc[n]);
    }
}

/* The same for rows in A32. */
static void dot_panel_q8_0(const fti_cpu_matrix *m, const uint8_t *const *rows, uint32_t row_count,
                           const tile *t, panel_sums acc) {
    (void)row_count;
    uint32_t first = 0;
    for (; first + 256 <= m->cols; first += 256) {
        const uint8_t *blocks[PANEL_ROWS];
        q8_panel p;
        for (uint32_t r = 0; r < PANEL_ROWS; r++)
            blocks[r] = rows[r] + (size_t)(first / 32) * FTK_Q8_0_BYTES;
        read_q8_panel(blocks, &p);
        for (uint32_t n = 0; n < t->count; n++)
            q8_terms(&p, a32_bytes(t, n, first), a32_scales(m, t, n, first), acc[n]);
    }
    if (first < m->cols) q8_tail(m, rows, first, t, acc);
}

#endif
