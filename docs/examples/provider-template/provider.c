/*
 * provider.c: the provider's face: who it is, which variants it has, and the functions
 * that the core calls, in the order match, create, plan_weights, load_weights,
 * attach_cache, prepare_for_runtime, run ..., destroy.
 */
#include "template.h"

#include <stdarg.h>
#include <stdio.h>

#include "identity.h"

FTK_PROVIDER_NOTE(PROVIDER_NAME, PROVIDER_VERSION, PROVIDER_API_LEVEL_TEXT,
                  PROVIDER_MIN_HOST_LEVEL_TEXT, PROVIDER_CORE_RANGE, PROVIDER_ARCHITECTURES,
                  PROVIDER_CONTAINERS, PROVIDER_BACKENDS, PROVIDER_LICENSE);

static const ftk_identity identity = {
    .struct_size = (uint32_t)sizeof(ftk_identity),
    .api_level = PROVIDER_API_LEVEL,
    .min_host_level = PROVIDER_MIN_HOST_LEVEL,
    .name = FTK_STR(PROVIDER_NAME),
    .version = FTK_STR(PROVIDER_VERSION),
    .core_range = FTK_STR(PROVIDER_CORE_RANGE),
    .architectures = FTK_STR(PROVIDER_ARCHITECTURES),
    .containers = FTK_STR(PROVIDER_CONTAINERS),
    .backends = FTK_STR(PROVIDER_BACKENDS),
    .license = FTK_STR(PROVIDER_LICENSE),
};

/* ---- variants: the fastest first, the exact reference last ---- */

#if defined(__x86_64__)
static const ftk_capability_need avx2_needs[] = {{FTK_STR("cpu.avx2"), 1}};
#endif

static const ftk_variant relu2_rows[] = {
#if defined(__x86_64__)
    {FTK_STR(PROVIDER_NAME "/relu2_avx2"), avx2_needs, 1},
#endif
    {FTK_STR(PROVIDER_NAME "/relu2_reference"), NULL, 0},
};
/* The functions of the same rows. */
static const ftk_cpu_kernel relu2_functions[] = {
#if defined(__x86_64__)
    template_relu2_avx2,
#endif
    template_relu2_reference,
};
static const ftk_variant_table relu2_table = {
    .struct_size = (uint32_t)sizeof(ftk_variant_table),
    .variant_stride = (uint32_t)sizeof(ftk_variant),
    .operation = FTK_STR(PROVIDER_NAME "/relu2"),
    .variants = relu2_rows,
    .variant_count = sizeof relu2_rows / sizeof *relu2_rows,
};

enum { OP_RELU2, OP_COUNT };
static const ftk_variant_table *const variant_tables[OP_COUNT] = {[OP_RELU2] = &relu2_table};

/* ---- messages ---- */

ftk_status template_fail(const ftk_host *host, ftk_core_ctx *ctx, ftk_status status,
                         const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    host->report(ctx, FTK_SEVERITY_ERROR, status, template_str(text));
    return status;
}

/* ---- lifecycle ---- */

/* The core has looked at the manifest already; what is left to say is whether this
 * machine can run it. */
static ftk_status match(const ftk_host *host, ftk_core_ctx *ctx, const ftk_match_in *in,
                        ftk_match_out *out) {
    out->claimed = template_is(in->architecture, PROVIDER_ARCHITECTURES) &&
                   template_is(in->container, PROVIDER_CONTAINERS);
    if (!out->claimed || template_is(in->backend, PROVIDER_BACKENDS)) return FTK_OK;
    return template_fail(host, ctx, FTK_E_PROVIDER_HARDWARE,
                         PROVIDER_NAME
                         " runs on the " PROVIDER_BACKENDS
                         " backend, found '%.*s': set backend.kind: " PROVIDER_BACKENDS,
                         (int)in->backend.size, in->backend.data);
}

/* Legal from every state after create, so all pointers may still be NULL. */
static void destroy(ftk_model *m) {
    const ftk_host *host = m->host;
    ftk_core_ctx *ctx = m->ctx;
    void *const owned[] = {m->kv_layers, m->names, m->tensors, m};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        if (owned[i]) host->release(ctx, owned[i]);
}

static ftk_status find_interfaces(ftk_model *m) {
    m->reader = m->host->query(m->ctx, template_str("checkpoint_reader"), 0);
    m->ops = m->host->query(m->ctx, template_str("operators"), 0);
    m->kernels = m->host->query(m->ctx, template_str("kernels"), 0);
    if (m->reader && m->ops && m->kernels) return FTK_OK;
    return template_fail(m->host, m->ctx, FTK_E_PROVIDER_LEVEL,
                         "the host lacks checkpoint_reader, operators or kernels at level 0");
}

/* How text is split before byte-level BPE: words and numbers with the blank before
 * them, runs of symbols, white space. */
static const char pretokenizer[] = " ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+";

static void describe(const ftk_model *m, ftk_model_info *info) {
    info->layers = m->config.layers;
    info->hidden = m->config.hidden;
    info->vocabulary = m->config.vocabulary;
    info->context = m->config.context;
    info->end_tokens = &m->end_token;
    info->end_token_count = m->has_end_token;
    info->pretokenizer = template_str(pretokenizer);
}

/* This provider takes no options: only an empty object is valid. */
static bool no_options(ftk_str options) {
    for (uint64_t i = 0; i < options.size; i++)
        if (!strchr("{} \t\r\n", options.data[i])) return false;
    return true;
}

static ftk_status create(const ftk_host *host, ftk_core_ctx *ctx, const ftk_create_in *in,
                         ftk_model_info *info, ftk_model **out) {
    if (!no_options(in->options))
        return template_fail(host, ctx, FTK_E_CONFIG_VALUE,
                             "provider_options." PROVIDER_NAME " takes no options, remove them");
    ftk_model *m = host->alloc(ctx, sizeof *m, 0);
    if (!m) return template_fail(host, ctx, FTK_E_NO_MEMORY, "out of host memory for the model");
    m->host = host;
    m->ctx = ctx;
    ftk_status status = find_interfaces(m);
    if (status == FTK_OK) status = template_configure(m);
    if (status != FTK_OK) {
        destroy(m);
        return status;
    }
    describe(m, info);
    *out = m;
    return FTK_OK;
}

static ftk_status attach_cache(ftk_model *m, const ftk_cache_views *views) {
    if (views->kv_count != m->config.layers)
        return template_fail(m->host, m->ctx, FTK_E_ARGUMENT, "%llu KV layers attached, %u planned",
                             (unsigned long long)views->kv_count, m->config.layers);
    m->cache = *views;
    return FTK_OK;
}

static ftk_status prepare_for_runtime(ftk_model *m, const ftk_prepare_in *in,
                                      ftk_prepare_out *out) {
    if (in->chosen_count != OP_COUNT || in->chosen[OP_RELU2] >= relu2_table.variant_count)
        return template_fail(m->host, m->ctx, FTK_E_ARGUMENT,
                             "the chosen variants do not fit the variant tables");
    m->relu2 = relu2_functions[in->chosen[OP_RELU2]];
    out->graph_safe = 1;
    return FTK_OK;
}

static const ftk_provider provider = {
    .struct_size = (uint32_t)sizeof(ftk_provider),
    .identity = &identity,
    .variants = variant_tables,
    .variant_table_count = OP_COUNT,
    .match = match,
    .create = create,
    .plan_weights = template_plan_weights,
    .load_weights = template_load_weights,
    .attach_cache = attach_cache,
    .prepare_for_runtime = prepare_for_runtime,
    .run = template_run,
    .destroy = destroy,
    .format_chat = template_format_chat,
};

/* The one symbol that is exported. Pure: no allocation, no output, always the same
 * address. */
const ftk_provider *freetoken_provider_v1(void) {
    return &provider;
}
