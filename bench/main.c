/* main.c: the tables of `freetoken-bench`: its scenarios and their options. */
#include "bench.h"
#include "cli/output.h"

const char fti_cli_program_name[] = "freetoken-bench";

enum {
    DECODE = 1u << 0,
    PREFILL = 1u << 1,
    BATCH = 1u << 2,
    LOAD = 1u << 3,
    COMPARE = 1u << 4,
    PEER = 1u << 5,
    KERNELS = 1u << 6,
    SYNTH = 1u << 7,
    PROVIDER_COST = 1u << 8,
    PROFILE = 1u << 9,
    READ = 1u << 10,
    RESIDENCY = 1u << 11,
    RUNNING = DECODE | PREFILL | BATCH | LOAD | COMPARE | PROVIDER_COST | PROFILE, /* run a model */
    ROWS = RUNNING | PEER | KERNELS | READ                                         /* print rows */
};

#define VALUE(member) offsetof(fti_bench_values, member)

static const fti_cli_option option_table[] = {
    {"model", "MODEL", "the checkpoint to run", NULL, VALUE(model), RUNNING | PEER | RESIDENCY,
     FTI_CLI_TEXT, 0, 0, 'm'},
    {"model-b", "MODEL", "another checkpoint for B", NULL, VALUE(model_b), COMPARE, FTI_CLI_TEXT, 0,
     0, 0},
    {"scenario", "NAME",
     "what the runs do: decode (default), prefill, batch, or in a comparison load", NULL,
     VALUE(scenario), COMPARE | PEER | PROFILE, FTI_CLI_TEXT, 0, 0, 0},
    {"cause", "CAUSE",
     "what the difference is put down to: 'model execution', 'scheduling', 'checkpoint "
     "representation' or 'backend' (default: the rows' own)",
     NULL, VALUE(cause), COMPARE, FTI_CLI_TEXT, 0, 0, 0},
    {"batch", "N", "streams that run together (default 4)", NULL, VALUE(batch),
     BATCH | COMPARE | PEER | PROFILE | RESIDENCY, FTI_CLI_U32, 1, 4096, 0},
    {"tokens", "N", "tokens to generate in every run (default 128; load: 4)", NULL, VALUE(tokens),
     DECODE | BATCH | LOAD | COMPARE | PEER | PROVIDER_COST | PROFILE | RESIDENCY, FTI_CLI_U32, 2,
     1e9, 'n'},
    {"repeat", "N", "runs that are measured (default 10: fewer support no claim)", NULL,
     VALUE(repeat), RUNNING | KERNELS | READ, FTI_CLI_U32, 1, 10000, 0},
    {"warmup", "N", "runs before them that are not (default 1)", NULL, VALUE(warmup),
     RUNNING | PEER | KERNELS | READ, FTI_CLI_U32, 0, 10000, 0},
    {"prompt", "TEXT", "the prompt", NULL, VALUE(prompt),
     DECODE | PREFILL | LOAD | COMPARE | PEER | PROFILE | RESIDENCY, FTI_CLI_TEXT, 0, 0, 'p'},
    {"file", "FILE", "take prompts from FILE (-: standard input) instead of the built-in text",
     NULL, VALUE(file), RUNNING | PEER | RESIDENCY, FTI_CLI_TEXT, 0, 0, 'f'},
    {"prompt-tokens", "N",
     "tokens of each prompt (default: decode one line, prefill 512, batch 64, load 16)", NULL,
     VALUE(prompt_tokens), RUNNING | PEER | RESIDENCY, FTI_CLI_U32, 1, 1e9, 0},
    {"prose", NULL, "decode: natural text, where --prompt-tokens would repeat one line", NULL,
     VALUE(prose), DECODE | COMPARE | PEER | PROFILE | RESIDENCY, FTI_CLI_FLAG, 0, 0, 0},
    {"cold", NULL, "load: drop the checkpoint from the page cache before every run", NULL,
     VALUE(cold), LOAD | COMPARE, FTI_CLI_FLAG, 0, 0, 0},
    {"set", "KEY=VALUE", "set a configuration key, such as backend.threads=1; may be repeated",
     NULL, VALUE(set), RUNNING | PEER | RESIDENCY, FTI_CLI_LIST, 0, FTI_CLI_LIST_MAX, 0},
    {"set-b", "KEY=VALUE", "the same for B alone", NULL, VALUE(set_b), COMPARE, FTI_CLI_LIST, 0,
     FTI_CLI_LIST_MAX, 0},
    {"cmd", "COMMAND", "the other program, as /bin/sh -c runs it", NULL, VALUE(command), PEER,
     FTI_CLI_TEXT, 0, 0, 0},
    {"pattern", "REGEX",
     "where its output has tokens per second: the first group of the first match (PCRE2)", NULL,
     VALUE(pattern), PEER, FTI_CLI_TEXT, 0, 0, 0},
    {"pairs", "N", "runs of each that are measured (default 5; a claim needs 10)", NULL,
     VALUE(pairs), PEER, FTI_CLI_U32, 1, 10000, 0},
    {"timeout", "SECONDS", "kill the command if it runs longer (default 600)", NULL, VALUE(timeout),
     PEER, FTI_CLI_NUMBER, 0.1, 1e6, 0},
    {"weights", "TYPE", "kernels: weights of this type only, such as Q4_K; may be repeated", NULL,
     VALUE(weights), KERNELS, FTI_CLI_LIST, 0, FTI_CLI_LIST_MAX, 0},
    {"chunk", "BYTES", "read: bytes of one read, a multiple of 4096 (default: the library's)", NULL,
     VALUE(chunk), READ, FTI_CLI_U64, 0, 0, 0},
    {"direct", "auto|on|off", "read: past the page cache (default auto: where the file can be)",
     NULL, VALUE(direct), READ, FTI_CLI_TEXT, 0, 0, 0},
    {"seed", "N", "another number gives other weights (default 1)", NULL, VALUE(seed), SYNTH,
     FTI_CLI_U64, 0, 0, 0},
    {"skew", "uniform|RATE",
     "let a few experts be popular, so that a cache of a quarter of them hits at RATE, such as "
     "0.68 (default uniform)",
     NULL, VALUE(skew), SYNTH, FTI_CLI_TEXT, 0, 0, 0},
    {"types", "CLASS=TYPE,...",
     "other weight types, such as down=Q4_K,attention=Q6_K (classes: embedding, output, "
     "attention, linear, alpha-beta, gate-up, down, shared)",
     NULL, VALUE(types), SYNTH, FTI_CLI_TEXT, 0, 0, 0},
    {"sparse", NULL, "write the header only, and leave the weights a hole that reads as zeros",
     NULL, VALUE(sparse), SYNTH, FTI_CLI_FLAG, 0, 0, 0},
    {"measure", NULL, "say how often a cache of experts hits; without --output write nothing", NULL,
     VALUE(measure), SYNTH, FTI_CLI_FLAG, 0, 0, 0},
    {"output", "FILE", "where the checkpoint goes; it appears there when it is whole", NULL,
     VALUE(output), SYNTH, FTI_CLI_TEXT, 0, 0, 'o'},
    {"record", "TRACE", "run the model and write down its routing", NULL, VALUE(record), RESIDENCY,
     FTI_CLI_TEXT, 0, 0, 0},
    {"trace", "TRACE", "replay a file of --record", NULL, VALUE(trace), RESIDENCY, FTI_CLI_TEXT, 0,
     0, 0},
    {"slots", "N|N%,...", "slots of each pool (default 10%,25%,50%,75%,100%)", NULL, VALUE(slots),
     RESIDENCY, FTI_CLI_TEXT, 0, 0, 0},
    {"policy", "NAME,...", "of lru, lfu, least-stale, oracle, belady (default all)", NULL,
     VALUE(policy), RESIDENCY, FTI_CLI_TEXT, 0, 0, 0},
    {"per-layer", NULL, "show each layer too", NULL, VALUE(per_layer), RESIDENCY, FTI_CLI_FLAG, 0,
     0, 0},
    {"no-bandwidth", NULL, "do not measure the read bandwidth of memory (half a second)", NULL,
     VALUE(no_bandwidth), ROWS & ~READ, FTI_CLI_FLAG, 0, 0, 0},
    {"csv", NULL, "print one line of CSV for each figure", NULL, VALUE(csv), ROWS, FTI_CLI_FLAG, 0,
     0, 0},
    {"output", "FILE", "also save what was measured: as CSV with --csv, otherwise as JSON", NULL,
     VALUE(output), ROWS, FTI_CLI_TEXT, 0, 0, 'o'},
};

static const fti_cli_command command_table[] = {
    {"decode", "", "speed of one stream",
     "Generates the same tokens several times with one request at a time, past end tokens,\n"
     "and prints median, 95 % interval, least and greatest speed, prompt and generation\n"
     "apart. The hash of the tokens must be the same in every run; otherwise the figures are\n"
     "void and the exit code is 1. --prompt-tokens N repeats one line of text, so that hashes\n"
     "stay comparable with earlier releases; --prose takes natural text.\n\n"
     "example: freetoken-bench decode --model model.gguf --tokens 128 --json",
     DECODE, 0, 0, fti_bench_measure},
    {"prefill", "", "speed of reading a prompt",
     "Runs a prompt of natural text up to its first token, again and again: tokens of the\n"
     "prompt per second, and the time from submitting to the first token.\n\n"
     "example: freetoken-bench prefill --model model.gguf --prompt-tokens 512",
     PREFILL, 0, 0, fti_bench_measure},
    {"batch", "", "speed of several streams in every step",
     "Submits N different prompts together and measures the steps in which all of them\n"
     "generate: all streams together, and each of them. The executed batch sizes are read\n"
     "from the engine. If a measured step ran fewer than N, the row is void and says what ran\n"
     "instead; the same if a request has other tokens than it has alone. The configuration's\n"
     "scheduler.max_running must be at least N.\n\n"
     "example: freetoken-bench batch --model model.gguf --batch 4 --json",
     BATCH, 0, 0, fti_bench_measure},
    {"load", "", "time from opening a model to its first token",
     "Opens and closes the model again and again. Says how many bytes were copied, mapped\n"
     "and read from storage, and how much of the file was in the page cache; --cold drops it\n"
     "from there first, which needs no privilege but works only for pages that no other\n"
     "process has mapped. Mapped bytes are not counted as loaded.\n\n"
     "example: freetoken-bench load --model model.gguf --cold --repeat 10",
     LOAD, 0, 0, fti_bench_measure},
    {"compare", "A B", "what one change is worth",
     "A and B are two rows saved with --output, or two configurations that --model is run\n"
     "under in turn (A B B A ...), each of which may be the same file: --set-b changes a key\n"
     "for B. Compared are only rows that differ in knobs of the one cause named by --cause;\n"
     "otherwise it is said what else differs, nothing is measured, and the exit code is 1. A\n"
     "difference is claimed from 10 pairs on, if the 95 % interval of the ratio leaves out 1\n"
     "and the difference is greater than the noise.\n\n"
     "example: freetoken-bench compare c.yaml c.yaml --set-b backend.threads=1 --cause backend "
     "-m model.gguf",
     COMPARE, 2, 2, fti_bench_compare},
    {"peer", "", "another engine beside this one",
     "Runs somebody else's program and a decode (or a prefill, or a batch) of ours in turn, so\n"
     "that what slows the machine slows both; takes the program's figure from its output; prints\n"
     "every pair, both medians, and the median ratio with its 95 % interval. It runs in a\n"
     "process group of its own with nothing to read, and is killed when its time is up or you\n"
     "press Ctrl-C. If it fails, or the pattern matches nothing, its last lines are shown and\n"
     "nothing is reported. Give both the same file, the same work and the same threads. The\n"
     "ratio is that of two programs; it cannot be attributed to any part of either.\n\n"
     "example: freetoken-bench peer --model model.gguf --prompt-tokens 1 --tokens 129 -t 2 \\\n"
     "    --cmd 'llama-bench -m model.gguf -p 0 -n 128 -t 2 -r 1' \\\n"
     "    --pattern 'tg128 \\| +([0-9.]+)' --pairs 10",
     PEER, 0, 0, fti_bench_peer},
    {"kernels", "", "every variant of the matrix products against its floor",
     "Runs matmul and grouped_matmul of the CPU backend for each weight type in every variant\n"
     "that this machine has, one row of activations (decode) and 64 (prefill): GB/s of weights\n"
     "and multiply-adds per second, and how much that is of the floor, which is measured between\n"
     "the samples: reading the same bytes, and multiplying in registers. The bits of every sample\n"
     "are compared with the reference; a difference voids the row, and the exit code is 1. Types\n"
     "that have only the general path share one row; --weights gives them their own.\n\n"
     "example: freetoken-bench kernels --weights Q4_K --weights Q6_K --threads 2",
     KERNELS, 0, 0, fti_bench_kernels},
    {"read", "FILE", "how fast the disk gives a checkpoint's bytes",
     "Reads the file as the library fetches experts that are not in memory: by threads, past the\n"
     "page cache where the file system can. Two orders take turns: from begin to end, and every\n"
     "expert by itself in random order, where it lies and as large as it is. A sample is 1 GiB, "
     "or\n"
     "the whole file if it is smaller. Best, median and least rate of each; if the kernel says "
     "that\n"
     "storage delivered less than was read, the row is void and the exit code is 1. --threads is\n"
     "that of the reads.\n\n"
     "example: freetoken-bench read model.gguf --threads 8 --chunk 1048576",
     READ, 1, 1, fti_bench_read_file},
    {"profile", "", "where the time of a step goes, by operator",
     "Runs a decode (or --scenario prefill or batch) with a provider that is linked into this\n"
     "program and reads the clock around each operator; steps are not replayed from recordings.\n"
     "For each operator and type of weights: calls and microseconds of a step, its share, bytes\n"
     "of weights and multiply-adds per second, and its floor, the greater of reading those bytes\n"
     "and multiplying in registers, both measured here with the same threads. Settings are those\n"
     "of the line (--set); a configuration with others is not read.\n\n"
     "example: freetoken-bench profile --model model.gguf --threads 2 --scenario batch --batch 4",
     PROFILE, 0, 0, fti_bench_profile_command},
    {"residency", "", "how often experts would lie in slots, under which policy",
     "With --record runs a decode (or a batch of --batch N) with the provider that is linked into\n"
     "this program and writes which experts each layer used in each step, and for how many rows.\n"
     "With --trace replays such a file with several numbers of slots and policies, and runs no\n"
     "model: hits, misses, evictions and bytes copied, decode and prefill apart; and what the\n"
     "trace says of routing itself.\n\n"
     "example: freetoken-bench residency --trace model.routing --slots 25%,50% --policy lru,belady",
     RESIDENCY, 0, 0, fti_bench_residency},
    {"provider-cost", "", "what the boundary to a provider costs in a decode step",
     "Opens the model twice, with the provider linked into this program (A) and with the one\n"
     "that the configuration allows (B), behind the same tables, and generates with each in\n"
     "turn. Prints how much more processor time a step of B takes than one of A. Exit code 1\n"
     "if that is above 0.5 %, or if the tokens differ. A has no file, so settings are those of the "
     "line (--set);\n"
     "a configuration with others is refused.\n\n"
     "example: freetoken-bench provider-cost --model model.gguf --threads 1 --repeat 200 --tokens "
     "16",
     PROVIDER_COST, 0, 0, fti_bench_provider_cost},
    {"synth", "KIND", "write a checkpoint of random weights",
     "KIND is tiny (8 MB), medium (1.4 GB: the layers of 35b-a3b, but 8 of them with 64 experts\n"
     "and a smaller vocabulary), 35b-a3b (22 GB) or 122b-a10b (78 GB). The weights are valid\n"
     "and sane but mean nothing; other engines load the files too. The same kind, seed, skew\n"
     "and types give the same bytes on every machine. --threads says how many threads write.\n"
     "Room on the disk is checked first, and Ctrl-C leaves nothing behind. A --sparse file\n"
     "takes no room and can be inspected and planned with, but computes nothing of use.\n\n"
     "In a file with --skew the experts of a token follow from the token and the layer alone,\n"
     "so the rate is known without a run; it is stated for tokens drawn evenly, and is what\n"
     "the cache makes of them that keeps the most recently used quarter of every layer.\n\n"
     "example: freetoken-bench synth medium --skew 0.68 --output medium.gguf",
     SYNTH, 1, 1, fti_bench_synth},
};

int main(int argc, char **argv) {
    fti_bench_values values = {
        .batch = 4, .repeat = 10, .warmup = 1, .pairs = 5, .timeout = 600.0, .seed = 1};
    const fti_cli_program program = {
        "Measures libfreetoken on this machine. Every figure names its cause and carries the\n"
        "hash of what was computed.",
        command_table,
        sizeof command_table / sizeof command_table[0],
        option_table,
        sizeof option_table / sizeof option_table[0],
        &values};
    return fti_cli_main(&program, argc, argv);
}
