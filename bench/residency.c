/* residency.c: the command residency, and the half of it that records. */
#include "bench.h"
#include "recorder.h"
#include "subject.h"
#include "cli/output.h"
#include "cli/session.h"

const struct ftk_provider *freetoken_provider_v1(void);

/* The run that is recorded is the only one, so that what it fails is the trace's failure. */
static int record_run(fti_bench_subject *subject, fti_recorder *recorder) {
    recorder->prompt_count = (uint32_t)subject->prompts[0].count;
    recorder->on = true;
    int code = fti_bench_subject_run(subject, false);
    recorder->on = false;
    if (code) return code;
    const fti_bench_sample *s = &subject->samples[0];
    if (s->fault) return fti_cli_fail(FTK_E_INTERNAL, "nothing is written: %s", s->fault);
    if (recorder->fault)
        return fti_cli_fail(FTK_E_UNSUPPORTED, "nothing is written: %s", recorder->fault);
    recorder->trace.hash = s->hash;
    recorder->trace.streams = (uint32_t)s->stream_count;
    return 0;
}

static int record(const fti_cli_call *call, const fti_bench_task *task) {
    const fti_bench_values *v = task->values;
    fti_recorder recorder = {0};
    fti_bench_subject subject = {0};
    ftk_config *config;
    ftk_provider_entry entry = fti_recorder_entry(freetoken_provider_v1, &recorder);
    int code = fti_bench_linked_config(call, entry, !task->scenario->many, &config);
    if (code) return code;
    /* A replayed step calls no operator. */
    ftk_status status = ftk_config_set(config, "backend.graphs", "off", NULL);
    code = status == FTK_OK ? 0 : fti_cli_fail(status, "backend.graphs cannot be set");
    if (code == 0)
        code = fti_bench_subject_open(&subject, task, config, v->model);
    else
        ftk_config_free(config);
    if (code == 0) code = record_run(&subject, &recorder);
    if (code == 0) {
        fti_trace_name(&recorder.trace, v->model);
        code = fti_trace_write(&recorder.trace, v->record);
    }
    if (code == 0)
        fti_cli_say(stdout, "%zu steps of %zu layers\n", recorder.trace.step_count,
                    recorder.trace.layer_count);
    fti_bench_subject_close(&subject);
    fti_trace_free(&recorder.trace);
    return code;
}

int fti_bench_residency(const fti_cli_call *call) {
    const fti_bench_values *v = fti_bench_values_of(call);
    if ((v->record != NULL) == (v->trace != NULL))
        return fti_cli_usage("residency wants either --record TRACE or --trace TRACE");
    if (v->trace && v->model) return fti_cli_usage("--trace runs no model");
    if (v->trace) return fti_bench_replay(call);
    if (v->slots || v->policy || v->per_layer)
        return fti_cli_usage("--slots, --policy and --per-layer want --trace");
    if (!v->model) return fti_cli_usage("--record wants --model MODEL");
    fti_bench_task task;
    bool many = fti_cli_given(call, "batch") && v->batch > 1;
    int code = fti_bench_make_task(v, many ? "batch" : "decode", &task);
    if (code) return code;
    fti_cli_catch_interrupt();
    return record(call, &task);
}
