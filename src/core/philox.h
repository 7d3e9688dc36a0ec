/*
 * philox.h: Philox4x32-10, the counter-based generator behind fti_random (Salmon
 * et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). A pure function,
 * in a header so that tests can hold it against the published vectors.
 */
#ifndef FTI_PHILOX_H
#define FTI_PHILOX_H

#include <stdint.h>

static inline void fti_philox_round(uint32_t c[4], uint32_t key0, uint32_t key1) {
    uint64_t a = (uint64_t)0xD2511F53u * c[0];
    uint64_t b = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t c1 = c[1], c3 = c[3];
    c[0] = (uint32_t)(b >> 32) ^ c1 ^ key0;
    c[1] = (uint32_t)b;
    c[2] = (uint32_t)(a >> 32) ^ c3 ^ key1;
    c[3] = (uint32_t)a;
}

/* Replaces the counter by its four random words. */
static inline void fti_philox4x32_10(uint32_t counter[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        fti_philox_round(counter, key0, key1);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

#endif
