/*
 * trust.c: opens the files that decide which code runs (configuration,
 * manifests, providers), and their digest. Walks from / and judges each folder
 * through the descriptor that the next step starts from, so that nothing can be
 * exchanged between a check and its use.
 */
#include "core/loader.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
/* The plain functions: libcrypto's EVP reads the file that OPENSSL_CONF names, which may load
 * any code. They cannot fail. */
#define OPENSSL_API_COMPAT 0x10100000L
#include <openssl/sha.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FOLDER_FLAGS (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
/* Not to wait for a writer when the file is a FIFO. */
#define FILE_FLAGS (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

typedef struct request {
    const char *path;
    ftk_status path_status;
    ftk_status mode_status;
    ftk_error *err;
} request;

/* The path comes last: it may be too long for one message. */
static ftk_status bad_spelling(const request *rq, const char *found) {
    return fti_fail(rq->err, rq->path_status,
                    "path refused: found %s, wanted an absolute path without '.', '..', empty "
                    "parts or symbolic links, exactly as the file is reached from /: '%s'",
                    found, rq->path);
}

static ftk_status check_spelling(const request *rq) {
    if (rq->path[0] != '/') return bad_spelling(rq, "a relative path");
    if (strlen(rq->path) >= PATH_MAX) return bad_spelling(rq, "more bytes than a path may have");
    for (const char *part = rq->path; *part;) {
        size_t n = strcspn(++part, "/");
        if (n == 0) return bad_spelling(rq, "an empty part ('//' or a '/' at the end)");
        if (n > NAME_MAX) return bad_spelling(rq, "a part longer than a file name may be");
        if (n == 1 && part[0] == '.') return bad_spelling(rq, "a '.' part");
        if (n == 2 && part[0] == '.' && part[1] == '.') return bad_spelling(rq, "a '..' part");
        part += n;
    }
    return FTK_OK;
}

/* Opens one entry of `folder` and never what a link points to. Kernels without
 * openat2 say ENOSYS, system call filters that do not know it often EPERM; then
 * O_NOFOLLOW, which is in all flags here, has to do. */
static int open_entry(int folder, const char *name, int flags) {
    const unsigned bits = (unsigned)flags;
    struct open_how how = {
        .flags = bits, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_BENEATH};
    long fd;
    do fd = syscall(SYS_openat2, folder, name, &how, sizeof how);
    while (fd < 0 && errno == EINTR);
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return (int)fd;
    do fd = openat(folder, name, flags);
    while (fd < 0 && errno == EINTR);
    return (int)fd;
}

/* `end` is the length of the part of the path up to the entry, for messages. */
static ftk_status cannot_open(const request *rq, int folder, const char *name, size_t end,
                              int error) {
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISLNK(st.st_mode))
        return fti_fail(rq->err, rq->path_status, "cannot open '%s': '%.*s': %s", rq->path,
                        (int)end, rq->path, strerrordesc_np(error));
    char real[PATH_MAX];
    if (!realpath(rq->path, real)) real[0] = 0;
    return fti_fail(rq->err, rq->path_status,
                    "path '%s' refused: '%.*s' is a symbolic link, wanted none in any part%s%s%s",
                    rq->path, (int)end, rq->path, real[0] ? "; write '" : "", real,
                    real[0] ? "'" : "");
}

static ftk_status check_owner(const request *rq, const struct stat *st, size_t end) {
    uid_t self = geteuid();
    if (st->st_uid == 0 || st->st_uid == self) return FTK_OK;
    return fti_fail(rq->err, rq->mode_status,
                    "'%s' refused: '%.*s' is owned by uid %u, wanted root or the user of this "
                    "process (uid %u)",
                    rq->path, (int)end, rq->path, (unsigned)st->st_uid, (unsigned)self);
}

/* A command is offered only where the shell would read the path as it is: names below a search
 * folder are not the operator's. */
static ftk_status bad_mode(const request *rq, const struct stat *st, size_t end, const char *wanted,
                           const char *fix) {
    if (memchr(rq->path, '\'', end))
        return fti_fail(rq->err, rq->mode_status, "'%s' refused: '%.*s' has mode %04o, wanted %s",
                        rq->path, (int)end, rq->path, (unsigned)(st->st_mode & 07777), wanted);
    return fti_fail(rq->err, rq->mode_status,
                    "'%s' refused: '%.*s' has mode %04o, wanted %s; run: chmod %s '%.*s'", rq->path,
                    (int)end, rq->path, (unsigned)(st->st_mode & 07777), wanted, fix, (int)end,
                    rq->path);
}

/* In a sticky folder of root only root and the owner of an entry can replace
 * it, and the owner of each entry is checked when the walk reaches it. */
static bool sticky_is_safe(const struct stat *st) {
    return st->st_uid == 0 && (st->st_mode & S_ISVTX) && (st->st_mode & S_IWOTH);
}

static ftk_status check_folder(const request *rq, int fd, size_t end) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return fti_fail(rq->err, rq->path_status, "cannot examine '%.*s': %s", (int)end, rq->path,
                        strerrordesc_np(errno));
    FTI_TRY(check_owner(rq, &st, end));
    if (!(st.st_mode & (S_IWGRP | S_IWOTH)) || sticky_is_safe(&st)) return FTK_OK;
    return bad_mode(rq, &st, end, "a folder that neither group nor others may write", "go-w");
}

static const char *kind_name(mode_t mode) {
    switch (mode & S_IFMT) {
    case S_IFDIR: return "a folder";
    case S_IFIFO: return "a FIFO";
    case S_IFCHR: return "a character device";
    case S_IFBLK: return "a block device";
    case S_IFSOCK: return "a socket";
    default: return "not a file";
    }
}

static ftk_status check_file(const request *rq, int fd) {
    struct stat st;
    size_t end = strlen(rq->path);
    if (fstat(fd, &st) != 0)
        return fti_fail(rq->err, rq->path_status, "cannot examine '%s': %s", rq->path,
                        strerrordesc_np(errno));
    if (!S_ISREG(st.st_mode))
        return fti_fail(rq->err, rq->path_status, "'%s' refused: it is %s, wanted a regular file",
                        rq->path, kind_name(st.st_mode));
    FTI_TRY(check_owner(rq, &st, end));
    if (st.st_mode & (S_ISUID | S_ISGID))
        return bad_mode(rq, &st, end, "no setuid or setgid bit", "ug-s");
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return bad_mode(rq, &st, end, "a file that neither group nor others may write", "go-w");
    return FTK_OK;
}

/* From the checked folder `*folder` to its entry at path + start, which replaces
 * it. */
static ftk_status step(const request *rq, int *folder, size_t start, bool *last) {
    size_t n = strcspn(rq->path + start, "/");
    char name[NAME_MAX + 1];
    memcpy(name, rq->path + start, n);
    name[n] = 0;
    *last = rq->path[start + n] == 0;
    int fd = open_entry(*folder, name, *last ? FILE_FLAGS : FOLDER_FLAGS);
    ftk_status status = FTK_OK;
    if (fd < 0) status = cannot_open(rq, *folder, name, start + n, errno);
    close(*folder);
    *folder = fd;
    if (status != FTK_OK) return status;
    return *last ? check_file(rq, fd) : check_folder(rq, fd, start + n);
}

ftk_status fti_trusted_open(const char *path, ftk_status path_status, ftk_status mode_status,
                            int *fd, ftk_error *err) {
    const request rq = {path, path_status, mode_status, err};
    FTI_TRY(check_spelling(&rq));
    int at = open("/", FOLDER_FLAGS);
    if (at < 0) return fti_fail(err, path_status, "cannot open '/': %s", strerrordesc_np(errno));
    ftk_status status = check_folder(&rq, at, 1);
    bool last = false;
    for (size_t start = 1; status == FTK_OK && !last;) {
        status = step(&rq, &at, start, &last);
        start += strcspn(path + start, "/") + 1;
    }
    if (status != FTK_OK) {
        if (at >= 0) close(at);
        return status;
    }
    *fd = at;
    return FTK_OK;
}

static ftk_status digest_rest(int fd, SHA256_CTX *context, ftk_error *err) {
    unsigned char block[1 << 16];
    for (;;) {
        ssize_t n = read(fd, block, sizeof block);
        if (n == 0) return FTK_OK;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return fti_fail(err, FTK_E_IO, "cannot read for the sha256: %s",
                            strerrordesc_np(errno));
        (void)SHA256_Update(context, block, (size_t)n);
    }
}

ftk_status fti_sha256_fd(int fd, char hex[65], ftk_error *err) {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256_CTX context;
    (void)SHA256_Init(&context);
    FTI_TRY(digest_rest(fd, &context, err));
    (void)SHA256_Final(digest, &context);
    for (size_t i = 0; i < 32; i++) {
        hex[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    hex[64] = 0;
    return FTK_OK;
}
