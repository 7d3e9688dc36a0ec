/*
 * provenance.c: reports as JSON: what an engine is (provenance), what memory it
 * planned, what a checkpoint holds, and which providers a configuration knows.
 */
#include "core/engine.h"

#include <stdlib.h>

/* ---- JSON helpers ---- */

json_t *fti_json_str(ftk_str s) {
    json_t *json = json_stringn(s.data ? s.data : "", (size_t)s.size);
    if (json) return json;
    char *copy = fti_strndup(s.data, (size_t)s.size);
    if (!copy) return NULL;
    for (size_t i = 0; i < (size_t)s.size; i++)
        if ((unsigned char)copy[i] >= 0x80u || copy[i] == 0) copy[i] = '?';
    json = json_string(copy);
    fti_free(copy);
    return json;
}

static json_t *text(const char *s) {
    return fti_json_str(fti_str(s ? s : ""));
}

static json_t *number(uint64_t value) {
    return json_integer((json_int_t)value);
}

static void set(json_t *object, const char *key, json_t *owned) {
    json_object_set_new(object, key, owned);
}

ftk_status fti_json_dump(json_t *owned, char **out, ftk_error *err) {
    char *dumped = owned ? json_dumps(owned, JSON_INDENT(2)) : NULL;
    json_decref(owned);
    char *copy = dumped ? fti_strndup(dumped, strlen(dumped)) : NULL;
    free(dumped);
    if (!copy) return fti_no_memory(err, 0, "a report");
    *out = copy;
    return FTK_OK;
}

void ftk_report_free(char *json) {
    fti_free(json);
}

/* ---- provenance ---- */

static const char *reason_text(uint32_t reason) {
    static const char *const texts[] = {
        "none",      "capability missing", "value too low", "type",
        "shape",     "alignment",          "policy",        "not graph safe",
        "self test", "build lacks backend"};
    return reason < FTI_COUNT(texts) ? texts[reason] : "unknown";
}

static json_t *provider_json(const ftk_engine *e) {
    const fti_provider *p = e->provider;
    json_t *o = json_object();
    set(o, "name", text(p->manifest->name));
    set(o, "version", text(p->manifest->version));
    set(o, "path", text(p->path));
    set(o, "pinned", json_boolean(p->sha256 != NULL));
    set(o, "sha256", p->sha256 ? text(p->sha256) : json_null());
    set(o, "device", number(p->device));
    set(o, "inode", number(p->inode));
    json_t *levels = json_object();
    set(levels, "host", number(FTK_API_LEVEL));
    set(levels, "provider", number(p->manifest->api_level));
    set(levels, "effective", number(p->effective_level));
    set(o, "levels", levels);
    return o;
}

static json_t *checkpoint_json(const ftk_engine *e) {
    json_t *o = json_object();
    set(o, "path", text(fti_checkpoint_path(e->checkpoint)));
    set(o, "container", text(fti_checkpoint_container(e->checkpoint)));
    set(o, "version", number(fti_checkpoint_version(e->checkpoint)));
    set(o, "bytes", number(fti_checkpoint_file_bytes(e->checkpoint)));
    set(o, "shards", number(fti_checkpoint_shard_count(e->checkpoint)));
    set(o, "architecture", fti_json_str(e->architecture));
    ftk_str name = {NULL, 0};
    if (fti_meta_get_str(e->checkpoint, fti_str("general.name"), &name, NULL) == FTK_OK)
        set(o, "name", fti_json_str(name));
    return o;
}

static json_t *backend_json(const ftk_engine *e) {
    json_t *o = json_object(), *capabilities = json_object();
    set(o, "kind", text(e->backend->ops->name));
    set(o, "threads", number(e->threads));
    if (e->settings.kernel_mask == UINT32_MAX)
        set(o, "kernels", text("auto"));
    else if (e->settings.kernel_mask == 0)
        set(o, "kernels", text("reference"));
    else
        set(o, "kernels", number(e->settings.kernel_mask));
    const char *name;
    for (size_t i = 0; (name = e->backend->ops->capability_name(e->backend, i)) != NULL; i++) {
        int64_t value;
        if (e->backend->ops->capability(e->backend, fti_str(name), &value) == FTK_OK)
            set(capabilities, name, json_integer(value));
    }
    set(o, "capabilities", capabilities);
    return o;
}

static json_t *skips_json(const ftk_engine *e, uint32_t table) {
    json_t *list = json_array();
    const ftk_variant_table *t = e->provider->table->variants[table];
    for (size_t i = 0; i < e->skip_count; i++) {
        if (e->skips[i].table != table) continue;
        const ftk_variant *v = (const ftk_variant *)(const void *)((const char *)t->variants +
                                                                   (size_t)e->skips[i].row *
                                                                       t->variant_stride);
        json_t *o = json_object();
        set(o, "variant", fti_json_str(v->name));
        set(o, "reason", text(reason_text(e->skips[i].reason)));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *variants_json(const ftk_engine *e) {
    json_t *list = json_array();
    for (uint32_t i = 0; e->chosen && i < e->provider->table->variant_table_count; i++) {
        const ftk_variant_table *t = e->provider->table->variants[i];
        const ftk_variant *v = (const ftk_variant *)(const void *)((const char *)t->variants +
                                                                   (size_t)e->chosen[i] *
                                                                       t->variant_stride);
        json_t *o = json_object();
        set(o, "operation", fti_json_str(t->operation));
        set(o, "chosen", fti_json_str(v->name));
        set(o, "passed_over", skips_json(e, i));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *graphs_json(const ftk_engine *e) {
    json_t *o = json_object(), *buckets = json_array();
    for (size_t i = 0; i < e->graph_count; i++) {
        json_t *bucket = json_object();
        set(bucket, "rows", number(e->graphs[i].rows));
        set(bucket, "nodes", number(e->backend->ops->graph_nodes(e->graphs[i].graph)));
        json_array_append_new(buckets, bucket);
    }
    set(o, "captured", buckets);
    set(o, "eager_reason", e->graph_reason[0] ? text(e->graph_reason) : json_null());
    return o;
}

static json_t *numerics_json(const ftk_engine *e) {
    json_t *o = json_object();
    set(o, "mode", text(e->settings.numerics == FTI_NUMERICS_FLOAT ? "float" : "exact"));
    set(o, "version", number(FTK_NUMERICS_VERSION));
    return o;
}

static const char *fused_text(fti_fused fused) {
    return fused == FTI_FUSED_OFF ? "off" : fused == FTI_FUSED_REQUIRE ? "require" : "auto";
}

ftk_status ftk_engine_provenance(const ftk_engine *e, char **json, ftk_error *err) {
    if (!e || !json) return fti_fail(err, FTK_E_ARGUMENT, "engine and json must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_CREATE, err));
    json_t *o = json_object(), *policy = json_object(), *notes = json_array();
    set(o, "libfreetoken", text(FTK_VERSION_STRING));
    set(o, "stage", text(fti_stage_text(e->lifecycle.reached)));
    set(o, "config", text(e->settings.origin));
    set(o, "provider", provider_json(e));
    set(o, "checkpoint", checkpoint_json(e));
    set(o, "backend", backend_json(e));
    set(o, "numerics", numerics_json(e));
    set(o, "kv_type", text(fti_type_name(e->kv_type)));
    set(policy, "fused", text(fused_text(e->settings.fused)));
    set(policy, "prefill_tokens", number(e->settings.prefill_tokens));
    set(policy, "max_running", number(e->settings.sequences));
    set(o, "policy", policy);
    set(o, "variants", variants_json(e));
    set(o, "graphs", graphs_json(e));
    for (size_t i = 0; i < e->ctx.note_count; i++)
        json_array_append_new(notes, text(e->ctx.notes[i]));
    set(o, "notes", notes);
    return fti_json_dump(o, json, err);
}

ftk_status ftk_engine_memory(const ftk_engine *e, char **json, ftk_error *err) {
    if (!e || !json) return fti_fail(err, FTK_E_ARGUMENT, "engine and json must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_MEMORY, err));
    const fti_budget *b = &e->budget;
    const struct {
        const char *key;
        uint64_t value;
    } rows[] = {{"weights_mapped", b->weights_mapped},
                {"weights_allocated", b->weights_allocated},
                {"kv_cache", b->kv_cache},
                {"recurrent_state", b->recurrent_state},
                {"workspace", b->workspace},
                {"step_buffers", b->step_buffers},
                {"total", b->total},
                {"budget", b->budget},
                {"available", b->available},
                {"allocated", e->backend->ops->memory_used(e->backend)},
                {"context", b->context}};
    json_t *o = json_object();
    for (size_t i = 0; i < FTI_COUNT(rows); i++) set(o, rows[i].key, number(rows[i].value));
    set(o, "kv_type", text(fti_type_name(e->kv_type)));
    return fti_json_dump(o, json, err);
}

ftk_status ftk_engine_stats(const ftk_engine *e, char **json, ftk_error *err) {
    if (!e || !json) return fti_fail(err, FTK_E_ARGUMENT, "engine and json must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_READY, err));
    return fti_json_dump(fti_service_stats(e), json, err);
}

/* ---- checkpoint ---- */

static const char *meta_type_text(uint32_t type) {
    static const char *const texts[FTI_META_TYPES] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                      "i32", "f32", "bool", "string", "array",
                                                      "u64", "i64", "f64"};
    return type < FTI_META_TYPES ? texts[type] : "unknown";
}

static json_t *meta_json(const fti_checkpoint *c, const fti_meta *m) {
    if (m->type == FTI_META_STRING) {
        const ftk_str s = {(const char *)m->data, m->bytes};
        return fti_json_str(s);
    }
    if (m->type == FTI_META_ARRAY) {
        json_t *o = json_object();
        set(o, "array", text(meta_type_text(m->element_type)));
        set(o, "count", number(m->count));
        return o;
    }
    bool b;
    double d;
    uint64_t u;
    if (fti_meta_get_bool(c, m->key, &b, NULL) == FTK_OK) return json_boolean(b);
    if (fti_meta_get_f64(c, m->key, &d, NULL) == FTK_OK) return json_real(d);
    if (fti_meta_get_u64(c, m->key, 0, INT64_MAX, &u, NULL) == FTK_OK) return number(u);
    return text("(a number outside 0 to 2^63-1)");
}

static void count_type(json_t *types, const fti_tensor *t) {
    const char *name = fti_type_name(t->type);
    json_t *row = json_object_get(types, name);
    if (!row) {
        row = json_object();
        set(types, name, row);
    }
    uint64_t count = (uint64_t)json_integer_value(json_object_get(row, "count"));
    uint64_t bytes = (uint64_t)json_integer_value(json_object_get(row, "bytes"));
    set(row, "count", number(count + 1));
    set(row, "bytes", number(bytes + t->bytes));
}

static json_t *tensor_json(const fti_tensor *t) {
    json_t *o = json_object(), *dims = json_array();
    set(o, "name", fti_json_str(t->name));
    set(o, "type", text(fti_type_name(t->type)));
    for (uint32_t d = 0; d < t->n_dims; d++) json_array_append_new(dims, number(t->dims[d]));
    set(o, "dims", dims);
    set(o, "bytes", number(t->bytes));
    set(o, "shard", number(t->shard + 1));
    set(o, "offset", number(t->offset));
    return o;
}

static json_t *inspect_json(const fti_checkpoint *c, const char *path) {
    json_t *o = json_object(), *meta = json_object(), *tensors = json_array(),
           *types = json_object();
    for (size_t i = 0; i < fti_checkpoint_meta_count(c); i++) {
        const fti_meta *m = fti_checkpoint_meta(c, i);
        json_object_setn_new_nocheck(meta, m->key.data, (size_t)m->key.size, meta_json(c, m));
    }
    for (size_t i = 0; i < fti_checkpoint_tensor_count(c); i++) {
        const fti_tensor *t = fti_checkpoint_tensor(c, i);
        json_array_append_new(tensors, tensor_json(t));
        count_type(types, t);
    }
    ftk_str architecture = {NULL, 0};
    (void)fti_meta_get_str(c, fti_str("general.architecture"), &architecture, NULL);
    set(o, "path", text(path));
    set(o, "container", text(fti_checkpoint_container(c)));
    set(o, "version", number(fti_checkpoint_version(c)));
    set(o, "file_bytes", number(fti_checkpoint_file_bytes(c)));
    set(o, "shards", number(fti_checkpoint_shard_count(c)));
    set(o, "architecture", fti_json_str(architecture));
    set(o, "types", types);
    set(o, "metadata", meta);
    set(o, "tensors", tensors);
    return o;
}

ftk_status ftk_inspect(const char *model_path, char **json, ftk_error *err) {
    if (!model_path || !json)
        return fti_fail(err, FTK_E_ARGUMENT, "model path and json must not be NULL");
    fti_checkpoint *checkpoint;
    FTI_TRY(fti_checkpoint_open(model_path, &checkpoint, err));
    ftk_status status = fti_json_dump(inspect_json(checkpoint, model_path), json, err);
    fti_checkpoint_close(checkpoint);
    return status;
}
