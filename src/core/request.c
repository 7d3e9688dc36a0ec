/* request.c: see request.h. */
#include "core/request.h"

/* ---- text and stop strings ---- */

/* Position of the first stop string in the held text, or its size. */
static size_t find_stop(const fti_text_out *out) {
    size_t first = out->held;
    for (size_t s = 0; s < out->stop_count; s++) {
        const char *at = memmem(out->buffer, out->held, out->stops[s], out->stop_size[s]);
        if (at && (size_t)(at - out->buffer) < first) first = (size_t)(at - out->buffer);
    }
    return first;
}

/* Bytes at the end of the held text that begin a stop string. */
static size_t beginning_of_stop(const fti_text_out *out) {
    size_t longest = 0;
    for (size_t s = 0; s < out->stop_count; s++) {
        size_t most = out->stop_size[s] - 1 < out->held ? out->stop_size[s] - 1 : out->held;
        for (size_t n = most; n > longest; n--)
            if (memcmp(out->buffer + out->held - n, out->stops[s], n) == 0) longest = n;
    }
    return longest;
}

/* Text that is handed out must not end inside a character: a stop string begins in the
 * middle of one if it does so itself, so both ways out step back to a border. */
bool fti_text_out_push(fti_text_out *out, ftk_str piece, size_t *ready) {
    out->held += fti_detokenizer_push(&out->detokenizer, piece.data, (size_t)piece.size,
                                      out->buffer + out->held);
    size_t stop = find_stop(out);
    if (stop < out->held) {
        out->held = stop;
        *ready = stop - fti_incomplete_tail(out->buffer, stop);
        out->detokenizer.held_size = 0;
        return true;
    }
    size_t certain = out->held - beginning_of_stop(out);
    *ready = certain - fti_incomplete_tail(out->buffer, certain);
    return false;
}

size_t fti_text_out_flush(fti_text_out *out) {
    out->held += fti_detokenizer_flush(&out->detokenizer, out->buffer + out->held);
    return out->held;
}

void fti_text_out_take(fti_text_out *out, size_t size) {
    memmove(out->buffer, out->buffer + size, out->held - size);
    out->held -= size;
}

static ftk_status create_text(fti_text_out *out, const ftk_request *asked, size_t longest_piece,
                              ftk_error *err) {
    size_t longest_stop = 0;
    for (size_t s = 0; s < asked->stop_count; s++) {
        size_t size = strlen(asked->stop[s]);
        out->stops[s] = fti_strndup(asked->stop[s], size);
        if (!out->stops[s]) return fti_no_memory(err, size, "a stop string");
        out->stop_size[s] = size;
        out->stop_count = s + 1;
        if (size > longest_stop) longest_stop = size;
    }
    out->capacity = longest_stop + longest_piece + 16;
    out->buffer = fti_calloc(out->capacity, 1);
    return out->buffer ? FTK_OK : fti_no_memory(err, out->capacity, "a request's text");
}

/* ---- life ---- */

static ftk_status copy_biases(fti_request *r, const ftk_sampling *s, ftk_error *err) {
    if (s->bias_count == 0) return FTK_OK;
    r->biases = fti_calloc(s->bias_count, sizeof *r->biases);
    if (!r->biases) return fti_no_memory(err, s->bias_count * sizeof *r->biases, "logit biases");
    memcpy(r->biases, s->biases, s->bias_count * sizeof *r->biases);
    return FTK_OK;
}

/* The DONE event of a request that is polled: room for the text that may be held back and
 * for the longest message. */
static ftk_status reserve_done(fti_request *r, ftk_error *err) {
    if (r->on_event) return FTK_OK;
    size_t bytes = sizeof *r->done_event + r->text.capacity + sizeof((ftk_error *)0)->message + 2;
    r->done_event = fti_calloc(1, bytes);
    return r->done_event ? FTK_OK : fti_no_memory(err, bytes, "a request's last event");
}

static ftk_status fill_request(fti_request *r, const ftk_request *asked, const int32_t *prompt,
                               size_t count, size_t longest_piece, ftk_error *err) {
    FTI_TRY(copy_biases(r, &asked->sampling, err));
    r->sampling = fti_sampling_of(&asked->sampling, r->biases, asked->logprobs);
    r->ids = fti_calloc(r->capacity, sizeof *r->ids);
    r->pages = fti_calloc(r->page_limit, sizeof *r->pages);
    r->units = fti_calloc(r->unit_limit, sizeof *r->units);
    r->hash = XXH3_createState();
    if (!r->ids || !r->pages || !r->units || !r->hash)
        return fti_no_memory(err, r->capacity * sizeof *r->ids, "a request's tokens");
    memcpy(r->ids, prompt, count * sizeof *prompt);
    XXH3_64bits_reset(r->hash);
    FTI_TRY(create_text(&r->text, asked, longest_piece, err));
    return reserve_done(r, err);
}

ftk_status fti_request_create(const ftk_request *asked, const int32_t *prompt, size_t count,
                              const fti_request_limits *limits, fti_request **out, ftk_error *err) {
    fti_request *r = fti_calloc(1, sizeof *r);
    if (!r) return fti_no_memory(err, sizeof *r, "a request");
    uint64_t room = limits->context - count + 1;
    r->max_tokens = asked->max_tokens && asked->max_tokens < room ? asked->max_tokens
                                                                  : (uint32_t)room;
    r->capacity = count + r->max_tokens;
    r->counts.prompt = count;
    bool chunked = asked->chunk && asked->chunk < limits->most_rows;
    r->counts.chunk = chunked ? asked->chunk : limits->most_rows;
    r->page_limit = fti_pages_for(fti_request_positions(r));
    r->unit_limit = limits->swaps ? r->page_limit + limits->state_units : 0;
    r->ignore_end = asked->ignore_end != 0;
    r->counts.priority = r->waiter.priority = asked->priority;
    r->on_event = asked->on_event;
    r->user = asked->user;
    r->slot = r->reserve = -1;
    r->result = (ftk_generate_result)FTK_GENERATE_RESULT_INIT;
    r->result.prompt_tokens = count;
    ftk_status status = fill_request(r, asked, prompt, count, limits->longest_piece, err);
    if (status != FTK_OK)
        fti_request_free(r);
    else
        *out = r;
    return status;
}

void fti_request_free(fti_request *r) {
    if (!r) return;
    for (fti_queued_event *e = r->first_event; e;) {
        fti_queued_event *next = e->next;
        fti_free(e);
        e = next;
    }
    for (size_t s = 0; s < r->text.stop_count; s++) fti_free(r->text.stops[s]);
    if (r->hash) XXH3_freeState(r->hash);
    fti_free(r->done_event);
    fti_free(r->text.buffer);
    fti_free(r->biases);
    fti_free(r->pages);
    fti_free(r->units);
    fti_free(r->ids);
    fti_free(r);
}

/* ---- events ---- */

/* A block for an event: DONE has its own, others are allocated. */
static fti_queued_event *event_block(fti_request *r, const ftk_event *event, size_t data) {
    fti_queued_event *q = r->done_event;
    if (event->type != FTK_EVENT_DONE) return fti_calloc(1, sizeof *q + data);
    r->done_event = NULL;
    return q;
}

bool fti_request_queue(fti_request *r, const ftk_event *event, uint64_t number) {
    size_t text = event->text_size + 1, message = event->message ? strlen(event->message) + 1 : 0;
    size_t top = event->top_count * (sizeof(int32_t) + sizeof(float));
    fti_queued_event *q = event_block(r, event, top + text + message);
    if (!q) return false;
    q->number = number;
    q->event = *event;
    char *at = q->data;
    if (event->top_count) {
        q->event.top_ids = memcpy(at, event->top_ids, event->top_count * sizeof(int32_t));
        at += event->top_count * sizeof(int32_t);
        q->event.top_logprobs = memcpy(at, event->top_logprobs, event->top_count * sizeof(float));
        at += event->top_count * sizeof(float);
    }
    if (event->text_size) memcpy(at, event->text, event->text_size);
    q->event.text = at;
    at += text;
    if (event->message) q->event.message = memcpy(at, event->message, message);
    if (r->last_event)
        r->last_event->next = q;
    else
        r->first_event = q;
    r->last_event = q;
    return true;
}
