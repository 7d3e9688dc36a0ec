/* chat.c: see chat.h. */
#include "core/chat.h"

#include "core/engine.h"

#define MAX_MESSAGES 4096u

typedef struct piece_sink {
    const ftk_engine *e;
    fti_ids *ids;
    uint64_t pieces;      /* so far */
    uint64_t said_pieces; /* of what has been said, */
    uint64_t said;        /* and how many tokens these have; 0: not asked for, or not yet */
    ftk_status status;
    ftk_error *err;
} piece_sink;

static void take_piece(void *user, ftk_str text, uint32_t control) {
    piece_sink *sink = user;
    if (sink->status != FTK_OK) return;
    if (sink->pieces++ == sink->said_pieces) sink->said = sink->ids->count;
    sink->status = fti_tokenizer_encode(sink->e->tokenizer, text, control != 0, sink->ids,
                                        sink->err);
}

static void count_piece(void *user, ftk_str text, uint32_t control) {
    uint64_t *pieces = user;
    (void)text, (void)control;
    ++*pieces;
}

static ftk_status check_messages(const ftk_message *messages, size_t count, uint32_t flags,
                                 ftk_error *err) {
    if (!messages || count == 0 || count > MAX_MESSAGES)
        return fti_fail(err, FTK_E_ARGUMENT, "a dialogue has 1 to %u messages, this one has %zu",
                        MAX_MESSAGES, messages ? count : 0);
    FTI_TRY(fti_check_size(messages->struct_size, sizeof *messages, "ftk_message", err));
    if (flags & ~(FTK_CHAT_NO_ANSWER | FTK_CHAT_NO_THINKING))
        return fti_fail(err, FTK_E_ARGUMENT, "unknown chat flags 0x%x", flags);
    for (size_t i = 0; i < count; i++)
        if (!messages[i].role || (!messages[i].content && messages[i].content_size))
            return fti_fail(err, FTK_E_ARGUMENT, "message %zu has no role or no content", i);
    return FTK_OK;
}

static ftk_status call_provider(const ftk_engine *e, const ftk_chat_in *in,
                                void (*piece)(void *, ftk_str, uint32_t), void *user,
                                ftk_error *err) {
    const ftk_provider *table = e->provider->table;
    /* format_chat reports through the error it returns: it may be called from any thread,
     * so the context's record of the running call is not for it. */
    char message[256] = "";
    ftk_chat_out out = {.struct_size = (uint32_t)sizeof out,
                        .message_size = (uint32_t)sizeof message,
                        .message = message,
                        .piece = piece,
                        .user = user};
    ftk_status status = table->format_chat(e->model, in, &out);
    if (status != FTK_OK)
        return fti_fail(err, status, "%s: %s", fti_checkpoint_path(e->checkpoint),
                        message[0] ? message : ftk_status_text(status));
    return FTK_OK;
}

/* The pieces of the same dialogue without its open answer are those before it. */
static ftk_status encode(const ftk_engine *e, const ftk_chat_in *in, piece_sink *sink, bool said) {
    ftk_chat_in closed = *in;
    closed.open_answer = 0;
    if (said && in->open_answer)
        FTI_TRY(call_provider(e, &closed, count_piece, &sink->said_pieces, sink->err));
    FTI_TRY(call_provider(e, in, take_piece, sink, sink->err));
    return sink->status;
}

ftk_status fti_chat_encode(const ftk_engine *e, const ftk_message *messages, size_t count,
                           uint32_t flags, fti_ids *ids, uint64_t *said, ftk_error *err) {
    FTI_TRY(check_messages(messages, count, flags, err));
    ftk_chat_turn *turns = fti_calloc(count, sizeof *turns);
    if (!turns) return fti_no_memory(err, count * sizeof *turns, "a dialogue");
    for (size_t i = 0; i < count; i++)
        turns[i] = (ftk_chat_turn){.role = fti_str(messages[i].role),
                                   .content = {messages[i].content, messages[i].content_size}};
    const ftk_chat_in in = {.struct_size = (uint32_t)sizeof in,
                            .turn_stride = (uint32_t)sizeof *turns,
                            .turns = turns,
                            .turn_count = count,
                            .hint = flags & FTK_CHAT_NO_THINKING ? FTK_CHAT_HINT_NO_THINKING : 0,
                            .open_answer = flags & FTK_CHAT_NO_ANSWER ? 0 : 1};
    piece_sink sink = {.e = e, .ids = ids, .err = err};
    ftk_status status = encode(e, &in, &sink, said != NULL);
    fti_free(turns);
    if (said) *said = sink.said;
    return status;
}

ftk_status ftk_format_chat(const ftk_engine *e, const ftk_message *messages, size_t message_count,
                           uint32_t flags, int32_t *ids, size_t capacity, size_t *count,
                           ftk_error *err) {
    if (!e || !count || (!ids && capacity))
        return fti_fail(err, FTK_E_ARGUMENT, "engine, ids and count must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_CREATE, err));
    fti_ids out = {0};
    ftk_status status = fti_chat_encode(e, messages, message_count, flags, &out, NULL, err);
    if (status == FTK_OK) {
        *count = out.count;
        size_t n = out.count < capacity ? out.count : capacity;
        if (n) memcpy(ids, out.data, n * sizeof *ids);
    }
    fti_ids_free(&out);
    return status;
}
