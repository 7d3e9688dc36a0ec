/* cmd_chat.c: `freetoken chat`: a conversation, line by line. */
#include <stdlib.h>
#include <string.h>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/line_input.h"
#include "cli/output.h"
#include "cli/session.h"

typedef struct chat {
    const fti_cli_call *call;
    ftk_engine *engine;
    ftk_sampling sampling;
    uint32_t flags; /* FTK_CHAT_ */
    ftk_message *messages;
    size_t count, capacity;
} chat;

/* ---- the dialogue ---- */

static void add(chat *c, const char *role, const char *content, size_t size) {
    if (c->count == c->capacity) {
        c->capacity = 2 * c->capacity + 8;
        ftk_message *more = fti_cli_alloc(c->capacity, sizeof *more);
        if (c->count) memcpy(more, c->messages, c->count * sizeof *more);
        free(c->messages);
        c->messages = more;
    }
    ftk_message *m = &c->messages[c->count++];
    char *copy = fti_cli_alloc(size + 1, 1);
    if (size) memcpy(copy, content, size);
    *m = (ftk_message)FTK_MESSAGE_INIT;
    m->role = role;
    m->content = copy;
    m->content_size = size;
}

static void cut(chat *c, size_t count) {
    while (c->count > count) free((char *)(uintptr_t)c->messages[--c->count].content);
}

static void begin(chat *c) {
    const char *system = fti_cli_values_of(c->call)->system;
    cut(c, 0);
    if (system) add(c, "system", system, strlen(system));
}

/* ---- one turn ---- */

static int answer(chat *c, fti_cli_answer *a) {
    const fti_cli_values *v = fti_cli_values_of(c->call);
    ftk_request request = FTK_REQUEST_INIT;
    request.messages = c->messages;
    request.message_count = c->count;
    request.chat_flags = c->flags;
    request.max_tokens = fti_cli_given(c->call, "max-tokens") ? v->max_tokens : 0;
    request.ignore_end = v->ignore_end;
    request.chunk = v->chunk;
    request.stop = v->stop.items;
    request.stop_count = v->stop.count;
    request.sampling = c->sampling;
    int code = fti_cli_run_answer(c->engine, &request, a);
    if (code == 0) (void)fputc('\n', stdout);
    return code;
}

/* A question that got no answer is forgotten: the dialogue goes on from where it was. */
static int take_turn(chat *c, const fti_cli_text *line) {
    fti_cli_answer a = {.stream = true};
    size_t before = c->count;
    const char *text = line->data;
    size_t skip = line->size > 1 && text[0] == '/' && text[1] == '/';
    add(c, "user", text + skip, line->size - skip);
    fti_cli_forget_interrupt();
    int code = answer(c, &a);
    if (code == 0 && a.text.size) {
        add(c, "assistant", a.text.data, a.text.size);
    } else {
        cut(c, before);
    }
    free(a.text.data);
    if (code == 0 && a.result.finish == FTK_FINISH_LENGTH) {
        (void)fputs("(cut off: the limit or the context is reached; /reset starts anew)\n", stderr);
    }
    return code;
}

static const char *const chat_help = "/help   this\n"
                                     "/reset  forget the conversation\n"
                                     "/quit   leave (also Ctrl-D)\n"
                                     "//TEXT  say /TEXT\n"
                                     "Ctrl-C stops an answer; what was said of it stands.\n";

/* True if the line was a command. */
static bool obey(chat *c, const char *line, bool *leave) {
    if (line[0] != '/' || line[1] == '/') return false;
    if (strcmp(line, "/quit") == 0) {
        *leave = true;
    } else if (strcmp(line, "/reset") == 0) {
        begin(c);
    } else if (strcmp(line, "/help") == 0) {
        (void)fputs(chat_help, stdout);
    } else {
        (void)fprintf(stderr, "no such command; /help lists them\n");
    }
    return true;
}

/* A turn that cannot be run for its length is not the end of the program, any other
 * failure is. */
static bool goes_on(int code) {
    return code == 0 || code == ftk_status_exit_code(FTK_E_CONTEXT);
}

static int converse(chat *c) {
    fti_cli_lines *lines = fti_cli_lines_open("> ");
    fti_cli_text line = {0};
    bool leave = false;
    int code = 0;
    while (!leave && goes_on(code)) {
        fti_cli_forget_interrupt();
        fti_cli_line_result got = fti_cli_lines_next(lines, &line);
        if (got == FTI_CLI_LINE_END) break;
        if (got == FTI_CLI_LINE_DROPPED || line.size == 0) continue;
        if (!obey(c, line.data, &leave)) code = take_turn(c, &line);
        if (!fti_cli_flush()) code = FTI_CLI_EXIT_FAILED;
    }
    fti_cli_lines_close(lines);
    free(line.data);
    return code;
}

/* ---- the command ---- */

static int check_trained(const chat *c) {
    ftk_message hello = FTK_MESSAGE_INIT;
    ftk_error err = FTK_ERROR_INIT;
    size_t count = 0;
    hello.role = "user";
    hello.content = "hello";
    hello.content_size = 5;
    ftk_status status = ftk_format_chat(c->engine, &hello, 1, c->flags, NULL, 0, &count, &err);
    if (status == FTK_OK) return 0;
    if (status != FTK_E_UNSUPPORTED) return fti_cli_fail_with(&err);
    return fti_cli_fail(FTK_E_CKPT_METADATA,
                        "%s: not trained to converse: %s; 'freetoken run' continues texts",
                        c->call->arguments[0], err.message);
}

static int start(chat *c) {
    fti_cli_catch_interrupt();
    int code = fti_cli_open(&c->call->common, c->call->arguments[0], FTK_OPEN_READY, &c->engine);
    if (code) return code;
    code = check_trained(c);
    if (code == 0) {
        fti_cli_keep_interrupts();
        begin(c);
        code = converse(c);
    }
    cut(c, 0);
    free(c->messages);
    ftk_engine_close(c->engine);
    return code;
}

int fti_cli_chat(const fti_cli_call *call) {
    chat c = {.call = call, .sampling = FTK_SAMPLING_INIT};
    ftk_logit_bias *biases = NULL;
    if (call->common.json) return fti_cli_usage("chat has no --json: it talks to a person");
    if (fti_cli_values_of(call)->no_thinking) c.flags |= FTK_CHAT_NO_THINKING;
    int code = fti_cli_fill_sampling(call, &c.sampling, &biases);
    if (code == 0) code = start(&c);
    free(biases);
    return code;
}
