/* The least work that a step needs: what every implementation must read and compute once.
 * Measurements divide it by the machine's ceilings (deepinfer bench). Thread: any, const model. */
#pragma once

#include "model/model.h"

/* Sums: bytes of weights and of sequence state, floating-point operations (a multiply-add is two).
 * Weights count once per step, routed experts by how many of them this many rows are expected to
 * choose when routing is even; activations do not count. */
typedef struct model_work {
    double bytes, flops;
} model_work;

/* Add what model_forward needs for these rows. */
void model_work_forward(const model *m, const seq_rows *seq, int n_seqs, model_work *w);
/* Add what model_draft needs for n_seqs blocks of `block` rows. */
void model_work_draft(const model *m, int n_seqs, int block, model_work *w);
