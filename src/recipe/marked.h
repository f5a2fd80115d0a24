/* Text in which some places are control tokens. Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

/* Bytes [begin, end) of the text are one control token. */
typedef struct recipe_span {
    size_t begin, end;
} recipe_span;

/* Running out of memory is remembered in `text` (str_ok). */
typedef struct recipe_marked {
    str text;
    recipe_span *special; /* ascending, disjoint */
    size_t n_special, cap_special;
} recipe_marked;

void recipe_marked_fini(recipe_marked *m);
void recipe_marked_clear(recipe_marked *m);

/* Append a control token. */
void recipe_marked_control(recipe_marked *m, const char *spelling);

/* Note that bytes [begin, end) of the text are a control token. */
void recipe_marked_span(recipe_marked *m, size_t begin, size_t end);

/* Append text with its marks. */
void recipe_marked_append(recipe_marked *m, const char *text, size_t n, const recipe_span *special,
                          size_t n_special);
