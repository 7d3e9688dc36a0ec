/* cmd_inspect.c: `freetoken inspect`: a checkpoint for people, or as JSON. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

static uint64_t number(const json_t *object, const char *key) {
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 ? (uint64_t)value : 0;
}

/* One line of the table: nothing is printed for what the file does not say. */
static void print_value(const char *label, const json_t *value) {
    if (!value) return;
    (void)printf("%-22s ", label);
    if (json_is_string(value)) {
        (void)fputs(json_string_value(value), stdout);
    } else if (json_is_object(value)) {
        (void)printf("%" PRIu64, number(value, "count"));
    } else {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        (void)fputs(text ? text : "?", stdout);
        free(text);
    }
    (void)fputc('\n', stdout);
}

static void print_sizes(const json_t *metadata, const char *architecture) {
    static const char *const keys[][2] = {{"block_count", "layers"},
                                          {"context_length", "context"},
                                          {"embedding_length", "hidden size"},
                                          {"attention.head_count", "attention heads"},
                                          {"attention.head_count_kv", "key/value heads"},
                                          {"expert_count", "experts"},
                                          {"expert_used_count", "experts per token"}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char *key = fti_cli_format("%s.%s", architecture, keys[i][0]);
        print_value(keys[i][1], json_object_get(metadata, key));
        free(key);
    }
}

static void print_tokenizer(const json_t *metadata) {
    static const char *const keys[][2] = {{"tokenizer.ggml.model", "tokenizer"},
                                          {"tokenizer.ggml.pre", "pre-tokenizer"},
                                          {"tokenizer.ggml.tokens", "vocabulary"},
                                          {"tokenizer.ggml.merges", "merges"},
                                          {"tokenizer.ggml.eos_token_id", "end token"}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        print_value(keys[i][1], json_object_get(metadata, keys[i][0]));
    }
    bool chat = json_object_get(metadata, "tokenizer.chat_template") != NULL;
    (void)printf("%-22s %s\n", "chat template", chat ? "yes" : "no");
}

static void print_types(json_t *report) {
    const char *name;
    json_t *entry;
    uint64_t count = 0;
    uint64_t bytes = 0;
    fti_cli_size size;
    (void)printf("\n%-8s %8s %16s\n", "type", "tensors", "bytes");
    json_object_foreach(json_object_get(report, "types"), name, entry) {
        count += number(entry, "count");
        bytes += number(entry, "bytes");
        (void)printf("%-8s %8" PRIu64 " %16" PRIu64 "  %s\n", name, number(entry, "count"),
                     number(entry, "bytes"), fti_cli_size_text(number(entry, "bytes"), &size));
    }
    (void)printf("%-8s %8" PRIu64 " %16" PRIu64 "  %s\n", "all", count, bytes,
                 fti_cli_size_text(bytes, &size));
}

static void print_tensor(const json_t *tensor) {
    fti_cli_text dims = {0};
    const json_t *list = json_object_get(tensor, "dims");
    fti_cli_append(&dims, "", 0);
    for (size_t i = 0; i < json_array_size(list); i++) {
        fti_cli_printf(&dims, "%s%" JSON_INTEGER_FORMAT, i ? " x " : "",
                       json_integer_value(json_array_get(list, i)));
    }
    (void)printf("%-40s %-6s %-24s %14" PRIu64 " %14" PRIu64 "\n", fti_cli_member(tensor, "name"),
                 fti_cli_member(tensor, "type"), dims.data, number(tensor, "bytes"),
                 number(tensor, "offset"));
    free(dims.data);
}

static void print_tensors(const json_t *report) {
    size_t i;
    const json_t *tensor;
    (void)printf("\n%-40s %-6s %-24s %14s %14s\n", "tensor", "type", "dimensions", "bytes",
                 "offset");
    json_array_foreach(json_object_get(report, "tensors"), i, tensor) print_tensor(tensor);
}

static void print_slots(const json_t *slots) {
    size_t i;
    const json_t *pool;
    json_array_foreach(slots, i, pool)(void)
        printf("%-22s %s\n", i ? "" : "slots", json_string_value(pool));
}

/* The chosen one is marked; those beside it are what more or less context would cost. */
static void print_rungs(const json_t *rungs) {
    size_t i, p;
    const json_t *rung, *slots;
    fti_cli_size kv, experts;
    if (json_array_size(rungs) == 0) return;
    (void)printf("\n%-10s %16s %10s %16s %10s %16s  %s\n", "context", "KV cache", "", "experts", "",
                 "total", "slots of each pool");
    json_array_foreach(rungs, i, rung) {
        bool chosen = json_is_true(json_object_get(rung, "chosen"));
        (void)printf("%-8" PRIu64 "%2s %16" PRIu64 " %10s %16" PRIu64 " %10s %16" PRIu64 " ",
                     number(rung, "context"), chosen ? "*" : "", number(rung, "kv_cache"),
                     fti_cli_size_text(number(rung, "kv_cache"), &kv), number(rung, "expert_slots"),
                     fti_cli_size_text(number(rung, "expert_slots"), &experts),
                     number(rung, "total"));
        json_array_foreach(json_object_get(rung, "slots"), p, slots)(void)
            printf(" %" JSON_INTEGER_FORMAT, json_integer_value(slots));
        (void)fputc('\n', stdout);
    }
    (void)printf(
        "* is what the engine opens with; the others are what else the same budget holds.\n");
}

static void print_memory(json_t *memory) {
    const char *key;
    json_t *value;
    fti_cli_size size;
    (void)printf("\n%-22s %16s\n", "memory plan", "bytes");
    json_object_foreach(memory, key, value) {
        bool bytes = json_is_integer(value) && strcmp(key, "context") != 0 &&
                     strcmp(key, "requests") != 0 && strcmp(key, "snapshots") != 0;
        if (!bytes) {
            if (!json_is_array(value)) print_value(key, value);
            continue;
        }
        (void)printf("%-22s %16" PRIu64 "  %s\n", key, number(memory, key),
                     fti_cli_size_text(number(memory, key), &size));
    }
    print_slots(json_object_get(memory, "slots"));
    print_rungs(json_object_get(memory, "rungs"));
    (void)printf("The plan is for scheduler.max_running requests at once, as an application runs "
                 "them;\nfreetoken run and chat plan for 1.\n");
}

static void print_table(json_t *report, bool tensors) {
    const json_t *metadata = json_object_get(report, "metadata");
    fti_cli_size size;
    (void)printf("%-22s %s\n", "path", fti_cli_member(report, "path"));
    (void)printf("%-22s %s, version %" PRIu64 "\n", "container",
                 fti_cli_member(report, "container"), number(report, "version"));
    (void)printf("%-22s %" PRIu64 " bytes (%s)\n", "file", number(report, "file_bytes"),
                 fti_cli_size_text(number(report, "file_bytes"), &size));
    print_value("architecture", json_object_get(report, "architecture"));
    print_value("name", json_object_get(metadata, "general.name"));
    print_sizes(metadata, fti_cli_member(report, "architecture"));
    print_tokenizer(metadata);
    print_types(report);
    if (tensors) print_tensors(report);
    json_t *memory = json_object_get(report, "memory");
    if (memory) print_memory(memory);
}

static int add_plan(const fti_cli_call *call, json_t *report) {
    ftk_engine *engine;
    int code = fti_cli_open(&call->common, call->arguments[0], FTK_OPEN_PLANNED, &engine);
    if (code) return code;
    char *json = NULL;
    ftk_error err = FTK_ERROR_INIT;
    if (ftk_engine_memory(engine, &json, &err) == FTK_OK) {
        (void)json_object_set_new(report, "memory", fti_cli_report(json));
    } else {
        code = fti_cli_fail_with(&err);
    }
    ftk_engine_close(engine);
    return code;
}

int fti_cli_inspect(const fti_cli_call *call) {
    const fti_cli_values *v = fti_cli_values_of(call);
    ftk_error err = FTK_ERROR_INIT;
    char *json = NULL;
    json_t *report;
    int code = fti_cli_reported(ftk_inspect(call->arguments[0], &json, &err), &err, &json, &report);
    if (code) return code;
    code = v->plan ? add_plan(call, report) : 0;
    if (code == 0 && call->common.json) {
        fti_cli_print_json(json_incref(report));
    } else if (code == 0) {
        json_t *shown = fti_cli_shown_report(report);
        print_table(shown, v->tensors);
        json_decref(shown);
    }
    json_decref(report);
    return code;
}
