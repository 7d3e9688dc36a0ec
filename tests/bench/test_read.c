/*
 * test_read.c: `freetoken-bench read` as a program: its rows hold what was read, figures that
 * do not come from storage are void, and what cannot be measured is refused.
 */
#include "loader/scratch.h"

#include "cli/output.h"

#include <jansson.h>

const char fti_cli_program_name[] = "test_read";

#define MODEL FTK_TEST_DATA "/tiny-story-qwen36-ud-q4_k_m.gguf"

/* The program's output, standard error included; free(). */
static char *bench_read(const char *arguments, int *code) {
    char *out = NULL;
    size_t size = 0;
    FILE *pipe = popen(format("%s read %s 2>&1", FTK_BENCH_BIN, arguments).s, "re");
    assert_non_null(pipe);
    assert_true(getdelim(&out, &size, 0, pipe) > 0);
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    *code = WEXITSTATUS(status);
    return out;
}

static void refused(const char *arguments, int wanted, const char *part) {
    int code;
    char *out = bench_read(arguments, &code);
    if (code != wanted || !strstr(out, part))
        fail_msg("'%s' gave %d: %s; wanted %d and '%s'", arguments, code, out, wanted, part);
    free(out);
}

static json_int_t number(const json_t *row, const char *part, const char *key) {
    const json_t *value = json_object_get(json_object_get(row, part), key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void check_row(const json_t *row, const char *order, uint64_t file_bytes) {
    const json_t *figure = json_object_get(json_object_get(row, "figures"), "read_gb_s");
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(row, "settings"), "order")), order);
    assert_int_equal(number(row, "settings", "file_bytes"), file_bytes);
    assert_int_equal(number(row, "knobs", "fetch.threads"), 3);
    assert_int_equal(number(row, "knobs", "fetch.chunk"), 65536);
    json_int_t sample = number(row, "settings", "sample_bytes");
    assert_int_equal(number(row, "details", "asked_bytes"), 3 * sample);
    assert_true(sample > 0 && (uint64_t)sample <= file_bytes);
    if (strcmp(order, "sequential") == 0) assert_int_equal(sample, file_bytes);
    if (json_is_true(json_object_get(row, "valid"))) {
        assert_true(20 * number(row, "details", "storage_bytes") >= 19 * 3 * sample);
        assert_int_equal(json_integer_value(json_object_get(figure, "count")), 2);
        assert_true(json_number_value(json_object_get(figure, "median")) > 0.0);
    } else {
        print_message("skip: %s\n", json_string_value(json_object_get(row, "void_reason")));
    }
}

static void test_rows(void **state) {
    (void)state;
    struct stat info;
    assert_int_equal(stat(MODEL, &info), 0);
    int code;
    char *out = bench_read(MODEL " --json --threads 3 --chunk 65536 --repeat 2", &code);
    /* If a row is void, an error line says so. */
    assert_non_null(strchr(out, '{'));
    json_t *json = json_loads(strchr(out, '{'), JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(json);
    const json_t *rows = json_object_get(json, "rows");
    assert_int_equal(json_array_size(rows), 2);
    check_row(json_array_get(rows, 0), "sequential", (uint64_t)info.st_size);
    check_row(json_array_get(rows, 1), "experts", (uint64_t)info.st_size);
    json_decref(json);
    free(out);
}

/* In a file system that is memory nothing comes from storage. */
static void test_no_storage(void **state) {
    (void)state;
    char path[] = "/dev/shm/ftk-read-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) {
        print_message("skip: no /dev/shm\n");
        return;
    }
    size_t size;
    unsigned char *data = read_file(MODEL, &size);
    ssize_t written = write(fd, data, size);
    free(data);
    assert_int_equal(close(fd), 0);
    if (written == (ssize_t)size)
        refused(format("%s --repeat 1", path).s, 1,
                "storage delivered 0: the others were in memory");
    else
        print_message("skip: no room in /dev/shm\n");
    assert_int_equal(unlink(path), 0);
}

static void test_refused(void **state) {
    (void)state;
    refused("", 2, "FILE");
    refused(MODEL " --chunk 1000", 2, "--chunk: 1000 is not a multiple of 4096");
    refused(MODEL " --chunk 67112960", 2, "--chunk");
    refused(MODEL " --threads 0", 2, "--threads: '0' is neither auto");
    refused(MODEL " --threads 65", 2, "from 1 to 64");
    refused(MODEL " --direct perhaps", 2, "--direct: 'perhaps' is none of auto, on and off");
    refused("/nowhere.gguf", 5, "/nowhere.gguf: cannot open");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_no_storage),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
