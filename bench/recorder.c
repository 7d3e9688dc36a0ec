/* recorder.c: see recorder.h. An entry takes no argument, so what it records into is kept here. */
#include "recorder.h"

#include <stdlib.h>
#include <string.h>

#include "cli/text.h"
#include "core/checkpoint.h"

static struct {
    ftk_provider_entry entry;
    fti_recorder *into;
    const ftk_provider *real;
    const ftk_host *host;
    const ftk_if_operators *operators;
    ftk_provider provider;
    ftk_host shown;
    ftk_if_operators watched;
    ftk_weight_views views; /* its arrays live as long as the model */
    size_t *layer_of;       /* [bank parts] layer of the trace */
    size_t part_count;
    size_t next_layer; /* of the step at hand: layers before it have been noted */
    bool in_step;
} shim;

/* ---- the layers ---- */

/* The layer of the trace that a part belongs to; parts of one layer lie together. */
static bool add_part(fti_trace_layer *layers, size_t *count, const ftk_bank_part *part) {
    if (*count == 0 || layers[*count - 1].layer != part->layer)
        layers[(*count)++] = (fti_trace_layer){
            .layer = part->layer, .experts = part->experts, .used = part->used};
    fti_trace_layer *l = &layers[*count - 1];
    if (l->part_count == FTI_TRACE_PARTS) return false;
    l->part_bytes[l->part_count++] = part->rows * fti_type_row_bytes(part->type, part->cols);
    return true;
}

static const ftk_bank_part *part_at(const ftk_plan *plan, size_t i) {
    const char *first = (const char *)plan->bank_parts;
    return (const ftk_bank_part *)(const void *)(first + i * plan->bank_part_stride);
}

static ftk_status plan_weights(ftk_model *model, ftk_plan *plan) {
    ftk_status status = shim.real->plan_weights(model, plan);
    if (status != FTK_OK) return status;
    size_t count = 0;
    fti_trace_layer *layers = fti_cli_alloc((size_t)plan->bank_part_count + 1, sizeof *layers);
    free(shim.layer_of);
    shim.part_count = (size_t)plan->bank_part_count;
    shim.layer_of = fti_cli_alloc(shim.part_count + 1, sizeof *shim.layer_of);
    for (size_t i = 0; i < shim.part_count; i++) {
        if (!add_part(layers, &count, part_at(plan, i)))
            shim.into->fault = "a layer has more parts than a trace holds";
        shim.layer_of[i] = count - 1;
    }
    fti_trace_free(&shim.into->trace);
    fti_trace_init(&shim.into->trace, "", layers, count);
    free(layers);
    return FTK_OK;
}

static ftk_status load_weights(ftk_model *model, const ftk_weight_views *views) {
    shim.views = *views;
    return shim.real->load_weights(model, views);
}

/* ---- a step ---- */

static size_t layer_of(const ftk_bank_view *bank) {
    const char *first = (const char *)shim.views.banks;
    for (size_t i = 0; i < shim.part_count; i++)
        if ((const char *)bank == first + i * shim.views.bank_stride) return shim.layer_of[i];
    return SIZE_MAX;
}

static void note(const ftk_bank_view *bank, const ftk_routing *r) {
    size_t layer = layer_of(bank);
    if (layer == SIZE_MAX) shim.into->fault = "a bank of experts is none of the plan's";
    if (layer == SIZE_MAX || layer < shim.next_layer) return; /* another part of the same */
    shim.next_layer = layer + 1;
    for (uint32_t e = 0; e < r->expert_count; e++)
        if (r->offsets[e + 1] > r->offsets[e])
            fti_trace_add_entry(&shim.into->trace, layer, e,
                                (uint32_t)(r->offsets[e + 1] - r->offsets[e]));
}

static ftk_status watched_grouped_matmul(ftk_stream *stream, const ftk_op_grouped_matmul *op) {
    ftk_status status = shim.operators->grouped_matmul(stream, op);
    if (status == FTK_OK && shim.in_step) note(op->bank, &op->routing);
    return status;
}

static uint32_t prompt_rows_of(const ftk_step *step) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < step->rows; r++)
        count += (uint32_t)step->positions[r] < shim.into->prompt_count;
    return count;
}

static ftk_status run(ftk_model *model, const ftk_step *step) {
    shim.in_step = shim.into->on;
    shim.next_layer = 0;
    if (shim.in_step) fti_trace_add_step(&shim.into->trace, step->rows, prompt_rows_of(step));
    ftk_status status = shim.real->run(model, step);
    shim.in_step = false;
    return status;
}

/* ---- the provider's face ---- */

static const void *query(ftk_core_ctx *ctx, ftk_str name, uint32_t level) {
    const void *table = shim.host->query(ctx, name, level);
    if (!table || !fti_str_is(name, "operators")) return table;
    shim.operators = table;
    shim.watched = *shim.operators;
    shim.watched.grouped_matmul = watched_grouped_matmul;
    return &shim.watched;
}

static ftk_status create(const ftk_host *host, ftk_core_ctx *ctx, const ftk_create_in *in,
                         ftk_model_info *info, ftk_model **out) {
    shim.host = host;
    shim.shown = *host;
    shim.shown.query = query;
    return shim.real->create(&shim.shown, ctx, in, info, out);
}

static const ftk_provider *entry(void) {
    shim.real = shim.entry();
    shim.provider = *shim.real;
    shim.provider.create = create;
    shim.provider.plan_weights = plan_weights;
    shim.provider.load_weights = load_weights;
    shim.provider.run = run;
    return &shim.provider;
}

ftk_provider_entry fti_recorder_entry(ftk_provider_entry real, fti_recorder *into) {
    shim.entry = real;
    shim.into = into;
    return entry;
}
