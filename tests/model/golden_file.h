/* Golden vectors of one checkpoint: golden.json and the safetensors files beside it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "checkpoint/safetensors.h"

#define GOLDEN_PRECISIONS 3 /* f32, cache, release */
#define GOLDEN_MAX_BLOCK  64

extern const char *const golden_precision[GOLDEN_PRECISIONS];

typedef struct golden_list {
    int64_t *v;
    int n;
} golden_list;

typedef struct golden_reals {
    double *v;
    int n;
} golden_reals;

typedef struct golden_round {
    int64_t pos, token, accepted; /* -1 = not given */
    golden_list draft;
    golden_reals confidence;
} golden_round;

/* What golden.json says about one prompt in one precision; n = 0 where a key is absent. */
typedef struct golden_run {
    golden_list greedy;
    golden_reals margin;
    golden_round *round;
    int n_rounds;
} golden_run;

typedef struct golden_prompt {
    char *name;
    golden_list ids;
    golden_run run[GOLDEN_PRECISIONS];
} golden_prompt;

typedef struct golden {
    arena *mem;
    char *model; /* directory name of the checkpoint */
    golden_prompt *prompt;
    int n_prompts;
    golden_list trace_prompt;
    bool has_texts; /* a trained model */
} golden;

/* Read DIR/golden.json. */
di_code golden_open(golden *g, const char *dir, di_status *st);
void golden_close(golden *g);

/* A golden safetensors file; an absent one is not an error: *out is NULL. */
di_code golden_tensors(st_file **out, const char *dir, const char *file, di_status *st);

/* Tensor by printf-style name; NULL when the file is absent or has none of that name. */
const st_tensor *golden_find(const st_file *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int64_t golden_count(const st_tensor *t); /* elements */

/* Element i of a tensor of type F32, BF16, I32, I64 or BOOL. */
double golden_at(const st_file *f, const st_tensor *t, int64_t i);
/* The same for elements first .. first + n - 1. */
void golden_get(const st_file *f, const st_tensor *t, int64_t first, int64_t n, float *out);
