/*
 * banks.h: the experts of a model as pools of slots: which layers share a pool, how large a slot
 * is, where its bytes come from. Layers whose parts have the same types and shapes share one, so
 * that no slot is padded to a wider layer's size.
 */
#ifndef FTI_BANKS_H
#define FTI_BANKS_H

#include "backend/backend.h"
#include "core/checkpoint.h"
#include "core/fetch.h"
#include "core/stats.h"

/* What is read from files goes to memory whole pages at a time. */
#define FTI_BANK_PAGE FTI_FETCH_ALIGN

/* One part of a pool's experts. */
typedef struct fti_pool_part {
    uint64_t bytes;       /* of one expert */
    uint64_t slot_bytes;  /* from slot to slot */
    void *memory;         /* slot 0, at a page's beginning */
    uint64_t *plan_index; /* [layers] entry of the plan's bank_parts */
    uint64_t *shift;      /* [layers] bytes between a slot's beginning and the expert's: as in the
                             file, so that whole pages can be read straight into it */
} fti_pool_part;

typedef struct fti_pool {
    uint32_t layers, experts, used, parts;
    uint32_t slots;
    fti_pool_part part[FTI_BANK_MAX_PARTS];
    uint64_t slot_bytes; /* of all parts together */
    fti_bank_pool *bank;
    void *block; /* slots, then the residency's arrays */
    uint64_t block_bytes;
    struct fti_banks *banks;
} fti_pool;

typedef struct fti_banks {
    fti_pool *pools;
    uint32_t count;
    const fti_checkpoint *checkpoint;
    const ftk_plan *plan;
    fti_backend *backend;
    fti_fetch *fetch;
} fti_banks;

/* Groups the plan's bank parts, which have been checked, into pools; no memory of the device
 * yet. FTK_E_PROVIDER_CONTRACT where the parts of a layer do not belong together. */
ftk_status fti_banks_plan(const ftk_plan *plan, const fti_checkpoint *checkpoint, fti_banks *out,
                          ftk_error *err) FTI_WARN_UNUSED;
/* Device memory that a pool of so many slots takes. */
uint64_t fti_pool_bytes(const fti_pool *pool, uint32_t slots);
/* Memory for every pool's `slots`, and its place in the backend. */
ftk_status fti_banks_allocate(fti_banks *banks, fti_backend *backend, ftk_error *err);
/* Fills the views of the plan's bank parts. */
void fti_banks_views(const fti_banks *banks, ftk_bank_view *views);
/* What has run; by the thread that runs steps. */
fti_expert_stats fti_banks_count(const fti_banks *banks);
void fti_banks_release(fti_banks *banks);

#endif
