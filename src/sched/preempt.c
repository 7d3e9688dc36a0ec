/* preempt.c: see preempt.h. */
#include "sched/preempt.h"

/* The next to go, or `count`. */
static size_t weakest(const fti_victim *running, size_t count, int32_t below) {
    size_t found = count;
    for (size_t i = 0; i < count; i++)
        if (!running[i].chosen && running[i].priority < below &&
            (found == count || running[i].priority <= running[found].priority))
            found = i;
    return found;
}

/* Lets go on whoever was marked before others turned out to be enough, the strongest first. */
static void spare(fti_victim *running, size_t count, uint64_t pages, uint64_t slots,
                  uint64_t need_pages, uint64_t need_slots) {
    for (size_t i = 0; i < count; i++) {
        fti_victim *v = &running[i];
        if (!v->chosen || pages - v->pages < need_pages || slots - v->slots < need_slots) continue;
        v->chosen = false;
        pages -= v->pages;
        slots -= v->slots;
    }
}

bool fti_choose_victims(fti_victim *running, size_t count, int32_t below, uint32_t pages,
                        uint32_t slots) {
    uint64_t free_pages = 0, free_slots = 0;
    while (free_pages < pages || free_slots < slots) {
        size_t i = weakest(running, count, below);
        if (i == count) {
            for (i = 0; i < count; i++) running[i].chosen = false;
            return false;
        }
        running[i].chosen = true;
        free_pages += running[i].pages;
        free_slots += running[i].slots;
    }
    spare(running, count, free_pages, free_slots, pages, slots);
    return true;
}
