/* What a step costs: time over the number of rows, measured at start and corrected while running.
 *
 * The curve decides how many drafts are worth verifying (lengths.h). It is kept on disk under a key
 * of everything it depends on, so that a restart need not measure again. Thread: the owner's only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define COST_MAX_POINTS 24
#define COST_MAX_BLOCK  16

typedef struct cost_table {
    int n; /* points, ascending rows */
    int rows[COST_MAX_POINTS];
    double us[COST_MAX_POINTS];       /* as measured at start */
    double factor[COST_MAX_POINTS];   /* running correction: observed / measured */
    bool seen[COST_MAX_POINTS];       /* observed; the others follow those that are */
    double draft_us[COST_MAX_POINTS]; /* one round of `block` drafts for rows[i] sequences */
    int block;                        /* 0 = rounds cost the same at any length */
    bool draft_seen[COST_MAX_BLOCK + 1];
    double draft_factor[COST_MAX_BLOCK + 1]; /* a round of so many drafts / draft_us */
} cost_table;

/* The rounds in draft_us had this length; shorter ones are estimated until they are observed. */
void cost_set_block(cost_table *t, int block);

/* Row counts worth measuring up to max_rows: 1, 2, 3, 4, 6, 8, 12, ... Returns how many. */
int cost_points(int max_rows, int *rows);

/* Start a table; values are filled in by cost_set. */
void cost_init(cost_table *t, int n, const int *rows);
void cost_set(cost_table *t, int point, double step_us, double draft_us);

/* Microseconds of a step of `rows` rows, linear between points, proportional past the last. */
double cost_step(const cost_table *t, int rows);
/* Microseconds of one round of `block` drafts for n_seqs sequences; 0 for none. */
double cost_draft(const cost_table *t, int n_seqs, int block);

/* A step of `rows` rows, or a draft round, took this long: nudges the correction of the nearest
 * points, or of this length. */
void cost_observe(cost_table *t, int rows, double us);
void cost_observe_draft(cost_table *t, int n_seqs, int block, double us);

/* Keep and find the measured values in DIR under `key` (any text: model, back end, threads, build).
 * cost_load: *found tells whether a table for exactly this key was there and sound; a damaged file
 * counts as absent, and a line in the log says so. cost_save replaces the file atomically. Errors:
 * IO, INVALID (path too long). */
di_code cost_save(const cost_table *t, const char *dir, const char *key, di_status *st);
di_code cost_load(cost_table *t, const char *dir, const char *key, bool *found, di_status *st);
