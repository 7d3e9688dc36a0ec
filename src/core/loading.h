/*
 * loading.h: what the parts of the loader share: loader.c loads one allowed file,
 * resolve.c decides which, discover.c looks into search folders.
 */
#ifndef FTI_LOADING_H
#define FTI_LOADING_H

#include "core/loader.h"

#define FTI_MANIFEST_SUFFIX ".provider.yaml"
#define FTI_LINKED_PATH     "(linked in)" /* stands for the path of a provider without one */

/* Loads the file of an entry whose manifest has been read, through every stage; `out` NULL:
 * judges it by the same stages and loads nothing. Takes the manifest over, setting it to NULL,
 * where a record of the object keeps it. */
ftk_status fti_load_allowed(const fti_provider_query *query, const fti_allow *allow,
                            fti_manifest **manifest, const fti_provider **out,
                            ftk_error *err) FTI_WARN_UNUSED;

/* The same up to dlopen, which is left out; `sha256` (may be NULL) receives the digest. */
ftk_status fti_check_allowed(const fti_allow *allow, const fti_manifest *manifest, char sha256[65],
                             ftk_error *err) FTI_WARN_UNUSED;

/* FTK_E_PROVIDER_SECURE_EXEC in a process that must load nothing. */
ftk_status fti_refuse_secure(ftk_error *err) FTI_WARN_UNUSED;

/* Characters of the folder that `path` lies in, for "%.*s". */
static inline int fti_folder_size(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path) : 0;
}

#endif
