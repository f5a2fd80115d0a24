/* One table of cases for the operations, and the data behind it: it drives the tests (every back
 * end against ref, batch invariance) and the benchmark.
 *
 * A case names an operation, its sizes and a seed. It has `items`: token rows, or sequences where
 * the operation works on a step. The data of an item depend on the seed and the item's number only,
 * so an instance may hold any selection of the items in any order, on any back end:
 *
 *   kernels_open(&k, ...); lim = op_limits(cases, n); k->ops->reserve(k, &lim, st);
 *   o = op_new(k, c, NULL, c->items);      all items; or a list of them
 *   op_run(o);                             may be repeated for timing
 *   y = op_fetch(o, 0, &width);            [items][width] f32, free() it
 *   op_free(o);
 *
 * Everything is fetched as f32: activations and integers as they are, q8 rows and rows of state
 * decoded, which is exact. Places that an operation leaves undefined read as 0.
 * Test code: running out of memory ends the program. Thread: owner of k. */
#pragma once

#include "kernels/kernels.h"

typedef enum op_kind {
    OP_GATHER,
    OP_ROPE_ROWS,
    OP_KEEP_ROWS,
    OP_ENGRAM_GATHER,
    OP_ENGRAM_APPLY,
    OP_HC,
    OP_TAP,
    OP_QUANTIZE,
    OP_LINEAR,
    OP_QKV,
    OP_COMPRESS_POOL,
    OP_COMPRESS_STORE,
    OP_INDEX_SCORES,
    OP_SELECT,
    OP_ATTENTION,
    OP_RING_COMMIT,
    OP_ROUTE,
    OP_EXPERTS,
    OP_CONFIDENCE,
    OP_SAMPLE,
    OP_LOGPROBS,
    OP_COUNT
} op_kind;

enum {
    OP_EXTREMES = 1,  /* items with zeros, large, small and spiky values */
    OP_BIG = 2,       /* real size: for the benchmark and the slow test */
    OP_HC_EXPAND = 4, /* hc: which parts */
    OP_HC_MIX = 8,
    OP_HC_COLLAPSE = 16,
    OP_HC_ROWS = 32,
    OP_X_IS_ACT = 64, /* linear */
    OP_ACCUMULATE = 128,
    OP_TWO_PARTS = 256,
    OP_FILTER = 512,  /* index_scores, select: candidates of an earlier layer */
    OP_SOURCE = 1024, /* index_scores, select: candidate source */
    OP_DRAFT = 2048,  /* attention */
    OP_NO_COMPRESSED = 4096,
    OP_BENCH = 8192,   /* too large for a test: for the benchmark alone */
    OP_SPREAD = 16384, /* index_scores: scales of a query's or key's groups up to 2^12 apart */
    OP_AT_ONCE = 32768 /* ring_commit: by the qkv that makes the rows; compress_pool: few rows;
                          experts: with route */
};

typedef struct op_case {
    op_kind op;
    int items;
    const char *name; /* unique within the operation */
    uint64_t seed;
    int flags;
    int cols, out, groups; /* linear: inputs of a group, all outputs; others: see op_rows.c */
    weight_kind kind;
    linear_out to;
    int hc, dim, heads, rope, k, n_experts, inter;
    int ratio, len, chunk; /* sequences: entries per token, tokens before, largest chunk */
    int blocks, block;     /* candidates */
    const sample_row *row; /* sample: how all rows sample; NULL: rows differ */
    const char *bench;     /* name in the benchmark; NULL: not measured */
    int copies; /* benchmark: sets of weights that take turns, more than the caches hold; 0 = 1 */
    /* Allowed difference from ref. At most the share `flips` of an output's elements may differ,
     * each by one step of its format (bf16, E4M3, E2M1; `rel` for f32) plus abs times the rms of
     * its item. Integers and outputs of cases with flips 0 are equal. */
    double rel, abs, flips;
    /* Instead, on a device whose rounding inside is another: the rms of the difference over that of
     * the item, and of a single element 16 times as much. 0: as above. */
    double device_rms;
} op_case;

extern const op_case op_cases[];
extern const int n_op_cases;

const char *op_name(op_kind op);

/* Items are sequences. */
bool op_is_sequence(op_kind op);

/* Limits that cover all the cases. */
kernel_limits op_limits(const op_case *c, int n);

typedef struct op_inst op_inst;

/* Weights and inputs of the items `item` [n] of a case on back end k (NULL: items 0 .. n-1). */
op_inst *op_new(kernels *k, const op_case *c, const int *item, int n);

/* All items of a case, with the weights of `donor` (NULL, or an instance on the same k that
 * op_same_weights, and that outlives this one). */
op_inst *op_new_sharing(kernels *k, const op_case *c, op_inst *donor);
bool op_same_weights(const op_case *donor, const op_case *c);
void op_free(op_inst *o);

/* Free what only building needed. Not on a back end that keeps reading the source of weights (ref).
 */
void op_drop_sources(op_inst *o);

/* For the benchmark: the next set of weights, or of experts, takes its turn. */
void op_next(op_inst *o);

/* Token rows in the instance: items, or the rows of its sequences. */
int op_n_rows(const op_inst *o);

/* Run the operation and wait for it. Operations that change their inputs in place (hc, tap,
 * engram_apply, linear with accumulate, ring_commit) go on from what the last run left. */
void op_run(op_inst *o);

/* What an output holds; its f32 form is exact. */
typedef enum op_out_kind {
    OUT_ACT,
    OUT_F32,
    OUT_Q8,
    OUT_I32,
    OUT_RING_ROWS, /* rows in ring format */
    OUT_STATE      /* latents and keys, ring rows and open rows of the item's sequence */
} op_out_kind;

int op_n_outputs(const op_inst *o);
op_out_kind op_output_kind(const op_inst *o, int output);
const char *op_output_name(const op_inst *o, int output);

/* Output as f32 [items][*width], rows of an item one after the other, shorter items padded with 0.
 * malloc'ed. */
float *op_fetch(op_inst *o, int output, int64_t *width);
