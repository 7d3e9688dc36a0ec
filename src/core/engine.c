/*
 * engine.c: brings an engine up stage by stage and takes it down from any stage.
 * Each stage is one function; the lifecycle decides their order, and whatever
 * fails leaves an engine that close releases.
 */
#include "core/engine.h"
#include "core/fpenv.h"

#include <stdio.h>
#include <unistd.h>

typedef struct opening {
    ftk_engine *e;
    const struct ftk_config *config;
    const char *path;
    const void *data; /* of a checkpoint in memory, or NULL */
    size_t size;
    const ftk_open_options *options;
    fti_held_file *held; /* the provider's, from its judgement to its load */
} opening;

/* ---- stages ---- */

static ftk_status open_checkpoint(const opening *o, ftk_error *err) {
    ftk_engine *e = o->e;
    if (o->data)
        FTI_TRY(fti_checkpoint_from_memory(o->data, o->size, o->path, &e->checkpoint, err));
    else
        FTI_TRY(fti_checkpoint_open(o->path, &e->checkpoint, err));
    return fti_meta_get_str(e->checkpoint, fti_str("general.architecture"), &e->architecture, err);
}

/* Of a provider for the checkpoint; `backend` and `device_code` as far as they are known. */
static fti_provider_query query_of(const opening *o, const char *backend, const char *device_code) {
    return (fti_provider_query){.architecture = o->e->architecture,
                                .container = fti_str(fti_checkpoint_container(o->e->checkpoint)),
                                .backend = backend,
                                .device_code = device_code,
                                .record = o->options ? o->options->provider_record : NULL,
                                .held = o->held};
}

/* A provider's failure, with the file that it was wanted for where that is the reason. */
static ftk_status blame_file(const opening *o, ftk_status status, const ftk_error *inner,
                             ftk_error *err) {
    if (status == FTK_OK) return FTK_OK;
    if (status == FTK_E_PROVIDER_NONE || status == FTK_E_PROVIDER_NOT_ALLOWED)
        return fti_fail(err, status, "%s: %-s", o->path, inner->message);
    return fti_fail(err, status, "%-s", inner->message);
}

static ftk_status judge_provider(const opening *o, const char *backend, ftk_error *err) {
    const fti_provider_query query = query_of(o, backend, NULL);
    ftk_error inner = FTK_ERROR_INIT;
    return blame_file(o, fti_provider_judge(o->config, &query, &inner), &inner, err);
}

/* Of a backend that is a module. */
static const char *kind_of(const struct ftk_config *c) {
    return c->backend == FTI_BACKEND_CUDA ? "cuda" : "hip";
}

/* A module's failure, with the line of the configuration that wants it. */
static ftk_status blame_kind(const opening *o, ftk_status status, const char *what,
                             ftk_error *err) {
    const json_t *setting = json_object_get(o->e->settings.all, "backend.kind");
    const char *origin = json_string_value(json_object_get(setting, "origin"));
    return fti_fail(err, status,
                    "%s: backend.kind: %s: %-s; set backend.kind to cpu or auto to run "
                    "without it",
                    origin && strchr(origin, ':') ? origin : o->config->origin, kind_of(o->config),
                    what);
}

/* The CPU's is built in; the others are modules beside the library, whose code runs only
 * where a provider's would. */
static ftk_status find_backend(const opening *o, fti_backend_create *create, ftk_error *err) {
    const struct ftk_config *c = o->config;
    *create = fti_cpu_backend_create;
    if (c->backend != FTI_BACKEND_CUDA && c->backend != FTI_BACKEND_HIP) return FTK_OK;
    const char *kind = kind_of(c);
    char file[32], path[PATH_MAX];
    void *entry;
    snprintf(file, sizeof file, "libfreetoken-%s.so", kind);
    FTI_TRY(fti_module_path(file, path, err));
    if (access(path, F_OK) != 0)
        return fti_fail(err, FTK_E_DEVICE_UNAVAILABLE,
                        "%s: backend.kind is %s, which this build does not have (no '%s'): use cpu "
                        "or auto",
                        c->origin, kind, path);
    FTI_TRY(judge_provider(o, kind, err));
    ftk_error inner = FTK_ERROR_INIT;
    ftk_status status = fti_module_load(path, FTI_BACKEND_MODULE_ENTRY, &entry, &inner);
    if (status != FTK_OK) return blame_kind(o, status, inner.message, err);
    memcpy(create, &entry, sizeof *create);
    return FTK_OK;
}

/* A configuration outlives the machine that it was written for, and threads beyond what may
 * run would wait for each other: fewer of them serve the operator better than a refusal. */
static void note_fewer_threads(ftk_engine *e, uint32_t asked) {
    char note[160];
    if (e->threads == 0 || asked <= e->threads) return; /* 0: not a matter of this backend */
    int size = snprintf(note, sizeof note,
                        "backend.threads is %u, affinity and cgroup allow %u: %u %s", asked,
                        e->threads, e->threads, e->threads == 1 ? "thread runs" : "threads run");
    const ftk_str text = {note, (uint64_t)size};
    fti_ctx_note(&e->ctx, text);
    fti_log(e, FTK_LOG_WARNING, "%s", note);
}

static ftk_status open_backend(const opening *o, ftk_error *err) {
    fti_backend_create create;
    FTI_TRY(find_backend(o, &create, err));
    const fti_backend_options options = {.threads = o->config->threads,
                                         .kernel_mask = o->config->kernel_mask,
                                         .float_numerics = o->config->numerics ==
                                                           FTI_NUMERICS_FLOAT,
                                         .pin = o->config->pin,
                                         .interleave = o->config->numa == FTI_NUMA_INTERLEAVE};
    ftk_engine *e = o->e;
    ftk_error inner = FTK_ERROR_INIT;
    fti_backend *made = NULL;
    ftk_status status = create(&options, &made, &inner);
    /* What the backend takes for a wrong argument is the operator's setting. */
    if (status != FTK_OK)
        return fti_fail(err, status == FTK_E_ARGUMENT ? FTK_E_CONFIG_VALUE : status, "%s: %-s",
                        o->config->origin, inner.message);
    if (!made)
        return blame_kind(o, FTK_E_DEVICE_UNAVAILABLE,
                          "its backend module reported success: found no backend, wanted one", err);
    e->backend = made;
    int64_t threads = 0;
    e->backend->ops->capability(e->backend, fti_str("cpu.threads"), &threads);
    e->threads = (uint32_t)threads;
    note_fewer_threads(e, o->config->threads);
    return FTK_OK;
}

static ftk_status resolve_provider(const opening *o, ftk_error *err) {
    ftk_engine *e = o->e;
    const fti_provider_query query = query_of(o, e->backend->ops->name, e->backend->device_code);
    ftk_error inner = FTK_ERROR_INIT;
    FTI_TRY(
        blame_file(o, fti_provider_resolve(o->config, &query, &e->provider, &inner), &inner, err));
    ftk_str json = fti_config_options(o->config, fti_str(e->provider->manifest->name));
    e->options_json = fti_strndup(json.data, (size_t)json.size);
    return e->options_json ? FTK_OK : fti_no_memory(err, json.size, "provider options");
}

static ftk_status match_provider(const opening *o, ftk_error *err) {
    ftk_engine *e = o->e;
    const ftk_match_in in = {.struct_size = (uint32_t)sizeof in,
                             .architecture = e->architecture,
                             .container = fti_str(fti_checkpoint_container(e->checkpoint)),
                             .backend = fti_str(e->backend->ops->name)};
    ftk_match_out out = {.struct_size = (uint32_t)sizeof out};
    fti_ctx_begin(&e->ctx);
    ftk_status status = e->provider->table->match(&fti_host, &e->ctx, &in, &out);
    FTI_TRY(fti_ctx_end(&e->ctx, status, "match", err));
    if (out.claimed == 1) return FTK_OK;
    return fti_fail(err, FTK_E_PROVIDER_REFUSED,
                    "%s: provider %s claims %.*s/%s in its manifest but does not take this file",
                    o->path, e->provider->manifest->name, FTI_STR_ARGS(e->architecture),
                    fti_checkpoint_container(e->checkpoint));
}

static ftk_status check_info(const opening *o, ftk_error *err) {
    const ftk_model_info *i = &o->e->info;
    if (i->layers > 0 && i->hidden > 0 && i->vocabulary > 0 && i->vocabulary <= 1u << 24 &&
        i->context > 0 && i->context <= 1u << 24 && (i->end_token_count == 0 || i->end_tokens))
        return FTK_OK;
    return fti_fail(
        err, FTK_E_PROVIDER_CONTRACT,
        "provider %s: create described an impossible model (layers %u, hidden %u, vocabulary %u, "
        "context %u)",
        o->e->provider->manifest->name, i->layers, i->hidden, i->vocabulary, i->context);
}

/* Ids that may be sampled: the tokens that stand for something. Rows that pad the
 * vocabulary are of type unused, or have no token at all. */
static ftk_status allow_tokens(ftk_engine *e, ftk_error *err) {
    e->allowed = fti_calloc(e->info.vocabulary, 1);
    if (!e->allowed) return fti_no_memory(err, e->info.vocabulary, "the token mask");
    for (uint32_t id = 0; id < e->info.vocabulary; id++) {
        int type = fti_tokenizer_type(e->tokenizer, (int32_t)id);
        size_t size = (size_t)fti_tokenizer_piece(e->tokenizer, (int32_t)id).size;
        if (size > e->longest_piece) e->longest_piece = size;
        e->allowed[id] = type != 0 && type != FTI_TOKEN_UNUSED;
    }
    return FTK_OK;
}

static ftk_status create_model(const opening *o, ftk_error *err) {
    ftk_engine *e = o->e;
    const ftk_create_in in = {.struct_size = (uint32_t)sizeof in,
                              .architecture = e->architecture,
                              .container = fti_str(fti_checkpoint_container(e->checkpoint)),
                              .backend = fti_str(e->backend->ops->name),
                              .options = fti_str(e->options_json)};
    FTI_TRY(fti_choose_variants(e, err)); /* before anything is spent on them */
    e->info.struct_size = (uint32_t)sizeof e->info;
    fti_ctx_begin(&e->ctx);
    ftk_status status = e->provider->table->create(&fti_host, &e->ctx, &in, &e->info, &e->model);
    if (status != FTK_OK) e->model = NULL;
    FTI_TRY(fti_ctx_end(&e->ctx, status, "create", err));
    FTI_TRY(check_info(o, err));
    FTI_TRY(fti_tokenizer_create(e->checkpoint, e->info.pretokenizer, &e->tokenizer, err));
    FTI_TRY(allow_tokens(e, err));
    return fti_sampler_create(e->info.vocabulary, e->allowed, &e->sampler, err);
}

static ftk_status plan_weights(const opening *o, ftk_error *err) {
    return fti_plan_weights(o->e, err);
}

static ftk_status plan_memory(const opening *o, ftk_error *err) {
    return fti_plan_memory(o->e, o->config, err);
}

static ftk_status allocate(const opening *o, ftk_error *err) {
    FTI_TRY(o->e->backend->ops->stream_create(o->e->backend, &o->e->stream, err));
    return fti_allocate(o->e, err);
}

static ftk_status load_weights(const opening *o, ftk_error *err) {
    return fti_load_weights(o->e, o->options, err);
}

static ftk_status attach_cache(const opening *o, ftk_error *err) {
    ftk_engine *e = o->e;
    const ftk_cache_views views = {.struct_size = (uint32_t)sizeof views,
                                   .kv_stride = (uint32_t)sizeof *e->kv,
                                   .kv = e->kv,
                                   .kv_count = e->plan.kv_layer_count,
                                   .state = {.struct_size = (uint32_t)sizeof(ftk_state_view),
                                             .base = e->state.memory,
                                             .slot_stride = e->plan.state_bytes}};
    fti_ctx_begin(&e->ctx);
    ftk_status status = e->provider->table->attach_cache(e->model, &views);
    return fti_ctx_end(&e->ctx, status, "attach_cache", err);
}

static ftk_status prepare(const opening *o, ftk_error *err) {
    ftk_engine *e = o->e;
    const ftk_prepare_in in = {.struct_size = (uint32_t)sizeof in,
                               .max_rows = e->buffers.rows,
                               .chosen = e->chosen,
                               .chosen_count = e->provider->table->variant_table_count};
    ftk_prepare_out out = {.struct_size = (uint32_t)sizeof out};
    fti_ctx_begin(&e->ctx);
    ftk_status status = e->provider->table->prepare_for_runtime(e->model, &in, &out);
    FTI_TRY(fti_ctx_end(&e->ctx, status, "prepare_for_runtime", err));
    e->graph_safe = out.graph_safe;
    return FTK_OK;
}

static ftk_status capture(const opening *o, ftk_error *err) {
    return fti_capture_decode(o->e, err);
}

static ftk_status ready(const opening *o, ftk_error *err) {
    return fti_service_create(o->e, err);
}

static const struct {
    fti_stage stage;
    ftk_status (*work)(const opening *, ftk_error *);
} stages[] = {
    {FTI_STAGE_CHECKPOINT, open_checkpoint},
    {FTI_STAGE_BACKEND, open_backend},
    {FTI_STAGE_PROVIDER, resolve_provider},
    {FTI_STAGE_MATCH, match_provider},
    {FTI_STAGE_CREATE, create_model},
    {FTI_STAGE_PLAN, plan_weights},
    {FTI_STAGE_MEMORY, plan_memory},
    {FTI_STAGE_ALLOCATE, allocate},
    {FTI_STAGE_WEIGHTS, load_weights},
    {FTI_STAGE_CACHE, attach_cache},
    {FTI_STAGE_PREPARE, prepare},
    {FTI_STAGE_CAPTURE, capture},
    {FTI_STAGE_READY, ready},
};

/* ---- open and close ---- */

/* Settings that later versions bring are refused rather than ignored. */
static ftk_status refuse_unavailable(const struct ftk_config *c, ftk_error *err) {
    const struct {
        bool asked;
        const char *what;
    } unavailable[] = {
        {c->ladder == FTI_ON, "memory.ladder: on"},
        {c->memory_host != FTI_BYTES_AUTO, "memory.host"},
        {c->coexecution == FTI_ON, "moe.coexecution: on"},
        {c->collect_stats, "moe.collect_stats: true"},
        {c->device != 0, "backend.device other than 0"},
    };
    for (size_t i = 0; i < FTI_COUNT(unavailable); i++)
        if (unavailable[i].asked)
            return fti_fail(err, FTK_E_CONFIG_VALUE, "%s: %s comes with a later version: remove it",
                            c->origin, unavailable[i].what);
    return FTK_OK;
}

static uint32_t kv_type_of(const struct ftk_config *c) {
    switch (c->kv_type) {
    case FTI_KV_F16: return FTK_TYPE_F16;
    case FTI_KV_BF16: return FTK_TYPE_BF16;
    case FTI_KV_Q8_0: return FTK_TYPE_Q8_0;
    case FTI_KV_F32: return FTK_TYPE_F32;
    default: return c->numerics == FTI_NUMERICS_FLOAT ? FTK_TYPE_F32 : FTK_TYPE_F16;
    }
}

static ftk_status copy_settings(ftk_engine *e, const struct ftk_config *c, ftk_error *err) {
    e->settings = (fti_settings){.numerics = c->numerics,
                                 .graphs = c->graphs,
                                 .fused = c->fused,
                                 .kernel_mask = c->kernel_mask,
                                 .prefill_tokens = c->prefill_tokens,
                                 .sequences = c->max_running,
                                 .prefix_cache = c->prefix_cache,
                                 .overcommit = c->overcommit,
                                 .preempt = c->preempt,
                                 .swap = c->swap,
                                 .origin = fti_strndup(c->origin, strlen(c->origin))};
    e->settings.all = fti_config_settings(c);
    e->kv_type = kv_type_of(c);
    return e->settings.origin && e->settings.all
               ? FTK_OK
               : fti_no_memory(err, strlen(c->origin), "settings");
}

static fti_stage last_stage(const ftk_open_options *options) {
    uint32_t stop = options ? options->stop_after : 0;
    if (stop == FTK_OPEN_CONFIGURED) return FTI_STAGE_CREATE;
    if (stop == FTK_OPEN_PLANNED) return FTI_STAGE_MEMORY;
    return FTI_STAGE_READY;
}

static ftk_status tell(const opening *o, fti_stage stage, size_t done, ftk_error *err) {
    const ftk_open_options *p = o->options;
    if (!p || !p->progress ||
        p->progress(p->user, fti_stage_text(stage), done, FTI_COUNT(stages)) == 0)
        return FTK_OK;
    return fti_fail(err, FTK_E_CANCELLED, "opening was cancelled before '%s'",
                    fti_stage_text(stage));
}

static ftk_status run_stages(const opening *o, ftk_error *err) {
    fti_stage last = last_stage(o->options);
    for (size_t i = 0; i < FTI_COUNT(stages) && stages[i].stage <= last; i++) {
        FTI_TRY(tell(o, stages[i].stage, i, err));
        FTI_TRY(fti_lifecycle_begin(&o->e->lifecycle, stages[i].stage, err));
        fti_log(o->e, FTK_LOG_DEBUG, "%s: %s", o->path, fti_stage_text(stages[i].stage));
        ftk_status status = stages[i].work(o, err);
        FTI_TRY(fti_lifecycle_end(&o->e->lifecycle, stages[i].stage, status));
    }
    return FTK_OK;
}

static ftk_status check_open(const opening *o, ftk_error *err) {
    if (!o->config || !o->path)
        return fti_fail(err, FTK_E_ARGUMENT, "config and model path must not be NULL");
    const ftk_open_options *options = o->options;
    if (options)
        FTI_TRY(fti_check_size(options->struct_size, sizeof *options, "ftk_open_options", err));
    if (options && options->stop_after > FTK_OPEN_READY)
        return fti_fail(err, FTK_E_ARGUMENT, "ftk_open_options.stop_after is %u, the largest is %u",
                        options->stop_after, FTK_OPEN_READY);
    if (options && options->log_level > FTK_LOG_ERROR)
        return fti_fail(err, FTK_E_ARGUMENT, "ftk_open_options.log_level is %u, the largest is %u",
                        options->log_level, FTK_LOG_ERROR);
    FTI_TRY(fti_config_check_options(o->config, err));
    return refuse_unavailable(o->config, err);
}

static fti_log_target log_target(const ftk_open_options *options) {
    if (!options) return (fti_log_target){0};
    return (fti_log_target){options->log, options->log_user, options->log_level};
}

static ftk_status open_engine(opening *o, ftk_engine **out, ftk_error *err) {
    if (!out) return fti_fail(err, FTK_E_ARGUMENT, "out must not be NULL");
    *out = NULL;
    FTI_TRY(check_open(o, err));
    ftk_engine *e = fti_calloc(1, sizeof *e);
    if (!e) return fti_no_memory(err, sizeof *e, "the engine");
    o->e = e;
    e->pid = getpid();
    e->mark = fti_process_mark();
    e->ctx.engine = e;
    e->ctx.report.struct_size = (uint32_t)sizeof e->ctx.report;
    e->log = log_target(o->options);
    fti_fpenv saved = fti_fpenv_enter();
    ftk_status status = copy_settings(e, o->config, err);
    fti_held_file held = FTI_HELD_FILE_INIT;
    o->held = &held;
    if (status == FTK_OK) status = run_stages(o, err);
    fti_held_file_release(&held);
    o->held = NULL;
    if (status != FTK_OK)
        ftk_engine_close(e);
    else
        *out = e;
    fti_fpenv_leave(saved);
    return status;
}

ftk_status ftk_engine_open(const ftk_config *config, const char *model_path,
                           const ftk_open_options *options, ftk_engine **out, ftk_error *err) {
    opening o = {.config = config, .path = model_path, .options = options};
    return open_engine(&o, out, err);
}

ftk_status ftk_engine_open_memory(const ftk_config *config, const void *data, size_t size,
                                  const char *name, const ftk_open_options *options,
                                  ftk_engine **out, ftk_error *err) {
    if (out) *out = NULL;
    if (!data) return fti_fail(err, FTK_E_ARGUMENT, "data must not be NULL");
    opening o = {.config = config, .path = name, .data = data, .size = size, .options = options};
    return open_engine(&o, out, err);
}

static bool is_ours(const ftk_engine *e) {
    return e->pid == getpid() && e->mark == fti_process_mark();
}

void ftk_engine_close(ftk_engine *e) {
    if (!e || !is_ours(e)) return;
    fti_service_destroy(e);
    if (e->stream) (void)e->backend->ops->stream_sync(e->stream, NULL);
    if (e->model) e->provider->table->destroy(e->model);
    for (size_t i = 0; i < e->graph_count; i++) e->backend->ops->graph_destroy(e->graphs[i].graph);
    if (e->backend) fti_release_memory(e);
    if (e->stream) e->backend->ops->stream_destroy(e->stream);
    if (e->backend) e->backend->ops->destroy(e->backend);
    fti_sampler_free(e->sampler);
    fti_tokenizer_free(e->tokenizer);
    fti_checkpoint_close(e->checkpoint);
    for (size_t i = 0; i < e->ctx.note_count; i++) fti_free(e->ctx.notes[i]);
    json_decref(e->settings.all);
    void *const owned[] = {e->allowed, e->chosen, e->skips, e->options_json, e->settings.origin};
    for (size_t i = 0; i < FTI_COUNT(owned); i++) fti_free(owned[i]);
    fti_free(e);
}

/* ---- small questions ---- */

ftk_status fti_engine_need(const ftk_engine *e, fti_stage stage, ftk_error *err) {
    if (!is_ours(e))
        return fti_fail(err, FTK_E_STATE,
                        "the engine belongs to process %ld, which forked this one: open "
                        "another here",
                        (long)e->pid);
    return fti_lifecycle_need(&e->lifecycle, stage, err);
}

ftk_status fti_check_size(uint32_t found, size_t wanted, const char *what, ftk_error *err) {
    if (found == wanted) return FTK_OK;
    return fti_fail(err, FTK_E_ARGUMENT, "%s.struct_size is %u, wanted %zu: use its INIT macro",
                    what, found, wanted);
}

void fti_log(const ftk_engine *e, uint32_t level, const char *format, ...) {
    if (!e->log.line || level < e->log.level) return;
    char line[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0) return;
    e->log.line(e->log.user, level, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

const char *ftk_version(void) {
    return FTK_VERSION_STRING;
}

uint32_t ftk_engine_vocabulary(const ftk_engine *e) {
    return e ? e->info.vocabulary : 0;
}

uint32_t ftk_engine_context(const ftk_engine *e) {
    return e ? e->budget.context : 0;
}

uint32_t ftk_engine_layers(const ftk_engine *e) {
    return e ? e->info.layers : 0;
}

uint32_t ftk_engine_hidden(const ftk_engine *e) {
    return e ? e->info.hidden : 0;
}

ftk_status ftk_tokenize(const ftk_engine *e, const char *text, size_t size, uint32_t flags,
                        int32_t *ids, size_t capacity, size_t *count, ftk_error *err) {
    if (!e || !count || (!text && size) || (!ids && capacity))
        return fti_fail(err, FTK_E_ARGUMENT, "engine, text, ids and count must not be NULL");
    if (flags & ~FTK_TOKENIZE_SPECIAL)
        return fti_fail(err, FTK_E_ARGUMENT, "unknown tokenize flags 0x%x", flags);
    FTI_TRY(fti_engine_need(e, FTI_STAGE_CREATE, err));
    fti_ids out = {0};
    const ftk_str input = {text, size};
    ftk_status status = fti_tokenizer_encode(e->tokenizer, input, flags & FTK_TOKENIZE_SPECIAL,
                                             &out, err);
    if (status == FTK_OK) {
        *count = out.count;
        size_t n = out.count < capacity ? out.count : capacity;
        if (n) memcpy(ids, out.data, n * sizeof *ids);
    }
    fti_ids_free(&out);
    return status;
}

ftk_status ftk_token_text(const ftk_engine *e, int32_t id, const char **text, size_t *size,
                          ftk_error *err) {
    if (!e || !text || !size)
        return fti_fail(err, FTK_E_ARGUMENT, "engine, text and size must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_CREATE, err));
    if (fti_tokenizer_type(e->tokenizer, id) == 0)
        return fti_fail(err, FTK_E_ARGUMENT, "token %d is not in the vocabulary of %u", id,
                        e->info.vocabulary);
    ftk_str piece = fti_tokenizer_piece(e->tokenizer, id);
    *text = piece.data ? piece.data : "";
    *size = (size_t)piece.size;
    return FTK_OK;
}

int ftk_token_is_end(const ftk_engine *e, int32_t id) {
    if (!e) return 0;
    for (uint32_t i = 0; i < e->info.end_token_count; i++)
        if (e->info.end_tokens[i] == id) return 1;
    return 0;
}
