/* kernels_avx2.c: the same source compiled for AVX2 and FMA. */
#define QWEN36_SET qwen36_kernels_avx2
#include "kernels_impl.h"
