/*
 * freetoken.h: what an application links against. Open a model under an
 * operator's configuration, turn text into tokens, run it, read tokens back.
 *
 * Every function that can fail returns a status and, if `err` is not NULL,
 * explains a failure there. Structs that the caller fills begin with
 * struct_size, set by their INIT macro; members are only ever appended. Strings
 * are UTF-8; a pointer handed in is read before the call returns, unless its
 * declaration says otherwise.
 *
 * Threads. Any thread may call ftk_submit, ftk_cancel, ftk_poll, ftk_tokenize,
 * ftk_token_text, ftk_format_chat, the reports and the small questions at any time
 * between open and close. One thread at a time may run steps: ftk_engine_step,
 * ftk_generate, ftk_evaluate, or the engine's own thread (ftk_engine_start);
 * another one is answered with FTK_E_STATE. ftk_engine_close must be the last call.
 * Callbacks run on the thread that runs the step, with no lock of the library
 * held: they may submit, cancel and ask, but not run steps or close. Engines are
 * independent of each other. Every entry that computes runs in the default
 * floating-point environment, callbacks included, and restores the caller's.
 *
 * fork(): an engine stays with the process that opened it. In a child every call
 * on it fails with FTK_E_STATE, and ftk_engine_close does nothing.
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

/* Adds a provider that is part of the program: `entry` is its freetoken_provider_v1. What is
 * the program's own needs no line in the configuration and no check of files; the rules of
 * levels, versions, hardware and claims are those of a provider that is loaded. A pair that an
 * allowed provider claims too is an error when an engine opens, unless providers.select names
 * that one. At most 16. */
struct ftk_provider;
FTK_API ftk_status ftk_config_link_provider(ftk_config *config,
                                            const struct ftk_provider *(*entry)(void),
                                            ftk_error *err);

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

/* Holds every kernel variant of this machine against the reference, bit for bit, and
 * replays against eager runs; with a model (`model_path` may be NULL) also whole
 * generations with each against those of the reference. JSON: backend, features,
 * checks [{name, variant, status ("ok", "failed", "skipped"), detail}], passed, failed,
 * skipped. A check that fails is no failure of the call. */
FTK_API ftk_status ftk_selftest(const ftk_config *config, const char *model_path, char **json,
                                ftk_error *err);

/* ---- engine ------------------------------------------------------------------ */

typedef struct ftk_engine ftk_engine;

/* How far ftk_engine_open goes. */
#define FTK_OPEN_CONFIGURED 1u /* provider loaded, model configured, tokenizer ready */
#define FTK_OPEN_PLANNED    2u /* memory plan made; nothing allocated */
#define FTK_OPEN_READY      3u /* runs */

#define FTK_LOG_DEBUG   0u
#define FTK_LOG_INFO    1u
#define FTK_LOG_WARNING 2u
#define FTK_LOG_ERROR   3u

typedef struct ftk_open_options {
    uint32_t struct_size;
    uint32_t stop_after; /* FTK_OPEN_; 0 means READY */
    /* Called as opening proceeds, from the opening thread: stage is a static
     * string. A return other than 0 cancels with FTK_E_CANCELLED. May be NULL. */
    int (*progress)(void *user, const char *stage, uint64_t done, uint64_t total);
    void *user;
    /* Called with one line (not NUL-terminated) for everything of `log_level` and
     * above that happens in the engine, from the thread it happens on. May be NULL. */
    void (*log)(void *user, uint32_t level, const char *line, size_t size);
    void *log_user;
    uint32_t log_level; /* FTK_LOG_ */
    uint32_t reserved0;
    /* What ftk_engine_record said in the process that started this one (by exec, not by a bare
     * fork): opening fails with FTK_E_PROVIDER_RECORD, before any code of a provider runs, if
     * this process would resolve another one. May be NULL. */
    const char *provider_record;
} ftk_open_options;

#define FTK_OPEN_OPTIONS_INIT                                                                      \
    { (uint32_t)sizeof(ftk_open_options), 0, NULL, NULL, NULL, NULL, FTK_LOG_INFO, 0, NULL }

/* Opens a model. On success the caller owns *out; on failure everything is
 * released and *out is NULL. The configuration is copied as far as it is needed. */
FTK_API ftk_status ftk_engine_open(const ftk_config *config, const char *model_path,
                                   const ftk_open_options *options, ftk_engine **out,
                                   ftk_error *err);
/* The same over a checkpoint in memory, which must stay as it is until the engine is
 * closed. `name` stands for the path in messages and reports. */
FTK_API ftk_status ftk_engine_open_memory(const ftk_config *config, const void *data, size_t size,
                                          const char *name, const ftk_open_options *options,
                                          ftk_engine **out, ftk_error *err);
/* Stops the engine's thread, drops requests that have not ended (their callbacks are
 * not called again) and releases everything. NULL is allowed. */
FTK_API void ftk_engine_close(ftk_engine *engine);

/* JSON: who computes what, how: provider, levels, checkpoint, backend, variants
 * and fallbacks, policy, notes. Complete once READY. */
FTK_API ftk_status ftk_engine_provenance(const ftk_engine *engine, char **json, ftk_error *err);
/* Which provider this process resolved, as lines of text to hand to processes that it starts:
 * see ftk_open_options.provider_record. Free with ftk_report_free. */
FTK_API ftk_status ftk_engine_record(const ftk_engine *engine, char **record, ftk_error *err);
/* Forgets what the prefix cache has kept of earlier requests (scheduler.prefix_cache): their
 * tokens, keys, values and states, whose memory is free for others but is not wiped. Running
 * requests go on. From any thread. */
FTK_API ftk_status ftk_engine_forget(ftk_engine *engine, ftk_error *err);
/* JSON: what has run since READY: steps, executed batch sizes, tokens, graph replays, requests
 * running and waiting, and why they wait, KV pages in use and cached, tokens reused
 * and recomputed, preemptions, times in the queue, to the first
 * token and between tokens. docs/api.md lists the keys. */
FTK_API ftk_status ftk_engine_stats(const ftk_engine *engine, char **json, ftk_error *err);
/* The same numbers in the text format of Prometheus. Free with ftk_report_free. */
FTK_API ftk_status ftk_engine_stats_text(const ftk_engine *engine, char **text, ftk_error *err);
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

/* Turns ids into text that never ends inside a character: bytes of an incomplete
 * one are held back until it is complete, or cannot become so. All the text
 * together is exactly the bytes of all tokens. Owned by the caller; the engine must
 * outlive it; one thread at a time. */
typedef struct ftk_detokenizer ftk_detokenizer;
FTK_API ftk_status ftk_detokenizer_create(const ftk_engine *engine, ftk_detokenizer **out,
                                          ftk_error *err);
/* *text is valid until the next call on this detokenizer. */
FTK_API ftk_status ftk_detokenizer_push(ftk_detokenizer *detokenizer, int32_t id, const char **text,
                                        size_t *size, ftk_error *err);
/* What is still held back: at most three bytes, no whole character. Starts anew. */
FTK_API size_t ftk_detokenizer_flush(ftk_detokenizer *detokenizer, const char **text);
FTK_API void ftk_detokenizer_free(ftk_detokenizer *detokenizer); /* NULL is allowed */

/* ---- chat ------------------------------------------------------------------------ */

/* An array of messages has the first one's struct_size as its stride. */
typedef struct ftk_message {
    uint32_t struct_size;
    uint32_t reserved0;
    const char *role; /* "system" (first only), "user" or "assistant" */
    const char *content;
    size_t content_size;
} ftk_message;

#define FTK_MESSAGE_INIT                                                                           \
    { (uint32_t)sizeof(ftk_message), 0, NULL, NULL, 0 }

#define FTK_CHAT_NO_ANSWER   1u /* do not open the assistant's turn at the end */
#define FTK_CHAT_NO_THINKING 2u /* where the model can think before it answers: do not */

/* Ids of a dialogue, formatted as the model was trained. Content is plain text: what
 * looks like a control token in it stays text. Writes like ftk_tokenize.
 * FTK_E_UNSUPPORTED if the model was not trained on dialogues. */
FTK_API ftk_status ftk_format_chat(const ftk_engine *engine, const ftk_message *messages,
                                   size_t message_count, uint32_t flags, int32_t *ids,
                                   size_t capacity, size_t *count, ftk_error *err);

/* ---- requests --------------------------------------------------------------------- */

typedef struct ftk_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -INFINITY bans the token */
} ftk_logit_bias;

/* Applied in this order: bias, repetition, presence and frequency penalties over
 * the last tokens, temperature, top-k, top-p, min-p, draw. Draws are a function of
 * seed and position alone. Ties go to the lowest id. */
typedef struct ftk_sampling {
    uint32_t struct_size;
    uint32_t top_k;           /* 0: off */
    float temperature;        /* 0: greedy */
    float top_p;              /* (0, 1]; 1: off */
    float min_p;              /* [0, 1); 0: off */
    float repetition_penalty; /* above 0; 1: off */
    float presence_penalty;   /* 0: off */
    float frequency_penalty;  /* 0: off */
    uint64_t seed;
    const ftk_logit_bias *biases; /* copied at submit */
    uint32_t bias_count;
    uint32_t penalty_last; /* tokens that penalties look back on; 0: all */
} ftk_sampling;

/* Greedy. */
#define FTK_SAMPLING_INIT                                                                          \
    { (uint32_t)sizeof(ftk_sampling), 0, 0.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, 0, NULL, 0, 0 }

#define FTK_FINISH_STOP      1u /* an end token or a stop string */
#define FTK_FINISH_LENGTH    2u /* max_tokens or the context */
#define FTK_FINISH_CANCELLED 3u /* ftk_cancel, or the callback said so */
#define FTK_FINISH_ERROR     4u /* see status and message of the event */

typedef struct ftk_generate_result {
    uint32_t struct_size;
    uint32_t finish; /* FTK_FINISH_ */
    uint64_t prompt_tokens;
    uint64_t tokens;        /* delivered */
    uint64_t prefill_steps; /* steps that ran rows of the prompt */
    uint64_t decode_steps;  /* steps that ran a chosen token */
    uint64_t graph_replays; /* of these, replays of a captured graph */
    double prefill_seconds; /* first step to first token */
    double decode_seconds;  /* first token to the end */
    uint64_t hash;          /* XXH3-64 of the delivered ids as little-endian int32 */
} ftk_generate_result;

#define FTK_GENERATE_RESULT_INIT                                                                   \
    { (uint32_t)sizeof(ftk_generate_result), 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0 }

#define FTK_EVENT_NONE  0u /* of ftk_poll: nothing happened in time */
#define FTK_EVENT_TOKEN 1u /* a token was chosen */
#define FTK_EVENT_DONE  2u /* the request ended; exactly one, the last */

#define FTK_MAX_LOGPROBS 20u

/* Pointers are valid during the callback; those of a polled event until
 * ftk_event_release. */
typedef struct ftk_event {
    uint32_t struct_size;
    uint32_t type; /* FTK_EVENT_ */
    uint64_t request;
    /* TOKEN: text that became certain with this token, never half a character, and
     * never the beginning of a stop string; may be empty. DONE: what was held back. */
    const char *text;
    size_t text_size;
    int32_t token; /* TOKEN */
    float logprob; /* TOKEN, when the request asked for logprobs */
    uint32_t top_count;
    ftk_status status;          /* DONE: FTK_OK, or why the request failed */
    const int32_t *top_ids;     /* [top_count] most likely tokens, falling */
    const float *top_logprobs;  /* [top_count] */
    const char *message;        /* DONE with a failure: one line, NUL-terminated */
    ftk_generate_result result; /* DONE */
    void *storage;              /* the library's; NULL in callbacks */
    uint64_t reused_tokens;     /* DONE: that the prefix cache had: they took part in no step */
    uint64_t preemptions;       /* DONE: times that the request made room for others */
} ftk_event;

#define FTK_EVENT_INIT                                                                             \
    {                                                                                              \
        (uint32_t)sizeof(ftk_event), 0, 0, NULL, 0, 0, 0.0f, 0, 0, NULL, NULL, NULL,               \
            FTK_GENERATE_RESULT_INIT, NULL, 0, 0                                                   \
    }

/* What to run: exactly one of tokens, text and messages. Everything is copied. */
typedef struct ftk_request {
    uint32_t struct_size;
    uint32_t max_tokens; /* 0: until the context is full */
    const int32_t *tokens;
    size_t token_count;
    const char *text;
    size_t text_size;
    const ftk_message *messages;
    size_t message_count;
    const char *const *stop; /* strings that end generation and are not delivered */
    size_t stop_count;       /* at most 16 */
    uint32_t text_flags;     /* FTK_TOKENIZE_ */
    uint32_t chat_flags;     /* FTK_CHAT_ */
    uint32_t ignore_end;     /* 1: go on past end tokens */
    uint32_t logprobs;       /* most likely tokens to report beside each, at most 20; 0: off */
    int32_t priority;        /* the larger, the sooner; equal ones in order of arrival */
    uint32_t chunk;          /* prompt rows per step; 0: scheduler.prefill_tokens */
    ftk_sampling sampling;
    /* Every event of the request. A return other than 0 cancels it. NULL: events wait
     * for ftk_poll. */
    int (*on_event)(void *user, const ftk_event *event);
    void *user;
} ftk_request;

#define FTK_REQUEST_INIT                                                                           \
    {                                                                                              \
        (uint32_t)sizeof(ftk_request), 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0,    \
            FTK_SAMPLING_INIT, NULL, NULL                                                          \
    }

/* Queues a request and gives its number, which is never used again. Fails at once,
 * with numbers, if the request can never run: FTK_E_CONTEXT, FTK_E_ARGUMENT. */
FTK_API ftk_status ftk_submit(ftk_engine *engine, const ftk_request *request, uint64_t *id,
                              ftk_error *err);

/* Ends a request within one step; its DONE event still comes. FTK_E_NOT_FOUND if there
 * is none of that number, or its DONE has been delivered. */
FTK_API ftk_status ftk_cancel(ftk_engine *engine, uint64_t id, ftk_error *err);

/* Runs one step: starts waiting requests as far as there is room, then runs one row of each
 * running request that has its prompt behind it, and prompt rows of the others, up to
 * scheduler.prefill_tokens rows in all. *rows is the number of rows that ran; 0 means that
 * there is nothing to do. Never 0 with FTK_OK while requests wait that cannot start: then
 * FTK_E_INTERNAL, and the one that holds up the others has ended. */
FTK_API ftk_status ftk_engine_step(ftk_engine *engine, uint32_t *rows, ftk_error *err);

/* The oldest event of request `id`, or of any that is polled with id 0. Waits at most
 * timeout_ms (0: not at all) for the engine's thread or another one to bring it; an event
 * of type NONE means that none came. The caller releases what it gets. FTK_E_NOT_FOUND for
 * a number that is not, or no longer, a polled request. */
FTK_API ftk_status ftk_poll(ftk_engine *engine, uint64_t id, uint32_t timeout_ms, ftk_event *event,
                            ftk_error *err);
FTK_API void ftk_event_release(ftk_event *event); /* makes it an event of type NONE */

/* An own thread that runs steps while there are requests, from start to stop. */
FTK_API ftk_status ftk_engine_start(ftk_engine *engine, ftk_error *err);
FTK_API ftk_status ftk_engine_stop(ftk_engine *engine, ftk_error *err);

/* ---- one request, to its end -------------------------------------------------------- */

typedef struct ftk_generate_options {
    uint32_t struct_size;
    uint32_t max_tokens; /* 0: until the context is full */
    uint32_t ignore_end; /* 1: go on past end tokens */
    uint32_t chunk;      /* prompt rows per step; 0: scheduler.prefill_tokens */
    ftk_sampling sampling;
    /* Each chosen token, as it is chosen, with the bytes it decodes to; an end token is
     * not delivered. A return other than 0 stops. May be NULL. */
    int (*on_token)(void *user, int32_t id, const char *text, size_t size);
    void *user;
} ftk_generate_options;

#define FTK_GENERATE_OPTIONS_INIT                                                                  \
    { (uint32_t)sizeof(ftk_generate_options), 0, 0, 0, FTK_SAMPLING_INIT, NULL, NULL }

/* Submits one request and runs steps until it has ended (or waits, where the engine has
 * its own thread). FTK_E_CONTEXT if the prompt does not fit, FTK_E_ARGUMENT for an empty
 * prompt or an id outside the vocabulary. `result` may be NULL. */
FTK_API ftk_status ftk_generate(ftk_engine *engine, const int32_t *prompt, size_t count,
                                const ftk_generate_options *options, ftk_generate_result *result,
                                ftk_error *err);

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

/* Runs a sequence from an empty state and hands out the logits of every position. Needs
 * the engine to itself: FTK_E_STATE while requests have not ended. */
FTK_API ftk_status ftk_evaluate(ftk_engine *engine, const int32_t *ids, size_t count,
                                const ftk_evaluate_options *options, ftk_error *err);

#ifdef __cplusplus
}
#endif
#endif
