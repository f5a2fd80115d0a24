/* Grammars in EBNF as trees. Inside the module. Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "grammar/grammar_internal.h"

#define EBNF_MANY      INT32_MAX /* no bound */
#define EBNF_MAX_COUNT 100000

typedef enum ebnf_type {
    EBNF_CLASS, /* one character of `range`, ascending, disjoint, not adjacent */
    EBNF_SEQ,   /* the children in a row; none = the empty text */
    EBNF_ALT,   /* one of the children */
    EBNF_REP,   /* the child lo to hi times */
    EBNF_REF,   /* a rule */
    EBNF_TERM   /* a terminal of the translation */
} ebnf_type;

typedef struct ebnf_range {
    uint32_t lo, hi;
} ebnf_range;

typedef struct ebnf_node {
    ebnf_type type;
    struct ebnf_node *child, *next;
    ebnf_range *range;
    int n_ranges;
    int32_t lo, hi; /* REP */
    struct ebnf_rule *rule;
    int term;
} ebnf_node;

typedef struct ebnf_rule {
    struct ebnf_rule *next;
    const char *name;
    size_t n_name;
    int64_t at;      /* byte of its first mention */
    ebnf_node *body; /* NULL = used but not defined */
    int id;
    bool productive;
    int pure;    /* 0 = unknown, 1 = being found out, 2 = no cycle can be reached, 3 = one can */
    double size; /* of its regular expression, when pure */
} ebnf_rule;

typedef struct ebnf_grammar {
    arena *mem;
    ebnf_rule *first, *root;
    int n_rules;
} ebnf_grammar;

/* Parse. Errors: INVALID with detail (offset), NOMEM. */
di_code ebnf_parse(const char *text, size_t n, arena *mem, ebnf_grammar *out, grammar_detail *d,
                   di_status *st);

/* New node in the arena; NULL when out of memory. */
ebnf_node *ebnf_new(arena *mem, ebnf_type type);

/* ---- ebnf_auto.c ---- */

typedef struct ebnf_auto ebnf_auto; /* positions of a regular expression */

/* Automaton of a regular tree (no REF but to pure rules). NULL: too large, or out of memory. */
ebnf_auto *ebnf_auto_new(arena *mem, const ebnf_node *v);
bool ebnf_auto_nullable(const ebnf_auto *a);
/* No text but the empty one, or none at all. */
bool ebnf_auto_empty(const ebnf_auto *a);
/* Whether a character that may begin a text of `next` can go on a text of b that has a text of a as
 * its beginning: then a lexer that prefers the longest text misreads "a next". *budget counts down;
 * true when it is used up. */
bool ebnf_auto_clash(arena *mem, const ebnf_auto *a, const ebnf_auto *b, ebnf_auto *const *next,
                     int n_next, long *budget);
