/* Sampling the ceilings with all threads of a pool. */
#include "kernels/peak.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"

#define LOOPS 1500000L

struct peak {
    pool *pool;
    uint8_t *buf; /* a region of `bytes` per thread */
    size_t bytes;
    ceiling what;
    double *work; /* [threads] done by each */
};

static bool cpu_time;

void peak_use_cpu_time(void)
{
    cpu_time = true;
}

uint64_t peak_clock_ns(void)
{
    struct timespec t;

    if (!cpu_time)
        return clock_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const char *ceiling_name(ceiling c)
{
    static const char *const names[CEILING_COUNT] = {"read", "copy", "fma_f32", "vdpbf16ps",
                                                     "vpdpbusd"};

    return names[c];
}

const char *ceiling_unit(ceiling c)
{
    return c <= CEILING_COPY ? "GB/s" : c == CEILING_VNNI ? "Gop/s" : "GFLOP/s";
}

peak *peak_new(pool *threads, size_t bytes)
{
    size_t n = (size_t)pool_n_threads(threads);
    peak *p = mem_try_calloc(1, sizeof *p);

    if (!p)
        return NULL;
    *p = (peak){.pool = threads, .bytes = bytes, .buf = mem_try_aligned(n * bytes, 64)};
    p->work = mem_try_calloc(n, sizeof *p->work);
    if (!p->buf || !p->work) {
        peak_free(p);
        return NULL;
    }
    memset(p->buf, 1, n * bytes);
    return p;
}

void peak_free(peak *p)
{
    if (!p)
        return;
    mem_free(p->buf);
    mem_free(p->work);
    mem_free(p);
}

static void sample_job(void *arg, int thread, int n_threads)
{
    peak *p = arg;
    uint8_t *mine = p->buf + (size_t)thread * p->bytes;

    (void)n_threads;
    switch (p->what) {
    case CEILING_READ:
        peak_read(mine, p->bytes);
        p->work[thread] = (double)p->bytes;
        break;
    case CEILING_COPY:
        memcpy(mine, mine + p->bytes / 2, p->bytes / 2);
        p->work[thread] = (double)p->bytes;
        break;
    case CEILING_FMA:
        p->work[thread] = peak_fma(2 * LOOPS);
        break;
    case CEILING_BF16:
        p->work[thread] = peak_bf16(LOOPS);
        break;
    default:
        p->work[thread] = peak_vnni(2 * LOOPS);
    }
}

double peak_sample(peak *p, ceiling c)
{
    const cpu_features *f = cpu_get();
    uint64_t t;
    double work = 0;

    if ((c == CEILING_BF16 && !f->avx512_bf16) || (c == CEILING_VNNI && !f->avx512_vnni))
        return 0;
    p->what = c;
    t = peak_clock_ns();
    pool_run(p->pool, sample_job, p);
    t = peak_clock_ns() - t;
    for (int i = 0; i < pool_n_threads(p->pool); i++)
        work += p->work[i];
    return work / (double)t;
}
