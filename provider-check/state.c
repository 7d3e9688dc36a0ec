/* state.c: snapshots of what a provider must leave alone, and how they differ. */
#include "state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* ---- floating point ---- */

#define MXCSR_CONTROL 0xFFC0u /* rounding, masks, flush-to-zero, denormals-are-zero */

fti_pc_fp fti_pc_fp_take(void) {
    fti_pc_fp fp = {0, 0};
#if defined(__x86_64__)
    uint16_t word;
    fp.vector = _mm_getcsr() & MXCSR_CONTROL;
    __asm__ volatile("fnstcw %0" : "=m"(word));
    fp.x87 = word;
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(fp.vector));
#else
    fp.vector = (uint64_t)fegetround();
#endif
    return fp;
}

static void set_fp(fti_pc_fp fp) {
#if defined(__x86_64__)
    uint16_t word = (uint16_t)fp.x87;
    _mm_setcsr((unsigned)fp.vector);
    __asm__ volatile("fldcw %0" : : "m"(word));
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(fp.vector));
#else
    fesetround((int)fp.vector);
#endif
}

static void say_fp(fti_pc_fp fp, char *text, size_t size) {
    static const char *const roundings[] = {"to nearest", "down", "up", "to zero"};
#if defined(__x86_64__)
    snprintf(text, size, "rounding %s%s%s%s (MXCSR %#llx, x87 %#llx)",
             roundings[fp.vector >> 13 & 3], fp.vector & 0x8000u ? ", flush-to-zero" : "",
             fp.vector & 0x40u ? ", denormals-are-zero" : "",
             (fp.vector & 0x1F80u) != 0x1F80u ? ", traps" : "", (unsigned long long)fp.vector,
             (unsigned long long)fp.x87);
#elif defined(__aarch64__)
    static const unsigned order[] = {0, 2, 1, 3};
    snprintf(text, size, "rounding %s%s (FPCR %#llx)", roundings[order[fp.vector >> 22 & 3]],
             fp.vector & 0x1000000u ? ", flush-to-zero" : "", (unsigned long long)fp.vector);
#else
    (void)roundings;
    snprintf(text, size, "rounding mode %llu", (unsigned long long)fp.vector);
#endif
}

void fti_pc_fp_restore(fti_pc_fp before, const char *who) {
    char found[96], wanted[96];
    fti_pc_fp now = fti_pc_fp_take();
    fti_pc_checked();
    if (now.vector == before.vector && now.x87 == before.x87) return;
    set_fp(before); /* or it would decide what is computed from here on */
    say_fp(now, found, sizeof found);
    say_fp(before, wanted, sizeof wanted);
    fti_pc_find("%s left the floating-point environment changed: found %s, wanted %s: save it and "
                "put it back, or build without -ffast-math",
                who, found, wanted);
}

/* ---- taking ---- */

static void take_thread(fti_pc_state *s) {
    sigset_t mask;
    stack_t stack;
    s->fp = fti_pc_fp_take();
    sigemptyset(&mask);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int i = 1; i < (int)FTI_PC_SIGNALS; i++)
        if (sigismember(&mask, i) == 1) s->blocked |= UINT64_C(1) << (i - 1);
    s->locale = (uint64_t)(uintptr_t)uselocale((locale_t)0);
    if (sigaltstack(NULL, &stack) == 0)
        s->signal_stack = stack.ss_flags & SS_DISABLE ? 0 : (uint64_t)(uintptr_t)stack.ss_sp;
    pid_t thread = (pid_t)syscall(SYS_gettid);
    s->priority = getpriority(PRIO_PROCESS, (id_t)thread);
    s->policy = sched_getscheduler(thread);
    prctl(PR_GET_NAME, s->thread_name);
    sched_getaffinity(thread, sizeof s->cpus, &s->cpus);
}

/* By the kernel's own call: libraries put their own before sigaction. */
static void take_signals(fti_pc_state *s) {
    struct {
        uint64_t handler, flags, restorer, mask;
    } action;
    for (unsigned i = 1; i < FTI_PC_SIGNALS; i++) {
        memset(&action, 0, sizeof action);
        if (syscall(SYS_rt_sigaction, i, NULL, &action, sizeof(uint64_t)) != 0) continue;
        s->signals[i].handler = action.handler;
        s->signals[i].flags = action.flags;
    }
}

static void take_limits(fti_pc_state *s) {
    struct rlimit limit;
    for (unsigned i = 0; i < FTI_PC_LIMITS; i++) {
        if (getrlimit((__rlimit_resource_t)i, &limit) != 0) continue;
        s->limits[i].soft = limit.rlim_cur;
        s->limits[i].hard = limit.rlim_max;
    }
}

/* Bytes of a file of /proc; not by stdio, whose buffers are of the heap. */
static size_t read_proc(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, size - 1);
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

/* What is left until an alarm changes by itself. */
static void take_timers(fti_pc_state *s) {
    char text[4096];
    struct itimerval value;
    for (int i = 0; i < 3; i++) {
        if (getitimer((__itimer_which_t)i, &value) != 0) continue;
        s->alarms[i].armed = value.it_value.tv_sec != 0 || value.it_value.tv_usec != 0;
        s->alarms[i].interval = (uint64_t)value.it_interval.tv_sec * 1000000u +
                                (uint64_t)value.it_interval.tv_usec;
    }
    read_proc("/proc/self/timers", text, sizeof text);
    for (const char *at = strstr(text, "signal:"); at; at = strstr(at + 1, "signal:")) s->timers++;
}

static uint64_t hash_text(uint64_t h, const char *text) {
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h * 31;
}

static void take_settings(fti_pc_state *s) {
    if (!getcwd(s->folder, sizeof s->folder)) s->folder[0] = 0;
    const char *name = setlocale(LC_ALL, NULL);
    snprintf(s->locale_name, sizeof s->locale_name, "%s", name ? name : "");
    mode_t mask = umask(022);
    umask(mask);
    s->umask = mask;
    s->environment = 14695981039346656037u;
    for (char **e = environ; e && *e; e++) s->environment = hash_text(s->environment, *e);
}

static void take_children(fti_pc_state *s) {
    siginfo_t info;
    struct rusage usage;
    s->children.live = waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT | __WALL) ==
                       0;
    if (getrusage(RUSAGE_CHILDREN, &usage) != 0) return;
    /* Of a child that shared our memory and left at once, only its size is counted. */
    s->children.waited = (uint64_t)(usage.ru_minflt + usage.ru_majflt + usage.ru_nvcsw +
                                    usage.ru_nivcsw + usage.ru_maxrss);
}

static void take_files(fti_pc_state *s) {
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) return;
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        int fd = e->d_name[0] == '.' ? -1 : (int)strtol(e->d_name, NULL, 10);
        struct stat st;
        if (fd < 0 || fd == dirfd(dir) || fstat(fd, &st) != 0) continue;
        if (s->file_count < FTI_PC_FILES)
            s->files[s->file_count] = (fti_pc_file){.number = fd,
                                                    .flags = fcntl(fd, F_GETFL),
                                                    .close_on_exec = fcntl(fd, F_GETFD),
                                                    .device = st.st_dev,
                                                    .inode = st.st_ino};
        s->file_count++;
    }
    closedir(dir);
}

void fti_pc_state_take(fti_pc_state *s) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    int number = errno;
    memset(s, 0, sizeof *s);
    take_thread(s);
    pthread_mutex_lock(&one_at_a_time); /* the umask is read by setting it */
    take_signals(s);
    take_limits(s);
    take_timers(s);
    take_settings(s);
    take_children(s);
    take_files(s);
    pthread_mutex_unlock(&one_at_a_time);
    errno = number;
}

/* ---- saying: what `s` has where it differs from `other` ---- */

static void say_floats(const fti_pc_state *s, const fti_pc_state *other, char *text, size_t size) {
    (void)other;
    say_fp(s->fp, text, size);
}

static void say_mask(const fti_pc_state *s, const fti_pc_state *other, char *text, size_t size) {
    uint64_t mine = s->blocked & ~other->blocked;
    if (mine)
        snprintf(text, size, "signal %d blocked", __builtin_ctzll(mine) + 1);
    else
        snprintf(text, size, "signal %d not blocked", __builtin_ctzll(other->blocked) + 1);
}

static void say_address(uint64_t address, char *text, size_t size) {
    if (address)
        snprintf(text, size, "one at %#llx", (unsigned long long)address);
    else
        snprintf(text, size, "none");
}

static void say_locale_object(const fti_pc_state *s, const fti_pc_state *other, char *text,
                              size_t size) {
    (void)other;
    if (s->locale == (uint64_t)(uintptr_t)LC_GLOBAL_LOCALE)
        snprintf(text, size, "the process's");
    else
        say_address(s->locale, text, size);
}

static void say_signal_stack(const fti_pc_state *s, const fti_pc_state *other, char *text,
                             size_t size) {
    (void)other;
    say_address(s->signal_stack, text, size);
}

static void say_priority(const fti_pc_state *s, const fti_pc_state *other, char *text,
                         size_t size) {
    (void)other;
    snprintf(text, size, "nice %d, policy %d", s->priority, s->policy);
}

static void say_thread_name(const fti_pc_state *s, const fti_pc_state *other, char *text,
                            size_t size) {
    (void)other;
    snprintf(text, size, "'%s'", s->thread_name);
}

static void say_cpus(const fti_pc_state *s, const fti_pc_state *other, char *text, size_t size) {
    (void)other;
    snprintf(text, size, "%d CPUs", CPU_COUNT(&s->cpus));
}

static void say_signals(const fti_pc_state *s, const fti_pc_state *other, char *text, size_t size) {
    unsigned i = 1;
    while (i + 1 < FTI_PC_SIGNALS &&
           memcmp(&s->signals[i], &other->signals[i], sizeof s->signals[i]) == 0)
        i++;
    uint64_t handler = s->signals[i].handler;
    snprintf(text, size, "signal %u %s (flags %#llx)", i,
             handler == (uint64_t)(uintptr_t)SIG_DFL   ? "by default"
             : handler == (uint64_t)(uintptr_t)SIG_IGN ? "ignored"
                                                       : "handled",
             (unsigned long long)s->signals[i].flags);
}

static void say_limits(const fti_pc_state *s, const fti_pc_state *other, char *text, size_t size) {
    unsigned i = 0;
    while (i + 1 < FTI_PC_LIMITS &&
           memcmp(&s->limits[i], &other->limits[i], sizeof s->limits[i]) == 0)
        i++;
    snprintf(text, size, "resource %u soft %lld hard %lld (-1: none)", i,
             (long long)s->limits[i].soft, (long long)s->limits[i].hard);
}

static void say_alarms(const fti_pc_state *s, const fti_pc_state *other, char *text, size_t size) {
    static const char *const names[] = {"real", "virtual", "profiling"};
    unsigned i = 0;
    while (i < 2 && memcmp(&s->alarms[i], &other->alarms[i], sizeof s->alarms[i]) == 0) i++;
    snprintf(text, size, "the %s one %s, every %llu us", names[i],
             s->alarms[i].armed ? "armed" : "not armed", (unsigned long long)s->alarms[i].interval);
}

static void say_timers(const fti_pc_state *s, const fti_pc_state *other, char *text, size_t size) {
    (void)other;
    snprintf(text, size, "%llu", (unsigned long long)s->timers);
}

static void say_folder(const fti_pc_state *s, const fti_pc_state *other, char *text, size_t size) {
    (void)other;
    snprintf(text, size, "'%s'", s->folder);
}

static void say_locale_name(const fti_pc_state *s, const fti_pc_state *other, char *text,
                            size_t size) {
    (void)other;
    snprintf(text, size, "'%s'", s->locale_name);
}

static void say_umask(const fti_pc_state *s, const fti_pc_state *other, char *text, size_t size) {
    (void)other;
    snprintf(text, size, "%04llo", (unsigned long long)s->umask);
}

static void say_environment(const fti_pc_state *s, const fti_pc_state *other, char *text,
                            size_t size) {
    (void)other;
    snprintf(text, size, "variables of hash %016llx", (unsigned long long)s->environment);
}

static void say_children(const fti_pc_state *s, const fti_pc_state *other, char *text,
                         size_t size) {
    if (s->children.live)
        snprintf(text, size, "one that runs or was not waited for");
    else
        snprintf(text, size, "%s",
                 s->children.waited > other->children.waited ? "one that was waited for"
                                                             : "none of the provider's");
}

static bool has_file(const fti_pc_state *s, const fti_pc_file *file) {
    for (uint64_t i = 0; i < s->file_count && i < FTI_PC_FILES; i++)
        if (memcmp(&s->files[i], file, sizeof *file) == 0) return true;
    return false;
}

static void say_files(const fti_pc_state *s, const fti_pc_state *other, char *text, size_t size) {
    for (uint64_t i = 0; i < s->file_count && i < FTI_PC_FILES; i++) {
        char link[64], path[160];
        if (has_file(other, &s->files[i])) continue;
        snprintf(link, sizeof link, "/proc/self/fd/%d", s->files[i].number);
        ssize_t n = readlink(link, path, sizeof path - 1);
        path[n > 0 ? n : 0] = 0;
        snprintf(text, size, "%llu files open, descriptor %d as %s (flags %#x)",
                 (unsigned long long)s->file_count, s->files[i].number, n > 0 ? path : "another",
                 (unsigned)s->files[i].flags);
        return;
    }
    snprintf(text, size, "%llu files open", (unsigned long long)s->file_count);
}

/* ---- comparing ---- */

typedef struct aspect {
    const char *what;
    const char *advice;
    size_t offset, size;
    unsigned which;
    void (*say)(const fti_pc_state *s, const fti_pc_state *other, char *text, size_t size);
} aspect;

#define AT(member)       offsetof(fti_pc_state, member), sizeof(((fti_pc_state *)0)->member)
#define OF_APPLICATION   "it belongs to the application"
#define FOR_POOL         "give work to the core's pool through the kernels interface"
#define FOR_FLOATS       "save it and put it back, or build without -ffast-math"
#define TAKE_NO_FILES    "close what was opened; a checkpoint is read through checkpoint_reader"
#define THREAD_ASPECT(m) AT(m), FTI_PC_OF_THREAD

static const aspect aspects[] = {
    {"the floating-point environment", FOR_FLOATS, THREAD_ASPECT(fp), say_floats},
    {"the signal mask", OF_APPLICATION, THREAD_ASPECT(blocked), say_mask},
    {"the thread's locale", OF_APPLICATION, THREAD_ASPECT(locale), say_locale_object},
    {"the signal stack", OF_APPLICATION, THREAD_ASPECT(signal_stack), say_signal_stack},
    {"the priority", OF_APPLICATION, AT(priority), FTI_PC_OF_THREAD, say_priority},
    {"the scheduling policy", OF_APPLICATION, AT(policy), FTI_PC_OF_THREAD, say_priority},
    {"the thread's name", OF_APPLICATION, AT(thread_name), FTI_PC_OF_THREAD, say_thread_name},
    {"the CPU affinity", FOR_POOL, AT(cpus), FTI_PC_OF_THREAD, say_cpus},
    {"how signals are handled", OF_APPLICATION, AT(signals), FTI_PC_OF_PROCESS, say_signals},
    {"the resource limits", OF_APPLICATION, AT(limits), FTI_PC_OF_PROCESS, say_limits},
    {"the alarms", OF_APPLICATION, AT(alarms), FTI_PC_OF_PROCESS, say_alarms},
    {"the number of timers", "a provider has none", AT(timers), FTI_PC_OF_PROCESS, say_timers},
    {"the working directory", OF_APPLICATION, AT(folder), FTI_PC_OF_PROCESS, say_folder},
    {"the locale", OF_APPLICATION, AT(locale_name), FTI_PC_OF_PROCESS, say_locale_name},
    {"the umask", OF_APPLICATION, AT(umask), FTI_PC_OF_PROCESS, say_umask},
    {"the environment", OF_APPLICATION, AT(environment), FTI_PC_OF_PROCESS, say_environment},
    {"the processes", "a provider starts none", AT(children), FTI_PC_OF_PROCESS, say_children},
    {"the number of open files", TAKE_NO_FILES, AT(file_count), FTI_PC_OF_FILES, say_files},
    {"the open files", TAKE_NO_FILES, AT(files), FTI_PC_OF_FILES, say_files},
};

void fti_pc_state_compare(const fti_pc_state *before, const fti_pc_state *after, unsigned which,
                          const char *call) {
    bool counted = false;
    for (size_t i = 0; i < FTI_COUNT(aspects); i++) {
        const aspect *a = &aspects[i];
        char found[256], wanted[256];
        if (!(a->which & which)) continue;
        fti_pc_checked();
        if (memcmp((const char *)before + a->offset, (const char *)after + a->offset, a->size) == 0)
            continue;
        if (a->say == say_files && counted) continue; /* number and kind are one finding */
        counted = counted || a->say == say_files;
        a->say(after, before, found, sizeof found);
        a->say(before, after, wanted, sizeof wanted);
        fti_pc_find("%s left %s changed: found %s, wanted %s as before the call: %s", call, a->what,
                    found, wanted, a->advice);
    }
}
