/* The numbers of numpy.random.default_rng(seed).integers(0, bound, dtype=int64).
 *
 * The Engram multipliers are defined by them (spec 6.2). Written from the published algorithms:
 * SeedSequence (M. E. O'Neill, "Developing a seed_seq alternative", 2015) and PCG XSL-RR 128/64
 * (M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for
 * Random Number Generation", 2014), bounded by D. Lemire, "Fast Random Integer Generation in an
 * Interval" (2019). Thread: the owner's only. */
#pragma once

#include <stdint.h>

typedef struct numpy_rng {
    unsigned __int128 state, inc;
} numpy_rng;

void numpy_rng_init(numpy_rng *r, uint32_t seed);

/* Next number in [0, bound), bound > 2^32. */
uint64_t numpy_rng_below(numpy_rng *r, uint64_t bound);
