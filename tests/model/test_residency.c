/*
 * test_residency.c: experts in slots give the bits of experts that all lie in memory, however few
 * slots there are and wherever steps are cut; counters prove that they came from the file. What
 * cannot be read fails its requests and nothing else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/engine.h"
#include "loader/scratch.h"
#include "support/engine_fixture.h"
#include "support/model_runs.h"
#include "support/synth_model.h"

#define ROWS     40u
#define REQUESTS 5u
#define ANSWER   24u

/* ---- what is compared ---- */

typedef struct result {
    logits all; /* of every position of a prompt */
    int32_t tokens[REQUESTS][ANSWER];
    uint32_t counts[REQUESTS];
    fti_expert_stats experts;
} result;

typedef struct taker {
    int32_t *tokens;
    uint32_t *count;
    int32_t finish;
} taker;

static int take(void *user, const ftk_event *event) {
    taker *t = user;
    if (event->type == FTK_EVENT_TOKEN && *t->count < ANSWER)
        t->tokens[(*t->count)++] = event->token;
    if (event->type == FTK_EVENT_DONE) t->finish = (int32_t)event->result.finish;
    return 0;
}

static uint64_t submit(ftk_engine *engine, uint32_t i, taker *t) {
    int32_t ids[64];
    uint64_t id;
    ftk_error err = FTK_ERROR_INIT;
    uint32_t size = 3 + 11 * i;
    for (uint32_t k = 0; k < size; k++)
        ids[k] = (int32_t)((k * 29 + 71 * i) % (ftk_engine_vocabulary(engine) - 26));
    ftk_request r = FTK_REQUEST_INIT;
    r.tokens = ids;
    r.token_count = size;
    r.max_tokens = ANSWER - i;
    r.ignore_end = 1;
    r.sampling.temperature = i % 2 ? 0.8f : 0;
    r.sampling.seed = i;
    r.on_event = take;
    r.user = t;
    if (ftk_submit(engine, &r, &id, &err) != FTK_OK) fail_msg("%s", err.message);
    return id;
}

static void run_to_end(ftk_engine *engine) {
    uint32_t rows = 1;
    ftk_error err = FTK_ERROR_INIT;
    while (rows > 0)
        if (ftk_engine_step(engine, &rows, &err) != FTK_OK) fail_msg("%s", err.message);
}

static result run_engine(const char *path, const char *const *settings, uint32_t chunk) {
    result out = {0};
    taker takers[REQUESTS];
    ftk_engine *engine = fixture_open(path, settings);
    int32_t ids[ROWS];
    fill_ids(ids, ROWS, ftk_engine_vocabulary(engine));
    out.all = (logits){fixture_logits(engine, ids, ROWS, chunk),
                       (size_t)ROWS * ftk_engine_vocabulary(engine)};
    for (uint32_t i = 0; i < REQUESTS; i++) {
        takers[i] = (taker){out.tokens[i], &out.counts[i], -1};
        submit(engine, i, &takers[i]);
    }
    run_to_end(engine);
    for (uint32_t i = 0; i < REQUESTS; i++) assert_int_equal(takers[i].finish, FTK_FINISH_LENGTH);
    out.experts = fti_banks_count(&engine->pools);
    ftk_engine_close(engine);
    return out;
}

static void expect_same(const result *found, const result *wanted, const char *what) {
    assert_same_bits(found->all, wanted->all, what);
    assert_memory_equal(found->counts, wanted->counts, sizeof found->counts);
    if (memcmp(found->tokens, wanted->tokens, sizeof found->tokens) != 0)
        fail_msg("%s: other tokens than with all experts in memory", what);
}

/* ---- the matrix ---- */

static text wide; /* 4 layers in two pools, 16 experts of which 3 are used */

static int write_wide(void **state) {
    if (scratch_setup(state) != 0) return -1;
    ftk_error err = FTK_ERROR_INIT;
    fti_synth_model m = fti_synth_tiny();
    m.dims.experts = 16;
    m.dims.used = 3;
    wide = in_scratch("wide.gguf");
    if (fti_synth_write(&m, wide.s, &err) != FTK_OK) fail_msg("%s", err.message);
    return 0;
}

typedef struct cell {
    const char *slots, *budget, *running, *threads, *kernels, *graphs;
    uint32_t chunk;
} cell;

/* Slots of a pool of two layers: all, half, a quarter, the floor; every pair of neighbouring
 * columns meets. */
static const cell cells[] = {
    {"32", "512", "4", "2", "auto", "auto", 0},   {"32", "1", "1", "1", "reference", "off", 7},
    {"16", "512", "1", "2", "auto", "off", 1},    {"16", "64", "4", "1", "0x9", "auto", 16},
    {"8", "1", "4", "2", "reference", "auto", 0}, {"8", "512", "1", "1", "auto", "auto", 7},
    {"3", "64", "1", "1", "auto", "auto", 1},     {"3", "512", "4", "2", "0x9", "off", 16},
    {"3", "1", "4", "2", "auto", "auto", 0},      {"5", "3", "3", "2", "auto", "auto", 5}};

static result run_cell(const char *path, const cell *c, const char *residency) {
    const char *const settings[] = {"moe.residency",
                                    residency,
                                    "moe.slots",
                                    c->slots,
                                    "scheduler.prefill_tokens",
                                    c->budget,
                                    "scheduler.max_running",
                                    c->running,
                                    "backend.threads",
                                    c->threads,
                                    "backend.kernels",
                                    c->kernels,
                                    "backend.graphs",
                                    c->graphs,
                                    NULL};
    uint32_t budget = (uint32_t)strtoul(c->budget, NULL, 10);
    uint32_t running = (uint32_t)strtoul(c->running, NULL, 10);
    uint32_t most = budget > running ? budget : running;
    if (most > ROWS) most = ROWS;
    return run_engine(path, settings, c->chunk && c->chunk < most ? c->chunk : most);
}

static void check_cells(const char *path, uint32_t slots_of_all) {
    const cell all = {"1000", "512", "1", "1", "auto", "off", 0};
    result wanted = run_cell(path, &all, "off");
    assert_int_equal(wanted.experts.needed, 0);
    for (size_t i = 0; i < FTI_COUNT(cells); i++) {
        char what[120];
        const cell *c = &cells[i];
        snprintf(what, sizeof what, "slots %s, budget %s, batch %s, threads %s, kernels %s",
                 c->slots, c->budget, c->running, c->threads, c->kernels);
        result found = run_cell(path, c, "on");
        expect_same(&found, &wanted, what);
        assert_true(found.experts.needed > found.experts.hits);
        assert_true(found.experts.bytes > 0);
        bool few = strtoul(c->slots, NULL, 10) < slots_of_all;
        assert_int_equal(found.experts.evicted > 0, few);
        free(found.all.data);
    }
    free(wanted.all.data);
}

static void g7_any_residency_gives_the_same_bits(void **state) {
    (void)state;
    check_cells(wide.s, 32);
}

/* Its experts do not lie whole pages apart: they come through a buffer. */
static void the_demo_model_too(void **state) {
    const cell few = {"6", "64", "4", "2", "auto", "auto", 0};
    const cell all = {"1000", "512", "1", "1", "auto", "off", 0};
    (void)state;
    result wanted = run_cell(DEMO_MODEL, &all, "off");
    result found = run_cell(DEMO_MODEL, &few, "on");
    expect_same(&found, &wanted, "the demo model in six slots");
    assert_true(found.experts.rings > 0);
    free(found.all.data);
    free(wanted.all.data);
}

/* ---- refusals and choices ---- */

static void g8_fewer_slots_than_a_row_reads_are_refused(void **state) {
    const char *const few[] = {"moe.residency", "on", "moe.slots", "2", NULL};
    ftk_engine *engine = NULL;
    ftk_error err = FTK_ERROR_INIT;
    (void)state;
    assert_int_equal(fixture_try_open(wide.s, few, FTK_OPEN_READY, &engine, &err),
                     FTK_E_DOES_NOT_FIT);
    assert_non_null(strstr(err.message, "found 2"));
    assert_non_null(strstr(err.message, "at least 3"));
}

/* Under auto a file that fits is mapped; one that does not is run through the slots that
 * there is room for, and the plan's sum is what is allocated. */
static void f3_auto_takes_slots_where_the_file_does_not_fit(void **state) {
    const char *const small[] = {"memory.device",
                                 "9MiB",
                                 "memory.kv_tokens",
                                 "256",
                                 "memory.snapshots",
                                 "0",
                                 "scheduler.prefill_tokens",
                                 "16",
                                 "scheduler.max_running",
                                 "1",
                                 NULL};
    (void)state;
    ftk_engine *engine = fixture_open(wide.s, NULL);
    assert_false(engine->ladder.resident);
    ftk_engine_close(engine);
    engine = fixture_open(wide.s, small);
    if (!engine->ladder.resident) fail_msg("%s", engine->ladder.reason);
    assert_int_equal(engine->budget.total, engine->backend->ops->memory_used(engine->backend));
    assert_true(engine->budget.total <= 9u << 20);
    for (uint32_t i = 0; i < engine->pools.count; i++) {
        const fti_pool *pool = &engine->pools.pools[i];
        assert_true(pool->slots >= pool->used);
        assert_true(pool->slots < pool->layers * pool->experts);
    }
    ftk_engine_close(engine);
}

/* Of the rungs that are shown, the one that is marked is what lies in memory; and the minimum
 * that is shown is enough to open with. */
static void f3_the_rung_that_is_shown_is_the_one_that_runs(void **state) {
    char minimum[32];
    const char *const room[] = {"memory.device",
                                "17MiB",
                                "memory.snapshots",
                                "0",
                                "scheduler.prefill_tokens",
                                "16",
                                "scheduler.max_running",
                                "1",
                                NULL};
    const char *const least[] = {"memory.device",
                                 minimum,
                                 "memory.snapshots",
                                 "0",
                                 "scheduler.prefill_tokens",
                                 "16",
                                 "scheduler.max_running",
                                 "1",
                                 "moe.residency",
                                 "on",
                                 NULL};
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = fixture_open(wide.s, room);
    json_t *memory = report(ftk_engine_memory, engine);
    const json_t *rungs = json_object_get(memory, "rungs");
    const json_t *rung;
    size_t i, marked = 0;
    (void)state;
    assert_true(json_array_size(rungs) > 1);
    json_array_foreach(rungs, i, rung) {
        assert_true(json_number(rung, "total") <= json_number(memory, "budget"));
        if (!json_is_true(json_object_get(rung, "chosen"))) continue;
        marked++;
        assert_int_equal(json_number(rung, "total"),
                         engine->backend->ops->memory_used(engine->backend));
        assert_int_equal(json_number(rung, "context"), ftk_engine_context(engine));
        for (uint32_t p = 0; p < engine->pools.count; p++)
            assert_int_equal(json_integer_value(json_array_get(json_object_get(rung, "slots"), p)),
                             engine->pools.pools[p].slots);
    }
    assert_int_equal(marked, 1);
    ftk_engine_close(engine);
    json_decref(memory);
    engine = fixture_open(wide.s, room + 2);
    assert_int_equal(engine->ladder.rung_count, 0); /* whole: there is nothing to choose */
    ftk_engine_close(engine);
    snprintf(minimum, sizeof minimum, "1B");
    assert_int_equal(fixture_try_open(wide.s, least, FTK_OPEN_READY, &engine, &err),
                     FTK_E_DOES_NOT_FIT);
    const char *to = strstr(err.message, "memory.device to ");
    assert_non_null(to);
    unsigned long long bytes = strtoull(to + strlen("memory.device to "), NULL, 10);
    snprintf(minimum, sizeof minimum, "%lluB", bytes - 1);
    assert_int_equal(fixture_try_open(wide.s, least, FTK_OPEN_READY, &engine, &err),
                     FTK_E_DOES_NOT_FIT);
    snprintf(minimum, sizeof minimum, "%lluB", bytes);
    engine = fixture_open(wide.s, least);
    assert_int_equal(engine->budget.total, bytes);
    assert_int_equal(engine->backend->ops->memory_used(engine->backend), bytes);
    for (uint32_t p = 0; p < engine->pools.count; p++)
        assert_int_equal(engine->pools.pools[p].slots, engine->pools.pools[p].used);
    ftk_engine_close(engine);
}

/* ---- a file that goes ---- */

static void an_unreadable_expert_fails_its_requests_alone(void **state) {
    const char *const settings[] = {"moe.residency", "on", "moe.slots", "3", NULL};
    int32_t tokens[ANSWER];
    uint32_t count = 0, rows = 1;
    size_t size;
    ftk_error err = FTK_ERROR_INIT;
    (void)state;
    char *bytes = fixture_read(wide.s, &size);
    text path = in_scratch("going.gguf");
    write_file(path.s, bytes, size, 0644);
    ftk_engine *engine = fixture_open(path.s, settings);
    taker t = {tokens, &count, -1};
    submit(engine, 1, &t);
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(ftk_engine_step(engine, &rows, &err), FTK_OK);
    assert_true(count > 0);
    assert_int_equal(truncate(path.s, 4096), 0);
    while (rows > 0 && ftk_engine_step(engine, &rows, &err) == FTK_OK) continue;
    assert_int_equal(t.finish, FTK_FINISH_ERROR);
    write_file(path.s, bytes, size, 0644); /* the same inode: the file is whole again */
    int32_t again[ANSWER], wanted[ANSWER];
    uint32_t again_count = 0, wanted_count = 0;
    taker u = {again, &again_count, -1}, w = {wanted, &wanted_count, -1};
    submit(engine, 2, &u);
    run_to_end(engine);
    ftk_engine_close(engine);
    engine = fixture_open(wide.s, NULL);
    submit(engine, 2, &w);
    run_to_end(engine);
    ftk_engine_close(engine);
    assert_int_equal(u.finish, FTK_FINISH_LENGTH);
    assert_int_equal(again_count, wanted_count);
    assert_memory_equal(again, wanted, again_count * sizeof *again);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(g7_any_residency_gives_the_same_bits),
        cmocka_unit_test(the_demo_model_too),
        cmocka_unit_test(g8_fewer_slots_than_a_row_reads_are_refused),
        cmocka_unit_test(f3_auto_takes_slots_where_the_file_does_not_fit),
        cmocka_unit_test(f3_the_rung_that_is_shown_is_the_one_that_runs),
        cmocka_unit_test(an_unreadable_expert_fails_its_requests_alone),
    };
    return cmocka_run_group_tests(tests, write_wide, scratch_teardown);
}
