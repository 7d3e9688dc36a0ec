/*
 * test_abi.c: the layout of the public structs, the rules of provider.h that a
 * program can check, and the X-macro list of results.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "abi/layout_level0.h"
#include "core/engine.h"
#include "freetoken/freetoken.h"
#include "freetoken/provider.h"

#define ASSERT_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " changed its size");
#define ASSERT_FIELD(type, field, offset, size)                                                    \
    _Static_assert(offsetof(type, field) == (offset) && sizeof(((type *)0)->field) == (size),      \
                   #type "." #field " moved or changed its size");
LAYOUT_LEVEL0(ASSERT_SIZE, ASSERT_FIELD)

/* Members of one struct lie side by side: what the table lists leaves no hole, so a
 * member missing from the table, and padding, are both seen here. */
#define SIZE_ROW(type, size)                 {#type, NULL, 0, size},
#define FIELD_ROW(type, field, offset, size) {#type, #field, offset, size},
static const struct {
    const char *type, *field;
    size_t offset, size;
} rows[] = {LAYOUT_LEVEL0(SIZE_ROW, FIELD_ROW)};

static void structs_have_no_holes(void **state) {
    (void)state;
    size_t end = 0, whole = 0;
    for (size_t i = 0; i < FTI_COUNT(rows); i++) {
        if (!rows[i].field) {
            assert_int_equal(end, whole);
            end = 0;
            whole = rows[i].size;
            assert_int_equal(whole % 8, 0);
            continue;
        }
        if (rows[i].offset != end) fail_msg("hole before %s.%s", rows[i].type, rows[i].field);
        end = rows[i].offset + rows[i].size;
    }
    assert_int_equal(end, whole);
}

static void init_macros_state_their_size(void **state) {
    (void)state;
    const ftk_error error = FTK_ERROR_INIT;
    const ftk_open_options open = FTK_OPEN_OPTIONS_INIT;
    const ftk_sampling sampling = FTK_SAMPLING_INIT;
    const ftk_generate_options generate = FTK_GENERATE_OPTIONS_INIT;
    const ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
    const ftk_evaluate_options evaluate = FTK_EVALUATE_OPTIONS_INIT;
    assert_int_equal(error.struct_size, sizeof error);
    assert_int_equal(open.struct_size, sizeof open);
    assert_int_equal(sampling.struct_size, sizeof sampling);
    assert_int_equal(generate.struct_size, sizeof generate);
    assert_int_equal(generate.sampling.struct_size, sizeof sampling);
    assert_int_equal(result.struct_size, sizeof result);
    assert_int_equal(evaluate.struct_size, sizeof evaluate);
}

/* A reader at an older size does not see younger members. */
static void size_decides_what_is_read(void **state) {
    (void)state;
    ftk_model_info info = {.struct_size = (uint32_t)offsetof(ftk_model_info, end_tokens)};
    assert_true(FTK_HAS(&info, end_token_count));
    assert_false(FTK_HAS(&info, end_tokens));
    info.struct_size = (uint32_t)sizeof info;
    assert_true(FTK_HAS(&info, pretokenizer));
}

/* Each interface has its own level; what is not offered cannot be hooked. */
static void interfaces_have_names_and_levels(void **state) {
    (void)state;
    static const char *const offered[] = {"checkpoint_reader", "operators", "kernels"};
    static const char *const absent[] = {"scheduler", "admission",  "residency", "capture",
                                         "Operators", "operators ", ""};
    ftk_error err = FTK_ERROR_INIT;
    const fti_backend_options options = {.threads = 1};
    ftk_engine engine = {.pid = 0};
    ftk_core_ctx ctx = {.engine = &engine};
    assert_int_equal(fti_cpu_backend_create(&options, &engine.backend, &err), FTK_OK);
    for (size_t i = 0; i < FTI_COUNT(offered); i++) {
        const uint32_t *table = fti_host.query(&ctx, fti_str(offered[i]), 0);
        assert_non_null(table);
        assert_int_equal(table[0] % 8, 0); /* struct_size */
        assert_in_range(table[0], 16, 4096);
        assert_int_equal(table[1], 0); /* level */
        assert_null(fti_host.query(&ctx, fti_str(offered[i]), 1));
        assert_null(fti_host.query(&ctx, fti_str(offered[i]), UINT32_MAX));
    }
    for (size_t i = 0; i < FTI_COUNT(absent); i++)
        assert_null(fti_host.query(&ctx, fti_str(absent[i]), 0));
    engine.backend->ops->destroy(engine.backend);
}

#define STATUS_ROW(name, number, text) {#name, number, text},
static const struct {
    const char *name;
    ftk_status number;
    const char *text;
} statuses[] = {FTK_STATUS_LIST(STATUS_ROW)};

static void statuses_are_one_list(void **state) {
    (void)state;
    for (size_t i = 0; i < FTI_COUNT(statuses); i++) {
        assert_string_equal(ftk_status_name(statuses[i].number), statuses[i].name);
        assert_string_equal(ftk_status_text(statuses[i].number), statuses[i].text);
        for (size_t j = 0; j < i; j++) assert_int_not_equal(statuses[i].number, statuses[j].number);
    }
    assert_string_equal(ftk_status_name(12345), "FTK_E_UNKNOWN");
    assert_non_null(ftk_status_text(12345));
}

static void families_are_exit_codes(void **state) {
    (void)state;
    assert_int_equal(ftk_status_exit_code(FTK_OK), 0);
    assert_int_equal(ftk_status_exit_code(FTK_E_CANCELLED), 1);
    assert_int_equal(ftk_status_exit_code(FTK_E_CONFIG_KEY), 3);
    assert_int_equal(ftk_status_exit_code(FTK_E_PROVIDER_DIGEST), 4);
    assert_int_equal(ftk_status_exit_code(FTK_E_CKPT_TRUNCATED), 5);
    assert_int_equal(ftk_status_exit_code(FTK_E_DOES_NOT_FIT), 6);
    assert_int_equal(ftk_status_exit_code(FTK_E_DEVICE_LOST), 7);
    assert_int_equal(ftk_status_exit_code(-99999), 1);
    assert_int_equal(ftk_status_exit_code(5), 1);
}

/* ---- base.h ---- */

static void messages_are_one_tidy_line(void **state) {
    (void)state;
    ftk_error error = FTK_ERROR_INIT;
    assert_int_equal(fti_fail(&error, FTK_E_ARGUMENT, "a\nb\tc%s", "\x1b[31m"), FTK_E_ARGUMENT);
    assert_string_equal(error.message, "a\\nb\\x09c\\x1b[31m");
    assert_int_equal(error.status, FTK_E_ARGUMENT);
    assert_int_equal(fti_fail(NULL, FTK_E_IO, "nobody listens"), FTK_E_IO);
}

static void arithmetic_is_checked(void **state) {
    (void)state;
    uint64_t out = 7;
    assert_false(fti_add_u64(UINT64_MAX, 1, &out));
    assert_true(fti_add_u64(UINT64_MAX - 1, 1, &out) && out == UINT64_MAX);
    assert_false(fti_mul_u64(1ull << 32, 1ull << 32, &out));
    assert_true(fti_mul_u64(1ull << 32, (1ull << 32) - 1, &out));
    assert_false(fti_align_u64(UINT64_MAX - 3, 32, &out));
    assert_true(fti_align_u64(33, 32, &out) && out == 64);
    assert_null(fti_realloc(NULL, SIZE_MAX, 2));
    assert_null(fti_calloc(SIZE_MAX, 2));
}

static void near_names_are_found(void **state) {
    (void)state;
    static const char *const names[] = {"backend", "memory", "scheduler"};
    const ftk_str close = FTK_STR("memroy"), far = FTK_STR("elephant"), empty = FTK_STR("");
    assert_string_equal(fti_nearest(close, names, 3), "memory");
    assert_null(fti_nearest(far, names, 3));
    assert_null(fti_nearest(empty, names, 3));
}

static void text_grows(void **state) {
    (void)state;
    fti_text text = {0};
    for (int i = 0; i < 1000; i++) fti_text_printf(&text, "%d,", i);
    assert_false(text.failed);
    assert_int_equal(text.size, 3890);
    assert_int_equal(strlen(text.data), text.size);
    char big[600];
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = 0;
    fti_text_printf(&text, "%s", big);
    assert_int_equal(text.size, 3890 + 599);
    fti_text_free(&text);
    assert_null(text.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(structs_have_no_holes),
        cmocka_unit_test(init_macros_state_their_size),
        cmocka_unit_test(size_decides_what_is_read),
        cmocka_unit_test(interfaces_have_names_and_levels),
        cmocka_unit_test(statuses_are_one_list),
        cmocka_unit_test(families_are_exit_codes),
        cmocka_unit_test(messages_are_one_tidy_line),
        cmocka_unit_test(arithmetic_is_checked),
        cmocka_unit_test(near_names_are_found),
        cmocka_unit_test(text_grows),
    };
    return cmocka_run_group_tests_name("test_abi", tests, NULL, NULL);
}
