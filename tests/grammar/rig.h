/* What the tests of constraints share: the library over the shipped tokenizer. Include behind
 * cmocka.h. */
#pragma once

#include <stdbool.h>

#include "grammar/grammar.h"

/* Set by rig_open, for all tests of a program. */
extern tokenizer *tok;
extern grammar *g;
extern size_t words; /* of a row */
extern int vocab;
extern int32_t eos, think_begin, think_end;

extern const char person[], tools[]; /* a JSON schema, a list of tools */

/* Set-up and end of a group. Without llguidance the program ends with 77. */
int rig_open(void **state);
int rig_close(void **state);

grammar_spec spec_of(grammar_kind kind, const char *text);
/* Fails the test when the constraint has a fault. */
grammar_prog *compiled(grammar_spec spec);
grammar_state *begun(grammar_prog *p, int32_t last);
/* Whether a whole answer fits, whatever its spelling in tokens. */
bool takes(grammar_prog *p, const char *text, bool added);
