/*
 * host.c: the host table and the named interfaces that providers see. Every
 * function here is on the trust side of the boundary: it checks what it is
 * given, and copies what it keeps.
 */
#include "core/engine.h"
#include "core/gguf.h"

/* ---- reports ---- */

void fti_ctx_begin(ftk_core_ctx *ctx) {
    ctx->report.status = FTK_OK;
    ctx->report.message[0] = 0;
    ctx->report_names_file = false;
    ctx->note_lost = false;
}

ftk_status fti_ctx_end(ftk_core_ctx *ctx, ftk_status status, const char *call, ftk_error *err) {
    if (status == FTK_OK && ctx->note_lost) return fti_no_memory(err, 0, "a provider's note");
    if (status == FTK_OK) return FTK_OK;
    const fti_provider *provider = ctx->engine->provider;
    const char *name = provider ? provider->manifest->name : "provider";
    if (status > 0)
        return fti_fail(err, FTK_E_PROVIDER_CONTRACT,
                        "provider %s: %s returned the positive status %d", name, call, status);
    const fti_checkpoint *checkpoint = ctx->engine->checkpoint;
    if (ctx->report.message[0] == 0)
        return fti_checkpoint_fail(checkpoint, err, status, "provider %s: %s failed: %s", name,
                                   call, ftk_status_text(status));
    if (ctx->report_names_file)
        return fti_fail(err, status, "%s (provider %s, %s)", ctx->report.message, name, call);
    return fti_checkpoint_fail(checkpoint, err, status, "%s (provider %s, %s)", ctx->report.message,
                               name, call);
}

void fti_ctx_note(ftk_core_ctx *ctx, ftk_str text) {
    if (ctx->note_count == FTI_MAX_NOTES) return;
    size_t size = text.size > 1000 ? 1000 : (size_t)text.size;
    char *copy = fti_strndup(text.data, size);
    if (copy)
        ctx->notes[ctx->note_count++] = copy;
    else
        ctx->note_lost = true;
}

static void host_report(ftk_core_ctx *ctx, int32_t severity, ftk_status status, ftk_str message) {
    if (severity >= FTK_SEVERITY_ERROR) {
        fti_fail(&ctx->report, status, "%.*s", FTI_STR_ARGS(message));
        ctx->report_names_file = false;
    } else if (severity >= FTK_SEVERITY_INFO) {
        fti_ctx_note(ctx, message);
        fti_log(ctx->engine, severity == FTK_SEVERITY_INFO ? FTK_LOG_INFO : FTK_LOG_WARNING, "%.*s",
                FTI_STR_ARGS(message));
    }
}

/* ---- memory and capabilities ---- */

/* Aligned memory lies inside a block whose address stands right before it. */
static void *host_alloc(ftk_core_ctx *ctx, uint64_t bytes, uint64_t align) {
    (void)ctx;
    if (align & (align - 1) || align > SIZE_MAX / 4 || bytes > SIZE_MAX / 2) return NULL;
    if (align < _Alignof(max_align_t)) align = _Alignof(max_align_t);
    char *block = fti_calloc(1, (size_t)(bytes + align + sizeof block));
    if (!block) return NULL;
    size_t past = (size_t)((uintptr_t)(block + sizeof block) % align);
    char *memory = block + sizeof block + (past ? (size_t)align - past : 0);
    memcpy(memory - sizeof block, &block, sizeof block);
    return memory;
}

static void host_release(ftk_core_ctx *ctx, void *memory) {
    (void)ctx;
    char *block;
    if (!memory) return;
    memcpy(&block, (char *)memory - sizeof block, sizeof block);
    fti_free(block);
}

static ftk_status host_capability(ftk_core_ctx *ctx, ftk_str name, int64_t *value) {
    const fti_backend *backend = ctx->engine->backend;
    return backend->ops->capability(backend, name, value);
}

/* ---- "checkpoint_reader" ---- */

/* Getters write their message into the report, so that a provider may simply
 * return the status. The checkpoint's messages begin with its path. */
static ftk_status said(ftk_core_ctx *ctx, ftk_status status) {
    if (status != FTK_OK && status != FTK_E_NOT_FOUND) ctx->report_names_file = true;
    return status;
}

static ftk_status reader_u64(ftk_core_ctx *ctx, ftk_str key, uint64_t min, uint64_t max,
                             uint64_t *value) {
    return said(ctx, fti_meta_get_u64(ctx->engine->checkpoint, key, min, max, value, &ctx->report));
}

static ftk_status reader_f64(ftk_core_ctx *ctx, ftk_str key, double *value) {
    return said(ctx, fti_meta_get_f64(ctx->engine->checkpoint, key, value, &ctx->report));
}

static ftk_status reader_bool(ftk_core_ctx *ctx, ftk_str key, uint32_t *value) {
    bool b;
    ftk_status status = said(ctx,
                             fti_meta_get_bool(ctx->engine->checkpoint, key, &b, &ctx->report));
    if (status == FTK_OK) *value = b;
    return status;
}

static ftk_status reader_str(ftk_core_ctx *ctx, ftk_str key, ftk_str *value) {
    return said(ctx, fti_meta_get_str(ctx->engine->checkpoint, key, value, &ctx->report));
}

static ftk_status reader_array_size(ftk_core_ctx *ctx, ftk_str key, uint64_t *size) {
    return said(ctx, fti_meta_get_count(ctx->engine->checkpoint, key, size, &ctx->report));
}

static ftk_status reader_array_i64(ftk_core_ctx *ctx, ftk_str key, uint64_t index, int64_t *value) {
    return said(ctx, fti_meta_get_i64_at(ctx->engine->checkpoint, key, index, value, &ctx->report));
}

/* Walks the stored strings: the reader has checked that they lie in the file. */
static ftk_status reader_array_find_str(ftk_core_ctx *ctx, ftk_str key, ftk_str value,
                                        uint64_t *index) {
    const fti_meta *meta = fti_checkpoint_find_meta(ctx->engine->checkpoint, key);
    if (!meta) return FTK_E_NOT_FOUND;
    if (meta->type != FTI_META_ARRAY || meta->element_type != FTI_META_STRING)
        return said(ctx, fti_checkpoint_fail(
                             ctx->engine->checkpoint, &ctx->report, FTK_E_CKPT_METADATA,
                             "key '%s': found no array of STRING, wanted one", fti_show(key).text));
    const uint8_t *at = meta->data;
    for (uint64_t i = 0; i < meta->count; i++) {
        uint64_t size;
        memcpy(&size, at, sizeof size);
        if (size == value.size && memcmp(at + sizeof size, value.data, (size_t)size) == 0) {
            *index = i;
            return FTK_OK;
        }
        at += sizeof size + size;
    }
    return FTK_E_NOT_FOUND;
}

static uint64_t reader_tensor_count(ftk_core_ctx *ctx) {
    return fti_checkpoint_tensor_count(ctx->engine->checkpoint);
}

static ftk_status reader_tensor(ftk_core_ctx *ctx, uint64_t index, ftk_tensor_info *info) {
    if (index >= fti_checkpoint_tensor_count(ctx->engine->checkpoint)) return FTK_E_NOT_FOUND;
    const fti_tensor *t = fti_checkpoint_tensor(ctx->engine->checkpoint, (size_t)index);
    info->type = t->type;
    info->n_dims = t->n_dims;
    memcpy(info->dims, t->dims, sizeof info->dims);
    info->bytes = t->bytes;
    info->name = t->name;
    return FTK_OK;
}

static ftk_status reader_find_tensor(ftk_core_ctx *ctx, ftk_str name, uint64_t *index) {
    size_t at;
    if (!fti_checkpoint_find_tensor(ctx->engine->checkpoint, name, &at)) return FTK_E_NOT_FOUND;
    *index = at;
    return FTK_OK;
}

static ftk_status reader_read(ftk_core_ctx *ctx, uint64_t tensor, uint64_t offset, uint64_t bytes,
                              void *out) {
    const fti_checkpoint *c = ctx->engine->checkpoint;
    if (tensor >= fti_checkpoint_tensor_count(c)) return FTK_E_NOT_FOUND;
    const fti_tensor *t = fti_checkpoint_tensor(c, (size_t)tensor);
    if (offset > t->bytes || bytes > t->bytes - offset)
        return said(ctx,
                    fti_checkpoint_fail(c, &ctx->report, FTK_E_ARGUMENT,
                                        "tensor '%s': %llu bytes at %llu were asked for, it "
                                        "has %llu",
                                        fti_show(t->name).text, (unsigned long long)bytes,
                                        (unsigned long long)offset, (unsigned long long)t->bytes));
    const char *payload = fti_checkpoint_payload(c, (size_t)tensor);
    memcpy(out, payload + offset, (size_t)bytes);
    return FTK_OK;
}

static const ftk_if_checkpoint_reader reader_interface = {
    .struct_size = (uint32_t)sizeof(ftk_if_checkpoint_reader),
    .level = 0,
    .get_u64 = reader_u64,
    .get_f64 = reader_f64,
    .get_bool = reader_bool,
    .get_str = reader_str,
    .array_size = reader_array_size,
    .array_i64 = reader_array_i64,
    .array_find_str = reader_array_find_str,
    .tensor_count = reader_tensor_count,
    .tensor = reader_tensor,
    .find_tensor = reader_find_tensor,
    .read = reader_read,
};

static const void *host_query(ftk_core_ctx *ctx, ftk_str name, uint32_t level) {
    if (level != 0) return NULL;
    if (fti_str_is(name, "checkpoint_reader")) return &reader_interface;
    if (fti_str_is(name, "operators")) return ctx->engine->backend->operators;
    if (fti_str_is(name, "kernels")) return ctx->engine->backend->kernels;
    return NULL;
}

const ftk_host fti_host = {
    .struct_size = (uint32_t)sizeof(ftk_host),
    .api_level = FTK_API_LEVEL,
    .min_provider_level = FTK_MIN_PROVIDER_LEVEL,
    .core_version = FTK_STR(FTK_VERSION_STRING),
    .report = host_report,
    .alloc = host_alloc,
    .release = host_release,
    .capability = host_capability,
    .query = host_query,
};
