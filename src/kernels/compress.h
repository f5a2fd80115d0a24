/* Compressors of the KV owners (spec 4.6). The index key is made from the latent before rope, so a
 * layer runs: linear (wkv, wgate) -> compress_pool -> linear (wk) -> compress_store. */
#pragma once

#include <stdbool.h>

#include "kernels/step.h"

struct weight;

/* Latents of the completed groups, normed, not yet rotated.
 *   ratio 1: lat = RMS(proj, norm), proj [n][dim] act
 *   ratio r: per channel w = softmax over the group's r gates z_t; pooled = bf(sum_t w_t a_t);
 *            lat = RMS(pooled, norm); proj [n][2*dim] f32: a, then z
 * Also puts the last open_rows rows of proj of every sequence into its open ring (after reading),
 * so that a later step finds the tokens of a group that is still open. With `few`, no sequence has
 * more than open_rows - ratio + 1 rows: none of them takes the place of a token that is read, and
 * both may happen at once. */
typedef struct compress_pool_args {
    const step *s;
    const step_groups *g;
    const kv_layout *layout;
    int owner;
    bool few;
    float eps;
    const void *proj;
    const struct weight *norm; /* WEIGHT_VEC_BF16 [dim] */
    void *lat;                 /* [g->n][dim] act */
} compress_pool_args;

/* Finish and store the entries of the completed groups:
 *   key    = Q4i(rope(RMS(key_raw, k_norm)))   -> key rows
 *   latent = Q4c(rope(lat))                    -> latent rows
 * Rope at the position of the group's first token. */
typedef struct compress_store_args {
    const step *s;
    const step_groups *g;
    const kv_layout *layout;
    int owner, rope;
    float eps;
    const void *lat;             /* [g->n][head_dim] act */
    const void *key_raw;         /* [g->n][index_dim] act: bf(wk lat) */
    const struct weight *k_norm; /* WEIGHT_VEC_BF16 [index_dim] */
    const float *cs;             /* [g->n][rope/2][2] of the groups' first positions */
} compress_store_args;
