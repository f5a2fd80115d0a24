/* Queries, window keys and sparse attention (spec 4.1 to 4.5).
 *
 * Window keys of this step's rows live in a step-local buffer (kv_rows) in ring format until the
 * layer's attention is done; ring_commit then moves the last of them into the rings. So a prompt
 * chunk may be longer than the ring. Where no sequence has more than ring_rows - window rows, none
 * of them takes the place of a key that another one attends: qkv may put them into the rings, too.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/step.h"

struct weight;

/* From the joint projection [wq_a; wkv] x:
 *   qr_q8   = Q8(RMS(qkv[0..q_rank), q_norm))            nothing when q_rank = 0
 *   kv_rows = Q8(rope(RMS(qkv[q_rank..q_rank+dim), kv_norm)))  as ring rows (spec 4.1) */
typedef struct qkv_args {
    int n, q_rank, dim, rope;
    float eps;
    const void *qkv; /* [n][q_rank + dim] act */
    const struct weight *q_norm, *kv_norm;
    const float *cs; /* [n][rope/2][2] */
    const kv_layout *layout;
    void *qr_q8;
    uint8_t *kv_rows;   /* [n][layout->ring_row_bytes] */
    const step *commit; /* of these rows: as ring_commit does into ring `ring`; NULL: not yet */
    int ring;
} qkv_args;

/* Multi-query attention over one latent that is key and value at once (spec 4.4):
 *   q = bf(rope(q)); s_t = (q . k_t) * scale; m = max(-1e30, max s_t); p_t = exp(s_t - m)
 *   o = bf(sum bf(p_t) k_t / (sum p_t + exp(sink - m))); then inverse rope on o, bf
 * (a device may take for m a power of two's logarithm: p_t is rounded elsewhere, equally well)
 * Keys of row i at position p, in this order, each ascending:
 *   - window: positions max(0, p-window+1, view.ring_first) .. p; from the ring those before
 *     view.len, from kv_rows the others
 *   - compressed: entries sel[i][0..n_sel[i]) of `owner` (owner < 0: none)
 *
 * draft: the rows of a sequence are a draft block that attends both ways: keys are ring positions
 * max(0, len-window) .. len-1 (len = view.len), then ALL kv_rows of that sequence (spec 7.2). */
typedef struct attention_args {
    const step *s;
    const kv_layout *layout;
    int n_heads, rope;
    float scale;
    bool draft;
    int ring;        /* index of this layer's ring */
    const void *q;   /* [n][heads][head_dim] act, before rope */
    const float *cs; /* [n][rope/2][2] of the rows' own positions */
    const uint8_t *kv_rows;
    const struct weight *sink; /* WEIGHT_VEC_F32 [heads] */
    int owner;
    const int32_t *sel, *n_sel; /* [n][topk] ascending entries, [n] */
    int topk;
    void *o; /* [n][heads * head_dim] act */
} attention_args;

/* Move each sequence's last ring_rows rows of kv_rows into its ring `ring`. */
typedef struct ring_commit_args {
    const step *s;
    const kv_layout *layout;
    int ring;
    const uint8_t *kv_rows;
} ring_commit_args;
