/*
 * synth_routing.h: where a skewed checkpoint sends its tokens, and what a cache of
 * experts makes of that.
 *
 * In a skewed checkpoint no layer writes to the first channels of the residual stream,
 * and routers read nothing else. So the experts of a token are a function of the layer
 * and of the token alone, and are known without running the model. Their logits are a
 * part that all tokens share, which falls with the logarithm of the expert's rank, and a
 * part of the token's own. Without skew routing depends on the whole context, and only
 * running the model tells it.
 */
#ifndef FTI_BENCH_SYNTH_ROUTING_H
#define FTI_BENCH_SYNTH_ROUTING_H

#include "synth_plan.h"

/* The cache that hit rates are stated for: in every layer a quarter of the experts has
 * a slot, and the least recently used one makes way. */
#define FTI_SYNTH_SLOT_SHARE 4u
#define FTI_SYNTH_LEAST_RATE 0.35
#define FTI_SYNTH_MOST_RATE  0.90

/* Tokens drawn evenly from the vocabulary, special ones left out. */
void fti_synth_draw_tokens(const fti_synth_plan *plan, uint64_t seed, int32_t *tokens,
                           size_t count);

/* Experts of each token in a layer of a skewed plan, best first: [count][used]. */
void fti_synth_route(const fti_synth_plan *plan, uint32_t layer, const int32_t *tokens,
                     size_t count, int32_t *experts);

/* Share of lookups that hit, over the tokens after the first `warmup`. */
double fti_synth_hit_rate(const int32_t *experts, size_t tokens, uint32_t used, uint32_t slots,
                          size_t warmup);

typedef struct fti_synth_rates {
    uint32_t slots;   /* per layer */
    size_t tokens;    /* counted */
    double mean;      /* over all layers */
    double low, high; /* of single layers */
    double even;      /* if every token drew its experts evenly */
} fti_synth_rates;

/* What tokens drawn evenly meet in a skewed plan; without skew only `slots`, `tokens`
 * and `even` are set. */
void fti_synth_measure(const fti_synth_plan *plan, fti_synth_rates *out);

/* Sets d->skew so that such tokens hit at `rate`, FTI_SYNTH_LEAST_RATE to
 * FTI_SYNTH_MOST_RATE. */
ftk_status fti_synth_calibrate(fti_synth_description *d, double rate, ftk_error *err);

#endif
