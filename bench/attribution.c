/* attribution.c: the table of knobs and causes, and comparing rows by it. */
#include "attribution.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cli/output.h"
#include "cli/text.h"
#include "core/base.h"

/* Causes that a consequence may have. */
#define EXECUTION      (1u << FTI_BENCH_MODEL_EXECUTION)
#define SCHEDULING     (1u << FTI_BENCH_SCHEDULING)
#define REPRESENTATION (1u << FTI_BENCH_REPRESENTATION)
#define BACKEND        (1u << FTI_BENCH_BACKEND)
#define ANY            (EXECUTION | SCHEDULING | REPRESENTATION | BACKEND)

/* The first pattern that fits decides; '*' also stands for dots. */
static const struct {
    const char *pattern;
    fti_bench_class class;
    unsigned cause; /* of knobs: one; of what follows: a set of those above */
} table[] = {
    /* The work and the row itself. */
    {"scenario", FTI_BENCH_FIXED, 0},
    {"version", FTI_BENCH_FIXED, 0},
    {"commit", FTI_BENCH_FIXED, 0},
    {"build", FTI_BENCH_FIXED, 0},            /* tells changed trees of one commit apart */
    {"settings.model", FTI_BENCH_IGNORED, 0}, /* provenance.checkpoint says what is in it */
    {"settings.repeat", FTI_BENCH_IGNORED, 0},
    {"settings.warmup", FTI_BENCH_IGNORED, 0},
    {"settings.*", FTI_BENCH_FIXED, 0},
    /* The machine: what it is, as against how it was at that moment. */
    {"machine.load_average*", FTI_BENCH_IGNORED, 0},
    {"machine.read_bandwidth*", FTI_BENCH_IGNORED, 0},
    {"machine.*", FTI_BENCH_FIXED, 0},
    /* What names an object, but says nothing of it: its digest does. */
    {"provenance.config", FTI_BENCH_IGNORED, 0},
    {"provenance.checkpoint.path", FTI_BENCH_IGNORED, 0},
    {"provenance.provider.path", FTI_BENCH_IGNORED, 0},
    {"provenance.provider.device", FTI_BENCH_IGNORED, 0},
    {"provenance.provider.inode", FTI_BENCH_IGNORED, 0},
    {"provenance.provider.pinned", FTI_BENCH_IGNORED, 0},
    {"provenance.provider.load_address", FTI_BENCH_IGNORED, 0},
    /* How a setting came by its value, and what was free at that moment. */
    {"provenance.policy.*.origin", FTI_BENCH_IGNORED, 0},
    {"provenance.policy.*.asked", FTI_BENCH_IGNORED, 0},
    {"provenance.memory.available", FTI_BENCH_IGNORED, 0},
    {"provenance.memory.budget", FTI_BENCH_IGNORED, 0},
    {"provenance.backend.placement.huge*", FTI_BENCH_IGNORED, 0}, /* as the system likes */
    /* Knobs: every setting, what was loaded, and the file. */
    {"provenance.policy.backend.*.value", FTI_BENCH_KNOB, FTI_BENCH_BACKEND},
    {"provenance.policy.numerics.value", FTI_BENCH_KNOB, FTI_BENCH_MODEL_EXECUTION},
    {"provenance.policy.policy.*.value", FTI_BENCH_KNOB, FTI_BENCH_MODEL_EXECUTION},
    {"provenance.policy.scheduler.*.value", FTI_BENCH_KNOB, FTI_BENCH_SCHEDULING},
    {"provenance.policy.memory.kv_type.value", FTI_BENCH_KNOB, FTI_BENCH_MODEL_EXECUTION},
    {"provenance.policy.memory.*.value", FTI_BENCH_KNOB, FTI_BENCH_SCHEDULING},
    {"provenance.policy.moe.*.value", FTI_BENCH_KNOB, FTI_BENCH_SCHEDULING},
    {"provenance.provider.name", FTI_BENCH_KNOB, FTI_BENCH_MODEL_EXECUTION},
    {"provenance.provider.version", FTI_BENCH_KNOB, FTI_BENCH_MODEL_EXECUTION},
    {"provenance.provider.linked_in", FTI_BENCH_KNOB, FTI_BENCH_MODEL_EXECUTION},
    {"provenance.provider.sha256", FTI_BENCH_KNOB, FTI_BENCH_MODEL_EXECUTION},
    {"provenance.provider.options", FTI_BENCH_KNOB, FTI_BENCH_MODEL_EXECUTION},
    {"provenance.checkpoint.*", FTI_BENCH_KNOB, FTI_BENCH_REPRESENTATION},
    /* What the engine made of them. */
    {"provenance.provider.*", FTI_BENCH_FOLLOWS, EXECUTION},
    {"provenance.backend.*", FTI_BENCH_FOLLOWS, BACKEND},
    {"provenance.numerics.mode", FTI_BENCH_FOLLOWS, EXECUTION},
    {"provenance.kv_type", FTI_BENCH_FOLLOWS, EXECUTION},
    {"provenance.variants*", FTI_BENCH_FOLLOWS, EXECUTION | REPRESENTATION | BACKEND},
    {"provenance.graphs*", FTI_BENCH_FOLLOWS, ANY},
    {"provenance.memory.*", FTI_BENCH_FOLLOWS, EXECUTION | SCHEDULING | REPRESENTATION},
    {"provenance.notes*", FTI_BENCH_FOLLOWS, ANY},
    /* The build. */
    {"provenance.libfreetoken", FTI_BENCH_FIXED, 0},
    {"provenance.stage", FTI_BENCH_FIXED, 0},
    {"provenance.numerics.version", FTI_BENCH_FIXED, 0},
};

/* Index in the table; its size: nothing fits. */
static size_t look_up(const char *path) {
    size_t i = 0;
    while (i < FTI_COUNT(table) && fnmatch(table[i].pattern, path, 0) != 0) i++;
    return i;
}

fti_bench_class fti_bench_classify(const char *path, fti_bench_cause *cause) {
    size_t i = look_up(path);
    if (i == FTI_COUNT(table)) return FTI_BENCH_UNKNOWN;
    if (table[i].class == FTI_BENCH_KNOB) *cause = (fti_bench_cause)table[i].cause;
    return table[i].class;
}

/* ---- flat ---- */

/* Leaves of a JSON value as path -> value; an empty object or array is a leaf. */
static void flatten(const char *path, json_t *value, json_t *flat) {
    if (json_is_object(value) && json_object_size(value) > 0) {
        const char *key;
        json_t *member;
        json_object_foreach(value, key, member) {
            char *below = fti_cli_format("%s%s%s", path, path[0] ? "." : "", key);
            flatten(below, member, flat);
            free(below);
        }
    } else if (json_is_array(value) && json_array_size(value) > 0) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            char *below = fti_cli_format("%s.%zu", path, i);
            flatten(below, json_array_get(value, i), flat);
            free(below);
        }
    } else {
        (void)json_object_set(flat, path, value);
    }
}

/* The device budget is, if left to the engine, what happens to be free when it opens: then
 * that it was left to it is the setting. */
static void settle_budget(json_t *flat) {
    static const char setting[] = "provenance.policy.memory.device";
    char *asked = fti_cli_format("%s.asked", setting), *value = fti_cli_format("%s.value", setting);
    json_t *automatic = json_object_get(flat, asked);
    if (automatic) (void)json_object_set(flat, value, automatic);
    free(asked);
    free(value);
}

static json_t *flat_provenance(const json_t *provenance) {
    json_t *flat = json_object();
    flatten("provenance", (json_t *)(uintptr_t)provenance, flat);
    settle_budget(flat);
    return flat;
}

/* "provenance.policy.backend.threads.value" is known to people as "backend.threads". */
static char *name_of_knob(const char *path) {
    static const char outer[] = "provenance.", inner[] = "policy.", last[] = ".value";
    path += sizeof outer - 1;
    size_t size = strlen(path);
    if (strncmp(path, inner, sizeof inner - 1) != 0) return fti_cli_format("%s", path);
    path += sizeof inner - 1;
    size -= sizeof inner - 1 + sizeof last - 1;
    return fti_cli_format("%.*s", (int)size, path);
}

json_t *fti_bench_knobs(const json_t *provenance) {
    json_t *flat = flat_provenance(provenance), *knobs = json_object();
    const char *path;
    json_t *value;
    fti_bench_cause cause;
    json_object_foreach(flat, path, value) {
        if (fti_bench_classify(path, &cause) != FTI_BENCH_KNOB) continue;
        char *name = name_of_knob(path);
        (void)json_object_set(knobs, name, value);
        free(name);
    }
    json_decref(flat);
    return knobs;
}

void fti_bench_provenance_digest(const json_t *provenance, char digest[17]) {
    digest[0] = '\0';
    if (!json_is_object(provenance)) return;
    json_t *flat = flat_provenance(provenance), *value;
    const char *path;
    void *next;
    fti_bench_cause cause;
    json_object_foreach_safe(flat, next, path, value) {
        if (fti_bench_classify(path, &cause) == FTI_BENCH_IGNORED)
            (void)json_object_del(flat, path);
    }
    char *text = json_dumps(flat, JSON_COMPACT | JSON_SORT_KEYS);
    if (text) (void)snprintf(digest, 17, "%016" PRIx64, XXH3_64bits(text, strlen(text)));
    free(text);
    json_decref(flat);
}

static json_t *flat_row(const fti_bench_row *row) {
    json_t *flat = flat_provenance(row->provenance);
    (void)json_object_set_new(flat, "scenario", json_string(row->scenario));
    (void)json_object_set_new(flat, "version", json_string(row->version));
    (void)json_object_set_new(flat, "commit", json_string(row->commit));
    (void)json_object_set_new(flat, "build", json_string(row->build));
    flatten("settings", row->settings, flat);
    flatten("machine", row->machine, flat);
    return flat;
}

/* ---- what differs ---- */

static json_t *list_of(const fti_bench_differences *d, fti_bench_class class) {
    json_t *const lists[] = {d->knobs, d->follows, d->fixed, d->ignored, d->unknown};
    return lists[class];
}

static void note_difference(fti_bench_differences *d, const char *path, json_t *a, json_t *b) {
    fti_bench_cause cause = FTI_BENCH_NOT_ATTRIBUTABLE;
    fti_bench_class class = fti_bench_classify(path, &cause);
    json_t *entry = json_object();
    char *name = class == FTI_BENCH_KNOB ? name_of_knob(path) : fti_cli_format("%s", path);
    (void)json_object_set_new(entry, "path", json_string(name));
    free(name);
    (void)json_object_set(entry, "a", a ? a : json_null());
    (void)json_object_set(entry, "b", b ? b : json_null());
    if (class == FTI_BENCH_KNOB)
        (void)json_object_set_new(entry, "cause", json_string(fti_bench_cause_text(cause)));
    (void)json_array_append_new(list_of(d, class), entry);
}

void fti_bench_differ(const fti_bench_row *a, const fti_bench_row *b, fti_bench_differences *d) {
    *d = (fti_bench_differences){json_array(), json_array(), json_array(), json_array(),
                                 json_array()};
    json_t *left = flat_row(a), *right = flat_row(b);
    const char *path;
    json_t *value;
    json_object_foreach(left, path, value) {
        json_t *other = json_object_get(right, path);
        if (!other || !json_equal(value, other)) note_difference(d, path, value, other);
    }
    json_object_foreach(right, path, value) {
        if (!json_object_get(left, path)) note_difference(d, path, NULL, value);
    }
    json_decref(left);
    json_decref(right);
}

void fti_bench_differences_free(fti_bench_differences *d) {
    for (int class = FTI_BENCH_KNOB; class <= FTI_BENCH_UNKNOWN; class ++)
        json_decref(list_of(d, (fti_bench_class) class));
    *d = (fti_bench_differences){0};
}

/* ---- may they be compared ---- */

#define LISTED 4u

/* "backend.threads (2 and 1, backend), ..." */
static void list_entries(fti_cli_text *text, const json_t *entries) {
    for (size_t i = 0; i < json_array_size(entries) && i < LISTED; i++) {
        const json_t *entry = json_array_get(entries, i);
        char *a = json_dumps(json_object_get(entry, "a"), JSON_ENCODE_ANY | JSON_COMPACT);
        char *b = json_dumps(json_object_get(entry, "b"), JSON_ENCODE_ANY | JSON_COMPACT);
        const char *cause = fti_cli_member(entry, "cause");
        fti_cli_printf(text, "%s%s (%.60s and %.60s%s%s)", i ? ", " : "",
                       fti_cli_member(entry, "path"), a ? a : "?", b ? b : "?",
                       cause[0] ? ", a knob of " : "", cause);
        free(a);
        free(b);
    }
    if (json_array_size(entries) > LISTED)
        fti_cli_printf(text, " and %zu more", json_array_size(entries) - LISTED);
}

static char *refuse(const char *before, const json_t *entries, const char *after) {
    fti_cli_text text = {0};
    fti_cli_printf(&text, "%s", before);
    list_entries(&text, entries);
    fti_cli_printf(&text, "%s", after);
    return text.data;
}

static json_t *knobs_beside(const fti_bench_differences *d, fti_bench_cause cause) {
    json_t *others = json_array();
    for (size_t i = 0; i < json_array_size(d->knobs); i++) {
        json_t *knob = json_array_get(d->knobs, i);
        if (strcmp(fti_cli_member(knob, "cause"), fti_bench_cause_text(cause)) != 0)
            (void)json_array_append(others, knob);
    }
    return others;
}

/* Consequences that knobs of this cause do not have. */
static json_t *not_from(const fti_bench_differences *d, fti_bench_cause cause) {
    json_t *unexplained = json_array();
    for (size_t i = 0; i < json_array_size(d->follows); i++) {
        json_t *entry = json_array_get(d->follows, i);
        unsigned from = table[look_up(fti_cli_member(entry, "path"))].cause;
        if (!(from & 1u << cause)) (void)json_array_append(unexplained, entry);
    }
    return unexplained;
}

static char *refuse_follows(const fti_bench_differences *d, fti_bench_cause cause) {
    static const char after[] = "; something that the provenance does not show has changed";
    if (!json_array_size(d->follows)) return NULL;
    if (!json_array_size(d->knobs))
        return refuse("not comparable: no knob differs that would explain ", d->follows, after);
    json_t *unexplained = not_from(d, cause);
    char *before = fti_cli_format("not comparable: no knob of %s explains ",
                                  fti_bench_cause_text(cause));
    char *why = json_array_size(unexplained) ? refuse(before, unexplained, after) : NULL;
    free(before);
    json_decref(unexplained);
    return why;
}

static char *refuse_knobs(const json_t *others, size_t all, fti_bench_cause cause) {
    char *before = fti_cli_format("not comparable as %s: other knobs differ too: ",
                                  fti_bench_cause_text(cause));
    const char *after = json_array_size(others) == all
                            ? "; make them equal, or name their cause with --cause"
                            : "; make them equal";
    char *why = refuse(before, others, after);
    free(before);
    return why;
}

char *fti_bench_refusal(const fti_bench_differences *d, fti_bench_cause cause) {
    if (json_array_size(d->unknown))
        return refuse("not comparable: the table of knobs does not know ", d->unknown,
                      "; make them equal, or teach bench/attribution.c what they are");
    if (json_array_size(d->fixed))
        return refuse("not comparable: work, machine and build must be the same, but not so are ",
                      d->fixed,
                      "; measure both side by side (to compare two builds, use 'peer' with the "
                      "other one's command)");
    json_t *others = knobs_beside(d, cause);
    char *why = NULL;
    size_t knobs = json_array_size(d->knobs);
    if (json_array_size(others)) why = refuse_knobs(others, knobs, cause);
    json_decref(others);
    return why ? why : refuse_follows(d, cause);
}
