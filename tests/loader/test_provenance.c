/*
 * test_provenance.c: what an engine says of itself: the provider and where its code lies,
 * every setting with its origin, every variant that was passed over with its reason; and that
 * policy belongs to the engine: two of one process, of different policies, beside each other,
 * and one whose provider is part of the program.
 */
#include "loader/scratch.h"
#include "support/engine_fixture.h"

#include <limits.h>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static const char *const no_settings[] = {NULL};

static json_t *provenance_of(const ftk_engine *engine) {
    ftk_error err = FTK_ERROR_INIT;
    char *json = NULL;
    expect_status(ftk_engine_provenance(engine, &json, &err), FTK_OK, &err, "");
    json_t *o = json_loads(json, 0, NULL);
    ftk_report_free(json);
    assert_non_null(o);
    return o;
}

static json_t *provenance_until(uint32_t stop, const char *const *settings) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = NULL;
    expect_status(fixture_try_open(DEMO_MODEL, settings, stop, &engine, &err), FTK_OK, &err, "");
    json_t *o = provenance_of(engine);
    ftk_engine_close(engine);
    return o;
}

static const char *string_at(const json_t *o, const char *first, const char *second) {
    const json_t *value = json_object_get(json_object_get(o, first), second);
    if (!json_is_string(value)) fail_msg("%s.%s is no text", first, second);
    return json_string_value(value);
}

static json_int_t number_at(const json_t *o, const char *first, const char *second) {
    const json_t *value = json_object_get(json_object_get(o, first), second);
    if (!json_is_integer(value)) fail_msg("%s.%s is no number", first, second);
    return json_integer_value(value);
}

/* ---- the provider ---- */

/* The address begins a mapping of this process. */
static void expect_mapped(const char *address) {
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    size_t size = strlen(address + 2);
    while (fgets(line, sizeof line, maps))
        found = found || (strncmp(line, address + 2, size) == 0 && line[size] == '-');
    assert_int_equal(fclose(maps), 0);
    if (!found) fail_msg("nothing is mapped at %s", address);
}

static void names_the_provider(void **state) {
    (void)state;
    struct stat st;
    ftk_engine *engine = fixture_open(DEMO_MODEL, NULL);
    json_t *o = provenance_of(engine), *p = json_object_get(o, "provider");
    assert_string_equal(string_at(o, "provider", "name"), "qwen36");
    assert_string_equal(string_at(o, "provider", "version"), "0.1.0");
    assert_string_equal(string_at(o, "provider", "distribution"), "");
    assert_string_equal(string_at(o, "provider", "distribution_version"), "");
    assert_string_equal(string_at(o, "provider", "architectures"), "qwen35moe");
    assert_int_equal(stat(string_at(o, "provider", "path"), &st), 0);
    assert_int_equal(number_at(o, "provider", "inode"), st.st_ino);
    assert_int_equal(number_at(o, "provider", "device"), st.st_dev);
    assert_int_equal(strlen(string_at(o, "provider", "sha256")), 64);
    assert_true(json_is_true(json_object_get(p, "pinned")));
    assert_true(json_is_false(json_object_get(p, "linked_in")));
    assert_int_equal(number_at(p, "levels", "host"), 0);
    assert_int_equal(number_at(p, "levels", "provider"), 0);
    assert_int_equal(number_at(p, "levels", "effective"), 0);
    expect_mapped(string_at(o, "provider", "load_address"));
    assert_string_equal(string_at(o, "checkpoint", "adapter"), "core/gguf");
    assert_string_equal(string_at(o, "checkpoint", "architecture"), "qwen35moe");
    assert_int_equal(strlen(string_at(o, "checkpoint", "directory_hash")), 16);
    assert_string_equal(string_at(o, "numerics", "mode"), "exact");
    assert_true(number_at(json_object_get(o, "backend"), "capabilities", "cpu.threads") > 0);
    json_decref(o);
    ftk_engine_close(engine);
}

static void grows_with_the_stages(void **state) {
    (void)state;
    json_t *o = provenance_until(FTK_OPEN_CONFIGURED, no_settings);
    assert_true(json_is_null(json_object_get(o, "memory")));
    assert_true(json_array_size(json_object_get(o, "variants")) > 0);
    json_decref(o);
    o = provenance_until(FTK_OPEN_PLANNED, no_settings);
    assert_int_equal(number_at(o, "memory", "allocated"), 0);
    assert_true(number_at(o, "memory", "total") > 0);
    json_decref(o);
}

/* ---- settings ---- */

static void expect_setting(const json_t *o, const char *key, const char *value, const char *asked,
                           const char *origin) {
    const json_t *s = json_object_get(json_object_get(o, "policy"), key);
    char *found = json_dumps(json_object_get(s, "value"), JSON_ENCODE_ANY);
    if (!found || strcmp(found, value) != 0) fail_msg("%s is %s, wanted %s", key, found, value);
    free(found);
    found = json_dumps(json_object_get(s, "asked"), JSON_ENCODE_ANY);
    if (asked ? !found || strcmp(found, asked) != 0 : found != NULL)
        fail_msg("%s was asked as %s, wanted %s", key, found, asked);
    free(found);
    assert_string_equal(json_string_value(json_object_get(s, "origin")), origin);
}

static void settings_have_origins(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config;
    ftk_engine *engine;
    char real[PATH_MAX];
    assert_non_null(realpath(FTK_PROVIDER_DIR, real));
    text yaml = format("providers:\n  allow:\n    - {name: qwen36, path: '%s/qwen36.so'}\n"
                       "backend:\n  threads: 1\n  graphs: off\nmemory: {device: 1GiB}\n",
                       real);
    expect_status(ftk_config_parse(yaml.s, strlen(yaml.s), "test.yaml", &config, &err), FTK_OK,
                  &err, "");
    expect_status(ftk_config_set(config, "memory.kv_tokens", "100", &err), FTK_OK, &err, "");
    expect_status(ftk_engine_open(config, DEMO_MODEL, NULL, &engine, &err), FTK_OK, &err, "");
    ftk_config_free(config);
    json_t *o = provenance_of(engine);
    ftk_engine_close(engine);
    expect_setting(o, "backend.threads", "1", NULL, "test.yaml:5");
    expect_setting(o, "backend.graphs", "\"off\"", NULL, "test.yaml:6");
    expect_setting(o, "memory.device", "1073741824", NULL, "test.yaml:7");
    expect_setting(o, "memory.kv_tokens", "100", NULL, "option");
    expect_setting(o, "backend.kind", "\"cpu\"", "\"auto\"", "default");
    expect_setting(o, "memory.kv_type", "\"f16\"", "\"auto\"", "default");
    expect_setting(o, "policy.fused", "\"auto\"", NULL, "default");
    expect_setting(o, "scheduler.prefix_cache", "true", NULL, "default");
    assert_true(json_is_false(json_object_get(json_object_get(o, "provider"), "pinned")));
    assert_int_equal(strlen(string_at(o, "provider", "sha256")), 64);
    json_decref(o);
}

static void options_of_an_unknown_provider(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config;
    ftk_engine *engine = NULL;
    static const char yaml[] = "providers:\n  allow:\n    - {name: qwen36, path: /x/qwen36.so}\n"
                               "provider_options:\n  qwen63: {speed: 11}\n";
    expect_status(ftk_config_parse(yaml, strlen(yaml), "test.yaml", &config, &err), FTK_OK, &err,
                  "");
    expect_status(ftk_engine_open(config, DEMO_MODEL, NULL, &engine, &err), FTK_E_CONFIG_VALUE,
                  &err, "test.yaml:5: provider_options.qwen63");
    assert_non_null(strstr(err.message, "did you mean 'qwen36'?"));
    assert_null(engine);
    ftk_config_free(config);
}

/* ---- variants and policy ---- */

static bool ends_with(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* Every operation of the provider runs the variant that ends in `chosen`; what was passed
 * over has `reason`. */
static void expect_variants(const json_t *o, const char *chosen, const char *reason,
                            const char *detail) {
    const json_t *variant;
    size_t i;
    assert_true(json_array_size(json_object_get(o, "variants")) > 1);
    json_array_foreach(json_object_get(o, "variants"), i, variant) {
        const char *name = json_string_value(json_object_get(variant, "chosen"));
        if (i == 0) continue; /* the core's, see operators_say_which_kernels */
        assert_int_equal(strncmp(name, "qwen36/", 7), 0);
        if (!ends_with(name, chosen)) fail_msg("%s runs, wanted one of %s", name, chosen);
        const json_t *over = json_object_get(variant, "passed_over");
        assert_int_equal(json_array_size(over), reason ? 1 : 0);
        if (!reason) continue;
        const json_t *skip = json_array_get(over, 0);
        name = json_string_value(json_object_get(skip, "variant"));
        assert_int_equal(strncmp(name, "qwen36/", 7), 0);
        assert_string_equal(json_string_value(json_object_get(skip, "reason")), reason);
        const char *found = json_string_value(json_object_get(skip, "detail"));
        assert_true(detail ? found && strcmp(found, detail) == 0 : found == NULL);
    }
}

static bool has_avx2(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

static bool need_avx2(void) {
    if (has_avx2()) return true;
    print_message("skip: this machine has one variant of each operation only\n");
    return false;
}

static void generate_both(ftk_engine *a, ftk_engine *b) {
    static const int32_t prompt[] = {3885, 647, 258, 550};
    ftk_engine *engines[] = {a, b};
    uint64_t hashes[2];
    for (int i = 0; i < 2; i++) {
        ftk_error err = FTK_ERROR_INIT;
        ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
        ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
        options.max_tokens = FIXTURE_SLOW_BUILD ? 2 : 8;
        expect_status(ftk_generate(engines[i], prompt, 4, &options, &result, &err), FTK_OK, &err,
                      "");
        assert_int_equal(result.tokens, options.max_tokens);
        hashes[i] = result.hash;
    }
    assert_int_equal(hashes[0], hashes[1]);
}

static void policy_is_the_engines(void **state) {
    (void)state;
    if (!need_avx2()) skip();
    const char *const off[] = {"policy.fused", "off", NULL};
    const char *const require[] = {"policy.fused", "require", NULL};
    ftk_engine *a = fixture_open(DEMO_MODEL, off), *b = fixture_open(DEMO_MODEL, require);
    json_t *of_a = provenance_of(a), *of_b = provenance_of(b);
    expect_variants(of_a, "_reference", "policy", NULL);
    expect_variants(of_b, "_avx2", NULL, NULL);
    expect_setting(of_a, "policy.fused", "\"off\"", NULL, "option");
    expect_setting(of_b, "policy.fused", "\"require\"", NULL, "option");
    json_decref(of_a);
    json_decref(of_b);
    generate_both(a, b);
    ftk_engine_close(a);
    ftk_engine_close(b);
}

static void missing_capabilities_are_named(void **state) {
    (void)state;
    if (!need_avx2()) skip();
    const char *const masked[] = {"backend.kernels", "0xfffffffe", NULL};
    json_t *o = provenance_until(FTK_OPEN_CONFIGURED, masked);
    expect_variants(o, "_reference", "capability missing", "found no cpu.avx2, wanted 1");
    json_decref(o);
}

/* With this mask the operators run `chosen`, having passed over `over` others; the last of
 * them for `reason`. */
static void expect_operators(const char *mask, const char *chosen, size_t over,
                             const char *reason) {
    const char *const settings[] = {"backend.kernels", mask, NULL};
    json_t *o = provenance_until(FTK_OPEN_CONFIGURED, settings);
    const json_t *first = json_array_get(json_object_get(o, "variants"), 0);
    const json_t *passed = json_object_get(first, "passed_over");
    assert_string_equal(json_string_value(json_object_get(first, "operation")), "core/operators");
    assert_string_equal(json_string_value(json_object_get(first, "chosen")), chosen);
    assert_int_equal(json_array_size(passed), over);
    if (over) {
        const json_t *last = json_array_get(passed, over - 1);
        assert_string_equal(json_string_value(json_object_get(last, "reason")), reason);
        assert_non_null(strstr(json_string_value(json_object_get(last, "detail")), "wanted cpu."));
    }
    json_decref(o);
}

static void operators_say_which_kernels(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (!need_avx2()) skip();
    bool widest = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    const char *lacking = widest ? "policy" : "capability missing";
    expect_operators("reference", "core/cpu_reference", 2, "policy");
    expect_operators("0x1", "core/cpu_avx2", 1, lacking);
    expect_operators("auto", widest ? "core/cpu_avx512_vnni" : "core/cpu_avx2", widest ? 0 : 1,
                     lacking);
#elif defined(__aarch64__)
    bool neon = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
    const char *why = neon ? "policy" : "capability missing";
    expect_operators("reference", "core/cpu_reference", 1, why);
    expect_operators("0x7", "core/cpu_reference", 1, why);
    expect_operators("auto", neon ? "core/cpu_neon" : "core/cpu_reference", neon ? 0 : 1, why);
    expect_operators("0x8", neon ? "core/cpu_neon" : "core/cpu_reference", neon ? 0 : 1, why);
#endif
}

static void required_means_required(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = NULL;
    const char *const impossible[] = {"policy.fused", "require", "backend.kernels", "0xfffffffe",
                                      NULL};
    if (!need_avx2()) skip();
    expect_status(fixture_try_open(DEMO_MODEL, impossible, FTK_OPEN_CONFIGURED, &engine, &err),
                  FTK_E_PROVIDER_HARDWARE, &err, "policy.fused is require");
    assert_non_null(strstr(err.message, "(capability missing cpu.avx2)"));
    assert_null(engine);
}

/* ---- part of the program ---- */

const struct ftk_provider *freetoken_provider_v1(void); /* of the provider linked into this */

static ftk_engine *open_linked(void) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config;
    ftk_engine *engine;
    expect_status(ftk_config_parse("", 0, "test.yaml", &config, &err), FTK_OK, &err, "");
    expect_status(ftk_config_link_provider(config, freetoken_provider_v1, &err), FTK_OK, &err, "");
    expect_status(ftk_engine_open(config, DEMO_MODEL, NULL, &engine, &err), FTK_OK, &err, "");
    ftk_config_free(config);
    return engine;
}

static void linked_in_or_loaded(void **state) {
    (void)state;
#ifdef FTK_EMULATED
    print_message("skip: started by way of the loader, a program is not its process's file\n");
    skip();
#endif
    ftk_engine *linked = open_linked(), *loaded = fixture_open(DEMO_MODEL, NULL);
    json_t *of_linked = provenance_of(linked), *of_loaded = provenance_of(loaded);
    json_t *p = json_object_get(of_linked, "provider");
    assert_true(json_is_true(json_object_get(p, "linked_in")));
    char self[PATH_MAX];
    assert_non_null(realpath("/proc/self/exe", self));
    assert_int_equal(strlen(string_at(of_linked, "provider", "sha256")), 64);
    assert_string_equal(string_at(of_linked, "provider", "sha256_of"), self);
    assert_true(json_is_null(json_object_get(p, "sha256_reason")));
    assert_string_equal(string_at(of_loaded, "provider", "sha256_of"),
                        string_at(of_loaded, "provider", "path"));
    assert_string_equal(string_at(of_linked, "provider", "name"), "qwen36");
    assert_string_not_equal(string_at(of_linked, "provider", "load_address"),
                            string_at(of_loaded, "provider", "load_address"));
    assert_true(
        json_equal(json_object_get(of_linked, "variants"), json_object_get(of_loaded, "variants")));
    json_decref(of_linked);
    json_decref(of_loaded);
    generate_both(linked, loaded);
    ftk_engine_close(linked);
    ftk_engine_close(loaded);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_the_provider),
        cmocka_unit_test(grows_with_the_stages),
        cmocka_unit_test(settings_have_origins),
        cmocka_unit_test(options_of_an_unknown_provider),
        cmocka_unit_test(policy_is_the_engines),
        cmocka_unit_test(missing_capabilities_are_named),
        cmocka_unit_test(operators_say_which_kernels),
        cmocka_unit_test(required_means_required),
        cmocka_unit_test(linked_in_or_loaded),
    };
    return cmocka_run_group_tests_name("test_provenance", tests, NULL, NULL);
}
