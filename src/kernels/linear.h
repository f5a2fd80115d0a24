/* Linear layers: y = x W^T (spec 2.4).
 *
 *   - FP8 weight, q8 input: acc = 0; for each 32-column block kb ascending:
 *     acc += (sum_32 xq * wq) * xs[kb] * ws[n/32][kb]; y = acc
 *   - FP8 weight, act input: the weight dequantised to bf16 (exact), x not quantised (spec 4.5)
 *   - BF16 weight, act input: plain products, f32 sum
 *   - output: LINEAR_ACT rounds to bf16, LINEAR_F32 keeps f32, LINEAR_Q8 rounds to bf16 and then
 *     quantises by Q8 for the next quantised linear
 *
 * The order of the sum inside a block is the back end's, but fixed by the weight's shape: the same
 * for one row and for many. */
#pragma once

#include <stdbool.h>

struct weight;

typedef enum linear_out { LINEAR_ACT, LINEAR_F32, LINEAR_Q8 } linear_out;

typedef struct linear_args {
    const struct weight *w; /* [groups*N, K] */
    int n;                  /* rows of x */
    int groups;             /* 0 or 1: plain; G: block-diagonal, x [n][G*K], y [n][G*N] */
    bool x_is_act;          /* FP8 weights only: x is act and is not quantised */
    bool accumulate;        /* LINEAR_F32 only: y += */
    linear_out out;
    const void *x; /* q8 rows for FP8 weights (unless x_is_act), act rows for BF16 weights */
    void *y;
} linear_args;

/* act rows [n][cols] -> q8 rows (spec 2.3, Q8). */
typedef struct quantize_args {
    int n, cols;
    const void *x;
    void *q8;
} quantize_args;
