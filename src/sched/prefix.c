/* prefix.c: see prefix.h. */
#include "sched/prefix.h"

/* ---- life ---- */

bool fti_prefix_create(fti_prefix *t, fti_numbers *pages, fti_numbers *slots, bool stateless) {
    *t = (fti_prefix){.pages = pages, .slots = slots, .stateless = stateless, .version = 1};
    /* A whole page is one node's; parts have a snapshot each, or replace one another. */
    size_t most = (size_t)pages->count + slots->count;
    t->nodes = fti_calloc(most, sizeof *t->nodes);
    t->page_nodes = fti_calloc(pages->count, sizeof *t->page_nodes);
    t->slot_nodes = fti_calloc(slots->count, sizeof *t->slot_nodes);
    if (!t->nodes || !t->page_nodes || !t->slot_nodes) {
        fti_prefix_destroy(t);
        return false;
    }
    for (size_t i = most; i-- > 0;) {
        t->nodes[i].after = t->unused;
        t->unused = &t->nodes[i];
    }
    return true;
}

void fti_prefix_destroy(fti_prefix *t) {
    fti_free(t->nodes);
    fti_free(t->page_nodes);
    fti_free(t->slot_nodes);
    *t = (fti_prefix){0};
}

/* ---- order of use ---- */

static void leave_order(fti_prefix *t, fti_prefix_node *n) {
    *(n->newer ? &n->newer->older : &t->newest) = n->older;
    *(n->older ? &n->older->newer : &t->oldest) = n->newer;
}

static void enter_order(fti_prefix *t, fti_prefix_node *n) {
    n->newer = NULL;
    n->older = t->newest;
    *(n->older ? &n->older->newer : &t->oldest) = n;
    t->newest = n;
}

/* From the node up, so that ancestors are newer: then the oldest of all is always a leaf. */
static void touch(fti_prefix *t, fti_prefix_node *n) {
    for (; n != &t->root; n = n->parent) {
        leave_order(t, n);
        enter_order(t, n);
    }
}

/* ---- forgetting ---- */

static void drop_slot(fti_prefix *t, fti_prefix_node *n) {
    if (n->slot < 0) return;
    t->slot_nodes[n->slot]--;
    (void)fti_numbers_give(t->slots, &n->slot, 1);
    n->slot = -1;
    t->forgotten_snapshots++;
    t->version++;
}

static void remove_leaf(fti_prefix *t, fti_prefix_node *n) {
    drop_slot(t, n);
    *(n->before ? &n->before->after : &n->parent->child) = n->after;
    if (n->after) n->after->before = n->before;
    leave_order(t, n);
    t->page_nodes[n->page]--;
    (void)fti_numbers_give(t->pages, &n->page, 1);
    t->forgotten_pages++;
    t->count--;
    t->version++;
    n->after = t->unused;
    t->unused = n;
}

static bool useless(const fti_prefix *t, const fti_prefix_node *n) {
    return n != &t->root && !n->child && n->slot < 0 && !t->stateless;
}

/* A leaf without a snapshot leads nowhere, unless it is `keep`. */
static void prune(fti_prefix *t, fti_prefix_node *n, const fti_prefix_node *keep) {
    while (n != keep && useless(t, n)) {
        fti_prefix_node *parent = n->parent;
        remove_leaf(t, n);
        n = parent;
    }
}

static void forget_leaf(fti_prefix *t, fti_prefix_node *n, const fti_prefix_node *keep) {
    fti_prefix_node *parent = n->parent;
    remove_leaf(t, n);
    prune(t, parent, keep);
}

static bool only_here(const fti_numbers *pool, const uint32_t *nodes, int32_t number) {
    return nodes[number] > 0 && pool->holders[number] == nodes[number];
}

/* The leaf used least recently whose page comes free by that; otherwise the oldest, which
 * may stand in the way of one that does. */
static fti_prefix_node *page_victim(const fti_prefix *t) {
    for (fti_prefix_node *n = t->oldest; n; n = n->newer)
        if (!n->child && only_here(t->pages, t->page_nodes, n->page)) return n;
    return t->oldest;
}

static fti_prefix_node *slot_victim(const fti_prefix *t) {
    for (fti_prefix_node *n = t->oldest; n; n = n->newer)
        if (n->slot >= 0 && only_here(t->slots, t->slot_nodes, n->slot)) return n;
    return NULL;
}

static uint32_t count_only_here(const fti_numbers *pool, const uint32_t *nodes) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < pool->count; i++) n += only_here(pool, nodes, (int32_t)i);
    return n;
}

void fti_prefix_evictable(const fti_prefix *t, uint32_t *pages, uint32_t *slots) {
    *pages = count_only_here(t->pages, t->page_nodes);
    *slots = count_only_here(t->slots, t->slot_nodes);
}

bool fti_prefix_evict(fti_prefix *t, uint32_t pages, uint32_t slots) {
    while (t->slots->available < slots) {
        fti_prefix_node *n = slot_victim(t);
        if (!n) return false;
        drop_slot(t, n);
        prune(t, n, NULL);
    }
    while (t->pages->available < pages) {
        fti_prefix_node *n = page_victim(t);
        if (!n) return false;
        forget_leaf(t, n, NULL);
    }
    return true;
}

void fti_prefix_clear(fti_prefix *t) {
    while (t->oldest) forget_leaf(t, t->oldest, NULL);
}

/* ---- finding ---- */

static bool begins(const fti_prefix_node *n, const int32_t *ids, uint64_t count) {
    return n->tokens <= count && memcmp(n->ids, ids, n->tokens * sizeof *ids) == 0;
}

static bool restorable(const fti_prefix *t, const fti_prefix_node *n) {
    return t->stateless || n->slot >= 0;
}

/* The child with the whole page that ids[count] begins with. */
static fti_prefix_node *next_whole(const fti_prefix_node *parent, const int32_t *ids,
                                   uint64_t count) {
    fti_prefix_node *n = parent->child;
    while (n && !(n->tokens == FTI_PAGE_TOKENS && begins(n, ids, count))) n = n->after;
    return n;
}

/* The child with the longest part of a page that ids[count] begins with. */
static fti_prefix_node *longest_part(const fti_prefix *t, const fti_prefix_node *parent,
                                     const int32_t *ids, uint64_t count) {
    fti_prefix_node *best = NULL;
    for (fti_prefix_node *n = parent->child; n; n = n->after)
        if (n->tokens < FTI_PAGE_TOKENS && restorable(t, n) && begins(n, ids, count) &&
            (!best || n->tokens > best->tokens))
            best = n;
    return best;
}

void fti_prefix_find(const fti_prefix *t, const int32_t *ids, uint64_t count,
                     fti_prefix_match *match) {
    const fti_prefix_node *at = &t->root;
    fti_prefix_node *best = NULL, *n;
    uint64_t depth = 0;
    for (;;) {
        n = longest_part(t, at, ids + depth, count - depth);
        if (n) best = n;
        n = next_whole(at, ids + depth, count - depth);
        if (!n) break;
        if (restorable(t, n)) best = n;
        depth += FTI_PAGE_TOKENS;
        at = n;
    }
    *match = (fti_prefix_match){
        .node = best, .version = t->version, .common = depth, .tail = -1, .slot = -1};
    if (!best) return;
    bool part = best->tokens < FTI_PAGE_TOKENS;
    match->tokens = best->depth + best->tokens;
    match->shared = (uint32_t)(match->tokens / FTI_PAGE_TOKENS);
    match->tail = part ? best->page : -1;
    match->slot = best->slot;
}

void fti_prefix_hold(fti_prefix *t, const fti_prefix_match *match, int32_t *pages) {
    if (!match->node) return;
    touch(t, match->node);
    for (fti_prefix_node *n = match->node; n != &t->root; n = n->parent)
        if (n->tokens == FTI_PAGE_TOKENS) pages[n->depth / FTI_PAGE_TOKENS] = n->page;
    fti_numbers_hold(t->pages, pages, match->shared);
    if (match->tail >= 0) fti_numbers_hold(t->pages, &match->tail, 1);
    if (match->slot >= 0) fti_numbers_hold(t->slots, &match->slot, 1);
}

/* ---- what has failed ---- */

static uint64_t end_of(const fti_prefix_node *n) {
    return n->depth + n->tokens;
}

static void forget_parts(fti_prefix *t, fti_prefix_node *parent, const int32_t *ids, uint64_t count,
                         uint64_t from) {
    for (fti_prefix_node *n = parent->child, *next; n; n = next) {
        next = n->after;
        if (n->tokens < FTI_PAGE_TOKENS && begins(n, ids, count) && end_of(n) >= from)
            remove_leaf(t, n);
    }
}

void fti_prefix_forget(fti_prefix *t, const int32_t *ids, uint64_t count, uint64_t from) {
    fti_prefix_node *at = &t->root, *n = at;
    for (uint64_t depth = 0; n; depth += FTI_PAGE_TOKENS) {
        at = n;
        if (at != &t->root && end_of(at) >= from) drop_slot(t, at);
        forget_parts(t, at, ids + depth, count - depth, from);
        n = next_whole(at, ids + depth, count - depth);
    }
    while (at != &t->root && !at->child && end_of(at) >= from) {
        n = at->parent;
        remove_leaf(t, at);
        at = n;
    }
    prune(t, at, NULL);
}

/* ---- keeping ---- */

static fti_prefix_node *same_child(const fti_prefix_node *parent, const int32_t *ids,
                                   uint32_t tokens) {
    fti_prefix_node *n = parent->child;
    while (n && !(n->tokens == tokens && begins(n, ids, tokens))) n = n->after;
    return n;
}

static fti_prefix_node *add_child(fti_prefix *t, fti_prefix_node *parent, const int32_t *ids,
                                  uint32_t tokens, int32_t page) {
    if (!t->unused && t->oldest != parent) forget_leaf(t, t->oldest, parent);
    fti_prefix_node *n = t->unused;
    if (!n) return NULL;
    t->unused = n->after;
    *n = (fti_prefix_node){.parent = parent,
                           .after = parent->child,
                           .depth = parent->depth + parent->tokens,
                           .tokens = tokens,
                           .page = page,
                           .slot = -1};
    memcpy(n->ids, ids, tokens * sizeof *ids);
    if (n->after) n->after->before = n;
    parent->child = n;
    enter_order(t, n);
    fti_numbers_hold(t->pages, &page, 1);
    t->page_nodes[page]++;
    t->count++;
    t->version++;
    return n;
}

bool fti_prefix_add(fti_prefix *t, const int32_t *ids, uint64_t count, const int32_t *pages,
                    int32_t slot) {
    if (slot < 0 && !t->stateless) return false;
    fti_prefix_node *at = &t->root;
    for (uint64_t done = 0; done < count; done += at->tokens) {
        uint64_t left = count - done;
        uint32_t tokens = left < FTI_PAGE_TOKENS ? (uint32_t)left : FTI_PAGE_TOKENS;
        fti_prefix_node *n = same_child(at, ids + done, tokens);
        if (n) { /* so that none of the way is the oldest while nodes are made */
            leave_order(t, n);
            enter_order(t, n);
        } else {
            n = add_child(t, at, ids + done, tokens, pages[done / FTI_PAGE_TOKENS]);
        }
        if (!n) break;
        at = n;
    }
    bool whole = count > 0 && at->depth + at->tokens == count;
    bool taken = whole && slot >= 0 && at->slot < 0;
    if (taken) {
        at->slot = slot;
        t->slot_nodes[slot]++;
        t->version++;
    }
    touch(t, at);
    prune(t, at, NULL);
    return taken;
}
