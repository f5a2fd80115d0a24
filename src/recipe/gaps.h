/* Ids of texts between control tokens that were encoded before: a conversation that grows turn by
 * turn, and tools that many requests share, are not tokenised again.
 *
 * Each such text is encoded by itself (prompt.h), so its ids do not depend on what is around it.
 * Bounded: the oldest are forgotten. Thread: any (a lock inside). */
#pragma once

#include "base/status.h"
#include "tokenizer/tokenizer.h"

typedef struct recipe_gaps recipe_gaps;

/* Keep at most max_bytes of texts and ids. NULL when out of memory. */
recipe_gaps *recipe_gaps_new(size_t max_bytes);
void recipe_gaps_free(recipe_gaps *g);

/* Append the ids of a text, encoded without added tokens. g may be NULL: nothing is kept then; one
 * g goes with one tokenizer. Errors: NOMEM. */
di_code recipe_gaps_encode(recipe_gaps *g, const tokenizer *t, const char *text, size_t n,
                           tok_ids *out, di_status *st);

/* Bytes of text that were found, and that were encoded, since the start. */
void recipe_gaps_stats(recipe_gaps *g, uint64_t *found, uint64_t *encoded);
