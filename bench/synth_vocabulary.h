/*
 * synth_vocabulary.h: a byte-level BPE vocabulary of any size, by rule: the 256 byte
 * tokens, then one token for each merge, then the special tokens. Letters come in the
 * order of their use in English, so English words become few tokens.
 */
#ifndef FTI_BENCH_SYNTH_VOCABULARY_H
#define FTI_BENCH_SYNTH_VOCABULARY_H

#include <stdint.h>

#define FTI_SYNTH_BYTE_TOKENS 256u

/* The `index`-th byte token: printable bytes first. */
void fti_synth_byte_token(uint32_t index, char text[4]);

/* One merge: two texts that are tokens already, and become one. */
typedef struct fti_synth_merge {
    char left[8], right[8];
} fti_synth_merge;
/* `rank` below 493 506. */
fti_synth_merge fti_synth_merge_of(uint32_t rank);

typedef struct fti_synth_special {
    const char *text;
    uint32_t type; /* 3 control, 4 user-defined */
} fti_synth_special;
#define FTI_SYNTH_SPECIALS 26u
/* 0 is end of text, 2 is end of turn. */
extern const fti_synth_special fti_synth_specials[FTI_SYNTH_SPECIALS];

#endif
