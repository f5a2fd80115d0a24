/* Requests of one program to one engine, with callbacks on the thread that waits.
 *
 * A thin layer over the public API (deepinfer.h): tokens one by one instead of events, and a caller
 * that may stop an answer by its text (stop strings are found in the content only, which the engine
 * cannot tell from reasoning). Thread: main thread, which also gets the callbacks. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "deepinfer/deepinfer.h"
#include "sampler/sampler.h"

#define GEN_MAX_TOP 20

typedef struct generator generator;

/* One token with its log-probability, which is of the unmodified distribution. */
typedef struct gen_token {
    int32_t id;
    bool stop; /* one of the stop ids: the last token, not part of the text */
    float logprob;
    int32_t rank;                /* 0 = the most likely */
    int n_top;                   /* entries below; most likely first */
    const di_token_logprob *top; /* borrowed for the call */
} gen_token;

typedef enum gen_finish {
    GEN_STOP,      /* stop id, or on_token said so */
    GEN_LENGTH,    /* max_tokens */
    GEN_CANCELLED, /* generator_cancel */
    GEN_FAILED     /* *st says why */
} gen_finish;

typedef struct gen_request {
    const int32_t *prompt; /* copied; ids inside the vocabulary */
    int64_t n_prompt;      /* 1 .. context */
    int64_t max_tokens;    /* 0 .. context - n_prompt, or 1 when n_prompt = context */
    sampling_params sampling;
    const int32_t *stop_id; /* copied */
    int n_stop_ids;
    bool logprobs, prompt_logprobs;
    int n_top;      /* 0 .. GEN_MAX_TOP */
    void *mask_ctx; /* a grammar_state, taken over when the call succeeds; NULL = no constraint */
    /* A prompt token from the second on, in order, when prompt_logprobs; may be NULL otherwise. */
    void (*on_prompt)(void *arg, const gen_token *t);
    bool (*on_token)(void *arg, const gen_token *t);                 /* false: stop here */
    void (*on_done)(void *arg, gen_finish why, const di_status *st); /* exactly once, last */
    void *arg;
} gen_request;

/* Sends requests to `e` (borrowed). Errors: NOMEM. */
di_code generator_new(generator **out, di_engine *e, di_status *st);
void generator_free(generator *g); /* accepts NULL; nothing may be running */

/* Start a request. Errors: as di_submit; then on_done is not called. */
di_code generator_submit(generator *g, const gen_request *r, di_status *st);

int generator_n_running(const generator *g);

/* Wait for an event, a tenth of a second at most, and hand it out. A request that fails gets its
 * on_done(FAILED); what ends a step for all (a device error) is returned too. */
di_code generator_step(generator *g, di_status *st);

/* End what runs; each gets on_done(CANCELLED) before this returns. */
void generator_cancel(generator *g);

/* Prompt tokens that were found in the cache instead of computed, so far. */
int64_t generator_n_reused(const generator *g);
