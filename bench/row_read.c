/* row_read.c: a row out of its JSON form. A file may have been edited or cut since it was
 * saved, so whatever can be computed again must come out the same. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attribution.h"
#include "row.h"
#include "sample.h"
#include "cli/output.h"
#include "cli/text.h"
#include "core/base.h"

/* ---- one key ---- */

static char *refuse(const char *key, const json_t *found, const char *wanted) {
    if (!found) return fti_cli_format("has no %s, wanted %s: measure it again", key, wanted);
    char *text = json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
    char *why = fti_cli_format("has %s %.80s, wanted %s", key, text ? text : "?", wanted);
    free(text);
    return why;
}

static bool is_text(const json_t *value) {
    return json_string_length(value) > 0;
}

static bool is_filled(const json_t *value) {
    return json_object_size(value) > 0;
}

static bool is_list(const json_t *value) {
    return json_array_size(value) > 0;
}

static bool is_boolean(const json_t *value) {
    return json_is_boolean(value);
}

static bool is_hexadecimal(const json_t *value, size_t digits) {
    const char *text = json_string_value(value);
    return text && strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

static bool is_hash(const json_t *value) {
    return is_hexadecimal(value, 16);
}

static bool is_digest(const json_t *value) {
    return is_hexadecimal(value, 32);
}

/* Small enough that sums of many do not overflow. */
static bool is_count(const json_t *value) {
    json_int_t count = json_integer_value(value);
    return json_is_integer(value) && count >= 0 && count <= UINT32_MAX;
}

static bool is_histogram(const json_t *value) {
    const char *rows;
    json_t *steps;
    bool good = is_filled(value);
    json_object_foreach((json_t *)(uintptr_t)value, rows, steps) good = good && is_count(steps);
    return good;
}

static bool is_positive(const json_t *value) {
    return json_is_integer(value) && json_integer_value(value) > 0;
}

typedef struct required {
    const char *key;
    bool (*fits)(const json_t *value);
    const char *wanted;
} required;

static const required members[] = {
    {"provenance", is_filled, "the engine's provenance"},
    {"machine", is_filled, "the machine"},
    {"settings", is_filled, "the work"},
    {"version", is_text, "the library's version"},
    {"commit", is_text, "the commit that was built"},
    {"build", is_digest, "32 hexadecimal digits of the program that measured"},
    {"time", is_text, "when it was measured"},
    {"valid", is_boolean, "true or false"},
    {"runs", is_list, "the runs"},
};

static const required settings[] = {
    {"streams", is_positive, "how many requests ran together"},
    {"tokens", is_positive, "how many tokens were generated"},
    {"repeat", is_positive, "how many runs were measured"},
    {"warmup", is_count, "how many runs were warm-up"},
};

/* `prefix` is what messages put before the key. */
static char *check_members(const json_t *json, const char *prefix, const required *list,
                           size_t count) {
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(json, list[i].key);
        if (list[i].fits(value)) continue;
        char *key = fti_cli_format("%s%s", prefix, list[i].key);
        char *why = refuse(key, value, list[i].wanted);
        free(key);
        return why;
    }
    return NULL;
}

/* ---- the head ---- */

static char *read_head(const json_t *json, fti_bench_row *row) {
    const json_t *format = json_object_get(json, "format");
    if (!json_is_integer(format))
        return fti_cli_format("is no row of freetoken-bench: it has no \"format\"");
    if (json_integer_value(format) != FTI_BENCH_ROW_FORMAT)
        return fti_cli_format("has row format %" JSON_INTEGER_FORMAT ", and %d is known: use the "
                              "freetoken-bench that wrote it",
                              json_integer_value(format), FTI_BENCH_ROW_FORMAT);
    const json_t *scenario = json_object_get(json, "scenario");
    if (!is_text(scenario)) return refuse("scenario", scenario, "the name of a scenario");
    const json_t *cause = json_object_get(json, "cause");
    if (!is_text(cause) || !fti_bench_cause_of(json_string_value(cause), &row->cause))
        return refuse("cause", cause,
                      "'model execution', 'scheduling', 'checkpoint representation' or 'backend'");
    if (json_is_null(json_object_get(json, "provenance")))
        return fti_cli_format("has no provenance: a row of '%s' holds one operation against what "
                              "its machine could do and attributes nothing; compare rows of "
                              "decode, prefill, batch or load",
                              json_string_value(scenario));
    char *why = check_members(json, "", members, FTI_COUNT(members));
    return why ? why : check_members(row->settings, "settings.", settings, FTI_COUNT(settings));
}

static void read_texts(const json_t *json, fti_bench_row *row) {
    row->scenario = fti_cli_format("%s", fti_cli_member(json, "scenario"));
    row->version = fti_cli_format("%s", fti_cli_member(json, "version"));
    row->commit = fti_cli_format("%s", fti_cli_member(json, "commit"));
    row->build = fti_cli_format("%s", fti_cli_member(json, "build"));
    row->time = fti_cli_format("%s", fti_cli_member(json, "time"));
    (void)snprintf(row->hash, sizeof row->hash, "%s", fti_cli_member(json, "hash"));
}

/* ---- runs ---- */

static bool is_warmup(const json_t *run) {
    return json_is_true(json_object_get(run, "warmup"));
}

static char *check_run(const fti_bench_row *row, size_t index) {
    const json_t *run = json_array_get(row->runs, index);
    const json_t *hash = json_object_get(run, "hash"), *dropped = json_object_get(run, "dropped");
    char place[48];
    (void)snprintf(place, sizeof place, "runs[%zu].", index);
    const required list[] = {{"warmup", is_boolean, "true or false"},
                             {"hash", is_hash, "16 hexadecimal digits"},
                             {"window_steps", is_count, "how many steps were timed"},
                             {"rows", is_histogram, "what ran"}};
    char *why = check_members(run, place, list, FTI_COUNT(list));
    if (!why && !json_is_null(dropped) && !is_text(dropped))
        why = fti_cli_format("has no usable %sdropped, wanted null or a reason", place);
    if (!why && strcmp(json_string_value(hash), row->hash) != 0)
        why = fti_cli_format("has %shash \"%s\", wanted \"%s\" as in the row: all runs compute "
                             "the same tokens",
                             place, json_string_value(hash), row->hash);
    return why;
}

static char *check_count(const fti_bench_row *row, const char *setting, size_t found) {
    json_int_t wanted = json_integer_value(json_object_get(row->settings, setting));
    if (wanted == (json_int_t)found) return NULL;
    return fti_cli_format("has %zu %s runs, wanted %" JSON_INTEGER_FORMAT " as in settings.%s",
                          found, strcmp(setting, "warmup") == 0 ? "warm-up" : "measured", wanted,
                          setting);
}

static char *check_runs(const fti_bench_row *row) {
    size_t runs = json_array_size(row->runs), warmup = 0;
    for (size_t i = 0; i < runs; i++) {
        char *why = check_run(row, i);
        if (why) return why;
        warmup += is_warmup(json_array_get(row->runs, i));
    }
    char *why = check_count(row, "warmup", warmup);
    return why ? why : check_count(row, "repeat", runs - warmup);
}

/* Steps of the measured runs. A window has steps with one row of each stream alone; where
 * one token is generated there is no window, and all steps count. */
static json_t *histogram_of_runs(const fti_bench_row *row) {
    json_t *sum = json_object();
    bool window = json_integer_value(json_object_get(row->settings, "tokens")) > 1;
    char *streams = fti_cli_format("%" JSON_INTEGER_FORMAT,
                                   json_integer_value(json_object_get(row->settings, "streams")));
    for (size_t i = 0; i < json_array_size(row->runs); i++) {
        const json_t *run = json_array_get(row->runs, i);
        if (is_warmup(run)) continue;
        json_t *ran = window ? json_pack("{s:O}", streams, json_object_get(run, "window_steps"))
                             : json_incref(json_object_get(run, "rows"));
        fti_bench_histogram_add(sum, ran);
        json_decref(ran);
    }
    free(streams);
    return sum;
}

static char *check_histogram(const fti_bench_row *row) {
    json_t *sum = histogram_of_runs(row);
    char *wanted = json_dumps(sum, JSON_COMPACT | JSON_SORT_KEYS), *why = NULL;
    if (!json_equal(sum, row->histogram)) {
        char *text = fti_cli_format("%.80s, what its measured runs ran", wanted ? wanted : "?");
        why = refuse("histogram", row->histogram, text);
        free(text);
    }
    free(wanted);
    json_decref(sum);
    return why;
}

/* ---- what follows from the provenance, and what measuring cost ---- */

static char *check_knob(const char *name, const json_t *found, const json_t *wanted) {
    if (found && wanted && json_equal(found, wanted)) return NULL;
    char *key = fti_cli_format("knobs.%s", name);
    char *text = wanted ? json_dumps(wanted, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    char *as = fti_cli_format("%.80s as in the provenance", text ? text : "none");
    char *why = refuse(key, found, as);
    free(as);
    free(text);
    free(key);
    return why;
}

static char *check_knobs(const fti_bench_row *row) {
    json_t *wanted = fti_bench_knobs(row->provenance), *value;
    const char *name;
    char *why = json_is_object(row->knobs) ? NULL : refuse("knobs", row->knobs, "an object");
    json_object_foreach(wanted, name, value) {
        if (!why) why = check_knob(name, json_object_get(row->knobs, name), value);
    }
    json_object_foreach(row->knobs, name, value) {
        if (!why) why = check_knob(name, value, json_object_get(wanted, name));
    }
    json_decref(wanted);
    return why;
}

/* Only a row without timed steps has no cost of timing them. */
static char *check_measuring(const fti_bench_row *row) {
    const json_t *share = json_object_get(row->measuring, "share");
    if (json_is_number(share) && json_number_value(share) >= 0.0) return NULL;
    bool stepped = false;
    for (size_t i = 0; i < json_array_size(row->runs); i++) {
        const json_t *run = json_array_get(row->runs, i);
        bool counts = !is_warmup(run) && json_is_null(json_object_get(run, "dropped"));
        stepped |= counts && json_integer_value(json_object_get(run, "window_steps")) > 0;
    }
    if (!stepped && json_is_null(row->measuring)) return NULL;
    return refuse("measuring.share", share, "the share of a step that measuring took");
}

/* ---- figures ---- */

static char *check_sample(const char *figure, size_t index, const json_t *value) {
    if (json_is_number(value) && isfinite(json_number_value(value)) &&
        json_number_value(value) > 0.0)
        return NULL;
    char *key = fti_cli_format("figures.%s.samples[%zu]", figure, index);
    char *why = refuse(key, value, "a number greater than 0");
    free(key);
    return why;
}

static bool is_direction(const json_t *value) {
    const char *text = json_string_value(value);
    return text && (strcmp(text, "less") == 0 || strcmp(text, "more") == 0);
}

static char *read_figure(const char *name, const json_t *json, fti_bench_row *row) {
    static const required list[] = {{"unit", is_text, "a unit"},
                                    {"better", is_direction, "'more' or 'less'"},
                                    {"samples", is_list, "the measured values"}};
    char *prefix = fti_cli_format("figures.%s.", name);
    char *why = check_members(json, prefix, list, FTI_COUNT(list));
    free(prefix);
    if (!why && row->figure_count == FTI_BENCH_FIGURES)
        why = fti_cli_format("has more than %u figures", FTI_BENCH_FIGURES);
    if (why) return why;
    const json_t *samples = json_object_get(json, "samples");
    size_t count = json_array_size(samples);
    double *values = fti_cli_alloc(count, sizeof *values);
    for (size_t i = 0; i < count && !why; i++) {
        why = check_sample(name, i, json_array_get(samples, i));
        values[i] = json_number_value(json_array_get(samples, i));
    }
    bool less = strcmp(fti_cli_member(json, "better"), "less") == 0;
    if (!why) fti_bench_row_figure(row, name, fti_cli_member(json, "unit"), less, values, count);
    free(values);
    return why;
}

static char *read_figures(const json_t *json, fti_bench_row *row) {
    const char *name;
    json_t *figure;
    json_t *figures = json_object_get(json, "figures");
    if (!is_filled(figures)) return refuse("figures", figures, "at least one");
    json_object_foreach(figures, name, figure) {
        char *why = read_figure(name, figure, row);
        if (why) return why;
    }
    fti_bench_row_check(row);
    return row->void_reason ? fti_cli_format("contradicts itself: %s", row->void_reason) : NULL;
}

/* ---- the whole ---- */

static char *read_valid(const json_t *json, fti_bench_row *row) {
    const json_t *hash = json_object_get(json, "hash");
    if (!is_hash(hash)) return refuse("hash", hash, "16 hexadecimal digits");
    char *why = check_runs(row);
    if (!why) why = check_histogram(row);
    if (!why) why = check_measuring(row);
    return why ? why : read_figures(json, row);
}

/* A void row was saved with what made it so, which need not hold together. */
static char *read_void(const json_t *json, fti_bench_row *row) {
    const json_t *reason = json_object_get(json, "void_reason");
    if (!is_text(reason)) return refuse("void_reason", reason, "why the row is void");
    fti_bench_row_void(row, "%s", json_string_value(reason));
    return NULL;
}

static char *read_row(const json_t *json, fti_bench_row *row) {
    char *why = read_head(json, row);
    if (why) return why;
    read_texts(json, row);
    why = check_knobs(row);
    if (why) return why;
    return json_is_true(json_object_get(json, "valid")) ? read_valid(json, row)
                                                        : read_void(json, row);
}

bool fti_bench_row_read(const json_t *json, fti_bench_row *row, char **why) {
    *row = (fti_bench_row){0};
    fti_bench_row_take(row, json);
    *why = read_row(json, row);
    if (*why) fti_bench_row_free(row);
    return *why == NULL;
}
