/*
 * elf_inspect.c: see elf_inspect.h. The file is hostile until proven otherwise:
 * every offset is checked against the file before it is read, every size against
 * a limit before it is allocated. Reads use pread, not a mapping, because a file
 * that is cut while mapped kills the process.
 */
#include "core/elf_inspect.h"

#include <elf.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#define MACHINE      EM_X86_64
#define MACHINE_NAME "x86-64"
#elif defined(__aarch64__)
#define MACHINE      EM_AARCH64
#define MACHINE_NAME "AArch64"
#else
#error "libfreetoken does not know this machine's ELF number"
#endif

#define MAX_SEGMENTS 128u
#define MAX_DYNAMIC  4096u  /* entries */
#define MAX_NOTES    65536u /* bytes of one note segment */
#define MAX_NEEDED   64u    /* bytes of a library name that could be allowed */
#define MAX_CHAIN    4096u  /* symbols of one hash bucket */
#define MAX_VERSIONS 512u   /* records of a version table */
#define BLOCK        256u   /* relocations read at a time */

#define MAX_THREAD_BYTES ((uint64_t)64 << 20)

#if defined(__x86_64__)
#define RELATIVE R_X86_64_RELATIVE
#else
#define RELATIVE R_AARCH64_RELATIVE
#endif

#ifndef DT_RELR
#define DT_RELRSZ  35
#define DT_RELR    36
#define DT_RELRENT 37
#endif

typedef struct elf_file {
    int fd;
    const char *path;
    const char *entry; /* the function that it must define */
    ftk_error *err;
    uint64_t size;
    Elf64_Ehdr header;
    Elf64_Phdr *segments; /* [header.e_phnum] */
    Elf64_Dyn *dynamic;   /* [dynamic_count], without the closing DT_NULL */
    size_t dynamic_count;
    char *note;
} elf_file;

static ftk_status refuse(const elf_file *elf, const char *found, const char *wanted) {
    return fti_fail(elf->err, FTK_E_PROVIDER_ELF, "'%s' refused: found %s, wanted %s", elf->path,
                    found, wanted);
}

static ftk_status refuse_truncated(const elf_file *elf, const char *what, uint64_t offset,
                                   uint64_t size) {
    return fti_fail(elf->err, FTK_E_PROVIDER_ELF,
                    "'%s' refused: found %s of %llu bytes at offset %llu in a file of %llu bytes, "
                    "wanted all of it inside the file",
                    elf->path, what, (unsigned long long)size, (unsigned long long)offset,
                    (unsigned long long)elf->size);
}

static bool inside(uint64_t offset, uint64_t size, uint64_t limit) {
    return offset <= limit && size <= limit - offset;
}

static ftk_status read_at(const elf_file *elf, void *to, const char *what, uint64_t offset,
                          uint64_t size) {
    if (!inside(offset, size, elf->size)) return refuse_truncated(elf, what, offset, size);
    for (uint64_t done = 0; done < size;) {
        ssize_t n = pread(elf->fd, (char *)to + done, (size_t)(size - done),
                          (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return fti_fail(elf->err, FTK_E_PROVIDER_ELF, "'%s' refused: cannot read %s: %s",
                            elf->path, what, strerrordesc_np(errno));
        if (n == 0) return refuse(elf, "a file that became shorter while it was read", "no writer");
        done += (uint64_t)n;
    }
    return FTK_OK;
}

/* ---- header and program headers ---- */

static ftk_status check_machine(const elf_file *elf) {
    if (elf->header.e_machine == MACHINE) return FTK_OK;
    return fti_fail(elf->err, FTK_E_PROVIDER_ELF,
                    "'%s' refused: found code for ELF machine %u, wanted %u (" MACHINE_NAME
                    "); install the build for this machine",
                    elf->path, (unsigned)elf->header.e_machine, (unsigned)MACHINE);
}

static ftk_status read_header(elf_file *elf) {
    Elf64_Ehdr *h = &elf->header;
    if (elf->size == 0) return refuse(elf, "an empty file", "an ELF shared object");
    if (elf->size < sizeof *h)
        return refuse(elf, "a file shorter than an ELF header", "an ELF shared object");
    FTI_TRY(read_at(elf, h, "an ELF header", 0, sizeof *h));
    if (memcmp(h->e_ident, ELFMAG, SELFMAG) != 0)
        return refuse(elf, "a file that is not ELF", "an ELF shared object");
    if (h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_ident[EI_DATA] != ELFDATA2LSB)
        return refuse(elf, "another class or byte order", "64-bit little-endian ELF");
    if (h->e_ident[EI_VERSION] != EV_CURRENT || h->e_version != EV_CURRENT)
        return refuse(elf, "an unknown ELF version", "version 1");
    if (h->e_ident[EI_OSABI] != ELFOSABI_NONE && h->e_ident[EI_OSABI] != ELFOSABI_LINUX)
        return refuse(elf, "an ELF file of another operating system", "one of Linux");
    FTI_TRY(check_machine(elf));
    if (h->e_type != ET_DYN)
        return refuse(elf, "an ELF file of another type", "a shared object (ET_DYN)");
    if (h->e_phentsize != sizeof(Elf64_Phdr))
        return refuse(elf, "program headers of an odd size", "56 bytes each");
    if (h->e_phnum == 0 || h->e_phnum > MAX_SEGMENTS)
        return refuse(elf, "no program headers or more than 128", "1 to 128");
    return FTK_OK;
}

static ftk_status read_segments(elf_file *elf) {
    uint64_t bytes = elf->header.e_phnum * sizeof(Elf64_Phdr);
    elf->segments = fti_calloc(elf->header.e_phnum, sizeof(Elf64_Phdr));
    if (!elf->segments) return fti_no_memory(elf->err, bytes, "program headers");
    return read_at(elf, elf->segments, "program headers", elf->header.e_phoff, bytes);
}

static ftk_status check_load_segment(const elf_file *elf, const Elf64_Phdr *p, uint64_t page) {
    if (!inside(p->p_offset, p->p_filesz, elf->size))
        return refuse_truncated(elf, "a segment", p->p_offset, p->p_filesz);
    uint64_t end;
    if (p->p_filesz > p->p_memsz || !fti_add_u64(p->p_vaddr, p->p_memsz, &end) ||
        !fti_align_u64(end, page, &end))
        return refuse(elf, "a segment with an impossible size", "p_filesz <= p_memsz");
    if (!(p->p_flags & PF_R))
        return refuse(elf, "a segment that cannot be read", "all of them readable");
    if ((p->p_flags & PF_W) && (p->p_flags & PF_X))
        return refuse(elf, "a segment that is both writable and executable", "one or neither");
    if (p->p_align < page || (p->p_align & (p->p_align - 1)) != 0 ||
        ((p->p_vaddr - p->p_offset) & (p->p_align - 1)) != 0)
        return refuse(elf, "a segment that is not aligned to pages", "p_offset like p_vaddr");
    return FTK_OK;
}

/* Loadable segments must be in order and share no page: then an address has one
 * meaning, the one that the dynamic loader will give it. */
static ftk_status check_load_segments(const elf_file *elf) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t used = 0;
    bool any = false;
    for (size_t i = 0; i < elf->header.e_phnum; i++) {
        const Elf64_Phdr *p = &elf->segments[i];
        if (p->p_type != PT_LOAD) continue;
        FTI_TRY(check_load_segment(elf, p, page));
        if (any && (p->p_vaddr & ~(page - 1)) < used)
            return refuse(elf, "segments that overlap or are out of order", "ascending addresses");
        used = (p->p_vaddr + p->p_memsz + page - 1) & ~(page - 1);
        any = true;
    }
    return any ? FTK_OK : refuse(elf, "nothing to load", "at least one PT_LOAD segment");
}

/* NULL after reporting that there is not exactly one. */
static const Elf64_Phdr *single_segment(const elf_file *elf, uint32_t type, const char *name) {
    const Elf64_Phdr *found = NULL;
    size_t count = 0;
    for (size_t i = 0; i < elf->header.e_phnum; i++) {
        if (elf->segments[i].p_type != type) continue;
        found = &elf->segments[i];
        count++;
    }
    if (count == 1) return found;
    fti_fail(elf->err, FTK_E_PROVIDER_ELF,
             "'%s' refused: found %zu segments of type %s, wanted exactly 1", elf->path, count,
             name);
    return NULL;
}

static ftk_status check_stack(const elf_file *elf) {
    const Elf64_Phdr *stack = single_segment(elf, PT_GNU_STACK, "PT_GNU_STACK");
    if (!stack) return FTK_E_PROVIDER_ELF;
    if (!(stack->p_flags & PF_X)) return FTK_OK;
    return refuse(elf, "an executable stack", "none; link with -z noexecstack");
}

/* What the dynamic loader makes read-only after relocation must be memory that it has mapped
 * writable; it takes the header's word for that. */
static bool relro_is_data(const elf_file *elf, const Elf64_Phdr *relro, uint64_t page) {
    uint64_t end;
    if (!fti_add_u64(relro->p_vaddr, relro->p_memsz, &end)) return false;
    for (size_t i = 0; i < elf->header.e_phnum; i++) {
        const Elf64_Phdr *p = &elf->segments[i];
        uint64_t last = (p->p_vaddr + p->p_memsz + page - 1) & ~(page - 1);
        if (p->p_type == PT_LOAD && (p->p_flags & PF_W) && relro->p_vaddr >= p->p_vaddr &&
            end <= last)
            return true;
    }
    return false;
}

/* The program headers as they are in memory, where the dynamic loader reads them again. */
static bool headers_are_loaded(const elf_file *elf, const Elf64_Phdr *phdr) {
    uint64_t bytes = elf->header.e_phnum * sizeof(Elf64_Phdr);
    for (size_t i = 0; i < elf->header.e_phnum; i++) {
        const Elf64_Phdr *p = &elf->segments[i];
        if (p->p_type == PT_LOAD && elf->header.e_phoff >= p->p_offset &&
            inside(elf->header.e_phoff - p->p_offset, bytes, p->p_filesz))
            return phdr->p_vaddr == p->p_vaddr + (elf->header.e_phoff - p->p_offset);
    }
    return false;
}

/* What the file has at p_offset is what will be at p_vaddr. */
static bool is_loaded_as_filed(const elf_file *elf, const Elf64_Phdr *part) {
    for (size_t i = 0; i < elf->header.e_phnum; i++) {
        const Elf64_Phdr *p = &elf->segments[i];
        if (p->p_type == PT_LOAD && part->p_filesz == part->p_memsz &&
            part->p_vaddr >= p->p_vaddr &&
            inside(part->p_vaddr - p->p_vaddr, part->p_filesz, p->p_filesz))
            return part->p_offset == p->p_offset + (part->p_vaddr - p->p_vaddr);
    }
    return false;
}

/* The first values of each thread's variables, which are copied to it. */
static bool is_thread_image(const elf_file *elf, const Elf64_Phdr *tls) {
    Elf64_Phdr image = *tls;
    image.p_memsz = tls->p_filesz;
    return tls->p_filesz <= tls->p_memsz && tls->p_memsz <= MAX_THREAD_BYTES &&
           (tls->p_align & (tls->p_align - 1)) == 0 && tls->p_align <= MAX_THREAD_BYTES &&
           (tls->p_filesz == 0 || is_loaded_as_filed(elf, &image));
}

static ftk_status check_trusted_segments(const elf_file *elf) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < elf->header.e_phnum; i++) {
        const Elf64_Phdr *p = &elf->segments[i];
        if (p->p_type == PT_TLS && !is_thread_image(elf, p))
            return refuse(
                elf, "an impossible PT_TLS segment",
                "at most 64 MiB, aligned to a power of 2, that begin in a loaded segment");
        if ((p->p_type == PT_NOTE || p->p_type == PT_GNU_PROPERTY) && !is_loaded_as_filed(elf, p))
            return refuse(elf, "a note segment elsewhere than what is loaded",
                          "it inside the file's part of a segment");
        if (p->p_type == PT_GNU_RELRO && !relro_is_data(elf, p, page))
            return refuse(elf, "a PT_GNU_RELRO segment outside writable memory",
                          "one inside a writable PT_LOAD segment");
        if (p->p_type == PT_PHDR && !headers_are_loaded(elf, p))
            return refuse(elf, "a PT_PHDR segment elsewhere than the program headers",
                          "the address at which they are loaded");
    }
    return FTK_OK;
}

/* ---- dynamic section ---- */

/* The segment whose part in the file becomes [address, address + size), or NULL. */
static const Elf64_Phdr *segment_of(const elf_file *elf, uint64_t address, uint64_t size) {
    for (size_t i = 0; i < elf->header.e_phnum; i++) {
        const Elf64_Phdr *p = &elf->segments[i];
        if (p->p_type == PT_LOAD && address >= p->p_vaddr &&
            inside(address - p->p_vaddr, size, p->p_filesz))
            return p;
    }
    return NULL;
}

/* Where the bytes that will be at [address, address + size) are in the file. */
static bool file_offset(const elf_file *elf, uint64_t address, uint64_t size, uint64_t *offset) {
    const Elf64_Phdr *p = segment_of(elf, address, size);
    if (!p) return false;
    *offset = p->p_offset + (address - p->p_vaddr);
    return true;
}

/* In memory that the dynamic loader maps writable, the part beyond the file's included. */
static bool is_writable(const elf_file *elf, uint64_t address, uint64_t size) {
    for (size_t i = 0; i < elf->header.e_phnum; i++) {
        const Elf64_Phdr *p = &elf->segments[i];
        if (p->p_type == PT_LOAD && (p->p_flags & PF_W) && address >= p->p_vaddr &&
            inside(address - p->p_vaddr, size, p->p_memsz))
            return true;
    }
    return false;
}

static bool is_code(const elf_file *elf, uint64_t address) {
    const Elf64_Phdr *p = segment_of(elf, address, 1);
    return p && (p->p_flags & PF_X);
}

static ftk_status read_dynamic(elf_file *elf) {
    const Elf64_Phdr *p = single_segment(elf, PT_DYNAMIC, "PT_DYNAMIC");
    if (!p) return FTK_E_PROVIDER_ELF;
    uint64_t offset;
    size_t capacity = (size_t)(p->p_filesz / sizeof(Elf64_Dyn));
    if (capacity == 0 || capacity > MAX_DYNAMIC || p->p_vaddr % sizeof(uint64_t) != 0 ||
        !file_offset(elf, p->p_vaddr, p->p_filesz, &offset))
        return refuse(elf, "a dynamic section outside what is loaded, or of an odd size",
                      "1 to 4096 entries inside a loaded segment");
    if ((p->p_flags & PF_W) && !is_writable(elf, p->p_vaddr, p->p_filesz))
        return refuse(elf, "a dynamic section that is to be written in read-only memory",
                      "it in a writable segment");
    elf->dynamic = fti_calloc(capacity, sizeof(Elf64_Dyn));
    if (!elf->dynamic) return fti_no_memory(elf->err, p->p_filesz, "a dynamic section");
    FTI_TRY(read_at(elf, elf->dynamic, "a dynamic section", offset, capacity * sizeof(Elf64_Dyn)));
    while (elf->dynamic_count < capacity && elf->dynamic[elf->dynamic_count].d_tag != DT_NULL)
        elf->dynamic_count++;
    if (elf->dynamic_count < capacity) return FTK_OK;
    return refuse(elf, "a dynamic section without an end", "a DT_NULL entry");
}

static ftk_status check_code(const elf_file *elf, const char *tag, uint64_t address) {
    if (is_code(elf, address)) return FTK_OK;
    return fti_fail(elf->err, FTK_E_PROVIDER_ELF,
                    "'%s' refused: found %s at address 0x%llx, wanted it inside the file's part of "
                    "an executable segment; build the file anew",
                    elf->path, tag, (unsigned long long)address);
}

static ftk_status check_number(const elf_file *elf, const char *tag, uint64_t found,
                               uint64_t wanted) {
    if (found == wanted) return FTK_OK;
    return fti_fail(elf->err, FTK_E_PROVIDER_ELF,
                    "'%s' refused: found %s %llu, wanted %llu; build the file anew", elf->path, tag,
                    (unsigned long long)found, (unsigned long long)wanted);
}

/* What the dynamic loader asserts, calls or divides by, and so never reports. */
static ftk_status check_shape(const elf_file *elf, const Elf64_Dyn *entry) {
    uint64_t value = entry->d_un.d_val;
    switch (entry->d_tag) {
    case DT_INIT: return check_code(elf, "DT_INIT", value);
    case DT_FINI: return check_code(elf, "DT_FINI", value);
    case DT_SYMENT: return check_number(elf, "DT_SYMENT", value, sizeof(Elf64_Sym));
    case DT_RELAENT: return check_number(elf, "DT_RELAENT", value, sizeof(Elf64_Rela));
    case DT_RELRENT: return check_number(elf, "DT_RELRENT", value, sizeof(uint64_t));
    case DT_PLTREL: return check_number(elf, "DT_PLTREL", value, DT_RELA);
    default: return FTK_OK;
    }
}

static ftk_status check_entry(const elf_file *elf, const Elf64_Dyn *entry) {
    static const char system_only[] = "none: an object is one file beside the system's libraries";
    static const char position_independent[] = "none; compile with -fPIC";
    switch (entry->d_tag) {
    case DT_RPATH: return refuse(elf, "a run path (DT_RPATH)", system_only);
    case DT_RUNPATH: return refuse(elf, "a run path (DT_RUNPATH)", system_only);
    case DT_FILTER: return refuse(elf, "a filter library (DT_FILTER)", system_only);
    case DT_AUXILIARY: return refuse(elf, "an auxiliary library (DT_AUXILIARY)", system_only);
    case DT_AUDIT: return refuse(elf, "an audit library (DT_AUDIT)", system_only);
    case DT_DEPAUDIT: return refuse(elf, "an audit library (DT_DEPAUDIT)", system_only);
    case DT_PREINIT_ARRAY:
        return refuse(elf, "functions to run before all others (DT_PREINIT_ARRAY)",
                      "none: only a program may have them");
    case DT_TEXTREL: return refuse(elf, "text relocations (DT_TEXTREL)", position_independent);
    case DT_FLAGS:
        if (!(entry->d_un.d_val & DF_TEXTREL)) return FTK_OK;
        return refuse(elf, "text relocations (DF_TEXTREL)", position_independent);
    default: return FTK_OK;
    }
}

/* How often a tag is there; `value` receives the last, which the dynamic loader takes. */
static size_t count_values(const elf_file *elf, int64_t tag, uint64_t *value) {
    size_t count = 0;
    for (size_t i = 0; i < elf->dynamic_count; i++) {
        if (elf->dynamic[i].d_tag != tag) continue;
        *value = elf->dynamic[i].d_un.d_val;
        count++;
    }
    return count;
}

/* The value of a tag that must be there exactly once. */
static ftk_status single_value(const elf_file *elf, int64_t tag, const char *name,
                               uint64_t *value) {
    size_t count = count_values(elf, tag, value);
    if (count == 1) return FTK_OK;
    return fti_fail(elf->err, FTK_E_PROVIDER_ELF,
                    "'%s' refused: found %zu dynamic entries %s, wanted exactly 1", elf->path,
                    count, name);
}

static bool is_system_library(const char *name) {
    static const char *const allowed[] = {
        "libc.so.6",
        "libm.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "librt.so.1",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
        "libgcc_s.so.1",
        "libstdc++.so.6",
        "libgomp.so.1",
    };
    for (size_t i = 0; i < FTI_COUNT(allowed); i++)
        if (strcmp(name, allowed[i]) == 0) return true;
#if defined(FTI_ALLOW_SANITIZER_LIBS)
    static const char *const sanitizers[] = {"libasan.so.", "libubsan.so.", "libtsan.so."};
    for (size_t i = 0; i < FTI_COUNT(sanitizers); i++)
        if (strncmp(name, sanitizers[i], strlen(sanitizers[i])) == 0 && !strchr(name, '/'))
            return true;
#endif
    return false;
}

/* A name that could be allowed; what `name` holds is cut, without an end, if it is longer. */
static ftk_status read_name(const elf_file *elf, const char *outside, uint64_t index,
                            char name[MAX_NEEDED + 1]) {
    uint64_t strings = 0;
    uint64_t size = 0;
    FTI_TRY(single_value(elf, DT_STRTAB, "DT_STRTAB", &strings));
    FTI_TRY(single_value(elf, DT_STRSZ, "DT_STRSZ", &size));
    uint64_t left = index < size ? size - index : 0;
    if (left > MAX_NEEDED) left = MAX_NEEDED;
    uint64_t offset;
    if (left == 0 || !file_offset(elf, strings + index, left, &offset))
        return refuse(elf, outside, "a library name");
    memset(name, '?', MAX_NEEDED + 1);
    return read_at(elf, name, "a library name", offset, left);
}

static ftk_status check_needed(const elf_file *elf, uint64_t index) {
    char name[MAX_NEEDED + 1];
    FTI_TRY(read_name(elf, "a DT_NEEDED name outside the string table", index, name));
    if (!memchr(name, 0, sizeof name))
        return refuse(elf, "a DT_NEEDED name that is longer than any allowed one or has no end",
                      "a library of the C and C++ runtimes");
    if (is_system_library(name)) return FTK_OK;
    return fti_fail(elf->err, FTK_E_PROVIDER_ELF,
                    "'%s' refused: found that it needs the library '%s', wanted only those of "
                    "the C and C++ runtimes (libc, libm, libgcc_s, libstdc++, libgomp ...); link "
                    "everything else into the file",
                    elf->path, name);
}

/* Under such a name the dynamic loader would give this file to whoever needs the library. */
static ftk_status check_soname(const elf_file *elf, uint64_t index) {
    char name[MAX_NEEDED + 1];
    FTI_TRY(read_name(elf, "a DT_SONAME outside the string table", index, name));
    if (!memchr(name, 0, sizeof name) || !is_system_library(name)) return FTK_OK;
    return fti_fail(elf->err, FTK_E_PROVIDER_ELF,
                    "'%s' refused: found DT_SONAME '%s', the name of a library of the system, "
                    "wanted another or none; link without -soname",
                    elf->path, name);
}

static ftk_status check_table(const elf_file *elf, int64_t start, int64_t size, uint64_t unit,
                              const char *name) {
    uint64_t address = 0;
    uint64_t bytes = 0;
    size_t starts = count_values(elf, start, &address);
    size_t sizes = count_values(elf, size, &bytes);
    if (starts == 0 && sizes == 0) return FTK_OK;
    if (starts != 1 || sizes != 1)
        return fti_fail(elf->err, FTK_E_PROVIDER_ELF,
                        "'%s' refused: found %zu addresses and %zu sizes of the table %s, wanted "
                        "one of each or none; build the file anew",
                        elf->path, starts, sizes, name);
    if (bytes % unit == 0 && segment_of(elf, address, bytes)) return FTK_OK;
    return fti_fail(
        elf->err, FTK_E_PROVIDER_ELF,
        "'%s' refused: found the table %s of %llu bytes at address 0x%llx, wanted "
        "entries of %llu bytes inside the file's part of a segment; build the file anew",
        elf->path, name, (unsigned long long)bytes, (unsigned long long)address,
        (unsigned long long)unit);
}

/* What a table cannot be read without: the dynamic loader looks for no missing entry. */
static ftk_status check_companion(const elf_file *elf, int64_t table, int64_t companion,
                                  const char *names) {
    uint64_t value;
    if (count_values(elf, table, &value) == 0 || count_values(elf, companion, &value) > 0)
        return FTK_OK;
    return fti_fail(elf->err, FTK_E_PROVIDER_ELF,
                    "'%s' refused: found the first without the second of %s, wanted both; build "
                    "the file anew",
                    elf->path, names);
}

static ftk_status check_tables(const elf_file *elf) {
    const uint64_t rela = sizeof(Elf64_Rela);
    const uint64_t pointer = sizeof(Elf64_Addr);
    FTI_TRY(check_table(elf, DT_RELA, DT_RELASZ, rela, "DT_RELA"));
    FTI_TRY(check_table(elf, DT_RELR, DT_RELRSZ, pointer, "DT_RELR"));
    FTI_TRY(check_table(elf, DT_JMPREL, DT_PLTRELSZ, rela, "DT_JMPREL"));
    FTI_TRY(check_companion(elf, DT_RELA, DT_RELAENT, "DT_RELA and DT_RELAENT"));
    FTI_TRY(check_companion(elf, DT_RELR, DT_RELRENT, "DT_RELR and DT_RELRENT"));
    FTI_TRY(check_companion(elf, DT_JMPREL, DT_PLTREL, "DT_JMPREL and DT_PLTREL"));
    FTI_TRY(check_companion(elf, DT_VERNEED, DT_VERSYM, "DT_VERNEED and DT_VERSYM"));
    FTI_TRY(check_companion(elf, DT_VERDEF, DT_VERSYM, "DT_VERDEF and DT_VERSYM"));
    FTI_TRY(check_table(elf, DT_INIT_ARRAY, DT_INIT_ARRAYSZ, pointer, "DT_INIT_ARRAY"));
    return check_table(elf, DT_FINI_ARRAY, DT_FINI_ARRAYSZ, pointer, "DT_FINI_ARRAY");
}

static ftk_status check_dynamic(const elf_file *elf) {
    uint64_t strings = 0;
    uint64_t size = 0;
    uint64_t offset;
    FTI_TRY(single_value(elf, DT_STRTAB, "DT_STRTAB", &strings));
    FTI_TRY(single_value(elf, DT_STRSZ, "DT_STRSZ", &size));
    if (!file_offset(elf, strings, size, &offset))
        return refuse(elf, "a string table outside what is loaded", "it inside a loaded segment");
    for (size_t i = 0; i < elf->dynamic_count; i++) {
        const Elf64_Dyn *entry = &elf->dynamic[i];
        FTI_TRY(check_entry(elf, entry));
        FTI_TRY(check_shape(elf, entry));
        if (entry->d_tag == DT_NEEDED) FTI_TRY(check_needed(elf, entry->d_un.d_val));
        if (entry->d_tag == DT_SONAME) FTI_TRY(check_soname(elf, entry->d_un.d_val));
    }
    return check_tables(elf);
}

/* ---- entry ---- */

/* Bytes that will be at `address`, wherever they are in the file. */
static ftk_status read_loaded(const elf_file *elf, void *to, const char *what, uint64_t address,
                              uint64_t size) {
    uint64_t offset;
    if (!file_offset(elf, address, size, &offset))
        return refuse(elf, what, "it inside a loaded segment");
    return read_at(elf, to, what, offset, size);
}

/* ---- relocations ---- */

static ftk_status check_target(const elf_file *elf, uint64_t address) {
    if (is_writable(elf, address, sizeof(uint64_t))) return FTK_OK;
    return fti_fail(elf->err, FTK_E_PROVIDER_ELF,
                    "'%s' refused: found a relocation of address 0x%llx, wanted it inside a "
                    "writable segment; build the file anew",
                    elf->path, (unsigned long long)address);
}

/* The dynamic loader writes wherever they say, before anything of the file runs. The first
 * `relative` ones it asserts to be of that type. */
static ftk_status check_relocations(const elf_file *elf, int64_t table, int64_t size,
                                    uint64_t relative) {
    Elf64_Rela block[BLOCK];
    uint64_t address = 0, bytes = 0;
    if (count_values(elf, table, &address) == 0) return FTK_OK;
    count_values(elf, size, &bytes);
    const uint64_t count = bytes / sizeof *block;
    for (uint64_t i = 0; i < count; i++) {
        const Elf64_Rela *r = &block[i % BLOCK];
        uint64_t left = count - i < BLOCK ? count - i : BLOCK;
        if (i % BLOCK == 0)
            FTI_TRY(read_loaded(elf, block, "relocations outside what is loaded",
                                address + i * sizeof *block, left * sizeof *block));
        if (i < relative && ELF64_R_TYPE(r->r_info) != RELATIVE)
            return refuse(elf, "fewer relative relocations than DT_RELACOUNT", "as many");
        if (ELF64_R_TYPE(r->r_info) != 0) FTI_TRY(check_target(elf, r->r_offset));
    }
    return FTK_OK;
}

/* An even word is an address; the bits of an odd one, but for the lowest, are the words behind. */
static ftk_status check_packed_relocations(const elf_file *elf) {
    uint64_t block[BLOCK] = {0};
    uint64_t address = 0, bytes = 0, at = 0;
    if (count_values(elf, DT_RELR, &address) == 0) return FTK_OK;
    count_values(elf, DT_RELRSZ, &bytes);
    const uint64_t count = bytes / sizeof *block;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t left = count - i < BLOCK ? count - i : BLOCK;
        if (i % BLOCK == 0)
            FTI_TRY(read_loaded(elf, block, "relocations outside what is loaded",
                                address + i * sizeof *block, left * sizeof *block));
        const uint64_t word = block[i % BLOCK];
        if (!(word & 1)) {
            FTI_TRY(check_target(elf, word));
            at = word + sizeof word;
            continue;
        }
        for (unsigned bit = 1; bit < 64; bit++)
            if (word >> bit & 1) FTI_TRY(check_target(elf, at + (bit - 1) * sizeof word));
        at += 63 * sizeof word;
    }
    return FTK_OK;
}

static ftk_status check_all_relocations(const elf_file *elf) {
    uint64_t relative = 0;
    count_values(elf, DT_RELACOUNT, &relative);
    FTI_TRY(check_relocations(elf, DT_RELA, DT_RELASZ, relative));
    FTI_TRY(check_relocations(elf, DT_JMPREL, DT_PLTRELSZ, 0));
    return check_packed_relocations(elf);
}

/* ---- versions ---- */

/* The dynamic loader asserts that it has loaded the file of each. */
static ftk_status check_version_file(const elf_file *elf, uint64_t index) {
    char name[MAX_NEEDED + 1], needed[MAX_NEEDED + 1];
    FTI_TRY(read_name(elf, "a version's file outside the string table", index, name));
    for (size_t i = 0; i < elf->dynamic_count; i++) {
        if (elf->dynamic[i].d_tag != DT_NEEDED) continue;
        FTI_TRY(read_name(elf, "a DT_NEEDED name outside the string table",
                          elf->dynamic[i].d_un.d_val, needed));
        if (memchr(name, 0, sizeof name) && strcmp(name, needed) == 0) return FTK_OK;
    }
    return refuse(elf, "versions of a library that it does not need", "those of needed ones");
}

typedef struct version_table {
    int64_t tag;
    const char *outside;
    size_t first, next;     /* offsets in a record: of its first name, of the record behind */
    size_t name, name_next; /* in a name */
} version_table;

static ftk_status check_version_names(const elf_file *elf, const version_table *t, uint64_t at,
                                      size_t *steps) {
    uint32_t name[4] = {0};
    char text[MAX_NEEDED + 1];
    do {
        at += name[t->name_next];
        FTI_TRY(read_loaded(elf, name, t->outside, at, sizeof(uint32_t) * (t->name_next + 1)));
        FTI_TRY(read_name(elf, "a version's name outside the string table", name[t->name], text));
    } while (name[t->name_next] != 0 && ++*steps < MAX_VERSIONS);
    return FTK_OK;
}

/* Records and their names are chains of distances, which the dynamic loader follows. */
static ftk_status check_versions_of(const elf_file *elf, const version_table *t) {
    uint64_t at = 0;
    size_t steps = 0;
    if (count_values(elf, t->tag, &at) == 0) return FTK_OK;
    uint32_t record[5] = {0};
    do {
        at += record[t->next];
        FTI_TRY(read_loaded(elf, record, t->outside, at, sizeof(uint32_t) * (t->next + 1)));
        if (t->tag == DT_VERNEED) FTI_TRY(check_version_file(elf, record[1]));
        FTI_TRY(check_version_names(elf, t, at + record[t->first], &steps));
    } while (record[t->next] != 0 && ++steps < MAX_VERSIONS);
    return steps < MAX_VERSIONS ? FTK_OK : refuse(elf, "a version table without an end", "one");
}

/* In words of 32 bits; the first of a record are two of 16. */
static ftk_status check_versions(const elf_file *elf) {
    static const version_table needed = {
        DT_VERNEED, "versions (DT_VERNEED) outside what is loaded", 2, 3, 2, 3};
    static const version_table defined = {
        DT_VERDEF, "versions (DT_VERDEF) outside what is loaded", 3, 4, 0, 1};
    FTI_TRY(check_versions_of(elf, &needed));
    return check_versions_of(elf, &defined);
}

/* ---- symbols ---- */

static uint32_t gnu_hash(const char *name) {
    uint32_t h = 5381;
    for (; *name; name++) h = h * 33 + (unsigned char)*name;
    return h;
}

typedef struct symbol_table {
    uint64_t symbols, strings, strings_size;
    uint64_t chains; /* address of the chain entry that symbol 0 would have */
    uint32_t bucket; /* index of the first symbol of the wanted name's bucket, 0 if none */
} symbol_table;

/* The filter that the dynamic loader asks first: without both bits it looks no further. */
static ftk_status ask_filter(const elf_file *elf, uint64_t words, const uint32_t head[4],
                             uint32_t hash, bool *may_be_there) {
    if (head[2] == 0 || (head[2] & (head[2] - 1)) != 0 || head[3] >= 32)
        return refuse(elf, "a filter of symbols of an odd size or shift",
                      "a power of 2 of words and a shift below 32");
    uint64_t word = 0;
    FTI_TRY(read_loaded(elf, &word, "a filter of symbols outside what is loaded",
                        words + (uint64_t)((hash / 64) & (head[2] - 1)) * sizeof word,
                        sizeof word));
    *may_be_there = (word >> (hash % 64)) & (word >> ((hash >> head[3]) % 64)) & 1;
    return FTK_OK;
}

/* The hash table that the dynamic loader will search, at the bucket of `name`. */
static ftk_status open_symbols(const elf_file *elf, const char *name, symbol_table *t) {
    uint64_t table = 0;
    uint32_t hash = gnu_hash(name);
    bool may_be_there = false;
    uint32_t head[4]; /* buckets, first hashed symbol, words of the filter, shift */
    FTI_TRY(single_value(elf, DT_SYMTAB, "DT_SYMTAB", &t->symbols));
    FTI_TRY(single_value(elf, DT_STRTAB, "DT_STRTAB", &t->strings));
    FTI_TRY(single_value(elf, DT_STRSZ, "DT_STRSZ", &t->strings_size));
    FTI_TRY(single_value(elf, DT_GNU_HASH, "DT_GNU_HASH (link with --hash-style=gnu)", &table));
    FTI_TRY(read_loaded(elf, head, "a hash table of symbols outside what is loaded", table,
                        sizeof head));
    if (head[0] == 0) return refuse(elf, "a hash table without buckets", "one or more");
    uint64_t words = table + sizeof head;
    uint64_t buckets = words + (uint64_t)head[2] * 8;
    t->chains = buckets + (uint64_t)head[0] * 4 - (uint64_t)head[1] * 4;
    t->bucket = 0;
    FTI_TRY(ask_filter(elf, words, head, hash, &may_be_there));
    if (!may_be_there) return FTK_OK;
    return read_loaded(elf, &t->bucket, "a hash bucket outside what is loaded",
                       buckets + (uint64_t)(hash % head[0]) * 4, sizeof t->bucket);
}

static ftk_status is_named(const elf_file *elf, const symbol_table *t, const Elf64_Sym *symbol,
                           const char *name, bool *same) {
    char found[MAX_NEEDED];
    size_t size = strlen(name) + 1;
    *same = false;
    if (!inside(symbol->st_name, size, t->strings_size)) return FTK_OK;
    FTI_TRY(read_loaded(elf, found, "a symbol's name outside what is loaded",
                        t->strings + symbol->st_name, size));
    *same = memcmp(found, name, size) == 0;
    return FTK_OK;
}

/* What the table holds of one name: how many, and the last of them. */
typedef struct lookup {
    size_t count;
    uint32_t index;
    Elf64_Sym symbol;
} lookup;

static ftk_status find_symbol(const elf_file *elf, const char *name, lookup *found) {
    symbol_table t;
    FTI_TRY(open_symbols(elf, name, &t));
    uint32_t wanted = gnu_hash(name) | 1u;
    uint32_t hash = t.bucket == 0; /* bit 0 ends a chain; bucket 0 is empty */
    for (uint32_t i = t.bucket, steps = 0; !(hash & 1u) && steps < MAX_CHAIN; i++, steps++) {
        bool same = false;
        Elf64_Sym symbol = {0};
        FTI_TRY(read_loaded(elf, &hash, "a hash chain outside what is loaded",
                            t.chains + (uint64_t)i * 4, sizeof hash));
        if ((hash | 1u) != wanted) continue;
        FTI_TRY(read_loaded(elf, &symbol, "a symbol outside what is loaded",
                            t.symbols + (uint64_t)i * sizeof symbol, sizeof symbol));
        FTI_TRY(is_named(elf, &t, &symbol, name, &same));
        if (same) *found = (lookup){found->count + 1, i, symbol};
    }
    return FTK_OK;
}

static ftk_status bad_entry(const elf_file *elf, const char *name, const char *found) {
    return fti_fail(elf->err, FTK_E_PROVIDER_ENTRY,
                    "'%s' refused: found %s as its entry %s, wanted a function that this file "
                    "itself defines and exports",
                    elf->path, found, name);
}

/* A search without a version passes over what is hidden under one. */
static ftk_status check_version(const elf_file *elf, const char *name, uint32_t index) {
    uint64_t versions = 0;
    uint16_t version = 0;
    if (count_values(elf, DT_VERSYM, &versions) == 0) return FTK_OK;
    FTI_TRY(single_value(elf, DT_VERSYM, "DT_VERSYM", &versions));
    FTI_TRY(read_loaded(elf, &version, "a symbol's version outside what is loaded",
                        versions + (uint64_t)index * sizeof version, sizeof version));
    if (version == VER_NDX_LOCAL) return bad_entry(elf, name, "a symbol of a local version");
    if (version & 0x8000) return bad_entry(elf, name, "a symbol of a hidden version");
    return FTK_OK;
}

static ftk_status check_definition(const elf_file *elf, const char *name, const Elf64_Sym *symbol) {
    unsigned bind = ELF64_ST_BIND(symbol->st_info);
    unsigned visibility = ELF64_ST_VISIBILITY(symbol->st_other);
    if (symbol->st_shndx == SHN_UNDEF) return bad_entry(elf, name, "nothing of its own");
    if (symbol->st_shndx >= SHN_LORESERVE)
        return bad_entry(elf, name, "a symbol of no section (SHN_ABS or the like)");
    if (bind != STB_GLOBAL && bind != STB_WEAK) return bad_entry(elf, name, "a local symbol");
    if (visibility == STV_HIDDEN || visibility == STV_INTERNAL)
        return bad_entry(elf, name, "a symbol of hidden or internal visibility");
    if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
        return bad_entry(elf, name, "something else than a function");
    if (symbol->st_value == 0) return bad_entry(elf, name, "a symbol of value 0");
    if (!is_code(elf, symbol->st_value))
        return bad_entry(elf, name, "an address outside the file's executable segments");
    return FTK_OK;
}

/* Before anything runs, for what the loader would find in a library that is needed, or
 * not at all, is found only after constructors have run. */
static ftk_status check_entry_symbol(const elf_file *elf, const char *name) {
    lookup found = {0};
    FTI_TRY(find_symbol(elf, name, &found));
    if (found.count == 0) return bad_entry(elf, name, "nothing of its own");
    if (found.count > 1) return bad_entry(elf, name, "more than one symbol");
    FTI_TRY(check_definition(elf, name, &found.symbol));
    return check_version(elf, name, found.index);
}

/* ---- note ---- */

static ftk_status bad_note(const elf_file *elf, const char *found) {
    return fti_fail(elf->err, FTK_E_PROVIDER_IDENTITY,
                    "'%s' refused: found %s, wanted exactly one note of owner '" FTK_NOTE_OWNER
                    "' and type 1 (FTK_PROVIDER_NOTE, once per provider)",
                    elf->path, found);
}

static ftk_status keep_note(elf_file *elf, const char *text, size_t size) {
    if (elf->note) return bad_note(elf, "a second freetoken note");
    if (memchr(text, 0, size)) return bad_note(elf, "a freetoken note with a zero byte");
    elf->note = fti_strndup(text, size);
    return elf->note ? FTK_OK : fti_no_memory(elf->err, size + 1, "a freetoken note");
}

/* `keep`: the freetoken note among them is kept. */
static ftk_status scan_notes(elf_file *elf, const char *bytes, uint64_t size, uint64_t align,
                             bool keep) {
    for (uint64_t at = 0; at < size;) {
        Elf64_Nhdr note;
        if (!inside(at, sizeof note, size)) return bad_note(elf, "a note segment that is cut");
        memcpy(&note, bytes + at, sizeof note);
        uint64_t owner = at + sizeof note;
        uint64_t text = (owner + note.n_namesz + align - 1) & ~(align - 1);
        if (!inside(text, note.n_descsz, size))
            return bad_note(elf, "a note that is longer than its segment");
        if (keep && note.n_type == FTK_NOTE_TYPE && note.n_namesz == sizeof FTK_NOTE_OWNER &&
            memcmp(bytes + owner, FTK_NOTE_OWNER, sizeof FTK_NOTE_OWNER) == 0)
            FTI_TRY(keep_note(elf, bytes + text, note.n_descsz));
        at = (text + note.n_descsz + align - 1) & ~(align - 1);
    }
    return FTK_OK;
}

static ftk_status read_note_segment(elf_file *elf, const Elf64_Phdr *p) {
    if (p->p_filesz == 0) return FTK_OK;
    if (p->p_filesz > MAX_NOTES) return bad_note(elf, "a note segment of more than 65536 bytes");
    char *bytes = fti_calloc((size_t)p->p_filesz, 1);
    if (!bytes) return fti_no_memory(elf->err, p->p_filesz, "a note segment");
    ftk_status status = read_at(elf, bytes, "a note segment", p->p_offset, p->p_filesz);
    if (status == FTK_OK)
        status = scan_notes(elf, bytes, p->p_filesz, p->p_align == 8 ? 8 : 4, p->p_type == PT_NOTE);
    fti_free(bytes);
    return status;
}

/* Those of PT_GNU_PROPERTY the dynamic loader reads by the lengths that they state. */
static ftk_status read_notes(elf_file *elf) {
    for (size_t i = 0; i < elf->header.e_phnum; i++)
        if (elf->segments[i].p_type == PT_NOTE || elf->segments[i].p_type == PT_GNU_PROPERTY)
            FTI_TRY(read_note_segment(elf, &elf->segments[i]));
    return elf->note ? FTK_OK : bad_note(elf, "no freetoken note");
}

static ftk_status inspect(elf_file *elf) {
    FTI_TRY(read_header(elf));
    FTI_TRY(read_segments(elf));
    FTI_TRY(check_load_segments(elf));
    FTI_TRY(check_trusted_segments(elf));
    FTI_TRY(check_stack(elf));
    FTI_TRY(read_dynamic(elf));
    FTI_TRY(check_dynamic(elf));
    FTI_TRY(check_all_relocations(elf));
    FTI_TRY(check_versions(elf));
    return check_entry_symbol(elf, elf->entry);
}

static ftk_status open_file(elf_file *elf) {
    struct stat st;
    if (fstat(elf->fd, &st) != 0)
        return fti_fail(elf->err, FTK_E_PROVIDER_ELF, "cannot examine '%s': %s", elf->path,
                        strerrordesc_np(errno));
    elf->size = (uint64_t)st.st_size;
    return FTK_OK;
}

static void release(const elf_file *elf) {
    fti_free(elf->segments);
    fti_free(elf->dynamic);
}

ftk_status fti_elf_look(int fd, const char *path, ftk_error *err) {
    elf_file elf = {.fd = fd, .path = path, .err = err};
    FTI_TRY(open_file(&elf));
    return read_header(&elf);
}

ftk_status fti_elf_inspect(int fd, const char *path, char **note, ftk_error *err) {
    elf_file elf = {.fd = fd, .path = path, .entry = FTK_PROVIDER_ENTRY, .err = err};
    FTI_TRY(open_file(&elf));
    ftk_status status = inspect(&elf);
    if (status == FTK_OK) status = read_notes(&elf);
    release(&elf);
    if (status != FTK_OK) {
        fti_free(elf.note);
        return status;
    }
    *note = elf.note;
    return FTK_OK;
}

ftk_status fti_elf_inspect_module(int fd, const char *path, const char *entry, ftk_error *err) {
    elf_file elf = {.fd = fd, .path = path, .entry = entry, .err = err};
    FTI_TRY(open_file(&elf));
    ftk_status status = inspect(&elf);
    release(&elf);
    return status;
}
