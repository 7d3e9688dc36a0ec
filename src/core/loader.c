/*
 * loader.c: see loader.h. Owns the registry of loaded providers, the only
 * mutable global of the library.
 *
 * Descriptors of loaded providers stay open: glibc recognises a loaded object by
 * the name it was opened with, here /proc/self/fd/N, so a number that came to
 * mean another file would give the old object. For the same reason nothing is
 * ever closed with dlclose.
 */
#include "core/loader.h"
#include "core/elf_inspect.h"
#include "core/semver.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX ".provider.yaml"

/* Kept descriptors start here, away from the low numbers that applications
 * close or reuse by hand. Where the limit on open files is lower, the floor is
 * halved until a number is free. */
#define DESCRIPTOR_FLOOR 512

#define MAX_LIBRARY_BYTES ((off_t)1 << 32)
#define MAX_TABLE_BYTES   4096u
#define MAX_STRING_BYTES  4096u
#define MAX_VARIANTS      4096u

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U /* Linux 6.3: needed where vm.memfd_noexec is 1 */
#endif

/* ---- identity: the nine keys that manifest, note and table share ---- */

static const char *const identity_keys[] = {"name",           "version",    "api_level",
                                            "min_host_level", "core_range", "architectures",
                                            "containers",     "backends",   "license"};
enum { IDENTITY_KEYS = FTI_COUNT(identity_keys) };

/* Levels as decimal text, which `number` holds: do not copy an identity. */
typedef struct identity {
    ftk_str value[IDENTITY_KEYS];
    char number[2][12];
} identity;

static void set_levels(identity *id, uint32_t api_level, uint32_t min_host_level) {
    snprintf(id->number[0], sizeof id->number[0], "%u", api_level);
    snprintf(id->number[1], sizeof id->number[1], "%u", min_host_level);
    id->value[2] = fti_str(id->number[0]);
    id->value[3] = fti_str(id->number[1]);
}

static void identity_of_manifest(const fti_manifest *m, identity *id) {
    const char *const text[IDENTITY_KEYS] = {m->name,       m->version,    NULL,
                                             NULL,          m->core_range, m->architectures,
                                             m->containers, m->backends,   m->license};
    for (size_t i = 0; i < IDENTITY_KEYS; i++) id->value[i] = fti_str(text[i]);
    set_levels(id, m->api_level, m->min_host_level);
}

static void identity_of_table(const ftk_identity *from, identity *id) {
    const ftk_str text[IDENTITY_KEYS] = {from->name,       from->version,    {NULL, 0},
                                         {NULL, 0},        from->core_range, from->architectures,
                                         from->containers, from->backends,   from->license};
    memcpy(id->value, text, sizeof text);
    set_levels(id, from->api_level, from->min_host_level);
}

static ftk_status note_line(const char *path, ftk_str line, identity *id, ftk_error *err) {
    for (size_t i = 0; i < IDENTITY_KEYS; i++) {
        size_t n = strlen(identity_keys[i]);
        if (line.size <= n || memcmp(line.data, identity_keys[i], n) != 0 || line.data[n] != '=')
            continue;
        if (id->value[i].data)
            return fti_fail(err, FTK_E_PROVIDER_IDENTITY,
                            "'%s' refused: found '%s' twice in the freetoken note, wanted it once",
                            path, identity_keys[i]);
        id->value[i] = (ftk_str){line.data + n + 1, line.size - n - 1};
        return FTK_OK;
    }
    return fti_fail(err, FTK_E_PROVIDER_IDENTITY,
                    "'%s' refused: found the line '%.*s' in the freetoken note, wanted 'key=value' "
                    "with the keys of FTK_PROVIDER_NOTE",
                    path, FTI_STR_ARGS(line));
}

static ftk_status identity_of_note(const char *path, const char *note, identity *id,
                                   ftk_error *err) {
    memset(id, 0, sizeof *id);
    while (*note) {
        size_t n = strcspn(note, "\n");
        FTI_TRY(note_line(path, (ftk_str){note, n}, id, err));
        note += n + (note[n] == '\n');
    }
    for (size_t i = 0; i < IDENTITY_KEYS; i++)
        if (!id->value[i].data)
            return fti_fail(err, FTK_E_PROVIDER_IDENTITY,
                            "'%s' refused: found no '%s' in the freetoken note, wanted all nine "
                            "keys of FTK_PROVIDER_NOTE",
                            path, identity_keys[i]);
    return FTK_OK;
}

static ftk_status same_identity(const char *path, const char *source, const identity *found,
                                const fti_manifest *manifest, ftk_error *err) {
    identity wanted;
    identity_of_manifest(manifest, &wanted);
    for (size_t i = 0; i < IDENTITY_KEYS; i++)
        if (!fti_str_eq(found->value[i], wanted.value[i]))
            return fti_fail(err, FTK_E_PROVIDER_IDENTITY,
                            "'%s' refused: %s: found '%.*s' in its %s, wanted '%.*s' as in "
                            "'%s'; install library and manifest of one build",
                            path, identity_keys[i], FTI_STR_ARGS(found->value[i]), source,
                            FTI_STR_ARGS(wanted.value[i]), manifest->path);
    return FTK_OK;
}

/* ---- registry ---- */

/* One object that dlopen has returned, usable (status FTK_OK) or not: code of
 * either kind stays in the process, so neither is loaded again. */
typedef struct record {
    struct record *next;
    fti_provider provider;
    ftk_provider table;
    uint64_t size;
    struct timespec modified;
    ftk_status status;
    ftk_error error;
} record;

static struct {
    pthread_mutex_t lock;
    record *first;
    atomic_int pid; /* of the process that loads, 0 before the first load */
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A child of fork without exec has the parent's objects without the threads
 * that serve them, and perhaps its locked mutex. */
static ftk_status check_process(ftk_error *err) {
    int self = (int)getpid();
    int owner = 0;
    if (atomic_compare_exchange_strong(&registry.pid, &owner, self) || owner == self) return FTK_OK;
    return fti_fail(err, FTK_E_PROVIDER_LOAD,
                    "no provider is loaded after a bare fork: found process %d, wanted %d, the one "
                    "that loaded providers first; start worker processes with exec",
                    self, owner);
}

static ftk_status refuse_secure(ftk_error *err) {
    if (getauxval(AT_SECURE) == 0) return FTK_OK;
    return fti_fail(err, FTK_E_PROVIDER_SECURE_EXEC,
                    "no provider is loaded: found a process under secure execution (setuid, setgid "
                    "or file capabilities), wanted an ordinary one; no configuration changes this");
}

/* ---- stages before any code of the provider runs ---- */

/* A library that passed everything that can be judged without running it. */
typedef struct checked_file {
    int fd;         /* the file, or the sealed copy of its bytes when pinned */
    struct stat st; /* of the file */
} checked_file;

static ftk_status check_versions(const fti_manifest *m, uint32_t *effective, ftk_error *err) {
    const fti_levels host = {FTK_API_LEVEL, FTK_MIN_PROVIDER_LEVEL};
    const fti_levels provider = {m->api_level, m->min_host_level};
    const fti_semver core = {FTK_VERSION_MAJOR, FTK_VERSION_MINOR, FTK_VERSION_PATCH};
    if (!fti_levels_meet(host, provider, effective))
        return fti_fail(err, FTK_E_PROVIDER_LEVEL,
                        "'%s' refused: found api_level %u and min_host_level %u, wanted %s%u (this "
                        "libfreetoken has level %u); install matching versions of both",
                        m->path, m->api_level, m->min_host_level,
                        host.level == 0 ? "exactly level " : "levels that reach ",
                        host.level == 0 ? host.level : host.min_peer, host.level);
    if (fti_semver_in_range(core, fti_str(m->core_range)) != FTI_RANGE_INSIDE)
        return fti_fail(err, FTK_E_PROVIDER_VERSION,
                        "'%s' refused: found core_range '%s', wanted one that holds "
                        "libfreetoken " FTK_VERSION_STRING "; install matching versions of both",
                        m->path, m->core_range);
    return FTK_OK;
}

static ftk_status copy_bytes(const char *path, int from, int to, ftk_error *err) {
    for (off_t total = 0; total <= MAX_LIBRARY_BYTES;) {
        ssize_t n = sendfile(to, from, NULL, (size_t)1 << 24);
        if (n == 0) return FTK_OK;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return fti_fail(err, FTK_E_PROVIDER_LOAD, "cannot copy '%s' to memory: %s", path,
                            strerrordesc_np(errno));
        total += n;
    }
    return fti_fail(err, FTK_E_PROVIDER_ELF,
                    "'%s' refused: found more than 4 GiB, wanted a shared object of less", path);
}

/* A memory file with the bytes of `from` that nobody can change any more. */
static ftk_status sealed_copy(const char *path, int from, int *out, ftk_error *err) {
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create("freetoken-provider", flags | MFD_EXEC);
    if (fd < 0 && errno == EINVAL) fd = memfd_create("freetoken-provider", flags);
    if (fd < 0)
        return fti_fail(err, FTK_E_PROVIDER_LOAD,
                        "cannot pin '%s': the system refuses executable memory files "
                        "(memfd_create: %s); remove its sha256 to load it unpinned",
                        path, strerrordesc_np(errno));
    ftk_status status = copy_bytes(path, from, fd, err);
    if (status == FTK_OK &&
        (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0 ||
         lseek(fd, 0, SEEK_SET) != 0))
        status = fti_fail(err, FTK_E_PROVIDER_LOAD, "cannot seal the copy of '%s': %s", path,
                          strerrordesc_np(errno));
    if (status != FTK_OK) {
        close(fd);
        return status;
    }
    *out = fd;
    return FTK_OK;
}

/* Characters of the folder that `path` lies in, for "%.*s". */
static int folder_size(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path) : 0;
}

/* Replaces `file->fd` by the sealed copy, whose digest is then the digest of
 * what will be loaded. */
static ftk_status pin(const fti_allow *allow, checked_file *file, ftk_error *err) {
    char hex[65];
    int copy = -1;
    FTI_TRY(sealed_copy(allow->path, file->fd, &copy, err));
    close(file->fd);
    file->fd = copy;
    FTI_TRY(fti_sha256_fd(copy, hex, err));
    if (strcmp(hex, allow->sha256) == 0) return FTK_OK;
    return fti_fail(
        err, FTK_E_PROVIDER_DIGEST,
        "'%s' refused: found sha256 %s, wanted %s; if the new file is trusted, run: "
        "freetoken providers allow --update '%.*s' (--config FILE if it is not your own)",
        allow->path, hex, allow->sha256, folder_size(allow->path), allow->path);
}

static ftk_status check_note(const fti_allow *allow, const fti_manifest *manifest, int fd,
                             ftk_error *err) {
    char *note = NULL;
    identity found;
    FTI_TRY(fti_elf_inspect(fd, allow->path, &note, err));
    ftk_status status = identity_of_note(allow->path, note, &found, err);
    if (status == FTK_OK) status = same_identity(allow->path, "ELF note", &found, manifest, err);
    fti_free(note);
    return status;
}

static ftk_status check_bytes(const fti_allow *allow, const fti_manifest *manifest,
                              checked_file *file, ftk_error *err) {
    if (fstat(file->fd, &file->st) != 0)
        return fti_fail(err, FTK_E_PROVIDER_PATH, "cannot examine '%s': %s", allow->path,
                        strerrordesc_np(errno));
    if (allow->sha256) FTI_TRY(pin(allow, file, err));
    return check_note(allow, manifest, file->fd, err);
}

static ftk_status check_file(const fti_allow *allow, const fti_manifest *manifest,
                             checked_file *file, ftk_error *err) {
    FTI_TRY(fti_trusted_open(allow->path, FTK_E_PROVIDER_PATH, FTK_E_PROVIDER_PERMISSION, &file->fd,
                             err));
    ftk_status status = check_bytes(allow, manifest, file, err);
    if (status != FTK_OK) close(file->fd);
    return status;
}

/* ---- loading ---- */

static ftk_status keep_descriptor(const char *path, int *fd, ftk_error *err) {
    int kept = -1;
    for (int floor = DESCRIPTOR_FLOOR; kept < 0 && floor > 2; floor /= 2)
        kept = fcntl(*fd, F_DUPFD_CLOEXEC, floor);
    if (kept < 0)
        return fti_fail(err, FTK_E_PROVIDER_LOAD,
                        "cannot keep '%s' open: %s; raise the limit on open files (ulimit -n)",
                        path, strerrordesc_np(errno));
    close(*fd);
    *fd = kept;
    return FTK_OK;
}

static ftk_status check_link(const char *link, int fd, ftk_error *err) {
    struct stat via_link;
    struct stat direct;
    if (stat(link, &via_link) == 0 && fstat(fd, &direct) == 0 && via_link.st_dev == direct.st_dev &&
        via_link.st_ino == direct.st_ino)
        return FTK_OK;
    return fti_fail(err, FTK_E_PROVIDER_LOAD,
                    "no provider is loaded: found no usable '%s', wanted /proc of this process, "
                    "through which a checked file is loaded; mount /proc",
                    link);
}

static ftk_status call_loader(const char *path, int fd, void **handle, ftk_error *err) {
    char link[48];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    FTI_TRY(check_link(link, fd, err));
    *handle = dlopen(link, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*handle) return FTK_OK;
    const char *text = dlerror();
    return fti_fail(err, FTK_E_PROVIDER_LOAD, "the dynamic loader refused '%s': %s", path,
                    text ? text : "no reason given");
}

static ftk_provider_entry bad_entry(const char *path, ftk_error *err, const char *found,
                                    const char *detail, const char *wanted) {
    fti_fail(err, FTK_E_PROVIDER_ENTRY,
             "'%s' refused: found " FTK_PROVIDER_ENTRY " %s%s, wanted %s", path, found, detail,
             wanted);
    return NULL;
}

/* NULL after reporting why. dlsym also searches the libraries that an object
 * needs, and takes data for functions. */
static ftk_provider_entry find_entry(const char *path, void *handle, ftk_error *err) {
    void *address = dlsym(handle, FTK_PROVIDER_ENTRY);
    if (!address) {
        const char *text = dlerror();
        return bad_entry(path, err, "missing: ", text ? text : "its value is NULL", "it exported");
    }
    Dl_info info;
    struct link_map *ours = NULL;
    struct link_map *owner = NULL;
    const ElfW(Sym) *symbol = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &ours) != 0 ||
        dladdr1(address, &info, (void **)&owner, RTLD_DL_LINKMAP) == 0 || owner != ours)
        return bad_entry(path, err, "in a library that it needs: ", owner ? owner->l_name : "?",
                         "it in the provider itself");
    if (dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 || !symbol ||
        ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
        return bad_entry(path, err, "to be", " something else", "a function");
    ftk_provider_entry entry;
    memcpy(&entry, &address, sizeof entry);
    return entry;
}

/* ---- the table ---- */

static ftk_status broken(const char *path, ftk_error *err, const char *found, const char *wanted) {
    return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                    "'%s' refused: found %s in the provider's table, wanted %s", path, found,
                    wanted);
}

static ftk_status check_size(const char *path, const char *what, uint32_t found, size_t least,
                             ftk_error *err) {
    if (found >= least && found <= MAX_TABLE_BYTES && found % 8 == 0) return FTK_OK;
    return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                    "'%s' refused: found struct_size %u in its %s, wanted a multiple of 8 from %zu "
                    "to %u; build it with this libfreetoken's headers",
                    path, found, what, least, MAX_TABLE_BYTES);
}

static ftk_status check_slots(const char *path, const ftk_provider *t, ftk_error *err) {
    const struct {
        const char *name;
        bool present;
    } slots[] = {{"match", t->match != NULL},
                 {"create", t->create != NULL},
                 {"plan_weights", t->plan_weights != NULL},
                 {"load_weights", t->load_weights != NULL},
                 {"attach_cache", t->attach_cache != NULL},
                 {"prepare_for_runtime", t->prepare_for_runtime != NULL},
                 {"run", t->run != NULL},
                 {"destroy", t->destroy != NULL}};
    for (size_t i = 0; i < FTI_COUNT(slots); i++)
        if (!slots[i].present)
            return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                            "'%s' refused: found NULL for '%s' in the provider's table, wanted a "
                            "function",
                            path, slots[i].name);
    return FTK_OK;
}

static ftk_status check_table_identity(const char *path, const ftk_identity *from,
                                       const fti_manifest *manifest, ftk_error *err) {
    if (!from) return broken(path, err, "no identity", "one");
    FTI_TRY(check_size(path, "identity", from->struct_size, sizeof *from, err));
    identity found;
    identity_of_table(from, &found);
    for (size_t i = 0; i < IDENTITY_KEYS; i++)
        if (found.value[i].size > MAX_STRING_BYTES ||
            (found.value[i].size > 0 && !found.value[i].data))
            return broken(path, err, "an impossible string in the identity",
                          "strings of at most 4096 bytes");
    return same_identity(path, "table", &found, manifest, err);
}

static ftk_status check_variants(const char *path, const ftk_variant_table *t, ftk_error *err) {
    if (!t) return broken(path, err, "a NULL variant table", "one per operation");
    FTI_TRY(check_size(path, "variant table", t->struct_size, sizeof *t, err));
    if (!t->variants || t->variant_count == 0 || t->variant_count > MAX_VARIANTS ||
        t->variant_stride < sizeof(ftk_variant) || t->variant_stride > MAX_TABLE_BYTES ||
        t->variant_stride % 8 != 0)
        return broken(path, err, "a variant table without rows, or with rows of an odd size",
                      "1 to 4096 rows and their stride");
    const ftk_variant *last = (const ftk_variant *)(const void *)((const char *)t->variants +
                                                                  (t->variant_count - 1) *
                                                                      t->variant_stride);
    if (last->need_count == 0) return FTK_OK;
    return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                    "'%s' refused: found %llu needs in the last variant of '%.*s', wanted none: "
                    "the last one is the reference that runs everywhere",
                    path, (unsigned long long)last->need_count, FTI_STR_ARGS(t->operation));
}

static ftk_status check_variant_tables(const char *path, const ftk_provider *t, ftk_error *err) {
    if (t->variant_table_count > MAX_VARIANTS || (t->variant_table_count > 0 && !t->variants))
        return broken(path, err, "an impossible list of variant tables", "at most 4096");
    for (uint64_t i = 0; i < t->variant_table_count; i++)
        FTI_TRY(check_variants(path, t->variants[i], err));
    return FTK_OK;
}

static ftk_status read_table(record *r, ftk_provider_entry entry, ftk_error *err) {
    const char *path = r->provider.path;
    const ftk_provider *table = entry();
    if (!table)
        return fti_fail(err, FTK_E_PROVIDER_ENTRY,
                        "'%s' refused: found NULL from " FTK_PROVIDER_ENTRY "(), wanted a table",
                        path);
    if (entry() != table)
        return broken(path, err, "another address on the second call of its entry",
                      "the same constant");
    FTI_TRY(check_size(path, "table", table->struct_size, sizeof *table, err));
    memcpy(&r->table, table, sizeof r->table);
    r->table.struct_size = (uint32_t)sizeof r->table;
    FTI_TRY(check_table_identity(path, r->table.identity, r->provider.manifest, err));
    FTI_TRY(check_slots(path, &r->table, err));
    FTI_TRY(check_variant_tables(path, &r->table, err));
    r->provider.table = &r->table;
    return FTK_OK;
}

static ftk_status describe(record *r, void *handle, ftk_error *err) {
    ftk_provider_entry entry = find_entry(r->provider.path, handle, err);
    return entry ? read_table(r, entry, err) : FTK_E_PROVIDER_ENTRY;
}

/* ---- records ---- */

static void record_free(record *r) {
    if (!r) return;
    fti_free(r->provider.path);
    fti_free(r->provider.sha256);
    fti_free(r);
}

static record *record_new(const fti_allow *allow, const checked_file *file, uint32_t effective) {
    record *r = fti_calloc(1, sizeof *r);
    if (!r) return NULL;
    r->provider.path = fti_strndup(allow->path, strlen(allow->path));
    if (allow->sha256) r->provider.sha256 = fti_strndup(allow->sha256, strlen(allow->sha256));
    if (!r->provider.path || (allow->sha256 && !r->provider.sha256)) {
        record_free(r);
        return NULL;
    }
    r->provider.device = (uint64_t)file->st.st_dev;
    r->provider.inode = (uint64_t)file->st.st_ino;
    r->provider.effective_level = effective;
    r->size = (uint64_t)file->st.st_size;
    r->modified = file->st.st_mtim;
    return r;
}

static const record *find_record(const fti_allow *allow, const checked_file *file) {
    for (const record *r = registry.first; r; r = r->next) {
        const fti_provider *p = &r->provider;
        if (strcmp(p->manifest->name, allow->name) != 0) continue;
        if (!p->sha256 != !allow->sha256) continue;
        if (p->sha256
                ? strcmp(p->sha256, allow->sha256) == 0
                : p->device == (uint64_t)file->st.st_dev && p->inode == (uint64_t)file->st.st_ino)
            return r;
    }
    return NULL;
}

/* The answer of a record. Without a pin, the code in the process is that of the
 * first load even if the file was since written in place. */
static ftk_status reuse(const record *r, const checked_file *file, const fti_provider **out,
                        ftk_error *err) {
    bool unchanged = r->size == (uint64_t)file->st.st_size &&
                     r->modified.tv_sec == file->st.st_mtim.tv_sec &&
                     r->modified.tv_nsec == file->st.st_mtim.tv_nsec;
    if (!r->provider.sha256 && !unchanged)
        return fti_fail(err, FTK_E_PROVIDER_LOAD,
                        "'%s' refused: found it written in place since this process loaded it, "
                        "wanted the same content; start the program again",
                        r->provider.path);
    if (r->status != FTK_OK) return fti_fail(err, r->status, "%s", r->error.message);
    *out = &r->provider;
    return FTK_OK;
}

/* Takes over manifest and descriptor, setting them to NULL and -1, once the
 * object is in the process. */
static ftk_status load_new(const fti_allow *allow, fti_manifest **manifest, checked_file *file,
                           uint32_t effective, const fti_provider **out, ftk_error *err) {
    FTI_TRY(keep_descriptor(allow->path, &file->fd, err));
    record *r = record_new(allow, file, effective);
    if (!r) return fti_no_memory(err, sizeof *r, "a provider's record");
    void *handle;
    ftk_status status = call_loader(allow->path, file->fd, &handle, err);
    if (status != FTK_OK) {
        record_free(r);
        return status;
    }
    file->fd = -1;
    r->provider.manifest = *manifest;
    *manifest = NULL;
    r->status = describe(r, handle, &r->error);
    r->next = registry.first;
    registry.first = r;
    return reuse(r, file, out, err);
}

static ftk_status load_checked(const fti_allow *allow, fti_manifest **manifest, checked_file *file,
                               uint32_t effective, const fti_provider **out, ftk_error *err) {
    FTI_TRY(check_process(err));
    pthread_mutex_lock(&registry.lock);
    const record *known = find_record(allow, file);
    ftk_status status = known ? reuse(known, file, out, err)
                              : load_new(allow, manifest, file, effective, out, err);
    pthread_mutex_unlock(&registry.lock);
    return status;
}

static ftk_status load(const fti_allow *allow, fti_manifest **manifest, const fti_provider **out,
                       ftk_error *err) {
    uint32_t effective;
    checked_file file = {.fd = -1};
    FTI_TRY(check_versions(*manifest, &effective, err));
    FTI_TRY(check_file(allow, *manifest, &file, err));
    ftk_status status = load_checked(allow, manifest, &file, effective, out, err);
    if (file.fd >= 0) close(file.fd);
    return status;
}

/* ---- allowed providers ---- */

/* Repeats a failure with the line of the configuration that led to it. */
static ftk_status blame(const struct ftk_config *config, const fti_allow *allow, ftk_status status,
                        const ftk_error *inner, ftk_error *err) {
    /* An entry that no configuration holds yet is named by nothing but itself. */
    if (!config->origin)
        return fti_fail(err, status, "provider %s: %s", allow->name, inner->message);
    return fti_fail(err, status, "%s:%u: providers.allow: %s: %s", config->origin, allow->line,
                    allow->name, inner->message);
}

static ftk_status manifest_of(const fti_allow *allow, fti_manifest **out, ftk_error *err) {
    const char *slash = strrchr(allow->path, '/');
    if (allow->path[0] != '/' || !slash[1])
        return fti_fail(err, FTK_E_PROVIDER_PATH,
                        "path '%s' refused: found no absolute path of a file, wanted one",
                        allow->path);
    fti_text path = {0};
    fti_manifest *manifest = NULL;
    fti_text_printf(&path, "%.*s/%s" SUFFIX, (int)(slash - allow->path), allow->path, allow->name);
    ftk_status status = path.failed ? fti_no_memory(err, strlen(allow->path), "a path")
                                    : fti_manifest_read(path.data, &manifest, err);
    fti_text_free(&path);
    if (!manifest) return status;
    if (strcmp(manifest->library, slash + 1) == 0) {
        *out = manifest;
        return FTK_OK;
    }
    status = fti_fail(err, FTK_E_PROVIDER_MANIFEST,
                      "'%s': library: found '%s', wanted '%s', the file that the configuration "
                      "allows",
                      manifest->path, manifest->library, slash + 1);
    fti_manifest_free(manifest);
    return status;
}

/* An allowed provider as its manifest describes it. */
typedef struct candidate {
    const fti_allow *allow;
    fti_manifest *manifest; /* NULL if it was refused: see error */
    ftk_status status;
    bool claims;
    ftk_error error;
} candidate;

typedef struct question {
    const struct ftk_config *config;
    ftk_str architecture;
    ftk_str container;
    candidate *candidates; /* [config->allow_count] */
    ftk_error *err;
} question;

static bool claims(const question *q, const fti_manifest *m) {
    return fti_list_has(m->architectures, q->architecture) &&
           fti_list_has(m->containers, q->container);
}

static ftk_status refuse_equal_names(const question *q) {
    const struct ftk_config *c = q->config;
    for (size_t i = 0; i < c->allow_count; i++)
        for (size_t j = i + 1; j < c->allow_count; j++)
            if (strcmp(c->allow[i].name, c->allow[j].name) == 0)
                return fti_fail(q->err, FTK_E_PROVIDER_DUPLICATE,
                                "%s:%u: providers.allow: found '%s' a second time ('%s' and '%s'), "
                                "wanted each name once; remove one entry",
                                c->origin, c->allow[j].line, c->allow[j].name, c->allow[i].path,
                                c->allow[j].path);
    return FTK_OK;
}

/* Reads every allowed manifest. One that is refused does not stop the others. */
static ftk_status read_candidates(question *q) {
    for (size_t i = 0; i < q->config->allow_count; i++) {
        candidate *c = &q->candidates[i];
        c->allow = &q->config->allow[i];
        c->status = manifest_of(c->allow, &c->manifest, &c->error);
        if (c->status == FTK_E_NO_MEMORY)
            return fti_fail(q->err, c->status, "%s", c->error.message);
        c->claims = c->manifest && claims(q, c->manifest);
    }
    return FTK_OK;
}

static const fti_select *find_select(const question *q) {
    for (size_t i = 0; i < q->config->select_count; i++) {
        const char *claim = q->config->select[i].claim;
        const char *slash = strrchr(claim, '/');
        if (slash && fti_str_is(q->container, slash + 1) &&
            fti_str_eq(q->architecture, (ftk_str){claim, (uint64_t)(slash - claim)}))
            return &q->config->select[i];
    }
    return NULL;
}

static ftk_status choose_selected(const question *q, const fti_select *select, candidate **out) {
    for (size_t i = 0; i < q->config->allow_count; i++) {
        candidate *c = &q->candidates[i];
        if (strcmp(c->allow->name, select->name) != 0) continue;
        if (c->claims) {
            *out = c;
            return FTK_OK;
        }
        if (c->status != FTK_OK) return blame(q->config, c->allow, c->status, &c->error, q->err);
    }
    return fti_fail(
        q->err, FTK_E_PROVIDER_NONE,
        "%s:%u: providers.select: found '%s' for '%s', wanted an allowed provider whose "
        "manifest claims that pair; correct or remove the line",
        q->config->origin, select->line, select->name, select->claim);
}

static ftk_status choose(const question *q, candidate **out) {
    candidate *first = NULL;
    const fti_select *select = find_select(q);
    if (select) return choose_selected(q, select, out);
    for (size_t i = 0; i < q->config->allow_count; i++) {
        candidate *c = &q->candidates[i];
        if (!c->claims) continue;
        if (first)
            return fti_fail(q->err, FTK_E_PROVIDER_DUPLICATE,
                            "%s: found two allowed providers for %.*s/%.*s, '%s' ('%s') and '%s' "
                            "('%s'), wanted one; choose with the line: providers.select: "
                            "{\"%.*s/%.*s\": %s}",
                            q->config->origin, FTI_STR_ARGS(q->architecture),
                            FTI_STR_ARGS(q->container), first->allow->name, first->allow->path,
                            c->allow->name, c->allow->path, FTI_STR_ARGS(q->architecture),
                            FTI_STR_ARGS(q->container), first->allow->name);
        first = c;
    }
    *out = first;
    return FTK_OK;
}

/* ---- why nothing matched ---- */

static const fti_allow *allow_named(const struct ftk_config *config, const char *name) {
    for (size_t i = 0; i < config->allow_count; i++)
        if (strcmp(config->allow[i].name, name) == 0) return &config->allow[i];
    return NULL;
}

static ftk_status not_allowed(const question *q, const fti_manifest *m) {
    int folder = folder_size(m->path);
    const fti_allow *other = allow_named(q->config, m->name);
    if (other)
        return fti_fail(q->err, FTK_E_PROVIDER_NOT_ALLOWED,
                        "%s:%u: providers.allow: found '%s' allowed as '%s', wanted '%.*s/%s', "
                        "which claims %.*s/%.*s; change the path of that entry to it",
                        q->config->origin, other->line, m->name, other->path, folder, m->path,
                        m->library, FTI_STR_ARGS(q->architecture), FTI_STR_ARGS(q->container));
    return fti_fail(
        q->err, FTK_E_PROVIDER_NOT_ALLOWED,
        "%s: found provider '%s' for %.*s/%.*s, but not in the list of allowed ones; "
        "run: freetoken providers allow '%.*s' (--config FILE if it is not your own), or add under "
        "providers.allow: - {name: %s, path: \"%.*s/%s\"}",
        q->config->origin, m->name, FTI_STR_ARGS(q->architecture), FTI_STR_ARGS(q->container),
        folder, m->path, m->name, folder, m->path, m->library);
}

static void list_known(const question *q, const fti_found_provider *found, size_t count,
                       fti_text *list) {
    for (size_t i = 0; i < q->config->allow_count; i++) {
        const fti_manifest *m = q->candidates[i].manifest;
        if (m)
            fti_text_printf(list, "%s%s: %s (%s)", list->size ? ", " : "", m->name,
                            m->architectures, m->containers);
    }
    for (size_t i = 0; i < count; i++) {
        const fti_manifest *m = found[i].manifest;
        if (m && !found[i].allow)
            fti_text_printf(list, "%s%s: %s (%s, not allowed)", list->size ? ", " : "", m->name,
                            m->architectures, m->containers);
    }
    for (size_t i = 0; i < count; i++)
        if (!found[i].manifest && found[i].error.status != FTK_E_NOT_FOUND)
            fti_text_printf(list, "%srefused: %s", list->size ? ", " : "", found[i].error.message);
}

static ftk_status none_claims(const question *q, const fti_found_provider *found, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (found[i].manifest && !found[i].allow && claims(q, found[i].manifest))
            return not_allowed(q, found[i].manifest);
    fti_text known = {0};
    list_known(q, found, count, &known);
    ftk_status status = fti_fail(
        q->err, FTK_E_PROVIDER_NONE,
        "%s: found no provider for architecture '%.*s' in container '%.*s', wanted one "
        "under providers.allow; known providers: %s; use a file of an architecture that one of "
        "them "
        "claims, or install a provider for this one and run: freetoken providers allow FOLDER",
        q->config->origin, FTI_STR_ARGS(q->architecture), FTI_STR_ARGS(q->container),
        known.data ? known.data : "none");
    fti_text_free(&known);
    return status;
}

static ftk_status explain_none(const question *q) {
    for (size_t i = 0; i < q->config->allow_count; i++)
        if (!q->candidates[i].manifest)
            return blame(q->config, q->candidates[i].allow, q->candidates[i].status,
                         &q->candidates[i].error, q->err);
    fti_found_provider *found;
    size_t count;
    FTI_TRY(fti_provider_discover(q->config, &found, &count, q->err));
    ftk_status status = none_claims(q, found, count);
    fti_found_providers_free(found, count);
    return status;
}

static ftk_status answer(question *q, const fti_provider **out) {
    candidate *chosen = NULL;
    FTI_TRY(refuse_equal_names(q));
    FTI_TRY(read_candidates(q));
    FTI_TRY(choose(q, &chosen));
    if (!chosen) return explain_none(q);
    ftk_error inner = FTK_ERROR_INIT;
    ftk_status status = load(chosen->allow, &chosen->manifest, out, &inner);
    if (status == FTK_OK) return FTK_OK;
    return blame(q->config, chosen->allow, status, &inner, q->err);
}

ftk_status fti_provider_resolve(const struct ftk_config *config, ftk_str architecture,
                                ftk_str container, const fti_provider **out, ftk_error *err) {
    FTI_TRY(refuse_secure(err));
    question q = {config, architecture, container, NULL, err};
    q.candidates = fti_calloc(config->allow_count, sizeof *q.candidates);
    if (!q.candidates)
        return fti_no_memory(err, config->allow_count * sizeof *q.candidates, "provider manifests");
    ftk_status status = answer(&q, out);
    for (size_t i = 0; i < config->allow_count; i++) fti_manifest_free(q.candidates[i].manifest);
    fti_free(q.candidates);
    return status;
}

static ftk_status check_entry(const fti_allow *allow, fti_manifest **manifest, ftk_error *err) {
    uint32_t effective;
    checked_file file = {.fd = -1};
    FTI_TRY(refuse_secure(err));
    ftk_status status = manifest_of(allow, manifest, err);
    if (!*manifest) return status;
    FTI_TRY(check_versions(*manifest, &effective, err));
    FTI_TRY(check_file(allow, *manifest, &file, err));
    close(file.fd);
    return FTK_OK;
}

ftk_status fti_provider_check(const struct ftk_config *config, const fti_allow *allow,
                              fti_manifest **manifest, ftk_error *err) {
    fti_manifest *found = NULL;
    ftk_error inner = FTK_ERROR_INIT;
    ftk_status status = check_entry(allow, &found, &inner);
    if (manifest)
        *manifest = found;
    else
        fti_manifest_free(found);
    return status == FTK_OK ? FTK_OK : blame(config, allow, status, &inner, err);
}

/* ---- search folders ---- */

typedef struct found_list {
    const struct ftk_config *config;
    fti_found_provider *items;
    size_t count;
    ftk_error *err;
} found_list;

static fti_found_provider *append_found(found_list *list, const char *path) {
    fti_found_provider *items = fti_realloc(list->items, list->count + 1, sizeof *items);
    if (!items) return NULL;
    list->items = items;
    fti_found_provider *item = &items[list->count];
    memset(item, 0, sizeof *item);
    item->error.struct_size = (uint32_t)sizeof item->error;
    item->manifest_path = fti_strndup(path, strlen(path));
    if (!item->manifest_path) return NULL;
    list->count++;
    return item;
}

/* The entry that allows what the manifest in `folder` describes. */
static const fti_allow *allow_for(const struct ftk_config *config, const char *folder,
                                  const char *name, const fti_manifest *manifest) {
    size_t n = strlen(folder);
    for (size_t i = 0; i < config->allow_count; i++) {
        const fti_allow *a = &config->allow[i];
        const char *file = strrchr(a->path, '/');
        if (strcmp(a->name, name) != 0 || !file || (size_t)(file - a->path) != n ||
            memcmp(a->path, folder, n) != 0)
            continue;
        if (!manifest || strcmp(file + 1, manifest->library) == 0) return a;
    }
    return NULL;
}

static ftk_status read_found(found_list *list, const char *folder, const char *name) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s" SUFFIX, folder, name);
    if (n < 0 || (size_t)n >= sizeof path) return FTK_OK;
    struct stat st;
    if (lstat(path, &st) != 0) return FTK_OK;
    fti_found_provider *item = append_found(list, path);
    if (!item) return fti_no_memory(list->err, sizeof *item, "found providers");
    ftk_status status = fti_manifest_read(path, &item->manifest, &item->error);
    if (status == FTK_E_NO_MEMORY) return fti_fail(list->err, status, "%s", item->error.message);
    item->allow = allow_for(list->config, folder, name, item->manifest);
    return FTK_OK;
}

static ftk_status report_folder(found_list *list, const char *folder, int error) {
    fti_found_provider *item = append_found(list, folder);
    if (!item) return fti_no_memory(list->err, sizeof *item, "found providers");
    fti_fail(&item->error, error == ENOENT ? FTK_E_NOT_FOUND : FTK_E_PROVIDER_PATH,
             "cannot read the folder '%s' of providers.search: %s", folder, strerrordesc_np(error));
    return FTK_OK;
}

static int not_hidden(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static ftk_status search_folder(found_list *list, const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, not_hidden, alphasort);
    if (count < 0) return report_folder(list, folder, errno);
    ftk_status status = FTK_OK;
    for (int i = 0; i < count; i++) {
        char sub[PATH_MAX];
        int n = snprintf(sub, sizeof sub, "%s/%s", folder, entries[i]->d_name);
        if (status == FTK_OK && n > 0 && (size_t)n < sizeof sub)
            status = read_found(list, sub, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return status;
}

ftk_status fti_provider_discover(const struct ftk_config *config, fti_found_provider **out,
                                 size_t *count, ftk_error *err) {
    found_list list = {config, NULL, 0, err};
    ftk_status status = FTK_OK;
    for (size_t i = 0; status == FTK_OK && i < config->search_count; i++)
        status = search_folder(&list, config->search[i]);
    if (status != FTK_OK) {
        fti_found_providers_free(list.items, list.count);
        return status;
    }
    *out = list.items;
    *count = list.count;
    return FTK_OK;
}

void fti_found_providers_free(fti_found_provider *found, size_t count) {
    for (size_t i = 0; i < count; i++) {
        fti_manifest_free(found[i].manifest);
        fti_free(found[i].manifest_path);
    }
    fti_free(found);
}
