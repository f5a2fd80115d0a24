/* Exact text of sampled tool calls, by call id: history that comes back is printed as the model
 * wrote it, so that the next turn finds its prefix in the cache (spec api.md section 7).
 *
 * Re-rendering cannot give the same bytes back for arguments like [1,2] or 1e5. A call is printed
 * from here only when its name and arguments are those that were given out for that id. Bounded:
 * the oldest are forgotten. Thread: any (a lock inside). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "recipe/chat.h"
#include "recipe/marked.h"

typedef struct recipe_replay recipe_replay;

/* Keep at most max_bytes of text. NULL when out of memory. */
recipe_replay *recipe_replay_new(size_t max_bytes);
void recipe_replay_free(recipe_replay *r);

/* Remember one call: `markup` goes from "<DSML invoke" to its closing tag. Everything is copied.
 * Running out of memory, or a text beyond the bound, is no error: the call is rendered anew then.
 */
void recipe_replay_put(recipe_replay *r, const char *id, const char *name, const char *arguments,
                       size_t n_arguments, const recipe_marked *markup);

/* Append the markup of a call to *out and return true, if its id is known and has this name and
 * arguments of this value. r may be NULL. */
bool recipe_replay_get(recipe_replay *r, const recipe_call *call, recipe_marked *out);
