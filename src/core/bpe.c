/*
 * bpe.c: byte-pair merging. Owns the byte alphabet, the table of merges and the
 * merging of one piece. Token texts are turned into bytes once, at load; after
 * that everything is ids: a merge is (left id, right id) -> (rank, merged id), and
 * a piece is a linked list of symbols with a heap of possible merges, lowest rank
 * first, then leftmost, so a piece of n bytes costs n log n however long it is.
 */
#include "core/gguf.h"
#include "core/tokenizer_parts.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define NONE UINT32_MAX

/* ---- byte alphabet ---- */

static bool stands_for_itself(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* Byte that a character below U+0180 stands for, or -1. The bytes that do not
 * stand for themselves are, in order, U+0100 onwards. */
static int alphabet_byte(uint32_t character) {
    if (character <= 0xFF) return stands_for_itself(character) ? (int)character : -1;
    uint32_t n = character - 0x100;
    if (n <= 0x20) return (int)n;
    if (n <= 0x41) return (int)(n - 0x21 + 0x7F);
    return n == 0x42 || n == 0x43 ? (n == 0x42 ? 0xA0 : 0xAD) : -1;
}

bool fti_alphabet_decode(ftk_str text, uint8_t *out, size_t *size) {
    const uint8_t *in = (const uint8_t *)text.data;
    size_t n = 0;
    for (uint64_t i = 0; i < text.size; i++) {
        uint32_t character = in[i];
        if (character >= 0x80) {
            bool two = character >= 0xC2 && character <= 0xC5 && i + 1 < text.size &&
                       (in[i + 1] & 0xC0u) == 0x80u;
            if (!two) return false;
            character = (character & 0x1Fu) << 6 | (in[++i] & 0x3Fu);
        }
        int byte = alphabet_byte(character);
        if (byte < 0) return false;
        out[n++] = (uint8_t)byte;
    }
    *size = n;
    return true;
}

/* ---- token texts to ids, needed while loading only ---- */

typedef struct name_slot {
    uint32_t tag; /* high half of the hash: most misses never touch the text */
    uint32_t id_plus_1;
} name_slot;

typedef struct name_table {
    name_slot *slots;
    size_t mask;
    const ftk_str *pieces;
} name_table;

/* Power of two that keeps `count` entries under half load. */
static size_t table_slots(size_t count) {
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    return slots;
}

/* The slot of a text, or the empty one where it belongs. */
static name_slot *find_name(const name_table *table, const void *bytes, size_t size,
                            uint32_t *tag) {
    uint64_t hash = XXH3_64bits(bytes, size);
    ftk_str text = {bytes, size};
    *tag = (uint32_t)(hash >> 32);
    for (size_t i = (size_t)hash & table->mask;; i = (i + 1) & table->mask) {
        name_slot *slot = &table->slots[i];
        if (slot->id_plus_1 == 0) return slot;
        if (slot->tag == *tag && fti_str_eq(table->pieces[slot->id_plus_1 - 1], text)) return slot;
    }
}

static int32_t id_of(const name_table *table, const void *bytes, size_t size) {
    uint32_t tag;
    return (int32_t)find_name(table, bytes, size, &tag)->id_plus_1 - 1;
}

/* Of several tokens with one text the lowest id is used. */
static ftk_status build_names(const fti_bpe_vocabulary *vocabulary, name_table *table,
                              ftk_error *err) {
    size_t slots = table_slots(vocabulary->size);
    table->slots = fti_calloc(slots, sizeof *table->slots);
    if (!table->slots) return fti_no_memory(err, slots * sizeof *table->slots, "the token table");
    table->mask = slots - 1;
    table->pieces = vocabulary->pieces;
    for (size_t id = 0; id < vocabulary->size; id++) {
        ftk_str piece = vocabulary->pieces[id];
        if (!vocabulary->spelled[id] || piece.size == 0) continue;
        uint32_t tag;
        name_slot *slot = find_name(table, piece.data, (size_t)piece.size, &tag);
        if (slot->id_plus_1) continue;
        slot->tag = tag;
        slot->id_plus_1 = (uint32_t)id + 1;
    }
    return FTK_OK;
}

/* ---- merges ---- */

typedef struct merge_slot {
    uint64_t pair;
    uint32_t rank_plus_1; /* 0: empty */
    uint32_t merged;
} merge_slot;

struct fti_bpe {
    merge_slot *merges;
    size_t mask;
    int32_t bytes[256];
};

static uint64_t pair_key(uint32_t left, uint32_t right) {
    return (uint64_t)left << 32 | right;
}

static merge_slot *find_merge(const fti_bpe *bpe, uint64_t pair) {
    uint64_t hash = pair * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
    for (size_t i = (size_t)hash & bpe->mask;; i = (i + 1) & bpe->mask) {
        merge_slot *slot = &bpe->merges[i];
        if (slot->rank_plus_1 == 0 || slot->pair == pair) return slot;
    }
}

/* Place of the space between the parts; a first character is never the border. */
static bool merge_border(ftk_str merge, size_t *border) {
    if (merge.size < 3) return false;
    const char *space = memchr(merge.data + 1, ' ', (size_t)merge.size - 1);
    if (!space) return false;
    *border = (size_t)(space - merge.data);
    return *border + 1 < merge.size;
}

/* `scratch` holds merge.size bytes. A merge that names something outside the
 * vocabulary can never apply, so it is left out. Of two equal merges the first
 * has the rank. */
static void add_merge(fti_bpe *bpe, const name_table *names, ftk_str merge, size_t border,
                      size_t rank, uint8_t *scratch) {
    ftk_str left = {merge.data, border};
    ftk_str right = {merge.data + border + 1, merge.size - border - 1};
    size_t left_size, right_size;
    if (!fti_alphabet_decode(left, scratch, &left_size)) return;
    if (!fti_alphabet_decode(right, scratch + left_size, &right_size)) return;
    int32_t left_id = id_of(names, scratch, left_size);
    int32_t right_id = id_of(names, scratch + left_size, right_size);
    if (left_id < 0 || right_id < 0) return;
    int32_t merged = id_of(names, scratch, left_size + right_size);
    if (merged < 0) return;
    uint64_t pair = pair_key((uint32_t)left_id, (uint32_t)right_id);
    merge_slot *slot = find_merge(bpe, pair);
    if (slot->rank_plus_1) return;
    *slot = (merge_slot){pair, (uint32_t)rank + 1, (uint32_t)merged};
}

static size_t longest_merge(const fti_bpe_vocabulary *vocabulary) {
    size_t longest = 0;
    for (size_t i = 0; i < vocabulary->merge_count; i++)
        if (vocabulary->merges[i].size > longest) longest = (size_t)vocabulary->merges[i].size;
    return longest;
}

static ftk_status build_merges(fti_bpe *bpe, const fti_bpe_vocabulary *vocabulary,
                               const name_table *names, ftk_error *err) {
    size_t slots = table_slots(vocabulary->merge_count), longest = longest_merge(vocabulary);
    bpe->merges = fti_calloc(slots, sizeof *bpe->merges);
    if (!bpe->merges) return fti_no_memory(err, slots * sizeof *bpe->merges, "the merge table");
    bpe->mask = slots - 1;
    uint8_t *scratch = fti_calloc(longest, 1);
    if (!scratch) return fti_no_memory(err, longest, "the merge table");
    ftk_status status = FTK_OK;
    for (size_t rank = 0; rank < vocabulary->merge_count; rank++) {
        ftk_str merge = vocabulary->merges[rank];
        size_t border;
        if (!merge_border(merge, &border)) {
            status = fti_checkpoint_fail(
                vocabulary->checkpoint, err, FTK_E_CKPT_TOKENIZER,
                "tokenizer.ggml.merges[%zu]: found \"%s\", wanted two parts with a "
                "space between; convert the model again",
                rank, fti_show(merge).text);
            break;
        }
        add_merge(bpe, names, merge, border, rank, scratch);
    }
    fti_free(scratch);
    return status;
}

static ftk_status find_bytes(fti_bpe *bpe, const fti_bpe_vocabulary *vocabulary,
                             const name_table *names, ftk_error *err) {
    size_t missing = 0, first = 0;
    for (size_t i = 256; i > 0; i--) {
        uint8_t byte = (uint8_t)(i - 1);
        bpe->bytes[byte] = id_of(names, &byte, 1);
        if (bpe->bytes[byte] >= 0) continue;
        missing++;
        first = byte;
    }
    if (missing == 0) return FTK_OK;
    return fti_checkpoint_fail(
        vocabulary->checkpoint, err, FTK_E_CKPT_TOKENIZER,
        "tokenizer.ggml.tokens: no normal token for byte 0x%02zX; found %zu of the 256 "
        "byte tokens, wanted all, so that any text can be written; convert the model "
        "again",
        first, 256 - missing);
}

static ftk_status build(fti_bpe *bpe, const fti_bpe_vocabulary *vocabulary, name_table *names,
                        ftk_error *err) {
    FTI_TRY(build_names(vocabulary, names, err));
    FTI_TRY(find_bytes(bpe, vocabulary, names, err));
    return build_merges(bpe, vocabulary, names, err);
}

ftk_status fti_bpe_create(const fti_bpe_vocabulary *vocabulary, fti_bpe **out, ftk_error *err) {
    *out = NULL;
    fti_bpe *bpe = fti_calloc(1, sizeof *bpe);
    if (!bpe) return fti_no_memory(err, sizeof *bpe, "the merge table");
    name_table names = {0};
    ftk_status status = build(bpe, vocabulary, &names, err);
    fti_free(names.slots);
    if (status == FTK_OK)
        *out = bpe;
    else
        fti_bpe_free(bpe);
    return status;
}

void fti_bpe_free(fti_bpe *bpe) {
    if (!bpe) return;
    fti_free(bpe->merges);
    fti_free(bpe);
}

int32_t fti_bpe_byte(const fti_bpe *bpe, uint8_t byte) {
    return bpe->bytes[byte];
}

/* ---- merging one piece ---- */

/* A symbol, and the merge of it with the next one. A symbol that was merged into
 * its left neighbour has rank 0 for ever, so heap entries of it are stale. */
struct fti_bpe_symbol {
    uint32_t id;
    uint32_t previous;
    uint32_t next;
    uint32_t rank_plus_1; /* 0: no merge */
    uint32_t merged;
};

void fti_bpe_work_free(fti_bpe_work *work) {
    fti_free(work->symbols);
    fti_free(work->heap);
    memset(work, 0, sizeof *work);
}

static bool reserve(fti_bpe_work *work, size_t size) {
    if (size <= work->capacity) return true;
    size_t capacity = size < 256 ? 256 : size + size / 2;
    fti_bpe_work_free(work);
    work->symbols = fti_realloc(NULL, capacity, sizeof *work->symbols);
    work->heap = fti_realloc(NULL, capacity, 2 * sizeof *work->heap);
    if (!work->symbols || !work->heap) {
        fti_bpe_work_free(work);
        return false;
    }
    work->capacity = capacity;
    return true;
}

static void heap_push(fti_bpe_work *work, uint64_t key) {
    uint64_t *heap = work->heap;
    size_t at = work->heap_count++;
    while (at > 0 && heap[(at - 1) / 2] > key) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = key;
}

static uint64_t heap_pop(fti_bpe_work *work) {
    uint64_t *heap = work->heap;
    uint64_t top = heap[0], key = heap[--work->heap_count];
    size_t count = work->heap_count, at = 0;
    for (size_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= key) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = key;
    return top;
}

/* Looks up what the symbol at `at` and its right neighbour make. Each merge takes
 * one entry out of the heap and puts at most two in, so twice the symbols is room
 * enough. */
static void offer(const fti_bpe *bpe, fti_bpe_work *work, uint32_t at) {
    fti_bpe_symbol *symbol = &work->symbols[at];
    symbol->rank_plus_1 = 0;
    if (symbol->next == NONE) return;
    const merge_slot *slot = find_merge(bpe, pair_key(symbol->id, work->symbols[symbol->next].id));
    if (slot->rank_plus_1 == 0) return;
    symbol->rank_plus_1 = slot->rank_plus_1;
    symbol->merged = slot->merged;
    heap_push(work, (uint64_t)slot->rank_plus_1 << 32 | at);
}

static void merge_with_next(const fti_bpe *bpe, fti_bpe_work *work, uint32_t at) {
    fti_bpe_symbol *symbol = &work->symbols[at];
    fti_bpe_symbol *right = &work->symbols[symbol->next];
    symbol->id = symbol->merged;
    symbol->next = right->next;
    right->rank_plus_1 = 0;
    if (symbol->next != NONE) work->symbols[symbol->next].previous = at;
    offer(bpe, work, at);
    if (symbol->previous != NONE) offer(bpe, work, symbol->previous);
}

static void load_piece(const fti_bpe *bpe, fti_bpe_work *work, const uint8_t *bytes,
                       uint32_t size) {
    work->heap_count = 0;
    for (uint32_t i = 0; i < size; i++) {
        work->symbols[i] = (fti_bpe_symbol){.id = (uint32_t)bpe->bytes[bytes[i]],
                                            .previous = i == 0 ? NONE : i - 1,
                                            .next = i + 1 < size ? i + 1 : NONE};
    }
    for (uint32_t i = 0; i < size; i++) offer(bpe, work, i);
}

bool fti_bpe_encode(const fti_bpe *bpe, fti_bpe_work *work, const uint8_t *bytes, size_t size,
                    fti_ids *ids) {
    if (!reserve(work, size)) return false;
    load_piece(bpe, work, bytes, (uint32_t)size);
    while (work->heap_count > 0) {
        uint64_t key = heap_pop(work);
        uint32_t at = (uint32_t)key;
        if (work->symbols[at].rank_plus_1 == (uint32_t)(key >> 32)) merge_with_next(bpe, work, at);
    }
    for (uint32_t i = 0; i != NONE; i = work->symbols[i].next)
        if (!fti_ids_push(ids, (int32_t)work->symbols[i].id)) return false;
    return true;
}
