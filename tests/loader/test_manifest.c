/*
 * test_manifest.c: what fti_manifest_read takes and what it says of the rest,
 * and the comparisons of versions and levels that manifests state.
 */
#include "core/loader.h"
#include "core/semver.h"
#include "core/yaml.h"
#include "loader/scratch.h"

#if defined(__aarch64__)
#define PLATFORM "aarch64-linux-gnu"
#else
#define PLATFORM "x86_64-linux-gnu"
#endif

static const char *const lines[] = {
    "manifest_version: 1",
    "name: good",
    "version: 1.2.3",
    "distribution: package",
    "distribution_version: 1.2.3-1",
    "api_level: 0",
    "min_host_level: 0",
    "core_range: \">=0.1.0 <0.2.0\"",
    ("platform: " PLATFORM),
    "library: good.so",
    "architectures: [testarch, secondarch]",
    "containers:\n  - gguf",
    "backends: [cpu]",
    "license: Apache-2.0 OR MIT",
    "device_code: [sm_90, gfx1201]",
};

/* The manifest above with line `index` (from 0) replaced; NULL leaves it out. */
static void write_manifest(size_t index, const char *replacement) {
    text whole = {{0}};
    for (size_t i = 0; i < FTI_COUNT(lines); i++) {
        const char *line = i == index ? replacement : lines[i];
        if (line) whole = format("%s%s\n", whole.s, line);
    }
    write_file(in_scratch("good.provider.yaml").s, whole.s, strlen(whole.s), 0644);
}

static void refuse(ftk_status wanted, const char *part) {
    ftk_error err = FTK_ERROR_INIT;
    fti_manifest *manifest = NULL;
    text path = in_scratch("good.provider.yaml");
    expect_status(fti_manifest_read(path.s, &manifest, &err), wanted, &err, part);
    assert_null(manifest);
    assert_non_null(strstr(err.message, path.s));
}

static void refuse_line(size_t index, const char *replacement, const char *part) {
    write_manifest(index, replacement);
    refuse(FTK_E_PROVIDER_MANIFEST, part);
}

static void refuse_text(const char *content, size_t size, const char *part) {
    write_file(in_scratch("good.provider.yaml").s, content, size, 0644);
    refuse(FTK_E_PROVIDER_MANIFEST, part);
}

static fti_manifest *read_good(void) {
    ftk_error err = FTK_ERROR_INIT;
    fti_manifest *manifest = NULL;
    expect_status(fti_manifest_read(in_scratch("good.provider.yaml").s, &manifest, &err), FTK_OK,
                  &err, "");
    assert_non_null(manifest);
    return manifest;
}

static void reads_every_key(void **state) {
    (void)state;
    write_manifest(SIZE_MAX, NULL);
    fti_manifest *m = read_good();
    assert_string_equal(m->path, in_scratch("good.provider.yaml").s);
    assert_string_equal(m->name, "good");
    assert_string_equal(m->version, "1.2.3");
    assert_string_equal(m->distribution, "package");
    assert_string_equal(m->distribution_version, "1.2.3-1");
    assert_string_equal(m->core_range, ">=0.1.0 <0.2.0");
    assert_string_equal(m->platform, PLATFORM);
    assert_string_equal(m->library, "good.so");
    assert_string_equal(m->architectures, "testarch secondarch");
    assert_string_equal(m->containers, "gguf");
    assert_string_equal(m->backends, "cpu");
    assert_string_equal(m->license, "Apache-2.0 OR MIT");
    assert_int_equal(m->manifest_version, 1);
    assert_int_equal(m->api_level, 0);
    assert_int_equal(m->min_host_level, 0);
    fti_manifest_free(m);
    write_manifest(5, "api_level: 4294967295");
    m = read_good();
    assert_int_equal(m->api_level, UINT32_MAX);
    fti_manifest_free(m);
}

static void wants_every_required_key(void **state) {
    (void)state;
    for (size_t i = 0; i < FTI_COUNT(lines); i++) {
        bool optional = i == 3 || i == 4 || i == 14;
        char key[32] = {0};
        memcpy(key, lines[i], strcspn(lines[i], ":"));
        if (!optional) {
            refuse_line(i, NULL, format("no key '%s'", key).s);
            continue;
        }
        write_manifest(i, NULL);
        fti_manifest *m = read_good();
        if (i == 3) assert_string_equal(m->distribution, "");
        if (i == 4) assert_string_equal(m->distribution_version, "");
        fti_manifest_free(m);
    }
}

static void refuses_values(void **state) {
    (void)state;
    static const struct {
        size_t line;
        const char *replacement;
        const char *part;
    } cases[] = {
        {0, "manifest_version: one", ":1: manifest_version: found 'one'"},
        {1, "name: Good", ":2: name: found 'Good'"},
        {1, "name: ../good", ":2: name"},
        {1, "name: other", "'other.provider.yaml'"},
        {1, "name: goo", "'goo.provider.yaml'"},
        {1, "name:", ":2: name"},
        {1, "name: [good]", ":2: name: found a list"},
        {2, "version: 1 2", ":3: version"},
        {2, "version: {a: b}", ":3: version: found a mapping"},
        {5, "api_level: -1", ":6: api_level"},
        {5, "api_level: 4294967296", ":6: api_level"},
        {5, "api_level: \"0\"", ":6: api_level"},
        {5, "api_level: 0x0", ":6: api_level"},
        {6, "min_host_level: [0]", ":7: min_host_level: found a list"},
        {7, "core_range: latest", ":8: core_range"},
        {7, "core_range: \">=0.1\"", ":8: core_range"},
        {7, "core_range: \"\"", ":8: core_range"},
        {8, "platform: riscv64-linux-gnu", "wanted " PLATFORM},
        {9, "library: /tmp/good.so", ":10: library"},
        {9, "library: ../good.so", ":10: library"},
        {9, "library: \"..\"", ":10: library"},
        {10, "architectures: testarch", ":11: architectures: found 'testarch'"},
        {10, "architectures: []", ":11: architectures: found a list"},
        {10, "architectures: [a, \"b c\"]", ":11: architectures"},
        {10, "architectures: [a, [b]]", ":11: architectures"},
        {10, "architectures: [a, b, a]", "'a' twice"},
        {10, "architectures:\n  - a\n  - \"\"", ":13: architectures"},
        {13, "license: \"\"", ":15: license"},
        {13, "license: \"a\\nb\"", ":15: license"},
        {14, "device_code: sm_90", ":16: device_code"},
        {14, "device_cod: [sm_90]", "did you mean 'device_code'?"},
        {14, "zzzzzzzz: 1", ":16: found the unknown key 'zzzzzzzz'"},
        {14, "name: good", ":16: "}, /* a second time */
        {14, "device_code: &x [*x]", ":16: "},
        {14, "device_code: !!seq [a]", ":16: "},
        {14, "---\nname: good", ":1"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++)
        refuse_line(cases[i].line, cases[i].replacement, cases[i].part);
}

static void newer_manifest_version_comes_first(void **state) {
    (void)state;
    static const char newer[] = "something_new: 1\nmanifest_version: 2\n";
    refuse_text(newer, sizeof newer - 1, ":2: manifest_version: found '2', wanted 1");
}

static void refuses_other_documents(void **state) {
    (void)state;
    static const char list[] = "- a\n- b\n";
    static const char broken[] = "name: [good\n";
    static const char nul[] = "name: good\n\0";
    refuse_text("", 0, "no key");
    refuse_text(list, sizeof list - 1, "not a mapping");
    refuse_text(broken, sizeof broken - 1, "yaml:");
    refuse_text(nul, sizeof nul - 1, "yaml:");
    size_t size = FTI_YAML_MAX_BYTES + 1;
    char *large = malloc(size);
    assert_non_null(large);
    memset(large, '#', size);
    refuse_text(large, size, "more than");
    free(large);
}

static void passes_the_trust_checks_first(void **state) {
    (void)state;
    write_manifest(SIZE_MAX, NULL);
    assert_int_equal(chmod(in_scratch("good.provider.yaml").s, 0666), 0);
    refuse(FTK_E_PROVIDER_PERMISSION, "chmod go-w");
    assert_int_equal(rename(in_scratch("good.provider.yaml").s, in_scratch("real").s), 0);
    refuse(FTK_E_PROVIDER_MANIFEST, "no such file");
    assert_int_equal(symlink("real", in_scratch("good.provider.yaml").s), 0);
    refuse(FTK_E_PROVIDER_PATH, "symbolic link");
    assert_int_equal(unlink(in_scratch("good.provider.yaml").s), 0);
    make_folder(in_scratch("good.provider.yaml").s, 0755);
    refuse(FTK_E_PROVIDER_PATH, "a folder");
}

/* Every prefix of a manifest is read or refused, never more. */
static void survives_truncation(void **state) {
    (void)state;
    size_t size;
    write_manifest(SIZE_MAX, NULL);
    char *whole = (char *)read_file(in_scratch("good.provider.yaml").s, &size);
    for (size_t n = 0; n < size; n++) {
        ftk_error err = FTK_ERROR_INIT;
        fti_manifest *manifest = NULL;
        write_file(in_scratch("good.provider.yaml").s, whole, n, 0644);
        ftk_status status = fti_manifest_read(in_scratch("good.provider.yaml").s, &manifest, &err);
        assert_true(status == FTK_OK || status == FTK_E_PROVIDER_MANIFEST);
        assert_true((status == FTK_OK) == (manifest != NULL));
        fti_manifest_free(manifest);
    }
    free(whole);
}

static void lists_hold_whole_words(void **state) {
    (void)state;
    assert_true(fti_list_has("a bc d", fti_str("a")));
    assert_true(fti_list_has("a bc d", fti_str("bc")));
    assert_true(fti_list_has("a bc d", fti_str("d")));
    assert_false(fti_list_has("a bc d", fti_str("b")));
    assert_false(fti_list_has("a bc d", fti_str("c")));
    assert_false(fti_list_has("a bc d", fti_str("a bc")));
    assert_false(fti_list_has("a bc d", fti_str("")));
    assert_false(fti_list_has("", fti_str("a")));
    assert_false(fti_list_has("", fti_str("")));
}

static void parses_versions(void **state) {
    (void)state;
    static const char *const refused[] = {
        "",       "1",         "1.2",    "1.2.3.4",        "1.2.",
        "1.2.x",  "01.2.3",    "1.2.03", " 1.2.3",         "1.2.3 ",
        "-1.2.3", "1.2.3-rc1", "1..3",   "4294967296.0.0", "99999999999999999999.0.0"};
    fti_semver v = {7, 7, 7};
    for (size_t i = 0; i < FTI_COUNT(refused); i++)
        assert_false(fti_semver_parse(fti_str(refused[i]), &v));
    assert_int_equal(v.major, 7);
    assert_true(fti_semver_parse(fti_str("0.10.4294967295"), &v));
    assert_int_equal(v.major, 0);
    assert_int_equal(v.minor, 10);
    assert_int_equal(v.patch, UINT32_MAX);
}

static void judges_ranges(void **state) {
    (void)state;
    static const struct {
        const char *range;
        fti_range_answer answer; /* of 1.2.3 */
    } cases[] = {
        {">=1.2.3", FTI_RANGE_INSIDE},
        {"<=1.2.3", FTI_RANGE_INSIDE},
        {"=1.2.3", FTI_RANGE_INSIDE},
        {">1.2.3", FTI_RANGE_OUTSIDE},
        {"<1.2.3", FTI_RANGE_OUTSIDE},
        {"=1.2.4", FTI_RANGE_OUTSIDE},
        {">1.2.2", FTI_RANGE_INSIDE},
        {"<1.2.4", FTI_RANGE_INSIDE},
        {"<1.10.0", FTI_RANGE_INSIDE},
        {"<10.0.0", FTI_RANGE_INSIDE},
        {">=1.3.0", FTI_RANGE_OUTSIDE},
        {">=0.9.9 <2.0.0", FTI_RANGE_INSIDE},
        {">=0.9.9 <1.0.0", FTI_RANGE_OUTSIDE},
        {">=2.0.0 <1.0.0", FTI_RANGE_OUTSIDE},
        {"<1.0.0 nonsense", FTI_RANGE_MALFORMED},
        {"1.2.3", FTI_RANGE_MALFORMED},
        {"", FTI_RANGE_MALFORMED},
        {" ", FTI_RANGE_MALFORMED},
        {">=1.2.3 ", FTI_RANGE_MALFORMED},
        {">= 1.2.3", FTI_RANGE_MALFORMED},
        {">=1.0.0  <2.0.0", FTI_RANGE_MALFORMED},
        {">", FTI_RANGE_MALFORMED},
        {"~1.2.3", FTI_RANGE_MALFORMED},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++)
        if (fti_semver_in_range((fti_semver){1, 2, 3}, fti_str(cases[i].range)) != cases[i].answer)
            fail_msg("range '%s'", cases[i].range);
    assert_int_equal(fti_semver_in_range((fti_semver){1, 2, 3}, (ftk_str){NULL, 0}),
                     FTI_RANGE_MALFORMED);
}

static void levels_meet(void **state) {
    (void)state;
    static const struct {
        fti_levels host, provider;
        bool meet;
        uint32_t effective;
    } cases[] = {
        {{0, 0}, {0, 0}, true, 0},  {{0, 0}, {1, 0}, false, 9}, {{1, 0}, {0, 0}, false, 9},
        {{0, 0}, {0, 5}, false, 9}, {{3, 1}, {3, 3}, true, 3},  {{3, 1}, {5, 3}, true, 3},
        {{3, 1}, {5, 4}, false, 9}, {{3, 2}, {2, 1}, true, 2},  {{3, 2}, {1, 1}, false, 9},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        uint32_t effective = 9;
        bool meet = fti_levels_meet(cases[i].host, cases[i].provider, &effective);
        if (meet != cases[i].meet || effective != cases[i].effective)
            fail_msg("case %zu: %d, level %u", i, meet, effective);
    }
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(reads_every_key),
        CASE(wants_every_required_key),
        CASE(refuses_values),
        CASE(newer_manifest_version_comes_first),
        CASE(refuses_other_documents),
        CASE(passes_the_trust_checks_first),
        CASE(survives_truncation),
        cmocka_unit_test(lists_hold_whole_words),
        cmocka_unit_test(parses_versions),
        cmocka_unit_test(judges_ranges),
        cmocka_unit_test(levels_meet),
    };
    return cmocka_run_group_tests_name("test_manifest", tests, NULL, NULL);
}
