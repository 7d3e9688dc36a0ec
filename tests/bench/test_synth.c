/*
 * test_synth.c: synthetic checkpoints. Their bytes follow from the description alone, other
 * engines' figures stay comparable, the engine runs them, and routing is what was stated:
 * the experts that the engine takes are recorded as it runs.
 */
#include "loader/scratch.h"
#include "support/engine_fixture.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include <xxhash.h>

#include "backend/cpu/cpu.h"
#include "cli/output.h"
#include "freetoken/device/quant.h"
#include "synth_plan.h"
#include "synth_routing.h"
#include "synth_write.h"

const char fti_cli_program_name[] = "test_synth";

#define TARGET 0.68

/* ---- what the engine routes ---- */

#define MOST_LAYERS 4u
#define MOST_ROUTED 4096u

static struct {
    bool on;
    uint32_t next_layer;
    size_t count[MOST_LAYERS]; /* experts */
    int32_t experts[MOST_LAYERS][MOST_ROUTED];
} record;

static void keep_experts(const void *args, uint64_t begin, uint64_t end) {
    const ftk_routing *r = args;
    size_t count = (size_t)r->rows * r->used, *at = &record.count[record.next_layer];
    (void)begin;
    (void)end;
    if (!record.on) return;
    if (*at + count <= MOST_ROUTED)
        memcpy(&record.experts[record.next_layer][*at], r->experts, count * sizeof *r->experts);
    *at += count;
    record.next_layer = (record.next_layer + 1) % MOST_LAYERS;
}

ftk_status __real_fti_cpu_enqueue(ftk_stream *stream, ftk_cpu_kernel function, const void *args,
                                  size_t args_bytes, uint64_t items, uint64_t grain);
ftk_status __wrap_fti_cpu_enqueue(ftk_stream *stream, ftk_cpu_kernel function, const void *args,
                                  size_t args_bytes, uint64_t items, uint64_t grain);

/* The linker puts this in the place of the backend's function: after each routing it adds
 * a kernel that copies the ids, so that replayed graphs are recorded too. */
ftk_status __wrap_fti_cpu_enqueue(ftk_stream *stream, ftk_cpu_kernel function, const void *args,
                                  size_t args_bytes, uint64_t items, uint64_t grain) {
    ftk_status status = __real_fti_cpu_enqueue(stream, function, args, args_bytes, items, grain);
    const ftk_op_route *op = args;
    if (status != FTK_OK || function != fti_cpu_stream_backend(stream)->kernels.route)
        return status;
    return __real_fti_cpu_enqueue(stream, keep_experts, &op->routing, sizeof op->routing, 1, 1);
}

static void start_record(void) {
    memset(&record, 0, sizeof record);
    record.on = true;
}

/* ---- helpers ---- */

static fti_synth_description tiny(double rate) {
    fti_synth_description d;
    ftk_error err = FTK_ERROR_INIT;
    assert_true(fti_synth_describe("tiny", &d));
    if (rate > 0) expect_status(fti_synth_calibrate(&d, rate, &err), FTK_OK, &err, "");
    return d;
}

static fti_synth_plan plan_of(const fti_synth_description *d) {
    fti_synth_plan plan;
    ftk_error err = FTK_ERROR_INIT;
    expect_status(fti_synth_plan_make(d, &plan, &err), FTK_OK, &err, "");
    return plan;
}

static void write_plan(const fti_synth_plan *plan, const char *path, uint32_t threads) {
    ftk_error err = FTK_ERROR_INIT;
    fti_synth_job job = {.plan = plan, .path = path, .threads = threads};
    expect_status(fti_synth_write_file(&job, &err), FTK_OK, &err, "");
}

static size_t entries_in_scratch(void) {
    size_t count = 0;
    DIR *folder = opendir(scratch);
    assert_non_null(folder);
    for (struct dirent *e; (e = readdir(folder)) != NULL;) count += e->d_name[0] != '.';
    assert_int_equal(closedir(folder), 0);
    return count;
}

/* ---- bytes ---- */

static void threads_and_ranges_change_no_byte(void **state) {
    (void)state;
    fti_synth_description d = tiny(TARGET);
    fti_synth_plan plan = plan_of(&d);
    uint8_t *whole = calloc(plan.file_bytes, 1);
    assert_non_null(whole);
    /* No range of 40009 bytes ends where a block does. */
    for (uint64_t at = 0; at < plan.file_bytes; at += 40009)
        fti_synth_plan_read(&plan, at,
                            plan.file_bytes - at < 40009 ? (size_t)(plan.file_bytes - at) : 40009,
                            whole + at);
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        size_t size;
        write_plan(&plan, in_scratch("tiny.gguf").s, threads);
        uint8_t *file = read_file(in_scratch("tiny.gguf").s, &size);
        assert_int_equal(size, plan.file_bytes);
        assert_memory_equal(file, whole, size);
        free(file);
    }
    free(whole);
    fti_synth_plan_free(&plan);
}

/* Header, and both ends of each tensor: they lie in different streams in large ones. */
static uint64_t digest(const fti_synth_description *d) {
    static uint8_t part[4096];
    fti_synth_plan plan = plan_of(d);
    XXH3_state_t *hash = XXH3_createState();
    assert_int_equal(XXH3_64bits_reset(hash), XXH_OK);
    (void)XXH3_64bits_update(hash, plan.header.data, plan.header.size);
    for (size_t i = 0; i < plan.tensor_count; i++) {
        const fti_synth_tensor *t = &plan.tensors[i];
        uint64_t begin = plan.header.size + t->offset;
        size_t size = t->bytes < sizeof part ? (size_t)t->bytes : sizeof part;
        fti_synth_plan_read(&plan, begin, size, part);
        (void)XXH3_64bits_update(hash, part, size);
        fti_synth_plan_read(&plan, begin + t->bytes - size, size, part);
        (void)XXH3_64bits_update(hash, part, size);
    }
    uint64_t result = XXH3_64bits_digest(hash);
    (void)XXH3_freeState(hash);
    fti_synth_plan_free(&plan);
    return result;
}

/* Figures refer to these files by kind and seed: what changes a byte changes a number
 * here, on purpose or not at all. */
static void known_files_stay_what_they_are(void **state) {
    (void)state;
    static const struct {
        const char *kind;
        double rate;
        uint64_t wanted;
    } files[] = {{"tiny", 0, 0xcd0dc37363ff7e4b},    {"tiny", TARGET, 0xb8b652ce772eea2f},
                 {"medium", 0, 0x97008b6e6cfdc7df},  {"medium", TARGET, 0x91a30cb72765746b},
                 {"35b-a3b", 0, 0xf456846c16b77687}, {"122b-a10b", 0, 0x380afc89c8c946e8}};
    for (size_t i = 0; i < FTI_COUNT(files); i++) {
        fti_synth_description d;
        ftk_error err = FTK_ERROR_INIT;
        assert_true(fti_synth_describe(files[i].kind, &d));
        if (FIXTURE_SLOW_BUILD && files[i].rate > 0 && i > 1) continue;
        if (files[i].rate > 0)
            expect_status(fti_synth_calibrate(&d, files[i].rate, &err), FTK_OK, &err, "");
        uint64_t found = digest(&d);
        if (found != files[i].wanted)
            fail_msg("%s at %.2f: found %016llx, wanted %016llx", files[i].kind, files[i].rate,
                     (unsigned long long)found, (unsigned long long)files[i].wanted);
    }
}

static void seeds_change_every_weight_and_no_header(void **state) {
    (void)state;
    fti_synth_description d = tiny(0);
    fti_synth_plan a = plan_of(&d);
    d.seed = 2;
    fti_synth_plan b = plan_of(&d);
    assert_int_equal(a.header.size, b.header.size);
    assert_memory_equal(a.header.data, b.header.data, a.header.size);
    for (size_t i = 0; i < a.tensor_count; i++) {
        uint8_t left[16], right[16];
        uint64_t at = a.header.size + a.tensors[i].offset;
        fti_synth_plan_read(&a, at, sizeof left, left);
        fti_synth_plan_read(&b, at, sizeof right, right);
        assert_memory_not_equal(left, right, sizeof left);
    }
    fti_synth_plan_free(&a);
    fti_synth_plan_free(&b);
}

/* ---- values of blocks ---- */

static uint32_t decode_k(uint32_t type, const uint8_t *block, float *out) {
    ftk_k_block k;
    switch (type) {
    case FTK_TYPE_Q2_K: ftk_q2_k_decode(block, &k); break;
    case FTK_TYPE_Q3_K: ftk_q3_k_decode(block, &k); break;
    case FTK_TYPE_Q4_K: ftk_q4_k_decode(block, &k); break;
    case FTK_TYPE_Q5_K: ftk_q5_k_decode(block, &k); break;
    case FTK_TYPE_Q6_K: ftk_q6_k_decode(block, &k); break;
    default: ftk_iq4_xs_decode(block, &k); break;
    }
    ftk_k_values(&k, type == FTK_TYPE_Q2_K || type == FTK_TYPE_Q4_K || type == FTK_TYPE_Q5_K, out);
    return 256;
}

static uint32_t decode_leaf(uint32_t type, const uint8_t *block, float *out) {
    ftk_leaf leaf;
    switch (type) {
    case FTK_TYPE_Q8_0: ftk_q8_0_decode(block, &leaf); break;
    case FTK_TYPE_Q4_0: ftk_q4_0_decode(block, &leaf); break;
    case FTK_TYPE_Q4_1: ftk_q4_1_decode(block, &leaf); break;
    case FTK_TYPE_Q5_0: ftk_q5_0_decode(block, &leaf); break;
    case FTK_TYPE_Q5_1: ftk_q5_1_decode(block, &leaf); break;
    case FTK_TYPE_IQ4_NL: ftk_iq4_nl_decode(block, &leaf); break;
    default: ftk_mxfp4_decode(block, &leaf); break;
    }
    ftk_leaf_values(&leaf, type == FTK_TYPE_Q4_1 || type == FTK_TYPE_Q5_1, out);
    return 32;
}

static uint32_t decode(const fti_synth_type *type, const uint8_t *block, float *out) {
    ftk_nv_block nv;
    uint16_t half;
    memcpy(&half, block, sizeof half);
    switch (type->type) {
    case FTK_TYPE_F32: memcpy(out, block, sizeof *out); return 1;
    case FTK_TYPE_F16: *out = ftk_f16_to_f32(half); return 1;
    case FTK_TYPE_BF16: *out = ftk_bf16_to_f32(half); return 1;
    case FTK_TYPE_NVFP4:
        ftk_nvfp4_decode(block, &nv);
        ftk_nv_values(&nv, out);
        return 64;
    default:
        return type->elements == 256 ? decode_k(type->type, block, out)
                                     : decode_leaf(type->type, block, out);
    }
}

/* Scales are finite, the mean is nearly 0 and the deviation what was asked for. */
static void values_have_their_spread(void **state) {
    (void)state;
    for (uint32_t i = 0; i < fti_synth_type_count; i++) {
        const fti_synth_type *type = &fti_synth_types[i];
        fti_synth_values v = {type->type, FTI_SYNTH_WEIGHT, 0.022f};
        double sum = 0, squares = 0, count = 0;
        for (uint64_t b = 0; count < 65536; b++) {
            uint8_t block[FTI_SYNTH_MAX_BLOCK];
            float x[256];
            fti_synth_fill(&v, 7, b, 1, block);
            uint32_t n = decode(type, block, x);
            for (uint32_t k = 0; k < n; k++) sum += x[k], squares += (double)x[k] * x[k];
            count += n;
        }
        double deviation = sqrt(squares / count), mean = sum / count;
        double allowed = type->type == FTK_TYPE_MXFP4 || type->type == FTK_TYPE_NVFP4 ? 0.4 : 0.1;
        if (!(fabs(deviation / 0.022 - 1) < allowed) || !(fabs(mean) < 0.15 * 0.022))
            fail_msg("%s: mean %g, deviation %g", type->name, mean, deviation);
    }
}

/* ---- running ---- */

/* Logits are finite, differ, and name other tokens from one position to the next. */
static void check_logits(ftk_engine *engine, const int32_t *ids, size_t count) {
    size_t vocabulary = ftk_engine_vocabulary(engine), changes = 0, last = 0;
    float *logits = fixture_logits(engine, ids, count, 0);
    for (size_t t = 0; t < count; t++) {
        const float *row = logits + t * vocabulary;
        double sum = 0, squares = 0;
        size_t best = 0;
        for (size_t i = 0; i < vocabulary; i++) {
            assert_true(isfinite(row[i]));
            sum += (double)row[i];
            squares += (double)row[i] * (double)row[i];
            if (row[i] > row[best]) best = i;
        }
        double mean = sum / (double)vocabulary;
        double deviation = sqrt(squares / (double)vocabulary - mean * mean);
        if (deviation < 0.5 || deviation > 10) fail_msg("logits deviate by %g", deviation);
        changes += best != last;
        last = best;
    }
    assert_in_range(changes, count / 2, count);
    free(logits);
}

static void generate(ftk_engine *engine, const int32_t *ids, size_t count, uint32_t tokens) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
    options.max_tokens = tokens;
    options.ignore_end = 1;
    expect_status(ftk_generate(engine, ids, count, &options, &result, &err), FTK_OK, &err, "");
    assert_int_equal(result.tokens, tokens);
    assert_true(result.graph_replays > 0);
}

static double recorded_rate(const fti_synth_shape *s) {
    double sum = 0;
    for (uint32_t i = 0; i < s->layers; i++)
        sum += fti_synth_hit_rate(record.experts[i], record.count[i] / s->used, s->used,
                                  s->experts / FTI_SYNTH_SLOT_SHARE, 16);
    return sum / s->layers;
}

/* The beginning of English stories, or tokens drawn evenly. */
static int32_t *text_tokens(const ftk_engine *engine, size_t wanted) {
    size_t size, count;
    char *stories = fixture_read(FTK_TEST_DATA "/stories.txt", &size);
    int32_t *ids = fixture_tokenize(engine, stories, size < 8192 ? size : 8192, &count);
    free(stories);
    assert_in_range(count, wanted, SIZE_MAX);
    return ids;
}

#define TEXT_TOKENS (FIXTURE_SLOW_BUILD ? 96u : 512u)
#define PROMPT      8u

/* Hit rates of English text, of tokens drawn evenly, and of what the model generates. */
enum { TEXT, DRAWN, GENERATED, SOURCES };

/* Every token has been routed in every layer; in a skewed file, to the experts that are
 * computed without running it. */
static void expect_stated(const fti_synth_plan *plan, const int32_t *ids) {
    size_t wanted = (size_t)TEXT_TOKENS * plan->d.shape.used;
    int32_t *stated = calloc(wanted, sizeof *stated);
    assert_non_null(stated);
    for (uint32_t i = 0; i < plan->d.shape.layers; i++) {
        assert_int_equal(record.count[i], wanted);
        if (!plan->kept_channels) continue;
        fti_synth_route(plan, i, ids, TEXT_TOKENS, stated);
        assert_memory_equal(record.experts[i], stated, wanted * sizeof *stated);
    }
    free(stated);
}

static void run_file(const fti_synth_description *d, double rates[SOURCES]) {
    fti_synth_plan plan = plan_of(d);
    write_plan(&plan, in_scratch("run.gguf").s, 0);
    ftk_engine *engine = fixture_open(in_scratch("run.gguf").s, NULL);
    int32_t *ids = text_tokens(engine, TEXT_TOKENS);
    for (int source = TEXT; source <= DRAWN; source++) {
        if (source == DRAWN) fti_synth_draw_tokens(&plan, 9, ids, TEXT_TOKENS);
        start_record();
        check_logits(engine, ids, TEXT_TOKENS);
        record.on = false;
        expect_stated(&plan, ids);
        rates[source] = recorded_rate(&plan.d.shape);
    }
    start_record();
    generate(engine, ids, PROMPT, TEXT_TOKENS - PROMPT + 1);
    record.on = false;
    rates[GENERATED] = recorded_rate(&plan.d.shape);
    for (uint32_t i = 0; i < plan.d.shape.layers; i++)
        assert_int_equal(record.count[i], TEXT_TOKENS * plan.d.shape.used);
    free(ids);
    ftk_engine_close(engine);
    fti_synth_plan_free(&plan);
}

/* A cache of a quarter of the experts that the engine takes hits as often as was asked for;
 * without skew it does not. */
static void engine_routes_as_stated(void **state) {
    (void)state;
    static const char *const names[] = {"text", "drawn tokens", "generated tokens"};
    double even[SOURCES], skewed[SOURCES];
    fti_synth_description uniform = tiny(0), d = tiny(TARGET);
    run_file(&uniform, even);
    run_file(&d, skewed);
    for (int i = 0; i < SOURCES; i++) {
        print_message("hit rate of %s: uniform %.3f, skewed %.3f\n", names[i], even[i], skewed[i]);
        assert_true(fabs(skewed[i] - TARGET) < 0.07);
        assert_true(even[i] < skewed[i] - 0.2);
    }
}

static void rates_are_what_was_asked_for(void **state) {
    (void)state;
    static const double rates[] = {0.60, 0.68, 0.75};
    for (size_t i = 0; i < FTI_COUNT(rates); i++) {
        fti_synth_description d = tiny(rates[i]);
        fti_synth_plan plan = plan_of(&d);
        fti_synth_rates r;
        fti_synth_measure(&plan, &r);
        if (fabs(r.mean - rates[i]) > 0.02 || r.low > r.mean || r.high < r.mean)
            fail_msg("found %.3f (%.3f to %.3f), wanted %.3f", r.mean, r.low, r.high, rates[i]);
        assert_true(r.high - r.low < 0.1); /* no layer is far from the mean */
        assert_int_equal(r.slots, 2);
        assert_true(fabs(r.even - 0.2) < 0.03);
        fti_synth_plan_free(&plan);
    }
}

/* Three slots, by hand: 1 2 3 miss, 1 hits, 4 pushes 2 out, 2 misses and pushes 3 out. */
static void caches_drop_what_was_used_least_recently(void **state) {
    (void)state;
    static const int32_t experts[] = {1, 2, 3, 1, 4, 2, 1, 4, 3};
    assert_true(fabs(fti_synth_hit_rate(experts, 9, 1, 3, 0) - 3.0 / 9) < 1e-9);
    assert_true(fabs(fti_synth_hit_rate(experts, 9, 1, 3, 3) - 3.0 / 6) < 1e-9);
    static const int32_t pairs[] = {1, 2, 2, 1, 3, 1};
    assert_true(fabs(fti_synth_hit_rate(pairs, 3, 2, 2, 0) - 3.0 / 6) < 1e-9);
}

/* ---- types ---- */

static void types_are_given_by_name(void **state) {
    (void)state;
    fti_synth_message m;
    ftk_error err = FTK_ERROR_INIT;
    fti_synth_plan plan;
    fti_synth_description d = tiny(0);
    assert_null(fti_synth_set_types(&d, "down=Q4_K,shared=IQ4_XS,embedding=BF16", &m));
    assert_int_equal(d.types[FTI_SYNTH_CLASS_DOWN], FTK_TYPE_Q4_K);
    assert_int_equal(d.types[FTI_SYNTH_CLASS_SHARED], FTK_TYPE_IQ4_XS);
    assert_int_equal(d.types[FTI_SYNTH_CLASS_EMBEDDING], FTK_TYPE_BF16);
    static const struct {
        const char *list, *part;
    } bad[] = {{"down", "'down': wanted CLASS=TYPE"},
               {"", "wanted CLASS=TYPE"},
               {"down=Q4_K,", "wanted CLASS=TYPE"},
               {"router=Q4_K", "'router=Q4_K': wanted CLASS=TYPE with a class of embedding"},
               {"down=Q9", "'down=Q9': wanted F32"},
               {"output=MIX", "'output=MIX': wanted F32"}};
    for (size_t i = 0; i < FTI_COUNT(bad); i++) {
        const char *problem = fti_synth_set_types(&d, bad[i].list, &m);
        if (!problem || !strstr(problem, bad[i].part)) fail_msg("'%s': %s", bad[i].list, m.text);
    }
    d = tiny(TARGET);
    assert_null(fti_synth_set_types(&d, "embedding=Q6_K", &m));
    expect_status(fti_synth_plan_make(&d, &plan, &err), FTK_E_ARGUMENT, &err,
                  "token_embd.weight: type Q6_K cannot be skewed");
    d = tiny(0);
    d.shape.ff = 128;
    expect_status(fti_synth_plan_make(&d, &plan, &err), FTK_E_ARGUMENT, &err,
                  "blk.0.ffn_down_exps.weight: type Q5_K does not divide its rows");
}

/* ---- writing ---- */

static fti_synth_room little_room(int fd) {
    (void)fd;
    return (fti_synth_room){1 << 20, UINT64_C(1) << 40};
}

static fti_synth_room less_than_a_gibibyte_left(int fd) {
    (void)fd;
    return (fti_synth_room){UINT64_C(1) << 30, UINT64_C(1) << 34};
}

static fti_synth_room less_than_a_fiftieth_left(int fd) {
    (void)fd;
    return (fti_synth_room){UINT64_C(20) << 30, UINT64_C(1) << 40};
}

static fti_synth_room enough_left(int fd) {
    (void)fd;
    return (fti_synth_room){UINT64_C(21) << 30, UINT64_C(1) << 40};
}

static bool stop_at_once(void *user, uint64_t done, uint64_t total) {
    (void)user;
    assert_in_range(done, 1, total);
    return false;
}

/* A job that must fail leaves what was there before, and nothing beside it. */
static void expect_failure(const fti_synth_job *job, ftk_status wanted, const char *part) {
    ftk_error err = FTK_ERROR_INIT;
    size_t size;
    write_file(job->path, "old", 3, 0644);
    size_t before = entries_in_scratch(), descriptors = open_descriptors();
    expect_status(fti_synth_write_file(job, &err), wanted, &err, part);
    assert_int_equal(entries_in_scratch(), before);
    assert_int_equal(open_descriptors(), descriptors);
    unsigned char *old = read_file(job->path, &size);
    assert_int_equal(size, 3);
    assert_memory_equal(old, "old", 3);
    free(old);
}

/* A disk filled to its end stops everybody who writes there. */
static void keeps_a_reserve(void **state) {
    (void)state;
    text path = in_scratch("f.gguf");
    fti_synth_description d = tiny(0);
    fti_synth_plan plan = plan_of(&d);
    fti_synth_job job = {.plan = &plan, .path = path.s, .room = less_than_a_gibibyte_left};
    expect_failure(&job, FTK_E_DOES_NOT_FIT,
                   "has 1.0 GiB free, and a file of 7.7 MiB would leave less than the 1.0 GiB");
    job.room = less_than_a_fiftieth_left;
    expect_failure(&job, FTK_E_DOES_NOT_FIT, "less than the 20.5 GiB that are kept for others");
    ftk_error err = FTK_ERROR_INIT;
    job.room = enough_left;
    assert_int_equal(fti_synth_write_file(&job, &err), FTK_OK);
    job.sparse = true;
    job.room = less_than_a_gibibyte_left;
    assert_int_equal(fti_synth_write_file(&job, &err), FTK_OK);
    fti_synth_plan_free(&plan);
    assert_int_equal(unlink(path.s), 0);
}

static void failures_leave_no_file(void **state) {
    (void)state;
    text path = in_scratch("f.gguf");
    fti_synth_description d = tiny(0);
    fti_synth_plan plan = plan_of(&d);
    fti_synth_job job = {.plan = &plan, .path = path.s, .threads = 2, .room = little_room};
    expect_failure(&job, FTK_E_DOES_NOT_FIT, "has 1.0 MiB free, wanted 7.7 MiB");
    job.room = NULL;
    job.progress = stop_at_once;
    expect_failure(&job, FTK_E_CANCELLED, "interrupted");
    job.progress = NULL;
    struct rlimit whole, small = {1 << 20, RLIM_INFINITY};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &whole), 0);
    small.rlim_max = whole.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_failure(&job, FTK_E_IO, "File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &whole), 0);
    text nowhere = in_scratch("no/such/f.gguf");
    ftk_error err = FTK_ERROR_INIT;
    job.path = nowhere.s;
    expect_status(fti_synth_write_file(&job, &err), FTK_E_IO, &err, "cannot create: No such file");
    fti_synth_plan_free(&plan);
}

static void sparse_files_hold_a_header_and_zeros(void **state) {
    (void)state;
    struct stat info;
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine;
    text path = in_scratch("sparse.gguf");
    fti_synth_description d;
    assert_true(fti_synth_describe("122b-a10b", &d));
    fti_synth_plan plan = plan_of(&d);
    fti_synth_job job = {.plan = &plan, .path = path.s, .sparse = true};
    expect_status(fti_synth_write_file(&job, &err), FTK_OK, &err, "");
    assert_int_equal(stat(path.s, &info), 0);
    assert_int_equal(info.st_size, plan.file_bytes);
    assert_in_range(info.st_blocks * 512, plan.header.size / 2, plan.header.size + (4u << 20));
    static const char zeros[4096];
    char found[sizeof zeros], *header = malloc(plan.header.size);
    int fd = open(path.s, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(fd, header, plan.header.size, 0), plan.header.size);
    assert_memory_equal(header, plan.header.data, plan.header.size);
    assert_int_equal(pread(fd, found, sizeof found, (off_t)plan.header.size), sizeof found);
    assert_memory_equal(found, zeros, sizeof found);
    assert_int_equal(close(fd), 0);
    free(header);
    /* Its plan can be looked at where it could never run. */
    static const char *const room[] = {"memory.device", "200GiB", NULL};
    expect_status(fixture_try_open(path.s, room, FTK_OPEN_PLANNED, &engine, &err), FTK_OK, &err,
                  "");
    ftk_engine_close(engine);
    fti_synth_plan_free(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_and_ranges_change_no_byte),
        cmocka_unit_test(known_files_stay_what_they_are),
        cmocka_unit_test(seeds_change_every_weight_and_no_header),
        cmocka_unit_test(values_have_their_spread),
        cmocka_unit_test(engine_routes_as_stated),
        cmocka_unit_test(rates_are_what_was_asked_for),
        cmocka_unit_test(caches_drop_what_was_used_least_recently),
        cmocka_unit_test(types_are_given_by_name),
        cmocka_unit_test(keeps_a_reserve),
        cmocka_unit_test(failures_leave_no_file),
        cmocka_unit_test(sparse_files_hold_a_header_and_zeros),
    };
    return cmocka_run_group_tests_name("test_synth", tests, scratch_setup, scratch_teardown);
}
