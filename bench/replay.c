/* replay.c: a trace under several policies and numbers of slots, as a table and as JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "locality.h"
#include "policy.h"
#include "cli/output.h"
#include "cli/text.h"

#define MOST_SIZES 32u

typedef struct size_wanted {
    double value;
    bool percent;
} size_wanted;

typedef struct replay {
    fti_trace trace;
    fti_pool *pools;
    size_t pool_count;
    size_wanted sizes[MOST_SIZES];
    size_t size_count;
    bool policies[FTI_POLICY_COUNT];
    bool per_layer, json;
    json_t *rows;
} replay;

/* ---- what is asked for ---- */

static bool parse_size(char *word, size_wanted *out) {
    size_t length = strlen(word);
    out->percent = length > 1 && word[length - 1] == '%';
    if (out->percent) word[length - 1] = '\0';
    uint64_t whole;
    if (out->percent)
        return fti_cli_parse_number(word, &out->value) && out->value > 0 && out->value <= 100;
    if (!fti_cli_parse_u64(word, &whole) || whole == 0 || whole > UINT32_MAX) return false;
    out->value = (double)whole;
    return true;
}

static int parse_sizes(replay *r, const char *text) {
    char *copy = fti_cli_format("%s", text), *rest = copy, *word;
    int code = 0;
    while (code == 0 && (word = strsep(&rest, ",")) != NULL)
        if (r->size_count == MOST_SIZES || !parse_size(word, &r->sizes[r->size_count++]))
            code = fti_cli_usage("--slots: wanted are up to %u numbers of slots, or parts such as "
                                 "25%%, with commas between them",
                                 MOST_SIZES);
    free(copy);
    return code;
}

static int parse_policies(replay *r, const char *text) {
    char *copy = fti_cli_format("%s", text), *rest = copy, *word;
    int code = 0;
    while (code == 0 && (word = strsep(&rest, ",")) != NULL) {
        size_t p = 0;
        while (p < FTI_POLICY_COUNT && strcmp(word, fti_policy_names[p]) != 0) p++;
        if (p < FTI_POLICY_COUNT)
            r->policies[p] = true;
        else
            code = fti_cli_usage("no policy '%s': there are lru, lfu, least-stale, oracle and "
                                 "belady",
                                 word);
    }
    free(copy);
    return code;
}

/* A part is no less than what one row needs; a number is refused there. */
static int slots_of(const fti_pool *pool, const size_wanted *size, uint32_t *slots) {
    double wanted = size->percent ? floor(pool->most * size->value / 100.0) : size->value;
    if (size->percent && wanted < pool->least) wanted = pool->least;
    if (wanted < pool->least)
        return fti_cli_usage("--slots %.0f: a row uses %" PRIu32 " experts of a layer, and with "
                             "fewer slots it cannot run",
                             wanted, pool->least);
    *slots = wanted < pool->most ? (uint32_t)wanted : pool->most;
    return 0;
}

/* ---- results ---- */

static void add(fti_policy_counts *sum, const fti_policy_counts *c) {
    sum->lookups += c->lookups;
    sum->hits += c->hits;
    sum->evicted += c->evicted;
    sum->bytes += c->bytes;
}

static double rate(const fti_policy_counts *c) {
    return c->lookups ? (double)c->hits / (double)c->lookups : 0.0;
}

static json_t *counts_json(const fti_policy_counts *c) {
    return json_pack("{s:I, s:I, s:I, s:f, s:I, s:I}", "lookups", (json_int_t)c->lookups, "hits",
                     (json_int_t)c->hits, "misses", (json_int_t)(c->lookups - c->hits), "hit_rate",
                     rate(c), "evictions", (json_int_t)c->evicted, "bytes", (json_int_t)c->bytes);
}

static json_t *both_json(const fti_policy_counts c[2]) {
    fti_policy_counts all = c[0];
    add(&all, &c[1]);
    return json_pack("{s:o, s:o, s:o}", "all", counts_json(&all), "decode", counts_json(&c[0]),
                     "prefill", counts_json(&c[1]));
}

static void show(const char *name, const fti_policy_counts c[2]) {
    fti_policy_counts all = c[0];
    add(&all, &c[1]);
    (void)printf("  %-12s %8.2f %% %8.2f %% %8.2f %% %12" PRIu64 " %12" PRIu64 " %12.3f\n", name,
                 100.0 * rate(&all), 100.0 * rate(&c[0]), 100.0 * rate(&c[1]),
                 all.lookups - all.hits, all.evicted, (double)all.bytes * 1e-9);
}

static void show_layers(const replay *r, fti_policy_counts (*counts)[2]) {
    for (size_t l = 0; l < r->trace.layer_count; l++) {
        char name[32];
        (void)snprintf(name, sizeof name, "  layer %" PRIu32, r->trace.layers[l].layer);
        show(name, counts[l]);
    }
}

static json_t *layers_json(const replay *r, fti_policy_counts (*counts)[2]) {
    json_t *layers = json_array();
    for (size_t l = 0; l < r->trace.layer_count; l++) {
        json_t *o = both_json(counts[l]);
        (void)json_object_set_new(o, "layer", json_integer(r->trace.layers[l].layer));
        (void)json_array_append_new(layers, o);
    }
    return layers;
}

static void run_policy(replay *r, size_t policy, const uint32_t *slots) {
    size_t layers = r->trace.layer_count;
    fti_policy_counts(*counts)[2] = fti_cli_alloc(layers, sizeof *counts);
    fti_policy_counts sum[2] = {{0}, {0}};
    json_t *of_pools = json_array();
    for (size_t p = 0; p < r->pool_count; p++) {
        fti_policy_run(&r->trace, &r->pools[p], (fti_policy)policy, slots[p], counts);
        (void)json_array_append_new(of_pools, json_integer(slots[p]));
    }
    for (size_t l = 0; l < layers; l++)
        for (size_t k = 0; k < 2; k++) add(&sum[k], &counts[l][k]);
    json_t *row = both_json(sum);
    (void)json_object_set_new(row, "policy", json_string(fti_policy_names[policy]));
    (void)json_object_set_new(row, "slots", of_pools);
    if (r->per_layer) (void)json_object_set_new(row, "layers", layers_json(r, counts));
    (void)json_array_append_new(r->rows, row);
    if (!r->json) show(fti_policy_names[policy], sum);
    if (!r->json && r->per_layer) show_layers(r, counts);
    free(counts);
}

static int run_size(replay *r, const size_wanted *size) {
    uint32_t *slots = fti_cli_alloc(r->pool_count, sizeof *slots);
    int code = 0;
    for (size_t p = 0; p < r->pool_count && code == 0; p++)
        code = slots_of(&r->pools[p], size, &slots[p]);
    if (code == 0 && !r->json) {
        (void)printf("\nslots");
        for (size_t p = 0; p < r->pool_count; p++)
            (void)printf(" %" PRIu32 " of %" PRIu32, slots[p], r->pools[p].most);
        (void)printf("\n  %-12s %10s %10s %10s %12s %12s %12s\n", "policy", "hits", "decode",
                     "prefill", "misses", "evictions", "GB copied");
    }
    for (size_t p = 0; p < FTI_POLICY_COUNT && code == 0; p++)
        if (r->policies[p]) run_policy(r, p, slots);
    free(slots);
    return code;
}

/* ---- the trace itself ---- */

static json_t *report_locality(const replay *r) {
    json_t *layers = json_array();
    if (!r->json)
        (void)printf("\nlayer  experts   used  90 %% of rows  entropy (most)   again  (even)\n");
    for (size_t l = 0; l < r->trace.layer_count; l++) {
        const fti_trace_layer *layer = &r->trace.layers[l];
        fti_locality o;
        fti_locality_of(&r->trace, l, &o);
        if (!r->json)
            (void)printf("%5" PRIu32 " %8" PRIu32 " %6" PRIu32 " %13" PRIu32
                         " %7.2f (%5.2f) %6.1f %% (%.1f %%)\n",
                         layer->layer, layer->experts, o.touched, o.for_most, o.entropy,
                         log2(layer->experts), 100.0 * o.again, 100.0 * o.again_even);
        (void)json_array_append_new(
            layers,
            json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "layer", (json_int_t)layer->layer,
                      "experts", (json_int_t)layer->experts, "touched", (json_int_t)o.touched,
                      "for_90_percent", (json_int_t)o.for_most, "entropy_bits", o.entropy, "again",
                      o.again, "again_even", o.again_even));
    }
    return layers;
}

static int run_all(replay *r, const char *path) {
    r->pools = fti_pools_of(&r->trace, &r->pool_count);
    r->rows = json_array();
    if (!r->json)
        fti_cli_say(stdout, "%s: %zu steps, %zu layers, %zu pools, tokens %016" PRIx64 "\n", path,
                    r->trace.step_count, r->trace.layer_count, r->pool_count, r->trace.hash);
    json_t *locality = report_locality(r);
    int code = 0;
    for (size_t i = 0; i < r->size_count && code == 0; i++) code = run_size(r, &r->sizes[i]);
    if (r->json && code == 0)
        fti_cli_print_json(json_pack("{s:o, s:o, s:I, s:O, s:O}", "model",
                                     fti_cli_json_text(r->trace.model, strlen(r->trace.model)),
                                     "hash", json_sprintf("%016" PRIx64, r->trace.hash), "steps",
                                     (json_int_t)r->trace.step_count, "routing", locality,
                                     "residency", r->rows));
    json_decref(locality);
    json_decref(r->rows);
    fti_pools_free(r->pools, r->pool_count);
    return code;
}

int fti_bench_replay(const fti_cli_call *call) {
    const fti_bench_values *v = fti_bench_values_of(call);
    replay r = {.per_layer = v->per_layer, .json = call->common.json};
    int code = parse_sizes(&r, v->slots ? v->slots : "10%,25%,50%,75%,100%");
    if (code == 0)
        code = parse_policies(&r, v->policy ? v->policy : "lru,lfu,least-stale,oracle,belady");
    if (code == 0) code = fti_trace_read(v->trace, &r.trace);
    if (code) return code;
    code = run_all(&r, v->trace);
    fti_trace_free(&r.trace);
    return code;
}
