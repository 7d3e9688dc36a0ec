/* synth_vocabulary.c: see synth_vocabulary.h. */
#include "synth_vocabulary.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

const fti_synth_special fti_synth_specials[FTI_SYNTH_SPECIALS] = {
    {"<|endoftext|>", 3},
    {"<|im_start|>", 3},
    {"<|im_end|>", 3},
    {"<|object_ref_start|>", 3},
    {"<|object_ref_end|>", 3},
    {"<|box_start|>", 3},
    {"<|box_end|>", 3},
    {"<|quad_start|>", 3},
    {"<|quad_end|>", 3},
    {"<|vision_start|>", 3},
    {"<|vision_end|>", 3},
    {"<|vision_pad|>", 3},
    {"<|image_pad|>", 3},
    {"<|video_pad|>", 3},
    {"<tool_call>", 4},
    {"</tool_call>", 4},
    {"<|fim_prefix|>", 3},
    {"<|fim_middle|>", 3},
    {"<|fim_suffix|>", 3},
    {"<|fim_pad|>", 3},
    {"<|repo_name|>", 3},
    {"<|file_sep|>", 3},
    {"<tool_response>", 4},
    {"</tool_response>", 4},
    {"<think>", 4},
    {"</think>", 4},
};

static bool printable(uint32_t byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* Byte-level BPE writes a printable byte as itself, the n-th of the others as
 * character 256 + n. */
void fti_synth_byte_token(uint32_t index, char text[4]) {
    uint32_t printables = 0, others = 0, character = 0;
    for (uint32_t byte = 0; byte < FTI_SYNTH_BYTE_TOKENS; byte++) printables += printable(byte);
    for (uint32_t byte = 0, seen = 0; byte < FTI_SYNTH_BYTE_TOKENS; byte++) {
        bool plain = printable(byte);
        uint32_t place = plain ? seen++ : printables + others;
        if (place == index) character = plain ? byte : 256 + others;
        others += !plain;
    }
    memset(text, 0, 4);
    if (character < 128) {
        text[0] = (char)character;
        return;
    }
    text[0] = (char)(0xc0u | character >> 6);
    text[1] = (char)(0x80u | (character & 63u));
}

#define LETTERS "etaoinshrdlcumwfgypbvkjxqz"

/* A space as byte-level BPE writes it. */
static char *put_space(char *out) {
    *out++ = (char)0xc4;
    *out++ = (char)0xa0;
    return out;
}

/* The `n` letters of the number `index` in base 26. */
static void put_letters(char *out, uint32_t index, uint32_t n) {
    for (uint32_t i = n; i-- > 0; index /= 26) out[i] = LETTERS[index % 26];
}

/* Merges in order of rank: two letters; a space and one, two letters; three letters;
 * a space and three; four letters. Each text is made in one way only. */
static const struct {
    uint32_t space, left, right; /* letters on each side */
    uint32_t count;
} forms[] = {{0, 1, 1, 676},   {1, 0, 1, 26},    {1, 1, 1, 676},
             {0, 2, 1, 17576}, {1, 2, 1, 17576}, {0, 2, 2, 456976}};

fti_synth_merge fti_synth_merge_of(uint32_t rank) {
    fti_synth_merge m = {{0}, {0}};
    size_t form = 0;
    while (rank >= forms[form].count) rank -= forms[form++].count;
    uint32_t divisor = forms[form].right == 2 ? 676 : 26;
    char *left = forms[form].space ? put_space(m.left) : m.left;
    put_letters(left, rank / divisor, forms[form].left);
    put_letters(m.right, rank % divisor, forms[form].right);
    return m;
}
