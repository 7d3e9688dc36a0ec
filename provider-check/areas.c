/*
 * areas.c: a model's memory by its plan, each part with guard bytes around it. Weights
 * are read where the checkpoint is mapped, read-only, so that who writes to them is
 * stopped there.
 */
#include "mock.h"

#include <stdlib.h>

#define WEIGHT_ALIGN 32u
#define SLOT_GAP     64u /* bytes between the states of two sequences */
#define SLOT_BYTE    0xB5u
#define SPARE_SLOTS  3u /* of no sequence */

static const ftk_tensor_plan *tensor_at(const ftk_plan *p, uint64_t i) {
    return (const ftk_tensor_plan *)(const void *)((const char *)p->tensors + i * p->tensor_stride);
}

static const ftk_bank_part *bank_at(const ftk_plan *p, uint64_t i) {
    return (const ftk_bank_part *)(const void *)((const char *)p->bank_parts +
                                                 i * p->bank_part_stride);
}

static const ftk_kv_layer *kv_at(const ftk_plan *p, uint64_t i) {
    return (const ftk_kv_layer *)(const void *)((const char *)p->kv_layers +
                                                i * p->kv_layer_stride);
}

/* ---- the plan ---- */

static bool lies_inside(uint64_t offset, uint64_t bytes, uint64_t count, uint64_t stride,
                        uint64_t size) {
    uint64_t end;
    return count > 0 && fti_mul_u64(stride, count - 1, &end) && fti_add_u64(end, offset, &end) &&
           fti_add_u64(end, bytes, &end) && end <= size;
}

static const fti_tensor *source_of(const fti_pc_mock *m, uint64_t index) {
    const fti_checkpoint *c = m->target->checkpoint;
    return index < fti_checkpoint_tensor_count(c) ? fti_checkpoint_tensor(c, (size_t)index) : NULL;
}

#define ENTRY               "plan_weights: entry %llu '%.*s': "
#define ENTRY_ARGS(i, name) (unsigned long long)(i), FTI_STR_ARGS(name)

static bool check_tensor(const fti_pc_mock *m, uint64_t i) {
    const ftk_tensor_plan *t = tensor_at(&m->plan, i);
    uint64_t row = fti_type_row_bytes(t->type, t->cols), bytes = 0;
    bool shaped = row > 0 && t->rows > 0 && fti_mul_u64(row, t->rows, &bytes);
    if (t->source == FTK_SOURCE_COMPUTED || !shaped)
        return fti_pc_check(shaped,
                            ENTRY "found %llu x %llu of type %s, wanted rows of whole blocks",
                            ENTRY_ARGS(i, t->name), (unsigned long long)t->rows,
                            (unsigned long long)t->cols, fti_type_name(t->type));
    const fti_tensor *source = t->source == FTK_SOURCE_TENSOR ? source_of(m, t->tensor) : NULL;
    if (!fti_pc_check(source != NULL,
                      ENTRY "found source %u, tensor %llu, wanted a tensor of the "
                            "checkpoint, or FTK_SOURCE_COMPUTED",
                      ENTRY_ARGS(i, t->name), t->source, (unsigned long long)t->tensor) ||
        !source ||
        !fti_pc_check(source->type == t->type, ENTRY "found type %s, wanted %s as stored",
                      ENTRY_ARGS(i, t->name), fti_type_name(t->type), fti_type_name(source->type)))
        return false;
    return fti_pc_check(lies_inside(t->offset, bytes, 1, 0, source->bytes),
                        ENTRY "found %llu x %llu of type %s at byte %llu, wanted them inside the "
                              "%llu bytes of the tensor",
                        ENTRY_ARGS(i, t->name), (unsigned long long)t->rows,
                        (unsigned long long)t->cols, fti_type_name(t->type),
                        (unsigned long long)t->offset, (unsigned long long)source->bytes);
}

static bool check_bank(const fti_pc_mock *m, const ftk_bank_part *b) {
    uint64_t row = fti_type_row_bytes(b->type, b->cols), bytes = 0;
    const fti_tensor *source = source_of(m, b->tensor);
    bool good = row > 0 && b->rows > 0 && fti_mul_u64(row, b->rows, &bytes) && source &&
                source->type == b->type && b->used > 0 && b->used <= b->experts &&
                lies_inside(b->offset, bytes, b->experts, b->expert_stride, source->bytes);
    return fti_pc_check(good,
                        "plan_weights: part '%.*s' of layer %u: found %u of %u experts of %llu x "
                        "%llu, type %s, wanted them inside a tensor, of %s",
                        FTI_STR_ARGS(b->part), b->layer, b->used, b->experts,
                        (unsigned long long)b->rows, (unsigned long long)b->cols,
                        fti_type_name(b->type), source ? fti_type_name(source->type) : "its type");
}

static bool check_kv(const ftk_kv_layer *kv) {
    return fti_pc_check(kv->kv_heads > 0 && kv->key_dim > 0 && kv->value_dim > 0 &&
                            kv->kv_heads <= 4096 && kv->key_dim <= 4096 && kv->value_dim <= 4096,
                        "the plan of the keys and values of layer %u has an impossible shape",
                        kv->layer);
}

ftk_status fti_pc_check_plan(fti_pc_mock *m) {
    const ftk_plan *p = &m->plan;
    bool good = fti_pc_check(
        (p->tensor_count == 0 || (p->tensors && p->tensor_stride >= sizeof(ftk_tensor_plan))) &&
            (p->bank_part_count == 0 ||
             (p->bank_parts && p->bank_part_stride >= sizeof(ftk_bank_part))) &&
            (p->kv_layer_count == 0 ||
             (p->kv_layers && p->kv_layer_stride >= sizeof(ftk_kv_layer))),
        "the plan lacks an array or its stride");
    for (uint64_t i = 0; good && i < p->tensor_count; i++) good = check_tensor(m, i);
    for (uint64_t i = 0; good && i < p->bank_part_count; i++) good = check_bank(m, bank_at(p, i));
    for (uint64_t i = 0; good && i < p->kv_layer_count; i++) good = check_kv(kv_at(p, i));
    for (uint32_t i = 1; good && i < m->bucket_count; i++)
        good = fti_pc_check(m->workspace_bytes[i] <= m->workspace_bytes[i - 1],
                            "the plan states %llu bytes of workspace for %u rows, and fewer for %u",
                            (unsigned long long)m->workspace_bytes[i], m->buckets[i],
                            m->buckets[i - 1]);
    return good ? FTK_OK : FTK_E_PROVIDER_CONTRACT;
}

/* ---- weights ---- */

static fti_pc_area *chain(fti_pc_area **list, fti_pc_area *area) {
    if (!area) return NULL;
    area->next = *list;
    *list = area;
    return area;
}

/* Less than this is copied, since its pages hold something else too. */
#define WORTH_PAGES (UINT64_C(1) << 20)

/* Where `count` pieces of `bytes` can be read, `*stride` apart: in place or copied. */
static const void *place(fti_pc_mock *m, uint64_t tensor, uint64_t offset, uint64_t bytes,
                         uint64_t count, uint64_t *stride) {
    const char *from = (const char *)fti_checkpoint_payload(m->target->checkpoint, (size_t)tensor) +
                       offset;
    bool large = bytes * count >= WORTH_PAGES || m->dry;
    if ((uintptr_t)from % WEIGHT_ALIGN == 0 && large) {
        fti_pc_close_mapped(m, from, *stride * (count - 1) + bytes);
        return from;
    }
    fti_pc_area *copy = chain(&m->owned,
                              fti_pc_area_on(&m->weight_memory, "a weight", bytes * count));
    if (!copy) return NULL;
    for (uint64_t i = 0; i < count; i++)
        memcpy(copy->data + i * bytes, from + i * *stride, (size_t)bytes);
    *stride = bytes;
    return copy->data;
}

static bool make_tensor(fti_pc_mock *m, uint64_t i) {
    const ftk_tensor_plan *t = tensor_at(&m->plan, i);
    uint64_t row = fti_type_row_bytes(t->type, t->cols), stride = 0;
    const void *data;
    if (t->source == FTK_SOURCE_COMPUTED) {
        fti_pc_area *area = chain(
            &m->owned, fti_pc_area_on(&m->weight_memory, "a computed weight", row * t->rows));
        data = m->computed[i] = area ? area->data : NULL;
    } else {
        data = place(m, t->tensor, t->offset, row * t->rows, 1, &stride);
    }
    m->weights[i] = (ftk_weight){.struct_size = (uint32_t)sizeof(ftk_weight),
                                 .type = t->type,
                                 .layout = FTK_LAYOUT_RAW,
                                 .rows = t->rows,
                                 .cols = t->cols,
                                 .row_bytes = row,
                                 .data = data};
    return data != NULL;
}

static bool make_bank(fti_pc_mock *m, uint64_t i) {
    const ftk_bank_part *b = bank_at(&m->plan, i);
    uint64_t row = fti_type_row_bytes(b->type, b->cols), stride = b->expert_stride;
    const void *data = place(m, b->tensor, b->offset, row * b->rows, b->experts, &stride);
    m->banks[i] = (ftk_bank_view){.struct_size = (uint32_t)sizeof(ftk_bank_view),
                                  .type = b->type,
                                  .layout = FTK_LAYOUT_RAW,
                                  .experts = b->experts,
                                  .rows = b->rows,
                                  .cols = b->cols,
                                  .row_bytes = row,
                                  .expert_stride = stride,
                                  .base = data};
    return data != NULL;
}

ftk_status fti_pc_make_weights(fti_pc_mock *m) {
    const ftk_plan *p = &m->plan;
    m->weights = calloc((size_t)p->tensor_count + 1, sizeof *m->weights);
    m->computed = calloc((size_t)p->tensor_count + 1, sizeof *m->computed);
    m->banks = calloc((size_t)p->bank_part_count + 1, sizeof *m->banks);
    bool good = m->weights && m->computed && m->banks;
    for (uint64_t i = 0; good && i < p->tensor_count; i++) good = make_tensor(m, i);
    for (uint64_t i = 0; good && i < p->bank_part_count; i++) good = make_bank(m, i);
    fti_pc_join_mapped(m);
    if (good) return FTK_OK;
    fti_pc_skip("not enough memory for the weights of this checkpoint");
    return FTK_E_NO_MEMORY;
}

/* ---- caches, workspace, arrays ---- */

static bool make_kv(fti_pc_mock *m, uint64_t i) {
    const ftk_kv_layer *l = kv_at(&m->plan, i);
    uint64_t positions = (uint64_t)m->sequences * m->pages * FTI_PC_PAGE_TOKENS * l->kv_heads;
    fti_pc_area *keys = chain(
        &m->caches, fti_pc_area_on(&m->memory, "the keys of a layer", positions * l->key_dim * 2));
    fti_pc_area *values = chain(&m->caches, fti_pc_area_on(&m->memory, "the values of a layer",
                                                           positions * l->value_dim * 2));
    if (!keys || !values) return false;
    m->kv[i] = (ftk_kv_view){.struct_size = (uint32_t)sizeof(ftk_kv_view),
                             .type = FTK_TYPE_F16,
                             .kv_heads = l->kv_heads,
                             .key_dim = l->key_dim,
                             .value_dim = l->value_dim,
                             .page_tokens = FTI_PC_PAGE_TOKENS,
                             .keys = keys->data,
                             .values = values->data};
    return true;
}

static bool make_step_areas(fti_pc_mock *m) {
    uint64_t arrays = 4 * (uint64_t)m->max_rows + FTI_PC_MAX_PARTS * (m->pages + 2) + 64;
    uint64_t row = m->info.vocabulary * sizeof(float);
    bool good = true;
    for (uint32_t i = 0; i < m->bucket_count; i++) {
        m->workspace[i] = fti_pc_area_on(&m->memory, "the workspace", m->workspace_bytes[i]);
        m->logits_of[i] = fti_pc_area_on(&m->memory, "the logits", m->buckets[i] * row);
        good = good && m->workspace[i] && m->logits_of[i];
    }
    m->layers = fti_pc_area_on(&m->memory, "the layer outputs",
                               (uint64_t)m->max_rows * m->info.hidden * m->info.layers *
                                   sizeof(float));
    m->arrays = fti_pc_area_on(&m->memory, "the step's arrays", arrays * sizeof(int32_t));
    if (!m->arrays) return false;
    m->arrays_copy = calloc(1, (size_t)m->arrays->bytes);
    m->step_workspace = m->workspace[0];
    m->logits = m->logits_of[0];
    return good && m->layers && m->arrays_copy;
}

ftk_status fti_pc_make_caches(fti_pc_mock *m) {
    m->kv = calloc((size_t)m->plan.kv_layer_count + 1, sizeof *m->kv);
    m->slot_stride = (m->plan.state_bytes + SLOT_GAP + 63) / 64 * 64;
    m->slots = m->sequences + SPARE_SLOTS;
    while (m->slots % 5 == 0) m->slots++;
    m->state = chain(&m->caches,
                     fti_pc_area_on(&m->memory, "the state", m->slots * m->slot_stride));
    m->state_copy = malloc((size_t)(m->slots * m->slot_stride));
    for (uint32_t i = 0; m->state && i < m->slots; i++)
        memset(m->state->data + i * m->slot_stride + m->plan.state_bytes, SLOT_BYTE,
               (size_t)(m->slot_stride - m->plan.state_bytes));
    bool good = m->kv && m->state && m->state_copy && make_step_areas(m);
    for (uint64_t i = 0; good && i < m->plan.kv_layer_count; i++) good = make_kv(m, i);
    if (good) return FTK_OK;
    fti_pc_skip("not enough memory for caches and workspace of this checkpoint");
    return FTK_E_NO_MEMORY;
}

static void free_blocks(fti_pc_area *list) {
    while (list) {
        fti_pc_area *next = list->next;
        fti_pc_area_free(list);
        list = next;
    }
}

void fti_pc_free_areas(fti_pc_mock *m) {
    free_blocks(m->blocks);
    fti_pc_device_end(&m->memory);
    fti_pc_device_end(&m->weight_memory);
    void *const tables[] = {m->weights,     m->computed, m->banks,     m->kv,
                            m->arrays_copy, m->mapped,   m->state_copy};
    for (size_t i = 0; i < FTI_COUNT(tables); i++) free(tables[i]);
}

/* ---- what was written where ---- */

static void check_area(const fti_pc_area *area) {
    if (area)
        fti_pc_check(fti_pc_area_intact(area),
                     "bytes before or behind %s (%llu bytes) were written", area->name,
                     (unsigned long long)area->bytes);
}

static void check_chain(const fti_pc_area *list) {
    for (; list; list = list->next) check_area(list);
}

static void check_slots(const fti_pc_mock *m) {
    for (uint32_t s = 0; m->state && s < m->slots; s++)
        for (uint64_t i = m->plan.state_bytes; i < m->slot_stride; i++)
            if ((unsigned char)m->state->data[s * m->slot_stride + i] != SLOT_BYTE) {
                fti_pc_find("bytes behind the %llu of a sequence's state were written",
                            (unsigned long long)m->plan.state_bytes);
                return;
            }
}

bool fti_pc_slot_is_foreign(const fti_pc_mock *m, uint32_t slot) {
    const int32_t *slots = (const int32_t *)(const void *)m->arrays_copy + m->slots_at;
    for (uint32_t s = 0; s < m->step_sequences; s++)
        if (slots[s] == (int32_t)slot) return false;
    return true;
}

void fti_pc_keep_slots(fti_pc_mock *m) {
    memcpy(m->state_copy, m->state->data, (size_t)m->state->bytes);
}

void fti_pc_check_foreign_slots(const fti_pc_mock *m) {
    for (uint32_t s = 0; s < m->slots; s++) {
        uint64_t at = s * m->slot_stride;
        if (!fti_pc_slot_is_foreign(m, s) ||
            memcmp(m->state->data + at, m->state_copy + at, (size_t)m->plan.state_bytes) == 0)
            continue;
        fti_pc_find("the state of slot %u, which belongs to no sequence of the step, was written: "
                    "the state of sequence s lies at slot state_slots[s]",
                    s);
        return;
    }
}

void fti_pc_check_areas(fti_pc_mock *m) {
    check_chain(m->owned);
    check_chain(m->caches);
    check_chain(m->blocks);
    for (uint32_t i = 0; i < m->bucket_count; i++) {
        check_area(m->workspace[i]);
        check_area(m->logits_of[i]);
    }
    check_area(m->layers);
    check_area(m->arrays);
    check_slots(m);
    if (m->arrays && m->arrays_copy)
        fti_pc_check(memcmp(m->arrays->data, m->arrays_copy, (size_t)m->arrays->bytes) == 0,
                     "run wrote to the step's arrays, which it only reads");
}
