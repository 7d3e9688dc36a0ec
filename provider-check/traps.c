/*
 * traps.c: functions of the C library that a provider may not call. The program
 * exports them, so that the dynamic linker gives these to the provider instead of the
 * library's. What the provider did not cause is passed on.
 *
 * The provider caused a call that comes from its object, or that is made on a thread
 * while it runs something of the provider: that also covers what its libraries do
 * for it. Under sanitizers, which have traps of their own in the same place, threads
 * and ends of the process are only seen by their effects.
 */
#include "check.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#define EXPORT __attribute__((visibility("default"), noinline))

static _Thread_local bool trapping;

void fti_pc_trap(bool on) {
    trapping = on;
}

/* The loader opens providers through their descriptors. */
static bool in_provider(const void *caller) {
    Dl_info info;
    return dladdr(caller, &info) != 0 && info.dli_fname &&
           strncmp(info.dli_fname, "/proc/self/fd/", strlen("/proc/self/fd/")) == 0;
}

static bool caused(const void *caller) {
    if (!fti_pc_the_channel()) return false;
    return trapping || in_provider(caller);
}

static void *next_symbol(const char *name) {
    void *symbol = dlsym(RTLD_NEXT, name);
    if (!symbol) _exit(127);
    return symbol;
}

/* Declares `next`: the function of this name behind ours. Casting between data and
 * function pointers is not C; copying them is POSIX. */
#define NEXT(name)                                                                                 \
    __typeof__(name) *next;                                                                        \
    void *symbol = next_symbol(#name);                                                             \
    memcpy(&next, &symbol, sizeof next)

#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))

/* ---- environment ---- */

static void found_environment(const char *function, const char *name) {
    fti_pc_find("%s('%.80s') was called: a provider leaves the environment alone; settings "
                "arrive as provider_options in create",
                function, name ? name : "");
}

EXPORT char *getenv(const char *name) {
    NEXT(getenv);
    if (caused(CALLER)) found_environment("getenv", name);
    return next(name);
}

EXPORT char *secure_getenv(const char *name) {
    NEXT(secure_getenv);
    if (caused(CALLER)) found_environment("secure_getenv", name);
    return next(name);
}

EXPORT int setenv(const char *name, const char *value, int replace) {
    NEXT(setenv);
    if (caused(CALLER)) found_environment("setenv", name);
    return next(name, value, replace);
}

EXPORT int unsetenv(const char *name) {
    NEXT(unsetenv);
    if (caused(CALLER)) found_environment("unsetenv", name);
    return next(name);
}

EXPORT int putenv(char *assignment) {
    NEXT(putenv);
    if (caused(CALLER)) found_environment("putenv", assignment);
    return next(assignment);
}

#if !defined(SANITIZED)

/* ---- threads and processes ---- */

static void found_start(const char *function) {
    fti_pc_find("%s was called: a provider starts no threads and no processes; give work to the "
                "core's pool through the kernels interface",
                function);
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*body)(void *), void *argument) {
    NEXT(pthread_create);
    if (!caused(CALLER)) return next(thread, attributes, body, argument);
    found_start("pthread_create");
    return EAGAIN;
}

EXPORT pid_t fork(void) {
    NEXT(fork);
    if (!caused(CALLER)) return next();
    found_start("fork");
    errno = EAGAIN;
    return -1;
}

EXPORT int system(const char *command) {
    NEXT(system);
    if (!caused(CALLER)) return next(command);
    found_start("system");
    errno = EAGAIN;
    return -1;
}

EXPORT FILE *popen(const char *command, const char *mode) {
    NEXT(popen);
    if (!caused(CALLER)) return next(command, mode);
    found_start("popen");
    errno = EAGAIN;
    return NULL;
}

/* ---- the end of the process ---- */

static void found_end(const char *function) {
    fti_pc_find("%s was called: a provider returns a status and leaves the process to the "
                "application",
                function);
}

/* The process ends, since what called does not expect to go on. */
static _Noreturn void end(const void *caller, const char *function, int code) {
    if (caused(caller)) found_end(function);
    fflush(NULL);
    syscall(SYS_exit_group, code);
    __builtin_unreachable();
}

EXPORT _Noreturn void exit(int code) {
    end(CALLER, "exit", code);
}

EXPORT _Noreturn void _exit(int code) {
    end(CALLER, "_exit", code);
}

EXPORT _Noreturn void _Exit(int code) {
    end(CALLER, "_Exit", code);
}

EXPORT _Noreturn void quick_exit(int code) {
    end(CALLER, "quick_exit", code);
}

/* Ends as the library's would. */
EXPORT _Noreturn void abort(void) {
    const struct sigaction fatal = {.sa_handler = SIG_DFL};
    if (caused(CALLER)) found_end("abort");
    fflush(NULL);
    __typeof__(sigaction) *set;
    void *symbol = next_symbol("sigaction");
    memcpy(&set, &symbol, sizeof set);
    set(SIGABRT, &fatal, NULL);
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGABRT);
    end(CALLER, "abort", 134);
}

#endif

/* ---- signals ---- */

static void found_signal(const char *function, int number) {
    fti_pc_find("%s was called for signal %d: signals belong to the application", function, number);
}

EXPORT int sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    NEXT(sigaction);
    if (action && caused(CALLER)) found_signal("sigaction", number);
    return next(number, action, old);
}

EXPORT __sighandler_t signal(int number, __sighandler_t handler) {
    NEXT(signal);
    if (caused(CALLER)) found_signal("signal", number);
    return next(number, handler);
}

EXPORT int raise(int number) {
    NEXT(raise);
    if (caused(CALLER)) found_signal("raise", number);
    return next(number);
}

/* ---- what cannot be trapped, but counted ---- */

static uint32_t entries_of(const char *folder) {
    DIR *dir = opendir(folder);
    uint32_t count = 0;
    if (!dir) return 0;
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
        if (e->d_name[0] != '.') count++;
    closedir(dir);
    return count;
}

uint32_t fti_pc_open_files(void) {
    return entries_of("/proc/self/fd");
}

uint32_t fti_pc_threads(void) {
    return entries_of("/proc/self/task");
}
