/*
 * test_fetch.c: the file tier: every byte is the mapping's whatever the range, its place in
 * memory, the threads, the size of reads and the way past the page cache; what a disk does
 * wrong is an answer for the piece that it happened to, and for no other.
 */
#include "core/fetch.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "loader/scratch.h"
#include "support/gguf_writer.h"

#define SHARDS  3u
#define GUARD   0xA5
#define TYPE_I8 24u /* of GGUF: bytes without blocks */

/* ---- files ---- */

static uint32_t random_state;

static uint32_t draw(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

/* A file with one tensor of `bytes` random bytes; of `shards`, if that is more than one. */
static text make_file(const char *name, uint32_t number, uint32_t shards, uint64_t bytes) {
    fti_gguf_writer w = {0};
    text path = shards > 1 ? format("%s/%s-%05u-of-%05u.gguf", scratch, name, number + 1, shards)
                           : in_scratch(name);
    fti_gw_header(&w, 3, 1, shards > 1 ? 4 : 1);
    fti_gw_text(&w, "general.architecture", "toy");
    if (shards > 1) {
        fti_gw_integer(&w, "split.no", FTI_META_U16, number);
        fti_gw_integer(&w, "split.count", FTI_META_U16, shards);
        fti_gw_integer(&w, "split.tensors.count", FTI_META_I32, shards);
    }
    fti_gw_tensor(&w, format("blk.%u.weight", number).s, 1, &bytes, TYPE_I8, 0);
    fti_gw_pad(&w, 32);
    for (uint64_t i = 0; i < bytes; i++) fti_gw_u8(&w, (uint8_t)(draw() >> 11));
    write_file(path.s, w.data, w.size, 0644);
    fti_gw_free(&w);
    return path;
}

static fti_checkpoint *open_ok(const char *path) {
    fti_checkpoint *c;
    ftk_error err = FTK_ERROR_INIT;
    if (fti_checkpoint_open(path, &c, &err) != FTK_OK) fail_msg("%s", err.message);
    return c;
}

static fti_checkpoint *open_new(uint64_t bytes) {
    return open_ok(make_file("one.gguf", 0, 1, bytes).s);
}

static fti_checkpoint *open_split(void) {
    text first = {{0}};
    for (uint32_t i = 0; i < SHARDS; i++) {
        text path = make_file("split", i, SHARDS, 300001 + 70000 * i);
        if (i == 0) first = path;
    }
    return open_ok(first.s);
}

static fti_shard shard_of(const fti_checkpoint *c, uint64_t number) {
    fti_shard shard;
    assert_true(fti_checkpoint_shard(c, number, &shard));
    return shard;
}

/* ---- fetching ---- */

static fti_fetch *create(const fti_checkpoint *c, fti_fetch_options options) {
    fti_fetch *f;
    ftk_error err = FTK_ERROR_INIT;
    if (fti_fetch_create(c, &options, &f, &err) != FTK_OK) fail_msg("%s", err.message);
    return f;
}

static fti_fetch_counts counts_of(fti_fetch *f) {
    fti_fetch_counts counts;
    fti_fetch_get_counts(f, &counts);
    return counts;
}

/* Memory for a piece, with a page of room and a page of guard bytes on either side. */
typedef struct place {
    uint8_t *memory, *data; /* data: page 2 of memory, plus what the alignment asks for */
    size_t size;
    fti_fetch_piece piece;
} place;

#define PAGE ((size_t)FTI_FETCH_ALIGN)

static place place_for(uint64_t shard, uint64_t offset, uint64_t bytes, size_t shift) {
    place p = {.size = 6 * PAGE + ((size_t)bytes + PAGE - 1) / PAGE * PAGE};
    p.memory = aligned_alloc(PAGE, p.size);
    assert_non_null(p.memory);
    memset(p.memory, GUARD, p.size);
    p.data = p.memory + 2 * PAGE + shift;
    p.piece = (fti_fetch_piece){shard, offset, bytes, p.data};
    return p;
}

static bool all_guards(const uint8_t *from, const uint8_t *to) {
    for (; from < to; from++)
        if (*from != GUARD) return false;
    return true;
}

/* The bytes are there, and nothing was written but them, or the pages that they lie in. */
static void check_place(const place *p, const fti_checkpoint *c, bool direct) {
    const fti_shard shard = shard_of(c, p->piece.shard);
    bool straight = direct && ((uintptr_t)p->data - p->piece.offset) % PAGE == 0;
    const uint8_t *first = p->data, *last = p->data + p->piece.bytes;
    assert_memory_equal(p->data, shard.data + p->piece.offset, p->piece.bytes);
    if (straight && p->piece.bytes > 0) {
        first -= (uintptr_t)first % PAGE;
        last += (PAGE - (uintptr_t)last % PAGE) % PAGE;
    }
    assert_true(all_guards(p->memory, first));
    assert_true(all_guards(last, p->memory + p->size));
}

static void wait_ok(fti_fetch *f, uint64_t ticket) {
    ftk_error err = FTK_ERROR_INIT;
    if (fti_fetch_wait(f, ticket, &err) != FTK_OK) fail_msg("%s", err.message);
    assert_true(fti_fetch_ended(f, ticket));
}

static void wait_failed(fti_fetch *f, uint64_t ticket, ftk_status wanted, const char *part) {
    ftk_error err = FTK_ERROR_INIT;
    for (int again = 0; again < 2; again++)
        expect_status(fti_fetch_wait(f, ticket, &err), wanted, &err, part);
    assert_true(fti_fetch_ended(f, ticket));
}

/* ---- content ---- */

#define PIECES 96u

/* Random ranges, a third of them whole pages, half of them where they can be read straight. */
static void fetch_random(const fti_checkpoint *c, fti_fetch *f, bool direct) {
    static place places[PIECES];
    uint64_t tickets[PIECES];
    for (size_t i = 0; i < PIECES; i++) {
        uint64_t shard = draw() % fti_checkpoint_shard_count(c), size = shard_of(c, shard).bytes;
        uint64_t offset = draw() % size, bytes = draw() % (size - offset + 1);
        if (draw() % 3 == 0) offset = offset / PAGE * PAGE;
        if (draw() % 2 == 0) bytes %= 3 * PAGE;
        size_t shift = draw() % 2 == 0 ? (size_t)(offset % PAGE) : draw() % PAGE;
        places[i] = place_for(shard, offset, bytes, shift);
    }
    uint64_t allocations = fti_allocation_count();
    for (size_t i = 0; i < PIECES; i++) tickets[i] = fti_fetch_start(f, &places[i].piece);
    for (size_t i = PIECES; i-- > 0;) wait_ok(f, tickets[i]);
    assert_int_equal(fti_allocation_count(), allocations);
    for (size_t i = 0; i < PIECES; i++) {
        if (i > 0) assert_int_equal(tickets[i], tickets[i - 1] + 1);
        check_place(&places[i], c, direct);
        free(places[i].memory);
    }
}

static void test_content(void **state) {
    (void)state;
    static const uint64_t chunks[] = {PAGE, 5 * PAGE, 0};
    static const uint32_t threads[] = {1, 3, 0};
    fti_checkpoint *checkpoints[] = {open_new(1000003), open_split()};
    for (size_t i = 0; i < FTI_COUNT(checkpoints) * 18; i++) {
        const fti_checkpoint *c = checkpoints[i / 18];
        fti_fetch *f = create(c, (fti_fetch_options){.chunk = chunks[i % 3],
                                                     .threads = threads[i / 3 % 3],
                                                     .direct = i / 9 % 2 ? FTI_OFF : FTI_AUTO});
        fti_fetch_counts counts = counts_of(f);
        if (i == 0 && !counts.direct) print_message("skip: no direct reads: %s\n", counts.reason);
        if (i / 9 % 2) assert_string_equal(counts.reason, "it is switched off");
        for (int round = 0; round < 2; round++) fetch_random(c, f, counts.direct);
        counts = counts_of(f);
        assert_int_equal(counts.pieces, 2 * PIECES);
        assert_int_equal(counts.failed, 0);
        assert_true(counts.read_bytes >= counts.bytes && counts.bytes > counts.bounced_bytes);
        assert_true(counts.busy_seconds > 0.0);
        assert_int_equal(counts.bounced_bytes > 0, counts.direct);
        fti_fetch_destroy(f);
    }
    for (size_t i = 0; i < FTI_COUNT(checkpoints); i++) fti_checkpoint_close(checkpoints[i]);
}

/* A place for every edge of a file: its ends, no bytes, all bytes. */
static void test_edges(void **state) {
    (void)state;
    fti_checkpoint *c = open_new(3 * PAGE + 77);
    uint64_t size = shard_of(c, 0).bytes;
    const uint64_t ranges[][2] = {{0, 1},
                                  {0, size},
                                  {size - 1, 1},
                                  {size, 0},
                                  {0, 0},
                                  {17, 0},
                                  {PAGE - 1, 2},
                                  {PAGE, PAGE},
                                  {PAGE, size - PAGE},
                                  {2 * PAGE, 1},
                                  {size / PAGE * PAGE, size % PAGE},
                                  {PAGE - 1, 1}};
    for (size_t i = 0; i < FTI_COUNT(ranges) * 6; i++) {
        const uint64_t *r = ranges[i / 6];
        fti_fetch *f = create(
            c,
            (fti_fetch_options){.direct = i % 2 ? FTI_OFF : FTI_AUTO, .chunk = PAGE, .threads = 2});
        const size_t shifts[] = {(size_t)(r[0] % PAGE), 0, 1};
        place p = place_for(0, r[0], r[1], shifts[i / 2 % 3]);
        wait_ok(f, fti_fetch_start(f, &p.piece));
        check_place(&p, c, counts_of(f).direct);
        assert_int_equal(counts_of(f).bytes, r[1]);
        free(p.memory);
        fti_fetch_destroy(f);
    }
    fti_checkpoint_close(c);
}

static void test_no_such_range(void **state) {
    (void)state;
    fti_checkpoint *c = open_split();
    uint64_t size = shard_of(c, 1).bytes;
    fti_fetch *f = create(c, (fti_fetch_options){.threads = 2});
    const fti_fetch_piece wrong[] = {{1, size, 1, NULL},       {1, size - 4, 5, NULL},
                                     {1, UINT64_MAX, 2, NULL}, {1, 2, UINT64_MAX, NULL},
                                     {SHARDS, 0, 1, NULL},     {UINT64_MAX, 0, 1, NULL}};
    for (size_t i = 0; i < FTI_COUNT(wrong); i++)
        wait_failed(f, fti_fetch_start(f, &wrong[i]), FTK_E_ARGUMENT,
                    wrong[i].shard == 1 ? "were asked for, and the file has" : "of 3");
    uint64_t last = FTI_COUNT(wrong);
    ftk_error err = FTK_ERROR_INIT;
    expect_status(fti_fetch_wait(f, 0, &err), FTK_E_ARGUMENT, &err, "never given");
    expect_status(fti_fetch_wait(f, last + 1, &err), FTK_E_ARGUMENT, &err, "the last is 6");
    assert_false(fti_fetch_ended(f, last + 1));
    assert_int_equal(counts_of(f).failed, last);
    place p = place_for(1, 5, size - 5, 0);
    wait_ok(f, fti_fetch_start(f, &p.piece));
    check_place(&p, c, counts_of(f).direct);
    free(p.memory);
    fti_fetch_destroy(f);
    fti_checkpoint_close(c);
}

/* A checkpoint in memory has no file. */
static void test_memory(void **state) {
    (void)state;
    size_t size;
    fti_checkpoint *c;
    ftk_error err = FTK_ERROR_INIT;
    uint8_t *data = read_file(make_file("memory.gguf", 0, 1, 200003).s, &size);
    assert_int_equal(fti_checkpoint_from_memory(data, size, "memory", &c, &err), FTK_OK);
    fti_fetch *f = create(c, (fti_fetch_options){.chunk = PAGE});
    assert_string_equal(counts_of(f).reason, "the checkpoint lies in memory");
    fetch_random(c, f, false);
    fti_fetch_destroy(f);
    f = NULL;
    fti_fetch_options options = {.direct = FTI_ON};
    expect_status(fti_fetch_create(c, &options, &f, &err), FTK_E_UNSUPPORTED, &err,
                  "memory: cannot be read past the page cache: the checkpoint lies in memory");
    assert_null(f);
    fti_checkpoint_close(c);
    free(data);
}

/* The file that was judged is read, whatever has its name by now. */
static void test_renamed(void **state) {
    (void)state;
    fti_checkpoint *c = open_new(100000);
    text other = make_file("other.gguf", 0, 1, 100000);
    assert_int_equal(rename(other.s, in_scratch("one.gguf").s), 0);
    for (int off = 0; off < 2; off++) {
        fti_fetch *f = create(c, (fti_fetch_options){.direct = off ? FTI_OFF : FTI_AUTO});
        fetch_random(c, f, counts_of(f).direct);
        fti_fetch_destroy(f);
    }
    fti_checkpoint_close(c);
}

/* Somebody shortens the file: an answer, where the mapping would raise SIGBUS. */
static void test_shortened(void **state) {
    (void)state;
    for (int off = 0; off < 2; off++) {
        fti_checkpoint *c = open_new(40 * PAGE);
        fti_fetch *f = create(
            c, (fti_fetch_options){.direct = off ? FTI_OFF : FTI_AUTO, .chunk = 4 * PAGE});
        place before = place_for(0, 3 * PAGE, 2 * PAGE, 0),
              in = place_for(0, 5 * PAGE, 6 * PAGE, 0), behind = place_for(0, 20 * PAGE + 5, 9, 0);
        memcpy(before.memory, shard_of(c, 0).data + 3 * PAGE, 2 * PAGE);
        assert_int_equal(truncate(in_scratch("one.gguf").s, 10 * (off_t)PAGE + 100), 0);
        wait_ok(f, fti_fetch_start(f, &before.piece));
        assert_memory_equal(before.data, before.memory, 2 * PAGE);
        wait_failed(f, fti_fetch_start(f, &in.piece), FTK_E_CKPT_TRUNCATED,
                    "the file ends at offset 41060: found 4196 bytes at offset 36864, wanted 8192");
        wait_failed(f, fti_fetch_start(f, &behind.piece), FTK_E_CKPT_TRUNCATED, "found 0 bytes");
        free(before.memory);
        free(in.memory);
        free(behind.memory);
        fti_fetch_destroy(f);
        fti_checkpoint_close(c);
    }
}

/* The page cache is passed by: what is read by a fetch is not in it afterwards. */
static void test_page_cache(void **state) {
    (void)state;
    for (int off = 0; off < 2; off++) {
        fti_checkpoint *c = open_new(256 * PAGE);
        const fti_shard shard = shard_of(c, 0);
        const size_t pages = (size_t)(shard.bytes / PAGE);
        unsigned char in_core[300];
        size_t before = 0, after = 0;
        void *map = (void *)(uintptr_t)shard.data;
        assert_int_equal(fsync(shard.descriptor), 0);
        assert_int_equal(madvise(map, shard.bytes, MADV_DONTNEED), 0); /* mapped pages stay */
        assert_int_equal(posix_fadvise(shard.descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
        assert_int_equal(mincore(map, shard.bytes, in_core), 0);
        for (size_t i = 0; i < pages; i++) before += in_core[i] & 1u;
        fti_fetch *f = create(c, (fti_fetch_options){.direct = off ? FTI_OFF : FTI_AUTO});
        place p = place_for(0, 0, pages * PAGE, 0);
        wait_ok(f, fti_fetch_start(f, &p.piece));
        assert_int_equal(mincore(map, shard.bytes, in_core), 0);
        for (size_t i = 0; i < pages; i++) after += in_core[i] & 1u;
        if (before > pages / 4)
            print_message("skip: the file system of /tmp keeps its pages\n");
        else
            assert_in_range(after, 0, before);
        check_place(&p, c, counts_of(f).direct);
        free(p.memory);
        fti_fetch_destroy(f);
        fti_checkpoint_close(c);
    }
}

/* ---- many callers ---- */

#define CALLERS 4u
#define ROUNDS  1500u

typedef struct caller {
    pthread_t thread;
    fti_fetch *fetch;
    const fti_checkpoint *checkpoint;
    uint32_t seed, wrong;
} caller;

/* Keeps some pieces in the queue, so that all of them together fill it again and again. */
static void *call_often(void *argument) {
    enum { HELD = 700 };
    caller *own = argument;
    static _Thread_local uint8_t bytes[HELD][64];
    static _Thread_local fti_fetch_piece pieces[HELD];
    static _Thread_local uint64_t tickets[HELD];
    uint32_t x = own->seed;
    for (size_t i = 0; i < ROUNDS + HELD; i++) {
        size_t k = i % HELD;
        if (i >= HELD) {
            fti_shard shard = shard_of(own->checkpoint, pieces[k].shard);
            if (fti_fetch_wait(own->fetch, tickets[k], NULL) != FTK_OK ||
                !fti_fetch_ended(own->fetch, tickets[k]) ||
                memcmp(bytes[k], shard.data + pieces[k].offset, pieces[k].bytes) != 0)
                own->wrong++;
        }
        if (i >= ROUNDS) continue;
        x = x * 1664525u + 1013904223u;
        pieces[k] = (fti_fetch_piece){x % SHARDS, (x >> 8) % 300000, (x >> 3) % 65, bytes[k]};
        /* Pages around it are not the caller's: it must not be read straight. */
        if (((uintptr_t)pieces[k].to - pieces[k].offset) % PAGE == 0) pieces[k].offset++;
        tickets[k] = fti_fetch_start(own->fetch, &pieces[k]);
    }
    return NULL;
}

static void test_many_callers(void **state) {
    (void)state;
    fti_checkpoint *c = open_split();
    fti_fetch *f = create(c, (fti_fetch_options){.threads = 3, .chunk = PAGE});
    caller callers[CALLERS];
    assert_true(CALLERS * 700 > FTI_FETCH_ROOM);
    for (uint32_t i = 0; i < CALLERS; i++) {
        callers[i] = (caller){.fetch = f, .checkpoint = c, .seed = i * 77 + 5};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    }
    for (uint32_t i = 0; i < CALLERS; i++) {
        assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
        assert_int_equal(callers[i].wrong, 0);
    }
    fti_fetch_counts counts = counts_of(f);
    assert_int_equal(counts.pieces, CALLERS * ROUNDS);
    assert_int_equal(counts.failed, 0);
    fti_fetch_destroy(f);
    fti_checkpoint_close(c);
}

/* ---- a disk that misbehaves ---- */

typedef struct bad_disk {
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint64_t from, to;  /* where it is bad */
    int error;          /* there, instead of bytes; -1: end of file, 0: none */
    size_t shortest;    /* greatest count of bytes at a time, 0: any */
    unsigned interrupt; /* of so many calls one is interrupted, 0: none */
    uint64_t held;      /* reads that begin at or behind it, and at or before `held_to`, wait */
    uint64_t held_to;
    unsigned holding, calls;
} bad_disk;

static ssize_t bad_read(void *user, int descriptor, void *to, size_t bytes, uint64_t offset) {
    bad_disk *d = user;
    pthread_mutex_lock(&d->lock);
    d->holding++;
    pthread_cond_broadcast(&d->change);
    while (offset >= d->held && offset <= d->held_to) pthread_cond_wait(&d->change, &d->lock);
    d->holding--;
    bool interrupted = d->interrupt && ++d->calls % d->interrupt == 0;
    bool bad = d->error && offset < d->to && offset + bytes > d->from;
    int error = interrupted ? EINTR : d->error;
    if (d->shortest && bytes > d->shortest) bytes = d->shortest;
    pthread_mutex_unlock(&d->lock);
    if (interrupted || (bad && error > 0)) {
        errno = error;
        return -1;
    }
    return bad ? 0 : pread(descriptor, to, bytes, (off_t)offset);
}

static bad_disk good_disk(void) {
    bad_disk d = {.held = 1, .held_to = 0};
    pthread_mutex_init(&d.lock, NULL);
    pthread_cond_init(&d.change, NULL);
    return d;
}

static void hold(bad_disk *d, uint64_t from, uint64_t to) {
    pthread_mutex_lock(&d->lock);
    d->held = from;
    d->held_to = to;
    pthread_cond_broadcast(&d->change);
    pthread_mutex_unlock(&d->lock);
}

static void wait_until_held(bad_disk *d, unsigned reads) {
    pthread_mutex_lock(&d->lock);
    while (d->holding < reads) pthread_cond_wait(&d->change, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

/* Reads that come in parts, or are interrupted, are gone on with. */
static void test_parts(void **state) {
    (void)state;
    fti_checkpoint *c = open_new(500009);
    const size_t shortest[] = {PAGE, 2 * PAGE, 0, 1000, 1};
    for (size_t i = 0; i < FTI_COUNT(shortest); i++) {
        bad_disk d = good_disk();
        const fti_fetch_disk disk = {bad_read, &d};
        /* Past the page cache a part is whole pages. */
        bool off = shortest[i] % PAGE != 0;
        d.shortest = shortest[i];
        d.interrupt = 3;
        fti_fetch *f = create(c, (fti_fetch_options){.direct = off ? FTI_OFF : FTI_AUTO,
                                                     .threads = 2,
                                                     .chunk = 8 * PAGE,
                                                     .disk = &disk});
        if (shortest[i] != 1) fetch_random(c, f, counts_of(f).direct);
        place p = place_for(0, 4 * PAGE + 1, 3 * PAGE, 1);
        wait_ok(f, fti_fetch_start(f, &p.piece));
        check_place(&p, c, counts_of(f).direct);
        assert_true(d.calls > 3);
        free(p.memory);
        fti_fetch_destroy(f);
    }
    fti_checkpoint_close(c);
}

/* What goes wrong with one piece is told of that one, and no other suffers. */
static void test_errors(void **state) {
    (void)state;
    static const struct {
        int error;
        ftk_status status;
        const char *part;
    } cases[] = {{EIO, FTK_E_CKPT_READ,
                  "one.gguf: cannot read the checkpoint at offset 40960: Input/output error; "
                  "found 0 bytes, wanted 8192"},
                 {ENOMEM, FTK_E_CKPT_READ, "Cannot allocate memory"},
                 {EINVAL, FTK_E_CKPT_READ, "Invalid argument"},
                 {-1, FTK_E_CKPT_TRUNCATED, "the file ends at offset 40960: found 0 bytes"}};
    fti_checkpoint *c = open_new(64 * PAGE);
    for (size_t i = 0; i < FTI_COUNT(cases) * 4; i++) {
        bad_disk d = good_disk();
        const fti_fetch_disk disk = {bad_read, &d};
        fti_fetch *f = create(c, (fti_fetch_options){.direct = i % 2 ? FTI_OFF : FTI_AUTO,
                                                     .threads = 1 + (uint32_t)(i / 2 % 2) * 3,
                                                     .chunk = 2 * PAGE,
                                                     .disk = &disk});
        d.error = cases[i / 4].error;
        d.from = 11 * PAGE;
        d.to = 12 * PAGE;
        place good[2] = {place_for(0, 2 * PAGE, 8 * PAGE, 0), place_for(0, 12 * PAGE, 5 * PAGE, 0)};
        place bad = place_for(0, 4 * PAGE, 20 * PAGE, i / 2 % 2);
        uint64_t first = fti_fetch_start(f, &good[0].piece);
        uint64_t middle = fti_fetch_start(f, &bad.piece);
        uint64_t last = fti_fetch_start(f, &good[1].piece);
        wait_ok(f, last);
        wait_failed(f, middle, cases[i / 4].status, cases[i / 4].part);
        wait_ok(f, first);
        for (int k = 0; k < 2; k++) {
            check_place(&good[k], c, counts_of(f).direct);
            free(good[k].memory);
        }
        free(bad.memory);
        fti_fetch_counts counts = counts_of(f);
        assert_int_equal(counts.failed, 1);
        assert_int_equal(counts.pieces, 3);
        fti_fetch_destroy(f);
    }
    fti_checkpoint_close(c);
}

/* After more failures than are kept, an old piece is never called good without proof. */
static void test_many_failures(void **state) {
    (void)state;
    fti_checkpoint *c = open_new(64 * PAGE);
    bad_disk d = good_disk();
    const fti_fetch_disk disk = {bad_read, &d};
    fti_fetch *f = create(c, (fti_fetch_options){.threads = 1, .disk = &disk});
    place p = place_for(0, 0, PAGE, 1);
    d.error = EIO;
    d.to = 64 * PAGE;
    for (uint64_t i = 1; i <= 100; i++) {
        if (i == 50) d.error = 0;
        assert_int_equal(fti_fetch_start(f, &p.piece), i);
        if (i == 50)
            wait_ok(f, i);
        else
            wait_failed(f, i, FTK_E_CKPT_READ, "Input/output error");
        d.error = EIO;
    }
    wait_failed(f, 1, FTK_E_CKPT_READ, "not known whether read 1 did");
    wait_failed(f, 35, FTK_E_CKPT_READ, "not known whether");
    wait_failed(f, 36, FTK_E_CKPT_READ, "Input/output error");
    wait_ok(f, 50);
    assert_int_equal(counts_of(f).failed, 99);
    d.error = 0;
    wait_ok(f, fti_fetch_start(f, &p.piece));
    free(p.memory);
    fti_fetch_destroy(f);
    fti_checkpoint_close(c);
}

/* A file system that takes O_DIRECT and then refuses to read. */
static void test_no_direct(void **state) {
    (void)state;
    fti_checkpoint *c = open_new(64 * PAGE);
    bad_disk d = good_disk();
    const fti_fetch_disk disk = {bad_read, &d};
    d.error = EINVAL;
    d.to = UINT64_MAX;
    fti_fetch *f = create(c, (fti_fetch_options){.disk = &disk});
    assert_false(counts_of(f).direct);
    assert_non_null(strstr(counts_of(f).reason, "O_DIRECT"));
    d.error = 0;
    fetch_random(c, f, false);
    fti_fetch_destroy(f);
    d.error = EINVAL;
    fti_fetch_options on = {.direct = FTI_ON, .disk = &disk};
    ftk_error err = FTK_ERROR_INIT;
    size_t descriptors = open_descriptors();
    expect_status(fti_fetch_create(c, &on, &f, &err), FTK_E_UNSUPPORTED, &err,
                  "one.gguf: cannot be read past the page cache: its file system");
    assert_null(f);
    assert_int_equal(open_descriptors(), descriptors);
    fti_checkpoint_close(c);
}

/* ---- order, room and the end ---- */

static void sleep_a_little(void) {
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
}

/* A piece that is late holds up nobody, and is not called ended before it is. */
static void test_out_of_order(void **state) {
    (void)state;
    fti_checkpoint *c = open_new(64 * PAGE);
    bad_disk d = good_disk();
    const fti_fetch_disk disk = {bad_read, &d};
    fti_fetch *f = create(c, (fti_fetch_options){.threads = 2, .chunk = 2 * PAGE, .disk = &disk});
    place late = place_for(0, 10 * PAGE, 6 * PAGE, 0), next = place_for(0, 30 * PAGE, 9 * PAGE, 0);
    hold(&d, 12 * PAGE, 13 * PAGE); /* the second of its three reads */
    uint64_t first = fti_fetch_start(f, &late.piece);
    wait_until_held(&d, 1);
    sleep_a_little();
    uint64_t second = fti_fetch_start(f, &next.piece);
    wait_ok(f, second);
    double busy = counts_of(f).busy_seconds;
    check_place(&next, c, counts_of(f).direct);
    assert_false(fti_fetch_ended(f, first));
    assert_true(all_guards(late.data + 2 * PAGE, late.data + 4 * PAGE));
    assert_int_equal(counts_of(f).pieces, 1);
    hold(&d, 1, 0);
    wait_ok(f, first);
    check_place(&late, c, counts_of(f).direct);
    assert_true(busy >= 0.03); /* the late read was under way while we slept */
    free(late.memory);
    free(next.memory);
    fti_fetch_destroy(f);
    fti_checkpoint_close(c);
}

typedef struct filler {
    fti_fetch *fetch;
    uint8_t *to;
    atomic_uint started;
} filler;

static void *fill(void *argument) {
    filler *own = argument;
    for (uint64_t i = 0; i < FTI_FETCH_ROOM + 1; i++) {
        /* A byte of its own for each, by the buffer: no page is written as a whole. */
        fti_fetch_piece piece = {0, 3 * PAGE + ((uintptr_t)own->to + i + 1) % PAGE, 1, own->to + i};
        (void)fti_fetch_start(own->fetch, &piece);
        atomic_fetch_add(&own->started, 1);
    }
    return NULL;
}

/* The queue has room for so many, and whoever comes next waits for the oldest. */
static void test_room(void **state) {
    (void)state;
    fti_checkpoint *c = open_new(64 * PAGE);
    bad_disk d = good_disk();
    const fti_fetch_disk disk = {bad_read, &d};
    fti_fetch *f = create(c, (fti_fetch_options){.threads = 2, .disk = &disk});
    place p = place_for(0, 0, FTI_FETCH_ROOM + 1, 0);
    filler own = {.fetch = f, .to = p.data};
    pthread_t thread;
    hold(&d, 0, UINT64_MAX);
    assert_int_equal(pthread_create(&thread, NULL, fill, &own), 0);
    while (atomic_load(&own.started) < FTI_FETCH_ROOM) sleep_a_little();
    sleep_a_little();
    assert_int_equal(atomic_load(&own.started), FTI_FETCH_ROOM);
    hold(&d, 1, 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    wait_ok(f, FTI_FETCH_ROOM + 1);
    assert_true(counts_of(f).waited_seconds >= 0.03);
    fti_fetch_destroy(f);
    free(p.memory);
    fti_checkpoint_close(c);
}

static void *let_go(void *argument) {
    sleep_a_little();
    hold(argument, 1, 0);
    return NULL;
}

/* Destroy waits for what is under way and begins nothing more. */
static void test_destroy(void **state) {
    (void)state;
    fti_checkpoint *c = open_new(64 * PAGE);
    size_t descriptors = open_descriptors();
    for (int round = 0; round < 4; round++) {
        bad_disk d = good_disk();
        const fti_fetch_disk disk = {bad_read, &d};
        fti_fetch *f = create(c, (fti_fetch_options){.threads = 2, .chunk = PAGE, .disk = &disk});
        place p[6];
        pthread_t thread;
        hold(&d, 0, UINT64_MAX);
        for (size_t i = 0; i < FTI_COUNT(p); i++) {
            p[i] = place_for(0, 3 * PAGE, PAGE, 0);
            (void)fti_fetch_start(f, &p[i].piece);
        }
        wait_until_held(&d, 2);
        assert_int_equal(pthread_create(&thread, NULL, let_go, &d), 0);
        fti_fetch_destroy(f);
        assert_int_equal(pthread_join(thread, NULL), 0);
        for (size_t i = 0; i < FTI_COUNT(p); i++) {
            if (i < 2)
                check_place(&p[i], c, true);
            else
                assert_true(all_guards(p[i].memory, p[i].memory + p[i].size));
            free(p[i].memory);
        }
    }
    fti_fetch *idle = create(c, (fti_fetch_options){0});
    fti_fetch_destroy(idle);
    fti_fetch_destroy(NULL);
    assert_int_equal(open_descriptors(), descriptors);
    fti_checkpoint_close(c);
}

/* ---- what the system refuses ---- */

static int refuse_allocation = -1; /* the call that fails, from 0; below 0: none */
static int refuse_thread = -1;

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size) {
    if (refuse_allocation >= 0 && refuse_allocation-- == 0) return NULL;
    return __real_calloc(count, size);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument) {
    if (refuse_thread >= 0 && refuse_thread-- == 0) return EAGAIN;
    return __real_pthread_create(thread, attributes, start, argument);
}

static void test_refused(void **state) {
    (void)state;
    fti_checkpoint *c = open_new(64 * PAGE);
    const fti_fetch_options options = {.threads = 3};
    size_t descriptors = open_descriptors();
    fti_fetch *f;
    ftk_error err = FTK_ERROR_INIT;
    for (int i = 0; i < 7; i++) { /* itself, ring, lanes, sources and three buffers */
        refuse_allocation = i;
        expect_status(fti_fetch_create(c, &options, &f, &err), FTK_E_NO_MEMORY, &err,
                      "reading the checkpoint");
        assert_null(f);
        assert_int_equal(open_descriptors(), descriptors);
    }
    refuse_allocation = -1;
    for (int i = 0; i < 3; i++) {
        refuse_thread = i;
        expect_status(fti_fetch_create(c, &options, &f, &err), FTK_E_DEVICE_UNAVAILABLE, &err,
                      format("refused thread %d of 3", i + 1).s);
        assert_null(f);
        assert_int_equal(open_descriptors(), descriptors);
    }
    refuse_thread = -1;
    const fti_fetch_options wrong[] = {{.threads = FTI_FETCH_MAX_THREADS + 1},
                                       {.chunk = PAGE / 2},
                                       {.chunk = PAGE + 512},
                                       {.chunk = FTI_FETCH_MAX_CHUNK + PAGE}};
    for (size_t i = 0; i < FTI_COUNT(wrong); i++)
        expect_status(fti_fetch_create(c, &wrong[i], &f, &err), FTK_E_ARGUMENT, &err, "at most");
    fti_checkpoint_close(c);
}

/* Every thread of its own is named, and takes none of the application's signals. */
static void test_threads(void **state) {
    (void)state;
    fti_checkpoint *c = open_new(64 * PAGE);
    fti_fetch *f = create(c, (fti_fetch_options){.threads = 3});
    place p = place_for(0, 0, PAGE, 1);
    for (int i = 0; i < 50; i++) wait_ok(f, fti_fetch_start(f, &p.piece));
    size_t found = 0;
    for (int tries = 0; found < 3 && tries < 100; tries++) {
        DIR *folder = opendir("/proc/self/task");
        assert_non_null(folder);
        found = 0;
        for (struct dirent *e; (e = readdir(folder));) {
            char status[4096] = "";
            FILE *file = fopen(format("/proc/self/task/%s/status", e->d_name).s, "re");
            if (!file) continue;
            status[fread(status, 1, sizeof status - 1, file)] = 0;
            assert_int_equal(fclose(file), 0);
            if (!strstr(status, "Name:\tftk-fetch\n")) continue;
            const char *blocked = strstr(status, "SigBlk:\t");
            assert_non_null(blocked);
            uint64_t mask = strtoull(blocked + 8, NULL, 16);
            assert_true(mask >> (SIGINT - 1) & 1 && mask >> (SIGTERM - 1) & 1 &&
                        mask >> (SIGUSR1 - 1) & 1);
            found++;
        }
        assert_int_equal(closedir(folder), 0);
        if (found < 3) sleep_a_little();
    }
    assert_int_equal(found, 3);
    free(p.memory);
    fti_fetch_destroy(f);
    fti_checkpoint_close(c);
}

int main(void) {
    random_state = 20261201;
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_content),      TEST(test_edges),         TEST(test_no_such_range),
        TEST(test_memory),       TEST(test_renamed),       TEST(test_shortened),
        TEST(test_page_cache),   TEST(test_many_callers),  TEST(test_parts),
        TEST(test_errors),       TEST(test_many_failures), TEST(test_no_direct),
        TEST(test_out_of_order), TEST(test_room),          TEST(test_destroy),
        TEST(test_refused),      TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
