/* bandwidth.c: streaming reads of memory, and how much memory makes one. */
#include "bandwidth.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "clock.h"

#define PAGE         4096u
#define LEAST_BYTES  (UINT64_C(64) << 20)
#define MOST_BYTES   (UINT64_C(1) << 30)
#define MIN_PASSES   3u
#define PASS_SECONDS 0.12 /* for each number of threads */
#define MAX_LEVELS   8u
#define LIST_MAX     256u

double fti_bench_seconds(void) {
    return 1e-9 * (double)fti_bench_now(&fti_bench_system_clock);
}

/* ---- the last level of cache ---- */

/* The first line of a file below a processor's cache folder; "" if there is none. */
static const char *cache_line(long cpu, unsigned index, const char *name, char line[LIST_MAX]) {
    char path[128];
    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%ld/cache/index%u/%s", cpu, index,
                   name);
    FILE *file = fopen(path, "re");
    line[0] = 0;
    if (!file) return line;
    if (!fgets(line, LIST_MAX, file)) line[0] = 0;
    (void)fclose(file);
    line[strcspn(line, "\n")] = 0;
    return line;
}

static uint64_t size_of_text(const char *text) {
    char *unit;
    uint64_t size = strtoull(text, &unit, 10);
    if (*unit == 'K') size <<= 10;
    if (*unit == 'M') size <<= 20;
    return size;
}

/* Index of the highest level that a processor has; MAX_LEVELS: none. */
static unsigned last_level(long cpu) {
    char line[LIST_MAX];
    unsigned best = MAX_LEVELS;
    long level = 0;
    for (unsigned i = 0; i < MAX_LEVELS; i++) {
        long own = strtol(cache_line(cpu, i, "level", line), NULL, 10);
        if (own <= level) continue;
        level = own;
        best = i;
    }
    return best;
}

/* An instance is counted at the first of the processors that share it. */
uint64_t fti_bench_cache_bytes(void) {
    char line[LIST_MAX];
    uint64_t bytes = 0;
    long count = sysconf(_SC_NPROCESSORS_CONF);
    for (long cpu = 0; cpu < count; cpu++) {
        unsigned index = last_level(cpu);
        if (index == MAX_LEVELS) continue;
        long first = strtol(cache_line(cpu, index, "shared_cpu_list", line), NULL, 10);
        if (first == cpu) bytes += size_of_text(cache_line(cpu, index, "size", line));
    }
    return bytes;
}

uint64_t fti_bench_stream_bytes(void) {
    uint64_t bytes = 4 * fti_bench_cache_bytes();
    uint64_t quarter = fti_cpu_memory_available() / 4;
    if (bytes < LEAST_BYTES) bytes = LEAST_BYTES;
    if (bytes > MOST_BYTES) bytes = MOST_BYTES;
    if (bytes > quarter) bytes = quarter;
    return bytes / PAGE * PAGE + (bytes < PAGE ? PAGE : 0);
}

/* ---- memory ---- */

static void touch(const void *args, uint64_t begin, uint64_t end) {
    uint8_t *const *memory = args;
    for (uint64_t page = begin; page < end; page++)
        memset(*memory + page * PAGE, (int)(page & 0x7F), PAGE);
}

void *fti_bench_map(fti_pool *pool, uint64_t bytes) {
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                        -1, 0);
    if (memory == MAP_FAILED) return NULL;
    (void)madvise(memory, (size_t)bytes, MADV_HUGEPAGE); /* as the backend does */
    fti_pool_run(pool, touch, &memory, bytes / PAGE, 1);
    return memory;
}

void fti_bench_unmap(void *memory, uint64_t bytes) {
    if (memory) (void)munmap(memory, (size_t)bytes);
}

/* ---- reading ---- */

typedef struct stream {
    const uint8_t *memory;
    atomic_ullong *sum; /* keeps the reads from being optimised away */
} stream;

/* Vectors of the compiler: one load each wherever the machine has 16 bytes. */
typedef uint64_t lane __attribute__((vector_size(16), aligned(16), may_alias));

enum { LANES = 8, PAGE_VECTORS = PAGE / sizeof(lane) };

static void read_pages(const void *args, uint64_t begin, uint64_t end) {
    const stream *s = args;
    lane sums[LANES] = {{0}};
    for (uint64_t page = begin; page < end; page++) {
        const lane *at = (const lane *)(const void *)(s->memory + page * PAGE);
        for (size_t i = 0; i < PAGE_VECTORS; i += LANES)
            for (size_t k = 0; k < LANES; k++) sums[k] += at[i + k];
    }
    unsigned long long total = 0;
    for (size_t k = 0; k < LANES; k++) total += sums[k][0] + sums[k][1];
    atomic_fetch_add_explicit(s->sum, total, memory_order_relaxed);
}

double fti_bench_read(fti_pool *pool, const void *memory, uint64_t bytes) {
    atomic_ullong sum = 0;
    const stream s = {memory, &sum};
    double start = fti_bench_seconds();
    fti_pool_run(pool, read_pages, &s, bytes / PAGE, 1);
    return fti_bench_seconds() - start;
}

static double best_rate(fti_pool *pool, const void *memory, uint64_t bytes) {
    double start = fti_bench_seconds();
    double best = 0.0;
    for (unsigned i = 0; i < MIN_PASSES || fti_bench_seconds() - start < PASS_SECONDS; i++) {
        double seconds = fti_bench_read(pool, memory, bytes);
        if (seconds > 0.0 && (double)bytes / seconds > best) best = (double)bytes / seconds;
    }
    return best;
}

static ftk_status measure(fti_pool *one, fti_pool *all, fti_bench_bandwidth *out, ftk_error *err) {
    uint64_t bytes = fti_bench_stream_bytes();
    void *memory = fti_bench_map(all, bytes);
    if (!memory) return fti_no_memory(err, bytes, "measuring the read bandwidth");
    *out = (fti_bench_bandwidth){best_rate(one, memory, bytes), best_rate(all, memory, bytes),
                                 fti_pool_threads(all), bytes};
    fti_bench_unmap(memory, bytes);
    return FTK_OK;
}

ftk_status fti_bench_measure_bandwidth(fti_bench_bandwidth *out, ftk_error *err) {
    fti_pool *one = NULL;
    fti_pool *all = NULL;
    ftk_status status = fti_pool_create(1, &one, err);
    if (status == FTK_OK) status = fti_pool_create(fti_cpu_threads_allowed(), &all, err);
    if (status == FTK_OK) status = measure(one, all, out, err);
    fti_pool_destroy(all);
    fti_pool_destroy(one);
    return status;
}
