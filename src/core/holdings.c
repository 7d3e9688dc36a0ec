/*
 * holdings.c: what of the engine's memory each request holds: pages of the KV cache, slots
 * of recurrent state, swap space on the host. All of it is taken at admission, or nothing;
 * all is given back in one place; between the two, a request may be preempted and come back,
 * and the prefix cache may lend it what others have computed.
 *
 * Numbers change hands under the lock. Bytes are moved without it, by the thread that runs
 * steps, on the engine's stream: so a slot or page that is given back right after a copy was
 * put on the stream cannot be overwritten before it was read.
 *
 * Prefixes are kept where it costs no step of its own: at the end of a prompt, at the end of
 * an answer, and where a step ends on the border of a page anyway. A prefill is cut in two at
 * the last border that a prompt has in common with one that came before: what two have had in
 * common, a third is likely to begin with. And in a dialogue, instead of the prompt's end, where
 * the answer is opened: the next turn has what was said, but not what opens the thinking.
 */
#include "core/service.h"

/* ---- life ---- */

static ftk_status create_swap(const ftk_engine *e, fti_service *s, ftk_error *err) {
    uint64_t page = 0;
    for (uint64_t b = 0; b < 2 * e->plan.kv_layer_count; b++)
        page += e->kv_blocks[b].bytes / e->budget.pages;
    fti_swap *swap = &s->swap;
    swap->unit_bytes = page ? page : e->plan.state_bytes;
    if (e->settings.swap == 0 || swap->unit_bytes == 0) return FTK_OK;
    uint64_t units = e->settings.swap / swap->unit_bytes;
    swap->state_units = (uint32_t)((e->plan.state_bytes + swap->unit_bytes - 1) / swap->unit_bytes);
    const unsigned long long least = (swap->state_units + 1) * swap->unit_bytes;
    if (units < swap->state_units + 1)
        return fti_fail(err, FTK_E_DOES_NOT_FIT,
                        "scheduler.swap: %llu bytes hold no request: one page of the KV cache and "
                        "the recurrent state take %llu; raise it, or remove it to preempt by "
                        "computing again",
                        (unsigned long long)e->settings.swap, least);
    if (units > INT32_MAX) units = INT32_MAX;
    swap->memory = fti_calloc((size_t)units, (size_t)swap->unit_bytes);
    if (!swap->memory || !fti_numbers_create(&s->units, (uint32_t)units))
        return fti_no_memory(err, units * swap->unit_bytes, "swap space (scheduler.swap)");
    return FTK_OK;
}

/* The widest need and the narrowest bank of all expert layers. */
static void count_experts(const ftk_engine *e, fti_service *s) {
    s->experts = UINT32_MAX;
    for (uint64_t i = 0; i < e->plan.bank_part_count; i++) {
        const ftk_bank_part *b = fti_plan_bank(&e->plan, i);
        if (b->used > s->used) s->used = b->used;
        if (b->experts < s->experts) s->experts = b->experts;
    }
}

ftk_status fti_holdings_create(ftk_engine *e, fti_service *s, ftk_error *err) {
    const bool stateless = e->plan.state_bytes == 0;
    s->sequences = e->settings.sequences;
    s->caches = e->settings.prefix_cache && (stateless || e->budget.snapshots > 0);
    s->overcommits = e->settings.overcommit;
    s->reserves = s->caches && !stateless && e->budget.snapshots >= s->sequences;
    s->victims = fti_calloc(s->sequences, sizeof *s->victims);
    if (!s->victims || !fti_numbers_create(&s->slots, s->sequences + e->budget.snapshots) ||
        !fti_numbers_create(&s->pages, e->budget.pages) ||
        !fti_prefix_create(&s->prefix, &s->pages, &s->slots, stateless))
        return fti_no_memory(err, (uint64_t)e->budget.pages * sizeof(fti_prefix_node),
                             "the accounts of the KV cache");
    count_experts(e, s);
    if (e->settings.prefix_cache && !s->caches)
        fti_log(e, FTK_LOG_WARNING,
                "no memory for snapshots of the recurrent state: prompts are computed whole; lower "
                "memory.kv_tokens (--ctx) or scheduler.max_running for a prefix cache");
    return create_swap(e, s, err);
}

void fti_holdings_destroy(fti_service *s) {
    fti_prefix_destroy(&s->prefix);
    fti_numbers_destroy(&s->slots);
    fti_numbers_destroy(&s->pages);
    fti_numbers_destroy(&s->units);
    fti_free(s->swap.memory);
    fti_free(s->victims);
}

ftk_status fti_holdings_check(const fti_service *s, const fti_request *r, ftk_error *err) {
    if (!s->overcommits || r->unit_limit <= s->units.count) return FTK_OK;
    const unsigned long long bytes = r->unit_limit * s->swap.unit_bytes;
    return fti_fail(err, FTK_E_DOES_NOT_FIT,
                    "the request may come to hold %u pages and %u pages' worth of recurrent state "
                    "(%llu bytes), the swap space %u: shorten the prompt, lower max_tokens or "
                    "raise scheduler.swap",
                    r->page_limit, s->swap.state_units, bytes, s->units.count);
}

/* ---- what is needed, what is there ---- */

/* With overcommit those of the tokens that there are and of the next; the rest is found when
 * it comes to that. */
static uint32_t pages_needed(const ftk_engine *e, const fti_request *r) {
    if (!e->service->overcommits) return r->page_limit;
    uint32_t pages = fti_pages_for(fti_request_known(r) + 1);
    return pages < r->page_limit ? pages : r->page_limit;
}

/* Where the snapshot is made that every request has a slot for. */
static uint64_t snapshot_place(const fti_request *r) {
    return r->said ? r->said : r->counts.prompt;
}

static void state_needs(const ftk_engine *e, const fti_service *s, fti_request *r) {
    uint64_t run = r->peak > r->counts.computed ? r->peak : r->counts.computed;
    if (r->matched && r->match.tokens > run) run = r->match.tokens;
    bool reserve = s->reserves && run < snapshot_place(r);
    bool swap = s->overcommits && r->unit_count == 0;
    r->waiter.needs = (fti_room){.slots = 1 + reserve,
                                 .pages = pages_needed(e, r) - (r->matched ? r->match.shared : 0),
                                 .swap = swap ? r->unit_limit : 0,
                                 .experts = s->used};
}

fti_room fti_holdings_room(const fti_service *s) {
    uint32_t pages, slots;
    fti_prefix_evictable(&s->prefix, &pages, &slots);
    return (fti_room){.slots = s->running < s->sequences ? s->slots.available + slots : 0,
                      .pages = s->pages.available + pages,
                      .swap = s->units.available,
                      .experts = s->experts};
}

void fti_holdings_wait(ftk_engine *e, fti_request *r) {
    r->state = FTI_REQUEST_WAITING;
    r->waiter.arrival = r->id;
    state_needs(e, e->service, r);
    fti_queue_add(&e->service->waiting, &r->waiter);
}

/* ---- prefixes ---- */

static void give_one(fti_numbers *pool, int32_t *number) {
    if (*number >= 0) (void)fti_numbers_give(pool, number, 1);
    *number = -1;
}

/* Becomes a holder of what can be gone on from. At least one token must be run: its logits
 * are what the next one is chosen from. */
static void hold_match(ftk_engine *e, fti_request *r) {
    fti_service *s = e->service;
    if (!s->caches || r->swapped) return;
    if (r->match.version != s->prefix.version)
        fti_prefix_find(&s->prefix, r->ids, fti_request_known(r) - 1, &r->match);
    if (!r->match.node) return;
    fti_prefix_hold(&s->prefix, &r->match, r->pages);
    r->matched = true;
}

/* What was lent until it has been copied. */
static void give_lent(fti_service *s, fti_request *r) {
    if (!r->matched) return;
    give_one(&s->pages, &r->match.tail);
    give_one(&s->slots, &r->match.slot);
    r->matched = false;
    r->match.version = 0;
}

static void drop_match(ftk_engine *e, fti_request *r) {
    fti_service *s = e->service;
    if (r->matched) (void)fti_numbers_give(&s->pages, r->pages, r->match.shared);
    fti_prefix_match found = r->match;
    give_lent(s, r);
    r->match = found; /* for the next time, if nothing changes */
    state_needs(e, s, r);
}

static void give_units(fti_service *s, fti_request *r) {
    (void)fti_numbers_give(&s->units, r->units, r->unit_count);
    r->unit_count = 0;
}

/* ---- admission ---- */

/* What the queue has let start fits: taking it cannot fail. */
static void take(ftk_engine *e, fti_request *r) {
    fti_service *s = e->service;
    const fti_room *n = &r->waiter.needs;
    uint32_t shared = r->matched ? r->match.shared : 0;
    (void)fti_prefix_evict(&s->prefix, n->pages, n->slots);
    (void)fti_numbers_take(&s->pages, n->pages, r->pages + shared);
    r->page_count = shared + n->pages;
    (void)fti_numbers_take(&s->slots, 1, &r->slot);
    if (n->slots > 1) (void)fti_numbers_take(&s->slots, 1, &r->reserve);
    (void)fti_numbers_take(&s->units, n->swap, r->units);
    r->unit_count += n->swap;
    r->state = FTI_REQUEST_RUNNING;
    s->runners[s->running++] = r;
}

static bool let_start(fti_service *s) {
    const fti_room room = fti_holdings_room(s);
    return fti_queue_start(&s->waiting, &room) != NULL;
}

/* The one whose turn it is, if it fits. What is lent to it can be one page and one slot more
 * than it would need without: if these are what lacks, it goes without a snapshot of its
 * own, or else starts from nothing. */
static fti_request *start_next(ftk_engine *e) {
    fti_service *s = e->service;
    fti_waiter *next = fti_queue_next(&s->waiting);
    if (!next) return NULL;
    fti_request *r = fti_request_of(next);
    hold_match(e, r);
    state_needs(e, s, r);
    bool started = let_start(s);
    if (!started && r->matched) {
        next->needs.slots = 1;
        started = let_start(s);
    }
    if (!started) {
        drop_match(e, r);
        started = let_start(s);
    }
    if (started) take(e, r);
    return started ? r : NULL;
}

static uint32_t lacking(uint32_t need, uint32_t room) {
    return need > room ? need - room : 0;
}

/* Not fewer than one where nobody more may run, however many slots are free. */
static uint32_t lacking_slots(const fti_service *s, uint32_t need) {
    uint32_t pages, slots;
    fti_prefix_evictable(&s->prefix, &pages, &slots);
    uint32_t n = lacking(need, s->slots.available + slots);
    return n == 0 && s->running == s->sequences ? 1 : n;
}

/* Pages that come free, or only the prefix cache holds, without this request. */
static uint32_t own_pages(const fti_service *s, const fti_request *r) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->page_count; i++)
        n += s->pages.holders[r->pages[i]] == 1 + s->prefix.page_nodes[r->pages[i]];
    return n;
}

/* One that has waited longest, or made room often enough, is not pushed aside any more: so
 * that nobody starves, neither waiting nor by being started in vain. */
static int32_t rank_of(const fti_request *r) {
    bool settled = r->waiter.overdue || r->preemptions >= FTI_OVERTAKINGS;
    return settled ? INT32_MAX : r->waiter.priority;
}

static void list_victims(const fti_service *s) {
    for (uint32_t i = 0; i < s->running; i++) {
        const fti_request *r = s->runners[i];
        s->victims[i] = (fti_victim){
            .priority = rank_of(r), .pages = own_pages(s, r), .slots = 1 + (r->reserve >= 0)};
    }
}

/* Marks whom the next one in turn may push aside, if that is enough for it to start. */
static bool make_way(const ftk_engine *e) {
    const fti_service *s = e->service;
    const fti_waiter *next = fti_queue_next(&s->waiting);
    if (!e->settings.preempt || !next || s->running == 0) return false;
    const fti_room room = fti_holdings_room(s);
    if (next->needs.swap > room.swap || next->needs.experts > room.experts) return false;
    list_victims(s);
    return fti_choose_victims(s->victims, s->running, next->priority,
                              lacking(next->needs.pages, room.pages),
                              lacking_slots(s, next->needs.slots));
}

/* ---- filling ---- */

static ftk_status restore(ftk_engine *e, const fti_request *r, ftk_error *err) {
    const fti_prefix_match *m = &r->match;
    if (m->tail >= 0) FTI_TRY(fti_copy_page(e, r->pages[m->shared], m->tail, err));
    return m->slot >= 0 ? fti_copy_state(e, r->slot, m->slot, err)
                        : fti_clear_state(e, r->slot, err);
}

static ftk_status fill(ftk_engine *e, const fti_request *r, ftk_error *err) {
    if (r->swapped)
        return fti_swap_in(e, &e->service->swap, r->units, r->pages,
                           fti_pages_for(r->counts.computed), r->slot, err);
    return r->matched ? restore(e, r, err) : fti_clear_state(e, r->slot, err);
}

/* Where the prefill is to stop next for a moment: since others have come that far too, or where
 * a dialogue's next turn will go on. */
static uint64_t cut_of(const fti_service *s, const fti_request *r) {
    const uint64_t places[] = {r->match.common, r->said};
    uint64_t cut = 0;
    if (!s->caches || s->prefix.stateless) return 0;
    for (size_t i = 0; i < FTI_COUNT(places); i++)
        if (places[i] > r->counts.computed && (cut == 0 || places[i] < cut)) cut = places[i];
    return cut;
}

static void settle_in(fti_service *s, fti_request *r) {
    if (r->matched) {
        r->counts.computed = r->match.tokens;
        r->reused += r->match.tokens;
        s->stats.reused += r->match.tokens;
    }
    if (!r->swapped) r->counts.cut = cut_of(s, r);
    if (r->swapped && !s->overcommits) give_units(s, r);
    r->swapped = false;
    give_lent(s, r);
    if (r->started == 0) {
        r->started = fti_now();
        fti_times_add(&s->stats.queue, r->started - r->submitted);
    }
}

/* ---- preemption ---- */

/* Swap space for what has run, if it was not reserved. */
static bool take_units(fti_service *s, fti_request *r) {
    uint32_t n = fti_pages_for(r->counts.computed) + s->swap.state_units;
    if (s->units.count == 0 || r->counts.computed == 0) return false;
    if (r->unit_count > 0) return true;
    if (!fti_numbers_take(&s->units, n, r->units)) return false;
    r->unit_count = n;
    return true;
}

static void remove_runner(fti_service *s, const fti_request *gone) {
    uint32_t at = 0;
    while (s->runners[at] != gone) at++;
    for (s->running--; at < s->running; at++) s->runners[at] = s->runners[at + 1];
}

/* What makes it a running request. */
static void leave(fti_service *s, fti_request *r, bool keep) {
    if (r->matched) give_lent(s, r);
    if (keep && s->caches && r->counts.computed > 0 &&
        fti_prefix_add(&s->prefix, r->ids, r->counts.computed, r->pages,
                       s->prefix.stateless ? -1 : r->slot))
        r->slot = -1;
    give_one(&s->slots, &r->slot);
    give_one(&s->slots, &r->reserve);
    (void)fti_numbers_give(&s->pages, r->pages, r->page_count);
    r->page_count = 0;
    remove_runner(s, r);
}

/* Takes a request off the machine, to go on later: its memory goes to swap space, or to the
 * prefix cache, and what that forgets is computed again. */
static void preempt(ftk_engine *e, fti_request *r) {
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    bool swap = take_units(s, r);
    pthread_mutex_unlock(&s->lock);
    ftk_error failure = FTK_ERROR_INIT;
    if (swap)
        swap = fti_swap_out(e, &s->swap, r->units, r->pages, fti_pages_for(r->counts.computed),
                            r->slot, &failure) == FTK_OK;
    pthread_mutex_lock(&s->lock);
    leave(s, r, !swap);
    r->swapped = swap;
    if (!swap) {
        if (!s->overcommits) give_units(s, r);
        if (r->counts.computed > r->peak) r->peak = r->counts.computed;
        r->counts.computed = 0;
    }
    s->stats.preempted[swap]++;
    r->preemptions++;
    fti_holdings_wait(e, r);
    pthread_mutex_unlock(&s->lock);
}

static void preempt_marked(ftk_engine *e) {
    fti_service *s = e->service;
    /* From the last on, since those behind one that leaves move up. */
    for (uint32_t i = s->running; i-- > 0;)
        if (s->victims[i].chosen) preempt(e, s->runners[i]);
}

static void count_held(fti_service *s) {
    const fti_waiter *next = fti_queue_next(&s->waiting);
    const fti_room room = fti_holdings_room(s);
    if (next) s->stats.held[fti_queue_reason(&s->waiting, next, &room)]++;
}

void fti_holdings_admit(ftk_engine *e,
                        void (*failed)(ftk_engine *, fti_request *, const ftk_error *)) {
    fti_service *s = e->service;
    for (bool go_on = true; go_on;) {
        pthread_mutex_lock(&s->lock);
        fti_request *r = start_next(e);
        bool marked = !r && make_way(e);
        if (!r && !marked) count_held(s);
        pthread_mutex_unlock(&s->lock);
        go_on = r || marked;
        if (marked) preempt_marked(e);
        if (!r) continue;
        ftk_error failure = FTK_ERROR_INIT;
        ftk_status status = fill(e, r, &failure);
        pthread_mutex_lock(&s->lock);
        settle_in(s, r);
        pthread_mutex_unlock(&s->lock);
        if (status != FTK_OK) failed(e, r, &failure);
    }
}

/* ---- growth ---- */

/* The last admitted of the lowest rank. */
static fti_request *weakest(const fti_service *s) {
    fti_request *found = s->runners[0];
    for (uint32_t i = 1; i < s->running; i++)
        if (rank_of(s->runners[i]) <= rank_of(found)) found = s->runners[i];
    return found;
}

/* Forgets prefixes for `count` pages only if that is enough. */
static bool take_pages(fti_service *s, uint32_t count, int32_t *out) {
    uint32_t pages, slots;
    fti_prefix_evictable(&s->prefix, &pages, &slots);
    return s->pages.available + pages >= count && fti_prefix_evict(&s->prefix, count, 0) &&
           fti_numbers_take(&s->pages, count, out);
}

bool fti_holdings_grow(ftk_engine *e, fti_request *r, uint64_t positions) {
    fti_service *s = e->service;
    uint32_t wanted = fti_pages_for(positions);
    if (wanted <= r->page_count) return true;
    pthread_mutex_lock(&s->lock);
    uint32_t more = wanted - r->page_count;
    bool grown = take_pages(s, more, r->pages + r->page_count);
    if (grown) r->page_count = wanted;
    fti_request *victim = grown ? NULL : weakest(s);
    pthread_mutex_unlock(&s->lock);
    if (victim) preempt(e, victim);
    return grown;
}

/* ---- snapshots ---- */

/* A slot for the state that a request has now, or -1 if it is not worth one. */
static int32_t snapshot_slot(fti_service *s, fti_request *r, uint64_t before) {
    const uint64_t at = r->counts.computed, prompt = r->counts.prompt;
    int32_t slot = -1;
    if (at == snapshot_place(r) && r->reserve >= 0) {
        slot = r->reserve;
        r->reserve = -1;
        return slot;
    }
    bool cut = at == r->counts.cut && before < at;
    bool border = at < prompt && at > r->peak && at % FTI_PAGE_TOKENS == 0;
    bool end = at == prompt && r->said == 0 && at > r->peak;
    if (cut || end) (void)fti_prefix_evict(&s->prefix, 0, 1);
    if (cut || end || border) (void)fti_numbers_take(&s->slots, 1, &slot);
    return slot;
}

void fti_holdings_snapshot(ftk_engine *e, fti_request *r, uint64_t before) {
    fti_service *s = e->service;
    const uint64_t at = r->counts.computed;
    if (!s->caches || (at > r->counts.prompt && at != r->counts.cut)) return;
    pthread_mutex_lock(&s->lock);
    int32_t slot = s->prefix.stateless ? -1 : snapshot_slot(s, r, before);
    if (at == r->counts.cut) r->counts.cut = cut_of(s, r);
    if (s->prefix.stateless && at == r->counts.prompt)
        (void)fti_prefix_add(&s->prefix, r->ids, at, r->pages, -1);
    pthread_mutex_unlock(&s->lock);
    if (slot < 0) return;
    ftk_error failure = FTK_ERROR_INIT;
    bool copied = fti_copy_state(e, slot, r->slot, &failure) == FTK_OK;
    pthread_mutex_lock(&s->lock);
    if (!copied || !fti_prefix_add(&s->prefix, r->ids, at, r->pages, slot))
        give_one(&s->slots, &slot);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the end ---- */

void fti_holdings_release(fti_service *s, fti_request *r, bool keep) {
    if (!keep && r->counts.computed > 0)
        fti_prefix_forget(&s->prefix, r->ids, fti_request_known(r), r->match.tokens);
    if (r->state == FTI_REQUEST_RUNNING)
        leave(s, r, keep);
    else
        fti_queue_remove(&s->waiting, &r->waiter);
    give_units(s, r);
    r->state = FTI_REQUEST_ENDED;
}

/* ---- conservation ---- */

static uint32_t count_in(const int32_t *numbers, uint32_t count, int32_t number) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++)
        if (numbers[i] == number) n++;
    return n;
}

/* How many say that they hold a number, to be compared with what the pool says. */
static uint32_t claims_on(const fti_service *s, const fti_numbers *pool, int32_t number) {
    uint32_t n = 0;
    for (const fti_request *r = s->requests; r; r = r->next) {
        const int32_t slots[] = {r->slot, r->reserve};
        if (pool == &s->pages) n += count_in(r->pages, r->page_count, number);
        if (pool == &s->units) n += count_in(r->units, r->unit_count, number);
        if (pool == &s->slots) n += count_in(slots, 2, number);
    }
    for (const fti_prefix_node *node = s->prefix.oldest; node; node = node->newer) {
        if (pool == &s->pages) n += count_in(&node->page, 1, number);
        if (pool == &s->slots) n += count_in(&node->slot, 1, number);
    }
    return n;
}

static bool conserved(const fti_service *s, const fti_numbers *pool) {
    uint32_t free = 0;
    for (uint32_t i = 0; i < pool->count; i++) {
        if (claims_on(s, pool, (int32_t)i) != pool->holders[i]) return false;
        free += pool->holders[i] == 0;
    }
    for (uint32_t i = 0; i < pool->available; i++)
        if (pool->holders[pool->free[i]] != 0) return false;
    return free == pool->available;
}

const char *fti_holdings_fault(const fti_service *s) {
    if (!conserved(s, &s->pages)) return "pages of the KV cache";
    if (!conserved(s, &s->slots)) return "slots of recurrent state";
    return conserved(s, &s->units) ? NULL : "units of swap space";
}
