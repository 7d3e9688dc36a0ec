/*
 * reader.c: the mock's "checkpoint_reader": the open checkpoint as the core reads it.
 * An injected failure of a getter is a value of the wrong type, and stays with its key;
 * that of a look-up is "not found", which is an answer.
 */
#include "mock.h"

#include <stdio.h>

static void check_call(const fti_pc_mock *m, const char *name) {
    static const char *const legal[] = {"match", "create", "plan_weights", "load_weights"};
    bool ok = false;
    for (size_t i = 0; m->call && i < FTI_COUNT(legal); i++) ok |= strcmp(m->call, legal[i]) == 0;
    fti_pc_check(ok,
                 "checkpoint_reader's %s was called in %s%s: it is valid in match, create, "
                 "plan_weights and load_weights",
                 name, m->call ? m->call : "no call",
                 m->capturing ? " while the host captures, and is not graph safe" : "");
}

static uint64_t hash(ftk_str key) {
    uint64_t h = 14695981039346656037u;
    for (uint64_t i = 0; key.data && i < key.size; i++)
        h = (h ^ (unsigned char)key.data[i]) * 1099511628211u;
    return h;
}

static bool is_broken(const fti_pc_mock *m, ftk_str key) {
    for (uint32_t i = 0; i < m->broken_key_count; i++)
        if (m->broken_keys[i] == hash(key)) return true;
    return false;
}

/* In the core, what the reader refuses it has reported. */
static ftk_status tell(fti_pc_mock *m, ftk_status status) {
    m->reported = true;
    m->told = status;
    return status;
}

/* True if reading `key` is to fail; the message is the host's, as in the core. */
static bool breaks(fti_pc_mock *m, const char *name, ftk_str key) {
    check_call(m, name);
    bool fires = fti_pc_enter(m, FTI_PC_FAILS, name, key);
    if (fires && m->broken_key_count < FTI_PC_MAX_KEYS)
        m->broken_keys[m->broken_key_count++] = hash(key);
    if (!fires && !is_broken(m, key)) return false;
    tell(m, FTK_E_CKPT_METADATA);
    return true;
}

/* A getter's message is the report. */
static ftk_status said(fti_pc_mock *m, ftk_status status, const ftk_error *error) {
    if (status == FTK_OK || status == FTK_E_NOT_FOUND) return status;
    snprintf(m->message, sizeof m->message, "%.500s", error->message);
    return tell(m, status);
}

#define BEGIN(name)                                                                                \
    FTI_PC_HOST_CALL;                                                                              \
    fti_pc_mock *m = fti_pc_of_ctx(ctx);                                                           \
    if (breaks(m, name, key)) return FTK_E_CKPT_METADATA

static ftk_status get_u64(ftk_core_ctx *ctx, ftk_str key, uint64_t min, uint64_t max,
                          uint64_t *value) {
    BEGIN("get_u64");
    ftk_error error = FTK_ERROR_INIT;
    return said(m, fti_meta_get_u64(m->target->checkpoint, key, min, max, value, &error), &error);
}

static ftk_status get_f64(ftk_core_ctx *ctx, ftk_str key, double *value) {
    BEGIN("get_f64");
    ftk_error error = FTK_ERROR_INIT;
    return said(m, fti_meta_get_f64(m->target->checkpoint, key, value, &error), &error);
}

static ftk_status get_bool(ftk_core_ctx *ctx, ftk_str key, uint32_t *value) {
    BEGIN("get_bool");
    ftk_error error = FTK_ERROR_INIT;
    bool b = false;
    ftk_status status = fti_meta_get_bool(m->target->checkpoint, key, &b, &error);
    if (status == FTK_OK) *value = b;
    return said(m, status, &error);
}

static ftk_status get_str(ftk_core_ctx *ctx, ftk_str key, ftk_str *value) {
    BEGIN("get_str");
    ftk_error error = FTK_ERROR_INIT;
    return said(m, fti_meta_get_str(m->target->checkpoint, key, value, &error), &error);
}

static ftk_status array_size(ftk_core_ctx *ctx, ftk_str key, uint64_t *size) {
    BEGIN("array_size");
    ftk_error error = FTK_ERROR_INIT;
    return said(m, fti_meta_get_count(m->target->checkpoint, key, size, &error), &error);
}

static ftk_status array_i64(ftk_core_ctx *ctx, ftk_str key, uint64_t index, int64_t *value) {
    BEGIN("array_i64");
    ftk_error error = FTK_ERROR_INIT;
    return said(m, fti_meta_get_i64_at(m->target->checkpoint, key, index, value, &error), &error);
}

/* Strings are stored as a length and the text, one after the other. */
static ftk_status array_find_str(ftk_core_ctx *ctx, ftk_str key, ftk_str value, uint64_t *index) {
    BEGIN("array_find_str");
    const fti_meta *meta = fti_checkpoint_find_meta(m->target->checkpoint, key);
    if (!meta) return FTK_E_NOT_FOUND;
    if (meta->type != FTI_META_ARRAY || meta->element_type != FTI_META_STRING)
        return tell(m, FTK_E_CKPT_METADATA);
    const uint8_t *at = meta->data;
    for (uint64_t i = 0; i < meta->count; i++) {
        uint64_t size;
        memcpy(&size, at, sizeof size);
        if (fti_str_eq(value, (ftk_str){(const char *)at + sizeof size, size})) {
            *index = i;
            return FTK_OK;
        }
        at += sizeof size + size;
    }
    return FTK_E_NOT_FOUND;
}

static uint64_t tensor_count(ftk_core_ctx *ctx) {
    FTI_PC_HOST_CALL;
    fti_pc_mock *m = fti_pc_of_ctx(ctx);
    check_call(m, "tensor_count");
    return fti_checkpoint_tensor_count(m->target->checkpoint);
}

static ftk_status tensor(ftk_core_ctx *ctx, uint64_t index, ftk_tensor_info *info) {
    FTI_PC_HOST_CALL;
    fti_pc_mock *m = fti_pc_of_ctx(ctx);
    const fti_checkpoint *c = m->target->checkpoint;
    check_call(m, "tensor");
    fti_pc_check(info->struct_size >= sizeof *info,
                 "tensor was given an info of struct_size %u, wanted its size", info->struct_size);
    if (fti_pc_enter(m, FTI_PC_ANSWERS, "tensor", fti_str("")) ||
        index >= fti_checkpoint_tensor_count(c))
        return FTK_E_NOT_FOUND;
    const fti_tensor *t = fti_checkpoint_tensor(c, (size_t)index);
    *info = (ftk_tensor_info){.struct_size = info->struct_size,
                              .type = t->type,
                              .n_dims = t->n_dims,
                              .bytes = t->bytes,
                              .name = t->name};
    memcpy(info->dims, t->dims, sizeof info->dims);
    return FTK_OK;
}

static ftk_status find_tensor(ftk_core_ctx *ctx, ftk_str name, uint64_t *index) {
    FTI_PC_HOST_CALL;
    fti_pc_mock *m = fti_pc_of_ctx(ctx);
    size_t at;
    check_call(m, "find_tensor");
    if (fti_pc_enter(m, FTI_PC_ANSWERS, "find_tensor", name) ||
        !fti_checkpoint_find_tensor(m->target->checkpoint, name, &at))
        return FTK_E_NOT_FOUND;
    *index = at;
    return FTK_OK;
}

static ftk_status read_tensor(ftk_core_ctx *ctx, uint64_t index, uint64_t offset, uint64_t bytes,
                              void *out) {
    FTI_PC_HOST_CALL;
    fti_pc_mock *m = fti_pc_of_ctx(ctx);
    const fti_checkpoint *c = m->target->checkpoint;
    check_call(m, "read");
    if (fti_pc_enter(m, FTI_PC_FAILS, "read", fti_str(""))) return tell(m, FTK_E_CKPT_READ);
    if (m->closed) return tell(m, FTK_E_STATE); /* not legal here, as was found */
    if (index >= fti_checkpoint_tensor_count(c)) return FTK_E_NOT_FOUND;
    const fti_tensor *t = fti_checkpoint_tensor(c, (size_t)index);
    if (offset > t->bytes || bytes > t->bytes - offset) return tell(m, FTK_E_ARGUMENT);
    memcpy(out, (const char *)fti_checkpoint_payload(c, (size_t)index) + offset, (size_t)bytes);
    return FTK_OK;
}

const ftk_if_checkpoint_reader fti_pc_reader = {
    .struct_size = (uint32_t)sizeof(ftk_if_checkpoint_reader),
    .level = 0,
    .get_u64 = get_u64,
    .get_f64 = get_f64,
    .get_bool = get_bool,
    .get_str = get_str,
    .array_size = array_size,
    .array_i64 = array_i64,
    .array_find_str = array_find_str,
    .tensor_count = tensor_count,
    .tensor = tensor,
    .find_tensor = find_tensor,
    .read = read_tensor,
};
