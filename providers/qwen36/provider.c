/*
 * provider.c: the provider's face: identity, variants, lifecycle.
 */
#include "qwen36.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "identity.h" /* generated from CMakeLists.txt, as the manifest is */

FTK_PROVIDER_NOTE(QWEN36_NAME, QWEN36_VERSION, QWEN36_API_LEVEL_TEXT, QWEN36_MIN_HOST_LEVEL_TEXT,
                  QWEN36_CORE_RANGE, QWEN36_ARCHITECTURES, QWEN36_CONTAINERS, QWEN36_BACKENDS,
                  QWEN36_LICENSE);

/* How text is split before BPE, in the order that alternatives are tried:
 * contractions; a run of letters and marks with one leading other character;
 * single digits; a run of symbols with a leading space and trailing line ends;
 * white space up to its last line end; white space before more white space or the
 * end; white space. White_Space is spelt out, since PCRE2's \s also has U+180E. */
#define SPACE                                                                                      \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"    \
    "\\x{205F}\\x{3000}"
static const char pretokenizer[] = "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
                                   "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+"
                                   "|\\p{N}"
                                   "| ?[^" SPACE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
                                   "|[" SPACE "]*[\\r\\n]+"
                                   "|[" SPACE "]+(?![^" SPACE "])"
                                   "|[" SPACE "]+";

static const ftk_identity identity = {
    .struct_size = (uint32_t)sizeof(ftk_identity),
    .api_level = QWEN36_API_LEVEL,
    .min_host_level = QWEN36_MIN_HOST_LEVEL,
    .name = FTK_STR(QWEN36_NAME),
    .version = FTK_STR(QWEN36_VERSION),
    .core_range = FTK_STR(QWEN36_CORE_RANGE),
    .architectures = FTK_STR(QWEN36_ARCHITECTURES),
    .containers = FTK_STR(QWEN36_CONTAINERS),
    .backends = FTK_STR(QWEN36_BACKENDS),
    .license = FTK_STR(QWEN36_LICENSE),
};

/* ---- variants ---- */

enum { OP_CONV, OP_DELTA, OP_GATED_NORM, OP_ATTENTION_GATE, OP_COUNT };

#if defined(__x86_64__)
static const ftk_capability_need avx2_needs[] = {{FTK_STR("cpu.avx2"), 1}};
#define AVX2_ROW(operation) {FTK_STR("qwen36/" operation "_avx2"), avx2_needs, 1},
static const qwen36_kernel_set *const sets[] = {&qwen36_kernels_avx2, &qwen36_kernels_reference};
#else
#define AVX2_ROW(operation)
static const qwen36_kernel_set *const sets[] = {&qwen36_kernels_reference};
#endif

#define VARIANTS(symbol, name)                                                                     \
    static const ftk_variant symbol##_rows[] = {                                                   \
        AVX2_ROW(name){FTK_STR("qwen36/" name "_reference"), NULL, 0},                             \
    };                                                                                             \
    static const ftk_variant_table symbol##_table = {                                              \
        (uint32_t)sizeof(ftk_variant_table), (uint32_t)sizeof(ftk_variant),                        \
        FTK_STR("qwen36/" name), symbol##_rows, sizeof symbol##_rows / sizeof *symbol##_rows}
VARIANTS(conv, "conv");
VARIANTS(delta, "delta");
VARIANTS(gated_norm, "gated_norm");
VARIANTS(attention_gate, "attention_gate");

static const ftk_variant_table *const variant_tables[OP_COUNT] = {
    [OP_CONV] = &conv_table,
    [OP_DELTA] = &delta_table,
    [OP_GATED_NORM] = &gated_norm_table,
    [OP_ATTENTION_GATE] = &attention_gate_table,
};

/* ---- messages ---- */

ftk_str qwen36_str(const char *text) {
    ftk_str s = {text, strlen(text)};
    return s;
}

static void report(const ftk_host *host, ftk_core_ctx *ctx, int32_t severity, ftk_status status,
                   const char *format, va_list args) {
    char text[512];
    vsnprintf(text, sizeof text, format, args);
    host->report(ctx, severity, status, qwen36_str(text));
}

ftk_status qwen36_fail(const ftk_host *host, ftk_core_ctx *ctx, ftk_status status,
                       const char *format, ...) {
    va_list args;
    va_start(args, format);
    report(host, ctx, FTK_SEVERITY_ERROR, status, format, args);
    va_end(args);
    return status;
}

void qwen36_note(const ftk_host *host, ftk_core_ctx *ctx, int32_t severity, const char *format,
                 ...) {
    va_list args;
    va_start(args, format);
    report(host, ctx, severity, FTK_OK, format, args);
    va_end(args);
}

/* ---- lifecycle ---- */

static bool is(ftk_str s, const char *text) {
    return s.size == strlen(text) && memcmp(s.data, text, (size_t)s.size) == 0;
}

static ftk_status match(const ftk_host *host, ftk_core_ctx *ctx, const ftk_match_in *in,
                        ftk_match_out *out) {
    out->claimed = is(in->architecture, QWEN36_ARCHITECTURES) &&
                   is(in->container, QWEN36_CONTAINERS);
    if (out->claimed && !is(in->backend, QWEN36_BACKENDS))
        return qwen36_fail(host, ctx, FTK_E_PROVIDER_HARDWARE,
                           "qwen36 " QWEN36_VERSION " runs on the " QWEN36_BACKENDS
                           " backend, found '%.*s': set backend.kind: " QWEN36_BACKENDS,
                           (int)in->backend.size, in->backend.data);
    return FTK_OK;
}

/* The only options object that is valid today is an empty one. */
static bool no_options(ftk_str options) {
    for (uint64_t i = 0; i < options.size; i++)
        if (!strchr("{} \t\r\n", options.data[i])) return false;
    return true;
}

static void destroy(ftk_model *m) {
    const ftk_host *host = m->host;
    ftk_core_ctx *ctx = m->ctx;
    void *const owned[] = {m->kv_layers, m->bank_parts, m->names, m->tensors, m->layers, m};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        if (owned[i]) host->release(ctx, owned[i]);
}

static void describe(const ftk_model *m, ftk_model_info *info) {
    info->layers = m->config.layers;
    info->hidden = m->config.hidden;
    info->vocabulary = m->config.vocabulary;
    info->context = m->config.context;
    info->end_tokens = m->end_tokens;
    info->end_token_count = m->end_token_count;
    info->pretokenizer = qwen36_str(pretokenizer);
}

static ftk_status create(const ftk_host *host, ftk_core_ctx *ctx, const ftk_create_in *in,
                         ftk_model_info *info, ftk_model **out) {
    if (!no_options(in->options))
        return qwen36_fail(
            host, ctx, FTK_E_CONFIG_VALUE, "provider_options.qwen36 takes no options, found %.*s",
            (int)(in->options.size > 200 ? 200 : in->options.size), in->options.data);
    ftk_model *m = host->alloc(ctx, sizeof *m, 0);
    if (!m) return qwen36_fail(host, ctx, FTK_E_NO_MEMORY, "out of host memory for the model");
    m->host = host;
    m->ctx = ctx;
    m->reader = host->query(ctx, qwen36_str("checkpoint_reader"), 0);
    m->ops = host->query(ctx, qwen36_str("operators"), 0);
    m->kernels = host->query(ctx, qwen36_str("kernels"), 0);
    ftk_status status = FTK_OK;
    if (!m->reader || !m->ops || !m->kernels)
        status = qwen36_fail(host, ctx, FTK_E_PROVIDER_LEVEL,
                             "the host lacks checkpoint_reader, operators or kernels at level 0");
    if (status == FTK_OK) status = qwen36_configure(m);
    if (status != FTK_OK) {
        destroy(m);
        return status;
    }
    m->attention_scale = 1.0f / sqrtf((float)m->config.head_dim);
    describe(m, info);
    *out = m;
    return FTK_OK;
}

static ftk_status attach_cache(ftk_model *m, const ftk_cache_views *views) {
    if (views->kv_count != m->kv_layer_count)
        return qwen36_fail(m->host, m->ctx, FTK_E_ARGUMENT, "%llu KV layers attached, %llu planned",
                           (unsigned long long)views->kv_count,
                           (unsigned long long)m->kv_layer_count);
    m->kv = views->kv;
    m->kv_stride = views->kv_stride;
    m->state = views->state;
    return FTK_OK;
}

static ftk_status prepare_for_runtime(ftk_model *m, const ftk_prepare_in *in,
                                      ftk_prepare_out *out) {
    if (in->chosen_count != OP_COUNT)
        return qwen36_fail(m->host, m->ctx, FTK_E_ARGUMENT, "%llu variants chosen, wanted %d",
                           (unsigned long long)in->chosen_count, OP_COUNT);
    m->chosen.conv = sets[in->chosen[OP_CONV]]->conv;
    m->chosen.delta = sets[in->chosen[OP_DELTA]]->delta;
    m->chosen.gated_norm = sets[in->chosen[OP_GATED_NORM]]->gated_norm;
    m->chosen.attention_gate = sets[in->chosen[OP_ATTENTION_GATE]]->attention_gate;
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
    .plan_weights = qwen36_plan_weights,
    .load_weights = qwen36_load_weights,
    .attach_cache = attach_cache,
    .prepare_for_runtime = prepare_for_runtime,
    .run = qwen36_run,
    .destroy = destroy,
    .format_chat = qwen36_format_chat,
};

const ftk_provider *freetoken_provider_v1(void) {
    return &provider;
}
