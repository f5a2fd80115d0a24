/* Linear layers and Q8 (kernels/linear.h). */
#include "kernels/ref/ref.h"

static void linear_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const linear_args *a = job->args;
    const weight *w = a->w;
    const float *x = a->x;
    float *y = a->y;
    int64_t groups = a->groups > 1 ? a->groups : 1, n_out = w->rows, n_in = w->cols, begin, end;
    double *row = job->impl->thread[thread].row[0];

    /* Whole Q8 groups per thread. */
    pool_split(n_out, a->out == LINEAR_Q8 ? Q8_GROUP : 1, thread, n_threads, &begin, &end);
    for (int64_t c = begin; c < end; c++) {
        int64_t g = c / (n_out / groups);

        ref_weight_row(job->impl, w, c, row);
        for (int64_t i = 0; i < a->n; i++) {
            float v = (float)ref_dot(row, x + (i * groups + g) * n_in, n_in);
            float *to = y + i * n_out + c;

            if (a->out == LINEAR_F32)
                *to = a->accumulate ? *to + v : v;
            else
                *to = ref_round(job->k, v);
        }
    }
    if (a->out == LINEAR_Q8)
        for (int64_t i = 0; i < a->n; i++)
            ref_q8(job->k, y + i * n_out + begin, end - begin);
}

void ref_linear(kernels *k, const linear_args *a)
{
    ref_run(k, linear_job, a);
}

void ref_quantize(kernels *k, const quantize_args *a)
{
    float *q8 = a->q8;
    int64_t n = (int64_t)a->n * a->cols;

    memcpy(q8, a->x, (size_t)n * sizeof *q8);
    ref_q8(k, q8, n);
}
