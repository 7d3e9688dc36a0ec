/* profile_tables.c: the tables that count; see profile.h. An entry takes no argument, so what
 * they count into is kept here. */
#include "profile.h"

#include <string.h>

#include "bandwidth.h"
#include "core/base.h"

static struct {
    ftk_provider_entry entry;
    fti_bench_profiles *into;
    fti_bench_profile *now; /* of the step at hand; NULL: not counted */
    const ftk_provider *real;
    const ftk_host *host;
    const ftk_if_operators *operators;
    const ftk_if_kernels *kernels;
    ftk_provider provider;
    ftk_host shown;
    ftk_if_operators timed_operators;
    ftk_if_kernels timed_kernels;
} shim;

/* ---- counting ---- */

static fti_bench_profile_line *line_of(fti_bench_profile *p, const char *name, uint32_t type) {
    for (size_t i = 0; i < p->count; i++)
        if (p->lines[i].type == type && strcmp(p->lines[i].name, name) == 0) return &p->lines[i];
    if (p->count == FTI_BENCH_PROFILE_LINES) return NULL;
    p->lines[p->count] = (fti_bench_profile_line){.name = name, .type = type};
    return &p->lines[p->count++];
}

static void count(const char *name, uint32_t type, double seconds, uint64_t bytes,
                  uint64_t products) {
    if (!shim.now) return;
    fti_bench_profile_line *line = line_of(shim.now, name, type);
    if (!line) return;
    line->calls++;
    line->seconds += seconds;
    line->bytes += bytes;
    line->products += products;
}

/* Experts that the step at hand uses: what has run is readable here. */
static uint64_t experts_in(const ftk_routing *r) {
    uint64_t used = 0;
    for (uint32_t e = 0; e < r->expert_count; e++) used += r->offsets[e + 1] > r->offsets[e];
    return used;
}

/* ---- operators ---- */

#define TIMED(member, argument)                                                                    \
    static ftk_status timed_##member(ftk_stream *stream, const argument *op) {                     \
        double begin = fti_bench_seconds();                                                        \
        ftk_status status = shim.operators->member(stream, op);                                    \
        count(#member, FTI_BENCH_NO_TYPE, fti_bench_seconds() - begin, 0, 0);                      \
        return status;                                                                             \
    }

TIMED(embed, ftk_op_embed)
TIMED(rms_norm, ftk_op_rms_norm)
TIMED(quantize, ftk_op_quantize)
TIMED(rope, ftk_op_rope)
TIMED(kv_append, ftk_op_kv_append)
TIMED(attention, ftk_op_attention)
TIMED(route, ftk_op_route)
TIMED(swiglu, ftk_op_swiglu)
TIMED(combine, ftk_op_combine)
TIMED(gather_rows, ftk_op_gather_rows)
TIMED(scale, ftk_op_scale)
TIMED(ensure, ftk_op_ensure)

static ftk_status timed_matmul(ftk_stream *stream, const ftk_op_matmul *op) {
    double begin = fti_bench_seconds();
    ftk_status status = shim.operators->matmul(stream, op);
    double seconds = fti_bench_seconds() - begin;
    const ftk_weight *w = op->weight;
    if (status == FTK_OK)
        count("matmul", w->type, seconds, w->rows * w->row_bytes, w->rows * w->cols * op->act.rows);
    return status;
}

static ftk_status timed_grouped_matmul(ftk_stream *stream, const ftk_op_grouped_matmul *op) {
    double begin = fti_bench_seconds();
    ftk_status status = shim.operators->grouped_matmul(stream, op);
    double seconds = fti_bench_seconds() - begin;
    const ftk_bank_view *b = op->bank;
    const ftk_routing *r = &op->routing;
    if (status == FTK_OK)
        count("grouped_matmul", b->type, seconds, experts_in(r) * b->rows * b->row_bytes,
              b->rows * b->cols * r->rows * r->used);
    return status;
}

static ftk_status timed_launch(ftk_stream *stream, const ftk_cpu_launch *launch) {
    double begin = fti_bench_seconds();
    ftk_status status = shim.kernels->launch_cpu(stream, launch);
    count(launch->name.data, FTI_BENCH_NO_TYPE, fti_bench_seconds() - begin, 0, 0);
    return status;
}

/* ---- the provider's face ---- */

static const ftk_if_operators *time_operators(const ftk_if_operators *real) {
    shim.operators = real;
    shim.timed_operators = *real;
    shim.timed_operators.embed = timed_embed;
    shim.timed_operators.rms_norm = timed_rms_norm;
    shim.timed_operators.quantize = timed_quantize;
    shim.timed_operators.matmul = timed_matmul;
    shim.timed_operators.rope = timed_rope;
    shim.timed_operators.kv_append = timed_kv_append;
    shim.timed_operators.attention = timed_attention;
    shim.timed_operators.route = timed_route;
    shim.timed_operators.grouped_matmul = timed_grouped_matmul;
    shim.timed_operators.swiglu = timed_swiglu;
    shim.timed_operators.combine = timed_combine;
    shim.timed_operators.gather_rows = timed_gather_rows;
    shim.timed_operators.scale = timed_scale;
    shim.timed_operators.ensure = timed_ensure;
    return &shim.timed_operators;
}

static const void *query(ftk_core_ctx *ctx, ftk_str name, uint32_t level) {
    const void *table = shim.host->query(ctx, name, level);
    if (table && fti_str_is(name, "operators")) return time_operators(table);
    if (!table || !fti_str_is(name, "kernels")) return table;
    shim.kernels = table;
    shim.timed_kernels = *shim.kernels;
    shim.timed_kernels.launch_cpu = timed_launch;
    return &shim.timed_kernels;
}

static ftk_status create(const ftk_host *host, ftk_core_ctx *ctx, const ftk_create_in *in,
                         ftk_model_info *info, ftk_model **out) {
    shim.host = host;
    shim.shown = *host;
    shim.shown.query = query;
    return shim.real->create(&shim.shown, ctx, in, info, out);
}

static ftk_status run(ftk_model *model, const ftk_step *step) {
    fti_bench_profiles *all = shim.into;
    fti_bench_profile *p = step->rows > all->decode_rows ? &all->prompt : &all->decode;
    double begin = fti_bench_seconds();
    if (all->on && all->last > 0.0) {
        p->outside += begin - all->last;
        p->gaps++;
    }
    shim.now = all->on ? p : NULL;
    ftk_status status = shim.real->run(model, step);
    shim.now = NULL;
    all->last = fti_bench_seconds();
    if (!all->on) return status;
    p->steps++;
    p->rows += step->rows;
    p->inside += all->last - begin;
    return status;
}

static const ftk_provider *entry(void) {
    shim.real = shim.entry();
    shim.provider = *shim.real;
    shim.provider.create = create;
    shim.provider.run = run;
    return &shim.provider;
}

ftk_provider_entry fti_bench_profile_entry(ftk_provider_entry real, fti_bench_profiles *into) {
    shim.entry = real;
    shim.into = into;
    return entry;
}
