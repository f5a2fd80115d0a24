/* The body of POST /v1/completions. Thread: the loop of the connection. */
#pragma once

#include "base/arena.h"
#include "recipe/stop.h"
#include "server/server_internal.h"

#define COMPLETION_MAX_PROMPTS  128
#define COMPLETION_MAX_CHOICES  64
#define COMPLETION_MAX_STOP_IDS 31

typedef struct completion_prompt {
    tok_ids ids;
    const char *text; /* of one that came as text; NULL = ids */
    size_t n_text;
} completion_prompt;

/* What a body says. Texts lie in `mem`. */
typedef struct completion_body {
    arena *mem;
    completion_prompt prompt[COMPLETION_MAX_PROMPTS];
    int n_prompts;
    char model[128];
    di_request_params p; /* but for prompt and callback; borrows from this body */
    int logprobs;        /* alternatives; -1 = none */
    bool stream, include_usage, echo, return_ids;
    bool too_long; /* a prompt is longer than the context */
    const char *stop[STOP_MAX];
    int32_t stop_ids[COMPLETION_MAX_STOP_IDS];
    di_logit_bias *bias;
} completion_body;

/* Fill *b (zeroed). completion_body_fini follows in any case. Errors: FORMAT (not JSON), INVALID
 * (names the field, value and range), NOMEM. */
di_code completion_read(completion_body *b, const server *s, const char *text, size_t n,
                        di_status *st);
void completion_body_fini(completion_body *b);
