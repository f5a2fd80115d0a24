/* Reading tokenizer.json: what load.c (the document) and load_model.c (its lists) share. */
#pragma once

#include "base/json_read.h"
#include "tokenizer/tokenizer_internal.h"

/* An entry of model.vocab or added_tokens until its table is built. */
typedef struct load_entry {
    int32_t id;
    tok_span spelling; /* in t->symbols */
    uint8_t flags;     /* tok_flag */
} load_entry;

typedef struct load_list {
    load_entry *entries;
    size_t n, cap;
} load_list;

/* One reading of a file. */
typedef struct loader {
    tokenizer *t;
    json_read r;
    const char *name;
    map *raw;          /* vocabulary strings that are no byte symbols -> id */
    load_list added;   /* added_tokens in the order of the file */
    load_entry entry;  /* the added token being read */
    const char *regex; /* the pattern that the Split being read must have */
    const char *late;  /* text of model.merges when it comes before model.vocab */
    size_t n_late;
    bool has_vocab;
} loader;

/* What a member must be. */
typedef enum rule_kind {
    RULE_NULL,     /* null: the feature is not supported */
    RULE_NO_TEXT,  /* null or "" */
    RULE_FALSE,    /* false */
    RULE_ANY_BOOL, /* without effect here */
    RULE_TEXT,     /* the string `text` */
    RULE_READ      /* whatever `read` makes of it */
} rule_kind;

/* `what` names the value for messages, e.g. "model.vocab". */
typedef di_code (*load_read)(loader *l, const char *what, di_status *st);

typedef struct rule {
    const char *key;
    rule_kind kind;
    bool required;
    const char *text;
    load_read read;
} rule;

/* Read an object whose members follow n <= 32 rules. Errors: FORMAT for malformed JSON, a missing
 * or a repeated member, UNSUPPORTED for a member or a value that no rule allows. */
di_code load_object(loader *l, const char *what, const rule *rules, size_t n, di_status *st);

/* Fail when the reader has met a malformation that the last loop took for an end. */
di_code load_check(loader *l, di_status *st);

/* load_model.c */
di_code load_model(loader *l, const char *what, di_status *st);
di_code load_added_tokens(loader *l, const char *what, di_status *st);
/* After the document: give the added tokens their ids. */
di_code load_finish_added(loader *l, di_status *st);
