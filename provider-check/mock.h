/*
 * mock.h: the host that a provider meets here instead of an engine: ftk_host and the
 * named interfaces on plain host memory, counting every call, watching every block,
 * and able to fail at any call. Arithmetic is the CPU backend's: a second definition of
 * it would be a second truth.
 *
 * One mock serves one model and belongs to one thread at a time.
 */
#ifndef FTI_PC_MOCK_H
#define FTI_PC_MOCK_H

#include "backend/backend.h"
#include "check.h"

/* ---- memory.c: memory whose surroundings are watched ---- */

#define FTI_PC_GUARD 256u /* bytes before and behind */

typedef struct fti_pc_area {
    const char *name;
    char *data; /* 64-byte aligned */
    uint64_t bytes;
    char *whole;
    struct fti_pc_area *next;
} fti_pc_area;

/* NULL when there is no memory. Contents are `fill`. */
fti_pc_area *fti_pc_area_new(const char *name, uint64_t bytes, uint8_t fill);
/* The same for a larger alignment, a power of two. */
fti_pc_area *fti_pc_area_aligned(const char *name, uint64_t bytes, uint64_t align, uint8_t fill);
void fti_pc_area_free(fti_pc_area *area);
/* True if nothing was written before or behind it. */
bool fti_pc_area_intact(const fti_pc_area *area);
bool fti_pc_area_holds(const fti_pc_area *area, const void *at, uint64_t bytes);

/* ---- what is made to fail ---- */

typedef struct fti_pc_failure {
    uint64_t call;       /* the host call that fails, from 1; 0: none */
    uint64_t allocation; /* the allocation from which on all fail, from 1; 0: none */
} fti_pc_failure;

/* A kernel that the provider launched. */
typedef struct fti_pc_launch {
    char name[80];
    ftk_cpu_kernel function;
    uint64_t items;
    uint32_t args_bytes;
    _Alignas(16) unsigned char args[FTK_KERNEL_ARGS_MAX];
} fti_pc_launch;

#define FTI_PC_MAX_ROWS     24u /* of a step */
#define FTI_PC_SEQUENCES    4u  /* and state slots */
#define FTI_PC_PAGE_TOKENS  16u /* unlike the core's, so that nobody builds on that */
#define FTI_PC_BLOCKS       4u  /* pages of a sequence */
#define FTI_PC_BUCKETS      7u
#define FTI_PC_CONTEXT      (FTI_PC_PAGE_TOKENS * FTI_PC_BLOCKS)
#define FTI_PC_MAX_LAUNCHES 16384u
#define FTI_PC_MAX_KEYS     8u

extern const uint32_t fti_pc_buckets[FTI_PC_BUCKETS]; /* rows, largest first */

typedef struct fti_pc_mock {
    const fti_pc_target *target;
    const ftk_provider *table;
    ftk_model *model; /* between create and destroy */
    fti_backend *backend;
    ftk_stream *real; /* the backend's stream behind the mock's */
    fti_pc_failure failure;
    bool dry; /* operators and kernels are checked and counted, but not run */

    /* ---- the call in progress ---- */
    const char *call; /* "create", ...; NULL between calls */
    bool capturing;
    bool reported;
    char message[512];

    /* ---- counting ---- */
    uint64_t calls;                        /* of host functions that can fail */
    uint64_t allocations;                  /* asked for */
    bool fired;                            /* the failure has been injected */
    bool must_fail;                        /* the call in progress may not succeed */
    char injected[96];                     /* the function that failed */
    char subject[80];                      /* and on what */
    uint64_t broken_keys[FTI_PC_MAX_KEYS]; /* hashes: a bad value stays bad */
    uint32_t broken_key_count;
    fti_pc_area *blocks; /* of host->alloc, live */
    uint64_t live;

    /* ---- after plan_weights ---- */
    ftk_model_info info;
    ftk_plan plan;
    uint64_t workspace_bytes[FTI_PC_BUCKETS];
    ftk_weight *weights;
    void **computed;
    ftk_bank_view *banks;
    fti_pc_area *owned; /* weights that are not read where they are mapped */
    ftk_kv_view *kv;
    uint32_t graph_safe;

    /* ---- what a step may write ---- */
    fti_pc_area *caches; /* keys, values, state: chained */
    fti_pc_area *state;
    uint64_t slot_stride;
    fti_pc_area *workspace[FTI_PC_BUCKETS];
    fti_pc_area *logits;
    fti_pc_area *layers;
    fti_pc_area *arrays; /* of int32, which a step reads */
    char *arrays_copy;
    fti_pc_area *step_workspace; /* of the step in progress */

    /* ---- kernels ---- */
    /* Called instead of running a kernel, if set. */
    void (*on_launch)(struct fti_pc_mock *mock, const fti_pc_launch *launch);
    void *user;
    /* Called after an operator that wrote f32 values (or others) there, if set. */
    void (*on_write)(struct fti_pc_mock *mock, const void *at, uint64_t bytes, bool floats);
} fti_pc_mock;

extern const ftk_host fti_pc_host;                   /* host.c */
extern const ftk_if_checkpoint_reader fti_pc_reader; /* reader.c */
extern const ftk_if_operators fti_pc_operators;      /* operators.c */
extern const ftk_if_kernels fti_pc_kernels;

static inline ftk_core_ctx *fti_pc_ctx(fti_pc_mock *mock) {
    return (ftk_core_ctx *)(void *)mock;
}
static inline fti_pc_mock *fti_pc_of_ctx(ftk_core_ctx *ctx) {
    return (fti_pc_mock *)(void *)ctx;
}
/* Streams are opaque to providers: the mock's is the mock itself, one byte on, so that
 * a context given for a stream is noticed. */
static inline ftk_stream *fti_pc_stream(fti_pc_mock *mock) {
    return (ftk_stream *)(void *)((char *)mock + 1);
}
/* The mock that serves this thread's call; NULL after a finding if `stream` is not its. */
fti_pc_mock *fti_pc_of_stream(ftk_stream *stream, const char *operation);
fti_pc_mock *fti_pc_current(void);

/* How an injected failure shows itself: a failure that the provider must pass on, or
 * an answer that it may live with. */
typedef enum { FTI_PC_FAILS, FTI_PC_ANSWERS } fti_pc_kind;
/* Counts a call of the host; true if it is to fail. */
/* `subject` is what the call is about, a name in a checkpoint perhaps: it tells where a
 * failure was, while findings are told by functions. */
bool fti_pc_enter(fti_pc_mock *mock, fti_pc_kind kind, const char *name, ftk_str subject);
/* Findings for calls where they are not legal. */
void fti_pc_only_graph_safe(const fti_pc_mock *mock, const char *name);

/* ---- drive.c: the provider's calls, in order ---- */

typedef enum {
    FTI_PC_CREATED,
    FTI_PC_PLANNED,
    FTI_PC_LOADED,
    FTI_PC_ATTACHED,
    FTI_PC_PREPARED
} fti_pc_stage;

/* A mock for the target's provider, and its end: destroys the model if there is one,
 * and holds the provider to having released everything. */
fti_pc_mock *fti_pc_mock_new(const fti_pc_target *target, const ftk_provider *table);
void fti_pc_mock_end(fti_pc_mock *mock);

/* Brackets of a call of the provider: what must hold of its status and its traces. A
 * failure that nobody injected is a finding. */
void fti_pc_begin(fti_pc_mock *mock, const char *call);
ftk_status fti_pc_end(fti_pc_mock *mock, ftk_status status);

ftk_status fti_pc_match(fti_pc_mock *mock, ftk_str architecture, ftk_str container, ftk_str backend,
                        uint32_t *claimed);
ftk_status fti_pc_create(fti_pc_mock *mock, ftk_str options);
/* Calls from match on, up to and including `stage`. `chosen` may be NULL: references. */
ftk_status fti_pc_bring(fti_pc_mock *mock, fti_pc_stage stage, const uint32_t *chosen);
void fti_pc_destroy(fti_pc_mock *mock);

/* Rows of one sequence in a step. `sequence` decides the tokens, `slot` and pages the
 * place; logits of the last logit_rows rows are wanted. */
typedef struct fti_pc_part {
    uint32_t sequence;
    uint32_t slot;
    uint32_t first;
    uint32_t rows;
    uint32_t logit_rows;
} fti_pc_part;

/* Fills the arrays of a step of `rows` rows, of which the parts' are real, and says
 * what the step is. `rows` must be a bucket. */
ftk_step fti_pc_fill_step(fti_pc_mock *mock, const fti_pc_part *parts, uint32_t count,
                          uint32_t rows);
/* Runs it. Logits are then at mock->logits->data. */
ftk_status fti_pc_run(fti_pc_mock *mock, const ftk_step *step);
/* The two together. `garbage` fills the workspace first. */
ftk_status fti_pc_step(fti_pc_mock *mock, const fti_pc_part *parts, uint32_t count, uint32_t rows,
                       uint8_t garbage);
/* State and caches as before a sequence's first token. */
void fti_pc_clear(fti_pc_mock *mock, uint8_t garbage);
static inline const float *fti_pc_logits(const fti_pc_mock *mock, uint32_t row) {
    return (const float *)(const void *)mock->logits->data + (uint64_t)row * mock->info.vocabulary;
}

/* ---- areas.c: memory of a model by its plan ---- */

ftk_status fti_pc_check_plan(fti_pc_mock *mock);
ftk_status fti_pc_make_weights(fti_pc_mock *mock);
ftk_status fti_pc_make_caches(fti_pc_mock *mock);
void fti_pc_free_areas(fti_pc_mock *mock);
/* Finds what was written outside its place. */
void fti_pc_check_areas(fti_pc_mock *mock);

#endif
