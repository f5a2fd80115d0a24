/* What a run of generate takes in memory, said before anything is loaded. Thread: main thread. */
#pragma once

#include "checkpoint/checkpoint.h"
#include "kernels/kernels.h"
#include "model/model.h"

/* As the options of generate have them; 0 threads = all processors. */
typedef struct memory_options {
    const char *backend;
    numerics numerics;
    int threads, n_seqs;
    int64_t context;
} memory_options;

typedef struct memory_report {
    memory_options opt; /* threads filled in */
    const char *backend;
    model_memory model;
    uint64_t tokenizer;
    bool tokenizer_read; /* from tokenizer.json; else from the size of the vocabulary */
    uint64_t process;    /* program, libraries, threads, headers of the checkpoint */
    uint64_t sequences;  /* fixed state of n_seqs sequences, and the lists around it */
    uint64_t blocks;     /* their first block each */
    uint64_t total;      /* resident with n_seqs sequences of one block each */
    uint64_t full;       /* ... and of `context` tokens each */
    uint64_t cache;      /* on top: what checkpoints of the prefix cache may grow to */
} memory_report;

/* `c` may have been opened for its headers only. The process is measured: call it before anything
 * large is allocated. Errors: those of kernels_open and model_memory_of. */
di_code memory_predict(memory_report *out, const checkpoint *c, const memory_options *o,
                       di_status *st);

/* Growing state of one sequence per 1,000 tokens, in bytes. */
double memory_per_1000(const memory_report *r);
