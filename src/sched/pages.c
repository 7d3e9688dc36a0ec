/* pages.c: see pages.h. */
#include "sched/pages.h"

bool fti_numbers_create(fti_numbers *pool, uint32_t count) {
    *pool = (fti_numbers){.count = count, .available = count};
    pool->free = fti_calloc(count, sizeof *pool->free);
    pool->holders = fti_calloc(count, sizeof *pool->holders);
    if (!pool->free || !pool->holders) {
        fti_numbers_destroy(pool);
        return false;
    }
    /* Low numbers are taken first. */
    for (uint32_t i = 0; i < count; i++) pool->free[i] = (int32_t)(count - 1 - i);
    return true;
}

void fti_numbers_destroy(fti_numbers *pool) {
    fti_free(pool->free);
    fti_free(pool->holders);
    *pool = (fti_numbers){0};
}

bool fti_numbers_take(fti_numbers *pool, uint32_t n, int32_t *out) {
    if (n > pool->available) return false;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = pool->free[--pool->available];
        pool->holders[out[i]] = 1;
    }
    return true;
}

void fti_numbers_hold(fti_numbers *pool, const int32_t *numbers, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) pool->holders[numbers[i]]++;
}

bool fti_numbers_give(fti_numbers *pool, const int32_t *numbers, uint32_t n) {
    bool all = true;
    /* From the last to the first, so that they come out in the same order again. */
    for (uint32_t i = n; i-- > 0;) {
        int32_t number = numbers[i];
        if (number < 0 || (uint32_t)number >= pool->count || pool->holders[number] == 0)
            all = false;
        else if (--pool->holders[number] == 0)
            pool->free[pool->available++] = number;
    }
    return all;
}
