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

/* FTK_E_DOES_NOT_FIT with every number; FTK_E_CONTEXT if kv_tokens exceeds what
 * the model was made for. */
ftk_status fti_budget_plan(const fti_budget_request *request, fti_budget *plan,
                           ftk_error *err) FTI_WARN_UNUSED;

#endif
