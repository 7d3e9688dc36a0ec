/* synth_blocks.c: see synth_blocks.h. */
#include "synth_blocks.h"

#include <stddef.h>
#include <string.h>

#include "freetoken/device/base.h"
#include "freetoken/device/math.h"
#include "freetoken/provider.h"

#define DRAW 0x9e3779b97f4a7c15u /* what one draw adds to a stream */

struct fti_synth_filler {
    const fti_synth_values *v;
    uint64_t state;
    uint16_t scale[8];   /* of a block, one is drawn for each */
    uint16_t minimum[8]; /* K-quants: what makes the block's mean 0 */
};

uint64_t fti_synth_next(uint64_t *stream) {
    *stream += DRAW;
    __extension__ unsigned __int128 product = (unsigned __int128)*stream *
                                              (*stream ^ 0xe7037ed1a0b428dbu);
    return (uint64_t)(product >> 64) ^ (uint64_t)product;
}

/* From 0 to less than 1. */
static float uniform(uint64_t *stream) {
    return (float)(fti_synth_next(stream) >> 40) * 0x1p-24f;
}

/* Nearly normal, of mean 0 and deviation 1: the sum of four 16-bit numbers. */
static float normal(uint64_t *stream) {
    uint64_t r = fti_synth_next(stream);
    int32_t sum = (int32_t)(r & 0xffffu) + (int32_t)(r >> 16 & 0xffffu) +
                  (int32_t)(r >> 32 & 0xffffu) + (int32_t)(r >> 48);
    return ((float)sum - 131070.0f) * (1.0f / 37837.0f);
}

static void random_bytes(uint8_t *p, size_t count, uint64_t *stream) {
    for (size_t i = 0; i < count; i += 8) {
        uint64_t r = fti_synth_next(stream);
        memcpy(p + i, &r, count - i < 8 ? count - i : 8);
    }
}

/* ln(e^u - 1) for u = 0.001 * 100^part, by series: e^x of a sixteenth of the exponent, then
 * four squarings; e^u - 1. Each of the three results is rounded to a float, as it is in the
 * files that earlier figures belong to. */
static float step_offset(float part) {
    double sixteenth = 4.605170185988092 / 16 * (double)part, power = 1, less_one = 0;
    for (int i = 16; i > 0; i--) power = 1 + power * sixteenth / i;
    for (int i = 0; i < 4; i++) power *= power;
    float u = 0.001f * (float)power;
    for (int i = 10; i > 0; i--) less_one = (1 + less_one) * (double)u / i;
    return (float)ftk_log_f64((double)(float)less_one);
}

static float float_value(fti_synth_filler *f) {
    switch (f->v->content) {
    case FTI_SYNTH_NORM: return ftk_fma(f->v->deviation, normal(&f->state), 1.0f);
    case FTI_SYNTH_DECAY: return -ftk_fma(15.5f, uniform(&f->state), 0.5f);
    case FTI_SYNTH_STEP: return step_offset(uniform(&f->state));
    default: return f->v->deviation * normal(&f->state);
    }
}

static void fill_f32(fti_synth_filler *f, uint8_t *p) {
    float x = float_value(f);
    memcpy(p, &x, sizeof x);
}

static void fill_f16(fti_synth_filler *f, uint8_t *p) {
    uint16_t h = ftk_f32_to_f16(float_value(f));
    memcpy(p, &h, sizeof h);
}

static void fill_bf16(fti_synth_filler *f, uint8_t *p) {
    uint16_t h = (uint16_t)((ftk_f32_bits(float_value(f)) + 0x8000u) >> 16);
    memcpy(p, &h, sizeof h);
}

static void fill_q8_0(fti_synth_filler *f, uint8_t *p) {
    memcpy(p, &f->scale[fti_synth_next(&f->state) >> 61], 2);
    random_bytes(p + 2, 32, &f->state);
    for (size_t i = 2; i < 34; i++)
        if (p[i] == 0x80) p[i] = 0x81; /* -128 is no quant of this type */
}

/* Header of a Q4_K or Q5_K block. Each of the eight 6-bit minimums equals its
 * scale, and both are 32 to 63. */
static void fill_k_header(fti_synth_filler *f, uint8_t *p) {
    uint64_t pick = fti_synth_next(&f->state) >> 61, r = fti_synth_next(&f->state);
    uint32_t low = (uint32_t)r | 0xa0a0a0a0u, high = (uint32_t)(r >> 32) & 0x0f0f0f0fu;
    high |= high << 4;
    memcpy(p, &f->scale[pick], 2);
    memcpy(p + 2, &f->minimum[pick], 2);
    memcpy(p + 4, &low, 4);
    memcpy(p + 8, &low, 4);
    memcpy(p + 12, &high, 4);
}

static void fill_q4_k(fti_synth_filler *f, uint8_t *p) {
    fill_k_header(f, p);
    random_bytes(p + 16, 128, &f->state);
}

static void fill_q5_k(fti_synth_filler *f, uint8_t *p) {
    fill_k_header(f, p);
    random_bytes(p + 16, 160, &f->state);
}

static void fill_q6_k(fti_synth_filler *f, uint8_t *p) {
    random_bytes(p, 208, &f->state);
    memcpy(p + 208, &f->scale[fti_synth_next(&f->state) >> 61], 2);
}

/* Blocks of a scale, and quants up to `bytes` in all. */
static void fill_scaled(fti_synth_filler *f, uint8_t *p, size_t bytes) {
    memcpy(p, &f->scale[fti_synth_next(&f->state) >> 61], 2);
    random_bytes(p + 2, bytes - 2, &f->state);
}

static void fill_q4_0(fti_synth_filler *f, uint8_t *p) {
    fill_scaled(f, p, 18);
}

static void fill_q5_0(fti_synth_filler *f, uint8_t *p) {
    fill_scaled(f, p, 22);
}

static void fill_iq4_xs(fti_synth_filler *f, uint8_t *p) {
    fill_scaled(f, p, 136);
}

/* The minimum of these is added, so that it has the opposite sign. */
static void fill_with_minimum(fti_synth_filler *f, uint8_t *p, size_t bytes) {
    uint64_t pick = fti_synth_next(&f->state) >> 61;
    uint16_t minimum = f->minimum[pick] ^ 0x8000u;
    memcpy(p, &f->scale[pick], 2);
    memcpy(p + 2, &minimum, 2);
    random_bytes(p + 4, bytes - 4, &f->state);
}

static void fill_q4_1(fti_synth_filler *f, uint8_t *p) {
    fill_with_minimum(f, p, 20);
}

static void fill_q5_1(fti_synth_filler *f, uint8_t *p) {
    fill_with_minimum(f, p, 24);
}

/* Scale and minimum of 16 columns are equal, 8 to 15. */
static void fill_q2_k(fti_synth_filler *f, uint8_t *p) {
    uint64_t pick = fti_synth_next(&f->state) >> 61;
    random_bytes(p, 80, &f->state);
    for (size_t i = 0; i < 16; i++) p[i] = (uint8_t)(((p[i] & 15u) | 8u) * 17u);
    memcpy(p + 80, &f->scale[pick], 2);
    memcpy(p + 82, &f->minimum[pick], 2);
}

static void fill_q3_k(fti_synth_filler *f, uint8_t *p) {
    random_bytes(p, 108, &f->state);
    memcpy(p + 108, &f->scale[fti_synth_next(&f->state) >> 61], 2);
}

/* The power of two that is nearest to the tensor's scale, or the one below. */
static void fill_mxfp4(fti_synth_filler *f, uint8_t *p) {
    uint64_t r = fti_synth_next(&f->state);
    uint32_t exponent = ftk_f32_bits(ftk_f16_to_f32(f->scale[r >> 61])) >> 23;
    p[0] = (uint8_t)(exponent + 1 - (r & 1u));
    random_bytes(p + 1, 16, &f->state);
}

/* Code of a scale about `x`: four bits of exponent, three of fraction, counted in steps of
 * 1/1024 below the least exponent. */
static uint8_t nvfp4_scale(float x, uint32_t random) {
    int steps = (int)(x * 1024.0f + 0.5f), exponent = (int)(ftk_f32_bits(x) >> 23) - 119;
    if (exponent > 0) return (uint8_t)(exponent << 3 | (int)(random & 7u));
    return (uint8_t)(steps < 2 ? 1 : steps - 1 + (int)(random % 3));
}

static void fill_nvfp4(fti_synth_filler *f, uint8_t *p) {
    float x = ftk_f16_to_f32(f->scale[fti_synth_next(&f->state) >> 61]);
    uint64_t r = fti_synth_next(&f->state);
    for (size_t i = 0; i < 4; i++, r >>= 3) p[i] = nvfp4_scale(x, (uint32_t)(r & 7u));
    random_bytes(p + 4, 32, &f->state);
}

const fti_synth_type fti_synth_types[] = {
    {"F32", FTK_TYPE_F32, 1, 4, 1, 1, 0, fill_f32},
    {"F16", FTK_TYPE_F16, 1, 2, 1, 1, 0, fill_f16},
    {"BF16", FTK_TYPE_BF16, 1, 2, 1, 1, 0, fill_bf16},
    {"Q8_0", FTK_TYPE_Q8_0, 32, 34, 5, 73.9f, 0, fill_q8_0},
    {"Q4_K", FTK_TYPE_Q4_K, 256, 144, 18, 223.1f, 7.5f, fill_q4_k},
    {"Q5_K", FTK_TYPE_Q5_K, 256, 176, 22, 446.7f, 15.5f, fill_q5_k},
    {"Q6_K", FTK_TYPE_Q6_K, 256, 210, 27, 1365.0f, 0, fill_q6_k},
    {"Q4_0", FTK_TYPE_Q4_0, 32, 18, 3, 4.61f, 0, fill_q4_0},
    {"Q4_1", FTK_TYPE_Q4_1, 32, 20, 3, 4.61f, 7.5f, fill_q4_1},
    {"Q5_0", FTK_TYPE_Q5_0, 32, 22, 4, 9.25f, 0, fill_q5_0},
    {"Q5_1", FTK_TYPE_Q5_1, 32, 24, 4, 9.23f, 15.5f, fill_q5_1},
    {"Q2_K", FTK_TYPE_Q2_K, 256, 84, 11, 13.1f, 1.5f, fill_q2_k},
    {"Q3_K", FTK_TYPE_Q3_K, 256, 110, 15, 43.3f, 0, fill_q3_k},
    {"IQ4_NL", FTK_TYPE_IQ4_NL, 32, 18, 3, 67.4f, 0, fill_q4_0},
    {"IQ4_XS", FTK_TYPE_IQ4_XS, 256, 136, 18, 1246.0f, 0, fill_iq4_xs},
    {"MXFP4", FTK_TYPE_MXFP4, 32, 17, 3, 3.2f, 0, fill_mxfp4},
    {"NVFP4", FTK_TYPE_NVFP4, 64, 36, 6, 5.85f, 0, fill_nvfp4},
};
const uint32_t fti_synth_type_count = sizeof fti_synth_types / sizeof fti_synth_types[0];

const fti_synth_type *fti_synth_find_type(uint32_t type) {
    for (uint32_t i = 0; i < fti_synth_type_count; i++)
        if (fti_synth_types[i].type == type) return &fti_synth_types[i];
    return NULL;
}

void fti_synth_fill(const fti_synth_values *values, uint64_t stream, uint64_t first, uint64_t count,
                    uint8_t *out) {
    const fti_synth_type *type = fti_synth_find_type(values->type);
    fti_synth_filler f = {.v = values, .state = stream + first * type->draws * DRAW};
    /* The deviation varies by block, as it does in real files. */
    for (size_t i = 0; i < 8; i++) {
        float x = values->deviation / type->unit * (0.72f + 0.08f * (float)i);
        f.scale[i] = ftk_f32_to_f16(x);
        f.minimum[i] = ftk_f32_to_f16(x * type->middle);
    }
    for (uint64_t i = 0; i < count; i++) type->fill(&f, out + i * type->bytes);
}
