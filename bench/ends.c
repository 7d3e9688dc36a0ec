/* ends.c: see ends.h. */
#include "ends.h"

#include <signal.h>
#include <stddef.h>

/* What an interrupt does at this moment, the second of them too, is session.h's to say. */
static void pass_on(int number) {
    (void)number;
    (void)raise(SIGINT);
}

void fti_bench_catch_ends(void) {
    static const int signals[] = {SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction action;
        if (sigaction(signals[i], NULL, &action) != 0 || action.sa_handler == SIG_IGN) continue;
        action = (struct sigaction){.sa_handler = pass_on, .sa_flags = SA_RESTART};
        (void)sigemptyset(&action.sa_mask);
        (void)sigaction(signals[i], &action, NULL);
    }
}
