/* bank_pool.c: see bank_pool.h. */
#include "backend/bank_pool.h"

typedef struct part_progress {
    uint32_t started;  /* entries whose copy has begun, or that needed none */
    uint32_t finished; /* entries that have been used */
    bool begun;
} part_progress;

struct fti_bank_pool {
    fti_residency residency;
    fti_residency_plan plan;
    fti_mover mover;
    uint32_t parts;
    fti_bank_memory memory[FTI_BANK_MAX_PARTS];
    uint64_t *tickets; /* [parts][slots] of the last copy into each, 0: there was none */
    part_progress progress[FTI_BANK_MAX_PARTS];
    fti_bank_counts *counts; /* [layers] */
};

static uint64_t *ticket_at(fti_bank_pool *p, uint32_t part, int32_t slot) {
    return &p->tickets[(uint64_t)part * p->residency.slots + (uint32_t)slot];
}

ftk_status fti_bank_pool_create(const fti_bank_desc *d, fti_bank_pool **out, ftk_error *err) {
    if (d->parts == 0 || d->parts > FTI_BANK_MAX_PARTS)
        return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                        "an expert has %u parts, the engine takes 1 to %u", d->parts,
                        FTI_BANK_MAX_PARTS);
    fti_bank_pool *p = fti_calloc(1, sizeof *p);
    if (!p) return fti_no_memory(err, sizeof *p, "an expert pool");
    p->parts = d->parts;
    p->mover = d->mover;
    memcpy(p->memory, d->part_memory, sizeof p->memory);
    p->tickets = fti_calloc((size_t)d->parts * d->slots, sizeof *p->tickets);
    p->plan.entries = fti_calloc(d->experts, sizeof *p->plan.entries);
    p->counts = fti_calloc(d->layers, sizeof *p->counts);
    if (!p->tickets || !p->plan.entries || !p->counts) {
        fti_bank_pool_destroy(p);
        return fti_no_memory(err, (uint64_t)d->parts * d->slots * sizeof *p->tickets,
                             "an expert pool");
    }
    p->residency = fti_residency_init(d->memory, d->layers, d->experts, d->slots);
    p->plan.layer = d->layers;
    *out = p;
    return FTK_OK;
}

void fti_bank_pool_destroy(fti_bank_pool *p) {
    if (!p) return;
    for (uint64_t i = 0; p->tickets && i < (uint64_t)p->parts * p->residency.slots; i++)
        if (p->tickets[i]) (void)p->mover.ops->wait(p->mover.self, p->tickets[i], NULL);
    fti_free(p->tickets);
    fti_free(p->plan.entries);
    fti_free(p->counts);
    fti_free(p);
}

bool fti_bank_find(const fti_bank_pool *p, const int32_t *slots, const void *base, uint32_t *layer,
                   uint32_t *part) {
    const fti_residency *r = &p->residency;
    uintptr_t at = (uintptr_t)slots, first = (uintptr_t)r->slot_of;
    uint64_t row = r->experts * sizeof *r->slot_of;
    if (at < first || at - first >= r->layers * row || (at - first) % row) return false;
    *layer = (uint32_t)((at - first) / row);
    for (*part = 0; *part < p->parts; ++*part) {
        const fti_bank_memory *m = &p->memory[*part];
        if ((uintptr_t)base >= (uintptr_t)m->base &&
            (uintptr_t)base - (uintptr_t)m->base < m->bytes)
            return true;
    }
    return false;
}

const fti_residency *fti_bank_residency(const fti_bank_pool *p) {
    return &p->residency;
}

const fti_bank_counts *fti_bank_counts_of(const fti_bank_pool *p, uint32_t layer) {
    return &p->counts[layer];
}

bool fti_bank_asked(const fti_bank_pool *p, uint32_t layer, uint32_t part) {
    return p->plan.layer == layer && !p->progress[part].begun;
}

/* ---- copies ---- */

static ftk_status start_copy(fti_bank_pool *p, uint32_t part, uint32_t i, ftk_error *err) {
    const fti_residency_entry *entry = &p->plan.entries[i];
    return p->mover.ops->start(p->mover.self, p->plan.layer, (uint32_t)entry->expert, part,
                               (uint32_t)entry->slot, ticket_at(p, part, entry->slot), err);
}

/* Begins the copies of a part as far as the ring has room for them. */
static ftk_status start_copies(fti_bank_pool *p, uint32_t part, ftk_error *err) {
    part_progress *at = &p->progress[part];
    uint64_t room = (uint64_t)at->finished + p->plan.ring;
    for (; at->started < p->plan.count && at->started < room; at->started++)
        if (at->started >= p->plan.hits) FTI_TRY(start_copy(p, part, at->started, err));
    return FTK_OK;
}

/* Of an entry whose copy was begun; after that it has ended well. */
static ftk_status wait_for(fti_bank_pool *p, uint32_t part, uint32_t i, ftk_error *err) {
    uint64_t *ticket = ticket_at(p, part, p->plan.entries[i].slot);
    if (*ticket == 0) return FTK_OK;
    FTI_TRY(p->mover.ops->wait(p->mover.self, *ticket, err));
    *ticket = 0;
    return FTK_OK;
}

/* Whatever the layer has touched may hold anything now. */
static void forget_layer(fti_bank_pool *p) {
    for (uint32_t i = 0; i < p->plan.count; i++)
        if (p->plan.entries[i].slot >= 0)
            fti_residency_drop(&p->residency, p->plan.entries[i].slot);
    p->plan.count = 0;
}

/* A part that was not run to its end: its copies are waited for here, so that no failure is
 * met by a later step that takes the expert to be there. A ring has left other experts in its
 * slots than it says. */
static void end_layer(fti_bank_pool *p) {
    bool sound = true;
    for (uint32_t part = 0; part < p->parts; part++) {
        part_progress *at = &p->progress[part];
        sound = sound && (at->finished == p->plan.count || p->plan.count == p->plan.ring);
        for (; at->finished < at->started; at->finished++)
            sound = wait_for(p, part, at->finished, NULL) == FTK_OK && sound;
    }
    if (!sound) forget_layer(p);
}

static void count_decision(fti_bank_pool *p) {
    fti_bank_counts *c = &p->counts[p->plan.layer];
    c->steps++;
    c->experts += p->plan.count;
    c->hits += p->plan.hits;
    c->evicted += p->plan.evicted;
    c->rings += p->plan.count > p->plan.ring;
}

ftk_status fti_bank_ensure(fti_bank_pool *p, uint32_t layer, const int32_t *offsets,
                           ftk_error *err) {
    end_layer(p);
    memset(p->progress, 0, sizeof p->progress);
    p->plan.layer = layer;
    fti_residency_decide(&p->residency, offsets, &p->plan);
    count_decision(p);
    ftk_status status = FTK_OK;
    if (p->plan.ring == 0 && p->plan.count > 0)
        status = fti_fail(err, FTK_E_INTERNAL, "all %u expert slots are in use",
                          p->residency.slots);
    for (uint32_t part = 0; status == FTK_OK && part < p->parts; part++)
        status = start_copies(p, part, err);
    if (status != FTK_OK) forget_layer(p);
    return status;
}

/* ---- use ---- */

static bool is_ready(fti_bank_pool *p, uint32_t part, uint32_t i) {
    uint64_t ticket = *ticket_at(p, part, p->plan.entries[i].slot);
    return ticket == 0 || p->mover.ops->ended(p->mover.self, ticket);
}

ftk_status fti_bank_next(fti_bank_pool *p, uint32_t part, fti_bank_run *run, ftk_error *err) {
    part_progress *at = &p->progress[part];
    uint32_t first = at->finished, end = first;
    at->begun = true;
    *run = (fti_bank_run){p->plan.entries + first, 0};
    if (first >= p->plan.count) return FTK_OK;
    p->counts[p->plan.layer].waits += !is_ready(p, part, first);
    ftk_status status = FTK_OK;
    while (status == FTK_OK && end < at->started && (end == first || is_ready(p, part, end)))
        status = wait_for(p, part, end++, err);
    if (status != FTK_OK) {
        forget_layer(p);
        return status;
    }
    for (uint32_t i = first; i < end; i++) p->residency.users[p->plan.entries[i].slot]++;
    run->count = end - first;
    return FTK_OK;
}

ftk_status fti_bank_done(fti_bank_pool *p, uint32_t part, const fti_bank_run *run, ftk_error *err) {
    for (uint32_t i = 0; i < run->count; i++) p->residency.users[run->entries[i].slot]--;
    p->progress[part].finished += run->count;
    ftk_status status = start_copies(p, part, err);
    if (status != FTK_OK) forget_layer(p);
    return status;
}
