/*
 * providers_report.c: what an operator can ask about providers without running
 * any: which ones the search folders hold, which are allowed, and what every
 * check before loading says of them.
 */
#include "core/engine.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void set_text(json_t **object, const char *key, const char *value) {
    fti_json_set(object, key, fti_json_str(fti_str(value ? value : "")));
}

static void describe_manifest(json_t **o, const fti_manifest *m) {
    const struct {
        const char *key, *value;
    } texts[] = {{"name", m->name},
                 {"version", m->version},
                 {"manifest", m->path},
                 {"distribution", m->distribution},
                 {"distribution_version", m->distribution_version},
                 {"architectures", m->architectures},
                 {"containers", m->containers},
                 {"provides", m->provides[0] ? m->provides : "model"},
                 {"backends", m->backends},
                 {"device_code", m->device_code},
                 {"license", m->license},
                 {"core_range", m->core_range}};
    for (size_t i = 0; i < FTI_COUNT(texts); i++) set_text(o, texts[i].key, texts[i].value);
    fti_json_set(o, "api_level", json_integer(m->api_level));
    fti_json_set(o, "min_host_level", json_integer(m->min_host_level));
}

/* Path of the shared object that a manifest names, in its own folder. */
static char *library_path(const fti_manifest *m) {
    fti_text path = {0};
    const char *slash = strrchr(m->path, '/');
    fti_text_append(&path, m->path, slash ? (size_t)(slash - m->path) + 1 : 0);
    fti_text_printf(&path, "%s", m->library);
    if (path.failed) fti_text_free(&path);
    return path.data;
}

static json_t *allowed_json(const ftk_config *config, const fti_allow *allow) {
    ftk_error error = FTK_ERROR_INIT;
    fti_manifest *manifest = NULL;
    ftk_status status = fti_provider_check(config, allow, &manifest, NULL, &error);
    /* Says nothing of the provider: the report as a whole found no memory. */
    if (status == FTK_E_NO_MEMORY) {
        fti_manifest_free(manifest);
        return NULL;
    }
    json_t *o = json_object();
    set_text(&o, "name", allow->name);
    if (manifest) describe_manifest(&o, manifest);
    set_text(&o, "path", allow->path);
    fti_json_set(&o, "allowed", json_true());
    fti_json_set(&o, "pinned", json_boolean(allow->sha256 != NULL));
    set_text(&o, "status", status == FTK_OK ? "ok" : ftk_status_name(status));
    fti_json_set(&o, "exit_code", json_integer(ftk_status_exit_code(status)));
    set_text(&o, "message", status == FTK_OK ? "" : error.message);
    fti_manifest_free(manifest);
    return o;
}

/* Part of the program: nothing of it is left to be checked. */
static json_t *linked_json(const fti_provider *p) {
    json_t *o = json_object();
    describe_manifest(&o, p->manifest);
    set_text(&o, "path", p->path);
    fti_json_set(&o, "allowed", json_true());
    fti_json_set(&o, "pinned", json_false());
    set_text(&o, "status", "ok");
    set_text(&o, "message", "");
    return o;
}

static json_t *found_json(const fti_found_provider *f) {
    if (!f->manifest && f->error.status == FTK_E_NO_MEMORY) return NULL;
    json_t *o = json_object();
    if (f->manifest) {
        char *path = library_path(f->manifest);
        describe_manifest(&o, f->manifest);
        fti_json_set(&o, "path", path ? fti_json_str(fti_str(path)) : NULL);
        fti_free(path);
    } else {
        set_text(&o, "manifest", f->manifest_path);
    }
    fti_json_set(&o, "allowed", json_false());
    fti_json_set(&o, "pinned", json_false());
    set_text(&o, "status", f->manifest ? "ok" : ftk_status_name(f->error.status));
    set_text(&o, "message", f->manifest ? "" : f->error.message);
    return o;
}

/* Search folders that are another one under a second name. */
static ftk_status repeated_json(const ftk_config *config, json_t **out, ftk_error *err) {
    size_t *names;
    FTI_TRY(fti_search_names(config, &names, err));
    json_t *list = json_array();
    for (size_t i = 0; i < config->search_count; i++) {
        if (names[i] == i) continue;
        json_t *o = json_object();
        set_text(&o, "folder", config->search[i]);
        set_text(&o, "same_as", config->search[names[i]]);
        fti_json_append(&list, o);
    }
    fti_free(names);
    *out = list;
    return FTK_OK;
}

/* Says of each provider where else its name is found. Which one is meant is never a question:
 * the allowlist has paths. */
static ftk_status add_same_names(json_t *providers, ftk_error *err) {
    size_t count = json_array_size(providers);
    const char **names = fti_calloc(count, sizeof *names);
    if (!names) return fti_no_memory(err, count * sizeof *names, "names of providers");
    for (size_t i = 0; i < count; i++)
        names[i] = json_string_value(json_object_get(json_array_get(providers, i), "name"));
    bool failed = false;
    for (size_t i = 0; i < count; i++) {
        json_t *others = json_array();
        for (size_t k = 0; names[i] && k < count; k++)
            if (k != i && names[k] && strcmp(names[i], names[k]) == 0)
                fti_json_append(&others,
                                json_incref(json_object_get(json_array_get(providers, k), "path")));
        failed = failed ||
                 json_object_set_new(json_array_get(providers, i), "same_name", others) != 0;
    }
    fti_free(names);
    return failed ? fti_no_memory(err, 0, "a report") : FTK_OK;
}

static json_t *list_providers(const ftk_config *config, const fti_found_provider *found,
                              size_t count) {
    json_t *providers = json_array();
    for (size_t i = 0; i < config->allow_count; i++)
        fti_json_append(&providers, allowed_json(config, &config->allow[i]));
    for (size_t i = 0; i < config->linked_count; i++)
        fti_json_append(&providers, linked_json(config->linked[i]));
    for (size_t i = 0; i < count; i++)
        if (!found[i].allow) fti_json_append(&providers, found_json(&found[i]));
    return providers;
}

static ftk_status report_found(const ftk_config *config, const fti_found_provider *found,
                               size_t count, char **json, ftk_error *err) {
    json_t *repeated = NULL;
    FTI_TRY(repeated_json(config, &repeated, err));
    json_t *o = json_object(), *search = json_array();
    json_t *providers = list_providers(config, found, count);
    for (size_t i = 0; i < config->search_count; i++)
        fti_json_append(&search, fti_json_str(fti_str(config->search[i])));
    ftk_status status = providers ? add_same_names(providers, err) : FTK_OK;
    fti_json_set(&o, "search", search);
    json_t *select = json_object();
    for (size_t i = 0; i < config->select_count; i++)
        fti_json_set(&select, config->select[i].claim,
                     fti_json_str(fti_str(config->select[i].name)));
    fti_json_set(&o, "select", select);
    fti_json_set(&o, "search_repeated", repeated);
    fti_json_set(&o, "providers", providers);
    if (status == FTK_OK) return fti_json_dump(o, json, err);
    json_decref(o);
    return status;
}

ftk_status ftk_providers_report(const ftk_config *config, char **json, ftk_error *err) {
    if (!config || !json) return fti_fail(err, FTK_E_ARGUMENT, "config and json must not be NULL");
    fti_found_provider *found = NULL;
    size_t count = 0;
    FTI_TRY(fti_provider_discover(config, &found, &count, err));
    ftk_status status = report_found(config, found, count, json, err);
    fti_found_providers_free(found, count);
    return status;
}

static bool ends_with(const char *text, const char *suffix) {
    size_t n = strlen(text), m = strlen(suffix);
    return n > m && strcmp(text + n - m, suffix) == 0;
}

#define MANIFEST_SUFFIX ".provider.yaml"

/* The one manifest of a folder. */
static ftk_status find_manifest(const char *folder, fti_text *path, ftk_error *err) {
    DIR *dir = opendir(folder);
    if (!dir && errno == ENOMEM) return fti_no_memory(err, 0, "a folder's entries");
    if (!dir)
        return fti_fail(err, FTK_E_PROVIDER_MANIFEST,
                        "%s: cannot be read as a folder: give the folder that holds "
                        "NAME" MANIFEST_SUFFIX,
                        folder);
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (!ends_with(entry->d_name, MANIFEST_SUFFIX) || count++ > 0) continue;
        fti_text_printf(path, "%s/%s", folder, entry->d_name);
    }
    closedir(dir);
    if (path->failed) return fti_no_memory(err, strlen(folder), "a path");
    if (count == 1) return FTK_OK;
    return fti_fail(err, FTK_E_PROVIDER_MANIFEST,
                    "%s: holds %zu manifests (NAME" MANIFEST_SUFFIX "), wanted one", folder, count);
}

/* Absolute and without symlinks: what an allowlist entry must say. */
static ftk_status canonical(const char *path, char **out, ftk_error *err) {
    *out = realpath(path, NULL);
    if (*out) return FTK_OK;
    if (errno == ENOMEM) return fti_no_memory(err, strlen(path), "a path");
    return fti_fail(err, FTK_E_PROVIDER_PATH, "%s: no such file or folder", path);
}

static ftk_status describe(const fti_manifest *m, char **json, ftk_error *err) {
    static const struct ftk_config nothing = {.origin = NULL};
    char *library = library_path(m);
    if (!library) return fti_no_memory(err, 0, "a path");
    char hex[65] = "";
    fti_allow allow = {.name = m->name, .path = library};
    ftk_status status = fti_provider_check(&nothing, &allow, NULL, hex, err);
    if (status == FTK_OK) {
        json_t *o = json_object();
        describe_manifest(&o, m);
        set_text(&o, "path", library);
        set_text(&o, "sha256", hex);
        status = fti_json_dump(o, json, err);
    }
    fti_free(library);
    return status;
}

ftk_status ftk_provider_describe(const char *path, char **json, ftk_error *err) {
    if (!path || !json) return fti_fail(err, FTK_E_ARGUMENT, "path and json must not be NULL");
    char *real;
    FTI_TRY(canonical(path, &real, err));
    fti_text manifest_path = {0};
    fti_manifest *manifest = NULL;
    ftk_status status = FTK_OK;
    if (ends_with(real, ".so")) *strrchr(real, '/') = 0; /* the library stands for its folder */
    if (ends_with(real, MANIFEST_SUFFIX))
        fti_text_printf(&manifest_path, "%s", real);
    else
        status = find_manifest(real, &manifest_path, err);
    if (status == FTK_OK) status = fti_manifest_read(manifest_path.data, &manifest, err);
    if (status == FTK_OK) status = describe(manifest, json, err);
    fti_manifest_free(manifest);
    fti_text_free(&manifest_path);
    free(real);
    return status;
}
