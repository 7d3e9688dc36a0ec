/*
 * allow_edit.h: puts one entry into providers.allow of a configuration's text and
 * leaves every other byte alone. It understands block style, as people write it;
 * the caller must still parse what comes out before it is used.
 */
#ifndef FTI_CLI_ALLOW_EDIT_H
#define FTI_CLI_ALLOW_EDIT_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/text.h"

typedef struct fti_cli_allow_entry {
    const char *name;
    const char *path;
    const char *sha256;
} fti_cli_allow_entry;

typedef enum {
    FTI_CLI_EDIT_ADDED,
    FTI_CLI_EDIT_UPDATED,
    FTI_CLI_EDIT_UNCHANGED, /* the entry is there as wanted */
    FTI_CLI_EDIT_DIFFERS,   /* it is there with other values, and `update` is false */
    FTI_CLI_EDIT_REFUSED    /* written in a style that is not edited */
} fti_cli_edit;

/* `out` receives the new text when something changed, otherwise, for DIFFERS and
 * REFUSED, the reason ("LINE: ..."). */
fti_cli_edit fti_cli_allow_edit(const char *text, size_t size, const fti_cli_allow_entry *entry,
                                bool update, fti_cli_text *out);

#endif
