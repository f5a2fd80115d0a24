/* Shared by selftest.c (running, comparing) and selftest_cases.c (what is computed).
 *
 * An env is one back end with the weights of one case; run() computes rows `first` .. of it. What
 * goes into a row depends on its number only, so any range of rows must give the same bits.
 * Allocation failures are remembered in env.failed. */
#pragma once

#include "base/arena.h"
#include "kernels/kernels.h"

#define SELFTEST_ROWS     20
#define SELFTEST_MAX_COLS 2048 /* widest row of results */

typedef struct selftest_env {
    kernels *k;
    arena *mem; /* host memory of the case */
    weight *w[6];
    int n_weights;
    void *dev[24];
    int n_dev;
    bool failed;
    di_status *st;
} selftest_env;

typedef struct selftest_case {
    const char *name;
    int cols;     /* of a row of results */
    double limit; /* difference from ref over the row's rms; 0 = equal */
    void (*setup)(selftest_env *e);
    void (*run)(selftest_env *e, int first, int n, float *y);
} selftest_case;

extern const selftest_case selftest_cases[];
extern const int selftest_n_cases;

/* Largest sizes that the cases use. */
kernel_limits selftest_limits(void);
