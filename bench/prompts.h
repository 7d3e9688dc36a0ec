/*
 * prompts.h: what models are given to read: prose written for this program. Text that
 * repeats itself would flatter a model whose experts are cached.
 */
#ifndef FTI_BENCH_PROMPTS_H
#define FTI_BENCH_PROMPTS_H

#include "sample.h"

/* One line, as the default of `decode` has always been. */
extern const char fti_bench_line[];

/* Some two thousand words. */
extern const char *const fti_bench_paragraphs[];
extern const size_t fti_bench_paragraph_count;

/* Fills `prompts` with `count` different prompts of `tokens` tokens each: windows into
 * the tokens of `text` (`source` in messages), evenly apart, going on at the begin where
 * the text ends. Exit code; a text of fewer tokens than a prompt wants is refused. */
int fti_bench_make_prompts(const ftk_engine *engine, const char *text, size_t size,
                           const char *source, uint32_t tokens, fti_bench_prompt *prompts,
                           size_t count);
void fti_bench_free_prompts(fti_bench_prompt *prompts, size_t count);

/* The built-in prose in one piece; free with free(). */
char *fti_bench_prose(size_t *size);

#endif
