/*
 * move.c: copies of what a sequence has in memory: a KV page, a recurrent state, and both
 * between the device and swap space on the host. Which of them, others decide.
 */
#include "core/engine.h"

static uint64_t block_count(const ftk_engine *e) {
    return 2 * e->plan.kv_layer_count;
}

/* Keys or values of one layer in one page. */
static uint64_t piece_bytes(const ftk_engine *e, uint64_t block) {
    return e->kv_blocks[block].bytes / e->budget.pages;
}

static char *piece_at(const ftk_engine *e, uint64_t block, int32_t page) {
    return (char *)e->kv_blocks[block].memory + (uint64_t)page * piece_bytes(e, block);
}

static char *state_at(const ftk_engine *e, int32_t slot) {
    return (char *)e->state.memory + (uint64_t)slot * e->plan.state_bytes;
}

static ftk_status moved(ftk_status status, const char *what, ftk_error *err) {
    return status == FTK_OK ? FTK_OK : fti_fail(err, status, "copying %s failed", what);
}

ftk_status fti_copy_state(ftk_engine *e, int32_t to, int32_t from, ftk_error *err) {
    if (!e->state.memory) return FTK_OK;
    return moved(
        e->backend->ops->copy(e->stream, state_at(e, to), state_at(e, from), e->plan.state_bytes),
        "a recurrent state", err);
}

ftk_status fti_copy_page(ftk_engine *e, int32_t to, int32_t from, ftk_error *err) {
    ftk_status status = FTK_OK;
    for (uint64_t b = 0; status == FTK_OK && b < block_count(e); b++)
        status = e->backend->ops->copy(e->stream, piece_at(e, b, to), piece_at(e, b, from),
                                       piece_bytes(e, b));
    return moved(status, "a page of the KV cache", err);
}

/* ---- swap space ---- */

static ftk_status move(ftk_engine *e, bool out, char *host, char *device, uint64_t bytes) {
    const fti_backend_ops *ops = e->backend->ops;
    return out ? ops->download(e->stream, host, device, bytes)
               : ops->upload(e->stream, device, host, bytes);
}

static ftk_status move_page(ftk_engine *e, bool out, char *unit, int32_t page) {
    ftk_status status = FTK_OK;
    for (uint64_t b = 0; status == FTK_OK && b < block_count(e); b++) {
        uint64_t bytes = piece_bytes(e, b);
        status = move(e, out, unit, piece_at(e, b, page), bytes);
        unit += bytes;
    }
    return status;
}

static ftk_status move_state(ftk_engine *e, bool out, const fti_swap *swap, const int32_t *units,
                             int32_t slot) {
    ftk_status status = FTK_OK;
    char *at = state_at(e, slot);
    for (uint64_t left = e->plan.state_bytes; status == FTK_OK && left > 0; units++) {
        uint64_t bytes = left < swap->unit_bytes ? left : swap->unit_bytes;
        status = move(e, out, swap->memory + (uint64_t)*units * swap->unit_bytes, at, bytes);
        at += bytes;
        left -= bytes;
    }
    return status;
}

static ftk_status move_all(ftk_engine *e, bool out, const fti_swap *swap, const int32_t *units,
                           const int32_t *pages, uint32_t page_count, int32_t slot) {
    ftk_status status = FTK_OK;
    for (uint32_t i = 0; status == FTK_OK && i < page_count; i++)
        status = move_page(e, out, swap->memory + (uint64_t)units[i] * swap->unit_bytes, pages[i]);
    if (status == FTK_OK) status = move_state(e, out, swap, units + page_count, slot);
    if (status == FTK_OK) status = e->backend->ops->stream_sync(e->stream, NULL);
    return status;
}

ftk_status fti_swap_out(ftk_engine *e, const fti_swap *swap, const int32_t *units,
                        const int32_t *pages, uint32_t page_count, int32_t slot, ftk_error *err) {
    return moved(move_all(e, true, swap, units, pages, page_count, slot), "a request to swap space",
                 err);
}

ftk_status fti_swap_in(ftk_engine *e, const fti_swap *swap, const int32_t *units,
                       const int32_t *pages, uint32_t page_count, int32_t slot, ftk_error *err) {
    return moved(move_all(e, false, swap, units, pages, page_count, slot),
                 "a request back from swap space", err);
}
