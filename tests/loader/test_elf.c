/*
 * test_elf.c: fti_elf_inspect on a good provider, on each property that it
 * refuses, and on hostile bytes. Nothing here is ever loaded.
 */
#include "core/elf_inspect.h"
#include "loader/scratch.h"

#include <elf.h>
#include <sys/mman.h>

#ifndef DT_RELR
#define DT_RELRSZ  35
#define DT_RELR    36
#define DT_RELRENT 37
#endif

static unsigned char *good;
static size_t good_size;

static int read_good(void **state) {
    (void)state;
    good = read_file(FTK_FIXTURES "/good.so", &good_size);
    return 0;
}

static int free_good(void **state) {
    (void)state;
    free(good);
    return 0;
}

/* Inspects `size` bytes as a file; the descriptor stands at its end. */
static ftk_status inspect_bytes(const unsigned char *bytes, size_t size, char **note,
                                ftk_error *err) {
    int fd = memfd_create("elf", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), (ssize_t)size);
    ftk_status status = fti_elf_inspect(fd, "/x/good.so", note, err);
    assert_int_equal(close(fd), 0);
    return status;
}

static void expect_bytes(const unsigned char *bytes, size_t size, ftk_status wanted,
                         const char *part) {
    ftk_error err = FTK_ERROR_INIT;
    char *note = NULL;
    expect_status(inspect_bytes(bytes, size, &note, &err), wanted, &err, part);
    assert_true((wanted == FTK_OK) == (note != NULL));
    if (wanted != FTK_OK) assert_non_null(strstr(err.message, "'/x/good.so'"));
    fti_free(note);
}

/* A copy of the good provider to be spoilt. */
typedef struct copy {
    unsigned char *bytes;
    Elf64_Ehdr *header;
    Elf64_Phdr *segments;
    Elf64_Dyn *dynamic;
} copy;

static size_t segment_index(const copy *c, uint32_t type) {
    size_t i = 0;
    while (i < c->header->e_phnum && c->segments[i].p_type != type) i++;
    assert_true(i < c->header->e_phnum);
    return i;
}

static Elf64_Phdr *segment(const copy *c, uint32_t type) {
    return &c->segments[segment_index(c, type)];
}

static copy copy_good(void) {
    copy c = {.bytes = malloc(good_size)};
    assert_non_null(c.bytes);
    memcpy(c.bytes, good, good_size);
    c.header = (Elf64_Ehdr *)(void *)c.bytes;
    c.segments = (Elf64_Phdr *)(void *)(c.bytes + c.header->e_phoff);
    c.dynamic = (Elf64_Dyn *)(void *)(c.bytes + segment(&c, PT_DYNAMIC)->p_offset);
    return c;
}

static Elf64_Dyn *entry(const copy *c, int64_t tag) {
    Elf64_Dyn *d = c->dynamic;
    while (d->d_tag != tag && d->d_tag != DT_NULL) d++;
    assert_int_equal(d->d_tag, tag);
    return d;
}

/* Turns the first closing entry of the dynamic section into another one. */
static void add_entry(const copy *c, int64_t tag, uint64_t value) {
    Elf64_Dyn *d = entry(c, DT_NULL);
    const Elf64_Phdr *p = segment(c, PT_DYNAMIC);
    assert_true((size_t)(d - c->dynamic) + 1 < p->p_filesz / sizeof *d);
    d->d_tag = tag;
    d->d_un.d_val = value;
}

static void expect_copy(copy *c, ftk_status wanted, const char *part) {
    expect_bytes(c->bytes, good_size, wanted, part);
    free(c->bytes);
}

static void reads_the_note(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    char *note = NULL;
    expect_status(inspect_bytes(good, good_size, &note, &err), FTK_OK, &err, "");
    assert_string_equal(note, "name=good\nversion=1.0.0\napi_level=0\nmin_host_level=0\n"
                              "core_range=>=0.1.0 <0.2.0\narchitectures=testarch secondarch\n"
                              "containers=gguf ftw\nbackends=cpu\nlicense=Apache-2.0\n");
    fti_free(note);
}

static void judges_fixtures(void **state) {
    (void)state;
    static const struct {
        const char *name;
        ftk_status status;
        const char *part;
    } cases[] = {
        {"second", FTK_OK, ""},
        {"no_entry", FTK_E_PROVIDER_ENTRY, "nothing of its own"},
        {"data_entry", FTK_E_PROVIDER_ENTRY, "something else than a function"},
        {"dependency_entry", FTK_E_PROVIDER_ENTRY, "nothing of its own"},
        {"default_version", FTK_OK, ""},
        {"hidden_version", FTK_E_PROVIDER_ENTRY, "a symbol of a hidden version"},
        {"two_versions", FTK_E_PROVIDER_ENTRY, "more than one symbol"},
        {"soname", FTK_E_PROVIDER_ELF, "DT_SONAME 'libm.so.6'"},
        {"own_soname", FTK_OK, ""},
        {"undefined", FTK_OK, ""},
        {"execstack", FTK_E_PROVIDER_ELF, "executable stack"},
        {"textrel", FTK_E_PROVIDER_ELF, "text relocations"},
        {"runpath", FTK_E_PROVIDER_ELF, "DT_RUNPATH"},
        {"rpath", FTK_E_PROVIDER_ELF, "DT_RPATH"},
        {"needs_forbidden", FTK_E_PROVIDER_ELF, "'libforbidden.so.1'"},
        {"no_note", FTK_E_PROVIDER_IDENTITY, "no freetoken note"},
        {"two_notes", FTK_E_PROVIDER_IDENTITY, "second freetoken note"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        size_t size;
        unsigned char *bytes = read_file(format(FTK_FIXTURES "/%s.so", cases[i].name).s, &size);
        expect_bytes(bytes, size, cases[i].status, cases[i].part);
        free(bytes);
    }
}

static void refuses_other_files(void **state) {
    (void)state;
    static const unsigned char words[] = "#!/bin/sh\necho this is a text file, and a long one: "
                                         "it has more bytes than a header of ELF\n";
    expect_bytes(words, 0, FTK_E_PROVIDER_ELF, "an empty file");
    expect_bytes(words, 10, FTK_E_PROVIDER_ELF, "shorter than an ELF header");
    expect_bytes(words, sizeof words, FTK_E_PROVIDER_ELF, "not ELF");
    size_t size;
    unsigned char *self = read_file("/proc/self/exe", &size);
    ftk_error err = FTK_ERROR_INIT;
    char *note = NULL;
    ftk_status status = inspect_bytes(self, size, &note, &err);
    assert_true(status == FTK_E_PROVIDER_ELF || status == FTK_E_PROVIDER_IDENTITY);
    free(self);
}

static void refuses_headers(void **state) {
    (void)state;
    copy c = copy_good();
    c.header->e_machine = EM_RISCV;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "machine 243");
    c = copy_good();
    c.header->e_type = ET_EXEC;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "ET_DYN");
    c = copy_good();
    c.bytes[EI_CLASS] = ELFCLASS32;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "64-bit");
    c = copy_good();
    c.bytes[EI_DATA] = ELFDATA2MSB;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "little-endian");
    c = copy_good();
    c.bytes[EI_OSABI] = ELFOSABI_FREEBSD;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "operating system");
    c = copy_good();
    c.header->e_phnum = 0;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "program headers");
    c = copy_good();
    c.header->e_phnum = 129;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "more than 128");
    c = copy_good();
    c.header->e_phoff = UINT64_MAX - 8;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "inside the file");
}

static void ignores_sections(void **state) {
    (void)state;
    copy c = copy_good();
    c.header->e_shoff = UINT64_MAX;
    c.header->e_shnum = 1;
    c.header->e_shstrndx = 9;
    expect_copy(&c, FTK_OK, "");
}

static void judges_segments(void **state) {
    (void)state;
    copy c = copy_good();
    segment(&c, PT_GNU_STACK)->p_flags |= PF_X;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "executable stack");
    c = copy_good();
    segment(&c, PT_GNU_STACK)->p_type = PT_NULL;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "PT_GNU_STACK");
    c = copy_good();
    segment(&c, PT_GNU_EH_FRAME)->p_type = PT_GNU_STACK;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "found 2 segments of type PT_GNU_STACK");
    c = copy_good();
    segment(&c, PT_GNU_EH_FRAME)->p_type = PT_DYNAMIC;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "found 2 segments of type PT_DYNAMIC");
    c = copy_good();
    segment(&c, PT_NOTE)->p_type = PT_NULL;
    expect_copy(&c, FTK_E_PROVIDER_IDENTITY, "no freetoken note");
    c = copy_good();
    segment(&c, PT_NOTE)->p_filesz -= 8;
    segment(&c, PT_NOTE)->p_memsz -= 8;
    expect_copy(&c, FTK_E_PROVIDER_IDENTITY, "note");
}

/* What the dynamic loader takes the header's word for. */
static void judges_trusted_segments(void **state) {
    (void)state;
    copy c = copy_good();
    Elf64_Phdr *p = segment(&c, PT_GNU_RELRO);
    p->p_vaddr = 0;
    p->p_memsz = UINT64_C(1) << 40;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "PT_GNU_RELRO");
    c = copy_good();
    p = segment(&c, PT_GNU_RELRO);
    p->p_memsz = UINT64_MAX;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "PT_GNU_RELRO");
    c = copy_good();
    p = segment(&c, PT_GNU_EH_FRAME);
    p->p_type = PT_PHDR;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "PT_PHDR");
}

static void judges_notes_and_thread_images(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        uint64_t address, size, memory, align;
        const char *part; /* NULL: accepted */
    } cases[] = {
        {PT_NOTE, 0x238, 0, 0, 4, NULL},
        {PT_NOTE, UINT64_C(1) << 40, 0xe4, 0xe4, 4, "a note segment elsewhere"},
        {PT_NOTE, 0x23c, 0xe4, 0xe4, 4, "a note segment elsewhere"},
        {PT_GNU_PROPERTY, UINT64_C(1) << 40, 32, 32, 8, "a note segment elsewhere"},
        {PT_GNU_PROPERTY, 0, 32, 64, 8, "a note segment elsewhere"},
        {PT_TLS, 0, 64, 128, 8, NULL},
        {PT_TLS, UINT64_C(1) << 40, 0, 64, 0, NULL},
        {PT_TLS, UINT64_C(1) << 40, 64, 64, 8, "PT_TLS"},
        {PT_TLS, 0, 64, 32, 8, "PT_TLS"},
        {PT_TLS, 0, 64, 64, 3, "PT_TLS"},
        {PT_TLS, 0, 64, UINT64_C(1) << 62, 8, "PT_TLS"},
        {PT_TLS, 0, 64, 64, UINT64_C(1) << 62, "PT_TLS"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        copy c = copy_good();
        uint64_t offset = cases[i].address == 0x23c ? 0x238 : cases[i].address;
        if (offset >= good_size) offset = 0;
        *segment(&c, PT_GNU_EH_FRAME) = (Elf64_Phdr){.p_type = cases[i].type,
                                                     .p_flags = PF_R,
                                                     .p_offset = offset,
                                                     .p_vaddr = cases[i].address,
                                                     .p_filesz = cases[i].size,
                                                     .p_memsz = cases[i].memory,
                                                     .p_align = cases[i].align};
        expect_copy(&c, cases[i].part ? FTK_E_PROVIDER_ELF : FTK_OK,
                    cases[i].part ? cases[i].part : "");
    }
    /* A property that is longer than its segment. */
    copy c = copy_good();
    const Elf64_Phdr *note = segment(&c, PT_NOTE);
    *segment(&c, PT_GNU_EH_FRAME) = (Elf64_Phdr){.p_type = PT_GNU_PROPERTY,
                                                 .p_flags = PF_R,
                                                 .p_offset = note->p_offset,
                                                 .p_vaddr = note->p_vaddr,
                                                 .p_filesz = 24,
                                                 .p_memsz = 24,
                                                 .p_align = 4};
    expect_copy(&c, FTK_E_PROVIDER_IDENTITY, "longer than its segment");
    c = copy_good();
    const Elf64_Phdr *dynamic = segment(&c, PT_DYNAMIC);
    for (Elf64_Phdr *p = c.segments; p < c.segments + c.header->e_phnum; p++) {
        if (p->p_type == PT_GNU_RELRO) p->p_type = PT_NULL;
        if (p->p_type == PT_LOAD && dynamic->p_vaddr >= p->p_vaddr &&
            dynamic->p_vaddr < p->p_vaddr + p->p_memsz)
            p->p_flags = PF_R;
    }
    expect_copy(&c, FTK_E_PROVIDER_ELF, "to be written in read-only memory");
}

/* Bytes of the file at an address, whichever segment has it. */
static void *at(const copy *c, uint64_t address) {
    for (const Elf64_Phdr *p = c->segments; p < c->segments + c->header->e_phnum; p++)
        if (p->p_type == PT_LOAD && address >= p->p_vaddr && address - p->p_vaddr < p->p_filesz)
            return c->bytes + p->p_offset + (address - p->p_vaddr);
    fail_msg("no segment holds 0x%llx", (unsigned long long)address);
    return NULL;
}

/* The dynamic loader writes where they say, and asserts the type of the first. */
static void judges_relocations(void **state) {
    (void)state;
    static const uint64_t wild[] = {0, 0x1000, (uint64_t)1 << 40, UINT64_MAX};
    for (size_t i = 0; i < FTI_COUNT(wild); i++) {
        copy c = copy_good();
        ((Elf64_Rela *)at(&c, entry(&c, DT_RELA)->d_un.d_val))[0].r_offset = wild[i];
        expect_copy(&c, FTK_E_PROVIDER_ELF, "found a relocation of address");
        c = copy_good();
        ((Elf64_Rela *)at(&c, entry(&c, DT_JMPREL)->d_un.d_val))[0].r_offset = wild[i];
        expect_copy(&c, FTK_E_PROVIDER_ELF, "found a relocation of address");
    }
    copy c = copy_good();
    Elf64_Rela *none = at(&c, entry(&c, DT_JMPREL)->d_un.d_val);
    *none = (Elf64_Rela){0};
    expect_copy(&c, FTK_OK, "");
    c = copy_good();
    entry(&c, DT_RELACOUNT)->d_un.d_val += 1;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "fewer relative relocations");
    static const struct {
        int64_t tag;
        const char *part;
    } missing[] = {{DT_RELAENT, "DT_RELA and DT_RELAENT"},
                   {DT_PLTREL, "DT_JMPREL and DT_PLTREL"},
                   {DT_VERSYM, "DT_VERNEED and DT_VERSYM"}};
    for (size_t i = 0; i < FTI_COUNT(missing); i++) {
        c = copy_good();
        entry(&c, missing[i].tag)->d_tag = DT_DEBUG;
        expect_copy(&c, FTK_E_PROVIDER_ELF, missing[i].part);
    }
}

/* In the place of the unwind table's header, which is not inspected. */
static void judges_packed_relocations(void **state) {
    (void)state;
    copy c = copy_good();
    const uint64_t data = entry(&c, DT_INIT_ARRAY)->d_un.d_val;
    const uint64_t place = segment(&c, PT_GNU_EH_FRAME)->p_vaddr;
    const Elf64_Phdr *writable = c.segments;
    while (writable->p_type != PT_LOAD || !(writable->p_flags & PF_W)) writable++;
    const uint64_t last = writable->p_vaddr + writable->p_memsz - 8;
    free(c.bytes);
    const struct {
        uint64_t words[2], entry_size;
        const char *part;
    } cases[] = {
        {{data, 3}, 8, ""},
        {{data, 1}, 0, "DT_RELR and DT_RELRENT"},
        {{data, 1}, 4, "DT_RELRENT 4, wanted 8"},
        {{8, 1}, 8, "found a relocation of address 0x8"},
        {{last, 1}, 8, ""},
        {{last, 3}, 8, "found a relocation of address"},
        {{3, data}, 8, "found a relocation of address 0x0"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        c = copy_good();
        uint64_t table = (place + 7) & ~UINT64_C(7);
        memcpy(at(&c, table), cases[i].words, sizeof cases[i].words);
        add_entry(&c, DT_RELR, table);
        add_entry(&c, DT_RELRSZ, sizeof cases[i].words);
        if (cases[i].entry_size) add_entry(&c, DT_RELRENT, cases[i].entry_size);
        expect_copy(&c, cases[i].part[0] ? FTK_E_PROVIDER_ELF : FTK_OK, cases[i].part);
    }
}

/* Chains that the dynamic loader follows before it looks at anything else. */
static void judges_version_tables(void **state) {
    (void)state;
    copy c = copy_good();
    entry(&c, DT_VERNEED)->d_un.d_val = (uint64_t)1 << 40;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "versions (DT_VERNEED) outside");
    c = copy_good();
    add_entry(&c, DT_VERDEF, (uint64_t)1 << 40);
    expect_copy(&c, FTK_E_PROVIDER_ELF, "versions (DT_VERDEF) outside");
    static const struct {
        size_t word; /* of the record, or behind it of its first name */
        uint32_t value;
        const char *part;
    } cases[] = {
        {1, 1 << 20, "a version's file outside"},
        {1, 0, "versions of a library that it does not need"},
        {2, 1 << 30, "versions (DT_VERNEED) outside"},
        {3, 1 << 30, "versions (DT_VERNEED) outside"},
        {4 + 2, 1 << 20, "a version's name outside"},
        {4 + 3, 1 << 30, "versions (DT_VERNEED) outside"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        c = copy_good();
        uint32_t *record = at(&c, entry(&c, DT_VERNEED)->d_un.d_val);
        if (cases[i].word > 3) record = (uint32_t *)(void *)((char *)record + record[2]) - 4;
        record[cases[i].word] = cases[i].value;
        expect_copy(&c, FTK_E_PROVIDER_ELF, cases[i].part);
    }
}

static void judges_load_segments(void **state) {
    (void)state;
    copy c = copy_good();
    Elf64_Phdr *p = &c.segments[segment_index(&c, PT_LOAD)];
    p->p_memsz = p[1].p_vaddr + 1; /* into the page of the next one */
    expect_copy(&c, FTK_E_PROVIDER_ELF, "overlap");
    c = copy_good();
    p = &c.segments[segment_index(&c, PT_LOAD)];
    p[1].p_vaddr += 0x10;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "not aligned");
    c = copy_good();
    p = &c.segments[segment_index(&c, PT_LOAD)];
    p->p_align = 16;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "not aligned");
    c = copy_good();
    p = &c.segments[segment_index(&c, PT_LOAD)];
    p->p_filesz = p->p_memsz + 1;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "impossible size");
    c = copy_good();
    p = &c.segments[segment_index(&c, PT_LOAD)];
    p->p_memsz = UINT64_MAX;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "impossible size");
    c = copy_good();
    segment(&c, PT_LOAD)->p_flags = 0;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "cannot be read");
    for (uint32_t flag = PF_X; flag <= PF_W; flag <<= 1) {
        c = copy_good();
        p = c.segments;
        while (p->p_type != PT_LOAD || (p->p_flags & (PF_X | PF_W)) != flag) p++;
        p->p_flags |= PF_X | PF_W;
        expect_copy(&c, FTK_E_PROVIDER_ELF, "both writable and executable");
    }
}

static void refuses_dynamic_entries(void **state) {
    (void)state;
    static const struct {
        int64_t tag;
        uint64_t value;
        const char *part;
    } cases[] = {
        {DT_RPATH, 1, "DT_RPATH"},
        {DT_RUNPATH, 1, "DT_RUNPATH"},
        {DT_TEXTREL, 0, "DT_TEXTREL"},
        {DT_FLAGS, DF_TEXTREL, "DF_TEXTREL"},
        {DT_FILTER, 1, "DT_FILTER"},
        {DT_AUXILIARY, 1, "DT_AUXILIARY"},
        {DT_AUDIT, 1, "DT_AUDIT"},
        {DT_DEPAUDIT, 1, "DT_DEPAUDIT"},
        {DT_PREINIT_ARRAY, 0, "DT_PREINIT_ARRAY"},
        {DT_STRTAB, 0, "2 dynamic"},
        {DT_STRSZ, 64, "2 dynamic"},
        {DT_NEEDED, 0, "library ''"},
        {DT_NEEDED, UINT64_MAX, "outside the string table"},
        {DT_NEEDED, 1 << 20, "outside the string table"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        copy c = copy_good();
        add_entry(&c, cases[i].tag, cases[i].value);
        expect_copy(&c, FTK_E_PROVIDER_ELF, cases[i].part);
    }
    copy c = copy_good();
    add_entry(&c, DT_FLAGS, DF_STATIC_TLS);
    expect_copy(&c, FTK_OK, "");
}

/* What the dynamic loader would assert or follow without a look. */
static void refuses_broken_tables(void **state) {
    (void)state;
    enum { NOWHERE = 1 << 30 };
    static const struct {
        int64_t tag;
        uint64_t value;
        const char *part;
    } cases[] = {
        {DT_SYMENT, 23, "DT_SYMENT 23, wanted 24"},
        {DT_RELAENT, 0, "DT_RELAENT 0, wanted 24"},
        {DT_PLTREL, DT_REL, "DT_PLTREL 17, wanted 7"},
        {DT_RELA, NOWHERE, "the table DT_RELA of"},
        {DT_RELASZ, 25, "the table DT_RELA of 25 bytes"},
        {DT_RELASZ, (uint64_t)24 << 40, "the table DT_RELA of"},
        {DT_JMPREL, NOWHERE, "the table DT_JMPREL of"},
        {DT_PLTRELSZ, 47, "the table DT_JMPREL of 47 bytes"},
        {DT_INIT, 0, "DT_INIT at address 0x0"},
        {DT_INIT, NOWHERE, "DT_INIT at address 0x40000000"},
        {DT_FINI, 0, "DT_FINI at address 0x0"},
        {DT_INIT_ARRAY, NOWHERE, "the table DT_INIT_ARRAY of"},
        {DT_INIT_ARRAYSZ, 12, "the table DT_INIT_ARRAY of 12 bytes"},
        {DT_FINI_ARRAY, NOWHERE, "the table DT_FINI_ARRAY of"},
        {DT_FINI_ARRAYSZ, 1 << 20, "the table DT_FINI_ARRAY of"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        copy c = copy_good();
        entry(&c, cases[i].tag)->d_un.d_val = cases[i].value;
        expect_copy(&c, FTK_E_PROVIDER_ELF, cases[i].part);
    }
    copy c = copy_good();
    add_entry(&c, DT_RELA, entry(&c, DT_RELA)->d_un.d_val);
    expect_copy(&c, FTK_E_PROVIDER_ELF, "found 2 addresses and 1 sizes of the table DT_RELA");
    c = copy_good();
    entry(&c, DT_RELASZ)->d_tag = DT_DEBUG;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "found 1 addresses and 0 sizes of the table DT_RELA");
    c = copy_good();
    add_entry(&c, DT_SONAME, UINT64_MAX);
    expect_copy(&c, FTK_E_PROVIDER_ELF, "a DT_SONAME outside the string table");
    c = copy_good();
    add_entry(&c, DT_SONAME, entry(&c, DT_NEEDED)->d_un.d_val);
    expect_copy(&c, FTK_E_PROVIDER_ELF, "DT_SONAME 'libc.so.6'");
}

static void refuses_broken_dynamic_sections(void **state) {
    (void)state;
    copy c = copy_good();
    segment(&c, PT_DYNAMIC)->p_filesz = (uint64_t)(entry(&c, DT_NULL) - c.dynamic) *
                                        sizeof(Elf64_Dyn);
    expect_copy(&c, FTK_E_PROVIDER_ELF, "without an end");
    c = copy_good();
    segment(&c, PT_DYNAMIC)->p_filesz = 8;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "dynamic section");
    c = copy_good();
    segment(&c, PT_DYNAMIC)->p_vaddr = (uint64_t)1 << 40;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "dynamic section");
    c = copy_good();
    entry(&c, DT_STRSZ)->d_tag = DT_DEBUG;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "DT_STRSZ");
    c = copy_good();
    entry(&c, DT_STRTAB)->d_un.d_ptr = (uint64_t)1 << 40;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "string table");
    c = copy_good();
    entry(&c, DT_STRSZ)->d_un.d_val = UINT64_MAX;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "string table");
}

/* A chain that never ends, buckets that lie anywhere, a file without a table. */
static void refuses_broken_hash_tables(void **state) {
    (void)state;
    copy c = copy_good();
    entry(&c, DT_GNU_HASH)->d_tag = DT_DEBUG;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "hash-style=gnu");
    c = copy_good();
    entry(&c, DT_GNU_HASH)->d_un.d_ptr = (uint64_t)1 << 40;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "hash table of symbols");
    c = copy_good();
    uint32_t *hash = (uint32_t *)(void *)(c.bytes + entry(&c, DT_GNU_HASH)->d_un.d_ptr);
    hash[0] = 0;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "without buckets");
    c = copy_good();
    hash = (uint32_t *)(void *)(c.bytes + entry(&c, DT_GNU_HASH)->d_un.d_ptr);
    hash[0] = UINT32_MAX; /* the bucket lies far away */
    expect_copy(&c, FTK_E_PROVIDER_ELF, "hash bucket");
    c = copy_good();
    hash = (uint32_t *)(void *)(c.bytes + entry(&c, DT_GNU_HASH)->d_un.d_ptr);
    hash[1] = 0x40000000; /* chains begin far away */
    expect_copy(&c, FTK_E_PROVIDER_ELF, "hash chain");
    c = copy_good();
    entry(&c, DT_SYMTAB)->d_un.d_ptr = (uint64_t)1 << 40;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "a symbol outside");
}

/* The first segment begins at address 0, so what is in it lies where its address says. */
static void *at_address(const copy *c, int64_t tag) {
    return c->bytes + entry(c, tag)->d_un.d_ptr;
}

/* A filter that denies everything, or one that the dynamic loader could not even index. */
static void asks_the_filter(void **state) {
    (void)state;
    copy c = copy_good();
    uint32_t *hash = at_address(&c, DT_GNU_HASH);
    memset(hash + 4, 0, (size_t)hash[2] * 8);
    expect_copy(&c, FTK_E_PROVIDER_ENTRY, "nothing of its own");
    c = copy_good();
    hash = at_address(&c, DT_GNU_HASH);
    memset(hash + 4, 0xff, (size_t)hash[2] * 8);
    expect_copy(&c, FTK_OK, "");
    static const struct {
        uint32_t words, shift;
        const char *part;
    } cases[] = {
        {0, 6, "odd size or shift"},
        {3, 6, "odd size or shift"},
        {1, 32, "odd size or shift"},
        {(uint32_t)1 << 31, 6, "a filter of symbols outside"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        c = copy_good();
        hash = at_address(&c, DT_GNU_HASH);
        hash[2] = cases[i].words;
        hash[3] = cases[i].shift;
        expect_copy(&c, FTK_E_PROVIDER_ELF, cases[i].part);
    }
}

static uint32_t entry_index(const copy *c) {
    const Elf64_Sym *symbols = at_address(c, DT_SYMTAB);
    const char *strings = at_address(c, DT_STRTAB);
    uint32_t i = 1;
    while (strcmp(strings + symbols[i].st_name, FTK_PROVIDER_ENTRY) != 0) i++;
    return i;
}

static void expect_symbol(Elf64_Sym change, ftk_status wanted, const char *part) {
    copy c = copy_good();
    Elf64_Sym *symbol = (Elf64_Sym *)at_address(&c, DT_SYMTAB) + entry_index(&c);
    change.st_name = symbol->st_name;
    *symbol = change;
    expect_copy(&c, wanted, part);
}

static void judges_the_entry(void **state) {
    (void)state;
    copy c = copy_good();
    const Elf64_Sym fine = ((Elf64_Sym *)at_address(&c, DT_SYMTAB))[entry_index(&c)];
    free(c.bytes);
    const struct {
        unsigned bind, type, visibility;
        uint16_t section;
        uint64_t value;
        ftk_status status;
        const char *part;
    } cases[] = {
        {STB_GLOBAL, STT_FUNC, STV_DEFAULT, 9, fine.st_value, FTK_OK, ""},
        {STB_WEAK, STT_FUNC, STV_PROTECTED, 9, fine.st_value, FTK_OK, ""},
        {STB_LOCAL, STT_FUNC, STV_DEFAULT, 9, fine.st_value, FTK_E_PROVIDER_ENTRY, "local symbol"},
        {STB_GLOBAL, STT_OBJECT, STV_DEFAULT, 9, fine.st_value, FTK_E_PROVIDER_ENTRY,
         "something else than a function"},
        {STB_GLOBAL, STT_FUNC, STV_HIDDEN, 9, fine.st_value, FTK_E_PROVIDER_ENTRY,
         "hidden or internal"},
        {STB_GLOBAL, STT_FUNC, STV_INTERNAL, 9, fine.st_value, FTK_E_PROVIDER_ENTRY,
         "hidden or internal"},
        {STB_GLOBAL, STT_FUNC, STV_DEFAULT, SHN_UNDEF, fine.st_value, FTK_E_PROVIDER_ENTRY,
         "nothing of its own"},
        {STB_GLOBAL, STT_FUNC, STV_DEFAULT, SHN_ABS, fine.st_value, FTK_E_PROVIDER_ENTRY,
         "no section"},
        {STB_GLOBAL, STT_FUNC, STV_DEFAULT, 9, 0, FTK_E_PROVIDER_ENTRY, "value 0"},
        {STB_GLOBAL, STT_FUNC, STV_DEFAULT, 9, 64, FTK_E_PROVIDER_ENTRY,
         "outside the file's executable segments"},
        {STB_GLOBAL, STT_FUNC, STV_DEFAULT, 9, UINT64_MAX, FTK_E_PROVIDER_ENTRY,
         "outside the file's executable segments"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++)
        expect_symbol(
            (Elf64_Sym){
                .st_info = (unsigned char)ELF64_ST_INFO(cases[i].bind, cases[i].type),
                .st_other = (unsigned char)cases[i].visibility,
                .st_shndx = cases[i].section,
                .st_value = cases[i].value,
                .st_size = fine.st_size,
            },
            cases[i].status, cases[i].part);
}

static void judges_the_version_of_the_entry(void **state) {
    (void)state;
    static const struct {
        uint16_t version;
        ftk_status status;
        const char *part;
    } cases[] = {
        {1, FTK_OK, ""},
        {0, FTK_E_PROVIDER_ENTRY, "a local version"},
        {0x8002, FTK_E_PROVIDER_ENTRY, "a hidden version"},
        {0x8001, FTK_E_PROVIDER_ENTRY, "a hidden version"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        copy c = copy_good();
        ((uint16_t *)at_address(&c, DT_VERSYM))[entry_index(&c)] = cases[i].version;
        expect_copy(&c, cases[i].status, cases[i].part);
    }
    copy c = copy_good();
    entry(&c, DT_VERSYM)->d_un.d_ptr = (uint64_t)1 << 40;
    expect_copy(&c, FTK_E_PROVIDER_ELF, "a symbol's version outside");
    c = copy_good();
    add_entry(&c, DT_VERSYM, entry(&c, DT_VERSYM)->d_un.d_val);
    expect_copy(&c, FTK_E_PROVIDER_ELF, "2 dynamic entries DT_VERSYM");
}

/* A name that only ends because the string table does would be a longer one in
 * memory. */
static void names_end_inside_the_table(void **state) {
    (void)state;
    copy c = copy_good();
    entry(&c, DT_STRSZ)->d_un.d_val = entry(&c, DT_NEEDED)->d_un.d_val + strlen("libc.so.6");
    expect_copy(&c, FTK_E_PROVIDER_ELF, "has no end");
}

/* The loader takes the dynamic section from memory, so what lies at p_offset
 * means nothing: a harmless section there must not hide the one that counts. */
static void addresses_count_not_offsets(void **state) {
    (void)state;
    copy c = copy_good();
    const Elf64_Phdr *p = segment(&c, PT_DYNAMIC);
    size_t more = p->p_filesz;
    unsigned char *longer = malloc(good_size + more);
    assert_non_null(longer);
    memcpy(longer, good, good_size);
    memcpy(longer + good_size, good + p->p_offset, more);
    copy view = {.bytes = longer, .header = (Elf64_Ehdr *)(void *)longer};
    view.segments = (Elf64_Phdr *)(void *)(longer + view.header->e_phoff);
    view.dynamic = (Elf64_Dyn *)(void *)(longer + p->p_offset);
    add_entry(&view, DT_RUNPATH, 1);
    segment(&view, PT_DYNAMIC)->p_offset = good_size;
    expect_bytes(longer, good_size + more, FTK_E_PROVIDER_ELF, "DT_RUNPATH");
    free(longer);
    free(c.bytes);
}

/* Without a crash, and with a status that belongs to the inspection. */
static ftk_status survive(const unsigned char *bytes, size_t size) {
    ftk_error err = FTK_ERROR_INIT;
    char *note = NULL;
    ftk_status status = inspect_bytes(bytes, size, &note, &err);
    assert_true(status == FTK_OK || status == FTK_E_PROVIDER_ELF ||
                status == FTK_E_PROVIDER_IDENTITY || status == FTK_E_PROVIDER_ENTRY);
    assert_true((status == FTK_OK) == (note != NULL));
    fti_free(note);
    return status;
}

static void refuses_every_truncation(void **state) {
    (void)state;
    copy c = copy_good();
    uint64_t end = 0;
    for (size_t i = 0; i < c.header->e_phnum; i++) {
        const Elf64_Phdr *p = &c.segments[i];
        if (p->p_type == PT_LOAD && p->p_offset + p->p_filesz > end)
            end = p->p_offset + p->p_filesz;
    }
    assert_in_range(end, 1, good_size - 1);
    for (size_t n = 0; n < end; n += n < 1024 || n + 64 > end ? 1 : 7)
        assert_int_equal(survive(good, n), FTK_E_PROVIDER_ELF);
    assert_int_equal(survive(good, end), FTK_OK); /* only sections are missing */
    free(c.bytes);
}

static void flip(size_t from, size_t size) {
    copy c = copy_good();
    for (size_t i = from; i < from + size; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            c.bytes[i] = (unsigned char)(good[i] ^ (1u << bit));
            survive(c.bytes, good_size);
        }
        c.bytes[i] = 0;
        survive(c.bytes, good_size);
        c.bytes[i] = 0xff;
        survive(c.bytes, good_size);
        c.bytes[i] = good[i];
    }
    free(c.bytes);
}

static void survives_flips_of_headers(void **state) {
    (void)state;
    copy c = copy_good();
    flip(0, sizeof(Elf64_Ehdr));
    flip(c.header->e_phoff, c.header->e_phnum * sizeof(Elf64_Phdr));
    flip(segment(&c, PT_DYNAMIC)->p_offset, segment(&c, PT_DYNAMIC)->p_filesz);
    flip(segment(&c, PT_NOTE)->p_offset, 64);
    flip(entry(&c, DT_GNU_HASH)->d_un.d_ptr, 64); /* the first segment begins at address 0 */
    flip(entry(&c, DT_SYMTAB)->d_un.d_ptr, 24 * 16);
    free(c.bytes);
}

/* Several fields at once, from a generator of fixed seed. */
static void survives_mutations(void **state) {
    (void)state;
    uint64_t x = 0x9e3779b97f4a7c15u;
    copy c = copy_good();
    const size_t dynamic = segment(&c, PT_DYNAMIC)->p_offset;
    for (int round = 0; round < 20000; round++) {
        memcpy(c.bytes, good, good_size);
        for (int k = 0; k < 3; k++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            size_t at = (x & 1 ? 0 : dynamic) + ((x >> 1) % 70) * 8;
            uint64_t value = x >> (x >> 58);
            memcpy(c.bytes + at, &value, sizeof value);
        }
        survive(c.bytes, good_size);
    }
    free(c.bytes);
}

static void needs_a_descriptor(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    char *note = NULL;
    expect_status(fti_elf_inspect(-1, "/x", &note, &err), FTK_E_PROVIDER_ELF, &err, "'/x'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_note),
        cmocka_unit_test(judges_fixtures),
        cmocka_unit_test(refuses_other_files),
        cmocka_unit_test(refuses_headers),
        cmocka_unit_test(ignores_sections),
        cmocka_unit_test(judges_segments),
        cmocka_unit_test(judges_trusted_segments),
        cmocka_unit_test(judges_notes_and_thread_images),
        cmocka_unit_test(judges_relocations),
        cmocka_unit_test(judges_packed_relocations),
        cmocka_unit_test(judges_version_tables),
        cmocka_unit_test(judges_load_segments),
        cmocka_unit_test(refuses_dynamic_entries),
        cmocka_unit_test(refuses_broken_tables),
        cmocka_unit_test(refuses_broken_dynamic_sections),
        cmocka_unit_test(refuses_broken_hash_tables),
        cmocka_unit_test(asks_the_filter),
        cmocka_unit_test(judges_the_entry),
        cmocka_unit_test(judges_the_version_of_the_entry),
        cmocka_unit_test(names_end_inside_the_table),
        cmocka_unit_test(addresses_count_not_offsets),
        cmocka_unit_test(refuses_every_truncation),
        cmocka_unit_test(survives_flips_of_headers),
        cmocka_unit_test(survives_mutations),
        cmocka_unit_test(needs_a_descriptor),
    };
    return cmocka_run_group_tests_name("test_elf", tests, read_good, free_good);
}
