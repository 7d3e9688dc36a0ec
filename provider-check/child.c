/*
 * child.c: a pass in a process of its own. Its standard output and error are a pipe:
 * a provider prints nothing, so whatever arrives there is a finding. A process that
 * does not come back in time is killed, and what it was doing is told.
 */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_CRASHES 6 /* of one sweep, after which the rest would say the same */
#define KEPT_OUTPUT 240u

typedef struct child {
    pid_t pid;
    int output;
    char text[KEPT_OUTPUT + 1];
    size_t kept;
    uint64_t bytes;
    int status; /* of waitpid */
    bool hung;
} child;

static int64_t milliseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- inside ---- */

static void *nothing(void *argument) {
    return argument;
}

/* Run-time libraries that need a thread of their own have it afterwards. */
static void start_first_thread(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, nothing, NULL) == 0) pthread_join(thread, NULL);
}

/* Threads beyond `before`; one that was joined may take a moment to go. */
static uint32_t extra_threads(uint32_t before) {
    uint32_t now = fti_pc_threads();
    for (int i = 0; i < 100 && now > before; i++) {
        usleep(1000);
        now = fti_pc_threads();
    }
    return now > before ? now - before : 0;
}

static void inside(const fti_pc_pass *pass, const fti_pc_target *target, int output) {
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int nothing_to_read = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing_to_read >= 0) dup2(nothing_to_read, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    close(output);
    start_first_thread();
    (void)extra_threads(1);
    uint32_t threads = fti_pc_threads();
    pass->run(target);
    fti_pc_at("after the pass");
    uint32_t extra = extra_threads(threads);
    fti_pc_check(extra == 0,
                 "%u threads run that were not there before: a provider starts none; give work to "
                 "the core's pool through the kernels interface",
                 extra);
    fflush(NULL);
    fti_pc_the_channel()->done = 1;
    _exit(0);
}

/* ---- outside ---- */

static bool start(child *c, const fti_pc_pass *pass, const fti_pc_target *target) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    fflush(NULL); /* or the child would write it too */
    c->pid = fork();
    if (c->pid == 0) {
        close(ends[0]);
        inside(pass, target, ends[1]);
    }
    close(ends[1]);
    c->output = ends[0];
    if (c->pid > 0) return true;
    close(ends[0]);
    return false;
}

static void keep(child *c, const char *bytes, size_t size) {
    c->bytes += size;
    size_t room = KEPT_OUTPUT - c->kept;
    if (size > room) size = room;
    memcpy(c->text + c->kept, bytes, size);
    c->kept += size;
}

/* Reads until the pipe closes, or the child ends, or time is up. A process that the
 * provider started may hold the pipe open for longer than the child lives. */
static void wait_for(child *c, uint32_t seconds) {
    int64_t end = milliseconds() + (int64_t)seconds * 1000;
    bool ended = false;
    for (;;) {
        char block[4096];
        struct pollfd p = {c->output, POLLIN, 0};
        int ready = poll(&p, 1, ended ? 0 : 20);
        ssize_t n = ready > 0 ? read(c->output, block, sizeof block) : 0;
        if (n > 0) {
            keep(c, block, (size_t)n);
            continue;
        }
        if (ended) break;
        ended = waitpid(c->pid, &c->status, WNOHANG) == c->pid;
        if (ended) continue;
        if (ready > 0) usleep(1000); /* closed by the child, which still runs */
        if (milliseconds() < end) continue;
        c->hung = true;
        kill(c->pid, SIGKILL);
        waitpid(c->pid, &c->status, 0);
        ended = true;
    }
    close(c->output);
}

static void judge_end(const child *c, const fti_pc_target *target, fti_pc_channel *channel) {
    if (c->hung) {
        fti_pc_find("no end after %u s: hangs, or needs more time (--timeout SECONDS)",
                    target->timeout);
    } else if (WIFSIGNALED(c->status)) {
        int number = WTERMSIG(c->status);
        fti_pc_find("crashed by signal %d (%s)", number, sigdescr_np(number));
    } else if (!channel->done) {
        fti_pc_find("the process was ended with exit code %d: a provider returns a status and "
                    "leaves the process to the application",
                    WEXITSTATUS(c->status));
    }
}

static void judge_output(const child *c) {
    if (c->bytes == 0) return;
    size_t size = c->kept;
    while (size > 0 && (c->text[size - 1] == '\n' || c->text[size - 1] == ' ')) size--;
    fti_pc_find("%llu bytes were written to standard output or error, beginning '%.*s': a "
                "provider never prints; tell the core through host->report",
                (unsigned long long)c->bytes, (int)size, c->text);
}

void fti_pc_run_apart(const fti_pc_pass *pass, const fti_pc_target *target,
                      fti_pc_channel *channel) {
    for (int crashes = 0; crashes < MAX_CRASHES; crashes++) {
        child c = {.pid = -1};
        channel->done = 0;
        if (!start(&c, pass, target)) {
            fti_pc_skip("no process could be started: %s", strerrordesc_np(errno));
            return;
        }
        wait_for(&c, target->timeout);
        fti_pc_mend_channel(channel);
        judge_end(&c, target, channel);
        judge_output(&c);
        if (channel->done || !pass->sweep || c.hung) return;
        channel->next++;
    }
}
