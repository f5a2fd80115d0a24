/* A finished request -> one line of JSON.
 *
 * Plain lines:  {"index", "custom_id", "text", "reasoning", "token_ids", "finish_reason", "usage",
 *               "seed", "logprobs", "prompt_logprobs"}; the optional ones only where they apply
 * Batch lines:  {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}
 *               with a body as /v1/completions or /v1/chat/completions answer, and token_ids and
 *               seed in addition
 * Thread: the owner's only. */
#pragma once

#include "cli/answer.h"
#include "cli/generator.h"
#include "cli/request.h"

/* Log-probabilities of a run of tokens. */
typedef struct logprob_list {
    int n_top;
    size_t n, cap;
    int32_t *id, *rank, *top_id; /* the last [n][n_top] */
    float *logprob, *top_logprob;
} logprob_list;

/* Append one token; t->n_top must be list->n_top. Errors: NOMEM. */
di_code logprob_push(logprob_list *l, const gen_token *t, di_status *st);
void logprob_fini(logprob_list *l);

typedef struct result {
    const request *req;
    const answer *ans;
    const tokenizer *tok;
    int64_t index;                                  /* of the line in its file, from 0 */
    const tok_ids *ids;                             /* of the answer, the stop token included */
    const logprob_list *logprobs, *prompt_logprobs; /* NULL = not asked for */
    gen_finish why;
    int64_t created;   /* seconds since 1970 */
    const char *model; /* for bodies that name none */
} result;

/* Append the line, newline included. Errors: NOMEM. */
di_code result_write(const result *r, str *out, di_status *st);

/* The line of a request that failed with *why. Errors: NOMEM. */
di_code result_write_error(const request *req, int64_t index, const di_status *why, str *out,
                           di_status *st);
