/*
 * test_claims.c: who gets a checkpoint, beyond the allowlist: hardware that the manifest
 * rules out, containers that another provider adds, providers that are part of the program,
 * and the record by which another process makes sure of having the same one.
 */
#include "loader/world.h"

#include "core/identity.h"
#include "freetoken/freetoken.h"

/* ---- hardware ---- */

static void another_backend(void **state) {
    (void)state;
    install("good");
    allow("good");
    asked.backend = "cuda";
    refuse_unloaded(FTK_E_PROVIDER_HARDWARE, "found backends 'cpu', wanted 'cuda'");
    refuse_unloaded(FTK_E_PROVIDER_HARDWARE, "test.yaml:10: providers.allow: good: ");
    asked.backend = "cpu";
    resolve("testarch");
    assert_int_equal(runs_of("good"), 1);
}

static void no_code_for_this_device(void **state) {
    (void)state;
    install("gpu");
    write_manifest("gpu", (override){"device_code", "[sm_80, sm_90]"});
    allow("gpu");
    asked.device_code = "gfx1201";
    refuse_unloaded(FTK_E_PROVIDER_HARDWARE, "found device_code 'sm_80 sm_90', wanted 'gfx1201'");
    asked.device_code = "sm_9";
    refuse_unloaded(FTK_E_PROVIDER_HARDWARE, "wanted 'sm_9'");
    write_manifest("gpu", (override){NULL, NULL});
    asked.device_code = "sm_90";
    refuse_unloaded(FTK_E_PROVIDER_HARDWARE, "found device_code '', wanted 'sm_90'");
    write_manifest("gpu", (override){"device_code", "[sm_80, sm_90]"});
    resolve("testarch");
    assert_int_equal(runs_of("gpu"), 1);
}

/* Targets are part of the identity: what the library does not say of itself counts not. */
static void targets_are_identity(void **state) {
    (void)state;
    install("good");
    allow("good");
    write_manifest("good", (override){"device_code", "[sm_90]"});
    refuse_unloaded(FTK_E_PROVIDER_IDENTITY,
                    "device_code: found '' in its ELF note, wanted 'sm_90'");
    install("gpu");
    config.allow_count = 0;
    allow("gpu");
    write_manifest("gpu", (override){NULL, NULL});
    refuse_unloaded(FTK_E_PROVIDER_IDENTITY, "device_code: found 'sm_80 sm_90' in its ELF note");
}

/* ---- format-only claims ---- */

static void write_claims(const char *name, const char *architectures, const char *containers,
                         const char *provides) {
    text whole = format("manifest_version: 1\nname: %s\nversion: 1.0.0\napi_level: 0\n"
                        "min_host_level: 0\ncore_range: '>=0.1.0 <0.2.0'\nplatform: " FTI_PLATFORM
                        "\nlibrary: %s.so\narchitectures: [%s]\ncontainers: [%s]\nbackends: [cpu]\n"
                        "license: Apache-2.0\nprovides: %s\n",
                        name, name, architectures, containers, provides);
    write_file(provider_file(name, ".provider.yaml").s, whole.s, strlen(whole.s), 0644);
}

/* The owner reads gguf and ftw; "format" adds boxes to its architecture. */
static void install_pair(void) {
    install("good");
    install("format");
    write_claims("format", "testarch", "boxes", "format");
    allow("format");
    allow("good");
}

static void a_format_leaves_its_owner_alone(void **state) {
    (void)state;
    install_pair();
    assert_string_equal(resolve("testarch")->manifest->name, "good");
    assert_int_equal(watched.calls, 1);
    assert_int_equal(runs_of("format"), 0);
}

static void a_format_composes_with_its_owner(void **state) {
    (void)state;
    install_pair();
    ftk_error err = refuse_pair("testarch", "boxes", FTK_E_PROVIDER_REFUSED,
                                "'format' adds to the architecture of 'good'");
    assert_non_null(strstr(err.message, "gguf ftw"));
    refuse_pair("secondarch", "boxes", FTK_E_PROVIDER_NONE, "no provider for architecture");
    assert_int_equal(watched.calls, 0);
}

static void a_format_without_an_owner(void **state) {
    (void)state;
    install_pair();
    config.allow_count = 1;
    ftk_error err = refuse_pair("testarch", "boxes", FTK_E_PROVIDER_NONE, "'format' ('");
    assert_non_null(strstr(err.message, "only adds the container boxes to architecture testarch"));
    assert_int_equal(watched.calls, 0);
}

static void a_format_overrides_nothing(void **state) {
    (void)state;
    install_pair();
    write_claims("format", "testarch", "boxes, gguf", "format");
    refuse_unloaded(FTK_E_PROVIDER_DUPLICATE, "'format'");
    refuse_unloaded(FTK_E_PROVIDER_DUPLICATE, "'good'");
    write_claims("format", "testarch", "boxes", "format");
    install("second"); /* owns the same architecture, in a container of its own */
    write_claims("second", "testarch", "crates", "model");
    allow("second");
    refuse_pair("testarch", "boxes", FTK_E_PROVIDER_DUPLICATE, "'second'");
    write_claims("second", "testarch", "boxes", "format");
    refuse_pair("testarch", "boxes", FTK_E_PROVIDER_DUPLICATE, "'second'");
    assert_int_equal(watched.calls, 0);
}

/* ---- part of the program ---- */

const ftk_provider *linked_provider(void); /* fixtures/provider.c, under this name */

static void link_it(void) {
    ftk_error err = FTK_ERROR_INIT;
    expect_status(ftk_config_link_provider(&config, linked_provider, &err), FTK_OK, &err, "");
}

static void linked_in(void **state) {
    (void)state;
    link_it();
    asked.backend = "cpu";
    const fti_provider *p = resolve("testarch");
    assert_true(p->linked && !p->pinned);
    assert_string_equal(p->manifest->name, "linked");
    assert_string_equal(p->manifest->containers, "gguf ftw");
    assert_string_equal(p->path, "(linked in)");
    /* Of the program that holds it. */
    char self[PATH_MAX], hex[65];
    ftk_error err = FTK_ERROR_INIT;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_non_null(realpath("/proc/self/exe", self));
    expect_status(fti_sha256_fd(fd, hex, &err), FTK_OK, &err, "");
    assert_int_equal(close(fd), 0);
    assert_string_equal(p->sha256, hex);
    assert_string_equal(p->linked_file, self);
    assert_null(p->no_digest);
    assert_true(p->load_address != 0);
    assert_ptr_equal(resolve("secondarch"), p);
    assert_int_equal(watched.calls, 0);
    /* Behind the same vtable: a whole table, with an answer in the slot that it lacks. */
    ftk_match_out out = {sizeof out, 0};
    assert_int_equal(p->table->match(NULL, NULL, NULL, &out), FTK_OK);
    assert_int_equal(out.claimed, 1);
    char message[64] = "";
    const ftk_chat_out chat = {
        .struct_size = sizeof chat, .message = message, .message_size = sizeof message};
    assert_int_equal(p->table->format_chat(NULL, NULL, &chat), FTK_E_UNSUPPORTED);
    assert_non_null(strstr(message, "no dialogues"));
}

static void expect_digest(const void *address, const char *file, const char *sha256,
                          const char *reason) {
    ftk_error err = FTK_ERROR_INIT;
    char *path, hex[65];
    const char *why;
    expect_status(fti_digest_code(address, &path, hex, &why, &err), FTK_OK, &err, "");
    assert_string_equal(path ? path : "none", file);
    assert_string_equal(hex, sha256);
    assert_string_equal(why ? why : "", reason);
    fti_free(path);
}

/* Of a shared object of the program, for as long as its name leads to what was loaded. */
static void a_file_that_is_not_the_one_loaded_has_no_digest(void **state) {
    (void)state;
    char hex[65];
    text file = in_scratch("holds_it.so"), moved = in_scratch("moved.so");
    copy_fixture("good", file.s);
    fti_allow entry = {names[0], file.s, NULL, 1};
    pin_to_present_bytes(&entry, hex);
    void *handle = real_dlopen(file.s, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    assert_non_null(handle);
    const void *address = dlsym(handle, FTK_PROVIDER_ENTRY);
    assert_non_null(address);
    expect_digest(address, file.s, hex, "");
    assert_int_equal(rename(file.s, moved.s), 0);
    expect_digest(address, "none", "", "its file is gone");
    copy_fixture("good", file.s);
    expect_digest(address, "none", "", "its file is not the one that was loaded");
    assert_int_equal(unlink(file.s), 0);
    assert_int_equal(mkfifo(file.s, 0600), 0);
    expect_digest(address, "none", "", "its file is no regular file");
    assert_int_equal(unlink(file.s), 0);
    assert_int_equal(rename(moved.s, file.s), 0);
    expect_digest(address, file.s, hex, "");
    expect_digest(&file, "none", "", "no file of this process holds its table"); /* the stack */
}

/* A worker of another program, or of another build of it, is another provider. */
static void linked_in_records_compare_the_program(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    link_it();
    fti_provider p = *resolve("testarch");
    const ftk_str pair[] = {fti_str("testarch"), fti_str("gguf")};
    char *record = NULL;
    expect_status(fti_provider_record(&p, pair[0], pair[1], &record, &err), FTK_OK, &err, "");
    assert_non_null(strstr(record, format("sha256=%s\n", p.sha256).s));
    expect_status(fti_record_check(record, &p, pair[0], pair[1], &err), FTK_OK, &err, "");
    p.sha256[5] = p.sha256[5] == '0' ? '1' : '0';
    expect_status(fti_record_check(record, &p, pair[0], pair[1], &err), FTK_E_PROVIDER_RECORD, &err,
                  "wanted 'sha256=");
    p.sha256[0] = 0; /* one that cannot say is no proof of being the same */
    expect_status(fti_record_check(record, &p, pair[0], pair[1], &err), FTK_E_PROVIDER_RECORD, &err,
                  "found 'sha256=none'");
    fti_free(record);
    expect_status(fti_provider_record(&p, pair[0], pair[1], &record, &err), FTK_OK, &err, "");
    expect_status(fti_record_check(record, &p, pair[0], pair[1], &err), FTK_OK, &err, "");
    fti_free(record);
}

/* Under the same rules, too. */
static void linked_in_is_judged(void **state) {
    (void)state;
    link_it();
    asked.backend = "cuda";
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_HARDWARE, "wanted 'cuda'");
    refuse_pair("lunar", "gguf", FTK_E_PROVIDER_NONE, "linked: testarch secondarch (gguf ftw)");
    ftk_error err = FTK_ERROR_INIT;
    expect_status(ftk_config_link_provider(&config, linked_provider, &err),
                  FTK_E_PROVIDER_DUPLICATE, &err, "second one of that name");
    expect_status(ftk_config_link_provider(&config, NULL, &err), FTK_E_ARGUMENT, &err, "entry");
    expect_status(ftk_config_link_provider(NULL, linked_provider, &err), FTK_E_ARGUMENT, &err,
                  "config");
    assert_int_equal(config.linked_count, 1);
}

static ftk_identity bent_identity;
static ftk_provider bent_table;

static const ftk_provider *bent_provider(void) {
    return &bent_table;
}

static const ftk_provider *no_provider(void) {
    return NULL;
}

static void refuse_link(const ftk_provider *(*entry)(void), ftk_status wanted, const char *part) {
    ftk_error err = FTK_ERROR_INIT;
    expect_status(ftk_config_link_provider(&config, entry, &err), wanted, &err, part);
    assert_int_equal(config.linked_count, 0);
}

static void bend(void) {
    bent_table = *linked_provider();
    bent_identity = *bent_table.identity;
    bent_table.identity = &bent_identity;
}

/* The program's own table is held against the contract like any other. */
static void linked_in_keeps_the_contract(void **state) {
    (void)state;
    refuse_link(no_provider, FTK_E_PROVIDER_ENTRY, "found NULL");
    bend();
    bent_identity.api_level = 7;
    refuse_link(bent_provider, FTK_E_PROVIDER_LEVEL, "'(linked in)' refused: found api_level 7");
    bend();
    bent_identity.core_range = (ftk_str)FTK_STR(">=9.0.0");
    refuse_link(bent_provider, FTK_E_PROVIDER_VERSION, "core_range '>=9.0.0'");
    bend();
    bent_table.run = NULL;
    refuse_link(bent_provider, FTK_E_PROVIDER_CONTRACT, "NULL for 'run'");
    bend();
    bent_identity.name = (ftk_str)FTK_STR("other"); /* but its variants are linked/... */
    refuse_link(bent_provider, FTK_E_PROVIDER_CONTRACT, "wanted 'other/...'");
}

static void reports_show_it(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    char *json = NULL;
    link_it();
    config.search_count = 0;
    expect_status(ftk_providers_report(&config, &json, &err), FTK_OK, &err, "");
    assert_non_null(strstr(json, "\"(linked in)\""));
    assert_non_null(strstr(json, "\"linked\""));
    ftk_report_free(json);
}

static void nothing_linked_in_is_overridden(void **state) {
    (void)state;
    static char claim[] = "testarch/gguf", chosen[] = "good";
    fti_select select = {claim, chosen, 21};
    install("good");
    allow("good");
    link_it();
    refuse_unloaded(FTK_E_PROVIDER_DUPLICATE, "'linked' ('(linked in)')");
    refuse_unloaded(FTK_E_PROVIDER_DUPLICATE,
                    "below 'providers:' add the line: select: {\"testarch/gguf\": good}");
    static char misspelt[] = "testarch/guff";
    config.select = &select;
    config.select_count = 1;
    select.claim = misspelt;
    refuse_unloaded(FTK_E_CONFIG_VALUE,
                    "test.yaml:21: providers.select.testarch/guff: no allowed provider claims");
    select.claim = claim;
    assert_string_equal(resolve("testarch")->manifest->name, "good");
    refuse_pair("secondarch", "gguf", FTK_E_PROVIDER_DUPLICATE, "'linked'");
    install("linked");
    config.allow_count = 0;
    allow("linked");
    watched.calls = 0;
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_DUPLICATE, "test.yaml:10:");
    assert_int_equal(watched.calls, 0);
}

/* ---- records ---- */

static char *record_of(const char *architecture) {
    ftk_error err = FTK_ERROR_INIT;
    char *record = NULL;
    expect_status(fti_provider_record(resolve(architecture), fti_str(architecture), fti_str("gguf"),
                                      &record, &err),
                  FTK_OK, &err, "");
    return record;
}

static void the_same_record(void **state) {
    (void)state;
    install("good");
    allow("good");
    char *record = record_of("testarch");
    assert_non_null(strstr(record, format("path=%s\n", library("good").s).s));
    assert_non_null(strstr(record, "inode="));
    asked.record = record;
    resolve("testarch");
    refuse_pair("secondarch", "gguf", FTK_E_PROVIDER_RECORD,
                "found 'architecture=secondarch', wanted 'architecture=testarch'");
    fti_free(record);
}

/* What is refused for its record is not loaded. */
static void another_file_than_recorded(void **state) {
    (void)state;
    install("good");
    allow("good");
    char *record = record_of("testarch");
    asked.record = record;
    watched.calls = 0;
    copy_fixture("evil", in_scratch("evil.so").s); /* says to be good */
    assert_int_equal(rename(in_scratch("evil.so").s, library("good").s), 0);
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_RECORD, "found 'sha256=");
    assert_int_equal(watched.calls, 0);
    assert_int_equal(runs_of("evil"), 0);
    fti_free(record);
}

/* With a pin the content counts alone; without one, also that the file is the same. */
static void the_same_bytes_elsewhere(void **state) {
    (void)state;
    char hex[65];
    install("good");
    fti_allow *entry = allow("good");
    char *unpinned = record_of("testarch");
    pin_to_present_bytes(entry, hex);
    char *pinned = record_of("testarch");
    assert_null(strstr(pinned, "inode="));
    size_t size;
    unsigned char *bytes = read_file(library("good").s, &size);
    write_file(in_scratch("copy.so").s, bytes, size, 0644);
    free(bytes);
    assert_int_equal(rename(in_scratch("copy.so").s, library("good").s), 0);
    asked.record = pinned;
    resolve("testarch");
    entry->sha256 = NULL;
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_RECORD, "found 'pinned=0', wanted 'pinned=1'");
    asked.record = unpinned;
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_RECORD, "found 'inode=");
    fti_free(unpinned);
    fti_free(pinned);
}

static void broken_records(void **state) {
    (void)state;
    install("good");
    allow("good");
    char *record = record_of("testarch");
    text longer = format("%smore=1\n", record);
    asked.record = longer.s;
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_RECORD, "found '', wanted 'more=1'");
    asked.record = "";
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_RECORD, "found 'core=");
    asked.record = "core=9.9.9\n";
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_RECORD, "wanted 'core=9.9.9'");
    fti_free(record);
}

static void a_linked_record(void **state) {
    (void)state;
    link_it();
    char *record = record_of("testarch");
    asked.record = record;
    resolve("testarch");
    install("good");
    config.linked_count = 0;
    allow("good");
    refuse_unloaded(FTK_E_PROVIDER_RECORD, "found 'name=good', wanted 'name=linked'");
    fti_free(record);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(another_backend),
        CASE(no_code_for_this_device),
        CASE(targets_are_identity),
        CASE(a_format_leaves_its_owner_alone),
        CASE(a_format_composes_with_its_owner),
        CASE(a_format_without_an_owner),
        CASE(a_format_overrides_nothing),
        CASE(linked_in),
        CASE(a_file_that_is_not_the_one_loaded_has_no_digest),
        CASE(linked_in_records_compare_the_program),
        CASE(linked_in_is_judged),
        CASE(linked_in_keeps_the_contract),
        CASE(reports_show_it),
        CASE(nothing_linked_in_is_overridden),
        CASE(the_same_record),
        CASE(another_file_than_recorded),
        CASE(the_same_bytes_elsewhere),
        CASE(broken_records),
        CASE(a_linked_record),
    };
    return cmocka_run_group_tests_name("test_claims", tests, NULL, NULL);
}
