/* From the draft's raw confidence to the chance that a draft token is accepted.
 *
 * The head's sigmoid is over- or under-confident per position and workload (spec 7.4: one
 * temperature per position, fitted left to right). Here each position keeps a histogram over the
 * raw logit of how many tested drafts were accepted, blended with the head's own sigmoid as the
 * prior, and forgets slowly. It steers lengths only: no output depends on it. Thread: the owner's
 * only. */
#pragma once

#include <stdbool.h>

#define DSPARK_MAX_DRAFT 16
#define CALIBRATION_BINS 24

typedef struct calibration {
    float tested[DSPARK_MAX_DRAFT][CALIBRATION_BINS];
    float accepted[DSPARK_MAX_DRAFT][CALIBRATION_BINS];
} calibration;

void calibration_init(calibration *c);

/* Chance that the draft at `position` (0-based) with this raw logit is accepted, given that those
 * before it were. Between 0 and 1. */
float calibration_chance(const calibration *c, int position, float logit);

/* A draft was tested (all before it had been accepted). */
void calibration_observe(calibration *c, int position, float logit, bool accepted);
