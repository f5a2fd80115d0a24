/* How many drafts of each sequence to verify: the lengths that give the most expected tokens per
 * second (spec 7.4; DeepInfer's rule with one decision instead of two).
 *
 * A draft is accepted exactly when it equals the token that the target samples itself, so lengths
 * change speed and never text: the newest confidences of all sequences may be used.
 * Thread: any; no state. */
#pragma once

#include "dspark/calibration.h"
#include "dspark/cost.h"

typedef struct draft_offer {
    int n;                            /* drafts at hand, at most DSPARK_MAX_DRAFT */
    float survival[DSPARK_MAX_DRAFT]; /* chance that drafts 0..j are all accepted; not rising */
} draft_offer;

/* Product of chances: fills survival from the raw confidences of n drafts. */
void draft_offer_init(draft_offer *o, const calibration *c, const float *logit, int n);

/* Choose length[i] <= offer[i].n for n_seqs sequences in a step that has `other_rows` rows besides
 * them (prompt chunks); at most max_rows rows in all. overhead_us: what the step costs besides its
 * rows (draft round, host). Walks all drafts in falling order of survival and keeps the prefix with
 * the best (n_seqs + expected accepted) / time. scratch: [n_seqs * (DSPARK_MAX_DRAFT + 1)] ints.
 * Returns the number of drafts chosen. */
int draft_lengths(const cost_table *t, const draft_offer *offer, int n_seqs, int other_rows,
                  int max_rows, double overhead_us, int *length, int *scratch);
