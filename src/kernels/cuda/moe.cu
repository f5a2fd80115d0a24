/* Mixture of experts (kernels/moe.h): routing, and experts for any shape. */
#include "kernels/cuda/gemm.cuh"

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
                                    int32_t *first, int32_t *pos)
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
        if (mine) {
            slot[to] = i;
            pos[i] = to;
        }
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

#define MAX_ACTIVE 64

/* y = sum of the row's outputs in ascending expert id, then the shared one. Block (row, a part of
 * the columns), two columns a thread. */
static __global__ void sum_kernel(experts_job j, const int32_t *ids, bf16 *y)
{
    __shared__ int64_t order[MAX_ACTIVE + 1]; /* rows of ye */
    int64_t row = blockIdx.x, hidden = j.x.hidden, at = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    float a = 0, b = 0;

    if (threadIdx.x < j.k) {
        int rank = 0;

        for (int i = 0; i < j.k; i++)
            rank += ids[row * j.k + i] < ids[row * j.k + threadIdx.x];
        order[rank] = j.pos[row * j.k + threadIdx.x];
    }
    if (threadIdx.x == 0)
        order[j.k] = (int64_t)j.n * j.k + row;
    __syncthreads();
    if (at >= hidden / 2)
        return;
#pragma unroll 8
    for (int i = 0; i <= j.k; i++) {
        uint32_t v = ((const uint32_t *)j.ye)[order[i] * (hidden / 2) + at];

        a += from_bf((bf16)v);
        b += from_bf((bf16)(v >> 16));
    }
    ((uint32_t *)y)[row * (hidden / 2) + at] = (uint32_t)to_bf(a) | (uint32_t)to_bf(b) << 16;
}

/* Tiles of at most n_tile tokens, expert by expert; one block. */
static __global__ void tiles_kernel(const int32_t *first, int n_experts, int n_tile, int2 *tile,
                                    int32_t *n_tiles)
{
    __shared__ int end[MAX_EXPERTS]; /* tiles up to and with an expert */

    for (int e = threadIdx.x; e < n_experts; e += THREADS)
        end[e] = (first[e + 1] - first[e] + n_tile - 1) / n_tile;
    for (int d = 1; d < n_experts; d *= 2) {
        int sum[MAX_EXPERTS / THREADS];

        __syncthreads();
        for (int i = 0; i < MAX_EXPERTS / THREADS; i++) {
            int e = i * THREADS + threadIdx.x;

            sum[i] = e < n_experts ? end[e] + (e >= d ? end[e - d] : 0) : 0;
        }
        __syncthreads();
        for (int i = 0; i < MAX_EXPERTS / THREADS; i++)
            if (i * THREADS + threadIdx.x < n_experts)
                end[i * THREADS + threadIdx.x] = sum[i];
    }
    __syncthreads();
    for (int e = threadIdx.x; e < n_experts; e += THREADS)
        for (int at = e > 0 ? end[e - 1] : 0, i = 0; at < end[e]; at++, i++)
            tile[at] = make_int2(e, i);
    if (threadIdx.x == 0)
        *n_tiles = end[n_experts - 1];
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
    j.chunk = j.n_panels / chunks_of(j.n_panels, rows);
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
        j.slot = c->s.slot;
        j.first = c->s.first;
        j.weights = a->weights;
    } else {
        j.w = up ? x->shared_up : x->shared_down;
        j.y = (bf16 *)j.y + shared0 * j.y_stride;
        if (!up)
            j.x += shared0 * cols;
    }
    return j;
}

/* x of the slots, sorted by expert: 16 bytes a thread. */
static __global__ void sort_rows_kernel(const uint4 *x, const int32_t *slot, int k, int units,
                                        uint4 *sorted)
{
    int64_t row = blockIdx.x;

    for (int i = threadIdx.x; i < units; i += THREADS)
        sorted[row * units + i] = x[(int64_t)(slot[row] / k) * units + i];
}

/* Tokens of a tile for about `n` per expert; 8: streamed. */
static int expert_tile(int n)
{
    return n <= 3 ? 8 : n <= 24 ? 32 : n <= 64 ? 64 : 128;
}

/* Both matrices of the routed experts or of the shared one. */
static void multiply(cuda_impl *c, const experts_args *a, bool up, int tile)
{
    gemm_job routed = packed_job(c, a, up, true), shared = packed_job(c, a, up, false);
    int slots = a->n * a->k, experts = a->w->experts->n_experts;

    if (tile == 8) {
        routed.x_div = up ? a->k : 0;
        cuda_stream(c, PACK_FP4, &routed,
                    slots < experts + slots / 8 ? slots : experts + slots / 8);
    } else {
        if (up) {
            sort_rows_kernel<<<slots, THREADS, 0, c->stream>>>((const uint4 *)routed.x, c->s.slot,
                                                               a->k, a->w->experts->hidden / 8,
                                                               (uint4 *)c->s.ye);
            cuda_launched(c, "experts");
            routed.x = c->s.ye; /* free until the second product */
        }
        cuda_gemm(c, PACK_FP4, &routed, tile);
    }
    if (a->n <= FEW)
        cuda_stream(c, PACK_FP8, &shared, 1);
    else
        cuda_gemm(c, PACK_FP8, &shared, gemm_tile_of(a->n));
}

void cuda_moe(cuda_impl *c, const experts_args *a)
{
    const cuda_experts *x = a->w->experts;
    experts_job j = {*x,         a->n,      a->k,       a->limit, (const bf16 *)a->x_q8,
                     a->weights, c->s.slot, c->s.first, c->s.pos, c->s.h,
                     c->s.ye};
    dim3 up((unsigned)((x->inter + WARPS - 1) / WARPS), (unsigned)x->n_experts + 1);
    dim3 down((unsigned)((x->hidden + WARPS - 1) / WARPS), (unsigned)x->n_experts + 1);
    dim3 sum((unsigned)a->n, (unsigned)((x->hidden / 2 + THREADS - 1) / THREADS));
    int tile = expert_tile(a->n * a->k / x->n_experts);
    quantize_args q = {};

    if (a->k > MAX_ACTIVE || x->n_experts > MAX_EXPERTS)
        cuda_note(c, cudaErrorNotSupported, "experts: more than 64 per row, or than 1024");
    group_kernel<<<x->n_experts + 1, THREADS, 0, c->stream>>>(a->ids, a->n * a->k, x->n_experts,
                                                              c->s.slot, c->s.first, c->s.pos);
    cuda_launched(c, "experts");
    if (x->packed) {
        tiles_kernel<<<1, THREADS, 0, c->stream>>>(
            c->s.first, x->n_experts, tile, (int2 *)c->s.tile, c->s.tile + 2 * c->s.n_max_tiles);
        cuda_launched(c, "experts");
        multiply(c, a, true, tile);
    } else {
        expert_kernel<true><<<up, THREADS, 0, c->stream>>>(j);
        cuda_launched(c, "experts");
    }
    q.n = a->n * (a->k + 1);
    q.cols = x->inter;
    q.x = q.q8 = c->s.h;
    cuda_quantize(c, &q);
    if (x->packed) {
        multiply(c, a, false, tile);
    } else {
        expert_kernel<false><<<down, THREADS, 0, c->stream>>>(j);
        cuda_launched(c, "experts");
    }
    sum_kernel<<<sum, THREADS, 0, c->stream>>>(j, a->ids, (bf16 *)a->y);
    cuda_launched(c, "experts");
}
