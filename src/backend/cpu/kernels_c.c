/* kernels_c.c: the kernels for any CPU of the architecture: the reference. */
#define FTI_CPU_KERNEL_TABLE fti_cpu_kernels_c
#include "backend/cpu/kernels_impl.h"
