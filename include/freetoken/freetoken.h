/*
 * freetoken.h: what an application links against. Open a model under an
 * operator's configuration, turn text into tokens, run it, read tokens back.
 *
 * Every function that can fail returns a status and, if `err` is not NULL,
 * explains a failure there. Structs that the caller fills begin with
 * struct_size; use the INIT macros. An engine may be used by one thread at a
 * time; different engines are independent. An engine does not survive fork():
 * its threads are gone in the child, which must not touch it.
 */
#ifndef FREETOKEN_FREETOKEN_H
#define FREETOKEN_FREETOKEN_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"
#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0": the release that is running, as against FTK_VERSION_STRING. */
FTK_API const char *ftk_version(void);

/* ---- configuration ------------------------------------------------------- */

typedef struct ftk_config ftk_config;

/* Reads a YAML file. The file and its folders must pass the trust checks
 * (docs/trust.md), since it decides which code may be loaded. */
FTK_API ftk_status ftk_config_load(const char *path, ftk_config **out, ftk_error *err);

/* Parses YAML from memory, which is the application's own trust decision.
 * `origin` names the text in messages. */
FTK_API ftk_status ftk_config_parse(const char *text, size_t size, const char *origin,
                                    ftk_config **out, ftk_error *err);

/* Overrides one scalar value, by key path: ("memory.device", "8GiB"). Keys below
 * `providers` cannot be set. */
FTK_API ftk_status ftk_config_set(ftk_config *config, const char *key, const char *value,
                                  ftk_error *err);
FTK_API void ftk_config_free(ftk_config *config); /* NULL is allowed */

/* ---- reports --------------------------------------------------------------- */

/* Reports are JSON texts in memory of the library: free with ftk_report_free. */
FTK_API void ftk_report_free(char *json);

/* Container, metadata and tensors of a checkpoint, without loading a provider.
 * Long arrays are given as their size. */
FTK_API ftk_status ftk_inspect(const char *model_path, char **json, ftk_error *err);

/* Providers that the search folders of a configuration hold and those that it
 * allows, each with the result of every check that runs no code. */
FTK_API ftk_status ftk_providers_report(const ftk_config *config, char **json, ftk_error *err);

/* What an entry of the allowlist for the provider at `path` (a folder that holds
 * NAME.provider.yaml, or that file) has to say: name, path and sha256, after the
 * same checks. */
FTK_API ftk_status ftk_provider_describe(const char *path, char **json, ftk_error *err);

/* ---- engine ------------------------------------------------------------------ */

typedef struct ftk_engine ftk_engine;

/* How far ftk_engine_open goes. */
#define FTK_OPEN_CONFIGURED 1u /* provider loaded, model configured, tokenizer ready */
#define FTK_OPEN_PLANNED    2u /* memory plan made; nothing allocated */
#define FTK_OPEN_READY      3u /* runs */

typedef struct ftk_open_options {
    uint32_t struct_size;
    uint32_t stop_after; /* FTK_OPEN_; 0 means READY */
    /* Called as opening proceeds, from the opening thread: stage is a static
     * string. A return other than 0 cancels with FTK_E_CANCELLED. May be NULL. */
    int (*progress)(void *user, const char *stage, uint64_t done, uint64_t total);
    void *user;
} ftk_open_options;

#define FTK_OPEN_OPTIONS_INIT                                                                      \
    { (uint32_t)sizeof(ftk_open_options), 0, NULL, NULL }

/* Opens a model. On success the caller owns *out; on failure everything is
 * released and *out is NULL. The configuration is copied as far as it is needed. */
FTK_API ftk_status ftk_engine_open(const ftk_config *config, const char *model_path,
                                   const ftk_open_options *options, ftk_engine **out,
                                   ftk_error *err);
FTK_API void ftk_engine_close(ftk_engine *engine); /* NULL is allowed */

/* JSON: who computes what, how: provider, levels, checkpoint, backend, variants
 * and fallbacks, policy, notes. Complete once READY. */
FTK_API ftk_status ftk_engine_provenance(const ftk_engine *engine, char **json, ftk_error *err);
/* JSON: the memory plan in bytes (from PLANNED on). */
FTK_API ftk_status ftk_engine_memory(const ftk_engine *engine, char **json, ftk_error *err);

FTK_API uint32_t ftk_engine_vocabulary(const ftk_engine *engine); /* entries of a row of logits */
FTK_API uint32_t ftk_engine_context(const ftk_engine *engine);    /* positions; 0 before PLANNED */
FTK_API uint32_t ftk_engine_layers(const ftk_engine *engine);
FTK_API uint32_t ftk_engine_hidden(const ftk_engine *engine);

/* ---- text ---------------------------------------------------------------------- */

#define FTK_TOKENIZE_SPECIAL 1u /* recognise control and user-defined tokens in the text */

/* Writes at most `capacity` ids and always the full number to *count; so a first
 * call with capacity 0 asks for the size. */
FTK_API ftk_status ftk_tokenize(const ftk_engine *engine, const char *text, size_t size,
                                uint32_t flags, int32_t *ids, size_t capacity, size_t *count,
                                ftk_error *err);

/* Bytes that a token decodes to (not NUL-terminated, maybe part of a character),
 * valid while the engine lives; control tokens give their name. */
FTK_API ftk_status ftk_token_text(const ftk_engine *engine, int32_t id, const char **text,
                                  size_t *size, ftk_error *err);

/* 1 if generation ends at this token. */
FTK_API int ftk_token_is_end(const ftk_engine *engine, int32_t id);

/* ---- running -------------------------------------------------------------------- */

typedef struct ftk_sampling {
    uint32_t struct_size;
    uint32_t top_k;    /* 0: off */
    float temperature; /* 0: greedy */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1); 0: off */
    uint32_t reserved0;
    uint64_t seed;
} ftk_sampling;

/* Greedy. */
#define FTK_SAMPLING_INIT                                                                          \
    { (uint32_t)sizeof(ftk_sampling), 0, 0.0f, 1.0f, 0.0f, 0, 0 }

#define FTK_FINISH_STOP      1u /* an end token */
#define FTK_FINISH_LENGTH    2u /* max_tokens or the context */
#define FTK_FINISH_CANCELLED 3u /* the callback said so */

typedef struct ftk_generate_options {
    uint32_t struct_size;
    uint32_t max_tokens; /* 0: until the context is full */
    uint32_t ignore_end; /* 1: go on past end tokens */
    uint32_t chunk;      /* prompt rows per step; 0: scheduler.prefill_tokens */
    ftk_sampling sampling;
    /* Each chosen token, as it is chosen; an end token is not delivered. A return
     * other than 0 stops. May be NULL. */
    int (*on_token)(void *user, int32_t id, const char *text, size_t size);
    void *user;
} ftk_generate_options;

#define FTK_GENERATE_OPTIONS_INIT                                                                  \
    { (uint32_t)sizeof(ftk_generate_options), 0, 0, 0, FTK_SAMPLING_INIT, NULL, NULL }

typedef struct ftk_generate_result {
    uint32_t struct_size;
    uint32_t finish; /* FTK_FINISH_ */
    uint64_t prompt_tokens;
    uint64_t tokens;        /* delivered */
    uint64_t prefill_steps; /* steps that ran the prompt */
    uint64_t decode_steps;  /* steps of one row */
    uint64_t graph_replays; /* decode steps that replayed a captured graph */
    double prefill_seconds; /* first step to first logits */
    double decode_seconds;  /* decode steps, sampling included */
    uint64_t hash;          /* XXH3-64 of the delivered ids as little-endian int32 */
} ftk_generate_result;

#define FTK_GENERATE_RESULT_INIT                                                                   \
    { (uint32_t)sizeof(ftk_generate_result), 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0 }

/* Runs one request from an empty state. FTK_E_CONTEXT if the prompt does not fit,
 * FTK_E_ARGUMENT for an empty prompt or an id outside the vocabulary. `result`
 * may be NULL. */
FTK_API ftk_status ftk_generate(ftk_engine *engine, const int32_t *prompt, size_t count,
                                const ftk_generate_options *options, ftk_generate_result *result,
                                ftk_error *err);

/* Logits of every position of a sequence run from an empty state. */
typedef struct ftk_evaluate_options {
    uint32_t struct_size;
    uint32_t chunk; /* rows per step; 0: scheduler.prefill_tokens */
    /* For each position in order: `logits` [vocabulary], and `layers` [layers]
     * [hidden], the residual stream after each layer, if want_layers. Valid during
     * the call. A return other than 0 stops with FTK_E_CANCELLED. */
    int (*on_logits)(void *user, size_t position, const float *logits, const float *layers);
    void *user;
    uint32_t want_layers;
    uint32_t reserved0;
} ftk_evaluate_options;

#define FTK_EVALUATE_OPTIONS_INIT                                                                  \
    { (uint32_t)sizeof(ftk_evaluate_options), 0, NULL, NULL, 0, 0 }

FTK_API ftk_status ftk_evaluate(ftk_engine *engine, const int32_t *ids, size_t count,
                                const ftk_evaluate_options *options, ftk_error *err);

#ifdef __cplusplus
}
#endif
#endif
