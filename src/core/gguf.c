/*
 * gguf.c: reads the GGUF container, versions 2 and 3, little-endian, out of a
 * byte range that is taken to be hostile. Nothing is copied: names and values
 * point into the range. Counts are checked against the bytes left before
 * anything is allocated for them, so a refused file costs little memory:
 * see the assertion below.
 */
#include "core/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define HEADER_BYTES 24u

/* Real files have some dozens of keys and at most some thousand tensors. */
#define MAX_KEYS    65536u
#define MAX_TENSORS FTI_GGUF_MAX_TENSORS

#define MIN_KEY_RECORD    14u /* length, one character, value type, one byte */
#define MIN_TENSOR_RECORD 33u /* length, one character, rank, one extent, type, offset */

#define MAX_KEY_NAME    65535u
#define MAX_TENSOR_NAME 63u

#define DEFAULT_ALIGNMENT 32u
#define MAX_ALIGNMENT     (1u << 20)

#define MAX_INDEX_SLOTS 262144u /* fti_index_slots(MAX_TENSORS) */
_Static_assert(MAX_TENSORS <= MAX_INDEX_SLOTS / 2 && MAX_KEYS <= MAX_INDEX_SLOTS / 4 &&
                   MAX_KEYS * sizeof(fti_meta) + MAX_TENSORS * sizeof(fti_tensor) +
                           MAX_INDEX_SLOTS * 3 / 2 * sizeof(uint32_t) +
                           MAX_TENSORS * sizeof(uint32_t) <
                       (14u << 20),
               "a refused file must cost less than 16 MiB");

typedef struct reader {
    fti_checkpoint *c;
    ftk_error *err;
    uint64_t pos;     /* never past the end */
    const char *kind; /* "key" or "tensor" while in such a record, else NULL */
    uint64_t number;  /* of that record */
    ftk_str name;     /* of that record, once read */
    uint64_t alignment;
    uint64_t data_offset;
} reader;

/* ---- messages ---- */

static ftk_status refuse(const reader *r, ftk_status status, const char *format, ...)
    FTI_PRINTF(3, 4);

static ftk_status refuse(const reader *r, ftk_status status, const char *format, ...) {
    char text[480];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!r->kind) return fti_checkpoint_fail(r->c, r->err, status, "%s", text);
    if (!r->name.size)
        return fti_checkpoint_fail(r->c, r->err, status, "%s number %" PRIu64 ": %s", r->kind,
                                   r->number, text);
    return fti_checkpoint_fail(r->c, r->err, status, "%s '%s': %s", r->kind, fti_show(r->name).text,
                               text);
}

static ftk_status refuse_key(const reader *r, const char *key, const char *text) {
    return fti_checkpoint_fail(r->c, r->err, FTK_E_CKPT_METADATA, "key '%s' %s", key, text);
}

static void enter(reader *r, const char *kind, uint64_t number) {
    r->kind = kind;
    r->number = number;
    r->name = (ftk_str){NULL, 0};
}

static void leave(reader *r) {
    enter(r, NULL, 0);
}

/* ---- bounded reading ---- */

static uint64_t bytes_left(const reader *r) {
    return r->c->size - r->pos;
}

static ftk_status refuse_short(const reader *r, const char *what, uint64_t needed) {
    uint64_t wanted;
    if (!fti_add_u64(r->pos, needed, &wanted)) wanted = UINT64_MAX;
    return refuse(r, FTK_E_CKPT_TRUNCATED,
                  "%s ends at byte %" PRIu64 " or later, the file has %" PRIu64
                  " bytes: it was cut short or is damaged, fetch it again",
                  what, wanted, r->c->size);
}

/* NULL if the file ends before; the message is written and the status is
 * FTK_E_CKPT_TRUNCATED. */
static const uint8_t *take(reader *r, uint64_t bytes, const char *what) {
    if (bytes > bytes_left(r)) {
        refuse_short(r, what, bytes);
        return NULL;
    }
    const uint8_t *data = r->c->data + r->pos;
    r->pos += bytes;
    return data;
}

static ftk_status take_u32(reader *r, const char *what, uint32_t *value) {
    const uint8_t *data = take(r, sizeof *value, what);
    if (!data) return FTK_E_CKPT_TRUNCATED;
    memcpy(value, data, sizeof *value);
    return FTK_OK;
}

static ftk_status take_u64(reader *r, const char *what, uint64_t *value) {
    const uint8_t *data = take(r, sizeof *value, what);
    if (!data) return FTK_E_CKPT_TRUNCATED;
    memcpy(value, data, sizeof *value);
    return FTK_OK;
}

static ftk_status take_string(reader *r, const char *what, ftk_str *value) {
    uint64_t size = 0;
    FTI_TRY(take_u64(r, what, &size));
    const uint8_t *data = take(r, size, what);
    if (!data) return FTK_E_CKPT_TRUNCATED;
    *value = (ftk_str){(const char *)data, size};
    return FTK_OK;
}

/* The name of a key or tensor. Its length is judged before its bytes are looked
 * for, so that a length that no writer makes is called damage. */
static ftk_status take_name(reader *r, uint64_t longest) {
    uint64_t size = 0;
    FTI_TRY(take_u64(r, "length of the name", &size));
    if (size == 0 || size > longest)
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "name of %" PRIu64 " bytes, wanted 1 to %" PRIu64 ": the file is damaged",
                      size, longest);
    const uint8_t *data = take(r, size, "name");
    if (!data) return FTK_E_CKPT_TRUNCATED;
    r->name = (ftk_str){(const char *)data, size};
    if (memchr(data, 0, (size_t)size))
        return refuse(r, FTK_E_CKPT_FORMAT, "name holds a NUL byte: the file is damaged");
    return FTK_OK;
}

/* ---- header ---- */

static ftk_status check_version(const reader *r, uint32_t version) {
    if ((version & 0xFFFFu) == 0 && version != 0)
        return refuse(r, FTK_E_CKPT_VERSION,
                      "GGUF version reads as 0x%08" PRIX32
                      ": the file is big-endian, only little-endian files are read; convert it",
                      version);
    if (version < 2)
        return refuse(r, FTK_E_CKPT_VERSION,
                      "GGUF version %" PRIu32
                      " is too old, wanted 2 or 3: convert the model again with a current tool",
                      version);
    if (version > 3)
        return refuse(r, FTK_E_CKPT_VERSION,
                      "GGUF version %" PRIu32
                      " is too new, wanted 2 or 3: a newer library is needed",
                      version);
    return FTK_OK;
}

static ftk_status check_count(const reader *r, const char *what, uint64_t count, uint64_t most,
                              uint64_t smallest_record) {
    if (count > most)
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "the header declares %" PRIu64 " %s, at most %" PRIu64
                      " are accepted: the file is damaged",
                      count, what, most);
    uint64_t needed = count * smallest_record;
    return needed > bytes_left(r) ? refuse_short(r, what, needed) : FTK_OK;
}

static ftk_status read_header(reader *r, size_t *tensors, size_t *keys) {
    uint32_t version = 0;
    uint64_t n_tensors = 0, n_keys = 0;
    size_t begin = r->c->size < 4 ? (size_t)r->c->size : 4;
    if (begin && memcmp(r->c->data, "GGUF", begin) != 0)
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "does not begin with \"GGUF\": not a GGUF file; give a .gguf model");
    if (r->c->size < HEADER_BYTES) return refuse_short(r, "GGUF header", HEADER_BYTES);
    r->pos = 4;
    FTI_TRY(take_u32(r, "version", &version));
    FTI_TRY(check_version(r, version));
    FTI_TRY(take_u64(r, "number of tensors", &n_tensors));
    FTI_TRY(take_u64(r, "number of keys", &n_keys));
    FTI_TRY(check_count(r, "metadata keys", n_keys, MAX_KEYS, MIN_KEY_RECORD));
    FTI_TRY(check_count(r, "tensors", n_tensors, MAX_TENSORS, MIN_TENSOR_RECORD));
    r->c->version = version;
    *tensors = (size_t)n_tensors;
    *keys = (size_t)n_keys;
    return FTK_OK;
}

/* ---- keys and values ---- */

static ftk_status check_bools(const reader *r, const fti_meta *meta) {
    for (uint64_t i = 0; i < meta->count; i++)
        if (meta->data[i] > 1)
            return refuse(r, FTK_E_CKPT_FORMAT,
                          "BOOL element %" PRIu64 " is %u, wanted 0 or 1: the file is damaged", i,
                          meta->data[i]);
    return FTK_OK;
}

static ftk_status read_elements(reader *r, fti_meta *meta, uint32_t type) {
    uint32_t size = fti_meta_type_bytes(type);
    if (meta->count > bytes_left(r) / size) {
        uint64_t needed;
        if (!fti_mul_u64(meta->count, size, &needed)) needed = UINT64_MAX;
        return refuse_short(r, "value", needed);
    }
    meta->bytes = meta->count * size;
    meta->data = take(r, meta->bytes, "value");
    if (!meta->data) return FTK_E_CKPT_TRUNCATED;
    return type == FTI_META_BOOL ? check_bools(r, meta) : FTK_OK;
}

static ftk_status read_strings(reader *r, fti_meta *meta) {
    uint64_t start = r->pos;
    if (meta->count > bytes_left(r) / sizeof(uint64_t)) {
        uint64_t needed;
        if (!fti_mul_u64(meta->count, sizeof(uint64_t), &needed)) needed = UINT64_MAX;
        return refuse_short(r, "array of STRING", needed);
    }
    for (uint64_t i = 0; i < meta->count; i++) {
        ftk_str text;
        FTI_TRY(take_string(r, "string in the array", &text));
    }
    meta->data = r->c->data + start;
    meta->bytes = r->pos - start;
    return FTK_OK;
}

static ftk_status read_array(reader *r, fti_meta *meta) {
    FTI_TRY(take_u32(r, "element type of the array", &meta->element_type));
    FTI_TRY(take_u64(r, "element count of the array", &meta->count));
    if (meta->element_type == FTI_META_ARRAY)
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "an array of arrays, which no model uses: the file is damaged");
    if (!fti_meta_type_name(meta->element_type))
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "array of unknown value type %" PRIu32
                      ", wanted 0 to 12: the file is damaged",
                      meta->element_type);
    return meta->element_type == FTI_META_STRING ? read_strings(r, meta)
                                                 : read_elements(r, meta, meta->element_type);
}

static ftk_status read_value(reader *r, fti_meta *meta) {
    FTI_TRY(take_u32(r, "value type", &meta->type));
    if (!fti_meta_type_name(meta->type))
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "unknown value type %" PRIu32 ", wanted 0 to 12: the file is damaged",
                      meta->type);
    if (meta->type == FTI_META_ARRAY) return read_array(r, meta);
    meta->count = 1;
    if (meta->type != FTI_META_STRING) return read_elements(r, meta, meta->type);
    ftk_str text;
    FTI_TRY(take_string(r, "string", &text));
    meta->data = (const uint8_t *)text.data;
    meta->bytes = text.size;
    return FTK_OK;
}

static ftk_status add_name(const reader *r, fti_name_index *index, size_t record) {
    size_t first = 0;
    switch (fti_index_add(index, record, &first)) {
    case FTI_INDEX_ADDED: return FTK_OK;
    case FTI_INDEX_DUPLICATE:
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "occurs twice, as %s number %zu and %zu: the file is damaged", r->kind, first,
                      record);
    default:
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "too many names with one hash: the file was made to slow readers down");
    }
}

static ftk_status read_keys(reader *r, size_t count) {
    fti_checkpoint *c = r->c;
    c->metas = fti_calloc(count, sizeof *c->metas);
    if (!c->metas) return fti_no_memory(r->err, count * sizeof *c->metas, "metadata");
    if (!fti_index_init(&c->meta_index, c->metas, sizeof *c->metas, count))
        return fti_no_memory(r->err, fti_index_slots(count) * sizeof(uint32_t), "metadata index");
    for (size_t i = 0; i < count; i++) {
        fti_meta *meta = &c->metas[i];
        enter(r, "key", i);
        FTI_TRY(take_name(r, MAX_KEY_NAME));
        meta->key = r->name;
        FTI_TRY(read_value(r, meta));
        FTI_TRY(add_name(r, &c->meta_index, i));
        c->meta_count = i + 1;
    }
    leave(r);
    return FTK_OK;
}

/* ---- keys that the container itself gives a meaning to ---- */

/* An absent key leaves *value alone. */
static ftk_status optional_u64(const reader *r, const char *key, uint64_t max, uint64_t *value) {
    ftk_status status = fti_meta_get_u64(r->c, fti_str(key), 0, max, value, r->err);
    return status == FTK_E_NOT_FOUND ? FTK_OK : status;
}

static ftk_status read_split(const reader *r) {
    fti_checkpoint *c = r->c;
    c->split_count = 1;
    FTI_TRY(optional_u64(r, "split.count", UINT16_MAX, &c->split_count));
    FTI_TRY(optional_u64(r, "split.no", UINT16_MAX, &c->split_number));
    FTI_TRY(optional_u64(r, "split.tensors.count", MAX_TENSORS, &c->split_tensors));
    if (c->split_count == 0) c->split_count = 1;
    if (c->split_number < c->split_count) return FTK_OK;
    return refuse(r, FTK_E_CKPT_FORMAT,
                  "key 'split.no': found %" PRIu64 ", wanted less than split.count, %" PRIu64
                  ": the file is damaged",
                  c->split_number, c->split_count);
}

static ftk_status check_architecture(const reader *r) {
    const ftk_str key = FTK_STR("general.architecture");
    ftk_str architecture, type = {NULL, 0};
    if (r->c->split_number > 0) return FTK_OK; /* the first shard has it */
    ftk_status status = fti_meta_get_str(r->c, key, &architecture, r->err);
    if (status == FTK_E_NOT_FOUND)
        return refuse_key(r, key.data, "is missing, wanted a STRING: not a complete model file");
    FTI_TRY(status);
    if (architecture.size == 0) return refuse_key(r, key.data, "is empty, wanted a name");
    status = fti_meta_get_str(r->c, fti_str("general.type"), &type, r->err);
    if (status != FTK_E_NOT_FOUND) FTI_TRY(status);
    if (fti_str_is(architecture, "clip") || fti_str_is(type, "mmproj"))
        return refuse(r, FTK_E_CKPT_PROJECTOR,
                      "is a vision projector (mmproj), not a language model: give the model file "
                      "itself");
    return FTK_OK;
}

static ftk_status find_alignment(reader *r) {
    static const char key[] = "general.alignment";
    const fti_meta *meta = fti_checkpoint_find_meta(r->c, fti_str(key));
    uint64_t value = DEFAULT_ALIGNMENT;
    if (meta && meta->type != FTI_META_U32)
        return fti_checkpoint_fail(r->c, r->err, FTK_E_CKPT_METADATA,
                                   "key '%s': found %s, wanted UINT32", key,
                                   fti_meta_type_name(meta->type));
    FTI_TRY(optional_u64(r, key, UINT32_MAX, &value));
    if (value == 0 || (value & (value - 1)) != 0 || value > MAX_ALIGNMENT)
        return fti_checkpoint_fail(r->c, r->err, FTK_E_CKPT_METADATA,
                                   "key '%s': found %" PRIu64
                                   ", wanted a power of two from 1 to %u",
                                   key, value, MAX_ALIGNMENT);
    r->alignment = value;
    return FTK_OK;
}

/* ---- tensors ---- */

static ftk_status read_dims(reader *r, fti_tensor *tensor) {
    uint64_t elements = 1;
    FTI_TRY(take_u32(r, "number of dimensions", &tensor->n_dims));
    if (tensor->n_dims < 1 || tensor->n_dims > 4)
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "has %" PRIu32 " dimensions, wanted 1 to 4: the file is damaged",
                      tensor->n_dims);
    for (uint32_t i = 0; i < 4; i++) tensor->dims[i] = 1;
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        FTI_TRY(take_u64(r, "dimension", &tensor->dims[i]));
        if (tensor->dims[i] == 0)
            return refuse(r, FTK_E_CKPT_FORMAT,
                          "dimension %" PRIu32 " is 0, wanted at least 1: the file is damaged", i);
        if (!fti_mul_u64(elements, tensor->dims[i], &elements) || elements > INT64_MAX)
            return refuse(r, FTK_E_CKPT_FORMAT,
                          "dimension %" PRIu32 " is %" PRIu64
                          ": the number of elements overflows, the file is damaged",
                          i, tensor->dims[i]);
    }
    return FTK_OK;
}

static ftk_status size_tensor(const reader *r, fti_tensor *tensor) {
    uint32_t elements, bytes;
    if (!fti_type_block(tensor->type, &elements, &bytes))
        return refuse(r, FTK_E_CKPT_TYPE,
                      "type %" PRIu32
                      " (%s) is unknown or was removed from the format: use a file quantised to a "
                      "current type, such as Q4_K",
                      tensor->type, fti_type_name(tensor->type));
    if (tensor->dims[0] % elements != 0)
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "row length %" PRIu64 " is not a multiple of %s's block size %" PRIu32
                      ": the file is damaged, quantise the model again",
                      tensor->dims[0], fti_type_name(tensor->type), elements);
    bool fits = fti_mul_u64(tensor->dims[0] / elements, bytes, &tensor->row_bytes);
    tensor->bytes = tensor->row_bytes;
    for (unsigned i = 1; i < 4; i++)
        fits = fits && fti_mul_u64(tensor->bytes, tensor->dims[i], &tensor->bytes);
    if (!fits)
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "the size in bytes overflows 64 bits: the file is damaged");
    return FTK_OK;
}

/* The offset stays as stored, from the start of the data, until all infos are
 * read and that start is known. */
static ftk_status read_tensor(reader *r, fti_tensor *tensor) {
    FTI_TRY(take_name(r, MAX_TENSOR_NAME));
    tensor->name = r->name;
    FTI_TRY(read_dims(r, tensor));
    FTI_TRY(take_u32(r, "type", &tensor->type));
    FTI_TRY(take_u64(r, "offset", &tensor->offset));
    FTI_TRY(size_tensor(r, tensor));
    if (tensor->offset % r->alignment != 0)
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "offset %" PRIu64 " is not a multiple of the alignment %" PRIu64
                      ": the file is damaged",
                      tensor->offset, r->alignment);
    return FTK_OK;
}

static ftk_status read_tensors(reader *r, size_t count) {
    fti_checkpoint *c = r->c;
    c->tensors = fti_calloc(count, sizeof *c->tensors);
    if (!c->tensors) return fti_no_memory(r->err, count * sizeof *c->tensors, "tensor infos");
    if (!fti_index_init(&c->tensor_index, c->tensors, sizeof *c->tensors, count))
        return fti_no_memory(r->err, fti_index_slots(count) * sizeof(uint32_t), "tensor index");
    for (size_t i = 0; i < count; i++) {
        enter(r, "tensor", i);
        FTI_TRY(read_tensor(r, &c->tensors[i]));
        FTI_TRY(add_name(r, &c->tensor_index, i));
        c->tensor_count = i + 1;
    }
    return FTK_OK;
}

static uint64_t add_saturating(uint64_t a, uint64_t b) {
    uint64_t sum;
    return fti_add_u64(a, b, &sum) ? sum : UINT64_MAX;
}

static uint64_t end_in_file(const reader *r, const fti_tensor *tensor) {
    return add_saturating(add_saturating(r->data_offset, tensor->offset), tensor->bytes);
}

/* All tensors are asked before one is blamed, so that the message can tell how
 * long the file should have been. */
static ftk_status check_ends(reader *r) {
    const fti_checkpoint *c = r->c;
    uint64_t wanted = r->data_offset;
    const fti_tensor *outside = NULL;
    for (size_t i = 0; i < c->tensor_count; i++) {
        uint64_t end = end_in_file(r, &c->tensors[i]);
        if (end > wanted) wanted = end;
        if (end > c->size && !outside) outside = &c->tensors[i];
    }
    if (!outside) return FTK_OK;
    r->kind = "tensor";
    r->name = outside->name;
    return refuse(r, FTK_E_CKPT_TRUNCATED,
                  "its data lie outside the file: expected at least %" PRIu64
                  " bytes, the file has %" PRIu64
                  ": it was cut short or is damaged, fetch it again",
                  wanted, c->size);
}

static ftk_status place_tensors(reader *r) {
    fti_checkpoint *c = r->c;
    if (c->tensor_count == 0) return FTK_OK;
    /* A start past the end needs no check of its own: then no tensor fits. */
    if (!fti_align_u64(r->pos, r->alignment, &r->data_offset)) r->data_offset = UINT64_MAX;
    FTI_TRY(check_ends(r));
    for (size_t i = 0; i < c->tensor_count; i++) c->tensors[i].offset += r->data_offset;
    return FTK_OK;
}

static int by_offset(const void *a, const void *b, void *tensors) {
    const fti_tensor *x = (const fti_tensor *)tensors + *(const uint32_t *)a;
    const fti_tensor *y = (const fti_tensor *)tensors + *(const uint32_t *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static ftk_status find_overlap(reader *r, const uint32_t *order) {
    const fti_checkpoint *c = r->c;
    for (size_t i = 1; i < c->tensor_count; i++) {
        const fti_tensor *before = &c->tensors[order[i - 1]];
        const fti_tensor *after = &c->tensors[order[i]];
        if (before->offset + before->bytes <= after->offset) continue;
        r->kind = "tensor";
        r->name = after->name;
        return refuse(r, FTK_E_CKPT_FORMAT,
                      "its data at byte %" PRIu64 " overlap those of tensor '%s', which end at "
                      "%" PRIu64 ": the file is damaged",
                      after->offset, fti_show(before->name).text, before->offset + before->bytes);
    }
    return FTK_OK;
}

static ftk_status check_overlaps(reader *r) {
    fti_checkpoint *c = r->c;
    uint32_t *order = fti_calloc(c->tensor_count, sizeof *order);
    if (!order)
        return fti_no_memory(r->err, c->tensor_count * sizeof *order, "the order of tensors");
    for (size_t i = 0; i < c->tensor_count; i++) order[i] = (uint32_t)i;
    qsort_r(order, c->tensor_count, sizeof *order, by_offset, c->tensors);
    ftk_status status = find_overlap(r, order);
    fti_free(order);
    return status;
}

/* Version 1 blocks hold their scales in another form; read as version 2 they would
 * give noise instead of an error. */
ftk_status fti_gguf_check_quantization(const fti_checkpoint *c, ftk_error *err) {
    uint64_t version = 2;
    ftk_status status = fti_meta_get_u64(c, fti_str("general.quantization_version"), 0, UINT64_MAX,
                                         &version, err);
    if (status != FTK_E_NOT_FOUND) FTI_TRY(status);
    for (size_t i = 0; version != 2 && i < c->tensor_count; i++) {
        uint32_t elements, bytes;
        if (fti_type_block(c->tensors[i].type, &elements, &bytes) && elements > 1)
            return fti_checkpoint_fail(c, err, FTK_E_CKPT_METADATA,
                                       "key 'general.quantization_version': found %" PRIu64
                                       ", wanted 2: quantise the model again with a current tool",
                                       version);
    }
    return FTK_OK;
}

ftk_status fti_gguf_parse(fti_checkpoint *checkpoint, ftk_error *err) {
    reader r = {.c = checkpoint, .err = err};
    size_t tensors = 0, keys = 0;
    FTI_TRY(read_header(&r, &tensors, &keys));
    FTI_TRY(read_keys(&r, keys));
    FTI_TRY(read_split(&r));
    FTI_TRY(check_architecture(&r));
    FTI_TRY(find_alignment(&r));
    FTI_TRY(read_tensors(&r, tensors));
    FTI_TRY(fti_gguf_check_quantization(checkpoint, err));
    FTI_TRY(place_tensors(&r));
    return check_overlaps(&r);
}
