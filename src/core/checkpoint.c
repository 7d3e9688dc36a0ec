/*
 * checkpoint.c: the container-independent half of a checkpoint: who owns path
 * and mapping, finding the shards of a split model, finding records by name, typed
 * metadata, the table of tensor types. What is in a file is gguf.c's business.
 */
#include "core/checkpoint.h"
#include "core/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read as stored");
_Static_assert(sizeof(size_t) == 8, "offsets into a mapping are 64-bit");
_Static_assert(offsetof(fti_meta, key) == 0 && offsetof(fti_tensor, name) == 0,
               "the name index finds names at the start of records");

/* ---- messages ---- */

ftk_status fti_checkpoint_fail(const fti_checkpoint *checkpoint, ftk_error *err, ftk_status status,
                               const char *format, ...) {
    ftk_error inner = FTK_ERROR_INIT;
    va_list args;
    va_start(args, format);
    fti_failv(&inner, status, format, args);
    va_end(args);
    return fti_fail(err, status, "%s: %-s", checkpoint->path, inner.message);
}

/* ---- name index ---- */

/* With half of the slots free, honest names stay within some sixty steps of their
 * slot even at the largest counts; names made to collide would turn every search
 * into a scan. */
#define MAX_PROBES 512u

bool fti_index_init(fti_name_index *index, const void *records, size_t stride, size_t count) {
    uint64_t slots = fti_index_slots(count);
    index->slots = fti_calloc((size_t)slots, sizeof *index->slots);
    index->records = records;
    index->stride = stride;
    index->mask = slots - 1;
    return index->slots != NULL;
}

static ftk_str record_name(const fti_name_index *index, size_t record) {
    ftk_str name;
    memcpy(&name, (const char *)index->records + record * index->stride, sizeof name);
    return name;
}

static uint64_t first_slot(const fti_name_index *index, ftk_str name) {
    return XXH3_64bits(name.data, (size_t)name.size) & index->mask;
}

fti_index_result fti_index_add(fti_name_index *index, size_t record, size_t *duplicate_of) {
    ftk_str name = record_name(index, record);
    uint64_t slot = first_slot(index, name);
    for (unsigned probe = 0; probe < MAX_PROBES; probe++) {
        uint32_t entry = index->slots[slot];
        if (entry == 0) {
            index->slots[slot] = (uint32_t)record + 1;
            return FTI_INDEX_ADDED;
        }
        if (fti_str_eq(record_name(index, entry - 1), name)) {
            *duplicate_of = entry - 1;
            return FTI_INDEX_DUPLICATE;
        }
        slot = (slot + 1) & index->mask;
    }
    return FTI_INDEX_CROWDED;
}

bool fti_index_find(const fti_name_index *index, ftk_str name, size_t *record) {
    uint64_t slot = first_slot(index, name);
    for (uint32_t entry; (entry = index->slots[slot]) != 0; slot = (slot + 1) & index->mask) {
        if (!fti_str_eq(record_name(index, entry - 1), name)) continue;
        *record = entry - 1;
        return true;
    }
    return false;
}

/* ---- opening and closing ---- */

/* NULL, with the message written, if there is no memory. */
static fti_checkpoint *new_checkpoint(const char *path, ftk_error *err) {
    fti_checkpoint *c = fti_calloc(1, sizeof *c);
    char *copy = fti_strndup(path, strlen(path));
    if (!c || !copy) {
        fti_free(c);
        fti_free(copy);
        fti_no_memory(err, sizeof *c + strlen(path), "a checkpoint");
        return NULL;
    }
    c->path = copy;
    c->descriptor = -1;
    return c;
}

static const char *kind_of_file(mode_t mode) {
    switch (mode & S_IFMT) {
    case S_IFDIR: return "directory";
    case S_IFIFO: return "FIFO";
    case S_IFSOCK: return "socket";
    default: return "device";
    }
}

static ftk_status fail_errno(const fti_checkpoint *c, ftk_error *err, const char *what) {
    char buffer[128];
    return fti_checkpoint_fail(c, err, FTK_E_CKPT_READ, "cannot %s the checkpoint: %s", what,
                               strerror_r(errno, buffer, sizeof buffer));
}

static ftk_status map_descriptor(fti_checkpoint *c, int fd, ftk_error *err) {
    struct stat status;
    if (fstat(fd, &status) != 0) return fail_errno(c, err, "examine");
    if (!S_ISREG(status.st_mode))
        return fti_checkpoint_fail(c, err, FTK_E_CKPT_READ,
                                   "is a %s, wanted a regular file: give the model file itself",
                                   kind_of_file(status.st_mode));
    c->size = (uint64_t)status.st_size;
    if (c->size == 0) return FTK_OK; /* cannot be mapped; the parser refuses it by size */
    void *data = mmap(NULL, (size_t)c->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) return fail_errno(c, err, "map");
    (void)madvise(data, (size_t)c->size, MADV_HUGEPAGE); /* a wish; some systems read so too */
    c->data = data;
    c->mapped = true;
    return FTK_OK;
}

/* O_NONBLOCK and O_NOCTTY: a FIFO or terminal must be refused, not waited for. The descriptor
 * stays: who reads the file later reads the one that was judged, whatever its path then names. */
static ftk_status map_file(fti_checkpoint *c, ftk_error *err) {
    c->descriptor = open(c->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (c->descriptor < 0) return fail_errno(c, err, "open");
    return map_descriptor(c, c->descriptor, err);
}

/* One file, complete or a shard. */
static ftk_status open_file(const char *path, fti_checkpoint **out, ftk_error *err) {
    fti_checkpoint *c = new_checkpoint(path, err);
    if (!c) return FTK_E_NO_MEMORY;
    ftk_status status = map_file(c, err);
    if (status == FTK_OK) status = fti_gguf_parse(c, err);
    if (status == FTK_OK)
        *out = c;
    else
        fti_checkpoint_close(c);
    return status;
}

void fti_checkpoint_close(fti_checkpoint *checkpoint) {
    if (!checkpoint) return;
    for (uint64_t i = 1; checkpoint->shards && i < checkpoint->split_count; i++)
        fti_checkpoint_close(checkpoint->shards[i]);
    fti_free(checkpoint->shards);
    /* A private read-only mapping that we made: unmapping it cannot fail. */
    if (checkpoint->mapped) munmap((void *)(uintptr_t)checkpoint->data, (size_t)checkpoint->size);
    if (checkpoint->descriptor >= 0) close(checkpoint->descriptor);
    fti_free(checkpoint->meta_index.slots);
    fti_free(checkpoint->tensor_index.slots);
    fti_free(checkpoint->metas);
    fti_free(checkpoint->tensors);
    fti_free(checkpoint->path);
    fti_free(checkpoint);
}

/* ---- the shards of a split model ---- */

/* The search for the shards that belong to one of them. */
typedef struct shard_search {
    const fti_checkpoint *given;
    size_t prefix; /* bytes of its path that all of them share */
    char *path;    /* room for theirs */
    fti_checkpoint **found;
    uint64_t count;
    uint64_t faulty;
    ftk_status status; /* of the first one that is at fault */
    char list[640];    /* of those that are, as far as there is room */
    size_t used;
    uint64_t listed;
} shard_search;

#define SUFFIX_ROOM 40 /* "-12345-of-12345.gguf" */

static void shard_suffix(uint64_t number, uint64_t count, char suffix[SUFFIX_ROOM]) {
    snprintf(suffix, SUFFIX_ROOM, "-%05u-of-%05u.gguf", (unsigned)number + 1, (unsigned)count);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void blame(shard_search *s, uint64_t number, ftk_status status, const char *format, ...)
    FTI_PRINTF(4, 5);

static void blame(shard_search *s, uint64_t number, ftk_status status, const char *format, ...) {
    char entry[320], text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *name = base_name(s->path);
    const char *tail = strlen(name) > 80 ? name + strlen(name) - 80 : name;
    int n = snprintf(entry, sizeof entry, "%s%" PRIu64 " ('%s%s') %s", s->faulty ? "; " : "",
                     number + 1, tail == name ? "" : "...", tail, text);
    if (s->faulty++ == 0) s->status = status;
    if (s->listed + 1 != s->faulty || s->used + (size_t)n >= sizeof s->list) return;
    memcpy(s->list + s->used, entry, (size_t)n + 1);
    s->used += (size_t)n;
    s->listed++;
}

/* What a message says after the path that it begins with, of which it shows at least the end. */
static const char *after_path(const char *message, const char *path) {
    size_t n = strlen(path);
    const char *end = path + (n > 40 ? n - 40 : 0);
    while (((unsigned char)*end & 0xC0u) == 0x80u) end++;
    const fti_shown shown = fti_show(fti_str(end));
    const char *at = strstr(message, shown.text);
    if (!at || strncmp(at + strlen(shown.text), ": ", 2) != 0) return message;
    return at + strlen(shown.text) + 2;
}

/* Names that shards of one model share, where a later one states them at all. */
static const char *foreign_name(const fti_checkpoint *shard, const fti_checkpoint *given) {
    static const char *const keys[] = {"general.architecture", "general.name", "general.file_type",
                                       "general.quantization_version"};
    for (size_t i = 0; i < FTI_COUNT(keys); i++) {
        const fti_meta *a = fti_checkpoint_find_meta(shard, fti_str(keys[i]));
        const fti_meta *b = fti_checkpoint_find_meta(given, fti_str(keys[i]));
        if (!a || !b) continue;
        if (a->type != b->type || a->bytes != b->bytes ||
            memcmp(a->data, b->data, (size_t)a->bytes) != 0)
            return keys[i];
    }
    return NULL;
}

static void judge_shard(shard_search *s, uint64_t number, const fti_checkpoint *shard) {
    const fti_checkpoint *given = s->given;
    const char *key = foreign_name(shard, given);
    if (shard->split_count != s->count || shard->split_number != number)
        blame(s, number, FTK_E_CKPT_FORMAT, "says that it is shard %" PRIu64 " of %" PRIu64,
              shard->split_number + 1, shard->split_count);
    else if (shard->split_tensors != given->split_tensors)
        blame(s, number, FTK_E_CKPT_FORMAT,
              "belongs to a model of %" PRIu64 " tensors, '%.60s' to one of %" PRIu64,
              shard->split_tensors, base_name(given->path), given->split_tensors);
    else if (key)
        blame(s, number, FTK_E_CKPT_FORMAT,
              "belongs to another model or quantisation: its %s is not that of '%.60s'", key,
              base_name(given->path));
}

/* Fails for lack of memory only; other faults are collected. */
static ftk_status look_for_shard(shard_search *s, uint64_t number, ftk_error *err) {
    ftk_error why = FTK_ERROR_INIT;
    shard_suffix(number, s->count, s->path + s->prefix);
    if (access(s->path, F_OK) != 0 && errno == ENOENT) {
        blame(s, number, FTK_E_CKPT_READ, "is missing");
        return FTK_OK;
    }
    ftk_status status = open_file(s->path, &s->found[number], &why);
    if (status == FTK_E_NO_MEMORY) return fti_fail(err, status, "%-s", why.message);
    if (status != FTK_OK)
        blame(s, number, status, "cannot be used: %s", after_path(why.message, s->path));
    else
        judge_shard(s, number, s->found[number]);
    return FTK_OK;
}

static ftk_status report_search(const shard_search *s, ftk_error *err) {
    char more[48] = "";
    size_t folder = (size_t)(base_name(s->given->path) - s->given->path);
    const char *from = folder > 100 ? s->given->path + folder - 100 : s->given->path;
    if (s->listed < s->faulty)
        snprintf(more, sizeof more, "%s%" PRIu64 " more", s->listed ? "; and " : "",
                 s->faulty - s->listed);
    return fti_checkpoint_fail(s->given, err, s->status,
                               "%" PRIu64 " of %" PRIu64
                               " shards are at fault, searched in '%s%.*s': %s%s: fetch %s again",
                               s->faulty, s->count, from == s->given->path ? "" : "...",
                               folder ? (int)(s->given->path + folder - from) : 2,
                               folder ? from : "./", s->list, more, s->faulty == 1 ? "it" : "them");
}

static ftk_status prepare_search(shard_search *s, ftk_error *err) {
    const fti_checkpoint *c = s->given;
    char suffix[SUFFIX_ROOM];
    shard_suffix(c->split_number, c->split_count, suffix);
    size_t length = strlen(c->path), tail = strlen(suffix);
    if (length < tail || strcmp(c->path + length - tail, suffix) != 0) {
        char first[SUFFIX_ROOM];
        shard_suffix(0, c->split_count, first);
        fti_checkpoint_fail(c, err, FTK_E_CKPT_READ,
                            "is shard %" PRIu64 " of %" PRIu64 ", whose name ends in '%s' "
                            "where the model was split: give the shard whose name ends in "
                            "'%s', or rename the shards",
                            c->split_number + 1, c->split_count, suffix, first);
        return FTK_E_CKPT_READ;
    }
    s->count = c->split_count;
    s->prefix = length - tail;
    s->path = fti_calloc(s->prefix + SUFFIX_ROOM, 1);
    s->found = fti_calloc((size_t)s->count, sizeof(void *));
    if (!s->path || !s->found) {
        fti_no_memory(err, s->count * sizeof(void *) + s->prefix, "the table of shards");
        return FTK_E_NO_MEMORY;
    }
    memcpy(s->path, c->path, s->prefix);
    return FTK_OK;
}

/* Makes the first shard hold the tensors of all. */
static ftk_status join_tensors(fti_checkpoint *c, ftk_error *err) {
    uint64_t total = 0;
    for (uint64_t i = 0; i < c->split_count; i++) total += c->shards[i]->tensor_count;
    if (c->split_tensors != 0 && total != c->split_tensors)
        return fti_checkpoint_fail(c, err, FTK_E_CKPT_FORMAT,
                                   "its %" PRIu64 " shards hold %" PRIu64
                                   " tensors, wanted %" PRIu64
                                   " (split.tensors.count): a shard of another model or "
                                   "quantisation is among them, fetch them again",
                                   c->split_count, total, c->split_tensors);
    if (total > FTI_GGUF_MAX_TENSORS)
        return fti_checkpoint_fail(c, err, FTK_E_CKPT_FORMAT,
                                   "its shards hold %" PRIu64 " tensors, wanted at most %u", total,
                                   FTI_GGUF_MAX_TENSORS);
    fti_tensor *all = fti_calloc((size_t)total, sizeof *all);
    if (!all) return fti_no_memory(err, total * sizeof *all, "tensor infos");
    size_t at = 0;
    for (uint64_t i = 0; i < c->split_count; i++)
        for (size_t j = 0; j < c->shards[i]->tensor_count; j++) {
            all[at] = c->shards[i]->tensors[j];
            all[at++].shard = i;
        }
    fti_free(c->tensors);
    c->tensors = all;
    c->tensor_count = at;
    return FTK_OK;
}

static ftk_status index_tensors(fti_checkpoint *c, ftk_error *err) {
    fti_free(c->tensor_index.slots);
    if (!fti_index_init(&c->tensor_index, c->tensors, sizeof *c->tensors, c->tensor_count))
        return fti_no_memory(err, c->tensor_count * sizeof(uint32_t), "tensor index");
    for (size_t i = 0; i < c->tensor_count; i++) {
        size_t first = 0;
        fti_index_result result = fti_index_add(&c->tensor_index, i, &first);
        if (result == FTI_INDEX_ADDED) continue;
        const char *name = base_name(c->shards[c->tensors[i].shard]->path);
        if (result == FTI_INDEX_CROWDED)
            return fti_checkpoint_fail(c, err, FTK_E_CKPT_FORMAT,
                                       "too many names with one hash: the shards were made to slow "
                                       "readers down");
        return fti_checkpoint_fail(
            c, err, FTK_E_CKPT_FORMAT,
            "tensor '%s' is in shard %" PRIu64 " and in shard %" PRIu64
            " ('%.100s'): one of them belongs to another model or quantisation, fetch them again",
            fti_show(c->tensors[i].name).text, c->tensors[first].shard + 1, c->tensors[i].shard + 1,
            name);
    }
    return FTK_OK;
}

/* Takes the shard that was given and leaves the first one, complete, in its place;
 * after a failure all are closed. */
static ftk_status gather_shards(fti_checkpoint **given, ftk_error *err) {
    shard_search s = {.given = *given};
    uint64_t own = (*given)->split_number;
    ftk_status status = prepare_search(&s, err);
    for (uint64_t i = 0; status == FTK_OK && i < s.count; i++)
        if (i != own) status = look_for_shard(&s, i, err);
    if (status == FTK_OK && s.faulty > 0) status = report_search(&s, err);
    fti_free(s.path);
    if (status != FTK_OK) {
        for (uint64_t i = 0; s.found && i < s.count; i++) fti_checkpoint_close(s.found[i]);
        fti_free(s.found);
        fti_checkpoint_close(*given);
        return status;
    }
    s.found[own] = *given;
    fti_checkpoint *first = s.found[0];
    first->shards = s.found;
    status = join_tensors(first, err);
    if (status == FTK_OK) status = index_tensors(first, err);
    if (status == FTK_OK) status = fti_gguf_check_quantization(first, err);
    if (status == FTK_OK)
        *given = first;
    else
        fti_checkpoint_close(first);
    return status;
}

ftk_status fti_checkpoint_open(const char *path, fti_checkpoint **out, ftk_error *err) {
    if (out) *out = NULL;
    if (!path || !out)
        return fti_fail(err, FTK_E_ARGUMENT, "fti_checkpoint_open: path or out is NULL");
    fti_checkpoint *c;
    FTI_TRY(open_file(path, &c, err));
    if (c->split_count > 1) FTI_TRY(gather_shards(&c, err));
    *out = c;
    return FTK_OK;
}

ftk_status fti_checkpoint_from_memory(const void *data, size_t size, const char *name,
                                      fti_checkpoint **out, ftk_error *err) {
    if (out) *out = NULL;
    if (!name || !out || (!data && size > 0))
        return fti_fail(err, FTK_E_ARGUMENT,
                        "fti_checkpoint_from_memory: data, name or out is NULL");
    fti_checkpoint *c = new_checkpoint(name, err);
    if (!c) return FTK_E_NO_MEMORY;
    c->data = data;
    c->size = size;
    ftk_status status = fti_gguf_parse(c, err);
    if (status == FTK_OK && c->split_count > 1)
        status = fti_checkpoint_fail(c, err, FTK_E_CKPT_READ,
                                     "is shard %" PRIu64 " of %" PRIu64 " of a split model, whose "
                                     "others cannot be found from memory: open it by its path",
                                     c->split_number + 1, c->split_count);
    if (status == FTK_OK)
        *out = c;
    else
        fti_checkpoint_close(c);
    return status;
}

/* ---- what is in it ---- */

const char *fti_checkpoint_path(const fti_checkpoint *checkpoint) {
    return checkpoint->path;
}

const char *fti_checkpoint_container(const fti_checkpoint *checkpoint) {
    (void)checkpoint; /* one container so far */
    return "gguf";
}

unsigned fti_checkpoint_version(const fti_checkpoint *checkpoint) {
    return checkpoint->version;
}

uint64_t fti_checkpoint_file_bytes(const fti_checkpoint *checkpoint) {
    uint64_t bytes = checkpoint->size;
    for (uint64_t i = 1; checkpoint->shards && i < checkpoint->split_count; i++)
        bytes += checkpoint->shards[i]->size;
    return bytes;
}

uint64_t fti_checkpoint_shard_count(const fti_checkpoint *checkpoint) {
    return checkpoint->split_count;
}

bool fti_checkpoint_shard(const fti_checkpoint *checkpoint, uint64_t number, fti_shard *out) {
    if (number >= checkpoint->split_count) return false;
    const fti_checkpoint *c = checkpoint->shards ? checkpoint->shards[number] : checkpoint;
    *out = (fti_shard){c->path, c->data, c->size, c->descriptor};
    return true;
}

size_t fti_checkpoint_meta_count(const fti_checkpoint *checkpoint) {
    return checkpoint->meta_count;
}

const fti_meta *fti_checkpoint_meta(const fti_checkpoint *checkpoint, size_t index) {
    return index < checkpoint->meta_count ? &checkpoint->metas[index] : NULL;
}

const fti_meta *fti_checkpoint_find_meta(const fti_checkpoint *checkpoint, ftk_str key) {
    size_t index;
    if (!fti_index_find(&checkpoint->meta_index, key, &index)) return NULL;
    return &checkpoint->metas[index];
}

size_t fti_checkpoint_tensor_count(const fti_checkpoint *checkpoint) {
    return checkpoint->tensor_count;
}

const fti_tensor *fti_checkpoint_tensor(const fti_checkpoint *checkpoint, size_t index) {
    return index < checkpoint->tensor_count ? &checkpoint->tensors[index] : NULL;
}

bool fti_checkpoint_find_tensor(const fti_checkpoint *checkpoint, ftk_str name, size_t *index) {
    return fti_index_find(&checkpoint->tensor_index, name, index);
}

const void *fti_checkpoint_payload(const fti_checkpoint *checkpoint, size_t index) {
    const fti_tensor *tensor = fti_checkpoint_tensor(checkpoint, index);
    if (!tensor) return NULL;
    const uint8_t *data = tensor->shard == 0 ? checkpoint->data
                                             : checkpoint->shards[tensor->shard]->data;
    return data + tensor->offset;
}

/* ---- typed metadata ---- */

static const struct {
    const char *name;
    uint32_t bytes;
} meta_types[FTI_META_TYPES] = {
    [FTI_META_U8] = {"UINT8", 1},      [FTI_META_I8] = {"INT8", 1},
    [FTI_META_U16] = {"UINT16", 2},    [FTI_META_I16] = {"INT16", 2},
    [FTI_META_U32] = {"UINT32", 4},    [FTI_META_I32] = {"INT32", 4},
    [FTI_META_F32] = {"FLOAT32", 4},   [FTI_META_BOOL] = {"BOOL", 1},
    [FTI_META_STRING] = {"STRING", 0}, [FTI_META_ARRAY] = {"ARRAY", 0},
    [FTI_META_U64] = {"UINT64", 8},    [FTI_META_I64] = {"INT64", 8},
    [FTI_META_F64] = {"FLOAT64", 8},
};

const char *fti_meta_type_name(uint32_t type) {
    return type < FTI_META_TYPES ? meta_types[type].name : NULL;
}

uint32_t fti_meta_type_bytes(uint32_t type) {
    return type < FTI_META_TYPES ? meta_types[type].bytes : 0;
}

static ftk_status wrong_type(const fti_checkpoint *c, const fti_meta *meta, const char *wanted,
                             ftk_error *err) {
    bool array = meta->type == FTI_META_ARRAY;
    return fti_checkpoint_fail(c, err, FTK_E_CKPT_METADATA, "key '%s': found %s%s, wanted %s",
                               fti_show(meta->key).text, array ? "an array of " : "",
                               meta_types[array ? meta->element_type : meta->type].name, wanted);
}

/* An integer of any width: its 64 bits, and whether they are to be read as a
 * negative number. */
typedef struct integer {
    uint64_t bits;
    bool negative;
} integer;

static int64_t sign_extend(uint64_t bits, uint32_t bytes) {
    unsigned shift = 64 - 8 * bytes;
    return (int64_t)(bits << shift) >> shift;
}

static bool load_integer(uint32_t type, const uint8_t *data, integer *value) {
    switch (type) {
    case FTI_META_U8:
    case FTI_META_U16:
    case FTI_META_U32:
    case FTI_META_U64:
    case FTI_META_I8:
    case FTI_META_I16:
    case FTI_META_I32:
    case FTI_META_I64: break;
    default: return false;
    }
    uint32_t bytes = meta_types[type].bytes;
    integer v = {0, false};
    memcpy(&v.bits, data, bytes);
    if (type == FTI_META_I8 || type == FTI_META_I16 || type == FTI_META_I32 ||
        type == FTI_META_I64) {
        int64_t extended = sign_extend(v.bits, bytes);
        v.bits = (uint64_t)extended;
        v.negative = extended < 0;
    }
    *value = v;
    return true;
}

ftk_status fti_meta_get_u64(const fti_checkpoint *checkpoint, ftk_str key, uint64_t min,
                            uint64_t max, uint64_t *value, ftk_error *err) {
    const fti_meta *meta = fti_checkpoint_find_meta(checkpoint, key);
    if (!meta) return FTK_E_NOT_FOUND;
    integer v;
    if (!load_integer(meta->type, meta->data, &v))
        return wrong_type(checkpoint, meta, "an integer", err);
    if (v.negative)
        return fti_checkpoint_fail(checkpoint, err, FTK_E_CKPT_METADATA,
                                   "key '%s': found %" PRId64 ", wanted %" PRIu64 " to %" PRIu64,
                                   fti_show(key).text, (int64_t)v.bits, min, max);
    if (v.bits < min || v.bits > max)
        return fti_checkpoint_fail(checkpoint, err, FTK_E_CKPT_METADATA,
                                   "key '%s': found %" PRIu64 ", wanted %" PRIu64 " to %" PRIu64,
                                   fti_show(key).text, v.bits, min, max);
    *value = v.bits;
    return FTK_OK;
}

ftk_status fti_meta_get_f64(const fti_checkpoint *checkpoint, ftk_str key, double *value,
                            ftk_error *err) {
    const fti_meta *meta = fti_checkpoint_find_meta(checkpoint, key);
    if (!meta) return FTK_E_NOT_FOUND;
    if (meta->type == FTI_META_F32) {
        float narrow;
        memcpy(&narrow, meta->data, sizeof narrow);
        *value = (double)narrow;
        return FTK_OK;
    }
    if (meta->type != FTI_META_F64) return wrong_type(checkpoint, meta, "FLOAT32 or FLOAT64", err);
    memcpy(value, meta->data, sizeof *value);
    return FTK_OK;
}

ftk_status fti_meta_get_bool(const fti_checkpoint *checkpoint, ftk_str key, bool *value,
                             ftk_error *err) {
    const fti_meta *meta = fti_checkpoint_find_meta(checkpoint, key);
    if (!meta) return FTK_E_NOT_FOUND;
    if (meta->type != FTI_META_BOOL) return wrong_type(checkpoint, meta, "BOOL", err);
    *value = meta->data[0] != 0;
    return FTK_OK;
}

ftk_status fti_meta_get_str(const fti_checkpoint *checkpoint, ftk_str key, ftk_str *value,
                            ftk_error *err) {
    const fti_meta *meta = fti_checkpoint_find_meta(checkpoint, key);
    if (!meta) return FTK_E_NOT_FOUND;
    if (meta->type != FTI_META_STRING) return wrong_type(checkpoint, meta, "STRING", err);
    value->data = (const char *)meta->data;
    value->size = meta->bytes;
    return FTK_OK;
}

ftk_status fti_meta_get_count(const fti_checkpoint *checkpoint, ftk_str key, uint64_t *count,
                              ftk_error *err) {
    const fti_meta *meta = fti_checkpoint_find_meta(checkpoint, key);
    if (!meta) return FTK_E_NOT_FOUND;
    if (meta->type != FTI_META_ARRAY) return wrong_type(checkpoint, meta, "an array", err);
    *count = meta->count;
    return FTK_OK;
}

ftk_status fti_meta_get_i64_at(const fti_checkpoint *checkpoint, ftk_str key, uint64_t index,
                               int64_t *value, ftk_error *err) {
    const fti_meta *meta = fti_checkpoint_find_meta(checkpoint, key);
    if (!meta) return FTK_E_NOT_FOUND;
    /* A boolean is stored as a byte of 0 or 1. */
    uint32_t type = meta->element_type == FTI_META_BOOL ? FTI_META_U8 : meta->element_type;
    integer v;
    if (meta->type != FTI_META_ARRAY || fti_meta_type_bytes(type) == 0)
        return wrong_type(checkpoint, meta, "an array of integers or booleans", err);
    if (index >= meta->count)
        return fti_checkpoint_fail(checkpoint, err, FTK_E_CKPT_METADATA,
                                   "key '%s': the array has %" PRIu64
                                   " elements, wanted one at index %" PRIu64,
                                   fti_show(key).text, meta->count, index);
    if (!load_integer(type, meta->data + index * meta_types[type].bytes, &v))
        return wrong_type(checkpoint, meta, "an array of integers or booleans", err);
    if (!v.negative && v.bits > INT64_MAX)
        return fti_checkpoint_fail(checkpoint, err, FTK_E_CKPT_METADATA,
                                   "key '%s': element %" PRIu64 " is %" PRIu64
                                   ", wanted at most %" PRId64,
                                   fti_show(key).text, index, v.bits, INT64_MAX);
    *value = (int64_t)v.bits;
    return FTK_OK;
}

ftk_status fti_meta_get_strings(const fti_checkpoint *checkpoint, ftk_str key, ftk_str *out,
                                uint64_t count, ftk_error *err) {
    const fti_meta *meta = fti_checkpoint_find_meta(checkpoint, key);
    if (!meta) return FTK_E_NOT_FOUND;
    if (meta->type != FTI_META_ARRAY || meta->element_type != FTI_META_STRING)
        return wrong_type(checkpoint, meta, "an array of STRING", err);
    if (meta->count != count)
        return fti_checkpoint_fail(checkpoint, err, FTK_E_CKPT_METADATA,
                                   "key '%s': the array has %" PRIu64 " strings, wanted %" PRIu64,
                                   fti_show(key).text, meta->count, count);
    const uint8_t *p = meta->data;
    for (uint64_t i = 0; i < count; i++) {
        memcpy(&out[i].size, p, sizeof out[i].size);
        p += sizeof out[i].size;
        out[i].data = (const char *)p;
        p += out[i].size;
    }
    return FTK_OK;
}

/* ---- tensor types ---- */

static const struct {
    const char *name;
    uint32_t elements; /* 0: removed from the format */
    uint32_t bytes;
} tensor_types[] = {
    {"F32", 1, 4},        {"F16", 1, 2},        {"Q4_0", 32, 18},     {"Q4_1", 32, 20},
    {"Q4_2", 0, 0},       {"Q4_3", 0, 0},       {"Q5_0", 32, 22},     {"Q5_1", 32, 24},
    {"Q8_0", 32, 34},     {"Q8_1", 32, 36},     {"Q2_K", 256, 84},    {"Q3_K", 256, 110},
    {"Q4_K", 256, 144},   {"Q5_K", 256, 176},   {"Q6_K", 256, 210},   {"Q8_K", 256, 292},
    {"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74},  {"IQ3_XXS", 256, 98}, {"IQ1_S", 256, 50},
    {"IQ4_NL", 32, 18},   {"IQ3_S", 256, 110},  {"IQ2_S", 256, 82},   {"IQ4_XS", 256, 136},
    {"I8", 1, 1},         {"I16", 1, 2},        {"I32", 1, 4},        {"I64", 1, 8},
    {"F64", 1, 8},        {"IQ1_M", 256, 56},   {"BF16", 1, 2},       {"Q4_0_4_4", 0, 0},
    {"Q4_0_4_8", 0, 0},   {"Q4_0_8_8", 0, 0},   {"TQ1_0", 256, 54},   {"TQ2_0", 256, 66},
    {"IQ4_NL_4_4", 0, 0}, {"IQ4_NL_4_8", 0, 0}, {"IQ4_NL_8_8", 0, 0}, {"MXFP4", 32, 17},
    {"NVFP4", 64, 36},    {"Q1_0", 128, 18},    {"Q2_0", 64, 18},
};

/* Texts for ids that have no name: the function hands out constants and keeps no
 * buffer, so the ids that occur in the wild (forks use up to about 400) are
 * spelled out. */
#define TEN(p)                                                                                     \
    "type " p "0", "type " p "1", "type " p "2", "type " p "3", "type " p "4", "type " p "5",      \
        "type " p "6", "type " p "7", "type " p "8", "type " p "9"
#define HUNDRED(p)                                                                                 \
    TEN(p "0"), TEN(p "1"), TEN(p "2"), TEN(p "3"), TEN(p "4"), TEN(p "5"), TEN(p "6"),            \
        TEN(p "7"), TEN(p "8"), TEN(p "9")
static const char *const unnamed_types[] = {
    TEN(""),  TEN("1"), TEN("2"), TEN("3"),     TEN("4"),     TEN("5"),     TEN("6"),
    TEN("7"), TEN("8"), TEN("9"), HUNDRED("1"), HUNDRED("2"), HUNDRED("3"), HUNDRED("4"),
};
#undef HUNDRED
#undef TEN

const char *fti_type_name(uint32_t type) {
    if (type < FTI_COUNT(tensor_types)) return tensor_types[type].name;
    return type < FTI_COUNT(unnamed_types) ? unnamed_types[type] : "unknown type";
}

bool fti_type_block(uint32_t type, uint32_t *elements, uint32_t *bytes) {
    if (type >= FTI_COUNT(tensor_types) || tensor_types[type].elements == 0) return false;
    *elements = tensor_types[type].elements;
    *bytes = tensor_types[type].bytes;
    return true;
}

uint64_t fti_type_row_bytes(uint32_t type, uint64_t cols) {
    uint32_t elements, bytes;
    uint64_t out;
    if (!fti_type_block(type, &elements, &bytes) || cols == 0 || cols % elements) return 0;
    return fti_mul_u64(cols / elements, bytes, &out) ? out : 0;
}
