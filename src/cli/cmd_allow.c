/* cmd_allow.c: `freetoken providers allow`: pins a provider in a configuration. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/allow_edit.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

static int system_failure(const char *path, const char *what) {
    return fti_cli_fail(FTK_E_CONFIG_READ, "%s: %s: %s", path, what, strerror(errno));
}

/* ---- which provider ---- */

static bool in_search(const json_t *report, const char *manifest) {
    size_t i;
    const json_t *folder;
    json_array_foreach(json_object_get(report, "search"), i, folder) {
        size_t length = json_string_length(folder);
        bool inside = strncmp(manifest, json_string_value(folder), length) == 0;
        if (inside && manifest[length] == '/') return true;
    }
    return false;
}

/* The one manifest in the search folders that is called `name`. */
static int pick_manifest(const json_t *report, const char *name, char **path) {
    size_t i;
    const json_t *entry;
    *path = NULL;
    json_array_foreach(json_object_get(report, "providers"), i, entry) {
        const char *manifest = fti_cli_member(entry, "manifest");
        bool match = strcmp(fti_cli_member(entry, "name"), name) == 0;
        if (!match || !in_search(report, manifest)) continue;
        if (*path && strcmp(*path, manifest) != 0) {
            int code = fti_cli_fail(FTK_E_PROVIDER_DUPLICATE,
                                    "two providers are called '%s': %s and %s; give the folder",
                                    name, *path, manifest);
            free(*path);
            *path = NULL;
            return code;
        }
        if (!*path) *path = fti_cli_format("%s", manifest);
    }
    if (*path) return 0;
    return fti_cli_fail(FTK_E_PROVIDER_NONE,
                        "no provider '%s' in the search folders of the configuration; give its "
                        "folder (with a slash: ./%s)",
                        name, name);
}

static int search_manifest(const fti_cli_common *common, const char *name, char **path) {
    json_t *report;
    int code = fti_cli_providers_report(common, &report);
    if (code) return code;
    code = pick_manifest(report, name, path);
    json_decref(report);
    return code;
}

/* A bare word is never taken for a folder of the current directory: what a search
 * folder holds was put there by the operator, what lies around here may not be.
 * Links in a given path are followed now; the entry names where they led. */
static int find_manifest(const fti_cli_common *common, const char *which, char **path) {
    bool folder = strchr(which, '/') || strcmp(which, ".") == 0 || strcmp(which, "..") == 0;
    if (!folder) return search_manifest(common, which, path);
    *path = realpath(which, NULL);
    if (*path) return 0;
    return fti_cli_fail(FTK_E_PROVIDER_PATH, "%s: %s", which, strerror(errno));
}

static int describe(const fti_cli_common *common, const char *which, json_t **provider) {
    char *path = NULL;
    int code = find_manifest(common, which, &path);
    if (code) return code;
    char *json = NULL;
    ftk_error err = FTK_ERROR_INIT;
    code = fti_cli_reported(ftk_provider_describe(path, &json, &err), &err, &json, provider);
    free(path);
    return code;
}

/* ---- the file ---- */

static int make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        int code = made ? 0 : system_failure(path, "cannot make the folder");
        *slash = '/';
        if (code) return code;
    }
    return 0;
}

/* Two edits at a time would lose one: the folder is locked while one goes on. */
static int lock_folder(const char *path, int *fd) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? fti_cli_format("%.*s/", (int)(slash - path), path) : fti_cli_format(".");
    *fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = 0;
    if (*fd < 0 || flock(*fd, LOCK_EX) != 0) code = system_failure(folder, "cannot lock");
    free(folder);
    return code;
}

typedef struct target {
    const char *path;
    fti_cli_text text;
    struct stat info;
    bool exists;
} target;

static int read_target(target *t) {
    fti_cli_append(&t->text, "", 0);
    t->exists = lstat(t->path, &t->info) == 0;
    if (!t->exists) return errno == ENOENT ? 0 : system_failure(t->path, "cannot read");
    if (!S_ISREG(t->info.st_mode)) {
        return fti_cli_fail(FTK_E_CONFIG_TRUST,
                            "%s: is no regular file (a symbolic link is not followed); name the "
                            "file itself with --config",
                            t->path);
    }
    return fti_cli_read_file(t->path, &t->text) ? 0 : system_failure(t->path, "cannot read");
}

/* A new file is the user's alone; an old one keeps its mode and owner. */
static bool keep_attributes(const target *t, int fd) {
    if (!t->exists) return true;
    bool ours = t->info.st_uid == geteuid() && t->info.st_gid == getegid();
    if (!ours && fchown(fd, t->info.st_uid, t->info.st_gid) != 0) return false;
    return fchmod(fd, t->info.st_mode & 07777) == 0;
}

/* Takes every `part` out of `text`. */
static void remove_part(char *text, const char *part) {
    size_t size = strlen(part);
    for (char *at = text; (at = strstr(at, part)) != NULL;) {
        memmove(at, at + size, strlen(at + size) + 1);
    }
}

/* What a run will say of a file at the place of `t`: there now, or with `suffix` beside it
 * as it is going to be. One of another user is judged when that user runs. */
static int judge_place(const target *t, const char *suffix) {
    if (t->exists && t->info.st_uid != geteuid()) return 0;
    char *path = fti_cli_format("%s%s", t->path, suffix);
    ftk_config *config = NULL;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = ftk_config_load(path, &config, &err);
    ftk_config_free(config);
    free(path);
    if (status == FTK_OK) return 0;
    if (suffix[0]) remove_part(err.message, suffix);
    return fti_cli_fail(status, "nothing written, for no run would accept the file: %s",
                        err.message);
}

static int fill_file(const target *t, const fti_cli_text *text, fti_cli_file *file) {
    bool ok = keep_attributes(t, fileno(file->stream)) &&
              fwrite(text->data, 1, text->size, file->stream) == text->size &&
              fflush(file->stream) == 0;
    if (!ok) return system_failure(t->path, "cannot write");
    return judge_place(t, file->temporary ? file->temporary + strlen(file->path) : "");
}

static int write_target(const target *t, const fti_cli_text *text) {
    fti_cli_file file;
    if (!fti_cli_file_begin(&file, t->path, 0600)) return system_failure(t->path, "cannot write");
    int code = fill_file(t, text, &file);
    if (code) {
        fti_cli_file_abandon(&file);
        return code;
    }
    return fti_cli_file_commit(&file) ? 0 : system_failure(t->path, "cannot write");
}

/* ---- the edit ---- */

/* The new text must mean what was wanted, whatever the old one looked like. */
static bool is_allowed(const ftk_config *config, const fti_cli_allow_entry *entry) {
    char *json = NULL;
    if (ftk_providers_report(config, &json, NULL) != FTK_OK) return false;
    json_t *report = fti_cli_report(json);
    size_t i;
    const json_t *provider;
    bool found = false;
    json_array_foreach(json_object_get(report, "providers"), i, provider) {
        if (strcmp(fti_cli_member(provider, "name"), entry->name) == 0 &&
            strcmp(fti_cli_member(provider, "path"), entry->path) == 0 &&
            json_is_true(json_object_get(provider, "pinned")) &&
            json_is_true(json_object_get(provider, "allowed"))) {
            found = true;
        }
    }
    json_decref(report);
    return found;
}

static int verify(const char *path, const fti_cli_text *text, const fti_cli_allow_entry *entry) {
    ftk_config *config = NULL;
    ftk_error err = FTK_ERROR_INIT;
    if (ftk_config_parse(text->data, text->size, path, &config, &err) != FTK_OK) {
        return fti_cli_fail(err.status, "nothing written, for the result would be refused: %s",
                            err.message);
    }
    bool good = is_allowed(config, entry);
    ftk_config_free(config);
    if (good) return 0;
    return fti_cli_fail(FTK_E_CONFIG_VALUE,
                        "%s: nothing written, for the edit would not allow '%s'; add the entry by "
                        "hand: name: %s, path: %s, sha256: %s",
                        path, entry->name, entry->name, entry->path, entry->sha256);
}

static int apply(const target *t, const fti_cli_allow_entry *entry, bool update,
                 const char **action) {
    fti_cli_text out = {0};
    fti_cli_append(&out, "", 0);
    fti_cli_edit edit = fti_cli_allow_edit(t->text.data, t->text.size, entry, update, &out);
    int code = 0;
    if (edit == FTI_CLI_EDIT_DIFFERS || edit == FTI_CLI_EDIT_REFUSED) {
        code = fti_cli_fail(FTK_E_CONFIG_VALUE, "%s:%s", t->path, out.data);
    } else if (edit == FTI_CLI_EDIT_UNCHANGED) {
        code = judge_place(t, "");
    } else {
        code = verify(t->path, &out, entry);
        if (code == 0) code = write_target(t, &out);
    }
    free(out.data);
    *action = edit == FTI_CLI_EDIT_ADDED     ? "added"
              : edit == FTI_CLI_EDIT_UPDATED ? "updated"
                                             : "unchanged";
    return code;
}

static void print_entry(const json_t *provider, const char *path) {
    json_t *shown = fti_cli_shown_report(provider);
    char *file = fti_cli_plain(path);
    (void)printf("%s: entry of providers.allow:\n", file);
    (void)printf("  - name: %s\n    path: %s\n    sha256: %s\n", fti_cli_member(shown, "name"),
                 fti_cli_member(shown, "path"), fti_cli_member(shown, "sha256"));
    (void)fflush(stdout);
    free(file);
    json_decref(shown);
}

static void print_result(const fti_cli_call *call, const target *t, json_t *provider,
                         const char *action) {
    if (call->common.json) {
        (void)json_object_set_new(provider, "config", fti_cli_json_text(t->path, strlen(t->path)));
        (void)json_object_set_new(provider, "action", json_string(action));
        fti_cli_print_json(json_incref(provider));
        return;
    }
    (void)printf("%s\n", action);
    if (!t->exists && !call->common.config && access(FTI_CLI_SYSTEM_CONFIG, F_OK) == 0) {
        (void)printf("note: the new file is used instead of %s from now on\n",
                     FTI_CLI_SYSTEM_CONFIG);
    }
}

static int edit_file(const fti_cli_call *call, char *path, json_t *provider) {
    fti_cli_allow_entry entry = {fti_cli_member(provider, "name"), fti_cli_member(provider, "path"),
                                 fti_cli_member(provider, "sha256")};
    target t = {.path = path};
    int lock = -1;
    const char *action = "";
    int code = make_folders(path);
    if (code == 0) code = lock_folder(path, &lock);
    if (code == 0) code = read_target(&t);
    if (code == 0 && !call->common.json) print_entry(provider, path);
    if (code == 0) code = apply(&t, &entry, fti_cli_values_of(call)->update, &action);
    if (code == 0) print_result(call, &t, provider, action);
    if (lock >= 0) (void)close(lock);
    free(t.text.data);
    return code;
}

int fti_cli_allow(const fti_cli_call *call, const char *which) {
    const char *given = call->common.config;
    if (given && !given[0]) return fti_cli_usage("--config: the name is empty");
    char *path = given ? fti_cli_format("%s", given) : fti_cli_user_config();
    if (!path) {
        return fti_cli_fail(FTK_E_CONFIG_READ,
                            "no place for a user's configuration: neither "
                            "XDG_CONFIG_HOME nor HOME is set; give --config FILE");
    }
    json_t *provider = NULL;
    int code = describe(&call->common, which, &provider);
    if (code == 0) code = edit_file(call, path, provider);
    json_decref(provider);
    free(path);
    return code;
}
