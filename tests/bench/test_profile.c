/* test_profile.c: the command `profile`: its lines are the demo model's, and add up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#define MODEL FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"

/* What the command prints, an object; `line` is split by a shell. */
static json_t *bench(const char *line) {
    char *command = NULL;
    assert_true(asprintf(&command,
                         "'%s' %s -m '%s' --config '%s' --no-bandwidth -t 1 --prompt-tokens 8 -n 5 "
                         "--repeat 2 --json",
                         FTK_BENCH_BIN, line, MODEL, FTK_CONFIG) > 0);
    FILE *out = popen(command, "re");
    assert_non_null(out);
    json_t *json = json_loadf(out, 0, NULL);
    assert_int_equal(pclose(out), 0);
    free(command);
    assert_non_null(json);
    return json;
}

static const json_t *at(const json_t *json, const char *key) {
    const json_t *member = json_object_get(json, key);
    if (!member) fail_msg("no key '%s'", key);
    return member;
}

/* Calls, multiply-adds and seconds of the lines of one operator in a step. */
typedef struct line_sum {
    double calls, products, seconds;
} line_sum;

static line_sum sum_lines(const json_t *profile, const char *operation) {
    const json_t *lines = at(profile, "operators");
    line_sum sum = {0};
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        if (operation && strcmp(json_string_value(at(line, "operator")), operation) != 0) continue;
        sum.calls += json_number_value(at(line, "calls"));
        sum.products += json_number_value(json_object_get(line, "products"));
        sum.seconds += json_number_value(at(line, "seconds"));
    }
    return sum;
}

static void expect_calls(const json_t *profile, const char *operation, double calls) {
    line_sum sum = sum_lines(profile, operation);
    if (sum.calls != calls) fail_msg("%s: %g calls, wanted %g", operation, sum.calls, calls);
    assert_true(sum.seconds > 0.0);
}

/* The lines are those of the demo model, and add up to the step. */
static void check_profile(const json_t *profile, double rows, json_int_t steps) {
    assert_int_equal(json_integer_value(at(profile, "steps")), steps);
    assert_true(json_number_value(at(profile, "rows")) == rows);
    expect_calls(profile, "embed", 1);
    expect_calls(profile, "qwen36/delta", 6);
    expect_calls(profile, "attention", 2);
    expect_calls(profile, "route", 8);
    expect_calls(profile, "grouped_matmul", 24);
    /* Gate, up and down of four experts of 256 times 256 in eight layers. */
    line_sum experts = sum_lines(profile, "grouped_matmul");
    assert_true(experts.products == rows * 8 * 3 * 4 * 256 * 256);
    double parts = sum_lines(profile, NULL).seconds +
                   json_number_value(at(profile, "between_operators_s")) +
                   json_number_value(at(profile, "between_steps_s"));
    double step = json_number_value(at(profile, "step_s"));
    assert_true(parts > 0.999 * step && parts < 1.001 * step);
}

static void profiles(void **state) {
    (void)state;
    json_t *row = bench("profile"), *plain = bench("decode");
    assert_string_equal(json_string_value(at(row, "hash")), json_string_value(at(plain, "hash")));
    const json_t *profile = at(row, "profile");
    assert_true(json_number_value(at(at(profile, "floors"), "read_gb_s")) > 0.0);
    check_profile(at(profile, "decode"), 1, 2 * 4); /* the first token is the prompt's */
    check_profile(at(profile, "prompt"), 8, 2);
    json_decref(row);
    json_decref(plain);
}

/* Of four streams a step has four rows, and no more experts than there are. */
static void profiles_a_batch(void **state) {
    (void)state;
    json_t *row = bench("profile --scenario batch --batch 4");
    const json_t *decode = at(at(row, "profile"), "decode");
    assert_true(json_number_value(at(decode, "rows")) > 1.0);
    assert_true(json_number_value(at(decode, "rows")) <= 4.0);
    const json_t *lines = at(decode, "operators");
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        if (strcmp(json_string_value(at(line, "operator")), "grouped_matmul") != 0) continue;
        /* All sixteen experts in Q6_K, the widest type: 210 bytes for 256 columns. */
        double most = json_number_value(at(line, "calls")) * 16 * 256 * 210;
        double bytes = json_number_value(at(line, "bytes"));
        assert_true(bytes > most / 16 && bytes <= most);
    }
    json_decref(row);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(profiles),
        cmocka_unit_test(profiles_a_batch),
    };
    return cmocka_run_group_tests_name("test_profile", tests, NULL, NULL);
}
