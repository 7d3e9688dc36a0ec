/*
 * test_levels.c: the level machinery on a host of test-only level FTK_API_LEVEL (the build
 * makes hosts of levels 1, 2 and 3): which providers of other levels load, what an old one
 * gets in the slots that it does not have, and that a new one keeps to the size of an older
 * host's tables and structs.
 */
#include "loader/world.h"

#include <signal.h>

/* ---- which levels meet ---- */

static void allow_level(const char *name, const char *level, const char *min_host) {
    install(name);
    write_manifest_with(name, (override){"api_level", level},
                        (override){"min_host_level", min_host});
    config.allow_count = 0;
    allow(name);
    watched.calls = 0;
}

static const fti_provider *accept_level(const char *name, const char *level, const char *min_host,
                                        uint32_t effective) {
    allow_level(name, level, min_host);
    const fti_provider *p = resolve("testarch");
    assert_int_equal(p->effective_level, effective);
    assert_int_equal(runs_of(name), 1);
    return p;
}

static void refuse_level(const char *name, const char *level, const char *min_host) {
    allow_level(name, level, min_host);
    refuse_unloaded(FTK_E_PROVIDER_LEVEL, format("found api_level %s", level).s);
}

static void levels_meet(void **state) {
    (void)state;
    refuse_level("level_zero", "0", "0");
    if (FTK_MIN_PROVIDER_LEVEL > 1)
        refuse_level("level_old", "1", "1");
    else
        accept_level("level_old", "1", "1", 1);
}

static void newer_than_the_host_is_no_reason(void **state) {
    (void)state;
    accept_level("level_new", "2", "1", FTK_API_LEVEL < 2 ? 1 : 2);
}

static void unless_the_provider_needs_a_newer_host(void **state) {
    (void)state;
    if (FTK_API_LEVEL < 2)
        refuse_level("level_strict", "2", "2");
    else
        accept_level("level_strict", "2", "2", 2);
}

/* ---- an old provider ---- */

static void slots_that_it_lacks_answer(void **state) {
    (void)state;
    if (FTK_MIN_PROVIDER_LEVEL > 1) return; /* no such provider loads: see levels_meet */
    const ftk_provider *table = accept_level("level_old", "1", "1", 1)->table;
    assert_int_equal(table->struct_size, sizeof(ftk_provider));
    char message[64] = "";
    const ftk_chat_out chat = {
        .struct_size = sizeof chat, .message = message, .message_size = sizeof message};
    assert_int_equal(table->format_chat(NULL, NULL, &chat), FTK_E_UNSUPPORTED);
    assert_non_null(strstr(message, "no dialogues"));
    assert_int_equal(table->run(NULL, NULL), FTK_E_UNSUPPORTED); /* its own answer */
}

/* ---- a new provider on tables of this host's size ---- */

#define CANARY 0xA5

typedef struct arena {
    ftk_host host;
    int64_t (*beyond)(ftk_core_ctx *); /* where a younger host would have its next slot */
    unsigned char before[64];
    ftk_match_out out;
    unsigned char after[64];
} arena;

static int64_t never(ftk_core_ctx *ctx) {
    (void)ctx;
    abort();
}

static int64_t answer(ftk_core_ctx *ctx) {
    (void)ctx;
    return 42;
}

static arena new_arena(void) {
    arena a = {.host = {.struct_size = sizeof(ftk_host), .api_level = FTK_API_LEVEL},
               .beyond = never,
               .out = {.struct_size = sizeof(ftk_match_out)}};
    memset(a.before, CANARY, sizeof a.before);
    memset(a.after, CANARY, sizeof a.after);
    return a;
}

static bool canaries_live(const arena *a) {
    for (size_t i = 0; i < sizeof a->after; i++)
        if (a->before[i] != CANARY || a->after[i] != CANARY) return false;
    return true;
}

static ftk_status match_in(const fti_provider *p, arena *a) {
    const ftk_match_in in = {.struct_size = sizeof in};
    return p->table->match(&a->host, NULL, &in, &a->out);
}

static void writes_inside_the_callers_size(void **state) {
    (void)state;
    const fti_provider *p = accept_level("level_new", "2", "1", FTK_API_LEVEL < 2 ? 1 : 2);
    assert_int_equal(p->table->struct_size, sizeof(ftk_provider)); /* cut to what is known */
    arena a = new_arena();
    assert_int_equal(match_in(p, &a), FTK_OK);
    assert_int_equal(a.out.claimed, 1);
    assert_true(canaries_live(&a));
}

/* Where the other side has it, the younger part is used. */
static void uses_what_a_younger_host_has(void **state) {
    (void)state;
    const fti_provider *p = accept_level("level_new", "2", "1", FTK_API_LEVEL < 2 ? 1 : 2);
    arena a = new_arena();
    uint64_t score = 0;
    a.host.struct_size += (uint32_t)sizeof a.beyond;
    a.beyond = answer;
    a.out.struct_size += (uint32_t)sizeof score;
    assert_int_equal(match_in(p, &a), FTK_OK);
    memcpy(&score, a.after, sizeof score);
    assert_int_equal(score, 42);
    memset(a.after, CANARY, sizeof score);
    assert_true(canaries_live(&a));
}

/* That both traps work: a provider that does not ask falls into them. */
static void careless_providers_are_caught(void **state) {
    (void)state;
    const fti_provider *p = accept_level("level_careless", "2", "1", FTK_API_LEVEL < 2 ? 1 : 2);
    arena a = new_arena();
    a.beyond = answer;
    assert_int_equal(match_in(p, &a), FTK_OK);
    assert_false(canaries_live(&a));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        a.beyond = never;
        _exit(match_in(p, &a) == FTK_OK);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(levels_meet),
        CASE(newer_than_the_host_is_no_reason),
        CASE(unless_the_provider_needs_a_newer_host),
        CASE(slots_that_it_lacks_answer),
        CASE(writes_inside_the_callers_size),
        CASE(uses_what_a_younger_host_has),
        CASE(careless_providers_are_caught),
    };
    return cmocka_run_group_tests_name("test_levels", tests, NULL, NULL);
}
