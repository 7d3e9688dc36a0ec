/* banks.c: see banks.h. */
#include "core/banks.h"

#include "core/engine.h"

/* ---- grouping ---- */

static bool same_geometry(const ftk_bank_part *a, const ftk_bank_part *b) {
    return a->type == b->type && a->rows == b->rows && a->cols == b->cols &&
           a->experts == b->experts && a->used == b->used;
}

/* Entries of one layer, in the order of the plan; at most FTI_BANK_MAX_PARTS are kept. */
static uint32_t parts_of(const ftk_plan *plan, uint32_t layer, uint64_t *entries) {
    uint32_t count = 0;
    for (uint64_t i = 0; i < plan->bank_part_count; i++) {
        if (fti_plan_bank(plan, i)->layer != layer) continue;
        if (count < FTI_BANK_MAX_PARTS) entries[count] = i;
        count++;
    }
    return count;
}

static ftk_status check_layer(const ftk_plan *plan, uint32_t layer, const uint64_t *entries,
                              uint32_t count, ftk_error *err) {
    if (count > FTI_BANK_MAX_PARTS)
        return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                        "layer %u has %u expert banks, an engine takes at most %u", layer, count,
                        FTI_BANK_MAX_PARTS);
    const ftk_bank_part *first = fti_plan_bank(plan, entries[0]);
    for (uint32_t p = 1; p < count; p++) {
        const ftk_bank_part *b = fti_plan_bank(plan, entries[p]);
        if (b->experts != first->experts || b->used != first->used)
            return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                            "layer %u has banks of %u experts (%u used) and of %u (%u used): its "
                            "parts must have the same",
                            layer, first->experts, first->used, b->experts, b->used);
    }
    return FTK_OK;
}

static fti_pool *find_pool(const fti_banks *b, const uint64_t *entries, uint32_t count) {
    for (uint32_t i = 0; i < b->count; i++) {
        fti_pool *pool = &b->pools[i];
        bool same = pool->parts == count;
        for (uint32_t p = 0; same && p < count; p++)
            same = same_geometry(fti_plan_bank(b->plan, pool->part[p].plan_index[0]),
                                 fti_plan_bank(b->plan, entries[p]));
        if (same) return pool;
    }
    return NULL;
}

static fti_pool *new_pool(fti_banks *b, const uint64_t *entries, uint32_t count, size_t layers) {
    fti_pool *pool = &b->pools[b->count];
    const ftk_bank_part *first = fti_plan_bank(b->plan, entries[0]);
    pool->experts = first->experts;
    pool->used = first->used;
    pool->banks = b;
    bool complete = true;
    b->count++;
    for (pool->parts = 0; pool->parts < count; pool->parts++) {
        fti_pool_part *part = &pool->part[pool->parts];
        const ftk_bank_part *planned = fti_plan_bank(b->plan, entries[pool->parts]);
        part->bytes = planned->rows * fti_type_row_bytes(planned->type, planned->cols);
        part->plan_index = fti_calloc(layers, sizeof *part->plan_index);
        part->shift = fti_calloc(layers, sizeof *part->shift);
        complete = complete && part->plan_index && part->shift;
    }
    return complete ? pool : NULL;
}

/* Where the experts of a part lie whole pages apart, all of them have the same shift. */
static uint64_t shift_of(const fti_banks *b, const ftk_bank_part *p) {
    uint64_t at = fti_checkpoint_tensor(b->checkpoint, (size_t)p->tensor)->offset + p->offset;
    bool whole_pages = p->expert_stride % FTI_BANK_PAGE == 0 && at % FTI_WEIGHT_ALIGN == 0;
    return whole_pages ? at % FTI_BANK_PAGE : 0;
}

static void add_layer(const fti_banks *b, fti_pool *pool, const uint64_t *entries) {
    for (uint32_t p = 0; p < pool->parts; p++) {
        pool->part[p].plan_index[pool->layers] = entries[p];
        pool->part[p].shift[pool->layers] = shift_of(b, fti_plan_bank(b->plan, entries[p]));
    }
    pool->layers++;
}

/* A slot has room for the pages that its expert lies in, however it is shifted. */
static void size_slots(fti_pool *pool) {
    pool->slot_bytes = 0;
    for (uint32_t p = 0; p < pool->parts; p++) {
        fti_pool_part *part = &pool->part[p];
        bool shifted = false;
        for (uint32_t l = 0; l < pool->layers; l++) shifted = shifted || part->shift[l] > 0;
        part->slot_bytes = (part->bytes + FTI_BANK_PAGE - 1) / FTI_BANK_PAGE * FTI_BANK_PAGE;
        part->slot_bytes += shifted ? FTI_BANK_PAGE : 0;
        pool->slot_bytes += part->slot_bytes;
    }
}

/* True for the first entry of its layer. */
static bool begins_layer(const ftk_plan *plan, uint64_t entry) {
    uint32_t layer = fti_plan_bank(plan, entry)->layer;
    uint64_t i = 0;
    while (fti_plan_bank(plan, i)->layer != layer) i++;
    return i == entry;
}

ftk_status fti_banks_plan(const ftk_plan *plan, const fti_checkpoint *checkpoint, fti_banks *b,
                          ftk_error *err) {
    size_t most = (size_t)plan->bank_part_count; /* layers, and pools */
    *b = (fti_banks){.checkpoint = checkpoint, .plan = plan};
    if (most == 0) return FTK_OK;
    b->pools = fti_calloc(most, sizeof *b->pools);
    if (!b->pools) return fti_no_memory(err, most * sizeof *b->pools, "the expert pools");
    for (uint64_t i = 0; i < most; i++) {
        uint64_t entries[FTI_BANK_MAX_PARTS] = {0};
        uint32_t layer = fti_plan_bank(plan, i)->layer;
        if (!begins_layer(plan, i)) continue;
        uint32_t count = parts_of(plan, layer, entries);
        FTI_TRY(check_layer(plan, layer, entries, count, err));
        fti_pool *pool = find_pool(b, entries, count);
        if (!pool) pool = new_pool(b, entries, count, most);
        if (!pool) return fti_no_memory(err, most * sizeof(uint64_t), "the expert pools");
        add_layer(b, pool, entries);
    }
    for (uint32_t i = 0; i < b->count; i++) size_slots(&b->pools[i]);
    return FTK_OK;
}

/* ---- sizes ---- */

uint64_t fti_pool_bytes(const fti_pool *pool, uint32_t slots) {
    uint64_t state = fti_residency_elements(pool->layers, pool->experts, slots) * sizeof(int32_t);
    return slots * pool->slot_bytes + FTI_BANK_PAGE + state;
}

static void *at_page(void *memory) {
    return (char *)memory + (FTI_BANK_PAGE - (uintptr_t)memory % FTI_BANK_PAGE) % FTI_BANK_PAGE;
}

/* Beginning of the expert's bytes in a slot. */
static char *place_of(const fti_pool *pool, uint32_t part, uint32_t layer, uint32_t slot) {
    const fti_pool_part *p = &pool->part[part];
    return (char *)p->memory + slot * p->slot_bytes + p->shift[layer];
}

/* ---- bringing experts ---- */

static ftk_status start_expert(void *self, uint32_t layer, uint32_t expert, uint32_t part,
                               uint32_t slot, uint64_t *ticket, ftk_error *err) {
    const fti_pool *pool = self;
    const fti_banks *b = pool->banks;
    const ftk_bank_part *p = fti_plan_bank(b->plan, pool->part[part].plan_index[layer]);
    const fti_tensor *source = fti_checkpoint_tensor(b->checkpoint, (size_t)p->tensor);
    const fti_fetch_piece piece = {.shard = source->shard,
                                   .offset = source->offset + p->offset + expert * p->expert_stride,
                                   .bytes = pool->part[part].bytes,
                                   .to = place_of(pool, part, layer, slot)};
    (void)err;
    *ticket = fti_fetch_start(b->fetch, &piece);
    return FTK_OK;
}

static bool expert_ended(void *self, uint64_t ticket) {
    return fti_fetch_ended(((const fti_pool *)self)->banks->fetch, ticket);
}

static ftk_status wait_for_expert(void *self, uint64_t ticket, ftk_error *err) {
    return fti_fetch_wait(((const fti_pool *)self)->banks->fetch, ticket, err);
}

static const fti_mover_ops file_mover = {start_expert, expert_ended, wait_for_expert};

/* ---- memory ---- */

static ftk_status allocate_pool(fti_banks *b, fti_pool *pool, ftk_error *err) {
    pool->block_bytes = fti_pool_bytes(pool, pool->slots);
    FTI_TRY(
        b->backend->ops->alloc(b->backend, pool->block_bytes, "expert slots", &pool->block, err));
    char *at = at_page(pool->block);
    fti_bank_desc desc = {.layers = pool->layers,
                          .experts = pool->experts,
                          .slots = pool->slots,
                          .parts = pool->parts,
                          .mover = {&file_mover, pool}};
    for (uint32_t p = 0; p < pool->parts; p++) {
        uint64_t bytes = pool->slots * pool->part[p].slot_bytes;
        pool->part[p].memory = at;
        desc.part_memory[p] = (fti_bank_memory){at, bytes};
        at += bytes;
    }
    desc.memory = (int32_t *)(void *)at;
    FTI_TRY(fti_bank_pool_create(&desc, &pool->bank, err));
    return b->backend->ops->bank_attach(b->backend, pool->bank, err);
}

ftk_status fti_banks_allocate(fti_banks *b, fti_backend *backend, ftk_error *err) {
    const fti_fetch_options options = {0};
    b->backend = backend;
    FTI_TRY(fti_fetch_create(b->checkpoint, &options, &b->fetch, err));
    for (uint32_t i = 0; i < b->count; i++) FTI_TRY(allocate_pool(b, &b->pools[i], err));
    return FTK_OK;
}

static ftk_bank_view view_of(const fti_pool *pool, uint32_t part, uint32_t layer) {
    const ftk_bank_part *p = fti_plan_bank(pool->banks->plan, pool->part[part].plan_index[layer]);
    return (ftk_bank_view){.struct_size = (uint32_t)sizeof(ftk_bank_view),
                           .type = p->type,
                           .layout = FTK_LAYOUT_RAW,
                           .experts = p->experts,
                           .rows = p->rows,
                           .cols = p->cols,
                           .row_bytes = pool->part[part].bytes / p->rows,
                           .expert_stride = pool->part[part].slot_bytes,
                           .base = place_of(pool, part, layer, 0),
                           .slots = fti_bank_residency(pool->bank)->slot_of +
                                    (uint64_t)layer * pool->experts};
}

void fti_banks_views(const fti_banks *b, ftk_bank_view *views) {
    for (uint32_t i = 0; i < b->count; i++)
        for (uint32_t part = 0; part < b->pools[i].parts; part++)
            for (uint32_t layer = 0; layer < b->pools[i].layers; layer++)
                views[b->pools[i].part[part].plan_index[layer]] = view_of(&b->pools[i], part,
                                                                          layer);
}

fti_expert_stats fti_banks_count(const fti_banks *b) {
    fti_expert_stats sum = {0};
    for (uint32_t i = 0; i < b->count && b->pools[i].bank; i++) {
        for (uint32_t layer = 0; layer < b->pools[i].layers; layer++) {
            const fti_bank_counts *c = fti_bank_counts_of(b->pools[i].bank, layer);
            sum.needed += c->experts;
            sum.hits += c->hits;
            sum.evicted += c->evicted;
            sum.rings += c->rings;
            sum.waits += c->waits;
        }
    }
    fti_fetch_counts fetched = {0};
    if (b->fetch) fti_fetch_get_counts(b->fetch, &fetched);
    sum.bytes = fetched.bytes;
    return sum;
}

static void release_pool(fti_banks *b, fti_pool *pool) {
    if (pool->bank) b->backend->ops->bank_detach(b->backend, pool->bank);
    fti_bank_pool_destroy(pool->bank);
    if (pool->block) b->backend->ops->release(b->backend, pool->block, pool->block_bytes);
    for (uint32_t p = 0; p < FTI_BANK_MAX_PARTS; p++) {
        fti_free(pool->part[p].plan_index);
        fti_free(pool->part[p].shift);
    }
}

void fti_banks_release(fti_banks *b) {
    for (uint32_t i = 0; i < b->count; i++) release_pool(b, &b->pools[i]);
    fti_fetch_destroy(b->fetch);
    fti_free(b->pools);
    *b = (fti_banks){0};
}
