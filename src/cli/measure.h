/* Summaries of measurements. Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Nearest-rank percentiles; zeros when there is nothing. */
typedef struct spread {
    double p50, p90, p99;
} spread;

/* Sorts v [n]. */
spread spread_of(double *v, size_t n);

/* Mark the points [n] that no other one beats in both directions: y counts up; x counts down with
 * less_x (a time), else up. Of equal points the first is marked; points without y are not. */
void pareto_mark(const double *x, const double *y, int n, bool less_x, bool *front);
