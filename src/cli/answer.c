/* answer.c: runs one request for `run` and `chat`. */
#include "cli/answer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/session.h"

const char *fti_cli_finish_name(uint32_t finish) {
    if (finish == FTK_FINISH_STOP) return "stop";
    return finish == FTK_FINISH_LENGTH ? "length" : "cancelled";
}

/* ---- events ---- */

static void send_text(fti_cli_answer *a, size_t from) {
    if (!a->stream || a->broken || a->text.size == from) return;
    (void)fwrite(a->text.data + from, 1, a->text.size - from, stdout);
    a->broken = !fti_cli_flush();
}

static json_t *probability(int32_t id, float logprob) {
    return json_pack("{s:i, s:f}", "id", (int)id, "logprob", (double)logprob);
}

static void note_token(fti_cli_answer *a, const ftk_event *event) {
    if (a->ids) (void)json_array_append_new(a->ids, json_integer(event->token));
    if (!a->tops) return;
    json_t *token = probability(event->token, event->logprob);
    json_t *top = json_array();
    for (uint32_t i = 0; i < event->top_count; i++) {
        (void)json_array_append_new(top, probability(event->top_ids[i], event->top_logprobs[i]));
    }
    (void)json_object_set_new(token, "top", top);
    (void)json_array_append_new(a->tops, token);
}

static void note_end(fti_cli_answer *a, const ftk_event *event) {
    a->ended = true;
    a->result = event->result;
    a->reused_tokens = event->reused_tokens;
    a->preemptions = event->preemptions;
    a->error.status = event->status;
    if (event->status != FTK_OK && event->message) {
        (void)snprintf(a->error.message, sizeof a->error.message, "%s", event->message);
    }
    fti_cli_utf8_finish(&a->utf8, &a->text);
}

int fti_cli_answer_event(void *user, const ftk_event *event) {
    fti_cli_answer *a = user;
    size_t before = a->text.size;
    fti_cli_utf8_feed(&a->utf8, event->text, event->text_size, &a->text);
    if (event->type == FTK_EVENT_TOKEN) note_token(a, event);
    if (event->type == FTK_EVENT_DONE) note_end(a, event);
    send_text(a, before);
    return a->broken || fti_cli_interrupted();
}

void fti_cli_answer_begin(fti_cli_answer *a) {
    a->error = (ftk_error)FTK_ERROR_INIT;
    fti_cli_append(&a->text, "", 0);
}

void fti_cli_answer_free(fti_cli_answer *a) {
    json_decref(a->ids);
    json_decref(a->tops);
    free(a->text.data);
}

json_t *fti_cli_answer_json(const fti_cli_answer *a) {
    const ftk_generate_result *r = &a->result;
    char hash[17];
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, r->hash);
    json_t *object = json_pack("{s:I, s:O, s:o, s:s, s:s}", "prompt_tokens",
                               (json_int_t)r->prompt_tokens, "tokens", a->ids, "text",
                               fti_cli_json_text(a->text.data, a->text.size), "finish",
                               fti_cli_finish_name(r->finish), "hash", hash);
    if (a->tops) (void)json_object_set(object, "logprobs", a->tops);
    return object;
}

/* ---- the steps ---- */

static int run_steps(ftk_engine *engine, uint64_t id, fti_cli_answer *a) {
    ftk_error err = FTK_ERROR_INIT;
    while (!a->ended) {
        uint32_t rows = 0;
        /* One that has just ended cannot be cancelled any more, nor need it be. */
        if (fti_cli_interrupted()) (void)ftk_cancel(engine, id, NULL);
        if (ftk_engine_step(engine, &rows, &err) != FTK_OK) return fti_cli_fail_with(&err);
        if (rows == 0 && !a->ended && !fti_cli_interrupted()) {
            return fti_cli_fail(FTK_E_INTERNAL, "the request has not ended, but nothing is left "
                                                "to run");
        }
    }
    return 0;
}

int fti_cli_run_answer(ftk_engine *engine, ftk_request *request, fti_cli_answer *a) {
    ftk_error err = FTK_ERROR_INIT;
    uint64_t id = 0;
    fti_cli_answer_begin(a);
    request->on_event = fti_cli_answer_event;
    request->user = a;
    if (ftk_submit(engine, request, &id, &err) != FTK_OK) return fti_cli_fail_with(&err);
    int code = run_steps(engine, id, a);
    if (code) return code;
    if (a->broken) return FTI_CLI_EXIT_FAILED;
    return a->error.status == FTK_OK ? 0 : fti_cli_fail_with(&a->error);
}

/* ---- sampling options ---- */

static bool samples(const fti_cli_call *call) {
    static const char *const names[] = {"temp", "top-k", "top-p", "min-p", "seed"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (fti_cli_given(call, names[i])) return true;
    }
    return false;
}

static int bad_bias(const char *text) {
    return fti_cli_usage("--logit-bias: '%s' is not ID=BIAS, with BIAS a number or -inf", text);
}

static int parse_bias(const char *text, ftk_logit_bias *out) {
    const char *equals = strchr(text, '=');
    uint64_t id = 0;
    double bias = -INFINITY;
    if (!equals) return bad_bias(text);
    char *left = fti_cli_format("%.*s", (int)(equals - text), text);
    bool good = fti_cli_parse_u64(left, &id) && id <= INT32_MAX;
    free(left);
    if (strcmp(equals + 1, "-inf") != 0) good = good && fti_cli_parse_number(equals + 1, &bias);
    if (!good) return bad_bias(text);
    *out = (ftk_logit_bias){(int32_t)id, (float)bias};
    return 0;
}

static int parse_biases(const fti_cli_list *list, ftk_sampling *sampling, ftk_logit_bias **out) {
    ftk_logit_bias *biases = fti_cli_alloc(list->count, sizeof *biases);
    for (size_t i = 0; i < list->count; i++) {
        int code = parse_bias(list->items[i], &biases[i]);
        if (code == 0) continue;
        free(biases);
        return code;
    }
    sampling->biases = biases;
    sampling->bias_count = (uint32_t)list->count;
    *out = biases;
    return 0;
}

void fti_cli_turn_sampling_on(const fti_cli_values *v, ftk_sampling *s) {
    s->temperature = (float)v->temperature;
    s->top_k = v->top_k;
    s->top_p = (float)v->top_p;
    s->min_p = (float)v->min_p;
    s->seed = v->seed;
}

int fti_cli_fill_sampling(const fti_cli_call *call, ftk_sampling *s, ftk_logit_bias **biases) {
    const fti_cli_values *v = fti_cli_values_of(call);
    *biases = NULL;
    if (v->greedy && samples(call)) {
        return fti_cli_usage("--greedy excludes --temp, --top-k, --top-p, --min-p and --seed");
    }
    s->repetition_penalty = (float)v->repetition_penalty;
    s->presence_penalty = (float)v->presence_penalty;
    s->frequency_penalty = (float)v->frequency_penalty;
    s->penalty_last = v->penalty_last;
    if (samples(call)) fti_cli_turn_sampling_on(v, s);
    return parse_biases(&v->biases, s, biases);
}
