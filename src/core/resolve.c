/*
 * resolve.c: which provider a checkpoint goes to, decided from manifests alone: of the
 * allowed and the linked-in providers, the one that claims (architecture, container). What
 * is not decided by the configuration is refused; nothing wins by its place in a list.
 */
#include "core/contract.h"
#include "core/loading.h"

#include <stdio.h>
#include <sys/stat.h>

/* A provider that may be chosen, as its manifest describes it. */
typedef struct candidate {
    const fti_allow *allow;     /* the entry that allows it, or */
    const fti_provider *linked; /* what is part of the program */
    fti_manifest *manifest;     /* NULL if it was refused: see error */
    ftk_status status;
    ftk_error error;
} candidate;

typedef struct question {
    const struct ftk_config *config;
    const fti_provider_query *query;
    candidate *candidates;
    size_t count;
    ftk_error *err;
} question;

#define PAIR_ARGS(q) FTI_STR_ARGS((q)->query->architecture), FTI_STR_ARGS((q)->query->container)

/* Repeats a failure with the line of the configuration that led to it. */
static ftk_status blame(const struct ftk_config *config, const fti_allow *allow, ftk_status status,
                        const ftk_error *inner, ftk_error *err) {
    /* An entry that no configuration holds yet is named by nothing but itself. */
    if (!config->origin)
        return fti_fail(err, status, "provider %s: %-s", allow->name, inner->message);
    return fti_fail(err, status, "%s:%u: providers.allow: %s: %-s", config->origin, allow->line,
                    allow->name, inner->message);
}

/* ---- candidates ---- */

static ftk_status manifest_of(const fti_allow *allow, fti_manifest **out, ftk_error *err) {
    const char *slash = strrchr(allow->path, '/');
    if (allow->path[0] != '/' || !slash[1])
        return fti_fail(err, FTK_E_PROVIDER_PATH,
                        "path '%s' refused: found no absolute path of a file, wanted one",
                        allow->path);
    struct stat st;
    if (stat(allow->path, &st) == 0 && S_ISDIR(st.st_mode))
        return fti_fail(err, FTK_E_PROVIDER_PATH,
                        "path '%s' refused: found a folder, wanted the library in it, such as "
                        "'%s/%s.so'",
                        allow->path, allow->path, allow->name);
    fti_text path = {0};
    fti_manifest *manifest = NULL;
    fti_text_printf(&path, "%.*s/%s" FTI_MANIFEST_SUFFIX, (int)(slash - allow->path), allow->path,
                    allow->name);
    ftk_status status = path.failed ? fti_no_memory(err, strlen(allow->path), "a path")
                                    : fti_manifest_read(path.data, &manifest, err);
    fti_text_free(&path);
    if (!manifest) return status;
    if (strcmp(manifest->library, slash + 1) == 0) {
        *out = manifest;
        return FTK_OK;
    }
    status = fti_fail(err, FTK_E_PROVIDER_MANIFEST,
                      "'%s': library: found '%s', wanted '%s', the file that the configuration "
                      "allows",
                      manifest->path, manifest->library, slash + 1);
    fti_manifest_free(manifest);
    return status;
}

static const fti_allow *allow_named(const struct ftk_config *config, const char *name) {
    for (size_t i = 0; i < config->allow_count; i++)
        if (strcmp(config->allow[i].name, name) == 0) return &config->allow[i];
    return NULL;
}

static ftk_status refuse_equal_names(const question *q) {
    const struct ftk_config *c = q->config;
    for (size_t i = 0; i < c->allow_count; i++) {
        const fti_allow *first = allow_named(c, c->allow[i].name);
        if (first != &c->allow[i])
            return fti_fail(q->err, FTK_E_PROVIDER_DUPLICATE,
                            "%s:%u: providers.allow: found '%s' a second time ('%s' and '%s'), "
                            "wanted each name once; remove one entry",
                            c->origin, c->allow[i].line, first->name, first->path,
                            c->allow[i].path);
    }
    for (size_t i = 0; i < c->linked_count; i++) {
        const fti_allow *same = allow_named(c, c->linked[i]->manifest->name);
        if (same)
            return fti_fail(q->err, FTK_E_PROVIDER_DUPLICATE,
                            "%s:%u: providers.allow: found '%s' ('%s'), the name of a provider "
                            "that this program has linked in; remove the entry",
                            c->origin, same->line, same->name, same->path);
    }
    return FTK_OK;
}

/* Reads every allowed manifest. One that is refused does not stop the others. */
static ftk_status read_candidates(question *q) {
    for (size_t i = 0; i < q->config->allow_count; i++) {
        candidate *c = &q->candidates[q->count++];
        c->allow = &q->config->allow[i];
        c->status = manifest_of(c->allow, &c->manifest, &c->error);
        if (c->status == FTK_E_NO_MEMORY)
            return fti_fail(q->err, c->status, "%-s", c->error.message);
    }
    for (size_t i = 0; i < q->config->linked_count; i++) {
        candidate *c = &q->candidates[q->count++];
        c->linked = q->config->linked[i];
        c->manifest = c->linked->manifest;
    }
    return FTK_OK;
}

static bool is_format(const fti_manifest *m) {
    return strcmp(m->provides, "format") == 0;
}

static bool claims(const question *q, const fti_manifest *m) {
    return m && fti_list_has(m->architectures, q->query->architecture) &&
           fti_list_has(m->containers, q->query->container);
}

/* A model provider of the architecture, in whatever container. */
static bool owns(const question *q, const fti_manifest *m) {
    return m && !is_format(m) && fti_list_has(m->architectures, q->query->architecture);
}

static const char *place_of(const candidate *c) {
    return c->allow ? c->allow->path : FTI_LINKED_PATH;
}

/* ---- the choice ---- */

static const fti_select *find_select(const question *q) {
    for (size_t i = 0; i < q->config->select_count; i++) {
        const char *claim = q->config->select[i].claim;
        const char *slash = strrchr(claim, '/');
        if (slash && fti_str_is(q->query->container, slash + 1) &&
            fti_str_eq(q->query->architecture, (ftk_str){claim, (uint64_t)(slash - claim)}))
            return &q->config->select[i];
    }
    return NULL;
}

/* A misspelt pair would decide nothing, and nobody would notice. Where a manifest cannot be
 * read, nobody knows what it claims. */
static ftk_status check_selects(const question *q) {
    for (size_t i = 0; i < q->count; i++)
        if (!q->candidates[i].manifest) return FTK_OK;
    for (size_t s = 0; s < q->config->select_count; s++) {
        const fti_select *select = &q->config->select[s];
        const char *slash = strrchr(select->claim, '/');
        bool claimed = select == find_select(q); /* choose_selected says more of it */
        for (size_t i = 0; slash && i < q->count; i++) {
            const fti_manifest *m = q->candidates[i].manifest;
            const ftk_str architecture = {select->claim, (uint64_t)(slash - select->claim)};
            claimed = claimed || (fti_list_has(m->architectures, architecture) &&
                                  fti_list_has(m->containers, fti_str(slash + 1)));
        }
        if (!claimed)
            return fti_fail(q->err, FTK_E_CONFIG_VALUE,
                            "%s:%u: providers.select.%s: no allowed provider claims this pair; "
                            "correct or remove the line",
                            q->config->origin, select->line, select->claim);
    }
    return FTK_OK;
}

static ftk_status choose_selected(const question *q, const fti_select *select, candidate **out) {
    for (size_t i = 0; i < q->count; i++) {
        candidate *c = &q->candidates[i];
        const char *name = c->allow ? c->allow->name : c->manifest->name;
        if (strcmp(name, select->name) != 0) continue;
        if (claims(q, c->manifest)) {
            *out = c;
            return FTK_OK;
        }
        if (c->allow && c->status != FTK_OK)
            return blame(q->config, c->allow, c->status, &c->error, q->err);
    }
    return fti_fail(
        q->err, FTK_E_PROVIDER_NONE,
        "%s:%u: providers.select: found '%s' for '%s', wanted an allowed provider whose "
        "manifest claims that pair; correct or remove the line",
        q->config->origin, select->line, select->name, select->claim);
}

/* The one that can be named in the configuration: what is linked in needs no entry there. */
static ftk_status refuse_two(const question *q, const candidate *a, const candidate *b) {
    const candidate *named = a->allow ? a : b;
    bool both = a->allow && b->allow;
    return fti_fail(q->err, FTK_E_PROVIDER_DUPLICATE,
                    "%s: found two providers for %.*s/%.*s, '%s' ('%s') and '%s' ('%s'), wanted "
                    "one; below 'providers:' add the line: select: {\"%.*s/%.*s\": %s}%s%s%s",
                    q->config->origin, PAIR_ARGS(q), a->manifest->name, place_of(a),
                    b->manifest->name, place_of(b), PAIR_ARGS(q), named->manifest->name,
                    both ? ", or with " : "", both ? b->manifest->name : "",
                    a->linked || b->linked ? ", or keep the one that is linked in by removing the "
                                             "other from providers.allow"
                                           : "");
}

static ftk_status choose(const question *q, candidate **out) {
    candidate *first = NULL;
    const fti_select *select = find_select(q);
    if (select) return choose_selected(q, select, out);
    for (size_t i = 0; i < q->count; i++) {
        candidate *c = &q->candidates[i];
        if (!claims(q, c->manifest)) continue;
        if (first) return refuse_two(q, first, c);
        first = c;
    }
    *out = first;
    return FTK_OK;
}

/* A format-only provider composes with the one owner of its architecture; the mapping itself
 * comes with the first container that needs one. */
static ftk_status compose(const question *q, const candidate *format) {
    const candidate *owner = NULL;
    for (size_t i = 0; i < q->count; i++) {
        const candidate *c = &q->candidates[i];
        if (!owns(q, c->manifest)) continue;
        if (owner) return refuse_two(q, owner, c);
        owner = c;
    }
    if (!owner)
        return fti_fail(q->err, FTK_E_PROVIDER_NONE,
                        "%s: found '%s' ('%s'), which only adds the container %.*s to architecture "
                        "%.*s, wanted an allowed provider that owns the architecture beside it; "
                        "run: freetoken providers allow FOLDER",
                        q->config->origin, format->manifest->name, place_of(format),
                        FTI_STR_ARGS(q->query->container), FTI_STR_ARGS(q->query->architecture));
    return fti_fail(q->err, FTK_E_PROVIDER_REFUSED,
                    "%s: found %.*s/%.*s, a container that '%s' adds to the architecture of '%s', "
                    "wanted one that '%s' reads itself (%s): containers that are mapped come with "
                    "a later version",
                    q->config->origin, PAIR_ARGS(q), format->manifest->name, owner->manifest->name,
                    owner->manifest->name, owner->manifest->containers);
}

/* ---- why nothing matched ---- */

/* `others`: manifests of that name in other places. */
static ftk_status not_allowed(const question *q, const fti_manifest *m, size_t others) {
    int folder = fti_folder_size(m->path);
    const fti_allow *other = allow_named(q->config, m->name);
    if (other)
        return fti_fail(q->err, FTK_E_PROVIDER_NOT_ALLOWED,
                        "%s:%u: providers.allow: found '%s' allowed as '%s', wanted '%.*s/%s', "
                        "which claims %.*s/%.*s; change the path of that entry to it",
                        q->config->origin, other->line, m->name, other->path, folder, m->path,
                        m->library, PAIR_ARGS(q));
    char more[96] = "";
    if (others)
        snprintf(more, sizeof more, " (and %zu more of that name, which providers list shows)",
                 others);
    return fti_fail(
        q->err, FTK_E_PROVIDER_NOT_ALLOWED,
        "%s: found provider '%s'%-s for %.*s/%.*s, but not in the list of allowed ones; "
        "run: freetoken providers allow '%.*s' (--config FILE if it is not your own), or add under "
        "providers.allow: - {name: %s, path: \"%.*s/%s\"}",
        q->config->origin, m->name, more, PAIR_ARGS(q), folder, m->path, m->name, folder, m->path,
        m->library);
}

#define KNOWN_SHOWN 300u /* bytes of the list of known providers in a message */

typedef struct known_list {
    fti_text text;
    size_t more; /* that have no place in it */
} known_list;

static void add_known(known_list *list, const char *format, ...) FTI_PRINTF(2, 3);
static void add_known(known_list *list, const char *format, ...) {
    char one[KNOWN_SHOWN * 2 / 3];
    va_list args;
    va_start(args, format);
    fti_message(one, sizeof one, format, args);
    va_end(args);
    if (list->more || list->text.size + strlen(one) > KNOWN_SHOWN)
        list->more++;
    else
        fti_text_printf(&list->text, "%s%s", list->text.size ? ", " : "", one);
}

static void list_known(const question *q, const fti_found_provider *found, size_t count,
                       known_list *list) {
    for (size_t i = 0; i < q->count; i++) {
        const fti_manifest *m = q->candidates[i].manifest;
        if (m) add_known(list, "%s: %s (%s)", m->name, m->architectures, m->containers);
    }
    for (size_t i = 0; i < count; i++) {
        const fti_manifest *m = found[i].manifest;
        if (m && !found[i].allow)
            add_known(list, "%s: %s (%s, not allowed)", m->name, m->architectures, m->containers);
    }
    for (size_t i = 0; i < count; i++)
        if (!found[i].manifest && found[i].error.status != FTK_E_NOT_FOUND)
            add_known(list, "refused: %s", found[i].error.message);
    if (list->text.size == 0) fti_text_printf(&list->text, "none");
    if (list->more)
        fti_text_printf(&list->text, " and %zu more, which freetoken providers list shows",
                        list->more);
}

static size_t same_names(const fti_found_provider *found, size_t count, size_t of) {
    size_t others = 0;
    for (size_t i = 0; i < count; i++)
        others += i != of && found[i].manifest &&
                  strcmp(found[i].manifest->name, found[of].manifest->name) == 0;
    return others;
}

static ftk_status none_claims(const question *q, const fti_found_provider *found, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (found[i].manifest && !found[i].allow && claims(q, found[i].manifest))
            return not_allowed(q, found[i].manifest, same_names(found, count, i));
    known_list known = {0};
    list_known(q, found, count, &known);
    ftk_status status = fti_fail(
        q->err, FTK_E_PROVIDER_NONE,
        "%s: found no provider for architecture '%.*s' in container '%.*s', wanted one "
        "under providers.allow; use a file of an architecture that a known provider claims, or "
        "install a provider for this one and run: freetoken providers allow FOLDER; known "
        "providers: %-s",
        q->config->origin, PAIR_ARGS(q), known.text.data ? known.text.data : "?");
    fti_text_free(&known.text);
    return status;
}

static ftk_status explain_none(const question *q) {
    for (size_t i = 0; i < q->count; i++)
        if (!q->candidates[i].manifest)
            return blame(q->config, q->candidates[i].allow, q->candidates[i].status,
                         &q->candidates[i].error, q->err);
    fti_found_provider *found;
    size_t count;
    FTI_TRY(fti_provider_discover(q->config, &found, &count, q->err));
    ftk_status status = none_claims(q, found, count);
    fti_found_providers_free(found, count);
    return status;
}

/* ---- answers ---- */

/* Of this and the next, `out` NULL wants the judgement alone. */
static ftk_status take_linked(const question *q, const candidate *c, const fti_provider **out) {
    ftk_error inner = FTK_ERROR_INIT;
    const fti_provider_query *query = q->query;
    ftk_status status = fti_contract_hardware(c->manifest, query, &inner);
    if (status == FTK_OK && query->record)
        status = fti_record_check(query->record, c->linked, query->architecture, query->container,
                                  &inner);
    if (status != FTK_OK)
        return fti_fail(q->err, status, "provider %s: %-s", c->manifest->name, inner.message);
    if (out) *out = c->linked;
    return FTK_OK;
}

static ftk_status answer(question *q, const fti_provider **out) {
    candidate *chosen = NULL;
    FTI_TRY(refuse_equal_names(q));
    FTI_TRY(read_candidates(q));
    FTI_TRY(check_selects(q));
    FTI_TRY(choose(q, &chosen));
    if (!chosen) return explain_none(q);
    if (is_format(chosen->manifest)) return compose(q, chosen);
    if (chosen->linked) return take_linked(q, chosen, out);
    ftk_error inner = FTK_ERROR_INIT;
    ftk_status status = fti_load_allowed(q->query, chosen->allow, &chosen->manifest, out, &inner);
    if (status == FTK_OK) return FTK_OK;
    return blame(q->config, chosen->allow, status, &inner, q->err);
}

static ftk_status ask(const struct ftk_config *config, const fti_provider_query *query,
                      const fti_provider **out, ftk_error *err) {
    if (config->linked_count == 0) FTI_TRY(fti_refuse_secure(err));
    size_t most = config->allow_count + config->linked_count;
    question q = {config, query, fti_calloc(most, sizeof(candidate)), 0, err};
    if (!q.candidates) return fti_no_memory(err, most * sizeof(candidate), "provider manifests");
    ftk_status status = answer(&q, out);
    for (size_t i = 0; i < q.count; i++)
        if (!q.candidates[i].linked) fti_manifest_free(q.candidates[i].manifest);
    fti_free(q.candidates);
    return status;
}

ftk_status fti_provider_resolve(const struct ftk_config *config, const fti_provider_query *query,
                                const fti_provider **out, ftk_error *err) {
    return ask(config, query, out, err);
}

ftk_status fti_provider_judge(const struct ftk_config *config, const fti_provider_query *query,
                              ftk_error *err) {
    return ask(config, query, NULL, err);
}

static ftk_status check_entry(const fti_allow *allow, fti_manifest **manifest, char sha256[65],
                              ftk_error *err) {
    FTI_TRY(fti_refuse_secure(err));
    ftk_status status = manifest_of(allow, manifest, err);
    return *manifest ? fti_check_allowed(allow, *manifest, sha256, err) : status;
}

ftk_status fti_provider_check(const struct ftk_config *config, const fti_allow *allow,
                              fti_manifest **manifest, char sha256[65], ftk_error *err) {
    fti_manifest *found = NULL;
    ftk_error inner = FTK_ERROR_INIT;
    ftk_status status = check_entry(allow, &found, sha256, &inner);
    if (manifest)
        *manifest = found;
    else
        fti_manifest_free(found);
    return status == FTK_OK ? FTK_OK : blame(config, allow, status, &inner, err);
}
