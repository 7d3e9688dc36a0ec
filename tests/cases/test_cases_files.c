/*
 * test_cases_files.c: reported cases of section B: model files that are split, cut, odd
 * or lying. What tests/gguf covers in depth is not repeated here; these are the reports'
 * own inputs, opened the way an application does.
 */
#include "cases/case_files.h"

#include <sys/resource.h>

#define A(suffix) "qwen35moe." suffix

static void b1_any_shard_may_be_given(void **state) {
    (void)state;
    const int32_t ids[] = {7, 40, 3, 99, 250};
    float *wanted = NULL;
    write_shards(0);
    for (uint32_t given = 1; given <= 3; given++) {
        ftk_engine *engine = fixture_open(shard_name(given).s, NULL);
        float *found = fixture_logits(engine, ids, FTI_COUNT(ids), 0);
        size_t bytes = FTI_COUNT(ids) * ftk_engine_vocabulary(engine) * sizeof *found;
        if (wanted) assert_memory_equal(found, wanted, bytes);
        ftk_engine_close(engine);
        free(wanted);
        wanted = found;
    }
    free(wanted);
}

static void b3_faulty_shards_are_named(void **state) {
    (void)state;
    assert_int_equal(case_expect_refused("b3"), 5);
}

static void b4_cut_files_are_refused(void **state) {
    (void)state;
    assert_int_equal(case_expect_refused("b4"), 3);
}

static void b7_rows_that_blocks_do_not_fill(void **state) {
    (void)state;
    assert_int_equal(case_expect_refused("b7"), 1);
}

/* What is left of a message without its path and numbers. */
static text kind_of(const char *message) {
    text t = {{0}};
    size_t n = 0;
    for (const char *p = strchr(message, ':'); *p && n + 1 < sizeof t.s; p++)
        if (*p < '0' || *p > '9') t.s[n++] = *p;
    return t;
}

static text version_message(uint64_t version) {
    const case_file c = {.number = version};
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = NULL;
    text path = of_version(&c);
    assert_int_equal(fixture_try_open(path.s, NULL, 0, &engine, &err), FTK_E_CKPT_VERSION);
    return kind_of(err.message);
}

static void b9_three_messages_about_versions(void **state) {
    (void)state;
    assert_int_equal(case_expect_refused("b9"), 5);
    text old = version_message(1), recent = version_message(4), swapped = version_message(3u << 24);
    assert_string_not_equal(old.s, recent.s);
    assert_string_not_equal(old.s, swapped.s);
    assert_string_not_equal(recent.s, swapped.s);
    assert_string_equal(old.s, version_message(0).s);
}

static void b10_nothing_where_something_must_be(void **state) {
    (void)state;
    assert_int_equal(case_expect_refused("b10"), 9);
}

/* ---- B12: a bank of experts beyond 2^32 bytes and 2^31 elements ---- */

#define EXPERTS 1024u
#define EXPERT  1023u /* the only one, beside the first, that has weights or a router row */

static fti_synth_model two_experts(void) {
    fti_synth_model m = toy_model();
    m.dims.hidden = 1024;
    m.dims.layers = 1;
    m.dims.interval = 1;
    m.dims.experts = 2;
    m.dims.used = 1;
    m.dims.ff = 2048;
    return m;
}

/* The banks and the router: what grows with the number of experts. */
static bool has_experts(const fti_edit_tensor *t) {
    return strstr(t->name, "_exps.weight") || strcmp(t->name, "blk.0.ffn_gate_inp.weight") == 0;
}

static uint64_t large_bytes(const fti_edit_tensor *t) {
    uint64_t bytes = has_experts(t) ? t->bytes / 2 * EXPERTS : t->bytes;
    return (bytes + 31) / 32 * 32;
}

/* The first expert and its row of the router become 0, as those that the large model has
 * between the first and the last are: so both models choose alike. */
static void silence_first_expert(const fti_gguf_edit *e) {
    for (size_t i = 0; i < e->count; i++)
        if (has_experts(&e->tensors[i])) memset(e->tensors[i].data, 0, e->tensors[i].bytes / 2);
}

static unsigned char *find(unsigned char *file, size_t size, const char *string) {
    fti_gguf_writer w = {0};
    fti_gw_string(&w, string);
    unsigned char *at = memmem(file, size, w.data, w.size);
    assert_non_null(at);
    fti_gw_free(&w);
    return at;
}

/* The header of the small file, with the large number of experts, and records of the large
 * tensors. */
static void put_header(fti_gguf_writer *w, const fti_gguf_edit *e, const char *small) {
    static const uint32_t experts = EXPERTS;
    size_t size;
    uint64_t offset = 0;
    unsigned char *file = read_file(small, &size);
    memcpy(find(file, size, A("expert_count")) + 8 + strlen(A("expert_count")) + 4, &experts, 4);
    fti_gw_raw(w, file, (size_t)(find(file, size, e->tensors[0].name) - file));
    free(file);
    for (size_t i = 0; i < e->count; i++) {
        const fti_edit_tensor *t = &e->tensors[i];
        uint64_t dims[4];
        memcpy(dims, t->dims, sizeof dims);
        if (has_experts(t)) dims[t->n_dims - 1] = EXPERTS;
        fti_gw_tensor(w, t->name, t->n_dims, dims, t->type, offset);
        offset += large_bytes(t);
    }
    fti_gw_pad(w, 32);
}

static void put(int fd, const void *data, uint64_t size, uint64_t at) {
    assert_int_equal(pwrite(fd, data, (size_t)size, (off_t)at), (ssize_t)size);
}

/* Everything but the last expert of a bank stays a hole. */
static void put_tensor(int fd, const fti_edit_tensor *t, uint64_t at) {
    uint64_t one = t->bytes / 2;
    if (has_experts(t))
        put(fd, t->data + one, one, at + EXPERT * one);
    else
        put(fd, t->data, t->bytes, at);
}

static void write_large(const fti_gguf_edit *e, const char *small, const char *path) {
    fti_gguf_writer w = {0};
    put_header(&w, e, small);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    put(fd, w.data, w.size, 0);
    uint64_t at = w.size;
    for (size_t i = 0; i < e->count; at += large_bytes(&e->tensors[i++]))
        put_tensor(fd, &e->tensors[i], at);
    assert_int_equal(ftruncate(fd, (off_t)at), 0);
    assert_int_equal(close(fd), 0);
    fti_gw_free(&w);
}

#define ROWS 12

static float *logits_of(const char *path, uint64_t least_bytes) {
    int32_t ids[ROWS];
    for (int32_t i = 0; i < ROWS; i++) ids[i] = (i * 37 + 11) % 290;
    /* Left to itself an engine maps no file that is larger than this machine. */
    const char *const mapped[] = {"moe.residency", "off", NULL};
    ftk_engine *engine = fixture_open(path, mapped);
    float *logits = fixture_logits(engine, ids, ROWS, 5);
    char *json;
    assert_int_equal(ftk_engine_memory(engine, &json, NULL), FTK_OK);
    json_t *memory = json_loads(json, 0, NULL);
    assert_true((uint64_t)json_integer_value(json_object_get(memory, "weights_mapped")) >=
                least_bytes);
    json_decref(memory);
    ftk_report_free(json);
    ftk_engine_close(engine);
    return logits;
}

static bool vary(const float *logits, size_t count) {
    for (size_t i = 1; i < count; i++)
        if (logits[i] != logits[0]) return true;
    return false;
}

/* Three banks of 8 GiB, whose last expert begins beyond 2^32 bytes: what it computes must
 * be what it computes in a small file. */
static void b12_experts_beyond_four_gib(void **state) {
    (void)state;
    fti_synth_model m = two_experts();
    text small = write_model(&m, "two.gguf"), same = in_scratch("same.gguf");
    text large = in_scratch("large.gguf");
    fti_gguf_edit e = fti_ge_load(small.s);
    silence_first_expert(&e);
    fti_ge_save(&e, same.s);
    write_large(&e, small.s, large.s);
    float *wanted = logits_of(same.s, 0), *found = logits_of(large.s, 3ull << 33);
    size_t count = (size_t)ROWS * m.dims.vocabulary;
    assert_true(vary(wanted, count));
    assert_memory_equal(found, wanted, count * sizeof *found);

    /* The comparison sees the experts: without the last one it fails. */
    for (size_t i = 0; i < e.count; i++)
        if (strstr(e.tensors[i].name, "_exps.weight"))
            memset(e.tensors[i].data, 0, e.tensors[i].bytes);
    fti_ge_save(&e, same.s);
    float *without = logits_of(same.s, 0);
    assert_memory_not_equal(without, wanted, count * sizeof *found);
    fti_ge_free(&e);
    free(wanted);
    free(found);
    free(without);
}

/* ---- B13 ---- */

static long peak_kib(void) {
    struct rusage use;
    assert_int_equal(getrusage(RUSAGE_SELF, &use), 0);
    return use.ru_maxrss;
}

/* Runs first, while the peak of the process is still small. */
static void b13_small_files_that_claim_a_gib(void **state) {
    (void)state;
    long before = peak_kib();
    assert_int_equal(case_expect_refused("b13"), 4);
    assert_in_range(peak_kib() - before, 0, 64 * 1024);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b13_small_files_that_claim_a_gib),
        cmocka_unit_test(b1_any_shard_may_be_given),
        cmocka_unit_test(b3_faulty_shards_are_named),
        cmocka_unit_test(b4_cut_files_are_refused),
        cmocka_unit_test(b7_rows_that_blocks_do_not_fill),
        cmocka_unit_test(b9_three_messages_about_versions),
        cmocka_unit_test(b10_nothing_where_something_must_be),
        cmocka_unit_test(b12_experts_beyond_four_gib),
    };
    return cmocka_run_group_tests_name("test_cases_files", tests, scratch_setup, scratch_teardown);
}
