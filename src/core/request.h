/*
 * request.h: one request from submission to its last event: what it asked for, how far
 * it is, and the text it has written. Everything that a step needs of it is allocated at
 * submission, so that decoding allocates nothing (events that wait to be polled
 * excepted: their queue grows).
 */
#ifndef FTI_REQUEST_H
#define FTI_REQUEST_H

#include "core/detokenizer.h"
#include "core/sampler.h"
#include "core/tokenizer.h"
#include "freetoken/freetoken.h"
#include "sched/prefix.h"
#include "sched/queue.h"
#include "sched/steps.h"

#include <stdatomic.h>
#include <xxhash.h>

#define FTI_MAX_STOPS 16u

/* Text on its way out: bytes that may still turn out to be the beginning of a stop
 * string are held back. */
typedef struct fti_text_out {
    char *buffer; /* held text, then room for one more piece */
    size_t held;  /* bytes of it */
    size_t capacity;
    char *stops[FTI_MAX_STOPS];
    size_t stop_size[FTI_MAX_STOPS];
    size_t stop_count;
    fti_detokenizer detokenizer;
} fti_text_out;

/* Adds a token's bytes. *ready is the size of the text at the start of `buffer` that is
 * certain; it is taken off with fti_text_out_take. True when a stop string has appeared:
 * then the text ends before it. */
bool fti_text_out_push(fti_text_out *out, ftk_str piece, size_t *ready);
/* All that is held back, at the end of a request. */
size_t fti_text_out_flush(fti_text_out *out);
void fti_text_out_take(fti_text_out *out, size_t size);

/* An event waiting to be polled; text and logprobs follow it in one block. */
typedef struct fti_queued_event {
    struct fti_queued_event *next;
    uint64_t number; /* in order over all requests of the engine */
    ftk_event event;
    char data[]; /* text, NUL, message */
} fti_queued_event;

typedef enum { FTI_REQUEST_WAITING, FTI_REQUEST_RUNNING, FTI_REQUEST_ENDED } fti_request_state;

typedef struct fti_request {
    fti_waiter waiter;                   /* first, see fti_request_of */
    struct fti_request *previous, *next; /* in order of arrival */
    uint64_t id;
    fti_request_state state;
    atomic_bool cancelled; /* asked for, by any thread; takes effect within a step */

    int32_t *ids; /* prompt and chosen tokens: [capacity] */
    size_t capacity;
    fti_request_counts counts;
    uint64_t said;       /* of a dialogue: tokens before the answer is opened, else 0 */
    uint32_t max_tokens; /* of this request, never 0 */
    bool ignore_end;
    fti_sampling sampling;
    ftk_logit_bias *biases; /* owned copy that sampling points to */

    /* What it holds (holdings.c). */
    int32_t slot;                    /* of recurrent state, while running; -1: none */
    int32_t reserve;                 /* slot for a snapshot at the prompt's end; -1: none */
    int32_t *pages;                  /* of the KV cache, while running: [page_limit] */
    uint32_t page_count, page_limit; /* held; that it may come to need */
    int32_t *units;                  /* of swap space: [unit_limit] */
    uint32_t unit_count, unit_limit; /* held; that it may come to need, 0 without swap space */
    bool swapped;                    /* its pages and state lie in `units` */
    bool matched;                    /* it is a holder of what `match` names */
    fti_prefix_match match;          /* where it can go on from */
    uint64_t peak; /* positions that have run, before a preemption threw them away */

    fti_text_out text;
    XXH3_state_t *hash;
    double submitted;
    double started;     /* first step, 0 before */
    double first_token; /* when its logits came; 0 before */
    double last_token;
    ftk_generate_result result;
    uint64_t reused;      /* tokens that the prefix cache had */
    uint64_t preemptions; /* of this request */

    int (*on_event)(void *user, const ftk_event *event);
    void *user;
    fti_queued_event *done_event; /* reserved at submission, so that DONE never fails */
    bool starved;                 /* an event could not be queued for lack of memory */
    fti_queued_event *first_event, *last_event; /* when polled */
} fti_request;

/* What the sampler is told of an application's wishes. `biases` are borrowed. */
static inline fti_sampling fti_sampling_of(const ftk_sampling *s, const ftk_logit_bias *biases,
                                           uint32_t logprobs) {
    return (fti_sampling){.temperature = s->temperature,
                          .top_p = s->top_p,
                          .min_p = s->min_p,
                          .repetition_penalty = s->repetition_penalty,
                          .presence_penalty = s->presence_penalty,
                          .frequency_penalty = s->frequency_penalty,
                          .top_k = s->top_k,
                          .penalty_last = s->penalty_last,
                          .logprobs = logprobs,
                          .bias_count = s->bias_count,
                          .biases = biases,
                          .seed = s->seed};
}

/* What bounds every request of an engine. */
typedef struct fti_request_limits {
    uint32_t context;     /* tokens of prompt and answer */
    size_t longest_piece; /* bytes of a token */
    uint32_t most_rows;   /* of a prompt in one step */
    bool swaps;           /* there is swap space, */
    uint32_t state_units; /* of which a recurrent state takes so much */
} fti_request_limits;

/* Copies a checked request whose prompt is `prompt`. */
ftk_status fti_request_create(const ftk_request *asked, const int32_t *prompt, size_t count,
                              const fti_request_limits *limits, fti_request **out, ftk_error *err);
void fti_request_free(fti_request *request);

/* Queues a copy of `event`, the engine's `number`-th; false: out of memory. */
bool fti_request_queue(fti_request *request, const ftk_event *event, uint64_t number);

static inline fti_request *fti_request_of(fti_waiter *waiter) {
    return (fti_request *)waiter;
}

/* Positions that this request may come to occupy. */
static inline uint64_t fti_request_positions(const fti_request *r) {
    return r->counts.prompt + r->max_tokens - 1;
}

static inline uint32_t fti_pages_for(uint64_t positions) {
    return (uint32_t)((positions + FTI_PAGE_TOKENS - 1) / FTI_PAGE_TOKENS);
}

/* Tokens that there are: the prompt's and the chosen ones. */
static inline uint64_t fti_request_known(const fti_request *r) {
    return r->counts.prompt + r->counts.chosen;
}

#endif
