/* cmd_providers.c: `freetoken providers`: list and check; the way to the others. */
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

/* A search folder or manifest that cannot be read has no name, only a place. */
static void print_unreadable(const json_t *entry) {
    (void)printf("unreadable: %s\n  path           %s\n  %s\n", fti_cli_member(entry, "status"),
                 fti_cli_member(entry, "manifest"), fti_cli_member(entry, "message"));
}

void fti_cli_print_same_name(const json_t *provider, const char *indent) {
    size_t i;
    const json_t *path;
    json_array_foreach(json_object_get(provider, "same_name"), i, path) {
        (void)printf("%sof the same name: %s (only an entry's own path is ever loaded)\n", indent,
                     json_string_value(path));
    }
}

static void print_provider(const json_t *provider) {
    if (!fti_cli_member(provider, "name")[0]) {
        print_unreadable(provider);
        return;
    }
    bool allowed = json_is_true(json_object_get(provider, "allowed"));
    /* Without a readable manifest there is the name that was allowed, and no more. */
    const char *version = fti_cli_member(provider, "version");
    (void)printf("%s%s%s: %s%s, %s\n", fti_cli_member(provider, "name"), version[0] ? " " : "",
                 version, allowed ? "allowed" : "not allowed", allowed ? pinned(provider) : "",
                 fti_cli_member(provider, "status"));
    (void)printf("  path           %s\n", fti_cli_member(provider, "path"));
    if (version[0]) {
        (void)printf("  architectures  ");
        print_words(json_object_get(provider, "architectures"));
        (void)printf("  containers     ");
        print_words(json_object_get(provider, "containers"));
    }
    fti_cli_print_same_name(provider, "  ");
    const char *message = fti_cli_member(provider, "message");
    if (message[0]) (void)printf("  %s\n", message);
}

static void print_report(const json_t *report) {
    size_t i;
    const json_t *entry;
    json_array_foreach(json_object_get(report, "search"), i, entry) {
        (void)printf("search folder: %s\n", json_string_value(entry));
    }
    json_array_foreach(json_object_get(report, "search_repeated"), i, entry) {
        (void)printf("looked into once: %s is the folder %s\n", fti_cli_member(entry, "folder"),
                     fti_cli_member(entry, "same_as"));
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
    json_t *report;
    int code = fti_cli_providers_report(&call->common, &report);
    if (code) return code;
    const json_t *bad = check ? failing(report) : NULL;
    if (bad) {
        fti_cli_error("provider %s: %s: %s", fti_cli_member(bad, "name"),
                      fti_cli_member(bad, "status"), fti_cli_member(bad, "message"));
        code = EXIT_PROVIDER;
    }
    if (call->common.json) {
        fti_cli_print_json(json_incref(report));
    } else {
        json_t *shown = fti_cli_shown_report(report);
        print_report(shown);
        json_decref(shown);
    }
    json_decref(report);
    return code;
}

static int check_words(const fti_cli_call *call, const char *what) {
    static const struct {
        const char *name;
        size_t least, most; /* words, the name included */
        const char *wants;
    } actions[] = {{"list", 0, 1, ""},
                   {"check", 1, 1, ""},
                   {"allow", 2, 2, "NAME or FOLDER"},
                   {"explain", 2, 3, "MODEL, or ARCHITECTURE CONTAINER"}};
    const size_t count = sizeof actions / sizeof actions[0];
    for (size_t i = 0; i < count; i++) {
        if (strcmp(what, actions[i].name) != 0) continue;
        if (call->argument_count > actions[i].most) {
            return fti_cli_usage("providers %s takes no argument '%s'", what,
                                 call->arguments[actions[i].most]);
        }
        if (call->argument_count >= actions[i].least) return 0;
        return fti_cli_usage("providers %s wants %s", what, actions[i].wants);
    }
    const char *near = fti_cli_nearest(what, &actions[0].name, count, sizeof actions[0]);
    return fti_cli_usage("providers has no '%s'; %s%s%s", what,
                         near ? "did you mean '" : "it has list, check, allow and explain",
                         near ? near : "", near ? "'?" : "");
}

int fti_cli_providers(const fti_cli_call *call) {
    const char *what = call->argument_count ? call->arguments[0] : "list";
    int code = check_words(call, what);
    if (code) return code;
    bool allow = strcmp(what, "allow") == 0;
    if (!allow && fti_cli_given(call, "update")) {
        return fti_cli_usage("--update belongs to providers allow");
    }
    if (allow) return fti_cli_allow(call, call->arguments[1]);
    if (strcmp(what, "explain") == 0) {
        return fti_cli_explain(call, call->arguments[1],
                               call->argument_count > 2 ? call->arguments[2] : NULL);
    }
    return list_providers(call, strcmp(what, "check") == 0);
}
