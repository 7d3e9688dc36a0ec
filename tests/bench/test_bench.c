/* test_bench.c: freetoken-bench as a program: what it prints, saves and refuses. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#define MODEL FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"

static char work[64];

static char *in_work(const char *name) {
    char *path;
    assert_true(asprintf(&path, "%s/%s", work, name) > 0);
    return path;
}

/* ---- running it ---- */

typedef struct output {
    char *out, *err;
    int code;
} output;

static char *read_text(const char *path) {
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    char *text = NULL;
    size_t size = 0;
    if (getdelim(&text, &size, 0, file) < 0) text[0] = 0;
    (void)fclose(file);
    return text;
}

static void redirect(const char *path, int to) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || dup2(fd, to) < 0) _exit(127);
}

#define LONGEST 240 /* seconds, sanitizers on a busy machine included */

/* Arguments up to NULL. */
static output bench(const char *first, ...) {
    const char *argv[48] = {FTK_BENCH_BIN, first};
    va_list args;
    va_start(args, first);
    for (size_t i = 2; i < 47; i++)
        if (!(argv[i] = va_arg(args, const char *))) break;
    va_end(args);
    char *out = in_work("stdout"), *err = in_work("stderr");
    pid_t child = fork();
    if (child == 0) {
        redirect(out, STDOUT_FILENO);
        redirect(err, STDERR_FILENO);
        (void)alarm(LONGEST);
        execv(FTK_BENCH_BIN, (char **)(uintptr_t)argv);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    output o = {read_text(out), read_text(err), WEXITSTATUS(status)};
    (void)unlink(out);
    (void)unlink(err);
    free(out);
    free(err);
    return o;
}

#define RUN(...) bench(__VA_ARGS__, (const char *)NULL)
#define DEMO(...)                                                                                  \
    RUN(__VA_ARGS__, "-m", MODEL, "--config", FTK_CONFIG, "--no-bandwidth", "--threads", "1")
#define PAIR(...)                                                                                  \
    RUN("compare", FTK_CONFIG, FTK_CONFIG, "-m", MODEL, "--no-bandwidth", "-n", "6", __VA_ARGS__)

static void expect_text(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' is not in: %s", part, text);
}

static void release(output *o) {
    free(o->out);
    free(o->err);
}

/* A failure says why in one line, and prints nothing else if `silent`. */
static void expect_failure(output o, int code, const char *part, bool silent) {
    expect_text(o.err, "freetoken-bench: error: ");
    expect_text(o.err, part);
    assert_int_equal(o.code, code);
    if (silent) assert_string_equal(o.out, "");
    release(&o);
}

static json_t *expect_json(output *o, int code) {
    if (o->code != code) fail_msg("exit code %d, wanted %d: %s", o->code, code, o->err);
    json_t *json = json_loads(o->out, 0, NULL);
    if (!json) fail_msg("no JSON: %s", o->out);
    release(o);
    return json;
}

static const json_t *at(const json_t *json, const char *key) {
    const json_t *member = json_object_get(json, key);
    if (!member) fail_msg("no key '%s'", key);
    return member;
}

static json_int_t number(const json_t *json, const char *key) {
    assert_true(json_is_integer(at(json, key)));
    return json_integer_value(at(json, key));
}

/* ---- rows ---- */

static void batch_json(void **state) {
    (void)state;
    output o = DEMO("batch", "--batch", "4", "-n", "10", "--repeat", "2", "--json");
    json_t *row = expect_json(&o, 0);
    assert_true(json_is_true(at(row, "valid")));
    assert_int_equal(number(at(row, "histogram"), "4"), 18);
    assert_int_equal(json_object_size(at(row, "histogram")), 1);
    assert_string_equal(json_string_value(at(row, "cause")), "scheduling");
    assert_int_equal(number(at(at(row, "figures"), "aggregate_tok_s"), "count"), 2);
    assert_non_null(at(at(row, "figures"), "stream_tok_s"));
    assert_int_equal(strlen(json_string_value(at(row, "hash"))), 16);
    assert_true(strlen(json_string_value(at(row, "commit"))) >= 7);
    assert_true(number(at(row, "machine"), "cores_online") >= 1);
    assert_true(number(at(row, "knobs"), "scheduler.max_running") >= 4);
    assert_true(json_real_value(at(at(row, "measuring"), "share")) < 0.002);
    assert_int_equal(json_array_size(at(at(row, "details"), "streams")), 4);
    json_decref(row);
}

/* Planted: a configuration that runs four requests two by two. No figure in any format. */
static void batch_in_waves(void **state) {
    (void)state;
#define WAVES                                                                                      \
    "batch", "--batch", "4", "-n", "10", "--repeat", "1", "--set", "scheduler.max_running=2"
    static const char said[] = "ran as 18 steps of 2, never all";
    output o = DEMO(WAVES, "--json");
    expect_text(o.err, said);
    json_t *row = expect_json(&o, 1);
    assert_true(json_is_false(at(row, "valid")));
    assert_int_equal(json_object_size(at(row, "figures")), 0);
    assert_int_equal(number(at(row, "histogram"), "2"), 18);
    json_decref(row);
    o = DEMO(WAVES, "--csv");
    assert_null(strstr(o.out, "aggregate_tok_s"));
    expect_failure(o, 1, said, false);
    o = DEMO(WAVES);
    assert_null(strstr(o.out, "tok_s"));
    expect_text(o.out, "void        run 1: asked for steps of 4");
    expect_failure(o, 1, said, false);
}

static void tables(void **state) {
    (void)state;
    output o = DEMO("decode", "-n", "6", "--repeat", "2");
    assert_int_equal(o.code, 0);
    expect_text(o.out, "cause       model execution\n");
    expect_text(o.out, "histogram   10 steps of 1\n");
    expect_text(o.out, "measuring   ");
    expect_text(o.out, "no claim: 2 samples: a claim needs 10\n");
    assert_string_equal(o.err, ""); /* no progress but on a terminal */
    release(&o);
    o = DEMO("load", "--repeat", "1", "--warmup", "0", "--cold");
    assert_int_equal(o.code, 0);
    expect_text(o.out, "GB mapped (read when used)\n");
    expect_text(o.out, "page cache  dropped before each run: ");
    release(&o);
    o = DEMO("prefill", "--repeat", "1", "--warmup", "0", "--prompt-tokens", "40");
    assert_int_equal(o.code, 0);
    expect_text(o.out, "histogram   1 step of 40\n");
    expect_text(o.out, "time_to_first_token_s ");
    release(&o);
}

/* Fields of a line of CSV, quoted ones included. */
static size_t count_fields(const char *line) {
    size_t fields = 1;
    bool quoted = false;
    for (; *line && (quoted || *line != '\n'); line++) {
        if (*line == '"') quoted = !quoted;
        fields += *line == ',' && !quoted;
    }
    return fields;
}

static void csv(void **state) {
    (void)state;
    output o = DEMO("decode", "-n", "6", "--repeat", "2", "--csv");
    assert_int_equal(o.code, 0);
    size_t columns = count_fields(o.out), lines = 0;
    for (const char *line = o.out; *line; line = strchr(line, '\n') + 1, lines++)
        assert_int_equal(count_fields(line), columns);
    assert_int_equal(lines, 3);
    expect_text(o.out, "\ndecode,model execution,valid,2 samples: a claim needs 10,decode_tok_s,");
    expect_text(o.out, "\"{\"\"1\"\":10}\"");
    release(&o);
}

/* ---- saved rows ---- */

static void save_row(const char *path, const char *tokens) {
    output o = DEMO("decode", "-n", tokens, "--repeat", "3", "--output", path);
    if (o.code) fail_msg("%s", o.err);
    expect_text(o.out, "\ndecode_tok_s "); /* the table as well */
    release(&o);
}

static void edit_row(const char *path, const char *list, size_t index, const char *key,
                     json_t *value) {
    json_t *row = json_load_file(path, 0, NULL);
    assert_non_null(row);
    json_t *place = list ? json_array_get(json_object_get(row, list), index) : row;
    assert_int_equal(json_object_set_new(place, key, value), 0);
    assert_int_equal(json_dump_file(row, path, 0), 0);
    json_decref(row);
}

static void saved_rows(void **state) {
    (void)state;
    char *a = in_work("a.json"), *b = in_work("b.json");
    save_row(a, "6");
    save_row(b, "6");
    output o = RUN("compare", a, b, "--json");
    json_t *json = expect_json(&o, 0);
    const json_t *ratio = at(at(json, "ratios"), "decode_tok_s");
    assert_true(json_is_false(at(json, "interleaved")));
    assert_true(json_is_false(at(ratio, "claim")));
    expect_text(json_string_value(at(ratio, "verdict")), "(no claim: 3 samples");
    assert_int_equal(json_array_size(at(json, "knobs")), 0);
    json_decref(json);
    o = RUN("compare", a, b);
    assert_int_equal(o.code, 0);
    expect_text(o.out, "at different times");
    release(&o);
    expect_failure(RUN("compare", a, b, "-m", MODEL), 2, "saved rows are compared as they are",
                   true);
    expect_failure(RUN("compare", a, FTK_CONFIG), 2, "is a saved row and", true);
    /* The mark of the warm-up taken off: then its value is missing among the samples. */
    edit_row(b, "runs", 0, "warmup", json_false());
    expect_failure(RUN("compare", a, b), 2,
                   "b.json has 0 warm-up runs, wanted 1 as in settings.warmup", true);
    save_row(b, "7"); /* other work */
    expect_failure(RUN("compare", a, b), 1, "settings.tokens (6 and 7)", true);
    save_row(b, "6");
    edit_row(b, NULL, 0, "hash", json_string("0000000000000000")); /* other tokens */
    expect_failure(RUN("compare", a, b), 2, "wanted \"0000000000000000\" as in the row", true);
    edit_row(b, NULL, 0, "format", json_integer(7));
    expect_failure(RUN("compare", a, b), 2, "row format 7", true);
    assert_int_equal(unlink(a), 0);
    assert_int_equal(unlink(b), 0);
    free(a);
    free(b);
}

/* ---- configurations side by side ---- */

static void pairs(void **state) {
    (void)state;
    output o = PAIR("--repeat", "3", "--set-b", "backend.threads=1", "--set", "backend.threads=2",
                    "--cause", "backend", "--json");
    json_t *json = expect_json(&o, 0);
    assert_true(json_is_true(at(json, "interleaved")));
    assert_int_equal(number(at(at(json, "ratios"), "decode_tok_s"), "count"), 3);
    assert_int_equal(number(at(at(json, "b"), "knobs"), "backend.threads"), 1);
    assert_int_equal(json_array_size(at(at(json, "a"), "runs")), 4);
    assert_string_equal(json_string_value(at(at(json, "a"), "cause")), "backend");
    assert_int_equal(json_array_size(at(json, "knobs")), 1);
    json_decref(json);
    o = PAIR("--repeat", "1", "--warmup", "0", "--csv");
    assert_int_equal(o.code, 0);
    size_t columns = count_fields(o.out), lines = 0;
    for (const char *line = o.out; *line; line = strchr(line, '\n') + 1, lines++)
        assert_int_equal(count_fields(line), columns);
    assert_int_equal(lines, 1 + 3 * 2); /* of A, B and the ratios two figures each */
    expect_text(o.out, ",commit,time,version,build,provenance,side,verdict\n");
    expect_text(o.out, ",A,\n");
    expect_text(o.out, ",B,\n");
    expect_text(o.out, "\ncompare,model execution,valid,\"1 samples, and 10 are needed\",");
    expect_text(o.out, ",decode_tok_s,B / A,1,");
    expect_text(o.out, ",B / A,\"noise: A and B are the same (no claim: 1 samples");
    release(&o);
}

/* Planted: a second knob. Nothing is measured: that would take longer than is allowed. */
static void second_knob(void **state) {
    (void)state;
    expect_failure(PAIR("--set-b", "backend.threads=1", "--set", "backend.threads=2", "--repeat",
                        "10000", "--prompt-tokens", "500"),
                   1, "backend.threads (2 and 1, a knob of backend)", true);
    expect_failure(PAIR("--set-b", "backend.threads=1", "--set-b", "scheduler.max_running=3",
                        "--set", "backend.threads=2", "--cause", "backend"),
                   1, "scheduler.max_running (8 and 3, a knob of scheduling)", true);
}

/* ---- usage ---- */

static void usage(void **state) {
    (void)state;
    expect_failure(RUN("batch"), 2, "batch wants --model MODEL", true);
    expect_failure(DEMO("decode", "--json", "--csv"), 2, "exclude each other", true);
    expect_failure(DEMO("decode", "--set", "backend.threads"), 2, "is not KEY=VALUE", true);
    expect_failure(DEMO("decode", "--set", "backend.thread=1"), 2, "backend.threads", true);
    expect_failure(DEMO("batch", "--batch", "4", "-n", "1"), 2, "whole number from 2", true);
    expect_failure(DEMO("decode", "-p", "x", "--prose"), 2, "exclude each other", true);
    expect_failure(DEMO("prefill", "--prompt-tokens", "100000"), 2, "too few for 1", true);
    expect_failure(DEMO("decode", "--file", "/no/such/file"), 1, "/no/such/file", true);
    expect_failure(PAIR("--scenario", "luck"), 2, "there are decode, prefill, batch, load", true);
    expect_failure(PAIR("--cause", "luck"), 2, "'luck'", true);
    expect_failure(RUN("compare", FTK_CONFIG, FTK_CONFIG), 2, "compare wants --model", true);
    expect_failure(DEMO("decode", "-n", "4", "--repeat", "1", "-o", "/no/such/folder/x"), 1,
                   "--output /no/such/folder/x: cannot write", true);
    expect_failure(DEMO("decode", "-o", ""), 2, "--output: the name is empty", true);
    expect_failure(DEMO("decode", "-n", "1000000"), 2, "lower --tokens", true);
    expect_failure(RUN("synth", "tiny", "-o", ""), 2, "--output: the name is empty", true);
    expect_failure(RUN("synth", "tiny", "-o", "-"), 2, "cannot go to standard output", true);
}

/* ---- the group ---- */

static int set_up(void **state) {
    (void)state;
    (void)strcpy(work, "/tmp/ftk-bench-XXXXXX");
    return mkdtemp(work) ? 0 : 1;
}

static int tear_down(void **state) {
    (void)state;
    return rmdir(work); /* fails if a test left anything */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_json),  cmocka_unit_test(batch_in_waves), cmocka_unit_test(tables),
        cmocka_unit_test(csv),         cmocka_unit_test(saved_rows),     cmocka_unit_test(pairs),
        cmocka_unit_test(second_knob), cmocka_unit_test(usage),
    };
#if defined(__SANITIZE_THREAD__)
    print_message("skip: nothing here has threads of its own, and ThreadSanitizer takes minutes\n");
    const struct CMUnitTest one[] = {tests[0]};
    return cmocka_run_group_tests_name("test_bench", one, set_up, tear_down);
#else
    return cmocka_run_group_tests_name("test_bench", tests, set_up, tear_down);
#endif
}
