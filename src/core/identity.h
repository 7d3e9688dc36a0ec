/*
 * identity.h: what a provider says of itself, in the three places that must agree
 * (manifest, ELF note, table), and the record by which processes make sure that they
 * resolved the same provider.
 */
#ifndef FTI_IDENTITY_H
#define FTI_IDENTITY_H

#include "core/loader.h"

/* The last two are optional in manifest, note and table: absent means the default. */
#define FTI_IDENTITY_KEYS     11u
#define FTI_IDENTITY_REQUIRED 9u

/* Levels as decimal text, which `number` holds: do not copy an identity. */
typedef struct fti_identity {
    ftk_str value[FTI_IDENTITY_KEYS];
    char number[2][12];
} fti_identity;

/* Values live as long as what they were read from. */
void fti_identity_of_manifest(const fti_manifest *manifest, fti_identity *identity);
void fti_identity_of_table(const ftk_identity *from, fti_identity *identity);
ftk_status fti_identity_of_note(const char *path, const char *note, fti_identity *identity,
                                ftk_error *err);

/* FTK_E_PROVIDER_IDENTITY unless `found`, read from `source` ("ELF note", "table") of the
 * library at `path`, is what the manifest says. */
ftk_status fti_identity_compare(const char *path, const char *source, const fti_identity *found,
                                const fti_manifest *manifest, ftk_error *err);

/* The manifest that a provider without files would have; `path` stands for its own.
 * Freed with fti_manifest_free. */
ftk_status fti_identity_manifest(const char *path, const fti_identity *identity, fti_manifest **out,
                                 ftk_error *err);

/* FTK_E_PROVIDER_RECORD if `record`, which another process wrote with fti_provider_record,
 * names anything else than `provider` and the pair. */
ftk_status fti_record_check(const char *record, const fti_provider *provider, ftk_str architecture,
                            ftk_str container, ftk_error *err);

#endif
