/*
 * scratch.h: what the loader's tests share: a folder below /tmp that is removed
 * again, files of an exact mode in it, and checks of an error's text.
 */
#ifndef TESTS_LOADER_SCRATCH_H
#define TESTS_LOADER_SCRATCH_H

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base.h"

typedef struct text {
    char s[1024];
} text;

__attribute__((format(printf, 1, 2))) static inline text format(const char *pattern, ...) {
    text t;
    va_list args;
    va_start(args, pattern);
    int n = vsnprintf(t.s, sizeof t.s, pattern, args);
    va_end(args);
    assert_in_range(n, 0, sizeof t.s - 1);
    return t;
}

/* The folder of the running test. */
static char scratch[256];

static inline int scratch_setup(void **state) {
    (void)state;
    char made[] = "/tmp/ftk-loader-XXXXXX";
    char real[4096];
    umask(022);
    if (!mkdtemp(made) || !realpath(made, real) || strlen(real) >= sizeof scratch) return -1;
    strcpy(scratch, real);
    return chmod(scratch, 0755);
}

static inline int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static inline int scratch_teardown(void **state) {
    (void)state;
    return nftw(scratch, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static inline text in_scratch(const char *name) {
    return format("%s/%s", scratch, name);
}

static inline void make_folder(const char *path, mode_t mode) {
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static inline void write_file(const char *path, const void *data, size_t size, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), (ssize_t)size);
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(close(fd), 0);
}

static inline unsigned char *read_file(const char *path, size_t *size) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail_msg("cannot open %s", path);
    assert_int_equal(fstat(fd, &st), 0);
    unsigned char *data = malloc((size_t)st.st_size + 1);
    assert_non_null(data);
    assert_int_equal(read(fd, data, (size_t)st.st_size), st.st_size);
    assert_int_equal(close(fd), 0);
    *size = (size_t)st.st_size;
    return data;
}

#define STRANGER ((uid_t)65534)

/* This program again, as root makes one that runs with another user's rights. */
static inline text setuid_copy(void) {
    size_t size;
    text program = in_scratch("program");
    unsigned char *self = read_file("/proc/self/exe", &size);
    write_file(program.s, self, size, 0755);
    free(self);
    assert_int_equal(chown(program.s, STRANGER, 0), 0);
    assert_int_equal(chmod(program.s, 04755), 0);
    return program;
}

static inline size_t open_descriptors(void) {
    size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder)) count++;
    assert_int_equal(closedir(folder), 0);
    return count;
}

/* Fails unless a call gave `wanted` and, if it failed, a record of it that is
 * one line and holds `part`. */
static inline void expect_status(ftk_status found, ftk_status wanted, const ftk_error *err,
                                 const char *part) {
    if (found != wanted)
        fail_msg("found %s (%s), wanted %s", ftk_status_name(found), err->message,
                 ftk_status_name(wanted));
    if (wanted == FTK_OK) return;
    assert_int_equal(err->status, wanted);
    if (!strstr(err->message, part)) fail_msg("no '%s' in: %s", part, err->message);
    assert_null(strchr(err->message, '\n'));
}

#endif
