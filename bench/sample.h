/*
 * sample.h: one run of some requests through the public API, timed. What ran is read from
 * the engine's own counters, never taken from what was asked for.
 *
 * Requests are submitted together and every step is run by the caller. The *window* of a
 * sample reaches from the moment when all requests have their first token to the moment
 * when the first of them ends: in it nothing but decoding should run, one row of each
 * request in each step. One reading of the clock per step is all that measuring adds.
 */
#ifndef FTI_BENCH_SAMPLE_H
#define FTI_BENCH_SAMPLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "freetoken/freetoken.h"

typedef struct fti_bench_prompt {
    int32_t *ids;
    size_t count;
} fti_bench_prompt;

/* One request. ids[] has room for all tokens that are asked for. */
typedef struct fti_bench_stream {
    int32_t *ids;
    size_t count, capacity;
    bool done;
    ftk_status status;
    char message[256];
    ftk_generate_result result; /* as the engine tells it; its times are not used */
    uint64_t hash;              /* XXH3-64 of ids[], filled in at the end of the sample */
    struct fti_bench_progress *progress;
} fti_bench_stream;

typedef struct fti_bench_sample {
    bool warmup;
    char *dropped; /* why this sample does not count (the clock); NULL: it counts */
    char *fault;   /* why the whole series is void; NULL: sound */
    fti_bench_stream *streams;
    size_t stream_count;
    uint64_t prompt_tokens, prefill_steps, graph_replays; /* of all streams */
    uint64_t hash;          /* of the ids of all streams, one after the other */
    double prefill_seconds; /* from submitting to the last stream's first token */
    double first_seconds;   /* from submitting to the first token of all */
    double window_seconds;
    uint64_t window_steps;
    json_t *window;  /* {"4": 126}: steps of the window by decode rows; NULL: no window */
    json_t *decoded; /* the same of the whole sample */
    json_t *rows;    /* steps of the whole sample by rows of any kind */
    uint64_t steps, clock_reads; /* of the whole sample */
    /* Of scenarios that open engines. */
    double open_seconds;
    uint64_t copied_bytes, mapped_bytes, read_bytes, peak_bytes;
    int cached_percent; /* of the file, before opening; -1: not known */
} fti_bench_sample;

/* Runs `count` prompts together, `tokens` tokens each, past end tokens. Exit code, after
 * printing why; a sample that ran but cannot be believed says so in `dropped` or `fault`.
 * The caller frees the sample in either case. */
int fti_bench_sample_run(ftk_engine *engine, const fti_bench_prompt *prompts, size_t count,
                         uint32_t tokens, const fti_bench_clock *clock, fti_bench_sample *sample);

/* Finds out what cannot be believed; the last act of fti_bench_sample_run. Sets `hash` and
 * the streams' from what was delivered. */
void fti_bench_sample_check(fti_bench_sample *sample, uint32_t tokens);

void fti_bench_sample_drop(fti_bench_sample *sample, const char *reason); /* the first stays */
void fti_bench_sample_void(fti_bench_sample *sample, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void fti_bench_sample_free(fti_bench_sample *sample);

/* Seconds that measuring adds to a step of `streams` requests: what the timing loop does
 * between two steps, many times over. */
double fti_bench_step_cost(const fti_bench_clock *clock, size_t streams);

/* "16 steps of 2 and 3 of 1" of a histogram, greatest first; free with free(). */
char *fti_bench_histogram_text(const json_t *histogram);
/* True if all steps, and at least one, had `rows` rows. */
bool fti_bench_histogram_is(const json_t *histogram, size_t rows);
/* Adds the counts of `more` to `sum`. */
void fti_bench_histogram_add(json_t *sum, const json_t *more);

#endif
