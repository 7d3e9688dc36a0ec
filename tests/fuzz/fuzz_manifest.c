/*
 * fuzz_manifest.c: libFuzzer target: no text may make the readers of manifests and of
 * configurations touch memory outside of it, and whatever a manifest says that is accepted
 * is whole.
 *
 * With FTK_FUZZ_REPLAY it is a program for ordinary test runs: it feeds a small built-in
 * corpus, a fixed number of damaged copies of it, and the files named on the command line.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/loader.h"
#include "freetoken/freetoken.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void stop(const char *what, const char *detail) {
    fprintf(stderr, "fuzz_manifest: %s: %s\n", what, detail);
    abort();
}

static void check_refusal(ftk_status status, const ftk_error *err) {
    if (err->status != status || !err->message[0] || strchr(err->message, '\n'))
        stop("refusal is not explained in one line", err->message);
}

static void check_manifest(const fti_manifest *m) {
    const char *const texts[] = {
        m->path,     m->name,        m->version,       m->distribution,        m->core_range,
        m->platform, m->library,     m->architectures, m->containers,          m->backends,
        m->license,  m->device_code, m->provides,      m->distribution_version};
    for (size_t i = 0; i < FTI_COUNT(texts); i++)
        if (!texts[i]) stop("accepted manifest lacks a text", m->name ? m->name : "?");
    if (m->manifest_version != 1 || strcmp(m->name, "good") != 0 || strchr(m->library, '/') ||
        !m->architectures[0] || !m->containers[0] || !m->backends[0])
        stop("accepted manifest breaks a rule", m->library);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *copy = malloc(size ? size : 1); /* of the exact size, so that a byte more is seen */
    if (!copy) return 0;
    if (size) memcpy(copy, data, size);
    fti_manifest *manifest = NULL;
    ftk_config *config = NULL;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = fti_manifest_parse(copy, size, "/good.provider.yaml", &manifest, &err);
    if (status == FTK_OK)
        check_manifest(manifest);
    else
        check_refusal(status, &err);
    fti_manifest_free(manifest);
    status = ftk_config_parse(copy, size, "fuzz", &config, &err);
    if (status != FTK_OK) check_refusal(status, &err);
    ftk_config_free(config);
    free(copy);
    return 0;
}

#ifdef FTK_FUZZ_REPLAY

static const char *const seeds[] = {
    "manifest_version: 1\nname: good\nversion: 1.0.0\ndistribution: a\ndistribution_version: '1'\n"
    "api_level: 0\nmin_host_level: 0\ncore_range: '>=0.1.0 <0.2.0'\nplatform: " FTI_PLATFORM
    "\nlibrary: good.so\narchitectures: [a, b]\ncontainers:\n  - gguf\nbackends: [cpu]\n"
    "license: MIT\ndevice_code: [sm_90]\nprovides: model\n",
    "providers:\n  search: [/a/b]\n  allow:\n    - {name: a, path: /a/a.so}\n    - name: b\n"
    "      path: \"/b\\x2fb.so\"\n  select: {x/gguf: a}\nbackend: {kind: auto, threads: 4}\n"
    "memory:\n  device: 8GiB\nnumerics: exact\nprovider_options:\n  a: {b: [1, 2.5, true, 'x']}\n",
};

#define DAMAGED_COPIES 4000u

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Some bytes become such as mean something in YAML; sometimes a part is repeated or cut. */
static size_t damage(char *text, size_t size, size_t room, uint32_t *random) {
    static const char bytes[] = ":-[]{},&*!|>'\"%@`#?\n\t \\a0\x7f\x80\xc2\xff";
    for (uint32_t n = 1 + next_random(random) % 4; n > 0; n--)
        text[next_random(random) % size] = bytes[next_random(random) % sizeof bytes];
    if (next_random(random) % 4 == 0) {
        size_t from = next_random(random) % size, part = size - from;
        if (part > room - size) part = room - size;
        memcpy(text + size, text + from, part);
        size += part;
    }
    return next_random(random) % 8 == 0 ? next_random(random) % size : size;
}

static void replay_seed(const char *seed, uint32_t random) {
    char text[4096];
    size_t size = strlen(seed);
    LLVMFuzzerTestOneInput((const uint8_t *)seed, size);
    for (unsigned i = 0; i < DAMAGED_COPIES; i++) {
        memcpy(text, seed, size);
        size_t damaged = damage(text, size, sizeof text, &random);
        LLVMFuzzerTestOneInput((const uint8_t *)text, damaged);
    }
}

static void replay_file(const char *path) {
    static char text[1 << 20];
    FILE *f = fopen(path, "rbe");
    if (!f) stop("cannot read", path);
    size_t size = fread(text, 1, sizeof text, f);
    fclose(f);
    LLVMFuzzerTestOneInput((const uint8_t *)text, size);
}

int main(int argc, char **argv) {
    for (size_t i = 0; i < FTI_COUNT(seeds); i++) replay_seed(seeds[i], 0x9E3779B9u + (uint32_t)i);
    for (int i = 1; i < argc; i++) replay_file(argv[i]);
    printf("fuzz_manifest: %zu seeds, %u damaged copies of each, %d files\n", FTI_COUNT(seeds),
           DAMAGED_COPIES, argc - 1);
    return 0;
}

#endif
