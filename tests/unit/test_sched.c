/*
 * test_sched.c: the decisions of the scheduler against models that say the same by brute
 * force, over many random operations: which rows run next, who starts next, which numbers are free.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "sched/budget.h"
#include "sched/pages.h"
#include "sched/queue.h"
#include "sched/steps.h"

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static uint32_t below(uint64_t *seed, uint32_t n) {
    return (uint32_t)(next_random(seed) % n);
}

/* ---- rows of a step ---- */

#define MOST 12u

typedef struct scene {
    fti_request_counts requests[MOST];
    size_t count;
    uint32_t most_rows;
} scene;

static scene random_scene(uint64_t *seed) {
    scene s = {.count = below(seed, MOST + 1)};
    s.most_rows = (uint32_t)s.count + below(seed, 20);
    for (size_t i = 0; i < s.count; i++) {
        fti_request_counts *r = &s.requests[i];
        r->prompt = 1 + below(seed, 30);
        r->chunk = 1 + below(seed, 40);
        r->priority = (int32_t)below(seed, 3) - 1;
        if (below(seed, 2)) {
            r->computed = below(seed, (uint32_t)r->prompt);
        } else {
            r->chosen = 1 + below(seed, 9);
            r->computed = r->prompt + r->chosen - 1;
        }
    }
    return s;
}

static bool may_have_row(const scene *s, const uint32_t *rows, size_t i) {
    const fti_request_counts *r = &s->requests[i];
    return r->computed < r->prompt && rows[i] < r->chunk && r->computed + rows[i] < r->prompt;
}

/* Row by row, as the header promises them: a decode row for each that has its prompt
 * behind it; the first prompt's part of the room; then always one row more for the first
 * prompt of the highest priority that may have one. */
static uint32_t rows_by_force(const scene *s, uint32_t *rows) {
    uint32_t used = 0;
    size_t first = s->count;
    for (size_t i = s->count; i-- > 0;) {
        rows[i] = s->requests[i].computed >= s->requests[i].prompt;
        used += rows[i];
        if (rows[i] == 0) first = i;
    }
    uint32_t part = (s->most_rows - used) / 8;
    if (part == 0 && used < s->most_rows) part = 1;
    for (; part > 0 && first < s->count && may_have_row(s, rows, first); part--) {
        rows[first]++;
        used++;
    }
    for (size_t best; used < s->most_rows; used++) {
        best = s->count;
        for (size_t i = s->count; i-- > 0;)
            if (may_have_row(s, rows, i) &&
                (best == s->count || s->requests[i].priority >= s->requests[best].priority))
                best = i;
        if (best == s->count) break;
        rows[best]++;
    }
    return used;
}

static void check_share(const fti_request_counts *r, const fti_step_share *share, uint32_t rows) {
    assert_int_equal(share->rows, rows);
    assert_int_equal(share->first, r->computed);
    assert_int_equal(share->decode, rows > 0 && r->computed >= r->prompt);
    assert_int_equal(share->samples, rows > 0 && r->computed + rows == r->prompt + r->chosen);
}

static void shares_follow_the_rule(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 20000; round++) {
        scene s = random_scene(&seed);
        fti_step_share shares[MOST];
        uint32_t wanted[MOST];
        uint32_t rows = rows_by_force(&s, wanted);
        assert_true(rows <= s.most_rows);
        assert_int_equal(fti_next_step(s.requests, s.count, s.most_rows, shares), rows);
        for (size_t i = 0; i < s.count; i++) check_share(&s.requests[i], &shares[i], wanted[i]);
    }
}

/* Requests that are stepped until they have chosen `want` tokens each. */
static void run_scene(uint64_t *seed) {
    scene s = {.count = 1 + below(seed, MOST)};
    uint64_t want[MOST];
    s.most_rows = (uint32_t)s.count + below(seed, 8);
    for (size_t i = 0; i < s.count; i++) {
        s.requests[i] = (fti_request_counts){.prompt = 1 + below(seed, 40),
                                             .chunk = 1 + below(seed, 9),
                                             .priority = (int32_t)below(seed, 3)};
        want[i] = 1 + below(seed, 12);
    }
    for (int steps = 0; s.count > 0; steps++) {
        fti_step_share shares[MOST];
        assert_true(steps < 2000);
        assert_true(fti_next_step(s.requests, s.count, s.most_rows, shares) > 0);
        size_t left = 0;
        for (size_t i = 0; i < s.count; i++) {
            fti_request_counts r = s.requests[i];
            r.computed += shares[i].rows;
            r.chosen += shares[i].samples;
            /* The newest token has not run, and nothing else is missing. */
            if (r.chosen > 0) assert_int_equal(r.computed, r.prompt + r.chosen - 1);
            if (r.chosen == want[i]) continue;
            want[left] = want[i];
            s.requests[left++] = r;
        }
        s.count = left;
    }
}

static void every_request_comes_to_its_end(void **state) {
    (void)state;
    uint64_t seed = 11;
    for (int round = 0; round < 500; round++) run_scene(&seed);
}

static void nothing_to_do(void **state) {
    (void)state;
    assert_int_equal(fti_next_step(NULL, 0, 0, NULL), 0);
    const fti_request_counts full[2] = {{.prompt = 4, .chosen = 1, .computed = 4, .chunk = 8},
                                        {.prompt = 9, .chunk = 8}};
    fti_step_share shares[2];
    /* No room beside the decode row: the prompt waits. */
    assert_int_equal(fti_next_step(full, 2, 1, shares), 1);
    assert_int_equal(shares[1].rows, 0);
    assert_false(shares[1].samples);
}

/* A long prompt of the lowest priority, while short ones of a higher one take each other's
 * place without end: it gets through in the steps that an eighth of the room allows. */
static void no_prompt_stands_still(void **state) {
    (void)state;
    static const uint32_t budgets[] = {1, 3, 8, 64, 192, 512};
    for (size_t b = 0; b < FTI_COUNT(budgets); b++) {
        fti_request_counts r[4] = {{.prompt = 1000, .chunk = 512, .priority = -5}};
        uint64_t part = budgets[b] < 8 ? 1 : budgets[b] / 8, steps = 0, others = 0;
        for (; r[0].computed < r[0].prompt; steps++) {
            fti_step_share shares[4];
            for (size_t i = 1; i < 4; i++)
                if (r[i].computed == r[i].prompt)
                    r[i] = (fti_request_counts){.prompt = 300, .chunk = 512, .priority = 9};
            assert_int_equal(fti_next_step(r, 4, budgets[b], shares), budgets[b]);
            for (size_t i = 0; i < 4; i++) r[i].computed += shares[i].rows;
            others += shares[1].rows + shares[2].rows + shares[3].rows;
        }
        assert_true(steps <= (1000 + part - 1) / part);
        /* And the priority is worth something all the same. */
        if (budgets[b] >= 8) assert_true(others > 5 * r[0].prompt);
    }
}

/* ---- who waits ---- */

#define WAITERS 40u

typedef struct waiting {
    fti_waiter waiters[WAITERS];
    uint64_t arrival[WAITERS]; /* 0: not in the queue */
    uint32_t overtaken;        /* starts in a row that have left the oldest behind */
} waiting;

static size_t oldest_by_force(const waiting *w) {
    size_t oldest = WAITERS;
    for (size_t i = 0; i < WAITERS; i++)
        if (w->arrival[i] && (oldest == WAITERS || w->arrival[i] < w->arrival[oldest])) oldest = i;
    return oldest;
}

static size_t next_by_force(const waiting *w) {
    size_t best = WAITERS;
    if (w->overtaken == FTI_OVERTAKINGS) return oldest_by_force(w);
    for (size_t i = 0; i < WAITERS; i++) {
        if (!w->arrival[i]) continue;
        bool better = best == WAITERS || w->waiters[i].priority > w->waiters[best].priority ||
                      (w->waiters[i].priority == w->waiters[best].priority &&
                       w->arrival[i] < w->arrival[best]);
        if (better) best = i;
    }
    return best;
}

static void leave_by_force(waiting *w, size_t i, bool starts) {
    if (i == oldest_by_force(w))
        w->overtaken = 0;
    else
        w->overtaken += starts;
    w->arrival[i] = 0;
}

/* What each is told, and then what happens. */
static void check_start(fti_queue *q, waiting *w, const fti_room *room) {
    size_t next = next_by_force(w);
    assert_ptr_equal(fti_queue_next(q), next < WAITERS ? &w->waiters[next] : NULL);
    bool fits = next < WAITERS && room->slots > 0 && w->waiters[next].needs.pages <= room->pages;
    for (size_t i = 0; i < WAITERS; i++) {
        if (!w->arrival[i]) continue;
        fti_wait wanted = i != next         ? FTI_WAIT_TURN
                          : fits            ? FTI_WAIT_STEP
                          : room->slots > 0 ? FTI_WAIT_PAGES
                                            : FTI_WAIT_SLOT;
        assert_int_equal(fti_queue_reason(q, &w->waiters[i], room), wanted);
    }
    uint32_t before = q->count;
    assert_ptr_equal(fti_queue_start(q, room), fits ? &w->waiters[next] : NULL);
    assert_int_equal(q->count, before - fits);
    if (fits) leave_by_force(w, next, true);
}

static void the_queue_follows_the_rule(void **state) {
    (void)state;
    uint64_t seed = 5, arrivals = 0;
    fti_queue q = {.count = 0};
    waiting w = {.overtaken = 0};
    uint32_t most = 0;
    for (int round = 0; round < 50000; round++) {
        size_t i = below(&seed, WAITERS);
        const fti_room room = {.slots = below(&seed, 8), .pages = below(&seed, 12)};
        if (below(&seed, 3) == 0) {
            check_start(&q, &w, &room);
        } else if (!w.arrival[i]) {
            w.waiters[i].priority = (int32_t)below(&seed, 5) - 2;
            w.waiters[i].needs = (fti_room){.slots = 1, .pages = below(&seed, 10)};
            w.arrival[i] = w.waiters[i].arrival = ++arrivals;
            fti_queue_add(&q, &w.waiters[i]);
        } else if (below(&seed, 3) == 0) { /* cancelled */
            fti_queue_remove(&q, &w.waiters[i]);
            leave_by_force(&w, i, false);
        }
        if (q.count > most) most = q.count;
    }
    assert_true(most > WAITERS / 2);
}

/* One of the lowest priority among others that never end: it starts as the eighth. */
static void nobody_waits_for_ever(void **state) {
    (void)state;
    const fti_room room = {.slots = 1, .pages = 1};
    fti_queue q = {.count = 0};
    fti_waiter low = {.priority = INT32_MIN}, high[16] = {{.priority = 0}};
    fti_queue_add(&q, &low);
    for (size_t i = 0; i < 16; i++) {
        high[i].priority = INT32_MAX;
        high[i].arrival = i + 1;
        fti_queue_add(&q, &high[i]);
        fti_waiter *started = fti_queue_start(&q, &room);
        assert_ptr_equal(started, i < FTI_OVERTAKINGS    ? &high[i]
                                  : i == FTI_OVERTAKINGS ? &low
                                                         : &high[i - 1]);
    }
    for (int reason = 0; reason < FTI_WAIT_REASONS; reason++)
        assert_true(strlen(fti_wait_text((fti_wait)reason)) > 3);
}

/* A large one that does not fit is not passed by a small one that would. */
static void nobody_passes_the_next(void **state) {
    (void)state;
    fti_queue q = {.count = 0};
    fti_waiter large = {.needs = {.slots = 1, .pages = 5}};
    fti_waiter small = {.arrival = 1, .needs = {.slots = 1, .pages = 1}};
    fti_room room = {.slots = 4, .pages = 4};
    fti_queue_add(&q, &large);
    fti_queue_add(&q, &small);
    assert_null(fti_queue_start(&q, &room));
    room = (fti_room){.pages = 9};
    assert_null(fti_queue_start(&q, &room));
    room = (fti_room){.slots = 4, .pages = 5};
    assert_ptr_equal(fti_queue_start(&q, &room), &large);
    assert_ptr_equal(fti_queue_start(&q, &room), &small);
    assert_null(fti_queue_start(&q, &room));
}

/* ---- numbers ---- */

#define NUMBERS 37u

typedef struct holder {
    int32_t numbers[NUMBERS];
    uint32_t count;
} holder;

static void check_pool(const fti_numbers *pool, const holder *holders, size_t count) {
    uint8_t seen[NUMBERS] = {0};
    uint32_t held = 0;
    for (size_t h = 0; h < count; h++)
        for (uint32_t i = 0; i < holders[h].count; i++) {
            assert_in_range(holders[h].numbers[i], 0, NUMBERS - 1);
            assert_int_equal(seen[holders[h].numbers[i]]++, 0);
            held++;
        }
    assert_int_equal(pool->available, NUMBERS - held);
    for (uint32_t i = 0; i < pool->available; i++) {
        assert_in_range(pool->free[i], 0, NUMBERS - 1);
        assert_int_equal(seen[pool->free[i]]++, 0);
    }
}

static void take_or_give(fti_numbers *pool, holder *h, uint64_t *seed) {
    if (h->count > 0) {
        assert_true(fti_numbers_give(pool, h->numbers, h->count));
        h->count = 0;
        return;
    }
    uint32_t n = below(seed, NUMBERS + 3), before = pool->available;
    int32_t untouched[NUMBERS + 3];
    for (size_t i = 0; i < NUMBERS + 3; i++) untouched[i] = -7;
    bool taken = fti_numbers_take(pool, n, untouched);
    assert_int_equal(taken, n <= before);
    for (uint32_t i = taken ? n : 0; i < NUMBERS + 3; i++) assert_int_equal(untouched[i], -7);
    if (!taken) {
        assert_int_equal(pool->available, before);
        return;
    }
    memcpy(h->numbers, untouched, n * sizeof *untouched);
    h->count = n;
}

static void e3_numbers_are_held_once(void **state) {
    (void)state;
    fti_numbers pool;
    holder holders[6] = {{.count = 0}};
    uint64_t seed = 3;
    assert_true(fti_numbers_create(&pool, NUMBERS));
    for (int round = 0; round < 20000; round++) {
        take_or_give(&pool, &holders[below(&seed, 6)], &seed);
        check_pool(&pool, holders, 6);
    }
    fti_numbers_destroy(&pool);
    fti_numbers_destroy(&pool);
}

static void giving_back_what_was_not_taken(void **state) {
    (void)state;
    fti_numbers pool;
    int32_t taken[3], again[3];
    assert_true(fti_numbers_create(&pool, 5));
    assert_true(fti_numbers_take(&pool, 3, taken));
    for (int32_t i = 0; i < 3; i++) assert_int_equal(taken[i], i); /* low ones first */
    const int32_t wrong[] = {4, -1, 5, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < FTI_COUNT(wrong); i++) {
        assert_false(fti_numbers_give(&pool, &wrong[i], 1));
        assert_int_equal(pool.available, 2);
    }
    /* Those that were taken come back beside one that was not. */
    const int32_t mixed[] = {2, 2, 0};
    assert_false(fti_numbers_give(&pool, mixed, 3));
    assert_int_equal(pool.available, 4);
    assert_true(fti_numbers_give(&pool, &taken[1], 1));
    assert_int_equal(pool.available, 5);
    assert_true(fti_numbers_take(&pool, 3, taken));
    assert_true(fti_numbers_give(&pool, taken, 3));
    assert_true(fti_numbers_take(&pool, 3, again));
    assert_memory_equal(taken, again, sizeof taken); /* and in the same order again */
    fti_numbers_destroy(&pool);
}

/* ---- memory ---- */

/* Each part of a plan at the edges of 32 bits is counted whole; whatever passes 64 bits
 * does not fit. */
static void g17_budgets_beyond_32_bits(void **state) {
    (void)state;
    static const uint64_t edges[] = {(1ull << 31) - 1, 1ull << 31, (1ull << 32) - 1,
                                     1ull << 32,       1ull << 48, 1ull << 58};
    for (size_t i = 0; i < FTI_COUNT(edges); i++)
        for (int part = 0; part < 5; part++) {
            fti_budget_request r = {.page_tokens = 64,
                                    .model_context = 64,
                                    .kv_tokens = 64,
                                    .kv_bytes_per_token = 1,
                                    .available = UINT64_MAX,
                                    .limit = UINT64_MAX};
            uint64_t *const parts[] = {&r.weights_allocated, &r.state_bytes, &r.workspace,
                                       &r.step_buffers, &r.kv_bytes_per_token};
            fti_budget plan;
            ftk_error err = FTK_ERROR_INIT;
            *parts[part] = edges[i];
            uint64_t wanted = part == 4 ? 64 * edges[i] : 64 + edges[i];
            bool fits = part != 4 || edges[i] < 1ull << 58;
            ftk_status status = fti_budget_plan(&r, &plan, &err);
            assert_int_equal(status, fits ? FTK_OK : FTK_E_DOES_NOT_FIT);
            if (fits) assert_true(plan.total == wanted && plan.context == 64);
            r.limit = fits ? wanted - 1 : UINT64_MAX;
            assert_int_equal(fti_budget_plan(&r, &plan, &err), FTK_E_DOES_NOT_FIT);
            *parts[part] = UINT64_MAX - 8;
            assert_int_equal(fti_budget_plan(&r, &plan, &err), FTK_E_DOES_NOT_FIT);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_follow_the_rule),
        cmocka_unit_test(every_request_comes_to_its_end),
        cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(no_prompt_stands_still),
        cmocka_unit_test(the_queue_follows_the_rule),
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(nobody_passes_the_next),
        cmocka_unit_test(e3_numbers_are_held_once),
        cmocka_unit_test(giving_back_what_was_not_taken),
        cmocka_unit_test(g17_budgets_beyond_32_bits),
    };
    return cmocka_run_group_tests_name("test_sched", tests, NULL, NULL);
}
