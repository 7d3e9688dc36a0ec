/*
 * test_soak.c: many random requests of random priorities in small pools, a third of them
 * cancelled while they wait, in their prompt, in their answer, by their callback or another's; with
 * all reserved at admission, and with too little, so that they are preempted. After every step each
 * page, slot and unit of swap space has the holders that say so; every answer is that of a solo
 * run, or its beginning; at the end everything is back. `test_soak N` runs N requests in each way,
 * `test_soak N WAY` in one of them (0, 1, 2).
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/collect.h"
#include "core/service.h"
#include "loader/scratch.h"
#include "support/synth_model.h"

#define KINDS  12u
#define LIVE   24u /* at the same time, running and waiting */
#define LENGTH 40u

static uint64_t total = FIXTURE_SLOW_BUILD ? 40 : 600;
static text model;

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static uint32_t below(uint64_t *seed, uint32_t n) {
    return (uint32_t)(next_random(seed) % n);
}

/* ---- requests of a few kinds, whose answers are known ---- */

typedef struct live {
    uint64_t id; /* 0: free */
    uint32_t kind, max_tokens, count, cancel_at;
    bool cancelled, wrong;
} live;

static live all[LIVE];
static ftk_engine *soaked;
static uint64_t callback_seed;
static int32_t known[KINDS][LENGTH];
static uint64_t finished, cancelled, tokens_compared;

static uint32_t prompt_size(uint32_t kind) {
    static const uint32_t sizes[KINDS] = {1, 3, 9, 17, 40, 63, 64, 65, 90, 5, 2, 30};
    return sizes[kind];
}

static ftk_request request_of_kind(uint32_t kind, int32_t *ids, uint32_t max_tokens) {
    /* Two kinds each have a beginning in common. */
    for (uint32_t i = 0; i < prompt_size(kind); i++)
        ids[i] = (int32_t)(1 + (i * 31 + (i < 20 ? kind % 6 : kind)) % 999);
    ftk_request r = FTK_REQUEST_INIT;
    r.tokens = ids;
    r.token_count = prompt_size(kind);
    r.max_tokens = max_tokens;
    r.ignore_end = 1;
    r.sampling.temperature = kind % 2 ? 0.8f : 0;
    r.sampling.seed = kind;
    return r;
}

static int learn(void *user, const ftk_event *event) {
    live *l = user;
    if (event->type == FTK_EVENT_TOKEN) known[l->kind][l->count++] = event->token;
    return 0;
}

static void learn_answers(ftk_engine *engine) {
    for (uint32_t k = 0; k < KINDS; k++) {
        int32_t ids[90];
        live l = {.kind = k};
        ftk_request r = request_of_kind(k, ids, LENGTH);
        r.on_event = learn;
        r.user = &l;
        submit(engine, &r);
        step_to_end(engine);
        assert_int_equal(l.count, LENGTH);
    }
}

/* Cancels somebody else, whatever that one is doing: waiting, running, off the machine. */
static void cancel_another(void) {
    live *l = &all[below(&callback_seed, LIVE)];
    if (!l->id || below(&callback_seed, 160) > 0) return;
    if (ftk_cancel(soaked, l->id, NULL) == FTK_OK) l->cancelled = true;
}

static int follow(void *user, const ftk_event *event) {
    live *l = user;
    if (event->type == FTK_EVENT_TOKEN) {
        cancel_another();
        l->wrong |= l->count >= l->max_tokens || event->token != known[l->kind][l->count];
        l->count++;
        tokens_compared++;
        l->cancelled |= l->count == l->cancel_at;
        return l->count == l->cancel_at;
    }
    bool ended = event->result.finish == FTK_FINISH_CANCELLED
                     ? l->cancelled
                     : event->result.finish == FTK_FINISH_LENGTH && l->count == l->max_tokens;
    l->wrong |= !ended || event->status != FTK_OK || event->result.tokens != l->count;
    cancelled += event->result.finish == FTK_FINISH_CANCELLED;
    finished++;
    if (!l->wrong) l->id = 0;
    return 0;
}

static void submit_random(ftk_engine *engine, live *l, uint64_t *seed) {
    int32_t ids[90];
    *l = (live){.kind = below(seed, KINDS), .max_tokens = 1 + below(seed, LENGTH)};
    if (below(seed, 8) == 0) l->cancel_at = 1 + below(seed, l->max_tokens);
    ftk_request r = request_of_kind(l->kind, ids, l->max_tokens);
    r.priority = (int32_t)below(seed, 4);
    r.chunk = below(seed, 30);
    r.on_event = follow;
    r.user = l;
    l->id = submit(engine, &r);
}

/* ---- accounts ---- */

static void check_accounts(const ftk_engine *engine) {
    json_t *o = stats_of(engine), *r;
    uint64_t running = 0, waiting = 0, lives = 0;
    const char *fault = fti_holdings_fault(engine->service);
    if (fault) fail_msg("the accounts of %s do not add up", fault);
    size_t i;
    json_array_foreach(json_object_get(o, "requests"), i, r) {
        bool runs = json_is_true(json_object_get(r, "running"));
        running += runs;
        waiting += !runs;
    }
    for (i = 0; i < LIVE; i++) {
        lives += all[i].id != 0;
        if (all[i].wrong)
            fail_msg("request %lu differs from its solo run, or ended wrongly", all[i].id);
    }
    assert_int_equal(running + waiting, lives);
    const struct {
        const char *key;
        uint64_t wanted;
    } rows[] = {{"requests_running", running},
                {"requests_waiting", waiting},
                {"requests_ended", finished + KINDS}};
    for (i = 0; i < FTI_COUNT(rows); i++) {
        uint64_t found = (uint64_t)json_integer_value(json_object_get(o, rows[i].key));
        if (found != rows[i].wanted)
            fail_msg("%s is %lu, wanted %lu", rows[i].key, found, rows[i].wanted);
    }
    json_decref(o);
}

static size_t entries_of(const char *folder) {
    DIR *d = opendir(folder);
    size_t n = 0;
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static uint64_t resident_bytes(void) {
    unsigned long size, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &size, &resident), 2);
    (void)fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- the run ---- */

static void one_step(ftk_engine *engine, uint64_t *submitted, uint64_t *seed) {
    for (uint32_t tries = below(seed, 4); tries > 0 && *submitted < total; tries--) {
        live *l = &all[below(seed, LIVE)];
        if (l->id) continue;
        submit_random(engine, l, seed);
        ++*submitted;
    }
    live *l = &all[below(seed, LIVE)];
    if (l->id && below(seed, 24) == 0) {
        l->cancelled = true;
        assert_int_equal(ftk_cancel(engine, l->id, NULL), FTK_OK);
    }
    step(engine);
    check_accounts(engine);
}

/* Whatever the run was about has happened. */
static void expect_events(const ftk_engine *engine, bool preempts, bool swap) {
    json_t *o = stats_of(engine), *by = json_object_get(o, "preemptions");
    json_int_t again = json_integer_value(json_object_get(by, "recompute"));
    json_int_t swapped = json_integer_value(json_object_get(by, "swap"));
    print_message("%lld preemptions to compute again, %lld to swap space; %lld tokens reused, "
                  "%lld rows run again\n",
                  (long long)again, (long long)swapped,
                  (long long)json_integer_value(json_object_get(o, "reused_tokens")),
                  (long long)json_integer_value(json_object_get(o, "recomputed_rows")));
    assert_true(json_integer_value(json_object_get(o, "reused_tokens")) > 0);
    assert_int_equal(swapped > 0, swap);
    assert_int_equal(again + swapped > 0, preempts);
    json_decref(o);
}

static void soak(const char *preempt, const char *overcommit, const char *swap) {
    const char *const settings[] = {"scheduler.max_running",
                                    "4",
                                    "memory.kv_tokens",
                                    "320",
                                    "memory.snapshots",
                                    "6",
                                    "scheduler.prefill_tokens",
                                    "24",
                                    "scheduler.preempt",
                                    preempt,
                                    "scheduler.overcommit",
                                    overcommit,
                                    "scheduler.swap",
                                    swap,
                                    "backend.threads",
                                    "2",
                                    NULL};
    ftk_engine *engine = fixture_open(model.s, settings);
    uint64_t seed = 2024, submitted = 0, resident = 0;
    memset(all, 0, sizeof all);
    soaked = engine;
    callback_seed = 7;
    finished = cancelled = tokens_compared = 0;
    learn_answers(engine);
    /* All of it touched, so that only what is lost makes the process grow. */
    const fti_service *s = engine->service;
    if (s->swap.memory) memset(s->swap.memory, 0, s->units.count * s->swap.unit_bytes);
    size_t files = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
    while (finished < total) {
        one_step(engine, &submitted, &seed);
        if (resident == 0 && finished > total / 10) resident = resident_bytes();
    }
    expect_idle(engine);
    assert_int_equal(ftk_engine_forget(engine, NULL), FTK_OK);
    assert_int_equal(stat_of(engine, "pages_cached"), 0);
    assert_int_equal(stat_of(engine, "state_slots_cached"), 0);
    assert_int_equal(stat_of(engine, "swap_units_used"), 0);
    assert_null(fti_holdings_fault(engine->service));
    assert_int_equal(entries_of("/proc/self/fd"), files);
    assert_int_equal(entries_of("/proc/self/task"), threads);
    if (!FIXTURE_SLOW_BUILD) assert_true(resident_bytes() <= resident + resident / 100);
    print_message("%lu requests, %lu of them cancelled, %lu tokens as alone\n", finished, cancelled,
                  tokens_compared);
    expect_events(engine, strcmp(preempt, "true") == 0, strcmp(swap, "0") != 0);
    assert_true(total < 200 || (cancelled * 10 > total * 2 && cancelled * 10 < total * 5));
    ftk_engine_close(engine);
}

static void e3_all_reserved(void **state) {
    (void)state;
    soak("false", "false", "0");
}

static void e3_overcommitted(void **state) {
    (void)state;
    soak("true", "true", "0");
}

static void e3_overcommitted_with_swap_space(void **state) {
    (void)state;
    soak("true", "true", "4MiB");
}

static int setup(void **state) {
    if (scratch_setup(state) != 0) return -1;
    ftk_error err = FTK_ERROR_INIT;
    fti_synth_model m = fti_synth_tiny();
    m.dims.interval = 2;
    m.dims.layers = 2;
    model = in_scratch("soak.gguf");
    return fti_synth_write(&m, model.s, &err) == FTK_OK ? 0 : -1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(e3_all_reserved),
                                       cmocka_unit_test(e3_overcommitted),
                                       cmocka_unit_test(e3_overcommitted_with_swap_space)};
    if (argc > 1) total = strtoull(argv[1], NULL, 10);
    if (argc < 3) return cmocka_run_group_tests_name("test_soak", tests, setup, scratch_teardown);
    const struct CMUnitTest one[] = {tests[strtoul(argv[2], NULL, 10) % FTI_COUNT(tests)]};
    return cmocka_run_group_tests_name("test_soak", one, setup, scratch_teardown);
}
