/* decode.c: the scenario `decode`: one stream, again and again. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "machine.h"
#include "summary.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

#define DEFAULT_PROMPT "Once upon a time there was a little girl who lived near the forest."

typedef struct series {
    const fti_bench_values *values;
    const char *void_reason;      /* NULL: valid */
    ftk_generate_result *results; /* warm-up first */
    size_t count;
    size_t warmup;
} series;

static int make_prompt(const fti_bench_values *v, const ftk_engine *engine, int32_t **ids,
                       size_t *count) {
    int code = fti_cli_encode_prompt(engine, v->prompt ? v->prompt : DEFAULT_PROMPT, NULL, false,
                                     ids, count);
    if (code || v->prompt_tokens == 0) return code;
    size_t have = *count;
    int32_t *repeated = fti_cli_alloc(v->prompt_tokens, sizeof *repeated);
    for (size_t i = 0; i < v->prompt_tokens; i++) repeated[i] = (*ids)[i % have];
    free(*ids);
    *ids = repeated;
    *count = v->prompt_tokens;
    return 0;
}

static int stop_if_interrupted(void *user, int32_t id, const char *text, size_t size) {
    (void)user;
    (void)id;
    (void)text;
    (void)size;
    return fti_cli_interrupted();
}

static int run_all(series *s, ftk_engine *engine, const int32_t *ids, size_t count) {
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    options.max_tokens = s->values->tokens;
    options.ignore_end = 1;
    options.on_token = stop_if_interrupted;
    for (size_t i = 0; i < s->count; i++) {
        ftk_error err = FTK_ERROR_INIT;
        s->results[i] = (ftk_generate_result)FTK_GENERATE_RESULT_INIT;
        if (ftk_generate(engine, ids, count, &options, &s->results[i], &err) != FTK_OK) {
            return fti_cli_fail_with(&err);
        }
        if (s->results[i].finish == FTK_FINISH_CANCELLED) {
            return fti_cli_fail(FTK_E_CANCELLED, "interrupted in run %zu of %zu", i + 1, s->count);
        }
    }
    s->void_reason = fti_bench_void_reason(s->results, s->count, s->values->tokens);
    return 0;
}

static fti_bench_spread spread(const series *s, double (*rate)(const ftk_generate_result *)) {
    size_t measured = s->count - s->warmup;
    double *values = fti_cli_alloc(measured, sizeof *values);
    for (size_t i = 0; i < measured; i++) values[i] = rate(&s->results[s->warmup + i]);
    fti_bench_spread result = fti_bench_spread_of(values, measured);
    free(values);
    return result;
}

/* Figures of a void series are not given at all. */
static json_t *spread_json(const series *s, double (*rate)(const ftk_generate_result *)) {
    if (s->void_reason) return json_null();
    fti_bench_spread r = spread(s, rate);
    return json_pack("{s:f, s:f, s:f}", "median", r.median, "min", r.min, "max", r.max);
}

static json_t *run_json(const series *s, size_t index) {
    const ftk_generate_result *r = &s->results[index];
    char hash[17];
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, r->hash);
    return json_pack("{s:b, s:s, s:I, s:f, s:f, s:f, s:f, s:I, s:{s:I}, s:I}", "warmup",
                     index < s->warmup, "hash", hash, "tokens", (json_int_t)r->tokens,
                     "decode_tok_s", fti_bench_decode_rate(r), "prefill_tok_s",
                     fti_bench_prefill_rate(r), "decode_seconds", r->decode_seconds,
                     "prefill_seconds", r->prefill_seconds, "prefill_steps",
                     (json_int_t)r->prefill_steps, "executed_batch_sizes", "1",
                     (json_int_t)r->decode_steps, "graph_replays", (json_int_t)r->graph_replays);
}

static json_t *runs_json(const series *s) {
    json_t *runs = json_array();
    for (size_t i = 0; i < s->count; i++) (void)json_array_append_new(runs, run_json(s, i));
    return runs;
}

/* Over the measured runs. */
static uint64_t decode_steps(const series *s) {
    uint64_t steps = 0;
    for (size_t i = s->warmup; i < s->count; i++) steps += s->results[i].decode_steps;
    return steps;
}

static json_t *reason_json(const series *s) {
    return s->void_reason ? json_string(s->void_reason) : json_null();
}

static int print_json(const series *s, const ftk_engine *engine) {
    ftk_error err = FTK_ERROR_INIT;
    char *provenance = NULL;
    if (ftk_engine_provenance(engine, &provenance, &err) != FTK_OK) return fti_cli_fail_with(&err);
    const fti_bench_values *v = s->values;
    json_t *settings = json_pack(
        "{s:o, s:I, s:I, s:I, s:I}", "model", fti_cli_json_text(v->model, strlen(v->model)),
        "prompt_tokens", (json_int_t)s->results[0].prompt_tokens, "tokens", (json_int_t)v->tokens,
        "repeat", (json_int_t)v->repeat, "warmup", (json_int_t)v->warmup);
    fti_cli_print_json(json_pack(
        "{s:s, s:s, s:s, s:b, s:o, s:o, s:o, s:{s:I}, s:o, s:o, s:o, s:o}", "scenario", "decode",
        "cause", "model execution", "version", ftk_version(), "valid", s->void_reason == NULL,
        "void_reason", reason_json(s), "decode_tok_s", spread_json(s, fti_bench_decode_rate),
        "prefill_tok_s", spread_json(s, fti_bench_prefill_rate), "executed_batch_sizes", "1",
        (json_int_t)decode_steps(s), "settings", settings, "runs", runs_json(s), "machine",
        fti_bench_machine(), "provenance", fti_cli_report(provenance)));
    return 0;
}

static void print_spread(const char *name, fti_bench_spread r) {
    (void)printf("%-16s %10.2f %10.2f %10.2f\n", name, r.median, r.min, r.max);
}

static void print_machine(void) {
    json_t *machine = fti_bench_machine();
    const char *cpu = fti_cli_member(machine, "cpu");
    (void)printf("machine     %s, %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " cores\n",
                 cpu[0] ? cpu : "unknown processor",
                 json_integer_value(json_object_get(machine, "cores_allowed")),
                 json_integer_value(json_object_get(machine, "cores_online")));
    json_decref(machine);
}

static void print_table(const series *s) {
    (void)printf("scenario    decode, one stream\ncause       model execution\n");
    (void)printf("library     libfreetoken %s\n", ftk_version());
    print_machine();
    (void)printf("model       %s\n", s->values->model);
    (void)printf("work        %" PRIu64 " prompt tokens, %u tokens, %u runs after %u warm-up\n",
                 s->results[0].prompt_tokens, s->values->tokens, s->values->repeat,
                 s->values->warmup);
    (void)printf("batch sizes {\"1\": %" PRIu64 "}\n", decode_steps(s));
    for (size_t i = 0; i < s->count; i++) {
        (void)printf("hash        %016" PRIx64 "%s\n", s->results[i].hash,
                     i < s->warmup ? " (warm-up)" : "");
    }
    if (s->void_reason) {
        (void)printf("void        %s\n", s->void_reason);
        return;
    }
    (void)printf("\n%-16s %10s %10s %10s\n", "tok/s", "median", "min", "max");
    print_spread("decode", spread(s, fti_bench_decode_rate));
    print_spread("prefill", spread(s, fti_bench_prefill_rate));
}

static int measure(const fti_cli_call *call, ftk_engine *engine) {
    const fti_bench_values *v = fti_bench_values_of(call);
    series s = {.values = v, .count = (size_t)v->repeat + v->warmup, .warmup = v->warmup};
    int32_t *ids;
    size_t count;
    int code = make_prompt(v, engine, &ids, &count);
    if (code) return code;
    s.results = fti_cli_alloc(s.count, sizeof *s.results);
    code = run_all(&s, engine, ids, count);
    if (code == 0 && call->common.json) code = print_json(&s, engine);
    if (code == 0 && !call->common.json) print_table(&s);
    if (code == 0 && s.void_reason) code = fti_cli_fail(FTK_E_INTERNAL, "void: %s", s.void_reason);
    free(s.results);
    free(ids);
    return code;
}

int fti_bench_decode(const fti_cli_call *call) {
    const fti_bench_values *v = fti_bench_values_of(call);
    if (!v->model) return fti_cli_usage("decode wants --model MODEL");
    if (v->prompt && v->prompt_tokens) {
        return fti_cli_usage("--prompt and --prompt-tokens exclude each other");
    }
    ftk_engine *engine;
    fti_cli_catch_interrupt();
    int code = fti_cli_open(&call->common, v->model, FTK_OPEN_READY, &engine);
    if (code) return code;
    code = measure(call, engine);
    ftk_engine_close(engine);
    return code;
}
