/*
 * config.c: from the checkpoint's metadata to template_config. The file may come from
 * anywhere: every number is checked against a range before anything is computed from it.
 */
#include "template.h"

#include <stdio.h>

#define PREFIX "template-dense."

/* The reader has said what is wrong with a value that is there; a missing one is ours to
 * report. */
static ftk_status found_or_missing(ftk_model *m, const char *key, ftk_status status) {
    if (status != FTK_E_NOT_FOUND) return status;
    return template_fail(m->host, m->ctx, FTK_E_CKPT_METADATA,
                         "key '%s' is missing: convert the model again", key);
}

static ftk_status read_sizes(ftk_model *m) {
    template_config *c = &m->config;
    const struct {
        const char *key;
        uint32_t min, max;
        uint32_t *out;
    } keys[] = {
        {PREFIX "block_count", 1, 1024, &c->layers},
        {PREFIX "context_length", 1, 1u << 24, &c->context},
        {PREFIX "embedding_length", 16, 1u << 16, &c->hidden},
        {PREFIX "feed_forward_length", 16, 1u << 18, &c->ff},
        {PREFIX "attention.head_count", 1, 1024, &c->heads},
        {PREFIX "attention.head_count_kv", 1, 1024, &c->kv_heads},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint64_t value = 0;
        ftk_status status = m->reader->get_u64(m->ctx, template_str(keys[i].key), keys[i].min,
                                               keys[i].max, &value);
        if (status != FTK_OK) return found_or_missing(m, keys[i].key, status);
        *keys[i].out = (uint32_t)value;
    }
    return FTK_OK;
}

static ftk_status read_number(ftk_model *m, const char *key, double min, double max, double *out) {
    ftk_status status = m->reader->get_f64(m->ctx, template_str(key), out);
    if (status != FTK_OK) return found_or_missing(m, key, status);
    if (*out >= min && *out <= max) return FTK_OK; /* false for NaN */
    return template_fail(m->host, m->ctx, FTK_E_CKPT_METADATA,
                         "key '%s': found %g, wanted %g to %g: convert the model again", key, *out,
                         min, max);
}

/* What the forward pass and the operators rely on. */
static ftk_status check_relations(ftk_model *m) {
    template_config *c = &m->config;
    c->head_dim = c->hidden / c->heads;
    if (c->hidden % c->heads == 0 && c->heads % c->kv_heads == 0 && c->head_dim % 2 == 0 &&
        c->head_dim >= 2 && c->head_dim <= 512)
        return FTK_OK;
    return template_fail(m->host, m->ctx, FTK_E_CKPT_METADATA,
                         "%u heads and %u KV heads on %u values: found no whole, even size of a "
                         "head up to 512 and no whole number of heads per KV head: convert the "
                         "model again",
                         c->heads, c->kv_heads, c->hidden);
}

/* Text that is split in another way than in training gives other tokens, and worse
 * answers, without any error: insist on the name. */
static ftk_status check_pretokenizer(ftk_model *m) {
    static const char key[] = "tokenizer.ggml.pre";
    ftk_str pre;
    ftk_status status = m->reader->get_str(m->ctx, template_str(key), &pre);
    if (status != FTK_OK) return found_or_missing(m, key, status);
    if (template_is(pre, "template")) return FTK_OK;
    return template_fail(m->host, m->ctx, FTK_E_CKPT_TOKENIZER,
                         "key '%s': found '%.*s', wanted 'template': convert the model again", key,
                         (int)(pre.size > 32 ? 32 : pre.size), pre.data);
}

/* Whether the vocabulary has a token, and its id. */
static ftk_status find_token(ftk_model *m, const char *text, bool *present, int32_t *id) {
    uint64_t index = 0;
    ftk_status status = m->reader->array_find_str(m->ctx, template_str("tokenizer.ggml.tokens"),
                                                  template_str(text), &index);
    *present = status == FTK_OK;
    *id = (int32_t)index;
    return status == FTK_E_NOT_FOUND ? FTK_OK : status;
}

static ftk_status read_vocabulary(ftk_model *m) {
    static const char key[] = "tokenizer.ggml.tokens";
    uint64_t count = 0;
    int32_t user;
    ftk_status status = m->reader->array_size(m->ctx, template_str(key), &count);
    if (status != FTK_OK) return found_or_missing(m, key, status);
    if (count < 1 || count > 1u << 24)
        return template_fail(m->host, m->ctx, FTK_E_CKPT_TOKENIZER,
                             "key '%s': found %llu tokens, wanted 1 to 16777216", key,
                             (unsigned long long)count);
    m->config.vocabulary = (uint32_t)count;
    status = find_token(m, "<|end|>", &m->has_end_token, &m->end_token);
    if (status == FTK_OK) status = find_token(m, "<|user|>", &m->has_dialogue, &user);
    return status;
}

ftk_status template_configure(ftk_model *m) {
    double eps = 0.0;
    ftk_status status = read_sizes(m);
    if (status == FTK_OK) status = check_relations(m);
    if (status == FTK_OK)
        status = read_number(m, PREFIX "attention.layer_norm_rms_epsilon", 0.0, 1.0, &eps);
    if (status == FTK_OK)
        status = read_number(m, PREFIX "rope.freq_base", 1.0, 1e12, &m->config.rope_theta);
    if (status == FTK_OK) status = check_pretokenizer(m);
    if (status == FTK_OK) status = read_vocabulary(m);
    m->config.eps = (float)eps;
    return status;
}
