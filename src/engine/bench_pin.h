/* Pinned acceptance, for deepinfer bench alone: not installed, not part of the public face.
 *
 * Requests with forced output tokens have their proposed drafts replaced: position by position the
 * token that is going to be forced with probability p, another one otherwise, so that verification,
 * rollback and the draft stages cost what they cost at that acceptance. Which is a function of the
 * position in the sequence. Without draft stages the drafts cost nothing. Call between
 * di_engine_start and the first request. */
#pragma once

#include "deepinfer/deepinfer.h"

void engine_pin_acceptance(di_engine *e, double p);
