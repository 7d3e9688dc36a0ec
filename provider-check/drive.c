/*
 * drive.c: drives a provider through its calls in the order that the contract gives,
 * and looks at the traces of each. What a call may write is surrounded by a pattern.
 */
#include "mock.h"

#include <stdio.h>
#include <stdlib.h>

/* On both sides of what code is unrolled or split by. */
static const uint32_t all_buckets[] = {FTI_PC_WIDE_ROWS,
                                       257,
                                       128,
                                       65,
                                       64,
                                       63,
                                       FTI_PC_MANY_ROWS,
                                       31,
                                       25,
                                       FTI_PC_USUAL_ROWS,
                                       17,
                                       16,
                                       15,
                                       9,
                                       8,
                                       5,
                                       3,
                                       2,
                                       1};
_Static_assert(FTI_COUNT(all_buckets) <= FTI_PC_BUCKETS, "a bucket has no room");

/* ---- structs that the provider fills ---- */

#define CANARY_BYTES 64u
#define CANARY_BYTE  0xC7u

/* A struct of a known size with a pattern behind it. */
#define OUT(type, name)                                                                            \
    struct {                                                                                       \
        type value;                                                                                \
        unsigned char canary[CANARY_BYTES];                                                        \
    } name;                                                                                        \
    memset(&name, 0, sizeof name);                                                                 \
    memset(name.canary, CANARY_BYTE, sizeof name.canary);                                          \
    name.value.struct_size = (uint32_t)sizeof name.value

static void check_canary(const unsigned char *canary, uint32_t struct_size, size_t size,
                         const char *what) {
    bool good = struct_size == size;
    for (size_t i = 0; i < CANARY_BYTES; i++) good = good && canary[i] == CANARY_BYTE;
    fti_pc_check(good,
                 "%s was written beyond the struct_size that the host stated, or its size "
                 "was changed",
                 what);
}

#define CHECK_OUT(name, what)                                                                      \
    check_canary((name).canary, (name).value.struct_size, sizeof(name).value, what)

/* ---- the mock itself ---- */

void fti_pc_set_size(fti_pc_mock *m, fti_pc_size size) {
    static const uint32_t rows[] = {FTI_PC_USUAL_ROWS, FTI_PC_WIDE_ROWS, FTI_PC_MANY_ROWS};
    static const uint32_t sequences[] = {FTI_PC_SEQUENCES, FTI_PC_SEQUENCES, FTI_PC_MANY_ROWS};
    uint32_t first = 0;
    m->max_rows = rows[size];
    m->sequences = sequences[size];
    m->pages = FTI_PC_BLOCKS;
    while (all_buckets[first] > m->max_rows) first++;
    m->buckets = all_buckets + first;
    m->bucket_count = (uint32_t)FTI_COUNT(all_buckets) - first;
    m->size = size;
}

/* A wide step in one sequence if the model's context allows it, in several if not. */
static void fit_context(fti_pc_mock *m) {
    if (m->size != FTI_PC_WIDE || m->info.context < FTI_PC_CONTEXT) return;
    m->pages = FTI_PC_WIDE_ROWS / FTI_PC_PAGE_TOKENS + 1;
    if (m->info.context < m->pages * FTI_PC_PAGE_TOKENS)
        m->pages = m->info.context / FTI_PC_PAGE_TOKENS;
    uint32_t needed = FTI_PC_WIDE_ROWS / (m->pages * FTI_PC_PAGE_TOKENS) + 2;
    if (needed > m->sequences) m->sequences = needed;
}

fti_pc_mock *fti_pc_mock_new(const fti_pc_target *target, const ftk_provider *table) {
    const fti_backend_options options = {.threads = 1, .kernel_mask = UINT32_MAX};
    ftk_error error = FTK_ERROR_INIT;
    fti_pc_mock *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->target = target;
    m->table = table;
    if (fti_cpu_backend_create(&options, &m->backend, &error) != FTK_OK ||
        m->backend->ops->stream_create(m->backend, &m->real, &error) != FTK_OK) {
        fti_pc_skip("%s", error.message);
        if (m->backend) m->backend->ops->destroy(m->backend);
        free(m);
        return NULL;
    }
    fti_pc_set_size(m, FTI_PC_USUAL);
    fti_pc_watch_faults();
    fti_pc_state_take(&m->state_before);
    return m;
}

void fti_pc_mock_end(fti_pc_mock *m) {
    fti_pc_destroy(m);
    fti_pc_check_areas(m);
    fti_pc_check(m->live == 0,
                 "%llu block%s of host->alloc %s not released after %s%s: release what was "
                 "allocated, in destroy or where create fails",
                 (unsigned long long)m->live, m->live == 1 ? "" : "s", m->live == 1 ? "is" : "are",
                 m->fired ? "the failure of " : "destroy", m->fired ? m->injected : "");
    m->backend->ops->stream_destroy(m->real);
    m->backend->ops->destroy(m->backend);
    fti_pc_forget_work(m);
    fti_pc_free_areas(m);
    free(m);
}

/* ---- match to prepare ---- */

ftk_status fti_pc_match(fti_pc_mock *m, ftk_str architecture, ftk_str container, ftk_str backend,
                        uint32_t *claimed) {
    const ftk_match_in in = {.struct_size = (uint32_t)sizeof in,
                             .architecture = architecture,
                             .container = container,
                             .backend = backend};
    OUT(ftk_match_out, out);
    fti_pc_begin(m, "match");
    ftk_status status = fti_pc_end(m,
                                   m->table->match(&fti_pc_host, fti_pc_ctx(m), &in, &out.value));
    CHECK_OUT(out, "the answer of match");
    *claimed = out.value.claimed;
    return status;
}

static ftk_status match_checkpoint(fti_pc_mock *m) {
    const fti_pc_target *t = m->target;
    uint32_t claimed = 0;
    ftk_status status = fti_pc_match(m, t->architecture,
                                     fti_str(fti_checkpoint_container(t->checkpoint)),
                                     fti_str("cpu"), &claimed);
    if (status == FTK_OK && !claimed) status = FTK_E_PROVIDER_NONE;
    if (status != FTK_OK && !m->fired)
        fti_pc_find("match does not take the checkpoint that its manifest claims: %s",
                    m->message[0] ? m->message : ftk_status_text(status));
    return status;
}

static void check_info(const fti_pc_mock *m) {
    const ftk_model_info *i = &m->info;
    fti_pc_check(i->layers > 0 && i->hidden > 0 && i->vocabulary > 0 && i->context > 0,
                 "create says: %u layers, hidden %u, vocabulary %u, context %u; wanted none 0",
                 i->layers, i->hidden, i->vocabulary, i->context);
    fti_pc_check(i->pretokenizer.size > 0 && i->pretokenizer.data,
                 "create gives no pre-tokenizer pattern");
    fti_pc_check(i->end_token_count == 0 || i->end_tokens,
                 "create gives no end tokens, but a count");
    for (uint32_t t = 0; i->end_tokens && t < i->end_token_count; t++)
        fti_pc_check(i->end_tokens[t] >= 0 && (uint32_t)i->end_tokens[t] < i->vocabulary,
                     "create gives the end token %d outside the vocabulary of %u", i->end_tokens[t],
                     i->vocabulary);
}

ftk_status fti_pc_create(fti_pc_mock *m, ftk_str options) {
    const fti_pc_target *t = m->target;
    const ftk_create_in in = {.struct_size = (uint32_t)sizeof in,
                              .architecture = t->architecture,
                              .container = fti_str(fti_checkpoint_container(t->checkpoint)),
                              .backend = fti_str("cpu"),
                              .options = options};
    OUT(ftk_model_info, out);
    ftk_model *model = NULL;
    fti_pc_begin(m, "create");
    ftk_status status = fti_pc_end(
        m, m->table->create(&fti_pc_host, fti_pc_ctx(m), &in, &out.value, &model));
    CHECK_OUT(out, "what create says of the model");
    if (status != FTK_OK) return status;
    if (!fti_pc_check(model != NULL, "create returned FTK_OK and no model"))
        return FTK_E_PROVIDER_CONTRACT;
    m->model = model;
    m->info = out.value;
    check_info(m);
    fit_context(m);
    if (m->info.context == 0 || m->info.context >= FTI_PC_CONTEXT) return FTK_OK;
    fti_pc_skip("the checkpoint has a context of %u positions, wanted %u or more", m->info.context,
                FTI_PC_CONTEXT);
    return FTK_E_CONTEXT;
}

static ftk_status plan(fti_pc_mock *m) {
    OUT(ftk_plan, out);
    out.value.bucket_rows = m->buckets;
    out.value.bucket_workspace_bytes = m->workspace_bytes;
    out.value.bucket_count = m->bucket_count;
    fti_pc_begin(m, "plan_weights");
    ftk_status status = fti_pc_end(m, m->table->plan_weights(m->model, &out.value));
    CHECK_OUT(out, "the plan");
    if (status != FTK_OK) return status;
    m->plan = out.value;
    return fti_pc_check_plan(m);
}

static ftk_status load(fti_pc_mock *m) {
    FTI_TRY(fti_pc_make_weights(m));
    const ftk_weight_views views = {.struct_size = (uint32_t)sizeof views,
                                    .weight_stride = (uint32_t)sizeof *m->weights,
                                    .weights = m->weights,
                                    .weight_count = m->plan.tensor_count,
                                    .banks = m->banks,
                                    .bank_count = m->plan.bank_part_count,
                                    .bank_stride = (uint32_t)sizeof *m->banks,
                                    .computed = m->computed};
    fti_pc_begin(m, "load_weights");
    return fti_pc_end(m, m->table->load_weights(m->model, &views));
}

static ftk_status attach(fti_pc_mock *m) {
    FTI_TRY(fti_pc_make_caches(m));
    const ftk_cache_views views = {.struct_size = (uint32_t)sizeof views,
                                   .kv_stride = (uint32_t)sizeof *m->kv,
                                   .kv = m->kv,
                                   .kv_count = m->plan.kv_layer_count,
                                   .state = {.struct_size = (uint32_t)sizeof(ftk_state_view),
                                             .base = m->state->data,
                                             .slot_stride = m->slot_stride}};
    fti_pc_begin(m, "attach_cache");
    return fti_pc_end(m, m->table->attach_cache(m->model, &views));
}

/* Callers that name no rows get the references, which need nothing. */
static uint32_t *choose(const fti_pc_mock *m, const uint32_t *chosen) {
    uint32_t *rows = calloc((size_t)m->table->variant_table_count + 1, sizeof *rows);
    for (uint64_t i = 0; rows && i < m->table->variant_table_count; i++)
        rows[i] = chosen ? chosen[i] : (uint32_t)m->table->variants[i]->variant_count - 1;
    return rows;
}

/* What a finding of several rows at once names. */
static void name_active(fti_pc_mock *m, const uint32_t *rows) {
    size_t n = 0;
    m->active[0] = 0;
    for (uint64_t i = 0; i < m->table->variant_table_count; i++) {
        const ftk_variant_table *t = m->table->variants[i];
        if (rows[i] + 1 >= t->variant_count || n + 1 >= sizeof m->active) continue;
        int more = snprintf(m->active + n, sizeof m->active - n, "%s%.*s", n ? ", " : "",
                            FTI_STR_ARGS(fti_pc_row(t, rows[i])->name));
        n += more > 0 ? (size_t)more : 0;
    }
}

static ftk_status prepare(fti_pc_mock *m, const uint32_t *chosen) {
    uint32_t *rows = choose(m, chosen);
    if (!rows) return FTK_E_NO_MEMORY;
    name_active(m, rows);
    const ftk_prepare_in in = {.struct_size = (uint32_t)sizeof in,
                               .max_rows = m->max_rows,
                               .chosen = rows,
                               .chosen_count = m->table->variant_table_count};
    OUT(ftk_prepare_out, out);
    fti_pc_begin(m, "prepare_for_runtime");
    ftk_status status = fti_pc_end(m, m->table->prepare_for_runtime(m->model, &in, &out.value));
    CHECK_OUT(out, "the answer of prepare_for_runtime");
    fti_pc_check(out.value.graph_safe <= 1, "prepare_for_runtime says graph_safe %u, wanted 0 or 1",
                 out.value.graph_safe);
    m->graph_safe = out.value.graph_safe;
    free(rows);
    return status;
}

ftk_status fti_pc_bring(fti_pc_mock *m, fti_pc_stage stage, const uint32_t *chosen) {
    FTI_TRY(match_checkpoint(m));
    FTI_TRY(fti_pc_create(m, fti_str("")));
    if (stage >= FTI_PC_PLANNED) FTI_TRY(plan(m));
    if (stage >= FTI_PC_LOADED) FTI_TRY(load(m));
    if (stage >= FTI_PC_ATTACHED) FTI_TRY(attach(m));
    if (stage >= FTI_PC_PREPARED) FTI_TRY(prepare(m, chosen));
    return FTK_OK;
}

void fti_pc_destroy(fti_pc_mock *m) {
    if (!m->model) return;
    fti_pc_begin(m, "destroy");
    m->table->destroy(m->model);
    fti_pc_end(m, FTK_OK);
    m->model = NULL;
}

/* ---- steps ---- */

/* Tokens of a sequence: anything, but always the same. */
static int32_t token_at(const fti_pc_mock *m, uint32_t sequence, uint32_t position) {
    uint32_t x = sequence * 2654435761u + position * 40503u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (int32_t)(x % m->info.vocabulary);
}

/* Pages in an order of their own for each slot, and never next to each other. */
static int32_t page_of(const fti_pc_mock *m, uint32_t slot, uint32_t block) {
    return (int32_t)(((block + slot) % m->pages) * m->sequences + slot);
}

typedef struct arrays {
    int32_t *tokens, *positions, *row_sequence, *sequence_rows, *state_slots, *block_table;
    int32_t *logit_rows;
} arrays;

static arrays lay_arrays(const fti_pc_mock *m) {
    int32_t *at = (int32_t *)(void *)m->arrays->data;
    arrays a;
    a.tokens = at;
    a.positions = a.tokens + m->max_rows;
    a.row_sequence = a.positions + m->max_rows;
    a.logit_rows = a.row_sequence + m->max_rows;
    a.sequence_rows = a.logit_rows + m->max_rows;
    a.state_slots = a.sequence_rows + FTI_PC_MAX_PARTS + 1;
    a.block_table = a.state_slots + FTI_PC_MAX_PARTS;
    return a;
}

/* A step of 5 through the slots meets each of them once, as their number is no multiple of it. */
#define SLOT_STEP 5u

uint32_t fti_pc_state_slot(const fti_pc_mock *m, uint32_t slot) {
    return ((slot + m->turn) * SLOT_STEP + 2) % m->slots;
}

void fti_pc_move_slots(fti_pc_mock *m) {
    uint32_t before[FTI_PC_MAX_PARTS];
    uint64_t bytes = m->plan.state_bytes;
    if (m->dry || m->sequences > FTI_PC_MAX_PARTS) return;
    for (uint32_t s = 0; s < m->sequences; s++) before[s] = fti_pc_state_slot(m, s);
    memcpy(m->state_copy, m->state->data, (size_t)m->state->bytes);
    m->turn++;
    for (uint32_t s = 0; s < m->sequences; s++)
        memcpy(m->state->data + fti_pc_state_slot(m, s) * m->slot_stride,
               m->state_copy + before[s] * m->slot_stride, (size_t)bytes);
}

static uint32_t fill_part(const fti_pc_mock *m, const arrays *a, const fti_pc_part *p, uint32_t s,
                          uint32_t row, uint32_t *logits) {
    a->state_slots[s] = (int32_t)fti_pc_state_slot(m, p->slot);
    for (uint32_t b = 0; b < m->pages; b++)
        a->block_table[s * m->pages + b] = page_of(m, p->slot, b);
    for (uint32_t i = 0; i < p->rows; i++) {
        a->tokens[row + i] = token_at(m, p->sequence, p->first + i);
        a->positions[row + i] = (int32_t)(p->first + i);
        a->row_sequence[row + i] = (int32_t)s;
        if (i >= p->rows - p->logit_rows) a->logit_rows[(*logits)++] = (int32_t)(row + i);
    }
    return row + p->rows;
}

/* Of the smallest bucket that holds as many rows. */
static uint32_t bucket_index(const fti_pc_mock *m, uint32_t rows) {
    uint32_t bucket = 0;
    while (bucket + 1 < m->bucket_count && m->buckets[bucket + 1] >= rows) bucket++;
    return bucket;
}

uint32_t fti_pc_bucket_for(const fti_pc_mock *m, uint32_t rows) {
    return m->buckets[bucket_index(m, rows)];
}

ftk_step fti_pc_fill_step(fti_pc_mock *m, const fti_pc_part *parts, uint32_t count, uint32_t rows) {
    arrays a = lay_arrays(m);
    uint32_t row = 0, logits = 0, bucket = bucket_index(m, rows);
    memset(m->arrays->data, 0, (size_t)m->arrays->bytes);
    for (uint32_t s = 0; s < count; s++) {
        a.sequence_rows[s] = (int32_t)row;
        row = fill_part(m, &a, &parts[s], s, row, &logits);
    }
    a.sequence_rows[count] = (int32_t)row;
    for (uint32_t i = row; i < rows; i++) a.row_sequence[i] = -1;
    m->step_sequences = count;
    m->slots_at = (uint64_t)(a.state_slots - a.tokens);
    memcpy(m->arrays_copy, m->arrays->data, (size_t)m->arrays->bytes);
    m->step_workspace = m->workspace[bucket];
    m->logits = m->logits_of[bucket_index(m, logits)];
    return (ftk_step){.struct_size = (uint32_t)sizeof(ftk_step),
                      .rows = rows,
                      .sequences = count,
                      .logit_count = logits,
                      .block_stride = m->pages,
                      .stream = fti_pc_stream(m),
                      .tokens = a.tokens,
                      .positions = a.positions,
                      .row_sequence = a.row_sequence,
                      .sequence_rows = a.sequence_rows,
                      .state_slots = a.state_slots,
                      .block_table = a.block_table,
                      .logit_rows = a.logit_rows,
                      .logits = (float *)(void *)m->logits->data,
                      .workspace = m->step_workspace->data,
                      .workspace_bytes = m->workspace_bytes[bucket]};
}

void fti_pc_blank(fti_pc_mock *m, const ftk_step *step) {
    arrays a = lay_arrays(m);
    memset(m->arrays->data, 0, (size_t)m->arrays->bytes);
    for (uint32_t i = 0; i < step->rows; i++) a.row_sequence[i] = -1;
    memcpy(m->arrays_copy, m->arrays->data, (size_t)m->arrays->bytes);
}

ftk_status fti_pc_step(fti_pc_mock *m, const fti_pc_part *parts, uint32_t count, uint32_t rows,
                       uint8_t garbage) {
    ftk_step step = fti_pc_fill_step(m, parts, count, rows);
    if (!m->dry) memset(m->step_workspace->data, garbage, (size_t)m->step_workspace->bytes);
    return fti_pc_run(m, &step);
}

void fti_pc_clear(fti_pc_mock *m, uint8_t garbage) {
    for (fti_pc_area *a = m->caches; a; a = a->next)
        if (a != m->state) memset(a->data, garbage, (size_t)a->bytes);
    for (uint32_t s = 0; s < m->slots; s++)
        memset(m->state->data + s * m->slot_stride, 0, (size_t)m->plan.state_bytes);
}
