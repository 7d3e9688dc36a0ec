/*
 * engine_fixture.h: opens engines on the demo model for tests, with settings
 * given as key paths and values, and reads the golden data that belongs to it.
 */
#ifndef TESTS_ENGINE_FIXTURE_H
#define TESTS_ENGINE_FIXTURE_H

#include <jansson.h>

#include "freetoken/freetoken.h"

#define DEMO_MODEL FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"

/* Sanitizers and emulation make whole models ten times slower and more: tests then take the
 * short prompts, fewer chunk sizes and a part of the text, and skip what is left visibly. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(FTK_EMULATED)
#define FIXTURE_SLOW_BUILD 1
#else
#define FIXTURE_SLOW_BUILD 0
#endif

/* `settings`: NULL-terminated list of key, value, key, value, ... Fails the test
 * with the error's message if the engine does not open. */
ftk_engine *fixture_open(const char *model, const char *const *settings);

/* The same, returning the status instead. */
ftk_status fixture_try_open(const char *model, const char *const *settings, uint32_t stop_after,
                            ftk_engine **out, ftk_error *err);

/* Ids of `text`, special tokens parsed; free() the result. */
int32_t *fixture_tokenize(const ftk_engine *engine, const char *text, size_t size, size_t *count);

/* Logits of every position, fed in chunks of `chunk` rows: [count][vocabulary]; free(). */
float *fixture_logits(ftk_engine *engine, const int32_t *ids, size_t count, uint32_t chunk);

/* golden.json's reference set of the demo model, and golden.bin as floats. */
typedef struct golden {
    json_t *root;
    json_t *set;
    float *values;
    size_t value_count;
} golden;
golden golden_load(void);
void golden_free(golden *g);
/* An integer list as int32; free(). */
int32_t *golden_ids(const json_t *list, size_t *count);

/* Whole file; free(). */
char *fixture_read(const char *path, size_t *size);

/* Mean negative log-likelihood over consecutive windows, each from an empty state,
 * every token of a window but its first being scored. */
double fixture_nll(ftk_engine *engine, const int32_t *ids, size_t count, size_t window,
                   size_t *scored);

#endif
