/* cmd_logits.c: `freetoken logits`: the raw rows, in a file that appears whole. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/session.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows are written as the host has them: little-endian"
#endif

typedef struct rows {
    fti_cli_file file;
    size_t vocabulary;
    int reason; /* errno of a write that failed */
} rows;

static int on_logits(void *user, size_t position, const float *logits, const float *layers) {
    (void)position;
    (void)layers;
    rows *r = user;
    if (fti_cli_interrupted()) return 1;
    if (fwrite(logits, sizeof *logits, r->vocabulary, r->file.stream) == r->vocabulary) return 0;
    r->reason = errno;
    return 1;
}

static int cannot_write(const char *path, int reason) {
    return fti_cli_fail(FTK_E_IO, "%s: cannot write: %s", path, strerror(reason));
}

static int evaluate(const fti_cli_call *call, ftk_engine *engine, const int32_t *ids,
                    size_t count) {
    const fti_cli_values *v = fti_cli_values_of(call);
    rows r = {.vocabulary = ftk_engine_vocabulary(engine)};
    if (!fti_cli_file_begin(&r.file, v->out, 0666)) return cannot_write(v->out, errno);
    ftk_evaluate_options options = FTK_EVALUATE_OPTIONS_INIT;
    options.chunk = v->chunk;
    options.on_logits = on_logits;
    options.user = &r;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = ftk_evaluate(engine, ids, count, &options, &err);
    if (status == FTK_OK) {
        return fti_cli_file_commit(&r.file) ? 0 : cannot_write(v->out, errno);
    }
    fti_cli_file_abandon(&r.file);
    return r.reason ? cannot_write(v->out, r.reason) : fti_cli_fail_with(&err);
}

static void report(const fti_cli_call *call, size_t count, size_t vocabulary) {
    const char *out = fti_cli_values_of(call)->out;
    if (call->common.json) {
        fti_cli_print_json(
            json_pack("{s:o, s:I, s:I, s:s}", "out", fti_cli_json_text(out, strlen(out)), "tokens",
                      (json_int_t)count, "vocabulary", (json_int_t)vocabulary, "format", "f32le"));
        return;
    }
    fti_cli_say(stderr, "%s: %zu rows of %zu 32-bit floats\n", out, count, vocabulary);
}

int fti_cli_logits(const fti_cli_call *call) {
    const fti_cli_values *v = fti_cli_values_of(call);
    int code = fti_cli_check_prompt(v->prompt, v->file);
    if (code) return code;
    if (!v->out) return fti_cli_usage("logits wants --out FILE");
    ftk_engine *engine;
    int32_t *ids = NULL;
    size_t count = 0;
    fti_cli_catch_interrupt();
    code = fti_cli_open(&call->common, call->arguments[0], FTK_OPEN_READY, &engine);
    if (code) return code;
    code = fti_cli_encode_prompt(engine, v->prompt, v->file, !v->plain, &ids, &count);
    if (code == 0) code = evaluate(call, engine, ids, count);
    if (code == 0) report(call, count, ftk_engine_vocabulary(engine));
    free(ids);
    ftk_engine_close(engine);
    return code;
}
