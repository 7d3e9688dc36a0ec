/* report.h: rows as people and programs read them: a table, JSON or CSV, on standard output
 * and in the file of --output. */
#ifndef FTI_BENCH_REPORT_H
#define FTI_BENCH_REPORT_H

#include "bench.h"
#include "row.h"

/* Prints rows as the line asks, and saves them. One row is one JSON object; several are
 * {"rows": [...]}. The exit code is that of a failed run if a row is void, after an error
 * line that says why; or if the file cannot be written. */
int fti_bench_report(const fti_cli_call *call, const fti_bench_row *rows, size_t count);

/* The same with a JSON object of the caller's (which it keeps) in place of the rows', and
 * with `table` (NULL allowed) called after the rows' tables. */
int fti_bench_report_as(const fti_cli_call *call, const fti_bench_row *rows, size_t count,
                        json_t *json, void (*table)(const void *user), const void *user);

/* A comparison: its rows' tables, then `table`; as CSV the lines of A, of B and of the ratios. */
struct fti_bench_comparison;
int fti_bench_report_comparison(const fti_cli_call *call,
                                const struct fti_bench_comparison *comparison,
                                void (*table)(const void *user));

/* The first again, with `table` in place of the rows' own tables: for many rows that say
 * little each. */
int fti_bench_report_compact(const fti_cli_call *call, const fti_bench_row *rows, size_t count,
                             void (*table)(const fti_bench_row *rows, size_t count));

/* A usage error if the options of output do not fit together; call it before anything is
 * measured. */
int fti_bench_check_output(const fti_cli_call *call);

/* A number with as many digits as matter, in a buffer of the caller. */
typedef struct fti_bench_number {
    char text[32];
} fti_bench_number;
const char *fti_bench_number_text(double value, fti_bench_number *buffer);

#endif
