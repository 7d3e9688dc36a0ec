/* main.c: the tables of `freetoken`: its commands and their options. */
#include "cli/commands.h"
#include "cli/output.h"
#include "freetoken/freetoken.h"

const char fti_cli_program_name[] = "freetoken";

enum {
    RUN = 1u << 0,
    TOKENIZE = 1u << 1,
    LOGITS = 1u << 2,
    PERPLEXITY = 1u << 3,
    INSPECT = 1u << 4,
    PROVIDERS = 1u << 5,
    SELFTEST = 1u << 6,
    CHAT = 1u << 7,
    ANSWERING = RUN | CHAT,
    PROMPTED = RUN | TOKENIZE | LOGITS,
    MEASURING = TOKENIZE | LOGITS | PERPLEXITY
};

#define VALUE(member) offsetof(fti_cli_values, member)
#define U32_MAX       4294967295.0
#define BELOW_ONE     0.9999999

static const fti_cli_option option_table[] = {
    {"prompt", "TEXT", "the prompt", NULL, VALUE(prompt), PROMPTED, FTI_CLI_TEXT, 0, 0, 'p'},
    {"file", "FILE", "read the prompt from FILE (-: standard input), to the last byte", NULL,
     VALUE(file), PROMPTED, FTI_CLI_TEXT, 0, 0, 'f'},
    {"max-tokens", "N", "stop after N tokens (default 256; 0: when the context is full)", NULL,
     VALUE(max_tokens), ANSWERING, FTI_CLI_U32, 0, U32_MAX, 'n'},
    {"ignore-eos", NULL, "go on past end tokens", NULL, VALUE(ignore_end), ANSWERING, FTI_CLI_FLAG,
     0, 0, 0},
    {"special", NULL, "recognise special tokens written in the prompt", NULL, VALUE(special), RUN,
     FTI_CLI_FLAG, 0, 0, 0},
    {"greedy", NULL, "always the likeliest token (default without a sampling option)", NULL,
     VALUE(greedy), ANSWERING, FTI_CLI_FLAG, 0, 0, 0},
    {"temp", "F", "temperature (default 1 with another sampling option; 0: greedy)", NULL,
     VALUE(temperature), ANSWERING, FTI_CLI_NUMBER, 0, 100, 0},
    {"top-k", "N", "sample from the N likeliest tokens (0: all)", NULL, VALUE(top_k), ANSWERING,
     FTI_CLI_U32, 0, U32_MAX, 0},
    {"top-p", "F", "sample from the likeliest tokens that hold F of the probability (1: all)", NULL,
     VALUE(top_p), ANSWERING, FTI_CLI_NUMBER, 1e-6, 1, 0},
    {"min-p", "F", "drop tokens less likely than F times the likeliest (0: none)", NULL,
     VALUE(min_p), ANSWERING, FTI_CLI_NUMBER, 0, BELOW_ONE, 0},
    {"seed", "N", "of the random numbers (default 0): one seed, one text", NULL, VALUE(seed),
     ANSWERING, FTI_CLI_U64, 0, 0, 0},
    {"repetition-penalty", "F", "make tokens that occurred less likely by F (1: off)", NULL,
     VALUE(repetition_penalty), ANSWERING, FTI_CLI_NUMBER, 1e-6, 100, 0},
    {"presence-penalty", "F", "take F off the logit of a token that occurred (0: off)", NULL,
     VALUE(presence_penalty), ANSWERING, FTI_CLI_NUMBER, -100, 100, 0},
    {"frequency-penalty", "F", "take F off for each time that it occurred (0: off)", NULL,
     VALUE(frequency_penalty), ANSWERING, FTI_CLI_NUMBER, -100, 100, 0},
    {"penalty-last", "N", "tokens that the penalties look back on (0: all)", NULL,
     VALUE(penalty_last), ANSWERING, FTI_CLI_U32, 0, U32_MAX, 0},
    {"logit-bias", "ID=B", "add B to the logit of token ID (-inf: never); may be repeated", NULL,
     VALUE(biases), ANSWERING, FTI_CLI_LIST, 0, FTI_CLI_LIST_MAX, 0},
    {"stop", "TEXT", "end before TEXT; may be repeated", NULL, VALUE(stop), ANSWERING, FTI_CLI_LIST,
     0, 16, 0},
    {"logprobs", "N", "log-probabilities of each token and the N likeliest; with --json", NULL,
     VALUE(logprobs), RUN, FTI_CLI_U32, 0, FTK_MAX_LOGPROBS, 0},
    {"requests", "FILE", "run the requests in FILE (-: standard input), a JSON object per line",
     NULL, VALUE(requests), RUN, FTI_CLI_TEXT, 0, 0, 0},
    {"output", "FILE", "requests: write the results to FILE, replaced as a whole at the end", NULL,
     VALUE(output), RUN, FTI_CLI_TEXT, 0, 0, 0},
    {"ordered", NULL, "requests: results in the order of the lines, not as they finish", NULL,
     VALUE(ordered), RUN, FTI_CLI_FLAG, 0, 0, 0},
    {"keep-going", NULL, "requests: a bad line is an error in its result, and nothing more", NULL,
     VALUE(keep_going), RUN, FTI_CLI_FLAG, 0, 0, 0},
    {"batch", "N", "requests: run N at once (default: scheduler.max_running)", NULL, VALUE(batch),
     RUN, FTI_CLI_U32, 1, 4096, 0},
    {"system", "TEXT", "instructions that precede the conversation", NULL, VALUE(system), CHAT,
     FTI_CLI_TEXT, 0, 0, 0},
    {"no-thinking", NULL, "answer at once, where the model could think first", NULL,
     VALUE(no_thinking), CHAT, FTI_CLI_FLAG, 0, 0, 0},
    {"plain", NULL, "take special tokens in the text as plain text", NULL, VALUE(plain), MEASURING,
     FTI_CLI_FLAG, 0, 0, 0},
    {"out", "FILE", "where the logits go; replaced as a whole at the end", NULL, VALUE(out), LOGITS,
     FTI_CLI_TEXT, 0, 0, 'o'},
    {"chunk", "N", "prompt rows per step (0: as configured); results do not depend on it", NULL,
     VALUE(chunk), ANSWERING | LOGITS | PERPLEXITY, FTI_CLI_U32, 0, U32_MAX, 0},
    {"window", "N", "tokens per window, each from an empty state (default 1024)", NULL,
     VALUE(window), PERPLEXITY, FTI_CLI_U32, 2, U32_MAX, 0},
    {"plan", NULL, "load the allowed provider and show the memory plan", NULL, VALUE(plan), INSPECT,
     FTI_CLI_FLAG, 0, 0, 0},
    {"tensors", NULL, "list every tensor", NULL, VALUE(tensors), INSPECT, FTI_CLI_FLAG, 0, 0, 0},
    {"update", NULL, "allow: replace path and sha256 of an entry that differs", NULL, VALUE(update),
     PROVIDERS, FTI_CLI_FLAG, 0, 0, 0},
};

static const fti_cli_command command_table[] = {
    {"run", "MODEL", "generate text from a prompt",
     "Streams the text to standard output and ends with one line of figures on standard\n"
     "error. Ctrl-C stops the generation (exit code 1), a second one the program.\n\n"
     "With --requests each line of FILE is a request, all go through one engine, and each\n"
     "result is a line of JSON. All lines are checked before the first one runs. A line has\n"
     "prompt (text), messages ([{role, content}]) or tokens (ids), and may have: id,\n"
     "max_tokens, temperature, top_p, top_k, min_p, seed, repetition_penalty,\n"
     "presence_penalty, frequency_penalty, penalty_last, stop (text or list), ignore_eos,\n"
     "special, no_thinking, logprobs, priority. Options hold where a line is silent.\n\n"
     "example: freetoken run model.gguf -p 'Once upon a time' -n 64\n\n"
     "example: echo '{\"id\": 1, \"prompt\": \"Once upon a time\", \"max_tokens\": 64}' |\n"
     "             freetoken run model.gguf --requests - --batch 4",
     RUN, 1, 1, fti_cli_run},
    {"chat", "MODEL", "converse with a model",
     "Reads a line, streams the answer, and keeps the conversation. Needs a model that was\n"
     "trained to converse; says so otherwise (exit code 5). Without -n an answer ends where\n"
     "the model ends it, or with the context.\n\n"
     "/help   the commands\n"
     "/reset  forget the conversation\n"
     "/quit   leave (also Ctrl-D)\n"
     "Ctrl-C  stop the answer, or drop the line; the program goes on\n\n"
     "example: freetoken chat model.gguf --system 'Answer in one sentence.' --temp 0.7",
     CHAT, 1, 1, fti_cli_chat},
    {"tokenize", "MODEL", "show the tokens of a text",
     "Prints the id and the text of every token. Special tokens are recognised unless\n"
     "--plain is given.\n\n"
     "example: freetoken tokenize model.gguf -p 'Once upon a time'",
     TOKENIZE, 1, 1, fti_cli_tokenize},
    {"logits", "MODEL", "write the logits of every position of a prompt",
     "Writes raw little-endian 32-bit floats, one row of the vocabulary per prompt token.\n"
     "Special tokens are recognised unless --plain is given.\n\n"
     "example: freetoken logits model.gguf -p 'Once upon a time' --out logits.bin",
     LOGITS, 1, 1, fti_cli_logits},
    {"perplexity", "MODEL FILE", "measure how well the model predicts a text",
     "Encodes the whole file and runs it in consecutive windows, each from an empty state;\n"
     "every token of a window but its first is scored. Special tokens are recognised\n"
     "unless --plain is given.\n\n"
     "example: freetoken perplexity model.gguf stories.txt --window 1024",
     PERPLEXITY, 2, 2, fti_cli_perplexity},
    {"inspect", "MODEL", "describe a checkpoint, or what memory it would take",
     "Reads metadata and tensors without loading a provider. With --plan the allowed\n"
     "provider is loaded and the memory plan shown; nothing is allocated. The plan is for\n"
     "scheduler.max_running requests at once; run and chat need less, they plan for one.\n\n"
     "example: freetoken inspect model.gguf --plan --ctx 8192",
     INSPECT, 1, 1, fti_cli_inspect},
    {"providers", "[list | check | allow NAME|FOLDER | explain MODEL]",
     "list, check, allow and explain model providers",
     "list   what the search folders hold and the configuration allows\n"
     "check  the same; exit code 4 if an allowed provider fails a check\n"
     "allow  write a provider's path and sha256 into the user's configuration (or that of\n"
     "       --config). NAME is looked up in the search folders; a FOLDER contains a slash.\n"
     "explain  why each provider would or would not take MODEL, or ARCHITECTURE CONTAINER,\n"
     "       and the provenance of an engine on MODEL; exit code 4 unless exactly one would\n\n"
     "example: freetoken providers allow /usr/lib/freetoken/providers/NAME",
     PROVIDERS, 0, 3, fti_cli_providers},
    {"selftest", "[MODEL]", "hold every kernel of this machine against its reference",
     "Gives adversarial data of every weight type to all kernel variants, on one and more\n"
     "threads, run and replayed, and compares the results with the reference bit by bit.\n"
     "With MODEL also whole generations, with graphs and without. Exit code 7 if anything\n"
     "differs. Needs no configuration without MODEL.\n\n"
     "example: freetoken selftest model.gguf",
     SELFTEST, 0, 1, fti_cli_selftest},
};

int main(int argc, char **argv) {
    fti_cli_values values = {.temperature = 1.0,
                             .top_p = 1.0,
                             .max_tokens = 256,
                             .window = 1024,
                             .repetition_penalty = 1.0};
    const fti_cli_program program = {
        "Runs mixture-of-experts language models on machines that are too small for them.",
        command_table,
        sizeof command_table / sizeof command_table[0],
        option_table,
        sizeof option_table / sizeof option_table[0],
        &values};
    return fti_cli_main(&program, argc, argv);
}
