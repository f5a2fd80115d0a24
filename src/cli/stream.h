/* One answer on the terminal while it is made. Thread: main thread. */
#pragma once

#include "cli/answer.h"
#include "cli/generator.h"
#include "cli/request.h"

typedef struct stream_result {
    gen_finish why;
    int64_t n_prompt, n_tokens;
    double seconds, first_seconds; /* in all; until the first token */
    int64_t n_reused;              /* prompt tokens whose state was kept */
} stream_result;

/* Run one request alone and print its text to standard output as it comes, the reasoning dimmed on
 * a terminal. `interrupted` is asked between steps and may be NULL.
 * *content (may be NULL) gets the text behind the reasoning. Errors: those of the generator; NOMEM.
 */
di_code stream_run(generator *g, const request *req, const tokenizer *tok,
                   bool (*interrupted)(void), str *content, stream_result *res, di_status *st);
