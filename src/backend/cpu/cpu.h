/*
 * cpu.h: the CPU backend's own pieces, as its files see each other: the backend,
 * and commands, the unit of work that a stream runs or a capture records.
 *
 * Streams run eagerly: when a call that enqueues returns, the work is done. That
 * is a legal way to run in order, and makes sync and events of plain streams
 * trivial; only captures give events something to do.
 */
#ifndef FTI_CPU_CPU_H
#define FTI_CPU_CPU_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/pool.h"

#define FTI_CPU_MAX_BANKS 64u

typedef struct fti_cpu_backend {
    fti_backend base; /* first: the address of both is the same */
    fti_pool *pool;
    fti_cpu_kernels kernels; /* the reference, overridden by what may be used */
    uint32_t kernel_mask;
    bool float_numerics;
    uint32_t pinned;    /* threads */
    uint64_t spread;    /* nodes that large blocks are spread over, a bit each; 0: are not */
    atomic_bool placed; /* that the system did so once */
    atomic_ullong memory_used;
    fti_bank_pool *banks[FTI_CPU_MAX_BANKS];
    uint32_t bank_count;
} fti_cpu_backend;

/* ---- backend.c ---- */

/* Adds one execution of a kernel to what a stream has done. */
void fti_cpu_count(fti_stream_counts *counts, ftk_cpu_kernel function, uint64_t items);

/* ---- stream.c ---- */

fti_cpu_backend *fti_cpu_stream_backend(ftk_stream *stream);

/* Runs function(args, ...) over `items`, or records it while the stream captures;
 * args_bytes (at most FTK_KERNEL_ARGS_MAX) of args are copied. Items are not
 * split inside a multiple of `grain`. Zero items are nothing. */
ftk_status fti_cpu_enqueue(ftk_stream *stream, ftk_cpu_kernel function, const void *args,
                           size_t args_bytes, uint64_t items, uint64_t grain);

/* What a matrix product writes, and what it reads that another operator may write. */
typedef struct fti_cpu_span {
    const void *begin;
    uint64_t bytes;
} fti_cpu_span;
typedef struct fti_cpu_reach {
    fti_cpu_span output;
    fti_cpu_span input[3];
} fti_cpu_reach;

/* The same for a product. In a graph, those that follow each other and touch nothing of each
 * other's run at the same time: the threads wait for each other once for all of them. */
ftk_status fti_cpu_enqueue_product(ftk_stream *stream, ftk_cpu_kernel function, const void *args,
                                   size_t args_bytes, uint64_t items, uint64_t grain,
                                   const fti_cpu_reach *reach);

/* A kernel that work of the stream runs by itself. */
void fti_cpu_stream_count(ftk_stream *stream, ftk_cpu_kernel function, uint64_t items);

/* Work on the stream has failed: the first such failure is kept for the next sync, and what
 * depends on it may leave out its part. */
void fti_cpu_stream_fail(ftk_stream *stream, const ftk_error *failure);
bool fti_cpu_stream_failed(const ftk_stream *stream);

/* Answers a refused call: FTK_E_ARGUMENT; a capture in progress becomes invalid. */
ftk_status fti_cpu_refuse(ftk_stream *stream);

ftk_status fti_cpu_stream_create(fti_backend *backend, ftk_stream **out, ftk_error *err);
void fti_cpu_stream_destroy(ftk_stream *stream);
ftk_status fti_cpu_stream_sync(ftk_stream *stream, ftk_error *err);
void fti_cpu_stream_counts(const ftk_stream *stream, fti_stream_counts *out);
ftk_status fti_cpu_copy(ftk_stream *stream, void *to, const void *from, uint64_t bytes);
ftk_status fti_cpu_clear(ftk_stream *stream, void *to, uint64_t bytes);
ftk_status fti_cpu_event_create(fti_backend *backend, fti_event **out, ftk_error *err);
void fti_cpu_event_destroy(fti_event *event);
ftk_status fti_cpu_event_record(ftk_stream *stream, fti_event *event);
ftk_status fti_cpu_event_wait(ftk_stream *stream, fti_event *event);
ftk_status fti_cpu_capture_begin(ftk_stream *stream);
ftk_status fti_cpu_capture_end(ftk_stream *stream, fti_graph **out, ftk_error *err);
ftk_status fti_cpu_graph_launch(ftk_stream *stream, fti_graph *graph);
void fti_cpu_graph_destroy(fti_graph *graph);
uint64_t fti_cpu_graph_nodes(const fti_graph *graph);

/* ---- scale.c ---- */

void fti_cpu_scale(const void *args, uint64_t begin, uint64_t end); /* ftk_op_scale; item: row */

/* ---- slots.c ---- */

ftk_status fti_cpu_bank_attach(fti_backend *backend, fti_bank_pool *pool, ftk_error *err);
void fti_cpu_bank_detach(fti_backend *backend, fti_bank_pool *pool);
/* `offsets` are read when the work runs. */
ftk_status fti_cpu_enqueue_ensure(ftk_stream *stream, const ftk_bank_view *view,
                                  const int32_t *offsets);
/* The product with the experts as they come; product->expert.data is slot 0. */
ftk_status fti_cpu_enqueue_slots(ftk_stream *stream, const ftk_bank_view *view,
                                 const fti_cpu_grouped *product, uint64_t grain);
/* Commands of one item, which run on the stream's thread and use the pool themselves. */
void fti_cpu_ensure(const void *args, uint64_t begin, uint64_t end);
void fti_cpu_multiply_slots(const void *args, uint64_t begin, uint64_t end);

/* ---- operators.c ---- */

extern const ftk_if_operators fti_cpu_operators;
extern const ftk_if_kernels fti_cpu_launcher;

/* ---- system.c: what the machine, the affinity mask and the cgroup grant ---- */

uint32_t fti_cpu_threads_allowed(void);
/* How many threads run where `asked` are asked for, 0 leaving the choice: never more than
 * allowed, since those beyond would only wait for each other. */
uint32_t fti_cpu_threads_granted(uint32_t asked);
/* The nodes that have memory, a bit each, of the first 64; 1 where the system names none. */
uint64_t fti_cpu_memory_nodes(void);
/* Pages of `memory` go to `nodes` in turn as they are first written; whether the system agrees. */
bool fti_cpu_interleave(void *memory, size_t bytes, uint64_t nodes);
/* Bytes of this process that lie in huge pages, of its own memory and of files. */
void fti_cpu_huge_pages(uint64_t *allocated, uint64_t *mapped);
uint64_t fti_cpu_memory_available(void);
/* What cgroups grant at most: thousandths of a processor, and bytes; UINT64_MAX: no
 * limit, though version 1 states one beyond all memory instead. */
uint64_t fti_cpu_quota(void);
uint64_t fti_cpu_memory_limit(void);
/* FTI_CPU_MASK_ bits of the features this CPU has. */
uint32_t fti_cpu_features(void);

#endif
