/*
 * main.c: the command line of ft-provider-check: which provider, which passes, in what
 * order. Exit codes: 0 nothing was found, 1 something was, 2 usage.
 */
#include "report.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/options.h"
#include "cli/output.h"
#include "cli/text.h"

const char fti_cli_program_name[] = "ft-provider-check";

#define SUFFIX ".provider.yaml"

/* In this order. Without a provider that the loader takes, nothing after `symbols` can
 * be done. */
static const fti_pc_pass passes[] = {
    {"manifest", "the manifest by itself", fti_pc_pass_manifest, false, false, false},
    {"loader", "manifest, file, ELF and note, as the loader judges them", fti_pc_pass_loader, false,
     false, false},
    {"symbols", "what it exports and needs, and how it is linked", fti_pc_pass_symbols, false,
     false, false},
    {"entry", "a pure entry, constant tables", fti_pc_pass_entry, true, false, false},
    {"match", "claims its own checkpoints and no others", fti_pc_pass_match, true, true, false},
    {"lifecycle", "all calls in order; nothing left behind", fti_pc_pass_lifecycle, true, true,
     false},
    {"destroy", "destroy after each call", fti_pc_pass_destroy, true, true, false},
    {"refusals", "unknown options and flags are refused", fti_pc_pass_refusals, true, true, false},
    {"chat", "format_chat", fti_pc_pass_chat, true, true, false},
    {"failures", "a failure at every call of the host", fti_pc_pass_failures, true, true, true},
    {"memory", "no memory from every allocation on", fti_pc_pass_memory, true, true, true},
    {"threads", "two models in two threads", fti_pc_pass_threads, true, true, false},
    {"rows", "equal logits however rows are cut and mixed", fti_pc_pass_rows, true, true, false},
    {"capture", "captured steps replay to equal logits", fti_pc_pass_capture, true, true, false},
    {"ranges", "kernels over other ranges of items", fti_pc_pass_ranges, true, true, false},
    {"variants", "each variant against its exact reference", fti_pc_pass_variants, true, true,
     false},
};

typedef struct values {
    const char *model;
    uint32_t timeout;
    fti_cli_list only;
    fti_cli_list tolerances;
} values;

#define VALUE(member) offsetof(values, member)

static const fti_cli_option option_table[] = {
    {"model", "MODEL", "a checkpoint that the provider claims; a small one will do", NULL,
     VALUE(model), FTI_CLI_NO_ENGINE, FTI_CLI_TEXT, 0, 0, 'm'},
    {"pass", "NAME", "only this pass; may be given again", NULL, VALUE(only), FTI_CLI_NO_ENGINE,
     FTI_CLI_LIST, 0, FTI_PC_MAX_PASSES, 0},
    {"tolerance", "VARIANT=ULPS",
     "units in the last place that a variant may differ by (0); may be given again", NULL,
     VALUE(tolerances), FTI_CLI_NO_ENGINE, FTI_CLI_LIST, 0, FTI_CLI_LIST_MAX, 0},
    {"timeout", "SECONDS", "after which a pass counts as hanging (default 120)", NULL,
     VALUE(timeout), FTI_CLI_NO_ENGINE, FTI_CLI_U32, 1, 86400, 0},
};

/* ---- which provider ---- */

/* The manifest in a folder; a usage error unless there is exactly one. */
static int manifest_in(const char *folder, char **path) {
    DIR *dir = opendir(folder);
    int found = 0;
    if (!dir) return fti_cli_usage("cannot read the folder '%s': %s", folder, strerror(errno));
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        size_t n = strlen(e->d_name);
        if (n <= strlen(SUFFIX) || strcmp(e->d_name + n - strlen(SUFFIX), SUFFIX) != 0) continue;
        if (found++ == 0) *path = fti_cli_format("%s/%s", folder, e->d_name);
    }
    closedir(dir);
    if (found == 1) return 0;
    free(*path);
    *path = NULL;
    return fti_cli_usage("found %d manifests (NAME" SUFFIX ") in '%s', wanted one: give the "
                         "library or the manifest itself",
                         found, folder);
}

/* NAME.so stands beside NAME.provider.yaml. */
static int manifest_beside(const char *library, char **path) {
    size_t n = strlen(library);
    if (n < 4 || strcmp(library + n - 3, ".so") != 0)
        return fti_cli_usage("'%s' is no folder, no library (NAME.so) and no manifest "
                             "(NAME" SUFFIX ")",
                             library);
    *path = fti_cli_format("%.*s" SUFFIX, (int)(n - 3), library);
    if (access(*path, R_OK) == 0) return 0;
    int code = fti_cli_usage("found no manifest '%s' beside the library: %s", *path,
                             strerror(errno));
    free(*path);
    *path = NULL;
    return code;
}

static int find_manifest(const char *argument, char **path) {
    struct stat st;
    char *real = realpath(argument, NULL);
    size_t n = real ? strlen(real) : 0;
    int code = 0;
    if (!real || stat(real, &st) != 0)
        code = fti_cli_usage("cannot find '%s': %s", argument, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        code = manifest_in(real, path);
    else if (n > strlen(SUFFIX) && strcmp(real + n - strlen(SUFFIX), SUFFIX) == 0)
        *path = fti_cli_format("%s", real);
    else
        code = manifest_beside(real, path);
    free(real);
    return code;
}

/* The library is what the manifest names, or NAME.so where it cannot be read. The path of
 * the manifest is absolute. */
static void fill_target(fti_pc_target *t, char *manifest_path) {
    ftk_error error = FTK_ERROR_INIT;
    size_t folder = strlen(manifest_path);
    while (folder > 0 && manifest_path[folder - 1] != '/') folder--;
    const char *file = manifest_path + folder;
    int stem = (int)(strlen(file) - strlen(SUFFIX));
    t->manifest_path = manifest_path;
    if (fti_manifest_read(manifest_path, &t->manifest, &error) != FTK_OK) t->manifest = NULL;
    t->allow.name = fti_cli_format("%.*s", stem, file);
    char *own = fti_cli_format("%.*s.so", stem, file);
    t->allow.path = fti_cli_format("%.*s%s", (int)folder, manifest_path,
                                   t->manifest ? t->manifest->library : own);
    free(own);
}

static int open_model(fti_pc_target *t, const char *model) {
    ftk_error error = FTK_ERROR_INIT;
    if (!model) return 0;
    if (fti_checkpoint_open(model, &t->checkpoint, &error) != FTK_OK ||
        fti_meta_get_str(t->checkpoint, fti_str("general.architecture"), &t->architecture,
                         &error) != FTK_OK)
        return fti_cli_usage("--model: %s",
                             error.message[0] ? error.message : "has no general.architecture");
    t->model = model;
    if (!t->manifest ||
        (fti_list_has(t->manifest->architectures, t->architecture) &&
         fti_list_has(t->manifest->containers, fti_str(fti_checkpoint_container(t->checkpoint)))))
        return 0;
    return fti_cli_usage("--model: '%s' is of architecture '%.*s' in %s, but the manifest claims "
                         "%s in %s",
                         model, FTI_STR_ARGS(t->architecture),
                         fti_checkpoint_container(t->checkpoint), t->manifest->architectures,
                         t->manifest->containers);
}

static void free_target(fti_pc_target *t) {
    if (t->checkpoint) fti_checkpoint_close(t->checkpoint);
    fti_manifest_free(t->manifest);
    free(t->allow.name);
    free(t->allow.path);
    free(t->manifest_path);
}

/* ---- checks of the options ---- */

static int check_names(const fti_cli_list *only) {
    for (size_t i = 0; i < only->count; i++) {
        bool known = false;
        for (size_t p = 0; p < FTI_COUNT(passes); p++)
            known = known || strcmp(passes[p].name, only->items[i]) == 0;
        if (known) continue;
        const char *near = fti_cli_nearest(only->items[i], &passes[0].name, FTI_COUNT(passes),
                                           sizeof passes[0]);
        return fti_cli_usage("--pass: there is no pass '%s'%s%s%s", only->items[i],
                             near ? "; did you mean '" : "; --help lists them", near ? near : "",
                             near ? "'?" : "");
    }
    return 0;
}

static int check_tolerances(const fti_cli_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        const char *equals = strrchr(list->items[i], '=');
        uint64_t ulps;
        if (!equals || equals == list->items[i] || !fti_cli_parse_u64(equals + 1, &ulps) ||
            ulps > UINT32_MAX)
            return fti_cli_usage("--tolerance: found '%s', wanted VARIANT=ULPS such as "
                                 "acme/gate_avx2=2",
                                 list->items[i]);
    }
    return 0;
}

/* ---- the passes ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool wanted(const fti_cli_list *only, const char *name) {
    for (size_t i = 0; i < only->count; i++)
        if (strcmp(only->items[i], name) == 0) return true;
    return only->count == 0;
}

/* Memory that the pass's process and this one share. */
static fti_pc_channel *new_channel(void) {
    void *memory = mmap(NULL, sizeof(fti_pc_channel), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) return memory;
    fti_cli_error("out of memory");
    exit(ftk_status_exit_code(FTK_E_NO_MEMORY));
}

/* Why passes that drive a model cannot, or NULL. */
static const char *no_model(const fti_pc_target *t) {
    if (!t->model) return "needs a checkpoint: --model FILE";
    if (strcmp(t->manifest->provides, "format") == 0)
        return "a provider that only adds a container drives no model";
    if (!fti_list_has(t->manifest->backends, fti_str("cpu")))
        return "the host of this program is a CPU, and the manifest names no such backend";
    return NULL;
}

static void run_pass(const fti_pc_pass *pass, const fti_pc_target *target, bool loadable,
                     fti_pc_result *result) {
    *result = (fti_pc_result){.pass = pass, .channel = new_channel()};
    fti_pc_open_channel(result->channel);
    double start = now();
    if (pass->runs_code && !loadable)
        fti_pc_skip("the loader refuses the provider: see the passes above");
    else if (pass->needs_model && no_model(target))
        fti_pc_skip("%s", no_model(target));
    else if (pass->runs_code)
        fti_pc_run_apart(pass, target, result->channel);
    else
        pass->run(target);
    result->seconds = now() - start;
    fti_pc_open_channel(NULL);
}

static bool loads(const fti_pc_target *t) {
    const struct ftk_config config = {.allow = NULL};
    ftk_error error = FTK_ERROR_INIT;
    return t->manifest && fti_provider_check(&config, &t->allow, NULL, NULL, &error) == FTK_OK;
}

static void run_passes(fti_pc_report *report, const values *v, bool loadable, bool json) {
    for (size_t i = 0; i < FTI_COUNT(passes); i++) {
        if (!wanted(&v->only, passes[i].name)) continue;
        fti_pc_result *result = &report->results[report->count];
        if (fti_cli_interactive()) (void)fprintf(stderr, "\r%s ...\033[K", passes[i].name);
        run_pass(&passes[i], report->target, loadable, result);
        report->count++;
        if (fti_cli_interactive()) (void)fprintf(stderr, "\r\033[K");
        if (!json) fti_pc_print_result(result);
    }
}

/* ---- tolerances of variants that there are ---- */

static bool has_name(const fti_pc_channel *c, const char *item, size_t size) {
    for (uint32_t i = 0; i < c->variant_count; i++)
        if (strlen(c->variants[i].name) == size && memcmp(c->variants[i].name, item, size) == 0)
            return true;
    return false;
}

static int unknown_variant(const fti_pc_channel *c, const char *item, size_t size) {
    char *wanted = fti_cli_format("%s", c->variant_count ? "" : "none, since it has no variants");
    for (uint32_t i = 0; i < c->variant_count; i++) {
        char *longer = fti_cli_format("%s%s%s", wanted, i ? ", " : "", c->variants[i].name);
        free(wanted);
        wanted = longer;
    }
    int code = fti_cli_usage("--tolerance: found '%.*s', wanted one of: %s", (int)size, item,
                             wanted);
    free(wanted);
    return code;
}

/* A misspelt name would be no tolerance at all. The names are known to the provider's code
 * alone; where that does not load or has too many, the passes say what they find. */
static int check_tolerated(const fti_pc_target *t, const fti_cli_list *list, bool loadable) {
    static const fti_pc_pass names = {.name = "names", .run = fti_pc_pass_names, .runs_code = true};
    fti_pc_channel *c = list->count && loadable ? new_channel() : NULL;
    int code = 0;
    if (!c) return 0;
    fti_pc_open_channel(c);
    fti_pc_run_apart(&names, t, c);
    fti_pc_open_channel(NULL);
    bool known = c->finding_count == 0 && c->variant_count < FTI_PC_MAX_VARIANTS;
    for (size_t i = 0; known && code == 0 && i < list->count; i++) {
        size_t size = (size_t)(strrchr(list->items[i], '=') - list->items[i]);
        if (!has_name(c, list->items[i], size)) code = unknown_variant(c, list->items[i], size);
    }
    munmap(c, sizeof *c);
    return code;
}

static void digest(const char *path, char hex[65]) {
    ftk_error error = FTK_ERROR_INIT;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fti_sha256_fd(fd, hex, &error) != FTK_OK) hex[0] = 0;
    if (fd >= 0) close(fd);
}

static int check(const fti_pc_target *target, const values *v, bool json) {
    fti_pc_report report = {.target = target};
    bool loadable = loads(target);
    int code = check_tolerated(target, &v->tolerances, loadable);
    if (code != 0) return code;
    digest(target->allow.path, report.sha256);
    if (!json) fti_pc_print_head(&report);
    run_passes(&report, v, loadable, json);
    if (json)
        fti_pc_print_json(&report);
    else
        fti_pc_print_end(&report);
    bool found = fti_pc_count(&report, FTI_PC_FAILED) > 0;
    for (size_t i = 0; i < report.count; i++)
        munmap(report.results[i].channel, sizeof(fti_pc_channel));
    return found ? FTI_CLI_EXIT_FAILED : 0;
}

static int run(const fti_cli_call *call) {
    const values *v = call->tables[1].values;
    fti_pc_target target = {.tolerances = v->tolerances.items,
                            .tolerance_count = v->tolerances.count,
                            .timeout = v->timeout};
    char *manifest = NULL;
    int code = check_names(&v->only);
    if (code == 0) code = check_tolerances(&v->tolerances);
    if (code == 0) code = find_manifest(call->arguments[0], &manifest);
    if (code != 0 || !manifest) return code;
    fill_target(&target, manifest);
    code = open_model(&target, v->model);
    if (code == 0) code = check(&target, v, call->common.json);
    free_target(&target);
    return code;
}

static const fti_cli_command command = {
    fti_cli_program_name,
    "PROVIDER",
    "holds a model provider to its contract",
    "Checks the provider in a folder, or of a library NAME.so or a manifest NAME" SUFFIX ",\n"
    "as its author: first what can be judged without loading it, then, in processes of their\n"
    "own, with its code running against a host made for the purpose. That code runs with your\n"
    "rights: check what you trust. Passes that drive a model want a checkpoint (--model);\n"
    "without one they are skipped, and say so.\n\n"
    "manifest   the manifest by itself\n"
    "loader     manifest, file, ELF and note, as the engine's loader judges them\n"
    "symbols    one export, nothing of libfreetoken's, nothing that a provider may not do\n"
    "entry      the entry is pure, its tables are constant\n"
    "match      claims its own checkpoints and no others\n"
    "lifecycle  all calls in order; memory, mappings, files and threads as before\n"
    "destroy    destroy after each of the calls\n"
    "refusals   unknown options and unknown required bits are refused\n"
    "chat       format_chat, where there is one\n"
    "failures   each call of the host fails in turn: an error, a report, nothing left\n"
    "memory     memory is gone from each allocation on\n"
    "threads    two models in two threads give the same logits\n"
    "rows       the same logits in any chunks of 1 to 512 rows, beside others, with padding,\n"
    "           over any contents of the workspace\n"
    "capture    captured steps replay to the same logits\n"
    "ranges     kernels give the same over parts of their items\n"
    "variants   each variant against the exact reference row of its table, over the\n"
    "           values of steps of 1 to 512 rows and over extremes, infinities and NaN, with\n"
    "           its time\n\n"
    "In every pass these are findings: output, environment, threads, processes, the end of the\n"
    "process; whatever a call or kernel leaves changed of it (signals, files, limits, locale,\n"
    "affinity, timers, rounding and denormals, ...); memory taken in a step; host code that\n"
    "looks into device memory; writes outside the memory that was given; a failure with no\n"
    "report or with two; crashes and hangs.\n"
    "Exit codes: 0 nothing found, 1 findings, 2 usage.\n\n"
    "example: ft-provider-check build/acme --model tiny.gguf --json > acme.check.json",
    FTI_CLI_NO_ENGINE,
    1,
    1,
    run};

int main(int argc, char **argv) {
    values defaults = {.timeout = 120};
    const fti_cli_program program = {"Holds a model provider to its contract.",
                                     &command,
                                     1,
                                     option_table,
                                     FTI_COUNT(option_table),
                                     &defaults};
    return fti_cli_main(&program, argc, argv);
}
