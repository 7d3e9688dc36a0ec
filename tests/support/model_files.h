/*
 * model_files.h: what tests share that write models: the small shapes they use, the
 * file in the scratch folder, and refusals: opening such a file must fail with this
 * status and these words, before anything is allocated on the device.
 */
#ifndef TESTS_MODEL_FILES_H
#define TESTS_MODEL_FILES_H

#include "loader/scratch.h"
#include "support/engine_fixture.h"
#include "support/synth_model.h"

#include "core/lifecycle.h"

/* Small enough for a file per case; rows hold whole K-quant blocks. */
static inline fti_synth_model small_model(void) {
    fti_synth_model m = fti_synth_tiny();
    m.dims.experts = 4;
    m.dims.vocabulary = 512;
    m.dims.head_dim = 64;
    m.dims.rope_dim = 32;
    return m;
}

static inline void all_types(fti_synth_model *m, uint32_t type) {
    for (int c = 0; c < FTI_SYNTH_CLASSES; c++) m->types[c] = type;
}

/* Smaller still, in F32, for files that need not compute anything of note. */
static inline fti_synth_model toy_model(void) {
    fti_synth_model m = fti_synth_tiny();
    m.dims = (fti_synth_dims){.hidden = 256,
                              .layers = 4,
                              .experts = 4,
                              .used = 2,
                              .ff = 32,
                              .shared_ff = 32,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 32,
                              .rope_dim = 16,
                              .key_heads = 2,
                              .value_heads = 4,
                              .state = 32,
                              .conv = 4,
                              .interval = 4,
                              .vocabulary = 320,
                              .context = 4096};
    all_types(&m, FTK_TYPE_F32);
    m.threads = 1;
    return m;
}

static inline text write_model(const fti_synth_model *m, const char *name) {
    ftk_error err = FTK_ERROR_INIT;
    text path = in_scratch(name);
    if (fti_synth_write(m, path.s, &err) != FTK_OK) fail_msg("%s", err.message);
    return path;
}

static inline ftk_config *load_config(void) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config;
    if (ftk_config_load(FTK_CONFIG, &config, &err) != FTK_OK) fail_msg("%s", err.message);
    return config;
}

/* ---- refusals ---- */

typedef struct refusal {
    ftk_status status;
    int exit_code;
    const char *parts[6]; /* of the message, up to a NULL */
} refusal;

/* The message is one line, has every part, and `where` (may be NULL) once. */
static inline void check_message(const ftk_error *err, const refusal *r, const char *where,
                                 const char *what) {
    if (err->status != r->status || ftk_status_exit_code(err->status) != r->exit_code)
        fail_msg("%s: %s, exit code %d (%s); wanted %s, %d", what, ftk_status_name(err->status),
                 ftk_status_exit_code(err->status), err->message, ftk_status_name(r->status),
                 r->exit_code);
    if (strpbrk(err->message, "\r\n")) fail_msg("%s: more than a line: %s", what, err->message);
    const char *at = where ? strstr(err->message, where) : NULL;
    if (where && !at) fail_msg("%s: no '%s' in: %s", what, where, err->message);
    if (at && strstr(at + 1, where)) fail_msg("%s: '%s' twice in: %s", what, where, err->message);
    for (size_t i = 0; i < FTI_COUNT(r->parts) && r->parts[i]; i++)
        if (!strstr(err->message, r->parts[i]))
            fail_msg("%s: no '%s' in: %s", what, r->parts[i], err->message);
}

typedef struct opening {
    size_t calls;
    bool allocated;
} opening;

static inline int watch(void *user, const char *stage, uint64_t done, uint64_t total) {
    opening *w = user;
    (void)done;
    (void)total;
    w->calls++;
    if (strcmp(stage, fti_stage_text(FTI_STAGE_ALLOCATE)) == 0) w->allocated = true;
    return 0;
}

/* Opens `model` and expects the refusal; the message has `where` (may be NULL) in it once. */
static inline void expect_refused(const ftk_config *config, const char *model, const char *where,
                                  const refusal *r, const char *what) {
    opening w = {0, false};
    ftk_open_options options = FTK_OPEN_OPTIONS_INIT;
    options.progress = watch;
    options.user = &w;
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = (ftk_engine *)(void *)&w;
    ftk_status status = ftk_engine_open(config, model, &options, &engine, &err);
    if (status == FTK_OK) fail_msg("%s: it opens", what);
    assert_null(engine);
    assert_int_equal(status, err.status);
    check_message(&err, r, where, what);
    if (w.allocated) fail_msg("%s: refused only after allocating: %s", what, err.message);
    assert_true(w.calls > 0);
}

#endif
