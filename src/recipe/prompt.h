/* Conversation -> prompt: text with the places of its control tokens, then token ids.
 *
 * Source: spec recipe.md section 1 (V4.1, and V4 as of 1.9). What a message holds is never read as
 * a control token: the text between two control tokens is encoded by itself, without added tokens,
 * so "<|User|>" typed by a user stays text. Nothing in a message is trimmed, escaped or normalised.
 * Thread: any; objects belong to one. */
#pragma once

#include <stdbool.h>

#include "base/status.h"
#include "recipe/chat.h"
#include "recipe/gaps.h"
#include "recipe/marked.h"
#include "recipe/replay.h"
#include "tokenizer/tokenizer.h"

typedef recipe_marked recipe_prompt;
static inline void recipe_prompt_fini(recipe_prompt *p)
{
    recipe_marked_fini(p);
}

/* Where the answer begins: inside the reasoning, or in the content. */
bool recipe_starts_in_reasoning(const recipe_chat *c);

/* Id of the control token that tags of calls begin with, below n_ids; -1 = there is none. An answer
 * that may not call must not write it (spec structured.md section 1). */
int32_t recipe_call_id(const tokenizer *t, int n_ids);

/* Render into *out, which is emptied first. replay: calls that it knows are printed as they were
 * sampled; NULL = none. Errors: INVALID (`prefix` without an assistant's message at the end),
 * NOMEM. */
di_code recipe_render(const recipe_chat *c, recipe_replay *replay, recipe_prompt *out,
                      di_status *st);

/* Append the ids of a rendered prompt to *out. Image placeholders become the id of the image token.
 * Errors: FORMAT when the tokenizer lacks a control token that the prompt needs (says which),
 * NOMEM. */
di_code recipe_encode(const tokenizer *t, const recipe_prompt *p, tok_ids *out, di_status *st);

/* The same; texts that `known` has seen are not tokenised again. known may be NULL. */
di_code recipe_encode_again(const tokenizer *t, recipe_gaps *known, const recipe_prompt *p,
                            tok_ids *out, di_status *st);
