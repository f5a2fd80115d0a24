/* A model with state, ready to run: what the golden harness and the property tests stand on.
 * Failures of set-up return false with the message in st. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "kernels/kernels.h"
#include "kv/seq.h"
#include "model/model.h"

#define RIG_MAX_TOKENS 4096

typedef struct rig {
    checkpoint *ckpt;
    kernels *k;
    int32_t *compressed; /* [vocab] or NULL */
    model *m;
    kv_pool *pool;
    const model_config *cfg;
    int max_rows;
} rig;

typedef struct rig_options {
    const char *dir, *backend;
    numerics numerics;
    int n_threads; /* 0 = all */
    int max_rows;  /* 0 = 320 */
    int n_seqs;    /* 0 = 4 */
    engram_place engram;
} rig_options;

bool rig_open(rig *r, const rig_options *o, di_status *st);
void rig_close(rig *r);

/* A sequence with its tokens. */
typedef struct rig_seq {
    kv_seq *kv;
    int32_t token[RIG_MAX_TOKENS];
    uint8_t image[RIG_MAX_TOKENS];
    int n; /* tokens committed */
} rig_seq;

bool rig_seq_new(rig *r, rig_seq *s, di_status *st);
void rig_seq_free(rig_seq *s);

/* The rows of a step for the n tokens that were put behind s->n in s->token; state is reserved. */
bool rig_rows(rig_seq *s, int n, int n_logits, seq_rows *out, di_status *st);

/* Run n more tokens as one chunk and commit them; the logits of the last n_logits rows go to
 * logits [n_logits][vocab] (host). */
bool rig_step(rig *r, rig_seq *s, const int32_t *token, int n, int n_logits, float *logits,
              di_status *st);

/* Propose a draft behind the committed tokens, `token` being the pending one. */
bool rig_draft(rig *r, const rig_seq *s, int32_t token, int block, int32_t *draft,
               float *confidence, di_status *st);

/* Commit only n tokens: what is behind them was rejected. */
void rig_roll_back(rig_seq *s, int n);

/* DI_BACKEND=name restricts tests to one back end. */
bool rig_wants_backend(const char *name);

int rig_argmax(const float *x, int n);
