/*
 * state.h: what a process and its threads are besides their memory: what a call of the
 * provider must leave as it found it. One snapshot before and one after tell, whatever
 * the way by which it was changed.
 */
#ifndef FTI_PC_STATE_H
#define FTI_PC_STATE_H

#include <sched.h>

#include "check.h"

#define FTI_PC_SIGNALS 65u /* and none */
#define FTI_PC_LIMITS  16u
#define FTI_PC_FILES   64u /* what there is beyond that is only counted */

/* The control bits of floating-point arithmetic; not the flags that every operation sets. */
typedef struct fti_pc_fp {
    uint64_t vector; /* MXCSR, FPCR, or what fegetround says */
    uint64_t x87;
} fti_pc_fp;

typedef struct fti_pc_file {
    int32_t number, flags, close_on_exec;
    uint32_t reserved0;
    uint64_t device, inode;
} fti_pc_file;

typedef struct fti_pc_state {
    /* ---- of the thread ---- */
    fti_pc_fp fp;
    uint64_t blocked; /* signals */
    uint64_t locale;  /* of uselocale */
    uint64_t signal_stack;
    int32_t priority, policy;
    char thread_name[16];
    cpu_set_t cpus;
    /* ---- of the process ---- */
    struct {
        uint64_t handler, flags;
    } signals[FTI_PC_SIGNALS];
    struct {
        uint64_t soft, hard;
    } limits[FTI_PC_LIMITS];
    struct {
        uint64_t armed, interval; /* interval in microseconds */
    } alarms[3];
    uint64_t timers; /* of timer_create */
    char folder[256];
    char locale_name[160];
    uint64_t umask;
    uint64_t environment; /* hash of it */
    struct {
        uint64_t live;   /* children are there */
        uint64_t waited; /* what those that are gone have used */
    } children;
    uint64_t file_count;
    fti_pc_file files[FTI_PC_FILES];
} fti_pc_state;

/* Which of it is compared. Another thread may be at work on the process's. */
#define FTI_PC_OF_THREAD  1u
#define FTI_PC_OF_PROCESS 2u
#define FTI_PC_OF_FILES   4u
#define FTI_PC_OF_ALL     7u

void fti_pc_state_take(fti_pc_state *state);
/* A finding for everything that `call` left otherwise. */
void fti_pc_state_compare(const fti_pc_state *before, const fti_pc_state *after, unsigned which,
                          const char *call);

/* Floating-point control alone, cheap enough for every kernel. */
fti_pc_fp fti_pc_fp_take(void);
/* A finding, and the environment as it was, if `who` left another. */
void fti_pc_fp_restore(fti_pc_fp before, const char *who);

#endif
