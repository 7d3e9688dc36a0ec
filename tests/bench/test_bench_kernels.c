/*
 * test_bench_kernels.c: the samples of `kernels`: all variants of the table, figures that
 * can be true, and rows that are void because a kernel gave one wrong bit, once.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLOW 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define SLOW 1
#endif
#if !defined(SLOW)
#define SLOW 0
#endif

const char fti_cli_program_name[] = "test_bench_kernels";

/* Small enough for sanitizers; the figures mean nothing, the bits do. */
static const fti_bench_kernel_sizes small = {.stream_bytes = 1 << 17,
                                             .cols = 256,
                                             .matrix_rows = {32, 16},
                                             .expert_rows = {8, 8},
                                             .used = 2,
                                             .experts = 6,
                                             .prefill_rows = 6,
                                             .repeat = 4,
                                             .warmup = 1,
                                             .variant_seconds = 1e9};

static fti_bench_lab open_lab(const fti_bench_kernel_sizes *sizes) {
    fti_bench_lab lab;
    ftk_error err = FTK_ERROR_INIT;
    if (fti_bench_lab_open(2, sizes, &lab, &err) != FTK_OK) fail_msg("%s", err.message);
    return lab;
}

static fti_bench_kernel_case case_of(uint32_t type, bool grouped, bool prefill) {
    return (fti_bench_kernel_case){
        .label = "x", .types = {type}, .type_count = 1, .grouped = grouped, .prefill = prefill};
}

static void measure(const fti_bench_lab *lab, const fti_bench_kernel_case *what,
                    fti_bench_row *rows) {
    ftk_error err = FTK_ERROR_INIT;
    if (fti_bench_lab_measure(lab, what, NULL, rows, &err) != FTK_OK) fail_msg("%s", err.message);
}

static void free_rows(const fti_bench_lab *lab, fti_bench_row *rows) {
    for (size_t i = 0; i < lab->variants.count; i++) fti_bench_row_free(&rows[i]);
}

/* ---- variants ---- */

static fti_cpu_kernels *table_of(const fti_bench_lab *lab, size_t variant) {
    return &((fti_cpu_backend *)(void *)lab->variants.list[variant].backend)->kernels;
}

static void finds_every_table(void **state) {
    (void)state;
    fti_bench_lab lab = open_lab(&small);
    assert_true(lab.variants.count >= 1 && lab.variants.count < FTI_BENCH_VARIANTS);
    assert_string_equal(lab.variants.list[0].name, "reference");
    assert_memory_equal(table_of(&lab, 0), &fti_cpu_kernels_c, sizeof fti_cpu_kernels_c);
    for (size_t i = 0; i < lab.variants.count; i++)
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(table_of(&lab, i), table_of(&lab, k), sizeof(fti_cpu_kernels));
    /* What the engine would choose by itself is the last one. */
    fti_backend *chosen;
    const fti_backend_options options = {.threads = 1, .kernel_mask = UINT32_MAX};
    assert_int_equal(fti_cpu_backend_create(&options, &chosen, NULL), FTK_OK);
    assert_memory_equal(table_of(&lab, lab.variants.count - 1),
                        &((fti_cpu_backend *)(void *)chosen)->kernels, sizeof(fti_cpu_kernels));
    chosen->ops->destroy(chosen);
    fti_bench_lab_close(&lab);
}

/* ---- sound rows ---- */

static void check_figures(const fti_bench_row *row) {
    static const char *const names[] = {"weights_gb_s", "gmac_s", "percent_of_floor"};
    assert_int_equal(row->figure_count, FTI_COUNT(names));
    for (size_t f = 0; f < FTI_COUNT(names); f++) {
        const fti_bench_figure *figure = fti_bench_row_find(row, names[f]);
        assert_non_null(figure);
        assert_int_equal(figure->count, small.repeat);
        for (size_t i = 0; i < figure->count; i++)
            assert_true(isfinite(figure->values[i]) && figure->values[i] > 0);
    }
}

static void check_case(const fti_bench_lab *lab, const fti_bench_kernel_case *what) {
    fti_bench_row rows[FTI_BENCH_VARIANTS];
    measure(lab, what, rows);
    for (size_t i = 0; i < lab->variants.count; i++) {
        if (rows[i].void_reason) fail_msg("type %u: %s", what->types[0], rows[i].void_reason);
        assert_int_equal(rows[i].cause, FTI_BENCH_BACKEND);
        assert_string_equal(rows[i].hash, rows[0].hash);
        assert_int_equal(json_array_size(rows[i].runs), small.repeat + small.warmup);
        check_figures(&rows[i]);
    }
    free_rows(lab, rows);
}

static void every_type_and_shape(void **state) {
    (void)state;
    fti_bench_lab lab = open_lab(&small);
    size_t types = 0;
    for (uint32_t type = 0; type < 64; type++) {
        uint32_t format;
        if (fti_cpu_operators.activation_format(type, &format) != FTK_OK) continue;
        types++;
        for (unsigned i = 0; i < 4; i++) {
            fti_bench_kernel_case what = case_of(type, (i & 1u) != 0, (i & 2u) != 0);
            check_case(&lab, &what);
        }
    }
    assert_true(types >= 17);
    fti_bench_lab_close(&lab);
}

static void several_types_in_one_sample(void **state) {
    (void)state;
    fti_bench_lab lab = open_lab(&small);
    const fti_bench_kernel_case what = {.label = "both",
                                        .types = {FTK_TYPE_Q4_0, FTK_TYPE_NVFP4, FTK_TYPE_Q2_K},
                                        .type_count = 3,
                                        .grouped = true};
    check_case(&lab, &what);
    fti_bench_lab_close(&lab);
}

/* Rates are of one sample: bytes and products keep the ratio that the type fixes. */
static void rates_fit_each_other(void **state) {
    (void)state;
    fti_bench_lab lab = open_lab(&small);
    fti_bench_row rows[FTI_BENCH_VARIANTS];
    const fti_bench_kernel_case what = case_of(FTK_TYPE_Q4_K, false, true);
    measure(&lab, &what, rows);
    double bytes = fti_bench_row_find(&rows[0], "weights_gb_s")->values[0];
    double products = fti_bench_row_find(&rows[0], "gmac_s")->values[0];
    double wanted = small.prefill_rows * 256.0 / 144.0; /* products per byte */
    assert_true(fabs(products / bytes - wanted) < 1e-9 * wanted);
    free_rows(&lab, rows);
    fti_bench_lab_close(&lab);
}

static void slow_variants_get_fewer_samples(void **state) {
    (void)state;
    fti_bench_kernel_sizes sizes = small;
    sizes.variant_seconds = 0.0;
    sizes.repeat = 8;
    fti_bench_lab lab = open_lab(&sizes);
    fti_bench_row rows[FTI_BENCH_VARIANTS];
    const fti_bench_kernel_case what = case_of(FTK_TYPE_Q6_K, false, false);
    measure(&lab, &what, rows);
    for (size_t i = 0; i < lab.variants.count; i++) {
        assert_null(rows[i].void_reason);
        assert_int_equal(rows[i].figures[0].count, 3);
    }
    free_rows(&lab, rows);
    fti_bench_lab_close(&lab);
}

/* ---- planted faults ---- */

static fti_cpu_kernels honest; /* of the variant that lies */
static unsigned calls_left;    /* until the lie */

static void flip(float *value) {
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    bits ^= 1u;
    memcpy(value, &bits, sizeof bits);
}

/* The first item is computed by exactly one call of each launch. */
static bool time_to_lie(uint64_t begin) {
    return begin == 0 && calls_left-- == 0;
}

static void lying_matmul(const void *args, uint64_t begin, uint64_t end) {
    const fti_cpu_matmul *a = args;
    honest.matmul(args, begin, end);
    if (time_to_lie(begin)) flip(a->y);
}

static void lying_grouped(const void *args, uint64_t begin, uint64_t end) {
    const fti_cpu_grouped *a = args;
    honest.grouped_matmul(args, begin, end);
    if (time_to_lie(begin)) flip(a->y);
}

static void idle(const void *args, uint64_t begin, uint64_t end) {
    (void)args;
    (void)begin;
    (void)end;
}

/* A second reference, so that there is a variant to spoil on every machine. */
static fti_bench_lab lab_with_liar(size_t *liar) {
    fti_bench_lab lab = open_lab(&small);
    *liar = lab.variants.count;
    fti_bench_variant *v = &lab.variants.list[lab.variants.count++];
    const fti_backend_options options = {.threads = 2};
    (void)snprintf(v->name, sizeof v->name, "liar");
    assert_int_equal(fti_cpu_backend_create(&options, &v->backend, NULL), FTK_OK);
    assert_int_equal(v->backend->ops->stream_create(v->backend, &v->stream, NULL), FTK_OK);
    honest = *table_of(&lab, *liar);
    return lab;
}

static void expect_void(fti_bench_lab *lab, size_t liar, bool grouped, bool prefill) {
    fti_bench_row rows[FTI_BENCH_VARIANTS];
    const fti_bench_kernel_case what = case_of(FTK_TYPE_Q4_K, grouped, prefill);
    measure(lab, &what, rows);
    for (size_t i = 0; i < liar; i++) assert_null(rows[i].void_reason);
    assert_non_null(rows[liar].void_reason);
    assert_non_null(strstr(rows[liar].void_reason, "bits differ: liar"));
    assert_string_not_equal(rows[liar].hash, rows[0].hash);
    json_t *json = fti_bench_row_json(&rows[liar]);
    assert_int_equal(json_object_size(json_object_get(json, "figures")), 0);
    json_decref(json);
    free_rows(lab, rows);
}

static void one_wrong_bit_voids(void **state) {
    (void)state;
    size_t liar;
    fti_bench_lab lab = lab_with_liar(&liar);
    table_of(&lab, liar)->matmul = lying_matmul;
    table_of(&lab, liar)->grouped_matmul = lying_grouped;
    for (unsigned i = 0; i < 4; i++) {
        calls_left = 0;
        expect_void(&lab, liar, (i & 1u) != 0, (i & 2u) != 0);
    }
    fti_bench_lab_close(&lab);
}

/* The last call of the last sample: a check of the first sample alone would miss it. */
static void a_late_wrong_bit_voids(void **state) {
    (void)state;
    size_t liar;
    fti_bench_lab lab = lab_with_liar(&liar);
    table_of(&lab, liar)->matmul = lying_matmul;
    calls_left = small.repeat + small.warmup - 1; /* a prefill sample is one call */
    expect_void(&lab, liar, false, true);
    assert_int_equal(calls_left, UINT32_MAX);
    fti_bench_lab_close(&lab);
}

static void missing_results_void(void **state) {
    (void)state;
    size_t liar;
    fti_bench_lab lab = lab_with_liar(&liar);
    table_of(&lab, liar)->matmul = idle;
    expect_void(&lab, liar, false, false);
    fti_bench_lab_close(&lab);
}

/* ---- refusals ---- */

static void expect_refusal(const fti_bench_lab *lab, const fti_bench_kernel_case *what,
                           bool (*stop)(void), ftk_status status, const char *words) {
    fti_bench_row rows[FTI_BENCH_VARIANTS];
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(fti_bench_lab_measure(lab, what, stop, rows, &err), status);
    assert_non_null(strstr(err.message, words));
    free_rows(lab, rows);
}

static bool at_once(void) {
    return true;
}

static void refuses(void **state) {
    (void)state;
    fti_bench_lab lab = open_lab(&small);
    fti_bench_kernel_case what = case_of(FTK_TYPE_I32, false, false);
    expect_refusal(&lab, &what, NULL, FTK_E_UNSUPPORTED, "I32");
    what = case_of(FTK_TYPE_Q4_K, false, false);
    expect_refusal(&lab, &what, at_once, FTK_E_CANCELLED, "interrupted");
    lab.sizes.matrix_rows[0] = 1 << 20;
    expect_refusal(&lab, &what, NULL, FTK_E_NO_MEMORY, "free memory or name fewer types");
    fti_bench_lab_close(&lab);
}

/* ---- peaks ---- */

static void peaks_are_rates(void **state) {
    (void)state;
    fti_pool *pool;
    const char *name = NULL;
    assert_int_equal(fti_pool_create(1, &pool, NULL), FTK_OK);
    double integer = fti_bench_integer_peak(pool, &name);
    assert_non_null(name);
    assert_true(isfinite(integer) && integer > 1e6 && integer < 1e13);
    double floating = fti_bench_float_peak(pool, &name);
    assert_non_null(name);
    assert_true(isfinite(floating) && floating > 1e6 && floating < 1e13);
    fti_pool_destroy(pool);
}

/* ---- the command ---- */

typedef struct answer {
    int code;
    json_t *json; /* NULL: the output was none */
    char err[4096];
} answer;

static answer kernels(const char *options) {
    char line[1024];
    char path[] = "/tmp/ftk-kernels-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)snprintf(line, sizeof line, "'%s' kernels --no-bandwidth %s 2>%s", FTK_BENCH_BIN, options,
                   path);
    FILE *out = popen(line, "r");
    assert_non_null(out);
    answer a = {.json = json_loadf(out, 0, NULL)};
    int status = pclose(out);
    a.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    ssize_t size = read(fd, a.err, sizeof a.err - 1);
    a.err[size > 0 ? size : 0] = 0;
    (void)close(fd);
    (void)unlink(path);
    return a;
}

static const char *setting(const json_t *row, const char *key) {
    return json_string_value(json_object_get(json_object_get(row, "settings"), key));
}

/* Both operations in both shapes, each with the same hash in all variants. */
static void command_measures_every_case(void **state) {
    (void)state;
    if (SLOW) {
        print_message("skip: full-sized samples take minutes under ThreadSanitizer\n");
        return;
    }
    answer a = kernels("--weights q8_0 --repeat 1 --json");
    if (a.code != 0) fail_msg("exit code %d: %s", a.code, a.err);
    const json_t *rows = json_object_get(a.json, "rows");
    fti_bench_lab lab = open_lab(&small);
    size_t variants = lab.variants.count;
    fti_bench_lab_close(&lab);
    assert_int_equal(json_array_size(rows), 4 * variants);
    unsigned seen = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const json_t *first = json_array_get(rows, i / variants * variants);
        assert_string_equal(setting(row, "weights"), "Q8_0");
        assert_true(json_is_true(json_object_get(row, "valid")));
        assert_true(json_equal(json_object_get(row, "hash"), json_object_get(first, "hash")));
        assert_true(json_is_object(json_object_get(row, "machine")));
        unsigned grouped = strcmp(setting(row, "operation"), "grouped_matmul") == 0;
        unsigned prefill = strcmp(setting(row, "shape"), "prefill") == 0;
        seen |= 1u << (2 * grouped + prefill);
    }
    assert_int_equal(seen, 15);
    json_decref(a.json);
}

static void expect_usage(const char *options, const char *words) {
    answer a = kernels(options);
    assert_null(a.json);
    if (a.code != 2 || !strstr(a.err, words)) fail_msg("%s: %d: %s", options, a.code, a.err);
}

static void command_refuses_bad_lines(void **state) {
    (void)state;
    expect_usage("--weights Q9_Z", "no operator reads 'Q9_Z'; known are F32, F16, Q4_0");
    expect_usage("--threads many", "neither a number");
    expect_usage("--backend cuda", "CPU backend");
    expect_usage("--numerics float", "exact");
    expect_usage("--json --csv", "exclude each other");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_every_table),
        cmocka_unit_test(every_type_and_shape),
        cmocka_unit_test(several_types_in_one_sample),
        cmocka_unit_test(rates_fit_each_other),
        cmocka_unit_test(slow_variants_get_fewer_samples),
        cmocka_unit_test(one_wrong_bit_voids),
        cmocka_unit_test(a_late_wrong_bit_voids),
        cmocka_unit_test(missing_results_void),
        cmocka_unit_test(refuses),
        cmocka_unit_test(peaks_are_rates),
        cmocka_unit_test(command_measures_every_case),
        cmocka_unit_test(command_refuses_bad_lines),
    };
    return cmocka_run_group_tests_name("test_bench_kernels", tests, NULL, NULL);
}
