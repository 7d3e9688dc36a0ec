/* gguf_edit.c: see gguf_edit.h. */
#include "support/gguf_edit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/gguf_writer.h"

/* ---- taking apart ---- */

static fti_edit_tensor *append(fti_gguf_edit *e, const char *name, uint64_t bytes,
                               const void *data) {
    if (e->count == e->capacity) {
        e->capacity = e->capacity ? 2 * e->capacity : 128;
        e->tensors = realloc(e->tensors, e->capacity * sizeof *e->tensors);
        assert_non_null(e->tensors);
    }
    fti_edit_tensor *t = &e->tensors[e->count++];
    memset(t, 0, sizeof *t);
    assert_in_range(snprintf(t->name, sizeof t->name, "%s", name), 1, sizeof t->name - 1);
    t->bytes = bytes;
    t->data = calloc(1, (size_t)bytes + 1);
    assert_non_null(t->data);
    if (data) memcpy(t->data, data, (size_t)bytes);
    return t;
}

fti_gguf_edit fti_ge_load(const char *path) {
    fti_gguf_edit e = {0};
    ftk_error err = FTK_ERROR_INIT;
    if (fti_checkpoint_open(path, &e.source, &err) != FTK_OK) fail_msg("%s", err.message);
    for (size_t i = 0; i < fti_checkpoint_tensor_count(e.source); i++) {
        const fti_tensor *t = fti_checkpoint_tensor(e.source, i);
        char name[64];
        snprintf(name, sizeof name, "%.*s", FTI_STR_ARGS(t->name));
        fti_edit_tensor *copy = append(&e, name, t->bytes, fti_checkpoint_payload(e.source, i));
        copy->type = t->type;
        copy->n_dims = t->n_dims;
        memcpy(copy->dims, t->dims, sizeof copy->dims);
    }
    return e;
}

void fti_ge_free(fti_gguf_edit *e) {
    for (size_t i = 0; i < e->count; i++) free(e->tensors[i].data);
    free(e->tensors);
    fti_checkpoint_close(e->source);
    memset(e, 0, sizeof *e);
}

fti_edit_tensor *fti_ge_find(fti_gguf_edit *e, const char *name) {
    for (size_t i = 0; i < e->count; i++)
        if (strcmp(e->tensors[i].name, name) == 0) return &e->tensors[i];
    return NULL;
}

void fti_ge_remove(fti_gguf_edit *e, const char *name) {
    fti_edit_tensor *t = fti_ge_find(e, name);
    if (!t) fail_msg("no tensor '%s' to remove", name);
    free(t->data);
    size_t after = e->count-- - (size_t)(t - e->tensors) - 1;
    memmove(t, t + 1, after * sizeof *t);
}

fti_edit_tensor *fti_ge_add(fti_gguf_edit *e, const char *name, uint32_t type, uint32_t n_dims,
                            const uint64_t *dims, const void *data) {
    uint32_t elements, block;
    assert_true(fti_type_block(type, &elements, &block));
    uint64_t bytes = dims[0] / elements * block;
    for (uint32_t d = 1; d < n_dims; d++) bytes *= dims[d];
    fti_edit_tensor *t = append(e, name, bytes, data);
    t->type = type;
    t->n_dims = n_dims;
    for (uint32_t d = 0; d < 4; d++) t->dims[d] = d < n_dims ? dims[d] : 1;
    return t;
}

void fti_ge_join_rows(fti_gguf_edit *e, const char *name, const char *const *parts, size_t count) {
    fti_edit_tensor *first = fti_ge_find(e, parts[0]);
    assert_non_null(first);
    uint64_t dims[4], bytes = 0, at = 0;
    uint32_t type = first->type, n_dims = first->n_dims;
    memcpy(dims, first->dims, sizeof dims);
    dims[1] = 0;
    for (size_t p = 0; p < count; p++) {
        const fti_edit_tensor *t = fti_ge_find(e, parts[p]);
        assert_non_null(t);
        assert_true(t->type == type && t->dims[0] == dims[0] && t->dims[2] == dims[2]);
        dims[1] += t->dims[1];
        bytes += t->bytes;
    }
    uint8_t *data = malloc((size_t)bytes);
    assert_non_null(data);
    for (uint64_t slice = 0; slice < dims[2]; slice++)
        for (size_t p = 0; p < count; p++) {
            const fti_edit_tensor *t = fti_ge_find(e, parts[p]);
            uint64_t part = t->bytes / dims[2];
            memcpy(data + at, t->data + slice * part, (size_t)part);
            at += part;
        }
    for (size_t p = 0; p < count; p++) fti_ge_remove(e, parts[p]);
    fti_ge_add(e, name, type, n_dims, dims, data);
    free(data);
}

/* ---- writing ---- */

static bool is_about_files(ftk_str key) {
    return fti_str_is(key, "general.alignment") || fti_str_is(key, "split.no") ||
           fti_str_is(key, "split.count") || fti_str_is(key, "split.tensors.count");
}

static uint64_t put_source_keys(fti_gguf_writer *w, const fti_checkpoint *c) {
    uint64_t keys = 0;
    for (size_t i = 0; i < fti_checkpoint_meta_count(c); i++) {
        const fti_meta *m = fti_checkpoint_meta(c, i);
        if (is_about_files(m->key)) continue;
        keys++;
        fti_gw_string_sized(w, m->key.data, (size_t)m->key.size);
        fti_gw_u32(w, m->type);
        if (m->type == FTI_META_ARRAY) {
            fti_gw_u32(w, m->element_type);
            fti_gw_u64(w, m->count);
        } else if (m->type == FTI_META_STRING) {
            fti_gw_u64(w, m->bytes);
        }
        fti_gw_raw(w, m->data, (size_t)m->bytes);
    }
    return keys;
}

static void put_tensors(fti_gguf_writer *w, const fti_edit_tensor *t, size_t count,
                        uint32_t alignment) {
    uint64_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        fti_gw_tensor(w, t[i].name, t[i].n_dims, t[i].dims, t[i].type, offset);
        offset = (offset + t[i].bytes + alignment - 1) / alignment * alignment;
    }
    fti_gw_pad(w, alignment);
    for (size_t i = 0; i < count; i++) {
        fti_gw_raw(w, t[i].data, (size_t)t[i].bytes);
        fti_gw_pad(w, alignment);
    }
}

static void write_out(const fti_gguf_writer *w, const char *path) {
    FILE *f = fopen(path, "wbe");
    if (!f) fail_msg("cannot create %s", path);
    assert_int_equal(fwrite(w->data, 1, w->size, f), w->size);
    assert_int_equal(fclose(f), 0);
}

#define KEY_COUNT_AT 16u

void fti_ge_save(const fti_gguf_edit *e, const char *path) {
    fti_gguf_writer w = {0};
    fti_gw_header(&w, 3, e->count, 0);
    fti_gw_patch_u64(&w, KEY_COUNT_AT, put_source_keys(&w, e->source));
    put_tensors(&w, e->tensors, e->count, 32);
    write_out(&w, path);
    fti_gw_free(&w);
}

void fti_ge_save_shard(const fti_gguf_edit *e, const fti_edit_shard *shard, const char *path) {
    fti_gguf_writer w = {0};
    uint64_t keys = 3;
    fti_gw_header(&w, 3, shard->count, 0);
    fti_gw_integer(&w, "split.no", FTI_META_U16, shard->number);
    fti_gw_integer(&w, "split.count", FTI_META_U16, shard->shards);
    fti_gw_integer(&w, "split.tensors.count", FTI_META_I32, shard->tensors);
    if (shard->alignment) {
        fti_gw_integer(&w, "general.alignment", FTI_META_U32, shard->alignment);
        keys++;
    }
    if (shard->number == 0) {
        keys += put_source_keys(&w, e->source);
    } else if (shard->name) {
        fti_gw_text(&w, "general.name", shard->name);
        keys++;
    }
    fti_gw_patch_u64(&w, KEY_COUNT_AT, keys);
    assert_true(shard->first + shard->count <= e->count);
    put_tensors(&w, e->tensors + shard->first, shard->count,
                shard->alignment ? shard->alignment : 32);
    write_out(&w, path);
    fti_gw_free(&w);
}
