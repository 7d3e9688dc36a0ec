/*
 * test_peer.c: somebody else's program beside ours: how it is run and ended, what is taken
 * from its output, and what `freetoken-bench peer` says of it. The peers are shell lines.
 */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "bandwidth.h"
#include "peer_command.h"

#define MODEL FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"

const char fti_cli_program_name[] = "test_peer";

static char work[] = "/tmp/ftk-peer-XXXXXX";

static char *format(const char *text, const char *a) {
    char *whole = NULL;
    assert_true(asprintf(&whole, text, a, a, a) > 0);
    return whole;
}

/* ---- running a command ---- */

static fti_bench_peer_run run_for(const char *command, double timeout, bool (*stop)(void)) {
    fti_bench_peer_run run;
    fti_bench_peer_start(command, timeout, stop, &run);
    return run;
}

static void assert_trouble(const fti_bench_peer_run *run, const char *words) {
    char buffer[160];
    const char *trouble = fti_bench_peer_trouble(run, 0.5, buffer, sizeof buffer);
    if (!words) {
        if (trouble) fail_msg("%s", trouble);
        return;
    }
    assert_non_null(trouble);
    if (!strstr(trouble, words)) fail_msg("'%s' does not say '%s'", trouble, words);
}

static void keeps_all_output(void **state) {
    (void)state;
    fti_bench_peer_run run = run_for("echo one; echo two >&2; printf three", 60, NULL);
    assert_int_equal(run.end, FTI_BENCH_PEER_ENDED);
    assert_trouble(&run, NULL);
    assert_string_equal(run.output, "one\ntwo\nthree");
    fti_bench_peer_free(&run);
    run = run_for("i=0; while [ $i -lt 20000 ]; do echo 0123456789; i=$((i+1)); done", 60, NULL);
    assert_int_equal(run.size, 220000);
    fti_bench_peer_free(&run);
}

static void has_nothing_to_read(void **state) {
    (void)state;
    fti_bench_peer_run run = run_for("cat; echo done", 60, NULL);
    assert_trouble(&run, NULL);
    assert_string_equal(run.output, "done\n");
    fti_bench_peer_free(&run);
}

static void tells_how_it_ended(void **state) {
    (void)state;
    fti_bench_peer_run run = run_for("exit 3", 60, NULL);
    assert_trouble(&run, "exit code 3");
    fti_bench_peer_free(&run);
    run = run_for("kill -SEGV $$", 60, NULL);
    assert_trouble(&run, "signal 11");
    fti_bench_peer_free(&run);
    run = run_for("/no/such/program", 60, NULL);
    assert_trouble(&run, "exit code 127");
    fti_bench_peer_free(&run);
}

/* A dead process may stay in the table until somebody waits for it. */
static bool is_running(long pid) {
    char path[64];
    char text[256] = "";
    (void)snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool read = fgets(text, sizeof text, file) != NULL;
    (void)fclose(file);
    const char *state = read ? strrchr(text, ')') : NULL;
    return state && state[2] != 'Z' && state[2] != 'X';
}

/* `text` is the number of a process that belonged to a command. */
static void assert_ended(const char *text) {
    long pid = strtol(text, NULL, 10);
    assert_true(pid > 1);
    for (int i = 0; i < 100 && is_running(pid); i++) usleep(20000);
    assert_false(is_running(pid));
}

static void ends_what_hangs(void **state) {
    (void)state;
    double start = fti_bench_seconds();
    fti_bench_peer_run run = run_for("sleep 30 & echo $!; sleep 30", 0.2, NULL);
    assert_true(fti_bench_seconds() - start < 20);
    assert_int_equal(run.end, FTI_BENCH_PEER_TIMEOUT);
    assert_trouble(&run, "still running after 0.5 s");
    assert_ended(run.output);
    fti_bench_peer_free(&run);
}

static unsigned asked;

static bool on_third(void) {
    return ++asked >= 3;
}

/* Those that will not end when asked as well. */
static void ends_when_told(void **state) {
    (void)state;
    asked = 0;
    fti_bench_peer_run run = run_for("trap '' TERM; sleep 30 & echo $!; sleep 30", 60, on_third);
    assert_int_equal(run.end, FTI_BENCH_PEER_INTERRUPT);
    assert_trouble(&run, "interrupted");
    assert_ended(run.output);
    fti_bench_peer_free(&run);
}

/* What a command leaves behind is neither waited for nor left to disturb later samples. */
static void ends_what_is_left_behind(void **state) {
    (void)state;
    fti_bench_peer_run run = run_for("sleep 30 & echo $!", 60, NULL);
    assert_trouble(&run, NULL);
    assert_true(run.seconds < 20);
    assert_ended(run.output);
    fti_bench_peer_free(&run);
}

static void ends_what_prints_for_ever(void **state) {
    (void)state;
    fti_bench_peer_run run = run_for("yes", 60, NULL);
    assert_int_equal(run.end, FTI_BENCH_PEER_TOO_LONG);
    assert_trouble(&run, "16 MiB");
    fti_bench_peer_free(&run);
}

static void shows_the_last_lines(void **state) {
    (void)state;
    fti_bench_peer_run run = run_for("seq 1 30; echo; printf 'bad \\033[31m byte\\n\\n'", 60, NULL);
    char *tail = fti_bench_peer_tail(&run, 3);
    assert_string_equal(tail, "  | 29\n  | 30\n  | bad \\x1b[31m byte\n");
    free(tail);
    tail = fti_bench_peer_tail(&run, 100);
    assert_memory_equal(tail, "  | 1\n  | 2\n", 12);
    free(tail);
    fti_bench_peer_free(&run);
    run = run_for("true", 60, NULL);
    tail = fti_bench_peer_tail(&run, 3);
    assert_string_equal(tail, "");
    free(tail);
    fti_bench_peer_free(&run);
}

/* ---- the figure ---- */

/* `figure` 0: refused with a message that says `words`. */
static void check_figure(const char *expression, const char *text, double figure,
                         const char *words) {
    char *why;
    double found = -1;
    fti_bench_pattern *pattern = fti_bench_pattern_new(expression, &why);
    bool good = pattern && fti_bench_pattern_figure(pattern, text, strlen(text), &found, &why);
    if (figure > 0) {
        if (!good) fail_msg("'%s' %s", expression, why);
        assert_true(found == figure);
    } else {
        assert_false(good);
        if (!strstr(why, words)) fail_msg("'%s': '%s' does not say '%s'", expression, why, words);
    }
    free(why);
    fti_bench_pattern_free(pattern);
}

static void takes_the_first_group(void **state) {
    (void)state;
    check_figure("([0-9.]+) tok/s", "load 3 s\nspeed 12.5 tok/s\nspeed 99 tok/s\n", 12.5, NULL);
    check_figure("tg128 \\| +([0-9.]+)", "| pp512 | 9.1 |\n|  tg128 |   30.25 +- 0.1 |", 30.25,
                 NULL);
    check_figure("^rate=(.*)$", "x\nrate=1e3\ny", 1000, NULL);
}

static void refuses_other_matches(void **state) {
    (void)state;
    check_figure("([0-9.]+) tok/s", "nothing of the kind", 0, "does not match the output");
    check_figure("[0-9.]+ tok/s", "12 tok/s", 0, "has no group");
    check_figure("([0-9.+ tok/s", "12 tok/s", 0, "is no regular expression");
    check_figure("speed (\\S+)", "speed 1.2.3", 0,
                 "takes '1.2.3' from the output of the command, which is no number");
    check_figure("speed (\\S+)", "speed inf", 0, "no number");
    check_figure("speed (\\S+)", "speed 0.0", 0, "greater than 0");
    check_figure("(a)?speed", "speed 7", 0, "takes no part");
    check_figure("(a+)+b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac b", 0, "match limit exceeded");
}

/* ---- the scenario ---- */

typedef struct answer {
    int code;
    char *out;
    char *err;
} answer;

static char *read_file(const char *name) {
    char *path = format(name, work);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    size_t size = fread(text, 1, (1 << 20) - 1, file);
    text[size] = 0;
    (void)fclose(file);
    free(path);
    return text;
}

/* `more` are options that a shell splits. */
static answer bench(const char *more) {
    char *line = NULL;
    assert_true(asprintf(&line,
                         "'%s' peer --config '%s' -m '%s' --no-bandwidth --prompt-tokens 8 "
                         "--tokens 4 --pairs 2 %s >%s/out 2>%s/err",
                         FTK_BENCH_BIN, FTK_CONFIG, MODEL, more, work, work) > 0);
    int status = system(line);
    free(line);
    assert_true(WIFEXITED(status));
    return (answer){WEXITSTATUS(status), read_file("%s/out"), read_file("%s/err")};
}

static void free_answer(answer *a) {
    free(a->out);
    free(a->err);
}

static double figure_of(const json_t *row, const char *name, size_t sample) {
    const json_t *figure = json_object_get(json_object_get(row, "figures"), name);
    const json_t *value = json_array_get(json_object_get(figure, "samples"), sample);
    if (!json_is_number(value)) fail_msg("no sample %zu of %s", sample, name);
    return json_number_value(value);
}

/* The peer counts its own runs, and gives another figure each time. */
static void check_row(const json_t *row) {
    assert_string_equal(json_string_value(json_object_get(row, "scenario")), "peer");
    assert_string_equal(json_string_value(json_object_get(row, "cause")), "peer, not attributable");
    assert_true(json_is_true(json_object_get(row, "valid")));
    assert_true(json_is_false(json_object_get(row, "claim")));
    for (size_t i = 0; i < 2; i++) {
        double theirs = figure_of(row, "peer_tok_s", i);
        double ours = figure_of(row, "decode_tok_s", i);
        assert_true(theirs == 1000.0 + (double)i + 2.0); /* run 1 was the warm-up */
        assert_true(fabs(figure_of(row, "ratio", i) - ours / theirs) < 1e-12);
    }
    assert_int_equal(json_array_size(json_object_get(row, "runs")), 3);
    assert_non_null(json_object_get(json_object_get(row, "details"), "verdict"));
    assert_non_null(json_object_get(json_object_get(row, "machine"), "load_average"));
}

static void puts_pairs_side_by_side(void **state) {
    (void)state;
    char *line = format("--json --pattern 'at ([0-9]+)' "
                        "--cmd 'echo >>%s/count; echo at $((1000 + $(wc -l <%s/count)))'",
                        work);
    answer a = bench(line);
    if (a.code != 0) fail_msg("exit code %d: %s", a.code, a.err);
    json_t *row = json_loads(a.out, 0, NULL);
    assert_non_null(row);
    check_row(row);
    json_decref(row);
    free_answer(&a);
    free(line);
    char *count = read_file("%s/count");
    assert_int_equal(strlen(count), 3);
    free(count);
}

static void shows_pairs_to_people(void **state) {
    (void)state;
    answer a = bench("--scenario prefill --cmd 'echo 50 tok/s' --pattern '([0-9.]+) tok/s'");
    if (a.code != 0) fail_msg("exit code %d: %s", a.code, a.err);
    assert_non_null(strstr(a.out, "cannot be attributed"));
    assert_non_null(strstr(a.out, "(warm-up)"));
    assert_non_null(strstr(a.out, "ours / peer "));
    assert_non_null(strstr(a.out, "load average at the start"));
    assert_non_null(strstr(a.out, "prefill_tok_s"));
    free_answer(&a);
}

static void expect_refusal(const char *more, int code, const char *words, const char *tail) {
    answer a = bench(more);
    if (a.code != code || !strstr(a.err, words) || !strstr(a.err, tail))
        fail_msg("%s: exit code %d: %s", more, a.code, a.err);
    assert_string_equal(a.out, "");
    free_answer(&a);
}

static void reports_nothing_after_trouble(void **state) {
    (void)state;
    expect_refusal("--cmd 'echo speed 5 tok/s' --pattern '([0-9.]+) t/s'", 1,
                   "--pattern '([0-9.]+) t/s' does not match the output", "  | speed 5 tok/s");
    expect_refusal("--cmd 'echo 5 tok/s; echo out of memory >&2; exit 9' "
                   "--pattern '([0-9.]+) tok/s'",
                   1, "exit code 9", "  | out of memory");
    expect_refusal("--cmd 'echo 5 tok/s; sleep 100' --timeout 0.2 --pattern '([0-9.]+) tok/s'", 1,
                   "still running after 0.2 s and was killed; --timeout", "  | 5 tok/s");
    expect_refusal("--cmd true --pattern '(x)'", 1, "does not match", "(no output)");
}

static void refuses_bad_lines(void **state) {
    (void)state;
    expect_refusal("--cmd true", 2, "--pattern 'REGEX'", "");
    expect_refusal("--cmd true --pattern x", 2, "has no group", "");
    expect_refusal("--cmd true --pattern '(x' ", 2, "is no regular expression", "");
    expect_refusal("--cmd true --pattern '(x)' --scenario load", 2, "not 'load'", "");
    /* Before the first run. */
    expect_refusal("--cmd 'exit 9' --pattern '(x)' --output /no/such/row", 1,
                   "--output /no/such/row: cannot write: No such file", "");
    expect_refusal("--cmd 'exit 9' --pattern '(x)' --tokens 1000000", 2,
                   "1000000 to generate want a context of", "");
}

/* Whatever asks us to end ends the command as well, although it is in a group of its own. */
static void check_signal(const char *name) {
    char *line = NULL;
    assert_true(asprintf(&line,
                         "--pattern '(x)' --cmd 'sleep 30 & echo $! >%s/pid; kill -%s $PPID; "
                         "sleep 30'",
                         work, name) > 0);
    answer a = bench(line);
    assert_int_not_equal(a.code, 0);
    if (!strstr(a.err, "interrupted and killed")) fail_msg("%s", a.err);
    char *pid = read_file("%s/pid");
    assert_ended(pid);
    free(pid);
    free_answer(&a);
    free(line);
}

static void signals_end_both(void **state) {
    (void)state;
    check_signal("INT");
    check_signal("TERM");
    check_signal("HUP");
}

/* On a terminal the progress line makes way for the message, without escape codes. */
static void message_has_its_own_line(void **state) {
    (void)state;
    char text[4096] = "";
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0);
    assert_int_equal(grantpt(terminal), 0);
    assert_int_equal(unlockpt(terminal), 0);
    int other = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    assert_true(other >= 0);
    char *line = format("--pattern '(x)' --cmd 'exit 9' 2>%s; true", ptsname(terminal));
    answer a = bench(line);
    assert_true(read(terminal, text, sizeof text - 1) > 0);
    const char *progress = strstr(text, "\rpeer: run 1 of 6, theirs\r");
    const char *message = strstr(text, "freetoken-bench: error: --cmd: the command ended");
    if (!progress || !message) fail_msg("%s", text);
    assert_int_equal(message[-1], '\r');
    assert_int_equal(message[-2], ' ');
    assert_null(strchr(text, 033));
    (void)close(other);
    (void)close(terminal);
    free_answer(&a);
    free(line);
}

static int begin(void **state) {
    (void)state;
    (void)signal(SIGHUP, SIG_DFL); /* where this runs under nohup */
    return mkdtemp(work) ? 0 : -1;
}

static int end(void **state) {
    char command[96];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", work);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_all_output),
        cmocka_unit_test(has_nothing_to_read),
        cmocka_unit_test(tells_how_it_ended),
        cmocka_unit_test(ends_what_hangs),
        cmocka_unit_test(ends_when_told),
        cmocka_unit_test(ends_what_is_left_behind),
        cmocka_unit_test(ends_what_prints_for_ever),
        cmocka_unit_test(shows_the_last_lines),
        cmocka_unit_test(takes_the_first_group),
        cmocka_unit_test(refuses_other_matches),
        cmocka_unit_test(puts_pairs_side_by_side),
        cmocka_unit_test(shows_pairs_to_people),
        cmocka_unit_test(reports_nothing_after_trouble),
        cmocka_unit_test(refuses_bad_lines),
        cmocka_unit_test(signals_end_both),
        cmocka_unit_test(message_has_its_own_line),
    };
    return cmocka_run_group_tests_name("test_peer", tests, begin, end);
}
