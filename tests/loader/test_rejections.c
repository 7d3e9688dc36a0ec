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
    refuse(both.s, FTK_E_PROVIDER_DUPLICATE,
           "below 'providers:' add the line: select: {\"qwen35moe/gguf\": one}");
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

/* ---- modules of the library ---- */

/* This program, copied, is the library that the module lies beside. Its message goes to a
 * file. */
static int as_child(const char *folder) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *c;
    ftk_engine *engine = NULL;
    snprintf(scratch, sizeof scratch, "%s", folder);
    ftk_status status = ftk_config_load(in_scratch("config.yaml").s, &c, &err);
    if (status != FTK_OK) return 1;
    status = ftk_engine_open(c, DEMO_MODEL, NULL, &engine, &err);
    ftk_config_free(c);
    text said = format("%s: %s", ftk_status_name(status), err.message);
    write_file(in_scratch("said").s, said.s, strlen(said.s), 0600);
    return engine ? 2 : 0;
}

static void copy_to(const char *from, const char *to, mode_t mode) {
    size_t size;
    unsigned char *bytes = read_file(from, &size);
    write_file(to, bytes, size, mode);
    free(bytes);
}

/* Whether code of `fixture` ran in a child. */
static bool ran(const char *fixture) {
    return access(format("%s/ran/%s", scratch, fixture).s, F_OK) == 0;
}

static text module_path(void) {
    return in_scratch("freetoken/backends/libfreetoken-cuda.so");
}

/* What a child says that opens an engine on backend.kind cuda, line 1 of its configuration. */
static text open_with_module(const char *allowed) {
    text program = in_scratch("program"), yaml = config_with(allowed);
    yaml = format("backend: {kind: cuda}\n%s", yaml.s);
    write_file(in_scratch("config.yaml").s, yaml.s, strlen(yaml.s), 0644);
    copy_to("/proc/self/exe", program.s, 0755);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (setenv("FTK_TEST_SENTINEL", in_scratch("ran").s, 1) != 0) _exit(126);
        execl(program.s, program.s, "--child", scratch, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    size_t size;
    unsigned char *bytes = read_file(in_scratch("said").s, &size);
    text said = format("%.*s", (int)size, (const char *)bytes);
    free(bytes);
    return said;
}

static void expect_said(const text *said, const char *part) {
    if (!strstr(said->s, part)) fail_msg("no '%s' in: %s", part, said->s);
}

static text file_of(const char *name) {
    return format("%s/%s.so", folder_of(name).s, name);
}

static int setup_modules(void **state) {
    if (setup(state) != 0) return -1;
    make_folder(in_scratch("ran").s, 0755);
    make_folder(in_scratch("freetoken").s, 0755);
    make_folder(in_scratch("freetoken/backends").s, 0755);
    describe("takes_cuda", "backends", "[cpu, cuda]");
    describe("one", "", "");
    /* As the fixture says of itself. */
    text manifest = format("%s/takes_cuda.provider.yaml", folder_of("takes_cuda").s);
    size_t size;
    unsigned char *bytes = read_file(manifest.s, &size);
    text lines = format("%.*s", (int)size, (const char *)bytes);
    free(bytes);
    char *containers = strstr(lines.s, "[gguf]");
    text both = format("%.*s[gguf, ftw]%s", (int)(containers - lines.s), lines.s, containers + 6);
    write_file(manifest.s, both.s, strlen(both.s), 0644);
    copy_to(FTK_FIXTURES "/takes_cuda.so", file_of("takes_cuda").s, 0644);
    copy_to(FTK_FIXTURES "/module.so", module_path().s, 0644);
    return 0;
}

/* Everything that refuses the provider comes before code of the module. */
static void the_provider_is_judged_first(void **state) {
    (void)state;
    text said = open_with_module("");
    expect_said(&said, "FTK_E_PROVIDER_NOT_ALLOWED");
    said = open_with_module("    - {name: none, path: '/nowhere/none.so'}\n");
    expect_said(&said, "FTK_E_PROVIDER_MANIFEST");
    said = open_with_module(allow_line("one").s);
    expect_said(&said, "FTK_E_PROVIDER_HARDWARE");
    expect_said(&said, "found backends 'cpu', wanted 'cuda'");
    write_file(file_of("takes_cuda").s, "no code", 7, 0644);
    said = open_with_module(allow_line("takes_cuda").s);
    expect_said(&said, "FTK_E_PROVIDER_ELF");
    assert_false(ran("module") || ran("takes_cuda"));
}

static void a_refused_module_is_named(void **state) {
    (void)state;
    copy_to(FTK_FIXTURES "/module_runpath.so", module_path().s, 0644);
    text said = open_with_module(allow_line("takes_cuda").s);
    text start = format("FTK_E_PROVIDER_ELF: %s:1: backend.kind: cuda: backend module '%s'",
                        in_scratch("config.yaml").s, module_path().s);
    expect_said(&said, start.s);
    expect_said(&said, "DT_RUNPATH");
    expect_said(&said, "wanted none");
    expect_said(&said, "set backend.kind to cpu or auto");
    assert_null(strstr(said.s, "provider"));
    assert_false(ran("module") || ran("takes_cuda"));
}

/* It runs, since the provider would; that it gives no backend stops the engine. */
static void a_module_without_a_backend(void **state) {
    (void)state;
    copy_to(FTK_FIXTURES "/module_empty.so", module_path().s, 0644);
    text said = open_with_module(allow_line("takes_cuda").s);
    text start = format("FTK_E_DEVICE_UNAVAILABLE: %s:1: backend.kind: cuda: its backend module",
                        in_scratch("config.yaml").s);
    expect_said(&said, start.s);
    expect_said(&said, "found no backend, wanted one");
    assert_true(ran("module"));
    assert_false(ran("takes_cuda"));
}

#define MODULE_CASE(name) cmocka_unit_test_setup_teardown(name, setup_modules, scratch_teardown)
#define CASE(name)        cmocka_unit_test_setup_teardown(name, setup, scratch_teardown)

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--child") == 0) _exit(as_child(argv[2]));
    const struct CMUnitTest tests[] = {
        CASE(the_counter_counts),
        CASE(not_allowed),
        CASE(two_owners),
        CASE(levels_and_versions),
        CASE(hardware),
        CASE(hardware_by_match),
        MODULE_CASE(the_provider_is_judged_first),
        MODULE_CASE(a_refused_module_is_named),
        MODULE_CASE(a_module_without_a_backend),
    };
    return cmocka_run_group_tests_name("test_rejections", tests, NULL, NULL);
}
