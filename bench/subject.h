/*
 * subject.h: one thing that is measured: a model under a configuration, doing the work of
 * a scenario again and again; and the row that its runs add up to. A comparison has two
 * subjects and runs them in turn.
 */
#ifndef FTI_BENCH_SUBJECT_H
#define FTI_BENCH_SUBJECT_H

#include "cli/text.h"
#include "scenario.h"

/* The work, the same for both subjects of a comparison. */
typedef struct fti_bench_task {
    const fti_bench_scenario *scenario;
    const fti_bench_values *values;
    size_t streams;
    uint32_t tokens, prompt_tokens; /* of each; 0 prompt tokens: as many as the text has */
    const fti_bench_clock *clock;
    const fti_cli_text *text; /* of --file, where it has been read; NULL: each subject reads it */
} fti_bench_task;

/* Appends the text of --file, which may be a pipe that is read only once. */
int fti_bench_read_text(const char *path, fti_cli_text *text);
/* From the options of a line; a usage error if they do not fit together. */
int fti_bench_make_task(const fti_bench_values *values, const char *scenario, fti_bench_task *task);

typedef struct fti_bench_subject {
    const fti_bench_task *task;
    ftk_config *config;
    const char *model;
    ftk_engine *engine;        /* NULL between the runs of a scenario that opens it anew */
    fti_bench_prompt *prompts; /* [streams] */
    const char *prompt_source;
    uint64_t *solo; /* [streams] hash of each prompt run alone; NULL: there is one stream */
    fti_bench_sample *samples;
    size_t count, capacity;
    json_t *provenance;
    uint64_t file_bytes;
} fti_bench_subject;

/* Takes `config`, opens the model and prepares the work: prompts, and solo runs where
 * streams run together. After a failure too the caller closes the subject. Exit codes. */
int fti_bench_subject_open(fti_bench_subject *subject, const fti_bench_task *task,
                           ftk_config *config, const char *model);
/* One more run. */
int fti_bench_subject_run(fti_bench_subject *subject, bool warmup);
void fti_bench_subject_close(fti_bench_subject *subject);

/* What the runs add up to. Warm-up counts for nothing but its hash. */
void fti_bench_subject_row(const fti_bench_subject *subject, fti_bench_row *row);

/* True if a sample's values belong to the figures. */
bool fti_bench_sample_counts(const fti_bench_sample *sample);

/* The keys of --set and --set-b (NULL allowed). `single`: as below. */
int fti_bench_set_keys(ftk_config *config, bool single, const fti_cli_list *set,
                       const fti_cli_list *set_b);

/* Configuration of a line, or of the file `path` instead of --config's, with the keys of
 * --set and --set-b (NULL allowed). `single`: one request at a time, unless a key says
 * otherwise. */
int fti_bench_config(const fti_cli_common *common, const char *path, bool single,
                     const fti_cli_list *set, const fti_cli_list *set_b, ftk_config **out);

/* A configuration that allows nothing, since nothing has to be loaded: with the provider of
 * `entry`, and the settings of the line. */
struct ftk_provider;
int fti_bench_linked_config(const fti_cli_call *call, const struct ftk_provider *(*entry)(void),
                            bool single, ftk_config **out);

#endif
