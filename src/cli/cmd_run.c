/* cmd_run.c: `freetoken run`: one generation, streamed or as one JSON object. */
#include <inttypes.h>
#include <stdlib.h>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

#include <unistd.h>

static int check_options(const fti_cli_call *call) {
    const fti_cli_values *v = fti_cli_values_of(call);
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
    if (ftk_engine_memory(engine, &json, &err) != FTK_OK) return fti_cli_fail_with(&err);
    (void)json_object_set_new(object, "memory", fti_cli_report(json));
    if (ftk_engine_provenance(engine, &json, &err) != FTK_OK) return fti_cli_fail_with(&err);
    (void)json_object_set_new(object, "provenance", fti_cli_report(json));
    return 0;
}

static int print_object(const ftk_engine *engine, const fti_cli_answer *a) {
    const ftk_generate_result *r = &a->result;
    char hash[17];
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, r->hash);
    json_t *object = json_pack(
        "{s:I, s:O, s:o, s:s, s:s, s:o}", "prompt_tokens", (json_int_t)r->prompt_tokens, "tokens",
        a->ids, "text", fti_cli_json_text(a->text.data, a->text.size), "finish",
        fti_cli_finish_name(r->finish), "hash", hash, "stats", stats_json(r));
    if (a->tops) (void)json_object_set(object, "logprobs", a->tops);
    int code = engine_reports(engine, object);
    if (code) {
        json_decref(object);
        return code;
    }
    fti_cli_print_json(object);
    return 0;
}

/* Text that stays on a terminal ends its line; a file gets the text alone. */
static void end_stream(const fti_cli_answer *a) {
    if (a->stream && !a->broken && isatty(STDOUT_FILENO) == 1) (void)fputc('\n', stdout);
}

static int generate(const fti_cli_call *call, ftk_engine *engine, ftk_request *request,
                    fti_cli_answer *a) {
    const fti_cli_values *v = fti_cli_values_of(call);
    request->max_tokens = v->max_tokens;
    request->ignore_end = v->ignore_end;
    request->chunk = v->chunk;
    request->stop = v->stop.items;
    request->stop_count = v->stop.count;
    request->logprobs = v->logprobs;
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
    code = generate(call, engine, request, &a);
    json_decref(a.ids);
    json_decref(a.tops);
    free(a.text.data);
    free(ids);
    return code;
}

int fti_cli_run(const fti_cli_call *call) {
    ftk_request request = FTK_REQUEST_INIT;
    ftk_logit_bias *biases = NULL;
    ftk_engine *engine;
    int code = check_options(call);
    if (code == 0) code = fti_cli_fill_sampling(call, &request.sampling, &biases);
    if (code) return code;
    fti_cli_catch_interrupt();
    code = fti_cli_open(&call->common, call->arguments[0], FTK_OPEN_READY, &engine);
    if (code == 0) {
        code = run_prompt(call, engine, &request);
        ftk_engine_close(engine);
    }
    free(biases);
    return code;
}
