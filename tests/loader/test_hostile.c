/*
 * test_hostile.c: data that somebody else wrote costs little: any manifest or configuration of
 * up to 1 MiB is answered within half a second and 32 MiB, and a thousand manifests are listed
 * within a fifth of a second.
 */
#include "loader/scratch.h"
#include "support/engine_fixture.h" /* FIXTURE_SLOW_BUILD */

#include "core/loader.h"
#include "freetoken/freetoken.h"

#include <sys/resource.h>
#include <time.h>

#define SIZE        ((size_t)1 << 20)
#define MEMORY      ((rlim_t)32 << 20)
#define SLOW_FACTOR (FIXTURE_SLOW_BUILD ? 20.0 : 1.0)

/* Of this process: other work on the machine does not count. */
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- hostile texts ---- */

typedef struct shape {
    const char *head;
    const char *repeated; /* up to SIZE; NULL: bytes from a generator of fixed seed */
    const char *tail;
    bool numbered; /* a running number stands in each repetition's place of '#' */
} shape;

#define MANIFEST_HEAD                                                                              \
    "manifest_version: 1\nname: good\nversion: 1.0.0\napi_level: 0\nmin_host_level: 0\n"           \
    "core_range: '>=0.1.0'\nplatform: " FTI_PLATFORM "\nlibrary: good.so\n"

static const shape shapes[] = {
    {"", "[", "", false},
    {"", "{", "", false},
    {"", "{a: [", "", false},
    {"", "- ", "", false},
    {"", "? ", "", false},
    {"", ": ", "", false},
    {"", "a", "", false},
    {"", "a", ": 1\n", false},
    {"a: \"", "\\x41", "\"\n", false},
    {"a: '", "''", "'\n", false},
    {"a: |\n", " a\n", "", false},
    {"a: >\n", " a\n\n", "", false},
    {"a: ", "b ", "\n", false},
    {"", "# a\n", "", false},
    {"", "\n", "", false},
    {"", " ", "a: 1\n", false},
    {"", "\t", "a: 1\n", false},
    {"", "--- a\n", "", false},
    {"", "---\n", "", false},
    {"", "...\n", "", false},
    {"", "%TAG !a! b\n", "--- a\n", false},
    {"", "%TAG !a#! b\n", "--- a\n", true},
    {"# a\xe2\x80\xa8", "%TAG !a#! b\xc2\x85", "--- a\n", true},
    {"", "%YAML 1.1\n", "--- a\n", false},
    {"a: [", "&#,", "]\n", true},
    {"a: &a [b]\nb: [", "*a,", "]\n", false},
    {"a: [", "!t b,", "]\n", false},
    {"", "k#: v\n", "", true},
    {"", "same: v\n", "", false},
    {"{", "k#: v,", "}\n", true},
    {"a: [", "v,", "]\n", false},
    {"a: {", "v,", "}\n", false},
    {"a:\n", "- v\n", "", false},
    {"a:\n", "- - - v\n", "", false},
    {"a: [", "[],", "]\n", false},
    {"a: [", "\xf0\x9f\x98\x80,", "]\n", false},
    {"", "\xff", "", false},
    {"", "\xef\xbb\xbf", "", false},
    {"a: \"", "\xc2\x85", "\"\n", false},
    {"a: b\n", "\xe2\x80\xa8", "", false},
    {"providers: {allow: [", "{name: n#, path: /a/n#},", "]}\n", true},
    {"providers: {allow: [{name: a, path: /", "b/", "c}]}\n", false},
    {"providers: {search: [", "/a/#,", "]}\n", true},
    {"providers: {select: {", "a#/gguf: b,", "}}\n", true},
    {"provider_options: {", "a#: {b: c},", "}\n", true},
    {"provider_options: {a: {b: [", "1.5,", "]}}\n", false},
    {"backend: {threads: ", "9", "}\n", false},
    {"nu", "m", "erics: exact\n", false},
    {MANIFEST_HEAD "architectures: [", "a#,", "]\n", true},
    {MANIFEST_HEAD "architectures: [", "a", "]\n", false},
    {MANIFEST_HEAD "license: ", "a ", "\n", false},
    {MANIFEST_HEAD, "api_level: 0\n", "", false},
    {MANIFEST_HEAD, "unknown#: 0\n", "", true},
    {"core_range: '", ">=0.1.0 ", "'\n", false},
    {"version: ", "1.", "0\n", false},
    {"", "\r", "", false},
    {"", "a#:\r", "", true},
    {"a: [", "b,\r", "]\n", false},
    {"a: \"", "\\\n", "\"\n", false},
    {"? ", "a\n  ", ": b\n", false},
    {"", "a: b: ", "\n", false},
    {"\xff\xfe", "a", "", false},
    {"\xfe\xff", "a", "", false},
    {"a: b\n#", "\xc2\x9b", "\n", false},
    {"providers: {allow: [{", "name: a#,", "}]}\n", true},
    {"providers: {allow: [{name: a, sha256: ", "0", "}]}\n", false},
    {"providers: {search: [", "/a/b,", "]}\n", false},
    {"", NULL, "", false},
};

static size_t put(char *to, size_t at, const char *data) {
    for (; *data && at < SIZE; data++) to[at++] = *data;
    return at;
}

static size_t put_numbered(char *to, size_t at, const char *data, unsigned number) {
    char digits[16];
    snprintf(digits, sizeof digits, "%u", number);
    for (; *data && at < SIZE; data++) {
        if (*data != '#') {
            to[at++] = *data;
            continue;
        }
        at = put(to, at, digits);
    }
    return at;
}

static size_t build(const shape *s, char *to) {
    uint32_t x = 2463534242u;
    size_t end = SIZE - strlen(s->tail), at = put(to, 0, s->head);
    for (unsigned i = 0; at < end; i++) {
        if (!s->repeated) {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            to[at++] = (char)(x >> 8);
        } else if (s->numbered) {
            at = put_numbered(to, at, s->repeated, i);
        } else {
            at = put(to, at, s->repeated);
        }
    }
    return put(to, end, s->tail);
}

/* ---- the limits ---- */

static void limit_memory(void) {
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "re");
    if (!statm || fscanf(statm, "%lu", &pages) != 1) _exit(90);
    (void)fclose(statm);
    rlim_t now = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
    struct rlimit limit = {now + MEMORY, now + MEMORY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(91);
}

typedef ftk_status (*reader)(const char *data, size_t size, ftk_error *err);

static ftk_status as_config(const char *data, size_t size, ftk_error *err) {
    ftk_config *c = NULL;
    ftk_status status = ftk_config_parse(data, size, "test.yaml", &c, err);
    ftk_config_free(c);
    return status;
}

static ftk_status as_manifest(const char *data, size_t size, ftk_error *err) {
    fti_manifest *m = NULL;
    (void)data; /* it lies in the file */
    (void)size;
    ftk_status status = fti_manifest_read(in_scratch("good.provider.yaml").s, &m, err);
    fti_manifest_free(m);
    return status;
}

/* The lists are read, and every entry of them is looked at. */
static ftk_status as_question(const char *data, size_t size, ftk_error *err) {
    ftk_config *c = NULL;
    char *json = NULL;
    fti_provider_query query = {.architecture = fti_str("a"), .container = fti_str("gguf")};
    const fti_provider *provider = NULL;
    ftk_status status = ftk_config_parse(data, size, "test.yaml", &c, err);
    if (status != FTK_OK) _exit(4); /* then nothing was looked at */
    status = ftk_providers_report(c, &json, err);
    ftk_report_free(json);
    if (status == FTK_OK) status = fti_provider_resolve(c, &query, &provider, err);
    ftk_config_free(c);
    return status;
}

/* Sanitizers take address space of their own. */
static int answer(reader read, const char *data, size_t size) {
    ftk_error err = FTK_ERROR_INIT;
    if (!FIXTURE_SLOW_BUILD) limit_memory();
    double begin = cpu_seconds();
    ftk_status status = read(data, size, &err);
    double seconds = cpu_seconds() - begin;
    if (status == FTK_E_NO_MEMORY) return 1;
    if (seconds > 0.5 * SLOW_FACTOR) return 2;
    return status == FTK_OK || (err.message[0] && !strchr(err.message, '\n')) ? 0 : 3;
}

/* In a child, which alone is limited. */
static void expect_answer(reader read, const char *data, size_t size, size_t index) {
    static const char *const failures[] = {"needs more than 32 MiB", "takes longer than 0.5 s",
                                           "gives no message",
                                           "is refused before its entries are looked at"};
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(answer(read, data, size));
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status)) fail_msg("shape %zu: signal %d", index, WTERMSIG(status));
    int code = WEXITSTATUS(status);
    if (code != 0)
        fail_msg("shape %zu (%s...): %s", index, shapes[index].repeated,
                 code <= 4 ? failures[code - 1] : "cannot be limited");
}

static void hostile_texts(void **state) {
    (void)state;
    char *data = malloc(SIZE);
    assert_non_null(data);
    /* Every shape once; sanitizers see a part of them. */
    for (size_t i = 0; i < FTI_COUNT(shapes); i += FIXTURE_SLOW_BUILD ? 5 : 1) {
        size_t size = build(&shapes[i], data);
        write_file(in_scratch("good.provider.yaml").s, data, size, 0644);
        expect_answer(as_config, data, size, i);
        expect_answer(as_manifest, data, size, i);
    }
    free(data);
}

/* As many entries as are read, with paths as long as fit, of things that are there or not. */
static void the_longest_lists(void **state) {
    (void)state;
    static const struct {
        const char *search, *allow;
    } forms[] = {
        {"/no/%s/%u", "/no/%s/%u.so"},
        {"/proc/self/fd/%.0s%u", "/dev/%.0snull%u/x.so"},
        {"/tmp/%s/%u", "/tmp/%s/%u.so"},
    };
    char part[201];
    memset(part, 'p', sizeof part - 1);
    part[sizeof part - 1] = 0;
    char *data = malloc(SIZE);
    assert_non_null(data);
    for (size_t f = 0; f < FTI_COUNT(forms); f++) {
        size_t at = put(data, 0, "providers:\n  search:\n");
        char line[512];
        for (unsigned i = 0; i < 1024; i++) {
            snprintf(line, sizeof line, "    - ");
            snprintf(line + 6, sizeof line - 6, forms[f].search, part, i);
            at = put(data, put(data, at, line), "\n");
        }
        at = put(data, at, "  allow:\n");
        for (unsigned i = 0; i < 1024; i++) {
            int n = snprintf(line, sizeof line, "    - {name: n%u, path: ", i);
            snprintf(line + n, sizeof line - (size_t)n, forms[f].allow, part, i);
            at = put(data, put(data, at, line), "}\n");
        }
        assert_in_range(at, 1, SIZE - 1);
        expect_answer(as_question, data, at, f);
    }
    free(data);
}

/* ---- a thousand manifests ---- */

static void a_thousand_manifests(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *c;
    char *json = NULL;
    make_folder(in_scratch("many").s, 0755);
    for (unsigned i = 0; i < 1000; i++) {
        text folder = format("%s/many/p%03u", scratch, i);
        text manifest = format("manifest_version: 1\nname: p%03u\nversion: 1.0.0\napi_level: 0\n"
                               "min_host_level: 0\ncore_range: '>=0.1.0'\nplatform: " FTI_PLATFORM
                               "\nlibrary: p.so\narchitectures: [a%u]\ncontainers: [gguf]\n"
                               "backends: [cpu]\nlicense: MIT\n",
                               i, i);
        make_folder(folder.s, 0755);
        write_file(format("%s/p%03u.provider.yaml", folder.s, i).s, manifest.s, strlen(manifest.s),
                   0644);
    }
    text yaml = format("providers: {search: ['%s/many']}\n", scratch);
    expect_status(ftk_config_parse(yaml.s, strlen(yaml.s), "test.yaml", &c, &err), FTK_OK, &err,
                  "");
    double begin = cpu_seconds();
    expect_status(ftk_providers_report(c, &json, &err), FTK_OK, &err, "");
    double seconds = cpu_seconds() - begin;
    ftk_config_free(c);
    assert_non_null(strstr(json, "\"p999\""));
    assert_null(strstr(json, "FTK_E_"));
    ftk_report_free(json);
    print_message("1000 manifests: %.3f s\n", seconds);
    if (seconds > 0.2 * SLOW_FACTOR) fail_msg("%.3f s, wanted at most 0.2", seconds);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(hostile_texts),
        CASE(the_longest_lists),
        CASE(a_thousand_manifests),
    };
    return cmocka_run_group_tests_name("test_hostile", tests, NULL, NULL);
}
