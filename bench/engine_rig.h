/* What the benchmarks of the engine share: models, engines, clocks, prompts, and a queue of
 * requests served with a fixed number in flight. Everything goes through the public API.
 *
 * Clocks: this process's processor time beside wall time. With one thread in the back end the first
 * is what the work costs, whatever else runs on the machine. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "deepinfer/deepinfer.h"

typedef struct bench_options {
    int rounds, threads;
    const char *only, *model;
} bench_options;

/* Options: --rounds N, --threads N, --only TEXT, --model DIR. Ends the program on a bad one. */
bench_options rig_options(int argc, char **argv, int rounds, const char *model);

/* Does this case run under --only? */
bool rig_wants(const bench_options *o, const char *name);

/* Open or end the program. */
di_model *rig_model(const bench_options *o, const char *dir);
di_engine *rig_engine(di_model *m, di_engine_options o);

/* A row of the CSV; ceiling 0 = none. What the fraction should be is the caller's text. */
void rig_row(const char *name, const char *text, int threads, double value, const char *unit,
             double ceiling);

double rig_median(double *v, int n);

/* Seconds: of a clock that never goes back, of this process, of the calling thread. */
typedef struct bench_time {
    double wall, cpu;
} bench_time;
bench_time rig_now(void);
double rig_thread_cpu(void);

/* The prompts: the 13 golden ones of the shipped model, then bench/prompts.json. */
typedef struct bench_prompt {
    char name[32];
    char *text;
    size_t n;
} bench_prompt;
int rig_prompts(bench_prompt **out);
void rig_prompts_free(bench_prompt *p, int n);

/* Serve n requests made by `make` (which fills in everything but the events) with at most
 * `in_flight` at once. Returns the time, and the output tokens. A request that fails ends the
 * program. */
typedef struct bench_load {
    int n, in_flight;
    void (*make)(void *arg, int i, di_request_params *p);
    void (*event)(void *arg, const di_event *ev); /* also gets every event; or NULL */
    void *arg;
} bench_load;
bench_time rig_serve(di_engine *e, const bench_load *load, uint64_t *n_tokens);

/* Hash of tokens and log-probabilities of an event, chained. */
uint64_t rig_hash(uint64_t h, const di_event *ev);

/* Ends the program with a message. */
#define rig_stop(...) (fprintf(stderr, "bench: " __VA_ARGS__), fputc('\n', stderr), exit(2))
