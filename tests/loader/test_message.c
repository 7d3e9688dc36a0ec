/* test_message.c: the text of failures: what is escaped in it, and what gives way where it is
 * too long for its record. */
#include "loader/scratch.h"

/* Of one string as a message shows it. */
static ftk_error shown(const char *string) {
    ftk_error err = FTK_ERROR_INIT;
    fti_fail(&err, FTK_E_IO, "<%s>", string);
    return err;
}

static size_t encode(uint32_t c, char out[5]) {
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    size_t size = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    memset(out, 0, 5);
    for (size_t i = size; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[size] | c);
    return size;
}

static bool is_dangerous(uint32_t c) {
    return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x61C || c == 0x200E || c == 0x200F ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

static void every_character(void **state) {
    (void)state;
    for (uint32_t c = 1; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        char bytes[5], wanted[20] = "<";
        size_t size = encode(c, bytes);
        for (size_t i = 0; i < size; i++)
            snprintf(wanted + strlen(wanted), 8, is_dangerous(c) ? "\\x%02x" : "%c",
                     (unsigned char)bytes[i]);
        if (c == '\n') strcpy(wanted, "<\\n");
        strcat(wanted, ">");
        const ftk_error err = shown(bytes);
        if (strcmp(err.message, wanted) != 0)
            fail_msg("U+%04X: found %s, wanted %s", (unsigned)c, err.message, wanted);
    }
}

static void what_is_no_character(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\xFF", "<\\xff>"},
        {"a\xC3", "<a\\xc3>"},
        {"\xC3(", "<\\xc3(>"},
        {"\xC0\xAF", "<\\xc0\\xaf>"},
        {"\xED\xA0\x80", "<\\xed\\xa0\\x80>"},
        {"\xE2\x80", "<\\xe2\\x80>"},
        {"\xF4\x90\x80\x80", "<\\xf4\\x90\\x80\\x80>"},
        {"\x9B\x33\x31m", "<\\x9b31m>"},
        {"back\\slash", "<back\\slash>"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        ftk_error err = shown(cases[i][0]);
        assert_string_equal(err.message, cases[i][1]);
        /* A message inside another stays as it is. */
        char again[64];
        snprintf(again, sizeof again, "<%s>", cases[i][1]);
        err = shown(cases[i][1]);
        assert_string_equal(err.message, again);
    }
}

static void conversions(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    const char *const none = NULL;
    fti_fail(&err, FTK_E_IO, "%d|%5u|%-4d|%04o|0x%02x|%llu|%lld|%zu|%%|%c|%.3s|%.*s|%s|\x1b", -7,
             42u, 3, 0644u, 10u, 18446744073709551615ull, -9000000000ll, (size_t)77, 'q', "abcdef",
             2, "xyz", none ? none : "-");
    assert_string_equal(err.message, "-7|   42|3   |0644|0x0a|18446744073709551615|-9000000000|77|"
                                     "%|q|abc|xy|-|\\x1b");
    fti_fail(&err, FTK_E_IO, "%.2f %.1f%% %g %+.1e %lu %ld %jd %*d", 1.005, 99.95, 0.25, 12345.0,
             7ul, -7l, (intmax_t)-1, 4, 5);
    assert_string_equal(err.message, "1.00 100.0% 0.25 +1.2e+04 7 -7 -1    5");
}

#define ADVICE "; run: freetoken providers allow FOLDER"

/* Paths of any length lose their middle; what is said about them does not. */
static void words_stay_whole(void **state) {
    (void)state;
    static char path[9000];
    for (size_t n = 1; n < sizeof path; n = n < 1200 ? n + 7 : n * 2) {
        for (size_t i = 0; i < n; i++) path[i] = (char)('a' + i % 26);
        path[0] = '/';
        path[n] = 0;
        if (n > 20) memcpy(path + n - 10, "/the-end.x", 10);
        ftk_error err = FTK_ERROR_INIT;
        fti_fail(&err, FTK_E_IO, "'%s' refused: found %u of '%s' ('%s'), wanted %s" ADVICE, path,
                 12u, path, "short", path);
        if (!strstr(err.message, "' refused: found 12 of '/") ||
            !strstr(err.message, "' ('short'), wanted /") ||
            strcmp(err.message + strlen(err.message) - strlen(ADVICE), ADVICE) != 0)
            fail_msg("%zu bytes: %s", n, err.message);
        if (n > 20) {
            assert_non_null(strstr(err.message, "/the-end.x' refused"));
            assert_non_null(strstr(err.message, "/the-end.x" ADVICE));
        }
        if (3 * n < 600 || 3 * n > 775)
            assert_int_equal(strstr(err.message, "...") != NULL, 3 * n > 775);
    }
}

/* An escape or a character is shown whole or not at all. */
static void cut_between_characters(void **state) {
    (void)state;
    static const char *const units[] = {"\xC3\xA9", "\x1b", "\xE2\x80\xAE", "\xF0\x9F\x99\x82"};
    static char path[4000];
    for (size_t u = 0; u < FTI_COUNT(units); u++) {
        for (size_t skew = 0; skew < 12; skew++) {
            size_t n = 0;
            for (; n < skew; n++) path[n] = 'x';
            while (n + 8 < sizeof path) n += (size_t)sprintf(path + n, "%s", units[u]);
            const ftk_error err = shown(path);
            const char *at = err.message + 1 + skew;
            const ftk_error one = shown(units[u]);
            size_t size = strlen(one.message) - 2;
            size_t pieces = 0;
            for (; strncmp(at, one.message + 1, size) == 0; at += size) pieces++;
            assert_true(pieces > 20);
            assert_memory_equal(at, "...", 3);
            for (at += 3; strncmp(at, one.message + 1, size) == 0; at += size) pieces++;
            assert_string_equal(at, ">");
            assert_true(pieces * size > 700);
        }
    }
}

/* Two places before it, each with a path of its own, leave the message inside whole. */
static void finished_messages_give_way_last(void **state) {
    (void)state;
    static char path[3000];
    memset(path, 'p', sizeof path - 1);
    path[0] = '/';
    ftk_error inner = FTK_ERROR_INIT, middle = FTK_ERROR_INIT, outer = FTK_ERROR_INIT;
    fti_fail(&inner, FTK_E_IO, "'%s' refused: found '%s', wanted another" ADVICE, path, path);
    fti_fail(&middle, FTK_E_IO, "%s:%u: providers.allow: name: %-s", path, 7u, inner.message);
    fti_fail(&outer, FTK_E_IO, "%s: %-s", path, middle.message);
    assert_non_null(strstr(outer.message, inner.message));
    assert_non_null(strstr(outer.message, ":7: providers.allow: name: '/p"));
    assert_memory_equal(outer.message, "/ppp", 4);
    /* As long as a record can be: it loses its middle, not its end. */
    memset(inner.message, 'm', sizeof inner.message - 1);
    memcpy(inner.message + sizeof inner.message - 9, " at last", 9);
    fti_fail(&outer, FTK_E_IO, "%s: %-s; and that is it", path, inner.message);
    assert_non_null(strstr(outer.message, "mmm...mmm"));
    assert_non_null(strstr(outer.message, "mm at last; and that is it"));
    assert_memory_equal(outer.message, "/ppp", 4);
}

static void shown_names(void **state) {
    (void)state;
    assert_string_equal(fti_show(fti_str("caf\xC3\xA9\x1b[0m")).text, "caf\xC3\xA9\\x1b[0m");
    assert_string_equal(fti_show((ftk_str){NULL, 0}).text, "");
    assert_string_equal(fti_show((ftk_str){"a\0b", 3}).text, "a\\x00b");
    char name[500];
    memset(name, 'n', sizeof name);
    memcpy(name, "first", 5);
    memcpy(name + sizeof name - 4, "last", 4);
    fti_shown shortened = fti_show((ftk_str){name, sizeof name});
    assert_int_equal(strlen(shortened.text), sizeof shortened.text - 1);
    assert_memory_equal(shortened.text, "firstnnn", 8);
    assert_non_null(strstr(shortened.text, "nnn...nnn"));
    assert_string_equal(shortened.text + sizeof shortened.text - 1 - 6, "nnlast");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character),
        cmocka_unit_test(what_is_no_character),
        cmocka_unit_test(conversions),
        cmocka_unit_test(words_stay_whole),
        cmocka_unit_test(cut_between_characters),
        cmocka_unit_test(finished_messages_give_way_last),
        cmocka_unit_test(shown_names),
    };
    return cmocka_run_group_tests_name("test_message", tests, NULL, NULL);
}
