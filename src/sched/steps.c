/* steps.c: see steps.h. */
#include "sched/steps.h"

static bool in_prompt(const fti_request_counts *c) {
    return c->computed < c->prompt;
}

static fti_step_share decode_share(const fti_request_counts *c) {
    fti_step_share share = {.first = c->computed};
    if (c->computed < c->prompt + c->chosen) {
        share.rows = 1;
        share.decode = true;
        share.samples = c->computed + 1 == c->prompt + c->chosen;
    }
    return share;
}

static fti_step_share prompt_share(const fti_request_counts *c, uint32_t room) {
    uint64_t left = c->prompt - c->computed;
    uint32_t most = c->chunk < room ? c->chunk : room;
    fti_step_share share = {.first = c->computed, .rows = left < most ? (uint32_t)left : most};
    share.samples = share.rows == left;
    return share;
}

uint32_t fti_next_step(const fti_request_counts *requests, size_t count, uint32_t most_rows,
                       fti_step_share *shares) {
    uint32_t rows = 0;
    size_t first_prompt = count;
    for (size_t i = 0; i < count; i++) {
        shares[i] = (fti_step_share){.first = requests[i].computed};
        if (!in_prompt(&requests[i]))
            shares[i] = decode_share(&requests[i]);
        else if (first_prompt == count)
            first_prompt = i;
        rows += shares[i].rows;
    }
    if (first_prompt < count && rows < most_rows) {
        shares[first_prompt] = prompt_share(&requests[first_prompt], most_rows - rows);
        rows += shares[first_prompt].rows;
    }
    return rows;
}
