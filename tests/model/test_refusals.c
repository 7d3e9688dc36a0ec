/*
 * test_refusals.c: everything that must not open: each gives its status, the exit
 * code of its family and one line that says where, what was found, what was
 * wanted and what to do; and it does so before anything is allocated on the
 * device.
 */
#include "support/model_files.h"

/* ---- a small model, and what is done to it ---- */

static void expect_file_refused(const char *path, const refusal *r, const char *what) {
    ftk_config *config = load_config();
    expect_refused(config, path, path, r, what);
    ftk_config_free(config);
}

static void expect_model_refused(const fti_synth_model *m, const refusal *r, const char *what) {
    text path = write_model(m, "model.gguf");
    expect_file_refused(path.s, r, what);
    unlink(path.s);
}

/* The unchanged model opens, so that what follows is refused for the change. */
static void unchanged_model_opens(void **state) {
    (void)state;
    fti_synth_model m = toy_model();
    text path = write_model(&m, "model.gguf");
    ftk_engine *engine = fixture_open(path.s, NULL);
    assert_int_equal(ftk_engine_vocabulary(engine), 320);
    ftk_engine_close(engine);
}

/* ---- providers ---- */

static text provider_folder(void) {
    char real[PATH_MAX];
    assert_non_null(realpath(FTK_PROVIDER_DIR, real));
    return format("%s", real);
}

static text provider_search(void) {
    text t = provider_folder();
    *strrchr(t.s, '/') = 0;
    return t;
}

static ftk_config *parse_config(const char *yaml) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config;
    if (ftk_config_parse(yaml, strlen(yaml), "test.yaml", &config, &err) != FTK_OK)
        fail_msg("%s", err.message);
    return config;
}

static void expect_config_refused(const char *yaml, const char *model, const char *where,
                                  const refusal *r, const char *what) {
    ftk_config *config = parse_config(yaml);
    expect_refused(config, model, where, r, what);
    ftk_config_free(config);
}

static void provider_that_is_not_allowed(void **state) {
    (void)state;
    text search = provider_search(), folder = provider_folder();
    text yaml = format("providers:\n  search: ['%s']\n", search.s);
    text entry = format("- {name: qwen36, path: \"%s/qwen36.so\"}", folder.s);
    text command = format("freetoken providers allow '%s'", folder.s);
    const refusal r = {
        FTK_E_PROVIDER_NOT_ALLOWED, 4, {"qwen35moe/gguf", "providers.allow", entry.s, command.s}};
    expect_config_refused(yaml.s, DEMO_MODEL, "test.yaml", &r, "not allowed");
}

static void no_provider_at_all(void **state) {
    (void)state;
    const refusal r = {FTK_E_PROVIDER_NONE, 4, {"'qwen35moe'", "'gguf'", "providers.allow"}};
    expect_config_refused("numerics: exact\n", DEMO_MODEL, "test.yaml", &r, "no provider");
}

static void a8_unknown_architecture(void **state) {
    (void)state;
    fti_synth_model m = toy_model();
    const fti_synth_meta meta = {
        .key = "general.architecture", .type = FTI_SYNTH_STRING, .text = "llama"};
    m.metas = &meta;
    m.meta_count = 1;
    text path = write_model(&m, "llama.gguf");
    const refusal r = {FTK_E_PROVIDER_NONE, 4, {"'llama'", "'gguf'", "qwen36: qwen35moe"}};
    ftk_config *config = load_config();
    expect_refused(config, path.s, FTK_CONFIG, &r, "unknown architecture");
    ftk_config_free(config);
}

static void wrong_pin(void **state) {
    (void)state;
    static const char pin[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    text folder = provider_folder();
    text yaml = format("providers:\n  allow:\n    - name: qwen36\n      path: '%s/qwen36.so'\n"
                       "      sha256: %s\n",
                       folder.s, pin);
    const refusal r = {
        FTK_E_PROVIDER_DIGEST, 4, {"found sha256", "wanted 0123456789abcdef", "--update"}};
    expect_config_refused(yaml.s, DEMO_MODEL, "test.yaml:3", &r, "wrong pin");
}

static void a3_unknown_provider_options(void **state) {
    (void)state;
    text folder = provider_folder();
    text yaml = format("providers:\n  allow:\n    - {name: qwen36, path: '%s/qwen36.so'}\n"
                       "provider_options:\n  qwen36: {speed: 11}\n",
                       folder.s);
    const refusal r = {
        FTK_E_CONFIG_VALUE, 3, {"provider_options.qwen36", "takes no options", "speed", "11"}};
    expect_config_refused(yaml.s, DEMO_MODEL, DEMO_MODEL, &r, "provider options");
}

/* ---- files that are no model ---- */

static void b4_demo_model_cut_short(void **state) {
    (void)state;
    size_t size;
    unsigned char *data = read_file(DEMO_MODEL, &size);
    const size_t sizes[] = {size - 1, size - 4096, size / 2, 100, 23, 4, 1, 0};
    text path = in_scratch("cut.gguf");
    for (size_t i = 0; i < FTI_COUNT(sizes); i++) {
        write_file(path.s, data, sizes[i], 0644);
        text what = format("%zu of %zu bytes", sizes[i], size);
        text found = format("the file has %zu", sizes[i]);
        const refusal r = {FTK_E_CKPT_TRUNCATED, 5, {found.s, "fetch it again"}};
        expect_file_refused(path.s, &r, what.s);
    }
    free(data);
}

static void no_gguf_file(void **state) {
    (void)state;
    static const char words[] = "This is a text, and whoever gives it as a model is mistaken.\n";
    text path = in_scratch("words.txt"), missing = in_scratch("missing.gguf");
    write_file(path.s, words, sizeof words - 1, 0644);
    const refusal not_gguf = {FTK_E_CKPT_FORMAT, 5, {"GGUF", "give a .gguf model"}};
    const refusal folder = {FTK_E_CKPT_READ, 5, {"is a directory", "wanted a regular file"}};
    const refusal absent = {FTK_E_CKPT_READ, 5, {"cannot open", "No such file"}};
    expect_file_refused(path.s, &not_gguf, "a text");
    expect_file_refused(scratch, &folder, "a folder");
    expect_file_refused(missing.s, &absent, "a missing file");
}

static void b9_other_versions(void **state) {
    (void)state;
    const struct {
        uint32_t version;
        const char *part;
    } cases[] = {{1, "too old"}, {4, "too new"}, {0x03000000u, "big-endian"}};
    fti_synth_model m = toy_model();
    text path = write_model(&m, "version.gguf");
    size_t size;
    unsigned char *data = read_file(path.s, &size);
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        memcpy(data + 4, &cases[i].version, 4);
        write_file(path.s, data, size, 0644);
        const refusal r = {FTK_E_CKPT_VERSION, 5, {cases[i].part, "convert"}};
        const refusal newer = {
            FTK_E_CKPT_VERSION, 5, {"too new", "wanted 2 or 3", "newer library"}};
        expect_file_refused(path.s, cases[i].version == 4 ? &newer : &r, cases[i].part);
    }
    free(data);
}

static void a7_vision_projector(void **state) {
    (void)state;
    const fti_synth_meta metas[] = {
        {.key = "general.architecture", .type = FTI_SYNTH_STRING, .text = "clip"},
        {.key = "general.type", .type = FTI_SYNTH_STRING, .text = "mmproj"}};
    const refusal r = {FTK_E_CKPT_PROJECTOR, 5, {"vision projector", "give the model file"}};
    for (size_t i = 0; i < FTI_COUNT(metas); i++) {
        fti_synth_model m = toy_model();
        m.metas = &metas[i];
        m.meta_count = 1;
        expect_model_refused(&m, &r, metas[i].text);
    }
}

/* ---- tensors ---- */

static const uint32_t iq2_xxs = 16, q8_0 = 8, q4_k = 12;

static void tensor_missing(void **state) {
    (void)state;
    static const char *const names[] = {"token_embd.weight",
                                        "output_norm.weight",
                                        "blk.0.attn_norm.weight",
                                        "blk.1.post_attention_norm.weight",
                                        "blk.0.attn_qkv.weight",
                                        "blk.0.attn_gate.weight",
                                        "blk.1.ssm_alpha.weight",
                                        "blk.1.ssm_beta.weight",
                                        "blk.1.ssm_conv1d.weight",
                                        "blk.2.ssm_dt.bias",
                                        "blk.2.ssm_norm.weight",
                                        "blk.2.ssm_a",
                                        "blk.0.ssm_out.weight",
                                        "blk.3.attn_q.weight",
                                        "blk.3.attn_k.weight",
                                        "blk.3.attn_v.weight",
                                        "blk.3.attn_output.weight",
                                        "blk.3.attn_q_norm.weight",
                                        "blk.3.attn_k_norm.weight",
                                        "blk.0.ffn_gate_inp.weight",
                                        "blk.0.ffn_gate_exps.weight",
                                        "blk.1.ffn_up_exps.weight",
                                        "blk.3.ffn_down_exps.weight",
                                        "blk.0.ffn_gate_shexp.weight",
                                        "blk.0.ffn_up_shexp.weight",
                                        "blk.0.ffn_down_shexp.weight",
                                        "blk.3.ffn_gate_inp_shexp.weight"};
    for (size_t i = 0; i < FTI_COUNT(names); i++) {
        /* Half of them are there under a name that nobody knows. */
        const fti_synth_edit edit = {
            .name = names[i], .left_out = i % 2 == 0, .new_name = "blk.0.something_else.weight"};
        fti_synth_model m = toy_model();
        m.edits = &edit;
        m.edit_count = 1;
        text quoted = format("tensor '%s' is missing", names[i]);
        const refusal r = {FTK_E_CKPT_TENSOR, 5, {quoted.s, "again"}};
        expect_model_refused(&m, &r, names[i]);
    }
}

typedef struct tensor_case {
    fti_synth_edit edit;
    refusal refusal;
} tensor_case;

static void check_tensor_cases(const tensor_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        fti_synth_model m = toy_model();
        m.edits = &cases[i].edit;
        m.edit_count = 1;
        expect_model_refused(&m, &cases[i].refusal, cases[i].edit.name);
    }
}

#define SHAPE(name_, n, a, b, c, found, wanted)                                                    \
    {                                                                                              \
        {.name = (name_), .n_dims = (n), .dims = {(a), (b), (c)}}, {                               \
            FTK_E_CKPT_TENSOR, 5, {                                                                \
                "tensor '" name_ "' has shape {" found, "wanted {" wanted, "convert"               \
            }                                                                                      \
        }                                                                                          \
    }

static void tensor_of_another_shape(void **state) {
    (void)state;
    static const tensor_case cases[] = {
        SHAPE("token_embd.weight", 2, 256, 321, 1, "256, 321, 1, 1}", "256, 320, 1, 1}"),
        SHAPE("output.weight", 2, 256, 319, 1, "256, 319, 1, 1}", "256, 320, 1, 1}"),
        SHAPE("output_norm.weight", 1, 128, 1, 1, "128, 1, 1, 1}", "256, 1, 1, 1}"),
        SHAPE("blk.0.attn_qkv.weight", 2, 256, 255, 1, "256, 255, 1, 1}", "256, 256, 1, 1}"),
        SHAPE("blk.3.attn_q.weight", 2, 256, 128, 1, "256, 128, 1, 1}", "256, 256, 1, 1}"),
        SHAPE("blk.1.ssm_conv1d.weight", 2, 3, 256, 1, "3, 256, 1, 1}", "4, 256, 1, 1}"),
        SHAPE("blk.1.ssm_a", 1, 2, 1, 1, "2, 1, 1, 1}", "4, 1, 1, 1}"),
        SHAPE("blk.0.ffn_down_exps.weight", 3, 256, 32, 4, "256, 32, 4, 1}", "32, 256, 4, 1}"),
        SHAPE("blk.0.ffn_up_exps.weight", 3, 256, 32, 3, "256, 32, 3, 1}", "256, 32, 4, 1}"),
        SHAPE("blk.0.ffn_gate_exps.weight", 2, 256, 128, 1, "256, 128, 1, 1}", "256, 32, 4, 1}"),
    };
    check_tensor_cases(cases, FTI_COUNT(cases));
}

#define UNREAD(name_)                                                                              \
    {                                                                                              \
        {.name = (name_), .type = &iq2_xxs}, {                                                     \
            FTK_E_CKPT_TYPE, 5, {                                                                  \
                "tensor '" name_ "' has type IQ2_XXS", "does not read", "Q4_K"                     \
            }                                                                                      \
        }                                                                                          \
    }
#define NOT_F32(name_, type_, found)                                                               \
    {                                                                                              \
        {.name = (name_), .type = &(type_)}, {                                                     \
            FTK_E_CKPT_TYPE, 5, {                                                                  \
                "tensor '" name_ "' has type " found, "wanted F32", "quantise"                     \
            }                                                                                      \
        }                                                                                          \
    }

static void tensor_of_another_type(void **state) {
    (void)state;
    static const tensor_case cases[] = {
        UNREAD("token_embd.weight"),
        UNREAD("output.weight"),
        UNREAD("blk.0.attn_qkv.weight"),
        UNREAD("blk.3.attn_v.weight"),
        UNREAD("blk.1.ffn_up_exps.weight"),
        UNREAD("blk.2.ffn_gate_shexp.weight"),
        NOT_F32("output_norm.weight", q4_k, "Q4_K"),
        NOT_F32("blk.0.attn_norm.weight", q8_0, "Q8_0"),
        NOT_F32("blk.1.post_attention_norm.weight", iq2_xxs, "other (16)"),
    };
    check_tensor_cases(cases, FTI_COUNT(cases));
}

/* ---- metadata ---- */

typedef struct meta_case {
    fti_synth_meta meta;
    refusal refusal;
} meta_case;

static void check_meta_cases(const meta_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        fti_synth_model m = toy_model();
        m.metas = &cases[i].meta;
        m.meta_count = 1;
        text what = format("%s as %llu", cases[i].meta.key,
                           (unsigned long long)cases[i].meta.number);
        expect_model_refused(&m, &cases[i].refusal, what.s);
    }
}

#define A(suffix) "qwen35moe." suffix
#define RANGE(suffix, value, wanted)                                                               \
    {                                                                                              \
        {.key = A(suffix), .type = FTI_SYNTH_U32, .number = (value)}, {                            \
            FTK_E_CKPT_METADATA, 5, {                                                              \
                "key '" A(suffix) "': found " #value, "wanted " wanted                             \
            }                                                                                      \
        }                                                                                          \
    }
#define FLOAT(suffix, value, found)                                                                \
    {                                                                                              \
        {.key = A(suffix), .type = FTI_SYNTH_F32, .real = (value)}, {                              \
            FTK_E_CKPT_METADATA, 5, {                                                              \
                "key '" A(suffix) "': found " found, "wanted", "convert"                           \
            }                                                                                      \
        }                                                                                          \
    }
#define ABSENT(key_, status_)                                                                      \
    {                                                                                              \
        {.key = (key_), .type = FTI_SYNTH_LEFT_OUT}, {                                             \
            (status_), 5, {                                                                        \
                "'" key_ "' is missing", "convert"                                                 \
            }                                                                                      \
        }                                                                                          \
    }

static void g18_metadata_out_of_range(void **state) {
    (void)state;
    static const meta_case cases[] = {
        RANGE("block_count", 0, "1 to 1024"),
        RANGE("block_count", 1000000, "1 to 1024"),
        RANGE("nextn_predict_layers", 4, "less than block_count 4"),
        RANGE("nextn_predict_layers", 17, "0 to 16"),
        RANGE("context_length", 0, "1 to 16777216"),
        RANGE("embedding_length", 0, "16 to 65536"),
        RANGE("expert_count", 0, "1 to 1024"),
        RANGE("expert_count", 1025, "1 to 1024"),
        RANGE("expert_used_count", 0, "1 to 256"),
        RANGE("expert_used_count", 5, "at most expert_count 4"),
        RANGE("expert_feed_forward_length", 0, "16 to 65536"),
        RANGE("expert_shared_feed_forward_length", 70000, "16 to 65536"),
        RANGE("attention.head_count", 0, "1 to 1024"),
        RANGE("attention.head_count", 5, "a multiple of attention.head_count_kv 2"),
        RANGE("attention.head_count_kv", 0, "1 to 1024"),
        RANGE("attention.key_length", 0, "16 to 512"),
        RANGE("attention.key_length", 1024, "16 to 512"),
        RANGE("attention.value_length", 16, "32, the key length"),
        RANGE("rope.dimension_count", 15, "a multiple of 2"),
        RANGE("rope.dimension_count", 34, "at most attention.key_length 32"),
        RANGE("rope.dimension_count", 0, "2 to 512"),
        RANGE("ssm.conv_kernel", 1, "2 to 16"),
        RANGE("ssm.conv_kernel", 17, "2 to 16"),
        RANGE("ssm.state_size", 512, "16 to 256"),
        RANGE("ssm.group_count", 0, "1 to 1024"),
        {{.key = A("ssm.group_count"), .type = FTI_SYNTH_U32, .number = 3},
         {FTK_E_CKPT_METADATA,
          5,
          {"key '" A("ssm.time_step_rank") "': found 4", "a multiple of ssm.group_count 3",
           "convert"}}},
        RANGE("ssm.inner_size", 64, "128, which is time_step_rank x state_size"),
        RANGE("full_attention_interval", 0, "1 to 1024"),
        FLOAT("attention.layer_norm_rms_epsilon", -1e-6f, "-1e-06"),
        FLOAT("attention.layer_norm_rms_epsilon", 2.0f, "2"),
        FLOAT("rope.freq_base", 0.0f, "0"),
    };
    check_meta_cases(cases, FTI_COUNT(cases));
}

/* Numbers that size everything else: what fits their range must fit the tensors too. */
static void g18_counts_at_their_edges(void **state) {
    (void)state;
    static const meta_case cases[] = {
        RANGE("block_count", 2147483647, "1 to 1024"),
        RANGE("block_count", 2147483648, "1 to 1024"),
        RANGE("block_count", 4294967295, "1 to 1024"),
        {{.key = A("expert_count"), .type = FTI_SYNTH_U32, .number = 1},
         {FTK_E_CKPT_METADATA,
          5,
          {"key '" A("expert_used_count") "': found 2", "at most expert_count 1", "convert"}}},
        {{.key = A("expert_count"), .type = FTI_SYNTH_U32, .number = 2},
         {FTK_E_CKPT_TENSOR, 5, {"has shape {256, 4, 1, 1}", "wanted {256, 2, 1, 1}"}}},
        RANGE("expert_count", 2147483648, "1 to 1024"),
        RANGE("expert_count", 4294967295, "1 to 1024"),
        RANGE("expert_used_count", 2147483648, "1 to 256"),
        RANGE("expert_used_count", 4294967295, "1 to 256"),
        RANGE("attention.head_count", 2147483648, "1 to 1024"),
        RANGE("attention.head_count", 4294967295, "1 to 1024"),
        RANGE("attention.head_count", 1, "a multiple of attention.head_count_kv 2"),
        RANGE("attention.head_count_kv", 4294967295, "1 to 1024"),
    };
    check_meta_cases(cases, FTI_COUNT(cases));
}

/* Each of these keys, in each type that is no integer, and beyond 32 bits. */
static void g18_counts_of_another_type(void **state) {
    (void)state;
    static const char *const keys[] = {A("block_count"), A("expert_count"), A("expert_used_count"),
                                       A("attention.head_count"), A("attention.head_count_kv")};
    static const uint64_t one = 1;
    static const fti_synth_meta values[] = {
        {.type = FTI_SYNTH_STRING, .text = "4"},
        {.type = FTI_SYNTH_F32, .real = 4},
        {.type = FTI_SYNTH_BOOL, .number = 1},
        {.type = FTI_SYNTH_I32, .number = 0x80000000u},
        {.type = FTI_SYNTH_U64, .number = (1ull << 32) + 4},
        {.type = FTI_SYNTH_U64, .number = UINT64_MAX},
        {.type = FTI_SYNTH_ARRAY, .element_type = FTI_SYNTH_BOOL, .elements = &one, .count = 1},
        {.type = FTI_SYNTH_ARRAY, .element_type = FTI_SYNTH_STRING},
    };
    for (size_t k = 0; k < FTI_COUNT(keys); k++)
        for (size_t i = 0; i < FTI_COUNT(values); i++) {
            text quoted = format("key '%s'", keys[k]);
            meta_case c = {values[i], {FTK_E_CKPT_METADATA, 5, {quoted.s, "found"}}};
            c.meta.key = keys[k];
            check_meta_cases(&c, 1);
        }
}

static void metadata_missing_or_of_another_type(void **state) {
    (void)state;
    static const meta_case cases[] = {
        ABSENT(A("block_count"), FTK_E_CKPT_METADATA),
        ABSENT(A("expert_count"), FTK_E_CKPT_METADATA),
        ABSENT(A("ssm.state_size"), FTK_E_CKPT_METADATA),
        ABSENT(A("attention.layer_norm_rms_epsilon"), FTK_E_CKPT_METADATA),
        {{.key = A("block_count"), .type = FTI_SYNTH_F32, .real = 4},
         {FTK_E_CKPT_METADATA, 5, {"key '" A("block_count") "'", "FLOAT32", "wanted an integer"}}},
        {{.key = A("block_count"), .type = FTI_SYNTH_I32, .number = 0xffffffffu},
         {FTK_E_CKPT_METADATA, 5, {"key '" A("block_count") "': found -1", "wanted 1 to 1024"}}},
        {{.key = A("rope.freq_base"), .type = FTI_SYNTH_U32, .number = 10000000},
         {FTK_E_CKPT_METADATA, 5, {"key '" A("rope.freq_base") "'", "UINT32", "wanted FLOAT32"}}},
        {{.key = A("rope.scaling.type"), .type = FTI_SYNTH_STRING, .text = "yarn"},
         {FTK_E_CKPT_METADATA,
          5,
          {"key '" A("rope.scaling.type") "': found 'yarn'", "wanted 'none'",
           "use a file without"}}},
    };
    check_meta_cases(cases, FTI_COUNT(cases));
}

static void layers_of_another_kind(void **state) {
    (void)state;
    static const uint64_t all_linear[] = {1, 1, 1, 1}, too_few[] = {1, 1, 1};
    static const meta_case cases[] = {
        {{.key = A("full_attention_interval"), .type = FTI_SYNTH_U32, .number = 3},
         {FTK_E_CKPT_TENSOR,
          5,
          {"layer 2", "found the tensors of linear attention", "wanted those of full attention",
           "full_attention_interval", "convert"}}},
        {{.key = A("attention.recurrent_layers"),
          .type = FTI_SYNTH_ARRAY,
          .element_type = FTI_SYNTH_BOOL,
          .elements = all_linear,
          .count = 4},
         {FTK_E_CKPT_TENSOR,
          5,
          {"layer 3", "found the tensors of full attention", "wanted those of linear attention",
           "attention.recurrent_layers", "convert"}}},
        {{.key = A("attention.recurrent_layers"),
          .type = FTI_SYNTH_ARRAY,
          .element_type = FTI_SYNTH_BOOL,
          .elements = too_few,
          .count = 3},
         {FTK_E_CKPT_METADATA,
          5,
          {"key '" A("attention.recurrent_layers") "'", "found 3 entries", "4 layers"}}},
        /* An MTP block that is taken for one of the trunk. */
        {{.key = A("block_count"), .type = FTI_SYNTH_U32, .number = 5},
         {FTK_E_CKPT_TENSOR, 5, {"blk.4.", "is missing"}}},
    };
    check_meta_cases(cases, FTI_COUNT(cases));
}

static void g13_tokenizers(void **state) {
    (void)state;
#define PRE(found)                                                                                 \
    {                                                                                              \
        {.key = "tokenizer.ggml.pre", .type = FTI_SYNTH_STRING, .text = (found)}, {                \
            FTK_E_CKPT_TOKENIZER, 5, {                                                             \
                "key 'tokenizer.ggml.pre': found '" found "'", "wanted 'qwen35'", "convert"        \
            }                                                                                      \
        }                                                                                          \
    }
    static const meta_case cases[] = {
        ABSENT("tokenizer.ggml.pre", FTK_E_CKPT_TOKENIZER),
        PRE("qwen2"),
        PRE("unknown"),
        PRE("qwen35x"),
        PRE(""),
        {{.key = "tokenizer.ggml.tokens",
          .type = FTI_SYNTH_ARRAY,
          .element_type = FTI_SYNTH_STRING},
         {FTK_E_CKPT_TOKENIZER,
          5,
          {"key 'tokenizer.ggml.tokens': found 0 tokens", "wanted 1 to", "convert"}}},
        {{.key = "tokenizer.ggml.tokens", .type = FTI_SYNTH_LEFT_OUT},
         {FTK_E_CKPT_TOKENIZER, 5, {"tokenizer.ggml.tokens", "wanted 1 to", "convert"}}},
        {{.key = "tokenizer.ggml.merges", .type = FTI_SYNTH_LEFT_OUT},
         {FTK_E_CKPT_TOKENIZER, 5, {"tokenizer.ggml.merges is missing", "convert"}}},
        {{.key = "tokenizer.ggml.model", .type = FTI_SYNTH_STRING, .text = "llama"},
         {FTK_E_CKPT_TOKENIZER, 5, {"tokenizer.ggml.model: found \"llama\"", "wanted \"gpt2\""}}},
        {{.key = "tokenizer.ggml.eos_token_id", .type = FTI_SYNTH_U32, .number = 320},
         {FTK_E_CKPT_METADATA, 5, {"tokenizer.ggml.eos_token_id", "found 320", "wanted 0 to 319"}}},
    };
    check_meta_cases(cases, FTI_COUNT(cases));
}

/* ---- settings ---- */

static void check_setting(const char *model, const char *key, const char *value, const char *where,
                          const refusal *r) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = load_config();
    if (ftk_config_set(config, key, value, &err) != FTK_OK) fail_msg("%s", err.message);
    text what = format("%s: %s", key, value);
    expect_refused(config, model, where, r, what.s);
    ftk_config_free(config);
}

static void settings_that_do_not_fit(void **state) {
    (void)state;
    fti_synth_model m = toy_model();
    text path = write_model(&m, "model.gguf");
    const refusal context = {
        FTK_E_CONTEXT, 6, {"memory.kv_tokens", "is 4097", "at most 4096 positions", "lower it"}};
    const refusal memory = {FTK_E_DOES_NOT_FIT,
                            6,
                            {"bytes needed", "65536 allowed", "limit 65536", "KV cache",
                             "lower memory.kv_tokens", "raise memory.device"}};
    const refusal reserve = {FTK_E_DOES_NOT_FIT, 6, {"bytes needed", " 0 allowed", "reserve 1125"}};
    check_setting(path.s, "memory.kv_tokens", "4097", path.s, &context);
    check_setting(path.s, "memory.device", "64KiB", path.s, &memory);
    check_setting(path.s, "memory.reserve", "1024TiB", path.s, &reserve);
}

static void settings_that_nothing_here_has(void **state) {
    (void)state;
    const refusal cuda = {FTK_E_DEVICE_UNAVAILABLE, 7, {"backend.kind is cuda", "use cpu or auto"}};
    const refusal hip = {FTK_E_DEVICE_UNAVAILABLE, 7, {"backend.kind is hip", "use cpu or auto"}};
    check_setting(DEMO_MODEL, "backend.kind", "cuda", FTK_CONFIG, &cuda);
    check_setting(DEMO_MODEL, "backend.kind", "hip", FTK_CONFIG, &hip);
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = load_config();
    expect_status(ftk_config_set(config, "backend.threads", "100000", &err), FTK_E_CONFIG_VALUE,
                  &err, "1024");
    ftk_config_free(config);
}

static void settings_of_later_versions(void **state) {
    (void)state;
    static const char *const settings[][2] = {{"memory.ladder", "on"},
                                              {"memory.host", "1GiB"},
                                              {"moe.coexecution", "on"},
                                              {"moe.collect_stats", "true"},
                                              {"backend.device", "1"}};
    for (size_t i = 0; i < FTI_COUNT(settings); i++) {
        ftk_error err = FTK_ERROR_INIT;
        ftk_engine *engine = NULL;
        const char *const list[] = {settings[i][0], settings[i][1], NULL};
        assert_int_equal(fixture_try_open(DEMO_MODEL, list, 0, &engine, &err), FTK_E_CONFIG_VALUE);
        assert_null(engine);
        const refusal r = {FTK_E_CONFIG_VALUE, 3, {settings[i][0], "later version", "remove it"}};
        check_message(&err, &r, FTK_CONFIG, settings[i][0]);
    }
}

/* ---- prompts ---- */

static void check_prompt(ftk_engine *engine, const int32_t *ids, size_t count, const refusal *r,
                         const char *what) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_generate_options generate = FTK_GENERATE_OPTIONS_INIT;
    generate.max_tokens = 1;
    assert_int_equal(ftk_generate(engine, ids, count, &generate, NULL, &err), r->status);
    check_message(&err, r, NULL, what);
    ftk_evaluate_options evaluate = FTK_EVALUATE_OPTIONS_INIT;
    err.message[0] = 0;
    assert_int_equal(ftk_evaluate(engine, ids, count, &evaluate, &err), r->status);
    check_message(&err, r, NULL, what);
}

static void prompts(void **state) {
    (void)state;
    fti_synth_model m = toy_model();
    text path = write_model(&m, "model.gguf");
    const char *const settings[] = {"memory.kv_tokens", "64", NULL};
    ftk_engine *engine = fixture_open(path.s, settings);
    const refusal too_long = {
        FTK_E_CONTEXT, 6, {"65 tokens", "context of 64", "raise memory.kv_tokens", "at most 4096"}};
    const refusal empty = {FTK_E_ARGUMENT, 1, {"empty", "at least one token"}};
    const refusal outside = {FTK_E_ARGUMENT, 1, {"token 2 is 320", "ids 0 to 319"}};
    const refusal negative = {FTK_E_ARGUMENT, 1, {"token 2 is -1", "ids 0 to 319"}};
    int32_t ids[65] = {1, 2, 3};
    check_prompt(engine, ids, 65, &too_long, "too long");
    check_prompt(engine, ids, 0, &empty, "empty");
    check_prompt(engine, NULL, 3, &empty, "NULL");
    ids[2] = 320;
    check_prompt(engine, ids, 3, &outside, "outside");
    ids[2] = -1;
    check_prompt(engine, ids, 3, &negative, "negative");
    ftk_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unchanged_model_opens),
        cmocka_unit_test(provider_that_is_not_allowed),
        cmocka_unit_test(no_provider_at_all),
        cmocka_unit_test(a8_unknown_architecture),
        cmocka_unit_test(wrong_pin),
        cmocka_unit_test(a3_unknown_provider_options),
        cmocka_unit_test(b4_demo_model_cut_short),
        cmocka_unit_test(no_gguf_file),
        cmocka_unit_test(b9_other_versions),
        cmocka_unit_test(a7_vision_projector),
        cmocka_unit_test(tensor_missing),
        cmocka_unit_test(tensor_of_another_shape),
        cmocka_unit_test(tensor_of_another_type),
        cmocka_unit_test(g18_metadata_out_of_range),
        cmocka_unit_test(g18_counts_at_their_edges),
        cmocka_unit_test(g18_counts_of_another_type),
        cmocka_unit_test(metadata_missing_or_of_another_type),
        cmocka_unit_test(layers_of_another_kind),
        cmocka_unit_test(g13_tokenizers),
        cmocka_unit_test(settings_that_do_not_fit),
        cmocka_unit_test(settings_that_nothing_here_has),
        cmocka_unit_test(settings_of_later_versions),
        cmocka_unit_test(prompts),
    };
    return cmocka_run_group_tests_name("test_refusals", tests, scratch_setup, scratch_teardown);
}
