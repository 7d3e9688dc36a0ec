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

/* Names the need that is not met. */
static fti_skip reason_against(ftk_engine *e, const ftk_variant *variant) {
    fti_skip skip = {.reason = FTK_REASON_NONE};
    if (variant->need_count == 0) return skip;
    if (e->settings.fused == FTI_FUSED_OFF || e->settings.kernel_mask == 0) {
        skip.reason = FTK_REASON_POLICY;
        return skip;
    }
    for (uint64_t i = 0; i < variant->need_count && skip.reason == FTK_REASON_NONE; i++) {
        skip.need = &variant->needs[i];
        if (fti_host.capability(&e->ctx, skip.need->name, &skip.found) != FTK_OK)
            skip.reason = FTK_REASON_CAPABILITY_MISSING;
        else if (skip.found < skip.need->min_value)
            skip.reason = FTK_REASON_VALUE_TOO_LOW;
    }
    return skip;
}

static void choose(ftk_engine *e, uint32_t index) {
    const ftk_variant_table *table = e->provider->table->variants[index];
    for (uint32_t row = 0; row < table->variant_count; row++) {
        fti_skip skip = reason_against(e, row_at(table, row));
        if (skip.reason == FTK_REASON_NONE) {
            e->chosen[index] = row;
            return;
        }
        skip.table = index;
        skip.row = row;
        e->skips[e->skip_count++] = skip;
    }
}

/* policy.fused: require. Where there is something above the reference, it must run. */
static ftk_status check_fused(const ftk_engine *e, uint32_t index, ftk_error *err) {
    const ftk_variant_table *table = e->provider->table->variants[index];
    if (e->settings.fused != FTI_FUSED_REQUIRE || table->variant_count == 1 ||
        e->chosen[index] + 1 < table->variant_count)
        return FTK_OK;
    const fti_skip *last = &e->skips[e->skip_count - 1];
    return fti_fail(
        err, FTK_E_PROVIDER_HARDWARE,
        "%s: policy.fused is require, but no fused variant of '%.*s' can run (%s%s%.*s): "
        "set policy.fused: auto",
        e->settings.origin, FTI_STR_ARGS(table->operation), fti_reason_text(last->reason),
        last->need ? " " : "", last->need ? fti_str_len(last->need->name) : 0,
        last->need ? last->need->name.data : "");
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
    for (uint32_t i = 0; i < table->variant_table_count; i++) {
        choose(e, i);
        FTI_TRY(check_fused(e, i, err));
    }
    return FTK_OK;
}

const char *fti_reason_text(uint32_t reason) {
    static const char *const texts[] = {
        "none",      "capability missing", "value too low", "type",
        "shape",     "alignment",          "policy",        "not graph safe",
        "self test", "build lacks backend"};
    return reason < FTI_COUNT(texts) ? texts[reason] : "unknown";
}
