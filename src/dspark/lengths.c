/* Verification lengths from survival and cost. */
#include "dspark/lengths.h"

void draft_offer_init(draft_offer *o, const calibration *c, const float *logit, int n)
{
    float survival = 1;

    o->n = n < DSPARK_MAX_DRAFT ? n : DSPARK_MAX_DRAFT;
    for (int j = 0; j < o->n; j++) {
        survival *= calibration_chance(c, j, logit[j]);
        o->survival[j] = survival;
    }
}

/* Heap of the sequences' next drafts, best survival on top; ties: lower sequence. */
typedef struct heap {
    const draft_offer *offer;
    const int *length; /* the next draft of sequence i is length[i] */
    int *seq, n;
} heap;

static float next_survival(const heap *h, int i)
{
    return h->offer[h->seq[i]].survival[h->length[h->seq[i]]];
}

static int better(const heap *h, int a, int b)
{
    float x = next_survival(h, a), y = next_survival(h, b);

    return x > y || (x == y && h->seq[a] < h->seq[b]);
}

static void sift_down(heap *h, int at)
{
    for (;;) {
        int best = at, t;

        for (int child = 2 * at + 1; child <= 2 * at + 2 && child < h->n; child++)
            if (better(h, child, best))
                best = child;
        if (best == at)
            return;
        t = h->seq[at];
        h->seq[at] = h->seq[best];
        h->seq[best] = t;
        at = best;
    }
}

int draft_lengths(const cost_table *t, const draft_offer *offer, int n_seqs, int other_rows,
                  int max_rows, double overhead_us, int *length, int *scratch)
{
    int *order = scratch + n_seqs, n_taken = 0, n_best = 0;
    heap h = {.offer = offer, .length = length, .seq = scratch};
    double expected = n_seqs, best;

    for (int i = 0; i < n_seqs; i++) {
        length[i] = 0;
        if (offer[i].n > 0)
            h.seq[h.n++] = i;
    }
    for (int i = h.n / 2 - 1; i >= 0; i--)
        sift_down(&h, i);
    best = expected / (cost_step(t, n_seqs + other_rows) + overhead_us);
    while (h.n > 0 && n_seqs + other_rows + n_taken < max_rows) {
        int i = h.seq[0];
        double rate;

        expected += next_survival(&h, 0);
        order[n_taken++] = i;
        rate = expected / (cost_step(t, n_seqs + other_rows + n_taken) + overhead_us);
        if (rate > best) {
            best = rate;
            n_best = n_taken;
        }
        if (++length[i] == offer[i].n)
            h.seq[0] = h.seq[--h.n];
        sift_down(&h, 0);
    }
    for (int k = n_best; k < n_taken; k++) /* give back what lies behind the best prefix */
        length[order[k]]--;
    return n_best;
}
