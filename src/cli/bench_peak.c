/* The ceilings that shares are taken of: what this machine reads and computes at this moment, with
 * as many threads as the engine; of a GPU, what it copies and multiplies. */
#include <string.h>

#include "cli/bench.h"
#include "kernels/peak.h"

#define PEAK_BYTES ((size_t)384 << 20) /* per thread: more than the caches */
#define N_SAMPLES  3

/* A second opening of the GPU, when that is what runs: it has nothing but what a sample takes. */
static di_code open_device(bench *b, di_status *st)
{
    const kernels_options ko = {.backend = b->o->session.backend};
    di_code rc = DI_OK;

    if (strcmp(ko.backend, "cuda") == 0 || strcmp(ko.backend, "nvidia") == 0)
        rc = kernels_open(&b->device, &ko, st);
    return rc;
}

di_code bench_peak_init(bench *b, di_status *st)
{
    di_code rc = DI_OK;

    DI_TRY(open_device(b, st));
    if (b->device)
        return b->device->ops->peak(b->device, &b->device_peak, st);
    DI_TRY(pool_new(&b->threads, (int)b->o->session.threads, st));
    b->meter = peak_new(b->threads, PEAK_BYTES);
    if (!b->meter)
        return di_fail(st, DI_E_NOMEM, "no memory to measure the ceilings");
    bench_peak_measure(b);
done:
    return rc;
}

/* The middle of three samples: on a busy machine the best is as lucky as the worst is unlucky. */
static double sample(bench *b, ceiling c)
{
    double v[N_SAMPLES];

    for (int i = 0; i < N_SAMPLES; i++)
        v[i] = peak_sample(b->meter, c);
    return spread_of(v, N_SAMPLES).p50;
}

/* A device that has no room to measure keeps its ceilings. */
static void measure_device(bench *b)
{
    kernel_peak p;

    if (b->device->ops->peak(b->device, &p, NULL) == DI_OK && p.bytes > 0)
        b->device_peak = p;
    b->peak = (bench_peak){.bytes = b->device_peak.bytes, .flops = b->device_peak.flops};
}

void bench_peak_measure(bench *b)
{
    double fma, bf16;

    if (b->device) {
        measure_device(b);
        return;
    }
    fma = sample(b, CEILING_FMA);
    bf16 = sample(b, CEILING_BF16);
    b->peak.bytes = sample(b, CEILING_READ) * 1e9;
    b->peak.flops = (bf16 > fma ? bf16 : fma) * 1e9;
}

void bench_peak_fini(bench *b)
{
    kernels_close(b->device);
    peak_free(b->meter);
    pool_free(b->threads);
}
