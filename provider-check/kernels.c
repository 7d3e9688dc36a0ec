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
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- images of everything that a kernel may write ---- */

#define MAX_PARTS 4096u

/* What a kernel may write, in parts that are left alone together: a sequence's state,
 * the keys of a layer. */
typedef struct part {
    char *data;
    uint64_t bytes;
    uint64_t at;  /* in the copies */
    bool floats;  /* extreme values may come in place of f32 ones */
    bool written; /* by the launch */
} part;

/* Copies of them, one after the other. `kinds` has one entry per 4 bytes. */
typedef struct image {
    part parts[MAX_PARTS];
    size_t count;
    uint64_t bytes;
    char *before; /* the launch */
    char *wanted; /* after the reference */
    char *kept;   /* what the step goes on with */
    char *set;    /* before, with extreme values in it */
    char *kinds;  /* K_ */
} image;

enum { K_UNKNOWN, K_FLOAT, K_OTHER };

static void add_part(image *im, char *data, uint64_t bytes, bool floats) {
    if (im->count == MAX_PARTS || bytes == 0) return;
    im->parts[im->count++] = (part){
        .data = data, .bytes = bytes, .at = im->bytes, .floats = floats};
    im->bytes += (bytes + 3) / 4 * 4;
}

static void image_free(image *im) {
    free(im->before);
    free(im->wanted);
    free(im->kept);
    free(im->set);
    free(im->kinds);
}

/* Has the sequence in a state slot rows in the step? */
static bool slot_is_used(const ftk_step *step, uint32_t slot) {
    for (uint32_t s = 0; s < step->sequences; s++)
        if (step->state_slots[s] == (int32_t)slot &&
            step->sequence_rows[s + 1] > step->sequence_rows[s])
            return true;
    return false;
}

/* Of a step that is to be run. Caches of keys and values, of 16-bit floats, keep what they
 * have, and so does the state of who has no rows. */
static bool image_new(image *im, const fti_pc_mock *m, const ftk_step *step) {
    im->count = 0;
    im->bytes = 0;
    add_part(im, m->step_workspace->data, m->step_workspace->bytes, true);
    add_part(im, m->logits->data, m->logits->bytes, false);
    for (uint32_t s = 0; s < m->slots; s++)
        add_part(im, m->state->data + s * m->slot_stride, m->slot_stride, slot_is_used(step, s));
    for (const fti_pc_area *a = m->caches; a; a = a->next)
        if (a != m->state) add_part(im, a->data, a->bytes, false);
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

/* Comparing is quicker than copying, and most of it is as it was. */
static void copy_changed(void *to, const void *from, uint64_t bytes) {
    if (memcmp(to, from, (size_t)bytes) != 0) memcpy(to, from, (size_t)bytes);
}

static void save(const image *im, char *to) {
    for (size_t i = 0; i < im->count; i++)
        copy_changed(to + im->parts[i].at, im->parts[i].data, im->parts[i].bytes);
}

static void restore(const image *im, const char *from) {
    for (size_t i = 0; i < im->count; i++)
        copy_changed(im->parts[i].data, from + im->parts[i].at, im->parts[i].bytes);
}

/* What extreme values come to, or may come from: the rest is looked at in the end. */
static bool takes_part(const part *p) {
    return p->floats || p->written;
}

static void save_set(const image *im, char *to) {
    for (size_t i = 0; i < im->count; i++)
        if (takes_part(&im->parts[i]))
            memcpy(to + im->parts[i].at, im->parts[i].data, (size_t)im->parts[i].bytes);
}

static void restore_set(const image *im, const char *from) {
    for (size_t i = 0; i < im->count; i++)
        if (takes_part(&im->parts[i]))
            memcpy(im->parts[i].data, from + im->parts[i].at, (size_t)im->parts[i].bytes);
}

/* Index of the first word of `at` in the image, UINT64_MAX if it is in no part. */
static uint64_t word_of(const image *im, const void *at) {
    for (size_t i = 0; i < im->count; i++) {
        const part *p = &im->parts[i];
        uintptr_t first = (uintptr_t)p->data, address = (uintptr_t)at;
        if (address >= first && address - first < p->bytes) return (p->at + (address - first)) / 4;
    }
    return UINT64_MAX;
}

/* Counts what was written and could be f32, and what could not: an index, read as a
 * float, is a denormal. */
static void count_kinds(const image *im, const part *p, uint64_t *normal, uint64_t *odd) {
    const uint32_t *old = (const uint32_t *)(const void *)(im->before + p->at);
    const uint32_t *new = (const uint32_t *)(const void *)(im->wanted + p->at);
    for (uint64_t i = 0; i < p->bytes / 4; i++) {
        uint32_t exponent = new[i] >> 23 & 0xFF;
        if (old[i] == new[i] || (new[i] & 0x7FFFFFFFu) == 0) continue;
        if (exponent == 0 || exponent == 0xFF)
            (*odd)++;
        else
            (*normal)++;
    }
}

/* What a kernel wrote is taken for f32 if all of it could be. */
static void classify(image *im) {
    uint64_t normal = 0, odd = 0;
    for (size_t i = 0; i < im->count; i++) {
        part *p = &im->parts[i];
        p->written = memcmp(im->before + p->at, im->wanted + p->at, (size_t)p->bytes) != 0;
        if (p->written) count_kinds(im, p, &normal, &odd);
    }
    char kind = odd == 0 && normal > 0 ? K_FLOAT : K_OTHER;
    for (size_t i = 0; i < im->count; i++) {
        const part *p = &im->parts[i];
        const uint32_t *old = (const uint32_t *)(const void *)(im->before + p->at);
        const uint32_t *new = (const uint32_t *)(const void *)(im->wanted + p->at);
        for (uint64_t w = 0; p->written && w < p->bytes / 4; w++)
            if (old[w] != new[w]) im->kinds[p->at / 4 + w] = kind;
    }
}

/* ---- values ---- */

enum {
    V_ZERO,
    V_MINUS_ZERO,
    V_DENORMAL,
    V_MAXIMUM,
    V_MINIMUM,
    V_RANDOM,
    V_MIXED,
    V_INFINITE,
    V_NAN,
    V_ANY,
    V_COUNT
};

static uint32_t scatter(uint64_t i) {
    uint32_t x = (uint32_t)i * 2654435761u + 97u;
    x ^= x >> 16;
    x *= 2246822519u;
    return x ^ x >> 13;
}

/* Of any sign, payload and kind. */
static float not_a_number(uint32_t x) {
    return ftk_f32_from_bits(0x7F800001u | (x & 0x807FFFFEu));
}

/* One value in so many is no number: more of them would leave no sum that is one, and so
 * nothing to tell a wrong sum by. */
#define SPARSE 61u

static float extreme(int set, uint64_t i) {
    static const float mixed[] = {0.0f,   -0.0f,   1.0f,       -1.0f,       FLT_MAX, -FLT_MAX,
                                  1e-42f, -1e-42f, FLT_MIN,    -FLT_MIN,    1e30f,   1e-30f,
                                  88.8f,  -104.0f, 1.0000001f, 16777217.0f, 1e-20f,  -1e-20f};
    uint32_t x = scatter(i);
    float sign = x & 1 ? -1.0f : 1.0f, random = sign * (float)(x >> 8) * 0x1p-22f;
    bool chosen = i % SPARSE == 5;
    switch (set) {
    case V_ZERO: return 0.0f;
    case V_MINUS_ZERO: return -0.0f;
    case V_DENORMAL: return sign * 1e-45f * (float)(1u + (x >> 8 & 0xFFFFu));
    case V_MAXIMUM: return sign * FLT_MAX;
    case V_MINIMUM: return sign * FLT_MIN;
    case V_RANDOM: return random;
    case V_INFINITE: return chosen ? sign * INFINITY : random;
    case V_NAN: return chosen ? not_a_number(x) : random;
    case V_ANY:
        if (x >> 4 & 1) return x >> 5 & 1 ? not_a_number(x) : sign * INFINITY;
        return mixed[(x >> 6) % FTI_COUNT(mixed)];
    default: return mixed[(x >> 4) % FTI_COUNT(mixed)];
    }
}

#define PERIOD 1021u /* prime, so that no stride of a kernel's meets the same value only */

/* The image before the launch, with its f32 values replaced. */
static void make_set(const image *im, int set) {
    float values[PERIOD];
    for (uint64_t i = 0; i < PERIOD; i++) values[i] = extreme(set, i);
    for (size_t i = 0; i < im->count; i++) {
        const part *p = &im->parts[i];
        float *out = (float *)(void *)(im->set + p->at);
        const char *kinds = im->kinds + p->at / 4;
        if (!takes_part(p)) continue;
        memcpy(out, im->before + p->at, (size_t)p->bytes);
        for (uint64_t w = 0, v = 0; p->floats && w < p->bytes / 4;
             w++, v = v + 1 == PERIOD ? 0 : v + 1)
            if (kinds[w] == K_FLOAT) out[w] = values[v];
    }
}

/* ---- distance ---- */

static bool is_nan(uint32_t bits) {
    return (bits & 0x7FFFFFFFu) > 0x7F800000u;
}

static int64_t ordered(uint32_t bits) {
    return bits & 0x80000000u ? -(int64_t)(bits & 0x7FFFFFFFu) : (int64_t)bits;
}

/* In units of the last place; zeros of different signs are one apart. Any NaN agrees with
 * any other, since which one an operation of two passes on differs between machines. */
static uint32_t distance(uint32_t a, uint32_t b) {
    if (a == b || (is_nan(a) && is_nan(b))) return 0;
    if (is_nan(a) || is_nan(b)) return UINT32_MAX;
    int64_t d = ordered(a) - ordered(b);
    if (d < 0) d = -d;
    return d == 0 ? 1 : (uint32_t)d;
}

static uint32_t part_distance(const image *im, const part *p) {
    const char *wanted = im->wanted + p->at;
    uint32_t worst = 0;
    if (memcmp(p->data, wanted, (size_t)p->bytes) == 0) return 0;
    for (uint64_t i = 0; i + 4 <= p->bytes; i += 4) {
        uint32_t a, b;
        memcpy(&a, p->data + i, sizeof a);
        memcpy(&b, wanted + i, sizeof b);
        uint32_t d = distance(a, b);
        if (d > worst) worst = d;
    }
    return worst;
}

/* The largest distance between the memory as it is and the image after the reference; of
 * all parts, or of those that extreme values come to. */
static uint32_t worst_distance(const image *im, bool all) {
    uint32_t worst = 0;
    for (size_t i = 0; i < im->count; i++) {
        if (!all && !takes_part(&im->parts[i])) continue;
        uint32_t d = part_distance(im, &im->parts[i]);
        if (d > worst) worst = d;
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
    {{{SUBJECT, 0, 0, FTI_PC_USUAL_ROWS, 2}}, 1, FTI_PC_USUAL_ROWS},
    {{{SUBJECT, 0, 24, 1, 1}}, 1, 1},
    {{{SUBJECT, 0, 25, 1, 1}, {8, 2, 0, 1, 1}}, 2, 2},
    {{{8, 2, 1, 1, 1}, {9, 3, 0, 0, 0}, {SUBJECT, 0, 26, 2, 1}}, 3, 3},
    {{{SUBJECT, 0, 28, 3, 3}}, 1, 5},
    {{{9, 3, 0, 2, 1}, {SUBJECT, 0, 31, 7, 1}}, 2, 9},
    {{{8, 2, 2, 16, 1}, {9, 3, 2, 1, 0}}, 2, 17},
};

/* Of mocks that have room for them. */
static const shape wide_shapes[] = {
    {{{SUBJECT, 1, 0, 25, 2}}, 1, 25},
    {{{SUBJECT, 2, 0, 63, 1}, {8, 3, 0, 2, 1}}, 2, 65},
};

static void run_launch(const fti_pc_launch *l, ftk_cpu_kernel function) {
    if (l->items > 0) fti_pc_run_kernel(l, function, l->args, 0, l->items);
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
        fti_pc_run_kernel(l, copy.function, copy.args, begin, end);
        end = begin;
    }
    fti_pc_check(worst_distance(im, true) == 0,
                 "the kernel %s gives other values over parts of its %llu items, last part first: "
                 "what it computes for an item may not depend on the range",
                 l->name, (unsigned long long)l->items);
    fti_pc_check(memcmp(copy.args, l->args, l->args_bytes) == 0,
                 "the kernel %s changed its arguments", l->name);
    restore(im, im->wanted);
}

static bool split_step(fti_pc_mock *m, const shape *s) {
    image im;
    ftk_step step = fti_pc_fill_step(m, s->parts, s->count, s->rows);
    if (!image_new(&im, m, &step)) return false;
    m->on_launch = split_launch;
    m->user = &im;
    ftk_status status = fti_pc_run(m, &step);
    m->on_launch = NULL;
    image_free(&im);
    return status == FTK_OK;
}

static void split_steps(const fti_pc_target *target, const ftk_provider *table, fti_pc_size size,
                        uint32_t nth, const shape *list, size_t count) {
    fti_pc_mock *m = fti_pc_mock_with(target, table, size, nth);
    if (!m) return;
    for (size_t i = 0; i < count && split_step(m, &list[i]); i++) fti_pc_checked();
    fti_pc_mock_end(m);
}

static uint32_t choices_of(const fti_pc_target *target, const ftk_provider *table) {
    fti_pc_mock *m = fti_pc_mock_new(target, table);
    uint32_t count = m ? fti_pc_choices(m) : 0;
    if (m) fti_pc_mock_end(m);
    return count;
}

/* The references, and every variant that runs here. */
void fti_pc_pass_ranges(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    if (!table) return;
    uint32_t choices = choices_of(target, table);
    split_steps(target, table, FTI_PC_USUAL, FTI_PC_REFERENCES, shapes, FTI_COUNT(shapes));
    for (uint32_t nth = 0; nth < choices; nth++) {
        split_steps(target, table, FTI_PC_USUAL, nth, shapes, FTI_COUNT(shapes));
        split_steps(target, table, FTI_PC_WIDE, nth, wide_shapes, FTI_COUNT(wide_shapes));
    }
    if (choices == 0)
        split_steps(target, table, FTI_PC_WIDE, FTI_PC_REFERENCES, wide_shapes,
                    FTI_COUNT(wide_shapes));
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
    uint32_t fights; /* in the step */
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

static void judge(duel *d, const fti_pc_launch *l, const char *values, bool all) {
    uint32_t worst = worst_distance(&d->image, all);
    d->variant->comparisons++;
    if (worst > d->variant->worst) d->variant->worst = worst;
    fti_pc_at("%s, a step of %u rows: %u units in the last place", d->variant->name, d->rows,
              worst);
    fti_pc_check(worst <= d->variant->tolerance,
                 "%s: the kernel %s differs from the reference over %s by more than the %u units "
                 "in the last place that are declared",
                 d->variant->name, l->name, values, d->variant->tolerance);
}

/* Where extreme values do not come to, nothing changes either. */
static void judge_rest(const duel *d, const fti_pc_launch *l) {
    const image *im = &d->image;
    for (size_t i = 0; i < im->count; i++)
        if (!takes_part(&im->parts[i]))
            fti_pc_check(memcmp(im->parts[i].data, im->before + im->parts[i].at,
                                (size_t)im->parts[i].bytes) == 0,
                         "%s: the kernel %s writes, over extreme values, where it wrote nothing "
                         "over those of the step",
                         d->variant->name, l->name);
}

static void fight_extremes(duel *d, const fti_pc_launch *l, ftk_cpu_kernel other) {
    static const char *const names[V_COUNT] = {"zeros",
                                               "negative zeros",
                                               "denormals",
                                               "maxima",
                                               "minima",
                                               "random values",
                                               "mixed extremes",
                                               "infinities",
                                               "NaN",
                                               "infinities and NaN among extremes"};
    image *im = &d->image;
    restore(im, im->before);
    for (int set = 0; set < V_COUNT; set++) {
        make_set(im, set);
        restore_set(im, im->set);
        run_launch(l, l->function);
        save_set(im, im->wanted);
        restore_set(im, im->set);
        run_launch(l, other);
        judge(d, l, names[set], false);
    }
    judge_rest(d, l);
}

/* Layers launch one kernel after another with other weights: the first few, then one in
 * four of them, meet extreme values. */
static bool meets_extremes(duel *d) {
    uint32_t fight = d->fights++;
    return d->extremes && (fight < 2 || fight % 4 == 2);
}

/* Memory is then as the reference leaves it. */
static void fight(duel *d, const fti_pc_launch *l, ftk_cpu_kernel other) {
    image *im = &d->image;
    save(im, im->kept);
    restore(im, im->before);
    run_launch(l, other);
    judge(d, l, "the values of a step", true);
    if (meets_extremes(d)) fight_extremes(d, l, other);
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

/* What is known of the state's words outlives the image of one step. The parts of slots lie
 * one behind the other, as the slots do. */
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
    d->fights = 0;
    FTI_TRY(fti_pc_run(b, &second));
    if (!image_new(&d->image, a, &first)) return FTK_E_NO_MEMORY;
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

/* One of the steps; false if there is no going on. */
static bool run_shape(duel *d, const shape *s) {
    d->paired = true;
    d->timed = s == &shapes[0];
    d->rows = s->rows;
    d->extremes = s->rows <= EXTREME_ROWS;
    fti_pc_at("%s over a step of %u rows", d->variant->name, s->rows);
    return duel_step(d, s) == FTK_OK;
}

/* What is equal to the bit is compared over wide steps as a whole; what is not, here. */
static void run_duel(duel *d, const uint32_t *base, const uint32_t *chosen) {
    bool wide = d->variant->tolerance > 0;
    fti_pc_set_size(d->reference, wide ? FTI_PC_WIDE : FTI_PC_USUAL);
    fti_pc_set_size(d->other, wide ? FTI_PC_WIDE : FTI_PC_USUAL);
    if (fti_pc_bring(d->reference, FTI_PC_PREPARED, base) != FTK_OK ||
        fti_pc_bring(d->other, FTI_PC_PREPARED, chosen) != FTK_OK)
        return;
    d->state_kinds = calloc((size_t)d->reference->state->bytes / 4 + 1, 1);
    if (!d->state_kinds) return;
    d->reference->on_launch = compare_launch;
    d->reference->on_write = mark_write;
    d->other->on_launch = record_launch;
    d->reference->user = d->other->user = d;
    bool going = true;
    for (size_t i = 0; going && i < FTI_COUNT(shapes); i++) going = run_shape(d, &shapes[i]);
    for (size_t i = 0; going && wide && i < FTI_COUNT(wide_shapes); i++)
        going = run_shape(d, &wide_shapes[i]);
    d->reference->on_launch = d->other->on_launch = NULL;
    d->reference->on_write = NULL;
    free(d->state_kinds);
    fti_pc_check(d->variant->tolerance == 0 || d->variant->comparisons > 0,
                 "%s: a tolerance is declared, but its launches have no counterparts in the "
                 "reference, so that nothing can be held to it",
                 d->variant->name);
}

/* ---- which variants ---- */

static fti_pc_variant *new_variant(const fti_pc_target *target, const ftk_variant_table *t,
                                   const ftk_variant *row) {
    fti_pc_channel *c = fti_pc_the_channel();
    if (c->variant_count == FTI_PC_MAX_VARIANTS) return NULL;
    fti_pc_variant *v = &c->variants[c->variant_count++];
    snprintf(v->operation, sizeof v->operation, "%.*s", FTI_STR_ARGS(t->operation));
    snprintf(v->name, sizeof v->name, "%.*s", FTI_STR_ARGS(row->name));
    v->tolerance = fti_pc_tolerance(target, row->name);
    return v;
}

/* What else is chosen is the same on both sides, and quick: it has a duel of its own. */
static void check_variant(const fti_pc_target *target, const ftk_provider *table, uint64_t index,
                          uint32_t row) {
    const ftk_variant_table *t = table->variants[index];
    duel d = {.variant = new_variant(target, t, fti_pc_row(t, row)),
              .reference = fti_pc_mock_new(target, table),
              .other = fti_pc_mock_new(target, table),
              .launches = calloc(FTI_PC_MAX_LAUNCHES, sizeof *d.launches)};
    uint32_t *base = d.reference ? fti_pc_choose(d.reference, 0) : NULL;
    uint32_t *chosen = d.reference ? fti_pc_choose(d.reference, 0) : NULL;
    if (d.variant && d.reference && d.other && d.launches && base && chosen &&
        fti_pc_runs_here(d.reference, fti_pc_row(t, row), d.variant->skipped,
                         sizeof d.variant->skipped)) {
        base[index] = (uint32_t)t->variant_count - 1;
        chosen[index] = row;
        run_duel(&d, base, chosen);
    }
    if (d.reference) fti_pc_mock_end(d.reference);
    if (d.other) fti_pc_mock_end(d.other);
    free(d.launches);
    free(base);
    free(chosen);
}

void fti_pc_pass_variants(const fti_pc_target *target) {
    const ftk_provider *table = fti_pc_load(target);
    if (!table) return;
    uint64_t count = 0;
    for (uint64_t i = 0; i < table->variant_table_count; i++)
        for (uint32_t row = 0; row + 1 < table->variants[i]->variant_count; row++, count++)
            check_variant(target, table, i, row);
    if (count == 0)
        fti_pc_skip("the provider has reference rows only");
    else
        fti_pc_check_wide_variants(target, table);
}
