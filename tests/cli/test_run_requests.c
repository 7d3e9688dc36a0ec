/*
 * test_run_requests.c: `freetoken run --requests` as a shell would run it: results held
 * against runs of one prompt each, order, errors, interruption, many requests.
 */
#include <fcntl.h>
#include <math.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/checkpoint.h"
#include "support/engine_fixture.h"
#include "support/model_files.h"

#define MODEL DEMO_MODEL

/* ---- files ---- */

static void put(const char *name, const char *content) {
    text p = in_scratch(name);
    FILE *file = fopen(p.s, "wb");
    assert_non_null(file);
    assert_true(fputs(content, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static bool there(const char *name) {
    text p = in_scratch(name);
    return access(p.s, F_OK) == 0;
}

static char *get(const char *name) {
    text p = in_scratch(name);
    size_t size;
    return there(name) ? fixture_read(p.s, &size) : strdup("");
}

/* ---- running the program ---- */

typedef struct output {
    int code; /* exit code, or 128 + signal */
    char *out;
    char *err;
} output;

#define MAX_ARGUMENTS 32

static const char *typed = "/dev/null"; /* what the program reads */
static int out_fd = -1, err_fd = -1;    /* where it writes, if not to the usual files */

static int target(int fd, const char *name) {
    text p = in_scratch(name);
    return fd >= 0 ? fd : open(p.s, O_WRONLY | O_CREAT | O_TRUNC, 0600);
}

static pid_t start(const char *const *argv) {
    text out = in_scratch("stdout"), err = in_scratch("stderr");
    (void)unlink(out.s);
    (void)unlink(err.s);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    int in = open(typed, O_RDONLY);
    if (dup2(in, 0) < 0 || dup2(target(out_fd, "stdout"), 1) < 0 ||
        dup2(target(err_fd, "stderr"), 2) < 0)
        _exit(125);
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(126);
}

static output finish(pid_t child) {
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    output o = {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
    o.out = get("stdout");
    o.err = get("stderr");
    return o;
}

static void release(output *o) {
    free(o->out);
    free(o->err);
    *o = (output){0};
}

static pid_t start_run(const char *model, const char *const *more) {
    const char *argv[MAX_ARGUMENTS] = {FTK_BIN, "run", model, "--config", FTK_CONFIG};
    for (size_t i = 0, n = 5; more[i]; i++) {
        assert_true(n + 1 < MAX_ARGUMENTS);
        argv[n++] = more[i];
    }
    return start(argv);
}

#define LIST(...)       ((const char *const[]){__VA_ARGS__, NULL})
#define RUN(model, ...) finish(start_run(model, LIST(__VA_ARGS__)))

static void expect_code(const output *o, int code) {
    if (o->code != code) fail_msg("exit %d, wanted %d: %s", o->code, code, o->err);
}

static void expect_text(const char *whole, const char *part) {
    if (!strstr(whole, part)) fail_msg("'%s' is not in: %s", part, whole);
}

/* ---- results ---- */

/* A list of the lines `at`, each of which must be whole JSON. */
static json_t *lines_of(const char *at) {
    json_t *list = json_array();
    while (*at) {
        const char *end = strchr(at, '\n');
        if (!end) fail_msg("the last line is not whole: %s", at);
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, NULL);
        if (!line) fail_msg("no JSON: %.*s", (int)(end - at), at);
        (void)json_array_append_new(list, line);
        at = end + 1;
    }
    return list;
}

/* The results of a file of requests that must all finish. */
#define RESULTS(model, ...) results(RUN(model, __VA_ARGS__), 0)
static json_t *results(output o, int code) {
    expect_code(&o, code);
    json_t *list = lines_of(o.out);
    release(&o);
    return list;
}

static const json_t *result_of(const json_t *list, const char *id) {
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)(uintptr_t)list, i, one) {
        const json_t *name = json_object_get(one, "id");
        char number[24];
        (void)snprintf(number, sizeof number, "%lld", (long long)json_integer_value(name));
        const char *as_text = json_is_string(name) ? json_string_value(name) : number;
        if (as_text && strcmp(as_text, id) == 0) return one;
    }
    fail_msg("no result of '%s'", id);
    return NULL;
}

static void expect_same(const json_t *a, const json_t *b, const char *what) {
    static const char *const keys[] = {"prompt_tokens", "tokens", "text",
                                       "finish",        "hash",   "logprobs"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *left = json_object_get(a, keys[i]), *right = json_object_get(b, keys[i]);
        if (!left && !right) continue;
        if (json_equal(left, right)) continue;
        char *l = left ? json_dumps(left, JSON_ENCODE_ANY) : NULL;
        char *r = right ? json_dumps(right, JSON_ENCODE_ANY) : NULL;
        fail_msg("%s: %s is %s, and %s alone", what, keys[i], l ? l : "not there",
                 r ? r : "not there");
    }
}

/* What ran, of the summary at the end of the results. */
static const json_t *decode_steps(const json_t *list) {
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    const json_t *sizes = json_object_get(json_object_get(last, "summary"), "executed_batch_sizes");
    const json_t *steps = json_object_get(sizes, "decode");
    assert_non_null(steps);
    return steps;
}

static json_int_t steps_of(const json_t *list, const char *rows) {
    return json_integer_value(json_object_get(decode_steps(list), rows));
}

/* Steps in which more than one request decoded. */
static json_int_t together(const json_t *list) {
    json_int_t sum = 0;
    const char *rows;
    json_t *steps;
    json_object_foreach((json_t *)(uintptr_t)decode_steps(list), rows, steps) {
        if (strcmp(rows, "1") != 0) sum += json_integer_value(steps);
    }
    return sum;
}

/* ---- against one prompt at a time ---- */

/* Two ways to say the same request. */
static const struct {
    const char *line;
    const char *options[12];
} alone[] = {
    {"{\"id\": \"0\", \"prompt\": \"Once upon a time there was\"}",
     {"-p", "Once upon a time there was"}},
    {"{\"id\": 1, \"prompt\": \"A dog and a cat\", \"seed\": 7, \"max_tokens\": 20}",
     {"-p", "A dog and a cat", "--seed", "7", "-n", "20"}},
    {"{\"id\": 2, \"prompt\": \"The king\", \"temperature\": 0.7, \"top_k\": 40, \"top_p\": 0.9, "
     "\"min_p\": 0.05, \"seed\": 3}",
     {"-p", "The king", "--temp=0.7", "--top-k=40", "--top-p=0.9", "--min-p=0.05", "--seed=3"}},
    {"{\"id\": 3, \"prompt\": \"There was once\", \"stop\": [\".\", \"!\"], \"logprobs\": 2}",
     {"-p", "There was once", "--stop=.", "--stop=!", "--logprobs=2"}},
    {"{\"id\": 4, \"prompt\": \"In a house\", \"repetition_penalty\": 1.3, \"penalty_last\": 8, "
     "\"presence_penalty\": 0.5, \"frequency_penalty\": 0.25, \"priority\": -2}",
     {"-p", "In a house", "--repetition-penalty=1.3", "--penalty-last=8", "--presence-penalty=0.5",
      "--frequency-penalty=0.25"}},
    {"{\"id\": 5, \"prompt\": \"Hi<|endoftext|>\", \"special\": true, \"ignore_eos\": true}",
     {"-p", "Hi<|endoftext|>", "--special", "--ignore-eos"}},
};
#define ALONE (sizeof alone / sizeof alone[0])

static json_t *run_alone(size_t i) {
    const char *more[MAX_ARGUMENTS] = {"--json", "-n", "12"};
    for (size_t n = 0; alone[i].options[n]; n++) more[3 + n] = alone[i].options[n];
    output o = finish(start_run(MODEL, more));
    expect_code(&o, 0);
    json_t *object = json_loads(o.out, 0, NULL);
    assert_non_null(object);
    release(&o);
    return object;
}

static text requests_of(const char *const *lines, size_t count) {
    text p = in_scratch("requests");
    FILE *file = fopen(p.s, "wb");
    assert_non_null(file);
    for (size_t i = 0; i < count; i++) assert_true(fprintf(file, "%s\n", lines[i]) > 0);
    assert_int_equal(fclose(file), 0);
    return p;
}

static void same_as_alone(void **state) {
    (void)state;
    const char *lines[ALONE];
    for (size_t i = 0; i < ALONE; i++) lines[i] = alone[i].line;
    text file = requests_of(lines, ALONE);
    json_t *four = RESULTS(MODEL, "--requests", file.s, "-n", "12", "--batch", "4", "--json");
    json_t *one = RESULTS(MODEL, "--requests", file.s, "-n12", "--batch=1", "--chunk=3", "--json");
    assert_int_equal(json_array_size(four), ALONE + 1);
    for (size_t i = 0; i < ALONE; i++) {
        char id[8];
        (void)snprintf(id, sizeof id, "%zu", i);
        json_t *solo = run_alone(i);
        expect_same(result_of(four, id), solo, alone[i].line);
        expect_same(result_of(one, id), solo, alone[i].line);
        json_decref(solo);
    }
    assert_true(steps_of(four, "4") > 0);
    assert_int_equal(steps_of(one, "2"), 0);
    assert_true(steps_of(one, "1") > 0);
    json_decref(four);
    json_decref(one);
}

/* Prompts as text, as a dialogue and as the ids that the dialogue has. */
static void kinds_of_prompt(void **state) {
    (void)state;
    static const char question[] = "Tell me about the old fox.";
    ftk_engine *engine = fixture_open(MODEL, NULL);
    ftk_message message = FTK_MESSAGE_INIT;
    message.role = "user";
    message.content = question;
    message.content_size = strlen(question);
    int32_t ids[64];
    size_t count;
    assert_int_equal(
        ftk_format_chat(engine, &message, 1, FTK_CHAT_NO_THINKING, ids, 64, &count, NULL), FTK_OK);
    ftk_engine_close(engine);
    json_t *tokens = json_array();
    for (size_t i = 0; i < count; i++) (void)json_array_append_new(tokens, json_integer(ids[i]));
    json_t *line = json_pack("{s:s, s:o}", "id", "ids", "tokens", tokens);
    char *as_ids = json_dumps(line, 0), *talk = NULL;
    assert_true(asprintf(&talk,
                         "{\"id\": \"talk\", \"messages\": [{\"role\": \"user\", \"content\": "
                         "\"%s\"}], \"no_thinking\": true}",
                         question) > 0);
    text file = requests_of(LIST(as_ids, "", "  \t", talk), 4);
    json_t *list = RESULTS(MODEL, "--requests", file.s, "-n", "10");
    assert_int_equal(json_array_size(list), 2);
    expect_same(result_of(list, "talk"), result_of(list, "ids"), "dialogue");
    assert_int_equal(json_integer_value(json_object_get(result_of(list, "ids"), "prompt_tokens")),
                     (json_int_t)count);
    json_decref(list);
    json_decref(line);
    free(talk);
    free(as_ids);
}

/* ---- a small model ---- */

static text small; /* random weights */

/* Lines of the same shape as those of the function below. */
static text many_requests(size_t count) {
    text p = in_scratch("requests");
    FILE *file = fopen(p.s, "wb");
    assert_non_null(file);
    for (size_t i = 0; i < count; i++)
        assert_true(fprintf(file,
                            "{\"id\": %zu, \"tokens\": [%zu, 5], \"seed\": %zu, \"max_tokens\": "
                            "%zu}\n",
                            i, i % 3, i % 4, 1 + i % 5) > 0);
    assert_int_equal(fclose(file), 0);
    return p;
}

#define KINDS 60 /* requests i and i + 60 are the same */

static void a_thousand(void **state) {
    (void)state;
    size_t count = FIXTURE_SLOW_BUILD ? 200 : 1000;
    text file = many_requests(count);
    json_t *list = RESULTS(small.s, "--requests", file.s, "--batch", "8", "--ordered", "--json");
    file = many_requests(KINDS);
    json_t *solo = RESULTS(small.s, "--requests", file.s, "--batch", "1", "--ordered");
    assert_int_equal(json_array_size(list), count + 1);
    assert_int_equal(json_array_size(solo), KINDS);
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(list, i);
        assert_int_equal(json_integer_value(json_object_get(one, "id")), (json_int_t)i);
        expect_same(one, json_array_get(solo, i % KINDS), "one of many");
    }
    assert_true(together(list) > 0);
    json_decref(list);
    json_decref(solo);
}

/* Room comes from the configuration, and steps are as large as it. */
static void room_for(void **state) {
    (void)state;
    const char *lines[10];
    for (size_t i = 0; i < 10; i++) lines[i] = "{\"tokens\": [1, 2], \"max_tokens\": 24}";
    text file = requests_of(lines, 10);
    json_t *list = RESULTS(small.s, "--requests", file.s, "--ignore-eos", "--json");
    const json_t *summary = json_object_get(json_array_get(list, 10), "summary");
    assert_int_equal(json_integer_value(json_object_get(summary, "requests")), 10);
    assert_int_equal(json_integer_value(json_object_get(summary, "finished")), 10);
    assert_int_equal(json_integer_value(json_object_get(summary, "tokens")), 240);
    const json_t *memory = json_object_get(summary, "memory");
    assert_int_equal(json_integer_value(json_object_get(memory, "requests")), 8);
    assert_true(steps_of(list, "8") > 0);
    json_decref(list);
    output o = RUN(small.s, "--requests", file.s, "--ignore-eos", "--batch", "2");
    expect_code(&o, 0);
    expect_text(o.err, "10 of 10 requests finished, 0 failed, 20 prompt tokens, 240 tokens");
    expect_text(o.err, " of 2\n");
    release(&o);
}

/* The first request is the longest. */
static void order(void **state) {
    (void)state;
    text file = requests_of(LIST("{\"id\": \"long\", \"tokens\": [1], \"max_tokens\": 60}",
                                 "{\"tokens\": [2], \"max_tokens\": 2}",
                                 "{\"id\": \"short\", \"tokens\": [3], \"max_tokens\": 1}"),
                            3);
    json_t *list = RESULTS(small.s, "--requests", file.s, "--ignore-eos");
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 2), "id")), "long");
    json_t *ordered = RESULTS(small.s, "--requests", file.s, "--ignore-eos", "--ordered");
    static const char *const ids[] = {"long", "2", "short"};
    for (size_t i = 0; i < 3; i++) {
        assert_ptr_equal(result_of(ordered, ids[i]), json_array_get(ordered, i));
        expect_same(result_of(ordered, ids[i]), result_of(list, ids[i]), ids[i]);
    }
    json_decref(ordered);
    json_decref(list);
}

static void from_standard_input(void **state) {
    (void)state;
    text file = many_requests(5);
    json_t *wanted = RESULTS(small.s, "--requests", file.s, "--ordered");
    typed = file.s;
    json_t *list = RESULTS(small.s, "--requests", "-", "--ordered", "--json");
    typed = "/dev/null";
    assert_int_equal(json_array_size(list), 6);
    for (size_t i = 0; i < 5; i++)
        expect_same(json_array_get(list, i), json_array_get(wanted, i), "from standard input");
    const json_t *summary = json_object_get(json_array_get(list, 5), "summary");
    assert_int_equal(json_integer_value(json_object_get(summary, "requests")), 5);
    json_decref(list);
    json_decref(wanted);
}

/* ---- errors ---- */

#define GOOD "{\"id\": \"good\", \"tokens\": [1, 2], \"max_tokens\": 3}"

static const struct {
    const char *line, *error;
    int code;
} bad_lines[] = {
    {"{\"prompt\": \"x\", \"max_token\": 3}", "unknown key 'max_token'; did you mean 'max_tokens'?",
     1},
    {"{\"prompt\": \"x\", \"zzzzzzzzzz\": 3}", "unknown key 'zzzzzzzzzz'; 'help run' lists", 1},
    {"{\"prompt\": 5}", "prompt is 5: wanted a text", 1},
    {"{\"prompt\": \"x\", \"max_tokens\": \"many\"}",
     "max_tokens is \"many\": wanted a whole number from 0 to 4294967295", 1},
    {"{\"prompt\": \"x\", \"max_tokens\": 4294967296}", "max_tokens is 4294967296: wanted", 1},
    {"{\"prompt\": \"x\", \"temperature\": -1}", "temperature is -1: wanted a number from 0 to 100",
     1},
    {"{\"prompt\": \"x\", \"top_p\": 0}", "top_p is 0: wanted", 1},
    {"{\"prompt\": \"x\", \"top_k\": 1.5}", "top_k is 1.5: wanted a whole number", 1},
    {"{\"prompt\": \"x\", \"min_p\": 1}", "min_p is 1: wanted", 1},
    {"{\"prompt\": \"x\", \"seed\": -1}", "seed is -1: wanted a whole number from 0 to 2^63-1", 1},
    {"{\"prompt\": \"x\", \"logprobs\": 21}", "logprobs is 21: wanted", 1},
    {"{\"prompt\": \"x\", \"priority\": 2147483648}", "priority is 2147483648: wanted", 1},
    {"{\"prompt\": \"x\", \"stop\": [\"a\", 3]}", "stop is [\"a\", 3]: wanted a text, or a list",
     1},
    {"{\"prompt\": \"x\", \"ignore_eos\": 1}", "ignore_eos is 1: wanted true or false", 1},
    {"{\"prompt\": \"x\", \"id\": 1.5}", "id is 1.5: wanted a text or a whole number", 1},
    {"{\"prompt\": \"x\", \"id\": \"good\"}", "id is \"good\", as in line 1", 1},
    {"{\"prompt\": \"x\", \"prompt\": \"y\"}", "not JSON: duplicate object key", 1},
    {"{\"id\": 4}", "no prompt: wanted exactly one of prompt, messages and tokens", 1},
    {"{\"prompt\": \"x\", \"tokens\": [1]}", "2 kinds of prompt: wanted exactly one", 1},
    {"{\"tokens\": [1, -3]}", "tokens[1] is -3: wanted a token id", 1},
    {"{\"tokens\": 1}", "tokens is 1: wanted a list", 1},
    {"{\"messages\": []}", "messages is []: wanted a list of messages", 1},
    {"{\"messages\": [{\"role\": \"user\"}]}", "messages[0] is {\"role\": \"user\"}: wanted", 1},
    {"[1]", "the line is [1]: wanted a JSON object", 1},
    {"{\"prompt\": ", "not JSON", 1},
    {"{\"prompt\": \"x\"} {}", "not JSON", 1},
    /* What only the engine can tell. */
    {"{\"prompt\": \"\"}", "the prompt is empty", 1},
    {"{\"tokens\": [99999]}", "token 0 is 99999, the vocabulary has ids 0 to", 1},
    {"{\"prompt\": \"x\", \"stop\": \"\"}", "stop string 0 is empty", 1},
    {"{\"prompt\": "
     "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
     "tokens do not fit the context of", 6},
};

/* Nothing runs, nothing is written, and what stood in the file of results stays. */
static void bad_line(size_t i, const char *output_path) {
    text file = requests_of(LIST(GOOD, "", bad_lines[i].line, GOOD), 3);
    char place[sizeof file.s + 16];
    (void)snprintf(place, sizeof place, "error: %s:3: ", file.s);
    output o = RUN(small.s, "--requests", file.s, "--ctx", "64", "--output", output_path);
    if (o.code != bad_lines[i].code) fail_msg("%s: exit %d: %s", bad_lines[i].line, o.code, o.err);
    expect_text(o.err, place);
    expect_text(o.err, bad_lines[i].error);
    assert_string_equal(strchr(o.err, '\n'), "\n");
    assert_string_equal(o.out, "");
    release(&o);
    char *kept = get("results");
    assert_string_equal(kept, "as it was");
    free(kept);
}

static void bad_lines_stop_all(void **state) {
    (void)state;
    text out = in_scratch("results");
    put("results", "as it was");
    for (size_t i = 0; i < sizeof bad_lines / sizeof bad_lines[0]; i++) bad_line(i, out.s);
    (void)unlink(out.s);
}

/* A name of any length leaves room for what is wrong. */
static void a_long_name_leaves_the_message(void **state) {
    (void)state;
    text file = requests_of(LIST(bad_lines[0].line), 1);
    char name[3000];
    const char *slash = strrchr(file.s, '/');
    size_t size = (size_t)(slash - file.s);
    memcpy(name, file.s, size);
    for (; size < 2500; size += 2) memcpy(name + size, "/.", 2);
    (void)strcpy(name + size, slash);
    output o = RUN(small.s, "--requests", name);
    expect_code(&o, 1);
    expect_text(o.err, "error: ..././");
    expect_text(o.err, ":1: unknown key 'max_token'; did you mean 'max_tokens'?");
    release(&o);
}

static void keep_going(void **state) {
    (void)state;
    enum { BAD = sizeof bad_lines / sizeof bad_lines[0] };
    const char *lines[BAD + 2] = {GOOD};
    for (size_t i = 0; i < BAD; i++) lines[1 + i] = bad_lines[i].line;
    lines[BAD + 1] = "{\"id\": \"last\", \"tokens\": [1, 2], \"max_tokens\": 3}";
    text file = requests_of(lines, BAD + 2);
    json_t *list = results(
        RUN(small.s, "--requests", file.s, "--ctx=64", "--keep-going", "--ordered"), 1);
    assert_int_equal(json_array_size(list), BAD + 2);
    for (size_t i = 0; i < BAD; i++) {
        const json_t *error = json_object_get(json_array_get(list, 1 + i), "error");
        if (!error) fail_msg("no error: %s", lines[1 + i]);
        expect_text(json_string_value(json_object_get(error, "message")), bad_lines[i].error);
        assert_int_equal(json_integer_value(json_object_get(error, "line")), (json_int_t)i + 2);
        assert_string_equal(json_string_value(json_object_get(error, "status")),
                            bad_lines[i].code == 6 ? "FTK_E_CONTEXT" : "FTK_E_ARGUMENT");
    }
    expect_same(result_of(list, "last"), result_of(list, "good"), "beside bad lines");
    assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 18), "id")), 4);
    json_decref(list);
}

/* More results than are held at a time, behind one that takes long. */
static void held_results(void **state) {
    (void)state;
    text p = in_scratch("requests");
    FILE *file = fopen(p.s, "wb");
    assert_non_null(file);
    assert_true(fputs(GOOD "\n", file) >= 0);
    for (int i = 0; i < 9000; i++) assert_true(fputs("{}\n", file) >= 0);
    assert_true(fputs("{\"tokens\": [1, 2], \"max_tokens\": 3}\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    for (int ordered = 0; ordered < 2; ordered++) {
        json_t *list = results(
            RUN(small.s, "--requests", p.s, "--keep-going", ordered ? "--ordered" : "--greedy"), 1);
        assert_int_equal(json_array_size(list), 9002);
        expect_same(result_of(list, "9002"), result_of(list, "good"), "behind many");
        if (ordered) assert_ptr_equal(result_of(list, "9002"), json_array_get(list, 9001));
        json_decref(list);
    }
}

static const struct {
    const char *options[6], *error;
} usage[] = {
    {{"--requests", "x", "-p", "y"}, "--requests FILE excludes -p TEXT and -f FILE"},
    {{"--requests", "x", "-f", "y"}, "--requests FILE excludes -p TEXT and -f FILE"},
    {{"-p", "x", "--ordered"}, "--ordered wants --requests"},
    {{"-p", "x", "--keep-going"}, "--keep-going wants --requests"},
    {{"-p", "x", "--output", "y"}, "--output wants --requests"},
    {{"-p", "x", "--batch=2"}, "--batch wants --requests"},
    {{"--requests", "x", "--batch=0"}, "--batch: '0' is not a whole number from 1 to 4096"},
};

static void usage_errors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof usage / sizeof usage[0]; i++) {
        output o = finish(start_run(small.s, usage[i].options));
        expect_code(&o, 2);
        expect_text(o.err, usage[i].error);
        assert_string_equal(o.out, "");
        release(&o);
    }
}

static void files_that_fail(void **state) {
    (void)state;
    text missing = in_scratch("no/file"), file = many_requests(2);
    output o = RUN(small.s, "--requests", missing.s);
    expect_code(&o, 1);
    expect_text(o.err, "cannot read: No such file or directory");
    release(&o);
    o = RUN(small.s, "--requests", scratch);
    expect_code(&o, 1);
    expect_text(o.err, "cannot read: Is a directory");
    release(&o);
    o = RUN(small.s, "--requests", file.s, "--output", missing.s);
    expect_code(&o, 1);
    expect_text(o.err, "cannot write: No such file or directory");
    release(&o);
    o = RUN(small.s, "--requests", file.s, "--output", "/dev/full");
    expect_code(&o, 1);
    expect_text(o.err, "/dev/full: cannot write: No space left on device");
    release(&o);
    json_t *list = RESULTS(small.s, "--requests", "/dev/null");
    assert_int_equal(json_array_size(list), 0);
    json_decref(list);
}

static void stdout_gone(void **state) {
    (void)state;
    text file = many_requests(400);
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    (void)close(ends[0]);
    out_fd = ends[1];
    output o = RUN(small.s, "--requests", file.s);
    out_fd = -1;
    (void)close(ends[1]);
    expect_code(&o, 1);
    expect_text(o.err, "standard output: cannot write: Broken pipe");
    assert_string_equal(strchr(o.err, '\n'), "\n"); /* no figures: it stopped at once */
    release(&o);
}

/* ---- a request that fails while it runs ---- */

/* Hidden states of token 7 are not finite: its embedding is not. */
static text poisoned_model(void) {
    fti_synth_model m = toy_model();
    ftk_error err = FTK_ERROR_INIT;
    text p = in_scratch("poisoned.gguf");
    if (fti_synth_write(&m, p.s, &err) != FTK_OK) fail_msg("%s", err.message);
    fti_checkpoint *c;
    size_t index;
    if (fti_checkpoint_open(p.s, &c, &err) != FTK_OK) fail_msg("%s", err.message);
    assert_true(fti_checkpoint_find_tensor(c, fti_str("token_embd.weight"), &index));
    const fti_tensor *t = fti_checkpoint_tensor(c, index);
    const float poison = (float)NAN;
    FILE *file = fopen(p.s, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)(t->offset + 7 * t->dims[0] * sizeof poison), SEEK_SET), 0);
    for (uint64_t i = 0; i < t->dims[0]; i++)
        assert_int_equal(fwrite(&poison, sizeof poison, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    fti_checkpoint_close(c);
    return p;
}

static void one_fails(void **state) {
    (void)state;
    text model = poisoned_model();
    text file = requests_of(LIST("{\"id\": \"a\", \"tokens\": [1, 2], \"max_tokens\": 6}",
                                 "{\"id\": \"b\", \"tokens\": [1, 7], \"max_tokens\": 6}",
                                 "{\"id\": \"c\", \"tokens\": [1, 2], \"max_tokens\": 6}"),
                            3);
    json_t *list = results(RUN(model.s, "--requests", file.s, "--logit-bias", "7=-inf"), 1);
    assert_int_equal(json_array_size(list), 3);
    const json_t *error = json_object_get(result_of(list, "b"), "error");
    assert_non_null(error);
    assert_string_equal(json_string_value(json_object_get(error, "status")), "FTK_E_NON_FINITE");
    assert_true(strlen(json_string_value(json_object_get(error, "message"))) > 10);
    expect_same(result_of(list, "a"), result_of(list, "c"), "beside one that fails");
    assert_int_equal(json_array_size(json_object_get(result_of(list, "a"), "tokens")), 6);
    json_decref(list);
}

/* ---- interruption, progress ---- */

static void wait_for_bytes(const char *name, off_t size) {
    const struct timespec pause = {0, 10000000};
    text p = in_scratch(name);
    for (int i = 0; i < 6000; i++) {
        struct stat info;
        if (stat(p.s, &info) == 0 && info.st_size >= size) return;
        (void)nanosleep(&pause, NULL);
    }
    fail_msg("nothing was written");
}

/* What has finished is there, what has not is left out. */
static json_t *interrupt(const char *const *more, const char *results_name) {
    text file = requests_of(LIST("{\"id\": \"long\", \"tokens\": [1], \"max_tokens\": 4000}", GOOD,
                                 "{\"tokens\": [1], \"max_tokens\": 4000}",
                                 "{\"tokens\": [1], \"max_tokens\": 4000}"),
                            4);
    const char *options[MAX_ARGUMENTS] = {"--requests", file.s, "--batch=2", "--ignore-eos"};
    for (size_t i = 0; more[i]; i++) options[4 + i] = more[i];
    pid_t child = start_run(small.s, options);
    char name[64];
    (void)snprintf(name, sizeof name, results_name, (long)child);
    wait_for_bytes(name, 20);
    assert_int_equal(kill(child, SIGINT), 0);
    output o = finish(child);
    expect_code(&o, 1);
    expect_text(o.err, "stopped: 1 of 4 requests finished, 0 failed");
    json_t *list = lines_of(o.out);
    release(&o);
    return list;
}

static void expect_only_good(json_t *list) {
    assert_int_equal(json_array_size(list), 1);
    assert_int_equal(json_array_size(json_object_get(result_of(list, "good"), "tokens")), 3);
    json_decref(list);
}

static void interrupted(void **state) {
    (void)state;
    expect_only_good(interrupt(LIST("--greedy"), "stdout"));
    text out = in_scratch("results");
    json_t *none = interrupt(LIST("--output", out.s), "results.tmp-%ld");
    assert_int_equal(json_array_size(none), 0);
    json_decref(none);
    char *written = get("results");
    expect_only_good(lines_of(written));
    free(written);
    (void)unlink(out.s);
}

static size_t read_terminal(int fd, char *shown, size_t capacity) {
    size_t size = 0;
    for (;;) {
        ssize_t got = read(fd, shown + size, capacity - 1 - size);
        if (got <= 0) break; /* EIO: no writer is left */
        size += (size_t)got;
        if (size + 1 == capacity) break;
    }
    shown[size] = '\0';
    return size;
}

static void progress(void **state) {
    (void)state;
    text file = requests_of(LIST("{\"tokens\": [1], \"max_tokens\": 2}",
                                 "{\"tokens\": [1], \"max_tokens\": 3}",
                                 "{\"tokens\": [1], \"max_tokens\": 1500}"),
                            3);
    int terminal;
    assert_int_equal(openpty(&terminal, &err_fd, NULL, NULL, NULL), 0);
    pid_t child = start_run(small.s, LIST("--requests", file.s, "--ignore-eos"));
    (void)close(err_fd);
    err_fd = -1;
    static char shown[1 << 20];
    assert_true(read_terminal(terminal, shown, sizeof shown) > 0);
    (void)close(terminal);
    output o = finish(child);
    expect_code(&o, 0);
    expect_text(shown, "\r2 of 3 requests, ");
    expect_text(shown, " tok/s, 0:00:0");
    expect_text(shown, " \r3 of 3 requests finished"); /* over blanks, on any terminal */
    assert_null(strchr(shown, '\033'));
    json_decref(lines_of(o.out));
    release(&o);
    o = RUN(small.s, "--requests", file.s, "--ignore-eos");
    assert_null(strchr(o.err, '\r'));
    release(&o);
}

/* ---- the group ---- */

static int set_up(void **state) {
    if (scratch_setup(state) != 0) return 1;
    small = in_scratch("small.gguf");
    fti_synth_model m = toy_model();
    return fti_synth_write(&m, small.s, NULL) != FTK_OK;
}

static int tear_down(void **state) {
    (void)state;
    static const char *const names[] = {"requests", "stdout", "stderr", "small.gguf",
                                        "poisoned.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        text p = in_scratch(names[i]);
        (void)unlink(p.s);
    }
    return rmdir(scratch); /* fails if a test, or the program, left anything else */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_alone),
        cmocka_unit_test(kinds_of_prompt),
        cmocka_unit_test(a_thousand),
        cmocka_unit_test(room_for),
        cmocka_unit_test(order),
        cmocka_unit_test(from_standard_input),
        cmocka_unit_test(bad_lines_stop_all),
        cmocka_unit_test(a_long_name_leaves_the_message),
        cmocka_unit_test(keep_going),
        cmocka_unit_test(held_results),
        cmocka_unit_test(usage_errors),
        cmocka_unit_test(files_that_fail),
        cmocka_unit_test(stdout_gone),
        cmocka_unit_test(one_fails),
        cmocka_unit_test(interrupted),
        cmocka_unit_test(progress),
    };
    return cmocka_run_group_tests_name("test_run_requests", tests, set_up, tear_down);
}
