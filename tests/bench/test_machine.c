/*
 * test_machine.c: what freetoken-bench says of the machine: fields that are there and can
 * be true, a bandwidth that can be one, GPUs read from files that the test wrote.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "bandwidth.h"
#include "machine.h"

const char fti_cli_program_name[] = "test_machine";

static char work[] = "/tmp/ftk-machine-XXXXXX";

/* ---- the description ---- */

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("%s is no number", key);
    return json_number_value(value);
}

static void has_every_field(void **state) {
    (void)state;
    static const char *const keys[] = {
        "cpu",          "cpu_flags",          "cores_online", "cores_allowed",
        "cpu_quota",    "threads_allowed",    "governor",     "cache_bytes",
        "memory_bytes", "memory_limit_bytes", "kernel",       "transparent_hugepages",
        "numa_nodes",   "load_average",       "gpus",         "read_bandwidth"};
    json_t *m = fti_bench_machine();
    for (size_t i = 0; i < FTI_COUNT(keys); i++)
        if (!json_object_get(m, keys[i])) fail_msg("no %s", keys[i]);
    assert_int_equal(json_object_size(m), FTI_COUNT(keys));
    assert_true(json_is_null(json_object_get(m, "read_bandwidth")));
    json_decref(m);
}

static void fields_are_sane(void **state) {
    (void)state;
    json_t *m = fti_bench_machine();
    double allowed = number(m, "cores_allowed");
    double threads = number(m, "threads_allowed");
    assert_true(allowed >= 1 && allowed <= number(m, "cores_online"));
    assert_true(threads >= 1 && threads <= allowed);
    assert_true(number(m, "memory_bytes") > 1e8);
    const json_t *limit = json_object_get(m, "memory_limit_bytes");
    if (json_is_number(limit)) assert_true(json_number_value(limit) < number(m, "memory_bytes"));
    const json_t *quota = json_object_get(m, "cpu_quota");
    if (json_is_number(quota)) assert_true(threads <= ceil(json_number_value(quota)));
    assert_int_equal(json_array_size(json_object_get(m, "load_average")), 3);
    for (size_t i = 0; i < 3; i++) {
        double load = json_number_value(json_array_get(json_object_get(m, "load_average"), i));
        assert_true(load >= 0 && load < 1e6);
    }
    assert_non_null(strstr(json_string_value(json_object_get(m, "kernel")), "Linux"));
    json_decref(m);
}

/* The flags and the backend look at the same processor, by different ways. */
static void flags_agree_with_the_backend(void **state) {
    (void)state;
    json_t *m = fti_bench_machine();
    const json_t *flags = json_object_get(m, "cpu_flags");
    bool listed = false;
    for (size_t i = 0; i < json_array_size(flags); i++)
        listed = listed || strcmp(json_string_value(json_array_get(flags, i)), "avx2") == 0;
#if defined(__x86_64__)
    assert_true(listed == ((fti_cpu_features() & FTI_CPU_MASK_AVX2) != 0));
#else
    assert_false(listed);
#endif
    json_decref(m);
}

static void is_looked_at_once(void **state) {
    (void)state;
    json_t *before = fti_bench_machine();
    fti_bench_look_at_machine(true);
    json_t *after = fti_bench_machine();
    assert_true(json_equal(before, after));
    (void)json_object_del(after, "cpu");
    json_t *again = fti_bench_machine(); /* a copy was changed, not what was seen */
    assert_true(json_equal(before, again));
    json_decref(before);
    json_decref(after);
    json_decref(again);
}

/* ---- bandwidth ---- */

/* Slower than a disk, or faster than any memory: then it measured something else. */
static void assert_bandwidth(double rate) {
    assert_true(isfinite(rate));
    if (rate < 1e7 || rate > 2e13) fail_msg("%g bytes per second", rate);
}

static void bandwidth_is_one(void **state) {
    (void)state;
    fti_bench_bandwidth b;
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(fti_bench_measure_bandwidth(&b, &err), FTK_OK);
    assert_bandwidth(b.one_thread);
    assert_bandwidth(b.all_threads);
    assert_int_equal(b.threads, fti_cpu_threads_allowed());
    assert_true(b.buffer_bytes >= 4096 && b.buffer_bytes <= UINT64_C(1) << 30);
    assert_true(b.buffer_bytes <= fti_cpu_memory_available());
}

/* Sixteen times the bytes take longer, or they were not all read. */
static void every_byte_is_read(void **state) {
    (void)state;
    fti_pool *pool;
    ftk_error err = FTK_ERROR_INIT;
    const uint64_t bytes = UINT64_C(32) << 20;
    double small = 1e9, large = 1e9;
    assert_int_equal(fti_pool_create(1, &pool, &err), FTK_OK);
    void *memory = fti_bench_map(pool, bytes);
    assert_non_null(memory);
    for (int i = 0; i < 9; i++) {
        small = fmin(small, fti_bench_read(pool, memory, bytes / 16));
        large = fmin(large, fti_bench_read(pool, memory, bytes));
    }
    fti_bench_unmap(memory, bytes);
    fti_pool_destroy(pool);
    if (!(large > 4 * small)) fail_msg("%g s for a sixteenth, %g s for all", small, large);
}

/* ---- GPUs ---- */

static void make_folders(char *path) {
    for (char *slash = path + strlen(work) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = 0;
        if (mkdir(path, 0700) != 0) assert_int_equal(errno, EEXIST);
        *slash = '/';
    }
}

static void put(const char *root, const char *path, const char *text) {
    char whole[256];
    (void)snprintf(whole, sizeof whole, "%s/%s%s", work, root, path);
    make_folders(whole);
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    (void)fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static json_t *gpus_below(const char *root) {
    char whole[128];
    (void)snprintf(whole, sizeof whole, "%s/%s", work, root);
    return fti_bench_gpus(whole);
}

static void assert_gpu(const json_t *list, size_t i, const char *name, const char *driver) {
    const json_t *gpu = json_array_get(list, i);
    assert_string_equal(json_string_value(json_object_get(gpu, "name")), name);
    assert_string_equal(json_string_value(json_object_get(gpu, "driver")), driver);
}

static void gpus_of_nvidia(void **state) {
    (void)state;
    put("nv", "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\n"
        "GCC version:  gcc version 12.2.0\n");
    put("nv", "/proc/driver/nvidia/gpus/0000:01:00.0/information",
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 33\n");
    put("nv", "/proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: \t\t NVIDIA L4\n");
    json_t *list = gpus_below("nv");
    assert_int_equal(json_array_size(list), 2);
    assert_gpu(list, 0, "NVIDIA H200", "nvidia 570.86.15");
    assert_gpu(list, 1, "NVIDIA L4", "nvidia 570.86.15");
    json_decref(list);
}

/* The first node is the processor. */
static void gpus_of_amd(void **state) {
    (void)state;
    put("amd", "/sys/class/kfd/kfd/topology/nodes/0/properties",
        "cpu_cores_count 16\ngfx_target_version 0\n");
    put("amd", "/sys/class/kfd/kfd/topology/nodes/0/name", "\n");
    put("amd", "/sys/class/kfd/kfd/topology/nodes/1/properties",
        "cpu_cores_count 0\ngfx_target_version 90010\nvendor_id 4098\n");
    put("amd", "/sys/class/kfd/kfd/topology/nodes/1/name", "aldebaran\n");
    put("amd", "/sys/class/kfd/kfd/topology/nodes/2/properties", "gfx_target_version 120001\n");
    put("amd", "/sys/class/kfd/kfd/topology/nodes/2/name", "ip discovery\n");
    put("amd", "/sys/class/drm/card0/device/uevent", "DRIVER=amdgpu\nPCI_ID=1002:740F\n");
    put("amd", "/sys/module/amdgpu/version", "6.7.0\n");
    json_t *list = gpus_below("amd");
    assert_int_equal(json_array_size(list), 2);
    assert_gpu(list, 0, "aldebaran gfx90a", "amdgpu 6.7.0");
    assert_gpu(list, 1, "ip discovery gfx1201", "amdgpu 6.7.0");
    json_decref(list);
}

static void gpus_of_others(void **state) {
    (void)state;
    put("drm", "/sys/class/drm/card0/device/uevent", "DRIVER=ast\nPCI_ID=1A03:2000\n");
    put("drm", "/sys/class/drm/card1/device/uevent", "DRIVER=xe\nPCI_ID=8086:E20B\n");
    put("drm", "/sys/class/drm/card1-DP-1/device/uevent", "DRIVER=xe\nPCI_ID=8086:E20B\n");
    json_t *list = gpus_below("drm");
    assert_int_equal(json_array_size(list), 1);
    assert_gpu(list, 0, "PCI 8086:E20B", "xe");
    json_decref(list);
}

static void no_gpu_is_null(void **state) {
    (void)state;
    json_t *list = gpus_below("none");
    assert_true(json_is_null(list));
    json_decref(list);
}

static int begin(void **state) {
    (void)state;
    return mkdtemp(work) ? 0 : -1;
}

static int end(void **state) {
    char command[96];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", work);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_every_field),
        cmocka_unit_test(fields_are_sane),
        cmocka_unit_test(flags_agree_with_the_backend),
        cmocka_unit_test(is_looked_at_once),
        cmocka_unit_test(bandwidth_is_one),
        cmocka_unit_test(every_byte_is_read),
        cmocka_unit_test(gpus_of_nvidia),
        cmocka_unit_test(gpus_of_amd),
        cmocka_unit_test(gpus_of_others),
        cmocka_unit_test(no_gpu_is_null),
    };
    return cmocka_run_group_tests_name("test_machine", tests, begin, end);
}
