/* Sampling and the draft's confidence, on rows of logits (design.md section 1).
 *
 * The token of a row is the arg-max over the kept tokens of  l / temperature + gumbel, where the
 * noise is a pure function of (seed, choice, position, token id): a row can be sampled anywhere,
 * any time, in any batch, with the same result. Order: adjustments (penalties, bias), mask,
 * temperature, top-k, top-p over what top-k left, min-p, noise. Ties go to the lower id. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct weight;

/* Change of one token's logit before anything else: l = (l > 0 ? l / rep : l * rep) + add.
 * One entry per token id that was seen or has a bias, ascending ids. */
typedef struct logit_adjust {
    int32_t id;
    float rep; /* repetition penalty, 1 = none */
    float
        add; /* bias - presence - frequency * count; -inf = never, unless the logit is no number */
} logit_adjust;

typedef struct sample_row {
    float
        temperature; /* <= 0: greedy (lowest id on ties), the rest is ignored but mask and adjust */
    float top_p;     /* (0, 1]; keep the shortest prefix of falling probability that reaches it */
    float min_p;     /* [0, 1]; keep p >= min_p * max p */
    int32_t top_k;   /* 0 = all; ties at the cut: lower ids */
    uint64_t seed;
    uint32_t choice;  /* index of the choice (n > 1) */
    int64_t position; /* absolute position of the token that is sampled */
    const logit_adjust *adjust;
    int32_t n_adjust;
    const uint32_t *mask; /* bit t of word t/32: token t is allowed; NULL = all */
} sample_row;

/* Gumbel noise of one token: Philox 4x32-10 with key = seed and counter = (token id, choice,
 * position low, position high); u = (word + 0.5) * 2^-32 of output word 0; -log(-log(u)) by our own
 * polynomial, the same source for every back end (kernels/noise.h). */
typedef struct sample_args {
    int n, vocab;
    const float *logits;   /* [n][vocab] f32, not changed */
    const sample_row *row; /* [n], host memory */
    int64_t ahead;         /* added to their positions */
    bool staged;           /* `row` is what the last sample_stage was given */
    int32_t *token;        /* [n]; -1 when the mask allows nothing */
} sample_args;

/* Log-probabilities of the unmodified distribution: of the given token, its rank (0 = best; ties to
 * the lower id), and of the n_top best tokens in falling order (ties: lower id). */
typedef struct logprobs_args {
    int n, vocab, n_top;
    const float *logits;  /* [n][vocab] */
    const int32_t *token; /* [n] */
    float *logprob;       /* [n] */
    int32_t *rank;        /* [n] */
    int32_t *top_id;      /* [n][n_top] */
    float *top_logprob;   /* [n][n_top] */
} logprobs_args;

/* Raw confidence logit of a draft: w . [h ; e] in f32 (spec 7.2), w WEIGHT_BF16 [1, dim + rank]. */
typedef struct confidence_args {
    int n, dim, rank;
    const void *h; /* [n][dim] act, collapsed, before the norm */
    const void *e; /* [n][rank] act, Markov embedding of the token before */
    const struct weight *w;
    float *out; /* [n] */
} confidence_args;
