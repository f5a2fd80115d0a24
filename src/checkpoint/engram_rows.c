/* See engram_rows.h. */
#include "checkpoint/engram_rows.h"

static bool is_prime(int64_t n)
{
    if (n < 4)
        return n >= 2;
    if (n % 2 == 0)
        return false;
    for (int64_t d = 3; d <= n / d; d += 2)
        if (n % d == 0)
            return false;
    return true;
}

static bool taken(const int64_t *prime, int n, int64_t p)
{
    for (int i = 0; i < n; i++)
        if (prime[i] == p)
            return true;
    return false;
}

void engram_primes(const model_config *c, int64_t *prime)
{
    int n = 0;

    for (int l = 0; l < c->n_engram; l++)
        for (int gram = 2; gram <= c->engram_ngram; gram++) {
            int64_t p = c->engram_vocab - 1;

            for (int head = 0; head < c->engram_heads; head++) {
                do
                    p++;
                while (!is_prime(p) || taken(prime, n, p));
                prime[n++] = p;
            }
        }
}
