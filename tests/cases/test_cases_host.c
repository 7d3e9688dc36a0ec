/*
 * test_cases_host.c: reported cases about the application that embeds the library. I1: no
 * error may end it, write to its streams or touch its handlers: each is raised in a process
 * of its own that lays traps for that. I8: configurations made to be slow.
 */
#include "cases/case_files.h"

#include <math.h>
#include <signal.h>
#include <time.h>

/* ---- a host with traps ---- */

enum { HELD = 0, WRONG = 41, ABORTED = 42, EXITED = 43, HANDLER_GONE = 44 };

static void on_abort(int number) {
    (void)number;
    _exit(ABORTED);
}

static void on_exit_call(void) {
    _exit(EXITED);
}

static const int watched[] = {SIGABRT, SIGTERM, SIGINT, SIGPIPE, SIGFPE, SIGILL};

static void lay_traps(int output) {
    struct sigaction action = {.sa_handler = on_abort};
    bool laid = dup2(output, 1) == 1 && dup2(output, 2) == 2 && atexit(on_exit_call) == 0;
    for (size_t i = 0; i < FTI_COUNT(watched); i++)
        laid &= sigaction(watched[i], &action, NULL) == 0;
    if (!laid) _exit(WRONG);
}

static bool traps_stand(void) {
    struct sigaction action;
    for (size_t i = 0; i < FTI_COUNT(watched); i++)
        if (sigaction(watched[i], NULL, &action) != 0 || action.sa_handler != on_abort)
            return false;
    return true;
}

/* A host's work: true if every call answered as it should. Runs in a child of the test
 * program, so it must not use cmocka. */
typedef bool work(const void *argument);

static int run_host(work *body, const void *argument, const char *output) {
    int fd = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        lay_traps(fd);
        bool right = body(argument);
        _exit(!right ? WRONG : traps_stand() ? HELD : HANDLER_GONE);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(close(fd), 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Nothing may be written by the library: what a host says itself, it says with `say`. */
static void expect_unharmed(work *body, const void *argument, const char *what) {
    text output = in_scratch("output");
    size_t size;
    int code = run_host(body, argument, output.s);
    char *written = (char *)read_file(output.s, &size);
    written[size] = 0;
    if (code != HELD || size != 0) fail_msg("%s: %d, written: %s", what, code, written);
    free(written);
}

static bool say(const char *what, const char *message) {
    (void)!write(2, what, strlen(what));
    (void)!write(2, ": ", 2);
    (void)!write(2, message, strlen(message));
    (void)!write(2, "\n", 1);
    return false;
}

/* A failure of this status with one line about it. */
static bool failed_well(const char *what, ftk_status found, ftk_status wanted, ftk_error *err) {
    bool well = found == wanted && err->status == wanted && strlen(err->message) > 10 &&
                !strpbrk(err->message, "\r\n") && ftk_status_exit_code(found) > 0;
    if (!well) say(what, found == FTK_OK ? "no failure" : err->message);
    *err = (ftk_error)FTK_ERROR_INIT;
    return well;
}

/* ---- I1: the traps themselves ---- */

static bool abort_it(const void *argument) {
    (void)argument;
    abort();
}

static bool exit_it(const void *argument) {
    (void)argument;
    exit(0); /* NOLINT(concurrency-mt-unsafe): the trap is what is tested */
}

static bool write_it(const void *argument) {
    return !say(argument, "written");
}

static bool take_handler(const void *argument) {
    (void)argument;
    (void)signal(SIGPIPE, SIG_IGN);
    return true;
}

static void i1_traps_spring(void **state) {
    (void)state;
    text output = in_scratch("output");
    size_t size;
    assert_int_equal(run_host(abort_it, NULL, output.s), ABORTED);
    assert_int_equal(run_host(exit_it, NULL, output.s), EXITED);
    assert_int_equal(run_host(take_handler, NULL, output.s), HANDLER_GONE);
    assert_int_equal(run_host(write_it, "this", output.s), HELD);
    free(read_file(output.s, &size));
    assert_int_equal(size, strlen("this: written\n"));
}

/* ---- I1: files ---- */

typedef struct bad_file {
    const case_file *c;
    const char *path;
    const void *data;
    size_t size;
} bad_file;

static bool open_everywhere(const void *argument) {
    const bad_file *f = argument;
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = NULL;
    ftk_config *config = NULL;
    char *json = NULL;
    if (ftk_inspect(f->path, &json, &err) == FTK_OK) ftk_report_free(json);
    ftk_status status = fixture_try_open(f->path, NULL, FTK_OPEN_READY, &engine, &err);
    bool well = failed_well(f->c->what, status, f->c->status, &err) && !engine;
    if (ftk_config_load(FTK_CONFIG, &config, &err) != FTK_OK) return say("config", err.message);
    status = ftk_engine_open_memory(config, f->data, f->size, "memory", NULL, &engine, &err);
    well &= failed_well("from memory", status, err.status, &err) && !engine;
    ftk_config_free(config);
    return well;
}

static void i1_no_file_ends_the_host(void **state) {
    (void)state;
    for (size_t i = 0; i < FTI_COUNT(case_files); i++) {
        text path = case_files[i].make(&case_files[i]);
        bad_file f = {&case_files[i], path.s, NULL, 0};
        unsigned char *data = read_file(path.s, &f.size);
        f.data = data;
        expect_unharmed(open_everywhere, &f, case_files[i].what);
        free(data);
    }
}

/* ---- I1: calls ---- */

static bool bad_prompts(ftk_engine *engine) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    int32_t ids[65] = {1, 2, -1};
    bool well = true;
    options.max_tokens = 1;
    well &= failed_well("too long", ftk_generate(engine, ids, 65, &options, NULL, &err),
                        FTK_E_CONTEXT, &err);
    well &= failed_well("empty", ftk_generate(engine, ids, 0, &options, NULL, &err), FTK_E_ARGUMENT,
                        &err);
    well &= failed_well("negative", ftk_generate(engine, ids, 3, &options, NULL, &err),
                        FTK_E_ARGUMENT, &err);
    ids[2] = INT32_MAX;
    well &= failed_well("outside", ftk_generate(engine, ids, 3, &options, NULL, &err),
                        FTK_E_ARGUMENT, &err);
    options.sampling.temperature = NAN;
    well &= failed_well("NaN", ftk_generate(engine, ids, 2, &options, NULL, &err), FTK_E_ARGUMENT,
                        &err);
    return well;
}

static bool bad_requests(ftk_engine *engine) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_request r = FTK_REQUEST_INIT;
    ftk_message message = FTK_MESSAGE_INIT;
    ftk_event event = FTK_EVENT_INIT;
    const char *const stop = "";
    uint64_t id = 0;
    size_t count = 0;
    bool well = failed_well("nothing", ftk_submit(engine, &r, &id, &err), FTK_E_ARGUMENT, &err);
    r.text = "a";
    r.text_size = 1;
    r.stop = &stop;
    r.stop_count = 1;
    well &= failed_well("stop", ftk_submit(engine, &r, &id, &err), FTK_E_ARGUMENT, &err);
    r.stop_count = 0;
    r.struct_size = 3;
    well &= failed_well("size", ftk_submit(engine, &r, &id, &err), FTK_E_ARGUMENT, &err);
    message.role = "wizard";
    well &= failed_well("role", ftk_format_chat(engine, &message, 1, 0, NULL, 0, &count, &err),
                        FTK_E_ARGUMENT, &err);
    well &= failed_well("poll", ftk_poll(engine, 99, 0, &event, &err), FTK_E_NOT_FOUND, &err);
    well &= failed_well("cancel", ftk_cancel(engine, 99, &err), FTK_E_NOT_FOUND, &err);
    return well;
}

static bool call_wrongly(const void *argument) {
    static const char *const settings[] = {"memory.kv_tokens", "64", NULL};
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = NULL;
    if (fixture_try_open(argument, settings, FTK_OPEN_READY, &engine, &err) != FTK_OK)
        return say("open", err.message);
    bool well = bad_prompts(engine) && bad_requests(engine);
    ftk_engine_close(engine);
    return well;
}

/* What the machine or the configuration does not allow. */
static bool configure_wrongly(const void *argument) {
    static const struct {
        const char *key, *value;
        ftk_status status;
    } settings[] = {{"backend.kind", "cuda", FTK_E_DEVICE_UNAVAILABLE},
                    {"memory.device", "64KiB", FTK_E_DOES_NOT_FIT},
                    {"memory.kv_tokens", "4097", FTK_E_CONTEXT},
                    {"memory.kv_tokens", "-1", FTK_E_CONFIG_VALUE},
                    {"memory.device", "lots", FTK_E_CONFIG_VALUE},
                    {"moe.coexecution", "on", FTK_E_CONFIG_VALUE},
                    {"no.such.key", "1", FTK_E_CONFIG_KEY}};
    bool well = true;
    for (size_t i = 0; i < FTI_COUNT(settings); i++) {
        const char *const list[] = {settings[i].key, settings[i].value, NULL};
        ftk_error err = FTK_ERROR_INIT;
        ftk_engine *engine = NULL;
        ftk_status status = fixture_try_open(argument, list, FTK_OPEN_READY, &engine, &err);
        well &= failed_well(settings[i].key, status, settings[i].status, &err) && !engine;
    }
    return well;
}

static bool allow_wrongly(const void *argument) {
    static const struct {
        const char *yaml;
        ftk_status status;
    } texts[] = {
        {"providers:\n  allow:\n    - {name: qwen36, path: /nowhere/qwen36.so}\n",
         FTK_E_PROVIDER_MANIFEST},
        {"numerics: exact\n", FTK_E_PROVIDER_NONE},
    };
    bool well = true;
    for (size_t i = 0; i < FTI_COUNT(texts); i++) {
        ftk_error err = FTK_ERROR_INIT;
        ftk_config *config = NULL;
        ftk_engine *engine = NULL;
        const char *yaml = texts[i].yaml;
        if (ftk_config_parse(yaml, strlen(yaml), "host.yaml", &config, &err) != FTK_OK)
            return say(yaml, err.message);
        ftk_status status = ftk_engine_open(config, argument, NULL, &engine, &err);
        well &= failed_well(yaml, status, texts[i].status, &err) && !engine;
        ftk_config_free(config);
    }
    return well;
}

static bool test_wrongly(const void *argument) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    char *json = NULL;
    if (ftk_config_load(FTK_CONFIG, &config, &err) != FTK_OK) return say("config", err.message);
    ftk_status status = ftk_selftest(config, argument, &json, &err);
    ftk_config_free(config);
    return failed_well("selftest", status, FTK_E_CKPT_TRUNCATED, &err);
}

static void i1_no_call_ends_the_host(void **state) {
    (void)state;
    fti_synth_model m = toy_model();
    text path = write_model(&m, "model.gguf");
    expect_unharmed(call_wrongly, path.s, "calls");
    expect_unharmed(configure_wrongly, path.s, "settings");
    expect_unharmed(allow_wrongly, path.s, "providers");
    assert_int_equal(truncate(path.s, 5000), 0);
    expect_unharmed(test_wrongly, path.s, "selftest");
}

/* ---- I8 ---- */

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct slow_text {
    const char *data;
    size_t size;
    const char *path; /* of a file with the same */
} slow_text;

#define MOST_SECONDS 0.5

static bool parse_slow_text(const void *argument) {
    const slow_text *s = argument;
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    double begin = now();
    ftk_status status = ftk_config_parse(s->data, s->size, "host.yaml", &config, &err);
    bool fast = now() - begin < MOST_SECONDS;
    bool well = failed_well("text", status, FTK_E_CONFIG_SYNTAX, &err) && !config;
    begin = now();
    status = ftk_config_load(s->path, &config, &err);
    fast &= now() - begin < MOST_SECONDS;
    well &= failed_well("file", status, FTK_E_CONFIG_SYNTAX, &err) && !config;
    return fast ? well : say(s->path, "too slow");
}

static void refuse_quickly(const char *unit, size_t size, const char *what) {
    char *data = malloc(size);
    text path = in_scratch("slow.yaml");
    assert_non_null(data);
    for (size_t i = 0; i < size; i++) data[i] = unit[i % strlen(unit)];
    write_file(path.s, data, size, 0600);
    const slow_text s = {data, size, path.s};
    expect_unharmed(parse_slow_text, &s, what);
    free(data);
}

static void i8_configurations_made_to_be_slow(void **state) {
    (void)state;
    refuse_quickly("&x [*x]\n", 8, "an alias of itself");
    refuse_quickly("[", 100000, "100000 brackets");
    refuse_quickly("[", 200u * 1024u, "200 KiB of brackets");
    refuse_quickly("{a: ", 200u * 1024u, "200 KiB of mappings");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(i1_traps_spring),
        cmocka_unit_test(i1_no_file_ends_the_host),
        cmocka_unit_test(i1_no_call_ends_the_host),
        cmocka_unit_test(i8_configurations_made_to_be_slow),
    };
    return cmocka_run_group_tests_name("test_cases_host", tests, scratch_setup, scratch_teardown);
}
