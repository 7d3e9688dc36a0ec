/*
 * read.c: the command `read`: how fast the file tier of the library (core/fetch.h) reads a
 * checkpoint: from begin to end, and expert by expert in random order. What it finds is what
 * reading of experts can be held against.
 */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"
#include "clock.h"
#include "core/fetch.h"
#include "load.h"
#include "machine.h"
#include "meter.h"
#include "report.h"

#define PASS_BYTES   (UINT64_C(1) << 30)   /* of one sample, or the whole file */
#define RUN_BYTES    (UINT64_C(4) << 20)   /* of a piece, from begin to end */
#define MEMORY_BYTES (UINT64_C(128) << 20) /* that pieces under way may lie in */
#define MAX_PLACES   512u
#define GIGA         1e9

enum { SEQUENTIAL, EXPERTS, ORDERS };
static const char *const order_names[ORDERS] = {"sequential", "experts"};

/* The pieces of a file in the order in which they are read; the next sample goes on where the
 * last one ended. */
typedef struct order {
    fti_fetch_piece *pieces;
    size_t count, next;
    uint64_t bytes, largest;
} order;

typedef struct reading {
    const fti_bench_values *values;
    const char *path;
    fti_checkpoint *checkpoint;
    fti_fetch *fetch;
    order orders[ORDERS];
    uint8_t *memory;
    size_t samples;
    double *rates[ORDERS]; /* [samples] bytes per second */
    uint64_t sample_bytes[ORDERS];
    uint64_t storage_bytes[ORDERS]; /* that the kernel counts, of all samples */
    uint64_t asked_bytes[ORDERS];
} reading;

/* ---- which pieces ---- */

static void add_piece(order *o, uint64_t shard, uint64_t offset, uint64_t bytes) {
    o->pieces[o->count++] = (fti_fetch_piece){shard, offset, bytes, NULL};
    o->bytes += bytes;
    if (bytes > o->largest) o->largest = bytes;
}

static void list_runs(const fti_checkpoint *c, order *o) {
    uint64_t shards = fti_checkpoint_shard_count(c);
    fti_shard shard;
    o->pieces = fti_cli_alloc((size_t)(fti_checkpoint_file_bytes(c) / RUN_BYTES + shards),
                              sizeof *o->pieces);
    for (uint64_t i = 0; fti_checkpoint_shard(c, i, &shard); i++)
        for (uint64_t at = 0; at < shard.bytes; at += RUN_BYTES)
            add_piece(o, i, at, shard.bytes - at < RUN_BYTES ? shard.bytes - at : RUN_BYTES);
}

static uint64_t experts_of(const fti_tensor *t) {
    return t->dims[2] > 1 ? t->dims[2] : 0;
}

/* Every expert of every tensor that has some, where it lies. */
static void list_experts(const fti_checkpoint *c, order *o) {
    uint64_t count = 0;
    for (size_t i = 0; i < fti_checkpoint_tensor_count(c); i++)
        count += experts_of(fti_checkpoint_tensor(c, i));
    if (count == 0) return;
    o->pieces = fti_cli_alloc((size_t)count, sizeof *o->pieces);
    for (size_t i = 0; i < fti_checkpoint_tensor_count(c); i++) {
        const fti_tensor *t = fti_checkpoint_tensor(c, i);
        for (uint64_t e = 0; e < experts_of(t); e++) {
            uint64_t bytes = t->bytes / t->dims[2];
            add_piece(o, t->shard, t->offset + e * bytes, bytes);
        }
    }
}

/* The same order every time. */
static void shuffle(order *o) {
    uint64_t x = 1;
    for (size_t i = o->count; i > 1; i--) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        size_t k = (size_t)((x >> 33) % i);
        fti_fetch_piece swapped = o->pieces[k];
        o->pieces[k] = o->pieces[i - 1];
        o->pieces[i - 1] = swapped;
    }
}

/* ---- one sample ---- */

static void forget_pages(const fti_checkpoint *c) {
    fti_shard shard;
    for (uint64_t i = 0; fti_checkpoint_shard(c, i, &shard); i++)
        (void)posix_fadvise(shard.descriptor, 0, (off_t)shard.bytes, POSIX_FADV_DONTNEED);
}

/* As many pieces are under way as there is memory for; each lies where it is read straight. */
static ftk_status read_some(reading *r, order *o, uint64_t *bytes, ftk_error *err) {
    uint64_t tickets[MAX_PLACES] = {0};
    size_t place = (size_t)(o->largest / FTI_FETCH_ALIGN + 3) * FTI_FETCH_ALIGN;
    size_t places = (size_t)(MEMORY_BYTES / place), n = 0;
    uint64_t wanted = o->bytes < PASS_BYTES ? o->bytes : PASS_BYTES;
    ftk_status status = FTK_OK;
    if (places > MAX_PLACES) places = MAX_PLACES;
    for (*bytes = 0; *bytes < wanted && status == FTK_OK; n++) {
        fti_fetch_piece piece = o->pieces[o->next];
        size_t k = n % places;
        if (tickets[k]) status = fti_fetch_wait(r->fetch, tickets[k], err);
        piece.to = r->memory + k * place + FTI_FETCH_ALIGN + piece.offset % FTI_FETCH_ALIGN;
        tickets[k] = fti_fetch_start(r->fetch, &piece);
        *bytes += piece.bytes;
        o->next = (o->next + 1) % o->count;
        if (status == FTK_OK && fti_cli_interrupted())
            status = fti_fail(err, FTK_E_CANCELLED, "read: interrupted");
    }
    for (size_t k = 0; k < places; k++) {
        if (!tickets[k]) continue;
        ftk_status ended = fti_fetch_wait(r->fetch, tickets[k], status == FTK_OK ? err : NULL);
        if (status == FTK_OK) status = ended;
    }
    return status;
}

static ftk_status take_sample(reading *r, size_t which, size_t sample, fti_bench_row *row,
                              ftk_error *err) {
    char reason[256];
    uint64_t bytes;
    forget_pages(r->checkpoint);
    uint64_t storage = fti_bench_storage_bytes();
    fti_bench_stamp begin = fti_bench_stamp_now(&fti_bench_system_clock);
    FTI_TRY(read_some(r, &r->orders[which], &bytes, err));
    fti_bench_stamp end = fti_bench_stamp_now(&fti_bench_system_clock);
    const char *fault = fti_bench_clock_fault(&begin, &end, reason, sizeof reason);
    if (fault) fti_bench_row_void(row, "%s", fault);
    r->rates[which][sample] = (double)bytes / (1e-9 * (double)(end.monotonic - begin.monotonic));
    r->storage_bytes[which] += fti_bench_storage_bytes() - storage;
    r->asked_bytes[which] += bytes;
    r->sample_bytes[which] = bytes;
    return FTK_OK;
}

/* The orders take turns, so that what slows the disk slows both. */
static int take_samples(reading *r, fti_bench_row *rows) {
    fti_bench_meter meter;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = FTK_OK;
    fti_bench_meter_start(&meter, "read", r->samples * ORDERS);
    for (size_t i = 0; i < r->samples * ORDERS && status == FTK_OK; i++) {
        size_t which = i % ORDERS;
        if (r->orders[which].count == 0) continue;
        fti_bench_meter_step(&meter, order_names[which]);
        status = take_sample(r, which, i / ORDERS, &rows[which], &err);
    }
    fti_bench_meter_end(&meter);
    return status == FTK_OK ? 0 : fti_cli_fail_with(&err);
}

/* ---- rows ---- */

#define FIGURE "read_gb_s"

static void describe(const reading *r, size_t which, fti_bench_row *row) {
    const order *o = &r->orders[which];
    fti_fetch_counts counts;
    fti_fetch_get_counts(r->fetch, &counts);
    fti_bench_row_set(
        &row->settings,
        json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "order", order_names[which],
                  "model", fti_cli_json_text(r->path, strlen(r->path)), "file_bytes",
                  (json_int_t)fti_checkpoint_file_bytes(r->checkpoint), "shards",
                  (json_int_t)fti_checkpoint_shard_count(r->checkpoint), "pieces",
                  (json_int_t)o->count, "largest_piece_bytes", (json_int_t)o->largest,
                  "sample_bytes", (json_int_t)r->sample_bytes[which], "repeat",
                  (json_int_t)r->values->repeat, "warmup", (json_int_t)r->values->warmup));
    fti_bench_row_set(&row->knobs,
                      json_pack("{s:I, s:I, s:b}", "fetch.threads", (json_int_t)counts.threads,
                                "fetch.chunk", (json_int_t)counts.chunk, "fetch.direct",
                                counts.direct));
    fti_bench_row_set(&row->details,
                      json_pack("{s:o, s:I, s:I}", "why_not_direct",
                                counts.direct ? json_null() : json_string(counts.reason),
                                "asked_bytes", (json_int_t)r->asked_bytes[which], "storage_bytes",
                                (json_int_t)r->storage_bytes[which]));
}

static void fill_row(const reading *r, size_t which, fti_bench_row *row) {
    size_t warmup = r->values->warmup, measured = r->samples - warmup;
    double *values = fti_cli_alloc(measured, sizeof *values);
    json_t *runs = json_array();
    for (size_t i = 0; i < r->samples; i++) {
        double rate = r->rates[which][i] / GIGA;
        if (i >= warmup) values[i - warmup] = rate;
        (void)json_array_append_new(runs,
                                    json_pack("{s:b, s:f}", "warmup", i < warmup, FIGURE, rate));
    }
    fti_bench_row_figure(row, FIGURE, "GB/s", false, values, measured);
    fti_bench_row_set(&row->runs, runs);
    describe(r, which, row);
    fti_bench_row_check(row);
    /* A figure of the disk must come from the disk: one part in twenty may be what somebody
     * else read in the meantime. */
    if (20 * r->storage_bytes[which] < 19 * r->asked_bytes[which])
        fti_bench_row_void(row,
                           "of %" PRIu64 " bytes that were read, storage delivered %" PRIu64
                           ": the others were in memory",
                           r->asked_bytes[which], r->storage_bytes[which]);
    free(values);
}

/* ---- the table ---- */

static json_int_t number(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static void print_row(const fti_bench_row *row) {
    (void)printf("%-12s %12" JSON_INTEGER_FORMAT, fti_cli_member(row->settings, "order"),
                 number(row->settings, "largest_piece_bytes"));
    if (row->void_reason) {
        (void)printf("  void: %s\n", row->void_reason);
        return;
    }
    const fti_bench_figure *f = &row->figures[0];
    fti_bench_statistics s = fti_bench_describe(f->values, f->count);
    (void)printf(" %9.3f %9.3f %9.3f %7.1f %% %7zu\n", s.max, s.median, s.min, 100.0 * s.noise,
                 s.count);
}

static void print_table(const fti_bench_row *rows, size_t count) {
    char buffer[160];
    const fti_bench_row *row = &rows[0];
    const char *why = fti_cli_member(row->details, "why_not_direct");
    char *path = fti_cli_plain(fti_cli_member(row->settings, "model"));
    (void)printf("cause       %s\nlibrary     libfreetoken %s, commit %s\nmachine     %s\n",
                 fti_bench_cause_text(row->cause), row->version, row->commit,
                 fti_cli_member(row->machine, "cpu"));
    (void)printf("file        %s, %.3f GB\n", path,
                 1e-9 * (double)number(row->settings, "file_bytes"));
    (void)printf("read        %s%s, by %" JSON_INTEGER_FORMAT
                 " threads in reads of %" JSON_INTEGER_FORMAT " bytes; samples of %.3f GB\n",
                 why[0] ? "through the page cache: " : "past the page cache", why,
                 number(row->knobs, "fetch.threads"), number(row->knobs, "fetch.chunk"),
                 1e-9 * (double)number(row->settings, "sample_bytes"));
    const char *no_claim = fti_bench_row_no_claim(row, buffer, sizeof buffer);
    if (no_claim && !row->void_reason) (void)printf("no claim    %s\n", no_claim);
    (void)printf("\n%-12s %12s %9s %9s %9s %9s %7s\n", "order", "piece", "best GB/s", "median",
                 "least", "noise", "samples");
    for (size_t i = 0; i < count; i++) print_row(&rows[i]);
    free(path);
}

/* ---- the command ---- */

static int read_options(const fti_cli_call *call, fti_fetch_options *options) {
    const fti_bench_values *v = fti_bench_values_of(call);
    const char *threads = call->common.threads;
    uint64_t count = 0;
    if (threads && strcmp(threads, "auto") != 0 &&
        (!fti_cli_parse_u64(threads, &count) || count == 0 || count > FTI_FETCH_MAX_THREADS))
        return fti_cli_usage("--threads: '%s' is neither auto nor a number from 1 to %u", threads,
                             FTI_FETCH_MAX_THREADS);
    if (v->chunk % FTI_FETCH_ALIGN != 0 || v->chunk > FTI_FETCH_MAX_CHUNK)
        return fti_cli_usage("--chunk: %" PRIu64 " is not a multiple of %u up to %" PRIu64,
                             v->chunk, FTI_FETCH_ALIGN, FTI_FETCH_MAX_CHUNK);
    *options = (fti_fetch_options){.threads = (uint32_t)count, .chunk = v->chunk};
    if (!v->direct || strcmp(v->direct, "auto") == 0) return 0;
    if (strcmp(v->direct, "on") != 0 && strcmp(v->direct, "off") != 0)
        return fti_cli_usage("--direct: '%s' is none of auto, on and off", v->direct);
    options->direct = strcmp(v->direct, "on") == 0 ? FTI_ON : FTI_OFF;
    return 0;
}

static int prepare(reading *r, const fti_fetch_options *options) {
    ftk_error err = FTK_ERROR_INIT;
    if (fti_checkpoint_open(r->path, &r->checkpoint, &err) != FTK_OK ||
        fti_fetch_create(r->checkpoint, options, &r->fetch, &err) != FTK_OK)
        return fti_cli_fail_with(&err);
    list_runs(r->checkpoint, &r->orders[SEQUENTIAL]);
    list_experts(r->checkpoint, &r->orders[EXPERTS]);
    shuffle(&r->orders[EXPERTS]);
    if (r->orders[EXPERTS].largest > MEMORY_BYTES / 4)
        return fti_cli_fail(FTK_E_UNSUPPORTED,
                            "%s: an expert has %" PRIu64 " bytes, at most %" PRIu64
                            " are measured with",
                            r->path, r->orders[EXPERTS].largest, MEMORY_BYTES / 4);
    void *memory = mmap(NULL, (size_t)MEMORY_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return fti_cli_fail(FTK_E_NO_MEMORY, "out of host memory: %" PRIu64 " bytes to read into",
                            MEMORY_BYTES);
    /* As the backend's memory, where slots lie; a disk's requests are shorter in small pages. */
    (void)madvise(memory, (size_t)MEMORY_BYTES, MADV_HUGEPAGE);
    memset(memory, 1, (size_t)MEMORY_BYTES);
    r->memory = memory;
    r->samples = (size_t)r->values->repeat + r->values->warmup;
    for (size_t i = 0; i < ORDERS; i++) r->rates[i] = fti_cli_alloc(r->samples, sizeof(double));
    return 0;
}

static int measure(const fti_cli_call *call, reading *r) {
    /* A checkpoint without experts has no row of them, which would come last. */
    size_t count = r->orders[EXPERTS].count ? ORDERS : ORDERS - 1;
    fti_bench_row rows[ORDERS];
    for (size_t i = 0; i < count; i++) fti_bench_row_init(&rows[i], "read", FTI_BENCH_BACKEND);
    int code = take_samples(r, rows);
    for (size_t i = 0; i < count && code == 0; i++) {
        fill_row(r, i, &rows[i]);
        fti_bench_row_set(&rows[i].machine, fti_bench_machine());
    }
    if (code == 0) code = fti_bench_report_compact(call, rows, count, print_table);
    for (size_t i = 0; i < count; i++) fti_bench_row_free(&rows[i]);
    return code;
}

int fti_bench_read_file(const fti_cli_call *call) {
    reading r = {.values = fti_bench_values_of(call), .path = call->arguments[0]};
    fti_fetch_options options;
    int code = fti_bench_check_output(call);
    if (code == 0) code = read_options(call, &options);
    if (code) return code;
    fti_cli_catch_interrupt();
    fti_bench_look_at_machine(false);
    code = prepare(&r, &options);
    if (code == 0) code = measure(call, &r);
    fti_fetch_destroy(r.fetch);
    fti_checkpoint_close(r.checkpoint);
    if (r.memory) (void)munmap(r.memory, (size_t)MEMORY_BYTES);
    for (size_t i = 0; i < ORDERS; i++) {
        free(r.orders[i].pieces);
        free(r.rates[i]);
    }
    return code;
}
