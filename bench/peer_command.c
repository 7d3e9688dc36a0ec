/* peer_command.c: running a command, and reading a figure from what it printed. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "peer_command.h"

#include <errno.h>
#include <fcntl.h>
#include <pcre2.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bandwidth.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/text.h"

#define POLL_MS       50
#define GRACE_SECONDS 1.0 /* between asking the group to end and killing it */
#define READ_BYTES    65536u
#define MAX_SHOWN     400u /* bytes of one line */

/* ---- the process ---- */

/* Its signals as at the start of a program: this one ignores SIGPIPE and notes SIGINT. */
static int set_attributes(posix_spawnattr_t *attributes) {
    sigset_t all;
    sigset_t none;
    (void)sigfillset(&all);
    (void)sigemptyset(&none);
    int error = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF |
                                                         POSIX_SPAWN_SETSIGMASK);
    if (!error) error = posix_spawnattr_setpgroup(attributes, 0);
    if (!error) error = posix_spawnattr_setsigdefault(attributes, &all);
    if (!error) error = posix_spawnattr_setsigmask(attributes, &none);
    return error;
}

static int set_files(posix_spawn_file_actions_t *files, int output) {
    int error = posix_spawn_file_actions_addopen(files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!error) error = posix_spawn_file_actions_adddup2(files, output, STDOUT_FILENO);
    if (!error) error = posix_spawn_file_actions_adddup2(files, output, STDERR_FILENO);
    return error;
}

static int spawn(const char *command, int output, pid_t *pid) {
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t files;
    char *const argv[] = {"sh", "-c", (char *)(uintptr_t)command, NULL};
    int error = posix_spawnattr_init(&attributes);
    if (error) return error;
    error = posix_spawn_file_actions_init(&files);
    if (!error) {
        error = set_attributes(&attributes);
        if (!error) error = set_files(&files, output);
        if (!error) error = posix_spawn(pid, "/bin/sh", &files, &attributes, argv, environ);
        (void)posix_spawn_file_actions_destroy(&files);
    }
    (void)posix_spawnattr_destroy(&attributes);
    return error;
}

/* ---- its output ---- */

typedef struct watch {
    pid_t pid;
    int output;
    double deadline;
    bool (*stop)(void);
    fti_cli_text text;
} watch;

/* False at the end of the output: nobody holds it open any more. */
static bool take_output(watch *w) {
    char bytes[READ_BYTES];
    ssize_t got = read(w->output, bytes, sizeof bytes);
    if (got > 0) fti_cli_append(&w->text, bytes, (size_t)got);
    return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

static bool over(const watch *w, fti_bench_peer_end *end) {
    if (w->stop && w->stop()) {
        *end = FTI_BENCH_PEER_INTERRUPT;
    } else if (fti_bench_seconds() > w->deadline) {
        *end = FTI_BENCH_PEER_TIMEOUT;
    } else if (w->text.size > FTI_BENCH_PEER_OUTPUT) {
        *end = FTI_BENCH_PEER_TOO_LONG;
    } else {
        return false;
    }
    return true;
}

/* True once the child, which stays a zombie until it is waited for, has ended. */
static bool has_ended(pid_t pid) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

/* Until the child has ended and what it wrote is read. A grandchild that keeps the pipe
 * open is not waited for. */
static fti_bench_peer_end follow(watch *w) {
    struct pollfd poller = {.fd = w->output, .events = POLLIN};
    fti_bench_peer_end end = FTI_BENCH_PEER_ENDED;
    bool open = true;
    while (!over(w, &end)) {
        bool ended = has_ended(w->pid);
        int ready = open ? poll(&poller, 1, ended ? 0 : POLL_MS) : 0;
        if (ready > 0) open = take_output(w);
        if (ended && ready <= 0) break;
        if (!open && !ended) (void)poll(NULL, 0, POLL_MS);
    }
    return end;
}

/* Asks the whole group to end, then makes it. */
static void kill_group(pid_t pid) {
    double start = fti_bench_seconds();
    (void)kill(-pid, SIGTERM);
    while (!has_ended(pid) && fti_bench_seconds() - start < GRACE_SECONDS)
        (void)poll(NULL, 0, POLL_MS);
    (void)kill(-pid, SIGKILL);
}

static int collect(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return status;
}

static void run_in(int pipe_ends[2], const char *command, double timeout, bool (*stop)(void),
                   fti_bench_peer_run *run) {
    double start = fti_bench_seconds();
    watch w = {.output = pipe_ends[0], .deadline = start + timeout, .stop = stop};
    fti_cli_append(&w.text, "", 0);
    run->error = spawn(command, pipe_ends[1], &w.pid);
    (void)close(pipe_ends[1]);
    if (run->error == 0) {
        run->end = follow(&w);
        run->seconds = fti_bench_seconds() - start;
        /* After an end of its own too: what it left running would disturb what follows. */
        kill_group(w.pid);
        run->status = collect(w.pid);
    }
    (void)close(pipe_ends[0]);
    run->output = w.text.data;
    run->size = w.text.size;
}

void fti_bench_peer_start(const char *command, double timeout, bool (*stop)(void),
                          fti_bench_peer_run *run) {
    int pipe_ends[2];
    *run = (fti_bench_peer_run){.end = FTI_BENCH_PEER_NOT_RUN};
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) {
        run->error = errno;
        return;
    }
    (void)fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
    run_in(pipe_ends, command, timeout, stop, run);
}

void fti_bench_peer_free(fti_bench_peer_run *run) {
    free(run->output);
    *run = (fti_bench_peer_run){0};
}

const char *fti_bench_peer_trouble(const fti_bench_peer_run *run, double timeout, char *buffer,
                                   size_t size) {
    switch (run->end) {
    case FTI_BENCH_PEER_NOT_RUN:
        (void)snprintf(buffer, size, "cannot be run: %s", strerror(run->error));
        return buffer;
    case FTI_BENCH_PEER_TIMEOUT:
        (void)snprintf(buffer, size, "was still running after %g s and was killed", timeout);
        return buffer;
    case FTI_BENCH_PEER_INTERRUPT:
        (void)snprintf(buffer, size, "was interrupted and killed");
        return buffer;
    case FTI_BENCH_PEER_TOO_LONG:
        (void)snprintf(buffer, size, "printed more than %u MiB and was killed",
                       FTI_BENCH_PEER_OUTPUT >> 20);
        return buffer;
    case FTI_BENCH_PEER_ENDED: break;
    }
    if (WIFSIGNALED(run->status)) {
        (void)snprintf(buffer, size, "ended by signal %d (%s)", WTERMSIG(run->status),
                       strsignal(WTERMSIG(run->status)));
        return buffer;
    }
    if (WEXITSTATUS(run->status) == 0) return NULL;
    (void)snprintf(buffer, size, "ended with exit code %d", WEXITSTATUS(run->status));
    return buffer;
}

static bool is_blank(const char *line, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (!strchr(" \t\r", line[i])) return false;
    return true;
}

/* Start of the line that ends before `end`. */
static const char *line_start(const char *text, const char *end) {
    while (end > text && end[-1] != '\n') end--;
    return end;
}

char *fti_bench_peer_tail(const fti_bench_peer_run *run, unsigned lines) {
    const char *text = run->output ? run->output : "";
    const char *from = text + (run->output ? run->size : 0);
    for (unsigned found = 0; from > text && found < lines;) {
        const char *end = from[-1] == '\n' ? from - 1 : from;
        from = line_start(text, end);
        found += !is_blank(from, (size_t)(end - from));
    }
    fti_cli_text tail = {0};
    fti_cli_append(&tail, "", 0);
    for (const char *stop = text + run->size; run->output && from < stop;) {
        const char *newline = memchr(from, '\n', (size_t)(stop - from));
        size_t size = (size_t)((newline ? newline : stop) - from);
        char *shown = fti_cli_shown(from, size < MAX_SHOWN ? size : MAX_SHOWN);
        if (!is_blank(from, size)) fti_cli_printf(&tail, "  | %s\n", shown);
        free(shown);
        from += size + (newline != NULL);
    }
    return tail.data;
}

/* ---- the figure ---- */

struct fti_bench_pattern {
    pcre2_code *code;
    pcre2_match_data *match;
};

typedef struct pcre2_text {
    PCRE2_UCHAR data[256];
} pcre2_text;

static const char *error_text(int error, pcre2_text *buffer) {
    if (pcre2_get_error_message(error, buffer->data, sizeof buffer->data) > 0)
        return (const char *)buffer->data;
    return "unknown error";
}

static char *compile_message(int error, size_t at) {
    pcre2_text buffer;
    return fti_cli_format("is no regular expression (at character %zu: %s)", at + 1,
                          error_text(error, &buffer));
}

fti_bench_pattern *fti_bench_pattern_new(const char *expression, char **why) {
    int error;
    size_t at;
    uint32_t groups = 0;
    fti_bench_pattern *pattern = fti_cli_alloc(1, sizeof *pattern);
    pattern->code = pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED, PCRE2_MULTILINE,
                                  &error, &at, NULL);
    *why = NULL;
    if (!pattern->code) {
        *why = compile_message(error, at);
    } else {
        (void)pcre2_pattern_info(pattern->code, PCRE2_INFO_CAPTURECOUNT, &groups);
        pattern->match = pcre2_match_data_create_from_pattern(pattern->code, NULL);
        if (groups == 0)
            *why = fti_cli_format("has no group: put ( and ) around the number, as in "
                                  "'([0-9.]+) tok/s'");
        else if (!pattern->match)
            *why = fti_cli_format("cannot be used: out of memory");
    }
    if (!*why) return pattern;
    fti_bench_pattern_free(pattern);
    return NULL;
}

void fti_bench_pattern_free(fti_bench_pattern *pattern) {
    if (!pattern) return;
    pcre2_match_data_free(pattern->match);
    pcre2_code_free(pattern->code);
    free(pattern);
}

/* NULL if the first group has a match. */
static char *match_message(int found, const size_t *at) {
    pcre2_text buffer;
    if (found == PCRE2_ERROR_NOMATCH)
        return fti_cli_format("does not match the output of the command");
    if (found < 0)
        return fti_cli_format("cannot be matched with the output of the command: %s; give a "
                              "simpler expression",
                              error_text(found, &buffer));
    if (found > 1 && at[2] != PCRE2_UNSET) return NULL;
    return fti_cli_format("matches the output of the command, but its first group takes no part: "
                          "put it where it always matches");
}

bool fti_bench_pattern_figure(const fti_bench_pattern *pattern, const char *text, size_t size,
                              double *figure, char **why) {
    int found = pcre2_match(pattern->code, (PCRE2_SPTR)text, size, 0, 0, pattern->match, NULL);
    const size_t *at = pcre2_get_ovector_pointer(pattern->match);
    *why = match_message(found, at);
    if (*why) return false;
    char *group = fti_cli_format("%.*s", (int)(at[3] - at[2]), text + at[2]);
    if (!fti_cli_parse_number(group, figure)) {
        *why = fti_cli_format("takes '%.60s' from the output of the command, which is no number: "
                              "put ( and ) around the number alone",
                              group);
    } else if (*figure <= 0.0) {
        *why = fti_cli_format("takes %g from the output of the command; a figure must be greater "
                              "than 0",
                              *figure);
    }
    free(group);
    return *why == NULL;
}
