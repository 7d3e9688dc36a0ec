/*
 * bandwidth.h: how fast this machine reads memory: the floor of everything that
 * has to read its weights once. The same streaming read serves the machine
 * description and the scenario `kernels`, which reads its own weights with it.
 */
#ifndef FTI_BENCH_BANDWIDTH_H
#define FTI_BENCH_BANDWIDTH_H

#include "backend/cpu/pool.h"

/* Bytes of the last level of cache, all its instances together; 0: unknown. */
uint64_t fti_bench_cache_bytes(void);

/* A size that no cache holds: four times the last level, from 64 MiB to 1 GiB, and
 * at most a quarter of the memory that this process may still use. */
uint64_t fti_bench_stream_bytes(void);

/* Memory from the system, huge pages asked for, every page touched by the threads
 * of the pool, so that it is spread as their reads are. NULL: there is none. */
void *fti_bench_map(fti_pool *pool, uint64_t bytes);
void fti_bench_unmap(void *memory, uint64_t bytes);

/* Reads `bytes` (a multiple of 4096) once with all threads of the pool; seconds. */
double fti_bench_read(fti_pool *pool, const void *memory, uint64_t bytes);

typedef struct fti_bench_bandwidth {
    double one_thread;  /* bytes per second, the best of several passes */
    double all_threads; /* with as many threads as affinity and cgroup allow */
    uint32_t threads;
    uint64_t buffer_bytes;
} fti_bench_bandwidth;

/* Takes less than half a second. FTK_E_NO_MEMORY or FTK_E_DEVICE_UNAVAILABLE. */
ftk_status fti_bench_measure_bandwidth(fti_bench_bandwidth *out, ftk_error *err) FTI_WARN_UNUSED;

/* Of the system's clock (clock.h). */
double fti_bench_seconds(void);

#endif
