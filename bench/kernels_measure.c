/*
 * kernels_measure.c: runs one operation in every variant and fills a row for each. A sample
 * is as many calls of the operator as it takes to use the weights of the case once, each
 * on its own matrix or bank, timed without the quantisation of its inputs.
 */
#include "bandwidth.h"
#include "clock.h"
#include "kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "cli/text.h"
#include "core/checkpoint.h"

#define GIGA          1e9
#define PATTERN_BYTES (UINT64_C(1) << 20)
#define PAGE          4096u
#define LEAST_SAMPLES 3u
#define UNWRITTEN     0xFF /* makes not-a-numbers of results that nobody wrote */

/* ---- variants ---- */

static ftk_status open_variant(uint32_t mask, uint32_t threads, fti_bench_variant *out,
                               ftk_error *err) {
    const fti_backend_options options = {.threads = threads, .kernel_mask = mask};
    FTI_TRY(fti_cpu_backend_create(&options, &out->backend, err));
    return out->backend->ops->stream_create(out->backend, &out->stream, err);
}

static void close_variant(fti_bench_variant *variant) {
    if (variant->stream) variant->backend->ops->stream_destroy(variant->stream);
    if (variant->backend) variant->backend->ops->destroy(variant->backend);
    *variant = (fti_bench_variant){0};
}

static const fti_cpu_kernels *table_of(const fti_bench_variant *variant) {
    return &((const fti_cpu_backend *)(const void *)variant->backend)->kernels;
}

static bool is_known(const fti_bench_variants *variants, const fti_bench_variant *candidate) {
    for (size_t i = 0; i < variants->count; i++)
        if (memcmp(table_of(&variants->list[i]), table_of(candidate), sizeof(fti_cpu_kernels)) == 0)
            return true;
    return false;
}

/* Capabilities are listed in the order of their bits, so the last one is the one added. */
static void name_variant(fti_bench_variant *variant) {
    const char *last = "reference";
    const char *name;
    for (size_t i = 1; (name = variant->backend->ops->capability_name(variant->backend, i)) != NULL;
         i++)
        last = name;
    (void)snprintf(variant->name, sizeof variant->name, "%s", last);
}

static ftk_status add_variant(fti_bench_variants *variants, uint32_t mask, ftk_error *err) {
    fti_bench_variant candidate = {0};
    ftk_status status = open_variant(mask, variants->threads, &candidate, err);
    if (status != FTK_OK || is_known(variants, &candidate)) {
        close_variant(&candidate);
        return status;
    }
    name_variant(&candidate);
    variants->list[variants->count++] = candidate;
    return FTK_OK;
}

ftk_status fti_bench_variants_open(uint32_t threads, fti_bench_variants *out, ftk_error *err) {
    *out = (fti_bench_variants){.threads = fti_cpu_threads_granted(threads)};
    uint32_t features = fti_cpu_features();
    ftk_status status = add_variant(out, 0, err);
    uint32_t mask = 0;
    for (uint32_t bit = 1; bit && status == FTK_OK && out->count < FTI_BENCH_VARIANTS; bit <<= 1) {
        if (!(features & bit)) continue;
        mask |= bit;
        status = add_variant(out, mask, err);
    }
    if (status != FTK_OK) fti_bench_variants_close(out);
    return status;
}

void fti_bench_variants_close(fti_bench_variants *variants) {
    for (size_t i = 0; i < variants->count; i++) close_variant(&variants->list[i]);
    *variants = (fti_bench_variants){0};
}

static fti_pool *pool_of(const fti_bench_variants *variants) {
    return ((const fti_cpu_backend *)(const void *)variants->list[0].backend)->pool;
}

/* ---- memory ---- */

fti_bench_kernel_sizes fti_bench_kernel_defaults(void) {
    return (fti_bench_kernel_sizes){.stream_bytes = fti_bench_stream_bytes(),
                                    .cols = 2048,
                                    .matrix_rows = {4096, 1024},
                                    .expert_rows = {512, 256},
                                    .used = 8,
                                    .experts = 64,
                                    .prefill_rows = 64,
                                    .repeat = 10,
                                    .warmup = 1,
                                    .variant_seconds = 0.5};
}

ftk_status fti_bench_lab_open(uint32_t threads, const fti_bench_kernel_sizes *sizes,
                              fti_bench_lab *out, ftk_error *err) {
    *out = (fti_bench_lab){.sizes = *sizes};
    FTI_TRY(fti_bench_variants_open(threads, &out->variants, err));
    out->weights = fti_bench_map(pool_of(&out->variants), sizes->stream_bytes);
    if (!out->weights) {
        fti_bench_lab_close(out);
        return fti_no_memory(err, sizes->stream_bytes, "the weights of the kernels' samples");
    }
    out->pattern = fti_cli_alloc(PATTERN_BYTES, 1);
    return FTK_OK;
}

void fti_bench_lab_close(fti_bench_lab *lab) {
    fti_bench_unmap(lab->weights, lab->sizes.stream_bytes);
    free(lab->pattern);
    fti_bench_variants_close(&lab->variants);
    *lab = (fti_bench_lab){0};
}

/* ---- one case ---- */

/* A type's share of a case: calls on consecutive matrices or banks. */
typedef struct share {
    uint32_t type;
    uint32_t formats; /* of activations */
    uint32_t experts; /* of a bank; 1 for a matrix */
    uint32_t rows;    /* of a matrix or of one expert */
    uint64_t row_bytes;
    uint64_t calls;
    uint64_t outputs; /* of a call */
    const uint8_t *weights;
    float *y;       /* [calls][outputs] */
    int32_t *pairs; /* ascending by expert, behind experts + 1 offsets */
} share;

typedef struct work {
    const fti_bench_lab *lab;
    const fti_bench_kernel_case *what;
    share shares[FTI_BENCH_CASE_TYPES];
    uint32_t inputs; /* rows of activations */
    float *x;
    void *packed;
    float *y;
    float *wanted; /* what the reference gave first */
    uint64_t outputs;
    uint64_t weight_bytes; /* of a sample */
    double products;
} work;

static uint32_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(z >> 32);
}

/* In [-1, 1). */
static float random_unit(uint64_t *state) {
    return (float)((int32_t)next_random(state) >> 8) / 8388608.0f;
}

/* With bit 6 of every byte clear, a scale of any format is finite and small. */
static void fill_pattern(uint32_t type, uint8_t *pattern) {
    uint64_t state = type + 1;
    for (uint64_t i = 0; i < PATTERN_BYTES; i += 4) {
        uint32_t word = next_random(&state) & 0xBFBFBFBFu;
        memcpy(pattern + i, &word, sizeof word);
    }
    if (type != FTK_TYPE_F32) return;
    for (uint64_t i = 0; i < PATTERN_BYTES; i += sizeof(float)) {
        float value = random_unit(&state);
        memcpy(pattern + i, &value, sizeof value);
    }
}

static uint64_t call_bytes(const share *s) {
    return (uint64_t)s->experts * s->rows * s->row_bytes;
}

/* Whole blocks of the pattern, one after the other, over all of a share. */
static void fill_share(const work *w, const share *s) {
    uint32_t elements, bytes;
    (void)fti_type_block(s->type, &elements, &bytes);
    uint64_t period = PATTERN_BYTES / bytes * bytes;
    uint64_t total = s->calls * call_bytes(s);
    uint8_t *to = w->lab->weights + (s->weights - w->lab->weights);
    fill_pattern(s->type, w->lab->pattern);
    for (uint64_t at = 0; at < total; at += period)
        memcpy(to + at, w->lab->pattern, total - at < period ? total - at : period);
}

/* As many experts as there is room for, if a prefill may choose; of all weights, as many as
 * there is room for in a decode. */
static bool fit_share(const work *w, share *s, uint64_t room) {
    const fti_bench_kernel_sizes *sizes = &w->lab->sizes;
    bool prefill = w->what->prefill;
    s->rows = w->what->grouped ? sizes->expert_rows[prefill] : sizes->matrix_rows[prefill];
    s->experts = w->what->grouped ? sizes->used : 1;
    if (w->what->grouped && prefill) {
        uint64_t most = room / (s->rows * s->row_bytes);
        if (most > sizes->experts) most = sizes->experts;
        if (most > s->experts) s->experts = (uint32_t)most;
    }
    s->calls = prefill ? 1 : room / call_bytes(s);
    return call_bytes(s) <= room;
}

static ftk_status plan_share(work *w, size_t index, ftk_error *err) {
    const fti_bench_kernel_sizes *sizes = &w->lab->sizes;
    uint64_t room = sizes->stream_bytes / w->what->type_count / PAGE * PAGE;
    uint32_t elements, bytes;
    share *s = &w->shares[index];
    *s = (share){.type = w->what->types[index], .weights = w->lab->weights + index * room};
    const ftk_if_operators *op = w->lab->variants.list[0].backend->operators;
    if (op->activation_format(s->type, &s->formats) != FTK_OK ||
        !fti_type_block(s->type, &elements, &bytes))
        return fti_fail(err, FTK_E_UNSUPPORTED, "kernels: no operator reads weights of type %s",
                        fti_type_name(s->type));
    s->row_bytes = (uint64_t)sizes->cols / elements * bytes;
    if (!fit_share(w, s, room))
        return fti_fail(err, FTK_E_NO_MEMORY,
                        "kernels: a call on %s weights reads %" PRIu64 " bytes, but only %" PRIu64
                        " of memory may be used for it; free memory or name fewer types",
                        fti_type_name(s->type), call_bytes(s), room);
    s->outputs = (uint64_t)w->inputs * (w->what->grouped ? sizes->used : 1) * s->rows;
    w->outputs += s->calls * s->outputs;
    w->weight_bytes += s->calls * call_bytes(s);
    w->products += (double)(s->calls * s->outputs) * sizes->cols;
    return FTK_OK;
}

/* Every row uses `used` experts, all experts equally often. */
static void route(const work *w, share *s) {
    uint32_t pairs = w->inputs * w->lab->sizes.used;
    s->pairs = fti_cli_alloc((size_t)s->experts + 1 + pairs, sizeof *s->pairs);
    int32_t *list = s->pairs + s->experts + 1;
    size_t at = 0;
    for (uint32_t e = 0; e < s->experts; e++) {
        s->pairs[e] = (int32_t)at;
        for (uint32_t pair = e; pair < pairs; pair += s->experts) list[at++] = (int32_t)pair;
    }
    s->pairs[s->experts] = (int32_t)at;
}

static void allocate(work *w) {
    const fti_bench_kernel_sizes *sizes = &w->lab->sizes;
    const ftk_if_operators *op = w->lab->variants.list[0].backend->operators;
    uint64_t packed = op->activation_bytes(FTK_ACT_A32 | FTK_ACT_A256, w->inputs, sizes->cols);
    uint64_t state = 7;
    if (posix_memalign(&w->packed, 64, (size_t)packed) != 0) w->packed = NULL;
    w->x = fti_cli_alloc((size_t)w->inputs * sizes->cols, sizeof *w->x);
    for (size_t i = 0; i < (size_t)w->inputs * sizes->cols; i++) w->x[i] = random_unit(&state);
    w->y = fti_cli_alloc((size_t)w->outputs, sizeof *w->y);
    w->wanted = fti_cli_alloc((size_t)w->outputs, sizeof *w->wanted);
    float *y = w->y;
    for (size_t i = 0; i < w->what->type_count; i++) {
        w->shares[i].y = y;
        y += w->shares[i].calls * w->shares[i].outputs;
        route(w, &w->shares[i]);
    }
}

static void work_free(work *w) {
    free(w->x);
    free(w->packed);
    for (size_t i = 0; i < w->what->type_count; i++) free(w->shares[i].pairs);
    free(w->y);
    free(w->wanted);
}

static ftk_status work_init(work *w, const fti_bench_lab *lab, const fti_bench_kernel_case *what,
                            ftk_error *err) {
    const fti_bench_kernel_sizes *sizes = &lab->sizes;
    *w = (work){.lab = lab, .what = what};
    w->inputs = what->prefill ? sizes->prefill_rows : 1;
    for (size_t i = 0; i < what->type_count; i++) FTI_TRY(plan_share(w, i, err));
    allocate(w);
    if (!w->packed) return fti_no_memory(err, w->inputs, "packed activations");
    for (size_t i = 0; i < what->type_count; i++) fill_share(w, &w->shares[i]);
    return FTK_OK;
}

/* ---- one sample ---- */

static ftk_status call_matmul(const work *w, const share *s, const fti_bench_variant *v,
                              const ftk_activation *act, uint64_t call) {
    const ftk_weight weight = {(uint32_t)sizeof weight,
                               s->type,
                               FTK_LAYOUT_RAW,
                               0,
                               s->rows,
                               w->lab->sizes.cols,
                               s->row_bytes,
                               s->weights + call * call_bytes(s)};
    const ftk_op_matmul op = {&weight, *act, s->y + call * s->outputs, s->rows, 0, 0};
    return v->backend->operators->matmul(v->stream, &op);
}

static ftk_status call_grouped(const work *w, const share *s, const fti_bench_variant *v,
                               const ftk_activation *act, uint64_t call) {
    uint32_t used = w->lab->sizes.used;
    int32_t *list = s->pairs + s->experts + 1;
    const ftk_bank_view bank = {
        .struct_size = (uint32_t)sizeof bank,
        .type = s->type,
        .layout = FTK_LAYOUT_RAW,
        .experts = s->experts,
        .rows = s->rows,
        .cols = w->lab->sizes.cols,
        .row_bytes = s->row_bytes,
        .expert_stride = s->rows * s->row_bytes,
        .base = s->weights + call * call_bytes(s),
    };
    /* Experts and their probabilities matter to other operators only. */
    const ftk_routing routing = {list, w->x, s->pairs, list, w->inputs, used, s->experts, 0};
    const ftk_op_grouped_matmul op = {&bank,   *act, routing, s->y + call * s->outputs,
                                      s->rows, used, 0};
    return v->backend->operators->grouped_matmul(v->stream, &op);
}

/* Seconds of a share's calls. */
static ftk_status run_share(const work *w, const share *s, const fti_bench_variant *v,
                            double *seconds) {
    const ftk_op_quantize quantize = {
        {w->x, w->packed, w->lab->sizes.cols, w->inputs, w->lab->sizes.cols, s->formats, 0}};
    FTI_TRY(v->backend->operators->quantize(v->stream, &quantize));
    FTI_TRY(v->backend->ops->stream_sync(v->stream, NULL));
    double start = fti_bench_seconds();
    for (uint64_t call = 0; call < s->calls; call++)
        FTI_TRY((w->what->grouped ? call_grouped : call_matmul)(w, s, v, &quantize.act, call));
    FTI_TRY(v->backend->ops->stream_sync(v->stream, NULL));
    *seconds += fti_bench_seconds() - start;
    return FTK_OK;
}

static ftk_status run_sample(const work *w, const fti_bench_variant *v, double *seconds,
                             ftk_error *err) {
    *seconds = 0.0;
    memset(w->y, UNWRITTEN, w->outputs * sizeof *w->y);
    for (size_t i = 0; i < w->what->type_count; i++) {
        ftk_status status = run_share(w, &w->shares[i], v, seconds);
        if (status != FTK_OK)
            return fti_fail(err, status, "kernels: %s of %s with %s: %s",
                            w->what->grouped ? "grouped_matmul" : "matmul",
                            fti_type_name(w->shares[i].type), v->name, ftk_status_text(status));
    }
    return FTK_OK;
}

static uint32_t bits_at(const float *values, uint64_t i) {
    uint32_t bits;
    memcpy(&bits, values + i, sizeof bits);
    return bits;
}

/* The hash is of the variant's own results; once they have differed it stays. */
static void compare_bits(const work *w, const fti_bench_variant *v, fti_bench_row *row) {
    if (row->void_reason) return;
    (void)snprintf(row->hash, sizeof row->hash, "%016" PRIx64,
                   (uint64_t)XXH3_64bits(w->y, w->outputs * sizeof *w->y));
    if (memcmp(w->y, w->wanted, w->outputs * sizeof *w->y) == 0) return;
    uint64_t i = 0;
    while (bits_at(w->y, i) == bits_at(w->wanted, i)) i++;
    fti_bench_row_void(row,
                       "bits differ: %s gives 0x%08x as result %" PRIu64 " of %" PRIu64
                       ", the reference 0x%08x",
                       v->name, bits_at(w->y, i), i, w->outputs, bits_at(w->wanted, i));
}

/* ---- a series ---- */

typedef struct series {
    double *seconds; /* [variant][sample], warm-up first */
    size_t counts[FTI_BENCH_VARIANTS];
    size_t samples; /* that were wanted */
    double floor;   /* per second: bytes in decode, products in prefill */
    const char *floor_name;
} series;

static void measure_floor(const work *w, series *s) {
    fti_pool *pool = pool_of(&w->lab->variants);
    double rate;
    if (!w->what->prefill) {
        uint64_t bytes = w->weight_bytes / PAGE * PAGE;
        rate = (double)bytes / fti_bench_read(pool, w->lab->weights, bytes);
        s->floor_name = "read bandwidth";
    } else if (w->shares[0].formats == 0) {
        rate = fti_bench_float_peak(pool, &s->floor_name);
    } else {
        rate = fti_bench_integer_peak(pool, &s->floor_name);
    }
    if (rate > s->floor) s->floor = rate;
}

/* A slow variant, such as a reference without vectors, would hold up all others. */
static bool has_enough(const work *w, const series *s, size_t variant) {
    double total = 0.0;
    for (size_t i = 0; i < s->counts[variant]; i++) total += s->seconds[variant * s->samples + i];
    return total > w->lab->sizes.variant_seconds &&
           s->counts[variant] >= w->lab->sizes.warmup + LEAST_SAMPLES;
}

static ftk_status run_variants(const work *w, series *s, fti_bench_row *rows, ftk_error *err) {
    const fti_bench_variants *variants = &w->lab->variants;
    for (size_t v = 0; v < variants->count; v++) {
        if (has_enough(w, s, v)) continue;
        double *seconds = &s->seconds[v * s->samples + s->counts[v]];
        FTI_TRY(run_sample(w, &variants->list[v], seconds, err));
        if (s->counts[0] == 0) memcpy(w->wanted, w->y, w->outputs * sizeof *w->y);
        s->counts[v]++;
        compare_bits(w, &variants->list[v], &rows[v]);
    }
    return FTK_OK;
}

static ftk_status run_round(const work *w, series *s, fti_bench_row *rows, ftk_error *err) {
    char reason[160];
    fti_bench_stamp begin = fti_bench_stamp_now(&fti_bench_system_clock);
    measure_floor(w, s);
    FTI_TRY(run_variants(w, s, rows, err));
    fti_bench_stamp end = fti_bench_stamp_now(&fti_bench_system_clock);
    const char *fault = fti_bench_clock_fault(&begin, &end, reason, sizeof reason);
    for (size_t v = 0; fault && v < w->lab->variants.count; v++)
        fti_bench_row_void(&rows[v], "%s", fault);
    return FTK_OK;
}

/* ---- rows ---- */

static void describe_case(const work *w, const fti_bench_variant *v, const series *s,
                          fti_bench_row *row) {
    const fti_bench_kernel_sizes *sizes = &w->lab->sizes;
    json_t *types = json_array();
    for (size_t i = 0; i < w->what->type_count; i++)
        (void)json_array_append_new(types, json_string(fti_type_name(w->what->types[i])));
    fti_bench_row_set(
        &row->settings,
        json_pack("{s:s, s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "operation",
                  w->what->grouped ? "grouped_matmul" : "matmul", "weights", w->what->label,
                  "types", types, "shape", w->what->prefill ? "prefill" : "decode", "rows",
                  (json_int_t)w->inputs, "columns", (json_int_t)sizes->cols, "weight_rows",
                  (json_int_t)w->shares[0].rows, "experts", (json_int_t)w->shares[0].experts,
                  "weight_bytes", (json_int_t)w->weight_bytes, "repeat", (json_int_t)sizes->repeat,
                  "warmup", (json_int_t)sizes->warmup));
    fti_bench_row_set(&row->knobs,
                      json_pack("{s:s, s:I}", "backend.kernels", v->name, "backend.threads",
                                (json_int_t)w->lab->variants.threads));
    fti_bench_row_set(&row->details, json_pack("{s:s, s:f, s:s}", "floor", s->floor_name,
                                               "floor_rate", s->floor / GIGA, "floor_unit",
                                               w->what->prefill ? "GMAC/s" : "GB/s"));
}

enum { BYTES, PRODUCTS, PERCENT, QUANTITIES };

static const struct {
    const char *name;
    const char *unit;
} quantities[QUANTITIES] = {
    {"weights_gb_s", "GB/s"}, {"gmac_s", "GMAC/s"}, {"percent_of_floor", "%"}};

static void quantify(const work *w, const series *s, double seconds, double out[QUANTITIES]) {
    out[BYTES] = (double)w->weight_bytes / seconds / GIGA;
    out[PRODUCTS] = w->products / seconds / GIGA;
    out[PERCENT] = 100.0 * (w->what->prefill ? out[PRODUCTS] : out[BYTES]) * GIGA / s->floor;
}

static void fill_row(const work *w, const series *s, size_t variant, fti_bench_row *row) {
    size_t warmup = w->lab->sizes.warmup;
    size_t measured = s->counts[variant] - warmup;
    double *values = fti_cli_alloc(QUANTITIES * measured, sizeof *values);
    json_t *runs = json_array();
    for (size_t i = 0; i < s->counts[variant]; i++) {
        double q[QUANTITIES];
        quantify(w, s, s->seconds[variant * s->samples + i], q);
        json_t *run = json_pack("{s:b}", "warmup", i < warmup);
        for (size_t k = 0; k < QUANTITIES; k++) {
            (void)json_object_set_new(run, quantities[k].name, json_real(q[k]));
            if (i >= warmup) values[k * measured + i - warmup] = q[k];
        }
        (void)json_array_append_new(runs, run);
    }
    for (size_t k = 0; k < QUANTITIES; k++)
        fti_bench_row_figure(row, quantities[k].name, quantities[k].unit, false,
                             values + k * measured, measured);
    fti_bench_row_set(&row->runs, runs);
    fti_bench_row_check(row);
    describe_case(w, &w->lab->variants.list[variant], s, row);
    free(values);
}

static ftk_status run_series(const work *w, bool (*stop)(void), fti_bench_row *rows,
                             ftk_error *err) {
    const fti_bench_variants *variants = &w->lab->variants;
    series s = {.samples = (size_t)w->lab->sizes.repeat + w->lab->sizes.warmup};
    s.seconds = fti_cli_alloc(s.samples * variants->count, sizeof *s.seconds);
    ftk_status status = FTK_OK;
    for (size_t i = 0; i < s.samples && status == FTK_OK; i++)
        status = stop && stop() ? FTK_E_CANCELLED : run_round(w, &s, rows, err);
    if (status == FTK_E_CANCELLED) status = fti_fail(err, status, "kernels: interrupted");
    for (size_t v = 0; v < variants->count && status == FTK_OK; v++) fill_row(w, &s, v, &rows[v]);
    free(s.seconds);
    return status;
}

ftk_status fti_bench_lab_measure(const fti_bench_lab *lab, const fti_bench_kernel_case *what,
                                 bool (*stop)(void), fti_bench_row *rows, ftk_error *err) {
    work w;
    for (size_t v = 0; v < lab->variants.count; v++)
        fti_bench_row_init(&rows[v], "kernels", FTI_BENCH_BACKEND);
    ftk_status status = work_init(&w, lab, what, err);
    if (status == FTK_OK) status = run_series(&w, stop, rows, err);
    work_free(&w);
    return status;
}
