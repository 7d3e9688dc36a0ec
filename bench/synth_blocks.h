/*
 * synth_blocks.h: random weights of every tensor type, as blocks. A block is drawn
 * as it is stored, never computed from floats, so it is made as fast as it can be
 * written; its scale is such that the values have the deviation asked for.
 *
 * Block n of a stream is a function of the stream and n alone, and the same on every
 * machine: the generator is a counter that is mixed, each type takes a fixed number
 * of draws per block, and no function of the C library is involved.
 */
#ifndef FTI_BENCH_SYNTH_BLOCKS_H
#define FTI_BENCH_SYNTH_BLOCKS_H

#include <stdint.h>

#define FTI_SYNTH_MAX_BLOCK 256u /* no block of a type below has more bytes */

typedef enum fti_synth_content {
    FTI_SYNTH_WEIGHT, /* mean 0 */
    FTI_SYNTH_NORM,   /* mean 1 */
    FTI_SYNTH_DECAY,  /* -16 to -0.5 */
    FTI_SYNTH_STEP    /* its softplus is 0.001 to 0.1, evenly in the logarithm */
} fti_synth_content;

/* The last three contents are for types of plain floats. */
typedef struct fti_synth_values {
    uint32_t type; /* FTK_TYPE_ */
    fti_synth_content content;
    float deviation;
} fti_synth_values;

typedef struct fti_synth_filler fti_synth_filler;

typedef struct fti_synth_type {
    const char *name;
    uint32_t type;
    uint32_t elements, bytes; /* of a block */
    uint32_t draws;           /* that a block takes */
    float unit;               /* deviation of what a block stores when its scale is 1 */
    float middle;             /* mean of its quants, where a minimum is to cancel it */
    void (*fill)(fti_synth_filler *, uint8_t *);
} fti_synth_type;

extern const fti_synth_type fti_synth_types[];
extern const uint32_t fti_synth_type_count;

/* NULL if there is no generator for the type. */
const fti_synth_type *fti_synth_find_type(uint32_t type);

/* The next number of a stream, whose state moves on by one draw. */
uint64_t fti_synth_next(uint64_t *stream);

/* Blocks first to first + count - 1 of `stream`. */
void fti_synth_fill(const fti_synth_values *values, uint64_t stream, uint64_t first, uint64_t count,
                    uint8_t *out);

#endif
