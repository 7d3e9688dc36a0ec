/* machine.c: asks the kernel what it runs on. */
#include "machine.h"

#include <dirent.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "bandwidth.h"
#include "cli/output.h"
#include "cli/text.h"

#define GIGA 1e9

/* ---- small files ---- */

/* A whole file without the newline at its end; NULL if it cannot be read. Free with
 * free(). */
static char *read_text(const char *root, const char *path) {
    char *whole = fti_cli_format("%s%s", root, path);
    fti_cli_text text = {0};
    bool read = fti_cli_read_file(whole, &text);
    free(whole);
    if (!read || text.size == 0) {
        free(text.data);
        return NULL;
    }
    if (text.data[text.size - 1] == '\n') text.data[text.size - 1] = 0;
    return text.data;
}

/* What follows `key` and blanks, colons or '=' on the first line that begins with it;
 * NULL if there is none. */
static json_t *value_of(const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, n) != 0 || !strchr(" \t:=", line[n])) continue;
        const char *value = line + n + strspn(line + n, " \t:=");
        size_t size = strcspn(value, "\n");
        while (size > 0 && value[size - 1] == ' ') size--;
        return size ? fti_cli_json_text(value, size) : NULL;
    }
    return NULL;
}

static json_t *value_in(const char *path, const char *key) {
    char *text = read_text("", path);
    json_t *value = text ? value_of(text, key) : NULL;
    free(text);
    return value;
}

static json_t *or_null(json_t *value) {
    return value ? value : json_null();
}

static json_t *positive(long value) {
    return value > 0 ? json_integer(value) : json_null();
}

static json_t *bytes_or_null(uint64_t bytes) {
    return bytes > 0 && bytes <= INT64_MAX ? json_integer((json_int_t)bytes) : json_null();
}

/* ---- processors ---- */

/* What dot products and their inputs could be computed with. */
static const char *const telling_flags[] = {
    "avx",      "f16c",        "fma",         "avx2",     "avx_vnni",  "avx512f", "avx512bw",
    "avx512vl", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",  "asimd",   "asimddp",
    "i8mm",     "bf16",        "sve",         "sve2",     "hypervisor"};

static bool has_word(const char *text, const char *word) {
    size_t n = strlen(word);
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += n) {
        bool starts = at == text || at[-1] == ' ';
        if (starts && (at[n] == ' ' || at[n] == 0)) return true;
    }
    return false;
}

static json_t *cpu_flags(void) {
    json_t *all = value_in("/proc/cpuinfo", "flags");
    if (!all) all = value_in("/proc/cpuinfo", "Features"); /* as ARM calls them */
    if (!all) return json_null();
    json_t *telling = json_array();
    for (size_t i = 0; i < sizeof telling_flags / sizeof telling_flags[0]; i++) {
        if (!has_word(json_string_value(all), telling_flags[i])) continue;
        (void)json_array_append_new(telling, json_string(telling_flags[i]));
    }
    json_decref(all);
    return telling;
}

static json_t *allowed_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? positive(CPU_COUNT(&set)) : json_null();
}

static json_t *cpu_quota(void) {
    uint64_t thousandths = fti_cpu_quota();
    return thousandths == UINT64_MAX ? json_null() : json_real((double)thousandths / 1000.0);
}

static json_t *whole_file(const char *path) {
    char *text = read_text("", path);
    json_t *value = text ? fti_cli_json_text(text, strlen(text)) : json_null();
    free(text);
    return value;
}

/* ---- memory ---- */

static uint64_t memory_bytes(void) {
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static json_t *memory_limit(void) {
    uint64_t limit = fti_cpu_memory_limit();
    return limit < memory_bytes() ? bytes_or_null(limit) : json_null();
}

static bool is_numbered(const char *name, const char *prefix) {
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 && name[n] &&
           name[n + strspn(name + n, "0123456789")] == 0;
}

static json_t *numa_nodes(void) {
    DIR *folder = opendir("/sys/devices/system/node");
    long count = 0;
    if (!folder) return json_null();
    for (const struct dirent *e; (e = readdir(folder)) != NULL;)
        count += is_numbered(e->d_name, "node");
    (void)closedir(folder);
    return positive(count);
}

/* The setting is the word in brackets. */
static json_t *huge_pages(void) {
    char *text = read_text("", "/sys/kernel/mm/transparent_hugepage/enabled");
    const char *open = text ? strchr(text, '[') : NULL;
    json_t *setting = open ? json_stringn(open + 1, strcspn(open + 1, "]")) : json_null();
    free(text);
    return setting;
}

/* ---- load ---- */

static json_t *load_average(void) {
    double load[3];
    if (getloadavg(load, 3) != 3) return json_null();
    return json_pack("[f, f, f]", load[0], load[1], load[2]);
}

/* ---- GPUs ---- */

/* Calls add(list, root, path of the entry) for each entry of a folder. */
static void each_entry(json_t *list, const char *root, const char *path,
                       void (*add)(json_t *list, const char *root, const char *entry)) {
    char *whole = fti_cli_format("%s%s", root, path);
    struct dirent **names;
    int count = scandir(whole, &names, NULL, alphasort);
    free(whole);
    for (int i = 0; i < count; i++) {
        char *entry = fti_cli_format("%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.') add(list, root, entry);
        free(entry);
        free(names[i]);
    }
    if (count >= 0) free((void *)names);
}

static char *read_in(const char *root, const char *folder, const char *name) {
    char *path = fti_cli_format("%s/%s", folder, name);
    char *text = read_text(root, path);
    free(path);
    return text;
}

static void add_gpu(json_t *list, json_t *name, json_t *driver) {
    (void)json_array_append_new(
        list, json_pack("{s:o, s:o}", "name", or_null(name), "driver", or_null(driver)));
}

/* The first word of a version line that begins with a digit. */
static json_t *version_word(const char *text) {
    for (const char *word = text + strspn(text, " "); *word && *word != '\n';) {
        size_t size = strcspn(word, " \n");
        if (word[0] >= '0' && word[0] <= '9') return json_stringn(word, size);
        word += size + strspn(word + size, " ");
    }
    return NULL;
}

static void add_nvidia(json_t *list, const char *root, const char *entry) {
    char *information = read_in(root, entry, "information");
    char *version = read_text(root, "/proc/driver/nvidia/version");
    json_t *word = version ? version_word(version) : NULL;
    json_t *driver = word ? json_sprintf("nvidia %s", json_string_value(word))
                          : json_string("nvidia");
    json_decref(word);
    if (information) {
        add_gpu(list, value_of(information, "Model"), driver);
    } else {
        json_decref(driver);
    }
    free(version);
    free(information);
}

static json_t *amd_driver(const char *root) {
    char *version = read_text(root, "/sys/module/amdgpu/version");
    json_t *driver = version ? json_sprintf("amdgpu %s", version) : json_string("amdgpu");
    free(version);
    return driver;
}

/* The graphics target of a node is decimal digits: major, two of minor, two of step;
 * processors are nodes too, with target 0. */
static void add_amd(json_t *list, const char *root, const char *entry) {
    char *properties = read_in(root, entry, "properties");
    char *name = read_in(root, entry, "name");
    json_t *text = properties ? value_of(properties, "gfx_target_version") : NULL;
    long target = text ? strtol(json_string_value(text), NULL, 10) : 0;
    json_decref(text);
    if (target > 0) {
        add_gpu(list,
                json_sprintf("%s gfx%ld%lx%lx", name ? name : "AMD", target / 10000,
                             target / 100 % 100, target % 100),
                amd_driver(root));
    }
    free(name);
    free(properties);
}

/* Those of other drivers that can compute; the two above list their own better. */
static void add_card(json_t *list, const char *root, const char *entry) {
    static const char *const drivers[] = {"i915", "xe", "nouveau"};
    if (!is_numbered(strrchr(entry, '/') + 1, "card")) return;
    char *events = read_in(root, entry, "device/uevent");
    json_t *driver = events ? value_of(events, "DRIVER") : NULL;
    for (size_t i = 0; driver && i < sizeof drivers / sizeof drivers[0]; i++) {
        if (strcmp(json_string_value(driver), drivers[i]) != 0) continue;
        json_t *id = value_of(events, "PCI_ID");
        add_gpu(list, json_sprintf("PCI %s", id ? json_string_value(id) : "device"),
                json_incref(driver));
        json_decref(id);
    }
    json_decref(driver);
    free(events);
}

json_t *fti_bench_gpus(const char *root) {
    json_t *list = json_array();
    each_entry(list, root, "/proc/driver/nvidia/gpus", add_nvidia);
    each_entry(list, root, "/sys/class/kfd/kfd/topology/nodes", add_amd);
    each_entry(list, root, "/sys/class/drm", add_card);
    if (json_array_size(list) > 0) return list;
    json_decref(list);
    return json_null();
}

/* ---- the description ---- */

static const char bandwidth_method[] =
    "streaming read of a buffer that no cache holds, 16-byte loads, best pass";

static json_t *read_bandwidth(void) {
    fti_bench_bandwidth b;
    if (fti_bench_measure_bandwidth(&b, NULL) != FTK_OK) return json_null();
    return json_pack("{s:f, s:f, s:I, s:I, s:s}", "one_thread_gb_s", b.one_thread / GIGA,
                     "all_threads_gb_s", b.all_threads / GIGA, "threads", (json_int_t)b.threads,
                     "buffer_bytes", (json_int_t)b.buffer_bytes, "method", bandwidth_method);
}

static json_t *kernel_name(void) {
    struct utsname name;
    if (uname(&name) != 0) return json_null();
    return json_sprintf("%s %s %s", name.sysname, name.release, name.machine);
}

static json_t *look(bool bandwidth) {
    json_t *m = json_object();
    (void)json_object_set_new(m, "load_average", load_average());
    (void)json_object_set_new(m, "cpu", or_null(value_in("/proc/cpuinfo", "model name")));
    (void)json_object_set_new(m, "cpu_flags", cpu_flags());
    (void)json_object_set_new(m, "cores_online", positive(sysconf(_SC_NPROCESSORS_ONLN)));
    (void)json_object_set_new(m, "cores_allowed", allowed_cores());
    (void)json_object_set_new(m, "cpu_quota", cpu_quota());
    (void)json_object_set_new(m, "threads_allowed", json_integer(fti_cpu_threads_allowed()));
    (void)json_object_set_new(m, "governor",
                              whole_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    (void)json_object_set_new(m, "cache_bytes", bytes_or_null(fti_bench_cache_bytes()));
    (void)json_object_set_new(m, "memory_bytes", bytes_or_null(memory_bytes()));
    (void)json_object_set_new(m, "memory_limit_bytes", memory_limit());
    (void)json_object_set_new(m, "transparent_hugepages", huge_pages());
    (void)json_object_set_new(m, "numa_nodes", numa_nodes());
    (void)json_object_set_new(m, "kernel", kernel_name());
    (void)json_object_set_new(m, "gpus", fti_bench_gpus(""));
    (void)json_object_set_new(m, "read_bandwidth", bandwidth ? read_bandwidth() : json_null());
    return m;
}

static json_t *seen;

void fti_bench_look_at_machine(bool bandwidth) {
    if (!seen) seen = look(bandwidth);
}

json_t *fti_bench_machine(void) {
    fti_bench_look_at_machine(false);
    return json_deep_copy(seen);
}
