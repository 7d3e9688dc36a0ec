/* report.c: see report.h. */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "compare.h"
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
    char *shown = fti_cli_plain(text);
    (void)printf("%-12s%s\n", name, shown);
    free(shown);
}

static void print_machine(const json_t *machine) {
    const char *cpu = fti_cli_member(machine, "cpu");
    fti_cli_say(stdout, "%-12s%s, %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " cores",
                "machine", cpu[0] ? cpu : "unknown processor",
                json_integer_value(json_object_get(machine, "cores_allowed")),
                json_integer_value(json_object_get(machine, "cores_online")));
    const json_t *read = json_object_get(machine, "read_bandwidth");
    double speed = json_number_value(json_object_get(read, "all_threads_gb_s"));
    if (speed > 0.0) fti_cli_say(stdout, ", reads %.1f GB/s", speed);
    for (size_t i = 0; i < json_array_size(json_object_get(machine, "gpus")); i++) {
        const json_t *gpu = json_array_get(json_object_get(machine, "gpus"), i);
        fti_cli_say(stdout, ", %s (driver %s)", fti_cli_member(gpu, "name"),
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
    fti_cli_say(stdout, "%-12s", "work");
    if (setting(row, "streams") > 1)
        fti_cli_say(stdout, "%" JSON_INTEGER_FORMAT " streams of ", setting(row, "streams"));
    fti_cli_say(stdout,
                "%" JSON_INTEGER_FORMAT " prompt tokens, %" JSON_INTEGER_FORMAT
                " tokens, %" JSON_INTEGER_FORMAT " runs after %" JSON_INTEGER_FORMAT " warm-up\n",
                setting(row, "prompt_tokens"), setting(row, "tokens"), setting(row, "repeat"),
                setting(row, "warmup"));
    const char *prompt = fti_cli_member(row->settings, "prompt");
    bool repeats = strstr(prompt, "repeated") != NULL;
    fti_cli_say(stdout, "%-12s%s%s\n", "prompt", prompt,
                repeats ? " (flatters cached experts; --prose does not)" : "");
}

static void print_measuring(const fti_bench_row *row) {
    if (!json_is_object(row->measuring)) return;
    double cost = json_number_value(json_object_get(row->measuring, "cost_s"));
    double step = json_number_value(json_object_get(row->measuring, "step_s"));
    double share = json_number_value(json_object_get(row->measuring, "share"));
    fti_cli_say(stdout, "%-12s%.0f ns of a step of %.3f ms: %.4f %%\n", "measuring", 1e9 * cost,
                1e3 * step, 100.0 * share);
}

/* How the checkpoint's bytes came in, where opening was measured. */
static void print_loaded(const fti_bench_row *row) {
    const json_t *bytes = json_object_get(row->details, "file_bytes");
    if (!json_is_integer(bytes)) return;
    json_int_t copied = json_integer_value(json_object_get(row->details, "copied_bytes"));
    json_int_t mapped = json_integer_value(json_object_get(row->details, "mapped_bytes"));
    fti_cli_say(stdout,
                "%-12s%.3f GB in the file, %.3f GB copied, %.3f GB mapped (read when used)\n",
                "bytes", 1e-9 * (double)json_integer_value(bytes), 1e-9 * (double)copied,
                1e-9 * (double)mapped);
    size_t last = json_array_size(row->runs);
    const json_t *run = json_array_get(row->runs, last ? last - 1 : 0);
    fti_cli_say(stdout,
                "%-12s%s: before the last run %" JSON_INTEGER_FORMAT
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
        if (why[0]) fti_cli_say(stdout, "%-12srun %zu does not count: %s\n", "dropped", i + 1, why);
    }
}

static void print_figure(const fti_bench_figure *figure) {
    fti_bench_statistics s = fti_bench_describe(figure->values, figure->count);
    const double columns[] = {s.median, s.low, s.high, s.min, s.max};
    fti_cli_say(stdout, "%-22s", figure->name);
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        fti_bench_number number;
        fti_cli_say(stdout, " %10s", fti_bench_number_text(columns[i], &number));
    }
    fti_cli_say(stdout, " %7.2f %%  %s\n", 100.0 * s.noise, figure->unit);
}

static void print_figures(const fti_bench_row *row) {
    char buffer[128];
    fti_cli_say(stdout, "\n%-22s %10s %21s %10s %10s %9s\n", "", "median", "95 % interval", "min",
                "max", "noise");
    for (size_t i = 0; i < row->figure_count; i++) print_figure(&row->figures[i]);
    const char *lacks = fti_bench_row_no_claim(row, buffer, sizeof buffer);
    if (lacks) fti_cli_say(stdout, "no claim: %s\n", lacks);
}

static void print_row(const fti_bench_row *row) {
    print_line("scenario", row->scenario);
    print_line("cause", fti_bench_cause_text(row->cause));
    fti_cli_say(stdout, "%-12slibfreetoken %s, commit %s\n", "library", row->version, row->commit);
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

#define RATIO "B / A"

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

/* What a line says: one figure of a row, or a ratio with what its rows have in common. */
typedef struct line {
    const fti_bench_row *row;
    fti_bench_cause cause;
    const char *side;     /* "A", "B", "B / A"; "": the row stands alone */
    const char *no_claim; /* NULL: it supports one */
    const char *name, *unit, *verdict;
    const fti_bench_statistics *of; /* NULL: void */
    const json_t *knobs;
} line;

static void add_statistics(fti_cli_text *text, const line *l) {
    if (!l->of) {
        for (int i = 0; i < 9; i++) add_field(text, "");
        return;
    }
    const fti_bench_statistics *s = l->of;
    add_field(text, l->name);
    add_field(text, l->unit);
    add_number(text, (double)s->count);
    const double numbers[] = {s->median, s->low, s->high, s->min, s->max, s->noise};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) add_number(text, numbers[i]);
}

static void add_machine(fti_cli_text *text, const json_t *machine) {
    add_field(text, fti_cli_member(machine, "cpu"));
    add_json(text, json_object_get(machine, "gpus"));
    add_json(text, json_object_get(json_object_get(machine, "read_bandwidth"), "all_threads_gb_s"));
    add_json(text, machine);
}

static void add_line(fti_cli_text *text, const line *l, const char *scenario,
                     const char *void_reason) {
    const fti_bench_row *row = l->row;
    bool ratio = strcmp(l->side, RATIO) == 0;
    char digest[17];
    fti_bench_provenance_digest(ratio ? NULL : row->provenance, digest);
    add_field(text, scenario);
    add_field(text, fti_bench_cause_text(l->cause));
    add_field(text, void_reason ? "void" : "valid");
    add_field(text, l->no_claim ? l->no_claim : "");
    add_statistics(text, l);
    add_field(text, row->hash);
    add_json(text, ratio ? NULL : row->histogram);
    add_json(text, row->settings);
    add_json(text, l->knobs);
    add_machine(text, row->machine);
    add_field(text, row->commit);
    add_field(text, row->time);
    add_field(text, row->version);
    add_field(text, row->build);
    add_field(text, digest);
    add_field(text, l->side);
    add_field(text, l->verdict ? l->verdict : "");
    fti_cli_append(text, "\n", 1);
}

static void add_header(fti_cli_text *text) {
    fti_cli_printf(text, "scenario,cause,valid,no_claim_reason,figure,unit,samples,median,low,high,"
                         "min,max,noise,hash,histogram,settings,knobs,cpu,gpus,read_gb_s,machine,"
                         "commit,time,version,build,provenance,side,verdict\n");
}

/* One line for each figure; a void row has one line without. */
static void add_row(fti_cli_text *text, const fti_bench_row *row, const char *side) {
    char buffer[128];
    line l = {.row = row,
              .cause = row->cause,
              .side = side,
              .no_claim = fti_bench_row_no_claim(row, buffer, sizeof buffer),
              .knobs = row->knobs};
    size_t figures = row->void_reason ? 0 : row->figure_count;
    if (figures == 0) add_line(text, &l, row->scenario, row->void_reason);
    for (size_t i = 0; i < figures; i++) {
        const fti_bench_figure *figure = &row->figures[i];
        fti_bench_statistics of = fti_bench_describe(figure->values, figure->count);
        l.of = &of;
        l.name = figure->name;
        l.unit = figure->unit;
        add_line(text, &l, row->scenario, row->void_reason);
    }
}

static char *csv_of(const fti_bench_row *rows, size_t count) {
    fti_cli_text text = {0};
    add_header(&text);
    for (size_t i = 0; i < count; i++) add_row(&text, &rows[i], "");
    return text.data;
}

/* What the ratios' lines say of the work is A's, which is B's as well; their knobs are those
 * that differ. */
static void add_ratios(fti_cli_text *text, const fti_bench_comparison *c) {
    line l = {.row = &c->rows[0],
              .cause = c->cause,
              .side = RATIO,
              .unit = RATIO,
              .no_claim = c->void_reason,
              .knobs = c->differences.knobs};
    if (c->void_reason) add_line(text, &l, "compare", c->void_reason);
    for (size_t i = 0; i < c->count && !c->void_reason; i++) {
        char buffer[64], *verdict = fti_bench_verdict(c, i);
        l.no_claim = fti_bench_ratio_no_claim(c, i, buffer, sizeof buffer);
        l.name = c->figures[i]->name;
        l.of = &c->ratios[i].of;
        l.verdict = verdict;
        add_line(text, &l, "compare", NULL);
        free(verdict);
    }
}

static char *csv_of_comparison(const fti_bench_comparison *c) {
    fti_cli_text text = {0};
    add_header(&text);
    add_row(&text, &c->rows[0], "A");
    add_row(&text, &c->rows[1], "B");
    add_ratios(&text, c);
    return text.data;
}

/* ---- where it goes ---- */

int fti_bench_check_output(const fti_cli_call *call) {
    if (call->common.json && fti_bench_values_of(call)->csv)
        return fti_cli_usage("--json and --csv exclude each other");
    const char *path = fti_bench_values_of(call)->output;
    struct stat info;
    fti_cli_file file;
    /* Whoever reads a pipe would take the end of a try for the end of it. */
    if (!path || (stat(path, &info) == 0 && S_ISFIFO(info.st_mode))) return 0;
    if (!path[0]) return fti_cli_usage("--output: the name is empty; give the file to write");
    if (!fti_cli_file_begin(&file, path, 0644))
        return fti_cli_fail(FTK_E_IO, "--output %s: cannot write: %s; choose another file", path,
                            strerror(errno));
    fti_cli_file_abandon(&file);
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

/* The first `whole` rows have a table each. Frees `csv`. */
static int report(const fti_cli_call *call, const fti_bench_row *rows, size_t count, size_t whole,
                  json_t *json, char *csv, void (*table)(const void *user), const void *user) {
    const fti_bench_values *v = fti_bench_values_of(call);
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
    return report(call, rows, count, count, json, csv_of(rows, count), table, user);
}

int fti_bench_report_comparison(const fti_cli_call *call, const fti_bench_comparison *c,
                                void (*table)(const void *user)) {
    json_t *json = fti_bench_comparison_json(c);
    int code = report(call, c->rows, 2, 2, json, csv_of_comparison(c), table, c);
    json_decref(json);
    return code;
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
    int code = report(call, rows, count, 0, json, csv_of(rows, count), print_compact, &c);
    json_decref(json);
    return code;
}
