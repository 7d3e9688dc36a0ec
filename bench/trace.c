/* trace.c: see trace.h. */
#include "trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/text.h"

/* ---- in memory ---- */

void fti_trace_init(fti_trace *t, const char *model, const fti_trace_layer *layers, size_t count) {
    *t = (fti_trace){.model = fti_cli_format("%s", model), .layer_count = count, .streams = 1};
    t->layers = fti_cli_alloc(count + 1, sizeof *t->layers);
    if (count) memcpy(t->layers, layers, count * sizeof *layers);
    t->starts = fti_cli_alloc(1, sizeof *t->starts);
}

void fti_trace_name(fti_trace *t, const char *model) {
    free(t->model);
    t->model = fti_cli_format("%s", model);
}

static void *grown(void *old, size_t have, size_t room, size_t size) {
    void *more = fti_cli_alloc(room, size);
    if (have) memcpy(more, old, have * size);
    free(old);
    return more;
}

void fti_trace_add_step(fti_trace *t, uint32_t rows, uint32_t prompt_rows) {
    if (t->step_count == t->step_room) {
        t->step_room = t->step_room ? 2 * t->step_room : 64;
        t->steps = grown(t->steps, t->step_count, t->step_room, sizeof *t->steps);
        t->starts = grown(t->starts, t->step_count * t->layer_count + 1,
                          t->step_room * t->layer_count + 1, sizeof *t->starts);
    }
    t->steps[t->step_count++] = (fti_trace_step){rows, prompt_rows};
    for (size_t l = 0; l < t->layer_count; l++)
        t->starts[(t->step_count - 1) * t->layer_count + l + 1] = t->entry_count;
}

void fti_trace_add_entry(fti_trace *t, size_t layer, uint32_t expert, uint32_t rows) {
    if (t->entry_count == t->entry_room) {
        t->entry_room = t->entry_room ? 2 * t->entry_room : 1024;
        t->entries = grown(t->entries, t->entry_count, t->entry_room, sizeof *t->entries);
    }
    t->entries[t->entry_count++] = (fti_trace_entry){expert, rows};
    for (size_t l = layer; l < t->layer_count; l++)
        t->starts[(t->step_count - 1) * t->layer_count + l + 1] = t->entry_count;
}

void fti_trace_free(fti_trace *t) {
    free(t->model);
    free(t->layers);
    free(t->steps);
    free(t->starts);
    free(t->entries);
    *t = (fti_trace){0};
}

uint64_t fti_trace_expert_bytes(const fti_trace_layer *layer) {
    uint64_t sum = 0;
    for (uint32_t p = 0; p < layer->part_count; p++) sum += layer->part_bytes[p];
    return sum;
}

/* ---- writing ---- */

static json_t *layer_json(const fti_trace_layer *l) {
    json_t *parts = json_array();
    for (uint32_t p = 0; p < l->part_count; p++)
        (void)json_array_append_new(parts, json_integer((json_int_t)l->part_bytes[p]));
    return json_pack("{s:I, s:I, s:I, s:o}", "layer", (json_int_t)l->layer, "experts",
                     (json_int_t)l->experts, "used", (json_int_t)l->used, "part_bytes", parts);
}

static json_t *header_json(const fti_trace *t) {
    json_t *layers = json_array();
    for (size_t l = 0; l < t->layer_count; l++)
        (void)json_array_append_new(layers, layer_json(&t->layers[l]));
    return json_pack("{s:s, s:i, s:o, s:o, s:I, s:I, s:o}", "format", FTI_TRACE_FORMAT, "version",
                     FTI_TRACE_VERSION, "model", fti_cli_json_text(t->model, strlen(t->model)),
                     "hash", json_sprintf("%016" PRIx64, t->hash), "streams",
                     (json_int_t)t->streams, "steps", (json_int_t)t->step_count, "layers", layers);
}

static void write_step(FILE *out, const fti_trace *t, size_t s) {
    (void)fprintf(out, "[%" PRIu32 ",%" PRIu32 ",[", t->steps[s].rows, t->steps[s].prompt_rows);
    for (size_t l = 0; l < t->layer_count; l++) {
        size_t first = t->starts[s * t->layer_count + l];
        (void)fputs(l ? ",[" : "[", out);
        for (size_t i = first; i < t->starts[s * t->layer_count + l + 1]; i++)
            (void)fprintf(out, "%s%" PRIu32 ",%" PRIu32, i > first ? "," : "", t->entries[i].expert,
                          t->entries[i].rows);
        (void)fputc(']', out);
    }
    (void)fputs("]]\n", out);
}

int fti_trace_write(const fti_trace *t, const char *path) {
    fti_cli_file file;
    bool good = fti_cli_file_begin(&file, path, 0666);
    if (good) {
        fti_cli_write_json(file.stream, header_json(t));
        for (size_t s = 0; s < t->step_count; s++) write_step(file.stream, t, s);
        good = fti_cli_file_commit(&file);
    }
    if (good) return 0;
    int code = fti_cli_fail(FTK_E_IO, "%s: cannot write: %s", path, strerror(errno));
    fti_cli_file_abandon(&file);
    return code;
}

/* ---- reading ---- */

/* Where a reader is, for messages. */
typedef struct reading {
    const char *path;
    size_t line;
    const char *at, *end;
} reading;

static int refuse(const reading *r, const char *what) {
    return fti_cli_fail(FTK_E_ARGUMENT, "%s, line %zu: %s", r->path, r->line, what);
}

static bool number(const json_t *json, uint64_t least, uint64_t most, uint64_t *out) {
    json_int_t value = json_integer_value(json);
    if (!json_is_integer(json) || value < 0) return false;
    *out = (uint64_t)value;
    return *out >= least && *out <= most;
}

static bool number32(const json_t *json, uint32_t least, uint32_t most, uint32_t *out) {
    uint64_t wide;
    if (!number(json, least, most, &wide)) return false;
    *out = (uint32_t)wide;
    return true;
}

/* The next line as JSON; NULL if there is none, or none that is whole. */
static json_t *next_line(reading *r) {
    r->line++;
    const char *newline = r->at < r->end ? memchr(r->at, '\n', (size_t)(r->end - r->at)) : NULL;
    if (!newline) return NULL;
    json_t *json = json_loadb(r->at, (size_t)(newline - r->at), JSON_REJECT_DUPLICATES, NULL);
    r->at = newline + 1;
    return json;
}

static bool read_layer(const json_t *json, fti_trace_layer *l) {
    const json_t *parts = json_object_get(json, "part_bytes");
    size_t count = json_array_size(parts);
    if (count == 0 || count > FTI_TRACE_PARTS) return false;
    l->part_count = (uint32_t)count;
    for (size_t p = 0; p < count; p++)
        if (!number(json_array_get(parts, p), 1, (uint64_t)1 << 40, &l->part_bytes[p]))
            return false;
    return number32(json_object_get(json, "layer"), 0, UINT32_MAX, &l->layer) &&
           number32(json_object_get(json, "experts"), 1, FTI_TRACE_MOST_EXPERTS, &l->experts) &&
           number32(json_object_get(json, "used"), 1, l->experts, &l->used);
}

static bool read_layers(const json_t *json, fti_trace *t) {
    size_t count = json_array_size(json);
    if (count == 0 || count > FTI_TRACE_MOST_LAYERS) return false;
    t->layers = fti_cli_alloc(count, sizeof *t->layers);
    uint64_t total = 0;
    for (size_t l = 0; l < count; l++) {
        if (!read_layer(json_array_get(json, l), &t->layers[l])) return false;
        if (l && t->layers[l].layer <= t->layers[l - 1].layer) return false;
        total += t->layers[l].experts;
    }
    t->layer_count = count;
    t->starts = fti_cli_alloc(1, sizeof *t->starts);
    return total <= FTI_TRACE_MOST_TOTAL;
}

static bool read_hash(const json_t *json, uint64_t *hash) {
    const char *text = json_string_value(json);
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    *hash = strtoull(text, NULL, 16);
    return true;
}

static int read_header(reading *r, const json_t *json, fti_trace *t, uint64_t *steps) {
    const char *format = json_string_value(json_object_get(json, "format"));
    const char *model = json_string_value(json_object_get(json, "model"));
    uint64_t version;
    if (!format || strcmp(format, FTI_TRACE_FORMAT) != 0)
        return refuse(r, "no header of a trace of routing ('format' is '" FTI_TRACE_FORMAT "')");
    if (!number(json_object_get(json, "version"), 0, INT64_MAX, &version) ||
        version != FTI_TRACE_VERSION)
        return refuse(r, "this program reads version 1 of the format only");
    if (!model || !read_hash(json_object_get(json, "hash"), &t->hash) ||
        !number32(json_object_get(json, "streams"), 1, FTI_TRACE_MOST_ROWS, &t->streams) ||
        !number(json_object_get(json, "steps"), 1, INT64_MAX, steps))
        return refuse(r, "'model', 'hash', 'streams' or 'steps' is missing or out of range");
    t->model = fti_cli_format("%s", model);
    if (!read_layers(json_object_get(json, "layers"), t))
        return refuse(r, "'layers' is missing, out of range or not in rising order");
    return 0;
}

/* What a layer of a step used. Each of its rows uses `used` different experts. */
static bool read_entries(const json_t *json, fti_trace *t, size_t layer, uint32_t rows) {
    const fti_trace_layer *l = &t->layers[layer];
    size_t count = json_array_size(json);
    uint64_t pairs = 0;
    uint32_t most = 0;
    if (!json_is_array(json) || count % 2 || count / 2 > l->experts) return false;
    for (size_t i = 0, least = 0; i < count; i += 2) {
        uint32_t expert, used;
        if (least >= l->experts) return false;
        if (!number32(json_array_get(json, i), (uint32_t)least, l->experts - 1, &expert) ||
            !number32(json_array_get(json, i + 1), 1, rows, &used))
            return false;
        fti_trace_add_entry(t, layer, expert, used);
        least = (size_t)expert + 1;
        pairs += used;
        if (used > most) most = used;
    }
    return pairs % l->used == 0 && pairs / l->used <= rows && most <= pairs / l->used;
}

static int read_step(const reading *r, const json_t *json, fti_trace *t) {
    uint32_t rows, prompt_rows;
    const json_t *layers = json_array_get(json, 2);
    if (json_array_size(json) != 3 ||
        !number32(json_array_get(json, 0), 1, FTI_TRACE_MOST_ROWS, &rows) ||
        !number32(json_array_get(json, 1), 0, rows, &prompt_rows))
        return refuse(r, "no step: [rows, prompt rows, layers]");
    if (!json_is_array(layers) || json_array_size(layers) != t->layer_count)
        return refuse(r, "the step has other layers than the header");
    fti_trace_add_step(t, rows, prompt_rows);
    for (size_t l = 0; l < t->layer_count; l++)
        if (!read_entries(json_array_get(layers, l), t, l, rows))
            return refuse(r, "a layer's experts are out of range or order, or do not add up to "
                             "whole rows");
    return 0;
}

static int read_steps(reading *r, fti_trace *t, uint64_t steps) {
    int code = 0;
    for (uint64_t s = 0; s < steps && code == 0; s++) {
        json_t *json = next_line(r);
        code = json ? read_step(r, json, t)
                    : refuse(r, "a step is missing or is no JSON: the file was cut short");
        json_decref(json);
    }
    r->line++;
    if (code == 0 && r->at != r->end) code = refuse(r, "more lines than the header has steps");
    return code;
}

int fti_trace_read(const char *path, fti_trace *t) {
    *t = (fti_trace){0};
    fti_cli_text text = {0};
    if (!fti_cli_read_file(path, &text)) {
        free(text.data);
        return fti_cli_fail(FTK_E_IO, "%s: cannot read: %s", path, strerror(errno));
    }
    reading r = {.path = path, .at = text.data, .end = text.data + text.size};
    uint64_t steps = 0;
    json_t *header = text.size ? next_line(&r) : NULL;
    int code = read_header(&r, header, t, &steps);
    json_decref(header);
    if (code == 0) code = read_steps(&r, t, steps);
    free(text.data);
    if (code) fti_trace_free(t);
    return code;
}
