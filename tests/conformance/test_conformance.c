/*
 * test_conformance.c: ft-provider-check itself: the reference provider and a good fixture
 * pass, each act that the contract forbids is caught by its pass with its finding, and
 * the command line answers as it says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/gguf_writer.h"
#include "support/synth_model.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* Sanitizers catch the signal, report, and end the process. */
#define CRASHED (SANITIZED ? "the process was ended" : "crashed by signal 11")

/* What is known of a fault. */
#if defined(__x86_64__)
#define TOUCHED(how) "run " how
#else
#define TOUCHED(how) "run touches"
#endif

/* Where sanitizers keep the traps from starting of processes, the process is noticed. */
#define STARTED(function) (SANITIZED ? "create left the processes changed" : function " was called")

#define DEMO_MODEL FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"

static char folder[] = "/tmp/ftk-conformance-XXXXXX";
static char model[64];

/* ---- the fixtures' checkpoint ---- */

#define HIDDEN     64u
#define VOCABULARY 32u

static void put_values(fti_gguf_writer *w, uint64_t count, uint32_t seed) {
    for (uint64_t i = 0; i < count; i++) {
        uint32_t x = (uint32_t)(i * 2654435761u) ^ seed * 40503u;
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        fti_gw_f32(w, (float)(int32_t)x * 0x1p-31f);
    }
}

static void put_vocabulary(fti_gguf_writer *w) {
    fti_gw_array(w, "tokenizer.ggml.tokens", FTI_META_STRING, VOCABULARY);
    for (uint32_t i = 0; i < VOCABULARY; i++) {
        char text[8];
        snprintf(text, sizeof text, "t%u", i);
        fti_gw_string(w, text);
    }
}

static void write_model(const char *path) {
    const uint64_t matrix[] = {HIDDEN, VOCABULARY}, vector[] = {HIDDEN};
    const uint64_t bytes = (uint64_t)HIDDEN * VOCABULARY * sizeof(float);
    fti_gguf_writer w = {0};
    fti_gw_header(&w, 3, 3, 3);
    fti_gw_text(&w, "general.architecture", "conformance");
    fti_gw_integer(&w, "conformance.hidden", FTI_META_U32, HIDDEN);
    put_vocabulary(&w);
    fti_gw_tensor(&w, "token_embd.weight", 2, matrix, FTK_TYPE_F32, 0);
    fti_gw_tensor(&w, "output.weight", 2, matrix, FTK_TYPE_F32, bytes);
    fti_gw_tensor(&w, "output_norm.weight", 1, vector, FTK_TYPE_F32, 2 * bytes);
    fti_gw_pad(&w, 32);
    put_values(&w, (uint64_t)HIDDEN * VOCABULARY, 1);
    put_values(&w, (uint64_t)HIDDEN * VOCABULARY, 2);
    for (uint32_t i = 0; i < HIDDEN; i++) fti_gw_f32(&w, 1.0f);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(w.data, 1, w.size, file), w.size);
    assert_int_equal(fclose(file), 0);
    fti_gw_free(&w);
}

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(model, sizeof model, "%s/model.gguf", folder);
    write_model(model);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    unlink(model);
    return rmdir(folder);
}

/* ---- running the tool ---- */

/* What the tool prints with `options`, and its exit code. Free with free(). */
static char *check_text(const char *options, int *code) {
    char command[2048];
    snprintf(command, sizeof command, "'%s' %s 2>&1", FTK_CHECK_BIN, options);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    char *text = calloc(1, 1 << 18);
    assert_non_null(text);
    size_t size = fread(text, 1, (1 << 18) - 1, pipe);
    text[size] = 0;
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    *code = WEXITSTATUS(status);
    return text;
}

static json_t *check_json(const char *options, int *code) {
    json_error_t error;
    char *text = check_text(options, code);
    json_t *report = json_loads(text, 0, &error);
    if (!report) fail_msg("no JSON: %s: %s", error.text, text);
    free(text);
    return report;
}

static const json_t *pass_of(const json_t *report, const char *name) {
    size_t i;
    json_t *pass;
    json_array_foreach(json_object_get(report, "passes"), i,
                       pass) if (strcmp(json_string_value(json_object_get(pass, "name")), name) ==
                                 0) return pass;
    fail_msg("no pass '%s' in the report", name);
    return NULL;
}

static const char *result_of(const json_t *report, const char *name) {
    return json_string_value(json_object_get(pass_of(report, name), "result"));
}

static bool has_finding(const json_t *pass, const char *text) {
    size_t i;
    json_t *finding;
    json_array_foreach(
        json_object_get(pass, "findings"), i,
        finding) if (strstr(json_string_value(json_object_get(finding, "what")), text)) return true;
    return false;
}

/* ---- what is caught ---- */

typedef struct row {
    const char *fixture;
    const char *pass;
    const char *text; /* in one of its findings */
    bool plain_only;  /* sanitizers stand in the way */
} row;

static void caught(void **state) {
    const row *r = *state;
    char options[512];
    int code;
    if (r->plain_only && SANITIZED) {
        printf("skip: sanitizers do themselves what catches this\n");
        skip();
    }
    snprintf(options, sizeof options, "'%s/%s.so' --model %s --pass %s --json --timeout %d",
             FTK_FIXTURES, r->fixture, model, r->pass, strcmp(r->fixture, "hangs") == 0 ? 1 : 100);
    json_t *report = check_json(options, &code);
    const json_t *pass = pass_of(report, r->pass);
    if (!has_finding(pass, r->text)) {
        char *text = json_dumps(report, JSON_INDENT(1));
        fail_msg("no finding with '%s' in: %s", r->text, text);
    }
    assert_int_equal(code, 1);
    assert_string_equal(result_of(report, r->pass), "failed");
    json_decref(report);
}

#define ROW(fixture, pass, text)                                                                   \
    {                                                                                              \
#fixture ": " pass, caught, NULL, NULL, (void *)&(row) {                                   \
#fixture, pass, text, false                                                            \
        }                                                                                          \
    }
#define PLAIN_ROW(fixture, pass, text)                                                             \
    {                                                                                              \
#fixture ": " pass, caught, NULL, NULL, (void *)&(row) {                                   \
#fixture, pass, text, true                                                             \
        }                                                                                          \
    }

/* ---- what passes ---- */

static void expect_clean(const json_t *report, int code) {
    if (code != 0) {
        char *text = json_dumps(report, JSON_INDENT(1));
        fail_msg("findings: %s", text);
    }
    assert_int_equal(json_integer_value(json_object_get(report, "failed")), 0);
    assert_int_equal(json_integer_value(json_object_get(report, "skipped")), 0);
    assert_int_equal(json_integer_value(json_object_get(report, "passed")),
                     json_array_size(json_object_get(report, "passes")));
}

static void good_fixture_passes(void **state) {
    (void)state;
    char options[512];
    int code;
    snprintf(options, sizeof options, "'%s/good.provider.yaml' --model %s --json", FTK_FIXTURES,
             model);
    json_t *report = check_json(options, &code);
    expect_clean(report, code);
    assert_int_equal(json_array_size(json_object_get(report, "passes")), 16);
    const json_t *variants = json_object_get(report, "variants");
    assert_int_equal(json_array_size(variants), 2);
    const json_t *fast = json_array_get(variants, 0), *nowhere = json_array_get(variants, 1);
    assert_string_equal(json_string_value(json_object_get(fast, "variant")), "good/gate_fast");
    /* Seven steps and three wide ones; those of at most nine rows with ten sets of values
     * besides. */
    assert_int_equal(json_integer_value(json_object_get(fast, "step_comparisons")), 7 + 3);
    assert_int_equal(json_integer_value(json_object_get(fast, "kernel_comparisons")), 7 + 5 * 10);
    assert_int_equal(json_integer_value(json_object_get(fast, "worst_ulp")), 0);
    assert_true(json_real_value(json_object_get(fast, "reference_seconds")) > 0.0);
    assert_non_null(strstr(json_string_value(json_object_get(nowhere, "skipped")), "cpu.threads"));
    json_decref(report);
}

/* The reference provider, all of it where that is quick. */
static void qwen36_passes(void **state) {
    (void)state;
    const char *only =
        SANITIZED ? "--pass symbols --pass entry --pass match --pass lifecycle "
                    "--pass destroy --pass refusals --pass chat --pass memory --pass threads"
                  : "";
    char options[1024];
    int code;
    snprintf(options, sizeof options, "'%s' --model '%s' --json --timeout 600 %s", FTK_PROVIDER_DIR,
             DEMO_MODEL, only);
    json_t *report = check_json(options, &code);
    expect_clean(report, code);
    if (!SANITIZED) {
        const json_t *provider = json_object_get(report, "provider");
        assert_string_equal(json_string_value(json_object_get(provider, "name")), "qwen36");
        assert_int_equal(json_string_length(json_object_get(provider, "sha256")), 64);
    }
    json_decref(report);
}

/* Sizes that no vector length divides, and experts that all are used. */
static void qwen36_passes_uneven(void **state) {
    (void)state;
    char path[96], options[512];
    int code;
    ftk_error error = FTK_ERROR_INIT;
    fti_synth_model m = fti_synth_tiny();
    m.dims = (fti_synth_dims){.hidden = 96,
                              .layers = 3,
                              .experts = 3,
                              .used = 3,
                              .ff = 32,
                              .shared_ff = 64,
                              .heads = 3,
                              .kv_heads = 1,
                              .head_dim = 48,
                              .rope_dim = 10,
                              .key_heads = 1,
                              .value_heads = 3,
                              .state = 16,
                              .conv = 3,
                              .interval = 3,
                              .vocabulary = 321,
                              .context = 64};
    for (size_t i = 0; i < FTI_SYNTH_CLASSES; i++) m.types[i] = FTK_TYPE_Q8_0;
    m.types[FTI_SYNTH_ATTENTION] = FTK_TYPE_F16;
    m.types[FTI_SYNTH_LINEAR] = m.types[FTI_SYNTH_ALPHA_BETA] = FTK_TYPE_F32;
    snprintf(path, sizeof path, "%s/uneven.gguf", folder);
    if (fti_synth_write(&m, path, &error) != FTK_OK) fail_msg("%s", error.message);
    snprintf(options, sizeof options, "'%s' --model %s --json --timeout 600", FTK_PROVIDER_DIR,
             path);
    json_t *report = check_json(options, &code);
    expect_clean(report, code);
    json_decref(report);
    unlink(path);
}

/* Which NaN it is does not matter, as the guide says. */
static void other_nan_agrees(void **state) {
    (void)state;
    char options[512];
    int code;
    snprintf(options, sizeof options, "'%s/other_nan.so' --model %s --pass variants --json",
             FTK_FIXTURES, model);
    json_t *report = check_json(options, &code);
    expect_clean(report, code);
    json_decref(report);
}

/* A difference that is declared is no finding, and stands in the report. */
static void declared_tolerance(void **state) {
    (void)state;
    char options[512];
    int code;
    snprintf(options, sizeof options,
             "'%s/one_ulp_off.so' --model %s --pass variants --json --tolerance "
             "one_ulp_off/gate_fast=1",
             FTK_FIXTURES, model);
    json_t *report = check_json(options, &code);
    expect_clean(report, code);
    const json_t *fast = json_array_get(json_object_get(report, "variants"), 0);
    assert_int_equal(json_integer_value(json_object_get(fast, "worst_ulp")), 1);
    assert_int_equal(json_integer_value(json_object_get(fast, "tolerance_ulp")), 1);
    json_decref(report);
}

/* After a crash in a sweep, the rest is swept all the same. */
static void sweep_goes_on(void **state) {
    (void)state;
    char options[512];
    int code;
    snprintf(options, sizeof options,
             "'%s/crashes_on_failure.so' --model %s --pass failures --json", FTK_FIXTURES, model);
    json_t *report = check_json(options, &code);
    assert_int_equal(code, 1);
    const json_t *pass = pass_of(report, "failures");
    assert_true(has_finding(pass, CRASHED));
    /* Hundreds of failures; three calls of query are the ones that crash. */
    assert_true(json_integer_value(json_object_get(pass, "checks")) > 1000);
    json_decref(report);
}

/* A model that the steps do not fit is nobody's fault. */
static void short_context(void **state) {
    (void)state;
    char options[512];
    int code;
    snprintf(options, sizeof options, "'%s/short_context.so' --model %s --pass rows --json",
             FTK_FIXTURES, model);
    json_t *report = check_json(options, &code);
    assert_int_equal(code, 0);
    assert_string_equal(result_of(report, "rows"), "skipped");
    json_decref(report);
}

/* ---- the command line ---- */

static void expect(const char *options, int wanted, const char *text) {
    int code;
    char *found = check_text(options, &code);
    if (code != wanted || !strstr(found, text))
        fail_msg("'%s': exit code %d and '%s', wanted %d and '%s'", options, code, found, wanted,
                 text);
    free(found);
}

#define GOOD "'" FTK_FIXTURES "/good.so'"

static void command_line(void **state) {
    (void)state;
    char options[512];
    expect("", 2, "wants PROVIDER");
    expect("--help", 0, "example: ft-provider-check");
    expect("help", 0, "--tolerance VARIANT=ULPS");
    expect("--version", 0, "ft-provider-check 0.");
    expect("help --man", 0, ".SH SYNOPSIS");
    expect("/no/such/folder", 2, "cannot find '/no/such/folder'");
    expect("'" FTK_FIXTURES "'", 2, "manifests (NAME.provider.yaml) in");
    expect("/bin/sh", 2, "is no folder, no library");
    expect(GOOD " --pass rowz", 2, "did you mean 'rows'?");
    expect(GOOD " --tolerance gate", 2, "wanted VARIANT=ULPS");
    expect(GOOD " --timout 3", 2, "did you mean --timeout?");
    expect(GOOD " --config x", 2, "has no option --config");
    expect(GOOD " --model '" DEMO_MODEL "'", 2, "but the manifest claims conformance in gguf");
    expect(GOOD " --model /etc/passwd", 2, "--model: ");
    expect(GOOD, 0, "give a checkpoint");
    expect(GOOD " --pass rows", 0, "needs a checkpoint: --model FILE");
    snprintf(options, sizeof options, GOOD " --model %s --pass match --pass variants", model);
    expect(options, 0, "2 passed, 0 failed, 0 skipped");
    snprintf(options, sizeof options, "'" FTK_FIXTURES "/linked_with_path.so' --model %s", model);
    expect(options, 1, "the loader refuses the provider");
}

static void broken_manifest(void **state) {
    (void)state;
    char path[128], options[256];
    snprintf(path, sizeof path, "%s/bad.provider.yaml", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("manifest_version: 1\nnmae: bad\n", file);
    fclose(file);
    snprintf(options, sizeof options, "%s", path);
    expect(options, 1, "did you mean 'name'?");
    unlink(path);
}

/* Of variants, as the provider's table has them. */
static void escapes_names(void **state) {
    (void)state;
    char options[512];
    int code;
    snprintf(options, sizeof options, "'%s/colours_names.so' --model %s --pass variants",
             FTK_FIXTURES, model);
    char *text = check_text(options, &code);
    assert_non_null(strstr(text, "colours_names/gate_\\x1b[31mfast: "));
    assert_null(strchr(text, '\033'));
    free(text);
}

/* clang-format off */
static const struct CMUnitTest tests[] = {
    cmocka_unit_test(good_fixture_passes),
    cmocka_unit_test(qwen36_passes),
    cmocka_unit_test(qwen36_passes_uneven),
    cmocka_unit_test(declared_tolerance),
    cmocka_unit_test(other_nan_agrees),
    cmocka_unit_test(sweep_goes_on),
    cmocka_unit_test(short_context),
    cmocka_unit_test(command_line),
    cmocka_unit_test(broken_manifest),
    cmocka_unit_test(escapes_names),
    ROW(old_manifest, "loader", "found '1.0.0' in its ELF note, wanted '0.9.0'"),
    ROW(linked_with_path, "loader", "a run path"),
    ROW(linked_lazily, "symbols", "link with -Wl,-z,now"),
    ROW(linked_writable, "symbols", "link with -Wl,-z,relro"),
    ROW(exports, "symbols", "exports the symbol something_else"),
    ROW(needs_core, "symbols", "needs the symbol ftk_version of libfreetoken"),
    ROW(starts_thread, "symbols", "needs the symbol pthread_create"),
    ROW(reads_env, "symbols", "needs the symbol getenv"),
    ROW(linked_fast, "entry", "loading left the floating-point environment changed"),
    ROW(constructor_env, "entry", "getenv('LANG') was called"),
    ROW(moving_entry, "entry", "another address on the second call"),
    ROW(printing_entry, "entry", "beginning 'loaded"),
    ROW(writable_table, "entry", "the table lies in writable memory"),
    ROW(ownerless_name, "entry", "gate_fast"),
    ROW(greedy_match, "match", "match of no-such-architecture in gguf"),
    ROW(prints, "lifecycle", "beginning 'hello"),
    ROW(writes_out, "lifecycle", "beginning 'hidden"),
    ROW(writes_everywhere, "lifecycle", "memory was written that the provider was never given"),
    ROW(reads_env, "lifecycle", "getenv('HOME') was called"),
    PLAIN_ROW(starts_thread, "lifecycle", "pthread_create was called"),
    ROW(starts_unseen_thread, "lifecycle", "create left the number of timers changed"),
    ROW(starts_unseen_thread, "lifecycle", "threads run that were not there before"),
    ROW(forks, "lifecycle", STARTED("fork")),
    ROW(vforks, "lifecycle", STARTED("vfork")),
    ROW(clones, "lifecycle", STARTED("clone")),
    ROW(spawns, "lifecycle", STARTED("posix_spawn")),
    ROW(forks_unseen, "lifecycle", "create left the processes changed: found one that was waited for, wanted none"),
    ROW(spawns, "symbols", "needs the symbol posix_spawn"),
    ROW(blocks_signal, "lifecycle", "create left the signal mask changed: found signal 10 blocked, wanted signal 10 not blocked"),
    ROW(moves_signal_stack, "lifecycle", "create left the signal stack changed"),
    ROW(catches_signals, "lifecycle", "create left how signals are handled changed: found signal 10 handled"),
    ROW(changes_folder, "lifecycle", "create left the working directory changed: found '/proc', wanted '"),
    ROW(changes_umask, "lifecycle", "create left the umask changed: found 0000, wanted 0"),
    ROW(changes_limit, "lifecycle", "create left the resource limits changed: found resource 7 soft "),
    ROW(changes_locale, "lifecycle", "create left the locale changed: found 'C.UTF-8', wanted 'C'"),
    ROW(changes_thread_locale, "lifecycle", "create left the thread's locale changed: found one at"),
    ROW(changes_affinity, "lifecycle", "create left the CPU affinity changed: found 1 CPUs"),
    ROW(changes_priority, "lifecycle", "create left the priority changed: found nice 1"),
    ROW(changes_thread_name, "lifecycle", "create left the thread's name changed: found 'fixture'"),
    ROW(changes_environment, "lifecycle", "create left the environment changed"),
    ROW(sets_alarm, "lifecycle", "create left the alarms changed: found the real one armed"),
    ROW(sets_interval, "lifecycle", "create left the alarms changed: found the virtual one armed, every"),
    ROW(creates_timer, "lifecycle", "create left the number of timers changed: found 1, wanted 0"),
    ROW(rounds_up, "lifecycle", "create left the floating-point environment changed: found rounding up"),
    ROW(flushes, "lifecycle", "create left the floating-point environment changed"),
    ROW(flushes, "threads", "create left the floating-point environment changed"),
    ROW(kernel_rounds_up, "lifecycle", "the kernel kernel_rounds_up/mix left the floating-point environment changed: found rounding up"),
    ROW(kernel_flushes, "lifecycle", "the kernel kernel_flushes/mix left the floating-point environment changed"),
    ROW(kernel_flushes, "capture", "the kernel kernel_flushes/mix left the floating-point environment changed"),
    ROW(kernel_takes_heap, "lifecycle", "malloc was called in run, or by a kernel"),
    ROW(run_takes_heap, "lifecycle", "malloc was called in run"),
    ROW(run_takes_heap, "refusals", "free was called in run"),
    PLAIN_ROW(run_maps, "lifecycle", "mmap was called in run"),
    ROW(looks_at_tokens, "lifecycle", TOUCHED("reads") " the step's arrays from host code"),
    ROW(looks_at_weight, "lifecycle", TOUCHED("reads") " a weight from host code"),
    ROW(looks_at_cache, "lifecycle", TOUCHED("reads") " the keys of a layer from host code"),
    ROW(writes_workspace, "lifecycle", TOUCHED("writes") " the workspace from host code"),
    ROW(writes_workspace, "capture", TOUCHED("writes") " the workspace from host code"),
    ROW(reports_twice, "lifecycle", "load_weights reported 2 errors, wanted one"),
    ROW(reports_success, "lifecycle", "create reported an error and returned FTK_OK: found 'nothing is wrong'"),
    ROW(reports_for_reader, "failures", "create reported FTK_E_CKPT_METADATA a second time"),
    PLAIN_ROW(exits, "lifecycle", "exit was called"),
    ROW(exits, "destroy", "ended with exit code 3"),
    PLAIN_ROW(aborts, "lifecycle", "abort was called"),
    ROW(catches_signals, "lifecycle", "was called for signal 10"),
    ROW(crashes, "lifecycle", CRASHED),
    ROW(hangs, "lifecycle", "no end after 1 s"),
    ROW(leaks, "lifecycle", "1 block of host->alloc is not released after destroy"),
    PLAIN_ROW(leaks_heap, "lifecycle", "bytes of the heap behind"),
    ROW(leaks_file, "lifecycle", "create left the number of open files changed"),
    ROW(leaks_socket, "lifecycle", "as socket:"),
    PLAIN_ROW(leaks_mapping, "lifecycle", "each life of a model leaves 102400 bytes of mappings behind"),
    ROW(releases_twice, "lifecycle", "released twice"),
    ROW(writes_behind_block, "lifecycle", "written beyond"),
    ROW(writes_behind_struct, "lifecycle", "beyond the struct_size"),
    ROW(positive_status, "lifecycle", "attach_cache returned the positive status 1"),
    ROW(silent, "lifecycle", "load_weights failed with FTK_E_CKPT_TENSOR and reported nothing"),
    ROW(no_pretokenizer, "lifecycle", "no pre-tokenizer pattern"),
    ROW(wrong_plan, "lifecycle", "the plan of token_embd.weight"),
    ROW(run_allocates, "lifecycle", "alloc was called in run"),
    ROW(run_allocates, "capture", "in run while the host captures"),
    ROW(run_reads, "capture", "checkpoint_reader's get_u64 was called in run while the host"),
    ROW(writes_behind_workspace, "lifecycle", "bytes before or behind the workspace"),
    ROW(states_little_workspace, "lifecycle", "outside the workspace that the plan states"),
    ROW(writes_behind_state, "lifecycle", "behind the 256 of a sequence's state"),
    ROW(writes_arrays, "lifecycle", "run wrote to the step's arrays"),
    ROW(leaves_logits, "lifecycle", "unwritten or not finite"),
    ROW(leaves_layers, "rows", "192 of 192 layer outputs unwritten"),
    ROW(other_stream, "lifecycle", "a stream that is not this step's"),
    ROW(destroys_late_only, "destroy", CRASHED),
    ROW(takes_any_option, "refusals", "an unknown key in provider_options was accepted"),
    ROW(takes_any_flag, "refusals", "a step with an unknown bit in `required` was accepted"),
    ROW(long_chat_message, "chat", "more than message_size bytes"),
    ROW(silent_chat, "chat", "left no message"),
    ROW(ignores_failure, "failures", "run returned FTK_OK although operators->embed failed"),
    ROW(leaks_on_failure, "failures", "not released after the failure of get_u64"),
    ROW(silent_on_failure, "failures", "run failed with FTK_E_DEVICE_TRANSIENT and reported nothing"),
    ROW(crashes_on_failure, "failures", CRASHED),
    ROW(crashes_without_memory, "memory", CRASHED),
    ROW(shares_state, "threads", "models share something that changes"),
    ROW(counts_rows, "rows", "logits differ from those of the same tokens row by row, in chunks"),
    ROW(wrong_from_25_rows, "rows", "those of the same tokens in steps of 16 rows, in a step of 25 rows"),
    ROW(wrong_from_300_rows, "rows", "those of the same tokens in steps of 16 rows, in a step of 512 rows"),
    ROW(wrong_from_25_sequences, "capture", "when a captured step of 33 rows is replayed"),
    ROW(fast_wrong_from_25_rows, "variants", "fast_wrong_from_25_rows/gate_fast: a step of 25 rows gives other"),
    ROW(fast_wrong_from_300_rows, "variants", "fast_wrong_from_300_rows/gate_fast: a step of 512 rows gives other"),
    ROW(fast_reads_range, "ranges", "may not depend on the range"),
    ROW(reads_stale_workspace, "rows", "over other contents of the workspace"),
    ROW(writes_for_padding, "rows", "the state of a sequence that has no row"),
    ROW(counts_slots, "rows", ", which belongs to no sequence of the step, was written"),
    ROW(counts_slots, "capture", ", which belongs to no sequence of the step, was written"),
    ROW(reads_next_slot, "rows", ", which belongs to no sequence of the step, was read"),
    ROW(bakes_tokens, "capture", "when a captured step of 1 rows is replayed"),
    ROW(reads_range, "ranges", "may not depend on the range"),
    ROW(changes_arguments, "ranges", "changed its arguments"),
    ROW(one_ulp_off, "variants", "differs from the reference over the values of a step"),
    ROW(wrong_sign_of_zero, "variants", "over negative zeros"),
    ROW(crashes_on_extremes, "variants", CRASHED),
    ROW(drops_nan, "variants", "over NaN by more"),
    ROW(bounds_infinity, "variants", "over infinities by more"),
    ROW(drops_denormals, "variants", "differs from the reference over"),
};
/* clang-format on */

int main(void) {
    return cmocka_run_group_tests_name("test_conformance", tests, set_up, tear_down);
}
