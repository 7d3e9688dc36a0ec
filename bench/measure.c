/* measure.c: the commands decode, prefill, batch and load: one subject, one row. */
#include <stdlib.h>

#include "bench.h"
#include "machine.h"
#include "meter.h"
#include "report.h"
#include "subject.h"
#include "cli/output.h"
#include "cli/session.h"

static int run_all(fti_bench_subject *subject, const fti_bench_values *v) {
    fti_bench_meter meter;
    fti_bench_meter_start(&meter, subject->task->scenario->name, (size_t)v->warmup + v->repeat);
    int code = 0;
    for (uint32_t i = 0; i < v->warmup && code == 0; i++) {
        fti_bench_meter_step(&meter, "warm-up");
        code = fti_bench_subject_run(subject, true);
    }
    for (uint32_t i = 0; i < v->repeat && code == 0; i++) {
        fti_bench_meter_step(&meter, "");
        code = fti_bench_subject_run(subject, false);
    }
    fti_bench_meter_end(&meter);
    return code;
}

static int measure(const fti_cli_call *call, const fti_bench_task *task) {
    const fti_bench_values *v = task->values;
    ftk_config *config;
    int code = fti_bench_config(&call->common, NULL, !task->scenario->many, &v->set, NULL, &config);
    if (code) return code;
    fti_bench_subject subject;
    code = fti_bench_subject_open(&subject, task, config, v->model);
    if (code == 0) code = run_all(&subject, v);
    if (code == 0) {
        fti_bench_row row;
        fti_bench_subject_row(&subject, &row);
        code = fti_bench_report(call, &row, 1);
        fti_bench_row_free(&row);
    }
    fti_bench_subject_close(&subject);
    return code;
}

int fti_bench_measure(const fti_cli_call *call) {
    const fti_bench_values *v = fti_bench_values_of(call);
    fti_bench_task task;
    if (!v->model) return fti_cli_usage("%s wants --model MODEL", call->command->name);
    int code = fti_bench_make_task(v, call->command->name, &task);
    if (code == 0) code = fti_bench_check_output(call);
    if (code) return code;
    fti_cli_catch_interrupt();
    fti_bench_look_at_machine(!v->no_bandwidth);
    return measure(call, &task);
}
