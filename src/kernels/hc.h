/* Hyper-connections (mHC) with the norm and the quantisation behind them (spec section 3).
 *
 * One pass over the stream x [n][hc][D] does, per row, what is asked for, in this order:
 *   expand    y != NULL:   x[j] = bf(post[j] * y + sum_i comb[i][j] * x[i])
 *   mix       fn != NULL:  m = (fn . flat(x)) * rsqrt(mean(flat(x)^2) + eps); pre_out, post_out,
 *                          comb_out from m by sigmoid and Sinkhorn (iters column steps)
 *   collapse  norm != NULL or collapsed != NULL: c = bf(sum_i pre_in[i] * x[i])
 *   norm      norm != NULL: out = RMS(c, norm, eps); out_q8 = Q8(out)
 * The expand of one sublayer and the mix of the next are one call. pre is lagged: pre_in was made
 * by the sublayer before, pre_out is for the one behind (spec section 3). The *_out arrays may be
 * the same memory as post and comb. */
#pragma once

#include <stdint.h>

struct weight;

typedef struct hc_args {
    int n, hc, dim;
    float eps;    /* of the norms */
    float hc_eps; /* of the Sinkhorn steps */
    int iters;
    void *x; /* [*][hc][dim] act, read and (expand) written */

    const void *y;     /* [n][dim] act or NULL */
    const float *post; /* [n][hc] */
    const float *comb; /* [n][hc][hc], first index is summed over */

    const struct weight *fn;    /* WEIGHT_F32 [(2+hc)*hc, hc*dim] or NULL */
    const struct weight *base;  /* WEIGHT_VEC_F32 [(2+hc)*hc] */
    const struct weight *scale; /* WEIGHT_VEC_F32 [3] */
    float *pre_out, *post_out, *comb_out;

    const int32_t *rows; /* collapse and norm read stream row rows[i] for output row i (n of them);
                          * NULL = row i. Only without expand and mix. */
    const float *pre_in; /* [*][hc]; NULL = (1, 0, ...): the first sublayer */
    const struct weight *norm; /* WEIGHT_VEC_BF16 [dim] or NULL */
    void *collapsed;           /* [n][dim] act or NULL */
    void *out;                 /* [n][dim] act or NULL */
    void *out_q8;              /* q8 rows or NULL */
} hc_args;

/* DSpark tap: out[row * out_stride + i] = bf(mean over the copies of x[row][.][i]) (spec section
 * 7). out is act; out_stride in elements. */
typedef struct tap_args {
    int n, hc, dim;
    const void *x;
    void *out;
    int64_t out_stride;
} tap_args;
