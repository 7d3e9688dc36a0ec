/*
 * test_config.c: the configuration: defaults, every key with its range, every
 * refusal with its message, single options, provider options as JSON, files, and
 * damaged texts.
 */
#include "core/config.h"

#include "freetoken/freetoken.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define ORIGIN  "c.yaml"
#define DIGIT63 "00112233445566778899aabbccddeeff00112233445566778899aabbccddeef"
#define DIGEST  DIGIT63 "f"
#define ALLOW   "providers:\n  allow:\n    - {name: one, path: /p/one.so}\n"

static ftk_config *parse_good(const char *text) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    ftk_status status = ftk_config_parse(text, strlen(text), ORIGIN, &config, &err);
    if (status != FTK_OK) fail_msg("%s", err.message);
    assert_non_null(config);
    return config;
}

/* ---- scalar keys ---- */

typedef enum {
    BACKEND,
    DEVICE,
    GRAPHS,
    KERNELS,
    THREADS,
    PIN,
    NUMA,
    NUMERICS,
    MEM_DEVICE,
    RESERVE,
    HOST,
    KV_TOKENS,
    KV_TYPE,
    LADDER,
    MAX_RUNNING,
    PREFILL,
    PREFIX_CACHE,
    OVERCOMMIT,
    RESIDENCY,
    COEXECUTION,
    STATS,
    FUSED,
    SCALARS
} scalar;

static const char *const scalar_keys[SCALARS] = {
    [BACKEND] = "backend.kind",
    [DEVICE] = "backend.device",
    [GRAPHS] = "backend.graphs",
    [KERNELS] = "backend.kernels",
    [THREADS] = "backend.threads",
    [PIN] = "backend.pin",
    [NUMA] = "backend.numa",
    [NUMERICS] = "numerics",
    [MEM_DEVICE] = "memory.device",
    [RESERVE] = "memory.reserve",
    [HOST] = "memory.host",
    [KV_TOKENS] = "memory.kv_tokens",
    [KV_TYPE] = "memory.kv_type",
    [LADDER] = "memory.ladder",
    [MAX_RUNNING] = "scheduler.max_running",
    [PREFILL] = "scheduler.prefill_tokens",
    [PREFIX_CACHE] = "scheduler.prefix_cache",
    [OVERCOMMIT] = "scheduler.overcommit",
    [RESIDENCY] = "moe.residency",
    [COEXECUTION] = "moe.coexecution",
    [STATS] = "moe.collect_stats",
    [FUSED] = "policy.fused",
};

static const uint64_t defaults[SCALARS] = {
    [BACKEND] = FTI_BACKEND_AUTO,
    [GRAPHS] = FTI_AUTO,
    [KERNELS] = UINT32_MAX,
    [NUMERICS] = FTI_NUMERICS_EXACT,
    [MEM_DEVICE] = UINT64_MAX,
    [HOST] = UINT64_MAX,
    [LADDER] = FTI_AUTO,
    [MAX_RUNNING] = 8,
    [PREFILL] = 512,
    [PREFIX_CACHE] = 1,
    [RESIDENCY] = FTI_AUTO,
    [COEXECUTION] = FTI_AUTO,
    [FUSED] = FTI_FUSED_AUTO,
};

static void get_scalars(const ftk_config *c, uint64_t values[SCALARS]) {
    values[BACKEND] = c->backend;
    values[DEVICE] = c->device;
    values[GRAPHS] = c->graphs;
    values[KERNELS] = c->kernel_mask;
    values[THREADS] = c->threads;
    values[PIN] = c->pin;
    values[NUMA] = c->numa;
    values[NUMERICS] = c->numerics;
    values[MEM_DEVICE] = c->memory_device;
    values[RESERVE] = c->memory_reserve;
    values[HOST] = c->memory_host;
    values[KV_TOKENS] = c->kv_tokens;
    values[KV_TYPE] = c->kv_type;
    values[LADDER] = c->ladder;
    values[MAX_RUNNING] = c->max_running;
    values[PREFILL] = c->prefill_tokens;
    values[PREFIX_CACHE] = c->prefix_cache;
    values[OVERCOMMIT] = c->overcommit;
    values[RESIDENCY] = c->residency;
    values[COEXECUTION] = c->coexecution;
    values[STATS] = c->collect_stats;
    values[FUSED] = c->fused;
}

/* All values are the defaults but one, which is `wanted`. */
static void check_scalars(const ftk_config *config, scalar changed, uint64_t wanted) {
    uint64_t values[SCALARS];
    get_scalars(config, values);
    for (size_t i = 0; i < SCALARS; i++) {
        uint64_t want = i == (size_t)changed ? wanted : defaults[i];
        if (values[i] != want)
            fail_msg("%s is %llu, wanted %llu", scalar_keys[i], (unsigned long long)values[i],
                     (unsigned long long)want);
    }
}

typedef struct value_case {
    const char *text;
    uint64_t value;
    scalar key;
    bool good;
} value_case;

#define GOOD(key, text, value)                                                                     \
    { text, value, key, true }
#define BAD(key, text)                                                                             \
    { text, 0, key, false }
#define GIB (1024ull * 1024 * 1024)

static const value_case value_cases[] = {
    GOOD(BACKEND, "auto", FTI_BACKEND_AUTO),
    GOOD(BACKEND, "cpu", FTI_BACKEND_CPU),
    GOOD(BACKEND, "cuda", FTI_BACKEND_CUDA),
    GOOD(BACKEND, "hip", FTI_BACKEND_HIP),
    BAD(BACKEND, "CPU"),
    BAD(BACKEND, "gpu"),
    BAD(BACKEND, "1"),
    BAD(DEVICE, "-1"),
    GOOD(DEVICE, "0", 0),
    GOOD(DEVICE, "63", 63),
    BAD(DEVICE, "64"),
    BAD(DEVICE, "auto"),
    BAD(DEVICE, "01"),
    BAD(DEVICE, "4294967296"),
    GOOD(GRAPHS, "auto", FTI_AUTO),
    GOOD(GRAPHS, "on", FTI_ON),
    GOOD(GRAPHS, "off", FTI_OFF),
    BAD(GRAPHS, "true"),
    BAD(GRAPHS, "1"),
    GOOD(KERNELS, "auto", UINT32_MAX),
    GOOD(KERNELS, "reference", 0),
    GOOD(KERNELS, "0", 0),
    GOOD(KERNELS, "12", 12),
    GOOD(KERNELS, "4294967295", UINT32_MAX),
    BAD(KERNELS, "4294967296"),
    GOOD(KERNELS, "0x0", 0),
    GOOD(KERNELS, "0xaF", 0xaf),
    GOOD(KERNELS, "0xffffffff", UINT32_MAX),
    GOOD(KERNELS, "0x00000000ffffffff", UINT32_MAX),
    BAD(KERNELS, "0x100000000"),
    BAD(KERNELS, "0x10000000000000001"),
    BAD(KERNELS, "0x"),
    BAD(KERNELS, "0xg"),
    BAD(KERNELS, "0X1"),
    BAD(KERNELS, "ff"),
    BAD(KERNELS, "-1"),
    GOOD(THREADS, "auto", 0),
    GOOD(THREADS, "0", 0),
    GOOD(THREADS, "1024", 1024),
    BAD(THREADS, "1025"),
    BAD(THREADS, "-1"),
    BAD(THREADS, "all"),
    GOOD(NUMERICS, "exact", FTI_NUMERICS_EXACT),
    GOOD(NUMERICS, "float", FTI_NUMERICS_FLOAT),
    BAD(NUMERICS, "auto"),
    GOOD(MEM_DEVICE, "auto", UINT64_MAX),
    BAD(MEM_DEVICE, "0"),
    GOOD(MEM_DEVICE, "1", 1),
    GOOD(MEM_DEVICE, "8GiB", 8 * GIB),
    GOOD(MEM_DEVICE, "1024TiB", 1024 * 1024 * GIB),
    BAD(MEM_DEVICE, "1125899906842625"),
    BAD(MEM_DEVICE, "18446744073709551615"),
    BAD(MEM_DEVICE, "8GB"),
    BAD(MEM_DEVICE, "8 GiB"),
    BAD(MEM_DEVICE, "-8GiB"),
    GOOD(RESERVE, "0", 0),
    GOOD(RESERVE, "1GiB", GIB),
    GOOD(RESERVE, "1125899906842624", 1024 * 1024 * GIB),
    BAD(RESERVE, "1125899906842625"),
    BAD(RESERVE, "auto"),
    GOOD(HOST, "auto", UINT64_MAX),
    BAD(HOST, "0GiB"),
    GOOD(HOST, "1B", 1),
    GOOD(HOST, "64GiB", 64 * GIB),
    BAD(HOST, "1025TiB"),
    GOOD(KV_TOKENS, "0", 0),
    BAD(KV_TOKENS, "1"),
    BAD(KV_TOKENS, "15"),
    GOOD(KV_TOKENS, "16", 16),
    GOOD(KV_TOKENS, "16777216", 16777216),
    BAD(KV_TOKENS, "16777217"),
    BAD(KV_TOKENS, "auto"),
    GOOD(PIN, "true", 1),
    BAD(PIN, "on"),
    GOOD(NUMA, "local", FTI_NUMA_LOCAL),
    GOOD(NUMA, "interleave", FTI_NUMA_INTERLEAVE),
    BAD(NUMA, "auto"),
    GOOD(KV_TYPE, "auto", FTI_KV_AUTO),
    GOOD(KV_TYPE, "f16", FTI_KV_F16),
    GOOD(KV_TYPE, "bf16", FTI_KV_BF16),
    GOOD(KV_TYPE, "q8_0", FTI_KV_Q8_0),
    GOOD(KV_TYPE, "f32", FTI_KV_F32),
    BAD(KV_TYPE, "q4_0"),
    GOOD(LADDER, "on", FTI_ON),
    BAD(LADDER, "none"),
    BAD(MAX_RUNNING, "0"),
    GOOD(MAX_RUNNING, "1", 1),
    GOOD(MAX_RUNNING, "4096", 4096),
    BAD(MAX_RUNNING, "4097"),
    BAD(MAX_RUNNING, "8.0"),
    BAD(PREFILL, "0"),
    GOOD(PREFILL, "1", 1),
    GOOD(PREFILL, "8192", 8192),
    BAD(PREFILL, "8193"),
    BAD(PREFILL, "1_000"),
    GOOD(PREFIX_CACHE, "true", 1),
    GOOD(PREFIX_CACHE, "false", 0),
    BAD(PREFIX_CACHE, "yes"),
    BAD(PREFIX_CACHE, "True"),
    BAD(PREFIX_CACHE, "1"),
    GOOD(OVERCOMMIT, "true", 1),
    BAD(OVERCOMMIT, "on"),
    GOOD(RESIDENCY, "off", FTI_OFF),
    BAD(RESIDENCY, "lru"),
    GOOD(COEXECUTION, "on", FTI_ON),
    BAD(COEXECUTION, "yes"),
    GOOD(STATS, "true", 1),
    BAD(STATS, "auto"),
    GOOD(FUSED, "require", FTI_FUSED_REQUIRE),
    GOOD(FUSED, "off", FTI_FUSED_OFF),
    BAD(FUSED, "on"),
};

/* The case as a file: "section:\n  key: value". */
static void check_value_in_file(const value_case *c) {
    char text[160], message[160];
    const char *key = scalar_keys[c->key], *dot = strchr(key, '.');
    if (dot)
        snprintf(text, sizeof text, "%.*s:\n  %s: %s\n", (int)(dot - key), key, dot + 1, c->text);
    else
        snprintf(text, sizeof text, "\n%s: %s\n", key, c->text);
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    ftk_status status = ftk_config_parse(text, strlen(text), ORIGIN, &config, &err);
    if (c->good) {
        if (status != FTK_OK) fail_msg("%s", err.message);
        check_scalars(config, c->key, c->value);
        ftk_config_free(config);
        return;
    }
    assert_null(config);
    snprintf(message, sizeof message, ORIGIN ":2: %s: found '%s', allowed: ", key, c->text);
    if (status != FTK_E_CONFIG_VALUE || strncmp(err.message, message, strlen(message)) != 0)
        fail_msg("%d %s, wanted %s", status, err.message, message);
}

/* And as an option over the defaults. */
static void check_value_as_option(const value_case *c) {
    ftk_config *config = parse_good("");
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = ftk_config_set(config, scalar_keys[c->key], c->text, &err);
    check_scalars(config, c->key, c->good ? c->value : defaults[c->key]);
    ftk_config_free(config);
    if (c->good) {
        if (status != FTK_OK) fail_msg("%s", err.message);
        return;
    }
    char message[160];
    snprintf(message, sizeof message, "option %s: found '%s', allowed: ", scalar_keys[c->key],
             c->text);
    if (status != FTK_E_CONFIG_VALUE || strncmp(err.message, message, strlen(message)) != 0)
        fail_msg("%d %s, wanted %s", status, err.message, message);
}

static void test_value(void **state) {
    check_value_in_file(*state);
    check_value_as_option(*state);
}

static void check_number(scalar key, const char *number, uint64_t value, bool good) {
    const value_case c = {number, value, key, good};
    check_value_in_file(&c);
    check_value_as_option(&c);
}

typedef struct integer_key {
    uint64_t min, max;
    scalar key;
    bool zero; /* taken though below min */
} integer_key;

static void check_integer(const integer_key *k) {
    static const char *const outside[] = {"-18446744073709551616",
                                          "-9223372036854775809",
                                          "-9223372036854775808",
                                          "-4294967296",
                                          "-2147483649",
                                          "-2147483648",
                                          "-1",
                                          "18446744073709551616",
                                          "18446744073709551617",
                                          "340282366920938463463374607431768211456"};
    const uint64_t values[] = {0,
                               1,
                               k->min - (k->min > 0),
                               k->min,
                               k->max,
                               k->max + 1,
                               INT32_MAX,
                               1ull << 31,
                               UINT32_MAX,
                               1ull << 32,
                               (1ull << 32) + k->max,
                               INT64_MAX,
                               1ull << 63,
                               UINT64_MAX};
    for (size_t i = 0; i < FTI_COUNT(outside); i++) check_number(k->key, outside[i], 0, false);
    for (size_t i = 0; i < FTI_COUNT(values); i++) {
        char number[24];
        snprintf(number, sizeof number, "%llu", (unsigned long long)values[i]);
        bool inside = values[i] >= k->min && values[i] <= k->max;
        check_number(k->key, number, values[i], inside || (values[i] == 0 && k->zero));
    }
}

static void g23_integers_at_their_edges(void **state) {
    (void)state;
    static const integer_key list[] = {
        {0, 63, DEVICE, false},          {0, UINT32_MAX, KERNELS, false},
        {0, 1024, THREADS, false},       {1, 1ull << 50, MEM_DEVICE, false},
        {0, 1ull << 50, RESERVE, false}, {1, 1ull << 50, HOST, false},
        {16, 1u << 24, KV_TOKENS, true}, {1, 4096, MAX_RUNNING, false},
        {1, 8192, PREFILL, false},
    };
    for (size_t i = 0; i < FTI_COUNT(list); i++) check_integer(&list[i]);
}

static void test_defaults(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        "{}",
        "# nothing\n",
        "providers:\nbackend:\nmemory:\nscheduler:\nmoe:\npolicy:\nprovider_options:\n",
        "providers:\n  search:\n  allow:\n  select:\n",
        "providers: {search: [], allow: [], select: {}}\nmoe: {}\nprovider_options: {}\n",
    };
    for (size_t i = 0; i < FTI_COUNT(texts); i++) {
        ftk_config *config = parse_good(texts[i]);
        check_scalars(config, SCALARS, 0);
        assert_int_equal(config->search_count, 0);
        assert_int_equal(config->allow_count, 0);
        assert_int_equal(config->select_count, 0);
        assert_int_equal(config->option_count, 0);
        assert_string_equal(config->origin, ORIGIN);
        assert_false(config->from_file);
        ftk_config_free(config);
    }
}

/* ---- the whole schema at once ---- */

static const char full[] =
    "providers:\n"
    "  search: [/usr/lib/freetoken/providers, \"/opt/p\"]\n"
    "  allow:\n"
    "    - name: qwen36\n"
    "      path: /usr/lib/freetoken/providers/qwen36/qwen36.so\n"
    "      sha256: 00112233445566778899AABBCCDDEEFF"
    "00112233445566778899aabbccddeeff\n"
    "    - {path: /p/b.so, name: a-1_b.c}\n"
    "  select: {qwen35moe/gguf: qwen36, Arch.X/ftw: a-1_b.c}\n"
    "backend: {kind: cpu, device: 3, graphs: off, kernels: 0xF, threads: 2}\n"
    "numerics: float\n"
    "memory: {device: 8GiB, reserve: 1GiB, host: 64GiB, kv_tokens: 32768,"
    " ladder: off}\n"
    "scheduler:\n"
    "  max_running: 4\n"
    "  prefill_tokens: 256\n"
    "  prefix_cache: false\n"
    "  overcommit: true\n"
    "moe: {residency: on, coexecution: off, collect_stats: true}\n"
    "policy: {fused: require}\n"
    "provider_options:\n"
    "  qwen36: {a: 1, b: [x, true, -2.5], c: {d: \"3\"}}\n"
    "  other: {}\n";

static void test_full(void **state) {
    (void)state;
    static const uint64_t wanted[SCALARS] = {[BACKEND] = FTI_BACKEND_CPU,
                                             [DEVICE] = 3,
                                             [GRAPHS] = FTI_OFF,
                                             [KERNELS] = 15,
                                             [THREADS] = 2,
                                             [NUMERICS] = FTI_NUMERICS_FLOAT,
                                             [MEM_DEVICE] = 8 * GIB,
                                             [RESERVE] = GIB,
                                             [HOST] = 64 * GIB,
                                             [KV_TOKENS] = 32768,
                                             [LADDER] = FTI_OFF,
                                             [MAX_RUNNING] = 4,
                                             [PREFILL] = 256,
                                             [PREFIX_CACHE] = 0,
                                             [OVERCOMMIT] = 1,
                                             [RESIDENCY] = FTI_ON,
                                             [STATS] = 1,
                                             [COEXECUTION] = FTI_OFF,
                                             [FUSED] = FTI_FUSED_REQUIRE};
    ftk_config *c = parse_good(full);
    uint64_t values[SCALARS];
    get_scalars(c, values);
    for (size_t i = 0; i < SCALARS; i++)
        if (values[i] != wanted[i]) fail_msg("%s", scalar_keys[i]);
    assert_int_equal(c->search_count, 2);
    assert_string_equal(c->search[0], "/usr/lib/freetoken/providers");
    assert_string_equal(c->search[1], "/opt/p");
    assert_int_equal(c->allow_count, 2);
    assert_string_equal(c->allow[0].name, "qwen36");
    assert_string_equal(c->allow[0].path, "/usr/lib/freetoken/providers/qwen36/qwen36.so");
    assert_string_equal(c->allow[0].sha256, DIGEST);
    assert_int_equal(c->allow[0].line, 4);
    assert_string_equal(c->allow[1].name, "a-1_b.c");
    assert_string_equal(c->allow[1].path, "/p/b.so");
    assert_null(c->allow[1].sha256);
    assert_int_equal(c->allow[1].line, 7);
    assert_int_equal(c->select_count, 2);
    assert_string_equal(c->select[0].claim, "qwen35moe/gguf");
    assert_string_equal(c->select[0].name, "qwen36");
    assert_int_equal(c->select[0].line, 8);
    assert_string_equal(c->select[1].claim, "Arch.X/ftw");
    assert_string_equal(c->select[1].name, "a-1_b.c");
    ftk_config_free(c);
    ftk_config_free(NULL);
}

static void test_select_before_allow(void **state) {
    (void)state;
    ftk_config *c = parse_good("providers:\n  select: {a/b: one}\n  allow:\n"
                               "    - {name: one, path: /p/one.so}\n");
    assert_int_equal(c->select_count, 1);
    ftk_config_free(c);
}

/* Quotes change nothing where a text is wanted, but make numbers texts. */
static void test_quoted_words(void **state) {
    (void)state;
    ftk_config *c = parse_good(
        "backend: {kind: \"cpu\", threads: 'auto'}\nmemory: {device: 'auto'}\n");
    check_scalars(c, BACKEND, FTI_BACKEND_CPU);
    ftk_config_free(c);
}

/* ---- refusals ---- */

typedef struct bad_case {
    const char *name;
    const char *text;
    ftk_status status;
    const char *message; /* begins with this, after the origin */
    const char *also;    /* and ends with this, if not NULL */
} bad_case;

#define KEY(name, text, message, also)                                                             \
    { name, text, FTK_E_CONFIG_KEY, message, also }
#define VALUE(name, text, message, also)                                                           \
    { name, text, FTK_E_CONFIG_VALUE, message, also }
#define ENTRY(entry) "providers:\n  allow:\n    - " entry "\n"
#define X58          "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define X64          X58 "xxxxxx"

static const bad_case bad_cases[] = {
    KEY("unknown at the top", "numericz: exact\n",
        ":1: numericz: unknown key, allowed: providers, backend, numerics, memory, scheduler, moe, "
        "policy, provider_options; did",
        "did you mean 'numerics'?"),
    KEY("unknown, nothing near", "zzzzzzzz: 1\n", ":1: zzzzzzzz: unknown key", "provider_options"),
    KEY("unknown in providers", "providers:\n  alow: []\n",
        ":2: providers.alow: unknown key, allowed: search, allow, select;", "'allow'?"),
    KEY("unknown in backend", "backend: {knd: cpu}\n", ":1: backend.knd: unknown key", "'kind'?"),
    KEY("unknown in memory", "memory:\n\n  kv_token: 1\n", ":3: memory.kv_token: unknown",
        "'kv_tokens'?"),
    KEY("unknown in scheduler", "scheduler: {max_runing: 1}\n", ":1: scheduler.max_runing: unknown",
        "'max_running'?"),
    KEY("unknown in moe", "moe: {residencies: on}\n", ":1: moe.residencies: unknown",
        "'residency'?"),
    KEY("unknown in policy", "policy: {fuse: auto}\n",
        ":1: policy.fuse: unknown key, allowed: fused;", "'fused'?"),
    KEY("unknown in allow entry", ENTRY("{name: a, path: /a, sha265: x}"),
        ":3: providers.allow[0]: unknown key 'sha265', allowed: name, path, sha256;", "'sha256'?"),
    KEY("unknown in second entry", ENTRY("{name: a, path: /a}\n    - {nmae: b}"),
        ":4: providers.allow[1]: unknown key 'nmae'", "'name'?"),
    KEY("key of another section", "kv_tokens: 16\n", ":1: kv_tokens: unknown",
        "'memory.kv_tokens'?"),
    KEY("top key in a section", "backend: {numerics: exact}\n", ":1: backend.numerics: unknown",
        "did you mean 'numerics'?"),
    KEY("path as a key", "memory.device: 8GiB\n", ":1: memory.device: unknown key", NULL),
    KEY("key in capitals", "Memory: {}\n", ":1: Memory: unknown key", "'memory'?"),
    KEY("long key", X64 X64 X64 ": 1\n",
        ":1: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...: unknown key", NULL),
    KEY("control character in a key", "\"a\\nb\": 1\n", ":1: a\\nb: unknown key", NULL),
    KEY("duplicate at the top", "moe: {}\nnumerics: exact\nmoe: {}\n",
        ":3: duplicate key 'moe', first given in line 1", NULL),
    KEY("duplicate in a section", "memory:\n  host: 1\n  host: 1\n",
        ":3: duplicate key 'host', first given in line 2", NULL),
    KEY("duplicate in an entry", ENTRY("{name: a, name: b, path: /a}"), ":3: duplicate key 'name'",
        NULL),
    KEY("duplicate claim", ALLOW "  select:\n    a/b: one\n    a/b: one\n",
        ":6: duplicate key 'a/b', first given in line 5", NULL),
    KEY("duplicate provider options", "provider_options:\n  p: {}\n  p: {}\n",
        ":3: duplicate key 'p'", NULL),
    KEY("duplicate in provider options", "provider_options:\n  p: {a: 1,\n   a: 2}\n",
        ":3: duplicate key 'a', first given in line 2", NULL),

    VALUE("root is a list", "[a]", ":1: the configuration: found a list, allowed: a mapping", NULL),
    VALUE("root is a word", "word", ":1: the configuration: found 'word', allowed: a mapping",
          NULL),
    VALUE("root is an empty text", "''", ":1: the configuration: found an empty text", NULL),
    VALUE("section is a word", "memory: auto\n", ":1: memory: found 'auto', allowed: a mapping",
          NULL),
    VALUE("section is a list", "backend: [cpu]\n", ":1: backend: found a list, allowed: a mapping",
          NULL),
    VALUE("section is null", "moe: null\n", ":1: moe: found 'null'", NULL),
    VALUE("value is a mapping", "numerics: {a: b}\n",
          ":1: numerics: found a mapping, allowed: exact, float", NULL),
    VALUE("value is a list", "memory: {host: [1]}\n",
          ":1: memory.host: found a list, allowed: auto, a size", NULL),
    VALUE("value is absent", "backend: {device: }\n",
          ":1: backend.device: found nothing, allowed: an integer from 0 to 63", "63"),
    VALUE("value is an empty text", "backend: {kind: ''}\n",
          ":1: backend.kind: found an empty text, allowed: auto, cpu, cuda, hip", "hip"),
    VALUE("near word", "backend:\n  kind: cud\n",
          ":2: backend.kind: found 'cud', allowed: auto, cpu, cuda, hip; did", "'cuda'?"),
    VALUE("near numerics", "numerics: exakt\n",
          ":1: numerics: found 'exakt', allowed: exact, float; did", "'exact'?"),
    VALUE("near boolean", "moe: {collect_stats: True}\n",
          ":1: moe.collect_stats: found 'True', allowed: true, false; did", "'true'?"),
    VALUE("near kernels", "backend: {kernels: refrence}\n",
          ":1: backend.kernels: found 'refrence', allowed: auto, reference, a mask of 32 bits such "
          "as 12 or 0xc; did",
          "'reference'?"),
    VALUE("range of kv_tokens", "memory: {kv_tokens: 8}\n",
          ":1: memory.kv_tokens: found '8', allowed: 0, an integer from 16 to 16777216",
          "16777216"),
    VALUE("range of threads", "backend: {threads: 2000}\n",
          ":1: backend.threads: found '2000', allowed: auto, an integer from 0 to 1024", "1024"),
    VALUE("quoted integer", "backend: {device: '1'}\n",
          ":1: backend.device: found the text '1', allowed: an integer", NULL),
    VALUE("quoted size", "memory: {host: \"8GiB\"}\n", ":1: memory.host: found the text '8GiB'",
          NULL),
    VALUE("quoted boolean", "moe: {collect_stats: 'true'}\n",
          ":1: moe.collect_stats: found the text 'true'", NULL),
    VALUE("quoted mask", "backend: {kernels: '0x1'}\n", ":1: backend.kernels: found the text '0x1'",
          NULL),
    VALUE("long value", "numerics: " X64 X64 "\n",
          ":1: numerics: found 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...', "
          "allowed",
          NULL),
    VALUE("long value of long letters", "numerics: " X58 "\xe6\xa8\xa1\xe6\xa8\xa1\n",
          ":1: numerics: found '" X58 "...', allowed", NULL),
    VALUE("long value of 60 bytes", "numerics: " X58 "\xc3\xa4\xc3\xa4\n",
          ":1: numerics: found '" X58 "\xc3\xa4...', allowed", NULL),

    VALUE("search is a word", "providers: {search: /a}\n",
          ":1: providers.search: found '/a', allowed: a list", NULL),
    VALUE("search entry is a list", "providers: {search: [/a, [/b]]}\n",
          ":1: providers.search[1]: found a list, allowed: one text", NULL),
    VALUE("search entry is relative", "providers:\n  search:\n    - /a\n    - b\n",
          ":4: providers.search[1]: found 'b', allowed: an absolute path; it does not begin with /",
          NULL),
    VALUE("search entry is absent", "providers:\n  search:\n    -\n",
          ":3: providers.search[0]: found nothing, allowed: an absolute path", NULL),
    VALUE("search entry is there twice", "providers:\n  search:\n    - /a\n    - /b\n    - /a\n",
          ":5: providers.search[2]: found '/a' a second time, allowed: each folder once", NULL),
    VALUE("search entry ends in /", "providers: {search: [/a/]}\n",
          ":1: providers.search[0]: found '/a/'", "empty component (// or a / at the end)"),
    VALUE("allow is a mapping", "providers: {allow: {name: a}}\n",
          ":1: providers.allow: found a mapping, allowed: a list", NULL),
    VALUE("allow entry is a word", ENTRY("a"),
          ":3: providers.allow[0]: found 'a', allowed: a mapping", NULL),
    VALUE("allow entry is absent", ENTRY(""), ":3: providers.allow[0]: found nothing", NULL),
    VALUE("allow entry without name", ENTRY("{path: /a}"),
          ":3: providers.allow[0]: found no name, allowed", NULL),
    VALUE("allow entry without path", ENTRY("{name: a, sha256: " DIGEST "}"),
          ":3: providers.allow[0]: found no path, allowed", NULL),
    VALUE("allow entry of nothing", ENTRY("{}"), ":3: providers.allow[0]: found no name", NULL),
    VALUE("two entries of one name",
          ENTRY("{name: a, path: /a}\n    - {name: b, path: /b}\n    - {name: a, path: /c}"),
          ":5: providers.allow[2]: found the name 'a' again, first given in line 3", NULL),
    VALUE("name in capitals", ENTRY("{name: Qwen, path: /a}"),
          ":3: providers.allow[0].name: found 'Qwen', allowed: a name", NULL),
    VALUE("name with a slash", ENTRY("{name: a/b, path: /a}"),
          ":3: providers.allow[0].name: found 'a/b'", NULL),
    VALUE("name that begins with a dot", ENTRY("{name: .a, path: /a}"),
          ":3: providers.allow[0].name: found '.a'", NULL),
    VALUE("empty name", ENTRY("{name: '', path: /a}"), ":3: providers.allow[0].name: found ''",
          NULL),
    VALUE("name of 65 characters", ENTRY("{name: x" X64 ", path: /a}"),
          ":3: providers.allow[0].name: found 'xxx", NULL),
    VALUE("name is a list", ENTRY("{name: [a], path: /a}"),
          ":3: providers.allow[0].name: found a list, allowed: one text", NULL),
    VALUE("relative path", ENTRY("{name: a, path: a.so}"),
          ":3: providers.allow[0].path: found 'a.so', allowed: an absolute path; it does not begin",
          NULL),
    VALUE("empty path", ENTRY("{name: a, path: ''}"),
          ":3: providers.allow[0].path: found an empty text", NULL),
    VALUE("path of / alone", ENTRY("{name: a, path: /}"), ":3: providers.allow[0].path: found '/'",
          "at the end)"),
    VALUE("path with //", ENTRY("{name: a, path: /a//b}"),
          ":3: providers.allow[0].path: found '/a//b'", "at the end)"),
    VALUE("path with .", ENTRY("{name: a, path: /a/./b}"),
          ":3: providers.allow[0].path: found '/a/./b'", "a component . or .."),
    VALUE("path with ..", ENTRY("{name: a, path: /a/../b}"),
          ":3: providers.allow[0].path: found '/a/../b'", "a component . or .."),
    VALUE("path ends in ..", ENTRY("{name: a, path: /a/..}"),
          ":3: providers.allow[0].path: found '/a/..'", "a component . or .."),
    VALUE("path is a mapping", ENTRY("{name: a, path: {}}"),
          ":3: providers.allow[0].path: found a mapping", NULL),
    VALUE("digest of 63", ENTRY("{name: a, path: /a, sha256: " DIGIT63 "}"),
          ":3: providers.allow[0].sha256: found",
          "(63 characters), allowed: 64 hexadecimal digits"),
    VALUE("digest of 65", ENTRY("{name: a, path: /a, sha256: " DIGEST "0}"),
          ":3: providers.allow[0].sha256: found",
          "(65 characters), allowed: 64 hexadecimal digits"),
    VALUE("digest of other letters", ENTRY("{name: a, path: /a, sha256: " DIGIT63 "g}"),
          ":3: providers.allow[0].sha256: found '0011",
          "(64 characters), allowed: 64 hexadecimal digits"),
    VALUE("digest is absent", ENTRY("{name: a, path: /a, sha256: }"),
          ":3: providers.allow[0].sha256: found nothing (0 characters)", NULL),
    VALUE("select is a list", ALLOW "  select: [one]\n",
          ":4: providers.select: found a list, allowed: a mapping", NULL),
    VALUE("select without container", ALLOW "  select: {arch: one}\n",
          ":4: providers.select: found the key 'arch', allowed: architecture/container", NULL),
    VALUE("select with two slashes", ALLOW "  select: {a/b/c: one}\n",
          ":4: providers.select: found the key 'a/b/c'", NULL),
    VALUE("select with empty architecture", ALLOW "  select: {/b: one}\n",
          ":4: providers.select: found the key '/b'", NULL),
    VALUE("select with empty container", ALLOW "  select: {a/: one}\n",
          ":4: providers.select: found the key 'a/'", NULL),
    VALUE("select with a blank", ALLOW "  select: {a b/c: one}\n",
          ":4: providers.select: found the key 'a b/c'", NULL),
    VALUE("select with a long part", ALLOW "  select: {x" X64 "/c: one}\n",
          ":4: providers.select: found the key 'xxx", NULL),
    VALUE("select of no name", ALLOW "  select: {a/b: }\n",
          ":4: providers.select.a/b: found '', allowed: a name", NULL),
    VALUE("select of a list", ALLOW "  select: {a/b: [one]}\n",
          ":4: providers.select.a/b: found a list", NULL),
    VALUE("select of an unknown name", ALLOW "  select:\n    c/d: one\n    a/b: onne\n",
          ":6: providers.select.a/b: found 'onne', allowed: the name of an entry of "
          "providers.allow; did",
          "'one'?"),
    VALUE("select without allow", "providers: {select: {a/b: one}}\n",
          ":1: providers.select.a/b: found 'one'", "providers.allow"),
    VALUE("provider_options is a list", "provider_options: [a]\n",
          ":1: provider_options: found a list, allowed: a mapping", NULL),
    VALUE("options are a word", "provider_options:\n  p: x\n",
          ":2: provider_options.p: found 'x', allowed: a mapping", NULL),
    VALUE("options are absent", "provider_options:\n  p:\n",
          ":2: provider_options.p: found nothing", NULL),
    VALUE("options are a list", "provider_options: {p: [1]}\n",
          ":1: provider_options.p: found a list", NULL),
    VALUE("options of a bad name", "provider_options: {P: {}}\n",
          ":1: provider_options: found 'P', allowed: a name", NULL),
    VALUE("options: integer of 65 bits",
          "provider_options:\n  p: {a: {b: [1,\n    9223372036854775808]}}\n",
          ":3: provider_options.p.a.b[1]: found '9223372036854775808', allowed: numbers of 64 bits",
          NULL),

    {"broken YAML", "memory: {host: 1\n", FTK_E_CONFIG_SYNTAX, ":2: did not find", NULL},
    {"alias", "memory: *x\n", FTK_E_CONFIG_SYNTAX, ":1: aliases", NULL},
    {"second document", "moe: {}\n---\nmoe: {}\n", FTK_E_CONFIG_SYNTAX, ":2: a second document",
     NULL},
    {"merge key", "memory:\n  <<: {host: 1}\n", FTK_E_CONFIG_SYNTAX, ":2: merge keys", NULL},
};

static void check_message(const ftk_error *err, const char *message, const char *end) {
    size_t n = strlen(err->message);
    if (strncmp(err->message, message, strlen(message)) != 0)
        fail_msg("found '%s', wanted '%s'", err->message, message);
    if (end && (n < strlen(end) || strcmp(err->message + n - strlen(end), end) != 0))
        fail_msg("found '%s', wanted '%s' at the end", err->message, end);
    assert_null(strchr(err->message, '\n'));
}

static void test_bad(void **state) {
    const bad_case *c = *state;
    char message[400];
    snprintf(message, sizeof message, ORIGIN "%s", c->message);
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = (ftk_config *)&err;
    ftk_status status = ftk_config_parse(c->text, strlen(c->text), ORIGIN, &config, &err);
    if (status != c->status) fail_msg("%s: %s", ftk_status_name(status), err.message);
    assert_int_equal(err.status, status);
    assert_null(config);
    check_message(&err, message, c->also);
    assert_int_equal(ftk_config_parse(c->text, strlen(c->text), ORIGIN, &config, NULL), status);
}

static void test_longest_names(void **state) {
    (void)state;
    ftk_config *c = parse_good(
        ENTRY("{name: " X64 ", path: /a}") "  select: {" X64 "/" X64 ": " X64 "}\n"
                                           "provider_options: {" X64 ": {a: b}}\n");
    assert_string_equal(c->allow[0].name, X64);
    assert_string_equal(c->select[0].claim, X64 "/" X64);
    assert_int_equal(fti_config_options(c, fti_str(X64)).size, 9);
    ftk_config_free(c);
}

static ftk_status parse_text(const fti_text *text, ftk_error *err) {
    ftk_config *config = NULL;
    assert_false(text->failed);
    ftk_status status = ftk_config_parse(text->data, text->size, ORIGIN, &config, err);
    ftk_config_free(config);
    return status;
}

static void test_number_of_entries(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    for (unsigned count = 1024; count <= 1025; count++) {
        fti_text text = {0};
        fti_text_printf(&text, "providers:\n  allow:\n");
        for (unsigned i = 0; i < count; i++)
            fti_text_printf(&text, "    - {name: p%u, path: /p/%u.so}\n", i, i);
        ftk_status status = parse_text(&text, &err);
        fti_text_free(&text);
        assert_int_equal(status, count == 1024 ? FTK_OK : FTK_E_CONFIG_VALUE);
    }
    check_message(&err, ORIGIN ":3: providers.allow: found 1025 entries, allowed: at most 1024",
                  NULL);
}

static void test_longest_path(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    for (unsigned size = 4095; size <= 4096; size++) {
        fti_text text = {0};
        fti_text_printf(&text, "providers: {search: [/");
        for (unsigned i = 1; i < size; i++) fti_text_append(&text, "x", 1);
        fti_text_printf(&text, "]}\n");
        ftk_status status = parse_text(&text, &err);
        fti_text_free(&text);
        assert_int_equal(status, size == 4095 ? FTK_OK : FTK_E_CONFIG_VALUE);
    }
    check_message(&err, ORIGIN ":1: providers.search[0]: found '/xx", "it is too long");
}

/* ---- options of providers ---- */

typedef struct json_case {
    const char *yaml; /* of the mapping */
    const char *json;
} json_case;

static const json_case json_cases[] = {
    {"{}", "{}"},
    {"{a: text, b: 'quoted', c: \"1\", d: ''}",
     "{\"a\":\"text\",\"b\":\"quoted\",\"c\":\"1\",\"d\":\"\"}"},
    {"{a: true, b: false, c: 'true', d: True, e: yes}",
     "{\"a\":true,\"b\":false,\"c\":\"true\",\"d\":\"True\",\"e\":\"yes\"}"},
    {"{a: 0, b: 17, c: -5, d: 9223372036854775807, e: -9223372036854775808}",
     "{\"a\":0,\"b\":17,\"c\":-5,\"d\":9223372036854775807,\"e\":-9223372036854775808}"},
    {"{a: 1.5, b: -0.25, c: 2.0}", "{\"a\":1.5,\"b\":-0.25,\"c\":2.0}"},
    {"{a: 01, b: +1, c: 1., d: .5, e: 1e3, f: 0x1, g: 1_0, h: -, i: 8GiB, j: 1.5.2, k: 1.5e3}",
     "{\"a\":\"01\",\"b\":\"+1\",\"c\":\"1.\",\"d\":\".5\",\"e\":\"1e3\",\"f\":\"0x1\",\"g\":\"1_"
     "0\",\"h\":\"-\",\"i\":\"8GiB\",\"j\":\"1.5.2\",\"k\":\"1.5e3\"}"},
    {"{a: , b: null, c: ~}", "{\"a\":\"\",\"b\":\"null\",\"c\":\"~\"}"},
    {"{a: [1, x, [true], {b: 2}], c: {d: {e: []}}}",
     "{\"a\":[1,\"x\",[true],{\"b\":2}],\"c\":{\"d\":{\"e\":[]}}}"},
    {"{z: 1, a: 2, m: 3}", "{\"z\":1,\"a\":2,\"m\":3}"},
    {"{'k \"x\"': \"a\\nb\", \xc3\xa4: \xe6\xa8\xa1}",
     "{\"k \\\"x\\\"\":\"a\\nb\",\"\xc3\xa4\":\"\xe6\xa8\xa1\"}"},
};

static void test_json(void **state) {
    (void)state;
    for (size_t i = 0; i < FTI_COUNT(json_cases); i++) {
        char text[400];
        snprintf(text, sizeof text, "provider_options:\n  p1: %s\n  p2: {x: 1}\n",
                 json_cases[i].yaml);
        ftk_config *config = parse_good(text);
        ftk_str json = fti_config_options(config, fti_str("p1"));
        assert_string_equal(json.data, json_cases[i].json);
        assert_int_equal(json.size, strlen(json.data));
        assert_string_equal(fti_config_options(config, fti_str("p2")).data, "{\"x\":1}");
        assert_int_equal(fti_config_options(config, fti_str("p")).size, 0);
        assert_int_equal(fti_config_options(config, fti_str("p11")).size, 0);
        ftk_config_free(config);
    }
}

/* ---- single options ---- */

typedef struct option_case {
    const char *name;
    const char *key;
    const char *value;
    ftk_status status;
    const char *message;
    const char *end;
} option_case;

static const option_case option_cases[] = {
    {"option: near path", "memory.devise", "1", FTK_E_CONFIG_KEY,
     "option memory.devise: unknown key; did", "'memory.device'?"},
    {"option: last part alone", "kv_tokens", "16", FTK_E_CONFIG_KEY,
     "option kv_tokens: unknown key; did", "'memory.kv_tokens'?"},
    {"option: nothing near", "zzzzzzzzzzzz", "1", FTK_E_CONFIG_KEY,
     "option zzzzzzzzzzzz: unknown key", "unknown key"},
    {"option: empty key", "", "1", FTK_E_CONFIG_KEY, "option : unknown key", NULL},
    {"option: section", "memory", "1", FTK_E_CONFIG_KEY,
     "option memory: is a section; set one of its keys, such as memory.device", NULL},
    {"option: below a value", "numerics.x", "1", FTK_E_CONFIG_KEY, "option numerics.x: unknown key",
     NULL},
    {"option: providers", "providers", "x", FTK_E_CONFIG_KEY, "option providers: cannot be set",
     NULL},
    {"option: allow", "providers.allow", "x", FTK_E_CONFIG_KEY,
     "option providers.allow: cannot be set", NULL},
    {"option: allow entry", "providers.allow[0].path", "/x", FTK_E_CONFIG_KEY,
     "option providers.allow[0].path: cannot be set", NULL},
    {"option: search", "providers.search", "/x", FTK_E_CONFIG_KEY,
     "option providers.search: cannot be set", NULL},
    {"option: provider options", "provider_options.p.x", "1", FTK_E_CONFIG_KEY,
     "option provider_options.p.x: cannot be set", NULL},
    {"option: like providers", "providersx", "1", FTK_E_CONFIG_KEY,
     "option providersx: unknown key", NULL},
    {"option: control character in key", "memory.\ndevice", "1", FTK_E_CONFIG_KEY,
     "option: a key has characters", NULL},
    {"option: letters in key", "m\xff", "1", FTK_E_CONFIG_KEY, "option: a key has characters",
     NULL},
    {"option: empty value", "memory.device", "", FTK_E_CONFIG_VALUE,
     "option memory.device: found nothing, allowed: auto, a size such as 8GiB (units B, KiB, MiB, "
     "GiB, TiB) from 1 to 1125899906842624 B",
     NULL},
    {"option: blank value", "memory.device", " 1", FTK_E_CONFIG_VALUE,
     "option memory.device: found ' 1'", NULL},
    {"option: value in quotes", "backend.kind", "'cpu'", FTK_E_CONFIG_VALUE,
     "option backend.kind: found ''cpu''", NULL},
    {"option: value of other letters", "backend.kind", "cp\xc3\xbc", FTK_E_CONFIG_VALUE,
     "option backend.kind: found a value with characters", NULL},
    {"option: near value", "numerics", "flot", FTK_E_CONFIG_VALUE,
     "option numerics: found 'flot', allowed: exact, float; did", "'float'?"},
};

static void test_option(void **state) {
    const option_case *c = *state;
    ftk_config *config = parse_good("");
    ftk_error err = FTK_ERROR_INIT;
    ftk_status status = ftk_config_set(config, c->key, c->value, &err);
    check_scalars(config, SCALARS, 0);
    ftk_config_free(config);
    if (status != c->status) fail_msg("%s: %s", ftk_status_name(status), err.message);
    check_message(&err, c->message, c->end);
}

static void test_option_overrides(void **state) {
    (void)state;
    ftk_config *c = parse_good(full);
    assert_int_equal(ftk_config_set(c, "memory.device", "auto", NULL), FTK_OK);
    assert_int_equal(ftk_config_set(c, "scheduler.prefix_cache", "true", NULL), FTK_OK);
    assert_true(c->memory_device == FTI_BYTES_AUTO);
    assert_true(c->prefix_cache);
    assert_true(c->overcommit);
    assert_true(c->memory_reserve == GIB);
    assert_int_equal(ftk_config_set(c, "memory.device", "x", NULL), FTK_E_CONFIG_VALUE);
    assert_true(c->memory_device == FTI_BYTES_AUTO);
    ftk_config_free(c);
}

static void test_missing_arguments(void **state) {
    (void)state;
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    assert_int_equal(ftk_config_parse("", 0, ORIGIN, NULL, &err), FTK_E_ARGUMENT);
    assert_int_equal(ftk_config_parse(NULL, 1, ORIGIN, &config, &err), FTK_E_ARGUMENT);
    assert_int_equal(ftk_config_load(NULL, &config, &err), FTK_E_ARGUMENT);
    assert_int_equal(ftk_config_load("/x", NULL, &err), FTK_E_ARGUMENT);
    assert_int_equal(ftk_config_set(NULL, "numerics", "exact", &err), FTK_E_ARGUMENT);
    assert_int_equal(ftk_config_parse(NULL, 0, NULL, &config, &err), FTK_OK);
    assert_int_equal(ftk_config_set(config, NULL, "exact", &err), FTK_E_ARGUMENT);
    assert_int_equal(ftk_config_set(config, "numerics", NULL, &err), FTK_E_ARGUMENT);
    ftk_config_free(config);
}

static void test_long_origin(void **state) {
    (void)state;
    char origin[3000];
    memset(origin, 'o', sizeof origin);
    memcpy(origin + sizeof origin - 6, "/last", 6);
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    assert_int_equal(ftk_config_parse("moe: 1\n", 7, origin, &config, &err), FTK_E_CONFIG_VALUE);
    check_message(&err, "...oooo", "allowed: a mapping of keys to values");
    assert_non_null(strstr(err.message, "oo/last:1: moe: found '1'"));
    assert_int_equal(ftk_config_parse("moe: [\n", 7, origin, &config, &err), FTK_E_CONFIG_SYNTAX);
    assert_non_null(strstr(err.message, "oo/last:"));
    assert_int_equal(ftk_config_parse("", 0, origin, &config, &err), FTK_OK);
    assert_string_equal(config->origin, origin);
    ftk_config_free(config);
}

/* ---- files ---- */

/* The folder of the running test, which is the current one meanwhile. */
typedef struct folder {
    char path[32];
    int old; /* descriptor of the one before */
} folder;

static folder the_folder;

static int enter_folder(void **state) {
    folder *f = &the_folder;
    *state = f;
    snprintf(f->path, sizeof f->path, "/tmp/test_config.XXXXXX");
    f->old = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->old < 0 || !mkdtemp(f->path)) return -1;
    return chdir(f->path) || mkdir("sub", 0700);
}

static int leave_folder(void **state) {
    const folder *f = *state;
    static const char *const names[] = {"a.yaml", "b.yaml", "sub/c.yaml", "link"};
    for (size_t i = 0; i < FTI_COUNT(names); i++) unlink(names[i]);
    int failed = rmdir("sub") || fchdir(f->old) || rmdir(f->path);
    close(f->old);
    return failed;
}

static void write_file(const char *path, const char *text, size_t size, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, size), size);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

/* `message` is a part of the message, unused if `wanted` is FTK_OK. */
static void check_load(const char *path, ftk_status wanted, const char *message) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    ftk_status status = ftk_config_load(path, &config, &err);
    if (status != wanted) fail_msg("%s: %s %s", path, ftk_status_name(status), err.message);
    if (status == FTK_OK) {
        assert_string_equal(config->origin, path);
        assert_true(config->from_file);
        assert_int_equal(config->max_running, 4);
        ftk_config_free(config);
        return;
    }
    assert_null(config);
    if (!strstr(err.message, message)) fail_msg("%s: %s", path, err.message);
}

static int open_descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void test_load(void **state) {
    const folder *f = *state;
    char path[160];
    write_file("a.yaml", full, sizeof full - 1, 0644);
    write_file("sub/c.yaml", full, sizeof full - 1, 0600);
    int open_before = open_descriptors();
    snprintf(path, sizeof path, "%s/a.yaml", f->path);
    check_load(path, FTK_OK, "");
    assert_int_equal(open_descriptors(), open_before);
    check_load("a.yaml", FTK_OK, "");
    check_load("./a.yaml", FTK_OK, "");
    check_load(".//sub/.././a.yaml", FTK_OK, "");
    check_load("sub/c.yaml", FTK_OK, "");
    assert_int_equal(chdir("sub"), 0);
    check_load("../a.yaml", FTK_OK, "");
    check_load("c.yaml", FTK_OK, "");
    snprintf(path, sizeof path, "../../../../../../..%s/a.yaml", f->path);
    check_load(path, FTK_OK, "");
    assert_int_equal(chdir(".."), 0);
}

static void test_load_missing(void **state) {
    (void)state;
    check_load("missing.yaml", FTK_E_CONFIG_READ,
               "missing.yaml: configuration cannot be read: No such file");
    check_load("/missing/x.yaml", FTK_E_CONFIG_READ, "/missing/x.yaml: configuration");
    check_load("", FTK_E_CONFIG_READ, "path is empty");
    write_file("a.yaml", "", 0, 0600);
    check_load("a.yaml/b.yaml", FTK_E_CONFIG_READ, "Not a directory");
}

static void test_load_untrusted(void **state) {
    (void)state;
    write_file("a.yaml", full, sizeof full - 1, 0664);
    check_load("a.yaml", FTK_E_CONFIG_TRUST, "a.yaml");
    write_file("a.yaml", full, sizeof full - 1, 0602);
    check_load("a.yaml", FTK_E_CONFIG_TRUST, "a.yaml");
    check_load("sub", FTK_E_CONFIG_TRUST, "sub");
    check_load("/", FTK_E_CONFIG_TRUST, "/");
    write_file("b.yaml", full, sizeof full - 1, 0600);
    write_file("sub/c.yaml", full, sizeof full - 1, 0600);
    assert_int_equal(symlink("b.yaml", "link"), 0);
    check_load("link", FTK_E_CONFIG_TRUST, "link");
    assert_int_equal(unlink("link"), 0);
    assert_int_equal(symlink("nowhere", "link"), 0);
    check_load("link", FTK_E_CONFIG_TRUST, "link");
    assert_int_equal(unlink("link"), 0);
    assert_int_equal(symlink("sub", "link"), 0);
    check_load("link/c.yaml", FTK_E_CONFIG_TRUST, "link");
    assert_int_equal(unlink("link"), 0);
    assert_int_equal(symlink("link", "link"), 0);
    check_load("link/c.yaml", FTK_E_CONFIG_TRUST, "link");
    assert_int_equal(unlink("link"), 0);
    assert_int_equal(chmod("sub", 0777), 0);
    check_load("sub/c.yaml", FTK_E_CONFIG_TRUST, "sub");
    assert_int_equal(chmod("sub", 0700), 0);
    check_load("sub/c.yaml", FTK_OK, "");
}

static void test_load_bad_text(void **state) {
    (void)state;
    write_file("a.yaml", "moe:\n  x: 1\n", 12, 0600);
    check_load("./a.yaml", FTK_E_CONFIG_KEY, "./a.yaml:2: moe.x: unknown key");
    write_file("a.yaml", "a: [", 4, 0600);
    check_load("a.yaml", FTK_E_CONFIG_SYNTAX, "a.yaml:");
}

static void test_load_size(void **state) {
    (void)state;
    size_t limit = 1024u * 1024u;
    char *text = malloc(limit + 1);
    assert_non_null(text);
    memset(text, '\n', limit + 1);
    memcpy(text, full, sizeof full - 1);
    write_file("a.yaml", text, limit, 0600);
    check_load("a.yaml", FTK_OK, "");
    write_file("a.yaml", text, limit + 1, 0600);
    check_load("a.yaml", FTK_E_CONFIG_SYNTAX, "a.yaml: larger than the limit of 1048576 bytes");
    free(text);
}

/* Root reads any file, so it becomes nobody meanwhile, where it may. */
static void test_load_unreadable(void **state) {
    const folder *f = *state;
    bool root = geteuid() == 0;
    write_file("a.yaml", full, sizeof full - 1, 0);
    assert_int_equal(chmod(f->path, 0755), 0);
    if (root && seteuid(65534) != 0) {
        print_message("skip: root may not become another user here, and root reads any file\n");
        skip();
    }
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    ftk_status status = ftk_config_load("a.yaml", &config, &err);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(status, FTK_E_CONFIG_READ);
    check_message(&err, f->path, "/a.yaml: configuration cannot be read: Permission denied");
}

/* ---- damage ---- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Parses a copy without a byte behind its end: a sanitizer sees a read beyond. */
static bool try_damaged(const char *text, size_t size) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = NULL;
    char *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, text, size);
    double begin = seconds();
    ftk_status status = ftk_config_parse(copy, size, ORIGIN, &config, &err);
    double taken = seconds() - begin;
    free(copy);
    assert_true((status == FTK_OK) == (config != NULL));
    assert_int_equal(status == FTK_OK ? 3 : ftk_status_exit_code(status), 3);
    if (status != FTK_OK) check_message(&err, ORIGIN ":", NULL);
    if (taken > 0.5) fail_msg("took %.2f s", taken);
    ftk_config_free(config);
    return status == FTK_OK;
}

static void test_truncations(void **state) {
    (void)state;
    size_t accepted = 0;
    for (size_t n = 0; n < sizeof full; n++) accepted += try_damaged(full, n);
    assert_in_range(accepted, 10, sizeof full / 2);
}

static void test_replaced_bytes(void **state) {
    (void)state;
    static const char hostile[] =
        "\0\t\n\r :-[]{},&*!|>'\"%@`#?<\\/.0A\x01\x7f\x85\xa0\xc2\xe2\xef\xff";
    char text[sizeof full];
    memcpy(text, full, sizeof full);
    for (size_t i = 0; i < sizeof full - 1; i++) {
        for (size_t j = 0; j < sizeof hostile - 1; j++) {
            text[i] = hostile[j];
            try_damaged(text, sizeof full - 1);
        }
        text[i] = full[i];
    }
    assert_true(try_damaged(text, sizeof full - 1));
}

static const struct CMUnitTest plain_tests[] = {
    cmocka_unit_test(g23_integers_at_their_edges),
    cmocka_unit_test(test_defaults),
    cmocka_unit_test(test_full),
    cmocka_unit_test(test_select_before_allow),
    cmocka_unit_test(test_quoted_words),
    cmocka_unit_test(test_longest_names),
    cmocka_unit_test(test_number_of_entries),
    cmocka_unit_test(test_longest_path),
    cmocka_unit_test(test_json),
    cmocka_unit_test(test_option_overrides),
    cmocka_unit_test(test_missing_arguments),
    cmocka_unit_test(test_long_origin),
    cmocka_unit_test_setup_teardown(test_load, enter_folder, leave_folder),
    cmocka_unit_test_setup_teardown(test_load_missing, enter_folder, leave_folder),
    cmocka_unit_test_setup_teardown(test_load_untrusted, enter_folder, leave_folder),
    cmocka_unit_test_setup_teardown(test_load_bad_text, enter_folder, leave_folder),
    cmocka_unit_test_setup_teardown(test_load_size, enter_folder, leave_folder),
    cmocka_unit_test_setup_teardown(test_load_unreadable, enter_folder, leave_folder),
    cmocka_unit_test(test_truncations),
    cmocka_unit_test(test_replaced_bytes),
};

#define CASES (FTI_COUNT(value_cases) + FTI_COUNT(bad_cases) + FTI_COUNT(option_cases))

static struct CMUnitTest tests[CASES + FTI_COUNT(plain_tests)];
static char value_names[FTI_COUNT(value_cases)][64];

static struct CMUnitTest one_case(const char *name, CMUnitTestFunction function, const void *c) {
    return (struct CMUnitTest){name, function, NULL, NULL, (void *)(uintptr_t)c};
}

int main(void) {
    size_t n = 0;
    for (size_t i = 0; i < FTI_COUNT(value_cases); i++) {
        snprintf(value_names[i], sizeof value_names[i], "%s: %s", scalar_keys[value_cases[i].key],
                 value_cases[i].text);
        tests[n++] = one_case(value_names[i], test_value, &value_cases[i]);
    }
    for (size_t i = 0; i < FTI_COUNT(bad_cases); i++)
        tests[n++] = one_case(bad_cases[i].name, test_bad, &bad_cases[i]);
    for (size_t i = 0; i < FTI_COUNT(option_cases); i++)
        tests[n++] = one_case(option_cases[i].name, test_option, &option_cases[i]);
    for (size_t i = 0; i < FTI_COUNT(plain_tests); i++) tests[n++] = plain_tests[i];
    return cmocka_run_group_tests_name("test_config", tests, NULL, NULL);
}
