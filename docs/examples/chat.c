/* chat.c: answers each line of standard input, remembering the dialogue.
 *
 *   cc chat.c -o chat $(pkg-config --cflags --libs freetoken)
 *   ./chat CONFIG.yaml MODEL.gguf
 */
#include <freetoken/freetoken.h>

#include <stdio.h>
#include <string.h>

typedef struct dialogue {
    ftk_message messages[200];
    size_t count;
    char text[65536]; /* the contents of all messages, one after the other */
    size_t used;
} dialogue;

static int begin(dialogue *talk, const char *role) {
    const ftk_message empty = FTK_MESSAGE_INIT;
    if (talk->count == sizeof talk->messages / sizeof empty) return 1;
    talk->messages[talk->count] = empty;
    talk->messages[talk->count].role = role;
    talk->messages[talk->count++].content = talk->text + talk->used;
    return 0;
}

static int add(dialogue *talk, const char *text, size_t size) {
    if (size > sizeof talk->text - talk->used) return 1;
    if (size) memcpy(talk->text + talk->used, text, size);
    talk->used += size;
    talk->messages[talk->count - 1].content_size += size;
    return 0;
}

static int hear(void *user, const ftk_event *event) {
    if (event->status != FTK_OK) fprintf(stderr, "%s\n", event->message);
    fwrite(event->text, 1, event->text_size, stdout);
    return fflush(stdout) != 0 || add(user, event->text, event->text_size);
}

static ftk_status answer(dialogue *talk, ftk_engine *engine, ftk_error *err) {
    ftk_request request = FTK_REQUEST_INIT;
    request.messages = talk->messages;
    request.message_count = talk->count - 1; /* all but the answer, which is still empty */
    request.max_tokens = 256;
    request.chat_flags = FTK_CHAT_NO_THINKING;
    request.on_event = hear;
    request.user = talk;
    uint64_t id = 0;
    uint32_t rows = 1;
    ftk_status status = ftk_submit(engine, &request, &id, err);
    while (status == FTK_OK && rows > 0) status = ftk_engine_step(engine, &rows, err);
    puts("");
    return status;
}

int main(int argc, char **argv) {
    static dialogue talk;
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    ftk_engine *engine = NULL;
    char line[1024];
    if (argc != 3) return 2;
    ftk_status status = ftk_config_load(argv[1], &config, &err);
    if (status == FTK_OK) status = ftk_engine_open(config, argv[2], NULL, &engine, &err);
    while (status == FTK_OK && fgets(line, sizeof line, stdin)) {
        if (begin(&talk, "user") || add(&talk, line, strcspn(line, "\n"))) break;
        if (begin(&talk, "assistant")) break;
        status = answer(&talk, engine, &err);
    }
    if (status != FTK_OK) fprintf(stderr, "%s\n", err.message);
    ftk_engine_close(engine);
    ftk_config_free(config);
    return ftk_status_exit_code(status);
}
