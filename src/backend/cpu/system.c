/*
 * system.c: what this process may use: processors by affinity and cgroup quota,
 * memory by the kernel's estimate and cgroup limits, and instruction sets. Files
 * of /proc and /sys that are missing or unreadable limit nothing.
 */
#include "backend/cpu/cpu.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define TEXT_MAX 8192

/* The first bytes of a small file as a string; "" if it cannot be read. */
static const char *read_text(const char *path, char text[TEXT_MAX]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    text[0] = 0;
    if (fd < 0) return text;
    size_t size = 0;
    for (;;) {
        ssize_t got = read(fd, text + size, TEXT_MAX - 1 - size);
        if (got <= 0) break;
        size += (size_t)got;
    }
    text[size] = 0;
    close(fd);
    return text;
}

/* The number after `key` at the start of a line, in a text of "key number". */
static uint64_t number_after(const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, n) == 0) return strtoull(line + n, NULL, 10);
    }
    return 0;
}

/* Calls visit(folder, limit) for the cgroup folder of this process and each of
 * its parents: every level may limit. `controller` selects the version 1
 * hierarchy, "" is version 2. */
typedef uint64_t (*cgroup_visit)(const char *folder, uint64_t limit);

static uint64_t visit_parents(const char *mount, char *path, cgroup_visit visit, uint64_t limit) {
    char folder[2 * PATH_MAX];
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", mount, path);
        limit = visit(folder, limit);
        char *slash = strrchr(path, '/');
        if (!slash) return limit;
        *slash = 0;
    }
}

/* The path in "ID:CONTROLLERS:PATH" whose controllers are `controller`. */
static bool find_cgroup(const char *text, const char *controller, char path[PATH_MAX]) {
    size_t n = strlen(controller);
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        const char *names = strchr(line, ':');
        if (!names) return false;
        names++;
        const char *found = strchr(names, ':');
        if (!found) return false;
        bool listed = false;
        for (const char *p = names; p <= found && !listed; p++) {
            bool starts = p == names || p[-1] == ',';
            listed = starts && (size_t)(found - p) >= n && strncmp(p, controller, n) == 0 &&
                     (p[n] == ',' || p[n] == ':');
        }
        if (!listed) continue;
        size_t size = strcspn(found + 1, "\n");
        if (size >= PATH_MAX) return false;
        memcpy(path, found + 1, size);
        path[size] = 0;
        return true;
    }
    return false;
}

static uint64_t over_cgroups(const char *controller, cgroup_visit v1, cgroup_visit v2,
                             uint64_t limit) {
    char text[TEXT_MAX];
    char path[PATH_MAX];
    char mount[64];
    read_text("/proc/self/cgroup", text);
    if (find_cgroup(text, controller, path)) {
        snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", controller);
        limit = visit_parents(mount, path, v1, limit);
    }
    if (find_cgroup(text, "", path)) limit = visit_parents("/sys/fs/cgroup", path, v2, limit);
    return limit;
}

static const char *read_in(const char *folder, const char *name, char text[TEXT_MAX]) {
    char path[2 * PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return read_text(path, text);
}

/* ---- processors ---- */

/* Limits here are in thousandths of a processor. */
static uint64_t limit_by_quota(double quota, double period, uint64_t limit) {
    if (!(quota > 0) || !(period > 0)) return limit;
    double thousandths = 1000.0 * quota / period;
    if (thousandths >= (double)limit) return limit;
    return thousandths > 1.0 ? (uint64_t)thousandths : 1;
}

static uint64_t cpu_v2(const char *folder, uint64_t limit) {
    char text[TEXT_MAX];
    char *end;
    double quota = strtod(read_in(folder, "cpu.max", text), &end); /* "max" reads as 0 */
    return limit_by_quota(quota, strtod(end, NULL), limit);
}

static uint64_t cpu_v1(const char *folder, uint64_t limit) {
    char quota[TEXT_MAX];
    char period[TEXT_MAX];
    return limit_by_quota(strtod(read_in(folder, "cpu.cfs_quota_us", quota), NULL),
                          strtod(read_in(folder, "cpu.cfs_period_us", period), NULL), limit);
}

uint64_t fti_cpu_quota(void) {
    return over_cgroups("cpu", cpu_v1, cpu_v2, UINT64_MAX);
}

uint32_t fti_cpu_threads_allowed(void) {
    cpu_set_t set;
    long count = 0;
    if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
    if (count <= 0) count = sysconf(_SC_NPROCESSORS_ONLN);
    if (count <= 0) count = 1;
    uint64_t quota = fti_cpu_quota();
    uint64_t whole = quota / 1000 + (quota % 1000 != 0);
    return whole < (uint64_t)count ? (uint32_t)whole : (uint32_t)count;
}

uint32_t fti_cpu_threads_granted(uint32_t asked) {
    uint32_t allowed = fti_cpu_threads_allowed();
    return asked && asked < allowed ? asked : allowed;
}

/* ---- memory ---- */

/* A list such as "0-1,3". */
static uint64_t bits_of_list(const char *list) {
    uint64_t bits = 0;
    char *end;
    for (const char *p = list; *p >= '0' && *p <= '9'; p = end + (*end == ',')) {
        unsigned long first = strtoul(p, &end, 10), last = first;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        for (unsigned long i = first; i <= last && i < 64; i++) bits |= UINT64_C(1) << i;
    }
    return bits;
}

uint64_t fti_cpu_memory_nodes(void) {
    char text[TEXT_MAX];
    uint64_t nodes = bits_of_list(read_text("/sys/devices/system/node/has_memory", text));
    return nodes ? nodes : 1;
}

bool fti_cpu_interleave(void *memory, size_t bytes, uint64_t nodes) {
    unsigned long mask = (unsigned long)nodes;
    /* The system takes one bit less than it is told. */
    return syscall(SYS_mbind, memory, bytes, MPOL_INTERLEAVE, &mask, 65UL, 0U) == 0;
}

void fti_cpu_huge_pages(uint64_t *allocated, uint64_t *mapped) {
    char text[TEXT_MAX];
    read_text("/proc/self/smaps_rollup", text);
    *allocated = number_after(text, "AnonHugePages:") * 1024;
    *mapped = number_after(text, "FilePmdMapped:") * 1024;
}

/* What is left below a limit; the page cache gives way. */
static uint64_t limit_by_usage(uint64_t max, uint64_t usage, uint64_t cache, uint64_t limit) {
    usage = usage > cache ? usage - cache : 0;
    uint64_t left = max > usage ? max - usage : 0;
    return left < limit ? left : limit;
}

static uint64_t memory_v2(const char *folder, uint64_t limit) {
    char text[TEXT_MAX];
    uint64_t max = strtoull(read_in(folder, "memory.max", text), NULL, 10);
    if (max == 0) return limit; /* "max", or no such file */
    uint64_t usage = strtoull(read_in(folder, "memory.current", text), NULL, 10);
    read_in(folder, "memory.stat", text);
    uint64_t cache = number_after(text, "inactive_file ") + number_after(text, "active_file ");
    return limit_by_usage(max, usage, cache, limit);
}

static uint64_t memory_v1(const char *folder, uint64_t limit) {
    char text[TEXT_MAX];
    uint64_t max = strtoull(read_in(folder, "memory.limit_in_bytes", text), NULL, 10);
    if (max == 0) return limit;
    uint64_t usage = strtoull(read_in(folder, "memory.usage_in_bytes", text), NULL, 10);
    read_in(folder, "memory.stat", text);
    uint64_t cache = number_after(text, "total_inactive_file ") +
                     number_after(text, "total_active_file ");
    return limit_by_usage(max, usage, cache, limit);
}

uint64_t fti_cpu_memory_available(void) {
    char text[TEXT_MAX];
    uint64_t available = number_after(read_text("/proc/meminfo", text), "MemAvailable:") * 1024;
    if (available == 0)
        available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return over_cgroups("memory", memory_v1, memory_v2, available);
}

static uint64_t memory_limit_v2(const char *folder, uint64_t limit) {
    char text[TEXT_MAX];
    uint64_t max = strtoull(read_in(folder, "memory.max", text), NULL, 10);
    return max && max < limit ? max : limit;
}

static uint64_t memory_limit_v1(const char *folder, uint64_t limit) {
    char text[TEXT_MAX];
    uint64_t max = strtoull(read_in(folder, "memory.limit_in_bytes", text), NULL, 10);
    return max && max < limit ? max : limit;
}

uint64_t fti_cpu_memory_limit(void) {
    return over_cgroups("memory", memory_limit_v1, memory_limit_v2, UINT64_MAX);
}

/* ---- instruction sets ---- */

uint32_t fti_cpu_features(void) {
    uint32_t features = 0;
#if defined(__x86_64__)
    unsigned a;
    unsigned b;
    unsigned c = 0;
    unsigned d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    if (f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        features |= FTI_CPU_MASK_AVX2;
    /* Processors for servers have had the four together since 2017; no kernel wants less. */
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        features |= FTI_CPU_MASK_AVX512F;
    if ((features & FTI_CPU_MASK_AVX512F) && __builtin_cpu_supports("avx512vnni"))
        features |= FTI_CPU_MASK_AVX512_VNNI;
#elif defined(__aarch64__)
    /* NEON is part of the architecture, its dot products of bytes are not. */
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) features |= FTI_CPU_MASK_NEON;
#endif
    return features;
}
