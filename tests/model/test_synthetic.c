/*
 * test_synthetic.c: models that no trained file gives: large shapes, every tensor
 * type, odd head counts, MTP blocks, tied embeddings, metadata in every width. The
 * weights are random, so what is held is what must be equal or close.
 */
#include "support/model_runs.h"

#include <sys/statvfs.h>
#include <time.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define A(suffix) "qwen35moe." suffix

/* ---- models and what they compute ---- */

static logits run_model(const fti_synth_model *m, const char *const *settings, size_t tokens) {
    text path = write_model(m, "model.gguf");
    logits l = run_file(path.s, settings, tokens);
    unlink(path.s);
    return l;
}

static uint64_t generate_hash(ftk_engine *engine, uint32_t tokens) {
    int32_t ids[7];
    fill_ids(ids, FTI_COUNT(ids), ftk_engine_vocabulary(engine));
    ftk_error err = FTK_ERROR_INIT;
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
    options.max_tokens = tokens;
    options.ignore_end = 1;
    if (ftk_generate(engine, ids, FTI_COUNT(ids), &options, &result, &err) != FTK_OK)
        fail_msg("%s", err.message);
    assert_int_equal(result.tokens, tokens);
    assert_int_equal(result.finish, FTK_FINISH_LENGTH);
    return result.hash;
}

/* ---- the writer itself ---- */

static void assert_same_file(const char *a, const char *b, bool same) {
    size_t n, m;
    unsigned char *x = read_file(a, &n), *y = read_file(b, &m);
    if ((n == m && memcmp(x, y, n) == 0) != same)
        fail_msg("%s and %s are %s", a, b, same ? "different" : "equal");
    free(x);
    free(y);
}

static void bytes_follow_from_seed_and_shape(void **state) {
    (void)state;
    fti_synth_model m = small_model();
    m.threads = 1;
    text one = write_model(&m, "one.gguf");
    m.threads = 5;
    text five = write_model(&m, "five.gguf");
    assert_same_file(one.s, five.s, true);
    m.seed = 2;
    text other = write_model(&m, "other.gguf");
    assert_same_file(one.s, other.s, false);
    m.dims.vocabulary = 281;
    ftk_error err = FTK_ERROR_INIT;
    expect_status(fti_synth_write(&m, other.s, &err), FTK_E_ARGUMENT, &err, "vocabulary of 281");
    m = small_model();
    m.dims.ff = 100;
    expect_status(fti_synth_write(&m, other.s, &err), FTK_E_ARGUMENT, &err, "rows of 100");
    m = small_model();
    expect_status(fti_synth_write(&m, "/dev/full/x", &err), FTK_E_IO, &err, "cannot create");
}

/* ---- medium: the layer shapes of 35B-A3B ---- */

#define MEDIUM_TOKENS (SANITIZED ? 9u : 24u)

static void check_memory_report(const ftk_engine *engine, uint64_t weights) {
    json_t *m = report(ftk_engine_memory, engine);
    assert_int_equal(json_number(m, "weights_allocated"), 0);
    assert_int_equal(json_number(m, "weights_mapped"), weights);
    assert_int_equal(json_number(m, "allocated"), json_number(m, "total"));
    uint64_t parts = json_number(m, "kv_cache") + json_number(m, "recurrent_state") +
                     json_number(m, "workspace") + json_number(m, "step_buffers");
    assert_int_equal(json_number(m, "total"), parts);
    json_decref(m);
}

/* Bytes of a line of /proc/self/status. */
static uint64_t status_bytes(const char *key) {
    char line[256];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) kib = strtoull(line + strlen(key) + 1, NULL, 10);
    assert_int_equal(fclose(f), 0);
    assert_true(kib > 0);
    return kib * 1024;
}

/* The file's pages are resident once, and no copy of them is. */
static void check_resident(uint64_t file_bytes) {
    if (SANITIZED) return; /* shadow memory counts too */
    uint64_t anonymous = status_bytes("RssAnon"), highest = status_bytes("VmHWM");
    print_message("medium: %llu MB file, %llu MB anonymous, %llu MB at most\n",
                  (unsigned long long)file_bytes / 1000000, (unsigned long long)anonymous / 1000000,
                  (unsigned long long)highest / 1000000);
    assert_true(anonymous < file_bytes / 3);
    assert_true(highest < file_bytes + file_bytes / 3);
}

static void check_medium_chunks(const char *path) {
    const char *const two[] = {"backend.threads", "2", NULL};
    const char *const one[] = {"backend.threads", "1", NULL};
    ftk_engine *engine = fixture_open(path, two);
    counts_expect_threads(engine, 2);
    logits whole = run(engine, MEDIUM_TOKENS, 0);
    logits ones = run(engine, MEDIUM_TOKENS, 1), sevens = run(engine, MEDIUM_TOKENS, 7);
    assert_true(all_finite(whole));
    assert_true(deviation(whole) > 0.01);
    assert_same_bits(ones, whole, "chunks of 1");
    assert_same_bits(sevens, whole, "chunks of 7");
    ftk_engine_close(engine);
    logits single = run_file(path, one, MEDIUM_TOKENS);
    assert_same_bits(single, whole, "one thread");
    free(whole.data);
    free(ones.data);
    free(sevens.data);
    free(single.data);
}

static void medium_model(void **state) {
    (void)state;
    struct statvfs fs;
    assert_int_equal(statvfs(scratch, &fs), 0);
    if ((uint64_t)fs.f_bavail * fs.f_frsize < 3000000000u) {
        print_message("skip: medium file: %s has %.1f GB free, 3 GB are needed\n", scratch,
                      (double)fs.f_bavail * (double)fs.f_frsize * 1e-9);
        skip();
    }
    fti_synth_model m = fti_synth_medium();
    text path = write_model(&m, "medium.gguf");
    struct stat st;
    assert_int_equal(stat(path.s, &st), 0);
    assert_in_range(st.st_size, 1350000000, 1450000000);

    ftk_engine *engine = fixture_open(path.s, NULL);
    check_memory_report(engine, sum_of_tensors(path.s));
    assert_int_equal(generate_hash(engine, SANITIZED ? 4 : 16),
                     generate_hash(engine, SANITIZED ? 4 : 16));
    check_memory_report(engine, sum_of_tensors(path.s));
    ftk_engine_close(engine);
    check_resident((uint64_t)st.st_size);
    check_medium_chunks(path.s);
    check_resident((uint64_t)st.st_size);
    unlink(path.s);
}

/* ---- speed of opening ---- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void demo_model_opens_fast(void **state) {
    (void)state;
    double best = INFINITY, limit = SANITIZED ? 2.0 : 0.2;
    for (int i = 0; i < 5; i++) {
        double start = seconds();
        ftk_engine *engine = fixture_open(DEMO_MODEL, NULL);
        double took = seconds() - start;
        if (took < best) best = took;
        ftk_engine_close(engine);
    }
    print_message("opening the demo model: %.3f s, best of 5\n", best);
    if (!(best < limit)) fail_msg("%.3f s, wanted less than %.1f s", best, limit);
}

/* ---- types ---- */

static const struct {
    const char *name;
    uint32_t type;
} types[] = {{"F32", FTK_TYPE_F32},   {"F16", FTK_TYPE_F16},   {"BF16", FTK_TYPE_BF16},
             {"Q8_0", FTK_TYPE_Q8_0}, {"Q4_K", FTK_TYPE_Q4_K}, {"Q5_K", FTK_TYPE_Q5_K},
             {"Q6_K", FTK_TYPE_Q6_K}};
static const char *const classes[FTI_SYNTH_CLASSES] = {
    "embedding", "output", "attention", "linear", "alpha_beta", "gate_up", "down", "shared"};

/* Logits are those of a live model, and do not depend on the cut of the prompt. */
static void check_type(const fti_synth_model *m, const char *what) {
    text path = write_model(m, "type.gguf");
    ftk_engine *engine = fixture_open(path.s, NULL);
    logits whole = run(engine, 9, 0), cut = run(engine, 9, 2);
    if (!all_finite(whole)) fail_msg("%s: logits are not finite", what);
    double d = deviation(whole);
    if (!(d > 0.2 && d < 50)) fail_msg("%s: logits deviate by %.3g from their mean", what, d);
    assert_same_bits(cut, whole, what);
    ftk_engine_close(engine);
    free(whole.data);
    free(cut.data);
}

static void every_type_of_every_class(void **state) {
    (void)state;
    for (int c = 0; c < FTI_SYNTH_CLASSES; c++)
        for (size_t t = 0; t < FTI_COUNT(types); t++) {
            fti_synth_model m = small_model();
            m.types[c] = types[t].type;
            text what = format("%s as %s", classes[c], types[t].name);
            check_type(&m, what.s);
        }
}

static void every_type_throughout(void **state) {
    (void)state;
    for (size_t t = 0; t < FTI_COUNT(types); t++) {
        fti_synth_model m = small_model();
        all_types(&m, types[t].type);
        check_type(&m, types[t].name);
    }
}

/* Exact mode rounds activations for block types only, and keys and values to
 * F16: with float weights little is left between it and float mode. */
static void exact_mode_is_near_float_mode(void **state) {
    (void)state;
    const struct {
        uint32_t type;
        double tolerance; /* in deviations of the logits */
    } cases[] = {{FTK_TYPE_F32, 0.005}, {FTK_TYPE_BF16, 0.005}, {FTK_TYPE_Q8_0, 0.5}};
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        fti_synth_model m = small_model();
        /* All experts: which ones are chosen cannot flip. */
        m.dims.used = m.dims.experts;
        all_types(&m, cases[i].type);
        logits exact = run_model(&m, NULL, 24), floats = run_model(&m, float_mode, 24);
        double d = largest_difference(exact, floats) / deviation(floats);
        print_message("type %u: exact and float mode differ by %.2e deviations at most\n",
                      cases[i].type, d);
        assert_true(d > 0);
        assert_true(d < cases[i].tolerance);
        free(exact.data);
        free(floats.data);
    }
}

/* ---- variants of the file ---- */

static void a1_mtp_block_is_left_out(void **state) {
    (void)state;
    fti_synth_model m = small_model();
    text path = write_model(&m, "model.gguf");
    ftk_engine *engine = fixture_open(path.s, NULL);
    assert_int_equal(ftk_engine_layers(engine), 4);
    assert_false(noted(engine, "MTP"));
    assert_false(noted(engine, "not used"));
    logits without = run(engine, 24, 0);
    uint64_t hash = generate_hash(engine, 16);
    ftk_engine_close(engine);

    /* With its keys, and with its tensors alone. */
    const fti_synth_meta no_key[] = {
        {.key = A("block_count"), .type = FTI_SYNTH_U32, .number = 4},
        {.key = A("nextn_predict_layers"), .type = FTI_SYNTH_LEFT_OUT}};
    m.mtp_blocks = 1;
    for (int keys = 1; keys >= 0; keys--) {
        m.metas = keys ? NULL : no_key;
        m.meta_count = keys ? 0 : FTI_COUNT(no_key);
        path = write_model(&m, "mtp.gguf");
        engine = fixture_open(path.s, NULL);
        assert_int_equal(ftk_engine_layers(engine), 4);
        assert_int_equal(noted(engine, "1 MTP block (blk.4 up)"), keys);
        assert_true(noted(engine, "20 of 96 tensors are not part of the text model"));
        logits with = run(engine, 24, 0);
        assert_same_bits(with, without, keys ? "with an MTP block" : "with its tensors");
        assert_int_equal(generate_hash(engine, 16), hash);
        ftk_engine_close(engine);
        free(with.data);
    }
    free(without.data);
}

/* Makes the output matrix of a file, of the same type and shape, equal to its
 * embedding. */
static void copy_embedding(const char *path) {
    ftk_error err = FTK_ERROR_INIT;
    fti_checkpoint *c;
    size_t size, from, to;
    if (fti_checkpoint_open(path, &c, &err) != FTK_OK) fail_msg("%s", err.message);
    assert_true(fti_checkpoint_find_tensor(c, fti_str("token_embd.weight"), &from));
    assert_true(fti_checkpoint_find_tensor(c, fti_str("output.weight"), &to));
    const fti_tensor *source = fti_checkpoint_tensor(c, from),
                     *target = fti_checkpoint_tensor(c, to);
    assert_int_equal(source->bytes, target->bytes);
    unsigned char *data = read_file(path, &size);
    memcpy(data + target->offset, data + source->offset, source->bytes);
    fti_checkpoint_close(c);
    write_file(path, data, size, 0644);
    free(data);
}

static void a6_tied_embeddings(void **state) {
    (void)state;
    const fti_synth_edit edit = {.name = "output.weight", .left_out = 1};
    fti_synth_model m = small_model();
    m.edits = &edit;
    m.edit_count = 1;
    text path = write_model(&m, "tied.gguf");
    ftk_engine *engine = fixture_open(path.s, NULL);
    assert_true(noted(engine, "no output.weight"));
    json_t *memory = report(ftk_engine_memory, engine);
    assert_int_equal(json_number(memory, "weights_mapped"), sum_of_tensors(path.s));
    json_decref(memory);
    logits tied = run(engine, 9, 0);
    assert_true(all_finite(tied));
    ftk_engine_close(engine);

    m = small_model();
    m.types[FTI_SYNTH_OUTPUT] = m.types[FTI_SYNTH_EMBEDDING];
    path = write_model(&m, "twin.gguf");
    copy_embedding(path.s);
    logits twin = run_file(path.s, NULL, 9);
    assert_same_bits(tied, twin, "tied");
    free(tied.data);
    free(twin.data);
}

static void unknown_tensors_are_noted(void **state) {
    (void)state;
    const fti_synth_extra extras[] = {{"v.patch_embd.weight", FTK_TYPE_F16, 32, 8},
                                      {"mm.0.weight", FTK_TYPE_Q8_0, 64, 4},
                                      {"blk.0.attn_qkv.scale", FTK_TYPE_F32, 1, 0}};
    fti_synth_model m = small_model();
    logits without = run_model(&m, NULL, 9);
    m.extras = extras;
    m.extra_count = FTI_COUNT(extras);
    text path = write_model(&m, "extras.gguf");
    ftk_engine *engine = fixture_open(path.s, NULL);
    assert_true(noted(engine, "2 of 79 tensors are not part of the text model"));
    assert_true(noted(engine, "1 tensor NAME.scale not used"));
    logits with = run(engine, 9, 0);
    assert_same_bits(with, without, "with unknown tensors");
    ftk_engine_close(engine);
    free(with.data);
    free(without.data);
}

/* A list of kinds decides, whatever the interval says. */
static void listed_layer_kinds(void **state) {
    (void)state;
    const uint64_t kinds[] = {1, 0, 1, 0};
    const fti_synth_meta metas[] = {
        {.key = A("attention.recurrent_layers"),
         .type = FTI_SYNTH_ARRAY,
         .element_type = FTI_SYNTH_BOOL,
         .elements = kinds,
         .count = 4},
        {.key = A("full_attention_interval"), .type = FTI_SYNTH_U32, .number = 4}};
    fti_synth_model m = small_model();
    m.dims.interval = 2;
    logits by_interval = run_model(&m, NULL, 9);
    m.metas = metas;
    m.meta_count = FTI_COUNT(metas);
    logits by_list = run_model(&m, NULL, 9);
    assert_same_bits(by_list, by_interval, "listed kinds");
    free(by_list.data);
    free(by_interval.data);
}

static void integers_of_every_width(void **state) {
    (void)state;
    const uint32_t widths[] = {FTI_SYNTH_U16, FTI_SYNTH_I32, FTI_SYNTH_U64};
    fti_synth_model m = small_model();
    m.mtp_blocks = 1;
    logits wanted = run_model(&m, NULL, 9);
    for (size_t i = 0; i < FTI_COUNT(widths); i++) {
        m.integer_type = widths[i];
        logits found = run_model(&m, NULL, 9);
        assert_same_bits(found, wanted, "another width");
        free(found.data);
    }
    free(wanted.data);
}

/* Tensors that do not lie as the backend wants them are copied, and counted. */
static void unaligned_tensors_are_copied(void **state) {
    (void)state;
    fti_synth_model m = small_model();
    logits wanted = run_model(&m, NULL, 9);
    m.alignment = 1;
    text path = write_model(&m, "unaligned.gguf");
    ftk_engine *engine = fixture_open(path.s, NULL);
    logits found = run(engine, 9, 0);
    assert_same_bits(found, wanted, "alignment 1");
    assert_true(copied_weights(engine, path.s) > 0);
    ftk_engine_close(engine);
    free(found.data);
    free(wanted.data);
}

/* ---- order of the value heads ---- */

/* r = 2 and K = 3: with r = K, or K = 1, a wrong rule could go unnoticed. */
#define KEY_HEADS   3u
#define PER_KEY     2u
#define VALUE_HEADS (KEY_HEADS * PER_KEY)
#define STATE       32u
#define KEY_ROWS    (2 * KEY_HEADS * STATE) /* of attn_qkv, before the values */

static fti_synth_model uneven_model(void) {
    fti_synth_model m = small_model();
    m.dims = (fti_synth_dims){.hidden = 64,
                              .layers = 4,
                              .experts = 4,
                              .used = 4,
                              .ff = 32,
                              .shared_ff = 32,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 16,
                              .rope_dim = 8,
                              .key_heads = KEY_HEADS,
                              .value_heads = VALUE_HEADS,
                              .state = STATE,
                              .conv = 4,
                              .interval = 4,
                              .vocabulary = 320,
                              .context = 4096};
    all_types(&m, FTK_TYPE_F32);
    return m;
}

/* Moves `count` units of `unit` floats each from the order of the file (tiled:
 * head s * K + g) to the grouped one (head g * r + s), a head being `per_head`
 * units. */
static void to_grouped(float *data, size_t per_head, size_t unit) {
    size_t head = per_head * unit;
    float *copy = malloc(VALUE_HEADS * head * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, data, VALUE_HEADS * head * sizeof *copy);
    for (size_t g = 0; g < KEY_HEADS; g++)
        for (size_t s = 0; s < PER_KEY; s++)
            memcpy(data + (g * PER_KEY + s) * head, copy + (s * KEY_HEADS + g) * head,
                   head * sizeof *copy);
    free(copy);
}

typedef struct reordering {
    const char *suffix;
    size_t first;    /* floats before the first value head */
    size_t per_head; /* rows, or columns */
    size_t unit;     /* floats of one */
    bool columns;    /* of every row */
} reordering;

static void reorder_tensor(unsigned char *file, const fti_tensor *t, const reordering *r) {
    float *data = (float *)(void *)(file + t->offset);
    if (!r->columns) {
        to_grouped(data + r->first, r->per_head, r->unit);
        return;
    }
    for (uint64_t row = 0; row < t->dims[1]; row++)
        to_grouped(data + row * t->dims[0], r->per_head, r->unit);
}

static void reorder_file(const char *path) {
    static const reordering reorderings[] = {
        {"attn_qkv.weight", (size_t)KEY_ROWS * 64, STATE, 64, false},
        {"attn_gate.weight", 0, STATE, 64, false},
        {"ssm_alpha.weight", 0, 1, 64, false},
        {"ssm_beta.weight", 0, 1, 64, false},
        {"ssm_a", 0, 1, 1, false},
        {"ssm_dt.bias", 0, 1, 1, false},
        {"ssm_conv1d.weight", (size_t)KEY_ROWS * 4, STATE, 4, false},
        {"ssm_out.weight", 0, STATE, 1, true},
    };
    ftk_error err = FTK_ERROR_INIT;
    fti_checkpoint *c;
    size_t size, index;
    unsigned char *data = read_file(path, &size);
    if (fti_checkpoint_open(path, &c, &err) != FTK_OK) fail_msg("%s", err.message);
    for (int layer = 0; layer < 3; layer++)
        for (size_t i = 0; i < FTI_COUNT(reorderings); i++) {
            text name = format("blk.%d.%s", layer, reorderings[i].suffix);
            assert_true(fti_checkpoint_find_tensor(c, fti_str(name.s), &index));
            reorder_tensor(data, fti_checkpoint_tensor(c, index), &reorderings[i]);
        }
    fti_checkpoint_close(c);
    write_file(path, data, size, 0644);
    free(data);
}

static logits run_reordered(bool flag, bool say_so) {
    const fti_synth_meta meta = {
        .key = A("ssm.v_head_reordered"), .type = FTI_SYNTH_BOOL, .number = !flag};
    fti_synth_model m = uneven_model();
    m.metas = &meta;
    m.meta_count = say_so;
    text path = write_model(&m, "reordered.gguf");
    reorder_file(path.s);
    return run_file(path.s, float_mode, 24);
}

static void a12_value_heads_in_either_order(void **state) {
    (void)state;
    fti_synth_model m = uneven_model();
    logits tiled = run_model(&m, float_mode, 24);
    logits grouped = run_reordered(true, true);
    logits misread = run_reordered(false, true), unsaid = run_reordered(false, false);
    print_message("value heads: grouped differs by %.2e, misread by %.2e\n",
                  largest_difference(grouped, tiled), largest_difference(misread, tiled));
    assert_true(largest_difference(grouped, tiled) < 1e-4);
    assert_true(largest_difference(misread, tiled) > 0.1);
    assert_same_bits(unsaid, misread, "without the key");
    free(tiled.data);
    free(grouped.data);
    free(misread.data);
    free(unsaid.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_follow_from_seed_and_shape),
        cmocka_unit_test(demo_model_opens_fast),
        cmocka_unit_test(every_type_of_every_class),
        cmocka_unit_test(every_type_throughout),
        cmocka_unit_test(exact_mode_is_near_float_mode),
        cmocka_unit_test(a1_mtp_block_is_left_out),
        cmocka_unit_test(a6_tied_embeddings),
        cmocka_unit_test(unknown_tensors_are_noted),
        cmocka_unit_test(listed_layer_kinds),
        cmocka_unit_test(integers_of_every_width),
        cmocka_unit_test(unaligned_tensors_are_copied),
        cmocka_unit_test(a12_value_heads_in_either_order),
        cmocka_unit_test(medium_model),
    };
    return cmocka_run_group_tests_name("test_synthetic", tests, scratch_setup, scratch_teardown);
}
