/*
 * fetch.h: the file tier: runs of bytes of a checkpoint's files to memory, by threads of its
 * own and past the page cache, so that a model larger than memory does not push itself out
 * of it. The files are those that the checkpoint was opened and judged by. Which bytes go
 * where, and when, is the caller's business.
 */
#ifndef FTI_FETCH_H
#define FTI_FETCH_H

#include <sys/types.h>

#include "core/checkpoint.h"
#include "core/config.h"

#define FTI_FETCH_ALIGN       4096u
#define FTI_FETCH_ROOM        2048u /* pieces that have been started and have not ended */
#define FTI_FETCH_THREADS     8u    /* the default; see docs/measurements */
#define FTI_FETCH_MAX_THREADS 64u
#define FTI_FETCH_CHUNK       (UINT64_C(1) << 20) /* the default */
#define FTI_FETCH_MAX_CHUNK   (UINT64_C(64) << 20)

typedef struct fti_fetch fti_fetch;

/* As pread. Tests put their own disk in its place. */
typedef struct fti_fetch_disk {
    ssize_t (*read)(void *user, int descriptor, void *to, size_t bytes, uint64_t offset);
    void *user;
} fti_fetch_disk;

typedef struct fti_fetch_options {
    uint32_t threads;  /* 0: the default */
    fti_switch direct; /* past the page cache; auto: where the file system can */
    uint64_t chunk;    /* bytes of one read, a multiple of FTI_FETCH_ALIGN; 0: the default */
    const fti_fetch_disk *disk; /* NULL: the system's */
} fti_fetch_options;

/* One run of bytes of a shard, to memory. `to` is where the first byte shall lie. If `to` and
 * `offset` agree modulo FTI_FETCH_ALIGN, whole pages are read straight to where they belong:
 * what lies in the page of `to` before it, and in the page of the last byte behind it, is then
 * overwritten, so that no two pieces under way may share a page. Otherwise the bytes go through a
 * buffer, and nothing but the range is written, which costs a copy. */
typedef struct fti_fetch_piece {
    uint64_t shard, offset, bytes;
    void *to;
} fti_fetch_piece;

typedef struct fti_fetch_counts {
    uint64_t pieces;        /* that have ended, failed ones included */
    uint64_t failed;        /* of these */
    uint64_t bytes;         /* that were asked for and have arrived */
    uint64_t read_bytes;    /* that were read for them: whole pages */
    uint64_t bounced_bytes; /* of `bytes`, through a buffer for lack of alignment */
    double busy_seconds;    /* in which at least one read was under way */
    double waited_seconds;  /* in fti_fetch_wait and, for room, in fti_fetch_start, all callers
                               together */
    uint32_t threads;
    uint64_t chunk;
    bool direct;      /* all files are read past the page cache */
    char reason[160]; /* why not; "" if direct */
} fti_fetch_counts;

/* Starts the threads. The checkpoint must stay open until destroy. FTK_E_UNSUPPORTED if
 * `direct` is on and a file cannot be read past the page cache; FTK_E_ARGUMENT,
 * FTK_E_NO_MEMORY, FTK_E_DEVICE_UNAVAILABLE (a thread). */
ftk_status fti_fetch_create(const fti_checkpoint *checkpoint, const fti_fetch_options *options,
                            fti_fetch **out, ftk_error *err) FTI_WARN_UNUSED;
/* Waits for the reads that are under way; pieces that none of them belongs to are dropped.
 * Nobody may be in another call. */
void fti_fetch_destroy(fti_fetch *fetch);

/* Queues a piece and returns its ticket, 1 for the first and growing by one. Waits for nothing
 * but room: the piece FTI_FETCH_ROOM before this one must have ended. Pieces are begun in the
 * order of their tickets and may end in any. Allocates nothing. */
uint64_t fti_fetch_start(fti_fetch *fetch, const fti_fetch_piece *piece);
/* True once the piece has ended, well or not; its bytes may be used when fti_fetch_wait has
 * said that all went well, which then answers at once. Never waits. */
bool fti_fetch_ended(const fti_fetch *fetch, uint64_t ticket);
/* Waits for the end of a piece and says how it went, as often as it is asked. After a failure
 * the memory of the piece holds nothing of use. FTK_E_CKPT_READ (the disk), FTK_E_CKPT_TRUNCATED
 * (the file has become shorter), FTK_E_ARGUMENT (a range or ticket that does not exist). */
ftk_status fti_fetch_wait(fti_fetch *fetch, uint64_t ticket, ftk_error *err) FTI_WARN_UNUSED;

void fti_fetch_get_counts(fti_fetch *fetch, fti_fetch_counts *out);

#endif
