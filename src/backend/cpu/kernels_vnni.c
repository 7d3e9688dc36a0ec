/* kernels_vnni.c: the kernels compiled for AVX-512 (F, BW, DQ, VL) with VNNI. Every
 * operation is an integer, an explicit fma or a rounded f32 operation, so the bits are the
 * reference's. Nothing here may run before the capability was checked. */
#define PANEL_ROWS           FTI_CPU_PANEL
#define FTI_CPU_FAST_DOT     "backend/cpu/dot_vnni.h"
#define FTI_CPU_LANES        "backend/cpu/lanes_avx512.h"
#define FTI_CPU_KERNEL_TABLE fti_cpu_kernels_vnni
#include "backend/cpu/kernels_impl.h"
