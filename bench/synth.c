/* synth.c: the command `synth`: writes synthetic checkpoints, and says what their routers do. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "ends.h"
#include "meter.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"
#include "synth_plan.h"
#include "synth_routing.h"
#include "synth_write.h"

#define REFRESH_SECONDS 0.2

typedef struct synthesis {
    const fti_bench_values *values;
    fti_synth_plan plan;
    double target; /* hit rate, 0: no skew */
    bool measured;
    fti_synth_rates rates;
    double seconds; /* of writing */
} synthesis;

/* ---- the description ---- */

static int describe(const fti_cli_call *call, fti_synth_description *d) {
    const fti_bench_values *v = fti_bench_values_of(call);
    fti_synth_message message;
    if (!fti_synth_describe(call->arguments[0], d)) {
        return fti_cli_usage("no kind '%s'; wanted %s", call->arguments[0], fti_synth_kinds());
    }
    d->seed = v->seed;
    const char *problem = v->types ? fti_synth_set_types(d, v->types, &message) : NULL;
    return problem ? fti_cli_usage("--types: %s", problem) : 0;
}

static int read_skew(const char *text, double *target) {
    *target = 0;
    if (!text || strcmp(text, "uniform") == 0) return 0;
    if (fti_cli_parse_number(text, target) && *target >= FTI_SYNTH_LEAST_RATE &&
        *target <= FTI_SYNTH_MOST_RATE)
        return 0;
    return fti_cli_usage("--skew: '%s' is neither 'uniform' nor a hit rate from %.2f to %.2f", text,
                         FTI_SYNTH_LEAST_RATE, FTI_SYNTH_MOST_RATE);
}

static int make_plan(const fti_cli_call *call, synthesis *s) {
    fti_synth_description d;
    ftk_error err = FTK_ERROR_INIT;
    int code = describe(call, &d);
    if (code == 0) code = read_skew(s->values->skew, &s->target);
    if (code) return code;
    ftk_status status = FTK_OK;
    if (s->target > 0) status = fti_synth_calibrate(&d, s->target, &err);
    if (status == FTK_OK) status = fti_synth_plan_make(&d, &s->plan, &err);
    return status == FTK_OK ? 0 : fti_cli_fail_with(&err);
}

/* ---- writing ---- */

typedef struct progress {
    struct timespec start;
    double shown; /* seconds at which the line was last renewed */
    bool interactive;
} progress;

static bool show_progress(void *user, uint64_t done, uint64_t total) {
    progress *p = user;
    double seconds = fti_bench_seconds_since(&p->start);
    if (p->interactive && seconds - p->shown >= REFRESH_SECONDS) {
        double rate = (double)done / seconds;
        p->shown = seconds;
        fti_cli_line_show("writing %.2f of %.2f GB, %.2f GB/s, %.0f s left", (double)done / 1e9,
                          (double)total / 1e9, rate / 1e9, (double)(total - done) / rate);
    }
    return !fti_cli_interrupted();
}

static int thread_count(const char *text, uint32_t *threads) {
    uint64_t number = 0;
    if (text && (!fti_cli_parse_u64(text, &number) || number == 0 || number > 64)) {
        return fti_cli_usage("--threads: '%s' is not a whole number from 1 to 64", text);
    }
    *threads = (uint32_t)number;
    return 0;
}

static int write_file(const fti_cli_call *call, synthesis *s) {
    progress p = {.interactive = fti_cli_interactive()};
    fti_synth_job job = {.plan = &s->plan,
                         .path = s->values->output,
                         .sparse = s->values->sparse,
                         .progress = show_progress,
                         .user = &p};
    int code = thread_count(call->common.threads, &job.threads);
    if (code) return code;
    ftk_error err = FTK_ERROR_INIT;
    /* Whatever asks the program to end, a file of many gigabytes must not stay behind. */
    fti_cli_catch_interrupt();
    fti_bench_catch_ends();
    (void)clock_gettime(CLOCK_MONOTONIC, &p.start);
    ftk_status status = fti_synth_write_file(&job, &err);
    s->seconds = fti_bench_seconds_since(&p.start);
    fti_cli_line_clear();
    return status == FTK_OK ? 0 : fti_cli_fail_with(&err);
}

/* ---- the report ---- */

static json_t *rates_json(const synthesis *s) {
    const fti_synth_rates *r = &s->rates;
    json_t *report = json_pack("{s:i, s:i, s:f, s:s}", "slots_per_layer", (int)r->slots, "tokens",
                               (int)r->tokens, "even_draw", r->even, "policy", "lru");
    if (s->plan.kept_channels) {
        (void)json_object_update_new(report,
                                     json_pack("{s:f, s:f, s:f}", "mean", r->mean, "lowest_layer",
                                               r->low, "highest_layer", r->high));
    }
    return report;
}

static json_t *report_json(const synthesis *s) {
    const fti_bench_values *v = s->values;
    const fti_synth_shape *shape = &s->plan.d.shape;
    json_t *report = json_pack(
        "{s:s, s:s, s:I, s:o, s:o, s:f, s:o, s:I, s:I, s:I}", "command", "synth", "kind",
        shape->name, "seed", (json_int_t)s->plan.d.seed, "path",
        v->output ? fti_cli_json_text(v->output, strlen(v->output)) : json_null(), "skew",
        s->target > 0 ? json_real(s->target) : json_string("uniform"), "popularity_exponent",
        s->plan.d.skew, "sparse", json_boolean(v->sparse), "bytes", (json_int_t)s->plan.file_bytes,
        "header_bytes", (json_int_t)s->plan.header.size, "tensors",
        (json_int_t)s->plan.tensor_count);
    if (v->output) (void)json_object_set_new(report, "seconds", json_real(s->seconds));
    if (s->measured) (void)json_object_set_new(report, "hit_rate", rates_json(s));
    return report;
}

static void print_rates(const synthesis *s) {
    const fti_synth_rates *r = &s->rates;
    (void)printf("cache       least recently used, %" PRIu32 " of %" PRIu32
                 " experts in every layer, %zu tokens\n",
                 r->slots, s->plan.d.shape.experts, r->tokens);
    if (s->plan.kept_channels) {
        (void)printf("hit rate    %.3f (layers %.3f to %.3f), wanted %.3f\n", r->mean, r->low,
                     r->high, s->target);
    } else {
        (void)printf("hit rate    depends on the context without skew: only a run tells\n");
    }
    (void)printf("even draw   %.3f\n", r->even);
}

static void print_report(const synthesis *s) {
    const fti_bench_values *v = s->values;
    const fti_synth_shape *shape = &s->plan.d.shape;
    double written = (double)(v->sparse ? s->plan.header.size : s->plan.file_bytes) / 1e9;
    (void)printf("kind        %s: %" PRIu32 " layers, %" PRIu32 " experts, %" PRIu32
                 " used, seed %" PRIu64 "\n",
                 shape->name, shape->layers, shape->experts, shape->used, s->plan.d.seed);
    (void)printf("size        %zu tensors, %.3f GB\n", s->plan.tensor_count,
                 (double)s->plan.file_bytes / 1e9);
    if (v->output) {
        (void)printf("written     %s: %.3f GB in %.2f s, %.2f GB/s\n", v->output, written,
                     s->seconds, written / s->seconds);
    }
    if (v->sparse) (void)printf("sparse      no weights: every tensor reads as zeros\n");
    if (s->measured) print_rates(s);
}

static int finish(const fti_cli_call *call, synthesis *s) {
    int code = s->values->output ? write_file(call, s) : 0;
    if (code) return code;
    s->measured = s->values->measure || s->target > 0;
    if (s->measured) fti_synth_measure(&s->plan, &s->rates);
    if (call->common.json) {
        fti_cli_print_json(report_json(s));
    } else {
        print_report(s);
    }
    return 0;
}

static int check_output(const fti_bench_values *v) {
    if (!v->output && !v->measure)
        return fti_cli_usage("synth wants --output FILE, or --measure to write nothing");
    if (v->output && !v->output[0])
        return fti_cli_usage("--output: the name is empty; give the file to write, as in "
                             "-o tiny.gguf");
    if (v->output && strcmp(v->output, "-") == 0)
        return fti_cli_usage("--output: a checkpoint cannot go to standard output ('-'); give the "
                             "file to write, as in -o tiny.gguf");
    return 0;
}

int fti_bench_synth(const fti_cli_call *call) {
    synthesis s = {.values = fti_bench_values_of(call)};
    int code = check_output(s.values);
    if (code == 0) code = make_plan(call, &s);
    if (code) return code;
    code = finish(call, &s);
    fti_synth_plan_free(&s.plan);
    return code;
}
