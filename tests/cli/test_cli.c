/*
 * test_cli.c: runs the built programs as a shell would and looks at what comes
 * out: standard output, the error line, the exit code, the files.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "freetoken/version.h"
#include <jansson.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define MODEL      FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"
#define STORIES    FTK_TEST_DATA "/stories.txt"
#define ONCE       "Once upon a time there was a little girl who"
#define VOCABULARY 4096

/* ---- running programs ---- */

static char work[64]; /* of the whole group, removed at its end */

typedef struct output {
    int code; /* exit code, or 128 + signal */
    char *out;
    size_t out_size;
    char *err;
} output;

static char *in_work(const char *name) {
    char *path = NULL;
    assert_true(asprintf(&path, "%s/%s", work, name) > 0);
    return path;
}

static char *read_all(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s: cannot open", path);
    char *data = NULL;
    size_t used = 0, capacity = 0;
    for (;;) {
        if (used + 65536 > capacity) {
            capacity = capacity * 2 + 131072;
            data = realloc(data, capacity);
            assert_non_null(data);
        }
        size_t got = fread(data + used, 1, 65535, file);
        used += got;
        if (got < 65535) break;
    }
    data[used] = '\0';
    (void)fclose(file);
    if (size) *size = used;
    return data;
}

static void write_all(const char *path, const void *data, size_t size, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), (ssize_t)size);
    assert_int_equal(fchmod(fd, mode), 0);
    (void)close(fd);
}

static void write_text(const char *path, const char *text) {
    write_all(path, text, strlen(text), 0600);
}

static const char *typed = "/dev/null"; /* what programs read */

/* Home is an empty folder and XDG_CONFIG_HOME the work folder: no configuration of
 * the machine's user takes part. */
static pid_t start(const char *const *argv, const char *stdout_path, int stdout_fd) {
    char *out = in_work("stdout"), *err = in_work("stderr"), *home = in_work("home");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int to = stdout_fd;
        if (to < 0 && stdout_path) to = open(stdout_path, O_WRONLY);
        if (to < 0 && !stdout_path) to = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int errors = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int in = open(typed, O_RDONLY);
        if (dup2(in, 0) < 0 || dup2(to, 1) < 0 || dup2(errors, 2) < 0) _exit(125);
        (void)setenv("HOME", home, 1);
        (void)setenv("XDG_CONFIG_HOME", home, 1);
        (void)signal(SIGINT, SIG_DFL);
        (void)signal(SIGPIPE, SIG_DFL);
        (void)signal(SIGXFSZ, SIG_DFL);
        (void)execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(126);
    }
    free(out);
    free(err);
    free(home);
    return child;
}

static output finish(pid_t child) {
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    char *out = in_work("stdout"), *err = in_work("stderr");
    output o = {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
    o.out = access(out, F_OK) == 0 ? read_all(out, &o.out_size) : calloc(1, 1);
    o.err = read_all(err, NULL);
    free(out);
    free(err);
    return o;
}

static void release(output *o) {
    free(o->out);
    free(o->err);
    *o = (output){0};
}

#define MAX_ARGUMENTS 32

/* A program with its arguments, NULL at the end. */
static output run(const char *program, ...) {
    const char *argv[MAX_ARGUMENTS] = {program};
    size_t count = 1;
    va_list args;
    va_start(args, program);
    for (const char *a; (a = va_arg(args, const char *)) != NULL;) {
        assert_true(count + 1 < MAX_ARGUMENTS);
        argv[count++] = a;
    }
    va_end(args);
    return finish(start(argv, NULL, -1));
}

#define RUN(...)       run(FTK_BIN, __VA_ARGS__, NULL)
#define DEMO(...)      run(FTK_BIN, __VA_ARGS__, "--config", FTK_CONFIG, NULL)
#define DEMO_JSON(...) demo_json(DEMO(__VA_ARGS__, "--json"))
#define BENCH(...)     run(FTK_BENCH_BIN, __VA_ARGS__, "--config", FTK_CONFIG, NULL)

static void expect_code(const output *o, int code) {
    if (o->code != code) fail_msg("exit %d, wanted %d: %s", o->code, code, o->err);
}

static void expect_text(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' is not in: %s", part, text);
}

/* One error line and nothing else, on the right stream. */
static void expect_error(output o, int code, const char *part) {
    expect_code(&o, code);
    expect_text(o.err, "error: ");
    expect_text(o.err, part);
    char *newline = strchr(o.err, '\n');
    assert_non_null(newline);
    assert_string_equal(newline, "\n");
    assert_string_equal(o.out, "");
    release(&o);
}

static json_t *parse(output *o) {
    expect_code(o, 0);
    json_error_t error;
    json_t *json = json_loadb(o->out, o->out_size, 0, &error);
    if (!json) fail_msg("no JSON: %s: %s", error.text, o->out);
    assert_string_equal(o->err, "");
    release(o);
    return json;
}

static json_t *demo_json(output o) {
    return parse(&o);
}

static json_int_t integer(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("%s is no integer", key);
    return json_integer_value(value);
}

static const char *text_of(const json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));
    if (!value) fail_msg("%s is no string", key);
    return value;
}

static double real(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("%s is no number", key);
    return json_number_value(value);
}

/* ---- golden data ---- */

static json_t *golden;

static const json_t *golden_prompt(size_t index) {
    const json_t *set = json_object_get(json_object_get(golden, "sets"), "ud_q4_k_m");
    const json_t *prompt = json_array_get(json_object_get(set, "prompts"), index);
    assert_non_null(prompt);
    return prompt;
}

/* ---- help and usage ---- */

static void version_and_help(void **state) {
    (void)state;
    output o = RUN("--version");
    expect_code(&o, 0);
    assert_string_equal(o.out, "freetoken 0.1.0\n");
    release(&o);
    o = run(FTK_BENCH_BIN, "--version", NULL);
    assert_string_equal(o.out, "freetoken-bench 0.1.0\n");
    release(&o);
    static const char *const commands[] = {"run",     "tokenize",  "logits",   "perplexity",
                                           "inspect", "providers", "selftest", "chat"};
    output list = RUN("help");
    expect_code(&list, 0);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        expect_text(list.out, commands[i]);
        output first = RUN("help", commands[i]);
        output second = RUN(commands[i], "--help");
        expect_code(&first, 0);
        expect_text(first.out, "usage: freetoken ");
        expect_text(first.out, "example: freetoken ");
        expect_text(first.out, "--config FILE");
        assert_string_equal(first.out, second.out);
        release(&first);
        release(&second);
    }
    release(&list);
    o = run(FTK_BENCH_BIN, "decode", "--help", NULL);
    expect_code(&o, 0);
    expect_text(o.out, "--prompt-tokens N");
    release(&o);
}

typedef struct usage_case {
    const char *arguments[6];
    const char *message;
} usage_case;

static const usage_case usage_cases[] = {
    {{NULL}, "no command; 'freetoken help' lists them"},
    {{"rnu"}, "no command 'rnu'; did you mean 'run'?"},
    {{"frobnicate"}, "no command 'frobnicate'; 'freetoken help' lists them"},
    {{"help", "tokenise"}, "did you mean 'tokenize'?"},
    {{"--config", "x", "run"}, "options follow it"},
    {{"run"}, "run wants MODEL"},
    {{"run", "m"}, "no prompt: give -p TEXT or -f FILE"},
    {{"run", "a", "b", "-p", "x"}, "'b' is one argument too many"},
    {{"run", "m", "-p", "x", "-f", "y"}, "exclude each other"},
    {{"run", "m", "-p"}, "--prompt wants a value: TEXT"},
    {{"run", "m", "--tmep", "1"}, "no option --tmep; did you mean --temp?"},
    {{"run", "m", "--tmep=1"}, "no option --tmep; did you mean --temp?"},
    {{"run", "m", "--max-tokns=1"}, "did you mean --max-tokens?"},
    {{"run", "m", "--top"}, "no option --top"},
    {{"run", "m", "--zzzzzzzzz"}, "run has no option --zzzzzzzzz"},
    {{"run", "m", "-z"}, "run has no option -z"},
    {{"run", "m", "--window", "9"}, "run has no option --window"},
    {{"run", "m", "--json=yes"}, "--json takes no value"},
    {{"run", "m", "-p", "x", "-n", "many"}, "--max-tokens: 'many' is not a whole number"},
    {{"run", "m", "-p", "x", "-n", "-1"}, "--max-tokens: '-1' is not a whole number"},
    {{"run", "m", "-p", "x", "-n4294967296"}, "from 0 to 4294967295"},
    {{"run", "m", "-p", "x", "--temp", "nan"}, "--temp: 'nan' is not a number from 0 to 100"},
    {{"run", "m", "-p", "x", "--temp=-0.1"}, "--temp: '-0.1'"},
    {{"run", "m", "-p", "x", "--top-p", "1.01"}, "--top-p: '1.01'"},
    {{"run", "m", "-p", "x", "--top-p=0"}, "--top-p: '0'"},
    {{"run", "m", "-p", "x", "--min-p=1"}, "--min-p: '1'"},
    {{"run", "m", "-p", "x", "--seed=-1"}, "--seed: '-1' is not a whole number below 2^64"},
    {{"run", "m", "-px", "--greedy", "--seed=1"}, "--greedy excludes"},
    {{"logits", "m", "-p", "x"}, "logits wants --out FILE"},
    {{"tokenize", "m"}, "no prompt"},
    {{"perplexity", "m"}, "perplexity wants MODEL FILE"},
    {{"perplexity", "m", "f", "--window=1"}, "--window: '1'"},
    {{"inspect"}, "inspect wants MODEL"},
    {{"providers", "chek"}, "did you mean 'check'?"},
    {{"providers", "allow"}, "allow wants NAME or FOLDER"},
    {{"providers", "list", "x"}, "takes no argument 'x'"},
    {{"providers", "check", "--update"}, "--update belongs to providers allow"},
    {{"providers", "explain"}, "providers explain wants MODEL, or ARCHITECTURE CONTAINER"},
    {{"providers", "explain", "a", "b", "c"}, "'c' is one argument too many"},
    {{"providers", "allow", "a", "b"}, "providers allow takes no argument 'b'"},
    {{"providers", "explian", "a"}, "did you mean 'explain'?"},
    {{"selftest", "a", "b"}, "'b' is one argument too many"},
    {{"run", "m", "-p", "x", "--logit-bias=3"}, "--logit-bias: '3' is not ID=BIAS"},
    {{"run", "m", "-p", "x", "--logit-bias=-3=1"}, "--logit-bias: '-3=1' is not ID=BIAS"},
    {{"run", "m", "-p", "x", "--logit-bias=3=inf"}, "--logit-bias: '3=inf' is not ID=BIAS"},
    {{"run", "m", "-p", "x", "--logprobs=21", "--json"}, "from 0 to 20"},
    {{"run", "m", "-p", "x", "--logprobs=2"}, "--logprobs wants --json"},
    {{"run", "m", "-p", "x", "--repetition-penalty=0"}, "--repetition-penalty: '0'"},
    {{"run", "m", "--system", "x"}, "run has no option --system"},
    {{"chat"}, "chat wants MODEL"},
    {{"chat", "m", "--json"}, "chat has no --json"},
    {{"chat", "m", "--greedy", "--temp=1"}, "--greedy excludes"},
    {{"help", "--man", "rnu"}, "did you mean 'run'?"},
    {{"help", "--completion", "fish"}, "help takes a command"},
    {{"help", "--completion"}, "help takes a command"},
    {{"help", "--nam"}, "help takes a command"},
};

static void usage_errors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof usage_cases / sizeof usage_cases[0]; i++) {
        const char *argv[8] = {FTK_BIN};
        memcpy(argv + 1, usage_cases[i].arguments, sizeof usage_cases[i].arguments);
        expect_error(finish(start(argv, NULL, -1)), 2, usage_cases[i].message);
    }
    expect_error(run(FTK_BENCH_BIN, "decode", NULL), 2, "decode wants --model MODEL");
    expect_error(run(FTK_BENCH_BIN, "decode", "--model", "m", "--tokens", "1", NULL), 2,
                 "--tokens");
    expect_error(run(FTK_BENCH_BIN, "decode", "-m", "m", "-p", "x", "--prompt-tokens", "3", NULL),
                 2, "exclude each other");
}

/* Values that go to the library are refused by it, as usage. */
static void library_options(void **state) {
    (void)state;
    expect_error(DEMO("run", MODEL, "-p", "x", "--numerics", "exct"), 2, "--numerics: ");
    expect_error(DEMO("run", MODEL, "-p", "x", "--graphs=maybe"), 2, "--graphs: ");
    expect_error(DEMO("run", MODEL, "-p", "x", "--device-budget", "8 apples"), 2,
                 "--device-budget: ");
    expect_error(DEMO("run", MODEL, "-p", "x", "--ctx", "-4"), 2, "--ctx: ");
    expect_error(DEMO("run", MODEL, "-p", "x", "--threads", "two"), 2, "--threads: ");
    expect_error(DEMO("run", MODEL, "-p", "x", "--backend", "abacus"), 2, "--backend: ");
    expect_error(DEMO("run", MODEL, "-p", "x", "--device-budget", "1MiB"), 6, "");
    expect_error(DEMO("run", MODEL, "-p", ""), 2, "the prompt is empty");
}

static void missing_files(void **state) {
    (void)state;
    expect_error(DEMO("run", "/no/such/model.gguf", "-p", "x"), 5, "/no/such/model.gguf");
    expect_error(DEMO("inspect", "/no/such/model.gguf"), 5, "/no/such/model.gguf");
    expect_error(DEMO("inspect", STORIES), 5, "stories.txt");
    expect_error(DEMO("run", MODEL, "-f", "/no/such/prompt"), 1, "/no/such/prompt: cannot read");
    expect_error(DEMO("run", MODEL, "-f", "/tmp"), 1, "/tmp: cannot read: Is a directory");
    expect_error(DEMO("perplexity", MODEL, "/no/such/text"), 1, "/no/such/text: cannot read");
    expect_error(RUN("providers", "--config", "/no/such/config.yaml"), 3, "/no/such/config.yaml");
    if (access("/etc/freetoken/config.yaml", F_OK) == 0) return;
    output o = RUN("run", MODEL, "-p", "x");
    expect_text(o.err, work);
    expect_text(o.err, "/home/freetoken/config.yaml and /etc/freetoken/config.yaml");
    expect_error(o, 3, "freetoken providers allow FOLDER");
}

/* ---- run ---- */

static uint64_t hash_of(const json_t *tokens) {
    size_t count = json_array_size(tokens);
    uint8_t *bytes = calloc(count + 1, 4);
    assert_non_null(bytes);
    for (size_t i = 0; i < count; i++) {
        uint32_t id = (uint32_t)json_integer_value(json_array_get(tokens, i));
        for (size_t b = 0; b < 4; b++) bytes[4 * i + b] = (uint8_t)(id >> 8 * b);
    }
    uint64_t hash = XXH3_64bits(bytes, 4 * count);
    free(bytes);
    return hash;
}

static void check_run(const json_t *o, json_int_t tokens) {
    const json_t *ids = json_object_get(o, "tokens");
    const json_t *stats = json_object_get(o, "stats");
    const json_t *sizes = json_object_get(stats, "executed_batch_sizes");
    char hash[17];
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, hash_of(ids));
    assert_string_equal(text_of(o, "hash"), hash);
    assert_int_equal(json_array_size(ids), tokens);
    assert_int_equal(integer(json_object_get(sizes, "decode"), "1"), tokens - 1);
    assert_true(integer(sizes, "prefill_steps") >= 1);
    assert_true(integer(stats, "graph_replays") <= tokens - 1);
    double seconds = real(stats, "decode_seconds");
    assert_true(fabs(real(stats, "decode_tok_s") * seconds - (double)(tokens - 1)) < 1e-6);
    assert_true(fabs(real(stats, "prefill_tok_s") * real(stats, "prefill_seconds") -
                     (double)integer(o, "prompt_tokens")) < 1e-6);
    assert_true(integer(json_object_get(o, "memory"), "total") > 0);
    assert_true(json_object_size(json_object_get(o, "provenance")) > 3);
    const json_t *numerics = json_object_get(json_object_get(o, "provenance"), "numerics");
    assert_string_equal(json_string_value(json_object_get(numerics, "mode")), "exact");
    assert_int_equal(integer(numerics, "version"), FTK_NUMERICS_VERSION);
}

static void run_json(void **state) {
    (void)state;
    output o = DEMO("run", MODEL, "--json", "-p", ONCE, "-n", "24", "--ignore-eos");
    json_t *first = parse(&o);
    check_run(first, 24);
    assert_int_equal(integer(first, "prompt_tokens"), 10);
    assert_string_equal(text_of(first, "finish"), "length");
    output streamed = DEMO("run", "-p", ONCE, "--max-tokens=24", "--ignore-eos", "--greedy", MODEL);
    expect_code(&streamed, 0);
    assert_string_equal(streamed.out, text_of(first, "text"));
    expect_text(streamed.err, "10 prompt tokens, 24 tokens, ");
    expect_text(streamed.err, "finish length\n");
    release(&streamed);
    json_decref(first);
}

/* After this text the model ends at once. */
#define LAST "and they lived happily ever after."

static void run_stops(void **state) {
    (void)state;
    output o = DEMO("run", MODEL, "--json", "-p", LAST, "-n", "4");
    json_t *stopped = parse(&o);
    assert_string_equal(text_of(stopped, "finish"), "stop");
    assert_int_equal(json_array_size(json_object_get(stopped, "tokens")), 0);
    assert_string_equal(text_of(stopped, "text"), "");
    json_decref(stopped);
    o = DEMO("run", MODEL, "--json", "-p", LAST, "-n", "4", "--ignore-eos");
    json_t *on = parse(&o);
    assert_string_equal(text_of(on, "finish"), "length");
    assert_int_equal(json_array_size(json_object_get(on, "tokens")), 4);
    json_decref(on);
}

/* Against the reference implementation, in the mode that exists to be compared. */
static void run_golden(void **state) {
    (void)state;
    output o = DEMO("run", MODEL, "--json", "-p", ONCE, "-n", "32", "--numerics", "float");
    json_t *run = parse(&o);
    const json_t *wanted = json_object_get(golden_prompt(0), "greedy");
    const json_t *have = json_object_get(run, "tokens");
    if (!json_equal((json_t *)(uintptr_t)have, (json_t *)(uintptr_t)wanted)) {
        fail_msg("other tokens: %s", text_of(run, "text"));
    }
    json_decref(run);
}

static char *sampled(const char *seed, const char *temperature) {
    output o = DEMO("run", MODEL, "--json", "-p", ONCE, "-n", "16", "--temp", temperature, "--seed",
                    seed, "--top-k=40", "--top-p=0.95");
    json_t *run = parse(&o);
    char *hash = strdup(text_of(run, "hash"));
    json_decref(run);
    return hash;
}

/* Where one pipe takes both, the figures stand on a line of their own. */
static void run_into_one_pipe(void **state) {
    (void)state;
    static const char command[] = FTK_BIN " run " MODEL " --config " FTK_CONFIG " -p Once -n 4";
    char *both = NULL, *apart = NULL, *file = in_work("text");
    assert_true(asprintf(&both, "%s 2>&1 | cat", command) > 0);
    assert_true(asprintf(&apart, "%s 2>%s | cat", command, file) > 0);
    output text = run("/bin/sh", "-c", apart, NULL);
    output o = run("/bin/sh", "-c", both, NULL);
    expect_code(&text, 0);
    expect_code(&o, 0);
    assert_true(text.out_size > 0 && text.out[text.out_size - 1] != '\n');
    assert_memory_equal(o.out, text.out, text.out_size);
    assert_memory_equal(o.out + text.out_size, "\n1 prompt tokens, 4 tokens, ", 27);
    release(&text);
    release(&o);
    free(both);
    free(apart);
    free(file);
}

static void run_sampling(void **state) {
    (void)state;
    char *one = sampled("1", "1.5"), *again = sampled("1", "1.5"), *other = sampled("2", "1.5");
    char *cold = sampled("1", "0"), *frost = sampled("2", "0");
    assert_string_equal(one, again);
    assert_string_not_equal(one, other);
    assert_string_equal(cold, frost);
    assert_string_not_equal(one, cold);
    free(one);
    free(again);
    free(other);
    free(cold);
    free(frost);
}

static const json_t *member(const json_t *object, const char *key, json_type type) {
    const json_t *value = json_object_get(object, key);
    if (!value || json_typeof(value) != type) fail_msg("%s is not of the right type", key);
    return value;
}

/* A run of twelve tokens with up to two more options. */
static json_t *steered(const char *first, const char *second) {
    output o = DEMO("run", MODEL, "--json", "-p", ONCE, "-n", "12", first, second);
    return parse(&o);
}

static json_int_t token_at(const json_t *run, size_t i) {
    return json_integer_value(json_array_get(json_object_get(run, "tokens"), i));
}

static void run_bias(void **state) {
    (void)state;
    json_t *plain = steered("--json", "--presence-penalty=0");
    char *option = NULL;
    assert_true(
        asprintf(&option, "--logit-bias=%" JSON_INTEGER_FORMAT "=-inf", token_at(plain, 0)) > 0);
    json_t *banned = steered(option, "--json");
    for (size_t i = 0; i < 12; i++) assert_true(token_at(banned, i) != token_at(plain, 0));
    json_t *forced = steered("--logit-bias=77=1000", option);
    for (size_t i = 0; i < 12; i++) assert_int_equal(token_at(forced, i), 77);
    json_t *varied = steered("--frequency-penalty=100", "--json");
    for (size_t i = 0; i < 12; i++) {
        for (size_t j = 0; j < i; j++) assert_true(token_at(varied, i) != token_at(varied, j));
    }
    json_t *short_sighted = DEMO_JSON("run", MODEL, "-p", ONCE, "-n", "12", "--logit-bias=77=1000",
                                      "--logit-bias=78=1000", "--presence-penalty=50",
                                      "--penalty-last=1");
    for (size_t i = 1; i < 12; i++) {
        assert_int_equal(token_at(short_sighted, i) + token_at(short_sighted, i - 1), 77 + 78);
    }
    json_decref(plain);
    json_decref(banned);
    json_decref(forced);
    json_decref(varied);
    json_decref(short_sighted);
    free(option);
    expect_error(DEMO("run", MODEL, "-p", "x", "--logit-bias=4096=1"), 1, "4095");
}

static void run_stop(void **state) {
    (void)state;
    json_t *plain = steered("--json", "--greedy");
    const char *text = text_of(plain, "text");
    const char *word = strchr(strchr(text + 1, ' ') + 1, ' '); /* the third one */
    assert_non_null(word);
    char *option = NULL;
    assert_true(asprintf(&option, "--stop=%.4s", word) > 0);
    json_t *stopped = steered(option, "--stop=never to be seen");
    assert_string_equal(text_of(stopped, "finish"), "stop");
    const char *head = text_of(stopped, "text");
    assert_int_equal(strlen(head), strstr(text, option + 7) - text);
    assert_memory_equal(head, text, strlen(head));
    json_decref(plain);
    json_decref(stopped);
    free(option);
    static const char s[] = "--stop=a";
    expect_error(DEMO("run", MODEL, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s), 2,
                 "--stop: given more than 16 times");
}

static void run_logprobs(void **state) {
    (void)state;
    json_t *run = steered("--logprobs=3", "--greedy");
    const json_t *list = member(run, "logprobs", JSON_ARRAY);
    assert_int_equal(json_array_size(list), 12);
    for (size_t i = 0; i < 12; i++) {
        const json_t *token = json_array_get(list, i), *top = json_object_get(token, "top");
        assert_int_equal(integer(token, "id"), token_at(run, i));
        assert_int_equal(json_array_size(top), 3);
        assert_int_equal(integer(json_array_get(top, 0), "id"), token_at(run, i));
        double sum = 0;
        for (size_t k = 0; k < 3; k++) {
            double logprob = real(json_array_get(top, k), "logprob");
            assert_true(logprob <= (k ? real(json_array_get(top, k - 1), "logprob") : 0.0));
            sum += exp(logprob);
        }
        assert_true(sum > 0.0 && sum <= 1.0 + 1e-6);
        assert_true(real(token, "logprob") == real(json_array_get(top, 0), "logprob"));
    }
    json_decref(run);
    run = steered("--greedy", "--json");
    assert_null(json_object_get(run, "logprobs"));
    json_decref(run);
}

static json_int_t prompt_tokens(const char *option, const char *value, const char *more) {
    output o = DEMO("run", MODEL, "--json", option, value, "-n", "1", more ? more : "--json");
    json_t *run = parse(&o);
    json_int_t count = integer(run, "prompt_tokens");
    json_decref(run);
    return count;
}

static void run_prompts(void **state) {
    (void)state;
    char *file = in_work("prompt");
    write_text(file, ONCE);
    assert_int_equal(prompt_tokens("-f", file, NULL), 10);
    write_all(file, "a\0b", 3, 0600);
    assert_true(prompt_tokens("-f", file, NULL) == 3);
    json_int_t plain = prompt_tokens("-p", "<|im_start|>", NULL);
    assert_true(plain > 1);
    assert_int_equal(prompt_tokens("-p", "<|im_start|>", "--special"), 1);
    free(file);
    /* "--" ends the options: what follows names the model. */
    expect_error(DEMO("run", "-p", "x", "--", "--json"), 2, "too many");
    output o = run(FTK_BIN, "run", "--config", FTK_CONFIG, "-n1", "-px", "--", MODEL, NULL);
    expect_code(&o, 0);
    release(&o);
}

/* ---- streams that fail ---- */

static void stdout_full(void **state) {
    (void)state;
    static const char model[] = MODEL, config[] = FTK_CONFIG;
    const char *const commands[][10] = {
        {FTK_BIN, "--version"},
        {FTK_BIN, "help", "run"},
        {FTK_BIN, "inspect", model, "--json"},
        {FTK_BIN, "run", model, "-pa", "-n4", "-c", config},
        {FTK_BIN, "run", model, "-pa", "-n4", "--json", "-c", config}};
    char *plain = in_work("stdout");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        (void)unlink(plain);
        expect_error(finish(start(commands[i], "/dev/full", -1)), 1,
                     "standard output: cannot write: No space left on device");
    }
    free(plain);
}

static void stdout_gone(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    (void)close(ends[0]);
    const char *const argv[] = {
        FTK_BIN, "run", MODEL, "-pa", "-n4000", "--ignore-eos", "--config=" FTK_CONFIG, NULL};
    char *plain = in_work("stdout");
    (void)unlink(plain);
    pid_t child = start(argv, NULL, ends[1]);
    (void)close(ends[1]);
    expect_error(finish(child), 1, "standard output: cannot write: Broken pipe");
    free(plain);
}

static void wait_for_output(const char *path) {
    const struct timespec pause = {0, 10000000};
    for (int i = 0; i < 3000; i++) {
        struct stat info;
        if (stat(path, &info) == 0 && info.st_size > 8) return;
        (void)nanosleep(&pause, NULL);
    }
    fail_msg("nothing was written");
}

static void interrupted(void **state) {
    (void)state;
    const char *const argv[] = {
        FTK_BIN, "run", MODEL, "-p", ONCE, "-n4000", "--ignore-eos", "--config=" FTK_CONFIG, NULL};
    char *plain = in_work("stdout");
    (void)unlink(plain);
    pid_t child = start(argv, NULL, -1);
    wait_for_output(plain);
    assert_int_equal(kill(child, SIGINT), 0);
    output o = finish(child);
    expect_code(&o, 1);
    expect_text(o.err, "finish cancelled\n");
    assert_true(o.out_size > 8);
    release(&o);
    free(plain);
}

/* ---- tokenize ---- */

/* ---- chat ---- */

static output converse(const char *lines, const char *option) {
    char *path = in_work("typed");
    write_text(path, lines);
    typed = path;
    output o = DEMO("chat", MODEL, "-n", "24", option ? option : "--greedy");
    typed = "/dev/null";
    free(path);
    return o;
}

/* The answers of a conversation, a line each. */
static char *answers(const char *lines, const char *option) {
    output o = converse(lines, option);
    expect_code(&o, 0);
    char *text = strdup(o.out);
    release(&o);
    return text;
}

#define FOX    "Tell me about the old fox."
#define FOREST "What did the fox do in the dark forest?"

static void chat_remembers(void **state) {
    (void)state;
    char *both = answers(FOX "\n\n" FOREST "\n", NULL);
    char *first = answers(FOX "\n/quit\n" FOREST "\n", NULL);
    char *second = answers(FOREST, NULL);
    size_t length = strlen(first);
    assert_true(length > 8 && first[length - 1] == '\n');
    assert_memory_equal(both, first, length);
    assert_true(strlen(both) > length + 8);
    assert_string_not_equal(both + length, second);
    char *anew = answers(FOX "\n/reset\n" FOREST "\n", NULL);
    assert_memory_equal(anew, first, length);
    assert_string_equal(anew + length, second);
    char *pirate = answers(FOREST "\n", "--system=You are a pirate who hates the sea.");
    assert_string_not_equal(pirate, second);
    free(both);
    free(first);
    free(second);
    free(anew);
    free(pirate);
}

static void chat_commands(void **state) {
    (void)state;
    output o = converse("/help\n/nonsense\n/quit\n", NULL);
    expect_code(&o, 0);
    expect_text(o.out, "/reset  forget the conversation\n");
    assert_string_equal(o.err, "no such command; /help lists them\n");
    release(&o);
    char *slash = answers("//help\n", NULL); /* said, not obeyed */
    assert_null(strstr(slash, "/reset"));
    free(slash);
}

/* The same model without a template: nobody knows how it was trained to converse. */
static void chat_untrained(void **state) {
    (void)state;
    size_t size;
    char *model = read_all(MODEL, &size), *path = in_work("model.gguf");
    char *key = memmem(model, size, "tokenizer.chat_template", 23);
    assert_non_null(key);
    key[22] = 'X';
    write_all(path, model, size, 0600);
    expect_error(DEMO("chat", path), 5, "not trained to converse");
    assert_int_equal(unlink(path), 0);
    free(model);
    free(path);
}

/* Ctrl-C ends the answer; the next line is read as if nothing had been. */
static void chat_interrupted(void **state) {
    (void)state;
    char *pipe_path = in_work("typed"), *plain = in_work("stdout");
    (void)unlink(pipe_path);
    (void)unlink(plain);
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    int keys = open(pipe_path, O_RDWR);
    assert_true(keys >= 0);
    static const char question[] = "Tell me a story.\n", help[] = "/help\n/quit\n";
    const char *const argv[] = {
        FTK_BIN, "chat", MODEL, "-n2000", "--ignore-eos", "--config=" FTK_CONFIG, NULL};
    typed = pipe_path;
    pid_t child = start(argv, NULL, -1);
    typed = "/dev/null";
    assert_int_equal(write(keys, question, sizeof question - 1), sizeof question - 1);
    wait_for_output(plain);
    assert_int_equal(kill(child, SIGINT), 0);
    assert_int_equal(write(keys, help, sizeof help - 1), sizeof help - 1);
    output o = finish(child);
    expect_code(&o, 0);
    expect_text(o.out, "\n/help   this\n");
    assert_null(strstr(o.err, "cut off"));
    release(&o);
    (void)close(keys);
    free(pipe_path);
    free(plain);
}

static void tokenize(void **state) {
    (void)state;
    output o = DEMO("tokenize", MODEL, "--json", "-p", ONCE);
    json_t *tokens = parse(&o);
    const json_t *wanted = json_object_get(golden_prompt(0), "ids");
    assert_true(json_equal(json_object_get(tokens, "ids"), (json_t *)(uintptr_t)wanted));
    char text[256] = "";
    size_t used = 0;
    size_t i;
    json_t *piece;
    json_array_foreach(json_object_get(tokens, "pieces"), i, piece) {
        size_t size = json_string_length(piece);
        assert_true(used + size < sizeof text);
        memcpy(text + used, json_string_value(piece), size);
        used += size;
    }
    assert_string_equal(text, ONCE);
    assert_int_equal(integer(tokens, "count"), 10);
    json_decref(tokens);
    o = DEMO("tokenize", MODEL, "-p", "<|im_start|>\n\xC3\xA9\xFF");
    expect_code(&o, 0);
    expect_text(o.out, "\"<|im_start|>\"\n");
    expect_text(o.out, "\"\\n\"\n");
    expect_text(o.out, "\"\\xff\"\n");
    release(&o);
    o = DEMO("tokenize", MODEL, "--json", "--plain", "-p", "<|im_start|>");
    tokens = parse(&o);
    assert_true(integer(tokens, "count") > 1);
    json_decref(tokens);
}

/* ---- logits and perplexity ---- */

static size_t argmax(const float *row) {
    size_t best = 0;
    for (size_t i = 1; i < VOCABULARY; i++) {
        if (row[i] > row[best]) best = i;
    }
    return best;
}

static char *logits(const char *name, const char *chunk, const char *mode, size_t *size) {
    char *path = in_work(name);
    output o = DEMO("logits", MODEL, "-p", ONCE, "--out", path, "--chunk", chunk, "--numerics",
                    mode);
    expect_code(&o, 0);
    assert_string_equal(o.out, "");
    release(&o);
    char *data = read_all(path, size);
    free(path);
    return data;
}

static void logits_rows(void **state) {
    (void)state;
    size_t size, other_size;
    char *rows = logits("logits", "0", "float", &size);
    const json_t *wanted = json_object_get(golden_prompt(0), "argmax");
    assert_int_equal(size, 10 * VOCABULARY * sizeof(float));
    for (size_t i = 0; i < 10; i++) {
        float row[VOCABULARY];
        memcpy(row, rows + i * sizeof row, sizeof row);
        assert_int_equal(argmax(row), json_integer_value(json_array_get(wanted, i)));
    }
    free(rows);
    char *whole = logits("logits", "0", "exact", &size);
    char *chunks = logits("logits", "3", "exact", &other_size);
    assert_int_equal(size, other_size);
    assert_memory_equal(whole, chunks, size);
    free(whole);
    free(chunks);
}

/* No file may grow beyond 4 MiB: enough for a copy of the provider, not for the rows
 * of some 400 tokens. */
static output logits_into_limit(const char *path) {
    struct rlimit limit, small = {.rlim_cur = 4u << 20};
    char *prompt = in_work("prompt"), *stories = read_all(STORIES, NULL);
    write_all(prompt, stories, 1600, 0600);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small.rlim_max = limit.rlim_max;
    const char *const argv[] = {FTK_BIN, "logits", MODEL, "-f", prompt, "--config=" FTK_CONFIG,
                                "--out", path,     NULL};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pid_t child = start(argv, NULL, -1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    free(prompt);
    free(stories);
    return finish(child);
}

static void logits_files(void **state) {
    (void)state;
    char *folder = in_work("out");
    char *path = in_work("out/file");
    assert_int_equal(mkdir(folder, 0700), 0);
    write_text(path, "kept");
    expect_error(DEMO("logits", MODEL, "-p", "x", "--out", path, "--numerics", "bad"), 2, "");
    expect_error(DEMO("logits", MODEL, "-p", ONCE ONCE, "--out", path, "--ctx", "16"), 6, "");
    char *kept = read_all(path, NULL);
    assert_string_equal(kept, "kept");
    free(kept);
    expect_error(logits_into_limit(path), 1, "out/file: cannot write: File too large");
    kept = read_all(path, NULL);
    assert_string_equal(kept, "kept");
    free(kept);
    expect_error(DEMO("logits", MODEL, "-p", "x", "--out", "/no/such/folder/x"), 1,
                 "/no/such/folder/x: cannot write: No such file");
    output o = DEMO("logits", MODEL, "-p", "x", "--out", path, "--json");
    json_t *report = parse(&o);
    assert_int_equal(integer(report, "tokens"), 1);
    assert_int_equal(integer(report, "vocabulary"), VOCABULARY);
    json_decref(report);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, VOCABULARY * 4);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing temporary was left */
    free(folder);
    free(path);
}

/* The mean over one window, from the rows that `logits` wrote. */
static double nll_of(const char *rows, const json_t *ids, size_t from, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i + 1 < count; i++) {
        float row[VOCABULARY];
        memcpy(row, rows + i * sizeof row, sizeof row);
        json_int_t next = json_integer_value(json_array_get(ids, from + i + 1));
        long double total = 0.0L;
        for (size_t v = 0; v < VOCABULARY; v++) total += expl((long double)row[v] - row[next]);
        sum += (double)logl(total);
    }
    return sum / (double)(count - 1);
}

static json_t *perplexity(const char *file, const char *window) {
    output o = DEMO("perplexity", MODEL, file, "--json", "--window", window);
    return parse(&o);
}

static void perplexity_one_window(void **state) {
    (void)state;
    char *file = in_work("text");
    write_text(file, ONCE);
    json_t *result = perplexity(file, "64");
    size_t size;
    char *rows = logits("logits", "0", "exact", &size);
    double wanted = nll_of(rows, json_object_get(golden_prompt(0), "ids"), 0, 10);
    assert_int_equal(integer(result, "tokens"), 9);
    assert_int_equal(integer(result, "window"), 64);
    assert_true(fabs(real(result, "nll") - wanted) < 1e-9);
    assert_true(fabs(real(result, "perplexity") - exp(wanted)) < 1e-7);
    json_decref(result);
    free(rows);
    free(file);
}

/* Windows start from an empty state: two copies of a text score as one does. */
static void perplexity_windows(void **state) {
    (void)state;
    char *file = in_work("text");
    write_text(file, " she said she said she said she said");
    json_t *whole = perplexity(file, "8");
    json_t *parts = perplexity(file, "2");
    json_t *ragged = perplexity(file, "7");
    assert_int_equal(integer(whole, "tokens"), 7);
    assert_int_equal(integer(parts, "tokens"), 4);
    assert_int_equal(integer(ragged, "tokens"), 6); /* a window of one scores none */
    json_decref(whole);
    json_decref(ragged);
    write_text(file, " she said");
    json_t *one = perplexity(file, "2");
    assert_int_equal(integer(one, "tokens"), 1);
    assert_true(fabs(real(one, "nll") - real(parts, "nll")) < 1e-12);
    json_decref(one);
    json_decref(parts);
    write_text(file, "<|im_start|>");
    expect_error(DEMO("perplexity", MODEL, file), 2, "1 token; at least 2");
    output plain = DEMO("perplexity", MODEL, file, "--plain");
    expect_code(&plain, 0);
    release(&plain);
    write_text(file, "");
    expect_error(DEMO("perplexity", MODEL, file), 2, "0 tokens; at least 2");
    output o = DEMO("perplexity", MODEL, STORIES, "--window", "8000");
    expect_error(o, 6, "");
    free(file);
}

/* ---- inspect ---- */

static void inspect(void **state) {
    (void)state;
    output o = RUN("inspect", MODEL); /* needs no configuration */
    expect_code(&o, 0);
    static const char *const parts[] = {"gguf, version 3",
                                        "qwen35moe",
                                        "24032992 bytes (22.9 MiB)",
                                        "vocabulary             4096",
                                        "merges                 3835",
                                        "experts                16"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) expect_text(o.out, parts[i]);
    assert_null(strstr(o.out, "token_embd.weight"));
    release(&o);
    o = RUN("inspect", MODEL, "--tensors");
    expect_text(o.out, "token_embd.weight");
    release(&o);
    o = RUN("inspect", MODEL, "--json");
    json_t *report = parse(&o);
    assert_string_equal(text_of(report, "architecture"), "qwen35moe");
    assert_null(json_object_get(report, "memory"));
    json_decref(report);
    o = DEMO("inspect", MODEL, "--plan", "--json", "--ctx", "512");
    report = parse(&o);
    assert_int_equal(integer(json_object_get(report, "memory"), "context"), 512);
    assert_int_equal(integer(json_object_get(report, "memory"), "requests"), 8);
    assert_true(json_array_size(json_object_get(report, "tensors")) > 100);
    json_decref(report);
    o = DEMO("inspect", MODEL, "--plan");
    expect_text(o.out, "kv_cache");
    release(&o);
}

/* ---- providers ---- */

typedef struct provider {
    char *path, *sha256, *folder, *search;
} provider;

/* What the build's configuration allows. */
static provider demo_provider(void) {
    output o = DEMO("providers", "list", "--json");
    json_t *report = parse(&o);
    const json_t *entry = json_array_get(json_object_get(report, "providers"), 0);
    assert_string_equal(text_of(entry, "name"), "qwen36");
    provider p = {.path = strdup(text_of(entry, "path"))};
    p.folder = strdup(p.path);
    *strrchr(p.folder, '/') = '\0';
    p.search = strdup(p.folder);
    *strrchr(p.search, '/') = '\0';
    json_decref(report);
    size_t size;
    char *config = read_all(FTK_CONFIG, &size);
    const char *sha = strstr(config, "sha256: ");
    assert_non_null(sha);
    p.sha256 = strndup(sha + 8, 64);
    free(config);
    return p;
}

static void free_provider(provider *p) {
    free(p->path);
    free(p->sha256);
    free(p->folder);
    free(p->search);
}

static void expect_file(const char *path, const char *format, ...) {
    char *wanted = NULL;
    va_list args;
    va_start(args, format);
    assert_true(vasprintf(&wanted, format, args) >= 0);
    va_end(args);
    char *have = read_all(path, NULL);
    assert_string_equal(have, wanted);
    free(have);
    free(wanted);
}

#define ENTRY "    - name: qwen36\n      path: %s\n      sha256: %s\n"

static void expect_mode(const char *path, mode_t mode) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, mode);
}

static void allow_first(void **state) {
    (void)state;
    provider p = demo_provider();
    char *folder = in_work("home/freetoken"), *path = in_work("home/freetoken/config.yaml");
    output o = RUN("providers", "allow", p.folder);
    expect_code(&o, 0);
    expect_text(o.out, p.sha256);
    expect_text(o.out, path);
    expect_text(o.out, "\nadded\n");
    release(&o);
    expect_file(path, "providers:\n  allow:\n" ENTRY, p.path, p.sha256);
    expect_mode(path, 0600);
    expect_mode(folder, 0700);
    o = RUN("providers", "allow", p.folder, "--json");
    json_t *result = parse(&o);
    assert_string_equal(text_of(result, "action"), "unchanged");
    assert_string_equal(text_of(result, "config"), path);
    json_decref(result);
    /* The user's configuration is found and works. */
    o = RUN("tokenize", MODEL, "-p", "x");
    expect_code(&o, 0);
    release(&o);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* and nothing temporary was left */
    free(folder);
    free(path);
    free_provider(&p);
}

#define OTHER_SHA "0000000000000000000000000000000000000000000000000000000000000000"

static void allow_differs(void **state) {
    (void)state;
    provider p = demo_provider();
    char *path = in_work("differs.yaml"), *text = NULL;
    const char *frame = "# mine\nproviders:\n  allow:\n" ENTRY "numerics: exact # keep\n";
    assert_true(asprintf(&text, frame, p.path, OTHER_SHA) > 0);
    write_all(path, text, strlen(text), 0640);
    output o = RUN("providers", "check", "--config", path);
    expect_code(&o, 4);
    expect_text(o.err, "error: provider qwen36: FTK_E_PROVIDER_DIGEST");
    release(&o);
    o = RUN("providers", "list", "--config", path);
    expect_code(&o, 0);
    release(&o);
    o = RUN("providers", "allow", p.folder, "--config", path);
    expect_code(&o, 3);
    expect_text(o.err, "differs.yaml:4: provider 'qwen36' is already allowed");
    expect_text(o.err, OTHER_SHA);
    expect_text(o.err, p.sha256);
    release(&o);
    expect_file(path, "%s", text);
    o = RUN("providers", "allow", p.folder, "--update", "--config", path);
    expect_code(&o, 0);
    expect_text(o.out, "\nupdated\n");
    release(&o);
    expect_file(path, frame, p.path, p.sha256);
    expect_mode(path, 0640);
    o = RUN("providers", "check", "--config", path);
    expect_code(&o, 0);
    release(&o);
    free(text);
    free(path);
    free_provider(&p);
}

static void allow_by_name(void **state) {
    (void)state;
    provider p = demo_provider();
    char *path = in_work("name.yaml"), *text = NULL;
    assert_true(asprintf(&text, "providers:\n  search: ['%s']\n", p.search) > 0);
    write_text(path, text);
    expect_error(RUN("providers", "allow", "qwen37", "--config", path), 4, "no provider 'qwen37'");
    output o = RUN("providers", "check", "--config", path);
    expect_code(&o, 0);
    expect_text(o.out, "qwen36 0.1.0: not allowed");
    release(&o);
    o = RUN("providers", "allow", "qwen36", "--config", path);
    expect_code(&o, 0);
    release(&o);
    expect_file(path, "providers:\n  allow:\n" ENTRY "  search: ['%s']\n", p.path, p.sha256,
                p.search);
    free(text);
    free(path);
    free_provider(&p);
}

static void refuse_edit(const char *text, const char *folder, int code, const char *part) {
    char *path = in_work("refused.yaml");
    write_text(path, text);
    output o = RUN("providers", "allow", folder, "--config", path);
    expect_code(&o, code);
    expect_text(o.err, part);
    release(&o);
    expect_file(path, "%s", text);
    assert_int_equal(unlink(path), 0);
    free(path);
}

static void allow_refused(void **state) {
    (void)state;
    provider p = demo_provider();
    refuse_edit("providers: {allow: []}\n", p.folder, 3, "refused.yaml:1: 'providers' holds");
    refuse_edit("providers:\n  allow: [{name: a, path: /a.so}]\n", p.folder, 3,
                "refused.yaml:2: 'allow' holds");
    refuse_edit("numerics: exact\nbroken: [\n", p.folder, 3, "nothing written");
    refuse_edit("providers:\n  allow:\n    - {name: qwen36, path: /a.so}\n", p.folder, 3,
                "nothing written");
    refuse_edit("numerics: exact\n---\n", p.folder, 3, "nothing written");
    /* What looks like a key is part of a quoted text. */
    refuse_edit("provider_options: {a: {b: \"\nproviders:\n  \"}}\n", p.folder, 3,
                "the edit would not allow");
    expect_error(RUN("providers", "allow", "/no/such/folder"), 4, "/no/such/folder");
    expect_error(RUN("providers", "allow", FTK_TEST_DATA), 4, FTK_TEST_DATA);
    char *path = in_work("link.yaml"), *real_path = in_work("real.yaml");
    write_text(real_path, "numerics: exact\n");
    assert_int_equal(symlink(real_path, path), 0);
    output o = RUN("providers", "allow", p.folder, "--config", path);
    expect_code(&o, 3);
    expect_text(o.err, "link.yaml: is no regular file");
    release(&o);
    expect_file(real_path, "numerics: exact\n");
    free(path);
    free(real_path);
    free_provider(&p);
}

/* A home that is reached through a link is nothing to refuse. */
static void allow_behind_a_link(void **state) {
    (void)state;
    provider p = demo_provider();
    char *home = in_work("home"), *real_home = in_work("real-home");
    char *folder = in_work("real-home/freetoken"),
         *path = in_work("real-home/freetoken/config.yaml");
    assert_int_equal(rename(home, real_home), 0);
    assert_int_equal(symlink(real_home, home), 0);
    output o = RUN("providers", "allow", p.folder);
    expect_code(&o, 0);
    expect_text(o.out, path);
    release(&o);
    o = RUN("tokenize", MODEL, "-p", "x");
    expect_code(&o, 0);
    release(&o);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(unlink(home), 0);
    assert_int_equal(rename(real_home, home), 0);
    free(home);
    free(real_home);
    free(folder);
    free(path);
    free_provider(&p);
}

static void refuse_place(const char *name, const char *folder, const char *part) {
    char *path = in_work(name);
    output o = RUN("providers", "allow", folder, "--config", path);
    expect_code(&o, 3);
    expect_text(o.err, "nothing written");
    expect_text(o.err, part);
    expect_text(o.err, path);
    if (strstr(o.err, ".tmp-")) fail_msg("the temporary name is shown: %s", o.err);
    release(&o);
    assert_int_equal(access(path, F_OK), -1);
    free(path);
}

/* A configuration that every run would refuse is not written. */
static void allow_where_no_run_looks(void **state) {
    (void)state;
    provider p = demo_provider();
    char *place = in_work("place"), *link = in_work("link-to-place");
    char *path = in_work("place/c.yaml");
    assert_int_equal(mkdir(place, 0700), 0);
    assert_int_equal(symlink(place, link), 0);
    refuse_place("link-to-place/c.yaml", p.folder, "is a symbolic link");
    assert_int_equal(chmod(place, 0775), 0);
    refuse_place("place/c.yaml", p.folder, "run: chmod go-w");
    assert_int_equal(chmod(place, 0755), 0);
    output o = RUN("providers", "allow", p.folder, "--config", path);
    expect_code(&o, 0);
    release(&o);
    assert_int_equal(chmod(path, 0660), 0);
    o = RUN("providers", "allow", p.folder, "--config", path); /* nothing to write either */
    expect_code(&o, 3);
    expect_text(o.err, "chmod go-w");
    release(&o);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(rmdir(place), 0); /* nothing temporary was left */
    free(place);
    free(link);
    free(path);
    free_provider(&p);
}

static void list_what_cannot_be_read(void **state) {
    (void)state;
    char *path = in_work("unreadable.yaml");
    write_text(path, "providers:\n  search: ['/no/such/folder']\n  allow:\n    - {name: gone, "
                     "path: /no/such/gone.so}\n");
    output o = RUN("providers", "list", "--config", path);
    expect_code(&o, 0);
    expect_text(o.out, "unreadable: FTK_E_NOT_FOUND\n  path           /no/such/folder\n  cannot");
    expect_text(o.out, "\ngone: allowed, not pinned, FTK_E_PROVIDER_");
    if (strstr(o.out, "architectures")) fail_msg("nothing is known of it: %s", o.out);
    release(&o);
    free(path);
}

/* An escape sequence of each kind, a change of direction, and what is no UTF-8. */
#define CLEAR                                                                                      \
    "e\x1b[2J\xC2\x9B"                                                                             \
    "31m\xE2\x80\xAE\xD8\x9C\x7F"
#define CLEARED "e\\x1b[2J\\xc2\\x9b31m\\xe2\\x80\\xae\\xd8\\x9c\\x7f"
#define NO_UTF8 CLEAR "\xFF"

/* Nothing in it does more to a terminal than to show a character or to end a line. */
static void expect_harmless(const char *text) {
    static const char *const parts[] = {"\x1b",     "\xC2\x9B", "\xE2\x80\xAE",
                                        "\xD8\x9C", "\x7F",     "\xFF"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strstr(text, parts[i])) fail_msg("part %zu is there: %s", i, text);
    }
}

static void expect_shown(output o, int code, const char *part) {
    expect_code(&o, code);
    expect_harmless(o.out);
    expect_harmless(o.err);
    if (!strstr(o.out, part) && !strstr(o.err, part)) {
        fail_msg("'%s' is not in: %s%s", part, o.out, o.err);
    }
    release(&o);
}

/* A folder of that name with the manifest of the demo's provider, and a configuration that
 * searches there. */
static void write_hostile_world(const char *name, const char *config) {
    provider p = demo_provider();
    char *folder = in_work(name), *file = NULL, *source = NULL, *whole = NULL;
    assert_int_equal(mkdir(folder, 0755), 0);
    assert_true(asprintf(&file, "%s/qwen36", folder) > 0);
    assert_int_equal(mkdir(file, 0755), 0);
    free(file);
    assert_true(asprintf(&file, "%s/qwen36/qwen36.provider.yaml", folder) > 0);
    assert_true(asprintf(&source, "%s/qwen36.provider.yaml", p.folder) > 0);
    char *manifest = read_all(source, NULL);
    write_all(file, manifest, strlen(manifest), 0644);
    assert_true(asprintf(&whole, "providers:\n  search: [\"%s/%s\"]\n", work,
                         "e\\e[2J\\x9b31m\\u202e\\u061c\\x7f") > 0);
    write_text(config, whole);
    free(whole);
    free(manifest);
    free(source);
    free(file);
    free(folder);
    free_provider(&p);
}

static void what_comes_from_outside_is_escaped(void **state) {
    (void)state;
    char *config = in_work("hostile.yaml"), *no_text = in_work(NO_UTF8), *file = NULL;
    write_hostile_world(CLEAR, config);
    expect_shown(RUN("providers", "list", "--config", config), 0,
                 CLEARED "\nqwen36 0.1.0: not allowed, ok\n");
    expect_shown(RUN("providers", "check", "--config", config), 0, CLEARED "/qwen36/qwen36.so\n");
    expect_shown(RUN("providers", "explain", "qwen35moe", "gguf", "--config", config), 4,
                 "freetoken providers allow /");
    expect_shown(RUN("providers", "allow", "qwen36", "--config", config), 4, CLEARED);
    expect_shown(RUN("run", MODEL, "-p", "x", "--config", config), 4, CLEARED);
    /* JSON says what is there. */
    output o = RUN("providers", "list", "--json", "--config", config);
    json_t *report = parse(&o);
    const char *search = json_string_value(json_array_get(json_object_get(report, "search"), 0));
    assert_non_null(search);
    expect_text(search, CLEAR);
    json_decref(report);

    assert_int_equal(mkdir(no_text, 0755), 0);
    assert_true(asprintf(&file, "%s/model.gguf", no_text) > 0);
    assert_int_equal(symlink(MODEL, file), 0);
    expect_shown(DEMO("inspect", file), 0, CLEARED "\\xff/model.gguf\n");
    expect_shown(DEMO("providers", "explain", file), 0, CLEARED "\\xff/model.gguf\n");
    expect_shown(DEMO("providers", "allow", no_text), 4, CLEARED "\\xff");
    expect_shown(DEMO("inspect", no_text), 5, CLEARED "\\xff");
    expect_shown(RUN("inspect", MODEL, "--plan", "--config", no_text), 3, CLEARED "\\xff");
    expect_shown(DEMO("tokenize", MODEL, "-p", "x", NO_UTF8), 2, CLEARED "\\xff");
    static const char *const made[] = {NO_UTF8 "/model.gguf", NO_UTF8,
                                       "hostile.yaml",        CLEAR "/qwen36/qwen36.provider.yaml",
                                       CLEAR "/qwen36",       CLEAR};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        char *path = in_work(made[i]);
        assert_int_equal(remove(path), 0);
        free(path);
    }
    free(file);
    free(no_text);
    free(config);
}

/* Every byte of a long configuration survives. */
static void allow_keeps_text(void **state) {
    (void)state;
    provider p = demo_provider();
    char *path = in_work("kept.yaml");
    const char *head =
        "# \xC3\xA9 comment\r\n\nbackend: {kind: cpu,   threads: 1}\nproviders:   # p\n"
        "  select: {}\n  allow: # a\n";
    const char *tail = "    # the other\n    - name: other\n      path: /other.so\n\n\n"
                       "memory:\n    kv_tokens: 64   # few\n# end";
    char *text = NULL;
    assert_true(asprintf(&text, "%s%s", head, tail) > 0);
    write_text(path, text);
    output o = RUN("providers", "allow", p.folder, "--config", path);
    expect_code(&o, 0);
    release(&o);
    char *have = read_all(path, NULL);
    assert_int_equal(strncmp(have, head, strlen(head)), 0);
    assert_string_equal(have + strlen(have) - strlen(tail), tail);
    expect_text(have, p.sha256);
    free(have);
    free(text);
    free(path);
    free_provider(&p);
}

/* ---- bench ---- */

static json_t *explained(const char *what, const char *container, const char *config, int code) {
    output o = container
                   ? RUN("providers", "explain", what, container, "--json", "--config", config)
                   : RUN("providers", "explain", what, "--json", "--config", config);
    expect_code(&o, code);
    if (code) expect_text(o.err, "freetoken: error: ");
    json_t *report = json_loads(o.out, 0, NULL);
    assert_non_null(report);
    release(&o);
    return report;
}

static void check_explained(json_t *report, const char *outcome, const char *reason) {
    const json_t *first = json_array_get(json_object_get(report, "providers"), 0);
    expect_text(text_of(report, "outcome"), outcome);
    expect_text(text_of(first, "reason"), reason);
    bool taken = json_is_string(json_object_get(report, "chosen"));
    assert_int_equal(taken, json_is_true(json_object_get(first, "passes")));
    json_decref(report);
}

static void explain_provider(void **state) {
    (void)state;
    json_t *taken = explained(MODEL, NULL, FTK_CONFIG, 0);
    const json_t *provenance = json_object_get(taken, "provenance");
    assert_string_equal(text_of(provenance, "stage"), "plan memory");
    assert_string_equal(text_of(json_object_get(provenance, "provider"), "name"), "qwen36");
    check_explained(taken, "one provider takes it", "would be loaded");
    check_explained(explained("qwen35moe", "gguf", FTK_CONFIG, 0), "one provider takes it",
                    "would be loaded");
    check_explained(explained("qwen35", "gguf", FTK_CONFIG, 4), "no allowed provider claims it",
                    "claims architecture qwen35moe, not qwen35");
    check_explained(explained("qwen35moe", "gg", FTK_CONFIG, 4), "no allowed provider claims it",
                    "claims container gguf, not gg");
    expect_error(DEMO("providers", "explain", "/no/such/model"), 5, "/no/such/model");

    provider p = demo_provider();
    char *path = in_work("name.yaml"), *text = NULL;
    assert_true(asprintf(&text, "providers:\n  search: [%s]\n", p.search) > 0);
    write_text(path, text);
    char *command = NULL;
    assert_true(asprintf(&command, "freetoken providers allow %s", p.folder) > 0);
    check_explained(explained(MODEL, NULL, path, 4), "no allowed provider claims it", command);
    free(text);
    assert_true(asprintf(&text,
                         "providers:\n  allow:\n    - name: qwen36\n      path: %s\n"
                         "      sha256: %064d\n",
                         p.path, 0) > 0);
    write_text(path, text);
    check_explained(explained(MODEL, NULL, path, 4), "fails a check", "FTK_E_PROVIDER_DIGEST: ");
    output o = RUN("providers", "explain", MODEL, "--config", path);
    expect_code(&o, 4);
    expect_text(o.out, "architecture qwen35moe, container gguf\nno  qwen36 (");
    assert_null(strstr(o.out, "load_address"));
    release(&o);
    o = RUN("providers", "explain", MODEL, "--config", FTK_CONFIG);
    expect_code(&o, 0);
    expect_text(o.out, "    load_address: 0x");
    expect_text(o.out, "    policy.fused: \"auto\" (default)\n");
    release(&o);
    free(command);
    free(text);
    free(path);
    free_provider(&p);
}

/* What a line of providers.select decides, and places that are one folder off. */
static void explain_selected(void **state) {
    (void)state;
    provider p = demo_provider();
    char *path = in_work("name.yaml"), *text = NULL;
    const char *format = "providers:\n  search: [%s]\n  allow: [{name: qwen36, path: %s}]\n"
                         "  select: {\"qwen35moe/%s\": qwen36}\n";
    assert_true(asprintf(&text, format, p.folder, p.path, "gguf") > 0);
    write_text(path, text);
    check_explained(explained("qwen35moe", "gguf", path, 0),
                    "one provider takes it, chosen by providers.select", "would be loaded");
    output o = RUN("providers", "list", "--config", path);
    expect_text(o.out, "wanted folders that hold one each: name its parent");
    release(&o);
    free(text);
    assert_true(asprintf(&text, format, p.search, p.path, "guff") > 0);
    write_text(path, text);
    expect_error(RUN("run", MODEL, "-p", "x", "--config", path), 3,
                 "providers.select.qwen35moe/guff: no allowed provider claims this pair");
    free(text);
    assert_true(asprintf(&text, format, p.search, p.folder, "gguf") > 0);
    write_text(path, text);
    expect_error(RUN("run", MODEL, "-p", "x", "--config", path), 4,
                 "found a folder, wanted the library in it");
    free(text);
    free(path);
    free_provider(&p);
}

/* ---- selftest ---- */

/* Checks of that name; each of them ok. */
static size_t count_checks(const json_t *report, const char *name, const char *detail) {
    size_t i, count = 0;
    const json_t *check;
    json_array_foreach(json_object_get(report, "checks"), i, check) {
        if (strcmp(text_of(check, "name"), name) != 0) continue;
        bool ok = strcmp(text_of(check, "status"), "ok") == 0;
        if (ok && strstr(text_of(check, "detail"), detail)) count++;
    }
    return count;
}

static void selftest(void **state) {
    (void)state;
    output o = RUN("selftest", "--json"); /* needs no configuration */
    json_t *report = parse(&o);
    assert_string_equal(text_of(report, "backend"), "cpu");
    assert_int_equal(integer(report, "failed"), 0);
    json_int_t checks = integer(report, "passed") + integer(report, "skipped");
    assert_int_equal(json_array_size(json_object_get(report, "checks")), checks);
    size_t each = integer(report, "skipped") ? 2 : 6; /* variants of one check */
    static const char *const types[] = {"F32", "F16", "BF16", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "matmul/%s", types[i]);
        assert_int_equal(count_checks(report, name, "values equal"), each);
        (void)snprintf(name, sizeof name, "experts/%s", types[i]);
        assert_int_equal(count_checks(report, name, "values equal"), each);
    }
    assert_int_equal(count_checks(report, "attention", "4 shapes"), each);
    assert_int_equal(count_checks(report, "what ran", " replays"), 6);
    json_decref(report);
    expect_error(RUN("selftest", "--backend", "cuda"), 7, "backend.kind is cuda");
    expect_error(RUN("selftest", "--threads", "x"), 2, "--threads: ");
    o = RUN("selftest");
    expect_code(&o, 0);
    expect_text(o.out, "backend cpu: cpu.threads");
    expect_text(o.out, " passed, 0 failed, ");
    release(&o);
}

static void selftest_model(void **state) {
    (void)state;
    output o = DEMO("selftest", MODEL, "--json");
    json_t *report = parse(&o);
    assert_int_equal(integer(report, "failed"), 0);
    assert_int_equal(count_checks(report, "model", "16 tokens"), 5);
    assert_int_equal(count_checks(report, "model", ", 0 steps replayed"), 2);
    assert_int_equal(count_checks(report, "model", ", 15 steps replayed"), 3);
    json_decref(report);
    expect_error(DEMO("selftest", "/no/such/model"), 5, "/no/such/model");
}

static void check_spread(const json_t *spread) {
    double median = real(spread, "median");
    assert_true(real(spread, "min") > 0.0);
    assert_true(real(spread, "min") <= median && median <= real(spread, "max"));
}

static void check_bench(const json_t *o, size_t warmup, size_t repeat, const char *hash) {
    const json_t *runs = json_object_get(o, "runs");
    assert_true(json_is_true(json_object_get(o, "valid")));
    assert_true(json_is_null(json_object_get(o, "void_reason")));
    assert_string_equal(text_of(o, "cause"), "model execution");
    assert_string_equal(text_of(o, "version"), "0.1.0");
    assert_int_equal(integer(json_object_get(o, "histogram"), "1"), repeat * 7);
    assert_true(integer(json_object_get(o, "machine"), "cores_allowed") >= 1);
    assert_int_equal(json_array_size(runs), warmup + repeat);
    check_spread(json_object_get(json_object_get(o, "figures"), "decode_tok_s"));
    check_spread(json_object_get(json_object_get(o, "figures"), "prefill_tok_s"));
    size_t i;
    const json_t *run;
    json_array_foreach(runs, i, run) {
        assert_string_equal(text_of(run, "hash"), hash);
        assert_int_equal(json_is_true(json_object_get(run, "warmup")), i < warmup);
        assert_int_equal(integer(run, "window_steps"), 7);
    }
}

static void bench_decode(void **state) {
    (void)state;
    output o = DEMO("run", MODEL, "--json", "-p", ONCE, "-n", "8", "--ignore-eos");
    json_t *once = parse(&o);
    o = BENCH("decode", "--model", MODEL, "--tokens", "8", "--repeat", "2", "--warmup", "1",
              "--prompt", ONCE, "--no-bandwidth", "--json");
    json_t *bench = parse(&o);
    check_bench(bench, 1, 2, text_of(once, "hash"));
    json_decref(bench);
    json_decref(once);
    o = BENCH("decode", "--model", MODEL, "--tokens", "8", "--repeat", "1", "--warmup", "0",
              "--prompt-tokens", "33", "--no-bandwidth");
    expect_code(&o, 0);
    expect_text(o.out, "33 prompt tokens, 8 tokens, 1 runs after 0 warm-up");
    expect_text(o.out, "\ndecode_tok_s ");
    expect_text(o.out, "\nprefill_tok_s ");
    release(&o);
    o = BENCH("decode", "-m", MODEL, "-n", "4", "--repeat=1", "--warmup=0", "-p", LAST,
              "--no-bandwidth");
    expect_code(&o, 0);
    release(&o);
}

/* A run that ends early is no measurement: the context is too small here. */
/* Both of a pair run the same, and too few runs decide nothing. */
static void bench_provider_cost(void **state) {
    (void)state;
    output o = BENCH("provider-cost", "--model", MODEL, "--tokens", "4", "--repeat", "1",
                     "--warmup", "0", "--no-bandwidth", "--json");
    expect_code(&o, 0);
    json_t *report = parse(&o);
    const json_t *cost = json_object_get(report, "provider_cost");
    expect_text(text_of(cost, "verdict"), "not decided: at least 10 runs are wanted");
    const json_t *rows[2] = {json_object_get(report, "a"), json_object_get(report, "b")};
    for (size_t i = 0; i < 2; i++) {
        const json_t *provenance = json_object_get(rows[i], "provenance");
        const json_t *used = json_object_get(provenance, "provider");
        assert_int_equal(json_is_true(json_object_get(used, "linked_in")), i == 0);
    }
    assert_string_equal(text_of(rows[0], "hash"), text_of(rows[1], "hash"));
    json_decref(report);
}

/* Before anything runs: a run that ended early would be void. */
static void bench_past_the_context(void **state) {
    (void)state;
    expect_error(BENCH("decode", "--model", MODEL, "--tokens", "40", "--repeat", "1", "--ctx", "32",
                       "--no-bandwidth", "--json"),
                 2, "40 to generate want a context of");
}

/* ---- the group ---- */

static int set_up(void **state) {
    (void)state;
    (void)strcpy(work, "/tmp/ftk-cli-XXXXXX");
    if (!mkdtemp(work)) return 1;
    char *home = in_work("home");
    int failed = mkdir(home, 0700);
    free(home);
    golden = json_load_file(FTK_TEST_DATA "/golden.json", JSON_ALLOW_NUL, NULL);
    return failed || !golden;
}

static int tear_down(void **state) {
    (void)state;
    static const char *const names[] = {"home/freetoken/config.yaml",
                                        "home/freetoken",
                                        "home",
                                        "stdout",
                                        "stderr",
                                        "prompt",
                                        "text",
                                        "logits",
                                        "out/file",
                                        "out",
                                        "differs.yaml",
                                        "name.yaml",
                                        "refused.yaml",
                                        "unreadable.yaml",
                                        "link.yaml",
                                        "real.yaml",
                                        "kept.yaml",
                                        "typed",
                                        "model.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = in_work(names[i]);
        (void)remove(path);
        free(path);
    }
    json_decref(golden);
    return rmdir(work); /* fails if a test left anything else */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_and_help),
        cmocka_unit_test(usage_errors),
        cmocka_unit_test(library_options),
        cmocka_unit_test(missing_files),
        cmocka_unit_test(run_json),
        cmocka_unit_test(run_stops),
        cmocka_unit_test(run_golden),
        cmocka_unit_test(run_into_one_pipe),
        cmocka_unit_test(run_sampling),
        cmocka_unit_test(run_prompts),
        cmocka_unit_test(stdout_full),
        cmocka_unit_test(stdout_gone),
        cmocka_unit_test(interrupted),
        cmocka_unit_test(tokenize),
        cmocka_unit_test(logits_rows),
        cmocka_unit_test(logits_files),
        cmocka_unit_test(perplexity_one_window),
        cmocka_unit_test(perplexity_windows),
        cmocka_unit_test(inspect),
        cmocka_unit_test(allow_first),
        cmocka_unit_test(allow_differs),
        cmocka_unit_test(allow_by_name),
        cmocka_unit_test(allow_refused),
        cmocka_unit_test(allow_behind_a_link),
        cmocka_unit_test(allow_where_no_run_looks),
        cmocka_unit_test(list_what_cannot_be_read),
        cmocka_unit_test(what_comes_from_outside_is_escaped),
        cmocka_unit_test(allow_keeps_text),
        cmocka_unit_test(bench_decode),
        cmocka_unit_test(bench_provider_cost),
        cmocka_unit_test(bench_past_the_context),
        cmocka_unit_test(explain_provider),
        cmocka_unit_test(explain_selected),
        cmocka_unit_test(selftest),
        cmocka_unit_test(selftest_model),
        cmocka_unit_test(run_bias),
        cmocka_unit_test(run_stop),
        cmocka_unit_test(run_logprobs),
        cmocka_unit_test(chat_remembers),
        cmocka_unit_test(chat_commands),
        cmocka_unit_test(chat_untrained),
        cmocka_unit_test(chat_interrupted),
    };
    return cmocka_run_group_tests_name("test_cli", tests, set_up, tear_down);
}
