/* compare.c: see compare.h. */
#include "compare.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/text.h"

int fti_bench_named_cause(const fti_bench_row rows[2], const char *name, fti_bench_cause *cause) {
    *cause = rows[0].cause;
    if (rows[0].cause == FTI_BENCH_NOT_ATTRIBUTABLE || rows[1].cause == FTI_BENCH_NOT_ATTRIBUTABLE)
        return fti_cli_fail(FTK_E_STATE, "rows of two different programs attribute nothing: "
                                         "only rows of our own scenarios can be compared");
    if (name) {
        if (fti_bench_cause_of(name, cause) && *cause != FTI_BENCH_NOT_ATTRIBUTABLE) return 0;
        return fti_cli_usage("--cause: '%s' is none of 'model execution', 'scheduling', "
                             "'checkpoint representation', 'backend'",
                             name);
    }
    if (rows[0].cause == rows[1].cause) return 0;
    return fti_cli_fail(FTK_E_STATE, "not comparable: the rows name different causes, %s and %s",
                        fti_bench_cause_text(rows[0].cause), fti_bench_cause_text(rows[1].cause));
}

static int refuse(const fti_bench_differences *differences, fti_bench_cause cause) {
    char *why = fti_bench_refusal(differences, cause);
    int code = why ? fti_cli_fail(FTK_E_STATE, "%s", why) : 0;
    free(why);
    return code;
}

int fti_bench_check_attribution(const fti_bench_row rows[2], fti_bench_cause cause) {
    fti_bench_differences differences;
    fti_bench_differ(&rows[0], &rows[1], &differences);
    int code = refuse(&differences, cause);
    fti_bench_differences_free(&differences);
    return code;
}

static void check_rows(fti_bench_comparison *c) {
    for (size_t i = 0; i < 2 && !c->void_reason; i++)
        if (c->rows[i].void_reason)
            c->void_reason = fti_cli_format("%c is void: %s", i ? 'B' : 'A',
                                            c->rows[i].void_reason);
    if (!c->void_reason && strcmp(c->rows[0].hash, c->rows[1].hash) != 0)
        c->void_reason = fti_cli_format("A and B computed different tokens: hash %s and %s",
                                        c->rows[0].hash, c->rows[1].hash);
}

bool fti_bench_comparison_is_noise(const fti_bench_comparison *c) {
    return json_array_size(c->differences.knobs) == 0;
}

/* A ratio is worth no more than the rows that it is made of. */
static void check_claims(fti_bench_comparison *c) {
    for (size_t i = 0; i < 2 && !c->no_claim; i++) {
        char buffer[128];
        const char *lacks = fti_bench_row_no_claim(&c->rows[i], buffer, sizeof buffer);
        if (lacks) c->no_claim = fti_cli_format("%c makes none: %s", i ? 'B' : 'A', lacks);
    }
    if (!c->no_claim && fti_bench_comparison_is_noise(c))
        c->no_claim = fti_cli_format("no knob differs to which it could be put down");
}

/* Of a figure that both rows measure in the same way. */
static void add_ratio(fti_bench_comparison *c, const fti_bench_figure *figure,
                      fti_bench_ratio ratio) {
    ratio.claim = ratio.claim && !c->no_claim;
    if (fti_bench_comparison_is_noise(c)) ratio.difference = FTI_BENCH_NO_DIFFERENCE;
    c->figures[c->count] = figure;
    c->ratios[c->count++] = ratio;
}

static int begin(fti_bench_comparison *c, const fti_bench_row rows[2], const char *cause) {
    *c = (fti_bench_comparison){.rows = rows};
    int code = fti_bench_named_cause(rows, cause, &c->cause);
    if (code) return code;
    fti_bench_differ(&rows[0], &rows[1], &c->differences);
    code = refuse(&c->differences, c->cause);
    if (code) {
        fti_bench_comparison_free(c);
    } else {
        check_rows(c);
        check_claims(c);
    }
    return code;
}

void fti_bench_comparison_free(fti_bench_comparison *c) {
    fti_bench_differences_free(&c->differences);
    free(c->void_reason);
    free(c->no_claim);
    *c = (fti_bench_comparison){0};
}

/* Only such values have a ratio. */
static bool is_positive(const fti_bench_figure *figure) {
    for (size_t i = 0; i < figure->count; i++)
        if (!(figure->values[i] > 0.0)) return false;
    return true;
}

static bool same_measure(const fti_bench_figure *a, const fti_bench_figure *b) {
    return strcmp(a->unit, b->unit) == 0 && a->less_is_better == b->less_is_better;
}

int fti_bench_compare_rows(const fti_bench_row rows[2], const char *cause,
                           fti_bench_comparison *c) {
    int code = begin(c, rows, cause);
    if (code || c->void_reason) return code;
    for (size_t i = 0; i < rows[0].figure_count; i++) {
        const fti_bench_figure *a = &rows[0].figures[i];
        const fti_bench_figure *b = fti_bench_row_find(&rows[1], a->name);
        if (!b || !same_measure(a, b) || !is_positive(a) || !is_positive(b)) continue;
        add_ratio(c, a, fti_bench_compare_series(a->values, a->count, b->values, b->count));
    }
    if (c->count == 0) c->void_reason = fti_cli_format("A and B have no figure in common");
    return 0;
}

/* A pair counts if both of its runs do. */
static size_t collect_pairs(const fti_bench_subject subjects[2], const fti_bench_yield *yield,
                            double *a, double *b) {
    size_t runs = subjects[0].count < subjects[1].count ? subjects[0].count : subjects[1].count;
    size_t count = 0;
    for (size_t i = 0; i < runs; i++) {
        const fti_bench_sample *left = &subjects[0].samples[i], *right = &subjects[1].samples[i];
        if (!fti_bench_sample_counts(left) || !fti_bench_sample_counts(right)) continue;
        a[count] = yield->of(left);
        b[count] = yield->of(right);
        count += a[count] > 0.0 && b[count] > 0.0;
    }
    return count;
}

int fti_bench_compare_subjects(const fti_bench_subject subjects[2], const fti_bench_row rows[2],
                               const char *cause, fti_bench_comparison *c) {
    int code = begin(c, rows, cause);
    if (code || c->void_reason) return code;
    c->interleaved = true;
    double *a = fti_cli_alloc(subjects[0].count + 1, sizeof *a);
    double *b = fti_cli_alloc(subjects[0].count + 1, sizeof *b);
    const fti_bench_yield *yields = subjects[0].task->scenario->yields;
    for (size_t y = 0; y < FTI_BENCH_FIGURES && yields[y].name; y++) {
        const fti_bench_figure *figure = fti_bench_row_find(&rows[0], yields[y].name);
        size_t count = figure ? collect_pairs(subjects, &yields[y], a, b) : 0;
        if (count == 0) continue;
        add_ratio(c, figure, fti_bench_compare_pairs(a, b, count));
    }
    if (c->count == 0) c->void_reason = fti_cli_format("no pair is left of which both runs count");
    free(a);
    free(b);
    return 0;
}

/* ---- what it says ---- */

const char *fti_bench_ratio_no_claim(const fti_bench_comparison *c, size_t figure, char *buffer,
                                     size_t size) {
    const fti_bench_ratio *r = &c->ratios[figure];
    if (r->claim) return NULL;
    if (r->of.count >= FTI_BENCH_CLAIM_SAMPLES && c->no_claim) return c->no_claim;
    (void)snprintf(buffer, size, "%zu samples, and %u are needed", r->of.count,
                   FTI_BENCH_CLAIM_SAMPLES);
    return buffer;
}

char *fti_bench_verdict(const fti_bench_comparison *c, size_t figure) {
    const fti_bench_ratio *r = &c->ratios[figure];
    fti_cli_text text = {0};
    if (fti_bench_comparison_is_noise(c)) {
        fti_cli_printf(&text, "noise: A and B are the same");
    } else if (r->of.count < 2) {
        fti_cli_printf(&text, "no direction: the noise of one sample is not known");
    } else if (r->difference == FTI_BENCH_NO_DIFFERENCE) {
        fti_cli_printf(&text, "no difference seen");
    } else {
        bool more = r->difference == FTI_BENCH_B_GREATER;
        const char *word = more == c->figures[figure]->less_is_better ? "worse" : "better";
        fti_cli_printf(&text, "B is %s: %.4f times A", word, r->of.median);
    }
    char buffer[64];
    const char *lacks = fti_bench_ratio_no_claim(c, figure, buffer, sizeof buffer);
    if (lacks) fti_cli_printf(&text, " (no claim: %s)", lacks);
    return text.data;
}

static json_t *ratio_json(const fti_bench_comparison *c, size_t figure) {
    const fti_bench_ratio *r = &c->ratios[figure];
    static const char *const differences[] = {"none seen", "B greater", "B less"};
    char *verdict = fti_bench_verdict(c, figure);
    char buffer[64];
    const char *lacks = fti_bench_ratio_no_claim(c, figure, buffer, sizeof buffer);
    json_t *json = json_pack("{s:I, s:f, s:[f, f], s:f, s:f, s:f, s:s, s:b, s:s?, s:s}", "count",
                             (json_int_t)r->of.count, "median", r->of.median, "interval", r->of.low,
                             r->of.high, "min", r->of.min, "max", r->of.max, "noise", r->of.noise,
                             "difference", differences[r->difference], "claim", r->claim,
                             "no_claim_reason", lacks, "verdict", verdict);
    free(verdict);
    return json;
}

json_t *fti_bench_comparison_json(const fti_bench_comparison *c) {
    json_t *ratios = json_object();
    for (size_t i = 0; i < c->count && !c->void_reason; i++)
        (void)json_object_set_new(ratios, c->figures[i]->name, ratio_json(c, i));
    const fti_bench_differences *d = &c->differences;
    return json_pack("{s:i, s:s, s:s, s:s, s:b, s:o, s:b, s:o, s:O, s:O, s:O, s:o, s:o}", "format",
                     FTI_BENCH_ROW_FORMAT, "scenario", "compare", "of", c->rows[0].scenario,
                     "cause", fti_bench_cause_text(c->cause), "valid", c->void_reason == NULL,
                     "void_reason", c->void_reason ? json_string(c->void_reason) : json_null(),
                     "interleaved", c->interleaved, "ratios", ratios, "knobs", d->knobs, "follows",
                     d->follows, "ignored", d->ignored, "a", fti_bench_row_json(&c->rows[0]), "b",
                     fti_bench_row_json(&c->rows[1]));
}
