/*
 * check.h: what the parts of ft-provider-check share: the provider under test, the
 * passes, and the channel through which a pass tells what it found.
 *
 * A pass that runs the provider's code does so in a process of its own; the channel
 * lies in memory that both processes see, so that what was found, and what the
 * provider was doing, survives a crash.
 */
#ifndef FTI_PC_CHECK_H
#define FTI_PC_CHECK_H

#include "core/checkpoint.h"
#include "core/config.h"
#include "core/loader.h"

#define FTI_PC_MAX_FINDINGS 12u
#define FTI_PC_MAX_VARIANTS 64u
#define FTI_PC_MAX_PASSES   32u

/* The provider under test, as the command line names it. */
typedef struct fti_pc_target {
    fti_allow allow; /* name and path, as an entry of an allowlist would have them */
    char *manifest_path;
    fti_manifest *manifest; /* NULL if it was refused */
    const char *model;      /* path of a checkpoint, or NULL */
    fti_checkpoint *checkpoint;
    ftk_str architecture;          /* of the checkpoint */
    const char *const *tolerances; /* VARIANT=ULPS, as given */
    size_t tolerance_count;
    uint32_t timeout; /* seconds for one pass */
} fti_pc_target;

typedef struct fti_pc_finding {
    char where[160]; /* what was running */
    char what[640];
} fti_pc_finding;

/* A variant held against the exact reference row of its table. */
typedef struct fti_pc_variant {
    char operation[80];
    char name[80];
    char skipped[160];    /* why it was not run; "" if it was */
    uint64_t comparisons; /* kernel launches compared, each over one set of values */
    uint64_t steps;       /* whole steps compared */
    uint32_t worst;       /* largest distance seen, in units of the last place */
    uint32_t tolerance;   /* declared */
    double seconds;       /* of the variant in the largest step, its kernels only */
    double reference_seconds;
} fti_pc_variant;

typedef struct fti_pc_channel {
    char at[160];      /* what is running: for crashes and hangs */
    char skipped[256]; /* why the pass could not run */
    uint64_t checks;   /* what was looked at */
    uint64_t next;     /* of a sweep: the failure that is being injected */
    uint32_t done;     /* the pass came to its end */
    uint32_t finding_count;
    uint32_t lost; /* findings beyond those that there is room for */
    uint32_t variant_count;
    fti_pc_finding findings[FTI_PC_MAX_FINDINGS];
    fti_pc_variant variants[FTI_PC_MAX_VARIANTS];
} fti_pc_channel;

/* One pass. Sweeps begin at channel->next, and are begun again behind a failure that
 * ended their process. */
typedef struct fti_pc_pass {
    const char *name;
    const char *summary;
    void (*run)(const fti_pc_target *target);
    bool runs_code; /* of the provider: in a process of its own */
    bool needs_model;
    bool sweep;
} fti_pc_pass;

/* ---- channel.c: of the pass that is running; callable from any thread ---- */

/* Where the running pass writes to; one process runs one pass at a time. */
void fti_pc_open_channel(fti_pc_channel *channel);
fti_pc_channel *fti_pc_the_channel(void);
/* Of a process that has ended: whatever it left there, texts end and counts are in bounds. */
void fti_pc_mend_channel(fti_pc_channel *channel);
/* States a breach of the contract; one that was stated before is not repeated. */
void fti_pc_find(const char *format, ...) FTI_PRINTF(1, 2);
/* The same, unless `holds`. Counts a check; returns `holds`. */
bool fti_pc_check(bool holds, const char *format, ...) FTI_PRINTF(2, 3);
void fti_pc_checked(void);
void fti_pc_at(const char *format, ...) FTI_PRINTF(1, 2);
void fti_pc_skip(const char *format, ...) FTI_PRINTF(1, 2);

/* ---- child.c ---- */

/* Runs a pass in a process of its own and waits for it: crashes, hangs and output
 * become findings. */
void fti_pc_run_apart(const fti_pc_pass *pass, const fti_pc_target *target,
                      fti_pc_channel *channel);

/* ---- traps.c ---- */

/* Whose doing is what this thread runs: nobody's that is looked at, a call's of the
 * provider, or a step's, in which no memory is taken. */
typedef enum { FTI_PC_HOSTS, FTI_PC_CALLS, FTI_PC_STEPS } fti_pc_doing;
/* Returns what it was. */
fti_pc_doing fti_pc_trap(fti_pc_doing doing);
/* Threads that run in this process. */
uint32_t fti_pc_threads(void);

/* Bytes of the C heap in use, and of mappings that are not the heap's; 0 where a
 * sanitizer keeps its own accounts. */
typedef struct fti_pc_memory_use {
    uint64_t heap, mapped;
} fti_pc_memory_use;
fti_pc_memory_use fti_pc_memory_used(void);

/* ---- the passes ---- */

void fti_pc_pass_manifest(const fti_pc_target *target); /* static.c */
void fti_pc_pass_loader(const fti_pc_target *target);
void fti_pc_pass_symbols(const fti_pc_target *target);
void fti_pc_pass_entry(const fti_pc_target *target); /* entry.c */
void fti_pc_pass_match(const fti_pc_target *target);
void fti_pc_pass_lifecycle(const fti_pc_target *target); /* lives.c */
void fti_pc_pass_destroy(const fti_pc_target *target);
void fti_pc_pass_refusals(const fti_pc_target *target);
void fti_pc_pass_chat(const fti_pc_target *target);
void fti_pc_pass_failures(const fti_pc_target *target);
void fti_pc_pass_memory(const fti_pc_target *target);
void fti_pc_pass_threads(const fti_pc_target *target); /* exact.c */
void fti_pc_pass_rows(const fti_pc_target *target);
void fti_pc_pass_capture(const fti_pc_target *target);
void fti_pc_pass_ranges(const fti_pc_target *target); /* kernels.c */
void fti_pc_pass_variants(const fti_pc_target *target);

/* Loads the provider through the core's own loader; NULL after a finding. */
const ftk_provider *fti_pc_load(const fti_pc_target *target);

#endif
