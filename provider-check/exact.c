/*
 * exact.c: the promise that tokens are the same bytes: whatever else is in a step,
 * however a prompt is cut, replayed or run, and on whatever thread.
 */
#include "mock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define LENGTH   40u /* tokens of the sequence that is looked at: three pages */
#define SUBJECT  7u  /* its tokens */
#define TOGETHER 14u /* tokens of models that run at once */

/* ---- logits by position ---- */

typedef struct record {
    float *logits; /* [length][vocabulary] */
    uint64_t vocabulary;
    const char *how; /* it came to be */
} record;

static bool record_new(record *r, const fti_pc_mock *m, uint32_t length) {
    r->vocabulary = m->info.vocabulary;
    r->how = "row by row";
    r->logits = calloc(length * r->vocabulary, sizeof(float));
    if (!r->logits) fti_pc_skip("not enough memory for logits");
    return r->logits != NULL;
}

/* Row by row, alone: what everything else is held against. */
static ftk_status record_alone(fti_pc_mock *m, record *r, uint32_t length) {
    fti_pc_clear(m, 0);
    for (uint32_t i = 0; i < length; i++) {
        const fti_pc_part part = {SUBJECT, 0, i, 1, 1};
        FTI_TRY(fti_pc_step(m, &part, 1, 1, 0));
        memcpy(r->logits + i * r->vocabulary, fti_pc_logits(m, 0), r->vocabulary * sizeof(float));
    }
    return FTK_OK;
}

static void compare(const fti_pc_mock *m, const record *r, uint32_t row, uint32_t position,
                    const char *how) {
    fti_pc_at("position %u%s%.120s", position, m->active[0] ? ", with " : "", m->active);
    fti_pc_check(
        memcmp(r->logits + position * r->vocabulary, fti_pc_logits(m, row),
               r->vocabulary * sizeof(float)) == 0,
        "logits differ from those of the same tokens %s, %s: what is computed at a position "
        "may depend on the tokens up to it alone",
        r->how, how);
}

/* ---- cuts, neighbours, padding ---- */

/* The subject's rows of step after step, with what else is in the step. */
typedef struct cut {
    const char *how;
    uint32_t rows[8]; /* of the subject, 0-terminated */
    uint32_t before;  /* rows of a neighbour before it, and behind it */
    uint32_t behind;
    uint32_t padding;
    uint8_t garbage; /* in workspace and caches */
} cut;

static const cut cuts[] = {
    {"in chunks", {24, 16}, 0, 0, 0, 0x00},
    {"over other contents of the workspace", {24, 16}, 0, 0, 0, 0x41},
    {"in uneven chunks", {1, 17, 3, 2, 9, 5, 2, 1}, 0, 0, 0, 0x00},
    {"behind the rows of another sequence", {8, 16, 1, 15}, 8, 0, 0, 0x00},
    {"before the rows of another sequence", {9, 9, 9, 9, 4}, 0, 7, 0, 0x7F},
    {"with padding behind them", {5, 17, 9, 1, 8}, 0, 0, 3, 0xFF},
    {"between other sequences and padding", {3, 5, 11, 11, 10}, 2, 4, 5, 0x3C},
};

/* Neighbours advance too, so that they are at other positions than the subject. */
static ftk_status run_cut(fti_pc_mock *m, const cut *c, const record *r) {
    uint32_t at = 0, before = 0, behind = 0;
    fti_pc_clear(m, c->garbage);
    for (uint32_t i = 0; i < FTI_COUNT(c->rows) && c->rows[i]; i++) {
        uint32_t n = c->rows[i];
        uint32_t left = c->before && before + c->before <= FTI_PC_CONTEXT ? c->before : 0;
        uint32_t right = c->behind && behind + c->behind <= FTI_PC_CONTEXT ? c->behind : 0;
        const fti_pc_part parts[] = {{11, 2, before, left, left ? 1u : 0},
                                     {SUBJECT, 1, at, n, n},
                                     {12, 3, behind, 0, 0},
                                     {13, 0, behind, right, 0}};
        fti_pc_move_slots(m);
        FTI_TRY(fti_pc_step(m, parts, FTI_COUNT(parts),
                            fti_pc_bucket_for(m, left + n + right + c->padding), c->garbage));
        for (uint32_t k = 0; k < n; k++) compare(m, r, (left ? 1 : 0) + k, at + k, c->how);
        at += n;
        before += left;
        behind += right;
    }
    return FTK_OK;
}

/* Padding writes nothing, and neither does a sequence without rows. */
static void check_padding(fti_pc_mock *m) {
    const fti_pc_part parts[] = {{1, 0, 0, 0, 0}, {2, 1, 0, 1, 1}};
    uint64_t stride = m->slot_stride;
    fti_pc_clear(m, 0x11);
    memset(m->state->data + fti_pc_state_slot(m, 0) * stride, 0x22, (size_t)m->plan.state_bytes);
    char *copy = malloc((size_t)(m->state->bytes + 1));
    if (!copy) return;
    memcpy(copy, m->state->data, (size_t)m->state->bytes);
    if (fti_pc_step(m, parts, 2, 5, 0) == FTK_OK)
        for (uint32_t s = 0; s < m->slots; s++)
            fti_pc_check(
                s == fti_pc_state_slot(m, 1) ||
                    memcmp(copy + s * stride, m->state->data + s * stride, (size_t)stride) == 0,
                "the state of a sequence that has no row in the step was written");
    free(copy);
}

/* Slots that belong to nobody in the step, filled one after the other with other values:
 * nothing may come of it. */
static void check_foreign_reads(fti_pc_mock *m) {
    const fti_pc_part parts[] = {{SUBJECT, 3, 0, 3, 1}, {8, 1, 0, 1, 1}};
    size_t bytes = 2 * m->info.vocabulary * sizeof(float);
    float *first = malloc(bytes);
    for (uint32_t slot = 0; first && slot <= m->slots; slot++) {
        /* The first round, of no slot, tells what is wanted, and whose slots there are. */
        uint32_t filled = slot == 0 ? m->slots : slot - 1;
        if (slot > 0 && !fti_pc_slot_is_foreign(m, filled)) continue;
        fti_pc_clear(m, 0);
        if (slot > 0)
            memset(m->state->data + filled * m->slot_stride, 0x3E, (size_t)m->plan.state_bytes);
        if (fti_pc_step(m, parts, 2, 4, 0) != FTK_OK) break;
        if (slot == 0) memcpy(first, m->logits->data, bytes);
        fti_pc_check(memcmp(first, m->logits->data, bytes) == 0,
                     "the state of slot %u, which belongs to no sequence of the step, was read: "
                     "the state of sequence s lies at slot state_slots[s]",
                     filled);
    }
    free(first);
}

/* What a layer leaves, for the rows whose logits are wanted; and logits as without it. */
static void check_layer_outputs(fti_pc_mock *m, const record *r) {
    const fti_pc_part part = {SUBJECT, 0, 0, 9, 3};
    uint64_t wanted = (uint64_t)m->info.layers * part.logit_rows * m->info.hidden, good = 0;
    const float *values = (const float *)(const void *)m->layers->data;
    fti_pc_clear(m, 0);
    ftk_step step = fti_pc_fill_step(m, &part, 1, part.rows);
    step.layer_outputs = (float *)(void *)m->layers->data;
    memset(m->layers->data, 0xFF, (size_t)m->layers->bytes);
    if (fti_pc_run(m, &step) != FTK_OK) return;
    for (uint64_t i = 0; i < wanted; i++) good += __builtin_isfinite(values[i]) ? 1 : 0;
    fti_pc_check(good == wanted, "run left %llu of %llu layer outputs unwritten or not finite",
                 (unsigned long long)(wanted - good), (unsigned long long)wanted);
    for (uint32_t i = 0; i < part.logit_rows; i++)
        compare(m, r, i, part.rows - part.logit_rows + i, "with the outputs of layers");
}

/* ---- steps of hundreds of rows ---- */

#define CHUNK 16u /* of the record that wide steps are held against */

/* Rows of steps, 0-terminated. Where a sequence of the model's context ends before, other
 * sequences fill the steps. */
static const uint32_t wide_cuts[][10] = {
    {FTI_PC_WIDE_ROWS},
    {257, 128, 65, 33, 25, 3, 1},
    {64, 63, 31, 24, 17, 15, 8, 5, 2},
};

static uint32_t room_of(const fti_pc_mock *m) {
    uint32_t room = m->pages * FTI_PC_PAGE_TOKENS;
    return room < FTI_PC_WIDE_ROWS ? room : FTI_PC_WIDE_ROWS;
}

/* In steps that have been held against single rows before. */
static ftk_status record_chunks(fti_pc_mock *m, record *r) {
    r->how = "in steps of 16 rows";
    fti_pc_clear(m, 0);
    for (uint32_t at = 0; at < room_of(m); at += CHUNK) {
        const fti_pc_part part = {SUBJECT, 0, at, CHUNK, CHUNK};
        FTI_TRY(fti_pc_step(m, &part, 1, CHUNK, 0));
        memcpy(r->logits + at * r->vocabulary, fti_pc_logits(m, 0),
               CHUNK * r->vocabulary * sizeof(float));
    }
    return FTK_OK;
}

/* `share`: the subject has the whole step, or half of it. */
static ftk_status run_wide_cut(fti_pc_mock *m, const uint32_t *widths, uint32_t share,
                               const record *r) {
    uint32_t at = 0, room = room_of(m);
    fti_pc_clear(m, 0x41);
    for (; *widths && at < room; widths++) {
        fti_pc_part parts[FTI_PC_MAX_PARTS];
        char how[64];
        uint32_t rows = (*widths + share - 1) / share;
        if (rows > room - at) rows = room - at;
        const fti_pc_part subject = {SUBJECT, 1, at, rows, rows};
        uint32_t count = fti_pc_fill_width(m, parts, subject, *widths, false);
        fti_pc_move_slots(m);
        FTI_TRY(fti_pc_step(m, parts, count, *widths, 0x41));
        snprintf(how, sizeof how, "in a step of %u rows", *widths);
        for (uint32_t k = 0; k < rows; k++) compare(m, r, k, at + k, how);
        at += rows;
    }
    return FTK_OK;
}

/* With the variants that an engine would choose, as it would run them. */
static void check_wide(const fti_pc_target *target, const ftk_provider *table) {
    fti_pc_mock *m = fti_pc_mock_with(target, table, FTI_PC_WIDE, 0);
    record r = {0};
    if (!m) return;
    if (record_new(&r, m, FTI_PC_WIDE_ROWS) && record_chunks(m, &r) == FTK_OK) {
        for (size_t i = 0; i < FTI_COUNT(wide_cuts); i++)
            (void)run_wide_cut(m, wide_cuts[i], 1, &r);
        (void)run_wide_cut(m, wide_cuts[1], 2, &r);
    }
    free(r.logits);
    fti_pc_mock_end(m);
}

void fti_pc_pass_rows(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    fti_pc_mock *m = table ? fti_pc_mock_new(target, table) : NULL;
    record r = {0};
    if (!m) return;
    if (fti_pc_bring(m, FTI_PC_PREPARED, NULL) == FTK_OK && record_new(&r, m, LENGTH) &&
        record_alone(m, &r, LENGTH) == FTK_OK) {
        for (size_t i = 0; i < FTI_COUNT(cuts); i++) (void)run_cut(m, &cuts[i], &r);
        check_padding(m);
        check_foreign_reads(m);
        check_layer_outputs(m, &r);
    }
    free(r.logits);
    fti_pc_mock_end(m);
    check_wide(target, table);
}

/* ---- captured steps ---- */

/* One row of each of `rows` sequences; the subject is among them. */
static ftk_step fill_decode(fti_pc_mock *m, uint32_t rows, uint32_t position) {
    fti_pc_part parts[FTI_PC_MAX_PARTS];
    for (uint32_t s = 0; s < rows; s++)
        parts[s] = (fti_pc_part){s == rows - 1 ? SUBJECT : 20 + s, s, position, 1, 1};
    return fti_pc_fill_step(m, parts, rows, rows);
}

/* As the core does: captured over padding, since the shape alone is recorded. */
static fti_graph *capture(fti_pc_mock *m, uint32_t rows) {
    ftk_step step = fill_decode(m, rows, 0);
    fti_pc_blank(m, &step);
    return fti_pc_capture(m, &step);
}

static void check_replay(fti_pc_mock *m, uint32_t rows, uint32_t length, const record *r) {
    fti_graph *graph = capture(m, rows);
    if (!graph) return;
    fti_pc_clear(m, 0);
    for (uint32_t position = 0; position < length; position++) {
        char how[64];
        snprintf(how, sizeof how, "when a captured step of %u rows is replayed", rows);
        fti_pc_move_slots(m);
        (void)fill_decode(m, rows, position);
        memset(m->step_workspace->data, (int)(position * 37), (size_t)m->step_workspace->bytes);
        if (!fti_pc_check(fti_pc_execute(m, graph), "a captured step could not be replayed")) break;
        compare(m, r, rows - 1, position, how);
        fti_pc_check_areas(m);
    }
    m->backend->ops->graph_destroy(graph);
}

/* Of dozens of sequences, over few positions. */
static void check_many(const fti_pc_target *target, const ftk_provider *table, const record *r) {
    static const uint32_t rows[] = {8, 17, FTI_PC_MANY_ROWS};
    fti_pc_mock *m = fti_pc_mock_with(target, table, FTI_PC_MANY, 0);
    if (!m) return;
    for (size_t i = 0; i < FTI_COUNT(rows); i++) check_replay(m, rows[i], 4, r);
    fti_pc_mock_end(m);
}

void fti_pc_pass_capture(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    fti_pc_mock *m = table ? fti_pc_mock_with(target, table, FTI_PC_USUAL, FTI_PC_REFERENCES)
                           : NULL;
    record r = {0};
    if (!m) return;
    if (!m->graph_safe) {
        fti_pc_skip("prepare_for_runtime says that run may not be captured");
    } else if (record_new(&r, m, LENGTH) && record_alone(m, &r, LENGTH) == FTK_OK) {
        for (uint32_t rows = 1; rows <= 3; rows++) check_replay(m, rows, LENGTH, &r);
        check_many(target, table, &r);
    }
    free(r.logits);
    fti_pc_mock_end(m);
}

/* ---- two at once ---- */

typedef struct instance {
    const fti_pc_target *target;
    const ftk_provider *table;
    pthread_barrier_t *start;
    record record;
    bool good;
} instance;

static void *live(void *argument) {
    instance *i = argument;
    fti_pc_mock *m = fti_pc_mock_new(i->target, i->table);
    if (i->start) pthread_barrier_wait(i->start);
    if (!m) return NULL;
    m->shared = i->start != NULL;
    i->good = fti_pc_bring(m, FTI_PC_PREPARED, NULL) == FTK_OK &&
              record_new(&i->record, m, TOGETHER) &&
              record_alone(m, &i->record, TOGETHER) == FTK_OK;
    fti_pc_mock_end(m);
    return NULL;
}

/* What is the process's is nobody's alone meanwhile, so it is looked at around both. */
static bool live_together(instance *both) {
    fti_pc_state before, after;
    pthread_barrier_t start;
    pthread_t threads[2];
    int started = 0;
    fti_pc_state_take(&before);
    if (pthread_barrier_init(&start, NULL, 2) != 0) return false;
    for (int i = 0; i < 2; i++) both[i].start = &start;
    while (started < 2 && pthread_create(&threads[started], NULL, live, &both[started]) == 0)
        started++;
    if (started == 1) pthread_barrier_wait(&start);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    fti_pc_state_take(&after);
    fti_pc_state_compare(&before, &after, FTI_PC_OF_ALL, "a life in two threads");
    return started == 2;
}

static void compare_with(const instance *alone, const instance *i) {
    if (!alone->good || !i->good) return;
    fti_pc_check(memcmp(alone->record.logits, i->record.logits,
                        TOGETHER * alone->record.vocabulary * sizeof(float)) == 0,
                 "a model that ran while another one did gave other logits: models share "
                 "something that changes; keep everything in ftk_model");
}

void fti_pc_pass_threads(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    if (!table) return;
    instance alone = {.target = target, .table = table};
    live(&alone);
    for (int round = 0; round < 2; round++) {
        instance both[2] = {{.target = target, .table = table}, {.target = target, .table = table}};
        if (!live_together(both)) fti_pc_skip("no threads could be started");
        for (int i = 0; i < 2; i++) {
            compare_with(&alone, &both[i]);
            free(both[i].record.logits);
        }
    }
    free(alone.record.logits);
}
