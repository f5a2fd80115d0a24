/* Indexer: scores and selection (kernels/index.h). */
#include "kernels/ref/ref.h"

#include <math.h>

static int64_t visible_entries(const step *s, const kv_layout *l, int owner, int64_t row)
{
    return (s->pos[row] + 1) / l->owner[owner].ratio;
}

static int64_t n_blocks(int64_t visible, int block)
{
    return (visible + block - 1) / block;
}

/* The e-th eligible entry of a row. Only the last candidate block can be ragged. */
static int64_t eligible_entry(const candidates *filter, int64_t row, int64_t e)
{
    if (!filter || filter->count[row] < 0)
        return e;
    return (int64_t)filter->ids[row * filter->max_blocks + e / filter->block] * filter->block +
           e % filter->block;
}

/* Queries of a row as f32 on their grid: Q4i(rope(iq)), [heads][dim]. */
static void index_queries(const kernels *k, const index_scores_args *a, int64_t row, float *q)
{
    int64_t dim = a->layout->index_dim;
    uint8_t code[Q4I_GROUP / 2], scale;

    memcpy(q, (const float *)a->iq + row * a->heads * dim, (size_t)(a->heads * dim) * sizeof *q);
    for (int64_t h = 0; h < a->heads; h++)
        ref_rope(k, q + (h + 1) * dim - a->rope, a->cs + row * a->rope, a->rope / 2);
    for (int64_t i = 0; k->numerics != NUMERICS_F32 && i < a->heads * dim; i += Q4I_GROUP) {
        q4i_encode(code, &scale, q + i, Q4I_GROUP);
        q4i_decode(q + i, code, &scale, Q4I_GROUP);
    }
}

static void key_decode(const kv_layout *l, double *key, const uint8_t *row, float *scratch)
{
    size_t d = (size_t)l->index_dim;

    if (l->format == KV_F32)
        memcpy(scratch, row, d * sizeof *scratch);
    else
        q4i_decode(scratch, row, row + d / 2, d);
    for (size_t i = 0; i < d; i++)
        key[i] = (double)scratch[i];
}

static void score_row(const ref_job *job, int64_t i, int64_t begin, int64_t end,
                      const ref_scratch *s)
{
    const index_scores_args *a = job->args;
    const kernels *k = job->k;
    int64_t dim = a->layout->index_dim, row = a->row0 + i;
    const kv_view *v = &a->s->view[a->s->seq[row]];
    float *q = s->f, *w = q + a->heads * dim, *scratch = w + a->heads;
    double norm = 1.0 / sqrt((double)dim) / sqrt((double)a->heads);

    index_queries(k, a, row, q);
    for (int64_t h = 0; h < a->heads; h++)
        w[h] = ref_round(k, ((const float *)a->iw)[row * a->heads + h] * (float)norm);
    for (int64_t e = begin; e < end; e++) {
        double sum = 0;

        key_decode(a->layout, s->row[0],
                   kv_key(a->layout, v, a->owner, eligible_entry(a->filter, row, e)), scratch);
        for (int64_t h = 0; h < a->heads; h++)
            sum += fmax(ref_dot(s->row[0], q + h * dim, dim), 0.0) * (double)w[h];
        a->scores[i * a->stride + e] = (float)sum;
    }
}

static void scores_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const index_scores_args *a = job->args;

    for (int64_t i = 0; i < a->n; i++) {
        int64_t visible = visible_entries(a->s, a->layout, a->owner, a->row0 + i);
        int64_t eligible = index_eligible(visible, a->filter, a->row0 + (int)i), begin, end;
        bool blocks = a->source_blocks > 0 && n_blocks(visible, a->block) > a->source_blocks;

        if (eligible <= a->topk && !blocks)
            continue;
        pool_split(eligible, 1, thread, n_threads, &begin, &end);
        if (begin < end)
            score_row(job, i, begin, end, &job->impl->thread[thread]);
    }
}

void ref_index_scores(kernels *k, const index_scores_args *a)
{
    ref_run(k, scores_job, a);
}

/* Indices of the k best of x [n], ascending; of equals the lower ones. Returns how many. */
static int32_t best(const float *x, int64_t n, int64_t k, int32_t *out)
{
    int64_t above = 0, ties;
    int32_t n_out = 0;
    float cut = -INFINITY;

    if (n > k)
        cut = ref_kth_largest(x, n, k, &above);
    ties = n > k ? k - above : n;
    for (int64_t i = 0; i < n; i++) {
        bool tie = x[i] == cut && ties > 0;

        if (n <= k || x[i] > cut || tie)
            out[n_out++] = (int32_t)i;
        ties -= tie;
    }
    return n_out;
}

/* The blocks that later layers may look into. */
static void keep_blocks(const select_args *a, int64_t i, int64_t visible, float *block_score)
{
    candidates *out = a->out;
    const float *score = a->scores + i * a->stride;
    int64_t row = a->row0 + i, n = n_blocks(visible, out->block);

    out->count[row] = -1;
    if (n <= out->max_blocks)
        return;
    for (int64_t b = 0; b < n; b++)
        block_score[b] = -INFINITY;
    for (int64_t e = 0; e < visible; e++)
        block_score[e / out->block] = fmaxf(block_score[e / out->block], score[e]);
    block_score[n - 1] = INFINITY; /* the newest entry's */
    out->count[row] = best(block_score, n, out->max_blocks, out->ids + row * out->max_blocks);
}

static void select_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const select_args *a = job->args;
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t row = a->row0 + i;
        int64_t visible = visible_entries(a->s, a->layout, a->owner, row);
        int64_t eligible = index_eligible(visible, a->filter, (int)row);
        int32_t *sel = a->sel + row * a->topk;

        if (a->out)
            keep_blocks(a, i, visible, job->impl->thread[thread].f);
        /* The scores of a row whose entries all fit may be missing: `best` does not look at them.
         */
        a->n_sel[row] = best(a->scores + i * a->stride, eligible, a->topk, sel);
        for (int32_t t = 0; t < a->n_sel[row]; t++)
            sel[t] = (int32_t)eligible_entry(a->filter, row, sel[t]);
    }
}

void ref_select(kernels *k, const select_args *a)
{
    ref_run(k, select_job, a);
}
