/* cmd_tokenize.c: `freetoken tokenize`: ids and pieces. */
#include <stdlib.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/session.h"

typedef struct piece {
    const char *text;
    size_t size;
} piece;

static void print_json(const int32_t *ids, const piece *pieces, size_t count) {
    json_t *numbers = json_array();
    json_t *texts = json_array();
    for (size_t i = 0; i < count; i++) {
        (void)json_array_append_new(numbers, json_integer(ids[i]));
        (void)json_array_append_new(texts, fti_cli_json_text(pieces[i].text, pieces[i].size));
    }
    fti_cli_print_json(
        json_pack("{s:I, s:o, s:o}", "count", (json_int_t)count, "ids", numbers, "pieces", texts));
}

static void print_lines(const int32_t *ids, const piece *pieces, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char *shown = fti_cli_shown(pieces[i].text, pieces[i].size);
        (void)printf("%7ld  \"%s\"\n", (long)ids[i], shown);
        free(shown);
    }
}

static int show(const fti_cli_call *call, const ftk_engine *engine, const int32_t *ids,
                size_t count) {
    piece *pieces = calloc(count, sizeof *pieces);
    if (!pieces) return fti_cli_fail(FTK_E_NO_MEMORY, "out of memory");
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = FTK_OK;
    for (size_t i = 0; status == FTK_OK && i < count; i++) {
        status = ftk_token_text(engine, ids[i], &pieces[i].text, &pieces[i].size, &err);
    }
    if (status == FTK_OK) (call->common.json ? print_json : print_lines)(ids, pieces, count);
    free(pieces);
    return status == FTK_OK ? 0 : fti_cli_fail_with(&err);
}

int fti_cli_tokenize(const fti_cli_call *call) {
    const fti_cli_values *v = fti_cli_values_of(call);
    int code = fti_cli_check_prompt(v->prompt, v->file);
    if (code) return code;
    ftk_engine *engine;
    int32_t *ids = NULL;
    size_t count = 0;
    code = fti_cli_open(&call->common, call->arguments[0], FTK_OPEN_CONFIGURED, &engine);
    if (code) return code;
    code = fti_cli_encode_prompt(engine, v->prompt, v->file, !v->plain, &ids, &count);
    if (code == 0) code = show(call, engine, ids, count);
    free(ids);
    ftk_engine_close(engine);
    return code;
}
