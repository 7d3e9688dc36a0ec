/*
 * test_spawn.c: worker processes, started by posix_spawn from the same configuration, resolve
 * the provider that their parent has, or stop before any of its code runs. This program is
 * also the worker.
 */
#include "loader/world.h"
#include "support/engine_fixture.h"

#include <spawn.h>

enum { WORKERS = 3 };

/* ---- the worker ---- */

static int say(ftk_status status, const ftk_error *err, const char *record) {
    const char *line = status == FTK_OK ? record : err->message;
    size_t size = strlen(line);
    if (write(STDOUT_FILENO, line, size) != (ssize_t)size) return 99;
    return ftk_status_exit_code(status);
}

static ftk_status resolve_as_recorded(const char *path, const char *record, char **own,
                                      ftk_error *err) {
    ftk_config *c;
    const fti_provider *p = NULL;
    FTI_TRY(ftk_config_load(path, &c, err));
    const fti_provider_query query = {
        .architecture = fti_str("testarch"), .container = fti_str("gguf"), .record = record};
    ftk_status status = fti_provider_resolve(c, &query, &p, err);
    ftk_config_free(c);
    if (status != FTK_OK) return status;
    return fti_provider_record(p, query.architecture, query.container, own, err);
}

/* As an application's worker would: with the public functions alone. */
static ftk_status open_as_recorded(const char *path, const char *record, char **own,
                                   ftk_error *err) {
    ftk_config *c;
    ftk_engine *engine;
    ftk_open_options options = FTK_OPEN_OPTIONS_INIT;
    options.stop_after = FTK_OPEN_CONFIGURED;
    options.provider_record = record;
    FTI_TRY(ftk_config_load(path, &c, err));
    ftk_status status = ftk_engine_open(c, DEMO_MODEL, &options, &engine, err);
    ftk_config_free(c);
    if (status != FTK_OK) return status;
    status = ftk_engine_record(engine, own, err);
    ftk_engine_close(engine);
    return status;
}

static int work(const char *kind, const char *path, const char *record) {
    ftk_error err = FTK_ERROR_INIT;
    char *own = NULL;
    bool whole = strcmp(kind, "engine") == 0;
    ftk_status status = whole ? open_as_recorded(path, record, &own, &err)
                              : resolve_as_recorded(path, record, &own, &err);
    int code = say(status, &err, own);
    ftk_report_free(own);
    return code;
}

/* ---- the parent ---- */

typedef struct worker {
    pid_t pid;
    int said;
} worker;

static worker start(const char *kind, const char *path, const char *record) {
    char program[] = "/proc/self/exe", flag[] = "--worker";
    text arguments[3] = {format("%s", kind), format("%s", path), format("%s", record)};
    char *argv[] = {program, flag, arguments[0].s, arguments[1].s, arguments[2].s, NULL};
    int ends[2];
    posix_spawn_file_actions_t actions;
    worker w = {0, -1};
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO), 0);
    assert_int_equal(posix_spawn(&w.pid, program, &actions, NULL, argv, environ), 0);
    assert_int_equal(posix_spawn_file_actions_destroy(&actions), 0);
    assert_int_equal(close(ends[1]), 0);
    w.said = ends[0];
    return w;
}

/* Its exit code; *said is what it wrote. */
static int finish(const worker *w, text *said) {
    size_t size = 0;
    int status;
    *said = (text){{0}};
    for (ssize_t n; (n = read(w->said, said->s + size, sizeof said->s - 1 - size)) > 0;)
        size += (size_t)n;
    assert_int_equal(close(w->said), 0);
    assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static text write_config_for(const char *file) {
    text path = in_scratch("config.yaml");
    text yaml = format("providers:\n  allow:\n    - {name: good, path: '%s'}\n", file);
    write_file(path.s, yaml.s, strlen(yaml.s), 0644);
    return path;
}

static text write_config(void) {
    return write_config_for(library("good").s);
}

static text own_record(void) {
    ftk_error err = FTK_ERROR_INIT;
    char *record = NULL;
    expect_status(fti_provider_record(resolve("testarch"), fti_str("testarch"), fti_str("gguf"),
                                      &record, &err),
                  FTK_OK, &err, "");
    text copy = format("%s", record);
    fti_free(record);
    return copy;
}

static void three_workers_resolve_the_same(void **state) {
    (void)state;
    install("good");
    allow("good");
    text path = write_config(), record = own_record(), said;
    worker workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) workers[i] = start("resolve", path.s, record.s);
    for (int i = 0; i < WORKERS; i++) {
        int code = finish(&workers[i], &said);
        if (code != 0) fail_msg("worker %d: exit code %d: %s", i, code, said.s);
        assert_string_equal(said.s, record.s);
    }
    assert_int_equal(runs_of("good"), 1 + WORKERS);
}

static void a_worker_with_another_file_stops(void **state) {
    (void)state;
    install("good");
    allow("good");
    text path = write_config(), record = own_record(), said;
    copy_fixture("evil", in_scratch("evil.so").s);
    assert_int_equal(rename(in_scratch("evil.so").s, library("good").s), 0);
    worker w = start("resolve", path.s, record.s);
    assert_int_equal(finish(&w, &said), 4);
    assert_non_null(strstr(said.s, "another provider than the one that passed the record"));
    assert_non_null(strstr(said.s, "found 'sha256="));
    assert_int_equal(runs_of("evil"), 0);
    assert_int_equal(runs_of("good"), 1);
}

/* The parent has the same object from two configurations: the record is that of the second. */
static void a_worker_of_the_second_place_resolves_it(void **state) {
    (void)state;
    install("good");
    allow("good");
    text first = own_record(), said, other = in_scratch("other/good.so");
    make_folder(in_scratch("other").s, 0755);
    assert_int_equal(link(library("good").s, other.s), 0);
    assert_int_equal(
        link(provider_file("good", ".provider.yaml").s, in_scratch("other/good.provider.yaml").s),
        0);
    config.allow[0].path = other.s;
    text second = own_record(), path = write_config_for(other.s);
    assert_string_not_equal(first.s, second.s);
    worker w = start("resolve", path.s, second.s);
    int code = finish(&w, &said);
    if (code != 0) fail_msg("exit code %d: %s", code, said.s);
    assert_string_equal(said.s, second.s);
    assert_int_equal(runs_of("good"), 2);
}

/* The configuration may have changed instead. */
static void a_worker_that_is_allowed_nothing_stops(void **state) {
    (void)state;
    install("good");
    allow("good");
    text path = write_config(), record = own_record(), said;
    write_file(path.s, "numerics: exact\n", 16, 0644);
    worker w = start("resolve", path.s, record.s);
    assert_int_equal(finish(&w, &said), 4);
    assert_int_equal(runs_of("good"), 1);
}

static ftk_engine *open_demo(void) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = NULL;
    expect_status(fixture_try_open(DEMO_MODEL, NULL, FTK_OPEN_CONFIGURED, &engine, &err), FTK_OK,
                  &err, "");
    return engine;
}

static void engines_of_workers(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    char *record = NULL;
    text said;
    ftk_engine *engine = open_demo();
    expect_status(ftk_engine_record(engine, &record, &err), FTK_OK, &err, "");
    ftk_engine_close(engine);
    worker same = start("engine", FTK_CONFIG, record);
    int code = finish(&same, &said);
    if (code != 0) fail_msg("exit code %d: %s", code, said.s);
    assert_string_equal(said.s, record);
    char *digit = strstr(record, "sha256=") + 7;
    *digit = *digit == '0' ? '1' : '0';
    worker other = start("engine", FTK_CONFIG, record);
    assert_int_equal(finish(&other, &said), 4);
    assert_non_null(strstr(said.s, "found 'sha256="));
    ftk_report_free(record);
}

/* A bare fork inherits objects without the threads that serve them. */
static void a_bare_fork_loads_nothing(void **state) {
    (void)state;
    ftk_engine_close(open_demo());
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ftk_error err = FTK_ERROR_INIT;
        ftk_engine *engine = NULL;
        ftk_status s = fixture_try_open(DEMO_MODEL, NULL, FTK_OPEN_CONFIGURED, &engine, &err);
        _exit(s == FTK_E_PROVIDER_LOAD && strstr(err.message, "bare fork") && !engine ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, scratch_teardown)

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "--worker") == 0) return work(argv[2], argv[3], argv[4]);
    const struct CMUnitTest tests[] = {
        CASE(three_workers_resolve_the_same),
        CASE(a_worker_with_another_file_stops),
        CASE(a_worker_of_the_second_place_resolves_it),
        CASE(a_worker_that_is_allowed_nothing_stops),
        CASE(engines_of_workers),
        CASE(a_bare_fork_loads_nothing),
    };
    return cmocka_run_group_tests_name("test_spawn", tests, NULL, NULL);
}
