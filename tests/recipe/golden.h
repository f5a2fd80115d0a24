/* The golden data of the request side (tests/data/recipe/README.md): what its programs share. */
#pragma once

#include "recipe/request.h"
#include "tokenizer/tokenizer.h"

typedef struct golden {
    tokenizer *tok;
    arena *mem; /* of the line */
    const char *file;
    size_t line, n_passed, n_failed;
    const char *id; /* of the case */
    bool case_failed;
} golden;

/* Print why the case fails. */
void golden_fail(golden *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Run the cases of one file through `run`. False when there is no such file. */
bool golden_run(golden *g, const char *dir, const char *file,
                void (*run)(golden *g, const jtree *line));

/* The bytes of a body: the text of a string, or an object as JSON text. */
void golden_body(const jtree *t, str *out);

/* The options of a case, mode STRICT. */
recipe_options golden_options(golden *g, const jtree *options);

/* Equal JSON values; numbers by value, "call_00_*" stands for any call id with that number. */
bool golden_same(const jtree *want, const jtree *got);

/* Fail unless `got` is the JSON value `want`. */
void golden_expect_json(golden *g, const char *what, const jtree *want, const char *got, size_t n);

void golden_prompt(golden *g, const jtree *line);
void golden_error(golden *g, const jtree *line);
void golden_resolve(golden *g, const jtree *line);
void golden_stream(golden *g, const jtree *line);
