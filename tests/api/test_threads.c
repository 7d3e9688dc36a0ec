/*
 * test_threads.c: an engine with its own thread, called from many at once; engines beside
 * each other; a process that forks. Threads count what went wrong, and the test fails
 * afterwards.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/collect.h"
#include "core/service.h"
#include "support/counts.h"

#define THREADS 8u
/* Rounds of one thread. */
#define ROUNDS (FIXTURE_SLOW_BUILD ? 1u : 6u)

static stories story;
static uint64_t solo[SHAPES];

static ftk_engine *open_with(const char *max_running, const char *threads) {
    const char *const settings[] = {"scheduler.max_running",
                                    max_running,
                                    "memory.kv_tokens",
                                    "2048",
                                    "backend.threads",
                                    threads,
                                    NULL};
    return fixture_open(DEMO_MODEL, settings);
}

static ftk_engine *open_demo(const char *max_running) {
    return open_with(max_running, "1");
}

static shape short_shape(size_t i) {
    shape p = shape_of_request(i, i % 2);
    size_t most = FIXTURE_SLOW_BUILD ? 8 : 40;
    p.max_tokens = FIXTURE_SLOW_BUILD ? 2 + (uint32_t)(i % 3) : 6 + (uint32_t)(i % SHAPES);
    if (p.size > most) p.size = most;
    return p;
}

static void nap(long ms) {
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static void wait_for_end(const collected *c) {
    for (int i = 0; i < 60000 && atomic_load(&c->dones) == 0; i++) nap(1);
    assert_int_equal(atomic_load(&c->dones), 1);
}

static collected *new_collected(size_t count) {
    collected *c = calloc(count, sizeof *c);
    assert_non_null(c);
    return c;
}

/* ---- start and stop ---- */

static void expect_start(ftk_engine *engine, ftk_status wanted) {
    ftk_error err = FTK_ERROR_INIT;
    if (ftk_engine_start(engine, &err) != wanted) fail_msg("start: %s", err.message);
}

static void start_stop_start(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4");
    ftk_error err = FTK_ERROR_INIT;
    uint32_t rows;
    const ftk_evaluate_options o = FTK_EVALUATE_OPTIONS_INIT;
    assert_int_equal(ftk_engine_stop(engine, &err), FTK_OK); /* there is none */
    for (int round = 0; round < 3; round++) {
        collected *c = new_collected(2);
        expect_start(engine, FTK_OK);
        expect_start(engine, FTK_E_STATE);
        assert_int_equal(ftk_engine_step(engine, &rows, &err), FTK_E_STATE);
        assert_non_null(strstr(err.message, "ftk_engine_stop"));
        assert_int_equal(ftk_evaluate(engine, story.ids, 3, &o, NULL), FTK_E_STATE);
        shape p = short_shape(1);
        submit_shape(engine, &story, &p, &c[0]);
        wait_for_end(&c[0]);
        assert_int_equal(c[0].result.hash, solo[1]);
        assert_int_equal(ftk_engine_stop(engine, &err), FTK_OK);
        assert_int_equal(ftk_engine_stop(engine, &err), FTK_OK);
        submit_shape(engine, &story, &p, &c[1]); /* waits for steps of the caller */
        assert_int_equal(atomic_load(&c[1].dones), 0);
        step_to_end(engine);
        assert_int_equal(c[1].result.hash, solo[1]);
        free(c);
    }
    expect_start(engine, FTK_OK);
    collected *c = new_collected(1);
    shape p = {.size = 30, .max_tokens = 500};
    submit_shape(engine, &story, &p, c);
    ftk_engine_close(engine); /* in the middle of it */
    assert_int_equal(c->wrong, 0);
    free(c);
}

static int stop_inside(collected *c, const ftk_event *event) {
    ftk_generate_options o = FTK_GENERATE_OPTIONS_INIT;
    uint32_t rows;
    o.max_tokens = 2;
    (void)event;
    c->wrong += ftk_engine_stop(c->engine, NULL) != FTK_E_STATE;
    c->wrong += ftk_engine_start(c->engine, NULL) != FTK_E_STATE;
    c->wrong += ftk_engine_step(c->engine, &rows, NULL) != FTK_E_STATE;
    c->wrong += ftk_generate(c->engine, story.ids, 3, &o, NULL, NULL) != FTK_E_STATE;
    return 0;
}

static void stop_from_a_callback(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4");
    collected *c = new_collected(1);
    expect_start(engine, FTK_OK);
    c->then = stop_inside;
    shape p = short_shape(2);
    submit_shape(engine, &story, &p, c);
    wait_for_end(c);
    expect_ended(c, FTK_FINISH_LENGTH);
    assert_int_equal(ftk_engine_stop(engine, NULL), FTK_OK);
    /* What was refused left nothing behind that would run now. */
    assert_int_equal(stat_of(engine, "requests_ended"), 1);
    expect_idle(engine);
    free(c);
    ftk_engine_close(engine);
}

/* ---- many callers of one engine ---- */

typedef struct caller {
    pthread_t thread;
    ftk_engine *engine;
    size_t number;
    uint32_t wrong;
    uint32_t ended, refused;
} caller;

static int start_callers(caller *callers, ftk_engine *engine, void *(*work)(void *)) {
    int failed = 0;
    for (size_t i = 0; i < THREADS; i++) {
        callers[i] = (caller){.engine = engine, .number = i};
        failed += pthread_create(&callers[i].thread, NULL, work, &callers[i]) != 0;
    }
    return failed;
}

static void join_callers(caller *callers) {
    for (size_t i = 0; i < THREADS; i++) assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
    for (size_t i = 0; i < THREADS; i++)
        if (callers[i].wrong) fail_msg("thread %zu: %u calls went wrong", i, callers[i].wrong);
}

/* Polls one request to its end, by its number or whatever comes first. */
static void poll_to_end(caller *c, uint64_t id, uint64_t hash) {
    for (uint32_t tokens = 0;;) {
        ftk_event e = FTK_EVENT_INIT;
        ftk_status status = ftk_poll(c->engine, id, 20000, &e, NULL);
        if (status != FTK_OK || e.type == FTK_EVENT_NONE) {
            c->wrong++;
            return;
        }
        bool done = e.type == FTK_EVENT_DONE;
        if (done) c->wrong += e.result.hash != hash || e.result.tokens != tokens;
        tokens += !done;
        ftk_event_release(&e);
        if (!done) continue;
        c->ended++;
        c->wrong += ftk_poll(c->engine, id, 0, &e, NULL) != FTK_E_NOT_FOUND;
        return;
    }
}

static void ask_small_questions(caller *c) {
    const ftk_engine *e = c->engine;
    ftk_message m = FTK_MESSAGE_INIT;
    m.role = "user";
    m.content = "Tell me a story about a wolf.";
    m.content_size = strlen(m.content);
    int32_t ids[64];
    size_t count, size;
    const char *piece;
    char *json = NULL;
    c->wrong += ftk_tokenize(e, "Once upon a time", 16, 0, ids, 64, &count, NULL) != FTK_OK;
    c->wrong += count < 4 || count > 16;
    c->wrong += ftk_format_chat(e, &m, 1, 0, ids, 64, &count, NULL) != FTK_OK || count != 24;
    c->wrong += ftk_token_text(e, ids[1], &piece, &size, NULL) != FTK_OK;
    c->wrong += ftk_engine_stats(e, &json, NULL) != FTK_OK;
    ftk_report_free(json);
    c->wrong += ftk_engine_provenance(e, &json, NULL) != FTK_OK;
    ftk_report_free(json);
    c->wrong += ftk_engine_memory(e, &json, NULL) != FTK_OK;
    ftk_report_free(json);
    c->wrong += ftk_cancel(c->engine, 1000000, NULL) != FTK_E_NOT_FOUND;
}

static void *use_all_of_it(void *argument) {
    caller *c = argument;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        shape p = short_shape(c->number);
        ftk_request r = request_of(&story, &p, NULL);
        uint64_t id, dropped;
        r.logprobs = 2;
        r.priority = (int32_t)(c->number % 3);
        c->wrong += ftk_submit(c->engine, &r, &id, NULL) != FTK_OK;
        c->wrong += ftk_submit(c->engine, &r, &dropped, NULL) != FTK_OK;
        ask_small_questions(c);
        ftk_status status = ftk_cancel(c->engine, dropped, NULL);
        c->wrong += status != FTK_OK && status != FTK_E_NOT_FOUND;
        poll_to_end(c, id, solo[c->number]);
        for (ftk_event e = FTK_EVENT_INIT; e.type != FTK_EVENT_DONE;) {
            ftk_event_release(&e);
            if (ftk_poll(c->engine, dropped, 20000, &e, NULL) != FTK_OK) c->wrong++;
            if (e.type == FTK_EVENT_NONE) c->wrong++;
            if (e.type == FTK_EVENT_DONE || c->wrong) {
                ftk_event_release(&e);
                break;
            }
        }
    }
    return NULL;
}

static void eight_callers(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4");
    caller callers[THREADS];
    expect_start(engine, FTK_OK);
    assert_int_equal(start_callers(callers, engine, use_all_of_it), 0);
    join_callers(callers);
    assert_int_equal(ftk_engine_stop(engine, NULL), FTK_OK);
    assert_int_equal(stat_of(engine, "requests_ended"), THREADS * ROUNDS * 2);
    expect_idle(engine);
    ftk_engine_close(engine);
}

/* Who pushes whom aside is up to the system's scheduler, and once in a while nobody does. */
#define TRIES (FIXTURE_SLOW_BUILD ? 1 : 12)

/* The same in so little room that requests push each other aside: how many were. */
static uint64_t run_in_little_room(const char *swap, size_t way) {
    const char *const settings[] = {"scheduler.max_running",
                                    "4",
                                    "memory.kv_tokens",
                                    "128",
                                    "memory.snapshots",
                                    "6",
                                    "scheduler.overcommit",
                                    "true",
                                    "scheduler.swap",
                                    swap,
                                    "backend.threads",
                                    "1",
                                    NULL};
    ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
    caller callers[THREADS];
    expect_start(engine, FTK_OK);
    assert_int_equal(start_callers(callers, engine, use_all_of_it), 0);
    join_callers(callers);
    assert_int_equal(ftk_engine_stop(engine, NULL), FTK_OK);
    expect_idle(engine);
    assert_null(fti_holdings_fault(engine->service));
    uint64_t preempted = engine->service->stats.preempted[way];
    ftk_engine_close(engine);
    return preempted;
}

static void eight_callers_in_little_room(void **state) {
    static const char *const swaps[] = {"0", "8MiB"};
    (void)state;
    for (size_t way = 0; way < FTI_COUNT(swaps); way++) {
        uint64_t preempted = 0;
        for (int i = 0; i < TRIES && preempted == 0; i++)
            preempted = run_in_little_room(swaps[way], way);
        if (!FIXTURE_SLOW_BUILD) assert_true(preempted > 0);
    }
}

static atomic_uint ended_of_any;

/* All poll for whatever comes: each event goes to exactly one of them. */
static void *poll_anything(void *argument) {
    caller *c = argument;
    for (int i = 0; i < 2000 && atomic_load(&ended_of_any) < 2 * SHAPES; i++) {
        ftk_event e = FTK_EVENT_INIT;
        c->wrong += ftk_poll(c->engine, 0, 50, &e, NULL) != FTK_OK;
        if (e.type == FTK_EVENT_DONE) {
            c->ended++;
            atomic_fetch_add(&ended_of_any, 1);
        }
        ftk_event_release(&e);
    }
    return NULL;
}

static void eight_pollers(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4");
    caller callers[THREADS];
    uint32_t ended = 0;
    expect_start(engine, FTK_OK);
    assert_int_equal(start_callers(callers, engine, poll_anything), 0);
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        shape p = short_shape(i);
        ftk_request r = request_of(&story, &p, NULL);
        submit(engine, &r);
    }
    join_callers(callers);
    for (size_t i = 0; i < THREADS; i++) ended += callers[i].ended;
    assert_int_equal(ended, 2 * SHAPES);
    expect_idle(engine);
    ftk_engine_close(engine);
}

static void *generate_here(void *argument) {
    caller *c = argument;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        ftk_generate_options o = FTK_GENERATE_OPTIONS_INIT;
        ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
        shape p = short_shape(c->number);
        o.max_tokens = p.max_tokens;
        o.ignore_end = 1;
        o.chunk = p.chunk;
        o.sampling.temperature = p.temperature;
        o.sampling.top_k = 40;
        o.sampling.seed = p.seed;
        ftk_status status = ftk_generate(c->engine, story.ids + p.start, p.size, &o, &result, NULL);
        c->refused += status == FTK_E_STATE;
        c->ended += status == FTK_OK && result.hash == solo[c->number];
        c->wrong += status != FTK_OK || result.hash != solo[c->number];
    }
    return NULL;
}

static void generate_beside_the_thread(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4");
    caller callers[THREADS];
    expect_start(engine, FTK_OK);
    assert_int_equal(start_callers(callers, engine, generate_here), 0);
    join_callers(callers);
    ftk_engine_close(engine);
}

/* The thread is stopped under those who wait for it: they go on themselves. */
static void thread_stopped_under_generate(void **state) {
    (void)state;
    for (long pause = 0; pause < (FIXTURE_SLOW_BUILD ? 24 : 12);
         pause += FIXTURE_SLOW_BUILD ? 8 : 4) {
        ftk_engine *engine = open_demo("4");
        ftk_error err = FTK_ERROR_INIT;
        caller c = {.engine = engine, .number = 3}, d = {.engine = engine, .number = 4};
        ftk_request hold = FTK_REQUEST_INIT;
        shape p = {.size = 8, .max_tokens = FIXTURE_SLOW_BUILD ? 12 : 60};
        hold = request_of(&story, &p, NULL);
        uint64_t id = submit(engine, &hold);
        expect_start(engine, FTK_OK);
        assert_int_equal(pthread_create(&c.thread, NULL, generate_here, &c), 0);
        assert_int_equal(pthread_create(&d.thread, NULL, generate_here, &d), 0);
        /* Until both have a request: from then on, nobody is refused. */
        while (stat_of(engine, "requests_running") + stat_of(engine, "requests_waiting") < 3 &&
               stat_of(engine, "requests_ended") < 2)
            nap(1);
        nap(pause);
        if (ftk_engine_stop(engine, &err) != FTK_OK) fail_msg("%s", err.message);
        assert_int_equal(pthread_join(c.thread, NULL), 0);
        assert_int_equal(pthread_join(d.thread, NULL), 0);
        /* A round that began afterwards may have met a step of the other one's. */
        assert_int_equal(c.ended + c.refused, ROUNDS);
        assert_int_equal(d.ended + d.refused, ROUNDS);
        assert_true(c.ended + d.ended >= 2);
        (void)ftk_cancel(engine, id, NULL);
        step_to_end(engine);
        expect_idle(engine);
        ftk_engine_close(engine);
    }
}

typedef struct stopper {
    ftk_engine *engine;
    ftk_status status;
} stopper;

static void *stop_here(void *argument) {
    stopper *s = argument;
    s->status = ftk_engine_stop(s->engine, NULL);
    return NULL;
}

static void two_stop_at_once(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4");
    for (int round = 0; round < (FIXTURE_SLOW_BUILD ? 5 : 20); round++) {
        pthread_t thread;
        uint32_t rows;
        stopper s = {.engine = engine, .status = FTK_E_STATE};
        collected *c = new_collected(1);
        shape p = short_shape(0);
        submit_shape(engine, &story, &p, c);
        expect_start(engine, FTK_OK);
        assert_int_equal(pthread_create(&thread, NULL, stop_here, &s), 0);
        assert_int_equal(ftk_engine_stop(engine, NULL), FTK_OK);
        /* Whoever returns finds it stopped. */
        assert_int_equal(ftk_engine_step(engine, &rows, NULL), FTK_OK);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(s.status, FTK_OK);
        step_to_end(engine);
        expect_ended(c, FTK_FINISH_LENGTH);
        free(c);
    }
    ftk_engine_close(engine);
}

/* ---- engines beside each other ---- */

/* With four threads each, and a caller each: the tokens of one engine alone. */
static void i2_eight_engines_of_four_threads(void **state) {
    (void)state;
    ftk_engine *engines[THREADS];
    caller callers[THREADS];
    for (size_t i = 0; i < THREADS; i++) engines[i] = open_with("1", "4");
    for (size_t i = 0; i < THREADS; i++) {
        counts_expect_threads(engines[i], 4);
        callers[i] = (caller){.engine = engines[i], .number = i};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, generate_here, &callers[i]), 0);
    }
    join_callers(callers);
    for (size_t i = 0; i < THREADS; i++) ftk_engine_close(engines[i]);
}

/* ---- fork ---- */

/* Calls that a child may not make; the number of those that were not refused. */
static int calls_of_a_child(ftk_engine *e, ftk_detokenizer *d) {
    int wrong = 0;
    uint32_t rows;
    uint64_t id;
    size_t n;
    int32_t ids[4];
    const char *piece;
    char *json = NULL;
    ftk_event event = FTK_EVENT_INIT;
    ftk_message m = FTK_MESSAGE_INIT;
    m.role = m.content = "user";
    const ftk_generate_options generate = FTK_GENERATE_OPTIONS_INIT;
    const ftk_evaluate_options evaluate = FTK_EVALUATE_OPTIONS_INIT;
    shape p = short_shape(0);
    ftk_request r = request_of(&story, &p, NULL);
    ftk_detokenizer *made = NULL;
    wrong += ftk_submit(e, &r, &id, NULL) != FTK_E_STATE;
    wrong += ftk_cancel(e, 1, NULL) != FTK_E_STATE;
    wrong += ftk_engine_step(e, &rows, NULL) != FTK_E_STATE;
    wrong += ftk_poll(e, 0, 0, &event, NULL) != FTK_E_STATE;
    wrong += ftk_engine_start(e, NULL) != FTK_E_STATE;
    wrong += ftk_engine_stop(e, NULL) != FTK_E_STATE;
    wrong += ftk_generate(e, story.ids, 3, &generate, NULL, NULL) != FTK_E_STATE;
    wrong += ftk_evaluate(e, story.ids, 3, &evaluate, NULL) != FTK_E_STATE;
    wrong += ftk_tokenize(e, "a", 1, 0, ids, 4, &n, NULL) != FTK_E_STATE;
    wrong += ftk_token_text(e, 1, &piece, &n, NULL) != FTK_E_STATE;
    wrong += ftk_format_chat(e, &m, 1, 0, ids, 4, &n, NULL) != FTK_E_STATE;
    wrong += ftk_engine_stats(e, &json, NULL) != FTK_E_STATE;
    wrong += ftk_engine_memory(e, &json, NULL) != FTK_E_STATE;
    wrong += ftk_engine_provenance(e, &json, NULL) != FTK_E_STATE;
    wrong += ftk_detokenizer_create(e, &made, NULL) != FTK_E_STATE || made;
    wrong += ftk_detokenizer_push(d, 1, &piece, &n, NULL) != FTK_E_STATE;
    ftk_engine_close(e);
    ftk_engine_close(e);
    return wrong;
}

static pid_t pretended; /* number of this process, or 0: its own */

/* Takes the place of the C library's. */
pid_t getpid(void) {
    return pretended ? pretended : (pid_t)syscall(SYS_getpid);
}

/* `number`: what the child takes for its own, or 0. In another PID namespace it may be its
 * parent's. */
static void expect_child(ftk_engine *engine, ftk_detokenizer *d, pid_t number) {
    int found = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(30);
        pretended = number;
        _exit(calls_of_a_child(engine, d));
    }
    assert_int_equal(waitpid(child, &found, 0), child);
    assert_true(WIFEXITED(found));
    assert_int_equal(WEXITSTATUS(found), 0);
}

static void forked(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("4");
    collected *c = new_collected(1);
    ftk_detokenizer *d;
    assert_int_equal(ftk_detokenizer_create(engine, &d, NULL), FTK_OK);
    expect_child(engine, d, 0);
    expect_child(engine, d, getpid());
    expect_start(engine, FTK_OK);
    shape p = short_shape(0);
    submit_shape(engine, &story, &p, c);
#if defined(__SANITIZE_THREAD__)
    print_message("skip: no fork beside running threads under ThreadSanitizer\n");
#else
    expect_child(engine, d, 0); /* the child has no such thread, and does not miss it */
#endif
    wait_for_end(c);
    assert_int_equal(c->result.hash, solo[0]); /* the parent goes on */
    free(c);
    ftk_detokenizer_free(d);
    ftk_engine_close(engine);
}

static int setup(void **state) {
    (void)state;
    ftk_engine *engine = open_demo("1");
    story = stories_load(engine);
    for (size_t i = 0; i < SHAPES; i++) {
        shape p = short_shape(i);
        solo[i] = solo_hash(engine, &story, &p);
    }
    ftk_engine_close(engine);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free(story.ids);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_stop_start),
        cmocka_unit_test(stop_from_a_callback),
        cmocka_unit_test(eight_callers),
        cmocka_unit_test(eight_callers_in_little_room),
        cmocka_unit_test(eight_pollers),
        cmocka_unit_test(generate_beside_the_thread),
        cmocka_unit_test(thread_stopped_under_generate),
        cmocka_unit_test(two_stop_at_once),
        cmocka_unit_test(i2_eight_engines_of_four_threads),
        cmocka_unit_test(forked),
    };
    return cmocka_run_group_tests_name("test_threads", tests, setup, teardown);
}
