/* machine.h: the machine that figures belong to. */
#ifndef FTI_BENCH_MACHINE_H
#define FTI_BENCH_MACHINE_H

#include <jansson.h>

/* {"cpu", "cores_online", "cores_allowed", "kernel"}; null for what the system does
 * not say. */
json_t *fti_bench_machine(void);

#endif
