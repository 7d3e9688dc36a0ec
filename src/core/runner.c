/*
 * runner.c: runs steps: fills a step's arrays, lets the provider enqueue it or
 * replays its graph, and reads logits back. Generation and evaluation are loops
 * over steps that sched/steps.h chooses.
 */
#include "core/engine.h"
#include "core/fpenv.h"
#include "sched/steps.h"

#include <stdio.h>
#include <time.h>
#include <xxhash.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- one step ---- */

/* What a step's arrays are filled with. */
typedef struct step_request {
    const int32_t *tokens;
    uint64_t first; /* position of tokens[0] */
    uint32_t rows;
    uint32_t logit_count; /* of the last rows */
    bool padding;         /* rows that belong to no sequence: warm-up and capture */
} step_request;

static void fill_ids(const ftk_engine *e, const step_request *r) {
    const fti_step_buffers *b = &e->buffers;
    int32_t *ids = b->host_ids;
    for (uint32_t i = 0; i < r->rows; i++) {
        ids[b->tokens + i] = r->tokens ? r->tokens[i] : 0;
        ids[b->positions + i] = (int32_t)(r->first + i);
        ids[b->row_sequence + i] = r->padding ? -1 : 0;
    }
    ids[b->sequence_rows] = 0;
    ids[b->sequence_rows + 1] = r->padding ? 0 : (int32_t)r->rows;
    ids[b->state_slots] = 0;
    for (uint32_t i = 0; i < r->logit_count; i++)
        ids[b->logit_index + i] = (int32_t)(r->rows - r->logit_count + i);
    for (uint32_t i = 0; i < b->blocks; i++) ids[b->block_table + i] = (int32_t)i;
}

static ftk_step step_of(const ftk_engine *e, uint32_t rows, uint32_t logit_count) {
    const fti_step_buffers *b = &e->buffers;
    const int32_t *ids = b->ids.memory;
    return (ftk_step){.struct_size = (uint32_t)sizeof(ftk_step),
                      .rows = rows,
                      .sequences = 1,
                      .logit_count = logit_count,
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

static ftk_status upload_ids(ftk_engine *e, const step_request *r, ftk_error *err) {
    fill_ids(e, r);
    ftk_status status = e->backend->ops->upload(e->stream, e->buffers.ids.memory,
                                                e->buffers.host_ids,
                                                e->buffers.id_count * sizeof(int32_t));
    if (status == FTK_OK) return FTK_OK;
    return fti_fail(err, status, "copying a step's arrays to the device failed");
}

static ftk_status call_run(ftk_engine *e, const ftk_step *step, ftk_error *err) {
    fti_ctx_begin(&e->ctx);
    return fti_ctx_end(&e->ctx, e->provider->table->run(e->model, step), "run", err);
}

static bool replays(const ftk_engine *e, const step_request *r) {
    return e->decode_graph && r->rows == 1 && r->logit_count == 1;
}

/* Runs a step to its end; logits are then in host_logits. `layers` (may be NULL)
 * is device memory for the layers' outputs. */
static ftk_status run_step(ftk_engine *e, const step_request *r, float *layers, ftk_error *err) {
    const fti_backend_ops *ops = e->backend->ops;
    FTI_TRY(upload_ids(e, r, err));
    if (replays(e, r) && !layers) {
        ftk_status status = ops->graph_launch(e->stream, e->decode_graph);
        if (status != FTK_OK) return fti_fail(err, status, "replaying the decode graph failed");
    } else {
        ftk_step step = step_of(e, r->rows, r->logit_count);
        step.layer_outputs = layers;
        FTI_TRY(call_run(e, &step, err));
    }
    ftk_status status = FTK_OK;
    if (r->logit_count)
        status = ops->download(e->stream, e->buffers.host_logits, e->buffers.logits.memory,
                               (uint64_t)r->logit_count * e->info.vocabulary * sizeof(float));
    if (status == FTK_OK) status = ops->stream_sync(e->stream);
    if (status == FTK_OK) return FTK_OK;
    return fti_fail(err, status, "a step of %u rows failed on the %s backend", r->rows, ops->name);
}

/* A new sequence starts from state zero; its keys and values need no clearing,
 * since only positions that were written are read. */
static ftk_status reset_state(ftk_engine *e, ftk_error *err) {
    if (!e->state.memory) return FTK_OK;
    ftk_status status = e->backend->ops->clear(e->stream, e->state.memory, e->state.bytes);
    if (status == FTK_OK) return FTK_OK;
    return fti_fail(err, status, "clearing the recurrent state failed");
}

/* ---- graph of the decode step ---- */

/* Runs the shape once, since the first launch of a kernel may load it, then records
 * it. On a failure the engine goes on eagerly and keeps the reason. */
static ftk_status record(ftk_engine *e, ftk_error *err) {
    const fti_backend_ops *ops = e->backend->ops;
    const step_request warm = {.rows = 1, .logit_count = 1, .padding = true};
    FTI_TRY(run_step(e, &warm, NULL, err));
    ftk_status status = ops->capture_begin(e->stream);
    if (status != FTK_OK) return fti_fail(err, status, "capture could not begin");
    ftk_step step = step_of(e, 1, 1);
    ftk_status ran = call_run(e, &step, err);
    status = ops->capture_end(e->stream, &e->decode_graph, ran == FTK_OK ? err : NULL);
    return ran != FTK_OK ? ran : status;
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
    ftk_status status = record(e, &failure);
    if (status == FTK_OK) return FTK_OK;
    if (e->decode_graph) e->backend->ops->graph_destroy(e->decode_graph);
    e->decode_graph = NULL;
    if (e->settings.graphs == FTI_ON)
        return fti_fail(err, status, "backend.graphs is on, but capture failed: %.800s",
                        failure.message);
    snprintf(e->graph_reason, sizeof e->graph_reason, "capture failed: %.130s", failure.message);
    return FTK_OK;
}

/* ---- checks ---- */

static ftk_status check_ids(const ftk_engine *e, const int32_t *ids, size_t count, ftk_error *err) {
    FTI_TRY(fti_lifecycle_need(&e->lifecycle, FTI_STAGE_READY, err));
    if (count == 0 || !ids)
        return fti_fail(err, FTK_E_ARGUMENT, "the prompt is empty: at least one token is needed");
    if (count > e->budget.context)
        return fti_fail(err, FTK_E_CONTEXT,
                        "%zu tokens do not fit the context of %u: shorten the text or raise "
                        "memory.kv_tokens (--ctx, at most %u)",
                        count, e->budget.context, e->info.context);
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= e->info.vocabulary)
            return fti_fail(err, FTK_E_ARGUMENT, "token %zu is %d, the vocabulary has ids 0 to %u",
                            i, ids[i], e->info.vocabulary - 1);
    return FTK_OK;
}

static uint32_t chunk_rows(const ftk_engine *e, uint32_t asked) {
    return asked == 0 || asked > e->buffers.rows ? e->buffers.rows : asked;
}

/* ---- generate ---- */

typedef struct generation {
    ftk_engine *e;
    const int32_t *prompt;
    const ftk_generate_options *o;
    fti_sampling sampling;
    fti_request_counts counts;
    int32_t last; /* token chosen last, not yet run */
    uint64_t delivered;
    XXH3_state_t *hash; /* of the delivered ids */
    ftk_generate_result result;
} generation;

static ftk_status one_step(generation *g, const fti_step_choice *c, ftk_error *err) {
    const step_request r = {.tokens = c->decode ? &g->last : g->prompt + c->first,
                            .first = c->first,
                            .rows = c->rows,
                            .logit_count = c->samples ? 1 : 0};
    if (replays(g->e, &r)) g->result.graph_replays++;
    *(c->decode ? &g->result.decode_steps : &g->result.prefill_steps) += 1;
    FTI_TRY(run_step(g->e, &r, NULL, err));
    g->counts.computed += c->rows;
    return FTK_OK;
}

/* Chooses the next token from the last row's logits. */
static ftk_status choose_token(generation *g, ftk_error *err) {
    FTI_TRY(fti_sample(g->e->sampler, g->e->buffers.host_logits, &g->sampling, g->counts.computed,
                       &g->last, err));
    g->counts.chosen++;
    return FTK_OK;
}

/* Hands the chosen token out; sets result.finish when generation is over. */
static void deliver(generation *g) {
    const ftk_generate_options *o = g->o;
    if (!o->ignore_end && ftk_token_is_end(g->e, g->last)) {
        g->result.finish = FTK_FINISH_STOP;
        return;
    }
    g->delivered++;
    XXH3_64bits_update(g->hash, &g->last, sizeof g->last);
    ftk_str piece = fti_tokenizer_piece(g->e->tokenizer, g->last);
    if (o->on_token && o->on_token(o->user, g->last, piece.data, (size_t)piece.size) != 0)
        g->result.finish = FTK_FINISH_CANCELLED;
    else if ((o->max_tokens && g->delivered == o->max_tokens) ||
             g->counts.prompt + g->counts.chosen > g->e->budget.context)
        g->result.finish = FTK_FINISH_LENGTH;
}

static ftk_status generate(generation *g, ftk_error *err) {
    uint32_t chunk = chunk_rows(g->e, g->o->chunk);
    double start = now(), first = 0;
    FTI_TRY(reset_state(g->e, err));
    while (g->result.finish == 0) {
        fti_step_choice c = fti_next_step(&g->counts, chunk);
        FTI_TRY(one_step(g, &c, err));
        if (!c.samples) continue;
        if (!c.decode) {
            first = now();
            g->result.prefill_seconds = first - start;
        }
        FTI_TRY(choose_token(g, err));
        deliver(g);
    }
    g->result.decode_seconds = now() - first;
    return FTK_OK;
}

static void finish_result(const generation *g, ftk_generate_result *out) {
    if (!out) return;
    uint32_t size = out->struct_size;
    *out = g->result;
    out->struct_size = size;
    out->prompt_tokens = g->counts.prompt;
    out->tokens = g->delivered;
    out->hash = XXH3_64bits_digest(g->hash);
}

static fti_sampling sampling_of(const ftk_sampling *s) {
    return (fti_sampling){.temperature = s->temperature,
                          .top_p = s->top_p,
                          .min_p = s->min_p,
                          .top_k = s->top_k,
                          .seed = s->seed};
}

static ftk_status check_sizes(uint32_t found, size_t wanted, const char *what, ftk_error *err) {
    if (found == wanted) return FTK_OK;
    return fti_fail(err, FTK_E_ARGUMENT, "%s.struct_size is %u, wanted %zu: use its INIT macro",
                    what, found, wanted);
}

ftk_status ftk_generate(ftk_engine *engine, const int32_t *prompt, size_t count,
                        const ftk_generate_options *options, ftk_generate_result *result,
                        ftk_error *err) {
    if (!engine || !options)
        return fti_fail(err, FTK_E_ARGUMENT, "engine and options must not be NULL");
    FTI_TRY(check_sizes(options->struct_size, sizeof *options, "ftk_generate_options", err));
    FTI_TRY(
        check_sizes(options->sampling.struct_size, sizeof options->sampling, "ftk_sampling", err));
    if (result)
        FTI_TRY(check_sizes(result->struct_size, sizeof *result, "ftk_generate_result", err));
    FTI_TRY(check_ids(engine, prompt, count, err));
    generation g = {.e = engine,
                    .prompt = prompt,
                    .o = options,
                    .sampling = sampling_of(&options->sampling),
                    .counts = {.prompt = count}};
    FTI_TRY(fti_sampling_check(&g.sampling, err));
    g.hash = XXH3_createState();
    if (!g.hash) return fti_no_memory(err, 0, "the hash of the tokens");
    XXH3_64bits_reset(g.hash);
    fti_fpenv saved = fti_fpenv_enter();
    ftk_status status = generate(&g, err);
    fti_fpenv_leave(saved);
    if (status == FTK_OK) finish_result(&g, result);
    XXH3_freeState(g.hash);
    return status;
}

/* ---- evaluate ---- */

static ftk_status hand_out(ftk_engine *e, const ftk_evaluate_options *o, uint64_t first,
                           uint32_t rows, const float *layers, float *row_layers, ftk_error *err) {
    uint64_t hidden = e->info.hidden;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t l = 0; layers && l < e->info.layers; l++)
            memcpy(row_layers + l * hidden, layers + ((uint64_t)l * rows + r) * hidden,
                   hidden * sizeof(float));
        if (o->on_logits && o->on_logits(o->user, (size_t)first + r,
                                         e->buffers.host_logits + (uint64_t)r * e->info.vocabulary,
                                         layers ? row_layers : NULL) != 0)
            return fti_fail(err, FTK_E_CANCELLED, "evaluation was cancelled at position %llu",
                            (unsigned long long)first + r);
    }
    return FTK_OK;
}

/* Room for the layers' outputs of a chunk, on the device and on the host. */
typedef struct layer_taps {
    uint64_t bytes;
    void *device;
    float *host;
    float *row;
} layer_taps;

static ftk_status open_taps(ftk_engine *e, uint32_t chunk, layer_taps *taps, ftk_error *err) {
    uint64_t row = (uint64_t)e->info.layers * e->info.hidden;
    taps->bytes = chunk * row * sizeof(float);
    taps->host = fti_calloc((size_t)(chunk * row), sizeof(float));
    taps->row = fti_calloc((size_t)row, sizeof(float));
    if (!taps->host || !taps->row) return fti_no_memory(err, taps->bytes, "layer outputs");
    return e->backend->ops->alloc(e->backend, taps->bytes, "layer outputs", &taps->device, err);
}

static void close_taps(ftk_engine *e, layer_taps *taps) {
    if (taps->device) e->backend->ops->release(e->backend, taps->device, taps->bytes);
    fti_free(taps->host);
    fti_free(taps->row);
}

static ftk_status evaluate_chunk(ftk_engine *e, const step_request *r, layer_taps *taps,
                                 ftk_error *err) {
    FTI_TRY(run_step(e, r, taps->device, err));
    if (!taps->device) return FTK_OK;
    uint64_t bytes = (uint64_t)r->rows * e->info.layers * e->info.hidden * sizeof(float);
    ftk_status status = e->backend->ops->download(e->stream, taps->host, taps->device, bytes);
    if (status == FTK_OK) status = e->backend->ops->stream_sync(e->stream);
    return status == FTK_OK ? FTK_OK : fti_fail(err, status, "reading layer outputs failed");
}

static ftk_status evaluate(ftk_engine *e, const int32_t *ids, size_t count,
                           const ftk_evaluate_options *o, layer_taps *taps, uint32_t chunk,
                           ftk_error *err) {
    FTI_TRY(reset_state(e, err));
    fti_request_counts counts = {.prompt = count};
    while (counts.computed < count) {
        fti_step_choice c = fti_next_step(&counts, chunk);
        const step_request r = {
            .tokens = ids + c.first, .first = c.first, .rows = c.rows, .logit_count = c.rows};
        FTI_TRY(evaluate_chunk(e, &r, taps, err));
        FTI_TRY(hand_out(e, o, c.first, c.rows, taps->host, taps->row, err));
        counts.computed += c.rows;
    }
    return FTK_OK;
}

ftk_status ftk_evaluate(ftk_engine *engine, const int32_t *ids, size_t count,
                        const ftk_evaluate_options *options, ftk_error *err) {
    if (!engine || !options)
        return fti_fail(err, FTK_E_ARGUMENT, "engine and options must not be NULL");
    FTI_TRY(check_sizes(options->struct_size, sizeof *options, "ftk_evaluate_options", err));
    FTI_TRY(check_ids(engine, ids, count, err));
    uint32_t chunk = chunk_rows(engine, options->chunk);
    if (chunk > engine->buffers.logit_rows) chunk = engine->buffers.logit_rows;
    layer_taps taps = {0};
    ftk_status status = options->want_layers ? open_taps(engine, chunk, &taps, err) : FTK_OK;
    if (status == FTK_OK) {
        fti_fpenv saved = fti_fpenv_enter();
        status = evaluate(engine, ids, count, options, &taps, chunk, err);
        fti_fpenv_leave(saved);
    }
    close_taps(engine, &taps);
    return status;
}
