/* ladder.c: see ladder.h. */
#include "sched/ladder.h"

/* stdio belongs to no decision; texts with numbers go through the messages of base.h. */
static void say(fti_ladder *ladder, const char *format, ...) FTI_PRINTF(2, 3);
static void say(fti_ladder *ladder, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fti_message(ladder->reason, sizeof ladder->reason, format, args);
    va_end(args);
}

/* A plan in the making. */
typedef struct frame {
    const fti_slot_need *pools;
    uint32_t pool_count;
    fti_budget_request request; /* with the fewest slots */
    uint64_t page_bytes;
    uint64_t fixed; /* neither KV cache nor slots */
    uint64_t top;   /* slots of the largest pool: the unit of shares */
    uint64_t minimum;
} frame;

/* ---- slots ---- */

/* Slots of a pool of which t / top are to be resident. Grows with t by at most one a time. */
static uint64_t share_of(const frame *f, uint32_t pool, uint64_t t) {
    const fti_slot_need *p = &f->pools[pool];
    uint64_t share = p->most * t / f->top;
    return share > p->least ? share : p->least;
}

static uint64_t share_bytes(const frame *f, uint64_t t) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < f->pool_count; i++)
        sum += f->pools[i].fixed_bytes + share_of(f, i, t) * f->pools[i].slot_bytes;
    return sum;
}

/* Of the pools that the next larger share gives a slot, the one with the smallest; else
 * pool_count. */
static uint32_t next_pool(const frame *f, uint64_t t, const fti_rung *rung) {
    uint32_t best = f->pool_count;
    for (uint32_t i = 0; t < f->top && i < f->pool_count; i++) {
        if (share_of(f, i, t + 1) <= rung->slots[i]) continue;
        if (best == f->pool_count || f->pools[i].slot_bytes < f->pools[best].slot_bytes) best = i;
    }
    return best;
}

/* The largest equal share that fits into `bytes`, which hold the least; then a part of the next
 * larger one, smallest slots first, up to the first that does not fit. So more bytes never
 * mean fewer slots of a pool. */
static void spread(const frame *f, uint64_t bytes, fti_rung *rung) {
    uint64_t t = 0, beyond = f->top + 1;
    while (beyond - t > 1) {
        uint64_t middle = t + (beyond - t) / 2;
        *(share_bytes(f, middle) <= bytes ? &t : &beyond) = middle;
    }
    rung->expert_slots = share_bytes(f, t);
    for (uint32_t i = 0; i < f->pool_count; i++) rung->slots[i] = (uint32_t)share_of(f, i, t);
    for (;;) {
        uint32_t pool = next_pool(f, t, rung);
        if (pool == f->pool_count || f->pools[pool].slot_bytes > bytes - rung->expert_slots) return;
        rung->slots[pool]++;
        rung->expert_slots += f->pools[pool].slot_bytes;
    }
}

/* ---- the frame ---- */

/* False if sums may pass 64 bits, or slots 31: residency numbers them by int32. */
static bool measure_pools(frame *f, uint64_t *least_bytes) {
    uint64_t all_bytes = 0, bytes;
    *least_bytes = 0;
    f->top = 0;
    for (uint32_t i = 0; i < f->pool_count; i++) {
        const fti_slot_need *p = &f->pools[i];
        if (p->most > INT32_MAX || p->least > p->most || p->least == 0) return false;
        if (!fti_mul_u64(p->most, p->slot_bytes, &bytes) ||
            !fti_add_u64(bytes, p->fixed_bytes, &bytes) ||
            !fti_add_u64(all_bytes, bytes, &all_bytes))
            return false;
        *least_bytes += p->fixed_bytes + p->least * p->slot_bytes;
        if (p->most > f->top) f->top = p->most;
    }
    return true;
}

static uint64_t wished_pages(const fti_budget_request *r) {
    return ((uint64_t)fti_budget_wish(r) + r->page_tokens - 1) / r->page_tokens;
}

/* What was asked for; else a page, without which nothing runs. */
static uint64_t least_pages(const fti_budget_request *r) {
    return r->kv_tokens ? wished_pages(r) : 1;
}

/* Of the last rung, where they fit: a request of usual length, or all that is wished for. */
static uint64_t usual_pages(const fti_budget_request *r) {
    uint64_t wish = wished_pages(r);
    uint64_t usual = ((uint64_t)FTI_LADDER_LEAST_TOKENS + r->page_tokens - 1) / r->page_tokens;
    return r->kv_tokens || wish < usual ? wish : usual;
}

static ftk_status begin(const fti_ladder_request *q, frame *f, ftk_error *err) {
    uint64_t least_bytes, kv;
    *f = (frame){.pools = q->pools, .pool_count = q->pool_count, .request = q->whole};
    fti_budget_request *r = &f->request;
    r->weights_mapped = 0;
    r->weights_allocated = q->dense_bytes;
    r->expert_slots = 0;
    if (q->pool_count > FTI_LADDER_POOLS || !measure_pools(f, &least_bytes) ||
        !fti_budget_fixed(r, &f->fixed) ||
        !fti_mul_u64(r->kv_bytes_per_token, r->page_tokens, &f->page_bytes) ||
        !fti_mul_u64(f->page_bytes, wished_pages(r), &kv) || !fti_add_u64(kv, f->fixed, &kv) ||
        !fti_add_u64(kv, least_bytes, &kv))
        return fti_fail(err, FTK_E_DOES_NOT_FIT,
                        "does not fit: more than %u shapes of experts, or sizes that no machine "
                        "has: set moe.residency to off",
                        FTI_LADDER_POOLS);
    r->expert_slots = least_bytes;
    f->minimum = f->fixed + least_bytes + least_pages(r) * f->page_bytes;
    return FTK_OK;
}

/* ---- rungs ---- */

static uint32_t choose_snapshots(const fti_budget_request *r, uint64_t left) {
    if (!r->fewer_snapshots || r->snapshot_bytes == 0) return r->snapshots;
    uint64_t room = left / 8 / r->snapshot_bytes;
    return room < r->snapshots ? (uint32_t)room : r->snapshots;
}

static bool same_slots(const frame *f, const fti_rung *a, const fti_rung *b) {
    return memcmp(a->slots, b->slots, f->pool_count * sizeof a->slots[0]) == 0;
}

/* A rung that would give pages back for no slot is none. */
static void add_rung(const frame *f, uint64_t budget, uint64_t pages, fti_ladder *ladder) {
    fti_rung *rung = &ladder->rungs[ladder->rung_count];
    const fti_budget_request *r = &f->request;
    uint64_t tokens = pages * r->page_tokens;
    uint32_t cap = r->kv_tokens ? r->kv_tokens : r->model_context;
    *rung = (fti_rung){.kv_cache = pages * f->page_bytes,
                       .pages = (uint32_t)pages,
                       .context = tokens < cap ? (uint32_t)tokens : cap};
    spread(f, budget - f->fixed - rung->kv_cache, rung);
    rung->total = f->fixed + rung->kv_cache + rung->expert_slots;
    if (ladder->rung_count > 0 && same_slots(f, rung - 1, rung)) return;
    ladder->rung_count++;
}

static void make_rungs(const frame *f, uint64_t budget, fti_ladder *ladder) {
    uint64_t room = budget - f->fixed - f->request.expert_slots;
    uint64_t fits = f->page_bytes ? room / f->page_bytes : UINT64_MAX;
    uint64_t wish = wished_pages(&f->request);
    add_rung(f, budget, wish < fits ? wish : fits, ladder);
    uint64_t usual = usual_pages(&f->request);
    for (uint64_t pages = wish / 2; f->page_bytes && pages > usual; pages /= 2)
        if (pages < ladder->rungs[0].pages) add_rung(f, budget, pages, ladder);
    if (usual < ladder->rungs[0].pages) add_rung(f, budget, usual, ladder);
    const fti_rung *last = &ladder->rungs[ladder->rung_count - 1];
    while (ladder->rungs[ladder->chosen].expert_slots < last->expert_slots / 2) ladder->chosen++;
}

static ftk_status plan_slots(const fti_ladder_request *q, fti_budget *plan, fti_ladder *ladder,
                             ftk_error *err) {
    frame f;
    *ladder = (fti_ladder){.resident = true};
    FTI_TRY(begin(q, &f, err));
    fti_budget_request *r = &f.request;
    uint64_t budget = fti_budget_spendable(r);
    ladder->minimum = f.minimum;
    if (budget < f.minimum) return fti_budget_refuse(r, r->kv_tokens ? r->kv_tokens : 1, err);
    uint32_t snapshots = choose_snapshots(r, budget - f.minimum);
    uint64_t snapshot_bytes = r->fewer_snapshots ? snapshots * r->snapshot_bytes : 0;
    f.fixed += snapshot_bytes;
    make_rungs(&f, budget, ladder);
    const fti_rung *rung = &ladder->rungs[ladder->chosen];
    *plan = (fti_budget){.weights_allocated = r->weights_allocated,
                         .kv_cache = rung->kv_cache,
                         .recurrent_state = f.fixed - r->weights_allocated - r->workspace -
                                            r->step_buffers,
                         .expert_slots = rung->expert_slots,
                         .workspace = r->workspace,
                         .step_buffers = r->step_buffers,
                         .total = rung->total,
                         .budget = budget,
                         .available = r->available,
                         .context = rung->context,
                         .pages = rung->pages,
                         .snapshots = snapshots};
    return FTK_OK;
}

/* ---- slots or not ---- */

/* 0 if it passes 64 bits. */
static uint64_t whole_minimum(const fti_budget_request *r) {
    uint64_t fixed, bytes;
    if (!fti_budget_fixed(r, &fixed) || !fti_mul_u64(r->kv_bytes_per_token, r->page_tokens, &bytes))
        return 0;
    return fti_mul_u64(bytes, least_pages(r), &bytes) && fti_add_u64(bytes, fixed, &bytes) ? bytes
                                                                                           : 0;
}

static ftk_status plan_whole(const fti_ladder_request *q, fti_budget *plan, fti_ladder *ladder,
                             ftk_error *err) {
    *ladder = (fti_ladder){.minimum = whole_minimum(&q->whole)};
    return fti_budget_plan(&q->whole, plan, err);
}

/* Everything, mapped or not, with the whole context that is wished for. */
static bool all_fits(const fti_ladder_request *q, const fti_budget *plan) {
    uint64_t sum;
    return plan->pages >= wished_pages(&q->whole) &&
           fti_add_u64(plan->total, plan->weights_mapped, &sum) && sum <= plan->budget;
}

/* Slots would have been wanted, but experts stay mapped: why. */
static void say_mapped(fti_ladder *ladder, const fti_ladder *slots, ftk_status status,
                       const fti_budget *plan, const char *refused) {
    if (status == FTK_OK)
        say(ladder, "the file exceeds the budget, but slots would leave a context of %u: mapped",
            plan->context);
    else if (slots->minimum)
        say(ladder,
            "the file exceeds the budget, but so do the fewest slots (%llu bytes needed): mapped",
            (unsigned long long)slots->minimum);
    else
        say(ladder, "the file exceeds the budget, but experts have no slots: %-s", refused);
}

static ftk_status plan_auto(const fti_ladder_request *q, fti_budget *plan, fti_ladder *ladder,
                            ftk_error *err) {
    ftk_error refused = FTK_ERROR_INIT, inner = FTK_ERROR_INIT;
    fti_budget mapped;
    ftk_status whole = fti_budget_plan(&q->whole, &mapped, &refused);
    uint64_t minimum = whole_minimum(&q->whole);
    ftk_status slots = FTK_OK;
    bool all = whole == FTK_OK && all_fits(q, &mapped);
    if (!all) slots = plan_slots(q, plan, ladder, &inner);
    /* A context that no request fits into is no better than a slow one. */
    if (!all && slots == FTK_OK && (whole != FTK_OK || plan->pages >= usual_pages(&q->whole))) {
        say(ladder, "the file and the rest exceed the budget");
        return FTK_OK;
    }
    if (whole != FTK_OK) {
        /* Whichever would do with less is the way out. */
        bool less = ladder->minimum == 0 || (minimum && minimum <= ladder->minimum);
        if (less) ladder->minimum = minimum;
        return fti_fail(err, less ? whole : slots, "%-s", less ? refused.message : inner.message);
    }
    fti_ladder kept = {.minimum = minimum};
    if (all)
        say(&kept, "the whole file and the rest fit the budget");
    else
        say_mapped(&kept, ladder, slots, plan, inner.message);
    *ladder = kept;
    *plan = mapped;
    return FTK_OK;
}

ftk_status fti_ladder_plan(const fti_ladder_request *q, fti_budget *plan, fti_ladder *ladder,
                           ftk_error *err) {
    FTI_TRY(fti_budget_context(&q->whole, err));
    if (q->pool_count > 0 && q->residency == FTI_AUTO) return plan_auto(q, plan, ladder, err);
    if (q->pool_count > 0 && q->residency == FTI_ON) {
        FTI_TRY(plan_slots(q, plan, ladder, err));
        say(ladder, "moe.residency is on");
        return FTK_OK;
    }
    FTI_TRY(plan_whole(q, plan, ladder, err));
    say(ladder, "%s", q->pool_count == 0 ? "the model has no experts" : "moe.residency is off");
    return FTK_OK;
}

/* ---- at run time ---- */

static uint32_t add_capped(uint32_t a, uint64_t b, uint32_t cap) {
    uint64_t sum = a + b;
    return sum < cap ? (uint32_t)sum : cap;
}

static void begin_calm(fti_ladder_state *s) {
    s->quiet = s->peak = 0;
    s->experts = s->misses = 0;
}

static void note(fti_ladder_state *s, const fti_ladder_seen *seen) {
    uint64_t more = seen->short_steps + (uint64_t)seen->preempted * FTI_LADDER_PREEMPTION;
    uint32_t less = seen->steps - seen->short_steps;
    s->rested += seen->steps;
    /* Capped: a long shortage that ends is over as soon as a short one. */
    s->shortage = add_capped(s->shortage > less ? s->shortage - less : 0, more,
                             FTI_LADDER_SHORTAGE);
    if (more > 0) {
        begin_calm(s);
    } else {
        uint32_t most = seen->peak_pages > seen->held_pages ? seen->peak_pages : seen->held_pages;
        s->quiet = add_capped(s->quiet, seen->steps, UINT32_MAX);
        if (most > s->peak) s->peak = most;
    }
    s->experts += seen->experts;
    s->misses += seen->misses;
    if (s->shrunk && s->rested >= 8 * (uint64_t)s->calm) {
        s->shrunk = false;
        s->calm = FTI_LADDER_CALM;
    }
}

/* The lowest rung above that has the pages, or the highest of all. */
static uint32_t rung_with(const fti_ladder *ladder, uint32_t below, uint64_t pages) {
    uint32_t rung = below;
    while (rung > 0 && (rung == below || ladder->rungs[rung].pages < pages)) rung--;
    return rung;
}

/* At the end of a period of calm. */
static bool may_shrink(const fti_ladder *ladder, const fti_ladder_state *s) {
    if (s->rung + 1 >= ladder->rung_count || s->misses <= s->experts / 64) return false;
    return 4 * (uint64_t)s->peak <= 3 * (uint64_t)ladder->rungs[s->rung + 1].pages;
}

uint32_t fti_ladder_step(const fti_ladder *ladder, fti_ladder_state *s,
                         const fti_ladder_seen *seen) {
    uint32_t rung = s->rung;
    note(s, seen);
    if (s->rested < FTI_LADDER_REST) return rung;
    if (s->shortage >= FTI_LADDER_SHORTAGE) {
        rung = rung_with(ladder, rung, (uint64_t)seen->held_pages + seen->wanted_pages);
    } else if (s->quiet >= s->calm) {
        if (may_shrink(ladder, s)) rung++;
        begin_calm(s);
    }
    if (rung != s->rung) s->rested = 0;
    return rung;
}

void fti_ladder_moved(fti_ladder_state *s, uint32_t rung) {
    if (rung < s->rung && s->shrunk && s->calm < FTI_LADDER_LONG_CALM) s->calm *= 2;
    s->shrunk = rung > s->rung;
    s->rung = rung;
    s->rested = 0;
    s->shortage = 0;
    begin_calm(s);
}
