/*
 * test_yaml.c: the strict YAML reader: what it accepts and how the tree looks,
 * what it refuses with which message, and that no input makes it slow.
 */
#include "core/yaml.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#define ORIGIN "some.yaml"

/* ---- accepted texts, with the tree as text: quoted scalars in ', plain ones bare ---- */

typedef struct good_case {
    const char *name;
    const char *text;
    const char *tree;
} good_case;

static const good_case good_cases[] = {
    {"empty text", "", "{}"},
    {"blank lines", "\n \n\n", "{}"},
    {"comments alone", "# nothing\n  # here\n", "{}"},
    {"document mark alone", "---\n", "{}"},
    {"document mark and comment", "--- # nothing\n...\n", "{}"},
    {"empty flow mapping", "{}", "{}"},
    {"root list", "[a, b]", "[a b]"},
    {"root scalar", "word", "word"},
    {"root quoted empty scalar", "''", "''"},
    {"block mapping", "a: 1\nb: two words\n", "{a=1 b=two words}"},
    {"flow mapping", "{a: 1, b: {c: d}}", "{a=1 b={c=d}}"},
    {"nested block", "a:\n  b:\n    - c\n    - d: e\n      f: g\n", "{a={b=[c {d=e f=g}]}}"},
    {"value absent", "a:\nb: 1\n", "{a= b=1}"},
    {"quotes", "a: 'x'\nb: \"y\\n\"\nc: ''\n", "{a='x' b='y\n' c=''}"},
    {"quoted key", "\"a b\": 1\n", "{a b=1}"},
    {"explicit key", "? a\n: 1\n", "{a=1}"},
    {"literal block is text", "a: |\n  1\n", "{a='1\n'}"},
    {"tab after the colon", "a:\t1\n", "{a=1}"},
    {"CR LF lines", "a: 1\r\nb: 2\r\n", "{a=1 b=2}"},
    {"no newline at the end", "a: 1", "{a=1}"},
    {"BOM of UTF-8",
     "\xef\xbb\xbf"
     "a: 1\nb: 2\n",
     "{a=1 b=2}"},
    {"other letters", "n\xc3\xa4me: \xe6\xa8\xa1\n", "{n\xc3\xa4me=\xe6\xa8\xa1}"},
    {"YAML 1.1", "%YAML 1.1\n---\na: 1\n", "{a=1}"},
    {"YAML 1.2", "%YAML 1.2\n---\na: 1\n", "{a=1}"},
    {"same key in two mappings", "a: {x: 1}\nb: {x: 1}\n", "{a={x=1} b={x=1}}"},
    {"key that is a prefix", "a: 1\naa: 2\naaa: 3\n", "{a=1 aa=2 aaa=3}"},
    {"equal list entries", "[a, a]", "[a a]"},
    {"words without meaning", "[no, ~, null, 0o17, 1_000]", "[no ~ null 0o17 1_000]"},
    {"depth 16", "[[[[[[[[[[[[[[[[x]]]]]]]]]]]]]]]]", "[[[[[[[[[[[[[[[[x]]]]]]]]]]]]]]]]"},
};

static void render(const fti_yaml_node *node, fti_text *out) {
    if (node->kind == FTI_YAML_SCALAR) {
        const char *quote = node->quoted ? "'" : "";
        assert_int_equal(node->text.data[node->text.size], 0);
        fti_text_printf(out, "%s%.*s%s", quote, FTI_STR_ARGS(node->text), quote);
        return;
    }
    bool mapping = node->kind == FTI_YAML_MAPPING;
    size_t count = 0;
    fti_text_append(out, mapping ? "{" : "[", 1);
    for (const fti_yaml_node *child = node->first; child; child = child->next, count++) {
        if (count) fti_text_append(out, " ", 1);
        if (mapping) fti_text_printf(out, "%.*s=", FTI_STR_ARGS(child->key));
        render(child, out);
    }
    fti_text_append(out, mapping ? "}" : "]", 1);
    assert_int_equal(count, node->count);
}

/* Parses a copy that has no byte behind its end, so that a sanitizer sees a
 * read beyond it. */
static ftk_status parse(const char *text, size_t size, fti_yaml **yaml, ftk_error *err) {
    char *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, text, size);
    ftk_status status = fti_yaml_parse(copy, size, ORIGIN, yaml, err);
    free(copy);
    return status;
}

static fti_yaml *parse_good(const char *text) {
    ftk_error err = FTK_ERROR_INIT;
    fti_yaml *yaml = NULL;
    ftk_status status = parse(text, strlen(text), &yaml, &err);
    if (status != FTK_OK) fail_msg("%s", err.message);
    assert_non_null(yaml);
    return yaml;
}

static void test_good(void **state) {
    const good_case *c = *state;
    fti_yaml *yaml = parse_good(c->text);
    fti_text tree = {0};
    render(fti_yaml_root(yaml), &tree);
    assert_string_equal(tree.data, c->tree);
    fti_text_free(&tree);
    fti_yaml_free(yaml);
}

/* ---- refused texts ---- */

typedef struct bad_case {
    const char *name;
    const char *text;
    size_t size; /* 0: strlen */
    ftk_status status;
    const char *message; /* begins with what follows the origin */
    const char *also;    /* the message holds this too, if not NULL */
} bad_case;

#define SYNTAX(name, text, message)                                                                \
    { name, text, 0, FTK_E_CONFIG_SYNTAX, message, NULL }
#define SYNTAX2(name, text, message, too)                                                          \
    { name, text, 0, FTK_E_CONFIG_SYNTAX, message, too }
#define SYNTAXN(name, text, message, too)                                                          \
    { name, text, sizeof(text) - 1, FTK_E_CONFIG_SYNTAX, message, too }
#define DUPLICATE(name, text, message)                                                             \
    { name, text, 0, FTK_E_CONFIG_KEY, message, NULL }

static const bad_case bad_cases[] = {
    DUPLICATE("duplicate key", "a: 1\nb: 2\na: 3\n",
              ":3: duplicate key 'a', first given in line 1"),
    DUPLICATE("duplicate in flow", "{a: 1, b: 2, a: 3}", ":1: duplicate key 'a', first"),
    DUPLICATE("duplicate below", "x:\n  k: 1\n  k: 2\n",
              ":3: duplicate key 'k', first given in line 2"),
    DUPLICATE("duplicate in list entry", "- k: 1\n  k: 2\n", ":2: duplicate key 'k'"),
    DUPLICATE("duplicate, one quoted", "a: 1\n\"a\": 2\n",
              ":2: duplicate key 'a', first given in line 1"),
    DUPLICATE("duplicate three times", "a: 1\na: 2\na: 3\n",
              ":2: duplicate key 'a', first given in line 1"),
    DUPLICATE(
        "duplicate long key",
        "? 123456789012345678901234567890123456789012345678901234567890123\xc3\xa4z\n: 1\n"
        "? 123456789012345678901234567890123456789012345678901234567890123\xc3\xa4z\n: 1\n",
        ":3: duplicate key '123456789012345678901234567890123456789012345678901234567890123',"),
    SYNTAX("self alias", "&x [*x]", ":1: anchors"),
    SYNTAX("anchor on a scalar", "a: 1\nb: &x 1\n", ":2: anchors"),
    SYNTAX("anchor on a mapping", "a: &x {b: 1}\n", ":1: anchors"),
    SYNTAX("anchor on a key", "&x a: 1\n", ":1: anchors"),
    SYNTAX("anchor on nothing", "a: &x\n", ":1: anchors"),
    SYNTAX("undefined alias", "a: 1\nb: *x\n", ":2: aliases"),
    SYNTAX("alias as key", "*x : 1\n", ":1: aliases"),
    SYNTAX("alias in a list", "- *x\n", ":1: aliases"),
    SYNTAX("alias at the root", "*x", ":1: aliases"),
    SYNTAX("merge key", "a: 1\n<<: {b: 2}\n", ":2: merge keys"),
    SYNTAX("tag on a scalar", "a: !!str 1\n", ":1: tags"),
    SYNTAX("tag on a list", "a: !!seq [1]\n", ":1: tags"),
    SYNTAX("tag on a mapping", "!!map {a: 1}\n", ":1: tags"),
    SYNTAX("tag on a key", "!!str a: 1\n", ":1: tags"),
    SYNTAX("local tag", "a: !local 1\n", ":1: tags"),
    SYNTAX("non-specific tag", "a: ! 1\n", ":1: tags"),
    SYNTAX("non-specific tag on quotes", "a: ! '1'\n", ":1: tags"),
    SYNTAX("verbatim tag", "a: !<tag:x> 1\n", ":1: tags"),
    SYNTAX("tag on nothing", "a: !!null\n", ":1: tags"),
    SYNTAX("TAG directive", "%TAG ! tag:example.com,2000:\n---\na: 1\n", ":1: the %TAG directive"),
    SYNTAX("unknown directive", "%FOO bar\n---\na: 1\n", ":1: found unknown directive"),
    SYNTAX("YAML 2.0", "%YAML 2.0\n---\na: 1\n", ":1: found incompatible YAML document"),
    SYNTAX("second document", "a: 1\n---\nb: 2\n", ":2: a second document"),
    SYNTAX("second empty document", "a: 1\n---\n", ":2: a second document"),
    SYNTAX("second document after empty", "---\n---\na: 1\n", ":2: a second document"),
    SYNTAX("list as key", "? [a]\n: 1\n", ":1: a key is a list or a mapping"),
    SYNTAX("mapping as key", "? {a: b}\n: 1\n", ":1: a key is a list or a mapping"),
    SYNTAX("flow list as key", "[a]: 1\n", ":1: a key is a list or a mapping"),
    SYNTAX("empty key", "'': 1\n", ":1: a key is empty"),
    SYNTAX("absent key", "a: 1\n?\n: 1\n", ":2: a key is empty"),
    SYNTAX("depth 17", "[[[[[[[[[[[[[[[[[x]]]]]]]]]]]]]]]]]",
           ":1: more than 16 lists and mappings"),
    SYNTAX("depth 17 in mappings",
           "{a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: 1}}}}}}}}}}}}}}}}}",
           ":1: more than 16 lists and mappings"),
    SYNTAX(
        "depth 17 in lines",
        "- - - - - - - -\n                - - - - - - - - -\n                                  x\n",
        ":2: more than 16 lists and mappings"),
    SYNTAX2("tab as indent", "a:\n\tb: 1\n", ":2: ", "a tab"),
    SYNTAX2("tab behind spaces", "a:\n  \tb: 1\n", ":2: ", "a tab"),
    SYNTAX2("tab behind CR LF", "a:\r\n\tb: 1\r\n", ":2: ", "a tab"),
    SYNTAX2("tab behind letters", "\xc3\xa4:\n\tb: 1\n", ":2: ", "a tab"),
    SYNTAX2("tab behind a dash", "-\ta: 1\n", ":1: ", "a tab"),
    SYNTAX2("tab after a value", "a: 1\n\tb: 1\n", ":2: ", "a tab"),
    SYNTAX2("tab behind lone CR", "a:\r\tb: 1\r", ":2: ", "a tab"),
    SYNTAXN("UTF-16 LE mark",
            "\xff\xfe"
            "a\0:\0 \0"
            "1\0",
            ":1: begins with the mark of UTF-16", "UTF-8"),
    SYNTAXN("UTF-16 BE mark", "\xfe\xff\0a\0:\0 \0001", ":1: begins with the mark of UTF-16",
            "UTF-8"),
    SYNTAXN("UTF-16 without mark",
            "a\0:\0 \0"
            "1\0",
            ":1: holds a NUL byte", "UTF-8"),
    SYNTAXN("NUL in line 3", "a: 1\nb: 2\nc: \0\n", ":3: holds a NUL byte", NULL),
    SYNTAXN("NUL in line 3, CR LF", "a: 1\r\nb: 2\r\nc: \0\n", ":3: holds a NUL byte", NULL),
    SYNTAXN("NUL at the end", "a: 1\n\0", ":2: holds a NUL byte", NULL),
    SYNTAX("escaped NUL", "a: 1\nb: \"x\\0y\"\n", ":2: a text holds \\0"),
    SYNTAX("escaped NUL in a key", "\"x\\0y\": 1\n", ":1: a text holds \\0"),
    SYNTAX2("byte that UTF-8 has not", "a: 1\nb: \xff\n", ":2: invalid leading UTF-8", "0xff"),
    SYNTAX2("UTF-8 cut short", "a: 1\nb: \xc3\n", ":2: invalid trailing UTF-8", "UTF-8"),
    SYNTAX2("overlong UTF-8", "a: \xc0\xaf\n", ":1: invalid ", "UTF-8"),
    SYNTAX2("surrogate in UTF-8", "a: \xed\xa0\x80\n", ":1: invalid Unicode", "UTF-8"),
    SYNTAX2("control character", "a: 1\nb: \x01\n", ":2: control characters", "0x01"),
    SYNTAX2("escape character", "a: \x1b[31m\n", ":1: control characters", "0x1b"),
    SYNTAX2("unclosed quote", "a: 1\nb: 'x\n", ":3: found unexpected end", "begins in line 2"),
    SYNTAX2("unclosed quote before CR", "a: 'x\r", ":2: found unexpected end", "line 1"),
    SYNTAX2("unclosed list", "a: 1\nb: [x\nc: 1\n", ":3: ", "begins in line 2"),
    SYNTAX("unclosed mapping", "{a: 1", ":2: did not find expected ',' or '}'"),
    SYNTAX("two colons", "a: b: c\n", ":1: mapping values are not allowed"),
    SYNTAX("bad indent", "a:\n    b: 1\n  c: 1\n", ":3: "),
    SYNTAX("word after mapping", "a: 1\nword\n", ":3: could not find expected ':'"),
    SYNTAX("reserved at sign", "a: @x\n", ":1: found character that cannot start any token"),
    SYNTAX("unknown escape", "a: \"\\q\"\n", ":1: found unknown escape"),
    SYNTAX("closing bracket alone", "]", ":1: "),
    SYNTAX("colon alone", ": x\n", ":1: "),
};

static void check_message(const ftk_error *err, ftk_status status, const char *message,
                          const char *also) {
    if (err->status != status) fail_msg("%s: %s", ftk_status_name(err->status), err->message);
    char wanted[512];
    snprintf(wanted, sizeof wanted, "%s%s", ORIGIN, message);
    if (strncmp(err->message, wanted, strlen(wanted)) != 0)
        fail_msg("found '%s', wanted '%s'", err->message, wanted);
    if (also && !strstr(err->message, also))
        fail_msg("found '%s', wanted '%s' in it", err->message, also);
    assert_null(strchr(err->message, '\n'));
}

static void test_bad(void **state) {
    const bad_case *c = *state;
    ftk_error err = FTK_ERROR_INIT;
    fti_yaml *yaml = (fti_yaml *)&err;
    ftk_status status = parse(c->text, c->size ? c->size : strlen(c->text), &yaml, &err);
    assert_int_equal(status, c->status);
    assert_null(yaml);
    check_message(&err, c->status, c->message, c->also);
    assert_int_equal(parse(c->text, c->size ? c->size : strlen(c->text), &yaml, NULL), status);
}

/* ---- lines and members ---- */

static void test_lines(void **state) {
    (void)state;
    fti_yaml *yaml = parse_good("# comment\na: 1\nb:\n  - x\n\n  - {c: 2}\n");
    const fti_yaml_node *root = fti_yaml_root(yaml);
    const fti_yaml_node *a = fti_yaml_member(root, "a");
    const fti_yaml_node *b = fti_yaml_member(root, "b");
    assert_non_null(a);
    assert_non_null(b);
    assert_null(fti_yaml_member(root, "c"));
    assert_null(fti_yaml_member(root, ""));
    assert_null(fti_yaml_member(b, "x"));
    assert_null(fti_yaml_member(a, "a"));
    assert_int_equal(root->line, 2);
    assert_int_equal(a->line, 2);
    assert_int_equal(b->key_line, 3);
    assert_int_equal(b->line, 4);
    const fti_yaml_node *entry = b->first->next;
    assert_int_equal(entry->line, 6);
    assert_int_equal(fti_yaml_member(entry, "c")->key_line, 6);
    assert_null(entry->next);
    fti_yaml_free(yaml);
    fti_yaml_free(NULL);
}

static void test_empty_without_text(void **state) {
    (void)state;
    fti_yaml *yaml = NULL;
    assert_int_equal(fti_yaml_parse(NULL, 0, ORIGIN, &yaml, NULL), FTK_OK);
    assert_int_equal(fti_yaml_root(yaml)->kind, FTI_YAML_MAPPING);
    assert_int_equal(fti_yaml_root(yaml)->count, 0);
    assert_int_equal(fti_yaml_root(yaml)->line, 1);
    fti_yaml_free(yaml);
}

/* ---- typed values ---- */

typedef struct value_case {
    const char *text; /* a YAML scalar */
    bool is_u64, is_bytes;
    uint64_t u64, bytes;
} value_case;

static const value_case value_cases[] = {
    {"0", true, true, 0, 0},
    {"7", true, true, 7, 7},
    {"18446744073709551615", true, true, UINT64_MAX, UINT64_MAX},
    {"18446744073709551616", false, false, 0, 0},
    {"28446744073709551615", false, false, 0, 0},
    {"99999999999999999999999", false, false, 0, 0},
    {"00", false, false, 0, 0},
    {"01", false, false, 0, 0},
    {"-1", false, false, 0, 0},
    {"+1", false, false, 0, 0},
    {"1_000", false, false, 0, 0},
    {"0x10", false, false, 0, 0},
    {"0o17", false, false, 0, 0},
    {"1.0", false, false, 0, 0},
    {"1e3", false, false, 0, 0},
    {"'1'", false, false, 0, 0},
    {"\"1\"", false, false, 0, 0},
    {"''", false, false, 0, 0},
    {"[1]", false, false, 0, 0},
    {"{}", false, false, 0, 0},
    {"1B", false, true, 0, 1},
    {"3KiB", false, true, 0, 3072},
    {"2MiB", false, true, 0, 2097152},
    {"8GiB", false, true, 0, 8589934592},
    {"1TiB", false, true, 0, 1099511627776},
    {"16777215TiB", false, true, 0, 18446742974197923840u},
    {"16777216TiB", false, false, 0, 0},
    {"18446744073709551615B", false, true, 0, UINT64_MAX},
    {"8GB", false, false, 0, 0},
    {"8gib", false, false, 0, 0},
    {"8G", false, false, 0, 0},
    {"8 GiB", false, false, 0, 0},
    {"1.5GiB", false, false, 0, 0},
    {"08GiB", false, false, 0, 0},
    {"GiB", false, false, 0, 0},
    {"8GiBs", false, false, 0, 0},
    {"'8GiB'", false, false, 0, 0},
};

static void test_values(void **state) {
    (void)state;
    for (size_t i = 0; i < FTI_COUNT(value_cases); i++) {
        const value_case *c = &value_cases[i];
        fti_yaml *yaml = parse_good(c->text);
        uint64_t u64 = 77, bytes = 77;
        bool is_u64 = fti_yaml_u64(fti_yaml_root(yaml), &u64);
        bool is_bytes = fti_yaml_bytes(fti_yaml_root(yaml), &bytes);
        fti_yaml_free(yaml);
        if (is_u64 != c->is_u64 || u64 != (c->is_u64 ? c->u64 : 77))
            fail_msg("integer of %s: %d, %llu", c->text, is_u64, (unsigned long long)u64);
        if (is_bytes != c->is_bytes || bytes != (c->is_bytes ? c->bytes : 77))
            fail_msg("size of %s: %d, %llu", c->text, is_bytes, (unsigned long long)bytes);
    }
}

static void test_booleans(void **state) {
    (void)state;
    static const char *const no_booleans[] = {"True", "TRUE", "yes", "no",     "on",    "off",
                                              "1",    "0",    "~",   "'true'", "truee", "tru",
                                              "y",    "n",    "''",  "[true]", "False"};
    bool value = false;
    fti_yaml *yaml = parse_good("[true, false]");
    assert_true(fti_yaml_bool(fti_yaml_root(yaml)->first, &value) && value);
    assert_true(fti_yaml_bool(fti_yaml_root(yaml)->first->next, &value) && !value);
    fti_yaml_free(yaml);
    for (size_t i = 0; i < FTI_COUNT(no_booleans); i++) {
        yaml = parse_good(no_booleans[i]);
        if (fti_yaml_bool(fti_yaml_root(yaml), &value)) fail_msg("boolean: %s", no_booleans[i]);
        fti_yaml_free(yaml);
    }
}

/* ---- limits ---- */

/* CPU time of this thread: other work on the machine must not fail a test. */
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* `size` bytes: `head`, then `unit` again and again. */
static char *repeat(const char *head, const char *unit, size_t size) {
    char *text = malloc(size);
    assert_non_null(text);
    size_t n = strlen(head), m = strlen(unit);
    for (size_t i = 0; i < size; i++) text[i] = i < n ? head[i] : unit[(i - n) % m];
    return text;
}

static void check_fast(const char *head, const char *unit, size_t size, ftk_status wanted,
                       const char *message) {
    ftk_error err = FTK_ERROR_INIT;
    fti_yaml *yaml = NULL;
    char *text = repeat(head, unit, size);
    double begin = seconds();
    ftk_status status = fti_yaml_parse(text, size, ORIGIN, &yaml, &err);
    double taken = seconds() - begin;
    fti_yaml_free(yaml);
    free(text);
    if (status != wanted) fail_msg("'%s': %s", unit, status == FTK_OK ? "accepted" : err.message);
    if (message && !strstr(err.message, message)) fail_msg("'%s': %s", unit, err.message);
    if (taken > 0.5) fail_msg("'%s' took %.2f s", unit, taken);
}

static void test_i8_hostile_nesting_is_fast(void **state) {
    (void)state;
    static const char *const units[] = {"[",    "{a: ",  "[\n", "- ",     "? ",       "[[,",
                                        "{? ",  "[{a: ", "{[",  "[ [ ",   "[[[\n",    "!!x [",
                                        "&a [", "[#\n",  "- [", "? [a, ", "{\"a\": ", "[\"\\\n"};
    for (size_t i = 0; i < FTI_COUNT(units); i++)
        check_fast("", units[i], 200u * 1024u, FTK_E_CONFIG_SYNTAX, NULL);
    check_fast("", "[", 200u * 1024u, FTK_E_CONFIG_SYNTAX, ":1: more than 16 lists and mappings");
    check_fast("", "[", FTI_YAML_MAX_BYTES, FTK_E_CONFIG_SYNTAX, "more than 16");
}

static void test_large_texts_are_fast(void **state) {
    (void)state;
    check_fast("", "- a\n", FTI_YAML_MAX_BYTES, FTK_E_CONFIG_SYNTAX, "more than 65536 values");
    check_fast("a: ", "x", FTI_YAML_MAX_BYTES, FTK_OK, NULL);
    check_fast("a: '", "x ", FTI_YAML_MAX_BYTES, FTK_E_CONFIG_SYNTAX, "unexpected end");
    check_fast("", "\n", FTI_YAML_MAX_BYTES, FTK_OK, NULL);
    check_fast("", "# comment\n", FTI_YAML_MAX_BYTES, FTK_OK, NULL);
    check_fast("a: |\n", "  x\n", FTI_YAML_MAX_BYTES, FTK_OK, NULL);
}

static void test_size_limit(void **state) {
    (void)state;
    check_fast("", "\n", FTI_YAML_MAX_BYTES + 1, FTK_E_CONFIG_SYNTAX,
               "larger than the limit of 1048576");
}

/* Root and entries of a list: 65535 entries are as many as fit. */
static void test_node_limit(void **state) {
    (void)state;
    check_fast("", "- a\n", 65535u * 4u, FTK_OK, NULL);
    check_fast("", "- a\n", 65536u * 4u, FTK_E_CONFIG_SYNTAX, ":65536: more than 65536 values");
}

/* Nearly as many keys as fit, all of one length, the last equal to the first. */
static void test_many_keys_are_fast(void **state) {
    (void)state;
    enum { KEYS = 31990, WIDTH = 9 };
    char *text = malloc(KEYS * WIDTH + 1);
    assert_non_null(text);
    for (unsigned i = 0; i < KEYS; i++)
        snprintf(text + i * WIDTH, WIDTH + 1, "k%05u: \n", i + 1 < KEYS ? i * 7919u % 31991u : 0);
    ftk_error err = FTK_ERROR_INIT;
    fti_yaml *yaml = NULL;
    double begin = seconds();
    ftk_status status = fti_yaml_parse(text, (KEYS - 1) * WIDTH, ORIGIN, &yaml, &err);
    double taken = seconds() - begin;
    if (status != FTK_OK) fail_msg("%s", err.message);
    assert_int_equal(fti_yaml_root(yaml)->count, KEYS - 1);
    fti_yaml_free(yaml);
    if (taken > 0.5) fail_msg("took %.2f s", taken);
    assert_int_equal(fti_yaml_parse(text, KEYS * WIDTH, ORIGIN, &yaml, &err), FTK_E_CONFIG_KEY);
    check_message(&err, FTK_E_CONFIG_KEY, ":31990: duplicate key 'k00000', first given in line 1",
                  NULL);
    free(text);
}

/* ---- damage ---- */

static const char sample[] = "%YAML 1.2\n---\na: {b: [1, 'two', \"th\\x72ee\"], c: }\n"
                             "d:\n  - e: |\n      text\n    f: >-\n      folded\n  - g\n"
                             "? h\n: i # comment\n\xc3\xa4: \xf0\x9f\x98\x80\n...\n";

/* Must end, in either way, with a message if it fails. */
static void try_damaged(const char *text, size_t size) {
    ftk_error err = FTK_ERROR_INIT;
    fti_yaml *yaml = NULL;
    ftk_status status = parse(text, size, &yaml, &err);
    assert_true((status == FTK_OK) == (yaml != NULL));
    if (status != FTK_OK) {
        assert_int_equal(err.status, status);
        if (strncmp(err.message, ORIGIN ":", strlen(ORIGIN) + 1) != 0) fail_msg("%s", err.message);
    }
    fti_yaml_free(yaml);
}

static void test_truncations(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof sample; n++) try_damaged(sample, n);
}

static void test_replaced_bytes(void **state) {
    (void)state;
    char text[sizeof sample];
    memcpy(text, sample, sizeof sample);
    for (size_t i = 0; i < sizeof sample - 1; i++) {
        for (unsigned byte = 0; byte < 256; byte++) {
            text[i] = (char)byte;
            try_damaged(text, sizeof sample - 1);
        }
        text[i] = sample[i];
    }
}

static const struct CMUnitTest plain_tests[] = {
    cmocka_unit_test(test_lines),
    cmocka_unit_test(test_empty_without_text),
    cmocka_unit_test(test_values),
    cmocka_unit_test(test_booleans),
    cmocka_unit_test(test_i8_hostile_nesting_is_fast),
    cmocka_unit_test(test_large_texts_are_fast),
    cmocka_unit_test(test_size_limit),
    cmocka_unit_test(test_node_limit),
    cmocka_unit_test(test_many_keys_are_fast),
    cmocka_unit_test(test_truncations),
    cmocka_unit_test(test_replaced_bytes),
};

static struct CMUnitTest
    tests[FTI_COUNT(good_cases) + FTI_COUNT(bad_cases) + FTI_COUNT(plain_tests)];

int main(void) {
    size_t n = 0;
    for (size_t i = 0; i < FTI_COUNT(good_cases); i++)
        tests[n++] = (struct CMUnitTest){good_cases[i].name, test_good, NULL, NULL,
                                         (void *)(uintptr_t)&good_cases[i]};
    for (size_t i = 0; i < FTI_COUNT(bad_cases); i++)
        tests[n++] = (struct CMUnitTest){bad_cases[i].name, test_bad, NULL, NULL,
                                         (void *)(uintptr_t)&bad_cases[i]};
    for (size_t i = 0; i < FTI_COUNT(plain_tests); i++) tests[n++] = plain_tests[i];
    return cmocka_run_group_tests_name("test_yaml", tests, NULL, NULL);
}
