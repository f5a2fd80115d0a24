/* Progress of long work: a bar with rate and time left on a terminal, a plain line now and then
 * otherwise, nothing when quiet. Written to standard error. Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    const char *label, *unit; /* borrowed; unit "B" prints KiB, MiB, GiB */
    uint64_t total;           /* 0 = unknown */
    uint64_t done, start_ns, shown_ns;
    bool quiet, tty, drawn;
    char note[64]; /* extra text of progress_note */
} progress;

void progress_start(progress *p, const char *label, const char *unit, uint64_t total, bool quiet);
/* Set the amount done; draws at most ten times a second (a plain line every five seconds). */
void progress_set(progress *p, uint64_t done);
/* Extra text behind the bar from the next drawing on, e.g. "12.3 tok/s"; copied, cut at 63 bytes.
 */
void progress_note(progress *p, const char *note);
/* Draw the last state and end the line. */
void progress_end(progress *p);
