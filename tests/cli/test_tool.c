/*
 * test_tool.c: the parts of the programs that need no engine: decoding of
 * streamed text, editing of the allowlist, numbers, files, summaries.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/allow_edit.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/text.h"

const char fti_cli_program_name[] = "test_tool";

/* ---- text ---- */

#define BAD "\xEF\xBF\xBD"

typedef struct utf8_case {
    const char *in;
    const char *out;
} utf8_case;

static const utf8_case utf8_cases[] = {
    {"plain", "plain"},
    {"\xC2\x80 \xDF\xBF", "\xC2\x80 \xDF\xBF"},
    {"\xE0\xA0\x80\xEF\xBF\xBF", "\xE0\xA0\x80\xEF\xBF\xBF"},
    {"\xF0\x90\x80\x80\xF4\x8F\xBF\xBF", "\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"},
    {"\xED\x9F\xBF\xEE\x80\x80", "\xED\x9F\xBF\xEE\x80\x80"},
    {"\x80", BAD},
    {"\xC0\xAF", BAD BAD},
    {"\xC1\xBF", BAD BAD},
    {"\xE0\x9F\xBF", BAD BAD BAD},
    {"\xED\xA0\x80", BAD BAD BAD},
    {"\xF0\x8F\xBF\xBF", BAD BAD BAD BAD},
    {"\xF4\x90\x80\x80", BAD BAD BAD BAD},
    {"\xF5\x80", BAD BAD},
    {"\xFF\xFE", BAD BAD},
    {"\xE2\x82", BAD},
    {"\xF0\x9F\x98", BAD},
    {"\xC3", BAD},
    {"\xE2\x82x", BAD "x"},
    {"\xF0\x9F\x98\xC3\xA9", BAD "\xC3\xA9"},
    {"\xC3\xC3\xA9", BAD "\xC3\xA9"},
    {"a\xF0\x9F\x98\x80z", "a\xF0\x9F\x98\x80z"},
};

static void check_utf8(const char *in, size_t size, size_t cut, const char *out) {
    fti_cli_utf8 state = {0};
    fti_cli_text text = {0};
    fti_cli_append(&text, "", 0);
    fti_cli_utf8_feed(&state, in, cut, &text);
    for (size_t i = cut; i < size; i++) fti_cli_utf8_feed(&state, in + i, 1, &text);
    fti_cli_utf8_finish(&state, &text);
    assert_string_equal(text.data, out);
    free(text.data);
}

static void utf8_table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof utf8_cases / sizeof utf8_cases[0]; i++) {
        size_t size = strlen(utf8_cases[i].in);
        for (size_t cut = 0; cut <= size; cut++) {
            check_utf8(utf8_cases[i].in, size, cut, utf8_cases[i].out);
        }
    }
}

static size_t encode(uint32_t c, char out[5]) {
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    size_t size = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    memset(out, 0, 5);
    for (size_t i = size; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[size] | c);
    return size;
}

/* Nothing is held back longer, or let go earlier, than its last byte. */
static void utf8_all_characters(void **state) {
    (void)state;
    for (uint32_t c = 1; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        char bytes[5];
        size_t size = encode(c, bytes);
        fti_cli_utf8 decoder = {0};
        fti_cli_text text = {0};
        for (size_t i = 0; i < size; i++) {
            if (text.size != 0) fail_msg("U+%04X: early", (unsigned)c);
            fti_cli_utf8_feed(&decoder, bytes + i, 1, &text);
        }
        if (text.size != size || memcmp(text.data, bytes, size) != 0) {
            fail_msg("U+%04X: differs", (unsigned)c);
        }
        free(text.data);
    }
}

static void shown_text(void **state) {
    (void)state;
    static const char in[] = "a\"b\\\n\x1B[0m\xC2\x9B\xC3\xA9\xFF\xE2\x82\x7F\0z";
    char *shown = fti_cli_shown(in, sizeof in - 1);
    assert_string_equal(shown, "a\\\"b\\\\\\n\\x1b[0m\\xc2\\x9b\xC3\xA9\\xff\\xe2\\x82\\x7f\\x00z");
    free(shown);
    shown = fti_cli_plain(
        "a\"b\\\n\xE2\x80\xAE\xE2\x81\xA6\xD8\x9C\xE2\x80\xA8\xED\xA0\x80\xC0\x80\xF4\x90\x80\x80");
    assert_string_equal(shown,
                        "a\"b\\\\n\\xe2\\x80\\xae\\xe2\\x81\\xa6\\xd8\\x9c\\xe2\\x80\\xa8\\xed\\xa0"
                        "\\x80\\xc0\\x80\\xf4\\x90\\x80\\x80");
    free(shown);
}

static void said_text(void **state) {
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    assert_non_null(stream);
    fti_cli_say(stream, "%s\n%-4s|\n\n", "\x1b[2Ja", "\xC3\xA9");
    fti_cli_say(stream, "%s", "");
    fti_cli_say(stream, "%d %%", 7);
    assert_int_equal(fclose(stream), 0);
    assert_string_equal(text, "\\x1b[2Ja\n\xC3\xA9  |\n\n7 %");
    free(text);
}

/* One rule for which characters are shown, over all of them. */
static void shown_characters(void **state) {
    (void)state;
    for (uint32_t c = 1; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        bool harmful = c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x61C || c == 0x200E ||
                       c == 0x200F || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
        char bytes[5];
        encode(c, bytes);
        char *shown = fti_cli_plain(bytes);
        if ((strcmp(shown, bytes) != 0) != harmful) fail_msg("U+%04X: %s", (unsigned)c, shown);
        free(shown);
    }
}

static void shown_reports(void **state) {
    (void)state;
    json_t *report = json_pack("{s:[s, i, {s:b}], s:s}", "\x1b", "a\nb", 7, "k\xC2\x9B", 1, "ok",
                               "\xE2\x80\xAE");
    json_t *wanted = json_pack("{s:[s, i, {s:b}], s:s}", "\\x1b", "a\\nb", 7, "k\\xc2\\x9b", 1,
                               "ok", "\\xe2\\x80\\xae");
    json_t *shown = fti_cli_shown_report(report);
    assert_true(json_equal(shown, wanted));
    json_decref(report);
    json_decref(wanted);
    json_decref(shown);
}

/* ---- numbers and names ---- */

static void numbers(void **state) {
    (void)state;
    uint64_t whole = 7;
    assert_true(fti_cli_parse_u64("18446744073709551615", &whole));
    assert_true(whole == UINT64_MAX);
    static const char *const not_whole[] = {
        "", " 1", "-1", "+1", "1 ", "0x1", "1e3", "1.0", "18446744073709551616", "one"};
    for (size_t i = 0; i < sizeof not_whole / sizeof not_whole[0]; i++) {
        assert_false(fti_cli_parse_u64(not_whole[i], &whole));
    }
    double number = 0.0;
    assert_true(fti_cli_parse_number("-2.5e-1", &number));
    assert_true(number == -0.25);
    static const char *const not_number[] = {"",     "nan",   "inf", "0x1p3", "1,5",
                                             "1.5f", "1e999", "e",   " 1"};
    for (size_t i = 0; i < sizeof not_number / sizeof not_number[0]; i++) {
        assert_false(fti_cli_parse_number(not_number[i], &number));
    }
}

static void sizes(void **state) {
    (void)state;
    fti_cli_size size;
    assert_string_equal(fti_cli_size_text(0, &size), "0 B");
    assert_string_equal(fti_cli_size_text(1023, &size), "1023 B");
    assert_string_equal(fti_cli_size_text(1024, &size), "1.0 KiB");
    assert_string_equal(fti_cli_size_text(UINT64_C(24032992), &size), "22.9 MiB");
    assert_string_equal(fti_cli_size_text(UINT64_C(1) << 62, &size), "4194304.0 TiB");
}

static void nearest(void **state) {
    (void)state;
    static const char *const names[] = {"temp", "top-k", "top-p", "max-tokens", "ignore-eos"};
    assert_string_equal(fti_cli_nearest("tmep", names, 5, sizeof names[0]), "temp");
    assert_string_equal(fti_cli_nearest("max-token", names, 5, sizeof names[0]), "max-tokens");
    assert_string_equal(fti_cli_nearest("top-p", names, 5, sizeof names[0]), "top-p");
    assert_string_equal(fti_cli_nearest("ignore_eos", names, 5, sizeof names[0]), "ignore-eos");
    assert_null(fti_cli_nearest("verbose", names, 5, sizeof names[0]));
    assert_null(fti_cli_nearest("", names, 5, sizeof names[0]));
    char endless[200];
    memset(endless, 't', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    assert_null(fti_cli_nearest(endless, names, 5, sizeof names[0]));
}

/* ---- allowlist ---- */

#define ENTRY(indent) indent "- name: demo\n" indent "  path: /p/demo.so\n" indent "  sha256: abc\n"

typedef struct edit_case {
    const char *name;
    const char *before;
    bool update;
    fti_cli_edit result;
    const char *after; /* the text, or a part of the message */
} edit_case;

static const edit_case edit_cases[] = {
    {"empty", "", false, FTI_CLI_EDIT_ADDED, "providers:\n  allow:\n" ENTRY("    ")},
    {"comment only", "# mine", false, FTI_CLI_EDIT_ADDED,
     "# mine\nproviders:\n  allow:\n" ENTRY("    ")},
    {"no providers", "backend: {kind: cpu}\n", false, FTI_CLI_EDIT_ADDED,
     "backend: {kind: cpu}\nproviders:\n  allow:\n" ENTRY("    ")},
    {"no allow", "providers:\n   search: [/a]\nnumerics: exact\n", false, FTI_CLI_EDIT_ADDED,
     "providers:\n   allow:\n" ENTRY("     ") "   search: [/a]\nnumerics: exact\n"},
    {"bare allow", "providers:\n  allow: # none yet\n", false, FTI_CLI_EDIT_ADDED,
     "providers:\n  allow: # none yet\n" ENTRY("    ")},
    {"empty flow list", "providers:\n  allow: []  # none\n  search: []\n", false,
     FTI_CLI_EDIT_ADDED, "providers:\n  allow:   # none\n" ENTRY("    ") "  search: []\n"},
    {"empty flow map", "providers: {}\nnumerics: exact", false, FTI_CLI_EDIT_ADDED,
     "providers: \n  allow:\n" ENTRY("    ") "numerics: exact"},
    {"no final newline", "providers:\n  allow:", false, FTI_CLI_EDIT_ADDED,
     "providers:\n  allow:\n" ENTRY("    ")},
    {"before another", "providers:\n  allow:\n      - name: other\n        path: /o.so\n", false,
     FTI_CLI_EDIT_ADDED,
     "providers:\n  allow:\n" ENTRY("      ") "      - name: other\n        path: /o.so\n"},
    {"list at the key's column", "providers:\n  allow:\n  - name: other\n    path: /o.so\n", false,
     FTI_CLI_EDIT_ADDED, "providers:\n  allow:\n" ENTRY("  ") "  - name: other\n    path: /o.so\n"},
    {"quoted keys", "\"providers\":\n  'allow':\n", false, FTI_CLI_EDIT_ADDED,
     "\"providers\":\n  'allow':\n" ENTRY("    ")},
    {"quotes that do not match", "\"providers':\n", false, FTI_CLI_EDIT_ADDED,
     "\"providers':\nproviders:\n  allow:\n" ENTRY("    ")},
    {"allow elsewhere", "policy:\n  allow: x\nproviders:\n  deep:\n    allow: y\n", false,
     FTI_CLI_EDIT_ADDED,
     "policy:\n  allow: x\nproviders:\n  allow:\n" ENTRY("    ") "  deep:\n    allow: y\n"},
    {"comments and blanks", "providers:\n\n# c\n  # d\n\n  allow:\n\n# e\n", false,
     FTI_CLI_EDIT_ADDED, "providers:\n\n# c\n  # d\n\n  allow:\n" ENTRY("    ") "\n# e\n"},
    {"windows lines", "providers:\r\n  allow:\r\n", false, FTI_CLI_EDIT_ADDED,
     "providers:\r\n  allow:\r\n    - name: demo\r\n      path: /p/demo.so\r\n"
     "      sha256: abc\r\n"},
    {"as wanted", "providers:\n  allow:\n" ENTRY("    "), false, FTI_CLI_EDIT_UNCHANGED, ""},
    {"as wanted, update", "providers:\n  allow:\n" ENTRY("    "), true, FTI_CLI_EDIT_UNCHANGED, ""},
    {"as wanted, quoted",
     "providers:\n  allow:\n  -   sha256: 'abc' # c\n      path: \"/p/demo.so\"\n"
     "      name: demo   # d\n",
     false, FTI_CLI_EDIT_UNCHANGED, ""},
    {"dash alone", "providers:\n  allow:\n    -\n      name: demo\n      path: /old.so\n", false,
     FTI_CLI_EDIT_DIFFERS, "3: provider 'demo' is already allowed with path /old.so and no sha256"},
    {"other digest",
     "providers:\n  allow:\n    - name: demo\n      path: /p/demo.so\n      sha256: old\n", false,
     FTI_CLI_EDIT_DIFFERS, "sha256 old; wanted path /p/demo.so and sha256 abc; --update"},
    {"update path and digest",
     "providers:\n  allow:\n    - name: demo # n\n      path: /old.so  # p\n      sha256: \"old\"\n"
     "    - name: z\n",
     true, FTI_CLI_EDIT_UPDATED,
     "providers:\n  allow:\n    - name: demo # n\n      path: /p/demo.so  # p\n"
     "      sha256: abc\n    - name: z\n"},
    {"update, digest first",
     "providers:\n  allow:\n    - sha256: old\n      path: '/old''s.so'\n      name: demo\n", true,
     FTI_CLI_EDIT_UPDATED,
     "providers:\n  allow:\n    - sha256: abc\n      path: /p/demo.so\n      name: demo\n"},
    {"update adds a pin", "providers:\n  allow:\n    - path: /old.so\n      name: demo", true,
     FTI_CLI_EDIT_UPDATED,
     "providers:\n  allow:\n    - path: /p/demo.so\n      sha256: abc\n      name: demo"},
    {"update adds a pin at the end", "providers:\n  allow:\n    - name: demo\n      path: /old.so",
     true, FTI_CLI_EDIT_UPDATED,
     "providers:\n  allow:\n    - name: demo\n      path: /p/demo.so\n      sha256: abc\n"},
    {"update the second",
     "providers:\n  allow:\n    - name: a\n      path: /a.so\n    - name: demo\n      path: /o.so\n"
     "  search: [/s]\n",
     true, FTI_CLI_EDIT_UPDATED,
     "providers:\n  allow:\n    - name: a\n      path: /a.so\n    - name: demo\n"
     "      path: /p/demo.so\n      sha256: abc\n  search: [/s]\n"},
    {"flow list", "providers:\n  allow: [{name: a, path: /a}]\n", false, FTI_CLI_EDIT_REFUSED,
     "2: 'allow' holds its value on one line"},
    {"flow map", "numerics: exact\nproviders: {allow: []}\n", false, FTI_CLI_EDIT_REFUSED,
     "2: 'providers' holds its value on one line"},
    {"entry without a path", "providers:\n  allow:\n    - name: demo\n", true, FTI_CLI_EDIT_REFUSED,
     "3: "},
};

static void edit_table(void **state) {
    (void)state;
    const fti_cli_allow_entry entry = {"demo", "/p/demo.so", "abc"};
    for (size_t i = 0; i < sizeof edit_cases / sizeof edit_cases[0]; i++) {
        const edit_case *c = &edit_cases[i];
        fti_cli_text out = {0};
        fti_cli_append(&out, "", 0);
        fti_cli_edit result = fti_cli_allow_edit(c->before, strlen(c->before), &entry, c->update,
                                                 &out);
        bool message = result == FTI_CLI_EDIT_DIFFERS || result == FTI_CLI_EDIT_REFUSED;
        bool good = message ? strstr(out.data, c->after) != NULL : strcmp(out.data, c->after) == 0;
        if (result != c->result || !good) {
            fail_msg("%s: result %d\n%s", c->name, (int)result, out.data);
        }
        free(out.data);
    }
}

static size_t line_length(const char *text, size_t size) {
    const char *newline = memchr(text, '\n', size);
    return newline ? (size_t)(newline - text) : size;
}

/* Without the CR that a last line may have been given. */
static size_t content_length(const char *text, size_t length) {
    return length && text[length - 1] == '\r' ? length - 1 : length;
}

static bool same_line(const char *a, size_t a_size, const char *b, size_t b_size) {
    size_t size = content_length(a, a_size);
    return size == content_length(b, b_size) && memcmp(a, b, size) == 0;
}

/* True if the lines of `in` are those of `out` less at most five, in order. One
 * that holds [] or {} may have lost them. */
static bool lines_kept(const char *in, size_t size, const fti_cli_text *out) {
    size_t at = 0, added = 0, altered = 0;
    for (size_t i = 0, have; i < out->size; i += have + 1) {
        size_t wanted = at < size ? line_length(in + at, size - at) : 0;
        have = line_length(out->data + i, out->size - i);
        bool same = at < size && same_line(in + at, wanted, out->data + i, have);
        bool emptied = !same && at < size && altered == 0 && wanted == have + 2 &&
                       (memmem(in + at, wanted, "[]", 2) || memmem(in + at, wanted, "{}", 2));
        altered += emptied;
        added += !same && !emptied;
        if (same || emptied) at += wanted + 1;
    }
    return at >= size && added >= 3 && added <= 5;
}

/* Whatever is cut off or altered, the editor stays inside the text and leaves the
 * rest alone. */
static void check_additive(const char *text, size_t size) {
    const fti_cli_allow_entry entry = {"new", "/n/new.so", "def"};
    char *copy = malloc(size ? size : 1); /* exact size: overruns are seen */
    assert_non_null(copy);
    memcpy(copy, text, size);
    fti_cli_text out = {0};
    fti_cli_append(&out, "", 0);
    bool good = true;
    if (fti_cli_allow_edit(copy, size, &entry, true, &out) == FTI_CLI_EDIT_ADDED) {
        good = lines_kept(copy, size, &out) &&
               memmem(out.data, out.size, "sha256: def", 11) != NULL;
    }
    if (!good) fail_msg("%.*s\n-- became --\n%s", (int)size, copy, out.data);
    free(out.data);
    free(copy);
}

static void edit_hostile(void **state) {
    (void)state;
    static const char hostile[] = "\n\r\t -#:'\"\\[]{}\0\xFF";
    for (size_t i = 0; i < sizeof edit_cases / sizeof edit_cases[0]; i++) {
        char text[256];
        size_t size = strlen(edit_cases[i].before);
        assert_true(size < sizeof text);
        for (size_t cut = 0; cut <= size; cut++) check_additive(edit_cases[i].before, cut);
        for (size_t at = 0; at < size; at++) {
            for (size_t b = 0; b < sizeof hostile - 1; b++) {
                memcpy(text, edit_cases[i].before, size);
                text[at] = hostile[b];
                check_additive(text, size);
            }
        }
    }
}

static void edit_quotes_paths(void **state) {
    (void)state;
    const fti_cli_allow_entry entry = {"demo", "/my \"x\\y\": #1/demo.so", "abc"};
    fti_cli_text out = {0};
    assert_int_equal(fti_cli_allow_edit("", 0, &entry, false, &out), FTI_CLI_EDIT_ADDED);
    assert_non_null(strstr(out.data, "path: \"/my \\\"x\\\\y\\\": #1/demo.so\"\n"));
    fti_cli_text again = {0};
    fti_cli_append(&again, "", 0);
    assert_int_equal(fti_cli_allow_edit(out.data, out.size, &entry, false, &again),
                     FTI_CLI_EDIT_UNCHANGED);
    free(out.data);
    free(again.data);
}

/* ---- files ---- */

typedef struct folder {
    char path[64];
    char *file;
} folder;

static void make_folder(folder *f) {
    (void)strcpy(f->path, "/tmp/ftk-tool-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    f->file = fti_cli_format("%s/file", f->path);
}

/* Fails if anything but `file` was left. */
static void remove_folder(folder *f) {
    (void)unlink(f->file);
    assert_int_equal(rmdir(f->path), 0);
    free(f->file);
}

static void expect_content(const char *path, const char *wanted) {
    fti_cli_text text = {0};
    assert_true(fti_cli_read_file(path, &text));
    assert_string_equal(text.data, wanted);
    free(text.data);
}

static void put(const char *path, const char *content) {
    fti_cli_file file;
    assert_true(fti_cli_file_begin(&file, path, 0600));
    (void)fputs(content, file.stream);
    assert_true(fti_cli_file_commit(&file));
}

static void files_are_whole(void **state) {
    (void)state;
    folder f;
    make_folder(&f);
    put(f.file, "old");
    fti_cli_file file;
    assert_true(fti_cli_file_begin(&file, f.file, 0600));
    (void)fputs("new", file.stream);
    (void)fflush(file.stream);
    expect_content(f.file, "old");
    fti_cli_file_abandon(&file);
    expect_content(f.file, "old");
    put(f.file, "newer");
    expect_content(f.file, "newer");
    struct stat info;
    assert_int_equal(stat(f.file, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    remove_folder(&f);
}

static void files_through_links(void **state) {
    (void)state;
    folder f;
    make_folder(&f);
    char *link = fti_cli_format("%s/link", f.path);
    put(f.file, "old");
    assert_int_equal(symlink(f.file, link), 0);
    put(link, "new");
    struct stat info;
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    expect_content(f.file, "new");
    assert_int_equal(unlink(link), 0);
    free(link);
    remove_folder(&f);
}

/* A pipe stands for devices too: a fault here must not be able to replace one of the
 * machine's. */
static void files_written_directly(void **state) {
    (void)state;
    folder f;
    make_folder(&f);
    assert_int_equal(mkfifo(f.file, 0600), 0);
    int reader = open(f.file, O_RDWR | O_NONBLOCK);
    assert_true(reader >= 0);
    put(f.file, "through");
    char got[16] = "";
    assert_int_equal(read(reader, got, sizeof got - 1), 7);
    assert_string_equal(got, "through");
    struct stat info;
    assert_int_equal(lstat(f.file, &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    (void)close(reader);
    remove_folder(&f);
}

static void files_that_fail(void **state) {
    (void)state;
    folder f;
    fti_cli_file file;
    make_folder(&f);
    char *missing = fti_cli_format("%s/no/x", f.path);
    assert_false(fti_cli_file_begin(&file, missing, 0600));
    assert_int_equal(errno, ENOENT);
    free(missing);
    assert_false(fti_cli_file_begin(&file, f.path, 0600));
    assert_int_equal(errno, EISDIR);
    put(f.file, "kept");
    struct rlimit limit, none = {0};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    none.rlim_max = limit.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_true(fti_cli_file_begin(&file, f.file, 0600));
    (void)fputs("more", file.stream);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    bool written = fti_cli_file_commit(&file);
    int reason = errno;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_false(written);
    assert_int_equal(reason, EFBIG);
    expect_content(f.file, "kept");
    remove_folder(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(utf8_table),
        cmocka_unit_test(utf8_all_characters),
        cmocka_unit_test(shown_text),
        cmocka_unit_test(said_text),
        cmocka_unit_test(shown_characters),
        cmocka_unit_test(shown_reports),
        cmocka_unit_test(numbers),
        cmocka_unit_test(sizes),
        cmocka_unit_test(nearest),
        cmocka_unit_test(edit_table),
        cmocka_unit_test(edit_hostile),
        cmocka_unit_test(edit_quotes_paths),
        cmocka_unit_test(files_are_whole),
        cmocka_unit_test(files_through_links),
        cmocka_unit_test(files_written_directly),
        cmocka_unit_test(files_that_fail),
    };
    return cmocka_run_group_tests_name("test_tool", tests, NULL, NULL);
}
