/* Hyper-connections with the norm and the quantisation behind them (kernels/hc.h): one block per
 * row, which stays in registers and L1 between the parts. */
#include "kernels/cuda/device.cuh"

#define MAX_HC 4

/* Weights of a call, by value; data NULL where there is none. */
typedef struct hc_weights {
    weight fn, base, scale, norm;
} hc_weights;

/* x[j] = bf(post[j] * y + sum_i comb[i][j] * x[i]): the FIRST index of comb is summed. */
template <int HC> static __device__ void expand(const hc_args &a, bf16 *x, int64_t row)
{
    const bf16 *y = (const bf16 *)a.y + row * a.dim;
    const float *post = a.post + row * HC, *comb = a.comb + row * HC * HC;

    for (int64_t d = threadIdx.x; d < a.dim; d += THREADS) {
        float in[HC], yd = from_bf(y[d]);

        for (int i = 0; i < HC; i++)
            in[i] = from_bf(x[i * a.dim + d]);
        for (int j = 0; j < HC; j++) {
            float out = post[j] * yd;

            for (int i = 0; i < HC; i++)
                out = fmaf(comb[i * HC + j], in[i], out);
            x[j * a.dim + d] = to_bf(out);
        }
    }
}

/* Row softmax plus eps, then divide by column sums and row sums in turn, ending on columns. */
template <int HC> static __device__ void sinkhorn(float *c, int iters, float eps)
{
    for (int i = 0; i < HC; i++) {
        float *row = c + i * HC, top = row[0], sum = 0;

        for (int j = 1; j < HC; j++)
            top = fmaxf(top, row[j]);
        for (int j = 0; j < HC; j++)
            sum += row[j] = expf(row[j] - top);
        for (int j = 0; j < HC; j++)
            row[j] = row[j] / sum + eps;
    }
    for (int pass = 0; pass < iters; pass++) {
        for (int i = 0; pass > 0 && i < HC; i++) {
            float sum = 0;

            for (int j = 0; j < HC; j++)
                sum += c[i * HC + j];
            for (int j = 0; j < HC; j++)
                c[i * HC + j] /= sum + eps;
        }
        for (int j = 0; j < HC; j++) {
            float sum = 0;

            for (int i = 0; i < HC; i++)
                sum += c[i * HC + j];
            for (int i = 0; i < HC; i++)
                c[i * HC + j] /= sum + eps;
        }
    }
}

template <int HC>
static __device__ void mix(const hc_args &a, const hc_weights &w, const bf16 *x, int64_t row)
{
    const int n_mix = (2 + HC) * HC;
    const float *fn = (const float *)w.fn.data;
    __shared__ float m[n_mix];
    int64_t flat = (int64_t)HC * a.dim;
    float sum[n_mix], squares = 0;

    for (int i = 0; i < n_mix; i++)
        sum[i] = 0;
    for (int64_t d = threadIdx.x; d < flat; d += THREADS) {
        float v = from_bf(x[d]);

        squares = fmaf(v, v, squares);
#pragma unroll
        for (int i = 0; i < n_mix; i++)
            sum[i] = fmaf(fn[i * flat + d], v, sum[i]);
    }
    squares = 1.0f / sqrtf(block_sum(squares) / (float)flat + a.eps);
#pragma unroll
    for (int i = 0; i < n_mix; i++) {
        float total = block_sum(sum[i]) * squares;

        if (threadIdx.x == 0)
            m[i] = total;
    }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 0; i < HC; i++) {
        a.pre_out[row * HC + i] = sigmoid(m[i] * vec(w.scale, 0) + vec(w.base, i)) + a.hc_eps;
        a.post_out[row * HC + i] =
            2.0f * sigmoid(m[HC + i] * vec(w.scale, 1) + vec(w.base, HC + i));
    }
    for (int i = 0; i < HC * HC; i++)
        m[2 * HC + i] = m[2 * HC + i] * vec(w.scale, 2) + vec(w.base, 2 * HC + i);
    sinkhorn<HC>(m + 2 * HC, a.iters, a.hc_eps);
    for (int i = 0; i < HC * HC; i++)
        a.comb_out[row * HC * HC + i] = m[2 * HC + i];
}

/* c = bf(sum_i pre[i] * x[i]) into shared memory, then its norm and Q8. */
template <int HC>
static __device__ void collapse(const hc_args &a, const hc_weights &w, const bf16 *x,
                                const float *pre, int64_t row, float *c)
{
    float squares = 0, r;

    for (int64_t d = threadIdx.x; d < a.dim; d += THREADS) {
        float sum = 0;

        for (int i = 0; i < HC; i++)
            sum = fmaf(pre[i], from_bf(x[i * a.dim + d]), sum);
        c[d] = bf16_round(sum);
        squares = fmaf(c[d], c[d], squares);
        if (a.collapsed)
            ((bf16 *)a.collapsed)[row * a.dim + d] = to_bf(sum);
    }
    if (!w.norm.data)
        return;
    r = 1.0f / sqrtf(block_sum(squares) / (float)a.dim + a.eps);
    for (int64_t d = threadIdx.x; d < a.dim; d += THREADS) {
        float v = bf16_round(vec(w.norm, d) * (c[d] * r));

        if (a.out)
            ((bf16 *)a.out)[row * a.dim + d] = to_bf(v);
        if (a.out_q8) /* dim is a multiple of 32: whole warps */
            ((bf16 *)a.out_q8)[row * a.dim + d] = q8_value(v);
    }
}

template <int HC> static __global__ void hc_kernel(hc_args a, hc_weights w)
{
    extern __shared__ float c[];
    int64_t row = blockIdx.x, from = a.rows ? a.rows[row] : row;
    bf16 *x = (bf16 *)a.x + from * HC * a.dim;
    float pre[HC]; /* before the mix: pre_out may be the same memory */

    for (int i = 0; i < HC; i++)
        pre[i] = a.pre_in ? a.pre_in[from * HC + i] : (float)(i == 0);
    __syncthreads();
    if (a.y) {
        expand<HC>(a, x, row);
        __syncthreads();
    }
    if (w.fn.data)
        mix<HC>(a, w, x, row);
    if (w.norm.data || a.collapsed)
        collapse<HC>(a, w, x, pre, row, c);
}

void cuda_hc(cuda_impl *c, const hc_args *a)
{
    hc_weights w = {};
    size_t smem = (size_t)a->dim * sizeof(float);

    if (a->fn) {
        w.fn = *a->fn;
        w.base = *a->base;
        w.scale = *a->scale;
    }
    if (a->norm)
        w.norm = *a->norm;
    if (a->hc == 1)
        hc_kernel<1><<<a->n, THREADS, smem, c->stream>>>(*a, w);
    else if (a->hc == 2)
        hc_kernel<2><<<a->n, THREADS, smem, c->stream>>>(*a, w);
    else if (a->hc == MAX_HC)
        hc_kernel<MAX_HC><<<a->n, THREADS, smem, c->stream>>>(*a, w);
    else
        cuda_note(c, cudaErrorNotSupported, "hc: 1, 2 or 4 copies");
    cuda_launched(c, "hc");
}
