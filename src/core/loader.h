/*
 * loader.h: from an allowlist to a provider table. The only place of the library
 * that calls dlopen. Order of stages (docs/trust.md): allowlist, manifests,
 * claims, then for the one provider that claims the checkpoint: open without
 * symlinks, file checks, pin, ELF inspection, dlopen, entry, table. No byte of a
 * provider's code runs before all stages up to dlopen agree, and providers that
 * do not claim the checkpoint are never opened.
 */
#ifndef FTI_LOADER_H
#define FTI_LOADER_H

#include <limits.h>
#include <sys/stat.h>
#include <time.h>

#include "core/config.h"

/* The one platform whose providers this library loads. */
#if defined(__x86_64__)
#define FTI_PLATFORM "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define FTI_PLATFORM "aarch64-linux-gnu"
#else
#error "libfreetoken has no platform name for this machine"
#endif

/* Contents of NAME.provider.yaml. Strings are owned by the manifest; lists are
 * joined by single spaces, as in ftk_identity. */
typedef struct fti_manifest {
    char *path; /* of the manifest itself */
    char *name;
    char *version;
    char *distribution;         /* "" if absent */
    char *distribution_version; /* "" if absent */
    char *core_range;
    char *platform;
    char *library; /* file name, in the manifest's folder */
    char *architectures;
    char *containers;
    char *backends;
    char *license;
    char *device_code; /* "" if absent */
    char *provides;    /* "model" or "format"; "" if absent: model */
    uint32_t manifest_version;
    uint32_t api_level;
    uint32_t min_host_level;
} fti_manifest;

ftk_status fti_manifest_read(const char *path, fti_manifest **out, ftk_error *err) FTI_WARN_UNUSED;
/* The same of a text; `path`, which ends in the file's name, is taken as it is. */
ftk_status fti_manifest_parse(const char *text, size_t size, const char *path, fti_manifest **out,
                              ftk_error *err) FTI_WARN_UNUSED;
void fti_manifest_free(fti_manifest *manifest);
/* True if `word` is one of the space-separated words of `list`. */
bool fti_list_has(const char *list, ftk_str word);

/* A provider in this process. Process lifetime: loaded objects are never unloaded, and
 * one file is loaded once (by device and inode, or by digest when pinned). Resolved from
 * another file or with another manifest, the same object is another one of these: the table
 * is shared, the facts are those of the resolution. */
typedef struct fti_provider {
    const ftk_provider *table; /* full-size internal copy; no slot is NULL */
    fti_manifest *manifest;
    char *path;
    char sha256[65]; /* of the bytes that were checked; of one that is linked in, of the file that
                        holds its code, or "" */
    bool pinned;     /* these are also the bytes that were loaded: nobody could change them */
    bool linked;     /* part of the program: no file of its own, nothing of the following four */
    uint64_t device;
    uint64_t inode;
    uint64_t bytes;
    struct timespec modified;
    uint64_t load_address;
    uint32_t effective_level;
    char *linked_file;     /* of one that is linked in: what sha256 is of; NULL if there is none, */
    const char *no_digest; /* and why */
} fti_provider;

#define FTI_MAX_LIBRARY_BYTES ((off_t)1 << 32)

/* A library that passed everything that can be judged without running it, held open for the
 * load. */
typedef struct fti_held_file {
    const fti_allow *of; /* the entry that it was judged for, or NULL: nothing is held */
    int fd;              /* the file, or the sealed copy of its bytes when pinned */
    struct stat st;      /* of the file */
    struct stat judged;  /* of what is behind fd: the file, or the copy */
    char sha256[65];     /* of the bytes behind fd */
} fti_held_file;
#define FTI_HELD_FILE_INIT                                                                         \
    { .fd = -1 }
void fti_held_file_release(fti_held_file *file);

typedef struct fti_provider_query {
    ftk_str architecture;
    ftk_str container;
    const char *backend;     /* of the engine, or NULL: not judged */
    const char *device_code; /* target of the device, or NULL: it needs no code objects */
    const char *record;      /* of the process that started this one, or NULL */
    fti_held_file *held;     /* where a judgement leaves the file for the load; NULL: nowhere */
} fti_provider_query;

/* Finds the provider for (architecture, container), and loads it. Nothing is loaded
 * unless the configuration allows it; what is linked in needs no loading, but keeps to the
 * same rules of claims, levels and hardware. */
ftk_status fti_provider_resolve(const struct ftk_config *config, const fti_provider_query *query,
                                const fti_provider **out, ftk_error *err) FTI_WARN_UNUSED;
/* The same decisions and refusals, but nothing is loaded: for what must not run unless a
 * provider would. A file that passed is left in query->held, from where the load takes it. */
ftk_status fti_provider_judge(const struct ftk_config *config, const fti_provider_query *query,
                              ftk_error *err) FTI_WARN_UNUSED;

/* The provider behind the entry of one that is part of the program. */
ftk_status fti_provider_link(ftk_provider_entry entry, const fti_provider **out,
                             ftk_error *err) FTI_WARN_UNUSED;

/* One fact a line: what another process must resolve to have the same provider. Free with
 * fti_free. */
ftk_status fti_provider_record(const fti_provider *provider, ftk_str architecture,
                               ftk_str container, char **out, ftk_error *err) FTI_WARN_UNUSED;

/* Checks one allowlist entry through every stage before dlopen, without loading
 * it: what `freetoken providers check` shows. `manifest` (may be NULL) receives
 * the manifest, also when a later stage fails; the caller frees it. `sha256` (may be NULL)
 * receives the digest of a file that passed. */
ftk_status fti_provider_check(const struct ftk_config *config, const fti_allow *allow,
                              fti_manifest **manifest, char sha256[65],
                              ftk_error *err) FTI_WARN_UNUSED;

/* A manifest found in a search folder, allowed or not. */
typedef struct fti_found_provider {
    fti_manifest *manifest; /* NULL if it was refused: see error */
    char *manifest_path;
    const fti_allow *allow; /* the entry that allows it, or NULL */
    ftk_error error;
} fti_found_provider;
ftk_status fti_provider_discover(const struct ftk_config *config, fti_found_provider **out,
                                 size_t *count, ftk_error *err) FTI_WARN_UNUSED;
void fti_found_providers_free(fti_found_provider *found, size_t count);

/* For each search folder the index of the one that is looked into for it: its own, unless two
 * names lead to one folder. Free with fti_free. */
ftk_status fti_search_names(const struct ftk_config *config, size_t **out,
                            ftk_error *err) FTI_WARN_UNUSED;

/* Path rules of the trust order, also used for the configuration file: absolute,
 * no symlink in any component, regular file, owner root or the effective user,
 * not group- or world-writable, the same for every parent (a world-writable
 * parent passes if it is sticky, owned by root, and the entry below it is owned
 * by root or the effective user). Returns an open descriptor. `path_status` and
 * `mode_status` are the statuses to fail with. */
ftk_status fti_trusted_open(const char *path, ftk_status path_status, ftk_status mode_status,
                            int *fd, ftk_error *err) FTI_WARN_UNUSED;

/* Another number in a fork of this process than in itself, whatever its process number. */
unsigned fti_process_mark(void);

/* Loads a module of this library (a backend) after the checks that a provider's file goes
 * through, without allowlist, manifest and note: its place beside the library is what allows
 * it. `*out` is the function `entry`, of process lifetime. Refused with the statuses of a
 * provider's file; FTK_E_DEVICE_UNAVAILABLE where only the dynamic loader does, for want of what
 * the device's software brings. */
ftk_status fti_module_load(const char *path, const char *entry, void **out,
                           ftk_error *err) FTI_WARN_UNUSED;
/* Where the module `file` would be: freetoken/backends/ beside the library's file, as the kernel
 * names it. */
ftk_status fti_module_path(const char *file, char out[PATH_MAX], ftk_error *err) FTI_WARN_UNUSED;

/* The file that the code or constant at `address` was loaded from, and its digest. Where none can
 * be told `*path` is NULL, `sha256` "" and `*reason` says why. Fails for lack of memory only. */
ftk_status fti_digest_code(const void *address, char **path, char sha256[65], const char **reason,
                           ftk_error *err) FTI_WARN_UNUSED;

/* SHA-256 of the rest of `fd`, as 64 lower-case hex digits and NUL. */
ftk_status fti_sha256_fd(int fd, char hex[65], ftk_error *err);

#endif
