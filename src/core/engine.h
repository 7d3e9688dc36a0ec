/*
 * engine.h: the engine inside. engine.c brings it up and takes it down, host.c
 * is what the provider sees of it, plan.c turns the provider's plan into memory,
 * runner.c runs steps, provenance.c says what it is.
 */
#ifndef FTI_ENGINE_H
#define FTI_ENGINE_H

#include <jansson.h>

#include "backend/backend.h"
#include "core/checkpoint.h"
#include "core/config.h"
#include "core/lifecycle.h"
#include "core/loader.h"
#include "core/sampler.h"
#include "core/tokenizer.h"
#include "freetoken/freetoken.h"
#include "sched/budget.h"

#define FTI_PAGE_TOKENS 64u
#define FTI_MAX_NOTES   64u
/* Room for logits of one step; more rows are asked for in more steps. */
#define FTI_LOGIT_BYTES (64ull << 20)

/* What a provider call is made for: where its reports go. */
struct ftk_core_ctx {
    struct ftk_engine *engine;
    ftk_error report;       /* last error reported during the running call */
    bool report_names_file; /* it begins with the checkpoint's path */
    char *notes[FTI_MAX_NOTES];
    size_t note_count;
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
    char *origin;
} fti_settings;

/* Why a row of a variant table was passed over. */
typedef struct fti_skip {
    uint32_t table;
    uint32_t row;
    uint32_t reason; /* FTK_REASON_ */
} fti_skip;

/* A step's arrays on the device (as ftk_step has them) and their host twins. */
typedef struct fti_step_buffers {
    fti_block ids;    /* all int32 arrays, one after the other */
    fti_block logits; /* [logit_rows][vocabulary] */
    fti_block workspace;
    int32_t *host_ids;   /* staging for `ids` */
    float *host_logits;  /* [logit_rows][vocabulary] */
    uint32_t rows;       /* most rows of a step */
    uint32_t logit_rows; /* most rows of logits */
    uint32_t blocks;     /* entries of the block table */
    /* int32 offsets into ids */
    uint32_t tokens, positions, row_sequence, sequence_rows, state_slots, logit_index, block_table;
    uint32_t id_count;
} fti_step_buffers;

struct ftk_engine {
    fti_lifecycle lifecycle;
    ftk_core_ctx ctx;
    fti_settings settings;
    char *options_json; /* provider_options of the resolved provider */

    fti_checkpoint *checkpoint;
    ftk_str architecture;
    fti_backend *backend;
    uint32_t threads;
    const fti_provider *provider;
    ftk_model *model;
    ftk_model_info info;
    fti_tokenizer *tokenizer;
    uint8_t *allowed; /* [vocabulary] ids that may be sampled */

    ftk_plan plan;
    uint64_t workspace_bytes;
    fti_budget budget;

    ftk_weight *weights;  /* [plan.tensor_count] */
    ftk_bank_view *banks; /* [plan.bank_part_count] */
    fti_block *owned;     /* copies and computed tensors, [plan.tensor_count + bank_part_count] */
    void **computed;      /* [plan.tensor_count] */
    ftk_kv_view *kv;      /* [plan.kv_layer_count] */
    fti_block *kv_blocks; /* [2 * plan.kv_layer_count] */
    fti_block state;
    uint32_t kv_type;

    uint32_t *chosen; /* [variant_table_count] */
    fti_skip *skips;
    size_t skip_count;
    uint32_t graph_safe;

    fti_step_buffers buffers;
    ftk_stream *stream;
    fti_graph *decode_graph; /* of one row, or NULL: eager, for the reason below */
    char graph_reason[160];
    fti_sampler *sampler;
};

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

/* variants.c */
ftk_status fti_choose_variants(ftk_engine *engine, ftk_error *err);

/* runner.c */
ftk_status fti_capture_decode(ftk_engine *engine, ftk_error *err);

/* provenance.c */
json_t *fti_json_str(ftk_str text); /* invalid UTF-8 replaced */
ftk_status fti_json_dump(json_t *owned, char **out, ftk_error *err);

#endif
