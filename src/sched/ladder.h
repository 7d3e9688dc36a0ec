/*
 * ladder.h: what memory is spent on, where experts lie in slots: rungs from much KV cache with
 * few slots to little with many, which of them an engine starts on, and when it changes to
 * another. Pure decisions: nothing is allocated or moved here.
 *
 * Rung 0 has the most KV cache. Every rung below has less, at least one slot more, and in no
 * pool fewer: whoever goes down gives back pages and takes slots, whoever goes up the other way.
 */
#ifndef FTI_LADDER_H
#define FTI_LADDER_H

#include "core/config.h"
#include "sched/budget.h"

#define FTI_LADDER_POOLS 64u
/* Halvings of a 32-bit number of pages, and one rung for what fits between two of them. */
#define FTI_LADDER_RUNGS 34u
/* KV cache of the last rung, without a wish: one request of usual length. */
#define FTI_LADDER_LEAST_TOKENS 2048u

/* Slots that experts of several layers share. */
typedef struct fti_slot_need {
    uint64_t least, most; /* slots: what one row reads of a layer; all experts of all layers */
    uint64_t slot_bytes;  /* of one slot, whatever is kept for it included */
    uint64_t fixed_bytes; /* beside the slots */
} fti_slot_need;

typedef struct fti_ladder_request {
    fti_budget_request whole;   /* with experts as they are without slots */
    uint64_t dense_bytes;       /* weights that are no experts: with slots all are allocated */
    const fti_slot_need *pools; /* [pool_count] */
    uint32_t pool_count;
    fti_switch residency;
} fti_ladder_request;

typedef struct fti_rung {
    uint64_t kv_cache, expert_slots; /* bytes */
    uint64_t total;                  /* of all that is allocated */
    uint32_t pages, context;
    uint32_t slots[FTI_LADDER_POOLS];
} fti_rung;

typedef struct fti_ladder {
    uint64_t minimum; /* the smallest budget that would do */
    bool resident;    /* experts lie in slots */
    char reason[160];
    uint32_t rung_count, chosen; /* no rungs without slots: there is nothing to choose */
    fti_rung rungs[FTI_LADDER_RUNGS];
} fti_ladder;

/*
 * Without slots the plan is that of fti_budget_plan. With them:
 * - kv_tokens asked for are kept, and experts get the rest: one rung.
 * - Else rungs go from the default context, or what of it fits, by halves to
 *   FTI_LADDER_LEAST_TOKENS; where not even these fit, as many as do are the only rung. The
 *   engine starts with the most KV cache that leaves experts half of what they have on the last
 *   rung: a context that is too short refuses requests that fewer slots would only slow down.
 * - Slots are spread so that every layer has the same share of its experts.
 * - Snapshots whose number is left to the plan get at most an eighth of what the minimum leaves,
 *   the same on every rung: one saves a prefill now and then, slots save reads in every step.
 *
 * With residency auto experts lie in slots if they, the rest and the context wished for exceed
 * the budget otherwise, and the fewest slots fit beside the KV cache of the last rung.
 * *plan is that of the chosen rung. After a refusal ladder->minimum is still what it would take.
 * FTK_E_DOES_NOT_FIT with the minimum and what it is made of; FTK_E_CONTEXT as fti_budget_plan.
 */
ftk_status fti_ladder_plan(const fti_ladder_request *request, fti_budget *plan, fti_ladder *ladder,
                           ftk_error *err) FTI_WARN_UNUSED;

/* ---- at run time ---- */

/* Steps between two moves: each costs pages or slots that have to be filled again. */
#define FTI_LADDER_REST 64u
/* Steps in which a request waited for pages, less those in which none did, before the KV cache
 * grows. A short wait ends sooner by itself; a preemption counts as several of them. */
#define FTI_LADDER_SHORTAGE   16u
#define FTI_LADDER_PREEMPTION 8u
/* Steps without shortage before the KV cache shrinks, and the most that this grows to. */
#define FTI_LADDER_CALM      256u
#define FTI_LADDER_LONG_CALM (1u << 16)

/* Of one step, or of several since the last call. */
typedef struct fti_ladder_seen {
    uint32_t steps;
    uint32_t short_steps;     /* of them, those in which a request waited for pages */
    uint32_t preempted;       /* requests, for pages */
    uint32_t held_pages;      /* by running requests, at the end */
    uint32_t peak_pages;      /* by running requests, at most */
    uint32_t wanted_pages;    /* of the request whose turn it is, that lie nowhere yet */
    uint64_t experts, misses; /* needed; of them those that lay in no slot */
} fti_ladder_seen;

/* {.rung = chosen, .calm = FTI_LADDER_CALM} at the start. */
typedef struct fti_ladder_state {
    uint32_t rung;
    uint32_t calm;     /* steps of calm asked for before the KV cache shrinks */
    uint64_t rested;   /* steps since the last move */
    bool shrunk;       /* it gave pages away */
    uint32_t shortage; /* as FTI_LADDER_SHORTAGE counts it */
    uint32_t quiet;    /* steps of the period of calm so far: */
    uint32_t peak;     /* most pages in it */
    uint64_t experts, misses;
} fti_ladder_state;

/*
 * The rung to go to; state->rung: stay. The caller moves between steps and says so, or does not:
 * then it is told again after another rest.
 *
 * - Up, to more KV cache: requests wait for pages, for longer than they would wait anyway. At once
 * to the rung that has what the one whose turn it is lacks, since every move gives up slots.
 * - Down by one, to more slots: a period of calm has passed without shortage, no more than three
 *   quarters of the lower rung's pages were in use in it, and more than one expert in 64
 *   was missing. What is full at four quarters and given away at three does not come back soon.
 * - A move down that is taken back within eight periods of calm was wrong: the period doubles.
 *   One that lasts for eight makes it short again. So under a load that repeats itself there are
 *   at most two moves in 8 * FTI_LADDER_CALM steps in the long run.
 * - Never to a rung with fewer pages than are held.
 */
uint32_t fti_ladder_step(const fti_ladder *ladder, fti_ladder_state *state,
                         const fti_ladder_seen *seen);
/* The move has been made. */
void fti_ladder_moved(fti_ladder_state *state, uint32_t rung);

#endif
