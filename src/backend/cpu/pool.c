/*
 * pool.c: persistent worker threads and the fork-join protocol.
 *
 * `state` holds an OPEN bit and the number of workers inside the job. A worker
 * enters by adding 1; if the job was not open it leaves again. The caller closes
 * the job once the counter is used up and waits for the number to become 0. So a
 * worker that sleeps through a job is never waited for, and the job's fields
 * change only while nobody reads them: who adds 1 to a closed job reads nothing.
 *
 * Between jobs workers spin for a short while on `generation`, then sleep on a
 * condition variable.
 */
#include "backend/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "core/fpenv.h"

#define OPEN              0x80000000u
#define SPIN_NANOSECONDS  20000
#define CHUNKS_PER_THREAD 8u
#define CACHE_LINE        64

typedef struct job {
    ftk_cpu_kernel function;
    const void *args;
    uint64_t items;
    uint64_t chunk;
} job;

struct fti_pool {
    job current;
    uint32_t threads; /* workers plus the caller */
    uint32_t started;
    pthread_t *workers;
    pthread_mutex_t turn;  /* one caller at a time */
    pthread_mutex_t sleep; /* guards the condition */
    pthread_cond_t wake;
    char pad0[CACHE_LINE];
    atomic_uint generation; /* counts jobs */
    atomic_uint sleepers;
    atomic_bool stop;
    char pad1[CACHE_LINE];
    atomic_uint state;
    char pad2[CACHE_LINE];
    atomic_ullong next; /* first item that nobody has taken */
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void take_chunks(fti_pool *pool) {
    const job *j = &pool->current;
    for (;;) {
        uint64_t begin = atomic_fetch_add_explicit(&pool->next, j->chunk, memory_order_relaxed);
        if (begin >= j->items) return;
        uint64_t left = j->items - begin;
        j->function(j->args, begin, begin + (left < j->chunk ? left : j->chunk));
        (void)fti_fpenv_enter(); /* a provider's kernel may have left another one */
    }
}

static void join_job(fti_pool *pool) {
    if (atomic_fetch_add(&pool->state, 1) & OPEN) take_chunks(pool);
    atomic_fetch_sub(&pool->state, 1);
}

static bool news(fti_pool *pool, unsigned seen) {
    return atomic_load(&pool->generation) != seen || atomic_load(&pool->stop);
}

static void wait_for_news(fti_pool *pool, unsigned seen) {
    int64_t deadline = now() + SPIN_NANOSECONDS;
    while (now() < deadline) {
        for (int i = 0; i < 32; i++) {
            if (news(pool, seen)) return;
            relax();
        }
    }
    /* The caller reads `sleepers` after it has raised `generation`, and this
     * thread does the opposite: one of the two sees the other. */
    pthread_mutex_lock(&pool->sleep);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!news(pool, seen)) pthread_cond_wait(&pool->wake, &pool->sleep);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->sleep);
}

static void *worker(void *argument) {
    fti_pool *pool = argument;
    unsigned seen = 0;
    (void)fti_fpenv_enter();
    for (;;) {
        wait_for_news(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        seen = atomic_load(&pool->generation);
        join_job(pool);
    }
}

static void wake_sleepers(fti_pool *pool) {
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->sleep);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->sleep);
}

static void wait_for_workers(fti_pool *pool) {
    unsigned spins = 0;
    while (atomic_load(&pool->state) != 0) {
        /* With more threads than cores the worker may need this one. */
        if (++spins % 1024 == 0) sched_yield();
        relax();
    }
}

static void run_parallel(fti_pool *pool, const job *j) {
    pthread_mutex_lock(&pool->turn);
    pool->current = *j;
    atomic_store(&pool->next, 0);
    atomic_fetch_or(&pool->state, OPEN);
    atomic_fetch_add(&pool->generation, 1);
    wake_sleepers(pool);
    take_chunks(pool);
    atomic_fetch_and(&pool->state, ~OPEN);
    wait_for_workers(pool);
    pthread_mutex_unlock(&pool->turn);
}

void fti_pool_run(fti_pool *pool, ftk_cpu_kernel function, const void *args, uint64_t items,
                  uint64_t grain) {
    if (items == 0) return;
    uint64_t pieces = (uint64_t)pool->threads * CHUNKS_PER_THREAD;
    uint64_t chunk = (items - 1) / pieces + 1;
    chunk = (chunk + grain - 1) / grain * grain;
    fti_fpenv saved = fti_fpenv_enter();
    if (pool->threads == 1 || items <= chunk) {
        function(args, 0, items);
    } else {
        job j = {function, args, items, chunk};
        run_parallel(pool, &j);
    }
    fti_fpenv_leave(saved);
}

uint32_t fti_pool_threads(const fti_pool *pool) {
    return pool->threads;
}

static ftk_status start_workers(fti_pool *pool, ftk_error *err) {
    sigset_t all;
    sigset_t old;
    int failed = 0;
    /* The application's signals are for its own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (pool->started < pool->threads - 1 && !failed) {
        failed = pthread_create(&pool->workers[pool->started], NULL, worker, pool);
        if (!failed) pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!failed) return FTK_OK;
    return fti_fail(err, FTK_E_DEVICE_UNAVAILABLE,
                    "cpu backend: the system refused thread %u of %u (%s); set backend.threads "
                    "lower or raise the limit of processes",
                    pool->started + 2, pool->threads, strerror(failed));
}

ftk_status fti_pool_create(uint32_t threads, fti_pool **out, ftk_error *err) {
    fti_pool *pool = fti_calloc(1, sizeof *pool);
    if (!pool) return fti_no_memory(err, sizeof *pool, "the thread pool");
    pool->threads = threads ? threads : 1;
    pool->workers = fti_calloc(pool->threads, sizeof *pool->workers);
    if (!pool->workers) {
        fti_free(pool);
        return fti_no_memory(err, threads * sizeof *pool->workers, "the thread pool");
    }
    pthread_mutex_init(&pool->turn, NULL);
    pthread_mutex_init(&pool->sleep, NULL);
    pthread_cond_init(&pool->wake, NULL);
    ftk_status status = start_workers(pool, err);
    if (status != FTK_OK) {
        fti_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return FTK_OK;
}

void fti_pool_destroy(fti_pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->sleep);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->sleep);
    for (uint32_t i = 0; i < pool->started; i++) pthread_join(pool->workers[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->sleep);
    pthread_mutex_destroy(&pool->turn);
    fti_free(pool->workers);
    fti_free(pool);
}
