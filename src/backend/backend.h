/*
 * backend.h: the one interface between the engine and a kind of device: memory,
 * streams, events, graphs, the operators and the provider's own kernels. The
 * core drives it; providers see only the tables of provider.h that a backend
 * fills in. Implemented by cpu/ (and, as modules, cuda/ and hip/).
 *
 * Device addresses are plain pointers; only the backend that made them may
 * follow them. A stream runs its work in order. Work becomes visible to the
 * host, and to other streams through events, after stream_sync.
 */
#ifndef FTI_BACKEND_H
#define FTI_BACKEND_H

#include "backend/bank_pool.h"
#include "core/base.h"
#include "freetoken/device/quant.h"

typedef struct fti_backend fti_backend;
typedef struct fti_graph fti_graph;
typedef struct fti_event fti_event;

/* Of n elements of a cached vector; for Q8_0 a multiple of 32. */
static inline uint64_t fti_kv_bytes(uint32_t type, uint64_t n) {
    if (type == FTK_TYPE_Q8_0) return n / 32 * FTK_Q8_0_BYTES;
    return n * (type == FTK_TYPE_F32 ? 4 : 2);
}

/* Bits of the CPU backend's kernel mask. A masked capability is not reported either, so
 * that a provider's variants follow the same configuration. */
#define FTI_CPU_MASK_AVX2        1u
#define FTI_CPU_MASK_AVX512F     2u /* with BW, DQ and VL */
#define FTI_CPU_MASK_AVX512_VNNI 4u
#define FTI_CPU_MASK_NEON        8u

typedef struct fti_backend_options {
    uint32_t threads;     /* at most; 0, or more: as many as affinity and cgroup allow */
    uint32_t kernel_mask; /* variants that may be used; 0: reference only */
    bool float_numerics;  /* weights dequantised, f32 activations; verification only */
    bool pin;             /* each thread that the backend starts stays on one processor */
    bool interleave;      /* the pages of large blocks of memory go to all nodes in turn */
} fti_backend_options;

/* Where threads and memory are: what came of `pin` and `interleave`, and of the wish for huge
 * pages, which the system grants as it likes. */
typedef struct fti_placement {
    uint32_t pinned;         /* threads */
    uint32_t nodes;          /* of memory that the machine has */
    bool interleaved;        /* some block of memory is */
    uint64_t huge_allocated; /* bytes of this process in huge pages just now */
    uint64_t huge_mapped;    /* the same of files */
} fti_placement;

#define FTI_COUNTED_ROWS 1024u

/* What a stream has executed, eagerly or out of graphs: how a test knows that the
 * variant, the batch size or the graph that it names really ran. */
typedef struct fti_stream_counts {
    uint64_t reference; /* operators by the plain kernels */
    uint64_t vector;    /* operators by kernels of an instruction set */
    uint64_t avx512;    /* of those, by kernels for AVX-512 with VNNI */
    uint64_t provider;  /* kernels of the provider */
    uint64_t copies;    /* copies and clears */
    uint64_t replays;   /* graphs launched */
    uint64_t beside;    /* operators that ran at the same time as the one before them */
    /* Embeddings of n rows, of which a step has one; the last counts all larger ones. */
    uint64_t rows[FTI_COUNTED_ROWS + 1];
} fti_stream_counts;

typedef struct fti_backend_ops {
    const char *name; /* "cpu" */

    /* Value of a capability this backend reports ("cpu.avx2"); FTK_E_NOT_FOUND. */
    ftk_status (*capability)(const fti_backend *, ftk_str name, int64_t *value);
    /* The i-th capability's name, NULL past the end. */
    const char *(*capability_name)(const fti_backend *, size_t i);
    /* The i-th set of kernels that this build has for the operators, in the order in which
     * they are considered; NULL past the end. The first whose *reason is FTK_REASON_NONE is
     * in use; *lacks names the capability that the others want. */
    const char *(*operator_variant)(const fti_backend *, size_t i, uint32_t *reason,
                                    const char **lacks);
    /* Bytes that an engine may plan with. */
    uint64_t (*memory_available)(const fti_backend *);

    void (*placement)(const fti_backend *, fti_placement *out);

    /* Device memory, 64-byte aligned, zeroed. Accounted: see memory_used. */
    ftk_status (*alloc)(fti_backend *, uint64_t bytes, const char *what, void **out,
                        ftk_error *err);
    void (*release)(fti_backend *, void *memory, uint64_t bytes);
    uint64_t (*memory_used)(const fti_backend *);
    /* Views of the pool's banks are run through it from now on, until it is detached. */
    ftk_status (*bank_attach)(fti_backend *, fti_bank_pool *pool, ftk_error *err);
    void (*bank_detach)(fti_backend *, fti_bank_pool *pool);
    /* Makes mapped file bytes readable by operators without a copy, if the
     * backend can: then *out is the device address. FTK_E_UNSUPPORTED if it
     * must be copied. */
    ftk_status (*adopt)(fti_backend *, const void *mapped, uint64_t bytes, const void **out);

    ftk_status (*stream_create)(fti_backend *, ftk_stream **out, ftk_error *err);
    void (*stream_destroy)(ftk_stream *);
    /* Waits for everything on the stream; the first failure since the last sync, of which the
     * record says what it was where the backend knows. */
    ftk_status (*stream_sync)(ftk_stream *, ftk_error *err);
    /* Since the stream was made; after a sync all work put on it is counted. */
    void (*stream_counts)(const ftk_stream *, fti_stream_counts *out);

    /* Host memory to device and back, ordered on the stream. The host side must
     * stay valid until the work has run. */
    ftk_status (*upload)(ftk_stream *, void *device, const void *host, uint64_t bytes);
    ftk_status (*download)(ftk_stream *, void *host, const void *device, uint64_t bytes);
    ftk_status (*clear)(ftk_stream *, void *device, uint64_t bytes);
    /* From one place in device memory to another; they do not overlap. */
    ftk_status (*copy)(ftk_stream *, void *to, const void *from, uint64_t bytes);

    ftk_status (*event_create)(fti_backend *, fti_event **out, ftk_error *err);
    void (*event_destroy)(fti_event *);
    ftk_status (*event_record)(ftk_stream *, fti_event *);
    /* Later work of the stream runs after what the event recorded; an event never
     * recorded waits for nothing. A stream that waits for an event of a capturing
     * stream joins its capture. */
    ftk_status (*event_wait)(ftk_stream *, fti_event *);

    /* Between begin and end, work put on the stream is recorded, not run. end
     * fails, and leaves the stream usable, if something illegal was recorded or a
     * joined stream was not joined back (its work must be waited for by an event). */
    ftk_status (*capture_begin)(ftk_stream *);
    ftk_status (*capture_end)(ftk_stream *, fti_graph **out, ftk_error *err);
    ftk_status (*graph_launch)(ftk_stream *, fti_graph *);
    void (*graph_destroy)(fti_graph *);
    uint64_t (*graph_nodes)(const fti_graph *);

    void (*destroy)(fti_backend *);
} fti_backend_ops;

struct fti_backend {
    const fti_backend_ops *ops;
    const ftk_if_operators *operators;
    const ftk_if_kernels *kernels;
    /* What a provider's code objects must be built for to run on this device ("sm_90"), or
     * NULL where they are not a matter of the device. */
    const char *device_code;
};

/* Makes a backend. In a module (libfreetoken-cuda.so) it is exported under this name. */
typedef ftk_status (*fti_backend_create)(const fti_backend_options *options, fti_backend **out,
                                         ftk_error *err);
#define FTI_BACKEND_MODULE_ENTRY "fti_backend_module_create"

/* The built-in backend. */
ftk_status fti_cpu_backend_create(const fti_backend_options *options, fti_backend **out,
                                  ftk_error *err) FTI_WARN_UNUSED;

#endif
