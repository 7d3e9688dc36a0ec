/* report.c: see report.h. */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sample.h"
#include "cli/output.h"
#include "cli/text.h"

/* ---- a table for people ---- */

const char *fti_bench_number_text(double value, fti_bench_number *buffer) {
    double size = fabs(value);
    int digits = size >= 1000.0 ? 0 : size >= 100.0 ? 1 : size >= 1.0 ? 2 : 5;
    (void)snprintf(buffer->text, sizeof buffer->text, "%.*f", digits, value);
    return buffer->text;
}

static void print_line(const char *name, const char *text) {
    (void)printf("%-12s%s\n", name, text);
}

static void print_machine(const json_t *machine) {
    const char *cpu = fti_cli_member(machine, "cpu");
    (void)printf("%-12s%s, %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " cores", "machine",
                 cpu[0] ? cpu : "unknown processor",
                 json_integer_value(json_object_get(machine, "cores_allowed")),
                 json_integer_value(json_object_get(machine, "cores_online")));
    const json_t *read = json_object_get(machine, "read_bandwidth");
    double speed = json_number_value(json_object_get(read, "all_threads_gb_s"));
    if (speed > 0.0) (void)printf(", reads %.1f GB/s", speed);
    for (size_t i = 0; i < json_array_size(json_object_get(machine, "gpus")); i++) {
        const json_t *gpu = json_array_get(json_object_get(machine, "gpus"), i);
        (void)printf(", %s (driver %s)", fti_cli_member(gpu, "name"),
                     fti_cli_member(gpu, "driver"));
    }
    (void)putchar('\n');
}

static json_int_t setting(const fti_bench_row *row, const char *key) {
    return json_integer_value(json_object_get(row->settings, key));
}

static void print_work(const fti_bench_row *row) {
    const char *model = fti_cli_member(row->settings, "model");
    if (model[0]) print_line("model", model);
    if (setting(row, "prompt_tokens") == 0) return;
    (void)printf("%-12s", "work");
    if (setting(row, "streams") > 1)
        (void)printf("%" JSON_INTEGER_FORMAT " streams of ", setting(row, "streams"));
    (void)printf("%" JSON_INTEGER_FORMAT " prompt tokens, %" JSON_INTEGER_FORMAT
                 " tokens, %" JSON_INTEGER_FORMAT " runs after %" JSON_INTEGER_FORMAT " warm-up\n",
                 setting(row, "prompt_tokens"), setting(row, "tokens"), setting(row, "repeat"),
                 setting(row, "warmup"));
    const char *prompt = fti_cli_member(row->settings, "prompt");
    bool repeats = strstr(prompt, "repeated") != NULL;
    (void)printf("%-12s%s%s\n", "prompt", prompt,
                 repeats ? " (flatters cached experts; --prose does not)" : "");
}

static void print_measuring(const fti_bench_row *row) {
    if (!json_is_object(row->measuring)) return;
    double cost = json_number_value(json_object_get(row->measuring, "cost_s"));
    double step = json_number_value(json_object_get(row->measuring, "step_s"));
    double share = json_number_value(json_object_get(row->measuring, "share"));
    (void)printf("%-12s%.0f ns of a step of %.3f ms: %.4f %%\n", "measuring", 1e9 * cost,
                 1e3 * step, 100.0 * share);
}

/* How the checkpoint's bytes came in, where opening was measured. */
static void print_loaded(const fti_bench_row *row) {
    const json_t *bytes = json_object_get(row->details, "file_bytes");
    if (!json_is_integer(bytes)) return;
    json_int_t copied = json_integer_value(json_object_get(row->details, "copied_bytes"));
    json_int_t mapped = json_integer_value(json_object_get(row->details, "mapped_bytes"));
    (void)printf("%-12s%.3f GB in the file, %.3f GB copied, %.3f GB mapped (read when used)\n",
                 "bytes", 1e-9 * (double)json_integer_value(bytes), 1e-9 * (double)copied,
                 1e-9 * (double)mapped);
    size_t last = json_array_size(row->runs);
    const json_t *run = json_array_get(row->runs, last ? last - 1 : 0);
    (void)printf("%-12s%s: before the last run %" JSON_INTEGER_FORMAT
                 " %% of the file was cached; storage delivered %.3f GB\n",
                 "page cache",
                 json_is_true(json_object_get(row->settings, "cold")) ? "dropped before each run"
                                                                      : "as it was",
                 json_integer_value(json_object_get(run, "cached_percent")),
                 1e-9 * (double)json_integer_value(json_object_get(run, "read_bytes")));
}

static void print_dropped(const fti_bench_row *row) {
    for (size_t i = 0; i < json_array_size(row->runs); i++) {
        const char *why = fti_cli_member(json_array_get(row->runs, i), "dropped");
        if (why[0]) (void)printf("%-12srun %zu does not count: %s\n", "dropped", i + 1, why);
    }
}

static void print_figure(const fti_bench_figure *figure) {
    fti_bench_statistics s = fti_bench_describe(figure->values, figure->count);
    const double columns[] = {s.median, s.low, s.high, s.min, s.max};
    (void)printf("%-22s", figure->name);
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        fti_bench_number number;
        (void)printf(" %10s", fti_bench_number_text(columns[i], &number));
    }
    (void)printf(" %7.2f %%  %s\n", 100.0 * s.noise, figure->unit);
}

static void print_figures(const fti_bench_row *row) {
    char buffer[128];
    (void)printf("\n%-22s %10s %21s %10s %10s %9s\n", "", "median", "95 % interval", "min", "max",
                 "noise");
    for (size_t i = 0; i < row->figure_count; i++) print_figure(&row->figures[i]);
    const char *lacks = fti_bench_row_no_claim(row, buffer, sizeof buffer);
    if (lacks) (void)printf("no claim: %s\n", lacks);
}

static void print_row(const fti_bench_row *row) {
    print_line("scenario", row->scenario);
    print_line("cause", fti_bench_cause_text(row->cause));
    (void)printf("%-12slibfreetoken %s, commit %s\n", "library", row->version, row->commit);
    if (json_is_object(row->machine)) print_machine(row->machine);
    print_work(row);
    print_loaded(row);
    if (json_is_object(row->histogram)) {
        char *ran = fti_bench_histogram_text(row->histogram);
        print_line("histogram", ran);
        free(ran);
    }
    if (row->hash[0]) print_line("hash", row->hash);
    print_dropped(row);
    if (!row->void_reason) print_measuring(row);
    if (row->void_reason) print_line("void", row->void_reason);
    if (!row->void_reason) print_figures(row);
}

/* ---- CSV ---- */

static void add_field(fti_cli_text *text, const char *value) {
    if (text->size && text->data[text->size - 1] != '\n') fti_cli_append(text, ",", 1);
    if (!strpbrk(value, ",\"\r\n")) {
        fti_cli_append(text, value, strlen(value));
        return;
    }
    fti_cli_append(text, "\"", 1);
    for (const char *c = value; *c; c++)
        fti_cli_append(text, *c == '"' ? "\"\"" : c, *c == '"' ? 2 : 1);
    fti_cli_append(text, "\"", 1);
}

static void add_number(fti_cli_text *text, double value) {
    char number[40];
    (void)snprintf(number, sizeof number, "%.9g", value);
    add_field(text, number);
}

static void add_json(fti_cli_text *text, const json_t *value) {
    char *dumped = json_is_null(value) || !value
                       ? NULL
                       : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    add_field(text, dumped ? dumped : "");
    free(dumped);
}

static void add_statistics(fti_cli_text *text, const fti_bench_figure *figure) {
    if (!figure) {
        for (int i = 0; i < 9; i++) add_field(text, "");
        return;
    }
    fti_bench_statistics s = fti_bench_describe(figure->values, figure->count);
    add_field(text, figure->name);
    add_field(text, figure->unit);
    add_number(text, (double)s.count);
    const double numbers[] = {s.median, s.low, s.high, s.min, s.max, s.noise};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) add_number(text, numbers[i]);
}

static void add_line(fti_cli_text *text, const fti_bench_row *row, const fti_bench_figure *figure) {
    char buffer[128];
    const char *lacks = fti_bench_row_no_claim(row, buffer, sizeof buffer);
    add_field(text, row->scenario);
    add_field(text, fti_bench_cause_text(row->cause));
    add_field(text, row->void_reason ? "void" : "valid");
    add_field(text, lacks ? lacks : "");
    add_statistics(text, figure);
    add_field(text, row->hash);
    add_json(text, row->histogram);
    add_json(text, row->settings);
    add_json(text, row->knobs);
    add_field(text, fti_cli_member(row->machine, "cpu"));
    add_json(text, json_object_get(row->machine, "gpus"));
    add_json(text,
             json_object_get(json_object_get(row->machine, "read_bandwidth"), "all_threads_gb_s"));
    add_json(text, row->machine);
    add_field(text, row->commit);
    add_field(text, row->time);
    fti_cli_append(text, "\n", 1);
}

/* One line for each figure; a void row has one line without. */
static char *csv_of(const fti_bench_row *rows, size_t count) {
    fti_cli_text text = {0};
    fti_cli_printf(&text,
                   "scenario,cause,valid,no_claim_reason,figure,unit,samples,median,low,high,"
                   "min,max,noise,hash,histogram,settings,knobs,cpu,gpus,read_gb_s,machine,"
                   "commit,time\n");
    for (size_t i = 0; i < count; i++) {
        size_t figures = rows[i].void_reason ? 0 : rows[i].figure_count;
        if (figures == 0) add_line(&text, &rows[i], NULL);
        for (size_t f = 0; f < figures; f++) add_line(&text, &rows[i], &rows[i].figures[f]);
    }
    return text.data;
}

/* ---- where it goes ---- */

int fti_bench_check_output(const fti_cli_call *call) {
    if (call->common.json && fti_bench_values_of(call)->csv)
        return fti_cli_usage("--json and --csv exclude each other");
    return 0;
}

static json_t *json_of(const fti_bench_row *rows, size_t count) {
    if (count == 1) return fti_bench_row_json(&rows[0]);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        (void)json_array_append_new(list, fti_bench_row_json(&rows[i]));
    return json_pack("{s:o}", "rows", list);
}

static int save(const char *path, const char *text) {
    fti_cli_file file;
    bool good = fti_cli_file_begin(&file, path, 0644);
    if (good && fputs(text, file.stream) < 0) {
        fti_cli_file_abandon(&file);
        good = false;
    } else if (good) {
        good = fti_cli_file_commit(&file);
    }
    return good ? 0
                : fti_cli_fail(FTK_E_IO, "--output %s: cannot write: %s", path, strerror(errno));
}

static char *json_text(const json_t *json) {
    char *dumped = json_dumps(json, JSON_INDENT(2));
    if (!dumped) return fti_cli_format("null\n");
    char *text = fti_cli_format("%s\n", dumped);
    free(dumped);
    return text;
}

/* The first `whole` rows have a table each. */
static int report(const fti_cli_call *call, const fti_bench_row *rows, size_t count, size_t whole,
                  json_t *json, void (*table)(const void *user), const void *user) {
    const fti_bench_values *v = fti_bench_values_of(call);
    char *csv = csv_of(rows, count);
    int code = 0;
    if (call->common.json) {
        fti_cli_print_json(json_incref(json));
    } else if (v->csv) {
        (void)fputs(csv, stdout);
    } else {
        for (size_t i = 0; i < whole; i++) {
            if (i > 0) (void)putchar('\n');
            print_row(&rows[i]);
        }
        if (table) table(user);
    }
    if (v->output) {
        char *text = v->csv ? NULL : json_text(json);
        code = save(v->output, text ? text : csv);
        free(text);
    }
    free(csv);
    for (size_t i = 0; i < count && code == 0; i++)
        if (rows[i].void_reason)
            code = fti_cli_fail(FTK_E_INTERNAL, "void: %s", rows[i].void_reason);
    return code;
}

int fti_bench_report_as(const fti_cli_call *call, const fti_bench_row *rows, size_t count,
                        json_t *json, void (*table)(const void *user), const void *user) {
    return report(call, rows, count, count, json, table, user);
}

int fti_bench_report(const fti_cli_call *call, const fti_bench_row *rows, size_t count) {
    json_t *json = json_of(rows, count);
    int code = fti_bench_report_as(call, rows, count, json, NULL, NULL);
    json_decref(json);
    return code;
}

typedef struct compact {
    const fti_bench_row *rows;
    size_t count;
    void (*table)(const fti_bench_row *rows, size_t count);
} compact;

static void print_compact(const void *user) {
    const compact *c = user;
    c->table(c->rows, c->count);
}

int fti_bench_report_compact(const fti_cli_call *call, const fti_bench_row *rows, size_t count,
                             void (*table)(const fti_bench_row *rows, size_t count)) {
    const compact c = {rows, count, table};
    json_t *json = json_of(rows, count);
    int code = report(call, rows, count, 0, json, print_compact, &c);
    json_decref(json);
    return code;
}
