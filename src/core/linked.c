/*
 * linked.c: of code that is part of the program, this library included: which file it was loaded
 * from, that file's digest, and where modules lie beside it. As far as the system can say: a file
 * that is gone, or that another now stands in for, gives none, with the reason.
 */
#include "core/loading.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PROGRAM "/proc/self/exe" /* the very file, whatever became of its name */

/* The mapping that holds `address`, as the kernel knows it: the inode behind it, 0 if none is, and
 * the file's path (may be NULL; at least PATH_MAX), "" if it has none. */
static uint64_t find_mapping(uintptr_t address, char *path) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char *line = NULL;
    size_t capacity = 0;
    uint64_t inode = 0;
    if (path) path[0] = 0;
    while (maps && inode == 0 && getline(&line, &capacity, maps) > 0) {
        uint64_t start, end, found;
        int name = 0;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %" SCNu64 " %n", &start, &end, &found,
                   &name) < 3 ||
            address < start || address >= end)
            continue;
        inode = found;
        line[strcspn(line, "\n")] = 0;
        if (path && name) snprintf(path, PATH_MAX, "%s", line + name);
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
    if (find_mapping((uintptr_t)address, NULL) != (uint64_t)st.st_ino)
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

/* Not by the name that the dynamic loader has for it: that of a program is what its parent chose
 * to pass, and one that is relative means another file once the current folder has changed. */
ftk_status fti_module_path(const char *file, char out[PATH_MAX], ftk_error *err) {
    static const char here[] = "in this library's file";
    char self[PATH_MAX];
    if (find_mapping((uintptr_t)here, self) == 0 || self[0] != '/')
        return fti_fail(err, FTK_E_DEVICE_UNAVAILABLE,
                        "the folder of libfreetoken's modules cannot be told: found no file that "
                        "the library was loaded from");
    int n = snprintf(out, PATH_MAX, "%.*s/freetoken/backends/%s", fti_folder_size(self), self,
                     file);
    if (n > 0 && n < PATH_MAX) return FTK_OK;
    return fti_fail(err, FTK_E_DEVICE_UNAVAILABLE, "the path of module %s is too long", file);
}
