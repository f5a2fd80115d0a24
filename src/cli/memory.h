/* What a run of generate takes in memory, said before anything is loaded. Thread: main thread. */
#pragma once

#include "checkpoint/checkpoint.h"
#include "engine/memory.h"
#include "kernels/kernels.h"

/* As the options of generate have them; 0 threads = all processors. */
typedef struct memory_options {
    const char *backend;
    numerics numerics;
    int threads;
    di_engine_options engine;
} memory_options;

typedef struct memory_report {
    memory_options opt; /* threads filled in */
    const char *backend;
    engine_memory engine;
    bool tokenizer_read; /* from tokenizer.json; else from the size of the vocabulary */
    uint64_t process;    /* program, libraries, threads, headers of the checkpoint */
    uint64_t total;      /* engine and process: resident with one block per sequence */
    uint64_t full;       /* ... with all sequences at their longest */
    uint64_t peak;       /* ... and everything in use that the prefix cache may keep */
} memory_report;

/* `c` may have been opened for its headers only. The process is measured: call it before anything
 * large is allocated. Errors: those of kernels_open and engine_memory_of. */
di_code memory_predict(memory_report *out, const checkpoint *c, const memory_options *o,
                       di_status *st);

/* Growing state of one sequence per 1,000 tokens, in bytes. */
double memory_per_1000(const memory_report *r);
