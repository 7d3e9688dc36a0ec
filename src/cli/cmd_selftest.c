/* cmd_selftest.c: `freetoken selftest`: kernels against their reference. */
#include <string.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/session.h"

#define EXIT_DEVICE 7

static bool is_status(const json_t *check, const char *status) {
    return strcmp(fti_cli_member(check, "status"), status) == 0;
}

/* One line for all variants of a check, which stand together. */
static size_t print_group(const json_t *checks, size_t from) {
    const char *name = fti_cli_member(json_array_get(checks, from), "name");
    size_t end = from, ok = 0;
    for (; end < json_array_size(checks); end++) {
        const json_t *check = json_array_get(checks, end);
        if (strcmp(fti_cli_member(check, "name"), name) != 0) break;
        ok += is_status(check, "ok");
    }
    (void)printf("%-22s %zu of %zu variants ok\n", name, ok, end - from);
    for (size_t i = from; i < end; i++) {
        const json_t *check = json_array_get(checks, i);
        if (is_status(check, "ok")) continue;
        (void)printf("  %s: %s: %s\n", fti_cli_member(check, "status"),
                     fti_cli_member(check, "variant"), fti_cli_member(check, "detail"));
    }
    return end;
}

static json_int_t count_of(const json_t *report, const char *key) {
    return json_integer_value(json_object_get(report, key));
}

static void print_report(const json_t *report) {
    const json_t *checks = json_object_get(report, "checks");
    const json_t *name;
    size_t i;
    (void)printf("backend %s:", fti_cli_member(report, "backend"));
    json_array_foreach(json_object_get(report, "features"), i, name) {
        (void)printf(" %s", json_string_value(name));
    }
    (void)fputc('\n', stdout);
    for (size_t at = 0; at < json_array_size(checks);) at = print_group(checks, at);
    (void)printf("%lld passed, %lld failed, %lld skipped\n", count_of(report, "passed"),
                 count_of(report, "failed"), count_of(report, "skipped"));
}

static int judge(const json_t *report) {
    const json_t *check;
    size_t i;
    json_array_foreach(json_object_get(report, "checks"), i, check) {
        if (!is_status(check, "failed")) continue;
        fti_cli_error("selftest: %lld checks failed; the first: %s with %s: %s",
                      count_of(report, "failed"), fti_cli_member(check, "name"),
                      fti_cli_member(check, "variant"), fti_cli_member(check, "detail"));
        return EXIT_DEVICE;
    }
    return 0;
}

/* Without a model no provider is asked for, so no configuration is needed. */
static int load_config(const fti_cli_call *call, ftk_config **config) {
    static const char nothing[] = "{}";
    ftk_error err = FTK_ERROR_INIT;
    if (call->argument_count || call->common.config) {
        return fti_cli_load_config(&call->common, config);
    }
    if (ftk_config_parse(nothing, sizeof nothing - 1, "built-in defaults", config, &err)) {
        return fti_cli_fail_with(&err);
    }
    int code = fti_cli_apply_options(*config, &call->common);
    if (code) ftk_config_free(*config);
    return code;
}

int fti_cli_selftest(const fti_cli_call *call) {
    ftk_config *config = NULL;
    int code = load_config(call, &config);
    if (code) return code;
    char *json = NULL;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = ftk_selftest(config, call->arguments[0], &json, &err);
    ftk_config_free(config);
    if (status != FTK_OK) return fti_cli_fail_with(&err);
    json_t *report = fti_cli_report(json);
    if (call->common.json) {
        fti_cli_print_json(json_incref(report));
    } else {
        json_t *shown = fti_cli_shown_report(report);
        print_report(shown);
        json_decref(shown);
    }
    code = judge(report);
    json_decref(report);
    return code;
}
