/* kernels_avx2.c: the kernels compiled for AVX2, FMA and F16C. Every operation
 * is an integer, an explicit fma or a rounded f32 operation, so the bits are the
 * reference's. Nothing here may run before the capability was checked. */
#define FTI_CPU_FAST_DOT     "backend/cpu/dot_avx2.h"
#define FTI_CPU_LANES        "backend/cpu/lanes_avx2.h"
#define FTI_CPU_KERNEL_TABLE fti_cpu_kernels_avx2
#include "backend/cpu/kernels_impl.h"
