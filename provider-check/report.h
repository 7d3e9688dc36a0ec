/*
 * report.h: what the passes found, for people and as JSON that an author can publish
 * beside the package.
 */
#ifndef FTI_PC_REPORT_H
#define FTI_PC_REPORT_H

#include "check.h"

typedef struct fti_pc_result {
    const fti_pc_pass *pass;
    fti_pc_channel *channel;
    double seconds;
} fti_pc_result;

typedef struct fti_pc_report {
    const fti_pc_target *target;
    char sha256[65];
    fti_pc_result results[FTI_PC_MAX_PASSES];
    size_t count;
} fti_pc_report;

typedef enum { FTI_PC_PASSED, FTI_PC_FAILED, FTI_PC_SKIPPED } fti_pc_verdict;
fti_pc_verdict fti_pc_verdict_of(const fti_pc_result *result);
size_t fti_pc_count(const fti_pc_report *report, fti_pc_verdict verdict);

/* On standard output; a result's line as soon as it is there. */
void fti_pc_print_head(const fti_pc_report *report);
void fti_pc_print_result(const fti_pc_result *result);
void fti_pc_print_end(const fti_pc_report *report);
void fti_pc_print_json(const fti_pc_report *report);

#endif
