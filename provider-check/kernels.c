/*
 * kernels.c: the provider's own kernels, launch by launch: over other ranges of items,
 * and each variant against the exact reference row of its table.
 *
 * Only the provider knows what a kernel's arguments mean, so both implementations get
 * those of a real step, and the same memory. Extreme values reach them by way of that
 * memory: the f32 values that operators and kernels left in workspace and state are
 * overwritten with zeros, denormals, maxima and the like before both run again.
 */
#include "mock.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- images of everything that a kernel may write ---- */

#define MAX_PARTS 4096u

/* Copies of areas, one after the other. `kinds` has one entry per 4 bytes. */
typedef struct image {
    fti_pc_area *parts[MAX_PARTS];
    size_t count;
    uint64_t bytes;
    char *before; /* the launch */
    char *wanted; /* after the reference */
    char *kept;   /* what the step goes on with */
    char *set;    /* before, with extreme values in it */
    char *kinds;  /* K_ */
} image;

enum { K_UNKNOWN, K_FLOAT, K_OTHER };

static void add_part(image *im, fti_pc_area *area) {
    if (im->count == MAX_PARTS || area->bytes == 0) return;
    im->parts[im->count++] = area;
    im->bytes += (area->bytes + 3) / 4 * 4;
}

static void image_free(image *im) {
    free(im->before);
    free(im->wanted);
    free(im->kept);
    free(im->set);
    free(im->kinds);
}

/* Of the step in progress. */
static bool image_new(image *im, const fti_pc_mock *m) {
    im->count = 0;
    im->bytes = 0;
    add_part(im, m->step_workspace);
    add_part(im, m->logits);
    for (fti_pc_area *a = m->caches; a; a = a->next) add_part(im, a);
    im->before = calloc((size_t)im->bytes + 4, 1);
    im->wanted = calloc((size_t)im->bytes + 4, 1);
    im->kept = calloc((size_t)im->bytes + 4, 1);
    im->set = calloc((size_t)im->bytes + 4, 1);
    im->kinds = calloc((size_t)im->bytes / 4 + 1, 1);
    if (im->before && im->wanted && im->kept && im->set && im->kinds) return true;
    fti_pc_skip("not enough memory for copies of the workspace");
    image_free(im);
    return false;
}

static void save(const image *im, char *to) {
    for (size_t i = 0; i < im->count; i++) {
        memcpy(to, im->parts[i]->data, (size_t)im->parts[i]->bytes);
        to += (im->parts[i]->bytes + 3) / 4 * 4;
    }
}

static void restore(const image *im, const char *from) {
    for (size_t i = 0; i < im->count; i++) {
        memcpy(im->parts[i]->data, from, (size_t)im->parts[i]->bytes);
        from += (im->parts[i]->bytes + 3) / 4 * 4;
    }
}

/* Index of the first word of `at` in the image, UINT64_MAX if it is in no part. */
static uint64_t word_of(const image *im, const void *at) {
    uint64_t offset = 0;
    for (size_t i = 0; i < im->count; i++) {
        if (fti_pc_area_holds(im->parts[i], at, 1))
            return (offset + (uint64_t)((const char *)at - im->parts[i]->data)) / 4;
        offset += (im->parts[i]->bytes + 3) / 4 * 4;
    }
    return UINT64_MAX;
}

/* Caches of keys and values, of 16-bit floats, keep what they have. */
static bool part_has_floats(const fti_pc_mock *m, const fti_pc_area *part) {
    return part == m->step_workspace || part == m->state;
}

/* What a kernel wrote is taken for f32 if all of it could be: an index, read as a float,
 * is a denormal. */
static void classify(image *im) {
    const uint32_t *old = (const uint32_t *)(const void *)im->before;
    const uint32_t *new = (const uint32_t *)(const void *)im->wanted;
    uint64_t normal = 0, odd = 0;
    for (uint64_t i = 0; i < im->bytes / 4; i++) {
        uint32_t exponent = new[i] >> 23 & 0xFF;
        if (old[i] == new[i] || (new[i] & 0x7FFFFFFFu) == 0) continue;
        if (exponent == 0 || exponent == 0xFF)
            odd++;
        else
            normal++;
    }
    char kind = odd == 0 && normal > 0 ? K_FLOAT : K_OTHER;
    for (uint64_t i = 0; i < im->bytes / 4; i++)
        if (old[i] != new[i]) im->kinds[i] = kind;
}

/* ---- values ---- */

enum { V_ZERO, V_MINUS_ZERO, V_DENORMAL, V_MAXIMUM, V_MINIMUM, V_RANDOM, V_MIXED, V_COUNT };

static uint32_t scatter(uint64_t i) {
    uint32_t x = (uint32_t)i * 2654435761u + 97u;
    x ^= x >> 16;
    x *= 2246822519u;
    return x ^ x >> 13;
}

static float extreme(int set, uint64_t i) {
    static const float mixed[] = {0.0f,   -0.0f,   1.0f,       -1.0f,      FLT_MAX, -FLT_MAX,
                                  1e-42f, -1e-42f, FLT_MIN,    -FLT_MIN,   1e30f,   1e-30f,
                                  88.8f,  -104.0f, 1.0000001f, 16777217.0f};
    uint32_t x = scatter(i);
    float sign = x & 1 ? -1.0f : 1.0f;
    switch (set) {
    case V_ZERO: return 0.0f;
    case V_MINUS_ZERO: return -0.0f;
    case V_DENORMAL: return sign * 1e-45f * (float)(1u + (x >> 8 & 0xFFFFu));
    case V_MAXIMUM: return sign * FLT_MAX;
    case V_MINIMUM: return sign * FLT_MIN;
    case V_RANDOM: return sign * (float)(x >> 8) * 0x1p-22f;
    default: return mixed[(x >> 4) % FTI_COUNT(mixed)];
    }
}

#define PERIOD 1021u /* prime, so that no stride of a kernel's meets the same value only */

/* The image before the launch, with its f32 values replaced. */
static void make_set(const image *im, const fti_pc_mock *m, int set) {
    float values[PERIOD];
    float *out = (float *)(void *)im->set;
    const char *kinds = im->kinds;
    for (uint64_t i = 0; i < PERIOD; i++) values[i] = extreme(set, i);
    memcpy(im->set, im->before, (size_t)im->bytes);
    for (size_t p = 0; p < im->count; p++) {
        uint64_t words = (im->parts[p]->bytes + 3) / 4;
        bool floats = part_has_floats(m, im->parts[p]);
        for (uint64_t i = 0, v = 0; floats && i < words; i++, v = v + 1 == PERIOD ? 0 : v + 1)
            if (kinds[i] == K_FLOAT) out[i] = values[v];
        out += words;
        kinds += words;
    }
}

/* ---- distance ---- */

static bool is_nan(uint32_t bits) {
    return (bits & 0x7FFFFFFFu) > 0x7F800000u;
}

static int64_t ordered(uint32_t bits) {
    return bits & 0x80000000u ? -(int64_t)(bits & 0x7FFFFFFFu) : (int64_t)bits;
}

/* In units of the last place; zeros of different signs are one apart. */
static uint32_t distance(uint32_t a, uint32_t b) {
    if (a == b || (is_nan(a) && is_nan(b))) return 0;
    if (is_nan(a) || is_nan(b)) return UINT32_MAX;
    int64_t d = ordered(a) - ordered(b);
    if (d < 0) d = -d;
    return d == 0 ? 1 : (uint32_t)d;
}

/* The largest distance between the memory as it is and the image after the reference. */
static uint32_t worst_distance(const image *im) {
    uint32_t worst = 0;
    uint64_t offset = 0;
    for (size_t p = 0; p < im->count; p++) {
        const fti_pc_area *part = im->parts[p];
        const char *wanted = im->wanted + offset;
        offset += (part->bytes + 3) / 4 * 4;
        if (memcmp(part->data, wanted, (size_t)part->bytes) == 0) continue;
        for (uint64_t i = 0; i + 4 <= part->bytes; i += 4) {
            uint32_t a, b;
            memcpy(&a, part->data + i, sizeof a);
            memcpy(&b, wanted + i, sizeof b);
            uint32_t d = distance(a, b);
            if (d > worst) worst = d;
        }
    }
    return worst;
}

/* ---- steps whose launches are looked at ---- */

typedef struct shape {
    fti_pc_part parts[3];
    uint32_t count, rows;
} shape;

#define SUBJECT      7u
#define EXTREME_ROWS 9u /* extremes are slow to compute with, and more rows show no more */

/* One row, many, odd numbers, several sequences, empty ones and padding. */
static const shape shapes[] = {
    {{{SUBJECT, 0, 0, FTI_PC_MAX_ROWS, 2}}, 1, FTI_PC_MAX_ROWS},
    {{{SUBJECT, 0, 24, 1, 1}}, 1, 1},
    {{{SUBJECT, 0, 25, 1, 1}, {8, 2, 0, 1, 1}}, 2, 2},
    {{{8, 2, 1, 1, 1}, {9, 3, 0, 0, 0}, {SUBJECT, 0, 26, 2, 1}}, 3, 3},
    {{{SUBJECT, 0, 28, 3, 3}}, 1, 5},
    {{{9, 3, 0, 2, 1}, {SUBJECT, 0, 31, 7, 1}}, 2, 9},
    {{{8, 2, 2, 16, 1}, {9, 3, 2, 1, 0}}, 2, 17},
};

static void run_launch(const fti_pc_launch *l, ftk_cpu_kernel function) {
    if (l->items > 0) function(l->args, 0, l->items);
}

/* ---- ranges ---- */

#define MAX_PIECES 64u

static void split_launch(fti_pc_mock *m, const fti_pc_launch *l) {
    image *im = m->user;
    fti_pc_launch copy = *l;
    uint64_t piece = (l->items + MAX_PIECES - 1) / MAX_PIECES;
    if (l->items == 0) return;
    save(im, im->before);
    run_launch(&copy, copy.function);
    save(im, im->wanted);
    restore(im, im->before);
    for (uint64_t end = l->items; end > 0;) {
        uint64_t begin = end > piece ? end - piece : 0;
        copy.function(copy.args, begin, end);
        end = begin;
    }
    fti_pc_check(worst_distance(im) == 0,
                 "the kernel %s gives other values over parts of its %llu items, last part first: "
                 "what it computes for an item may not depend on the range",
                 l->name, (unsigned long long)l->items);
    fti_pc_check(memcmp(copy.args, l->args, l->args_bytes) == 0,
                 "the kernel %s changed its arguments", l->name);
    restore(im, im->wanted);
}

void fti_pc_pass_ranges(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    fti_pc_mock *m = table ? fti_pc_mock_new(target, table) : NULL;
    if (!m) return;
    bool ready = fti_pc_bring(m, FTI_PC_PREPARED, NULL) == FTK_OK;
    for (size_t i = 0; ready && i < FTI_COUNT(shapes); i++) {
        image im;
        ftk_step step = fti_pc_fill_step(m, shapes[i].parts, shapes[i].count, shapes[i].rows);
        if (!image_new(&im, m)) break;
        m->on_launch = split_launch;
        m->user = &im;
        ready = fti_pc_run(m, &step) == FTK_OK;
        m->on_launch = NULL;
        image_free(&im);
    }
    fti_pc_mock_end(m);
}

/* ---- variants ---- */

/* A variant against the reference: two models, the same steps. */
typedef struct duel {
    fti_pc_variant *variant;
    fti_pc_mock *reference;
    fti_pc_mock *other;
    fti_pc_launch *launches; /* of the other's step */
    size_t launch_count;
    size_t at; /* the reference's next launch */
    bool paired;
    bool timed;
    bool extremes;
    uint32_t rows;
    image image;
    char *state_kinds; /* of the words of the state, from step to step */
} duel;

static void record_launch(fti_pc_mock *m, const fti_pc_launch *l) {
    duel *d = m->user;
    if (d->launch_count < FTI_PC_MAX_LAUNCHES) d->launches[d->launch_count++] = *l;
    run_launch(l, l->function);
}

static void mark_write(fti_pc_mock *m, const void *at, uint64_t bytes, bool floats) {
    duel *d = m->user;
    uint64_t word = word_of(&d->image, at);
    if (word == UINT64_MAX) return;
    memset(d->image.kinds + word, floats ? K_FLOAT : K_OTHER, (size_t)(bytes / 4));
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define REPEATS 3

/* The least of some runs, each from the same memory. */
static double time_launch(const image *im, const fti_pc_launch *l, ftk_cpu_kernel function) {
    double best = 1e30;
    for (int i = 0; i < REPEATS; i++) {
        restore(im, im->before);
        double start = seconds();
        run_launch(l, function);
        double took = seconds() - start;
        if (took < best) best = took;
    }
    return best;
}

static void judge(duel *d, const fti_pc_launch *l, const char *values) {
    uint32_t worst = worst_distance(&d->image);
    d->variant->comparisons++;
    if (worst > d->variant->worst) d->variant->worst = worst;
    fti_pc_at("%s, a step of %u rows: %u units in the last place", d->variant->name, d->rows,
              worst);
    fti_pc_check(worst <= d->variant->tolerance,
                 "%s: the kernel %s differs from the reference over %s by more than the %u units "
                 "in the last place that are declared",
                 d->variant->name, l->name, values, d->variant->tolerance);
}

/* Memory is then as the reference leaves it. */
static void fight(duel *d, const fti_pc_launch *l, ftk_cpu_kernel other) {
    static const char *const names[V_COUNT] = {"zeros",         "negative zeros", "denormals",
                                               "maxima",        "minima",         "random values",
                                               "mixed extremes"};
    image *im = &d->image;
    memcpy(im->kept, im->wanted, (size_t)im->bytes);
    restore(im, im->before);
    run_launch(l, other);
    judge(d, l, "the values of a step");
    for (int set = 0; d->extremes && set < V_COUNT; set++) {
        make_set(im, d->reference, set);
        restore(im, im->set);
        run_launch(l, l->function);
        save(im, im->wanted);
        restore(im, im->set);
        run_launch(l, other);
        judge(d, l, names[set]);
    }
    if (d->timed) {
        d->variant->seconds += time_launch(im, l, other);
        d->variant->reference_seconds += time_launch(im, l, l->function);
    }
    restore(im, im->kept);
}

static void compare_launch(fti_pc_mock *m, const fti_pc_launch *l) {
    duel *d = m->user;
    image *im = &d->image;
    size_t at = d->at++;
    save(im, im->before);
    run_launch(l, l->function);
    save(im, im->wanted);
    classify(im);
    if (!d->paired || at >= d->launch_count) return;
    const fti_pc_launch *other = &d->launches[at];
    if (other->function == l->function || l->items == 0) return;
    if (other->items != l->items || other->args_bytes != l->args_bytes) {
        d->paired = false;
        return;
    }
    fight(d, l, other->function);
}

/* What is known of the state's words outlives the image of one step. */
static void move_state_kinds(duel *d, bool into_image) {
    const fti_pc_area *state = d->reference->state;
    uint64_t word = word_of(&d->image, state->data);
    if (word == UINT64_MAX) return;
    char *kinds = d->image.kinds + word;
    memcpy(into_image ? kinds : d->state_kinds, into_image ? d->state_kinds : kinds,
           (size_t)(state->bytes / 4));
}

/* Both models over one step; what they leave must be the same too. */
static ftk_status duel_step(duel *d, const shape *s) {
    fti_pc_mock *a = d->reference, *b = d->other;
    ftk_step first = fti_pc_fill_step(a, s->parts, s->count, s->rows);
    ftk_step second = fti_pc_fill_step(b, s->parts, s->count, s->rows);
    d->launch_count = d->at = 0;
    FTI_TRY(fti_pc_run(b, &second));
    if (!image_new(&d->image, a)) return FTK_E_NO_MEMORY;
    move_state_kinds(d, true);
    ftk_status status = fti_pc_run(a, &first);
    move_state_kinds(d, false);
    image_free(&d->image);
    if (d->at != d->launch_count) d->paired = false;
    if (status != FTK_OK || d->variant->tolerance > 0) return status;
    d->variant->steps++;
    bool same = memcmp(a->logits->data, b->logits->data, (size_t)a->logits->bytes) == 0 &&
                memcmp(a->state->data, b->state->data, (size_t)a->state->bytes) == 0;
    fti_pc_at("%s, a step of %u rows", d->variant->name, s->rows);
    fti_pc_check(same, "%s: a step gives other logits or another state than with the reference",
                 d->variant->name);
    return FTK_OK;
}

static void run_duel(duel *d, const uint32_t *chosen) {
    if (fti_pc_bring(d->reference, FTI_PC_PREPARED, NULL) != FTK_OK ||
        fti_pc_bring(d->other, FTI_PC_PREPARED, chosen) != FTK_OK)
        return;
    d->state_kinds = calloc((size_t)d->reference->state->bytes / 4 + 1, 1);
    if (!d->state_kinds) return;
    d->reference->on_launch = compare_launch;
    d->reference->on_write = mark_write;
    d->other->on_launch = record_launch;
    d->reference->user = d->other->user = d;
    for (size_t i = 0; i < FTI_COUNT(shapes); i++) {
        d->paired = true;
        d->timed = i == 0;
        d->rows = shapes[i].rows;
        d->extremes = shapes[i].rows <= EXTREME_ROWS;
        fti_pc_at("%s over a step of %u rows", d->variant->name, shapes[i].rows);
        if (duel_step(d, &shapes[i]) != FTK_OK) break;
    }
    d->reference->on_launch = d->other->on_launch = NULL;
    d->reference->on_write = NULL;
    free(d->state_kinds);
    fti_pc_check(d->variant->tolerance == 0 || d->variant->comparisons > 0,
                 "%s: a tolerance is declared, but its launches have no counterparts in the "
                 "reference, so that nothing can be held to it",
                 d->variant->name);
}

/* ---- which variants ---- */

static const ftk_variant *row_at(const ftk_variant_table *t, uint64_t row) {
    return (const ftk_variant *)(const void *)((const char *)t->variants + row * t->variant_stride);
}

static uint32_t declared_tolerance(const fti_pc_target *target, const char *name) {
    for (size_t i = 0; i < target->tolerance_count; i++) {
        const char *equals = strrchr(target->tolerances[i], '=');
        size_t n = equals ? (size_t)(equals - target->tolerances[i]) : 0;
        if (equals && n == strlen(name) && strncmp(target->tolerances[i], name, n) == 0)
            return (uint32_t)strtoul(equals + 1, NULL, 10);
    }
    return 0;
}

static fti_pc_variant *new_variant(const fti_pc_target *target, const ftk_variant_table *t,
                                   const ftk_variant *row) {
    fti_pc_channel *c = fti_pc_the_channel();
    if (c->variant_count == FTI_PC_MAX_VARIANTS) return NULL;
    fti_pc_variant *v = &c->variants[c->variant_count++];
    snprintf(v->operation, sizeof v->operation, "%.*s", FTI_STR_ARGS(t->operation));
    snprintf(v->name, sizeof v->name, "%.*s", FTI_STR_ARGS(row->name));
    v->tolerance = declared_tolerance(target, v->name);
    return v;
}

/* False, and the reason, if this machine lacks what the variant needs. */
static bool runs_here(fti_pc_mock *m, const ftk_variant *row, fti_pc_variant *v) {
    for (uint64_t i = 0; i < row->need_count; i++) {
        const ftk_capability_need *need = &row->needs[i];
        int64_t value = 0;
        if (m->backend->ops->capability(m->backend, need->name, &value) == FTK_OK &&
            value >= need->min_value)
            continue;
        snprintf(v->skipped, sizeof v->skipped, "needs %.*s >= %lld, found %lld",
                 FTI_STR_ARGS(need->name), (long long)need->min_value, (long long)value);
        return false;
    }
    return true;
}

static void check_variant(const fti_pc_target *target, const ftk_provider *table, uint64_t index,
                          uint64_t row) {
    const ftk_variant_table *t = table->variants[index];
    duel d = {.variant = new_variant(target, t, row_at(t, row)),
              .reference = fti_pc_mock_new(target, table),
              .other = fti_pc_mock_new(target, table),
              .launches = calloc(FTI_PC_MAX_LAUNCHES, sizeof *d.launches)};
    uint32_t *chosen = calloc((size_t)table->variant_table_count, sizeof *chosen);
    for (uint64_t i = 0; chosen && i < table->variant_table_count; i++)
        chosen[i] = (uint32_t)(i == index ? row : table->variants[i]->variant_count - 1);
    if (d.variant && d.reference && d.other && d.launches && chosen &&
        runs_here(d.reference, row_at(t, row), d.variant))
        run_duel(&d, chosen);
    if (d.reference) fti_pc_mock_end(d.reference);
    if (d.other) fti_pc_mock_end(d.other);
    free(d.launches);
    free(chosen);
}

void fti_pc_pass_variants(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    if (!table) return;
    uint64_t count = 0;
    for (uint64_t i = 0; i < table->variant_table_count; i++)
        for (uint64_t row = 0; row + 1 < table->variants[i]->variant_count; row++, count++)
            check_variant(target, table, i, row);
    if (count == 0) fti_pc_skip("the provider has reference rows only");
}
