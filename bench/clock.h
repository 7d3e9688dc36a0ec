/*
 * clock.h: the one source of time of everything that is measured, and the check that it
 * ran evenly. Tests put their own clock in its place.
 */
#ifndef FTI_BENCH_CLOCK_H
#define FTI_BENCH_CLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct fti_bench_clock {
    int64_t (*read)(void *user, clockid_t id); /* nanoseconds */
    void *user;
} fti_bench_clock;

extern const fti_bench_clock fti_bench_system_clock;

static inline int64_t fti_bench_now(const fti_bench_clock *clock) {
    return clock->read(clock->user, CLOCK_MONOTONIC);
}

/* Three clocks at one moment: the one that samples are timed with (which may be slewed),
 * one that is never adjusted, and one that goes on while the machine is suspended. */
typedef struct fti_bench_stamp {
    int64_t monotonic, raw, boot;
    int64_t width; /* the readings lie at most so far apart */
} fti_bench_stamp;

fti_bench_stamp fti_bench_stamp_now(const fti_bench_clock *clock);

/* How far the clocks may disagree over a sample: so much of its length (twice what the
 * kernel may slew by), and so much beside it and the widths of the two stamps. */
#define FTI_BENCH_CLOCK_SHARE 1e-3
#define FTI_BENCH_CLOCK_SLACK 50000 /* ns */

/* NULL if time ran evenly from `begin` to `end`, otherwise what it did, in a buffer of the
 * caller. */
const char *fti_bench_clock_fault(const fti_bench_stamp *begin, const fti_bench_stamp *end,
                                  char *buffer, size_t size);

#endif
