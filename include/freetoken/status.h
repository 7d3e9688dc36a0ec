/*
 * status.h: the one list of results, shared by applications and providers, and
 * the caller-owned record that explains a failure.
 *
 * A status is 0 (FTK_OK) or a negative number. Its hundreds are its family, and
 * a family is also the exit code of the command-line tools:
 *   1 the run failed   2 usage   3 configuration   4 provider refused
 *   5 checkpoint refused   6 does not fit   7 device
 */
#ifndef FREETOKEN_STATUS_H
#define FREETOKEN_STATUS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(FTK_BUILD_SHARED)
#define FTK_API __attribute__((visibility("default")))
#else
#define FTK_API
#endif

typedef int32_t ftk_status;

/* X(name, number, text). Numbers are never reused. */
#define FTK_STATUS_LIST(X)                                                                         \
    X(FTK_OK, 0, "ok")                                                                             \
    X(FTK_E_ARGUMENT, -101, "invalid argument")                                                    \
    X(FTK_E_STATE, -102, "call out of order")                                                      \
    X(FTK_E_CANCELLED, -103, "cancelled")                                                          \
    X(FTK_E_NON_FINITE, -104, "non-finite logits")                                                 \
    X(FTK_E_INTERNAL, -105, "internal error")                                                      \
    X(FTK_E_IO, -106, "input or output failed")                                                    \
    X(FTK_E_UNSUPPORTED, -108, "unsupported")                                                      \
    X(FTK_E_NOT_FOUND, -109, "not found")                                                          \
    X(FTK_E_CONFIG_READ, -301, "configuration cannot be read")                                     \
    X(FTK_E_CONFIG_SYNTAX, -302, "configuration is not valid YAML of the allowed kind")            \
    X(FTK_E_CONFIG_KEY, -303, "unknown or duplicate configuration key")                            \
    X(FTK_E_CONFIG_VALUE, -304, "configuration value refused")                                     \
    X(FTK_E_CONFIG_TRUST, -305, "configuration file fails the trust checks")                       \
    X(FTK_E_PROVIDER_NONE, -401, "no allowed provider claims this checkpoint")                     \
    X(FTK_E_PROVIDER_NOT_ALLOWED, -402, "matching provider is not allowed")                        \
    X(FTK_E_PROVIDER_MANIFEST, -403, "provider manifest refused")                                  \
    X(FTK_E_PROVIDER_DUPLICATE, -404, "two providers claim the same checkpoint")                   \
    X(FTK_E_PROVIDER_PATH, -405, "provider path refused")                                          \
    X(FTK_E_PROVIDER_PERMISSION, -406, "provider owner or mode refused")                           \
    X(FTK_E_PROVIDER_DIGEST, -407, "provider sha256 differs")                                      \
    X(FTK_E_PROVIDER_ELF, -408, "provider is not an acceptable shared object")                     \
    X(FTK_E_PROVIDER_IDENTITY, -409, "manifest, note and table disagree")                          \
    X(FTK_E_PROVIDER_LEVEL, -410, "contract levels are incompatible")                              \
    X(FTK_E_PROVIDER_VERSION, -411, "core version outside the provider's range")                   \
    X(FTK_E_PROVIDER_LOAD, -412, "dynamic loader refused the provider")                            \
    X(FTK_E_PROVIDER_ENTRY, -413, "provider entry refused")                                        \
    X(FTK_E_PROVIDER_HARDWARE, -414, "hardware or runtime not supported by provider")              \
    X(FTK_E_PROVIDER_CONTRACT, -415, "provider broke the contract")                                \
    X(FTK_E_PROVIDER_SECURE_EXEC, -416, "no providers under secure execution")                     \
    X(FTK_E_PROVIDER_REFUSED, -417, "provider refused the checkpoint")                             \
    X(FTK_E_PROVIDER_RECORD, -418, "provider is not the one that the record names")                \
    X(FTK_E_CKPT_READ, -501, "checkpoint cannot be read")                                          \
    X(FTK_E_CKPT_FORMAT, -502, "checkpoint is malformed")                                          \
    X(FTK_E_CKPT_TRUNCATED, -503, "checkpoint is shorter than it declares")                        \
    X(FTK_E_CKPT_VERSION, -504, "checkpoint format version not supported")                         \
    X(FTK_E_CKPT_TYPE, -505, "tensor type not supported")                                          \
    X(FTK_E_CKPT_TENSOR, -506, "tensor missing or of the wrong shape")                             \
    X(FTK_E_CKPT_METADATA, -507, "metadata missing or out of range")                               \
    X(FTK_E_CKPT_PROJECTOR, -508, "file is a vision projector, not a language model")              \
    X(FTK_E_CKPT_TOKENIZER, -509, "tokenizer metadata refused")                                    \
    X(FTK_E_NO_MEMORY, -601, "out of host memory")                                                 \
    X(FTK_E_DOES_NOT_FIT, -602, "does not fit the memory budget")                                  \
    X(FTK_E_CONTEXT, -603, "does not fit the context")                                             \
    X(FTK_E_DEVICE_UNAVAILABLE, -701, "backend not available")                                     \
    X(FTK_E_DEVICE_TRANSIENT, -702, "device operation failed")                                     \
    X(FTK_E_DEVICE_LOST, -703, "device lost")

enum {
#define FTK_STATUS_ENUM(name, number, text) name = (number),
    FTK_STATUS_LIST(FTK_STATUS_ENUM)
#undef FTK_STATUS_ENUM
        FTK_STATUS_RESERVED = -32768
};

/* What a failed call has to say. The caller owns it, sets struct_size, and may
 * reuse it; a function that returns FTK_OK leaves it alone. `message` is one
 * line of UTF-8: what failed, where, what was found and wanted, what to do. */
typedef struct ftk_error {
    uint32_t struct_size;
    ftk_status status;
    char message[1016];
} ftk_error;

#define FTK_ERROR_INIT                                                                             \
    {                                                                                              \
        (uint32_t)sizeof(ftk_error), 0, {                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/* Static strings: "FTK_E_ARGUMENT" and "invalid argument". Never NULL. */
FTK_API const char *ftk_status_name(ftk_status status);
FTK_API const char *ftk_status_text(ftk_status status);

/* Exit code of a status, as listed at the top: 0 for FTK_OK. */
FTK_API int ftk_status_exit_code(ftk_status status);

#ifdef __cplusplus
}
#endif
#endif
