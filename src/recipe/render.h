/* Conversation -> prompt: text with the places of its control tokens, then token ids.
 *
 * Source: spec recipe.md 1.2, 1.3, 1.6 and 1.8 (V4.1). Tools, response formats and images are not
 * rendered here yet. What a message holds is never read as a control token: the text between two
 * control tokens is encoded by itself, without added tokens, so "<|User|>" typed by a user stays
 * text. Nothing in a message is trimmed, escaped or normalised.
 * Thread: any; objects belong to one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/str.h"
#include "tokenizer/tokenizer.h"

typedef enum recipe_role {
    RECIPE_SYSTEM,
    RECIPE_USER,
    RECIPE_ASSISTANT,
    RECIPE_REMINDER /* latest_reminder */
} recipe_role;

/* How thorough the reasoning is to be: the 50, 75 or 100 of the effort line. */
typedef enum recipe_effort {
    RECIPE_EFFORT_HIGH,
    RECIPE_EFFORT_LOW,
    RECIPE_EFFORT_MAX
} recipe_effort;

typedef struct recipe_message {
    recipe_role role;
    const char *content; /* borrowed; NULL = empty */
    size_t n_content;
    const char *reasoning; /* assistant only; printed in a prefix message only (spec 1.3, 1.6) */
    size_t n_reasoning;
} recipe_message;

typedef struct recipe_chat {
    const recipe_message *message; /* borrowed */
    size_t n;
    bool thinking;
    recipe_effort effort; /* read when thinking */
    bool prefix;          /* the last message is an assistant's that the answer continues */
} recipe_chat;

/* Bytes [begin, end) of the text are one control token. */
typedef struct recipe_span {
    size_t begin, end;
} recipe_span;

typedef struct recipe_prompt {
    str text;
    recipe_span *special; /* ascending, disjoint */
    size_t n_special, cap_special;
} recipe_prompt;
void recipe_prompt_fini(recipe_prompt *p);

/* Where the answer begins: inside the reasoning, or in the content. */
bool recipe_starts_in_reasoning(const recipe_chat *c);

/* Render into *out, which is emptied first. Errors: INVALID (no message at all; `prefix` without an
 * assistant's message at the end), NOMEM. */
di_code recipe_render(const recipe_chat *c, recipe_prompt *out, di_status *st);

/* Append the ids of a rendered prompt to *out. Errors: FORMAT when the tokenizer lacks a control
 * token that the prompt needs (says which), NOMEM. */
di_code recipe_encode(const tokenizer *t, const recipe_prompt *p, tok_ids *out, di_status *st);

/* Words of the protocols, none to max. True and *on / *effort set when word[0..n) is one of them.
 */
bool recipe_effort_parse(const char *word, size_t n, bool *on, recipe_effort *effort);
