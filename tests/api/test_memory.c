/*
 * test_memory.c: the library without memory. For each thing that an application asks of
 * it, allocation number n fails, for n = 1, 2, ... until a run passes in which none did;
 * then again with all allocations from the n-th on failing. Each failure must be an error
 * that says so, or leave the result as it always is; it must keep nothing.
 *
 * The library has no hook for this: the linker (--wrap) hands its calls of the C
 * allocator, mmap and pthread_create to this program. Without a sanitizer the program's
 * malloc takes the place of the C library's too, so that allocations of the libraries
 * below fail as well.
 */
#include "support/model_files.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "core/config.h"
#include "core/service.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OWN_ALLOCATOR 1
#endif
#endif
#if !FIXTURE_SLOW_BUILD && !defined(OWN_ALLOCATOR) && defined(__GLIBC__)
#define ALL_LIBRARIES 1
#else
#define ALL_LIBRARIES 0
#endif

/* ---- the allocator ---- */

static struct {
    atomic_bool armed;
    atomic_ulong calls;   /* while armed */
    atomic_ulong refused; /* of them */
    unsigned long first;  /* the call that is refused */
    bool lasting;         /* and all later ones */
} memory;

static bool refused(void) {
    if (!atomic_load(&memory.armed)) return false;
    unsigned long call = atomic_fetch_add(&memory.calls, 1) + 1;
    if (call != memory.first && !(memory.lasting && call > memory.first)) return false;
    atomic_fetch_add(&memory.refused, 1);
    errno = ENOMEM;
    return true;
}

/* Blocks that the library has and did not free, by its own calls of the allocator. What
 * other libraries hand to it to be freed is not among them. */
#define PLACES 65536u
static struct {
    pthread_mutex_t lock;
    const void *places[PLACES]; /* a hash table; freed ones keep their place */
    size_t count;
} live = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char gone; /* what a freed block leaves in its place */

static size_t place_of(const void *block) {
    return ((uintptr_t)block >> 4) * 0x9E3779B97F4A7C15u >> 48;
}

static void *keep(void *block) {
    if (!block) return NULL;
    pthread_mutex_lock(&live.lock);
    size_t at = place_of(block);
    while (live.places[at] && live.places[at] != &gone) at = (at + 1) % PLACES;
    live.places[at] = block;
    live.count++;
    pthread_mutex_unlock(&live.lock);
    return block;
}

static void forget(const void *block) {
    if (!block) return;
    pthread_mutex_lock(&live.lock);
    size_t at = place_of(block);
    while (live.places[at] && live.places[at] != block) at = (at + 1) % PLACES;
    if (live.places[at]) {
        live.count--;
        live.places[at] = &gone;
        /* No chain passes a place that was never taken. */
        if (!live.places[(at + 1) % PLACES])
            for (; live.places[at] == &gone; at = (at + PLACES - 1) % PLACES)
                live.places[at] = NULL;
    }
    pthread_mutex_unlock(&live.lock);
}

/* The names are the linker's and the C library's. NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_realloc(void *old, size_t size);
void __real_free(void *block);
void __wrap_free(void *block);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);
void *__real_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
int __real_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*start)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*start)(void *),
                          void *argument);

#if ALL_LIBRARIES
/* To other libraries, whose calls then come here. */
#define VISIBLE __attribute__((visibility("default")))

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

VISIBLE void *malloc(size_t size) {
    return refused() ? NULL : __libc_malloc(size);
}

VISIBLE void *calloc(size_t count, size_t size) {
    return refused() ? NULL : __libc_calloc(count, size);
}

VISIBLE void *realloc(void *old, size_t size) {
    return refused() ? NULL : __libc_realloc(old, size);
}

VISIBLE int posix_memalign(void **out, size_t alignment, size_t size) {
    *out = refused() ? NULL : __libc_memalign(alignment, size);
    return *out ? 0 : ENOMEM;
}

VISIBLE void *aligned_alloc(size_t alignment, size_t size) {
    return refused() ? NULL : __libc_memalign(alignment, size);
}
#define REFUSED_HERE() false /* the functions above are called, and decide */
#else
#define REFUSED_HERE() refused()
#endif

void *__wrap_calloc(size_t count, size_t size) {
    return REFUSED_HERE() ? NULL : keep(__real_calloc(count, size));
}

void *__wrap_realloc(void *old, size_t size) {
    if (REFUSED_HERE()) return NULL;
    forget(old); /* before another thread can be given its place */
    void *grown = __real_realloc(old, size);
    keep(grown ? grown : old);
    return grown;
}

void __wrap_free(void *block) {
    forget(block);
    __real_free(block);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size) {
    if (REFUSED_HERE()) return ENOMEM;
    int failed = __real_posix_memalign(out, alignment, size);
    if (!failed) keep(*out);
    return failed;
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    return refused() ? MAP_FAILED : __real_mmap(at, size, protection, flags, fd, offset);
}

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*start)(void *),
                          void *argument) {
    return refused() ? EAGAIN : __real_pthread_create(out, attributes, start, argument);
}
/* NOLINTEND(bugprone-reserved-identifier) */

/* ---- sweeping ---- */

/* One thing asked for, to its end: everything it has is released again. `digest` says
 * what came of it. */
typedef ftk_status (*question)(uint64_t *digest, ftk_error *err);

static void arm(unsigned long first, bool lasting) {
    atomic_store(&memory.calls, 0);
    atomic_store(&memory.refused, 0);
    memory.first = first;
    memory.lasting = lasting;
    atomic_store(&memory.armed, true);
}

typedef struct tally {
    unsigned long failures, same; /* answers with an error, and with the usual result */
    unsigned long wrong;          /* with something else */
} tally;

static void wrong(tally *t, const char *what, unsigned long n, const char *trouble,
                  const ftk_error *err) {
    if (t->wrong++ < 10)
        print_error("%s: without allocation %lu: %s (%s: %s)\n", what, n, trouble,
                    ftk_status_name(err->status), err->message);
}

static void check_answer(ftk_status status, const ftk_error *err, bool same, unsigned long n,
                         const char *what, tally *t) {
    if (status == FTK_OK) {
        if (!same) wrong(t, what, n, "another result", err);
        t->same++;
        return;
    }
    if (status != err->status || !err->message[0] || strpbrk(err->message, "\r\n"))
        wrong(t, what, n, "an error that is not explained", err);
    else if (status != FTK_E_NO_MEMORY && !strstr(err->message, "memory") &&
             !strstr(err->message, "the system refused thread") &&
             !strstr(err->message, "the dynamic loader refused"))
        wrong(t, what, n, "another reason", err);
    t->failures++;
}

static void sweep(const char *what, question ask, bool lasting, uint64_t wanted) {
    tally t = {0};
    unsigned long n = 1, stride = lasting && FIXTURE_SLOW_BUILD ? 4 : 1;
    for (atomic_store(&memory.refused, 1); atomic_load(&memory.refused) > 0; n += stride) {
        uint64_t digest = 0;
        size_t blocks = live.count, descriptors = open_descriptors();
        ftk_error err = FTK_ERROR_INIT;
        arm(n, lasting);
        ftk_status status = ask(&digest, &err);
        atomic_store(&memory.armed, false);
        check_answer(status, &err, digest == wanted, n, what, &t);
        if (live.count != blocks) wrong(&t, what, n, "blocks are left", &err);
        if (open_descriptors() != descriptors) wrong(&t, what, n, "a file is left open", &err);
    }
    print_message("%s%s: %lu errors, %lu as ever\n", what, lasting ? ", none from then on" : "",
                  t.failures, t.same - 1);
    if (t.wrong > 0) fail_msg("%s: %lu wrong answers", what, t.wrong);
    assert_true(t.failures > 0);
}

static void sweep_both(const char *what, question ask) {
    uint64_t wanted = 0, again = 0;
    ftk_error err = FTK_ERROR_INIT;
    if (ask(&wanted, &err) != FTK_OK || ask(&again, &err) != FTK_OK) fail_msg("%s", err.message);
    if (wanted != again) fail_msg("%s: it gives another result each time", what);
    sweep(what, ask, false, wanted);
    sweep(what, ask, true, wanted);
}

static uint64_t digest_of(const void *data, size_t size) {
    return XXH3_64bits(data, size);
}

/* ---- what the questions are about ---- */

static struct {
    text model;
    ftk_config *config;
    ftk_engine *engine;
    ftk_message messages[3];
} with;

static int with_all(void **state) {
    static const char chat[] = "<|im_start|>user\n{{ message }}<|im_end|>\n<|im_start|>assistant\n";
    static const char *const settings[][2] = {{"scheduler.max_running", "2"},
                                              {"scheduler.prefill_tokens", "16"},
                                              {"memory.kv_tokens", "256"},
                                              {"backend.threads", "2"},
                                              {"backend.graphs", "on"}};
    static const char *const turns[][2] = {
        {"system", "Be brief."}, {"user", "Say <|im_end|> twice."}, {"assistant", "No."}};
    const fti_synth_meta meta = {
        .key = "tokenizer.chat_template", .type = FTI_SYNTH_STRING, .text = chat};
    static const fti_synth_extra unknown = {"v.patch_embd.weight", FTK_TYPE_F16, 32, 8};
    if (scratch_setup(state)) return -1;
    fti_synth_model m = toy_model();
    m.metas = &meta;
    m.meta_count = 1;
    m.extras = &unknown; /* of which there is a note */
    m.extra_count = 1;
    m.alignment = 1; /* so that weights are copied too */
    with.model = write_model(&m, "toy.gguf");
    with.config = load_config();
    ftk_error err = FTK_ERROR_INIT;
    for (size_t i = 0; i < FTI_COUNT(settings); i++)
        if (ftk_config_set(with.config, settings[i][0], settings[i][1], &err) != FTK_OK) return -1;
    for (size_t i = 0; i < FTI_COUNT(turns); i++) {
        with.messages[i] = (ftk_message)FTK_MESSAGE_INIT;
        with.messages[i].role = turns[i][0];
        with.messages[i].content = turns[i][1];
        with.messages[i].content_size = strlen(turns[i][1]);
    }
    return 0;
}

/* Opened late: the first opening of a process, which loads the provider, is tested too. */
static void need_engine(void) {
    ftk_error err = FTK_ERROR_INIT;
    if (with.engine) return;
    if (ftk_engine_open(with.config, with.model.s, NULL, &with.engine, &err) != FTK_OK)
        fail_msg("%s", err.message);
}

static int without_all(void **state) {
    ftk_engine_close(with.engine);
    ftk_config_free(with.config);
    return scratch_teardown(state);
}

/* ---- configuration ---- */

static ftk_status ask_config(uint64_t *digest, ftk_error *err) {
    static const char yaml[] = "providers:\n"
                               "  search: [/usr/lib/a, \"/usr/lib/b\"]\n"
                               "  allow:\n"
                               "    - name: one\n"
                               "      path: /usr/lib/a/one/one.so\n"
                               "    - {name: two, path: /usr/lib/b/two/two.so}\n"
                               "  select: {qwen35moe/gguf: two}\n"
                               "memory: {kv_tokens: 1000, device: 8GiB}\n"
                               "scheduler: {max_running: 4}\n"
                               "provider_options:\n"
                               "  two: {depth: [1, 2.5, true, null, \"x\"], name: long}\n";
    ftk_config *config = NULL;
    ftk_status status = ftk_config_parse(yaml, sizeof yaml - 1, "here", &config, err);
    if (status == FTK_OK) status = ftk_config_set(config, "memory.device", "9GiB", err);
    if (status == FTK_OK) {
        ftk_str options = fti_config_options(config, fti_str("two"));
        *digest = digest_of(options.data, (size_t)options.size) + config->memory_device +
                  config->allow_count;
    }
    ftk_config_free(config);
    return status;
}

static ftk_status ask_config_file(uint64_t *digest, ftk_error *err) {
    ftk_config *config = NULL;
    ftk_status status = ftk_config_load(FTK_CONFIG, &config, err);
    if (status == FTK_OK) *digest = digest_of(config->allow[0].path, strlen(config->allow[0].path));
    ftk_config_free(config);
    return status;
}

static void configurations(void **state) {
    (void)state;
    sweep_both("a configuration in memory", ask_config);
    sweep_both("a configuration in a file", ask_config_file);
}

/* ---- reports ---- */

static ftk_status digest_report(ftk_status status, char **json, uint64_t *digest) {
    if (status != FTK_OK) return status;
    /* Figures may change from one call to the next; what there is to say does not. */
    for (const char *c = *json; *c; c++)
        if (*c < '0' || *c > '9') *digest = *digest * 31 + (unsigned char)*c;
    ftk_report_free(*json);
    return FTK_OK;
}

static ftk_status ask_providers(uint64_t *digest, ftk_error *err) {
    char *json = NULL;
    return digest_report(ftk_providers_report(with.config, &json, err), &json, digest);
}

static ftk_status ask_description(uint64_t *digest, ftk_error *err) {
    char *json = NULL;
    return digest_report(ftk_provider_describe(FTK_PROVIDER_DIR, &json, err), &json, digest);
}

static ftk_status ask_inspection(uint64_t *digest, ftk_error *err) {
    char *json = NULL;
    return digest_report(ftk_inspect(with.model.s, &json, err), &json, digest);
}

static ftk_status ask_provenance(uint64_t *digest, ftk_error *err) {
    char *json = NULL;
    return digest_report(ftk_engine_provenance(with.engine, &json, err), &json, digest);
}

static ftk_status ask_stats(uint64_t *digest, ftk_error *err) {
    char *json = NULL;
    return digest_report(ftk_engine_stats(with.engine, &json, err), &json, digest);
}

static ftk_status ask_stats_text(uint64_t *digest, ftk_error *err) {
    char *lines = NULL;
    return digest_report(ftk_engine_stats_text(with.engine, &lines, err), &lines, digest);
}

static ftk_status ask_memory(uint64_t *digest, ftk_error *err) {
    char *json = NULL;
    return digest_report(ftk_engine_memory(with.engine, &json, err), &json, digest);
}

static void reports(void **state) {
    (void)state;
    need_engine();
    sweep_both("providers", ask_providers);
    sweep_both("one provider", ask_description);
    sweep_both("inspection", ask_inspection);
    sweep_both("provenance", ask_provenance);
    sweep_both("statistics", ask_stats);
    sweep_both("statistics as text", ask_stats_text);
    sweep_both("memory", ask_memory);
}

/* ---- engines ---- */

/* Opens and closes; what came of it is what the engine says of itself. */
static ftk_status digest_engine(ftk_engine *engine, uint64_t *digest, ftk_error *err) {
    char *json = NULL;
    atomic_store(&memory.armed, false);
    ftk_status status = digest_report(ftk_engine_provenance(engine, &json, err), &json, digest);
    ftk_engine_close(engine);
    return status;
}

static ftk_status ask_open(uint64_t *digest, ftk_error *err) {
    ftk_engine *engine = NULL;
    ftk_status status = ftk_engine_open(with.config, with.model.s, NULL, &engine, err);
    return status == FTK_OK ? digest_engine(engine, digest, err) : status;
}

static struct {
    unsigned char *data;
    size_t size;
} file;

static ftk_status ask_open_memory(uint64_t *digest, ftk_error *err) {
    ftk_engine *engine = NULL;
    ftk_open_options options = FTK_OPEN_OPTIONS_INIT;
    options.stop_after = FTK_OPEN_CONFIGURED; /* what follows is as above */
    ftk_status status = ftk_engine_open_memory(with.config, file.data, file.size, "toy", &options,
                                               &engine, err);
    return status == FTK_OK ? digest_engine(engine, digest, err) : status;
}

/* In a process of its own. */
static int open_first(unsigned long n) {
    tally t = {0};
    size_t descriptors = open_descriptors();
    ftk_error err = FTK_ERROR_INIT;
    ftk_engine *engine = NULL;
    ftk_open_options options = FTK_OPEN_OPTIONS_INIT;
    options.stop_after = FTK_OPEN_CONFIGURED;
    arm(n, false);
    ftk_status status = ftk_engine_open(with.config, with.model.s, &options, &engine, &err);
    atomic_store(&memory.armed, false);
    ftk_engine_close(engine);
    check_answer(status, &err, true, n, "the first opening", &t);
    if (open_descriptors() > descriptors + 1) /* the loader keeps that of a loaded provider */
        wrong(&t, "the first opening", n, "a file is left open", &err);
    if (t.wrong) return 2;
    return atomic_load(&memory.refused) ? 1 : 0;
}

static void the_first_opening(void **state) {
    (void)state;
    unsigned long n = 1, stride = FIXTURE_SLOW_BUILD ? 4 : 1;
    int found = 1;
    assert_null(with.engine);
    for (; found == 1; n += stride) {
        int how = 0;
        (void)fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL); /* cmocka's handler would go on with the tests */
            exit(open_first(n));      /* a leak check runs there */
        }
        assert_int_equal(waitpid(child, &how, 0), child);
        if (!WIFEXITED(how))
            fail_msg("without allocation %lu it ends by signal %d", n, WTERMSIG(how));
        found = WEXITSTATUS(how);
        if (found > 1) fail_msg("without allocation %lu: exit code %d", n, found);
    }
    print_message("the first opening: fewer than %lu allocations\n", n);
    assert_true(n > 50);
}

static void opening_an_engine(void **state) {
    (void)state;
    sweep_both("an engine", ask_open);
    file.data = read_file(with.model.s, &file.size);
    sweep_both("an engine over a file in memory", ask_open_memory);
    free(file.data);
}

/* ---- text ---- */

static const char sentence[] =
    "Once upon a time, in 1234 words: \xc3\xa9 \xf0\x9f\x98\x80 \xff <|im_end|>";

static ftk_status ask_tokens(uint64_t *digest, ftk_error *err) {
    int32_t ids[256];
    size_t count = 0;
    ftk_status status = ftk_tokenize(with.engine, sentence, sizeof sentence - 1,
                                     FTK_TOKENIZE_SPECIAL, ids, FTI_COUNT(ids), &count, err);
    if (status == FTK_OK) *digest = digest_of(ids, count * sizeof *ids);
    return status;
}

static ftk_status ask_long_tokens(uint64_t *digest, ftk_error *err) {
    static char long_text[20000];
    size_t count = 0;
    for (size_t i = 0; i < sizeof long_text; i++) long_text[i] = "abcde fghij"[i % 11];
    ftk_status status = ftk_tokenize(with.engine, long_text, sizeof long_text, 0, NULL, 0, &count,
                                     err);
    if (status == FTK_OK) *digest = count;
    return status;
}

static ftk_status ask_text(uint64_t *digest, ftk_error *err) {
    ftk_detokenizer *d = NULL;
    ftk_status status = ftk_detokenizer_create(with.engine, &d, err);
    for (int32_t id = 0; status == FTK_OK && id < 290; id++) {
        const char *part;
        size_t size;
        status = ftk_detokenizer_push(d, id, &part, &size, err);
        if (status == FTK_OK) *digest = *digest * 31 + digest_of(part, size);
    }
    ftk_detokenizer_free(d);
    return status;
}

static ftk_status ask_chat(uint64_t *digest, ftk_error *err) {
    int32_t ids[512];
    size_t count = 0;
    ftk_status status = ftk_format_chat(with.engine, with.messages, FTI_COUNT(with.messages), 0,
                                        ids, FTI_COUNT(ids), &count, err);
    if (status == FTK_OK) *digest = digest_of(ids, count * sizeof *ids);
    return status;
}

static void texts(void **state) {
    (void)state;
    need_engine();
    sweep_both("tokens", ask_tokens);
    sweep_both("tokens of a long text", ask_long_tokens);
    sweep_both("text of tokens", ask_text);
    sweep_both("a dialogue", ask_chat);
}

/* ---- requests ---- */

static const char *const stops[] = {"never", "\xe2\x82\xac"};
static const ftk_logit_bias biases[] = {{3, 1.5f}, {7, -2.0f}};

static ftk_request wanted_request(void) {
    ftk_request r = FTK_REQUEST_INIT;
    r.text = sentence;
    r.text_size = sizeof sentence - 1;
    r.max_tokens = 12;
    r.ignore_end = 1;
    r.logprobs = 3;
    r.stop = stops;
    r.stop_count = FTI_COUNT(stops);
    r.sampling.temperature = 0.8f;
    r.sampling.top_k = 20;
    r.sampling.repetition_penalty = 1.1f;
    r.sampling.biases = biases;
    r.sampling.bias_count = FTI_COUNT(biases);
    return r;
}

static ftk_status step_to_end(ftk_error *err) {
    uint32_t rows = 1;
    ftk_status status = FTK_OK;
    while (status == FTK_OK && rows > 0) status = ftk_engine_step(with.engine, &rows, err);
    return status;
}

/* Takes the events of a request, and how it ended. */
static ftk_status drain(uint64_t id, uint64_t *digest, ftk_error *err) {
    for (;;) {
        ftk_event event = FTK_EVENT_INIT;
        ftk_status status = ftk_poll(with.engine, id, 0, &event, err);
        uint32_t type = event.type;
        ftk_status ended = event.status;
        if (status != FTK_OK) return status;
        if (type == FTK_EVENT_NONE)
            return fti_fail(err, FTK_E_INTERNAL, "a request without an end");
        if (type == FTK_EVENT_DONE && ended != FTK_OK) fti_fail(err, ended, "%s", event.message);
        if (type == FTK_EVENT_DONE) *digest += event.result.hash;
        ftk_event_release(&event);
        if (type == FTK_EVENT_DONE) return ended;
    }
}

/* Two requests side by side. One that was taken has an end, whatever happens. */
static ftk_status ask_polled(uint64_t *digest, ftk_error *err) {
    ftk_request a = wanted_request(), b = wanted_request();
    ftk_error second = FTK_ERROR_INIT;
    uint64_t ids[2];
    b.text = NULL;
    b.messages = with.messages;
    b.message_count = 2;
    b.sampling.seed = 9;
    ftk_status status = ftk_submit(with.engine, &a, &ids[0], err);
    if (status != FTK_OK) return status;
    ftk_status other = ftk_submit(with.engine, &b, &ids[1], &second);
    status = step_to_end(err);
    ftk_status drained = drain(ids[0], digest, err);
    if (status == FTK_OK) status = drained;
    if (other == FTK_OK) other = drain(ids[1], digest, &second);
    if (status == FTK_OK && other != FTK_OK) *err = second;
    return status == FTK_OK ? other : status;
}

/* ---- with too little room ---- */

static ftk_engine *tight;

static void open_tight(const char *swap) {
    const char *const settings[] = {"scheduler.max_running",
                                    "3",
                                    "scheduler.prefill_tokens",
                                    "16",
                                    "memory.kv_tokens",
                                    "192",
                                    "memory.snapshots",
                                    "4",
                                    "scheduler.overcommit",
                                    "true",
                                    "scheduler.swap",
                                    swap,
                                    "backend.threads",
                                    "1",
                                    NULL};
    tight = fixture_open(with.model.s, settings);
}

static ftk_status submit_tight(uint32_t which, uint64_t *id, ftk_error *err) {
    static const struct {
        size_t prompt;
        uint32_t tokens;
    } sizes[] = {{70, 12}, {40, 30}, {20, 12}};
    int32_t ids[70];
    for (size_t i = 0; i < sizes[which].prompt; i++) ids[i] = (int32_t)(3 + i * (which + 3) % 250);
    ftk_request r = FTK_REQUEST_INIT;
    r.tokens = ids;
    r.token_count = sizes[which].prompt;
    r.max_tokens = sizes[which].tokens;
    r.ignore_end = 1;
    r.priority = (int32_t)which;
    return ftk_submit(tight, &r, id, err);
}

/* Three that do not fit together, the last with a higher priority in the middle of it all; the
 * second is cancelled. Whatever fails, each that was taken ends once, and the accounts add up. */
static ftk_status ask_tight(uint64_t *digest, ftk_error *err) {
    ftk_status status = FTK_OK, asked[3] = {FTK_E_STATE, FTK_E_STATE, FTK_E_STATE};
    uint64_t ids[3], cancelled = 0;
    ftk_engine *usual = with.engine;
    with.engine = tight; /* of which drain asks */
    uint32_t rows = 1;
    asked[0] = submit_tight(0, &ids[0], err);
    asked[1] = submit_tight(1, &ids[1], err);
    for (uint32_t i = 0; i < 1000 && (rows > 0 || i < 20); i++) {
        if (i == 6) asked[2] = submit_tight(2, &ids[2], err);
        if (i == 14 && asked[1] == FTK_OK) (void)ftk_cancel(tight, ids[1], NULL);
        if (ftk_engine_step(tight, &rows, err) != FTK_OK) status = err->status;
    }
    for (uint32_t i = 0; i < 3; i++) {
        ftk_error end = FTK_ERROR_INIT;
        ftk_status ended = asked[i];
        if (ended == FTK_OK) ended = drain(ids[i], i == 1 ? &cancelled : digest, &end);
        if (asked[i] == FTK_OK && ended != FTK_OK) *err = end;
        if (ended != FTK_OK) status = ended;
    }
    with.engine = usual;
    const char *fault = fti_holdings_fault(tight->service);
    if (fault) return fti_fail(err, FTK_E_INTERNAL, "the accounts of %s", fault);
    if (tight->service->requests) return fti_fail(err, FTK_E_INTERNAL, "somebody is left");
    return status;
}

static void requests_with_too_little_room(void **state) {
    static const char *const swaps[] = {"0", "1MiB"};
    (void)state;
    for (size_t i = 0; i < FTI_COUNT(swaps); i++) {
        open_tight(swaps[i]);
        sweep_both(i ? "requests that are swapped" : "requests that are preempted", ask_tight);
        const fti_stats *stats = &tight->service->stats;
        print_message("%lu preempted, %lu tokens reused\n", (unsigned long)stats->preempted[i],
                      (unsigned long)stats->reused);
        assert_true(stats->preempted[i] > 30 && stats->reused > 1000);
        ftk_engine_close(tight);
    }
}

typedef struct heard {
    uint64_t digest;
    uint32_t dones;
    ftk_status status;
} heard;

static int hear(void *user, const ftk_event *event) {
    heard *h = user;
    if (event->type == FTK_EVENT_TOKEN) {
        h->digest = h->digest * 31 + (uint64_t)event->token +
                    digest_of(event->text, event->text_size);
    } else {
        h->dones++;
        h->status = event->status;
    }
    return 0;
}

static ftk_status ask_called(uint64_t *digest, ftk_error *err) {
    heard h = {0};
    uint64_t id;
    ftk_request r = wanted_request();
    r.on_event = hear;
    r.user = &h;
    ftk_status status = ftk_submit(with.engine, &r, &id, err);
    if (status == FTK_OK) status = step_to_end(err);
    if (status == FTK_OK && (h.dones != 1 || h.status != FTK_OK))
        status = fti_fail(err, FTK_E_INTERNAL, "%u ends", h.dones);
    *digest = h.digest;
    return status;
}

static ftk_status ask_thread(uint64_t *digest, ftk_error *err) {
    uint64_t id;
    ftk_request r = wanted_request();
    ftk_status status = ftk_engine_start(with.engine, err);
    if (status != FTK_OK) return status;
    status = ftk_submit(with.engine, &r, &id, err);
    for (bool over = status != FTK_OK; !over;) {
        ftk_event event = FTK_EVENT_INIT;
        status = ftk_poll(with.engine, id, 10000, &event, err);
        over = status != FTK_OK || event.type != FTK_EVENT_TOKEN;
        if (status == FTK_OK && event.type == FTK_EVENT_DONE) {
            *digest = event.result.hash;
            status = event.status;
            if (status != FTK_OK) fti_fail(err, status, "%s", event.message);
        }
        ftk_event_release(&event);
    }
    ftk_status stopped = ftk_engine_stop(with.engine, NULL);
    return status == FTK_OK ? stopped : status;
}

static ftk_status ask_generation(uint64_t *digest, ftk_error *err) {
    static const int32_t prompt[] = {3, 5, 8, 13, 21, 34};
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    ftk_generate_result result = FTK_GENERATE_RESULT_INIT;
    options.max_tokens = 9;
    options.ignore_end = 1;
    ftk_status status = ftk_generate(with.engine, prompt, FTI_COUNT(prompt), &options, &result,
                                     err);
    if (status == FTK_OK) *digest = result.hash;
    return status;
}

static int take_logits(void *user, size_t position, const float *logits, const float *layers) {
    uint64_t *digest = user;
    (void)layers;
    *digest = *digest * 31 + position + digest_of(logits, 320 * sizeof *logits);
    return 0;
}

static ftk_status ask_evaluation(uint64_t *digest, ftk_error *err) {
    int32_t ids[70];
    ftk_evaluate_options options = FTK_EVALUATE_OPTIONS_INIT;
    for (int32_t i = 0; i < 70; i++) ids[i] = i * 3;
    options.chunk = 13;
    options.want_layers = 1;
    options.on_logits = take_logits;
    options.user = digest;
    return ftk_evaluate(with.engine, ids, FTI_COUNT(ids), &options, err);
}

/* The engine is none the worse for it. */
static void expect_idle(void) {
    static const char *const zeros[] = {"requests_running", "requests_waiting", "pages_used",
                                        "state_slots_used"};
    char *json = NULL;
    ftk_error err = FTK_ERROR_INIT;
    assert_int_equal(ftk_engine_stats(with.engine, &json, &err), FTK_OK);
    json_t *o = json_loads(json, 0, NULL);
    for (size_t i = 0; i < FTI_COUNT(zeros); i++)
        assert_int_equal(json_integer_value(json_object_get(o, zeros[i])), 0);
    json_decref(o);
    ftk_report_free(json);
}

static void requests(void **state) {
    (void)state;
    need_engine();
    sweep_both("two requests, polled", ask_polled);
    expect_idle();
    sweep_both("a request with a callback", ask_called);
    sweep_both("a request on the engine's thread", ask_thread);
    sweep_both("a generation", ask_generation);
    sweep_both("an evaluation", ask_evaluation);
    expect_idle();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_opening),
        cmocka_unit_test(configurations),
        cmocka_unit_test(opening_an_engine),
        cmocka_unit_test(texts),
        cmocka_unit_test(requests),
        cmocka_unit_test(reports),
        cmocka_unit_test(requests_with_too_little_room),
    };
    return cmocka_run_group_tests_name("test_memory", tests, with_all, without_all);
}
