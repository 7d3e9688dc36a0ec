/* machine.c: asks the kernel what it runs on. */
#include "machine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static json_t *cpu_model(void) {
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) return json_null();
    char *line = NULL;
    size_t capacity = 0;
    json_t *model = NULL;
    while (!model && getline(&line, &capacity, file) > 0) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon += strspn(colon, ": \t");
        model = json_stringn(colon, strcspn(colon, "\n"));
    }
    free(line);
    (void)fclose(file);
    return model ? model : json_null();
}

static json_t *positive(long value) {
    return value > 0 ? json_integer(value) : json_null();
}

static json_t *allowed_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? positive(CPU_COUNT(&set)) : json_null();
}

json_t *fti_bench_machine(void) {
    struct utsname name;
    json_t *kernel = uname(&name) == 0
                         ? json_sprintf("%s %s %s", name.sysname, name.release, name.machine)
                         : json_null();
    return json_pack("{s:o, s:o, s:o, s:o}", "cpu", cpu_model(), "cores_online",
                     positive(sysconf(_SC_NPROCESSORS_ONLN)), "cores_allowed", allowed_cores(),
                     "kernel", kernel);
}
