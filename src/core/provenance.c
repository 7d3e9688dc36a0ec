/*
 * provenance.c: reports as JSON: what an engine is (provenance), what memory it
 * planned, what a checkpoint holds, and which providers a configuration knows.
 */
#include "core/engine.h"

#include <math.h>
#include <xxhash.h>

/* ---- JSON helpers ---- */

/* What is no UTF-8 has no place in JSON: such bytes stand there as messages show them. */
json_t *fti_json_str(ftk_str s) {
    json_t *json = json_stringn(s.data ? s.data : "", (size_t)s.size);
    if (json || !s.data) return json;
    fti_text shown = {0};
    for (size_t at = 0, length; at < (size_t)s.size; at += length ? length : 1) {
        length = fti_utf8_length((const uint8_t *)s.data + at, (size_t)s.size - at);
        if (length)
            fti_text_append(&shown, s.data + at, length);
        else
            fti_text_printf(&shown, "\\x%02x", (unsigned char)s.data[at]);
    }
    if (!shown.failed) json = json_stringn(shown.data, shown.size);
    fti_text_free(&shown);
    return json;
}

static json_t *text(const char *s) {
    return fti_json_str(fti_str(s ? s : ""));
}

static json_t *number(uint64_t value) {
    return json_integer((json_int_t)value);
}

static void drop(json_t **json) {
    json_decref(*json);
    *json = NULL;
}

void fti_json_set(json_t **object, const char *key, json_t *owned) {
    if (json_object_set_new(*object, key, owned) != 0) drop(object);
}

void fti_json_append(json_t **array, json_t *owned) {
    if (json_array_append_new(*array, owned) != 0) drop(array);
}

/* json_dumps forgets failures of its own buffer: this one keeps them. */
static int append_dumped(const char *data, size_t size, void *text) {
    fti_text_append(text, data, size);
    return 0;
}

ftk_status fti_json_dump(json_t *owned, char **out, ftk_error *err) {
    fti_text dumped = {0};
    bool whole = owned && json_dump_callback(owned, append_dumped, &dumped, JSON_INDENT(2)) == 0;
    json_decref(owned);
    if (whole && !dumped.failed) {
        *out = dumped.data;
        return FTK_OK;
    }
    fti_text_free(&dumped);
    return fti_no_memory(err, 0, "a report");
}

void ftk_report_free(char *json) {
    fti_free(json);
}

/* ---- provenance ---- */

static json_t *levels_json(const fti_provider *p) {
    json_t *levels = json_object();
    fti_json_set(&levels, "host", number(FTK_API_LEVEL));
    fti_json_set(&levels, "provider", number(p->manifest->api_level));
    fti_json_set(&levels, "effective", number(p->effective_level));
    return levels;
}

/* Where its code came from. A provider that is part of the program has no file of its own: the
 * digest is then of the one that holds it. */
static void add_file(json_t **o, const fti_provider *p) {
    fti_json_set(o, "path", text(p->path));
    fti_json_set(o, "linked_in", json_boolean(p->linked));
    fti_json_set(o, "pinned", json_boolean(p->pinned));
    fti_json_set(o, "sha256", p->sha256[0] ? text(p->sha256) : json_null());
    fti_json_set(o, "sha256_of",
                 p->linked ? p->linked_file ? text(p->linked_file) : json_null() : text(p->path));
    fti_json_set(o, "sha256_reason", p->no_digest ? text(p->no_digest) : json_null());
    fti_json_set(o, "device", p->linked ? json_null() : number(p->device));
    fti_json_set(o, "inode", p->linked ? json_null() : number(p->inode));
    fti_json_set(o, "load_address", json_sprintf("0x%llx", (unsigned long long)p->load_address));
}

static json_t *provider_json(const ftk_engine *e) {
    const fti_provider *p = e->provider;
    const fti_manifest *m = p->manifest;
    const struct {
        const char *key, *value;
    } texts[] = {{"name", m->name},
                 {"version", m->version},
                 {"distribution", m->distribution},
                 {"distribution_version", m->distribution_version},
                 {"license", m->license},
                 {"core_range", m->core_range},
                 {"architectures", m->architectures},
                 {"containers", m->containers},
                 {"backends", m->backends},
                 {"device_code", m->device_code}};
    json_t *o = json_object();
    for (size_t i = 0; i < FTI_COUNT(texts); i++)
        fti_json_set(&o, texts[i].key, text(texts[i].value));
    add_file(&o, p);
    fti_json_set(&o, "levels", levels_json(p));
    fti_json_set(&o, "options", text(e->options_json));
    return o;
}

/* Of everything but the payload: names, shapes, places and metadata. Enough to tell two
 * checkpoints apart in an instant; the payload's own digest would take a read of it all. */
static json_t *directory_hash(const fti_checkpoint *c) {
    XXH3_state_t *state = XXH3_createState();
    if (!state || XXH3_64bits_reset(state) != XXH_OK) {
        XXH3_freeState(state);
        return NULL;
    }
    for (size_t i = 0; i < fti_checkpoint_meta_count(c); i++) {
        const fti_meta *m = fti_checkpoint_meta(c, i);
        XXH3_64bits_update(state, m->key.data, (size_t)m->key.size);
        XXH3_64bits_update(state, m->data, (size_t)m->bytes);
    }
    for (size_t i = 0; i < fti_checkpoint_tensor_count(c); i++) {
        const fti_tensor *t = fti_checkpoint_tensor(c, i);
        const uint64_t facts[] = {t->type,    t->dims[0], t->dims[1], t->dims[2],
                                  t->dims[3], t->offset,  t->shard};
        XXH3_64bits_update(state, t->name.data, (size_t)t->name.size);
        XXH3_64bits_update(state, facts, sizeof facts);
    }
    json_t *hash = json_sprintf("%016llx", (unsigned long long)XXH3_64bits_digest(state));
    XXH3_freeState(state);
    return hash;
}

static json_t *checkpoint_json(const ftk_engine *e) {
    json_t *o = json_object();
    fti_json_set(&o, "path", text(fti_checkpoint_path(e->checkpoint)));
    fti_json_set(&o, "container", text(fti_checkpoint_container(e->checkpoint)));
    fti_json_set(&o, "adapter", json_sprintf("core/%s", fti_checkpoint_container(e->checkpoint)));
    fti_json_set(&o, "version", number(fti_checkpoint_version(e->checkpoint)));
    fti_json_set(&o, "bytes", number(fti_checkpoint_file_bytes(e->checkpoint)));
    fti_json_set(&o, "shards", number(fti_checkpoint_shard_count(e->checkpoint)));
    fti_json_set(&o, "architecture", fti_json_str(e->architecture));
    fti_json_set(&o, "directory_hash", directory_hash(e->checkpoint));
    ftk_str name = {NULL, 0};
    if (fti_meta_get_str(e->checkpoint, fti_str("general.name"), &name, NULL) == FTK_OK)
        fti_json_set(&o, "name", fti_json_str(name));
    return o;
}

static json_t *placement_json(const ftk_engine *e) {
    fti_placement p;
    json_t *o = json_object();
    e->backend->ops->placement(e->backend, &p);
    fti_json_set(&o, "pinned_threads", number(p.pinned));
    fti_json_set(&o, "numa_nodes", number(p.nodes));
    fti_json_set(&o, "interleaved", json_boolean(p.interleaved));
    fti_json_set(&o, "huge_pages_allocated", number(p.huge_allocated));
    fti_json_set(&o, "huge_pages_mapped", number(p.huge_mapped));
    return o;
}

static json_t *backend_json(const ftk_engine *e) {
    json_t *o = json_object(), *capabilities = json_object();
    fti_json_set(&o, "kind", text(e->backend->ops->name));
    fti_json_set(&o, "threads", number(e->threads));
    if (e->settings.kernel_mask == UINT32_MAX)
        fti_json_set(&o, "kernels", text("auto"));
    else if (e->settings.kernel_mask == 0)
        fti_json_set(&o, "kernels", text("reference"));
    else
        fti_json_set(&o, "kernels", number(e->settings.kernel_mask));
    const char *name;
    for (size_t i = 0; (name = e->backend->ops->capability_name(e->backend, i)) != NULL; i++) {
        int64_t value;
        if (e->backend->ops->capability(e->backend, fti_str(name), &value) == FTK_OK)
            fti_json_set(&capabilities, name, json_integer(value));
    }
    fti_json_set(&o, "capabilities", capabilities);
    fti_json_set(&o, "placement", placement_json(e));
    return o;
}

static const ftk_variant *variant_at(const ftk_variant_table *t, uint32_t row) {
    return (const ftk_variant *)(const void *)((const char *)t->variants +
                                               (size_t)row * t->variant_stride);
}

static json_t *skip_detail(const fti_skip *skip) {
    if (!skip->need) return json_null();
    if (skip->reason == FTK_REASON_CAPABILITY_MISSING)
        return json_sprintf("found no %.*s, wanted %lld", FTI_STR_ARGS(skip->need->name),
                            (long long)skip->need->min_value);
    return json_sprintf("found %.*s %lld, wanted %lld", FTI_STR_ARGS(skip->need->name),
                        (long long)skip->found, (long long)skip->need->min_value);
}

static json_t *skips_json(const ftk_engine *e, uint32_t table) {
    json_t *list = json_array();
    const ftk_variant_table *t = e->provider->table->variants[table];
    for (size_t i = 0; i < e->skip_count; i++) {
        const fti_skip *skip = &e->skips[i];
        if (skip->table != table) continue;
        json_t *o = json_object();
        fti_json_set(&o, "variant", fti_json_str(variant_at(t, skip->row)->name));
        fti_json_set(&o, "reason", text(fti_reason_text(skip->reason)));
        fti_json_set(&o, "code", number(skip->reason));
        fti_json_set(&o, "detail", skip_detail(skip));
        fti_json_append(&list, o);
    }
    return list;
}

/* The kernels of the generic operators, which the backend chooses as a whole. */
static json_t *operators_json(const ftk_engine *e) {
    json_t *o = json_object(), *passed_over = json_array(), *chosen = NULL;
    const char *name, *lacks;
    uint32_t reason;
    for (size_t i = 0;
         !chosen && (name = e->backend->ops->operator_variant(e->backend, i, &reason, &lacks));
         i++) {
        if (reason == FTK_REASON_NONE) {
            chosen = text(name);
            continue;
        }
        json_t *skip = json_object();
        fti_json_set(&skip, "variant", text(name));
        fti_json_set(&skip, "reason", text(fti_reason_text(reason)));
        fti_json_set(&skip, "code", number(reason));
        fti_json_set(&skip, "detail", json_sprintf("wanted %s", lacks));
        fti_json_append(&passed_over, skip);
    }
    fti_json_set(&o, "operation", text("core/operators"));
    fti_json_set(&o, "chosen", chosen ? chosen : json_null());
    fti_json_set(&o, "passed_over", passed_over);
    return o;
}

static json_t *variants_json(const ftk_engine *e) {
    json_t *list = json_array();
    fti_json_append(&list, operators_json(e));
    for (uint32_t i = 0; e->chosen && i < e->provider->table->variant_table_count; i++) {
        const ftk_variant_table *t = e->provider->table->variants[i];
        json_t *o = json_object();
        fti_json_set(&o, "operation", fti_json_str(t->operation));
        fti_json_set(&o, "chosen", fti_json_str(variant_at(t, e->chosen[i])->name));
        fti_json_set(&o, "passed_over", skips_json(e, i));
        fti_json_append(&list, o);
    }
    return list;
}

static json_t *graphs_json(const ftk_engine *e) {
    json_t *o = json_object(), *buckets = json_array();
    for (size_t i = 0; i < e->graph_count; i++) {
        json_t *bucket = json_object();
        fti_json_set(&bucket, "rows", number(e->graphs[i].rows));
        fti_json_set(&bucket, "nodes", number(e->backend->ops->graph_nodes(e->graphs[i].graph)));
        fti_json_append(&buckets, bucket);
    }
    fti_json_set(&o, "captured", buckets);
    fti_json_set(&o, "eager_reason", e->graph_reason[0] ? text(e->graph_reason) : json_null());
    return o;
}

static json_t *numerics_json(const ftk_engine *e) {
    json_t *o = json_object();
    fti_json_set(&o, "mode", text(e->settings.numerics == FTI_NUMERICS_FLOAT ? "float" : "exact"));
    fti_json_set(&o, "version", number(FTK_NUMERICS_VERSION));
    return o;
}

/* As memory.kv_type spells it. */
static const char *kv_word(uint32_t type) {
    switch (type) {
    case FTK_TYPE_F32: return "f32";
    case FTK_TYPE_BF16: return "bf16";
    case FTK_TYPE_Q8_0: return "q8_0";
    default: return "f16";
    }
}

/* What became of a setting that leaves the choice to the engine; NULL where nothing did, or
 * has not yet. */
static json_t *resolved(const ftk_engine *e, const char *key) {
    bool planned = e->lifecycle.reached >= FTI_STAGE_MEMORY;
    if (strcmp(key, "backend.kind") == 0) return text(e->backend->ops->name);
    if (strcmp(key, "backend.threads") == 0) return number(e->threads);
    if (strcmp(key, "backend.graphs") == 0 && e->lifecycle.reached >= FTI_STAGE_CAPTURE)
        return text(e->graph_count > 0 ? "on" : "off");
    if (strcmp(key, "memory.device") == 0 && planned) return number(e->budget.budget);
    if (strcmp(key, "memory.kv_tokens") == 0 && planned) return number(e->budget.context);
    if (strcmp(key, "memory.snapshots") == 0 && planned) return number(e->budget.snapshots);
    if (strcmp(key, "memory.kv_type") == 0) return text(kv_word(e->kv_type));
    return json_null();
}

/* Each setting with its value and where that came from; "asked" is what was written, where
 * the engine decided on something else. */
static json_t *policy_json(const ftk_engine *e) {
    json_t *policy = json_deep_copy(e->settings.all), *one;
    int failed = 0;
    const char *key;
    json_object_foreach(policy, key, one) {
        json_t *value = resolved(e, key);
        failed |= value == NULL;
        if (value && !json_is_null(value) && !json_equal(value, json_object_get(one, "value"))) {
            failed |= json_object_set(one, "asked", json_object_get(one, "value"));
            failed |= json_object_set(one, "value", value);
        }
        json_decref(value);
    }
    if (failed) drop(&policy);
    return policy;
}

/* For each pool "SLOTS of ALL experts of N layers, B bytes each". */
static json_t *slots_json(const ftk_engine *e) {
    json_t *list = json_array();
    for (uint32_t i = 0; e->ladder.resident && i < e->pools.count; i++) {
        const fti_pool *pool = &e->pools.pools[i];
        char line[120];
        snprintf(line, sizeof line, "%u of %llu experts of %u layers, %llu bytes each", pool->slots,
                 (unsigned long long)pool->layers * pool->experts, pool->layers,
                 (unsigned long long)pool->slot_bytes);
        fti_json_append(&list, text(line));
    }
    return list;
}

/* From most KV cache to most slots; none where experts are whole. */
static json_t *rungs_json(const ftk_engine *e) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < e->ladder.rung_count; i++) {
        const fti_rung *rung = &e->ladder.rungs[i];
        json_t *o = json_object(), *slots = json_array();
        for (uint32_t p = 0; p < e->pools.count; p++)
            fti_json_append(&slots, number(rung->slots[p]));
        fti_json_set(&o, "chosen", json_boolean(i == e->ladder.chosen));
        fti_json_set(&o, "context", number(rung->context));
        fti_json_set(&o, "kv_cache", number(rung->kv_cache));
        fti_json_set(&o, "expert_slots", number(rung->expert_slots));
        fti_json_set(&o, "total", number(rung->total));
        fti_json_set(&o, "slots", slots);
        fti_json_append(&list, o);
    }
    return list;
}

static json_t *memory_json(const ftk_engine *e) {
    const fti_budget *b = &e->budget;
    const struct {
        const char *key;
        uint64_t value;
    } rows[] = {{"weights_mapped", b->weights_mapped},
                {"weights_allocated", b->weights_allocated},
                {"kv_cache", b->kv_cache},
                {"recurrent_state", b->recurrent_state},
                {"expert_slots", b->expert_slots},
                {"workspace", b->workspace},
                {"step_buffers", b->step_buffers},
                {"total", b->total},
                {"budget", b->budget},
                {"minimum", e->ladder.minimum},
                {"available", b->available},
                {"allocated", e->backend->ops->memory_used(e->backend)},
                {"context", b->context},
                {"requests", e->settings.sequences},
                {"snapshots", b->snapshots},
                {"swap", e->settings.swap}};
    json_t *o = json_object();
    for (size_t i = 0; i < FTI_COUNT(rows); i++)
        fti_json_set(&o, rows[i].key, number(rows[i].value));
    fti_json_set(&o, "kv_type", text(fti_type_name(e->kv_type)));
    fti_json_set(&o, "experts", text(e->ladder.resident ? "slots" : "mapped"));
    fti_json_set(&o, "experts_reason", text(e->ladder.reason));
    fti_json_set(&o, "slots", slots_json(e));
    fti_json_set(&o, "rungs", rungs_json(e));
    return o;
}

ftk_status ftk_engine_provenance(const ftk_engine *e, char **json, ftk_error *err) {
    if (!e || !json) return fti_fail(err, FTK_E_ARGUMENT, "engine and json must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_CREATE, err));
    json_t *o = json_object(), *notes = json_array();
    fti_json_set(&o, "libfreetoken", text(FTK_VERSION_STRING));
    fti_json_set(&o, "stage", text(fti_stage_text(e->lifecycle.reached)));
    fti_json_set(&o, "config", text(e->settings.origin));
    fti_json_set(&o, "provider", provider_json(e));
    fti_json_set(&o, "checkpoint", checkpoint_json(e));
    fti_json_set(&o, "backend", backend_json(e));
    fti_json_set(&o, "numerics", numerics_json(e));
    fti_json_set(&o, "kv_type", text(fti_type_name(e->kv_type)));
    fti_json_set(&o, "policy", policy_json(e));
    fti_json_set(&o, "variants", variants_json(e));
    fti_json_set(&o, "memory",
                 e->lifecycle.reached >= FTI_STAGE_MEMORY ? memory_json(e) : json_null());
    fti_json_set(&o, "graphs", graphs_json(e));
    for (size_t i = 0; i < e->ctx.note_count; i++) fti_json_append(&notes, text(e->ctx.notes[i]));
    fti_json_set(&o, "notes", notes);
    return fti_json_dump(o, json, err);
}

ftk_status ftk_engine_record(const ftk_engine *e, char **record, ftk_error *err) {
    if (!e || !record) return fti_fail(err, FTK_E_ARGUMENT, "engine and record must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_CREATE, err));
    return fti_provider_record(e->provider, e->architecture,
                               fti_str(fti_checkpoint_container(e->checkpoint)), record, err);
}

ftk_status ftk_engine_memory(const ftk_engine *e, char **json, ftk_error *err) {
    if (!e || !json) return fti_fail(err, FTK_E_ARGUMENT, "engine and json must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_MEMORY, err));
    return fti_json_dump(memory_json(e), json, err);
}

ftk_status ftk_engine_stats(const ftk_engine *e, char **json, ftk_error *err) {
    if (!e || !json) return fti_fail(err, FTK_E_ARGUMENT, "engine and json must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_READY, err));
    return fti_json_dump(fti_service_stats(e), json, err);
}

ftk_status ftk_engine_stats_text(const ftk_engine *e, char **out, ftk_error *err) {
    if (!e || !out) return fti_fail(err, FTK_E_ARGUMENT, "engine and text must not be NULL");
    FTI_TRY(fti_engine_need(e, FTI_STAGE_READY, err));
    fti_text written = {0};
    fti_service_stats_text(e, &written);
    if (!written.failed) {
        *out = written.data;
        return FTK_OK;
    }
    fti_text_free(&written);
    return fti_no_memory(err, 0, "a report");
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
        fti_json_set(&o, "array", text(meta_type_text(m->element_type)));
        fti_json_set(&o, "count", number(m->count));
        return o;
    }
    bool b;
    double d;
    uint64_t u;
    if (fti_meta_get_bool(c, m->key, &b, NULL) == FTK_OK) return json_boolean(b);
    if (fti_meta_get_f64(c, m->key, &d, NULL) == FTK_OK)
        return isfinite(d) ? json_real(d) : text("(not a finite number)");
    if (fti_meta_get_u64(c, m->key, 0, INT64_MAX, &u, NULL) == FTK_OK) return number(u);
    return text("(a number outside 0 to 2^63-1)");
}

static void count_type(json_t **types, const fti_tensor *t) {
    const char *name = fti_type_name(t->type);
    const json_t *old = json_object_get(*types, name);
    uint64_t count = (uint64_t)json_integer_value(json_object_get(old, "count"));
    uint64_t bytes = (uint64_t)json_integer_value(json_object_get(old, "bytes"));
    json_t *row = json_object();
    fti_json_set(&row, "count", number(count + 1));
    fti_json_set(&row, "bytes", number(bytes + t->bytes));
    fti_json_set(types, name, row);
}

static json_t *tensor_json(const fti_tensor *t) {
    json_t *o = json_object(), *dims = json_array();
    fti_json_set(&o, "name", fti_json_str(t->name));
    fti_json_set(&o, "type", text(fti_type_name(t->type)));
    for (uint32_t d = 0; d < t->n_dims; d++) fti_json_append(&dims, number(t->dims[d]));
    fti_json_set(&o, "dims", dims);
    fti_json_set(&o, "bytes", number(t->bytes));
    fti_json_set(&o, "shard", number(t->shard + 1));
    fti_json_set(&o, "offset", number(t->offset));
    return o;
}

static json_t *inspect_json(const fti_checkpoint *c, const char *path) {
    json_t *o = json_object(), *meta = json_object(), *tensors = json_array(),
           *types = json_object();
    for (size_t i = 0; i < fti_checkpoint_meta_count(c); i++) {
        const fti_meta *m = fti_checkpoint_meta(c, i);
        if (json_object_setn_new_nocheck(meta, m->key.data, (size_t)m->key.size, meta_json(c, m)) !=
            0)
            drop(&meta);
    }
    for (size_t i = 0; i < fti_checkpoint_tensor_count(c); i++) {
        const fti_tensor *t = fti_checkpoint_tensor(c, i);
        fti_json_append(&tensors, tensor_json(t));
        count_type(&types, t);
    }
    ftk_str architecture = {NULL, 0};
    (void)fti_meta_get_str(c, fti_str("general.architecture"), &architecture, NULL);
    fti_json_set(&o, "path", text(path));
    fti_json_set(&o, "container", text(fti_checkpoint_container(c)));
    fti_json_set(&o, "version", number(fti_checkpoint_version(c)));
    fti_json_set(&o, "file_bytes", number(fti_checkpoint_file_bytes(c)));
    fti_json_set(&o, "shards", number(fti_checkpoint_shard_count(c)));
    fti_json_set(&o, "architecture", fti_json_str(architecture));
    fti_json_set(&o, "types", types);
    fti_json_set(&o, "metadata", meta);
    fti_json_set(&o, "tensors", tensors);
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
