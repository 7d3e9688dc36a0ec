/* generate.c: opens a model under a configuration and prints what it writes.
 *
 *   cc generate.c -o generate $(pkg-config --cflags --libs freetoken)
 *   ./generate CONFIG.yaml MODEL.gguf "Once upon a time"
 */
#include <freetoken/freetoken.h>

#include <stdio.h>
#include <string.h>

static int print_token(void *user, int32_t id, const char *text, size_t size) {
    (void)user;
    (void)id;
    return fwrite(text, 1, size, stdout) != size;
}

static int fail(const ftk_error *err) {
    fprintf(stderr, "%s\n", err->message);
    return ftk_status_exit_code(err->status);
}

int main(int argc, char **argv) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    ftk_engine *engine = NULL;
    int32_t prompt[256];
    size_t count = 0;
    if (argc != 4) {
        fprintf(stderr, "usage: generate CONFIG.yaml MODEL.gguf PROMPT\n");
        return 2;
    }
    if (ftk_config_load(argv[1], &config, &err) != FTK_OK) return fail(&err);
    if (ftk_engine_open(config, argv[2], NULL, &engine, &err) != FTK_OK) return fail(&err);
    if (ftk_tokenize(engine, argv[3], strlen(argv[3]), 0, prompt, 256, &count, &err) != FTK_OK)
        return fail(&err);
    if (count > 256) {
        fprintf(stderr, "the prompt has %zu tokens, this example takes 256\n", count);
        return 2;
    }
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    options.max_tokens = 64;
    options.on_token = print_token;
    if (ftk_generate(engine, prompt, count, &options, NULL, &err) != FTK_OK) return fail(&err);
    puts("");
    ftk_engine_close(engine);
    ftk_config_free(config);
    return 0;
}
