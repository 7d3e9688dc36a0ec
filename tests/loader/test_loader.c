/*
 * test_loader.c: from an allowlist to a table, and every refusal on the way. Each
 * fixture leaves a sentinel when any code of it runs, and this program's own
 * dlopen sees each call before it is passed on: what must not run is proven not
 * to have run.
 */
#include "loader/world.h"

#include "freetoken/freetoken.h"

#include <errno.h>
#include <jansson.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#define OPENSSL_API_COMPAT 0x10100000L
#include <openssl/sha.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* ---- what the code under test calls ---- */

static atomic_uint digests; /* begun, by any thread */
static void (*on_digest)(void);

/* Takes the place of libcrypto's, so that each file that is hashed is counted. */
int SHA256_Init(SHA256_CTX *context) {
    int (*next)(SHA256_CTX *);
    void *address = dlsym(RTLD_NEXT, "SHA256_Init");
    memcpy(&next, &address, sizeof next);
    digests++;
    if (on_digest) on_digest();
    return next(context);
}

static pid_t pretended; /* number of this process, or 0: its own */

pid_t getpid(void) {
    return pretended ? pretended : (pid_t)syscall(SYS_getpid);
}

/* ---- what is loaded ---- */

static void loads_an_allowed_provider(void **state) {
    (void)state;
    struct stat st;
    install("good");
    allow("good");
    const fti_provider *p = resolve("secondarch");
    assert_int_equal(runs_of("good"), 1);
    assert_int_equal(watched.calls, 1);
    assert_int_equal(watched.mode & ~RTLD_NODELETE, RTLD_NOW | RTLD_LOCAL);
    assert_true(watched.mode & RTLD_NODELETE);
    assert_true(atoi(watched.file + strlen("/proc/self/fd/")) >= 512);
    assert_int_equal(access(watched.file, R_OK), 0); /* kept open */
    assert_int_equal(stat(library("good").s, &st), 0);
    assert_int_equal(p->device, st.st_dev);
    assert_int_equal(p->inode, st.st_ino);
    assert_string_equal(p->path, library("good").s);
    assert_string_equal(p->manifest->name, "good");
    assert_false(p->pinned || p->linked);
    assert_int_equal(strlen(p->sha256), 64);
    assert_true(p->load_address != 0);
    assert_int_equal(p->effective_level, 0);
    assert_int_equal(p->table->struct_size, sizeof(ftk_provider));
    ftk_match_out out = {sizeof out, 0};
    assert_int_equal(p->table->match(NULL, NULL, NULL, &out), FTK_OK);
    assert_int_equal(out.claimed, 1);
}

static void loads_once(void **state) {
    (void)state;
    install("good");
    allow("good");
    const fti_provider *first = resolve("testarch");
    size_t descriptors = open_descriptors();
    assert_ptr_equal(resolve("testarch"), first);
    assert_ptr_equal(resolve("secondarch"), first);
    assert_int_equal(watched.calls, 1);
    assert_int_equal(runs_of("good"), 1);
    assert_int_equal(open_descriptors(), descriptors);
}

enum { THREADS = 16 };
static pthread_barrier_t barrier;

static void *resolve_in_thread(void *argument) {
    ftk_error err = FTK_ERROR_INIT;
    const fti_provider **found = argument;
    pthread_barrier_wait(&barrier);
    if (resolve_pair("testarch", "gguf", found, &err) != FTK_OK) *found = NULL;
    return NULL;
}

static void threads_share_one_load(void) {
    pthread_t threads[THREADS];
    const fti_provider *found[THREADS] = {NULL};
    assert_int_equal(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, resolve_in_thread, &found[i]), 0);
    for (size_t i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(pthread_barrier_destroy(&barrier), 0);
    assert_non_null(found[0]);
    for (size_t i = 1; i < THREADS; i++) assert_ptr_equal(found[i], found[0]);
    assert_int_equal(watched.calls, 1);
    assert_int_equal(runs_of("good"), 1);
}

static void sixteen_threads(void **state) {
    (void)state;
    install("good");
    allow("good");
    threads_share_one_load();
}

static void sixteen_threads_pinned(void **state) {
    (void)state;
    char hex[65];
    install("good");
    pin_to_present_bytes(allow("good"), hex);
    threads_share_one_load();
}

static void others_stay_unopened(void **state) {
    (void)state;
    install("good");
    install("elsewhere");
    allow("elsewhere");
    allow("good");
    /* Allowed, but not asked for: not even that it is broken matters. */
    write_file(library("elsewhere").s, "text", 4, 0666);
    resolve("testarch");
    assert_int_equal(watched.calls, 1);
    assert_int_equal(runs_of("elsewhere"), 0);
}

static void takes_longer_tables(void **state) {
    (void)state;
    install("large_table");
    allow("large_table");
    const fti_provider *p = resolve("testarch");
    assert_int_equal(p->table->struct_size, sizeof(ftk_provider));
}

/* ---- allowlist and claims ---- */

static void nothing_allowed(void **state) {
    (void)state;
    install("good");
    refuse_unloaded(FTK_E_PROVIDER_NOT_ALLOWED, "freetoken providers allow");
    refuse_unloaded(FTK_E_PROVIDER_NOT_ALLOWED,
                    format("- {name: good, path: \"%s\"}", library("good").s).s);
}

static void another_path_is_allowed(void **state) {
    (void)state;
    install("good");
    make_folder(in_scratch("good").s, 0755);
    install("elsewhere");
    fti_allow *entry = allow("elsewhere");
    snprintf(names[0], sizeof names[0], "good");
    snprintf(paths[0], sizeof paths[0], "%s/good/good.so", scratch);
    entry->path = paths[0];
    copy_fixture("good", paths[0]);
    refuse_unloaded(FTK_E_PROVIDER_MANIFEST, "no such file");
    write_file(in_scratch("good/good.provider.yaml").s, "", 0, 0644);
    refuse_unloaded(FTK_E_PROVIDER_MANIFEST, "test.yaml:10: providers.allow: good: ");
    assert_int_equal(rename(in_scratch("good/good.provider.yaml").s, in_scratch("old").s), 0);
    text manifest = in_scratch("good/good.provider.yaml");
    write_manifest("good", (override){"architectures", "[thirdarch]"});
    assert_int_equal(rename(provider_file("good", ".provider.yaml").s, manifest.s), 0);
    write_manifest("good", (override){NULL, NULL});
    refuse_unloaded(FTK_E_PROVIDER_NOT_ALLOWED, "change the path of that entry");
}

static void nobody_claims(void **state) {
    (void)state;
    install("good");
    install("elsewhere");
    allow("good");
    ftk_error err = refuse_pair("lunar", "gguf", FTK_E_PROVIDER_NONE, "architecture 'lunar'");
    assert_non_null(strstr(err.message, "container 'gguf'"));
    assert_non_null(strstr(err.message, "good: testarch secondarch (gguf ftw)"));
    assert_non_null(strstr(err.message, "elsewhere: elsewhere (gguf ftw, not allowed)"));
    refuse_pair("testarch", "safetensors", FTK_E_PROVIDER_NONE, "container 'safetensors'");
    refuse_pair("testarch secondarch", "gguf", FTK_E_PROVIDER_NONE, "");
    refuse_pair("", "gguf", FTK_E_PROVIDER_NONE, "");
    assert_int_equal(watched.calls, 0);
    config.allow_count = 0;
    config.search_count = 0;
    refuse_unloaded(FTK_E_PROVIDER_NONE, "known providers: none");
}

/* The list is cut, with the number of what is left out; what to do is not. */
static void a_thousand_manifests_leave_the_advice(void **state) {
    (void)state;
    static const char advice[] = "install a provider for this one and run: freetoken providers "
                                 "allow FOLDER; known providers: ";
    for (unsigned i = 0; i < 1000; i++) {
        text name = format("known-%03u", i);
        make_folder(format("%s/%s", search_folder, name.s).s, 0755);
        write_manifest(name.s, (override){NULL, NULL});
    }
    ftk_error err = refuse_pair("lunar", "gguf", FTK_E_PROVIDER_NONE, advice);
    const char *list = strstr(err.message, advice) + strlen(advice);
    assert_memory_equal(list,
                        "known-000: testarch secondarch (gguf ftw, not allowed), known-001: ", 66);
    unsigned shown = 0, more = 0;
    for (const char *at = list; (at = strstr(at, "(gguf ftw, not allowed)")) != NULL; at++) shown++;
    const char *end = strstr(list, " and ");
    assert_non_null(end);
    assert_int_equal(sscanf(end, " and %u more, which freetoken providers list shows", &more), 1);
    assert_true(shown >= 3);
    assert_int_equal(shown + more, 1000);
}

/* Every path of this world is longer than a message could repeat. */
static void long_paths_leave_the_advice(void **state) {
    (void)state;
    char deep[900], file[1000];
    int n = snprintf(deep, sizeof deep, "%s", scratch);
    for (int i = 0; i < 3; i++) {
        memset(deep + n, 'a' + i, 200);
        deep[n] = '/';
        deep[n += 200] = 0;
        make_folder(deep, 0755);
    }
    fti_allow entry = {names[0], file, NULL, 7};
    strcpy(names[0], "good");
    snprintf(file, sizeof file, "%s/good.so", deep);
    char manifest[1100];
    snprintf(manifest, sizeof manifest, "%s/good.provider.yaml", deep);
    install("good");
    assert_int_equal(rename(provider_file("good", ".provider.yaml").s, manifest), 0);
    assert_int_equal(rename(library("good").s, file), 0);
    config.allow = &entry;
    config.allow_count = 1;
    config.origin = deep; /* as long as any */

    assert_int_equal(chmod(file, 0666), 0);
    ftk_error err = refuse_pair("testarch", "gguf", FTK_E_PROVIDER_PERMISSION,
                                ":7: providers.allow: good: '/");
    assert_non_null(strstr(err.message, "/good.so' has mode 0666, wanted a file that neither group "
                                        "nor others may write; run: chmod go-w '/"));
    assert_string_equal(err.message + strlen(err.message) - 9, "/good.so'");
    assert_int_equal(chmod(file, 0644), 0);

    static char wrong[65];
    memset(wrong, '0', 64);
    entry.sha256 = wrong;
    err = refuse_pair("testarch", "gguf", FTK_E_PROVIDER_DIGEST, wrong);
    assert_non_null(strstr(err.message, "(--config FILE if it is not your own)"));
    config.allow_count = 0;
    assert_int_equal(chmod(search_folder, 0755), 0);
    search[0] = deep;
    deep[n - 200] = 0; /* the folder above the one that holds the manifest */
    file[n] = 0;
    text renamed = format("%.*s/good", n - 200, deep);
    assert_int_equal(rename(file, renamed.s), 0);
    err = refuse_pair("testarch", "gguf", FTK_E_PROVIDER_NOT_ALLOWED,
                      "; run: freetoken providers allow '/");
    assert_non_null(strstr(err.message, "or add under providers.allow: - {name: good, path: \"/"));
    assert_string_equal(err.message + strlen(err.message) - 15, "/good/good.so\"}");
    config.allow = allowed;
    config.origin = origin;
    search[0] = search_folder;
}

static void broken_manifests_hide_nothing(void **state) {
    (void)state;
    install("second");
    install("good");
    write_manifest("second", (override){"license", NULL});
    allow("second");
    allow("good");
    resolve("testarch");
    assert_int_equal(runs_of("second"), 0);
    refuse_pair("lunar", "gguf", FTK_E_PROVIDER_MANIFEST, "no key 'license'");
    config.allow_count = 0;
    allow("good");
    refuse_pair("lunar", "gguf", FTK_E_PROVIDER_NONE, "no key 'license'");
}

static void duplicates_need_a_choice(void **state) {
    (void)state;
    static char claim[] = "testarch/gguf";
    static char other_claim[] = "testarch/ftw";
    static char chosen[] = "second";
    static char absent[] = "third";
    fti_select select[] = {{other_claim, absent, 20}, {claim, chosen, 21}};
    install("good");
    install("second");
    allow("good");
    allow("second");
    refuse_unloaded(FTK_E_PROVIDER_DUPLICATE, "'good'");
    refuse_unloaded(FTK_E_PROVIDER_DUPLICATE, "'second'");
    refuse_unloaded(FTK_E_PROVIDER_DUPLICATE,
                    "below 'providers:' add the line: select: {\"testarch/gguf\": good}");
    config.select = select;
    config.select_count = 1;
    refuse_unloaded(FTK_E_PROVIDER_DUPLICATE, "{\"testarch/gguf\": good}, or with second");
    config.select_count = 2;
    assert_string_equal(resolve("testarch")->manifest->name, "second");
    assert_int_equal(runs_of("good"), 0);
    refuse_pair("testarch", "ftw", FTK_E_PROVIDER_NONE, "test.yaml:20: providers.select");
    install("elsewhere"); /* allowed, but of another architecture */
    allow("elsewhere");
    select[1].name = names[2];
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_NONE, "found 'elsewhere' for 'testarch/gguf'");
    assert_int_equal(runs_of("elsewhere"), 0);
}

static void names_are_allowed_once(void **state) {
    (void)state;
    install("good");
    allow("good");
    allow("good");
    refuse_unloaded(FTK_E_PROVIDER_DUPLICATE, "test.yaml:11:");
}

/* ---- manifest against configuration and host ---- */

static void refuse_manifest(const char *key, const char *value, ftk_status wanted,
                            const char *part) {
    write_manifest("good", (override){key, value});
    refuse_unloaded(wanted, part);
}

static void judges_the_manifest(void **state) {
    (void)state;
    install("good");
    allow("good");
    refuse_manifest("api_level", "1", FTK_E_PROVIDER_LEVEL, "found api_level 1");
    refuse_manifest("min_host_level", "1", FTK_E_PROVIDER_LEVEL, "min_host_level 1");
    refuse_manifest("core_range", "'>=0.2.0'", FTK_E_PROVIDER_VERSION,
                    "found core_range '>=0.2.0'");
    refuse_manifest("core_range", "'<0.1.0'", FTK_E_PROVIDER_VERSION, FTK_VERSION_STRING);
    refuse_manifest("library", "other.so", FTK_E_PROVIDER_MANIFEST, "wanted 'good.so'");
    refuse_manifest("name", "second", FTK_E_PROVIDER_MANIFEST, ":2: name");
    refuse_manifest("platform", "sparc-linux-gnu", FTK_E_PROVIDER_MANIFEST, ":7: platform");
}

static void judges_the_note(void **state) {
    (void)state;
    static const struct {
        const char *key, *value, *part;
    } cases[] = {
        {"version", "2.0.0", "version: found '1.0.0' in its ELF note, wanted '2.0.0'"},
        {"core_range", "'>=0.1.0'", "core_range: found '>=0.1.0 <0.2.0'"},
        {"architectures", "[testarch]", "architectures: found 'testarch secondarch'"},
        {"containers", "[gguf]", "containers: found 'gguf ftw'"},
        {"backends", "[cpu, cuda]", "backends: found 'cpu' in its ELF note, wanted 'cpu cuda'"},
        {"license", "MIT", "license: found 'Apache-2.0'"},
    };
    install("good");
    allow("good");
    for (size_t i = 0; i < FTI_COUNT(cases); i++)
        refuse_manifest(cases[i].key, cases[i].value, FTK_E_PROVIDER_IDENTITY, cases[i].part);
    install("evil");
    config.allow_count = 0;
    allow("evil");
    refuse_unloaded(FTK_E_PROVIDER_IDENTITY, "name: found 'good'");
}

/* ---- the file ---- */

static void judges_paths(void **state) {
    (void)state;
    install("good");
    fti_allow *entry = allow("good");
    char *whole = entry->path;
    char odd[2048];
    snprintf(odd, sizeof odd, "%s/good/../good/good.so", search_folder);
    entry->path = odd;
    refuse_unloaded(FTK_E_PROVIDER_PATH, "'..'");
    snprintf(odd, sizeof odd, "good.so");
    refuse_unloaded(FTK_E_PROVIDER_PATH, "absolute");
    snprintf(odd, sizeof odd, "providers/good/good.so");
    assert_int_equal(chdir(scratch), 0);
    refuse_unloaded(FTK_E_PROVIDER_PATH, "absolute");
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(symlink("providers", in_scratch("link").s), 0);
    snprintf(odd, sizeof odd, "%s/link/good/good.so", scratch);
    refuse_unloaded(FTK_E_PROVIDER_PATH, "symbolic link");
    entry->path = whole;
    assert_int_equal(rename(whole, in_scratch("moved.so").s), 0);
    assert_int_equal(symlink(in_scratch("moved.so").s, whole), 0);
    refuse_unloaded(FTK_E_PROVIDER_PATH, "symbolic link");
    assert_int_equal(unlink(whole), 0);
    refuse_unloaded(FTK_E_PROVIDER_PATH, whole);
}

/* The first bytes of a file and its size are known before any of it is read to the end. */
static void what_is_no_library_is_not_read(void **state) {
    (void)state;
    static const off_t sizes[] = {(off_t)10 << 30, 100};
    static char wrong[65];
    memset(wrong, '0', 64);
    install("good");
    fti_allow *entry = allow("good");
    for (size_t i = 0; i < 4; i++) {
        entry->sha256 = i % 2 ? wrong : NULL;
        write_file(entry->path, "no library", 10, 0644);
        assert_int_equal(truncate(entry->path, sizes[i / 2]), 0);
        digests = 0;
        refuse_unloaded(FTK_E_PROVIDER_ELF, "found a file that is not ELF");
        assert_int_equal(digests, 0);
    }
    copy_fixture("good", entry->path);
    assert_int_equal(truncate(entry->path, sizes[0]), 0);
    for (size_t i = 0; i < 2; i++) {
        entry->sha256 = i ? wrong : NULL;
        digests = 0;
        refuse_unloaded(FTK_E_PROVIDER_ELF, "found more than 4 GiB");
        assert_int_equal(digests, 0);
    }
}

/* Of a question that was judged before, as that of an engine whose backend is a module. */
static void a_judged_file_is_hashed_once(void **state) {
    (void)state;
    char hex[65];
    fti_held_file held = FTI_HELD_FILE_INIT;
    ftk_error err = FTK_ERROR_INIT;
    install("good");
    install("second");
    fti_allow *good = allow("good");
    write_manifest("second", (override){"architectures", "[thirdarch]"});
    allow("second");
    asked.architecture = fti_str("testarch");
    asked.container = fti_str("gguf");
    asked.held = &held;
    for (size_t pinned = 0; pinned < 2; pinned++) {
        size_t descriptors = open_descriptors();
        if (pinned) pin_to_present_bytes(good, hex);
        digests = 0;
        expect_status(fti_provider_judge(&config, &asked, &err), FTK_OK, &err, "");
        assert_ptr_equal(held.of, good);
        assert_int_equal(open_descriptors(), descriptors + 1);
        assert_int_equal(resolve("testarch")->pinned, pinned);
        assert_int_equal(digests, 1);
        assert_true(held.fd < 0 && !held.of);
        assert_int_equal(open_descriptors(), descriptors + 1); /* of the object loaded */
    }
    /* What is held is used for its own entry alone, and not after a change. */
    good->sha256 = NULL;
    assert_int_equal(unlink(good->path), 0); /* which is code of this process now */
    copy_fixture("good", good->path);
    expect_status(fti_provider_judge(&config, &asked, &err), FTK_OK, &err, "");
    refuse_pair("thirdarch", "gguf", FTK_E_PROVIDER_IDENTITY, "architectures");
    assert_ptr_equal(held.of, good);
    int fd = open(good->path, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_int_equal(write(fd, "!", 1), 1);
    assert_int_equal(close(fd), 0);
    digests = 0;
    const fti_provider *p = resolve("testarch");
    assert_int_equal(digests, 1);
    pin_to_present_bytes(good, hex);
    assert_string_equal(p->sha256, hex);
    fti_held_file_release(&held);
    fti_held_file_release(&held);
    asked.held = NULL;
}

/* The number of this process's descriptor of the file at `path`, or -1. */
static int number_of(const char *path) {
    char target[1200];
    for (int fd = 3; fd < 1024; fd++) {
        ssize_t n = readlink(format("/proc/self/fd/%d", fd).s, target, sizeof target - 1);
        if (n > 0 && (size_t)n == strlen(path) && memcmp(target, path, (size_t)n) == 0) return fd;
    }
    return -1;
}

/* Puts the file of another provider under the number of a held one. */
static void put_evil_under(int fd) {
    int evil = open(FTK_FIXTURES "/evil.so", O_RDONLY | O_CLOEXEC);
    assert_true(evil >= 0);
    assert_int_equal(dup2(evil, fd), fd);
    assert_int_equal(close(evil), 0);
}

/* Between a judgement and the load: what stands under the number then is nobody's to load, nor
 * ours to close. */
static void a_held_number_is_used_again(void **state) {
    (void)state;
    char hex[65];
    fti_held_file held = FTI_HELD_FILE_INIT;
    ftk_error err = FTK_ERROR_INIT;
    install("good");
    fti_allow *good = allow("good");
    asked.architecture = fti_str("testarch");
    asked.container = fti_str("gguf");
    asked.held = &held;
    for (long pinned = 0; pinned < 2; pinned++) {
        if (pinned) pin_to_present_bytes(good, hex);
        expect_status(fti_provider_judge(&config, &asked, &err), FTK_OK, &err, "");
        int number = held.fd;
        put_evil_under(number);
        digests = 0;
        assert_int_equal(resolve("testarch")->pinned, pinned);
        assert_int_equal(digests, 1);
        assert_int_equal(runs_of("good"), pinned + 1);
        assert_int_equal(runs_of("evil"), 0);
        expect_status(fti_provider_judge(&config, &asked, &err), FTK_OK, &err, "");
        assert_int_equal(close(number), 0); /* is still open */
        put_evil_under(held.fd);
        number = held.fd;
        fti_held_file_release(&held);
        assert_int_equal(close(number), 0);
    }
    asked.held = NULL;
}

static void put_evil_under_the_good(void) {
    put_evil_under(number_of(library("good").s));
}

/* While it is judged, by another thread. */
static void a_number_is_used_again_while_judging(void **state) {
    (void)state;
    install("good");
    allow("good");
    on_digest = put_evil_under_the_good;
    refuse_unloaded(FTK_E_PROVIDER_LOAD, "found its descriptor closed since it was checked");
    on_digest = NULL;
    resolve("testarch");
    assert_int_equal(runs_of("good"), 1);
}

static void judges_modes(void **state) {
    (void)state;
    static const mode_t modes[] = {0666, 0664, 0646, 04755, 02755};
    install("good");
    const fti_allow *entry = allow("good");
    for (size_t i = 0; i < FTI_COUNT(modes); i++) {
        assert_int_equal(chmod(entry->path, modes[i]), 0);
        refuse_unloaded(FTK_E_PROVIDER_PERMISSION, format("mode %04o", (unsigned)modes[i]).s);
    }
    assert_int_equal(chmod(entry->path, 0644), 0);
    assert_int_equal(chmod(search_folder, 0777), 0);
    refuse_unloaded(FTK_E_PROVIDER_PERMISSION, "providers' has mode 0777");
    assert_int_equal(chmod(search_folder, 0755), 0);
    resolve("testarch");
}

/* The manifest decides what is loaded as much as the library does. */
static void judges_the_manifests_file(void **state) {
    (void)state;
    install("good");
    allow("good");
    text manifest = provider_file("good", ".provider.yaml");
    assert_int_equal(chmod(manifest.s, 0666), 0);
    refuse_unloaded(FTK_E_PROVIDER_PERMISSION, "good.provider.yaml' has mode 0666");
    assert_int_equal(chmod(manifest.s, 0644), 0);
    assert_int_equal(rename(manifest.s, in_scratch("moved.yaml").s), 0);
    assert_int_equal(symlink(in_scratch("moved.yaml").s, manifest.s), 0);
    refuse_unloaded(FTK_E_PROVIDER_PATH, "symbolic link");
    assert_int_equal(unlink(manifest.s), 0);
    refuse_unloaded(FTK_E_PROVIDER_MANIFEST, "no such file");
}

/* Nothing comes of a configuration that others may write. */
static void judges_the_configurations_file(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *loaded = NULL;
    install("good");
    text path = in_scratch("config.yaml");
    text yaml = format("providers:\n  allow:\n    - {name: good, path: '%s'}\n", library("good").s);
    write_file(path.s, yaml.s, strlen(yaml.s), 0666);
    expect_status(ftk_config_load(path.s, &loaded, &err), FTK_E_CONFIG_TRUST, &err, "mode 0666");
    assert_null(loaded);
    assert_int_equal(symlink(path.s, in_scratch("link.yaml").s), 0);
    assert_int_equal(chmod(path.s, 0644), 0);
    expect_status(ftk_config_load(in_scratch("link.yaml").s, &loaded, &err), FTK_E_CONFIG_TRUST,
                  &err, "symbolic link");
    assert_int_equal(watched.calls, 0);
    assert_int_equal(runs_of("good"), 0);
}

static void judges_owners(void **state) {
    (void)state;
    if (geteuid() != 0) {
        print_message("skip: only root can give files to other users\n");
        skip();
    }
    install("good");
    const fti_allow *entry = allow("good");
    assert_int_equal(chown(entry->path, STRANGER, 0), 0);
    refuse_unloaded(FTK_E_PROVIDER_PERMISSION, "owned by uid 65534");
    assert_int_equal(chown(entry->path, 0, 0), 0);
    assert_int_equal(chown(search_folder, STRANGER, 0), 0);
    refuse_unloaded(FTK_E_PROVIDER_PERMISSION, "owned by uid 65534");
}

static void judges_contents(void **state) {
    (void)state;
    static const char words[] = "this is not a shared object, but long enough to be taken for one "
                                "by somebody who does not look";
    install("good");
    const fti_allow *entry = allow("good");
    write_file(entry->path, words, sizeof words, 0755);
    refuse_unloaded(FTK_E_PROVIDER_ELF, "not ELF");
    write_file(entry->path, "", 0, 0755);
    refuse_unloaded(FTK_E_PROVIDER_ELF, "empty");
    size_t size;
    unsigned char *bytes = read_file(FTK_FIXTURES "/good.so", &size);
    write_file(entry->path, bytes, 4096, 0755); /* the segments need more */
    refuse_unloaded(FTK_E_PROVIDER_ELF, "inside the file");
    bytes[18] = 0xf3; /* e_machine */
    bytes[19] = 0;
    write_file(entry->path, bytes, size, 0755);
    refuse_unloaded(FTK_E_PROVIDER_ELF, "machine 243");
    free(bytes);
    assert_int_equal(unlink(entry->path), 0);
    assert_int_equal(mkfifo(entry->path, 0644), 0);
    refuse_unloaded(FTK_E_PROVIDER_PATH, "a FIFO");
    assert_int_equal(unlink(entry->path), 0);
    make_folder(entry->path, 0755);
    refuse_unloaded(FTK_E_PROVIDER_PATH, "a folder");
}

static void refuse_fixture(const char *name, ftk_status wanted, const char *part) {
    install(name);
    config.allow_count = 0;
    allow(name);
    refuse_unloaded(wanted, part);
    refuse_unloaded(wanted, format("test.yaml:10: providers.allow: %s: ", name).s);
}

static void judges_elf(void **state) {
    (void)state;
    refuse_fixture("no_note", FTK_E_PROVIDER_IDENTITY, "no freetoken note");
    refuse_fixture("two_notes", FTK_E_PROVIDER_IDENTITY, "second freetoken note");
    refuse_fixture("execstack", FTK_E_PROVIDER_ELF, "executable stack");
    refuse_fixture("textrel", FTK_E_PROVIDER_ELF, "text relocations");
    refuse_fixture("runpath", FTK_E_PROVIDER_ELF, "DT_RUNPATH");
    refuse_fixture("rpath", FTK_E_PROVIDER_ELF, "DT_RPATH");
    refuse_fixture("filter", FTK_E_PROVIDER_ELF, "DT_FILTER");
    refuse_fixture("auxiliary", FTK_E_PROVIDER_ELF, "DT_AUXILIARY");
    refuse_fixture("audit", FTK_E_PROVIDER_ELF, "DT_AUDIT");
    refuse_fixture("depaudit", FTK_E_PROVIDER_ELF, "DT_DEPAUDIT");
    refuse_fixture("needs_forbidden", FTK_E_PROVIDER_ELF, "libforbidden.so.1");
    refuse_fixture("needs_core", FTK_E_PROVIDER_ELF, "libfreetoken.so.0");
}

/* Entries that are missing, no function, or in a library that the provider needs, even
 * one that is in the process already. */
static void judges_entry_symbols(void **state) {
    (void)state;
    void *fake = real_dlopen(FTK_FIXTURES "/fake_rt.so", RTLD_NOW | RTLD_LOCAL);
    assert_non_null(fake);
    refuse_fixture("no_entry", FTK_E_PROVIDER_ENTRY,
                   "found nothing of its own as its entry " FTK_PROVIDER_ENTRY);
    refuse_fixture("data_entry", FTK_E_PROVIDER_ENTRY, "found something else than a function");
    refuse_fixture("dependency_entry", FTK_E_PROVIDER_ENTRY, "found nothing of its own");
    refuse_fixture("hidden_version", FTK_E_PROVIDER_ENTRY, "found a symbol of a hidden version");
    refuse_fixture("two_versions", FTK_E_PROVIDER_ENTRY, "found more than one symbol");
}

/* ---- pins and exchanged files ---- */

static void wrong_digest(void **state) {
    (void)state;
    static char zeros[65];
    char hex[65];
    install("good");
    fti_allow *entry = allow("good");
    pin_to_present_bytes(entry, hex);
    memset(zeros, '0', 64);
    entry->sha256 = zeros;
    refuse_unloaded(FTK_E_PROVIDER_DIGEST, format("found sha256 %s, wanted %s", hex, zeros).s);
    refuse_unloaded(FTK_E_PROVIDER_DIGEST, "providers allow --update");
}

static void right_digest(void **state) {
    (void)state;
    struct stat st;
    char hex[65];
    install("good");
    pin_to_present_bytes(allow("good"), hex);
    const fti_provider *p = resolve("testarch");
    assert_string_equal(p->sha256, hex);
    assert_int_equal(stat(library("good").s, &st), 0);
    assert_int_equal(p->inode, st.st_ino);
    char target[64] = {0};
    assert_true(readlink(watched.file, target, sizeof target - 1) > 0);
    assert_non_null(strstr(target, "memfd:"));
    int fd = atoi(watched.file + strlen("/proc/self/fd/"));
    assert_int_equal(fcntl(fd, F_GET_SEALS) & 0xf,
                     F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    /* The same bytes at another place are the same object, and are reported as where they lie. */
    size_t size;
    unsigned char *bytes = read_file(library("good").s, &size);
    write_file(in_scratch("copy.so").s, bytes, size, 0644);
    free(bytes);
    assert_int_equal(rename(in_scratch("copy.so").s, library("good").s), 0);
    const fti_provider *moved = resolve("testarch");
    assert_int_equal(stat(library("good").s, &st), 0);
    assert_ptr_equal(moved->table, p->table);
    assert_int_equal(moved->load_address, p->load_address);
    assert_int_equal(moved->inode, st.st_ino);
    assert_int_not_equal(moved->inode, p->inode);
    assert_ptr_equal(resolve("testarch"), moved);
    assert_int_equal(runs_of("good"), 1);
}

/* A second place for "good", reached by the allowlist in place of the first. */
static void allow_elsewhere(char path[static 1024]) {
    make_folder(in_scratch("other").s, 0755);
    write_manifest("good", (override){"license", "Apache-2.0\ndistribution: other-packages"});
    assert_int_equal(
        rename(provider_file("good", ".provider.yaml").s, in_scratch("other/good.provider.yaml").s),
        0);
    write_manifest("good", (override){NULL, NULL});
    snprintf(path, 1024, "%s/other/good.so", scratch);
}

/* Two configurations of one process: the object is shared, what is reported is not. */
static void expect_two_places(const fti_provider *first, char *other) {
    const fti_provider before = *first;
    char *own = config.allow[0].path;
    config.allow[0].path = other;
    const fti_provider *second = resolve("testarch");
    assert_ptr_equal(second->table, first->table);
    assert_string_equal(second->path, other);
    assert_string_equal(second->sha256, first->sha256);
    assert_string_equal(second->manifest->path, in_scratch("other/good.provider.yaml").s);
    assert_string_equal(second->manifest->distribution, "other-packages");
    assert_ptr_equal(resolve("testarch"), second);
    config.allow[0].path = own;
    assert_ptr_equal(resolve("testarch"), first);
    assert_memory_equal(first, &before, sizeof before);
    assert_string_equal(first->path, library("good").s);
    assert_string_equal(first->manifest->distribution, "");
    assert_int_equal(runs_of("good"), 1);
    assert_int_equal(watched.calls, 1);
}

static void reports_each_place_of_pinned_bytes(void **state) {
    (void)state;
    char hex[65], other[1024];
    size_t size;
    struct stat st;
    install("good");
    pin_to_present_bytes(allow("good"), hex);
    allow_elsewhere(other);
    unsigned char *bytes = read_file(library("good").s, &size);
    write_file(other, bytes, size, 0644);
    free(bytes);
    const fti_provider *first = resolve("testarch");
    expect_two_places(first, other);
    config.allow[0].path = other;
    assert_int_equal(stat(other, &st), 0);
    assert_int_equal(resolve("testarch")->inode, st.st_ino);
}

/* As after an upgrade that brings the same library under another package's name. */
static void reports_each_manifest_of_a_file(void **state) {
    (void)state;
    install("good");
    allow("good");
    const fti_provider *first = resolve("testarch");
    write_manifest("good", (override){"license", "Apache-2.0\ndistribution: other-packages"});
    const fti_provider *second = resolve("testarch");
    assert_ptr_equal(second->table, first->table);
    assert_string_equal(first->manifest->distribution, "");
    assert_string_equal(second->manifest->distribution, "other-packages");
    assert_int_equal(watched.calls, 1);
}

static void reports_each_name_of_a_file(void **state) {
    (void)state;
    char other[1024];
    install("good");
    allow("good");
    allow_elsewhere(other);
    assert_int_equal(link(library("good").s, other), 0);
    expect_two_places(resolve("testarch"), other);
}

/* Between the checks and the load: as an installer that writes in place. */
static void write_evil_in_place(void) {
    copy_fixture("evil", library("good").s);
}

static void rename_evil_over(void) {
    copy_fixture("evil", in_scratch("evil.so").s);
    assert_int_equal(rename(in_scratch("evil.so").s, library("good").s), 0);
}

static void pin_defeats_writing_in_place(void **state) {
    (void)state;
    char hex[65];
    install("good");
    pin_to_present_bytes(allow("good"), hex);
    watched.before = write_evil_in_place;
    resolve("testarch");
    assert_int_equal(runs_of("evil"), 0);
    assert_int_equal(runs_of("good"), 1);
    watched.before = NULL;
    config.allow[0].sha256 = hex;
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_DIGEST, hex);
}

/* What a pin is for, and proof that the exchange above really happens. */
static void without_a_pin_writing_in_place_wins(void **state) {
    (void)state;
    install("good");
    allow("good");
    watched.before = write_evil_in_place;
    resolve("testarch");
    assert_int_equal(runs_of("evil"), 1);
    assert_int_equal(runs_of("good"), 0);
}

static void held_descriptor_defeats_renames(void **state) {
    (void)state;
    install("good");
    allow("good");
    watched.before = rename_evil_over;
    resolve("testarch");
    assert_int_equal(runs_of("evil"), 0);
    assert_int_equal(runs_of("good"), 1);
}

static void a_new_file_is_a_new_load(void **state) {
    (void)state;
    install("good");
    allow("good");
    const fti_provider *first = resolve("testarch");
    rename_evil_over();
    const fti_provider *second = resolve("testarch");
    assert_ptr_not_equal(second, first);
    assert_ptr_not_equal(second->table->match, first->table->match);
    assert_int_equal(runs_of("good"), 1);
    assert_int_equal(runs_of("evil"), 1);
}

static void changed_after_load(void **state) {
    (void)state;
    install("good");
    allow("good");
    resolve("testarch");
    struct timespec times[2] = {{0, UTIME_OMIT}, {1000, 0}};
    assert_int_equal(utimensat(AT_FDCWD, library("good").s, times, 0), 0);
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_LOAD, "start the program again");
    assert_int_equal(watched.calls, 1);
}

/* Size and time tell nothing if the writer sets them back. */
static void changed_after_load_at_the_same_time(void **state) {
    (void)state;
    struct stat st;
    unsigned char last;
    install("good");
    allow("good");
    resolve("testarch");
    assert_int_equal(stat(library("good").s, &st), 0);
    /* The trailer alone: the rest is mapped by this process, and is code of it. */
    int fd = open(library("good").s, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &last, 1, st.st_size - 1), 1);
    last ^= 1;
    assert_int_equal(pwrite(fd, &last, 1, st.st_size - 1), 1);
    assert_int_equal(close(fd), 0);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, library("good").s, times, 0), 0);
    refuse_pair("testarch", "gguf", FTK_E_PROVIDER_LOAD, "start the program again");
    assert_int_equal(watched.calls, 1);
}

/* ---- dlopen, entry, table ---- */

static void undefined_symbol(void **state) {
    (void)state;
    install("undefined");
    allow("undefined");
    size_t descriptors = open_descriptors();
    ftk_error err = refuse_pair("testarch", "gguf", FTK_E_PROVIDER_LOAD,
                                "a_function_that_nobody_defines");
    assert_non_null(strstr(err.message, library("undefined").s));
    assert_int_equal(watched.calls, 1);
    assert_int_equal(runs_of("undefined"), 0);
    assert_int_equal(open_descriptors(), descriptors);
}

/* Code that is in the process stays, so the second answer comes from the
 * record. */
static void refuse_loaded(const char *name, ftk_status wanted, const char *part) {
    install(name);
    config.allow_count = 0;
    allow(name);
    watched.calls = 0;
    ftk_error first = refuse_pair("testarch", "gguf", wanted, part);
    ftk_error second = refuse_pair("testarch", "gguf", wanted, part);
    assert_string_equal(first.message, second.message);
    assert_non_null(strstr(first.message, library(name).s));
    assert_int_equal(watched.calls, 1);
    assert_int_equal(runs_of(name), 1);
}

static void judges_entries(void **state) {
    (void)state;
    refuse_loaded("null_entry", FTK_E_PROVIDER_ENTRY, "found NULL");
    refuse_loaded("moving_entry", FTK_E_PROVIDER_CONTRACT, "second call");
}

static void judges_tables(void **state) {
    (void)state;
    refuse_loaded("small_table", FTK_E_PROVIDER_CONTRACT, "struct_size");
    refuse_loaded("absurd_table", FTK_E_PROVIDER_CONTRACT, "struct_size 16777216");
    refuse_loaded("no_identity", FTK_E_PROVIDER_CONTRACT, "no identity");
    refuse_loaded("table_version", FTK_E_PROVIDER_IDENTITY,
                  "version: found '1.0.1' in its table, wanted '1.0.0'");
    refuse_loaded("null_slot", FTK_E_PROVIDER_CONTRACT, "NULL for 'run'");
    refuse_loaded("needy_last", FTK_E_PROVIDER_CONTRACT,
                  "1 needs in the last variant of 'needy_last/thing'");
    refuse_loaded("no_rows", FTK_E_PROVIDER_CONTRACT, "without rows");
    refuse_loaded("foreign_name", FTK_E_PROVIDER_CONTRACT,
                  "found the name 'core/thing' in its variant tables, wanted 'foreign_name/...'");
}

static void keeps_no_descriptor_of_what_it_refuses(void **state) {
    (void)state;
    char hex[65];
    install("good");
    fti_allow *entry = allow("good");
    pin_to_present_bytes(entry, hex);
    hex[0] = hex[0] == '0' ? '1' : '0';
    size_t before = open_descriptors();
    for (int i = 0; i < 10; i++) {
        entry->sha256 = hex;
        refuse_unloaded(FTK_E_PROVIDER_DIGEST, "");
        entry->sha256 = NULL;
        refuse_manifest("license", "MIT", FTK_E_PROVIDER_IDENTITY, "");
        write_manifest("good", (override){NULL, NULL});
    }
    assert_int_equal(open_descriptors(), before);
}

/* ---- check and discover ---- */

static void check_entry(ftk_status wanted, const char *part, bool with_manifest) {
    ftk_error err = FTK_ERROR_INIT;
    fti_manifest *manifest = NULL;
    expect_status(fti_provider_check(&config, config.allow, &manifest, NULL, &err), wanted, &err,
                  part);
    assert_true((manifest != NULL) == with_manifest);
    fti_manifest_free(manifest);
    expect_status(fti_provider_check(&config, config.allow, NULL, NULL, &err), wanted, &err, part);
    assert_int_equal(watched.calls, 0);
}

static json_t *providers_report(void) {
    ftk_error err = FTK_ERROR_INIT;
    char *json = NULL;
    expect_status(ftk_providers_report(&config, &json, &err), FTK_OK, &err, "");
    json_t *report = json_loads(json, 0, NULL);
    assert_non_null(report);
    ftk_report_free(json);
    return report;
}

static const char *member(const json_t *o, const char *key) {
    const char *value = json_string_value(json_object_get(o, key));
    assert_non_null(value);
    return value;
}

/* Under whichever of its names lets its manifests be read. */
static void a_folder_of_two_names_is_searched_once(void **state) {
    (void)state;
    install("good");
    install("second");
    text link = in_scratch("link"), other = in_scratch("other"), absent = in_scratch("absent");
    char *folders[] = {link.s, other.s, search_folder, absent.s};
    assert_int_equal(symlink(search_folder, link.s), 0);
    assert_int_equal(symlink(link.s, other.s), 0);
    config.search = folders;
    for (size_t n = 1; n <= FTI_COUNT(folders); n++) {
        config.search_count = n;
        json_t *report = providers_report();
        const json_t *providers = json_object_get(report, "providers");
        const json_t *repeated = json_object_get(report, "search_repeated");
        assert_int_equal(json_array_size(json_object_get(report, "search")), n);
        assert_int_equal(json_array_size(providers), n == 4 ? 3 : 2);
        assert_int_equal(json_array_size(repeated), n == 1 ? 0 : n == 2 ? 1 : 2);
        assert_string_equal(member(json_array_get(providers, 0), "status"),
                            n < 3 ? "FTK_E_PROVIDER_PATH" : "ok");
        for (size_t i = 0; i < json_array_size(repeated); i++) {
            const json_t *one = json_array_get(repeated, i);
            assert_string_equal(member(one, "folder"), folders[n == 2 ? 1 : i]);
            assert_string_equal(member(one, "same_as"), n == 2 ? link.s : search_folder);
        }
        json_decref(report);
    }
    config.search = search;
}

/* Two of one name are no error: nothing but a path allows. They are named. */
static void names_that_are_found_twice_are_said(void **state) {
    (void)state;
    install("good");
    install("second");
    text elsewhere = in_scratch("elsewhere"), folder = in_scratch("elsewhere/good");
    make_folder(elsewhere.s, 0755);
    make_folder(folder.s, 0755);
    copy_fixture("good", format("%s/good.so", folder.s).s);
    size_t size;
    unsigned char *manifest = read_file(provider_file("good", ".provider.yaml").s, &size);
    write_file(format("%s/good.provider.yaml", folder.s).s, manifest, size, 0644);
    free(manifest);
    char *folders[] = {search_folder, elsewhere.s};
    config.search = folders;
    config.search_count = 2;
    for (size_t i = 0; i < 2; i++) {
        json_t *report = providers_report();
        const json_t *providers = json_object_get(report, "providers");
        assert_int_equal(json_array_size(providers), 3);
        size_t with = 0;
        for (size_t k = 0; k < 3; k++) {
            const json_t *p = json_array_get(providers, k), *same = json_object_get(p, "same_name");
            with += json_array_size(same);
            if (json_array_size(same) == 0) continue;
            bool first = strcmp(member(p, "path"), library("good").s) == 0;
            assert_string_equal(json_string_value(json_array_get(same, 0)),
                                first ? format("%s/good.so", folder.s).s : library("good").s);
        }
        assert_int_equal(with, 2);
        json_decref(report);
        if (i > 0) break;
        refuse_unloaded(FTK_E_PROVIDER_NOT_ALLOWED,
                        "found provider 'good' (and 1 more of that name, which providers list "
                        "shows) for testarch/gguf");
        allow("good");
    }
    assert_string_equal(resolve("testarch")->path, library("good").s);
    assert_int_equal(runs_of("good"), 1);
    config.search = search;
}

static void check_never_loads(void **state) {
    (void)state;
    char hex[65];
    install("good");
    fti_allow *entry = allow("good");
    size_t descriptors = open_descriptors();
    check_entry(FTK_OK, "", true);
    pin_to_present_bytes(entry, hex);
    check_entry(FTK_OK, "", true);
    hex[0] = hex[0] == '0' ? '1' : '0';
    check_entry(FTK_E_PROVIDER_DIGEST, "test.yaml:10: providers.allow: good: ", true);
    write_manifest("good", (override){"api_level", "7"});
    check_entry(FTK_E_PROVIDER_LEVEL, "api_level 7", true);
    write_manifest("good", (override){"license", NULL});
    check_entry(FTK_E_PROVIDER_MANIFEST, "license", false);
    assert_int_equal(open_descriptors(), descriptors);
    assert_int_equal(runs_of("good"), 0);
}

static void discovers_search_folders(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    fti_found_provider *found = NULL;
    size_t count = 0;
    static char missing[] = "/nonexistent-folder-of-providers";
    install("second");
    install("good");
    install("elsewhere");
    write_manifest("elsewhere", (override){"license", NULL});
    make_folder(format("%s/empty", search_folder).s, 0755);
    make_folder(format("%s/good/deeper", search_folder).s, 0755);
    write_file(format("%s/good/deeper/deeper.provider.yaml", search_folder).s, "", 0, 0644);
    write_file(format("%s/top.provider.yaml", search_folder).s, "", 0, 0644);
    search[1] = missing;
    config.search_count = 2;
    const fti_allow *entry = allow("good");
    expect_status(fti_provider_discover(&config, &found, &count, &err), FTK_OK, &err, "");
    assert_int_equal(count, 5);
    assert_string_equal(found[0].manifest_path, provider_file("elsewhere", ".provider.yaml").s);
    assert_null(found[0].manifest);
    assert_int_equal(found[0].error.status, FTK_E_PROVIDER_MANIFEST);
    assert_string_equal(found[1].manifest->name, "good");
    assert_ptr_equal(found[1].allow, entry);
    assert_string_equal(found[2].manifest->name, "second");
    assert_null(found[2].allow);
    assert_non_null(strstr(found[3].error.message, "found the manifest 'top.provider.yaml' in"));
    assert_string_equal(found[4].manifest_path, missing);
    assert_int_equal(found[4].error.status, FTK_E_NOT_FOUND);
    fti_found_providers_free(found, count);
    assert_int_equal(watched.calls, 0);
    config.search_count = 0;
    expect_status(fti_provider_discover(&config, &found, &count, &err), FTK_OK, &err, "");
    assert_int_equal(count, 0);
    fti_found_providers_free(found, count);
}

static void errors_may_be_unwanted(void **state) {
    (void)state;
    const fti_provider *provider = NULL;
    install("good");
    fti_allow *entry = allow("good");
    assert_int_equal(chmod(entry->path, 0666), 0);
    assert_int_equal(resolve_pair("testarch", "gguf", &provider, NULL), FTK_E_PROVIDER_PERMISSION);
    assert_int_equal(resolve_pair("lunar", "gguf", &provider, NULL), FTK_E_PROVIDER_NONE);
    assert_null(provider);
}

/* ---- processes of their own ---- */

/* `number`: what the child takes for its own, or 0: what it is. */
static void expect_refusal_in_a_child(pid_t number) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        pretended = number;
        ftk_error err = FTK_ERROR_INIT;
        const fti_provider *p = NULL;
        ftk_status s = resolve_pair("testarch", "gguf", &p, &err);
        _exit(s == FTK_E_PROVIDER_LOAD && strstr(err.message, "bare fork") && !p ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The first process of another PID namespace may have the number of its parent. */
static void after_fork(void **state) {
    (void)state;
    install("good");
    allow("good");
    resolve("testarch");
    expect_refusal_in_a_child(0);
    expect_refusal_in_a_child(getpid());
}

/* Somebody has closed our descriptor, so that its number comes again for another file: the
 * dynamic loader must not take one for the other by its name. */
static void a_new_file_under_an_old_number(void **state) {
    (void)state;
    install("good");
    allow("good");
    const fti_provider *first = resolve("testarch");
    assert_int_equal(close(atoi(watched.file + strlen("/proc/self/fd/"))), 0);
    rename_evil_over();
    const fti_provider *second = resolve("testarch");
    assert_ptr_not_equal(second->table->match, first->table->match);
    assert_int_equal(runs_of("good"), 1);
    assert_int_equal(runs_of("evil"), 1);
}

/* Nothing was loaded before the fork, though the mark was asked for. */
static int load_in_a_fork(void) {
    unsigned mark = fti_process_mark();
    pid_t child = fork();
    if (child == 0) {
        const fti_provider *p = NULL;
        bool other = fti_process_mark() != mark;
        _exit(resolve_pair("testarch", "gguf", &p, NULL) == FTK_OK && other ? 0 : 1);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

#define MARKING 8

static pthread_barrier_t together;

static void *ask_for_the_mark(void *out) {
    pthread_barrier_wait(&together);
    *(unsigned *)out = fti_process_mark();
    return NULL;
}

/* Threads of a fork that ask at once are told one mark, and a whole line of forks may load. */
static int load_in_a_late_fork(void) {
    unsigned before = fti_process_mark();
    for (int i = 0; i < 260; i++) {
        pid_t child = fork();
        int status = -1;
        if (child > 0) /* each waits for the next, which tells how it went */
            return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status)
                                                                            : 1;
        unsigned marks[MARKING];
        pthread_t threads[MARKING];
        if (child < 0 || pthread_barrier_init(&together, NULL, MARKING) != 0) return 2;
        for (size_t t = 0; t < MARKING; t++)
            if (pthread_create(&threads[t], NULL, ask_for_the_mark, &marks[t]) != 0) return 2;
        for (size_t t = 0; t < MARKING; t++) pthread_join(threads[t], NULL);
        for (size_t t = 0; t < MARKING; t++)
            if (marks[t] == 0 || marks[t] == before || marks[t] != marks[0]) return 3;
        before = marks[0];
    }
    const fti_provider *p = NULL;
    return resolve_pair("testarch", "gguf", &p, NULL) == FTK_OK ? 0 : 4;
}

/* As a kernel does whose vm.memfd_noexec forbids them. */
static bool refuse_memory_files(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {(unsigned short)FTI_COUNT(filter), filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* What this program does when started again as a child: 0 as wanted, 77 not
 * possible here, anything else a failure. */
static int as_child(const char *what, const char *folder) {
    ftk_error err = FTK_ERROR_INIT;
    const fti_provider *p = NULL;
    snprintf(scratch, sizeof scratch, "%s", folder);
    snprintf(search_folder, sizeof search_folder, "%s/providers", scratch);
    config.origin = origin;
    config.allow = allowed;
    allow("good");
    if (strcmp(what, "secure") == 0 && getauxval(AT_SECURE) == 0) return 77;
    if (strcmp(what, "noproc") == 0 &&
        (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
         mount("none", "/proc", "tmpfs", 0, NULL) != 0))
        return 77;
    char hex[65];
    if (strcmp(what, "nomemfd") == 0) {
        pin_to_present_bytes(&allowed[0], hex);
        if (!refuse_memory_files()) return 77;
    }
    struct rlimit limit = {64, 64};
    if (strcmp(what, "fewfiles") == 0 && setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    if (strcmp(what, "forked") == 0) return load_in_a_fork();
    if (strcmp(what, "late") == 0) return load_in_a_late_fork();
    ftk_status status = resolve_pair("testarch", "gguf", &p, &err);
    if (strcmp(what, "secure") == 0) return status != FTK_E_PROVIDER_SECURE_EXEC || p;
    if (strcmp(what, "nomemfd") == 0)
        return status != FTK_E_PROVIDER_LOAD || watched.calls ||
               !strstr(err.message, "refuses executable memory files");
    if (strcmp(what, "noproc") == 0)
        return status != FTK_E_PROVIDER_LOAD || !strstr(err.message, "mount /proc") ||
               watched.calls;
    return status != FTK_OK || atoi(watched.file + strlen("/proc/self/fd/")) != 32;
}

static void expect_child(const char *program, const char *what) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl(program, program, "--child", what, scratch, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skip: this system does not let a test arrange '%s'\n", what);
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void without_proc(void **state) {
    (void)state;
    install("good");
    expect_child("/proc/self/exe", "noproc");
    assert_int_equal(runs_of("good"), 0);
}

/* A pin that cannot be kept is not left out. */
static void without_memory_files(void **state) {
    (void)state;
    install("good");
    expect_child("/proc/self/exe", "nomemfd");
    assert_int_equal(runs_of("good"), 0);
}

static void with_few_descriptors(void **state) {
    (void)state;
    install("good");
    expect_child("/proc/self/exe", "fewfiles");
    assert_int_equal(runs_of("good"), 1);
}

static void a_fork_before_any_load(void **state) {
    (void)state;
    install("good");
    expect_child("/proc/self/exe", "forked");
    assert_int_equal(runs_of("good"), 1);
}

static void a_long_line_of_forks(void **state) {
    (void)state;
    install("good");
    expect_child("/proc/self/exe", "late");
    assert_int_equal(runs_of("good"), 1);
}

static void secure_execution(void **state) {
    (void)state;
    if (geteuid() != 0) {
        print_message("skip: only root can make a program setuid to another user\n");
        skip();
    }
    install("good");
    text program = setuid_copy();
    expect_child(program.s, "secure");
    assert_int_equal(runs_of("good"), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, scratch_teardown)

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--child") == 0) _exit(as_child(argv[2], argv[3]));
    const struct CMUnitTest tests[] = {
        CASE(loads_an_allowed_provider),
        CASE(loads_once),
        CASE(sixteen_threads),
        CASE(sixteen_threads_pinned),
        CASE(others_stay_unopened),
        CASE(takes_longer_tables),
        CASE(nothing_allowed),
        CASE(another_path_is_allowed),
        CASE(nobody_claims),
        CASE(a_thousand_manifests_leave_the_advice),
        CASE(long_paths_leave_the_advice),
        CASE(broken_manifests_hide_nothing),
        CASE(duplicates_need_a_choice),
        CASE(names_are_allowed_once),
        CASE(judges_the_manifest),
        CASE(judges_the_note),
        CASE(judges_paths),
        CASE(what_is_no_library_is_not_read),
        CASE(a_judged_file_is_hashed_once),
        CASE(a_held_number_is_used_again),
        CASE(a_number_is_used_again_while_judging),
        CASE(judges_modes),
        CASE(judges_the_manifests_file),
        CASE(judges_the_configurations_file),
        CASE(judges_owners),
        CASE(judges_contents),
        CASE(judges_elf),
        CASE(judges_entry_symbols),
        CASE(wrong_digest),
        CASE(right_digest),
        CASE(reports_each_place_of_pinned_bytes),
        CASE(reports_each_manifest_of_a_file),
        CASE(reports_each_name_of_a_file),
        CASE(pin_defeats_writing_in_place),
        CASE(without_a_pin_writing_in_place_wins),
        CASE(held_descriptor_defeats_renames),
        CASE(a_new_file_is_a_new_load),
        CASE(changed_after_load),
        CASE(changed_after_load_at_the_same_time),
        CASE(undefined_symbol),
        CASE(judges_entries),
        CASE(judges_tables),
        CASE(keeps_no_descriptor_of_what_it_refuses),
        CASE(check_never_loads),
        CASE(discovers_search_folders),
        CASE(a_folder_of_two_names_is_searched_once),
        CASE(names_that_are_found_twice_are_said),
        CASE(errors_may_be_unwanted),
        CASE(after_fork),
        CASE(a_new_file_under_an_old_number),
        CASE(a_fork_before_any_load),
        CASE(a_long_line_of_forks),
        CASE(without_proc),
        CASE(without_memory_files),
        CASE(with_few_descriptors),
        CASE(secure_execution),
    };
    return cmocka_run_group_tests_name("test_loader", tests, NULL, NULL);
}
