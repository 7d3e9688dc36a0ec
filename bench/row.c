/* row.c: rows, what makes one void or unfit for a claim, and their JSON form. */
#include "row.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "build.h"
#include "cli/output.h"
#include "cli/text.h"
#include "commit.h"
#include "freetoken/freetoken.h"

static const char *const cause_texts[FTI_BENCH_CAUSES] = {"model execution", "scheduling",
                                                          "checkpoint representation", "backend",
                                                          "peer, not attributable"};

const char *fti_bench_cause_text(fti_bench_cause cause) {
    return cause_texts[cause];
}

bool fti_bench_cause_of(const char *text, fti_bench_cause *cause) {
    for (size_t i = 0; i < FTI_BENCH_CAUSES; i++) {
        if (strcmp(text, cause_texts[i]) != 0) continue;
        *cause = (fti_bench_cause)i;
        return true;
    }
    return false;
}

/* ---- building ---- */

static char *utc_now(void) {
    char text[32];
    time_t now = time(NULL);
    struct tm parts;
    if (!gmtime_r(&now, &parts)) return fti_cli_format("unknown");
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return fti_cli_format("%s", text);
}

/* The members in one place, with the keys that JSON gives them. */
static const struct {
    const char *key;
    size_t offset;
} parts[] = {
    {"histogram", offsetof(fti_bench_row, histogram)},
    {"settings", offsetof(fti_bench_row, settings)},
    {"details", offsetof(fti_bench_row, details)},
    {"runs", offsetof(fti_bench_row, runs)},
    {"measuring", offsetof(fti_bench_row, measuring)},
    {"knobs", offsetof(fti_bench_row, knobs)},
    {"provenance", offsetof(fti_bench_row, provenance)},
    {"machine", offsetof(fti_bench_row, machine)},
};
#define PARTS (sizeof parts / sizeof parts[0])

static json_t **part_of(const fti_bench_row *row, size_t index) {
    return (json_t **)(void *)((char *)(uintptr_t)row + parts[index].offset);
}

void fti_bench_row_init(fti_bench_row *row, const char *scenario, fti_bench_cause cause) {
    *row = (fti_bench_row){.scenario = fti_cli_format("%s", scenario),
                           .cause = cause,
                           .version = fti_cli_format("%s", ftk_version()),
                           .commit = fti_cli_format("%s", FTI_BENCH_COMMIT),
                           .build = fti_cli_format("%s", fti_bench_build()),
                           .time = utc_now()};
    for (size_t i = 0; i < PARTS; i++) *part_of(row, i) = json_null();
}

void fti_bench_row_take(fti_bench_row *row, const json_t *json) {
    for (size_t i = 0; i < PARTS; i++) {
        json_t *part = json_object_get(json, parts[i].key);
        *part_of(row, i) = part ? json_incref(part) : json_null();
    }
}

void fti_bench_row_free(fti_bench_row *row) {
    for (size_t i = 0; i < row->figure_count; i++) {
        free(row->figures[i].name);
        free(row->figures[i].unit);
        free(row->figures[i].values);
    }
    for (size_t i = 0; i < PARTS; i++) json_decref(*part_of(row, i));
    free(row->scenario);
    free(row->version);
    free(row->commit);
    free(row->build);
    free(row->time);
    free(row->void_reason);
    *row = (fti_bench_row){0};
}

void fti_bench_row_set(json_t **member, json_t *owned) {
    json_decref(*member);
    *member = owned ? owned : json_null();
}

void fti_bench_row_void(fti_bench_row *row, const char *format, ...) {
    if (row->void_reason) return;
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    row->void_reason = fti_cli_format("%s", text);
}

void fti_bench_row_figure(fti_bench_row *row, const char *name, const char *unit,
                          bool less_is_better, const double *values, size_t count) {
    if (row->figure_count == FTI_BENCH_FIGURES) {
        fti_bench_row_void(row, "no room for figure %s", name);
        return;
    }
    fti_bench_figure *figure = &row->figures[row->figure_count++];
    *figure = (fti_bench_figure){.name = fti_cli_format("%s", name),
                                 .unit = fti_cli_format("%s", unit),
                                 .less_is_better = less_is_better,
                                 .values = fti_cli_alloc(count, sizeof *values),
                                 .count = count};
    memcpy(figure->values, values, count * sizeof *values);
}

const fti_bench_figure *fti_bench_row_find(const fti_bench_row *row, const char *name) {
    for (size_t i = 0; i < row->figure_count; i++)
        if (strcmp(row->figures[i].name, name) == 0) return &row->figures[i];
    return NULL;
}

/* ---- checks ---- */

static bool was_measured(const json_t *run) {
    return !json_is_true(json_object_get(run, "warmup")) &&
           !json_is_string(json_object_get(run, "dropped"));
}

static size_t measured_runs(const fti_bench_row *row) {
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(row->runs); i++)
        count += was_measured(json_array_get(row->runs, i));
    return count;
}

static bool was_warmed_up(const fti_bench_row *row) {
    for (size_t i = 0; i < json_array_size(row->runs); i++)
        if (json_is_true(json_object_get(json_array_get(row->runs, i), "warmup"))) return true;
    return false;
}

/* Value `index` of a figure is what the run says that was measured as the index-th. */
static bool agrees(const fti_bench_row *row, const fti_bench_figure *figure) {
    size_t index = 0;
    for (size_t i = 0; i < json_array_size(row->runs); i++) {
        const json_t *run = json_array_get(row->runs, i);
        if (!was_measured(run)) continue;
        const json_t *value = json_object_get(run, figure->name);
        if (!json_is_number(value)) return false;
        if (index >= figure->count || json_number_value(value) != figure->values[index])
            return false;
        index++;
    }
    return index == figure->count;
}

void fti_bench_row_check(fti_bench_row *row) {
    if (!json_is_array(row->runs)) return;
    for (size_t i = 0; i < row->figure_count && !row->void_reason; i++) {
        const fti_bench_figure *figure = &row->figures[i];
        size_t measured = measured_runs(row);
        if (figure->count != measured) {
            fti_bench_row_void(row, "%s counts %zu runs, but %zu were measured after the warm-up",
                               figure->name, figure->count, measured);
        } else if (!agrees(row, figure)) {
            fti_bench_row_void(row, "%s holds other values than the runs that were measured",
                               figure->name);
        }
    }
}

const char *fti_bench_row_no_claim(const fti_bench_row *row, char *buffer, size_t size) {
    size_t count = row->figure_count ? row->figures[0].count : 0;
    double share = json_number_value(json_object_get(row->measuring, "share"));
    if (row->void_reason) return row->void_reason;
    if (count < FTI_BENCH_CLAIM_SAMPLES) {
        (void)snprintf(buffer, size, "%zu samples: a claim needs %u", count,
                       FTI_BENCH_CLAIM_SAMPLES);
        return buffer;
    }
    if (json_is_array(row->runs) && !was_warmed_up(row)) return "no warm-up was dropped";
    if (share >= FTI_BENCH_MEASURING_SHARE) {
        (void)snprintf(buffer, size, "measuring took %.2g %% of a step, and %.2g %% is allowed",
                       100.0 * share, 100.0 * FTI_BENCH_MEASURING_SHARE);
        return buffer;
    }
    return NULL;
}

/* ---- to JSON ---- */

static json_t *text_json(const char *text) {
    return text ? fti_cli_json_text(text, strlen(text)) : json_null();
}

static json_t *figure_json(const fti_bench_figure *figure) {
    fti_bench_statistics s = fti_bench_describe(figure->values, figure->count);
    json_t *samples = json_array();
    for (size_t i = 0; i < figure->count; i++)
        (void)json_array_append_new(samples, json_real(figure->values[i]));
    return json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:[f, f], s:f, s:o}", "unit", figure->unit,
                     "better", figure->less_is_better ? "less" : "more", "count",
                     (json_int_t)s.count, "median", s.median, "min", s.min, "max", s.max,
                     "interval", s.low, s.high, "noise", s.noise, "samples", samples);
}

json_t *fti_bench_row_json(const fti_bench_row *row) {
    json_t *figures = json_object();
    for (size_t i = 0; i < row->figure_count && !row->void_reason; i++)
        (void)json_object_set_new(figures, row->figures[i].name, figure_json(&row->figures[i]));
    char buffer[96];
    const char *no_claim = fti_bench_row_no_claim(row, buffer, sizeof buffer);
    json_t *json = json_pack(
        "{s:I, s:o, s:s, s:b, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "format",
        (json_int_t)FTI_BENCH_ROW_FORMAT, "scenario", text_json(row->scenario), "cause",
        fti_bench_cause_text(row->cause), "valid", row->void_reason == NULL, "void_reason",
        text_json(row->void_reason), "claim", no_claim == NULL, "no_claim_reason",
        text_json(no_claim), "hash", row->hash[0] ? text_json(row->hash) : json_null(), "figures",
        figures, "version", text_json(row->version), "commit", text_json(row->commit), "build",
        text_json(row->build), "time", text_json(row->time));
    for (size_t i = 0; i < PARTS; i++) (void)json_object_set(json, parts[i].key, *part_of(row, i));
    return json;
}
