/*
 * test_trust.c: which paths fti_trusted_open takes, with openat2 and without it,
 * and the digest.
 */
#include "core/loader.h"
#include "loader/scratch.h"

#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

/* Statuses that the code under test does not know, to see that it passes on
 * those it was given. */
#define PATH_STATUS FTK_E_CONFIG_READ
#define MODE_STATUS FTK_E_CONFIG_TRUST

static ftk_status open_and_close(const char *path, ftk_error *err) {
    int fd = -1;
    ftk_status status = fti_trusted_open(path, PATH_STATUS, MODE_STATUS, &fd, err);
    if (status == FTK_OK) assert_int_equal(close(fd), 0);
    return status;
}

static void accept_path(const char *path) {
    ftk_error err = FTK_ERROR_INIT;
    expect_status(open_and_close(path, &err), FTK_OK, &err, "");
}

static void refuse_path(const char *path, const char *part) {
    ftk_error err = FTK_ERROR_INIT;
    expect_status(open_and_close(path, &err), PATH_STATUS, &err, part);
}

static void refuse_mode(const char *path, const char *part) {
    ftk_error err = FTK_ERROR_INIT;
    expect_status(open_and_close(path, &err), MODE_STATUS, &err, part);
}

static void opens_the_file(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    char found[8] = {0};
    int fd = -1;
    make_folder(in_scratch("a").s, 0755);
    make_folder(in_scratch("a/b").s, 0500);
    write_file(in_scratch("a/file").s, "content", 7, 0644);
    expect_status(fti_trusted_open(in_scratch("a/file").s, PATH_STATUS, MODE_STATUS, &fd, &err),
                  FTK_OK, &err, "");
    assert_int_equal(read(fd, found, sizeof found), 7);
    assert_string_equal(found, "content");
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(close(fd), 0);
}

static void refuses_odd_spelling(void **state) {
    (void)state;
    make_folder(in_scratch("a").s, 0755);
    write_file(in_scratch("a/file").s, "x", 1, 0644);
    assert_int_equal(chdir(scratch), 0);
    refuse_path("a/file", "relative");
    refuse_path("./a/file", "relative");
    refuse_path("file", "relative");
    refuse_path("", "relative");
    assert_int_equal(chdir("/"), 0);
    refuse_path(in_scratch("a/../a/file").s, "'..'");
    refuse_path(in_scratch("..").s, "'..'");
    refuse_path(in_scratch("./a/file").s, "'.'");
    refuse_path(in_scratch("a//file").s, "empty part");
    refuse_path(in_scratch("a/file/").s, "empty part");
    refuse_path(format("/%s", in_scratch("a/file").s).s, "empty part");
    refuse_path("/", "empty part");
    char long_name[400];
    memset(long_name, 'n', sizeof long_name);
    long_name[0] = '/';
    long_name[sizeof long_name - 1] = 0;
    refuse_path(long_name, "longer than a file name");
    char long_path[5000];
    for (size_t i = 0; i + 1 < sizeof long_path; i++) long_path[i] = i % 2 ? 'd' : '/';
    long_path[sizeof long_path - 1] = 0;
    refuse_path(long_path, "more bytes");
}

static void check_symlinks(void) {
    ftk_error err = FTK_ERROR_INIT;
    expect_status(open_and_close(in_scratch("link").s, &err), PATH_STATUS, &err, "symbolic link");
    assert_non_null(strstr(err.message, format("write '%s/real/file'", scratch).s));
    refuse_path(in_scratch("folder/file").s, "symbolic link");
    refuse_path(in_scratch("dangling").s, "symbolic link");
    accept_path(in_scratch("real/file").s);
}

static void make_symlinks(void) {
    make_folder(in_scratch("real").s, 0755);
    write_file(in_scratch("real/file").s, "x", 1, 0644);
    assert_int_equal(symlink("real/file", in_scratch("link").s), 0);
    assert_int_equal(symlink("real", in_scratch("folder").s), 0);
    assert_int_equal(symlink("nowhere", in_scratch("dangling").s), 0);
}

static void refuses_symlinks(void **state) {
    (void)state;
    make_symlinks();
    check_symlinks();
}

static void refuses_missing(void **state) {
    (void)state;
    write_file(in_scratch("file").s, "x", 1, 0644);
    refuse_path(in_scratch("missing").s, "No such file");
    refuse_path(in_scratch("missing/file").s, "No such file");
    refuse_path(in_scratch("file/below").s, "Not a directory");
}

static void refuses_other_kinds(void **state) {
    (void)state;
    make_folder(in_scratch("folder").s, 0755);
    assert_int_equal(mkfifo(in_scratch("fifo").s, 0644), 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    text path = in_scratch("socket");
    assert_in_range(strlen(path.s), 1, sizeof address.sun_path - 1);
    memcpy(address.sun_path, path.s, strlen(path.s));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(close(fd), 0);
    refuse_path(in_scratch("folder").s, "a folder");
    refuse_path(in_scratch("fifo").s, "a FIFO");
    refuse_path(in_scratch("socket").s, "socket");
    refuse_path("/dev/null", "a character device");
}

static void judges_modes_of_files(void **state) {
    (void)state;
    static const struct {
        mode_t mode;
        const char *refused; /* part of the message, NULL: accepted */
    } cases[] = {
        {0644, NULL},         {0755, NULL},         {0400, NULL},        {0444, NULL},
        {0600, NULL},         {0666, "chmod go-w"}, {0664, "mode 0664"}, {0646, "mode 0646"},
        {0622, "chmod go-w"}, {04755, "setuid"},    {02755, "setuid"},   {06755, "chmod ug-s"},
    };
    for (size_t i = 0; i < FTI_COUNT(cases); i++) {
        write_file(in_scratch("file").s, "x", 1, cases[i].mode);
        if (cases[i].refused)
            refuse_mode(in_scratch("file").s, cases[i].refused);
        else
            accept_path(in_scratch("file").s);
        assert_int_equal(unlink(in_scratch("file").s), 0);
    }
}

static void judges_modes_of_folders(void **state) {
    (void)state;
    static const mode_t refused[] = {0777, 0775, 0757, 0772, 01775, 02775};
    static const mode_t accepted[] = {0755, 0700, 0711, 01755, 02755};
    make_folder(in_scratch("a").s, 0755);
    make_folder(in_scratch("a/b").s, 0755);
    write_file(in_scratch("a/b/file").s, "x", 1, 0644);
    for (size_t i = 0; i < FTI_COUNT(refused); i++) {
        assert_int_equal(chmod(in_scratch("a/b").s, refused[i]), 0);
        refuse_mode(in_scratch("a/b/file").s, format("'%s/a/b' has mode", scratch).s);
        assert_int_equal(chmod(in_scratch("a/b").s, 0755), 0);
        assert_int_equal(chmod(in_scratch("a").s, refused[i]), 0);
        refuse_mode(in_scratch("a/b/file").s, format("'%s/a' has mode", scratch).s);
        assert_int_equal(chmod(in_scratch("a").s, 0755), 0);
    }
    for (size_t i = 0; i < FTI_COUNT(accepted); i++) {
        assert_int_equal(chmod(in_scratch("a").s, accepted[i]), 0);
        accept_path(in_scratch("a/b/file").s);
    }
}

/* What somebody else named must not become part of a command that is offered. */
static void offers_no_command_that_a_name_ends(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    text folder = in_scratch("a'; touch b; '");
    make_folder(folder.s, 0777);
    write_file(format("%s/file", folder.s).s, "x", 1, 0644);
    expect_status(open_and_close(format("%s/file", folder.s).s, &err), MODE_STATUS, &err,
                  "has mode 0777, wanted a folder");
    assert_null(strstr(err.message, "run:"));
    assert_int_equal(chmod(folder.s, 0755), 0);
    accept_path(format("%s/file", folder.s).s);
}

static bool need_root(void) {
    if (geteuid() == 0) return true;
    print_message("skip: only root can give files to other users\n");
    return false;
}

static void judges_owners(void **state) {
    (void)state;
    if (!need_root()) skip();
    make_folder(in_scratch("a").s, 0755);
    write_file(in_scratch("a/file").s, "x", 1, 0644);
    assert_int_equal(chown(in_scratch("a/file").s, STRANGER, 0), 0);
    refuse_mode(in_scratch("a/file").s, "owned by uid 65534");
    assert_int_equal(chown(in_scratch("a/file").s, 0, STRANGER), 0);
    accept_path(in_scratch("a/file").s);
    assert_int_equal(chown(in_scratch("a").s, STRANGER, 0), 0);
    refuse_mode(in_scratch("a/file").s, format("'%s/a' is owned", scratch).s);
}

static void accepts_sticky_folder_of_root(void **state) {
    (void)state;
    if (!need_root()) skip();
    make_folder(in_scratch("a").s, 01777);
    write_file(in_scratch("a/file").s, "x", 1, 0644);
    accept_path(in_scratch("a/file").s);
    /* In such a folder anybody may have put a file of his own. */
    assert_int_equal(chown(in_scratch("a/file").s, STRANGER, 0), 0);
    refuse_mode(in_scratch("a/file").s, "owned by uid 65534");
}

/* Runs `body` in a child and fails if it does. */
static void in_child(void (*body)(void)) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        body();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skip: the child could not arrange the case\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void must(bool holds, const char *what) {
    if (holds) return;
    print_message("in the child: %s\n", what);
    _exit(1);
}

static ftk_status child_open(const char *name) {
    ftk_error err = FTK_ERROR_INIT;
    int fd = -1;
    ftk_status status = fti_trusted_open(in_scratch(name).s, PATH_STATUS, MODE_STATUS, &fd, &err);
    if (fd >= 0) close(fd);
    return status;
}

static void as_stranger(void) {
    must(setgroups(0, NULL) == 0 && seteuid(STRANGER) == 0, "seteuid");
    must(child_open("own/file") == FTK_OK, "a file of the effective user");
    must(child_open("root") == FTK_OK, "a file of root");
    must(child_open("other") == MODE_STATUS, "a file of a third user");
    must(child_open("sticky/file") == MODE_STATUS, "a sticky folder that is not root's");
}

static void effective_user_counts(void **state) {
    (void)state;
    if (!need_root()) skip();
    make_folder(in_scratch("own").s, 0755);
    make_folder(in_scratch("sticky").s, 01777);
    write_file(in_scratch("own/file").s, "x", 1, 0644);
    write_file(in_scratch("sticky/file").s, "x", 1, 0644);
    write_file(in_scratch("root").s, "x", 1, 0644);
    write_file(in_scratch("other").s, "x", 1, 0644);
    static const char *const own[] = {"own", "own/file", "sticky", "sticky/file"};
    for (size_t i = 0; i < FTI_COUNT(own); i++) {
        mode_t mode = i == 2 ? 01777 : i == 0 ? 0755 : 0644;
        assert_int_equal(chown(in_scratch(own[i]).s, STRANGER, STRANGER), 0);
        assert_int_equal(chmod(in_scratch(own[i]).s, mode), 0);
    }
    assert_int_equal(chown(in_scratch("other").s, STRANGER - 1, 0), 0);
    in_child(as_stranger);
}

/* From here on openat2 fails with `error` in this process. */
static void take_openat2_away(uint32_t error) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {(unsigned short)FTI_COUNT(filter), filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        print_message("skip: this system grants no system call filter: %s\n", strerror(errno));
        _exit(77);
    }
    must(syscall(SYS_openat2, -1, "", NULL, (size_t)0) == -1 && errno == (int)error, "the filter");
}

static void walk_without_openat2(uint32_t error) {
    take_openat2_away(error);
    must(child_open("real/file") == FTK_OK, "a plain file");
    must(child_open("link") == PATH_STATUS, "a symbolic link");
    must(child_open("folder/file") == PATH_STATUS, "a symbolic link in a parent");
    must(child_open("dangling") == PATH_STATUS, "a dangling link");
    must(child_open("missing") == PATH_STATUS, "a missing file");
    must(child_open("fifo") == PATH_STATUS, "a FIFO");
    must(child_open("open/file") == MODE_STATUS, "a writable folder");
}

static void with_enosys(void) {
    walk_without_openat2(ENOSYS);
}

static void with_eperm(void) {
    walk_without_openat2(EPERM);
}

static void same_rules_without_openat2(void **state) {
    (void)state;
    make_symlinks();
    make_folder(in_scratch("open").s, 0777);
    write_file(in_scratch("open/file").s, "x", 1, 0644);
    assert_int_equal(mkfifo(in_scratch("fifo").s, 0644), 0);
    in_child(with_enosys);
    in_child(with_eperm);
}

static void other_failures_of_openat2_stay(void) {
    take_openat2_away(EACCES);
    must(child_open("real/file") == PATH_STATUS, "a refusal by the system");
}

static void no_fallback_on_refusal(void **state) {
    (void)state;
    make_symlinks();
    in_child(other_failures_of_openat2_stay);
}

static void leaks_no_descriptor(void **state) {
    (void)state;
    make_symlinks();
    write_file(in_scratch("open").s, "x", 1, 0666);
    size_t before = open_descriptors();
    for (int i = 0; i < 20; i++) {
        refuse_path(in_scratch("link").s, "");
        refuse_path(in_scratch("folder/file").s, "");
        refuse_path(in_scratch("missing/file").s, "");
        refuse_path(in_scratch("real").s, "");
        refuse_mode(in_scratch("open").s, "");
        accept_path(in_scratch("real/file").s);
    }
    assert_int_equal(open_descriptors(), before);
}

static void digest_of(const char *data, size_t size, off_t from, const char *wanted) {
    ftk_error err = FTK_ERROR_INIT;
    char hex[65];
    write_file(in_scratch("data").s, data, size, 0644);
    int fd = open(in_scratch("data").s, O_RDONLY | O_CLOEXEC);
    assert_int_equal(lseek(fd, from, SEEK_SET), from);
    expect_status(fti_sha256_fd(fd, hex, &err), FTK_OK, &err, "");
    assert_string_equal(hex, wanted);
    assert_int_equal(close(fd), 0);
}

/* The examples of FIPS 180-2. */
static void digests(void **state) {
    (void)state;
    static const char abc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    digest_of("", 0, 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    digest_of("abc", 3, 0, abc);
    digest_of("skipped abc", 11, 8, abc);
    char *million = malloc(1000000);
    assert_non_null(million);
    memset(million, 'a', 1000000);
    digest_of(million, 1000000, 0,
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

static void digest_needs_a_readable_file(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    char hex[65];
    expect_status(fti_sha256_fd(-1, hex, &err), FTK_E_IO, &err, "sha256");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(opens_the_file),
        CASE(refuses_odd_spelling),
        CASE(refuses_symlinks),
        CASE(refuses_missing),
        CASE(refuses_other_kinds),
        CASE(judges_modes_of_files),
        CASE(judges_modes_of_folders),
        CASE(offers_no_command_that_a_name_ends),
        CASE(judges_owners),
        CASE(accepts_sticky_folder_of_root),
        CASE(effective_user_counts),
        CASE(same_rules_without_openat2),
        CASE(no_fallback_on_refusal),
        CASE(leaks_no_descriptor),
        CASE(digests),
        CASE(digest_needs_a_readable_file),
    };
    return cmocka_run_group_tests_name("test_trust", tests, NULL, NULL);
}
