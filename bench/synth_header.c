/* synth_header.c: metadata, tokenizer and tensor list of a synthetic checkpoint. */
#include <stdlib.h>
#include <string.h>

#include "synth_plan.h"
#include "synth_vocabulary.h"

/* GGUF's numbers of value types. */
enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

/* The metadata in the making; their number goes where the header has it. */
typedef struct writer {
    fti_cli_text *out;
    uint64_t keys;
} writer;

static void put(writer *w, const void *data, size_t size) {
    fti_cli_append(w->out, data, size);
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

static void put_key(writer *w, const char *key, uint32_t type) {
    w->keys++;
    put_string(w, key);
    put_u32(w, type);
}

static void put_integer(writer *w, const char *key, uint32_t value) {
    put_key(w, key, U32);
    put_u32(w, value);
}

static void put_real(writer *w, const char *key, float value) {
    put_key(w, key, F32);
    put(w, &value, sizeof value);
}

static void put_text(writer *w, const char *key, const char *value) {
    put_key(w, key, STRING);
    put_string(w, value);
}

static void put_array(writer *w, const char *key, uint32_t element_type, uint64_t count) {
    put_key(w, key, ARRAY);
    put_u32(w, element_type);
    put_u64(w, count);
}

#define KEY(suffix) "qwen35moe." suffix

/* Pairs of the rotary part per axis, in the proportion 11 : 11 : 10. */
static void put_sections(writer *w, const fti_synth_shape *s) {
    uint32_t pairs = s->rope_dim / 2, third = pairs * 10 / 32, second = (pairs - third) / 2;
    put_array(w, KEY("rope.dimension_sections"), I32, 4);
    put_u32(w, pairs - third - second);
    put_u32(w, second);
    put_u32(w, third);
    put_u32(w, 0);
}

static void put_architecture(writer *w, const fti_synth_shape *s) {
    put_integer(w, KEY("block_count"), s->layers);
    put_integer(w, KEY("context_length"), s->context);
    put_integer(w, KEY("embedding_length"), s->hidden);
    put_integer(w, KEY("attention.head_count"), s->heads);
    put_integer(w, KEY("attention.head_count_kv"), s->kv_heads);
    put_sections(w, s);
    put_real(w, KEY("rope.freq_base"), 1e7f);
    put_real(w, KEY("attention.layer_norm_rms_epsilon"), 1e-6f);
    put_integer(w, KEY("expert_count"), s->experts);
    put_integer(w, KEY("expert_used_count"), s->used);
    put_integer(w, KEY("attention.key_length"), s->head_dim);
    put_integer(w, KEY("attention.value_length"), s->head_dim);
    put_integer(w, KEY("expert_feed_forward_length"), s->ff);
    put_integer(w, KEY("expert_shared_feed_forward_length"), s->shared_ff);
    put_integer(w, KEY("ssm.conv_kernel"), s->conv);
    put_integer(w, KEY("ssm.state_size"), s->state);
    put_integer(w, KEY("ssm.group_count"), s->key_heads);
    put_integer(w, KEY("ssm.time_step_rank"), s->value_heads);
    put_integer(w, KEY("ssm.inner_size"), s->value_heads * s->state);
    put_integer(w, KEY("full_attention_interval"), s->interval);
    put_integer(w, KEY("rope.dimension_count"), s->rope_dim);
}

/* A merge's two texts with `between` in the middle. */
static void put_merge(writer *w, uint32_t rank, const char *between) {
    fti_synth_merge m = fti_synth_merge_of(rank);
    put_u64(w, strlen(m.left) + strlen(between) + strlen(m.right));
    put(w, m.left, strlen(m.left));
    put(w, between, strlen(between));
    put(w, m.right, strlen(m.right));
}

static void put_vocabulary(writer *w, uint32_t size) {
    uint32_t merges = size - FTI_SYNTH_BYTE_TOKENS - FTI_SYNTH_SPECIALS;
    char text[4];
    put_array(w, "tokenizer.ggml.tokens", STRING, size);
    for (uint32_t i = 0; i < FTI_SYNTH_BYTE_TOKENS; i++) {
        fti_synth_byte_token(i, text);
        put_string(w, text);
    }
    for (uint32_t i = 0; i < merges; i++) put_merge(w, i, "");
    for (uint32_t i = 0; i < FTI_SYNTH_SPECIALS; i++) put_string(w, fti_synth_specials[i].text);
    put_array(w, "tokenizer.ggml.token_type", I32, size);
    for (uint32_t i = 0; i < size - FTI_SYNTH_SPECIALS; i++) put_u32(w, 1);
    for (uint32_t i = 0; i < FTI_SYNTH_SPECIALS; i++) put_u32(w, fti_synth_specials[i].type);
    put_array(w, "tokenizer.ggml.merges", STRING, merges);
    for (uint32_t i = 0; i < merges; i++) put_merge(w, i, " ");
}

static void put_tokenizer(writer *w, uint32_t size) {
    uint32_t first_special = size - FTI_SYNTH_SPECIALS;
    put_text(w, "tokenizer.ggml.model", "gpt2");
    put_text(w, "tokenizer.ggml.pre", "qwen35");
    put_vocabulary(w, size);
    put_integer(w, "tokenizer.ggml.eos_token_id", first_special + 2);
    put_integer(w, "tokenizer.ggml.padding_token_id", first_special);
    put_integer(w, "tokenizer.ggml.bos_token_id", first_special);
    put_key(w, "tokenizer.ggml.add_bos_token", BOOL);
    put(w, "", 1);
    put_text(w, "tokenizer.chat_template",
             "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + "
             "message.content + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}"
             "{{- '<|im_start|>assistant\\n' }}{%- endif %}");
}

static void put_tensors(writer *w, const fti_synth_plan *plan) {
    for (size_t i = 0; i < plan->tensor_count; i++) {
        const fti_synth_tensor *t = &plan->tensors[i];
        put_string(w, t->name);
        put_u32(w, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++) put_u64(w, t->dims[d]);
        put_u32(w, t->values.type);
        put_u64(w, t->offset);
    }
}

void fti_synth_header_write(fti_synth_plan *plan) {
    const fti_synth_shape *s = &plan->d.shape;
    writer w = {.out = &plan->header};
    fti_cli_text name = {0};
    fti_cli_printf(&name, "synthetic qwen35moe %s", s->name);
    put(&w, "GGUF", 4);
    put_u32(&w, 3);
    put_u64(&w, plan->tensor_count);
    size_t keys_at = plan->header.size;
    put_u64(&w, 0);
    put_text(&w, "general.architecture", "qwen35moe");
    put_text(&w, "general.type", "model");
    put_text(&w, "general.name", name.data);
    put_text(&w, "general.size_label", s->name);
    put_architecture(&w, s);
    put_tokenizer(&w, s->vocabulary);
    put_integer(&w, "general.quantization_version", 2);
    put_integer(&w, "general.file_type", 15); /* mostly Q4_K, medium */
    memcpy(plan->header.data + keys_at, &w.keys, sizeof w.keys);
    put_tensors(&w, plan);
    free(name.data);
}
