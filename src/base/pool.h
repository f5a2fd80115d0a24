/* Thread pool of the CPU kernels: one job at a time, split in a fixed way.
 *
 * The caller is thread 0 and works too. Which thread computes what depends only on the number of
 * threads and the shape of the work, and no sum is ever split between threads, so results do not
 * depend on the number of threads (design.md section 1).
 * Thread: pool_run and pool_free by the owner only; pool_barrier inside a job. */
#pragma once

#include <stdint.h>

#include "base/status.h"

typedef struct pool pool;

/* Start n_threads - 1 workers (n_threads 1..256; 0 = one per processor this process may use).
 * Errors: INVALID, NOMEM, IO when a thread could not be started. */
di_code pool_new(pool **out, int n_threads, di_status *st);

/* Ends the workers. Accepts NULL. */
void pool_free(pool *p);

int pool_n_threads(const pool *p);

/* Run fn(arg, thread, n_threads) on every thread and wait for all. NULL pool: one thread. */
typedef void (*pool_fn)(void *arg, int thread, int n_threads);
void pool_run(pool *p, pool_fn fn, void *arg);

/* Wait inside a job until all threads of the job have arrived. */
void pool_barrier(pool *p);

/* The part [*begin, *end) of `n` items that `thread` of `n_threads` owns: contiguous, in whole
 * units of `unit` items (the last part takes the ragged rest), sizes differ by one unit at most. */
void pool_split(int64_t n, int64_t unit, int thread, int n_threads, int64_t *begin, int64_t *end);
