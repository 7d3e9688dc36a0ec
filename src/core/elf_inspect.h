/*
 * elf_inspect.h: judges a shared object without running any of it, from the
 * structures that the dynamic loader will use: program headers and the dynamic
 * section in memory order, never section headers.
 */
#ifndef FTI_ELF_INSPECT_H
#define FTI_ELF_INSPECT_H

#include "core/base.h"

/*
 * Reads `fd` from its start, whatever its file position. `path` is for messages.
 * Refuses (FTK_E_PROVIDER_ELF) what is not a shared object of this machine, or
 * what would have an executable stack or segments both writable and executable,
 * text relocations, a run path, a filter or audit library, tables that the dynamic
 * loader would trip over, the name of a system library, or need a library outside
 * the system's own; (FTK_E_PROVIDER_ENTRY) what does not itself define and export
 * the entry of providers so that a search without a version finds it; and
 * (FTK_E_PROVIDER_IDENTITY) what has not exactly one freetoken note. `*note`
 * receives the text of the note; free it with fti_free.
 */
ftk_status fti_elf_inspect(int fd, const char *path, char **note, ftk_error *err) FTI_WARN_UNUSED;

/* Only the header, of 64 bytes: whether it could be one at all. */
ftk_status fti_elf_look(int fd, const char *path, ftk_error *err) FTI_WARN_UNUSED;

/* As fti_elf_inspect, for a module of this library, which has no note and another entry. */
ftk_status fti_elf_inspect_module(int fd, const char *path, const char *entry,
                                  ftk_error *err) FTI_WARN_UNUSED;

#endif
