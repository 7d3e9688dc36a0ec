/*
 * variants.c: chooses, for each operation of a provider, the first row of its
 * variant table whose needs the machine and the policy meet. The last row is the
 * exact reference and needs nothing, so there is always one; every row passed
 * over leaves its reason.
 */
#include "core/engine.h"

static const ftk_variant *row_at(const ftk_variant_table *table, uint32_t row) {
    return (const ftk_variant *)(const void *)((const char *)table->variants +
                                               (size_t)row * table->variant_stride);
}

static uint32_t reason_against(ftk_engine *e, const ftk_variant *variant) {
    if (variant->need_count == 0) return FTK_REASON_NONE;
    if (e->settings.fused == FTI_FUSED_OFF || e->settings.kernel_mask == 0)
        return FTK_REASON_POLICY;
    for (uint64_t i = 0; i < variant->need_count; i++) {
        int64_t value;
        if (fti_host.capability(&e->ctx, variant->needs[i].name, &value) != FTK_OK)
            return FTK_REASON_CAPABILITY_MISSING;
        if (value < variant->needs[i].min_value) return FTK_REASON_VALUE_TOO_LOW;
    }
    return FTK_REASON_NONE;
}

static void choose(ftk_engine *e, uint32_t index) {
    const ftk_variant_table *table = e->provider->table->variants[index];
    for (uint32_t row = 0; row < table->variant_count; row++) {
        uint32_t reason = reason_against(e, row_at(table, row));
        if (reason == FTK_REASON_NONE) {
            e->chosen[index] = row;
            return;
        }
        e->skips[e->skip_count++] = (fti_skip){index, row, reason};
    }
}

ftk_status fti_choose_variants(ftk_engine *e, ftk_error *err) {
    const ftk_provider *table = e->provider->table;
    size_t rows = 0;
    for (uint64_t i = 0; i < table->variant_table_count; i++)
        rows += (size_t)table->variants[i]->variant_count;
    e->chosen = fti_calloc((size_t)table->variant_table_count, sizeof *e->chosen);
    e->skips = fti_calloc(rows, sizeof *e->skips);
    if (!e->chosen || !e->skips)
        return fti_no_memory(err, rows * sizeof *e->skips, "the variant record");
    for (uint32_t i = 0; i < table->variant_table_count; i++) choose(e, i);
    return FTK_OK;
}
