/* sample.c: see sample.h. */
#include "sample.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

/* ---- histograms ---- */

static json_t *difference(const json_t *before, const json_t *after) {
    json_t *grown = json_object();
    const char *rows;
    json_t *steps;
    json_object_foreach((json_t *)(uintptr_t)after, rows, steps) {
        json_int_t more = json_integer_value(steps) -
                          json_integer_value(json_object_get(before, rows));
        if (more > 0) (void)json_object_set_new(grown, rows, json_integer(more));
    }
    return grown;
}

void fti_bench_histogram_add(json_t *sum, const json_t *more) {
    const char *rows;
    json_t *steps;
    json_object_foreach((json_t *)(uintptr_t)more, rows, steps) {
        json_int_t have = json_integer_value(json_object_get(sum, rows));
        (void)json_object_set_new(sum, rows, json_integer(have + json_integer_value(steps)));
    }
}

bool fti_bench_histogram_is(const json_t *histogram, size_t rows) {
    char key[24];
    (void)snprintf(key, sizeof key, "%zu", rows);
    return json_object_size(histogram) == 1 && json_object_get(histogram, key) != NULL;
}

static int compare_sizes(const void *a, const void *b) {
    long left = *(const long *)a;
    long right = *(const long *)b;
    return (right > left) - (right < left);
}

char *fti_bench_histogram_text(const json_t *histogram) {
    size_t count = json_object_size(histogram);
    long *sizes = fti_cli_alloc(count + 1, sizeof *sizes);
    fti_cli_text text = {0};
    fti_cli_append(&text, "", 0);
    const char *rows;
    json_t *steps;
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)histogram, rows, steps)
        sizes[n++] = strtol(rows, NULL, 10);
    qsort(sizes, count, sizeof *sizes, compare_sizes);
    for (size_t i = 0; i < count; i++) {
        char key[24];
        (void)snprintf(key, sizeof key, "%ld", sizes[i]);
        json_int_t ran = json_integer_value(json_object_get(histogram, key));
        const char *noun = i > 0 ? "" : ran == 1 ? " step" : " steps";
        const char *separator = i == 0 ? "" : i + 1 == count ? " and " : ", ";
        fti_cli_printf(&text, "%s%" JSON_INTEGER_FORMAT "%s of %ld", separator, ran, noun,
                       sizes[i]);
    }
    if (count == 0) fti_cli_printf(&text, "no steps");
    free(sizes);
    return text.data;
}

/* ---- what a sample says ---- */

void fti_bench_sample_drop(fti_bench_sample *sample, const char *reason) {
    if (reason && !sample->dropped) sample->dropped = fti_cli_format("%s", reason);
}

void fti_bench_sample_void(fti_bench_sample *sample, const char *format, ...) {
    if (sample->fault) return;
    fti_cli_text text = {0};
    char line[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fti_cli_append(&text, line, strlen(line));
    sample->fault = text.data;
}

void fti_bench_sample_free(fti_bench_sample *sample) {
    for (size_t i = 0; i < sample->stream_count; i++) free(sample->streams[i].ids);
    free(sample->streams);
    free(sample->dropped);
    free(sample->fault);
    json_decref(sample->window);
    json_decref(sample->decoded);
    json_decref(sample->rows);
    *sample = (fti_bench_sample){0};
}

static void check_stream(fti_bench_sample *sample, size_t index, uint32_t tokens) {
    const fti_bench_stream *s = &sample->streams[index];
    if (s->status != FTK_OK) {
        fti_bench_sample_void(sample, "request %zu failed: %s", index + 1, s->message);
    } else if (s->count != tokens) {
        fti_bench_sample_void(sample, "a run ended before all tokens were generated: %zu of %u",
                              s->count, tokens);
    } else if (s->hash != s->result.hash) {
        fti_bench_sample_void(sample,
                              "request %zu delivered tokens with hash %016" PRIx64
                              ", but the engine counted %016" PRIx64,
                              index + 1, s->hash, s->result.hash);
    }
}

/* The window must hold steps with one decode row of each request, and nothing else. */
static void check_window(fti_bench_sample *sample) {
    if (sample->window && fti_bench_histogram_is(sample->window, sample->stream_count)) return;
    char *ran = fti_bench_histogram_text(sample->window ? sample->window : sample->decoded);
    fti_bench_sample_void(sample,
                          "asked for steps of %zu, ran as %s%s: see scheduler.max_running and "
                          "--tokens",
                          sample->stream_count, ran,
                          sample->window ? "" : ", never all requests at once");
    free(ran);
}

void fti_bench_sample_check(fti_bench_sample *sample, uint32_t tokens) {
    XXH3_state_t *all = XXH3_createState();
    if (all) (void)XXH3_64bits_reset(all);
    for (size_t i = 0; i < sample->stream_count; i++) {
        fti_bench_stream *s = &sample->streams[i];
        s->hash = XXH3_64bits(s->ids, s->count * sizeof *s->ids);
        if (all) (void)XXH3_64bits_update(all, s->ids, s->count * sizeof *s->ids);
        check_stream(sample, i, tokens);
    }
    sample->hash = all ? XXH3_64bits_digest(all) : 0;
    if (!all) fti_bench_sample_void(sample, "out of memory for a hash");
    (void)XXH3_freeState(all);
    if (tokens > 1) check_window(sample);
}

/* ---- the run ---- */

typedef struct fti_bench_progress {
    size_t started, ended; /* requests with a first token; with their last */
} progress;

/* State of one sample's loop. */
typedef struct run {
    ftk_engine *engine;
    const fti_bench_clock *clock;
    fti_bench_sample *sample;
    progress progress;
    int64_t begin, last; /* readings: before the first step, after the latest */
    int64_t first, all_first, window_begin;
    json_t *stats_window; /* at the begin of the window */
    bool backwards;
} run;

static int on_event(void *user, const ftk_event *event) {
    fti_bench_stream *s = user;
    if (event->type == FTK_EVENT_TOKEN) {
        s->progress->started += s->count == 0;
        if (s->count < s->capacity) s->ids[s->count++] = event->token;
    } else if (event->type == FTK_EVENT_DONE) {
        s->progress->ended++;
        s->done = true;
        s->status = event->status;
        s->result = event->result;
        if (event->message) (void)snprintf(s->message, sizeof s->message, "%s", event->message);
    }
    return fti_cli_interrupted();
}

static void take_time(run *r) {
    int64_t now = fti_bench_now(r->clock);
    r->backwards = r->backwards || now < r->last;
    r->last = now;
    r->sample->clock_reads++;
}

static void note_step(run *r) {
    take_time(r);
    r->sample->steps++;
}

static int read_stats(const ftk_engine *engine, json_t **stats) {
    char *text;
    ftk_error err = FTK_ERROR_INIT;
    if (ftk_engine_stats(engine, &text, &err) != FTK_OK) return fti_cli_fail_with(&err);
    *stats = fti_cli_report(text);
    return 0;
}

static json_t *grown(const json_t *before, const json_t *after, const char *histogram) {
    return difference(json_object_get(before, histogram), json_object_get(after, histogram));
}

/* The counters are read before the clock, so that reading them is not in the window. */
static int open_window(run *r) {
    r->all_first = r->last;
    if (r->progress.ended > 0) return 0;
    int code = read_stats(r->engine, &r->stats_window);
    take_time(r);
    r->window_begin = r->last;
    return code;
}

static int close_window(run *r) {
    json_t *stats = NULL;
    int code = read_stats(r->engine, &stats);
    if (code) return code;
    r->sample->window_seconds = (double)(r->last - r->window_begin) * 1e-9;
    r->sample->window = grown(r->stats_window, stats, "decode_histogram");
    r->sample->window_steps =
        (uint64_t)(json_integer_value(json_object_get(stats, "steps")) -
                   json_integer_value(json_object_get(r->stats_window, "steps")));
    if (json_integer_value(json_object_get(stats, "prompt_rows")) !=
        json_integer_value(json_object_get(r->stats_window, "prompt_rows")))
        fti_bench_sample_void(r->sample, "prompts ran inside the window");
    json_decref(stats);
    json_decref(r->stats_window);
    r->stats_window = NULL;
    return 0;
}

/* Moments that come once in a sample. */
static int note_moments(run *r) {
    const progress *p = &r->progress;
    if (p->started > 0 && r->first == 0) r->first = r->last;
    if (p->started == r->sample->stream_count && r->all_first == 0) return open_window(r);
    if (p->ended > 0 && r->stats_window) return close_window(r);
    return 0;
}

static int run_steps(run *r) {
    while (r->progress.ended < r->sample->stream_count) {
        ftk_error err = FTK_ERROR_INIT;
        uint32_t rows;
        if (ftk_engine_step(r->engine, &rows, &err) != FTK_OK) return fti_cli_fail_with(&err);
        note_step(r);
        if (rows == 0 && r->progress.ended < r->sample->stream_count)
            return fti_cli_fail(FTK_E_INTERNAL,
                                "the engine has nothing to run, but %zu of %zu "
                                "requests have not ended",
                                r->sample->stream_count - r->progress.ended,
                                r->sample->stream_count);
        int code = note_moments(r);
        if (code) return code;
    }
    if (fti_cli_interrupted()) return fti_cli_fail(FTK_E_CANCELLED, "interrupted");
    return 0;
}

static int submit_all(run *r, const fti_bench_prompt *prompts, uint32_t tokens) {
    for (size_t i = 0; i < r->sample->stream_count; i++) {
        fti_bench_stream *s = &r->sample->streams[i];
        s->progress = &r->progress;
        ftk_request request = FTK_REQUEST_INIT;
        request.tokens = prompts[i].ids;
        request.token_count = prompts[i].count;
        request.max_tokens = tokens;
        request.ignore_end = 1;
        request.on_event = on_event;
        request.user = s;
        ftk_error err = FTK_ERROR_INIT;
        uint64_t id;
        if (ftk_submit(r->engine, &request, &id, &err) != FTK_OK) return fti_cli_fail_with(&err);
    }
    return 0;
}

static void prepare(fti_bench_sample *sample, const fti_bench_prompt *prompts, size_t count,
                    uint32_t tokens) {
    sample->streams = fti_cli_alloc(count, sizeof *sample->streams);
    sample->stream_count = count;
    for (size_t i = 0; i < count; i++) {
        sample->streams[i].capacity = tokens;
        sample->streams[i].ids = fti_cli_alloc(tokens, sizeof(int32_t));
        sample->prompt_tokens += prompts[i].count;
    }
}

static void settle(run *r, const fti_bench_stamp *begin, const json_t *before,
                   const json_t *after) {
    fti_bench_sample *sample = r->sample;
    fti_bench_stamp end = fti_bench_stamp_now(r->clock);
    char fault[256];
    fti_bench_sample_drop(sample, fti_bench_clock_fault(begin, &end, fault, sizeof fault));
    if (r->backwards) fti_bench_sample_drop(sample, "the clock stepped backwards between steps");
    if (r->all_first) sample->prefill_seconds = (double)(r->all_first - r->begin) * 1e-9;
    if (r->first) sample->first_seconds = (double)(r->first - r->begin) * 1e-9;
    sample->decoded = grown(before, after, "decode_histogram");
    (void)json_object_del(sample->decoded, "0"); /* steps of prompts alone */
    sample->rows = grown(before, after, "rows_histogram");
    for (size_t i = 0; i < sample->stream_count; i++) {
        sample->prefill_steps += sample->streams[i].result.prefill_steps;
        sample->graph_replays += sample->streams[i].result.graph_replays;
    }
}

int fti_bench_sample_run(ftk_engine *engine, const fti_bench_prompt *prompts, size_t count,
                         uint32_t tokens, const fti_bench_clock *clock, fti_bench_sample *sample) {
    run r = {.engine = engine, .clock = clock, .sample = sample};
    prepare(sample, prompts, count, tokens);
    json_t *before = NULL, *after = NULL;
    int code = read_stats(engine, &before);
    fti_bench_stamp begin = fti_bench_stamp_now(clock);
    r.begin = r.last = begin.monotonic;
    if (code == 0) code = submit_all(&r, prompts, tokens);
    if (code == 0) code = run_steps(&r);
    if (code == 0) code = read_stats(engine, &after);
    if (code == 0) {
        settle(&r, &begin, before, after);
        fti_bench_sample_check(sample, tokens);
    }
    json_decref(r.stats_window);
    json_decref(before);
    json_decref(after);
    return code;
}

/* ---- what measuring costs ---- */

#define COST_STEPS 2000u
#define COST_TRIES 5

double fti_bench_step_cost(const fti_bench_clock *clock, size_t streams) {
    int32_t id = 0;
    progress none = {.started = 1};
    fti_bench_sample sample = {.stream_count = streams + 1}; /* so that no moment comes */
    fti_bench_stream stream = {.ids = &id, .capacity = 1, .count = 1, .progress = &none};
    ftk_event event = FTK_EVENT_INIT;
    event.type = FTK_EVENT_TOKEN;
    double best = 0.0;
    for (int try = 0; try < COST_TRIES; try++) {
        run r = {.clock = clock, .sample = &sample, .first = 1};
        int64_t begin = fti_bench_now(clock);
        r.last = begin;
        for (size_t step = 0; step < COST_STEPS; step++) {
            for (size_t i = 0; i < streams; i++) (void)on_event(&stream, &event);
            note_step(&r);
            (void)note_moments(&r);
        }
        double cost = (double)(fti_bench_now(clock) - begin) * 1e-9 / COST_STEPS;
        if (try == 0 || cost < best) best = cost;
    }
    return best;
}
