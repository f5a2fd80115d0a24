/* API keys and what each may do. Thread: keys_load at the start, the rest on loop threads. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct api_key;
struct conn;
struct key_table;

/* One key from the command line (may be NULL) and those of a file (may be NULL): a line per key,
 *   KEY [name=NAME] [requests_per_minute=N] [max_running=N]
 * blank lines and lines that start with # aside. Errors: IO, FORMAT (names the line), NOMEM. */
di_code keys_load(struct key_table **out, const char *key, const char *file, di_status *st);
void keys_free(struct key_table *t);

/* Find the key of a request ("authorization: Bearer KEY" or "x-api-key: KEY"). False: it has got
 * its 401. */
bool keys_admit(struct conn *c);

/* Count the request against the limits of its key. False: it has got its 429. keys_release follows
 * when it has ended, and does nothing otherwise. */
bool keys_take(struct conn *c);
void keys_release(struct conn *c);

/* For the log; NULL without a key. */
const char *keys_name(const struct api_key *k);
