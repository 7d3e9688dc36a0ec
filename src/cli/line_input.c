/* line_input.c: reads lines, through libedit where there is one and a terminal. */
#include "cli/line_input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/session.h"

#if defined(FTI_HAVE_LIBEDIT)
#include <histedit.h>
#include <locale.h>
#define HISTORY_LINES 1000
#endif

struct fti_cli_lines {
    const char *prompt;
    char *buffer; /* of getline */
    size_t capacity;
    bool terminal;
#if defined(FTI_HAVE_LIBEDIT)
    EditLine *editor; /* NULL: plain */
    History *history;
    bool dropped;
#endif
};

static void take(fti_cli_text *line, const char *data, size_t size) {
    while (size && (data[size - 1] == '\n' || data[size - 1] == '\r')) size--;
    line->size = 0;
    fti_cli_append(line, data, size);
}

/* ---- plain ---- */

static fti_cli_line_result next_plain(fti_cli_lines *l, fti_cli_text *line) {
    if (l->terminal) {
        (void)fputs(l->prompt, stdout);
        (void)fflush(stdout);
    }
    errno = 0;
    ssize_t size = getline(&l->buffer, &l->capacity, stdin);
    if (size >= 0) {
        take(line, l->buffer, (size_t)size);
        return FTI_CLI_LINE;
    }
    if (errno != EINTR || !fti_cli_interrupted()) return FTI_CLI_LINE_END;
    clearerr(stdin);
    (void)fputc('\n', stdout);
    return FTI_CLI_LINE_DROPPED;
}

/* ---- libedit ---- */

#if defined(FTI_HAVE_LIBEDIT)
static fti_cli_lines *reader_of(EditLine *editor) {
    void *data = NULL;
    (void)el_get(editor, EL_CLIENTDATA, &data);
    return data;
}

static char *show_prompt(EditLine *editor) {
    return (char *)(uintptr_t)reader_of(editor)->prompt;
}

/* Ctrl-C as a key: it ends the line, which is then thrown away. */
static unsigned char drop_line(EditLine *editor, int key) {
    (void)key;
    reader_of(editor)->dropped = true;
    (void)fputs("^C\n", stdout);
    (void)fflush(stdout);
    return CC_NEWLINE;
}

/* While a line is edited the terminal sends Ctrl-C as a character, not a signal. */
static void configure(fti_cli_lines *l) {
    HistEvent event;
    (void)el_set(l->editor, EL_CLIENTDATA, l);
    (void)el_set(l->editor, EL_PROMPT, show_prompt);
    (void)el_set(l->editor, EL_EDITOR, "emacs");
    (void)history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    (void)history(l->history, &event, H_SETUNIQUE, 1);
    (void)el_set(l->editor, EL_HIST, history, l->history);
    (void)el_set(l->editor, EL_ADDFN, "drop-line", "throw the line away", drop_line);
    (void)el_set(l->editor, EL_SETTY, "-d", "-isig", NULL);
    (void)el_set(l->editor, EL_BIND, "^C", "drop-line", NULL);
    (void)el_set(l->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
}

static void open_editor(fti_cli_lines *l) {
    (void)setlocale(LC_CTYPE, ""); /* what a character is */
    l->history = history_init();
    if (!l->history) return;
    l->editor = el_init("freetoken", stdin, stdout, stderr);
    if (l->editor) configure(l);
}

static fti_cli_line_result next_edited(fti_cli_lines *l, fti_cli_text *line) {
    int count = 0;
    l->dropped = false;
    const char *typed = el_gets(l->editor, &count);
    if (l->dropped) return FTI_CLI_LINE_DROPPED;
    if (!typed || count <= 0) return FTI_CLI_LINE_END;
    take(line, typed, (size_t)count);
    HistEvent event;
    if (line->size) (void)history(l->history, &event, H_ENTER, line->data);
    return FTI_CLI_LINE;
}
#endif

/* ---- either ---- */

fti_cli_lines *fti_cli_lines_open(const char *prompt) {
    fti_cli_lines *l = fti_cli_alloc(1, sizeof *l);
    l->prompt = prompt;
    l->terminal = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
#if defined(FTI_HAVE_LIBEDIT)
    if (l->terminal) open_editor(l);
#endif
    return l;
}

fti_cli_line_result fti_cli_lines_next(fti_cli_lines *l, fti_cli_text *line) {
#if defined(FTI_HAVE_LIBEDIT)
    if (l->editor) return next_edited(l, line);
#endif
    return next_plain(l, line);
}

void fti_cli_lines_close(fti_cli_lines *l) {
#if defined(FTI_HAVE_LIBEDIT)
    if (l->editor) el_end(l->editor);
    if (l->history) history_end(l->history);
#endif
    free(l->buffer);
    free(l);
}
