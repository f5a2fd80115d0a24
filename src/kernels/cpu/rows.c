/* Operations on single rows: tables, rotations, queries and window keys, Engram, router,
 * confidence; and the scratch of all files over rows.h. Threads split rows. */
#include "kernels/cpu/rows.h"

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t CPU_FN(rows_thread_bytes)(const kernel_limits *l)
{
    size_t n = larger(CPU_FN(attention_thread_bytes)(l), CPU_FN(index_thread_bytes)(l));
    size_t one_row = (size_t)(l->head_dim > l->index_dim ? l->head_dim : l->index_dim) * 2;

    n = larger(n, larger(CPU_FN(select_thread_bytes)(l), CPU_FN(sample_thread_bytes)(l)));
    n = larger(n, larger(CPU_FN(hc_thread_bytes)(l), one_row));
    return larger(n, ((size_t)l->n_experts + VF) * 2 * sizeof(float));
}

size_t CPU_FN(rows_shared_bytes)(const kernel_limits *l, int n_threads)
{
    return CPU_FN(hc_shared_bytes)(l, n_threads);
}

static void gather_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const gather_args *a = job->args;
    size_t cols = (size_t)a->table->cols;
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const uint16_t *own = a->vectors ? a->vectors[row] : NULL;
        const uint8_t *table = a->table->table;
        const void *from = own ? (const void *)own : table + (size_t)a->ids[row] * cols * 2;

        for (int copy = 0; copy < a->copies; copy++)
            memcpy((uint16_t *)a->out + (size_t)(row * a->copies + copy) * cols, from, cols * 2);
    }
}

void CPU_FN(cpu_gather)(kernels *k, const gather_args *a)
{
    cpu_run_sized(k, gather_job, a, (int64_t)a->n * a->copies * a->table->cols * 2);
}

static void rope_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const rope_rows_args *a = job->args;
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < a->half; j++) {
            float angle = (float)a->pos[i] * a->freq[j], *cs = a->cs + (i * a->half + j) * 2;

            cs[0] = (float)cos((double)angle);
            cs[1] = (float)sin((double)angle);
        }
}

void CPU_FN(cpu_rope_rows)(kernels *k, const rope_rows_args *a)
{
    cpu_run_sized(k, rope_job, a, (int64_t)a->n * a->half * 256); /* cos and sin: slow */
}

static void qkv_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const qkv_args *a = job->args;
    uint16_t *kv = cpu_thread_scratch(job->k, thread);
    int q_rank = a->q_rank, dim = a->dim;
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const uint16_t *in = (const uint16_t *)a->qkv + i * (q_rank + dim);
        uint8_t *row = a->kv_rows + (size_t)i * a->layout->ring_row_bytes;

        if (q_rank > 0) {
            uint16_t *qr = (uint16_t *)a->qr_q8 + i * q_rank;

            rms_row_bf16(qr, in, a->q_norm->f32, q_rank, a->eps);
            q8_row(qr, qr, q_rank);
        }
        rms_row_bf16(kv, in + q_rank, a->kv_norm->f32, dim, a->eps);
        rope_bf16(kv + dim - a->rope, a->cs + i * a->rope, a->rope / 2, 1.0f);
        q8_row_codes(row, row + dim, kv, dim);
    }
}

void CPU_FN(cpu_qkv)(kernels *k, const qkv_args *a)
{
    const ring_commit_args commit = {a->commit, a->layout, a->ring, a->kv_rows};

    cpu_run_sized(k, qkv_job, a, (int64_t)a->n * (a->q_rank + a->dim) * 8);
    if (a->commit)
        CPU_FN(cpu_ring_commit)(k, &commit);
}

void CPU_FN(cpu_ring_commit)(kernels *k, const ring_commit_args *a)
{
    const step *s = a->s;
    size_t bytes = a->layout->ring_row_bytes;

    (void)k;
    for (int seq = 0; seq < s->n_seqs; seq++) {
        int end = s->row0[seq + 1], row = s->row0[seq];

        if (end - row > a->layout->ring_rows)
            row = end - a->layout->ring_rows;
        for (; row < end; row++)
            memcpy(kv_ring(a->layout, &s->view[seq], a->ring, s->pos[row]),
                   a->kv_rows + (size_t)row * bytes, bytes);
    }
}

/* Rows of the table are far apart: ask for a few of the next ones early. */
#define GATHER_AHEAD 8

static void engram_gather_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const engram_gather_args *a = job->args;
    const uint8_t *codes = a->table->table, *scales = a->table->table_scale;
    int dim = (int)a->table->cols;
    int64_t begin, end;

    pool_split((int64_t)a->n * a->n_cols, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        uint16_t *out = (uint16_t *)a->out_q8 + i * dim;
        const uint8_t *row = codes + a->ids[i] * dim, *scale = scales + a->ids[i] * (dim / 32);

        if (i + GATHER_AHEAD < end) {
            int64_t next = a->ids[i + GATHER_AHEAD];

            for (int b = 0; b < dim; b += 64)
                __builtin_prefetch(codes + next * dim + b);
            __builtin_prefetch(scales + next * (dim / 32));
        }
        for (int d = 0; d < dim; d += VF)
            vf_store_bf16(
                out + d, vf_mul(vf_e4m3(vi_load_u8(row + d)), vf_set(ue8m0_to_f32(scale[d / 32]))));
        q8_row(out, out, dim);
    }
}

void CPU_FN(cpu_engram_gather)(kernels *k, const engram_gather_args *a)
{
    cpu_run_sized(k, engram_gather_job, a, (int64_t)a->n * a->n_cols * a->table->cols * 4);
}

/* The gate of a copy: sigmoid of the signed square root of its normalised product with the key. */
static float engram_gate(const engram_apply_args *a, const uint16_t *x, const uint16_t *key,
                         int copy)
{
    const float *qw = a->q_w->f32 + (int64_t)copy * a->dim;
    const float *kw = a->k_w->f32 + (int64_t)copy * a->dim;
    vf sum = vf_zero();
    float dot;

    for (int d = 0; d < a->dim; d += VF) {
        vf w = vf_mul(vf_load(qw + d), vf_load(kw + d));

        sum = vf_fma(vf_mul(vf_load_bf16(x + d), w), vf_load_bf16(key + d), sum);
    }
    dot = vf_sum(sum) * rms_factor(sum_squares_bf16(x, a->dim), a->dim, a->eps) *
          rms_factor(sum_squares_bf16(key, a->dim), a->dim, a->eps) / sqrtf((float)a->dim);
    return 1.0f / (1.0f + expf(-copysignf(sqrtf(max_f32(fabsf(dot), 1e-6f)), dot)));
}

static void engram_apply_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const engram_apply_args *a = job->args;
    int hc = a->hc, dim = a->dim;
    int64_t begin, end;

    pool_split((int64_t)a->n * hc, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / hc;
        int copy = (int)(i % hc);
        uint16_t *x = (uint16_t *)a->x + i * dim;
        const uint16_t *kv = (const uint16_t *)a->kv + row * (hc + 1) * dim;
        bool image = a->image && a->image[row];
        float g = image ? 0.0f : engram_gate(a, x, kv + (int64_t)copy * dim, copy);

        for (int d = 0; d < dim; d += VF)
            vf_store_bf16(x + d, vf_fma(vf_set(g), vf_load_bf16(kv + (int64_t)hc * dim + d),
                                        vf_load_bf16(x + d)));
        if (a->gate)
            a->gate[i] = g;
    }
}

void CPU_FN(cpu_engram_apply)(kernels *k, const engram_apply_args *a)
{
    cpu_run_sized(k, engram_apply_job, a, (int64_t)a->n * a->hc * a->dim * 8);
}

/* s = sqrt(softplus(logit)); biased = s + bias. Lanes behind n are not chosen. */
static void router_scores(float *s, float *biased, const float *logit, const float *bias, int n)
{
    for (int e = 0; e < n; e += VF) {
        int lanes = n - e < VF ? n - e : VF;
        vf x = vf_load_part(logit + e, lanes, 0.0f), b = vf_load_part(bias + e, lanes, -INFINITY);
        vf tail = vf_log1p_unit(vf_exp(vf_sub(vf_zero(), vf_abs(x))));
        vf soft = vf_add(vf_max(x, vf_zero()), tail);

        soft = vf_sqrt(vf_select_lt(vf_set(20.0f), x, x, soft)); /* linear above 20 */
        vf_store(s + e, soft);
        vf_store(biased + e, vf_add(soft, b));
    }
}

/* Index of the largest, the lowest of equals; n is padded to whole vectors with -inf. */
static int arg_max(const float *x, int n)
{
    vf top = vf_load(x);
    int e = 0;

    for (int i = VF; i < n; i += VF)
        top = vf_max(top, vf_load(x + i));
    top = vf_set(vf_max_lane(top));
    for (; e < n; e += VF) {
        uint32_t mask = vf_ge(vf_load(x + e), top);

        if (mask)
            return e + __builtin_ctz(mask);
    }
    return 0;
}

static void route_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const route_args *a = job->args;
    float *s = cpu_thread_scratch(job->k, thread);
    float *biased = s + (a->n_experts + VF - 1) / VF * VF;
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        bool image = a->image && a->image[row] && a->bias_vl;
        int32_t *ids = a->ids + row * a->k;
        float *w = a->weights + row * a->k;
        double sum = 0;

        router_scores(s, biased, a->logits + row * a->n_experts,
                      image ? a->bias_vl->f32 : a->bias->f32, a->n_experts);
        for (int i = 0; i < a->k; i++) {
            ids[i] = arg_max(biased, a->n_experts);
            biased[ids[i]] = -INFINITY;
            w[i] = s[ids[i]];
            sum += (double)w[i];
        }
        for (int i = 0; i < a->k; i++) {
            if (a->normalize && a->k > 1)
                w[i] = w[i] / ((float)sum + 1e-20f);
            w[i] *= a->scale;
        }
    }
}

void CPU_FN(cpu_route)(kernels *k, const route_args *a)
{
    cpu_run_sized(k, route_job, a, (int64_t)a->n * a->n_experts * 16);
}

static float dot_bf16(const float *w, const uint16_t *x, int n)
{
    vf sum = vf_zero();

    for (int i = 0; i < n; i += VF)
        sum = vf_fma(vf_load(w + i), vf_load_bf16(x + i), sum);
    return vf_sum(sum);
}

void CPU_FN(cpu_confidence)(kernels *k, const confidence_args *a)
{
    const float *w = a->w->f32;

    (void)k;
    for (int64_t i = 0; i < a->n; i++)
        a->out[i] = dot_bf16(w, (const uint16_t *)a->h + i * a->dim, a->dim) +
                    dot_bf16(w + a->dim, (const uint16_t *)a->e + i * a->rank, a->rank);
}
