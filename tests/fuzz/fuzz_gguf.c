/*
 * fuzz_gguf.c: libFuzzer target: no bytes may make the GGUF reader touch memory
 * outside of them, and whatever it accepts must hold up to the walk.
 *
 * With FTK_FUZZ_REPLAY it is a program for ordinary test runs: it feeds a small
 * built-in corpus, a fixed number of damaged copies of it, and the files named on
 * the command line; `-w FOLDER` also writes the corpus there, to start a fuzzer.
 */
#include <stdio.h>
#include <stdlib.h>

#include "support/gguf_writer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void stop(const char *what, const char *detail) {
    fprintf(stderr, "fuzz_gguf: %s: %s\n", what, detail);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1); /* of the exact size: see test_gguf.c */
    if (!copy) return 0;
    if (size) memcpy(copy, data, size);
    fti_checkpoint *c = NULL;
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = fti_checkpoint_from_memory(copy, size, "fuzz", &c, &err);
    if (status == FTK_OK) {
        const char *trouble = fti_checkpoint_walk(c, copy, size);
        if (trouble) stop("accepted file fails the walk", trouble);
    } else if (c || err.status != status || strncmp(err.message, "fuzz: ", 6) != 0) {
        stop("refusal is not explained", err.message);
    }
    fti_checkpoint_close(c);
    free(copy);
    return 0;
}

#ifdef FTK_FUZZ_REPLAY

typedef fti_gguf_writer writer;

static void seed_empty(writer *w) {
    fti_gw_header(w, 3, 0, 1);
    fti_gw_text(w, "general.architecture", "toy");
}

static void seed_values(writer *w) {
    fti_gw_header(w, 2, 0, 1 + FTI_META_TYPES - 2);
    fti_gw_text(w, "general.architecture", "toy");
    for (uint32_t type = 0; type < FTI_META_TYPES; type++) {
        char key[] = {'k', (char)('a' + type), 0};
        if (type == FTI_META_STRING || type == FTI_META_ARRAY) continue;
        fti_gw_integer(w, key, type, 1);
    }
}

static void seed_arrays(writer *w) {
    static const uint32_t types[] = {FTI_META_U8, FTI_META_BOOL, FTI_META_I32, FTI_META_F64};
    fti_gw_header(w, 3, 0, 2 + FTI_COUNT(types));
    fti_gw_text(w, "general.architecture", "toy");
    for (size_t i = 0; i < FTI_COUNT(types); i++) {
        char key[] = {'a', (char)('a' + i), 0};
        fti_gw_array(w, key, types[i], 3);
        fti_gw_fill(w, 1, 3 * fti_gw_scalar_bytes(types[i]));
    }
    fti_gw_array(w, "strings", FTI_META_STRING, 2);
    fti_gw_string(w, "left right");
    fti_gw_string(w, "");
}

static void seed_tensors(writer *w) {
    static const uint64_t bank[] = {256, 2, 2}, norm[] = {7}, scalar[] = {1, 1, 1, 1};
    fti_gw_header(w, 3, 3, 3);
    fti_gw_text(w, "general.architecture", "toy");
    fti_gw_integer(w, "general.alignment", FTI_META_U32, 16);
    fti_gw_integer(w, "general.quantization_version", FTI_META_U32, 2);
    fti_gw_tensor(w, "bank", 3, bank, FTK_TYPE_Q6_K, 32);
    fti_gw_tensor(w, "norm", 1, norm, FTK_TYPE_F32, 0);
    fti_gw_tensor(w, "scalar", 4, scalar, FTK_TYPE_I32, 32 + 4 * 210 + 8);
    fti_gw_pad(w, 16);
    fti_gw_fill(w, 0x77, 32 + 4 * 210 + 8 + 4);
}

static void seed_split(writer *w) {
    fti_gw_header(w, 3, 0, 2);
    fti_gw_integer(w, "split.no", FTI_META_U16, 1);
    fti_gw_integer(w, "split.count", FTI_META_U16, 2);
}

static void seed_projector(writer *w) {
    fti_gw_header(w, 3, 0, 2);
    fti_gw_text(w, "general.architecture", "clip");
    fti_gw_text(w, "general.type", "mmproj");
}

static const struct {
    const char *name;
    void (*build)(writer *);
} seeds[] = {
    {"empty", seed_empty},     {"values", seed_values}, {"arrays", seed_arrays},
    {"tensors", seed_tensors}, {"split", seed_split},   {"projector", seed_projector},
};

#define DAMAGED_COPIES 3000u

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* One to four bytes become interesting ones; sometimes the end goes missing. */
static void damage(writer *w, uint32_t *random) {
    static const uint8_t bytes[] = {0x00, 0x01, 0x02, 0x08, 0x09, 0x20, 0x7F, 0x80, 0xFE, 0xFF};
    for (uint32_t n = 1 + next_random(random) % 4; n > 0; n--)
        w->data[next_random(random) % w->size] = bytes[next_random(random) % sizeof bytes];
    if (next_random(random) % 8 == 0) w->size = next_random(random) % w->size;
}

static void replay_damaged(const writer *seed, uint32_t random) {
    for (unsigned i = 0; i < DAMAGED_COPIES; i++) {
        writer w = {0};
        fti_gw_raw(&w, seed->data, seed->size);
        damage(&w, &random);
        LLVMFuzzerTestOneInput(w.data, w.size);
        fti_gw_free(&w);
    }
}

static void save(const char *folder, const char *name, const writer *w) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
    FILE *f = fopen(path, "wbe");
    if (!f || fwrite(w->data, 1, w->size, f) != w->size || fclose(f) != 0)
        stop("cannot write the corpus", path);
}

static void replay_seeds(const char *folder) {
    for (size_t i = 0; i < FTI_COUNT(seeds); i++) {
        writer w = {0};
        seeds[i].build(&w);
        if (folder) save(folder, seeds[i].name, &w);
        LLVMFuzzerTestOneInput(w.data, w.size);
        replay_damaged(&w, 0x9E3779B9u + (uint32_t)i);
        fti_gw_free(&w);
    }
}

static void replay_file(const char *path) {
    writer w = {0};
    uint8_t block[65536];
    FILE *f = fopen(path, "rbe");
    if (!f) stop("cannot read", path);
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) fti_gw_raw(&w, block, n);
    fclose(f);
    LLVMFuzzerTestOneInput(w.data, w.size);
    fti_gw_free(&w);
}

int main(int argc, char **argv) {
    bool write_corpus = argc == 3 && strcmp(argv[1], "-w") == 0;
    replay_seeds(write_corpus ? argv[2] : NULL);
    for (int i = 1; i < argc && !write_corpus; i++) replay_file(argv[i]);
    printf("fuzz_gguf: %zu seeds, %u damaged copies of each, %d files\n", FTI_COUNT(seeds),
           DAMAGED_COPIES, write_corpus ? 0 : argc - 1);
    return 0;
}

#endif
