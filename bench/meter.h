/* meter.h: how far a series of runs has come, on a terminal. */
#ifndef FTI_BENCH_METER_H
#define FTI_BENCH_METER_H

#include <stddef.h>
#include <time.h>

typedef struct fti_bench_meter {
    const char *what;
    size_t done, total;
    struct timespec start;
} fti_bench_meter;

/* Nothing is shown unless standard error is a terminal. */
void fti_bench_meter_start(fti_bench_meter *meter, const char *what, size_t total);
/* Before each run. `part` ("warm-up", "B", ...) may be "". */
void fti_bench_meter_step(fti_bench_meter *meter, const char *part);
void fti_bench_meter_end(fti_bench_meter *meter);

double fti_bench_seconds_since(const struct timespec *start);

#endif
