/*
 * prefix.h: the prefix cache: which beginnings of token sequences have been computed, in
 * which KV pages their keys and values lie, and in which state slots the recurrent state
 * after them. Decisions over numbers; nothing is copied here.
 *
 * A tree: a node is the tokens of one page, whole or, at the end of a sequence, in part.
 * Keys and values can be read from any prefix; a recurrent state only where a copy of it (a
 * snapshot) was kept. So sequences go on from nodes with a snapshot, and without one a node
 * is only on the way to others. A page may have several holders: nodes and running requests.
 * Positions that a node stands for are never written again, so a whole page is shared as it
 * is; what follows a part of a page goes into a copy of it.
 *
 * What is forgotten first is what was used least recently, separately for the two currencies:
 * a snapshot can go and its page stay, a page takes its snapshot with it.
 */
#ifndef FTI_PREFIX_H
#define FTI_PREFIX_H

#include "sched/pages.h"

typedef struct fti_prefix_node {
    struct fti_prefix_node *parent, *child; /* the first of its children */
    struct fti_prefix_node *before, *after; /* siblings */
    struct fti_prefix_node *newer, *older;  /* by use; ancestors are newer than descendants */
    uint64_t depth;                         /* tokens before its own */
    uint32_t tokens;                        /* 1 to FTI_PAGE_TOKENS; in part: it has no children */
    int32_t page;
    int32_t slot; /* of the state after its last token, -1: none */
    int32_t ids[FTI_PAGE_TOKENS];
} fti_prefix_node;

typedef struct fti_prefix {
    fti_numbers *pages, *slots; /* borrowed; the tree is one of their holders */
    bool stateless;             /* the model has no recurrent state: every node will do */
    fti_prefix_node *nodes, *unused;
    fti_prefix_node root; /* stands for no token */
    fti_prefix_node *newest, *oldest;
    uint32_t *page_nodes; /* [pages] nodes that hold each */
    uint32_t *slot_nodes; /* [slots] */
    uint32_t count;       /* nodes in use */
    uint64_t version;     /* another one after every change of the nodes */
    uint64_t forgotten_pages, forgotten_snapshots;
} fti_prefix;

/* Where a sequence may go on. */
typedef struct fti_prefix_match {
    fti_prefix_node *node; /* valid while the tree's version is this */
    uint64_t version;
    uint64_t tokens; /* that need not be computed; 0: nothing was found */
    uint64_t common; /* tokens that the tree knows too in whole pages, >= those of `shared` */
    uint32_t shared; /* whole pages */
    int32_t tail;    /* page with the tokens after these, to be copied; -1: none */
    int32_t slot;    /* state after `tokens`; -1: the model has none */
} fti_prefix_match;

/* The pools' numbers must stay where they are. False: out of memory. */
bool fti_prefix_create(fti_prefix *tree, fti_numbers *pages, fti_numbers *slots, bool stateless);
void fti_prefix_destroy(fti_prefix *tree);

/* The longest beginning of ids[count] that can be gone on from. */
void fti_prefix_find(const fti_prefix *tree, const int32_t *ids, uint64_t count,
                     fti_prefix_match *match);
/* Uses a match of this version: its whole pages go into pages[shared], and whoever asks
 * becomes a holder of these, of its tail and of its slot. */
void fti_prefix_hold(fti_prefix *tree, const fti_prefix_match *match, int32_t *pages);

/* Keeps ids[count], whose keys and values lie in `pages`, and becomes another holder of the
 * pages that were not known. True: the tree has also become the holder of `slot`, with the
 * state after the last token, in the caller's place. False: the slot is still the caller's,
 * since that state is known already, or since nothing could be kept. */
bool fti_prefix_add(fti_prefix *tree, const int32_t *ids, uint64_t count, const int32_t *pages,
                    int32_t slot);

/* Numbers that nobody but the tree holds: what fti_prefix_evict can make free. */
void fti_prefix_evictable(const fti_prefix *tree, uint32_t *pages, uint32_t *slots);
/* Forgets until so many pages and slots are free. False: so many there are not. */
bool fti_prefix_evict(fti_prefix *tree, uint32_t pages, uint32_t slots);
/* Forgets from which states ids[count] could go on at `from` or later, with the nodes that lead
 * nowhere without: what a sequence that has failed went on from, and what it has left. */
void fti_prefix_forget(fti_prefix *tree, const int32_t *ids, uint64_t count, uint64_t from);
/* Forgets everything. */
void fti_prefix_clear(fti_prefix *tree);

#endif
