/* Plain generation: sequences that come and go share the steps of one model.
 *
 * Every step takes one row of each sequence that decodes and fills up with prompt rows. What a
 * sequence answers does not depend on its neighbours (design.md section 1), so the caller may
 * submit in any order and number. No speculation, no prefix cache: those are the engine's.
 *
 * Nothing is allocated in a step: a sequence's memory is taken when it is submitted.
 * Thread: main thread, which also gets the callbacks. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/kernels.h"
#include "kv/seq.h"
#include "model/model.h"
#include "sampler/sampler.h"

#define GEN_MAX_TOP    20
#define GEN_LOGIT_ROWS 64 /* logit rows of a step that the model must have room for, at least */

typedef struct generator generator;

/* One token with its log-probability, which is of the unmodified distribution. */
typedef struct gen_token {
    int32_t id;
    bool stop; /* one of the stop ids: the last token, not part of the text */
    float logprob;
    int32_t rank;          /* 0 = the most likely */
    int n_top;             /* entries below; most likely first */
    const int32_t *top_id; /* borrowed for the call */
    const float *top_logprob;
} gen_token;

typedef enum gen_finish {
    GEN_STOP,      /* stop id, or on_token said so */
    GEN_LENGTH,    /* max_tokens */
    GEN_CANCELLED, /* generator_cancel */
    GEN_FAILED     /* the step failed; *st says why */
} gen_finish;

/* State of a finished sequence that a longer prompt may continue (chat turns). */
typedef struct gen_kept {
    kv_seq *seq; /* NULL = nothing kept */
    int32_t *tokens;
    int64_t len;
} gen_kept;

typedef struct gen_request {
    const int32_t *prompt; /* copied; ids inside the vocabulary */
    int64_t n_prompt;      /* 1 .. context */
    int64_t max_tokens;    /* 0 .. context - n_prompt, or 1 when n_prompt = context */
    sampling_params sampling;
    const int32_t *stop_id; /* copied */
    int n_stop_ids;
    bool logprobs, prompt_logprobs;
    int n_top;      /* 0 .. GEN_MAX_TOP */
    gen_kept *keep; /* NULL, or where the state comes from and goes to */
    /* A prompt token from the second on, in order, when prompt_logprobs; may be NULL otherwise. */
    void (*on_prompt)(void *arg, const gen_token *t);
    bool (*on_token)(void *arg, const gen_token *t);                 /* false: stop here */
    void (*on_done)(void *arg, gen_finish why, const di_status *st); /* exactly once, last */
    void *arg;
} gen_request;

/* A generator for at most max_seqs sequences of at most `context` tokens. Model and kernels are
 * borrowed; the model must have been opened for max_seqs sequences and max(GEN_LOGIT_ROWS,
 * max_seqs) logit rows. `rows`: of a step, as the model was opened for. Errors: NOMEM. */
di_code generator_new(generator **out, model *m, kernels *k, int max_seqs, int rows,
                      int64_t context, di_status *st);
void generator_free(generator *g); /* accepts NULL; nothing may be running or kept */

/* Start a request. Errors: INVALID (parameters; ids and lengths are checked too), BUSY when
 * max_seqs are running, NOMEM; then on_done is not called. */
di_code generator_submit(generator *g, const gen_request *r, di_status *st);

int generator_n_running(const generator *g);

/* One step for everything that runs. After a failure every request has got its on_done(FAILED). */
di_code generator_step(generator *g, di_status *st);

/* End what runs; each gets on_done(CANCELLED). */
void generator_cancel(generator *g);

/* Prompt tokens that were taken over from kept states instead of computed, so far. */
int64_t generator_n_reused(const generator *g);

void gen_kept_drop(gen_kept *k);
