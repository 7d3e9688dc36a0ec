/*
 * test_arguments.c: every parameter of the public functions at NULL, 0, its largest value,
 * NaN and out of range: an error that says what was wrong, with the record filled in or
 * without one, and never a crash.
 */
#include "loader/scratch.h"

#include <limits.h>
#include <math.h>

#include "api/collect.h"

static ftk_engine *engine;
static const int32_t prompt[] = {3885, 647, 258};

/* ---- refusals ---- */

static ftk_error record;

static void check_refusal(int pass, ftk_status wanted, ftk_status found) {
    if (pass == 1) {
        assert_int_equal(found, wanted);
        return;
    }
    expect_status(found, wanted, &record, "");
    assert_int_equal(record.status, wanted);
    assert_in_range(strlen(record.message), 10, sizeof record.message - 1);
    record = (ftk_error)FTK_ERROR_INIT;
}

/* Makes the call with a record of the error (ERR), which must be filled in, and
 * without one. */
static ftk_error *error_record;
#define ERR error_record
#define REFUSES_AS(status_, call)                                                                  \
    ((void)(error_record = &record, check_refusal(0, (status_), (call)), error_record = NULL,      \
            check_refusal(1, (status_), (call))))
#define REFUSES(call) REFUSES_AS(FTK_E_ARGUMENT, call)

static const uint32_t wrong_sizes[] = {0, 4, 4096, UINT32_MAX};

static ftk_config *load_config(void) {
    ftk_config *config;
    if (ftk_config_load(FTK_CONFIG, &config, &record) != FTK_OK) fail_msg("%s", record.message);
    return config;
}

/* A pointer that must be overwritten with NULL. */
#define JUNK(type) ((type *)(void *)&record)

/* ---- configuration and reports ---- */

static void configuration(void **state) {
    (void)state;
    ftk_config *config = load_config(), *out = JUNK(ftk_config);
    REFUSES(ftk_config_load(NULL, &out, ERR));
    REFUSES(ftk_config_load(FTK_CONFIG, NULL, ERR));
    REFUSES_AS(FTK_E_CONFIG_READ, ftk_config_load("", &out, ERR));
    assert_null(out);
    out = JUNK(ftk_config);
    REFUSES_AS(FTK_E_CONFIG_READ, ftk_config_load("/nowhere/at/all.yaml", &out, ERR));
    assert_null(out);
    out = JUNK(ftk_config);
    REFUSES(ftk_config_parse(NULL, 5, "x", &out, ERR));
    assert_null(out);
    REFUSES(ftk_config_parse("{}", 2, "x", NULL, ERR));
    REFUSES(ftk_config_set(NULL, "numerics", "exact", ERR));
    REFUSES(ftk_config_set(config, NULL, "exact", ERR));
    REFUSES(ftk_config_set(config, "numerics", NULL, ERR));
    const char *const values[] = {"", "-1", "0", "18446744073709551616", "nan", "1e400", "two"};
    for (size_t i = 0; i < FTI_COUNT(values); i++)
        assert_true(ftk_config_set(config, "scheduler.max_running", values[i], NULL) != FTK_OK);
    const char *const keys[] = {"", ".", "a.b.c.d", "providers.allow", "scheduler", "numerics."};
    for (size_t i = 0; i < FTI_COUNT(keys); i++)
        assert_true(ftk_config_set(config, keys[i], "1", NULL) != FTK_OK);
    ftk_config_free(config);
    ftk_config_free(NULL);
}

static void reports(void **state) {
    (void)state;
    ftk_config *config = load_config();
    char *json = NULL;
    REFUSES(ftk_inspect(NULL, &json, ERR));
    REFUSES(ftk_inspect(DEMO_MODEL, NULL, ERR));
    REFUSES_AS(FTK_E_CKPT_READ, ftk_inspect("", &json, ERR));
    REFUSES(ftk_providers_report(NULL, &json, ERR));
    REFUSES(ftk_providers_report(config, NULL, ERR));
    REFUSES(ftk_provider_describe(NULL, &json, ERR));
    REFUSES(ftk_provider_describe(FTK_PROVIDER_DIR, NULL, ERR));
    REFUSES(ftk_selftest(NULL, NULL, &json, ERR));
    REFUSES(ftk_selftest(config, NULL, NULL, ERR));
    REFUSES(ftk_engine_provenance(NULL, &json, ERR));
    REFUSES(ftk_engine_provenance(engine, NULL, ERR));
    REFUSES(ftk_engine_stats(NULL, &json, ERR));
    REFUSES(ftk_engine_stats(engine, NULL, ERR));
    REFUSES(ftk_engine_stats_text(NULL, &json, ERR));
    REFUSES(ftk_engine_stats_text(engine, NULL, ERR));
    REFUSES(ftk_engine_memory(NULL, &json, ERR));
    REFUSES(ftk_engine_memory(engine, NULL, ERR));
    assert_null(json);
    ftk_config_free(config);
    ftk_report_free(NULL);
}

/* ---- opening ---- */

static void opening(void **state) {
    (void)state;
    ftk_config *config = load_config();
    ftk_engine *out = JUNK(ftk_engine);
    REFUSES(ftk_engine_open(NULL, DEMO_MODEL, NULL, &out, ERR));
    REFUSES(ftk_engine_open(config, NULL, NULL, &out, ERR));
    REFUSES(ftk_engine_open(config, DEMO_MODEL, NULL, NULL, ERR));
    out = JUNK(ftk_engine);
    REFUSES_AS(FTK_E_CKPT_READ, ftk_engine_open(config, "", NULL, &out, ERR));
    assert_null(out);
    for (size_t i = 0; i < FTI_COUNT(wrong_sizes); i++) {
        ftk_open_options o = FTK_OPEN_OPTIONS_INIT;
        o.struct_size = wrong_sizes[i];
        out = JUNK(ftk_engine);
        REFUSES(ftk_engine_open(config, DEMO_MODEL, &o, &out, ERR));
        assert_null(out);
    }
    const uint32_t beyond[] = {4, UINT32_MAX};
    for (size_t i = 0; i < FTI_COUNT(beyond); i++) {
        ftk_open_options stop = FTK_OPEN_OPTIONS_INIT, level = FTK_OPEN_OPTIONS_INIT;
        stop.stop_after = level.log_level = beyond[i];
        REFUSES(ftk_engine_open(config, DEMO_MODEL, &stop, &out, ERR));
        REFUSES(ftk_engine_open(config, DEMO_MODEL, &level, &out, ERR));
    }
    ftk_config_free(config);
    ftk_engine_close(NULL);
}

static void opening_memory(void **state) {
    (void)state;
    ftk_config *config = load_config();
    static const char data[64] = "GGUF";
    ftk_engine *out = JUNK(ftk_engine);
    REFUSES(ftk_engine_open_memory(NULL, data, 64, "x", NULL, &out, ERR));
    REFUSES(ftk_engine_open_memory(config, NULL, 64, "x", NULL, &out, ERR));
    REFUSES(ftk_engine_open_memory(config, data, 64, NULL, NULL, &out, ERR));
    REFUSES(ftk_engine_open_memory(config, data, 64, "x", NULL, NULL, ERR));
    for (size_t size = 0; size <= 64; size += 8) {
        out = JUNK(ftk_engine);
        assert_true(ftk_engine_open_memory(config, data, size, "x", NULL, &out, &record) != FTK_OK);
        assert_true(record.status != FTK_OK && strlen(record.message) > 5);
        assert_null(out);
    }
    ftk_config_free(config);
}

static void small_questions(void **state) {
    (void)state;
    assert_int_equal(ftk_engine_vocabulary(NULL), 0);
    assert_int_equal(ftk_engine_context(NULL), 0);
    assert_int_equal(ftk_engine_layers(NULL), 0);
    assert_int_equal(ftk_engine_hidden(NULL), 0);
    assert_int_equal(ftk_token_is_end(NULL, 1), 0);
    const int32_t ids[] = {INT32_MIN, -1, INT32_MAX, 4096};
    for (size_t i = 0; i < FTI_COUNT(ids); i++)
        assert_int_equal(ftk_token_is_end(engine, ids[i]), 0);
    assert_string_equal(ftk_version(), FTK_VERSION_STRING);
}

/* ---- text ---- */

static void text_functions(void **state) {
    (void)state;
    int32_t ids[4];
    size_t n;
    const char *piece;
    REFUSES(ftk_tokenize(NULL, "a", 1, 0, ids, 4, &n, ERR));
    REFUSES(ftk_tokenize(engine, NULL, 1, 0, ids, 4, &n, ERR));
    REFUSES(ftk_tokenize(engine, "a", 1, 0, NULL, 4, &n, ERR));
    REFUSES(ftk_tokenize(engine, "a", 1, 0, ids, 4, NULL, ERR));
    REFUSES(ftk_tokenize(engine, "a", 1, 2, ids, 4, &n, ERR));
    REFUSES(ftk_tokenize(engine, "a", 1, UINT32_MAX, ids, 4, &n, ERR));
    REFUSES(ftk_tokenize(engine, "a", SIZE_MAX, 0, ids, 4, &n, ERR));
    REFUSES(ftk_tokenize(engine, "a", (size_t)INT32_MAX + 1, 0, ids, 4, &n, ERR));
    REFUSES(ftk_token_text(NULL, 0, &piece, &n, ERR));
    REFUSES(ftk_token_text(engine, 0, NULL, &n, ERR));
    REFUSES(ftk_token_text(engine, 0, &piece, NULL, ERR));
    const int32_t wrong[] = {INT32_MIN, -1, 4096, INT32_MAX};
    for (size_t i = 0; i < FTI_COUNT(wrong); i++)
        REFUSES(ftk_token_text(engine, wrong[i], &piece, &n, ERR));

    ftk_detokenizer *d = JUNK(ftk_detokenizer);
    REFUSES(ftk_detokenizer_create(NULL, &d, ERR));
    REFUSES(ftk_detokenizer_create(engine, NULL, ERR));
    assert_int_equal(ftk_detokenizer_create(engine, &d, NULL), FTK_OK);
    REFUSES(ftk_detokenizer_push(NULL, 1, &piece, &n, ERR));
    REFUSES(ftk_detokenizer_push(d, 1, NULL, &n, ERR));
    REFUSES(ftk_detokenizer_push(d, 1, &piece, NULL, ERR));
    for (size_t i = 0; i < FTI_COUNT(wrong); i++)
        REFUSES(ftk_detokenizer_push(d, wrong[i], &piece, &n, ERR));
    assert_int_equal(ftk_detokenizer_flush(NULL, &piece), 0);
    assert_int_equal(ftk_detokenizer_flush(d, NULL), 0);
    ftk_detokenizer_free(d);
    ftk_detokenizer_free(NULL);
}

static ftk_message user_message(void) {
    ftk_message m = FTK_MESSAGE_INIT;
    m.role = "user";
    m.content = "Hello";
    m.content_size = 5;
    return m;
}

static void dialogues(void **state) {
    (void)state;
    const ftk_message good = user_message();
    ftk_message m = good;
    int32_t ids[64];
    size_t n;
    REFUSES(ftk_format_chat(NULL, &m, 1, 0, ids, 64, &n, ERR));
    REFUSES(ftk_format_chat(engine, NULL, 1, 0, ids, 64, &n, ERR));
    REFUSES(ftk_format_chat(engine, &m, 0, 0, ids, 64, &n, ERR));
    REFUSES(ftk_format_chat(engine, &m, SIZE_MAX, 0, ids, 64, &n, ERR));
    REFUSES(ftk_format_chat(engine, &m, 1, 4, ids, 64, &n, ERR));
    REFUSES(ftk_format_chat(engine, &m, 1, UINT32_MAX, ids, 64, &n, ERR));
    REFUSES(ftk_format_chat(engine, &m, 1, 0, NULL, 64, &n, ERR));
    REFUSES(ftk_format_chat(engine, &m, 1, 0, ids, 64, NULL, ERR));
    for (size_t i = 0; i < FTI_COUNT(wrong_sizes); i++) {
        m.struct_size = wrong_sizes[i];
        REFUSES(ftk_format_chat(engine, &m, 1, 0, ids, 64, &n, ERR));
    }
    m = good;
    m.role = NULL;
    REFUSES(ftk_format_chat(engine, &m, 1, 0, ids, 64, &n, ERR));
    m = good;
    m.content = NULL;
    REFUSES(ftk_format_chat(engine, &m, 1, 0, ids, 64, &n, ERR));
    assert_int_equal(ftk_format_chat(engine, &good, 1, 0, NULL, 0, &n, NULL), FTK_OK);
}

/* ---- requests ---- */

static ftk_request good_request(void) {
    ftk_request r = FTK_REQUEST_INIT;
    r.tokens = prompt;
    r.token_count = 3;
    r.max_tokens = 2;
    return r;
}

static void refuse(const ftk_request *r, ftk_status wanted) {
    uint64_t id = 7;
    REFUSES_AS(wanted, ftk_submit(engine, r, &id, ERR));
    assert_int_equal(stat_of(engine, "requests_waiting"), 0);
}

static void submitting(void **state) {
    (void)state;
    ftk_request r = good_request();
    uint64_t id;
    REFUSES(ftk_submit(NULL, &r, &id, ERR));
    REFUSES(ftk_submit(engine, NULL, &id, ERR));
    REFUSES(ftk_submit(engine, &r, NULL, ERR));
    for (size_t i = 0; i < FTI_COUNT(wrong_sizes); i++) {
        r = good_request();
        r.struct_size = wrong_sizes[i];
        refuse(&r, FTK_E_ARGUMENT);
        r = good_request();
        r.sampling.struct_size = wrong_sizes[i];
        refuse(&r, FTK_E_ARGUMENT);
    }
    assert_int_equal(stat_of(engine, "requests_waiting"), 0);
}

/* Exactly one of three kinds, and each with what it needs. */
static void prompts(void **state) {
    (void)state;
    const ftk_message m = user_message();
    for (unsigned kinds = 0; kinds < 8; kinds++) {
        ftk_request r = FTK_REQUEST_INIT;
        r.tokens = kinds & 1 ? prompt : NULL;
        r.text = kinds & 2 ? "Once" : NULL;
        r.messages = kinds & 4 ? &m : NULL;
        r.token_count = 3;
        r.text_size = 4;
        r.message_count = 1;
        if (kinds != 1 && kinds != 2 && kinds != 4) refuse(&r, FTK_E_ARGUMENT);
    }
    const int32_t wrong[] = {INT32_MIN, -1, 4096, INT32_MAX};
    for (size_t i = 0; i < FTI_COUNT(wrong); i++) {
        ftk_request r = good_request();
        const int32_t ids[] = {1, wrong[i], 2};
        r.tokens = ids;
        refuse(&r, FTK_E_ARGUMENT);
    }
    ftk_request r = good_request();
    r.token_count = 0;
    refuse(&r, FTK_E_ARGUMENT);
    r.token_count = SIZE_MAX; /* refused by its number, before any of them is read */
    refuse(&r, FTK_E_CONTEXT);
    r.token_count = (size_t)UINT32_MAX + 4;
    refuse(&r, FTK_E_CONTEXT);
    r = (ftk_request)FTK_REQUEST_INIT;
    r.text = "";
    refuse(&r, FTK_E_ARGUMENT);
    r.text_size = SIZE_MAX;
    refuse(&r, FTK_E_ARGUMENT);
    r.text = "Once";
    r.text_size = 4;
    r.text_flags = 2;
    refuse(&r, FTK_E_ARGUMENT);
    r = (ftk_request)FTK_REQUEST_INIT;
    r.messages = &m;
    refuse(&r, FTK_E_ARGUMENT);
    r.message_count = SIZE_MAX;
    refuse(&r, FTK_E_ARGUMENT);
    r.message_count = 1;
    r.chat_flags = 8;
    refuse(&r, FTK_E_ARGUMENT);
}

static void stops(void **state) {
    (void)state;
    const char *many[17];
    char *large = calloc(1, 2000);
    assert_non_null(large);
    memset(large, 'x', 1025);
    for (size_t i = 0; i < 17; i++) many[i] = "stop";
    ftk_request r = good_request();
    r.stop_count = 1; /* of none */
    refuse(&r, FTK_E_ARGUMENT);
    r.stop = many;
    r.stop_count = 17;
    refuse(&r, FTK_E_ARGUMENT);
    r.stop_count = SIZE_MAX;
    refuse(&r, FTK_E_ARGUMENT);
    const char *const bad[] = {NULL, "", large};
    for (size_t i = 0; i < FTI_COUNT(bad); i++) {
        many[2] = bad[i];
        r.stop_count = 3;
        refuse(&r, FTK_E_ARGUMENT);
    }
    free(large);
}

static void sampling(void **state) {
    (void)state;
    const float numbers[] = {(float)NAN, INFINITY, -INFINITY, -1.0f, 1e30f, 0.0f};
    /* Which of them each field refuses. */
    const struct {
        size_t field;
        unsigned refused;
    } fields[] = {
        {offsetof(ftk_sampling, temperature), 0x0F},
        {offsetof(ftk_sampling, top_p), 0x3F},
        {offsetof(ftk_sampling, min_p), 0x1F},
        {offsetof(ftk_sampling, repetition_penalty), 0x2F},
        {offsetof(ftk_sampling, presence_penalty), 0x07},
        {offsetof(ftk_sampling, frequency_penalty), 0x07},
    };
    for (size_t f = 0; f < FTI_COUNT(fields); f++)
        for (size_t i = 0; i < FTI_COUNT(numbers); i++) {
            ftk_request r = good_request();
            if (!(fields[f].refused >> i & 1)) continue;
            memcpy((char *)&r.sampling + fields[f].field, &numbers[i], sizeof(float));
            refuse(&r, FTK_E_ARGUMENT);
            ftk_generate_options o = FTK_GENERATE_OPTIONS_INIT;
            o.sampling = r.sampling;
            REFUSES(ftk_generate(engine, prompt, 3, &o, NULL, ERR));
        }
    ftk_request r = good_request();
    r.sampling.bias_count = 1; /* of none */
    refuse(&r, FTK_E_ARGUMENT);
    const ftk_logit_bias bad[] = {{-1, 0},        {4096, 0},     {INT32_MIN, 0},
                                  {INT32_MAX, 0}, {1, INFINITY}, {1, (float)NAN}};
    for (size_t i = 0; i < FTI_COUNT(bad); i++) {
        r.sampling.biases = &bad[i];
        refuse(&r, FTK_E_ARGUMENT);
    }
    const ftk_logit_bias good = {1, 0};
    r.sampling.biases = &good;
    r.sampling.bias_count = UINT32_MAX;
    refuse(&r, FTK_E_ARGUMENT);
    r = good_request();
    r.logprobs = FTK_MAX_LOGPROBS + 1;
    refuse(&r, FTK_E_ARGUMENT);
    r.logprobs = UINT32_MAX;
    refuse(&r, FTK_E_ARGUMENT);
}

/* What is large, but means something, runs: largest values of every other field. */
static void largest_values_run(void **state) {
    (void)state;
    collected *c = calloc(1, sizeof *c);
    assert_non_null(c);
    ftk_request r = good_request();
    r.max_tokens = UINT32_MAX;
    r.chunk = UINT32_MAX;
    r.ignore_end = UINT32_MAX;
    r.priority = INT32_MIN;
    r.logprobs = FTK_MAX_LOGPROBS;
    r.text_flags = r.chat_flags = UINT32_MAX; /* of kinds that it is not */
    r.sampling.top_k = UINT32_MAX;
    r.sampling.penalty_last = UINT32_MAX;
    r.sampling.seed = UINT64_MAX;
    r.sampling.temperature = 3e38f;
    r.sampling.top_p = 1e-38f;
    r.sampling.min_p = 0.999f;
    r.sampling.repetition_penalty = 1e-30f;
    r.sampling.presence_penalty = -3e38f;
    r.sampling.frequency_penalty = 3e38f;
    r.on_event = collect;
    r.user = c;
    submit(engine, &r);
    step_to_end(engine);
    assert_int_equal(atomic_load(&c->dones), 1);
    assert_int_equal(c->wrong, 0);
    if (c->status == FTK_OK) assert_int_equal(c->count, 62); /* 64 positions, 3 of them given */
    expect_idle(engine);
    free(c);
}

static void running(void **state) {
    (void)state;
    uint32_t rows;
    ftk_event e = FTK_EVENT_INIT;
    REFUSES(ftk_engine_step(NULL, &rows, ERR));
    REFUSES(ftk_engine_step(engine, NULL, ERR));
    REFUSES(ftk_engine_start(NULL, ERR));
    REFUSES(ftk_engine_stop(NULL, ERR));
    REFUSES(ftk_cancel(NULL, 1, ERR));
    REFUSES_AS(FTK_E_NOT_FOUND, ftk_cancel(engine, 0, ERR));
    REFUSES_AS(FTK_E_NOT_FOUND, ftk_cancel(engine, UINT64_MAX, ERR));
    REFUSES(ftk_poll(NULL, 0, 0, &e, ERR));
    REFUSES(ftk_poll(engine, 0, 0, NULL, ERR));
    REFUSES_AS(FTK_E_NOT_FOUND, ftk_poll(engine, UINT64_MAX, UINT32_MAX, &e, ERR));
    for (size_t i = 0; i < FTI_COUNT(wrong_sizes); i++) {
        e.struct_size = wrong_sizes[i];
        REFUSES(ftk_poll(engine, 0, 0, &e, ERR));
    }
    ftk_event_release(NULL);
}

static void generating(void **state) {
    (void)state;
    const ftk_generate_options good = FTK_GENERATE_OPTIONS_INIT;
    ftk_generate_options o = good;
    ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
    const int32_t outside[] = {1, 4096};
    REFUSES(ftk_generate(NULL, prompt, 3, &o, &result, ERR));
    REFUSES(ftk_generate(engine, NULL, 3, &o, &result, ERR));
    REFUSES(ftk_generate(engine, prompt, 0, &o, &result, ERR));
    REFUSES(ftk_generate(engine, prompt, 3, NULL, &result, ERR));
    REFUSES(ftk_generate(engine, outside, 2, &o, &result, ERR));
    REFUSES_AS(FTK_E_CONTEXT, ftk_generate(engine, prompt, SIZE_MAX, &o, &result, ERR));
    for (size_t i = 0; i < FTI_COUNT(wrong_sizes); i++) {
        o = good;
        o.struct_size = wrong_sizes[i];
        REFUSES(ftk_generate(engine, prompt, 3, &o, &result, ERR));
        o = good;
        o.sampling.struct_size = wrong_sizes[i];
        REFUSES(ftk_generate(engine, prompt, 3, &o, &result, ERR));
        result.struct_size = wrong_sizes[i];
        REFUSES(ftk_generate(engine, prompt, 3, &good, &result, ERR));
        result = (ftk_generate_result)FTK_GENERATE_RESULT_INIT;
    }
    o = good;
    o.max_tokens = o.chunk = o.ignore_end = UINT32_MAX;
    assert_int_equal(ftk_generate(engine, prompt, 3, &o, &result, NULL), FTK_OK);
    assert_int_equal(result.tokens, 62);
}

static void evaluating(void **state) {
    (void)state;
    const ftk_evaluate_options good = FTK_EVALUATE_OPTIONS_INIT;
    ftk_evaluate_options o = good;
    const int32_t outside[] = {1, -1};
    REFUSES(ftk_evaluate(NULL, prompt, 3, &o, ERR));
    REFUSES(ftk_evaluate(engine, NULL, 3, &o, ERR));
    REFUSES(ftk_evaluate(engine, prompt, 0, &o, ERR));
    REFUSES(ftk_evaluate(engine, prompt, 3, NULL, ERR));
    REFUSES(ftk_evaluate(engine, outside, 2, &o, ERR));
    REFUSES_AS(FTK_E_CONTEXT, ftk_evaluate(engine, prompt, SIZE_MAX, &o, ERR));
    for (size_t i = 0; i < FTI_COUNT(wrong_sizes); i++) {
        o.struct_size = wrong_sizes[i];
        REFUSES(ftk_evaluate(engine, prompt, 3, &o, ERR));
    }
    o = good;
    o.chunk = o.want_layers = UINT32_MAX;
    assert_int_equal(ftk_evaluate(engine, prompt, 3, &o, NULL), FTK_OK);
}

/* ---- before an engine is ready ---- */

static void stages(void **state) {
    (void)state;
    const uint32_t until[] = {FTK_OPEN_CONFIGURED, FTK_OPEN_PLANNED};
    for (size_t i = 0; i < FTI_COUNT(until); i++) {
        ftk_engine *early = NULL;
        ftk_request r = good_request();
        ftk_event event = FTK_EVENT_INIT;
        const ftk_generate_options generate = FTK_GENERATE_OPTIONS_INIT;
        const ftk_evaluate_options evaluate = FTK_EVALUATE_OPTIONS_INIT;
        uint64_t id;
        uint32_t rows;
        char *json = NULL;
        if (fixture_try_open(DEMO_MODEL, NULL, until[i], &early, &record) != FTK_OK)
            fail_msg("%s", record.message);
        REFUSES_AS(FTK_E_STATE, ftk_submit(early, &r, &id, ERR));
        REFUSES_AS(FTK_E_STATE, ftk_cancel(early, 1, ERR));
        REFUSES_AS(FTK_E_STATE, ftk_poll(early, 0, 0, &event, ERR));
        REFUSES_AS(FTK_E_STATE, ftk_engine_step(early, &rows, ERR));
        REFUSES_AS(FTK_E_STATE, ftk_engine_start(early, ERR));
        REFUSES_AS(FTK_E_STATE, ftk_engine_stop(early, ERR));
        REFUSES_AS(FTK_E_STATE, ftk_engine_stats(early, &json, ERR));
        REFUSES_AS(FTK_E_STATE, ftk_engine_stats_text(early, &json, ERR));
        REFUSES_AS(FTK_E_STATE, ftk_generate(early, prompt, 3, &generate, NULL, ERR));
        REFUSES_AS(FTK_E_STATE, ftk_evaluate(early, prompt, 3, &evaluate, ERR));
        if (until[i] == FTK_OPEN_CONFIGURED)
            REFUSES_AS(FTK_E_STATE, ftk_engine_memory(early, &json, ERR));
        assert_null(json);
        ftk_engine_close(early);
    }
}

static int setup(void **state) {
    (void)state;
    const char *const settings[] = {"memory.kv_tokens", "64", NULL};
    engine = fixture_open(DEMO_MODEL, settings);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ftk_engine_close(engine);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configuration),   cmocka_unit_test(reports),
        cmocka_unit_test(opening),         cmocka_unit_test(opening_memory),
        cmocka_unit_test(small_questions), cmocka_unit_test(text_functions),
        cmocka_unit_test(dialogues),       cmocka_unit_test(submitting),
        cmocka_unit_test(prompts),         cmocka_unit_test(stops),
        cmocka_unit_test(sampling),        cmocka_unit_test(largest_values_run),
        cmocka_unit_test(running),         cmocka_unit_test(generating),
        cmocka_unit_test(evaluating),      cmocka_unit_test(stages),
    };
    return cmocka_run_group_tests_name("test_arguments", tests, setup, teardown);
}
