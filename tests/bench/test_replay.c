/* test_replay.c: traces of routing and what policies make of them: each policy against a
 * plain search on small random traces, the order between them on larger ones, and files that
 * do not hold together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "cli/output.h"
#include "cli/text.h"
#include "locality.h"
#include "policy.h"

#define MODEL FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"

const char fti_cli_program_name[] = "test_residency";

static uint64_t draw_state;

static uint32_t draw(uint32_t below) {
    draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(draw_state >> 33) % below;
}

/* Layers of two geometries if `mixed`; in each step each layer uses 1 to all of its experts, in a
 * step of prompts most of them. */
static void random_trace(fti_trace *t, size_t layers, uint32_t experts, size_t steps, bool mixed) {
    fti_trace_layer shape[8];
    for (size_t l = 0; l < layers; l++)
        shape[l] = (fti_trace_layer){.layer = (uint32_t)(2 * l),
                                     .experts = experts,
                                     .used = 1,
                                     .part_count = 2,
                                     .part_bytes = {100, mixed && l % 2 ? 30 : 20}};
    fti_trace_init(t, "random", shape, layers);
    for (size_t s = 0; s < steps; s++) {
        uint32_t prompt = draw(5) == 0;
        fti_trace_add_step(t, experts, prompt);
        for (size_t l = 0; l < layers; l++)
            for (uint32_t e = 0; e < experts; e++)
                if (draw(100) < (prompt ? 70 : 60 / (e + 1))) fti_trace_add_entry(t, l, e, 1);
    }
}

static fti_policy_counts total(const fti_trace *t, const fti_pool *pool, fti_policy policy,
                               uint32_t slots) {
    fti_policy_counts counts[8][2] = {{{0}}}, sum = {0};
    fti_policy_run(t, pool, policy, slots, counts);
    for (size_t l = 0; l < 8; l++)
        for (size_t k = 0; k < 2; k++) {
            sum.lookups += counts[l][k].lookups;
            sum.hits += counts[l][k].hits;
            sum.evicted += counts[l][k].evicted;
            sum.bytes += counts[l][k].bytes;
        }
    assert_int_equal(sum.bytes, (sum.lookups - sum.hits) * pool->expert_bytes);
    return sum;
}

/* ---- plain searches: sets are masks of layer * experts + expert ---- */

static uint32_t needed(const fti_trace *t, const fti_pool *pool, size_t step, size_t l) {
    const size_t *start = &t->starts[step * t->layer_count + pool->layers[l]];
    uint32_t mask = 0;
    for (size_t i = start[0]; i < start[1]; i++)
        mask |= 1u << (l * pool->experts + t->entries[i].expert);
    return mask;
}

static int size_of(uint32_t mask) {
    return __builtin_popcount(mask);
}

typedef struct plain {
    const fti_trace *t;
    const fti_pool *pool;
    fti_policy policy;
    uint32_t held, slots;
    uint64_t used[32], turn[32], weight[32], turns[8], clock;
} plain;

/* True if `a` makes way before `b`. */
static bool goes_first(const plain *p, uint32_t a, uint32_t b, size_t now) {
    uint32_t experts = p->pool->experts;
    if (p->policy == FTI_POLICY_LFU && p->weight[a] != p->weight[b])
        return p->weight[a] < p->weight[b];
    if (p->policy == FTI_POLICY_LEAST_STALE) {
        size_t layers = p->pool->layer_count, la = a / experts, lb = b / experts;
        uint64_t stale_a = p->turns[la] - p->turn[a], stale_b = p->turns[lb] - p->turn[b];
        if (stale_a != stale_b) return stale_a > stale_b;
        size_t in_a = la > now ? la - now : la + layers - now;
        size_t in_b = lb > now ? lb - now : lb + layers - now;
        return in_a != in_b ? in_a > in_b : a < b;
    }
    /* LFU knows only the layer and step of the last use, LRU the order inside as well. */
    uint64_t scale = p->policy == FTI_POLICY_LFU ? 64 : 1;
    if (p->used[a] / scale != p->used[b] / scale) return p->used[a] < p->used[b];
    return a < b;
}

static uint32_t plain_victim(const plain *p, uint32_t group, size_t now) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < p->pool->most; i++)
        if ((p->held & ~group) >> i & 1)
            if (best == UINT32_MAX || goes_first(p, i, best, now)) best = i;
    return best;
}

static uint64_t plain_group(plain *p, uint32_t group, size_t layer) {
    uint32_t hits = group & p->held, order[32], count = 0;
    for (uint32_t i = 0; i < p->pool->most; i++)
        if (hits >> i & 1) order[count++] = i;
    for (uint32_t i = 0; i < p->pool->most; i++)
        if ((group & ~hits) >> i & 1) order[count++] = i;
    p->turns[layer]++;
    p->clock++;
    for (uint32_t i = 0; i < count; i++) {
        p->used[order[i]] = 64 * p->clock + i;
        p->turn[order[i]] = p->turns[layer];
        p->weight[order[i]] += 256;
    }
    for (uint32_t i = (uint32_t)size_of(hits), ring = 0; i < count; i++) {
        uint32_t victim = UINT32_MAX;
        if (size_of(p->held) == (int)p->slots) {
            victim = plain_victim(p, group, layer);
            if (victim == UINT32_MAX) victim = order[ring++];
            p->held &= ~(1u << victim);
        }
        p->held |= 1u << order[i];
    }
    return (uint64_t)size_of(hits);
}

static uint64_t plain_hits(const fti_trace *t, const fti_pool *pool, fti_policy policy,
                           uint32_t slots) {
    plain p = {.t = t, .pool = pool, .policy = policy, .slots = slots};
    uint64_t hits = 0;
    for (size_t s = 0; s < t->step_count; s++) {
        if (s && s % FTI_POLICY_HALVING == 0)
            for (uint32_t i = 0; i < 32; i++) p.weight[i] /= 2;
        for (size_t l = 0; l < pool->layer_count; l++)
            hits += plain_group(&p, needed(t, pool, s, l), l);
    }
    return hits;
}

/* The best of all sets that could be kept for good. */
static uint64_t best_fixed(const fti_trace *t, const fti_pool *pool, uint32_t slots) {
    uint64_t best = 0;
    for (uint32_t set = 0; set < 1u << pool->most; set++) {
        if (size_of(set) > (int)slots) continue;
        uint64_t hits = 0;
        uint32_t seen = 0;
        for (size_t s = 0; s < t->step_count; s++)
            for (size_t l = 0; l < pool->layer_count; l++) {
                uint32_t group = needed(t, pool, s, l) & set;
                hits += (uint64_t)size_of(group & seen);
                seen |= group;
            }
        if (hits > best) best = hits;
    }
    return best;
}

/* The most hits of all ways to choose, after each layer, what stays of what is at hand. */
static uint64_t best_of_all(const fti_trace *t, const fti_pool *pool, uint32_t slots) {
    uint32_t sets = 1u << pool->most;
    int64_t *now = fti_cli_alloc(sets, sizeof *now), *then = fti_cli_alloc(sets, sizeof *then);
    for (uint32_t c = 1; c < sets; c++) now[c] = -1;
    for (size_t s = 0; s < t->step_count; s++)
        for (size_t l = 0; l < pool->layer_count; l++) {
            uint32_t group = needed(t, pool, s, l);
            for (uint32_t c = 0; c < sets; c++) then[c] = -1;
            for (uint32_t c = 0; c < sets; c++) {
                if (now[c] < 0) continue;
                int64_t hits = now[c] + size_of(c & group);
                uint32_t all = c | group;
                for (uint32_t kept = all;; kept = (kept - 1) & all) {
                    if (size_of(kept) <= (int)slots && hits > then[kept]) then[kept] = hits;
                    if (kept == 0) break;
                }
            }
            int64_t *old = now;
            now = then;
            then = old;
        }
    int64_t best = 0;
    for (uint32_t c = 0; c < sets; c++)
        if (now[c] > best) best = now[c];
    free(now);
    free(then);
    return (uint64_t)best;
}

static void expect(uint64_t got, uint64_t wanted, fti_policy policy, uint32_t slots, int round) {
    if (got != wanted)
        fail_msg("round %d, %s, %u slots: %llu hits, wanted %llu", round, fti_policy_names[policy],
                 slots, (unsigned long long)got, (unsigned long long)wanted);
}

static void forced_as_plain(void **state) {
    (void)state;
    for (int round = 0; round < 150; round++) {
        fti_trace t;
        size_t count;
        draw_state = (uint64_t)round;
        random_trace(&t, 1 + draw(4), 2 + draw(5), 70 + draw(80), round % 2);
        fti_pool *pools = fti_pools_of(&t, &count);
        for (size_t p = 0; p < count; p++)
            for (uint32_t slots = 1; slots <= pools[p].most; slots++)
                for (fti_policy policy = FTI_POLICY_LRU; policy <= FTI_POLICY_LEAST_STALE; policy++)
                    expect(total(&t, &pools[p], policy, slots).hits,
                           plain_hits(&t, &pools[p], policy, slots), policy, slots, round);
        fti_pools_free(pools, count);
        fti_trace_free(&t);
    }
}

static void bounds_as_searched(void **state) {
    (void)state;
    for (int round = 0; round < 40; round++) {
        fti_trace t;
        size_t count;
        draw_state = (uint64_t)round + 1000;
        random_trace(&t, 1 + draw(2), 2 + draw(2), 5 + draw(20), false);
        fti_pool *pools = fti_pools_of(&t, &count);
        for (uint32_t slots = 1; slots <= pools->most; slots++) {
            expect(total(&t, pools, FTI_POLICY_ORACLE, slots).hits, best_fixed(&t, pools, slots),
                   FTI_POLICY_ORACLE, slots, round);
            expect(total(&t, pools, FTI_POLICY_BELADY, slots).hits, best_of_all(&t, pools, slots),
                   FTI_POLICY_BELADY, slots, round);
        }
        fti_pools_free(pools, count);
        fti_trace_free(&t);
    }
}

/* Nothing beats the bound, and with slots for all only first uses miss. */
static void ordered(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        fti_trace t;
        size_t count;
        draw_state = (uint64_t)round + 2000;
        random_trace(&t, 6, 40, 100, true);
        fti_pool *pools = fti_pools_of(&t, &count);
        assert_int_equal(count, 2);
        for (size_t p = 0; p < count; p++) {
            uint64_t first = 0;
            for (size_t l = 0; l < pools[p].layer_count; l++) {
                fti_locality o;
                fti_locality_of(&t, pools[p].layers[l], &o);
                first += o.touched;
            }
            for (uint32_t slots = 10; slots <= pools[p].most; slots += 10) {
                uint64_t bound = total(&t, &pools[p], FTI_POLICY_BELADY, slots).hits;
                for (fti_policy policy = 0; policy < FTI_POLICY_COUNT; policy++) {
                    fti_policy_counts c = total(&t, &pools[p], policy, slots);
                    assert_true(c.hits <= bound);
                    if (slots == pools[p].most) assert_int_equal(c.lookups - c.hits, first);
                    if (slots == pools[p].most) assert_int_equal(c.evicted, 0);
                }
            }
        }
        fti_pools_free(pools, count);
        fti_trace_free(&t);
    }
}

/* ---- files ---- */

#define FILE_NAME "test_residency.routing"

static void put_file(const char *text, size_t size) {
    FILE *f = fopen(FILE_NAME, "wbe");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static bool readable(const char *text, size_t size) {
    fti_trace t;
    put_file(text, size);
    int code = fti_trace_read(FILE_NAME, &t);
    if (code == 0) fti_trace_free(&t);
    return code == 0;
}

static void round_trip(void **state) {
    (void)state;
    fti_trace t, back;
    draw_state = 7;
    random_trace(&t, 4, 9, 30, true);
    t.hash = 0x0123456789abcdefu;
    assert_int_equal(fti_trace_write(&t, FILE_NAME), 0);
    assert_int_equal(fti_trace_read(FILE_NAME, &back), 0);
    assert_string_equal(back.model, "random");
    assert_true(back.hash == t.hash);
    assert_int_equal(back.step_count, t.step_count);
    assert_int_equal(back.entry_count, t.entry_count);
    assert_memory_equal(back.layers, t.layers, 4 * sizeof *t.layers);
    assert_memory_equal(back.steps, t.steps, t.step_count * sizeof *t.steps);
    assert_memory_equal(back.starts, t.starts, (t.step_count * 4 + 1) * sizeof *t.starts);
    assert_memory_equal(back.entries, t.entries, t.entry_count * sizeof *t.entries);
    fti_trace_free(&back);
    fti_cli_text text = {0};
    assert_true(fti_cli_read_file(FILE_NAME, &text));
    for (size_t size = 0; size < text.size; size += 1 + size / 40)
        assert_false(readable(text.data, size));
    assert_false(readable(text.data, text.size - 1));
    assert_true(readable(text.data, text.size));
    free(text.data);
    fti_trace_free(&t);
    (void)unlink(FILE_NAME);
}

/* A file that holds, with one place changed. */
static const char header[] =
    "{\"format\":\"freetoken-routing\",\"version\":1,\"model\":\"m\",\"hash\":\"00000000000000ff\","
    "\"streams\":1,\"steps\":2,\"layers\":[{\"layer\":0,\"experts\":4,\"used\":2,\"part_bytes\":[8]"
    "},"
    "{\"layer\":3,\"experts\":4,\"used\":2,\"part_bytes\":[8,9]}]}\n"
    "[2,2,[[0,2,3,2],[1,1,2,2,3,1]]]\n[1,0,[[0,1,1,1],[]]]\n";

static void refused(void **state) {
    (void)state;
    static const char *const changes[][2] = {
        {"freetoken-routing", "freetoken-other"},
        {"\"version\":1", "\"version\":2"},
        {"\"version\":1", "\"version\":true"},
        {"00000000000000ff", "0000000000000fg"},
        {"\"streams\":1", "\"streams\":0"},
        {"\"steps\":2", "\"steps\":1"},
        {"\"steps\":2", "\"steps\":3"},
        {"\"steps\":2", "\"steps\":-2"},
        {"\"layer\":3", "\"layer\":0"},
        {"\"experts\":4", "\"experts\":3"},
        {"\"experts\":4", "\"experts\":65537"},
        {"\"experts\":4", "\"experts\":1e1"},
        {"\"used\":2", "\"used\":5"},
        {"\"used\":2", "\"used\":0"},
        {"[8]", "[]"},
        {"[8]", "[0]"},
        {"[8]", "[1,2,3,4,5,6,7,8,9]"},
        {"[2,2,[", "[0,0,["},
        {"[2,2,[", "[2,3,["},
        {"[2,2,[", "[2,-1,["},
        {"[0,2,3,2]", "[0,2,4,2]"},
        {"[0,2,3,2]", "[3,2,0,2]"},
        {"[0,2,3,2]", "[0,2,0,2]"},
        {"[0,2,3,2]", "[0,2,3]"},
        {"[0,2,3,2]", "[0,2,3,0]"},
        {"[0,2,3,2]", "[0,3,3,1]"},
        {"[0,2,3,2]", "[0,2,3,1]"},
        {"[0,2,3,2]", "[0,2]"}, /* one row, and an expert with two */
        {"[0,2,3,2]", "[0,2,1,2,3,2]"},
        {"[0,2,3,2]", "[-1,2,3,2]"},
        {"[1,1,2,2,3,1]", "[1,1,2,2,3,1],[]"},
        {"[1,0,[[0,1,1,1],[]]]\n", "[1,0,[[0,1,1,1]]]\n"},
        {"[1,0,[[0,1,1,1],[]]]\n", "{}\n"},
        {"[1,0,[[0,1,1,1],[]]]\n", "[1,0,[[0,1,1,1],[]]]\n\n"},
    };
    assert_true(readable(header, sizeof header - 1));
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        const char *at = strstr(header, changes[i][0]);
        assert_non_null(at);
        char *text = fti_cli_format("%.*s%s%s", (int)(at - header), header, changes[i][1],
                                    at + strlen(changes[i][0]));
        if (readable(text, strlen(text))) fail_msg("taken: %s", text);
        free(text);
    }
    (void)unlink(FILE_NAME);
}

/* ---- the command ---- */

static json_t *bench(const char *line) {
    char *command = fti_cli_format("'%s' residency %s", FTK_BENCH_BIN, line);
    FILE *out = popen(command, "re");
    assert_non_null(out);
    json_t *json = json_loadf(out, JSON_DISABLE_EOF_CHECK, NULL);
    assert_int_equal(pclose(out), 0);
    free(command);
    return json;
}

/* The demo model: eight layers of sixteen experts, of which a row uses four. */
static void records(void **state) {
    (void)state;
    json_decref(bench("--record " FILE_NAME " --model '" MODEL
                      "' -t 1 --prompt-tokens 24 --prose --tokens 9"));
    fti_trace t;
    assert_int_equal(fti_trace_read(FILE_NAME, &t), 0);
    assert_int_equal(t.layer_count, 8);
    uint32_t prompt = 0, decode = 0;
    for (size_t s = 0; s < t.step_count; s++) {
        prompt += t.steps[s].prompt_rows;
        decode += t.steps[s].rows - t.steps[s].prompt_rows;
        for (size_t l = 0; l < 8; l++) {
            uint32_t pairs = 0;
            for (size_t i = t.starts[s * 8 + l]; i < t.starts[s * 8 + l + 1]; i++)
                pairs += t.entries[i].rows;
            assert_int_equal(pairs, 4 * t.steps[s].rows);
        }
    }
    assert_int_equal(prompt, 24);
    assert_int_equal(decode, 8);
    fti_trace_free(&t);
    json_t *json = bench("--trace " FILE_NAME " --slots 100% --policy lru --per-layer --json");
    const json_t *row = json_array_get(json_object_get(json, "residency"), 0);
    const json_t *all = json_object_get(row, "all");
    assert_int_equal(json_array_size(json_object_get(row, "layers")), 8);
    assert_true(json_integer_value(json_object_get(all, "misses")) <= 8 * 16);
    assert_int_equal(json_integer_value(json_object_get(all, "evictions")), 0);
    json_decref(json);
    (void)unlink(FILE_NAME);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forced_as_plain), cmocka_unit_test(bounds_as_searched),
        cmocka_unit_test(ordered),         cmocka_unit_test(round_trip),
        cmocka_unit_test(refused),         cmocka_unit_test(records),
    };
    return cmocka_run_group_tests_name("test_residency", tests, NULL, NULL);
}
