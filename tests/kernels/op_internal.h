/* Shared by the files that build instances: op_inst.c, op_rows.c, op_seq.c. */
#pragma once

#include "kernels/op_cases.h"

#include "base/arena.h"

#define OP_MAX_BUFS    32
#define OP_MAX_WEIGHTS 256
#define OP_MAX_OUTPUTS 8

typedef struct op_output {
    const char *name;
    op_out_kind kind;
    const void *data;       /* device */
    int64_t cols;           /* elements of a row */
    const int32_t *first;   /* [n + 1] rows of each item; NULL: row i is item i */
    const int32_t *defined; /* [rows] leading elements that are defined; NULL: all (device) */
} op_output;

typedef union op_args {
    gather_args gather;
    keep_rows_args keep_rows;
    rope_rows_args rope_rows;
    engram_gather_args engram_gather;
    engram_apply_args engram_apply;
    hc_args hc;
    tap_args tap;
    quantize_args quantize;
    linear_args linear;
    qkv_args qkv;
    compress_pool_args compress_pool;
    compress_store_args compress_store;
    index_scores_args index_scores;
    select_args select;
    attention_args attention;
    ring_commit_args ring_commit;
    route_args route;
    experts_args experts;
    confidence_args confidence;
    sample_args sample;
    logprobs_args logprobs;
} op_args;

struct op_inst {
    kernels *k;
    const op_case *c;
    int *item; /* [n] */
    int n;
    arena *host;
    arena *source;  /* of weights */
    op_inst *donor; /* weights are its */
    int turn;       /* op_next */
    int32_t *ids;   /* experts: [n][k] */
    void *buf[OP_MAX_BUFS];
    int n_bufs;
    weight *weight[OP_MAX_WEIGHTS];
    int n_weights;
    op_output output[OP_MAX_OUTPUTS];
    int n_outputs;
    op_args args;
    /* sequences */
    step s;        /* device */
    int32_t *row0; /* the same in host memory */
    int32_t *seq;
    int64_t *pos, *len; /* [n_rows], [n] */
    int32_t *table;     /* of every sequence */
    int32_t *last_row;  /* of groups */
    candidates filter;  /* host: of random_filter */
    kv_layout layout;
    step_groups groups;
    int32_t *group_first; /* [n + 1] */
    uint8_t *state;       /* [n] states of state_bytes each: fixed, then blocks */
    size_t state_bytes;
    int64_t max_len; /* tokens that a state has room for */
};

/* Counter-based data: a stream of numbers per (case, field, item). */
typedef struct op_rng {
    uint64_t key, n;
} op_rng;
op_rng op_rng_of(const op_case *c, const char *field, int item);
uint32_t op_u32(op_rng *r);
int op_below(op_rng *r, int n);
float op_normal(op_rng *r);

void *op_host(op_inst *o, size_t count, size_t size);
void *op_source(op_inst *o, size_t count, size_t size); /* until op_drop_sources */
/* Zeroed device memory; and with a copy of host data. */
void *op_dev(op_inst *o, size_t bytes);
void *op_dev_copy(op_inst *o, const void *host, size_t bytes);
/* n rows of random activations of `cols` columns, times scale; row r from number `item[r]`. */
float *op_host_rows(op_inst *o, const char *field, const int *item, int64_t n, int64_t cols,
                    float scale);
void *op_dev_act(op_inst *o, const float *host, int64_t n);
/* The same as q8 rows, by the back end's own quantize. */
void *op_dev_q8(op_inst *o, const float *host, int64_t n, int64_t cols);

/* The donor's next weight, or NULL when there is no donor. */
weight *op_borrowed(op_inst *o);
weight *op_take_weight(op_inst *o, weight *w);
/* Random weights of a kind. */
weight *op_weight(op_inst *o, const char *field, weight_kind kind, int64_t rows, int64_t cols,
                  bool two_parts);
weight_part op_fp8_part(op_inst *o, const char *field, int64_t rows, int64_t cols);
fp4_part op_fp4_part(op_inst *o, const char *field, int e, int64_t rows, int64_t cols);

/* cos and sin of random positions: [n][rope] */
float *op_cs(op_inst *o, const int *item, int64_t n, int rope);

void op_add_output(op_inst *o, op_output out);

/* Fill o->args and outputs. */
void op_build_rows(op_inst *o);
void op_build_sequences(op_inst *o);
float *op_fetch_state(op_inst *o, int64_t *width);
