/* Mixture of experts (kernels/moe.h). */
#include "kernels/ref/ref.h"

#include <math.h>

static float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* Best expert by s + bias that is not yet among the first `n` of ids; ties: the lower id. */
static int32_t next_best(const route_args *a, const float *logit, const weight *bias,
                         const int32_t *ids, int n)
{
    int32_t best = -1;
    float top = 0;

    for (int32_t e = 0; e < a->n_experts; e++) {
        float s = sqrtf(softplus(logit[e])) + ref_vec(bias, e);
        bool taken = false;

        for (int i = 0; i < n; i++)
            taken |= ids[i] == e;
        if (!taken && (best < 0 || s > top)) {
            best = e;
            top = s;
        }
    }
    return best;
}

void ref_route(kernels *k, const route_args *a)
{
    (void)k;
    for (int64_t row = 0; row < a->n; row++) {
        const float *logit = a->logits + row * a->n_experts;
        bool image = a->image && a->image[row] && a->bias_vl;
        int32_t *ids = a->ids + row * a->k;
        float *w = a->weights + row * a->k;
        double sum = 0;

        for (int i = 0; i < a->k; i++) {
            ids[i] = next_best(a, logit, image ? a->bias_vl : a->bias, ids, i);
            w[i] = sqrtf(softplus(logit[ids[i]]));
            sum += (double)w[i];
        }
        for (int i = 0; i < a->k; i++) {
            if (a->normalize && a->k > 1)
                w[i] = w[i] / ((float)sum + 1e-20f);
            w[i] *= a->scale;
        }
    }
}

/* What the two passes of `experts` share. */
typedef struct experts_job {
    const experts_args *a;
    const ref_experts *e;
    const int32_t *slot, *first; /* slots (row * k + i) by expert */
    float *h;                    /* [n * (k + 1)][inter]: routed slots, then the shared expert's */
} experts_job;

/* Slots in the order of their expert. Counting sort; first [n_experts + 1]. */
static void group_by_expert(const experts_args *a, int n_experts, int32_t *slot, int32_t *first)
{
    int32_t n = a->n * a->k;

    memset(first, 0, ((size_t)n_experts + 1) * sizeof *first);
    for (int32_t i = 0; i < n; i++)
        first[a->ids[i] + 1]++;
    for (int e = 0; e < n_experts; e++)
        first[e + 1] += first[e];
    for (int32_t i = 0; i < n; i++)
        slot[first[a->ids[i]]++] = i;
    for (int e = n_experts; e > 0; e--) /* first[e] has moved to the end of e */
        first[e] = first[e - 1];
    first[0] = 0;
}

/* Row `col` of matrix m of expert e; e = n_experts is the shared one. */
static void expert_row(const ref_job *job, const ref_experts *e, int expert, int m, int64_t col,
                       double *out)
{
    if (expert == e->n_experts)
        ref_weight_row(job->impl, &e->shared[m], col, out);
    else
        ref_fp4_row(&e->routed[m][expert], col, m == 2 ? e->inter : e->hidden, out);
}

/* h = bf(w * (silu(g) * u)) of one slot and column, w the routing weight; 1 for the shared expert.
 */
static float swiglu(const kernels *k, float g, float u, float limit, float w)
{
    g = ref_round(k, g);
    u = ref_round(k, u);
    if (limit > 0) {
        u = fminf(fmaxf(u, -limit), limit);
        g = fminf(g, limit);
    }
    return ref_round(k, w * (g / (1.0f + expf(-g)) * u));
}

/* First pass: columns of h, for every slot. */
static void up_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const experts_job *x = job->args;
    const experts_args *a = x->a;
    const ref_experts *e = x->e;
    double *const *row = job->impl->thread[thread].row;
    int64_t hidden = e->hidden, inter = e->inter, begin, end;
    int32_t n_routed = a->n * a->k, n_slots = n_routed + a->n;

    pool_split(inter, Q8_GROUP, thread, n_threads, &begin, &end);
    for (int expert = 0; expert <= e->n_experts; expert++) {
        bool shared = expert == e->n_experts;
        int32_t lo = shared ? n_routed : x->first[expert];
        int32_t hi = shared ? n_slots : x->first[expert + 1];

        for (int64_t c = begin; lo < hi && c < end; c++) {
            expert_row(job, e, expert, 0, c, row[0]);
            expert_row(job, e, expert, 1, c, row[1]);
            for (int32_t i = lo; i < hi; i++) {
                int32_t slot = shared ? i : x->slot[i];
                int32_t token = shared ? slot - n_routed : slot / a->k;
                const float *in = (const float *)a->x_q8 + token * hidden;

                x->h[slot * inter + c] = swiglu(job->k, (float)ref_dot(row[0], in, hidden),
                                                (float)ref_dot(row[1], in, hidden), a->limit,
                                                shared ? 1.0f : a->weights[slot]);
            }
        }
    }
    for (int64_t slot = 0; slot < n_slots; slot++)
        ref_q8(job->k, x->h + slot * inter + begin, end - begin);
}

/* Second pass: columns of y; experts ascending, the shared one last, so the f32 sum of a row is in
 * that order. */
static void down_job(void *arg, int thread, int n_threads)
{
    const ref_job *job = arg;
    const experts_job *x = job->args;
    const experts_args *a = x->a;
    const ref_experts *e = x->e;
    double *row = job->impl->thread[thread].row[0];
    int64_t hidden = e->hidden, inter = e->inter, begin, end;
    float *y = a->y;

    pool_split(hidden, 1, thread, n_threads, &begin, &end);
    for (int64_t token = 0; token < a->n; token++)
        memset(y + token * hidden + begin, 0, (size_t)(end - begin) * sizeof *y);
    for (int expert = 0; expert < e->n_experts; expert++) {
        int32_t lo = x->first[expert], hi = x->first[expert + 1];

        for (int64_t c = begin; lo < hi && c < end; c++) {
            expert_row(job, e, expert, 2, c, row);
            for (int32_t i = lo; i < hi; i++)
                y[x->slot[i] / a->k * hidden + c] +=
                    ref_round(job->k, (float)ref_dot(row, x->h + x->slot[i] * inter, inter));
        }
    }
    for (int64_t c = begin; c < end; c++) {
        expert_row(job, e, e->n_experts, 2, c, row);
        for (int64_t token = 0; token < a->n; token++) {
            const float *h = x->h + (a->n * a->k + token) * inter;
            float *to = y + token * hidden + c;

            *to = ref_round(job->k, *to + ref_round(job->k, (float)ref_dot(row, h, inter)));
        }
    }
}

void ref_moe(kernels *k, const experts_args *a)
{
    ref_impl *impl = k->impl;
    const ref_experts *e = a->w->experts;
    experts_job x = {.a = a, .e = e, .slot = impl->slot, .first = impl->first, .h = impl->h};

    if (a->route)
        ref_route(k, a->route);
    group_by_expert(a, e->n_experts, impl->slot, impl->first);
    ref_run(k, up_job, &x);
    ref_run(k, down_job, &x);
}
