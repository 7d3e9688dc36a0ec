/*
 * trace.h: recorded routing: which experts each layer used in each step, and for how many rows.
 * A file of lines of JSON, since other engines' routing may be brought into it: a header, then
 * a line [rows, prompt rows, [[expert, rows, expert, rows, ...] of each layer]] of each step,
 * experts by rising id. The header says how many steps there are, so that a file that was cut
 * short is seen. A reader takes nothing on trust.
 */
#ifndef FTI_BENCH_TRACE_H
#define FTI_BENCH_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "freetoken/status.h"

#define FTI_TRACE_FORMAT       "freetoken-routing"
#define FTI_TRACE_VERSION      1
#define FTI_TRACE_PARTS        8u
#define FTI_TRACE_MOST_LAYERS  4096u
#define FTI_TRACE_MOST_EXPERTS 65536u
#define FTI_TRACE_MOST_ROWS    (1u << 20)
#define FTI_TRACE_MOST_TOTAL   (1u << 24) /* layers times experts */

/* One layer that has experts. */
typedef struct fti_trace_layer {
    uint32_t layer; /* of the model */
    uint32_t experts;
    uint32_t used; /* by one row */
    uint32_t part_count;
    uint64_t part_bytes[FTI_TRACE_PARTS]; /* of one expert */
} fti_trace_layer;

typedef struct fti_trace_entry {
    uint32_t expert;
    uint32_t rows;
} fti_trace_entry;

typedef struct fti_trace_step {
    uint32_t rows;
    uint32_t prompt_rows; /* 0: a decode step; otherwise it counts as prefill */
} fti_trace_step;

/* Step s used of layer l the entries starts[s * layer_count + l] up to the next start. */
typedef struct fti_trace {
    char *model;
    uint64_t hash; /* of the tokens that were generated */
    uint32_t streams;
    fti_trace_layer *layers;
    size_t layer_count;
    fti_trace_step *steps;
    size_t step_count, step_room;
    size_t *starts; /* [step_count * layer_count + 1] */
    fti_trace_entry *entries;
    size_t entry_count, entry_room;
} fti_trace;

/* Begins a trace of `count` layers, which are copied. */
void fti_trace_init(fti_trace *trace, const char *model, const fti_trace_layer *layers,
                    size_t count);
/* Adds a step without entries, and then entries to its layers in their order. */
void fti_trace_add_step(fti_trace *trace, uint32_t rows, uint32_t prompt_rows);
void fti_trace_add_entry(fti_trace *trace, size_t layer, uint32_t expert, uint32_t rows);
void fti_trace_name(fti_trace *trace, const char *model);
void fti_trace_free(fti_trace *trace);

/* Bytes of one expert of a layer. */
uint64_t fti_trace_expert_bytes(const fti_trace_layer *layer);

/* The file appears when it is whole. Exit codes, after printing why. */
int fti_trace_write(const fti_trace *trace, const char *path);
int fti_trace_read(const char *path, fti_trace *trace);

#endif
