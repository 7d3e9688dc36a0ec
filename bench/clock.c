/* clock.c: see clock.h. */
#include "clock.h"

#include <stdio.h>
#include <stdlib.h>

#define NARROW      20000 /* ns: readings as close as this are good enough */
#define STAMP_TRIES 50

static int64_t read_system(void *user, clockid_t id) {
    (void)user;
    struct timespec t;
    (void)clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

const fti_bench_clock fti_bench_system_clock = {read_system, NULL};

static fti_bench_stamp read_all(const fti_bench_clock *clock) {
    fti_bench_stamp stamp = {.monotonic = fti_bench_now(clock)};
    stamp.raw = clock->read(clock->user, CLOCK_MONOTONIC_RAW);
    stamp.boot = clock->read(clock->user, CLOCK_BOOTTIME);
    stamp.width = fti_bench_now(clock) - stamp.monotonic;
    return stamp;
}

/* On a busy machine the thread may lose its processor between two readings: the narrowest
 * of some tries. */
fti_bench_stamp fti_bench_stamp_now(const fti_bench_clock *clock) {
    fti_bench_stamp best = read_all(clock);
    for (int i = 0; i < STAMP_TRIES && best.width > NARROW; i++) {
        fti_bench_stamp next = read_all(clock);
        if (next.width < best.width) best = next;
    }
    return best;
}

static const char *disagreement(const char *name, int64_t passed, int64_t other, int64_t allowed,
                                char *buffer, size_t size) {
    if (llabs(passed - other) <= allowed) return NULL;
    (void)snprintf(buffer, size,
                   "the clock stepped: %.6f s passed by CLOCK_MONOTONIC, %.6f s by %s "
                   "(%.6f s may lie between them)",
                   (double)passed * 1e-9, (double)other * 1e-9, name, (double)allowed * 1e-9);
    return buffer;
}

const char *fti_bench_clock_fault(const fti_bench_stamp *begin, const fti_bench_stamp *end,
                                  char *buffer, size_t size) {
    int64_t passed = end->monotonic - begin->monotonic;
    if (passed <= 0) {
        (void)snprintf(buffer, size, "the clock stepped: CLOCK_MONOTONIC ran %.6f s backwards",
                       (double)-passed * 1e-9);
        return buffer;
    }
    int64_t allowed = (int64_t)((double)passed * FTI_BENCH_CLOCK_SHARE) + FTI_BENCH_CLOCK_SLACK +
                      begin->width + end->width;
    const char *fault = disagreement("CLOCK_MONOTONIC_RAW", passed, end->raw - begin->raw, allowed,
                                     buffer, size);
    if (fault) return fault;
    return disagreement("CLOCK_BOOTTIME", passed, end->boot - begin->boot, allowed, buffer, size);
}
