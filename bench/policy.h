/*
 * policy.h: what a number of slots makes of a trace of routing, under a policy that says which
 * expert makes way. Nothing is run: a step's experts are looked up layer by layer, as the
 * engine does.
 *
 * A lookup is one expert of one layer in one step, however many rows share it: that is what a
 * copy is made for. It hits if the expert has a slot when its layer begins. Layers of equal
 * geometry share the slots of one pool.
 */
#ifndef FTI_BENCH_POLICY_H
#define FTI_BENCH_POLICY_H

#include "trace.h"

/*
 * Under the first three every miss takes a slot, and what the layer at hand needs stays; if it
 * needs more experts than there are slots they follow each other through those, and the last
 * ones stay. The other two look into the trace and let an expert pass through without a slot,
 * so that nothing on as many slots can hit more often than the last one.
 */
typedef enum fti_policy {
    FTI_POLICY_LRU, /* used longest ago; the engine's own code */
    FTI_POLICY_LFU, /* used most rarely; counts are halved every FTI_POLICY_HALVING steps. Of
                       equals the one used longest ago */
    FTI_POLICY_LEAST_STALE, /* unused for most turns of its own layer; of equals the one whose
                               layer comes round last */
    FTI_POLICY_ORACLE, /* the experts looked up most often in the whole trace, and no others; each
                          is copied when it is first used */
    FTI_POLICY_BELADY, /* used furthest in the future: the bound */
    FTI_POLICY_COUNT
} fti_policy;

#define FTI_POLICY_HALVING 64u

extern const char *const fti_policy_names[FTI_POLICY_COUNT];

typedef struct fti_policy_counts {
    uint64_t lookups, hits, evicted;
    uint64_t bytes; /* copied for misses */
} fti_policy_counts;

typedef struct fti_pool {
    size_t *layers; /* of the trace */
    size_t layer_count;
    uint32_t experts;      /* of each layer */
    uint32_t least;        /* slots without which no row can run */
    uint32_t most;         /* slots that hold everything */
    uint64_t expert_bytes; /* of one slot */
} fti_pool;

/* The pools of a trace, in the order of their first layers. */
fti_pool *fti_pools_of(const fti_trace *trace, size_t *count);
void fti_pools_free(fti_pool *pools, size_t count);

/* Adds what happens with pool->least to pool->most slots: counts[layer of the trace][0 of decode
 * steps, 1 of those with rows of prompts]. */
void fti_policy_run(const fti_trace *trace, const fti_pool *pool, fti_policy policy, uint32_t slots,
                    fti_policy_counts (*counts)[2]);

#endif
