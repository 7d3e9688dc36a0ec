/*
 * collect.h: what the tests of requests share: prompts that differ in everything, a
 * callback that keeps all that a request says and holds it to the rules of events, and
 * numbers out of the statistics. Include after cmocka.h.
 */
#ifndef TESTS_API_COLLECT_H
#define TESTS_API_COLLECT_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "support/engine_fixture.h"

#define MOST_TOKENS 600u

typedef struct collected {
    ftk_engine *engine;
    uint64_t id;
    int32_t tokens[MOST_TOKENS];
    float logprobs[MOST_TOKENS];
    size_t count;
    char text[8192];
    size_t text_size;
    atomic_uint dones;
    uint32_t wrong; /* events that should not have come; threads cannot fail a test */
    ftk_status status;
    char message[512];
    ftk_generate_result result;
    /* Called after an event was kept; what it returns is returned. */
    int (*then)(struct collected *self, const ftk_event *event);
    void *with;
} collected;

static inline int collect(void *user, const ftk_event *event) {
    collected *c = user;
    bool known = event->type == FTK_EVENT_TOKEN || event->type == FTK_EVENT_DONE;
    if (atomic_load(&c->dones) || !known || event->storage || event->struct_size != sizeof *event ||
        c->count >= MOST_TOKENS || c->text_size + event->text_size > sizeof c->text) {
        c->wrong++;
        return 1;
    }
    if (event->text_size) memcpy(c->text + c->text_size, event->text, event->text_size);
    c->text_size += event->text_size;
    if (event->type == FTK_EVENT_TOKEN) {
        c->logprobs[c->count] = event->logprob;
        c->tokens[c->count++] = event->token;
    } else {
        c->status = event->status;
        c->result = event->result;
        if (event->message) snprintf(c->message, sizeof c->message, "%s", event->message);
    }
    int answer = c->then ? c->then(c, event) : 0;
    /* Last, since another thread may be waiting for it. */
    if (event->type == FTK_EVENT_DONE) atomic_fetch_add(&c->dones, 1);
    return answer;
}

/* Ended exactly once, with consistent counts. */
static inline void expect_ended(const collected *c, uint32_t finish) {
    assert_int_equal(c->wrong, 0);
    assert_int_equal(atomic_load(&c->dones), 1);
    if (c->result.finish != finish)
        fail_msg("finish %u, wanted %u (%s)", c->result.finish, finish, c->message);
    assert_int_equal(c->result.tokens, c->count);
    assert_int_equal(c->status == FTK_OK, finish != FTK_FINISH_ERROR);
}

/* ---- prompts ---- */

#define SHAPES 8u
typedef struct shape {
    size_t start, size; /* tokens of the stories */
    uint32_t max_tokens, chunk;
    float temperature;
    uint64_t seed;
} shape;

/* Every prompt has another length: one token, about a page, several chunks. */
static inline shape shape_of_request(size_t i, bool sampled) {
    static const size_t sizes[SHAPES] = {10, 1, 33, 70, 5, 64, 17, 2};
    static const uint32_t chunks[SHAPES] = {0, 0, 7, 32, 1, 11, 0, 1};
    const size_t k = i % SHAPES;
    return (shape){.start = 40 * i,
                   .size = sizes[k],
                   .max_tokens = 24 + 3 * (uint32_t)k,
                   .chunk = chunks[k],
                   .temperature = sampled ? 0.8f : 0.0f,
                   .seed = 1000 + i};
}

typedef struct stories {
    int32_t *ids;
    size_t count;
} stories;

static inline stories stories_load(const ftk_engine *engine) {
    size_t size;
    stories s;
    char *whole = fixture_read(FTK_TEST_DATA "/stories.txt", &size);
    s.ids = fixture_tokenize(engine, whole, size < 6000 ? size : 6000, &s.count);
    free(whole);
    return s;
}

static inline ftk_request request_of(const stories *s, const shape *p, collected *into) {
    ftk_request r = FTK_REQUEST_INIT;
    r.tokens = s->ids + p->start;
    r.token_count = p->size;
    r.max_tokens = p->max_tokens;
    r.chunk = p->chunk;
    r.ignore_end = 1;
    r.sampling.temperature = p->temperature;
    r.sampling.top_k = 40;
    r.sampling.seed = p->seed;
    if (into) {
        r.on_event = collect;
        r.user = into;
    }
    return r;
}

static inline uint64_t submit(ftk_engine *engine, const ftk_request *r) {
    uint64_t id = 0;
    ftk_error err = FTK_ERROR_INIT;
    if (ftk_submit(engine, r, &id, &err) != FTK_OK) fail_msg("%s", err.message);
    assert_true(id > 0);
    return id;
}

static inline void submit_shape(ftk_engine *engine, const stories *s, const shape *p,
                                collected *into) {
    ftk_request r = request_of(s, p, into);
    into->engine = engine;
    into->id = submit(engine, &r);
}

static inline uint32_t step(ftk_engine *engine) {
    uint32_t rows = 0;
    ftk_error err = FTK_ERROR_INIT;
    if (ftk_engine_step(engine, &rows, &err) != FTK_OK) fail_msg("%s", err.message);
    return rows;
}

static inline void step_to_end(ftk_engine *engine) {
    while (step(engine) > 0) continue;
}

static inline uint64_t solo_hash(ftk_engine *engine, const stories *s, const shape *p) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_generate_options o = FTK_GENERATE_OPTIONS_INIT;
    ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
    o.max_tokens = p->max_tokens;
    o.ignore_end = 1;
    o.sampling.temperature = p->temperature;
    o.sampling.top_k = 40;
    o.sampling.seed = p->seed;
    if (ftk_generate(engine, s->ids + p->start, p->size, &o, &result, &err) != FTK_OK)
        fail_msg("%s", err.message);
    return result.hash;
}

/* ---- statistics ---- */

static inline json_t *stats_of(const ftk_engine *engine) {
    char *json = NULL;
    ftk_error err = FTK_ERROR_INIT;
    if (ftk_engine_stats(engine, &json, &err) != FTK_OK) fail_msg("%s", err.message);
    json_t *o = json_loads(json, 0, NULL);
    assert_non_null(o);
    ftk_report_free(json);
    return o;
}

static inline uint64_t stat_of(const ftk_engine *engine, const char *key) {
    json_t *o = stats_of(engine), *value = json_object_get(o, key);
    if (!json_is_integer(value)) fail_msg("the statistics have no number %s", key);
    uint64_t n = (uint64_t)json_integer_value(value);
    json_decref(o);
    return n;
}

static inline void expect_idle(const ftk_engine *engine) {
    assert_int_equal(stat_of(engine, "requests_running"), 0);
    assert_int_equal(stat_of(engine, "requests_waiting"), 0);
    assert_int_equal(stat_of(engine, "pages_used"), 0);
    assert_int_equal(stat_of(engine, "state_slots_used"), 0);
}

#endif
