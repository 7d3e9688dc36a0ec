/*
 * make_checkpoint.c: writes a GGUF file of architecture template-dense, to have something
 * to run: make_checkpoint FILE.gguf
 *
 * The layers' weights are random. The output matrix is not: its row for each letter is the
 * embedding of the letter before, so that a model that is computed rightly goes on in the
 * alphabet and ends after z; one whose embedding, residual, norm or head is wrong does not.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <freetoken/device/base.h>
#include <freetoken/provider.h>

enum { LAYERS = 2, HIDDEN = 64, HEADS = 4, KV_HEADS = 2, FF = 128, CONTEXT = 256 };
enum { KV = KV_HEADS * (HIDDEN / HEADS), PER_LAYER = 8, TENSORS = 3 + LAYERS * PER_LAYER };
/* Ids: the 256 bytes, the one merged token, the markers. */
enum { MERGED = 256, SYSTEM, USER, ASSISTANT, END, VOCABULARY };

/* Types of GGUF metadata, and of tokens. */
enum { U32 = 4, I32 = 5, F32 = 6, STRING = 8, ARRAY = 9 };
enum { NORMAL = 1, CONTROL = 3 };

/* ---- values ---- */

/* The same on every machine: what is random here is chosen once. */
static uint64_t state = 1;
static float random_value(float limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return limit * ((float)(int32_t)(state >> 32) / 2147483648.0f);
}

static float embedding[VOCABULARY][HIDDEN];

static void fill_embedding(void) {
    for (int id = 0; id < VOCABULARY; id++)
        for (int i = 0; i < HIDDEN; i++) embedding[id][i] = random_value(1.0f);
}

/* The token after which `id` follows, or -1. */
static int predecessor(int id) {
    if (id == 'a') return ASSISTANT;
    if (id == END) return 'z';
    return id > 'a' && id <= 'z' ? id - 1 : -1;
}

/* ---- the file ---- */

static FILE *file;

static void put(const void *data, size_t bytes) {
    if (fwrite(data, 1, bytes, file) == bytes) return;
    perror("make_checkpoint: cannot write");
    exit(1);
}
static void put_u32(uint32_t value) {
    put(&value, sizeof value);
}
static void put_u64(uint64_t value) {
    put(&value, sizeof value);
}
static void put_string(const char *text) {
    put_u64(strlen(text));
    put(text, strlen(text));
}
static void put_key(const char *key, uint32_t type) {
    put_string(key);
    put_u32(type);
}
static void put_number(const char *key, uint32_t value) {
    put_key(key, U32);
    put_u32(value);
}
static void put_float(const char *key, float value) {
    put_key(key, F32);
    put(&value, sizeof value);
}
static void put_text(const char *key, const char *value) {
    put_key(key, STRING);
    put_string(value);
}
static void put_array(const char *key, uint32_t type, uint64_t count) {
    put_key(key, ARRAY);
    put_u32(type);
    put_u64(count);
}

/* Text of a byte in the alphabet of byte-level BPE: printable bytes stand for themselves,
 * the others, in order, for the characters from U+0100 on. As UTF-8. */
static void byte_text(int byte, char text[3]) {
    int others = 0;
    for (int b = 0; b <= byte; b++)
        others += !((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae);
    int printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) ||
                    byte >= 0xae;
    int character = printable ? byte : 0x100 + others - 1;
    memset(text, 0, 3);
    if (character < 0x80) {
        text[0] = (char)character;
        return;
    }
    text[0] = (char)(0xc0 | character >> 6);
    text[1] = (char)(0x80 | (character & 0x3f));
}

static void put_tokenizer(void) {
    static const char *const markers[] = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"};
    char space[3], pair[8], text[3];
    byte_text(' ', space);
    put_text("tokenizer.ggml.model", "gpt2");
    put_text("tokenizer.ggml.pre", "template");
    put_array("tokenizer.ggml.tokens", STRING, VOCABULARY);
    for (int byte = 0; byte < 256; byte++) {
        byte_text(byte, text);
        put_string(text);
    }
    snprintf(pair, sizeof pair, "%s%s", space, space);
    put_string(pair);
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) put_string(markers[i]);
    put_array("tokenizer.ggml.token_type", I32, VOCABULARY);
    for (uint32_t id = 0; id < VOCABULARY; id++) put_u32(id > MERGED ? CONTROL : NORMAL);
    put_array("tokenizer.ggml.merges", STRING, 1);
    snprintf(pair, sizeof pair, "%s %s", space, space);
    put_string(pair);
    put_number("tokenizer.ggml.eos_token_id", END);
}

enum { KEYS = 16 };
static void put_metadata(void) {
    put_text("general.architecture", "template-dense");
    put_text("general.name", "alphabet");
    put_number("template-dense.block_count", LAYERS);
    put_number("template-dense.context_length", CONTEXT);
    put_number("template-dense.embedding_length", HIDDEN);
    put_number("template-dense.feed_forward_length", FF);
    put_number("template-dense.attention.head_count", HEADS);
    put_number("template-dense.attention.head_count_kv", KV_HEADS);
    put_float("template-dense.attention.layer_norm_rms_epsilon", 1e-6f);
    put_float("template-dense.rope.freq_base", 10000.0f);
    put_tokenizer();
}

/* ---- tensors ---- */

typedef struct tensor {
    char name[64];
    uint32_t rows, cols; /* rows of 0: a vector in F32; a matrix is Q8_0 */
} tensor;

static void list_tensors(tensor list[TENSORS]) {
    static const tensor layer[PER_LAYER] = {
        {"attn_norm.weight", 0, HIDDEN},        {"attn_q.weight", HIDDEN, HIDDEN},
        {"attn_k.weight", KV, HIDDEN},          {"attn_v.weight", KV, HIDDEN},
        {"attn_output.weight", HIDDEN, HIDDEN}, {"ffn_norm.weight", 0, HIDDEN},
        {"ffn_up.weight", FF, HIDDEN},          {"ffn_down.weight", HIDDEN, FF},
    };
    list[0] = (tensor){"token_embd.weight", VOCABULARY, HIDDEN};
    list[1] = (tensor){"output_norm.weight", 0, HIDDEN};
    list[2] = (tensor){"output.weight", VOCABULARY, HIDDEN};
    for (int i = 0; i < LAYERS * PER_LAYER; i++) {
        list[3 + i] = layer[i % PER_LAYER];
        snprintf(list[3 + i].name, sizeof list[3 + i].name, "blk.%d.%s", i / PER_LAYER,
                 layer[i % PER_LAYER].name);
    }
}

/* Blocks of 32 values: an f16 scale, then 32 signed bytes. */
enum { BLOCK = 32, BLOCK_BYTES = 34, ALIGNMENT = 32 };

static uint64_t padded_bytes(const tensor *t) {
    uint64_t bytes = t->rows ? (uint64_t)t->rows * t->cols / BLOCK * BLOCK_BYTES : 4ull * t->cols;
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void put_description(const tensor *t, uint64_t offset) {
    put_string(t->name);
    put_u32(t->rows ? 2 : 1);
    put_u64(t->cols);
    if (t->rows) put_u64(t->rows);
    put_u32(t->rows ? FTK_TYPE_Q8_0 : FTK_TYPE_F32);
    put_u64(offset);
}

static void put_block(const float *x) {
    float max = 0.0f;
    for (int i = 0; i < BLOCK; i++) {
        float size = x[i] < 0.0f ? -x[i] : x[i];
        max = size > max ? size : max;
    }
    uint16_t scale = ftk_f32_to_f16(max / 127.0f);
    float step = ftk_f16_to_f32(scale);
    put(&scale, sizeof scale);
    for (int i = 0; i < BLOCK; i++) {
        float q = step > 0.0f ? x[i] / step : 0.0f;
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        int8_t byte = (int8_t)(q < 0.0f ? q - 0.5f : q + 0.5f);
        put(&byte, 1);
    }
}

static void fill_row(const tensor *t, uint32_t row, float *x) {
    if (strcmp(t->name, "token_embd.weight") == 0) {
        memcpy(x, embedding[row], sizeof embedding[row]);
        return;
    }
    int before = strcmp(t->name, "output.weight") == 0 ? predecessor((int)row) : -1;
    for (uint32_t i = 0; i < t->cols; i++)
        x[i] = before >= 0 ? embedding[before][i] : random_value(0.1f);
}

static void put_payload(const tensor *t) {
    static const char padding[ALIGNMENT];
    static float x[FF > HIDDEN ? FF : HIDDEN];
    long start = ftell(file);
    for (uint32_t i = 0; t->rows == 0 && i < t->cols; i++) {
        float one = 1.0f + random_value(0.1f);
        put(&one, sizeof one);
    }
    for (uint32_t row = 0; row < t->rows; row++) {
        fill_row(t, row, x);
        for (uint32_t i = 0; i < t->cols; i += BLOCK) put_block(x + i);
    }
    put(padding, (size_t)padded_bytes(t) - (size_t)(ftell(file) - start));
}

int main(int argc, char **argv) {
    static tensor list[TENSORS];
    static const char zeros[ALIGNMENT];
    if (argc != 2) {
        fprintf(stderr, "usage: make_checkpoint FILE.gguf\n");
        return 2;
    }
    file = fopen(argv[1], "wb");
    if (!file) {
        perror(argv[1]);
        return 1;
    }
    fill_embedding();
    list_tensors(list);
    put("GGUF", 4);
    put_u32(3);
    put_u64(TENSORS);
    put_u64(KEYS);
    put_metadata();
    uint64_t offset = 0;
    for (int i = 0; i < TENSORS; i++) {
        put_description(&list[i], offset);
        offset += padded_bytes(&list[i]);
    }
    put(zeros, (size_t)(-ftell(file) & (ALIGNMENT - 1)));
    for (int i = 0; i < TENSORS; i++) put_payload(&list[i]);
    if (fclose(file) == 0) return 0;
    perror(argv[1]);
    return 1;
}
