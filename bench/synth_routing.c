/* synth_routing.c: see synth_routing.h. */
#include "synth_routing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "freetoken/device/base.h"
#include "freetoken/device/quant.h"
#include "freetoken/provider.h"
#include "synth_vocabulary.h"

#define MEASURED_TOKENS    1024u
#define WARMUP_TOKENS      128u /* until every cache is full */
#define CALIBRATION_LAYERS 4u
#define MOST_SKEW          8.0
#define MOST_EXPERTS       1024u

void fti_synth_draw_tokens(const fti_synth_plan *plan, uint64_t seed, int32_t *tokens,
                           size_t count) {
    uint64_t stream = seed * 0xd1342543de82ef95u + 1;
    uint32_t plain = plan->d.shape.vocabulary - FTI_SYNTH_SPECIALS;
    for (size_t i = 0; i < count; i++) tokens[i] = (int32_t)(fti_synth_next(&stream) % plain);
}

/* ---- routing ---- */

/* First `n` values of a row. Only types that can be skewed occur here. */
static void decode_row(uint32_t type, const uint8_t *row, float *out, uint32_t n) {
    float values[256];
    if (type == FTK_TYPE_F32) {
        memcpy(out, row, n * sizeof *out);
        return;
    }
    uint32_t step = type == FTK_TYPE_Q8_0 ? 32 : 256, bytes = type == FTK_TYPE_Q8_0 ? 34 : 144;
    for (uint32_t at = 0; at < n; at += step, row += bytes) {
        if (type == FTK_TYPE_Q8_0) {
            ftk_leaf leaf;
            ftk_q8_0_decode(row, &leaf);
            ftk_leaf_values(&leaf, 0, values);
        } else {
            ftk_k_block block;
            ftk_q4_k_decode(row, &block);
            ftk_k_values(&block, 1, values);
        }
        memcpy(out + at, values, (n - at < step ? n - at : step) * sizeof *out);
    }
}

/* First kept channels of row `row` of a tensor, as floats. */
static void read_row(const fti_synth_plan *p, const fti_synth_tensor *t, uint64_t row, float *out) {
    const fti_synth_type *type = fti_synth_find_type(t->values.type);
    uint64_t row_bytes = t->dims[0] / type->elements * type->bytes;
    uint32_t blocks = (p->kept_channels + type->elements - 1) / type->elements;
    uint8_t *bytes = fti_cli_alloc(blocks, type->bytes);
    fti_synth_plan_read(p, p->header.size + t->offset + row * row_bytes, blocks * type->bytes,
                        bytes);
    decode_row(t->values.type, bytes, out, p->kept_channels);
    free(bytes);
}

static const fti_synth_tensor *layer_tensor(const fti_synth_plan *p, uint32_t layer,
                                            const char *name) {
    char full[64];
    (void)snprintf(full, sizeof full, "blk.%u.%s", layer, name);
    return fti_synth_plan_find(p, full);
}

/* What routing in one layer needs: the logits of a token are
 * common[token] * popularity[expert] + own[token][expert], times a positive number
 * that the rest of the residual stream decides, and which changes no order. */
typedef struct layer_logits {
    uint32_t experts, used;
    size_t tokens;
    float *popularity, *common, *own;
} layer_logits;

static void free_logits(layer_logits *l) {
    free(l->popularity);
    free(l->common);
    free(l->own);
}

/* Rows of the router, with the norm before it taken in: [experts][kept]. */
static float *read_router(const fti_synth_plan *p, uint32_t layer) {
    uint32_t n = p->kept_channels, experts = p->d.shape.experts;
    float *rows = fti_cli_alloc((size_t)experts * n, sizeof *rows);
    float *norm = fti_cli_alloc(n, sizeof *norm);
    const fti_synth_tensor *router = layer_tensor(p, layer, "ffn_gate_inp.weight");
    read_row(p, layer_tensor(p, layer, "post_attention_norm.weight"), 0, norm);
    for (uint32_t e = 0; e < experts; e++) {
        read_row(p, router, e, rows + (size_t)e * n);
        for (uint32_t c = 0; c < n; c++) rows[(size_t)e * n + c] *= norm[c];
    }
    free(norm);
    return rows;
}

/* In four sums, each in order: the same on every machine. `n` is a multiple of 4. */
static float dot(const float *a, const float *b, uint32_t n) {
    float sum[4] = {0};
    for (uint32_t i = 0; i < n; i += 4)
        for (uint32_t j = 0; j < 4; j++) sum[j] += a[i + j] * b[i + j];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static layer_logits make_logits(const fti_synth_plan *p, uint32_t layer, const int32_t *tokens,
                                size_t count) {
    uint32_t n = p->kept_channels, experts = p->d.shape.experts;
    layer_logits l = {.experts = experts, .used = p->d.shape.used, .tokens = count};
    l.popularity = fti_cli_alloc(experts, sizeof(float));
    l.common = fti_cli_alloc(count, sizeof(float));
    l.own = fti_cli_alloc(count * experts, sizeof(float));
    float *rows = read_router(p, layer), *x = fti_cli_alloc(n, sizeof *x);
    const fti_synth_tensor *table = fti_synth_plan_find(p, "token_embd.weight");
    for (uint32_t e = 0; e < experts; e++) l.popularity[e] = rows[(size_t)e * n];
    for (size_t t = 0; t < count; t++) {
        read_row(p, table, (uint64_t)tokens[t], x);
        l.common[t] = x[0];
        x[0] = 0; /* the rest is the token's own */
        for (uint32_t e = 0; e < experts; e++)
            l.own[t * experts + e] = dot(rows + (size_t)e * n, x, n);
    }
    free(rows);
    free(x);
    return l;
}

/* The best experts of every token where popularity counts `strength` times. */
static void choose(const layer_logits *l, float strength, int32_t *experts) {
    float logits[MOST_EXPERTS];
    for (size_t t = 0; t < l->tokens; t++) {
        for (uint32_t e = 0; e < l->experts; e++)
            logits[e] = strength * l->popularity[e] * l->common[t] + l->own[t * l->experts + e];
        for (uint32_t k = 0; k < l->used; k++) {
            uint32_t best = 0;
            for (uint32_t e = 1; e < l->experts; e++)
                if (logits[e] > logits[best]) best = e;
            logits[best] = -1e30f;
            *experts++ = (int32_t)best;
        }
    }
}

void fti_synth_route(const fti_synth_plan *plan, uint32_t layer, const int32_t *tokens,
                     size_t count, int32_t *experts) {
    layer_logits l = make_logits(plan, layer, tokens, count);
    choose(&l, 1, experts);
    free_logits(&l);
}

/* ---- the cache ---- */

/* Moves `expert` to the front of `slots` entries, the most recent first; false if it
 * was not among them and took the last one's place. */
static bool touch(int32_t *cache, uint32_t slots, int32_t expert) {
    uint32_t at = 0;
    while (at < slots && cache[at] != expert) at++;
    bool hit = at < slots;
    memmove(cache + 1, cache, (hit ? at : slots - 1) * sizeof *cache);
    cache[0] = expert;
    return hit;
}

double fti_synth_hit_rate(const int32_t *experts, size_t tokens, uint32_t used, uint32_t slots,
                          size_t warmup) {
    int32_t *cache = fti_cli_alloc(slots, sizeof *cache);
    size_t hits = 0;
    for (uint32_t i = 0; i < slots; i++) cache[i] = -1;
    for (size_t i = 0; i < tokens * used; i++)
        hits += touch(cache, slots, experts[i]) && i >= warmup * used;
    free(cache);
    return (double)hits / (double)((tokens - warmup) * used);
}

static uint32_t slots_of(const fti_synth_shape *s) {
    return s->experts / FTI_SYNTH_SLOT_SHARE;
}

static double even_rate(const fti_synth_shape *s, size_t tokens) {
    uint64_t stream = 1;
    int32_t *experts = fti_cli_alloc(tokens * s->used, sizeof *experts);
    for (size_t i = 0; i < tokens * s->used; i++) {
        int32_t *first = experts + i / s->used * s->used, *at = experts + i;
        bool again = true;
        while (again) {
            *at = (int32_t)(fti_synth_next(&stream) % s->experts);
            again = false;
            for (const int32_t *other = first; other < at; other++) again |= *other == *at;
        }
    }
    double rate = fti_synth_hit_rate(experts, tokens, s->used, slots_of(s), WARMUP_TOKENS);
    free(experts);
    return rate;
}

static double layer_rate(const fti_synth_plan *p, const layer_logits *l, float strength) {
    int32_t *experts = fti_cli_alloc(l->tokens * l->used, sizeof *experts);
    choose(l, strength, experts);
    double rate = fti_synth_hit_rate(experts, l->tokens, l->used, slots_of(&p->d.shape),
                                     WARMUP_TOKENS);
    free(experts);
    return rate;
}

void fti_synth_measure(const fti_synth_plan *plan, fti_synth_rates *out) {
    const fti_synth_shape *s = &plan->d.shape;
    int32_t tokens[WARMUP_TOKENS + MEASURED_TOKENS];
    size_t count = WARMUP_TOKENS + MEASURED_TOKENS;
    *out = (fti_synth_rates){.slots = slots_of(s), .tokens = MEASURED_TOKENS, .low = 1};
    out->even = even_rate(s, count);
    fti_synth_draw_tokens(plan, 1, tokens, count);
    for (uint32_t i = 0; plan->kept_channels && i < s->layers; i++) {
        layer_logits l = make_logits(plan, i, tokens, count);
        double rate = layer_rate(plan, &l, 1);
        free_logits(&l);
        out->mean += rate / s->layers;
        if (rate < out->low) out->low = rate;
        if (rate > out->high) out->high = rate;
    }
}

/* ---- calibration ---- */

/* Mean of the layers' rates with `strength` times the plan's skew. */
static double mean_rate(const fti_synth_plan *p, const layer_logits *layers, uint32_t count,
                        float strength) {
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += layer_rate(p, &layers[i], strength);
    return sum / count;
}

/* Halves the range of skews until it is below the spread of samples. The tokens are
 * others than those that are measured with. */
static double solve(const fti_synth_plan *p, double rate) {
    int32_t tokens[WARMUP_TOKENS + MEASURED_TOKENS];
    layer_logits layers[CALIBRATION_LAYERS];
    double low = 0, high = MOST_SKEW;
    fti_synth_draw_tokens(p, 2, tokens, WARMUP_TOKENS + MEASURED_TOKENS);
    for (uint32_t i = 0; i < CALIBRATION_LAYERS; i++)
        layers[i] = make_logits(p, i, tokens, WARMUP_TOKENS + MEASURED_TOKENS);
    while (high - low > MOST_SKEW / 8192) {
        double middle = (low + high) / 2;
        if (mean_rate(p, layers, CALIBRATION_LAYERS, (float)middle) < rate) {
            low = middle;
        } else {
            high = middle;
        }
    }
    for (uint32_t i = 0; i < CALIBRATION_LAYERS; i++) free_logits(&layers[i]);
    return high;
}

ftk_status fti_synth_calibrate(fti_synth_description *d, double rate, ftk_error *err) {
    fti_synth_plan plan;
    d->skew = 1;
    ftk_status status = fti_synth_plan_make(d, &plan, err);
    if (status != FTK_OK) return status;
    d->skew = solve(&plan, rate);
    fti_synth_plan_free(&plan);
    return FTK_OK;
}
