/*
 * fetch.c: see fetch.h. Pieces lie in a ring, at their ticket modulo its size. Threads cut the
 * oldest piece that has bytes left into chunks and read one each, so that several work on one
 * large piece, or each on a small one. A piece ends with the last of its chunks.
 *
 * A ring's place is free again once its piece has ended, whether or not anybody has asked for
 * it; how a piece failed is therefore kept apart, in a short list of failures.
 */
#include "core/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define ALIGN    ((uint64_t)FTI_FETCH_ALIGN)
#define FAILURES 64u

/* A shard, and how it is read. */
typedef struct source {
    fti_shard shard;
    int descriptor; /* that is read from; -1: `shard.data` is copied */
    bool owned;     /* the descriptor is one of our own, with O_DIRECT */
} source;

typedef struct entry {
    fti_fetch_piece piece;
    uint64_t begin, end; /* of the file, as it is read */
    uint64_t left;       /* chunks that have not ended */
    bool bounce;
    bool failed;
    atomic_ullong ended; /* the last ticket that ended here */
} entry;

/* What one thread reads at a time. */
typedef struct slice {
    entry *entry;
    uint64_t ticket;
    uint64_t begin, end;
    bool skip; /* its piece has failed already */
} slice;

typedef struct failure {
    uint64_t ticket;
    int error; /* errno; 0: fewer bytes than wanted, or no such range */
    bool no_range;
    fti_fetch_piece piece;
    uint64_t offset, found, wanted; /* of the read that failed */
} failure;

typedef struct outcome {
    bool well;
    uint64_t read_bytes;
    failure why; /* unless it went well */
} outcome;

typedef struct lane {
    fti_fetch *fetch;
    pthread_t thread;
    uint8_t *bounce; /* one chunk, aligned; NULL if nothing is read past the page cache */
    void *memory;    /* that it lies in */
} lane;

struct fti_fetch {
    const fti_checkpoint *checkpoint;
    fti_fetch_disk disk;
    source *sources;
    uint64_t source_count;
    uint64_t chunk;
    uint32_t threads, started;
    lane *lanes;
    entry *ring;
    char reason[160];

    pthread_mutex_t lock; /* guards all below, and the entries but for `ended` */
    pthread_cond_t work;
    pthread_cond_t ends;
    bool stop;
    uint64_t next;    /* ticket */
    uint64_t current; /* the oldest ticket with chunks that nobody has taken; `next`: none */
    uint64_t cursor;  /* where its next chunk begins */
    uint32_t reading, idle, waiting;
    int64_t busy_since, busy, waited; /* ns */
    uint64_t pieces, bytes, read_bytes, bounced_bytes;
    failure failures[FAILURES]; /* [failed % FAILURES] is the next one */
    atomic_ullong failed;
    uint64_t forgotten; /* the greatest ticket whose failure has been overwritten */
};

static ssize_t system_read(void *user, int descriptor, void *to, size_t bytes, uint64_t offset) {
    (void)user;
    return pread(descriptor, to, bytes, (off_t)offset);
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static entry *entry_of(const fti_fetch *f, uint64_t ticket) {
    return &f->ring[ticket % FTI_FETCH_ROOM];
}

static bool has_ended(const fti_fetch *f, uint64_t ticket) {
    return atomic_load_explicit(&entry_of(f, ticket)->ended, memory_order_acquire) >= ticket;
}

/* ---- reading ---- */

/* Reads file[begin, end) to `to`. The end of the file may come before `end`, but not before
 * `needed`. */
static void read_pages(const fti_fetch *f, const source *s, uint8_t *to, const slice *c,
                       uint64_t needed, outcome *o) {
    uint64_t at = c->begin;
    int error = 0;
    while (at < needed) {
        ssize_t n = f->disk.read(f->disk.user, s->descriptor, to + (at - c->begin),
                                 (size_t)(c->end - at), at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) error = errno;
        if (n <= 0) break;
        at += (uint64_t)n;
        /* Past the page cache a read ends within a page only where the file does. */
        if (s->owned && at % ALIGN != 0) break;
    }
    o->read_bytes = at - c->begin;
    o->well = at >= needed;
    o->why = (failure){
        .error = error, .offset = c->begin, .found = at - c->begin, .wanted = needed - c->begin};
}

/* Where the bytes of a chunk that belong to its piece begin and end. */
static uint64_t first_of(const slice *c) {
    uint64_t offset = c->entry->piece.offset;
    return c->begin > offset ? c->begin : offset;
}

static uint64_t last_of(const slice *c) {
    uint64_t end = c->entry->piece.offset + c->entry->piece.bytes;
    return c->end < end ? c->end : end;
}

static void read_slice(const lane *own, const slice *c, outcome *o) {
    const fti_fetch *f = own->fetch;
    const entry *e = c->entry;
    const source *s = &f->sources[e->piece.shard];
    slice exact = *c;
    exact.begin = first_of(c);
    exact.end = last_of(c);
    size_t size = (size_t)(exact.end - exact.begin);
    uint8_t *to = (uint8_t *)e->piece.to + (exact.begin - e->piece.offset);
    if (s->descriptor < 0) {
        memcpy(to, s->shard.data + exact.begin, size);
        o->well = true;
        o->read_bytes = size;
    } else if (!s->owned) {
        read_pages(f, s, to, &exact, exact.end, o);
        /* A model that does not fit shall not fill the page cache either. */
        (void)posix_fadvise(s->descriptor, (off_t)c->begin, (off_t)(c->end - c->begin),
                            POSIX_FADV_DONTNEED);
    } else if (!e->bounce) {
        read_pages(f, s, to - (exact.begin - c->begin), c, exact.end, o);
    } else {
        read_pages(f, s, own->bounce, c, exact.end, o);
        if (o->well) memcpy(to, own->bounce + (exact.begin - c->begin), size);
    }
}

/* ---- threads: all of these but `worker` are called with the lock ---- */

static bool take(fti_fetch *f, slice *c) {
    while (!f->stop && f->current == f->next) {
        f->idle++;
        pthread_cond_wait(&f->work, &f->lock);
        f->idle--;
    }
    if (f->stop) return false;
    entry *e = entry_of(f, f->current);
    uint64_t end = e->end - f->cursor > f->chunk ? f->cursor + f->chunk : e->end;
    *c = (slice){e, f->current, f->cursor, end, e->failed};
    f->cursor = end;
    if (end == e->end && ++f->current < f->next) f->cursor = entry_of(f, f->current)->begin;
    if (f->reading++ == 0) f->busy_since = now();
    return true;
}

static void note_failure(fti_fetch *f, const slice *c, failure *why) {
    uint64_t number = atomic_load_explicit(&f->failed, memory_order_relaxed);
    failure *place = &f->failures[number % FAILURES];
    if (place->ticket > f->forgotten) f->forgotten = place->ticket;
    why->ticket = c->ticket;
    why->piece = c->entry->piece;
    *place = *why;
    c->entry->failed = true;
    atomic_store_explicit(&f->failed, number + 1, memory_order_relaxed);
}

static void finish(fti_fetch *f, const slice *c, outcome *o) {
    entry *e = c->entry;
    if (--f->reading == 0) f->busy += now() - f->busy_since;
    if (!o->well && !e->failed) note_failure(f, c, &o->why);
    f->read_bytes += o->read_bytes;
    if (o->well && o->read_bytes > 0) {
        f->bytes += last_of(c) - first_of(c);
        if (e->bounce) f->bounced_bytes += last_of(c) - first_of(c);
    }
    if (--e->left > 0) return;
    f->pieces++;
    atomic_store_explicit(&e->ended, c->ticket, memory_order_release);
    if (f->waiting) pthread_cond_broadcast(&f->ends);
}

static void *worker(void *argument) {
    lane *own = argument;
    fti_fetch *f = own->fetch;
    slice c;
    pthread_setname_np(pthread_self(), "ftk-fetch");
    pthread_mutex_lock(&f->lock);
    while (take(f, &c)) {
        pthread_mutex_unlock(&f->lock);
        outcome o = {.well = true};
        if (c.begin < c.end && !c.skip) read_slice(own, &c, &o);
        if (c.begin == c.end && c.entry->piece.bytes > 0) o = (outcome){.why = {.no_range = true}};
        pthread_mutex_lock(&f->lock);
        finish(f, &c, &o);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- pieces ---- */

/* Plans the reads of a piece. One of no bytes, and one that lies nowhere, have one chunk of
 * nothing, so that they too end in a thread and in their turn. */
static void plan_reads(const fti_fetch *f, entry *e) {
    const fti_fetch_piece *p = &e->piece;
    uint64_t end;
    e->failed = false;
    e->bounce = false;
    e->begin = e->end = 0;
    e->left = 1;
    if (p->bytes == 0 || p->shard >= f->source_count || !fti_add_u64(p->offset, p->bytes, &end) ||
        end > f->sources[p->shard].shard.bytes)
        return;
    /* `end` lies within a file, whose size is no more than INT64_MAX. */
    e->begin = p->offset / ALIGN * ALIGN;
    e->end = (end + ALIGN - 1) / ALIGN * ALIGN;
    e->bounce = f->sources[p->shard].owned && ((uintptr_t)p->to - p->offset) % ALIGN != 0;
    e->left = (e->end - e->begin + f->chunk - 1) / f->chunk;
}

static void wait_for(fti_fetch *f, uint64_t ticket) {
    int64_t since = now();
    f->waiting++;
    while (!has_ended(f, ticket)) pthread_cond_wait(&f->ends, &f->lock);
    f->waiting--;
    f->waited += now() - since;
}

uint64_t fti_fetch_start(fti_fetch *f, const fti_fetch_piece *piece) {
    pthread_mutex_lock(&f->lock);
    /* Others may take the room that was waited for. */
    while (f->next > FTI_FETCH_ROOM && !has_ended(f, f->next - FTI_FETCH_ROOM))
        wait_for(f, f->next - FTI_FETCH_ROOM);
    uint64_t ticket = f->next++;
    entry *e = entry_of(f, ticket);
    e->piece = *piece;
    plan_reads(f, e);
    if (f->current == ticket) f->cursor = e->begin;
    if (f->idle && e->left > 1)
        pthread_cond_broadcast(&f->work);
    else if (f->idle)
        pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
    return ticket;
}

bool fti_fetch_ended(const fti_fetch *f, uint64_t ticket) {
    return has_ended(f, ticket);
}

/* ---- how a piece went ---- */

static ftk_status explain(const fti_fetch *f, const failure *why, ftk_error *err) {
    char buffer[128];
    const fti_fetch_piece *p = &why->piece;
    if (p->shard >= f->source_count)
        return fti_fail(err, FTK_E_ARGUMENT, "%s: shard %" PRIu64 " was asked for, of %" PRIu64,
                        fti_checkpoint_path(f->checkpoint), p->shard, f->source_count);
    const fti_shard *shard = &f->sources[p->shard].shard;
    if (why->no_range)
        return fti_fail(err, FTK_E_ARGUMENT,
                        "%s: %" PRIu64 " bytes at offset %" PRIu64
                        " were asked for, and the file has %" PRIu64,
                        shard->path, p->bytes, p->offset, shard->bytes);
    if (why->error)
        return fti_fail(err, FTK_E_CKPT_READ,
                        "%s: cannot read the checkpoint at offset %" PRIu64 ": %s; found %" PRIu64
                        " bytes, wanted %" PRIu64,
                        shard->path, why->offset, strerror_r(why->error, buffer, sizeof buffer),
                        why->found, why->wanted);
    return fti_fail(err, FTK_E_CKPT_TRUNCATED,
                    "%s: the file ends at offset %" PRIu64 ": found %" PRIu64
                    " bytes at offset %" PRIu64 ", wanted %" PRIu64 "; it had %" PRIu64
                    " when it was opened: something has shortened it since",
                    shard->path, why->offset + why->found, why->found, why->offset, why->wanted,
                    shard->bytes);
}

/* True if `ticket` failed. One whose failure may have been overwritten counts as failed:
 * nobody can say any more that its bytes are good. */
static bool find_failure(const fti_fetch *f, uint64_t ticket, failure *why, bool *known) {
    for (size_t i = 0; i < FAILURES; i++)
        if (f->failures[i].ticket == ticket) {
            *why = f->failures[i];
            *known = true;
            return true;
        }
    *known = false;
    return ticket <= f->forgotten;
}

ftk_status fti_fetch_wait(fti_fetch *f, uint64_t ticket, ftk_error *err) {
    /* A failure is written down before its piece ends. */
    if (ticket > 0 && has_ended(f, ticket) &&
        atomic_load_explicit(&f->failed, memory_order_relaxed) == 0)
        return FTK_OK;
    failure why;
    bool known = true, bad = false;
    pthread_mutex_lock(&f->lock);
    uint64_t next = f->next;
    if (ticket > 0 && ticket < next) {
        if (!has_ended(f, ticket)) wait_for(f, ticket);
        bad = find_failure(f, ticket, &why, &known);
    }
    pthread_mutex_unlock(&f->lock);
    if (ticket == 0 || ticket >= next)
        return fti_fail(err, FTK_E_ARGUMENT,
                        "fti_fetch_wait: ticket %" PRIu64 " was never given, the last is %" PRIu64,
                        ticket, next - 1);
    if (!bad) return FTK_OK;
    if (known) return explain(f, &why, err);
    return fti_fail(err, FTK_E_CKPT_READ,
                    "%s: so many reads have failed that it is not known whether read %" PRIu64
                    " did: its bytes are not used",
                    fti_checkpoint_path(f->checkpoint), ticket);
}

void fti_fetch_get_counts(fti_fetch *f, fti_fetch_counts *out) {
    pthread_mutex_lock(&f->lock);
    int64_t busy = f->busy + (f->reading ? now() - f->busy_since : 0);
    *out = (fti_fetch_counts){.pieces = f->pieces,
                              .failed = atomic_load_explicit(&f->failed, memory_order_relaxed),
                              .bytes = f->bytes,
                              .read_bytes = f->read_bytes,
                              .bounced_bytes = f->bounced_bytes,
                              .busy_seconds = 1e-9 * (double)busy,
                              .waited_seconds = 1e-9 * (double)f->waited,
                              .threads = f->threads,
                              .chunk = f->chunk,
                              .direct = f->reason[0] == 0};
    pthread_mutex_unlock(&f->lock);
    memcpy(out->reason, f->reason, sizeof out->reason);
}

/* ---- files ---- */

/* A second descriptor of the very file that was judged: its path may name another by now. */
static int open_again(int descriptor) {
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    return open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_DIRECT);
}

/* File systems refuse when a file is opened, or only when it is read. */
static const char *open_direct(const fti_fetch *f, source *s, uint8_t *page) {
    if (s->shard.descriptor < 0) return "the checkpoint lies in memory";
    int fd = open_again(s->shard.descriptor);
    if (fd < 0 && errno == EINVAL) return "its file system has no O_DIRECT";
    if (fd < 0) return errno == ENOENT ? "/proc is not mounted" : "it cannot be opened again";
    ssize_t n = f->disk.read(f->disk.user, fd, page, (size_t)ALIGN, 0);
    if (n < 0 && errno == EINVAL) {
        close(fd);
        return "its file system refuses reads with O_DIRECT in pages of 4096 bytes";
    }
    s->descriptor = fd;
    s->owned = true;
    return NULL;
}

static ftk_status open_sources(fti_fetch *f, fti_switch direct, ftk_error *err) {
    uint8_t *page = f->lanes[0].bounce;
    if (direct == FTI_OFF) (void)snprintf(f->reason, sizeof f->reason, "it is switched off");
    for (uint64_t i = 0; i < f->source_count; i++) {
        source *s = &f->sources[i];
        (void)fti_checkpoint_shard(f->checkpoint, i, &s->shard);
        s->descriptor = s->shard.descriptor;
        const char *why = direct == FTI_OFF ? NULL : open_direct(f, s, page);
        if (!why) continue;
        if (direct == FTI_ON)
            return fti_fail(err, FTK_E_UNSUPPORTED,
                            "%s: cannot be read past the page cache: %s; let direct reads be auto",
                            s->shard.path, why);
        if (f->reason[0] == 0) (void)snprintf(f->reason, sizeof f->reason, "%s", why);
    }
    return FTK_OK;
}

/* ---- bringing up and down ---- */

static ftk_status start_threads(fti_fetch *f, ftk_error *err) {
    sigset_t all, old;
    int failed = 0;
    /* The application's signals are for its own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (f->started < f->threads && !failed) {
        lane *own = &f->lanes[f->started];
        failed = pthread_create(&own->thread, NULL, worker, own);
        if (!failed) f->started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!failed) return FTK_OK;
    return fti_fail(err, FTK_E_DEVICE_UNAVAILABLE,
                    "reading the checkpoint: the system refused thread %u of %u (%s); raise the "
                    "limit of processes",
                    f->started + 1, f->threads, strerror(failed));
}

static ftk_status allocate(fti_fetch *f, fti_switch direct, ftk_error *err) {
    f->ring = fti_calloc(FTI_FETCH_ROOM, sizeof *f->ring);
    f->lanes = fti_calloc(f->threads, sizeof *f->lanes);
    f->sources = fti_calloc((size_t)f->source_count, sizeof *f->sources);
    if (!f->ring || !f->lanes || !f->sources)
        return fti_no_memory(err, FTI_FETCH_ROOM * sizeof *f->ring, "reading the checkpoint");
    for (uint64_t i = 0; i < f->source_count; i++) f->sources[i].descriptor = -1;
    for (uint32_t i = 0; i < f->threads; i++) {
        lane *own = &f->lanes[i];
        own->fetch = f;
        if (direct == FTI_OFF) continue;
        own->memory = fti_calloc((size_t)(f->chunk + ALIGN), 1);
        if (!own->memory) return fti_no_memory(err, f->chunk, "reading the checkpoint");
        own->bounce = (uint8_t *)own->memory + (ALIGN - (uintptr_t)own->memory % ALIGN);
    }
    return FTK_OK;
}

ftk_status fti_fetch_create(const fti_checkpoint *checkpoint, const fti_fetch_options *options,
                            fti_fetch **out, ftk_error *err) {
    *out = NULL;
    uint32_t threads = options->threads ? options->threads : FTI_FETCH_THREADS;
    uint64_t chunk = options->chunk ? options->chunk : FTI_FETCH_CHUNK;
    if (threads > FTI_FETCH_MAX_THREADS || chunk % ALIGN != 0 || chunk > FTI_FETCH_MAX_CHUNK)
        return fti_fail(err, FTK_E_ARGUMENT,
                        "reading the checkpoint: %u threads and chunks of %" PRIu64
                        " bytes, wanted at most %u, and a multiple of %u up to %" PRIu64,
                        threads, chunk, FTI_FETCH_MAX_THREADS, FTI_FETCH_ALIGN,
                        FTI_FETCH_MAX_CHUNK);
    fti_fetch *f = fti_calloc(1, sizeof *f);
    if (!f) return fti_no_memory(err, sizeof *f, "reading the checkpoint");
    f->checkpoint = checkpoint;
    f->disk = options->disk ? *options->disk : (fti_fetch_disk){system_read, NULL};
    f->source_count = fti_checkpoint_shard_count(checkpoint);
    f->threads = threads;
    f->chunk = chunk;
    f->next = f->current = 1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->work, NULL);
    pthread_cond_init(&f->ends, NULL);
    ftk_status status = allocate(f, options->direct, err);
    if (status == FTK_OK) status = open_sources(f, options->direct, err);
    if (status == FTK_OK) status = start_threads(f, err);
    if (status == FTK_OK)
        *out = f;
    else
        fti_fetch_destroy(f);
    return status;
}

void fti_fetch_destroy(fti_fetch *f) {
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_broadcast(&f->work);
    pthread_mutex_unlock(&f->lock);
    for (uint32_t i = 0; i < f->started; i++) pthread_join(f->lanes[i].thread, NULL);
    for (uint64_t i = 0; f->sources && i < f->source_count; i++)
        if (f->sources[i].owned) close(f->sources[i].descriptor);
    for (uint32_t i = 0; f->lanes && i < f->threads; i++) fti_free(f->lanes[i].memory);
    pthread_cond_destroy(&f->ends);
    pthread_cond_destroy(&f->work);
    pthread_mutex_destroy(&f->lock);
    fti_free(f->sources);
    fti_free(f->lanes);
    fti_free(f->ring);
    fti_free(f);
}
