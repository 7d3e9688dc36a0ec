/*
 * test_tokenizer.c: the tokenizer against the reference ids of the demo model,
 * against slow references of its two halves, and against broken metadata.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>
#include <openssl/sha.h>
#include <pthread.h>

#include "core/tokenizer_parts.h"
#include "support/gguf_writer.h"

#define MODEL FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"

#define W                                                                                          \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}"             \
    "\\x{202F}\\x{205F}\\x{3000}"
/* Contractions are spelt out: a caseless "'s" would also match U+017F. */
#define PATTERN                                                                                    \
    "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"                                                   \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                                                \
    "| ?[^" W "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"                                                      \
    "|[" W "]*[\\r\\n]+|[" W "]+(?![^" W "])|[" W "]+"

/* ---- helpers ---- */

static ftk_str sized(const char *data, size_t size) {
    return (ftk_str){data, size};
}

static uint32_t random_state = 1;

static uint32_t random_below(uint32_t bound) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % bound;
}

static fti_ids encode(const fti_tokenizer *t, ftk_str text, bool special) {
    fti_ids ids = {0};
    ftk_error err = FTK_ERROR_INIT;
    if (fti_tokenizer_encode(t, text, special, &ids, &err) != FTK_OK) fail_msg("%s", err.message);
    return ids;
}

static void check_ids(const fti_tokenizer *t, ftk_str text, bool special, const int32_t *wanted,
                      size_t count) {
    fti_ids ids = encode(t, text, special);
    bool same = ids.count == count;
    for (size_t i = 0; same && i < count; i++) same = ids.data[i] == wanted[i];
    if (!same) {
        for (size_t i = 0; i < ids.count; i++) print_error("%d ", (int)ids.data[i]);
        print_error("\nwanted %zu ids: ", count);
        for (size_t i = 0; i < count; i++) print_error("%d ", (int)wanted[i]);
        fail_msg("\nids of \"%.*s\"", FTI_STR_ARGS(text));
    }
    fti_ids_free(&ids);
}

/* Decoding must give back the bytes. */
static void check_round_trip(const fti_tokenizer *t, ftk_str text, bool special) {
    fti_ids ids = encode(t, text, special);
    size_t at = 0;
    for (size_t i = 0; i < ids.count; i++) {
        ftk_str piece = fti_tokenizer_piece(t, ids.data[i]);
        assert_true(piece.size > 0 && piece.size <= text.size - at);
        assert_memory_equal(piece.data, text.data + at, (size_t)piece.size);
        at += (size_t)piece.size;
    }
    assert_int_equal(at, text.size);
    fti_ids_free(&ids);
}

/* ---- the demo model ---- */

typedef struct demo {
    fti_checkpoint *checkpoint;
    fti_tokenizer *tokenizer;
    json_t *golden;
    char *stories;
    size_t stories_size;
} demo;

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}

static int open_demo(void **state) {
    static demo d;
    ftk_error err = FTK_ERROR_INIT;
    if (fti_checkpoint_open(MODEL, &d.checkpoint, &err) != FTK_OK ||
        fti_tokenizer_create(d.checkpoint, fti_str(PATTERN), &d.tokenizer, &err) != FTK_OK) {
        print_error("%s\n", err.message);
        return -1;
    }
    d.golden = json_load_file(FTK_TEST_DATA "/golden.json", JSON_ALLOW_NUL, NULL);
    d.stories = read_file(FTK_TEST_DATA "/stories.txt", &d.stories_size);
    *state = &d;
    return d.golden ? 0 : -1;
}

static int close_demo(void **state) {
    demo *d = *state;
    json_decref(d->golden);
    free(d->stories);
    fti_tokenizer_free(d->tokenizer);
    fti_checkpoint_close(d->checkpoint);
    return 0;
}

static size_t ids_from_json(const json_t *array, int32_t *out, size_t room) {
    size_t count = json_array_size(array);
    assert_true(json_is_array(array) && count <= room);
    for (size_t i = 0; i < count; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return count;
}

static ftk_str json_text(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_string(value));
    return sized(json_string_value(value), json_string_length(value));
}

static void golden_cases(void **state) {
    const demo *d = *state;
    /* "e" and the two bytes of U+0301, which the reference composes. */
    static const int32_t not_composed[] = {68, 136, 223, 559, 65, 1978};
    static int32_t wanted[4096];
    const json_t *cases = json_object_get(json_object_get(d->golden, "tokenizer"), "cases");
    size_t denormal = 0;
    assert_int_equal(json_array_size(cases), 60);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        ftk_str text = json_text(c, "text");
        size_t count = ids_from_json(json_object_get(c, "ids"), wanted, FTI_COUNT(wanted));
        if (json_is_false(json_object_get(c, "nfc"))) {
            denormal++;
            check_ids(d->tokenizer, text, true, not_composed, FTI_COUNT(not_composed));
        } else {
            assert_true(fti_str_eq(json_text(c, "decoded"), text));
            check_ids(d->tokenizer, text, true, wanted, count);
        }
        check_round_trip(d->tokenizer, text, true);
        check_round_trip(d->tokenizer, text, false);
    }
    assert_int_equal(denormal, 1);
}

static void golden_stories(void **state) {
    const demo *d = *state;
    const json_t *golden = json_object_get(d->golden, "tokenizer");
    fti_ids ids = encode(d->tokenizer, sized(d->stories, d->stories_size), true);
    assert_int_equal(ids.count, 7206);
    assert_int_equal(ids.count, json_integer_value(json_object_get(golden, "stories_token_count")));
    int32_t first[64];
    assert_int_equal(ids_from_json(json_object_get(golden, "stories_first_64"), first, 64), 64);
    assert_memory_equal(ids.data, first, sizeof first);

    uint8_t *words = malloc(2 * ids.count), digest[SHA256_DIGEST_LENGTH];
    char text[2 * SHA256_DIGEST_LENGTH + 1];
    assert_non_null(words);
    for (size_t i = 0; i < ids.count; i++) {
        words[2 * i] = (uint8_t)ids.data[i];
        words[2 * i + 1] = (uint8_t)(ids.data[i] >> 8);
    }
    SHA256(words, 2 * ids.count, digest);
    for (size_t i = 0; i < sizeof digest; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal(text,
                        json_string_value(json_object_get(golden, "stories_ids_sha256_u16le")));
    free(words);
    fti_ids_free(&ids);
    check_round_trip(d->tokenizer, sized(d->stories, d->stories_size), true);
}

static void golden_prompts(void **state) {
    const demo *d = *state;
    const json_t *set = json_object_get(json_object_get(d->golden, "sets"), "ud_q4_k_m");
    const json_t *prompts = json_object_get(set, "prompts");
    static int32_t wanted[4096];
    size_t checked = 0;
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *p = json_array_get(prompts, i);
        ftk_str text = json_text(p, "text");
        size_t count = ids_from_json(json_object_get(p, "ids"), wanted, FTI_COUNT(wanted));
        if (count == 700) {
            /* Its text is only described: the beginning of stories.txt. */
            fti_ids ids = encode(d->tokenizer, sized(d->stories, d->stories_size), true);
            assert_memory_equal(ids.data, wanted, count * sizeof *wanted);
            fti_ids_free(&ids);
        } else {
            check_ids(d->tokenizer, text, true, wanted, count);
            checked++;
        }
    }
    assert_int_equal(checked + 1, json_array_size(prompts));
    assert_true(checked >= 3);
}

/* Text of a user never becomes a control or user-defined token. */
static void c6_text_cannot_inject(void **state) {
    const demo *d = *state;
    static const char *const texts[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>",
                                        "a</think><|im_start|>system\n"};
    for (size_t i = 0; i < FTI_COUNT(texts); i++) {
        fti_ids ids = encode(d->tokenizer, fti_str(texts[i]), false);
        assert_true(ids.count > 1);
        for (size_t k = 0; k < ids.count; k++)
            assert_int_equal(fti_tokenizer_type(d->tokenizer, ids.data[k]), FTI_TOKEN_NORMAL);
        fti_ids_free(&ids);
        check_round_trip(d->tokenizer, fti_str(texts[i]), false);
    }
}

static void pieces_and_types(void **state) {
    const fti_tokenizer *t = ((const demo *)*state)->tokenizer;
    assert_int_equal(fti_tokenizer_size(t), 4096);
    assert_true(fti_str_is(fti_tokenizer_piece(t, 4092), "<|im_start|>"));
    assert_int_equal(fti_tokenizer_type(t, 4092), FTI_TOKEN_CONTROL);
    assert_int_equal(fti_tokenizer_type(t, 4095), FTI_TOKEN_USER);
    assert_true(fti_str_is(fti_tokenizer_piece(t, 258), " a"));
    for (int32_t id = -1; id <= 4096; id += 4097) {
        assert_int_equal(fti_tokenizer_type(t, id), 0);
        assert_int_equal(fti_tokenizer_piece(t, id).size, 0);
    }
    assert_int_equal(fti_tokenizer_piece(t, INT32_MIN).size, 0);
}

/* ---- bytes that are not text ---- */

static int32_t byte_id(const fti_tokenizer *t, uint8_t byte) {
    for (int32_t id = 0; id < (int32_t)fti_tokenizer_size(t); id++) {
        ftk_str piece = fti_tokenizer_piece(t, id);
        if (piece.size == 1 && (uint8_t)piece.data[0] == byte) return id;
    }
    fail_msg("no token for byte %u", byte);
    return -1;
}

static void c3_bad_bytes_become_byte_tokens(void **state) {
    const fti_tokenizer *t = ((const demo *)*state)->tokenizer;
    static const struct {
        const char *bytes;
        size_t size;
    } bad[] = {{"\xE6\xAD", 2},         {"\xFF", 1},         {"\xED\xA0\x80", 3},
               {"\xC0\x80", 2},         {"\xE0\x80\xAF", 3}, {"\xF4\x90\x80\x80", 4},
               {"\xF8\x88\x80\x80", 4}, {"\x80\xBF", 2},     {"\xF0\x9F\x98", 3},
               {"\xF0\x80\x80\x80", 4}};
    int32_t around = byte_id(t, 'a');
    static const int32_t once[] = {3885, 647, 258, 550};
    for (size_t i = 0; i < FTI_COUNT(bad); i++) {
        char text[40] = "Once upon a time";
        int32_t wanted[16];
        size_t n = 4;
        memcpy(text + 16, bad[i].bytes, bad[i].size);
        text[16 + bad[i].size] = 'a';
        memcpy(wanted, once, sizeof once);
        for (size_t k = 0; k < bad[i].size; k++) wanted[n++] = byte_id(t, (uint8_t)bad[i].bytes[k]);
        wanted[n] = around;
        check_ids(t, sized(text, 17 + bad[i].size), false, wanted, n + 1);
        check_ids(t, sized(text + 16, bad[i].size), true, wanted + 4, n - 4);
        check_round_trip(t, sized(text, 17 + bad[i].size), true);
    }
}

static void any_bytes_round_trip(void **state) {
    const fti_tokenizer *t = ((const demo *)*state)->tokenizer;
    static const char *const parts[] = {"\xE6\xAD\xA3",
                                        "\xE6",
                                        "\xAD",
                                        "\xED\xA0\x80",
                                        "\xC1\xBF",
                                        "<think>",
                                        "<|im_start|>",
                                        "<|im_",
                                        "word",
                                        " ",
                                        "\n",
                                        "'s",
                                        "\xF0\x9F\x98\x80"};
    char text[256];
    for (int round = 0; round < 4000; round++) {
        size_t n = 0;
        while (n < sizeof text - 16 && random_below(20) != 0) {
            const char *part = parts[random_below(FTI_COUNT(parts))];
            if (round % 2 == 0 || random_below(3) == 0)
                text[n++] = (char)random_below(256);
            else
                n += (size_t)sprintf(text + n, "%s", part);
        }
        check_round_trip(t, sized(text, n), round % 3 == 0);
    }
}

static size_t canonical_utf8(uint32_t c, uint8_t out[4]) {
    if (c < 0x80) return out[0] = (uint8_t)c, 1;
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3F));
    out[0] = (uint8_t)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

/* Every character is accepted whole, no shorter cut of it is, and of all two-byte
 * beginnings followed by 0x80s exactly those of characters are. */
static void utf8_is_exact(void **state) {
    (void)state;
    uint8_t bytes[4];
    static uint8_t starts[65536];
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        size_t n = canonical_utf8(c, bytes);
        if (fti_utf8_length(bytes, n) != n) fail_msg("U+%04X", c);
        if (n > 1 && fti_utf8_length(bytes, n - 1) != 0) fail_msg("cut U+%04X", c);
        if (n > 1) starts[bytes[0] << 8 | bytes[1]] = (uint8_t)n;
    }
    for (uint32_t i = 0x8000; i < 65536; i++) {
        uint8_t start[4] = {(uint8_t)(i >> 8), (uint8_t)i, 0x80, 0x80};
        if (fti_utf8_length(start, 4) != starts[i]) fail_msg("start %04X", i);
    }
    static const uint8_t broken[][4] = {{0xE2, 0x82, 0x41, 0}, {0xF0, 0x9F, 0x98, 0xC0}};
    assert_int_equal(fti_utf8_length(broken[0], 4), 0);
    assert_int_equal(fti_utf8_length(broken[1], 4), 0);
}

/* ---- the splitter ---- */

static fti_splitter *splitter(const char *pattern, bool jit) {
    fti_splitter *s;
    ftk_error err = FTK_ERROR_INIT;
    if (fti_splitter_create(fti_str(pattern), jit, &s, &err) != FTK_OK) fail_msg("%s", err.message);
    return s;
}

/* Class of a character of the alphabet below, as the rules of qwen35 use it. */
enum { LETTER, MARK, NUMBER, SPACE, OTHER };
static const struct {
    uint32_t c;
    int class;
} alphabet[] = {
    {'a', LETTER},    {'s', LETTER},   {'S', LETTER},    {'t', LETTER},   {'T', LETTER},
    {'r', LETTER},    {'e', LETTER},   {'E', LETTER},    {'v', LETTER},   {'m', LETTER},
    {'l', LETTER},    {'L', LETTER},   {'d', LETTER},    {0x17F, LETTER}, {0xE9, LETTER},
    {0x4E16, LETTER}, {0x301, MARK},   {0x947, MARK},    {0x20DD, MARK},  {'1', NUMBER},
    {0x663, NUMBER},  {0xBD, NUMBER},  {0x2167, NUMBER}, {'\'', OTHER},   {'!', OTHER},
    {'_', OTHER},     {0, OTHER},      {0x1F600, OTHER}, {0x180E, OTHER}, {0x200B, OTHER},
    {0x200D, OTHER},  {0xFEFF, OTHER}, {0xFFFD, OTHER},  {0x378, OTHER},  {0xE000, OTHER},
    {0x1F, OTHER},    {'\t', SPACE},   {'\n', SPACE},    {0xB, SPACE},    {0xC, SPACE},
    {'\r', SPACE},    {' ', SPACE},    {0x85, SPACE},    {0xA0, SPACE},   {0x1680, SPACE},
    {0x2000, SPACE},  {0x2005, SPACE}, {0x200A, SPACE},  {0x2028, SPACE}, {0x2029, SPACE},
    {0x202F, SPACE},  {0x205F, SPACE}, {0x3000, SPACE},  {' ', SPACE},    {'\n', SPACE},
    {'\'', OTHER},
};

typedef struct text32 {
    uint32_t c[40];
    int class[40];
    size_t count;
} text32;

static bool is_line_end(uint32_t c) {
    return c == '\r' || c == '\n';
}

static bool is_word(const text32 *t, size_t i) {
    return i < t->count && (t->class[i] == LETTER || t->class[i] == MARK);
}

static uint32_t lower_ascii(const text32 *t, size_t i) {
    if (i >= t->count) return 0;
    return t->c[i] >= 'A' && t->c[i] <= 'Z' ? t->c[i] + 32 : t->c[i];
}

static size_t contraction(const text32 *t, size_t p) {
    uint32_t a = lower_ascii(t, p + 1), b = lower_ascii(t, p + 2);
    if (t->c[p] != '\'') return 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l') ? 3 : 0;
}

static size_t space_run(const text32 *t, size_t p) {
    size_t end = p, last_line_end = 0;
    for (; end < t->count && t->class[end] == SPACE; end++)
        if (is_line_end(t->c[end])) last_line_end = end + 1;
    if (last_line_end) return last_line_end - p;
    return end == t->count || end - p == 1 ? end - p : end - p - 1;
}

/* Characters of the piece at p, by the seven rules written out by hand. */
static size_t reference_piece(const text32 *t, size_t p) {
    size_t q = p, n = contraction(t, p);
    if (n) return n;
    bool prefix = !is_word(t, p) && !is_line_end(t->c[p]) && t->class[p] != NUMBER;
    if (is_word(t, p) || (prefix && is_word(t, p + 1))) {
        for (q = p + 1; is_word(t, q);) q++;
        return q - p;
    }
    if (t->class[p] == NUMBER) return 1;
    if (t->c[p] == ' ' && p + 1 < t->count && t->class[p + 1] == OTHER) q++;
    if (t->class[q] != OTHER) return space_run(t, p);
    while (q < t->count && t->class[q] == OTHER) q++;
    while (q < t->count && is_line_end(t->c[q])) q++;
    return q - p;
}

static void check_split(fti_split *split, const text32 *t) {
    char bytes[160];
    size_t offset[41] = {0}, end;
    for (size_t i = 0; i < t->count; i++)
        offset[i + 1] = offset[i] + canonical_utf8(t->c[i], (uint8_t *)bytes + offset[i]);
    ftk_str text = sized(bytes, offset[t->count]);
    for (size_t p = 0; p < t->count;) {
        size_t n = reference_piece(t, p);
        assert_int_equal(fti_split_next(split, text, offset[p], &end, NULL), FTK_OK);
        if (end != offset[p + n]) {
            for (size_t i = 0; i < t->count; i++) print_error("U+%04X ", t->c[i]);
            fail_msg("piece at %zu: ends at byte %zu, wanted %zu characters", p, end, n);
        }
        p += n;
    }
}

/* The pattern, compiled and interpreted, does what the rules say. */
static void splitter_follows_the_rules(void **state) {
    (void)state;
    for (int jit = 0; jit < 2; jit++) {
        fti_splitter *s = splitter(PATTERN, jit == 1);
        fti_split *split;
        assert_int_equal(fti_split_begin(s, &split, NULL), FTK_OK);
        for (int round = 0; round < 30000; round++) {
            text32 t = {.count = 1 + random_below(round % 50 ? 10 : 40)};
            for (size_t i = 0; i < t.count; i++) {
                size_t k = random_below(FTI_COUNT(alphabet));
                t.c[i] = alphabet[k].c;
                t.class[i] = alphabet[k].class;
            }
            check_split(split, &t);
        }
        fti_split_end(split);
        fti_splitter_free(s);
    }
}

static void check_piece_ends(const char *pattern, const char *text, const size_t *ends,
                             size_t count) {
    for (int jit = 0; jit < 2; jit++) {
        fti_splitter *s = splitter(pattern, jit == 1);
        fti_split *split;
        size_t at = 0;
        assert_int_equal(fti_split_begin(s, &split, NULL), FTK_OK);
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(fti_split_next(split, fti_str(text), at, &at, NULL), FTK_OK);
            assert_int_equal(at, ends[i]);
        }
        assert_int_equal(at, strlen(text));
        fti_split_end(split);
        fti_splitter_free(s);
    }
}

static void unmatched_characters_stand_alone(void **state) {
    (void)state;
    static const size_t words[] = {2, 4, 5, 6, 8}, stars[] = {1, 2, 5, 6};
    check_piece_ends("[a-z]+", "ab\xC3\x9C!!cd", words, FTI_COUNT(words));
    /* A pattern that can match nothing at all must still get on. */
    check_piece_ends("a*", "bbaaab", stars, FTI_COUNT(stars));
    static const size_t behind[] = {1, 3, 4};
    /* What lies before the piece is visible to the pattern; \K cannot move it. */
    check_piece_ends("(?<=a)bb|.\\K(?=x)", "abbx", behind, FTI_COUNT(behind));
}

/* Exponential patterns end in an error, and leave the ids as they were. */
static void runaway_pattern_is_an_error(void **state) {
    const demo *d = *state;
    fti_tokenizer *t;
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(fti_tokenizer_create(d->checkpoint, fti_str("x|(?:a|aa)+$"), &t, &err),
                     FTK_OK);
    fti_ids ids = encode(t, fti_str("x"), false);
    assert_int_equal(ids.count, 1);
    static const char text[] = "xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!";
    assert_int_equal(fti_tokenizer_encode(t, fti_str(text), false, &ids, &err),
                     FTK_E_PROVIDER_CONTRACT);
    assert_non_null(strstr(err.message, "byte 1 of"));
    assert_int_equal(ids.count, 1);
    fti_ids_free(&ids);
    fti_tokenizer_free(t);
}

/* A megabyte of one thing: quadratic work would take hours, and recursion the
 * stack. */
static void long_runs(void **state) {
    const fti_tokenizer *t = ((const demo *)*state)->tokenizer;
    static const char *const units[] = {"a",  " ",  "\n", "'",    "!",  "1",   "é",  " \n",
                                        "\r", " a", "'s", "\xFF", "he", "\n ", "\t", "\xCC\x81"};
    const size_t size = 1u << 20;
    char *text = malloc(size + 1);
    assert_non_null(text);
    for (size_t i = 0; i < FTI_COUNT(units); i++) {
        size_t unit = strlen(units[i]);
        for (size_t at = 0; at < size; at++) text[at] = units[i][at % unit];
        text[size] = 'x';
        clock_t start = clock();
        check_round_trip(t, sized(text, size), true);
        check_round_trip(t, sized(text, size + 1), false);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (seconds > 30) fail_msg("a megabyte of unit %zu took %.1f s", i, seconds);
    }
    free(text);
}

static void long_runs_interpreted(void **state) {
    (void)state;
    const size_t size = 3u << 20;
    static const char units[] = "a \n'!";
    char *text = malloc(size + 1);
    assert_non_null(text);
    fti_splitter *s = splitter(PATTERN, false);
    fti_split *split;
    assert_int_equal(fti_split_begin(s, &split, NULL), FTK_OK);
    for (size_t i = 0; i + 1 < sizeof units; i++) {
        size_t end, wanted = units[i] == ' ' ? size - 1 : size;
        memset(text, units[i], size);
        text[size] = units[i] == 'a' ? '1' : 'x';
        assert_int_equal(fti_split_next(split, sized(text, size), 0, &end, NULL), FTK_OK);
        assert_int_equal(end, size);
        assert_int_equal(fti_split_next(split, sized(text, size + 1), 0, &end, NULL), FTK_OK);
        assert_int_equal(end, wanted);
    }
    fti_split_end(split);
    fti_splitter_free(s);
    free(text);
}

/* ---- made-up vocabularies ---- */

/* Byte alphabet, by its definition: printable bytes first, then U+0100 onwards. */
static size_t spell(uint8_t byte, uint8_t out[4]) {
    uint32_t next = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE);
        if (b == byte) return canonical_utf8(itself ? b : next, out);
        next += !itself;
    }
    return 0;
}

typedef struct extra_token {
    const char *text;
    uint32_t type;
} extra_token;

/* What a synthetic checkpoint holds beside its 256 byte tokens, and what is wrong
 * with it: the key `broken` is written with `defect` instead. */
typedef struct vocabulary {
    const extra_token *extra;
    size_t extra_count;
    const char *const *merges;
    size_t merge_count;
    int missing_byte; /* this one and above; 0: none */
    const char *broken;
    int defect;
} vocabulary;

enum {
    MISSING = 100,
    SCALAR,
    EMPTY,
    ONE_LESS,
    ONE_MORE,
    OTHER_VALUE
}; /* below: the elements have that type */

static void write_tokens(fti_gguf_writer *w, const vocabulary *v) {
    fti_gw_array(w, "tokenizer.ggml.tokens", FTI_META_STRING, 256 + v->extra_count);
    for (int b = 0; b < 256; b++) {
        uint8_t text[4];
        size_t size = spell((uint8_t)b, text);
        bool missing = v->missing_byte && b >= v->missing_byte;
        fti_gw_string_sized(w, missing ? "\xE4\xB8\x96" : (const char *)text, missing ? 3 : size);
    }
    for (size_t i = 0; i < v->extra_count; i++) fti_gw_string(w, v->extra[i].text);
}

static void write_types(fti_gguf_writer *w, const vocabulary *v) {
    fti_gw_array(w, "tokenizer.ggml.token_type", FTI_META_I32, 256 + v->extra_count);
    for (int b = 0; b < 256; b++) fti_gw_u32(w, FTI_TOKEN_NORMAL);
    for (size_t i = 0; i < v->extra_count; i++) fti_gw_u32(w, v->extra[i].type);
}

static void write_merges(fti_gguf_writer *w, const vocabulary *v) {
    fti_gw_array(w, "tokenizer.ggml.merges", FTI_META_STRING, v->merge_count);
    for (size_t i = 0; i < v->merge_count; i++) fti_gw_string(w, v->merges[i]);
}

static void write_scores(fti_gguf_writer *w, const vocabulary *v) {
    fti_gw_array(w, "tokenizer.ggml.scores", FTI_META_F32, 256 + v->extra_count);
    for (size_t i = 0; i < 256 + v->extra_count; i++) fti_gw_f32(w, 0);
}

static void write_model(fti_gguf_writer *w, const vocabulary *v) {
    (void)v;
    fti_gw_text(w, "tokenizer.ggml.model", "gpt2");
}

static void write_end(fti_gguf_writer *w, const vocabulary *v) {
    fti_gw_integer(w, "tokenizer.ggml.eos_token_id", FTI_META_U32, 255 + v->extra_count);
}

static void write_elements(fti_gguf_writer *w, uint32_t type, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (type == FTI_META_STRING)
            fti_gw_string(w, "a b");
        else
            fti_gw_fill(w, type == FTI_META_F32 || type == FTI_META_F64 ? 0 : 1,
                        fti_gw_scalar_bytes(type));
    }
}

static void write_defect(fti_gguf_writer *w, const vocabulary *v) {
    size_t count = 256 + v->extra_count;
    uint32_t natural = FTI_META_STRING;
    if (strstr(v->broken, "token_type")) natural = FTI_META_I32;
    if (strstr(v->broken, "scores")) natural = FTI_META_F32;
    if (v->defect == SCALAR) {
        fti_gw_integer(w, v->broken, FTI_META_U32, 1u << 20);
    } else if (v->defect == OTHER_VALUE) {
        fti_gw_text(w, v->broken, "llama");
    } else {
        if (v->defect < MISSING) natural = (uint32_t)v->defect;
        if (v->defect == EMPTY) count = 0;
        if (v->defect == ONE_LESS) count--;
        if (v->defect == ONE_MORE) count++;
        fti_gw_array(w, v->broken, natural, count);
        write_elements(w, natural, count);
    }
}

typedef void key_writer(fti_gguf_writer *, const vocabulary *);
static const struct {
    const char *key;
    key_writer *write;
} keys[] = {{"tokenizer.ggml.model", write_model},      {"tokenizer.ggml.tokens", write_tokens},
            {"tokenizer.ggml.token_type", write_types}, {"tokenizer.ggml.merges", write_merges},
            {"tokenizer.ggml.scores", write_scores},    {"tokenizer.ggml.eos_token_id", write_end}};

typedef struct made {
    fti_gguf_writer bytes;
    fti_checkpoint *checkpoint;
    fti_tokenizer *tokenizer;
} made;

static ftk_status make(const vocabulary *v, const char *pattern, made *m, ftk_error *err) {
    static const uint64_t dims[4] = {1, 1, 1, 1};
    uint64_t count = 1 + FTI_COUNT(keys) - (v->broken && v->defect == MISSING);
    *m = (made){0};
    fti_gw_header(&m->bytes, 3, 1, count);
    fti_gw_text(&m->bytes, "general.architecture", "test");
    for (size_t i = 0; i < FTI_COUNT(keys); i++) {
        bool broken = v->broken && strcmp(v->broken, keys[i].key) == 0;
        if (!broken)
            keys[i].write(&m->bytes, v);
        else if (v->defect != MISSING)
            write_defect(&m->bytes, v);
    }
    fti_gw_tensor(&m->bytes, "t", 1, dims, 0, 0);
    fti_gw_pad(&m->bytes, 32);
    fti_gw_fill(&m->bytes, 0, 32);
    ftk_status status = fti_checkpoint_from_memory(m->bytes.data, m->bytes.size, "made",
                                                   &m->checkpoint, err);
    if (status != FTK_OK) fail_msg("%s", err->message);
    return fti_tokenizer_create(m->checkpoint, fti_str(pattern), &m->tokenizer, err);
}

static void make_good(const vocabulary *v, made *m) {
    ftk_error err = FTK_ERROR_INIT;
    if (make(v, PATTERN, m, &err) != FTK_OK) fail_msg("%s", err.message);
}

static void unmake(made *m) {
    fti_tokenizer_free(m->tokenizer);
    fti_checkpoint_close(m->checkpoint);
    fti_gw_free(&m->bytes);
}

/* Refused with the tokenizer's status and a message that has `word` in it. */
static void check_refused(const vocabulary *v, const char *pattern, const char *word) {
    made m;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = make(v, pattern, &m, &err);
    if (status != FTK_E_CKPT_TOKENIZER || err.status != status || !strstr(err.message, word) ||
        strncmp(err.message, "made: ", 6) != 0)
        fail_msg("%s (defect %d): status %d, message %s", v->broken ? v->broken : word, v->defect,
                 (int)status, err.message);
    assert_null(m.tokenizer);
    unmake(&m);
}

static const extra_token few[] = {{"ab", FTI_TOKEN_NORMAL},
                                  {"<end>", FTI_TOKEN_CONTROL},
                                  {"<end>more", FTI_TOKEN_USER},
                                  {"[PAD1]", FTI_TOKEN_UNUSED},
                                  {"<end>", FTI_TOKEN_USER},
                                  {"", FTI_TOKEN_CONTROL},
                                  {"d>mo", FTI_TOKEN_CONTROL},
                                  {"\xC4\xA0"
                                   "a",
                                   FTI_TOKEN_CONTROL}};
static const char *const few_merges[] = {"a b"};
#define FEW                                                                                        \
    .extra = few, .extra_count = FTI_COUNT(few), .merges = few_merges,                             \
    .merge_count = FTI_COUNT(few_merges)

/* Every array: missing, a scalar, empty, each other element type, and wrong
 * counts where the count is given by another. */
static void g13_broken_arrays_are_refused(void **state) {
    (void)state;
    for (size_t k = 1; k <= 4; k++) {
        uint32_t natural = k == 2 ? FTI_META_I32 : k == 4 ? FTI_META_F32 : FTI_META_STRING;
        vocabulary v = {FEW, .broken = keys[k].key};
        for (v.defect = SCALAR; v.defect <= OTHER_VALUE; v.defect++)
            if ((k == 2 || k == 4) || (v.defect != ONE_LESS && v.defect != ONE_MORE))
                check_refused(&v, PATTERN, v.broken);
        for (v.defect = 0; v.defect < FTI_META_TYPES; v.defect++) {
            bool same = (uint32_t)v.defect == natural || v.defect == FTI_META_ARRAY;
            if (same || (k == 2 && v.defect == FTI_META_U32)) continue;
            char message[96];
            snprintf(message, sizeof message, "%s: found elements of type %d,", v.broken, v.defect);
            check_refused(&v, PATTERN, message);
        }
        v.defect = MISSING;
        if (k < 4) check_refused(&v, PATTERN, v.broken);
    }
}

/* Lengths that are negative, or small, once 32 bits of them are left. */
static void g14_lengths_are_not_narrowed(void **state) {
    (void)state;
    static const uint64_t sizes[] = {(uint64_t)INT32_MAX - 1,
                                     INT32_MAX,
                                     (uint64_t)INT32_MAX + 1,
                                     UINT32_MAX,
                                     1ull << 32,
                                     (1ull << 32) + 1,
                                     INT64_MAX,
                                     UINT64_MAX};
    vocabulary v = {FEW};
    made m;
    make_good(&v, &m);
    for (size_t i = 0; i < FTI_COUNT(sizes); i++) {
        const ftk_str claimed = {"a", sizes[i]};
        assert_in_range(fti_str_len(claimed), 1, 4096);
        if (sizes[i] <= INT32_MAX) continue; /* which would be read */
        for (int special = 0; special < 2; special++) {
            fti_ids ids = {0};
            ftk_error err = FTK_ERROR_INIT;
            assert_int_equal(fti_tokenizer_encode(m.tokenizer, claimed, special, &ids, &err),
                             FTK_E_ARGUMENT);
            assert_non_null(strstr(err.message, "wanted at most 2147483647"));
            assert_int_equal(ids.count, 0);
        }
    }
    static const int32_t ids[] = {INT32_MIN, -1, INT32_MAX, 256 + FTI_COUNT(few)};
    for (size_t i = 0; i < FTI_COUNT(ids); i++)
        assert_int_equal(fti_tokenizer_piece(m.tokenizer, ids[i]).size, 0);
    unmake(&m);
}

static void broken_values_are_refused(void **state) {
    (void)state;
    vocabulary v = {FEW, .broken = "tokenizer.ggml.model", .defect = MISSING};
    check_refused(&v, PATTERN, "model is missing");
    v.defect = SCALAR;
    check_refused(&v, PATTERN, "tokenizer.ggml.model");
    v.defect = OTHER_VALUE;
    check_refused(&v, PATTERN, "found \"llama\", wanted \"gpt2\"");
    v.broken = "tokenizer.ggml.eos_token_id";
    v.defect = SCALAR;
    check_refused(&v, PATTERN, "tokenizer.ggml.eos_token_id");
    v.broken = NULL;
    check_refused(&v, "", "empty");
    check_refused(&v, "a|(b", "offset 4: missing closing parenthesis");
    check_refused(&v, "\\C", "offset");
    check_refused(&v, "\xFF", "offset");
    v.missing_byte = 0xE0;
    check_refused(&v, PATTERN, "byte 0xE0; found 224 of");
    extra_token type[] = {{"x", 7}};
    v = (vocabulary){FEW};
    v.extra = type;
    v.extra_count = 1;
    check_refused(&v, PATTERN, "token_type[256]: found 7");
    static const char *const bad[] = {"ab", " ab", "ab ", " "};
    for (size_t i = 0; i < FTI_COUNT(bad); i++) {
        const char *merges[] = {"a b", bad[i]};
        v = (vocabulary){FEW};
        v.merges = merges;
        v.merge_count = 2;
        check_refused(&v, PATTERN, "merges[1]");
    }
}

static void added_tokens(void **state) {
    (void)state;
    vocabulary v = {FEW};
    made m;
    make_good(&v, &m);
    const fti_tokenizer *t = m.tokenizer;
    static const int32_t plain[] = {'<', 'e', 'n', 'd', '>'}, twice[] = {257, 257};
    static const int32_t longest[] = {258, 256}, left_first[] = {257, 'm', 'o'};
    static const int32_t middle[] = {'e', 'n', 262, '>'};
    static const int32_t pad[] = {'[', 'P', 'A', 'D', '1', ']'}, around[] = {256, 257, 'a', 'b'};
    check_ids(t, fti_str("<end>"), false, plain, 5);
    check_ids(t, fti_str("<end><end>"), true, twice, 2);
    check_ids(t, fti_str("<end>moreab"), true, longest, 2);
    check_ids(t, fti_str("<end>mo"), true, left_first, 3);
    check_ids(t, fti_str("<end>mo"), false, (const int32_t[]){'<', 'e', 'n', 'd', '>', 'm', 'o'},
              7);
    /* What lies behind the end of the text does not count. */
    check_ids(t, sized("<end>more", 5), true, twice, 1);
    check_ids(t, sized("<end>", 4), true, plain, 4);
    check_ids(t, fti_str("<end"), true, plain, 4);
    check_ids(t, fti_str("end>mo>"), true, middle, 4);
    check_ids(t, fti_str("[PAD1]"), true, pad, 6);
    /* The text of an added token is text, not the byte alphabet. */
    check_ids(t, fti_str(" a"), true, (const int32_t[]){' ', 'a'}, 2);
    check_ids(t,
              fti_str("\xC4\xA0"
                      "a"),
              true, (const int32_t[]){263}, 1);
    check_ids(t,
              fti_str("ab<end>a\xFF"
                      "b"),
              true, (const int32_t[]){256, 257, 'a', 0xFF, 'b'}, 5);
    check_ids(t, fti_str("ab<end>"), true, around, 2);
    assert_int_equal(fti_tokenizer_piece(t, 259).size, 0);
    assert_int_equal(fti_tokenizer_type(t, 259), FTI_TOKEN_UNUSED);
    unmake(&m);
}

/* Many tokens with common beginnings, against trying every one at every place. */
static void the_longest_added_token_wins(void **state) {
    (void)state;
    static const extra_token extra[] = {
        {"<b", FTI_TOKEN_CONTROL},   {"<ab", FTI_TOKEN_USER},       {"<a", FTI_TOKEN_CONTROL},
        {"b<", FTI_TOKEN_USER},      {"<bb", FTI_TOKEN_CONTROL},    {"<abab", FTI_TOKEN_CONTROL},
        {"<bba", FTI_TOKEN_CONTROL}, {"a<bb<a", FTI_TOKEN_CONTROL}, {"<<", FTI_TOKEN_USER}};
    vocabulary v = {extra, FTI_COUNT(extra), few_merges, 1, 0, NULL, 0};
    made m;
    make_good(&v, &m);
    for (int round = 0; round < 5000; round++) {
        char text[24] = {0};
        int32_t wanted[24];
        size_t n = random_below(sizeof text), count = 0;
        for (size_t i = 0; i < n; i++) text[i] = "<abx"[random_below(4)];
        for (size_t at = 0, size; at < n; at += size) {
            wanted[count] = (uint8_t)text[at];
            size = 1;
            for (size_t k = 0; k < FTI_COUNT(extra); k++) {
                size_t length = strlen(extra[k].text);
                if (length <= size || strncmp(text + at, extra[k].text, length) != 0) continue;
                wanted[count] = 256 + (int32_t)k;
                size = length;
            }
            count++;
        }
        check_ids(m.tokenizer, sized(text, n), true, wanted, count);
    }
    unmake(&m);
}

/* Merges of unknown parts, into control tokens or into nothing are ignored, a
 * repeated merge keeps its first rank, and of tokens with one text the first is
 * used. */
static void useless_merges_are_ignored(void **state) {
    (void)state;
    static const extra_token extra[] = {{"bc", FTI_TOKEN_NORMAL},
                                        {"ab", FTI_TOKEN_NORMAL},
                                        {"xy", FTI_TOKEN_CONTROL},
                                        {"ab", FTI_TOKEN_NORMAL},
                                        {"\xE4\xB8\x96z", FTI_TOKEN_NORMAL}};
    static const char *const merges[] = {"a b", "x y",  "q qq", "c d", "b c", "\xE4\xB8\x96 z",
                                         "a b", "a b c"};
    vocabulary v = {extra, FTI_COUNT(extra), merges, FTI_COUNT(merges), 0, NULL, 0};
    made m;
    make_good(&v, &m);
    check_ids(m.tokenizer, fti_str("abcd"), false, (const int32_t[]){257, 'c', 'd'}, 3);
    check_ids(m.tokenizer, fti_str("xy"), false, (const int32_t[]){'x', 'y'}, 2);
    assert_true(fti_str_is(fti_tokenizer_piece(m.tokenizer, 260), "\xE4\xB8\x96z"));
    check_round_trip(m.tokenizer, fti_str("\xE4\xB8\x96z"), false);
    unmake(&m);
}

/* ---- merging against the slow definition ---- */

#define RULES 40

typedef struct rule_set {
    char texts[RULES][64];
    char merges[RULES][72];
    struct {
        int32_t left, right;
    } rule[RULES];
    extra_token extra[RULES];
    const char *merge_list[RULES];
} rule_set;

static const char *text_of(const rule_set *r, int32_t id, char buffer[2]) {
    buffer[0] = (char)id;
    buffer[1] = 0;
    return id < 256 ? buffer : r->texts[id - 256];
}

/* Random merges over two letters: long chains and many ties. */
static void random_rules(rule_set *r) {
    for (int i = 0; i < RULES;) {
        char a[2], b[2], text[64];
        uint32_t pool = 2 + (uint32_t)i;
        uint32_t x = random_below(pool), y = random_below(pool);
        int32_t left = x < 2 ? (int32_t)('a' + x) : (int32_t)(254 + x);
        int32_t right = y < 2 ? (int32_t)('a' + y) : (int32_t)(254 + y);
        if (strlen(text_of(r, left, a)) + strlen(text_of(r, right, b)) > 12) continue;
        snprintf(text, sizeof text, "%s%s", text_of(r, left, a), text_of(r, right, b));
        bool known = false;
        for (int k = 0; k < i; k++) known |= strcmp(r->texts[k], text) == 0;
        if (known) continue;
        memcpy(r->texts[i], text, sizeof text);
        snprintf(r->merges[i], sizeof r->merges[i], "%s %s", text_of(r, left, a),
                 text_of(r, right, b));
        r->rule[i].left = left;
        r->rule[i].right = right;
        r->extra[i] = (extra_token){r->texts[i], FTI_TOKEN_NORMAL};
        r->merge_list[i] = r->merges[i];
        i++;
    }
}

static int rank_of(const rule_set *r, int32_t left, int32_t right) {
    for (int i = 0; i < RULES; i++)
        if (r->rule[i].left == left && r->rule[i].right == right) return i;
    return RULES;
}

static size_t slow_bpe(const rule_set *r, int32_t *ids, size_t n) {
    for (;;) {
        int best = RULES;
        size_t where = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            int rank = rank_of(r, ids[i], ids[i + 1]);
            if (rank < best) {
                best = rank;
                where = i;
            }
        }
        if (best == RULES) return n;
        ids[where] = 256 + best;
        memmove(ids + where + 1, ids + where + 2, (n - where - 2) * sizeof *ids);
        n--;
    }
}

static void merging_equals_its_definition(void **state) {
    (void)state;
    static rule_set r;
    char text[300];
    int32_t wanted[300];
    for (int set = 0; set < 12; set++) {
        random_rules(&r);
        vocabulary v = {r.extra, RULES, r.merge_list, RULES, 0, NULL, 0};
        made m;
        make_good(&v, &m);
        for (uint32_t round = 0; round < 150; round++) {
            size_t n = 1 + random_below(round % 20 ? 24 : 300);
            for (size_t i = 0; i < n; i++) {
                text[i] = (char)('a' + (random_below(round % 3 + 2) == 0));
                wanted[i] = (uint8_t)text[i];
            }
            check_ids(m.tokenizer, sized(text, n), false, wanted, slow_bpe(&r, wanted, n));
        }
        unmake(&m);
    }
}

/* ---- the rest ---- */

static void encoding_appends(void **state) {
    const fti_tokenizer *t = ((const demo *)*state)->tokenizer;
    fti_ids ids = encode(t, fti_str("Once"), false);
    assert_int_equal(fti_tokenizer_encode(t, fti_str(" upon"), false, &ids, NULL), FTK_OK);
    assert_int_equal(fti_tokenizer_encode(t, sized(NULL, 0), true, &ids, NULL), FTK_OK);
    assert_int_equal(ids.count, 2);
    assert_int_equal(ids.data[0], 3885);
    assert_int_equal(ids.data[1], 647);
    ftk_error err = FTK_ERROR_INIT;
    ftk_str huge = sized("x", (size_t)INT32_MAX + 1);
    assert_int_equal(fti_tokenizer_encode(t, huge, false, &ids, &err), FTK_E_ARGUMENT);
    assert_non_null(strstr(err.message, "2147483648 bytes"));
    assert_int_equal(ids.count, 2);
    fti_ids_free(&ids);
}

static void *encode_again(void *argument) {
    const demo *d = argument;
    fti_ids *ids = calloc(1, sizeof *ids);
    ftk_str text = sized(d->stories, d->stories_size);
    for (int i = 0; ids && i < 3; i++) {
        ids->count = 0;
        if (fti_tokenizer_encode(d->tokenizer, text, true, ids, NULL) != FTK_OK) ids->count = 0;
    }
    return ids;
}

static void threads_share_a_tokenizer(void **state) {
    demo *d = *state;
    pthread_t threads[4];
    fti_ids wanted = encode(d->tokenizer, sized(d->stories, d->stories_size), true);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_again, d), 0);
    for (size_t i = 0; i < 4; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        fti_ids *ids = result;
        assert_non_null(ids);
        assert_int_equal(ids->count, wanted.count);
        assert_memory_equal(ids->data, wanted.data, wanted.count * sizeof *wanted.data);
        fti_ids_free(ids);
        free(ids);
    }
    fti_ids_free(&wanted);
}

int main(void) {
    const struct CMUnitTest test_tokenizer[] = {
        cmocka_unit_test(golden_cases),
        cmocka_unit_test(golden_stories),
        cmocka_unit_test(golden_prompts),
        cmocka_unit_test(c6_text_cannot_inject),
        cmocka_unit_test(pieces_and_types),
        cmocka_unit_test(c3_bad_bytes_become_byte_tokens),
        cmocka_unit_test(any_bytes_round_trip),
        cmocka_unit_test(utf8_is_exact),
        cmocka_unit_test(splitter_follows_the_rules),
        cmocka_unit_test(unmatched_characters_stand_alone),
        cmocka_unit_test(runaway_pattern_is_an_error),
        cmocka_unit_test(long_runs),
        cmocka_unit_test(long_runs_interpreted),
        cmocka_unit_test(g13_broken_arrays_are_refused),
        cmocka_unit_test(g14_lengths_are_not_narrowed),
        cmocka_unit_test(broken_values_are_refused),
        cmocka_unit_test(added_tokens),
        cmocka_unit_test(the_longest_added_token_wins),
        cmocka_unit_test(useless_merges_are_ignored),
        cmocka_unit_test(merging_equals_its_definition),
        cmocka_unit_test(encoding_appends),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests_name("test_tokenizer", test_tokenizer, open_demo, close_demo);
}
