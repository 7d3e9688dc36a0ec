/*
 * step.c: one step on the backend: fills a step's arrays, lets the provider enqueue it or
 * replays its graph, and reads logits back.
 */
#include "core/engine.h"
#include "sched/steps.h"

#include <stdio.h>

/* ---- the arrays of a step ---- */

/* Counts of a step as the backend sees it. A replayed graph has the counts of its
 * bucket: rows and sequences beyond the real ones are padding. */
typedef struct step_shape {
    uint32_t rows;
    uint32_t sequences;
    uint32_t logit_count;
} step_shape;

static step_shape shape_of(const fti_sequence *sequences, uint32_t count) {
    step_shape shape = {.sequences = count};
    for (uint32_t s = 0; s < count; s++) {
        shape.rows += sequences[s].rows;
        shape.logit_count += sequences[s].logit_rows;
    }
    return shape;
}

static void fill_sequence(const fti_step_buffers *b, const fti_sequence *q, uint32_t s,
                          uint32_t row, uint32_t *logit) {
    int32_t *ids = b->host_ids;
    for (uint32_t i = 0; i < q->rows; i++) {
        ids[b->tokens + row + i] = q->tokens[i];
        ids[b->positions + row + i] = (int32_t)(q->first + i);
        ids[b->row_sequence + row + i] = (int32_t)s;
    }
    for (uint32_t i = q->rows - q->logit_rows; i < q->rows; i++)
        ids[b->logit_index + (*logit)++] = (int32_t)(row + i);
    ids[b->state_slots + s] = q->slot;
    memcpy(ids + b->block_table + (size_t)s * b->blocks, q->pages,
           q->page_count * sizeof *q->pages);
}

/* Padding rows belong to no sequence; padding sequences have no rows. */
static void fill_padding(const fti_step_buffers *b, const step_shape *shape, uint32_t row,
                         uint32_t s, uint32_t logit) {
    int32_t *ids = b->host_ids;
    for (uint32_t i = row; i < shape->rows; i++) {
        ids[b->tokens + i] = 0;
        ids[b->positions + i] = 0;
        ids[b->row_sequence + i] = -1;
    }
    for (; logit < shape->logit_count; logit++) ids[b->logit_index + logit] = (int32_t)logit;
    for (; s < shape->sequences; s++) {
        ids[b->sequence_rows + s + 1] = (int32_t)row;
        ids[b->state_slots + s] = 0;
    }
}

static void fill_ids(const ftk_engine *e, const fti_sequence *sequences, uint32_t count,
                     const step_shape *shape) {
    const fti_step_buffers *b = &e->buffers;
    uint32_t row = 0, logit = 0;
    b->host_ids[b->sequence_rows] = 0;
    for (uint32_t s = 0; s < count; s++) {
        fill_sequence(b, &sequences[s], s, row, &logit);
        row += sequences[s].rows;
        b->host_ids[b->sequence_rows + s + 1] = (int32_t)row;
    }
    fill_padding(b, shape, row, count, logit);
}

static ftk_status upload_ids(ftk_engine *e, ftk_error *err) {
    ftk_status status = e->backend->ops->upload(e->stream, e->buffers.ids.memory,
                                                e->buffers.host_ids,
                                                e->buffers.id_count * sizeof(int32_t));
    if (status == FTK_OK) return FTK_OK;
    return fti_fail(err, status, "copying a step's arrays to the device failed");
}

static ftk_step step_of(const ftk_engine *e, const step_shape *shape) {
    const fti_step_buffers *b = &e->buffers;
    const int32_t *ids = b->ids.memory;
    return (ftk_step){.struct_size = (uint32_t)sizeof(ftk_step),
                      .rows = shape->rows,
                      .sequences = shape->sequences,
                      .logit_count = shape->logit_count,
                      .block_stride = b->blocks,
                      .stream = e->stream,
                      .tokens = ids + b->tokens,
                      .positions = ids + b->positions,
                      .row_sequence = ids + b->row_sequence,
                      .sequence_rows = ids + b->sequence_rows,
                      .state_slots = ids + b->state_slots,
                      .block_table = ids + b->block_table,
                      .logit_rows = ids + b->logit_index,
                      .logits = b->logits.memory,
                      .workspace = b->workspace.memory,
                      .workspace_bytes = b->workspace.bytes};
}

/* ---- running ---- */

static ftk_status call_run(ftk_engine *e, const ftk_step *step, ftk_error *err) {
    fti_ctx_begin(&e->ctx);
    return fti_ctx_end(&e->ctx, e->provider->table->run(e->model, step), "run", err);
}

/* The captured graph that a step may replay: every sequence has one row and wants its
 * logits. The smallest bucket that holds it. */
static const fti_decode_graph *graph_for(const ftk_engine *e, const fti_sequence *sequences,
                                         uint32_t count) {
    for (uint32_t s = 0; s < count; s++)
        if (sequences[s].rows != 1 || sequences[s].logit_rows != 1) return NULL;
    const fti_decode_graph *found = NULL;
    for (size_t i = 0; i < e->graph_count; i++)
        if (e->graphs[i].rows >= count) found = &e->graphs[i];
    return found;
}

static ftk_status run_eager(ftk_engine *e, const step_shape *shape, float *layers, ftk_error *err) {
    ftk_step step = step_of(e, shape);
    step.layer_outputs = layers;
    return call_run(e, &step, err);
}

static ftk_status read_logits(ftk_engine *e, uint32_t count, uint32_t rows, ftk_error *err) {
    const fti_backend_ops *ops = e->backend->ops;
    ftk_status status = FTK_OK;
    ftk_error inner = FTK_ERROR_INIT;
    if (count)
        status = ops->download(e->stream, e->buffers.host_logits, e->buffers.logits.memory,
                               (uint64_t)count * e->info.vocabulary * sizeof(float));
    if (status == FTK_OK) status = ops->stream_sync(e->stream, &inner);
    if (status == FTK_OK) return FTK_OK;
    return fti_fail(err, status, "a step of %u rows failed on the %s backend%s%-s", rows, ops->name,
                    inner.message[0] ? ": " : "", inner.message);
}

ftk_status fti_run_step(ftk_engine *e, const fti_sequence *sequences, uint32_t count, float *layers,
                        bool *replayed, ftk_error *err) {
    const fti_decode_graph *graph = layers ? NULL : graph_for(e, sequences, count);
    step_shape shape = shape_of(sequences, count);
    uint32_t wanted = shape.logit_count;
    if (graph) shape = (step_shape){graph->rows, graph->rows, graph->rows};
    fill_ids(e, sequences, count, &shape);
    FTI_TRY(upload_ids(e, err));
    *replayed = graph != NULL;
    if (graph) {
        ftk_status status = e->backend->ops->graph_launch(e->stream, graph->graph);
        if (status != FTK_OK) return fti_fail(err, status, "replaying the decode graph failed");
    } else {
        FTI_TRY(run_eager(e, &shape, layers, err));
    }
    return read_logits(e, wanted, shape.rows, err);
}

/* A new sequence starts from state zero; its keys and values need no clearing, since only
 * positions that were written are read. */
ftk_status fti_clear_state(ftk_engine *e, int32_t slot, ftk_error *err) {
    if (!e->state.memory) return FTK_OK;
    char *state = (char *)e->state.memory + (uint64_t)slot * e->plan.state_bytes;
    ftk_status status = e->backend->ops->clear(e->stream, state, e->plan.state_bytes);
    if (status == FTK_OK) return FTK_OK;
    return fti_fail(err, status, "clearing the recurrent state failed");
}

/* ---- graphs of the decode step ---- */

/* Runs the shape once, since the first launch of a kernel may load it, then records it. */
static ftk_status record(ftk_engine *e, uint32_t rows, fti_graph **graph, ftk_error *err) {
    const fti_backend_ops *ops = e->backend->ops;
    const step_shape shape = {rows, rows, rows};
    fill_ids(e, NULL, 0, &shape);
    FTI_TRY(upload_ids(e, err));
    FTI_TRY(run_eager(e, &shape, NULL, err));
    FTI_TRY(read_logits(e, rows, rows, err));
    ftk_status status = ops->capture_begin(e->stream);
    if (status != FTK_OK)
        return fti_fail(err, status, "capture could not begin: %s", ftk_status_text(status));
    ftk_status ran = run_eager(e, &shape, NULL, err);
    ftk_error ended = FTK_ERROR_INIT;
    status = ops->capture_end(e->stream, graph, &ended);
    if (ran == FTK_OK && status == FTK_OK) return FTK_OK;
    if (status == FTK_OK) ops->graph_destroy(*graph); /* of a step that failed half way */
    /* To the step, a record without memory is an operator that failed. */
    if (ran == FTK_OK || status == FTK_E_NO_MEMORY)
        return fti_fail(err, status, "%s", ended.message);
    return ran;
}

static void drop_graphs(ftk_engine *e) {
    for (size_t i = 0; i < e->graph_count; i++) e->backend->ops->graph_destroy(e->graphs[i].graph);
    e->graph_count = 0;
}

/* One graph for each bucket, largest first. */
static ftk_status record_all(ftk_engine *e, ftk_error *err) {
    uint32_t rows = 1;
    while (rows < e->settings.sequences) rows *= 2;
    if (rows > e->buffers.rows) rows /= 2;
    for (; rows > 0 && e->graph_count < FTI_MAX_BUCKETS; rows /= 2) {
        if (rows > e->settings.sequences) continue;
        fti_decode_graph *g = &e->graphs[e->graph_count];
        FTI_TRY(record(e, rows, &g->graph, err));
        g->rows = rows;
        e->graph_count++;
    }
    return FTK_OK;
}

ftk_status fti_capture_decode(ftk_engine *e, ftk_error *err) {
    if (e->settings.graphs == FTI_OFF) {
        snprintf(e->graph_reason, sizeof e->graph_reason, "backend.graphs is off");
        return FTK_OK;
    }
    if (!e->graph_safe) {
        snprintf(e->graph_reason, sizeof e->graph_reason, "the provider is not graph safe");
        return FTK_OK;
    }
    ftk_error failure = FTK_ERROR_INIT;
    ftk_status status = record_all(e, &failure);
    if (status == FTK_OK) return FTK_OK;
    drop_graphs(e);
    if (e->settings.graphs == FTI_ON)
        return fti_fail(err, status, "backend.graphs is on, but capture failed: %.800s",
                        failure.message);
    snprintf(e->graph_reason, sizeof e->graph_reason, "capture failed: %.130s", failure.message);
    fti_log(e, FTK_LOG_WARNING, "decode steps run eagerly: %s", e->graph_reason);
    return FTK_OK;
}
