/*
 * residency.h: which experts of a pool lie in its slots, and which make room for which. One
 * source for every backend, since the decision is made where the routing lies: on the
 * host, or in a kernel of one thread. It works on arrays of the backend's memory and
 * allocates, copies and waits for nothing.
 *
 * A pool has the experts of several layers of equal geometry and as many slots as memory
 * allows. The slot that was used longest ago is given up first, over all layers of the pool.
 *
 * Where a batch needs more experts of a layer than there are slots, they run one after the
 * other through those that there are, as through a ring: see fti_residency_plan.
 */
#ifndef FTI_RESIDENCY_H
#define FTI_RESIDENCY_H

#include "freetoken/device/base.h"

typedef struct fti_residency {
    int32_t *slot_of; /* [layers * experts] slot of an expert, or -1 */
    int32_t *owner;   /* [slots] layer * experts + expert, or -1 */
    int32_t *users;   /* [slots] how much work is under way that reads it: it is not given up */
    /* Slots in order of use, as a ring through the anchor [slots]: newer[anchor] is the one
     * used longest ago. */
    int32_t *newer; /* [slots + 1] */
    int32_t *older; /* [slots + 1] */
    uint32_t layers, experts, slots, reserved0;
} fti_residency;

/* int32 elements behind the five arrays together, in the order above. */
FTK_DEVICE_FN uint64_t fti_residency_elements(uint32_t layers, uint32_t experts, uint32_t slots) {
    return (uint64_t)layers * experts + 4 * (uint64_t)slots + 2;
}

/*
 * The experts that one layer of one step needs, in the order in which they run: first those
 * that lie in slots already, then the others, each group by rising id. Entry i >= ring goes
 * into the slot of entry i - ring, once that one has run.
 */
typedef struct fti_residency_entry {
    int32_t expert;
    int32_t slot;
} fti_residency_entry;

typedef struct fti_residency_plan {
    fti_residency_entry *entries; /* [experts] */
    uint32_t layer;
    uint32_t count;   /* distinct experts of the batch */
    uint32_t hits;    /* the first ones, which nothing has to be copied for */
    uint32_t ring;    /* slots of this layer and step, min(count, what is free of users) */
    uint32_t evicted; /* experts that lost their slot, those of this step included */
    uint32_t reserved0;
} fti_residency_plan;

/* ---- order of use ---- */

FTK_DEVICE_FN void fti_residency_unlink(const fti_residency *r, int32_t slot) {
    r->older[r->newer[slot]] = r->older[slot];
    r->newer[r->older[slot]] = r->newer[slot];
}

/* Makes `slot` the one used last. */
FTK_DEVICE_FN void fti_residency_push(const fti_residency *r, int32_t slot) {
    int32_t anchor = (int32_t)r->slots;
    r->newer[slot] = anchor;
    r->older[slot] = r->older[anchor];
    r->newer[r->older[anchor]] = slot;
    r->older[anchor] = slot;
}

FTK_DEVICE_FN void fti_residency_touch(const fti_residency *r, int32_t slot) {
    fti_residency_unlink(r, slot);
    fti_residency_push(r, slot);
}

/* ---- slots and experts ---- */

/* Lays the arrays into `memory` of fti_residency_elements elements; nothing is resident. */
FTK_DEVICE_FN fti_residency fti_residency_init(int32_t *memory, uint32_t layers, uint32_t experts,
                                               uint32_t slots) {
    fti_residency r;
    r.slot_of = memory;
    r.owner = r.slot_of + (uint64_t)layers * experts;
    r.users = r.owner + slots;
    r.newer = r.users + slots;
    r.older = r.newer + slots + 1;
    r.layers = layers;
    r.experts = experts;
    r.slots = slots;
    r.reserved0 = 0;
    for (uint64_t i = 0; i < (uint64_t)layers * experts; i++) r.slot_of[i] = -1;
    r.newer[slots] = r.older[slots] = (int32_t)slots;
    for (uint32_t s = 0; s < slots; s++) {
        r.owner[s] = -1;
        r.users[s] = 0;
        fti_residency_push(&r, (int32_t)s);
    }
    return r;
}

/* What lay in the slot lies nowhere now. */
FTK_DEVICE_FN void fti_residency_drop(const fti_residency *r, int32_t slot) {
    if (r->owner[slot] >= 0) r->slot_of[r->owner[slot]] = -1;
    r->owner[slot] = -1;
}

FTK_DEVICE_FN void fti_residency_own(const fti_residency *r, int32_t slot, int32_t which) {
    fti_residency_drop(r, slot);
    r->owner[slot] = which;
    r->slot_of[which] = slot;
}

/* A slot that somebody makes use of is passed over; `stop` and the anchor end the search. */
FTK_DEVICE_FN int32_t fti_residency_victim(const fti_residency *r, int32_t slot, int32_t stop) {
    while (slot != stop && slot != (int32_t)r->slots && r->users[slot] > 0) slot = r->newer[slot];
    return slot == stop ? (int32_t)r->slots : slot;
}

/* ---- a step's decision ---- */

/* The experts with rows, those in slots first; the slots of these become the newest. */
FTK_DEVICE_FN void fti_residency_look_up(const fti_residency *r, const int32_t *offsets,
                                         fti_residency_plan *plan) {
    const int32_t *slot_of = r->slot_of + (uint64_t)plan->layer * r->experts;
    plan->count = 0;
    for (uint32_t e = 0; e < r->experts; e++) {
        if (offsets[e + 1] == offsets[e] || slot_of[e] < 0) continue;
        plan->entries[plan->count].expert = (int32_t)e;
        plan->entries[plan->count++].slot = slot_of[e];
        fti_residency_touch(r, slot_of[e]);
    }
    plan->hits = plan->count;
    for (uint32_t e = 0; e < r->experts; e++) {
        if (offsets[e + 1] == offsets[e] || slot_of[e] >= 0) continue;
        plan->entries[plan->count].expert = (int32_t)e;
        plan->entries[plan->count++].slot = -1;
    }
}

FTK_DEVICE_FN void fti_residency_place(const fti_residency *r, fti_residency_plan *plan, uint32_t i,
                                       int32_t slot) {
    if (r->owner[slot] >= 0) plan->evicted++;
    fti_residency_own(r, slot, (int32_t)(plan->layer * r->experts) + plan->entries[i].expert);
    fti_residency_touch(r, slot);
    plan->entries[i].slot = slot;
}

/*
 * Decides for one layer of one step, whose rows of expert e are offsets[e] .. offsets[e + 1] -
 * 1: fills the plan, of which `entries` and `layer` are set, and makes the slots those
 * experts'. What a ring has passed over at its end is what its last entries are. With ring 0
 * and count above it every slot has users: wait for one of them and ask again.
 */
FTK_DEVICE_FN void fti_residency_decide(const fti_residency *r, const int32_t *offsets,
                                        fti_residency_plan *plan) {
    plan->evicted = 0;
    plan->reserved0 = 0;
    fti_residency_look_up(r, offsets, plan);
    /* What this layer has touched lies together at the new end: there the search stops. */
    int32_t stop = plan->hits ? plan->entries[0].slot : (int32_t)r->slots;
    int32_t slot = r->newer[r->slots];
    for (plan->ring = plan->hits; plan->ring < plan->count; plan->ring++) {
        slot = fti_residency_victim(r, slot, stop);
        if (slot == (int32_t)r->slots) break;
        int32_t next = r->newer[slot];
        fti_residency_place(r, plan, plan->ring, slot);
        if (plan->ring == 0) stop = slot;
        slot = next;
    }
    for (uint32_t i = plan->ring; plan->ring && i < plan->count; i++)
        fti_residency_place(r, plan, i, plan->entries[i - plan->ring].slot);
}

#endif
