/*
 * config.h: the operator's configuration, parsed and checked. Everything that an
 * engine may load, and every budget it must keep, is decided here.
 */
#ifndef FTI_CONFIG_H
#define FTI_CONFIG_H

#include "core/base.h"

typedef enum {
    FTI_BACKEND_AUTO,
    FTI_BACKEND_CPU,
    FTI_BACKEND_CUDA,
    FTI_BACKEND_HIP
} fti_backend_kind;
typedef enum { FTI_AUTO, FTI_ON, FTI_OFF } fti_switch; /* auto | on | off */
/* Elements of the KV cache; auto: f16, or f32 where numerics is float. */
typedef enum { FTI_KV_AUTO, FTI_KV_F16, FTI_KV_BF16, FTI_KV_Q8_0, FTI_KV_F32 } fti_kv_type;
typedef enum { FTI_NUMA_LOCAL, FTI_NUMA_INTERLEAVE } fti_numa;
typedef enum { FTI_NUMERICS_EXACT, FTI_NUMERICS_FLOAT } fti_numerics;
typedef enum { FTI_FUSED_AUTO, FTI_FUSED_REQUIRE, FTI_FUSED_OFF } fti_fused;

#define FTI_BYTES_AUTO    UINT64_MAX
#define FTI_AUTO_COUNT    UINT32_MAX
#define FTI_MAX_LINKED    16u
#define FTI_MAX_SETTINGS  64u
#define FTI_SET_BY_OPTION UINT32_MAX /* in place of a line: ftk_config_set */

typedef struct fti_allow {
    char *name;
    char *path;   /* absolute path of the .so, as written */
    char *sha256; /* 64 lower-case hex digits, or NULL: not pinned */
    unsigned line;
} fti_allow;

typedef struct fti_select {
    char *claim; /* "architecture/container" */
    char *name;
    unsigned line;
} fti_select;

typedef struct fti_provider_options {
    char *name;
    unsigned line;
    char *json; /* the mapping, as a JSON object of strings, numbers, booleans, lists */
} fti_provider_options;

struct ftk_config {
    char *origin; /* file name for messages, or what the application called it */
    bool from_file;

    char **search;
    size_t search_count;
    fti_allow *allow;
    size_t allow_count;
    fti_select *select;
    size_t select_count;

    fti_backend_kind backend;
    uint32_t device;
    fti_switch graphs;
    /* backend.kernels: every variant (auto), the reference only, or a mask of
     * variant bits whose meaning is the backend's. */
    uint32_t kernel_mask; /* UINT32_MAX auto, 0 reference */
    uint32_t threads;     /* backend.threads, 0 auto */
    bool pin;
    fti_numa numa;

    fti_numerics numerics;

    uint64_t memory_device;  /* bytes or FTI_BYTES_AUTO */
    uint64_t memory_reserve; /* bytes kept free of the device budget */
    uint64_t memory_host;    /* bytes or FTI_BYTES_AUTO */
    uint32_t kv_tokens;      /* context of the engine, 0: the model's, as far as it fits */
    fti_kv_type kv_type;
    uint32_t snapshots; /* of recurrent state, beside those of running requests; FTI_AUTO_COUNT */
    fti_switch ladder;

    uint32_t max_running;
    uint32_t prefill_tokens; /* rows of the largest step */
    bool prefix_cache;
    bool overcommit;
    bool preempt;  /* running requests make room for such of a higher priority */
    uint64_t swap; /* bytes on the host for requests that were taken off the device */

    fti_switch residency; /* experts in slots: on, off, or where they do not fit otherwise */
    uint32_t slots;       /* of each pool of layers of equal shape, 0 auto */
    fti_switch coexecution;
    bool collect_stats;

    fti_fused fused;

    fti_provider_options *options;
    size_t option_count;

    uint32_t setting_line[FTI_MAX_SETTINGS]; /* where each came from; 0: it is the default */

    /* What the application has linked in (loader.h); owned by the loader. */
    const struct fti_provider *linked[FTI_MAX_LINKED];
    size_t linked_count;
};

struct json_t;
/* Every setting that is one value: {"backend.threads": {"value": 4, "origin": "FILE:3"}, ...}
 * with "default" and "option" as other origins. The caller releases it; NULL without memory. */
struct json_t *fti_config_settings(const struct ftk_config *config);

/* FTK_E_CONFIG_VALUE for provider_options of a name that is neither allowed nor linked in. */
ftk_status fti_config_check_options(const struct ftk_config *config, ftk_error *err);

/* JSON of provider_options.NAME, or "" if there is none. */
ftk_str fti_config_options(const struct ftk_config *config, ftk_str provider);

#endif
