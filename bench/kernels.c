/* kernels.c: the scenario `kernels`: which cases, in which order, and their table. */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bench.h"
#include "machine.h"
#include "meter.h"
#include "report.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"
#include "core/checkpoint.h"

#define MAX_TYPES 64u /* weight types are numbers below this */
#define MAX_CASES (4 * (MAX_TYPES + 1))
#define GROUP     "others" /* types that have a correct path and no faster one */

/* What the checkpoints of the first family are made of, in rows of their own. */
static const uint32_t common_types[] = {FTK_TYPE_Q4_K, FTK_TYPE_Q5_K, FTK_TYPE_Q6_K, FTK_TYPE_Q8_0,
                                        FTK_TYPE_F16,  FTK_TYPE_BF16, FTK_TYPE_F32};

typedef struct cases {
    fti_bench_kernel_case list[MAX_CASES];
    size_t count;
} cases;

/* ---- which ---- */

static bool is_read(uint32_t type) {
    uint32_t format;
    return fti_cpu_operators.activation_format(type, &format) == FTK_OK;
}

static bool is_common(uint32_t type) {
    for (size_t i = 0; i < FTI_COUNT(common_types); i++)
        if (common_types[i] == type) return true;
    return false;
}

/* In each operation and shape. */
static void add_case(cases *all, fti_bench_kernel_case what) {
    for (unsigned i = 0; i < 4; i++) {
        what.grouped = (i & 1u) != 0;
        what.prefill = (i & 2u) != 0;
        all->list[all->count++] = what;
    }
}

static void add_type(cases *all, uint32_t type) {
    fti_bench_kernel_case what = {.types = {type}, .type_count = 1};
    (void)snprintf(what.label, sizeof what.label, "%s", fti_type_name(type));
    add_case(all, what);
}

static void add_default_cases(cases *all) {
    fti_bench_kernel_case others = {.label = GROUP};
    for (size_t i = 0; i < FTI_COUNT(common_types); i++) add_type(all, common_types[i]);
    for (uint32_t type = 0; type < MAX_TYPES && others.type_count < FTI_BENCH_CASE_TYPES; type++)
        if (is_read(type) && !is_common(type)) others.types[others.type_count++] = type;
    add_case(all, others);
}

static int unknown_type(const char *name) {
    fti_cli_text known = {0};
    for (uint32_t type = 0; type < MAX_TYPES; type++)
        if (is_read(type))
            fti_cli_printf(&known, "%s%s", known.size ? ", " : "", fti_type_name(type));
    int code = fti_cli_usage("--weights: no operator reads '%s'; known are %s", name, known.data);
    free(known.data);
    return code;
}

static int add_named(cases *all, const char *name) {
    for (uint32_t type = 0; type < MAX_TYPES; type++) {
        if (!is_read(type) || strcasecmp(name, fti_type_name(type)) != 0) continue;
        add_type(all, type);
        return 0;
    }
    return unknown_type(name);
}

static int choose_cases(const fti_bench_values *v, cases *all) {
    if (v->weights.count == 0) add_default_cases(all);
    for (size_t i = 0; i < v->weights.count; i++) {
        int code = add_named(all, v->weights.items[i]);
        if (code) return code;
    }
    return 0;
}

/* ---- output ---- */

static const char *setting(const fti_bench_row *row, const char *key) {
    return fti_cli_member(row->settings, key);
}

static double median_of(const fti_bench_row *row, const char *figure) {
    const fti_bench_figure *f = fti_bench_row_find(row, figure);
    return fti_bench_describe(f->values, f->count).median;
}

static void print_row(const fti_bench_row *row) {
    (void)printf("%-15s %-8s %-8s %-18s", setting(row, "operation"), setting(row, "weights"),
                 setting(row, "shape"), fti_cli_member(row->knobs, "backend.kernels"));
    if (row->void_reason) {
        (void)printf(" void: %s\n", row->void_reason);
        return;
    }
    const fti_bench_figure *f = &row->figures[0];
    fti_bench_statistics s = fti_bench_describe(f->values, f->count);
    (void)printf(" %9.2f %9.2f %9.1f %% %7.1f %% %7zu  %s\n", s.median, median_of(row, "gmac_s"),
                 median_of(row, "percent_of_floor"), 100.0 * s.noise, s.count, row->hash);
}

static void print_machine(const fti_bench_row *row) {
    const json_t *read = json_object_get(row->machine, "read_bandwidth");
    (void)printf("cause       %s\nlibrary     libfreetoken %s, commit %s\nmachine     %s, "
                 "%" JSON_INTEGER_FORMAT " threads",
                 fti_bench_cause_text(row->cause), row->version, row->commit,
                 fti_cli_member(row->machine, "cpu"),
                 json_integer_value(json_object_get(row->knobs, "backend.threads")));
    if (json_is_object(read))
        (void)printf(", reads %.1f GB/s",
                     json_number_value(json_object_get(read, "all_threads_gb_s")));
    (void)printf("\nfloor       decode: weights at read bandwidth; prefill: multiply-adds at the "
                 "peak of\n            the widest instructions; the best that was measured "
                 "between the samples\n\n");
}

static void print_table(const fti_bench_row *rows, size_t count) {
    if (count == 0) return;
    print_machine(&rows[0]);
    (void)printf("%-15s %-8s %-8s %-18s %9s %9s %11s %9s %7s  %s\n", "operation", "weights",
                 "shape", "variant", "GB/s", "GMAC/s", "of floor", "noise", "samples",
                 "hash of results");
    for (size_t i = 0; i < count; i++) print_row(&rows[i]);
}

/* ---- the run ---- */

static int run_cases(const fti_bench_lab *lab, const cases *all, fti_bench_row *rows) {
    ftk_error err = FTK_ERROR_INIT;
    fti_bench_meter meter;
    ftk_status status = FTK_OK;
    fti_bench_meter_start(&meter, "kernels", all->count);
    for (size_t i = 0; i < all->count && status == FTK_OK; i++) {
        fti_bench_meter_step(&meter, all->list[i].label);
        status = fti_bench_lab_measure(lab, &all->list[i], fti_cli_interrupted,
                                       rows + i * lab->variants.count, &err);
    }
    fti_bench_meter_end(&meter);
    return status == FTK_OK ? 0 : fti_cli_fail_with(&err);
}

static int measure(const fti_cli_call *call, const fti_bench_lab *lab, const cases *all) {
    size_t count = all->count * lab->variants.count;
    fti_bench_row *rows = fti_cli_alloc(count, sizeof *rows);
    int code = run_cases(lab, all, rows);
    for (size_t i = 0; i < count && code == 0; i++)
        fti_bench_row_set(&rows[i].machine, fti_bench_machine());
    if (code == 0) code = fti_bench_report_compact(call, rows, count, print_table);
    for (size_t i = 0; i < count; i++) fti_bench_row_free(&rows[i]);
    free(rows);
    return code;
}

static int choose_threads(const fti_cli_call *call, uint32_t *threads) {
    const char *text = call->common.threads;
    uint64_t number = 0;
    if (text && strcmp(text, "auto") != 0 &&
        (!fti_cli_parse_u64(text, &number) || number == 0 || number > UINT32_MAX))
        return fti_cli_usage("--threads: '%s' is neither a number of threads nor auto", text);
    *threads = (uint32_t)number;
    return 0;
}

/* Options that other commands have, and that would be left aside here in silence. */
static int check_options(const fti_cli_common *common) {
    const char *backend = common->backend;
    if (backend && strcmp(backend, "cpu") != 0 && strcmp(backend, "auto") != 0)
        return fti_cli_usage("--backend %s: kernels measures those of the CPU backend", backend);
    if (common->numerics && strcmp(common->numerics, "exact") != 0)
        return fti_cli_usage("--numerics %s: kernels measures the exact ones", common->numerics);
    return 0;
}

int fti_bench_kernels(const fti_cli_call *call) {
    const fti_bench_values *v = fti_bench_values_of(call);
    fti_bench_kernel_sizes sizes = fti_bench_kernel_defaults();
    fti_bench_lab lab;
    cases all = {.count = 0};
    uint32_t threads = 0;
    ftk_error err = FTK_ERROR_INIT;
    int code = fti_bench_check_output(call);
    if (code == 0) code = check_options(&call->common);
    if (code == 0) code = choose_threads(call, &threads);
    if (code == 0) code = choose_cases(v, &all);
    if (code) return code;
    sizes.repeat = v->repeat;
    sizes.warmup = v->warmup ? v->warmup : 1;
    fti_cli_catch_interrupt();
    fti_bench_look_at_machine(!v->no_bandwidth);
    if (fti_bench_lab_open(threads, &sizes, &lab, &err) != FTK_OK) return fti_cli_fail_with(&err);
    code = measure(call, &lab, &all);
    fti_bench_lab_close(&lab);
    return code;
}
