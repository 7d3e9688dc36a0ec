/*
 * kernels_peak.c: how fast the machine multiplies and adds: twelve chains of the widest
 * instruction of each set, on registers alone. Products of matrices cannot be faster.
 */
#include "bandwidth.h"
#include "kernels.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ITERATIONS       2048u /* of an item */
#define CHAINS           12u   /* latency times pipes of all cores that we know */
#define ITEMS_PER_THREAD 64u
#define PASSES           6u

/* One way to multiply and add. */
typedef struct peak {
    const char *name;
    bool (*usable)(void);
    ftk_cpu_kernel run; /* args: atomic_ullong that keeps the work from being optimised away */
    uint32_t lanes;     /* products of one instruction (or short sequence) */
} peak;

static void keep(const void *args, uint64_t bits) {
    atomic_ullong *const *sink = args;
    atomic_fetch_add_explicit(*sink, bits, memory_order_relaxed);
}

/* ---- any machine ---- */

enum { PLAIN_LANES = 16 };

static bool always(void) {
    return true;
}

/* The compiler must take the factors for unknown in every iteration. */
static void plain_integer(const void *args, uint64_t begin, uint64_t end) {
    int8_t a[PLAIN_LANES] = {1, 2, 3};
    int8_t b[PLAIN_LANES] = {3, 2, 1};
    int32_t sums[PLAIN_LANES] = {0};
    for (uint64_t i = begin * ITERATIONS * CHAINS; i < end * ITERATIONS * CHAINS; i++) {
        __asm__ volatile("" : : "r"(a), "r"(b) : "memory");
        for (size_t k = 0; k < PLAIN_LANES; k++) sums[k] += a[k] * b[k];
    }
    keep(args, (uint64_t)sums[0]);
}

static void plain_float(const void *args, uint64_t begin, uint64_t end) {
    float a[PLAIN_LANES] = {1.0f};
    float sums[PLAIN_LANES] = {0.0f};
    for (uint64_t i = begin * ITERATIONS * CHAINS; i < end * ITERATIONS * CHAINS; i++) {
        __asm__ volatile("" : : "r"(a) : "memory");
        for (size_t k = 0; k < PLAIN_LANES; k++) sums[k] = __builtin_fmaf(a[k], a[k], sums[k]);
    }
    keep(args, (uint64_t)sums[0]);
}

/* ---- x86 ---- */

#if defined(__x86_64__)

#define EACH_CHAIN(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

static void keep_all(const void *args, const void *chains, size_t bytes) {
    uint64_t words[CHAINS * 8];
    uint64_t bits = 0;
    memcpy(words, chains, bytes);
    for (size_t i = 0; i < bytes / sizeof words[0]; i++) bits += words[i];
    keep(args, bits);
}

/* A kernel with chains of VECTOR that begin as ZERO: STEP(s) adds to chain s the products of
 * the factors a and b. The empty asm makes b unknown before each step, so that none is done
 * once for all. */
#define CHAIN(k) s##k = zero,
#define RUN(k)                                                                                     \
    __asm__ volatile("" : "+x"(b));                                                                \
    s##k = STEP(s##k);
#define PEAK_KERNEL(NAME, TARGET, VECTOR, ZERO, FACTOR)                                            \
    static __attribute__((target(TARGET))) void NAME(const void *args, uint64_t begin,             \
                                                     uint64_t end) {                               \
        const VECTOR zero = ZERO, a = FACTOR;                                                      \
        VECTOR EACH_CHAIN(CHAIN) b = FACTOR;                                                       \
        for (uint64_t i = begin * ITERATIONS; i < end * ITERATIONS; i++) {                         \
            EACH_CHAIN(RUN)                                                                        \
        }                                                                                          \
        const VECTOR all[CHAINS] = {s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11};             \
        keep_all(args, all, sizeof all);                                                           \
    }

/* Pairs of products in 16 bits, pairs of those in 32, added up. */
#define STEP(s)                                                                                    \
    _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))
PEAK_KERNEL(avx2_integer, "avx2", __m256i, _mm256_setzero_si256(), _mm256_set1_epi8(3))
#undef STEP

#define STEP(s) _mm512_dpbusd_epi32(s, a, b)
PEAK_KERNEL(vnni_integer, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(),
            _mm512_set1_epi32(0x03030303))
#undef STEP

#define STEP(s) _mm256_fmadd_ps(a, b, s)
PEAK_KERNEL(avx2_float, "avx2,fma", __m256, _mm256_setzero_ps(), _mm256_set1_ps(1.0f))
#undef STEP

#define STEP(s) _mm512_fmadd_ps(a, b, s)
PEAK_KERNEL(avx512_float, "avx512f", __m512, _mm512_setzero_ps(), _mm512_set1_ps(1.0f))
#undef STEP

static bool has_avx2(void) {
    return (fti_cpu_features() & FTI_CPU_MASK_AVX2) != 0;
}

static bool has_avx512(void) {
    return (fti_cpu_features() & FTI_CPU_MASK_AVX512F) != 0;
}

static bool has_vnni(void) {
    return has_avx512() && (fti_cpu_features() & FTI_CPU_MASK_AVX512_VNNI) != 0;
}

#endif

/* ---- the best ---- */

static const peak integer_peaks[] = {
    {"plain C", always, plain_integer, PLAIN_LANES},
#if defined(__x86_64__)
    {"AVX2 maddubs, madd, add", has_avx2, avx2_integer, 32},
    {"AVX-512 VNNI dpbusd", has_vnni, vnni_integer, 64},
#endif
};

static const peak float_peaks[] = {
    {"plain C fma", always, plain_float, PLAIN_LANES},
#if defined(__x86_64__)
    {"AVX2 fma", has_avx2, avx2_float, 8},
    {"AVX-512 fma", has_avx512, avx512_float, 16},
#endif
};

static double rate_of(const peak *p, fti_pool *pool) {
    atomic_ullong sink = 0;
    atomic_ullong *at = &sink;
    uint64_t items = (uint64_t)fti_pool_threads(pool) * ITEMS_PER_THREAD;
    double best = 0.0;
    for (unsigned i = 0; i < PASSES; i++) {
        double start = fti_bench_seconds();
        fti_pool_run(pool, p->run, (const void *)&at, items, 1);
        double seconds = fti_bench_seconds() - start;
        double products = (double)items * ITERATIONS * CHAINS * p->lanes;
        if (seconds > 0.0 && products / seconds > best) best = products / seconds;
    }
    return best;
}

/* Wider instructions of the same kind are never slower, so the last usable one is it. */
static double best_of(const peak *peaks, size_t count, fti_pool *pool, const char **name) {
    size_t last = 0;
    for (size_t i = 0; i < count; i++)
        if (peaks[i].usable()) last = i;
    *name = peaks[last].name;
    return rate_of(&peaks[last], pool);
}

double fti_bench_integer_peak(fti_pool *pool, const char **name) {
    return best_of(integer_peaks, FTI_COUNT(integer_peaks), pool, name);
}

double fti_bench_float_peak(fti_pool *pool, const char **name) {
    return best_of(float_peaks, FTI_COUNT(float_peaks), pool, name);
}
