/*
 * slots.c: experts that lie in slots: the operator that brings a layer's, and the product that
 * takes them as they come. Both are recorded like any other work, and decide anew whenever
 * they run: what a graph replays is the asking, not the answer.
 */
#include "backend/cpu/cpu.h"

ftk_status fti_cpu_bank_attach(fti_backend *base, fti_bank_pool *pool, ftk_error *err) {
    fti_cpu_backend *backend = (fti_cpu_backend *)(void *)base;
    if (backend->bank_count == FTI_CPU_MAX_BANKS)
        return fti_fail(err, FTK_E_UNSUPPORTED, "cpu backend: more than %u pools of expert slots",
                        FTI_CPU_MAX_BANKS);
    backend->banks[backend->bank_count++] = pool;
    return FTK_OK;
}

void fti_cpu_bank_detach(fti_backend *base, fti_bank_pool *pool) {
    fti_cpu_backend *backend = (fti_cpu_backend *)(void *)base;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < backend->bank_count; i++)
        if (backend->banks[i] != pool) backend->banks[kept++] = backend->banks[i];
    backend->bank_count = kept;
}

/* The pool that a view shows a part of, NULL if it is none of those attached. */
static fti_bank_pool *find_pool(ftk_stream *stream, const ftk_bank_view *view, uint32_t *layer,
                                uint32_t *part) {
    const fti_cpu_backend *backend = fti_cpu_stream_backend(stream);
    for (uint32_t i = 0; i < backend->bank_count; i++)
        if (fti_bank_find(backend->banks[i], view->slots, view->base, layer, part))
            return backend->banks[i];
    return NULL;
}

/* ---- bringing them ---- */

typedef struct ensure_args {
    ftk_stream *stream;
    fti_bank_pool *pool;
    const int32_t *offsets;
    uint32_t layer;
} ensure_args;

void fti_cpu_ensure(const void *args, uint64_t begin, uint64_t end) {
    const ensure_args *a = args;
    ftk_error failure = FTK_ERROR_INIT;
    (void)begin;
    (void)end;
    if (fti_cpu_stream_failed(a->stream)) return;
    ftk_status status = fti_bank_ensure(a->pool, a->layer, a->offsets, &failure);
    if (status != FTK_OK) fti_cpu_stream_fail(a->stream, &failure);
}

ftk_status fti_cpu_enqueue_ensure(ftk_stream *stream, const ftk_bank_view *view,
                                  const int32_t *offsets) {
    ensure_args args = {.stream = stream, .offsets = offsets};
    uint32_t part;
    args.pool = find_pool(stream, view, &args.layer, &part);
    if (!args.pool || fti_bank_residency(args.pool)->experts != view->experts)
        return fti_cpu_refuse(stream);
    return fti_cpu_enqueue(stream, fti_cpu_ensure, &args, sizeof args, 1, 1);
}

/* ---- multiplying them ---- */

typedef struct slots_args {
    ftk_stream *stream;
    fti_bank_pool *pool;
    uint32_t layer;
    uint32_t part;
    uint64_t grain;
    fti_cpu_grouped product;
} slots_args;

_Static_assert(sizeof(slots_args) <= FTK_KERNEL_ARGS_MAX,
               "arguments of a kernel must fit a recorded command");

static ftk_status multiply(const slots_args *a, ftk_error *err) {
    const fti_cpu_backend *backend = fti_cpu_stream_backend(a->stream);
    fti_bank_run run;
    if (!fti_bank_asked(a->pool, a->layer, a->part))
        return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                        "experts were multiplied that had not been asked for with ensure");
    fti_cpu_stream_count(a->stream, backend->kernels.grouped_matmul, a->product.shares);
    for (;;) {
        FTI_TRY(fti_bank_next(a->pool, a->part, &run, err));
        if (run.count == 0) return FTK_OK;
        fti_cpu_grouped product = a->product;
        product.list = run.entries;
        product.listed = run.count;
        product.shares = run.count * ((product.rows + FTI_CPU_PANEL - 1) / FTI_CPU_PANEL);
        fti_pool_run(backend->pool, backend->kernels.grouped_matmul, &product, product.shares,
                     a->grain);
        FTI_TRY(fti_bank_done(a->pool, a->part, &run, err));
    }
}

void fti_cpu_multiply_slots(const void *args, uint64_t begin, uint64_t end) {
    const slots_args *a = args;
    ftk_error failure = FTK_ERROR_INIT;
    (void)begin;
    (void)end;
    if (fti_cpu_stream_failed(a->stream)) return;
    if (multiply(a, &failure) != FTK_OK) fti_cpu_stream_fail(a->stream, &failure);
}

ftk_status fti_cpu_enqueue_slots(ftk_stream *stream, const ftk_bank_view *view,
                                 const fti_cpu_grouped *product, uint64_t grain) {
    slots_args args = {.stream = stream, .grain = grain, .product = *product};
    args.pool = find_pool(stream, view, &args.layer, &args.part);
    if (!args.pool) return fti_cpu_refuse(stream);
    return fti_cpu_enqueue(stream, fti_cpu_multiply_slots, &args, sizeof args,
                           product->shares ? 1 : 0, 1);
}
