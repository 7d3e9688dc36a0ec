/* synth_model.c: see synth_model.h. */
#include "support/synth_model.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "freetoken/device/base.h"
#include "freetoken/provider.h"

#define COUNT(array)  (sizeof(array) / sizeof((array)[0]))
#define MAX_THREADS   64u
#define CHUNK_BYTES   (4u << 20) /* that one thread fills and writes at a time */
#define MAX_ALIGNMENT (1u << 20)

static ftk_status refuse(ftk_error *err, ftk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static ftk_status refuse(ftk_error *err, ftk_status status, const char *format, ...) {
    if (!err) return status;
    va_list args;
    va_start(args, format);
    err->status = status;
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    return status;
}

static ftk_status no_memory(ftk_error *err) {
    return refuse(err, FTK_E_NO_MEMORY, "out of memory for a synthetic checkpoint");
}

/* ---- presets ---- */

fti_synth_model fti_synth_tiny(void) {
    return (fti_synth_model){.dims = {.hidden = 256,
                                      .layers = 4,
                                      .experts = 8,
                                      .used = 2,
                                      .ff = 256,
                                      .shared_ff = 256,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .head_dim = 256,
                                      .rope_dim = 64,
                                      .key_heads = 2,
                                      .value_heads = 4,
                                      .state = 128,
                                      .conv = 4,
                                      .interval = 4,
                                      .vocabulary = 2048,
                                      .context = 32768},
                             .types = {FTK_TYPE_Q4_K, FTK_TYPE_Q6_K, FTK_TYPE_Q8_0, FTK_TYPE_Q6_K,
                                       FTK_TYPE_F32, FTK_TYPE_Q4_K, FTI_SYNTH_MIX, FTK_TYPE_Q8_0},
                             .seed = 1,
                             .label = "tiny",
                             .alignment = 32,
                             .integer_type = FTI_SYNTH_U32};
}

fti_synth_model fti_synth_medium(void) {
    fti_synth_model m = fti_synth_tiny();
    m.dims = (fti_synth_dims){.hidden = 2048,
                              .layers = 8,
                              .experts = 64,
                              .used = 8,
                              .ff = 512,
                              .shared_ff = 512,
                              .heads = 16,
                              .kv_heads = 2,
                              .head_dim = 256,
                              .rope_dim = 64,
                              .key_heads = 16,
                              .value_heads = 32,
                              .state = 128,
                              .conv = 4,
                              .interval = 4,
                              .vocabulary = 49664,
                              .context = 262144};
    m.label = "medium";
    return m;
}

/* ---- random numbers ---- */

static uint64_t next(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    __extension__ unsigned __int128 product = (unsigned __int128)*state *
                                              (*state ^ 0xe7037ed1a0b428dbu);
    return (uint64_t)(product >> 64) ^ (uint64_t)product;
}

static float uniform(uint64_t *state) {
    return (float)(next(state) >> 40) * 0x1p-24f;
}

/* Nearly normal, of mean 0 and deviation 1: the sum of four 16-bit numbers. */
static float normal(uint64_t *state) {
    uint64_t r = next(state);
    int32_t sum = (int32_t)(r & 0xffffu) + (int32_t)(r >> 16 & 0xffffu) +
                  (int32_t)(r >> 32 & 0xffffu) + (int32_t)(r >> 48);
    return ((float)sum - 131070.0f) * (1.0f / 37837.0f);
}

static void random_bytes(uint8_t *p, size_t count, uint64_t *state) {
    for (size_t i = 0; i < count; i += 8) {
        uint64_t r = next(state);
        memcpy(p + i, &r, count - i < 8 ? count - i : 8);
    }
}

/* ---- tensors ---- */

typedef enum content {
    WEIGHT,      /* mean 0 */
    NORM,        /* mean 1 */
    DECAY,       /* ssm_a: negative */
    STEP_OFFSET, /* ssm_dt: softplus of it is 0.001 to 0.1 */
} content;

typedef struct tensor {
    char name[64];
    uint32_t type;
    uint32_t n_dims;
    uint64_t dims[3];
    content content;
    float deviation;
    uint64_t offset;
    uint64_t bytes;
    uint64_t key; /* of the name that the architecture gives it: what its bytes follow from */
} tensor;

/* A file in the making. */
typedef struct writer {
    const fti_synth_model *m;
    tensor *tensors;
    size_t tensor_count, tensor_capacity;
    /* the header */
    uint8_t *data;
    size_t size, capacity;
    uint64_t key_count;
    bool *used;  /* [meta_count] given keys that have been written */
    bool failed; /* out of memory */
    bool too_long;
    /* the payload */
    int fd;
    pthread_mutex_t lock;
    size_t next_tensor;
    uint64_t next_block;
    int error; /* errno of the first failure */
} writer;

typedef struct filler {
    const tensor *t;
    uint64_t state;
    uint16_t scale[8];   /* of a block, one is drawn for each */
    uint16_t minimum[8]; /* K-quants: what makes the block's mean 0 */
} filler;

static float float_value(filler *f) {
    float x = f->t->deviation * normal(&f->state);
    switch (f->t->content) {
    case NORM: return 1.0f + x;
    case DECAY: return -(0.5f + 15.5f * uniform(&f->state));
    case STEP_OFFSET: return -6.907f + 4.655f * uniform(&f->state);
    default: return x;
    }
}

static void fill_f32(filler *f, uint8_t *p) {
    float x = float_value(f);
    memcpy(p, &x, sizeof x);
}

static void fill_f16(filler *f, uint8_t *p) {
    uint16_t h = ftk_f32_to_f16(float_value(f));
    memcpy(p, &h, sizeof h);
}

static void fill_bf16(filler *f, uint8_t *p) {
    uint16_t h = (uint16_t)((ftk_f32_bits(float_value(f)) + 0x8000u) >> 16);
    memcpy(p, &h, sizeof h);
}

static void fill_q8_0(filler *f, uint8_t *p) {
    memcpy(p, &f->scale[next(&f->state) >> 61], 2);
    random_bytes(p + 2, 32, &f->state);
    for (size_t i = 2; i < 34; i++)
        if (p[i] == 0x80) p[i] = 0; /* -128 is no quant of this type */
}

/* Header of a Q4_K or Q5_K block. Each of the eight 6-bit minimums equals its
 * scale, and both are 32 to 63. */
static void fill_k_header(filler *f, uint8_t *p) {
    uint64_t pick = next(&f->state) >> 61, r = next(&f->state);
    uint32_t low = (uint32_t)r | 0xa0a0a0a0u, high = (uint32_t)(r >> 32) & 0x0f0f0f0fu;
    high |= high << 4;
    memcpy(p, &f->scale[pick], 2);
    memcpy(p + 2, &f->minimum[pick], 2);
    memcpy(p + 4, &low, 4);
    memcpy(p + 8, &low, 4);
    memcpy(p + 12, &high, 4);
}

static void fill_q4_k(filler *f, uint8_t *p) {
    fill_k_header(f, p);
    random_bytes(p + 16, 128, &f->state);
}

static void fill_q5_k(filler *f, uint8_t *p) {
    fill_k_header(f, p);
    random_bytes(p + 16, 160, &f->state);
}

static void fill_q6_k(filler *f, uint8_t *p) {
    random_bytes(p, 208, &f->state);
    memcpy(p + 208, &f->scale[next(&f->state) >> 61], 2);
}

/* Blocks of a scale, in some types a minimum, and quants of `bytes` in all. */
static void fill_scaled(filler *f, uint8_t *p, size_t at, size_t bytes) {
    memcpy(p + at, &f->scale[next(&f->state) >> 61], 2);
    random_bytes(p + at + 2, bytes - 2, &f->state);
}

static void fill_q4_0(filler *f, uint8_t *p) {
    fill_scaled(f, p, 0, 18);
}

static void fill_q5_0(filler *f, uint8_t *p) {
    fill_scaled(f, p, 0, 22);
}

/* The minimum of these is added, so that it has the opposite sign. */
static void fill_with_minimum(filler *f, uint8_t *p, size_t bytes) {
    uint64_t pick = next(&f->state) >> 61;
    uint16_t minimum = f->minimum[pick] ^ 0x8000u;
    memcpy(p, &f->scale[pick], 2);
    memcpy(p + 2, &minimum, 2);
    random_bytes(p + 4, bytes - 4, &f->state);
}

static void fill_q4_1(filler *f, uint8_t *p) {
    fill_with_minimum(f, p, 20);
}

static void fill_q5_1(filler *f, uint8_t *p) {
    fill_with_minimum(f, p, 24);
}

/* Scale and minimum of 16 columns are equal, 8 to 15. */
static void fill_q2_k(filler *f, uint8_t *p) {
    uint64_t pick = next(&f->state) >> 61;
    random_bytes(p, 80, &f->state);
    for (size_t i = 0; i < 16; i++) p[i] = (uint8_t)(((p[i] & 15u) | 8u) * 17u);
    memcpy(p + 80, &f->scale[pick], 2);
    memcpy(p + 82, &f->minimum[pick], 2);
}

static void fill_q3_k(filler *f, uint8_t *p) {
    random_bytes(p, 108, &f->state);
    memcpy(p + 108, &f->scale[next(&f->state) >> 61], 2);
}

static void fill_iq4_xs(filler *f, uint8_t *p) {
    fill_scaled(f, p, 0, 136);
}

/* The power of two that is nearest to the tensor's scale, or the one below. */
static void fill_mxfp4(filler *f, uint8_t *p) {
    uint64_t r = next(&f->state);
    p[0] = (uint8_t)(128 + ilogbf(ftk_f16_to_f32(f->scale[r >> 61])) - (int)(r & 1u));
    random_bytes(p + 1, 16, &f->state);
}

/* Scales of three significant bits about the tensor's. */
static void fill_nvfp4(filler *f, uint8_t *p) {
    int exponent = ilogbf(ftk_f16_to_f32(f->scale[next(&f->state) >> 61])) + 8;
    uint64_t r = next(&f->state);
    for (size_t i = 0; i < 4; i++, r >>= 3)
        p[i] = (uint8_t)((exponent < 1 ? 1 : exponent) << 3 | (int)(r & 7u));
    random_bytes(p + 4, 32, &f->state);
}

/* unit: deviation of what a block stores when its scale is 1. middle: mean of its
 * quants, where a minimum is to cancel it. A row without `fill` is for refusals. */
typedef struct block_type {
    uint32_t type;
    uint32_t elements, bytes;
    float unit, middle;
    void (*fill)(filler *, uint8_t *);
} block_type;

static const block_type block_types[] = {
    {FTK_TYPE_F32, 1, 4, 1, 0, fill_f32},
    {FTK_TYPE_F16, 1, 2, 1, 0, fill_f16},
    {FTK_TYPE_BF16, 1, 2, 1, 0, fill_bf16},
    {FTK_TYPE_Q8_0, 32, 34, 73.9f, 0, fill_q8_0},
    {FTK_TYPE_Q4_K, 256, 144, 223.1f, 7.5f, fill_q4_k},
    {FTK_TYPE_Q5_K, 256, 176, 446.7f, 15.5f, fill_q5_k},
    {FTK_TYPE_Q6_K, 256, 210, 1365.0f, 0, fill_q6_k},
    {FTK_TYPE_Q4_0, 32, 18, 4.64f, 0, fill_q4_0},
    {FTK_TYPE_Q4_1, 32, 20, 4.61f, 7.5f, fill_q4_1},
    {FTK_TYPE_Q5_0, 32, 22, 9.25f, 0, fill_q5_0},
    {FTK_TYPE_Q5_1, 32, 24, 9.23f, 15.5f, fill_q5_1},
    {FTK_TYPE_Q2_K, 256, 84, 13.1f, 1.5f, fill_q2_k},
    {FTK_TYPE_Q3_K, 256, 110, 43.3f, 0, fill_q3_k},
    {FTK_TYPE_IQ4_NL, 32, 18, 67.4f, 0, fill_q4_0},
    {FTK_TYPE_IQ4_XS, 256, 136, 1246.0f, 0, fill_iq4_xs},
    {FTK_TYPE_MXFP4, 32, 17, 3.2f, 0, fill_mxfp4},
    {FTK_TYPE_NVFP4, 64, 36, 5.85f, 0, fill_nvfp4},
    {16u /* IQ2_XXS */, 256, 66, 1, 0, NULL},
};

static const block_type *find_type(uint32_t type) {
    for (size_t i = 0; i < COUNT(block_types); i++)
        if (block_types[i].type == type) return &block_types[i];
    return NULL;
}

/* The deviation varies by block, as it does in real files. */
static void start_filling(filler *f, const block_type *type) {
    for (size_t i = 0; i < COUNT(f->scale); i++) {
        float x = f->t->deviation / type->unit * (0.72f + 0.08f * (float)i);
        f->scale[i] = ftk_f32_to_f16(x);
        f->minimum[i] = ftk_f32_to_f16(x * type->middle);
    }
}

static uint64_t name_key(const char *name) {
    uint64_t key = 0xcbf29ce484222325u;
    for (; *name; name++) key = (key ^ (unsigned char)*name) * 0x100000001b3u;
    return key;
}

static void append_tensor(writer *w, const tensor *t) {
    if (w->tensor_count == w->tensor_capacity) {
        size_t capacity = w->tensor_capacity ? 2 * w->tensor_capacity : 256;
        tensor *grown = realloc(w->tensors, capacity * sizeof *grown);
        if (!grown) {
            w->failed = true;
            return;
        }
        w->tensors = grown;
        w->tensor_capacity = capacity;
    }
    w->tensors[w->tensor_count++] = *t;
}

static void copy_name(writer *w, tensor *t, const char *name) {
    int n = snprintf(t->name, sizeof t->name, "%s", name);
    if (n < 0 || (size_t)n >= sizeof t->name) w->too_long = true;
}

static const fti_synth_edit *edit_of(const writer *w, const char *name) {
    for (size_t i = 0; i < w->m->edit_count; i++)
        if (strcmp(w->m->edits[i].name, name) == 0) return &w->m->edits[i];
    return NULL;
}

/* Adds a tensor as the edits want it. */
static void add(writer *w, tensor t) {
    t.key = name_key(t.name);
    const fti_synth_edit *edit = edit_of(w, t.name);
    if (edit && edit->left_out) return;
    if (edit && edit->new_name) copy_name(w, &t, edit->new_name);
    if (edit && edit->type) t.type = *edit->type;
    if (edit && edit->n_dims) {
        t.n_dims = edit->n_dims;
        memcpy(t.dims, edit->dims, sizeof t.dims);
    }
    append_tensor(w, &t);
}

/* A tensor of block `layer`, or of the whole model if `layer` is NO_LAYER. Rows
 * and slices of 0 stand for dimensions that are not there. */
#define NO_LAYER UINT32_MAX

typedef struct shape {
    uint64_t columns, rows, slices;
} shape;

static void add_named(writer *w, uint32_t layer, const char *name, uint32_t type, content kind,
                      float deviation, shape s) {
    tensor t = {.type = type,
                .content = kind,
                .deviation = deviation,
                .n_dims = s.slices ? 3
                          : s.rows ? 2
                                   : 1,
                .dims = {s.columns, s.rows ? s.rows : 1, s.slices ? s.slices : 1}};
    char full[96];
    if (layer == NO_LAYER)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%u.%s", layer, name);
    copy_name(w, &t, full);
    add(w, t);
}

/* The spread that keeps a sum over `inputs` terms of size 1 at size 1. */
static float spread(uint64_t inputs) {
    return 1.0f / sqrtf((float)inputs);
}

static void add_weight(writer *w, uint32_t layer, const char *name, uint32_t type, float gain,
                       shape s) {
    add_named(w, layer, name, type, WEIGHT, gain * spread(s.columns), s);
}

static void add_norm(writer *w, uint32_t layer, const char *name, uint64_t size) {
    add_named(w, layer, name, FTK_TYPE_F32, NORM, 0.1f, (shape){size, 0, 0});
}

/* ---- the architecture ---- */

/* The layers in which a Q4_K_M mix gives the down matrices more bits: the first
 * and last eighth, and every third one between. */
static uint32_t down_type(const fti_synth_model *m, uint32_t layer) {
    uint32_t type = m->types[FTI_SYNTH_DOWN], n = m->dims.layers, eighth = n / 8;
    if (type != FTI_SYNTH_MIX) return type;
    bool more = layer < eighth || layer >= 7 * n / 8 || (layer - eighth) % 3 == 2;
    return more ? FTK_TYPE_Q6_K : FTK_TYPE_Q5_K;
}

static void add_experts(writer *w, uint32_t layer) {
    const fti_synth_dims *d = &w->m->dims;
    uint32_t gate_up = w->m->types[FTI_SYNTH_GATE_UP], shared = w->m->types[FTI_SYNTH_SHARED];
    shape inner = {d->hidden, d->ff, d->experts};
    add_weight(w, layer, "ffn_gate_inp.weight", FTK_TYPE_F32, 1.5f,
               (shape){d->hidden, d->experts, 0});
    add_weight(w, layer, "ffn_gate_exps.weight", gate_up, 1, inner);
    add_weight(w, layer, "ffn_up_exps.weight", gate_up, 1, inner);
    add_weight(w, layer, "ffn_down_exps.weight", down_type(w->m, layer), 1,
               (shape){d->ff, d->hidden, d->experts});
    add_weight(w, layer, "ffn_gate_inp_shexp.weight", FTK_TYPE_F32, 1, (shape){d->hidden, 0, 0});
    add_weight(w, layer, "ffn_gate_shexp.weight", shared, 1, (shape){d->hidden, d->shared_ff, 0});
    add_weight(w, layer, "ffn_up_shexp.weight", shared, 1, (shape){d->hidden, d->shared_ff, 0});
    add_weight(w, layer, "ffn_down_shexp.weight", shared, 1, (shape){d->shared_ff, d->hidden, 0});
}

static void add_full_attention(writer *w, uint32_t layer) {
    const fti_synth_dims *d = &w->m->dims;
    uint32_t type = w->m->types[FTI_SYNTH_ATTENTION];
    uint64_t q = (uint64_t)d->heads * d->head_dim, kv = (uint64_t)d->kv_heads * d->head_dim;
    add_weight(w, layer, "attn_q.weight", type, 1, (shape){d->hidden, 2 * q, 0});
    add_weight(w, layer, "attn_k.weight", type, 1, (shape){d->hidden, kv, 0});
    add_weight(w, layer, "attn_v.weight", type, 1, (shape){d->hidden, kv, 0});
    add_weight(w, layer, "attn_output.weight", type, 1, (shape){q, d->hidden, 0});
    add_norm(w, layer, "attn_q_norm.weight", d->head_dim);
    add_norm(w, layer, "attn_k_norm.weight", d->head_dim);
}

static void add_linear_attention(writer *w, uint32_t layer) {
    const fti_synth_dims *d = &w->m->dims;
    uint32_t type = w->m->types[FTI_SYNTH_LINEAR], small = w->m->types[FTI_SYNTH_ALPHA_BETA];
    uint64_t key = (uint64_t)d->key_heads * d->state, value = (uint64_t)d->value_heads * d->state;
    shape per_head = {d->value_heads, 0, 0};
    add_weight(w, layer, "attn_qkv.weight", type, 1, (shape){d->hidden, 2 * key + value, 0});
    add_weight(w, layer, "attn_gate.weight", type, 1, (shape){d->hidden, value, 0});
    add_named(w, layer, "ssm_conv1d.weight", FTK_TYPE_F32, WEIGHT, 0.5f,
              (shape){d->conv, 2 * key + value, 0});
    add_named(w, layer, "ssm_dt.bias", FTK_TYPE_F32, STEP_OFFSET, 0, per_head);
    add_named(w, layer, "ssm_a", FTK_TYPE_F32, DECAY, 0, per_head);
    add_weight(w, layer, "ssm_beta.weight", small, 1, (shape){d->hidden, d->value_heads, 0});
    add_weight(w, layer, "ssm_alpha.weight", small, 0.5f, (shape){d->hidden, d->value_heads, 0});
    add_norm(w, layer, "ssm_norm.weight", d->state);
    add_weight(w, layer, "ssm_out.weight", type, 1, (shape){value, d->hidden, 0});
}

static void add_block(writer *w, uint32_t layer, bool linear) {
    add_norm(w, layer, "attn_norm.weight", w->m->dims.hidden);
    add_norm(w, layer, "post_attention_norm.weight", w->m->dims.hidden);
    if (linear)
        add_linear_attention(w, layer);
    else
        add_full_attention(w, layer);
    add_experts(w, layer);
}

static void add_mtp_block(writer *w, uint32_t layer) {
    uint64_t hidden = w->m->dims.hidden;
    add_block(w, layer, false);
    add_weight(w, layer, "nextn.eh_proj.weight", w->m->types[FTI_SYNTH_ATTENTION], 1,
               (shape){2 * hidden, hidden, 0});
    add_norm(w, layer, "nextn.enorm.weight", hidden);
    add_norm(w, layer, "nextn.hnorm.weight", hidden);
    add_norm(w, layer, "nextn.shared_head_norm.weight", hidden);
}

static void add_all(writer *w) {
    const fti_synth_model *m = w->m;
    const fti_synth_dims *d = &m->dims;
    shape table = {d->hidden, d->vocabulary, 0};
    add_named(w, NO_LAYER, "token_embd.weight", m->types[FTI_SYNTH_EMBEDDING], WEIGHT, 1, table);
    add_norm(w, NO_LAYER, "output_norm.weight", d->hidden);
    add_weight(w, NO_LAYER, "output.weight", m->types[FTI_SYNTH_OUTPUT], 2.5f, table);
    for (uint32_t i = 0; i < d->layers; i++) add_block(w, i, (i + 1) % d->interval != 0);
    for (uint32_t i = 0; i < m->mtp_blocks; i++) add_mtp_block(w, d->layers + i);
    for (size_t i = 0; i < m->extra_count; i++)
        add_named(w, NO_LAYER, m->extras[i].name, m->extras[i].type, WEIGHT, 0.02f,
                  (shape){m->extras[i].columns, m->extras[i].rows, 0});
}

static uint64_t aligned(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

/* Sizes and places; `end` is where the last one ends. */
static ftk_status lay_out(writer *w, uint64_t *end, ftk_error *err) {
    *end = 0;
    for (size_t i = 0; i < w->tensor_count; i++) {
        tensor *t = &w->tensors[i];
        const block_type *type = find_type(t->type);
        if (!type)
            return refuse(err, FTK_E_ARGUMENT, "tensor %s: type %u is not one that can be written",
                          t->name, t->type);
        if (t->dims[0] == 0 || t->dims[0] % type->elements)
            return refuse(err, FTK_E_ARGUMENT,
                          "tensor %s: rows of %llu elements, wanted a multiple of %u", t->name,
                          (unsigned long long)t->dims[0], type->elements);
        t->offset = aligned(*end, w->m->alignment);
        t->bytes = t->dims[0] / type->elements * type->bytes * t->dims[1] * t->dims[2];
        *end = t->offset + t->bytes;
    }
    return FTK_OK;
}

/* ---- bytes of the header ---- */

static void put(writer *w, const void *data, size_t size) {
    if (size > w->capacity - w->size) {
        size_t capacity = 2 * (w->size + size) + 4096;
        uint8_t *grown = realloc(w->data, capacity);
        if (!grown) {
            w->failed = true;
            return;
        }
        w->data = grown;
        w->capacity = capacity;
    }
    memcpy(w->data + w->size, data, size);
    w->size += size;
}

static void put_u32(writer *w, uint32_t value) {
    put(w, &value, sizeof value);
}

static void put_u64(writer *w, uint64_t value) {
    put(w, &value, sizeof value);
}

static void put_string(writer *w, const char *text) {
    put_u64(w, strlen(text));
    put(w, text, strlen(text));
}

static size_t scalar_bytes(uint32_t type) {
    switch (type) {
    case FTI_SYNTH_BOOL: return 1;
    case FTI_SYNTH_U16: return 2;
    case FTI_SYNTH_U64: return 8;
    default: return 4;
    }
}

static void put_key(writer *w, const char *key, uint32_t type) {
    w->key_count++;
    put_string(w, key);
    put_u32(w, type);
}

static void put_array(writer *w, const char *key, uint32_t element_type, uint64_t count) {
    put_key(w, key, FTI_SYNTH_ARRAY);
    put_u32(w, element_type);
    put_u64(w, count);
}

static void put_given(writer *w, const fti_synth_meta *g) {
    if (g->type == FTI_SYNTH_LEFT_OUT) return;
    if (g->type == FTI_SYNTH_ARRAY) {
        put_array(w, g->key, g->element_type, g->count);
        for (uint64_t i = 0; i < g->count; i++)
            put(w, &g->elements[i], scalar_bytes(g->element_type));
        return;
    }
    put_key(w, g->key, g->type);
    if (g->type == FTI_SYNTH_STRING)
        put_string(w, g->text);
    else if (g->type == FTI_SYNTH_F32)
        put(w, &g->real, sizeof g->real);
    else
        put(w, &g->number, scalar_bytes(g->type));
}

/* True if the model brings its own value for `key`, which is written in its place. */
static bool given(writer *w, const char *key) {
    for (size_t i = 0; i < w->m->meta_count; i++) {
        if (strcmp(w->m->metas[i].key, key) != 0) continue;
        put_given(w, &w->m->metas[i]);
        w->used[i] = true;
        return true;
    }
    return false;
}

static void text_key(writer *w, const char *key, const char *value) {
    if (!given(w, key))
        put_given(w, &(fti_synth_meta){.key = key, .type = FTI_SYNTH_STRING, .text = value});
}

static void real_key(writer *w, const char *key, float value) {
    if (!given(w, key))
        put_given(w, &(fti_synth_meta){.key = key, .type = FTI_SYNTH_F32, .real = value});
}

static void integer_key(writer *w, const char *key, uint64_t value) {
    if (!given(w, key))
        put_given(w, &(fti_synth_meta){.key = key, .type = w->m->integer_type, .number = value});
}

/* ---- the tokenizer ---- */

static const struct {
    const char *text;
    uint32_t type; /* 3 control, 4 user-defined */
} specials[] = {
    {"<|endoftext|>", 3},
    {"<|im_start|>", 3},
    {"<|im_end|>", 3},
    {"<|object_ref_start|>", 3},
    {"<|object_ref_end|>", 3},
    {"<|box_start|>", 3},
    {"<|box_end|>", 3},
    {"<|quad_start|>", 3},
    {"<|quad_end|>", 3},
    {"<|vision_start|>", 3},
    {"<|vision_end|>", 3},
    {"<|vision_pad|>", 3},
    {"<|image_pad|>", 3},
    {"<|video_pad|>", 3},
    {"<tool_call>", 4},
    {"</tool_call>", 4},
    {"<|fim_prefix|>", 3},
    {"<|fim_middle|>", 3},
    {"<|fim_suffix|>", 3},
    {"<|fim_pad|>", 3},
    {"<|repo_name|>", 3},
    {"<|file_sep|>", 3},
    {"<tool_response>", 4},
    {"</tool_response>", 4},
    {"<think>", 4},
    {"</think>", 4},
};
#define BYTE_TOKENS 256u
#define MAX_TOKENS  400000u /* less than there are merges to make */

/* One merge: two texts that are tokens already, and become one. */
typedef struct merge {
    char left[8], right[8];
} merge;

typedef struct vocabulary {
    char bytes[BYTE_TOKENS][4];
    merge *merges;
    uint32_t merge_count;
} vocabulary;

static bool printable(uint32_t byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* Byte-level BPE writes a printable byte as itself, the n-th of the others as
 * character 256 + n. */
static void byte_text(uint32_t byte, uint32_t nth_other, char out[4]) {
    uint32_t c = printable(byte) ? byte : 256 + nth_other;
    memset(out, 0, 4);
    if (c < 128) {
        out[0] = (char)c;
        return;
    }
    out[0] = (char)(0xc0u | c >> 6);
    out[1] = (char)(0x80u | (c & 63u));
}

static void list_bytes(vocabulary *v) {
    uint32_t at = 0, others = 0;
    for (uint32_t b = 0; b < BYTE_TOKENS; b++)
        if (printable(b)) byte_text(b, 0, v->bytes[at++]);
    for (uint32_t b = 0; b < BYTE_TOKENS; b++)
        if (!printable(b)) byte_text(b, others++, v->bytes[at++]);
}

#define LETTERS "etaoinshrdlcumwfgypbvkjxqz" /* in the order of their use in English */

/* A space as byte-level BPE writes it. */
static char *put_space(char *out) {
    *out++ = (char)0xc4;
    *out++ = (char)0xa0;
    return out;
}

/* The `n` letters of the number `index` in base 26. */
static char *put_letters(char *out, uint32_t index, uint32_t n) {
    for (uint32_t i = n; i-- > 0; index /= 26) out[i] = LETTERS[index % 26];
    return out + n;
}

/* Merges in order of rank: two letters; a space and one, two letters; three letters;
 * a space and three; four letters. Each text is made in one way only. */
static void list_merges(vocabulary *v, uint32_t wanted) {
    static const struct {
        uint32_t space, left, right; /* letters on each side */
        uint32_t count;
    } forms[] = {{0, 1, 1, 676},   {1, 0, 1, 26},    {1, 1, 1, 676},
                 {0, 2, 1, 17576}, {1, 2, 1, 17576}, {0, 2, 2, 456976}};
    for (size_t f = 0; f < COUNT(forms); f++) {
        uint32_t divisor = forms[f].right == 2 ? 676 : 26;
        for (uint32_t i = 0; i < forms[f].count && v->merge_count < wanted; i++) {
            merge *m = &v->merges[v->merge_count++];
            char *left = m->left;
            if (forms[f].space) left = put_space(left);
            put_letters(left, i / divisor, forms[f].left);
            put_letters(m->right, i % divisor, forms[f].right);
        }
    }
}

static void put_tokens(writer *w, const vocabulary *v) {
    char text[24];
    put_array(w, "tokenizer.ggml.tokens", FTI_SYNTH_STRING, w->m->dims.vocabulary);
    for (uint32_t i = 0; i < BYTE_TOKENS; i++) put_string(w, v->bytes[i]);
    for (uint32_t i = 0; i < v->merge_count; i++) {
        snprintf(text, sizeof text, "%s%s", v->merges[i].left, v->merges[i].right);
        put_string(w, text);
    }
    for (size_t i = 0; i < COUNT(specials); i++) put_string(w, specials[i].text);
}

static void put_token_types(writer *w, const vocabulary *v) {
    put_array(w, "tokenizer.ggml.token_type", FTI_SYNTH_I32, w->m->dims.vocabulary);
    for (uint32_t i = 0; i < BYTE_TOKENS + v->merge_count; i++) put_u32(w, 1);
    for (size_t i = 0; i < COUNT(specials); i++) put_u32(w, specials[i].type);
}

static void put_merges(writer *w, const vocabulary *v) {
    char text[24];
    put_array(w, "tokenizer.ggml.merges", FTI_SYNTH_STRING, v->merge_count);
    for (uint32_t i = 0; i < v->merge_count; i++) {
        snprintf(text, sizeof text, "%s %s", v->merges[i].left, v->merges[i].right);
        put_string(w, text);
    }
}

static void put_vocabulary(writer *w) {
    vocabulary v = {.merge_count = 0};
    uint32_t merges = w->m->dims.vocabulary - BYTE_TOKENS - (uint32_t)COUNT(specials);
    v.merges = calloc(merges + 1, sizeof *v.merges);
    if (!v.merges) {
        w->failed = true;
        return;
    }
    list_bytes(&v);
    list_merges(&v, merges);
    if (!given(w, "tokenizer.ggml.tokens")) put_tokens(w, &v);
    if (!given(w, "tokenizer.ggml.token_type")) put_token_types(w, &v);
    if (!given(w, "tokenizer.ggml.merges")) put_merges(w, &v);
    free(v.merges);
}

static void put_tokenizer(writer *w) {
    uint64_t first_special = w->m->dims.vocabulary - COUNT(specials);
    text_key(w, "tokenizer.ggml.model", "gpt2");
    text_key(w, "tokenizer.ggml.pre", "qwen35");
    put_vocabulary(w);
    integer_key(w, "tokenizer.ggml.eos_token_id", first_special + 2);
    integer_key(w, "tokenizer.ggml.padding_token_id", first_special);
    integer_key(w, "tokenizer.ggml.bos_token_id", first_special);
    if (!given(w, "tokenizer.ggml.add_bos_token"))
        put_given(w,
                  &(fti_synth_meta){.key = "tokenizer.ggml.add_bos_token", .type = FTI_SYNTH_BOOL});
    text_key(w, "tokenizer.chat_template",
             "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + "
             "'<|im_end|>\\n' }}{%- endfor %}");
}

/* ---- the header ---- */

#define KEY(suffix) "qwen35moe." suffix

/* Pairs of the rotary part per axis, in the proportion 11 : 11 : 10. */
static void put_sections(writer *w) {
    static const char key[] = KEY("rope.dimension_sections");
    uint32_t pairs = w->m->dims.rope_dim / 2, third = pairs * 10 / 32;
    uint32_t second = (pairs - third) / 2;
    const uint64_t sections[] = {pairs - third - second, second, third, 0};
    if (!given(w, key))
        put_given(w, &(fti_synth_meta){.key = key,
                                       .type = FTI_SYNTH_ARRAY,
                                       .element_type = FTI_SYNTH_I32,
                                       .elements = sections,
                                       .count = COUNT(sections)});
}

static void put_architecture(writer *w) {
    const fti_synth_model *m = w->m;
    const fti_synth_dims *d = &m->dims;
    const struct {
        const char *key;
        uint64_t value;
    } integers[] = {
        {KEY("block_count"), d->layers + m->mtp_blocks},
        {KEY("context_length"), d->context},
        {KEY("embedding_length"), d->hidden},
        {KEY("attention.head_count"), d->heads},
        {KEY("attention.head_count_kv"), d->kv_heads},
        {KEY("attention.key_length"), d->head_dim},
        {KEY("attention.value_length"), d->head_dim},
        {KEY("rope.dimension_count"), d->rope_dim},
        {KEY("expert_count"), d->experts},
        {KEY("expert_used_count"), d->used},
        {KEY("expert_feed_forward_length"), d->ff},
        {KEY("expert_shared_feed_forward_length"), d->shared_ff},
        {KEY("ssm.conv_kernel"), d->conv},
        {KEY("ssm.state_size"), d->state},
        {KEY("ssm.group_count"), d->key_heads},
        {KEY("ssm.time_step_rank"), d->value_heads},
        {KEY("ssm.inner_size"), (uint64_t)d->value_heads * d->state},
        {KEY("full_attention_interval"), d->interval},
    };
    for (size_t i = 0; i < COUNT(integers); i++) integer_key(w, integers[i].key, integers[i].value);
    if (m->mtp_blocks) integer_key(w, KEY("nextn_predict_layers"), m->mtp_blocks);
    real_key(w, KEY("rope.freq_base"), 1e7f);
    real_key(w, KEY("attention.layer_norm_rms_epsilon"), 1e-6f);
    put_sections(w);
}

static void put_general(writer *w) {
    char name[96];
    snprintf(name, sizeof name, "synthetic qwen35moe %.64s", w->m->label);
    text_key(w, "general.architecture", "qwen35moe");
    text_key(w, "general.type", "model");
    text_key(w, "general.name", name);
    text_key(w, "general.size_label", w->m->label);
    integer_key(w, "general.quantization_version", 2);
    integer_key(w, "general.file_type", 15); /* mostly Q4_K, medium */
    if (w->m->alignment != 32 && !given(w, "general.alignment"))
        put_given(w, &(fti_synth_meta){.key = "general.alignment",
                                       .type = FTI_SYNTH_U32,
                                       .number = w->m->alignment});
}

/* Given keys that the architecture does not have. */
static void put_new_keys(writer *w) {
    for (size_t i = 0; i < w->m->meta_count; i++)
        if (!w->used[i]) put_given(w, &w->m->metas[i]);
}

static void put_tensor_infos(writer *w) {
    for (size_t i = 0; i < w->tensor_count; i++) {
        const tensor *t = &w->tensors[i];
        put_string(w, t->name);
        put_u32(w, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++) put_u64(w, t->dims[d]);
        put_u32(w, t->type);
        put_u64(w, t->offset);
    }
}

static void put_header(writer *w) {
    put(w, "GGUF", 4);
    put_u32(w, 3);
    put_u64(w, w->tensor_count);
    size_t key_count_at = w->size;
    put_u64(w, 0);
    put_general(w);
    put_architecture(w);
    put_tokenizer(w);
    put_new_keys(w);
    put_tensor_infos(w);
    while (!w->failed && w->size % w->m->alignment) put(w, "", 1);
    if (!w->failed) memcpy(w->data + key_count_at, &w->key_count, sizeof w->key_count);
}

/* ---- the payload ---- */

/* What one thread fills and writes at a time: blocks of one tensor. */
typedef struct chunk {
    const tensor *t;
    uint64_t first, count;
} chunk;

/* False when nothing is left, or when another thread failed. */
static bool take_chunk(writer *w, chunk *c) {
    pthread_mutex_lock(&w->lock);
    bool left = w->error == 0 && w->next_tensor < w->tensor_count;
    if (left) {
        c->t = &w->tensors[w->next_tensor];
        uint64_t size = find_type(c->t->type)->bytes, total = c->t->bytes / size;
        c->first = w->next_block;
        c->count = CHUNK_BYTES / size;
        if (c->count > total - c->first) c->count = total - c->first;
        w->next_block += c->count;
        if (w->next_block == total) {
            w->next_tensor++;
            w->next_block = 0;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return left;
}

static void fill_chunk(const writer *w, const chunk *c, const block_type *type, uint8_t *out) {
    filler f = {.t = c->t};
    uint64_t start = w->m->seed * 0xd6e8feb86659fd93u ^ c->t->key ^ c->first << 1;
    f.state = next(&start) ^ start << 1;
    start_filling(&f, type);
    for (uint64_t i = 0; i < c->count; i++) type->fill(&f, out + i * type->bytes);
}

/* 0, or an errno. */
static int write_at(int fd, const void *data, size_t size, uint64_t offset) {
    const char *p = data;
    while (size > 0) {
        ssize_t n = pwrite(fd, p, size, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        p += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

static void keep_error(writer *w, int error) {
    pthread_mutex_lock(&w->lock);
    if (w->error == 0) w->error = error;
    pthread_mutex_unlock(&w->lock);
}

static void *write_chunks(void *argument) {
    writer *w = argument;
    uint8_t *buffer = malloc(CHUNK_BYTES);
    if (!buffer) keep_error(w, ENOMEM);
    chunk c;
    while (buffer && take_chunk(w, &c)) {
        const block_type *type = find_type(c.t->type);
        if (!type->fill) continue; /* the file has zeros there */
        fill_chunk(w, &c, type, buffer);
        uint64_t offset = w->size + c.t->offset + c.first * type->bytes;
        int error = write_at(w->fd, buffer, (size_t)(c.count * type->bytes), offset);
        if (error) keep_error(w, error);
    }
    free(buffer);
    return NULL;
}

static uint32_t thread_count(const fti_synth_model *m) {
    long n = m->threads ? (long)m->threads : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > (long)MAX_THREADS ? MAX_THREADS : (uint32_t)n;
}

/* This thread works too, so that a thread that cannot be started is no failure. */
static void write_payload(writer *w) {
    pthread_t threads[MAX_THREADS];
    uint32_t started = 0, wanted = thread_count(w->m) - 1;
    while (started < wanted && pthread_create(&threads[started], NULL, write_chunks, w) == 0)
        started++;
    write_chunks(w);
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

/* ---- the whole ---- */

static ftk_status write_file(writer *w, const char *path, uint64_t payload, ftk_error *err) {
    w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0) return refuse(err, FTK_E_IO, "%s: cannot create: %s", path, strerror(errno));
    if (ftruncate(w->fd, (off_t)aligned(w->size + payload, w->m->alignment)) != 0) w->error = errno;
    if (w->error == 0) w->error = write_at(w->fd, w->data, w->size, 0);
    if (w->error == 0) write_payload(w);
    if (close(w->fd) != 0 && w->error == 0) w->error = errno;
    if (w->error == 0) return FTK_OK;
    unlink(path);
    return refuse(err, FTK_E_IO, "%s: cannot write: %s", path, strerror(w->error));
}

static ftk_status build(writer *w, const char *path, ftk_error *err) {
    uint64_t payload;
    w->used = calloc(w->m->meta_count + 1, sizeof *w->used);
    if (!w->used) return no_memory(err);
    add_all(w);
    if (w->too_long)
        return refuse(err, FTK_E_ARGUMENT, "%s: a tensor's name is longer than 63 bytes", path);
    ftk_status status = lay_out(w, &payload, err);
    if (status != FTK_OK) return status;
    put_header(w);
    if (w->failed) return no_memory(err);
    return write_file(w, path, payload, err);
}

static ftk_status check(const fti_synth_model *m, ftk_error *err) {
    uint32_t fewest = BYTE_TOKENS + (uint32_t)COUNT(specials);
    if (m->dims.vocabulary < fewest || m->dims.vocabulary > MAX_TOKENS)
        return refuse(err, FTK_E_ARGUMENT, "vocabulary of %u tokens, wanted %u to %u",
                      m->dims.vocabulary, fewest, MAX_TOKENS);
    if (m->alignment == 0 || m->alignment > MAX_ALIGNMENT || (m->alignment & (m->alignment - 1)))
        return refuse(err, FTK_E_ARGUMENT, "alignment of %u, wanted a power of two up to %u",
                      m->alignment, MAX_ALIGNMENT);
    if (m->dims.layers == 0 || m->dims.interval == 0)
        return refuse(err, FTK_E_ARGUMENT, "layers and interval must not be 0");
    return FTK_OK;
}

ftk_status fti_synth_write(const fti_synth_model *model, const char *path, ftk_error *err) {
    ftk_status status = check(model, err);
    if (status != FTK_OK) return status;
    writer w = {.m = model};
    pthread_mutex_init(&w.lock, NULL);
    status = build(&w, path, err);
    pthread_mutex_destroy(&w.lock);
    free(w.tensors);
    free(w.data);
    free(w.used);
    return status;
}
