/*
 * profile.c: the command profile: a decode, prompt or batch by operator, each held against
 * what reading its weights once, or multiplying them in registers, would take. Figures of
 * speed come from the same runs and include what the clock readings cost.
 */
#include <stdlib.h>

#include "bandwidth.h"
#include "bench.h"
#include "kernels.h"
#include "machine.h"
#include "meter.h"
#include "profile.h"
#include "report.h"
#include "subject.h"
#include "cli/output.h"
#include "cli/session.h"
#include "core/checkpoint.h"

const struct ftk_provider *freetoken_provider_v1(void);

#define READINGS 5 /* of the buffer: the best one counts */

/* What the machine can do with as many threads as the engine has. */
typedef struct floors {
    double bytes_per_second;
    double integer_products, float_products; /* per second */
    const char *integer_name, *float_name;
} floors;

typedef struct report {
    fti_bench_profiles profiles;
    floors floors;
} report;

/* ---- floors ---- */

static int measure_floors(uint32_t threads, floors *out) {
    ftk_error err = FTK_ERROR_INIT;
    fti_pool *pool;
    if (fti_pool_create(threads, &pool, &err) != FTK_OK) return fti_cli_fail_with(&err);
    uint64_t bytes = fti_bench_stream_bytes();
    void *memory = fti_bench_map(pool, bytes);
    double best = 0.0;
    for (int i = 0; memory && i < READINGS; i++) {
        double seconds = fti_bench_read(pool, memory, bytes);
        if (best <= 0.0 || seconds < best) best = seconds;
    }
    fti_bench_unmap(memory, bytes);
    out->bytes_per_second = best > 0.0 ? (double)bytes / best : 0.0;
    out->integer_products = fti_bench_integer_peak(pool, &out->integer_name);
    out->float_products = fti_bench_float_peak(pool, &out->float_name);
    fti_pool_destroy(pool);
    return memory ? 0 : fti_cli_fail(FTK_E_NO_MEMORY, "no memory to measure its speed with");
}

static bool is_float(uint32_t type) {
    return type == FTK_TYPE_F32 || type == FTK_TYPE_F16 || type == FTK_TYPE_BF16;
}

/* 0: the operator has none, for it reads no weights. */
static double floor_of(const floors *f, const fti_bench_profile_line *line) {
    if (line->type == FTI_BENCH_NO_TYPE || f->bytes_per_second <= 0.0) return 0.0;
    double peak = is_float(line->type) ? f->float_products : f->integer_products;
    double reading = (double)line->bytes / f->bytes_per_second;
    double multiplying = peak > 0.0 ? (double)line->products / peak : 0.0;
    return reading > multiplying ? reading : multiplying;
}

/* ---- output ---- */

static int by_time(const void *a, const void *b) {
    double x = ((const fti_bench_profile_line *)a)->seconds;
    double y = ((const fti_bench_profile_line *)b)->seconds;
    return (x < y) - (x > y);
}

static double outside_of(const fti_bench_profile *p) {
    return p->gaps ? p->outside / (double)p->gaps : 0.0;
}

static double operators_of(const fti_bench_profile *p) {
    double sum = 0.0;
    for (size_t i = 0; i < p->count; i++) sum += p->lines[i].seconds;
    return sum;
}

/* Of a step, with what lies between two steps. */
static double step_of(const fti_bench_profile *p) {
    return p->inside / (double)p->steps + outside_of(p);
}

static void print_line(const fti_bench_profile *p, const floors *f,
                       const fti_bench_profile_line *line) {
    double steps = (double)p->steps, floor = floor_of(f, line);
    const char *type = line->type == FTI_BENCH_NO_TYPE ? "" : fti_type_name(line->type);
    (void)printf("%-22s %-6s %8.1f %11.2f %7.2f %%", line->name, type, (double)line->calls / steps,
                 1e6 * line->seconds / steps, 100.0 * line->seconds / steps / step_of(p));
    if (floor > 0.0)
        (void)printf(" %9.2f %9.2f %9.1f %%", (double)line->bytes / line->seconds * 1e-9,
                     (double)line->products / line->seconds * 1e-9, 100.0 * floor / line->seconds);
    (void)printf("\n");
}

static void print_rest(const fti_bench_profile *p, const char *name, double seconds) {
    (void)printf("%-38s %11.2f %7.2f %%\n", name, 1e6 * seconds, 100.0 * seconds / step_of(p));
}

static double floors_of(const fti_bench_profile *p, const floors *f) {
    double sum = 0.0;
    for (size_t i = 0; i < p->count; i++) sum += floor_of(f, &p->lines[i]);
    return sum / (double)p->steps;
}

static void print_profile(const fti_bench_profile *p, const floors *f, const char *title) {
    if (p->steps == 0) return;
    double steps = (double)p->steps;
    (void)printf("\n%s: %.0f steps of %.1f rows, %.3f ms each; floor of the weights %.3f ms\n",
                 title, steps, (double)p->rows / steps, 1e3 * step_of(p), 1e3 * floors_of(p, f));
    (void)printf("%-29s %8s %11s %9s %9s %9s %11s\n", "operator", "calls", "us a step", "share",
                 "GB/s", "GMAC/s", "of floor");
    for (size_t i = 0; i < p->count; i++) print_line(p, f, &p->lines[i]);
    print_rest(p, "between operators", (p->inside - operators_of(p)) / steps);
    print_rest(p, "between steps", outside_of(p));
}

static void print_report(const void *user) {
    const report *r = user;
    (void)printf("\nfloors      %.1f GB/s read, %.0f GMAC/s by %s, %.0f by %s\n",
                 r->floors.bytes_per_second * 1e-9, r->floors.integer_products * 1e-9,
                 r->floors.integer_name, r->floors.float_products * 1e-9, r->floors.float_name);
    print_profile(&r->profiles.decode, &r->floors, "decode");
    print_profile(&r->profiles.prompt, &r->floors, "prompt");
}

static json_t *line_json(const fti_bench_profile *p, const floors *f,
                         const fti_bench_profile_line *line) {
    double steps = (double)p->steps;
    json_t *o = json_pack("{s:s, s:f, s:f}", "operator", line->name, "calls",
                          (double)line->calls / steps, "seconds", line->seconds / steps);
    if (line->type == FTI_BENCH_NO_TYPE) return o;
    (void)json_object_set_new(o, "weights", json_string(fti_type_name(line->type)));
    (void)json_object_set_new(o, "bytes", json_real((double)line->bytes / steps));
    (void)json_object_set_new(o, "products", json_real((double)line->products / steps));
    (void)json_object_set_new(o, "floor_s", json_real(floor_of(f, line) / steps));
    return o;
}

static json_t *profile_json(const fti_bench_profile *p, const floors *f) {
    if (p->steps == 0) return json_null();
    json_t *lines = json_array();
    for (size_t i = 0; i < p->count; i++)
        (void)json_array_append_new(lines, line_json(p, f, &p->lines[i]));
    double steps = (double)p->steps;
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:o}", "steps", (json_int_t)p->steps, "rows",
                     (double)p->rows / steps, "step_s", step_of(p), "floor_s", floors_of(p, f),
                     "between_operators_s", (p->inside - operators_of(p)) / steps,
                     "between_steps_s", outside_of(p), "operators", lines);
}

static json_t *report_json(const fti_bench_row *row, const report *r) {
    const floors *f = &r->floors;
    json_t *o = fti_bench_row_json(row);
    json_t *floor = json_pack("{s:f, s:f, s:f}", "read_gb_s", f->bytes_per_second * 1e-9,
                              "integer_gmac_s", f->integer_products * 1e-9, "float_gmac_s",
                              f->float_products * 1e-9);
    (void)json_object_set_new(o, "profile",
                              json_pack("{s:o, s:o, s:o}", "floors", floor, "decode",
                                        profile_json(&r->profiles.decode, f), "prompt",
                                        profile_json(&r->profiles.prompt, f)));
    return o;
}

/* ---- the run ---- */

static int run_all(fti_bench_subject *subject, const fti_bench_values *v,
                   fti_bench_profiles *profiles) {
    fti_bench_meter meter;
    uint32_t warmup = v->warmup ? v->warmup : 1;
    fti_bench_meter_start(&meter, "profile", (size_t)warmup + v->repeat);
    int code = 0;
    for (uint32_t i = 0; i < warmup + v->repeat && code == 0; i++) {
        fti_bench_meter_step(&meter, i < warmup ? "warm-up" : "");
        profiles->on = i >= warmup;
        profiles->last = 0.0;
        code = fti_bench_subject_run(subject, i < warmup);
    }
    profiles->on = false;
    fti_bench_meter_end(&meter);
    return code;
}

static int print_all(const fti_cli_call *call, const fti_bench_subject *subject, report *r) {
    fti_bench_row row;
    fti_bench_subject_row(subject, &row);
    const json_t *threads = json_object_get(row.knobs, "backend.threads");
    int code = measure_floors((uint32_t)json_integer_value(threads), &r->floors);
    fti_bench_profile *both[] = {&r->profiles.decode, &r->profiles.prompt};
    for (size_t i = 0; i < 2; i++)
        qsort(both[i]->lines, both[i]->count, sizeof both[i]->lines[0], by_time);
    if (code == 0) {
        json_t *json = report_json(&row, r);
        code = fti_bench_report_as(call, &row, 1, json, print_report, r);
        json_decref(json);
    }
    fti_bench_row_free(&row);
    return code;
}

static int profile(const fti_cli_call *call, const fti_bench_task *task) {
    report r = {.profiles = {.decode_rows = (uint32_t)task->streams}};
    fti_bench_subject subject = {0};
    ftk_config *config;
    ftk_provider_entry entry = fti_bench_profile_entry(freetoken_provider_v1, &r.profiles);
    int code = fti_bench_linked_config(call, entry, !task->scenario->many, &config);
    if (code) return code;
    /* A replayed step calls no operator. */
    ftk_status status = ftk_config_set(config, "backend.graphs", "off", NULL);
    code = status == FTK_OK ? 0 : fti_cli_fail(status, "backend.graphs cannot be set");
    if (code == 0) code = fti_bench_subject_open(&subject, task, config, task->values->model);
    if (code == 0) code = run_all(&subject, task->values, &r.profiles);
    if (code == 0) code = print_all(call, &subject, &r);
    fti_bench_subject_close(&subject);
    return code;
}

int fti_bench_profile_command(const fti_cli_call *call) {
    const fti_bench_values *v = fti_bench_values_of(call);
    fti_bench_task task;
    if (!v->model) return fti_cli_usage("profile wants --model MODEL");
    int code = fti_bench_check_output(call);
    if (code == 0) code = fti_bench_make_task(v, v->scenario ? v->scenario : "decode", &task);
    if (code) return code;
    if (task.scenario->opens)
        return fti_cli_usage("--scenario %s: profile looks at steps; take decode, prefill or batch",
                             task.scenario->name);
    fti_cli_catch_interrupt();
    fti_bench_look_at_machine(!v->no_bandwidth);
    return profile(call, &task);
}
