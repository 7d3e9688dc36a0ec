/*
 * serve.c: requests: submitted from any thread, run by whoever has the right to run
 * steps, ended exactly once. The lock guards the lists, the pools and the counters; it is
 * never held while a step runs or a callback is called.
 *
 * A request belongs to the thread that runs steps from admission to its end: only that
 * thread touches its tokens, text and state. Other threads may set `cancelled` and look at
 * `state`, under the lock.
 */
#include "core/serve.h"

#include "core/fpenv.h"
#include "core/service.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

double fti_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- life ---- */

static void destroy_service(fti_service *s) {
    for (fti_request *r = s->requests; r;) {
        fti_request *next = r->next;
        fti_request_free(r);
        r = next;
    }
    fti_holdings_destroy(s);
    fti_stats_destroy(&s->stats);
    void *const owned[] = {s->runners, s->batch, s->counts, s->shares, s->sequence_parts};
    for (size_t i = 0; i < FTI_COUNT(owned); i++) fti_free(owned[i]);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    fti_free(s);
}

static void init_sync(fti_service *s) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

ftk_status fti_service_create(ftk_engine *e, ftk_error *err) {
    uint32_t n = e->settings.sequences;
    fti_service *s = fti_calloc(1, sizeof *s);
    if (!s) return fti_no_memory(err, sizeof *s, "the request service");
    init_sync(s);
    s->next_id = 1;
    s->runners = fti_calloc(n, sizeof(fti_request *)); /* NOLINT(bugprone-sizeof-expression) */
    s->batch = fti_calloc(n, sizeof(fti_request *));   /* NOLINT(bugprone-sizeof-expression) */
    s->counts = fti_calloc(n, sizeof *s->counts);
    s->shares = fti_calloc(n, sizeof *s->shares);
    s->sequence_parts = fti_calloc(n, sizeof *s->sequence_parts);
    ftk_status status = fti_holdings_create(e, s, err);
    if (status == FTK_OK && (!fti_stats_create(&s->stats, e->buffers.rows, n) || !s->runners ||
                             !s->batch || !s->counts || !s->shares || !s->sequence_parts))
        status = fti_no_memory(err, (uint64_t)n * sizeof *s->sequence_parts, "the request service");
    if (status == FTK_OK)
        e->service = s;
    else
        destroy_service(s);
    return status;
}

void fti_service_destroy(ftk_engine *e) {
    if (!e->service) return;
    (void)ftk_engine_stop(e, NULL);
    destroy_service(e->service);
    e->service = NULL;
}

/* ---- the right to run steps ---- */

ftk_status fti_steps_begin(ftk_engine *e, ftk_error *err) {
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    bool busy = s->stepping, threaded = s->threaded;
    if (!busy) s->stepping = true;
    pthread_mutex_unlock(&s->lock);
    if (!busy) return FTK_OK;
    return fti_fail(err, FTK_E_STATE,
                    threaded ? "the engine's own thread runs steps: stop it first (ftk_engine_stop)"
                             : "another call is running steps on this engine");
}

void fti_steps_end(ftk_engine *e) {
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    s->stepping = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

ftk_status fti_service_borrow(ftk_engine *e, uint64_t tokens, int32_t *slot, int32_t *pages,
                              uint32_t *page_count, ftk_error *err) {
    fti_service *s = e->service;
    uint32_t count = fti_pages_for(tokens);
    pthread_mutex_lock(&s->lock);
    uint32_t busy = s->running + s->waiting.count;
    bool taken = busy == 0 && fti_prefix_evict(&s->prefix, count, 1) &&
                 fti_numbers_take(&s->slots, 1, slot);
    if (taken && !fti_numbers_take(&s->pages, count, pages)) {
        fti_numbers_give(&s->slots, slot, 1);
        taken = false;
    }
    pthread_mutex_unlock(&s->lock);
    *page_count = count;
    if (taken) return FTK_OK;
    return fti_fail(err, FTK_E_STATE,
                    "evaluation needs the engine to itself: %u requests have not ended", busy);
}

void fti_service_return(ftk_engine *e, int32_t slot, const int32_t *pages, uint32_t page_count) {
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    fti_numbers_give(&s->slots, &slot, 1);
    fti_numbers_give(&s->pages, pages, page_count);
    pthread_mutex_unlock(&s->lock);
}

/* ---- lists, under the lock ---- */

static fti_request *find_request(const fti_service *s, uint64_t id) {
    for (fti_request *r = s->requests; r; r = r->next)
        if (r->id == id) return r;
    return NULL;
}

static void add_request(fti_service *s, fti_request *r) {
    r->previous = s->last;
    *(s->last ? &s->last->next : &s->requests) = r;
    s->last = r;
}

static void remove_request(fti_service *s, const fti_request *gone) {
    *(gone->previous ? &gone->previous->next : &s->requests) = gone->next;
    *(gone->next ? &gone->next->previous : &s->last) = gone->previous;
}

/* ---- events, without the lock ---- */

static void deliver(ftk_engine *e, fti_request *r, ftk_event *event) {
    event->struct_size = (uint32_t)sizeof *event;
    event->request = r->id;
    if (r->on_event) {
        if (r->on_event(r->user, event) != 0) r->cancelled = true;
        return;
    }
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    if (!fti_request_queue(r, event, s->next_event++)) r->starved = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void settle_result(fti_request *r, uint32_t finish) {
    r->result.finish = finish;
    r->result.hash = XXH3_64bits_digest(r->hash);
    if (r->first_token > 0) r->result.decode_seconds = fti_now() - r->first_token;
}

/* Releases what the request holds before its last event, so that whoever reacts to it finds
 * the room free. */
static void release(ftk_engine *e, fti_request *r) {
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    fti_holdings_release(s, r, r->result.finish != FTK_FINISH_ERROR);
    s->stats.ended[r->result.finish]++;
    pthread_mutex_unlock(&s->lock);
}

/* The end of a request: exactly one DONE event, then it is gone, or waits to be polled. */
static void end_request(ftk_engine *e, fti_request *r, uint32_t finish, const ftk_error *failure) {
    fti_service *s = e->service;
    settle_result(r, finish);
    release(e, r);
    size_t rest = fti_text_out_flush(&r->text);
    bool polled = !r->on_event;
    ftk_event event = {.type = FTK_EVENT_DONE,
                       .text = r->text.buffer,
                       .text_size = rest,
                       .token = -1,
                       .status = failure ? failure->status : FTK_OK,
                       .message = failure ? failure->message : NULL,
                       .result = r->result,
                       .reused_tokens = r->reused,
                       .preemptions = r->preemptions};
    if (failure)
        fti_log(e, FTK_LOG_WARNING, "request %llu failed: %s", (unsigned long long)r->id,
                failure->message);
    deliver(e, r, &event);
    if (polled) return; /* whoever polls its last event frees it, maybe by now */
    pthread_mutex_lock(&s->lock);
    remove_request(s, r);
    pthread_mutex_unlock(&s->lock);
    fti_request_free(r);
}

/* ---- a step ---- */

/* Requests that were cancelled since the last step. Callbacks may submit and cancel, so the
 * list is looked through anew after each; without any, not at all, since it may be long. */
static void end_cancelled(ftk_engine *e) {
    fti_service *s = e->service;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        fti_request *r = s->cancelling ? s->requests : NULL;
        while (r && !(r->cancelled && r->state != FTI_REQUEST_ENDED)) r = r->next;
        if (!r) s->cancelling = false;
        pthread_mutex_unlock(&s->lock);
        if (!r) return;
        end_request(e, r, FTK_FINISH_CANCELLED, NULL);
    }
}

static void end_unfilled(ftk_engine *e, fti_request *r, const ftk_error *failure) {
    end_request(e, r, FTK_FINISH_ERROR, failure);
}

/* Rows for the running requests; how many of them take part. */
static uint32_t decide(ftk_engine *e) {
    fti_service *s = e->service;
    uint32_t part = 0;
    for (uint32_t i = 0; i < s->running; i++) {
        s->batch[i] = s->runners[i];
        s->counts[i] = s->batch[i]->counts;
    }
    fti_next_step(s->counts, s->running, e->buffers.rows, s->shares);
    for (uint32_t i = 0; i < s->running; i++) {
        if (s->shares[i].rows == 0) continue;
        s->batch[part] = s->batch[i];
        s->shares[part++] = s->shares[i];
    }
    return part;
}

/* Fills the batch; returns how many requests take part in the step. Whoever finds no page for
 * its rows leaves, or makes others leave: then the step is another one. */
static uint32_t gather(ftk_engine *e) {
    fti_service *s = e->service;
    fti_holdings_admit(e, end_unfilled);
    for (;;) {
        uint32_t count = decide(e), i = 0;
        while (i < count &&
               fti_holdings_grow(e, s->batch[i], s->shares[i].first + s->shares[i].rows))
            i++;
        if (i == count) return count;
    }
}

static ftk_status run_batch(ftk_engine *e, uint32_t count, bool *replayed, ftk_error *err) {
    fti_service *s = e->service;
    for (uint32_t i = 0; i < count; i++) {
        const fti_request *r = s->batch[i];
        s->sequence_parts[i] = (fti_sequence){.tokens = r->ids + s->shares[i].first,
                                              .pages = r->pages,
                                              .page_count = r->page_count,
                                              .slot = r->slot,
                                              .first = s->shares[i].first,
                                              .rows = s->shares[i].rows,
                                              .logit_rows = s->shares[i].samples ? 1 : 0};
    }
    return fti_run_step(e, s->sequence_parts, count, NULL, replayed, err);
}

/* The row of logits for another token of `r` has come. */
static void count_token(fti_service *s, fti_request *r) {
    if (r->first_token == 0) {
        r->first_token = s->stepped;
        r->result.prefill_seconds = s->stepped - r->started;
        fti_times_add(&s->stats.first_token, s->stepped - r->submitted);
    } else {
        fti_times_add(&s->stats.token, s->stepped - r->last_token);
    }
    r->last_token = s->stepped;
}

/* Rows of a share that had run before a preemption. */
static uint64_t again(const fti_request *r, const fti_step_share *share) {
    if (share->first >= r->peak) return 0;
    uint64_t left = r->peak - share->first;
    return left < share->rows ? left : share->rows;
}

static void count_step(fti_service *s, uint32_t count, bool replayed,
                       const fti_expert_stats *experts, uint32_t *rows_out) {
    uint32_t rows = 0, decoding = 0;
    fti_stats *stats = &s->stats;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < count; i++) {
        const fti_step_share *share = &s->shares[i];
        fti_request *r = s->batch[i];
        rows += share->rows;
        decoding += share->decode;
        *(share->decode ? &stats->decode_rows : &stats->prompt_rows) += share->rows;
        *(share->decode ? &r->result.decode_steps : &r->result.prefill_steps) += 1;
        r->result.graph_replays += replayed && share->decode;
        r->counts.computed += share->rows;
        stats->recomputed += again(r, share);
        if (share->samples) count_token(s, r);
    }
    stats->steps++;
    stats->replays += replayed;
    stats->by_rows[rows]++;
    stats->by_sequences[decoding]++;
    stats->experts = *experts;
    pthread_mutex_unlock(&s->lock);
    *rows_out = rows;
}

/* A token whose event found no memory must not be passed over in silence. */
static void end_starved(ftk_engine *e, fti_request *r) {
    ftk_error failure = FTK_ERROR_INIT;
    fti_no_memory(&failure, sizeof(fti_queued_event), "an event that waits to be polled");
    end_request(e, r, FTK_FINISH_ERROR, &failure);
}

static void add_token(ftk_engine *e, fti_request *r, const fti_sample_result *choice) {
    int32_t id = choice->id;
    r->ids[r->counts.prompt + r->counts.chosen++] = id;
    r->result.tokens++;
    XXH3_64bits_update(r->hash, &id, sizeof id);
    size_t ready;
    bool stopped = fti_text_out_push(&r->text, fti_tokenizer_piece(e->tokenizer, id), &ready);
    ftk_event event = {.type = FTK_EVENT_TOKEN,
                       .text = r->text.buffer,
                       .text_size = ready,
                       .token = id,
                       .logprob = choice->logprob,
                       .top_count = choice->top_count,
                       .top_ids = choice->top_ids,
                       .top_logprobs = choice->top_logprobs};
    deliver(e, r, &event);
    fti_text_out_take(&r->text, ready);
    if (r->starved)
        end_starved(e, r);
    else if (stopped)
        end_request(e, r, FTK_FINISH_STOP, NULL);
    else if (r->cancelled)
        end_request(e, r, FTK_FINISH_CANCELLED, NULL);
    else if (r->counts.chosen == r->max_tokens)
        end_request(e, r, FTK_FINISH_LENGTH, NULL);
}

/* Chooses the next token of a request from its row of logits; none for one that a callback
 * of this very step has cancelled. */
static void choose(ftk_engine *e, fti_request *r, uint64_t before, const float *logits) {
    if (r->cancelled) {
        end_request(e, r, FTK_FINISH_CANCELLED, NULL);
        return;
    }
    ftk_error failure = FTK_ERROR_INIT;
    fti_sample_result choice = {.id = -1};
    ftk_status status = fti_sample(e->sampler, logits, &r->sampling, r->ids,
                                   (size_t)r->counts.computed, r->counts.computed, &choice,
                                   &failure);
    if (status != FTK_OK) {
        end_request(e, r, FTK_FINISH_ERROR, &failure);
        return;
    }
    fti_holdings_snapshot(e, r, before); /* not of a state that gives no numbers */
    if (!r->ignore_end && ftk_token_is_end(e, choice.id)) {
        end_request(e, r, FTK_FINISH_STOP, NULL);
    } else {
        add_token(e, r, &choice);
    }
}

/* A step that fails takes down the requests in it, and nothing else. */
static void fail_batch(ftk_engine *e, uint32_t count, const ftk_error *failure) {
    fti_log(e, FTK_LOG_ERROR, "a step failed: %s", failure->message);
    for (uint32_t i = 0; i < count; i++)
        end_request(e, e->service->batch[i], FTK_FINISH_ERROR, failure);
}

/* Of those that nothing can come from any more, the first; one that has just arrived is not. */
static fti_request *stalled_request(const fti_service *s) {
    const fti_room room = fti_holdings_room(s);
    fti_waiter *next = fti_queue_next(&s->waiting);
    if (s->running > 0) return s->runners[0];
    bool fits = next && fti_queue_reason(&s->waiting, next, &room) == FTI_WAIT_STEP;
    return next && !fits ? fti_request_of(next) : NULL;
}

/* Nothing could run. If that is for want of work, all is well. Otherwise whoever comes next
 * holds up all the others and would do so for ever: it ends, with the numbers. */
static ftk_status check_idle(ftk_engine *e, ftk_error *err) {
    fti_service *s = e->service;
    ftk_error failure = FTK_ERROR_INIT;
    pthread_mutex_lock(&s->lock);
    fti_request *r = stalled_request(s);
    if (r)
        fti_fail(&failure, FTK_E_INTERNAL,
                 "the scheduler has stalled: %u requests run, %u wait, and no row can run: request "
                 "%llu needs %u state slots, %u pages of the KV cache and %u units of swap space, "
                 "of which %u, %u and %u are free: please report this",
                 s->running, s->waiting.count, (unsigned long long)r->id, r->waiter.needs.slots,
                 r->waiter.needs.pages, r->waiter.needs.swap, s->slots.available,
                 s->pages.available, s->units.available);
    pthread_mutex_unlock(&s->lock);
    if (!r) return FTK_OK;
    end_request(e, r, FTK_FINISH_ERROR, &failure);
    return fti_fail(err, failure.status, "%s", failure.message);
}

/* One step, by the thread that has the right to. */
static ftk_status run_one(ftk_engine *e, uint32_t *rows, ftk_error *err) {
    fti_service *s = e->service;
    *rows = 0;
    end_cancelled(e);
    uint32_t count = gather(e);
    if (count == 0) return check_idle(e, err);
    ftk_error failure = FTK_ERROR_INIT;
    bool replayed;
    ftk_status status = run_batch(e, count, &replayed, &failure);
    if (status != FTK_OK) {
        fail_batch(e, count, &failure);
        return fti_fail(err, status, "%s", failure.message);
    }
    s->stepped = fti_now();
    const fti_expert_stats experts = fti_banks_count(&e->pools);
    count_step(s, count, replayed, &experts, rows);
    const float *logits = e->buffers.host_logits;
    for (uint32_t i = 0; i < count; i++) {
        if (!s->shares[i].samples) {
            fti_holdings_snapshot(e, s->batch[i], s->shares[i].first);
            continue;
        }
        choose(e, s->batch[i], s->shares[i].first, logits);
        logits += e->info.vocabulary;
    }
    return FTK_OK;
}

ftk_status ftk_engine_step(ftk_engine *e, uint32_t *rows, ftk_error *err) {
    if (!e || !rows) return fti_fail(err, FTK_E_ARGUMENT, "engine and rows must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_READY, err));
    FTI_TRY(fti_steps_begin(e, err));
    fti_fpenv saved = fti_fpenv_enter();
    ftk_status status = run_one(e, rows, err);
    fti_fpenv_leave(saved);
    fti_steps_end(e);
    return status;
}

/* ---- the engine's thread ---- */

static bool has_work(const fti_service *s) {
    return s->running + s->waiting.count > 0;
}

static void *serve(void *argument) {
    ftk_engine *e = argument;
    fti_service *s = e->service;
    (void)fti_fpenv_enter();
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (!has_work(s)) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        uint32_t rows;
        (void)run_one(e, &rows, NULL); /* a failure has ended its requests and was logged */
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* The application's signals are for its own threads. */
static int create_thread(ftk_engine *e) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(&e->service->thread, NULL, serve, e);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return failed;
}

ftk_status ftk_engine_start(ftk_engine *e, ftk_error *err) {
    if (!e) return fti_fail(err, FTK_E_ARGUMENT, "engine must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_READY, err));
    FTI_TRY(fti_steps_begin(e, err));
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    s->threaded = true;
    s->stop = false;
    int failed = create_thread(e);
    if (failed) s->threaded = s->stepping = false;
    pthread_mutex_unlock(&s->lock);
    if (!failed) return FTK_OK;
    return fti_fail(err, FTK_E_NO_MEMORY, "the engine's thread could not be started (error %d)",
                    failed);
}

/* Under the lock. */
static bool on_own_thread(const fti_service *s) {
    return s->threaded && pthread_equal(s->thread, pthread_self());
}

/* Under the lock, which it leaves while it waits for the thread to end. */
static void end_thread(fti_service *s) {
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&s->lock);
    s->threaded = s->stepping = false;
    pthread_cond_broadcast(&s->changed);
}

ftk_status ftk_engine_stop(ftk_engine *e, ftk_error *err) {
    if (!e) return fti_fail(err, FTK_E_ARGUMENT, "engine must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_READY, err));
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    bool self = on_own_thread(s);
    if (s->threaded && !self && !s->stop) end_thread(s);
    /* Another call is stopping it: whoever returns finds it stopped. */
    while (s->threaded && !self && s->stop) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (!self) return FTK_OK;
    return fti_fail(err, FTK_E_STATE, "the engine's thread cannot be stopped from a callback");
}

/* ---- submit and cancel ---- */

static ftk_status enqueue(ftk_engine *e, fti_request *r, uint64_t *id) {
    fti_service *s = e->service;
    fti_fpenv saved = fti_fpenv_enter();
    double time = fti_now();
    fti_fpenv_leave(saved);
    pthread_mutex_lock(&s->lock);
    *id = r->id = s->next_id++;
    r->submitted = time;
    add_request(s, r);
    fti_holdings_wait(e, r);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return FTK_OK;
}

ftk_status ftk_submit(ftk_engine *e, const ftk_request *asked, uint64_t *id, ftk_error *err) {
    if (!e || !asked || !id)
        return fti_fail(err, FTK_E_ARGUMENT, "engine, request and id must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_READY, err));
    fti_ids prompt = {0};
    uint64_t said;
    fti_request *r = NULL;
    const fti_service *s = e->service;
    const fti_request_limits limits = {.context = e->budget.context,
                                       .longest_piece = e->longest_piece,
                                       .most_rows = e->settings.prefill_tokens,
                                       .swaps = s->units.count > 0,
                                       .state_units = s->swap.state_units};
    ftk_status status = fti_check_request(e, asked, &prompt, &said, err);
    if (status == FTK_OK)
        status = fti_request_create(asked, prompt.data, prompt.count, &limits, &r, err);
    fti_ids_free(&prompt);
    if (status == FTK_OK) status = fti_holdings_check(s, r, err);
    if (status != FTK_OK) {
        fti_request_free(r);
        return status;
    }
    r->said = said;
    return enqueue(e, r, id);
}

ftk_status ftk_cancel(ftk_engine *e, uint64_t id, ftk_error *err) {
    if (!e) return fti_fail(err, FTK_E_ARGUMENT, "engine must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_READY, err));
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    fti_request *r = find_request(s, id);
    bool live = r && r->state != FTI_REQUEST_ENDED;
    if (live) r->cancelled = s->cancelling = true;
    pthread_mutex_unlock(&s->lock);
    if (live) return FTK_OK;
    return fti_fail(err, FTK_E_NOT_FOUND, "there is no request %llu, or it has ended",
                    (unsigned long long)id);
}

/* ---- poll ---- */

/* Takes a request's oldest event; with its last one the request is gone. */
static fti_queued_event *take_event(fti_service *s, fti_request *r) {
    fti_queued_event *q = r->first_event;
    r->first_event = q->next;
    if (!r->first_event) r->last_event = NULL;
    if (q->event.type == FTK_EVENT_DONE) {
        remove_request(s, r);
        fti_request_free(r);
    }
    return q;
}

static fti_queued_event *next_event(fti_service *s, uint64_t id, bool *known) {
    *known = false;
    fti_request *oldest = NULL;
    for (fti_request *r = s->requests; r; r = r->next) {
        if (r->on_event || (id && r->id != id)) continue;
        *known = true;
        if (!r->first_event) continue;
        if (!oldest || r->first_event->number < oldest->first_event->number) oldest = r;
    }
    return oldest ? take_event(s, oldest) : NULL;
}

static void deadline_in(uint32_t ms, struct timespec *t) {
    clock_gettime(CLOCK_MONOTONIC, t);
    t->tv_sec += ms / 1000;
    t->tv_nsec += (long)(ms % 1000) * 1000000;
    if (t->tv_nsec >= 1000000000) {
        t->tv_sec++;
        t->tv_nsec -= 1000000000;
    }
}

ftk_status ftk_poll(ftk_engine *e, uint64_t id, uint32_t timeout_ms, ftk_event *event,
                    ftk_error *err) {
    if (!e || !event) return fti_fail(err, FTK_E_ARGUMENT, "engine and event must not be NULL");
    FTI_TRY(fti_check_size(event->struct_size, sizeof *event, "ftk_event", err));
    FTI_TRY(fti_engine_need(e, FTI_STAGE_READY, err));
    fti_service *s = e->service;
    struct timespec deadline;
    deadline_in(timeout_ms, &deadline);
    pthread_mutex_lock(&s->lock);
    bool known;
    fti_queued_event *q = next_event(s, id, &known);
    while (!q && timeout_ms > 0 && (known || id == 0)) {
        if (pthread_cond_timedwait(&s->changed, &s->lock, &deadline) == ETIMEDOUT) timeout_ms = 0;
        q = next_event(s, id, &known);
    }
    pthread_mutex_unlock(&s->lock);
    if (!q && id && !known)
        return fti_fail(err, FTK_E_NOT_FOUND, "there is no polled request %llu, or it has ended",
                        (unsigned long long)id);
    *event = q ? q->event : (ftk_event)FTK_EVENT_INIT;
    event->storage = q;
    return FTK_OK;
}

void ftk_event_release(ftk_event *event) {
    if (!event) return;
    fti_free(event->storage);
    *event = (ftk_event)FTK_EVENT_INIT;
}

/* ---- one request, to its end ---- */

typedef struct generation {
    ftk_engine *e;
    const ftk_generate_options *o;
    ftk_generate_result result;
    ftk_error failure;
    bool done;
} generation;

static int generation_event(void *user, const ftk_event *event) {
    generation *g = user;
    if (event->type == FTK_EVENT_TOKEN) {
        if (!g->o->on_token) return 0;
        ftk_str piece = fti_tokenizer_piece(g->e->tokenizer, event->token);
        return g->o->on_token(g->o->user, event->token, piece.data, (size_t)piece.size);
    }
    if (event->status != FTK_OK) fti_fail(&g->failure, event->status, "%s", event->message);
    fti_service *s = g->e->service;
    pthread_mutex_lock(&s->lock);
    g->result = event->result;
    g->done = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* Waits while others run steps; true: the request has not ended, and the right to run them
 * has come to this thread. */
static bool wait_for_others(generation *g) {
    fti_service *s = g->e->service;
    pthread_mutex_lock(&s->lock);
    while (!g->done && s->stepping) pthread_cond_wait(&s->changed, &s->lock);
    bool mine = !g->done;
    if (mine) s->stepping = true;
    pthread_mutex_unlock(&s->lock);
    return mine;
}

/* With the right to run steps, which it gives back. */
static void run_to_end(generation *g) {
    uint32_t rows;
    fti_fpenv saved = fti_fpenv_enter();
    while (!g->done) (void)run_one(g->e, &rows, NULL); /* failures come as the DONE event */
    fti_fpenv_leave(saved);
    fti_steps_end(g->e);
}

/* Once it is submitted the request refers to *g, so that there is no way back but its end:
 * if the engine's thread is stopped before, this thread goes on in its place. */
static ftk_status generate(generation *g, const ftk_request *asked, ftk_error *err) {
    fti_service *s = g->e->service;
    uint64_t id;
    pthread_mutex_lock(&s->lock);
    bool threaded = s->threaded, self = on_own_thread(s);
    pthread_mutex_unlock(&s->lock);
    if (self)
        return fti_fail(err, FTK_E_STATE,
                        "ftk_generate cannot wait inside a callback: use ftk_submit");
    if (threaded) {
        FTI_TRY(ftk_submit(g->e, asked, &id, err));
        if (wait_for_others(g)) run_to_end(g);
        return FTK_OK;
    }
    FTI_TRY(fti_steps_begin(g->e, err));
    ftk_status status = ftk_submit(g->e, asked, &id, err);
    if (status == FTK_OK)
        run_to_end(g);
    else
        fti_steps_end(g->e);
    return status;
}

ftk_status ftk_generate(ftk_engine *engine, const int32_t *prompt, size_t count,
                        const ftk_generate_options *options, ftk_generate_result *result,
                        ftk_error *err) {
    if (!engine || !options)
        return fti_fail(err, FTK_E_ARGUMENT, "engine and options must not be NULL");
    FTI_TRY(fti_check_size(options->struct_size, sizeof *options, "ftk_generate_options", err));
    if (result)
        FTI_TRY(fti_check_size(result->struct_size, sizeof *result, "ftk_generate_result", err));
    FTI_TRY(fti_engine_need(engine, FTI_STAGE_READY, err));
    FTI_TRY(fti_check_ids(engine, prompt, count, err));
    generation g = {.e = engine, .o = options, .failure = FTK_ERROR_INIT};
    ftk_request asked = FTK_REQUEST_INIT;
    asked.tokens = prompt;
    asked.token_count = count;
    asked.max_tokens = options->max_tokens;
    asked.ignore_end = options->ignore_end;
    asked.chunk = options->chunk;
    asked.sampling = options->sampling;
    asked.on_event = generation_event;
    asked.user = &g;
    FTI_TRY(generate(&g, &asked, err));
    if (g.failure.status != FTK_OK) return fti_fail(err, g.failure.status, "%s", g.failure.message);
    if (result) *result = g.result;
    return FTK_OK;
}

/* ---- the prefix cache ---- */

ftk_status ftk_engine_forget(ftk_engine *e, ftk_error *err) {
    if (!e) return fti_fail(err, FTK_E_ARGUMENT, "engine must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_READY, err));
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    fti_prefix_clear(&s->prefix);
    pthread_mutex_unlock(&s->lock);
    return FTK_OK;
}

/* ---- statistics ---- */

/* Requests that have not ended, in order of arrival; those that wait say what for. */
static json_t *live_requests(const fti_service *s) {
    const fti_room room = fti_holdings_room(s);
    json_t *list = json_array();
    for (const fti_request *r = s->requests; r; r = r->next) {
        if (r->state == FTI_REQUEST_ENDED) continue;
        bool running = r->state == FTI_REQUEST_RUNNING;
        json_t *o = json_object();
        fti_json_set(&o, "id", json_integer((json_int_t)r->id));
        fti_json_set(&o, "priority", json_integer(r->waiter.priority));
        fti_json_set(&o, "running", json_boolean(running));
        fti_json_set(&o, "pages", json_integer(running ? r->page_count : r->page_limit));
        if (!running) {
            fti_wait why = fti_queue_reason(&s->waiting, &r->waiter, &room);
            fti_json_set(&o, "waits_for", json_string(fti_wait_text(why)));
            fti_json_set(&o, "swapped", json_boolean(r->swapped));
        }
        fti_json_append(&list, o);
    }
    return list;
}

/* Numbers that running requests hold, as against those that only the prefix cache does. */
static uint32_t used(const fti_numbers *pool, uint32_t cached) {
    return pool->count - pool->available - cached;
}

static fti_stats_view view_of(const fti_service *s) {
    const fti_room room = fti_holdings_room(s);
    fti_stats_view v = {.stats = &s->stats,
                        .running = s->running,
                        .waiting = s->waiting.count,
                        .pages = s->pages.count,
                        .slots = s->slots.count,
                        .units_used = s->units.count - s->units.available,
                        .units = s->units.count,
                        .forgotten_pages = s->prefix.forgotten_pages,
                        .forgotten_snapshots = s->prefix.forgotten_snapshots};
    fti_prefix_evictable(&s->prefix, &v.pages_cached, &v.slots_cached);
    v.pages_used = used(&s->pages, v.pages_cached);
    v.slots_used = used(&s->slots, v.slots_cached);
    for (const fti_waiter *w = s->waiting.first; w; w = w->after)
        v.waits_for[fti_queue_reason(&s->waiting, w, &room)]++;
    return v;
}

json_t *fti_service_stats(const ftk_engine *e) {
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    const fti_stats_view v = view_of(s);
    json_t *o = fti_stats_json(&v);
    fti_json_set(&o, "requests", live_requests(s));
    pthread_mutex_unlock(&s->lock);
    return o;
}

void fti_service_stats_text(const ftk_engine *e, fti_text *out) {
    fti_service *s = e->service;
    pthread_mutex_lock(&s->lock);
    const fti_stats_view v = view_of(s);
    fti_stats_text(&v, out);
    pthread_mutex_unlock(&s->lock);
}
