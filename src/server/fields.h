/* Values of JSON bodies, with errors that name the field, what it must be and what it is.
 * Errors: INVALID; FORMAT (not JSON); NOMEM. Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/json_read.h"
#include "base/status.h"

/* "NAME must be WANT". */
di_code field_invalid(di_status *st, const char *name, const char *want);

di_code field_real(json_read *r, const char *name, double min, double max, float *out,
                   di_status *st);
/* Integers may be written 16 or 16.0; what does not fit 64 bits is refused like any other. */
di_code field_int(json_read *r, const char *name, int64_t min, int64_t max, int64_t *out,
                  di_status *st);
di_code field_bool(json_read *r, const char *name, bool *out, di_status *st);
/* Copied into mem, a 0 behind it. */
di_code field_text(json_read *r, const char *name, arena *mem, const char **out, size_t *n,
                   di_status *st);
/* A token id of a vocabulary. */
di_code field_id(json_read *r, const char *name, int vocab, int32_t *out, di_status *st);
