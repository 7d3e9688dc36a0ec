/* kernels_neon.c: the kernels compiled for 64-bit ARM with the dot products of bytes
 * (FEAT_DotProd). Every operation is an integer, an explicit fma or a rounded f32 operation,
 * so the bits are the reference's. Nothing here may run before the capability was checked. */
#define FTI_CPU_FAST_DOT     "backend/cpu/dot_neon.h"
#define FTI_CPU_LANES        "backend/cpu/lanes_neon.h"
#define FTI_CPU_KERNEL_TABLE fti_cpu_kernels_neon
#include "backend/cpu/kernels_impl.h"
