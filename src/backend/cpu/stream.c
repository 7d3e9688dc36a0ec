/*
 * stream.c: streams, events, captures and graphs. A graph is a list of commands
 * in the order they were recorded, which is a legal order of all its streams; so
 * events decide only whether a capture is well formed.
 *
 * For that, streams of a capture carry vector clocks: `seen[i]` counts how many
 * commands of the capture's i-th stream are known to come before the stream's
 * next one. Recording an event copies the clock, waiting merges it. At the end
 * the origin must have seen everything.
 *
 * A stream and what takes part in its capture belong to one thread at a time.
 */
#include "backend/cpu/cpu.h"

#include <stdalign.h>

#define MAX_CAPTURE_STREAMS 16u
#define COPY_PIECE          (256u * 1024u)
#define MAX_BESIDE          8u /* products that run at the same time */

typedef struct command {
    alignas(16) unsigned char args[FTK_KERNEL_ARGS_MAX];
    ftk_cpu_kernel function;
    uint64_t items;
    uint64_t grain;
    fti_cpu_reach reach; /* of a product; otherwise empty */
    uint32_t beside;     /* so many of the commands before may run at the same time */
} command;

struct fti_graph {
    command *commands;
    size_t count;
    size_t capacity;
};

typedef struct clock_vector {
    uint64_t seen[MAX_CAPTURE_STREAMS];
} clock_vector;

/* A capture in progress; events may outlive it, so it counts its holders. */
typedef struct capture {
    fti_graph *graph;
    ftk_stream *streams[MAX_CAPTURE_STREAMS]; /* [0]: the origin */
    uint32_t stream_count;
    uint32_t holders;
    bool ended;
    bool out_of_memory;
    const char *illegal; /* first illegal act, NULL while there was none */
} capture;

struct ftk_stream {
    fti_cpu_backend *backend;
    capture *capture; /* NULL: commands run */
    uint32_t index;   /* in the capture */
    clock_vector clock;
    fti_stream_counts counts;
    ftk_error failure; /* the first since the last sync; FTK_OK: none */
};

struct fti_event {
    capture *capture; /* that it was recorded in, or NULL */
    bool recorded;
    clock_vector clock;
};

fti_cpu_backend *fti_cpu_stream_backend(ftk_stream *stream) {
    return stream->backend;
}

/* ---- captures ---- */

static void capture_release(capture *c) {
    if (!c || --c->holders > 0) return;
    fti_cpu_graph_destroy(c->graph);
    fti_free(c);
}

static void mark_illegal(capture *c, const char *what) {
    if (!c->illegal) c->illegal = what;
}

static ftk_status illegal(ftk_stream *stream, ftk_status status, const char *what) {
    if (stream->capture) mark_illegal(stream->capture, what);
    return status;
}

ftk_status fti_cpu_refuse(ftk_stream *stream) {
    return illegal(stream, FTK_E_ARGUMENT, "an operator or copy was called with refused arguments");
}

static bool capture_join(capture *c, ftk_stream *stream) {
    if (c->stream_count == MAX_CAPTURE_STREAMS) return false;
    stream->capture = c;
    stream->index = c->stream_count;
    stream->clock = (clock_vector){{0}};
    c->streams[c->stream_count++] = stream;
    c->holders++;
    return true;
}

static void capture_detach(capture *c) {
    c->ended = true;
    c->holders++;
    for (uint32_t i = 0; i < c->stream_count; i++) {
        if (!c->streams[i]) continue;
        c->streams[i]->capture = NULL;
        capture_release(c);
    }
    capture_release(c);
}

/* All work of all streams comes before what the origin would do next. */
static bool capture_joined(const capture *c) {
    const clock_vector *origin = &c->streams[0]->clock;
    for (uint32_t i = 1; i < c->stream_count; i++)
        if (origin->seen[i] != c->streams[i]->clock.seen[i]) return false;
    return true;
}

static bool graph_reserve(fti_graph *g) {
    if (g->count < g->capacity) return true;
    size_t capacity = g->capacity ? 2 * g->capacity : 64;
    command *grown = fti_realloc(g->commands, capacity, sizeof *grown);
    if (!grown) return false;
    g->commands = grown;
    g->capacity = capacity;
    return true;
}

static bool meet(const fti_cpu_span *a, const fti_cpu_span *b) {
    uintptr_t a_begin = (uintptr_t)a->begin, b_begin = (uintptr_t)b->begin;
    return a->bytes > 0 && b->bytes > 0 && a_begin < b_begin + b->bytes &&
           b_begin < a_begin + a->bytes;
}

/* One of the two writes what the other touches. */
static bool in_order(const fti_cpu_reach *a, const fti_cpu_reach *b) {
    bool found = meet(&a->output, &b->output);
    for (size_t i = 0; i < FTI_COUNT(a->input); i++)
        found = found || meet(&a->output, &b->input[i]) || meet(&b->output, &a->input[i]);
    return found;
}

/* How many of the last commands of a graph may run at the same time as this one. */
static uint32_t count_beside(const fti_graph *g, const command *work) {
    if (g->count == 0 || work->reach.output.bytes == 0) return 0;
    const command *last = &g->commands[g->count - 1];
    if (last->reach.output.bytes == 0 || last->beside + 1 == MAX_BESIDE) return 0;
    for (uint32_t i = 0; i <= last->beside; i++)
        if (in_order(&last[-(ptrdiff_t)i].reach, &work->reach)) return 0;
    return last->beside + 1;
}

static ftk_status record(ftk_stream *stream, const command *work) {
    capture *c = stream->capture;
    if (!graph_reserve(c->graph)) {
        c->out_of_memory = true;
        return FTK_E_DEVICE_TRANSIENT;
    }
    command *added = &c->graph->commands[c->graph->count];
    *added = *work;
    added->beside = count_beside(c->graph, work);
    c->graph->count++;
    stream->clock.seen[stream->index]++;
    return FTK_OK;
}

ftk_status fti_cpu_capture_begin(ftk_stream *stream) {
    if (stream->capture) return illegal(stream, FTK_E_STATE, "capture_begin during a capture");
    capture *c = fti_calloc(1, sizeof *c);
    if (!c) return FTK_E_NO_MEMORY;
    c->graph = fti_calloc(1, sizeof *c->graph);
    if (!c->graph) {
        fti_free(c);
        return FTK_E_NO_MEMORY;
    }
    return capture_join(c, stream) ? FTK_OK : FTK_E_INTERNAL;
}

/* Why the capture gives no graph, FTK_OK if it does. */
static ftk_status capture_verdict(const capture *c, ftk_error *err) {
    if (c->out_of_memory)
        return fti_no_memory(err, c->graph->capacity * 2 * sizeof(command), "a recorded graph");
    if (c->illegal)
        return fti_fail(err, FTK_E_STATE,
                        "cpu backend: the capture is invalid: %s; repeat it without that",
                        c->illegal);
    if (!capture_joined(c))
        return fti_fail(err, FTK_E_STATE,
                        "cpu backend: the capture is invalid: a stream that joined it has work "
                        "that the capturing stream does not wait for; record an event after that "
                        "work and wait for it");
    return FTK_OK;
}

ftk_status fti_cpu_capture_end(ftk_stream *stream, fti_graph **out, ftk_error *err) {
    capture *c = stream->capture;
    if (!c)
        return fti_fail(err, FTK_E_STATE,
                        "cpu backend: capture_end on a stream that is not capturing; call "
                        "capture_begin first");
    if (stream->index != 0) {
        mark_illegal(c, "capture_end on a stream that only joined");
        return fti_fail(err, FTK_E_STATE,
                        "cpu backend: capture_end on a stream that only joined the capture; end "
                        "it on the stream that began it");
    }
    ftk_status status = capture_verdict(c, err);
    if (status == FTK_OK) {
        *out = c->graph;
        c->graph = NULL;
    }
    capture_detach(c);
    return status;
}

/* ---- commands ---- */

static void copy_pieces(const void *args, uint64_t begin, uint64_t end);

static void count(ftk_stream *stream, ftk_cpu_kernel function, uint64_t items) {
    if (function == copy_pieces) {
        stream->counts.copies++;
    } else {
        fti_cpu_count(&stream->counts, function, items);
    }
}

static void execute(ftk_stream *stream, ftk_cpu_kernel function, const void *args, uint64_t items,
                    uint64_t grain) {
    count(stream, function, items);
    fti_pool_run(stream->backend->pool, function, args, items, grain);
}

ftk_status fti_cpu_enqueue_product(ftk_stream *stream, ftk_cpu_kernel function, const void *args,
                                   size_t args_bytes, uint64_t items, uint64_t grain,
                                   const fti_cpu_reach *reach) {
    if (items == 0) return FTK_OK;
    if (!stream->capture) {
        execute(stream, function, args, items, grain);
        return FTK_OK;
    }
    command work = {.function = function, .items = items, .grain = grain, .reach = *reach};
    if (args_bytes > 0) memcpy(work.args, args, args_bytes);
    return record(stream, &work);
}

ftk_status fti_cpu_enqueue(ftk_stream *stream, ftk_cpu_kernel function, const void *args,
                           size_t args_bytes, uint64_t items, uint64_t grain) {
    const fti_cpu_reach nothing = {{NULL, 0}, {{NULL, 0}}};
    return fti_cpu_enqueue_product(stream, function, args, args_bytes, items, grain, &nothing);
}

typedef struct copy_args {
    unsigned char *to;
    const unsigned char *from; /* NULL: zeros */
    uint64_t bytes;
} copy_args;

static void copy_pieces(const void *args, uint64_t begin, uint64_t end) {
    const copy_args *a = args;
    uint64_t first = begin * COPY_PIECE;
    uint64_t last = end * COPY_PIECE < a->bytes ? end * COPY_PIECE : a->bytes;
    if (a->from) {
        memcpy(a->to + first, a->from + first, (size_t)(last - first));
    } else {
        memset(a->to + first, 0, (size_t)(last - first));
    }
}

static ftk_status enqueue_copy(ftk_stream *stream, const copy_args *args) {
    uint64_t pieces = args->bytes / COPY_PIECE + (args->bytes % COPY_PIECE ? 1 : 0);
    return fti_cpu_enqueue(stream, copy_pieces, args, sizeof *args, pieces, 1);
}

ftk_status fti_cpu_copy(ftk_stream *stream, void *to, const void *from, uint64_t bytes) {
    copy_args args = {to, from, bytes};
    if (bytes > 0 && (!to || !from)) return fti_cpu_refuse(stream);
    return enqueue_copy(stream, &args);
}

ftk_status fti_cpu_clear(ftk_stream *stream, void *to, uint64_t bytes) {
    copy_args args = {to, NULL, bytes};
    if (bytes > 0 && !to) return fti_cpu_refuse(stream);
    return enqueue_copy(stream, &args);
}

/* ---- graphs ---- */

/* Commands that run at the same time, each cut as it would be alone. */
typedef struct together {
    const command *first;
    uint64_t chunk[MAX_BESIDE]; /* items of one */
    uint64_t end[MAX_BESIDE];   /* chunks of this command and those before it */
} together;

static void run_chunks(const void *args, uint64_t begin, uint64_t end) {
    const together *t = args;
    uint32_t at = 0;
    for (uint64_t i = begin; i < end; i++) {
        while (i >= t->end[at]) at++;
        const command *work = &t->first[at];
        uint64_t from = (i - (at ? t->end[at - 1] : 0)) * t->chunk[at];
        uint64_t left = work->items - from;
        work->function(work->args, from, from + (left < t->chunk[at] ? left : t->chunk[at]));
    }
}

static void execute_together(ftk_stream *stream, const command *first, uint32_t commands) {
    fti_pool *pool = stream->backend->pool;
    together t = {.first = first};
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < commands; i++) {
        count(stream, first[i].function, first[i].items);
        t.chunk[i] = fti_pool_chunk(pool, first[i].items, first[i].grain);
        t.end[i] = chunks += (first[i].items - 1) / t.chunk[i] + 1;
    }
    stream->counts.beside += commands - 1;
    fti_pool_run_each(pool, run_chunks, &t, chunks);
}

ftk_status fti_cpu_graph_launch(ftk_stream *stream, fti_graph *graph) {
    if (stream->capture) return illegal(stream, FTK_E_STATE, "graph_launch during a capture");
    for (size_t i = 0; i < graph->count;) {
        const command *work = &graph->commands[i];
        uint32_t commands = 1;
        while (i + commands < graph->count && work[commands].beside == commands) commands++;
        if (commands > 1)
            execute_together(stream, work, commands);
        else
            execute(stream, work->function, work->args, work->items, work->grain);
        i += commands;
    }
    stream->counts.replays++;
    return FTK_OK;
}

void fti_cpu_graph_destroy(fti_graph *graph) {
    if (!graph) return;
    fti_free(graph->commands);
    fti_free(graph);
}

uint64_t fti_cpu_graph_nodes(const fti_graph *graph) {
    return graph->count;
}

/* ---- streams ---- */

ftk_status fti_cpu_stream_create(fti_backend *backend, ftk_stream **out, ftk_error *err) {
    ftk_stream *stream = fti_calloc(1, sizeof *stream);
    if (!stream) return fti_no_memory(err, sizeof *stream, "a stream");
    stream->backend = (fti_cpu_backend *)(void *)backend;
    *out = stream;
    return FTK_OK;
}

void fti_cpu_stream_destroy(ftk_stream *stream) {
    if (!stream) return;
    capture *c = stream->capture;
    if (c && stream->index == 0) {
        capture_detach(c);
    } else if (c) {
        mark_illegal(c, "a stream that joined it was destroyed");
        c->streams[stream->index] = NULL;
        capture_release(c);
    }
    fti_free(stream);
}

ftk_status fti_cpu_stream_sync(ftk_stream *stream, ftk_error *err) {
    if (stream->capture) return illegal(stream, FTK_E_STATE, "stream_sync during a capture");
    ftk_status status = stream->failure.status;
    if (status == FTK_OK) return FTK_OK;
    stream->failure.status = FTK_OK;
    return fti_fail(err, status, "%-s", stream->failure.message);
}

void fti_cpu_stream_count(ftk_stream *stream, ftk_cpu_kernel function, uint64_t items) {
    fti_cpu_count(&stream->counts, function, items);
}

void fti_cpu_stream_fail(ftk_stream *stream, const ftk_error *failure) {
    if (stream->failure.status == FTK_OK) stream->failure = *failure;
}

bool fti_cpu_stream_failed(const ftk_stream *stream) {
    return stream->failure.status != FTK_OK;
}

void fti_cpu_stream_counts(const ftk_stream *stream, fti_stream_counts *out) {
    *out = stream->counts;
}

/* ---- events ---- */

ftk_status fti_cpu_event_create(fti_backend *backend, fti_event **out, ftk_error *err) {
    (void)backend;
    fti_event *event = fti_calloc(1, sizeof *event);
    if (!event) return fti_no_memory(err, sizeof *event, "an event");
    *out = event;
    return FTK_OK;
}

void fti_cpu_event_destroy(fti_event *event) {
    if (!event) return;
    capture_release(event->capture);
    fti_free(event);
}

ftk_status fti_cpu_event_record(ftk_stream *stream, fti_event *event) {
    capture *old = event->capture;
    event->recorded = true;
    event->capture = stream->capture;
    event->clock = stream->clock;
    if (event->capture) event->capture->holders++;
    capture_release(old);
    return FTK_OK;
}

static void merge_clock(clock_vector *into, const clock_vector *from) {
    for (uint32_t i = 0; i < MAX_CAPTURE_STREAMS; i++)
        if (from->seen[i] > into->seen[i]) into->seen[i] = from->seen[i];
}

ftk_status fti_cpu_event_wait(ftk_stream *stream, fti_event *event) {
    capture *c = event->capture;
    if (!event->recorded) return FTK_OK;
    if (!c) {
        if (!stream->capture) return FTK_OK;
        return illegal(stream, FTK_E_STATE, "a wait for an event that was recorded outside it");
    }
    if (c->ended) return illegal(stream, FTK_E_STATE, "a wait for an event of an ended capture");
    if (!stream->capture && !capture_join(c, stream)) {
        mark_illegal(c, "more than 16 streams in it");
        return FTK_E_STATE;
    }
    if (stream->capture != c) {
        mark_illegal(c, "a stream of another capture waited for its event");
        return illegal(stream, FTK_E_STATE, "a wait for an event of another capture");
    }
    merge_clock(&stream->clock, &event->clock);
    return FTK_OK;
}
