/*
 * choose.c: which rows of its variant tables a provider is run with, where the passes
 * want others than the references: those that this machine can run.
 */
#include "mock.h"

#include <stdio.h>
#include <stdlib.h>

const ftk_variant *fti_pc_row(const ftk_variant_table *t, uint64_t row) {
    return (const ftk_variant *)(const void *)((const char *)t->variants + row * t->variant_stride);
}

uint32_t fti_pc_tolerance(const fti_pc_target *target, ftk_str name) {
    for (size_t i = 0; i < target->tolerance_count; i++) {
        const char *equals = strrchr(target->tolerances[i], '=');
        size_t n = equals ? (size_t)(equals - target->tolerances[i]) : 0;
        if (equals && n == name.size && strncmp(target->tolerances[i], name.data, n) == 0)
            return (uint32_t)strtoul(equals + 1, NULL, 10);
    }
    return 0;
}

bool fti_pc_runs_here(const fti_pc_mock *m, const ftk_variant *row, char *why, size_t size) {
    for (uint64_t i = 0; i < row->need_count; i++) {
        const ftk_capability_need *need = &row->needs[i];
        int64_t value = 0;
        if (m->backend->ops->capability(m->backend, need->name, &value) != FTK_OK) {
            snprintf(why, size, "the host reports no capability '%.*s'", FTI_STR_ARGS(need->name));
            return false;
        }
        if (value >= need->min_value) continue;
        snprintf(why, size, "needs %.*s >= %lld, found %lld", FTI_STR_ARGS(need->name),
                 (long long)need->min_value, (long long)value);
        return false;
    }
    return true;
}

/* The nth of a table's rows that run here to the bit, the last of them if there are fewer,
 * the reference if there is none. *count is how many there are. */
static uint32_t nth_row(const fti_pc_mock *m, const ftk_variant_table *t, uint32_t nth,
                        uint32_t *count) {
    uint32_t reference = (uint32_t)t->variant_count - 1, chosen = reference;
    char why[160];
    *count = 0;
    for (uint32_t row = 0; row < reference; row++) {
        const ftk_variant *v = fti_pc_row(t, row);
        if (fti_pc_tolerance(m->target, v->name) > 0 || !fti_pc_runs_here(m, v, why, sizeof why))
            continue;
        if (*count <= nth) chosen = row;
        (*count)++;
    }
    return chosen;
}

uint32_t fti_pc_choices(const fti_pc_mock *m) {
    uint32_t most = 0, count;
    for (uint64_t i = 0; i < m->table->variant_table_count; i++) {
        (void)nth_row(m, m->table->variants[i], 0, &count);
        if (count > most) most = count;
    }
    return most;
}

uint32_t *fti_pc_choose(const fti_pc_mock *m, uint32_t nth) {
    uint32_t *rows = calloc((size_t)m->table->variant_table_count + 1, sizeof *rows);
    uint32_t count;
    for (uint64_t i = 0; rows && i < m->table->variant_table_count; i++)
        rows[i] = nth_row(m, m->table->variants[i], nth, &count);
    return rows;
}

fti_pc_mock *fti_pc_mock_with(const fti_pc_target *target, const ftk_provider *table,
                              fti_pc_size size, uint32_t nth) {
    fti_pc_mock *m = fti_pc_mock_new(target, table);
    if (!m) return NULL;
    fti_pc_set_size(m, size);
    uint32_t *chosen = nth == FTI_PC_REFERENCES ? NULL : fti_pc_choose(m, nth);
    ftk_status status = fti_pc_bring(m, FTI_PC_PREPARED, chosen);
    free(chosen);
    if (status == FTK_OK) return m;
    fti_pc_mock_end(m);
    return NULL;
}
