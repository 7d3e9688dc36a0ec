/*
 * traps.c: functions of the C library that a provider may not call. The program
 * exports them, so that the dynamic linker gives these to the provider instead of the
 * library's. What the provider did not cause is passed on.
 *
 * The provider caused a call that comes from its object, or that is made on a thread
 * while it runs something of the provider: that also covers what its libraries do
 * for it. Under sanitizers, which have traps of their own in the same place, threads,
 * processes and ends of the process are only seen by their effects (state.c).
 */
#include "check.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* ThreadSanitizer maps memory before a symbol can be looked up. */
#if defined(__SANITIZE_THREAD__)
#define SANITIZED_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SANITIZED_THREADS 1
#endif
#endif

#define EXPORT __attribute__((visibility("default"), noinline))

static _Thread_local fti_pc_doing trapping;

fti_pc_doing fti_pc_trap(fti_pc_doing doing) {
    fti_pc_doing before = trapping;
    trapping = doing;
    return before;
}

/* The loader opens providers through their descriptors. */
static bool in_provider(const void *caller) {
    Dl_info info;
    return dladdr(caller, &info) != 0 && info.dli_fname &&
           strncmp(info.dli_fname, "/proc/self/fd/", strlen("/proc/self/fd/")) == 0;
}

static bool caused(const void *caller) {
    if (!fti_pc_the_channel()) return false;
    return trapping != FTI_PC_HOSTS || in_provider(caller);
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

/* Not handed on as itself: a child that shares the stack may not return through ours. */
EXPORT pid_t vfork(void) {
    if (!caused(CALLER)) return fork();
    found_start("vfork");
    errno = EAGAIN;
    return -1;
}

EXPORT int clone(int (*body)(void *), void *stack, int flags, void *argument, ...) {
    NEXT(clone);
    va_list more;
    va_start(more, argument);
    void *parent = va_arg(more, void *), *tls = va_arg(more, void *), *child = va_arg(more, void *);
    va_end(more);
    if (!caused(CALLER)) return next(body, stack, flags, argument, parent, tls, child);
    found_start("clone");
    errno = EAGAIN;
    return -1;
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const argv[],
                       char *const envp[]) {
    NEXT(posix_spawn);
    if (!caused(CALLER)) return next(pid, path, actions, attributes, argv, envp);
    found_start("posix_spawn");
    return EAGAIN;
}

EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const argv[],
                        char *const envp[]) {
    NEXT(posix_spawnp);
    if (!caused(CALLER)) return next(pid, file, actions, attributes, argv, envp);
    found_start("posix_spawnp");
    return EAGAIN;
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

/* ---- the heap, in steps ---- */

/* Of `function`, which the heap's functions tell of themselves: no memory may be needed
 * to find who called. */
static void heap_used(const char *function) {
    if (trapping != FTI_PC_STEPS) return;
    trapping = FTI_PC_HOSTS;
    fti_pc_find("%s was called in run, or by a kernel: a step takes no memory and gives none back; "
                "take what it needs with host->alloc in create, or state it as workspace",
                function);
    trapping = FTI_PC_STEPS;
}

#if defined(SANITIZED)

int __sanitizer_install_malloc_and_free_hooks(void (*taken)(const volatile void *, size_t),
                                              void (*given)(const volatile void *));

static void taken(const volatile void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
    heap_used("malloc");
}

static void given(const volatile void *memory) {
    if (memory) heap_used("free");
}

__attribute__((constructor)) static void watch_heap(void) {
    __sanitizer_install_malloc_and_free_hooks(taken, given);
}

#else

/* The C library's own, behind the names that anybody may put himself before. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void __libc_free(void *memory);

EXPORT void *malloc(size_t bytes) {
    heap_used("malloc");
    return __libc_malloc(bytes);
}

EXPORT void *calloc(size_t count, size_t bytes) {
    heap_used("calloc");
    return __libc_calloc(count, bytes);
}

EXPORT void *realloc(void *memory, size_t bytes) {
    heap_used("realloc");
    return __libc_realloc(memory, bytes);
}

EXPORT void *reallocarray(void *memory, size_t count, size_t bytes) {
    size_t product;
    heap_used("reallocarray");
    if (!__builtin_mul_overflow(count, bytes, &product)) return __libc_realloc(memory, product);
    errno = ENOMEM;
    return NULL;
}

EXPORT void *memalign(size_t align, size_t bytes) {
    heap_used("memalign");
    return __libc_memalign(align, bytes);
}

EXPORT void *aligned_alloc(size_t align, size_t bytes) {
    heap_used("aligned_alloc");
    return __libc_memalign(align, bytes);
}

EXPORT int posix_memalign(void **memory, size_t align, size_t bytes) {
    heap_used("posix_memalign");
    if (align < sizeof(void *) || (align & (align - 1)) != 0) return EINVAL;
    void *found = __libc_memalign(align, bytes);
    if (!found) return ENOMEM;
    *memory = found;
    return 0;
}

EXPORT void free(void *memory) {
    if (memory) heap_used("free");
    __libc_free(memory);
}

#endif

#if !defined(SANITIZED_THREADS)

/* Mappings that a call makes; those of the heap itself do not come by here. */
EXPORT void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    NEXT(mmap);
    heap_used("mmap");
    return next(address, bytes, protection, flags, fd, offset);
}

EXPORT void *mmap64(void *address, size_t bytes, int protection, int flags, int fd,
                    off64_t offset) {
    NEXT(mmap64);
    heap_used("mmap");
    return next(address, bytes, protection, flags, fd, offset);
}

#endif

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

uint32_t fti_pc_threads(void) {
    return entries_of("/proc/self/task");
}

#if !defined(SANITIZED)

/* Pages that are mapped neither by the heap nor for the stack, which grow as they like. */
static uint64_t pages_mapped(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    uint64_t bytes = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
        if (!strstr(line, "[heap]") && !strstr(line, "[stack]")) bytes += to - from;
    }
    if (maps) fclose(maps);
    return bytes;
}

fti_pc_memory_use fti_pc_memory_used(void) {
    struct mallinfo2 info = mallinfo2();
    return (fti_pc_memory_use){info.uordblks, pages_mapped() - info.hblkhd};
}

#else

/* Sanitizers have a heap of their own, and look for what is left behind in it. */
fti_pc_memory_use fti_pc_memory_used(void) {
    return (fti_pc_memory_use){0, 0};
}

#endif
