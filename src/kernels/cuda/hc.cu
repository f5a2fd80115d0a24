/* Hyper-connections with the norm and the quantisation behind them (kernels/hc.h). For any shape
 * and any parts of the step: one block per row. */
#include "kernels/cuda/mma.cuh"

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

/* ---- the step between two sublayers, spread over the device ----
 *
 * A block takes TOKENS rows and SEGMENT columns of every copy: it expands them, leaves the
 * collapsed row, and multiplies them with its columns of fn on the matrix units (fn in three bf16
 * parts, which together are exact). A second kernel adds the segments in order and ends what needs
 * whole rows. */

#define FAST_HC  4
#define N_MIX    24 /* (2 + 4) * 4 */
#define TOKENS   16
#define SEGMENT  256
#define PAD      8                   /* elements, against bank conflicts */
#define WIDTH    (FAST_HC * SEGMENT) /* of a row of the staged tile */
#define PARTS    (N_MIX + 2)         /* sums of a segment: mix, squares of x and of c */
#define STEPS    (WIDTH / 16)
#define WARP_MIX (TOKENS * N_MIX)

static __device__ __forceinline__ float low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float high(uint32_t pair)
{
    return __uint_as_float(pair & 0xFFFF0000u);
}

static __device__ __forceinline__ uint32_t pair_of(float a, float b)
{
    return (uint32_t)to_bf(a) | (uint32_t)to_bf(b) << 16;
}

/* One row of a segment by a warp: expand, collapse, the sums of squares; x into the tile. */
static __device__ void segment_row(const hc_args &a, int64_t row, int64_t d0, bf16 *tile, bf16 *c,
                                   float *part)
{
    int lane = threadIdx.x % 32;
    uint32_t *x = (uint32_t *)((bf16 *)a.x + row * FAST_HC * a.dim + d0);
    const uint32_t *y = (const uint32_t *)((const bf16 *)a.y + row * a.dim + d0);
    float pre[FAST_HC], post[FAST_HC] = {0}, comb[FAST_HC * FAST_HC] = {0}, xx = 0, cc = 0;

#pragma unroll
    for (int i = 0; i < FAST_HC; i++) {
        pre[i] = a.pre_in ? a.pre_in[row * FAST_HC + i] : (float)(i == 0);
        post[i] = a.y ? a.post[row * FAST_HC + i] : 0;
    }
#pragma unroll
    for (int i = 0; i < FAST_HC * FAST_HC; i++)
        comb[i] = a.y ? a.comb[row * FAST_HC * FAST_HC + i] : 0;
#pragma unroll
    for (int p = 0; p < SEGMENT / 64; p++) {
        int at = p * 32 + lane;
        uint32_t in[FAST_HC];
        float c0 = 0, c1 = 0;

#pragma unroll
        for (int i = 0; i < FAST_HC; i++)
            in[i] = x[i * a.dim / 2 + at];
        if (a.y) {
            uint32_t yd = y[at], out[FAST_HC];

#pragma unroll
            for (int j = 0; j < FAST_HC; j++) {
                float v0 = post[j] * low(yd), v1 = post[j] * high(yd);

#pragma unroll
                for (int i = 0; i < FAST_HC; i++) {
                    v0 = fmaf(comb[i * FAST_HC + j], low(in[i]), v0);
                    v1 = fmaf(comb[i * FAST_HC + j], high(in[i]), v1);
                }
                out[j] = pair_of(v0, v1);
            }
#pragma unroll
            for (int j = 0; j < FAST_HC; j++)
                x[j * a.dim / 2 + at] = in[j] = out[j];
        }
#pragma unroll
        for (int i = 0; i < FAST_HC; i++) {
            ((uint32_t *)tile)[i * (SEGMENT / 2) + at] = in[i];
            xx = fmaf(low(in[i]), low(in[i]), xx);
            xx = fmaf(high(in[i]), high(in[i]), xx);
            c0 = fmaf(pre[i], low(in[i]), c0);
            c1 = fmaf(pre[i], high(in[i]), c1);
        }
        c0 = bf16_round(c0);
        c1 = bf16_round(c1);
        cc = fmaf(c0, c0, cc);
        cc = fmaf(c1, c1, cc);
        ((uint32_t *)(c + row * a.dim + d0))[at] = pair_of(c0, c1);
    }
    xx = warp_sum(xx);
    cc = warp_sum(cc);
    if (lane == 0) {
        part[N_MIX] = xx;
        part[N_MIX + 1] = cc;
    }
}

/* Block (segment, TOKENS rows). fn: fragments of its STEPS steps of 16 columns. */
static __global__ __launch_bounds__(THREADS) void segment_kernel(hc_args a, const uint2 *fn,
                                                                 bf16 *c, float *parts)
{
    __shared__ __align__(16) bf16 tile[TOKENS][WIDTH + PAD];
    __shared__ float mix[WARPS][WARP_MIX];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int64_t row0 = (int64_t)blockIdx.y * TOKENS, n_segments = a.dim / SEGMENT;
    float *part = parts + (row0 * n_segments + blockIdx.x) * PARTS;
    float d[3][4] = {};

    for (int i = warp; i < TOKENS; i += WARPS) {
        if (row0 + i < a.n)
            segment_row(a, row0 + i, (int64_t)blockIdx.x * SEGMENT, tile[i], c,
                        part + i * n_segments * PARTS);
        else
            for (int p = lane; p < WIDTH / 2; p += 32)
                ((uint32_t *)tile[i])[p] = 0;
    }
    __syncthreads();
    fn += ((int64_t)blockIdx.x * STEPS + warp * (STEPS / WARPS)) * 9 * 32 + lane;
#pragma unroll 2
    for (int s = 0; s < STEPS / WARPS; s++, fn += 9 * 32) {
        int k = (warp * (STEPS / WARPS) + s) * 16 + 2 * t;
        uint32_t x[4] = {*(uint32_t *)&tile[g][k], *(uint32_t *)&tile[g + 8][k],
                         *(uint32_t *)&tile[g][k + 8], *(uint32_t *)&tile[g + 8][k + 8]};
        uint2 b[9];

#pragma unroll
        for (int i = 0; i < 9; i++)
            b[i] = fn[i * 32];
#pragma unroll
        for (int i = 0; i < 9; i++)
            mma(d[i / 3], x, b[i].x, b[i].y);
    }
#pragma unroll
    for (int i = 0; i < 3; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            mix[warp][(g + e / 2 * 8) * N_MIX + 8 * i + 2 * t + e % 2] = d[i][e];
    __syncthreads();
    for (int i = threadIdx.x; i < WARP_MIX; i += THREADS) {
        float sum = mix[0][i];

        for (int w = 1; w < WARPS; w++)
            sum += mix[w][i];
        if (row0 + i / N_MIX < a.n)
            part[i / N_MIX * n_segments * PARTS + i % N_MIX] = sum;
    }
}

/* Sinkhorn steps of a 4 x 4 matrix, an element per lane of 16: i = lane / 4, j = lane % 4. */
static __device__ float sinkhorn_lanes(float x, int iters, float eps)
{
    float top = fmaxf(x, __shfl_xor_sync(ALL, x, 1)), sum;

    top = fmaxf(top, __shfl_xor_sync(ALL, top, 2));
    x = expf(x - top);
    sum = x + __shfl_xor_sync(ALL, x, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    x = x / sum + eps;
    for (int pass = 0; pass < iters; pass++) {
        if (pass > 0) {
            sum = x + __shfl_xor_sync(ALL, x, 1);
            sum += __shfl_xor_sync(ALL, sum, 2);
            x /= sum + eps;
        }
        sum = x + __shfl_xor_sync(ALL, x, 4);
        sum += __shfl_xor_sync(ALL, sum, 8);
        x /= sum + eps;
    }
    return x;
}

/* A block per row: the mix by its first warp, norm and Q8 by all. */
static __global__ void row_kernel(hc_args a, hc_weights w, const bf16 *c, const float *parts)
{
    int64_t row = blockIdx.x, n_segments = a.dim / SEGMENT;
    const float *part = parts + row * n_segments * PARTS;
    int lane = threadIdx.x % 32;
    float sum = 0, r;

    if (threadIdx.x < 32) {
        for (int64_t s = 0; lane < PARTS && s < n_segments; s++)
            sum += part[s * PARTS + lane];
        r = 1.0f / sqrtf(__shfl_sync(ALL, sum, N_MIX) / (float)(FAST_HC * a.dim) + a.eps);
        if (lane < N_MIX) {
            int which = lane < FAST_HC ? 0 : lane < 2 * FAST_HC ? 1 : 2;

            sum = sum * r * vec(w.scale, which) + vec(w.base, lane);
        }
        if (lane < FAST_HC)
            a.pre_out[row * FAST_HC + lane] = sigmoid(sum) + a.hc_eps;
        else if (lane < 2 * FAST_HC)
            a.post_out[row * FAST_HC + lane - FAST_HC] = 2.0f * sigmoid(sum);
        sum = __shfl_sync(ALL, sum, 2 * FAST_HC + lane % 16);
        sum = sinkhorn_lanes(sum, a.iters, a.hc_eps);
        if (lane < 16)
            a.comb_out[row * 16 + lane] = sum;
    }
    if (!w.norm.data)
        return;
    sum = 0;
    for (int64_t s = 0; s < n_segments; s++)
        sum += part[s * PARTS + N_MIX + 1];
    r = 1.0f / sqrtf(sum / (float)a.dim + a.eps);
    for (int64_t d = threadIdx.x; d < a.dim; d += THREADS) {
        float v = bf16_round(vec(w.norm, d) * (from_bf(c[row * a.dim + d]) * r));

        if (a.out)
            ((bf16 *)a.out)[row * a.dim + d] = to_bf(v);
        if (a.out_q8)
            ((bf16 *)a.out_q8)[row * a.dim + d] = q8_value(v);
    }
}

static void hc_fast(cuda_impl *c, const hc_args *a, const hc_weights *w)
{
    dim3 grid((unsigned)(a->dim / SEGMENT), (unsigned)((a->n + TOKENS - 1) / TOKENS));
    bf16 *collapsed = a->collapsed ? (bf16 *)a->collapsed : c->s.hc_row;

    segment_kernel<<<grid, THREADS, 0, c->stream>>>(*a, (const uint2 *)w->fn.data, collapsed,
                                                    c->s.hc_part);
    cuda_launched(c, "hc");
    row_kernel<<<a->n, THREADS, 0, c->stream>>>(*a, *w, collapsed, c->s.hc_part);
    cuda_launched(c, "hc");
}

/* fn [24][4 * dim] f32 -> fragments: [segment][step][mix / 8][part][lane], a word of two columns
 * and the one 8 columns behind. Column k of a segment's step lies at copy k / SEGMENT of the
 * stream. */
static __global__ void pack_mix_kernel(const float *fn, int64_t dim, uint2 *out)
{
    int64_t step = blockIdx.x % STEPS, segment = blockIdx.x / STEPS;
    int tile = threadIdx.x / 32, lane = threadIdx.x % 32, k = (int)step * 16 + lane % 4 * 2;
    const float *row = fn + (int64_t)(tile * 8 + lane / 4) * FAST_HC * dim;

    for (int part = 0; part < 3; part++) {
        uint32_t word[2];

        for (int i = 0; i < 2; i++) {
            uint32_t half[2];

            for (int h = 0; h < 2; h++) {
                int at = k + 8 * i + h;
                float v = row[at / SEGMENT * dim + segment * SEGMENT + at % SEGMENT];

                for (int p = 0; p < part; p++) /* what the parts before leave */
                    v -= bf16_round(v);
                half[h] = to_bf(v);
            }
            word[i] = half[0] | half[1] << 16;
        }
        out[((int64_t)blockIdx.x * 9 + tile * 3 + part) * 32 + lane] = make_uint2(word[0], word[1]);
    }
}

bool cuda_can_pack_mix(int64_t rows, int64_t cols)
{
    return rows == N_MIX && cols % WIDTH == 0;
}

size_t cuda_mix_bytes(int64_t cols)
{
    return (size_t)cols / 16 * 9 * 32 * sizeof(uint2);
}

void cuda_pack_mix(cuda_impl *c, const float *fn, int64_t cols, void *out)
{
    pack_mix_kernel<<<(unsigned)(cols / 16), 96, 0, c->stream>>>(fn, cols / FAST_HC, (uint2 *)out);
    cuda_launched(c, "packing weights");
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
    if (w.fn.packed)
        hc_fast(c, a, &w);
    else if (a->hc == 1)
        hc_kernel<1><<<a->n, THREADS, smem, c->stream>>>(*a, w);
    else if (a->hc == 2)
        hc_kernel<2><<<a->n, THREADS, smem, c->stream>>>(*a, w);
    else if (a->hc == MAX_HC)
        hc_kernel<MAX_HC><<<a->n, THREADS, smem, c->stream>>>(*a, w);
    else
        cuda_note(c, cudaErrorNotSupported, "hc: 1, 2 or 4 copies");
    cuda_launched(c, "hc");
}
