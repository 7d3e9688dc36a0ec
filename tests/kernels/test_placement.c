/*
 * test_placement.c: where threads and memory are. Threads are never more than may run, those
 * of the pool stay where they are put and the application's stays free, memory goes to all
 * nodes if asked to, and the provenance says all of it.
 */
#include "rig.h"
#include "support/engine_fixture.h"

#include <dirent.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"

static fti_backend *backend_new(const fti_backend_options *options) {
    fti_backend *backend = NULL;
    ftk_error error = FTK_ERROR_INIT;
    if (fti_cpu_backend_create(options, &backend, &error) != FTK_OK) fail_msg("%s", error.message);
    return backend;
}

static uint32_t threads_of(const fti_backend *backend) {
    int64_t value = 0;
    assert_int_equal(backend->ops->capability(backend, fti_str("cpu.threads"), &value), FTK_OK);
    return (uint32_t)value;
}

/* This thread on the first `count` processors that it may use; false if there are fewer. */
static bool narrow_to(int count, cpu_set_t *before) {
    cpu_set_t some;
    CPU_ZERO(&some);
    assert_int_equal(sched_getaffinity(0, sizeof *before, before), 0);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&some) < count; i++)
        if (CPU_ISSET(i, before)) CPU_SET(i, &some);
    if (CPU_COUNT(&some) < count) return false;
    assert_int_equal(sched_setaffinity(0, sizeof some, &some), 0);
    return true;
}

static void no_more_threads_than_may_run(void **state) {
    (void)state;
    static const uint32_t asked[] = {0, 1, 2, 3, 1024, UINT32_MAX};
    cpu_set_t before;
    for (int processors = 1; processors <= 2; processors++) {
        if (!narrow_to(processors, &before)) break;
        uint32_t allowed = fti_cpu_threads_allowed();
        assert_true(allowed >= 1 && allowed <= (uint32_t)processors);
        for (size_t i = 0; i < COUNT(asked); i++) {
            const fti_backend_options options = {.threads = asked[i]};
            fti_backend *b = backend_new(&options);
            assert_int_equal(threads_of(b), asked[i] && asked[i] < allowed ? asked[i] : allowed);
            b->ops->destroy(b);
        }
        assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    }
}

/* Threads of this process that may use one processor only, and that is not `not_this`. */
static uint32_t threads_on_one(size_t not_this) {
    DIR *tasks = opendir("/proc/self/task");
    uint32_t count = 0;
    assert_non_null(tasks);
    for (const struct dirent *d; (d = readdir(tasks));) {
        cpu_set_t set;
        pid_t id = (pid_t)atoi(d->d_name);
        if (id == 0 || sched_getaffinity(id, sizeof set, &set) != 0) continue;
        count += CPU_COUNT(&set) == 1 && !CPU_ISSET(not_this, &set);
    }
    closedir(tasks);
    return count;
}

static void pinned_threads_stay_and_the_caller_is_free(void **state) {
    (void)state;
    cpu_set_t before, after;
    if (!narrow_to(2, &before) || fti_cpu_threads_allowed() < 2) {
        print_message("skip: pinning needs two processors\n");
        return;
    }
    cpu_set_t two;
    assert_int_equal(sched_getaffinity(0, sizeof two, &two), 0);
    size_t first = 0;
    while (!CPU_ISSET(first, &two)) first++;
    for (int pin = 0; pin <= 1; pin++) {
        const fti_backend_options options = {.threads = 2, .pin = pin == 1};
        fti_backend *b = backend_new(&options);
        fti_placement p;
        b->ops->placement(b, &p);
        assert_int_equal(p.pinned, pin);
        assert_int_equal(threads_on_one(first), pin);
        assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
        assert_true(CPU_EQUAL(&two, &after));
        b->ops->destroy(b);
    }
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* What the system says of the page at an address; -1 where it does not answer. */
static int policy_at(void *memory) {
    int policy = -1;
    if (syscall(SYS_get_mempolicy, &policy, NULL, 0UL, memory, (unsigned long)MPOL_F_ADDR) != 0)
        return -1;
    return policy;
}

static void memory_goes_to_all_nodes_if_asked(void **state) {
    (void)state;
    enum { BYTES = 4 << 20 };
    for (int interleave = 0; interleave <= 1; interleave++) {
        const fti_backend_options options = {.threads = 1, .interleave = interleave == 1};
        fti_backend *b = backend_new(&options);
        fti_placement p;
        void *memory = NULL;
        ftk_error error = FTK_ERROR_INIT;
        assert_int_equal(b->ops->alloc(b, BYTES, "a test", &memory, &error), FTK_OK);
        b->ops->placement(b, &p);
        assert_true(p.nodes >= 1 && p.nodes <= 64);
        int policy = policy_at(memory);
        if (policy < 0) print_message("skip: the system has no memory policies\n");
        assert_int_equal(p.interleaved, policy == MPOL_INTERLEAVE);
        if (policy >= 0) assert_int_equal(p.interleaved, interleave);
        b->ops->release(b, memory, BYTES);
        b->ops->destroy(b);
    }
}

/* Bytes of this process's own memory that lie in huge pages, asked for without the library. */
static uint64_t huge_bytes(void) {
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "AnonHugePages: %llu", &kib) == 1) break;
    }
    if (f) fclose(f);
    return (uint64_t)kib * 1024;
}

enum { LARGE = 64 << 20 };

/* Whether such a block of the test's own comes to lie in huge pages. */
static bool huge_pages_granted(void) {
    void *memory = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    uint64_t before = huge_bytes();
    madvise(memory, LARGE, MADV_HUGEPAGE);
    memset(memory, 1, LARGE);
    bool granted = huge_bytes() >= before + LARGE / 2;
    munmap(memory, LARGE);
    return granted;
}

static void large_blocks_lie_in_huge_pages(void **state) {
    (void)state;
    if (!huge_pages_granted()) {
        print_message("skip: the system grants no huge pages\n");
        return;
    }
    const fti_backend_options options = {.threads = 1};
    fti_backend *b = backend_new(&options);
    fti_placement empty, full;
    void *memory = NULL;
    ftk_error error = FTK_ERROR_INIT;
    b->ops->placement(b, &empty);
    assert_int_equal(b->ops->alloc(b, LARGE, "a test", &memory, &error), FTK_OK);
    memset(memory, 1, LARGE);
    b->ops->placement(b, &full);
    assert_true(full.huge_allocated >= empty.huge_allocated + LARGE / 2);
    b->ops->release(b, memory, LARGE);
    b->ops->destroy(b);
}

static void the_provenance_says_it(void **state) {
    (void)state;
    const char *const settings[] = {"backend.threads", "1000",       "backend.pin", "true",
                                    "backend.numa",    "interleave", NULL};
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = fixture_open(DEMO_MODEL, settings);
    char *json = NULL;
    assert_int_equal(ftk_engine_provenance(engine, &json, &err), FTK_OK);
    json_t *o = json_loads(json, 0, NULL);
    const json_t *placement, *threads, *notes;
    uint32_t allowed = fti_cpu_threads_allowed();
    placement = json_object_get(json_object_get(o, "backend"), "placement");
    threads = json_object_get(json_object_get(o, "policy"), "backend.threads");
    notes = json_object_get(o, "notes");
    assert_int_equal(json_integer_value(json_object_get(threads, "asked")), 1000);
    assert_int_equal(json_integer_value(json_object_get(threads, "value")), allowed);
    assert_int_equal(json_integer_value(json_object_get(placement, "pinned_threads")), allowed - 1);
    assert_true(json_integer_value(json_object_get(placement, "numa_nodes")) >= 1);
    assert_true(json_is_boolean(json_object_get(placement, "interleaved")));
    assert_true(json_is_integer(json_object_get(placement, "huge_pages_allocated")));
    assert_true(json_is_integer(json_object_get(placement, "huge_pages_mapped")));
    bool said = false;
    for (size_t i = 0; i < json_array_size(notes); i++) {
        const char *note = json_string_value(json_array_get(notes, i));
        said = said || strncmp(note, "backend.threads is 1000, ", 25) == 0;
    }
    assert_true(said);
    json_decref(o);
    ftk_report_free(json);
    ftk_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_more_threads_than_may_run),
        cmocka_unit_test(pinned_threads_stay_and_the_caller_is_free),
        cmocka_unit_test(memory_goes_to_all_nodes_if_asked),
        cmocka_unit_test(large_blocks_lie_in_huge_pages),
        cmocka_unit_test(the_provenance_says_it),
    };
    return cmocka_run_group_tests_name("test_placement", tests, NULL, NULL);
}
