/* budget.c: see budget.h. */
#include "sched/budget.h"

uint64_t fti_budget_spendable(const fti_budget_request *r) {
    uint64_t most = r->limit < r->available ? r->limit : r->available;
    return most > r->reserve ? most - r->reserve : 0;
}

uint32_t fti_budget_wish(const fti_budget_request *r) {
    if (r->kv_tokens) return r->kv_tokens;
    return r->model_context < FTI_DEFAULT_CONTEXT ? r->model_context : FTI_DEFAULT_CONTEXT;
}

static uint64_t pages_of(const fti_budget_request *r, uint64_t tokens) {
    return (tokens + r->page_tokens - 1) / r->page_tokens;
}

/* Of the sequences and of the snapshots that were asked for by number. */
static bool state_bytes(const fti_budget_request *r, uint64_t *bytes) {
    uint32_t snapshots = r->fewer_snapshots ? 0 : r->snapshots;
    return fti_mul_u64(r->snapshot_bytes, snapshots, bytes) &&
           fti_add_u64(*bytes, r->state_bytes, bytes);
}

bool fti_budget_fixed(const fti_budget_request *r, uint64_t *fixed) {
    return state_bytes(r, fixed) && fti_add_u64(*fixed, r->weights_allocated, fixed) &&
           fti_add_u64(*fixed, r->expert_slots, fixed) &&
           fti_add_u64(*fixed, r->workspace, fixed) && fti_add_u64(*fixed, r->step_buffers, fixed);
}

static uint32_t choose_snapshots(const fti_budget_request *r, uint64_t left) {
    if (!r->fewer_snapshots || r->snapshot_bytes == 0) return r->snapshots;
    uint64_t room = left / 2 / r->snapshot_bytes;
    return room < r->snapshots ? (uint32_t)room : r->snapshots;
}

static ftk_status too_large(ftk_error *err) {
    return fti_fail(err, FTK_E_DOES_NOT_FIT, "does not fit: the sizes exceed 64 bits");
}

ftk_status fti_budget_refuse(const fti_budget_request *r, uint64_t tokens, ftk_error *err) {
    uint64_t fixed, kv, total, device, state = 0;
    if (!fti_budget_fixed(r, &fixed) || !fti_mul_u64(r->kv_bytes_per_token, r->page_tokens, &kv) ||
        !fti_mul_u64(kv, pages_of(r, tokens), &kv) || !fti_add_u64(fixed, kv, &total) ||
        !fti_add_u64(total, r->reserve, &device))
        return too_large(err);
    (void)state_bytes(r, &state);
    return fti_fail(
        err, FTK_E_DOES_NOT_FIT,
        "does not fit: at least %llu bytes needed (weights %llu, KV cache %llu for %llu tokens, "
        "recurrent state %llu, expert slots %llu, workspace %llu, step buffers %llu), %llu allowed "
        "(available %llu, limit %s%llu, reserve %llu): lower memory.kv_tokens (--ctx), "
        "scheduler.prefill_tokens or memory.snapshots, or raise memory.device to %llu",
        (unsigned long long)total, (unsigned long long)r->weights_allocated, (unsigned long long)kv,
        (unsigned long long)tokens, (unsigned long long)state, (unsigned long long)r->expert_slots,
        (unsigned long long)r->workspace, (unsigned long long)r->step_buffers,
        (unsigned long long)fti_budget_spendable(r), (unsigned long long)r->available,
        r->limit == UINT64_MAX ? "none, " : "",
        (unsigned long long)(r->limit == UINT64_MAX ? 0 : r->limit), (unsigned long long)r->reserve,
        (unsigned long long)device);
}

/* Pages for the tokens asked for; without a wish, as many as fit up to the default. */
static uint64_t choose_pages(const fti_budget_request *r, uint64_t budget, uint64_t fixed) {
    uint64_t page_bytes = r->kv_bytes_per_token * r->page_tokens;
    uint64_t pages = pages_of(r, fti_budget_wish(r));
    if (r->kv_tokens == 0 && page_bytes > 0 && budget > fixed) {
        uint64_t room = (budget - fixed) / page_bytes;
        if (room < pages) pages = room;
    }
    return pages;
}

ftk_status fti_budget_context(const fti_budget_request *r, ftk_error *err) {
    if (r->kv_tokens <= r->model_context) return FTK_OK;
    return fti_fail(err, FTK_E_CONTEXT,
                    "memory.kv_tokens (--ctx) is %u, the model was made for at most %u positions: "
                    "lower it",
                    r->kv_tokens, r->model_context);
}

ftk_status fti_budget_plan(const fti_budget_request *r, fti_budget *plan, ftk_error *err) {
    FTI_TRY(fti_budget_context(r, err));
    uint64_t budget = fti_budget_spendable(r), fixed, page_bytes, kv, total;
    if (!fti_budget_fixed(r, &fixed) ||
        !fti_mul_u64(r->kv_bytes_per_token, r->page_tokens, &page_bytes))
        return too_large(err);
    uint64_t pages = choose_pages(r, budget, fixed);
    uint64_t tokens = pages * r->page_tokens;
    if (!fti_mul_u64(page_bytes, pages, &kv) || !fti_add_u64(fixed, kv, &total))
        return too_large(err);
    if (total > budget || pages == 0)
        return fti_budget_refuse(r, r->kv_tokens ? r->kv_tokens : 1, err);
    uint32_t snapshots = choose_snapshots(r, budget - total);
    uint64_t state, auto_bytes = r->fewer_snapshots ? snapshots * r->snapshot_bytes : 0;
    (void)state_bytes(r, &state);
    uint32_t cap = r->kv_tokens ? r->kv_tokens : r->model_context;
    *plan = (fti_budget){.weights_mapped = r->weights_mapped,
                         .weights_allocated = r->weights_allocated,
                         .kv_cache = kv,
                         .recurrent_state = state + auto_bytes,
                         .expert_slots = r->expert_slots,
                         .workspace = r->workspace,
                         .step_buffers = r->step_buffers,
                         .total = total + auto_bytes,
                         .budget = budget,
                         .available = r->available,
                         .context = tokens < cap ? (uint32_t)tokens : cap,
                         .pages = (uint32_t)pages,
                         .snapshots = snapshots};
    return FTK_OK;
}
