/* cmd_perplexity.c: `freetoken perplexity`: mean negative log-likelihood of a text. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

typedef struct score {
    const int32_t *ids; /* of the window that runs */
    size_t count;
    size_t vocabulary;
    double nll; /* sum over all windows */
    size_t tokens;
} score;

/* -log softmax(logits)[id], in double whatever the backend computed in. */
static double negative_log(const float *logits, size_t count, int32_t id) {
    double top = logits[0];
    for (size_t i = 1; i < count; i++) {
        if (logits[i] > top) top = logits[i];
    }
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) sum += exp((double)logits[i] - top);
    return log(sum) + top - (double)logits[id];
}

static int on_logits(void *user, size_t position, const float *logits, const float *layers) {
    (void)layers;
    score *s = user;
    if (position + 1 < s->count) {
        s->nll += negative_log(logits, s->vocabulary, s->ids[position + 1]);
        s->tokens++;
    }
    return fti_cli_interrupted();
}

static void show_progress(const score *s, size_t done, size_t count, bool interactive) {
    if (!interactive || s->tokens == 0) return;
    fti_cli_line_show("%3.0f%%, perplexity so far %.4f", 100.0 * (double)done / (double)count,
                      exp(s->nll / (double)s->tokens));
}

/* A last window of one token has nothing to score. */
static int score_windows(const fti_cli_call *call, ftk_engine *engine, const int32_t *ids,
                         size_t count, score *s) {
    const fti_cli_values *v = fti_cli_values_of(call);
    bool interactive = fti_cli_interactive();
    ftk_evaluate_options options = FTK_EVALUATE_OPTIONS_INIT;
    options.chunk = v->chunk;
    options.on_logits = on_logits;
    options.user = s;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = FTK_OK;
    for (size_t start = 0; status == FTK_OK && count - start > 1; start += s->count) {
        s->ids = ids + start;
        s->count = count - start < v->window ? count - start : v->window;
        status = ftk_evaluate(engine, s->ids, s->count, &options, &err);
        show_progress(s, start + s->count, count, interactive);
    }
    fti_cli_line_clear();
    return status == FTK_OK ? 0 : fti_cli_fail_with(&err);
}

static int report(const fti_cli_call *call, const score *s) {
    const fti_cli_values *v = fti_cli_values_of(call);
    double nll = s->nll / (double)s->tokens;
    if (!isfinite(nll)) {
        return fti_cli_fail(FTK_E_NON_FINITE, "%s: the sum over %zu tokens is not finite",
                            call->arguments[1], s->tokens);
    }
    if (call->common.json) {
        fti_cli_print_json(json_pack("{s:f, s:f, s:I, s:I}", "nll", nll, "perplexity", exp(nll),
                                     "tokens", (json_int_t)s->tokens, "window",
                                     (json_int_t)v->window));
    } else {
        (void)printf("perplexity %.6f, nll %.6f, %zu tokens scored, window %u\n", exp(nll), nll,
                     s->tokens, v->window);
    }
    return 0;
}

static int measure(const fti_cli_call *call, ftk_engine *engine, const fti_cli_text *text) {
    int32_t *ids;
    size_t count;
    bool special = !fti_cli_values_of(call)->plain;
    int code = fti_cli_encode(engine, text->data, text->size, special, &ids, &count);
    if (code) return code;
    score s = {.vocabulary = ftk_engine_vocabulary(engine)};
    if (count < 2) {
        code = fti_cli_usage("%s: %zu token%s; at least 2 are needed to score one",
                             call->arguments[1], count, count == 1 ? "" : "s");
    } else {
        code = score_windows(call, engine, ids, count, &s);
    }
    free(ids);
    return code ? code : report(call, &s);
}

int fti_cli_perplexity(const fti_cli_call *call) {
    const char *path = call->arguments[1];
    fti_cli_text text = {0};
    fti_cli_append(&text, "", 0);
    int code = 0;
    if (!fti_cli_read_file(path, &text)) {
        code = fti_cli_fail(FTK_E_IO, "%s: cannot read: %s", path, strerror(errno));
    }
    ftk_engine *engine = NULL;
    fti_cli_catch_interrupt();
    if (code == 0) {
        code = fti_cli_open(&call->common, call->arguments[0], FTK_OPEN_READY, &engine);
    }
    if (code == 0) code = measure(call, engine, &text);
    ftk_engine_close(engine);
    free(text.data);
    return code;
}
