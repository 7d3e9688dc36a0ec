/* allow_edit.c: finds and changes one allowlist entry in a YAML text. */
#include "cli/allow_edit.h"

#include <stdlib.h>
#include <string.h>

typedef struct line {
    size_t start;  /* first byte */
    size_t first;  /* first byte that is no space */
    size_t end;    /* after the last byte of the content */
    size_t next;   /* start of the next line, or the end of the text */
    size_t indent; /* spaces before `first` */
    bool blank;    /* nothing but space and comment */
} line;

typedef struct document {
    const char *text;
    size_t size;
    line *lines;
    size_t count;
    const char *newline; /* as the text has it */
} document;

/* A range of the text. */
typedef struct span {
    size_t start, end;
} span;

/* One entry of the list. */
typedef struct item {
    size_t line;    /* of its dash */
    size_t column;  /* of its keys */
    span path, sha; /* values as written; empty if absent */
    size_t path_line;
    char *name_text, *path_text, *sha_text; /* decoded; NULL if absent or not understood */
} item;

static line read_line(const char *text, size_t size, size_t start) {
    line l = {.start = start};
    const char *newline = memchr(text + start, '\n', size - start);
    l.end = newline ? (size_t)(newline - text) : size;
    l.next = newline ? l.end + 1 : size;
    if (newline && l.end > start && text[l.end - 1] == '\r') l.end--;
    while (start + l.indent < l.end && text[start + l.indent] == ' ') l.indent++;
    l.first = start + l.indent;
    l.blank = l.first == l.end || text[l.first] == '#';
    return l;
}

static void split(document *doc, const char *text, size_t size) {
    size_t lines = 1;
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    *doc = (document){text, size, fti_cli_alloc(lines, sizeof(line)), 0, "\n"};
    for (size_t start = 0; start < size; start = doc->lines[doc->count - 1].next) {
        doc->lines[doc->count++] = read_line(text, size, start);
    }
    if (doc->count && doc->lines[0].next == doc->lines[0].end + 2) {
        doc->newline = "\r\n";
    }
}

/* Where the value begins if `key:` stands at `at`; 0 otherwise (no value does). */
static size_t match_key(const document *doc, const line *l, size_t at, const char *key) {
    size_t length = strlen(key);
    char quote = at < l->end ? doc->text[at] : '\0';
    bool quoted = quote == '"' || quote == '\'';
    size_t begin = at + (quoted ? 1 : 0);
    size_t i = begin + length;
    if (i + (quoted ? 1 : 0) >= l->end || memcmp(doc->text + begin, key, length) != 0) return 0;
    if (quoted && doc->text[i++] != quote) return 0;
    while (i < l->end && doc->text[i] == ' ') i++;
    if (i >= l->end || doc->text[i++] != ':') return 0;
    if (i < l->end && doc->text[i] != ' ' && doc->text[i] != '\t') return 0;
    while (i < l->end && (doc->text[i] == ' ' || doc->text[i] == '\t')) i++;
    return i;
}

static size_t find_key(const document *doc, size_t from, size_t to, size_t indent,
                       const char *key) {
    for (size_t i = from; i < to; i++) {
        const line *l = &doc->lines[i];
        if (!l->blank && l->indent == indent && match_key(doc, l, l->first, key)) return i;
    }
    return to;
}

static bool is_dash(const document *doc, const line *l) {
    return !l->blank && doc->text[l->first] == '-' &&
           (l->first + 1 == l->end || doc->text[l->first + 1] == ' ');
}

/* First line after `at` that is not part of its value. A list may stand as far to
 * the left as the key that it belongs to. */
static size_t block_end(const document *doc, size_t at, size_t limit, bool list) {
    size_t indent = doc->lines[at].indent;
    size_t i = at + 1;
    while (i < limit) {
        const line *l = &doc->lines[i];
        bool inside = l->blank || l->indent > indent ||
                      (list && l->indent == indent && is_dash(doc, l));
        if (!inside) break;
        i++;
    }
    return i;
}

/* Indent of the first line in use, or `otherwise`. */
static size_t indent_of(const document *doc, size_t from, size_t to, size_t otherwise) {
    for (size_t i = from; i < to; i++) {
        if (!doc->lines[i].blank) return doc->lines[i].indent;
    }
    return otherwise;
}

static span plain_span(const document *doc, const line *l, size_t at) {
    size_t end = at;
    while (end < l->end && !(doc->text[end] == '#' && (end == at || doc->text[end - 1] == ' '))) {
        end++;
    }
    while (end > at && (doc->text[end - 1] == ' ' || doc->text[end - 1] == '\t')) end--;
    return (span){at, end};
}

/* Extent of the scalar at `at`, quotes included, without spaces and comment. */
static span value_span(const document *doc, const line *l, size_t at) {
    char quote = at < l->end ? doc->text[at] : '\0';
    if (quote != '"' && quote != '\'') return plain_span(doc, l, at);
    for (size_t i = at + 1; i < l->end; i++) {
        bool twice = i + 1 < l->end && doc->text[i + 1] == quote;
        if (doc->text[i] == '\\' && quote == '"') {
            i++;
        } else if (doc->text[i] == quote && quote == '\'' && twice) {
            i++;
        } else if (doc->text[i] == quote) {
            return (span){at, i + 1};
        }
    }
    return (span){at, at};
}

/* Text of a scalar; NULL for escapes other than those that write_scalar makes. */
static char *decode(const document *doc, span s) {
    if (s.start == s.end) return NULL;
    char quote = doc->text[s.start];
    if (quote != '"' && quote != '\'') {
        return fti_cli_format("%.*s", (int)(s.end - s.start), doc->text + s.start);
    }
    fti_cli_text out = {0};
    fti_cli_append(&out, "", 0);
    for (size_t i = s.start + 1; i + 1 < s.end; i++) {
        char c = doc->text[i];
        if (c == '\\' && quote == '"') {
            c = doc->text[++i];
            if (c != '"' && c != '\\' && c != '/') {
                free(out.data);
                return NULL;
            }
        } else if (c == '\'' && quote == '\'') {
            i++;
        }
        fti_cli_append(&out, &c, 1);
    }
    return out.data;
}

static void read_field(const document *doc, size_t index, size_t at, item *it) {
    const line *l = &doc->lines[index];
    size_t value;
    if ((value = match_key(doc, l, at, "name")) && !it->name_text) {
        it->name_text = decode(doc, value_span(doc, l, value));
    } else if ((value = match_key(doc, l, at, "path")) && !it->path_text) {
        it->path = value_span(doc, l, value);
        it->path_text = decode(doc, it->path);
        it->path_line = index;
    } else if ((value = match_key(doc, l, at, "sha256")) && !it->sha_text) {
        it->sha = value_span(doc, l, value);
        it->sha_text = decode(doc, it->sha);
    }
}

static item read_item(const document *doc, size_t from, size_t to) {
    const line *dash = &doc->lines[from];
    item it = {.line = from};
    size_t at = dash->first + 1;
    while (at < dash->end && doc->text[at] == ' ') at++;
    bool alone = at == dash->end || doc->text[at] == '#';
    it.column = alone ? indent_of(doc, from + 1, to, dash->indent + 2) : at - dash->start;
    if (!alone) read_field(doc, from, at, &it);
    for (size_t i = from + 1; i < to; i++) {
        const line *l = &doc->lines[i];
        if (!l->blank && l->indent == it.column) read_field(doc, i, l->first, &it);
    }
    return it;
}

static void free_item(item *it) {
    free(it->name_text);
    free(it->path_text);
    free(it->sha_text);
}

/* Finds the entry `name` in the list between two lines; the caller frees it. */
static bool find_item(const document *doc, size_t from, size_t to, size_t indent, const char *name,
                      item *found) {
    for (size_t i = from; i < to; i++) {
        if (doc->lines[i].indent != indent || !is_dash(doc, &doc->lines[i])) continue;
        size_t end = i + 1;
        while (end < to && (doc->lines[end].blank || doc->lines[end].indent > indent)) end++;
        *found = read_item(doc, i, end);
        if (found->name_text && strcmp(found->name_text, name) == 0) return true;
        free_item(found);
    }
    return false;
}

static bool is_simple(const char *value) {
    return value[0] == '/' && value[strspn(value, "/._-+abcdefghijklmnopqrstuvwxyz"
                                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")] == '\0';
}

static void write_scalar(fti_cli_text *out, const char *value) {
    if (is_simple(value)) {
        fti_cli_append(out, value, strlen(value));
        return;
    }
    fti_cli_append(out, "\"", 1);
    for (const char *c = value; *c; c++) {
        if (*c == '"' || *c == '\\') fti_cli_append(out, "\\", 1);
        fti_cli_append(out, c, 1);
    }
    fti_cli_append(out, "\"", 1);
}

static void write_indent(fti_cli_text *out, size_t indent) {
    for (size_t i = 0; i < indent; i++) fti_cli_append(out, " ", 1);
}

static void write_entry(fti_cli_text *out, const document *doc, size_t indent,
                        const fti_cli_allow_entry *entry) {
    write_indent(out, indent);
    fti_cli_printf(out, "- name: %s%s", entry->name, doc->newline);
    write_indent(out, indent + 2);
    fti_cli_printf(out, "path: ");
    write_scalar(out, entry->path);
    fti_cli_printf(out, "%s", doc->newline);
    write_indent(out, indent + 2);
    fti_cli_printf(out, "sha256: %s%s", entry->sha256, doc->newline);
}

static void write_key(fti_cli_text *out, const document *doc, size_t indent, const char *key) {
    write_indent(out, indent);
    fti_cli_printf(out, "%s:%s", key, doc->newline);
}

static void copy(fti_cli_text *out, const document *doc, size_t from, size_t to) {
    fti_cli_append(out, doc->text + from, to - from);
}

/* The text up to and including line `at`, which then ends with a newline, and
 * without the bytes of `drop`. */
static void copy_through(fti_cli_text *out, const document *doc, size_t at, span drop) {
    const line *l = &doc->lines[at];
    if (drop.end > drop.start) {
        copy(out, doc, 0, drop.start);
        copy(out, doc, drop.end, l->next);
    } else {
        copy(out, doc, 0, l->next);
    }
    if (l->next == l->end) fti_cli_printf(out, "%s", doc->newline);
}

/* What stands behind the key on its own line: nothing, an empty flow collection
 * (which *drop then covers), or something that is not edited. */
static bool inline_value(const document *doc, size_t at, const char *key, const char *empty,
                         span *drop) {
    const line *l = &doc->lines[at];
    size_t value = match_key(doc, l, l->first, key);
    *drop = plain_span(doc, l, value);
    size_t length = drop->end - drop->start;
    if (length == 0) return true;
    return length == strlen(empty) && memcmp(doc->text + drop->start, empty, length) == 0;
}

static fti_cli_edit refuse(fti_cli_text *out, size_t at, const char *key) {
    fti_cli_printf(out,
                   "%zu: '%s' holds its value on one line; write it as a block, one key or entry "
                   "per line, to have it edited",
                   at + 1, key);
    return FTI_CLI_EDIT_REFUSED;
}

static bool same(const char *a, const char *b) {
    return a && strcmp(a, b) == 0;
}

static fti_cli_edit report_difference(fti_cli_text *out, const item *it,
                                      const fti_cli_allow_entry *entry) {
    fti_cli_printf(out,
                   "%zu: provider '%s' is already allowed with path %s and %s%s; wanted path %s "
                   "and sha256 %s; --update replaces the entry",
                   it->line + 1, entry->name, it->path_text ? it->path_text : "(none)",
                   it->sha_text ? "sha256 " : "no sha256", it->sha_text ? it->sha_text : "",
                   entry->path, entry->sha256);
    return FTI_CLI_EDIT_DIFFERS;
}

/* Replaces the values where they stand, in whichever order. */
static void rewrite_values(fti_cli_text *out, const document *doc, const item *it,
                           const fti_cli_allow_entry *entry) {
    bool path_first = it->sha.end == it->sha.start || it->path.start < it->sha.start;
    span first = path_first ? it->path : it->sha;
    span second = path_first ? it->sha : it->path;
    copy(out, doc, 0, first.start);
    if (path_first) write_scalar(out, entry->path);
    if (!path_first) fti_cli_printf(out, "%s", entry->sha256);
    if (second.end > second.start) {
        copy(out, doc, first.end, second.start);
        if (path_first) fti_cli_printf(out, "%s", entry->sha256);
        if (!path_first) write_scalar(out, entry->path);
        copy(out, doc, second.end, doc->size);
        return;
    }
    const line *l = &doc->lines[it->path_line];
    copy(out, doc, first.end, l->next);
    if (l->next == l->end) fti_cli_printf(out, "%s", doc->newline);
    write_indent(out, it->column);
    fti_cli_printf(out, "sha256: %s%s", entry->sha256, doc->newline);
    copy(out, doc, l->next, doc->size);
}

static fti_cli_edit change_item(fti_cli_text *out, const document *doc, const item *it,
                                const fti_cli_allow_entry *entry, bool update) {
    if (same(it->path_text, entry->path) && same(it->sha_text, entry->sha256)) {
        return FTI_CLI_EDIT_UNCHANGED;
    }
    if (!update) return report_difference(out, it, entry);
    if (it->path.start == it->path.end) return refuse(out, it->line, "allow");
    rewrite_values(out, doc, it, entry);
    return FTI_CLI_EDIT_UPDATED;
}

/* The list exists at line `allow`; its block ends at `end`. */
static fti_cli_edit edit_list(fti_cli_text *out, const document *doc, size_t allow, size_t end,
                              const fti_cli_allow_entry *entry, bool update) {
    size_t indent = indent_of(doc, allow + 1, end, doc->lines[allow].indent + 2);
    span drop;
    item it;
    if (!inline_value(doc, allow, "allow", "[]", &drop)) return refuse(out, allow, "allow");
    if (find_item(doc, allow + 1, end, indent, entry->name, &it)) {
        fti_cli_edit result = change_item(out, doc, &it, entry, update);
        free_item(&it);
        return result;
    }
    copy_through(out, doc, allow, drop);
    write_entry(out, doc, indent, entry);
    copy(out, doc, doc->lines[allow].next, doc->size);
    return FTI_CLI_EDIT_ADDED;
}

static fti_cli_edit edit_providers(fti_cli_text *out, const document *doc, size_t at,
                                   const fti_cli_allow_entry *entry, bool update) {
    size_t end = block_end(doc, at, doc->count, false);
    size_t indent = indent_of(doc, at + 1, end, 2);
    size_t allow = find_key(doc, at + 1, end, indent, "allow");
    span drop;
    if (!inline_value(doc, at, "providers", "{}", &drop)) return refuse(out, at, "providers");
    if (allow < end) {
        return edit_list(out, doc, allow, block_end(doc, allow, end, true), entry, update);
    }
    copy_through(out, doc, at, drop);
    write_key(out, doc, indent, "allow");
    write_entry(out, doc, indent + 2, entry);
    copy(out, doc, doc->lines[at].next, doc->size);
    return FTI_CLI_EDIT_ADDED;
}

static void append_all(fti_cli_text *out, const document *doc, const fti_cli_allow_entry *entry) {
    copy(out, doc, 0, doc->size);
    if (doc->size && doc->text[doc->size - 1] != '\n') fti_cli_printf(out, "%s", doc->newline);
    write_key(out, doc, 0, "providers");
    write_key(out, doc, 2, "allow");
    write_entry(out, doc, 4, entry);
}

fti_cli_edit fti_cli_allow_edit(const char *text, size_t size, const fti_cli_allow_entry *entry,
                                bool update, fti_cli_text *out) {
    document doc;
    split(&doc, text, size);
    fti_cli_edit result = FTI_CLI_EDIT_ADDED;
    size_t at = find_key(&doc, 0, doc.count, 0, "providers");
    if (at < doc.count) {
        result = edit_providers(out, &doc, at, entry, update);
    } else {
        append_all(out, &doc, entry);
    }
    free(doc.lines);
    return result;
}
