/* stats.c: see stats.h. */
#include "core/stats.h"

#include "core/engine.h"

#include <stdio.h>

/* Numbers are written as text here and never printed as floating point: the host program's
 * locale may have a comma in them. */
static const struct {
    double seconds;
    const char *text;
} bounds[FTI_TIME_BOUNDS] = {
    {1e-6, "0.000001"}, {2e-6, "0.000002"}, {5e-6, "0.000005"}, {1e-5, "0.00001"},
    {2e-5, "0.00002"},  {5e-5, "0.00005"},  {1e-4, "0.0001"},   {2e-4, "0.0002"},
    {5e-4, "0.0005"},   {1e-3, "0.001"},    {2e-3, "0.002"},    {5e-3, "0.005"},
    {1e-2, "0.01"},     {2e-2, "0.02"},     {5e-2, "0.05"},     {0.1, "0.1"},
    {0.2, "0.2"},       {0.5, "0.5"},       {1, "1"},           {2, "2"},
    {5, "5"},           {10, "10"},         {20, "20"},         {50, "50"},
    {100, "100"},       {200, "200"},       {500, "500"}};

static const char *const finishes[FTK_FINISH_ERROR + 1] = {NULL, "stop", "length", "cancelled",
                                                           "error"};

/* ---- times ---- */

void fti_times_add(fti_times *t, double seconds) {
    uint32_t i = 0;
    while (i < FTI_TIME_BOUNDS && seconds > bounds[i].seconds) i++;
    t->counts[i]++;
    if (t->count == 0 || seconds < t->least) t->least = seconds;
    if (seconds > t->most) t->most = seconds;
    t->sum += seconds;
    t->count++;
}

double fti_times_quantile(const fti_times *t, double q) {
    double rank = q * (double)t->count, below = 0;
    uint32_t i = 0;
    while (i < FTI_TIME_BOUNDS && below + (double)t->counts[i] < rank)
        below += (double)t->counts[i++];
    if (t->counts[i] == 0) return t->least; /* nothing was counted, or q is 0 */
    double from = i > 0 ? bounds[i - 1].seconds : 0;
    double to = i < FTI_TIME_BOUNDS ? bounds[i].seconds : t->most;
    if (from < t->least) from = t->least;
    if (to > t->most) to = t->most;
    return from + (to - from) * (rank - below) / (double)t->counts[i];
}

/* ---- life ---- */

bool fti_stats_create(fti_stats *s, uint32_t rows, uint32_t sequences) {
    *s = (fti_stats){.rows = rows, .sequences = sequences};
    s->by_rows = fti_calloc((size_t)rows + 1, sizeof *s->by_rows);
    s->by_sequences = fti_calloc((size_t)sequences + 1, sizeof *s->by_sequences);
    return s->by_rows && s->by_sequences;
}

void fti_stats_destroy(fti_stats *s) {
    fti_free(s->by_rows);
    fti_free(s->by_sequences);
    *s = (fti_stats){0};
}

static uint64_t ended(const fti_stats *s) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i <= FTK_FINISH_ERROR; i++) sum += s->ended[i];
    return sum;
}

/* ---- JSON ---- */

static void set_number(json_t **o, const char *key, uint64_t value) {
    fti_json_set(o, key, json_integer((json_int_t)value));
}

static json_t *histogram(const uint64_t *counts, uint32_t largest) {
    json_t *o = json_object();
    char key[16];
    for (uint32_t i = 1; i <= largest; i++) {
        if (counts[i] == 0) continue;
        snprintf(key, sizeof key, "%u", i);
        set_number(&o, key, counts[i]);
    }
    return o;
}

static json_t *times_json(const fti_times *t) {
    json_t *o = json_object();
    set_number(&o, "count", t->count);
    const struct {
        const char *key;
        double value;
    } values[] = {{"sum", t->sum},
                  {"min", t->least},
                  {"max", t->most},
                  {"p50", fti_times_quantile(t, 0.5)},
                  {"p90", fti_times_quantile(t, 0.9)},
                  {"p99", fti_times_quantile(t, 0.99)}};
    for (size_t i = 0; i < FTI_COUNT(values); i++)
        fti_json_set(&o, values[i].key, json_real(values[i].value));
    return o;
}

static json_t *finishes_json(const fti_stats *s) {
    json_t *o = json_object();
    for (uint32_t i = 1; i <= FTK_FINISH_ERROR; i++) set_number(&o, finishes[i], s->ended[i]);
    return o;
}

static json_t *preemptions_json(const fti_stats *s) {
    json_t *o = json_object();
    set_number(&o, "recompute", s->preempted[0]);
    set_number(&o, "swap", s->preempted[1]);
    return o;
}

static json_t *waiting_json(const fti_stats_view *v) {
    json_t *o = json_object();
    for (uint32_t i = 0; i < FTI_WAIT_REASONS; i++)
        set_number(&o, fti_wait_text((fti_wait)i), v->waits_for[i]);
    return o;
}

static json_t *held_json(const fti_stats *s) {
    json_t *o = json_object();
    set_number(&o, fti_wait_text(FTI_WAIT_SLOT), s->held[FTI_WAIT_SLOT]);
    set_number(&o, fti_wait_text(FTI_WAIT_PAGES), s->held[FTI_WAIT_PAGES]);
    set_number(&o, fti_wait_text(FTI_WAIT_SWAP), s->held[FTI_WAIT_SWAP]);
    return o;
}

static json_t *experts_json(const fti_expert_stats *x) {
    json_t *o = json_object();
    set_number(&o, "needed", x->needed);
    set_number(&o, "hits", x->hits);
    set_number(&o, "evicted", x->evicted);
    set_number(&o, "rings", x->rings);
    set_number(&o, "waits", x->waits);
    set_number(&o, "bytes", x->bytes);
    return o;
}

json_t *fti_stats_json(const fti_stats_view *v) {
    const fti_stats *s = v->stats;
    json_t *o = json_object();
    const struct {
        const char *key;
        uint64_t value;
    } rows[] = {{"steps", s->steps},
                {"prompt_rows", s->prompt_rows},
                {"decode_rows", s->decode_rows},
                {"graph_replays", s->replays},
                {"requests_running", v->running},
                {"requests_waiting", v->waiting},
                {"requests_ended", ended(s)},
                {"pages_used", v->pages_used},
                {"pages", v->pages},
                {"pages_cached", v->pages_cached},
                {"state_slots_used", v->slots_used},
                {"state_slots", v->slots},
                {"state_slots_cached", v->slots_cached},
                {"swap_units_used", v->units_used},
                {"swap_units", v->units},
                {"reused_tokens", s->reused},
                {"recomputed_rows", s->recomputed},
                {"forgotten_pages", v->forgotten_pages},
                {"forgotten_snapshots", v->forgotten_snapshots}};
    for (size_t i = 0; i < FTI_COUNT(rows); i++) set_number(&o, rows[i].key, rows[i].value);
    fti_json_set(&o, "ended_by", finishes_json(s));
    fti_json_set(&o, "preemptions", preemptions_json(s));
    fti_json_set(&o, "waiting_for", waiting_json(v));
    fti_json_set(&o, "held_steps", held_json(s));
    fti_json_set(&o, "experts", experts_json(&s->experts));
    fti_json_set(&o, "rows_histogram", histogram(s->by_rows, s->rows));
    fti_json_set(&o, "decode_histogram", histogram(s->by_sequences, s->sequences));
    fti_json_set(&o, "queue_seconds", times_json(&s->queue));
    fti_json_set(&o, "first_token_seconds", times_json(&s->first_token));
    fti_json_set(&o, "between_tokens_seconds", times_json(&s->token));
    return o;
}

/* ---- Prometheus ---- */

static void head(fti_text *out, const char *name, const char *type, const char *help) {
    fti_text_printf(out, "# HELP freetoken_%s %s\n# TYPE freetoken_%s %s\n", name, help, name,
                    type);
}

static void line(fti_text *out, const char *name, const char *label, const char *value,
                 uint64_t n) {
    fti_text_printf(out, "freetoken_%s{%s=\"%s\"} %llu\n", name, label, value,
                    (unsigned long long)n);
}

static void single(fti_text *out, const char *name, const char *type, const char *help,
                   uint64_t n) {
    head(out, name, type, help);
    fti_text_printf(out, "freetoken_%s %llu\n", name, (unsigned long long)n);
}

static void sizes_text(fti_text *out, const char *name, const char *help, const uint64_t *counts,
                       uint32_t largest) {
    char size[16];
    head(out, name, "counter", help);
    for (uint32_t i = 1; i <= largest; i++) {
        if (counts[i] == 0) continue;
        snprintf(size, sizeof size, "%u", i);
        line(out, name, "size", size, counts[i]);
    }
}

static void times_text(fti_text *out, const char *name, const char *help, const fti_times *t) {
    char bucket[64];
    uint64_t below = 0, nanoseconds = (uint64_t)(t->sum * 1e9);
    head(out, name, "histogram", help);
    snprintf(bucket, sizeof bucket, "%s_bucket", name);
    for (uint32_t i = 0; i < FTI_TIME_BOUNDS; i++)
        line(out, bucket, "le", bounds[i].text, below += t->counts[i]);
    line(out, bucket, "le", "+Inf", t->count);
    fti_text_printf(out, "freetoken_%s_sum %llu.%09llu\nfreetoken_%s_count %llu\n", name,
                    (unsigned long long)(nanoseconds / 1000000000),
                    (unsigned long long)(nanoseconds % 1000000000), name,
                    (unsigned long long)t->count);
}

static void requests_text(const fti_stats_view *v, fti_text *out) {
    const fti_stats *s = v->stats;
    single(out, "requests_running", "gauge", "Requests that have been admitted.", v->running);
    head(out, "requests_waiting", "gauge",
         "Requests that have not started, by what they wait for.");
    for (uint32_t i = 0; i < FTI_WAIT_REASONS; i++)
        line(out, "requests_waiting", "for", fti_wait_text((fti_wait)i), v->waits_for[i]);
    head(out, "requests_ended_total", "counter", "Requests that have ended, by how.");
    for (uint32_t i = 1; i <= FTK_FINISH_ERROR; i++)
        line(out, "requests_ended_total", "finish", finishes[i], s->ended[i]);
    head(out, "steps_held_total", "counter",
         "Steps that the next request could not start with, by what lacked.");
    line(out, "steps_held_total", "for", fti_wait_text(FTI_WAIT_SLOT), s->held[FTI_WAIT_SLOT]);
    line(out, "steps_held_total", "for", fti_wait_text(FTI_WAIT_PAGES), s->held[FTI_WAIT_PAGES]);
    line(out, "steps_held_total", "for", fti_wait_text(FTI_WAIT_SWAP), s->held[FTI_WAIT_SWAP]);
    head(out, "preemptions_total", "counter", "Requests taken off the machine, by how.");
    line(out, "preemptions_total", "how", "recompute", s->preempted[0]);
    line(out, "preemptions_total", "how", "swap", s->preempted[1]);
}

static void memory_text(const fti_stats_view *v, fti_text *out) {
    single(out, "kv_pages_used", "gauge", "Pages of the KV cache that requests hold.",
           v->pages_used);
    single(out, "kv_pages_cached", "gauge", "Pages of the KV cache that only the prefix cache has.",
           v->pages_cached);
    single(out, "kv_pages", "gauge", "Pages of the KV cache.", v->pages);
    single(out, "state_slots_used", "gauge", "Slots of recurrent state that requests hold.",
           v->slots_used);
    single(out, "state_slots_cached", "gauge", "Slots of recurrent state with snapshots.",
           v->slots_cached);
    single(out, "state_slots", "gauge", "Slots of recurrent state.", v->slots);
    single(out, "swap_units_used", "gauge", "Units of swap space that requests hold.",
           v->units_used);
    single(out, "swap_units", "gauge", "Units of swap space, each of a page of the KV cache.",
           v->units);
    head(out, "prefix_forgotten_total", "counter", "What the prefix cache has forgotten.");
    line(out, "prefix_forgotten_total", "what", "page", v->forgotten_pages);
    line(out, "prefix_forgotten_total", "what", "snapshot", v->forgotten_snapshots);
}

static void experts_text(const fti_expert_stats *x, fti_text *out) {
    head(out, "experts_total", "counter",
         "Experts that steps needed, each once for a step and layer, where they lie in slots.");
    line(out, "experts_total", "found", "slot", x->hits);
    line(out, "experts_total", "found", "file", x->needed - x->hits);
    single(out, "experts_evicted_total", "counter", "Experts that lost their slot.", x->evicted);
    single(out, "expert_rings_total", "counter",
           "Layers of steps that needed more experts than there were slots.", x->rings);
    single(out, "expert_waits_total", "counter", "Times that an expert's bytes were waited for.",
           x->waits);
    single(out, "expert_bytes_total", "counter", "Bytes of experts that came from the file.",
           x->bytes);
}

void fti_stats_text(const fti_stats_view *v, fti_text *out) {
    const fti_stats *s = v->stats;
    single(out, "steps_total", "counter", "Steps that have run.", s->steps);
    single(out, "graph_replays_total", "counter", "Steps that were replays of a graph.",
           s->replays);
    head(out, "rows_total", "counter", "Rows that have run.");
    line(out, "rows_total", "kind", "prompt", s->prompt_rows);
    line(out, "rows_total", "kind", "decode", s->decode_rows);
    requests_text(v, out);
    single(out, "reused_tokens_total", "counter", "Tokens of prompts that the prefix cache had.",
           s->reused);
    single(out, "recomputed_rows_total", "counter", "Rows that had run before a preemption.",
           s->recomputed);
    memory_text(v, out);
    experts_text(&s->experts, out);
    sizes_text(out, "step_rows_total", "Steps, by rows that ran.", s->by_rows, s->rows);
    sizes_text(out, "decode_batch_total", "Steps, by requests that decoded in them.",
               s->by_sequences, s->sequences);
    times_text(out, "queue_seconds", "From submission to admission.", &s->queue);
    times_text(out, "first_token_seconds", "From submission to the first token.", &s->first_token);
    times_text(out, "between_tokens_seconds", "Between two tokens of a request.", &s->token);
}
