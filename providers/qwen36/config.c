/* config.c: from the checkpoint's metadata to qwen36_config. Every number is
 * checked against a range before anything is computed from it. */
#include "qwen36.h"

#include <stdio.h>

#define PREFIX "qwen35moe."

static ftk_str key_of(const char *suffix, char (*buffer)[96]) {
    int n = snprintf(*buffer, sizeof *buffer, PREFIX "%s", suffix);
    ftk_str key = {*buffer, (uint64_t)n};
    return key;
}

#define CONVERT_AGAIN ": the file is damaged or badly converted, convert the model again"

static ftk_status missing_key(ftk_model *m, const char *key) {
    return qwen36_fail(m->host, m->ctx, FTK_E_CKPT_METADATA, "key '%s' is missing" CONVERT_AGAIN,
                       key);
}

/* A required integer; `fallback` >= 0 makes it optional. */
static ftk_status get_u32(ftk_model *m, const char *suffix, uint32_t min, uint32_t max,
                          int64_t fallback, uint32_t *out) {
    char buffer[96];
    uint64_t value;
    ftk_status status = m->reader->get_u64(m->ctx, key_of(suffix, &buffer), min, max, &value);
    if (status == FTK_OK) {
        *out = (uint32_t)value;
        return FTK_OK;
    }
    if (status != FTK_E_NOT_FOUND) return status;
    if (fallback < 0) return missing_key(m, buffer);
    *out = (uint32_t)fallback;
    return FTK_OK;
}

static ftk_status get_f64(ftk_model *m, const char *suffix, double min, double max, double *out) {
    char buffer[96];
    ftk_status status = m->reader->get_f64(m->ctx, key_of(suffix, &buffer), out);
    if (status == FTK_E_NOT_FOUND) return missing_key(m, buffer);
    if (status != FTK_OK) return status;
    if (!(*out >= min && *out <= max))
        return qwen36_fail(m->host, m->ctx, FTK_E_CKPT_METADATA,
                           "key '%s': found %g, wanted %g to %g" CONVERT_AGAIN, buffer, *out, min,
                           max);
    return FTK_OK;
}

#define REQUIRED       (-1)
#define MAX_VOCABULARY (1u << 24)
#define MAX_KV_HEADS   1024

static ftk_str kv_heads_key(char (*buffer)[96]) {
    return key_of("attention.head_count_kv", buffer);
}

/* A list by layer: 0 where the layer has no keys and values, else one number. */
static ftk_status kv_heads_by_layer(ftk_model *m) {
    qwen36_config *c = &m->config;
    char buffer[96];
    ftk_str key = kv_heads_key(&buffer);
    for (uint64_t i = 0; i < c->kv_entries; i++) {
        int64_t heads;
        ftk_status status = m->reader->array_i64(m->ctx, key, i, &heads);
        if (status != FTK_OK) return status;
        if (heads < 0 || heads > MAX_KV_HEADS || (heads && c->kv_heads && heads != c->kv_heads))
            return qwen36_fail(m->host, m->ctx, FTK_E_CKPT_METADATA,
                               "key '%s': entry %llu is %lld, wanted 0 or the %u of the layers "
                               "before, at most %d" CONVERT_AGAIN,
                               buffer, (unsigned long long)i, (long long)heads, c->kv_heads,
                               MAX_KV_HEADS);
        if (heads) c->kv_heads = (uint32_t)heads;
    }
    if (c->kv_heads) return FTK_OK;
    return qwen36_fail(m->host, m->ctx, FTK_E_CKPT_METADATA,
                       "key '%s': found no entry but 0, wanted one for each layer of full "
                       "attention" CONVERT_AGAIN,
                       buffer);
}

static ftk_status kv_heads(ftk_model *m) {
    char buffer[96];
    uint64_t number;
    ftk_str key = kv_heads_key(&buffer);
    ftk_status status = m->reader->get_u64(m->ctx, key, 1, MAX_KV_HEADS, &number);
    if (status == FTK_E_NOT_FOUND) return missing_key(m, buffer);
    if (status == FTK_OK) {
        m->config.kv_heads = (uint32_t)number;
        return FTK_OK;
    }
    if (m->reader->array_size(m->ctx, key, &m->config.kv_entries) == FTK_OK)
        return kv_heads_by_layer(m);
    /* Neither: what is wrong with it as a number is what to say. */
    return m->reader->get_u64(m->ctx, key, 1, MAX_KV_HEADS, &number);
}

static bool has_tensor(ftk_model *m, uint32_t layer, const char *suffix) {
    char name[64];
    uint64_t index;
    int n = snprintf(name, sizeof name, "blk.%u.%s", layer, suffix);
    ftk_str s = {name, (uint64_t)n};
    return m->reader->find_tensor(m->ctx, s, &index) == FTK_OK;
}

/* Trailing blocks that are there for drafting, in files that do not say so. */
static uint32_t count_draft_blocks(ftk_model *m) {
    uint32_t count = 0;
    for (uint32_t i = m->config.layers; i-- > 0; count++)
        if (!has_tensor(m, i, "nextn.eh_proj.weight") && !has_tensor(m, i, "nextn.enorm.weight") &&
            !has_tensor(m, i, "nextn.hnorm.weight"))
            break;
    return count;
}

static ftk_status shape_keys(ftk_model *m) {
    qwen36_config *c = &m->config;
    uint32_t value_dim, inner;
    const struct {
        const char *suffix;
        uint32_t min, max;
        int64_t fallback;
        uint32_t *out;
    } keys[] = {
        {"block_count", 1, 1024, REQUIRED, &c->layers},
        {"nextn_predict_layers", 0, 16, 0, &c->mtp_blocks},
        {"context_length", 1, 1u << 24, REQUIRED, &c->context},
        {"embedding_length", 16, 1u << 16, REQUIRED, &c->hidden},
        {"attention.head_count", 1, 1024, REQUIRED, &c->heads},
        {"attention.key_length", 16, 512, REQUIRED, &c->head_dim},
        {"attention.value_length", 16, 512, REQUIRED, &value_dim},
        {"rope.dimension_count", 2, 512, REQUIRED, &c->rotary_dim},
        {"expert_count", 1, 1024, REQUIRED, &c->experts},
        {"expert_used_count", 1, 256, REQUIRED, &c->used_experts},
        {"expert_feed_forward_length", 16, 1u << 16, REQUIRED, &c->expert_ff},
        {"expert_shared_feed_forward_length", 16, 1u << 16, REQUIRED, &c->shared_ff},
        {"ssm.conv_kernel", 2, QWEN36_MAX_TAPS, REQUIRED, &c->conv_kernel},
        {"ssm.state_size", 16, QWEN36_MAX_DIM, REQUIRED, &c->state_dim},
        {"ssm.group_count", 1, 1024, REQUIRED, &c->key_heads},
        {"ssm.time_step_rank", 1, 1024, REQUIRED, &c->value_heads},
        {"ssm.inner_size", 16, 1u << 18, REQUIRED, &inner},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        ftk_status status = get_u32(m, keys[i].suffix, keys[i].min, keys[i].max, keys[i].fallback,
                                    keys[i].out);
        if (status != FTK_OK) return status;
    }
    if (c->mtp_blocks == 0) c->mtp_blocks = count_draft_blocks(m);
    ftk_status status = kv_heads(m);
    if (status != FTK_OK) return status;
    if (value_dim != c->head_dim)
        return qwen36_fail(m->host, m->ctx, FTK_E_CKPT_METADATA,
                           "key '" PREFIX "attention.value_length': found %u, wanted %u, the "
                           "key length" CONVERT_AGAIN,
                           value_dim, c->head_dim);
    if (inner != c->value_heads * c->state_dim)
        return qwen36_fail(m->host, m->ctx, FTK_E_CKPT_METADATA,
                           "key '" PREFIX "ssm.inner_size': found %u, wanted %u, which is "
                           "time_step_rank x state_size" CONVERT_AGAIN,
                           inner, c->value_heads * c->state_dim);
    return FTK_OK;
}

/* Relations between the numbers that the forward pass relies on. */
static ftk_status check_relations(ftk_model *m) {
    qwen36_config *c = &m->config;
    const struct {
        const char *key;
        const char *wanted;
        uint32_t found;
        uint32_t limit;
        bool broken;
    } rules[] = {
        {"nextn_predict_layers", "less than block_count", c->mtp_blocks, c->layers,
         c->mtp_blocks >= c->layers},
        {"attention.head_count", "a multiple of attention.head_count_kv", c->heads, c->kv_heads,
         c->heads % c->kv_heads != 0},
        {"ssm.time_step_rank", "a multiple of ssm.group_count", c->value_heads, c->key_heads,
         c->value_heads % c->key_heads != 0},
        {"ssm.state_size", "a multiple of", c->state_dim, 16, c->state_dim % 16 != 0},
        {"attention.key_length", "a multiple of", c->head_dim, 16, c->head_dim % 16 != 0},
        {"rope.dimension_count", "a multiple of", c->rotary_dim, 2, c->rotary_dim % 2 != 0},
        {"rope.dimension_count", "at most attention.key_length", c->rotary_dim, c->head_dim,
         c->rotary_dim > c->head_dim},
        {"expert_used_count", "at most expert_count", c->used_experts, c->experts,
         c->used_experts > c->experts},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].broken)
            return qwen36_fail(m->host, m->ctx, FTK_E_CKPT_METADATA,
                               "key '" PREFIX "%s': found %u, wanted %s %u" CONVERT_AGAIN,
                               rules[i].key, rules[i].found, rules[i].wanted, rules[i].limit);
    c->conv_channels = (2 * c->key_heads + c->value_heads) * c->state_dim;
    c->layers -= c->mtp_blocks;
    if (c->mtp_blocks > 0)
        qwen36_note(m->host, m->ctx, FTK_SEVERITY_INFO,
                    "%u MTP block%s (blk.%u up) recognised and left out: drafting is not used",
                    c->mtp_blocks, c->mtp_blocks == 1 ? "" : "s", c->layers);
    return FTK_OK;
}

static ftk_status scaling_keys(ftk_model *m) {
    qwen36_config *c = &m->config;
    double eps;
    ftk_status status = get_f64(m, "attention.layer_norm_rms_epsilon", 0.0, 1.0, &eps);
    if (status == FTK_OK) status = get_f64(m, "rope.freq_base", 1.0, 1e12, &c->rope_theta);
    if (status != FTK_OK) return status;
    c->eps = (float)eps;

    char buffer[96];
    ftk_str scaling;
    status = m->reader->get_str(m->ctx, key_of("rope.scaling.type", &buffer), &scaling);
    if (status == FTK_OK && !(scaling.size == 4 && memcmp(scaling.data, "none", 4) == 0))
        return qwen36_fail(
            m->host, m->ctx, FTK_E_CKPT_METADATA,
            "key '%s': found '%.*s', wanted 'none': scaled rotary embeddings are not supported, "
            "use a file without",
            buffer, (int)(scaling.size > 32 ? 32 : scaling.size), scaling.data);
    if (status != FTK_OK && status != FTK_E_NOT_FOUND) return status;

    uint32_t reordered = 1;
    status = m->reader->get_bool(m->ctx, key_of("ssm.v_head_reordered", &buffer), &reordered);
    if (status != FTK_OK && status != FTK_E_NOT_FOUND) return status;
    c->grouped_value_heads = !reordered;
    return FTK_OK;
}

/* A list of KV heads by layer must not deny them to a layer that needs them. */
static ftk_status check_kv_entry(ftk_model *m, uint32_t layer) {
    char buffer[96];
    int64_t heads = 0;
    ftk_str key = kv_heads_key(&buffer);
    if (m->config.kv_entries == 0 || m->layers[layer].linear) return FTK_OK;
    if (layer < m->config.kv_entries) {
        ftk_status status = m->reader->array_i64(m->ctx, key, layer, &heads);
        if (status != FTK_OK) return status;
    }
    if (heads) return FTK_OK;
    return qwen36_fail(
        m->host, m->ctx, FTK_E_CKPT_METADATA,
        "key '%s': found no heads for layer %u, which has full attention by the rest "
        "of the metadata, wanted %u" CONVERT_AGAIN,
        buffer, layer, m->config.kv_heads);
}

/* The kind of each layer, from the list if there is one, else from the interval;
 * the tensors must agree. */
static ftk_status layer_kinds(ftk_model *m) {
    char buffer[96];
    uint32_t interval;
    ftk_status status = get_u32(m, "full_attention_interval", 1, 1024, 4, &interval);
    if (status != FTK_OK) return status;
    ftk_str list = key_of("attention.recurrent_layers", &buffer);
    uint64_t listed = 0;
    status = m->reader->array_size(m->ctx, list, &listed);
    if (status != FTK_OK && status != FTK_E_NOT_FOUND) return status;
    bool by_list = status == FTK_OK;
    if (by_list && listed < m->config.layers)
        return qwen36_fail(
            m->host, m->ctx, FTK_E_CKPT_METADATA,
            "key '%s': found %llu entries, wanted one for each of %u layers" CONVERT_AGAIN, buffer,
            (unsigned long long)listed, m->config.layers);
    for (uint32_t i = 0; i < m->config.layers; i++) {
        int64_t linear = (i + 1) % interval != 0;
        if (by_list) {
            status = m->reader->array_i64(m->ctx, list, i, &linear);
            if (status != FTK_OK) return status;
        }
        m->layers[i].linear = linear != 0;
        bool ssm = has_tensor(m, i, "ssm_a"), attention = has_tensor(m, i, "attn_q.weight");
        if (m->layers[i].linear ? attention && !ssm : ssm && !attention)
            return qwen36_fail(
                m->host, m->ctx, FTK_E_CKPT_TENSOR,
                "layer %u: found the tensors of %s, wanted those of %s, which is what the metadata "
                "(full_attention_interval, attention.recurrent_layers) makes of it" CONVERT_AGAIN,
                i, linear ? "full attention" : "linear attention",
                linear ? "linear attention" : "full attention");
        status = check_kv_entry(m, i);
        if (status != FTK_OK) return status;
        uint64_t *count = m->layers[i].linear ? &m->linear_count : &m->kv_layer_count;
        m->layers[i].cache = (uint32_t)(*count)++;
    }
    return FTK_OK;
}

/* End of generation: the file's own end token, and the family's other ones by
 * name, as far as the vocabulary has them. */
static ftk_status end_tokens(ftk_model *m) {
    static const char *const names[] = {"<|endoftext|>", "<|im_end|>", "<|fim_pad|>",
                                        "<|repo_name|>", "<|file_sep|>"};
    ftk_str tokens = qwen36_str("tokenizer.ggml.tokens");
    uint64_t id, vocabulary;
    ftk_status status = m->reader->array_size(m->ctx, tokens, &vocabulary);
    if (status == FTK_E_NOT_FOUND) vocabulary = 0;
    if (status != FTK_OK && status != FTK_E_NOT_FOUND) return status;
    if (vocabulary == 0 || vocabulary > MAX_VOCABULARY)
        return qwen36_fail(m->host, m->ctx, FTK_E_CKPT_TOKENIZER,
                           "key 'tokenizer.ggml.tokens': found %llu tokens, wanted 1 to %u: "
                           "convert the model again, with its tokenizer",
                           (unsigned long long)vocabulary, MAX_VOCABULARY);
    m->config.vocabulary = (uint32_t)vocabulary;
    status = m->reader->get_u64(m->ctx, qwen36_str("tokenizer.ggml.eos_token_id"), 0,
                                vocabulary - 1, &id);
    if (status == FTK_OK)
        m->end_tokens[m->end_token_count++] = (int32_t)id;
    else if (status != FTK_E_NOT_FOUND)
        return status;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        status = m->reader->array_find_str(m->ctx, tokens, qwen36_str(names[i]), &id);
        if (status == FTK_E_NOT_FOUND) continue;
        if (status != FTK_OK) return status;
        bool known = false;
        for (uint32_t j = 0; j < m->end_token_count; j++) known |= m->end_tokens[j] == (int32_t)id;
        if (!known) m->end_tokens[m->end_token_count++] = (int32_t)id;
    }
    return FTK_OK;
}

static ftk_status check_pretokenizer(ftk_model *m) {
    ftk_str pre;
    ftk_status status = m->reader->get_str(m->ctx, qwen36_str("tokenizer.ggml.pre"), &pre);
    if (status == FTK_E_NOT_FOUND)
        return qwen36_fail(
            m->host, m->ctx, FTK_E_CKPT_TOKENIZER,
            "key 'tokenizer.ggml.pre' is missing, wanted 'qwen35': the file was converted without "
            "the name of its pre-tokenizer, convert it again");
    if (status != FTK_OK) return status;
    if (pre.size != 6 || memcmp(pre.data, "qwen35", 6) != 0)
        return qwen36_fail(
            m->host, m->ctx, FTK_E_CKPT_TOKENIZER,
            "key 'tokenizer.ggml.pre': found '%.*s', wanted 'qwen35': text would be split wrongly, "
            "convert the model again",
            (int)(pre.size > 32 ? 32 : pre.size), pre.data);
    return FTK_OK;
}

static ftk_status chat_template(ftk_model *m) {
    ftk_str text;
    ftk_status status = m->reader->get_str(m->ctx, qwen36_str("tokenizer.chat_template"), &text);
    if (status == FTK_OK) m->thinking = qwen36_thinking_of(text);
    return status == FTK_E_NOT_FOUND ? FTK_OK : status;
}

ftk_status qwen36_configure(ftk_model *m) {
    ftk_status status = shape_keys(m);
    if (status == FTK_OK) status = check_relations(m);
    if (status == FTK_OK) status = scaling_keys(m);
    if (status == FTK_OK) status = check_pretokenizer(m);
    if (status == FTK_OK) status = end_tokens(m);
    if (status == FTK_OK) status = chat_template(m);
    if (status != FTK_OK) return status;
    m->layers = m->host->alloc(m->ctx, (uint64_t)m->config.layers * sizeof *m->layers, 0);
    if (!m->layers)
        return qwen36_fail(m->host, m->ctx, FTK_E_NO_MEMORY,
                           "out of host memory for the layer table");
    return layer_kinds(m);
}
