/*
 * static.c: what can be judged of a provider without running any of it: what the
 * core's loader judges, by its own code, and what a good citizen keeps to beyond that.
 */
#include "check.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void fti_pc_pass_manifest(const fti_pc_target *target) {
    ftk_error error = FTK_ERROR_INIT;
    fti_manifest *manifest = NULL;
    ftk_status status = fti_manifest_read(target->manifest_path, &manifest, &error);
    fti_pc_check(status == FTK_OK, "%s", error.message);
    fti_manifest_free(manifest);
}

void fti_pc_pass_loader(const fti_pc_target *target) {
    const struct ftk_config config = {.allow = NULL};
    ftk_error error = FTK_ERROR_INIT;
    ftk_status status = fti_provider_check(&config, &target->allow, NULL, NULL, &error);
    fti_pc_check(status == FTK_OK, "%s", error.message);
}

/* ---- symbols ---- */

/* A shared object as bytes; every place in it is checked before it is read. */
typedef struct object {
    const char *bytes;
    uint64_t size;
    const Elf64_Sym *symbols;
    uint64_t symbol_count;
    const char *names;
    uint64_t name_bytes;
    const Elf64_Dyn *dynamic;
    uint64_t dynamic_count;
    bool relro;
} object;

static const void *at(const object *o, uint64_t offset, uint64_t bytes) {
    bool inside = offset <= o->size && bytes <= o->size - offset && offset % 8 == 0;
    return inside ? o->bytes + offset : NULL;
}

/* Sections, since the dynamic section does not say how many symbols there are. */
static bool read_sections(object *o, const Elf64_Ehdr *header) {
    const Elf64_Shdr *sections = at(o, header->e_shoff,
                                    (uint64_t)header->e_shnum * sizeof(Elf64_Shdr));
    if (!sections || header->e_shentsize != sizeof(Elf64_Shdr)) return false;
    for (unsigned i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *s = &sections[i];
        if (s->sh_type != SHT_DYNSYM || s->sh_link >= header->e_shnum) continue;
        const Elf64_Shdr *strings = &sections[s->sh_link];
        o->symbols = at(o, s->sh_offset, s->sh_size);
        o->symbol_count = s->sh_size / sizeof(Elf64_Sym);
        if (strings->sh_offset > o->size || strings->sh_size > o->size - strings->sh_offset)
            return false;
        o->names = o->bytes + strings->sh_offset;
        o->name_bytes = strings->sh_size;
        return o->symbols && o->name_bytes > 0 && o->names[o->name_bytes - 1] == 0;
    }
    return false;
}

static bool read_segments(object *o, const Elf64_Ehdr *header) {
    const Elf64_Phdr *segments = at(o, header->e_phoff,
                                    (uint64_t)header->e_phnum * sizeof(Elf64_Phdr));
    if (!segments) return false;
    for (unsigned i = 0; i < header->e_phnum; i++) {
        if (segments[i].p_type == PT_GNU_RELRO) o->relro = true;
        if (segments[i].p_type != PT_DYNAMIC) continue;
        o->dynamic = at(o, segments[i].p_offset, segments[i].p_filesz);
        o->dynamic_count = segments[i].p_filesz / sizeof(Elf64_Dyn);
    }
    return o->dynamic != NULL;
}

static bool read_object(object *o) {
    const Elf64_Ehdr *header = at(o, 0, sizeof *header);
    return header && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
           header->e_ident[EI_CLASS] == ELFCLASS64 && read_segments(o, header) &&
           read_sections(o, header);
}

static bool in_list(const char *name, const char *const *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, list[i]) == 0) return true;
    return false;
}

/* What the linker, or a sanitizer, adds to every object. */
static bool of_the_tools(const char *name) {
    static const char *const names[] = {"_init", "_fini", "__bss_start", "_edata", "_end"};
    static const char *const prefixes[] = {"__asan", "__odr_asan", "__ubsan", "__tsan", "__sancov"};
    for (size_t i = 0; i < FTI_COUNT(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return true;
    return in_list(name, names, FTI_COUNT(names));
}

/* What no provider has a use for. Much of it is also trapped at run time, but only where
 * it is reached. */
typedef struct forbidden {
    const char *deed;
    const char *names[12];
} forbidden;

static const forbidden deeds[] = {
    {"read or change the environment",
     {"getenv", "secure_getenv", "environ", "__environ", "setenv", "unsetenv", "putenv"}},
    {"print",
     {"printf", "__printf_chk", "vprintf", "puts", "putchar", "perror", "stdout", "stderr"}},
    {"end the process",
     {"exit", "_exit", "_Exit", "quick_exit", "abort", "__assert_fail", "longjmp",
      "__longjmp_chk"}},
    {"start threads", {"pthread_create", "thrd_create"}},
    {"start processes",
     {"fork", "vfork", "clone", "posix_spawn", "posix_spawnp", "execve", "execv", "execvp",
      "system", "popen"}},
    {"handle signals",
     {"signal", "sigaction", "raise", "sigprocmask", "pthread_sigmask", "sigaltstack"}},
    {"set timers", {"alarm", "setitimer", "timer_create", "timerfd_create"}},
    {"change the process",
     {"chdir", "fchdir", "umask", "setrlimit", "setlocale", "sched_setaffinity",
      "pthread_setaffinity_np", "setpriority", "nice", "prctl", "personality"}},
    {"leave something to be called later", {"__register_atfork", "on_exit", "pthread_key_create"}},
    {"go round the allocator",
     {"__libc_malloc", "__libc_calloc", "__libc_realloc", "__libc_free", "__libc_memalign", "sbrk",
      "brk"}},
    {"change the protection of memory", {"mprotect", "pkey_mprotect"}},
    {"open files or sockets",
     {"open", "open64", "openat", "openat64", "creat", "fopen", "fopen64", "socket", "connect"}},
    {"load or look up code", {"dlopen", "dlmopen", "dlsym", "dlvsym"}},
};

/* What a function is there for, NULL if a provider may need it. */
static const char *deed_of(const char *name) {
    for (size_t i = 0; i < FTI_COUNT(deeds); i++)
        for (size_t n = 0; n < FTI_COUNT(deeds[i].names) && deeds[i].names[n]; n++)
            if (strcmp(name, deeds[i].names[n]) == 0) return deeds[i].deed;
    return NULL;
}

static void check_symbol(const object *o, const Elf64_Sym *s, uint64_t *exported) {
    if (s->st_name >= o->name_bytes) return;
    const char *name = o->names + s->st_name;
    if (name[0] == 0 || of_the_tools(name)) return;
    if (s->st_shndx == SHN_UNDEF) {
        fti_pc_check(strncmp(name, "ftk_", 4) != 0 && strncmp(name, "fti_", 4) != 0,
                     "needs the symbol %s of libfreetoken: everything reaches a provider through "
                     "tables; do not link the library",
                     name);
        const char *deed = deed_of(name);
        fti_pc_check(!deed, "needs the symbol %s: a provider does not %s", name, deed ? deed : "");
        return;
    }
    if (ELF64_ST_BIND(s->st_info) == STB_LOCAL || ELF64_ST_VISIBILITY(s->st_other) == STV_HIDDEN)
        return;
    (*exported)++;
    fti_pc_check(strcmp(name, FTK_PROVIDER_ENTRY) == 0,
                 "exports the symbol %s, wanted only " FTK_PROVIDER_ENTRY
                 ": compile with -fvisibility=hidden",
                 name);
}

static bool binds_now(const object *o) {
    for (uint64_t i = 0; i < o->dynamic_count && o->dynamic[i].d_tag != DT_NULL; i++) {
        const Elf64_Dyn *d = &o->dynamic[i];
        if (d->d_tag == DT_BIND_NOW || (d->d_tag == DT_FLAGS && (d->d_un.d_val & DF_BIND_NOW)) ||
            (d->d_tag == DT_FLAGS_1 && (d->d_un.d_val & DF_1_NOW)))
            return true;
    }
    return false;
}

static void check_object(const object *o) {
    uint64_t exported = 0;
    for (uint64_t i = 0; i < o->symbol_count; i++) check_symbol(o, &o->symbols[i], &exported);
    fti_pc_check(exported > 0, "exports no symbol, wanted " FTK_PROVIDER_ENTRY);
    fti_pc_check(binds_now(o), "binds its symbols lazily: link with -Wl,-z,now");
    fti_pc_check(o->relro, "its tables stay writable after loading: link with -Wl,-z,relro");
}

void fti_pc_pass_symbols(const fti_pc_target *target) {
    struct stat st = {0};
    object o = {0};
    int fd = open(target->allow.path, O_RDONLY | O_CLOEXEC);
    void *bytes = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0)
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0) close(fd);
    if (!fti_pc_check(bytes != MAP_FAILED, "cannot read %s: %s", target->allow.path,
                      strerrordesc_np(errno)))
        return;
    o.bytes = bytes;
    o.size = (uint64_t)st.st_size;
    if (fti_pc_check(read_object(&o), "no ELF shared object with a table of dynamic symbols: do "
                                      "not remove its section headers"))
        check_object(&o);
    munmap(bytes, (size_t)st.st_size);
}
