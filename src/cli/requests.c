/*
 * requests.c: a file of requests: read twice (checked, then run), a bounded number of them
 * in the engine at a time, and their results written as they end.
 */
#include "cli/requests.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/answer.h"
#include "cli/output.h"
#include "cli/request_line.h"
#include "cli/session.h"
#include "cli/text.h"

#define MOST_HELD     4096 /* requests in memory: queued, running, or ended and not written */
#define SHOW_INTERVAL 0.2  /* seconds between two states on the terminal */

typedef struct record {
    struct record *next;
    struct batch *batch;
    fti_cli_answer answer;
    json_t *id;
    size_t line;
    uint64_t number; /* the engine's */
    double submitted, seconds;
} record;

typedef struct batch {
    const fti_cli_values *values;
    fti_cli_request_defaults defaults;
    ftk_engine *engine;

    FILE *input; /* can be read again from its start */
    const char *name;
    char *text; /* the line at hand, of `size` bytes */
    size_t capacity, size;
    size_t line;  /* its number */
    json_t *seen; /* ids, with the line that has each */

    fti_cli_file file; /* of --output */
    FILE *out;

    record *first, **end; /* requests that are not written, in order of lines */
    size_t held;          /* their number */
    size_t live;          /* of these, what has not ended */
    size_t room;          /* most that may be live */
    bool exhausted;       /* no line is left */
    bool stopping;        /* interrupted, or the results cannot be written */
    bool broken;          /* they cannot, for this reason: */
    int reason;

    size_t total, finished, failed;
    uint64_t prompt_tokens, tokens;
    double begin, shown;
} batch;

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double rate(uint64_t count, double seconds) {
    return seconds > 0.0 ? (double)count / seconds : 0.0;
}

/* ---- the terminal ---- */

static bool may_show(batch *b) {
    double time = now();
    if (!fti_cli_interactive() || time - b->shown < SHOW_INTERVAL) return false;
    b->shown = time;
    return true;
}

static void show_checking(batch *b, size_t done) {
    if (may_show(b)) fti_cli_line_show("checking requests: %zu of %zu", done, b->total);
}

static void show_running(batch *b) {
    if (!may_show(b)) return;
    double seconds = now() - b->begin;
    size_t done = b->finished + b->failed;
    char left[64] = "";
    if (done > 0) {
        unsigned long s = (unsigned long)(seconds / (double)done * (double)(b->total - done));
        (void)snprintf(left, sizeof left, ", %lu:%02lu:%02lu left", s / 3600, s / 60 % 60, s % 60);
    }
    fti_cli_line_show("%zu of %zu requests, %.1f tok/s%s", done, b->total, rate(b->tokens, seconds),
                      left);
}

/* ---- reading lines ---- */

static int cannot_read(const batch *b) {
    return fti_cli_fail(FTK_E_IO, "%s: cannot read: %s", b->name, strerror(errno));
}

/* Pipes and terminals are read once: what they give is kept in a file without a name. */
static int spool(batch *b, FILE *from) {
    char block[65536];
    FILE *to = tmpfile();
    if (!to) return fti_cli_fail(FTK_E_IO, "no temporary file: %s", strerror(errno));
    b->input = to;
    for (size_t got; (got = fread(block, 1, sizeof block, from)) > 0;) {
        if (fwrite(block, 1, got, to) != got) break;
    }
    if (ferror(from)) return cannot_read(b);
    if (fflush(to) == 0 && !ferror(to)) return 0;
    return fti_cli_fail(FTK_E_IO, "temporary file: cannot write: %s", strerror(errno));
}

static int open_input(batch *b) {
    const char *path = b->values->requests;
    struct stat info;
    if (strcmp(path, "-") == 0) {
        b->name = "standard input";
        return spool(b, stdin);
    }
    b->name = path;
    FILE *file = fopen(path, "rbe");
    if (!file || fstat(fileno(file), &info) != 0) {
        int code = cannot_read(b);
        if (file) (void)fclose(file);
        return code;
    }
    if (S_ISREG(info.st_mode)) {
        b->input = file;
        return 0;
    }
    int code = spool(b, file);
    (void)fclose(file);
    return code;
}

static void start_over(batch *b) {
    rewind(b->input);
    b->line = 0;
    (void)json_object_clear(b->seen);
}

/* Takes the next line that is not blank; false at the end, or if reading failed. */
static bool next_line(batch *b) {
    for (;;) {
        ssize_t size = getline(&b->text, &b->capacity, b->input);
        if (size < 0) return false;
        b->line++;
        b->size = (size_t)size;
        if (strspn(b->text, " \t\r\n") < b->size) return true;
    }
}

static int end_of_lines(const batch *b) {
    return feof(b->input) ? 0 : cannot_read(b);
}

/* Puts file and line before a message; of a name that leaves no room for the message only the
 * end. */
static void place(const batch *b, ftk_error *err) {
    size_t size = strlen(b->name), taken = strlen(err->message) + 32;
    size_t room = sizeof err->message > taken + 32 ? sizeof err->message - taken : 32;
    const char *end = size > room ? b->name + size - room : b->name;
    while (((unsigned char)*end & 0xC0U) == 0x80) end++;
    char *message = fti_cli_format("%s%s:%zu: %s", end > b->name ? "..." : "", end, b->line,
                                   err->message);
    (void)snprintf(err->message, sizeof err->message, "%s", message);
    free(message);
}

static bool check_id(batch *b, const json_t *id, ftk_error *err) {
    char *name = json_dumps(id, JSON_ENCODE_ANY);
    const json_t *other = name ? json_object_get(b->seen, name) : NULL;
    if (other) {
        err->status = FTK_E_ARGUMENT;
        (void)snprintf(
            err->message, sizeof err->message,
            "id is %.60s, as in line %" JSON_INTEGER_FORMAT
            ": wanted one that no other request has (its line number, where it has none)",
            name, json_integer_value(other));
    } else if (name) {
        (void)json_object_set_new(b->seen, name, json_integer((json_int_t)b->line));
    }
    free(name);
    return !other;
}

/* The request of the line at hand, and in any case an id. */
static bool read_request(batch *b, fti_cli_request_line *line, ftk_error *err) {
    bool good = fti_cli_request_line_read(b->text, b->size, &b->defaults, line, err);
    if (!line->id) line->id = json_integer((json_int_t)b->line);
    if (good) good = check_id(b, line->id, err);
    if (!good) place(b, err);
    return good;
}

/* ---- checking, before anything runs ---- */

/* What can be seen without the model. */
static int check_lines(batch *b) {
    start_over(b);
    while (next_line(b)) {
        b->total++;
        if (b->values->keep_going) continue;
        fti_cli_request_line line;
        ftk_error err = FTK_ERROR_INIT;
        bool good = read_request(b, &line, &err);
        fti_cli_request_line_free(&line);
        if (!good) return fti_cli_fail_with(&err);
    }
    return end_of_lines(b);
}

static int ignore_event(void *user, const ftk_event *event) {
    (void)user;
    (void)event;
    return 0;
}

/* The engine's own checks are the only complete ones. A request that is cancelled before
 * its first step costs no computation. */
static bool would_run(batch *b, ftk_request *request, ftk_error *err) {
    uint64_t number;
    uint32_t rows;
    request->on_event = ignore_event;
    if (ftk_submit(b->engine, request, &number, err) != FTK_OK) return false;
    return ftk_cancel(b->engine, number, err) == FTK_OK &&
           ftk_engine_step(b->engine, &rows, err) == FTK_OK;
}

static int check_with_engine(batch *b) {
    if (b->values->keep_going) return 0;
    start_over(b);
    for (size_t done = 0; next_line(b); done++) {
        fti_cli_request_line line;
        ftk_error err = FTK_ERROR_INIT;
        if (fti_cli_interrupted()) return fti_cli_fail(FTK_E_CANCELLED, "interrupted");
        bool good = read_request(b, &line, &err);
        if (good) {
            good = would_run(b, &line.request, &err);
            if (!good) place(b, &err);
        }
        fti_cli_request_line_free(&line);
        if (!good) return fti_cli_fail_with(&err);
        show_checking(b, done);
    }
    fti_cli_line_clear();
    return end_of_lines(b);
}

/* ---- results ---- */

static json_t *result_json(const record *r) {
    const ftk_generate_result *g = &r->answer.result;
    json_t *object = json_pack("{s:O}", "id", r->id);
    if (r->answer.error.status != FTK_OK) {
        const char *message = r->answer.error.message;
        json_t *error = json_pack("{s:I, s:s, s:o}", "line", (json_int_t)r->line, "status",
                                  ftk_status_name(r->answer.error.status), "message",
                                  fti_cli_json_text(message, strlen(message)));
        (void)json_object_set_new(object, "error", error);
        return object;
    }
    (void)json_object_update_new(object, fti_cli_answer_json(&r->answer));
    (void)json_object_set_new(object, "completion_tokens", json_integer((json_int_t)g->tokens));
    json_t *stats = json_pack(
        "{s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I}", "seconds", r->seconds, "prefill_seconds",
        g->prefill_seconds, "decode_seconds", g->decode_seconds, "prefill_steps",
        (json_int_t)g->prefill_steps, "decode_steps", (json_int_t)g->decode_steps, "graph_replays",
        (json_int_t)g->graph_replays, "reused_tokens", (json_int_t)r->answer.reused_tokens,
        "preemptions", (json_int_t)r->answer.preemptions);
    (void)json_object_set_new(object, "stats", stats);
    return object;
}

static bool cancelled(const record *r) {
    return r->answer.error.status == FTK_OK && r->answer.result.finish == FTK_FINISH_CANCELLED;
}

static bool flush(const batch *b) {
    return b->out == stdout ? fti_cli_flush() : fflush(b->out) == 0 && !ferror(b->out);
}

/* Requests that were cancelled have no result: what is in the file is finished. */
static void write_result(batch *b, const record *r) {
    if (cancelled(r) || b->broken) return;
    if (b->out == stdout) fti_cli_line_clear();
    fti_cli_write_json(b->out, result_json(r));
    b->broken = !flush(b);
    if (b->broken) b->reason = errno;
}

static void free_record(record *r) {
    fti_cli_answer_free(&r->answer);
    json_decref(r->id);
    free(r);
}

/* Writes what has ended; with --ordered only as far as every line before it has. `all`:
 * nothing more will end, so nothing is waited for, and nothing stays. */
static void write_results(batch *b, bool all) {
    for (record **at = &b->first; *at;) {
        record *r = *at;
        bool ended = r->answer.ended;
        if (!ended && !all && b->values->ordered) return;
        if (!ended && !all) {
            at = &r->next;
            continue;
        }
        if (ended) write_result(b, r);
        *at = r->next;
        if (b->end == &r->next) b->end = at;
        b->held--;
        free_record(r);
    }
}

/* ---- requests in the engine ---- */

static void note_end(batch *b, record *r) {
    r->seconds = now() - r->submitted;
    if (r->answer.error.status != FTK_OK) {
        b->failed++;
    } else if (!cancelled(r)) {
        b->finished++;
        b->prompt_tokens += r->answer.result.prompt_tokens;
    }
}

static int on_event(void *user, const ftk_event *event) {
    record *r = user;
    batch *b = r->batch;
    int stop = fti_cli_answer_event(&r->answer, event);
    if (event->type == FTK_EVENT_TOKEN) b->tokens++;
    if (event->type == FTK_EVENT_DONE) {
        b->live--;
        note_end(b, r);
    }
    return stop;
}

static record *add_record(batch *b, json_t *id) {
    record *r = fti_cli_alloc(1, sizeof *r);
    r->batch = b;
    r->line = b->line;
    r->id = json_incref(id);
    r->submitted = now();
    r->answer.ids = json_array();
    fti_cli_answer_begin(&r->answer);
    *b->end = r;
    b->end = &r->next;
    b->held++;
    return r;
}

static bool submit(batch *b, record *r, ftk_request *request, ftk_error *err) {
    if (request->logprobs) r->answer.tops = json_array();
    request->on_event = on_event;
    request->user = r;
    if (ftk_submit(b->engine, request, &r->number, err) == FTK_OK) {
        b->live++;
        return true;
    }
    place(b, err);
    return false;
}

/* Starts the request of the line at hand. One that cannot run has ended with its error. */
static int start_request(batch *b) {
    fti_cli_request_line line;
    ftk_error err = FTK_ERROR_INIT;
    bool good = read_request(b, &line, &err);
    record *r = add_record(b, line.id);
    if (good) good = submit(b, r, &line.request, &err);
    fti_cli_request_line_free(&line);
    if (good) return 0;
    r->answer.error = err;
    r->answer.ended = true;
    note_end(b, r);
    return b->values->keep_going ? 0 : fti_cli_fail_with(&err);
}

static int fill(batch *b) {
    while (!b->stopping && !b->exhausted && b->live < b->room && b->held < MOST_HELD) {
        b->exhausted = !next_line(b);
        int code = b->exhausted ? end_of_lines(b) : start_request(b);
        if (code) return code;
    }
    return 0;
}

static void stop_if_asked(batch *b) {
    b->stopping = b->broken || fti_cli_interrupted();
    if (!b->stopping) return;
    for (const record *r = b->first; r; r = r->next)
        if (!r->answer.ended) (void)ftk_cancel(b->engine, r->number, NULL);
}

/* A step that fails has ended the requests in it, which say so; the others go on. */
static int run_step(batch *b) {
    ftk_error err = FTK_ERROR_INIT;
    size_t live = b->live;
    uint32_t rows = 0;
    ftk_status status = ftk_engine_step(b->engine, &rows, &err);
    show_running(b);
    if (b->live < live) return 0;
    if (status != FTK_OK) return fti_cli_fail_with(&err);
    if (rows > 0) return 0;
    return fti_cli_fail(FTK_E_INTERNAL, "%zu requests have not ended, but nothing is left to run",
                        live);
}

static int run_all(batch *b) {
    int code = 0;
    start_over(b);
    b->begin = now();
    while (code == 0) {
        stop_if_asked(b);
        code = fill(b);
        write_results(b, false);
        if (code || (b->live == 0 && (b->exhausted || b->stopping))) break;
        if (b->live > 0) code = run_step(b);
    }
    fti_cli_line_clear();
    write_results(b, true);
    return code;
}

/* ---- the end ---- */

typedef ftk_status engine_report(const ftk_engine *engine, char **json, ftk_error *err);

static int report(const batch *b, engine_report *make, json_t **out) {
    ftk_error err = FTK_ERROR_INIT;
    char *json = NULL;
    return fti_cli_reported(make(b->engine, &json, &err), &err, &json, out);
}

/* Steps by the number of requests that decoded in them. */
static int decoded(const batch *b, json_t **histogram) {
    json_t *stats;
    int code = report(b, ftk_engine_stats, &stats);
    if (code) return code;
    *histogram = json_incref(json_object_get(stats, "decode_histogram"));
    json_decref(stats);
    return 0;
}

static void print_figures(const batch *b, double seconds, const json_t *histogram) {
    const char *rows;
    const char *before = "; decode steps:";
    json_t *steps;
    (void)fprintf(stderr,
                  "%s%zu of %zu requests finished, %zu failed, %llu prompt tokens, %llu tokens, "
                  "%.2f s, %.1f tok/s",
                  b->stopping ? "stopped: " : "", b->finished, b->total, b->failed,
                  (unsigned long long)b->prompt_tokens, (unsigned long long)b->tokens, seconds,
                  rate(b->tokens, seconds));
    json_object_foreach((json_t *)(uintptr_t)histogram, rows, steps) {
        (void)fprintf(stderr, "%s %" JSON_INTEGER_FORMAT " of %s", before,
                      json_integer_value(steps), rows);
        before = ",";
    }
    (void)fputc('\n', stderr);
}

static int print_json(const batch *b, double seconds, json_t *histogram) {
    json_t *memory, *provenance;
    int code = report(b, ftk_engine_memory, &memory);
    if (code) return code;
    code = report(b, ftk_engine_provenance, &provenance);
    if (code) {
        json_decref(memory);
        return code;
    }
    fti_cli_print_json(json_pack(
        "{s:{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:{s:O}, s:o, s:o}}", "summary", "requests",
        (json_int_t)b->total, "finished", (json_int_t)b->finished, "failed", (json_int_t)b->failed,
        "prompt_tokens", (json_int_t)b->prompt_tokens, "tokens", (json_int_t)b->tokens, "seconds",
        seconds, "tok_s", rate(b->tokens, seconds), "executed_batch_sizes", "decode", histogram,
        "memory", memory, "provenance", provenance));
    return 0;
}

static int summarise(const batch *b, bool as_json) {
    double seconds = now() - b->begin;
    json_t *histogram;
    int code = decoded(b, &histogram);
    if (code) return code;
    if (as_json)
        code = print_json(b, seconds, histogram);
    else
        print_figures(b, seconds, histogram);
    json_decref(histogram);
    if (code) return code;
    return b->finished == b->total ? 0 : FTI_CLI_EXIT_FAILED;
}

static int cannot_write(const batch *b, int reason) {
    return fti_cli_fail(FTK_E_IO, "%s: cannot write: %s", b->values->output, strerror(reason));
}

/* Whatever ended the run, what has finished is kept. Standard output is looked at when the
 * program ends. */
static int run_and_keep(batch *b, bool as_json) {
    int code = run_all(b);
    if (b->broken) return b->out == stdout ? FTI_CLI_EXIT_FAILED : cannot_write(b, b->reason);
    if (b->file.stream && !fti_cli_file_commit(&b->file)) return cannot_write(b, errno);
    return code ? code : summarise(b, as_json);
}

/* ---- the beginning ---- */

static int open_output(batch *b) {
    b->out = stdout;
    if (!b->values->output) return 0;
    if (!fti_cli_file_begin(&b->file, b->values->output, 0666)) return cannot_write(b, errno);
    b->out = b->file.stream;
    return 0;
}

/* Twice as many requests as run at once are queued, so that one that ends is followed in
 * the next step. */
static int find_room(batch *b) {
    json_t *memory;
    int code = report(b, ftk_engine_memory, &memory);
    if (code) return code;
    json_int_t running = json_integer_value(json_object_get(memory, "requests"));
    b->room = running > 0 ? 2 * (size_t)running : 2;
    json_decref(memory);
    return 0;
}

static int open_engine(batch *b, const fti_cli_call *call) {
    ftk_config *config;
    ftk_error err = FTK_ERROR_INIT;
    int code = fti_cli_load_config(&call->common, &config);
    if (code) return code;
    ftk_status status = FTK_OK;
    if (b->values->batch) {
        char *number = fti_cli_format("%u", b->values->batch);
        status = ftk_config_set(config, "scheduler.max_running", number, &err);
        free(number);
    }
    code = status == FTK_OK
               ? fti_cli_open_with(config, call->arguments[0], FTK_OPEN_READY, &b->engine)
               : fti_cli_fail_with(&err);
    ftk_config_free(config);
    return code;
}

static int run_file(batch *b, const fti_cli_call *call) {
    int code = open_input(b);
    if (code == 0) code = check_lines(b);
    if (code) return code;
    fti_cli_catch_interrupt();
    code = open_output(b);
    if (code == 0) code = open_engine(b, call);
    if (code) return code;
    code = find_room(b);
    if (code == 0) code = check_with_engine(b);
    if (code == 0) code = run_and_keep(b, call->common.json);
    return code;
}

int fti_cli_run_requests(const fti_cli_call *call, const ftk_request *defaults) {
    batch b = {.values = fti_cli_values_of(call),
               .defaults = {*defaults, defaults->sampling},
               .seen = json_object()};
    b.end = &b.first;
    fti_cli_turn_sampling_on(b.values, &b.defaults.sampled);
    int code = run_file(&b, call);
    ftk_engine_close(b.engine);
    fti_cli_file_abandon(&b.file);
    if (b.input) (void)fclose(b.input);
    json_decref(b.seen);
    free(b.text);
    return code;
}
