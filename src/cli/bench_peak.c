/* The ceilings that shares are taken of: what this machine reads and computes at this moment, with
 * as many threads as the engine. */
#include "cli/bench.h"
#include "kernels/peak.h"

#define PEAK_BYTES ((size_t)384 << 20) /* per thread: more than the caches */
#define N_SAMPLES  3

di_code bench_peak_init(bench *b, di_status *st)
{
    di_code rc = pool_new(&b->threads, (int)b->o->session.threads, st);

    if (rc != DI_OK)
        return rc;
    b->meter = peak_new(b->threads, PEAK_BYTES);
    if (!b->meter)
        return di_fail(st, DI_E_NOMEM, "no memory to measure the ceilings");
    bench_peak_measure(b);
    return DI_OK;
}

/* The middle of three samples: on a busy machine the best is as lucky as the worst is unlucky. */
static double sample(bench *b, ceiling c)
{
    double v[N_SAMPLES];

    for (int i = 0; i < N_SAMPLES; i++)
        v[i] = peak_sample(b->meter, c);
    return spread_of(v, N_SAMPLES).p50;
}

void bench_peak_measure(bench *b)
{
    double fma = sample(b, CEILING_FMA), bf16 = sample(b, CEILING_BF16);

    b->peak.bytes = sample(b, CEILING_READ) * 1e9;
    b->peak.flops = (bf16 > fma ? bf16 : fma) * 1e9;
}

void bench_peak_fini(bench *b)
{
    peak_free(b->meter);
    pool_free(b->threads);
}
