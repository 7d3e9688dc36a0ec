/*
 * test_rejections.c: the four rejections that the trust boundary exists for (a provider that
 * is not allowed, two that claim the same, levels or versions that do not meet, hardware that
 * is not supported), on whole engines: each comes before the backend has been asked for any
 * memory or stream. A counter between engine and backend proves it.
 */
#include "loader/scratch.h"
#include "support/engine_fixture.h"

#include "backend/backend.h"
#include "core/loader.h"

/* ---- a backend that is counted ---- */

static struct {
    unsigned made, allocations, streams;
    const char *device_code; /* that the device pretends to need */
    const fti_backend_ops *real;
    fti_backend_ops ops;
} counted;

static ftk_status count_alloc(fti_backend *backend, uint64_t bytes, const char *what, void **out,
                              ftk_error *err) {
    counted.allocations++;
    return counted.real->alloc(backend, bytes, what, out, err);
}

static ftk_status count_stream(fti_backend *backend, ftk_stream **out, ftk_error *err) {
    counted.streams++;
    return counted.real->stream_create(backend, out, err);
}

/* The linker puts this in the place of the function (--wrap), whose own name it changes.
 * NOLINTBEGIN(bugprone-reserved-identifier) */
ftk_status __real_fti_cpu_backend_create(const fti_backend_options *options, fti_backend **out,
                                         ftk_error *err);
ftk_status __wrap_fti_cpu_backend_create(const fti_backend_options *options, fti_backend **out,
                                         ftk_error *err);
ftk_status __wrap_fti_cpu_backend_create(const fti_backend_options *options, fti_backend **out,
                                         ftk_error *err) {
    ftk_status status = __real_fti_cpu_backend_create(options, out, err);
    if (status != FTK_OK) return status;
    counted.made++;
    counted.real = (*out)->ops;
    counted.ops = *(*out)->ops;
    counted.ops.alloc = count_alloc;
    counted.ops.stream_create = count_stream;
    (*out)->ops = &counted.ops;
    (*out)->device_code = counted.device_code;
    return FTK_OK;
}
/* NOLINTEND(bugprone-reserved-identifier) */

/* ---- providers that only their manifests describe ---- */

static text folder_of(const char *name) {
    return format("%s/providers/%s", scratch, name);
}

/* A manifest like the demo provider's, with one line changed; beside it, a library that must
 * not be opened. */
static void describe(const char *name, const char *key, const char *value) {
    const struct {
        const char *key, *value;
    } lines[] = {{"manifest_version", "1"},
                 {"name", name},
                 {"version", "1.0.0"},
                 {"api_level", "0"},
                 {"min_host_level", "0"},
                 {"core_range", "'>=0.1.0 <0.2.0'"},
                 {"platform", FTI_PLATFORM},
                 {"library", format("%s.so", name).s},
                 {"architectures", "[qwen35moe]"},
                 {"containers", "[gguf]"},
                 {"backends", "[cpu]"},
                 {"license", "Apache-2.0"}};
    text whole = {{0}}, folder = folder_of(name);
    for (size_t i = 0; i < FTI_COUNT(lines); i++)
        whole = format("%s%s: %s\n", whole.s, lines[i].key,
                       strcmp(lines[i].key, key) == 0 ? value : lines[i].value);
    make_folder(folder.s, 0755);
    write_file(format("%s/%s.provider.yaml", folder.s, name).s, whole.s, strlen(whole.s), 0644);
    write_file(format("%s/%s.so", folder.s, name).s, "no code", 7, 0644);
}

static text allow_line(const char *name) {
    text folder = folder_of(name);
    return format("    - {name: %s, path: '%s/%s.so'}\n", name, folder.s, name);
}

static text config_with(const char *allowed) {
    return format("providers:\n  search: ['%s/providers']\n%s%s", scratch,
                  *allowed ? "  allow:\n" : "", allowed);
}

static void refuse(const char *allowed, ftk_status wanted, const char *part) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config;
    ftk_engine *engine = NULL;
    text yaml = config_with(allowed);
    expect_status(ftk_config_parse(yaml.s, strlen(yaml.s), "test.yaml", &config, &err), FTK_OK,
                  &err, "");
    counted.made = counted.allocations = counted.streams = 0;
    ftk_status status = ftk_engine_open(config, DEMO_MODEL, NULL, &engine, &err);
    ftk_config_free(config);
    expect_status(status, wanted, &err, part);
    assert_null(engine);
    assert_int_equal(ftk_status_exit_code(status), 4);
    assert_int_equal(counted.made, 1);
    assert_int_equal(counted.allocations, 0);
    assert_int_equal(counted.streams, 0);
}

static int setup(void **state) {
    memset(&counted, 0, sizeof counted);
    return scratch_setup(state) || mkdir(in_scratch("providers").s, 0755);
}

/* ---- rejections ---- */

/* So that a count of 0 below means something. */
static void the_counter_counts(void **state) {
    (void)state;
    ftk_engine *engine = fixture_open(DEMO_MODEL, NULL);
    assert_int_equal(counted.made, 1);
    assert_true(counted.allocations > 2);
    assert_true(counted.streams > 0);
    ftk_engine_close(engine);
}

static void not_allowed(void **state) {
    (void)state;
    describe("one", "", "");
    refuse("", FTK_E_PROVIDER_NOT_ALLOWED, "found provider 'one' for qwen35moe/gguf");
    refuse("", FTK_E_PROVIDER_NOT_ALLOWED, "providers.allow: - {name: one, path: ");
}

static void two_owners(void **state) {
    (void)state;
    describe("one", "", "");
    describe("two", "", "");
    text both = format("%s%s", allow_line("one").s, allow_line("two").s);
    refuse(both.s, FTK_E_PROVIDER_DUPLICATE, "'one'");
    refuse(both.s, FTK_E_PROVIDER_DUPLICATE, "providers.select: {\"qwen35moe/gguf\": one}");
}

static void levels_and_versions(void **state) {
    (void)state;
    describe("level", "api_level", "7");
    refuse(allow_line("level").s, FTK_E_PROVIDER_LEVEL, "found api_level 7");
    describe("host", "min_host_level", "3");
    refuse(allow_line("host").s, FTK_E_PROVIDER_LEVEL, "min_host_level 3");
    describe("version", "core_range", "'>=9.0.0'");
    refuse(allow_line("version").s, FTK_E_PROVIDER_VERSION, "wanted one that holds libfreetoken");
}

static void hardware(void **state) {
    (void)state;
    describe("gpu", "backends", "[cuda, hip]");
    refuse(allow_line("gpu").s, FTK_E_PROVIDER_HARDWARE, "found backends 'cuda hip', wanted 'cpu'");
    describe("chip", "", "");
    counted.device_code = "gfx1201";
    refuse(allow_line("chip").s, FTK_E_PROVIDER_HARDWARE, "found device_code '', wanted 'gfx1201'");
}

/* By the provider itself, which sees the capabilities: its code runs, the device is not
 * touched. */
static void hardware_by_match(void **state) {
    (void)state;
    size_t size;
    unsigned char *bytes = read_file(FTK_FIXTURES "/picky.so", &size);
    describe("picky", "containers", "[gguf, ftw]");
    write_file(format("%s/picky.so", folder_of("picky").s).s, bytes, size, 0644);
    free(bytes);
    refuse(allow_line("picky").s, FTK_E_PROVIDER_HARDWARE, "found no cpu.quantum, wanted 1");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(the_counter_counts),  CASE(not_allowed), CASE(two_owners),
        CASE(levels_and_versions), CASE(hardware),    CASE(hardware_by_match),
    };
    return cmocka_run_group_tests_name("test_rejections", tests, NULL, NULL);
}
