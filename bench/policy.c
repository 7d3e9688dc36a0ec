/* policy.c: see policy.h. */
#include "policy.h"

#include <stdlib.h>
#include <string.h>

#include "cli/text.h"
#include "sched/residency.h"

const char *const fti_policy_names[FTI_POLICY_COUNT] = {"lru", "lfu", "least-stale", "oracle",
                                                        "belady"};

/* ---- pools ---- */

static bool same_geometry(const fti_trace_layer *a, const fti_trace_layer *b) {
    return a->experts == b->experts && a->part_count == b->part_count &&
           memcmp(a->part_bytes, b->part_bytes, a->part_count * sizeof *a->part_bytes) == 0;
}

static void join_pool(fti_pool *pool, const fti_trace *t, size_t layer) {
    const fti_trace_layer *l = &t->layers[layer];
    pool->layers[pool->layer_count++] = layer;
    pool->experts = l->experts;
    pool->expert_bytes = fti_trace_expert_bytes(l);
    pool->most += l->experts;
    if (l->used > pool->least) pool->least = l->used;
}

fti_pool *fti_pools_of(const fti_trace *t, size_t *count) {
    fti_pool *pools = fti_cli_alloc(t->layer_count, sizeof *pools);
    *count = 0;
    for (size_t l = 0; l < t->layer_count; l++) {
        size_t p = 0;
        while (p < *count && !same_geometry(&t->layers[pools[p].layers[0]], &t->layers[l])) p++;
        if (p == *count) {
            pools[p].layers = fti_cli_alloc(t->layer_count, sizeof *pools[p].layers);
            (*count)++;
        }
        join_pool(&pools[p], t, l);
    }
    return pools;
}

void fti_pools_free(fti_pool *pools, size_t count) {
    for (size_t p = 0; p < count; p++) free(pools[p].layers);
    free(pools);
}

/* ---- one run ---- */

/* An expert of the pool is layer in the pool * experts + expert. */
typedef struct candidate {
    uint64_t key; /* the greatest makes way first, of equals the lowest id */
    uint32_t id;
} candidate;

typedef struct run {
    const fti_trace *trace;
    const fti_pool *pool;
    fti_policy policy;
    uint32_t slots;
    uint32_t held_count;
    uint32_t *held;        /* [most] experts with a slot */
    uint32_t *place;       /* [most] index in held plus 1, or 0 */
    uint64_t *when;        /* [most] clock of the last use plus 1; 0: never used */
    uint64_t *turn;        /* [most] turns of its layer at the last use */
    uint64_t *turns;       /* [layer_count] so far */
    uint32_t *weight;      /* [most] lookups: LFU's, falling; of the whole trace for ORACLE */
    bool *chosen;          /* [most] ORACLE's set */
    uint64_t *next;        /* [most] BELADY: layer of a step of the next use */
    uint64_t *entry_next;  /* [entry_count] the same after each lookup */
    candidate *candidates; /* [most] */
    uint32_t *order;       /* [experts] of the layer at hand: hits, then misses */
    uint32_t count, hits;  /* of these */
    uint64_t clock;        /* layers of steps so far */
    size_t layer;          /* at hand, in the pool */
} run;

static void put(run *r, uint32_t id) {
    r->held[r->held_count++] = id;
    r->place[id] = r->held_count;
}

static void drop(run *r, uint32_t id) {
    uint32_t at = r->place[id] - 1, last = r->held[--r->held_count];
    r->held[at] = last;
    r->place[last] = at + 1;
    r->place[id] = 0;
}

static uint64_t key_of(const run *r, uint32_t id) {
    size_t layers = r->pool->layer_count, layer = id / r->pool->experts;
    switch (r->policy) {
    case FTI_POLICY_LFU:
        return ((uint64_t)(UINT32_MAX - r->weight[id]) << 32) |
               ((r->clock + 1 - r->when[id]) & UINT32_MAX);
    case FTI_POLICY_LEAST_STALE:
        return ((r->turns[layer] - r->turn[id]) << 32) |
               ((layer + layers - r->layer - 1) % layers + 1);
    default: return r->next[id];
    }
}

static bool before(const candidate *a, const candidate *b) {
    return a->key != b->key ? a->key > b->key : a->id < b->id;
}

/* Moves the `first` of `count` candidates that make way first to the begin. */
static void choose_first(candidate *c, size_t count, size_t first) {
    size_t low = 0, high = count;
    while (high - low > 1 && first > low && first < high) {
        candidate pivot = c[low + (high - low) / 2];
        size_t i = low, j = high - 1;
        while (i <= j) {
            while (before(&c[i], &pivot)) i++;
            while (before(&pivot, &c[j])) j--;
            if (i > j) break;
            candidate kept = c[i];
            c[i++] = c[j];
            c[j] = kept;
            if (j == 0) break;
            j--;
        }
        if (first <= j) {
            high = j + 1;
        } else if (first >= i) {
            low = i;
        } else {
            return;
        }
    }
}

static bool at_hand(const run *r, uint32_t id) {
    return r->when[id] == r->clock + 1;
}

/* Takes their slots from so many of those that hold one, `spare`: but not from those that the
 * layer at hand needs. Fewer, if there are not so many. */
static void evict(run *r, uint32_t wanted, bool spare) {
    size_t count = 0;
    for (uint32_t i = 0; i < r->held_count; i++)
        if (!spare || !at_hand(r, r->held[i]))
            r->candidates[count++] = (candidate){key_of(r, r->held[i]), r->held[i]};
    if (wanted < count)
        choose_first(r->candidates, count, wanted);
    else
        wanted = (uint32_t)count;
    for (uint32_t i = 0; i < wanted; i++) drop(r, r->candidates[i].id);
}

/* Every miss takes a slot. Returns how many experts lost theirs. */
static uint32_t place_all(run *r) {
    uint32_t misses = r->count - r->hits, had = r->held_count;
    if (had + misses > r->slots) evict(r, had + misses - r->slots, true);
    if (r->held_count + misses <= r->slots) {
        for (uint32_t i = r->hits; i < r->count; i++) put(r, r->order[i]);
    } else { /* only experts of this layer are left: they follow each other */
        while (r->held_count) drop(r, r->held[0]);
        for (uint32_t i = r->count - r->slots; i < r->count; i++) put(r, r->order[i]);
    }
    return had + misses - r->held_count;
}

static uint32_t place_chosen(run *r) {
    for (uint32_t i = r->hits; i < r->count; i++)
        if (r->chosen[r->order[i]]) put(r, r->order[i]);
    return 0;
}

/* Those used soonest of all that lie in slots or have just been copied. */
static uint32_t place_soonest(run *r) {
    uint32_t had = r->held_count, stayed = 0;
    for (uint32_t i = 0; i < had; i++) r->turn[r->held[i]] = r->clock + 1;
    for (uint32_t i = r->hits; i < r->count; i++) put(r, r->order[i]);
    if (r->held_count > r->slots) evict(r, r->held_count - r->slots, false);
    for (uint32_t i = 0; i < r->held_count; i++) stayed += r->turn[r->held[i]] == r->clock + 1;
    return had - stayed;
}

static uint32_t place_misses(run *r) {
    if (r->policy == FTI_POLICY_ORACLE) return place_chosen(r);
    return r->policy == FTI_POLICY_BELADY ? place_soonest(r) : place_all(r);
}

/* Notes the lookups of a layer of a step and puts those that hit first. */
static void look_up(run *r, const fti_trace_entry *entries, size_t first) {
    uint32_t base = (uint32_t)r->layer * r->pool->experts;
    uint32_t misses = 0, count = r->count;
    r->turns[r->layer]++;
    r->hits = 0;
    for (uint32_t i = 0; i < count; i++) r->hits += r->place[base + entries[i].expert] != 0;
    for (uint32_t i = 0, hits = 0; i < count; i++) {
        uint32_t id = base + entries[i].expert;
        r->order[r->place[id] ? hits++ : r->hits + misses++] = id;
        r->when[id] = r->clock + 1;
        if (r->policy != FTI_POLICY_BELADY) r->turn[id] = r->turns[r->layer];
        if (r->policy == FTI_POLICY_LFU) r->weight[id] += 256;
        if (r->policy == FTI_POLICY_BELADY) r->next[id] = r->entry_next[first + i];
    }
}

static void tally(const run *r, size_t layer, size_t step, uint32_t evicted,
                  fti_policy_counts (*counts)[2]) {
    fti_policy_counts *c = &counts[layer][r->trace->steps[step].prompt_rows > 0];
    c->lookups += r->count;
    c->hits += r->hits;
    c->evicted += evicted;
    c->bytes += (r->count - r->hits) * r->pool->expert_bytes;
}

static void halve(run *r, size_t step) {
    if (r->policy != FTI_POLICY_LFU || step == 0 || step % FTI_POLICY_HALVING) return;
    for (uint32_t i = 0; i < r->pool->most; i++) r->weight[i] /= 2;
}

/* ---- policies that know the trace ---- */

static void count_all(run *r) {
    const fti_trace *t = r->trace;
    for (size_t s = 0; s < t->step_count; s++)
        for (size_t l = 0; l < r->pool->layer_count; l++) {
            const size_t *start = &t->starts[s * t->layer_count + r->pool->layers[l]];
            for (size_t i = start[0]; i < start[1]; i++)
                r->weight[l * r->pool->experts + t->entries[i].expert]++;
        }
}

static void choose_set(run *r) {
    count_all(r);
    for (uint32_t i = 0; i < r->pool->most; i++) r->candidates[i] = (candidate){r->weight[i], i};
    choose_first(r->candidates, r->pool->most, r->slots);
    for (uint32_t i = 0; i < r->slots; i++) r->chosen[r->candidates[i].id] = true;
}

static void look_ahead(run *r) {
    const fti_trace *t = r->trace;
    r->entry_next = fti_cli_alloc(t->entry_count + 1, sizeof *r->entry_next);
    for (uint32_t i = 0; i < r->pool->most; i++) r->next[i] = UINT64_MAX;
    for (size_t s = t->step_count; s-- > 0;)
        for (size_t l = r->pool->layer_count; l-- > 0;) {
            size_t group = s * t->layer_count + r->pool->layers[l];
            for (size_t i = t->starts[group]; i < t->starts[group + 1]; i++) {
                uint64_t *next = &r->next[l * r->pool->experts + t->entries[i].expert];
                r->entry_next[i] = *next;
                *next = group;
            }
        }
}

/* ---- the engine's own policy ---- */

static void run_lru(const fti_trace *t, const fti_pool *pool, uint32_t slots,
                    fti_policy_counts (*counts)[2]) {
    uint32_t layers = (uint32_t)pool->layer_count, experts = pool->experts;
    int32_t *memory = fti_cli_alloc(fti_residency_elements(layers, experts, slots), sizeof *memory);
    int32_t *offsets = fti_cli_alloc((size_t)experts + 1, sizeof *offsets);
    fti_residency state = fti_residency_init(memory, layers, experts, slots);
    fti_residency_plan plan = {.entries = fti_cli_alloc(experts, sizeof *plan.entries)};
    for (size_t s = 0; s < t->step_count; s++)
        for (uint32_t l = 0; l < layers; l++) {
            const size_t *start = &t->starts[s * t->layer_count + pool->layers[l]];
            size_t at = start[0];
            for (uint32_t e = 0; e < experts; e++) {
                bool used = at < start[1] && t->entries[at].expert == e;
                offsets[e + 1] = offsets[e] + (used ? (int32_t)t->entries[at++].rows : 0);
            }
            plan.layer = l;
            fti_residency_decide(&state, offsets, &plan);
            const run seen = {.trace = t, .pool = pool, .count = plan.count, .hits = plan.hits};
            tally(&seen, pool->layers[l], s, plan.evicted, counts);
        }
    free(memory);
    free(offsets);
    free(plan.entries);
}

/* ---- the others ---- */

static void run_init(run *r) {
    uint32_t most = r->pool->most;
    r->held = fti_cli_alloc(most, sizeof *r->held);
    r->place = fti_cli_alloc(most, sizeof *r->place);
    r->when = fti_cli_alloc(most, sizeof *r->when);
    r->turn = fti_cli_alloc(most, sizeof *r->turn);
    r->turns = fti_cli_alloc(r->pool->layer_count, sizeof *r->turns);
    r->weight = fti_cli_alloc(most, sizeof *r->weight);
    r->chosen = fti_cli_alloc(most, sizeof *r->chosen);
    r->next = fti_cli_alloc(most, sizeof *r->next);
    r->candidates = fti_cli_alloc(most, sizeof *r->candidates);
    r->order = fti_cli_alloc(r->pool->experts, sizeof *r->order);
    if (r->policy == FTI_POLICY_ORACLE) choose_set(r);
    if (r->policy == FTI_POLICY_BELADY) look_ahead(r);
}

static void run_free(run *r) {
    void *const owned[] = {r->held,   r->place, r->when,       r->turn,       r->turns, r->weight,
                           r->chosen, r->next,  r->entry_next, r->candidates, r->order};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) free(owned[i]);
}

void fti_policy_run(const fti_trace *t, const fti_pool *pool, fti_policy policy, uint32_t slots,
                    fti_policy_counts (*counts)[2]) {
    if (policy == FTI_POLICY_LRU) {
        run_lru(t, pool, slots, counts);
        return;
    }
    run r = {.trace = t, .pool = pool, .policy = policy, .slots = slots};
    run_init(&r);
    for (size_t s = 0; s < t->step_count; s++) {
        halve(&r, s);
        for (r.layer = 0; r.layer < pool->layer_count; r.layer++, r.clock++) {
            const size_t *start = &t->starts[s * t->layer_count + pool->layers[r.layer]];
            r.count = (uint32_t)(start[1] - start[0]);
            look_up(&r, t->entries + start[0], start[0]);
            tally(&r, pool->layers[r.layer], s, place_misses(&r), counts);
        }
    }
    run_free(&r);
}
