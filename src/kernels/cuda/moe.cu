/* Mixture of experts (kernels/moe.h): routing, and experts for any shape. */
#include "kernels/cuda/device.cuh"

/* ---- route ---- */

#define MAX_EXPERTS 1024

static __device__ float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* One warp per row. Each round takes the best score that is left; ties: the lower id. */
static __global__ void route_kernel(route_args a, const float *bias, const float *bias_vl)
{
    __shared__ float all[WARPS][MAX_EXPERTS];
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    float *s = all[threadIdx.x / 32], sum = 0;
    const float *logit = a.logits + row * a.n_experts;

    if (row >= a.n)
        return;
    if (a.image && a.image[row] && bias_vl)
        bias = bias_vl;
    for (int64_t e = lane; e < a.n_experts; e += 32)
        s[e] = sqrtf(softplus(logit[e])) + bias[e];
    __syncwarp();
    for (int i = 0; i < a.k; i++) {
        float top = -INFINITY, w;
        int id = a.n_experts;

        for (int e = (int)lane; e < a.n_experts; e += 32)
            if (s[e] > top) {
                top = s[e];
                id = e;
            }
        for (int d = 16; d > 0; d /= 2) {
            float t = __shfl_xor_sync(ALL, top, d);
            int other = __shfl_xor_sync(ALL, id, d);

            if (t > top || (t == top && other < id)) {
                top = t;
                id = other;
            }
        }
        id = id < a.n_experts ? id : 0; /* no score is a number */
        w = sqrtf(softplus(logit[id]));
        sum += w;
        if (lane == 0) {
            s[id] = -INFINITY;
            a.ids[row * a.k + i] = id;
            a.weights[row * a.k + i] = w;
        }
        __syncwarp();
    }
    for (int64_t i = lane; i < a.k; i += 32) {
        float *w = &a.weights[row * a.k + i];

        *w = (a.normalize && a.k > 1 ? *w / (sum + 1e-20f) : *w) * a.scale;
    }
}

void cuda_route(cuda_impl *c, const route_args *a)
{
    if (a->n_experts > MAX_EXPERTS)
        cuda_note(c, cudaErrorNotSupported, "route: experts");
    route_kernel<<<(a->n + WARPS - 1) / WARPS, THREADS, 0, c->stream>>>(
        *a, (const float *)a->bias->data, a->bias_vl ? (const float *)a->bias_vl->data : NULL);
    cuda_launched(c, "route");
}

/* ---- experts ---- */

/* Slots by expert: a block per expert lists its slots in ascending order, at a place that all
 * blocks find by counting the smaller ids. */
static __global__ void group_kernel(const int32_t *ids, int n, int n_experts, int32_t *slot,
                                    int32_t *first)
{
    __shared__ int before, here[WARPS];
    int e = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, at;

    if (threadIdx.x == 0)
        before = 0;
    __syncthreads();
    at = 0;
    for (int i = threadIdx.x; i < n; i += THREADS)
        at += ids[i] < e;
    atomicAdd(&before, at); /* integers: any order */
    __syncthreads();
    at = before;
    if (threadIdx.x == 0)
        first[e] = at; /* block n_experts: all slots */
    if (e == n_experts)
        return;
    for (int i0 = 0; i0 < n; i0 += THREADS) {
        int i = i0 + threadIdx.x;
        bool mine = i < n && ids[i] == e;
        uint32_t ballot = __ballot_sync(ALL, mine);
        int to = at + __popc(ballot & ((1u << lane) - 1u));

        __syncthreads();
        if (lane == 0)
            here[warp] = __popc(ballot);
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            to += w < warp ? here[w] : 0;
            at += here[w];
        }
        if (mine)
            slot[to] = i;
    }
}

#define ROWS 8

/* Weight (r, k) of matrix m of an expert; e = n_experts is the shared one. */
static __device__ __forceinline__ float expert_at(const cuda_experts &x, int e, int m, int64_t r,
                                                  int64_t k)
{
    int64_t cols = m == 2 ? x.inter : x.hidden, rows = m == 2 ? x.hidden : x.inter, at;

    if (e == x.n_experts) {
        at = r * cols + k;
        return e4m3(((const uint8_t *)x.shared[m].data)[at]) *
               ue8m0(x.shared[m].scale[r / Q8_COLS * ((cols + 31) / 32) + k / Q8_COLS]);
    }
    at = ((int64_t)e * rows + r) * cols + k;
    return e2m1(x.code[m][at / 2] >> (4 * (at & 1)) & 15u) * ue8m0(x.scale[m][at / Q8_COLS]);
}

typedef struct experts_job {
    cuda_experts x;
    int n, k; /* rows, routed experts of a row */
    float limit;
    const bf16 *in;
    const float *weights;
    const int32_t *slot, *first;
    bf16 *h, *ye;
} experts_job;

/* h = bf(w * (silu(g) * u)), w the routing weight; 1 for the shared expert. */
static __device__ float swiglu(float g, float u, float limit, float w)
{
    g = bf16_round(g);
    u = bf16_round(u);
    if (limit > 0) {
        u = fminf(fmaxf(u, -limit), limit);
        g = fminf(g, limit);
    }
    return bf16_round(w * (g / (1.0f + expf(-g)) * u));
}

/* Slots of expert e: routed ones through the list, the shared expert's behind them. */
static __device__ void slots_of(const experts_job &j, int e, int *lo, int *hi)
{
    bool shared = e == j.x.n_experts;

    *lo = shared ? j.n * j.k : j.first[e];
    *hi = shared ? j.n * j.k + j.n : j.first[e + 1];
}

/* A warp makes one column of an expert, for its slots ROWS at a time. UP: gate and up at once. */
template <bool UP> static __global__ void expert_kernel(experts_job j)
{
    int e = blockIdx.y, lane = threadIdx.x % 32, lo, hi;
    int64_t col = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int64_t n_in = UP ? j.x.hidden : j.x.inter, n_out = UP ? j.x.inter : j.x.hidden;
    bool shared = e == j.x.n_experts;

    slots_of(j, e, &lo, &hi);
    if (col >= n_out)
        return;
    for (int s0 = lo; s0 < hi; s0 += ROWS) {
        float g[ROWS] = {0}, u[ROWS] = {0};
        int slot[ROWS];
        const bf16 *in[ROWS];

#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int s = s0 + i < hi ? s0 + i : hi - 1;

            slot[i] = shared ? s : j.slot[s];
            in[i] = UP ? j.in + (int64_t)(shared ? slot[i] - j.n * j.k : slot[i] / j.k) * n_in
                       : j.h + (int64_t)slot[i] * n_in;
        }
        for (int64_t k = lane; k < n_in; k += 32) {
            float w = expert_at(j.x, e, UP ? 0 : 2, col, k);
            float w3 = UP ? expert_at(j.x, e, 1, col, k) : 0;

#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                float x = from_bf(in[i][k]);

                g[i] = fmaf(x, w, g[i]);
                if (UP)
                    u[i] = fmaf(x, w3, u[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float a = warp_sum(g[i]), b = UP ? warp_sum(u[i]) : 0;

            if (s0 + i >= hi || lane != 0)
                continue;
            if (UP)
                j.h[(int64_t)slot[i] * n_out + col] =
                    to_bf(swiglu(a, b, j.limit, shared ? 1.0f : j.weights[slot[i]]));
            else
                j.ye[(int64_t)slot[i] * n_out + col] = to_bf(a);
        }
    }
}

/* y = sum of the row's outputs in ascending expert id, then the shared one. */
static __global__ void sum_kernel(experts_job j, const int32_t *ids, bf16 *y)
{
    int64_t row = blockIdx.x, hidden = j.x.hidden;
    __shared__ int order[64];

    if (threadIdx.x == 0)
        for (int i = 0; i < j.k; i++) {
            int at = i;

            for (; at > 0 && ids[row * j.k + order[at - 1]] > ids[row * j.k + i]; at--)
                order[at] = order[at - 1];
            order[at] = i;
        }
    __syncthreads();
    for (int64_t d = threadIdx.x; d < hidden; d += THREADS) {
        float sum = 0;

        for (int i = 0; i < j.k; i++)
            sum += from_bf(j.ye[(row * j.k + order[i]) * hidden + d]);
        sum += from_bf(j.ye[((int64_t)j.n * j.k + row) * hidden + d]);
        y[row * hidden + d] = to_bf(sum);
    }
}

void cuda_moe(cuda_impl *c, const experts_args *a)
{
    const cuda_experts *x = a->w->experts;
    experts_job j = {*x,         a->n,      a->k,       a->limit, (const bf16 *)a->x_q8,
                     a->weights, c->s.slot, c->s.first, c->s.h,   c->s.ye};
    dim3 up((unsigned)((x->inter + WARPS - 1) / WARPS), (unsigned)x->n_experts + 1);
    dim3 down((unsigned)((x->hidden + WARPS - 1) / WARPS), (unsigned)x->n_experts + 1);
    quantize_args q = {};

    if (a->k > 64)
        cuda_note(c, cudaErrorNotSupported, "experts: more than 64 per row");
    group_kernel<<<x->n_experts + 1, THREADS, 0, c->stream>>>(a->ids, a->n * a->k, x->n_experts,
                                                              c->s.slot, c->s.first);
    cuda_launched(c, "experts");
    expert_kernel<true><<<up, THREADS, 0, c->stream>>>(j);
    cuda_launched(c, "experts");
    q.n = a->n * (a->k + 1);
    q.cols = x->inter;
    q.x = q.q8 = c->s.h;
    cuda_quantize(c, &q);
    expert_kernel<false><<<down, THREADS, 0, c->stream>>>(j);
    cuda_launched(c, "experts");
    sum_kernel<<<a->n, THREADS, 0, c->stream>>>(j, a->ids, (bf16 *)a->y);
    cuda_launched(c, "experts");
}
