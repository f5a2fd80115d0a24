/* Weights as a back end holds them.
 *
 * The scalar back end keeps pointers into the mapped shards; the fast ones re-order once at load
 * (same size) and the caller drops the file's pages behind. Tables are read row by row and stay
 * mapped in every CPU back end. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct weight weight; /* opaque; one definition per back end */

typedef enum weight_kind {
    WEIGHT_VEC_BF16,   /* vector, bf16, used as f32: norm weights. rows x cols kept as stored */
    WEIGHT_VEC_F32,    /* vector or small matrix, f32 */
    WEIGHT_F32,        /* matrix [rows, cols] f32: mHC mixes */
    WEIGHT_BF16,       /* matrix [rows, cols] bf16 */
    WEIGHT_FP8,        /* matrix E4M3 [rows, cols], one UE8M0 byte per 32x32 tile: spec 2.2 */
    WEIGHT_BF16_TABLE, /* rows are gathered; stays mapped */
    WEIGHT_FP8_TABLE   /* rows E4M3, one UE8M0 byte per row and 32 columns; stays mapped */
} weight_kind;

/* A part of a matrix: parts are concatenated along the rows (wq_a over wkv). */
typedef struct weight_part {
    const void *data;     /* row-major, as stored */
    const uint8_t *scale; /* FP8: [ceil(rows/32), ceil(cols/32)]; FP8_TABLE: [rows, cols/32] */
    int64_t rows;
} weight_part;

typedef struct weight_src {
    const char *name; /* for messages */
    weight_kind kind;
    int64_t cols;
    int n_parts;
    weight_part part[2];
    bool on_host; /* FP8_TABLE: a device reads the codes in pinned host memory */
} weight_src;

/* One FP4 matrix: E2M1 pairs [rows, cols/2], UE8M0 [rows, cols/32]. */
typedef struct fp4_part {
    const uint8_t *data, *scale;
} fp4_part;

/* The routed experts of a layer (FP4) with its shared expert (FP8): spec section 5. */
typedef struct experts_src {
    const char *name;
    int n_experts, hidden, inter;
    const fp4_part *w1, *w3, *w2;                /* [n_experts] each */
    weight_part shared_w1, shared_w3, shared_w2; /* FP8 */
} experts_src;
