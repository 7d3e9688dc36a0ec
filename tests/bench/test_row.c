/* test_row.c: rows there and back as JSON; what makes one void or unfit for a claim. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "build.h"
#include "cli/output.h"
#include "row.h"

const char fti_cli_program_name[] = "test_row";

#define HASH "0123456789abcdef"

/* `count` runs, of which the first `warmup` are warm-up and take ten times as long. */
static void make_row(fti_bench_row *row, size_t warmup, size_t count) {
    double values[32] = {0};
    json_t *runs = json_array();
    fti_bench_row_init(row, "decode", FTI_BENCH_MODEL_EXECUTION);
    for (size_t i = 0; i < count; i++) {
        double value = i < warmup ? 1.0 : 10.0 + 0.1 * (double)i;
        if (i >= warmup) values[i - warmup] = value;
        json_array_append_new(runs, json_pack("{s:b, s:n, s:f, s:s, s:i, s:{s:i}}", "warmup",
                                              i < warmup, "dropped", "x", value, "hash", HASH,
                                              "window_steps", 7, "rows", "2", 7));
    }
    fti_bench_row_figure(row, "x", "tok/s", false, values, count - warmup);
    fti_bench_row_set(&row->runs, runs);
    fti_bench_row_set(&row->settings,
                      json_pack("{s:s, s:i, s:i, s:i, s:i}", "model", "m", "tokens", 8, "streams",
                                2, "repeat", (int)(count - warmup), "warmup", (int)warmup));
    fti_bench_row_set(&row->histogram, json_pack("{s:i}", "2", 7 * (int)(count - warmup)));
    fti_bench_row_set(&row->measuring, json_pack("{s:f}", "share", 0.0001));
    fti_bench_row_set(&row->machine, json_pack("{s:s}", "cpu", "c"));
    fti_bench_row_set(&row->provenance,
                      json_pack("{s:{s:{s:i}}}", "policy", "backend.threads", "value", 2));
    fti_bench_row_set(&row->knobs, json_pack("{s:i}", "backend.threads", 2));
    (void)strcpy(row->hash, HASH);
}

/* Voids it if something is amiss; the reason must hold `part`. */
static void expect_void(fti_bench_row *row, const char *part) {
    fti_bench_row_check(row);
    assert_non_null(row->void_reason);
    if (!strstr(row->void_reason, part)) fail_msg("'%s' lacks '%s'", row->void_reason, part);
    json_t *json = fti_bench_row_json(row);
    assert_true(json_is_false(json_object_get(json, "valid")));
    assert_true(json_is_false(json_object_get(json, "claim")));
    assert_int_equal(json_object_size(json_object_get(json, "figures")), 0);
    json_decref(json);
    fti_bench_row_free(row);
}

static void there_and_back(void **state) {
    (void)state;
    fti_bench_row row, again;
    char *why;
    make_row(&row, 1, 12);
    fti_bench_row_figure(&row, "y", "s", true, (const double[]){1.0 / 3.0, 0.1}, 2);
    row.figure_count = 1; /* y belongs to no run: kept out of the check */
    fti_bench_row_check(&row);
    assert_null(row.void_reason);
    json_t *json = fti_bench_row_json(&row);
    char *text = json_dumps(json, 0);
    json_t *parsed = json_loads(text, 0, NULL);
    assert_true(fti_bench_row_read(parsed, &again, &why));
    assert_null(again.void_reason);
    json_t *second = fti_bench_row_json(&again);
    assert_true(json_equal(json, second));
    assert_int_equal(again.figures[0].count, 11);
    assert_true(again.figures[0].values[3] == row.figures[0].values[3]);
    assert_string_equal(again.hash, HASH);
    assert_string_equal(again.build, fti_bench_build());
    json_decref(second);
    json_decref(parsed);
    json_decref(json);
    free(text);
    fti_bench_row_free(&again);
    row.figure_count = 2;
    fti_bench_row_free(&row);
}

/* The commit, the cause, the histogram, the machine and the provenance are in every row. */
static void complete(void **state) {
    (void)state;
    static const char *const keys[] = {
        "format",  "scenario", "cause",     "valid", "void_reason",     "claim",      "hash",
        "figures", "version",  "commit",    "time",  "no_claim_reason", "histogram",  "settings",
        "details", "runs",     "measuring", "knobs", "machine",         "provenance", "build"};
    fti_bench_row row;
    make_row(&row, 1, 3);
    json_t *json = fti_bench_row_json(&row);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        assert_non_null(json_object_get(json, keys[i]));
    assert_int_equal(json_object_size(json), sizeof keys / sizeof keys[0]);
    assert_true(strlen(fti_cli_member(json, "commit")) >= 7);
    const json_t *x = json_object_get(json_object_get(json, "figures"), "x");
    assert_string_equal(fti_cli_member(x, "unit"), "tok/s");
    assert_true(json_real_value(json_object_get(x, "min")) == 10.1);
    assert_int_equal(json_array_size(json_object_get(x, "samples")), 2);
    json_decref(json);
    fti_bench_row_free(&row);
}

/* Planted: the warm-up's value among the samples; a sample left out; a value changed. */
static void warmup_counted(void **state) {
    (void)state;
    fti_bench_row row;
    double values[12];
    make_row(&row, 1, 12);
    memcpy(values + 1, row.figures[0].values, 11 * sizeof *values);
    values[0] = 1.0;
    row.figure_count = 0;
    free(row.figures[0].name);
    free(row.figures[0].unit);
    free(row.figures[0].values);
    fti_bench_row_figure(&row, "x", "tok/s", false, values, 12);
    expect_void(&row, "x counts 12 runs, but 11 were measured after the warm-up");

    make_row(&row, 1, 12);
    row.figures[0].count--;
    expect_void(&row, "x counts 10 runs, but 11");

    make_row(&row, 1, 12);
    row.figures[0].values[4] = 99.0;
    expect_void(&row, "other values than the runs");
}

/* A dropped run is no measured one. */
static void dropped(void **state) {
    (void)state;
    fti_bench_row row;
    make_row(&row, 1, 12);
    json_object_set_new(json_array_get(row.runs, 11), "dropped", json_string("the clock stepped"));
    row.figures[0].count--;
    fti_bench_row_check(&row);
    assert_null(row.void_reason);
    fti_bench_row_free(&row);
    make_row(&row, 1, 12);
    json_object_set_new(json_array_get(row.runs, 5), "dropped", json_string("the clock stepped"));
    row.figures[0].count--; /* the wrong one is missing */
    expect_void(&row, "other values");
}

static void expect_no_claim(fti_bench_row *row, const char *part) {
    char buffer[128];
    const char *lacks = fti_bench_row_no_claim(row, buffer, sizeof buffer);
    if (part && (!lacks || !strstr(lacks, part))) fail_msg("'%s' lacks '%s'", lacks, part);
    if (!part && lacks) fail_msg("no claim: %s", lacks);
    fti_bench_row_free(row);
}

static void claims(void **state) {
    (void)state;
    fti_bench_row row;
    make_row(&row, 1, 11);
    expect_no_claim(&row, NULL);
    make_row(&row, 1, 10);
    expect_no_claim(&row, "9 samples: a claim needs 10");
    make_row(&row, 0, 12);
    expect_no_claim(&row, "no warm-up");
    make_row(&row, 1, 12);
    fti_bench_row_set(&row.measuring, json_pack("{s:f}", "share", 0.0021));
    expect_no_claim(&row, "measuring took 0.21 % of a step");
    make_row(&row, 1, 12);
    fti_bench_row_set(&row.measuring, json_pack("{s:f}", "share", 0.0019));
    expect_no_claim(&row, NULL);
    make_row(&row, 1, 12);
    fti_bench_row_void(&row, "first %d", 1);
    fti_bench_row_void(&row, "second");
    expect_no_claim(&row, "first 1");
}

/* Where the path of keys and indices ("runs/0/hash") leads: the value that holds the last. */
static json_t *place_of(json_t *json, const char *path, const char **last) {
    const char *slash;
    while ((slash = strchr(path, '/'))) {
        char key[32];
        (void)snprintf(key, sizeof key, "%.*s", (int)(slash - path), path);
        json = json_is_array(json) ? json_array_get(json, (size_t)atoi(key))
                                   : json_object_get(json, key);
        assert_non_null(json);
        path = slash + 1;
    }
    *last = path;
    return json;
}

/* What is at `path` in a good row set to `value` (NULL: left out) cannot be read. */
static void expect_unreadable(const char *path, json_t *value, const char *part) {
    fti_bench_row row, again;
    const char *key;
    char *why;
    make_row(&row, 1, 12);
    json_t *json = fti_bench_row_json(&row);
    json_t *place = place_of(json, path, &key);
    if (json_is_array(place))
        json_array_set_new(place, (size_t)atoi(key), value);
    else if (value)
        json_object_set_new(place, key, value);
    else
        json_object_del(place, key);
    if (fti_bench_row_read(json, &again, &why)) fail_msg("%s was believed", path);
    if (!strstr(why, part)) fail_msg("'%s' lacks '%s'", why, part);
    free(why);
    json_decref(json);
    fti_bench_row_free(&row);
}

static void unreadable(void **state) {
    (void)state;
    expect_unreadable("format", NULL, "no row of freetoken-bench");
    expect_unreadable("format", json_integer(2), "row format 2, and 1 is known");
    expect_unreadable("cause", json_string("luck"), "has cause \"luck\", wanted 'model exec");
    static const char *const keys[] = {"scenario", "cause",  "machine", "settings",
                                       "version",  "commit", "build",   "time",
                                       "valid",    "runs",   "hash",    "figures"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char part[40];
        (void)snprintf(part, sizeof part, "has no %s, wanted ", keys[i]);
        expect_unreadable(keys[i], NULL, part);
        (void)snprintf(part, sizeof part, "has %s 3, wanted ", keys[i]);
        expect_unreadable(keys[i], json_integer(3), part);
    }
    expect_unreadable("provenance", NULL, "has no provenance, wanted");
    expect_unreadable("provenance", json_object(), "has provenance {}, wanted the engine's");
    expect_unreadable("build", json_string("unknown"), "32 hexadecimal digits");
    expect_unreadable("runs", json_array(), "has runs [], wanted the runs");
    expect_unreadable("figures", json_object(), "has figures {}");
    expect_unreadable("figures/x/unit", NULL, "has no figures.x.unit");
    expect_unreadable("figures/x/better", json_string("maybe"), "'more' or 'less'");
    expect_unreadable("figures/x/samples", json_array(), "has figures.x.samples []");
    expect_unreadable("figures/x/samples/2", json_string("a"), "has figures.x.samples[2] \"a\"");
    expect_unreadable("figures/x/samples/2", json_integer(0), "wanted a number greater than 0");
    fti_bench_row row;
    char *why;
    json_t *number = json_integer(3);
    assert_false(fti_bench_row_read(number, &row, &why));
    json_decref(number);
    free(why);
}

/* A file that was edited: each part is well-formed, and contradicts another one. */
static void contradictions(void **state) {
    (void)state;
    expect_unreadable("hash", json_string("0123456789abcdeF"), "has hash");
    expect_unreadable("hash", json_string("0000000000000000"), "has runs[0].hash \"" HASH "\"");
    expect_unreadable("runs/0/hash", json_string("0000000000000000"), "as in the row");
    expect_unreadable("runs/5/hash", NULL, "has no runs[5].hash");
    expect_unreadable("runs/5/window_steps", json_integer(INT64_MAX), "has runs[5].window_steps 9");
    expect_unreadable("runs/5/rows/2", json_integer(-1), "has runs[5].rows {\"2\":-1}");
    expect_unreadable("runs/5", json_null(), "has no runs[5].warmup");
    expect_unreadable("runs/0/warmup", json_false(), "has 0 warm-up runs, wanted 1");
    expect_unreadable("settings/repeat", json_integer(20), "has 11 measured runs, wanted 20");
    expect_unreadable("settings/streams", json_integer(1), "wanted {\"1\":77}");
    expect_unreadable("runs/5/window_steps", json_integer(6), "wanted {\"2\":76}");
    expect_unreadable("histogram", json_null(), "has histogram null, wanted {\"2\":77}");
    expect_unreadable("histogram/1", json_integer(1), "has histogram {\"1\":1,\"2\":77}, wanted");
    expect_unreadable("figures/x/samples/4", json_integer(99), "other values than the runs");
    expect_unreadable("runs/3/dropped", json_string("edited"), "counts 11 runs, but 10");
    expect_unreadable("measuring", NULL, "has no measuring.share");
    expect_unreadable("measuring", json_null(), "has no measuring.share");
    expect_unreadable("knobs", json_null(), "has knobs null");
    expect_unreadable("knobs/backend.threads", json_integer(1),
                      "has knobs.backend.threads 1, wanted 2 as in the provenance");
    expect_unreadable("knobs/more", json_true(), "has knobs.more true, wanted none");
    expect_unreadable("valid", json_false(), "has void_reason null");
}

/* Without timed steps all rows that were computed count, and nothing was spent on timing. */
static void one_token(void **state) {
    (void)state;
    fti_bench_row row, again;
    char *why;
    make_row(&row, 1, 12);
    json_object_set_new(row.settings, "tokens", json_integer(1));
    for (size_t i = 0; i < 12; i++)
        json_object_set_new(json_array_get(row.runs, i), "window_steps", json_integer(0));
    fti_bench_row_set(&row.measuring, json_null());
    json_t *json = fti_bench_row_json(&row);
    assert_true(fti_bench_row_read(json, &again, &why));
    assert_null(again.void_reason);
    fti_bench_row_free(&again);
    json_decref(json);
    fti_bench_row_free(&row);
}

/* What was saved as void is read as void, and says why. */
static void void_again(void **state) {
    (void)state;
    fti_bench_row row, again;
    char *why;
    make_row(&row, 1, 12);
    fti_bench_row_void(&row, "planted");
    json_t *json = fti_bench_row_json(&row);
    assert_true(fti_bench_row_read(json, &again, &why));
    assert_string_equal(again.void_reason, "planted");
    fti_bench_row_free(&again);
    json_decref(json);
    fti_bench_row_free(&row);
}

/* Rows of kernels have no engine. */
static void without_provenance(void **state) {
    (void)state;
    expect_unreadable("provenance", json_null(), "attributes nothing; compare rows of");
}

static void causes(void **state) {
    (void)state;
    for (int i = 0; i < FTI_BENCH_CAUSES; i++) {
        fti_bench_cause cause = FTI_BENCH_CAUSES;
        assert_true(fti_bench_cause_of(fti_bench_cause_text((fti_bench_cause)i), &cause));
        assert_int_equal(cause, i);
    }
    fti_bench_cause cause;
    assert_false(fti_bench_cause_of("model", &cause));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back), cmocka_unit_test(complete),
        cmocka_unit_test(warmup_counted), cmocka_unit_test(dropped),
        cmocka_unit_test(claims),         cmocka_unit_test(unreadable),
        cmocka_unit_test(contradictions), cmocka_unit_test(one_token),
        cmocka_unit_test(void_again),     cmocka_unit_test(without_provenance),
        cmocka_unit_test(causes),
    };
    return cmocka_run_group_tests_name("test_row", tests, NULL, NULL);
}
