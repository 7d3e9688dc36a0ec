/*
 * lifecycle.h: the order in which an engine comes up, and with it the order in
 * which a provider is called. One state machine per engine; a call out of order
 * is refused, and close is legal from every state.
 */
#ifndef FTI_LIFECYCLE_H
#define FTI_LIFECYCLE_H

#include "core/base.h"

/* X(name, text). Stages are passed one by one, in this order. Nothing is
 * allocated on the device before MEMORY has agreed: every rejection of the trust
 * order and every refusal of a checkpoint lies above it. */
#define FTI_STAGE_LIST(X)                                                                          \
    X(NEW, "new")                                                                                  \
    X(CHECKPOINT, "read checkpoint metadata")                                                      \
    X(BACKEND, "open backend")                                                                     \
    X(PROVIDER, "resolve and load provider")                                                       \
    X(MATCH, "match provider")                                                                     \
    X(CREATE, "configure model")                                                                   \
    X(PLAN, "plan weights")                                                                        \
    X(MEMORY, "plan memory")                                                                       \
    X(ALLOCATE, "allocate")                                                                        \
    X(WEIGHTS, "load weights")                                                                     \
    X(CACHE, "attach cache")                                                                       \
    X(PREPARE, "prepare for runtime")                                                              \
    X(CAPTURE, "capture graphs")                                                                   \
    X(READY, "ready")

typedef enum {
#define FTI_STAGE_ENUM(name, text) FTI_STAGE_##name,
    FTI_STAGE_LIST(FTI_STAGE_ENUM)
#undef FTI_STAGE_ENUM
        FTI_STAGE_COUNT
} fti_stage;

const char *fti_stage_text(fti_stage stage);

typedef struct fti_lifecycle {
    fti_stage reached; /* last stage that was completed */
    bool failed;       /* a stage failed: only close is left */
} fti_lifecycle;

/* Begins `stage`: legal only as the next one of an engine that has not failed. */
ftk_status fti_lifecycle_begin(const fti_lifecycle *lifecycle, fti_stage stage, ftk_error *err);
/* Ends it with the status of its work, which is passed through. */
ftk_status fti_lifecycle_end(fti_lifecycle *lifecycle, fti_stage stage, ftk_status status);
/* FTK_E_STATE unless `stage` has been completed. */
ftk_status fti_lifecycle_need(const fti_lifecycle *lifecycle, fti_stage stage, ftk_error *err);

#endif
