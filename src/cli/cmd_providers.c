/* cmd_providers.c: `freetoken providers list` and `check`. */
#include <string.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/session.h"

#define EXIT_PROVIDER 4

static void print_words(const json_t *list) {
    size_t i;
    const json_t *word;
    if (json_is_string(list)) (void)fputs(json_string_value(list), stdout);
    json_array_foreach(list, i, word) {
        (void)printf("%s%s", i ? " " : "", json_string_value(word));
    }
    (void)fputc('\n', stdout);
}

static const char *pinned(const json_t *provider) {
    return json_is_true(json_object_get(provider, "pinned")) ? ", pinned" : ", not pinned";
}

static void print_provider(const json_t *provider) {
    bool allowed = json_is_true(json_object_get(provider, "allowed"));
    (void)printf("%s %s: %s%s, %s\n", fti_cli_member(provider, "name"),
                 fti_cli_member(provider, "version"), allowed ? "allowed" : "not allowed",
                 allowed ? pinned(provider) : "", fti_cli_member(provider, "status"));
    (void)printf("  path           %s\n", fti_cli_member(provider, "path"));
    (void)printf("  architectures  ");
    print_words(json_object_get(provider, "architectures"));
    (void)printf("  containers     ");
    print_words(json_object_get(provider, "containers"));
    const char *message = fti_cli_member(provider, "message");
    if (message[0]) (void)printf("  %s\n", message);
}

static void print_report(const json_t *report) {
    size_t i;
    const json_t *entry;
    json_array_foreach(json_object_get(report, "search"), i, entry) {
        (void)printf("search folder: %s\n", json_string_value(entry));
    }
    const json_t *providers = json_object_get(report, "providers");
    json_array_foreach(providers, i, entry) print_provider(entry);
    if (json_array_size(providers) == 0) (void)printf("no providers found or allowed\n");
}

static const json_t *failing(const json_t *report) {
    size_t i;
    const json_t *entry;
    json_array_foreach(json_object_get(report, "providers"), i, entry) {
        bool allowed = json_is_true(json_object_get(entry, "allowed"));
        if (allowed && strcmp(fti_cli_member(entry, "status"), "ok") != 0) return entry;
    }
    return NULL;
}

static int list_providers(const fti_cli_call *call, bool check) {
    ftk_config *config;
    int code = fti_cli_load_config(&call->common, &config);
    if (code) return code;
    char *json = NULL;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = ftk_providers_report(config, &json, &err);
    ftk_config_free(config);
    if (status != FTK_OK) return fti_cli_fail_with(&err);
    json_t *report = fti_cli_report(json);
    const json_t *bad = check ? failing(report) : NULL;
    if (bad) {
        fti_cli_error("provider %s: %s: %s", fti_cli_member(bad, "name"),
                      fti_cli_member(bad, "status"), fti_cli_member(bad, "message"));
        code = EXIT_PROVIDER;
    }
    if (call->common.json) {
        fti_cli_print_json(json_incref(report));
    } else {
        print_report(report);
    }
    json_decref(report);
    return code;
}

int fti_cli_providers(const fti_cli_call *call) {
    static const char *const names[] = {"list", "check", "allow"};
    const char *what = call->argument_count ? call->arguments[0] : "list";
    const char *which = call->argument_count > 1 ? call->arguments[1] : NULL;
    bool allow = strcmp(what, "allow") == 0;
    bool check = strcmp(what, "check") == 0;
    if (!allow && !check && strcmp(what, "list") != 0) {
        const char *near = fti_cli_nearest(what, names, 3, sizeof names[0]);
        return fti_cli_usage("providers has no '%s'; %s%s%s", what,
                             near ? "did you mean '" : "it has list, check and allow",
                             near ? near : "", near ? "'?" : "");
    }
    if (allow && !which) return fti_cli_usage("providers allow wants NAME or FOLDER");
    if (!allow && which) return fti_cli_usage("providers %s takes no argument '%s'", what, which);
    if (!allow && fti_cli_given(call, "update")) {
        return fti_cli_usage("--update belongs to providers allow");
    }
    return allow ? fti_cli_allow(call, which) : list_providers(call, check);
}
