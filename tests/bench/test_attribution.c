/* test_attribution.c: which differences between two rows may be put down to one cause. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attribution.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/session.h"
#include "subject.h"

const char fti_cli_program_name[] = "test_attribution";

#define MODEL FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"

static const char provenance_text[] =
    "{\"libfreetoken\":\"0.1.0\",\"config\":\"a.yaml\","
    "\"provider\":{\"name\":\"p\",\"path\":\"/p.so\",\"sha256\":\"00\",\"inode\":1},"
    "\"checkpoint\":{\"path\":\"m\",\"container\":\"gguf\",\"bytes\":10},"
    "\"backend\":{\"kind\":\"cpu\",\"threads\":2,\"capabilities\":{\"cpu.threads\":2}},"
    "\"policy\":{\"policy.fused\":{\"value\":\"auto\",\"origin\":\"default\"},"
    "\"backend.threads\":{\"value\":2,\"origin\":\"default\",\"asked\":\"auto\"},"
    "\"memory.device\":{\"value\":1000,\"origin\":\"default\",\"asked\":\"auto\"},"
    "\"scheduler.max_running\":{\"value\":8,\"origin\":\"default\"}},"
    "\"variants\":[{\"operation\":\"o\",\"chosen\":\"v\",\"passed_over\":[]}],\"notes\":[]}";

static void make_row(fti_bench_row *row) {
    fti_bench_row_init(row, "decode", FTI_BENCH_MODEL_EXECUTION);
    fti_bench_row_set(&row->provenance, json_loads(provenance_text, 0, NULL));
    fti_bench_row_set(&row->settings,
                      json_pack("{s:s, s:i, s:i}", "model", "m", "tokens", 8, "repeat", 10));
    fti_bench_row_set(&row->machine, json_pack("{s:s, s:[f]}", "cpu", "c", "load_average", 0.5));
}

/* Sets the member at the path of keys, separated by '/'. */
static void change(json_t *root, const char *path, json_t *value) {
    char key[64];
    const char *slash = strchr(path, '/');
    (void)snprintf(key, sizeof key, "%.*s", slash ? (int)(slash - path) : 60, path);
    if (slash)
        change(json_object_get(root, key), slash + 1, value);
    else
        json_object_set_new(root, path, value);
}

static void make_pair(fti_bench_row rows[2]) {
    make_row(&rows[0]);
    make_row(&rows[1]);
}

/* Compares the pair as `cause`: allowed if `part` is NULL, else refused with it. */
static void judge(fti_bench_row rows[2], fti_bench_cause cause, const char *part) {
    fti_bench_differences d;
    fti_bench_differ(&rows[0], &rows[1], &d);
    char *why = fti_bench_refusal(&d, cause);
    if (part && (!why || !strstr(why, part))) fail_msg("'%s' lacks '%s'", why, part);
    if (!part && why) fail_msg("refused: %s", why);
    free(why);
    fti_bench_differences_free(&d);
    fti_bench_row_free(&rows[0]);
    fti_bench_row_free(&rows[1]);
}

static void one_knob(void **state) {
    (void)state;
    fti_bench_row rows[2];
    make_pair(rows);
    judge(rows, FTI_BENCH_BACKEND, NULL); /* the same twice: that measures the noise */
    make_pair(rows);
    change(rows[1].provenance, "policy/backend.threads/value", json_integer(1));
    change(rows[1].provenance, "backend/capabilities/cpu.threads", json_integer(1));
    judge(rows, FTI_BENCH_BACKEND, NULL);
    make_pair(rows);
    change(rows[1].provenance, "policy/backend.threads/value", json_integer(1));
    judge(rows, FTI_BENCH_MODEL_EXECUTION,
          "other knobs differ too: backend.threads (2 and 1, a knob of backend); make "
          "them equal, or name their cause");
    make_pair(rows);
    change(rows[1].provenance, "policy/scheduler.max_running/value", json_integer(1));
    judge(rows, FTI_BENCH_SCHEDULING, NULL);
    make_pair(rows);
    change(rows[1].provenance, "policy/policy.fused/value", json_string("off"));
    change(rows[1].provenance, "variants", json_array());
    judge(rows, FTI_BENCH_MODEL_EXECUTION, NULL);
    make_pair(rows);
    change(rows[1].provenance, "checkpoint/container", json_string("ftw"));
    judge(rows, FTI_BENCH_REPRESENTATION, NULL);
}

/* Planted: a second knob of another cause was changed as well. */
static void second_knob(void **state) {
    (void)state;
    fti_bench_row rows[2];
    make_pair(rows);
    change(rows[1].provenance, "policy/scheduler.max_running/value", json_integer(1));
    change(rows[1].provenance, "policy/backend.threads/value", json_integer(1));
    judge(rows, FTI_BENCH_SCHEDULING, "backend.threads (2 and 1, a knob of backend)");
    make_pair(rows);
    change(rows[1].provenance, "policy/scheduler.max_running/value", json_integer(1));
    change(rows[1].provenance, "policy/backend.threads/value", json_integer(1));
    judge(rows, FTI_BENCH_BACKEND, "scheduler.max_running (8 and 1, a knob of scheduling)");
}

static void work_must_agree(void **state) {
    (void)state;
    fti_bench_row rows[2];
    make_pair(rows);
    change(rows[1].settings, "tokens", json_integer(9));
    judge(rows, FTI_BENCH_BACKEND, "settings.tokens (8 and 9)");
    make_pair(rows);
    change(rows[1].settings, "prompt_hash", json_string("x")); /* in one row alone */
    judge(rows, FTI_BENCH_BACKEND, "settings.prompt_hash (null and \"x\")");
    make_pair(rows);
    change(rows[1].machine, "cpu", json_string("d"));
    judge(rows, FTI_BENCH_BACKEND, "machine.cpu");
    make_pair(rows);
    free(rows[1].commit);
    rows[1].commit = strdup("other");
    judge(rows, FTI_BENCH_BACKEND, "commit (");
    make_pair(rows);
    free(rows[1].scenario);
    rows[1].scenario = strdup("batch");
    judge(rows, FTI_BENCH_BACKEND, "scenario (\"decode\" and \"batch\")");
}

/* What the table does not know is no reason to look away. */
static void unknown(void **state) {
    (void)state;
    fti_bench_row rows[2];
    make_pair(rows);
    change(rows[1].provenance, "warp_drive", json_true());
    judge(rows, FTI_BENCH_BACKEND, "does not know provenance.warp_drive (null and true)");
    make_pair(rows); /* the same in both: nothing to know */
    change(rows[0].provenance, "warp_drive", json_true());
    change(rows[1].provenance, "warp_drive", json_true());
    judge(rows, FTI_BENCH_BACKEND, NULL);
}

/* A consequence without a cause: something turned a knob that nobody sees. */
static void unexplained(void **state) {
    (void)state;
    fti_bench_row rows[2];
    make_pair(rows);
    change(rows[1].provenance, "variants", json_array());
    judge(rows, FTI_BENCH_BACKEND, "no knob differs that would explain provenance.variants");
}

/* A knob differs, but not one that has such consequences. */
static void wrong_consequence(void **state) {
    (void)state;
    static const struct {
        const char *knob, *path;
        fti_bench_cause cause;
        bool allowed;
    } cases[] = {
        {"scheduler.max_running", "variants", FTI_BENCH_SCHEDULING, false},
        {"scheduler.max_running", "backend/threads", FTI_BENCH_SCHEDULING, false},
        {"scheduler.max_running", "memory", FTI_BENCH_SCHEDULING, true},
        {"scheduler.max_running", "backend/placement", FTI_BENCH_SCHEDULING, false},
        {"scheduler.max_running", "backend/placement.huge_pages_mapped", FTI_BENCH_SCHEDULING,
         true},
        {"scheduler.max_running", "kv_type", FTI_BENCH_SCHEDULING, false},
        {"backend.threads", "memory", FTI_BENCH_BACKEND, false},
        {"backend.threads", "variants", FTI_BENCH_BACKEND, true},
        {"backend.threads", "provider/levels", FTI_BENCH_BACKEND, false},
        {"policy.fused", "backend/kernels", FTI_BENCH_MODEL_EXECUTION, false},
        {"policy.fused", "memory", FTI_BENCH_MODEL_EXECUTION, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fti_bench_row rows[2];
        char knob[64];
        make_pair(rows);
        (void)snprintf(knob, sizeof knob, "policy/%s/value", cases[i].knob);
        change(rows[1].provenance, knob, json_integer(1));
        change(rows[1].provenance, cases[i].path,
               strcmp(cases[i].path, "memory") ? json_integer(5) : json_pack("{s:i}", "total", 5));
        judge(rows, cases[i].cause, cases[i].allowed ? NULL : " explains provenance.");
    }
}

/* Two changed trees of one commit. */
static void other_build(void **state) {
    (void)state;
    fti_bench_row rows[2];
    make_pair(rows);
    rows[1].build[5] = rows[1].build[5] == '0' ? '1' : '0';
    judge(rows, FTI_BENCH_BACKEND, "not so are build (");
}

/* Of what identifies it, and of nothing else. */
static void digests(void **state) {
    (void)state;
    fti_bench_row rows[2];
    char a[17], b[17];
    make_pair(rows);
    change(rows[1].provenance, "provider/inode", json_integer(2));
    fti_bench_provenance_digest(rows[0].provenance, a);
    fti_bench_provenance_digest(rows[1].provenance, b);
    assert_int_equal(strlen(a), 16);
    assert_string_equal(a, b);
    change(rows[1].provenance, "provider/sha256", json_string("01"));
    fti_bench_provenance_digest(rows[1].provenance, b);
    assert_string_not_equal(a, b);
    json_t *none = json_null();
    fti_bench_provenance_digest(none, b);
    assert_string_equal(b, "");
    fti_bench_row_free(&rows[0]);
    fti_bench_row_free(&rows[1]);
}

static void ignored(void **state) {
    (void)state;
    fti_bench_row rows[2];
    fti_bench_differences d;
    make_pair(rows);
    change(rows[1].provenance, "config", json_string("b.yaml"));
    change(rows[1].provenance, "provider/inode", json_integer(2));
    change(rows[1].provenance, "provider/path", json_string("/other/p.so")); /* same digest */
    change(rows[1].provenance, "policy/backend.threads/origin", json_string("config"));
    json_object_del(
        json_object_get(json_object_get(rows[1].provenance, "policy"), "backend.threads"), "asked");
    change(rows[1].provenance, "policy/memory.device/value", json_integer(1001)); /* was free */
    change(rows[1].machine, "load_average", json_pack("[f]", 0.75));
    change(rows[1].settings, "model", json_string("./m"));
    change(rows[1].settings, "repeat", json_integer(20));
    fti_bench_differ(&rows[0], &rows[1], &d);
    assert_int_equal(json_array_size(d.ignored), 8); /* listed, not hidden */
    fti_bench_differences_free(&d);
    judge(rows, FTI_BENCH_BACKEND, NULL);
}

/* A budget that somebody set is a knob, as against what happened to be free. */
static void budget_set(void **state) {
    (void)state;
    fti_bench_row rows[2];
    make_pair(rows);
    json_object_del(json_object_get(json_object_get(rows[1].provenance, "policy"), "memory.device"),
                    "asked");
    judge(rows, FTI_BENCH_BACKEND, "memory.device (\"auto\" and 1000, a knob of scheduling)");
}

static void at_most_a_line(void **state) {
    (void)state;
    fti_bench_row rows[2];
    make_pair(rows);
    for (int i = 0; i < 30; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "field_%02d", i);
        change(rows[1].provenance, name, json_integer(i));
    }
    judge(rows, FTI_BENCH_BACKEND, " and 26 more");
}

/* Every leaf of an engine's own provenance has its place in the table. */
static void expect_known(const char *path, json_t *value) {
    const char *key;
    json_t *member;
    char below[256];
    fti_bench_cause cause;
    if (json_is_object(value) && json_object_size(value)) {
        json_object_foreach(value, key, member) {
            (void)snprintf(below, sizeof below, "%s.%s", path, key);
            expect_known(below, member);
        }
    } else if (fti_bench_classify(path, &cause) == FTI_BENCH_UNKNOWN) {
        fail_msg("%s has no place in bench/attribution.c", path);
    }
}

static void knows_the_engine(void **state) {
    (void)state;
    const fti_cli_common common = {.config = FTK_CONFIG};
    const fti_bench_values values = {.repeat = 1, .no_bandwidth = true};
    fti_bench_task task;
    ftk_config *config;
    fti_bench_subject subject;
    fti_bench_row row;
    assert_int_equal(fti_bench_make_task(&values, "decode", &task), 0);
    assert_int_equal(fti_bench_config(&common, NULL, true, NULL, NULL, &config), 0);
    assert_int_equal(fti_bench_subject_open(&subject, &task, config, MODEL), 0);
    fti_bench_subject_row(&subject, &row);
    expect_known("provenance", row.provenance);
    expect_known("settings", row.settings);
    expect_known("machine", row.machine);
    assert_string_equal(fti_cli_member(row.knobs, "backend.kind"), "cpu");
    assert_int_equal(json_integer_value(json_object_get(row.knobs, "scheduler.max_running")), 1);
    fti_bench_row_free(&row);
    fti_bench_subject_close(&subject);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_knob),          cmocka_unit_test(second_knob),
        cmocka_unit_test(work_must_agree),   cmocka_unit_test(unknown),
        cmocka_unit_test(unexplained),       cmocka_unit_test(ignored),
        cmocka_unit_test(budget_set),        cmocka_unit_test(at_most_a_line),
        cmocka_unit_test(wrong_consequence), cmocka_unit_test(other_build),
        cmocka_unit_test(digests),           cmocka_unit_test(knows_the_engine),
    };
    return cmocka_run_group_tests_name("test_attribution", tests, NULL, NULL);
}
