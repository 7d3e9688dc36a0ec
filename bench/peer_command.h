/*
 * peer_command.h: somebody else's program, run once: its whole output, how it ended, and
 * the figure that a pattern finds in it. It gets a process group of its own, which is
 * killed as a whole when time runs out or the operator interrupts.
 */
#ifndef FTI_BENCH_PEER_COMMAND_H
#define FTI_BENCH_PEER_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

typedef enum {
    FTI_BENCH_PEER_ENDED,     /* by itself, with `status` as of waitpid */
    FTI_BENCH_PEER_TIMEOUT,   /* killed: the time was up */
    FTI_BENCH_PEER_INTERRUPT, /* killed: stop() said so */
    FTI_BENCH_PEER_TOO_LONG,  /* killed: more output than is kept */
    FTI_BENCH_PEER_NOT_RUN    /* `error` is an errno */
} fti_bench_peer_end;

#define FTI_BENCH_PEER_OUTPUT (16u << 20) /* bytes of output that are kept */

typedef struct fti_bench_peer_run {
    fti_bench_peer_end end;
    int status;
    int error;
    double seconds;
    char *output; /* standard output and error, as they came; NUL-terminated */
    size_t size;
} fti_bench_peer_run;

/* Runs `/bin/sh -c command` with nothing to read, for at most `timeout` seconds. `stop` is
 * asked several times a second and may be NULL. */
void fti_bench_peer_start(const char *command, double timeout, bool (*stop)(void),
                          fti_bench_peer_run *run);
void fti_bench_peer_free(fti_bench_peer_run *run);

/* "exit code 3", "signal 11 (Segmentation fault)"; NULL if the program ended with code 0.
 * In a buffer of the caller. */
const char *fti_bench_peer_trouble(const fti_bench_peer_run *run, double timeout, char *buffer,
                                   size_t size);

/* The last `lines` lines that are not empty, fit for a terminal, indented; free(). */
char *fti_bench_peer_tail(const fti_bench_peer_run *run, unsigned lines);

/* ---- the figure ---- */

typedef struct fti_bench_pattern fti_bench_pattern;

/* NULL if the expression is bad or has no group to take the figure from: then *why says so,
 * to be released with free(). */
fti_bench_pattern *fti_bench_pattern_new(const char *expression, char **why);
void fti_bench_pattern_free(fti_bench_pattern *pattern);

/* The number in the first group of the first match; it must be greater than 0. False:
 * *why, to be released with free(). */
bool fti_bench_pattern_figure(const fti_bench_pattern *pattern, const char *text, size_t size,
                              double *figure, char **why);

#endif
