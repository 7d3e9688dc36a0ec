/* gguf_writer.c: see gguf_writer.h. */
#include "support/gguf_writer.h"

#include <stdlib.h>

/* ---- raw bytes ---- */

void fti_gw_free(fti_gguf_writer *w) {
    free(w->data);
    memset(w, 0, sizeof *w);
}

static uint8_t *grow(fti_gguf_writer *w, size_t size) {
    if (size > w->capacity - w->size) {
        w->capacity = 2 * (w->size + size) + 256;
        w->data = realloc(w->data, w->capacity);
        if (!w->data) abort();
    }
    uint8_t *at = w->data + w->size;
    w->size += size;
    return at;
}

void fti_gw_raw(fti_gguf_writer *w, const void *data, size_t size) {
    if (size) memcpy(grow(w, size), data, size);
}

void fti_gw_fill(fti_gguf_writer *w, uint8_t byte, size_t count) {
    if (count) memset(grow(w, count), byte, count);
}

void fti_gw_u8(fti_gguf_writer *w, uint8_t value) {
    fti_gw_raw(w, &value, sizeof value);
}

void fti_gw_u16(fti_gguf_writer *w, uint16_t value) {
    fti_gw_raw(w, &value, sizeof value);
}

void fti_gw_u32(fti_gguf_writer *w, uint32_t value) {
    fti_gw_raw(w, &value, sizeof value);
}

void fti_gw_u64(fti_gguf_writer *w, uint64_t value) {
    fti_gw_raw(w, &value, sizeof value);
}

void fti_gw_f32(fti_gguf_writer *w, float value) {
    fti_gw_raw(w, &value, sizeof value);
}

void fti_gw_f64(fti_gguf_writer *w, double value) {
    fti_gw_raw(w, &value, sizeof value);
}

void fti_gw_string(fti_gguf_writer *w, const char *text) {
    fti_gw_string_sized(w, text, strlen(text));
}

void fti_gw_string_sized(fti_gguf_writer *w, const char *text, size_t size) {
    fti_gw_u64(w, size);
    fti_gw_raw(w, text, size);
}

void fti_gw_pad(fti_gguf_writer *w, size_t alignment) {
    while (w->size % alignment != 0) fti_gw_u8(w, 0);
}

void fti_gw_patch_u32(fti_gguf_writer *w, size_t at, uint32_t value) {
    if (at > w->size || w->size - at < sizeof value) abort();
    memcpy(w->data + at, &value, sizeof value);
}

void fti_gw_patch_u64(fti_gguf_writer *w, size_t at, uint64_t value) {
    if (at > w->size || w->size - at < sizeof value) abort();
    memcpy(w->data + at, &value, sizeof value);
}

/* ---- records ---- */

void fti_gw_header(fti_gguf_writer *w, uint32_t version, uint64_t tensors, uint64_t keys) {
    fti_gw_raw(w, "GGUF", 4);
    fti_gw_u32(w, version);
    fti_gw_u64(w, tensors);
    fti_gw_u64(w, keys);
}

void fti_gw_key(fti_gguf_writer *w, const char *key, uint32_t type) {
    fti_gw_string(w, key);
    fti_gw_u32(w, type);
}

void fti_gw_array(fti_gguf_writer *w, const char *key, uint32_t element_type, uint64_t count) {
    fti_gw_key(w, key, FTI_META_ARRAY);
    fti_gw_u32(w, element_type);
    fti_gw_u64(w, count);
}

void fti_gw_integer(fti_gguf_writer *w, const char *key, uint32_t type, uint64_t value) {
    fti_gw_key(w, key, type);
    fti_gw_raw(w, &value, fti_gw_scalar_bytes(type));
}

void fti_gw_text(fti_gguf_writer *w, const char *key, const char *value) {
    fti_gw_key(w, key, FTI_META_STRING);
    fti_gw_string(w, value);
}

void fti_gw_tensor(fti_gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *dims,
                   uint32_t type, uint64_t offset) {
    fti_gw_string(w, name);
    fti_gw_u32(w, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) fti_gw_u64(w, dims[i]);
    fti_gw_u32(w, type);
    fti_gw_u64(w, offset);
}

/* Deliberately not the library's own table: the tests hold one against the other. */
size_t fti_gw_scalar_bytes(uint32_t type) {
    switch (type) {
    case FTI_META_U8:
    case FTI_META_I8:
    case FTI_META_BOOL: return 1;
    case FTI_META_U16:
    case FTI_META_I16: return 2;
    case FTI_META_U32:
    case FTI_META_I32:
    case FTI_META_F32: return 4;
    case FTI_META_U64:
    case FTI_META_I64:
    case FTI_META_F64: return 8;
    default: return 0;
    }
}

/* ---- walking ---- */

typedef struct walk {
    const fti_checkpoint *c;
    uintptr_t begin, end;
    unsigned sum; /* of all bytes, so that reading them cannot be optimised away */
} walk;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) return "not true: " #condition;                                          \
    } while (0)
#define PASS_ON(expression)                                                                        \
    do {                                                                                           \
        const char *pass_on_ = (expression);                                                       \
        if (pass_on_) return pass_on_;                                                             \
    } while (0)

static bool inside(walk *w, const void *data, uint64_t size) {
    uintptr_t at = (uintptr_t)data;
    if (at < w->begin || at > w->end || size > w->end - at) return false;
    const volatile uint8_t *bytes = data;
    for (uint64_t i = 0; i < size; i++) w->sum += bytes[i];
    return true;
}

static const char *walk_strings(walk *w, const fti_meta *meta) {
    EXPECT(meta->count <= meta->bytes / sizeof(uint64_t));
    ftk_str *texts = calloc((size_t)meta->count + 1, sizeof *texts);
    if (!texts) abort();
    ftk_status status = fti_meta_get_strings(w->c, meta->key, texts, meta->count, NULL);
    bool good = status == FTK_OK;
    uint64_t bytes = 0;
    for (uint64_t i = 0; good && i < meta->count; i++) {
        good = inside(w, texts[i].data, texts[i].size);
        bytes += sizeof(uint64_t) + texts[i].size;
    }
    free(texts);
    EXPECT(good);
    EXPECT(bytes == meta->bytes);
    return NULL;
}

static const char *walk_array(walk *w, const fti_meta *meta) {
    uint64_t count = 0;
    int64_t value;
    EXPECT(meta->element_type < FTI_META_TYPES && meta->element_type != FTI_META_ARRAY);
    EXPECT(fti_meta_get_count(w->c, meta->key, &count, NULL) == FTK_OK && count == meta->count);
    if (meta->element_type == FTI_META_STRING) return walk_strings(w, meta);
    EXPECT(meta->bytes == meta->count * fti_gw_scalar_bytes(meta->element_type));
    for (uint64_t i = 0; i <= count; i++) {
        ftk_status status = fti_meta_get_i64_at(w->c, meta->key, i, &value, NULL);
        EXPECT(status == FTK_E_CKPT_METADATA || (status == FTK_OK && i < count));
    }
    return NULL;
}

static const char *walk_getters(walk *w, const fti_meta *meta) {
    uint64_t u;
    double f;
    bool b;
    ftk_str s = {NULL, 0};
    ftk_status number = fti_meta_get_u64(w->c, meta->key, 0, UINT64_MAX, &u, NULL);
    ftk_status real = fti_meta_get_f64(w->c, meta->key, &f, NULL);
    ftk_status truth = fti_meta_get_bool(w->c, meta->key, &b, NULL);
    ftk_status text = fti_meta_get_str(w->c, meta->key, &s, NULL);
    int answers = (number == FTK_OK) + (real == FTK_OK) + (truth == FTK_OK) + (text == FTK_OK);
    EXPECT(answers <= 1);
    EXPECT((truth == FTK_OK) == (meta->type == FTI_META_BOOL));
    EXPECT((text == FTK_OK) == (meta->type == FTI_META_STRING));
    EXPECT((real == FTK_OK) == (meta->type == FTI_META_F32 || meta->type == FTI_META_F64));
    EXPECT(text != FTK_OK || (s.size == meta->bytes && inside(w, s.data, s.size)));
    return NULL;
}

static const char *walk_meta(walk *w, size_t index) {
    const fti_meta *meta = fti_checkpoint_meta(w->c, index);
    EXPECT(meta != NULL);
    EXPECT(meta->key.size >= 1 && inside(w, meta->key.data, meta->key.size));
    EXPECT(memchr(meta->key.data, 0, (size_t)meta->key.size) == NULL);
    EXPECT(fti_checkpoint_find_meta(w->c, meta->key) == meta);
    EXPECT(meta->type < FTI_META_TYPES);
    EXPECT(inside(w, meta->data, meta->bytes));
    if (meta->type == FTI_META_BOOL) EXPECT(meta->data[0] <= 1);
    PASS_ON(walk_getters(w, meta));
    if (meta->type == FTI_META_ARRAY) return walk_array(w, meta);
    EXPECT(meta->count == 1);
    if (meta->type != FTI_META_STRING) EXPECT(meta->bytes == fti_gw_scalar_bytes(meta->type));
    return NULL;
}

static const char *walk_size(const fti_tensor *t) {
    uint32_t elements = 0, bytes = 0;
    EXPECT(t->n_dims >= 1 && t->n_dims <= 4);
    EXPECT(fti_type_block(t->type, &elements, &bytes) && elements > 0 && bytes > 0);
    EXPECT(t->dims[0] % elements == 0 && t->row_bytes == t->dims[0] / elements * bytes);
    uint64_t size = t->row_bytes;
    for (unsigned i = 0; i < 4; i++) {
        EXPECT(t->dims[i] >= 1 && (i < t->n_dims || t->dims[i] == 1));
        if (i > 0) EXPECT(!__builtin_mul_overflow(size, t->dims[i], &size));
    }
    EXPECT(t->bytes == size && size > 0);
    return NULL;
}

static const char *walk_tensor(walk *w, size_t index) {
    const fti_tensor *t = fti_checkpoint_tensor(w->c, index);
    size_t found = SIZE_MAX;
    EXPECT(t != NULL);
    EXPECT(t->name.size >= 1 && t->name.size <= 63 && inside(w, t->name.data, t->name.size));
    EXPECT(memchr(t->name.data, 0, (size_t)t->name.size) == NULL);
    EXPECT(fti_checkpoint_find_tensor(w->c, t->name, &found) && found == index);
    PASS_ON(walk_size(t));
    EXPECT(fti_checkpoint_payload(w->c, index) == (const void *)(w->begin + t->offset));
    EXPECT(inside(w, fti_checkpoint_payload(w->c, index), t->bytes));
    return NULL;
}

static int by_offset(const void *a, const void *b) {
    const fti_tensor *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static const char *walk_layout(const walk *w) {
    size_t count = fti_checkpoint_tensor_count(w->c);
    fti_tensor *sorted = calloc(count + 1, sizeof *sorted);
    if (!sorted) abort();
    for (size_t i = 0; i < count; i++) sorted[i] = *fti_checkpoint_tensor(w->c, i);
    qsort(sorted, count, sizeof *sorted, by_offset);
    bool apart = true;
    for (size_t i = 1; i < count; i++)
        apart = apart && sorted[i].offset - sorted[i - 1].offset >= sorted[i - 1].bytes;
    free(sorted);
    EXPECT(apart);
    return NULL;
}

static const char *walk_absent(const walk *w) {
    size_t keys = fti_checkpoint_meta_count(w->c), tensors = fti_checkpoint_tensor_count(w->c);
    size_t found;
    EXPECT(fti_checkpoint_meta(w->c, keys) == NULL);
    EXPECT(fti_checkpoint_tensor(w->c, tensors) == NULL);
    EXPECT(fti_checkpoint_payload(w->c, tensors) == NULL);
    EXPECT(fti_checkpoint_find_meta(w->c, fti_str("")) == NULL);
    EXPECT(!fti_checkpoint_find_tensor(w->c, fti_str(""), &found));
    return NULL;
}

static const char *walk_whole(const walk *w) {
    ftk_str value = {NULL, 0};
    EXPECT(fti_checkpoint_path(w->c) != NULL);
    EXPECT(fti_str_is(fti_str(fti_checkpoint_container(w->c)), "gguf"));
    EXPECT(fti_checkpoint_version(w->c) == 2 || fti_checkpoint_version(w->c) == 3);
    EXPECT(fti_checkpoint_file_bytes(w->c) == w->end - w->begin);
    EXPECT(fti_meta_get_str(w->c, fti_str("general.architecture"), &value, NULL) == FTK_OK);
    EXPECT(value.size > 0);
    return NULL;
}

const char *fti_checkpoint_walk(const fti_checkpoint *checkpoint, const void *data, size_t size) {
    walk w = {checkpoint, (uintptr_t)data, (uintptr_t)data + size, 0};
    size_t keys = fti_checkpoint_meta_count(checkpoint);
    size_t tensors = fti_checkpoint_tensor_count(checkpoint);
    PASS_ON(walk_whole(&w));
    for (size_t i = 0; i < keys; i++) PASS_ON(walk_meta(&w, i));
    for (size_t i = 0; i < tensors; i++) PASS_ON(walk_tensor(&w, i));
    PASS_ON(walk_absent(&w));
    return walk_layout(&w);
}
