/*
 * entry.c: the provider loaded by the core's own loader, and its entry: pure, constant,
 * and honest about what it claims.
 */
#include "mock.h"

#include <dlfcn.h>
#include <stdio.h>

static ftk_str first_word(const char *list) {
    return (ftk_str){list, strcspn(list, " ")};
}

const ftk_provider *fti_pc_load(const fti_pc_target *target) {
    fti_allow allow = target->allow;
    const struct ftk_config config = {.allow = &allow, .allow_count = 1};
    const fti_provider_query query = {.architecture = first_word(target->manifest->architectures),
                                      .container = first_word(target->manifest->containers)};
    const fti_provider *provider = NULL;
    ftk_error error = FTK_ERROR_INIT;
    fti_pc_at("loading");
    ftk_status status = fti_provider_resolve(&config, &query, &provider, &error);
    if (!fti_pc_check(status == FTK_OK, "%s", error.message)) return NULL;
    return provider->table;
}

/* ---- purity ---- */

/* True if the memory can be written by this process. */
static bool writable(const void *address) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    bool found = false;
    while (maps && !found && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char mode[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3) continue;
        if ((uintptr_t)address < from || (uintptr_t)address >= to) continue;
        found = mode[1] == 'w';
        break;
    }
    if (maps) fclose(maps);
    return found;
}

static void check_constant(const void *address, const char *what) {
    fti_pc_check(!writable(address), "%s lies in writable memory, wanted static const data", what);
}

/* The entry of the object that the loader put there. */
static ftk_provider_entry entry_of(const fti_pc_target *target) {
    ftk_provider_entry entry = NULL;
    void *handle = dlopen(target->allow.path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    void *symbol = handle ? dlsym(handle, FTK_PROVIDER_ENTRY) : NULL;
    memcpy(&entry, &symbol, sizeof entry);
    return entry;
}

static const ftk_provider *call_entry(ftk_provider_entry entry) {
    fti_pc_state before, after;
    fti_pc_state_take(&before);
    (void)fti_pc_trap(FTI_PC_CALLS);
    const ftk_provider *table = entry();
    (void)fti_pc_trap(FTI_PC_HOSTS);
    fti_pc_state_take(&after);
    fti_pc_state_compare(&before, &after, FTI_PC_OF_ALL, "the entry");
    return table;
}

static bool owned_name(ftk_str name) {
    const char *slash = name.size ? memchr(name.data, '/', (size_t)name.size) : NULL;
    return slash && slash > name.data && slash + 1 < name.data + name.size;
}

static void check_table(const ftk_variant_table *t) {
    check_constant(t, "a variant table");
    check_constant(t->variants, "the rows of a variant table");
    fti_pc_check(owned_name(t->operation), "the operation '%.*s' is not named owner/operation",
                 FTI_STR_ARGS(t->operation));
    for (uint64_t i = 0; i < t->variant_count; i++) {
        const ftk_variant *v = (const ftk_variant *)(const void *)((const char *)t->variants +
                                                                   i * t->variant_stride);
        fti_pc_check(owned_name(v->name), "the variant '%.*s' is not named owner/operation_variant",
                     FTI_STR_ARGS(v->name));
        fti_pc_check(v->need_count == 0 || v->needs, "the variant '%.*s' has needs, but no list",
                     FTI_STR_ARGS(v->name));
    }
}

static void check_entry(ftk_provider_entry entry) {
    const ftk_provider *table = call_entry(entry);
    for (int again = 0; again < 3; again++)
        fti_pc_check(call_entry(entry) == table,
                     "the entry gave another address when it was called again");
    check_constant(table, "the table");
    check_constant(table->identity, "the identity");
    if (table->variant_table_count > 0) check_constant(table->variants, "the list of variants");
    for (uint64_t i = 0; i < table->variant_table_count; i++) check_table(table->variants[i]);
}

void fti_pc_pass_entry(const fti_pc_target *target) {
    fti_pc_state before, after;
    fti_pc_state_take(&before);
    if (!fti_pc_load(target)) return;
    fti_pc_state_take(&after);
    fti_pc_state_compare(&before, &after, FTI_PC_OF_THREAD | FTI_PC_OF_PROCESS, "loading");
    fti_pc_check(after.file_count <= before.file_count + 1, /* the loader keeps one */
                 "loading opened %llu files that stay open: constructors open nothing",
                 (unsigned long long)(after.file_count - before.file_count));
    ftk_provider_entry entry = entry_of(target);
    fti_pc_at("the entry");
    fti_pc_check(entry != NULL, "its entry cannot be found again");
    if (entry) check_entry(entry);
}

/* ---- match ---- */

static void check_claim(fti_pc_mock *m, ftk_str architecture, ftk_str container, ftk_str backend,
                        bool wanted) {
    uint32_t claimed = 2;
    ftk_status status = fti_pc_match(m, architecture, container, backend, &claimed);
    fti_pc_check(status == FTK_OK && claimed == (wanted ? 1u : 0u),
                 "match of %.*s in %.*s on %.*s: found %s and claimed %u, wanted FTK_OK and %u",
                 FTI_STR_ARGS(architecture), FTI_STR_ARGS(container), FTI_STR_ARGS(backend),
                 ftk_status_name(status), claimed, wanted ? 1u : 0u);
}

/* A machine without the provider's backends: ours, but not here. */
static void check_foreign_backend(fti_pc_mock *m, ftk_str architecture, ftk_str container) {
    uint32_t claimed = 2;
    ftk_status status = fti_pc_match(m, architecture, container, fti_str("no-such-backend"),
                                     &claimed);
    fti_pc_check(status == FTK_E_PROVIDER_HARDWARE,
                 "match on the backend 'no-such-backend': found %s, wanted FTK_E_PROVIDER_HARDWARE "
                 "with a report",
                 ftk_status_name(status));
}

void fti_pc_pass_match(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    fti_pc_mock *m = table ? fti_pc_mock_new(target, table) : NULL;
    if (!m) return;
    ftk_str container = fti_str(fti_checkpoint_container(target->checkpoint));
    ftk_str cpu = fti_str("cpu");
    check_claim(m, target->architecture, container, cpu, true);
    check_claim(m, target->architecture, container, cpu, true);
    check_claim(m, fti_str("no-such-architecture"), container, cpu, false);
    check_claim(m, target->architecture, fti_str("no-such-container"), cpu, false);
    check_claim(m, fti_str(""), fti_str(""), cpu, false);
    check_foreign_backend(m, target->architecture, container);
    fti_pc_mock_end(m);
}
