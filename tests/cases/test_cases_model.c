/*
 * test_cases_model.c: reported cases of section A, and F4: which files are models, what a
 * model can, and how large it is. A12 brings a reference of its own: the forward pass in
 * double precision, written from the equations and sharing nothing with the library.
 */
#include "cases/case_files.h"

#include <math.h>

#define A(suffix) "qwen35moe." suffix

/* ---- A3: what the file cannot do ---- */

static void refuse_options(const char *options) {
    char folder[PATH_MAX];
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    ftk_engine *engine = NULL;
    assert_non_null(realpath(FTK_PROVIDER_DIR, folder));
    text yaml = format("providers:\n  allow:\n    - {name: qwen36, path: '%s/qwen36.so'}\n"
                       "provider_options:\n  qwen36: {%s}\n",
                       folder, options);
    assert_int_equal(ftk_config_parse(yaml.s, strlen(yaml.s), "a3.yaml", &config, &err), FTK_OK);
    ftk_status status = ftk_engine_open(config, DEMO_MODEL, NULL, &engine, &err);
    expect_status(status, FTK_E_CONFIG_VALUE, &err, "provider_options.qwen36");
    assert_null(engine);
    assert_int_equal(ftk_status_exit_code(status), 3);
    ftk_config_free(config);
}

static void a3_drafting_that_is_not_there(void **state) {
    (void)state;
    static const char *const options[] = {"draft: true", "mtp: on", "draft_tokens: 3",
                                          "speculative: {kind: mtp, tokens: 2}"};
    for (size_t i = 0; i < FTI_COUNT(options); i++) refuse_options(options[i]);
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    assert_int_equal(ftk_config_load(FTK_CONFIG, &config, &err), FTK_OK);
    expect_status(ftk_config_set(config, "scheduler.draft", "2", &err), FTK_E_CONFIG_KEY, &err,
                  "scheduler.draft");
    ftk_config_free(config);
}

/* Nor does a dialogue with a model that has no form for it do more than fail. */
static void a3_dialogues_without_a_template(void **state) {
    (void)state;
    const fti_synth_meta none = {.key = "tokenizer.chat_template", .type = FTI_SYNTH_LEFT_OUT};
    fti_synth_model m = toy_model();
    m.metas = &none;
    m.meta_count = 1;
    ftk_engine *engine = fixture_open(write_model(&m, "base.gguf").s, NULL);
    ftk_message message = FTK_MESSAGE_INIT;
    ftk_request r = FTK_REQUEST_INIT;
    ftk_error err = FTK_ERROR_INIT;
    uint64_t id;
    message.role = "user";
    message.content = "hello";
    message.content_size = 5;
    r.messages = &message;
    r.message_count = 1;
    expect_status(ftk_submit(engine, &r, &id, &err), FTK_E_UNSUPPORTED, &err,
                  "no tokenizer.chat_template");
    ftk_engine_close(engine);
}

/* ---- A7: projectors ---- */

static void a7_projector_as_the_model(void **state) {
    (void)state;
    assert_int_equal(case_expect_refused("a7"), 1);
}

static void a7_projector_beside_the_model(void **state) {
    (void)state;
    const case_file c = {.id = "a7"};
    fti_synth_model m = toy_model();
    text model = write_model(&m, "model.gguf");
    assert_string_equal(projector(&c).s, in_scratch("mmproj.gguf").s);
    ftk_engine *engine = fixture_open(model.s, NULL);
    assert_int_equal(ftk_engine_layers(engine), 4);
    ftk_engine_close(engine);
}

/* ---- A8: other architectures ---- */

typedef struct answer {
    int code;
    char text[4096]; /* both streams */
} answer;

static answer run_program(const char *arguments) {
    answer a = {0};
    text command = format("'%s' %s 2>&1", FTK_BIN, arguments);
    FILE *f = popen(command.s, "r"); /* NOLINT(cert-env33-c): a fixed program */
    assert_non_null(f);
    size_t n = fread(a.text, 1, sizeof a.text - 1, f);
    a.text[n] = 0;
    int status = pclose(f);
    a.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    return a;
}

static void a8_architectures_of_nobody(void **state) {
    (void)state;
    assert_int_equal(case_expect_refused("a8"), 3);
}

/* The program says it in one line; inspect shows what the file has, and makes up nothing. */
static void a8_what_the_program_says(void **state) {
    (void)state;
    const fti_synth_meta metas[] = {
        {.key = "general.architecture", .type = FTI_SYNTH_STRING, .text = "qwen2"},
        {.key = "qwen2.block_count", .type = FTI_SYNTH_U32, .number = 24}};
    fti_synth_model m = toy_model();
    m.metas = metas;
    m.meta_count = FTI_COUNT(metas);
    text path = write_model(&m, "qwen2.gguf");
    answer a = run_program(format("run -c '%s' '%s' -p x", FTK_CONFIG, path.s).s);
    assert_int_equal(a.code, 4);
    char *line_end = strchr(a.text, '\n');
    assert_non_null(line_end);
    assert_int_equal(line_end[1], 0);
    static const char *const parts[] = {"'qwen2'", "qwen36: qwen35moe", "providers.allow"};
    for (size_t i = 0; i < FTI_COUNT(parts); i++) assert_non_null(strstr(a.text, parts[i]));
    a = run_program(format("inspect -c '%s' '%s'", FTK_CONFIG, path.s).s);
    assert_int_equal(a.code, 0);
    assert_non_null(strstr(a.text, "qwen2\n"));
    assert_null(strstr(a.text, "context"));
}

/* ---- A12: a reference ---- */

enum { HIDDEN = 64, LAYERS = 4, EXPERTS = 6, USED = 2, FF = 32, HEADS = 4, KV = 2, HEAD = 16 };
enum { ROPE = 8, KEYS = 3, VALUES = 6, STATE = 32, TAPS = 4, TOKENS = 64, VOCABULARY = 320 };
enum { CHANNELS = 2 * KEYS * STATE + VALUES * STATE };

static fti_synth_model reference_model(void) {
    fti_synth_model m = toy_model();
    m.dims = (fti_synth_dims){.hidden = HIDDEN,
                              .layers = LAYERS,
                              .experts = EXPERTS,
                              .used = USED,
                              .ff = FF,
                              .shared_ff = FF,
                              .heads = HEADS,
                              .kv_heads = KV,
                              .head_dim = HEAD,
                              .rope_dim = ROPE,
                              .key_heads = KEYS,
                              .value_heads = VALUES,
                              .state = STATE,
                              .conv = TAPS,
                              .interval = LAYERS,
                              .vocabulary = VOCABULARY,
                              .context = 256};
    return m;
}

/* The model's tensors, and what the reference keeps from token to token. */
typedef struct reference {
    fti_gguf_edit file;
    double state[LAYERS][VALUES][STATE][STATE]; /* [key][value] */
    double past[LAYERS][TAPS][CHANNELS];        /* inputs of the convolution, newest last */
    double keys[TOKENS][KV * HEAD], values[TOKENS][KV * HEAD];
} reference;

/* Tensor `name` of layer `layer` (-1: of no layer). */
static const float *weights(reference *r, int layer, const char *name) {
    text full = layer < 0 ? format("%s", name) : format("blk.%d.%s", layer, name);
    const fti_edit_tensor *t = fti_ge_find(&r->file, full.s);
    assert_non_null(t);
    return (const float *)(const void *)t->data;
}

static void multiply(const float *w, const double *x, int rows, int columns, double *y) {
    for (int i = 0; i < rows; i++) {
        y[i] = 0;
        for (int j = 0; j < columns; j++) y[i] += (double)w[i * columns + j] * x[j];
    }
}

static void rms_norm(const double *x, const float *w, int n, double *y) {
    double squares = 0;
    for (int i = 0; i < n; i++) squares += x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = x[i] * (double)w[i] / sqrt(squares / n + 1e-6);
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static void unit(double *x, double scale) {
    double squares = 1e-6;
    for (int i = 0; i < STATE; i++) squares += x[i] * x[i];
    for (int i = 0; i < STATE; i++) x[i] *= scale / sqrt(squares);
}

static void convolve(reference *r, int layer, const double *in, double *out) {
    const float *w = weights(r, layer, "ssm_conv1d.weight");
    memmove(r->past[layer][0], r->past[layer][1], sizeof r->past[layer][0] * (TAPS - 1));
    memcpy(r->past[layer][TAPS - 1], in, sizeof r->past[layer][0]);
    for (int c = 0; c < CHANNELS; c++) {
        double sum = 0;
        for (int t = 0; t < TAPS; t++) sum += (double)w[c * TAPS + t] * r->past[layer][t][c];
        out[c] = sum * sigmoid(sum);
    }
}

/* One value head: decay, then the delta rule; reads with the new state. */
static void delta_rule(double s[STATE][STATE], const double *q, const double *k, const double *v,
                       double decay, double beta, double *out) {
    for (int j = 0; j < STATE; j++) {
        double known = 0;
        out[j] = 0;
        for (int i = 0; i < STATE; i++) known += decay * s[i][j] * k[i];
        for (int i = 0; i < STATE; i++) {
            s[i][j] = decay * s[i][j] + k[i] * beta * (v[j] - known);
            out[j] += s[i][j] * q[i];
        }
    }
}

static void linear_attention(reference *r, int layer, const double *x, double *out) {
    double raw[CHANNELS], c[CHANNELS], z[VALUES * STATE], a[VALUES], b[VALUES], y[VALUES * STATE];
    const float *decay = weights(r, layer, "ssm_a"), *bias = weights(r, layer, "ssm_dt.bias");
    multiply(weights(r, layer, "attn_qkv.weight"), x, CHANNELS, HIDDEN, raw);
    multiply(weights(r, layer, "attn_gate.weight"), x, VALUES * STATE, HIDDEN, z);
    multiply(weights(r, layer, "ssm_alpha.weight"), x, VALUES, HIDDEN, a);
    multiply(weights(r, layer, "ssm_beta.weight"), x, VALUES, HIDDEN, b);
    convolve(r, layer, raw, c);
    for (int h = 0; h < KEYS; h++) {
        unit(c + h * STATE, 1 / sqrt(STATE));
        unit(c + (KEYS + h) * STATE, 1);
    }
    for (int h = 0; h < VALUES; h++) {
        double *o = y + h * STATE, *gate = z + h * STATE, read[STATE];
        const double *q = c + h % KEYS * STATE, *k = q + KEYS * STATE;
        double forget = exp((double)decay[h] * log1p(exp(a[h] + (double)bias[h])));
        delta_rule(r->state[layer][h], q, k, c + (2 * KEYS + h) * STATE, forget, sigmoid(b[h]),
                   read);
        rms_norm(read, weights(r, layer, "ssm_norm.weight"), STATE, o);
        for (int i = 0; i < STATE; i++) o[i] *= gate[i] * sigmoid(gate[i]);
    }
    multiply(weights(r, layer, "ssm_out.weight"), y, HIDDEN, VALUES * STATE, out);
}

static void rotate(double *x, int position) {
    for (int j = 0; j < ROPE / 2; j++) {
        double angle = position * pow(1e7, -2.0 * j / ROPE), u = x[j], v = x[j + ROPE / 2];
        x[j] = u * cos(angle) - v * sin(angle);
        x[j + ROPE / 2] = v * cos(angle) + u * sin(angle);
    }
}

static void attend(const reference *r, const double *q, int group, int position, double *out) {
    double p[TOKENS], sum = 0;
    memset(out, 0, HEAD * sizeof *out);
    for (int t = 0; t <= position; t++) {
        double score = 0;
        for (int i = 0; i < HEAD; i++) score += q[i] * r->keys[t][group * HEAD + i];
        sum += p[t] = exp(score / sqrt(HEAD));
    }
    for (int t = 0; t <= position; t++)
        for (int i = 0; i < HEAD; i++) out[i] += p[t] / sum * r->values[t][group * HEAD + i];
}

static void full_attention(reference *r, int layer, const double *x, int position, double *out) {
    double y[HEADS * 2 * HEAD], k[KV * HEAD], o[HEADS * HEAD], q[HEAD];
    multiply(weights(r, layer, "attn_q.weight"), x, HEADS * 2 * HEAD, HIDDEN, y);
    multiply(weights(r, layer, "attn_k.weight"), x, KV * HEAD, HIDDEN, k);
    multiply(weights(r, layer, "attn_v.weight"), x, KV * HEAD, HIDDEN, r->values[position]);
    for (int h = 0; h < KV; h++) {
        double *key = r->keys[position] + h * HEAD;
        rms_norm(k + h * HEAD, weights(r, layer, "attn_k_norm.weight"), HEAD, key);
        rotate(key, position);
    }
    for (int h = 0; h < HEADS; h++) {
        const double *gate = y + (2 * h + 1) * HEAD;
        rms_norm(y + 2 * h * HEAD, weights(r, layer, "attn_q_norm.weight"), HEAD, q);
        rotate(q, position);
        attend(r, q, h / (HEADS / KV), position, o + h * HEAD);
        for (int i = 0; i < HEAD; i++) o[h * HEAD + i] *= sigmoid(gate[i]);
    }
    multiply(weights(r, layer, "attn_output.weight"), o, HIDDEN, HEADS * HEAD, out);
}

static void feed_forward(const float *gate, const float *up, const float *down, const double *x,
                         double scale, double *out) {
    double g[FF], u[FF], y[HIDDEN];
    multiply(gate, x, FF, HIDDEN, g);
    multiply(up, x, FF, HIDDEN, u);
    for (int i = 0; i < FF; i++) u[i] *= g[i] * sigmoid(g[i]);
    multiply(down, u, HIDDEN, FF, y);
    for (int i = 0; i < HIDDEN; i++) out[i] += scale * y[i];
}

/* The most likely experts, their weights made to sum to 1, and the shared one. */
static void experts(reference *r, int layer, const double *x, double *out) {
    double p[EXPERTS], share[USED], gate, sum = 0;
    int chosen[USED];
    multiply(weights(r, layer, "ffn_gate_inp.weight"), x, EXPERTS, HIDDEN, p);
    for (int n = 0; n < USED; n++) {
        chosen[n] = 0;
        for (int e = 1; e < EXPERTS; e++)
            if (p[e] > p[chosen[n]] || isnan(p[chosen[n]])) chosen[n] = e;
        sum += share[n] = exp(p[chosen[n]]);
        p[chosen[n]] = NAN;
    }
    memset(out, 0, HIDDEN * sizeof *out);
    for (int n = 0; n < USED; n++) {
        ptrdiff_t at = (ptrdiff_t)chosen[n] * FF * HIDDEN;
        feed_forward(weights(r, layer, "ffn_gate_exps.weight") + at,
                     weights(r, layer, "ffn_up_exps.weight") + at,
                     weights(r, layer, "ffn_down_exps.weight") + at, x, share[n] / sum, out);
    }
    multiply(weights(r, layer, "ffn_gate_inp_shexp.weight"), x, 1, HIDDEN, &gate);
    feed_forward(weights(r, layer, "ffn_gate_shexp.weight"),
                 weights(r, layer, "ffn_up_shexp.weight"),
                 weights(r, layer, "ffn_down_shexp.weight"), x, sigmoid(gate), out);
}

static void reference_token(reference *r, int32_t id, int position, double *logits) {
    double x[HIDDEN], a[HIDDEN], m[HIDDEN];
    for (int i = 0; i < HIDDEN; i++)
        x[i] = (double)weights(r, -1, "token_embd.weight")[id * HIDDEN + i];
    for (int layer = 0; layer < LAYERS; layer++) {
        rms_norm(x, weights(r, layer, "attn_norm.weight"), HIDDEN, a);
        if (layer + 1 == LAYERS)
            full_attention(r, layer, a, position, m);
        else
            linear_attention(r, layer, a, m);
        for (int i = 0; i < HIDDEN; i++) x[i] += m[i];
        rms_norm(x, weights(r, layer, "post_attention_norm.weight"), HIDDEN, a);
        experts(r, layer, a, m);
        for (int i = 0; i < HIDDEN; i++) x[i] += m[i];
    }
    rms_norm(x, weights(r, -1, "output_norm.weight"), HIDDEN, a);
    multiply(weights(r, -1, "output.weight"), a, VOCABULARY, HIDDEN, logits);
}

/* Logits [TOKENS][VOCABULARY] of the file at `path`. */
static double *reference_logits(const char *path, const int32_t *ids) {
    reference *r = calloc(1, sizeof *r);
    double *logits = calloc((size_t)TOKENS * VOCABULARY, sizeof *logits);
    assert_true(r && logits);
    r->file = fti_ge_load(path);
    for (int t = 0; t < TOKENS; t++) reference_token(r, ids[t], t, logits + (size_t)t * VOCABULARY);
    fti_ge_free(&r->file);
    free(r);
    return logits;
}

static double worst_difference(const float *found, const double *wanted, size_t count) {
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        double d = fabs((double)found[i] - wanted[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static double spread(const double *x, size_t count) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++) {
        sum += x[i];
        squares += x[i] * x[i];
    }
    return sqrt(squares / (double)count - sum / (double)count * (sum / (double)count));
}

/* Twice as many value heads as key heads, 3 of these; two experts of six. */
static void a12_logits_of_an_independent_reference(void **state) {
    (void)state;
    static const char *const float_mode[] = {"numerics", "float", NULL};
    static const size_t count = (size_t)TOKENS * VOCABULARY;
    fti_synth_model m = reference_model();
    text path = write_model(&m, "reference.gguf");
    int32_t ids[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = (i * 37 + 11) % 290;
    double *wanted = reference_logits(path.s, ids);
    double scale = spread(wanted, count);
    ftk_engine *engine = fixture_open(path.s, float_mode);
    for (uint32_t chunk = 1; chunk <= TOKENS; chunk *= 8) {
        float *found = fixture_logits(engine, ids, TOKENS, chunk);
        double d = worst_difference(found, wanted, count);
        print_message("chunks of %u: %.1e of %.2f at most\n", chunk, d, scale);
        assert_true(scale > 0.1 && d < 1e-4 * scale);
        free(found);
    }
    ftk_engine_close(engine);
    free(wanted);
}

/* ---- F4: sizes ---- */

static fti_synth_model many_experts(void) {
    fti_synth_model m = reference_model();
    m.dims.experts = 256;
    m.dims.used = 8;
    m.types[FTI_SYNTH_GATE_UP] = m.types[FTI_SYNTH_DOWN] = FTK_TYPE_Q8_0;
    return m;
}

/* Bytes of all weights, counted from the shapes: every expert, not the active ones. */
static uint64_t weight_bytes(const fti_synth_dims *d) {
    uint64_t h = d->hidden, keys = (uint64_t)d->key_heads * d->state;
    uint64_t values = (uint64_t)d->value_heads * d->state, head = d->head_dim;
    uint64_t heads = d->heads * head, kv = d->kv_heads * head;
    uint64_t every = 2 * h + h * d->experts + h + 3 * h * d->shared_ff;
    uint64_t full = h * 2 * heads + 2 * h * kv + heads * h + 2 * head;
    uint64_t linear = h * (2 * keys + values) + h * values + 2 * h * d->value_heads +
                      d->conv * (2 * keys + values) + 2 * d->value_heads + d->state + values * h;
    uint64_t full_layers = d->layers / d->interval;
    uint64_t floats = 2 * h * d->vocabulary + h + d->layers * every + full_layers * full +
                      (d->layers - full_layers) * linear;
    return 4 * floats + 3 * h * d->ff * d->experts * d->layers / 32 * 34;
}

static json_t *parsed(char *json) {
    json_t *o = json_loads(json, 0, NULL);
    assert_non_null(o);
    ftk_report_free(json);
    return o;
}

static uint64_t number_of(const json_t *o, const char *key) {
    json_t *value = json_object_get(o, key);
    if (!json_is_integer(value)) fail_msg("no number '%s'", key);
    return (uint64_t)json_integer_value(value);
}

static json_t *memory_of(const ftk_engine *engine) {
    char *json;
    assert_int_equal(ftk_engine_memory(engine, &json, NULL), FTK_OK);
    return parsed(json);
}

static void f4_inspect_counts_every_byte(void **state) {
    (void)state;
    fti_synth_model m = many_experts();
    text path = write_model(&m, "experts.gguf");
    uint64_t wanted = weight_bytes(&m.dims), by_type = 0, by_tensor = 0;
    char *json;
    assert_int_equal(ftk_inspect(path.s, &json, NULL), FTK_OK);
    json_t *o = parsed(json), *row;
    const char *type;
    size_t i;
    json_object_foreach(json_object_get(o, "types"), type, row) by_type += number_of(row, "bytes");
    json_array_foreach(json_object_get(o, "tensors"), i, row) by_tensor += number_of(row, "bytes");
    assert_int_equal(by_type, wanted);
    assert_int_equal(by_tensor, wanted);
    struct stat st;
    assert_int_equal(stat(path.s, &st), 0);
    assert_int_equal(number_of(o, "file_bytes"), st.st_size);
    json_decref(o);
    answer a = run_program(format("inspect -c '%s' '%s'", FTK_CONFIG, path.s).s);
    assert_int_equal(a.code, 0);
    assert_non_null(strstr(a.text, format(" %llu ", (unsigned long long)wanted).s));
}

/* Mapped weights are the host's page cache; the rest is allocated on the device, which on
 * this backend is the host too: as much as the plan says, and as the backend has counted. */
static void check_memory(const char *path, const fti_synth_dims *d) {
    static const char *const settings[] = {"memory.kv_tokens", "100", "scheduler.max_running", "1",
                                           NULL};
    ftk_engine *engine = NULL;
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(fixture_try_open(path, settings, FTK_OPEN_PLANNED, &engine, &err), FTK_OK);
    json_t *plan = memory_of(engine);
    assert_int_equal(number_of(plan, "allocated"), 0);
    ftk_engine_close(engine);

    engine = fixture_open(path, settings);
    json_t *o = memory_of(engine);
    uint64_t channels = 2 * d->key_heads * d->state + d->value_heads * d->state;
    uint64_t state = (uint64_t)d->value_heads * d->state * d->state + (d->conv - 1) * channels;
    uint64_t pages = 2;
    assert_int_equal(number_of(o, "weights_mapped"), weight_bytes(d));
    assert_int_equal(number_of(o, "weights_allocated"), 0);
    assert_int_equal(number_of(o, "kv_cache"), pages * 64 * 2 * d->kv_heads * d->head_dim * 2);
    assert_int_equal(number_of(o, "recurrent_state"),
                     3 * (d->layers - 1) * state * 4); /* of a request, and two snapshots */
    static const char *const parts[] = {"weights_allocated", "kv_cache", "recurrent_state",
                                        "workspace", "step_buffers"};
    uint64_t sum = 0;
    for (size_t i = 0; i < FTI_COUNT(parts); i++) sum += number_of(o, parts[i]);
    assert_int_equal(sum, number_of(o, "total"));
    assert_int_equal(sum, number_of(o, "allocated"));
    assert_int_equal(sum, number_of(plan, "total"));
    json_decref(plan);
    json_decref(o);
    ftk_engine_close(engine);
}

static void f4_memory_report_counts_every_byte(void **state) {
    (void)state;
    fti_synth_model m = many_experts();
    text path = write_model(&m, "experts.gguf"), copied = in_scratch("copied.gguf");
    check_memory(path.s, &m.dims);

    /* The payload lies one byte off, so that nothing can be read where it is. */
    fti_gguf_edit e = fti_ge_load(path.s);
    fti_edit_shard all = {0, 1, (uint32_t)e.count, 0, e.count, 1, "x"};
    fti_ge_save_shard(&e, &all, copied.s);
    fti_ge_free(&e);
    ftk_engine *engine = fixture_open(copied.s, NULL);
    json_t *o = memory_of(engine);
    assert_int_equal(number_of(o, "weights_allocated") + number_of(o, "weights_mapped"),
                     weight_bytes(&m.dims));
    assert_true(number_of(o, "weights_allocated") > 0);
    json_decref(o);
    ftk_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a3_drafting_that_is_not_there),
        cmocka_unit_test(a3_dialogues_without_a_template),
        cmocka_unit_test(a7_projector_as_the_model),
        cmocka_unit_test(a7_projector_beside_the_model),
        cmocka_unit_test(a8_architectures_of_nobody),
        cmocka_unit_test(a8_what_the_program_says),
        cmocka_unit_test(a12_logits_of_an_independent_reference),
        cmocka_unit_test(f4_inspect_counts_every_byte),
        cmocka_unit_test(f4_memory_report_counts_every_byte),
    };
    return cmocka_run_group_tests_name("test_cases_model", tests, scratch_setup, scratch_teardown);
}
