/* Standard input as a whole. Thread: main thread. */
#pragma once

#include "base/status.h"
#include "base/str.h"

/* Append all of standard input. Errors: IO, INVALID when it is longer than max_bytes, NOMEM. */
di_code input_read_stdin(str *in, size_t max_bytes, di_status *st);
