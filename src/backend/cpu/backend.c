/*
 * backend.c: creation of the CPU backend, its capabilities and its memory.
 */
#include "backend/cpu/cpu.h"

#include <stdlib.h>
#include <sys/mman.h>

#define ALIGNMENT 64u
#define MAP_FROM  (1024u * 1024u) /* larger blocks come from the system, zeroed */

static fti_cpu_backend *cpu(fti_backend *backend) {
    return (fti_cpu_backend *)(void *)backend;
}

static const fti_cpu_backend *cpu_const(const fti_backend *backend) {
    return (const fti_cpu_backend *)(const void *)backend;
}

/* ---- capabilities ---- */

static const struct {
    const char *name;
    uint32_t bit;
} feature_names[] = {
    {"cpu.avx2", FTI_CPU_MASK_AVX2},
    {"cpu.avx512f", FTI_CPU_MASK_AVX512F},
    {"cpu.avx512_vnni", FTI_CPU_MASK_AVX512_VNNI},
    {"cpu.neon_dotprod", FTI_CPU_MASK_NEON},
};

static const char *capability_name(const fti_backend *backend, size_t i) {
    uint32_t usable = fti_cpu_features() & cpu_const(backend)->kernel_mask;
    if (i == 0) return "cpu.threads";
    for (size_t f = 0; f < FTI_COUNT(feature_names); f++)
        if ((usable & feature_names[f].bit) && --i == 0) return feature_names[f].name;
    return NULL;
}

static ftk_status capability(const fti_backend *backend, ftk_str name, int64_t *value) {
    const char *known;
    for (size_t i = 0; (known = capability_name(backend, i)) != NULL; i++) {
        if (!fti_str_is(name, known)) continue;
        *value = i == 0 ? (int64_t)fti_pool_threads(cpu_const(backend)->pool) : 1;
        return FTK_OK;
    }
    return FTK_E_NOT_FOUND;
}

/* ---- memory ---- */

static uint64_t memory_available(const fti_backend *backend) {
    (void)backend;
    return fti_cpu_memory_available();
}

static void placement(const fti_backend *backend, fti_placement *out) {
    const fti_cpu_backend *b = cpu_const(backend);
    *out = (fti_placement){.pinned = b->pinned, .interleaved = atomic_load(&b->placed)};
    for (uint64_t nodes = fti_cpu_memory_nodes(); nodes; nodes &= nodes - 1) out->nodes++;
    fti_cpu_huge_pages(&out->huge_allocated, &out->huge_mapped);
}

static void *map_memory(fti_cpu_backend *backend, size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE); /* a wish; without it only slower */
    if (backend->spread && fti_cpu_interleave(memory, bytes, backend->spread))
        atomic_store(&backend->placed, true);
    return memory;
}

static void *small_memory(size_t bytes) {
    void *memory = NULL;
    size_t size = bytes ? bytes : 1;
    if (posix_memalign(&memory, ALIGNMENT, size)) return NULL;
    return memset(memory, 0, size);
}

static ftk_status alloc(fti_backend *backend, uint64_t bytes, const char *what, void **out,
                        ftk_error *err) {
    if (bytes > PTRDIFF_MAX) return fti_no_memory(err, bytes, what);
    fti_count_allocation();
    void *memory = bytes >= MAP_FROM ? map_memory(cpu(backend), (size_t)bytes)
                                     : small_memory((size_t)bytes);
    if (!memory) return fti_no_memory(err, bytes, what);
    atomic_fetch_add(&cpu(backend)->memory_used, bytes);
    *out = memory;
    return FTK_OK;
}

static void release(fti_backend *backend, void *memory, uint64_t bytes) {
    if (!memory) return;
    if (bytes >= MAP_FROM) {
        munmap(memory, (size_t)bytes);
    } else {
        free(memory);
    }
    atomic_fetch_sub(&cpu(backend)->memory_used, bytes);
}

static uint64_t memory_used(const fti_backend *backend) {
    return atomic_load(&cpu_const(backend)->memory_used);
}

static ftk_status adopt(fti_backend *backend, const void *mapped, uint64_t bytes,
                        const void **out) {
    (void)backend;
    (void)bytes;
    *out = mapped;
    return FTK_OK;
}

/* ---- creation ---- */

static void destroy(fti_backend *backend) {
    if (!backend) return;
    fti_pool_destroy(cpu(backend)->pool);
    fti_free(backend);
}

/* By the address that ran, so that no bookkeeping of choices can hide another one. */
static bool in_table(const fti_cpu_kernels *table, ftk_cpu_kernel function) {
    _Static_assert(sizeof *table % sizeof function == 0, "a table holds kernels only");
    ftk_cpu_kernel kernels[sizeof *table / sizeof function];
    memcpy(kernels, table, sizeof kernels);
    for (size_t i = 0; i < FTI_COUNT(kernels); i++)
        if (kernels[i] == function) return true;
    return false;
}

/* Tables of kernels, the one to be preferred first; the last needs nothing. */
static const struct {
    const char *name;
    const fti_cpu_kernels *kernels;
    uint32_t needs;
} tables[] = {
#if defined(__x86_64__)
    {"core/cpu_avx512_vnni", &fti_cpu_kernels_vnni,
     FTI_CPU_MASK_AVX2 | FTI_CPU_MASK_AVX512F | FTI_CPU_MASK_AVX512_VNNI},
    {"core/cpu_avx2", &fti_cpu_kernels_avx2, FTI_CPU_MASK_AVX2},
#elif defined(__aarch64__)
    {"core/cpu_neon", &fti_cpu_kernels_neon, FTI_CPU_MASK_NEON},
#endif
    {"core/cpu_reference", &fti_cpu_kernels_c, 0},
};

static const char *operator_variant(const fti_backend *backend, size_t i, uint32_t *reason,
                                    const char **lacks) {
    if (i >= FTI_COUNT(tables)) return NULL;
    uint32_t here = fti_cpu_features(), missing = tables[i].needs & ~here;
    uint32_t masked = tables[i].needs & ~cpu_const(backend)->kernel_mask;
    *lacks = NULL;
    *reason = missing  ? FTK_REASON_CAPABILITY_MISSING
              : masked ? FTK_REASON_POLICY
                       : FTK_REASON_NONE;
    for (size_t f = 0; f < FTI_COUNT(feature_names) && !*lacks; f++)
        if ((missing ? missing : masked) & feature_names[f].bit) *lacks = feature_names[f].name;
    return tables[i].name;
}

void fti_cpu_count(fti_stream_counts *counts, ftk_cpu_kernel function, uint64_t items) {
    size_t i = 0;
    /* The same for every instruction set. */
    if (function == fti_cpu_scale || function == fti_cpu_ensure) return;
    if (function == fti_cpu_multiply_slots) return; /* which counts what it multiplies with */
    while (i < FTI_COUNT(tables) && !in_table(tables[i].kernels, function)) i++;
    if (i == FTI_COUNT(tables)) {
        counts->provider++;
        return;
    }
    if (tables[i].needs == 0) counts->reference++;
    if (tables[i].needs != 0) counts->vector++;
    if (tables[i].needs & FTI_CPU_MASK_AVX512F) counts->avx512++;
    if (function == tables[i].kernels->embed)
        counts->rows[items < FTI_COUNTED_ROWS ? items : FTI_COUNTED_ROWS]++;
}

static void choose_kernels(fti_cpu_backend *backend) {
    uint32_t reason;
    const char *lacks;
    size_t i = 0;
    while (operator_variant(&backend->base, i, &reason, &lacks) && reason != FTK_REASON_NONE) i++;
    backend->kernels = *tables[i].kernels;
}

static const fti_backend_ops cpu_ops = {
    .name = "cpu",
    .capability = capability,
    .capability_name = capability_name,
    .operator_variant = operator_variant,
    .memory_available = memory_available,
    .placement = placement,
    .alloc = alloc,
    .release = release,
    .memory_used = memory_used,
    .bank_attach = fti_cpu_bank_attach,
    .bank_detach = fti_cpu_bank_detach,
    .adopt = adopt,
    .stream_create = fti_cpu_stream_create,
    .stream_destroy = fti_cpu_stream_destroy,
    .stream_sync = fti_cpu_stream_sync,
    .stream_counts = fti_cpu_stream_counts,
    .upload = fti_cpu_copy,
    .download = fti_cpu_copy,
    .clear = fti_cpu_clear,
    .copy = fti_cpu_copy,
    .event_create = fti_cpu_event_create,
    .event_destroy = fti_cpu_event_destroy,
    .event_record = fti_cpu_event_record,
    .event_wait = fti_cpu_event_wait,
    .capture_begin = fti_cpu_capture_begin,
    .capture_end = fti_cpu_capture_end,
    .graph_launch = fti_cpu_graph_launch,
    .graph_destroy = fti_cpu_graph_destroy,
    .graph_nodes = fti_cpu_graph_nodes,
    .destroy = destroy,
};

ftk_status fti_cpu_backend_create(const fti_backend_options *options, fti_backend **out,
                                  ftk_error *err) {
    fti_cpu_backend *backend = fti_calloc(1, sizeof *backend);
    if (!backend) return fti_no_memory(err, sizeof *backend, "the cpu backend");
    backend->base.ops = &cpu_ops;
    backend->base.operators = &fti_cpu_operators;
    backend->base.kernels = &fti_cpu_launcher;
    backend->kernel_mask = options->kernel_mask;
    backend->float_numerics = options->float_numerics;
    choose_kernels(backend);
    uint32_t threads = fti_cpu_threads_granted(options->threads);
    ftk_status status = fti_pool_create(threads, &backend->pool, err);
    if (status != FTK_OK) {
        fti_free(backend);
        return status;
    }
    if (options->pin) backend->pinned = fti_pool_pin(backend->pool);
    if (options->interleave) backend->spread = fti_cpu_memory_nodes();
    *out = &backend->base;
    return FTK_OK;
}
