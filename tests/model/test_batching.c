/*
 * test_batching.c: promise 2 for requests that run together: tokens and logits of each are
 * those of its solo run, bit for bit, whatever the batch, the budget of a step, the threads,
 * the kernels and graphs, whoever joins and leaves meanwhile, what the prefix cache knows
 * and who is preempted; with every type of the KV cache, and without a recurrent state. The
 * cells of the matrix cover every pair of two factors' values;
 * counters prove that each ran what it names. `test_batching full I N` runs part I of N of
 * the whole product instead (I from 0 on).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#include "core/service.h"
#include "loader/scratch.h"
#include "support/counts.h"
#include "support/engine_fixture.h"
#include "support/synth_model.h"

#define REQUESTS 25u
#define TOKENS   (FIXTURE_SLOW_BUILD ? 60u : 120u) /* of the longest answer */

/* ---- what each request is, and its logits ---- */

/* Around pages and budgets; the longest first, so that it has company while it decodes. */
static const uint32_t sizes[REQUESTS] = {530, 63, 70, 128, 64, 7,  200, 2, 65, 5,  33, 17, 9,
                                         1,   31, 4,  12,  3,  16, 8,   1, 20, 40, 6,  11};

typedef struct answer {
    int32_t tokens[TOKENS];
    uint64_t logits[TOKENS]; /* XXH3-64 of the row that the token was chosen from */
    uint32_t rows, count;
    uint32_t dones;
    uint64_t reused, preemptions;
    ftk_generate_result result;
} answer;

static answer *solo, *now_running; /* [REQUESTS]; the second is what fti_sample writes to */
static uint32_t vocabulary;

ftk_status __real_fti_sample(fti_sampler *sampler, const float *logits,
                             const fti_sampling *sampling, const int32_t *history, size_t count,
                             uint64_t position, fti_sample_result *result, ftk_error *err);
ftk_status __wrap_fti_sample(fti_sampler *sampler, const float *logits,
                             const fti_sampling *sampling, const int32_t *history, size_t count,
                             uint64_t position, fti_sample_result *result, ftk_error *err);

/* The logits as the library hands them to its sampler; the seed says whose they are. */
ftk_status __wrap_fti_sample(fti_sampler *sampler, const float *logits,
                             const fti_sampling *sampling, const int32_t *history, size_t count,
                             uint64_t position, fti_sample_result *result, ftk_error *err) {
    answer *a = &now_running[sampling->seed];
    if (a->rows < TOKENS) a->logits[a->rows++] = XXH3_64bits(logits, vocabulary * sizeof *logits);
    return __real_fti_sample(sampler, logits, sampling, history, count, position, result, err);
}

static int keep(void *user, const ftk_event *event) {
    answer *a = user;
    if (event->type == FTK_EVENT_TOKEN) {
        a->tokens[a->count++ % TOKENS] = event->token;
    } else {
        a->dones++;
        a->result = event->result;
        a->reused = event->reused_tokens;
        a->preemptions = event->preemptions;
    }
    return 0;
}

/* The prompt of request i, or one like it: its first `size` tokens, with another one at
 * `edit`, unless that lies behind them. */
static void submit_variant(ftk_engine *engine, size_t i, size_t size, size_t edit, int32_t other,
                           uint32_t max_tokens) {
    int32_t ids[530];
    uint64_t id;
    ftk_error err = FTK_ERROR_INIT;
    for (size_t k = 0; k < size; k++)
        ids[k] = (int32_t)((k * 37 + 101 * i + k * k % 11) % (vocabulary - 26));
    if (edit < size) ids[edit] = (ids[edit] + other) % (int32_t)(vocabulary - 26);
    ftk_request r = FTK_REQUEST_INIT;
    r.tokens = ids;
    r.token_count = size;
    r.max_tokens = max_tokens;
    r.ignore_end = 1;
    r.priority = (int32_t)(i % 3);
    r.sampling.temperature = i % 2 ? 0.9f : 0;
    r.sampling.seed = i;
    r.on_event = keep;
    r.user = &now_running[i];
    if (ftk_submit(engine, &r, &id, &err) != FTK_OK) fail_msg("%s", err.message);
}

static void submit(ftk_engine *engine, size_t i, uint32_t max_tokens) {
    submit_variant(engine, i, sizes[i], SIZE_MAX, 0, max_tokens);
}

static bool step(ftk_engine *engine) {
    uint32_t rows;
    ftk_error err = FTK_ERROR_INIT;
    if (ftk_engine_step(engine, &rows, &err) != FTK_OK) fail_msg("%s", err.message);
    return rows > 0;
}

/* ---- the matrix ---- */

enum { BATCH, BUDGET, THREADS, KERNELS, GRAPHS, CACHE, PREEMPT, FACTORS };
enum { CACHE_OFF, CACHE_COLD, CACHE_WARM, CACHE_EDITED };
enum { PREEMPT_NONE, PREEMPT_RECOMPUTE, PREEMPT_SWAP };
static const char *const values[FACTORS][7] = {
    {"1", "2", "3", "4", "8", "16", NULL},
    {"1", "64", "192", "512", NULL},
    {"1", "2", NULL},
    {"reference", "0x9", "auto", NULL},
    {"auto", "off", NULL},
    {"off", "cold", "warm", "edited", NULL},
    {"none", "recompute", "swap", NULL},
};
static const char *const keys[FACTORS] = {"scheduler.max_running",
                                          "scheduler.prefill_tokens",
                                          "backend.threads",
                                          "backend.kernels",
                                          "backend.graphs",
                                          "prefix cache",
                                          "preemption"};
#define SETTINGS CACHE /* factors before this one are settings as they stand */
#define CELLS    24u

typedef struct cell {
    uint32_t level[FACTORS];
} cell;

/* Every batch with every budget; the other factors so that they meet all. */
static const uint8_t cells[CELLS][FACTORS] = {
    {0, 0, 1, 1, 1, 0, 1}, {0, 1, 0, 1, 0, 1, 0}, {0, 2, 0, 2, 0, 2, 0}, {0, 3, 1, 0, 0, 3, 2},
    {1, 0, 0, 0, 1, 1, 0}, {1, 1, 0, 1, 1, 2, 1}, {1, 2, 0, 2, 1, 3, 1}, {1, 3, 1, 2, 0, 0, 2},
    {2, 0, 0, 2, 0, 2, 2}, {2, 1, 0, 0, 1, 3, 2}, {2, 2, 0, 1, 1, 0, 1}, {2, 3, 1, 2, 1, 1, 0},
    {3, 0, 1, 1, 0, 3, 0}, {3, 1, 1, 0, 1, 0, 2}, {3, 2, 1, 2, 1, 1, 0}, {3, 3, 0, 1, 0, 2, 1},
    {4, 0, 1, 2, 1, 0, 0}, {4, 1, 1, 1, 0, 1, 2}, {4, 2, 1, 0, 1, 2, 1}, {4, 3, 0, 1, 1, 3, 0},
    {5, 0, 0, 1, 1, 1, 1}, {5, 1, 1, 2, 1, 0, 0}, {5, 2, 0, 0, 1, 3, 2}, {5, 3, 0, 0, 0, 2, 1}};

static cell cell_of(uint32_t n) {
    cell c;
    for (uint32_t f = 0; f < FACTORS; f++) c.level[f] = cells[n][f];
    return c;
}

static uint32_t level_count(uint32_t factor) {
    uint32_t n = 0;
    while (values[factor][n]) n++;
    return n;
}

static void cells_cover_all_pairs(void **state) {
    (void)state;
    for (uint32_t f = 0; f < FACTORS; f++)
        for (uint32_t g = 0; g < f; g++)
            for (uint32_t pair = 0; pair < level_count(f) * level_count(g); pair++) {
                uint32_t a = pair % level_count(f), b = pair / level_count(f), n = 0;
                while (n < CELLS && (cell_of(n).level[f] != a || cell_of(n).level[g] != b)) n++;
                if (n == CELLS)
                    fail_msg("no cell has %s %s and %s %s", keys[f], values[f][a], keys[g],
                             values[g][b]);
            }
}

/* Of the whole product, the last factor's levels next to each other. */
static cell cell_of_product(uint32_t n) {
    cell c;
    for (uint32_t f = FACTORS; f-- > 0; n /= level_count(f)) c.level[f] = n % level_count(f);
    return c;
}

static text model;
static const char *kv_type = "f16"; /* what the bits do depend on */

static const char *value_of(const cell *c, uint32_t factor) {
    return values[factor][c->level[factor]];
}

static uint32_t number_of(const cell *c, uint32_t factor) {
    return (uint32_t)strtoul(value_of(c, factor), NULL, 10);
}

/* The first request of a cell: long prompts, row by row, would outlast the answers that they
 * shall have as company. */
static size_t first_of(const cell *c) {
    uint32_t batch = number_of(c, BATCH);
    return number_of(c, BUDGET) > 1 || batch == 1 ? 0 : batch > 8 ? 7 : 14;
}

/* So few pages that preemption is unavoidable, or far more than are needed. */
static const char *kv_tokens_of(const cell *c) {
    if (c->level[PREEMPT] == PREEMPT_NONE) return "8192";
    return first_of(c) == 0 ? "704" : "384";
}

static ftk_engine *open_cell(const cell *c) {
    const bool preempts = c->level[PREEMPT] != PREEMPT_NONE;
    const char *const fixed[] = {
        "memory.kv_tokens",       kv_tokens_of(c),
        "memory.snapshots",       "128",
        "memory.kv_type",         kv_type,
        "scheduler.prefix_cache", c->level[CACHE] == CACHE_OFF ? "false" : "true",
        "scheduler.preempt",      preempts ? "true" : "false",
        "scheduler.overcommit",   preempts ? "true" : "false",
        "scheduler.swap",         c->level[PREEMPT] == PREEMPT_SWAP ? "256MiB" : "0"};
    const char *settings[2 * SETTINGS + FTI_COUNT(fixed) + 1] = {NULL};
    for (uint32_t f = 0; f < SETTINGS; f++) {
        settings[2 * f] = keys[f];
        settings[2 * f + 1] = value_of(c, f);
    }
    memcpy(settings + 2 * SETTINGS, fixed, sizeof fixed);
    return fixture_open(model.s, settings);
}

/* ---- alone ---- */

/* Every interval-th of two layers has full attention, the others a recurrent state. */
static void write_model(const char *name, uint32_t interval) {
    ftk_error err = FTK_ERROR_INIT;
    fti_synth_model m = fti_synth_tiny();
    m.dims.interval = interval;
    m.dims.layers = 2;
    model = in_scratch(name);
    if (fti_synth_write(&m, model.s, &err) != FTK_OK) fail_msg("%s", err.message);
}

static void run_alone(void) {
    memset(now_running, 0, REQUESTS * sizeof *now_running);
    const cell c = {{0, 3, 0, 2, 1, CACHE_OFF, PREEMPT_NONE}};
    ftk_engine *engine = open_cell(&c);
    vocabulary = ftk_engine_vocabulary(engine);
    for (size_t i = 0; i < REQUESTS; i++) {
        submit(engine, i, TOKENS);
        while (step(engine)) continue;
    }
    memcpy(solo, now_running, REQUESTS * sizeof *solo);
    ftk_engine_close(engine);
}

static int run_solo(void **state) {
    if (scratch_setup(state) != 0) return -1;
    solo = calloc(REQUESTS, sizeof *solo);
    now_running = calloc(REQUESTS, sizeof *now_running);
    write_model("batching.gguf", 2);
    run_alone();
    return 0;
}

static int drop_solo(void **state) {
    free(solo);
    free(now_running);
    return scratch_teardown(state);
}

/* A comparison with a model that says the same to everybody would prove nothing. */
static void solo_runs_differ(void **state) {
    (void)state;
    for (size_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(solo[i].rows, TOKENS);
        assert_int_equal(solo[i].count, TOKENS);
        for (size_t k = 0; k < i; k++) assert_int_not_equal(solo[i].logits[0], solo[k].logits[0]);
        for (size_t k = 1; k < TOKENS; k++)
            assert_int_not_equal(solo[i].logits[k], solo[i].logits[k - 1]);
    }
}

/* ---- together ---- */

static void compare(size_t i, uint32_t max_tokens, const char *what) {
    const answer *a = &now_running[i], *s = &solo[i];
    assert_int_equal(a->dones, 1);
    assert_int_equal(a->result.finish, FTK_FINISH_LENGTH);
    assert_int_equal(a->count, max_tokens);
    assert_int_equal(a->rows, max_tokens);
    for (uint32_t k = 0; k < max_tokens; k++) {
        if (a->logits[k] != s->logits[k])
            fail_msg("%s: request %zu, logits of token %u differ from the solo run", what, i, k);
        if (a->tokens[k] != s->tokens[k])
            fail_msg("%s: request %zu, token %u differs from the solo run", what, i, k);
    }
    assert_int_equal(a->result.hash, XXH3_64bits(a->tokens, max_tokens * sizeof *a->tokens));
}

static json_t *stats_of(const ftk_engine *engine) {
    char *json = NULL;
    assert_int_equal(ftk_engine_stats(engine, &json, NULL), FTK_OK);
    json_t *o = json_loads(json, 0, NULL);
    ftk_report_free(json);
    return o;
}

/* A histogram has the sizes that occurred. */
static uint32_t largest_of(const json_t *histogram) {
    uint32_t largest = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)histogram, key, value) {
        uint32_t size = (uint32_t)strtoul(key, NULL, 10);
        if (size > largest) largest = size;
    }
    return largest;
}

static size_t part_of(size_t i) {
    size_t part = sizes[i] * 2 / 3 | 1; /* an odd position, of any prompt above two tokens */
    return part < sizes[i] ? part : sizes[i];
}

/* Rows of the largest step, if all fit. Prompts that are known in part leave less to run. */
static uint32_t most_rows_of(const cell *c) {
    uint32_t batch = number_of(c, BATCH), budget = number_of(c, BUDGET);
    uint32_t known = (uint32_t)part_of(0);
    if (c->level[CACHE] == CACHE_WARM && budget > known) return known;
    return budget > batch ? budget : batch;
}

static void expect_sizes(const ftk_engine *engine, const cell *c, const char *what) {
    json_t *o = stats_of(engine), *decode = json_object_get(o, "decode_histogram");
    uint32_t batch = number_of(c, BATCH);
    bool enough = c->level[PREEMPT] == PREEMPT_NONE; /* of pages, for a whole batch */
    if (enough ? largest_of(decode) != batch : largest_of(decode) > batch)
        fail_msg("%s: at most %u requests decoded in one step", what, largest_of(decode));
    uint32_t rows = largest_of(json_object_get(o, "rows_histogram"));
    if (enough && rows != most_rows_of(c))
        fail_msg("%s: the largest step had %u rows, not %u", what, rows, most_rows_of(c));
    assert_int_equal(json_integer_value(json_object_get(o, "state_slots_used")), 0);
    assert_int_equal(json_integer_value(json_object_get(o, "pages_used")), 0);
    json_decref(o);
}

/* Answers end at different steps, the shortest last to come; long enough that a full batch
 * decodes together though prompts trickle in row by row. */
static uint32_t length_of(size_t i, uint32_t batch, uint32_t budget) {
    uint32_t base = budget > 1 || batch == 1 ? 20 + batch : batch > 8 ? 97 : 72;
    return base + (uint32_t)((i * 7) % 23);
}

/* ---- what the prefix cache knows ---- */

/* Runs prompts that begin as those of the cell do: up to an odd position, or twice with
 * another token in the middle, since the second time shows where prompts part. */
static void warm_up(ftk_engine *engine, const cell *c, size_t first, size_t count) {
    bool edited = c->level[CACHE] == CACHE_EDITED;
    if (c->level[CACHE] < CACHE_WARM) return;
    for (int32_t round = 1; round <= (edited ? 2 : 1); round++)
        for (size_t i = first; i < first + count; i++) {
            if (edited)
                submit_variant(engine, i, sizes[i], sizes[i] / 2, round, 2);
            else
                submit_variant(engine, i, part_of(i), SIZE_MAX, 0, 3);
            while (step(engine)) continue;
        }
}

static void expect_reuse(const cell *c, size_t first, size_t count, const char *what) {
    uint64_t sum = 0;
    bool enough = c->level[PREEMPT] == PREEMPT_NONE; /* of pages, to keep them all */
    for (size_t i = first; i < first + count; i++) {
        uint64_t reused = now_running[i].reused;
        sum += reused;
        if (enough && c->level[CACHE] == CACHE_WARM && part_of(i) < sizes[i] &&
            reused != part_of(i))
            fail_msg("%s: request %zu reused %llu tokens, not %zu", what, i,
                     (unsigned long long)reused, part_of(i));
    }
    if (c->level[CACHE] == CACHE_OFF || (enough && c->level[CACHE] == CACHE_COLD))
        assert_int_equal(sum, 0);
    /* Whole pages before the middle have the longest prompts only. */
    if (enough && c->level[CACHE] == CACHE_EDITED && first == 0)
        assert_true(now_running[0].reused == 256);
}

static void expect_preemptions(const ftk_engine *engine, const cell *c, const char *what) {
    json_t *o = stats_of(engine), *by = json_object_get(o, "preemptions");
    json_int_t again = json_integer_value(json_object_get(by, "recompute"));
    json_int_t swap = json_integer_value(json_object_get(by, "swap"));
    json_decref(o);
    if ((again > 0) != (c->level[PREEMPT] == PREEMPT_RECOMPUTE) ||
        (swap > 0) != (c->level[PREEMPT] == PREEMPT_SWAP))
        fail_msg("%s: %lld preemptions to compute again, %lld to swap space", what,
                 (long long)again, (long long)swap);
    const char *fault = fti_holdings_fault(engine->service);
    if (fault) fail_msg("%s: the accounts of %s do not add up", what, fault);
}

static void run_cell(const cell *c) {
    uint32_t batch = number_of(c, BATCH), budget = number_of(c, BUDGET);
    size_t first = first_of(c), submitted = 0, count = batch + batch / 2 + 1;
    if (count > REQUESTS - first) count = REQUESTS - first;
    char what[192];
    snprintf(what, sizeof what,
             "batch %s, budget %s, threads %s, kernels %s, graphs %s, cache %s, preemption %s",
             value_of(c, BATCH), value_of(c, BUDGET), value_of(c, THREADS), value_of(c, KERNELS),
             value_of(c, GRAPHS), value_of(c, CACHE), value_of(c, PREEMPT));
    ftk_engine *engine = open_cell(c);
    fti_stream_counts before = counts_now(engine);
    warm_up(engine, c, first, count);
    memset(now_running, 0, REQUESTS * sizeof *now_running);
    do { /* somebody new with every step, until all have come */
        if (submitted < count) {
            size_t i = first + submitted++;
            submit(engine, i, length_of(i, batch, budget));
        }
    } while (step(engine));
    for (size_t i = first; i < first + count; i++) compare(i, length_of(i, batch, budget), what);
    expect_sizes(engine, c, what);
    expect_reuse(c, first, count, what);
    expect_preemptions(engine, c, what);
    bool plain = c->level[KERNELS] == 0 || !counts_vector_machine(engine);
    fti_stream_counts after = counts_now(engine);
    assert_true(plain ? after.vector == before.vector : after.vector > before.vector);
    if (c->level[KERNELS] == 1) assert_int_equal(after.avx512, before.avx512);
    counts_expect_threads(engine, number_of(c, THREADS));
    assert_int_equal(after.replays > before.replays, c->level[GRAPHS] == 0);
    ftk_engine_close(engine);
}

static uint32_t full_part, full_parts; /* of the whole product; 0 parts: the cells */

static void run_product(void) {
    uint32_t product = 1, done = 0;
    for (uint32_t f = 0; f < FACTORS; f++) product *= level_count(f);
    for (uint32_t n = full_part; n < product; n += full_parts, done++) {
        const cell c = cell_of_product(n);
        run_cell(&c);
    }
    print_message("%u of %u cells: every request as alone\n", done, product);
}

static void e9_any_batch_as_alone(void **state) {
    (void)state;
    if (full_parts) {
        run_product();
        return;
    }
    uint32_t stride = FIXTURE_SLOW_BUILD ? 13 : 1;
    for (uint32_t n = 0; n < CELLS; n += stride) {
        const cell c = cell_of(n);
        run_cell(&c);
    }
    if (stride > 1) print_message("skip: of %u cells, each %uth with sanitizers\n", CELLS, stride);
}

/* ---- other engines ---- */

/* Cells in which pages are shared, copied, thrown away and swapped. */
static void run_some_cells(void) {
    static const uint32_t some[] = {9, 15, 1};
    run_alone();
    solo_runs_differ(NULL);
    for (size_t i = 0; i < (FIXTURE_SLOW_BUILD ? 1 : FTI_COUNT(some)); i++) {
        const cell c = cell_of(some[i]);
        run_cell(&c);
    }
}

/* The cells above have shown the threads; these two would take a quarter of an hour more. */
static void skip_under_thread_sanitizer(void) {
#if defined(__SANITIZE_THREAD__)
    print_message("skip: the cells of the matrix have the same threads, and ThreadSanitizer takes "
                  "minutes\n");
    skip();
#endif
}

/* Pages have other sizes then, and their rows scales of their own. */
static void any_type_of_the_cache(void **state) {
    static const char *const types[] = {"q8_0", "bf16", "f32"};
    const uint64_t of_f16 = solo[0].logits[TOKENS - 1];
    (void)state;
    skip_under_thread_sanitizer();
    for (size_t t = 0; t < (FIXTURE_SLOW_BUILD ? 1 : FTI_COUNT(types)); t++) {
        kv_type = types[t];
        run_some_cells();
        assert_int_not_equal(solo[0].logits[TOKENS - 1], of_f16);
    }
    kv_type = "f16";
}

/* Such a model goes on from any page. */
static void without_a_recurrent_state(void **state) {
    (void)state;
    skip_under_thread_sanitizer();
    write_model("stateless.gguf", 1);
    const cell c = cell_of(0);
    ftk_engine *engine = open_cell(&c);
    assert_int_equal(engine->plan.state_bytes, 0);
    ftk_engine_close(engine);
    run_some_cells();
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "full") == 0) {
        full_part = (uint32_t)strtoul(argv[2], NULL, 10);
        full_parts = (uint32_t)strtoul(argv[3], NULL, 10);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_cover_all_pairs),     cmocka_unit_test(solo_runs_differ),
        cmocka_unit_test(e9_any_batch_as_alone),     cmocka_unit_test(any_type_of_the_cache),
        cmocka_unit_test(without_a_recurrent_state),
    };
    return cmocka_run_group_tests_name("test_batching", tests, run_solo, drop_solo);
}
