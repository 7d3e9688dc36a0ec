/* steps.c: see steps.h. */
#include "sched/steps.h"

static uint64_t known(const fti_request_counts *c) {
    return c->prompt + c->chosen;
}

static bool in_prompt(const fti_request_counts *c) {
    return known(c) - c->computed > (c->chosen > 0 ? 1 : 0);
}

static fti_step_share decode_share(const fti_request_counts *c) {
    fti_step_share share = {.first = c->computed};
    if (c->computed < known(c)) {
        share.rows = 1;
        share.decode = true;
        share.samples = true;
    }
    return share;
}

/* Rows of its prompt that a request may still have in this step. */
static uint32_t rows_wanted(const fti_request_counts *c, const fti_step_share *share) {
    if (!in_prompt(c)) return 0;
    uint64_t end = c->computed < c->cut && c->cut < known(c) ? c->cut : known(c);
    uint64_t left = end - c->computed;
    return (left < c->chunk ? (uint32_t)left : c->chunk) - share->rows;
}

/* Adds as many prompt rows to a share as `room` has, and returns how many these are. */
static uint32_t add_prompt_rows(const fti_request_counts *c, fti_step_share *share, uint32_t room) {
    uint32_t wanted = rows_wanted(c, share), rows = wanted < room ? wanted : room;
    share->rows += rows;
    share->samples = c->computed + share->rows == known(c);
    return rows;
}

/* The prompt whose turn it is, or `count` if none wants rows. */
static size_t next_prompt(const fti_request_counts *requests, size_t count,
                          const fti_step_share *shares) {
    size_t best = count;
    for (size_t i = 0; i < count; i++)
        if (rows_wanted(&requests[i], &shares[i]) > 0 &&
            (best == count || requests[i].priority > requests[best].priority))
            best = i;
    return best;
}

static uint32_t first_share(uint32_t room) {
    return room < FTI_FIRST_PROMPT_SHARE ? 1 : room / FTI_FIRST_PROMPT_SHARE;
}

uint32_t fti_next_step(const fti_request_counts *requests, size_t count, uint32_t most_rows,
                       fti_step_share *shares) {
    uint32_t rows = 0;
    size_t oldest = count;
    for (size_t i = 0; i < count; i++) {
        shares[i] = (fti_step_share){.first = requests[i].computed};
        if (!in_prompt(&requests[i]))
            shares[i] = decode_share(&requests[i]);
        else if (oldest == count)
            oldest = i;
        rows += shares[i].rows;
    }
    if (oldest == count || rows >= most_rows) return rows;
    rows += add_prompt_rows(&requests[oldest], &shares[oldest], first_share(most_rows - rows));
    for (size_t i = next_prompt(requests, count, shares); i < count && rows < most_rows;
         i = next_prompt(requests, count, shares))
        rows += add_prompt_rows(&requests[i], &shares[i], most_rows - rows);
    return rows;
}
