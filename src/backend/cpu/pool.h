/*
 * pool.h: the threads that run kernels. One job at a time: a range of items, cut
 * into chunks that the caller and the workers take from a shared counter. Which
 * thread runs which chunk is left to chance, so a kernel's result for an item
 * may not depend on it.
 */
#ifndef FTI_CPU_POOL_H
#define FTI_CPU_POOL_H

#include "core/base.h"

typedef struct fti_pool fti_pool;

/* `threads` counts the caller of fti_pool_run; at least 1. */
ftk_status fti_pool_create(uint32_t threads, fti_pool **out, ftk_error *err) FTI_WARN_UNUSED;
/* No job may be running. NULL is allowed. */
void fti_pool_destroy(fti_pool *pool);
uint32_t fti_pool_threads(const fti_pool *pool);

/* Items in a chunk of a job of fti_pool_run. */
uint64_t fti_pool_chunk(const fti_pool *pool, uint64_t items, uint64_t grain);
/* The same as fti_pool_run for few large items: each is a chunk. */
void fti_pool_run_each(fti_pool *pool, ftk_cpu_kernel function, const void *args, uint64_t items);

/* Keeps every worker on one processor of those that the calling thread may use, leaving it
 * the first: it is the application's and is not touched. How many could be. */
uint32_t fti_pool_pin(fti_pool *pool);

/* Calls function(args, begin, end) on disjoint ranges that cover 0 .. items - 1
 * and returns when all have returned; their writes are then visible. Chunks are
 * multiples of `grain` items (the last one aside), so that small jobs stay on one thread.
 * Callers on several threads take turns. A kernel must not call it. */
void fti_pool_run(fti_pool *pool, ftk_cpu_kernel function, const void *args, uint64_t items,
                  uint64_t grain);

#endif
