/* A schema as a tree that can be rewritten: values know their parents, numbers keep their text, a
 * key that stands twice is an error. Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/json_read.h"
#include "base/status.h"
#include "base/str.h"

typedef struct snode {
    json_type type;
    bool flag;           /* JSON_BOOL */
    bool needed;         /* for the owner: a required property */
    uint8_t mark, mark2; /* for the walks of the owner */
    const char *key;     /* in its object, 0-terminated, without zero bytes; else NULL */
    size_t n_key;
    const char *text; /* string decoded, number as written; 0-terminated */
    size_t n_text;
    int n_child;
    void *owner; /* for the walks of the owner */
    struct snode *parent, *child, *last, *next;
    struct snode **slot; /* [n_slots] members by the hash of their keys, or NULL */
    size_t n_slots;
} snode;

/* Read a whole document. Errors: FORMAT (malformed, deeper than JSON_MAX_DEPTH), INVALID (a key
 * twice in an object, or with a zero character), NOMEM. */
di_code stree_read(arena *mem, const char *text, size_t n, const char *name, snode **out,
                   di_status *st);

/* Append a value as compact JSON. */
void stree_write(const snode *v, str *out);

/* Member of an object; NULL when there is none, or v is NULL or no object. */
snode *stree_get(const snode *v, const char *key);
bool stree_is(const snode *v, const char *string); /* v is this string */

/* Take a child out of its parent. */
void stree_remove(snode *child);
/* New node, or NULL when out of memory; appended to parent unless that is NULL. */
snode *stree_add(arena *mem, snode *parent, json_type type, const char *key, const char *text);
/* Copy of a value, without a parent; NULL when out of memory. */
snode *stree_copy(arena *mem, const snode *v);
/* Append an existing node that has no parent. */
void stree_attach(snode *parent, snode *child);

/* JSON pointer of a node, cut at cap. */
void stree_pointer(const snode *v, char *out, size_t cap);
/* Node of a pointer behind "#" in a URI ("" or "/..."; percent escapes are read); NULL = none. */
snode *stree_resolve(snode *root, const char *pointer);
