/* build.h: which program measured: what the commit alone does not say of a changed tree. */
#ifndef FTI_BENCH_BUILD_H
#define FTI_BENCH_BUILD_H

/* XXH3-128 of the running executable and of the library that it uses, 32 hexadecimal
 * digits, computed once; "unknown" if they cannot be read. Of one thread. */
const char *fti_bench_build(void);

#endif
