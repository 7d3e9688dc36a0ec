/*
 * test_cases_hostile.c: causes of section G of docs/cases.md that lie beyond the reader of
 * files: what an engine makes of names and templates that a file brings, and of numbers
 * that a caller does. The reader's own are in tests/gguf/test_gguf.c; G22 has none until
 * states can be saved, which cases.sh watches for.
 */
#include "cases/case_files.h"

#include <time.h>

static ftk_engine *open_configured(const char *path) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = NULL;
    if (fixture_try_open(path, NULL, FTK_OPEN_CONFIGURED, &engine, &err) != FTK_OK)
        fail_msg("%s", err.message);
    return engine;
}

/* ---- G14: outputs that are too short ---- */

#define ROOM  64
#define GUARD 0x5A5A5A5A

/* Asks with each capacity from 0 to what is needed and one more: the count is the same
 * each time, and nothing is written behind the capacity. */
static void check_capacities(ftk_status (*ask)(int32_t *ids, size_t capacity, size_t *count)) {
    int32_t all[ROOM], ids[ROOM];
    size_t wanted, count;
    assert_int_equal(ask(all, ROOM, &wanted), FTK_OK);
    assert_in_range(wanted, 3, ROOM - 2);
    assert_int_equal(ask(NULL, 0, &count), FTK_OK);
    assert_int_equal(count, wanted);
    for (size_t capacity = 0; capacity <= wanted + 1; capacity++) {
        size_t written = capacity < wanted ? capacity : wanted;
        for (size_t i = 0; i < ROOM; i++) ids[i] = GUARD;
        assert_int_equal(ask(ids, capacity, &count), FTK_OK);
        assert_int_equal(count, wanted);
        assert_memory_equal(ids, all, written * sizeof *ids);
        for (size_t i = written; i < ROOM; i++) assert_int_equal(ids[i], GUARD);
    }
}

static ftk_engine *asked;

static ftk_status ask_text(int32_t *ids, size_t capacity, size_t *count) {
    static const char words[] = "a wolf, a bear and an owl";
    return ftk_tokenize(asked, words, sizeof words - 1, 0, ids, capacity, count, NULL);
}

static ftk_status ask_dialogue(int32_t *ids, size_t capacity, size_t *count) {
    ftk_message m = FTK_MESSAGE_INIT;
    m.role = "user";
    m.content = "hello";
    m.content_size = 5;
    return ftk_format_chat(asked, &m, 1, FTK_CHAT_NO_ANSWER, ids, capacity, count, NULL);
}

static void g14_outputs_that_are_too_short(void **state) {
    (void)state;
    asked = open_configured(DEMO_MODEL);
    check_capacities(ask_text);
    check_capacities(ask_dialogue);
    ftk_engine_close(asked);
}

/* ---- G18: fewer layers than there are ---- */

/* The other extremes are refused: tests/model/test_refusals.c. */
static void g18_one_block_of_four(void **state) {
    (void)state;
    const fti_synth_meta meta = {
        .key = "qwen35moe.block_count", .type = FTI_SYNTH_U32, .number = 1};
    int32_t ids[] = {3, 5, 7};
    fti_synth_model m = toy_model();
    m.metas = &meta;
    m.meta_count = 1;
    ftk_engine *engine = fixture_open(write_model(&m, "one.gguf").s, NULL);
    assert_int_equal(ftk_engine_layers(engine), 1);
    free(fixture_logits(engine, ids, FTI_COUNT(ids), 2));
    ftk_engine_close(engine);
}

/* ---- G19: numbers in names ---- */

#define ROWS 8

static float *logits_of(const fti_synth_model *m) {
    int32_t ids[ROWS];
    for (int32_t i = 0; i < ROWS; i++) ids[i] = (i * 37 + 11) % 290;
    ftk_engine *engine = fixture_open(write_model(m, "names.gguf").s, NULL);
    float *logits = fixture_logits(engine, ids, ROWS, ROWS);
    ftk_engine_close(engine);
    return logits;
}

/* Tensors whose names would be those of layers if numbers were read loosely: they change
 * nothing, since names are only ever made from numbers, never read as such. */
static void g19_names_that_nearly_fit(void **state) {
    (void)state;
    static const fti_synth_extra extras[] = {
        {"blk.4294967296.attn_norm.weight", FTK_TYPE_F32, 256, 1},
        {"blk.4294967297.ffn_gate_inp.weight", FTK_TYPE_F32, 256, 4},
        {"blk.-1.attn_norm.weight", FTK_TYPE_F32, 256, 1},
        {"blk.00.attn_norm.weight", FTK_TYPE_F32, 256, 1},
        {"blk.+1.attn_norm.weight", FTK_TYPE_F32, 256, 1},
        {"blk.0x1.attn_norm.weight", FTK_TYPE_F32, 256, 1},
        {"blk.999.attn_norm.weight", FTK_TYPE_F32, 256, 1},
        {"blk..attn_norm.weight", FTK_TYPE_F32, 256, 1},
        {"blk.1.attn_norm.weight/../x", FTK_TYPE_F32, 256, 1},
        {"blk.1.attn_norm.weight\n", FTK_TYPE_F32, 256, 1},
        {"blk.\xFF\xFE.attn_norm.weight", FTK_TYPE_F32, 256, 1},
    };
    fti_synth_model m = toy_model();
    float *wanted = logits_of(&m);
    m.extras = extras;
    m.extra_count = FTI_COUNT(extras);
    float *found = logits_of(&m);
    assert_memory_equal(found, wanted, sizeof(float) * ROWS * m.dims.vocabulary);
    free(wanted);
    free(found);
}

/* And none of them stands in for the tensor that is missing. */
static void g19_names_are_not_read_loosely(void **state) {
    (void)state;
    static const char *const names[] = {
        "blk.4294967297.attn_norm.weight", "blk.01.attn_norm.weight", "blk.+1.attn_norm.weight",
        "blk.1 .attn_norm.weight",         "BLK.1.attn_norm.weight",  "blk.1.attn_norm.weight\n"};
    for (size_t i = 0; i < FTI_COUNT(names); i++) {
        const fti_synth_edit edit = {.name = "blk.1.attn_norm.weight", .new_name = names[i]};
        const case_file c = {.id = "g19",
                             .what = names[i],
                             .status = FTK_E_CKPT_TENSOR,
                             .parts = {"tensor 'blk.1.attn_norm.weight' is missing", "convert"}};
        fti_synth_model m = toy_model();
        m.edits = &edit;
        m.edit_count = 1;
        ftk_error err = FTK_ERROR_INIT;
        ftk_engine *engine = NULL;
        fixture_try_open(write_model(&m, "names.gguf").s, NULL, FTK_OPEN_READY, &engine, &err);
        assert_null(engine);
        case_expect_message(&c, &err);
    }
}

/* ---- G21: chat templates ---- */

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* `unit` as often as it goes into `size` bytes, as the template; returns what a dialogue
 * then costs in tokens. Opening and asking take no longer than for any other file. */
static size_t ask_with_template(const char *unit, size_t size) {
    char *whole = calloc(1, size + 1);
    assert_non_null(whole);
    for (size_t i = 0; i < size; i++) whole[i] = unit[i % strlen(unit)];
    const fti_synth_meta meta = {
        .key = "tokenizer.chat_template", .type = FTI_SYNTH_STRING, .text = whole};
    fti_synth_model m = toy_model();
    m.metas = &meta;
    m.meta_count = 1;
    text path = write_model(&m, "template.gguf");
    free(whole);
    double begin = processor_seconds();
    asked = open_configured(path.s);
    int32_t ids[ROOM];
    size_t count;
    assert_int_equal(ask_dialogue(ids, ROOM, &count), FTK_OK);
    ftk_engine_close(asked);
    assert_true(processor_seconds() - begin < (FIXTURE_SLOW_BUILD ? 20.0 : 2.0));
    return count;
}

/* Depth, output and time: a template has no way to any of them, since it is not run. */
static void g21_templates_cost_nothing(void **state) {
    (void)state;
    size_t plain = ask_with_template("x", 1);
    assert_int_equal(ask_with_template("(", 12000), plain);
    assert_int_equal(ask_with_template("{{ (", 12000), plain);
    assert_int_equal(ask_with_template("{% for a in range(999999999) %}", 1u << 20), plain);
    assert_int_equal(ask_with_template("{{ 'x' * 999999999 }}", 4096), plain);
    assert_int_equal(ask_with_template("{{ ''.__class__.__mro__ }}", 4096), plain);
    assert_int_equal(ask_with_template("{%- macro f() %}{{ f() }}", 4096), plain);
}

/* ---- G23: integers of requests ---- */

typedef struct integer_field {
    const char *name;
    size_t offset, size;
    uint64_t most; /* that is taken; what is above is refused */
} integer_field;

#define FIELD(type, member, most_)                                                                 \
    { #member, offsetof(type, member), sizeof(((type *)NULL)->member), (most_) }

static const uint64_t numbers[] = {0,          1,
                                   INT32_MAX,  (uint64_t)INT32_MAX + 1,
                                   UINT32_MAX, (uint64_t)UINT32_MAX + 1,
                                   INT64_MAX,  (uint64_t)INT64_MAX + 1,
                                   UINT64_MAX};

static const int32_t some_ids[] = {3, 5, 7};

/* Runs what is taken to its end; FTK_OK if it ended well and gave at least a token. */
static ftk_status run_request(ftk_engine *engine, const ftk_request *r, ftk_error *err) {
    uint64_t id = 0;
    uint32_t rows = 1;
    ftk_event event = FTK_EVENT_INIT;
    FTI_TRY(ftk_submit(engine, r, &id, err));
    while (rows > 0) FTI_TRY(ftk_engine_step(engine, &rows, err));
    uint64_t tokens = 0;
    for (bool done = false; !done;) {
        FTI_TRY(ftk_poll(engine, id, 0, &event, err));
        if (event.type == FTK_EVENT_NONE) fail_msg("a request without an end");
        done = event.type == FTK_EVENT_DONE;
        if (done && event.status != FTK_OK) fail_msg("%s", event.message);
        if (done) tokens = event.result.tokens;
        ftk_event_release(&event);
    }
    assert_in_range(tokens, 1, 62);
    return FTK_OK;
}

static void check_field(ftk_engine *engine, const integer_field *f) {
    for (size_t i = 0; i < FTI_COUNT(numbers); i++) {
        if (f->size == 4 && numbers[i] > UINT32_MAX) continue;
        ftk_error err = FTK_ERROR_INIT;
        ftk_request r = FTK_REQUEST_INIT;
        r.tokens = some_ids;
        r.token_count = FTI_COUNT(some_ids);
        r.max_tokens = 2;
        r.ignore_end = 1;
        memcpy((char *)&r + f->offset, &numbers[i], f->size); /* little-endian: the low bytes */
        ftk_status status = run_request(engine, &r, &err);
        bool taken = numbers[i] <= f->most;
        bool refused = status == FTK_E_ARGUMENT || status == FTK_E_CONTEXT;
        if (taken ? status != FTK_OK : !refused || strlen(err.message) < 10)
            fail_msg("%s = %llu: %s \"%s\"", f->name, (unsigned long long)numbers[i],
                     ftk_status_name(status), err.message);
    }
}

/* Every integer of a request: it runs, or it is refused; nothing is turned around. */
static void g23_integers_of_requests(void **state) {
    (void)state;
    static const integer_field fields[] = {
        FIELD(ftk_request, max_tokens, UINT64_MAX),
        FIELD(ftk_request, stop_count, 0),             /* of no strings */
        FIELD(ftk_request, text_size, UINT64_MAX),     /* of no text */
        FIELD(ftk_request, message_count, UINT64_MAX), /* of no messages */
        FIELD(ftk_request, text_flags, UINT64_MAX),
        FIELD(ftk_request, chat_flags, UINT64_MAX),
        FIELD(ftk_request, ignore_end, UINT64_MAX),
        FIELD(ftk_request, logprobs, FTK_MAX_LOGPROBS),
        FIELD(ftk_request, priority, UINT64_MAX),
        FIELD(ftk_request, chunk, UINT64_MAX),
        FIELD(ftk_request, sampling.top_k, UINT64_MAX),
        FIELD(ftk_request, sampling.seed, UINT64_MAX),
        FIELD(ftk_request, sampling.penalty_last, UINT64_MAX),
        FIELD(ftk_request, sampling.bias_count, 0), /* of no biases */
    };
    static const char *const settings[] = {"memory.kv_tokens", "64", NULL};
    fti_synth_model m = toy_model();
    ftk_engine *engine = fixture_open(write_model(&m, "numbers.gguf").s, settings);
    for (size_t i = 0; i < FTI_COUNT(fields); i++) check_field(engine, &fields[i]);
    ftk_engine_close(engine);
}

/* What must have one value, or must not be 0: every other number is refused. */
static void g23_sizes_of_requests(void **state) {
    (void)state;
    static const char *const settings[] = {"memory.kv_tokens", "64", NULL};
    fti_synth_model m = toy_model();
    ftk_engine *engine = fixture_open(write_model(&m, "numbers.gguf").s, settings);
    for (size_t i = 0; i < FTI_COUNT(numbers); i++) {
        ftk_error err = FTK_ERROR_INIT;
        uint64_t id;
        ftk_request size = FTK_REQUEST_INIT, inner = FTK_REQUEST_INIT, count = FTK_REQUEST_INIT;
        size.tokens = inner.tokens = count.tokens = some_ids;
        size.token_count = inner.token_count = 1;
        size.struct_size = inner.sampling.struct_size = (uint32_t)numbers[i];
        count.token_count = numbers[i];
        count.max_tokens = 1;
        assert_int_equal(ftk_submit(engine, &size, &id, &err), FTK_E_ARGUMENT);
        assert_int_equal(ftk_submit(engine, &inner, &id, &err), FTK_E_ARGUMENT);
        ftk_status wanted = numbers[i] == 1 ? FTK_OK : numbers[i] ? FTK_E_CONTEXT : FTK_E_ARGUMENT;
        assert_int_equal(run_request(engine, &count, &err), wanted);
        assert_int_equal(ftk_generate(engine, some_ids, count.token_count,
                                      &(ftk_generate_options){.struct_size = 0}, NULL, &err),
                         FTK_E_ARGUMENT);
    }
    ftk_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(g14_outputs_that_are_too_short),
        cmocka_unit_test(g18_one_block_of_four),
        cmocka_unit_test(g19_names_that_nearly_fit),
        cmocka_unit_test(g19_names_are_not_read_loosely),
        cmocka_unit_test(g21_templates_cost_nothing),
        cmocka_unit_test(g23_integers_of_requests),
        cmocka_unit_test(g23_sizes_of_requests),
    };
    return cmocka_run_group_tests_name("test_cases_hostile", tests, scratch_setup,
                                       scratch_teardown);
}
