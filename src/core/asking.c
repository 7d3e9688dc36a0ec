/*
 * asking.c: requests as applications state them: every field checked, text and messages
 * turned into tokens.
 */
#include "core/chat.h"
#include "core/engine.h"
#include "core/serve.h"

ftk_status fti_check_ids(const ftk_engine *e, const int32_t *ids, size_t count, ftk_error *err) {
    if (count == 0 || !ids)
        return fti_fail(err, FTK_E_ARGUMENT, "the prompt is empty: at least one token is needed");
    if (count > e->budget.context)
        return fti_fail(err, FTK_E_CONTEXT,
                        "%zu tokens do not fit the context of %u: shorten the text or raise "
                        "memory.kv_tokens (--ctx, at most %u)",
                        count, e->budget.context, e->info.context);
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= e->info.vocabulary)
            return fti_fail(err, FTK_E_ARGUMENT, "token %zu is %d, the vocabulary has ids 0 to %u",
                            i, ids[i], e->info.vocabulary - 1);
    return FTK_OK;
}

static ftk_status check_sampling(const ftk_engine *e, const ftk_request *r, ftk_error *err) {
    const ftk_sampling *s = &r->sampling;
    FTI_TRY(fti_check_size(s->struct_size, sizeof *s, "ftk_sampling", err));
    if (s->bias_count > 0 && !s->biases)
        return fti_fail(err, FTK_E_ARGUMENT, "sampling.biases is NULL, bias_count is %u",
                        s->bias_count);
    const fti_sampling sampling = fti_sampling_of(s, s->biases, r->logprobs);
    return fti_sampling_check(&sampling, e->info.vocabulary, err);
}

static ftk_status check_stops(const ftk_request *r, ftk_error *err) {
    if (r->stop_count > FTI_MAX_STOPS)
        return fti_fail(err, FTK_E_ARGUMENT, "%zu stop strings, at most %u are taken",
                        r->stop_count, FTI_MAX_STOPS);
    if (r->stop_count > 0 && !r->stop)
        return fti_fail(err, FTK_E_ARGUMENT, "stop is NULL, stop_count is %zu", r->stop_count);
    for (size_t i = 0; i < r->stop_count; i++)
        if (!r->stop[i] || !r->stop[i][0] || strlen(r->stop[i]) > 1024)
            return fti_fail(err, FTK_E_ARGUMENT,
                            "stop string %zu is empty, NULL or above 1024 bytes", i);
    return FTK_OK;
}

static ftk_status check_fields(const ftk_engine *e, const ftk_request *r, ftk_error *err) {
    FTI_TRY(fti_check_size(r->struct_size, sizeof *r, "ftk_request", err));
    FTI_TRY(check_sampling(e, r, err));
    FTI_TRY(check_stops(r, err));
    int kinds = (r->tokens != NULL) + (r->text != NULL) + (r->messages != NULL);
    if (kinds != 1)
        return fti_fail(err, FTK_E_ARGUMENT,
                        "a request has exactly one of tokens, text and messages, this one has %d",
                        kinds);
    return FTK_OK;
}

static ftk_status copy_tokens(const ftk_engine *e, const ftk_request *r, fti_ids *prompt,
                              ftk_error *err) {
    FTI_TRY(fti_check_ids(e, r->tokens, r->token_count, err));
    for (size_t i = 0; i < r->token_count; i++)
        if (!fti_ids_push(prompt, r->tokens[i]))
            return fti_no_memory(err, r->token_count * sizeof(int32_t), "a prompt");
    return FTK_OK;
}

static ftk_status prompt_of(const ftk_engine *e, const ftk_request *r, fti_ids *prompt,
                            uint64_t *said, ftk_error *err) {
    if (r->tokens) return copy_tokens(e, r, prompt, err);
    if (r->messages)
        return fti_chat_encode(e, r->messages, r->message_count, r->chat_flags, prompt, said, err);
    if (r->text_flags & ~FTK_TOKENIZE_SPECIAL)
        return fti_fail(err, FTK_E_ARGUMENT, "unknown text_flags 0x%x", r->text_flags);
    const ftk_str text = {r->text, r->text_size};
    return fti_tokenizer_encode(e->tokenizer, text, r->text_flags & FTK_TOKENIZE_SPECIAL, prompt,
                                err);
}

ftk_status fti_check_request(const ftk_engine *e, const ftk_request *asked, fti_ids *prompt,
                             uint64_t *said, ftk_error *err) {
    *said = 0;
    FTI_TRY(check_fields(e, asked, err));
    FTI_TRY(prompt_of(e, asked, prompt, said, err));
    return fti_check_ids(e, prompt->data, prompt->count, err);
}
