/* Stop strings in streamed text (spec recipe.md section 4).
 *
 * Text passes through unless it could be the start of a stop string; then it is held until that is
 * decided. The stop string that is complete first wins (the one listed first when two are), the
 * text before it is given out, it and what follows are not.
 * Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/str.h"

#define STOP_MAX 16

typedef struct stop_match {
    size_t n;
    int matched; /* index of the stop string that was found, -1 = none yet */
    str held;
    char *stop[STOP_MAX];
    size_t len[STOP_MAX];
} stop_match;

/* Copies the strings. Errors: INVALID (more than STOP_MAX, an empty one), NOMEM. */
di_code stop_init(stop_match *m, const char *const *stop, const size_t *len, size_t n,
                  di_status *st);
void stop_fini(stop_match *m);

/* Take n bytes; append what can be shown to *out. True when a stop string is complete: from then on
 * nothing is given out. */
bool stop_push(stop_match *m, const char *text, size_t n, str *out);

/* The end of the text: what is held is not a stop string. */
void stop_flush(stop_match *m, str *out);
