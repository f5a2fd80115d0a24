/* Hyper-connections and the taps of the draft (kernels/hc.h). */
#include "kernels/ref/ref.h"

#include <math.h>

#define MAX_HC 16

/* x[j] = bf(post[j] * y + sum_i comb[i][j] * x[i]): the FIRST index of comb is summed. */
static void expand(const kernels *k, const hc_args *a, int64_t row)
{
    int64_t hc = a->hc, dim = a->dim;
    float *x = (float *)a->x + row * hc * dim;
    const float *y = (const float *)a->y + row * dim;
    const float *post = a->post + row * hc, *comb = a->comb + row * hc * hc;

    for (int64_t d = 0; d < dim; d++) {
        double out[MAX_HC];

        for (int64_t j = 0; j < hc; j++) {
            out[j] = (double)post[j] * (double)y[d];
            for (int64_t i = 0; i < hc; i++)
                out[j] += (double)comb[i * hc + j] * (double)x[i * dim + d];
        }
        for (int64_t j = 0; j < hc; j++)
            x[j * dim + d] = ref_round(k, (float)out[j]);
    }
}

/* Row softmax plus eps, then divide by column sums and row sums in turn, ending on columns. */
static void sinkhorn(float *c, int64_t hc, int iters, float eps)
{
    for (int64_t i = 0; i < hc; i++) {
        float *row = c + i * hc, top = row[0], sum = 0;

        for (int64_t j = 1; j < hc; j++)
            top = fmaxf(top, row[j]);
        for (int64_t j = 0; j < hc; j++)
            sum += row[j] = expf(row[j] - top);
        for (int64_t j = 0; j < hc; j++)
            row[j] = row[j] / sum + eps;
    }
    for (int pass = 0; pass < iters; pass++) {
        for (int64_t i = 0; pass > 0 && i < hc; i++) {
            float sum = 0;

            for (int64_t j = 0; j < hc; j++)
                sum += c[i * hc + j];
            for (int64_t j = 0; j < hc; j++)
                c[i * hc + j] /= sum + eps;
        }
        for (int64_t j = 0; j < hc; j++) {
            float sum = 0;

            for (int64_t i = 0; i < hc; i++)
                sum += c[i * hc + j];
            for (int64_t i = 0; i < hc; i++)
                c[i * hc + j] /= sum + eps;
        }
    }
}

static void mix(const hc_args *a, int64_t row, const ref_impl *impl, double *fn_row)
{
    int64_t hc = a->hc, flat = hc * a->dim;
    const float *x = (const float *)a->x + row * flat;
    float r = ref_rms_factor(x, flat, a->eps);
    float scale[3] = {ref_vec(a->scale, 0), ref_vec(a->scale, 1), ref_vec(a->scale, 2)};
    float *comb = a->comb_out + row * hc * hc;

    for (int64_t i = 0; i < (2 + hc) * hc; i++) {
        float m, base = ref_vec(a->base, i);

        ref_weight_row(impl, a->fn, i, fn_row);
        m = (float)ref_dot(fn_row, x, flat) * r;
        if (i < hc)
            a->pre_out[row * hc + i] = ref_sigmoid(m * scale[0] + base) + a->hc_eps;
        else if (i < 2 * hc)
            a->post_out[row * hc + i - hc] = 2.0f * ref_sigmoid(m * scale[1] + base);
        else
            comb[i - 2 * hc] = m * scale[2] + base;
    }
    sinkhorn(comb, hc, a->iters, a->hc_eps);
}

/* c = bf(sum_i pre[i] * x[i]) of one row; without pre: the first copy. */
static void collapse(const kernels *k, const hc_args *a, const float *pre, int64_t from, float *c)
{
    const float *x = (const float *)a->x + from * a->hc * a->dim;

    for (int64_t d = 0; d < a->dim; d++) {
        double sum = 0;

        for (int64_t i = 0; i < a->hc; i++)
            sum += (double)(pre ? pre[i] : (float)(i == 0)) * (double)x[i * a->dim + d];
        c[d] = ref_round(k, (float)sum);
    }
}

static void collapse_and_norm(const kernels *k, const hc_args *a, const float *pre, int64_t row,
                              float *c)
{
    int64_t dim = a->dim;
    size_t bytes = (size_t)dim * sizeof *c;

    collapse(k, a, pre, a->rows ? a->rows[row] : row, c);
    if (a->collapsed)
        memcpy((float *)a->collapsed + row * dim, c, bytes);
    if (!a->norm)
        return;
    ref_rms(k, c, c, a->norm, dim, a->eps);
    if (a->out)
        memcpy((float *)a->out + row * dim, c, bytes);
    if (a->out_q8) {
        ref_q8(k, c, dim);
        memcpy((float *)a->out_q8 + row * dim, c, bytes);
    }
}

static void hc_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const hc_args *a = job->args;
    ref_scratch *s = &job->impl->thread[thread];
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        int64_t from = a->rows ? a->rows[row] : row;
        float pre[MAX_HC]; /* a copy: pre_out may be the same memory */

        if (a->pre_in)
            memcpy(pre, a->pre_in + from * a->hc, (size_t)a->hc * sizeof *pre);
        if (a->y)
            expand(job->k, a, row);
        if (a->fn)
            mix(a, row, job->impl, s->row[0]);
        if (a->norm || a->collapsed)
            collapse_and_norm(job->k, a, a->pre_in ? pre : NULL, row, s->f);
    }
}

void ref_hc(kernels *k, const hc_args *a)
{
    ref_run(k, hc_job, a);
}

void ref_tap(kernels *k, const tap_args *a)
{
    for (int64_t row = 0; row < a->n; row++) {
        const float *x = (const float *)a->x + row * a->hc * a->dim;
        float *out = (float *)a->out + row * a->out_stride;

        for (int64_t d = 0; d < a->dim; d++) {
            double sum = 0;

            for (int64_t i = 0; i < a->hc; i++)
                sum += (double)x[i * a->dim + d];
            out[d] = ref_round(k, (float)(sum / (double)a->hc));
        }
    }
}
