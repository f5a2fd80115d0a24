/* A JSON value as a tree in an arena: what requests keep of schemas, arguments and formats.
 *
 * The order of keys is that of the text; of a repeated key the last value counts, in the place of
 * the first. Numbers keep the difference between integers and others (spec recipe.md 1.4).
 * Thread: immutable once read. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/json_read.h"
#include "base/str.h"

/* Values in one document: a body of two bytes per value would take 32 times its size. */
#define JTREE_MAX_VALUES 500000

typedef enum jtree_number { JTREE_I64, JTREE_U64, JTREE_REAL } jtree_number;

typedef struct jtree jtree;
struct jtree {
    json_type type;
    jtree_number kind; /* of a number: I64 when it is one, else U64, else REAL */
    union {
        bool yes;
        int64_t i64;
        uint64_t u64;
        double real;
        const char *text;   /* string, decoded; a 0 byte follows */
        const jtree *child; /* first member of an array or object */
    };
    size_t n;          /* bytes of the string; members of the container */
    const jtree *next; /* in the same container */
    const char *key;   /* of a member of an object */
    size_t n_key;
};

/* Read text[0..n), which must be one value. `name` is for messages. NULL and a failed status:
 * FORMAT (malformed, a number beyond double, too many values), NOMEM. */
const jtree *jtree_parse(const char *text, size_t n, arena *mem, const char *name, di_status *st);

/* The same for an object of which only some members are kept: the others are checked and left out.
 */
typedef bool (*jtree_wanted)(const void *ctx, const char *key, size_t n);
const jtree *jtree_parse_some(const char *text, size_t n, arena *mem, const char *name,
                              jtree_wanted wanted, const void *ctx, di_status *st);

/* The member with this key; NULL when there is none, or when t is no object (NULL included). */
const jtree *jtree_get(const jtree *t, const char *key);
const jtree *jtree_find(const jtree *t, const char *key, size_t n);

/* True for a string that is `want`. */
bool jtree_is(const jtree *t, const char *want);

/* Value of a number. */
double jtree_real(const jtree *t);

/* True for an integer from 0 to max that is written as one. */
bool jtree_is_uint(const jtree *t, uint64_t max);

/* The integer that t is, also when it is written as 1.0 or 1e3; false when it is none, or beyond
 * what a double holds exactly and written so. */
bool jtree_whole(const jtree *t, int64_t *out);

/* True when both are the same JSON value; objects compare without regard to order. */
bool jtree_equal(const jtree *a, const jtree *b);

/* How to print: PYTHON as prompts have it ("a": 1, 1e-05), COMPACT as constraints do ("a":1), V4 as
 * prompts of V4 do ("a": 1, 0.00001). */
typedef enum jtree_style { JTREE_PYTHON, JTREE_COMPACT, JTREE_V4 } jtree_style;

/* Append t as text. Non-ASCII stays as it is. */
void jtree_print(const jtree *t, jtree_style style, str *out);

/* Append text as the inside of a JSON string: escapes as both styles have them. */
void jtree_escape(const char *text, size_t n, str *out);
void jtree_quote(const char *text, size_t n, str *out);
