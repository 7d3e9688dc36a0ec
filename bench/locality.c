/* locality.c: see locality.h. */
#include "locality.h"

#include <math.h>
#include <stdlib.h>

#include "cli/text.h"

static int falling(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

static void spread(uint64_t *rows, uint32_t experts, fti_locality *out) {
    uint64_t sum = 0, so_far = 0;
    for (uint32_t e = 0; e < experts; e++) sum += rows[e];
    qsort(rows, experts, sizeof *rows, falling);
    for (uint32_t e = 0; e < experts && rows[e]; e++) {
        double share = (double)rows[e] / (double)sum;
        out->entropy -= share * log2(share);
        out->touched++;
        if (10 * so_far < 9 * sum) out->for_most++;
        so_far += rows[e];
    }
}

/* Entries of both, which rise. */
static size_t common(const fti_trace_entry *a, const fti_trace_entry *a_end,
                     const fti_trace_entry *b, const fti_trace_entry *b_end) {
    size_t count = 0;
    while (a < a_end && b < b_end) {
        count += a->expert == b->expert;
        const fti_trace_entry *first = a;
        a += first->expert <= b->expert;
        b += b->expert <= first->expert;
    }
    return count;
}

static void repetition(const fti_trace *t, size_t layer, fti_locality *out) {
    double looked = 0, again = 0, even = 0;
    for (size_t s = 1; s < t->step_count; s++) {
        if (t->steps[s].prompt_rows || t->steps[s - 1].prompt_rows) continue;
        const size_t *now = &t->starts[s * t->layer_count + layer];
        const size_t *old = &t->starts[(s - 1) * t->layer_count + layer];
        const fti_trace_entry *e = t->entries;
        looked += (double)(now[1] - now[0]);
        again += (double)common(e + now[0], e + now[1], e + old[0], e + old[1]);
        even += (double)(now[1] - now[0]) * (double)(old[1] - old[0]) / t->layers[layer].experts;
    }
    if (looked <= 0) return;
    out->again = again / looked;
    out->again_even = even / looked;
}

void fti_locality_of(const fti_trace *t, size_t layer, fti_locality *out) {
    uint32_t experts = t->layers[layer].experts;
    uint64_t *rows = fti_cli_alloc(experts, sizeof *rows);
    *out = (fti_locality){0};
    for (size_t s = 0; s < t->step_count; s++) {
        const size_t *start = &t->starts[s * t->layer_count + layer];
        for (size_t i = start[0]; i < start[1]; i++)
            rows[t->entries[i].expert] += t->entries[i].rows;
    }
    spread(rows, experts, out);
    repetition(t, layer, out);
    free(rows);
}
