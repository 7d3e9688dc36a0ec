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
#include "state.h"

/* ---- memory.c: memory whose surroundings are watched ---- */

#define FTI_PC_GUARD 256u /* bytes before and behind */

typedef struct fti_pc_area {
    const char *name;
    char *data; /* 64-byte aligned */
    uint64_t bytes;
    char *whole;               /* of the heap, NULL if it is of a device */
    struct fti_pc_area *next;  /* in a list of its owner's */
    struct fti_pc_area *older; /* on the same device */
} fti_pc_area;

typedef struct fti_pc_chunk {
    char *base;
    uint64_t bytes, used;
} fti_pc_chunk;

/* Areas in pages of their own, which can be closed at once. */
typedef struct fti_pc_device {
    fti_pc_chunk chunks[64];
    uint32_t count;
    fti_pc_area *areas;
} fti_pc_device;

typedef struct fti_pc_range {
    char *base;
    uint64_t bytes;
} fti_pc_range;
#define FTI_PC_RANGES_STEP 256u /* by how many a list of them grows */

/* Of the heap; NULL when there is no memory. Contents are `fill`, `align` is a power of
 * two, and less than 64 means 64. */
fti_pc_area *fti_pc_area_aligned(const char *name, uint64_t bytes, uint64_t align, uint8_t fill);
void fti_pc_area_free(fti_pc_area *area);
/* True if nothing was written before or behind it. */
bool fti_pc_area_intact(const fti_pc_area *area);
bool fti_pc_area_holds(const fti_pc_area *area, const void *at, uint64_t bytes);

/* Of a device, whose end is theirs. Zeros. */
fti_pc_area *fti_pc_area_on(fti_pc_device *device, const char *name, uint64_t bytes);
/* The area at an address, its guards included; NULL if there is none. */
const fti_pc_area *fti_pc_device_area(const fti_pc_device *device, const void *at);
bool fti_pc_device_holds(const fti_pc_device *device, const void *at);
/* As mprotect has it. */
void fti_pc_device_protect(fti_pc_device *device, int protection);
void fti_pc_device_end(fti_pc_device *device);

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

/* How much a mock has room for. The usual one is quick; engines' steps have hundreds of
 * rows, or dozens of sequences. */
typedef enum { FTI_PC_USUAL, FTI_PC_WIDE, FTI_PC_MANY } fti_pc_size;

#define FTI_PC_USUAL_ROWS   24u /* of a step */
#define FTI_PC_WIDE_ROWS    512u
#define FTI_PC_MANY_ROWS    33u /* each of a sequence of its own */
#define FTI_PC_SEQUENCES    4u  /* and state slots, of a usual mock */
#define FTI_PC_PAGE_TOKENS  16u /* unlike the core's, so that nobody builds on that */
#define FTI_PC_BLOCKS       4u  /* pages of a sequence of a usual mock */
#define FTI_PC_BUCKETS      20u
#define FTI_PC_CONTEXT      (FTI_PC_PAGE_TOKENS * FTI_PC_BLOCKS)
#define FTI_PC_MAX_PARTS    64u /* of a step: sequences, empty ones included */
#define FTI_PC_MAX_LAUNCHES 16384u
#define FTI_PC_MAX_KEYS     8u

typedef struct fti_pc_work fti_pc_work; /* put on the stream by run: steps.c */

typedef struct fti_pc_mock {
    const fti_pc_target *target;
    const ftk_provider *table;
    ftk_model *model; /* between create and destroy */
    fti_backend *backend;
    ftk_stream *real; /* the backend's stream behind the mock's */
    fti_pc_failure failure;
    bool dry;    /* operators and kernels are checked and counted, but not run */
    bool shared; /* with another thread: the process's state, and the mapped checkpoint */
    fti_pc_state state_before; /* of process and thread, before the next call */

    /* ---- how much there is room for: see fti_pc_size ---- */
    fti_pc_size size;
    uint32_t max_rows, sequences, pages; /* pages of a sequence */
    const uint32_t *buckets;             /* rows, largest first */
    uint32_t bucket_count;

    /* ---- the call in progress ---- */
    const char *call; /* "create", ...; NULL between calls */
    char active[320]; /* rows of variant tables that are no references, for findings */
    bool capturing;
    bool closed;         /* device memory, to host code */
    bool reported;       /* why it fails, by the provider or for it */
    uint32_t errors;     /* that the provider reported */
    ftk_status told;     /* what the checkpoint reader reported last */
    ftk_status repeated; /* that status, if the provider reported it once more */
    char message[512];

    /* ---- counting ---- */
    uint64_t calls;                        /* of host functions that can fail */
    uint64_t allocations;                  /* asked for */
    bool fired;                            /* the failure has been injected */
    bool fired_before;                     /* the call in progress */
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
    fti_pc_device weight_memory; /* those that are not read where they are mapped */
    fti_pc_area *owned;          /* in it */
    fti_pc_range *mapped;        /* of those that are, what can be closed */
    uint32_t mapped_count;
    ftk_kv_view *kv;
    uint32_t graph_safe;

    /* ---- what a step may write ---- */
    fti_pc_device memory;
    fti_pc_area *caches; /* keys, values, state: chained */
    fti_pc_area *state;
    uint64_t slot_stride;
    uint32_t slots;          /* of state: more than there are sequences */
    uint32_t turn;           /* how often sequences have changed their slots */
    uint64_t slots_at;       /* where a step's state_slots lie in its arrays */
    uint32_t step_sequences; /* of the step that was filled last */
    char *state_copy;        /* as it was before the work in progress */
    fti_pc_area *workspace[FTI_PC_BUCKETS];
    fti_pc_area *logits_of[FTI_PC_BUCKETS];
    fti_pc_area *logits; /* of the step in progress, one of these */
    fti_pc_area *layers;
    fti_pc_area *arrays; /* of int32, which a step reads */
    char *arrays_copy;
    fti_pc_area *step_workspace; /* of the step in progress */

    /* ---- work of steps, as it is executed ---- */
    fti_pc_work *work;
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
/* At the top of every function that a provider calls: what it does, the host does. */
#define FTI_PC_HOST_CALL                                                                           \
    fti_pc_doing doing_ __attribute__((cleanup(fti_pc_go_on), unused)) = fti_pc_trap(FTI_PC_HOSTS)
static inline void fti_pc_go_on(const fti_pc_doing *doing) {
    (void)fti_pc_trap(*doing);
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
/* Of another size than the usual; before the first call. */
void fti_pc_set_size(fti_pc_mock *mock, fti_pc_size size);
void fti_pc_mock_end(fti_pc_mock *mock);

/* Brackets of a call of the provider: between them device memory is closed, and behind
 * them process and thread must be as before. */
void fti_pc_begin(fti_pc_mock *mock, const char *call);
void fti_pc_leave(fti_pc_mock *mock);
/* What must hold of a call's status and reports. A failure that nobody injected is a
 * finding. */
ftk_status fti_pc_judge(fti_pc_mock *mock, ftk_status status);
/* The two together. */
ftk_status fti_pc_end(fti_pc_mock *mock, ftk_status status);
/* Reports as the contract has them, whatever the status should have been. */
void fti_pc_judge_reports(const fti_pc_mock *mock, ftk_status status);
/* Findings for what `who` left otherwise than it was. */
void fti_pc_compare_state(fti_pc_mock *mock, const char *who);

ftk_status fti_pc_match(fti_pc_mock *mock, ftk_str architecture, ftk_str container, ftk_str backend,
                        uint32_t *claimed);
ftk_status fti_pc_create(fti_pc_mock *mock, ftk_str options);
/* Calls from match on, up to and including `stage`. `chosen` may be NULL: references. */
ftk_status fti_pc_bring(fti_pc_mock *mock, fti_pc_stage stage, const uint32_t *chosen);
void fti_pc_destroy(fti_pc_mock *mock);

/* Rows of one sequence in a step. `sequence` decides the tokens, `slot` pages and state
 * slot (see fti_pc_state_slot); logits of the last logit_rows rows are wanted. */
typedef struct fti_pc_part {
    uint32_t sequence;
    uint32_t slot;
    uint32_t first;
    uint32_t rows;
    uint32_t logit_rows;
} fti_pc_part;

/* The fewest rows of a bucket that holds `rows`. */
uint32_t fti_pc_bucket_for(const fti_pc_mock *mock, uint32_t rows);
/* Fills the arrays of a step of `rows` rows, of which the parts' are real, and says what
 * the step is. */
ftk_step fti_pc_fill_step(fti_pc_mock *mock, const fti_pc_part *parts, uint32_t count,
                          uint32_t rows);
/* Makes padding of all its rows. */
void fti_pc_blank(fti_pc_mock *mock, const ftk_step *step);
/* Fills a step and runs it. `garbage` fills the workspace first. */
ftk_status fti_pc_step(fti_pc_mock *mock, const fti_pc_part *parts, uint32_t count, uint32_t rows,
                       uint8_t garbage);
/* Where the state of a part's slot lies: in another order, with slots of nobody between. */
uint32_t fti_pc_state_slot(const fti_pc_mock *mock, uint32_t slot);
/* Gives every sequence another place, to which its state goes along. */
void fti_pc_move_slots(fti_pc_mock *mock);
/* State and caches as before a sequence's first token. */
void fti_pc_clear(fti_pc_mock *mock, uint8_t garbage);
static inline const float *fti_pc_logits(const fti_pc_mock *mock, uint32_t row) {
    return (const float *)(const void *)mock->logits->data + (uint64_t)row * mock->info.vocabulary;
}

/* ---- steps.c: run, and what it puts on the stream ---- */

/* Calls run, nothing more: *work is then what it put there, NULL if nothing is to be
 * executed. */
ftk_status fti_pc_call_run(fti_pc_mock *mock, const ftk_step *step, fti_graph **work);
/* False if it could not be. May be repeated. */
bool fti_pc_execute(fti_pc_mock *mock, fti_graph *work);
/* Runs and executes a step, and looks at what it wrote. Logits are then at
 * mock->logits->data. */
ftk_status fti_pc_run(fti_pc_mock *mock, const ftk_step *step);
/* Its work alone, until the mock's end; NULL after a finding. */
fti_graph *fti_pc_capture(fti_pc_mock *mock, const ftk_step *step);

/* For operators.c: what is executed in its turn, and then told to on_launch, on_write. */
ftk_status fti_pc_put_kernel(fti_pc_mock *mock, const ftk_cpu_launch *launch);
void fti_pc_put_write(fti_pc_mock *mock, const void *at, uint64_t bytes, bool floats);
void fti_pc_forget_work(fti_pc_mock *mock);
/* A kernel over items, watched. */
void fti_pc_run_kernel(const fti_pc_launch *launch, ftk_cpu_kernel function, const void *args,
                       uint64_t begin, uint64_t end);

/* Device memory as host code may find it. A fault in closed memory is a finding, and
 * opens it. */
void fti_pc_watch_faults(void);
void fti_pc_close(fti_pc_mock *mock);
void fti_pc_open(fti_pc_mock *mock);
/* Adds a weight where it is mapped to what is closed; then, once, joins neighbours. */
void fti_pc_close_mapped(fti_pc_mock *mock, const void *from, uint64_t bytes);
void fti_pc_join_mapped(fti_pc_mock *mock);

/* ---- choose.c: other rows of variant tables than the references ---- */

const ftk_variant *fti_pc_row(const ftk_variant_table *table, uint64_t row);
/* Units in the last place that the command line allows a variant. */
uint32_t fti_pc_tolerance(const fti_pc_target *target, ftk_str name);
/* False, and why, if this machine lacks what the variant needs. */
bool fti_pc_runs_here(const fti_pc_mock *mock, const ftk_variant *row, char *why, size_t size);
/* How many rows run here to the bit, in the table that has most of them. */
uint32_t fti_pc_choices(const fti_pc_mock *mock);
/* One choice of rows for all tables, the nth; free with free(). */
uint32_t *fti_pc_choose(const fti_pc_mock *mock, uint32_t nth);
#define FTI_PC_REFERENCES UINT32_MAX
/* A mock of that size with that choice, or with the references, brought to where it runs. */
fti_pc_mock *fti_pc_mock_with(const fti_pc_target *target, const ftk_provider *table,
                              fti_pc_size size, uint32_t nth);

/* ---- wide.c: steps of hundreds of rows ---- */

/* Parts of a step of `width` rows: the subject's, and rows of others before and behind it
 * for the rest, with logits or without. Returns their number. */
uint32_t fti_pc_fill_width(const fti_pc_mock *mock, fti_pc_part *parts, fti_pc_part subject,
                           uint32_t width, bool all_logits);
void fti_pc_check_wide_variants(const fti_pc_target *target, const ftk_provider *table);

/* ---- areas.c: memory of a model by its plan ---- */

ftk_status fti_pc_check_plan(fti_pc_mock *mock);
ftk_status fti_pc_make_weights(fti_pc_mock *mock);
ftk_status fti_pc_make_caches(fti_pc_mock *mock);
void fti_pc_free_areas(fti_pc_mock *mock);
/* Finds what was written outside its place. */
void fti_pc_check_areas(fti_pc_mock *mock);
/* Around the work of a step: finds the slot that belongs to none of its sequences and was
 * written. */
void fti_pc_keep_slots(fti_pc_mock *mock);
void fti_pc_check_foreign_slots(const fti_pc_mock *mock);
bool fti_pc_slot_is_foreign(const fti_pc_mock *mock, uint32_t slot);

#endif
