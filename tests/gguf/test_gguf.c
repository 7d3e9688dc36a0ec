/*
 * test_gguf.c: hostile and unusual GGUF files. Every refusal is a named case with
 * its status and a piece of its message, read from a buffer of exactly the
 * file's size and, without sanitizers, under a limit of address space that a
 * large allocation would hit. Damage without a name (each truncation, each
 * flipped bit) may be accepted only if a walk over the result stays inside.
 * Names of cases that belong to a cause of docs/cases.md, section G, begin with
 * its id.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "support/gguf_writer.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define ALLOWANCE (16u << 20) /* bytes that a refusal may cost beyond the file */
#define FILE_NAME "dir/some.gguf"

typedef fti_gguf_writer writer;

#define CAUSES 25 /* numbered from 1; 0: of none */

static unsigned cases;          /* files checked so far */
static unsigned causes[CAUSES]; /* of them, by the cause that their name begins with */
static unsigned broken;         /* of them, in the running test */

/* ---- the check of one refusal ---- */

static rlim_t address_space(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%ld", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static ftk_status open_with_limit(const uint8_t *data, size_t size, rlim_t allowance,
                                  fti_checkpoint **out, ftk_error *err) {
    struct rlimit old, tight;
    rlim_t used = SANITIZED ? 0 : address_space();
    if (used == 0 || getrlimit(RLIMIT_AS, &old) != 0)
        return fti_checkpoint_from_memory(data, size, FILE_NAME, out, err);
    tight = old;
    tight.rlim_cur = used + allowance;
    assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
    ftk_status status = fti_checkpoint_from_memory(data, size, FILE_NAME, out, err);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    return status;
}

/* Exactly `size` bytes, so that a sanitizer sees the first one too many. */
static uint8_t *exact_copy(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    if (size) memcpy(copy, data, size);
    return copy;
}

static void report(const char *name, const char *trouble, ftk_status status, const char *message) {
    broken++;
    print_error("case '%s': %s; got %s \"%s\"\n", name, trouble, ftk_status_name(status), message);
}

static void count_case(const char *name) {
    unsigned cause = 0;
    if (sscanf(name, "g%u ", &cause) == 1) assert_in_range(cause, 1, CAUSES - 1);
    causes[cause]++;
    cases++;
}

static void check_refusal(const char *name, const uint8_t *data, size_t size, ftk_status wanted,
                          const char *piece) {
    static const char head[] = FILE_NAME ": ";
    uint8_t *copy = exact_copy(data, size);
    fti_checkpoint *c = (fti_checkpoint *)(uintptr_t)&cases; /* must be overwritten */
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = open_with_limit(copy, size, ALLOWANCE, &c, &err);
    if (status != wanted) report(name, "wrong status", status, err.message);
    if (c != NULL) report(name, "out is not NULL", status, err.message);
    if (err.status != status) report(name, "error record disagrees", status, err.message);
    if (strncmp(err.message, head, sizeof head - 1) != 0)
        report(name, "message does not begin with the path", status, err.message);
    if (!strstr(err.message, piece)) report(name, piece, status, err.message);
    if (status == FTK_OK) fti_checkpoint_close(c);
    free(copy);
    count_case(name);
}

/* Checks what the writer holds and empties it. The name is a format. */
static void refused(writer *w, ftk_status wanted, const char *piece, const char *name, ...)
    FTI_PRINTF(4, 5);

static void refused(writer *w, ftk_status wanted, const char *piece, const char *name, ...) {
    char text[128];
    va_list args;
    va_start(args, name);
    vsnprintf(text, sizeof text, name, args);
    va_end(args);
    check_refusal(text, w->data, w->size, wanted, piece);
    fti_gw_free(w);
}

/* The file opens, and a walk over what it holds stays inside. */
static void accepted(writer *w, const char *name) {
    uint8_t *copy = exact_copy(w->data, w->size);
    fti_checkpoint *c = NULL;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = fti_checkpoint_from_memory(copy, w->size, FILE_NAME, &c, &err);
    const char *trouble = status == FTK_OK ? fti_checkpoint_walk(c, copy, w->size) : err.message;
    if (trouble) {
        broken++;
        print_error("valid file '%s': %s\n", name, trouble);
    }
    fti_checkpoint_close(c);
    free(copy);
    fti_gw_free(w);
    count_case(name);
}

static int clear_broken(void **state) {
    (void)state;
    broken = 0;
    return 0;
}

static const char *format(char *buffer, size_t size, const char *text, uint64_t number) {
    snprintf(buffer, size, "%s%" PRIu64, text, number);
    return buffer;
}

/* Numbers at which 32-bit, signed and 64-bit arithmetic break. */
static const uint64_t edges[] = {
    (1ull << 31) - 1, 1ull << 31,     (1ull << 31) + 1, (1ull << 32) - 1, 1ull << 32,
    (1ull << 32) + 1, 1ull << 61,     1ull << 62,       (1ull << 63) - 1, 1ull << 63,
    UINT64_MAX - 31,  UINT64_MAX - 7, UINT64_MAX - 1,   UINT64_MAX,
};

/* ---- pieces of files ---- */

static void start(writer *w, uint64_t tensors, uint64_t more_keys) {
    fti_gw_header(w, 3, tensors, 1 + more_keys);
    fti_gw_text(w, "general.architecture", "toy");
}

static void finish(writer *w, size_t payload) {
    fti_gw_pad(w, 32);
    fti_gw_fill(w, 0x5A, payload);
}

/* A file of one F32 tensor of `n` elements, or what the arguments say instead. */
static void one_tensor(writer *w, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                       uint64_t offset, size_t payload) {
    start(w, 1, 0);
    fti_gw_tensor(w, "blk.0.w", n_dims, dims, type, offset);
    finish(w, payload);
}

static void vector(writer *w, const char *name, uint64_t n, uint64_t offset) {
    fti_gw_tensor(w, name, 1, &n, FTK_TYPE_F32, offset);
}

/* ---- header ---- */

static void test_header(void **state) {
    (void)state;
    static const char *const foreign[] = {"ggjt", "FUGG",    "GGUE",  "gguf",
                                          "lmgg", "\177ELF", "PK\3\4"};
    writer w = {0};
    fti_gw_header(&w, 3, 0, 0);
    for (size_t size = 0; size < 24; size++) {
        writer cut = {0};
        fti_gw_raw(&cut, w.data, size);
        refused(&cut, FTK_E_CKPT_TRUNCATED, "GGUF header", "first %zu bytes", size);
    }
    fti_gw_free(&w);
    for (size_t i = 0; i < FTI_COUNT(foreign); i++) {
        fti_gw_raw(&w, foreign[i], 4);
        fti_gw_fill(&w, 0, 60);
        refused(&w, FTK_E_CKPT_FORMAT, "not a GGUF file", "magic %zu", i);
    }
    fti_gw_raw(&w, "x", 1);
    refused(&w, FTK_E_CKPT_FORMAT, "not a GGUF file", "one foreign byte");
    assert_int_equal(broken, 0);
}

static void versions(const uint32_t *list, size_t count, const char *piece) {
    for (size_t i = 0; i < count; i++) {
        writer w = {0};
        fti_gw_header(&w, list[i], 0, 1);
        fti_gw_text(&w, "general.architecture", "toy");
        refused(&w, FTK_E_CKPT_VERSION, piece, "version %" PRIu32, list[i]);
    }
}

static void test_b9_versions(void **state) {
    (void)state;
    static const uint32_t old[] = {0, 1};
    static const uint32_t recent[] = {4, 5, 100, 0xFFFF, 0x00010003, 0x7FFFFFFF, 0xFFFFFFFF};
    static const uint32_t swapped[] = {0x01000000, 0x02000000, 0x03000000, 0x04000000, 0x00010000};
    versions(old, FTI_COUNT(old), "too old");
    versions(recent, FTI_COUNT(recent), "too new");
    versions(swapped, FTI_COUNT(swapped), "big-endian");
    assert_int_equal(broken, 0);
}

static void declared(bool keys, uint64_t count, ftk_status wanted) {
    const char *what = keys ? "metadata keys" : "tensors";
    writer w = {0};
    fti_gw_header(&w, 3, keys ? 0 : count, keys ? count : 0);
    fti_gw_fill(&w, 1, 100 - w.size);
    refused(&w, wanted, what, "g1 %" PRIu64 " %s in 100 bytes", count, what);
}

static void test_counts(void **state) {
    (void)state;
    for (size_t i = 0; i < FTI_COUNT(edges); i++) {
        declared(true, edges[i], FTK_E_CKPT_FORMAT);
        declared(false, edges[i], FTK_E_CKPT_FORMAT);
    }
    static const uint64_t wraps[] = {UINT64_MAX / 14 + 1, UINT64_MAX / 33 + 1,
                                     UINT64_MAX / sizeof(fti_meta) + 1,
                                     UINT64_MAX / sizeof(fti_tensor) + 1, 200000};
    for (size_t i = 0; i < FTI_COUNT(wraps); i++) {
        declared(true, wraps[i], FTK_E_CKPT_FORMAT);
        declared(false, wraps[i], FTK_E_CKPT_FORMAT);
    }
    declared(true, 65537, FTK_E_CKPT_FORMAT);
    declared(true, 65536, FTK_E_CKPT_TRUNCATED);
    declared(true, 76 / 14 + 1, FTK_E_CKPT_TRUNCATED);
    declared(false, 100001, FTK_E_CKPT_FORMAT);
    declared(false, 100000, FTK_E_CKPT_TRUNCATED);
    declared(false, 76 / 33 + 1, FTK_E_CKPT_TRUNCATED);
    assert_int_equal(broken, 0);
}

/* Counts that the size of the file allows, of records that are not there. */
static void test_counts_of_other_records(void **state) {
    (void)state;
    writer w = {0};
    for (uint64_t keys = 0; keys < 2; keys++) {
        fti_gw_header(&w, 3, 0, keys);
        fti_gw_fill(&w, 1, 100 - w.size);
        refused(&w, keys ? FTK_E_CKPT_FORMAT : FTK_E_CKPT_METADATA,
                keys ? "key number 0: name of" : "'general.architecture' is missing",
                "g1 %" PRIu64 " keys in 100 bytes", keys);
    }
    start(&w, 1, 0);
    fti_gw_fill(&w, 1, 100 - w.size);
    refused(&w, FTK_E_CKPT_FORMAT, "tensor number 0: name of", "g1 1 tensor in 100 bytes");
    start(&w, 0, 0);
    fti_gw_fill(&w, 1, 100 - w.size);
    accepted(&w, "g1 0 tensors in 100 bytes");
    assert_int_equal(broken, 0);
}

/* ---- lengths of strings ---- */

enum { KEY_NAME, STRING_VALUE, STRING_ELEMENT, TENSOR_NAME, STRING_PLACES };

/* A file in which the string at `place` claims `length` bytes, then 40 bytes. */
static void string_file(writer *w, int place, uint64_t length) {
    start(w, place == TENSOR_NAME, place != TENSOR_NAME);
    if (place == STRING_VALUE) fti_gw_key(w, "s", FTI_META_STRING);
    if (place == STRING_ELEMENT) fti_gw_array(w, "s", FTI_META_STRING, 1);
    fti_gw_u64(w, length);
    fti_gw_fill(w, 'x', 40);
}

static void test_string_lengths(void **state) {
    (void)state;
    static const char *const field[] = {"name of ", "key 's': string", "string in the array",
                                        "name of "};
    writer w = {0};
    for (int place = 0; place < STRING_PLACES; place++) {
        bool name = place == KEY_NAME || place == TENSOR_NAME;
        for (size_t i = 0; i < FTI_COUNT(edges); i++) {
            string_file(&w, place, edges[i]);
            refused(&w, name ? FTK_E_CKPT_FORMAT : FTK_E_CKPT_TRUNCATED, field[place],
                    "g2 string place %d, length %" PRIu64, place, edges[i]);
        }
        string_file(&w, place, 41);
        refused(&w, FTK_E_CKPT_TRUNCATED, name ? ": name ends at" : field[place],
                "g2 string place %d, one too long", place);
        string_file(&w, place, 1ull << 30);
        refused(&w, name ? FTK_E_CKPT_FORMAT : FTK_E_CKPT_TRUNCATED, field[place],
                "g12 string place %d, a GiB in %zu bytes", place, w.size);
    }
    assert_int_equal(broken, 0);
}

/* Exactly what is left, and nothing: a value may end the file, a name may not. */
static void test_string_lengths_that_fit(void **state) {
    (void)state;
    static const char *const after[] = {"value type ends", "", "", "number of dimensions ends"};
    writer w = {0};
    for (int place = 0; place < STRING_PLACES; place++) {
        bool name = place == KEY_NAME || place == TENSOR_NAME;
        string_file(&w, place, 40);
        if (name)
            refused(&w, FTK_E_CKPT_TRUNCATED, after[place], "g2 string place %d, all", place);
        else
            accepted(&w, "g2 a value to the end of the file");
        string_file(&w, place, 0);
        if (name)
            refused(&w, FTK_E_CKPT_FORMAT, "name of 0 bytes", "g2 string place %d, 0", place);
        else
            accepted(&w, "g2 an empty value");
    }
    assert_int_equal(broken, 0);
}

static void test_names(void **state) {
    (void)state;
    writer w = {0};
    for (int place = 0; place < STRING_PLACES; place += TENSOR_NAME) {
        const char *kind = place == KEY_NAME ? "key" : "tensor";
        for (int at = 0; at < 3; at++) {
            char name[] = "abc";
            name[at] = 0;
            start(&w, place == TENSOR_NAME, place == KEY_NAME);
            fti_gw_string_sized(&w, name, 3);
            fti_gw_fill(&w, 1, 60);
            refused(&w, FTK_E_CKPT_FORMAT, "NUL byte", "g19 %s name, NUL at %d", kind, at);
        }
        start(&w, place == TENSOR_NAME, place == KEY_NAME);
        fti_gw_string(&w, "");
        fti_gw_fill(&w, 1, 60);
        refused(&w, FTK_E_CKPT_FORMAT, "name of 0 bytes", "g19 empty %s name", kind);
    }
    static const size_t long_names[] = {64, 65, 300, 65536};
    for (size_t i = 0; i < FTI_COUNT(long_names); i++) {
        start(&w, 1, 0);
        fti_gw_u64(&w, long_names[i]);
        fti_gw_fill(&w, 'n', long_names[i] + 64);
        refused(&w, FTK_E_CKPT_FORMAT, "wanted 1 to 63", "g19 tensor name of %zu", long_names[i]);
    }
    start(&w, 0, 1);
    fti_gw_u64(&w, 65536);
    fti_gw_fill(&w, 'k', 65536 + 64);
    refused(&w, FTK_E_CKPT_FORMAT, "wanted 1 to 65535", "g19 key of 65536");
    char long_key[101] = {0};
    memset(long_key, 'k', 100);
    long_key[3] = '\n';
    long_key[5] = (char)0xFF;
    start(&w, 0, 1);
    fti_gw_key(&w, long_key, 99);
    refused(&w, FTK_E_CKPT_FORMAT, "kkk\\nk\\xffkkk", "g19 key with a line end in the message");
    start(&w, 0, 1);
    fti_gw_key(&w, long_key, 99);
    refused(&w, FTK_E_CKPT_FORMAT, "kkk': unknown value type", "g19 long key in the message");
    assert_int_equal(broken, 0);
}

/* ---- values ---- */

static void test_b13_arrays_beyond_the_file(void **state) {
    (void)state;
    writer w = {0};
    for (uint32_t type = 0; type < FTI_META_TYPES; type++) {
        if (type == FTI_META_ARRAY) continue;
        size_t size = type == FTI_META_STRING ? 8 : fti_gw_scalar_bytes(type);
        const uint64_t counts[] = {64 / size + 1,
                                   UINT64_MAX / size + 1,
                                   UINT64_MAX / size + 2,
                                   1ull << 30,
                                   1ull << 61,
                                   1ull << 63,
                                   UINT64_MAX};
        for (size_t i = 0; i < FTI_COUNT(counts); i++) {
            if (counts[i] < 2) continue; /* 2^64 / 1 + 1 */
            start(&w, 0, 1);
            fti_gw_array(&w, "list", type, counts[i]);
            fti_gw_fill(&w, 0, 64);
            refused(&w, FTK_E_CKPT_TRUNCATED,
                    type == FTI_META_STRING ? "key 'list': array of STRING" : "key 'list': value",
                    "g3 array of type %u, %" PRIu64 " elements", type, counts[i]);
        }
        start(&w, 0, 1);
        fti_gw_array(&w, "list", type, 1ull << 30);
        refused(&w, FTK_E_CKPT_TRUNCATED, "key 'list'", "g12 2^30 elements of type %u, none there",
                type);
    }
    for (size_t i = 0; i < FTI_COUNT(edges); i++) {
        start(&w, 0, 1);
        fti_gw_array(&w, "list", FTI_META_ARRAY, edges[i]);
        fti_gw_fill(&w, 0, 64);
        refused(&w, FTK_E_CKPT_FORMAT, "array of arrays", "g3 %" PRIu64 " arrays", edges[i]);
    }
    assert_int_equal(broken, 0);
}

static void nested(writer *w, unsigned depth) {
    start(w, 0, 1);
    fti_gw_key(w, "deep", FTI_META_ARRAY);
    for (unsigned i = 0; i < depth; i++) {
        fti_gw_u32(w, FTI_META_ARRAY);
        fti_gw_u64(w, 1);
    }
    fti_gw_u32(w, FTI_META_U8);
    fti_gw_u64(w, 1);
    fti_gw_u8(w, 7);
}

static void test_value_types(void **state) {
    (void)state;
    static const uint32_t unknown[] = {13,  14,         15,         64,        255,
                                       256, 0x7FFFFFFF, 0x80000000, UINT32_MAX};
    char piece[64];
    writer w = {0};
    for (size_t i = 0; i < FTI_COUNT(unknown); i++) {
        format(piece, sizeof piece, "key 'k': unknown value type ", unknown[i]);
        start(&w, 0, 1);
        fti_gw_key(&w, "k", unknown[i]);
        fti_gw_fill(&w, 0, 64);
        refused(&w, FTK_E_CKPT_FORMAT, piece, "g5 value type %u", unknown[i]);
        format(piece, sizeof piece, "key 'k': array of unknown value type ", unknown[i]);
        start(&w, 0, 1);
        fti_gw_array(&w, "k", unknown[i], 1);
        fti_gw_fill(&w, 0, 64);
        refused(&w, FTK_E_CKPT_FORMAT, piece, "g5 element type %u", unknown[i]);
    }
    static const unsigned depths[] = {1, 2, 3, 100000};
    for (size_t i = 0; i < FTI_COUNT(depths); i++) {
        nested(&w, depths[i]);
        refused(&w, FTK_E_CKPT_FORMAT, "array of arrays", "g20 arrays nested %u deep", depths[i]);
    }
    assert_int_equal(broken, 0);
}

static void test_bools(void **state) {
    (void)state;
    static const uint8_t bad[] = {2, 3, 127, 128, 255};
    writer w = {0};
    for (size_t i = 0; i < FTI_COUNT(bad); i++) {
        start(&w, 0, 1);
        fti_gw_integer(&w, "flag", FTI_META_BOOL, bad[i]);
        refused(&w, FTK_E_CKPT_FORMAT, "key 'flag': BOOL element 0", "bool %u", bad[i]);
        start(&w, 0, 1);
        fti_gw_array(&w, "flags", FTI_META_BOOL, 5);
        fti_gw_fill(&w, 1, 4);
        fti_gw_u8(&w, bad[i]);
        refused(&w, FTK_E_CKPT_FORMAT, "key 'flags': BOOL element 4", "bool %u in array", bad[i]);
    }
    assert_int_equal(broken, 0);
}

static void test_duplicate_keys(void **state) {
    (void)state;
    static const char *const twice[] = {"general.architecture", "general.alignment", "x", "Ġ\n"};
    char piece[96];
    writer w = {0};
    for (size_t i = 0; i < FTI_COUNT(twice); i++)
        for (unsigned between = 0; between < 40; between += 13) {
            fti_gw_header(&w, 3, 0, 2 + between);
            fti_gw_text(&w, twice[i], "toy");
            for (unsigned n = 0; n < between; n++)
                fti_gw_integer(&w, format(piece, sizeof piece, "filler.", n), FTI_META_U32, n);
            fti_gw_integer(&w, twice[i], FTI_META_U32, 32);
            snprintf(piece, sizeof piece, "as key number 0 and %u", between + 1);
            refused(&w, FTK_E_CKPT_FORMAT, piece, "%s key %zu twice, %u between",
                    i == 1 ? "g11" : "plain", i, between);
        }
    assert_int_equal(broken, 0);
}

/* What else tokenizers may have wrong lies in tests/unit/test_tokenizer.c. */
static void test_tokenizer_arrays_twice(void **state) {
    (void)state;
    static const char *const names[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
                                        "tokenizer.ggml.merges", "tokenizer.ggml.scores"};
    writer w = {0};
    for (size_t i = 0; i < FTI_COUNT(names); i++)
        for (uint32_t type = 0; type < FTI_META_TYPES; type++) {
            if (type == FTI_META_ARRAY) continue;
            start(&w, 0, 2);
            fti_gw_array(&w, names[i], FTI_META_STRING, 1);
            fti_gw_string(&w, "a");
            fti_gw_array(&w, names[i], type, 1);
            fti_gw_fill(&w, 0, type == FTI_META_STRING ? 8 : fti_gw_scalar_bytes(type));
            refused(&w, FTK_E_CKPT_FORMAT, "occurs twice, as key number 1 and 2",
                    "g13 %s twice, then of type %u", names[i], type);
        }
    assert_int_equal(broken, 0);
}

/* A value of each type that is at least well-formed. */
static void any_value(writer *w, const char *key, uint32_t type) {
    if (type == FTI_META_ARRAY) {
        fti_gw_array(w, key, FTI_META_U32, 1);
        fti_gw_u32(w, 32);
    } else if (type == FTI_META_STRING) {
        fti_gw_text(w, key, "32");
    } else {
        fti_gw_integer(w, key, type, type == FTI_META_BOOL ? 1 : 32);
    }
}

static void test_alignment(void **state) {
    (void)state;
    static const uint32_t bad[] = {0,        3,        5,         31, 33, 48, (1u << 20) + 1,
                                   1u << 21, 1u << 31, UINT32_MAX};
    writer w = {0};
    for (size_t i = 0; i < FTI_COUNT(bad); i++) {
        start(&w, 0, 1);
        fti_gw_integer(&w, "general.alignment", FTI_META_U32, bad[i]);
        refused(&w, FTK_E_CKPT_METADATA, "key 'general.alignment': found ", "g11 alignment %u",
                bad[i]);
    }
    for (uint32_t type = 0; type < FTI_META_TYPES; type++) {
        if (type == FTI_META_U32) continue;
        start(&w, 0, 1);
        any_value(&w, "general.alignment", type);
        refused(&w, FTK_E_CKPT_METADATA, "wanted UINT32", "g11 alignment of type %u", type);
    }
    assert_int_equal(broken, 0);
}

static void test_architecture(void **state) {
    (void)state;
    writer w = {0};
    fti_gw_header(&w, 3, 0, 0);
    refused(&w, FTK_E_CKPT_METADATA, "'general.architecture' is missing", "no keys");
    fti_gw_header(&w, 3, 0, 1);
    fti_gw_text(&w, "general.name", "toy");
    refused(&w, FTK_E_CKPT_METADATA, "'general.architecture' is missing", "no architecture");
    fti_gw_header(&w, 3, 0, 1);
    fti_gw_text(&w, "general.architecture", "");
    refused(&w, FTK_E_CKPT_METADATA, "'general.architecture' is empty", "empty architecture");
    for (uint32_t type = 0; type < FTI_META_TYPES; type++) {
        if (type == FTI_META_STRING) continue;
        fti_gw_header(&w, 3, 0, 1);
        any_value(&w, "general.architecture", type);
        refused(&w, FTK_E_CKPT_METADATA, "'general.architecture': found", "architecture as %u",
                type);
        start(&w, 0, 1);
        any_value(&w, "general.type", type);
        refused(&w, FTK_E_CKPT_METADATA, "'general.type': found", "general.type as %u", type);
    }
    fti_gw_header(&w, 3, 1, 1);
    fti_gw_text(&w, "general.architecture", "clip");
    vector(&w, "v.blk.0.w", 8, 0);
    finish(&w, 32);
    refused(&w, FTK_E_CKPT_PROJECTOR,
            FILE_NAME ": is a vision projector (mmproj), not a language model", "clip");
    start(&w, 0, 1);
    fti_gw_text(&w, "general.type", "mmproj");
    refused(&w, FTK_E_CKPT_PROJECTOR, "give the model file itself", "general.type mmproj");
    assert_int_equal(broken, 0);
}

/* Shards are files: tests/gguf/test_split.c has what becomes of them. */
static void split_case(uint32_t no, uint32_t count, ftk_status status, const char *piece) {
    writer w = {0};
    fti_gw_header(&w, 3, 0, no == 0 ? 3 : 2);
    if (no == 0) fti_gw_text(&w, "general.architecture", "toy");
    fti_gw_integer(&w, "split.no", FTI_META_U16, no);
    fti_gw_integer(&w, "split.count", FTI_META_U16, count);
    refused(&w, status, piece, "split %u of %u", no, count);
}

static void test_split(void **state) {
    (void)state;
    writer w = {0};
    split_case(0, 2, FTK_E_CKPT_READ, FILE_NAME ": is shard 1 of 2");
    split_case(1, 3, FTK_E_CKPT_READ, "shard 2 of 3");
    split_case(65534, 65535, FTK_E_CKPT_READ, "shard 65535 of 65535");
    split_case(3, 3, FTK_E_CKPT_FORMAT, "'split.no': found 3, wanted less than split.count, 3");
    split_case(1, 1, FTK_E_CKPT_FORMAT, "'split.no': found 1");
    start(&w, 0, 1);
    fti_gw_integer(&w, "split.tensors.count", FTI_META_I32, (uint32_t)-1);
    refused(&w, FTK_E_CKPT_METADATA, "'split.tensors.count': found -1", "negative tensors");
    start(&w, 0, 1);
    fti_gw_integer(&w, "split.count", FTI_META_I32, (uint32_t)-1);
    refused(&w, FTK_E_CKPT_METADATA, "'split.count': found -1", "negative split.count");
    start(&w, 0, 1);
    fti_gw_integer(&w, "split.count", FTI_META_U32, 65536);
    refused(&w, FTK_E_CKPT_METADATA, "'split.count': found 65536", "large split.count");
    for (uint32_t type = FTI_META_F32; type <= FTI_META_ARRAY; type++) {
        start(&w, 0, 1);
        any_value(&w, "split.count", type);
        refused(&w, FTK_E_CKPT_METADATA, "'split.count': found", "split.count as %u", type);
    }
    assert_int_equal(broken, 0);
}

/* ---- tensor infos ---- */

static void test_dimension_counts(void **state) {
    (void)state;
    static const uint32_t bad[] = {0, 5, 8, 9, 255, 0x7FFFFFFF, 0x80000000, UINT32_MAX};
    writer w = {0};
    for (size_t i = 0; i < FTI_COUNT(bad); i++) {
        char piece[64];
        snprintf(piece, sizeof piece, "tensor 'w': has %u dimensions", bad[i]);
        start(&w, 1, 0);
        fti_gw_string(&w, "w");
        fti_gw_u32(&w, bad[i]);
        fti_gw_fill(&w, 1, 128);
        refused(&w, FTK_E_CKPT_FORMAT, piece, "g4 %u dimensions", bad[i]);
    }
    assert_int_equal(broken, 0);
}

static void test_dimensions(void **state) {
    (void)state;
    writer w = {0};
    for (unsigned zeros = 1; zeros < 16; zeros++)
        for (int huge = 0; huge < 2; huge++) {
            uint64_t dims[4] = {32, 1, 1, 1}, large[4] = {1ull << 31, 1u << 10, 1u << 10, 1u << 10};
            uint64_t *d = huge ? large : dims;
            for (unsigned at = 0; at < 4; at++)
                if (zeros >> at & 1) d[at] = 0;
            char piece[64];
            snprintf(piece, sizeof piece, "tensor 'blk.0.w': dimension %d is 0",
                     __builtin_ctz(zeros));
            one_tensor(&w, 4, d, FTK_TYPE_F32, 0, 128);
            refused(&w, FTK_E_CKPT_FORMAT, piece, "g6 zeros in dimensions 0x%x, huge %d", zeros,
                    huge);
        }
    static const uint64_t none_of_many[] = {0, UINT64_MAX};
    fti_gw_header(&w, 3, 1, 0);
    fti_gw_tensor(&w, "t", 2, none_of_many, FTK_TYPE_F32, 0);
    assert_int_equal(w.size, 65);
    refused(&w, FTK_E_CKPT_METADATA, "'general.architecture'", "g6 the 65 bytes of the report");
    static const uint64_t overflow[][4] = {
        {1ull << 32, 1ull << 32, 1, 1},
        {1ull << 62, 4, 1, 1},
        {1ull << 63, 1, 1, 1},
        {UINT64_MAX, 1, 1, 1},
        {1ull << 31, 1ull << 31, 1ull << 31, 1},
        {1u << 16, 1u << 16, 1u << 16, 1u << 16},
        {1, 1ull << 63, 1, 1},
        {1, 1, 1, UINT64_MAX},
        {INT64_MAX, 2, 1, 1},
        {1ull << 32, 1ull << 31, 1, 1},
        {3, 0x5555555555555556ull, 1, 1},
    };
    for (size_t i = 0; i < FTI_COUNT(overflow); i++) {
        one_tensor(&w, 4, overflow[i], FTK_TYPE_F32, 0, 128);
        refused(&w, FTK_E_CKPT_FORMAT, "number of elements overflows", "g7 product %zu", i);
    }
    assert_int_equal(broken, 0);
}

static void test_types(void **state) {
    (void)state;
    static const uint32_t more[] = {97,  127, 202,        233,        399,
                                    499, 500, 0x7FFFFFFF, 0x80000000, UINT32_MAX};
    static const uint64_t dims[] = {256, 2};
    writer w = {0};
    for (uint32_t i = 0; i < 65 + FTI_COUNT(more); i++) {
        uint32_t type = i < 65 ? i : more[i - 65], elements, bytes;
        if (fti_type_block(type, &elements, &bytes)) continue;
        char piece[64];
        snprintf(piece, sizeof piece, "tensor 'blk.0.w': type %u (%s)", type, fti_type_name(type));
        one_tensor(&w, 2, dims, type, 0, 4096);
        refused(&w, FTK_E_CKPT_TYPE, piece, "g5 type %u", type);
    }
    one_tensor(&w, 2, dims, 36, 0, 4096);
    refused(&w, FTK_E_CKPT_TYPE, "type 36 (IQ4_NL_4_4)", "g5 removed type by name");
    assert_int_equal(broken, 0);
}

static void test_b7_blocks(void **state) {
    (void)state;
    writer w = {0};
    for (uint32_t type = 0; type < 43; type++) {
        uint32_t elements = 0, bytes = 0;
        if (!fti_type_block(type, &elements, &bytes) || elements == 1) continue;
        const uint64_t lengths[] = {1, elements / 2, elements + 1, 3 * elements - 1};
        for (size_t i = 0; i < FTI_COUNT(lengths); i++) {
            const uint64_t dims[] = {lengths[i], elements};
            char piece[128];
            snprintf(piece, sizeof piece,
                     "'blk.0.w': row length %" PRIu64 " is not a multiple of %s's block size %u",
                     lengths[i], fti_type_name(type), elements);
            one_tensor(&w, 2, dims, type, 0, 4096);
            refused(&w, FTK_E_CKPT_FORMAT, piece, "%" PRIu64 " of type %u", lengths[i], type);
        }
    }
    static const uint64_t reported[] = {896, 4864};
    one_tensor(&w, 2, reported, FTK_TYPE_Q4_K, 0, 4096);
    refused(&w, FTK_E_CKPT_FORMAT, "row length 896 is not a multiple of Q4_K's block size 256",
            "row of 896");
    assert_int_equal(broken, 0);
}

/* As many elements as an int64 can count, in each type: either the bytes do not
 * fit 64 bits, or the file is too short. */
static void test_largest_sizes(void **state) {
    (void)state;
    writer w = {0};
    for (uint32_t type = 0; type < 43; type++) {
        uint32_t elements = 0, bytes = 0;
        if (!fti_type_block(type, &elements, &bytes)) continue;
        const uint64_t dims[][4] = {{1ull << 62, 1, 1, 1},
                                    {256, 1ull << 54, 1, 1},
                                    {256, 1u << 18, 1u << 18, 1u << 18},
                                    {1ull << 32, 1ull << 20, 1, 1}};
        for (size_t i = 0; i < FTI_COUNT(dims); i++) {
            uint64_t blocks = dims[i][0] / elements * dims[i][1] * dims[i][2] * dims[i][3];
            bool overflows = blocks > UINT64_MAX / bytes;
            one_tensor(&w, 4, dims[i], type, 0, 64);
            refused(&w, overflows ? FTK_E_CKPT_FORMAT : FTK_E_CKPT_TRUNCATED,
                    overflows ? "size in bytes overflows" : "outside the file",
                    "g7 type %u, shape %zu", type, i);
        }
    }
    assert_int_equal(broken, 0);
}

/* ---- where tensors lie ---- */

static void aligned_tensor(writer *w, uint32_t alignment, uint64_t n, uint64_t offset,
                           size_t payload) {
    start(w, 1, 1);
    fti_gw_integer(w, "general.alignment", FTI_META_U32, alignment);
    vector(w, "t", n, offset);
    fti_gw_pad(w, alignment);
    fti_gw_fill(w, 1, payload);
}

static void test_offsets(void **state) {
    (void)state;
    static const uint64_t askew[] = {1, 4, 16, 31, 33, 63, UINT64_MAX, UINT64_MAX - 1};
    static const uint32_t alignments[] = {2, 8, 64, 4096, 1u << 20};
    writer w = {0};
    for (size_t i = 0; i < FTI_COUNT(askew); i++) {
        aligned_tensor(&w, 32, 8, askew[i], 4096);
        refused(&w, FTK_E_CKPT_FORMAT, "tensor 't': offset", "g15 offset %" PRIu64, askew[i]);
    }
    for (size_t i = 0; i < FTI_COUNT(alignments); i++) {
        aligned_tensor(&w, alignments[i], 8, alignments[i] / 2, 64);
        refused(&w, FTK_E_CKPT_FORMAT, "not a multiple of the alignment",
                "g15 half of alignment %u", alignments[i]);
        aligned_tensor(&w, alignments[i], 8, alignments[i], alignments[i] + 31);
        refused(&w, FTK_E_CKPT_TRUNCATED, "tensor 't': its data lie outside",
                "g15 one byte short, alignment %u", alignments[i]);
    }
    static const uint64_t beyond[] = {64,         4096,           1ull << 31,
                                      1ull << 32, 1ull << 40,     (1ull << 63) - 32,
                                      1ull << 63, UINT64_MAX - 31};
    for (size_t i = 0; i < FTI_COUNT(beyond); i++) {
        aligned_tensor(&w, 32, 8, beyond[i], 64);
        refused(&w, FTK_E_CKPT_TRUNCATED, "the file has 224:", "g15 offset %" PRIu64, beyond[i]);
    }
    aligned_tensor(&w, 32, 17, 0, 67);
    refused(&w, FTK_E_CKPT_TRUNCATED, "expected at least 228 bytes, the file has 227",
            "g15 data shorter by one byte");
    start(&w, 1, 0);
    vector(&w, "t", 8, 0);
    refused(&w, FTK_E_CKPT_TRUNCATED, "outside the file", "g15 no padding, no data");
    start(&w, 3, 0);
    vector(&w, "near", 8, 32);
    vector(&w, "far", 8, 4096);
    vector(&w, "first", 8, 0);
    finish(&w, 64);
    refused(&w, FTK_E_CKPT_TRUNCATED,
            "tensor 'far': its data lie outside the file: expected at least 4320 bytes",
            "g15 farthest tensor in the middle");
    assert_int_equal(broken, 0);
}

/* Sizes whose sum, padded or not, passes 2^64. */
static void test_sums(void **state) {
    (void)state;
    static const uint32_t alignments[] = {1, 32, 4096, 1u << 20};
    writer w = {0};
    for (size_t i = 0; i < FTI_COUNT(alignments); i++)
        for (uint64_t less = 1; less <= 4; less++) {
            aligned_tensor(&w, alignments[i], (1ull << 62) - less, 0, 64);
            refused(&w, FTK_E_CKPT_TRUNCATED, "outside the file",
                    "g8 2^64 - %" PRIu64 " bytes, alignment %u", 4 * less, alignments[i]);
        }
    static const uint64_t halves[] = {1ull << 61, (1ull << 61) + 8, (1ull << 61) - 8};
    for (size_t i = 0; i < FTI_COUNT(halves); i++) {
        start(&w, 3, 0);
        vector(&w, "a", halves[i], 0);
        vector(&w, "b", halves[i], 4 * halves[i]);
        vector(&w, "c", 8, 8 * halves[i]);
        finish(&w, 64);
        refused(&w, FTK_E_CKPT_TRUNCATED, "outside the file", "g9 sum of halves %zu", i);
    }
    assert_int_equal(broken, 0);
}

/* 2^64 - 2 is the largest size that a number of elements below 2^63 can have. */
static void test_sizes_beside_2_64(void **state) {
    (void)state;
    static const uint32_t alignments[] = {1, 2, 32, 4096, 1u << 20};
    writer w = {0};
    for (size_t i = 0; i < FTI_COUNT(alignments); i++)
        for (uint64_t less = 1; less <= 2; less++) {
            const uint64_t n = (1ull << 63) - less;
            start(&w, 1, 1);
            fti_gw_integer(&w, "general.alignment", FTI_META_U32, alignments[i]);
            fti_gw_tensor(&w, "t", 1, &n, FTK_TYPE_F16, 0);
            fti_gw_pad(&w, alignments[i]);
            fti_gw_fill(&w, 1, 64);
            refused(&w, FTK_E_CKPT_TRUNCATED, "expected at least 18446744073709551615 bytes",
                    "g8 2^64 - %" PRIu64 " bytes, alignment %u", 2 * less, alignments[i]);
        }
    assert_int_equal(broken, 0);
}

/* The largest sum of two that fits 64 bits, and more tensors on top of it. */
static void test_sums_and_more(void **state) {
    (void)state;
    static const uint64_t half = 1ull << 61;
    char name[32];
    writer w = {0};
    for (unsigned more = 0; more <= 16; more++)
        for (uint64_t less = 8; less <= 32; less += 8) {
            start(&w, 2 + more, 0);
            vector(&w, "a", half, 0);
            vector(&w, "b", half - less, 4 * half);
            for (unsigned i = 0; i < more; i++)
                vector(&w, format(name, sizeof name, "t", i), 8, 8 * half - 4 * less + 32 * i);
            finish(&w, 64);
            refused(&w, FTK_E_CKPT_TRUNCATED, "tensor 'a': its data lie outside the file",
                    "g10 2^64 - %" PRIu64 " bytes and %u tensors more", 4 * less, more);
        }
    assert_int_equal(broken, 0);
}

static void test_overlaps(void **state) {
    (void)state;
    static const struct {
        uint64_t offset[3], n[3];
        const char *piece;
    } list[] = {
        {{0, 0, 512}, {16, 16, 8}, "overlap"},
        {{0, 32, 512}, {9, 8, 8}, "tensor 'b': its data at byte"},
        {{32, 0, 512}, {8, 16, 8}, "those of tensor 'b'"},
        {{512, 256, 0}, {8, 8, 65}, "tensor 'b': its data at byte"},
        {{0, 64, 32}, {8, 8, 16}, "those of tensor 'c'"},
        {{0, 128, 64}, {128, 8, 8}, "those of tensor 'a'"},
        {{0, 256, 256}, {8, 1, 128}, "overlap"},
    };
    writer w = {0};
    for (size_t i = 0; i < FTI_COUNT(list); i++) {
        start(&w, 3, 0);
        vector(&w, "a", list[i].n[0], list[i].offset[0]);
        vector(&w, "b", list[i].n[1], list[i].offset[1]);
        vector(&w, "c", list[i].n[2], list[i].offset[2]);
        finish(&w, 1024);
        refused(&w, FTK_E_CKPT_FORMAT, list[i].piece, "g15 overlap %zu", i);
    }
    assert_int_equal(broken, 0);
}

static void test_duplicate_tensors(void **state) {
    (void)state;
    writer w = {0};
    for (unsigned between = 0; between < 20; between += 5) {
        char piece[64];
        start(&w, 2 + between, 0);
        vector(&w, "same", 8, 0);
        for (unsigned n = 1; n <= between; n++)
            vector(&w, format(piece, sizeof piece, "t", n), 8, n * 32);
        vector(&w, "same", 8, 32 * (between + 1));
        finish(&w, 4096);
        snprintf(piece, sizeof piece, "'same': occurs twice, as tensor number 0 and %u",
                 between + 1);
        refused(&w, FTK_E_CKPT_FORMAT, piece, "g15 duplicate tensor after %u", between);
    }
    assert_int_equal(broken, 0);
}

static void quantized(writer *w, uint32_t key_type, uint64_t version, uint32_t type) {
    static const uint64_t n = 256;
    start(w, 1, 1);
    fti_gw_integer(w, "general.quantization_version", key_type, version);
    fti_gw_tensor(w, "q", 1, &n, type, 0);
    finish(w, 1024);
}

static void test_quantization_version(void **state) {
    (void)state;
    static const uint64_t bad[] = {0, 1, 3, UINT32_MAX};
    writer w = {0};
    for (size_t i = 0; i < FTI_COUNT(bad); i++) {
        quantized(&w, FTI_META_U32, bad[i], FTK_TYPE_Q4_K);
        refused(&w, FTK_E_CKPT_METADATA, "'general.quantization_version': found",
                "version %" PRIu64, bad[i]);
    }
    quantized(&w, FTI_META_F32, 0x40000000, FTK_TYPE_Q4_K);
    refused(&w, FTK_E_CKPT_METADATA, "found FLOAT32, wanted an integer", "version as a float");
    assert_int_equal(broken, 0);
}

/* ---- damage without a name ---- */

/* Every kind of value; tensors in file order, the last one unpadded. */
static size_t small_plain(writer *w) {
    static const uint64_t matrix[] = {32, 3};
    fti_gw_header(w, 3, 3, 6);
    fti_gw_text(w, "general.architecture", "toy");
    fti_gw_integer(w, "toy.block_count", FTI_META_U32, 2);
    fti_gw_key(w, "toy.eps", FTI_META_F32);
    fti_gw_f32(w, 1e-6f);
    fti_gw_integer(w, "toy.flag", FTI_META_BOOL, 1);
    fti_gw_array(w, "toy.tokens", FTI_META_STRING, 3);
    fti_gw_string(w, "a");
    fti_gw_string(w, "");
    fti_gw_string(w, "long token");
    fti_gw_array(w, "toy.types", FTI_META_I32, 3);
    for (uint32_t i = 0; i < 3; i++) fti_gw_u32(w, i);
    vector(w, "norm.weight", 9, 0);
    fti_gw_tensor(w, "up.weight", 2, matrix, FTK_TYPE_Q8_0, 64);
    vector(w, "bias", 3, 192);
    fti_gw_pad(w, 32);
    size_t metadata = w->size;
    fti_gw_fill(w, 0x11, 192 + 12);
    return metadata;
}

/* Version 2, wide alignment, a K-quant bank, tensors out of order and with a hole. */
static size_t small_banks(writer *w) {
    static const uint64_t bank[] = {256, 1, 2};
    fti_gw_header(w, 2, 2, 4);
    fti_gw_integer(w, "general.alignment", FTI_META_U32, 64);
    fti_gw_integer(w, "general.quantization_version", FTI_META_U32, 2);
    fti_gw_text(w, "general.type", "model");
    fti_gw_text(w, "general.architecture", "toy");
    fti_gw_tensor(w, "blk.0.ffn_up_exps.weight", 3, bank, FTK_TYPE_Q4_K, 128);
    vector(w, "output_norm.weight", 16, 0);
    fti_gw_pad(w, 64);
    size_t metadata = w->size;
    fti_gw_fill(w, 0x22, 128 + 288);
    return metadata;
}

/* Each scalar type, alone and as an array; no tensors, so no padding either. */
static size_t small_values(writer *w) {
    uint32_t types = 0;
    char key[32];
    fti_gw_header(w, 3, 0, 1 + 2 * 11);
    fti_gw_text(w, "general.architecture", "toy");
    for (uint32_t type = 0; type < FTI_META_TYPES; type++) {
        if (type == FTI_META_STRING || type == FTI_META_ARRAY) continue;
        fti_gw_integer(w, format(key, sizeof key, "one.", type), type, 1);
        fti_gw_array(w, format(key, sizeof key, "two.", type), type, 2);
        fti_gw_fill(w, type == FTI_META_BOOL ? 0 : 0x7F, 2 * fti_gw_scalar_bytes(type));
        types++;
    }
    assert_int_equal(types, 11);
    return w->size;
}

static size_t (*const small_files[])(writer *) = {small_plain, small_banks, small_values};

static void test_truncations(void **state) {
    (void)state;
    for (size_t f = 0; f < FTI_COUNT(small_files); f++) {
        writer w = {0};
        small_files[f](&w);
        for (size_t size = 0; size < w.size; size++) {
            char name[64];
            snprintf(name, sizeof name, "g16 small file %zu cut to %zu bytes", f, size);
            check_refusal(name, w.data, size, FTK_E_CKPT_TRUNCATED, "");
        }
        fti_gw_free(&w);
    }
    assert_int_equal(broken, 0);
}

/* True if accepted. */
static bool damaged(const uint8_t *data, size_t size, size_t at) {
    uint8_t *copy = exact_copy(data, size);
    fti_checkpoint *c = NULL;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = fti_checkpoint_from_memory(copy, size, FILE_NAME, &c, &err);
    const char *trouble = NULL;
    if (status == FTK_OK)
        trouble = fti_checkpoint_walk(c, copy, size);
    else if (status == FTK_E_NO_MEMORY || err.message[0] == 0)
        trouble = "refused for memory, or without a message";
    if (trouble) {
        broken++;
        print_error("damage at byte %zu: %s\n", at, trouble);
    }
    fti_checkpoint_close(c);
    free(copy);
    return status == FTK_OK;
}

static void test_flipped_bits(void **state) {
    (void)state;
    for (size_t f = 0; f < FTI_COUNT(small_files); f++) {
        writer w = {0};
        size_t metadata = small_files[f](&w), accepted = 0;
        for (size_t bit = 0; bit < 8 * metadata; bit++) {
            uint8_t mask = (uint8_t)(1u << (bit % 8));
            w.data[bit / 8] ^= mask;
            accepted += damaged(w.data, w.size, bit / 8);
            w.data[bit / 8] ^= mask;
        }
        assert_true(accepted > 0 && accepted < 8 * metadata);
        fti_gw_free(&w);
    }
    assert_int_equal(broken, 0);
}

static void test_replaced_bytes(void **state) {
    (void)state;
    static const uint8_t values[] = {0x00, 0x01, 0x7F, 0x80, 0xFF};
    for (size_t f = 0; f < FTI_COUNT(small_files); f++) {
        writer w = {0};
        size_t metadata = small_files[f](&w);
        for (size_t at = 0; at < metadata; at++) {
            uint8_t old = w.data[at];
            for (size_t i = 0; i < FTI_COUNT(values); i++) {
                w.data[at] = values[i];
                damaged(w.data, w.size, at);
            }
            w.data[at] = old;
        }
        fti_gw_free(&w);
    }
    assert_int_equal(broken, 0);
}

/* ---- what must be accepted ---- */

static void test_accepted_files(void **state) {
    (void)state;
    writer w = {0};
    for (size_t f = 0; f < FTI_COUNT(small_files); f++) {
        small_files[f](&w);
        accepted(&w, f == 1 ? "g15 a hole between tensors" : "small file");
    }
    start(&w, 0, 0);
    accepted(&w, "no tensors");
    start(&w, 0, 2);
    fti_gw_integer(&w, "split.count", FTI_META_U16, 1);
    fti_gw_integer(&w, "split.no", FTI_META_U16, 0);
    accepted(&w, "split into one");
    for (uint32_t alignment = 1; alignment <= 1u << 20; alignment *= 2) {
        aligned_tensor(&w, alignment, 8, alignment < 32 ? 32 : alignment, alignment + 32 + 32);
        accepted(&w, "g11 an alignment that is good");
    }
    quantized(&w, FTI_META_U64, 2, FTK_TYPE_Q4_K);
    accepted(&w, "quantization version as u64");
    quantized(&w, FTI_META_U32, 1, FTK_TYPE_F32);
    accepted(&w, "old quantization version without quantised tensors");
    start(&w, 0, 2);
    fti_gw_key(&w, "text", FTI_META_STRING);
    fti_gw_string_sized(&w, "with\0NUL", 8);
    fti_gw_array(&w, "none", FTI_META_STRING, 0);
    accepted(&w, "NUL in a value, empty array at the end");
    assert_int_equal(broken, 0);
}

#define LONGEST_NAME "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"

static void test_accepted_names(void **state) {
    (void)state;
    static const char *const names[] = {"blk.4294967296.w", "blk.-1.w",  "blk.00.w", "blk.999.w",
                                        "a/../b",           "new\nline", "\xFF\xFE", LONGEST_NAME};
    writer w = {0};
    start(&w, FTI_COUNT(names), 1);
    fti_gw_u64(&w, 65535);
    fti_gw_fill(&w, 'k', 65535);
    fti_gw_u32(&w, FTI_META_U8);
    fti_gw_u8(&w, 1);
    for (size_t i = 0; i < FTI_COUNT(names); i++) vector(&w, names[i], 8, 32 * i);
    assert_int_equal(strlen(LONGEST_NAME), 63);
    finish(&w, 32 * FTI_COUNT(names));
    accepted(&w, "g19 odd names");
    assert_int_equal(broken, 0);
}

/* inspect must be able to show types that no operator reads. */
static void test_accepted_types(void **state) {
    (void)state;
    writer w = {0};
    unsigned types = 0;
    for (uint32_t type = 0; type < 64; type++) {
        uint32_t elements = 0, bytes = 0;
        if (!fti_type_block(type, &elements, &bytes)) continue;
        const uint64_t dims[] = {2ull * elements, 3, 1, 2};
        one_tensor(&w, 4, dims, type, 32, 32 + 12ull * bytes);
        accepted(&w, "g4 four dimensions");
        one_tensor(&w, 4, dims, type, 32, 32 + 12ull * bytes - 1);
        refused(&w, FTK_E_CKPT_TRUNCATED, "outside the file", "g15 type %u, a byte short", type);
        types++;
    }
    assert_int_equal(types, 35);
    assert_int_equal(broken, 0);
}

/* ---- time ---- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* G24: what takes longer than a second has been made to take it. */
static void timed(writer *w, ftk_status wanted, const char *piece, const char *name) {
    fti_checkpoint *c = NULL;
    ftk_error err = FTK_ERROR_INIT;
    double begin = seconds();
    ftk_status status = fti_checkpoint_from_memory(w->data, w->size, FILE_NAME, &c, &err);
    double took = seconds() - begin;
    if (status != wanted || !strstr(err.message, piece))
        fail_msg("wanted %s \"%s\", got %s \"%s\"", ftk_status_name(wanted), piece,
                 ftk_status_name(status), err.message);
    if (status == FTK_OK) assert_null(fti_checkpoint_walk(c, w->data, w->size));
    fti_checkpoint_close(c);
    fti_gw_free(w);
    assert_true(took < (SANITIZED ? 5.0 : 1.0));
    count_case(name);
}

static void many_keys(writer *w, uint32_t count, bool repeat_first) {
    char key[32];
    fti_gw_header(w, 3, 0, count);
    fti_gw_text(w, "general.architecture", "toy");
    for (uint32_t i = 1; i < count; i++) {
        uint32_t number = repeat_first && i == count - 1 ? 1 : i;
        fti_gw_integer(w, format(key, sizeof key, "k", number), FTI_META_U8, 0);
    }
}

static void test_many_keys(void **state) {
    (void)state;
    writer w = {0};
    many_keys(&w, 65536, false);
    timed(&w, FTK_OK, "", "g24 65536 keys");
    many_keys(&w, 65536, true);
    timed(&w, FTK_E_CKPT_FORMAT, "key 'k1': occurs twice, as key number 1 and 65535",
          "g24 65536 keys, the last like the first");
    many_keys(&w, 200000, false);
    timed(&w, FTK_E_CKPT_FORMAT, "200000 metadata keys", "g24 200000 keys");
}

/* Offsets that fall while the numbers rise, so that sorting has work to do. */
static void many_tensors(writer *w, uint32_t count, bool overlap) {
    char name[32];
    start(w, count, 1);
    fti_gw_integer(w, "general.alignment", FTI_META_U32, 1);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t n = overlap && i == count / 2 ? 2 : 1;
        fti_gw_tensor(w, format(name, sizeof name, "t", i), 1, &n, 24, count - 1 - i);
    }
    fti_gw_fill(w, 1, count);
}

static void test_many_tensors(void **state) {
    (void)state;
    writer w = {0};
    many_tensors(&w, 100000, false);
    timed(&w, FTK_OK, "", "g24 100000 tensors");
    many_tensors(&w, 100000, true);
    timed(&w, FTK_E_CKPT_FORMAT, "tensor 't49999': its data at byte",
          "g24 100000 tensors, one too long");
    many_tensors(&w, 200000, false);
    timed(&w, FTK_E_CKPT_FORMAT, "200000 tensors", "g24 200000 tensors");
}

static void largest(writer *w, bool overlap) {
    char name[32];
    fti_gw_header(w, 3, 100000, 65536);
    fti_gw_text(w, "general.architecture", "toy");
    for (uint32_t i = 1; i < 65536; i++)
        fti_gw_integer(w, format(name, sizeof name, "k", i), FTI_META_U8, 0);
    for (uint64_t i = 0; i < 100000; i++)
        vector(w, format(name, sizeof name, "t", i), 8, 32 * (overlap && i == 99999 ? 99998 : i));
    finish(w, 32 * 100000);
}

/* The costliest file that is refused: every record is there, the last is bad. */
static void test_memory_of_the_largest_refusal(void **state) {
    (void)state;
    writer w = {0};
    largest(&w, true);
    refused(&w, FTK_E_CKPT_FORMAT, "overlap", "g12 the largest refusal");
    assert_int_equal(broken, 0);
}

/* Less and less address space: each allocation fails once. */
static void test_out_of_memory(void **state) {
    (void)state;
    if (SANITIZED) {
        print_message("skip: a sanitizer's own memory does not fit a limited address space\n");
        skip();
    }
    writer w = {0};
    largest(&w, false);
    unsigned failures = 0;
    for (rlim_t allowance = 16u << 20; allowance > 0; allowance -= 512u << 10) {
        fti_checkpoint *c = NULL;
        ftk_error err = FTK_ERROR_INIT;
        malloc_trim(0);
        ftk_status status = open_with_limit(w.data, w.size, allowance, &c, &err);
        if (allowance == 16u << 20) assert_int_equal(status, FTK_OK);
        if (status == FTK_OK) assert_null(fti_checkpoint_walk(c, w.data, w.size));
        if (status != FTK_OK) assert_int_equal(status, FTK_E_NO_MEMORY);
        if (status != FTK_OK) assert_non_null(strstr(err.message, "out of host memory"));
        failures += status != FTK_OK;
        fti_checkpoint_close(c);
    }
    assert_true(failures >= 10);
    fti_gw_free(&w);
}

/* Names that all hash to one slot of the index that this many keys get. */
static void test_colliding_names(void **state) {
    (void)state;
    enum { COUNT = 1000, SLOTS = 2048 };
    writer w = {0};
    char key[32];
    fti_gw_header(&w, 3, 0, COUNT);
    for (uint64_t found = 0, n = 0; found < COUNT; n++) {
        format(key, sizeof key, "", n);
        if (XXH3_64bits(key, strlen(key)) % SLOTS != 7) continue;
        fti_gw_integer(&w, key, FTI_META_U8, 0);
        found++;
    }
    timed(&w, FTK_E_CKPT_FORMAT, "made to slow readers down", "g24 names of one hash");
}

/* Runs last. The causes that are not in the list lie outside the reader. */
static void test_every_cause_has_files(void **state) {
    (void)state;
    static const unsigned wanted[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,
                                      10, 11, 12, 13, 15, 16, 19, 20, 24};
    for (size_t i = 0; i < FTI_COUNT(wanted); i++)
        print_message("G%u: %u files\n", wanted[i], causes[wanted[i]]);
    print_message("%u files in all\n", cases);
    for (size_t i = 0; i < FTI_COUNT(wanted); i++)
        if (causes[wanted[i]] < 3) fail_msg("G%u has too few files", wanted[i]);
    assert_true(cases >= 700);
}

#define TEST(name) cmocka_unit_test_setup(name, clear_broken)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_header),
        TEST(test_b9_versions),
        TEST(test_counts),
        TEST(test_counts_of_other_records),
        TEST(test_string_lengths),
        TEST(test_string_lengths_that_fit),
        TEST(test_names),
        TEST(test_b13_arrays_beyond_the_file),
        TEST(test_value_types),
        TEST(test_bools),
        TEST(test_duplicate_keys),
        TEST(test_tokenizer_arrays_twice),
        TEST(test_alignment),
        TEST(test_architecture),
        TEST(test_split),
        TEST(test_dimension_counts),
        TEST(test_dimensions),
        TEST(test_types),
        TEST(test_b7_blocks),
        TEST(test_largest_sizes),
        TEST(test_offsets),
        TEST(test_sums),
        TEST(test_sizes_beside_2_64),
        TEST(test_sums_and_more),
        TEST(test_overlaps),
        TEST(test_duplicate_tensors),
        TEST(test_quantization_version),
        TEST(test_truncations),
        TEST(test_flipped_bits),
        TEST(test_replaced_bytes),
        TEST(test_accepted_files),
        TEST(test_accepted_names),
        TEST(test_accepted_types),
        TEST(test_many_keys),
        TEST(test_many_tensors),
        TEST(test_memory_of_the_largest_refusal),
        TEST(test_out_of_memory),
        TEST(test_colliding_names),
        TEST(test_every_cause_has_files),
    };
    return cmocka_run_group_tests_name("test_gguf", tests, NULL, NULL);
}
