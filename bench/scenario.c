/* scenario.c: the table of scenarios. */
#include "scenario.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/text.h"

static double rate(double count, double seconds) {
    return seconds > 0.0 ? count / seconds : 0.0;
}

/* The first token comes from the prompt's last step, so steps are counted, not tokens. */
static double steps_per_second(const fti_bench_sample *s) {
    return rate((double)s->window_steps, s->window_seconds);
}

static double aggregate(const fti_bench_sample *s) {
    return rate((double)s->window_steps * (double)s->stream_count, s->window_seconds);
}

static double prompt_rate(const fti_bench_sample *s) {
    return rate((double)s->prompt_tokens, s->prefill_seconds);
}

static double first_token(const fti_bench_sample *s) {
    return s->first_seconds;
}

static double open_seconds(const fti_bench_sample *s) {
    return s->open_seconds;
}

static double open_to_token(const fti_bench_sample *s) {
    return s->open_seconds + s->first_seconds;
}

static double copied(const fti_bench_sample *s) {
    return rate((double)s->copied_bytes * 1e-9, s->open_seconds);
}

static double from_storage(const fti_bench_sample *s) {
    return rate((double)s->read_bytes * 1e-9, s->open_seconds);
}

static double peak(const fti_bench_sample *s) {
    return (double)s->peak_bytes / 1048576.0;
}

static const fti_bench_scenario scenarios[] = {
    {.name = "decode",
     .cause = FTI_BENCH_MODEL_EXECUTION,
     .tokens = 128,
     .yields = {{"decode_tok_s", "tok/s", false, steps_per_second, false},
                {"prefill_tok_s", "tok/s", false, prompt_rate, false}}},
    {.name = "prefill",
     .cause = FTI_BENCH_MODEL_EXECUTION,
     .by_rows = true,
     .tokens = 1,
     .prompt_tokens = 512,
     .yields = {{"prefill_tok_s", "tok/s", false, prompt_rate, false},
                {"time_to_first_token_s", "s", true, first_token, false}}},
    {.name = "batch",
     .cause = FTI_BENCH_SCHEDULING,
     .many = true,
     .tokens = 128,
     .prompt_tokens = 64,
     .yields = {{"aggregate_tok_s", "tok/s", false, aggregate, false},
                {"stream_tok_s", "tok/s", false, steps_per_second, false}}},
    {.name = "load",
     .cause = FTI_BENCH_REPRESENTATION,
     .opens = true,
     .tokens = 4,
     .prompt_tokens = 16,
     .yields = {{"load_s", "s", true, open_seconds, false},
                {"open_to_first_token_s", "s", true, open_to_token, false},
                {"peak_memory_mib", "MiB", true, peak, false},
                {"copied_gb_s", "GB/s", false, copied, true},
                {"storage_gb_s", "GB/s", false, from_storage, true}}},
};

const fti_bench_scenario *fti_bench_find_scenario(const char *name) {
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        if (strcmp(scenarios[i].name, name) == 0) return &scenarios[i];
    fti_cli_text names = {0};
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        fti_cli_printf(&names, "%s%s", i ? ", " : "", scenarios[i].name);
    (void)fti_cli_usage("no scenario '%s': there are %s", name, names.data);
    free(names.data);
    return NULL;
}
