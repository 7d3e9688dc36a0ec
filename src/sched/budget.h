/*
 * budget.h: the memory plan: what an engine will allocate, as counts and bytes,
 * against what it may. A pure decision: nothing is allocated here, and a plan
 * that does not fit is refused with its numbers.
 */
#ifndef FTI_BUDGET_H
#define FTI_BUDGET_H

#include "core/base.h"

/* Context that an engine gets when the configuration names none: what most
 * requests need, while a model may have been made for far more. */
#define FTI_DEFAULT_CONTEXT 32768u

typedef struct fti_budget_request {
    uint64_t weights_mapped;    /* read from the file's mapping; reclaimable, so not counted */
    uint64_t weights_allocated; /* copied or computed */
    uint64_t kv_bytes_per_token;
    uint64_t state_bytes;    /* of all sequences */
    uint64_t snapshot_bytes; /* of the state of one */
    uint32_t snapshots;      /* places for copies of states, of the prefix cache */
    bool fewer_snapshots;    /* as many of them as fit into half of what is left */
    uint64_t expert_slots;   /* the fewest that experts can run in; 0: they lie in the weights */
    uint64_t workspace;
    uint64_t step_buffers;
    uint32_t page_tokens;
    uint32_t model_context;
    uint32_t kv_tokens; /* asked for; 0: model_context, at most FTI_DEFAULT_CONTEXT, as far as it
                           fits */
    uint64_t available; /* bytes that the backend says are free */
    uint64_t limit;     /* configured budget, UINT64_MAX for none */
    uint64_t reserve;   /* kept free of whichever is smaller */
} fti_budget_request;

typedef struct fti_budget {
    uint64_t weights_mapped;
    uint64_t weights_allocated;
    uint64_t kv_cache;
    uint64_t recurrent_state; /* with the snapshots */
    uint64_t expert_slots;
    uint64_t workspace;
    uint64_t step_buffers;
    uint64_t total;  /* of what is allocated */
    uint64_t budget; /* what total was held against */
    uint64_t available;
    uint32_t context; /* tokens that the KV cache holds */
    uint32_t pages;
    uint32_t snapshots;
} fti_budget;

/* What may be spent: the smaller of limit and available, less the reserve. */
uint64_t fti_budget_spendable(const fti_budget_request *request);
/* Tokens that the KV cache should hold, if they fit: those asked for, or the default. */
uint32_t fti_budget_wish(const fti_budget_request *request);
/* All but the KV cache, and but snapshots whose number is left to the plan; false on overflow. */
bool fti_budget_fixed(const fti_budget_request *request, uint64_t *bytes);
/* FTK_E_CONTEXT if kv_tokens exceeds what the model was made for. */
ftk_status fti_budget_context(const fti_budget_request *request, ftk_error *err);
/* FTK_E_DOES_NOT_FIT: so many tokens are the fewest that would do, and what they need with the
 * rest of the request. */
ftk_status fti_budget_refuse(const fti_budget_request *request, uint64_t tokens, ftk_error *err);

/* FTK_E_DOES_NOT_FIT with every number, or as fti_budget_context. */
ftk_status fti_budget_plan(const fti_budget_request *request, fti_budget *plan,
                           ftk_error *err) FTI_WARN_UNUSED;

#endif
