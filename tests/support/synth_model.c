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

#include "freetoken/provider.h"
#include "synth_blocks.h"
#include "synth_vocabulary.h"

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

/* ---- tensors ---- */

typedef struct tensor {
    char name[64];
    uint32_t type;
    uint32_t n_dims;
    uint64_t dims[3];
    fti_synth_content content;
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

/* For refusals: nothing is written for it. */
static const fti_synth_type iq2_xxs = {.type = 16, .elements = 256, .bytes = 66};

static const fti_synth_type *find_type(uint32_t type) {
    return type == iq2_xxs.type ? &iq2_xxs : fti_synth_find_type(type);
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

static void add_named(writer *w, uint32_t layer, const char *name, uint32_t type,
                      fti_synth_content kind, float deviation, shape s) {
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
    add_named(w, layer, name, type, FTI_SYNTH_WEIGHT, gain * spread(s.columns), s);
}

static void add_norm(writer *w, uint32_t layer, const char *name, uint64_t size) {
    add_named(w, layer, name, FTK_TYPE_F32, FTI_SYNTH_NORM, 0.1f, (shape){size, 0, 0});
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
    add_named(w, layer, "ssm_conv1d.weight", FTK_TYPE_F32, FTI_SYNTH_WEIGHT, 0.5f,
              (shape){d->conv, 2 * key + value, 0});
    add_named(w, layer, "ssm_dt.bias", FTK_TYPE_F32, FTI_SYNTH_STEP, 0, per_head);
    add_named(w, layer, "ssm_a", FTK_TYPE_F32, FTI_SYNTH_DECAY, 0, per_head);
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
    add_named(w, NO_LAYER, "token_embd.weight", m->types[FTI_SYNTH_EMBEDDING], FTI_SYNTH_WEIGHT, 1,
              table);
    add_norm(w, NO_LAYER, "output_norm.weight", d->hidden);
    add_weight(w, NO_LAYER, "output.weight", m->types[FTI_SYNTH_OUTPUT], 2.5f, table);
    for (uint32_t i = 0; i < d->layers; i++) add_block(w, i, (i + 1) % d->interval != 0);
    for (uint32_t i = 0; i < m->mtp_blocks; i++) add_mtp_block(w, d->layers + i);
    for (size_t i = 0; i < m->extra_count; i++)
        add_named(w, NO_LAYER, m->extras[i].name, m->extras[i].type, FTI_SYNTH_WEIGHT, 0.02f,
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
        const fti_synth_type *type = find_type(t->type);
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

#define MAX_TOKENS 400000u /* less than there are merges to make */

/* Tokens that are made of others. */
static uint32_t merge_count(const writer *w) {
    return w->m->dims.vocabulary - FTI_SYNTH_BYTE_TOKENS - FTI_SYNTH_SPECIALS;
}

/* A merge's two texts with `between` in the middle. */
static void put_merge(writer *w, uint32_t rank, const char *between) {
    char text[24];
    fti_synth_merge m = fti_synth_merge_of(rank);
    snprintf(text, sizeof text, "%s%s%s", m.left, between, m.right);
    put_string(w, text);
}

static void put_tokens(writer *w) {
    char text[4];
    put_array(w, "tokenizer.ggml.tokens", FTI_SYNTH_STRING, w->m->dims.vocabulary);
    for (uint32_t i = 0; i < FTI_SYNTH_BYTE_TOKENS; i++) {
        fti_synth_byte_token(i, text);
        put_string(w, text);
    }
    for (uint32_t i = 0; i < merge_count(w); i++) put_merge(w, i, "");
    for (size_t i = 0; i < FTI_SYNTH_SPECIALS; i++) put_string(w, fti_synth_specials[i].text);
}

static void put_token_types(writer *w) {
    put_array(w, "tokenizer.ggml.token_type", FTI_SYNTH_I32, w->m->dims.vocabulary);
    for (uint32_t i = 0; i < FTI_SYNTH_BYTE_TOKENS + merge_count(w); i++) put_u32(w, 1);
    for (size_t i = 0; i < FTI_SYNTH_SPECIALS; i++) put_u32(w, fti_synth_specials[i].type);
}

static void put_merges(writer *w) {
    put_array(w, "tokenizer.ggml.merges", FTI_SYNTH_STRING, merge_count(w));
    for (uint32_t i = 0; i < merge_count(w); i++) put_merge(w, i, " ");
}

static void put_vocabulary(writer *w) {
    if (!given(w, "tokenizer.ggml.tokens")) put_tokens(w);
    if (!given(w, "tokenizer.ggml.token_type")) put_token_types(w);
    if (!given(w, "tokenizer.ggml.merges")) put_merges(w);
}

static void put_tokenizer(writer *w) {
    uint64_t first_special = w->m->dims.vocabulary - FTI_SYNTH_SPECIALS;
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

static void fill_chunk(const writer *w, const chunk *c, uint8_t *out) {
    fti_synth_values values = {c->t->type, c->t->content, c->t->deviation};
    uint64_t stream = w->m->seed * 0xd6e8feb86659fd93u ^ c->t->key ^ c->first << 1;
    fti_synth_fill(&values, fti_synth_next(&stream), 0, c->count, out);
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
        const fti_synth_type *type = find_type(c.t->type);
        if (!type->fill) continue; /* the file has zeros there */
        fill_chunk(w, &c, buffer);
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
    uint32_t fewest = FTI_SYNTH_BYTE_TOKENS + FTI_SYNTH_SPECIALS;
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
