/* A JSON document as a tree in an arena: schemas are looked at from several sides and rewritten.
 * Numbers keep their text. Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/json_read.h"
#include "base/status.h"
#include "base/str.h"

typedef struct jnode {
    json_type type;
    bool flag;           /* JSON_BOOL */
    uint8_t mark, mark2; /* for the walks of the owner */
    const char *key;     /* in its object, 0-terminated, without zero bytes; else NULL */
    size_t n_key;
    const char *text; /* string decoded, number as written; 0-terminated */
    size_t n_text;
    int n_child;
    struct jnode *parent, *child, *last, *next;
} jnode;

/* Read a whole document. Errors: FORMAT (malformed, deeper than JSON_MAX_DEPTH), INVALID (a key
 * twice in an object, or with a zero character), NOMEM. */
di_code jtree_read(arena *mem, const char *text, size_t n, const char *name, jnode **out,
                   di_status *st);

/* Append a value as compact JSON. */
void jtree_write(const jnode *v, str *out);

/* Member of an object; NULL when there is none, or v is NULL or no object. */
jnode *jtree_get(const jnode *v, const char *key);
bool jtree_is(const jnode *v, const char *string); /* v is this string */

/* Take a child out of its parent. */
void jtree_remove(jnode *child);
/* New node, or NULL when out of memory; appended to parent unless that is NULL. */
jnode *jtree_add(arena *mem, jnode *parent, json_type type, const char *key, const char *text);
/* Copy of a value, without a parent; NULL when out of memory. */
jnode *jtree_copy(arena *mem, const jnode *v);
/* Append an existing node that has no parent. */
void jtree_attach(jnode *parent, jnode *child);

/* JSON pointer of a node, cut at cap. */
void jtree_pointer(const jnode *v, char *out, size_t cap);
/* Node of a pointer behind "#" in a URI ("" or "/..."; percent escapes are read); NULL = none. */
jnode *jtree_resolve(jnode *root, const char *pointer);
