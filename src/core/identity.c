/* identity.c: see identity.h. */
#include "core/identity.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const keys[] = {"name",       "version",       "api_level",  "min_host_level",
                                   "core_range", "architectures", "containers", "backends",
                                   "license",    "device_code",   "provides"};
enum { API_LEVEL = 2, MIN_HOST_LEVEL = 3, PROVIDES = 10 };
_Static_assert(FTI_COUNT(keys) == FTI_IDENTITY_KEYS, "one key per value");

static void finish(fti_identity *id, uint32_t api_level, uint32_t min_host_level) {
    snprintf(id->number[0], sizeof id->number[0], "%u", api_level);
    snprintf(id->number[1], sizeof id->number[1], "%u", min_host_level);
    id->value[API_LEVEL] = fti_str(id->number[0]);
    id->value[MIN_HOST_LEVEL] = fti_str(id->number[1]);
}

static void fill_defaults(fti_identity *id) {
    if (id->value[PROVIDES].size == 0) id->value[PROVIDES] = fti_str("model");
}

void fti_identity_of_manifest(const fti_manifest *m, fti_identity *id) {
    const char *const text[FTI_IDENTITY_KEYS] = {
        m->name,       m->version,  NULL,       NULL,           m->core_range, m->architectures,
        m->containers, m->backends, m->license, m->device_code, m->provides};
    for (size_t i = 0; i < FTI_IDENTITY_KEYS; i++) id->value[i] = fti_str(text[i]);
    finish(id, m->api_level, m->min_host_level);
    fill_defaults(id);
}

void fti_identity_of_table(const ftk_identity *from, fti_identity *id) {
    const ftk_str text[FTI_IDENTITY_KEYS] = {
        from->name,          from->version,    {NULL, 0},      {NULL, 0},    from->core_range,
        from->architectures, from->containers, from->backends, from->license};
    memcpy(id->value, text, sizeof text);
    if (FTK_HAS(from, device_code)) id->value[FTI_IDENTITY_REQUIRED] = from->device_code;
    if (FTK_HAS(from, provides)) id->value[PROVIDES] = from->provides;
    finish(id, from->api_level, from->min_host_level);
    fill_defaults(id);
}

/* ---- note ---- */

static ftk_status note_line(const char *path, ftk_str line, fti_identity *id, ftk_error *err) {
    for (size_t i = 0; i < FTI_IDENTITY_KEYS; i++) {
        size_t n = strlen(keys[i]);
        if (line.size <= n || memcmp(line.data, keys[i], n) != 0 || line.data[n] != '=') continue;
        if (id->value[i].data)
            return fti_fail(err, FTK_E_PROVIDER_IDENTITY,
                            "'%s' refused: found '%s' twice in the freetoken note, wanted it once",
                            path, keys[i]);
        id->value[i] = (ftk_str){line.data + n + 1, line.size - n - 1};
        return FTK_OK;
    }
    return fti_fail(err, FTK_E_PROVIDER_IDENTITY,
                    "'%s' refused: found the line '%.*s' in the freetoken note, wanted 'key=value' "
                    "with the keys of FTK_PROVIDER_NOTE",
                    path, FTI_STR_ARGS(line));
}

ftk_status fti_identity_of_note(const char *path, const char *note, fti_identity *id,
                                ftk_error *err) {
    memset(id, 0, sizeof *id);
    while (*note) {
        size_t n = strcspn(note, "\n");
        FTI_TRY(note_line(path, (ftk_str){note, n}, id, err));
        note += n + (note[n] == '\n');
    }
    for (size_t i = 0; i < FTI_IDENTITY_REQUIRED; i++)
        if (!id->value[i].data)
            return fti_fail(err, FTK_E_PROVIDER_IDENTITY,
                            "'%s' refused: found no '%s' in the freetoken note, wanted all nine "
                            "keys of FTK_PROVIDER_NOTE",
                            path, keys[i]);
    fill_defaults(id);
    return FTK_OK;
}

/* ---- agreement ---- */

ftk_status fti_identity_compare(const char *path, const char *source, const fti_identity *found,
                                const fti_manifest *manifest, ftk_error *err) {
    fti_identity wanted;
    fti_identity_of_manifest(manifest, &wanted);
    for (size_t i = 0; i < FTI_IDENTITY_KEYS; i++)
        if (!fti_str_eq(found->value[i], wanted.value[i]))
            return fti_fail(err, FTK_E_PROVIDER_IDENTITY,
                            "'%s' refused: %s: found '%.*s' in its %s, wanted '%.*s' as in "
                            "'%s'; install library and manifest of one build",
                            path, keys[i], FTI_STR_ARGS(found->value[i]), source,
                            FTI_STR_ARGS(wanted.value[i]), manifest->path);
    return FTK_OK;
}

ftk_status fti_identity_manifest(const char *path, const fti_identity *id, fti_manifest **out,
                                 ftk_error *err) {
    fti_manifest *m = fti_calloc(1, sizeof *m);
    if (!m) return fti_no_memory(err, sizeof *m, "a provider's identity");
    const struct {
        char **text;
        ftk_str value;
    } texts[] = {{&m->path, fti_str(path)},      {&m->name, id->value[0]},
                 {&m->version, id->value[1]},    {&m->distribution, fti_str("")},
                 {&m->core_range, id->value[4]}, {&m->distribution_version, fti_str("")},
                 {&m->library, fti_str("")},     {&m->platform, fti_str(FTI_PLATFORM)},
                 {&m->backends, id->value[7]},   {&m->architectures, id->value[5]},
                 {&m->license, id->value[8]},    {&m->containers, id->value[6]},
                 {&m->provides, id->value[10]},  {&m->device_code, id->value[9]}};
    bool failed = false;
    for (size_t i = 0; i < FTI_COUNT(texts); i++) {
        ftk_str value = texts[i].value;
        *texts[i].text = fti_strndup(value.size ? value.data : "", (size_t)value.size);
        failed = failed || !*texts[i].text;
    }
    m->manifest_version = 1;
    m->api_level = (uint32_t)strtoul(id->number[0], NULL, 10);
    m->min_host_level = (uint32_t)strtoul(id->number[1], NULL, 10);
    if (failed) {
        fti_manifest_free(m);
        return fti_no_memory(err, 0, "a provider's identity");
    }
    *out = m;
    return FTK_OK;
}

/* ---- the record ---- */

/* What a pinned digest says suffices; without a pin, the file that was opened must be the
 * same one too. What is linked in is compared by the file that holds it; where that has no digest,
 * by name, version and level alone. */
ftk_status fti_provider_record(const fti_provider *p, ftk_str architecture, ftk_str container,
                               char **out, ftk_error *err) {
    fti_text t = {0};
    fti_text_printf(&t, "core=" FTK_VERSION_STRING "\nhost_level=%u\neffective_level=%u\n",
                    FTK_API_LEVEL, p->effective_level);
    fti_text_printf(&t, "architecture=%.*s\ncontainer=%.*s\n", FTI_STR_ARGS(architecture),
                    FTI_STR_ARGS(container));
    fti_text_printf(&t, "name=%s\nversion=%s\npath=%s\nsha256=%s\npinned=%d\n", p->manifest->name,
                    p->manifest->version, p->path, p->sha256[0] ? p->sha256 : "none", p->pinned);
    if (!p->pinned && !p->linked)
        fti_text_printf(&t, "device=%llu\ninode=%llu\nmodified=%lld.%09ld\n",
                        (unsigned long long)p->device, (unsigned long long)p->inode,
                        (long long)p->modified.tv_sec, p->modified.tv_nsec);
    if (!t.failed && t.data) {
        *out = t.data;
        return FTK_OK;
    }
    fti_text_free(&t);
    return fti_no_memory(err, 0, "a provider's record");
}

static ftk_str take_line(const char **text) {
    ftk_str line = {*text, strcspn(*text, "\n")};
    *text += line.size + ((*text)[line.size] == '\n');
    return line;
}

static ftk_status compare_records(const char *wanted, const char *found, ftk_error *err) {
    while (*wanted || *found) {
        ftk_str w = take_line(&wanted), f = take_line(&found);
        if (!fti_str_eq(w, f))
            return fti_fail(err, FTK_E_PROVIDER_RECORD,
                            "this process resolves another provider than the one that passed the "
                            "record: found '%.*s', wanted '%.*s'; start both from the same "
                            "configuration and files, and restart the first after an upgrade",
                            FTI_STR_ARGS(f), FTI_STR_ARGS(w));
    }
    return FTK_OK;
}

ftk_status fti_record_check(const char *record, const fti_provider *provider, ftk_str architecture,
                            ftk_str container, ftk_error *err) {
    char *own = NULL;
    ftk_status status = fti_provider_record(provider, architecture, container, &own, err);
    if (!own) return status;
    status = compare_records(record, own, err);
    fti_free(own);
    return status;
}
