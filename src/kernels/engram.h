/* Engram memory (spec section 6.3). Row ids come from the token history (model/engram.h). */
#pragma once

#include <stdint.h>

struct weight;

/* Table rows side by side, quantised for wkv: e = concat over cols of bf(row); q8 = Q8(e).
 * out_q8 [n] q8 rows of n_cols * dim columns. */
typedef struct engram_gather_args {
    const struct weight *table; /* WEIGHT_FP8_TABLE [rows, dim] */
    int n, n_cols;
    const int64_t *ids; /* [n][n_cols], inside the table */
    void *out_q8;
} engram_gather_args;

/* Add the gated value to every copy of the stream:
 *   dot_i = sum(x_i * (q_i * k_i) * key_i) * rsqrt(mean(x_i^2)+eps) * rsqrt(mean(key_i^2)+eps)
 *           * dim^-0.5
 *   g_i = sigmoid(copysign(sqrt(max(|dot_i|, 1e-6)), dot_i)), 0 for image rows
 *   x_i = bf(x_i + g_i * value) */
typedef struct engram_apply_args {
    int n, hc, dim;
    float eps;
    void *x;                        /* [n][hc][dim] act */
    const void *kv;                 /* [n][(hc+1)*dim] act: keys of the copies, then the value */
    const struct weight *q_w, *k_w; /* WEIGHT_VEC_BF16 [hc, dim] */
    const uint8_t *image;           /* [n] or NULL */
    float *gate;                    /* [n][hc] or NULL: the gates, for tests */
} engram_apply_args;
