/* report.c: results as a table and as JSON. */
#include "report.h"

#include <stdio.h>
#include <stdlib.h>

#include "cli/output.h"
#include "cli/text.h"
#include "freetoken/freetoken.h"

fti_pc_verdict fti_pc_verdict_of(const fti_pc_result *r) {
    if (r->channel->finding_count > 0) return FTI_PC_FAILED;
    return r->channel->skipped[0] ? FTI_PC_SKIPPED : FTI_PC_PASSED;
}

size_t fti_pc_count(const fti_pc_report *report, fti_pc_verdict verdict) {
    size_t count = 0;
    for (size_t i = 0; i < report->count; i++)
        if (fti_pc_verdict_of(&report->results[i]) == verdict) count++;
    return count;
}

static const char *verdict_text(fti_pc_verdict verdict) {
    static const char *const texts[] = {"passed", "failed", "skipped"};
    return texts[verdict];
}

/* ---- for people ---- */

static void print_shown(const char *format, const char *text) {
    char *shown = fti_cli_shown(text, strlen(text));
    (void)printf(format, shown);
    free(shown);
}

void fti_pc_print_head(const fti_pc_report *report) {
    const fti_pc_target *t = report->target;
    if (t->manifest) {
        (void)printf("provider    %s ", t->manifest->name);
        print_shown("%s\n", t->manifest->version);
    }
    print_shown("library     %s\n", t->allow.path);
    if (report->sha256[0]) (void)printf("sha256      %s\n", report->sha256);
    if (t->model) print_shown("checkpoint  %s\n", t->model);
    (void)printf("\nFrom the pass 'entry' on, this runs the provider's code on this machine, with "
                 "your rights.\n\n");
    (void)fflush(stdout);
}

static void print_variant(const fti_pc_variant *v) {
    print_shown("           %s: ", v->name);
    if (v->skipped[0]) {
        print_shown("not run: %s\n", v->skipped);
        return;
    }
    (void)printf("%llu comparisons of kernels, %llu of steps, distance %u of %u",
                 (unsigned long long)v->comparisons, (unsigned long long)v->steps, v->worst,
                 v->tolerance);
    if (v->seconds > 0.0)
        (void)printf("; %.1f us, reference %.1f us: %.2f times as fast", v->seconds * 1e6,
                     v->reference_seconds * 1e6, v->reference_seconds / v->seconds);
    (void)fputs("\n", stdout);
}

void fti_pc_print_result(const fti_pc_result *r) {
    const fti_pc_channel *c = r->channel;
    fti_pc_verdict verdict = fti_pc_verdict_of(r);
    (void)printf("%-10s %-8s", r->pass->name, verdict_text(verdict));
    if (verdict == FTI_PC_SKIPPED)
        print_shown(" %s\n", c->skipped);
    else
        (void)printf(" %llu checks, %.2f s: %s\n", (unsigned long long)c->checks, r->seconds,
                     r->pass->summary);
    for (uint32_t i = 0; i < c->finding_count; i++) {
        print_shown("           - %s", c->findings[i].what);
        if (c->findings[i].where[0]) print_shown(" [%s]", c->findings[i].where);
        (void)fputs("\n", stdout);
    }
    if (c->lost) (void)printf("           - and %u more\n", c->lost);
    for (uint32_t i = 0; i < c->variant_count; i++) print_variant(&c->variants[i]);
    (void)fflush(stdout);
}

void fti_pc_print_end(const fti_pc_report *report) {
    size_t failed = fti_pc_count(report, FTI_PC_FAILED);
    size_t skipped = fti_pc_count(report, FTI_PC_SKIPPED);
    (void)printf("\n%zu passed, %zu failed, %zu skipped\n", fti_pc_count(report, FTI_PC_PASSED),
                 failed, skipped);
    if (skipped && !report->target->model)
        (void)printf("give a checkpoint of the provider's for the passes that need one: --model "
                     "FILE\n");
}

/* ---- JSON ---- */

static json_t *text_of(const char *text) {
    return fti_cli_json_text(text, strlen(text));
}

static json_t *json_findings(const fti_pc_channel *c) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->finding_count; i++)
        json_array_append_new(list, json_pack("{s:o, s:o}", "what", text_of(c->findings[i].what),
                                              "where", text_of(c->findings[i].where)));
    return list;
}

static json_t *json_result(const fti_pc_result *r) {
    json_t *object = json_pack("{s:s, s:s, s:s, s:I, s:f, s:o}", "name", r->pass->name, "result",
                               verdict_text(fti_pc_verdict_of(r)), "summary", r->pass->summary,
                               "checks", (json_int_t)r->channel->checks, "seconds", r->seconds,
                               "findings", json_findings(r->channel));
    if (r->channel->skipped[0]) json_object_set_new(object, "reason", text_of(r->channel->skipped));
    if (r->channel->lost)
        json_object_set_new(object, "further_findings", json_integer(r->channel->lost));
    return object;
}

static json_t *json_variant(const fti_pc_variant *v) {
    if (v->skipped[0])
        return json_pack("{s:o, s:o, s:o}", "operation", text_of(v->operation), "variant",
                         text_of(v->name), "skipped", text_of(v->skipped));
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:f, s:f}", "operation", text_of(v->operation),
                     "variant", text_of(v->name), "kernel_comparisons", (json_int_t)v->comparisons,
                     "step_comparisons", (json_int_t)v->steps, "worst_ulp", (json_int_t)v->worst,
                     "tolerance_ulp", (json_int_t)v->tolerance, "seconds", v->seconds,
                     "reference_seconds", v->reference_seconds);
}

static json_t *json_provider(const fti_pc_report *report) {
    const fti_pc_target *t = report->target;
    json_t *object = json_pack("{s:o, s:s}", "path", text_of(t->allow.path), "sha256",
                               report->sha256);
    if (t->manifest) {
        json_object_set_new(object, "name", text_of(t->manifest->name));
        json_object_set_new(object, "version", text_of(t->manifest->version));
        json_object_set_new(object, "api_level", json_integer(t->manifest->api_level));
        json_object_set_new(object, "license", text_of(t->manifest->license));
    }
    return object;
}

static json_t *json_checkpoint(const fti_pc_target *t) {
    if (!t->model) return json_null();
    return json_pack("{s:o, s:o, s:s}", "path", text_of(t->model), "architecture",
                     fti_cli_json_text(t->architecture.data, (size_t)t->architecture.size),
                     "container", fti_checkpoint_container(t->checkpoint));
}

void fti_pc_print_json(const fti_pc_report *report) {
    json_t *passes = json_array(), *variants = json_array();
    for (size_t i = 0; i < report->count; i++) {
        const fti_pc_channel *c = report->results[i].channel;
        json_array_append_new(passes, json_result(&report->results[i]));
        for (uint32_t v = 0; v < c->variant_count; v++)
            json_array_append_new(variants, json_variant(&c->variants[v]));
    }
    fti_cli_print_json(json_pack(
        "{s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:o, s:o}", "tool", fti_cli_program_name, "version",
        ftk_version(), "provider", json_provider(report), "checkpoint",
        json_checkpoint(report->target), "passed", (json_int_t)fti_pc_count(report, FTI_PC_PASSED),
        "failed", (json_int_t)fti_pc_count(report, FTI_PC_FAILED), "skipped",
        (json_int_t)fti_pc_count(report, FTI_PC_SKIPPED), "passes", passes, "variants", variants));
}
