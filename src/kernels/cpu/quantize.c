/* Q8 of activation rows. */
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/quant_simd.h"

typedef struct job {
    const quantize_args *a;
} job;

static void quantize_rows(void *arg, int thread, int n_threads)
{
    const quantize_args *a = ((const job *)arg)->a;
    int64_t n_groups = (int64_t)a->n * a->cols / BLOCK, begin, end;

    /* Groups never cross rows: cols is a multiple of 32. */
    pool_split(n_groups, 1, thread, n_threads, &begin, &end);
    if (begin < end)
        q8_row((uint16_t *)a->q8 + begin * BLOCK, (const uint16_t *)a->x + begin * BLOCK,
               (int)((end - begin) * BLOCK));
}

void CPU_FN(cpu_quantize)(kernels *k, const quantize_args *a)
{
    job j = {a};

    pool_run(k->pool, quantize_rows, &j);
}
