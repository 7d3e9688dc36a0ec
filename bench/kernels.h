/*
 * kernels.h: every variant of the operations that read weights, as the engine runs them
 * (operators on a stream of the CPU backend), against what the machine could do: reading
 * the weights once, or multiplying as fast as its instructions allow. Bits are compared
 * with the reference in the same samples.
 */
#ifndef FTI_BENCH_KERNELS_H
#define FTI_BENCH_KERNELS_H

#include "backend/cpu/cpu.h"
#include "row.h"

/* ---- variants ---- */

/* A backend whose table of kernels differs from that of every other variant. */
typedef struct fti_bench_variant {
    char name[48]; /* "reference", or the capability that it needs: "cpu.avx2" */
    fti_backend *backend;
    ftk_stream *stream;
} fti_bench_variant;

#define FTI_BENCH_VARIANTS 16u
typedef struct fti_bench_variants {
    fti_bench_variant list[FTI_BENCH_VARIANTS]; /* the reference first */
    size_t count;
    uint32_t threads;
} fti_bench_variants;

/* All that this machine can run, found by asking the backend for one capability more each
 * time. threads 0: as many as the machine grants. */
ftk_status fti_bench_variants_open(uint32_t threads, fti_bench_variants *out,
                                   ftk_error *err) FTI_WARN_UNUSED;
void fti_bench_variants_close(fti_bench_variants *variants);

/* ---- what is measured ---- */

#define FTI_BENCH_CASE_TYPES 32u

/* One operation in one shape. With several types a sample runs one after the other, each
 * on its share of the weights. */
typedef struct fti_bench_kernel_case {
    char label[32]; /* "Q4_K", or the name of a group */
    uint32_t types[FTI_BENCH_CASE_TYPES];
    size_t type_count;
    bool grouped; /* grouped_matmul; otherwise matmul */
    bool prefill; /* many rows of activations; otherwise one */
} fti_bench_kernel_case;

typedef struct fti_bench_kernel_sizes {
    uint64_t stream_bytes; /* weights of a decode sample: more than caches hold */
    uint32_t cols;
    uint32_t matrix_rows[2]; /* of a dense weight: decode, prefill */
    uint32_t expert_rows[2];
    uint32_t used;         /* experts of a row */
    uint32_t experts;      /* that a prefill is spread over, if there is room for so many */
    uint32_t prefill_rows; /* of activations */
    uint32_t repeat;
    uint32_t warmup;        /* at least 1: the first sample gives the wanted bits */
    double variant_seconds; /* a variant that has taken longer gets no more than three samples */
} fti_bench_kernel_sizes;

/* Shapes of the first family's layers, and a stream that this machine's caches do not
 * hold. */
fti_bench_kernel_sizes fti_bench_kernel_defaults(void);

typedef struct fti_bench_lab {
    fti_bench_variants variants;
    fti_bench_kernel_sizes sizes;
    uint8_t *weights; /* sizes.stream_bytes */
    uint8_t *pattern; /* of random blocks, repeated to fill the weights */
} fti_bench_lab;

ftk_status fti_bench_lab_open(uint32_t threads, const fti_bench_kernel_sizes *sizes,
                              fti_bench_lab *out, ftk_error *err) FTI_WARN_UNUSED;
void fti_bench_lab_close(fti_bench_lab *lab);

/* Fills one row for each variant, in their order: figures weights_gb_s, gmac_s and
 * percent_of_floor, the hash of the results. The variants take turns within every sample,
 * and the floor is measured between them. A row whose bits are not the reference's is
 * void. The rows are the caller's to free, after a failure too. `stop` ends the series
 * with FTK_E_CANCELLED. */
ftk_status fti_bench_lab_measure(const fti_bench_lab *lab, const fti_bench_kernel_case *what,
                                 bool (*stop)(void), fti_bench_row *rows,
                                 ftk_error *err) FTI_WARN_UNUSED;

/* ---- the peak of multiplying ---- */

/* Multiply-adds per second of all threads of the pool, the best of what the machine's
 * instruction sets reach in registers; *name says which. */
double fti_bench_integer_peak(fti_pool *pool, const char **name);
double fti_bench_float_peak(fti_pool *pool, const char **name);

#endif
