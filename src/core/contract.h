/*
 * contract.h: the two sides of the contract held against each other: levels, versions and
 * hardware from the manifest alone, then the table that the entry returns, which is copied
 * into one of this release's size so that nobody later asks what an older provider has.
 */
#ifndef FTI_CONTRACT_H
#define FTI_CONTRACT_H

#include "core/identity.h"

/* FTK_E_PROVIDER_LEVEL or FTK_E_PROVIDER_VERSION unless both sides accept each other. */
ftk_status fti_contract_versions(const fti_manifest *manifest, uint32_t *effective, ftk_error *err);

/* FTK_E_PROVIDER_HARDWARE unless the provider was made for the engine's backend, and has code
 * for its device where that needs any. */
ftk_status fti_contract_hardware(const fti_manifest *manifest, const fti_provider_query *query,
                                 ftk_error *err);

/* Calls the entry twice. FTK_E_PROVIDER_ENTRY without a table, FTK_E_PROVIDER_CONTRACT for one
 * that breaks a rule of provider.h. `*out` is the provider's own table. */
ftk_status fti_contract_call(const char *path, ftk_provider_entry entry, const ftk_provider **out,
                             ftk_error *err);

/* Strings of at most 4096 bytes; the identity is valid while the provider is loaded. */
ftk_status fti_contract_identity(const char *path, const ftk_provider *table,
                                 fti_identity *identity, ftk_error *err);

/* Checks slots and variants of `table`, whose identity is the manifest's, and fills `copy`:
 * optional slots that it lacks, or is too old to have, answer FTK_E_UNSUPPORTED. */
ftk_status fti_contract_copy(const char *path, const ftk_provider *table,
                             const fti_manifest *manifest, ftk_provider *copy, ftk_error *err);

#endif
