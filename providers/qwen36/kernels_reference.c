/* kernels_reference.c: the kernels for any machine. */
#define QWEN36_SET qwen36_kernels_reference
#include "kernels_impl.h"
