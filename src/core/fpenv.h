/*
 * fpenv.h: the floating-point environment that results are defined in: round to
 * nearest, denormals kept, no traps. A host application may have set another one
 * (a library linked with -ffast-math is enough), so it is set around all work.
 */
#ifndef FTI_FPENV_H
#define FTI_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)

#include <xmmintrin.h>

typedef uint32_t fti_fpenv;

static inline fti_fpenv fti_fpenv_enter(void) {
    fti_fpenv saved = _mm_getcsr();
    _mm_setcsr(0x1f80u);
    return saved;
}

static inline void fti_fpenv_leave(fti_fpenv saved) {
    _mm_setcsr(saved);
}

#elif defined(__aarch64__)

typedef uint64_t fti_fpenv;

static inline fti_fpenv fti_fpenv_enter(void) {
    fti_fpenv saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    return saved;
}

static inline void fti_fpenv_leave(fti_fpenv saved) {
    __asm__ volatile("msr fpcr, %0" : : "r"(saved) : "memory");
}

#else

#include <fenv.h>

typedef fenv_t fti_fpenv;

static inline fti_fpenv fti_fpenv_enter(void) {
    fti_fpenv saved;
    fegetenv(&saved);
    fesetenv(FE_DFL_ENV);
    return saved;
}

static inline void fti_fpenv_leave(fti_fpenv saved) {
    fesetenv(&saved);
}

#endif

#endif
