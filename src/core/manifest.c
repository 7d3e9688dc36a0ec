/*
 * manifest.c: reads NAME.provider.yaml, the part of a provider that can be
 * judged without its code. Whatever parses has every required key, in the form
 * that the ELF note and the table are compared with.
 */
#include "core/loader.h"
#include "core/semver.h"
#include "core/yaml.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define MANIFEST_VERSION 1u
#define VALUE_MAX        1024u /* bytes of one value, and of a list once joined */
#define SUFFIX           ".provider.yaml"

typedef enum { NUMBER, NAME, FILE_NAME, WORD, TEXT, RANGE, PLATFORM_NAME, PURPOSE, LIST } form;

typedef struct field {
    const char *key;
    form form;
    bool required;
    size_t offset; /* of the char * or uint32_t in fti_manifest */
} field;

#define AT(member) offsetof(fti_manifest, member)

static const field fields[] = {
    {"manifest_version", NUMBER, true, AT(manifest_version)},
    {"name", NAME, true, AT(name)},
    {"version", WORD, true, AT(version)},
    {"distribution", TEXT, false, AT(distribution)},
    {"distribution_version", TEXT, false, AT(distribution_version)},
    {"api_level", NUMBER, true, AT(api_level)},
    {"min_host_level", NUMBER, true, AT(min_host_level)},
    {"core_range", RANGE, true, AT(core_range)},
    {"platform", PLATFORM_NAME, true, AT(platform)},
    {"library", FILE_NAME, true, AT(library)},
    {"architectures", LIST, true, AT(architectures)},
    {"containers", LIST, true, AT(containers)},
    {"backends", LIST, true, AT(backends)},
    {"license", TEXT, true, AT(license)},
    {"device_code", LIST, false, AT(device_code)},
    {"provides", PURPOSE, false, AT(provides)},
};

typedef struct reader {
    fti_manifest *manifest;
    ftk_error *err;
} reader;

static ftk_status refuse(const reader *r, const fti_yaml_node *node, const char *wanted) {
    if (node->kind == FTI_YAML_SCALAR)
        return fti_fail(r->err, FTK_E_PROVIDER_MANIFEST, "%s:%u: %.*s: found '%.*s', wanted %s",
                        r->manifest->path, node->line, FTI_STR_ARGS(node->key),
                        FTI_STR_ARGS(node->text), wanted);
    return fti_fail(r->err, FTK_E_PROVIDER_MANIFEST, "%s:%u: %.*s: found a %s, wanted %s",
                    r->manifest->path, node->line, FTI_STR_ARGS(node->key),
                    node->kind == FTI_YAML_SEQUENCE ? "list" : "mapping", wanted);
}

/* Text goes into messages and is compared line by line with the ELF note. */
static bool is_text(ftk_str s) {
    if (s.size > VALUE_MAX) return false;
    for (uint64_t i = 0; i < s.size; i++)
        if ((unsigned char)s.data[i] < 0x20 || s.data[i] == 0x7f) return false;
    return true;
}

static bool is_word(ftk_str s) {
    return s.size > 0 && is_text(s) && !memchr(s.data, ' ', (size_t)s.size);
}

/* Names become names of files and keys of the configuration. */
static bool is_name(ftk_str s) {
    if (s.size == 0 || s.size > 64) return false;
    for (uint64_t i = 0; i < s.size; i++) {
        char c = s.data[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'))
            return false;
    }
    return true;
}

static bool is_file_name(ftk_str s) {
    return is_word(s) && s.size < 256 && !memchr(s.data, '/', (size_t)s.size) && s.data[0] != '.';
}

static bool is_range(ftk_str s) {
    return s.size <= VALUE_MAX &&
           fti_semver_in_range((fti_semver){0, 0, 0}, s) != FTI_RANGE_MALFORMED;
}

static ftk_status check_scalar(const reader *r, const fti_yaml_node *node, const field *f) {
    ftk_str s = node->text;
    bool scalar = node->kind == FTI_YAML_SCALAR;
    switch (f->form) {
    case NAME:
        if (scalar && is_name(s)) return FTK_OK;
        return refuse(r, node, "1 to 64 of a-z, 0-9, '_' and '-'");
    case FILE_NAME:
        if (scalar && is_file_name(s)) return FTK_OK;
        return refuse(r, node, "the name of a file in this folder, without '/'");
    case WORD:
        if (scalar && is_word(s)) return FTK_OK;
        return refuse(r, node, "one word");
    case RANGE:
        if (scalar && is_range(s)) return FTK_OK;
        return refuse(r, node, "a range of versions such as \">=0.1.0 <0.2.0\"");
    case PLATFORM_NAME:
        if (scalar && fti_str_is(s, FTI_PLATFORM)) return FTK_OK;
        return refuse(r, node, FTI_PLATFORM ", the platform of this libfreetoken");
    case PURPOSE:
        if (scalar && (fti_str_is(s, "model") || fti_str_is(s, "format"))) return FTK_OK;
        return refuse(r, node, "model or format");
    default:
        if (scalar && is_text(s) && (s.size > 0 || !f->required)) return FTK_OK;
        return refuse(r, node, f->required ? "one line of text" : "one line of text, or nothing");
    }
}

static ftk_status join_list(const reader *r, const fti_yaml_node *node, fti_text *joined) {
    if (node->kind != FTI_YAML_SEQUENCE || node->count == 0)
        return refuse(r, node, "a list of one or more words");
    for (const fti_yaml_node *item = node->first; item; item = item->next) {
        if (item->kind != FTI_YAML_SCALAR || !is_word(item->text))
            return fti_fail(r->err, FTK_E_PROVIDER_MANIFEST,
                            "%s:%u: %.*s: found an entry that is not one word, wanted a list of "
                            "words",
                            r->manifest->path, item->line, FTI_STR_ARGS(node->key));
        if (joined->data && fti_list_has(joined->data, item->text))
            return fti_fail(r->err, FTK_E_PROVIDER_MANIFEST,
                            "%s:%u: %.*s: found '%.*s' twice, wanted each word once",
                            r->manifest->path, item->line, FTI_STR_ARGS(node->key),
                            FTI_STR_ARGS(item->text));
        fti_text_printf(joined, joined->size ? " %.*s" : "%.*s", FTI_STR_ARGS(item->text));
        if (joined->size > VALUE_MAX) return refuse(r, node, "at most 1024 bytes of words");
    }
    return joined->failed ? fti_no_memory(r->err, VALUE_MAX, "a provider manifest") : FTK_OK;
}

static ftk_status store_text(const reader *r, const field *f, const char *data, size_t size) {
    char **slot = (char **)(void *)((char *)r->manifest + f->offset);
    *slot = fti_strndup(data, size);
    return *slot ? FTK_OK : fti_no_memory(r->err, size + 1, "a provider manifest");
}

static ftk_status read_list(const reader *r, const fti_yaml_node *node, const field *f) {
    fti_text joined = {0};
    ftk_status status = join_list(r, node, &joined);
    if (status == FTK_OK) status = store_text(r, f, joined.data, joined.size);
    fti_text_free(&joined);
    return status;
}

static ftk_status read_number(const reader *r, const fti_yaml_node *node, const field *f) {
    uint64_t value;
    if (node->kind != FTI_YAML_SCALAR || !fti_yaml_u64(node, &value) || value > UINT32_MAX)
        return refuse(r, node, "an integer from 0 to 4294967295");
    *(uint32_t *)(void *)((char *)r->manifest + f->offset) = (uint32_t)value;
    return FTK_OK;
}

static ftk_status read_field(const reader *r, const fti_yaml_node *node, const field *f) {
    if (f->form == NUMBER) return read_number(r, node, f);
    if (f->form == LIST) return read_list(r, node, f);
    FTI_TRY(check_scalar(r, node, f));
    return store_text(r, f, node->text.data, (size_t)node->text.size);
}

static ftk_status refuse_unknown(const reader *r, const fti_yaml_node *node) {
    const char *names[FTI_COUNT(fields)];
    for (size_t i = 0; i < FTI_COUNT(fields); i++) names[i] = fields[i].key;
    const char *near = fti_nearest(node->key, names, FTI_COUNT(names));
    return fti_fail(r->err, FTK_E_PROVIDER_MANIFEST,
                    "%s:%u: found the unknown key '%.*s', wanted only keys of manifest_version "
                    "%u%s%s%s",
                    r->manifest->path, node->key_line, FTI_STR_ARGS(node->key), MANIFEST_VERSION,
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static const field *find_field(ftk_str key) {
    for (size_t i = 0; i < FTI_COUNT(fields); i++)
        if (fti_str_is(key, fields[i].key)) return &fields[i];
    return NULL;
}

/* Before all else: the keys of another version are not ours to call unknown. */
static ftk_status check_manifest_version(const reader *r, const fti_yaml_node *root) {
    const fti_yaml_node *node = fti_yaml_member(root, fields[0].key);
    if (!node) return FTK_OK;
    FTI_TRY(read_number(r, node, &fields[0]));
    if (r->manifest->manifest_version == MANIFEST_VERSION) return FTK_OK;
    return refuse(r, node, "1, the version that this libfreetoken reads");
}

static ftk_status check_missing(const reader *r, const fti_yaml_node *root) {
    for (size_t i = 0; i < FTI_COUNT(fields); i++) {
        if (fti_yaml_member(root, fields[i].key)) continue;
        if (fields[i].required)
            return fti_fail(r->err, FTK_E_PROVIDER_MANIFEST,
                            "%s:%u: found no key '%s', wanted it in every manifest",
                            r->manifest->path, root->line, fields[i].key);
        FTI_TRY(store_text(r, &fields[i], "", 0));
    }
    return FTK_OK;
}

static ftk_status check_file_matches(const reader *r, const fti_yaml_node *root) {
    const char *file = strrchr(r->manifest->path, '/') + 1;
    size_t n = strlen(r->manifest->name);
    if (strncmp(file, r->manifest->name, n) == 0 && strcmp(file + n, SUFFIX) == 0) return FTK_OK;
    return fti_fail(r->err, FTK_E_PROVIDER_MANIFEST,
                    "%s:%u: name: found '%s' in a file named '%s', wanted the file name to be "
                    "'%s" SUFFIX "'",
                    r->manifest->path, fti_yaml_member(root, "name")->line, r->manifest->name, file,
                    r->manifest->name);
}

static ftk_status read_tree(const reader *r, const fti_yaml_node *root) {
    if (root->kind != FTI_YAML_MAPPING)
        return fti_fail(r->err, FTK_E_PROVIDER_MANIFEST,
                        "%s:%u: found a document that is not a mapping, wanted 'key: value' lines",
                        r->manifest->path, root->line);
    FTI_TRY(check_manifest_version(r, root));
    for (const fti_yaml_node *node = root->first; node; node = node->next) {
        const field *f = find_field(node->key);
        if (!f) return refuse_unknown(r, node);
        FTI_TRY(read_field(r, node, f));
    }
    FTI_TRY(check_missing(r, root));
    return check_file_matches(r, root);
}

static ftk_status read_all(int fd, const char *path, fti_text *text, ftk_error *err) {
    char block[4096];
    for (;;) {
        ssize_t n = read(fd, block, sizeof block);
        if (n == 0) break;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return fti_fail(err, FTK_E_PROVIDER_MANIFEST, "%s: cannot read: %s", path,
                            strerrordesc_np(errno));
        fti_text_append(text, block, (size_t)n);
        if (text->size > FTI_YAML_MAX_BYTES)
            return fti_fail(err, FTK_E_PROVIDER_MANIFEST,
                            "%s: found more than %u bytes, wanted a manifest of fewer", path,
                            FTI_YAML_MAX_BYTES);
    }
    return text->failed ? fti_no_memory(err, text->size, "a provider manifest") : FTK_OK;
}

/* What the shared reader of YAML calls a fault of the configuration is one of
 * the manifest here; its message already names file and line. */
static ftk_status parse(const char *text, size_t size, const char *path, fti_yaml **yaml,
                        ftk_error *err) {
    ftk_error inner = FTK_ERROR_INIT;
    ftk_status status = fti_yaml_parse(text, size, path, yaml, &inner);
    if (status == FTK_OK) return FTK_OK;
    if (status == FTK_E_CONFIG_SYNTAX || status == FTK_E_CONFIG_KEY)
        status = FTK_E_PROVIDER_MANIFEST;
    return fti_fail(err, status, "%-s", inner.message);
}

static ftk_status open_manifest(const char *path, int *fd, ftk_error *err) {
    ftk_status status = fti_trusted_open(path, FTK_E_PROVIDER_PATH, FTK_E_PROVIDER_PERMISSION, fd,
                                         err);
    if (status == FTK_E_PROVIDER_PATH && path[0] == '/' && access(path, F_OK) != 0 &&
        errno == ENOENT)
        return fti_fail(err, FTK_E_PROVIDER_MANIFEST,
                        "'%s': found no such file, wanted the provider's manifest beside its "
                        "library; install the provider whole, or correct its path",
                        path);
    return status;
}

static ftk_status fill(const reader *r, const char *text, size_t size) {
    fti_yaml *yaml = NULL;
    FTI_TRY(parse(text, size, r->manifest->path, &yaml, r->err));
    ftk_status status = read_tree(r, fti_yaml_root(yaml));
    fti_yaml_free(yaml);
    return status;
}

ftk_status fti_manifest_parse(const char *text, size_t size, const char *path, fti_manifest **out,
                              ftk_error *err) {
    reader r = {fti_calloc(1, sizeof(fti_manifest)), err};
    if (r.manifest) r.manifest->path = fti_strndup(path, strlen(path));
    ftk_status status = r.manifest && r.manifest->path
                            ? fill(&r, text, size)
                            : fti_no_memory(err, sizeof *r.manifest, "a provider manifest");
    if (status == FTK_OK)
        *out = r.manifest;
    else
        fti_manifest_free(r.manifest);
    return status;
}

ftk_status fti_manifest_read(const char *path, fti_manifest **out, ftk_error *err) {
    int fd;
    fti_text text = {0};
    FTI_TRY(open_manifest(path, &fd, err));
    ftk_status status = read_all(fd, path, &text, err);
    close(fd);
    if (status == FTK_OK)
        status = fti_manifest_parse(text.data ? text.data : "", text.size, path, out, err);
    fti_text_free(&text);
    return status;
}

void fti_manifest_free(fti_manifest *manifest) {
    if (!manifest) return;
    fti_free(manifest->path);
    for (size_t i = 0; i < FTI_COUNT(fields); i++)
        if (fields[i].form != NUMBER)
            fti_free(*(char **)(void *)((char *)manifest + fields[i].offset));
    fti_free(manifest);
}

bool fti_list_has(const char *list, ftk_str word) {
    while (word.size > 0 && *list) {
        size_t n = strcspn(list, " ");
        if (fti_str_eq((ftk_str){list, n}, word)) return true;
        list += n;
        list += *list == ' ';
    }
    return false;
}
