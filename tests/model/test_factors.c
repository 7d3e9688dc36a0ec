/*
 * test_factors.c: NVFP4 matrices with a factor beside them (NAME.scale), one number or
 * one of each expert. A factor that is a power of two can be moved into the scales of
 * the blocks without a rounding, so two files of the same weights must give the same
 * bits; other factors must give the same bits however the work is cut.
 */
#include "support/gguf_edit.h"
#include "support/model_runs.h"

#include "api/collect.h"
#include "freetoken/device/base.h"

#define TOKENS      12
#define BLOCK_BYTES 36u

static fti_synth_model nvfp4_model(void) {
    fti_synth_model m = small_model();
    all_types(&m, FTK_TYPE_NVFP4);
    return m;
}

/* NAME.scale of NAME.weight. */
static text factor_name(const char *weight) {
    size_t stem = strlen(weight) - strlen(".weight");
    assert_string_equal(weight + stem, ".weight");
    return format("%.*s.scale", (int)stem, weight);
}

static void add_factors(fti_gguf_edit *e, const char *weight, uint32_t type, uint64_t count,
                        const void *values) {
    fti_ge_add(e, factor_name(weight).s, type, 1, &count, values);
}

/* ---- powers of two ---- */

/* A UE4M3 scale times 2^k: significand * 2^(exponent - 10), below 8 without exponent. */
static uint8_t raised(uint8_t scale, uint32_t k) {
    uint32_t exponent = scale >> 3, significand = scale & 7u;
    if (exponent == 0)
        exponent = 1;
    else
        significand += 8;
    for (exponent += k; significand < 8 && exponent > 1; exponent--) significand *= 2;
    assert_in_range(exponent, 1, 14);
    return (uint8_t)(significand < 8 ? significand : exponent << 3 | (significand - 8));
}

static void raise_blocks(uint8_t *data, uint64_t bytes, uint32_t k) {
    for (uint64_t at = 0; at < bytes; at += BLOCK_BYTES)
        for (size_t i = 0; i < 4; i++) data[at + i] = raised(data[at + i], k);
}

/* Takes 2^k out of the factor of each slice (`apart`: of all together) and puts it into
 * the blocks; every slice has another k. */
static void move_factor(fti_gguf_edit *e, const char *weight, bool apart, uint32_t type,
                        uint32_t salt) {
    fti_edit_tensor *t = fti_ge_find(e, weight);
    uint64_t slices = t->n_dims > 2 && apart ? t->dims[2] : 1;
    float wide[16];
    uint16_t narrow[16];
    assert_in_range(slices, 1, FTI_COUNT(wide));
    for (uint32_t s = 0; s < slices; s++) {
        uint32_t k = 1 + (salt + 2 * s) % 5;
        raise_blocks(t->data + t->bytes / slices * s, t->bytes / slices, k);
        wide[s] = 1.0f / (float)(1u << k);
        narrow[s] = ftk_f32_to_f16(wide[s]);
    }
    add_factors(e, weight, type, slices, type == FTK_TYPE_F32 ? (void *)wide : (void *)narrow);
}

/* All matrices of a file; expert banks have one factor each in even layers. */
static size_t move_factors(fti_gguf_edit *e, uint32_t type) {
    size_t count = e->count, moved = 0;
    for (size_t i = 0; i < count; i++) {
        text weight = format("%s", e->tensors[i].name);
        if (e->tensors[i].type != FTK_TYPE_NVFP4) continue;
        bool apart = !strstr(weight.s, "blk.0.") && !strstr(weight.s, "blk.2.");
        move_factor(e, weight.s, apart, type, (uint32_t)i);
        moved++;
    }
    return moved;
}

static void fuse(fti_gguf_edit *e) {
    static const char *const qkv[] = {"blk.3.attn_q.weight", "blk.3.attn_k.weight",
                                      "blk.3.attn_v.weight"};
    for (int layer = 0; layer < 4; layer++) {
        text gate = format("blk.%d.ffn_gate_exps.weight", layer);
        text up = format("blk.%d.ffn_up_exps.weight", layer);
        const char *const parts[] = {gate.s, up.s};
        fti_ge_join_rows(e, format("blk.%d.ffn_gate_up_exps.weight", layer).s, parts, 2);
    }
    fti_ge_join_rows(e, "blk.3.attn_qkv.weight", qkv, 3);
}

static void tie(fti_gguf_edit *e) {
    fti_ge_remove(e, "output.weight");
}

/* The file with factors gives the bits of the one without, in both modes of numerics. */
static void check_moved(void (*bend)(fti_gguf_edit *), uint32_t type, uint32_t alignment,
                        size_t matrices, const char *what) {
    fti_synth_model m = nvfp4_model();
    text plain = in_scratch("plain.gguf"), scaled = in_scratch("scaled.gguf");
    fti_gguf_edit e = fti_ge_load(write_model(&m, "whole.gguf").s);
    if (bend) bend(&e);
    fti_ge_save(&e, plain.s);
    logits exact = run_file(plain.s, NULL, TOKENS), floats = run_file(plain.s, float_mode, TOKENS);
    assert_int_equal(move_factors(&e, type), matrices);
    fti_edit_shard all = {0, 1, (uint32_t)e.count, 0, e.count, alignment, NULL};
    fti_ge_save_shard(&e, &all, scaled.s);
    fti_ge_free(&e);

    ftk_engine *engine = fixture_open(scaled.s, NULL);
    assert_false(noted(engine, "not part of the text model"));
    assert_false(noted(engine, ".scale not used"));
    logits found = run(engine, TOKENS, 0);
    assert_same_bits(found, exact, what);
    ftk_engine_close(engine);
    expect_logits(scaled.s, float_mode, TOKENS, floats, what);
    free(found.data);
    free(exact.data);
    free(floats.data);
}

/* Per layer: shared gate, up and down, three banks, and four or five of the mixer; the
 * logit of the shared expert is F32. Two more are global. */
#define LINEAR_MATRICES 11u
#define FULL_MATRICES   10u
#define MATRICES        (3u * LINEAR_MATRICES + FULL_MATRICES + 2u)

static void powers_of_two(void **state) {
    (void)state;
    check_moved(NULL, FTK_TYPE_F32, 32, MATRICES, "factors in F32");
    check_moved(NULL, FTK_TYPE_F16, 32, MATRICES, "factors in F16");
    check_moved(NULL, FTK_TYPE_F32, 1, MATRICES, "unaligned factors");
}

static void powers_of_two_in_fused_tensors(void **state) {
    (void)state;
    check_moved(fuse, FTK_TYPE_F32, 32, MATRICES - 4 - 2, "fused");
}

static void powers_of_two_in_a_tied_embedding(void **state) {
    (void)state;
    check_moved(tie, FTK_TYPE_F32, 32, MATRICES - 1, "tied");
}

/* ---- any factors ---- */

/* Factors without a pattern, from 0.6 to 1.6, for every matrix. */
static text write_scaled(const char *name) {
    fti_synth_model m = nvfp4_model();
    text path = in_scratch(name);
    fti_gguf_edit e = fti_ge_load(write_model(&m, "whole.gguf").s);
    size_t count = e.count;
    for (size_t i = 0; i < count; i++) {
        const fti_edit_tensor *t = &e.tensors[i];
        if (t->type != FTK_TYPE_NVFP4) continue;
        text weight = format("%s", t->name);
        float factors[4];
        for (uint32_t s = 0; s < 4; s++)
            factors[s] = 0.6f + (float)((i * 1009 + s * 523) % 997) * 0.001f;
        add_factors(&e, weight.s, FTK_TYPE_F32, t->n_dims > 2 ? 4 : 1, factors);
    }
    fti_ge_save(&e, path.s);
    fti_ge_free(&e);
    return path;
}

static void any_cut_and_variant(void **state) {
    (void)state;
    static const char *const settings[][5] = {{"backend.kernels", "reference", NULL},
                                              {"backend.threads", "1", NULL},
                                              {"backend.threads", "4", NULL},
                                              {"backend.graphs", "off", NULL}};
    text path = write_scaled("scaled.gguf");
    ftk_engine *engine = fixture_open(path.s, NULL);
    logits whole = run(engine, TOKENS, 0);
    for (uint32_t chunk = 1; chunk < TOKENS; chunk += 2) {
        logits cut = run(engine, TOKENS, chunk);
        assert_same_bits(cut, whole, format("chunks of %u", chunk).s);
        free(cut.data);
    }
    ftk_engine_close(engine);
    for (size_t i = 0; i < FTI_COUNT(settings); i++) {
        engine = fixture_open(path.s, settings[i]);
        int32_t ids[TOKENS];
        fill_ids(ids, TOKENS, ftk_engine_vocabulary(engine));
        for (uint32_t chunk = 0; chunk < 2; chunk++) {
            logits found = {fixture_logits(engine, ids, TOKENS, chunk), whole.count};
            assert_same_bits(found, whole, settings[i][0]);
            free(found.data);
        }
        ftk_engine_close(engine);
    }
    free(whole.data);
}

/* The head's factor comes after its product: one rounding of each logit. */
static void logits_are_multiplied_once(void **state) {
    (void)state;
    static const float f = 0.7734375f + 0x1p-20f;
    fti_synth_model m = nvfp4_model();
    text plain = write_model(&m, "plain.gguf"), path = in_scratch("head.gguf");
    logits wanted = run_file(plain.s, NULL, TOKENS);
    fti_gguf_edit e = fti_ge_load(plain.s);
    add_factors(&e, "output.weight", FTK_TYPE_F32, 1, &f);
    fti_ge_save(&e, path.s);
    fti_ge_free(&e);
    for (size_t i = 0; i < wanted.count; i++) wanted.data[i] = f * wanted.data[i];
    expect_logits(path.s, NULL, TOKENS, wanted, "the factor of the head");
    free(wanted.data);
}

/* Requests side by side, out of graphs, each as it is alone. */
static void any_batch(void **state) {
    (void)state;
    enum { COUNT = 4 };
    static const char *const settings[] = {"scheduler.max_running", "4", "backend.graphs", "on",
                                           NULL};
    text path = write_scaled("scaled.gguf");
    ftk_engine *engine = fixture_open(path.s, settings);
    int32_t ids[MAX_TOKENS];
    fill_ids(ids, MAX_TOKENS, ftk_engine_vocabulary(engine));
    const stories prompts = {ids, MAX_TOKENS};
    uint64_t alone[COUNT];
    collected *c = calloc(COUNT, sizeof *c);
    assert_non_null(c);
    for (size_t i = 0; i < COUNT; i++) {
        shape p = {.start = 7 * i, .size = 3 + 5 * i, .max_tokens = 20, .chunk = (uint32_t)i};
        alone[i] = solo_hash(engine, &prompts, &p);
        for (size_t k = 0; k < i; k++) assert_int_not_equal(alone[i], alone[k]);
    }
    fti_stream_counts before = counts_now(engine);
    for (size_t i = 0; i < COUNT; i++) {
        shape p = {.start = 7 * i, .size = 3 + 5 * i, .max_tokens = 20, .chunk = (uint32_t)i};
        submit_shape(engine, &prompts, &p, &c[i]);
    }
    step_to_end(engine);
    assert_true(counts_now(engine).rows[COUNT] > before.rows[COUNT]);
    assert_true(counts_now(engine).replays > before.replays);
    for (size_t i = 0; i < COUNT; i++) {
        expect_ended(&c[i], FTK_FINISH_LENGTH);
        assert_int_equal(c[i].result.hash, alone[i]);
    }
    free(c);
    ftk_engine_close(engine);
}

/* ---- answers ---- */

static void factors_of_another_form(void **state) {
    (void)state;
    static const struct {
        const char *weight;
        uint32_t type;
        uint64_t count;
        ftk_status status;
        const char *parts[3];
    } cases[] = {
        {"blk.3.attn_q.weight",
         FTK_TYPE_F32,
         2,
         FTK_E_CKPT_TENSOR,
         {"'blk.3.attn_q.scale'", "shape {2, 1, 1, 1}", "wanted {1, 1, 1, 1}"}},
        {"blk.0.ffn_up_exps.weight",
         FTK_TYPE_F32,
         3,
         FTK_E_CKPT_TENSOR,
         {"'blk.0.ffn_up_exps.scale'", "shape {3, 1, 1, 1}", "wanted {4, 1, 1, 1}"}},
        {"output.weight",
         FTK_TYPE_I32,
         1,
         FTK_E_CKPT_TYPE,
         {"'output.scale'", "(26)", "wanted F32, F16 or BF16"}},
    };
    fti_synth_model m = nvfp4_model();
    text plain = write_model(&m, "plain.gguf"), path = in_scratch("odd.gguf");
    ftk_config *config = load_config();
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        fti_gguf_edit e = fti_ge_load(plain.s);
        add_factors(&e, cases[i].weight, cases[i].type, cases[i].count, NULL);
        fti_ge_save(&e, path.s);
        fti_ge_free(&e);
        const refusal r = {
            cases[i].status, 5, {cases[i].parts[0], cases[i].parts[1], cases[i].parts[2]}};
        expect_refused(config, path.s, path.s, &r, cases[i].weight);
    }
    ftk_config_free(config);
}

static void input_scales_are_said(void **state) {
    (void)state;
    static const fti_synth_extra extras[] = {{"blk.3.attn_q.input_scale", FTK_TYPE_F32, 1, 0},
                                             {"blk.0.ffn_up_exps.input_scale", FTK_TYPE_F32, 4, 0}};
    fti_synth_model m = nvfp4_model();
    logits wanted = run_file(write_model(&m, "plain.gguf").s, NULL, TOKENS);
    m.extras = extras;
    m.extra_count = FTI_COUNT(extras);
    text path = write_model(&m, "inputs.gguf");
    ftk_engine *engine = fixture_open(path.s, NULL);
    assert_true(noted(engine, "2 tensors NAME.input_scale not used: made for activations of"));
    assert_false(noted(engine, "not part of the text model"));
    ftk_engine_close(engine);
    expect_logits(path.s, NULL, TOKENS, wanted, "with input scales");
    free(wanted.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(powers_of_two),
        cmocka_unit_test(powers_of_two_in_fused_tensors),
        cmocka_unit_test(powers_of_two_in_a_tied_embedding),
        cmocka_unit_test(any_cut_and_variant),
        cmocka_unit_test(logits_are_multiplied_once),
        cmocka_unit_test(any_batch),
        cmocka_unit_test(factors_of_another_form),
        cmocka_unit_test(input_scales_are_said),
    };
    return cmocka_run_group_tests_name("test_factors", tests, scratch_setup, scratch_teardown);
}
