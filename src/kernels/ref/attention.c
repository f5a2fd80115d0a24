/* Rotations, queries, window keys and sparse attention (kernels/step.h, kernels/attention.h). */
#include "kernels/ref/ref.h"

#include <math.h>

void ref_rope_rows(kernels *k, const rope_rows_args *a)
{
    (void)k;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t j = 0; j < a->half; j++) {
            float angle = (float)a->pos[i] * a->freq[j], *cs = a->cs + (i * a->half + j) * 2;

            cs[0] = (float)cos((double)angle);
            cs[1] = (float)sin((double)angle);
        }
}

static void qkv_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const qkv_args *a = job->args;
    float *kv = job->impl->thread[thread].f;
    int64_t q_rank = a->q_rank, dim = a->dim, begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const float *in = (const float *)a->qkv + i * (q_rank + dim);

        if (q_rank > 0) {
            float *qr = (float *)a->qr_q8 + i * q_rank;

            ref_rms(job->k, qr, in, a->q_norm, q_rank, a->eps);
            ref_q8(job->k, qr, q_rank);
        }
        ref_rms(job->k, kv, in + q_rank, a->kv_norm, dim, a->eps);
        ref_rope(job->k, kv + dim - a->rope, a->cs + i * a->rope, a->rope / 2);
        ref_ring_encode(a->layout, a->kv_rows + (size_t)i * a->layout->ring_row_bytes, kv);
    }
}

void ref_qkv(kernels *k, const qkv_args *a)
{
    const ring_commit_args commit = {a->commit, a->layout, a->ring, a->kv_rows};

    ref_run(k, qkv_job, a);
    if (a->commit)
        ref_ring_commit(k, &commit);
}

static void latent_decode(const kv_layout *l, float *x, const uint8_t *row)
{
    size_t d = (size_t)l->head_dim;

    if (l->format == KV_F32)
        memcpy(x, row, d * sizeof *x);
    else
        q4c_decode(x, row, row + d / 2, d);
}

/* Window keys at positions lo .. hi-1: ring before the step, kv_rows since. */
static int64_t window_keys(const ref_job *job, int32_t seq, int64_t lo, int64_t hi, float *key)
{
    const attention_args *a = job->args;
    const kv_layout *l = a->layout;
    const kv_view *v = &a->s->view[seq];

    for (int64_t p = lo; p < hi; p++, key += l->head_dim) {
        const uint8_t *row =
            p < v->len ? kv_ring(l, v, a->ring, p)
                       : a->kv_rows + (size_t)(a->s->row0[seq] + p - v->len) * l->ring_row_bytes;

        ref_ring_decode(job->impl, l, key, row);
    }
    return hi - lo;
}

/* The keys that row i attends, in order, as f32 [n][head_dim]. Returns n. */
static int64_t gather_keys(const ref_job *job, int64_t i, float *key)
{
    const attention_args *a = job->args;
    const kv_layout *l = a->layout;
    int32_t seq = a->s->seq[i];
    const kv_view *v = &a->s->view[seq];
    int64_t pos = a->s->pos[i], window = l->window, lo, n;

    if (a->draft) {
        int64_t block = a->s->row0[seq + 1] - a->s->row0[seq];

        return window_keys(job, seq, v->len > window ? v->len - window : 0, v->len + block, key);
    }
    lo = pos >= window ? pos - window + 1 : 0;
    n = window_keys(job, seq, lo > v->ring_first ? lo : v->ring_first, pos + 1, key);
    for (int64_t t = 0; a->owner >= 0 && t < a->n_sel[i]; t++, n++)
        latent_decode(l, key + n * l->head_dim, kv_latent(l, v, a->owner, a->sel[i * a->topk + t]));
    return n;
}

static void attend(const ref_job *job, int64_t i, int64_t head, const float *key, int64_t n_keys,
                   float *prob, const ref_scratch *s)
{
    const attention_args *a = job->args;
    const kernels *k = job->k;
    int64_t dim = a->layout->head_dim, at = (i * a->n_heads + head) * dim, nope = dim - a->rope;
    const float *cs = a->cs + i * a->rope;
    float *o = (float *)a->o + at, top = -1e30f, den;
    double *q = s->row[0], *acc = s->row[1], total = 0;

    memcpy(o, (const float *)a->q + at, (size_t)dim * sizeof *o);
    ref_rope(k, o + nope, cs, a->rope / 2);
    for (int64_t d = 0; d < dim; d++) {
        q[d] = (double)o[d];
        acc[d] = 0;
        o[d] = 0;
    }
    if (n_keys == 0)
        return;
    for (int64_t t = 0; t < n_keys; t++) {
        prob[t] = (float)ref_dot(q, key + t * dim, dim) * a->scale;
        top = fmaxf(top, prob[t]);
    }
    for (int64_t t = 0; t < n_keys; t++) {
        float p = expf(prob[t] - top);

        total += (double)p;
        ref_axpy(acc, (double)ref_round(k, p), key + t * dim, dim);
    }
    den = (float)total + expf(ref_vec(a->sink, head) - top);
    for (int64_t d = 0; d < dim; d++)
        o[d] = ref_round(k, (float)acc[d] / den);
    ref_rope_back(k, o + nope, cs, a->rope / 2);
}

static void attention_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const attention_args *a = job->args;
    const ref_scratch *s = &job->impl->thread[thread];
    float *key = s->f, *prob = s->f + job->impl->max_keys * (size_t)a->layout->head_dim;
    int64_t begin, end, row = -1, n_keys = 0;

    pool_split((int64_t)a->s->n_rows * a->n_heads, 1, thread, n_threads, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        if (item / a->n_heads != row) {
            row = item / a->n_heads;
            n_keys = gather_keys(job, row, key);
        }
        attend(job, row, item % a->n_heads, key, n_keys, prob, s);
    }
}

void ref_attention(kernels *k, const attention_args *a)
{
    ref_run(k, attention_job, a);
}

void ref_ring_commit(kernels *k, const ring_commit_args *a)
{
    const step *s = a->s;
    size_t bytes = a->layout->ring_row_bytes;

    (void)k;
    for (int32_t seq = 0; seq < s->n_seqs; seq++) {
        int32_t end = s->row0[seq + 1], row = s->row0[seq];

        if (end - row > a->layout->ring_rows)
            row = end - a->layout->ring_rows;
        for (; row < end; row++)
            memcpy(kv_ring(a->layout, &s->view[seq], a->ring, s->pos[row]),
                   a->kv_rows + (size_t)row * bytes, bytes);
    }
}
