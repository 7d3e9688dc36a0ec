/* lanes_neon.h: sixteen f32 lanes as four NEON registers. */
#ifndef FTI_CPU_LANES_NEON_H
#define FTI_CPU_LANES_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define LANE_HEADS 4u /* sums in registers at a time */

typedef struct lanes16 {
    float32x4_t v[4];
} lanes16;

INLINE lanes16 lanes_every(float x) {
    float32x4_t all = vdupq_n_f32(x);
    return (lanes16){{all, all, all, all}};
}

INLINE lanes16 lanes_zero(void) {
    return lanes_every(0.0f);
}

INLINE lanes16 lanes_load(const float *p) {
    return (lanes16){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}

/* Eight halves; bytes are loaded, since cached vectors need not be aligned. */
INLINE uint16x8_t load_halves(const uint8_t *p) {
    return vreinterpretq_u16_u8(vld1q_u8(p));
}

INLINE float32x4_t widen_f16(uint16x4_t halves) {
    return vcvt_f32_f16(vreinterpret_f16_u16(halves));
}

INLINE lanes16 lanes_load_f16(const uint8_t *p) {
    uint16x8_t a = load_halves(p), b = load_halves(p + 16);
    return (lanes16){{widen_f16(vget_low_u16(a)), widen_f16(vget_high_u16(a)),
                      widen_f16(vget_low_u16(b)), widen_f16(vget_high_u16(b))}};
}

INLINE float32x4_t widen_bf16(uint16x4_t halves) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(halves), 16));
}

INLINE lanes16 lanes_load_bf16(const uint8_t *p) {
    uint16x8_t a = load_halves(p), b = load_halves(p + 16);
    return (lanes16){{widen_bf16(vget_low_u16(a)), widen_bf16(vget_high_u16(a)),
                      widen_bf16(vget_low_u16(b)), widen_bf16(vget_high_u16(b))}};
}

INLINE float32x4_t widen_i16(int16x4_t x) {
    return vcvtq_f32_s32(vmovl_s16(x));
}

INLINE lanes16 lanes_load_i8(const uint8_t *p) {
    int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
    int16x8_t a = vmovl_s8(vget_low_s8(bytes)), b = vmovl_s8(vget_high_s8(bytes));
    return (lanes16){{widen_i16(vget_low_s16(a)), widen_i16(vget_high_s16(a)),
                      widen_i16(vget_low_s16(b)), widen_i16(vget_high_s16(b))}};
}

/* One half in every lane. */
INLINE lanes16 lanes_every_f16(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    float32x4_t all = widen_f16(vdup_n_u16(half));
    return (lanes16){{all, all, all, all}};
}

INLINE void lanes_store(float *p, lanes16 x) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.v[i]);
}

INLINE lanes16 lanes_add(lanes16 a, lanes16 b) {
    for (int i = 0; i < 4; i++) a.v[i] = vaddq_f32(a.v[i], b.v[i]);
    return a;
}

INLINE lanes16 lanes_mul(lanes16 a, lanes16 b) {
    for (int i = 0; i < 4; i++) a.v[i] = vmulq_f32(a.v[i], b.v[i]);
    return a;
}

INLINE lanes16 lanes_fma(lanes16 a, lanes16 b, lanes16 c) {
    for (int i = 0; i < 4; i++) c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
}

/* As ftk_lanes_fold: halves upon each other until one is left. */
INLINE float lanes_fold(lanes16 x) {
    float32x4_t v4 = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    float32x2_t v2 = vadd_f32(vget_low_f32(v4), vget_high_f32(v4));
    return vget_lane_f32(v2, 0) + vget_lane_f32(v2, 1);
}

#endif
