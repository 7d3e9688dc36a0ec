/* machine.h: the machine that figures belong to, as the kernel describes it. */
#ifndef FTI_BENCH_MACHINE_H
#define FTI_BENCH_MACHINE_H

#include <jansson.h>
#include <stdbool.h>

/* Looks at the machine, once for the whole process; later calls do nothing. Call it
 * before anything is measured, so that the load average is that of others. `bandwidth`:
 * measure the speed of reading memory too, which takes less than half a second. */
void fti_bench_look_at_machine(bool bandwidth);

/* What was seen, a new reference; looks first, without bandwidth, if nobody has:
 * "cpu", "cpu_flags" (those that kernels could use), "cores_online", "cores_allowed"
 * (affinity), "cpu_quota" (cores, cgroup), "threads_allowed" (both together),
 * "cache_bytes" (last level), "memory_bytes", "memory_limit_bytes" (cgroup), "kernel",
 * "governor", "numa_nodes", "transparent_hugepages", "load_average" [3], "gpus" (see
 * below), "read_bandwidth" {"one_thread_gb_s", "all_threads_gb_s", "threads",
 * "buffer_bytes", "method"}. null for what the system does not say. */
json_t *fti_bench_machine(void);

/* [{"name", "driver"}] of the GPUs that the files below `root` ("" for this machine)
 * name; null if there are none. No library of any GPU is asked. */
json_t *fti_bench_gpus(const char *root);

#endif
