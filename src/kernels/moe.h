/* Mixture of experts (spec section 5). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct weight;

/* s = sqrt(softplus(logit)); the top k of s + bias (ties: lower id), in falling order of s + bias;
 * weight = s / (sum of the chosen s + 1e-20) * scale, from the unbiased s (no division for k = 1 or
 * normalize = false). Image rows use bias_vl. softplus is linear above 20. */
typedef struct route_args {
    int n, n_experts, k;
    bool normalize;
    float scale;
    const float *logits;                 /* [n][n_experts] f32 */
    const struct weight *bias, *bias_vl; /* WEIGHT_VEC_F32 [n_experts]; bias_vl may be NULL */
    const uint8_t *image;                /* [n] or NULL */
    int32_t *ids;                        /* [n][k] */
    float *weights;                      /* [n][k] */
} route_args;

/* Routed and shared experts on rows that are quantised once:
 *   g = bf(w1 x), u = bf(w3 x); u = clamp(u, +-limit), g = min(g, limit) (limit 0: no clamp)
 *   h = bf(weight * (silu(g) * u)); y_e = bf(w2 Q8(h)); the shared expert without weight
 *   y = bf(sum of y_e in ascending expert id, then the shared one; f32) */
typedef struct experts_args {
    const struct weight *w;  /* from load_experts */
    const route_args *route; /* of the same rows, done first: makes ids and weights; NULL: they are
                              * there */
    int n, k;
    float limit;
    const void *x_q8;     /* [n] q8 rows of hidden columns */
    const int32_t *ids;   /* [n][k], distinct within a row */
    const float *weights; /* [n][k] */
    void *y;              /* [n][hidden] act */
} experts_args;
