/*
 * evaluate.c: logits of every position of a sequence, for measuring a model rather than
 * for using it. Has the engine to itself.
 */
#include "core/engine.h"
#include "core/fpenv.h"

/* Room for the layers' outputs of a chunk, on the device and on the host. */
typedef struct layer_taps {
    uint64_t bytes;
    void *device;
    float *host;
    float *row;
} layer_taps;

typedef struct evaluation {
    ftk_engine *e;
    const ftk_evaluate_options *o;
    const int32_t *ids;
    uint64_t count;
    uint32_t chunk;
    int32_t slot;
    int32_t *pages;
    uint32_t page_count;
    layer_taps taps;
} evaluation;

static ftk_status open_taps(evaluation *v, ftk_error *err) {
    ftk_engine *e = v->e;
    uint64_t row = (uint64_t)e->info.layers * e->info.hidden;
    v->taps.bytes = v->chunk * row * sizeof(float);
    v->taps.host = fti_calloc((size_t)(v->chunk * row), sizeof(float));
    v->taps.row = fti_calloc((size_t)row, sizeof(float));
    if (!v->taps.host || !v->taps.row) return fti_no_memory(err, v->taps.bytes, "layer outputs");
    return e->backend->ops->alloc(e->backend, v->taps.bytes, "layer outputs", &v->taps.device, err);
}

static void close_taps(evaluation *v) {
    const fti_backend_ops *ops = v->e->backend->ops;
    if (v->taps.device) ops->release(v->e->backend, v->taps.device, v->taps.bytes);
    fti_free(v->taps.host);
    fti_free(v->taps.row);
}

static ftk_status read_taps(evaluation *v, uint32_t rows, ftk_error *err) {
    if (!v->taps.device) return FTK_OK;
    const fti_backend_ops *ops = v->e->backend->ops;
    uint64_t bytes = (uint64_t)rows * v->e->info.layers * v->e->info.hidden * sizeof(float);
    ftk_status status = ops->download(v->e->stream, v->taps.host, v->taps.device, bytes);
    if (status == FTK_OK) status = ops->stream_sync(v->e->stream, NULL);
    return status == FTK_OK ? FTK_OK : fti_fail(err, status, "reading layer outputs failed");
}

/* The device has [layers][rows][hidden]; a row is handed out as [layers][hidden]. */
static const float *row_taps(const evaluation *v, uint32_t rows, uint32_t r) {
    if (!v->taps.device) return NULL;
    uint64_t hidden = v->e->info.hidden;
    for (uint32_t l = 0; l < v->e->info.layers; l++)
        memcpy(v->taps.row + l * hidden, v->taps.host + ((uint64_t)l * rows + r) * hidden,
               hidden * sizeof(float));
    return v->taps.row;
}

static ftk_status hand_out(const evaluation *v, uint64_t first, uint32_t rows, ftk_error *err) {
    if (!v->o->on_logits) return FTK_OK;
    for (uint32_t r = 0; r < rows; r++) {
        const float *logits = v->e->buffers.host_logits + (uint64_t)r * v->e->info.vocabulary;
        if (v->o->on_logits(v->o->user, (size_t)first + r, logits, row_taps(v, rows, r)) != 0)
            return fti_fail(err, FTK_E_CANCELLED, "evaluation was cancelled at position %llu",
                            (unsigned long long)first + r);
    }
    return FTK_OK;
}

static ftk_status run_chunks(evaluation *v, ftk_error *err) {
    FTI_TRY(fti_clear_state(v->e, v->slot, err));
    for (uint64_t first = 0; first < v->count;) {
        uint32_t rows = v->count - first < v->chunk ? (uint32_t)(v->count - first) : v->chunk;
        const fti_sequence s = {.tokens = v->ids + first,
                                .pages = v->pages,
                                .page_count = v->page_count,
                                .slot = v->slot,
                                .first = first,
                                .rows = rows,
                                .logit_rows = rows};
        bool replayed;
        FTI_TRY(fti_run_step(v->e, &s, 1, v->taps.device, &replayed, err));
        FTI_TRY(read_taps(v, rows, err));
        FTI_TRY(hand_out(v, first, rows, err));
        first += rows;
    }
    return FTK_OK;
}

static ftk_status evaluate(evaluation *v, ftk_error *err) {
    v->pages = fti_calloc(v->e->budget.pages, sizeof *v->pages);
    if (!v->pages) return fti_no_memory(err, v->e->budget.pages, "a block table");
    ftk_status status = fti_service_borrow(v->e, v->count, &v->slot, v->pages, &v->page_count, err);
    if (status == FTK_OK) {
        if (v->o->want_layers) status = open_taps(v, err);
        if (status == FTK_OK) status = run_chunks(v, err);
        close_taps(v);
        fti_service_return(v->e, v->slot, v->pages, v->page_count);
    }
    fti_free(v->pages);
    return status;
}

ftk_status ftk_evaluate(ftk_engine *engine, const int32_t *ids, size_t count,
                        const ftk_evaluate_options *options, ftk_error *err) {
    if (!engine || !options)
        return fti_fail(err, FTK_E_ARGUMENT, "engine and options must not be NULL");
    FTI_TRY(fti_check_size(options->struct_size, sizeof *options, "ftk_evaluate_options", err));
    FTI_TRY(fti_engine_need(engine, FTI_STAGE_READY, err));
    FTI_TRY(fti_check_ids(engine, ids, count, err));
    uint32_t most = engine->buffers.logit_rows, chunk = options->chunk;
    if (most > engine->settings.prefill_tokens) most = engine->settings.prefill_tokens;
    evaluation v = {.e = engine,
                    .o = options,
                    .ids = ids,
                    .count = count,
                    .chunk = chunk == 0 || chunk > most ? most : chunk};
    FTI_TRY(fti_steps_begin(engine, err));
    fti_fpenv saved = fti_fpenv_enter();
    ftk_status status = evaluate(&v, err);
    fti_fpenv_leave(saved);
    fti_steps_end(engine);
    return status;
}
