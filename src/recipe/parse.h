/* Output of the model -> reasoning, content and tool calls, as it comes (spec recipe.md 3.1, 3.2).
 *
 * Tokens (or pieces of text) go in, events come out through a callback. A piece may end anywhere:
 * what could still become part of a marker or a stop string is held until that is decided, and no
 * cut changes the concatenated result. Given tokens in mode CLIENT, only the control tokens
 * themselves are control markers: text that merely spells one stays text, and calls that the
 * request does not allow are not shown. Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "recipe/marked.h"
#include "recipe/request.h"
#include "tokenizer/tokenizer.h"

typedef struct recipe_parser recipe_parser;

/* Log probability of a token and of its alternatives. */
typedef struct recipe_alternative {
    int32_t id;
    float logprob;
} recipe_alternative;

typedef struct recipe_logprob {
    int32_t id;
    float logprob;
    const recipe_alternative *top;
    int n_top;
} recipe_logprob;

typedef enum recipe_event_kind {
    RECIPE_EVENT_REASONING,
    RECIPE_EVENT_CONTENT,
    RECIPE_EVENT_CALL,    /* a call begins: text is its name */
    RECIPE_EVENT_ARGS,    /* more of the JSON text of its arguments */
    RECIPE_EVENT_CALL_END /* the call is complete; markup is what the model wrote */
} recipe_event_kind;

typedef struct recipe_event {
    recipe_event_kind kind;
    int call; /* CALL, ARGS, CALL_END: 0, 1, ... */
    const char *text;
    size_t n;
    const recipe_logprob *logprob; /* REASONING, CONTENT: of the tokens that this shows */
    size_t n_logprob;
    const recipe_marked *markup; /* CALL_END: for recipe_replay_put */
} recipe_event;

/* Everything is borrowed for the call. */
typedef void (*recipe_event_fn)(void *ctx, const recipe_event *e);

/* A parser of one answer. The stop strings of `how` are borrowed for its life; tok may be NULL when
 * only text is pushed. NULL when out of memory. */
recipe_parser *recipe_parser_new(const recipe_parsing *how, recipe_mode mode, const tokenizer *tok,
                                 recipe_event_fn on_event, void *ctx);
void recipe_parser_free(recipe_parser *p);

/* Take text that stands for n_tokens tokens, or tokens (logprob: n entries, or NULL). False when a
 * stop string is complete, or was before: the answer has ended and the engine must be told. The
 * end of sentence must not be passed on. */
bool recipe_parser_text(recipe_parser *p, const char *text, size_t n, int64_t n_tokens);
bool recipe_parser_tokens(recipe_parser *p, const int32_t *ids, size_t n,
                          const recipe_logprob *logprob);

/* The end of the answer: gives out what is held. */
void recipe_parser_finish(recipe_parser *p);

/* Index of the stop string that ended the answer, -1 = none. */
int recipe_parser_stop(const recipe_parser *p);
int recipe_parser_n_calls(const recipe_parser *p);
int64_t recipe_parser_n_tokens(const recipe_parser *p);    /* completion tokens so far */
int64_t recipe_parser_n_reasoning(const recipe_parser *p); /* of which in the reasoning */
/* False after running out of memory: some of the answer is lost. */
bool recipe_parser_ok(const recipe_parser *p);
