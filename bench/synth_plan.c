/* synth_plan.c: kinds, tensors, layout, and the bytes of any range. */
#include "synth_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "freetoken/device/math.h"
#include "freetoken/provider.h"
#include "synth_vocabulary.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define ALIGNMENT    32u
#define STREAM_BYTES (4u << 20) /* of a tensor that come from one stream of random numbers */

/* ---- kinds ---- */

/* medium has the layers of 35b-a3b, and a fifth of its work per token. */
static const fti_synth_shape shapes[] = {
    {"tiny", 256, 4, 8, 2, 256, 256, 4, 2, 256, 64, 2, 4, 128, 4, 4, 2048, 32768},
    {"medium", 2048, 8, 64, 8, 512, 512, 16, 2, 256, 64, 16, 32, 128, 4, 4, 49664, 262144},
    {"35b-a3b", 2048, 40, 256, 8, 512, 512, 16, 2, 256, 64, 16, 32, 128, 4, 4, 248320, 262144},
    {"122b-a10b", 3072, 48, 256, 8, 1024, 1024, 32, 2, 256, 64, 16, 64, 128, 4, 4, 248320, 262144},
};

static const uint32_t default_types[FTI_SYNTH_CLASS_COUNT] = {
    FTK_TYPE_Q4_K, FTK_TYPE_Q6_K, FTK_TYPE_Q8_0,      FTK_TYPE_Q6_K,
    FTK_TYPE_F32,  FTK_TYPE_Q4_K, FTI_SYNTH_TYPE_MIX, FTK_TYPE_Q8_0};

const char *fti_synth_kinds(void) {
    return "tiny, medium, 35b-a3b or 122b-a10b";
}

bool fti_synth_describe(const char *kind, fti_synth_description *out) {
    for (size_t i = 0; i < COUNT(shapes); i++) {
        if (strcmp(shapes[i].name, kind) != 0) continue;
        *out = (fti_synth_description){.shape = shapes[i], .seed = 1};
        memcpy(out->types, default_types, sizeof default_types);
        return true;
    }
    return false;
}

/* ---- types by name ---- */

static const char *const class_names[FTI_SYNTH_CLASS_COUNT] = {
    "embedding", "output", "attention", "linear", "alpha-beta", "gate-up", "down", "shared"};

static bool word_is(const char *word, size_t size, const char *name) {
    return strlen(name) == size && strncmp(word, name, size) == 0;
}

static bool type_named(const char *word, size_t size, bool mix, uint32_t *type) {
    for (uint32_t i = 0; i < fti_synth_type_count; i++) {
        *type = fti_synth_types[i].type;
        if (word_is(word, size, fti_synth_types[i].name)) return true;
    }
    *type = FTI_SYNTH_TYPE_MIX;
    return mix && word_is(word, size, "MIX");
}

static size_t class_named(const char *word, size_t size) {
    size_t i = 0;
    while (i < FTI_SYNTH_CLASS_COUNT && !word_is(word, size, class_names[i])) i++;
    return i;
}

static const char *bad_item(const char *item, size_t size, bool known, fti_synth_message *m) {
    (void)snprintf(m->text, sizeof m->text, "'%.*s': %s", (int)(size < 40 ? size : 40), item,
                   known ? "wanted F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, "
                           "IQ4_NL, IQ4_XS, MXFP4 or NVFP4 (or MIX for down)"
                         : "wanted CLASS=TYPE with a class of embedding, output, attention, "
                           "linear, alpha-beta, gate-up, down, shared");
    return m->text;
}

const char *fti_synth_set_types(fti_synth_description *d, const char *list,
                                fti_synth_message *buffer) {
    for (const char *item = list;; item++) {
        size_t size = strcspn(item, ","), name = strcspn(item, "=,");
        size_t class = class_named(item, name);
        if (class == FTI_SYNTH_CLASS_COUNT || name == size) {
            return bad_item(item, size, false, buffer);
        }
        if (!type_named(item + name + 1, size - name - 1, class == FTI_SYNTH_CLASS_DOWN,
                        &d->types[class])) {
            return bad_item(item, size, true, buffer);
        }
        item += size;
        if (!*item) return NULL;
    }
}

/* ---- tensors ---- */

#define NO_LAYER UINT32_MAX

/* Rows and slices of 0 stand for dimensions that are not there. */
typedef struct extent {
    uint64_t columns, rows, slices;
} extent;

static fti_synth_tensor *add(fti_synth_plan *p, uint32_t layer, const char *name, extent e) {
    fti_synth_tensor *t = &p->tensors[p->tensor_count++];
    if (layer == NO_LAYER) {
        (void)snprintf(t->name, sizeof t->name, "%s", name);
    } else {
        (void)snprintf(t->name, sizeof t->name, "blk.%" PRIu32 ".%s", layer, name);
    }
    t->layer = layer;
    t->n_dims = e.slices ? 3 : e.rows ? 2 : 1;
    t->dims[0] = e.columns;
    t->dims[1] = e.rows ? e.rows : 1;
    t->dims[2] = e.slices ? e.slices : 1;
    return t;
}

/* The spread that keeps a sum over `inputs` terms of size 1 at size 1. */
static float spread(uint64_t inputs) {
    return 1.0f / sqrtf((float)inputs);
}

static fti_synth_tensor *add_weight(fti_synth_plan *p, uint32_t layer, const char *name,
                                    uint32_t type, float gain, extent e) {
    fti_synth_tensor *t = add(p, layer, name, e);
    t->values = (fti_synth_values){type, FTI_SYNTH_WEIGHT, gain * spread(e.columns)};
    return t;
}

static fti_synth_tensor *add_vector(fti_synth_plan *p, uint32_t layer, const char *name,
                                    fti_synth_content content, uint64_t size) {
    fti_synth_tensor *t = add(p, layer, name, (extent){size, 0, 0});
    t->values = (fti_synth_values){FTK_TYPE_F32, content, 0.1f};
    return t;
}

/* The layers in which a Q4_K_M mix gives the down matrices more bits: the first
 * and last eighth, and every third one between. */
static uint32_t down_type(const fti_synth_description *d, uint32_t layer) {
    uint32_t type = d->types[FTI_SYNTH_CLASS_DOWN], n = d->shape.layers, eighth = n / 8;
    if (type != FTI_SYNTH_TYPE_MIX) return type;
    bool more = layer < eighth || layer >= 7 * n / 8 || (layer - eighth) % 3 == 2;
    return more ? FTK_TYPE_Q6_K : FTK_TYPE_Q5_K;
}

static void add_experts(fti_synth_plan *p, uint32_t layer) {
    const fti_synth_shape *s = &p->d.shape;
    uint32_t gate_up = p->d.types[FTI_SYNTH_CLASS_GATE_UP];
    uint32_t shared = p->d.types[FTI_SYNTH_CLASS_SHARED];
    extent inner = {s->hidden, s->ff, s->experts}, router = {s->hidden, s->experts, 0};
    add_weight(p, layer, "ffn_gate_inp.weight", FTK_TYPE_F32, 1.5f, router)->role =
        FTI_SYNTH_ROUTER;
    add_weight(p, layer, "ffn_gate_exps.weight", gate_up, 1, inner);
    add_weight(p, layer, "ffn_up_exps.weight", gate_up, 1, inner);
    add_weight(p, layer, "ffn_down_exps.weight", down_type(&p->d, layer), 1,
               (extent){s->ff, s->hidden, s->experts})
        ->role = FTI_SYNTH_WRITER;
    add_weight(p, layer, "ffn_gate_inp_shexp.weight", FTK_TYPE_F32, 1, (extent){s->hidden, 0, 0});
    add_weight(p, layer, "ffn_gate_shexp.weight", shared, 1, (extent){s->hidden, s->shared_ff, 0});
    add_weight(p, layer, "ffn_up_shexp.weight", shared, 1, (extent){s->hidden, s->shared_ff, 0});
    add_weight(p, layer, "ffn_down_shexp.weight", shared, 1, (extent){s->shared_ff, s->hidden, 0})
        ->role = FTI_SYNTH_WRITER;
}

static void add_full_attention(fti_synth_plan *p, uint32_t layer) {
    const fti_synth_shape *s = &p->d.shape;
    uint32_t type = p->d.types[FTI_SYNTH_CLASS_ATTENTION];
    uint64_t q = (uint64_t)s->heads * s->head_dim, kv = (uint64_t)s->kv_heads * s->head_dim;
    add_weight(p, layer, "attn_q.weight", type, 1, (extent){s->hidden, 2 * q, 0});
    add_weight(p, layer, "attn_k.weight", type, 1, (extent){s->hidden, kv, 0});
    add_weight(p, layer, "attn_v.weight", type, 1, (extent){s->hidden, kv, 0});
    add_weight(p, layer, "attn_output.weight", type, 1, (extent){q, s->hidden, 0})->role =
        FTI_SYNTH_WRITER;
    add_vector(p, layer, "attn_q_norm.weight", FTI_SYNTH_NORM, s->head_dim);
    add_vector(p, layer, "attn_k_norm.weight", FTI_SYNTH_NORM, s->head_dim);
}

static void add_linear_attention(fti_synth_plan *p, uint32_t layer) {
    const fti_synth_shape *s = &p->d.shape;
    uint32_t type = p->d.types[FTI_SYNTH_CLASS_LINEAR];
    uint32_t small = p->d.types[FTI_SYNTH_CLASS_ALPHA_BETA];
    uint64_t key = (uint64_t)s->key_heads * s->state, value = (uint64_t)s->value_heads * s->state;
    add_weight(p, layer, "attn_qkv.weight", type, 1, (extent){s->hidden, 2 * key + value, 0});
    add_weight(p, layer, "attn_gate.weight", type, 1, (extent){s->hidden, value, 0});
    add(p, layer, "ssm_conv1d.weight", (extent){s->conv, 2 * key + value, 0})->values =
        (fti_synth_values){FTK_TYPE_F32, FTI_SYNTH_WEIGHT, 0.5f};
    add_vector(p, layer, "ssm_dt.bias", FTI_SYNTH_STEP, s->value_heads);
    add_vector(p, layer, "ssm_a", FTI_SYNTH_DECAY, s->value_heads);
    add_weight(p, layer, "ssm_beta.weight", small, 1, (extent){s->hidden, s->value_heads, 0});
    add_weight(p, layer, "ssm_alpha.weight", small, 0.5f, (extent){s->hidden, s->value_heads, 0});
    add_vector(p, layer, "ssm_norm.weight", FTI_SYNTH_NORM, s->state);
    add_weight(p, layer, "ssm_out.weight", type, 1, (extent){value, s->hidden, 0})->role =
        FTI_SYNTH_WRITER;
}

#define GLOBAL_TENSORS     3u
#define MOST_LAYER_TENSORS 19u

static void add_all(fti_synth_plan *p) {
    const fti_synth_description *d = &p->d;
    const fti_synth_shape *s = &d->shape;
    extent table = {s->hidden, s->vocabulary, 0};
    p->tensors = fti_cli_alloc(GLOBAL_TENSORS + (size_t)s->layers * MOST_LAYER_TENSORS,
                               sizeof *p->tensors);
    fti_synth_tensor *t = add(p, NO_LAYER, "token_embd.weight", table);
    t->values = (fti_synth_values){d->types[FTI_SYNTH_CLASS_EMBEDDING], FTI_SYNTH_WEIGHT, 1};
    t->role = FTI_SYNTH_TABLE;
    add_vector(p, NO_LAYER, "output_norm.weight", FTI_SYNTH_NORM, s->hidden);
    add_weight(p, NO_LAYER, "output.weight", d->types[FTI_SYNTH_CLASS_OUTPUT], 2.5f, table);
    for (uint32_t i = 0; i < s->layers; i++) {
        add_vector(p, i, "attn_norm.weight", FTI_SYNTH_NORM, s->hidden);
        add_vector(p, i, "post_attention_norm.weight", FTI_SYNTH_NORM, s->hidden)->role =
            FTI_SYNTH_ROUTER_NORM;
        if ((i + 1) % s->interval) {
            add_linear_attention(p, i);
        } else {
            add_full_attention(p, i);
        }
        add_experts(p, i);
    }
}

static uint64_t aligned(uint64_t value) {
    return (value + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static ftk_status refuse(ftk_error *err, const fti_synth_tensor *t, const char *problem) {
    err->status = FTK_E_ARGUMENT;
    (void)snprintf(err->message, sizeof err->message, "tensor %s: type %s %s; change --types",
                   t->name, fti_synth_find_type(t->values.type)->name, problem);
    return FTK_E_ARGUMENT;
}

static ftk_status lay_out(fti_synth_plan *p, ftk_error *err) {
    uint64_t end = 0;
    for (size_t i = 0; i < p->tensor_count; i++) {
        fti_synth_tensor *t = &p->tensors[i];
        const fti_synth_type *type = fti_synth_find_type(t->values.type);
        if (t->dims[0] % type->elements) return refuse(err, t, "does not divide its rows");
        t->offset = end;
        t->bytes = t->dims[0] / type->elements * type->bytes * t->dims[1] * t->dims[2];
        end = aligned(end + t->bytes);
    }
    p->file_bytes = end;
    return FTK_OK;
}

/* ---- skew ---- */

#define ROUTER_SPREAD 1.5f /* deviation of what a token adds to its experts' logits */
#define FIRST_CHANNEL 1.6f /* usual value of the channel that all tokens share */
#define KEPT_SHARE    16u  /* of hidden channels, one in so many is kept */

/* Makes the first element of a row what all tokens share; false for types in which that
 * is not done. Blocks of quants hold their greatest one there. */
static bool set_shared(uint32_t type, uint8_t *block) {
    static const float value = FIRST_CHANNEL;
    switch (type) {
    case FTK_TYPE_F32: memcpy(block, &value, sizeof value); return true;
    case FTK_TYPE_Q8_0: block[2] = 127; return true;
    case FTK_TYPE_Q4_K: block[16] |= 0x0f; return true;
    default: return false;
    }
}

static ftk_status skew(fti_synth_plan *p, ftk_error *err) {
    uint8_t block[FTI_SYNTH_MAX_BLOCK] = {0};
    if (!(p->d.skew > 0)) return FTK_OK;
    p->kept_channels = p->d.shape.hidden / KEPT_SHARE;
    for (size_t i = 0; i < p->tensor_count; i++) {
        fti_synth_tensor *t = &p->tensors[i];
        if (t->role == FTI_SYNTH_ROUTER)
            t->values.deviation = ROUTER_SPREAD * spread(p->kept_channels - 1);
        if (t->role == FTI_SYNTH_TABLE && !set_shared(t->values.type, block))
            return refuse(err, t, "cannot be skewed, only F32, Q8_0 and Q4_K can");
    }
    return FTK_OK;
}

void fti_synth_ranks(const fti_synth_plan *plan, uint32_t layer, uint32_t *ranks) {
    uint64_t stream = plan->d.seed * 0x9fb21c651e98df25u ^ ((uint64_t)layer + 1) << 32;
    for (uint32_t i = 0; i < plan->d.shape.experts; i++) {
        uint32_t other = (uint32_t)(fti_synth_next(&stream) % (i + 1));
        ranks[i] = ranks[other];
        ranks[other] = i;
    }
}

/* Popularity falls with the logarithm of the rank, as the words of a language do. */
static float popularity(const fti_synth_plan *p, uint32_t rank) {
    return (float)(-p->d.skew * (double)(ROUTER_SPREAD / FIRST_CHANNEL) *
                   ftk_log_f64(1.0 + (double)rank));
}

static void skew_router(const fti_synth_plan *p, const fti_synth_tensor *t, uint64_t first,
                        uint64_t count, uint8_t *out) {
    uint32_t *ranks = fti_cli_alloc(p->d.shape.experts, sizeof *ranks);
    fti_synth_ranks(p, t->layer, ranks);
    for (uint64_t i = first; i < first + count; i++, out += sizeof(float)) {
        uint64_t column = i % t->dims[0];
        float value = column ? 0.0f : popularity(p, ranks[i / t->dims[0]]);
        if (column == 0 || column >= p->kept_channels) memcpy(out, &value, sizeof value);
    }
    free(ranks);
}

/* A block of zero bytes holds zeros, whatever its type. */
static void skew_block(const fti_synth_plan *p, const fti_synth_tensor *t, uint64_t row,
                       bool first_of_row, uint8_t *block) {
    static const float one = 1;
    if (t->role == FTI_SYNTH_WRITER && row < p->kept_channels)
        memset(block, 0, fti_synth_find_type(t->values.type)->bytes);
    if (t->role == FTI_SYNTH_TABLE && first_of_row) (void)set_shared(t->values.type, block);
    if (t->role == FTI_SYNTH_ROUTER_NORM && first_of_row) memcpy(block, &one, sizeof one);
}

/* What the skew changes in blocks [first, first + count) of a tensor. */
static void apply_skew(const fti_synth_plan *p, const fti_synth_tensor *t, uint64_t first,
                       uint64_t count, uint8_t *out) {
    const fti_synth_type *type = fti_synth_find_type(t->values.type);
    uint64_t per_row = t->dims[0] / type->elements;
    if (t->role == FTI_SYNTH_ROUTER) {
        skew_router(p, t, first, count, out);
        return;
    }
    for (uint64_t i = first; i < first + count; i++, out += type->bytes)
        skew_block(p, t, i / per_row % t->dims[1], i % per_row == 0, out);
}

/* ---- bytes ---- */

static uint64_t stream_of(const fti_synth_plan *p, size_t tensor, uint64_t first_block) {
    uint64_t stream = p->d.seed * 0xd6e8feb86659fd93u ^ (uint64_t)tensor << 40 ^ first_block;
    uint64_t mixed = fti_synth_next(&stream);
    return mixed ^ stream << 1;
}

/* Blocks [first, first + count) of a tensor, all of one stream. */
static void make_blocks(const fti_synth_plan *p, size_t tensor, uint64_t first, uint64_t count,
                        uint8_t *out) {
    const fti_synth_tensor *t = &p->tensors[tensor];
    uint64_t per_stream = STREAM_BYTES / fti_synth_find_type(t->values.type)->bytes;
    uint64_t origin = first / per_stream * per_stream;
    fti_synth_fill(&t->values, stream_of(p, tensor, origin), first - origin, count, out);
    if (p->kept_channels && t->role != FTI_SYNTH_PLAIN) apply_skew(p, t, first, count, out);
}

/* As many bytes of a tensor from `at` on as come from one stream; a block of which not
 * all is wanted is made aside. */
static size_t make_some(const fti_synth_plan *p, size_t tensor, uint64_t at, size_t size,
                        uint8_t *out) {
    uint64_t bytes = fti_synth_find_type(p->tensors[tensor].values.type)->bytes;
    uint64_t per_stream = STREAM_BYTES / bytes, block = at / bytes, inside = at % bytes;
    uint64_t left = per_stream - block % per_stream, count = size / bytes;
    if (inside == 0 && count > 0) {
        if (count > left) count = left;
        make_blocks(p, tensor, block, count, out);
        return (size_t)(count * bytes);
    }
    uint8_t whole[FTI_SYNTH_MAX_BLOCK];
    make_blocks(p, tensor, block, 1, whole);
    size_t part = (size_t)(bytes - inside) < size ? (size_t)(bytes - inside) : size;
    memcpy(out, whole + inside, part);
    return part;
}

static size_t tensor_at(const fti_synth_plan *p, uint64_t offset) {
    size_t low = 0, high = p->tensor_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (p->tensors[middle].offset <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Some bytes of the payload, padding included. */
static size_t make_payload(const fti_synth_plan *p, uint64_t offset, size_t size, uint8_t *out) {
    size_t index = tensor_at(p, offset);
    const fti_synth_tensor *t = &p->tensors[index];
    uint64_t at = offset - t->offset;
    if (at < t->bytes) {
        return make_some(p, index, at, size < t->bytes - at ? size : (size_t)(t->bytes - at), out);
    }
    uint64_t padding = aligned(t->bytes) - at;
    size_t part = size < padding ? size : (size_t)padding;
    memset(out, 0, part);
    return part;
}

void fti_synth_plan_read(const fti_synth_plan *plan, uint64_t offset, size_t size, uint8_t *out) {
    while (size > 0) {
        size_t part;
        if (offset < plan->header.size) {
            part = plan->header.size - (size_t)offset;
            if (part > size) part = size;
            memcpy(out, plan->header.data + offset, part);
        } else {
            part = make_payload(plan, offset - plan->header.size, size, out);
        }
        offset += part;
        out += part;
        size -= part;
    }
}

/* ---- the whole ---- */

ftk_status fti_synth_plan_make(const fti_synth_description *d, fti_synth_plan *out,
                               ftk_error *err) {
    *out = (fti_synth_plan){.d = *d};
    add_all(out);
    ftk_status status = lay_out(out, err);
    if (status == FTK_OK) status = skew(out, err);
    if (status != FTK_OK) {
        fti_synth_plan_free(out);
        return status;
    }
    fti_synth_header_write(out);
    while (out->header.size % ALIGNMENT) fti_cli_append(&out->header, "", 1);
    out->file_bytes += out->header.size;
    return FTK_OK;
}

void fti_synth_plan_free(fti_synth_plan *plan) {
    free(plan->tensors);
    free(plan->header.data);
    *plan = (fti_synth_plan){0};
}

const fti_synth_tensor *fti_synth_plan_find(const fti_synth_plan *plan, const char *name) {
    for (size_t i = 0; i < plan->tensor_count; i++)
        if (strcmp(plan->tensors[i].name, name) == 0) return &plan->tensors[i];
    return NULL;
}
