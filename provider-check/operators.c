/*
 * operators.c: the mock's "operators" and "kernels": every call is counted, where it
 * writes is held against what the provider declared, and the work goes to the CPU
 * backend's stream, or nowhere in a dry run.
 */
#include "mock.h"

#include <stdio.h>

/* ---- where an operator writes ---- */

/* A matrix of rows that lie `stride` floats apart. */
static uint64_t extent(uint64_t rows, uint64_t stride, uint64_t n) {
    return rows ? ((rows - 1) * stride + n) * sizeof(float) : 0;
}

/* The areas that a step may write with operators other than kv_append. */
static bool may_write(const fti_pc_mock *m, const void *at, uint64_t bytes) {
    return fti_pc_area_holds(m->step_workspace, at, bytes) ||
           fti_pc_area_holds(m->logits, at, bytes) || fti_pc_area_holds(m->layers, at, bytes) ||
           fti_pc_area_holds(m->state, at, bytes);
}

typedef struct output {
    const void *at;
    uint64_t bytes;
    bool floats;
} output;

/* Begins an operator's call: false if `*status` is the answer already. */
static bool begin(fti_pc_mock *m, const char *name, const output *out, ftk_status *status) {
    *status = FTK_E_ARGUMENT;
    if (!m) return false;
    for (size_t i = 0; out[i].bytes > 0; i++)
        if (!fti_pc_check(may_write(m, out[i].at, out[i].bytes),
                          "%s would write %llu bytes outside the workspace that the plan states, "
                          "and the step's outputs",
                          name, (unsigned long long)out[i].bytes))
            return false;
    *status = FTK_E_DEVICE_TRANSIENT;
    if (fti_pc_enter(m, FTI_PC_FAILS, name, fti_str(""))) return false;
    *status = FTK_OK;
    return !m->dry;
}

static ftk_status finish(fti_pc_mock *m, const char *name, const output *out, ftk_status status) {
    if (status != FTK_OK)
        fti_pc_find("%s refused its arguments (%s): look up in provider.h what it takes", name,
                    ftk_status_name(status));
    for (size_t i = 0; status == FTK_OK && m->on_write && out[i].bytes > 0; i++)
        fti_pc_put_write(m, out[i].at, out[i].bytes, out[i].floats);
    return status;
}

#define END                                                                                        \
    { NULL, 0, false }

/* The outputs follow the arguments' checks for NULL, which are the backend's. */
#define OPERATOR(name, ...)                                                                        \
    static ftk_status name(ftk_stream *stream, const ftk_op_##name *op) {                          \
        FTI_PC_HOST_CALL;                                                                          \
        const output out[] = {__VA_ARGS__, END};                                                   \
        ftk_status status;                                                                         \
        fti_pc_mock *m = fti_pc_of_stream(stream, "operators->" #name);                            \
        if (!begin(m, "operators->" #name, out, &status)) return status;                           \
        return finish(m, "operators->" #name, out, m->backend->operators->name(m->real, op));      \
    }

static uint64_t packed_bytes(const ftk_activation *a) {
    return fti_pc_current()->backend->operators->activation_bytes(a->formats, a->rows, a->cols);
}

static uint64_t pairs(const ftk_routing *r) {
    return (uint64_t)r->rows * r->used;
}

OPERATOR(embed, {op->y, extent(op->rows, op->y_stride, op->table ? op->table->cols : 0), true})
OPERATOR(rms_norm, {op->y,
                    extent(op->rows, op->y_row_stride,
                           op->groups ? (op->groups - 1) * op->y_group_stride + op->n : 0),
                    true})
OPERATOR(matmul,
         {op->y, extent(op->act.rows, op->y_stride, op->weight ? op->weight->rows : 0), true})
OPERATOR(rope, {op->x,
                extent(op->rows, op->row_stride,
                       op->heads ? (op->heads - 1) * op->head_stride + op->rotary_dim : 0),
                true})
OPERATOR(attention,
         {op->o, extent(op->step->rows, op->o_row_stride, (uint64_t)op->heads * op->kv->value_dim),
          true})
OPERATOR(route, {op->routing.experts, pairs(&op->routing) * sizeof(int32_t), false},
         {op->routing.weights, pairs(&op->routing) * sizeof(float), true},
         {op->routing.offsets, (op->routing.expert_count + 1u) * sizeof(int32_t), false},
         {op->routing.pairs, pairs(&op->routing) * sizeof(int32_t), false})
OPERATOR(grouped_matmul,
         {op->y, extent(pairs(&op->routing), op->y_stride, op->bank ? op->bank->rows : 0), true})
OPERATOR(swiglu, {op->y, extent(op->rows, op->y_stride, op->n), true})
OPERATOR(combine, {op->y, extent(op->rows, op->stride, op->n), true})
OPERATOR(gather_rows, {op->y, extent(op->count, op->y_stride, op->n), true})
OPERATOR(ensure, {NULL, 0, false})
OPERATOR(scale, {op->y, extent(op->rows, op->y_stride, op->n), true})

static ftk_status quantize(ftk_stream *stream, const ftk_op_quantize *op) {
    FTI_PC_HOST_CALL;
    static const char name[] = "operators->quantize";
    ftk_status status;
    fti_pc_mock *m = fti_pc_of_stream(stream, name);
    const output out[] = {{op->act.packed, m ? packed_bytes(&op->act) : 0, false}, END};
    if (!begin(m, name, out, &status)) return status;
    return finish(m, name, out, m->backend->operators->quantize(m->real, op));
}

static bool own_cache(const fti_pc_mock *m, const ftk_kv_view *kv) {
    for (uint64_t i = 0; i < m->plan.kv_layer_count; i++)
        if (m->kv[i].keys == kv->keys && m->kv[i].values == kv->values) return true;
    return false;
}

static ftk_status kv_append(ftk_stream *stream, const ftk_op_kv_append *op) {
    FTI_PC_HOST_CALL;
    static const char name[] = "operators->kv_append";
    const output out[] = {END};
    ftk_status status;
    fti_pc_mock *m = fti_pc_of_stream(stream, name);
    if (m && op->kv &&
        !fti_pc_check(own_cache(m, op->kv), "%s was given a view that attach_cache did not give",
                      name))
        return FTK_E_ARGUMENT;
    if (!begin(m, name, out, &status)) return status;
    return finish(m, name, out, m->backend->operators->kv_append(m->real, op));
}

/* ---- what has no stream ---- */

static ftk_status activation_format(uint32_t weight_type, uint32_t *format) {
    FTI_PC_HOST_CALL;
    fti_pc_mock *m = fti_pc_current();
    if (!m || fti_pc_enter(m, FTI_PC_ANSWERS, "operators->activation_format", fti_str("")))
        return FTK_E_UNSUPPORTED;
    return m->backend->operators->activation_format(weight_type, format);
}

static uint64_t activation_bytes(uint32_t formats, uint64_t rows, uint64_t cols) {
    FTI_PC_HOST_CALL;
    fti_pc_mock *m = fti_pc_current();
    return m ? m->backend->operators->activation_bytes(formats, rows, cols) : 0;
}

const ftk_if_operators fti_pc_operators = {
    .struct_size = (uint32_t)sizeof(ftk_if_operators),
    .level = 0,
    .activation_format = activation_format,
    .activation_bytes = activation_bytes,
    .embed = embed,
    .rms_norm = rms_norm,
    .quantize = quantize,
    .matmul = matmul,
    .rope = rope,
    .kv_append = kv_append,
    .attention = attention,
    .route = route,
    .grouped_matmul = grouped_matmul,
    .swiglu = swiglu,
    .combine = combine,
    .gather_rows = gather_rows,
    .scale = scale,
    .ensure = ensure,
};
_Static_assert(sizeof(ftk_if_operators) == 8 + 16 * sizeof(void *), "an operator is not watched");

/* ---- "kernels" ---- */

static bool check_launch(const ftk_cpu_launch *l) {
    char name[80];
    snprintf(name, sizeof name, "%.*s", FTI_STR_ARGS(l->name));
    fti_pc_check(strchr(name, '/') != NULL, "a kernel was launched as '%s', wanted owner/kernel",
                 name);
    return fti_pc_check(l->struct_size >= sizeof *l && l->function &&
                            l->args_bytes <= FTK_KERNEL_ARGS_MAX && (l->args || l->args_bytes == 0),
                        "launch_cpu of '%s' was refused: struct_size %u, %u bytes of arguments "
                        "(at most %u)%s",
                        name, l->struct_size, l->args_bytes, FTK_KERNEL_ARGS_MAX,
                        l->function ? "" : ", no function");
}

static ftk_status launch_cpu(ftk_stream *stream, const ftk_cpu_launch *l) {
    FTI_PC_HOST_CALL;
    const output out[] = {END};
    char name[96];
    ftk_status status;
    fti_pc_mock *m = fti_pc_of_stream(stream, "kernels->launch_cpu");
    snprintf(name, sizeof name, "launch_cpu of %.*s", (int)(l->name.size > 70 ? 70 : l->name.size),
             l->name.data ? l->name.data : "");
    if (m && !check_launch(l)) return FTK_E_ARGUMENT;
    if (!begin(m, name, out, &status)) return status;
    return finish(m, name, out, fti_pc_put_kernel(m, l));
}

const ftk_if_kernels fti_pc_kernels = {
    .struct_size = (uint32_t)sizeof(ftk_if_kernels),
    .level = 0,
    .launch_cpu = launch_cpu,
};
