/* Sampling, log-probabilities and the confidence of drafts (kernels/sample.h). */
#include "kernels/ref/ref.h"

#include <math.h>

#include "kernels/noise.h"

/* Largest finite entry, the lowest index of equals; -1 when there is none. */
static int32_t arg_max(const float *z, int32_t n)
{
    int32_t best = -1;

    for (int32_t t = 0; t < n; t++)
        if (z[t] > -INFINITY && (best < 0 || z[t] > z[best]))
            best = t;
    return best;
}

/* Adjusted logits; tokens that the mask forbids become -inf. */
static void adjust_and_mask(const sample_row *r, const float *logits, int32_t vocab, float *z)
{
    memcpy(z, logits, (size_t)vocab * sizeof *z);
    for (int32_t i = 0; i < r->n_adjust; i++) {
        const logit_adjust *adj = &r->adjust[i];
        float l = z[adj->id];

        z[adj->id] = (l > 0 ? l / adj->rep : l * adj->rep) + adj->add;
    }
    for (int32_t t = 0; r->mask && t < vocab; t++)
        if (!(r->mask[t / 32] >> (t % 32) & 1u))
            z[t] = -INFINITY;
}

/* Keep the k largest; of equals at the cut the lower ids. */
static void keep_top_k(float *z, int32_t n, int32_t k)
{
    int64_t above, ties;
    float cut;

    if (k <= 0 || k >= n)
        return;
    cut = ref_kth_largest(z, n, k, &above);
    ties = k - above;
    for (int32_t t = 0; t < n; t++)
        if (z[t] < cut || (z[t] == cut && ties-- <= 0))
            z[t] = -INFINITY;
}

/* Larger first, of equals the lower id. */
static bool before(const float *z, int32_t a, int32_t b)
{
    return z[a] > z[b] || (z[a] == z[b] && a < b);
}

static void sift_down(const float *z, int32_t *heap, int32_t n, int32_t i)
{
    int32_t item = heap[i];

    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(z, heap[child + 1], heap[child]))
            child++;
        if (!before(z, heap[child], item))
            break;
        heap[i] = heap[child];
    }
    heap[i] = item;
}

/* Keep the shortest prefix, in order of falling probability, whose sum reaches p of the total. */
static void keep_top_p(float *z, int32_t n, float p, float top, int32_t *heap)
{
    double total = 0, sum = 0;
    int32_t count = 0;

    for (int32_t t = 0; t < n; t++)
        if (z[t] > -INFINITY) {
            total += exp((double)z[t] - (double)top);
            heap[count++] = t;
        }
    for (int32_t i = count / 2 - 1; i >= 0; i--)
        sift_down(z, heap, count, i);
    while (count > 0 && sum < (double)p * total) {
        sum += exp((double)z[heap[0]] - (double)top);
        heap[0] = heap[--count];
        if (count > 0)
            sift_down(z, heap, count, 0);
    }
    for (int32_t i = 0; i < count; i++) /* what is left in the heap lies behind the prefix */
        z[heap[i]] = -INFINITY;
}

static void keep_min_p(float *z, int32_t n, float min_p, float top)
{
    for (int32_t t = 0; t < n; t++)
        if (exp((double)z[t] - (double)top) < (double)min_p)
            z[t] = -INFINITY;
}

static int32_t sample_one(const sample_row *r, const float *logits, int32_t vocab, float *z,
                          int32_t *heap)
{
    int32_t best;
    float top;

    adjust_and_mask(r, logits, vocab, z);
    if (r->temperature > 0)
        for (int32_t t = 0; t < vocab; t++)
            z[t] /= r->temperature;
    best = arg_max(z, vocab);
    if (best < 0 || r->temperature <= 0)
        return best;
    top = z[best];
    keep_top_k(z, vocab, r->top_k);
    if (r->top_p < 1)
        keep_top_p(z, vocab, r->top_p, top, heap);
    if (r->min_p > 0)
        keep_min_p(z, vocab, r->min_p, top);
    for (int32_t t = 0; t < vocab; t++)
        if (z[t] > -INFINITY)
            z[t] += noise_gumbel(r->seed, r->choice, r->position, (uint32_t)t);
    return arg_max(z, vocab);
}

static void sample_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const sample_args *a = job->args;
    float *z = job->impl->thread[thread].f;
    int32_t *heap = job->impl->thread[thread].id;
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        sample_row row = a->row[i];

        row.position += a->ahead;
        a->token[i] = sample_one(&row, a->logits + i * a->vocab, a->vocab, z, heap);
    }
}

void ref_sample(kernels *k, const sample_args *a)
{
    ref_run(k, sample_job, a);
}

/* The n_top best tokens in falling order by insertion. */
static void top_tokens(const float *logit, int32_t vocab, int n_top, int32_t *id)
{
    int n = 0;

    for (int32_t t = 0; t < vocab && n_top > 0; t++) {
        int at = n;

        while (at > 0 && logit[t] > logit[id[at - 1]])
            at--;
        if (at == n_top)
            continue;
        if (n < n_top)
            n++;
        for (int i = n - 1; i > at; i--)
            id[i] = id[i - 1];
        id[at] = t;
    }
}

static void logprobs_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const logprobs_args *a = job->args;
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const float *logit = a->logits + i * a->vocab;
        int32_t token = a->token[i], best = arg_max(logit, a->vocab), rank = 0;
        double top = best < 0 ? 0 : (double)logit[best], sum = 0, log_total;

        for (int32_t t = 0; t < a->vocab; t++) {
            sum += exp((double)logit[t] - top);
            rank += before(logit, t, token);
        }
        log_total = top + log(sum);
        a->logprob[i] = (float)((double)logit[token] - log_total);
        a->rank[i] = rank;
        top_tokens(logit, a->vocab, a->n_top, a->top_id + i * a->n_top);
        for (int64_t j = i * a->n_top; j < (i + 1) * a->n_top; j++)
            a->top_logprob[j] = (float)((double)logit[a->top_id[j]] - log_total);
    }
}

void ref_logprobs(kernels *k, const logprobs_args *a)
{
    ref_run(k, logprobs_job, a);
}

void ref_confidence(kernels *k, const confidence_args *a)
{
    const ref_impl *impl = k->impl;
    double *w = impl->thread[0].row[0];

    ref_weight_row(impl, a->w, 0, w);
    for (int64_t i = 0; i < a->n; i++)
        a->out[i] = (float)(ref_dot(w, (const float *)a->h + i * a->dim, a->dim) +
                            ref_dot(w + a->dim, (const float *)a->e + i * a->rank, a->rank));
}
