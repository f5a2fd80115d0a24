/* Completion text -> reasoning and content, piece by piece (spec recipe.md 3.1 without tools).
 *
 * A piece may end anywhere, also inside "</think>": what could still become part of the marker is
 * held back and given out as soon as it cannot. Newlines at the start of either part, and those in
 * front of the marker, are dropped; a stray "</think>" in the content is dropped.
 * Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

typedef struct think_split {
    bool in_reasoning; /* which part comes next */
    bool leading;      /* at its very start */
    str held;
} think_split;

void think_init(think_split *t, bool starts_in_reasoning);
void think_fini(think_split *t);

/* Take n bytes; append what is certain to *reasoning and *content. */
void think_push(think_split *t, const char *text, size_t n, str *reasoning, str *content);

/* The end: an unfinished marker is text. */
void think_flush(think_split *t, str *reasoning, str *content);
