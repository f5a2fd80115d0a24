/* The parts of a forward pass, one sublayer at a time.
 *
 * forward.c and draft.c are made of these; the golden harness runs them alone on recorded inputs.
 * Between step_begin (or draft_begin) and the end of a pass the model holds
 *   x    the stream [rows][hc][D]          pre   the weights of the next collapse [rows][hc]
 *   in   a sublayer's input [rows][D]      y     a sublayer's output [rows][D]
 * Thread: engine thread only. */
#pragma once

#include "model/model.h"

/* Start a pass over these rows: metadata, Engram rows, embeddings into x. Errors: as model_forward.
 */
di_code layer_begin(model *m, const seq_rows *seq, int n_seqs, di_status *st);
/* The same for a draft block of `block` rows behind each sequence (spec 7.2). */
di_code layer_begin_draft(model *m, const draft_rows *seq, int n_seqs, int block, di_status *st);

typedef enum hc_place { HC_ATTN, HC_FFN } hc_place;

/* Engram of the layer on x, expanding a pending y before it. */
void layer_engram(model *m, int layer);
/* Expand a pending y into x, mix for the sublayer, collapse and norm into `in`. */
void layer_enter(model *m, int layer, hc_place place);
/* Draft tap of the layer from x. */
void layer_tap(model *m, int layer);
/* in -> y. State of the sequences is written. The selection of the last index source is kept for
 * the layers behind it. A draft stage attends its ring and the block, and writes no state. Behind
 * the split of a step that is cut only the kept rows are left, perhaps none. */
void layer_attention(model *m, int layer);
/* in -> y. */
void layer_ffn(model *m, int layer);
/* Expand a pending y into x. */
void layer_leave(model *m);
/* Collapse, norm and logits of the rows that asked for logits. */
void layer_head(model *m);
/* Taps of the step's last rows -> rings of the draft stages (spec 7.1). */
void draft_feed(model *m);
/* Head and Markov loop behind the last stage. Outputs as model_draft; row: see there. */
di_code draft_propose(model *m, const draft_rows *seq, int n_seqs, int block, int32_t *draft,
                      float *confidence, di_status *st);

/* Put values in the place of what the pass has (tests): f32, host memory, all rows of the step. */
void layer_set_stream(model *m, const float *x);
void layer_set_pre(model *m, const float *pre);
void layer_set_input(model *m, const float *in);
void layer_set_output(model *m, const float *y);
/* Read the stream or the input. */
void layer_get_stream(model *m, float *x);
void layer_get_input(model *m, float *in);
