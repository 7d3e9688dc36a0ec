/* test_pool.c: the thread pool: every item once, visible results, any load. */
#include "rig.h"

#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/pool.h"

static fti_pool *pool_new(uint32_t threads) {
    fti_pool *pool = NULL;
    ftk_error error = FTK_ERROR_INIT;
    assert_int_equal(fti_pool_create(threads, &pool, &error), FTK_OK);
    assert_int_equal(fti_pool_threads(pool), threads);
    return pool;
}

typedef struct tally {
    uint32_t *count; /* plain memory: each item belongs to one thread at a time */
    uint64_t items;
    uint64_t grain;
    atomic_ullong ranges;
    atomic_ullong cut_grains;
} tally;

static void count_items(const void *args, uint64_t begin, uint64_t end) {
    tally *t = *(tally *const *)args;
    atomic_fetch_add(&t->ranges, 1);
    bool whole = begin % t->grain == 0 && (end % t->grain == 0 || end == t->items);
    if (!whole) atomic_fetch_add(&t->cut_grains, 1);
    for (uint64_t i = begin; i < end; i++) t->count[i]++;
}

static void every_item_exactly_once(void **state) {
    (void)state;
    static const uint64_t sizes[] = {0, 1, 2, 3, 7, 8, 31, 32, 33, 1000, 65537};
    static const uint64_t grains[] = {1, 3, 100, 100000};
    for (uint32_t threads = 1; threads <= 4; threads++) {
        fti_pool *pool = pool_new(threads);
        for (size_t s = 0; s < COUNT(sizes); s++) {
            for (size_t g = 0; g < COUNT(grains); g++) {
                tally t = {.items = sizes[s], .grain = grains[g]};
                tally *args = &t;
                t.count = calloc(sizes[s] + 1, sizeof *t.count);
                fti_pool_run(pool, count_items, &args, sizes[s], grains[g]);
                for (uint64_t i = 0; i < sizes[s]; i++) assert_int_equal(t.count[i], 1);
                assert_int_equal(t.count[sizes[s]], 0);
                assert_int_equal(t.cut_grains, 0);
                if (sizes[s] > 0 && sizes[s] <= grains[g]) assert_int_equal(t.ranges, 1);
                free(t.count);
            }
        }
        fti_pool_destroy(pool);
    }
}

/* Neighbours' results of the previous job feed the next one: a lost or late
 * write would be seen. */
typedef struct chain {
    const uint64_t *from;
    uint64_t *to;
    uint64_t items;
} chain;

static void chain_step(const void *args, uint64_t begin, uint64_t end) {
    const chain *c = args;
    for (uint64_t i = begin; i < end; i++)
        c->to[i] = c->from[i] * 3 + c->from[(i * 7 + 1) % c->items];
}

static void results_are_visible_to_the_next_job(void **state) {
    (void)state;
    enum { ITEMS = 257, JOBS = 3000 };
    static uint64_t expected[2][ITEMS];
    for (int i = 0; i < ITEMS; i++) expected[0][i] = (uint64_t)i;
    for (int j = 0; j < JOBS; j++) {
        chain c = {expected[j % 2], expected[(j + 1) % 2], ITEMS};
        chain_step(&c, 0, ITEMS);
    }
    for (uint32_t threads = 1; threads <= 4; threads++) {
        fti_pool *pool = pool_new(threads);
        static uint64_t values[2][ITEMS];
        for (int i = 0; i < ITEMS; i++) values[0][i] = (uint64_t)i;
        for (int j = 0; j < JOBS; j++) {
            chain c = {values[j % 2], values[(j + 1) % 2], ITEMS};
            fti_pool_run(pool, chain_step, &c, ITEMS, 1);
            if (j % 500 == 0) usleep(300); /* long enough for the workers to sleep */
        }
        assert_memory_equal(values, expected, sizeof values);
        fti_pool_destroy(pool);
    }
}

typedef struct caller {
    fti_pool *pool;
    uint64_t seed;
    bool ok;
} caller;

static void *call_often(void *argument) {
    caller *c = argument;
    c->ok = true;
    for (int j = 0; j < 400; j++) {
        uint64_t items = 1 + rnd_below(&c->seed, 300);
        uint64_t grain = 1 + rnd_below(&c->seed, 4);
        tally t = {.items = items, .grain = grain, .count = calloc(items, sizeof(uint32_t))};
        tally *args = &t;
        fti_pool_run(c->pool, count_items, &args, items, grain);
        c->ok = c->ok && t.cut_grains == 0;
        for (uint64_t i = 0; i < items; i++) c->ok = c->ok && t.count[i] == 1;
        free(t.count);
        if (j % 50 == 0) usleep(100);
    }
    return NULL;
}

static void several_callers_take_turns(void **state) {
    (void)state;
    fti_pool *pool = pool_new(3);
    caller callers[3];
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++) {
        callers[i] = (caller){pool, i + 1, false};
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    }
    for (size_t i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_true(callers[i].ok);
    }
    fti_pool_destroy(pool);
}

static void sleep_items(const void *args, uint64_t begin, uint64_t end) {
    (void)args;
    usleep((unsigned)(20000 * (end - begin)));
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Sleeping costs no processor, so this holds on a busy machine too. */
static void workers_really_take_part(void **state) {
    (void)state;
    fti_pool *pool = pool_new(4);
    usleep(2000);
    double start = seconds();
    fti_pool_run(pool, sleep_items, NULL, 16, 1);
    double took = seconds() - start;
    if (took > 0.25) fail_msg("16 items of 20 ms took %.3f s on 4 threads", took);
    fti_pool_destroy(pool);
}

static void pools_come_and_go(void **state) {
    (void)state;
    for (int i = 0; i < 60; i++) {
        fti_pool *pool = pool_new(1 + (uint32_t)i % 4);
        tally t = {.items = 9, .grain = 1, .count = calloc(9, sizeof(uint32_t))};
        tally *args = &t;
        if (i % 3) fti_pool_run(pool, count_items, &args, 9, 1);
        fti_pool_destroy(pool);
        for (int k = 0; k < 9; k++) assert_int_equal(t.count[k], i % 3 ? 1 : 0);
        free(t.count);
    }
    fti_pool_destroy(NULL);
}

static void round_upward(const void *args, uint64_t begin, uint64_t end) {
    (void)args;
    (void)begin;
    (void)end;
    fesetround(FE_UPWARD);
    usleep(2000); /* so that every thread has some */
}

static bool rounds_to_nearest(void) {
    volatile float one = 1.0f, little = 0x1p-30f;
    return one + little == one;
}

static void count_odd_rounding(const void *args, uint64_t begin, uint64_t end) {
    (void)begin;
    (void)end;
    if (!rounds_to_nearest()) atomic_fetch_add(*(atomic_int *const *)args, 1);
    usleep(2000);
}

/* A provider's kernel is held to nothing: what it leaves behind meets no other. */
static void modes_of_a_kernel_end_with_it(void **state) {
    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads += 2) {
        fti_pool *pool = pool_new(threads);
        atomic_int odd = 0, *counter = &odd;
        fti_pool_run(pool, round_upward, NULL, 24, 1);
        fti_pool_run(pool, count_odd_rounding, &counter, 24, 1);
        assert_int_equal(odd, 0);
        assert_true(rounds_to_nearest());
        fesetround(FE_TONEAREST); /* of the x87 unit, which nothing here uses */
        fti_pool_destroy(pool);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modes_of_a_kernel_end_with_it),
        cmocka_unit_test(every_item_exactly_once),
        cmocka_unit_test(results_are_visible_to_the_next_job),
        cmocka_unit_test(several_callers_take_turns),
        cmocka_unit_test(workers_really_take_part),
        cmocka_unit_test(pools_come_and_go),
    };
    return cmocka_run_group_tests_name("test_pool", tests, NULL, NULL);
}
