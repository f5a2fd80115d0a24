/* Constraints on answers: "response_format" of a line, and the options of generate. Thread: the
 * owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/json_read.h"
#include "base/status.h"
#include "grammar/grammar.h"

typedef struct constraint {
    bool on;
    grammar_spec spec; /* its text is borrowed */
} constraint;

/* Read a "response_format": {"type": "text" | "json_object" | "json_schema" | "regex" | "ebnf",
 * ..}. Texts go to the arena. Errors: FORMAT, INVALID, NOMEM. */
di_code constraint_read(constraint *c, json_read *in, arena *mem, di_status *st);

typedef struct constraint_options {
    const char *json_schema, *regex, *ebnf; /* at most one */
    char *text;                             /* content of a file */
} constraint_options;

/* Entries of an option table for a constraint_options named `o`. */
#define CONSTRAINT_OPTIONS(o)                                                                      \
    {.name = "json-schema",                                                                        \
     .kind = OPT_STRING,                                                                           \
     .to = &(o).json_schema,                                                                       \
     .arg = "FILE",                                                                                \
     .help = "answers fit this JSON Schema"},                                                      \
        {.name = "regex",                                                                          \
         .kind = OPT_STRING,                                                                       \
         .to = &(o).regex,                                                                         \
         .arg = "REGEX",                                                                           \
         .help = "answers match this as a whole"},                                                 \
    {                                                                                              \
        .name = "ebnf", .kind = OPT_STRING, .to = &(o).ebnf, .arg = "FILE",                        \
        .help = "answers fit this grammar, start rule root"                                        \
    }

/* The constraint of the options, with files read. Errors: INVALID (more than one), IO, FORMAT,
 * NOMEM. Release with constraint_options_fini. */
di_code constraint_apply(constraint_options *o, constraint *c, di_status *st);
void constraint_options_fini(constraint_options *o);
