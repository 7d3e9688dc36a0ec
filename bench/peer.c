/*
 * peer.c: the scenario `peer`: somebody else's program and ours, turn by turn, so that what
 * slows the machine slows both. What comes out is a ratio of two programs, and says nothing
 * of why they differ.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "ends.h"
#include "machine.h"
#include "meter.h"
#include "peer_command.h"
#include "report.h"
#include "subject.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/text.h"

#define TAIL_LINES 12u
#define BUSY_SHARE 0.25 /* of the cores, taken by others */

typedef struct duel {
    const fti_bench_values *values;
    fti_bench_pattern *pattern;
    fti_bench_subject subject;
    double *theirs;  /* [pairs], warm-up first */
    double *seconds; /* that the command took */
    size_t pairs;    /* begun */
} duel;

/* ---- their turn ---- */

static void show_tail(const fti_bench_peer_run *run) {
    char *tail = fti_bench_peer_tail(run, TAIL_LINES);
    (void)fprintf(stderr, "%s", tail[0] ? tail : "  | (no output)\n");
    free(tail);
}

static int judge_run(const duel *d, const fti_bench_peer_run *run, double *figure) {
    char buffer[160];
    char *why = NULL;
    const char *trouble = fti_bench_peer_trouble(run, d->values->timeout, buffer, sizeof buffer);
    int code = 0;
    if (trouble && run->end == FTI_BENCH_PEER_INTERRUPT)
        return fti_cli_fail(FTK_E_CANCELLED, "--cmd: the command %s", trouble);
    if (trouble) {
        code = fti_cli_fail(FTK_E_INTERNAL, "--cmd: the command %s%s", trouble,
                            run->end == FTI_BENCH_PEER_TIMEOUT ? "; --timeout gives it longer"
                                                               : "");
    } else if (!fti_bench_pattern_figure(d->pattern, run->output, run->size, figure, &why)) {
        code = fti_cli_fail(FTK_E_INTERNAL, "--pattern '%s' %s", d->values->pattern, why);
    }
    if (code) show_tail(run);
    free(why);
    return code;
}

static int run_theirs(duel *d, size_t pair) {
    fti_bench_peer_run run;
    fti_bench_peer_start(d->values->command, d->values->timeout, fti_cli_interrupted, &run);
    int code = judge_run(d, &run, &d->theirs[pair]);
    d->seconds[pair] = run.seconds;
    fti_bench_peer_free(&run);
    return code;
}

static int run_pairs(duel *d) {
    size_t total = (size_t)d->values->warmup + d->values->pairs;
    fti_bench_meter meter;
    fti_bench_meter_start(&meter, "peer", 2 * total);
    int code = 0;
    for (size_t i = 0; i < total && code == 0; i++) {
        fti_bench_meter_step(&meter, "theirs");
        code = run_theirs(d, i);
        if (code) break;
        fti_bench_meter_step(&meter, "ours");
        code = fti_bench_subject_run(&d->subject, i < d->values->warmup);
        d->pairs++;
    }
    fti_bench_meter_end(&meter);
    return code;
}

/* ---- the row ---- */

static double ours_of(const duel *d, size_t pair) {
    return d->subject.task->scenario->yields[0].of(&d->subject.samples[pair]);
}

/* Pairs that count, as two series; their number. */
static size_t counted(const duel *d, double *theirs, double *ours) {
    size_t count = 0;
    for (size_t i = 0; i < d->pairs; i++) {
        if (!fti_bench_sample_counts(&d->subject.samples[i])) continue;
        theirs[count] = d->theirs[i];
        ours[count++] = ours_of(d, i);
    }
    return count;
}

static void extend_runs(const duel *d, json_t *runs) {
    for (size_t i = 0; i < d->pairs; i++) {
        json_t *run = json_array_get(runs, i);
        if (d->subject.samples[i].fault) continue;
        (void)json_object_set_new(run, "peer_tok_s", json_real(d->theirs[i]));
        (void)json_object_set_new(run, "ratio", json_real(ours_of(d, i) / d->theirs[i]));
        (void)json_object_set_new(run, "peer_seconds", json_real(d->seconds[i]));
    }
}

static const char *verdict_text(const fti_bench_ratio *ratio) {
    switch (ratio->difference) {
    case FTI_BENCH_B_GREATER: return "libfreetoken is faster";
    case FTI_BENCH_B_LESS: return "the peer is faster";
    case FTI_BENCH_NO_DIFFERENCE: break;
    }
    return "no difference seen";
}

/* Engines suffer differently from others on their cores: who spins loses most. */
static void note_load(fti_bench_row *row) {
    const json_t *load = json_object_get(row->machine, "load_average");
    double busy = json_number_value(json_array_get(load, 0));
    double cores = json_number_value(json_object_get(row->machine, "threads_allowed"));
    if (busy <= BUSY_SHARE * cores) return;
    (void)json_object_set_new(
        row->details, "caution",
        json_sprintf("the load average at the start was %.2f on %.0f cores: repeat this on an idle "
                     "machine",
                     busy, cores));
}

static void extend_settings(const duel *d, fti_bench_row *row) {
    const fti_bench_values *v = d->values;
    (void)json_object_set_new(row->settings, "ours", json_string(d->subject.task->scenario->name));
    (void)json_object_set_new(row->settings, "command",
                              fti_cli_json_text(v->command, strlen(v->command)));
    (void)json_object_set_new(row->settings, "pattern",
                              fti_cli_json_text(v->pattern, strlen(v->pattern)));
    (void)json_object_set_new(row->settings, "repeat", json_integer(v->pairs));
}

/* Our row, under the name and the cause of this scenario, with theirs beside it. */
static void make_row(const duel *d, fti_bench_row *row) {
    fti_bench_subject_row(&d->subject, row);
    free(row->scenario);
    row->scenario = fti_cli_format("peer");
    row->cause = FTI_BENCH_NOT_ATTRIBUTABLE;
    extend_settings(d, row);
    extend_runs(d, row->runs);
    double *theirs = fti_cli_alloc(3 * d->pairs, sizeof *theirs);
    double *ours = theirs + d->pairs;
    double *ratios = ours + d->pairs;
    size_t count = counted(d, theirs, ours);
    for (size_t i = 0; i < count; i++) ratios[i] = ours[i] / theirs[i];
    if (count > 0 && !row->void_reason) {
        fti_bench_ratio ratio = fti_bench_compare_pairs(theirs, ours, count);
        fti_bench_row_figure(row, "peer_tok_s", "tok/s", false, theirs, count);
        fti_bench_row_figure(row, "ratio", "ours / peer", false, ratios, count);
        (void)json_object_set_new(
            row->details, "verdict",
            json_sprintf("%s%s", verdict_text(&ratio),
                         ratio.claim ? "" : " in these pairs; a claim needs 10 of them"));
    }
    note_load(row);
    free(theirs);
    fti_bench_row_check(row);
}

/* ---- the table ---- */

static void print_pairs(const duel *d) {
    (void)printf("\n%-10s %12s %12s %9s\n", "pair", "peer tok/s", "ours tok/s", "ratio");
    for (size_t i = 0; i < d->pairs; i++) {
        const fti_bench_sample *s = &d->subject.samples[i];
        if (s->fault) continue;
        (void)printf("%-10zu %12.2f %12.2f %9.3f%s\n", i + 1, d->theirs[i], ours_of(d, i),
                     ours_of(d, i) / d->theirs[i],
                     s->warmup    ? "  (warm-up)"
                     : s->dropped ? "  (dropped)"
                                  : "");
    }
}

static void print_load(const fti_bench_row *row) {
    const json_t *load = json_object_get(row->machine, "load_average");
    if (!json_is_array(load)) return;
    (void)printf("load average at the start %.2f %.2f %.2f, on %" JSON_INTEGER_FORMAT " cores\n",
                 json_number_value(json_array_get(load, 0)),
                 json_number_value(json_array_get(load, 1)),
                 json_number_value(json_array_get(load, 2)),
                 json_integer_value(json_object_get(row->machine, "threads_allowed")));
}

typedef struct outcome {
    const duel *duel;
    const fti_bench_row *row;
} outcome;

static void print_outcome(const void *user) {
    const outcome *o = user;
    const fti_bench_figure *f = fti_bench_row_find(o->row, "ratio");
    print_pairs(o->duel);
    if (f && !o->row->void_reason) {
        fti_bench_statistics s = fti_bench_describe(f->values, f->count);
        (void)printf("\nours / peer %.3f, 95 %% interval %.3f to %.3f, noise %.2f %%: %s\n",
                     s.median, s.low, s.high, 100.0 * s.noise,
                     fti_cli_member(o->row->details, "verdict"));
    }
    (void)printf("two different programs: the ratio cannot be attributed to any part of either\n");
    print_load(o->row);
    const char *caution = fti_cli_member(o->row->details, "caution");
    if (caution[0]) (void)printf("caution: %s\n", caution);
}

static int report(const fti_cli_call *call, const duel *d) {
    fti_bench_row row;
    make_row(d, &row);
    const outcome o = {d, &row};
    json_t *json = fti_bench_row_json(&row);
    int code = fti_bench_report_as(call, &row, 1, json, print_outcome, &o);
    json_decref(json);
    fti_bench_row_free(&row);
    return code;
}

/* ---- the command ---- */

static int run_duel(const fti_cli_call *call, const fti_bench_task *task, duel *d) {
    const fti_bench_values *v = d->values;
    size_t total = (size_t)v->warmup + v->pairs;
    ftk_config *config;
    bool single = !task->scenario->many;
    int code = fti_bench_config(&call->common, NULL, single, &v->set, NULL, &config);
    if (code) return code;
    d->theirs = fti_cli_alloc(2 * total, sizeof *d->theirs);
    d->seconds = d->theirs + total;
    code = fti_bench_subject_open(&d->subject, task, config, v->model);
    /* A second Ctrl-C must not leave the command running without us. */
    fti_cli_keep_interrupts();
    if (code == 0) code = run_pairs(d);
    if (code == 0) code = report(call, d);
    fti_bench_subject_close(&d->subject);
    free(d->theirs);
    return code;
}

static int check(const fti_bench_values *v, const char *scenario) {
    if (!v->command || !v->pattern || !v->model)
        return fti_cli_usage("peer wants --cmd 'COMMAND', --pattern 'REGEX' and --model MODEL");
    if (strcmp(scenario, "load") == 0)
        return fti_cli_usage("--scenario: peer runs decode, prefill or batch beside the command, "
                             "not 'load'");
    return 0;
}

int fti_bench_peer(const fti_cli_call *call) {
    const fti_bench_values *v = fti_bench_values_of(call);
    const char *scenario = v->scenario ? v->scenario : "decode";
    duel d = {.values = v};
    fti_bench_task task;
    int code = check(v, scenario);
    if (code == 0) code = fti_bench_check_output(call);
    if (code == 0) code = fti_bench_make_task(v, scenario, &task);
    if (code) return code;
    char *why;
    d.pattern = fti_bench_pattern_new(v->pattern, &why);
    if (!d.pattern) {
        code = fti_cli_usage("--pattern '%s' %s", v->pattern, why);
        free(why);
        return code;
    }
    fti_cli_catch_interrupt();
    fti_bench_catch_ends();
    fti_bench_look_at_machine(!v->no_bandwidth);
    code = run_duel(call, &task, &d);
    fti_bench_pattern_free(d.pattern);
    return code;
}
