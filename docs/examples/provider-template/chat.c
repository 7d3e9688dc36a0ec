/*
 * chat.c: how dialogues are written for this family: <|ROLE|>TEXT<|end|>. Optional: a
 * provider whose models do not converse leaves the slot NULL.
 */
#include "template.h"

#include <stdio.h>

static const ftk_chat_turn *turn_at(const ftk_chat_in *in, uint64_t i) {
    return (const ftk_chat_turn *)(const void *)((const char *)in->turns + i * in->turn_stride);
}

static const char *marker_of(ftk_str role) {
    static const char *const markers[] = {"<|system|>", "<|user|>", "<|assistant|>"};
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
        ftk_str inside = {markers[i] + 2, strlen(markers[i]) - 4};
        if (role.size == inside.size && memcmp(role.data, inside.data, (size_t)role.size) == 0)
            return markers[i];
    }
    return NULL;
}

/* Any thread may ask, so that a failure is told in out->message, not through report. */
static ftk_status refuse(const ftk_chat_out *out, ftk_status status, const char *message) {
    snprintf(out->message, out->message_size, "%s", message);
    return status;
}

/* Markers are control, what people and the model wrote is plain: a user who types
 * "<|end|>" ends nothing. */
ftk_status template_format_chat(const ftk_model *m, const ftk_chat_in *in,
                                const ftk_chat_out *out) {
    if (!m->has_dialogue)
        return refuse(out, FTK_E_UNSUPPORTED,
                      "the vocabulary has no <|user|>: this model was not trained on dialogues");
    if (in->required != 0) return refuse(out, FTK_E_UNSUPPORTED, "an unknown demand");
    for (uint64_t i = 0; i < in->turn_count; i++) {
        const ftk_chat_turn *turn = turn_at(in, i);
        const char *marker = marker_of(turn->role);
        if (!marker)
            return refuse(out, FTK_E_ARGUMENT, "the role must be system, user or assistant");
        out->piece(out->user, template_str(marker), 1);
        out->piece(out->user, turn->content, 0);
        out->piece(out->user, template_str("<|end|>"), 1);
    }
    if (in->open_answer) out->piece(out->user, template_str("<|assistant|>"), 1);
    return FTK_OK;
}
