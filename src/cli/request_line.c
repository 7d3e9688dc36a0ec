/* request_line.c: see request_line.h. The keys are one table. */
#include "cli/request_line.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "cli/text.h"

#define U32_MAX   4294967295.0
#define BELOW_ONE 0.9999999
#define SHOWN     60 /* bytes of a value that a message repeats */

/* ---- messages ---- */

static bool refuse(ftk_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(ftk_error *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    err->status = FTK_E_ARGUMENT;
    return false;
}

static bool wrong(ftk_error *err, const char *where, const json_t *found, const char *wanted) {
    char *value = json_dumps(found, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    const char *shown = value ? value : "?";
    (void)refuse(err, "%s is %.*s%s: wanted %s", where, SHOWN, shown,
                 strlen(shown) > SHOWN ? "..." : "", wanted);
    free(value);
    return false;
}

/* ---- values ---- */

typedef struct key {
    const char *name;
    bool (*take)(fti_cli_request_line *line, const struct key *key, const json_t *value,
                 ftk_error *err);
    size_t offset;   /* of the member of ftk_request */
    double min, max; /* of numbers, inclusive */
    uint32_t bit;    /* of flags */
    bool samples;    /* turns sampling on */
} key;

static void *member(fti_cli_request_line *line, const key *k) {
    return (char *)&line->request + k->offset;
}

static bool in_range(const key *k, const json_t *value) {
    double number = json_number_value(value);
    return number >= k->min && number <= k->max;
}

static bool out_of_range(const key *k, const json_t *value, const char *what, ftk_error *err) {
    char wanted[96];
    (void)snprintf(wanted, sizeof wanted, "%s from %.10g to %.10g", what, k->min, k->max);
    return wrong(err, k->name, value, wanted);
}

static bool take_u32(fti_cli_request_line *line, const key *k, const json_t *value,
                     ftk_error *err) {
    if (!json_is_integer(value) || !in_range(k, value))
        return out_of_range(k, value, "a whole number", err);
    *(uint32_t *)member(line, k) = (uint32_t)json_integer_value(value);
    return true;
}

static bool take_i32(fti_cli_request_line *line, const key *k, const json_t *value,
                     ftk_error *err) {
    if (!json_is_integer(value) || !in_range(k, value))
        return out_of_range(k, value, "a whole number", err);
    *(int32_t *)member(line, k) = (int32_t)json_integer_value(value);
    return true;
}

static bool take_seed(fti_cli_request_line *line, const key *k, const json_t *value,
                      ftk_error *err) {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return wrong(err, k->name, value, "a whole number from 0 to 2^63-1");
    line->request.sampling.seed = (uint64_t)json_integer_value(value);
    return true;
}

static bool take_float(fti_cli_request_line *line, const key *k, const json_t *value,
                       ftk_error *err) {
    if (!json_is_number(value) || !in_range(k, value))
        return out_of_range(k, value, "a number", err);
    *(float *)member(line, k) = (float)json_number_value(value);
    return true;
}

static bool take_flag(fti_cli_request_line *line, const key *k, const json_t *value,
                      ftk_error *err) {
    if (!json_is_boolean(value)) return wrong(err, k->name, value, "true or false");
    uint32_t *bits = member(line, k);
    *bits = json_is_true(value) ? *bits | k->bit : *bits & ~k->bit;
    return true;
}

static bool take_prompt(fti_cli_request_line *line, const key *k, const json_t *value,
                        ftk_error *err) {
    if (!json_is_string(value)) return wrong(err, k->name, value, "a text");
    line->request.text = json_string_value(value);
    line->request.text_size = json_string_length(value);
    return true;
}

static bool take_tokens(fti_cli_request_line *line, const key *k, const json_t *value,
                        ftk_error *err) {
    if (!json_is_array(value)) return wrong(err, k->name, value, "a list of token ids");
    size_t i, count = json_array_size(value);
    json_t *id;
    line->tokens = fti_cli_alloc(count, sizeof *line->tokens);
    json_array_foreach((json_t *)(uintptr_t)value, i, id) {
        json_int_t number = json_integer_value(id);
        if (!json_is_integer(id) || number < 0 || number > INT32_MAX) {
            char where[48];
            (void)snprintf(where, sizeof where, "tokens[%zu]", i);
            return wrong(err, where, id, "a token id");
        }
        line->tokens[i] = (int32_t)number;
    }
    line->request.tokens = line->tokens;
    line->request.token_count = count;
    return true;
}

/* A text that the library takes as NUL-terminated. */
static const char *plain_text(const json_t *value) {
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

static bool take_message(ftk_message *message, size_t index, const json_t *value, ftk_error *err) {
    const json_t *content = json_object_get(value, "content");
    char where[48];
    (void)snprintf(where, sizeof where, "messages[%zu]", index);
    *message = (ftk_message)FTK_MESSAGE_INIT;
    message->role = plain_text(json_object_get(value, "role"));
    if (!message->role || !json_is_string(content) || json_object_size(value) != 2)
        return wrong(err, where, value, "an object with the texts role and content alone");
    message->content = json_string_value(content);
    message->content_size = json_string_length(content);
    return true;
}

static bool take_messages(fti_cli_request_line *line, const key *k, const json_t *value,
                          ftk_error *err) {
    size_t i, count = json_array_size(value);
    json_t *message;
    if (count == 0) return wrong(err, k->name, value, "a list of messages, at least one");
    line->messages = fti_cli_alloc(count, sizeof *line->messages);
    json_array_foreach((json_t *)(uintptr_t)value, i, message) {
        if (!take_message(&line->messages[i], i, message, err)) return false;
    }
    line->request.messages = line->messages;
    line->request.message_count = count;
    return true;
}

static bool take_stop(fti_cli_request_line *line, const key *k, const json_t *value,
                      ftk_error *err) {
    static const char wanted[] = "a text, or a list of at most 16, without U+0000";
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (count > FTI_CLI_MAX_STOPS) return wrong(err, k->name, value, wanted);
    for (size_t i = 0; i < count; i++) {
        const json_t *text = json_is_array(value) ? json_array_get(value, i) : value;
        line->stops[i] = plain_text(text);
        if (!line->stops[i]) return wrong(err, k->name, value, wanted);
    }
    line->request.stop = line->stops;
    line->request.stop_count = count;
    return true;
}

/* The number of the line stands in where there is none; see requests.c. */
static bool take_id(fti_cli_request_line *line, const key *k, const json_t *value, ftk_error *err) {
    if (!json_is_string(value) && !json_is_integer(value))
        return wrong(err, k->name, value, "a text or a whole number");
    line->id = json_incref((json_t *)(uintptr_t)value);
    return true;
}

/* ---- keys ---- */

#define AT(member)       offsetof(ftk_request, member)
#define SAMPLING(member) offsetof(ftk_request, sampling.member)

static const key keys[] = {
    {"id", take_id, 0, 0, 0, 0, false},
    {"prompt", take_prompt, 0, 0, 0, 0, false},
    {"messages", take_messages, 0, 0, 0, 0, false},
    {"tokens", take_tokens, 0, 0, 0, 0, false},
    {"max_tokens", take_u32, AT(max_tokens), 0, U32_MAX, 0, false},
    {"temperature", take_float, SAMPLING(temperature), 0, 100, 0, true},
    {"top_p", take_float, SAMPLING(top_p), 1e-6, 1, 0, true},
    {"top_k", take_u32, SAMPLING(top_k), 0, U32_MAX, 0, true},
    {"min_p", take_float, SAMPLING(min_p), 0, BELOW_ONE, 0, true},
    {"seed", take_seed, 0, 0, 0, 0, true},
    {"repetition_penalty", take_float, SAMPLING(repetition_penalty), 1e-6, 100, 0, false},
    {"presence_penalty", take_float, SAMPLING(presence_penalty), -100, 100, 0, false},
    {"frequency_penalty", take_float, SAMPLING(frequency_penalty), -100, 100, 0, false},
    {"penalty_last", take_u32, SAMPLING(penalty_last), 0, U32_MAX, 0, false},
    {"stop", take_stop, 0, 0, 0, 0, false},
    {"ignore_eos", take_flag, AT(ignore_end), 0, 0, 1, false},
    {"special", take_flag, AT(text_flags), 0, 0, FTK_TOKENIZE_SPECIAL, false},
    {"no_thinking", take_flag, AT(chat_flags), 0, 0, FTK_CHAT_NO_THINKING, false},
    {"logprobs", take_u32, AT(logprobs), 0, FTK_MAX_LOGPROBS, 0, false},
    {"priority", take_i32, AT(priority), INT32_MIN, INT32_MAX, 0, false},
};
#define KEY_COUNT (sizeof keys / sizeof keys[0])

static bool unknown_key(const char *name, ftk_error *err) {
    const char *near = fti_cli_nearest(name, &keys[0].name, KEY_COUNT, sizeof keys[0]);
    if (near) return refuse(err, "unknown key '%.60s'; did you mean '%s'?", name, near);
    return refuse(err, "unknown key '%.60s'; 'help run' lists those that are known", name);
}

static const key *find_key(const char *name) {
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (strcmp(name, keys[i].name) == 0) return &keys[i];
    return NULL;
}

static bool samples(const json_t *object) {
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (keys[i].samples && json_object_get(object, keys[i].name)) return true;
    return false;
}

static bool take_keys(fti_cli_request_line *line, ftk_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach(line->object, name, value) {
        const key *k = find_key(name);
        if (!k) return unknown_key(name, err);
        if (k->take != take_id && !k->take(line, k, value, err)) return false;
    }
    return true;
}

static bool check_kind(const fti_cli_request_line *line, ftk_error *err) {
    const ftk_request *r = &line->request;
    const char *wanted = "wanted exactly one of prompt, messages and tokens";
    int kinds = (r->text != NULL) + (r->messages != NULL) + (r->tokens != NULL);
    if (kinds == 0) return refuse(err, "no prompt: %s", wanted);
    return kinds == 1 || refuse(err, "%d kinds of prompt: %s", kinds, wanted);
}

bool fti_cli_request_line_read(const char *text, size_t size,
                               const fti_cli_request_defaults *defaults, fti_cli_request_line *line,
                               ftk_error *err) {
    json_error_t error;
    *line = (fti_cli_request_line){.request = defaults->request};
    line->object = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!line->object) return refuse(err, "column %d: not JSON: %s", error.column, error.text);
    if (!json_is_object(line->object)) return wrong(err, "the line", line->object, "a JSON object");
    /* First of all, so that what else is wrong can be said of it. */
    const json_t *id = json_object_get(line->object, "id");
    if (id && !take_id(line, &keys[0], id, err)) return false;
    if (samples(line->object)) line->request.sampling = defaults->sampled;
    return take_keys(line, err) && check_kind(line, err);
}

void fti_cli_request_line_free(fti_cli_request_line *line) {
    json_decref(line->id);
    json_decref(line->object);
    free(line->messages);
    free(line->tokens);
    *line = (fti_cli_request_line){0};
}
