/* A file of requests through the generator: read, run, write in order. Thread: main thread. */
#pragma once

#include "cli/generator.h"
#include "cli/lines.h"
#include "cli/request.h"

typedef struct batch_options {
    const request_defaults *defaults;
    const char *model; /* for answers to bodies that name none */
    int max_seqs;      /* of the generator */
    bool quiet;
} batch_options;

typedef struct batch_totals {
    int64_t n_lines, n_failed;  /* of this run and of the lines that were there already */
    int64_t n_prompt, n_tokens; /* tokens of this run */
    double seconds;
} batch_totals;

/* Answer what is left of `in` into `out`. A bad line gives a line with its error. Errors: IO,
 * NOMEM, DEVICE; lines that were written stay. */
di_code batch_run(generator *g, lines_in *in, lines_out *out, const batch_options *opt,
                  batch_totals *totals, di_status *st);
