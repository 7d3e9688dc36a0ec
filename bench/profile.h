/*
 * profile.h: where the time of a step goes. The provider that is linked into this program is
 * handed tables of operators that read the clock before and after each call; the CPU backend
 * runs eagerly, so a call that has returned is work that was done. The library knows nothing
 * of it, and whoever does not profile pays nothing.
 */
#ifndef FTI_BENCH_PROFILE_H
#define FTI_BENCH_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "freetoken/provider.h"

/* All calls of one operator with weights of one type, or of one kernel of the provider. */
typedef struct fti_bench_profile_line {
    const char *name; /* "matmul", or as the provider names its kernel */
    uint32_t type;    /* of the weights; FTI_BENCH_NO_TYPE: it reads none */
    uint64_t calls;
    double seconds;
    uint64_t bytes;    /* of weights, each counted once per call */
    uint64_t products; /* multiply-adds with weights */
} fti_bench_profile_line;

#define FTI_BENCH_NO_TYPE       UINT32_MAX
#define FTI_BENCH_PROFILE_LINES 64u

/* Steps of one kind: of so many rows at most, or of more. */
typedef struct fti_bench_profile {
    fti_bench_profile_line lines[FTI_BENCH_PROFILE_LINES];
    size_t count;
    uint64_t steps, rows;
    double inside;  /* seconds in the provider's run, operators included */
    double outside; /* between the end of a step and the begin of the next one: scheduling,
                       sampling, delivery */
    uint64_t gaps;  /* how many of those were seen */
} fti_bench_profile;

typedef struct fti_bench_profiles {
    fti_bench_profile decode; /* steps of at most `decode_rows` rows */
    fti_bench_profile prompt;
    uint32_t decode_rows;
    bool on;     /* counts nothing while it is false */
    double last; /* when the last step ended; 0: none has */
} fti_bench_profiles;

/* An entry that gives `real`'s provider behind those tables, counting into `into`, which
 * outlives every engine that is opened with it. One at a time. */
ftk_provider_entry fti_bench_profile_entry(ftk_provider_entry real, fti_bench_profiles *into);

#endif
