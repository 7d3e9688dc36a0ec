/* subject.c: see subject.h. */
#include "subject.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "attribution.h"
#include "load.h"
#include "machine.h"
#include "prompts.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

/* ---- the work ---- */

int fti_bench_make_task(const fti_bench_values *v, const char *scenario, fti_bench_task *task) {
    *task = (fti_bench_task){.values = v, .clock = &fti_bench_system_clock};
    task->scenario = fti_bench_find_scenario(scenario);
    if (!task->scenario) return FTI_CLI_EXIT_USAGE;
    const fti_bench_scenario *s = task->scenario;
    task->streams = s->many ? v->batch : 1;
    task->tokens = v->tokens && s->tokens > 1 ? v->tokens : s->tokens;
    task->prompt_tokens = v->prompt_tokens;
    if (v->prompt && v->prompt_tokens)
        return fti_cli_usage("--prompt and --prompt-tokens exclude each other");
    if ((v->prompt != NULL) + (v->file != NULL) + v->prose > 1)
        return fti_cli_usage("--prompt, --file and --prose exclude each other");
    if (v->prompt && task->streams > 1)
        return fti_cli_usage("--prompt is one prompt, and %zu streams want different ones: give a "
                             "text with --file",
                             task->streams);
    if (!task->prompt_tokens && !v->prompt) task->prompt_tokens = s->prompt_tokens;
    return 0;
}

/* KEY=VALUE of the option `name`. */
static int set_key(ftk_config *config, const char *name, const char *item) {
    const char *equals = strchr(item, '=');
    if (!equals) return fti_cli_usage("--%s: '%s' is not KEY=VALUE", name, item);
    ftk_error err = FTK_ERROR_INIT;
    char *key = fti_cli_format("%.*s", (int)(equals - item), item);
    ftk_status status = ftk_config_set(config, key, equals + 1, &err);
    free(key);
    return status == FTK_OK ? 0 : fti_cli_usage("--%s %s: %s", name, item, err.message);
}

static int set_keys(ftk_config *config, const char *name, const fti_cli_list *list) {
    int code = 0;
    for (size_t i = 0; list && i < list->count && code == 0; i++)
        code = set_key(config, name, list->items[i]);
    return code;
}

int fti_bench_set_keys(ftk_config *config, bool single, const fti_cli_list *set,
                       const fti_cli_list *set_b) {
    /* A prompt that is run again shall be computed again, unless that is what is measured. */
    int code = set_key(config, "set", "scheduler.prefix_cache=false");
    if (code == 0 && single) code = set_key(config, "set", "scheduler.max_running=1");
    if (code == 0) code = set_keys(config, "set", set);
    return code ? code : set_keys(config, "set-b", set_b);
}

int fti_bench_config(const fti_cli_common *common, const char *path, bool single,
                     const fti_cli_list *set, const fti_cli_list *set_b, ftk_config **out) {
    fti_cli_common line = *common;
    if (path) line.config = path;
    int code = fti_cli_load_config(&line, out);
    if (code) return code;
    code = fti_bench_set_keys(*out, single, set, set_b);
    if (code == 0) return 0;
    ftk_config_free(*out);
    *out = NULL;
    return code;
}

int fti_bench_linked_config(const fti_cli_call *call, const struct ftk_provider *(*entry)(void),
                            bool single, ftk_config **out) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = ftk_config_parse("", 0, "linked in", out, &err);
    if (status != FTK_OK) return fti_cli_fail_with(&err);
    status = ftk_config_link_provider(*out, entry, &err);
    int code = status == FTK_OK ? fti_cli_apply_options(*out, &call->common)
                                : fti_cli_fail_with(&err);
    if (code == 0) code = fti_bench_set_keys(*out, single, &fti_bench_values_of(call)->set, NULL);
    if (code == 0) return 0;
    ftk_config_free(*out);
    *out = NULL;
    return code;
}

/* ---- prompts ---- */

/* As `decode` has always done it, so that its hashes can be compared over the years. */
static int repeat_line(fti_bench_subject *subject, uint32_t tokens) {
    int32_t *line;
    size_t have;
    int code = fti_cli_encode_prompt(subject->engine, fti_bench_line, NULL, false, &line, &have);
    if (code) return code;
    fti_bench_prompt *p = &subject->prompts[0];
    p->count = tokens ? tokens : have;
    p->ids = fti_cli_alloc(p->count, sizeof *p->ids);
    for (size_t i = 0; i < p->count; i++) p->ids[i] = line[i % have];
    free(line);
    subject->prompt_source = tokens ? "one line, repeated" : "one line";
    return 0;
}

/* Prompts out of a text; without a number of tokens one prompt, all of it. */
static int cut_prompts(fti_bench_subject *subject, const char *text, size_t size) {
    const fti_bench_task *task = subject->task;
    if (size == 0) return fti_cli_usage("the prompt is empty");
    if (task->prompt_tokens)
        return fti_bench_make_prompts(subject->engine, text, size, subject->prompt_source,
                                      task->prompt_tokens, subject->prompts, task->streams);
    fti_bench_prompt *p = &subject->prompts[0];
    return fti_cli_encode(subject->engine, text, size, false, &p->ids, &p->count);
}

int fti_bench_read_text(const char *path, fti_cli_text *text) {
    if (fti_cli_read_file(path, text)) return 0;
    return fti_cli_fail(FTK_E_IO, "%s: cannot read: %s", path, strerror(errno));
}

static int prompts_of_file(fti_bench_subject *subject, const char *path) {
    const fti_cli_text *known = subject->task->text;
    fti_cli_text own = {0};
    int code = known ? 0 : fti_bench_read_text(path, &own);
    const fti_cli_text *text = known ? known : &own;
    subject->prompt_source = "the file";
    if (code == 0) code = cut_prompts(subject, text->data, text->size);
    free(own.data);
    return code;
}

static int make_prompts(fti_bench_subject *subject) {
    const fti_bench_task *task = subject->task;
    const fti_bench_values *v = task->values;
    subject->prompts = fti_cli_alloc(task->streams, sizeof *subject->prompts);
    if (v->file) return prompts_of_file(subject, v->file);
    if (v->prompt) {
        subject->prompt_source = "given";
        return cut_prompts(subject, v->prompt, strlen(v->prompt));
    }
    if (task->scenario->prompt_tokens == 0 && !v->prose)
        return repeat_line(subject, task->prompt_tokens);
    size_t size;
    char *prose = fti_bench_prose(&size);
    subject->prompt_source = "the built-in prose";
    int code = cut_prompts(subject, prose, size);
    free(prose);
    return code;
}

static uint64_t hash_of_prompts(const fti_bench_subject *subject) {
    uint64_t hash = 0;
    for (size_t i = 0; i < subject->task->streams; i++) {
        const fti_bench_prompt *p = &subject->prompts[i];
        hash = XXH3_64bits_withSeed(p->ids, p->count * sizeof *p->ids, hash);
    }
    return hash;
}

/* ---- opening ---- */

static int read_provenance(fti_bench_subject *subject) {
    ftk_error err = FTK_ERROR_INIT;
    char *text;
    if (ftk_engine_provenance(subject->engine, &text, &err) != FTK_OK)
        return fti_cli_fail_with(&err);
    subject->provenance = fti_cli_report(text);
    if (json_object_get(subject->provenance, "memory")) return 0;
    if (ftk_engine_memory(subject->engine, &text, &err) != FTK_OK) return fti_cli_fail_with(&err);
    (void)json_object_set_new(subject->provenance, "memory", fti_cli_report(text));
    return 0;
}

/* Each prompt alone, once: what its tokens must be in company. */
static int run_alone(fti_bench_subject *subject) {
    const fti_bench_task *task = subject->task;
    subject->solo = fti_cli_alloc(task->streams, sizeof *subject->solo);
    int code = 0;
    for (size_t i = 0; i < task->streams && code == 0; i++) {
        fti_bench_sample sample = {0};
        code = fti_bench_sample_run(subject->engine, &subject->prompts[i], 1, task->tokens,
                                    task->clock, &sample);
        subject->solo[i] = sample.hash;
        if (code == 0 && sample.fault)
            code = fti_cli_fail(FTK_E_INTERNAL, "prompt %zu alone: %s", i + 1, sample.fault);
        fti_bench_sample_free(&sample);
    }
    return code;
}

/* Before a run: past the context's end it would stop short. The last token takes no
 * position, for nothing comes after it. */
static int check_context(const fti_bench_subject *subject) {
    const fti_bench_task *task = subject->task;
    uint64_t context = ftk_engine_context(subject->engine);
    for (size_t i = 0; i < task->streams; i++) {
        uint64_t wanted = subject->prompts[i].count + task->tokens - 1;
        if (wanted <= context) continue;
        return fti_cli_usage("a prompt of %zu tokens and %" PRIu32 " to generate want a context of "
                             "%" PRIu64 ", and it has %" PRIu64 ": lower --tokens or the prompt, "
                             "or raise --ctx",
                             subject->prompts[i].count, task->tokens, wanted, context);
    }
    return 0;
}

int fti_bench_subject_open(fti_bench_subject *subject, const fti_bench_task *task,
                           ftk_config *config, const char *model) {
    *subject = (fti_bench_subject){.task = task, .config = config, .model = model};
    subject->file_bytes = fti_bench_file_bytes(model);
    int code = fti_cli_open_with(config, model, FTK_OPEN_READY, &subject->engine);
    if (code == 0) code = read_provenance(subject);
    if (code == 0) code = make_prompts(subject);
    if (code == 0) code = check_context(subject);
    if (code == 0 && task->streams > 1) code = run_alone(subject);
    if (task->scenario->opens) {
        ftk_engine_close(subject->engine);
        subject->engine = NULL;
    }
    return code;
}

void fti_bench_subject_close(fti_bench_subject *subject) {
    ftk_engine_close(subject->engine);
    ftk_config_free(subject->config);
    for (size_t i = 0; i < subject->count; i++) fti_bench_sample_free(&subject->samples[i]);
    if (subject->task) fti_bench_free_prompts(subject->prompts, subject->task->streams);
    json_decref(subject->provenance);
    free(subject->samples);
    free(subject->solo);
    *subject = (fti_bench_subject){0};
}

/* ---- running ---- */

static int run_opening(fti_bench_subject *subject, fti_bench_sample *sample) {
    const fti_bench_task *task = subject->task;
    fti_bench_load load;
    int code = fti_bench_open_timed(subject->config, subject->model, task->values->cold,
                                    task->clock, &load, &subject->engine);
    if (code == 0)
        code = fti_bench_sample_run(subject->engine, subject->prompts, 1, task->tokens, task->clock,
                                    sample);
    fti_bench_sample_drop(sample, load.fault);
    sample->open_seconds = load.seconds;
    sample->copied_bytes = load.copied_bytes;
    sample->mapped_bytes = load.mapped_bytes;
    sample->read_bytes = load.read_bytes;
    sample->peak_bytes = fti_bench_peak_bytes();
    sample->cached_percent = load.cached_percent;
    free(load.fault);
    ftk_engine_close(subject->engine);
    subject->engine = NULL;
    return code;
}

static void compare_with_solo(const fti_bench_subject *subject, fti_bench_sample *sample) {
    for (size_t i = 0; subject->solo && i < sample->stream_count; i++) {
        if (sample->streams[i].hash == subject->solo[i]) continue;
        fti_bench_sample_void(sample,
                              "request %zu has tokens with hash %016" PRIx64
                              " in the batch, and %016" PRIx64 " alone",
                              i + 1, sample->streams[i].hash, subject->solo[i]);
    }
}

int fti_bench_subject_run(fti_bench_subject *subject, bool warmup) {
    const fti_bench_task *task = subject->task;
    if (subject->count == subject->capacity) {
        size_t capacity = subject->capacity ? 2 * subject->capacity : 16;
        fti_bench_sample *grown = fti_cli_alloc(capacity, sizeof *grown);
        if (subject->count) memcpy(grown, subject->samples, subject->count * sizeof *grown);
        free(subject->samples);
        subject->samples = grown;
        subject->capacity = capacity;
    }
    fti_bench_sample *sample = &subject->samples[subject->count++];
    *sample = (fti_bench_sample){.warmup = warmup};
    if (task->scenario->opens) return run_opening(subject, sample);
    int code = fti_bench_sample_run(subject->engine, subject->prompts, task->streams, task->tokens,
                                    task->clock, sample);
    if (code == 0) compare_with_solo(subject, sample);
    return code;
}

/* ---- the row ---- */

bool fti_bench_sample_counts(const fti_bench_sample *sample) {
    return !sample->warmup && !sample->dropped && !sample->fault;
}

static void set_figures(const fti_bench_subject *subject, fti_bench_row *row) {
    const fti_bench_yield *yields = subject->task->scenario->yields;
    double *values = fti_cli_alloc(subject->count + 1, sizeof *values);
    for (size_t y = 0; y < FTI_BENCH_FIGURES && yields[y].name; y++) {
        size_t count = 0, positive = 0;
        for (size_t i = 0; i < subject->count; i++) {
            if (!fti_bench_sample_counts(&subject->samples[i])) continue;
            values[count] = yields[y].of(&subject->samples[i]);
            positive += values[count++] > 0.0;
        }
        if (count && (positive == count || !yields[y].optional))
            fti_bench_row_figure(row, yields[y].name, yields[y].unit, yields[y].less_is_better,
                                 values, count);
    }
    free(values);
}

static void check_hashes(const fti_bench_subject *subject, fti_bench_row *row) {
    for (size_t i = 0; i < subject->count; i++) {
        const fti_bench_sample *s = &subject->samples[i];
        if (s->fault) fti_bench_row_void(row, "run %zu: %s", i + 1, s->fault);
        if (s->hash != subject->samples[0].hash)
            fti_bench_row_void(row,
                               "run %zu has tokens with hash %016" PRIx64 ", run 1 %016" PRIx64,
                               i + 1, s->hash, subject->samples[0].hash);
    }
    if (row->figure_count == 0) {
        const char *why = subject->count ? subject->samples[subject->count - 1].dropped : NULL;
        fti_bench_row_void(row, "no run is left to count%s%s", why ? ": " : "", why ? why : "");
    }
}

static json_t *hash_json(uint64_t hash) {
    return json_sprintf("%016" PRIx64, hash);
}

static json_t *optional_text(const char *text) {
    return text ? fti_cli_json_text(text, strlen(text)) : json_null();
}

static json_t *run_json(const fti_bench_subject *subject, const fti_bench_sample *s) {
    const fti_bench_yield *yields = subject->task->scenario->yields;
    json_t *run = json_pack(
        "{s:b, s:o, s:o, s:I, s:I, s:I, s:O*, s:O*}", "warmup", s->warmup, "dropped",
        optional_text(s->dropped), "hash", hash_json(s->hash), "prefill_steps",
        (json_int_t)s->prefill_steps, "window_steps", (json_int_t)s->window_steps, "graph_replays",
        (json_int_t)s->graph_replays, "decode_rows", s->decoded, "rows", s->rows);
    for (size_t y = 0; y < FTI_BENCH_FIGURES && yields[y].name && !s->fault; y++)
        (void)json_object_set_new(run, yields[y].name, json_real(yields[y].of(s)));
    if (s->open_seconds > 0.0) {
        (void)json_object_set_new(run, "read_bytes", json_integer((json_int_t)s->read_bytes));
        (void)json_object_set_new(run, "cached_percent", json_integer(s->cached_percent));
    }
    return run;
}

static json_t *runs_json(const fti_bench_subject *subject) {
    json_t *runs = json_array();
    for (size_t i = 0; i < subject->count; i++)
        (void)json_array_append_new(runs, run_json(subject, &subject->samples[i]));
    return runs;
}

/* Of the measured runs, void or not: what really ran. */
static json_t *histogram_json(const fti_bench_subject *subject) {
    json_t *sum = json_object();
    for (size_t i = 0; i < subject->count; i++) {
        const fti_bench_sample *s = &subject->samples[i];
        const json_t *ran = s->window ? s->window : s->decoded;
        if (subject->task->scenario->by_rows) ran = s->rows;
        if (!s->warmup) fti_bench_histogram_add(sum, ran);
    }
    return sum;
}

static json_t *settings_json(const fti_bench_subject *subject) {
    const fti_bench_task *task = subject->task;
    const fti_bench_values *v = task->values;
    json_t *settings = json_pack(
        "{s:o, s:I, s:s, s:I, s:o, s:I, s:I, s:I}", "model",
        fti_cli_json_text(subject->model, strlen(subject->model)), "streams",
        (json_int_t)task->streams, "prompt", subject->prompt_source, "prompt_tokens",
        (json_int_t)subject->prompts[0].count, "prompt_hash", hash_json(hash_of_prompts(subject)),
        "tokens", (json_int_t)task->tokens, "repeat", (json_int_t)v->repeat, "warmup",
        (json_int_t)v->warmup);
    if (task->scenario->opens) (void)json_object_set_new(settings, "cold", json_boolean(v->cold));
    return settings;
}

static json_t *streams_json(const fti_bench_subject *subject) {
    json_t *streams = json_array();
    const fti_bench_sample *s = &subject->samples[0];
    for (size_t i = 0; subject->solo && i < s->stream_count; i++)
        (void)json_array_append_new(streams,
                                    json_pack("{s:o, s:o}", "hash", hash_json(s->streams[i].hash),
                                              "solo_hash", hash_json(subject->solo[i])));
    return streams;
}

static json_t *details_json(const fti_bench_subject *subject) {
    json_t *details = json_object();
    if (subject->count == 0) return details;
    const fti_bench_sample *s = &subject->samples[subject->count - 1];
    if (subject->solo) (void)json_object_set_new(details, "streams", streams_json(subject));
    if (!subject->task->scenario->opens) return details;
    (void)json_object_set_new(details, "file_bytes", json_integer((json_int_t)subject->file_bytes));
    (void)json_object_set_new(details, "copied_bytes", json_integer((json_int_t)s->copied_bytes));
    (void)json_object_set_new(details, "mapped_bytes", json_integer((json_int_t)s->mapped_bytes));
    return details;
}

/* Beside the time of a step as it was measured; null where no decode step was. */
static json_t *measuring_json(const fti_bench_subject *subject) {
    double seconds = 0.0;
    uint64_t steps = 0;
    for (size_t i = 0; i < subject->count; i++) {
        if (!fti_bench_sample_counts(&subject->samples[i])) continue;
        seconds += subject->samples[i].window_seconds;
        steps += subject->samples[i].window_steps;
    }
    if (steps == 0) return json_null();
    double cost = fti_bench_step_cost(subject->task->clock, subject->task->streams);
    double step = seconds / (double)steps;
    return json_pack("{s:i, s:f, s:f, s:f}", "clock_reads_per_step", 1, "cost_s", cost, "step_s",
                     step, "share", cost / step);
}

void fti_bench_subject_row(const fti_bench_subject *subject, fti_bench_row *row) {
    const fti_bench_scenario *scenario = subject->task->scenario;
    fti_bench_row_init(row, scenario->name, scenario->cause);
    set_figures(subject, row);
    check_hashes(subject, row);
    if (subject->count)
        (void)snprintf(row->hash, sizeof row->hash, "%016" PRIx64, subject->samples[0].hash);
    fti_bench_row_set(&row->histogram, histogram_json(subject));
    fti_bench_row_set(&row->settings, settings_json(subject));
    fti_bench_row_set(&row->details, details_json(subject));
    fti_bench_row_set(&row->runs, runs_json(subject));
    fti_bench_row_set(&row->measuring, measuring_json(subject));
    fti_bench_row_set(&row->provenance, json_incref(subject->provenance));
    fti_bench_row_set(&row->knobs, fti_bench_knobs(subject->provenance));
    fti_bench_row_set(&row->machine, fti_bench_machine());
    fti_bench_row_check(row);
}
