/*
 * processors.c: lets a test have as many threads as it asks for. Results may not depend on
 * their number, and that is to be seen on a machine with two processors too; the library itself
 * starts no more than may run. Linked with --wrap=fti_cpu_threads_granted.
 */
#include <stdint.h>

uint32_t __real_fti_cpu_threads_granted(uint32_t asked);
uint32_t __wrap_fti_cpu_threads_granted(uint32_t asked);

uint32_t __wrap_fti_cpu_threads_granted(uint32_t asked) {
    return asked ? asked : __real_fti_cpu_threads_granted(0);
}
