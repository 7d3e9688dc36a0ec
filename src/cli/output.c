/* output.c: error lines, JSON, numbers for people, files that appear whole. */
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/text.h"

static int line_size; /* characters of progress that stand on the terminal's line */

void fti_cli_line_clear(void) {
    if (line_size > 0) (void)fprintf(stderr, "\r%*s\r", line_size, "");
    line_size = 0;
}

void fti_cli_line_show(const char *format, ...) {
    char line[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    int size = (int)strlen(line);
    (void)fprintf(stderr, "\r%s%*s", line, line_size > size ? line_size - size : 0, "");
    (void)fflush(stderr);
    line_size = size;
}

static void error_line(const char *format, va_list args) {
    char line[2048];
    fti_cli_line_clear();
    (void)vsnprintf(line, sizeof line, format, args);
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7F) *c = '?';
    }
    (void)fprintf(stderr, "%s: error: %s\n", fti_cli_program_name, line);
}

void fti_cli_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    error_line(format, args);
    va_end(args);
}

int fti_cli_fail(ftk_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    error_line(format, args);
    va_end(args);
    return ftk_status_exit_code(status);
}

int fti_cli_fail_with(const ftk_error *err) {
    const char *text = err->message[0] ? err->message : ftk_status_text(err->status);
    return fti_cli_fail(err->status, "%s", text);
}

int fti_cli_usage(const char *format, ...) {
    va_list args;
    va_start(args, format);
    error_line(format, args);
    va_end(args);
    return FTI_CLI_EXIT_USAGE;
}

/* A closed descriptor would be given to the next file opened, which would then
 * receive our output. Reading from /dev/null stands in for it: writes to it fail
 * and are reported. */
void fti_cli_prepare_streams(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) == -1) (void)open("/dev/null", O_RDONLY);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
}

static int stdout_reason; /* why it cannot be written: later calls may not know any more */

bool fti_cli_flush(void) {
    bool good = fflush(stdout) == 0 && !ferror(stdout);
    if (!good && !stdout_reason) stdout_reason = errno;
    return good;
}

int fti_cli_finish(int code) {
    bool failed = !fti_cli_flush();
    int reason = stdout_reason;
    if (fclose(stdout) != 0 && !failed) {
        failed = true;
        reason = errno;
    }
    if (!failed) return code;
    fti_cli_error("standard output: cannot write: %s", strerror(reason));
    return code ? code : FTI_CLI_EXIT_FAILED;
}

void fti_cli_print_json(json_t *object) {
    fti_cli_write_json(stdout, object);
}

void fti_cli_write_json(FILE *stream, json_t *object) {
    char *text = json_dumps(object, 0);
    json_decref(object);
    if (!text) {
        fti_cli_error("out of memory");
        exit(ftk_status_exit_code(FTK_E_NO_MEMORY));
    }
    (void)fputs(text, stream);
    (void)fputc('\n', stream);
    free(text);
}

json_t *fti_cli_report(char *json) {
    json_t *object = json ? json_loads(json, JSON_ALLOW_NUL, NULL) : NULL;
    ftk_report_free(json);
    return object ? object : json_null();
}

json_t *fti_cli_json_text(const char *data, size_t size) {
    fti_cli_utf8 state = {0};
    fti_cli_text text = {0};
    fti_cli_append(&text, "", 0);
    fti_cli_utf8_feed(&state, data, size, &text);
    fti_cli_utf8_finish(&state, &text);
    json_t *string = json_stringn(text.data, text.size);
    free(text.data);
    return string;
}

const char *fti_cli_member(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

const char *fti_cli_size_text(uint64_t bytes, fti_cli_size *buffer) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    (void)snprintf(buffer->text, sizeof buffer->text, unit ? "%.1f %s" : "%.0f %s", value,
                   units[unit]);
    return buffer->text;
}

static bool is_character(const char *data, size_t size, size_t *length) {
    fti_cli_utf8 state = {0};
    fti_cli_text text = {0};
    bool whole = false;
    for (*length = 0; !whole && *length < size && *length < 4;) {
        fti_cli_utf8_feed(&state, data + *length, 1, &text);
        (*length)++;
        whole = text.size > 0;
    }
    whole = whole && text.size == *length && memcmp(text.data, data, *length) == 0;
    /* U+0080 to U+009F are control characters too. */
    if (whole && *length == 2 && data[0] == '\xC2' && (unsigned char)data[1] < 0xA0) whole = false;
    free(text.data);
    return whole;
}

char *fti_cli_shown(const char *data, size_t size) {
    fti_cli_text text = {0};
    fti_cli_append(&text, "", 0);
    for (size_t i = 0, length; i < size; i += length) {
        unsigned char byte = (unsigned char)data[i];
        if (byte >= 0x20 && byte != 0x7F && is_character(data + i, size - i, &length)) {
            if (byte == '"' || byte == '\\') fti_cli_append(&text, "\\", 1);
            fti_cli_append(&text, data + i, length);
            continue;
        }
        length = 1;
        if (byte == '\n') {
            fti_cli_append(&text, "\\n", 2);
        } else {
            fti_cli_printf(&text, "\\x%02x", byte);
        }
    }
    return text.data;
}

bool fti_cli_interactive(void) {
    return isatty(STDERR_FILENO) == 1;
}

/* Where the bytes must end up: behind a symbolic link, not in its place. */
static char *final_path(const char *path, bool *special) {
    struct stat info;
    *special = false;
    if (stat(path, &info) != 0) return fti_cli_format("%s", path);
    *special = !S_ISREG(info.st_mode);
    return *special ? fti_cli_format("%s", path) : realpath(path, NULL);
}

bool fti_cli_file_begin(fti_cli_file *file, const char *path, unsigned mode) {
    bool special;
    *file = (fti_cli_file){0};
    file->path = final_path(path, &special);
    if (!file->path) return false;
    int flags = O_WRONLY | O_CLOEXEC | (special ? O_NOCTTY : O_CREAT | O_EXCL);
    if (!special) file->temporary = fti_cli_format("%s.tmp-%ld", file->path, (long)getpid());
    int fd = open(special ? file->path : file->temporary, flags, (mode_t)mode);
    if (fd >= 0) file->stream = fdopen(fd, "wb");
    if (file->stream) return true;
    if (fd >= 0) {
        (void)close(fd);
    } else {
        /* What stands under the temporary name is not ours to remove. */
        free(file->temporary);
        file->temporary = NULL;
    }
    fti_cli_file_abandon(file);
    return false;
}

/* The rename is durable once the folder is. Not every file system can sync one;
 * the new file is whole either way. */
static void sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? fti_cli_format("%.*s/", (int)(slash - path), path) : fti_cli_format(".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        (void)close(fd);
    }
    free(folder);
}

bool fti_cli_file_commit(fti_cli_file *file) {
    bool ok = fflush(file->stream) == 0 && !ferror(file->stream);
    if (ok && file->temporary) ok = fsync(fileno(file->stream)) == 0;
    int reason = errno;
    if (fclose(file->stream) != 0 && ok) {
        ok = false;
        reason = errno;
    }
    file->stream = NULL;
    errno = reason;
    if (ok && file->temporary) ok = rename(file->temporary, file->path) == 0;
    if (!ok) {
        fti_cli_file_abandon(file);
        return false;
    }
    if (file->temporary) sync_folder(file->path);
    free(file->temporary);
    free(file->path);
    *file = (fti_cli_file){0};
    return true;
}

void fti_cli_file_abandon(fti_cli_file *file) {
    int reason = errno;
    if (file->stream) (void)fclose(file->stream);
    if (file->temporary) (void)unlink(file->temporary);
    free(file->temporary);
    free(file->path);
    *file = (fti_cli_file){0};
    errno = reason;
}
