/* Large constraints for bench/grammar.c: what agents and form generators send, made up. */
#pragma once

#include "base/str.h"
#include "grammar/grammar.h"

#define N_LARGE 8

typedef struct large {
    const char *name;
    grammar_kind kind;
    str text; /* str_fini */
} large;

void large_make(large out[N_LARGE]);
