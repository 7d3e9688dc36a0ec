/*
 * case_files.h: what the tests of publicly reported cases share: a table of the files from those
 * reports that must be refused, each with the answer that is wanted. Ids are those of
 * docs/cases.md.
 */
#ifndef TESTS_CASE_FILES_H
#define TESTS_CASE_FILES_H

#include "support/gguf_edit.h"
#include "support/gguf_writer.h"
#include "support/model_files.h"

static inline text case_save(fti_gguf_writer *w, const char *name) {
    text path = in_scratch(name);
    write_file(path.s, w->data, w->size, 0644);
    fti_gw_free(w);
    return path;
}

/* ---- makers of files: each returns the path to open ---- */

typedef struct case_file {
    const char *id;
    const char *what;
    text (*make)(const struct case_file *);
    fti_synth_meta meta; /* of the small model, where a maker says so */
    uint64_t number;     /* for the maker */
    ftk_status status;
    const char *parts[3]; /* of the message, up to a NULL */
} case_file;

static inline text with_meta(const case_file *c) {
    fti_synth_model m = toy_model();
    m.metas = &c->meta;
    m.meta_count = 1;
    return write_model(&m, "meta.gguf");
}

/* A projector as converters write it: its own keys and v.* tensors, no tokenizer. */
static inline text projector(const case_file *c) {
    static const uint64_t patch[] = {32, 32}, bias[] = {32};
    fti_gguf_writer w = {0};
    (void)c;
    fti_gw_header(&w, 3, 2, 3);
    fti_gw_text(&w, "general.architecture", "clip");
    fti_gw_integer(&w, "clip.has_vision_encoder", FTI_META_BOOL, 1);
    fti_gw_integer(&w, "clip.vision.block_count", FTI_META_U32, 1);
    fti_gw_tensor(&w, "v.patch_embd.weight", 2, patch, FTK_TYPE_F32, 0);
    fti_gw_tensor(&w, "v.patch_embd.bias", 1, bias, FTK_TYPE_F32, 4096);
    fti_gw_pad(&w, 32);
    fti_gw_fill(&w, 0, 4096 + 128);
    return case_save(&w, "mmproj.gguf");
}

/* The small model without its last `number` bytes; 0: without its second half. */
static inline text cut_short(const case_file *c) {
    fti_synth_model m = toy_model();
    text path = write_model(&m, "cut.gguf");
    struct stat st;
    assert_int_equal(stat(path.s, &st), 0);
    off_t left = c->number ? st.st_size - (off_t)c->number : st.st_size / 2;
    assert_int_equal(truncate(path.s, left), 0);
    return path;
}

static inline text of_version(const case_file *c) {
    fti_synth_model m = toy_model();
    size_t size;
    text path = write_model(&m, "version.gguf");
    unsigned char *data = read_file(path.s, &size);
    uint32_t version = (uint32_t)c->number;
    memcpy(data + 4, &version, sizeof version);
    write_file(path.s, data, size, 0644);
    free(data);
    return path;
}

/* Every number of the header swapped, as a big-endian machine writes them. */
static inline text swapped_header(const case_file *c) {
    static const unsigned char header[] = {'G', 'G', 'U', 'F', 0, 0, 0, 3, 0, 0, 0, 0,
                                           0,   0,   0,   0,   0, 0, 0, 0, 0, 0, 0, 1};
    fti_gguf_writer w = {0};
    (void)c;
    fti_gw_raw(&w, header, sizeof header);
    fti_gw_fill(&w, 0, 64);
    return case_save(&w, "swapped.gguf");
}

/* A tensor of `number` columns in Q4_K blocks, and nothing else. */
static inline text odd_rows(const case_file *c) {
    const uint64_t dims[] = {c->number, 256};
    fti_gguf_writer w = {0};
    fti_gw_header(&w, 3, 1, 1);
    fti_gw_text(&w, "general.architecture", "qwen35moe");
    fti_gw_tensor(&w, "blk.0.ffn_up_shexp.weight", 2, dims, FTK_TYPE_Q4_K, 0);
    fti_gw_pad(&w, 32);
    fti_gw_fill(&w, 0, 256u * 1024u);
    return case_save(&w, "rows.gguf");
}

static inline text no_keys(const case_file *c) {
    fti_gguf_writer w = {0};
    (void)c;
    fti_gw_header(&w, 3, 0, 0);
    fti_gw_fill(&w, 0, 40);
    return case_save(&w, "keys.gguf");
}

static inline text no_tensors(const case_file *c) {
    fti_synth_model m = toy_model();
    (void)c;
    fti_gguf_edit e = fti_ge_load(write_model(&m, "whole.gguf").s);
    while (e.count) fti_ge_remove(&e, e.tensors[e.count - 1].name);
    text path = in_scratch("none.gguf");
    fti_ge_save(&e, path.s);
    fti_ge_free(&e);
    return path;
}

/* Dimension `number` of a tensor that the model needs is 0. */
static inline text zero_dimension(const case_file *c) {
    fti_synth_model m = toy_model();
    fti_gguf_edit e = fti_ge_load(write_model(&m, "whole.gguf").s);
    uint64_t dims[] = {256, 32, 4};
    dims[c->number] = 0;
    fti_ge_remove(&e, "blk.1.ffn_up_exps.weight");
    fti_ge_add(&e, "blk.1.ffn_up_exps.weight", FTK_TYPE_F32, 3, dims, NULL);
    text path = in_scratch("zero.gguf");
    fti_ge_save(&e, path.s);
    fti_ge_free(&e);
    return path;
}

/* 160 bytes that announce 2^30 values of value type `number`, or of one string. */
static inline text bold_claim(const case_file *c) {
    fti_gguf_writer w = {0};
    fti_gw_header(&w, 3, 0, 2);
    fti_gw_text(&w, "general.architecture", "qwen35moe");
    if (c->number == FTI_META_ARRAY) {
        fti_gw_key(&w, "claim", FTI_META_STRING);
        fti_gw_u64(&w, 1ull << 30);
    } else {
        fti_gw_array(&w, "claim", (uint32_t)c->number, 1ull << 30);
    }
    fti_gw_fill(&w, 1, 160 - w.size);
    return case_save(&w, "claim.gguf");
}

static inline text shard_name(uint32_t number) {
    return format("%s/toy-%05u-of-00003.gguf", scratch, number);
}

/* The small model in three shards, of which `number` is not written (0: all are). */
static inline void write_shards(uint64_t left_out) {
    fti_synth_model m = toy_model();
    fti_gguf_edit e = fti_ge_load(write_model(&m, "whole.gguf").s);
    const size_t firsts[] = {0, 10, 40, e.count};
    for (uint32_t i = 0; i < 3; i++) {
        fti_edit_shard s = {i, 3, (uint32_t)e.count, firsts[i], firsts[i + 1] - firsts[i], 0, NULL};
        unlink(shard_name(i + 1).s);
        if (i + 1 != left_out) fti_ge_save_shard(&e, &s, shard_name(i + 1).s);
    }
    fti_ge_free(&e);
}

static inline text shard_missing(const case_file *c) {
    write_shards(c->number);
    return shard_name(3);
}

/* Shard 2 is half there; the user gives shard `number`. */
static inline text shard_halved(const case_file *c) {
    struct stat st;
    write_shards(0);
    assert_int_equal(stat(shard_name(2).s, &st), 0);
    assert_int_equal(truncate(shard_name(2).s, st.st_size / 2), 0);
    return shard_name((uint32_t)c->number);
}

/* Shard 2 comes from the model in another type, which was cut elsewhere. */
static inline text shard_of_another_type(const case_file *c) {
    (void)c;
    write_shards(0);
    fti_synth_model m = toy_model();
    for (int i = 0; i < FTI_SYNTH_CLASSES; i++) m.types[i] = FTK_TYPE_Q8_0;
    fti_gguf_edit e = fti_ge_load(write_model(&m, "whole.gguf").s);
    fti_edit_shard s = {1, 3, (uint32_t)e.count, 10, 20, 0, NULL};
    fti_ge_save_shard(&e, &s, shard_name(2).s);
    fti_ge_free(&e);
    return shard_name(1);
}

/* ---- the table ---- */

#define META_STRING(key_, text_)                                                                   \
    { .key = (key_), .type = FTI_SYNTH_STRING, .text = (text_) }
#define META_NONE(key_)                                                                            \
    { .key = (key_), .type = FTI_SYNTH_LEFT_OUT }
#define META_EMPTY(key_)                                                                           \
    { .key = (key_), .type = FTI_SYNTH_ARRAY, .element_type = FTI_SYNTH_STRING }

static const case_file case_files[] = {
    {"a7",
     "a projector",
     projector,
     {0},
     0,
     FTK_E_CKPT_PROJECTOR,
     {"vision projector", "give the model file"}},
    {"a8",
     "qwen2",
     with_meta,
     META_STRING("general.architecture", "qwen2"),
     0,
     FTK_E_PROVIDER_NONE,
     {"'qwen2'", "qwen36: qwen35moe", "providers.allow"}},
    {"a8",
     "qwen3moe",
     with_meta,
     META_STRING("general.architecture", "qwen3moe"),
     0,
     FTK_E_PROVIDER_NONE,
     {"'qwen3moe'", "qwen36: qwen35moe", "providers.allow"}},
    {"a8",
     "a name that ours begins with",
     with_meta,
     META_STRING("general.architecture", "qwen35"),
     0,
     FTK_E_PROVIDER_NONE,
     {"'qwen35'", "qwen36: qwen35moe", "providers.allow"}},

    {"b3",
     "shard 2 missing",
     shard_missing,
     {0},
     2,
     FTK_E_CKPT_READ,
     {"2 ('toy-00002-of-00003.gguf') is missing", "searched in '/tmp/"}},
    {"b3",
     "shard 1 missing",
     shard_missing,
     {0},
     1,
     FTK_E_CKPT_READ,
     {"1 ('toy-00001-of-00003.gguf') is missing", "searched in '/tmp/"}},
    {"b3",
     "half of shard 2",
     shard_halved,
     {0},
     1,
     FTK_E_CKPT_TRUNCATED,
     {"2 ('toy-00002-of-00003.gguf')", "cut short", "fetch it again"}},
    {"b3",
     "half of shard 2, given itself",
     shard_halved,
     {0},
     2,
     FTK_E_CKPT_TRUNCATED,
     {"toy-00002-of-00003.gguf", "cut short"}},
    {"b3",
     "shard 2 of another type",
     shard_of_another_type,
     {0},
     0,
     FTK_E_CKPT_FORMAT,
     {"tensors, wanted", "split.tensors.count"}},
    {"b4",
     "one byte less",
     cut_short,
     {0},
     1,
     FTK_E_CKPT_TRUNCATED,
     {"expected at least", "the file has", "fetch it again"}},
    {"b4",
     "a page less",
     cut_short,
     {0},
     4096,
     FTK_E_CKPT_TRUNCATED,
     {"expected at least", "the file has", "fetch it again"}},
    {"b4",
     "half of it",
     cut_short,
     {0},
     0,
     FTK_E_CKPT_TRUNCATED,
     {"expected at least", "the file has", "fetch it again"}},
    {"b7",
     "rows of 896 in K-quants",
     odd_rows,
     {0},
     896,
     FTK_E_CKPT_FORMAT,
     {"'blk.0.ffn_up_shexp.weight'", "row length 896", "Q4_K's block size 256"}},
    {"b9", "version 0", of_version, {0}, 0, FTK_E_CKPT_VERSION, {"too old"}},
    {"b9", "version 1", of_version, {0}, 1, FTK_E_CKPT_VERSION, {"too old"}},
    {"b9", "version 4", of_version, {0}, 4, FTK_E_CKPT_VERSION, {"too new"}},
    {"b9", "version swapped", of_version, {0}, 0x03000000, FTK_E_CKPT_VERSION, {"big-endian"}},
    {"b9", "header swapped", swapped_header, {0}, 0, FTK_E_CKPT_VERSION, {"big-endian"}},
    {"b10",
     "no tokens",
     with_meta,
     META_EMPTY("tokenizer.ggml.tokens"),
     0,
     FTK_E_CKPT_TOKENIZER,
     {"tokenizer.ggml.tokens", "found 0 tokens"}},
    {"b10",
     "merges of no element",
     with_meta,
     META_EMPTY("tokenizer.ggml.merges"),
     0,
     FTK_E_CKPT_TOKENIZER,
     {"tokenizer.ggml.merges"}},
    {"b10",
     "no merges",
     with_meta,
     META_NONE("tokenizer.ggml.merges"),
     0,
     FTK_E_CKPT_TOKENIZER,
     {"tokenizer.ggml.merges"}},
    {"b10",
     "no tensors",
     no_tensors,
     {0},
     0,
     FTK_E_CKPT_TENSOR,
     {"'token_embd.weight' is missing"}},
    {"b10", "no keys", no_keys, {0}, 0, FTK_E_CKPT_METADATA, {"general.architecture"}},
    {"b10",
     "rows of 0",
     zero_dimension,
     {0},
     0,
     FTK_E_CKPT_FORMAT,
     {"'blk.1.ffn_up_exps.weight'", "dimension"}},
    {"b10",
     "0 rows",
     zero_dimension,
     {0},
     1,
     FTK_E_CKPT_FORMAT,
     {"'blk.1.ffn_up_exps.weight'", "dimension"}},
    {"b10",
     "0 experts",
     zero_dimension,
     {0},
     2,
     FTK_E_CKPT_FORMAT,
     {"'blk.1.ffn_up_exps.weight'", "dimension"}},
    {"b10",
     "0 experts by key",
     with_meta,
     {.key = "qwen35moe.expert_count", .type = FTI_SYNTH_U32},
     0,
     FTK_E_CKPT_METADATA,
     {"'qwen35moe.expert_count': found 0"}},
    {"b13", "2^30 bytes", bold_claim, {0}, FTI_META_U8, FTK_E_CKPT_TRUNCATED, {"'claim'"}},
    {"b13", "2^30 numbers", bold_claim, {0}, FTI_META_U64, FTK_E_CKPT_TRUNCATED, {"'claim'"}},
    {"b13", "2^30 strings", bold_claim, {0}, FTI_META_STRING, FTK_E_CKPT_TRUNCATED, {"'claim'"}},
    {"b13", "a string of 2^30", bold_claim, {0}, FTI_META_ARRAY, FTK_E_CKPT_TRUNCATED, {"'claim'"}},

    {"c2",
     "pre unknown",
     with_meta,
     META_STRING("tokenizer.ggml.pre", "unknown"),
     0,
     FTK_E_CKPT_TOKENIZER,
     {"found 'unknown', wanted 'qwen35'"}},
    {"c2",
     "pre of another model",
     with_meta,
     META_STRING("tokenizer.ggml.pre", "qwen2"),
     0,
     FTK_E_CKPT_TOKENIZER,
     {"found 'qwen2', wanted 'qwen35'"}},
    {"c2",
     "no pre",
     with_meta,
     META_NONE("tokenizer.ggml.pre"),
     0,
     FTK_E_CKPT_TOKENIZER,
     {"'tokenizer.ggml.pre' is missing", "wanted 'qwen35'"}},
    {"c7",
     "a template that is no text",
     with_meta,
     {.key = "tokenizer.chat_template", .type = FTI_SYNTH_U32, .number = 7},
     0,
     FTK_E_CKPT_METADATA,
     {"tokenizer.chat_template"}},
};

/* ---- expecting ---- */

static inline refusal case_refusal(const case_file *c) {
    return (refusal){c->status, c->status <= -500 ? 5 : 4, {c->parts[0], c->parts[1], c->parts[2]}};
}

static inline void case_expect_message(const case_file *c, const ftk_error *err) {
    refusal r = case_refusal(c);
    check_message(err, &r, NULL, format("%s, %s", c->id, c->what).s);
}

/* Every file of the case must be refused when opened as a model; returns how many there
 * are. */
static inline size_t case_expect_refused(const char *id) {
    size_t count = 0;
    ftk_config *config = load_config();
    for (size_t i = 0; i < FTI_COUNT(case_files); i++) {
        const case_file *c = &case_files[i];
        if (strcmp(c->id, id) != 0) continue;
        text path = c->make(c);
        refusal r = case_refusal(c);
        expect_refused(config, path.s, NULL, &r, format("%s, %s", c->id, c->what).s);
        count++;
    }
    ftk_config_free(config);
    return count;
}

#endif
