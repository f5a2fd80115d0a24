/* Generated weights: a checkpoint that needs a config.json only (--load-format dummy).
 *
 * Every stored form is generated with the scales of an initialised network: a matrix has elements
 * of about cols^-0.5, norms are near one, router biases near zero. So activations stay finite
 * through any number of layers and routing is spread over the experts.
 * A byte is a function of (seed, name of the tensor, its place): the same in every run.
 * Thread: any. */
#pragma once

#include "checkpoint/checkpoint.h"

typedef struct dummy_options {
    int n_layers; /* keep so many layers, spread evenly over the model; 0 = all */
    int share;    /* experts of this rank ... */
    int n_shares; /* ... of so many; 0 = all experts */
    /* Rows of an Engram table, at most about; 0 = 2^20. Tables of the released model would take
     * 98 GB each. */
    int64_t engram_rows;
} dummy_options;

/* Make `c` the configuration of what is kept. A KV or index source that is not kept is replaced by
 * the first kept layer that read it; Engram moves to the next kept layer; a share of the experts
 * keeps the experts per token, so that a rank's load per local token is that of the whole group.
 * Errors: INVALID (names the option, the value, the limit). */
di_code dummy_config(model_config *c, const dummy_options *o, di_status *st);

/* When the bytes of a tensor are there. */
typedef enum dummy_when {
    DUMMY_FOUND,  /* from checkpoint_find to checkpoint_drop; tables for good */
    DUMMY_KEPT,   /* from checkpoint_find on, for a back end that keeps pointers */
    DUMMY_READ,   /* in what checkpoint_read writes only: no memory of their own */
    DUMMY_HEADERS /* never: headers_only of checkpoint_open */
} dummy_when;

/* Open DIR/config.json with generated tensors.
 * Errors: IO and FORMAT (config.json), INVALID (an option), NOMEM. */
di_code checkpoint_open_dummy(checkpoint **out, const char *dir, const dummy_options *o,
                              dummy_when when, di_status *st);
bool checkpoint_is_dummy(const checkpoint *c);
