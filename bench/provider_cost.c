/*
 * provider_cost.c: the command provider-cost: what the boundary between core and provider
 * costs in a decode step. The same provider twice, linked into this program (A) and loaded as
 * the configuration allows it (B), behind the same tables; runs alternate.
 */
#include <stdlib.h>

#include "bench.h"
#include "compare.h"
#include "machine.h"
#include "meter.h"
#include "report.h"
#include "cli/output.h"
#include "cli/session.h"

/* Of the provider that is linked in. */
const struct ftk_provider *freetoken_provider_v1(void);

/* More than this of a decode step would be a cost. */
#define LIMIT 0.005

/* Time that this process ran, whatever else did: the boundary costs work, not waiting. */
static int64_t read_cpu(void *user, clockid_t id) {
    struct timespec t;
    (void)user;
    (void)id;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static const fti_bench_clock cpu_clock = {read_cpu, NULL};

typedef struct cost {
    double median, low, high; /* time of a step of B over that of A, less 1 */
    const char *verdict;
    bool exceeded;
} cost;

static cost judge(const fti_bench_ratio *r) {
    cost c = {.median = 1.0 / r->of.median - 1.0,
              .low = 1.0 / r->of.high - 1.0,
              .high = 1.0 / r->of.low - 1.0};
    c.exceeded = r->claim && c.low > LIMIT;
    c.verdict = !r->claim         ? "not decided: at least 10 runs are wanted"
                : c.exceeded      ? "above the limit"
                : c.high <= LIMIT ? "below the limit"
                                  : "not decided: more --repeat, or a quieter machine";
    return c;
}

static void print_cost(const void *user) {
    const cost *c = user;
    (void)printf("\nboundary    %+.3f %% of a decode step, 95 %% interval %+.3f to %+.3f %%, limit "
                 "%.1f %%: %s\n",
                 100.0 * c->median, 100.0 * c->low, 100.0 * c->high, 100.0 * LIMIT, c->verdict);
}

static int report_cost(const fti_cli_call *call, const fti_bench_row rows[2],
                       const fti_bench_comparison *comparison) {
    if (comparison->void_reason)
        return fti_cli_fail(FTK_E_INTERNAL, "void: %s", comparison->void_reason);
    const cost c = judge(&comparison->ratios[0]);
    json_t *json = fti_bench_comparison_json(comparison);
    (void)json_object_set_new(json, "provider_cost",
                              json_pack("{s:f, s:f, s:f, s:f, s:s}", "median", c.median, "low",
                                        c.low, "high", c.high, "limit", LIMIT, "verdict",
                                        c.verdict));
    int code = fti_bench_report_as(call, rows, 2, json, print_cost, &c);
    json_decref(json);
    if (code == 0 && c.exceeded)
        code = fti_cli_fail(FTK_E_INTERNAL, "the boundary costs at least %.3f %% of a step",
                            100.0 * c.low);
    return code;
}

static int report(const fti_cli_call *call, const fti_bench_subject subjects[2]) {
    fti_bench_row rows[2];
    fti_bench_comparison comparison;
    for (size_t i = 0; i < 2; i++) fti_bench_subject_row(&subjects[i], &rows[i]);
    int code = fti_bench_compare_subjects(subjects, rows, NULL, &comparison);
    if (code == 0) {
        code = report_cost(call, rows, &comparison);
        fti_bench_comparison_free(&comparison);
    }
    for (size_t i = 0; i < 2; i++) fti_bench_row_free(&rows[i]);
    return code;
}

static int open_both(const fti_cli_call *call, const fti_bench_task *task,
                     fti_bench_subject subjects[2]) {
    const fti_bench_values *v = task->values;
    ftk_config *config;
    int code = fti_bench_linked_config(call, freetoken_provider_v1, true, &config);
    if (code == 0) code = fti_bench_subject_open(&subjects[0], task, config, v->model);
    if (code) return code;
    code = fti_bench_config(&call->common, NULL, true, &v->set, NULL, &config);
    if (code) return code;
    return fti_bench_subject_open(&subjects[1], task, config, v->model);
}

/* A B B A A B B A ...: what drifts does not favour either. */
static int run_pairs(fti_bench_subject subjects[2], const fti_bench_values *v) {
    size_t pairs = (size_t)v->warmup + v->repeat;
    fti_bench_meter meter;
    fti_bench_meter_start(&meter, "provider-cost", 2 * pairs);
    int code = 0;
    for (size_t i = 0; i < 2 * pairs && code == 0; i++) {
        fti_bench_meter_step(&meter, i / 2 < v->warmup ? "warm-up" : "");
        code = fti_bench_subject_run(&subjects[((i + 1) / 2) % 2], i / 2 < v->warmup);
    }
    fti_bench_meter_end(&meter);
    return code;
}

int fti_bench_provider_cost(const fti_cli_call *call) {
    const fti_bench_values *v = fti_bench_values_of(call);
    fti_bench_task task;
    int code = fti_bench_check_output(call);
    if (code) return code;
    if (!v->model) return fti_cli_usage("provider-cost wants --model MODEL");
    code = fti_bench_make_task(v, "decode", &task);
    if (code) return code;
    task.clock = &cpu_clock;
    fti_cli_catch_interrupt();
    fti_bench_look_at_machine(!v->no_bandwidth);
    fti_bench_subject subjects[2] = {{0}, {0}};
    code = open_both(call, &task, subjects);
    if (code == 0) code = run_pairs(subjects, v);
    if (code == 0) code = report(call, subjects);
    for (size_t i = 0; i < 2; i++) fti_bench_subject_close(&subjects[i]);
    return code;
}
