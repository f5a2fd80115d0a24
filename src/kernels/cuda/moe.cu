/* Mixture of experts (kernels/moe.h): routing, and experts for any shape. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe.cuh"

/* ---- route ---- */

/* One warp per row. */
static __global__ void route_kernel(route_args a, const float *bias, const float *bias_vl)
{
    __shared__ float score[WARPS][MAX_EXPERTS];
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;

    after_previous();
    if (row < a.n)
        route_row(a, bias, bias_vl, row, score[threadIdx.x / 32], a.ids + row * a.k,
                  a.weights + row * a.k);
}

void cuda_route(cuda_impl *c, const route_args *a)
{
    if (a->n_experts > MAX_EXPERTS) {
        cuda_note(c, cudaErrorNotSupported, "route: experts");
        return;
    }
    launch(c, "route", route_kernel, (unsigned)((a->n + WARPS - 1) / WARPS), THREADS, 0, *a,
           (const float *)a->bias->data, a->bias_vl ? (const float *)a->bias_vl->data : NULL);
}

/* ---- experts ---- */

#define GROUP_THREADS 1024

/* Sum over the threads in front of this one (of GROUP_THREADS), and over all. All threads call it.
 */
static __device__ int group_scan(int x, int *all)
{
    __shared__ int part[32];
    int lane = threadIdx.x % 32, sum = x;

    for (int d = 1; d < 32; d *= 2) {
        int y = __shfl_up_sync(ALL, sum, d);

        sum += lane >= d ? y : 0;
    }
    __syncthreads();
    if (lane == 31)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    *all = 0;
    for (int i = 0; i < GROUP_THREADS / 32; i++) {
        sum += i < (int)threadIdx.x / 32 ? part[i] : 0;
        *all += part[i];
    }
    return sum - x;
}

/* Slots by expert: a block per expert lists its slots in ascending order, and their tiles of at
 * most n_tile, at places that all blocks find by counting the slots of the smaller ids. Block
 * n_experts writes how many there are. A thread has neighbouring slots. */
static __global__ void group_kernel(const int32_t *ids, const float *weights, int n, int n_experts,
                                    int n_tile, cuda_scratch to)
{
    __shared__ int count[MAX_EXPERTS];
    int e = blockIdx.x, at = 0, tile = 0, mine = 0, each = (n + GROUP_THREADS - 1) / GROUP_THREADS;
    int first = (int)threadIdx.x * each, last = min(first + each, n), place, all;

    after_previous();
    for (int i = threadIdx.x; i < n_experts; i += GROUP_THREADS)
        count[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += GROUP_THREADS)
        atomicAdd(&count[ids[i]], 1); /* integers: any order */
    __syncthreads();
    for (int i = threadIdx.x; i < e; i += GROUP_THREADS) {
        at += count[i];
        tile += (count[i] + n_tile - 1) / n_tile;
    }
    group_scan(at, &at);
    group_scan(tile, &tile);
    if (threadIdx.x == 0)
        to.first[e] = at;
    if (e == n_experts) {
        if (threadIdx.x == 0)
            to.tile[2 * to.n_max_tiles] = tile;
        return;
    }
    for (int i = threadIdx.x; i < (count[e] + n_tile - 1) / n_tile; i += GROUP_THREADS)
        ((int2 *)to.tile)[tile + i] = make_int2(e, i);
#pragma unroll 8
    for (int i = first; i < last; i++)
        mine += ids[i] == e;
    place = at + group_scan(mine, &all);
#pragma unroll 8
    for (int i = first; i < last; i++)
        if (ids[i] == e) {
            to.slot[place] = i;
            to.slot_weight[place] = weights[i];
            to.pos[i] = place++;
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
    const int32_t *slot, *first, *pos;
    bf16 *h, *ye; /* rows sorted by expert */
} experts_job;

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
                       : j.h + (int64_t)s * n_in;
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
                j.h[(int64_t)(s0 + i) * n_out + col] =
                    to_bf(swiglu(a, b, j.limit, shared ? 1.0f : j.weights[slot[i]]));
            else
                j.ye[(int64_t)(s0 + i) * n_out + col] = to_bf(a);
        }
    }
}

#define SUM_THREADS 128

/* Pairs of columns that a thread reads at once. */
template <int W> struct __align__(4 * W) column_pairs
{
    uint32_t w[W];
};

/* y = sum of the row's outputs in ascending expert id, then the shared one. Block (row, a part of
 * the columns). */
template <int W> static __global__ void sum_kernel(experts_job j, const int32_t *ids, bf16 *y)
{
    __shared__ int64_t order[MAX_ACTIVE + 1]; /* rows of ye */
    int64_t row = blockIdx.x, units = j.x.hidden / (2 * W);
    int64_t at = (int64_t)blockIdx.y * SUM_THREADS + threadIdx.x;
    float sum[2 * W] = {0};
    column_pairs<W> out;

    after_previous();
    if (threadIdx.x < j.k) {
        int rank = 0;

        for (int i = 0; i < j.k; i++)
            rank += ids[row * j.k + i] < ids[row * j.k + threadIdx.x];
        order[rank] = j.pos[row * j.k + threadIdx.x];
    }
    if (threadIdx.x == 0)
        order[j.k] = (int64_t)j.n * j.k + row;
    __syncthreads();
    if (at >= units)
        return;
#pragma unroll 8
    for (int i = 0; i <= j.k; i++) {
        column_pairs<W> v = ((const column_pairs<W> *)j.ye)[order[i] * units + at];

#pragma unroll
        for (int w = 0; w < W; w++) {
            sum[2 * w] += from_bf((bf16)v.w[w]);
            sum[2 * w + 1] += from_bf((bf16)(v.w[w] >> 16));
        }
    }
#pragma unroll
    for (int w = 0; w < W; w++)
        out.w[w] = bf16_pair(sum[2 * w], sum[2 * w + 1]);
    ((column_pairs<W> *)y)[row * units + at] = out;
}

static void sum_experts(cuda_impl *c, const experts_job *j, const experts_args *a)
{
    int wide = j->x.hidden % 8 == 0, units = j->x.hidden / (wide ? 8 : 2);
    dim3 grid((unsigned)a->n, (unsigned)((units + SUM_THREADS - 1) / SUM_THREADS));

    launch(c, "experts", wide ? sum_kernel<4> : sum_kernel<1>, grid, SUM_THREADS, 0, *j, a->ids,
           (bf16 *)a->y);
}

/* One of the four products of packed experts. */
static gemm_job packed_job(cuda_impl *c, const experts_args *a, bool up, bool routed)
{
    const cuda_experts *x = a->w->experts;
    int64_t rows = up ? 2 * x->inter : x->hidden, cols = up ? x->hidden : x->inter;
    int64_t shared0 = (int64_t)a->n * a->k; /* first slot of the shared expert */
    gemm_job j = {};

    j.n_blocks = (int)(rows / ROW_BLOCK);
    j.n_panels = (int)(cols / PANEL);
    j.chunk = j.n_panels;
    j.n = a->n;
    j.end = up ? END_SWIGLU : END_ACT;
    j.limit = a->limit;
    j.x = up ? (const bf16 *)a->x_q8 : c->s.h;
    j.x_stride = cols;
    j.y = up ? c->s.h : c->s.ye;
    j.y_stride = up ? x->inter : x->hidden;
    if (routed) {
        j.n = a->n * a->k;
        j.w = up ? x->up : x->down;
        j.expert_bytes = (int64_t)cuda_packed_bytes(PACK_FP4, rows, cols);
        j.tile = (const int2 *)c->s.tile;
        j.n_tiles = c->s.tile + 2 * c->s.n_max_tiles;
        j.first = c->s.first;
        j.weights = c->s.slot_weight;
    } else {
        j.w = up ? x->shared_up : x->shared_down;
        j.y = (bf16 *)j.y + shared0 * j.y_stride;
        if (!up)
            j.x += shared0 * cols;
    }
    return j;
}

/* x of a row to the places of its slots: it is read once. */
static __global__ void sort_rows_kernel(const uint4 *x, const int32_t *pos, int k, int units,
                                        uint4 *sorted)
{
    __shared__ int place[MAX_ACTIVE];
    int64_t row = blockIdx.x;

    after_previous();
    if (threadIdx.x < k)
        place[threadIdx.x] = pos[row * k + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.x; i < units; i += THREADS) {
        uint4 v = x[row * units + i];

        for (int s = 0; s < k; s++)
            sorted[(int64_t)place[s] * units + i] = v;
    }
}

static void sort_rows(cuda_impl *c, const experts_args *a)
{
    launch(c, "experts", sort_rows_kernel, (unsigned)a->n, THREADS, 0, (const uint4 *)a->x_q8,
           c->s.pos, a->k, a->w->experts->hidden / 8, (uint4 *)c->s.ye);
}

/* w1 and w3, or w2, of the routed experts and of the shared one. */
static void multiply(cuda_impl *c, const experts_args *a, bool up, int tile)
{
    gemm_job routed = packed_job(c, a, up, true), shared = packed_job(c, a, up, false);

    if (up)
        routed.x = c->s.ye; /* sorted; free until the second product */
    routed.listed = !up;    /* the first product lies between */
    cuda_gemm_experts(c, &routed, &shared, tile);
}

static void group(cuda_impl *c, const experts_args *a, int tile)
{
    int n_experts = a->w->experts->n_experts;

    launch(c, "experts", group_kernel, (unsigned)n_experts + 1, GROUP_THREADS, 0, a->ids,
           a->weights, a->n * a->k, n_experts, tile, c->s);
}

/* h of all slots behind Q8. */
static void quantize_h(cuda_impl *c, const experts_args *a)
{
    quantize_args q = {};

    q.n = a->n * (a->k + 1);
    q.cols = a->w->experts->inter;
    q.x = q.q8 = c->s.h;
    cuda_quantize(c, &q);
}

void cuda_moe(cuda_impl *c, const experts_args *a)
{
    const cuda_experts *x = a->w->experts;
    experts_job j = {*x,         a->n,      a->k,       a->limit, (const bf16 *)a->x_q8,
                     a->weights, c->s.slot, c->s.first, c->s.pos, c->s.h,
                     c->s.ye};
    dim3 up((unsigned)((x->inter + WARPS - 1) / WARPS), (unsigned)x->n_experts + 1);
    dim3 down((unsigned)((x->hidden + WARPS - 1) / WARPS), (unsigned)x->n_experts + 1);
    int tile = expert_tile(a->n * a->k / x->n_experts);

    if (a->k > MAX_ACTIVE || x->n_experts > MAX_EXPERTS) {
        cuda_note(c, cudaErrorNotSupported, "experts: more than 64 per row, or than 1024");
        return;
    }
    if (!x->packed || !cuda_route_few(c, a, tile)) {
        if (a->route)
            cuda_route(c, a->route);
        group(c, a, tile);
        if (x->packed)
            sort_rows(c, a);
    }
    if (x->packed) {
        multiply(c, a, true, tile);
    } else {
        expert_kernel<true><<<up, THREADS, 0, c->stream>>>(j);
        cuda_launched(c, "experts");
    }
    if (x->packed) {
        multiply(c, a, false, tile);
    } else {
        quantize_h(c, a);
        expert_kernel<false><<<down, THREADS, 0, c->stream>>>(j);
        cuda_launched(c, "experts");
    }
    sum_experts(c, &j, a);
}
