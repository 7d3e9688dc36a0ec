/*
 * test_ladder.c: the memory plan with experts in slots: its sums against brute force, its
 * minimum, what it prefers, and when an engine changes its rung.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "sched/ladder.h"

#define MIB (1ull << 20)

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return *seed >> 33;
}

static uint32_t below(uint64_t *seed, uint32_t n) {
    return (uint32_t)(next_random(seed) % n);
}

typedef struct outcome {
    fti_budget plan;
    fti_ladder ladder;
} outcome;

static ftk_status decide(const fti_ladder_request *q, outcome *out, ftk_error *err) {
    return fti_ladder_plan(q, &out->plan, &out->ladder, err);
}

/* ---- sums ---- */

typedef struct scene {
    fti_slot_need pools[4];
    fti_ladder_request request;
} scene;

static void random_scene(uint64_t *seed, scene *s) {
    *s = (scene){.request = {.pools = s->pools,
                             .pool_count = 1 + below(seed, 4),
                             .residency = FTI_ON,
                             .dense_bytes = below(seed, 500)}};
    for (uint32_t i = 0; i < s->request.pool_count; i++) {
        uint32_t used = 1 + below(seed, 4), experts = used + below(seed, 12);
        s->pools[i] = (fti_slot_need){.least = used,
                                      .most = (uint64_t)experts * (1 + below(seed, 5)),
                                      .slot_bytes = 1 + below(seed, below(seed, 2) ? 8 : 300),
                                      .fixed_bytes = below(seed, 20)};
    }
    fti_budget_request *r = &s->request.whole;
    *r = (fti_budget_request){.weights_mapped = below(seed, 1000),
                              .weights_allocated = below(seed, 500),
                              .kv_bytes_per_token = below(seed, 5),
                              .state_bytes = below(seed, 90),
                              .snapshot_bytes = below(seed, 30),
                              .snapshots = below(seed, 9),
                              .fewer_snapshots = below(seed, 2),
                              .workspace = below(seed, 90),
                              .step_buffers = below(seed, 90),
                              .page_tokens = 1 + below(seed, 64),
                              .model_context = 64 + below(seed, 40000),
                              .kv_tokens = below(seed, 2) ? 16 + below(seed, 48) : 0,
                              .available = UINT64_MAX,
                              .limit = UINT64_MAX,
                              .reserve = below(seed, 2) ? below(seed, 50) : 0};
}

static ftk_status plan_with(scene *s, uint64_t budget, outcome *l) {
    ftk_error err = FTK_ERROR_INIT;
    s->request.whole.limit = budget + s->request.whole.reserve;
    return decide(&s->request, l, &err);
}

static uint64_t minimum_of(scene *s) {
    outcome l;
    assert_int_equal(plan_with(s, 0, &l), FTK_E_DOES_NOT_FIT);
    return l.ladder.minimum;
}

/* Added up anew, from what is asked for. */
static void check_rung(const scene *s, const outcome *l, const fti_rung *rung) {
    const fti_budget_request *r = &s->request.whole;
    uint64_t slots = 0, largest = 0;
    for (uint32_t i = 0; i < s->request.pool_count; i++) {
        const fti_slot_need *p = &s->pools[i];
        assert_in_range(rung->slots[i], p->least, p->most);
        slots += p->fixed_bytes + rung->slots[i] * p->slot_bytes;
        if (rung->slots[i] < p->most && p->slot_bytes > largest) largest = p->slot_bytes;
        /* Each has as large a part of its experts as the first one, but for one slot. */
        for (uint32_t o = 0; o < i; o++) {
            const fti_slot_need *q = &s->pools[o];
            uint64_t mine = rung->slots[i] * q->most, other = rung->slots[o] * p->most;
            uint64_t unit = 2 * (p->most > q->most ? p->most : q->most);
            if (rung->slots[i] > p->least) assert_true(mine <= other + unit);
            if (rung->slots[o] > q->least) assert_true(other <= mine + unit);
        }
    }
    assert_int_equal(rung->expert_slots, slots);
    assert_int_equal(rung->kv_cache,
                     (uint64_t)rung->pages * r->page_tokens * r->kv_bytes_per_token);
    uint64_t total = rung->kv_cache + slots + s->request.dense_bytes + r->state_bytes +
                     l->plan.snapshots * r->snapshot_bytes + r->workspace + r->step_buffers;
    assert_int_equal(rung->total, total);
    assert_true(total <= l->plan.budget);
    assert_true(largest == 0 || l->plan.budget - total < largest);
}

static void check_plan(const scene *s, const outcome *l) {
    const fti_budget *p = &l->plan;
    const fti_rung *chosen = &l->ladder.rungs[l->ladder.chosen];
    assert_in_range(l->ladder.rung_count, 1, FTI_LADDER_RUNGS);
    assert_int_equal(p->total, p->weights_allocated + p->kv_cache + p->recurrent_state +
                                   p->expert_slots + p->workspace + p->step_buffers);
    assert_int_equal(p->total, chosen->total);
    assert_int_equal(p->kv_cache, chosen->kv_cache);
    assert_int_equal(p->expert_slots, chosen->expert_slots);
    assert_int_equal(p->pages, chosen->pages);
    assert_int_equal(p->context, chosen->context);
    for (uint32_t i = 0; i < l->ladder.rung_count; i++) check_rung(s, l, &l->ladder.rungs[i]);
    for (uint32_t i = 1; i < l->ladder.rung_count; i++) {
        bool more = false;
        assert_true(l->ladder.rungs[i].pages < l->ladder.rungs[i - 1].pages);
        for (uint32_t p1 = 0; p1 < s->request.pool_count; p1++) {
            assert_true(l->ladder.rungs[i].slots[p1] >= l->ladder.rungs[i - 1].slots[p1]);
            more = more || l->ladder.rungs[i].slots[p1] > l->ladder.rungs[i - 1].slots[p1];
        }
        assert_true(more);
    }
}

static void f3_every_rung_adds_up(void **state) {
    uint64_t seed = 7;
    (void)state;
    for (int n = 0; n < 20000; n++) {
        scene s;
        outcome l;
        random_scene(&seed, &s);
        uint64_t minimum = minimum_of(&s);
        assert_int_equal(plan_with(&s, minimum + below(&seed, 4000 + (uint32_t)n * 10), &l),
                         FTK_OK);
        check_plan(&s, &l);
        assert_int_equal(l.ladder.minimum, minimum);
        if (s.request.whole.kv_tokens) assert_int_equal(l.ladder.rung_count, 1);
    }
}

static void g8_the_minimum_is_tight(void **state) {
    uint64_t seed = 11;
    (void)state;
    for (int n = 0; n < 20000; n++) {
        scene s;
        outcome l;
        random_scene(&seed, &s);
        uint64_t minimum = minimum_of(&s);
        if (minimum > 0) assert_int_equal(plan_with(&s, minimum - 1, &l), FTK_E_DOES_NOT_FIT);
        assert_int_equal(plan_with(&s, minimum, &l), FTK_OK);
        check_plan(&s, &l);
        assert_int_equal(l.ladder.rung_count, 1);
        assert_int_equal(l.plan.total, minimum);
        for (uint32_t i = 0; i < s.request.pool_count; i++)
            assert_int_equal(l.ladder.rungs[0].slots[i], s.pools[i].least);
    }
}

/* With the KV cache asked for, a larger budget never takes a slot from a pool. */
static void more_memory_never_means_fewer_slots(void **state) {
    uint64_t seed = 13;
    (void)state;
    for (int n = 0; n < 1000; n++) {
        scene s;
        outcome l, before = {0};
        random_scene(&seed, &s);
        s.request.whole.kv_tokens = 64;
        s.request.whole.fewer_snapshots = false;
        uint64_t minimum = minimum_of(&s);
        for (uint64_t more = 0; more < 600; more++) {
            assert_int_equal(plan_with(&s, minimum + more, &l), FTK_OK);
            for (uint32_t i = 0; i < s.request.pool_count; i++)
                assert_true(l.ladder.rungs[0].slots[i] >= before.ladder.rungs[0].slots[i]);
            before = l;
        }
    }
}

static void sizes_at_their_edges(void **state) {
    static const uint64_t edges[] = {1ull << 31, (1ull << 32) + 1, 1ull << 52};
    (void)state;
    for (size_t i = 0; i < FTI_COUNT(edges); i++) {
        fti_slot_need pool = {.least = 2, .most = 512, .slot_bytes = edges[i]};
        scene s = {.request = {.pools = &pool, .pool_count = 1, .residency = FTI_ON}};
        outcome l;
        s.request.whole = (fti_budget_request){.page_tokens = 64,
                                               .model_context = 64,
                                               .kv_bytes_per_token = 1,
                                               .available = UINT64_MAX};
        assert_int_equal(plan_with(&s, 64 + 300 * edges[i], &l), FTK_OK);
        assert_int_equal(l.ladder.rungs[0].slots[0], 300);
        assert_int_equal(l.plan.total, 64 + 300 * edges[i]);
        uint64_t *const parts[] = {&pool.slot_bytes, &pool.fixed_bytes, &pool.most,
                                   &s.request.dense_bytes, &s.request.whole.kv_bytes_per_token};
        for (size_t p = 0; p < FTI_COUNT(parts); p++) {
            uint64_t kept = *parts[p];
            *parts[p] = UINT64_MAX - 8;
            assert_int_equal(plan_with(&s, UINT64_MAX, &l), FTK_E_DOES_NOT_FIT);
            *parts[p] = kept;
        }
        pool.most = 1ull << 31;
        pool.slot_bytes = 0;
        assert_int_equal(plan_with(&s, UINT64_MAX, &l), FTK_E_DOES_NOT_FIT);
    }
}

/* Each of two parts has its 64 bits, both together do not. */
static void sums_at_their_edge(void **state) {
    fti_slot_need pool = {.least = 2, .most = 2, .slot_bytes = 1ull << 62};
    scene s = {.request = {.pools = &pool, .pool_count = 1, .residency = FTI_ON}};
    outcome l;
    (void)state;
    s.request.whole = (fti_budget_request){.page_tokens = 64,
                                           .model_context = 64,
                                           .kv_bytes_per_token = (1ull << 57) - 1,
                                           .available = UINT64_MAX};
    assert_int_equal(plan_with(&s, UINT64_MAX, &l), FTK_OK);
    assert_int_equal(l.plan.total, UINT64_MAX - 63);
    s.request.whole.kv_bytes_per_token++;
    assert_int_equal(plan_with(&s, UINT64_MAX, &l), FTK_E_DOES_NOT_FIT);
}

/* What is too little for the same share of all goes to the smallest slots. */
static void the_rest_goes_where_it_fits(void **state) {
    const fti_slot_need pools[] = {{1, 8, 300, 0}, {1, 8, 20, 0}, {1, 8, 100, 0}};
    outcome l;
    ftk_error err = FTK_ERROR_INIT;
    (void)state;
    fti_ladder_request q = {.pools = pools, .pool_count = 3, .residency = FTI_ON};
    q.whole = (fti_budget_request){.page_tokens = 64, .model_context = 64, .available = UINT64_MAX};
    static const uint32_t wanted[][4] = {{420 * 3, 3, 3, 3},       {420 * 3 + 19, 3, 3, 3},
                                         {420 * 3 + 20, 3, 4, 3},  {420 * 3 + 119, 3, 4, 3},
                                         {420 * 3 + 120, 3, 4, 4}, {420 * 3 + 419, 3, 4, 4},
                                         {420 * 4, 4, 4, 4},       {1u << 20, 8, 8, 8}};
    for (size_t i = 0; i < FTI_COUNT(wanted); i++) {
        q.whole.limit = wanted[i][0];
        assert_int_equal(decide(&q, &l, &err), FTK_OK);
        for (size_t p = 0; p < 3; p++)
            assert_int_equal(l.ladder.rungs[0].slots[p], wanted[i][p + 1]);
    }
}

/* ---- what is preferred ---- */

/* A model of 48 layers with 128 experts of 4 MiB, of which 8 are used: 24 GiB of experts. */
static const fti_slot_need big_pools[] = {{8, 40ull * 128, 4 * MIB, 0},
                                          {8, 8ull * 128, 5 * MIB, 0}};

static fti_ladder_request big_model(uint64_t limit) {
    uint64_t experts = (40 * 4 + 8 * 5) * 128 * MIB;
    fti_ladder_request q = {.pools = big_pools,
                            .pool_count = FTI_COUNT(big_pools),
                            .dense_bytes = 1500 * MIB,
                            .residency = FTI_AUTO};
    q.whole = (fti_budget_request){.weights_mapped = 1500 * MIB + experts,
                                   .kv_bytes_per_token = 98304,
                                   .workspace = 300 * MIB,
                                   .step_buffers = 40 * MIB,
                                   .page_tokens = 64,
                                   .model_context = 262144,
                                   .available = 1ull << 40,
                                   .limit = limit};
    return q;
}

static void f1_the_asked_context_is_kept(void **state) {
    ftk_error err = FTK_ERROR_INIT;
    outcome l;
    char number[32];
    (void)state;
    fti_ladder_request q = big_model(16384 * MIB);
    q.whole.kv_tokens = 131072; /* 12 GiB */
    assert_int_equal(decide(&q, &l, &err), FTK_OK);
    assert_true(l.ladder.resident);
    assert_int_equal(l.ladder.rung_count, 1);
    assert_int_equal(l.plan.context, 131072);
    assert_int_equal(l.plan.kv_cache, 12288 * MIB);
    assert_true(l.plan.total <= 16384 * MIB && l.plan.total > 16384 * MIB - 4 * MIB);
    q.whole.kv_tokens = 163840;
    q.residency = FTI_ON;
    assert_int_equal(decide(&q, &l, &err), FTK_E_DOES_NOT_FIT);
    snprintf(number, sizeof number, "at least %llu bytes", (unsigned long long)l.ladder.minimum);
    assert_non_null(strstr(err.message, number));
    assert_non_null(strstr(err.message, "KV cache 16106127360 for 163840 tokens"));
    assert_non_null(strstr(err.message, "expert slots 75497472")); /* 8 of each pool */
    snprintf(number, sizeof number, "memory.device to %llu", (unsigned long long)l.ladder.minimum);
    assert_non_null(strstr(err.message, number));
    q.whole.limit = l.ladder.minimum;
    assert_int_equal(decide(&q, &l, &err), FTK_OK);
}

/* What is reserved has to be in the number that the operator is told to set. */
static void the_number_in_the_message_works(void **state) {
    ftk_error err = FTK_ERROR_INIT;
    outcome l;
    (void)state;
    for (int residency = FTI_AUTO; residency <= FTI_OFF; residency++) {
        fti_ladder_request q = big_model(100 * MIB);
        q.whole.reserve = 70 * MIB;
        q.residency = (fti_switch)residency;
        assert_int_equal(decide(&q, &l, &err), FTK_E_DOES_NOT_FIT);
        const char *to = strstr(err.message, "memory.device to ");
        assert_non_null(to);
        q.whole.limit = strtoull(to + strlen("memory.device to "), NULL, 10);
        assert_int_equal(q.whole.limit, l.ladder.minimum + q.whole.reserve);
        assert_int_equal(decide(&q, &l, &err), FTK_OK);
        q.whole.limit--;
        assert_int_equal(decide(&q, &l, &err), FTK_E_DOES_NOT_FIT);
    }
}

static void f4_all_experts_count(void **state) {
    ftk_error err = FTK_ERROR_INIT;
    outcome l;
    (void)state;
    fti_ladder_request q = big_model(UINT64_MAX);
    q.residency = FTI_ON;
    assert_int_equal(decide(&q, &l, &err), FTK_OK);
    assert_int_equal(l.plan.expert_slots, q.whole.weights_mapped - q.dense_bytes);
    assert_int_equal(l.plan.weights_allocated, q.dense_bytes);
    assert_int_equal(l.ladder.rung_count, 1); /* less KV cache would give no slot */
    assert_int_equal(l.plan.context, FTI_DEFAULT_CONTEXT);
}

static void the_start_shares_fairly(void **state) {
    ftk_error err = FTK_ERROR_INIT;
    outcome l;
    (void)state;
    bool longest = false, shorter = false;
    for (uint64_t size = 2300; size < 26000; size += 100) {
        fti_ladder_request q = big_model(size * MIB);
        assert_int_equal(decide(&q, &l, &err), FTK_OK);
        if (!l.ladder.resident) continue;
        uint64_t last = l.ladder.rungs[l.ladder.rung_count - 1].expert_slots;
        assert_true(l.ladder.rungs[l.ladder.chosen].expert_slots >= last / 2);
        if (l.ladder.chosen > 0)
            assert_true(l.ladder.rungs[l.ladder.chosen - 1].expert_slots < last / 2);
        longest = longest || l.plan.context == FTI_DEFAULT_CONTEXT;
        shorter = shorter || l.ladder.chosen > 0;
    }
    assert_true(longest && shorter);
}

static void check_choice(const fti_ladder_request *q, bool resident, const char *why) {
    ftk_error err = FTK_ERROR_INIT;
    outcome l;
    assert_int_equal(decide(q, &l, &err), FTK_OK);
    assert_int_equal(l.ladder.resident, resident);
    if (!strstr(l.ladder.reason, why)) fail_msg("%s", l.ladder.reason);
    assert_true(resident ? l.ladder.rung_count > 0 : l.ladder.rung_count == 0);
}

static void f8_slots_or_mapped(void **state) {
    (void)state;
    fti_ladder_request q = big_model(UINT64_MAX);
    check_choice(&q, false, "fit the budget");
    uint64_t kv = 32768ull * 98304;
    uint64_t whole = q.whole.weights_mapped + 340 * MIB + kv;
    q.whole.limit = whole;
    check_choice(&q, false, "fit the budget");
    q.whole.limit = whole - 1;
    check_choice(&q, true, "exceed the budget");
    q.residency = FTI_OFF;
    check_choice(&q, false, "is off");
    q.residency = FTI_ON;
    q.whole.limit = UINT64_MAX;
    check_choice(&q, true, "is on");
    /* Where not even the fewest slots fit beside what would have to be copied. */
    q.residency = FTI_AUTO;
    q.whole.limit = 1000 * MIB;
    check_choice(&q, false, "so do the fewest slots");
    /* Or fit with a page or two. */
    q.whole.limit = (1500 + 340 + 72 + 100) * MIB;
    check_choice(&q, false, "a context of 1024");
    q.whole.limit += 100 * MIB;
    check_choice(&q, true, "exceed the budget");
    q.pool_count = 0;
    check_choice(&q, false, "no experts");
    /* Copied weights that leave no room for a context: slots, though they fit. */
    q = big_model(0);
    q.whole.weights_allocated = q.whole.weights_mapped;
    q.whole.weights_mapped = 0;
    q.whole.limit = q.whole.weights_allocated + 400 * MIB;
    check_choice(&q, true, "exceed the budget");
}

/* ---- at run time ---- */

/* Rungs of 512, 256, ... pages. */
static void halves(fti_ladder *l, uint32_t rungs) {
    *l = (fti_ladder){.resident = true, .rung_count = rungs};
    for (uint32_t i = 0; i < rungs; i++) l->rungs[i].pages = 512 >> i;
}

/* Runs `steps` steps that want `pages` and miss what they miss; counts the moves. */
static uint32_t run_load(const fti_ladder *l, fti_ladder_state *s, uint32_t steps, uint32_t pages,
                         bool misses) {
    uint32_t moves = 0;
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t has = l->rungs[s->rung].pages, held = pages < has ? pages : has;
        fti_ladder_seen seen = {.steps = 1,
                                .short_steps = pages > has,
                                .held_pages = held,
                                .peak_pages = held,
                                .wanted_pages = pages - held,
                                .experts = 100,
                                .misses = misses ? 10 : 1};
        uint32_t rung = fti_ladder_step(l, s, &seen);
        if (rung == s->rung) continue;
        assert_true(rung < l->rung_count);
        assert_true(l->rungs[rung].pages >= held);
        fti_ladder_moved(s, rung);
        moves++;
    }
    return moves;
}

static void a_constant_load_comes_to_rest(void **state) {
    fti_ladder l;
    (void)state;
    halves(&l, 5);
    for (uint32_t pages = 0; pages <= 1024; pages++)
        for (uint32_t start = 0; start < 5; start++) {
            fti_ladder_state s = {.rung = start, .calm = FTI_LADDER_CALM};
            uint32_t moves = run_load(&l, &s, 5 * FTI_LADDER_CALM + 100, pages, true);
            assert_true(moves <= 4);
            assert_true(s.rung == 0 || l.rungs[s.rung].pages >= pages);
            assert_int_equal(run_load(&l, &s, 3000, pages, true), 0);
        }
}

static void a_changed_load_is_followed(void **state) {
    fti_ladder l;
    (void)state;
    halves(&l, 5);
    fti_ladder_state s = {.rung = 4, .calm = FTI_LADDER_CALM};
    assert_int_equal(run_load(&l, &s, 1000, 20, true), 0);
    /* At once to the rung that is enough. */
    assert_int_equal(run_load(&l, &s, FTI_LADDER_SHORTAGE, 200, true), 1);
    assert_int_equal(s.rung, 1);
    assert_int_equal(run_load(&l, &s, FTI_LADDER_REST + FTI_LADDER_SHORTAGE, 500, true), 1);
    assert_int_equal(s.rung, 0);
    /* And back, a rung for each period of calm; the first one may have the load of before. */
    assert_int_equal(run_load(&l, &s, 5 * FTI_LADDER_CALM, 20, true), 4);
    assert_int_equal(s.rung, 4);
    /* A short wait is waited for. */
    assert_int_equal(run_load(&l, &s, FTI_LADDER_REST, 20, true), 0);
    assert_int_equal(run_load(&l, &s, FTI_LADDER_SHORTAGE - 1, 200, true), 0);
    assert_int_equal(run_load(&l, &s, 100, 20, true), 0);
}

static void slots_that_nothing_misses_are_not_taken(void **state) {
    fti_ladder l;
    (void)state;
    halves(&l, 5);
    fti_ladder_state s = {.rung = 0, .calm = FTI_LADDER_CALM};
    assert_int_equal(run_load(&l, &s, 5000, 1, false), 0);
    uint32_t moves = run_load(&l, &s, 2 * FTI_LADDER_CALM, 1, true);
    assert_in_range(moves, 1, 2);
}

static void a_long_shortage_ends_as_soon_as_a_short_one(void **state) {
    fti_ladder l;
    (void)state;
    halves(&l, 2);
    fti_ladder_state s = {.rung = 0, .calm = FTI_LADDER_CALM};
    assert_int_equal(run_load(&l, &s, 100000, 600, true), 0);
    assert_int_equal(run_load(&l, &s, FTI_LADDER_CALM + 1, 20, true), 1);
}

/* Preemptions bring no waiting of their own, but they are worth a move. */
static void preemptions_count(void **state) {
    fti_ladder l;
    (void)state;
    halves(&l, 2);
    fti_ladder_state s = {.rung = 1, .calm = FTI_LADDER_CALM, .rested = 1000};
    const fti_ladder_seen one = {.steps = 4, .preempted = 1, .held_pages = 250, .wanted_pages = 9};
    uint32_t asked = 0;
    while (fti_ladder_step(&l, &s, &one) == 1 && asked < 10) asked++;
    assert_in_range(asked, 1, 4);
    /* A move that could not be made is asked for again, after a rest. */
    for (asked = 0; fti_ladder_step(&l, &s, &one) == 1 && asked < 100; asked++) continue;
    assert_int_equal(asked, FTI_LADDER_REST / 4 - 1);
}

/* Bursts that come again: with any period, moves are rare in the long run. */
static void bursts_do_not_make_it_swing(void **state) {
    fti_ladder l;
    (void)state;
    halves(&l, 5);
    for (uint32_t period = 100; period < 20000; period += period / 7 + 13) {
        fti_ladder_state s = {.rung = 0, .calm = FTI_LADDER_CALM};
        uint32_t warm = 40 * FTI_LADDER_CALM / period + 20, moves = 0, rounds = 0;
        for (uint32_t i = 0; i < warm; i++) {
            run_load(&l, &s, period, 130, true);
            run_load(&l, &s, 100, 400, true);
        }
        uint64_t steps = 0;
        for (; steps < 400000; rounds++, steps += period + 100) {
            moves += run_load(&l, &s, period, 130, true);
            moves += run_load(&l, &s, 100, 400, true);
        }
        if (moves > 2 + 2 * steps / (8 * FTI_LADDER_CALM))
            fail_msg("period %u: %u moves in %llu steps", period, moves, (unsigned long long)steps);
        if (period < 8 * FTI_LADDER_CALM - 100 && moves > 0)
            fail_msg("period %u: %u moves", period, moves);
    }
}

/* A mistake is remembered for as long as it may be made again, and no longer. */
static void a_move_that_lasts_makes_it_quick_again(void **state) {
    fti_ladder l;
    (void)state;
    halves(&l, 2);
    fti_ladder_state s = {.rung = 0, .calm = FTI_LADDER_CALM};
    assert_int_equal(run_load(&l, &s, FTI_LADDER_CALM, 100, true), 1);
    assert_int_equal(run_load(&l, &s, 100, 400, true), 1);
    /* A period that is now twice as long, after the one in which the burst ended. */
    assert_int_equal(run_load(&l, &s, 3 * FTI_LADDER_CALM, 100, true), 0);
    assert_int_equal(run_load(&l, &s, FTI_LADDER_CALM, 100, true), 1);
    assert_int_equal(run_load(&l, &s, 16 * FTI_LADDER_CALM, 100, true), 0);
    assert_int_equal(run_load(&l, &s, 100, 400, true), 1);
    assert_int_equal(run_load(&l, &s, 2 * FTI_LADDER_CALM, 100, true), 1);
}

/* Whatever is seen, it is never told to go where what is held does not fit. */
static void never_below_what_is_held(void **state) {
    uint64_t seed = 17;
    (void)state;
    uint32_t moves = 0, undone = 0;
    for (int n = 0; n < 300; n++) {
        fti_ladder l;
        halves(&l, 1 + below(&seed, 8));
        fti_ladder_state s = {.rung = below(&seed, l.rung_count), .calm = FTI_LADDER_CALM};
        uint32_t cap = 1;
        uint64_t since = FTI_LADDER_REST;
        for (int i = 0; i < 5000; i++) {
            if (i % 400 == 0) cap = 1 + below(&seed, 512);
            uint32_t has = l.rungs[s.rung].pages, held = below(&seed, cap + 1);
            if (held > has) held = has;
            fti_ladder_seen seen = {.steps = 1 + below(&seed, 3),
                                    .held_pages = held,
                                    .peak_pages = held,
                                    .experts = 64,
                                    .misses = below(&seed, 4)};
            if (cap > has) {
                seen.short_steps = below(&seed, seen.steps + 1);
                seen.wanted_pages = cap - held;
                seen.preempted = below(&seed, 8) == 0;
            }
            since += seen.steps;
            uint32_t rung = fti_ladder_step(&l, &s, &seen);
            if (rung == s.rung) continue;
            assert_true(rung < l.rung_count && l.rungs[rung].pages >= held);
            assert_true(since >= FTI_LADDER_REST);
            since = 0;
            moves++;
            if (below(&seed, 4))
                fti_ladder_moved(&s, rung);
            else
                undone++;
        }
    }
    assert_true(moves > 100 && undone > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f3_every_rung_adds_up),
        cmocka_unit_test(g8_the_minimum_is_tight),
        cmocka_unit_test(more_memory_never_means_fewer_slots),
        cmocka_unit_test(sizes_at_their_edges),
        cmocka_unit_test(sums_at_their_edge),
        cmocka_unit_test(the_rest_goes_where_it_fits),
        cmocka_unit_test(f1_the_asked_context_is_kept),
        cmocka_unit_test(the_number_in_the_message_works),
        cmocka_unit_test(f4_all_experts_count),
        cmocka_unit_test(the_start_shares_fairly),
        cmocka_unit_test(f8_slots_or_mapped),
        cmocka_unit_test(a_constant_load_comes_to_rest),
        cmocka_unit_test(a_changed_load_is_followed),
        cmocka_unit_test(slots_that_nothing_misses_are_not_taken),
        cmocka_unit_test(a_long_shortage_ends_as_soon_as_a_short_one),
        cmocka_unit_test(preemptions_count),
        cmocka_unit_test(bursts_do_not_make_it_swing),
        cmocka_unit_test(a_move_that_lasts_makes_it_quick_again),
        cmocka_unit_test(never_below_what_is_held),
    };
    return cmocka_run_group_tests_name("test_ladder", tests, NULL, NULL);
}
