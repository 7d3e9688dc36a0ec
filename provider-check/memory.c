/*
 * memory.c: areas with guard bytes on both sides: blocks of the host's, and those of the
 * device, which lie together so that they can be closed to host code at once.
 */
#include "mock.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD_BYTE 0xB5u
#define ALIGNMENT  64u
#define CHUNK      (UINT64_C(64) << 20) /* of address space; pages come as they are used */

fti_pc_area *fti_pc_area_aligned(const char *name, uint64_t bytes, uint64_t align, uint8_t fill) {
    fti_pc_area *area = calloc(1, sizeof *area);
    size_t before = align > FTI_PC_GUARD ? (size_t)align : FTI_PC_GUARD;
    void *whole = NULL;
    if (!area || bytes > PTRDIFF_MAX / 2 || align > PTRDIFF_MAX / 4 ||
        posix_memalign(&whole, align > ALIGNMENT ? (size_t)align : ALIGNMENT,
                       before + (size_t)bytes + FTI_PC_GUARD)) {
        free(area);
        return NULL;
    }
    memset(whole, GUARD_BYTE, before + (size_t)bytes + FTI_PC_GUARD);
    area->name = name;
    area->bytes = bytes;
    area->whole = whole;
    area->data = area->whole + before;
    memset(area->data, fill, (size_t)bytes);
    return area;
}

void fti_pc_area_free(fti_pc_area *area) {
    if (!area) return;
    free(area->whole);
    free(area);
}

static bool all_guard(const char *from, size_t count) {
    for (size_t i = 0; i < count; i++)
        if ((unsigned char)from[i] != GUARD_BYTE) return false;
    return true;
}

bool fti_pc_area_intact(const fti_pc_area *area) {
    return all_guard(area->data - FTI_PC_GUARD, FTI_PC_GUARD) &&
           all_guard(area->data + area->bytes, FTI_PC_GUARD);
}

bool fti_pc_area_holds(const fti_pc_area *area, const void *at, uint64_t bytes) {
    uintptr_t first = (uintptr_t)area->data, from = (uintptr_t)at;
    return from >= first && from - first <= area->bytes && bytes <= area->bytes - (from - first);
}

/* ---- of the device ---- */

static bool add_chunk(fti_pc_device *d, uint64_t bytes) {
    if (d->count == FTI_COUNT(d->chunks)) return false;
    void *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return false;
    madvise(base, (size_t)bytes, MADV_NOHUGEPAGE); /* an area's first byte would clear 2 MiB */
    d->chunks[d->count++] = (fti_pc_chunk){.base = base, .bytes = bytes};
    return true;
}

/* Memory of zeros, aligned; NULL when there is none. */
static char *take(fti_pc_device *d, uint64_t bytes) {
    fti_pc_chunk *c = d->count ? &d->chunks[d->count - 1] : NULL;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes > PTRDIFF_MAX / 2) return NULL;
    if (!c || bytes > c->bytes - c->used) {
        if (!add_chunk(d, bytes > CHUNK ? (bytes + page - 1) / page * page : CHUNK)) return NULL;
        c = &d->chunks[d->count - 1];
    }
    char *at = c->base + c->used;
    c->used += bytes;
    return at;
}

fti_pc_area *fti_pc_area_on(fti_pc_device *d, const char *name, uint64_t bytes) {
    fti_pc_area *area = calloc(1, sizeof *area);
    uint64_t room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    char *at = area && room >= bytes ? take(d, room + 2 * FTI_PC_GUARD) : NULL;
    if (!at) {
        free(area);
        return NULL;
    }
    memset(at, GUARD_BYTE, FTI_PC_GUARD);
    memset(at + FTI_PC_GUARD + bytes, GUARD_BYTE, (size_t)(room - bytes) + FTI_PC_GUARD);
    area->name = name;
    area->bytes = bytes;
    area->data = at + FTI_PC_GUARD;
    area->older = d->areas;
    d->areas = area;
    return area;
}

const fti_pc_area *fti_pc_device_area(const fti_pc_device *d, const void *at) {
    for (const fti_pc_area *a = d->areas; a; a = a->older) {
        const char *first = a->data - FTI_PC_GUARD, *end = a->data + a->bytes + FTI_PC_GUARD;
        if ((const char *)at >= first && (const char *)at < end) return a;
    }
    return NULL;
}

bool fti_pc_device_holds(const fti_pc_device *d, const void *at) {
    for (uint32_t i = 0; i < d->count; i++)
        if ((const char *)at >= d->chunks[i].base &&
            (const char *)at < d->chunks[i].base + d->chunks[i].bytes)
            return true;
    return false;
}

void fti_pc_device_protect(fti_pc_device *d, int protection) {
    for (uint32_t i = 0; i < d->count; i++)
        mprotect(d->chunks[i].base, (size_t)d->chunks[i].bytes, protection);
}

void fti_pc_device_end(fti_pc_device *d) {
    while (d->areas) {
        fti_pc_area *older = d->areas->older;
        free(d->areas);
        d->areas = older;
    }
    for (uint32_t i = 0; i < d->count; i++) munmap(d->chunks[i].base, (size_t)d->chunks[i].bytes);
    d->count = 0;
}
