/* The conversation part of a Chat Completions body: messages, thinking and effort -> recipe_chat.
 *
 * Source: spec recipe.md 2.1 and 2.2; its wording of errors is kept where it has one. Roles system,
 * developer (as system), user, assistant and latest_reminder; content is a string or a list of text
 * parts. Tools and images are refused with UNSUPPORTED.
 * Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/json_read.h"
#include "base/status.h"
#include "recipe/prompt.h"

/* What the body said, field by field, until recipe_body_chat joins it. */
typedef struct recipe_body {
    arena *mem; /* borrowed; holds the texts */
    recipe_message *message;
    size_t n, cap;
    bool prefix; /* of the last message */
    enum { RECIPE_THINKING_UNSET, RECIPE_THINKING_ON, RECIPE_THINKING_OFF } thinking;
    bool has_effort, effort_on;
    recipe_effort effort;
} recipe_body;

/* Start an empty body whose texts go into `mem`. */
void recipe_body_init(recipe_body *b, arena *mem);

/* Read the value of "messages". Errors: INVALID (names messages[I] and the field), UNSUPPORTED,
 * FORMAT (not JSON), NOMEM. */
di_code recipe_body_messages(recipe_body *b, json_read *r, di_status *st);

/* Append one message. The texts are copied. Errors: NOMEM. */
di_code recipe_body_add(recipe_body *b, recipe_role role, const char *content, size_t n,
                        di_status *st);

/* Read the value of "thinking": {"type": "enabled" | "adaptive" | "disabled"}. */
di_code recipe_body_thinking(recipe_body *b, json_read *r, di_status *st);

/* Read the value of "reasoning_effort". */
di_code recipe_body_effort(recipe_body *b, json_read *r, di_status *st);

/* The conversation; `on` and `effort` are what holds when the body does not say. Borrows from b. */
recipe_chat recipe_body_chat(const recipe_body *b, bool on, recipe_effort effort);
