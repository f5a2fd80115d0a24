/* Lists of token ids as text: a JSON list, or integers separated by blanks or commas.
 * Thread: any. */
#pragma once

#include "base/status.h"
#include "tokenizer/tokenizer.h"

/* Read text[0..n), which is followed by a 0, and append the ids. `name` says where the text comes
 * from. Errors: FORMAT when it is no such list, INVALID for an id outside 0..n_ids-1, NOMEM. */
di_code ids_parse(const char *text, size_t n, const char *name, int n_ids, tok_ids *ids,
                  di_status *st);
