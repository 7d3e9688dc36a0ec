/* contract.c: see contract.h. */
#include "core/contract.h"

#include "core/semver.h"

#include <stdio.h>

#define MAX_TABLE_BYTES  4096u
#define MAX_STRING_BYTES 4096u
#define MAX_VARIANTS     4096u

/* What every level has; younger members are asked for with FTK_HAS. */
#define LEAST_TABLE    offsetof(ftk_provider, format_chat)
#define LEAST_IDENTITY offsetof(ftk_identity, device_code)

/* ---- before anything runs ---- */

ftk_status fti_contract_versions(const fti_manifest *m, uint32_t *effective, ftk_error *err) {
    const fti_levels host = {FTK_API_LEVEL, FTK_MIN_PROVIDER_LEVEL};
    const fti_levels provider = {m->api_level, m->min_host_level};
    const fti_semver core = {FTK_VERSION_MAJOR, FTK_VERSION_MINOR, FTK_VERSION_PATCH};
    if (!fti_levels_meet(host, provider, effective))
        return fti_fail(
            err, FTK_E_PROVIDER_LEVEL,
            "'%s' refused: found api_level %u and min_host_level %u, wanted %s%u (this "
            "libfreetoken has level %u); install matching versions of both, or build against "
            "this one's headers: set API_LEVEL in CMakeLists.txt to FTK_API_LEVEL of "
            "version.h",
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

ftk_status fti_contract_hardware(const fti_manifest *m, const fti_provider_query *q,
                                 ftk_error *err) {
    if (q->backend && !fti_list_has(m->backends, fti_str(q->backend)))
        return fti_fail(err, FTK_E_PROVIDER_HARDWARE,
                        "'%s' refused: found backends '%s', wanted '%s', the backend of this "
                        "engine; set backend.kind to one of them, or install a build of the "
                        "provider for %s",
                        m->path, m->backends, q->backend, q->backend);
    if (q->device_code && !fti_list_has(m->device_code, fti_str(q->device_code)))
        return fti_fail(err, FTK_E_PROVIDER_HARDWARE,
                        "'%s' refused: found device_code '%s', wanted '%s', what this device "
                        "runs; install a build of the provider with code for it, or set "
                        "backend.kind: cpu if the provider has that backend",
                        m->path, m->device_code, q->device_code);
    return FTK_OK;
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

ftk_status fti_contract_call(const char *path, ftk_provider_entry entry, const ftk_provider **out,
                             ftk_error *err) {
    const ftk_provider *table = entry();
    if (!table)
        return fti_fail(err, FTK_E_PROVIDER_ENTRY,
                        "'%s' refused: found NULL from " FTK_PROVIDER_ENTRY "(), wanted a table",
                        path);
    if (entry() != table)
        return broken(path, err, "another address on the second call of its entry",
                      "the same constant");
    FTI_TRY(check_size(path, "table", table->struct_size, LEAST_TABLE, err));
    *out = table;
    return FTK_OK;
}

ftk_status fti_contract_identity(const char *path, const ftk_provider *table,
                                 fti_identity *identity, ftk_error *err) {
    const ftk_identity *from = table->identity;
    if (!from) return broken(path, err, "no identity", "one");
    FTI_TRY(check_size(path, "identity", from->struct_size, LEAST_IDENTITY, err));
    fti_identity_of_table(from, identity);
    for (size_t i = 0; i < FTI_IDENTITY_KEYS; i++)
        if (identity->value[i].size > MAX_STRING_BYTES ||
            (identity->value[i].size > 0 && !identity->value[i].data))
            return broken(path, err, "an impossible string in the identity",
                          "strings of at most 4096 bytes");
    return FTK_OK;
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

/* ---- variants ---- */

/* Whose code a name of a variant or a counter stands for must be certain. */
static ftk_status check_owner(const char *path, const fti_manifest *manifest, ftk_str name,
                              ftk_error *err) {
    size_t n = strlen(manifest->name);
    if (name.data && name.size > n + 1 && name.size <= 128 &&
        memcmp(name.data, manifest->name, n) == 0 && name.data[n] == '/')
        return FTK_OK;
    return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                    "'%s' refused: found the name '%.*s' in its variant tables, wanted "
                    "'%s/...': operations and variants are named by their owner",
                    path, FTI_STR_ARGS(name), manifest->name);
}

static const ftk_variant *row_at(const ftk_variant_table *t, uint64_t row) {
    return (const ftk_variant *)(const void *)((const char *)t->variants + row * t->variant_stride);
}

static ftk_status check_variants(const char *path, const ftk_variant_table *t,
                                 const fti_manifest *manifest, ftk_error *err) {
    if (!t) return broken(path, err, "a NULL variant table", "one per operation");
    FTI_TRY(check_size(path, "variant table", t->struct_size, sizeof *t, err));
    if (!t->variants || t->variant_count == 0 || t->variant_count > MAX_VARIANTS ||
        t->variant_stride < sizeof(ftk_variant) || t->variant_stride > MAX_TABLE_BYTES ||
        t->variant_stride % 8 != 0)
        return broken(path, err, "a variant table without rows, or with rows of an odd size",
                      "1 to 4096 rows and their stride");
    FTI_TRY(check_owner(path, manifest, t->operation, err));
    for (uint64_t i = 0; i < t->variant_count; i++) {
        const ftk_variant *row = row_at(t, i);
        FTI_TRY(check_owner(path, manifest, row->name, err));
        if (row->need_count > 0 && !row->needs)
            return broken(path, err, "needs of a variant that are NULL", "a list of them");
    }
    uint64_t needs = row_at(t, t->variant_count - 1)->need_count;
    if (needs == 0) return FTK_OK;
    return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                    "'%s' refused: found %llu needs in the last variant of '%.*s', wanted none: "
                    "the last one is the reference that runs everywhere",
                    path, (unsigned long long)needs, FTI_STR_ARGS(t->operation));
}

static ftk_status check_variant_tables(const char *path, const ftk_provider *t,
                                       const fti_manifest *manifest, ftk_error *err) {
    if (t->variant_table_count > MAX_VARIANTS || (t->variant_table_count > 0 && !t->variants))
        return broken(path, err, "an impossible list of variant tables", "at most 4096");
    for (uint64_t i = 0; i < t->variant_table_count; i++)
        FTI_TRY(check_variants(path, t->variants[i], manifest, err));
    return FTK_OK;
}

/* ---- the copy ---- */

static ftk_status no_format_chat(const ftk_model *model, const ftk_chat_in *in,
                                 const ftk_chat_out *out) {
    (void)model;
    (void)in;
    snprintf(out->message, out->message_size, "the provider formats no dialogues");
    return FTK_E_UNSUPPORTED;
}

ftk_status fti_contract_copy(const char *path, const ftk_provider *table,
                             const fti_manifest *manifest, ftk_provider *copy, ftk_error *err) {
    size_t known = table->struct_size < sizeof *copy ? table->struct_size : sizeof *copy;
    memset(copy, 0, sizeof *copy);
    memcpy(copy, table, known);
    copy->struct_size = (uint32_t)sizeof *copy;
    FTI_TRY(check_slots(path, copy, err));
    if (!copy->format_chat) copy->format_chat = no_format_chat;
    return check_variant_tables(path, copy, manifest, err);
}
