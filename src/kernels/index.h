/* Indexer: which compressed entries a query attends (spec 4.7).
 *
 * Scores are tiled over rows by the caller: a call covers rows [row0, row0 + n) of the step and
 * scores has n rows. visible = (pos+1)/ratio entries of the row's sequence can be seen.
 *
 * Rows that need no scores: a row whose eligible entries all fit (see index_eligible) is skipped
 * by index_scores, and select takes all eligible ones. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/device.h"

#include "kernels/step.h"

struct weight;

/* Candidate blocks of a row, made by the candidate source and read by the layers behind it:
 * ids ascending; count -1 = every visible entry is eligible. */
typedef struct candidates {
    int block;      /* entries per block (8) */
    int max_blocks; /* row length of ids */
    int32_t *ids;   /* [n_rows of the step][max_blocks] */
    int32_t *count; /* [n_rows of the step] */
} candidates;

/* Number of eligible entries of a row: all visible ones, or those inside its candidate blocks. */
DI_FN int64_t index_eligible(int64_t visible, const candidates *filter, int row)
{
    int64_t n, last;

    if (!filter || filter->count[row] < 0)
        return visible;
    n = (int64_t)filter->count[row] * filter->block;
    if (filter->count[row] > 0) { /* the newest block may be ragged; it is always kept */
        last = filter->ids[(int64_t)row * filter->max_blocks + filter->count[row] - 1];
        if ((last + 1) * filter->block > visible)
            n -= (last + 1) * filter->block - visible;
    }
    return n;
}

/* score[i][e] = sum_h relu(q_h . k_e) * w_h in f32, with q = Q4i(rope(iq)) and
 * w = bf(bf(iw) * (index_dim * heads)^-0.5). e counts the eligible entries of row row0+i in
 * ascending order (with a filter: the compact list of its candidate entries). */
typedef struct index_scores_args {
    const step *s;
    const kv_layout *layout;
    int owner, heads, rope;
    int row0, n;
    int topk;                 /* rows with eligible <= topk are skipped ... */
    int source_blocks, block; /* ... unless a candidate source needs block scores: > 0 means score
                               * whenever ceil(visible/block) > source_blocks too */
    const candidates *filter; /* NULL = all visible entries */
    const void *iq;           /* [rows of the step][heads][index_dim] act, before rope */
    const void *iw;           /* [rows of the step][heads] act */
    const float *cs;          /* [rows of the step][rope/2][2] */
    float *scores;            /* [n][stride] */
    int64_t stride;
} index_scores_args;

/* The min(topk, eligible) best entries of each row, ascending; ties go to the lower entry.
 * A candidate source (out != NULL) also keeps the best out->max_blocks blocks: a block scores its
 * best visible entry, the block of the newest visible entry is always in, ties to the lower block;
 * when all blocks fit, count = -1. Its own selection is over all visible entries. */
typedef struct select_args {
    const step *s;
    const kv_layout *layout;
    int owner;
    int row0, n, topk;
    const candidates *filter;
    candidates *out;
    const float *scores;
    int64_t stride;
    int32_t *sel;   /* [rows of the step][topk]; this call writes rows row0.. */
    int32_t *n_sel; /* [rows of the step] */
} select_args;
