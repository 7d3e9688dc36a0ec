/*
 * test_overhead.c: what scheduling costs beside the model: steps whose rows take no time (the
 * step on the backend, copies of states and the choice of a token are replaced), with 16 requests
 * running and 1,000 waiting, some to the end of time and some that come and go with every step.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "api/collect.h"
#include "core/service.h"

#define RUNNING 16u
#define WAITING 1000u
#define STEPS   (FIXTURE_SLOW_BUILD ? 100u : 3000u)
#define BOUND   20e-6 /* seconds */

ftk_status __wrap_fti_run_step(ftk_engine *engine, const fti_sequence *sequences, uint32_t count,
                               float *layers, bool *replayed, ftk_error *err);
ftk_status __wrap_fti_sample(fti_sampler *sampler, const float *logits,
                             const fti_sampling *sampling, const int32_t *history, size_t count,
                             uint64_t position, fti_sample_result *result, ftk_error *err);
ftk_status __wrap_fti_clear_state(ftk_engine *engine, int32_t slot, ftk_error *err);
ftk_status __wrap_fti_copy_state(ftk_engine *engine, int32_t to, int32_t from, ftk_error *err);
ftk_status __wrap_fti_copy_page(ftk_engine *engine, int32_t to, int32_t from, ftk_error *err);

static uint64_t rows_run;

ftk_status __wrap_fti_run_step(ftk_engine *engine, const fti_sequence *sequences, uint32_t count,
                               float *layers, bool *replayed, ftk_error *err) {
    (void)engine, (void)layers, (void)err;
    for (uint32_t i = 0; i < count; i++) rows_run += sequences[i].rows;
    *replayed = false;
    return FTK_OK;
}

ftk_status __wrap_fti_sample(fti_sampler *sampler, const float *logits,
                             const fti_sampling *sampling, const int32_t *history, size_t count,
                             uint64_t position, fti_sample_result *result, ftk_error *err) {
    (void)sampler, (void)logits, (void)sampling, (void)history, (void)count, (void)position;
    (void)err;
    *result = (fti_sample_result){.id = 11};
    return FTK_OK;
}

static uint64_t moved; /* states and pages */

ftk_status __wrap_fti_clear_state(ftk_engine *engine, int32_t slot, ftk_error *err) {
    (void)engine, (void)slot, (void)err;
    moved++;
    return FTK_OK;
}

ftk_status __wrap_fti_copy_state(ftk_engine *engine, int32_t to, int32_t from, ftk_error *err) {
    (void)to;
    return __wrap_fti_clear_state(engine, from, err);
}

ftk_status __wrap_fti_copy_page(ftk_engine *engine, int32_t to, int32_t from, ftk_error *err) {
    (void)to;
    return __wrap_fti_clear_state(engine, from, err);
}

static int nothing(void *user, const ftk_event *event) {
    (void)event;
    ++*(uint64_t *)user;
    return 0;
}

static void submit_one(ftk_engine *engine, uint32_t n, uint32_t max_tokens, uint64_t *events) {
    int32_t ids[40];
    for (int32_t i = 0; i < 40; i++) ids[i] = (int32_t)(n % 97) + i + 5;
    ftk_request r = FTK_REQUEST_INIT;
    r.tokens = ids;
    r.token_count = 40;
    r.max_tokens = max_tokens;
    r.ignore_end = 1;
    r.on_event = nothing;
    r.user = events;
    submit(engine, &r);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of a step; as many requests come as go. */
static double median_step(uint32_t max_tokens, const char *what) {
    static double times[3000];
    const char *const settings[] = {
        "scheduler.max_running", "16", "memory.kv_tokens", "4096", "backend.threads", "1", NULL};
    ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
    const fti_service *s = engine->service;
    uint64_t events = 0;
    uint32_t submitted = 0;
    while (submitted < RUNNING + WAITING) submit_one(engine, submitted++, max_tokens, &events);
    for (uint32_t i = 0; i < STEPS; i++) {
        double before = fti_now();
        step(engine);
        times[i] = fti_now() - before;
        if (i > 4) assert_int_equal(s->running + s->waiting.count > WAITING, 1);
        while (s->running + s->waiting.count < RUNNING + WAITING)
            submit_one(engine, submitted++, max_tokens, &events);
    }
    assert_true(events > STEPS && rows_run > STEPS && moved > 0);
    ftk_engine_close(engine);
    qsort(times, STEPS, sizeof *times, by_value);
    print_message("%s: a step of %u rows takes %.2f us (median; 90 of 100 below %.2f us)\n", what,
                  RUNNING, 1e6 * times[STEPS / 2], 1e6 * times[STEPS * 9 / 10]);
    return times[STEPS / 2];
}

static void expect_below(double seconds) {
    if (FIXTURE_SLOW_BUILD)
        print_message("skip: sanitizers take time of their own\n");
    else
        assert_true(seconds < BOUND);
}

static void few_come_and_go(void **state) {
    (void)state;
    expect_below(median_step(200, "requests that stay"));
}

/* Every request has four steps to live: four end in each, and four begin. */
static void some_with_every_step(void **state) {
    (void)state;
    expect_below(median_step(4, "requests that come and go"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_come_and_go),
        cmocka_unit_test(some_with_every_step),
    };
    return cmocka_run_group_tests_name("test_overhead", tests, NULL, NULL);
}
