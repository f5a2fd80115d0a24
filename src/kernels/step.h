/* A step: a flat list of token rows, ragged over sequences (design.md section 3).
 *
 * Prompt chunks, decode rows and draft rows are the same thing. Rows of one sequence are contiguous
 * and ascend in position, starting at its view.len (draft blocks: see attention.h). */
#pragma once

#include <stdint.h>

#include "tensor/kv_view.h"

typedef struct step {
    int n_rows, n_seqs;
    const int32_t *row0;  /* [n_seqs + 1]: rows row0[i] .. row0[i+1]-1 belong to sequence i */
    const int32_t *seq;   /* [n_rows] */
    const int64_t *pos;   /* [n_rows] absolute positions */
    const uint8_t *image; /* [n_rows] 1 inside an image span; NULL = none */
    const kv_view *view;  /* [n_seqs] */
} step;

/* The compression groups that a step completes, for one ratio. Group g of a sequence covers
 * positions g*ratio .. g*ratio+ratio-1 and is completed by the row of its last token. */
#define STEP_NO_GROUP (-1)
typedef struct step_groups {
    int n, ratio;
    const int32_t *last_row; /* [n] STEP_NO_GROUP: none, what belongs to it is left as it is;
                              * else the completing row; earlier tokens of the group are the rows
                              * before it, or in the open ring when they lie before this step */
    const int64_t *entry;    /* [n] index of the compressed entry */
} step_groups;

/* Copy the block tables of the sequences, which the host writes, to where operations read them
 * fast, and let the views point there: sequence i's first blocks, as many as its rows reach, become
 * to[i * stride ..]. Only on a device. */
typedef struct tables_args {
    int n_seqs;
    const int32_t *row0; /* [n_seqs + 1] */
    kv_view *view;       /* [n_seqs] */
    int32_t *to;
    int64_t stride; /* blocks up to the largest position */
} tables_args;

/* cos and sin of pos * freq for every row: cs [n][rope/2][2] f32.
 * The angle is an fp32 product, cos and sin are those of that fp32 number (spec 4.2). */
typedef struct rope_rows_args {
    int n, half;        /* half = rope dims / 2 */
    const int64_t *pos; /* [n] */
    const float *freq;  /* [half] */
    float *cs;
} rope_rows_args;

/* Keep some rows of a buffer, packed at its start: row i becomes what row rows[i] was. rows ascends
 * strictly, so that i <= rows[i]. */
typedef struct keep_rows_args {
    int n;
    size_t row_bytes;
    const int32_t *rows; /* [n] */
    void *buf;
} keep_rows_args;

/* Rows of a bf16 table as activations, each repeated `copies` times: out [n][copies][cols] act.
 * `vectors` (or NULL) has per row a bf16 vector [cols] to use instead of the table's, or NULL: the
 * embedding source of image rows. */
struct weight;
typedef struct gather_args {
    const struct weight *table; /* WEIGHT_BF16_TABLE [rows, cols] */
    int n, copies;
    const int32_t *ids; /* [n], inside the table */
    const uint16_t *const *vectors;
    void *out;
} gather_args;
