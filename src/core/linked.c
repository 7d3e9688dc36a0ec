/*
 * linked.c: of code that is part of the program: which file it was loaded from, and that file's
 * digest. As far as the system can say: a file that is gone, or that another now stands in for,
 * gives none, with the reason.
 */
#include "core/loader.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PROGRAM "/proc/self/exe" /* the very file, whatever became of its name */

/* The inode behind the mapping that holds `address`, as the kernel knows it; 0 if none does. */
static uint64_t mapped_inode(uintptr_t address) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char *line = NULL;
    size_t capacity = 0;
    uint64_t inode = 0;
    while (maps && inode == 0 && getline(&line, &capacity, maps) > 0) {
        uint64_t start, end, found;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %" SCNu64, &start, &end, &found) ==
                3 &&
            address >= start && address < end)
            inode = found;
    }
    if (maps) fclose(maps);
    free(line);
    return inode;
}

/* Opens the file of the object at `address`. A descriptor, or -1 with the reason. */
static int open_object(const void *address, const char **path, const char **reason) {
    Dl_info info;
    struct link_map *object = NULL;
    if (dladdr1(address, &info, (void **)&object, RTLD_DL_LINKMAP) == 0 || !object) {
        *reason = "no file of this process holds its table";
        return -1;
    }
    *path = object->l_name[0] ? object->l_name : PROGRAM;
    int fd = open(*path, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) *reason = errno == ENOENT ? "its file is gone" : "its file cannot be opened";
    return fd;
}

static const char *judge(int fd, const void *address) {
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return "its file is no regular file";
    if (st.st_size > FTI_MAX_LIBRARY_BYTES) return "its file has more than 4 GiB";
    if (mapped_inode((uintptr_t)address) != (uint64_t)st.st_ino)
        return "its file is not the one that was loaded";
    return NULL;
}

ftk_status fti_digest_code(const void *address, char **path, char sha256[65], const char **reason,
                           ftk_error *err) {
    char name[PATH_MAX];
    const char *opened = NULL;
    *path = NULL;
    *reason = NULL;
    sha256[0] = 0;
    int fd = open_object(address, &opened, reason);
    if (fd < 0) return FTK_OK;
    *reason = judge(fd, address);
    if (!*reason && fti_sha256_fd(fd, sha256, NULL) != FTK_OK) {
        sha256[0] = 0;
        *reason = "its file cannot be read";
    }
    close(fd);
    if (*reason) return FTK_OK;
    ssize_t n = strcmp(opened, PROGRAM) == 0 ? readlink(PROGRAM, name, sizeof name - 1) : -1;
    if (n >= 0) name[n] = 0;
    *path = fti_strndup(n >= 0 ? name : opened, strlen(n >= 0 ? name : opened));
    return *path ? FTK_OK : fti_no_memory(err, PATH_MAX, "a path");
}
