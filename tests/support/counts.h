/*
 * counts.h: what an engine has executed, for tests that promise something about a
 * variant, a batch size or a graph: a comparison proves nothing if another path ran.
 * Include after cmocka.h.
 */
#ifndef TESTS_COUNTS_H
#define TESTS_COUNTS_H

#include <string.h>

#include "core/engine.h"

static inline fti_stream_counts counts_now(const ftk_engine *engine) {
    fti_stream_counts counts;
    engine->backend->ops->stream_counts(engine->stream, &counts);
    return counts;
}

static inline bool counts_has(const ftk_engine *engine, const char *capability) {
    int64_t value;
    return engine->backend->ops->capability(engine->backend, fti_str(capability), &value) == FTK_OK;
}

static inline bool counts_vector_machine(const ftk_engine *engine) {
    return counts_has(engine, "cpu.avx2") || counts_has(engine, "cpu.neon_dotprod");
}

/* The variants chosen of the provider's operations all end in `suffix`. */
static inline void counts_expect_variants(const ftk_engine *engine, const char *suffix) {
    const ftk_provider *provider = engine->provider->table;
    assert_true(provider->variant_table_count > 0);
    for (uint64_t i = 0; i < provider->variant_table_count; i++) {
        const ftk_variant_table *t = provider->variants[i];
        const ftk_variant *v = (const ftk_variant *)(const void *)((const char *)t->variants +
                                                                   (size_t)engine->chosen[i] *
                                                                       t->variant_stride);
        size_t size = strlen(suffix);
        if (v->name.size < size || memcmp(v->name.data + v->name.size - size, suffix, size) != 0)
            fail_msg("%.*s ran, wanted one that ends in %s", (int)v->name.size, v->name.data,
                     suffix);
    }
}

/* All operators since `before` ran by the reference kernels, or all by those of the widest
 * instruction set that the engine may use. */
static inline void counts_expect_kernels(const ftk_engine *engine, const fti_stream_counts *before,
                                         bool reference) {
    fti_stream_counts now = counts_now(engine);
    uint64_t plain = now.reference - before->reference, vector = now.vector - before->vector;
    if (reference ? vector != 0 || plain == 0 : vector == 0 || plain != 0)
        fail_msg(
            "%llu operators ran by reference kernels and %llu by vector ones, wanted all by %s",
            (unsigned long long)plain, (unsigned long long)vector,
            reference ? "the reference" : "vector kernels");
    bool widest = !reference && counts_has(engine, "cpu.avx512_vnni");
    assert_int_equal(now.avx512 - before->avx512, widest ? vector : 0);
    assert_true(now.provider > before->provider);
    bool above = !reference && counts_has(engine, "cpu.avx2"); /* the provider's, on x86 only */
    counts_expect_variants(engine, above ? "_avx2" : "_reference");
}

/* Since `before`, `count` rows ran as `repeats` sequences in steps of at most `chunk`, the
 * steps of one row out of graphs if `graphs`. */
static inline void counts_expect_steps(const ftk_engine *engine, const fti_stream_counts *before,
                                       size_t count, size_t chunk, size_t repeats, bool graphs) {
    fti_stream_counts now = counts_now(engine);
    uint64_t wanted[FTI_COUNTED_ROWS + 1] = {0};
    assert_in_range(chunk, 1, FTI_COUNTED_ROWS - 1);
    wanted[chunk] += repeats * (count / chunk);
    if (count % chunk) wanted[count % chunk] += repeats;
    for (size_t n = 0; n <= FTI_COUNTED_ROWS; n++)
        if (now.rows[n] - before->rows[n] != wanted[n])
            fail_msg("%llu steps of %zu rows ran, wanted %llu",
                     (unsigned long long)(now.rows[n] - before->rows[n]), n,
                     (unsigned long long)wanted[n]);
    assert_int_equal(now.replays - before->replays, graphs ? wanted[1] : 0);
}

static inline void counts_expect_threads(const ftk_engine *engine, uint32_t threads) {
    int64_t value = 0;
    assert_int_equal(
        engine->backend->ops->capability(engine->backend, fti_str("cpu.threads"), &value), FTK_OK);
    assert_int_equal(value, threads);
}

#endif
