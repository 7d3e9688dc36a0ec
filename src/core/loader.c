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
#include "core/contract.h"
#include "core/elf_inspect.h"
#include "core/loading.h"

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

/* Kept descriptors start here, away from the low numbers that applications
 * close or reuse by hand. Where the limit on open files is lower, the floor is
 * halved until a number is free. */
#define DESCRIPTOR_FLOOR 512
#define DESCRIPTOR_TRIES 64 /* numbers whose names the dynamic loader may know already */

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U /* Linux 6.3: needed where vm.memfd_noexec is 1 */
#endif

/* ---- registry ---- */

/* One object that dlopen has returned, usable (status FTK_OK) or not: code of
 * either kind stays in the process, so neither is loaded again. Where the same object is
 * resolved from another file or with another manifest, it has a record for each, so that
 * every engine reports what its own configuration led to. */
typedef struct record {
    struct record *next;
    fti_provider provider;
    ftk_provider table;
    ftk_provider_entry linked; /* of a provider that is part of the program, or NULL */
    ftk_status status;
    ftk_error error;
} record;

/* A part of this library that is loaded only where it is wanted. */
typedef struct module {
    struct module *next;
    uint64_t device;
    uint64_t inode;
    void *entry;
} module;

static struct {
    pthread_mutex_t lock;
    record *first;
    module *modules;
    atomic_int pid;               /* of the process that loads, 0 before the first load */
    _Atomic(atomic_uchar *) mark; /* see own_mark */
    atomic_uchar generation;      /* of the process that loads, which a fork inherits */
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER, .generation = 1};

/* A byte that is the generation in the process that asks first. The kernel gives a fork an empty
 * page in its place, so that one tells itself apart even where it has its parent's number: the
 * first process of another PID namespace. NULL where the kernel (before Linux 4.14) cannot. */
static atomic_uchar *own_mark(void) {
    atomic_uchar *known = atomic_load(&registry.mark);
    if (known) return known;
    const size_t size = (size_t)sysconf(_SC_PAGESIZE);
    atomic_uchar *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                              0);
    if (page == MAP_FAILED) return NULL;
    if (madvise(page, size, MADV_WIPEONFORK) != 0) {
        munmap(page, size);
        return NULL;
    }
    atomic_store(page, atomic_load(&registry.generation));
    if (atomic_compare_exchange_strong(&registry.mark, &known, page)) return page;
    munmap(page, size);
    return known;
}

unsigned fti_process_mark(void) {
    atomic_uchar *mark = own_mark();
    if (!mark) return atomic_load(&registry.generation);
    if (atomic_load(&registry.pid) != 0) return atomic_load(mark);
    /* A fork of a process that has loaded nothing may load like any other. The first of its threads
     * to come here chooses its generation, never 0, which is what a fork finds. */
    unsigned char found = 0;
    unsigned char last = atomic_load(&registry.generation);
    atomic_compare_exchange_strong(mark, &found, last == UCHAR_MAX ? 1 : (unsigned char)(last + 1));
    atomic_store(&registry.generation, atomic_load(mark));
    return atomic_load(mark);
}

/* A child of fork without exec has the parent's objects without the threads
 * that serve them, and perhaps its locked mutex. */
static ftk_status check_process(ftk_error *err) {
    int self = (int)getpid();
    int owner = 0;
    bool marked = fti_process_mark() == atomic_load(&registry.generation);
    bool same = atomic_compare_exchange_strong(&registry.pid, &owner, self) || owner == self;
    if (same && marked) return FTK_OK;
    return fti_fail(
        err, FTK_E_PROVIDER_LOAD,
        "no provider or module is loaded after a bare fork: found process %d, %s %d, wanted the "
        "one that loaded providers first; start worker processes with exec",
        self, same ? "forked in another PID namespace from" : "forked from", owner);
}

ftk_status fti_refuse_secure(ftk_error *err) {
    if (getauxval(AT_SECURE) == 0) return FTK_OK;
    return fti_fail(
        err, FTK_E_PROVIDER_SECURE_EXEC,
        "no provider or module is loaded: found a process under secure execution (setuid, setgid "
        "or file capabilities), wanted an ordinary one; no configuration changes this");
}

/* ---- stages before any code of the provider runs ---- */

static ftk_status refuse_size(const char *path, ftk_error *err) {
    return fti_fail(err, FTK_E_PROVIDER_ELF,
                    "'%s' refused: found more than 4 GiB, wanted a shared object of less", path);
}

static ftk_status copy_bytes(const char *path, int from, int to, ftk_error *err) {
    for (off_t total = 0; total <= FTI_MAX_LIBRARY_BYTES;) {
        ssize_t n = sendfile(to, from, NULL, (size_t)1 << 24);
        if (n == 0) return FTK_OK;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return fti_fail(err, FTK_E_PROVIDER_LOAD, "cannot copy '%s' to memory: %s", path,
                            strerrordesc_np(errno));
        total += n;
    }
    return refuse_size(path, err);
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

/* Replaces `file->fd` by the sealed copy, whose digest is then the digest of
 * what will be loaded. */
static ftk_status pin(const fti_allow *allow, fti_held_file *file, ftk_error *err) {
    int copy = -1;
    FTI_TRY(sealed_copy(allow->path, file->fd, &copy, err));
    close(file->fd);
    file->fd = copy;
    if (fstat(copy, &file->judged) != 0)
        return fti_fail(err, FTK_E_PROVIDER_LOAD, "cannot examine the copy of '%s': %s",
                        allow->path, strerrordesc_np(errno));
    FTI_TRY(fti_sha256_fd(copy, file->sha256, err));
    if (strcmp(file->sha256, allow->sha256) == 0) return FTK_OK;
    return fti_fail(
        err, FTK_E_PROVIDER_DIGEST,
        "'%s' refused: found sha256 %s, wanted %s; if the new file is trusted, run: "
        "freetoken providers allow --update '%.*s' (--config FILE if it is not your own)",
        allow->path, file->sha256, allow->sha256, fti_folder_size(allow->path), allow->path);
}

static ftk_status check_note(const fti_allow *allow, const fti_manifest *manifest, int fd,
                             ftk_error *err) {
    char *note = NULL;
    fti_identity found;
    FTI_TRY(fti_elf_inspect(fd, allow->path, &note, err));
    ftk_status status = fti_identity_of_note(allow->path, note, &found, err);
    if (status == FTK_OK)
        status = fti_identity_compare(allow->path, "ELF note", &found, manifest, err);
    fti_free(note);
    return status;
}

/* Its size and header come first: what is no library is not read to its end. */
static ftk_status check_bytes(const fti_allow *allow, const fti_manifest *manifest,
                              fti_held_file *file, ftk_error *err) {
    if (fstat(file->fd, &file->st) != 0)
        return fti_fail(err, FTK_E_PROVIDER_PATH, "cannot examine '%s': %s", allow->path,
                        strerrordesc_np(errno));
    file->judged = file->st;
    FTI_TRY(fti_elf_look(file->fd, allow->path, err));
    if (file->st.st_size > FTI_MAX_LIBRARY_BYTES) return refuse_size(allow->path, err);
    FTI_TRY(allow->sha256 ? pin(allow, file, err) : fti_sha256_fd(file->fd, file->sha256, err));
    return check_note(allow, manifest, file->fd, err);
}

static ftk_status check_file(const fti_allow *allow, const fti_manifest *manifest,
                             fti_held_file *file, ftk_error *err) {
    FTI_TRY(fti_trusted_open(allow->path, FTK_E_PROVIDER_PATH, FTK_E_PROVIDER_PERMISSION, &file->fd,
                             err));
    file->of = allow;
    ftk_status status = check_bytes(allow, manifest, file, err);
    if (status != FTK_OK) fti_held_file_release(file);
    return status;
}

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether the number still stands for what was judged: somebody may have closed it, and opened
 * another file under it. */
static bool is_still_held(int fd, const struct stat *judged) {
    struct stat now;
    return fstat(fd, &now) == 0 && same_file(&now, judged);
}

void fti_held_file_release(fti_held_file *file) {
    if (file->fd >= 0 && is_still_held(file->fd, &file->judged)) close(file->fd);
    file->fd = -1;
    file->of = NULL;
}

/* A pinned file is held as a copy that nobody can change. Else its times tell of a change: but
 * for one through a mapping that was written before, or within the same tick of the clock. */
static bool is_as_judged(const fti_held_file *file) {
    struct stat now;
    if (!is_still_held(file->fd, &file->judged)) return false;
    return file->of->sha256 || (fstat(file->fd, &now) == 0 && now.st_size == file->st.st_size &&
                                now.st_mtim.tv_sec == file->st.st_mtim.tv_sec &&
                                now.st_mtim.tv_nsec == file->st.st_mtim.tv_nsec &&
                                now.st_ctim.tv_sec == file->st.st_ctim.tv_sec &&
                                now.st_ctim.tv_nsec == file->st.st_ctim.tv_nsec);
}

/* The file that an earlier question judged and held, so that it is read and hashed once; or it
 * is opened and judged now. */
static ftk_status take_file(const fti_provider_query *query, const fti_allow *allow,
                            const fti_manifest *manifest, fti_held_file *file, ftk_error *err) {
    fti_held_file *held = query->held;
    if (!held || held->of != allow || !is_as_judged(held))
        return check_file(allow, manifest, file, err);
    *file = *held;
    held->fd = -1;
    held->of = NULL;
    ftk_status status = check_note(allow, manifest, file->fd, err);
    if (status != FTK_OK) fti_held_file_release(file);
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

static ftk_status check_link(const char *path, const char *link, int fd, const struct stat *judged,
                             ftk_error *err) {
    struct stat via_link;
    if (!is_still_held(fd, judged))
        return fti_fail(err, FTK_E_PROVIDER_LOAD,
                        "'%s' refused: found its descriptor closed since it was checked, wanted it "
                        "left alone until the file is loaded; close no descriptors of others",
                        path);
    if (stat(link, &via_link) == 0 && same_file(&via_link, judged)) return FTK_OK;
    return fti_fail(
        err, FTK_E_PROVIDER_LOAD,
        "no provider or module is loaded: found no usable '%s', wanted /proc of this process, "
        "through which a checked file is loaded; mount /proc",
        link);
}

/* The dynamic loader knows objects by name: if somebody has closed our descriptor of another
 * one, its number, and so its name, can come again, and the other object would be the answer.
 * So a name is taken that it does not know. */
static ftk_status choose_link(const char *path, int *fd, const struct stat *judged, char *link,
                              size_t size, ftk_error *err) {
    for (int tries = 0; tries < DESCRIPTOR_TRIES; tries++) {
        snprintf(link, size, "/proc/self/fd/%d", *fd);
        FTI_TRY(check_link(path, link, *fd, judged, err));
        void *known = dlopen(link, RTLD_NOW | RTLD_NOLOAD);
        if (!known) return FTK_OK;
        dlclose(known); /* one holder less; the object stays */
        int next = fcntl(*fd, F_DUPFD_CLOEXEC, *fd + 1);
        if (next < 0) break;
        close(*fd);
        *fd = next;
    }
    return fti_fail(err, FTK_E_PROVIDER_LOAD,
                    "'%s' refused: found an object in this process that the dynamic loader takes "
                    "for it, wanted a file that nobody has loaded; let only the library load it",
                    path);
}

/* `failed` is the status where the dynamic loader itself refuses. */
static ftk_status call_loader(const char *path, int *fd, const struct stat *judged,
                              ftk_status failed, void **handle, ftk_error *err) {
    char link[48];
    FTI_TRY(choose_link(path, fd, judged, link, sizeof link, err));
    *handle = dlopen(link, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*handle) return FTK_OK;
    const char *text = dlerror();
    return fti_fail(err, failed, "the dynamic loader refused '%s': %s", path,
                    text ? text : "no reason given");
}

static ftk_status bad_entry(const char *path, const char *name, ftk_error *err, const char *found,
                            const char *detail, const char *wanted) {
    return fti_fail(err, FTK_E_PROVIDER_ENTRY, "'%s' refused: found %s %s%s, wanted %s", path, name,
                    found, detail, wanted);
}

/* Where the object that holds a function lies; 0 if no object does. */
static uint64_t base_of(ftk_provider_entry entry) {
    Dl_info info;
    void *address;
    memcpy(&address, &entry, sizeof address);
    return dladdr(address, &info) ? (uint64_t)(uintptr_t)info.dli_fbase : 0;
}

/* dlsym also searches the libraries that an object needs, and takes data for functions. */
static ftk_status find_function(const char *path, void *handle, const char *name, void **out,
                                ftk_error *err) {
    void *address = dlsym(handle, name);
    if (!address) {
        const char *text = dlerror();
        return bad_entry(path, name, err, "missing: ", text ? text : "its value is NULL",
                         "it exported");
    }
    Dl_info info;
    struct link_map *ours = NULL;
    struct link_map *owner = NULL;
    const ElfW(Sym) *symbol = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &ours) != 0 ||
        dladdr1(address, &info, (void **)&owner, RTLD_DL_LINKMAP) == 0 || owner != ours)
        return bad_entry(path, name, err,
                         "in a library that it needs: ", owner ? owner->l_name : "?",
                         "it in the file itself");
    if (dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 || !symbol ||
        ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
        return bad_entry(path, name, err, "to be", " something else", "a function");
    *out = address;
    return FTK_OK;
}

/* ---- records ---- */

static ftk_status describe(record *r, void *handle, ftk_error *err) {
    const char *path = r->provider.path;
    const ftk_provider *table;
    fti_identity identity;
    ftk_provider_entry entry;
    void *address;
    FTI_TRY(find_function(path, handle, FTK_PROVIDER_ENTRY, &address, err));
    memcpy(&entry, &address, sizeof entry);
    r->provider.load_address = base_of(entry);
    FTI_TRY(fti_contract_call(path, entry, &table, err));
    FTI_TRY(fti_contract_identity(path, table, &identity, err));
    FTI_TRY(fti_identity_compare(path, "table", &identity, r->provider.manifest, err));
    FTI_TRY(fti_contract_copy(path, table, r->provider.manifest, &r->table, err));
    r->provider.table = &r->table;
    return FTK_OK;
}

static void record_free(record *r) {
    if (!r) return;
    fti_free(r->provider.path);
    fti_free(r->provider.linked_file);
    fti_free(r);
}

/* What is known of a file before it is loaded; manifest and path are the caller's. */
static fti_provider facts_of(const fti_allow *allow, fti_manifest *manifest,
                             const fti_held_file *file, uint32_t effective) {
    fti_provider p = {.manifest = manifest,
                      .path = allow->path,
                      .pinned = allow->sha256 != NULL,
                      .device = (uint64_t)file->st.st_dev,
                      .inode = (uint64_t)file->st.st_ino,
                      .bytes = (uint64_t)file->st.st_size,
                      .modified = file->st.st_mtim,
                      .effective_level = effective};
    memcpy(p.sha256, file->sha256, sizeof p.sha256);
    return p;
}

static record *record_new(const fti_provider *facts, ftk_error *err) {
    record *r = fti_calloc(1, sizeof *r);
    if (!r) {
        fti_no_memory(err, sizeof *r, "a provider's record");
        return NULL;
    }
    r->provider = *facts;
    r->provider.manifest = NULL;
    r->provider.path = fti_strndup(facts->path, strlen(facts->path));
    if (r->provider.path) return r;
    fti_no_memory(err, strlen(facts->path), "a provider's record");
    record_free(r);
    return NULL;
}

static bool same_object(const fti_provider *p, const fti_provider *facts) {
    if (p->linked || p->pinned != facts->pinned ||
        strcmp(p->manifest->name, facts->manifest->name) != 0)
        return false;
    return p->pinned ? strcmp(p->sha256, facts->sha256) == 0
                     : p->device == facts->device && p->inode == facts->inode;
}

static const record *find_object(const fti_provider *facts) {
    for (const record *r = registry.first; r; r = r->next)
        if (same_object(&r->provider, facts)) return r;
    return NULL;
}

static bool same_time(const fti_provider *a, const fti_provider *b) {
    return a->modified.tv_sec == b->modified.tv_sec && a->modified.tv_nsec == b->modified.tv_nsec;
}

/* What the table says, the manifests of one object have in common. */
static bool same_manifest(const fti_manifest *a, const fti_manifest *b) {
    return strcmp(a->path, b->path) == 0 && strcmp(a->distribution, b->distribution) == 0 &&
           strcmp(a->distribution_version, b->distribution_version) == 0;
}

/* Of one object: whether everything that is reported of it is the same. */
static bool same_facts(const fti_provider *a, const fti_provider *b) {
    return strcmp(a->path, b->path) == 0 && a->device == b->device && a->inode == b->inode &&
           same_time(a, b) && same_manifest(a->manifest, b->manifest);
}

/* Refuses what was loaded without a pin and since written in place, with the time set back or
 * not: the code in the process is that of the first load. */
static ftk_status check_unchanged(const fti_provider *p, const fti_provider *facts,
                                  ftk_error *err) {
    bool unchanged = same_time(p, facts) && strcmp(p->sha256, facts->sha256) == 0;
    if (!p->pinned && !unchanged)
        return fti_fail(err, FTK_E_PROVIDER_LOAD,
                        "'%s' refused: found it written in place since this process loaded it, "
                        "wanted the same content; start the program again",
                        facts->path);
    return FTK_OK;
}

static ftk_status answer_of(const record *r, const fti_provider **out, ftk_error *err) {
    if (r->status != FTK_OK) return fti_fail(err, r->status, "%-s", r->error.message);
    *out = &r->provider;
    return FTK_OK;
}

static const record *keep_record(record *r, fti_manifest **manifest) {
    r->provider.manifest = *manifest;
    *manifest = NULL;
    r->next = registry.first;
    registry.first = r;
    return r;
}

/* The record of `object` that reports `facts`, made where there is none; takes the manifest
 * over if it is made. */
static ftk_status reuse(const record *object, const fti_provider *facts, fti_manifest **manifest,
                        const fti_provider **out, ftk_error *err) {
    const fti_provider *p = &object->provider;
    FTI_TRY(check_unchanged(p, facts, err));
    for (const record *r = object; r; r = r->next)
        if (same_object(&r->provider, facts) && same_facts(&r->provider, facts))
            return answer_of(r, out, err);
    record *r = record_new(facts, err);
    if (!r) return FTK_E_NO_MEMORY;
    r->provider.table = p->table;
    r->provider.load_address = p->load_address;
    r->status = object->status;
    r->error = object->error;
    return answer_of(keep_record(r, manifest), out, err);
}

/* Takes over manifest and descriptor, setting them to NULL and -1, once the
 * object is in the process. */
static ftk_status load_new(const fti_provider *facts, fti_manifest **manifest, fti_held_file *file,
                           const fti_provider **out, ftk_error *err) {
    FTI_TRY(keep_descriptor(facts->path, &file->fd, err));
    record *r = record_new(facts, err);
    if (!r) return FTK_E_NO_MEMORY;
    void *handle;
    ftk_status status = call_loader(facts->path, &file->fd, &file->judged, FTK_E_PROVIDER_LOAD,
                                    &handle, err);
    if (status != FTK_OK) {
        record_free(r);
        return status;
    }
    file->fd = -1;
    keep_record(r, manifest);
    r->status = describe(r, handle, &r->error);
    return answer_of(r, out, err);
}

static ftk_status load_checked(const fti_provider *facts, fti_manifest **manifest,
                               fti_held_file *file, const fti_provider **out, ftk_error *err) {
    FTI_TRY(check_process(err));
    pthread_mutex_lock(&registry.lock);
    const record *known = find_object(facts);
    ftk_status status = known ? reuse(known, facts, manifest, out, err)
                              : load_new(facts, manifest, file, out, err);
    pthread_mutex_unlock(&registry.lock);
    return status;
}

/* Everything up to the load; `out` NULL leaves that out, and the file is held. */
static ftk_status accept_file(const fti_provider_query *query, const fti_allow *allow,
                              fti_manifest **manifest, fti_held_file *file, uint32_t effective,
                              const fti_provider **out, ftk_error *err) {
    const fti_provider facts = facts_of(allow, *manifest, file, effective);
    if (query->record)
        FTI_TRY(
            fti_record_check(query->record, &facts, query->architecture, query->container, err));
    if (out) return load_checked(&facts, manifest, file, out, err);
    if (query->held) {
        fti_held_file_release(query->held);
        *query->held = *file;
        file->fd = -1;
    }
    return FTK_OK;
}

ftk_status fti_load_allowed(const fti_provider_query *query, const fti_allow *allow,
                            fti_manifest **manifest, const fti_provider **out, ftk_error *err) {
    uint32_t effective;
    fti_held_file file = FTI_HELD_FILE_INIT;
    FTI_TRY(fti_refuse_secure(err));
    FTI_TRY(fti_contract_versions(*manifest, &effective, err));
    FTI_TRY(fti_contract_hardware(*manifest, query, err));
    FTI_TRY(take_file(query, allow, *manifest, &file, err));
    ftk_status status = accept_file(query, allow, manifest, &file, effective, out, err);
    fti_held_file_release(&file);
    return status;
}

ftk_status fti_check_allowed(const fti_allow *allow, const fti_manifest *manifest, char sha256[65],
                             ftk_error *err) {
    uint32_t effective;
    fti_held_file file = FTI_HELD_FILE_INIT;
    FTI_TRY(fti_contract_versions(manifest, &effective, err));
    FTI_TRY(check_file(allow, manifest, &file, err));
    if (sha256) memcpy(sha256, file.sha256, sizeof file.sha256);
    fti_held_file_release(&file);
    return FTK_OK;
}

/* ---- providers that are part of the program ---- */

static ftk_status link_new(ftk_provider_entry entry, record *r, ftk_error *err) {
    static const char path[] = FTI_LINKED_PATH;
    const ftk_provider *table;
    fti_identity identity;
    fti_provider *p = &r->provider;
    FTI_TRY(fti_contract_call(path, entry, &table, err));
    FTI_TRY(fti_contract_identity(path, table, &identity, err));
    FTI_TRY(fti_identity_manifest(path, &identity, &p->manifest, err));
    FTI_TRY(fti_contract_versions(p->manifest, &p->effective_level, err));
    FTI_TRY(fti_contract_copy(path, table, p->manifest, &r->table, err));
    p->path = fti_strndup(path, strlen(path));
    if (!p->path) return fti_no_memory(err, sizeof path, "a path");
    p->linked = true;
    p->table = &r->table;
    p->load_address = base_of(entry);
    r->linked = entry;
    return fti_digest_code(table, &p->linked_file, p->sha256, &p->no_digest, err);
}

static ftk_status find_or_link(ftk_provider_entry entry, const fti_provider **out, ftk_error *err) {
    for (const record *known = registry.first; known; known = known->next)
        if (known->linked == entry) {
            *out = &known->provider;
            return FTK_OK;
        }
    record *r = fti_calloc(1, sizeof *r);
    if (!r) return fti_no_memory(err, sizeof *r, "a provider's record");
    ftk_status status = link_new(entry, r, err);
    if (status != FTK_OK) {
        fti_manifest_free(r->provider.manifest);
        record_free(r);
        return status;
    }
    r->next = registry.first;
    registry.first = r;
    *out = &r->provider;
    return FTK_OK;
}

ftk_status fti_provider_link(ftk_provider_entry entry, const fti_provider **out, ftk_error *err) {
    FTI_TRY(check_process(err));
    pthread_mutex_lock(&registry.lock);
    ftk_status status = find_or_link(entry, out, err);
    pthread_mutex_unlock(&registry.lock);
    return status;
}

/* ---- modules of this library ---- */

static ftk_status load_module(const char *path, const char *entry, int *fd,
                              const struct stat *judged, module *m, ftk_error *err) {
    void *handle;
    FTI_TRY(keep_descriptor(path, fd, err));
    /* What a module needs of the system belongs to its device. */
    FTI_TRY(call_loader(path, fd, judged, FTK_E_DEVICE_UNAVAILABLE, &handle, err));
    *fd = -1;
    return find_function(path, handle, entry, &m->entry, err);
}

static ftk_status find_or_load_module(const char *path, const char *entry, int *fd,
                                      const struct stat *judged, void **out, ftk_error *err) {
    for (const module *m = registry.modules; m; m = m->next)
        if (m->device == (uint64_t)judged->st_dev && m->inode == (uint64_t)judged->st_ino) {
            *out = m->entry;
            return FTK_OK;
        }
    module *m = fti_calloc(1, sizeof *m);
    if (!m) return fti_no_memory(err, sizeof *m, "a module's record");
    m->device = (uint64_t)judged->st_dev;
    m->inode = (uint64_t)judged->st_ino;
    ftk_status status = load_module(path, entry, fd, judged, m, err);
    if (status != FTK_OK) {
        fti_free(m);
        return status;
    }
    m->next = registry.modules;
    registry.modules = m;
    *out = m->entry;
    return FTK_OK;
}

static ftk_status open_module(const char *path, const char *entry, void **out, ftk_error *err) {
    int fd = -1;
    FTI_TRY(fti_refuse_secure(err));
    FTI_TRY(fti_trusted_open(path, FTK_E_PROVIDER_PATH, FTK_E_PROVIDER_PERMISSION, &fd, err));
    struct stat judged;
    ftk_status status = FTK_OK;
    if (fstat(fd, &judged) != 0)
        status = fti_fail(err, FTK_E_PROVIDER_PATH, "cannot examine '%s': %s", path,
                          strerrordesc_np(errno));
    if (status == FTK_OK) status = fti_elf_inspect_module(fd, path, entry, err);
    if (status == FTK_OK) status = check_process(err);
    if (status == FTK_OK) {
        pthread_mutex_lock(&registry.lock);
        status = find_or_load_module(path, entry, &fd, &judged, out, err);
        pthread_mutex_unlock(&registry.lock);
    }
    if (fd >= 0) close(fd);
    return status;
}

ftk_status fti_module_load(const char *path, const char *entry, void **out, ftk_error *err) {
    ftk_error inner = FTK_ERROR_INIT;
    ftk_status status = open_module(path, entry, out, &inner);
    if (status == FTK_OK) return FTK_OK;
    return fti_fail(err, status, "%s%-s", status == FTK_E_NO_MEMORY ? "" : "backend module ",
                    inner.message);
}
