/* A benchmark program: cases measured in rounds, the ceilings sampled before every case, medians of
 * both at the end (bench.c).
 *
 * Output: rows name,case,threads,value,unit,ceiling,fraction to the standard output (bench/run.sh
 * makes the files), and a table for the eye to the standard error.
 * Rates are compared with the ceiling (fraction = value / ceiling, higher is better); times are
 * compared with a limit (fraction = value / limit, below 1 is good).
 * Thread: one owner. */
#pragma once

#include <stdbool.h>

#include "kernels/peak.h"

typedef struct bench bench;

/* Options: --rounds N, --only TEXT (cases whose name contains it), --threads N,
 * --clock cpu|wall (cpu: time of the calling thread, for one thread on a busy machine). Ends the
 * program on a bad option. `read_bytes` per thread for the memory ceilings. */
bench *bench_open(const char *program, int argc, char **argv, size_t read_bytes);
pool *bench_pool(const bench *b);
int bench_threads(const bench *b);

/* Is any case with this name wanted (else its weights need not be made)? */
bool bench_wants(const bench *b, const char *name);

typedef void (*bench_fn)(void *arg);

/* A rate: `work` bytes or operations per call against a ceiling, in units of 1e9 per second. */
void bench_rate(bench *b, const char *name, const char *text, double work, ceiling c, bench_fn fn,
                void *arg);

/* A time per call in milliseconds, against a limit. `rows`: what the call's time is divided by. */
void bench_time(bench *b, const char *name, const char *text, double rows, double limit_ms,
                bench_fn fn, void *arg);

/* Measure all cases, print and write; the exit status. Frees b. */
int bench_run(bench *b);

/* Memory for a benchmark's data; ends the program when there is none. */
void *bench_alloc(size_t bytes);

/* Ends the program with the message of a failed call. */
void bench_check(di_code rc, const di_status *st);
