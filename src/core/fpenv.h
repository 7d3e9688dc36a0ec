/*
 * fpenv.h: the floating-point environment of an entry that computes. A host
 * program may run with flush-to-zero or another rounding mode; results must not
 * depend on it. The default environment of the C library has neither.
 */
#ifndef FTI_FPENV_H
#define FTI_FPENV_H

#include <fenv.h>

typedef struct fti_fpenv {
    fenv_t saved;
} fti_fpenv;

static inline fti_fpenv fti_fpenv_enter(void) {
    fti_fpenv env;
    fegetenv(&env.saved);
    fesetenv(FE_DFL_ENV);
    return env;
}

static inline void fti_fpenv_leave(const fti_fpenv *env) {
    fesetenv(&env->saved);
}

#endif
