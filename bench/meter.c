/* meter.c: see meter.h. */
#include "meter.h"

#include <stdio.h>

#include "cli/output.h"

double fti_bench_seconds_since(const struct timespec *start) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec);
}

void fti_bench_meter_start(fti_bench_meter *meter, const char *what, size_t total) {
    *meter = (fti_bench_meter){.what = what, .total = total};
    (void)clock_gettime(CLOCK_MONOTONIC, &meter->start);
}

void fti_bench_meter_step(fti_bench_meter *meter, const char *part) {
    size_t before = meter->done++;
    if (!fti_cli_interactive()) return;
    char left[32] = "";
    if (before > 0) {
        double each = fti_bench_seconds_since(&meter->start) / (double)before;
        (void)snprintf(left, sizeof left, ", %.0f s left", each * (double)(meter->total - before));
    }
    fti_cli_line_show("%s: run %zu of %zu%s%s%s", meter->what, meter->done, meter->total,
                      part[0] ? ", " : "", part, left);
}

void fti_bench_meter_end(fti_bench_meter *meter) {
    (void)meter;
    fti_cli_line_clear();
}
