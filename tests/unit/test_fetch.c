/*
 * test_fetch.c: the file tier: every byte is the mapping's whatever the range, its place in
 * memory, the threads, the size of reads and the way past the page cache; what a disk does
 * wrong is an answer for the piece that it happened to, and for no other.
 */
#include "core/fetch.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "loader/scratch.h"
#include "support/gguf_writer.h"

#define SHARDS 3u
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
    const uint64_t ranges[][2] = {{0, 1},         {0, size},           {size - 1, 1},
                                  {size, 0},      {0, 0},              {17, 0},
                                  {PAGE - 1, 2},  {PAGE, PAGE},        {PAGE, size - PAGE},
                                  {2 * PAGE, 1},  {size / PAGE * PAGE, size % PAGE},
                                  {PAGE - 1, 1}};
    for (size_t i = 0; i < FTI_COUNT(ranges) * 6; i++) {
        const uint64_t *r = ranges[i / 6];
        fti_fetch *f = create(c, (fti_fetch_options){.direct = i % 2 ? FTI_OFF : FTI_AUTO,
                                                     .chunk = PAGE,
                                                     .threads = 2});
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
    const fti_fetch_piece wrong[] = {{1, size, 1, NULL},          {1, size - 4, 5, NULL},
                                     {1, UINT64_MAX, 2, NULL},    {1, 2, UINT64_MAX, NULL},
                                     {SHARDS, 0, 1, NULL},        {UINT64_MAX, 0, 1, NULL}};
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
        place before = place_for(0, 3 * PAGE, 2 * PAGE, 0), in = place_for(0, 5 * PAGE, 6 * PAGE, 0),
              behind = place_for(0, 20 * PAGE + 5, 9, 0);
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

int main(void) {
    random_state = 20261201;
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_content), TEST(test_edges),   TEST(test_no_such_range),
        TEST(test_memory),  TEST(test_renamed), TEST(test_shortened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
