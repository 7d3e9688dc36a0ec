/* compare.h: two rows beside each other: whether they may be compared, and what differs. */
#ifndef FTI_BENCH_COMPARE_H
#define FTI_BENCH_COMPARE_H

#include "attribution.h"
#include "subject.h"

typedef struct fti_bench_comparison {
    const fti_bench_row *rows; /* [2]: A and B */
    fti_bench_cause cause;
    fti_bench_differences differences;
    bool interleaved;
    char *void_reason;                                  /* NULL: the ratios stand */
    const fti_bench_figure *figures[FTI_BENCH_FIGURES]; /* of A, those that B has too */
    fti_bench_ratio ratios[FTI_BENCH_FIGURES];
    size_t count;
    char *no_claim; /* why no ratio supports one, whatever its samples; NULL: some may */
} fti_bench_comparison;

/* Of two rows measured at different times. `cause` NULL: the rows' own, which must then be
 * the same. Exit code of a failed run, after saying why, if they may not be compared;
 * otherwise the caller frees the comparison, and releases it before the rows. */
int fti_bench_compare_rows(const fti_bench_row rows[2], const char *cause,
                           fti_bench_comparison *comparison);

/* Of two subjects whose runs alternated, sample by sample; `rows` are theirs. */
int fti_bench_compare_subjects(const fti_bench_subject subjects[2], const fti_bench_row rows[2],
                               const char *cause, fti_bench_comparison *comparison);
void fti_bench_comparison_free(fti_bench_comparison *comparison);

/* Nothing that could be turned differs: the ratios show the noise, and no direction. */
bool fti_bench_comparison_is_noise(const fti_bench_comparison *comparison);

/* Why this ratio supports no claim, in a buffer of the caller or the comparison; NULL: it
 * does. */
const char *fti_bench_ratio_no_claim(const fti_bench_comparison *comparison, size_t figure,
                                     char *buffer, size_t size);

/* "B is better: 1.05 times A", "no difference seen", ... ; free with free(). */
char *fti_bench_verdict(const fti_bench_comparison *comparison, size_t figure);
json_t *fti_bench_comparison_json(const fti_bench_comparison *comparison);

/* The cause that --cause names, or the rows' own. */
int fti_bench_named_cause(const fti_bench_row rows[2], const char *name, fti_bench_cause *cause);
/* Exit code of a failed run, after saying why, unless only knobs of `cause` differ. */
int fti_bench_check_attribution(const fti_bench_row rows[2], fti_bench_cause cause);

#endif
