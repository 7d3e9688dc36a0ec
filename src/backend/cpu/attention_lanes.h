/*
 * attention_lanes.h: the inner loops of attention with sixteen lanes in registers, for
 * several query heads at a time: what a key or a value costs to read and to widen is paid
 * once for all of them, and their sums do not wait for each other. The operations and their
 * order are those of the plain loops in kernels_impl.h, which includes this file. The type
 * lanes16, its operations and LANE_HEADS come from a header per instruction set.
 */
#ifndef FTI_CPU_ATTENTION_LANES_H
#define FTI_CPU_ATTENTION_LANES_H

/* Elements column .. column + 15 of a cached vector. */
INLINE lanes16 lanes_of_cache(uint32_t type, const uint8_t *vector, uint32_t column) {
    const uint8_t *block = vector + (size_t)(column / 32) * FTK_Q8_0_BYTES;
    switch (type) {
    case FTK_TYPE_F32: return lanes_load((const float *)(const void *)vector + column);
    case FTK_TYPE_F16: return lanes_load_f16(vector + 2 * (size_t)column);
    case FTK_TYPE_BF16: return lanes_load_bf16(vector + 2 * (size_t)column);
    default: /* Q8_0: the product is exact */
        return lanes_mul(lanes_every_f16(block), lanes_load_i8(block + 2 + column % 32));
    }
}

/* out[h][0] = scale * (q[h] . key); `type` and `heads` are constants where this is called. */
INLINE void score_heads(uint32_t type, const float *const *q, uint32_t heads, const uint8_t *vector,
                        uint32_t n, float scale, float (*out)[BLK]) {
    lanes16 sum[LANE_HEADS];
#pragma GCC unroll 8
    for (uint32_t h = 0; h < heads; h++) sum[h] = lanes_zero();
    for (uint32_t i = 0; i < n; i += 16) {
        lanes16 key = lanes_of_cache(type, vector, i);
#pragma GCC unroll 8
        for (uint32_t h = 0; h < heads; h++) sum[h] = lanes_fma(lanes_load(q[h] + i), key, sum[h]);
    }
#pragma GCC unroll 8
    for (uint32_t h = 0; h < heads; h++) out[h][0] = scale * lanes_fold(sum[h]);
}

INLINE void score_tile(uint32_t type, const attention_tile *t, uint32_t first, score_block out) {
    const fti_cpu_cache *c = &t->a->cache;
    uint32_t n = block_size(t, first);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *key = key_at(t, first + i);
        uint32_t h = 0;
        for (; h + LANE_HEADS <= t->heads; h += LANE_HEADS)
            score_heads(type, t->q + h, LANE_HEADS, key, c->key_dim, t->a->scale,
                        (float(*)[BLK])(out[h] + i));
        for (; h < t->heads; h++)
            score_heads(type, t->q + h, 1, key, c->key_dim, t->a->scale,
                        (float(*)[BLK])(out[h] + i));
    }
}

/* Sixteen columns of the block's weighted sum of values, each sum begun at +0. */
INLINE void weigh_heads(uint32_t type, const uint8_t *const *values, uint32_t n, uint32_t column,
                        float (*s)[BLK], uint32_t heads, float (*total)[FTI_CPU_MAX_HEAD_DIM]) {
    lanes16 part[LANE_HEADS];
#pragma GCC unroll 8
    for (uint32_t h = 0; h < heads; h++) part[h] = lanes_zero();
    for (uint32_t i = 0; i < n; i++) {
        lanes16 v = lanes_of_cache(type, values[i], column);
#pragma GCC unroll 8
        for (uint32_t h = 0; h < heads; h++) part[h] = lanes_fma(lanes_every(s[h][i]), v, part[h]);
    }
#pragma GCC unroll 8
    for (uint32_t h = 0; h < heads; h++) {
        float *to = total[h] + column;
        lanes_store(to, lanes_add(lanes_load(to), part[h]));
    }
}

INLINE void weigh_tile(uint32_t type, attention_tile *t, uint32_t first, score_block s) {
    const fti_cpu_cache *c = &t->a->cache;
    const uint8_t *values[BLK];
    uint32_t n = block_size(t, first);
    for (uint32_t i = 0; i < n; i++) values[i] = value_at(t, first + i);
    for (uint32_t column = 0; column < c->value_dim; column += 16) {
        uint32_t h = 0;
        for (; h + LANE_HEADS <= t->heads; h += LANE_HEADS)
            weigh_heads(type, values, n, column, s + h, LANE_HEADS, t->total + h);
        for (; h < t->heads; h++) weigh_heads(type, values, n, column, s + h, 1, t->total + h);
    }
}

static void score_by_lanes(const attention_tile *t, uint32_t first, score_block out) {
    switch (t->a->cache.type) {
    case FTK_TYPE_F32: score_tile(FTK_TYPE_F32, t, first, out); break;
    case FTK_TYPE_F16: score_tile(FTK_TYPE_F16, t, first, out); break;
    case FTK_TYPE_BF16: score_tile(FTK_TYPE_BF16, t, first, out); break;
    default: score_tile(FTK_TYPE_Q8_0, t, first, out);
    }
}

static void weigh_by_lanes(attention_tile *t, uint32_t first, score_block s) {
    switch (t->a->cache.type) {
    case FTK_TYPE_F32: weigh_tile(FTK_TYPE_F32, t, first, s); break;
    case FTK_TYPE_F16: weigh_tile(FTK_TYPE_F16, t, first, s); break;
    case FTK_TYPE_BF16: weigh_tile(FTK_TYPE_BF16, t, first, s); break;
    default: weigh_tile(FTK_TYPE_Q8_0, t, first, s);
    }
}

#endif
