/* Constraints of requests: what src/recipe found -> a state of src/grammar for the engine.
 * Thread: any; compiling takes up to seconds, so not on a loop. */
#pragma once

#include "grammar/grammar.h"
#include "recipe/request.h"

/* What the answer must match, and what could not be honoured of it. */
typedef struct demand {
    grammar_state *state; /* NULL: anything goes. di_submit takes it over */
    grammar_prog *prog;
    bool free_calls; /* tools without a constraint: the library is absent */
} demand;

/* Compile what q asks for. last_token: of the prompt. False: *e says why: 400 (the schema, pattern
 * or grammar), 501 (no library). */
bool demand_make(demand *c, grammar *g, const recipe_request *q, int32_t last_token,
                 grammar_policy policy, recipe_error *e);

/* Parts of the schema that were dropped, as a JSON list; NULL when none were. */
const char *demand_warnings(const demand *c);

void demand_fini(demand *c);
