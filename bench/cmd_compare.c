/* cmd_compare.c: the command compare: two saved rows, or two configurations whose runs
 * alternate. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "compare.h"
#include "machine.h"
#include "meter.h"
#include "report.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

/* ---- what is printed ---- */

static void print_list(const char *title, const json_t *entries) {
    for (size_t i = 0; i < json_array_size(entries); i++) {
        const json_t *entry = json_array_get(entries, i);
        char *a = json_dumps(json_object_get(entry, "a"), JSON_ENCODE_ANY | JSON_COMPACT);
        char *b = json_dumps(json_object_get(entry, "b"), JSON_ENCODE_ANY | JSON_COMPACT);
        fti_cli_say(stdout, "%-12s%s: %s in A, %s in B\n", title, fti_cli_member(entry, "path"),
                    a ? a : "?", b ? b : "?");
        free(a);
        free(b);
    }
}

/* There may be hundreds; JSON has them all. */
static void print_names(const char *title, const json_t *entries) {
    size_t count = json_array_size(entries);
    if (count == 0) return;
    fti_cli_say(stdout, "%-12s%s", title, fti_cli_member(json_array_get(entries, 0), "path"));
    if (count > 1) fti_cli_say(stdout, " and %zu more (all with --json)", count - 1);
    (void)putchar('\n');
}

static void print_ratio(const fti_bench_comparison *c, size_t figure) {
    const fti_bench_statistics *s = &c->ratios[figure].of;
    fti_cli_say(stdout, "%-22s %10.4f %10.4f %10.4f %10.4f %10.4f %7.2f %%\n",
                c->figures[figure]->name, s->median, s->low, s->high, s->min, s->max,
                100.0 * s->noise);
}

static void print_ratios(const fti_bench_comparison *c) {
    fti_cli_say(stdout, "\n%-22s %10s %21s %10s %10s %9s\n", "B / A", "median", "95 % interval",
                "min", "max", "noise");
    for (size_t i = 0; i < c->count; i++) print_ratio(c, i);
    for (size_t i = 0; i < c->count; i++) {
        char *verdict = fti_bench_verdict(c, i);
        fti_cli_say(stdout, "%s: %s\n", c->figures[i]->name, verdict);
        free(verdict);
    }
}

static void print_comparison(const void *user) {
    const fti_bench_comparison *c = user;
    const fti_bench_differences *d = &c->differences;
    fti_cli_say(stdout, "\ncompared    %s, B against A, %s\n", c->rows[0].scenario,
                c->interleaved ? "runs in turn"
                               : "at different times: what changed on the machine in between is "
                                 "in the ratio");
    fti_cli_say(stdout, "cause       %s\n", fti_bench_cause_text(c->cause));
    print_list("knob", d->knobs);
    print_names("follows", d->follows);
    print_list("ignored", d->ignored);
    if (fti_bench_comparison_is_noise(c))
        fti_cli_say(stdout, "knob        none: the ratio is noise\n");
    if (c->void_reason) fti_cli_say(stdout, "void        %s\n", c->void_reason);
    if (!c->void_reason) print_ratios(c);
}

static int report(const fti_cli_call *call, const fti_bench_comparison *c) {
    int code = fti_bench_report_comparison(call, c, print_comparison);
    if (code == 0 && c->void_reason)
        code = fti_cli_fail(FTK_E_INTERNAL, "void: %s", c->void_reason);
    return code;
}

/* ---- saved rows ---- */

static int read_row(const char *path, const json_t *json, fti_bench_row *row) {
    char *why;
    if (fti_bench_row_read(json, row, &why)) return 0;
    int code = fti_cli_usage("%s %s", path, why);
    free(why);
    return code;
}

static int compare_saved(const fti_cli_call *call, json_t *const files[2]) {
    const fti_bench_values *v = fti_bench_values_of(call);
    if (v->model || v->model_b || v->scenario || v->set.count || v->set_b.count)
        return fti_cli_usage("saved rows are compared as they are: --model, --scenario and --set "
                             "belong to the comparison of configurations");
    fti_bench_row rows[2] = {{0}, {0}};
    fti_bench_comparison comparison;
    int code = read_row(call->arguments[0], files[0], &rows[0]);
    if (code == 0) code = read_row(call->arguments[1], files[1], &rows[1]);
    if (code == 0) code = fti_bench_compare_rows(rows, v->cause, &comparison);
    if (code == 0) {
        code = report(call, &comparison);
        fti_bench_comparison_free(&comparison);
    }
    for (size_t i = 0; i < 2; i++) fti_bench_row_free(&rows[i]);
    return code;
}

/* ---- configurations ---- */

/* A B B A A B B A ...: what drifts does not favour either. */
static int run_pairs(fti_bench_subject subjects[2], const fti_bench_values *v) {
    size_t pairs = (size_t)v->warmup + v->repeat;
    fti_bench_meter meter;
    fti_bench_meter_start(&meter, "compare", 2 * pairs);
    int code = 0;
    for (size_t i = 0; i < 2 * pairs && code == 0; i++) {
        size_t which = ((i + 1) / 2) % 2;
        bool warmup = i / 2 < v->warmup;
        fti_bench_meter_step(&meter, warmup ? "warm-up" : which ? "B" : "A");
        code = fti_bench_subject_run(&subjects[which], warmup);
    }
    fti_bench_meter_end(&meter);
    return code;
}

/* Whether the ratio could be attributed is known before anything runs. */
static int check_early(const fti_bench_subject subjects[2], const fti_bench_values *v) {
    fti_bench_row rows[2];
    for (size_t i = 0; i < 2; i++) fti_bench_subject_row(&subjects[i], &rows[i]);
    fti_bench_cause cause;
    int code = fti_bench_named_cause(rows, v->cause, &cause);
    if (code == 0) code = fti_bench_check_attribution(rows, cause);
    for (size_t i = 0; i < 2; i++) fti_bench_row_free(&rows[i]);
    return code;
}

static int report_pairs(const fti_cli_call *call, const fti_bench_subject subjects[2]) {
    fti_bench_row rows[2];
    fti_bench_comparison comparison;
    for (size_t i = 0; i < 2; i++) fti_bench_subject_row(&subjects[i], &rows[i]);
    const char *name = fti_bench_values_of(call)->cause;
    fti_bench_cause cause;
    int code = fti_bench_named_cause(rows, name, &cause);
    if (code == 0) {
        rows[0].cause = rows[1].cause = cause; /* for which they were measured */
        code = fti_bench_compare_subjects(subjects, rows, name, &comparison);
    }
    if (code == 0) {
        code = report(call, &comparison);
        fti_bench_comparison_free(&comparison);
    }
    for (size_t i = 0; i < 2; i++) fti_bench_row_free(&rows[i]);
    return code;
}

static int open_both(const fti_cli_call *call, const fti_bench_task *task,
                     fti_bench_subject subjects[2]) {
    const fti_bench_values *v = task->values;
    int code = 0;
    for (size_t i = 0; i < 2 && code == 0; i++) {
        ftk_config *config;
        const char *model = i && v->model_b ? v->model_b : v->model;
        code = fti_bench_config(&call->common, call->arguments[i], false, &v->set,
                                i ? &v->set_b : NULL, &config);
        if (code == 0) code = fti_bench_subject_open(&subjects[i], task, config, model);
    }
    return code;
}

static int compare_task(const fti_cli_call *call, const fti_bench_task *task) {
    const fti_bench_values *v = fti_bench_values_of(call);
    fti_bench_subject subjects[2] = {{0}, {0}};
    int code = open_both(call, task, subjects);
    if (code == 0) code = check_early(subjects, v);
    if (code == 0) code = run_pairs(subjects, v);
    if (code == 0) code = report_pairs(call, subjects);
    for (size_t i = 0; i < 2; i++) fti_bench_subject_close(&subjects[i]);
    return code;
}

static int compare_configs(const fti_cli_call *call) {
    const fti_bench_values *v = fti_bench_values_of(call);
    fti_bench_task task;
    fti_cli_text text = {0};
    if (!v->model) return fti_cli_usage("compare wants --model MODEL with configurations");
    if (call->common.config)
        return fti_cli_usage("compare takes the configurations as arguments, not by --config");
    int code = fti_bench_make_task(v, v->scenario ? v->scenario : "decode", &task);
    if (code) return code;
    fti_cli_catch_interrupt();
    if (v->file) {
        code = fti_bench_read_text(v->file, &text);
        task.text = &text;
    }
    if (code == 0) {
        fti_bench_look_at_machine(!v->no_bandwidth);
        code = compare_task(call, &task);
    }
    free(text.data);
    return code;
}

/* A row is JSON; whatever is not JSON is left to the configuration's own reader. */
static bool load_rows(const fti_cli_call *call, json_t *files[2]) {
    for (size_t i = 0; i < 2; i++) files[i] = json_load_file(call->arguments[i], 0, NULL);
    return json_is_object(files[0]) || json_is_object(files[1]);
}

int fti_bench_compare(const fti_cli_call *call) {
    int code = fti_bench_check_output(call);
    if (code) return code;
    json_t *files[2];
    if (!load_rows(call, files))
        code = compare_configs(call);
    else if (files[0] && files[1])
        code = compare_saved(call, files);
    else
        code = fti_cli_usage("%s is a saved row and %s is none: compare two rows, or two "
                             "configurations",
                             call->arguments[files[0] ? 0 : 1], call->arguments[files[0] ? 1 : 0]);
    json_decref(files[0]);
    json_decref(files[1]);
    return code;
}
