/* cmd_run.c: `freetoken run`: one generation, streamed or as one JSON object, or a file of
 * requests (requests.h). */
#include <inttypes.h>
#include <stdlib.h>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/requests.h"
#include "cli/session.h"
#include "cli/text.h"

#include <sys/stat.h>
#include <unistd.h>

/* Options that --requests alone has, and those it excludes. */
static int check_requests(const fti_cli_call *call) {
    static const char *const own[] = {"output", "ordered", "keep-going", "batch"};
    const fti_cli_values *v = fti_cli_values_of(call);
    if (v->requests && (v->prompt || v->file))
        return fti_cli_usage("--requests FILE excludes -p TEXT and -f FILE: each line of FILE has "
                             "its own prompt");
    for (size_t i = 0; !v->requests && i < sizeof own / sizeof own[0]; i++)
        if (fti_cli_given(call, own[i])) return fti_cli_usage("--%s wants --requests", own[i]);
    return 0;
}

static int check_options(const fti_cli_call *call) {
    const fti_cli_values *v = fti_cli_values_of(call);
    int code = check_requests(call);
    if (code || v->requests) return code;
    if (v->logprobs && !call->common.json) return fti_cli_usage("--logprobs wants --json");
    return fti_cli_check_prompt(v->prompt, v->file);
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
                  rate(r->decode_steps, r->decode_seconds), fti_cli_finish_name(r->finish));
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
    if (ftk_engine_stats(engine, &json, &err) != FTK_OK) return fti_cli_fail_with(&err);
    json_t *all = fti_cli_report(json);
    (void)json_object_set(json_object_get(object, "stats"), "experts",
                          json_object_get(all, "experts"));
    json_decref(all);
    if (ftk_engine_memory(engine, &json, &err) != FTK_OK) return fti_cli_fail_with(&err);
    (void)json_object_set_new(object, "memory", fti_cli_report(json));
    if (ftk_engine_provenance(engine, &json, &err) != FTK_OK) return fti_cli_fail_with(&err);
    (void)json_object_set_new(object, "provenance", fti_cli_report(json));
    return 0;
}

static int print_object(const ftk_engine *engine, const fti_cli_answer *a) {
    json_t *object = fti_cli_answer_json(a);
    (void)json_object_set_new(object, "stats", stats_json(&a->result));
    int code = engine_reports(engine, object);
    if (code) {
        json_decref(object);
        return code;
    }
    fti_cli_print_json(object);
    return 0;
}

/* One pipe or file takes both streams: what is printed of the text follows it there. */
static bool is_shared(void) {
    struct stat out, err;
    return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
           out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

/* Text that something else follows ends its line; a file of its own gets the text alone. */
static void end_stream(const fti_cli_answer *a) {
    if (!a->stream || a->broken || !(isatty(STDOUT_FILENO) == 1 || is_shared())) return;
    (void)fputc('\n', stdout);
    (void)fti_cli_flush();
}

static int generate(ftk_engine *engine, ftk_request *request, fti_cli_answer *a) {
    int code = fti_cli_run_answer(engine, request, a);
    end_stream(a);
    if (code) return code;
    if (!a->stream) code = print_object(engine, a);
    if (a->stream) print_summary(&a->result);
    if (code) return code;
    return a->result.finish == FTK_FINISH_CANCELLED ? FTI_CLI_EXIT_FAILED : 0;
}

static int run_prompt(const fti_cli_call *call, ftk_engine *engine, ftk_request *request) {
    const fti_cli_values *v = fti_cli_values_of(call);
    int32_t *ids = NULL;
    int code = fti_cli_encode_prompt(engine, v->prompt, v->file, v->special, &ids,
                                     &request->token_count);
    if (code) return code;
    request->tokens = ids;
    fti_cli_answer a = {.stream = !call->common.json};
    if (!a.stream) a.ids = json_array();
    if (v->logprobs) a.tops = json_array();
    code = generate(engine, request, &a);
    fti_cli_answer_free(&a);
    free(ids);
    return code;
}

static void fill_request(const fti_cli_values *v, ftk_request *request) {
    request->max_tokens = v->max_tokens;
    request->ignore_end = v->ignore_end;
    request->chunk = v->chunk;
    request->stop = v->stop.items;
    request->stop_count = v->stop.count;
    request->logprobs = v->logprobs;
    request->text_flags = v->special ? FTK_TOKENIZE_SPECIAL : 0;
}

static int run_one(const fti_cli_call *call, ftk_request *request) {
    ftk_engine *engine;
    fti_cli_catch_interrupt();
    int code = fti_cli_open(&call->common, call->arguments[0], FTK_OPEN_READY, &engine);
    if (code) return code;
    code = run_prompt(call, engine, request);
    ftk_engine_close(engine);
    return code;
}

int fti_cli_run(const fti_cli_call *call) {
    ftk_request request = FTK_REQUEST_INIT;
    ftk_logit_bias *biases = NULL;
    const fti_cli_values *v = fti_cli_values_of(call);
    int code = check_options(call);
    if (code == 0) code = fti_cli_fill_sampling(call, &request.sampling, &biases);
    if (code) return code;
    fill_request(v, &request);
    code = v->requests ? fti_cli_run_requests(call, &request) : run_one(call, &request);
    free(biases);
    return code;
}
