/*
 * test_module.c: modules of the library itself (backends) go through the checks that a
 * provider's file goes through, before any code of them runs.
 */
#include "loader/world.h"

#include "backend/backend.h"

#include <sys/auxv.h>

static text module_path(void) {
    return in_scratch("libfreetoken-test.so");
}

static void install_module(const char *fixture) {
    copy_fixture(fixture, module_path().s);
}

static void refuse_module(const char *path, ftk_status wanted, const char *part) {
    ftk_error err = FTK_ERROR_INIT;
    void *entry = NULL;
    size_t descriptors = open_descriptors();
    expect_status(fti_module_load(path, FTI_BACKEND_MODULE_ENTRY, &entry, &err), wanted, &err,
                  part);
    assert_int_equal(ftk_status_exit_code(wanted), 4);
    assert_non_null(strstr(err.message, "backend module "));
    assert_null(strstr(err.message, "provider"));
    assert_null(entry);
    assert_int_equal(watched.calls, 0);
    assert_int_equal(runs_of("module"), 0);
    assert_int_equal(open_descriptors(), descriptors);
}

static void loads_once(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    void *first = NULL, *second = NULL;
    int (*function)(void);
    install_module("module");
    expect_status(fti_module_load(module_path().s, FTI_BACKEND_MODULE_ENTRY, &first, &err), FTK_OK,
                  &err, "");
    expect_status(fti_module_load(module_path().s, FTI_BACKEND_MODULE_ENTRY, &second, &err), FTK_OK,
                  &err, "");
    assert_ptr_equal(first, second);
    memcpy(&function, &first, sizeof function);
    assert_int_equal(function(), 42);
    assert_int_equal(watched.calls, 1);
    assert_int_equal(watched.mode & ~RTLD_NODELETE, RTLD_NOW | RTLD_LOCAL);
    assert_int_equal(runs_of("module"), 1);
}

static void judges_the_file(void **state) {
    (void)state;
    text path = module_path();
    refuse_module(path.s, FTK_E_PROVIDER_PATH, "No such file");
    install_module("module");
    assert_int_equal(chmod(path.s, 0666), 0);
    refuse_module(path.s, FTK_E_PROVIDER_PERMISSION, "mode 0666");
    assert_int_equal(chmod(path.s, 0644), 0);
    assert_int_equal(chmod(scratch, 0777), 0);
    refuse_module(path.s, FTK_E_PROVIDER_PERMISSION, "mode 0777");
    assert_int_equal(chmod(scratch, 0755), 0);
    assert_int_equal(symlink(path.s, in_scratch("link.so").s), 0);
    refuse_module(in_scratch("link.so").s, FTK_E_PROVIDER_PATH, "symbolic link");
    refuse_module("libfreetoken-test.so", FTK_E_PROVIDER_PATH, "relative");
}

static void judges_the_bytes(void **state) {
    (void)state;
    text path = module_path();
    write_file(path.s, "no code", 7, 0644);
    refuse_module(path.s, FTK_E_PROVIDER_ELF, "shorter than an ELF header");
    install_module("module_runpath");
    refuse_module(path.s, FTK_E_PROVIDER_ELF, "DT_RUNPATH");
    install_module("good"); /* a provider is no module */
    refuse_module(path.s, FTK_E_PROVIDER_ENTRY,
                  "nothing of its own as its entry fti_backend_module_create");
}

/* What the dynamic loader alone finds is a matter of the device. */
static void what_the_system_lacks(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    void *entry = NULL;
    install_module("module_undefined");
    expect_status(fti_module_load(module_path().s, FTI_BACKEND_MODULE_ENTRY, &entry, &err),
                  FTK_E_DEVICE_UNAVAILABLE, &err, "the dynamic loader refused");
    assert_non_null(strstr(err.message, "backend module "));
    assert_null(entry);
    assert_int_equal(watched.calls, 1);
}

/* Beside the object that holds this library, here the test itself. */
static void lies_beside_the_library(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    char self[PATH_MAX], path[PATH_MAX];
    assert_non_null(realpath("/proc/self/exe", self));
    *strrchr(self, '/') = 0;
    expect_status(fti_module_path("libfreetoken-x.so", path, &err), FTK_OK, &err, "");
    assert_int_equal(strncmp(path, self, strlen(self)), 0);
    assert_string_equal(path + strlen(self), "/freetoken/backends/libfreetoken-x.so");
}

/* Started under a name that leads elsewhere, from a folder in which it leads to a file. */
static void the_callers_name_for_it_means_nothing(void **state) {
    (void)state;
    write_file(in_scratch("freetoken").s, "x", 1, 0755);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (chdir(scratch) != 0) _exit(126);
        execl("/proc/self/exe", "freetoken", "--where", scratch, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int is_beside_the_file(const char *folder) {
    ftk_error err = FTK_ERROR_INIT;
    char path[PATH_MAX];
    return fti_module_path("libfreetoken-x.so", path, &err) != FTK_OK ||
           strncmp(path, folder, strlen(folder)) == 0;
}

/* Run by itself as a program that is setuid to another user. */
static int as_child(const char *folder) {
    ftk_error err = FTK_ERROR_INIT;
    void *entry = NULL;
    snprintf(scratch, sizeof scratch, "%s", folder);
    if (getauxval(AT_SECURE) == 0) return 77;
    ftk_status status = fti_module_load(module_path().s, FTI_BACKEND_MODULE_ENTRY, &entry, &err);
    return status != FTK_E_PROVIDER_SECURE_EXEC || entry || watched.calls ||
           !strstr(err.message, "secure execution");
}

static void secure_execution(void **state) {
    (void)state;
    if (geteuid() != 0) {
        print_message("skip: only root can make a program setuid to another user\n");
        skip();
    }
    install_module("module");
    text program = setuid_copy();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl(program.s, program.s, "--child", scratch, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skip: this system gives a setuid program no secure execution\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(runs_of("module"), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, scratch_teardown)

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--where") == 0) _exit(is_beside_the_file(argv[2]));
    if (argc == 3 && strcmp(argv[1], "--child") == 0) _exit(as_child(argv[2]));
    const struct CMUnitTest tests[] = {
        CASE(loads_once),
        CASE(judges_the_file),
        CASE(judges_the_bytes),
        CASE(what_the_system_lacks),
        CASE(lies_beside_the_library),
        CASE(the_callers_name_for_it_means_nothing),
        CASE(secure_execution),
    };
    return cmocka_run_group_tests_name("test_module", tests, NULL, NULL);
}
