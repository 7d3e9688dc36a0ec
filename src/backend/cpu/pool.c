/*
 * pool.c: persistent worker threads and the fork-join protocol.
 *
 * A job is cut into chunks. `ticket` holds the job's number and how many of its chunks
 * nobody has taken; to take one is to lower it by compare and exchange. Who succeeds may
 * read the job: it stays as it is until all its chunks are done. A worker that comes too
 * late finds no chunk and has touched nothing, so one that sleeps through a job is never
 * waited for. Ticket and job share a line of cache: with the ticket a worker has them both.
 *
 * Between jobs workers spin for a while on the ticket, then sleep on a condition variable.
 */
#include "backend/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "core/fpenv.h"

#define SPIN_NANOSECONDS  100000 /* longer than what a step does on one thread at a stretch */
#define BRISK_SPINS       64u /* without a pause, which can take longer than what is waited for */
#define CHUNKS_PER_THREAD 8u
#define CACHE_LINE        64
#define CHUNK_BITS        20 /* of a ticket; the rest counts jobs */
#define CHUNK_MASK        ((UINT64_C(1) << CHUNK_BITS) - 1)

typedef struct job {
    ftk_cpu_kernel function;
    const void *args;
    uint64_t items;
    uint64_t chunk;  /* items of one */
    uint64_t chunks; /* at most CHUNK_MASK */
} job;

/* In lines of cache by who writes them while a job runs: who takes, who is done, nobody. */
struct fti_pool {
    _Alignas(CACHE_LINE) atomic_ullong ticket;
    job current;
    void *memory;                            /* that this lies in */
    _Alignas(CACHE_LINE) atomic_ullong done; /* chunks that workers have done */
    uint32_t threads;                        /* workers plus the caller */
    uint32_t started;
    pthread_t *workers;
    pthread_mutex_t turn; /* one caller at a time */
    _Alignas(CACHE_LINE) atomic_uint sleepers;
    atomic_bool stop;
    pthread_mutex_t sleep; /* guards the condition */
    pthread_cond_t wake;
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

/* Runs chunks until none is left; how many. */
static uint64_t take_chunks(fti_pool *pool) {
    const job *j = &pool->current;
    unsigned long long ticket = atomic_load_explicit(&pool->ticket, memory_order_relaxed);
    uint64_t taken = 0;
    while (ticket & CHUNK_MASK) {
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1,
                                                   memory_order_acquire, memory_order_relaxed))
            continue;
        uint64_t begin = (j->chunks - (ticket & CHUNK_MASK)) * j->chunk, left = j->items - begin;
        j->function(j->args, begin, begin + (left < j->chunk ? left : j->chunk));
        (void)fti_fpenv_enter(); /* a provider's kernel may have left another one */
        taken++;
        ticket = atomic_load_explicit(&pool->ticket, memory_order_relaxed);
    }
    return taken;
}

static bool news(fti_pool *pool) {
    return (atomic_load(&pool->ticket) & CHUNK_MASK) || atomic_load(&pool->stop);
}

static void wait_for_news(fti_pool *pool) {
    int64_t deadline = now() + SPIN_NANOSECONDS;
    while (now() < deadline) {
        for (int i = 0; i < 32; i++) {
            if (news(pool)) return;
            if (i % 4 == 3) relax();
        }
    }
    /* The caller reads `sleepers` after it has written the ticket, and this thread does the
     * opposite: one of the two sees the other. */
    pthread_mutex_lock(&pool->sleep);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!news(pool)) pthread_cond_wait(&pool->wake, &pool->sleep);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->sleep);
}

static void *worker(void *argument) {
    fti_pool *pool = argument;
    (void)fti_fpenv_enter();
    for (;;) {
        wait_for_news(pool);
        if (atomic_load(&pool->stop)) return NULL;
        uint64_t taken = take_chunks(pool);
        if (taken) atomic_fetch_add_explicit(&pool->done, taken, memory_order_release);
    }
}

static void wake_sleepers(fti_pool *pool) {
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->sleep);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->sleep);
}

static void wait_for_workers(fti_pool *pool, uint64_t chunks) {
    unsigned spins = 0;
    while (atomic_load_explicit(&pool->done, memory_order_acquire) != chunks) {
        /* With more threads than cores the worker may need this one. */
        if (++spins % 1024 == 0) sched_yield();
        if (spins > BRISK_SPINS) relax();
    }
}

static void run_parallel(fti_pool *pool, const job *j) {
    pthread_mutex_lock(&pool->turn);
    uint64_t number = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> CHUNK_BITS) + 1;
    pool->current = *j;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store(&pool->ticket, number << CHUNK_BITS | j->chunks);
    wake_sleepers(pool);
    wait_for_workers(pool, j->chunks - take_chunks(pool));
    pthread_mutex_unlock(&pool->turn);
}

uint64_t fti_pool_chunk(const fti_pool *pool, uint64_t items, uint64_t grain) {
    uint64_t pieces = (uint64_t)pool->threads * CHUNKS_PER_THREAD;
    uint64_t chunk = (items - 1) / pieces + 1;
    return (chunk + grain - 1) / grain * grain;
}

static void run_cut(fti_pool *pool, ftk_cpu_kernel function, const void *args, uint64_t items,
                    uint64_t chunk) {
    fti_fpenv saved = fti_fpenv_enter();
    if (pool->threads == 1 || items <= chunk) {
        function(args, 0, items);
    } else {
        job j = {function, args, items, chunk, (items - 1) / chunk + 1};
        run_parallel(pool, &j);
    }
    fti_fpenv_leave(saved);
}

void fti_pool_run(fti_pool *pool, ftk_cpu_kernel function, const void *args, uint64_t items,
                  uint64_t grain) {
    if (items > 0) run_cut(pool, function, args, items, fti_pool_chunk(pool, items, grain));
}

void fti_pool_run_each(fti_pool *pool, ftk_cpu_kernel function, const void *args, uint64_t items) {
    if (items > 0) run_cut(pool, function, args, items, 1);
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

/* The number of the n-th processor in a set, counted round. */
static size_t nth_processor(const cpu_set_t *set, uint32_t n) {
    uint32_t left = n % (uint32_t)CPU_COUNT(set);
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, set) && left-- == 0) return i;
    return 0;
}

uint32_t fti_pool_pin(fti_pool *pool) {
    cpu_set_t allowed, one;
    uint32_t pinned = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 0;
    for (uint32_t i = 0; i < pool->started; i++) {
        CPU_ZERO(&one);
        CPU_SET(nth_processor(&allowed, i + 1), &one);
        pinned += pthread_setaffinity_np(pool->workers[i], sizeof one, &one) == 0;
    }
    return pinned;
}

ftk_status fti_pool_create(uint32_t threads, fti_pool **out, ftk_error *err) {
    char *memory = fti_calloc(1, sizeof(fti_pool) + CACHE_LINE);
    if (!memory) return fti_no_memory(err, sizeof(fti_pool), "the thread pool");
    fti_pool *pool = (fti_pool *)(void *)(memory + CACHE_LINE - (uintptr_t)memory % CACHE_LINE);
    pool->memory = memory;
    pool->threads = threads ? threads : 1;
    pool->workers = fti_calloc(pool->threads, sizeof *pool->workers);
    if (!pool->workers) {
        fti_free(memory);
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
    fti_free(pool->memory);
}
