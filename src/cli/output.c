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
    char *shown = fti_cli_plain(line);
    int size = (int)strlen(shown);
    (void)fprintf(stderr, "\r%s%*s", shown, line_size > size ? line_size - size : 0, "");
    (void)fflush(stderr);
    line_size = size;
    free(shown);
}

static void error_line(const char *format, va_list args) {
    char *line = NULL;
    fti_cli_line_clear();
    char *shown = fti_cli_plain(vasprintf(&line, format, args) < 0 ? "out of memory" : line);
    (void)fprintf(stderr, "%s: error: %s\n", fti_cli_program_name, shown);
    free(shown);
    free(line);
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

int fti_cli_reported(ftk_status status, const ftk_error *err, char *const *json, json_t **report) {
    *report = NULL;
    if (status != FTK_OK) return fti_cli_fail_with(err);
    *report = fti_cli_report(*json);
    return 0;
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

/* Length and number of the character at the front; 0 if there is none. */
static size_t character_at(const unsigned char *s, size_t size, uint32_t *code) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* of a length */
    *code = s[0];
    if (s[0] < 0x80) return 1;
    size_t length = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC0 || s[0] > 0xF7 || length > size) return 0;
    *code &= 0x7FU >> length;
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0U) != 0x80) return 0;
        *code = *code << 6 | (s[i] & 0x3FU);
    }
    bool surrogate = *code >= 0xD800 && *code <= 0xDFFF;
    return *code >= least[length] && *code <= 0x10FFFF && !surrogate ? length : 0;
}

/* False for controls and for what reorders or breaks the line it stands in: Unicode's
 * bidirectional controls and its two separators. */
static bool is_harmless(uint32_t c) {
    static const uint32_t ranges[][2] = {{0x00, 0x1F},     {0x7F, 0x9F},     {0x61C, 0x61C},
                                         {0x200E, 0x200F}, {0x2028, 0x202E}, {0x2066, 0x2069}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (c >= ranges[i][0] && c <= ranges[i][1]) return false;
    }
    return true;
}

static void append_shown(fti_cli_text *text, const char *data, size_t size, bool quoted) {
    const unsigned char *bytes = (const unsigned char *)data;
    for (size_t i = 0, length; i < size; i += length) {
        uint32_t code;
        length = character_at(bytes + i, size - i, &code);
        if (length && is_harmless(code)) {
            if (quoted && (code == '"' || code == '\\')) fti_cli_append(text, "\\", 1);
            fti_cli_append(text, data + i, length);
            continue;
        }
        if (!length) length = 1;
        if (bytes[i] == '\n') {
            fti_cli_append(text, "\\n", 2);
            continue;
        }
        for (size_t k = 0; k < length; k++) fti_cli_printf(text, "\\x%02x", bytes[i + k]);
    }
}

char *fti_cli_shown(const char *data, size_t size) {
    fti_cli_text text = {0};
    fti_cli_append(&text, "", 0);
    append_shown(&text, data, size, true);
    return text.data;
}

char *fti_cli_plain(const char *string) {
    fti_cli_text text = {0};
    fti_cli_append(&text, "", 0);
    append_shown(&text, string, strlen(string), false);
    return text.data;
}

void fti_cli_say(FILE *stream, const char *format, ...) {
    fti_cli_text text = {0};
    char *raw = NULL;
    va_list args;
    va_start(args, format);
    int size = vasprintf(&raw, format, args);
    va_end(args);
    for (const char *at = raw, *end = size < 0 ? raw : raw + size; at < end;) {
        size_t length = strcspn(at, "\n");
        append_shown(&text, at, length, false);
        if (at[length]) fti_cli_append(&text, "\n", 1);
        at += length + (at[length] != '\0');
    }
    if (text.data) (void)fputs(text.data, stream);
    free(text.data);
    free(raw);
}

static json_t *shown_string(const char *data, size_t size) {
    fti_cli_text text = {0};
    fti_cli_append(&text, "", 0);
    append_shown(&text, data, size, false);
    json_t *string = json_stringn(text.data, text.size);
    free(text.data);
    return string;
}

static json_t *shown_object(const json_t *from) {
    json_t *to = json_object();
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)from, key, member) {
        char *shown = fti_cli_plain(key);
        (void)json_object_set_new(to, shown, fti_cli_shown_report(member));
        free(shown);
    }
    return to;
}

json_t *fti_cli_shown_report(const json_t *report) {
    size_t i;
    const json_t *element;
    if (json_is_string(report)) {
        return shown_string(json_string_value(report), json_string_length(report));
    }
    if (json_is_object(report)) return shown_object(report);
    if (!json_is_array(report)) return json_deep_copy(report);
    json_t *list = json_array();
    json_array_foreach(report, i, element) {
        (void)json_array_append_new(list, fti_cli_shown_report(element));
    }
    return list;
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
