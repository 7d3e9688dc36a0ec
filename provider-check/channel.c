/* channel.c: what the running pass says. */
#include "check.h"

#include <pthread.h>
#include <stdio.h>

/* Passes with threads of their own speak from several. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fti_pc_channel *open_channel;

void fti_pc_open_channel(fti_pc_channel *channel) {
    open_channel = channel;
}

fti_pc_channel *fti_pc_the_channel(void) {
    return open_channel;
}

static void end_text(char *text, size_t size) {
    text[size - 1] = 0;
}

static bool is_number(double value) {
    return value >= 0.0 && value < 1e12;
}

/* The pass's process shares the channel, and with it whatever a provider writes by a stray
 * pointer. */
void fti_pc_mend_channel(fti_pc_channel *c) {
    bool broken = c->finding_count > FTI_PC_MAX_FINDINGS || c->variant_count > FTI_PC_MAX_VARIANTS;
    if (broken) c->finding_count = c->variant_count = c->lost = 0;
    end_text(c->at, sizeof c->at);
    end_text(c->skipped, sizeof c->skipped);
    for (uint32_t i = 0; i < c->finding_count; i++) {
        end_text(c->findings[i].where, sizeof c->findings[i].where);
        end_text(c->findings[i].what, sizeof c->findings[i].what);
    }
    for (uint32_t i = 0; i < c->variant_count; i++) {
        fti_pc_variant *v = &c->variants[i];
        end_text(v->operation, sizeof v->operation);
        end_text(v->name, sizeof v->name);
        end_text(v->skipped, sizeof v->skipped);
        if (!is_number(v->seconds) || !is_number(v->reference_seconds))
            v->seconds = v->reference_seconds = 0.0;
    }
    fti_pc_check(!broken, "memory was written that the provider was never given: this program's "
                          "own, where it takes down its findings");
}

/* One breach, however many values it was found with. */
static size_t breach_size(const char *what) {
    const char *found = strstr(what, ": found ");
    return found ? (size_t)(found - what) : strlen(what);
}

static bool known(const fti_pc_channel *c, const char *what) {
    size_t size = breach_size(what);
    for (uint32_t i = 0; i < c->finding_count; i++) {
        const char *other = c->findings[i].what;
        if (breach_size(other) == size && strncmp(other, what, size) == 0) return true;
    }
    return false;
}

/* One line, whatever the provider's message holds. */
static void flatten(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F) *text = ' ';
}

static void add(const char *format, va_list args) {
    fti_pc_channel *c = open_channel;
    char what[sizeof c->findings[0].what];
    vsnprintf(what, sizeof what, format, args);
    flatten(what);
    pthread_mutex_lock(&lock);
    if (!known(c, what)) {
        if (c->finding_count < FTI_PC_MAX_FINDINGS) {
            fti_pc_finding *f = &c->findings[c->finding_count];
            memcpy(f->what, what, sizeof what);
            memcpy(f->where, c->at, sizeof f->where);
            c->finding_count++;
        } else {
            c->lost++;
        }
    }
    pthread_mutex_unlock(&lock);
}

void fti_pc_find(const char *format, ...) {
    va_list args;
    va_start(args, format);
    add(format, args);
    va_end(args);
}

void fti_pc_checked(void) {
    pthread_mutex_lock(&lock);
    open_channel->checks++;
    pthread_mutex_unlock(&lock);
}

bool fti_pc_check(bool holds, const char *format, ...) {
    fti_pc_checked();
    if (holds) return true;
    va_list args;
    va_start(args, format);
    add(format, args);
    va_end(args);
    return false;
}

void fti_pc_at(const char *format, ...) {
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&lock);
    vsnprintf(open_channel->at, sizeof open_channel->at, format, args);
    pthread_mutex_unlock(&lock);
    va_end(args);
}

void fti_pc_skip(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(open_channel->skipped, sizeof open_channel->skipped, format, args);
    va_end(args);
}
