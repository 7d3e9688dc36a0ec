/*
 * semver.h: the two kinds of versions that provider and core compare: releases
 * (MAJOR.MINOR.PATCH and ranges of them) and contract levels.
 */
#ifndef FTI_SEMVER_H
#define FTI_SEMVER_H

#include "core/base.h"

typedef struct fti_semver {
    uint32_t major;
    uint32_t minor;
    uint32_t patch;
} fti_semver;

typedef enum { FTI_RANGE_MALFORMED, FTI_RANGE_OUTSIDE, FTI_RANGE_INSIDE } fti_range_answer;

/* Exactly three decimal numbers without leading zeros; no pre-release tags. */
bool fti_semver_parse(ftk_str text, fti_semver *version);

/* A range is one or more comparators, each >= > <= < or = and a version, joined
 * by spaces; all must hold. */
fti_range_answer fti_semver_in_range(fti_semver version, ftk_str range);

/* The contract levels of two sides, and the oldest peer each accepts. Level 0
 * meets only level 0; from 1 on, "newer than me" is no reason to refuse. */
typedef struct fti_levels {
    uint32_t level;
    uint32_t min_peer;
} fti_levels;
bool fti_levels_meet(fti_levels host, fti_levels provider, uint32_t *effective);

#endif
