/* cmd_run.c: `freetoken run`: one generation, streamed or as one JSON object. */
#include <inttypes.h>
#include <stdlib.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

#include <unistd.h>

typedef struct generation {
    bool stream; /* text goes out as it comes */
    bool broken; /* standard output cannot be written */
    fti_cli_utf8 utf8;
    fti_cli_text text; /* streaming: of the current token only */
    json_t *ids;
} generation;

static bool send_text(generation *g) {
    if (!g->stream || g->text.size == 0) return true;
    (void)fwrite(g->text.data, 1, g->text.size, stdout);
    g->text.size = 0;
    g->broken = !fti_cli_flush();
    return !g->broken;
}

static int on_token(void *user, int32_t id, const char *text, size_t size) {
    generation *g = user;
    fti_cli_utf8_feed(&g->utf8, text, size, &g->text);
    if (g->ids) (void)json_array_append_new(g->ids, json_integer(id));
    return !send_text(g) || fti_cli_interrupted();
}

static bool samples(const fti_cli_call *call) {
    return fti_cli_given(call, "temp") || fti_cli_given(call, "top-k") ||
           fti_cli_given(call, "top-p") || fti_cli_given(call, "min-p") ||
           fti_cli_given(call, "seed");
}

static int check_options(const fti_cli_call *call) {
    const fti_cli_values *v = fti_cli_values_of(call);
    if (v->greedy && samples(call)) {
        return fti_cli_usage("--greedy excludes --temp, --top-k, --top-p, --min-p and --seed");
    }
    return fti_cli_check_prompt(v->prompt, v->file);
}

static void fill_options(const fti_cli_call *call, ftk_generate_options *options) {
    const fti_cli_values *v = fti_cli_values_of(call);
    options->max_tokens = v->max_tokens;
    options->ignore_end = v->ignore_end;
    options->chunk = v->chunk;
    options->on_token = on_token;
    if (!samples(call)) return;
    options->sampling.temperature = (float)v->temperature;
    options->sampling.top_k = v->top_k;
    options->sampling.top_p = (float)v->top_p;
    options->sampling.min_p = (float)v->min_p;
    options->sampling.seed = v->seed;
}

static const char *finish_name(uint32_t finish) {
    if (finish == FTK_FINISH_STOP) return "stop";
    return finish == FTK_FINISH_LENGTH ? "length" : "cancelled";
}

static double rate(uint64_t count, double seconds) {
    return seconds > 0.0 ? (double)count / seconds : 0.0;
}

static void print_summary(const ftk_generate_result *r) {
    (void)fprintf(stderr,
                  "%" PRIu64 " prompt tokens, %" PRIu64 " tokens, %.2f s, prefill %.1f tok/s, "
                  "decode %.1f tok/s, finish %s\n",
                  r->prompt_tokens, r->tokens, r->prefill_seconds + r->decode_seconds,
                  rate(r->prompt_tokens, r->prefill_seconds),
                  rate(r->decode_steps, r->decode_seconds), finish_name(r->finish));
}

static json_t *stats_json(const ftk_generate_result *r) {
    return json_pack("{s:f, s:f, s:f, s:f, s:{s:{s:I}, s:I}, s:I}", "prefill_tok_s",
                     rate(r->prompt_tokens, r->prefill_seconds), "decode_tok_s",
                     rate(r->decode_steps, r->decode_seconds), "prefill_seconds",
                     r->prefill_seconds, "decode_seconds", r->decode_seconds,
                     "executed_batch_sizes", "decode", "1", (json_int_t)r->decode_steps,
                     "prefill_steps", (json_int_t)r->prefill_steps, "graph_replays",
                     (json_int_t)r->graph_replays);
}

static int engine_reports(const ftk_engine *engine, json_t *object) {
    ftk_error err = FTK_ERROR_INIT;
    char *json = NULL;
    if (ftk_engine_memory(engine, &json, &err) != FTK_OK) return fti_cli_fail_with(&err);
    (void)json_object_set_new(object, "memory", fti_cli_report(json));
    if (ftk_engine_provenance(engine, &json, &err) != FTK_OK) return fti_cli_fail_with(&err);
    (void)json_object_set_new(object, "provenance", fti_cli_report(json));
    return 0;
}

static int print_object(const ftk_engine *engine, generation *g, const ftk_generate_result *r) {
    char hash[17];
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, r->hash);
    json_t *object = json_pack("{s:I, s:O, s:o, s:s, s:s, s:o}", "prompt_tokens",
                               (json_int_t)r->prompt_tokens, "tokens", g->ids, "text",
                               fti_cli_json_text(g->text.data, g->text.size), "finish",
                               finish_name(r->finish), "hash", hash, "stats", stats_json(r));
    int code = engine_reports(engine, object);
    if (code) {
        json_decref(object);
        return code;
    }
    fti_cli_print_json(object);
    return 0;
}

/* Text that stays on a terminal ends its line; a file gets the text alone. */
static void end_stream(generation *g) {
    fti_cli_utf8_finish(&g->utf8, &g->text);
    if (g->stream && isatty(STDOUT_FILENO) == 1) fti_cli_append(&g->text, "\n", 1);
    (void)send_text(g);
}

static int generate(const fti_cli_call *call, ftk_engine *engine, const int32_t *ids, size_t count,
                    generation *g) {
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
    ftk_error err = FTK_ERROR_INIT;
    fill_options(call, &options);
    options.user = g;
    ftk_status status = ftk_generate(engine, ids, count, &options, &result, &err);
    if (!g->broken) end_stream(g);
    if (g->broken) return FTI_CLI_EXIT_FAILED; /* said when standard output is closed */
    if (status != FTK_OK) return fti_cli_fail_with(&err);
    int code = g->stream ? 0 : print_object(engine, g, &result);
    if (g->stream) print_summary(&result);
    if (code) return code;
    return result.finish == FTK_FINISH_CANCELLED ? FTI_CLI_EXIT_FAILED : 0;
}

int fti_cli_run(const fti_cli_call *call) {
    const fti_cli_values *v = fti_cli_values_of(call);
    int code = check_options(call);
    if (code) return code;
    ftk_engine *engine;
    int32_t *ids = NULL;
    size_t count = 0;
    fti_cli_catch_interrupt();
    code = fti_cli_open(&call->common, call->arguments[0], FTK_OPEN_READY, &engine);
    if (code) return code;
    code = fti_cli_encode_prompt(engine, v->prompt, v->file, v->special, &ids, &count);
    if (code == 0) {
        generation g = {.stream = !call->common.json};
        if (!g.stream) g.ids = json_array();
        fti_cli_append(&g.text, "", 0);
        code = generate(call, engine, ids, count, &g);
        json_decref(g.ids);
        free(g.text.data);
    }
    free(ids);
    ftk_engine_close(engine);
    return code;
}
