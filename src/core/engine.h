/*
 * engine.h: the engine inside. engine.c brings it up and takes it down, host.c is what
 * the provider sees of it, plan.c turns the provider's plan into memory, step.c runs one
 * step, move.c copies what sequences have in memory, serve.c runs requests, holdings.c says what
 * memory they have, evaluate.c logits, provenance.c says what it is.
 */
#ifndef FTI_ENGINE_H
#define FTI_ENGINE_H

#include <jansson.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "core/banks.h"
#include "core/checkpoint.h"
#include "core/config.h"
#include "core/lifecycle.h"
#include "core/loader.h"
#include "core/sampler.h"
#include "core/tokenizer.h"
#include "freetoken/freetoken.h"
#include "sched/ladder.h"
#include "sched/pages.h"

#define FTI_MAX_NOTES   64u
#define FTI_MAX_BUCKETS 16u
/* Room for logits of one step; more rows are asked for in more steps. */
#define FTI_LOGIT_BYTES (64ull << 20)

/* What a provider call is made for: where its reports go. */
struct ftk_core_ctx {
    struct ftk_engine *engine;
    ftk_error report;       /* last error reported during the running call */
    bool report_names_file; /* it begins with the checkpoint's path */
    char *notes[FTI_MAX_NOTES];
    size_t note_count;
    bool note_lost; /* during the running call, for want of memory */
};

/* One block of device memory. */
typedef struct fti_block {
    void *memory;
    uint64_t bytes;
} fti_block;

/* Settings that the engine keeps of its configuration. */
typedef struct fti_settings {
    fti_numerics numerics;
    fti_switch graphs;
    fti_fused fused;
    uint32_t kernel_mask;
    uint32_t prefill_tokens;
    uint32_t sequences; /* scheduler.max_running */
    bool prefix_cache, overcommit, preempt;
    uint64_t swap; /* bytes */
    char *origin;
    json_t *all; /* as fti_config_settings gives them */
} fti_settings;

/* Where the engine's messages go. */
typedef struct fti_log_target {
    void (*line)(void *user, uint32_t level, const char *line, size_t size);
    void *user;
    uint32_t level;
} fti_log_target;

/* Why a row of a variant table was passed over. */
typedef struct fti_skip {
    uint32_t table;
    uint32_t row;
    uint32_t reason;                 /* FTK_REASON_ */
    const ftk_capability_need *need; /* that is not met, or NULL */
    int64_t found;                   /* its value here, where there is one */
} fti_skip;

/* A step's arrays on the device (as ftk_step has them) and their host twins. */
typedef struct fti_step_buffers {
    fti_block ids;    /* all int32 arrays, one after the other */
    fti_block logits; /* [logit_rows][vocabulary] */
    fti_block workspace;
    int32_t *host_ids;   /* staging for `ids` */
    float *host_logits;  /* [logit_rows][vocabulary] */
    uint32_t rows;       /* most rows of a step */
    uint32_t sequences;  /* most sequences of a step */
    uint32_t logit_rows; /* most rows of logits */
    uint32_t blocks;     /* entries of the block table per sequence */
    /* int32 offsets into ids */
    uint32_t tokens, positions, row_sequence, sequence_rows, state_slots, logit_index, block_table;
    uint32_t id_count;
} fti_step_buffers;

/* Memory on the host for requests that were taken off the device. */
typedef struct fti_swap {
    char *memory;         /* [units][unit_bytes] */
    uint64_t unit_bytes;  /* of a KV page, keys and values of all layers */
    uint32_t state_units; /* that hold a recurrent state */
} fti_swap;

/* The captured decode step of `rows` sequences with one row each. */
typedef struct fti_decode_graph {
    uint32_t rows;
    fti_graph *graph;
} fti_decode_graph;

typedef struct fti_service fti_service; /* serve.c */

struct ftk_engine {
    fti_lifecycle lifecycle;
    pid_t pid;     /* of the process that opened it, */
    unsigned mark; /* and what a fork does not keep of it */
    ftk_core_ctx ctx;
    fti_settings settings;
    fti_log_target log;
    char *options_json; /* provider_options of the resolved provider */

    fti_checkpoint *checkpoint;
    ftk_str architecture;
    fti_backend *backend;
    uint32_t threads;
    const fti_provider *provider;
    ftk_model *model;
    ftk_model_info info;
    fti_tokenizer *tokenizer;
    size_t longest_piece; /* bytes of the longest token */
    uint8_t *allowed;     /* [vocabulary] ids that may be sampled */

    ftk_plan plan;
    uint64_t workspace_bytes;
    fti_budget budget; /* of the ladder's chosen rung */
    fti_ladder ladder;

    ftk_weight *weights;  /* [plan.tensor_count] */
    ftk_bank_view *banks; /* [plan.bank_part_count] */
    fti_banks pools;      /* of expert slots; in use where ladder.resident */
    fti_block *owned;     /* copies and computed tensors, [plan.tensor_count + bank_part_count] */
    void **computed;      /* [plan.tensor_count] */
    ftk_kv_view *kv;      /* [plan.kv_layer_count] */
    fti_block *kv_blocks; /* [2 * plan.kv_layer_count] */
    fti_block state;      /* [sequences + budget.snapshots][plan.state_bytes] */
    uint32_t kv_type;

    uint32_t *chosen; /* [variant_table_count] */
    fti_skip *skips;
    size_t skip_count;
    uint32_t graph_safe;

    fti_step_buffers buffers;
    ftk_stream *stream;
    fti_decode_graph graphs[FTI_MAX_BUCKETS]; /* largest first */
    size_t graph_count;
    char graph_reason[160]; /* why decode steps run eagerly, where they do */
    fti_sampler *sampler;
    fti_service *service;
};

/* FTK_E_STATE unless `stage` has been reached, in the process that opened the engine. */
ftk_status fti_engine_need(const ftk_engine *engine, fti_stage stage, ftk_error *err);
void fti_log(const ftk_engine *engine, uint32_t level, const char *format, ...) FTI_PRINTF(3, 4);
/* FTK_E_ARGUMENT unless struct_size is what this release has. */
ftk_status fti_check_size(uint32_t found, size_t wanted, const char *what, ftk_error *err);

/* host.c */
extern const ftk_host fti_host;
/* Forgets the last report before a call; afterwards turns a failure of a provider
 * call into the engine's error. */
void fti_ctx_begin(ftk_core_ctx *ctx);
ftk_status fti_ctx_end(ftk_core_ctx *ctx, ftk_status status, const char *call, ftk_error *err);
void fti_ctx_note(ftk_core_ctx *ctx, ftk_str text);

/* plan.c */
ftk_status fti_plan_weights(ftk_engine *engine, ftk_error *err);
ftk_status fti_plan_memory(ftk_engine *engine, const struct ftk_config *config, ftk_error *err);
ftk_status fti_allocate(ftk_engine *engine, ftk_error *err);
ftk_status fti_load_weights(ftk_engine *engine, const ftk_open_options *options, ftk_error *err);
void fti_release_memory(ftk_engine *engine);
const ftk_bank_part *fti_plan_bank(const ftk_plan *plan, uint64_t i);

/* variants.c */
ftk_status fti_choose_variants(ftk_engine *engine, ftk_error *err);
const char *fti_reason_text(uint32_t reason); /* of the closed list FTK_REASON_ */

/* step.c */

/* One sequence's part of a step: `rows` tokens from position `first` on; the logits of
 * its last `logit_rows` rows are wanted. */
typedef struct fti_sequence {
    const int32_t *tokens;
    const int32_t *pages;
    uint64_t first;
    uint32_t rows;
    uint32_t logit_rows;
    uint32_t page_count;
    int32_t slot;
} fti_sequence;

/* Runs a step of `count` sequences to its end. host_logits then holds the wanted rows,
 * sequence after sequence. `layers` (may be NULL) is device memory for the layers'
 * outputs. *replayed says whether a graph ran. */
ftk_status fti_run_step(ftk_engine *engine, const fti_sequence *sequences, uint32_t count,
                        float *layers, bool *replayed, ftk_error *err);
/* State zero for a slot. */
ftk_status fti_clear_state(ftk_engine *engine, int32_t slot, ftk_error *err);

/* move.c: copies of what a sequence has in memory, on the engine's stream */
ftk_status fti_copy_state(ftk_engine *engine, int32_t to, int32_t from, ftk_error *err);
ftk_status fti_copy_page(ftk_engine *engine, int32_t to, int32_t from, ftk_error *err);
/* Between pages[page_count] and the state of `slot` on the device, and units[] of the swap
 * space: those of the pages, then those of the state. Done when they return. */
ftk_status fti_swap_out(ftk_engine *engine, const fti_swap *swap, const int32_t *units,
                        const int32_t *pages, uint32_t page_count, int32_t slot, ftk_error *err);
ftk_status fti_swap_in(ftk_engine *engine, const fti_swap *swap, const int32_t *units,
                       const int32_t *pages, uint32_t page_count, int32_t slot, ftk_error *err);
ftk_status fti_capture_decode(ftk_engine *engine, ftk_error *err);

/* serve.c */
ftk_status fti_service_create(ftk_engine *engine, ftk_error *err);
void fti_service_destroy(ftk_engine *engine);
/* The right to run steps: FTK_E_STATE if another one has it. */
ftk_status fti_steps_begin(ftk_engine *engine, ftk_error *err);
void fti_steps_end(ftk_engine *engine);
/* For evaluate.c, between begin and end: a slot and pages for one sequence of `tokens`
 * tokens. FTK_E_STATE while requests have not ended. */
ftk_status fti_service_borrow(ftk_engine *engine, uint64_t tokens, int32_t *slot, int32_t *pages,
                              uint32_t *page_count, ftk_error *err);
void fti_service_return(ftk_engine *engine, int32_t slot, const int32_t *pages,
                        uint32_t page_count);
/* For the provenance and the statistics; `owned` objects. */
json_t *fti_service_stats(const ftk_engine *engine);
void fti_service_stats_text(const ftk_engine *engine, fti_text *out);

/* requests as they are asked for, checked; ids in *prompt to be freed */
ftk_status fti_check_ids(const ftk_engine *engine, const int32_t *ids, size_t count,
                         ftk_error *err);

/* provenance.c */
json_t *fti_json_str(ftk_str text); /* invalid UTF-8 replaced */
/* Both take `owned` over. Without memory the whole object or array is dropped and becomes
 * NULL, as whatever it is put into then does: a report is complete, or there is none. */
void fti_json_set(json_t **object, const char *key, json_t *owned);
void fti_json_append(json_t **array, json_t *owned);
ftk_status fti_json_dump(json_t *owned, char **out, ftk_error *err);

#endif
