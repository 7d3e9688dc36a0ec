/* load.c: see load.h. */
#include "load.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

/* ---- the files of a checkpoint ---- */

/* Where "00001-of-00003" begins in the name of a checkpoint's first file; NULL if it is
 * whole. */
static const char *shard_number(const char *path, unsigned *shards) {
    const char *of = strstr(path, "-of-");
    for (const char *next = of; next; next = strstr(next + 1, "-of-")) of = next;
    if (!of || of - path < 5) return NULL;
    const char *number = of - 5;
    for (int i = 0; i < 5; i++)
        if (!isdigit((unsigned char)number[i]) || !isdigit((unsigned char)of[4 + i])) return NULL;
    *shards = (unsigned)strtoul(of + 4, NULL, 10);
    return number;
}

/* Calls `visit` with each file of the checkpoint, open for reading. */
static void each_file(const char *model, void (*visit)(int fd, uint64_t size, void *user),
                      void *user) {
    unsigned shards = 1;
    const char *number = shard_number(model, &shards);
    for (unsigned i = 1; i <= shards; i++) {
        char *path = number
                         ? fti_cli_format("%.*s%05u%s", (int)(number - model), model, i, number + 5)
                         : fti_cli_format("%s", model);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        struct stat info;
        if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
            visit(fd, (uint64_t)info.st_size, user);
        if (fd >= 0) (void)close(fd);
        free(path);
    }
}

static void add_size(int fd, uint64_t size, void *user) {
    (void)fd;
    *(uint64_t *)user += size;
}

uint64_t fti_bench_file_bytes(const char *model) {
    uint64_t bytes = 0;
    each_file(model, add_size, &bytes);
    return bytes;
}

/* ---- page cache ---- */

static void forget(int fd, uint64_t size, void *user) {
    (void)user;
    (void)posix_fadvise(fd, 0, (off_t)size, POSIX_FADV_DONTNEED);
}

typedef struct cached {
    uint64_t pages, resident;
} cached;

static void count_cached(int fd, uint64_t size, void *user) {
    cached *c = user;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t pages = (size_t)((size + page - 1) / page);
    void *map = size ? mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (map == MAP_FAILED) return;
    unsigned char *in_core = fti_cli_alloc(pages, 1);
    if (mincore(map, (size_t)size, in_core) == 0) {
        c->pages += pages;
        for (size_t i = 0; i < pages; i++) c->resident += in_core[i] & 1;
    }
    free(in_core);
    (void)munmap(map, (size_t)size);
}

static int cached_percent(const char *model) {
    cached c = {0};
    each_file(model, count_cached, &c);
    return c.pages ? (int)((100 * c.resident + c.pages - 1) / c.pages) : -1;
}

/* ---- what the kernel counts for this process ---- */

/* The number behind "NAME:" in a file of /proc/self; 0 if there is none. */
static uint64_t counted(const char *file, const char *name) {
    fti_cli_text text = {0};
    uint64_t value = 0;
    if (fti_cli_read_file(file, &text) && text.data) {
        const char *at = strstr(text.data, name);
        if (at) value = strtoull(at + strlen(name), NULL, 10);
    }
    free(text.data);
    return value;
}

uint64_t fti_bench_storage_bytes(void) {
    return counted("/proc/self/io", "\nread_bytes:");
}

/* From here on VmHWM is the peak since now. */
static void reset_peak(void) {
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t written = write(fd, "5", 1);
    (void)written; /* a kernel without it gives the peak since the process began */
    (void)close(fd);
}

uint64_t fti_bench_peak_bytes(void) {
    struct rusage usage;
    uint64_t kib = counted("/proc/self/status", "\nVmHWM:");
    if (kib == 0 && getrusage(RUSAGE_SELF, &usage) == 0) kib = (uint64_t)usage.ru_maxrss;
    return 1024 * kib;
}

/* ---- opening ---- */

static int read_memory(const ftk_engine *engine, fti_bench_load *load) {
    char *text;
    ftk_error err = FTK_ERROR_INIT;
    if (ftk_engine_memory(engine, &text, &err) != FTK_OK) return fti_cli_fail_with(&err);
    json_t *memory = fti_cli_report(text);
    load->copied_bytes = (uint64_t)json_integer_value(json_object_get(memory, "weights_allocated"));
    load->mapped_bytes = (uint64_t)json_integer_value(json_object_get(memory, "weights_mapped"));
    json_decref(memory);
    return 0;
}

int fti_bench_open_timed(const ftk_config *config, const char *model, bool cold,
                         const fti_bench_clock *clock, fti_bench_load *load, ftk_engine **engine) {
    *load = (fti_bench_load){0};
    *engine = NULL;
    if (cold) each_file(model, forget, NULL);
    load->cached_percent = cached_percent(model);
    uint64_t read_before = fti_bench_storage_bytes();
    reset_peak();
    fti_bench_stamp begin = fti_bench_stamp_now(clock);
    int code = fti_cli_open_with(config, model, FTK_OPEN_READY, engine);
    if (code) return code;
    fti_bench_stamp end = fti_bench_stamp_now(clock);
    char text[256];
    const char *fault = fti_bench_clock_fault(&begin, &end, text, sizeof text);
    if (fault) load->fault = fti_cli_format("%s", fault);
    load->seconds = (double)(end.monotonic - begin.monotonic) * 1e-9;
    load->read_bytes = fti_bench_storage_bytes() - read_before;
    return read_memory(*engine, load);
}
