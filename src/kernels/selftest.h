/* Checks that a user runs on the own machine: a back end against ref, and batch invariance.
 *
 * Small cases of the operations that decide what a model says. A row is computed among others,
 * alone and with another number of threads: the bits must be the same. The thorough tables live in
 * tests/kernels; this needs nothing but the library.
 * Thread: any; one call at a time. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

typedef struct selftest_result {
    const char *name;
    double worst, limit; /* largest difference from ref, over the rms of its row */
    bool same_alone;     /* bits of a row alone and in other company */
    bool same_threads;   /* bits with one thread and with all */
    bool ok;
} selftest_result;

typedef void (*selftest_report)(void *arg, const selftest_result *r);

/* Conversions of the number formats: every code, and ties. False when one is wrong. */
bool selftest_formats(void);

/* Run all checks on a back end ("avx512", ...; "ref" against itself) with n_threads (0 = all).
 * `report` is called for each. *n_failed: how many were not ok. Errors: as kernels_open; NOMEM. */
di_code selftest_backend(const char *backend, int n_threads, selftest_report report, void *arg,
                         int *n_failed, di_status *st);
