/* Compressors of the KV owners (kernels/compress.h). Threads split groups. */
#include "kernels/cpu/rows.h"

#include <assert.h>

#define MAX_RATIO KV_BLOCK_TOKENS

/* Projection (a, then z) of token t of group g: a row of this step, or the open ring. */
static const float *group_token(const compress_pool_args *a, int64_t g, int t)
{
    int64_t last = a->g->last_row[g], row = last - (a->g->ratio - 1) + t;
    int32_t seq = a->s->seq[last];

    if (row >= a->s->row0[seq])
        return (const float *)a->proj + row * 2 * a->layout->head_dim;
    return kv_open(a->layout, &a->s->view[seq], a->owner, a->g->entry[g] * a->g->ratio + t);
}

/* Per channel: softmax over the gates of the group's tokens weights their values. */
static void pool_group(const compress_pool_args *a, int64_t g, uint16_t *pooled)
{
    int dim = a->layout->head_dim, ratio = a->g->ratio;
    const float *token[MAX_RATIO];

    assert(ratio > 0 && ratio <= MAX_RATIO);
    for (int t = 0; t < ratio; t++)
        token[t] = group_token(a, g, t);
    for (int d = 0; d < dim; d += VF) {
        vf top = vf_load(token[0] + dim + d), total = vf_zero(), sum = vf_zero();

        for (int t = 1; t < ratio; t++)
            top = vf_max(top, vf_load(token[t] + dim + d));
        for (int t = 0; t < ratio; t++)
            total = vf_add(total, vf_exp(vf_sub(vf_load(token[t] + dim + d), top)));
        for (int t = 0; t < ratio; t++) {
            vf w = vf_div(vf_exp(vf_sub(vf_load(token[t] + dim + d), top)), total);

            sum = vf_fma(vf_load(token[t] + d), w, sum);
        }
        vf_store_bf16(pooled + d, sum);
    }
}

static void pool_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const compress_pool_args *a = job->args;
    int dim = a->layout->head_dim;
    int64_t begin, end;

    pool_split(a->g->n, 1, thread, n_threads, &begin, &end);
    for (int64_t g = begin; g < end; g++) {
        uint16_t *lat = (uint16_t *)a->lat + g * dim;
        const uint16_t *in = lat;

        if (a->g->last_row[g] == STEP_NO_GROUP)
            continue;
        if (a->g->ratio == 1)
            in = (const uint16_t *)a->proj + (int64_t)a->g->last_row[g] * dim;
        else
            pool_group(a, g, lat);
        rms_row_bf16(lat, in, a->norm->f32, dim, a->eps);
    }
}

/* The last open_rows rows of every sequence, for the groups that later steps complete. */
static void keep_open_rows(const compress_pool_args *a)
{
    const step *s = a->s;
    int64_t width = 2 * a->layout->head_dim;
    int keep = a->layout->owner[a->owner].open_rows;

    for (int seq = 0; seq < s->n_seqs; seq++) {
        int end = s->row0[seq + 1], row = s->row0[seq];

        if (end - row > keep)
            row = end - keep;
        for (; row < end; row++)
            memcpy(kv_open(a->layout, &s->view[seq], a->owner, s->pos[row]),
                   (const float *)a->proj + row * width, (size_t)width * sizeof(float));
    }
}

void CPU_FN(cpu_compress_pool)(kernels *k, const compress_pool_args *a)
{
    cpu_run_sized(k, pool_job, a, (int64_t)a->g->n * a->g->ratio * a->layout->head_dim * 16);
    if (a->g->ratio > 1) /* after all groups have read the ring */
        keep_open_rows(a);
}

static void store_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const compress_store_args *a = job->args;
    const kv_layout *l = a->layout;
    int dim = l->head_dim, idim = l->index_dim;
    uint16_t *x = cpu_thread_scratch(job->k, thread);
    int64_t begin, end;

    pool_split(a->g->n, 1, thread, n_threads, &begin, &end);
    for (int64_t g = begin; g < end; g++) {
        const float *cs = a->cs + g * a->rope;
        const kv_view *v;
        uint8_t *key, *latent;

        if (a->g->last_row[g] == STEP_NO_GROUP)
            continue;
        v = &a->s->view[a->s->seq[a->g->last_row[g]]];
        key = kv_key(l, v, a->owner, a->g->entry[g]);
        latent = kv_latent(l, v, a->owner, a->g->entry[g]);
        rms_row_bf16(x, (const uint16_t *)a->key_raw + g * idim, a->k_norm->f32, idim, a->eps);
        rope_bf16(x + idim - a->rope, cs, a->rope / 2, 1.0f);
        q4i_row_codes(key, key + idim / 2, x, idim);
        memcpy(x, (const uint16_t *)a->lat + g * dim, (size_t)dim * sizeof *x);
        rope_bf16(x + dim - a->rope, cs, a->rope / 2, 1.0f);
        q4c_row_codes(latent, latent + dim / 2, x, dim);
    }
}

void CPU_FN(cpu_compress_store)(kernels *k, const compress_store_args *a)
{
    cpu_run_sized(k, store_job, a, (int64_t)a->g->n * a->layout->head_dim * 16);
}
