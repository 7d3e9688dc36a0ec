/* test_sample.c: runs on the demo model, with errors planted: batches in waves, a flipped
 * token, a clock that steps, a slow warm-up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "cli/output.h"
#include "load.h"
#include "prompts.h"
#include "subject.h"

const char fti_cli_program_name[] = "test_sample";

#define MODEL FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"

/* ---- a clock that can be led astray ---- */

typedef struct faulty_clock {
    int64_t scale;       /* so many times as fast as the system's */
    clockid_t id;        /* the clock that jumps */
    int64_t jump;        /* by so much, */
    uint64_t at;         /* at this reading of CLOCK_MONOTONIC */
    uint64_t until;      /* and back again at this one; 0: never */
    uint64_t reads;      /* of CLOCK_MONOTONIC so far */
    int64_t per_million; /* CLOCK_MONOTONIC runs so much faster than the others */
} faulty_clock;

static int64_t read_faulty(void *user, clockid_t id) {
    faulty_clock *c = user;
    int64_t t = fti_bench_system_clock.read(NULL, id) * c->scale;
    if (id == CLOCK_MONOTONIC) {
        c->reads++;
        t += t / 1000000 * c->per_million;
    }
    bool jumps = id == c->id && c->reads >= c->at && (c->until == 0 || c->reads < c->until);
    return jumps ? t + c->jump : t;
}

/* ---- a subject on the demo model ---- */

typedef struct rig {
    fti_bench_values values;
    fti_bench_task task;
    fti_bench_subject subject;
    faulty_clock faults;
    fti_bench_clock clock;
    fti_bench_row row;
} rig;

static rig *open_rig(const char *scenario, uint32_t tokens, const char *setting) {
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->values = (fti_bench_values){.tokens = tokens, .batch = 4, .prompt_tokens = 12};
    r->values.set = (fti_cli_list){.items = {"backend.threads=1", setting}, .count = 1};
    r->values.set.count += setting != NULL;
    r->faults = (faulty_clock){.scale = 1, .id = CLOCK_MONOTONIC};
    r->clock = (fti_bench_clock){read_faulty, &r->faults};
    const fti_cli_common common = {.config = FTK_CONFIG};
    ftk_config *config;
    assert_int_equal(fti_bench_make_task(&r->values, scenario, &r->task), 0);
    r->task.clock = &r->clock;
    assert_int_equal(fti_bench_config(&common, NULL, false, &r->values.set, NULL, &config), 0);
    assert_int_equal(fti_bench_subject_open(&r->subject, &r->task, config, MODEL), 0);
    return r;
}

static void close_rig(rig *r) {
    fti_bench_row_free(&r->row);
    fti_bench_subject_close(&r->subject);
    free(r);
}

static void run(rig *r, size_t warmup, size_t measured) {
    for (size_t i = 0; i < warmup + measured; i++)
        assert_int_equal(fti_bench_subject_run(&r->subject, i < warmup), 0);
}

static void expect_valid(rig *r, size_t samples) {
    fti_bench_subject_row(&r->subject, &r->row);
    if (r->row.void_reason) fail_msg("void: %s", r->row.void_reason);
    assert_int_equal(r->row.figures[0].count, samples);
}

static void expect_void(rig *r, const char *part) {
    fti_bench_row_free(&r->row);
    fti_bench_subject_row(&r->subject, &r->row);
    if (!r->row.void_reason) fail_msg("not void, which '%s' should have made it", part);
    if (!strstr(r->row.void_reason, part)) fail_msg("'%s' lacks '%s'", r->row.void_reason, part);
}

/* ---- batches ---- */

static void batch_of_four(void **state) {
    (void)state;
    rig *r = open_rig("batch", 12, NULL);
    run(r, 1, 2);
    expect_valid(r, 2);
    assert_true(fti_bench_histogram_is(r->row.histogram, 4));
    /* All four prompts are done in one step, and the first token is no decode step. */
    assert_int_equal(json_integer_value(json_object_get(r->row.histogram, "4")), 2 * (12 - 1));
    const fti_bench_sample *s = &r->subject.samples[1];
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(s->streams[i].hash, r->subject.solo[i]);
        for (size_t k = 0; k < i; k++)
            assert_true(s->streams[i].hash != s->streams[k].hash); /* different prompts */
    }
    const fti_bench_figure *all = fti_bench_row_find(&r->row, "aggregate_tok_s");
    const fti_bench_figure *each = fti_bench_row_find(&r->row, "stream_tok_s");
    assert_true(all->values[0] > 3.99 * each->values[0] && all->values[0] < 4.01 * each->values[0]);
    close_rig(r);
}

/* Planted: two slots for four requests. */
static void batch_in_waves(void **state) {
    (void)state;
    rig *r = open_rig("batch", 10, "scheduler.max_running=2");
    run(r, 1, 1);
    expect_void(r, "asked for steps of 4, ran as 18 steps of 2, never");
    json_t *json = fti_bench_row_json(&r->row);
    char *text = json_dumps(json, 0);
    assert_null(strstr(text, "aggregate_tok_s")); /* not even among the runs */
    free(text);
    const json_t *ran = json_object_get(json, "histogram");
    assert_int_equal(json_integer_value(json_object_get(ran, "2")), 18);
    assert_int_equal(json_object_size(ran), 1);
    json_decref(json);
    close_rig(r);
}

/* Three slots: some steps are of three, none of four. */
static void batch_of_three(void **state) {
    (void)state;
    rig *r = open_rig("batch", 10, "scheduler.max_running=3");
    run(r, 0, 1);
    expect_void(r, "asked for steps of 4, ran as 9 steps of 3 and 9 of 1, never");
    close_rig(r);
}

/* A request whose tokens in company are not those it has alone. */
static void batch_differs_from_solo(void **state) {
    (void)state;
    rig *r = open_rig("batch", 8, NULL);
    run(r, 0, 1);
    r->subject.solo[2] ^= 1;
    run(r, 0, 1);
    expect_void(r, "run 2: request 3 has tokens with hash");
    close_rig(r);
}

/* ---- tokens ---- */

static void flipped_token(void **state) {
    (void)state;
    rig *r = open_rig("decode", 8, NULL);
    run(r, 1, 3);
    expect_valid(r, 3);
    assert_true(fti_bench_histogram_is(r->row.histogram, 1));
    fti_bench_sample *s = &r->subject.samples[2];
    s->streams[0].ids[5] ^= 1; /* on its way from the engine to us */
    fti_bench_sample_check(s, 8);
    expect_void(r, "run 3: request 1 delivered tokens with hash");
    free(s->fault);
    s->fault = NULL;
    s->streams[0].result.hash = XXH3_64bits(s->streams[0].ids, 8 * sizeof(int32_t));
    fti_bench_sample_check(s, 8); /* in the engine: the sample agrees with itself */
    assert_null(s->fault);
    expect_void(r, "run 3 has tokens with hash");
    s->streams[0].ids[5] ^= 1;
    s->streams[0].result.hash = r->subject.samples[0].hash;
    fti_bench_sample_check(s, 8);
    fti_bench_sample *w = &r->subject.samples[0]; /* the warm-up's tokens count as well */
    w->streams[0].ids[0] ^= 1;
    w->streams[0].result.hash = XXH3_64bits(w->streams[0].ids, 8 * sizeof(int32_t));
    fti_bench_sample_check(w, 8);
    expect_void(r, "run 2 has tokens with hash");
    close_rig(r);
}

static void cut_short(void **state) {
    (void)state;
    rig *r = open_rig("decode", 8, "memory.kv_tokens=32");
    r->task.tokens = 40;
    run(r, 0, 1);
    expect_void(r, "a run ended before all tokens were generated: 21 of 40");
    close_rig(r);
}

/* Said before anything runs: 12 tokens and 21, of which the last takes no position, fit 32. */
static void past_the_context(void **state) {
    (void)state;
    rig *r = open_rig("decode", 21, "memory.kv_tokens=32");
    ftk_config *config;
    const fti_cli_common common = {.config = FTK_CONFIG};
    fti_bench_subject more;
    r->task.tokens = 22;
    assert_int_equal(fti_bench_config(&common, NULL, false, &r->values.set, NULL, &config), 0);
    assert_int_equal(fti_bench_subject_open(&more, &r->task, config, MODEL), FTI_CLI_EXIT_USAGE);
    fti_bench_subject_close(&more);
    r->task.tokens = 21;
    run(r, 0, 1);
    expect_valid(r, 1);
    close_rig(r);
}

/* ---- warm-up ---- */

/* Planted: a warm-up a thousand times as slow. None of its values may be in the figures. */
static void warmup_dropped(void **state) {
    (void)state;
    rig *r = open_rig("decode", 8, NULL);
    r->faults.scale = 1000;
    run(r, 2, 0);
    r->faults.scale = 1;
    run(r, 0, 3);
    expect_valid(r, 3);
    double slow = r->task.scenario->yields[0].of(&r->subject.samples[1]);
    fti_bench_statistics s = fti_bench_describe(r->row.figures[0].values, 3);
    assert_true(slow > 0.0 && s.min > 20.0 * slow);
    assert_int_equal(json_integer_value(json_object_get(r->row.histogram, "1")), 3 * 7);
    /* Had it been taken for a measured one, reading the row would have shown it. */
    r->subject.samples[0].warmup = false;
    fti_bench_row again;
    fti_bench_subject_row(&r->subject, &again);
    json_decref(again.runs);
    again.runs = json_incref(r->row.runs);
    fti_bench_row_check(&again);
    assert_non_null(again.void_reason);
    fti_bench_row_free(&again);
    close_rig(r);
}

/* ---- the clock ---- */

/* One of three samples runs under `faults`. */
static void expect_dropped(faulty_clock faults, const char *part) {
    rig *r = open_rig("decode", 8, NULL);
    run(r, 1, 1);
    faults.scale = 1;
    r->faults = faults;
    run(r, 0, 1);
    r->faults = (faulty_clock){.scale = 1, .id = CLOCK_MONOTONIC};
    run(r, 0, 1);
    const fti_bench_sample *s = &r->subject.samples[2];
    if (!part && s->dropped) fail_msg("dropped: %s", s->dropped);
    if (part && (!s->dropped || !strstr(s->dropped, part)))
        fail_msg("'%s' lacks '%s'", s->dropped, part);
    expect_valid(r, part ? 2 : 3);
    const json_t *run2 = json_array_get(r->row.runs, 2);
    assert_int_equal(json_is_string(json_object_get(run2, "dropped")), part != NULL);
    close_rig(r);
}

static void clock_steps(void **state) {
    (void)state;
    expect_dropped((faulty_clock){.id = CLOCK_MONOTONIC}, NULL);
    /* The stamp at the begin takes two readings, or some more on a busy machine; the ninth
     * lies among the steps. */
    expect_dropped((faulty_clock){.id = CLOCK_MONOTONIC, .at = 9, .jump = 3600000000000},
                   "CLOCK_MONOTONIC_RAW");
    expect_dropped((faulty_clock){.id = CLOCK_MONOTONIC, .at = 9, .jump = -3600000000000},
                   "CLOCK_MONOTONIC ran 3");
    expect_dropped(
        (faulty_clock){.id = CLOCK_MONOTONIC, .at = 9, .until = 10, .jump = -3600000000000},
        "backwards between steps"); /* and nothing to be seen at the end */
    expect_dropped((faulty_clock){.id = CLOCK_BOOTTIME, .at = 9, .jump = 2000000000},
                   "CLOCK_BOOTTIME"); /* the machine slept */
    expect_dropped((faulty_clock){.id = CLOCK_MONOTONIC, .per_million = 300}, NULL); /* slewed */
}

static void clock_tolerance(void **state) {
    (void)state;
    const fti_bench_stamp begin = {1000, 1000, 1000, 100};
    fti_bench_stamp end = {1000 + 1000000000, 1000 + 1000000000, 1000 + 1000000000, 100};
    char text[256];
    assert_null(fti_bench_clock_fault(&begin, &end, text, sizeof text));
    end.raw += 1050000; /* 0.1 % and 50 us, */
    assert_null(fti_bench_clock_fault(&begin, &end, text, sizeof text));
    end.raw += 201; /* and the two widths */
    assert_non_null(fti_bench_clock_fault(&begin, &end, text, sizeof text));
    end.raw -= 2 * 1050201;
    assert_non_null(fti_bench_clock_fault(&begin, &end, text, sizeof text));
    end = begin;
    assert_non_null(fti_bench_clock_fault(&begin, &end, text, sizeof text)); /* stands still */
}

static void nothing_left(void **state) {
    (void)state;
    rig *r = open_rig("decode", 4, NULL);
    r->faults = (faulty_clock){.scale = 1, .id = CLOCK_BOOTTIME, .at = 7, .jump = 2000000000};
    run(r, 0, 1);
    expect_void(r, "no run is left to count: the clock stepped");
    close_rig(r);
}

/* ---- what measuring costs ---- */

static void overhead(void **state) {
    (void)state;
    rig *r = open_rig("decode", 16, NULL);
    run(r, 1, 3);
    expect_valid(r, 3);
    const fti_bench_sample *s = &r->subject.samples[1];
    assert_int_equal(s->steps, 16);
    assert_int_equal(s->clock_reads, s->steps + 1); /* one more opens the window */
    double share = json_number_value(json_object_get(r->row.measuring, "share"));
    if (share <= 0.0 || share >= 0.002) fail_msg("measuring takes %g of a step", share);
    close_rig(r);
}

static int64_t read_slowly(void *user, clockid_t id) {
    (void)id;
    return *(int64_t *)user += 1000;
}

/* The cost is that of one reading and what is done with it. */
static void cost_is_measured(void **state) {
    (void)state;
    int64_t now = 0;
    const fti_bench_clock slow = {read_slowly, &now};
    double cost = fti_bench_step_cost(&slow, 1);
    assert_true(cost > 0.99e-6 && cost < 1.01e-6);
    assert_true(fti_bench_step_cost(&fti_bench_system_clock, 8) > 0.0);
}

/* ---- other scenarios ---- */

static void prefill(void **state) {
    (void)state;
    rig *r = open_rig("prefill", 0, "scheduler.prefill_tokens=8");
    run(r, 1, 2);
    expect_valid(r, 2);
    /* 12 tokens in pieces of 8. */
    assert_int_equal(json_integer_value(json_object_get(r->row.histogram, "8")), 2);
    assert_int_equal(json_integer_value(json_object_get(r->row.histogram, "4")), 2);
    const fti_bench_figure *rate = fti_bench_row_find(&r->row, "prefill_tok_s");
    const fti_bench_figure *first = fti_bench_row_find(&r->row, "time_to_first_token_s");
    assert_true(first->less_is_better);
    double tokens = rate->values[0] * first->values[0];
    assert_true(tokens > 11.99 && tokens < 12.01);
    close_rig(r);
}

static void load(void **state) {
    (void)state;
    rig *r = open_rig("load", 2, NULL);
    r->values.cold = true;
    run(r, 1, 2);
    expect_valid(r, 2);
    assert_int_equal(r->row.cause, FTI_BENCH_REPRESENTATION);
    const fti_bench_figure *ready = fti_bench_row_find(&r->row, "load_s");
    const fti_bench_figure *token = fti_bench_row_find(&r->row, "open_to_first_token_s");
    assert_true(ready->values[1] > 0.0 && token->values[1] > ready->values[1]);
    assert_true(fti_bench_row_find(&r->row, "peak_memory_mib")->values[0] > 1.0);
    const fti_bench_sample *s = &r->subject.samples[2];
    if (s->peak_bytes + 65536 < fti_bench_peak_bytes())
        fail_msg("peak %ju, and at the end %ju", (uintmax_t)s->peak_bytes,
                 (uintmax_t)fti_bench_peak_bytes());
    assert_true(s->mapped_bytes + s->copied_bytes > 20000000);
    assert_in_range(s->cached_percent, 0, 100);
    assert_int_equal(json_integer_value(json_object_get(r->row.details, "file_bytes")), 24032992);
    close_rig(r);
}

static void prompts(void **state) {
    (void)state;
    rig *r = open_rig("decode", 4, NULL);
    size_t size;
    char *prose = fti_bench_prose(&size);
    fti_bench_prompt *two = calloc(2, sizeof *two);
    assert_int_equal(fti_bench_make_prompts(r->subject.engine, prose, size, "x", 600, two, 2), 0);
    /* Natural text does not come back: no eight tokens in a row occur twice. */
    for (size_t i = 0; i + 8 < 600; i += 8)
        for (size_t k = 0; k + 8 < 600; k++)
            assert_true(memcmp(two[0].ids + i, two[1].ids + k, 8 * sizeof(int32_t)) != 0 &&
                        (i == k || memcmp(two[0].ids + i, two[0].ids + k, 8 * sizeof(int32_t))));
    fti_bench_free_prompts(two, 2);
    two = calloc(2, sizeof *two);
    assert_int_equal(fti_bench_make_prompts(r->subject.engine, "a b", 3, "x", 600, two, 1), 2);
    fti_bench_free_prompts(two, 2);
    free(prose);
    close_rig(r);
}

static void histograms(void **state) {
    (void)state;
    json_t *h = json_pack("{s:i, s:i, s:i}", "1", 3, "16", 1, "2", 5);
    char *text = fti_bench_histogram_text(h);
    assert_string_equal(text, "1 step of 16, 5 of 2 and 3 of 1");
    free(text);
    assert_false(fti_bench_histogram_is(h, 1));
    json_object_clear(h);
    assert_false(fti_bench_histogram_is(h, 1));
    text = fti_bench_histogram_text(h);
    assert_string_equal(text, "no steps");
    free(text);
    json_decref(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_of_four),
        cmocka_unit_test(batch_in_waves),
        cmocka_unit_test(batch_of_three),
        cmocka_unit_test(batch_differs_from_solo),
        cmocka_unit_test(flipped_token),
        cmocka_unit_test(cut_short),
        cmocka_unit_test(past_the_context),
        cmocka_unit_test(warmup_dropped),
        cmocka_unit_test(clock_steps),
        cmocka_unit_test(clock_tolerance),
        cmocka_unit_test(nothing_left),
        cmocka_unit_test(overhead),
        cmocka_unit_test(cost_is_measured),
        cmocka_unit_test(prefill),
        cmocka_unit_test(load),
        cmocka_unit_test(prompts),
        cmocka_unit_test(histograms),
    };
#if defined(__SANITIZE_THREAD__)
    print_message("skip: nothing here has threads of its own, and ThreadSanitizer takes minutes\n");
    const struct CMUnitTest one[] = {tests[0]};
    return cmocka_run_group_tests_name("test_sample", one, NULL, NULL);
#else
    return cmocka_run_group_tests_name("test_sample", tests, NULL, NULL);
#endif
}
