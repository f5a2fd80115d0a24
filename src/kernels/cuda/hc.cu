/* Hyper-connections with the norm and the quantisation behind them (kernels/hc.h): for any shape
 * and any parts of the step, a block per row; for the whole step between two sublayers, clusters.
 */
#include "kernels/cuda/launch.cuh"
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
    int64_t row = blockIdx.x, from;
    float pre[HC]; /* before the mix: pre_out may be the same memory */
    bf16 *x;

    after_previous();
    from = a.rows ? a.rows[row] : row;
    x = (bf16 *)a.x + from * HC * a.dim;
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
 * A cluster of SPREAD blocks takes TOKENS rows, each block a chunk of the columns: segment by
 * segment it expands them, keeps the collapsed row in shared memory, and multiplies them with its
 * columns of fn on the matrix units. Then the
 * blocks read each other's sums, add them in order, and each ends its own columns. A row's sums do
 * not depend on TOKENS: chunk by chunk, warp by warp, a warp's steps in order. */

#define FAST_HC 4
#define N_MIX   24 /* (2 + 4) * 4 */
#define SPREAD  8  /* blocks of a cluster */
#define ROWS    16 /* of a cluster */
#define SEGMENT 128
#define UNIT    8                   /* columns of a thread's load */
#define UNITS   (SEGMENT / UNIT)    /* of a row's segment */
#define WIDTH   (FAST_HC * SEGMENT) /* of a row of the staged tile */
#define PAD     8                   /* elements, against bank conflicts */
#define PARTS   (N_MIX + 2)         /* sums of a chunk: mix, squares of x and of c */
#define STEPS   (WIDTH / 16)
#define SHARES  8 /* a segment's steps are shared out to so many warps */
#define EACH    (STEPS / SHARES)

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
    uint32_t r;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}

/* Segments of a block's chunk. */
static __host__ __device__ constexpr int segments_of(int dim)
{
    return (dim / SEGMENT + SPREAD - 1) / SPREAD;
}

/* Shared memory: staged tile, collapsed rows, sums. Sums of warps take the tile's place. */
static __host__ __device__ constexpr int tile_bytes(int tokens)
{
    return tokens * (WIDTH + PAD) * 2;
}

static __host__ __device__ constexpr int row_elements(int dim)
{
    return segments_of(dim) * SEGMENT + PAD;
}

static __host__ __device__ constexpr int hc_smem(int tokens, int dim)
{
    return tile_bytes(tokens) + tokens * row_elements(dim) * 2 + tokens * PARTS * 4;
}

/* A row's coefficients, in every thread of the row. */
typedef struct coefficients {
    float pre[FAST_HC], post[FAST_HC], comb[FAST_HC * FAST_HC];
} coefficients;

static __device__ __forceinline__ void load4(float *to, const float *from)
{
    float4 v = *(const float4 *)from;

    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

static __device__ __forceinline__ coefficients coefficients_of(const hc_args &a, int64_t row)
{
    coefficients k = {{1, 0, 0, 0}, {}, {}};

    if (a.pre_in)
        load4(k.pre, a.pre_in + row * FAST_HC);
    if (a.y) {
        load4(k.post, a.post + row * FAST_HC);
#pragma unroll
        for (int i = 0; i < FAST_HC; i++)
            load4(k.comb + FAST_HC * i, a.comb + (row * FAST_HC + i) * FAST_HC);
    }
    return k;
}

/* A thread's columns of one row: the copies of the stream, and y. */
typedef struct unit_words {
    uint4 x[FAST_HC], y;
} unit_words;

static __device__ __forceinline__ unit_words load_unit(const hc_args &a, int64_t row, int column)
{
    unit_words u = {};

    if (row >= a.n)
        return u;
#pragma unroll
    for (int i = 0; i < FAST_HC; i++)
        u.x[i] = *(const uint4 *)((const bf16 *)a.x + (row * FAST_HC + i) * a.dim + column);
    if (a.y)
        u.y = *(const uint4 *)((const bf16 *)a.y + row * a.dim + column);
    return u;
}

/* Expand two columns in place and collapse them; sums of squares of both. */
static __device__ __forceinline__ uint32_t step_pair(const coefficients &k, bool expand,
                                                     uint32_t (&x)[FAST_HC], uint32_t y, float *xx,
                                                     float *cc)
{
    float in0[FAST_HC], in1[FAST_HC], c0 = 0, c1 = 0;
    uint32_t c;

#pragma unroll
    for (int i = 0; i < FAST_HC; i++) {
        in0[i] = low(x[i]);
        in1[i] = high(x[i]);
    }
    if (expand) {
#pragma unroll
        for (int j = 0; j < FAST_HC; j++) {
            float v0 = k.post[j] * low(y), v1 = k.post[j] * high(y);

#pragma unroll
            for (int i = 0; i < FAST_HC; i++) {
                v0 = fmaf(k.comb[i * FAST_HC + j], in0[i], v0);
                v1 = fmaf(k.comb[i * FAST_HC + j], in1[i], v1);
            }
            x[j] = pair_of(v0, v1);
        }
    }
#pragma unroll
    for (int i = 0; i < FAST_HC; i++) {
        in0[i] = low(x[i]);
        in1[i] = high(x[i]);
        *xx = fmaf(in0[i], in0[i], *xx);
        *xx = fmaf(in1[i], in1[i], *xx);
        c0 = fmaf(k.pre[i], in0[i], c0);
        c1 = fmaf(k.pre[i], in1[i], c1);
    }
    c = pair_of(c0, c1);
    *cc = fmaf(low(c), low(c), *cc);
    *cc = fmaf(high(c), high(c), *cc);
    return c;
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* A unit: expanded into the stream and the tile, collapsed into c. */
static __device__ __forceinline__ void step_unit(const hc_args &a, const coefficients &k,
                                                 const unit_words &u, int64_t row, int column,
                                                 bf16 *tile, bf16 *c, float *xx, float *cc)
{
    uint32_t x[4][FAST_HC], out[4];

#pragma unroll
    for (int p = 0; p < 4; p++) {
#pragma unroll
        for (int i = 0; i < FAST_HC; i++)
            x[p][i] = word_of(u.x[i], p);
        out[p] = step_pair(k, a.y != NULL, x[p], word_of(u.y, p), xx, cc);
    }
    *(uint4 *)c = make_uint4(out[0], out[1], out[2], out[3]);
    if (a.collapsed && row < a.n)
        *(uint4 *)((bf16 *)a.collapsed + row * a.dim + column) = *(uint4 *)c;
#pragma unroll
    for (int i = 0; i < FAST_HC; i++) {
        uint4 v = make_uint4(x[0][i], x[1][i], x[2][i], x[3][i]);

        *(uint4 *)(tile + i * SEGMENT) = v;
        if (a.y && row < a.n)
            *(uint4 *)((bf16 *)a.x + (row * FAST_HC + i) * a.dim + column) = v;
    }
}

/* D += A B with B in f32, as three parts in bf16 that together are exact. */
static __device__ __forceinline__ void multiply_exactly(float (&d)[4], const uint32_t (&x)[4],
                                                        float4 b)
{
#pragma unroll
    for (int part = 0; part < 3; part++) {
        uint32_t b0 = pair_of(b.x, b.y), b1 = pair_of(b.z, b.w);

        mma(d, x, b0, b1);
        b.x -= low(b0); /* what the parts so far leave */
        b.y -= high(b0);
        b.z -= low(b1);
        b.w -= high(b1);
    }
}

/* This warp's steps of a staged segment, on 16 of the rows. fn: fragments, [step][mix / 8][lane].
 */
static __device__ __forceinline__ void multiply(float (&d)[3][4], const bf16 *tile,
                                                const float4 *fn)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float4 b[EACH][3];

    fn += warp % SHARES * EACH * 3 * 32 + lane;
    tile += (warp / SHARES * 16 + g) * (WIDTH + PAD) + warp % SHARES * EACH * 16 + 2 * t;
#pragma unroll
    for (int i = 0; i < EACH * 3; i++)
        b[i / 3][i % 3] = fn[i * 32];
#pragma unroll
    for (int s = 0; s < EACH; s++) {
        const bf16 *at = tile + s * 16;
        uint32_t x[4] = {*(uint32_t *)at, *(uint32_t *)(at + 8 * (WIDTH + PAD)),
                         *(uint32_t *)(at + 8), *(uint32_t *)(at + 8 * (WIDTH + PAD) + 8)};

#pragma unroll
        for (int i = 0; i < 3; i++)
            multiply_exactly(d[i], x, b[s][i]);
    }
}

/* ---- the cluster ---- */

static __device__ __forceinline__ void cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Sum of a number of all blocks' shared memory, in their order. */
static __device__ __forceinline__ float cluster_sum(const float *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p), there;
    float v[SPREAD], sum = 0;

#pragma unroll
    for (int r = 0; r < SPREAD; r++) {
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(r));
        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v[r]) : "r"(there) : "memory");
    }
#pragma unroll
    for (int r = 0; r < SPREAD; r++)
        sum += v[r];
    return sum;
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

/* pre, post and comb of a row from its sums, a lane each; by a whole warp. */
static __device__ void end_mix(const hc_args &a, const hc_weights &w, int64_t row, float sum)
{
    int lane = threadIdx.x % 32;
    float r = 1.0f / sqrtf(__shfl_sync(ALL, sum, N_MIX) / (float)(FAST_HC * a.dim) + a.eps);

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

/* Norm and Q8 of a unit; the 32 columns of a scale are in 4 neighbouring lanes. */
static __device__ __forceinline__ void end_unit(const hc_args &a, const hc_weights &w, int64_t row,
                                                int column, const bf16 *c, float r)
{
    uint4 in = *(const uint4 *)c, norm = *(const uint4 *)((const bf16 *)w.norm.data + column);
    uint32_t out[4], q8[4];
    float top = 0, s, up;

#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t v = word_of(in, p), k = word_of(norm, p);

        out[p] = pair_of(low(k) * (low(v) * r), high(k) * (high(v) * r));
        top = fmaxf(top, fmaxf(fabsf(low(out[p])), fabsf(high(out[p]))));
    }
    top = fmaxf(top, __shfl_xor_sync(ALL, top, 1));
    top = fmaxf(top, __shfl_xor_sync(ALL, top, 2));
    s = q8_scale(top);
    up = 1.0f / s; /* a power of two, as s: exact */
#pragma unroll
    for (int p = 0; p < 4; p++) {
        float v0 = fminf(fmaxf(low(out[p]) * up, -448.0f), 448.0f);
        float v1 = fminf(fmaxf(high(out[p]) * up, -448.0f), 448.0f);

        q8[p] = pair_of(e4m3(to_e4m3(v0)) * s, e4m3(to_e4m3(v1)) * s);
    }
    if (row >= a.n)
        return;
    if (a.out)
        *(uint4 *)((bf16 *)a.out + row * a.dim + column) =
            make_uint4(out[0], out[1], out[2], out[3]);
    if (a.out_q8)
        *(uint4 *)((bf16 *)a.out_q8 + row * a.dim + column) =
            make_uint4(q8[0], q8[1], q8[2], q8[3]);
}

/* The warps' sums of the mix, in order, and a row's sums of squares over its threads. */
template <int TOKENS>
static __device__ void end_chunk(float *part, float *warps, const float (&d)[3][4], float xx,
                                 float cc)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float *mine = warps + (warp % SHARES * TOKENS + warp / SHARES * 16 + g) * N_MIX + 2 * t;

    for (int m = UNITS / 2; m > 0; m /= 2) {
        xx += __shfl_xor_sync(ALL, xx, m);
        cc += __shfl_xor_sync(ALL, cc, m);
    }
    if (threadIdx.x % UNITS == 0) {
        part[threadIdx.x / UNITS * PARTS + N_MIX] = xx;
        part[threadIdx.x / UNITS * PARTS + N_MIX + 1] = cc;
    }
#pragma unroll
    for (int i = 0; i < 3; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            mine[e / 2 * 8 * N_MIX + 8 * i + e % 2] = d[i][e];
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * N_MIX; i += TOKENS * UNITS) {
        float sum = warps[i];

        for (int v = 1; v < SHARES; v++)
            sum += warps[v * TOKENS * N_MIX + i];
        part[i / N_MIX * PARTS + i % N_MIX] = sum;
    }
}

/* Cluster = TOKENS rows. A row has UNITS threads of every block. */
template <int TOKENS>
static __global__ __cluster_dims__(SPREAD, 1, 1)
    __launch_bounds__(TOKENS *UNITS, 2) void hc_fast_kernel(hc_args a, hc_weights w)
{
    extern __shared__ __align__(16) uint8_t smem[];
    int rank = blockIdx.x % SPREAD, per = segments_of(a.dim), token = threadIdx.x / UNITS;
    int first = rank * per, n_segments = min(per, a.dim / SEGMENT - first);
    int64_t row0 = (int64_t)(blockIdx.x / SPREAD) * TOKENS, row = row0 + token;
    int at = threadIdx.x % UNITS * UNIT, column = first * SEGMENT + at;
    bf16 *tile = (bf16 *)smem, *c = (bf16 *)(smem + tile_bytes(TOKENS));
    float *part = (float *)(c + TOKENS * row_elements(a.dim));
    float xx = 0, cc = 0, d[3][4] = {}, r, mine = 0;
    unit_words next = {};
    coefficients k;

    after_previous();
    k = coefficients_of(a, row < a.n ? row : a.n - 1);
    c += token * row_elements(a.dim) + at;
    if (n_segments > 0)
        next = load_unit(a, row, column);
    for (int i = 0; i < n_segments; i++) {
        if (i > 0)
            __syncthreads(); /* the tile has been read */
        step_unit(a, k, next, row, column + i * SEGMENT, tile + token * (WIDTH + PAD) + at,
                  c + i * SEGMENT, &xx, &cc);
        __syncthreads();
        if (i + 1 < n_segments)
            next = load_unit(a, row, column + (i + 1) * SEGMENT);
        multiply(d, tile, (const float4 *)w.fn.data + (int64_t)(first + i) * STEPS * 3 * 32);
    }
    __syncthreads();
    end_chunk<TOKENS>(part, (float *)tile, d, xx, cc);
    cluster_arrive();
    cluster_wait();
    r = 1.0f / sqrtf(cluster_sum(part + token * PARTS + N_MIX + 1) / (float)a.dim + a.eps);
    token = rank * (TOKENS / SPREAD) + threadIdx.x / 32; /* whose mix this warp ends */
    if (threadIdx.x / 32 < TOKENS / SPREAD && threadIdx.x % 32 < PARTS)
        mine = cluster_sum(part + token * PARTS + threadIdx.x % 32);
    cluster_arrive(); /* no block leaves before all have read its sums */
    for (int i = 0; w.norm.data && i < n_segments; i++)
        end_unit(a, w, row, column + i * SEGMENT, c + i * SEGMENT, r);
    if (threadIdx.x / 32 < TOKENS / SPREAD && row0 + token < a.n)
        end_mix(a, w, row0 + token, mine);
    cluster_wait();
}

template <int TOKENS> static void hc_rows(cuda_impl *c, const hc_args *a, const hc_weights *w)
{
    int smem = hc_smem(TOKENS, a->dim), clusters = (a->n + TOKENS - 1) / TOKENS;

    cuda_note(c,
              cudaFuncSetAttribute((const void *)hc_fast_kernel<TOKENS>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, smem),
              "hc");
    launch(c, "hc", hc_fast_kernel<TOKENS>, clusters * SPREAD, TOKENS * UNITS, (size_t)smem, *a,
           *w);
}

/* fn [24][4 * dim] -> fragments: [segment][step][mix / 8][lane], two columns and the two 8 columns
 * behind. Column k of a segment's step lies at copy k / SEGMENT of the stream. */
static __global__ void pack_mix_kernel(const float *fn, int64_t dim, float4 *out)
{
    int64_t step = blockIdx.x % STEPS, segment = blockIdx.x / STEPS;
    int tile = threadIdx.x / 32, lane = threadIdx.x % 32, k = (int)step * 16 + lane % 4 * 2;
    const float *row = fn + (int64_t)(tile * 8 + lane / 4) * FAST_HC * dim;
    float v[4];

    row += k / SEGMENT * dim + segment * SEGMENT + k % SEGMENT;
    for (int i = 0; i < 4; i++)
        v[i] = row[i / 2 * 8 + i % 2];
    out[(int64_t)blockIdx.x * 96 + threadIdx.x] = make_float4(v[0], v[1], v[2], v[3]);
}

bool cuda_can_pack_mix(int64_t rows, int64_t cols)
{
    return rows == N_MIX && cols % WIDTH == 0;
}

size_t cuda_mix_bytes(int64_t cols)
{
    return (size_t)cols * N_MIX * sizeof(float);
}

void cuda_pack_mix(cuda_impl *c, const float *fn, int64_t cols, void *out)
{
    pack_mix_kernel<<<(unsigned)(cols / 16), 96, 0, c->stream>>>(fn, cols / FAST_HC, (float4 *)out);
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
        hc_rows<ROWS>(c, a, &w);
    else if (a->hc == 1)
        launch(c, "hc", hc_kernel<1>, a->n, THREADS, smem, *a, w);
    else if (a->hc == 2)
        launch(c, "hc", hc_kernel<2>, a->n, THREADS, smem, *a, w);
    else if (a->hc == MAX_HC)
        launch(c, "hc", hc_kernel<MAX_HC>, a->n, THREADS, smem, *a, w);
    else
        cuda_note(c, cudaErrorNotSupported, "hc: 1, 2 or 4 copies");
}
