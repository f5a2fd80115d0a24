/* Rows of tables: embeddings and Engram memory (kernels/step.h, kernels/engram.h). */
#include "kernels/ref/ref.h"

#include <math.h>

void ref_gather(kernels *k, const gather_args *a)
{
    int64_t cols = a->table->cols;
    float *out = a->out;

    (void)k;
    for (int64_t row = 0; row < a->n; row++, out += a->copies * cols) {
        const uint16_t *own = a->vectors ? a->vectors[row] : NULL;
        const uint8_t *table = a->table->part[0].data;
        const void *from = own ? (const void *)own : table + a->ids[row] * cols * 2;

        for (int64_t c = 0; c < cols; c++)
            out[c] = load_bf16(from, c);
        for (int64_t copy = 1; copy < a->copies; copy++)
            memcpy(out + copy * cols, out, (size_t)cols * sizeof *out);
    }
}

void ref_engram_gather(kernels *k, const engram_gather_args *a)
{
    const ref_impl *impl = k->impl;
    int64_t dim = a->table->cols, n_rows = (int64_t)a->n * a->n_cols;
    double *row = impl->thread[0].row[0];
    float *out = a->out_q8;

    for (int64_t i = 0; i < n_rows; i++) {
        ref_weight_row(impl, a->table, a->ids[i], row);
        for (int64_t c = 0; c < dim; c++)
            out[i * dim + c] = ref_round(k, (float)row[c]);
    }
    ref_q8(k, out, n_rows * dim);
}

/* The gate of copy i: sigmoid of the signed square root of its normalised product with the key. */
static float gate(const engram_apply_args *a, const float *x, const float *key, int64_t i)
{
    int64_t dim = a->dim;
    double sum = 0;
    float dot;

    for (int64_t d = 0; d < dim; d++) {
        float w = ref_vec(a->q_w, i * dim + d) * ref_vec(a->k_w, i * dim + d);

        sum += (double)x[d] * (double)w * (double)key[d];
    }
    dot = (float)(sum * (double)ref_rms_factor(x, dim, a->eps) *
                  (double)ref_rms_factor(key, dim, a->eps) / sqrt((double)dim));
    return ref_sigmoid(copysignf(sqrtf(fmaxf(fabsf(dot), 1e-6f)), dot));
}

static void apply_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const engram_apply_args *a = job->args;
    int64_t hc = a->hc, dim = a->dim, begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const float *kv = (const float *)a->kv + row * (hc + 1) * dim, *value = kv + hc * dim;

        for (int64_t i = 0; i < hc; i++) {
            float *x = (float *)a->x + (row * hc + i) * dim;
            float g = a->image && a->image[row] ? 0.0f : gate(a, x, kv + i * dim, i);

            for (int64_t d = 0; d < dim; d++)
                x[d] = ref_round(job->k, x[d] + g * value[d]);
            if (a->gate)
                a->gate[row * hc + i] = g;
        }
    }
}

void ref_engram_apply(kernels *k, const engram_apply_args *a)
{
    ref_run(k, apply_job, a);
}
