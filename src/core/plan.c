/*
 * plan.c: from a provider's plan to memory. Everything a plan states is checked
 * against the checkpoint before a byte is allocated; weights that the backend
 * can read in place stay mapped, only the rest is copied.
 */
#include "core/engine.h"
#include "core/gguf.h"

#include <stdio.h>

static const ftk_tensor_plan *tensor_at(const ftk_plan *plan, uint64_t i) {
    return (const ftk_tensor_plan *)(const void *)((const char *)plan->tensors +
                                                   i * plan->tensor_stride);
}

const ftk_bank_part *fti_plan_bank(const ftk_plan *plan, uint64_t i) {
    return (const ftk_bank_part *)(const void *)((const char *)plan->bank_parts +
                                                 i * plan->bank_part_stride);
}

static const ftk_kv_layer *kv_at(const ftk_plan *plan, uint64_t i) {
    return (const ftk_kv_layer *)(const void *)((const char *)plan->kv_layers +
                                                i * plan->kv_layer_stride);
}

/* ---- checking a plan ---- */

/* `where` names the entry, `what` says what was found and what was wanted. */
static ftk_status broken_plan(const ftk_engine *e, ftk_error *err, const char *where,
                              const char *what) {
    return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                    "provider %s, plan_weights: %s: %s; correct the plan",
                    e->provider->manifest->name, where, what);
}

/* True if count matrices of rows x row_bytes, `stride` apart from `offset` on, lie in
 * `size` bytes. */
static bool lies_inside(uint64_t offset, uint64_t rows, uint64_t row_bytes, uint64_t count,
                        uint64_t stride, uint64_t size) {
    uint64_t matrix, last;
    return count > 0 && fti_mul_u64(rows, row_bytes, &matrix) &&
           fti_mul_u64(stride, count - 1, &last) && fti_add_u64(last, offset, &last) &&
           fti_add_u64(last, matrix, &last) && last <= size;
}

static ftk_status operator_reads(const ftk_engine *e, ftk_str name, uint32_t type, ftk_error *err) {
    uint32_t format;
    if (e->backend->operators->activation_format(type, &format) == FTK_OK) return FTK_OK;
    return fti_checkpoint_fail(e->checkpoint, err, FTK_E_CKPT_TYPE,
                               "tensor '%s' has type %s, which the %s backend does not read: use "
                               "a file quantised to another type, such as Q4_K",
                               fti_show(name).text, fti_type_name(type), e->backend->ops->name);
}

/* The tensor that an entry names, if it is as the entry says; NULL, and what is wrong in *err,
 * if it is not. */
static const fti_tensor *find_source(const ftk_engine *e, const char *where, uint64_t tensor,
                                     uint32_t type, ftk_error *err) {
    char what[160];
    uint64_t count = fti_checkpoint_tensor_count(e->checkpoint);
    snprintf(what, sizeof what, "found tensor %llu, wanted one of the checkpoint's %llu",
             (unsigned long long)tensor, (unsigned long long)count);
    const fti_tensor *source = NULL;
    if (tensor < count) source = fti_checkpoint_tensor(e->checkpoint, (size_t)tensor);
    if (source && source->type == type) return source;
    if (source)
        snprintf(what, sizeof what, "found type %s, wanted %s as stored", fti_type_name(type),
                 fti_type_name(source->type));
    (void)broken_plan(e, err, where, what);
    return NULL;
}

static ftk_status outside_source(const ftk_engine *e, const char *where, uint64_t offset,
                                 uint64_t rows, uint64_t cols, const fti_tensor *source,
                                 ftk_error *err) {
    char what[200];
    snprintf(what, sizeof what,
             "found %llu x %llu values from byte %llu on, wanted them inside the tensor's %llu "
             "bytes",
             (unsigned long long)rows, (unsigned long long)cols, (unsigned long long)offset,
             (unsigned long long)source->bytes);
    return broken_plan(e, err, where, what);
}

static ftk_status odd_shape(const ftk_engine *e, const char *where, uint64_t rows, uint64_t cols,
                            uint32_t type, ftk_error *err) {
    char what[160];
    snprintf(what, sizeof what, "found %llu x %llu of type %s, wanted rows of whole blocks",
             (unsigned long long)rows, (unsigned long long)cols, fti_type_name(type));
    return broken_plan(e, err, where, what);
}

static ftk_status check_tensor(const ftk_engine *e, uint64_t i, ftk_error *err) {
    const ftk_tensor_plan *t = tensor_at(&e->plan, i);
    uint64_t row_bytes = fti_type_row_bytes(t->type, t->cols), bytes;
    char where[160];
    snprintf(where, sizeof where, "entry %llu '%s'", (unsigned long long)i, fti_show(t->name).text);
    if (row_bytes == 0 || t->rows == 0 || !fti_mul_u64(t->rows, row_bytes, &bytes))
        return odd_shape(e, where, t->rows, t->cols, t->type, err);
    FTI_TRY(operator_reads(e, t->name, t->type, err));
    if (t->source == FTK_SOURCE_COMPUTED) return FTK_OK;
    if (t->source != FTK_SOURCE_TENSOR)
        return broken_plan(e, err, where,
                           "found an unknown source, wanted FTK_SOURCE_TENSOR or "
                           "FTK_SOURCE_COMPUTED");
    const fti_tensor *source = find_source(e, where, t->tensor, t->type, err);
    if (!source) return FTK_E_PROVIDER_CONTRACT;
    if (!lies_inside(t->offset, t->rows, row_bytes, 1, 0, source->bytes))
        return outside_source(e, where, t->offset, t->rows, t->cols, source, err);
    return FTK_OK;
}

static ftk_status check_bank(const ftk_engine *e, uint64_t i, ftk_error *err) {
    const ftk_bank_part *b = fti_plan_bank(&e->plan, i);
    uint64_t row_bytes = fti_type_row_bytes(b->type, b->cols);
    char where[160];
    snprintf(where, sizeof where, "bank part %llu '%s' of layer %u", (unsigned long long)i,
             fti_show(b->part).text, b->layer);
    if (row_bytes == 0 || b->rows == 0 || b->experts == 0)
        return odd_shape(e, where, b->rows, b->cols, b->type, err);
    if (b->used == 0 || b->used > b->experts)
        return broken_plan(e, err, where, "found `used` outside 1 to `experts`");
    const fti_tensor *source = find_source(e, where, b->tensor, b->type, err);
    if (!source) return FTK_E_PROVIDER_CONTRACT;
    FTI_TRY(operator_reads(e, source->name, b->type, err));
    if (!lies_inside(b->offset, b->rows, row_bytes, b->experts, b->expert_stride, source->bytes))
        return outside_source(e, where, b->offset, b->experts * b->rows, b->cols, source, err);
    return FTK_OK;
}

static ftk_status check_plan(const ftk_engine *e, ftk_error *err) {
    const ftk_plan *p = &e->plan;
    if (p->tensor_stride < sizeof(ftk_tensor_plan) || (p->tensor_count && !p->tensors) ||
        p->bank_part_stride < sizeof(ftk_bank_part) || (p->bank_part_count && !p->bank_parts) ||
        p->kv_layer_stride < sizeof(ftk_kv_layer) || (p->kv_layer_count && !p->kv_layers))
        return broken_plan(e, err, "arrays", "found an array or its stride missing");
    for (uint64_t i = 0; i < p->tensor_count; i++) FTI_TRY(check_tensor(e, i, err));
    for (uint64_t i = 0; i < p->bank_part_count; i++) FTI_TRY(check_bank(e, i, err));
    for (uint64_t i = 0; i < p->kv_layer_count; i++) {
        const ftk_kv_layer *kv = kv_at(p, i);
        if (kv->kv_heads == 0 || kv->key_dim == 0 || kv->value_dim == 0 || kv->kv_heads > 4096 ||
            kv->key_dim > 4096 || kv->value_dim > 4096)
            return broken_plan(e, err, "KV layers",
                               "found a shape with 0, wanted heads and dimensions of 1 to 4096");
    }
    return FTK_OK;
}

/* Rows of the largest step: a chunk of a prompt, or a row of every sequence. */
static uint32_t step_rows(const ftk_engine *e) {
    uint32_t chunk = e->settings.prefill_tokens, sequences = e->settings.sequences;
    return chunk > sequences ? chunk : sequences;
}

ftk_status fti_plan_weights(ftk_engine *e, ftk_error *err) {
    const uint32_t buckets[2] = {step_rows(e), 1};
    uint64_t bytes[2] = {0, 0};
    e->plan = (ftk_plan){.struct_size = (uint32_t)sizeof e->plan,
                         .bucket_rows = buckets,
                         .bucket_workspace_bytes = bytes,
                         .bucket_count = FTI_COUNT(buckets)};
    fti_ctx_begin(&e->ctx);
    ftk_status status = e->provider->table->plan_weights(e->model, &e->plan);
    FTI_TRY(fti_ctx_end(&e->ctx, status, "plan_weights", err));
    e->plan.bucket_rows = NULL;
    e->plan.bucket_workspace_bytes = NULL;
    e->plan.bucket_count = 0;
    e->workspace_bytes = bytes[0] > bytes[1] ? bytes[0] : bytes[1];
    return check_plan(e, err);
}

/* ---- the memory plan ---- */

/* True if the payload can be read where it is mapped. */
static bool mappable(const ftk_engine *e, uint64_t tensor, uint64_t offset) {
    const char *payload = fti_checkpoint_payload(e->checkpoint, (size_t)tensor);
    return ((uintptr_t)payload + offset) % FTI_WEIGHT_ALIGN == 0;
}

static uint64_t tensor_bytes(const ftk_tensor_plan *t) {
    return t->rows * fti_type_row_bytes(t->type, t->cols);
}

/* Of one expert's matrix, and of all: a part of a fused tensor leaves gaps between
 * them, which are another part's. */
static uint64_t expert_bytes(const ftk_bank_part *b) {
    return b->rows * fti_type_row_bytes(b->type, b->cols);
}

static uint64_t bank_bytes(const ftk_bank_part *b) {
    return b->experts * expert_bytes(b);
}

static void count_weights(const ftk_engine *e, fti_budget_request *r) {
    const ftk_plan *p = &e->plan;
    for (uint64_t i = 0; i < p->tensor_count; i++) {
        const ftk_tensor_plan *t = tensor_at(p, i);
        bool mapped = t->source == FTK_SOURCE_TENSOR && mappable(e, t->tensor, t->offset);
        *(mapped ? &r->weights_mapped : &r->weights_allocated) += tensor_bytes(t);
    }
    for (uint64_t i = 0; i < p->bank_part_count; i++) {
        const ftk_bank_part *b = fti_plan_bank(p, i);
        bool mapped = mappable(e, b->tensor, b->offset);
        *(mapped ? &r->weights_mapped : &r->weights_allocated) += bank_bytes(b);
    }
}

/* With experts in slots the other weights are copied, so that what memory they take is theirs
 * and not the page cache's, which gives way when experts are read. */
static uint64_t dense_bytes(const ftk_engine *e) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < e->plan.tensor_count; i++) sum += tensor_bytes(tensor_at(&e->plan, i));
    return sum;
}

static ftk_status check_kv_type(const ftk_engine *e, ftk_error *err) {
    for (uint64_t i = 0; e->kv_type == FTK_TYPE_Q8_0 && i < e->plan.kv_layer_count; i++) {
        const ftk_kv_layer *kv = kv_at(&e->plan, i);
        uint32_t odd = kv->key_dim % 32 ? kv->key_dim : kv->value_dim;
        if (odd % 32)
            return fti_fail(err, FTK_E_CONFIG_VALUE,
                            "memory.kv_type: found q8_0, but the model's heads have %u elements, "
                            "and q8_0 wants a multiple of 32: set f16",
                            odd);
    }
    return FTK_OK;
}

static uint64_t kv_bytes_per_token(const ftk_engine *e) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < e->plan.kv_layer_count; i++) {
        const ftk_kv_layer *kv = kv_at(&e->plan, i);
        sum += kv->kv_heads *
               (fti_kv_bytes(e->kv_type, kv->key_dim) + fti_kv_bytes(e->kv_type, kv->value_dim));
    }
    return sum;
}

/* Where each int32 array of a step lies. */
static void lay_ids(fti_step_buffers *b) {
    uint32_t at = 0;
    const struct {
        uint32_t *offset;
        uint32_t count;
    } arrays[] = {{&b->tokens, b->rows},
                  {&b->positions, b->rows},
                  {&b->row_sequence, b->rows},
                  {&b->sequence_rows, b->sequences + 1},
                  {&b->state_slots, b->sequences},
                  {&b->logit_index, b->rows},
                  {&b->block_table, b->sequences * b->blocks}};
    for (size_t i = 0; i < FTI_COUNT(arrays); i++) {
        *arrays[i].offset = at;
        at += (arrays[i].count + 15) / 16 * 16;
    }
    b->id_count = at;
}

static uint32_t logit_rows(const ftk_engine *e) {
    uint64_t rows = FTI_LOGIT_BYTES / (e->info.vocabulary * sizeof(float));
    if (rows > e->buffers.rows) rows = e->buffers.rows;
    return rows > e->settings.sequences ? (uint32_t)rows : e->settings.sequences;
}

/* ---- experts in slots or not ---- */

static ftk_status check_slots(const ftk_engine *e, const struct ftk_config *c, ftk_error *err) {
    for (uint32_t i = 0; c->slots != 0 && c->residency != FTI_OFF && i < e->pools.count; i++) {
        uint32_t used = e->pools.pools[i].used;
        if (c->slots < used)
            return fti_fail(err, FTK_E_DOES_NOT_FIT,
                            "moe.slots: found %u, but a row reads %u experts of a layer at once: "
                            "set at least %u, or auto",
                            c->slots, used, used);
    }
    return FTK_OK;
}

/* What was asked for, else from the experts of one row to all that there are. */
static fti_slot_need need_of(const fti_pool *pool, const struct ftk_config *c) {
    uint64_t all = (uint64_t)pool->layers * pool->experts;
    uint64_t asked = c->slots < all ? c->slots : all;
    /* A slot has places in the residency's arrays too. */
    return (fti_slot_need){.least = c->slots ? asked : pool->used,
                           .most = c->slots ? asked : all,
                           .slot_bytes = fti_pool_bytes(pool, 1) - fti_pool_bytes(pool, 0),
                           .fixed_bytes = fti_pool_bytes(pool, 0)};
}

/* Where experts are whole, the request is as count_weights says. */
static ftk_status plan_experts(ftk_engine *e, const struct ftk_config *c,
                               const fti_budget_request *whole, ftk_error *err) {
    fti_slot_need needs[FTI_LADDER_POOLS];
    for (uint32_t i = 0; i < e->pools.count && i < FTI_LADDER_POOLS; i++)
        needs[i] = need_of(&e->pools.pools[i], c);
    const fti_ladder_request q = {.whole = *whole,
                                  .dense_bytes = dense_bytes(e),
                                  .pools = needs,
                                  .pool_count = e->pools.count,
                                  .residency = c->residency};
    FTI_TRY(check_slots(e, c, err));
    FTI_TRY(fti_ladder_plan(&q, &e->budget, &e->ladder, err));
    for (uint32_t i = 0; e->ladder.resident && i < e->pools.count; i++)
        e->pools.pools[i].slots = e->ladder.rungs[e->ladder.chosen].slots[i];
    return FTK_OK;
}

ftk_status fti_plan_memory(ftk_engine *e, const struct ftk_config *config, ftk_error *err) {
    fti_step_buffers *b = &e->buffers;
    FTI_TRY(check_kv_type(e, err));
    b->rows = step_rows(e);
    b->sequences = e->settings.sequences;
    b->logit_rows = logit_rows(e);
    bool counted = config->snapshots != FTI_AUTO_COUNT;
    /* One for each running request, and one that a request about to start goes on from. */
    bool caches = config->prefix_cache && e->plan.state_bytes > 0;
    fti_budget_request r = {.kv_bytes_per_token = kv_bytes_per_token(e),
                            .state_bytes = e->plan.state_bytes * e->settings.sequences,
                            .snapshot_bytes = e->plan.state_bytes,
                            .snapshots = !caches   ? 0
                                         : counted ? config->snapshots
                                                   : e->settings.sequences + 1,
                            .fewer_snapshots = !counted,
                            .workspace = e->workspace_bytes,
                            .page_tokens = FTI_PAGE_TOKENS,
                            .model_context = e->info.context,
                            .kv_tokens = config->kv_tokens,
                            .available = e->backend->ops->memory_available(e->backend),
                            .limit = config->memory_device,
                            .reserve = config->memory_reserve};
    FTI_TRY(fti_banks_plan(&e->plan, e->checkpoint, &e->pools, err));
    count_weights(e, &r);
    b->blocks = (fti_budget_wish(&r) + FTI_PAGE_TOKENS - 1) / FTI_PAGE_TOKENS;
    lay_ids(b);
    r.step_buffers = b->id_count * sizeof(int32_t) +
                     (uint64_t)b->logit_rows * e->info.vocabulary * sizeof(float);
    ftk_error inner = FTK_ERROR_INIT;
    ftk_status status = plan_experts(e, config, &r, &inner);
    if (status == FTK_OK) return FTK_OK;
    return fti_checkpoint_fail(e->checkpoint, err, status, "%s", inner.message);
}

/* ---- allocation ---- */

static ftk_status allocate_block(ftk_engine *e, uint64_t bytes, const char *what, fti_block *block,
                                 ftk_error *err) {
    if (bytes == 0) return FTK_OK;
    FTI_TRY(e->backend->ops->alloc(e->backend, bytes, what, &block->memory, err));
    block->bytes = bytes;
    return FTK_OK;
}

static void release_block(ftk_engine *e, fti_block *block) {
    if (block->memory) e->backend->ops->release(e->backend, block->memory, block->bytes);
    *block = (fti_block){0};
}

static ftk_status allocate_kv(ftk_engine *e, ftk_error *err) {
    uint64_t tokens = (uint64_t)e->budget.pages * FTI_PAGE_TOKENS;
    for (uint64_t i = 0; i < e->plan.kv_layer_count; i++) {
        const ftk_kv_layer *kv = kv_at(&e->plan, i);
        fti_block *block = &e->kv_blocks[2 * i];
        FTI_TRY(allocate_block(e, tokens * kv->kv_heads * fti_kv_bytes(e->kv_type, kv->key_dim),
                               "keys", &block[0], err));
        FTI_TRY(allocate_block(e, tokens * kv->kv_heads * fti_kv_bytes(e->kv_type, kv->value_dim),
                               "values", &block[1], err));
        e->kv[i] = (ftk_kv_view){.struct_size = (uint32_t)sizeof(ftk_kv_view),
                                 .type = e->kv_type,
                                 .kv_heads = kv->kv_heads,
                                 .key_dim = kv->key_dim,
                                 .value_dim = kv->value_dim,
                                 .page_tokens = FTI_PAGE_TOKENS,
                                 .keys = block[0].memory,
                                 .values = block[1].memory};
    }
    return FTK_OK;
}

static ftk_status allocate_tables(ftk_engine *e, ftk_error *err) {
    size_t tensors = (size_t)e->plan.tensor_count, banks = (size_t)e->plan.bank_part_count;
    size_t layers = (size_t)e->plan.kv_layer_count;
    e->weights = fti_calloc(tensors, sizeof *e->weights);
    e->computed = fti_calloc(tensors, sizeof *e->computed);
    e->banks = fti_calloc(banks, sizeof *e->banks);
    e->owned = fti_calloc(tensors + banks, sizeof *e->owned);
    e->kv = fti_calloc(layers, sizeof *e->kv);
    e->kv_blocks = fti_calloc(2 * layers, sizeof *e->kv_blocks);
    e->buffers.host_ids = fti_calloc(e->buffers.id_count, sizeof(int32_t));
    e->buffers.host_logits = fti_calloc((size_t)e->buffers.logit_rows * e->info.vocabulary,
                                        sizeof(float));
    if (e->weights && e->computed && e->banks && e->owned && e->kv && e->kv_blocks &&
        e->buffers.host_ids && e->buffers.host_logits)
        return FTK_OK;
    return fti_no_memory(err, (tensors + banks) * sizeof(ftk_bank_view), "the weight tables");
}

ftk_status fti_allocate(ftk_engine *e, ftk_error *err) {
    fti_step_buffers *b = &e->buffers;
    FTI_TRY(allocate_tables(e, err));
    if (e->ladder.resident) FTI_TRY(fti_banks_allocate(&e->pools, e->backend, err));
    FTI_TRY(allocate_kv(e, err));
    FTI_TRY(allocate_block(e, e->budget.recurrent_state, "recurrent state", &e->state, err));
    FTI_TRY(allocate_block(e, e->workspace_bytes, "workspace", &b->workspace, err));
    FTI_TRY(allocate_block(e, b->id_count * sizeof(int32_t), "step arrays", &b->ids, err));
    return allocate_block(e, (uint64_t)b->logit_rows * e->info.vocabulary * sizeof(float), "logits",
                          &b->logits, err);
}

/* ---- weights ---- */

/* The device address of mapped bytes, NULL where the backend cannot read them there. */
static const void *adopt(ftk_engine *e, uint64_t tensor, uint64_t offset, uint64_t bytes) {
    const char *payload = fti_checkpoint_payload(e->checkpoint, (size_t)tensor);
    const void *out;
    if (!mappable(e, tensor, offset)) return NULL;
    return e->backend->ops->adopt(e->backend, payload + offset, bytes, &out) == FTK_OK ? out : NULL;
}

/* Copies `count` pieces of `bytes`, `stride` apart from `offset` of tensor `tensor` on,
 * into a new block, one after the other. */
static ftk_status copy_pieces(ftk_engine *e, uint64_t tensor, uint64_t offset, uint64_t bytes,
                              uint64_t count, uint64_t stride, fti_block *block, ftk_error *err) {
    const char *from = (const char *)fti_checkpoint_payload(e->checkpoint, (size_t)tensor) + offset;
    FTI_TRY(allocate_block(e, count * bytes, "weights", block, err));
    ftk_status status = FTK_OK;
    for (uint64_t i = 0; status == FTK_OK && i < count; i++)
        status = e->backend->ops->upload(e->stream, (char *)block->memory + i * bytes,
                                         from + i * stride, bytes);
    if (status == FTK_OK) status = e->backend->ops->stream_sync(e->stream, NULL);
    if (status == FTK_OK) return FTK_OK;
    return fti_fail(err, status, "copying weights to the device failed");
}

static ftk_status place_tensor(ftk_engine *e, uint64_t i, ftk_error *err) {
    const ftk_tensor_plan *t = tensor_at(&e->plan, i);
    const void *data;
    if (t->source == FTK_SOURCE_COMPUTED) {
        FTI_TRY(allocate_block(e, tensor_bytes(t), "computed weights", &e->owned[i], err));
        data = e->computed[i] = e->owned[i].memory;
    } else {
        data = e->ladder.resident ? NULL : adopt(e, t->tensor, t->offset, tensor_bytes(t));
        if (!data) {
            FTI_TRY(copy_pieces(e, t->tensor, t->offset, tensor_bytes(t), 1, 0, &e->owned[i], err));
            data = e->owned[i].memory;
        }
    }
    e->weights[i] = (ftk_weight){.struct_size = (uint32_t)sizeof(ftk_weight),
                                 .type = t->type,
                                 .layout = FTK_LAYOUT_RAW,
                                 .rows = t->rows,
                                 .cols = t->cols,
                                 .row_bytes = fti_type_row_bytes(t->type, t->cols),
                                 .data = data};
    return FTK_OK;
}

static ftk_status place_bank(ftk_engine *e, uint64_t i, ftk_error *err) {
    const ftk_bank_part *b = fti_plan_bank(&e->plan, i);
    fti_block *own = &e->owned[e->plan.tensor_count + i];
    uint64_t bytes = expert_bytes(b), stride = b->expert_stride;
    const void *data = adopt(e, b->tensor, b->offset, stride * (b->experts - 1) + bytes);
    if (!data) {
        FTI_TRY(copy_pieces(e, b->tensor, b->offset, bytes, b->experts, stride, own, err));
        data = own->memory;
        stride = bytes;
    }
    e->banks[i] = (ftk_bank_view){.struct_size = (uint32_t)sizeof(ftk_bank_view),
                                  .type = b->type,
                                  .layout = FTK_LAYOUT_RAW,
                                  .experts = b->experts,
                                  .rows = b->rows,
                                  .cols = b->cols,
                                  .row_bytes = fti_type_row_bytes(b->type, b->cols),
                                  .expert_stride = stride,
                                  .base = data};
    return FTK_OK;
}

static ftk_status progress(const ftk_open_options *o, uint64_t done, uint64_t total,
                           ftk_error *err) {
    if (o && o->progress &&
        o->progress(o->user, fti_stage_text(FTI_STAGE_WEIGHTS), done, total) != 0)
        return fti_fail(err, FTK_E_CANCELLED, "opening was cancelled while loading weights");
    return FTK_OK;
}

ftk_status fti_load_weights(ftk_engine *e, const ftk_open_options *options, ftk_error *err) {
    uint64_t tensors = e->plan.tensor_count, banks = e->plan.bank_part_count;
    for (uint64_t i = 0; i < tensors; i++) {
        FTI_TRY(progress(options, i, tensors + banks, err));
        FTI_TRY(place_tensor(e, i, err));
    }
    if (e->ladder.resident) fti_banks_views(&e->pools, e->banks);
    for (uint64_t i = 0; !e->ladder.resident && i < banks; i++) {
        FTI_TRY(progress(options, tensors + i, tensors + banks, err));
        FTI_TRY(place_bank(e, i, err));
    }
    const ftk_weight_views views = {.struct_size = (uint32_t)sizeof views,
                                    .weight_stride = (uint32_t)sizeof *e->weights,
                                    .weights = e->weights,
                                    .weight_count = tensors,
                                    .banks = e->banks,
                                    .bank_count = banks,
                                    .bank_stride = (uint32_t)sizeof *e->banks,
                                    .computed = e->computed};
    fti_ctx_begin(&e->ctx);
    ftk_status status = e->provider->table->load_weights(e->model, &views);
    return fti_ctx_end(&e->ctx, status, "load_weights", err);
}

void fti_release_memory(ftk_engine *e) {
    fti_step_buffers *b = &e->buffers;
    fti_banks_release(&e->pools);
    fti_block *const blocks[] = {&e->state, &b->ids, &b->logits, &b->workspace};
    for (size_t i = 0; i < FTI_COUNT(blocks); i++) release_block(e, blocks[i]);
    for (uint64_t i = 0; e->owned && i < e->plan.tensor_count + e->plan.bank_part_count; i++)
        release_block(e, &e->owned[i]);
    for (uint64_t i = 0; e->kv_blocks && i < 2 * e->plan.kv_layer_count; i++)
        release_block(e, &e->kv_blocks[i]);
    void *const tables[] = {e->weights, e->computed,  e->banks,    e->owned,
                            e->kv,      e->kv_blocks, b->host_ids, b->host_logits};
    for (size_t i = 0; i < FTI_COUNT(tables); i++) fti_free(tables[i]);
}
