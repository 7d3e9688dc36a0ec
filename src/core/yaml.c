/*
 * yaml.c: the strict YAML reader, see yaml.h. It consumes libyaml's events one
 * by one, so that whatever is refused is refused before libyaml goes on: the
 * time libyaml needs grows with the square of the nesting depth.
 *
 * Rules that yaml.h leaves open: a byte order mark of UTF-8 is skipped, those of
 * UTF-16 and any NUL are refused. The directives %YAML 1.1 and %YAML 1.2 are
 * accepted, they change nothing here; %TAG is refused. A document that holds
 * nothing ("---", or comments alone) is an empty mapping. Keys may be quoted, but
 * not empty. Scalars end with a NUL behind their last byte and hold no other.
 */
#include "core/yaml.h"

#include <stdio.h>
#include <stdlib.h>
#include <yaml.h>

/* A node, its text and its place in the list of everything to free. */
typedef struct box {
    struct box *older;
    fti_yaml_node node;
    char text[];
} box;

struct fti_yaml {
    box *boxes;
    fti_yaml_node *root;
};

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; YAML_NO_EVENT before the first */
    fti_yaml *yaml;
    const char *text;
    size_t size;
    const char *origin;
    size_t nodes;
    ftk_error *err;
} reader;

/* ---- failures ---- */

static unsigned line_of(yaml_mark_t mark) {
    return (unsigned)mark.line + 1;
}

/* Does byte `i` end a line? Of CR LF, only the LF does. */
static bool ends_line(const char *text, size_t size, size_t i) {
    return text[i] == '\n' || (text[i] == '\r' && (i + 1 == size || text[i + 1] != '\n'));
}

static unsigned line_at_offset(const char *text, size_t size, size_t offset) {
    unsigned line = 1;
    for (size_t i = 0; i < size && i < offset; i++) line += ends_line(text, size, i);
    return line;
}

static ftk_status refuse_event(const reader *r, const char *what) {
    fti_fail(r->err, FTK_E_CONFIG_SYNTAX, "%s:%u: %s", r->origin, line_of(r->event.start_mark),
             what);
    return FTK_E_CONFIG_SYNTAX;
}

static ftk_status refuse_limit(const reader *r, unsigned limit, const char *what) {
    fti_fail(r->err, FTK_E_CONFIG_SYNTAX, "%s:%u: more than %u %s", r->origin,
             line_of(r->event.start_mark), limit, what);
    return FTK_E_CONFIG_SYNTAX;
}

static ftk_status no_memory(const reader *r, uint64_t bytes) {
    fti_no_memory(r->err, bytes, "reading YAML");
    return FTK_E_NO_MEMORY;
}

/* Is the character at libyaml's mark a tab? Marks count characters, not bytes. */
static bool tab_at(const reader *r, yaml_mark_t mark) {
    size_t i = 0;
    for (size_t line = 0; i < r->size && line < mark.line; i++)
        line += ends_line(r->text, r->size, i);
    for (size_t column = 0; i < r->size && column < mark.column; column++) {
        i++;
        while (i < r->size && ((unsigned char)r->text[i] & 0xC0u) == 0x80u) i++;
    }
    return i < r->size && r->text[i] == '\t';
}

static ftk_status reader_failure(const reader *r) {
    const yaml_parser_t *p = &r->parser;
    fti_fail(r->err, FTK_E_CONFIG_SYNTAX, "%s:%u: %s (0x%02x); write plain UTF-8", r->origin,
             line_at_offset(r->text, r->size, p->problem_offset), p->problem,
             (unsigned)p->problem_value);
    return FTK_E_CONFIG_SYNTAX;
}

static ftk_status parser_failure(const reader *r) {
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR) return no_memory(r, r->size);
    if (p->error == YAML_READER_ERROR) return reader_failure(r);
    char context[160] = "";
    if (p->context)
        snprintf(context, sizeof context, ", %s that begins in line %u", p->context,
                 line_of(p->context_mark));
    fti_fail(r->err, FTK_E_CONFIG_SYNTAX, "%s:%u: %s%s%s", r->origin, line_of(p->problem_mark),
             p->problem, tab_at(r, p->problem_mark) ? " (a tab; indent with spaces)" : "", context);
    return FTK_E_CONFIG_SYNTAX;
}

/* ---- events ---- */

static ftk_status next_event(reader *r) {
    yaml_event_delete(&r->event);
    return yaml_parser_parse(&r->parser, &r->event) ? FTK_OK : parser_failure(r);
}

static ftk_status check_properties(const reader *r, const yaml_char_t *anchor,
                                   const yaml_char_t *tag) {
    if (anchor) return refuse_event(r, "anchors (&name) are not allowed; write the value out");
    if (tag) return refuse_event(r, "tags (!name) are not allowed; remove it");
    return FTK_OK;
}

/* ---- nodes ---- */

static ftk_status add_node(reader *r, fti_yaml_kind kind, const char *text, size_t text_size,
                           fti_yaml_node **out) {
    if (r->nodes == FTI_YAML_MAX_NODES)
        return refuse_limit(r, FTI_YAML_MAX_NODES, "values and keys");
    box *b = fti_calloc(1, sizeof *b + text_size + 1);
    if (!b) return no_memory(r, sizeof *b + text_size + 1);
    b->older = r->yaml->boxes;
    r->yaml->boxes = b;
    r->nodes++;
    b->node.kind = kind;
    b->node.line = line_of(r->event.start_mark);
    if (text_size) memcpy(b->text, text, text_size);
    b->node.text = (ftk_str){b->text, text_size};
    *out = &b->node;
    return FTK_OK;
}

static ftk_status read_scalar(reader *r, fti_yaml_node **out) {
    const char *value = (const char *)r->event.data.scalar.value;
    size_t size = r->event.data.scalar.length;
    FTI_TRY(check_properties(r, r->event.data.scalar.anchor, r->event.data.scalar.tag));
    if (memchr(value, 0, size)) return refuse_event(r, "a text holds \\0; remove it");
    FTI_TRY(add_node(r, FTI_YAML_SCALAR, value, size, out));
    (*out)->quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return FTK_OK;
}

typedef struct slot {
    const fti_yaml_node *node;
} slot;

static int compare_keys(const void *left, const void *right) {
    const fti_yaml_node *a = ((const slot *)left)->node;
    const fti_yaml_node *b = ((const slot *)right)->node;
    if (a->key.size != b->key.size) return a->key.size < b->key.size ? -1 : 1;
    int order = memcmp(a->key.data, b->key.data, (size_t)a->key.size);
    if (order != 0) return order;
    return (a->key_line > b->key_line) - (a->key_line < b->key_line);
}

/* Bytes of a key that a message shows: at most 64, whole characters. */
static int shown_size(ftk_str key) {
    if (key.size <= 64) return (int)key.size;
    int n = 64;
    while (n > 0 && ((unsigned char)key.data[n] & 0xC0u) == 0x80u) n--;
    return n;
}

static ftk_status refuse_duplicate(const reader *r, const fti_yaml_node *first,
                                   const fti_yaml_node *second) {
    fti_fail(r->err, FTK_E_CONFIG_KEY,
             "%s:%u: duplicate key '%.*s', first given in line %u; keep one", r->origin,
             second->key_line, shown_size(second->key), second->key.data, first->key_line);
    return FTK_E_CONFIG_KEY;
}

/* By sorting: a mapping may have tens of thousands of keys. */
static ftk_status check_duplicates(const reader *r, const fti_yaml_node *mapping) {
    if (mapping->count < 2) return FTK_OK;
    slot *sorted = fti_calloc(mapping->count, sizeof *sorted);
    if (!sorted) return no_memory(r, mapping->count * sizeof *sorted);
    size_t n = 0;
    for (const fti_yaml_node *node = mapping->first; node; node = node->next)
        sorted[n++].node = node;
    qsort(sorted, n, sizeof *sorted, compare_keys);
    ftk_status status = FTK_OK;
    for (size_t i = 1; i < n && status == FTK_OK; i++)
        if (fti_str_eq(sorted[i - 1].node->key, sorted[i].node->key))
            status = refuse_duplicate(r, sorted[i - 1].node, sorted[i].node);
    fti_free(sorted);
    return status;
}

static ftk_status read_node(reader *r, unsigned depth, fti_yaml_node **out);

/* The current event is where a key should be. Leaves the value's as current. */
static ftk_status read_key(reader *r, fti_yaml_node **key) {
    if (r->event.type == YAML_MAPPING_START_EVENT || r->event.type == YAML_SEQUENCE_START_EVENT)
        return refuse_event(r, "a key is a list or a mapping; keys must be plain text");
    FTI_TRY(read_node(r, 0, key));
    if ((*key)->text.size == 0) return refuse_event(r, "a key is empty; name it");
    if (fti_str_is((*key)->text, "<<"))
        return refuse_event(r, "merge keys (<<) are not allowed; write the values out");
    return next_event(r);
}

/* Reads up to the end event of `parent`, which stays current. */
static ftk_status read_children(reader *r, unsigned depth, fti_yaml_node *parent) {
    fti_yaml_node **link = &parent->first;
    for (;;) {
        FTI_TRY(next_event(r));
        if (r->event.type == YAML_MAPPING_END_EVENT || r->event.type == YAML_SEQUENCE_END_EVENT)
            break;
        fti_yaml_node *key = NULL;
        if (parent->kind == FTI_YAML_MAPPING) FTI_TRY(read_key(r, &key));
        FTI_TRY(read_node(r, depth, link));
        if (key) {
            (*link)->key = key->text;
            (*link)->key_line = key->line;
        }
        link = &(*link)->next;
        parent->count++;
    }
    return parent->kind == FTI_YAML_MAPPING ? check_duplicates(r, parent) : FTK_OK;
}

static ftk_status read_collection(reader *r, unsigned depth, fti_yaml_kind kind,
                                  fti_yaml_node **out) {
    if (depth > FTI_YAML_MAX_DEPTH)
        return refuse_limit(r, FTI_YAML_MAX_DEPTH, "lists and mappings in one another");
    FTI_TRY(add_node(r, kind, NULL, 0, out));
    return read_children(r, depth, *out);
}

/* Reads the value that the current event begins; `depth` is its parent's. */
static ftk_status read_node(reader *r, unsigned depth, fti_yaml_node **out) {
    const yaml_event_t *e = &r->event;
    switch (e->type) {
    case YAML_SCALAR_EVENT: return read_scalar(r, out);
    case YAML_SEQUENCE_START_EVENT:
        FTI_TRY(check_properties(r, e->data.sequence_start.anchor, e->data.sequence_start.tag));
        return read_collection(r, depth + 1, FTI_YAML_SEQUENCE, out);
    case YAML_MAPPING_START_EVENT:
        FTI_TRY(check_properties(r, e->data.mapping_start.anchor, e->data.mapping_start.tag));
        return read_collection(r, depth + 1, FTI_YAML_MAPPING, out);
    default: return refuse_event(r, "aliases (*name) are not allowed; write the value out");
    }
}

/* ---- document ---- */

static ftk_status read_document(reader *r) {
    const yaml_event_t *e = &r->event;
    FTI_TRY(next_event(r));
    FTI_TRY(read_node(r, 0, &r->yaml->root));
    FTI_TRY(next_event(r)); /* end of the document */
    FTI_TRY(next_event(r));
    if (e->type != YAML_STREAM_END_EVENT)
        return refuse_event(r, "a second document begins; only one is allowed");
    return FTK_OK;
}

static ftk_status read_stream(reader *r) {
    FTI_TRY(next_event(r)); /* start of the stream */
    FTI_TRY(next_event(r));
    if (r->event.type == YAML_DOCUMENT_START_EVENT) FTI_TRY(read_document(r));
    fti_yaml_node *root = r->yaml->root;
    bool empty = !root || (root->kind == FTI_YAML_SCALAR && root->text.size == 0 && !root->quoted);
    return empty ? add_node(r, FTI_YAML_MAPPING, NULL, 0, &r->yaml->root) : FTK_OK;
}

static ftk_status check_encoding(const reader *r) {
    const char *text = r->text;
    if (r->size >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
        return fti_fail(r->err, FTK_E_CONFIG_SYNTAX,
                        "%s:1: begins with the mark of UTF-16; save it as UTF-8", r->origin);
    const char *nul = memchr(text, 0, r->size);
    if (nul)
        return fti_fail(r->err, FTK_E_CONFIG_SYNTAX,
                        "%s:%u: holds a NUL byte, as UTF-16 and binary files do; save it as UTF-8",
                        r->origin, line_at_offset(text, r->size, (size_t)(nul - text)));
    return FTK_OK;
}

/* Does a line begin at `at`, as libyaml sees lines? */
static bool begins_line(const char *text, const char *at) {
    static const char *const breaks[] = {"\n", "\r", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"};
    if (at == text) return true;
    for (size_t i = 0; i < FTI_COUNT(breaks); i++) {
        size_t n = strlen(breaks[i]);
        if ((size_t)(at - text) >= n && memcmp(at - n, breaks[i], n) == 0) return true;
    }
    return false;
}

/* Before libyaml sees them: it compares each %TAG with all before it, and tells of them only
 * when it has read the last. */
static ftk_status check_directives(const reader *r) {
    static const char tag[] = "%TAG";
    const char *end = r->text + r->size, *at = r->text;
    while ((at = memmem(at, (size_t)(end - at), tag, sizeof tag - 1)) != NULL) {
        if (begins_line(r->text, at))
            return fti_fail(r->err, FTK_E_CONFIG_SYNTAX,
                            "%s:%u: the %%TAG directive is not allowed; remove it", r->origin,
                            line_at_offset(r->text, r->size, (size_t)(at - r->text)));
        at++;
    }
    return FTK_OK;
}

static ftk_status run_parser(reader *r) {
    if (!yaml_parser_initialize(&r->parser)) return fti_no_memory(r->err, 0, "the YAML parser");
    yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)r->text, r->size);
    ftk_status status = read_stream(r);
    yaml_event_delete(&r->event);
    yaml_parser_delete(&r->parser);
    return status;
}

ftk_status fti_yaml_parse(const char *text, size_t size, const char *origin, fti_yaml **out,
                          ftk_error *err) {
    *out = NULL;
    reader r = {.text = size ? text : "", .size = size, .origin = origin, .err = err};
    if (size > FTI_YAML_MAX_BYTES)
        return fti_fail(err, FTK_E_CONFIG_SYNTAX, "%s: larger than the limit of %u bytes", origin,
                        FTI_YAML_MAX_BYTES);
    FTI_TRY(check_encoding(&r));
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        r.text += 3;
        r.size -= 3;
    }
    FTI_TRY(check_directives(&r));
    r.yaml = fti_calloc(1, sizeof *r.yaml);
    if (!r.yaml) return fti_no_memory(err, sizeof *r.yaml, "a YAML document");
    ftk_status status = run_parser(&r);
    if (status == FTK_OK)
        *out = r.yaml;
    else
        fti_yaml_free(r.yaml);
    return status;
}

const fti_yaml_node *fti_yaml_root(const fti_yaml *yaml) {
    return yaml->root;
}

void fti_yaml_free(fti_yaml *yaml) {
    if (!yaml) return;
    for (box *b = yaml->boxes; b;) {
        box *older = b->older;
        fti_free(b);
        b = older;
    }
    fti_free(yaml);
}

const fti_yaml_node *fti_yaml_member(const fti_yaml_node *mapping, const char *key) {
    if (mapping->kind != FTI_YAML_MAPPING) return NULL;
    for (const fti_yaml_node *node = mapping->first; node; node = node->next)
        if (fti_str_is(node->key, key)) return node;
    return NULL;
}

/* ---- typed values ---- */

static bool plain(const fti_yaml_node *node) {
    return node->kind == FTI_YAML_SCALAR && !node->quoted;
}

/* Takes the digits that `text` begins with; false if there are none, if the
 * first of several is 0, or if the number needs more than 64 bits. */
static bool take_decimal(ftk_str text, uint64_t *value, size_t *used) {
    uint64_t sum = 0;
    size_t n = 0;
    for (; n < text.size && text.data[n] >= '0' && text.data[n] <= '9'; n++)
        if (!fti_mul_u64(sum, 10, &sum) || !fti_add_u64(sum, (uint64_t)(text.data[n] - '0'), &sum))
            return false;
    if (n == 0 || (n > 1 && text.data[0] == '0')) return false;
    *value = sum;
    *used = n;
    return true;
}

bool fti_yaml_u64(const fti_yaml_node *node, uint64_t *value) {
    uint64_t number;
    size_t used;
    if (!plain(node) || !take_decimal(node->text, &number, &used) || used != node->text.size)
        return false;
    *value = number;
    return true;
}

bool fti_yaml_bool(const fti_yaml_node *node, bool *value) {
    if (!plain(node)) return false;
    bool yes = fti_str_is(node->text, "true");
    if (!yes && !fti_str_is(node->text, "false")) return false;
    *value = yes;
    return true;
}

bool fti_yaml_bytes(const fti_yaml_node *node, uint64_t *value) {
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    uint64_t number;
    size_t used;
    if (!plain(node) || !take_decimal(node->text, &number, &used)) return false;
    ftk_str unit = {node->text.data + used, node->text.size - used};
    size_t i = 0;
    while (i < FTI_COUNT(units) && !fti_str_is(unit, units[i].name)) i++;
    if (i == FTI_COUNT(units)) return false;
    if (!fti_mul_u64(number, (uint64_t)1 << units[i].shift, &number)) return false;
    *value = number;
    return true;
}
