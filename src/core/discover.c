/*
 * discover.c: the manifests that search folders hold, allowed or not. Reads data only:
 * what is found here is never opened as code.
 */
#include "core/loading.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

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
    int n = snprintf(path, sizeof path, "%s/%s" FTI_MANIFEST_SUFFIX, folder, name);
    if (n < 0 || (size_t)n >= sizeof path) return FTK_OK;
    struct stat st;
    if (lstat(path, &st) != 0) return FTK_OK;
    fti_found_provider *item = append_found(list, path);
    if (!item) return fti_no_memory(list->err, sizeof *item, "found providers");
    ftk_status status = fti_manifest_read(path, &item->manifest, &item->error);
    if (status == FTK_E_NO_MEMORY) return fti_fail(list->err, status, "%-s", item->error.message);
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

static bool is_manifest(const char *name) {
    const size_t suffix = sizeof FTI_MANIFEST_SUFFIX - 1, n = strlen(name);
    return n > suffix && strcmp(name + n - suffix, FTI_MANIFEST_SUFFIX) == 0;
}

/* It would never be found there. */
static ftk_status report_manifest(found_list *list, const char *folder, const char *name) {
    fti_found_provider *item = append_found(list, folder);
    if (!item) return fti_no_memory(list->err, sizeof *item, "found providers");
    fti_fail(&item->error, FTK_E_PROVIDER_PATH,
             "found the manifest '%s' in the folder '%s' of providers.search, wanted folders that "
             "hold one each: name its parent",
             name, folder);
    return FTK_OK;
}

static int not_hidden(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static ftk_status search_folder(found_list *list, const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, not_hidden, alphasort);
    if (count < 0 && errno == ENOMEM) return fti_no_memory(list->err, 0, "a search folder");
    if (count < 0) return report_folder(list, folder, errno);
    ftk_status status = FTK_OK;
    for (int i = 0; i < count; i++) {
        char sub[PATH_MAX];
        if (status == FTK_OK && is_manifest(entries[i]->d_name))
            status = report_manifest(list, folder, entries[i]->d_name);
        int n = snprintf(sub, sizeof sub, "%s/%s", folder, entries[i]->d_name);
        if (status == FTK_OK && n > 0 && (size_t)n < sizeof sub)
            status = read_found(list, sub, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* ---- one folder under several names ---- */

typedef struct place {
    dev_t device;
    ino_t inode;
    bool known;     /* it is there */
    bool canonical; /* its name is without symbolic links, as those of manifests must be */
} place;

static place place_of(const char *folder) {
    struct stat st;
    if (stat(folder, &st) != 0) return (place){.known = false};
    char *real = realpath(folder, NULL);
    bool canonical = real && strcmp(real, folder) == 0;
    free(real);
    return (place){st.st_dev, st.st_ino, true, canonical};
}

static bool same_place(const place *a, const place *b) {
    return a->known && b->known && a->device == b->device && a->inode == b->inode;
}

/* The first name of a folder, or the first without links if there is one. */
static size_t first_name(const place *places, size_t count, size_t of) {
    size_t first = of;
    for (size_t i = 0; i < count; i++) {
        if (!same_place(&places[i], &places[of])) continue;
        if (places[i].canonical) return i;
        if (i < first) first = i;
    }
    return first;
}

ftk_status fti_search_names(const struct ftk_config *config, size_t **out, ftk_error *err) {
    const size_t count = config->search_count;
    size_t *names = fti_calloc(count, sizeof *names);
    place *places = fti_calloc(count, sizeof *places);
    if (names && places) {
        for (size_t i = 0; i < count; i++) places[i] = place_of(config->search[i]);
        for (size_t i = 0; i < count; i++) names[i] = first_name(places, count, i);
        fti_free(places);
        *out = names;
        return FTK_OK;
    }
    fti_free(names);
    fti_free(places);
    return fti_no_memory(err, count * sizeof *places, "search folders");
}

ftk_status fti_provider_discover(const struct ftk_config *config, fti_found_provider **out,
                                 size_t *count, ftk_error *err) {
    found_list list = {config, NULL, 0, err};
    size_t *names = NULL;
    ftk_status status = fti_search_names(config, &names, err);
    if (!names) return status;
    for (size_t i = 0; status == FTK_OK && i < config->search_count; i++)
        if (names[i] == i) status = search_folder(&list, config->search[i]);
    fti_free(names);
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
