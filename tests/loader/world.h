/*
 * world.h: what tests of the loader act in: a folder of providers whose constructors leave
 * sentinels, a configuration over them, and this program's own dlopen, which sees each call
 * before it is passed on. What must not run is proven not to have run.
 */
#ifndef TESTS_LOADER_WORLD_H
#define TESTS_LOADER_WORLD_H

#include "core/config.h"
#include "core/loader.h"
#include "loader/scratch.h"

#include <dlfcn.h>

/* ---- the dynamic loader, watched ---- */

static struct {
    int calls;
    int mode;
    char file[64];
    void (*before)(void);
} watched;

static inline void *real_dlopen(const char *file, int mode) {
    void *(*next)(const char *, int);
    void *address = dlsym(RTLD_NEXT, "dlopen");
    memcpy(&next, &address, sizeof next);
    return next(file, mode);
}

/* Takes the place of the C library's for the code under test. */
void *dlopen(const char *file, int mode) {
    bool load = file && strncmp(file, "/proc/self/fd/", 14) == 0 && !(mode & RTLD_NOLOAD);
    if (!load) return real_dlopen(file, mode);
    watched.calls++;
    watched.mode = mode;
    snprintf(watched.file, sizeof watched.file, "%s", file);
    if (watched.before) watched.before();
    return real_dlopen(file, mode);
}

/* ---- a world of providers below the scratch folder ---- */

static fti_allow allowed[8];
static char names[8][64];
static char paths[8][1024];
static char *search[2];
static char search_folder[1024];
static char origin[] = "test.yaml";
static struct ftk_config config;
/* What resolve_pair asks for beside the pair. */
static fti_provider_query asked;

static inline int world_setup(void **state) {
    if (scratch_setup(state) != 0) return -1;
    memset(&watched, 0, sizeof watched);
    memset(&config, 0, sizeof config);
    memset(&asked, 0, sizeof asked);
    snprintf(search_folder, sizeof search_folder, "%s/providers", scratch);
    search[0] = search_folder;
    config.origin = origin;
    config.allow = allowed;
    config.search = search;
    config.search_count = 1;
    if (setenv("FTK_TEST_SENTINEL", in_scratch("ran").s, 1) != 0) return -1;
    return mkdir(in_scratch("ran").s, 0700) || mkdir(search_folder, 0755);
}

static inline text provider_file(const char *name, const char *suffix) {
    return format("%s/%s/%s%s", search_folder, name, name, suffix);
}

static inline text library(const char *name) {
    return provider_file(name, ".so");
}

typedef struct override {
    const char *key;
    const char *value; /* NULL leaves the key out */
} override;

/* Up to two lines other than usual. */
static inline void write_manifest_with(const char *name, override change, override other) {
    const override lines[] = {
        {"manifest_version", "1"},
        {"name", name},
        {"version", "1.0.0"},
        {"api_level", "0"},
        {"min_host_level", "0"},
        {"core_range", "'>=0.1.0 <0.2.0'"},
        {"platform", FTI_PLATFORM},
        {"library", format("%s.so", name).s},
        {"architectures",
         strcmp(name, "elsewhere") == 0 ? "[elsewhere]" : "[testarch, secondarch]"},
        {"containers", "[gguf, ftw]"},
        {"backends", "[cpu]"},
        {"license", "Apache-2.0"},
        {"device_code", NULL},
        {"provides", NULL},
    };
    text whole = {{0}};
    for (size_t i = 0; i < FTI_COUNT(lines); i++) {
        const char *value = lines[i].value;
        if (change.key && strcmp(change.key, lines[i].key) == 0) value = change.value;
        if (other.key && strcmp(other.key, lines[i].key) == 0) value = other.value;
        if (value) whole = format("%s%s: %s\n", whole.s, lines[i].key, value);
    }
    write_file(provider_file(name, ".provider.yaml").s, whole.s, strlen(whole.s), 0644);
}

static inline void write_manifest(const char *name, override change) {
    write_manifest_with(name, change, (override){NULL, NULL});
}

/* With a trailer that no loader reads, so that no two copies have one digest: the
 * registry, which lives as long as this program, would take them for one. */
static inline void copy_fixture(const char *fixture, const char *to) {
    static unsigned serial;
    size_t size;
    unsigned char *bytes = read_file(format(FTK_FIXTURES "/%s.so", fixture).s, &size);
    unsigned char *longer = malloc(size + sizeof serial);
    assert_non_null(longer);
    serial++;
    memcpy(longer, bytes, size);
    memcpy(longer + size, &serial, sizeof serial);
    write_file(to, longer, size + sizeof serial, 0644);
    free(longer);
    free(bytes);
}

static inline void install(const char *name) {
    make_folder(format("%s/%s", search_folder, name).s, 0755);
    copy_fixture(name, library(name).s);
    write_manifest(name, (override){NULL, NULL});
}

static inline fti_allow *allow(const char *name) {
    size_t i = config.allow_count++;
    assert_in_range(i, 0, FTI_COUNT(allowed) - 1);
    snprintf(names[i], sizeof names[i], "%s", name);
    snprintf(paths[i], sizeof paths[i], "%s", library(name).s);
    allowed[i] = (fti_allow){names[i], paths[i], NULL, (unsigned)(10 + i)};
    return &allowed[i];
}

static inline void pin_to_present_bytes(fti_allow *entry, char hex[65]) {
    ftk_error err = FTK_ERROR_INIT;
    int fd = open(entry->path, O_RDONLY | O_CLOEXEC);
    expect_status(fti_sha256_fd(fd, hex, &err), FTK_OK, &err, "");
    assert_int_equal(close(fd), 0);
    entry->sha256 = hex;
}

static inline long runs_of(const char *fixture) {
    struct stat st;
    return stat(format("%s/ran/%s", scratch, fixture).s, &st) == 0 ? (long)st.st_size : 0;
}

static inline ftk_status resolve_pair(const char *architecture, const char *container,
                                      const fti_provider **provider, ftk_error *err) {
    fti_provider_query query = asked;
    query.architecture = fti_str(architecture);
    query.container = fti_str(container);
    return fti_provider_resolve(&config, &query, provider, err);
}

static inline const fti_provider *resolve(const char *architecture) {
    ftk_error err = FTK_ERROR_INIT;
    const fti_provider *provider = NULL;
    expect_status(resolve_pair(architecture, "gguf", &provider, &err), FTK_OK, &err, "");
    assert_non_null(provider);
    return provider;
}

static inline ftk_error refuse_pair(const char *architecture, const char *container,
                                    ftk_status wanted, const char *part) {
    ftk_error err = FTK_ERROR_INIT;
    const fti_provider *provider = NULL;
    ftk_status status = resolve_pair(architecture, container, &provider, &err);
    expect_status(status, wanted, &err, part);
    assert_null(provider);
    return err;
}

/* Refused, and before anything was given to the dynamic loader. */
static inline void refuse_unloaded(ftk_status wanted, const char *part) {
    refuse_pair("testarch", "gguf", wanted, part);
    assert_int_equal(watched.calls, 0);
    DIR *ran = opendir(in_scratch("ran").s);
    assert_non_null(ran);
    for (const struct dirent *d = readdir(ran); d; d = readdir(ran))
        if (d->d_name[0] != '.') fail_msg("code of '%s' ran", d->d_name);
    assert_int_equal(closedir(ran), 0);
}

#endif
