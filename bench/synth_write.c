/* synth_write.c: see synth_write.h. */
#include "synth_write.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/output.h"

#define PIECE_BYTES (4u << 20) /* that one thread makes and writes at a time */
#define PAGE_BYTES  4096u
#define MAX_THREADS 64u

typedef struct writing {
    const fti_synth_job *job;
    int fd;
    bool regular;
    bool direct;                /* past the page cache, in whole pages */
    atomic_uint_least64_t next; /* piece */
    atomic_uint_least64_t done; /* bytes */
    atomic_int error;           /* errno of the first failure, ECANCELED if stopped */
} writing;

static ftk_status fail(ftk_error *err, ftk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static ftk_status fail(ftk_error *err, ftk_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    err->status = status;
    (void)vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    return status;
}

static uint64_t bytes_to_write(const fti_synth_job *job) {
    return job->sparse ? job->plan->header.size : job->plan->file_bytes;
}

/* ---- pieces ---- */

static void note_error(writing *w, int error) {
    int none = 0;
    (void)atomic_compare_exchange_strong(&w->error, &none, error);
}

/* 0, or an errno. */
static int write_at(int fd, const uint8_t *data, size_t size, uint64_t offset) {
    while (size > 0) {
        ssize_t n = pwrite(fd, data, size, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        data += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* False when nothing is left to do, or when the work has failed. */
static bool write_piece(writing *w, uint8_t *buffer) {
    uint64_t total = bytes_to_write(w->job), offset = atomic_fetch_add(&w->next, 1) * PIECE_BYTES;
    if (offset >= total || atomic_load(&w->error)) return false;
    size_t size = total - offset < PIECE_BYTES ? (size_t)(total - offset) : PIECE_BYTES;
    size_t padded = w->direct ? (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES : size;
    fti_synth_plan_read(w->job->plan, offset, size, buffer);
    memset(buffer + size, 0, padded - size);
    int error = write_at(w->fd, buffer, padded, offset);
    if (error) note_error(w, error);
    (void)atomic_fetch_add(&w->done, size);
    return error == 0;
}

static void *write_pieces(void *argument) {
    writing *w = argument;
    uint8_t *buffer = aligned_alloc(PAGE_BYTES, PIECE_BYTES);
    if (!buffer) note_error(w, ENOMEM);
    while (buffer && write_piece(w, buffer)) continue;
    free(buffer);
    return NULL;
}

/* The calling thread works too, so that a thread that cannot be started is no failure. */
static void write_own_pieces(writing *w) {
    const fti_synth_job *job = w->job;
    uint64_t total = bytes_to_write(job);
    uint8_t *buffer = aligned_alloc(PAGE_BYTES, PIECE_BYTES);
    if (!buffer) note_error(w, ENOMEM);
    while (buffer && write_piece(w, buffer))
        if (job->progress && !job->progress(job->user, atomic_load(&w->done), total))
            note_error(w, ECANCELED);
    free(buffer);
}

static void write_all(writing *w) {
    pthread_t threads[MAX_THREADS];
    long wanted = w->job->threads ? (long)w->job->threads : sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t started = 0;
    while (started + 1 < wanted && started < MAX_THREADS &&
           pthread_create(&threads[started], NULL, write_pieces, w) == 0)
        started++;
    write_own_pieces(w);
    for (uint32_t i = 0; i < started; i++) (void)pthread_join(threads[i], NULL);
}

/* ---- room ---- */

#define LEAST_LEFT    (UINT64_C(1) << 30) /* bytes, for everybody else who writes there */
#define LEAST_PERCENT 2u                  /* of the file system */

static fti_synth_room room_on_disk(int fd) {
    struct statvfs info;
    if (fstatvfs(fd, &info) != 0) return (fti_synth_room){UINT64_MAX, 0};
    return (fti_synth_room){(uint64_t)info.f_bavail * info.f_frsize,
                            (uint64_t)info.f_blocks * info.f_frsize};
}

static ftk_status check_room(const fti_synth_job *job, int fd, ftk_error *err) {
    fti_cli_size have, want, left;
    fti_synth_room disk = job->room ? job->room(fd) : room_on_disk(fd);
    uint64_t room = disk.free, share = disk.whole / 100 * LEAST_PERCENT;
    uint64_t size = bytes_to_write(job);
    uint64_t reserve = job->sparse ? 0 : share > LEAST_LEFT ? share : LEAST_LEFT;
    if (size <= room && room - size >= reserve) return FTK_OK;
    if (size <= room)
        return fail(err, FTK_E_DOES_NOT_FIT,
                    "%s: the disk has %s free, and a file of %s would leave less than the %s that "
                    "are kept for others; choose another place, a smaller kind, or --sparse for a "
                    "file of zeros",
                    job->path, fti_cli_size_text(room, &have), fti_cli_size_text(size, &want),
                    fti_cli_size_text(reserve, &left));
    return fail(err, FTK_E_DOES_NOT_FIT,
                "%s: the disk has %s free, wanted %s; choose another place%s", job->path,
                fti_cli_size_text(room, &have), fti_cli_size_text(size, &want),
                job->sparse ? "" : ", a smaller kind, or --sparse for a file of zeros");
}

/* What is written once and read much later need not push other files out of memory. Where
 * the file system cannot do without the page cache, it is used. */
static bool go_direct(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

/* Gives the file its size, and its blocks where the file system can do that, so that it
 * cannot run out of them half-way. 0, or an errno. */
static int reserve(const writing *w) {
    off_t size = (off_t)w->job->plan->file_bytes;
    if (!w->job->sparse) {
        if (fallocate(w->fd, 0, 0, size) == 0) return 0;
        if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
    }
    return ftruncate(w->fd, size) == 0 ? 0 : errno;
}

/* ---- the whole ---- */

static ftk_status fill_file(writing *w, ftk_error *err) {
    struct stat info;
    const fti_synth_job *job = w->job;
    w->regular = fstat(w->fd, &info) == 0 && S_ISREG(info.st_mode);
    if (w->regular) {
        ftk_status status = check_room(job, w->fd, err);
        if (status != FTK_OK) return status;
        note_error(w, reserve(w));
        w->direct = !job->sparse && go_direct(w->fd);
    }
    if (!atomic_load(&w->error)) write_all(w);
    if (w->direct && ftruncate(w->fd, (off_t)job->plan->file_bytes) != 0) note_error(w, errno);
    int error = atomic_load(&w->error);
    if (error == ECANCELED) {
        return fail(err, FTK_E_CANCELLED, "%s: interrupted; nothing was kept", job->path);
    }
    if (error == 0) return FTK_OK;
    return fail(err, FTK_E_IO, "%s: cannot write: %s; nothing was kept", job->path,
                strerror(error));
}

ftk_status fti_synth_write_file(const fti_synth_job *job, ftk_error *err) {
    fti_cli_file file;
    if (!fti_cli_file_begin(&file, job->path, 0666)) {
        return fail(err, FTK_E_IO, "%s: cannot create: %s", job->path, strerror(errno));
    }
    writing w = {.job = job, .fd = fileno(file.stream)};
    ftk_status status = fill_file(&w, err);
    if (status != FTK_OK) {
        fti_cli_file_abandon(&file);
        return status;
    }
    if (fti_cli_file_commit(&file)) return FTK_OK;
    return fail(err, FTK_E_IO, "%s: cannot finish: %s; nothing was kept", job->path,
                strerror(errno));
}
