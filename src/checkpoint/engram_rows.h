/* Rows of the Engram tables: the primes of their hash (spec 6.2). Thread: any. */
#pragma once

#include "checkpoint/config.h"

/* The modulus of every column: prime[n_engram][config_engram_cols]. One stream for all layers:
 * every n-gram size starts again just above engram_vocab - 1, every head takes the next prime that
 * nobody has. */
void engram_primes(const model_config *c, int64_t *prime);
