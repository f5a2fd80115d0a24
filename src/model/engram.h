/* Engram row ids from token ids (spec 6.2): multipliers, primes, hash. Integers only; exact.
 * Thread: immutable once made. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "checkpoint/config.h"

typedef struct engram_hash engram_hash;

/* Derive primes and multipliers from the configuration. `compressed` [vocab] is copied. Errors:
 * FORMAT when the compressed vocabulary or the table sizes do not match the configuration; NOMEM.
 */
di_code engram_hash_new(engram_hash **out, const model_config *c, const int32_t *compressed,
                        di_status *st);
void engram_hash_free(engram_hash *h);

/* Memory of a hash. */
size_t engram_hash_bytes(const model_config *c);

#define ENGRAM_DEAD (-1) /* compressed id of an image token: ends the look-back */

/* Compressed id of a token. */
int32_t engram_compress(const engram_hash *h, int32_t token);

/* Rows of one position: t[0] is the compressed id at the position, t[1..] of the tokens before it
 * (ENGRAM_DEAD before the start of the sequence and for image tokens), ngram values.
 * rows [cols] for Engram layer index `layer`, offsets included. */
void engram_rows(const engram_hash *h, int layer, const int32_t *t, int64_t *rows);
