/*
 * test_checkpoint.c: the checkpoint interface: typed values, the table of tensor
 * types, the demo model's facts, and real files: what is mapped, what is refused,
 * what is left open.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/gguf_writer.h"

#define DEMO FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"

typedef fti_gguf_writer writer;

/* ---- a folder of our own ---- */

typedef struct folder {
    char path[64];
    char file[96]; /* the one name that tests use in it */
} folder;

static int make_folder(void **state) {
    folder *f = calloc(1, sizeof *f);
    if (!f) return -1;
    snprintf(f->path, sizeof f->path, "/tmp/ftk-checkpoint-XXXXXX");
    if (!mkdtemp(f->path)) return -1;
    snprintf(f->file, sizeof f->file, "%s/model.gguf", f->path);
    *state = f;
    return 0;
}

static int remove_folder(void **state) {
    folder *f = *state;
    if (unlink(f->file) != 0) rmdir(f->file);
    int result = rmdir(f->path);
    free(f);
    return result;
}

static void put_file(const char *path, const void *data, size_t size) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)data + done, size - done);
        assert_true(n > 0);
        done += (size_t)n;
    }
    assert_int_equal(close(fd), 0);
}

static void *demo_bytes(size_t *size) {
    struct stat status = {0};
    int fd = open(DEMO, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &status) == 0);
    *size = (size_t)status.st_size;
    void *data = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_true(data != MAP_FAILED);
    close(fd);
    return data;
}

static void refused_path(const char *path, ftk_status wanted, const char *piece) {
    fti_checkpoint *c = (fti_checkpoint *)(uintptr_t)path; /* must be overwritten */
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = fti_checkpoint_open(path, &c, &err);
    if (status != wanted || !strstr(err.message, piece))
        fail_msg("wanted %s \"%s\", got %s \"%s\"", ftk_status_name(wanted), piece,
                 ftk_status_name(status), err.message);
    assert_null(c);
    assert_int_equal(err.status, wanted);
}

/* ---- typed values ---- */

static fti_checkpoint *from_writer(const writer *w) {
    fti_checkpoint *c = NULL;
    ftk_error err = FTK_ERROR_INIT;
    if (fti_checkpoint_from_memory(w->data, w->size, "values.gguf", &c, &err) != FTK_OK)
        fail_msg("%s", err.message);
    return c;
}

static void array_of(writer *w, const char *key, uint32_t type, size_t count,
                     const uint64_t *values) {
    fti_gw_array(w, key, type, count);
    for (size_t i = 0; i < count; i++) fti_gw_raw(w, &values[i], fti_gw_scalar_bytes(type));
}

static const uint64_t extremes[] = {0, 1, UINT64_MAX, 1ull << 63, (1ull << 63) - 1};

static const struct {
    const char *key;
    uint32_t type;
    uint64_t bits;
} scalars[] = {
    {"u8", FTI_META_U8, 200},
    {"u16", FTI_META_U16, 60000},
    {"u32", FTI_META_U32, 4000000000u},
    {"u64", FTI_META_U64, UINT64_MAX},
    {"i8", FTI_META_I8, 100},
    {"i16", FTI_META_I16, 30000},
    {"i32", FTI_META_I32, INT32_MAX},
    {"i64", FTI_META_I64, INT64_MAX},
    {"i8-", FTI_META_I8, (uint64_t)INT8_MIN},
    {"i16-", FTI_META_I16, (uint64_t)INT16_MIN},
    {"i32-", FTI_META_I32, (uint64_t)-5},
    {"i64-", FTI_META_I64, (uint64_t)INT64_MIN},
    {"true", FTI_META_BOOL, 1},
    {"false", FTI_META_BOOL, 0},
};

static void write_values(writer *w) {
    fti_gw_header(w, 3, 0, FTI_COUNT(scalars) + 10);
    fti_gw_text(w, "general.architecture", "toy");
    for (size_t i = 0; i < FTI_COUNT(scalars); i++)
        fti_gw_integer(w, scalars[i].key, scalars[i].type, scalars[i].bits);
    fti_gw_key(w, "f32", FTI_META_F32);
    fti_gw_f32(w, 0.1f);
    fti_gw_key(w, "f64", FTI_META_F64);
    fti_gw_f64(w, 0.1);
    fti_gw_key(w, "nul", FTI_META_STRING);
    fti_gw_string_sized(w, "a\0b", 3);
    array_of(w, "a.u64", FTI_META_U64, 5, extremes);
    array_of(w, "a.i64", FTI_META_I64, 5, extremes);
    array_of(w, "a.i8", FTI_META_I8, 3, extremes);
    array_of(w, "a.bool", FTI_META_BOOL, 2, extremes);
    array_of(w, "a.f32", FTI_META_F32, 2, extremes);
    fti_gw_array(w, "a.str", FTI_META_STRING, 3);
    fti_gw_string(w, "first");
    fti_gw_string(w, "");
    fti_gw_string_sized(w, "\0", 1);
}

static int make_values(void **state) {
    writer *w = calloc(1, sizeof *w);
    if (!w) return -1;
    write_values(w);
    *state = w;
    return 0;
}

static int free_values(void **state) {
    fti_gw_free(*state);
    free(*state);
    return 0;
}

static void expect_message(const ftk_error *err, const char *message) {
    assert_string_equal(err->message, message);
    assert_int_equal(err->status, FTK_E_CKPT_METADATA);
}

static void test_u64(void **state) {
    fti_checkpoint *c = from_writer(*state);
    for (size_t i = 0; i < FTI_COUNT(scalars); i++) {
        uint64_t value = 77;
        ftk_error err = FTK_ERROR_INIT;
        ftk_str key = fti_str(scalars[i].key);
        bool bad = strchr(scalars[i].key, '-') || scalars[i].type == FTI_META_BOOL;
        ftk_status status = fti_meta_get_u64(c, key, 0, UINT64_MAX, &value, &err);
        assert_int_equal(status, bad ? FTK_E_CKPT_METADATA : FTK_OK);
        assert_true(value == (bad ? 77 : scalars[i].bits));
        assert_int_equal(err.status, status);
        if (bad) continue;
        uint64_t bits = scalars[i].bits;
        assert_int_equal(fti_meta_get_u64(c, key, bits, bits, &value, &err), FTK_OK);
        assert_int_equal(fti_meta_get_u64(c, key, 0, bits - 1, &value, &err), FTK_E_CKPT_METADATA);
        if (bits == UINT64_MAX) continue;
        assert_int_equal(fti_meta_get_u64(c, key, bits + 1, UINT64_MAX, &value, &err),
                         FTK_E_CKPT_METADATA);
    }
    fti_checkpoint_close(c);
}

static void test_u64_messages(void **state) {
    fti_checkpoint *c = from_writer(*state);
    uint64_t value = 0;
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(fti_meta_get_u64(c, fti_str("u8"), 1, 128, &value, &err), FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'u8': found 200, wanted 1 to 128");
    assert_int_equal(fti_meta_get_u64(c, fti_str("i32-"), 0, 9, &value, &err), FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'i32-': found -5, wanted 0 to 9");
    assert_int_equal(fti_meta_get_u64(c, fti_str("f32"), 0, 9, &value, &err), FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'f32': found FLOAT32, wanted an integer");
    assert_int_equal(fti_meta_get_u64(c, fti_str("a.i8"), 0, 9, &value, &err), FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'a.i8': found an array of INT8, wanted an integer");
    assert_int_equal(value, 0);
    fti_checkpoint_close(c);
}

static void test_other_scalars(void **state) {
    fti_checkpoint *c = from_writer(*state);
    ftk_error err = FTK_ERROR_INIT;
    double number = 0;
    bool truth = false;
    ftk_str text = {NULL, 0};
    assert_int_equal(fti_meta_get_f64(c, fti_str("f32"), &number, &err), FTK_OK);
    assert_true(number == (double)0.1f);
    assert_int_equal(fti_meta_get_f64(c, fti_str("f64"), &number, &err), FTK_OK);
    assert_true(number == 0.1);
    assert_int_equal(fti_meta_get_bool(c, fti_str("true"), &truth, &err), FTK_OK);
    assert_true(truth);
    assert_int_equal(fti_meta_get_bool(c, fti_str("false"), &truth, &err), FTK_OK);
    assert_false(truth);
    assert_int_equal(fti_meta_get_str(c, fti_str("nul"), &text, &err), FTK_OK);
    assert_true(text.size == 3 && memcmp(text.data, "a\0b", 3) == 0);
    assert_int_equal(err.status, 0);
    assert_int_equal(fti_meta_get_f64(c, fti_str("u32"), &number, &err), FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'u32': found UINT32, wanted FLOAT32 or FLOAT64");
    assert_int_equal(fti_meta_get_bool(c, fti_str("u8"), &truth, &err), FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'u8': found UINT8, wanted BOOL");
    assert_int_equal(fti_meta_get_str(c, fti_str("a.str"), &text, &err), FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'a.str': found an array of STRING, wanted STRING");
    fti_checkpoint_close(c);
}

static void test_absent_keys(void **state) {
    fti_checkpoint *c = from_writer(*state);
    ftk_error err = FTK_ERROR_INIT;
    ftk_str key = fti_str("u"), text;
    uint64_t u;
    int64_t i;
    double f;
    bool b;
    assert_int_equal(fti_meta_get_u64(c, key, 0, 1, &u, &err), FTK_E_NOT_FOUND);
    assert_int_equal(fti_meta_get_f64(c, key, &f, &err), FTK_E_NOT_FOUND);
    assert_int_equal(fti_meta_get_bool(c, key, &b, &err), FTK_E_NOT_FOUND);
    assert_int_equal(fti_meta_get_str(c, key, &text, &err), FTK_E_NOT_FOUND);
    assert_int_equal(fti_meta_get_i64_at(c, key, 0, &i, &err), FTK_E_NOT_FOUND);
    assert_int_equal(fti_meta_get_count(c, key, &u, &err), FTK_E_NOT_FOUND);
    assert_int_equal(fti_meta_get_strings(c, key, &text, 1, &err), FTK_E_NOT_FOUND);
    assert_int_equal(err.status, 0);
    assert_string_equal(err.message, "");
    assert_null(fti_checkpoint_find_meta(c, key));
    assert_null(fti_checkpoint_find_meta(c, (ftk_str){NULL, 0}));
    assert_non_null(fti_checkpoint_find_meta(c, fti_str("u8")));
    fti_checkpoint_close(c);
}

static void test_arrays(void **state) {
    fti_checkpoint *c = from_writer(*state);
    ftk_error err = FTK_ERROR_INIT;
    uint64_t count = 0;
    int64_t v = 0;
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(fti_meta_get_i64_at(c, fti_str("a.i64"), i, &v, &err), FTK_OK);
        assert_true(v == (int64_t)extremes[i]);
    }
    assert_int_equal(fti_meta_get_i64_at(c, fti_str("a.u64"), 4, &v, &err), FTK_OK);
    assert_true(v == INT64_MAX);
    assert_int_equal(fti_meta_get_i64_at(c, fti_str("a.i8"), 2, &v, &err), FTK_OK);
    assert_int_equal(v, -1);
    assert_int_equal(fti_meta_get_i64_at(c, fti_str("a.bool"), 1, &v, &err), FTK_OK);
    assert_int_equal(v, 1);
    assert_int_equal(fti_meta_get_count(c, fti_str("a.str"), &count, &err), FTK_OK);
    assert_int_equal(count, 3);
    assert_int_equal(err.status, 0);
    assert_int_equal(fti_meta_get_i64_at(c, fti_str("a.u64"), 3, &v, &err), FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'a.u64': element 3 is 9223372036854775808, wanted at "
                         "most 9223372036854775807");
    assert_int_equal(fti_meta_get_i64_at(c, fti_str("a.i8"), 3, &v, &err), FTK_E_CKPT_METADATA);
    expect_message(&err,
                   "values.gguf: key 'a.i8': the array has 3 elements, wanted one at index 3");
    assert_int_equal(fti_meta_get_i64_at(c, fti_str("a.i8"), UINT64_MAX, &v, &err),
                     FTK_E_CKPT_METADATA);
    assert_int_equal(fti_meta_get_i64_at(c, fti_str("a.f32"), 0, &v, &err), FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'a.f32': found an array of FLOAT32, wanted an array of "
                         "integers or booleans");
    assert_int_equal(fti_meta_get_i64_at(c, fti_str("a.str"), 0, &v, &err), FTK_E_CKPT_METADATA);
    assert_int_equal(fti_meta_get_i64_at(c, fti_str("u8"), 0, &v, &err), FTK_E_CKPT_METADATA);
    assert_int_equal(fti_meta_get_count(c, fti_str("u8"), &count, &err), FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'u8': found UINT8, wanted an array");
    fti_checkpoint_close(c);
}

static void test_strings(void **state) {
    fti_checkpoint *c = from_writer(*state);
    ftk_error err = FTK_ERROR_INIT;
    ftk_str out[4];
    assert_int_equal(fti_meta_get_strings(c, fti_str("a.str"), out, 3, &err), FTK_OK);
    assert_true(fti_str_is(out[0], "first") && out[1].size == 0);
    assert_true(out[2].size == 1 && out[2].data[0] == 0);
    for (uint64_t n = 0; n < 5; n++)
        if (n != 3)
            assert_int_equal(fti_meta_get_strings(c, fti_str("a.str"), out, n, &err),
                             FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'a.str': the array has 3 strings, wanted 4");
    assert_int_equal(fti_meta_get_strings(c, fti_str("a.i8"), out, 3, &err), FTK_E_CKPT_METADATA);
    assert_int_equal(fti_meta_get_strings(c, fti_str("nul"), out, 1, &err), FTK_E_CKPT_METADATA);
    expect_message(&err, "values.gguf: key 'nul': found STRING, wanted an array of STRING");
    fti_checkpoint_close(c);
}

/* ---- tensor types ---- */

static const struct {
    uint32_t id;
    const char *name;
    uint32_t elements, bytes;
} types[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {4, "Q4_2", 0, 0},        {5, "Q4_3", 0, 0},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},
    {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},
    {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},
    {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},
    {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136},
    {24, "I8", 1, 1},         {25, "I16", 1, 2},        {26, "I32", 1, 4},
    {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {31, "Q4_0_4_4", 0, 0},   {32, "Q4_0_4_8", 0, 0},
    {33, "Q4_0_8_8", 0, 0},   {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},
    {36, "IQ4_NL_4_4", 0, 0}, {37, "IQ4_NL_4_8", 0, 0}, {38, "IQ4_NL_8_8", 0, 0},
    {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
    {42, "Q2_0", 64, 18},     {43, "type 43", 0, 0},    {97, "type 97", 0, 0},
    {100, "type 100", 0, 0},  {233, "type 233", 0, 0},  {499, "type 499", 0, 0},
};

static void test_types(void **state) {
    (void)state;
    for (size_t i = 0; i < FTI_COUNT(types); i++) {
        uint32_t elements = 0, bytes = 0;
        assert_string_equal(fti_type_name(types[i].id), types[i].name);
        assert_int_equal(fti_type_block(types[i].id, &elements, &bytes), types[i].elements != 0);
        assert_int_equal(elements, types[i].elements);
        assert_int_equal(bytes, types[i].bytes);
    }
    char name[16];
    for (uint32_t id = 43; id < 500; id++) {
        snprintf(name, sizeof name, "type %u", id);
        assert_string_equal(fti_type_name(id), name);
    }
    uint32_t elements, bytes;
    assert_string_equal(fti_type_name(500), "unknown type");
    assert_string_equal(fti_type_name(UINT32_MAX), "unknown type");
    assert_false(fti_type_block(UINT32_MAX, &elements, &bytes));
}

/* ---- the demo model ---- */

static void test_demo_metadata(void **state) {
    (void)state;
    fti_checkpoint *c = NULL;
    ftk_error err = FTK_ERROR_INIT;
    ftk_str text = {NULL, 0};
    uint64_t n = 0;
    double f = 0;
    int64_t section = 0;
    assert_int_equal(fti_checkpoint_open(DEMO, &c, &err), FTK_OK);
    assert_string_equal(fti_checkpoint_path(c), DEMO);
    assert_string_equal(fti_checkpoint_container(c), "gguf");
    assert_int_equal(fti_checkpoint_version(c), 3);
    assert_int_equal(fti_checkpoint_file_bytes(c), 24032992);
    assert_int_equal(fti_checkpoint_meta_count(c), 36);
    assert_int_equal(fti_checkpoint_tensor_count(c), 149);
    assert_int_equal(fti_meta_get_str(c, fti_str("general.architecture"), &text, &err), FTK_OK);
    assert_true(fti_str_is(text, "qwen35moe"));
    assert_int_equal(fti_meta_get_u64(c, fti_str("qwen35moe.block_count"), 1, 1024, &n, &err),
                     FTK_OK);
    assert_int_equal(n, 8);
    assert_int_equal(fti_meta_get_f64(c, fti_str("qwen35moe.rope.freq_base"), &f, &err), FTK_OK);
    assert_true(f == 10000.0);
    ftk_str sections = fti_str("qwen35moe.rope.dimension_sections");
    assert_int_equal(fti_meta_get_i64_at(c, sections, 0, &section, &err), FTK_OK);
    assert_int_equal(section, 6);
    assert_int_equal(fti_meta_get_count(c, fti_str("tokenizer.ggml.merges"), &n, &err), FTK_OK);
    assert_int_equal(n, 3835);
    ftk_str *tokens = calloc(4096, sizeof *tokens);
    assert_int_equal(fti_meta_get_strings(c, fti_str("tokenizer.ggml.tokens"), tokens, 4096, &err),
                     FTK_OK);
    assert_true(fti_str_is(tokens[0], "!") && fti_str_is(tokens[7], "("));
    free(tokens);
    fti_checkpoint_close(c);
}

static void test_demo_tensors(void **state) {
    (void)state;
    size_t size, index = 0, by_type[43] = {0};
    const char *file = demo_bytes(&size);
    fti_checkpoint *c = NULL;
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(fti_checkpoint_open(DEMO, &c, &err), FTK_OK);
    for (size_t i = 0; i < fti_checkpoint_tensor_count(c); i++) {
        const fti_tensor *t = fti_checkpoint_tensor(c, i);
        assert_memory_equal(fti_checkpoint_payload(c, i), file + t->offset, t->bytes);
        by_type[t->type]++;
    }
    assert_int_equal(by_type[FTK_TYPE_F32], 73);
    assert_int_equal(by_type[FTK_TYPE_Q8_0], 51);
    assert_int_equal(by_type[FTK_TYPE_Q4_K], 16);
    assert_int_equal(by_type[FTK_TYPE_Q5_K], 6);
    assert_int_equal(by_type[FTK_TYPE_Q6_K], 3);
    assert_true(fti_checkpoint_find_tensor(c, fti_str("output.weight"), &index));
    const fti_tensor *t = fti_checkpoint_tensor(c, index);
    assert_int_equal(index, 148);
    assert_int_equal(t->type, FTK_TYPE_Q6_K);
    assert_true(t->n_dims == 2 && t->dims[0] == 256 && t->dims[1] == 4096);
    assert_true(t->dims[2] == 1 && t->dims[3] == 1);
    assert_int_equal(t->row_bytes, 210);
    assert_int_equal(t->bytes, 210 * 4096);
    assert_int_equal(t->offset, 138592 + 23034240);
    assert_false(fti_checkpoint_find_tensor(c, fti_str("output.weigh"), &index));
    fti_checkpoint_close(c);
    munmap((void *)(uintptr_t)file, size);
}

static void test_demo_walk(void **state) {
    (void)state;
    size_t size;
    void *file = demo_bytes(&size);
    fti_checkpoint *c = NULL;
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(fti_checkpoint_from_memory(file, size, "demo", &c, &err), FTK_OK);
    assert_null(fti_checkpoint_walk(c, file, size));
    fti_checkpoint_close(c);
    munmap(file, size);
}

/* An interrupted download: the message tells how much there should be. */
static void test_demo_cut_short(void **state) {
    folder *f = *state;
    size_t size;
    void *file = demo_bytes(&size);
    put_file(f->file, file, size);
    munmap(file, size);
    const size_t lengths[] = {size - 1, size - 4096, size / 2};
    for (size_t i = 0; i < FTI_COUNT(lengths); i++) {
        char piece[96];
        snprintf(piece, sizeof piece, "expected at least %zu bytes, the file has %zu:", size,
                 lengths[i]);
        assert_int_equal(truncate(f->file, (off_t)lengths[i]), 0);
        refused_path(f->file, FTK_E_CKPT_TRUNCATED, piece);
    }
    assert_int_equal(truncate(f->file, 100000), 0);
    refused_path(f->file, FTK_E_CKPT_TRUNCATED, "the file has 100000 bytes");
    assert_int_equal(truncate(f->file, 0), 0);
    refused_path(f->file, FTK_E_CKPT_TRUNCATED, "the file has 0 bytes");
}

/* ---- files ---- */

static void test_not_a_file(void **state) {
    folder *f = *state;
    refused_path(f->file, FTK_E_CKPT_READ, "model.gguf: cannot open the checkpoint: No such file");
    refused_path("", FTK_E_CKPT_READ, "cannot open");
    refused_path("/dev/null", FTK_E_CKPT_READ, "/dev/null: is a device, wanted a regular file");
    refused_path(f->path, FTK_E_CKPT_READ, ": is a directory, wanted a regular file");
    assert_int_equal(mkfifo(f->file, 0600), 0);
    alarm(20); /* opening must not wait for a writer */
    refused_path(f->file, FTK_E_CKPT_READ, "model.gguf: is a FIFO, wanted a regular file");
    alarm(0);
    refused_path(NULL, FTK_E_ARGUMENT, "NULL");
    assert_int_equal(fti_checkpoint_open(DEMO, NULL, NULL), FTK_E_ARGUMENT);
    fti_checkpoint *c = NULL;
    assert_int_equal(fti_checkpoint_from_memory(NULL, 1, "x", &c, NULL), FTK_E_ARGUMENT);
    assert_int_equal(fti_checkpoint_from_memory("GGUF", 4, NULL, &c, NULL), FTK_E_ARGUMENT);
    assert_int_equal(fti_checkpoint_from_memory("GGUF", 4, "x", NULL, NULL), FTK_E_ARGUMENT);
    assert_int_equal(fti_checkpoint_from_memory(NULL, 0, "x", &c, NULL), FTK_E_CKPT_TRUNCATED);
    fti_checkpoint_close(NULL);
}

static void test_socket(void **state) {
    folder *f = *state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", f->file);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    refused_path(f->file, FTK_E_CKPT_READ, "cannot open the checkpoint");
    close(fd);
}

/* The end of a message about a file deep down must not be lost. */
static void test_long_path(void **state) {
    (void)state;
    char path[3000];
    memset(path, '/', sizeof path);
    snprintf(path + sizeof path - 8, 8, "no.gguf");
    refused_path(path, FTK_E_CKPT_READ, "//no.gguf: cannot open the checkpoint: No such file");
    for (size_t i = 1; i + 8 < sizeof path; i++) path[i] = (char)(i % 2 ? 0xC3 : 0xA9);
    for (size_t cut = 0; cut < 2; cut++) {
        ftk_error err = FTK_ERROR_INIT;
        fti_checkpoint *c = NULL;
        path[sizeof path - 1 - cut] = 0;
        assert_int_equal(fti_checkpoint_open(path, &c, &err), FTK_E_CKPT_READ);
        assert_memory_equal(err.message, "/\xC3\xA9", 3);
        assert_non_null(strstr(err.message, "\xA9...\xC3"));
    }
}

static int open_descriptors(void) {
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir)) count++;
    closedir(dir);
    return count;
}

static void test_nothing_left_open(void **state) {
    folder *f = *state;
    put_file(f->file, "GGUFxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 36);
    int before = open_descriptors();
    fti_checkpoint *c = NULL;
    for (int i = 0; i < 10; i++) {
        assert_int_not_equal(fti_checkpoint_open(f->file, &c, NULL), FTK_OK);
        assert_int_not_equal(fti_checkpoint_open(f->path, &c, NULL), FTK_OK);
    }
    assert_int_equal(open_descriptors(), before);
    assert_int_equal(fti_checkpoint_open(DEMO, &c, NULL), FTK_OK);
    assert_int_equal(open_descriptors(), before + 1); /* of the file that was judged */
    fti_checkpoint_close(c);
    assert_int_equal(open_descriptors(), before);
}

static bool in_maps(const char *path, const char *rights) {
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, path) && (!rights || strstr(line, rights))) found = true;
    fclose(maps);
    return found;
}

static void small_model(const char *path) {
    static const uint64_t n = 3;
    writer w = {0};
    fti_gw_header(&w, 3, 1, 1);
    fti_gw_text(&w, "general.architecture", "toy");
    fti_gw_tensor(&w, "t", 1, &n, 24, 0);
    fti_gw_pad(&w, 32);
    fti_gw_raw(&w, "xyz", 3);
    put_file(path, w.data, w.size);
    fti_gw_free(&w);
}

static void test_mapping(void **state) {
    folder *f = *state;
    fti_checkpoint *c = NULL;
    small_model(f->file);
    assert_int_equal(fti_checkpoint_open(f->file, &c, NULL), FTK_OK);
    assert_true(in_maps(f->file, " r--p "));
    assert_int_equal(unlink(f->file), 0);
    assert_memory_equal(fti_checkpoint_payload(c, 0), "xyz", 3);
    fti_checkpoint_close(c);
    assert_false(in_maps(f->file, NULL));
}

static void test_symbolic_link(void **state) {
    folder *f = *state;
    fti_checkpoint *c = NULL;
    char *target = realpath(DEMO, NULL); /* the data folder may be given relative */
    assert_non_null(target);
    assert_int_equal(symlink(target, f->file), 0);
    free(target);
    assert_int_equal(fti_checkpoint_open(f->file, &c, NULL), FTK_OK);
    assert_string_equal(fti_checkpoint_path(c), f->file);
    fti_checkpoint_close(c);
}

/* ---- beyond 4 GiB ---- */

#define BANK_ROWS                                                                                  \
    (((uint64_t)1 << 32) + 65536) /* of one byte: more elements than 32 bits count                 \
                                   */

static void put_marker(int fd, uint64_t at) {
    assert_int_equal(pwrite(fd, "marker row", 10, (off_t)at), 10);
}

static uint64_t sparse_model(const char *path) {
    static const uint64_t bank[] = {256, BANK_ROWS / 256}, tail[] = {16};
    writer w = {0};
    fti_gw_header(&w, 3, 2, 1);
    fti_gw_text(&w, "general.architecture", "toy");
    fti_gw_tensor(&w, "bank", 2, bank, 24, 0);
    fti_gw_tensor(&w, "tail", 1, tail, 24, BANK_ROWS);
    fti_gw_pad(&w, 32);
    put_file(path, w.data, w.size);
    uint64_t data = w.size;
    fti_gw_free(&w);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)(data + BANK_ROWS + 16)), 0);
    put_marker(fd, data + (1ull << 32) + 256);
    put_marker(fd, data + BANK_ROWS);
    close(fd);
    return data;
}

static void test_b12_beyond_four_gib(void **state) {
    folder *f = *state;
    uint64_t data = sparse_model(f->file);
    fti_checkpoint *c = NULL;
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(fti_checkpoint_open(f->file, &c, &err), FTK_OK);
    const fti_tensor *bank = fti_checkpoint_tensor(c, 0), *tail = fti_checkpoint_tensor(c, 1);
    assert_true(bank->bytes == BANK_ROWS && bank->row_bytes == 256 && bank->offset == data);
    assert_true(tail->offset == data + BANK_ROWS);
    assert_true(fti_checkpoint_file_bytes(c) == data + BANK_ROWS + 16);
    const char *payload = fti_checkpoint_payload(c, 0);
    assert_memory_equal(payload + ((1ull << 32) + 256), "marker row", 10);
    assert_memory_equal(fti_checkpoint_payload(c, 1), "marker row", 10);
    assert_int_equal(payload[256], 0);
    fti_checkpoint_close(c);
    char piece[96];
    snprintf(piece, sizeof piece,
             "tensor 'tail': its data lie outside the file: expected at least "
             "%" PRIu64,
             data + BANK_ROWS + 16);
    assert_int_equal(truncate(f->file, (off_t)(data + BANK_ROWS + 15)), 0);
    refused_path(f->file, FTK_E_CKPT_TRUNCATED, piece);
    assert_int_equal(truncate(f->file, 1ll << 32), 0);
    refused_path(f->file, FTK_E_CKPT_TRUNCATED, "tensor 'bank': its data lie outside the file");
}

#define VALUES(name)    cmocka_unit_test_setup_teardown(name, make_values, free_values)
#define IN_FOLDER(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        VALUES(test_u64),
        VALUES(test_u64_messages),
        VALUES(test_other_scalars),
        VALUES(test_absent_keys),
        VALUES(test_arrays),
        VALUES(test_strings),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_demo_metadata),
        cmocka_unit_test(test_demo_tensors),
        cmocka_unit_test(test_demo_walk),
        IN_FOLDER(test_demo_cut_short),
        IN_FOLDER(test_not_a_file),
        IN_FOLDER(test_socket),
        cmocka_unit_test(test_long_path),
        IN_FOLDER(test_nothing_left_open),
        IN_FOLDER(test_mapping),
        IN_FOLDER(test_symbolic_link),
        IN_FOLDER(test_b12_beyond_four_gib),
    };
    return cmocka_run_group_tests_name("test_checkpoint", tests, NULL, NULL);
}
