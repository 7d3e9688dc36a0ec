/*
 * config.c: the configuration, see config.h. One table lists every key with its
 * form, range, default and place; reading a file, ftk_config_set, the defaults
 * and "did you mean" all come from it. The lists of code that may be loaded, and
 * the options of providers, have readers of their own.
 *
 * A section or list written without a value ("memory:" with every line below it
 * commented out) counts as absent.
 */
#include "core/config.h"

#include "core/loader.h"
#include "core/yaml.h"
#include "freetoken/freetoken.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_ENTRIES 1024u /* of each list; comparing all pairs stays cheap */
#define MAX_NAME    64u
#define ORIGIN_SHOWN                                                                               \
    200u /* bytes of an origin in a message, which must leave room for the cause                   \
          */

/* ---- messages ---- */

typedef struct reader {
    struct ftk_config *config;
    const char *origin; /* as messages show it */
    ftk_error *err;
} reader;

/* "ORIGIN:LINE: PATH: ..."; without a line, origin already names the key. */
static ftk_status refuse(const reader *r, ftk_status status, unsigned line, const char *path,
                         const char *format, ...) FTI_PRINTF(5, 6);
static ftk_status refuse(const reader *r, ftk_status status, unsigned line, const char *path,
                         const char *format, ...) {
    ftk_error detail = FTK_ERROR_INIT;
    va_list args;
    va_start(args, format);
    fti_failv(&detail, status, format, args);
    va_end(args);
    if (line == 0)
        fti_fail(r->err, status, "%s: %-s", r->origin, detail.message);
    else
        fti_fail(r->err, status, "%s:%u: %s: %-s", r->origin, line, path, detail.message);
    return status;
}

static ftk_status no_memory(const reader *r) {
    fti_fail(r->err, FTK_E_NO_MEMORY, "%s: out of host memory while it is read", r->origin);
    return FTK_E_NO_MEMORY;
}

static bool starts_character(char byte) {
    return ((unsigned char)byte & 0xC0u) != 0x80u;
}

typedef struct shown {
    char text[80];
} shown;

/* `text` for a message: whole characters, at most 60 bytes of them. */
static const char *show(ftk_str text, shown *out) {
    size_t n = text.size < 60 ? (size_t)text.size : 60;
    while (n > 0 && n < text.size && !starts_character(text.data[n])) n--;
    snprintf(out->text, sizeof out->text, "%.*s%s", (int)n, n ? text.data : "",
             n < text.size ? "..." : "");
    return out->text;
}

/* What was found where a value was expected. */
static const char *show_node(const fti_yaml_node *node, shown *out) {
    shown text;
    if (node->kind == FTI_YAML_MAPPING) return "a mapping";
    if (node->kind == FTI_YAML_SEQUENCE) return "a list";
    if (node->text.size == 0) return node->quoted ? "an empty text" : "nothing";
    snprintf(out->text, sizeof out->text, "%s'%.63s'", node->quoted ? "the text " : "",
             show(node->text, &text));
    return out->text;
}

typedef struct advice {
    char text[96];
} advice;

/* "; did you mean 'x'?", or nothing if no name is near. */
static const char *advise(ftk_str word, const char *const *names, size_t count, advice *out) {
    const char *name = fti_nearest(word, names, count);
    out->text[0] = 0;
    if (name) snprintf(out->text, sizeof out->text, "; did you mean '%s'?", name);
    return out->text;
}

static ftk_status copy_text(const reader *r, ftk_str text, char **out) {
    *out = fti_strndup(text.data, (size_t)text.size);
    return *out ? FTK_OK : no_memory(r);
}

/* ---- the table of keys ---- */

typedef enum {
    FORM_SECTION, /* a mapping of the keys whose paths it begins */
    FORM_READER,  /* read by `read` */
    FORM_WORD,    /* one of `words`; the other forms accept those too */
    FORM_BOOL,
    FORM_INTEGER,
    FORM_SIZE,
    FORM_MASK
} form;

typedef struct word {
    const char *name;
    uint64_t value;
} word;

typedef struct setting {
    const char *path;
    form form;
    bool or_zero; /* 0 is allowed though below min */
    size_t offset;
    size_t width;
    const word *words;
    size_t word_count;
    uint64_t initial;
    uint64_t min;
    uint64_t max;
    ftk_status (*read)(const reader *r, const fti_yaml_node *node);
} setting;

#define MAX_WORDS 4u  /* of one setting */
#define MAX_KEYS  16u /* of one section */

static const word switch_words[] = {{"auto", FTI_AUTO}, {"on", FTI_ON}, {"off", FTI_OFF}};
static const word backend_words[] = {{"auto", FTI_BACKEND_AUTO},
                                     {"cpu", FTI_BACKEND_CPU},
                                     {"cuda", FTI_BACKEND_CUDA},
                                     {"hip", FTI_BACKEND_HIP}};
static const word numerics_words[] = {{"exact", FTI_NUMERICS_EXACT}, {"float", FTI_NUMERICS_FLOAT}};
static const word kv_words[] = {{"auto", FTI_KV_AUTO},
                                {"f16", FTI_KV_F16},
                                {"bf16", FTI_KV_BF16},
                                {"q8_0", FTI_KV_Q8_0},
                                {"f32", FTI_KV_F32}};
static const word fused_words[] = {
    {"auto", FTI_FUSED_AUTO}, {"require", FTI_FUSED_REQUIRE}, {"off", FTI_FUSED_OFF}};
static const word kernel_words[] = {{"auto", UINT32_MAX}, {"reference", 0}};
static const word numa_words[] = {{"local", FTI_NUMA_LOCAL}, {"interleave", FTI_NUMA_INTERLEAVE}};
static const word auto_threads[] = {{"auto", 0}};
static const word auto_bytes[] = {{"auto", FTI_BYTES_AUTO}};
static const word auto_count[] = {{"auto", FTI_AUTO_COUNT}};

static ftk_status read_search(const reader *r, const fti_yaml_node *node);
static ftk_status read_allow(const reader *r, const fti_yaml_node *node);
static ftk_status read_select(const reader *r, const fti_yaml_node *node);
static ftk_status read_options(const reader *r, const fti_yaml_node *node);

#define FIELD(member)                                                                              \
    .offset = offsetof(struct ftk_config, member), .width = sizeof(((struct ftk_config *)0)->member)
#define WORDS(array)          .words = (array), .word_count = FTI_COUNT(array)
#define SECTION(path_)        .path = (path_), .form = FORM_SECTION
#define READER(path_, read_)  .path = (path_), .form = FORM_READER, .read = (read_)
#define WORD(path_, member)   .path = (path_), .form = FORM_WORD, FIELD(member)
#define SWITCH(path_, member) WORD(path_, member), WORDS(switch_words)
#define BOOL(path_, member, initial_)                                                              \
    .path = (path_), .form = FORM_BOOL, FIELD(member), .initial = (initial_)
#define NUMBER(path_, member, form_, initial_, min_, max_)                                         \
    .path = (path_), .form = (form_), FIELD(member), .initial = (initial_), .min = (min_),         \
    .max = (max_)
#define INTEGER(path_, member, initial_, min_, max_)                                               \
    NUMBER(path_, member, FORM_INTEGER, initial_, min_, max_)
#define SIZE(path_, member, initial_, min_)                                                        \
    NUMBER(path_, member, FORM_SIZE, initial_, min_, (uint64_t)1 << 50)

/* A section stands before its settings. */
static const setting settings[] = {
    {SECTION("providers")},
    {READER("providers.search", read_search)},
    {READER("providers.allow", read_allow)},
    {READER("providers.select", read_select)},
    {SECTION("backend")},
    {WORD("backend.kind", backend), WORDS(backend_words)},
    {INTEGER("backend.device", device, 0, 0, 63)},
    {SWITCH("backend.graphs", graphs)},
    {NUMBER("backend.kernels", kernel_mask, FORM_MASK, UINT32_MAX, 0, UINT32_MAX),
     WORDS(kernel_words)},
    {INTEGER("backend.threads", threads, 0, 0, 1024), WORDS(auto_threads)},
    {BOOL("backend.pin", pin, false)},
    {WORD("backend.numa", numa), WORDS(numa_words)},
    {WORD("numerics", numerics), WORDS(numerics_words)},
    {SECTION("memory")},
    {SIZE("memory.device", memory_device, FTI_BYTES_AUTO, 1), WORDS(auto_bytes)},
    /* Nothing is reserved unless the operator says so: what a device must keep
     * free depends on who else uses it. */
    {SIZE("memory.reserve", memory_reserve, 0, 0)},
    {SIZE("memory.host", memory_host, FTI_BYTES_AUTO, 1), WORDS(auto_bytes)},
    {INTEGER("memory.kv_tokens", kv_tokens, 0, 16, 1u << 24), .or_zero = true},
    {WORD("memory.kv_type", kv_type), WORDS(kv_words)},
    {NUMBER("memory.snapshots", snapshots, FORM_INTEGER, FTI_AUTO_COUNT, 0, 4096),
     WORDS(auto_count)},
    {SWITCH("memory.ladder", ladder)},
    {SECTION("scheduler")},
    {INTEGER("scheduler.max_running", max_running, 8, 1, 4096)},
    {INTEGER("scheduler.prefill_tokens", prefill_tokens, 512, 1, 8192)},
    {BOOL("scheduler.prefix_cache", prefix_cache, true)},
    {BOOL("scheduler.overcommit", overcommit, false)},
    {BOOL("scheduler.preempt", preempt, true)},
    {SIZE("scheduler.swap", swap, 0, 0)},
    {SECTION("moe")},
    {SWITCH("moe.residency", residency)},
    {INTEGER("moe.slots", slots, 0, 1, 1u << 24), WORDS(auto_threads)},
    {SWITCH("moe.coexecution", coexecution)},
    {BOOL("moe.collect_stats", collect_stats, false)},
    {SECTION("policy")},
    {WORD("policy.fused", fused), WORDS(fused_words)},
    {READER("provider_options", read_options)},
};

_Static_assert(FTI_COUNT(settings) <= FTI_MAX_SETTINGS, "a setting has no place for its line");

/* The name of a setting below `section`, which is "" for the top; NULL if it is
 * not directly below. */
static const char *name_below(const setting *s, const char *section) {
    size_t n = strlen(section);
    if (n && (strncmp(s->path, section, n) != 0 || s->path[n] != '.')) return NULL;
    const char *name = s->path + (n ? n + 1 : 0);
    return strchr(name, '.') ? NULL : name;
}

static const setting *find_below(const char *section, ftk_str key) {
    for (size_t i = 0; i < FTI_COUNT(settings); i++) {
        const char *name = name_below(&settings[i], section);
        if (name && fti_str_is(key, name)) return &settings[i];
    }
    return NULL;
}

static const setting *find_path(const char *path) {
    for (size_t i = 0; i < FTI_COUNT(settings); i++)
        if (strcmp(settings[i].path, path) == 0) return &settings[i];
    return NULL;
}

static size_t names_below(const char *section, const char *names[MAX_KEYS]) {
    size_t count = 0;
    for (size_t i = 0; i < FTI_COUNT(settings) && count < MAX_KEYS; i++) {
        const char *name = name_below(&settings[i], section);
        if (name) names[count++] = name;
    }
    return count;
}

/* The path of the first setting, in whatever section, that has exactly this name. */
static const char *path_named(ftk_str key) {
    for (size_t i = 0; i < FTI_COUNT(settings); i++) {
        const char *dot = strrchr(settings[i].path, '.');
        if (fti_str_is(key, dot ? dot + 1 : settings[i].path)) return settings[i].path;
    }
    return NULL;
}

/* A word that is exactly right elsewhere beats one that is only similar. */
static void advise_key(ftk_str key, const char *const *names, size_t count, advice *out) {
    const char *path = path_named(key);
    if (path)
        snprintf(out->text, sizeof out->text, "; did you mean '%s'?", path);
    else
        advise(key, names, count, out);
}

static ftk_status unknown_key(const reader *r, const char *section, const fti_yaml_node *node) {
    const char *names[MAX_KEYS];
    size_t count = names_below(section, names);
    advice near;
    advise_key(node->key, names, count, &near);
    fti_text known = {0};
    for (size_t i = 0; i < count; i++) fti_text_printf(&known, "%s%s", i ? ", " : "", names[i]);
    shown key;
    ftk_status status = fti_fail(r->err, FTK_E_CONFIG_KEY,
                                 "%s:%u: %s%s%s: unknown key, allowed: %s%s", r->origin,
                                 node->key_line, section, *section ? "." : "",
                                 show(node->key, &key), known.data ? known.data : "", near.text);
    fti_text_free(&known);
    return status;
}

/* ---- scalar values ---- */

/* Value of a hexadecimal digit, 16 if it is none. */
static unsigned hex_digit(char c) {
    if (c >= '0' && c <= '9') return (unsigned)(c - '0');
    if (c >= 'a' && c <= 'f') return (unsigned)(c - 'a') + 10;
    if (c >= 'A' && c <= 'F') return (unsigned)(c - 'A') + 10;
    return 16;
}

static bool parse_mask(const fti_yaml_node *node, uint64_t *value) {
    ftk_str text = node->text;
    if (text.size < 3 || memcmp(text.data, "0x", 2) != 0) return fti_yaml_u64(node, value);
    if (node->quoted || text.size > 18) return false;
    uint64_t sum = 0;
    for (size_t i = 2; i < text.size; i++) {
        unsigned digit = hex_digit(text.data[i]);
        if (digit > 15) return false;
        sum = sum << 4 | digit;
    }
    *value = sum;
    return true;
}

static bool parse_number(const setting *s, const fti_yaml_node *node, uint64_t *value) {
    switch (s->form) {
    case FORM_INTEGER: return fti_yaml_u64(node, value);
    case FORM_SIZE: return fti_yaml_bytes(node, value);
    case FORM_MASK: return parse_mask(node, value);
    default: return false;
    }
}

static bool parse_value(const setting *s, const fti_yaml_node *node, uint64_t *value) {
    if (node->kind != FTI_YAML_SCALAR) return false;
    if (s->form == FORM_BOOL) {
        bool yes;
        if (!fti_yaml_bool(node, &yes)) return false;
        *value = yes;
        return true;
    }
    for (size_t i = 0; i < s->word_count; i++) {
        if (!fti_str_is(node->text, s->words[i].name)) continue;
        *value = s->words[i].value;
        return true;
    }
    uint64_t number;
    if (!parse_number(s, node, &number)) return false;
    if ((number < s->min || number > s->max) && !(number == 0 && s->or_zero)) return false;
    *value = number;
    return true;
}

static void describe_allowed(const setting *s, fti_text *out) {
    for (size_t i = 0; i < s->word_count; i++)
        fti_text_printf(out, "%s%s", i ? ", " : "", s->words[i].name);
    if (s->form == FORM_WORD) return;
    fti_text_printf(out, "%s%s", s->word_count ? ", " : "", s->or_zero ? "0, " : "");
    unsigned long long min = s->min, max = s->max;
    if (s->form == FORM_BOOL)
        fti_text_printf(out, "true, false");
    else if (s->form == FORM_INTEGER)
        fti_text_printf(out, "an integer from %llu to %llu", min, max);
    else if (s->form == FORM_MASK)
        fti_text_printf(out, "a mask of 32 bits such as 12 or 0xc");
    else
        fti_text_printf(
            out, "a size such as 8GiB (units B, KiB, MiB, GiB, TiB) from %llu to %llu B", min, max);
}

static ftk_status refuse_value(const reader *r, const setting *s, const fti_yaml_node *node) {
    const char *names[MAX_WORDS] = {"true", "false"};
    size_t count = s->form == FORM_BOOL ? 2 : 0;
    for (size_t i = 0; i < s->word_count && i < MAX_WORDS; i++) names[count++] = s->words[i].name;
    fti_text allowed = {0};
    describe_allowed(s, &allowed);
    shown found;
    advice near = {{0}};
    if (node->kind == FTI_YAML_SCALAR) advise(node->text, names, count, &near);
    ftk_status status = refuse(r, FTK_E_CONFIG_VALUE, node->line, s->path,
                               "found %s, allowed: %s%s", show_node(node, &found),
                               allowed.data ? allowed.data : "", near.text);
    fti_text_free(&allowed);
    return status;
}

_Static_assert(sizeof(fti_switch) == sizeof(uint32_t) &&
                   sizeof(fti_backend_kind) == sizeof(uint32_t) &&
                   sizeof(fti_numerics) == sizeof(uint32_t) &&
                   sizeof(fti_fused) == sizeof(uint32_t) && sizeof(bool) == 1,
               "store_value writes enumerations as 32-bit words and booleans as bytes");

static void store_value(struct ftk_config *config, const setting *s, uint64_t value) {
    char *place = (char *)config + s->offset;
    uint32_t narrow = (uint32_t)value;
    if (s->width == sizeof value)
        memcpy(place, &value, sizeof value);
    else if (s->width == sizeof narrow)
        memcpy(place, &narrow, sizeof narrow);
    else
        *(bool *)place = value != 0;
}

static ftk_status read_scalar(const reader *r, const setting *s, const fti_yaml_node *node) {
    uint64_t value;
    if (!parse_value(s, node, &value)) return refuse_value(r, s, node);
    store_value(r->config, s, value);
    r->config->setting_line[s - settings] = node->line ? node->line : FTI_SET_BY_OPTION;
    return FTK_OK;
}

/* ---- sections ---- */

static bool absent(const fti_yaml_node *node) {
    return node->kind == FTI_YAML_SCALAR && node->text.size == 0 && !node->quoted;
}

static ftk_status expect(const reader *r, const fti_yaml_node *node, fti_yaml_kind kind,
                         const char *path) {
    shown found;
    if (node->kind != kind)
        return refuse(r, FTK_E_CONFIG_VALUE, node->line, path, "found %s, allowed: %s",
                      show_node(node, &found),
                      kind == FTI_YAML_MAPPING    ? "a mapping of keys to values"
                      : kind == FTI_YAML_SEQUENCE ? "a list"
                                                  : "one text");
    if (node->count > MAX_ENTRIES)
        return refuse(r, FTK_E_CONFIG_VALUE, node->line, path,
                      "found %zu entries, allowed: at most %u", node->count, MAX_ENTRIES);
    return FTK_OK;
}

static ftk_status read_section(const reader *r, const char *section, const fti_yaml_node *node);

static ftk_status read_setting(const reader *r, const setting *s, const fti_yaml_node *node) {
    if (s->form == FORM_SECTION) return read_section(r, s->path, node);
    if (s->form == FORM_READER) return absent(node) ? FTK_OK : s->read(r, node);
    return read_scalar(r, s, node);
}

static ftk_status read_section(const reader *r, const char *section, const fti_yaml_node *node) {
    if (absent(node)) return FTK_OK;
    FTI_TRY(expect(r, node, FTI_YAML_MAPPING, *section ? section : "the configuration"));
    for (const fti_yaml_node *member = node->first; member; member = member->next) {
        const setting *s = find_below(section, member->key);
        if (!s) return unknown_key(r, section, member);
        FTI_TRY(read_setting(r, s, member));
    }
    return FTK_OK;
}

/* ---- names and paths ---- */

static bool lower_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static bool separator(char c) {
    return c == '.' || c == '_' || c == '-';
}

static bool valid_name(ftk_str name) {
    if (name.size == 0 || name.size > MAX_NAME || !lower_or_digit(name.data[0])) return false;
    for (size_t i = 1; i < name.size; i++)
        if (!lower_or_digit(name.data[i]) && !separator(name.data[i])) return false;
    return true;
}

static ftk_status check_name(const reader *r, unsigned line, const char *path, ftk_str name) {
    shown found;
    if (valid_name(name)) return FTK_OK;
    return refuse(
        r, FTK_E_CONFIG_VALUE, line, path,
        "found '%s', allowed: a name of 1 to %u characters a-z 0-9 . _ - that begins with "
        "a letter or digit",
        show(name, &found), MAX_NAME);
}

/* "architecture/container": architectures of some formats have capitals. */
static bool valid_claim(ftk_str claim) {
    size_t slashes = 0, n = 0; /* n: length of the present part */
    for (size_t i = 0; i < claim.size; i++) {
        char c = claim.data[i];
        if (c == '/') {
            if (n == 0) return false;
            slashes++;
            n = 0;
        } else if (!lower_or_digit(c) && !(c >= 'A' && c <= 'Z') && !separator(c)) {
            return false;
        } else if (++n > MAX_NAME) {
            return false;
        }
    }
    return slashes == 1 && n > 0;
}

/* Why a path cannot be one, or NULL. */
static const char *path_fault(ftk_str path) {
    if (path.size == 0 || path.data[0] != '/') return "it does not begin with /";
    if (path.size >= PATH_MAX) return "it is too long";
    for (size_t i = 0; i < path.size;) {
        size_t begin = ++i;
        while (i < path.size && path.data[i] != '/') i++;
        ftk_str part = {path.data + begin, i - begin};
        if (part.size == 0) return "it has an empty component (// or a / at the end)";
        if (fti_str_is(part, ".") || fti_str_is(part, "..")) return "it has a component . or ..";
    }
    return NULL;
}

static ftk_status read_path(const reader *r, const fti_yaml_node *node, const char *path,
                            char **out) {
    FTI_TRY(expect(r, node, FTI_YAML_SCALAR, path));
    const char *fault = path_fault(node->text);
    shown found;
    if (fault)
        return refuse(r, FTK_E_CONFIG_VALUE, node->line, path,
                      "found %s, allowed: an absolute path; %s", show_node(node, &found), fault);
    return copy_text(r, node->text, out);
}

/* ---- providers ---- */

/* Each folder is read as often as it is listed. */
static ftk_status refuse_equal_folders(const reader *r, unsigned line, const char *path) {
    char *const *search = r->config->search;
    size_t last = r->config->search_count - 1;
    shown found;
    for (size_t i = 0; i < last; i++)
        if (strcmp(search[i], search[last]) == 0)
            return refuse(r, FTK_E_CONFIG_VALUE, line, path,
                          "found '%s' a second time, allowed: each folder once; remove this line",
                          show(fti_str(search[last]), &found));
    return FTK_OK;
}

static ftk_status read_search(const reader *r, const fti_yaml_node *node) {
    FTI_TRY(expect(r, node, FTI_YAML_SEQUENCE, "providers.search"));
    struct ftk_config *config = r->config;
    config->search = fti_calloc(node->count, sizeof *config->search);
    if (!config->search) return no_memory(r);
    for (const fti_yaml_node *entry = node->first; entry; entry = entry->next) {
        char path[48];
        snprintf(path, sizeof path, "providers.search[%zu]", config->search_count);
        FTI_TRY(read_path(r, entry, path, &config->search[config->search_count]));
        config->search_count++;
        FTI_TRY(refuse_equal_folders(r, entry->line, path));
    }
    return FTK_OK;
}

static ftk_status read_digest(const reader *r, const fti_yaml_node *node, const char *path,
                              char **out) {
    FTI_TRY(expect(r, node, FTI_YAML_SCALAR, path));
    bool valid = node->text.size == 64;
    for (size_t i = 0; valid && i < 64; i++) valid = hex_digit(node->text.data[i]) < 16;
    shown found;
    if (!valid)
        return refuse(r, FTK_E_CONFIG_VALUE, node->line, path,
                      "found %s (%llu characters), allowed: 64 hexadecimal digits",
                      show_node(node, &found), (unsigned long long)node->text.size);
    FTI_TRY(copy_text(r, node->text, out));
    for (char *c = *out; *c; c++)
        if (*c >= 'A' && *c <= 'F') *c = (char)(*c - 'A' + 'a');
    return FTK_OK;
}

static ftk_status read_allow_member(const reader *r, const fti_yaml_node *node, const char *entry,
                                    fti_allow *allow) {
    static const char *const names[] = {"name", "path", "sha256"};
    size_t i = 0;
    while (i < FTI_COUNT(names) && !fti_str_is(node->key, names[i])) i++;
    shown key;
    advice near;
    if (i == FTI_COUNT(names))
        return refuse(r, FTK_E_CONFIG_KEY, node->key_line, entry,
                      "unknown key '%s', allowed: name, path, sha256%s", show(node->key, &key),
                      advise(node->key, names, FTI_COUNT(names), &near));
    char path[64];
    snprintf(path, sizeof path, "%s.%s", entry, names[i]);
    if (i == 1) return read_path(r, node, path, &allow->path);
    if (i == 2) return read_digest(r, node, path, &allow->sha256);
    FTI_TRY(expect(r, node, FTI_YAML_SCALAR, path));
    FTI_TRY(check_name(r, node->line, path, node->text));
    return copy_text(r, node->text, &allow->name);
}

static ftk_status read_allow_entry(const reader *r, const fti_yaml_node *node, const char *entry,
                                   fti_allow *allow) {
    FTI_TRY(expect(r, node, FTI_YAML_MAPPING, entry));
    allow->line = node->line;
    for (const fti_yaml_node *member = node->first; member; member = member->next)
        FTI_TRY(read_allow_member(r, member, entry, allow));
    if (!allow->name || !allow->path)
        return refuse(r, FTK_E_CONFIG_VALUE, node->line, entry,
                      "found no %s, allowed: name, path and optionally sha256",
                      allow->name ? "path" : "name");
    return FTK_OK;
}

static const fti_allow *find_allow(const struct ftk_config *config, const char *name) {
    for (size_t i = 0; i < config->allow_count; i++)
        if (strcmp(config->allow[i].name, name) == 0) return &config->allow[i];
    return NULL;
}

static ftk_status read_allow(const reader *r, const fti_yaml_node *node) {
    FTI_TRY(expect(r, node, FTI_YAML_SEQUENCE, "providers.allow"));
    struct ftk_config *config = r->config;
    config->allow = fti_calloc(node->count, sizeof *config->allow);
    if (!config->allow) return no_memory(r);
    for (const fti_yaml_node *item = node->first; item; item = item->next) {
        char entry[48];
        snprintf(entry, sizeof entry, "providers.allow[%zu]", config->allow_count);
        fti_allow allow = {0};
        ftk_status status = read_allow_entry(r, item, entry, &allow);
        const fti_allow *first = status == FTK_OK ? find_allow(config, allow.name) : NULL;
        if (first)
            status = refuse(r, FTK_E_CONFIG_VALUE, item->line, entry,
                            "found the name '%s' again, first given in line %u; keep one entry",
                            allow.name, first->line);
        if (status != FTK_OK) {
            fti_free(allow.name);
            fti_free(allow.path);
            fti_free(allow.sha256);
            return status;
        }
        config->allow[config->allow_count++] = allow;
    }
    return FTK_OK;
}

static ftk_status read_select_entry(const reader *r, const fti_yaml_node *node,
                                    fti_select *select) {
    shown text;
    if (!valid_claim(node->key))
        return refuse(r, FTK_E_CONFIG_VALUE, node->key_line, "providers.select",
                      "found the key '%s', allowed: architecture/container, such as arch/gguf",
                      show(node->key, &text));
    select->line = node->key_line;
    FTI_TRY(copy_text(r, node->key, &select->claim));
    char path[192];
    snprintf(path, sizeof path, "providers.select.%s", select->claim);
    FTI_TRY(expect(r, node, FTI_YAML_SCALAR, path));
    FTI_TRY(check_name(r, node->line, path, node->text));
    return copy_text(r, node->text, &select->name);
}

static ftk_status read_select(const reader *r, const fti_yaml_node *node) {
    FTI_TRY(expect(r, node, FTI_YAML_MAPPING, "providers.select"));
    struct ftk_config *config = r->config;
    config->select = fti_calloc(node->count, sizeof *config->select);
    if (!config->select) return no_memory(r);
    for (const fti_yaml_node *member = node->first; member; member = member->next)
        FTI_TRY(read_select_entry(r, member, &config->select[config->select_count++]));
    return FTK_OK;
}

/* After everything is read: select may stand before allow. */
static ftk_status check_selected(const reader *r, const fti_select *select) {
    const struct ftk_config *config = r->config;
    if (find_allow(config, select->name)) return FTK_OK;
    const char **names = fti_calloc(config->allow_count, sizeof *names);
    if (!names) return no_memory(r);
    for (size_t i = 0; i < config->allow_count; i++) names[i] = config->allow[i].name;
    advice near;
    char path[192];
    snprintf(path, sizeof path, "providers.select.%s", select->claim);
    ftk_status status = refuse(r, FTK_E_CONFIG_VALUE, select->line, path,
                               "found '%s', allowed: the name of an entry of providers.allow%s",
                               select->name,
                               advise(fti_str(select->name), names, config->allow_count, &near));
    fti_free(names);
    return status;
}

/* ---- options of providers, as JSON ---- */

static size_t digits(ftk_str text, size_t from) {
    size_t n = from;
    while (n < text.size && text.data[n] >= '0' && text.data[n] <= '9') n++;
    return n - from;
}

/* -?INTEGER(.DIGITS)?, the part of JSON's numbers that counts as a number here. */
static bool json_number(ftk_str text) {
    size_t i = text.size && text.data[0] == '-';
    size_t whole = digits(text, i);
    if (whole == 0 || (whole > 1 && text.data[i] == '0')) return false;
    i += whole;
    if (i == text.size) return true;
    size_t fraction = text.data[i] == '.' ? digits(text, i + 1) : 0;
    return fraction > 0 && i + 1 + fraction == text.size;
}

static ftk_status json_scalar(const reader *r, const fti_yaml_node *node, const char *path,
                              json_t **out) {
    bool yes;
    shown found;
    if (fti_yaml_bool(node, &yes)) {
        *out = json_boolean(yes);
    } else if (!node->quoted && json_number(node->text)) {
        /* jansson reads the number: it knows the decimal point of every locale. */
        json_error_t error;
        *out = json_loadb(node->text.data, (size_t)node->text.size, JSON_DECODE_ANY, &error);
        if (!*out && json_error_code(&error) != json_error_numeric_overflow) return no_memory(r);
        if (!*out)
            return refuse(r, FTK_E_CONFIG_VALUE, node->line, path,
                          "found %s, allowed: numbers of 64 bits; quote it to pass it as text",
                          show_node(node, &found));
    } else {
        *out = json_stringn(node->text.data, (size_t)node->text.size);
    }
    return *out ? FTK_OK : no_memory(r);
}

static ftk_status json_node(const reader *r, const fti_yaml_node *node, const char *path,
                            json_t **out);

static ftk_status json_members(const reader *r, const fti_yaml_node *node, const char *path,
                               json_t *parent) {
    size_t index = 0;
    for (const fti_yaml_node *child = node->first; child; child = child->next, index++) {
        char below[272];
        shown key;
        if (json_is_object(parent))
            snprintf(below, sizeof below, "%.180s.%s", path, show(child->key, &key));
        else
            snprintf(below, sizeof below, "%.180s[%zu]", path, index);
        json_t *value;
        FTI_TRY(json_node(r, child, below, &value));
        int failed = json_is_object(parent) ? json_object_set_new(parent, child->key.data, value)
                                            : json_array_append_new(parent, value);
        if (failed) return no_memory(r);
    }
    return FTK_OK;
}

static ftk_status json_node(const reader *r, const fti_yaml_node *node, const char *path,
                            json_t **out) {
    if (node->kind == FTI_YAML_SCALAR) return json_scalar(r, node, path, out);
    json_t *parent = node->kind == FTI_YAML_MAPPING ? json_object() : json_array();
    if (!parent) return no_memory(r);
    ftk_status status = json_members(r, node, path, parent);
    if (status == FTK_OK)
        *out = parent;
    else
        json_decref(parent);
    return status;
}

static int append_json(const char *data, size_t size, void *text) {
    fti_text_append(text, data, size);
    return ((fti_text *)text)->failed ? -1 : 0;
}

static ftk_status read_provider_options(const reader *r, const fti_yaml_node *node,
                                        fti_provider_options *options) {
    char path[128];
    snprintf(path, sizeof path, "provider_options.%s", options->name);
    FTI_TRY(expect(r, node, FTI_YAML_MAPPING, path));
    json_t *object;
    FTI_TRY(json_node(r, node, path, &object));
    fti_text text = {0};
    int failed = json_dump_callback(object, append_json, &text, JSON_COMPACT);
    json_decref(object);
    if (failed) {
        fti_text_free(&text);
        return no_memory(r);
    }
    options->json = text.data;
    return FTK_OK;
}

static ftk_status read_options(const reader *r, const fti_yaml_node *node) {
    FTI_TRY(expect(r, node, FTI_YAML_MAPPING, "provider_options"));
    struct ftk_config *config = r->config;
    config->options = fti_calloc(node->count, sizeof *config->options);
    if (!config->options) return no_memory(r);
    for (const fti_yaml_node *member = node->first; member; member = member->next) {
        fti_provider_options *options = &config->options[config->option_count++];
        FTI_TRY(check_name(r, member->key_line, "provider_options", member->key));
        FTI_TRY(copy_text(r, member->key, &options->name));
        options->line = member->key_line;
        FTI_TRY(read_provider_options(r, member, options));
    }
    return FTK_OK;
}

ftk_str fti_config_options(const struct ftk_config *config, ftk_str provider) {
    for (size_t i = 0; i < config->option_count; i++)
        if (fti_str_is(provider, config->options[i].name)) return fti_str(config->options[i].json);
    return fti_str("");
}

static bool knows_provider(const struct ftk_config *config, const char *name) {
    for (size_t i = 0; i < config->linked_count; i++)
        if (strcmp(config->linked[i]->manifest->name, name) == 0) return true;
    return find_allow(config, name) != NULL;
}

static ftk_status refuse_options(const struct ftk_config *config,
                                 const fti_provider_options *options, ftk_error *err) {
    const size_t count = config->allow_count + config->linked_count;
    const char **names = fti_calloc(count, sizeof *names);
    if (!names) return fti_no_memory(err, count * sizeof *names, "names of providers");
    for (size_t i = 0; i < config->allow_count; i++) names[i] = config->allow[i].name;
    for (size_t i = 0; i < config->linked_count; i++)
        names[config->allow_count + i] = config->linked[i]->manifest->name;
    advice near;
    ftk_status status = fti_fail(
        err, FTK_E_CONFIG_VALUE,
        "%s:%u: provider_options.%s: found options for '%s', allowed: those of a provider under "
        "providers.allow%s; correct the name or remove them",
        config->origin, options->line, options->name, options->name,
        advise(fti_str(options->name), names, count, &near));
    fti_free(names);
    return status;
}

ftk_status fti_config_check_options(const struct ftk_config *config, ftk_error *err) {
    for (size_t i = 0; i < config->option_count; i++)
        if (!knows_provider(config, config->options[i].name))
            return refuse_options(config, &config->options[i], err);
    return FTK_OK;
}

/* ---- settings as JSON ---- */

static uint64_t stored_value(const struct ftk_config *config, const setting *s) {
    const char *place = (const char *)config + s->offset;
    uint64_t wide;
    uint32_t narrow;
    if (s->width == sizeof wide) return memcpy(&wide, place, sizeof wide), wide;
    if (s->width == sizeof narrow) return memcpy(&narrow, place, sizeof narrow), narrow;
    return *(const bool *)place;
}

static json_t *value_json(const struct ftk_config *config, const setting *s) {
    uint64_t value = stored_value(config, s);
    for (size_t i = 0; i < s->word_count; i++)
        if (s->words[i].value == value) return json_string(s->words[i].name);
    if (s->form == FORM_BOOL) return json_boolean(value != 0);
    return json_integer((json_int_t)value);
}

static json_t *origin_json(const struct ftk_config *config, uint32_t line) {
    if (line == 0) return json_string("default");
    if (line == FTI_SET_BY_OPTION) return json_string("option");
    return json_sprintf("%s:%u", config->origin, line);
}

json_t *fti_config_settings(const struct ftk_config *config) {
    json_t *all = json_object();
    for (size_t i = 0; all && i < FTI_COUNT(settings); i++) {
        if (!settings[i].width) continue;
        json_t *one = json_pack("{s:o, s:o}", "value", value_json(config, &settings[i]), "origin",
                                origin_json(config, config->setting_line[i]));
        if (json_object_set_new(all, settings[i].path, one) == 0) continue;
        json_decref(all);
        all = NULL;
    }
    return all;
}

/* ---- whole configurations ---- */

static ftk_status read_config(const reader *r, const fti_yaml_node *root) {
    FTI_TRY(read_section(r, "", root));
    for (size_t i = 0; i < r->config->select_count; i++)
        FTI_TRY(check_selected(r, &r->config->select[i]));
    return FTK_OK;
}

/* The end of a long origin says more than its beginning. */
static const char *show_origin(const char *origin, char shortened[ORIGIN_SHOWN + 8]) {
    size_t n = strlen(origin);
    if (n <= ORIGIN_SHOWN) return origin;
    const char *tail = origin + n - ORIGIN_SHOWN;
    while (*tail && !starts_character(*tail)) tail++;
    snprintf(shortened, ORIGIN_SHOWN + 8, "...%s", tail);
    return shortened;
}

static ftk_status parse_into(struct ftk_config *config, const char *text, size_t size,
                             ftk_error *err) {
    char shortened[ORIGIN_SHOWN + 8];
    reader r = {config, show_origin(config->origin, shortened), err};
    fti_yaml *yaml;
    FTI_TRY(fti_yaml_parse(text, size, r.origin, &yaml, err));
    ftk_status status = read_config(&r, fti_yaml_root(yaml));
    fti_yaml_free(yaml);
    return status;
}

static struct ftk_config *new_config(const char *origin) {
    struct ftk_config *config = fti_calloc(1, sizeof *config);
    if (!config) return NULL;
    for (size_t i = 0; i < FTI_COUNT(settings); i++)
        if (settings[i].width) store_value(config, &settings[i], settings[i].initial);
    config->origin = fti_strndup(origin, strlen(origin));
    if (config->origin) return config;
    ftk_config_free(config);
    return NULL;
}

static ftk_status parse_text(const char *text, size_t size, const char *origin, bool from_file,
                             ftk_config **out, ftk_error *err) {
    struct ftk_config *config = new_config(origin);
    if (!config) return fti_no_memory(err, sizeof *config + strlen(origin), "a configuration");
    config->from_file = from_file;
    ftk_status status = parse_into(config, text, size, err);
    if (status == FTK_OK)
        *out = config;
    else
        ftk_config_free(config);
    return status;
}

ftk_status ftk_config_parse(const char *text, size_t size, const char *origin, ftk_config **out,
                            ftk_error *err) {
    if (!out) return fti_fail(err, FTK_E_ARGUMENT, "ftk_config_parse: out is NULL");
    *out = NULL;
    if (!text && size) return fti_fail(err, FTK_E_ARGUMENT, "ftk_config_parse: text is NULL");
    return parse_text(text, size, origin ? origin : "configuration", false, out, err);
}

ftk_status ftk_config_link_provider(ftk_config *config, const ftk_provider *(*entry)(void),
                                    ftk_error *err) {
    if (!config || !entry)
        return fti_fail(err, FTK_E_ARGUMENT, "ftk_config_link_provider: %s is NULL",
                        config ? "entry" : "config");
    const fti_provider *provider;
    FTI_TRY(fti_provider_link(entry, &provider, err));
    for (size_t i = 0; i < config->linked_count; i++)
        if (strcmp(config->linked[i]->manifest->name, provider->manifest->name) == 0)
            return fti_fail(err, FTK_E_PROVIDER_DUPLICATE,
                            "provider %s: found a second one of that name linked in, wanted each "
                            "name once",
                            provider->manifest->name);
    if (config->linked_count == FTI_MAX_LINKED)
        return fti_fail(err, FTK_E_ARGUMENT, "more than %u providers are linked in",
                        FTI_MAX_LINKED);
    config->linked[config->linked_count++] = provider;
    return FTK_OK;
}

void ftk_config_free(ftk_config *config) {
    if (!config) return;
    for (size_t i = 0; i < config->search_count; i++) fti_free(config->search[i]);
    for (size_t i = 0; i < config->allow_count; i++) {
        fti_free(config->allow[i].name);
        fti_free(config->allow[i].path);
        fti_free(config->allow[i].sha256);
    }
    for (size_t i = 0; i < config->select_count; i++) {
        fti_free(config->select[i].claim);
        fti_free(config->select[i].name);
    }
    for (size_t i = 0; i < config->option_count; i++) {
        fti_free(config->options[i].name);
        fti_free(config->options[i].json);
    }
    fti_free(config->search);
    fti_free(config->allow);
    fti_free(config->select);
    fti_free(config->options);
    fti_free(config->origin);
    fti_free(config);
}

/* ---- one value ---- */

static bool printable(const char *text) {
    for (; *text; text++)
        if (*text < 0x20 || *text > 0x7e) return false;
    return true;
}

static bool below_path(const char *key, const char *path) {
    size_t n = strlen(path);
    return strncmp(key, path, n) == 0 && (key[n] == 0 || key[n] == '.');
}

static ftk_status refuse_option(const reader *r, const char *key, const setting *s) {
    if (below_path(key, "providers") || below_path(key, "provider_options"))
        return fti_fail(r->err, FTK_E_CONFIG_KEY,
                        "%s: cannot be set one by one; write it in the configuration", r->origin);
    if (s)
        return fti_fail(r->err, FTK_E_CONFIG_KEY,
                        "%s: is a section; set one of its keys, such as %s", r->origin, s[1].path);
    const char *paths[FTI_COUNT(settings)];
    size_t count = 0;
    for (size_t i = 0; i < FTI_COUNT(settings); i++)
        if (settings[i].width) paths[count++] = settings[i].path;
    advice near;
    advise_key(fti_str(key), paths, count, &near);
    return fti_fail(r->err, FTK_E_CONFIG_KEY, "%s: unknown key%s", r->origin, near.text);
}

ftk_status ftk_config_set(ftk_config *config, const char *key, const char *value, ftk_error *err) {
    if (!config || !key || !value)
        return fti_fail(err, FTK_E_ARGUMENT, "ftk_config_set: %s is NULL",
                        !config ? "config" : (!key ? "key" : "value"));
    if (!printable(key))
        return fti_fail(err, FTK_E_CONFIG_KEY, "option: a key has characters other than ASCII's");
    char origin[96];
    shown text;
    snprintf(origin, sizeof origin, "option %s", show(fti_str(key), &text));
    reader r = {config, origin, err};
    const setting *s = find_path(key);
    if (!s || !s->width) return refuse_option(&r, key, s);
    if (!printable(value))
        return fti_fail(err, FTK_E_CONFIG_VALUE,
                        "%s: found a value with characters other than ASCII's", origin);
    fti_yaml_node node = {.kind = FTI_YAML_SCALAR, .text = fti_str(value)};
    return read_scalar(&r, s, &node);
}

/* ---- files ---- */

/* Adds `path` to the absolute path in `out`, resolving . and .. as written. No
 * link is followed: the trust checks refuse links, so none can be hidden by
 * that. */
static void join_path(fti_text *out, const char *path) {
    while (*path) {
        size_t n = strcspn(path, "/");
        ftk_str part = {path, n};
        path += n + (path[n] == '/');
        if (n == 0 || fti_str_is(part, ".")) continue;
        if (!fti_str_is(part, "..")) {
            fti_text_printf(out, "/%.*s", (int)n, part.data);
            continue;
        }
        while (out->size && out->data[--out->size] != '/') continue;
        if (out->data) out->data[out->size] = 0;
    }
}

static ftk_status read_failure(const char *path, int error, ftk_error *err) {
    char text[128];
    fti_fail(err, FTK_E_CONFIG_READ, "%s: configuration cannot be read: %s", path,
             strerror_r(error, text, sizeof text));
    return FTK_E_CONFIG_READ;
}

static ftk_status absolute_path(const char *path, fti_text *out, ftk_error *err) {
    char folder[PATH_MAX];
    if (path[0] != '/') {
        if (!getcwd(folder, sizeof folder)) return read_failure(path, errno, err);
        join_path(out, folder);
    }
    join_path(out, path);
    if (!out->size) fti_text_append(out, "/", 1);
    if (!out->failed && out->data) return FTK_OK;
    fti_no_memory(err, strlen(path), "the path of a configuration");
    return FTK_E_NO_MEMORY;
}

/* So that a file that is missing or unreadable is not called untrusted; links,
 * even those that lead in circles, are left to the trust checks. */
static ftk_status check_readable(const char *path, ftk_error *err) {
    struct stat st;
    if (lstat(path, &st) != 0) return errno == ELOOP ? FTK_OK : read_failure(path, errno, err);
    if (S_ISREG(st.st_mode) && faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) != 0)
        return read_failure(path, errno, err);
    return FTK_OK;
}

/* Reads one byte more than is allowed, which the parser then refuses. */
static ftk_status read_fd(int fd, const char *path, fti_text *text, ftk_error *err) {
    char chunk[16384];
    while (text->size <= FTI_YAML_MAX_BYTES) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n == 0) break;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return read_failure(path, errno, err);
        fti_text_append(text, chunk, (size_t)n);
        if (text->failed) return fti_no_memory(err, text->size + (size_t)n, path);
    }
    return FTK_OK;
}

static ftk_status load_file(const char *absolute, const char *path, ftk_config **out,
                            ftk_error *err) {
    int fd;
    FTI_TRY(check_readable(absolute, err));
    FTI_TRY(fti_trusted_open(absolute, FTK_E_CONFIG_TRUST, FTK_E_CONFIG_TRUST, &fd, err));
    fti_text text = {0};
    ftk_status status = read_fd(fd, path, &text, err);
    close(fd);
    if (status == FTK_OK) status = parse_text(text.data, text.size, path, true, out, err);
    fti_text_free(&text);
    return status;
}

ftk_status ftk_config_load(const char *path, ftk_config **out, ftk_error *err) {
    if (!path || !out)
        return fti_fail(err, FTK_E_ARGUMENT, "ftk_config_load: %s is NULL", path ? "out" : "path");
    *out = NULL;
    if (!*path) return fti_fail(err, FTK_E_CONFIG_READ, "the configuration's path is empty");
    fti_text absolute = {0};
    ftk_status status = absolute_path(path, &absolute, err);
    if (status == FTK_OK) status = load_file(absolute.data, path, out, err);
    fti_text_free(&absolute);
    return status;
}
