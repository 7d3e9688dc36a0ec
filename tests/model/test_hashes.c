/*
 * test_hashes.c: the bits of the demo model's logits, as tests/data/logit_hashes.json
 * has them from the reference path: plain kernels, unfused, one thread, no graphs.
 * Every variant, number of threads and chunk size, with and without graphs, must give
 * the same on every machine. `test_hashes --write FILE` makes the file.
 */
#include "support/engine_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "support/counts.h"

#define HASH_FILE    FTK_TEST_DATA "/logit_hashes.json"
#define STORY_TOKENS 200u /* more than three KV pages and blocks of attention */
#define MAX_PROMPTS  8u

static const char *const reference_path[] = {"backend.kernels",
                                             "reference",
                                             "policy.fused",
                                             "off",
                                             "backend.threads",
                                             "1",
                                             "backend.graphs",
                                             "off",
                                             NULL};

typedef struct prompt {
    char name[64];
    int32_t *ids;
    size_t count;
    uint64_t hash; /* XXH3-64 of the logits of all positions, little-endian f32 */
} prompt;

static prompt prompts[MAX_PROMPTS];
static size_t prompt_count;

static uint64_t hash_of(ftk_engine *engine, const prompt *p, uint32_t chunk) {
    float *logits = fixture_logits(engine, p->ids, p->count, chunk);
    uint64_t hash = XXH3_64bits(logits, p->count * ftk_engine_vocabulary(engine) * sizeof *logits);
    free(logits);
    return hash;
}

/* ---- the file ---- */

static int read_hashes(void **state) {
    (void)state;
    json_error_t error;
    json_t *root = json_load_file(HASH_FILE, 0, &error);
    if (!root) fail_msg("%s:%d: %s", HASH_FILE, error.line, error.text);
    json_t *version = json_object_get(root, "numerics"), *list = json_object_get(root, "prompts");
    if (json_integer_value(version) != FTK_NUMERICS_VERSION || !json_is_integer(version))
        fail_msg("%s is not of numerics %u; run scripts/update_logit_hashes.sh", HASH_FILE,
                 FTK_NUMERICS_VERSION);
    size_t i;
    json_t *row;
    json_array_foreach(list, i, row) {
        assert_true(i < MAX_PROMPTS);
        prompt *p = &prompts[prompt_count++];
        snprintf(p->name, sizeof p->name, "%s", json_string_value(json_object_get(row, "name")));
        p->ids = golden_ids(json_object_get(row, "ids"), &p->count);
        p->hash = strtoull(json_string_value(json_object_get(row, "xxh3")), NULL, 16);
    }
    assert_true(prompt_count >= 4);
    json_decref(root);
    return 0;
}

static int drop_hashes(void **state) {
    (void)state;
    for (size_t i = 0; i < prompt_count; i++) free(prompts[i].ids);
    return 0;
}

static json_t *ids_json(const prompt *p) {
    json_t *list = json_array();
    for (size_t i = 0; i < p->count; i++) json_array_append_new(list, json_integer(p->ids[i]));
    return list;
}

static json_t *row_json(ftk_engine *engine, const prompt *p) {
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)hash_of(engine, p, 0));
    return json_pack("{s:s, s:s, s:o}", "name", p->name, "xxh3", hash, "ids", ids_json(p));
}

/* The short prompts of golden.json, and the beginning of stories.txt. */
static json_t *rows_json(ftk_engine *engine) {
    golden g = golden_load();
    json_t *rows = json_array(), *row;
    size_t i, size, count;
    json_array_foreach(json_object_get(g.set, "prompts"), i, row) {
        prompt p;
        snprintf(p.name, sizeof p.name, "golden.json prompt %zu", i);
        p.ids = golden_ids(json_object_get(row, "ids"), &p.count);
        if (p.count <= 64) json_array_append_new(rows, row_json(engine, &p));
        free(p.ids);
    }
    char *text = fixture_read(FTK_TEST_DATA "/stories.txt", &size);
    prompt p = {.ids = fixture_tokenize(engine, text, size, &count), .count = STORY_TOKENS};
    snprintf(p.name, sizeof p.name, "stories.txt, first %u tokens", STORY_TOKENS);
    json_array_append_new(rows, row_json(engine, &p));
    free(p.ids);
    free(text);
    golden_free(&g);
    return rows;
}

/* One line for each prompt, so that a change of the file shows which ones changed. */
static int write_rows(FILE *f, uint32_t vocabulary, const json_t *rows) {
    size_t i;
    json_t *row;
    int failed = fprintf(f,
                         "{\"model\": \"tiny-story-qwen36-ud-q4_k_m.gguf\",\n"
                         " \"path\": \"kernels reference, unfused, one thread, no graphs\",\n"
                         " \"numerics\": %u,\n \"vocabulary\": %u,\n \"prompts\": [",
                         FTK_NUMERICS_VERSION, vocabulary) < 0;
    json_array_foreach(rows, i, row) {
        failed |= fputs(i ? ",\n  " : "\n  ", f) < 0;
        failed |= json_dumpf(row, f, JSON_COMPACT) != 0;
    }
    return failed | (fputs("\n ]}\n", f) < 0);
}

static int write_hashes(const char *path) {
    FILE *f = fopen(path, "w");
    ftk_engine *engine = fixture_open(DEMO_MODEL, reference_path);
    json_t *rows = rows_json(engine);
    int failed = !f || write_rows(f, ftk_engine_vocabulary(engine), rows);
    if (f) failed |= fclose(f) != 0;
    if (failed) (void)fprintf(stderr, "test_hashes: cannot write %s\n", path);
    json_decref(rows);
    ftk_engine_close(engine);
    return failed;
}

/* ---- comparisons ---- */

typedef struct path {
    const char *kernels; /* as backend.kernels has it */
    const char *threads;
    bool graphs;
} path;

static bool is_reference(const path *at) {
    return strcmp(at->kernels, "reference") == 0;
}

static void check_prompt(ftk_engine *engine, const path *at, const prompt *p, uint32_t chunk) {
    fti_stream_counts before = counts_now(engine);
    uint64_t hash = hash_of(engine, p, chunk);
    counts_expect_steps(engine, &before, p->count, chunk, 1, at->graphs);
    counts_expect_kernels(engine, &before, is_reference(at));
    if (hash != p->hash)
        fail_msg("%s: kernels %s, %s threads, graphs %s, chunks of %u: %016llx, wanted %016llx",
                 p->name, at->kernels, at->threads, at->graphs ? "on" : "off", chunk,
                 (unsigned long long)hash, (unsigned long long)p->hash);
}

static ftk_engine *open_path(const path *at) {
    const char *const settings[] = {
        "backend.kernels",         at->kernels, "backend.threads", at->threads, "backend.graphs",
        at->graphs ? "on" : "off", NULL};
    ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
    counts_expect_threads(engine, (uint32_t)atoi(at->threads));
    if (!is_reference(at) && !counts_vector_machine(engine)) {
        ftk_engine_close(engine);
        print_message("skip: this processor has no vector kernels to run\n");
        skip();
    }
    return engine;
}

static void check_path(const path *at, const uint32_t *chunks, size_t chunk_count, size_t longest) {
    ftk_engine *engine = open_path(at);
    for (size_t c = 0; c < chunk_count; c++)
        for (size_t i = 0; i < prompt_count; i++)
            if (prompts[i].count <= longest) check_prompt(engine, at, &prompts[i], chunks[c]);
    ftk_engine_close(engine);
}

static void check_paths(const char *kernels, const uint32_t *chunks, size_t chunk_count,
                        size_t longest) {
    static const char *const threads[] = {"1", "2", "4"};
    size_t thread_counts = FIXTURE_SLOW_BUILD ? 2 : 3;
    for (size_t t = 0; t < thread_counts; t++) {
        check_path(&(path){kernels, threads[t], true}, chunks, chunk_count, longest);
        check_path(&(path){kernels, threads[t], false}, chunks, chunk_count, longest);
    }
}

#define SHORT 64 /* the prompts of golden.json */

static void reference_path_gives_the_hashes(void **state) {
    (void)state;
    ftk_engine *engine = fixture_open(DEMO_MODEL, reference_path);
    const path at = {"reference", "1", false};
    for (size_t i = 0; i < prompt_count; i++)
        if (!FIXTURE_SLOW_BUILD || prompts[i].count <= SHORT)
            check_prompt(engine, &at, &prompts[i], 512);
    ftk_engine_close(engine);
}

static void reference_kernels_everywhere(void **state) {
    (void)state;
    const uint32_t chunks[] = {1, 5};
    check_paths("reference", chunks, FIXTURE_SLOW_BUILD ? 1 : 2, FIXTURE_SLOW_BUILD ? 10 : SHORT);
}

static void vector_kernels_everywhere(void **state) {
    (void)state;
    const uint32_t chunks[] = {1, 7, 64, 200};
    check_paths("auto", chunks, FIXTURE_SLOW_BUILD ? 2 : FTI_COUNT(chunks),
                FIXTURE_SLOW_BUILD ? SHORT : STORY_TOKENS);
}

#if defined(__x86_64__)
/* What a processor without AVX-512 runs, also where the widest kernels have it. */
static void avx2_kernels_everywhere(void **state) {
    (void)state;
    const uint32_t chunks[] = {1, 7, 200};
    check_paths("0x1", chunks, FIXTURE_SLOW_BUILD ? 2 : FTI_COUNT(chunks), SHORT);
}
#endif

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_path_gives_the_hashes),
        cmocka_unit_test(reference_kernels_everywhere),
        cmocka_unit_test(vector_kernels_everywhere),
#if defined(__x86_64__)
        cmocka_unit_test(avx2_kernels_everywhere),
#endif
    };
    if (argc == 3 && strcmp(argv[1], "--write") == 0) return write_hashes(argv[2]);
    return cmocka_run_group_tests_name("test_hashes", tests, read_hashes, drop_hashes);
}
