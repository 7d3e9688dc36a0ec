/*
 * chat.c: dialogues in ChatML, as the family's template has them. The template itself is a
 * program that is not run; it is only looked at for how the model was trained to think:
 *
 *   a switch ("enable_thinking"): an answer opens with a think block, left open for the
 *     model to fill, or empty when thinking is turned off;
 *   an empty block written out: every answer opens with it;
 *   neither: answers open bare.
 */
#include "qwen36.h"

#include <stdio.h>

#define EMPTY_BLOCK "<think>\n\n</think>\n\n"
/* The same in a template, where line ends are escapes. */
#define EMPTY_BLOCK_ESCAPED "<think>\\n\\n</think>\\n\\n"

static bool contains(ftk_str text, const char *part) {
    size_t n = strlen(part);
    for (uint64_t i = 0; i + n <= text.size; i++)
        if (memcmp(text.data + i, part, n) == 0) return true;
    return false;
}

qwen36_thinking qwen36_thinking_of(ftk_str chat_template) {
    if (contains(chat_template, "enable_thinking")) return QWEN36_THINKING_SWITCH;
    if (contains(chat_template, EMPTY_BLOCK_ESCAPED) || contains(chat_template, EMPTY_BLOCK))
        return QWEN36_THINKING_EMPTY;
    return QWEN36_THINKING_NONE;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static ftk_str strip(ftk_str s) {
    while (s.size > 0 && is_space(s.data[0])) {
        s.data++;
        s.size--;
    }
    while (s.size > 0 && is_space(s.data[s.size - 1])) s.size--;
    return s;
}

/* What follows the last </think>: earlier answers are shown without their reasoning. */
static ftk_str without_reasoning(ftk_str s) {
    static const char end[] = "</think>";
    const uint64_t n = sizeof end - 1;
    for (uint64_t i = s.size; i >= n; i--)
        if (memcmp(s.data + i - n, end, (size_t)n) == 0) return (ftk_str){s.data + i, s.size - i};
    return s;
}

static bool is(ftk_str s, const char *text) {
    return s.size == strlen(text) && memcmp(s.data, text, (size_t)s.size) == 0;
}

static const ftk_chat_turn *turn_at(const ftk_chat_in *in, uint64_t i) {
    return (const ftk_chat_turn *)(const void *)((const char *)in->turns + i * in->turn_stride);
}

static ftk_status refuse(const ftk_chat_out *out, ftk_status status, uint64_t turn,
                         const char *what) {
    snprintf(out->message, out->message_size, "message %llu of the dialogue: %s",
             (unsigned long long)turn, what);
    return status;
}

static ftk_status check_turns(const ftk_chat_in *in, const ftk_chat_out *out) {
    bool asked = false;
    for (uint64_t i = 0; i < in->turn_count; i++) {
        const ftk_str role = turn_at(in, i)->role;
        if (is(role, "system") && i > 0)
            return refuse(out, FTK_E_ARGUMENT, i, "a system message must be the first");
        if (!is(role, "system") && !is(role, "user") && !is(role, "assistant"))
            return refuse(out, FTK_E_ARGUMENT, i, "the role must be system, user or assistant");
        asked |= is(role, "user");
    }
    return asked ? FTK_OK : refuse(out, FTK_E_ARGUMENT, 0, "there is no message of a user");
}

static void control(const ftk_chat_out *out, const char *text) {
    out->piece(out->user, qwen36_str(text), 1);
}

static void write_turn(const ftk_chat_turn *turn, const ftk_chat_out *out) {
    bool answer = is(turn->role, "assistant");
    control(out, "<|im_start|>");
    out->piece(out->user, turn->role, 0);
    out->piece(out->user, qwen36_str("\n"), 0);
    ftk_str content = strip(answer ? without_reasoning(turn->content) : turn->content);
    out->piece(out->user, content, 0);
    control(out, "<|im_end|>\n");
}

static void open_answer(const ftk_model *m, const ftk_chat_in *in, const ftk_chat_out *out) {
    bool quiet = m->thinking == QWEN36_THINKING_EMPTY || (in->hint & FTK_CHAT_HINT_NO_THINKING);
    control(out, "<|im_start|>assistant\n");
    if (m->thinking == QWEN36_THINKING_NONE) return;
    control(out, quiet ? EMPTY_BLOCK : "<think>\n");
}

ftk_status qwen36_format_chat(const ftk_model *m, const ftk_chat_in *in, const ftk_chat_out *out) {
    if (m->thinking == QWEN36_NO_CHAT) {
        snprintf(
            out->message, out->message_size,
            "the file has no tokenizer.chat_template: this model was not trained on dialogues");
        return FTK_E_UNSUPPORTED;
    }
    if (in->required != 0) return refuse(out, FTK_E_UNSUPPORTED, 0, "an unknown demand");
    ftk_status status = check_turns(in, out);
    if (status != FTK_OK) return status;
    for (uint64_t i = 0; i < in->turn_count; i++) write_turn(turn_at(in, i), out);
    if (in->open_answer) open_answer(m, in, out);
    return FTK_OK;
}
