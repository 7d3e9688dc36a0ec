/*
 * test_variations.c: the forms in which one model is written: every readable weight
 * type, fused tensors, the names and keys of other converters, draft blocks that are
 * not announced, vectors in 16 bits, shards. Each is held against the plain file
 * (cases A1, A11 and B1 of public reports).
 */
#include "support/gguf_edit.h"
#include "support/model_runs.h"

#include "freetoken/device/base.h"

#define A(suffix) "qwen35moe." suffix
#define TOKENS    12

static void expect_planned_refused(const char *path, ftk_status status, const char *part) {
    ftk_engine *engine;
    ftk_error err = FTK_ERROR_INIT;
    expect_status(fixture_try_open(path, NULL, FTK_OPEN_PLANNED, &engine, &err), status, &err,
                  part);
}

/* ---- weight types ---- */

static const struct {
    const char *name;
    uint32_t type;
} types[] = {{"Q4_0", FTK_TYPE_Q4_0},     {"Q4_1", FTK_TYPE_Q4_1},   {"Q5_0", FTK_TYPE_Q5_0},
             {"Q5_1", FTK_TYPE_Q5_1},     {"Q2_K", FTK_TYPE_Q2_K},   {"Q3_K", FTK_TYPE_Q3_K},
             {"IQ4_NL", FTK_TYPE_IQ4_NL}, {"MXFP4", FTK_TYPE_MXFP4}, {"IQ4_XS", FTK_TYPE_IQ4_XS},
             {"NVFP4", FTK_TYPE_NVFP4}};

static void check_type(const char *name, uint32_t type) {
    static const char *const reference[] = {"backend.kernels", "reference", NULL};
    fti_synth_model m = small_model();
    m.dims.used = m.dims.experts; /* which ones are chosen cannot flip */
    all_types(&m, type);
    text path = write_model(&m, "type.gguf");
    ftk_engine *engine = fixture_open(path.s, NULL);
    logits whole = run(engine, TOKENS, 0), ones = run(engine, TOKENS, 1);
    ftk_engine_close(engine);
    logits plain = run_file(path.s, reference, TOKENS), near = run_file(path.s, float_mode, TOKENS);
    assert_same_bits(ones, whole, name);
    assert_same_bits(plain, whole, name);
    double d = largest_difference(whole, near) / deviation(near);
    print_message("%s: exact and float mode differ by %.2e deviations at most\n", name, d);
    assert_true(d > 0 && d < 0.5);
    logits *const all[] = {&whole, &ones, &plain, &near};
    for (size_t i = 0; i < FTI_COUNT(all); i++) free(all[i]->data);
}

static void every_other_type_throughout(void **state) {
    (void)state;
    for (size_t t = 0; t < FTI_COUNT(types); t++) check_type(types[t].name, types[t].type);
}

static void types_that_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        const char *name;
    } refused[] = {{16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
                   {21, "IQ3_S"},   {22, "IQ2_S"},  {29, "IQ1_M"},   {34, "TQ1_0"},
                   {35, "TQ2_0"},   {41, "Q1_0"},   {42, "Q2_0"}};
    fti_synth_model m = small_model();
    text plain = write_model(&m, "plain.gguf"), path = in_scratch("refused.gguf");
    for (size_t i = 0; i < FTI_COUNT(refused); i++) {
        fti_gguf_edit e = fti_ge_load(plain.s);
        const uint64_t dims[] = {256, 512};
        fti_ge_remove(&e, "token_embd.weight");
        fti_ge_add(&e, "token_embd.weight", refused[i].type, 2, dims, NULL);
        fti_ge_save(&e, path.s);
        fti_ge_free(&e);
        text part = format("tensor 'token_embd.weight' has type %s, which", refused[i].name);
        expect_planned_refused(path.s, FTK_E_CKPT_TYPE, part.s);
    }
}

/* ---- fused tensors ---- */

static void fuse_experts(fti_gguf_edit *e) {
    for (int layer = 0; layer < 4; layer++) {
        text gate = format("blk.%d.ffn_gate_exps.weight", layer);
        text up = format("blk.%d.ffn_up_exps.weight", layer);
        const char *const parts[] = {gate.s, up.s};
        fti_ge_join_rows(e, format("blk.%d.ffn_gate_up_exps.weight", layer).s, parts, 2);
    }
}

static void fuse_attention(fti_gguf_edit *e) {
    static const char *const parts[] = {"blk.3.attn_q.weight", "blk.3.attn_k.weight",
                                        "blk.3.attn_v.weight"};
    fti_ge_join_rows(e, "blk.3.attn_qkv.weight", parts, 3);
}

/* The same bits from the fused file, mapped and, with alignment 1, copied. */
static void check_fused(void (*fuse)(fti_gguf_edit *), const char *what) {
    fti_synth_model m = small_model();
    text plain = write_model(&m, "plain.gguf"), path = in_scratch("fused.gguf");
    logits wanted = run_file(plain.s, NULL, TOKENS);
    fti_gguf_edit e = fti_ge_load(plain.s);
    fuse(&e);
    for (int unaligned = 0; unaligned < 2; unaligned++) {
        uint32_t alignment = unaligned ? 1 : 32;
        fti_edit_shard all = {0, 1, (uint32_t)e.count, 0, e.count, alignment, NULL};
        fti_ge_save_shard(&e, &all, path.s);
        ftk_engine *engine = fixture_open(path.s, NULL);
        uint64_t copied = copied_weights(engine, path.s);
        assert_int_equal(copied > 0, unaligned);
        assert_int_equal(sum_of_tensors(path.s), sum_of_tensors(plain.s));
        assert_false(noted(engine, "not part of the text model"));
        logits found = run(engine, TOKENS, 0);
        assert_same_bits(found, wanted, what);
        ftk_engine_close(engine);
        free(found.data);
    }
    fti_ge_free(&e);
    free(wanted.data);
}

static void gate_and_up_in_one_tensor(void **state) {
    (void)state;
    check_fused(fuse_experts, "gate and up fused");
}

static void query_key_value_in_one_tensor(void **state) {
    (void)state;
    check_fused(fuse_attention, "attention fused");
}

static void fused_tensors_of_a_wrong_shape(void **state) {
    (void)state;
    fti_synth_model m = small_model();
    text plain = write_model(&m, "plain.gguf"), path = in_scratch("fused.gguf");
    fti_gguf_edit e = fti_ge_load(plain.s);
    const char *const parts[] = {"blk.3.attn_q.weight", "blk.3.attn_k.weight"};
    fti_ge_join_rows(&e, "blk.3.attn_qkv.weight", parts, 2);
    fti_ge_save(&e, path.s);
    expect_planned_refused(
        path.s, FTK_E_CKPT_TENSOR,
        "'blk.3.attn_qkv.weight' has shape {256, 640, 1, 1}, wanted {256, 768, 1, 1}");
    fti_ge_free(&e);
    e = fti_ge_load(plain.s);
    const char *const three[] = {"blk.1.ffn_gate_exps.weight"};
    fti_ge_join_rows(&e, "blk.1.ffn_gate_up_exps.weight", three, 1);
    fti_ge_save(&e, path.s);
    expect_planned_refused(
        path.s, FTK_E_CKPT_TENSOR,
        "'blk.1.ffn_gate_up_exps.weight' has shape {256, 256, 4, 1}, wanted {256, 512, "
        "4, 1}");
    fti_ge_free(&e);
}

/* ---- the names and keys of another converter ---- */

static const uint64_t kv_by_layer[] = {0, 0, 0, 2}, sections[] = {6, 5, 5};

static void keys_and_names_of_ollama(void **state) {
    (void)state;
    static const fti_synth_edit edits[] = {
        {.name = "blk.0.ssm_dt.bias", .new_name = "blk.0.ssm_dt"},
        {.name = "blk.1.ssm_dt.bias", .new_name = "blk.1.ssm_dt"},
        {.name = "blk.2.ssm_dt.bias", .new_name = "blk.2.ssm_dt"}};
    static const fti_synth_extra extras[] = {{"v.patch_embed.weight", FTK_TYPE_F16, 32, 8},
                                             {"mtp.fc.weight", FTK_TYPE_BF16, 64, 4},
                                             {"mtp.layers.0.attn_q.weight", FTK_TYPE_Q8_0, 64, 4}};
    const fti_synth_meta metas[] = {
        {.key = A("attention.head_count_kv"),
         .type = FTI_SYNTH_ARRAY,
         .element_type = FTI_SYNTH_U32,
         .elements = kv_by_layer,
         .count = 4},
        {.key = A("rope.dimension_sections"),
         .type = FTI_SYNTH_ARRAY,
         .element_type = FTI_SYNTH_I32,
         .elements = sections,
         .count = 3},
        {.key = A("rope.mrope_interleaved"), .type = FTI_SYNTH_BOOL, .number = 1},
        {.key = A("ssm.v_head_reordered"), .type = FTI_SYNTH_BOOL, .number = 1}};
    fti_synth_model m = small_model();
    text path = write_model(&m, "plain.gguf");
    logits wanted = run_file(path.s, NULL, TOKENS);
    m.edits = edits;
    m.edit_count = FTI_COUNT(edits);
    m.extras = extras;
    m.extra_count = FTI_COUNT(extras);
    m.metas = metas;
    m.meta_count = FTI_COUNT(metas);
    path = write_model(&m, "ollama.gguf");
    ftk_engine *engine = fixture_open(path.s, NULL);
    assert_true(noted(engine, "3 of 79 tensors are not part of the text model"));
    logits found = run(engine, TOKENS, 0);
    assert_same_bits(found, wanted, "as Ollama writes it");
    ftk_engine_close(engine);
    free(found.data);
    free(wanted.data);
}

static void kv_heads_by_layer_are_checked(void **state) {
    (void)state;
    static const uint64_t none[4] = {0}, two[] = {0, 1, 0, 2}, here[] = {2, 2, 2, 0},
                          huge[] = {0, 0, 0, 1025}, negative[] = {0, 0, 0, (uint32_t)-1},
                          everywhere[] = {2, 2, 2, 2};
    static const struct {
        const uint64_t *entries;
        uint64_t count;
        const char *part; /* NULL: accepted */
    } cases[] = {{none, 4, "found no entry but 0"},
                 {none, 0, "found no entry but 0"},
                 {two, 4, "entry 3 is 2, wanted 0 or the 1"},
                 {here, 4, "found no heads for layer 3"},
                 {everywhere, 3, "found no heads for layer 3"},
                 {huge, 4, "entry 3 is 1025"},
                 {negative, 4, "entry 3 is -1"},
                 {everywhere, 4, NULL},
                 {kv_by_layer, 4, NULL}};
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        const fti_synth_meta meta = {.key = A("attention.head_count_kv"),
                                     .type = FTI_SYNTH_ARRAY,
                                     .element_type = FTI_SYNTH_I32,
                                     .elements = cases[i].entries,
                                     .count = cases[i].count};
        fti_synth_model m = small_model();
        m.metas = &meta;
        m.meta_count = 1;
        text path = write_model(&m, "kv.gguf");
        if (cases[i].part)
            expect_planned_refused(path.s, FTK_E_CKPT_METADATA, cases[i].part);
        else
            ftk_engine_close(fixture_open(path.s, NULL));
    }
    const fti_synth_meta text_meta = {
        .key = A("attention.head_count_kv"), .type = FTI_SYNTH_STRING, .text = "2"};
    fti_synth_model m = small_model();
    m.metas = &text_meta;
    m.meta_count = 1;
    expect_planned_refused(write_model(&m, "kv.gguf").s, FTK_E_CKPT_METADATA,
                           "found STRING, wanted an integer");
}

/* ---- A1: draft blocks ---- */

static void keep_nextn_alone(fti_gguf_edit *e) {
    for (size_t i = e->count; i-- > 0;) {
        const char *name = e->tensors[i].name;
        if (strncmp(name, "blk.4.", 6) == 0 && !strstr(name, ".nextn.")) fti_ge_remove(e, name);
    }
}

static void a1_draft_blocks_are_recognised(void **state) {
    (void)state;
    const fti_synth_meta no_key = {.key = A("nextn_predict_layers"), .type = FTI_SYNTH_LEFT_OUT};
    fti_synth_model m = small_model();
    text path = write_model(&m, "plain.gguf");
    logits wanted = run_file(path.s, NULL, TOKENS);
    m.mtp_blocks = 1;
    m.metas = &no_key;
    for (int with_key = 0; with_key < 2; with_key++)
        for (int alone = 0; alone < 2; alone++) {
            text what = format("%s key, %s", with_key ? "with" : "without",
                               alone ? "nextn tensors alone" : "a whole block");
            m.meta_count = with_key ? 0 : 1;
            path = write_model(&m, "draft.gguf");
            if (alone) {
                fti_gguf_edit e = fti_ge_load(path.s);
                keep_nextn_alone(&e);
                path = in_scratch("alone.gguf");
                fti_ge_save(&e, path.s);
                fti_ge_free(&e);
            }
            ftk_engine *engine = fixture_open(path.s, NULL);
            assert_int_equal(ftk_engine_layers(engine), 4);
            assert_true(noted(engine, "1 MTP block (blk.4 up) recognised and left out"));
            assert_true(noted(engine, alone ? "4 of 80 tensors" : "20 of 96 tensors"));
            logits found = run(engine, TOKENS, 0);
            assert_same_bits(found, wanted, what.s);
            ftk_engine_close(engine);
            free(found.data);
        }
    free(wanted.data);
}

/* ---- A11: 16-bit tensors ---- */

static uint16_t narrow(float x, uint32_t type) {
    if (type == FTK_TYPE_F16) return ftk_f32_to_f16(x);
    uint32_t bits = ftk_f32_bits(x);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Rounds an F32 tensor to `type`; stored so, or as F32 again. */
static void round_tensor(fti_edit_tensor *t, uint32_t type, bool stored) {
    assert_int_equal(t->type, FTK_TYPE_F32);
    for (uint64_t i = 0; i < t->bytes / 4; i++) {
        float x;
        memcpy(&x, t->data + 4 * i, 4);
        uint16_t h = narrow(x, type);
        x = type == FTK_TYPE_F16 ? ftk_f16_to_f32(h) : ftk_bf16_to_f32(h);
        if (stored)
            memcpy(t->data + 2 * i, &h, 2);
        else
            memcpy(t->data + 4 * i, &x, 4);
    }
    if (!stored) return;
    t->type = type;
    t->bytes /= 2;
}

/* All vectors and the convolution, and one expert tensor. */
static void round_vectors(fti_gguf_edit *e, uint32_t type, bool stored) {
    size_t rounded = 0;
    for (size_t i = 0; i < e->count; i++) {
        fti_edit_tensor *t = &e->tensors[i];
        bool vector = strstr(t->name, "norm.weight") || strstr(t->name, ".ssm_dt") ||
                      strstr(t->name, "ssm_conv1d") || strcmp(t->name, "blk.2.ssm_a") == 0;
        if (!vector && strcmp(t->name, "blk.1.ffn_down_exps.weight") != 0) continue;
        round_tensor(t, type, stored);
        rounded++;
    }
    assert_int_equal(rounded, 1 + 4 * 2 + 2 + 3 + 3 + 3 + 1 + 1);
}

static void a11_vectors_in_16_bits(void **state) {
    (void)state;
    static const uint32_t narrow_types[] = {FTK_TYPE_BF16, FTK_TYPE_F16};
    fti_synth_model m = small_model();
    m.dims.used = m.dims.experts;
    m.types[FTI_SYNTH_DOWN] = FTK_TYPE_F32;
    text plain = write_model(&m, "plain.gguf"), path = in_scratch("narrow.gguf");
    logits original = run_file(plain.s, NULL, TOKENS);
    for (size_t i = 0; i < FTI_COUNT(narrow_types); i++) {
        logits as[2];
        for (int stored = 0; stored < 2; stored++) {
            fti_gguf_edit e = fti_ge_load(plain.s);
            round_vectors(&e, narrow_types[i], stored);
            fti_ge_save(&e, path.s);
            fti_ge_free(&e);
            as[stored] = run_file(path.s, NULL, TOKENS);
        }
        assert_same_bits(as[1], as[0], "vectors in 16 bits against the same values in 32");
        double d = largest_difference(as[1], original) / deviation(original);
        print_message("type %u: %.2e deviations from F32 at most\n", narrow_types[i], d);
        assert_true(d > 0 && d < 0.3);
        free(as[0].data);
        free(as[1].data);
    }
    free(original.data);
}

/* ---- shards ---- */

static void shards_compute_what_the_whole_does(void **state) {
    (void)state;
    fti_synth_model m = small_model();
    text plain = write_model(&m, "plain.gguf");
    logits wanted = run_file(plain.s, NULL, TOKENS);
    fti_gguf_edit e = fti_ge_load(plain.s);
    uint32_t count = (uint32_t)e.count;
    const size_t firsts[] = {0, 0, 31, count};
    for (uint32_t i = 0; i < 3; i++) {
        fti_edit_shard shard = {i, 3, count, firsts[i], firsts[i + 1] - firsts[i], i == 2, NULL};
        fti_ge_save_shard(&e, &shard, format("%s/s-%05u-of-00003.gguf", scratch, i + 1).s);
    }
    fti_ge_free(&e);
    for (uint32_t given = 1; given <= 3; given++) {
        text path = format("%s/s-%05u-of-00003.gguf", scratch, given);
        ftk_engine *engine = fixture_open(path.s, NULL);
        (void)copied_weights(engine, path.s);
        json_t *provenance = report(ftk_engine_provenance, engine);
        json_t *file = json_object_get(provenance, "checkpoint");
        assert_int_equal(json_integer_value(json_object_get(file, "shards")), 3);
        json_decref(provenance);
        logits found = run(engine, TOKENS, 0);
        assert_same_bits(found, wanted, path.s);
        ftk_engine_close(engine);
        free(found.data);
    }
    unlink(format("%s/s-00002-of-00003.gguf", scratch).s);
    expect_planned_refused(format("%s/s-00003-of-00003.gguf", scratch).s, FTK_E_CKPT_READ,
                           "2 ('s-00002-of-00003.gguf') is missing");
    free(wanted.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_other_type_throughout),
        cmocka_unit_test(types_that_are_refused_by_name),
        cmocka_unit_test(gate_and_up_in_one_tensor),
        cmocka_unit_test(query_key_value_in_one_tensor),
        cmocka_unit_test(fused_tensors_of_a_wrong_shape),
        cmocka_unit_test(keys_and_names_of_ollama),
        cmocka_unit_test(kv_heads_by_layer_are_checked),
        cmocka_unit_test(a1_draft_blocks_are_recognised),
        cmocka_unit_test(a11_vectors_in_16_bits),
        cmocka_unit_test(shards_compute_what_the_whole_does),
    };
    return cmocka_run_group_tests_name("test_variations", tests, scratch_setup, scratch_teardown);
}
