/*
 * test_allocation.c: once a request is under way, its steps allocate nothing: not
 * through the library's functions, not in the backend, and not in any library below,
 * for which this program counts calls of the C allocator itself.
 */
#include "support/engine_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/base.h"
#include "support/counts.h"

static atomic_ullong c_allocations;

/* Sanitizers bring their own allocator, which this one would replace. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OWN_ALLOCATOR 1
#endif
#endif
#if !FIXTURE_SLOW_BUILD && !defined(OWN_ALLOCATOR) && defined(__GLIBC__)
#define COUNTS_C_ALLOCATOR 1
/* To other libraries, whose calls then come here. */
#define VISIBLE __attribute__((visibility("default")))

/* The names are the C library's. NOLINTBEGIN(bugprone-reserved-identifier) */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
/* NOLINTEND(bugprone-reserved-identifier) */

VISIBLE void *malloc(size_t size) {
    atomic_fetch_add(&c_allocations, 1);
    return __libc_malloc(size);
}

VISIBLE void *calloc(size_t count, size_t size) {
    atomic_fetch_add(&c_allocations, 1);
    return __libc_calloc(count, size);
}

VISIBLE void *realloc(void *old, size_t size) {
    atomic_fetch_add(&c_allocations, 1);
    return __libc_realloc(old, size);
}

VISIBLE int posix_memalign(void **out, size_t alignment, size_t size) {
    atomic_fetch_add(&c_allocations, 1);
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : 12; /* ENOMEM */
}

VISIBLE void *aligned_alloc(size_t alignment, size_t size) {
    atomic_fetch_add(&c_allocations, 1);
    return __libc_memalign(alignment, size);
}
#else
#define COUNTS_C_ALLOCATOR 0
#endif

/* Allocations at each call of a callback of the library. */
#define MAX_MARKS 256u
typedef struct marks {
    uint64_t library[MAX_MARKS];
    uint64_t c[MAX_MARKS];
    size_t count;
} marks;

static int mark(marks *m) {
    assert_true(m->count < MAX_MARKS);
    m->library[m->count] = fti_allocation_count();
    m->c[m->count++] = atomic_load(&c_allocations);
    return 0;
}

static int mark_token(void *user, int32_t id, const char *text, size_t size) {
    (void)id;
    (void)text;
    (void)size;
    return mark(user);
}

static int mark_logits(void *user, size_t position, const float *logits, const float *layers) {
    (void)position;
    (void)logits;
    (void)layers;
    return mark(user);
}

/* Nothing was allocated between the first callback and the last. */
static void expect_steady(const marks *m, const char *what) {
    for (size_t i = 1; i < m->count; i++) {
        if (m->library[i] != m->library[0] || m->c[i] != m->c[0])
            fail_msg("%s: before callback %zu, %llu allocations of the library and %llu of others",
                     what, i, (unsigned long long)(m->library[i] - m->library[i - 1]),
                     (unsigned long long)(m->c[i] - m->c[i - 1]));
    }
}

static const int32_t story[] = {3885, 647, 258, 550, 456, 309, 258, 457, 759, 440};

static void check_generation(ftk_engine *engine, const ftk_sampling *s, const char *what) {
    marks m = {.count = 0};
    ftk_error error = FTK_ERROR_INIT;
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    options.max_tokens = FIXTURE_SLOW_BUILD ? 8 : 100; /* past a page of keys and values */
    options.ignore_end = 1;
    options.sampling = *s;
    options.on_token = mark_token;
    options.user = &m;
    if (ftk_generate(engine, story, FTI_COUNT(story), &options, NULL, &error) != FTK_OK)
        fail_msg("%s", error.message);
    assert_int_equal(m.count, options.max_tokens);
    expect_steady(&m, what);
}

static void check_engine(const char *graphs, const char *threads) {
    const char *const settings[] = {"backend.graphs", graphs, "backend.threads", threads, NULL};
    ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
    ftk_sampling greedy = FTK_SAMPLING_INIT, drawn = FTK_SAMPLING_INIT;
    drawn.temperature = 0.9f;
    drawn.top_k = 50;
    drawn.top_p = 0.95f;
    drawn.min_p = 0.01f;
    fti_stream_counts before = counts_now(engine);
    check_generation(engine, &greedy, "greedy");
    check_generation(engine, &drawn, "sampled");
    uint64_t replays = counts_now(engine).replays - before.replays;
    assert_int_equal(replays > 0, strcmp(graphs, "on") == 0);
    ftk_engine_close(engine);
}

static void decode_steps_of_a_graph(void **state) {
    (void)state;
    check_engine("on", "2");
}

static void eager_decode_steps(void **state) {
    (void)state;
    check_engine("off", "1");
    check_engine("off", "2");
}

static void evaluation_steps(void **state) {
    (void)state;
    int32_t ids[60];
    marks m = {.count = 0};
    ftk_error error = FTK_ERROR_INIT;
    ftk_evaluate_options options = FTK_EVALUATE_OPTIONS_INIT;
    for (int32_t i = 0; i < 60; i++) ids[i] = 300 + i;
    options.chunk = 7;
    options.on_logits = mark_logits;
    options.user = &m;
    ftk_engine *engine = fixture_open(DEMO_MODEL, NULL);
    if (ftk_evaluate(engine, ids, FTI_COUNT(ids), &options, &error) != FTK_OK)
        fail_msg("%s", error.message);
    assert_int_equal(m.count, FTI_COUNT(ids));
    expect_steady(&m, "evaluation");
    ftk_engine_close(engine);
}

/* Opening allocates in every way that is counted. */
static void counters_count(void **state) {
    (void)state;
    uint64_t library = fti_allocation_count(), c = atomic_load(&c_allocations);
    void *volatile foreign = malloc(10);
    free(foreign);
    if (COUNTS_C_ALLOCATOR) {
        assert_int_equal(atomic_load(&c_allocations), c + 1);
    } else {
        print_message("skip: with a sanitizer's allocator only the library's own are counted\n");
    }
    ftk_engine *engine = fixture_open(DEMO_MODEL, NULL);
    void *memory = NULL;
    assert_true(fti_allocation_count() > library);
    library = fti_allocation_count();
    assert_int_equal(engine->backend->ops->alloc(engine->backend, 64, "a block", &memory, NULL), 0);
    assert_int_equal(fti_allocation_count(), library + 1);
    engine->backend->ops->release(engine->backend, memory, 64);
    ftk_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_count),
        cmocka_unit_test(decode_steps_of_a_graph),
        cmocka_unit_test(eager_decode_steps),
        cmocka_unit_test(evaluation_steps),
    };
    return cmocka_run_group_tests_name("test_allocation", tests, NULL, NULL);
}
