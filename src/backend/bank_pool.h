/*
 * bank_pool.h: experts of several layers behind a number of slots, as a backend runs them from
 * the host: residency.h decides, a mover brings bytes, and whoever multiplies asks for what
 * is there. The parts of an expert (gate, up, down) have the same slot, each in memory of its
 * own, and come one after the other: while one is multiplied the next is on its way.
 *
 * A slot's part is free, filling from start to the end of its copy, ready, and in use between
 * fti_bank_next and fti_bank_done. A copy into it begins only when nothing reads it and no
 * earlier copy into it is under way.
 *
 * All functions are for the thread that runs the stream.
 */
#ifndef FTI_BANK_POOL_H
#define FTI_BANK_POOL_H

#include "core/base.h"
#include "sched/residency.h"

#define FTI_BANK_MAX_PARTS 8u

typedef struct fti_bank_pool fti_bank_pool;

/* How bytes come into slots. Copies may end in any order. */
typedef struct fti_mover_ops {
    /* Begins to bring part `part` of an expert into a slot; *ticket is above 0. */
    ftk_status (*start)(void *self, uint32_t layer, uint32_t expert, uint32_t part, uint32_t slot,
                        uint64_t *ticket, ftk_error *err);
    bool (*ended)(void *self, uint64_t ticket);
    /* Until it has ended; its failure. Each ticket is asked for, before the next layer but one. */
    ftk_status (*wait)(void *self, uint64_t ticket, ftk_error *err);
} fti_mover_ops;

typedef struct fti_mover {
    const fti_mover_ops *ops;
    void *self;
} fti_mover;

/* Where the slots of a part lie. */
typedef struct fti_bank_memory {
    void *base;
    uint64_t bytes;
} fti_bank_memory;

typedef struct fti_bank_desc {
    uint32_t layers, experts, slots, parts;
    fti_bank_memory part_memory[FTI_BANK_MAX_PARTS];
    int32_t *memory; /* fti_residency_elements(layers, experts, slots), the caller's */
    fti_mover mover;
} fti_bank_desc;

/* Of one layer of the pool. Experts are counted once for a step, however many rows they have. */
typedef struct fti_bank_counts {
    uint64_t steps;   /* in which the layer ran */
    uint64_t experts; /* that were needed, */
    uint64_t hits;    /* and of those the ones that lay in slots */
    uint64_t evicted; /* that lost their slot to one of this layer */
    uint64_t rings;   /* steps that needed more experts than there were slots */
    uint64_t waits;   /* for bytes that had not come when it was their turn */
} fti_bank_counts;

/* What can be multiplied next: entries that are ready, in use until fti_bank_done. */
typedef struct fti_bank_run {
    const fti_residency_entry *entries;
    uint32_t count;
} fti_bank_run;

ftk_status fti_bank_pool_create(const fti_bank_desc *desc, fti_bank_pool **out, ftk_error *err);
/* Waits for the copies that are under way. */
void fti_bank_pool_destroy(fti_bank_pool *pool);

/* The layer and part that a view with these `slots` and this `base` shows; false: it is none of
 * this pool's. */
bool fti_bank_find(const fti_bank_pool *pool, const int32_t *slots, const void *base,
                   uint32_t *layer, uint32_t *part);
const fti_residency *fti_bank_residency(const fti_bank_pool *pool);
const fti_bank_counts *fti_bank_counts_of(const fti_bank_pool *pool, uint32_t layer);

/* Decides for a layer whose rows of expert e are offsets[e] .. offsets[e + 1] - 1, and begins to
 * bring what lacks. Ends the layer before it. */
ftk_status fti_bank_ensure(fti_bank_pool *pool, uint32_t layer, const int32_t *offsets,
                           ftk_error *err);
/* The last ensure was for this layer, and this part of it has not begun since. */
bool fti_bank_asked(const fti_bank_pool *pool, uint32_t layer, uint32_t part);
/* The next experts of part `part`, waiting for one if none is there; none when all have run.
 * After a failure nothing of this layer is taken to be resident. */
ftk_status fti_bank_next(fti_bank_pool *pool, uint32_t part, fti_bank_run *run, ftk_error *err);
ftk_status fti_bank_done(fti_bank_pool *pool, uint32_t part, const fti_bank_run *run,
                         ftk_error *err);

#endif
