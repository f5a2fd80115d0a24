/* SeedSequence, PCG64 and bounded integers; see the header. */
#include "model/numpy_rng.h"

#include <stddef.h>

#define POOL 4

static uint32_t hash_mix(uint32_t v, uint32_t *hash_const)
{
    v ^= *hash_const;
    *hash_const *= 0x931E8875u;
    v *= *hash_const;
    return v ^ v >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y)
{
    uint32_t r = 0xCA01F9DDu * x - 0x4973F715u * y;

    return r ^ r >> 16;
}

/* SeedSequence(seed).generate_state(4, uint64) for a seed of one word. */
static void seed_words(uint64_t out[4], uint32_t seed)
{
    uint32_t pool[POOL], c = 0x43B0D7E5u, words[8];

    for (int i = 0; i < POOL; i++)
        pool[i] = hash_mix(i == 0 ? seed : 0, &c);
    for (int src = 0; src < POOL; src++)
        for (int dst = 0; dst < POOL; dst++)
            if (src != dst)
                pool[dst] = mix(pool[dst], hash_mix(pool[src], &c));
    c = 0x8B51F9DDu;
    for (int i = 0; i < 8; i++) {
        uint32_t v = pool[i % POOL] ^ c;

        c *= 0x58F38DEDu;
        v *= c;
        words[i] = v ^ v >> 16;
    }
    for (size_t i = 0; i < 4; i++)
        out[i] = (uint64_t)words[2 * i + 1] << 32 | words[2 * i];
}

static void step(numpy_rng *r)
{
    unsigned __int128 mult = (unsigned __int128)0x2360ED051FC65DA4u << 64 | 0x4385DF649FCCF645u;

    r->state = r->state * mult + r->inc;
}

void numpy_rng_init(numpy_rng *r, uint32_t seed)
{
    uint64_t w[4];

    seed_words(w, seed);
    r->inc = ((unsigned __int128)w[2] << 64 | w[3]) << 1 | 1;
    r->state = 0;
    step(r);
    r->state += (unsigned __int128)w[0] << 64 | w[1];
    step(r);
}

static uint64_t next(numpy_rng *r)
{
    uint64_t x;
    unsigned rot;

    step(r);
    x = (uint64_t)(r->state >> 64) ^ (uint64_t)r->state;
    rot = (unsigned)(r->state >> 122);
    return x >> rot | x << (-rot & 63);
}

uint64_t numpy_rng_below(numpy_rng *r, uint64_t bound)
{
    unsigned __int128 m = (unsigned __int128)next(r) * bound;
    uint64_t threshold = (uint64_t)-bound % bound;

    while ((uint64_t)m < threshold)
        m = (unsigned __int128)next(r) * bound;
    return (uint64_t)(m >> 64);
}
