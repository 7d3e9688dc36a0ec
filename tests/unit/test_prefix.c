/*
 * test_prefix.c: the prefix cache and the choice of victims against brute force, over many
 * random operations: what is found was kept, is what was written there, and is the longest
 * that could be; every number has the holders that say so; what is forgotten was used least
 * recently.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "sched/preempt.h"
#include "sched/prefix.h"

#define PAGES    23u
#define SLOTS    9u
#define DEEP     6u /* pages of the longest sequence */
#define REQUESTS 3u

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static uint32_t below(uint64_t *seed, uint32_t n) {
    return (uint32_t)(next_random(seed) % n);
}

/* ---- memory that remembers what was written ---- */

typedef struct sequence {
    int32_t ids[DEEP * FTI_PAGE_TOKENS];
    uint64_t count;
} sequence;

typedef struct request {
    sequence seq;
    int32_t pages[DEEP];
    uint32_t page_count;
    int32_t slot;
} request;

typedef struct world {
    fti_numbers pages, slots;
    fti_prefix tree;
    int32_t written[PAGES][FTI_PAGE_TOKENS];
    sequence states[SLOTS];
    request running[REQUESTS];
    uint64_t hits, tails, evictions, failures;
} world;

/* Few different pages, so that sequences part and meet in every way. */
static sequence random_sequence(uint64_t *seed) {
    static const uint32_t tails[] = {0, 0, 1, 17, 63};
    sequence s = {.count = 0};
    uint32_t pages = below(seed, DEEP), tail = tails[below(seed, FTI_COUNT(tails))];
    for (uint32_t p = 0; p <= pages; p++) {
        uint32_t value = below(seed, p < 2 ? 2 : 3), n = p < pages ? FTI_PAGE_TOKENS : tail;
        for (uint32_t i = 0; i < n; i++) s.ids[s.count++] = (int32_t)(value * 100 + (p + i) % 7);
    }
    return s;
}

static bool same_beginning(const sequence *a, const sequence *b, uint64_t count) {
    return a->count >= count && b->count >= count &&
           memcmp(a->ids, b->ids, count * sizeof *a->ids) == 0;
}

/* ---- what must hold at any time ---- */

static void path_of(const fti_prefix_node *n, sequence *out) {
    out->count = n->depth + n->tokens;
    for (; n->parent; n = n->parent)
        memcpy(out->ids + n->depth, n->ids, n->tokens * sizeof *n->ids);
}

static void check_node(const world *w, const fti_prefix_node *n) {
    sequence path;
    path_of(n, &path);
    assert_true(n->tokens == FTI_PAGE_TOKENS || !n->child);
    assert_true(n->child || n->slot >= 0 || w->tree.stateless);
    assert_memory_equal(w->written[n->page], n->ids, n->tokens * sizeof *n->ids);
    if (n->slot < 0) return;
    assert_int_equal(w->states[n->slot].count, path.count);
    assert_true(same_beginning(&w->states[n->slot], &path, path.count));
}

static void check_holders(const world *w) {
    uint32_t pages[PAGES] = {0}, slots[SLOTS] = {0}, nodes = 0;
    for (const fti_prefix_node *n = w->tree.oldest; n; n = n->newer) {
        check_node(w, n);
        const fti_prefix_node *newer = n->newer;
        while (newer && newer != n->parent) newer = newer->newer;
        assert_true(newer || n->parent == &w->tree.root);
        pages[n->page]++;
        if (n->slot >= 0) slots[n->slot]++;
        nodes++;
    }
    assert_int_equal(nodes, w->tree.count);
    for (uint32_t i = 0; i < PAGES; i++) assert_int_equal(pages[i], w->tree.page_nodes[i]);
    for (size_t r = 0; r < REQUESTS; r++) {
        for (uint32_t i = 0; i < w->running[r].page_count; i++) pages[w->running[r].pages[i]]++;
        if (w->running[r].slot >= 0) slots[w->running[r].slot]++;
    }
    for (uint32_t i = 0; i < PAGES; i++) assert_int_equal(pages[i], w->pages.holders[i]);
    for (uint32_t i = 0; i < SLOTS; i++) assert_int_equal(slots[i], w->slots.holders[i]);
}

/* ---- finding ---- */

static uint64_t longest_by_force(const world *w, const sequence *s) {
    uint64_t best = 0;
    for (const fti_prefix_node *n = w->tree.oldest; n; n = n->newer) {
        sequence path;
        path_of(n, &path);
        bool usable = n->slot >= 0 || w->tree.stateless;
        if (usable && path.count > best && same_beginning(s, &path, path.count)) best = path.count;
    }
    return best;
}

static uint64_t common_by_force(const world *w, const sequence *s) {
    uint64_t best = 0;
    for (const fti_prefix_node *n = w->tree.oldest; n; n = n->newer) {
        sequence path;
        path_of(n, &path);
        bool whole = n->tokens == FTI_PAGE_TOKENS;
        if (whole && path.count > best && same_beginning(s, &path, path.count)) best = path.count;
    }
    return best;
}

static void check_match(world *w, const sequence *s, const fti_prefix_match *m) {
    assert_int_equal(m->tokens, longest_by_force(w, s));
    assert_int_equal(m->common, common_by_force(w, s));
    assert_int_equal(m->shared, m->tokens / FTI_PAGE_TOKENS);
    assert_int_equal(m->tail >= 0, m->tokens % FTI_PAGE_TOKENS != 0);
    assert_int_equal(m->node != NULL, m->tokens > 0);
    w->hits += m->tokens > 0;
    w->tails += m->tail >= 0;
}

/* ---- requests ---- */

/* As an engine does: what was found is lent, a tail and a state copied, the rest computed. */
static bool start(world *w, request *r, uint64_t *seed) {
    r->seq = random_sequence(seed);
    if (r->seq.count == 0) return false;
    fti_prefix_match m;
    fti_prefix_find(&w->tree, r->seq.ids, r->seq.count, &m);
    check_match(w, &r->seq, &m);
    fti_prefix_hold(&w->tree, &m, r->pages);
    uint32_t wanted = (uint32_t)((r->seq.count + FTI_PAGE_TOKENS - 1) / FTI_PAGE_TOKENS) - m.shared;
    uint32_t pages, slots;
    fti_prefix_evictable(&w->tree, &pages, &slots);
    bool fits = w->pages.available + pages >= wanted && w->slots.available + slots >= 1;
    w->evictions += fits && w->pages.available < wanted;
    if (fits) {
        assert_true(fti_prefix_evict(&w->tree, wanted, 1));
        assert_true(fti_numbers_take(&w->pages, wanted, r->pages + m.shared));
        assert_true(fti_numbers_take(&w->slots, 1, &r->slot));
        r->page_count = m.shared + wanted;
        if (m.tail >= 0)
            memcpy(w->written[r->pages[m.shared]], w->written[m.tail], sizeof *w->written);
        w->states[r->slot] = (sequence){.count = 0};
        if (m.slot >= 0) w->states[r->slot] = w->states[m.slot];
        for (uint64_t at = m.tokens; at < r->seq.count; at++)
            w->written[r->pages[at / FTI_PAGE_TOKENS]][at % FTI_PAGE_TOKENS] = r->seq.ids[at];
        w->states[r->slot] = r->seq;
    } else {
        assert_true(fti_numbers_give(&w->pages, r->pages, m.shared));
    }
    if (m.tail >= 0) assert_true(fti_numbers_give(&w->pages, &m.tail, 1));
    if (m.slot >= 0) assert_true(fti_numbers_give(&w->slots, &m.slot, 1));
    return fits;
}

static void end(world *w, request *r, bool keep) {
    int32_t slot = w->tree.stateless ? -1 : r->slot;
    if (keep && fti_prefix_add(&w->tree, r->seq.ids, r->seq.count, r->pages, slot)) r->slot = -1;
    if (r->slot >= 0) assert_true(fti_numbers_give(&w->slots, &r->slot, 1));
    assert_true(fti_numbers_give(&w->pages, r->pages, r->page_count));
    r->page_count = 0;
    r->slot = -1;
}

/* A request that fails leaves nothing of its own, and takes along what it went on from; what lies
 * before that, and what others have, stays. */
static void break_down(world *w, request *r, uint64_t *seed) {
    uint64_t from = below(seed, (uint32_t)r->seq.count + 1), before = 0, others = 0;
    for (const fti_prefix_node *n = w->tree.oldest; n; n = n->newer) {
        sequence path;
        path_of(n, &path);
        bool own = same_beginning(&r->seq, &path, path.count);
        others += n->slot >= 0 && !(own && path.count >= from);
        if (own && path.count < from && path.count > before && n->slot >= 0) before = path.count;
    }
    fti_prefix_forget(&w->tree, r->seq.ids, r->seq.count, from);
    for (const fti_prefix_node *n = w->tree.oldest; n; n = n->newer) others -= n->slot >= 0;
    assert_int_equal(others, 0);
    if (!w->tree.stateless) assert_int_equal(longest_by_force(w, &r->seq), before);
    for (const fti_prefix_node *n = w->tree.oldest; n; n = n->newer) {
        sequence path;
        path_of(n, &path);
        assert_false(path.count >= from && !n->child && same_beginning(&r->seq, &path, path.count));
    }
    end(w, r, false);
    w->failures++;
}

/* A snapshot of a beginning, as after a step that ended there. */
static void keep_beginning(world *w, const request *r, uint64_t *seed) {
    int32_t slot = -1;
    uint64_t count = 1 + below(seed, (uint32_t)r->seq.count);
    if (w->tree.stateless) {
        assert_false(fti_prefix_add(&w->tree, r->seq.ids, count, r->pages, -1));
        return;
    }
    (void)fti_prefix_evict(&w->tree, 0, 1);
    if (!fti_numbers_take(&w->slots, 1, &slot)) return;
    w->states[slot] = r->seq;
    w->states[slot].count = count;
    if (!fti_prefix_add(&w->tree, r->seq.ids, count, r->pages, slot))
        assert_true(fti_numbers_give(&w->slots, &slot, 1));
}

static void run_world(bool stateless) {
    static world w;
    uint64_t seed = 17;
    w = (world){.hits = 0};
    for (size_t i = 0; i < REQUESTS; i++) w.running[i].slot = -1;
    assert_true(fti_numbers_create(&w.pages, PAGES) && fti_numbers_create(&w.slots, SLOTS));
    assert_true(fti_prefix_create(&w.tree, &w.pages, &w.slots, stateless));
    for (int round = 0; round < 30000; round++) {
        request *r = &w.running[below(&seed, REQUESTS)];
        if (r->page_count == 0)
            (void)start(&w, r, &seed);
        else if (below(&seed, 2))
            keep_beginning(&w, r, &seed);
        else if (below(&seed, 16) == 0)
            break_down(&w, r, &seed);
        else
            end(&w, r, below(&seed, 4) > 0);
        check_holders(&w);
    }
    print_message("%lu found, %lu in part of a page, %lu had to forget\n", w.hits, w.tails,
                  w.evictions);
    assert_true(w.hits > 1000 && w.evictions > 100 && w.tails > 300 && w.failures > 200);
    for (size_t i = 0; i < REQUESTS; i++)
        if (w.running[i].page_count) end(&w, &w.running[i], false);
    fti_prefix_clear(&w.tree);
    assert_int_equal(w.tree.count, 0);
    assert_int_equal(w.pages.available, PAGES);
    assert_int_equal(w.slots.available, SLOTS);
    fti_prefix_destroy(&w.tree);
    fti_numbers_destroy(&w.pages);
    fti_numbers_destroy(&w.slots);
}

static void random_prefixes(void **state) {
    (void)state;
    run_world(false);
    run_world(true);
}

/* Three sequences; the one that was used in between outlives the others. */
static void least_recently_used_goes_first(void **state) {
    (void)state;
    fti_numbers pages, slots;
    fti_prefix tree;
    assert_true(fti_numbers_create(&pages, 3) && fti_numbers_create(&slots, 3));
    assert_true(fti_prefix_create(&tree, &pages, &slots, false));
    int32_t ids[3][FTI_PAGE_TOKENS] = {{1}, {2}, {3}};
    fti_prefix_match m;
    for (int i = 0; i < 3; i++) {
        int32_t page = -1, slot = -1;
        assert_true(fti_numbers_take(&pages, 1, &page) && fti_numbers_take(&slots, 1, &slot));
        assert_true(fti_prefix_add(&tree, ids[i], FTI_PAGE_TOKENS, &page, slot));
        assert_true(fti_numbers_give(&pages, &page, 1));
    }
    int32_t lent;
    fti_prefix_find(&tree, ids[0], FTI_PAGE_TOKENS, &m);
    fti_prefix_hold(&tree, &m, &lent);
    assert_true(fti_numbers_give(&pages, &lent, 1) && fti_numbers_give(&slots, &m.slot, 1));
    static const uint64_t left[3][3] = {{64, 0, 64}, {64, 0, 0}, {0, 0, 0}};
    for (uint32_t n = 0; n < 3; n++) {
        /* By turns for want of a page and of a slot. */
        assert_true(fti_prefix_evict(&tree, n % 2 ? 0 : n + 1, n % 2 ? n + 1 : 0));
        for (size_t i = 0; i < 3; i++) {
            fti_prefix_find(&tree, ids[i], FTI_PAGE_TOKENS, &m);
            assert_int_equal(m.tokens, left[n][i]);
        }
    }
    fti_prefix_destroy(&tree);
    fti_numbers_destroy(&pages);
    fti_numbers_destroy(&slots);
}

/* ---- victims ---- */

typedef struct sums {
    uint64_t pages, slots;
} sums;

static sums sum_of(const fti_victim *v, size_t count, int32_t limit, bool only_chosen) {
    sums s = {0, 0};
    for (size_t i = 0; i < count; i++) {
        if (v[i].priority >= limit || (only_chosen && !v[i].chosen)) continue;
        s.pages += v[i].pages;
        s.slots += v[i].slots;
    }
    return s;
}

static void no_more_victims_than_needed(void **state) {
    (void)state;
    uint64_t seed = 23, found = 0;
    for (int round = 0; round < 20000; round++) {
        fti_victim v[8];
        size_t count = below(&seed, 9);
        for (size_t i = 0; i < count; i++)
            v[i] = (fti_victim){(int32_t)below(&seed, 4), below(&seed, 5), 1 + below(&seed, 2),
                                false};
        int32_t limit = (int32_t)below(&seed, 5);
        uint32_t pages = below(&seed, 12), slots = below(&seed, 4);
        sums all = sum_of(v, count, limit, false);
        bool enough = all.pages >= pages && all.slots >= slots;
        assert_int_equal(fti_choose_victims(v, count, limit, pages, slots), enough);
        sums chosen = sum_of(v, count, INT32_MAX, true);
        if (!enough) {
            assert_int_equal(chosen.slots, 0); /* nobody goes in vain */
            continue;
        }
        found++;
        assert_true(chosen.pages >= pages && chosen.slots >= slots);
        for (size_t i = 0; i < count; i++) {
            if (!v[i].chosen) continue;
            assert_true(v[i].priority < limit);
            assert_true(chosen.pages - v[i].pages < pages || chosen.slots - v[i].slots < slots);
        }
    }
    assert_true(found > 3000);
}

static void the_weakest_goes_first(void **state) {
    (void)state;
    fti_victim v[4] = {{1, 2, 1, false}, {0, 2, 1, false}, {0, 2, 1, false}, {5, 9, 1, false}};
    assert_true(fti_choose_victims(v, 4, 5, 2, 0));
    assert_true(v[2].chosen && !v[1].chosen && !v[0].chosen && !v[3].chosen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_prefixes),
        cmocka_unit_test(least_recently_used_goes_first),
        cmocka_unit_test(no_more_victims_than_needed),
        cmocka_unit_test(the_weakest_goes_first),
    };
    return cmocka_run_group_tests_name("test_prefix", tests, NULL, NULL);
}
