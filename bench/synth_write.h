/*
 * synth_write.h: puts a planned checkpoint on the disk, on all processors and in large
 * aligned pieces, and lets it appear under its name only when it is whole.
 */
#ifndef FTI_BENCH_SYNTH_WRITE_H
#define FTI_BENCH_SYNTH_WRITE_H

#include "synth_plan.h"

typedef struct fti_synth_room {
    uint64_t free, whole; /* bytes of a file system */
} fti_synth_room;

typedef struct fti_synth_job {
    const fti_synth_plan *plan;
    const char *path;
    uint32_t threads; /* 0: one per processor */
    bool sparse;      /* the header only; what follows is a hole that reads as zeros */
    /* Now and then, from the calling thread; false stops. NULL: nothing to tell. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    /* Of the file system of an open file. NULL: it is asked. */
    fti_synth_room (*room)(int fd);
} fti_synth_job;

/* Replaces what is at `path`. FTK_E_DOES_NOT_FIT before the first byte if the disk has not
 * enough room, or if less than 1 GiB or 2 % of it would be left (but for a sparse file), FTK_E_IO,
 * FTK_E_CANCELLED; after a failure there is no new file. */
ftk_status fti_synth_write_file(const fti_synth_job *job, ftk_error *err);

#endif
