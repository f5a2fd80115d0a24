/* One line of a batch file -> token ids and parameters.
 *
 *   {"prompt": "text"}            the text is continued as it stands, behind a begin-of-sentence
 * token
 *   {"prompt_token_ids": [...]}   the ids as they are
 *   {"messages": [...]}           a conversation; the answer is the next message
 *   {"custom_id", "method", "url", "body"}   a line of the OpenAI batch format with one of the
 * above in its body (/v1/completions or /v1/chat/completions) The other fields have the names of
 * the OpenAI and vLLM interfaces (docs/operations.md lists them); unknown ones are ignored. Thread:
 * the owner's only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "cli/constraint.h"
#include "recipe/prompt.h"
#include "recipe/stop.h"
#include "sampler/sampler.h"
#include "tokenizer/tokenizer.h"

#define REQUEST_MAX_STOP_IDS 31

/* What holds for a line that does not say, and what lines are checked against. */
typedef struct request_defaults {
    const tokenizer *tok;
    int vocab, bos, eos;
    int64_t context;
    sampling_params sampling; /* bias unused */
    bool has_seed;
    int64_t max_tokens; /* -1 = as long as the context allows, within the recipe's bounds */
    int logprobs;       /* -1 = none, else number of alternatives */
    bool thinking, ignore_eos;
    recipe_effort effort;
    const char *const *stop; /* borrowed */
    size_t n_stop;
    grammar *grammar; /* compiles constraints; NULL = they are refused */
    constraint constraint;
} request_defaults;

typedef enum request_kind { REQUEST_TEXT, REQUEST_CHAT } request_kind;

typedef struct request {
    arena *mem; /* holds what the pointers below show */
    str custom_id;
    bool has_custom_id;
    bool batch;        /* OpenAI batch line: the answer has that shape too */
    request_kind kind; /* TEXT: completion; CHAT: message */
    tok_ids ids;
    bool starts_in_reasoning;
    sampling_params sampling;
    int64_t max_tokens;
    int logprobs; /* -1 = none */
    bool echo;
    const char *stop[STOP_MAX];
    size_t stop_len[STOP_MAX], n_stop;
    int32_t stop_id[REQUEST_MAX_STOP_IDS + 1];
    int n_stop_ids;
    char model[128];    /* as the body names it */
    grammar_prog *prog; /* constraint on the answer, or NULL */
} request;

void request_init(request *r);
void request_fini(request *r);

/* Read one line. `name` is for messages ("line 3"). On failure custom_id, batch and kind are what
 * could be read. Errors: FORMAT (not JSON, not UTF-8), INVALID (names the field, value and limit),
 * UNSUPPORTED, NOMEM. */
di_code request_parse(request *r, const request_defaults *d, const char *line, size_t n,
                      const char *name, di_status *st);

/* The request of a text given on the command line: a user message, or (`raw`) a text to continue.
 */
di_code request_from_text(request *r, const request_defaults *d, const char *text, bool raw,
                          di_status *st);

/* The request of a conversation. Errors: as request_parse. */
di_code request_from_chat(request *r, const request_defaults *d, const recipe_chat *chat,
                          di_status *st);

/* The state of the request's constraint in front of its answer, for the engine; *out = NULL when it
 * has none. Errors: NOMEM. */
di_code request_mask(const request *r, grammar_state **out, di_status *st);

/* max_tokens of a prompt (spec recipe.md 4): asked < 0 = not asked. `strict`: more than fits is an
 * error, not cut. Errors: INVALID when the prompt is longer than the context. */
di_code request_max_tokens(int64_t asked, bool strict, int64_t n_prompt, int64_t context,
                           const recipe_chat *chat, int64_t *out, di_status *st);
