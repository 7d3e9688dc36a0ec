/*
 * test_stream.c: memory, streams, events, captures and graphs, capabilities, and
 * the floating-point environment around work.
 */
#include "rig.h"

#include <fenv.h>
#include <math.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static const fti_backend_ops *ops(const rig *r) {
    return r->backend->ops;
}

static ftk_stream *new_stream(rig *r) {
    ftk_stream *s;
    assert_int_equal(ops(r)->stream_create(r->backend, &s, NULL), FTK_OK);
    return s;
}

static fti_event *new_event(rig *r) {
    fti_event *e;
    assert_int_equal(ops(r)->event_create(r->backend, &e, NULL), FTK_OK);
    return e;
}

/* A provider's kernel: out[i] = out[i] * 3 + in[i]. */
typedef struct affine {
    int64_t *out;
    const int64_t *in;
} affine;

static void affine_kernel(const void *args, uint64_t begin, uint64_t end) {
    const affine *a = args;
    for (uint64_t i = begin; i < end; i++) a->out[i] = a->out[i] * 3 + a->in[i];
}

static ftk_status launch(rig *r, ftk_stream *s, const affine *args, uint64_t items) {
    ftk_cpu_launch l = {sizeof l, sizeof *args, FTK_STR("test/affine"), affine_kernel, args, items};
    return r->backend->kernels->launch_cpu(s, &l);
}

/* ---- memory ---- */

static void fill_and_release(rig *r, const uint64_t *sizes, size_t count) {
    void *blocks[16];
    uint64_t used = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(ops(r)->alloc(r->backend, sizes[i], "a test", &blocks[i], NULL), FTK_OK);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 64, 0);
        for (uint64_t k = 0; k < sizes[i]; k++) assert_int_equal(((uint8_t *)blocks[i])[k], 0);
        memset(blocks[i], 0xff, sizes[i]);
        used += sizes[i];
        assert_int_equal(ops(r)->memory_used(r->backend), used);
    }
    for (size_t i = 0; i < count; i++) {
        ops(r)->release(r->backend, blocks[i], sizes[i]);
        used -= sizes[i];
        assert_int_equal(ops(r)->memory_used(r->backend), used);
    }
}

static void memory_is_zeroed_aligned_and_accounted(void **state) {
    (void)state;
    static const uint64_t sizes[] = {0, 1, 64, 4097, 1048575, 1048576, 5000001};
    rig r = rig_open(0);
    fill_and_release(&r, sizes, COUNT(sizes));
    fill_and_release(&r, sizes, COUNT(sizes)); /* used memory is zeroed as well */
    rig_close(&r);
}

static void impossible_allocation_fails(void **state) {
    (void)state;
    rig r = rig_open(0);
    void *out = &r;
    ftk_error error = FTK_ERROR_INIT;
    static const uint64_t sizes[] = {UINT64_MAX, (uint64_t)1 << 62, INT64_MAX};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        assert_int_equal(ops(&r)->alloc(r.backend, sizes[i], "expert slots", &out, &error),
                         FTK_E_NO_MEMORY);
        assert_non_null(strstr(error.message, "expert slots"));
        assert_ptr_equal(out, &r);
    }
    assert_int_equal(ops(&r)->memory_used(r.backend), 0);
    assert_true(ops(&r)->memory_available(r.backend) > 1 << 20);
    const void *adopted;
    assert_int_equal(ops(&r)->adopt(r.backend, sizes, sizeof sizes, &adopted), FTK_OK);
    assert_ptr_equal(adopted, sizes);
    rig_close(&r);
}

/* ---- capabilities and creation ---- */

static void capabilities(void **state) {
    (void)state;
    rig r = rig_open_as(UINT32_MAX, 2, false);
    rig masked = rig_open_as(0, 2, false);
    int64_t value = -1;
    assert_int_equal(ops(&r)->capability(r.backend, (ftk_str)FTK_STR("cpu.threads"), &value),
                     FTK_OK);
    assert_int_equal(value, 2);
    assert_int_equal(ops(&r)->capability(r.backend, (ftk_str)FTK_STR("cpu.thread"), &value),
                     FTK_E_NOT_FOUND);
    size_t count = 0;
    for (const char *name; (name = ops(&r)->capability_name(r.backend, count)); count++) {
        assert_int_equal(ops(&r)->capability(r.backend, fti_str(name), &value), FTK_OK);
        if (count == 0) continue;
        assert_int_equal(value, 1);
        assert_int_equal(ops(&masked)->capability(masked.backend, fti_str(name), &value),
                         FTK_E_NOT_FOUND);
    }
    assert_null(ops(&r)->capability_name(r.backend, count + 1));
    assert_null(ops(&masked)->capability_name(masked.backend, 1));
#if defined(__x86_64__)
    bool avx2 = ops(&r)->capability(r.backend, (ftk_str)FTK_STR("cpu.avx2"), &value) == FTK_OK;
    assert_int_equal(avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
#elif defined(__aarch64__)
    bool neon = ops(&r)->capability(r.backend, fti_str("cpu.neon_dotprod"), &value) == FTK_OK;
    uint64_t features; /* not what the backend asks: a register of the processor */
    __asm__("mrs %0, id_aa64isar0_el1" : "=r"(features));
    assert_int_equal(neon, (features >> 44 & 15u) != 0);
#endif
    rig_close(&r);
    rig_close(&masked);
}

#if defined(__x86_64__)
static bool runs_avx512_vnni(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

/* The kernel tests compare bits for one mask of each table; here every mask is held to the
 * table that it stands for, by what has run. */
static void each_mask_runs_its_kernels(void **state) {
    (void)state;
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!avx2) print_message("skip: this processor has no AVX2\n");
    if (!runs_avx512_vnni()) print_message("skip: this processor has no AVX-512 with VNNI\n");
    for (uint32_t mask = 0; mask < 8; mask++) {
        rig r = rig_open_as(mask, 1, false);
        float x[4] = {0};
        ftk_op_swiglu op = {.gate = x, .up = x, .y = x, .rows = 1, .n = 4};
        fti_stream_counts counts;
        assert_int_equal(r.op->swiglu(r.stream, &op), FTK_OK);
        assert_int_equal(ops(&r)->stream_sync(r.stream, NULL), FTK_OK);
        ops(&r)->stream_counts(r.stream, &counts);
        bool vector = avx2 && (mask & FTI_CPU_MASK_AVX2), widest = vector && mask == 7;
        assert_int_equal(counts.reference, !vector);
        assert_int_equal(counts.vector, vector);
        assert_int_equal(counts.avx512, widest && runs_avx512_vnni());
        rig_close(&r);
    }
}
#endif

/* ---- copies and launches ---- */

static void copies_of_any_size(void **state) {
    (void)state;
    static const uint64_t sizes[] = {0, 1, 262143, 262144, 262145, 3000000};
    rig r = rig_open_as(0, 4, false);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        guarded device = guarded_new(sizes[i]);
        guarded back = guarded_new(sizes[i]);
        uint8_t *host = malloc(sizes[i] + 1);
        uint64_t seed = i + 1;
        for (uint64_t k = 0; k < sizes[i]; k++) host[k] = (uint8_t)rnd(&seed);
        assert_int_equal(ops(&r)->upload(r.stream, device.data, host, sizes[i]), FTK_OK);
        assert_int_equal(ops(&r)->download(r.stream, back.data, device.data, sizes[i]), FTK_OK);
        assert_int_equal(ops(&r)->stream_sync(r.stream, NULL), FTK_OK);
        assert_memory_equal(back.data, host, sizes[i]);
        assert_int_equal(ops(&r)->clear(r.stream, device.data, sizes[i]), FTK_OK);
        for (uint64_t k = 0; k < sizes[i]; k++) assert_int_equal(((uint8_t *)device.data)[k], 0);
        free(host);
        guarded_free(&device);
        guarded_free(&back);
    }
    assert_int_equal(ops(&r)->clear(r.stream, NULL, 1), FTK_E_ARGUMENT);
    rig_close(&r);
}

static void launch_checks_its_arguments(void **state) {
    (void)state;
    rig r = rig_open(0);
    int64_t out = 1;
    int64_t in = 5;
    affine args = {&out, &in};
    const ftk_cpu_launch good = {sizeof good,   sizeof args, FTK_STR("test/affine"),
                                 affine_kernel, &args,       1};
    ftk_cpu_launch bad[4] = {good, good, good, good};
    bad[0].struct_size = 8;
    bad[1].function = NULL;
    bad[2].args_bytes = FTK_KERNEL_ARGS_MAX + 1;
    bad[3].args = NULL;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(r.backend->kernels->launch_cpu(r.stream, &bad[i]), FTK_E_ARGUMENT);
    assert_int_equal(out, 1);
    assert_int_equal(r.backend->kernels->launch_cpu(r.stream, &good), FTK_OK);
    assert_int_equal(out, 8);
    rig_close(&r);
}

/* ---- graphs ---- */

enum { N = 1000 };

/* Work on one stream: a copy in, two kernels, an operator, a copy out. */
typedef struct pipeline {
    int64_t host_in[N], device_in[N], device_out[N], host_out[N];
    float x[N], y[N], w[N];
} pipeline;

static void enqueue_pipeline(rig *r, ftk_stream *s, pipeline *p) {
    affine args = {p->device_out, p->device_in};
    ftk_op_rms_norm norm = {p->x, p->w, p->y, 100, 100, 100, 100, N / 100, 1, 100, 1e-6f};
    assert_int_equal(ops(r)->upload(s, p->device_in, p->host_in, sizeof p->host_in), FTK_OK);
    assert_int_equal(ops(r)->clear(s, p->device_out, sizeof p->device_out), FTK_OK);
    assert_int_equal(launch(r, s, &args, N), FTK_OK);
    assert_int_equal(launch(r, s, &args, N), FTK_OK);
    assert_int_equal(r->op->rms_norm(s, &norm), FTK_OK);
    assert_int_equal(ops(r)->download(s, p->host_out, p->device_out, sizeof p->host_out), FTK_OK);
    memset(&args, 0xee, sizeof args); /* arguments were copied */
    memset(&norm, 0xee, sizeof norm);
}

static void fill_pipeline(pipeline *p, uint64_t seed) {
    for (int i = 0; i < N; i++) p->host_in[i] = (int64_t)rnd(&seed);
    rnd_floats(&seed, p->x, N);
    rnd_floats(&seed, p->w, N);
}

static void graph_equals_eager(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(setups); i++) {
        rig r = rig_open(i);
        static pipeline captured;
        static pipeline eager;
        fti_graph *graph;
        memset(&captured, 0, sizeof captured);
        assert_int_equal(ops(&r)->capture_begin(r.stream), FTK_OK);
        enqueue_pipeline(&r, r.stream, &captured);
        for (int k = 0; k < N; k++) assert_int_equal(captured.host_out[k], 0);
        assert_int_equal(ops(&r)->capture_end(r.stream, &graph, NULL), FTK_OK);
        assert_int_equal(ops(&r)->graph_nodes(graph), 6);
        for (uint64_t seed = 1; seed <= 3; seed++) {
            fill_pipeline(&captured, seed);
            fill_pipeline(&eager, seed);
            assert_int_equal(ops(&r)->graph_launch(r.stream, graph), FTK_OK);
            enqueue_pipeline(&r, r.stream, &eager);
            assert_int_equal(ops(&r)->stream_sync(r.stream, NULL), FTK_OK);
            assert_memory_equal(captured.host_out, eager.host_out, sizeof eager.host_out);
            assert_int_equal(eager.host_out[0], 4 * eager.host_in[0]);
            assert_same_floats(captured.y, eager.y, N, "replayed norm");
        }
        ops(&r)->graph_destroy(graph);
        rig_close(&r);
    }
}

static void capture_must_fail(rig *r, const char *why) {
    fti_graph *graph = NULL;
    ftk_error error = FTK_ERROR_INIT;
    assert_int_equal(ops(r)->capture_end(r->stream, &graph, &error), FTK_E_STATE);
    assert_null(graph);
    if (!strstr(error.message, why)) fail_msg("'%s' does not say '%s'", error.message, why);
    /* and everything works as before */
    static pipeline p;
    fill_pipeline(&p, 5);
    enqueue_pipeline(r, r->stream, &p);
    assert_int_equal(p.host_out[7], 4 * p.host_in[7]);
    assert_int_equal(ops(r)->capture_begin(r->stream), FTK_OK);
    enqueue_pipeline(r, r->stream, &p);
    assert_int_equal(ops(r)->capture_end(r->stream, &graph, &error), FTK_OK);
    ops(r)->graph_destroy(graph);
}

static void illegal_acts_invalidate_a_capture(void **state) {
    (void)state;
    rig r = rig_open(1);
    fti_graph *graph;
    affine args = {NULL, NULL};
    ftk_op_swiglu swiglu = {NULL, NULL, NULL, 0, 0, 0, 1, 1};
    assert_int_equal(ops(&r)->capture_end(r.stream, &graph, NULL), FTK_E_STATE);

    assert_int_equal(ops(&r)->capture_begin(r.stream), FTK_OK);
    assert_int_equal(r.op->swiglu(r.stream, &swiglu), FTK_E_ARGUMENT);
    capture_must_fail(&r, "refused arguments");

    assert_int_equal(ops(&r)->capture_begin(r.stream), FTK_OK);
    assert_int_equal(ops(&r)->upload(r.stream, NULL, &args, 8), FTK_E_ARGUMENT);
    capture_must_fail(&r, "refused arguments");

    assert_int_equal(ops(&r)->capture_begin(r.stream), FTK_OK);
    assert_int_equal(ops(&r)->stream_sync(r.stream, NULL), FTK_E_STATE);
    capture_must_fail(&r, "stream_sync");

    assert_int_equal(ops(&r)->capture_begin(r.stream), FTK_OK);
    assert_int_equal(ops(&r)->capture_begin(r.stream), FTK_E_STATE);
    capture_must_fail(&r, "capture_begin");

    assert_int_equal(ops(&r)->capture_begin(r.stream), FTK_OK);
    assert_int_equal(ops(&r)->capture_end(r.stream, &graph, NULL), FTK_OK);
    assert_int_equal(ops(&r)->graph_nodes(graph), 0);
    assert_int_equal(ops(&r)->capture_begin(r.stream), FTK_OK);
    assert_int_equal(ops(&r)->graph_launch(r.stream, graph), FTK_E_STATE);
    capture_must_fail(&r, "graph_launch");
    ops(&r)->graph_destroy(graph);
    rig_close(&r);
}

/* ---- events ---- */

typedef struct fork_join {
    rig r;
    ftk_stream *side;
    ftk_stream *third;
    fti_event *fork;
    fti_event *join;
    fti_event *other;
    int64_t out[8], in[8];
    affine args;
} fork_join;

static void fork_join_open(fork_join *f) {
    f->r = rig_open(1);
    f->side = new_stream(&f->r);
    f->third = new_stream(&f->r);
    f->fork = new_event(&f->r);
    f->join = new_event(&f->r);
    f->other = new_event(&f->r);
    memset(f->out, 0, sizeof f->out);
    for (int i = 0; i < 8; i++) f->in[i] = i + 1;
    f->args = (affine){f->out, f->in};
}

static void fork_join_close(fork_join *f) {
    ops(&f->r)->event_destroy(f->fork);
    ops(&f->r)->event_destroy(f->join);
    ops(&f->r)->event_destroy(f->other);
    ops(&f->r)->stream_destroy(f->side);
    ops(&f->r)->stream_destroy(f->third);
    rig_close(&f->r);
}

static void begin_and_fork(fork_join *f, ftk_stream *to) {
    assert_int_equal(ops(&f->r)->capture_begin(f->r.stream), FTK_OK);
    assert_int_equal(launch(&f->r, f->r.stream, &f->args, 8), FTK_OK);
    assert_int_equal(ops(&f->r)->event_record(f->r.stream, f->fork), FTK_OK);
    assert_int_equal(ops(&f->r)->event_wait(to, f->fork), FTK_OK);
    assert_int_equal(launch(&f->r, to, &f->args, 8), FTK_OK);
}

static void joined_streams_are_recorded(void **state) {
    (void)state;
    fork_join f;
    fti_graph *graph;
    fork_join_open(&f);
    begin_and_fork(&f, f.side);
    /* side -> third -> origin: joined back through another stream */
    assert_int_equal(ops(&f.r)->event_record(f.side, f.join), FTK_OK);
    assert_int_equal(ops(&f.r)->event_wait(f.third, f.join), FTK_OK);
    assert_int_equal(launch(&f.r, f.third, &f.args, 8), FTK_OK);
    assert_int_equal(ops(&f.r)->event_record(f.third, f.other), FTK_OK);
    assert_int_equal(ops(&f.r)->event_wait(f.r.stream, f.other), FTK_OK);
    assert_int_equal(f.out[0], 0);
    assert_int_equal(ops(&f.r)->capture_end(f.r.stream, &graph, NULL), FTK_OK);
    assert_int_equal(ops(&f.r)->graph_nodes(graph), 3);
    assert_int_equal(ops(&f.r)->graph_launch(f.r.stream, graph), FTK_OK);
    assert_int_equal(f.out[0], 1 + 3 + 9);
    /* the side streams are ordinary again */
    assert_int_equal(launch(&f.r, f.side, &f.args, 8), FTK_OK);
    assert_int_equal(f.out[0], 13 * 3 + 1);
    ops(&f.r)->graph_destroy(graph);
    fork_join_close(&f);
}

static void unjoined_work_is_found(void **state) {
    (void)state;
    fork_join f;
    fork_join_open(&f);

    begin_and_fork(&f, f.side);
    capture_must_fail(&f.r, "does not wait for");

    begin_and_fork(&f, f.side); /* work after the event that joins it back */
    assert_int_equal(ops(&f.r)->event_record(f.side, f.join), FTK_OK);
    assert_int_equal(ops(&f.r)->event_wait(f.r.stream, f.join), FTK_OK);
    assert_int_equal(launch(&f.r, f.side, &f.args, 8), FTK_OK);
    capture_must_fail(&f.r, "does not wait for");

    begin_and_fork(&f, f.side); /* joined back only into a stream that is not */
    assert_int_equal(ops(&f.r)->event_record(f.side, f.join), FTK_OK);
    assert_int_equal(ops(&f.r)->event_wait(f.third, f.join), FTK_OK);
    capture_must_fail(&f.r, "does not wait for");

    begin_and_fork(&f, f.side);
    assert_int_equal(launch(&f.r, f.side, &f.args, 8), FTK_OK);
    assert_int_equal(f.out[0], 0);
    capture_must_fail(&f.r, "does not wait for");
    assert_int_equal(launch(&f.r, f.side, &f.args, 8), FTK_OK);
    assert_int_equal(f.out[0], 1);
    fork_join_close(&f);
}

static void events_and_capture_borders(void **state) {
    (void)state;
    fork_join f;
    fti_graph *graph;
    fork_join_open(&f);
    /* never recorded: nothing to wait for, no join */
    assert_int_equal(ops(&f.r)->event_wait(f.r.stream, f.fork), FTK_OK);
    assert_int_equal(ops(&f.r)->capture_begin(f.r.stream), FTK_OK);
    assert_int_equal(ops(&f.r)->event_wait(f.r.stream, f.fork), FTK_OK);
    assert_int_equal(ops(&f.r)->capture_end(f.r.stream, &graph, NULL), FTK_OK);
    ops(&f.r)->graph_destroy(graph);
    /* recorded outside: a captured wait would hang on replay */
    assert_int_equal(ops(&f.r)->event_record(f.side, f.fork), FTK_OK);
    assert_int_equal(ops(&f.r)->event_wait(f.r.stream, f.fork), FTK_OK);
    assert_int_equal(ops(&f.r)->capture_begin(f.r.stream), FTK_OK);
    assert_int_equal(ops(&f.r)->event_wait(f.r.stream, f.fork), FTK_E_STATE);
    capture_must_fail(&f.r, "outside");
    /* of a capture that has ended */
    begin_and_fork(&f, f.side);
    capture_must_fail(&f.r, "does not wait for");
    assert_int_equal(ops(&f.r)->event_wait(f.third, f.fork), FTK_E_STATE);
    assert_int_equal(launch(&f.r, f.third, &f.args, 8), FTK_OK);
    /* of another capture: both are invalid */
    assert_int_equal(ops(&f.r)->capture_begin(f.third), FTK_OK);
    begin_and_fork(&f, f.side);
    assert_int_equal(ops(&f.r)->event_wait(f.third, f.fork), FTK_E_STATE);
    assert_int_equal(ops(&f.r)->capture_end(f.third, &graph, NULL), FTK_E_STATE);
    capture_must_fail(&f.r, "another capture");
    fork_join_close(&f);
}

static void only_the_origin_ends_a_capture(void **state) {
    (void)state;
    fork_join f;
    fti_graph *graph;
    fork_join_open(&f);
    begin_and_fork(&f, f.side);
    assert_int_equal(ops(&f.r)->capture_end(f.side, &graph, NULL), FTK_E_STATE);
    capture_must_fail(&f.r, "only joined");
    begin_and_fork(&f, f.side);
    ops(&f.r)->stream_destroy(f.side);
    f.side = new_stream(&f.r);
    capture_must_fail(&f.r, "destroyed");
    /* destroyed in the middle: streams and events do not dangle */
    ftk_stream *origin = new_stream(&f.r);
    assert_int_equal(ops(&f.r)->capture_begin(origin), FTK_OK);
    assert_int_equal(ops(&f.r)->event_record(origin, f.fork), FTK_OK);
    assert_int_equal(ops(&f.r)->event_wait(f.side, f.fork), FTK_OK);
    ops(&f.r)->stream_destroy(origin);
    assert_int_equal(launch(&f.r, f.side, &f.args, 8), FTK_OK);
    assert_int_equal(f.out[0], 1);
    assert_int_equal(ops(&f.r)->event_wait(f.side, f.fork), FTK_E_STATE);
    fork_join_close(&f);
}

static void too_many_streams(void **state) {
    (void)state;
    fork_join f;
    ftk_stream *streams[17];
    ftk_status last = FTK_OK;
    fork_join_open(&f);
    assert_int_equal(ops(&f.r)->capture_begin(f.r.stream), FTK_OK);
    assert_int_equal(ops(&f.r)->event_record(f.r.stream, f.fork), FTK_OK);
    for (size_t i = 0; i < COUNT(streams); i++) {
        streams[i] = new_stream(&f.r);
        last = ops(&f.r)->event_wait(streams[i], f.fork);
        assert_int_equal(last, i < 15 ? FTK_OK : FTK_E_STATE);
    }
    capture_must_fail(&f.r, "16 streams");
    for (size_t i = 0; i < COUNT(streams); i++) ops(&f.r)->stream_destroy(streams[i]);
    fork_join_close(&f);
}

/* ---- floating-point environment ---- */

static void spoil_environment(bool spoil) {
    fesetround(spoil ? FE_UPWARD : FE_TONEAREST);
#if defined(__x86_64__)
    unsigned csr = _mm_getcsr() & ~0x8040u;
    _mm_setcsr(spoil ? csr | 0x8040u : csr); /* flush to zero, denormals are zero */
#elif defined(__aarch64__)
    const uint64_t flush = 0x01080000u; /* FZ and FZ16 */
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    control = spoil ? control | flush : control & ~flush;
    __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory");
#endif
}

enum { ENV_ROWS = 600, ENV_COLS = 256 };

static void environment_work(rig *r, const float *x, float *y) {
    ftk_op_swiglu swiglu = {x, x + 1, y, ENV_COLS, ENV_COLS, ENV_COLS, ENV_ROWS, ENV_COLS};
    ftk_op_rope rope = {y, (const int32_t *)(const void *)x, ENV_COLS, ENV_COLS, 1e7, 4, 1, 64, 0};
    assert_int_equal(r->op->swiglu(r->stream, &swiglu), FTK_OK);
    assert_int_equal(r->op->rope(r->stream, &rope), FTK_OK);
}

/* The pool is also created in the spoilt environment: threads inherit it. */
static void work_ignores_the_callers_environment(void **state) {
    (void)state;
    float *x = malloc((ENV_ROWS * ENV_COLS + 1) * sizeof *x);
    float *plain = malloc(ENV_ROWS * ENV_COLS * sizeof *plain);
    float *spoilt = malloc(ENV_ROWS * ENV_COLS * sizeof *spoilt);
    uint64_t seed = 8;
    rnd_floats(&seed, x, ENV_ROWS * ENV_COLS + 1);
    /* Each subnormal meets a normal one, so that products are no zeros. */
    for (int k = 0; k < ENV_ROWS * ENV_COLS; k += 2) x[k] = from_bits(rnd(&seed) % 0x800000u);
    rig reference = rig_open(0);
    environment_work(&reference, x, plain);
    rig_close(&reference);
    for (size_t i = 0; i < COUNT(setups); i++) {
        spoil_environment(true);
        rig r = rig_open(i);
        environment_work(&r, x, spoilt);
        int rounding = fegetround();
        spoil_environment(false);
        assert_int_equal(rounding, FE_UPWARD);
        assert_same_floats(spoilt, plain, ENV_ROWS * ENV_COLS, "spoilt environment");
        rig_close(&r);
    }
    free(x);
    free(plain);
    free(spoilt);
}

/* ---- products at the same time ---- */

enum { SIDE = 512, VECTORS = 12 };

typedef struct products {
    rig r;
    float *weights; /* [SIDE][SIDE] */
    ftk_weight view;
    float v[VECTORS][SIDE];
} products;

static void products_open(products *p, uint32_t threads) {
    uint64_t seed = 77;
    p->r = rig_open_as(UINT32_MAX, threads, false);
    p->weights = malloc(sizeof(float) * SIDE * SIDE);
    assert_non_null(p->weights);
    rnd_floats(&seed, p->weights, SIDE * SIDE);
    p->view = (ftk_weight){.struct_size = (uint32_t)sizeof p->view,
                           .type = FTK_TYPE_F32,
                           .layout = FTK_LAYOUT_RAW,
                           .rows = SIDE,
                           .cols = SIDE,
                           .row_bytes = SIDE * sizeof(float),
                           .data = p->weights};
}

static void products_close(products *p) {
    free(p->weights);
    rig_close(&p->r);
}

static void products_reset(products *p) {
    uint64_t seed = 78;
    rnd_floats(&seed, p->v[0], VECTORS * SIDE);
}

/* v[to] = W v[from], or += */
static void product(products *p, int to, int from, uint32_t flags) {
    const ftk_activation x = {.x = p->v[from], .x_stride = SIDE, .rows = 1, .cols = SIDE};
    const ftk_op_matmul op = {
        .weight = &p->view, .act = x, .y = p->v[to], .y_stride = SIDE, .required = flags};
    assert_int_equal(p->r.op->matmul(p->r.stream, &op), FTK_OK);
}

static void needing_each_other(products *p) {
    product(p, 1, 0, 0);
    product(p, 2, 0, 0);                     /* beside the first */
    product(p, 3, 1, 0);                     /* reads what the first writes */
    product(p, 3, 0, FTK_MATMUL_ACCUMULATE); /* adds to what that one writes */
    product(p, 0, 2, 0);                     /* overwrites what that one reads */
    product(p, 4, 2, 0);                     /* beside that one: they read the same */
}

static void not_needing_each_other(products *p) {
    for (int i = 1; i <= 10; i++) product(p, i, 0, 0); /* more than run at the same time */
}

static uint64_t beside(products *p) {
    fti_stream_counts counts;
    ops(&p->r)->stream_counts(p->r.stream, &counts);
    return counts.beside;
}

static void graphs_give_what_eager_work_gives(void (*work)(products *), uint64_t wanted_beside) {
    products eager, replayed;
    fti_graph *graph = NULL;
    products_open(&eager, 1);
    products_open(&replayed, 4);
    products_reset(&eager);
    work(&eager);
    assert_int_equal(beside(&eager), 0);
    assert_int_equal(ops(&replayed.r)->capture_begin(replayed.r.stream), FTK_OK);
    work(&replayed);
    assert_int_equal(ops(&replayed.r)->capture_end(replayed.r.stream, &graph, NULL), FTK_OK);
    for (int i = 0; i < 100; i++) {
        products_reset(&replayed);
        assert_int_equal(ops(&replayed.r)->graph_launch(replayed.r.stream, graph), FTK_OK);
        assert_memory_equal(replayed.v, eager.v, sizeof eager.v);
    }
    assert_int_equal(beside(&replayed), 100 * wanted_beside);
    ops(&replayed.r)->graph_destroy(graph);
    products_close(&eager);
    products_close(&replayed);
}

static void products_run_beside_each_other_where_they_may(void **state) {
    (void)state;
    graphs_give_what_eager_work_gives(needing_each_other, 2);
    graphs_give_what_eager_work_gives(not_needing_each_other, 7 + 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed_aligned_and_accounted),
        cmocka_unit_test(impossible_allocation_fails),
        cmocka_unit_test(capabilities),
        cmocka_unit_test(products_run_beside_each_other_where_they_may),
#if defined(__x86_64__)
        cmocka_unit_test(each_mask_runs_its_kernels),
#endif
        cmocka_unit_test(copies_of_any_size),
        cmocka_unit_test(launch_checks_its_arguments),
        cmocka_unit_test(graph_equals_eager),
        cmocka_unit_test(illegal_acts_invalidate_a_capture),
        cmocka_unit_test(joined_streams_are_recorded),
        cmocka_unit_test(unjoined_work_is_found),
        cmocka_unit_test(events_and_capture_borders),
        cmocka_unit_test(only_the_origin_ends_a_capture),
        cmocka_unit_test(too_many_streams),
        cmocka_unit_test(work_ignores_the_callers_environment),
    };
    return cmocka_run_group_tests_name("test_stream", tests, NULL, NULL);
}
