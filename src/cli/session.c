/* session.c: finds the configuration, opens engines, encodes prompts. */
#include "cli/session.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/output.h"
#include "cli/text.h"

#define QUIET_SECONDS 0.5 /* opening that takes longer is shown */

static volatile sig_atomic_t interrupted;

static void note_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

static void handle_interrupts(int flags) {
    struct sigaction action = {.sa_handler = note_interrupt};
    (void)sigemptyset(&action.sa_mask);
    action.sa_flags = flags;
    (void)sigaction(SIGINT, &action, NULL);
}

void fti_cli_catch_interrupt(void) {
    handle_interrupts((int)(SA_RESETHAND | SA_RESTART));
}

void fti_cli_keep_interrupts(void) {
    handle_interrupts(0);
}

void fti_cli_forget_interrupt(void) {
    interrupted = 0;
}

bool fti_cli_interrupted(void) {
    return interrupted != 0;
}

/* The library refuses paths through symbolic links, but a home may well lie behind one.
 * Whoever decides where HOME leads has the user's rights in any case, so that links in its
 * value are followed here; those below it are not. */
static char *below(const char *folder, const char *rest) {
    char *real = realpath(folder, NULL);
    char *path = fti_cli_format("%s%s", real ? real : folder, rest);
    free(real);
    return path;
}

char *fti_cli_user_config(void) {
    const char *folder = getenv("XDG_CONFIG_HOME");
    if (folder && folder[0] == '/') return below(folder, "/freetoken/config.yaml");
    const char *home = getenv("HOME");
    if (home && home[0]) return below(home, "/.config/freetoken/config.yaml");
    return NULL;
}

/* Files that exist but cannot be looked at are for the library to report. */
static bool is_there(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

static int no_config(const char *user) {
    return fti_cli_fail(FTK_E_CONFIG_READ,
                        "no configuration: looked for %s%s%s; make one with '%s providers allow "
                        "FOLDER', or name one with --config FILE",
                        user ? user : "", user ? " and " : "", FTI_CLI_SYSTEM_CONFIG, "freetoken");
}

static int apply_option(ftk_config *config, const fti_cli_option *row, const char *value) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = ftk_config_set(config, row->key, value, &err);
    if (status == FTK_OK) return 0;
    if (status == FTK_E_CONFIG_VALUE) return fti_cli_usage("--%s: %s", row->name, err.message);
    return fti_cli_fail_with(&err);
}

int fti_cli_apply_options(ftk_config *config, const fti_cli_common *common) {
    for (size_t i = 0; i < fti_cli_common_option_count; i++) {
        const fti_cli_option *row = &fti_cli_common_options[i];
        if (!row->key) continue;
        const char *value = *(const char *const *)(const void *)((const char *)common +
                                                                 row->offset);
        int code = value ? apply_option(config, row, value) : 0;
        if (code) return code;
    }
    return 0;
}

int fti_cli_load_config(const fti_cli_common *common, ftk_config **out) {
    char *user = common->config ? NULL : fti_cli_user_config();
    const char *path = common->config;
    if (!path && user && is_there(user)) path = user;
    if (!path && is_there(FTI_CLI_SYSTEM_CONFIG)) path = FTI_CLI_SYSTEM_CONFIG;
    *out = NULL;
    int code = path ? 0 : no_config(user);
    if (code == 0) {
        ftk_error err = FTK_ERROR_INIT;
        if (ftk_config_load(path, out, &err) != FTK_OK) code = fti_cli_fail_with(&err);
    }
    free(user);
    if (code == 0) code = fti_cli_apply_options(*out, common);
    if (code) {
        ftk_config_free(*out);
        *out = NULL;
    }
    return code;
}

int fti_cli_providers_report(const fti_cli_common *common, json_t **report) {
    ftk_config *config;
    char *json = NULL;
    ftk_error err = FTK_ERROR_INIT;
    *report = NULL;
    int code = fti_cli_load_config(common, &config);
    if (code) return code;
    code = fti_cli_reported(ftk_providers_report(config, &json, &err), &err, &json, report);
    ftk_config_free(config);
    return code;
}

typedef struct open_progress {
    struct timespec start;
    bool interactive;
} open_progress;

static double seconds_since(const struct timespec *start) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec);
}

static int on_progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    open_progress *progress = user;
    if (fti_cli_interrupted()) return 1;
    if (!progress->interactive || seconds_since(&progress->start) < QUIET_SECONDS) return 0;
    if (total > 1) {
        fti_cli_line_show("%s %3.0f%%", stage, 100.0 * (double)done / (double)total);
    } else {
        fti_cli_line_show("%s", stage);
    }
    return 0;
}

int fti_cli_open_with(const ftk_config *config, const char *model, uint32_t stop_after,
                      ftk_engine **out) {
    open_progress progress = {.interactive = fti_cli_interactive()};
    (void)clock_gettime(CLOCK_MONOTONIC, &progress.start);
    ftk_open_options options = FTK_OPEN_OPTIONS_INIT;
    options.stop_after = stop_after;
    options.progress = on_progress;
    options.user = &progress;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = ftk_engine_open(config, model, &options, out, &err);
    fti_cli_line_clear();
    return status == FTK_OK ? 0 : fti_cli_fail_with(&err);
}

int fti_cli_open(const fti_cli_common *common, const char *model, uint32_t stop_after,
                 ftk_engine **out) {
    ftk_config *config;
    *out = NULL;
    int code = fti_cli_load_config(common, &config);
    if (code) return code;
    ftk_error err = FTK_ERROR_INIT;
    /* A tool that runs asks one thing at a time: state and graphs for more would be waste. */
    ftk_status status = FTK_OK;
    if (stop_after == FTK_OPEN_READY)
        status = ftk_config_set(config, "scheduler.max_running", "1", &err);
    code = status == FTK_OK ? fti_cli_open_with(config, model, stop_after, out)
                            : fti_cli_fail_with(&err);
    ftk_config_free(config);
    return code;
}

int fti_cli_encode(const ftk_engine *engine, const char *text, size_t size, bool special,
                   int32_t **ids, size_t *count) {
    ftk_error err = FTK_ERROR_INIT;
    uint32_t flags = special ? FTK_TOKENIZE_SPECIAL : 0;
    *ids = NULL;
    if (ftk_tokenize(engine, text, size, flags, NULL, 0, count, &err) != FTK_OK) {
        return fti_cli_fail_with(&err);
    }
    *ids = fti_cli_alloc(*count, sizeof **ids);
    if (ftk_tokenize(engine, text, size, flags, *ids, *count, count, &err) == FTK_OK) return 0;
    free(*ids);
    *ids = NULL;
    return fti_cli_fail_with(&err);
}

int fti_cli_check_prompt(const char *text, const char *file) {
    if (text && file) return fti_cli_usage("-p TEXT and -f FILE exclude each other");
    if (!text && !file) return fti_cli_usage("no prompt: give -p TEXT or -f FILE");
    return 0;
}

int fti_cli_encode_prompt(const ftk_engine *engine, const char *text, const char *file,
                          bool special, int32_t **ids, size_t *count) {
    fti_cli_text content = {0};
    *ids = NULL;
    *count = 0;
    if (file && !fti_cli_read_file(file, &content)) {
        int reason = errno;
        free(content.data);
        return fti_cli_fail(FTK_E_IO, "%s: cannot read: %s", file, strerror(reason));
    }
    if (text) fti_cli_append(&content, text, strlen(text));
    int code = content.size
                   ? fti_cli_encode(engine, content.data, content.size, special, ids, count)
                   : fti_cli_usage("the prompt is empty");
    free(content.data);
    return code;
}
