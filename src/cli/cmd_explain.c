/*
 * cmd_explain.c: `freetoken providers explain`: which providers a checkpoint would
 * be given to, and why each of the others is not it; for a checkpoint that one takes, also
 * the provenance of an engine on it, up to the memory plan.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

#define EXIT_PROVIDER 4

typedef struct claim {
    char *architecture;
    char *container;
} claim;

static bool holds_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; *at;) {
        size_t have = strcspn(at, " ");
        if (have == length && memcmp(at, word, length) == 0) return true;
        at += have;
        at += strspn(at, " ");
    }
    return false;
}

/* What the file says of itself. */
static int read_claim(const char *path, claim *c) {
    char *json = NULL;
    ftk_error err = FTK_ERROR_INIT;
    json_t *report;
    int code = fti_cli_reported(ftk_inspect(path, &json, &err), &err, &json, &report);
    if (code) return code;
    c->architecture = fti_cli_format("%s", fti_cli_member(report, "architecture"));
    c->container = fti_cli_format("%s", fti_cli_member(report, "container"));
    json_decref(report);
    return 0;
}

static bool is_true(const json_t *provider, const char *key) {
    return json_is_true(json_object_get(provider, key));
}

/* NULL: this one would take it. */
static char *reason_against(const json_t *provider, const claim *c) {
    const char *architectures = fti_cli_member(provider, "architectures");
    const char *containers = fti_cli_member(provider, "containers");
    const char *status = fti_cli_member(provider, "status");
    const char *message = fti_cli_member(provider, "message");
    bool readable = architectures[0] != '\0';
    if (readable && !holds_word(architectures, c->architecture)) {
        return fti_cli_format("claims architecture %s, not %s", architectures, c->architecture);
    }
    if (readable && !holds_word(containers, c->container)) {
        return fti_cli_format("claims container %s, not %s", containers, c->container);
    }
    if (strcmp(status, "ok") != 0) return fti_cli_format("%s: %s", status, message);
    if (is_true(provider, "allowed")) return NULL;
    const char *path = fti_cli_member(provider, "path");
    const char *slash = strrchr(path, '/');
    return fti_cli_format("claims it, but is not allowed; to allow it: freetoken providers allow "
                          "%.*s",
                          (int)(slash ? slash - path : 0), path);
}

/* Of what cannot be read only the manifest's or folder's place is known. */
static const char *place_of(const json_t *provider) {
    const char *path = fti_cli_member(provider, "path");
    return path[0] ? path : fti_cli_member(provider, "manifest");
}

static json_t *judge(const json_t *provider, const claim *c) {
    char *reason = reason_against(provider, c);
    const char *architectures = fti_cli_member(provider, "architectures");
    bool claims = holds_word(architectures, c->architecture) &&
                  holds_word(fti_cli_member(provider, "containers"), c->container);
    const char *text = reason ? reason : "would be loaded";
    json_t *o = json_pack("{s:s, s:s, s:b, s:b, s:b, s:o}", "name",
                          fti_cli_member(provider, "name"), "path", place_of(provider), "claims",
                          claims, "allowed", is_true(provider, "allowed"), "passes", reason == NULL,
                          "reason", fti_cli_json_text(text, strlen(text)));
    (void)json_object_set(o, "same_name", json_object_get(provider, "same_name"));
    free(reason);
    return o;
}

static void pass_over(json_t *o, const char *selected) {
    char *reason = fti_cli_format("claims it, but providers.select names %s", selected);
    (void)json_object_set_new(o, "passes", json_false());
    (void)json_object_set_new(o, "reason", fti_cli_json_text(reason, strlen(reason)));
    free(reason);
}

/* Of the allowed ones only what the manifest claims decides; a check that fails then
 * refuses the checkpoint, it does not make room for another provider. */
static json_t *explain(const json_t *report, const claim *c) {
    json_t *providers = json_array();
    const json_t *entry;
    const char *chosen = NULL;
    char *pair = fti_cli_format("%s/%s", c->architecture, c->container);
    const char *selected = json_string_value(
        json_object_get(json_object_get(report, "select"), pair));
    size_t i, claimers = 0, good = 0;
    free(pair);
    json_array_foreach(json_object_get(report, "providers"), i, entry) {
        json_t *o = judge(entry, c);
        bool other = selected && strcmp(fti_cli_member(entry, "name"), selected) != 0;
        (void)json_array_append_new(providers, o);
        if (other && is_true(o, "passes")) pass_over(o, selected);
        if (other) continue;
        bool passes = is_true(o, "passes");
        claimers += is_true(o, "claims") && is_true(o, "allowed");
        good += passes;
        if (passes) chosen = fti_cli_member(entry, "name");
    }
    const char *outcome = claimers > 1    ? "several allowed providers claim it: providers.select "
                                            "in the configuration must name one"
                          : claimers == 0 ? selected
                                                ? "the provider that providers.select names does "
                                                  "not claim it"
                                                : "no allowed provider claims it"
                          : good == 0     ? "the provider that claims it fails a check"
                          : selected      ? "one provider takes it, chosen by providers.select"
                                          : "one provider takes it";
    return json_pack("{s:s, s:s, s:o, s:s?, s:s}", "architecture", c->architecture, "container",
                     c->container, "providers", providers, "chosen",
                     claimers == 1 && good == 1 ? chosen : NULL, "outcome", outcome);
}

static void print_report(const json_t *report) {
    const json_t *entry;
    size_t i;
    (void)printf("architecture %s, container %s\n", fti_cli_member(report, "architecture"),
                 fti_cli_member(report, "container"));
    json_array_foreach(json_object_get(report, "providers"), i, entry) {
        const char *name = fti_cli_member(entry, "name");
        const char *path = fti_cli_member(entry, "path");
        (void)printf("%s %s (%s)\n    %s\n", is_true(entry, "passes") ? "yes" : "no ",
                     name[0] ? name : "(no readable manifest)", path,
                     fti_cli_member(entry, "reason"));
        fti_cli_print_same_name(entry, "    ");
    }
    (void)printf("%s\n", fti_cli_member(report, "outcome"));
}

/* ---- provenance ---- */

static void print_values(const char *title, const json_t *object) {
    const char *key;
    const json_t *value;
    (void)printf("%s\n", title);
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
        (void)printf("    %s: %s\n", key,
                     json_is_string(value) ? json_string_value(value)
                     : text                ? text
                                           : "");
        free(text);
    }
}

static void print_policy(const json_t *policy) {
    const char *key;
    const json_t *one;
    (void)printf("policy\n");
    json_object_foreach((json_t *)(uintptr_t)policy, key, one) {
        char *value = json_dumps(json_object_get(one, "value"), JSON_ENCODE_ANY);
        char *asked = json_dumps(json_object_get(one, "asked"), JSON_ENCODE_ANY);
        (void)printf("    %s: %s (%s%s%s)\n", key, value ? value : "",
                     fti_cli_member(one, "origin"), asked ? ", from " : "", asked ? asked : "");
        free(value);
        free(asked);
    }
}

static void print_variants(const json_t *variants) {
    const json_t *one, *over;
    size_t i, k;
    (void)printf("variants\n");
    json_array_foreach(variants, i, one) {
        (void)printf("    %s: %s\n", fti_cli_member(one, "operation"),
                     fti_cli_member(one, "chosen"));
        json_array_foreach(json_object_get(one, "passed_over"), k, over) {
            const char *detail = fti_cli_member(over, "detail");
            (void)printf("        not %s: %s%s%s\n", fti_cli_member(over, "variant"),
                         fti_cli_member(over, "reason"), detail[0] ? ", " : "", detail);
        }
    }
}

static void print_provenance(const json_t *p) {
    (void)printf("\nlibfreetoken %s, configuration %s\n", fti_cli_member(p, "libfreetoken"),
                 fti_cli_member(p, "config"));
    print_values("provider", json_object_get(p, "provider"));
    print_values("checkpoint", json_object_get(p, "checkpoint"));
    print_values("backend", json_object_get(p, "backend"));
    print_values("numerics", json_object_get(p, "numerics"));
    print_policy(json_object_get(p, "policy"));
    print_variants(json_object_get(p, "variants"));
    print_values("memory", json_object_get(p, "memory"));
}

/* Of an engine that has planned and allocated nothing. */
static int read_provenance(const fti_cli_call *call, const char *model, json_t **out) {
    ftk_engine *engine;
    char *json = NULL;
    ftk_error err = FTK_ERROR_INIT;
    int code = fti_cli_open(&call->common, model, FTK_OPEN_PLANNED, &engine);
    if (code) return code;
    code = fti_cli_reported(ftk_engine_provenance(engine, &json, &err), &err, &json, out);
    ftk_engine_close(engine);
    return code;
}

/* ---- the command ---- */

static void show(const fti_cli_call *call, json_t *report) {
    if (call->common.json) {
        fti_cli_print_json(json_incref(report));
        return;
    }
    json_t *shown = fti_cli_shown_report(report);
    const json_t *provenance = json_object_get(shown, "provenance");
    print_report(shown);
    if (provenance) print_provenance(provenance);
    json_decref(shown);
}

/* `model` is NULL where only architecture and container are known. */
static int report_on(const fti_cli_call *call, const char *model, const claim *c) {
    json_t *all, *provenance = NULL;
    int code = fti_cli_providers_report(&call->common, &all);
    if (code) return code;
    json_t *report = explain(all, c);
    json_decref(all);
    if (!json_is_string(json_object_get(report, "chosen"))) {
        fti_cli_error("%s/%s: %s", c->architecture, c->container,
                      fti_cli_member(report, "outcome"));
        code = EXIT_PROVIDER;
    } else if (model) {
        code = read_provenance(call, model, &provenance);
    }
    if (provenance) (void)json_object_set_new(report, "provenance", provenance);
    show(call, report);
    json_decref(report);
    return code;
}

int fti_cli_explain(const fti_cli_call *call, const char *model, const char *container) {
    claim c = {NULL, NULL};
    int code = 0;
    if (container) {
        c.architecture = fti_cli_format("%s", model);
        c.container = fti_cli_format("%s", container);
    } else {
        code = read_claim(model, &c);
    }
    if (c.architecture && c.container) code = report_on(call, container ? NULL : model, &c);
    free(c.architecture);
    free(c.container);
    return code;
}
