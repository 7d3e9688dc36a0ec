/*
 * wide.c: steps as wide as engines make them: what the variants compute in them against
 * what the references do. Whole steps only, of all variants together: launch by launch
 * and one by one they are compared in kernels.c, where it is cheap, and here when there
 * is something to blame.
 */
#include "mock.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_CHOICES 8u

/* Each in a sequence of its own. */
static const uint32_t widths[] = {25, 65, FTI_PC_WIDE_ROWS};

uint32_t fti_pc_fill_width(const fti_pc_mock *m, fti_pc_part *parts, fti_pc_part subject,
                           uint32_t width, bool all_logits) {
    uint32_t room = m->pages * FTI_PC_PAGE_TOKENS, left = width - subject.rows, count = 0;
    for (uint32_t slot = 0; slot < m->sequences && left > 0; slot++) {
        uint32_t rows = left < room ? left : room;
        if (slot == subject.slot) continue;
        if (count == 1) parts[count++] = subject; /* with others before it and behind it */
        parts[count++] = (fti_pc_part){100 + slot, slot, 0, rows, all_logits ? rows : 0};
        left -= rows;
    }
    if (count < 2) parts[count++] = subject;
    return count;
}

/* Every row's logits are wanted. */
static ftk_step fill(fti_pc_mock *m, uint32_t width) {
    fti_pc_part parts[FTI_PC_MAX_PARTS];
    uint32_t room = m->pages * FTI_PC_PAGE_TOKENS, rows = width < room ? width : room;
    const fti_pc_part subject = {width, 0, 0, rows, rows};
    uint32_t count = fti_pc_fill_width(m, parts, subject, width, true);
    ftk_step step = fti_pc_fill_step(m, parts, count, width);
    fti_pc_clear(m, 0);
    memset(m->step_workspace->data, 0x5A, (size_t)m->step_workspace->bytes);
    return step;
}

static bool run_width(fti_pc_mock *m, uint32_t width) {
    ftk_step step = fill(m, width);
    return fti_pc_run(m, &step) == FTK_OK;
}

static bool same_caches(const fti_pc_mock *a, const fti_pc_mock *b) {
    const fti_pc_area *y = b->caches;
    for (const fti_pc_area *x = a->caches; x && y; x = x->next, y = y->next)
        if (memcmp(x->data, y->data, (size_t)x->bytes) != 0) return false;
    return memcmp(a->logits->data, b->logits->data, (size_t)a->logits->bytes) == 0;
}

static fti_pc_variant *variant_of(const ftk_variant_table *t, uint32_t row) {
    fti_pc_channel *c = fti_pc_the_channel();
    ftk_str name = fti_pc_row(t, row)->name;
    for (uint32_t i = 0; i < c->variant_count; i++)
        if (fti_str_is(name, c->variants[i].name)) return &c->variants[i];
    return NULL;
}

static void count_step(const fti_pc_mock *m, const uint32_t *chosen) {
    for (uint64_t i = 0; i < m->table->variant_table_count; i++) {
        fti_pc_variant *v = chosen[i] + 1 < m->table->variants[i]->variant_count
                                ? variant_of(m->table->variants[i], chosen[i])
                                : NULL;
        if (v) v->steps++;
    }
}

/* The variant alone, the others being references. True if it is to blame. */
static bool blame_one(const fti_pc_mock *reference, uint64_t table, uint32_t row, uint32_t width) {
    const ftk_provider *t = reference->table;
    fti_pc_mock *m = fti_pc_mock_new(reference->target, t);
    uint32_t *alone = calloc((size_t)t->variant_table_count, sizeof *alone);
    bool guilty = false;
    for (uint64_t i = 0; alone && i < t->variant_table_count; i++)
        alone[i] = i == table ? row : (uint32_t)t->variants[i]->variant_count - 1;
    if (m && alone) {
        fti_pc_set_size(m, FTI_PC_WIDE);
        guilty = fti_pc_bring(m, FTI_PC_PREPARED, alone) == FTK_OK && run_width(m, width) &&
                 !same_caches(reference, m);
        fti_pc_at("a step of %u rows", width);
        if (guilty)
            fti_pc_find("%.*s: a step of %u rows gives other logits, caches or state than with "
                        "the reference",
                        FTI_STR_ARGS(fti_pc_row(t->variants[table], row)->name), width);
    }
    if (m) fti_pc_mock_end(m);
    free(alone);
    return guilty;
}

static void blame(const fti_pc_mock *reference, const fti_pc_mock *other, const uint32_t *chosen,
                  uint32_t width) {
    const ftk_provider *t = reference->table;
    bool found = false;
    for (uint64_t i = 0; i < t->variant_table_count; i++)
        if (chosen[i] + 1 < t->variants[i]->variant_count)
            found = blame_one(reference, i, chosen[i], width) || found;
    if (!found)
        fti_pc_find("the variants %s, taken together: a step of %u rows gives other logits, caches "
                    "or state than with the references",
                    other->active, width);
}

static void compare_width(fti_pc_mock *reference, fti_pc_mock *const *others, uint32_t count,
                          uint32_t width) {
    if (!run_width(reference, width)) return;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t *chosen = fti_pc_choose(reference, i);
        if (chosen && run_width(others[i], width)) {
            fti_pc_checked();
            count_step(reference, chosen);
            if (!same_caches(reference, others[i])) blame(reference, others[i], chosen, width);
        }
        free(chosen);
    }
}

void fti_pc_check_wide_variants(const fti_pc_target *target, const ftk_provider *table) {
    fti_pc_mock *others[MAX_CHOICES] = {NULL};
    fti_pc_mock *reference = fti_pc_mock_with(target, table, FTI_PC_WIDE, FTI_PC_REFERENCES);
    uint32_t count = reference ? fti_pc_choices(reference) : 0, made = 0;
    if (count > MAX_CHOICES) count = MAX_CHOICES;
    while (made < count &&
           (others[made] = fti_pc_mock_with(target, table, FTI_PC_WIDE, made)) != NULL)
        made++;
    for (size_t i = 0; made > 0 && made == count && i < FTI_COUNT(widths); i++)
        compare_width(reference, others, made, widths[i]);
    for (uint32_t i = 0; i < made; i++) fti_pc_mock_end(others[i]);
    if (reference) fti_pc_mock_end(reference);
}
