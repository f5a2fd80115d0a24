/* Compressors of the KV owners (kernels/compress.h). */
#include "kernels/ref/ref.h"

#include <math.h>

/* Projection (a, then z) of token t of group g: a row of this step, or the open ring. */
static const float *group_token(const compress_pool_args *a, int64_t g, int64_t t)
{
    int64_t ratio = a->g->ratio, last = a->g->last_row[g], row = last - (ratio - 1) + t;
    int32_t seq = a->s->seq[last];

    if (row >= a->s->row0[seq])
        return (const float *)a->proj + row * 2 * a->layout->head_dim;
    return kv_open(a->layout, &a->s->view[seq], a->owner, a->g->entry[g] * ratio + t);
}

/* Per channel: softmax over the gates of the group's tokens weights their values. */
static void pool_group(const kernels *k, const compress_pool_args *a, int64_t g, float *pooled)
{
    int64_t dim = a->layout->head_dim, ratio = a->g->ratio;

    for (int64_t d = 0; d < dim; d++) {
        float top = -INFINITY, total = 0;
        double sum = 0;

        for (int64_t t = 0; t < ratio; t++)
            top = fmaxf(top, group_token(a, g, t)[dim + d]);
        for (int64_t t = 0; t < ratio; t++)
            total += expf(group_token(a, g, t)[dim + d] - top);
        for (int64_t t = 0; t < ratio; t++) {
            const float *token = group_token(a, g, t);

            sum += (double)token[d] * (double)(expf(token[dim + d] - top) / total);
        }
        pooled[d] = ref_round(k, (float)sum);
    }
}

static void pool_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const compress_pool_args *a = job->args;
    float *pooled = job->impl->thread[thread].f;
    int64_t dim = a->layout->head_dim, begin, end;

    pool_split(a->g->n, 1, thread, n_threads, &begin, &end);
    for (int64_t g = begin; g < end; g++) {
        const float *in = pooled;

        if (a->g->last_row[g] == STEP_NO_GROUP)
            continue;
        if (a->g->ratio == 1)
            in = (const float *)a->proj + a->g->last_row[g] * dim;
        else
            pool_group(job->k, a, g, pooled);
        ref_rms(job->k, (float *)a->lat + g * dim, in, a->norm, dim, a->eps);
    }
}

/* The last open_rows rows of every sequence, for the groups that later steps complete. */
static void keep_open_rows(const compress_pool_args *a)
{
    const step *s = a->s;
    int64_t width = 2 * a->layout->head_dim;

    for (int32_t seq = 0; seq < s->n_seqs; seq++) {
        int32_t end = s->row0[seq + 1], row = s->row0[seq];
        int32_t keep = a->layout->owner[a->owner].open_rows;

        if (end - row > keep)
            row = end - keep;
        for (; row < end; row++)
            memcpy(kv_open(a->layout, &s->view[seq], a->owner, s->pos[row]),
                   (const float *)a->proj + row * width, (size_t)width * sizeof(float));
    }
}

void ref_compress_pool(kernels *k, const compress_pool_args *a)
{
    ref_run(k, pool_job, a);
    if (a->g->ratio > 1)
        keep_open_rows(a);
}

void ref_compress_store(kernels *k, const compress_store_args *a)
{
    const kv_layout *l = a->layout;
    const ref_impl *impl = k->impl;
    int64_t dim = l->head_dim, idim = l->index_dim;
    float *x = impl->thread[0].f;

    for (int64_t g = 0; g < a->g->n; g++) {
        const float *cs = a->cs + g * a->rope;
        const kv_view *v;
        uint8_t *key, *latent;

        if (a->g->last_row[g] == STEP_NO_GROUP)
            continue;
        v = &a->s->view[a->s->seq[a->g->last_row[g]]];
        key = kv_key(l, v, a->owner, a->g->entry[g]);
        latent = kv_latent(l, v, a->owner, a->g->entry[g]);
        ref_rms(k, x, (const float *)a->key_raw + g * idim, a->k_norm, idim, a->eps);
        ref_rope(k, x + idim - a->rope, cs, a->rope / 2);
        if (l->format == KV_F32)
            memcpy(key, x, (size_t)idim * sizeof *x);
        else
            q4i_encode(key, key + idim / 2, x, (size_t)idim);
        memcpy(x, (const float *)a->lat + g * dim, (size_t)dim * sizeof *x);
        ref_rope(k, x + dim - a->rope, cs, a->rope / 2);
        if (l->format == KV_F32)
            memcpy(latent, x, (size_t)dim * sizeof *x);
        else
            q4c_encode(latent, latent + dim / 2, x, (size_t)dim);
    }
}
