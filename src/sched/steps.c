/* steps.c: see steps.h. */
#include "sched/steps.h"

fti_step_choice fti_next_step(const fti_request_counts *c, uint32_t chunk) {
    fti_step_choice choice = {.first = c->computed};
    if (c->computed < c->prompt) {
        uint64_t left = c->prompt - c->computed;
        choice.rows = left < chunk ? (uint32_t)left : chunk;
        choice.samples = choice.rows == left;
    } else if (c->computed < c->prompt + c->chosen) {
        choice.rows = 1;
        choice.decode = true;
        choice.samples = c->computed + 1 == c->prompt + c->chosen;
    }
    return choice;
}
