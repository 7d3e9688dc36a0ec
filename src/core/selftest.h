/*
 * selftest.h: the problems that the self-test gives to every kernel variant:
 * shapes and adversarial data for each operator and weight type. A problem is
 * one image of memory, inputs and room for results together, and a function that
 * enqueues the operators on it wherever the image lies.
 */
#ifndef FTI_SELFTEST_H
#define FTI_SELFTEST_H

#include "core/base.h"

typedef struct fti_problem fti_problem;

struct fti_problem {
    uint32_t type; /* of the weight; 0 where there is none */
    uint32_t rows;
    uint32_t cols;
    uint32_t inputs;
    uint32_t formats;   /* FTK_ACT_ that the weight reads */
    uint64_t row_bytes; /* of the weight */
    /* Bytes into the image. */
    uint64_t weights, x, x2, ints, packed, packed_bytes;
    uint64_t out, out_bytes; /* what is compared, as 32-bit words */
    uint64_t bytes;          /* of the image */
    uint8_t *image;          /* owned */
};

/* One operator, or several that belong together. */
typedef struct fti_problem_kind {
    const char *name;
    bool typed; /* has a weight: once for each readable type */
    ftk_status (*run)(const fti_problem *, const ftk_if_operators *, ftk_stream *, uint8_t *base);
    void (*plan)(fti_problem *);
    void (*fill)(fti_problem *, uint64_t *seed);
} fti_problem_kind;

extern const fti_problem_kind fti_problem_kinds[];
extern const size_t fti_problem_kind_count;

#define FTI_PROBLEM_TYPES 64u /* weight types are numbers below this */

/* The shape-th problem of a kind: FTK_E_NOT_FOUND past the last one,
 * FTK_E_UNSUPPORTED for a shape that the type does not come in. */
ftk_status fti_problem_make(const fti_problem_kind *kind, const ftk_if_operators *op, uint32_t type,
                            size_t shape, fti_problem *out, ftk_error *err) FTI_WARN_UNUSED;
void fti_problem_free(fti_problem *problem);

#endif
