/* load.h: opening a model as the thing that is measured. */
#ifndef FTI_BENCH_LOAD_H
#define FTI_BENCH_LOAD_H

#include "sample.h"

typedef struct fti_bench_load {
    double seconds;                      /* open to ready */
    uint64_t copied_bytes, mapped_bytes; /* of weights */
    uint64_t read_bytes;                 /* that storage delivered meanwhile; 0: none, or unknown */
    int cached_percent;                  /* of the checkpoint, before; -1: not known */
    char *fault;                         /* of the clock; NULL: none. free() */
} fti_bench_load;

/* Opens the model, timed. `cold`: asks the system to forget the checkpoint's pages first,
 * which it does for those that nobody has mapped. Exit code. */
int fti_bench_open_timed(const ftk_config *config, const char *model, bool cold,
                         const fti_bench_clock *clock, fti_bench_load *load, ftk_engine **engine);

/* Resident memory of the process at its greatest since the last fti_bench_open_timed began,
 * mapped pages included; since the process began where the kernel cannot start anew. */
uint64_t fti_bench_peak_bytes(void);

/* Bytes that storage has delivered to this process so far; 0 where the kernel does not count. */
uint64_t fti_bench_storage_bytes(void);

/* Bytes of a checkpoint, all its shards together; 0 if it cannot be looked at. */
uint64_t fti_bench_file_bytes(const char *model);

#endif
