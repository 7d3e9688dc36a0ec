/*
 * test_split.c: models split over several files: whichever shard is given, the whole
 * is opened; what is missing or does not belong is named, all of it at once (cases B1
 * and B3 of public reports).
 */
#include "loader/scratch.h"
#include "support/gguf_edit.h"
#include "support/gguf_writer.h"

#define TENSORS 7u
#define SHARDS  3u

/* Tensors of each shard: the first may hold metadata alone. */
static const size_t usual[SHARDS] = {2, 3, 2};

/* The whole model as one file: seven tensors of different types and sizes. */
static text whole_model(const char *name, const char *model) {
    static const struct {
        const char *name;
        uint32_t type;
        uint64_t dims[2];
    } tensors[TENSORS] = {
        {"token_embd.weight", FTK_TYPE_Q8_0, {64, 5}}, {"norm.weight", FTK_TYPE_F32, {9, 1}},
        {"blk.0.a.weight", FTK_TYPE_Q4_K, {256, 3}},   {"blk.0.b.weight", FTK_TYPE_F16, {5, 5}},
        {"blk.1.a.weight", FTK_TYPE_Q6_K, {512, 2}},   {"blk.1.b.weight", FTK_TYPE_BF16, {33, 1}},
        {"output.weight", FTK_TYPE_Q4_0, {96, 4}}};
    fti_gguf_writer w = {0};
    text path = in_scratch(name);
    uint64_t offset = 0;
    fti_gw_header(&w, 3, TENSORS, 3);
    fti_gw_text(&w, "general.architecture", "toy");
    fti_gw_text(&w, "general.name", model);
    fti_gw_integer(&w, "general.quantization_version", FTI_META_U32, 2);
    for (size_t i = 0; i < TENSORS; i++) {
        uint32_t elements, bytes;
        assert_true(fti_type_block(tensors[i].type, &elements, &bytes));
        fti_gw_tensor(&w, tensors[i].name, 2, tensors[i].dims, tensors[i].type, offset);
        offset += (tensors[i].dims[0] / elements * bytes * tensors[i].dims[1] + 31) / 32 * 32;
    }
    fti_gw_pad(&w, 32);
    for (uint64_t i = 0; i < offset; i++) fti_gw_u8(&w, (uint8_t)(i * 131 + i / 256));
    write_file(path.s, w.data, w.size, 0644);
    fti_gw_free(&w);
    return path;
}

static text shard_path(const char *prefix, uint32_t number, uint32_t count) {
    return format("%s/%s-%05u-of-%05u.gguf", scratch, prefix, number + 1, count);
}

typedef struct split_plan {
    const char *prefix;
    const size_t *sizes;
    uint32_t tensors;      /* that the shards state, 0: as many as there are */
    uint32_t alignment[4]; /* of each, 0: the default */
    const char *name;      /* that later shards state */
} split_plan;

static void split(const fti_gguf_edit *e, uint32_t shards, split_plan p) {
    size_t first = 0;
    for (uint32_t i = 0; i < shards; i++) {
        fti_edit_shard shard = {.number = i,
                                .shards = shards,
                                .tensors = p.tensors ? p.tensors : (uint32_t)e->count,
                                .first = first,
                                .count = p.sizes[i],
                                .alignment = p.alignment[i],
                                .name = p.name};
        fti_ge_save_shard(e, &shard, shard_path(p.prefix, i, shards).s);
        first += p.sizes[i];
    }
}

static fti_checkpoint *open_ok(const char *path) {
    fti_checkpoint *c;
    ftk_error err = FTK_ERROR_INIT;
    if (fti_checkpoint_open(path, &c, &err) != FTK_OK) fail_msg("%s", err.message);
    return c;
}

/* The message must hold every piece, up to a NULL. */
static void refused(const char *path, ftk_status status, const char *const *pieces) {
    fti_checkpoint *c = (fti_checkpoint *)(uintptr_t)1;
    ftk_error err = FTK_ERROR_INIT;
    size_t descriptors = open_descriptors();
    ftk_status found = fti_checkpoint_open(path, &c, &err);
    for (; *pieces; pieces++) expect_status(found, status, &err, *pieces);
    assert_null(c);
    assert_int_equal(open_descriptors(), descriptors);
}
#define REFUSED(path, status, ...) refused(path, status, (const char *const[]){__VA_ARGS__, NULL})

/* Everything of `c` but its place in files equals what `e` was made from. */
static void assert_whole(const fti_checkpoint *c, fti_gguf_edit *e, const size_t *sizes) {
    size_t shard = 0, left = sizes[0];
    assert_int_equal(fti_checkpoint_tensor_count(c), e->count);
    for (size_t i = 0; i < e->count; i++) {
        const fti_tensor *t = fti_checkpoint_tensor(c, i);
        const fti_edit_tensor *wanted = &e->tensors[i];
        size_t found;
        assert_true(fti_str_is(t->name, wanted->name));
        assert_int_equal(t->type, wanted->type);
        assert_memory_equal(t->dims, wanted->dims, sizeof t->dims);
        assert_int_equal(t->bytes, wanted->bytes);
        assert_memory_equal(fti_checkpoint_payload(c, i), wanted->data, wanted->bytes);
        assert_true(fti_checkpoint_find_tensor(c, t->name, &found));
        assert_int_equal(found, i);
        for (; left == 0; left = sizes[shard]) shard++;
        assert_int_equal(t->shard, shard);
        left--;
    }
    ftk_str name;
    assert_int_equal(fti_meta_get_str(c, fti_str("general.architecture"), &name, NULL), FTK_OK);
    assert_true(fti_str_is(name, "toy"));
}

static uint64_t size_of(const char *path) {
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}

/* B1: whichever shard is handed over. Every one has its own alignment. */
static void b1_any_shard_opens_the_whole(void **state) {
    (void)state;
    static const size_t sizes[][SHARDS] = {{2, 3, 2}, {0, 1, 6}, {7, 0, 0}};
    fti_gguf_edit e = fti_ge_load(whole_model("whole.gguf", "toy").s);
    for (size_t v = 0; v < FTI_COUNT(sizes); v++) {
        split(&e, SHARDS, (split_plan){"m", sizes[v], 0, {0, 64, 1}, NULL});
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < SHARDS; i++) bytes += size_of(shard_path("m", i, SHARDS).s);
        for (uint32_t given = 0; given < SHARDS; given++) {
            fti_checkpoint *c = open_ok(shard_path("m", given, SHARDS).s);
            assert_whole(c, &e, sizes[v]);
            assert_string_equal(fti_checkpoint_path(c), shard_path("m", 0, SHARDS).s);
            assert_int_equal(fti_checkpoint_file_bytes(c), bytes);
            assert_int_equal(fti_checkpoint_shard_count(c), SHARDS);
            fti_checkpoint_close(c);
        }
    }
    fti_ge_free(&e);
}

/* A path without a folder is searched in the current one. */
static void relative_paths(void **state) {
    (void)state;
    char before[4096];
    fti_gguf_edit e = fti_ge_load(whole_model("whole.gguf", "toy").s);
    split(&e, SHARDS, (split_plan){"r", usual, 0, {0}, NULL});
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(scratch), 0);
    fti_checkpoint *c = open_ok("r-00002-of-00003.gguf");
    assert_whole(c, &e, usual);
    fti_checkpoint_close(c);
    assert_int_equal(unlink("r-00003-of-00003.gguf"), 0);
    REFUSED("r-00002-of-00003.gguf", FTK_E_CKPT_READ, "searched in './'",
            "3 ('r-00003-of-00003.gguf') is missing");
    assert_int_equal(chdir(before), 0);
    fti_ge_free(&e);
}

static void unsplit_and_single(void **state) {
    (void)state;
    static const size_t all[] = {TENSORS};
    fti_gguf_edit e = fti_ge_load(whole_model("whole.gguf", "toy").s);
    assert_int_equal(fti_checkpoint_shard_count(e.source), 1);
    split(&e, 1, (split_plan){"one", all, 0, {0}, NULL});
    fti_checkpoint *c = open_ok(shard_path("one", 0, 1).s);
    assert_whole(c, &e, all);
    assert_int_equal(fti_checkpoint_shard_count(c), 1);
    fti_checkpoint_close(c);
    fti_ge_free(&e);
}

/* B3: all missing ones at once, with the folder, whichever is given. */
static void b3_missing_shards_are_named(void **state) {
    (void)state;
    static const size_t sizes[] = {2, 2, 2, 1};
    fti_gguf_edit e = fti_ge_load(whole_model("whole.gguf", "toy").s);
    split(&e, 4, (split_plan){"x", sizes, 0, {0}, NULL});
    unlink(shard_path("x", 1, 4).s);
    unlink(shard_path("x", 3, 4).s);
    text folder = format("searched in '%s/'", scratch);
    for (uint32_t given = 0; given < 4; given += 2)
        REFUSED(shard_path("x", given, 4).s, FTK_E_CKPT_READ, "2 of 4 shards are at fault",
                folder.s, "2 ('x-00002-of-00004.gguf') is missing",
                "4 ('x-00004-of-00004.gguf') is missing", "fetch them again");
    unlink(shard_path("x", 0, 4).s);
    REFUSED(shard_path("x", 2, 4).s, FTK_E_CKPT_READ, "3 of 4 shards",
            "1 ('x-00001-of-00004.gguf') is missing");
    fti_ge_free(&e);
}

static void many_missing_shards(void **state) {
    (void)state;
    fti_gguf_edit e = fti_ge_load(whole_model("whole.gguf", "toy").s);
    fti_edit_shard first = {0, 65535, TENSORS, 0, TENSORS, 0, NULL};
    text path = format("%s/y-00001-of-65535.gguf", scratch);
    fti_ge_save_shard(&e, &first, path.s);
    REFUSED(path.s, FTK_E_CKPT_READ, "65534 of 65535 shards", "2 ('y-00002-of-65535.gguf')",
            "; and 655", " more: fetch them again");
    fti_ge_free(&e);
}

/* B3: half-downloaded, empty, not a model, not readable as a file. */
static void b3_broken_shards_are_named(void **state) {
    (void)state;
    static const size_t sizes[] = {2, 2, 2, 1};
    size_t size;
    fti_gguf_edit e = fti_ge_load(whole_model("whole.gguf", "toy").s);
    split(&e, 4, (split_plan){"b", sizes, 0, {0}, NULL});
    unsigned char *second = read_file(shard_path("b", 1, 4).s, &size);
    write_file(shard_path("b", 1, 4).s, second, size / 2, 0644);
    REFUSED(shard_path("b", 0, 4).s, FTK_E_CKPT_TRUNCATED, "1 of 4 shards",
            "2 ('b-00002-of-00004.gguf') cannot be used: ", "was cut short", ": fetch it again");
    REFUSED(shard_path("b", 1, 4).s, FTK_E_CKPT_TRUNCATED,
            "b-00002-of-00004.gguf: ", "was cut short");
    write_file(shard_path("b", 2, 4).s, "", 0, 0644);
    unlink(shard_path("b", 3, 4).s);
    make_folder(shard_path("b", 3, 4).s, 0755);
    REFUSED(shard_path("b", 0, 4).s, FTK_E_CKPT_TRUNCATED, "3 of 4 shards", "2 ('b-00002",
            "3 ('b-00003", "4 ('b-00004-of-00004.gguf') cannot be used: is a directory");
    free(second);
    fti_ge_free(&e);
}

/* B3: a shard of another set, as far as a shard tells. */
static void b3_foreign_shards_are_named(void **state) {
    (void)state;
    static const size_t other_sizes[] = {3, 2, 2};
    fti_gguf_edit e = fti_ge_load(whole_model("whole.gguf", "toy").s);
    text first = shard_path("f", 0, SHARDS), second = shard_path("f", 1, SHARDS);
    text fresh = shard_path("g", 1, SHARDS);

    /* Cut elsewhere: tensor blk.0.a.weight is lost, or another occurs twice. */
    split(&e, SHARDS, (split_plan){"f", usual, 0, {0}, NULL});
    split(&e, SHARDS, (split_plan){"g", other_sizes, 0, {0}, NULL});
    assert_int_equal(rename(fresh.s, second.s), 0);
    REFUSED(first.s, FTK_E_CKPT_FORMAT, "hold 6 tensors, wanted 7 (split.tensors.count)");
    split(&e, SHARDS, (split_plan){"f", other_sizes, 0, {0}, NULL});
    split(&e, SHARDS, (split_plan){"g", usual, 0, {0}, NULL});
    assert_int_equal(rename(fresh.s, second.s), 0);
    REFUSED(first.s, FTK_E_CKPT_FORMAT, "hold 8 tensors, wanted 7");

    /* Of a model with more tensors. */
    split(&e, SHARDS, (split_plan){"f", usual, 0, {0}, NULL});
    split(&e, SHARDS, (split_plan){"g", usual, 9, {0}, NULL});
    assert_int_equal(rename(fresh.s, second.s), 0);
    REFUSED(first.s, FTK_E_CKPT_FORMAT, "1 of 3 shards",
            "2 ('f-00002-of-00003.gguf') belongs to a "
            "model of 9 tensors, 'f-00001-of-00003.gguf' to one of 7");

    /* Of another model, which later shards may or may not say. */
    split(&e, SHARDS, (split_plan){"f", usual, 0, {0}, "toy"});
    fti_checkpoint_close(open_ok(first.s));
    split(&e, SHARDS, (split_plan){"f", usual, 0, {0}, "another"});
    REFUSED(first.s, FTK_E_CKPT_FORMAT, "2 of 3 shards", "its general.name is not that of");
    fti_ge_free(&e);
}

/* The same number of tensors in all, but one of them twice. */
static void tensors_in_two_shards(void **state) {
    (void)state;
    static const size_t sizes[] = {2, 3, 2};
    fti_gguf_edit e = fti_ge_load(whole_model("whole.gguf", "toy").s);
    split(&e, SHARDS, (split_plan){"d", sizes, 0, {0}, NULL});
    fti_edit_shard third = {2, SHARDS, TENSORS, 4, 2, 0, NULL};
    fti_ge_save_shard(&e, &third, shard_path("d", 2, SHARDS).s);
    REFUSED(shard_path("d", 0, SHARDS).s, FTK_E_CKPT_FORMAT,
            "tensor 'blk.1.a.weight' is in shard 2 and in shard 3 ('d-00003-of-00003.gguf')");
    fti_ge_free(&e);
}

static void numbers_and_names_disagree(void **state) {
    (void)state;
    fti_gguf_edit e = fti_ge_load(whole_model("whole.gguf", "toy").s);
    split(&e, SHARDS, (split_plan){"n", usual, 0, {0}, NULL});
    text first = shard_path("n", 0, SHARDS), third = shard_path("n", 2, SHARDS);
    /* Two shards changed places. */
    fti_edit_shard wrong = {1, SHARDS, TENSORS, 5, 2, 0, NULL};
    fti_ge_save_shard(&e, &wrong, third.s);
    REFUSED(first.s, FTK_E_CKPT_FORMAT, "3 ('n-00003-of-00003.gguf') says that it is shard 2 of 3");
    wrong = (fti_edit_shard){2, 4, TENSORS, 5, 2, 0, NULL};
    fti_ge_save_shard(&e, &wrong, third.s);
    REFUSED(first.s, FTK_E_CKPT_FORMAT, "says that it is shard 3 of 4");
    REFUSED(third.s, FTK_E_CKPT_READ, "whose name ends in '-00003-of-00004.gguf'");
    /* An unsplit file in the place of a shard. */
    fti_ge_save(&e, third.s);
    REFUSED(first.s, FTK_E_CKPT_FORMAT, "says that it is shard 1 of 1");
    /* Renamed: the others cannot be found. */
    text renamed = in_scratch("model.gguf");
    assert_int_equal(rename(first.s, renamed.s), 0);
    REFUSED(renamed.s, FTK_E_CKPT_READ, "is shard 1 of 3",
            "give the shard whose name ends in "
            "'-00001-of-00003.gguf'");
    fti_ge_free(&e);
}

/* The first shard states the version; the blocks may be in a later one. */
static void quantization_version_holds_for_all(void **state) {
    (void)state;
    fti_gguf_writer w = {0};
    text path = in_scratch("v.gguf");
    uint64_t row[] = {32};
    fti_gw_header(&w, 3, 1, 2);
    fti_gw_text(&w, "general.architecture", "toy");
    fti_gw_integer(&w, "general.quantization_version", FTI_META_U32, 1);
    fti_gw_tensor(&w, "norm", 1, row, FTK_TYPE_F32, 0);
    fti_gw_pad(&w, 32);
    fti_gw_fill(&w, 0, 128);
    write_file(path.s, w.data, w.size, 0644);
    fti_gw_free(&w);
    static const size_t sizes[] = {1, 1};
    fti_gguf_edit e = fti_ge_load(path.s);
    fti_ge_add(&e, "matrix", FTK_TYPE_Q8_0, 1, row, NULL);
    split(&e, 2, (split_plan){"v", sizes, 0, {0}, NULL});
    REFUSED(shard_path("v", 0, 2).s, FTK_E_CKPT_METADATA,
            "'general.quantization_version': found 1, wanted 2");
    fti_ge_free(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b1_any_shard_opens_the_whole),
        cmocka_unit_test(relative_paths),
        cmocka_unit_test(unsplit_and_single),
        cmocka_unit_test(b3_missing_shards_are_named),
        cmocka_unit_test(many_missing_shards),
        cmocka_unit_test(b3_broken_shards_are_named),
        cmocka_unit_test(b3_foreign_shards_are_named),
        cmocka_unit_test(tensors_in_two_shards),
        cmocka_unit_test(numbers_and_names_disagree),
        cmocka_unit_test(quantization_version_holds_for_all),
    };
    return cmocka_run_group_tests_name("test_split", tests, scratch_setup, scratch_teardown);
}
