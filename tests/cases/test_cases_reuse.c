/*
 * test_cases_reuse.c: reports about prompts that are computed in part, again or in pieces
 * (docs/cases.md, D2 to D8): each must give the tokens and log-probabilities of an engine
 * that knows nothing of earlier prompts, and say how much of it was reused. And that those
 * who make room for others come to their end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "api/collect.h"
#include "support/counts.h"

#define LONGEST 900u

static stories words;

/* ---- a prompt as parts of the stories ---- */

typedef struct prompt {
    int32_t ids[LONGEST];
    size_t count;
} prompt;

static void append(prompt *p, size_t from, size_t count) {
    assert_true(from + count <= words.count && p->count + count <= LONGEST);
    memcpy(p->ids + p->count, words.ids + from, count * sizeof *p->ids);
    p->count += count;
}

static ftk_request request_for(const prompt *p, uint32_t max_tokens, collected *into) {
    ftk_request r = FTK_REQUEST_INIT;
    r.tokens = p->ids;
    r.token_count = p->count;
    r.max_tokens = max_tokens;
    r.ignore_end = 1;
    r.logprobs = 1;
    r.sampling.temperature = 0.7f;
    r.sampling.seed = 5;
    r.on_event = collect;
    r.user = into;
    return r;
}

static uint64_t reused;

static int note_reuse(collected *self, const ftk_event *event) {
    (void)self;
    if (event->type == FTK_EVENT_DONE) reused = event->reused_tokens;
    return 0;
}

static void run(ftk_engine *engine, const prompt *p, uint32_t max_tokens, collected *c) {
    *c = (collected){.then = note_reuse};
    ftk_request r = request_for(p, max_tokens, c);
    submit(engine, &r);
    step_to_end(engine);
    expect_ended(c, FTK_FINISH_LENGTH);
}

static const char *const cached[] = {"scheduler.prefix_cache", "true", NULL};
static const char *const fresh[] = {"scheduler.prefix_cache", "false", NULL};

/* On an engine with a prefix cache, which must reuse `wanted` tokens, and on a new one. */
static void expect_same(ftk_engine *engine, const prompt *p, uint64_t wanted, const char *what) {
    static collected with, without;
    run(engine, p, 20, &with);
    uint64_t found = reused;
    ftk_engine *other = fixture_open(DEMO_MODEL, fresh);
    run(other, p, 20, &without);
    ftk_engine_close(other);
    if (with.result.hash != without.result.hash ||
        memcmp(with.logprobs, without.logprobs, with.count * sizeof *with.logprobs) != 0)
        fail_msg("%s: not the bits of a fresh run", what);
    if (found != wanted)
        fail_msg("%s: %llu tokens were reused, not %llu", what, (unsigned long long)found,
                 (unsigned long long)wanted);
}

/* ---- the reports ---- */

static void d2_again_then_shorter_then_longer(void **state) {
    (void)state;
    ftk_engine *engine = fixture_open(DEMO_MODEL, cached);
    prompt p = {.count = 0}, shorter = {.count = 0}, longer = {.count = 0};
    append(&p, 100, 200);
    append(&shorter, 100, 150);
    append(&longer, 100, 260);
    expect_same(engine, &p, 0, "the first time");
    /* What both have in common is kept at its last page's border, for whoever comes next. */
    expect_same(engine, &p, 0, "the second time");
    expect_same(engine, &p, 192, "the third time");
    expect_same(engine, &shorter, 0, "a shorter one");
    expect_same(engine, &shorter, 128, "the shorter one again");
    expect_same(engine, &longer, 200, "a longer one"); /* from the end of the first */
    expect_same(engine, &p, 192, "the first one again");
    assert_int_equal(stat_of(engine, "reused_tokens"), 192 + 128 + 200 + 192);
    ftk_engine_close(engine);
}

static void d3_shared_beginning_and_edits(void **state) {
    (void)state;
    ftk_engine *engine = fixture_open(DEMO_MODEL, cached);
    uint64_t prompts = 0;
    static const uint64_t tails[] = {0, 0, 128, 128};
    for (size_t i = 0; i < FTI_COUNT(tails); i++) {
        prompt p = {.count = 0};
        append(&p, 300, 150); /* the same instructions before each */
        append(&p, 600 + 50 * i, 40);
        expect_same(engine, &p, tails[i], "another tail");
        prompts += p.count;
    }
    prompt edited = {.count = 0};
    append(&edited, 300, 150);
    edited.ids[100] = words.ids[0]; /* in the second page */
    expect_same(engine, &edited, 0, "an edit in the middle");
    expect_same(engine, &edited, 64, "the edit again");
    prompts += 2 * edited.count;
    /* Each token of a prompt was either reused or has run. */
    assert_int_equal(stat_of(engine, "reused_tokens") + stat_of(engine, "prompt_rows"), prompts);
    ftk_engine_close(engine);
}

/* A conversation: each turn is the one before, its answer and something more. */
static void d3_turns_go_on_where_they_ended(void **state) {
    (void)state;
    static collected c;
    ftk_engine *engine = fixture_open(DEMO_MODEL, cached);
    prompt p = {.count = 0};
    append(&p, 40, 33);
    for (size_t turn = 0, known = 0; turn < 4; turn++) {
        expect_same(engine, &p, known, "a turn");
        run(engine, &p, 20, &c);
        /* The last token was chosen, but has not run. */
        known = p.count + c.count - 1;
        memcpy(p.ids + p.count, c.tokens, c.count * sizeof *p.ids);
        p.count += c.count;
        append(&p, 800 + 30 * turn, 9);
    }
    ftk_engine_close(engine);
}

/* ---- dialogues ---- */

#define TURNS 4u

typedef struct dialogue {
    ftk_message messages[2 * TURNS];
    char answers[TURNS][512];
    size_t count;
} dialogue;

static void say(dialogue *d, const char *role, const char *content) {
    ftk_message *m = &d->messages[d->count++];
    *m = (ftk_message)FTK_MESSAGE_INIT;
    m->role = role;
    m->content = content;
    m->content_size = strlen(content);
}

static void answer(ftk_engine *engine, const dialogue *d, collected *c) {
    *c = (collected){.then = note_reuse};
    ftk_request r = FTK_REQUEST_INIT;
    r.messages = d->messages;
    r.message_count = d->count;
    r.chat_flags = FTK_CHAT_NO_THINKING;
    r.max_tokens = 30;
    r.logprobs = 1;
    r.on_event = collect;
    r.user = c;
    submit(engine, &r);
    step_to_end(engine);
    assert_int_equal(c->status, FTK_OK);
}

/* As a chat program asks: each time the whole dialogue, its answers as text. */
static void d3_dialogues_go_on(void **state) {
    static const char *const questions[TURNS] = {
        "Tell me a story about a wolf and a lamb by the river, and say what they talked of.",
        "And the fox?", "What did the crow say?", "How does it end?"};
    static collected with, without;
    dialogue d = {.count = 0};
    (void)state;
    ftk_engine *engine = fixture_open(DEMO_MODEL, cached);
    for (size_t turn = 0; turn < TURNS; turn++) {
        say(&d, "user", questions[turn]);
        answer(engine, &d, &with);
        uint64_t found = reused;
        ftk_engine *other = fixture_open(DEMO_MODEL, fresh);
        answer(other, &d, &without);
        ftk_engine_close(other);
        assert_int_equal(with.result.hash, without.result.hash);
        assert_memory_equal(with.logprobs, without.logprobs, with.count * sizeof *with.logprobs);
        print_message("turn %zu: %llu of %llu tokens reused\n", turn + 1, (unsigned long long)found,
                      (unsigned long long)with.result.prompt_tokens);
        assert_int_equal(found > 0, turn > 0);
        assert_true(with.text_size < sizeof d.answers[turn]);
        memcpy(d.answers[turn], with.text, with.text_size);
        say(&d, "assistant", d.answers[turn]);
    }
    ftk_engine_close(engine);
}

static void d3_forgotten_on_demand(void **state) {
    (void)state;
    ftk_engine *engine = fixture_open(DEMO_MODEL, cached);
    prompt p = {.count = 0};
    append(&p, 10, 128);
    prompt longer = p;
    append(&longer, 700, 10);
    expect_same(engine, &p, 0, "the first time");
    expect_same(engine, &longer, 128, "the end of a prompt on the border of a page");
    assert_true(stat_of(engine, "pages_cached") > 0);
    assert_int_equal(ftk_engine_forget(engine, NULL), FTK_OK);
    assert_int_equal(stat_of(engine, "pages_cached"), 0);
    assert_int_equal(stat_of(engine, "state_slots_cached"), 0);
    expect_same(engine, &longer, 0, "after forgetting");
    assert_int_equal(ftk_engine_forget(NULL, NULL), FTK_E_ARGUMENT);
    ftk_engine_close(engine);
}

/* Lengths around a chunk, and each split of a short prompt, to the same log-probabilities. */
static void d5_whole_or_in_pieces(void **state) {
    (void)state;
    static collected whole, pieces;
    ftk_engine *engine = fixture_open(DEMO_MODEL, fresh);
    static const size_t sizes[] = {1, 2, 3, 4, 5, 31, 32, 33};
    for (size_t i = 0; i < FTI_COUNT(sizes); i++) {
        prompt p = {.count = 0};
        append(&p, 20, sizes[i]);
        run(engine, &p, 6, &whole);
        size_t most = sizes[i] > 5 ? 32 : sizes[i];
        for (uint32_t chunk = sizes[i] > 5 ? 30 : 1; chunk <= most; chunk++) {
            pieces = (collected){.count = 0};
            ftk_request r = request_for(&p, 6, &pieces);
            r.chunk = chunk;
            submit(engine, &r);
            step_to_end(engine);
            assert_int_equal(pieces.result.hash, whole.result.hash);
            assert_memory_equal(pieces.logprobs, whole.logprobs, 6 * sizeof(float));
        }
    }
    ftk_engine_close(engine);
}

/* Past 700 tokens, over many borders of pages, with graphs and without. */
static void d8_graphs_past_many_pages(void **state) {
    (void)state;
    static collected answers[2];
    const uint32_t tokens = FIXTURE_SLOW_BUILD ? 40 : 300;
    for (size_t i = 0; i < 2; i++) {
        const char *const settings[] = {"backend.graphs", i ? "off" : "on", NULL};
        ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
        prompt p = {.count = 0};
        append(&p, 0, 450);
        run(engine, &p, tokens, &answers[i]);
        assert_int_equal(answers[i].result.graph_replays, i ? 0 : tokens - 1);
        ftk_engine_close(engine);
    }
    assert_int_equal(answers[0].result.hash, answers[1].result.hash);
    assert_memory_equal(answers[0].logprobs, answers[1].logprobs, tokens * sizeof(float));
}

/* ---- preemption ---- */

/* A prompt of 25 steps, and an urgent request every 20 steps that takes its only place: it is
 * pushed aside seven times, then it stays. */
static void nobody_is_pushed_aside_for_ever(void **state) {
    static const char *const caches[] = {"false", "true"};
    (void)state;
    for (size_t i = 0; i < FTI_COUNT(caches); i++) {
        const char *const settings[] = {"scheduler.max_running",
                                        "1",
                                        "memory.kv_tokens",
                                        "256",
                                        "scheduler.prefill_tokens",
                                        "8",
                                        "scheduler.prefix_cache",
                                        caches[i],
                                        NULL};
        ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
        collected *c = calloc(60, sizeof *c);
        prompt low = {.count = 0}, urgent = {.count = 0};
        append(&low, 100, 200);
        append(&urgent, 500, 4);
        ftk_request r = request_for(&low, 20, &c[0]);
        uint32_t steps = 0, others = 0;
        submit(engine, &r);
        for (; steps < 1000 && !atomic_load(&c[0].dones); steps++) {
            step(engine);
            if (steps % 20 != 19) continue;
            urgent.ids[0] = (int32_t)(600 + others);
            r = request_for(&urgent, 2, &c[++others]);
            r.priority = 1;
            submit(engine, &r);
        }
        step_to_end(engine);
        expect_ended(&c[0], FTK_FINISH_LENGTH);
        for (uint32_t k = 1; k <= others; k++) expect_ended(&c[k], FTK_FINISH_LENGTH);
        assert_in_range(steps, 60, 400);
        free(c);
        ftk_engine_close(engine);
    }
}

/* Ends of every kind, of a request that others push aside every few steps. */
static void check_end(const ftk_request *asked, uint32_t finish, const char *swap) {
    static collected alone, pressed, c[40];
    const char *const settings[] = {"scheduler.max_running",
                                    "1",
                                    "memory.kv_tokens",
                                    "256",
                                    "memory.snapshots",
                                    "16",
                                    "scheduler.prefill_tokens",
                                    "16",
                                    "scheduler.swap",
                                    swap,
                                    NULL};
    const char *const apart[] = {"scheduler.prefix_cache", "false", "memory.kv_tokens", "256",
                                 NULL};
    ftk_request r = *asked;
    ftk_engine *engine = fixture_open(DEMO_MODEL, apart);
    alone = (collected){.count = 0};
    r.user = &alone;
    submit(engine, &r);
    step_to_end(engine);
    expect_ended(&alone, finish);
    ftk_engine_close(engine);
    engine = fixture_open(DEMO_MODEL, settings);
    for (uint32_t round = 0; round < 3; round++) { /* the later ones reuse what there is */
        uint32_t others = 0;
        pressed = (collected){.count = 0};
        r.user = &pressed;
        submit(engine, &r);
        for (uint32_t steps = 0; steps < 2000 && !atomic_load(&pressed.dones); steps++) {
            step(engine);
            if (steps % 9 != 8 || others == FTI_COUNT(c)) continue;
            prompt urgent = {.count = 0};
            append(&urgent, 500 + 7 * others, 5);
            ftk_request u = request_for(&urgent, 2, &c[others]);
            c[others++] = (collected){.count = 0};
            u.priority = 1;
            submit(engine, &u);
        }
        step_to_end(engine);
        expect_ended(&pressed, finish);
        assert_int_equal(pressed.result.hash, alone.result.hash);
        assert_int_equal(pressed.text_size, alone.text_size);
        assert_memory_equal(pressed.text, alone.text, alone.text_size);
        expect_idle(engine);
    }
    json_t *o = stats_of(engine), *by = json_object_get(o, "preemptions");
    assert_true(json_integer_value(json_object_get(by, strcmp(swap, "0") ? "swap" : "recompute")) >
                6);
    /* One that takes all pages, or goes to swap space, need not leave anything behind. */
    assert_true(stat_of(engine, "reused_tokens") > 0 || asked->max_tokens != 60 ||
                strcmp(swap, "0") != 0);
    json_decref(o);
    ftk_engine_close(engine);
}

static void ends_are_where_they_are_alone(void **state) {
    static const char *const swaps[] = {"0", "8MiB"};
    static collected plain;
    (void)state;
    prompt p = {.count = 0};
    append(&p, 100, 90);
    ftk_engine *engine = fixture_open(DEMO_MODEL, fresh);
    run(engine, &p, 60, &plain);
    int32_t end = 0;
    while (!ftk_token_is_end(engine, end)) end++;
    ftk_engine_close(engine);
    /* From the middle of the text, across whatever borders its tokens have there. */
    char stop[24] = {0};
    memcpy(stop, plain.text + plain.text_size * 2 / 3, sizeof stop - 1);
    const char *const stops[] = {stop};
    for (size_t i = 0; i < FTI_COUNT(swaps); i++) {
        ftk_request r = request_for(&p, 60, &plain);
        r.stop = stops;
        r.stop_count = 1;
        check_end(&r, FTK_FINISH_STOP, swaps[i]);
        r = request_for(&p, 0, &plain); /* up to the end of the context */
        check_end(&r, FTK_FINISH_LENGTH, swaps[i]);
        const ftk_logit_bias likely = {end, 9.0f};
        r = request_for(&p, 150, &plain); /* an end token that comes some day */
        r.ignore_end = 0;
        r.sampling.biases = &likely;
        r.sampling.bias_count = 1;
        check_end(&r, FTK_FINISH_STOP, swaps[i]);
    }
}

static int setup(void **state) {
    (void)state;
    ftk_engine *engine = fixture_open(DEMO_MODEL, NULL);
    words = stories_load(engine);
    ftk_engine_close(engine);
    return words.count > 1000 ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    free(words.ids);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(d2_again_then_shorter_then_longer),
        cmocka_unit_test(d3_shared_beginning_and_edits),
        cmocka_unit_test(d3_turns_go_on_where_they_ended),
        cmocka_unit_test(d3_dialogues_go_on),
        cmocka_unit_test(d3_forgotten_on_demand),
        cmocka_unit_test(d5_whole_or_in_pieces),
        cmocka_unit_test(d8_graphs_past_many_pages),
        cmocka_unit_test(nobody_is_pushed_aside_for_ever),
        cmocka_unit_test(ends_are_where_they_are_alone),
    };
    return cmocka_run_group_tests_name("test_cases_reuse", tests, setup, teardown);
}
