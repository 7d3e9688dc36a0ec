/*
 * attribution.h: why two rows differ. Everything that a row says of how it came about is
 * flattened to paths ("provenance.backend.threads") and looked up in one table: a knob,
 * which belongs to one cause; what merely follows from knobs; what must be the same; what
 * identifies nothing. Two rows may be compared only if knobs of one named cause are all
 * that differs. What the table does not know refuses the comparison as well.
 */
#ifndef FTI_BENCH_ATTRIBUTION_H
#define FTI_BENCH_ATTRIBUTION_H

#include "row.h"

typedef enum {
    FTI_BENCH_KNOB,
    FTI_BENCH_FOLLOWS, /* may differ where a knob of certain causes does */
    FTI_BENCH_FIXED,   /* the work, the machine, the build: must be the same */
    FTI_BENCH_IGNORED, /* times, addresses, names of files */
    FTI_BENCH_UNKNOWN
} fti_bench_class;

/* `cause` is set for knobs. */
fti_bench_class fti_bench_classify(const char *path, fti_bench_cause *cause);

/* The knobs of an engine's provenance, as {"policy.fused": "auto", ...}. */
json_t *fti_bench_knobs(const json_t *provenance);

/* XXH3-64 of all that identifies a provenance, addresses and names of files left out, in
 * hexadecimal; "" of none. */
void fti_bench_provenance_digest(const json_t *provenance, char digest[17]);

/* What differs between two rows; each list holds {"path", "a", "b"}, knobs also
 * "cause". */
typedef struct fti_bench_differences {
    json_t *knobs, *follows, *fixed, *ignored, *unknown;
} fti_bench_differences;

void fti_bench_differ(const fti_bench_row *a, const fti_bench_row *b,
                      fti_bench_differences *differences);
void fti_bench_differences_free(fti_bench_differences *differences);

/* NULL if the difference may be attributed to `cause`; otherwise one line that names what
 * stands in the way and what to do, to be released with free(). Rows that do not differ
 * at all may be compared: that measures the noise. */
char *fti_bench_refusal(const fti_bench_differences *differences, fti_bench_cause cause);

#endif
