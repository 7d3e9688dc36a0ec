/* lifecycle.c: see lifecycle.h. */
#include "core/lifecycle.h"

const char *fti_stage_text(fti_stage stage) {
    static const char *const texts[] = {
#define FTI_STAGE_TEXT(name, text) text,
        FTI_STAGE_LIST(FTI_STAGE_TEXT)
#undef FTI_STAGE_TEXT
    };
    return (size_t)stage < FTI_COUNT(texts) ? texts[stage] : "unknown stage";
}

ftk_status fti_lifecycle_begin(const fti_lifecycle *l, fti_stage stage, ftk_error *err) {
    if (l->failed)
        return fti_fail(err, FTK_E_STATE, "'%s' after a stage that failed: close the engine",
                        fti_stage_text(stage));
    if ((int)stage != (int)l->reached + 1)
        return fti_fail(err, FTK_E_STATE, "'%s' out of order: the engine has reached '%s'",
                        fti_stage_text(stage), fti_stage_text(l->reached));
    return FTK_OK;
}

ftk_status fti_lifecycle_end(fti_lifecycle *l, fti_stage stage, ftk_status status) {
    if (status == FTK_OK)
        l->reached = stage;
    else
        l->failed = true;
    return status;
}

ftk_status fti_lifecycle_need(const fti_lifecycle *l, fti_stage stage, ftk_error *err) {
    if (!l->failed && l->reached >= stage) return FTK_OK;
    return fti_fail(err, FTK_E_STATE, "the engine has reached '%s', this call needs '%s'",
                    fti_stage_text(l->reached), fti_stage_text(stage));
}
