/*
 * test_requests.c: requests that run together: the same tokens as alone, whatever shares
 * the steps with them; order, limits, cancelling, callbacks that act, polling, and what the
 * engine says of all this.
 */
#include "loader/scratch.h"
#include "support/counts.h"
#include "support/synth_model.h"

#include <math.h>
#include <time.h>

#include "api/collect.h"
#include "core/checkpoint.h"
#include "core/service.h"

#define MANY SHAPES

static stories story;

/* Without a prefix cache, so that the steps of a request can be counted. */
static ftk_engine *open_demo(const char *max_running, const char *kv_tokens) {
    const char *const settings[] = {"scheduler.prefix_cache",
                                    "false",
                                    "scheduler.max_running",
                                    max_running,
                                    "memory.kv_tokens",
                                    kv_tokens,
                                    "backend.threads",
                                    "2",
                                    NULL};
    return fixture_open(DEMO_MODEL, settings);
}

static collected *new_collected(size_t count) {
    collected *c = calloc(count, sizeof *c);
    assert_non_null(c);
    return c;
}

/* ---- as alone ---- */

static uint64_t solo[2][MANY]; /* greedy, sampled */

/* A step, seen from outside: what the statistics and the backend say that it was. */
typedef struct seen_steps {
    uint64_t pure[MANY + 1];     /* steps of so many decode rows and no other */
    uint64_t replayed[MANY + 1]; /* of these, replays */
    uint64_t mixed;              /* steps of decode rows and prompt rows */
    uint64_t most_running;
} seen_steps;

typedef struct totals {
    uint64_t steps, prompt, decode, replays, running;
} totals;

static totals totals_of(const ftk_engine *engine) {
    json_t *o = stats_of(engine);
    totals t = {(uint64_t)json_integer_value(json_object_get(o, "steps")),
                (uint64_t)json_integer_value(json_object_get(o, "prompt_rows")),
                (uint64_t)json_integer_value(json_object_get(o, "decode_rows")),
                (uint64_t)json_integer_value(json_object_get(o, "graph_replays")),
                (uint64_t)json_integer_value(json_object_get(o, "requests_running"))};
    json_decref(o);
    return t;
}

static void watch_to_end(ftk_engine *engine, seen_steps *seen) {
    totals before = totals_of(engine);
    fti_stream_counts counts = counts_now(engine);
    for (uint32_t rows = step(engine); rows > 0; rows = step(engine)) {
        totals t = totals_of(engine);
        fti_stream_counts after = counts_now(engine);
        uint64_t prompt = t.prompt - before.prompt, decode = t.decode - before.decode;
        assert_int_equal(t.steps, before.steps + 1);
        assert_int_equal(prompt + decode, rows);
        assert_int_equal(t.replays - before.replays, after.replays - counts.replays);
        assert_in_range(decode, 0, MANY);
        if (prompt == 0) {
            seen->pure[decode]++;
            seen->replayed[decode] += t.replays - before.replays;
        } else if (decode > 0) {
            seen->mixed++;
        }
        if (t.running > seen->most_running) seen->most_running = t.running;
        before = t;
        counts = after;
    }
}

static void check_together(ftk_engine *engine, size_t count, bool sampled, seen_steps *seen) {
    collected *c = new_collected(count);
    for (size_t i = 0; i < count; i++) {
        shape p = shape_of_request(i, sampled);
        submit_shape(engine, &story, &p, &c[i]);
        if (i > 0) assert_int_equal(c[i].id, c[i - 1].id + 1);
    }
    assert_int_equal(stat_of(engine, "requests_waiting"), count);
    watch_to_end(engine, seen);
    for (size_t i = 0; i < count; i++) {
        shape p = shape_of_request(i, sampled);
        expect_ended(&c[i], FTK_FINISH_LENGTH);
        assert_int_equal(c[i].result.tokens, p.max_tokens);
        assert_int_equal(c[i].result.prompt_tokens, p.size);
        assert_int_equal(c[i].result.decode_steps, p.max_tokens - 1);
        assert_true(c[i].result.graph_replays <= c[i].result.decode_steps);
        uint32_t chunk = p.chunk ? p.chunk : 512;
        assert_true(c[i].result.prefill_steps >= (p.size + chunk - 1) / chunk);
        assert_true(c[i].result.prefill_seconds > 0 && c[i].result.decode_seconds > 0);
        if (c[i].result.hash != solo[sampled][i])
            fail_msg("request %zu of %zu (%s) differs from its solo run", i, count,
                     sampled ? "sampled" : "greedy");
    }
    expect_idle(engine);
    free(c);
}

static void any_number_as_alone(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("8", "4096");
    for (size_t n = 1; n <= MANY; n++) {
        if (FIXTURE_SLOW_BUILD && n != 3 && n != MANY) continue;
        for (int sampled = 0; sampled < 2; sampled++) {
            seen_steps seen = {.mixed = 0};
            check_together(engine, n, sampled, &seen);
            assert_int_equal(seen.most_running > 0, 1);
            for (size_t k = 1; k <= n; k++) {
                /* What ran was all that it claims: batches of k rows, out of graphs. */
                if (n == MANY) assert_true(seen.pure[k] > 0);
                assert_int_equal(seen.replayed[k], seen.pure[k]);
            }
            if (n > 2) assert_true(seen.mixed > 0); /* the third has chunks */
        }
    }
    json_t *o = stats_of(engine), *decode = json_object_get(o, "decode_histogram");
    for (int k = 2; k <= (int)MANY; k++) {
        text key = format("%d", k);
        assert_true(json_integer_value(json_object_get(decode, key.s)) > 0);
    }
    json_decref(o);
    ftk_engine_close(engine);
}

static void e8_any_limit_as_alone(void **state) {
    (void)state;
    const char *const limits[] = {"1", "2", "3"};
    for (size_t i = 0; i < FTI_COUNT(limits); i++) {
        seen_steps seen = {.mixed = 0};
        ftk_engine *engine = open_demo(limits[i], "4096");
        uint64_t limit = strtoull(limits[i], NULL, 10);
        check_together(engine, MANY, true, &seen);
        assert_int_equal(seen.most_running, limit);
        assert_true(seen.pure[limit] > 0);
        for (size_t k = limit + 1; k <= MANY; k++) assert_int_equal(seen.pure[k], 0);
        /* Buckets are powers of two up to the limit: 3 rows have none here. */
        for (size_t k = 1; k <= limit; k++)
            assert_int_equal(seen.replayed[k], k == 3 ? 0 : seen.pure[k]);
        ftk_engine_close(engine);
    }
}

static void eager_as_alone(void **state) {
    (void)state;
    const char *const settings[] = {"scheduler.max_running",
                                    "8",
                                    "memory.kv_tokens",
                                    "4096",
                                    "backend.graphs",
                                    "off",
                                    "scheduler.prefill_tokens",
                                    "4",
                                    NULL};
    ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
    seen_steps seen = {.mixed = 0};
    check_together(engine, MANY, true, &seen);
    for (size_t k = 1; k <= MANY; k++) assert_int_equal(seen.replayed[k], 0);
    uint64_t beyond = 0; /* more rows decode at once than a prompt may have */
    for (size_t k = 5; k <= MANY; k++) beyond += seen.pure[k];
    assert_true(beyond > 0);
    assert_true(seen.mixed > 0);
    ftk_engine_close(engine);
}

/* ---- waiting ---- */

typedef struct order {
    uint64_t first[16]; /* ids, as they got their first token */
    size_t count;
} order;

static int note_first(collected *c, const ftk_event *event) {
    order *o = c->with;
    if (event->type == FTK_EVENT_TOKEN && c->count == 1) o->first[o->count++] = c->id;
    return 0;
}

/* Submits requests of these prompt sizes and 8 tokens, and checks that they started as
 * they came; returns the most that ran at once. */
static uint64_t check_order(ftk_engine *engine, const size_t *sizes, size_t count) {
    collected *c = new_collected(count);
    order o = {.count = 0};
    uint64_t pages = stat_of(engine, "pages");
    for (size_t i = 0; i < count; i++) {
        shape p = {.start = 11 * i, .size = sizes[i], .max_tokens = 8};
        c[i].then = note_first;
        c[i].with = &o;
        submit_shape(engine, &story, &p, &c[i]);
    }
    uint64_t most = 0;
    while (step(engine) > 0) {
        uint64_t running = stat_of(engine, "requests_running");
        if (running > most) most = running;
        assert_true(stat_of(engine, "pages_used") <= pages);
    }
    assert_int_equal(o.count, count);
    for (size_t i = 0; i < count; i++) {
        expect_ended(&c[i], FTK_FINISH_LENGTH);
        assert_int_equal(o.first[i], c[i].id);
    }
    expect_idle(engine);
    free(c);
    return most;
}

static void more_than_slots_wait_in_order(void **state) {
    (void)state;
    const size_t sizes[] = {5, 9, 3, 8, 2, 7, 4};
    ftk_engine *engine = open_demo("2", "4096");
    assert_int_equal(check_order(engine, sizes, FTI_COUNT(sizes)), 2);
    ftk_engine_close(engine);
}

static void e7_pages_run_out(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("8", "256");
    assert_int_equal(stat_of(engine, "pages"), 4);
    /* Two pages each: two at once, though there are eight slots. */
    const size_t even[] = {65, 70, 66, 80, 75};
    assert_int_equal(check_order(engine, even, FTI_COUNT(even)), 2);
    /* A large one holds up small ones behind it, which do not overtake. */
    const size_t uneven[] = {65, 240, 3, 3};
    assert_true(check_order(engine, uneven, FTI_COUNT(uneven)) >= 2);
    ftk_engine_close(engine);
}

/* Submits one request of 8 tokens per priority, and returns in which order they got their
 * first token. */
static order order_of(ftk_engine *engine, const int32_t *priorities, size_t count) {
    collected *c = new_collected(count);
    order o = {.count = 0};
    uint64_t first = 0;
    for (size_t i = 0; i < count; i++) {
        shape p = {.start = 5 * i, .size = 4, .max_tokens = 3};
        ftk_request r = request_of(&story, &p, &c[i]);
        r.priority = priorities[i];
        c[i].then = note_first;
        c[i].with = &o;
        c[i].id = submit(engine, &r);
        if (i == 0) first = c[i].id;
    }
    step_to_end(engine);
    for (size_t i = 0; i < count; i++) {
        expect_ended(&c[i], FTK_FINISH_LENGTH);
        o.first[i] -= first;
    }
    assert_int_equal(o.count, count);
    expect_idle(engine);
    free(c);
    return o;
}

static void priorities_and_no_starvation(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("1", "1024");
    const int32_t mixed[] = {0, 5, -3, 5, 0, INT32_MAX, INT32_MIN};
    const uint64_t wanted[] = {5, 1, 3, 0, 4, 2, 6};
    order o = order_of(engine, mixed, FTI_COUNT(mixed));
    for (size_t i = 0; i < FTI_COUNT(mixed); i++) assert_int_equal(o.first[i], wanted[i]);
    int32_t flood[12] = {-1}; /* the eighth start is that of the oldest */
    o = order_of(engine, flood, FTI_COUNT(flood));
    for (size_t i = 0; i < FTI_COUNT(flood); i++)
        assert_int_equal(o.first[i], i < 7 ? i + 1 : i == 7 ? 0 : i);
    ftk_engine_close(engine);
    /* Prompts of those that run at once: all but an eighth of the room is the urgent one's. */
    const char *const settings[] = {"scheduler.max_running",
                                    "4",
                                    "memory.kv_tokens",
                                    "1024",
                                    "scheduler.prefill_tokens",
                                    "16",
                                    NULL};
    engine = fixture_open(DEMO_MODEL, settings);
    collected *c = new_collected(3);
    for (size_t i = 0; i < 3; i++) {
        shape p = {.start = 70 * i, .size = 60, .max_tokens = 2};
        ftk_request r = request_of(&story, &p, &c[i]);
        r.priority = i == 2;
        submit(engine, &r);
    }
    for (int i = 0; c[2].count == 0; i++) assert_true(step(engine) == 16 && i < 5);
    assert_int_equal(c[0].count + c[1].count, 0);
    step_to_end(engine);
    expect_idle(engine);
    free(c);
    ftk_engine_close(engine);
}

static const char *waits_for(const json_t *stats, size_t i) {
    const json_t *r = json_array_get(json_object_get(stats, "requests"), i);
    const char *reason = json_string_value(json_object_get(r, "waits_for"));
    assert_int_equal(reason == NULL, json_is_true(json_object_get(r, "running")));
    return reason ? reason : "nothing";
}

static void expect_reasons(const ftk_engine *engine, const char *const *wanted, size_t count) {
    json_t *stats = stats_of(engine);
    assert_int_equal(json_array_size(json_object_get(stats, "requests")), count);
    for (size_t i = 0; i < count; i++) assert_string_equal(waits_for(stats, i), wanted[i]);
    json_decref(stats);
}

static void who_waits_says_why(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("3", "256");
    collected *c = new_collected(5);
    for (size_t i = 0; i < 5; i++) { /* the second takes the last three of four pages */
        shape p = {.start = i, .size = i == 1 || i == 2 ? 150 : 5, .max_tokens = 20};
        submit_shape(engine, &story, &p, &c[i]);
    }
    expect_reasons(engine, (const char *const[]){"step", "turn", "turn", "turn", "turn"}, 5);
    step(engine);
    expect_reasons(engine, (const char *const[]){"nothing", "nothing", "pages", "turn", "turn"}, 5);
    assert_int_equal(ftk_cancel(engine, c[1].id, NULL), FTK_OK);
    step(engine);
    expect_reasons(engine, (const char *const[]){"nothing", "nothing", "pages", "turn"}, 4);
    step_to_end(engine);
    assert_int_equal(ftk_cancel(engine, c[1].id, NULL), FTK_E_NOT_FOUND);
    memset(c, 0, 5 * sizeof *c);
    for (size_t i = 0; i < 5; i++) {
        shape p = {.start = i, .size = 5, .max_tokens = 20};
        submit_shape(engine, &story, &p, &c[i]);
    }
    step(engine);
    expect_reasons(engine, (const char *const[]){"nothing", "nothing", "nothing", "slot", "turn"},
                   5);
    step_to_end(engine);
    expect_idle(engine);
    free(c);
    ftk_engine_close(engine);
}

/* Pages that are gone while nobody runs, as a fault in the accounts would leave them: work
 * that waits for them ends with an error, and the engine goes on. */
static void a_stall_is_an_error(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("2", "256");
    ftk_error err = FTK_ERROR_INIT;
    int32_t slot, pages[4];
    uint32_t count, rows = 7;
    collected *c = new_collected(3);
    assert_int_equal(fti_service_borrow(engine, 192, &slot, pages, &count, &err), FTK_OK);
    for (size_t i = 0; i < 3; i++) {
        shape p = {.start = i, .size = i < 2 ? 100 : 5, .max_tokens = 20};
        submit_shape(engine, &story, &p, &c[i]);
    }
    for (size_t i = 0; i < 2; i++) {
        expect_status(ftk_engine_step(engine, &rows, &err), FTK_E_INTERNAL, &err,
                      "needs 1 state slots, 2 pages of the KV cache and 0 units of swap space, of "
                      "which 1, 1 and 0 are free");
        assert_int_equal(rows, 0);
        expect_ended(&c[i], FTK_FINISH_ERROR);
        assert_string_equal(c[i].message, err.message);
        assert_int_equal(c[2].count, 0);
    }
    step_to_end(engine); /* the third fits beside */
    expect_ended(&c[2], FTK_FINISH_LENGTH);
    memset(c, 0, 3 * sizeof *c);
    shape p = {.size = 100, .max_tokens = 20};
    assert_int_equal(ftk_engine_start(engine, &err), FTK_OK); /* nor does the thread spin */
    submit_shape(engine, &story, &p, &c[0]);
    for (int i = 0; i < 2000 && !atomic_load(&c[0].dones); i++) usleep(5000);
    assert_int_equal(ftk_engine_stop(engine, &err), FTK_OK);
    expect_ended(&c[0], FTK_FINISH_ERROR);
    fti_service_return(engine, slot, pages, count);
    submit_shape(engine, &story, &p, &c[1]);
    step_to_end(engine);
    expect_ended(&c[1], FTK_FINISH_LENGTH);
    expect_idle(engine);
    free(c);
    ftk_engine_close(engine);
}

/* ---- limits ---- */

/* What can never run (E1) is refused at once, and those behind it run; what reaches the end of
 * the context ends there (D9). */
static void d9_limits_of_a_request(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4", "64");
    collected *c = new_collected(3);
    ftk_error err = FTK_ERROR_INIT;
    uint64_t id = 0;
    assert_int_equal(ftk_engine_context(engine), 64);
    shape p = {.size = 65, .max_tokens = 1};
    ftk_request r = request_of(&story, &p, &c[0]);
    expect_status(ftk_submit(engine, &r, &id, &err), FTK_E_CONTEXT, &err, "65");
    const uint32_t asked[] = {0, 1000, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        p = (shape){.size = 60, .max_tokens = asked[i]};
        submit_shape(engine, &story, &p, &c[i]);
    }
    step_to_end(engine);
    for (size_t i = 0; i < 3; i++) {
        expect_ended(&c[i], FTK_FINISH_LENGTH);
        assert_int_equal(c[i].count, 5); /* the fifth is chosen at position 63 and never run */
    }
    expect_idle(engine);
    free(c);
    ftk_engine_close(engine);
}

/* A bias that makes the end token certain, once ignored and once not. */
static void end_tokens(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4", "1024");
    collected *c = new_collected(2);
    int32_t end = 0;
    while (!ftk_token_is_end(engine, end)) end++;
    const ftk_logit_bias bias = {end, 1000.0f};
    for (size_t i = 0; i < 2; i++) {
        shape p = {.size = 6, .max_tokens = 4};
        ftk_request r = request_of(&story, &p, &c[i]);
        r.ignore_end = (uint32_t)i;
        r.sampling.biases = &bias;
        r.sampling.bias_count = 1;
        submit(engine, &r);
    }
    step_to_end(engine);
    expect_ended(&c[0], FTK_FINISH_STOP);
    assert_int_equal(c[0].count, 0);
    assert_int_equal(c[0].text_size, 0);
    expect_ended(&c[1], FTK_FINISH_LENGTH);
    assert_int_equal(c[1].count, 4);
    for (size_t i = 0; i < 4; i++) assert_int_equal(c[1].tokens[i], end);
    free(c);
    ftk_engine_close(engine);
}

/* ---- stop strings ---- */

/* The greedy story without stops, and where its tokens begin. */
static collected *plain_story(ftk_engine *engine, size_t *begins) {
    collected *c = new_collected(1);
    shape p = {.size = 20, .max_tokens = 40};
    submit_shape(engine, &story, &p, c);
    step_to_end(engine);
    expect_ended(c, FTK_FINISH_LENGTH);
    size_t at = 0;
    for (size_t i = 0; i < c->count; i++) {
        const char *piece;
        size_t size;
        begins[i] = at;
        assert_int_equal(ftk_token_text(engine, c->tokens[i], &piece, &size, NULL), FTK_OK);
        assert_memory_equal(c->text + at, piece, size);
        at += size;
    }
    begins[c->count] = at;
    assert_int_equal(at, c->text_size);
    return c;
}

/* With these stops: the text before the first place where one of them begins, of those
 * that are complete with the first token that completes any. */
static void check_stops(ftk_engine *engine, const collected *plain, const size_t *begins,
                        const char *const *stops, size_t count) {
    collected *c = new_collected(1);
    shape p = {.size = 20, .max_tokens = 40};
    ftk_request r = request_of(&story, &p, c);
    r.stop = stops;
    r.stop_count = count;
    submit(engine, &r);
    step_to_end(engine);
    size_t tokens = 0, place = SIZE_MAX;
    while (place == SIZE_MAX && tokens < plain->count) {
        tokens++;
        for (size_t i = 0; i < count; i++) {
            const char *at = memmem(plain->text, begins[tokens], stops[i], strlen(stops[i]));
            if (at && (size_t)(at - plain->text) < place) place = (size_t)(at - plain->text);
        }
    }
    bool stopped = place != SIZE_MAX;
    expect_ended(c, stopped ? FTK_FINISH_STOP : FTK_FINISH_LENGTH);
    assert_int_equal(c->count, tokens);
    if (!stopped) place = plain->text_size;
    if (c->text_size != place || memcmp(c->text, plain->text, place) != 0)
        fail_msg("stop '%s': '%.*s', wanted '%.*s'", stops[0], (int)c->text_size, c->text,
                 (int)place, plain->text);
    free(c);
}

static void cut(char *out, const collected *plain, size_t from, size_t size) {
    memcpy(out, plain->text + from, size);
    out[size] = 0;
}

static void stop_strings(void **state) {
    (void)state;
    size_t begins[64] = {0};
    char a[64], b[64];
    ftk_engine *engine = open_demo("4", "1024");
    collected *plain = plain_story(engine, begins);
    const char *stops[] = {a, b};
    for (size_t i = 0; i < 6; i++) { /* across a border, from the very first token on */
        cut(a, plain, i ? begins[5 * i] - 1 : 0, 3 + i);
        check_stops(engine, plain, begins, stops, 1);
    }
    cut(a, plain, begins[20], 6); /* one inside another, either given first */
    cut(b, plain, begins[20] + 2, 2);
    check_stops(engine, plain, begins, stops, 2);
    cut(b, plain, begins[20], 6);
    cut(a, plain, begins[20] + 2, 2);
    check_stops(engine, plain, begins, stops, 2);
    cut(a, plain, begins[30], 5); /* the later one first */
    cut(b, plain, begins[10], 5);
    check_stops(engine, plain, begins, stops, 2);
    cut(a, plain, begins[10], 9); /* nearly there again and again, and never whole */
    a[8] = 1;
    cut(b, plain, begins[39] - 1, 2);
    b[1] = 1;
    check_stops(engine, plain, begins, stops, 2);
    expect_idle(engine);
    free(plain);
    ftk_engine_close(engine);
}

/* ---- what the sampler is told ---- */

typedef struct reported {
    int32_t ids[32][FTK_MAX_LOGPROBS];
    float values[32][FTK_MAX_LOGPROBS];
    uint32_t counts[32];
} reported;

static int keep_top(collected *c, const ftk_event *event) {
    reported *t = c->with;
    if (event->type != FTK_EVENT_TOKEN) return 0;
    size_t i = c->count - 1;
    t->counts[i] = event->top_count;
    memcpy(t->ids[i], event->top_ids, event->top_count * sizeof(int32_t));
    memcpy(t->values[i], event->top_logprobs, event->top_count * sizeof(float));
    return 0;
}

/* Most likely first, ties by the lowest id, among the tokens that stand for something. */
static size_t nth_best(const ftk_engine *engine, const float *logits, size_t n) {
    uint8_t *taken = calloc(engine->info.vocabulary, 1);
    assert_non_null(taken);
    size_t best = 0;
    for (size_t k = 0; k <= n; k++) {
        best = SIZE_MAX;
        for (size_t i = 0; i < engine->info.vocabulary; i++)
            if (engine->allowed[i] && !taken[i] && (best == SIZE_MAX || logits[i] > logits[best]))
                best = i;
        taken[best] = 1;
    }
    free(taken);
    return best;
}

static double log_softmax(const ftk_engine *engine, const float *logits, size_t id) {
    double sum = 0, top = (double)logits[nth_best(engine, logits, 0)];
    for (size_t i = 0; i < engine->info.vocabulary; i++)
        if (engine->allowed[i]) sum += exp((double)logits[i] - top);
    return (double)logits[id] - top - log(sum);
}

static void check_logprobs(const ftk_engine *engine, const collected *c, const float *logits,
                           size_t prompt, uint32_t asked) {
    const reported *t = c->with;
    for (size_t i = 0; i < c->count; i++) {
        const float *row = logits + (prompt - 1 + i) * engine->info.vocabulary;
        double wanted = log_softmax(engine, row, (size_t)c->tokens[i]);
        if (!(fabs((double)c->logprobs[i] - wanted) < 1e-4))
            fail_msg("token %zu has logprob %g, wanted %g", i, (double)c->logprobs[i], wanted);
        assert_int_equal(t->counts[i], asked);
        for (uint32_t k = 0; k < asked; k++) {
            size_t best = nth_best(engine, row, k);
            assert_int_equal(t->ids[i][k], best);
            wanted = log_softmax(engine, row, best);
            assert_true(fabs((double)t->values[i][k] - wanted) < 1e-4);
        }
    }
}

static void logprobs_of_evaluation(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4", "1024");
    const uint32_t asked[] = {1, 5, FTK_MAX_LOGPROBS};
    for (size_t n = 0; n < FTI_COUNT(asked); n++) {
        collected *c = new_collected(2); /* two at once: rows must not be mixed up */
        reported *t = calloc(2, sizeof *t);
        int32_t ids[32];
        assert_non_null(t);
        for (size_t i = 0; i < 2; i++) {
            shape p = {.start = 30 * i, .size = 9, .max_tokens = 6, .temperature = 1, .seed = n};
            ftk_request r = request_of(&story, &p, &c[i]);
            r.logprobs = asked[n];
            c[i].then = keep_top;
            c[i].with = &t[i];
            submit(engine, &r);
        }
        step_to_end(engine);
        for (size_t i = 0; i < 2; i++) {
            expect_ended(&c[i], FTK_FINISH_LENGTH);
            memcpy(ids, story.ids + 30 * i, 9 * sizeof *ids);
            memcpy(ids + 9, c[i].tokens, c[i].count * sizeof *ids);
            float *logits = fixture_logits(engine, ids, 9 + c[i].count, 0);
            check_logprobs(engine, &c[i], logits, 9, asked[n]);
            free(logits);
        }
        free(t);
        free(c);
    }
    ftk_engine_close(engine);
}

static void biases_and_penalties_arrive(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4", "1024");
    collected *c = new_collected(4);
    shape p = {.size = 9, .max_tokens = 24};
    ftk_logit_bias bias[2] = {{77, 1000}, {0, 0}};
    ftk_request r = request_of(&story, &p, &c[0]);
    submit(engine, &r);
    r = request_of(&story, &p, &c[1]); /* one token wins always; what is given is copied */
    r.sampling.biases = bias;
    r.sampling.bias_count = 2;
    submit(engine, &r);
    bias[0] = (ftk_logit_bias){-5, 0};
    r = request_of(&story, &p, &c[2]); /* nothing comes twice, of the prompt neither */
    r.sampling.presence_penalty = 1000;
    submit(engine, &r);
    r = request_of(&story, &p, &c[3]); /* nothing comes twice within three */
    r.sampling.frequency_penalty = 1000;
    r.sampling.penalty_last = 3;
    submit(engine, &r);
    step_to_end(engine);
    for (size_t i = 0; i < 4; i++) expect_ended(&c[i], FTK_FINISH_LENGTH);
    for (size_t i = 0; i < 24; i++) assert_int_equal(c[1].tokens[i], 77);
    size_t again = 0, plain = 0;
    for (size_t i = 0; i < 24; i++) {
        for (size_t k = 0; k < 9; k++) assert_int_not_equal(c[2].tokens[i], story.ids[k]);
        for (size_t k = 0; k < i; k++) {
            assert_int_not_equal(c[2].tokens[i], c[2].tokens[k]);
            if (k + 3 >= i) assert_int_not_equal(c[3].tokens[i], c[3].tokens[k]);
            again += c[3].tokens[i] == c[3].tokens[k];
            plain += c[0].tokens[i] == c[0].tokens[k];
        }
    }
    assert_true(again > 0); /* it looks back on three, not on all */
    assert_true(plain > 0); /* and without, tokens do come again */
    free(c);
    ftk_engine_close(engine);
}

static void banned_token_gives_way(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4", "1024");
    float *logits = fixture_logits(engine, story.ids, 9, 0);
    const float *row = logits + 8 * (size_t)engine->info.vocabulary;
    const ftk_logit_bias ban = {(int32_t)nth_best(engine, row, 0), -INFINITY};
    collected *c = new_collected(2);
    for (uint32_t i = 0; i < 2; i++) {
        shape p = {.size = 9, .max_tokens = 1};
        ftk_request r = request_of(&story, &p, &c[i]);
        r.sampling.biases = &ban;
        r.sampling.bias_count = i;
        submit(engine, &r);
    }
    step_to_end(engine);
    for (size_t i = 0; i < 2; i++) {
        expect_ended(&c[i], FTK_FINISH_LENGTH);
        assert_int_equal(c[i].tokens[0], nth_best(engine, row, i));
    }
    free(logits);
    free(c);
    ftk_engine_close(engine);
}

/* ---- cancelling ---- */

static ftk_engine *cancel_engine;

static void expect_gone(const collected *c) {
    ftk_error err = FTK_ERROR_INIT;
    expect_status(ftk_cancel(cancel_engine, c->id, &err), FTK_E_NOT_FOUND, &err, "no request");
}

static void submit_plain(collected *c, size_t prompt, uint32_t chunk) {
    shape p = {.size = prompt, .max_tokens = 50, .chunk = chunk};
    submit_shape(cancel_engine, &story, &p, c);
}

static void cancel_from_outside(void **state) {
    (void)state;
    cancel_engine = open_demo("2", "1024");
    collected *c = new_collected(4);
    submit_plain(&c[0], 60, 4);
    submit_plain(&c[1], 5, 0);
    submit_plain(&c[2], 5, 0);
    assert_int_equal(ftk_cancel(cancel_engine, c[2].id, NULL), FTK_OK); /* it waits */
    step(cancel_engine);
    expect_ended(&c[2], FTK_FINISH_CANCELLED);
    assert_int_equal(c[2].count, 0);
    assert_int_equal(c[2].result.prefill_steps, 0);
    expect_gone(&c[2]);
    assert_int_equal(ftk_cancel(cancel_engine, c[0].id, NULL), FTK_OK); /* in its prompt */
    assert_int_equal(ftk_cancel(cancel_engine, c[0].id, NULL), FTK_OK); /* twice */
    step(cancel_engine);
    expect_ended(&c[0], FTK_FINISH_CANCELLED);
    assert_int_equal(c[0].count, 0);
    assert_int_equal(c[0].result.prefill_steps, 1);
    for (int i = 0; i < 5; i++) step(cancel_engine);
    assert_int_equal(ftk_cancel(cancel_engine, c[1].id, NULL), FTK_OK); /* in its answer */
    size_t had = c[1].count;
    assert_true(had > 0 && had < 50);
    step_to_end(cancel_engine);
    expect_ended(&c[1], FTK_FINISH_CANCELLED);
    assert_true(c[1].count <= had + 1);
    expect_gone(&c[1]);
    c[3].id = 999999;
    expect_gone(&c[3]);
    c[3].id = 0;
    expect_gone(&c[3]);
    expect_idle(cancel_engine);
    free(c);
    ftk_engine_close(cancel_engine);
}

static int say_no(collected *c, const ftk_event *event) {
    return event->type == FTK_EVENT_TOKEN && c->count == 3 ? -1 : 0;
}

static int cancel_own(collected *c, const ftk_event *event) {
    ftk_status status = ftk_cancel(c->engine, event->request, NULL);
    if (status != (event->type == FTK_EVENT_DONE ? FTK_E_NOT_FOUND : FTK_OK)) c->wrong++;
    return 0;
}

/* Cancels the request of `with` at the second token. */
static int cancel_other(collected *c, const ftk_event *event) {
    const collected *other = c->with;
    if (event->type == FTK_EVENT_TOKEN && c->count == 2 &&
        ftk_cancel(c->engine, other->id, NULL) != FTK_OK)
        c->wrong++;
    return 0;
}

static void cancel_from_callbacks(void **state) {
    (void)state;
    cancel_engine = open_demo("8", "2048");
    collected *c = new_collected(6);
    c[0].then = say_no;
    c[1].then = cancel_own;
    c[2].then = c[3].then = cancel_other; /* an earlier one and a later one */
    c[2].with = &c[4];
    c[4].then = NULL;
    for (size_t i = 0; i < 6; i++) submit_plain(&c[i], 5, 0);
    c[3].with = &c[0];
    c[3].then = NULL;
    c[5].then = cancel_other;
    c[5].with = &c[3];
    step_to_end(cancel_engine);
    const uint32_t wanted[] = {FTK_FINISH_CANCELLED, FTK_FINISH_CANCELLED, FTK_FINISH_LENGTH,
                               FTK_FINISH_CANCELLED, FTK_FINISH_CANCELLED, FTK_FINISH_LENGTH};
    for (size_t i = 0; i < 6; i++) expect_ended(&c[i], wanted[i]);
    assert_int_equal(c[0].count, 3);
    assert_int_equal(c[1].count, 1);
    assert_true(c[4].count < 6);
    assert_true(c[3].count < 10);
    expect_idle(cancel_engine);
    free(c);
    ftk_engine_close(cancel_engine);
}

/* Cancels the request of `with` at the third token, and notes in its `with` how far it is. */
static int cancel_at_once(collected *c, const ftk_event *event) {
    collected *other = c->with;
    if (event->type == FTK_EVENT_TOKEN && c->count == 3) {
        if (ftk_cancel(c->engine, other->id, NULL) != FTK_OK) c->wrong++;
        other->with = other->tokens + other->count;
    }
    return 0;
}

/* Whoever is cancelled gets nothing more: of the step that runs neither, be it in its answer,
 * in its prompt, or waiting. */
static void e5_nothing_follows_a_cancel(void **state) {
    (void)state;
    cancel_engine = open_demo("3", "1024");
    for (int victim = 1; victim < 4; victim++) {
        collected *c = new_collected(4);
        c[0].then = cancel_at_once;
        c[0].with = &c[victim];
        submit_plain(&c[0], 5, 0);
        submit_plain(&c[1], 5, 0);  /* decodes */
        submit_plain(&c[2], 60, 2); /* is in its prompt */
        submit_plain(&c[3], 5, 0);  /* waits */
        for (int i = 0; i < 3; i++) step(cancel_engine);
        assert_int_equal(c[0].count, 3);
        step(cancel_engine);
        expect_ended(&c[victim], FTK_FINISH_CANCELLED);
        assert_int_equal(c[victim].count, victim == 1 ? 2 : 0);
        assert_ptr_equal(c[victim].with, c[victim].tokens + c[victim].count);
        step_to_end(cancel_engine);
        for (int i = 0; i < 4; i++)
            if (i != victim) expect_ended(&c[i], FTK_FINISH_LENGTH);
        expect_idle(cancel_engine);
        free(c);
    }
    ftk_engine_close(cancel_engine);
}

/* ---- callbacks that act ---- */

typedef struct chain {
    collected links[6];
    size_t count;
} chain;

static int submit_next(collected *c, const ftk_event *event) {
    chain *k = c->with;
    /* The last of them in the middle of an answer, the others at an end. */
    if (event->type != (k->count == 5 ? FTK_EVENT_TOKEN : FTK_EVENT_DONE)) return 0;
    if (k->count >= FTI_COUNT(k->links)) return 0;
    collected *next = &k->links[k->count++];
    shape p = {.size = 4, .max_tokens = 3};
    ftk_request r = request_of(&story, &p, next);
    next->then = submit_next;
    next->with = k;
    next->engine = c->engine;
    if (ftk_submit(c->engine, &r, &next->id, NULL) != FTK_OK) c->wrong++;
    return 0;
}

static void submit_from_callbacks(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("1", "1024");
    chain *k = calloc(1, sizeof *k);
    assert_non_null(k);
    k->count = 1;
    k->links[0].then = submit_next;
    k->links[0].with = k;
    shape p = {.size = 4, .max_tokens = 3};
    submit_shape(engine, &story, &p, &k->links[0]);
    step_to_end(engine);
    assert_int_equal(k->count, 6);
    for (size_t i = 0; i < 6; i++) {
        expect_ended(&k->links[i], FTK_FINISH_LENGTH);
        assert_int_equal(k->links[i].result.hash, k->links[0].result.hash);
    }
    free(k);
    ftk_engine_close(engine);
}

static int run_inside(collected *c, const ftk_event *event) {
    uint32_t rows;
    ftk_error err = FTK_ERROR_INIT;
    const ftk_generate_options generate = FTK_GENERATE_OPTIONS_INIT;
    const ftk_evaluate_options evaluate = FTK_EVALUATE_OPTIONS_INIT;
    (void)event;
    c->wrong += ftk_engine_step(c->engine, &rows, &err) != FTK_E_STATE;
    c->wrong += err.status != FTK_E_STATE;
    c->wrong += ftk_generate(c->engine, story.ids, 3, &generate, NULL, NULL) != FTK_E_STATE;
    c->wrong += ftk_evaluate(c->engine, story.ids, 3, &evaluate, NULL) != FTK_E_STATE;
    c->wrong += ftk_engine_start(c->engine, NULL) != FTK_E_STATE;
    return 0;
}

static void steps_inside_callbacks_are_refused(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("2", "1024");
    collected *c = new_collected(1);
    c->then = run_inside;
    shape p = {.size = 4, .max_tokens = 3};
    submit_shape(engine, &story, &p, c);
    step_to_end(engine);
    expect_ended(c, FTK_FINISH_LENGTH);
    assert_int_equal(stat_of(engine, "requests_ended"), 1);
    free(c);
    ftk_engine_close(engine);
}

static void closed_with_requests_in_flight(void **state) {
    (void)state;
    for (int steps = 0; steps < 8; steps++) {
        ftk_engine *engine = open_demo("2", "1024");
        collected *c = new_collected(4);
        for (size_t i = 0; i < 4; i++) {
            shape p = {.size = 20, .max_tokens = 30, .chunk = 8};
            ftk_request r = request_of(&story, &p, i == 3 ? NULL : &c[i]);
            r.stop = (const char *const[]){"wolf"};
            r.stop_count = 1;
            submit(engine, &r);
        }
        for (int i = 0; i < steps; i++) step(engine);
        ftk_engine_close(engine);
        for (size_t i = 0; i < 4; i++) assert_int_equal(c[i].dones + c[i].wrong, 0);
        free(c);
    }
}

/* ---- a request that fails ---- */

/* Hidden states of token 0 are not finite: its embedding is not. Padding rows of graphs
 * run token 0 too, so that these are held against everything as well. */
static text poisoned_model(float poison) {
    fti_synth_model m = fti_synth_tiny();
    m.dims.interval = 2;
    m.types[FTI_SYNTH_EMBEDDING] = FTK_TYPE_F32;
    ftk_error err = FTK_ERROR_INIT;
    text path = in_scratch("poisoned.gguf");
    if (fti_synth_write(&m, path.s, &err) != FTK_OK) fail_msg("%s", err.message);
    fti_checkpoint *c;
    size_t size, index;
    unsigned char *data = read_file(path.s, &size);
    if (fti_checkpoint_open(path.s, &c, &err) != FTK_OK) fail_msg("%s", err.message);
    assert_true(fti_checkpoint_find_tensor(c, fti_str("token_embd.weight"), &index));
    const fti_tensor *t = fti_checkpoint_tensor(c, index);
    for (uint64_t i = 0; i < t->dims[0]; i++)
        memcpy(data + t->offset + i * sizeof poison, &poison, sizeof poison);
    fti_checkpoint_close(c);
    write_file(path.s, data, size, 0644);
    free(data);
    return path;
}

static uint64_t run_tokens(ftk_engine *engine, int32_t first, collected *c, bool poisoned) {
    int32_t *ids = calloc(8, sizeof *ids);
    assert_non_null(ids);
    for (int32_t i = 0; i < 8; i++) ids[i] = first + i;
    if (poisoned) ids[4] = 0;
    ftk_request r = FTK_REQUEST_INIT;
    const ftk_logit_bias never = {0, -INFINITY};
    r.tokens = ids;
    r.token_count = 8;
    r.max_tokens = 6;
    r.ignore_end = 1;
    r.sampling.biases = &never;
    r.sampling.bias_count = 1;
    r.on_event = collect;
    r.user = c;
    uint64_t id = c->id = submit(engine, &r);
    free(ids);
    return id;
}

static int keep_reuse(collected *c, const ftk_event *event) {
    if (event->type == FTK_EVENT_DONE) *(uint64_t *)c->with = event->reused_tokens;
    return 0;
}

static void check_poison(float poison) {
    text path = poisoned_model(poison);
    const char *const settings[] = {"scheduler.max_running", "4", "memory.kv_tokens", "512", NULL};
    ftk_engine *engine = fixture_open(path.s, settings);
    collected *alone = new_collected(3), *c = new_collected(4);
    for (size_t i = 0; i < 3; i++) { /* healthy ones, each to its end */
        run_tokens(engine, 100 + 20 * (int32_t)i, &alone[i], false);
        step_to_end(engine);
        expect_ended(&alone[i], FTK_FINISH_LENGTH);
    }
    for (int round = 0; round < 2; round++) { /* the second on slots and pages that held NaN */
        memset(c, 0, 4 * sizeof *c);
        for (size_t i = 0; i < 4; i++)
            run_tokens(engine, 100 + 20 * (int32_t)(i < 2 ? i : i - 1), &c[i], i == 1);
        step_to_end(engine);
        expect_ended(&c[1], FTK_FINISH_ERROR);
        assert_int_equal(c[1].status, FTK_E_NON_FINITE);
        assert_true(strlen(c[1].message) > 10);
        assert_int_equal(c[1].count, 0);
        assert_int_equal(c[0].result.hash, alone[0].result.hash);
        assert_int_equal(c[2].result.hash, alone[1].result.hash);
        assert_int_equal(c[3].result.hash, alone[2].result.hash);
        expect_idle(engine);
    }
    free(alone);
    free(c);
    ftk_engine_close(engine);
}

static uint64_t run_half(ftk_engine *engine, collected *c, int32_t poison_at, int32_t tail) {
    int32_t ids[170];
    ftk_request r = FTK_REQUEST_INIT;
    const ftk_logit_bias never = {0, -INFINITY};
    for (int32_t i = 0; i < 170; i++) ids[i] = 100 + (i < 140 ? i : tail + i);
    if (poison_at) ids[poison_at] = 0;
    r.tokens = ids;
    r.token_count = FTI_COUNT(ids);
    r.max_tokens = 6;
    r.chunk = 32; /* so that steps end on borders, where states are kept unseen */
    r.ignore_end = 1;
    r.sampling.biases = &never;
    r.sampling.bias_count = 1;
    r.on_event = collect;
    r.user = c;
    c->then = keep_reuse;
    return c->id = submit(engine, &r);
}

/* A prompt that breaks in its second page, of which the first is shared with others that run
 * beside it and after it: it fails alone, each time, and nobody goes on from what it left. */
static void d6_not_finite_is_not_kept(void **state) {
    (void)state;
    text path = poisoned_model(NAN);
    const char *const settings[] = {"scheduler.max_running", "4", "memory.kv_tokens", "2048", NULL};
    ftk_engine *engine = fixture_open(path.s, settings);
    collected *c = new_collected(8);
    static uint64_t reuse[8];
    for (size_t i = 0; i < 8; i++) c[i].with = &reuse[i];
    run_half(engine, &c[0], 0, 0);
    step_to_end(engine);
    expect_ended(&c[0], FTK_FINISH_LENGTH);
    for (size_t i = 1; i < 7; i += 2) {
        run_half(engine, &c[i], 100, 0);
        run_half(engine, &c[i + 1], 0, 0);
        step_to_end(engine);
        expect_ended(&c[i], FTK_FINISH_ERROR);
        assert_int_equal(c[i].status, FTK_E_NON_FINITE);
        assert_true(reuse[i] <= 64);
        expect_ended(&c[i + 1], FTK_FINISH_LENGTH);
        assert_int_equal(c[i + 1].result.hash, c[0].result.hash);
        assert_null(fti_holdings_fault(engine->service));
        const fti_prefix *tree = &engine->service->prefix;
        for (const fti_prefix_node *n = tree->oldest; n; n = n->newer)
            for (uint32_t k = 0; k < n->tokens; k++) assert_int_not_equal(n->ids[k], 0);
        expect_idle(engine);
    }
    assert_true(reuse[4] + reuse[6] > 0);
    free(c);
    ftk_engine_close(engine);
}

static void d6_not_finite_fails_one(void **state) {
    (void)state;
    check_poison((float)NAN);
    check_poison(INFINITY);
}

/* ---- polling ---- */

static ftk_event poll_ok(ftk_engine *engine, uint64_t id, uint32_t timeout_ms) {
    ftk_event event = FTK_EVENT_INIT;
    ftk_error err = FTK_ERROR_INIT;
    if (ftk_poll(engine, id, timeout_ms, &event, &err) != FTK_OK) fail_msg("%s", err.message);
    return event;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void polled_events(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("2", "1024");
    collected *called = new_collected(1);
    uint64_t ids[2];
    for (size_t i = 0; i < 2; i++) {
        shape p = {.start = 50 * i, .size = 6, .max_tokens = 5};
        ftk_request r = request_of(&story, &p, NULL);
        r.logprobs = 3;
        ids[i] = submit(engine, &r);
    }
    shape p = {.start = 0, .size = 6, .max_tokens = 5};
    submit_shape(engine, &story, &p, called);
    ftk_event none = poll_ok(engine, 0, 0);
    assert_int_equal(none.type, FTK_EVENT_NONE);
    ftk_event_release(&none);
    step_to_end(engine); /* events are queued while nobody asks for them */
    expect_ended(called, FTK_FINISH_LENGTH);
    /* Any: in the order in which they happened, which alternates once both decode. */
    uint64_t last = 0, changes = 0;
    size_t tokens[2] = {0, 0};
    for (int i = 0; i < 9; i++) { /* five tokens of one, at least four of the other */
        ftk_event e = poll_ok(engine, 0, 0);
        size_t k = e.request == ids[1];
        assert_non_null(e.storage);
        changes += e.request != last;
        last = e.request;
        if (e.type == FTK_EVENT_TOKEN) {
            assert_int_equal(e.top_count, 3);
            assert_true(e.top_logprobs[0] >= e.top_logprobs[1]);
            assert_int_equal(e.token, e.top_ids[0]);
            if (k == 0) assert_int_equal(e.token, called->tokens[tokens[0]]);
            tokens[k]++;
        }
        ftk_event_release(&e);
        assert_int_equal(e.type, FTK_EVENT_NONE);
        assert_null(e.storage);
        ftk_event_release(&e);
    }
    assert_int_equal(tokens[0], 5);
    assert_true(changes > 4);
    free(called);
    ftk_engine_close(engine); /* with events that were never fetched */
}

static void polled_to_the_end(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("2", "1024");
    ftk_error err = FTK_ERROR_INIT;
    ftk_event e = FTK_EVENT_INIT;
    shape p = {.size = 6, .max_tokens = 4};
    ftk_request r = request_of(&story, &p, NULL);
    uint64_t id = submit(engine, &r), other = submit(engine, &r);
    collected *called = new_collected(1);
    submit_shape(engine, &story, &p, called);
    expect_status(ftk_poll(engine, called->id, 0, &e, &err), FTK_E_NOT_FOUND, &err, "polled");
    expect_status(ftk_poll(engine, 12345, 1000, &e, &err), FTK_E_NOT_FOUND, &err, "12345");
    double before = seconds();
    e = poll_ok(engine, id, 60); /* nobody runs steps */
    assert_int_equal(e.type, FTK_EVENT_NONE);
    assert_true(seconds() - before > 0.055 && seconds() - before < 5);
    step_to_end(engine);
    for (uint64_t k = 0; k < 4; k++) { /* the later one first: each has its own queue */
        e = poll_ok(engine, other, 1000);
        assert_int_equal(e.type, FTK_EVENT_TOKEN);
        assert_int_equal(e.request, other);
        ftk_event_release(&e);
    }
    e = poll_ok(engine, other, 0);
    assert_int_equal(e.type, FTK_EVENT_DONE);
    assert_int_equal(e.result.hash, called->result.hash);
    assert_int_equal(e.result.tokens, 4);
    ftk_event_release(&e);
    expect_status(ftk_poll(engine, other, 0, &e, &err), FTK_E_NOT_FOUND, &err, "ended");
    /* An ended one is not live, though its events wait. */
    expect_status(ftk_cancel(engine, id, &err), FTK_E_NOT_FOUND, &err, "ended");
    for (uint32_t k = 0; k < 5; k++) {
        e = poll_ok(engine, 0, 0);
        assert_int_equal(e.type, k < 4 ? FTK_EVENT_TOKEN : FTK_EVENT_DONE);
        assert_int_equal(e.request, id);
        ftk_event_release(&e);
    }
    assert_int_equal(poll_ok(engine, 0, 0).type, FTK_EVENT_NONE);
    free(called);
    ftk_engine_close(engine);
}

/* ---- evaluation beside requests ---- */

static void evaluation_needs_the_engine(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("2", "1024");
    ftk_error err = FTK_ERROR_INIT;
    const ftk_evaluate_options o = FTK_EVALUATE_OPTIONS_INIT;
    collected *c = new_collected(1);
    float *before = fixture_logits(engine, story.ids, 12, 5);
    shape p = {.size = 6, .max_tokens = 4};
    submit_shape(engine, &story, &p, c);
    expect_status(ftk_evaluate(engine, story.ids, 5, &o, &err), FTK_E_STATE, &err, "1 request");
    step(engine);
    expect_status(ftk_evaluate(engine, story.ids, 5, &o, &err), FTK_E_STATE, &err, "1 request");
    step_to_end(engine);
    expect_ended(c, FTK_FINISH_LENGTH);
    float *after = fixture_logits(engine, story.ids, 12, 12);
    assert_memory_equal(before, after, 12 * (size_t)ftk_engine_vocabulary(engine) * sizeof *before);
    expect_idle(engine);
    free(before);
    free(after);
    free(c);
    ftk_engine_close(engine);
}

/* ---- what the engine says ---- */

typedef struct lines {
    size_t count[4];
    bool wrong;
} lines;

static void count_line(void *user, uint32_t level, const char *line, size_t size) {
    lines *l = user;
    l->wrong |= level > FTK_LOG_ERROR || size == 0 || memchr(line, '\n', size);
    if (level <= FTK_LOG_ERROR) l->count[level]++;
}

static ftk_engine *open_logged(const char *path, lines *l, uint32_t level, const void *data,
                               size_t size) {
    ftk_config *config;
    ftk_engine *engine = NULL;
    ftk_error err = FTK_ERROR_INIT;
    ftk_open_options o = FTK_OPEN_OPTIONS_INIT;
    o.log = count_line;
    o.log_user = l;
    o.log_level = level;
    if (ftk_config_load(FTK_CONFIG, &config, &err) != FTK_OK) fail_msg("%s", err.message);
    ftk_status status = data ? ftk_engine_open_memory(config, data, size, path, &o, &engine, &err)
                             : ftk_engine_open(config, path, &o, &engine, &err);
    if (status != FTK_OK) fail_msg("%s", err.message);
    ftk_config_free(config);
    return engine;
}

static void log_lines_of_a_level(void **state) {
    (void)state;
    text path = poisoned_model((float)NAN);
    size_t quiet = SIZE_MAX;
    for (uint32_t level = FTK_LOG_DEBUG; level <= FTK_LOG_ERROR; level++) {
        lines l = {.wrong = false};
        collected *c = new_collected(1);
        ftk_engine *engine = open_logged(path.s, &l, level, NULL, 0);
        run_tokens(engine, 100, c, true);
        step_to_end(engine);
        expect_ended(c, FTK_FINISH_ERROR);
        ftk_engine_close(engine);
        free(c);
        assert_false(l.wrong);
        for (uint32_t k = 0; k < level; k++) assert_int_equal(l.count[k], 0);
        assert_int_equal(l.count[FTK_LOG_DEBUG] > 0, level == FTK_LOG_DEBUG);
        assert_int_equal(l.count[FTK_LOG_WARNING], level <= FTK_LOG_WARNING ? 1 : 0);
        size_t all = l.count[0] + l.count[1] + l.count[2] + l.count[3];
        assert_true(all <= quiet);
        quiet = all;
    }
}

static void memory_as_file(void **state) {
    (void)state;
    size_t size;
    lines l = {.wrong = false};
    unsigned char *data = read_file(DEMO_MODEL, &size);
    ftk_engine *engine = open_logged("in-memory", &l, FTK_LOG_INFO, data, size);
    for (size_t i = 0; i < 3; i++) {
        shape p = shape_of_request(i, true);
        assert_int_equal(solo_hash(engine, &story, &p), solo[1][i]);
    }
    ftk_engine_close(engine);
    free(data);
}

static json_t *parse_report(ftk_status (*report)(const ftk_engine *, char **, ftk_error *),
                            const ftk_engine *engine) {
    char *json = NULL;
    json_error_t error;
    assert_int_equal(report(engine, &json, NULL), FTK_OK);
    json_t *o = json_loads(json, 0, &error);
    if (!json_is_object(o)) fail_msg("line %d: %s", error.line, error.text);
    ftk_report_free(json);
    return o;
}

static void reports_are_json(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("2", "1024");
    collected *c = new_collected(4);
    for (size_t i = 0; i < 4; i++) {
        shape p = {.size = 6, .max_tokens = 4};
        ftk_request r = request_of(&story, &p, &c[i]);
        r.priority = (int32_t)i - 2;
        c[i].id = submit(engine, &r);
    }
    step(engine);
    json_t *o = parse_report(ftk_engine_provenance, engine), *m, *s;
    m = parse_report(ftk_engine_memory, engine);
    s = parse_report(ftk_engine_stats, engine);
    json_t *list = json_object_get(s, "requests");
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *r = json_array_get(list, i);
        assert_int_equal(json_integer_value(json_object_get(r, "id")), c[i].id);
        assert_int_equal(json_integer_value(json_object_get(r, "priority")), (int)i - 2);
        assert_int_equal(json_is_true(json_object_get(r, "running")), i >= 2);
    }
    assert_true(json_integer_value(json_object_get(m, "kv_cache")) > 0);
    assert_true(json_is_object(json_object_get(o, "provider")));
    json_decref(o);
    json_decref(m);
    json_decref(s);
    step_to_end(engine);
    s = parse_report(ftk_engine_stats, engine);
    assert_int_equal(json_array_size(json_object_get(s, "requests")), 0);
    json_decref(s);
    free(c);
    ftk_engine_close(engine);
}

/* ---- no allocation ---- */

static bool all_decode(const collected *c, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (c[i].count == 0 || atomic_load(&c[i].dones)) return false;
    return true;
}

static void decode_steps_allocate_nothing(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("8", "2048");
    collected *c = new_collected(5);
    for (size_t i = 0; i < 5; i++) {
        shape p = {.start = 9 * i, .size = 9, .max_tokens = 70, .temperature = 0.7f, .seed = i};
        ftk_request r = request_of(&story, &p, &c[i]);
        r.logprobs = 4;
        r.stop = (const char *const[]){"never in this story"};
        r.stop_count = 1;
        r.sampling.repetition_penalty = 1.1f;
        submit(engine, &r);
    }
    while (!all_decode(c, 5)) assert_true(step(engine) > 0);
    uint64_t before = fti_allocation_count(), steps = 0;
    for (; all_decode(c, 5); steps++) {
        assert_int_equal(fti_allocation_count(), before);
        step(engine);
    }
    assert_true(steps > 50);
    step_to_end(engine);
    free(c);
    ftk_engine_close(engine);
}

static int setup(void **state) {
    if (scratch_setup(state) != 0) return -1;
    ftk_engine *engine = open_demo("1", "4096");
    story = stories_load(engine);
    for (int sampled = 0; sampled < 2; sampled++)
        for (size_t i = 0; i < MANY; i++) {
            shape p = shape_of_request(i, sampled);
            solo[sampled][i] = solo_hash(engine, &story, &p);
        }
    ftk_engine_close(engine);
    return 0;
}

static int teardown(void **state) {
    free(story.ids);
    return scratch_teardown(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_as_alone),
        cmocka_unit_test(e8_any_limit_as_alone),
        cmocka_unit_test(eager_as_alone),
        cmocka_unit_test(more_than_slots_wait_in_order),
        cmocka_unit_test(e7_pages_run_out),
        cmocka_unit_test(priorities_and_no_starvation),
        cmocka_unit_test(who_waits_says_why),
        cmocka_unit_test(a_stall_is_an_error),
        cmocka_unit_test(d9_limits_of_a_request),
        cmocka_unit_test(end_tokens),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(logprobs_of_evaluation),
        cmocka_unit_test(biases_and_penalties_arrive),
        cmocka_unit_test(banned_token_gives_way),
        cmocka_unit_test(cancel_from_outside),
        cmocka_unit_test(cancel_from_callbacks),
        cmocka_unit_test(e5_nothing_follows_a_cancel),
        cmocka_unit_test(submit_from_callbacks),
        cmocka_unit_test(steps_inside_callbacks_are_refused),
        cmocka_unit_test(closed_with_requests_in_flight),
        cmocka_unit_test(d6_not_finite_fails_one),
        cmocka_unit_test(d6_not_finite_is_not_kept),
        cmocka_unit_test(polled_events),
        cmocka_unit_test(polled_to_the_end),
        cmocka_unit_test(evaluation_needs_the_engine),
        cmocka_unit_test(log_lines_of_a_level),
        cmocka_unit_test(memory_as_file),
        cmocka_unit_test(reports_are_json),
        cmocka_unit_test(decode_steps_allocate_nothing),
    };
    return cmocka_run_group_tests_name("test_requests", tests, setup, teardown);
}
