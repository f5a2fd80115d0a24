/* Linear layers over strips. Threads split strips; every thread packs the rows for itself, so there
 * is no barrier inside. */
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/quant_simd.h"

#include "formats/scalar.h"

/* Scratch of one thread. */
typedef struct scratch {
    float *panel, *out, *x;
} scratch;

size_t CPU_FN(linear_thread_bytes)(const kernel_limits *l)
{
    size_t cols = ((size_t)l->max_linear_cols + BLOCK - 1) / BLOCK * BLOCK;

    return (STRIP_PANEL_FLOATS + STRIP_ROWS * STRIP + STRIP_ROWS * cols) * sizeof(float);
}

static scratch scratch_get(const kernels *k, int thread)
{
    scratch s = {.panel = cpu_thread_scratch(k, thread)};

    s.out = s.panel + STRIP_PANEL_FLOATS;
    s.x = s.out + STRIP_ROWS * STRIP;
    return s;
}

/* Store n sums at element `at` of y. LINEAR_Q8 has whole strips only. */
static void store(const linear_args *a, int64_t at, const float *sum, int n)
{
    uint16_t *b = (uint16_t *)a->y + at;
    float *f = (float *)a->y + at;

    if (a->out == LINEAR_F32) {
        for (int i = 0; i < n; i++)
            f[i] = a->accumulate ? f[i] + sum[i] : sum[i];
    } else if (n < STRIP) {
        for (int i = 0; i < n; i++)
            b[i] = bf16_from_f32(sum[i]);
    } else {
        for (int i = 0; i < STRIP; i += VF)
            vf_store_bf16(b + i, vf_load(sum + i));
        if (a->out == LINEAR_Q8)
            q8_row(b, b, STRIP);
    }
}

typedef struct job {
    const kernels *k;
    const linear_args *a;
} job;

/* Weight rows [r0, r1) for rows [t0, t0 + n) of x. A strip may reach into the next group: only the
 * rows asked for are stored. */
static void linear_part(const job *j, const scratch *s, int64_t r0, int64_t r1, int t0, int n)
{
    const linear_args *a = j->a;
    const matrix *m = &a->w->m;
    int64_t groups = a->groups > 1 ? a->groups : 1, rows = m->rows / groups, stride;

    stride = groups * m->cols;
    for (int64_t g = r0 / rows; g * rows < r1; g++) {
        int64_t lo = g * rows > r0 ? g * rows : r0, hi = (g + 1) * rows < r1 ? (g + 1) * rows : r1;

        CPU_FN(strip_pack)
        (s->x, (const uint16_t *)a->x + t0 * stride + g * m->cols, stride, NULL, n, m->cols);
        for (int64_t i = lo / STRIP; i * STRIP < hi; i++) {
            strip w = matrix_strip(m, i);
            int first = (int)(lo > i * STRIP ? lo - i * STRIP : 0);
            int last = (int)(hi < (i + 1) * STRIP ? hi - i * STRIP : STRIP);

            CPU_FN(strip_product)(s->out, &w, s->x, n, s->panel);
            for (int t = 0; t < n; t++)
                store(a, (t0 + t) * m->rows + i * STRIP + first, s->out + t * STRIP + first,
                      last - first);
        }
    }
}

static void linear_job(void *arg, int thread, int n_threads)
{
    const job *j = arg;
    const matrix *m = &j->a->w->m;
    scratch s = scratch_get(j->k, thread);
    int64_t begin, end;

    pool_split(m->rows, STRIP, thread, n_threads, &begin, &end);
    for (int t = 0; begin < end && t < j->a->n; t += STRIP_ROWS)
        linear_part(j, &s, begin, end, t, j->a->n - t < STRIP_ROWS ? j->a->n - t : STRIP_ROWS);
}

void CPU_FN(cpu_linear)(kernels *k, const linear_args *a)
{
    job j = {k, a};

    pool_run(k->pool, linear_job, &j);
}
