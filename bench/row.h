/*
 * row.h: a measurement as it is printed, saved and read back: what was measured, the
 * one cause that it may be attributed to, every sample, and all that a reader needs to
 * judge it. A row is valid or void; a void one says why and gives no figures.
 */
#ifndef FTI_BENCH_ROW_H
#define FTI_BENCH_ROW_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "statistics.h"

/* Of the JSON format below. */
#define FTI_BENCH_ROW_FORMAT 1

typedef enum {
    FTI_BENCH_MODEL_EXECUTION,
    FTI_BENCH_SCHEDULING,
    FTI_BENCH_REPRESENTATION, /* of the checkpoint */
    FTI_BENCH_BACKEND,
    FTI_BENCH_NOT_ATTRIBUTABLE, /* two different programs side by side */
    FTI_BENCH_CAUSES
} fti_bench_cause;

/* "model execution", "scheduling", "checkpoint representation", "backend" and "peer, not
 * attributable". */
const char *fti_bench_cause_text(fti_bench_cause cause);
bool fti_bench_cause_of(const char *text, fti_bench_cause *cause);

/* A quantity with its measured values, warm-up not among them. */
typedef struct fti_bench_figure {
    char *name; /* "decode_tok_s": as keys of JSON are written */
    char *unit; /* "tok/s" */
    bool less_is_better;
    double *values;
    size_t count;
} fti_bench_figure;

#define FTI_BENCH_FIGURES 6u

/* Measuring may take so much of a step, if the row is to support a claim. */
#define FTI_BENCH_MEASURING_SHARE 0.002

/* Owns all that it points to. JSON members are never NULL; json_null() stands for what
 * does not apply. */
typedef struct fti_bench_row {
    char *scenario;
    fti_bench_cause cause;
    char *version;     /* of the library */
    char *commit;      /* that the bench was built from */
    char *build;       /* digest of the program that measured: see build.h */
    char *time;        /* when the row was made, UTC, ISO 8601 */
    char *void_reason; /* NULL: valid */
    char hash[17];     /* of the tokens of a run, hexadecimal; "": none were computed */
    fti_bench_figure figures[FTI_BENCH_FIGURES]; /* the first is what comparisons look at */
    size_t figure_count;
    json_t *histogram;  /* {"4": 126}: so many measured steps ran so many decode rows */
    json_t *settings;   /* the work: model, tokens, ... */
    json_t *details;    /* of the scenario, for the reader; identifies nothing */
    json_t *runs;       /* [{"warmup", "dropped", NAME OF FIGURE: value, ...}] */
    json_t *measuring;  /* {"share": of a step, ...}: what measuring itself costs */
    json_t *knobs;      /* what can be turned, out of the provenance: {"backend.threads": 2} */
    json_t *provenance; /* the engine's */
    json_t *machine;
} fti_bench_row;

void fti_bench_row_init(fti_bench_row *row, const char *scenario, fti_bench_cause cause);
/* Shares the members of `json` that are JSON in a row too, for an empty row. */
void fti_bench_row_take(fti_bench_row *row, const json_t *json);
void fti_bench_row_free(fti_bench_row *row);

/* Replaces a JSON member: fti_bench_row_set(&row->settings, json_pack(...)). */
void fti_bench_row_set(json_t **member, json_t *owned);

/* Makes the row void; the first reason stays. */
void fti_bench_row_void(fti_bench_row *row, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds a figure with `count` > 0 values, which are copied. */
void fti_bench_row_figure(fti_bench_row *row, const char *name, const char *unit,
                          bool less_is_better, const double *values, size_t count);
const fti_bench_figure *fti_bench_row_find(const fti_bench_row *row, const char *name);

/* Voids the row if its figures are not exactly the values of those runs that are neither
 * warm-up nor dropped. A row that is still without runs has nothing to check. */
void fti_bench_row_check(fti_bench_row *row);

/* NULL if the row supports a claim, otherwise what it lacks, in a buffer of the caller. */
const char *fti_bench_row_no_claim(const fti_bench_row *row, char *buffer, size_t size);

json_t *fti_bench_row_json(const fti_bench_row *row);

/* Reads what fti_bench_row_json wrote, and believes nothing of it that can be computed again:
 * hashes, histogram, figures and knobs must be those of the runs and of the provenance.
 * False: *why says which key holds what, and what was wanted, to be released with free();
 * the row is then empty. */
bool fti_bench_row_read(const json_t *json, fti_bench_row *row, char **why);

#endif
