/* memory.c: areas with guard bytes on both sides. */
#include "mock.h"

#include <stdlib.h>

#define GUARD_BYTE 0xB5u
#define ALIGNMENT  64u

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

fti_pc_area *fti_pc_area_new(const char *name, uint64_t bytes, uint8_t fill) {
    return fti_pc_area_aligned(name, bytes, ALIGNMENT, fill);
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
