/* Row-wise operations: tables, rotations, moves, Q8, Engram, taps, confidence. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/step.h"

static int blocks_of(int64_t n)
{
    return (int)((n + THREADS - 1) / THREADS);
}

/* Blocks (row, part of its columns): as many parts as fill the device when rows are few. */
static dim3 blocks_of_rows(int n, int64_t cols)
{
    int parts = blocks_of(cols), most = n < 1024 ? 1024 / n : 1;

    return dim3((unsigned)n, (unsigned)(parts < most ? parts : most));
}

/* ---- gather ---- */

static __global__ void gather_kernel(const bf16 *table, gather_args a, int64_t cols)
{
    after_previous();

    int64_t row = blockIdx.x;
    const bf16 *own = a.vectors ? a.vectors[row] : NULL;
    const bf16 *from = own ? own : table + a.ids[row] * cols;
    bf16 *out = (bf16 *)a.out + row * a.copies * cols;

    for (int64_t c = (int64_t)blockIdx.y * THREADS + threadIdx.x; c < cols;
         c += gridDim.y * THREADS)
        for (int64_t copy = 0; copy < a.copies; copy++)
            out[copy * cols + c] = from[c];
}

void cuda_gather(cuda_impl *c, const gather_args *a)
{
    launch(c, "gather", gather_kernel, blocks_of_rows(a->n, a->table->cols), THREADS, 0,
           (const bf16 *)a->table->data, *a, a->table->cols);
}

/* ---- block tables ---- */

/* One block per sequence. Its view points at the copy from then on. */
static __global__ void tables_kernel(tables_args a)
{
    after_previous();

    kv_view *v = &a.view[blockIdx.x];
    int64_t end = v->len + a.row0[blockIdx.x + 1] - a.row0[blockIdx.x];
    int64_t n = (end + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    const int32_t *from = v->table;
    int32_t *to = a.to + blockIdx.x * a.stride;

    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        to[i] = from[i];
    __syncthreads(); /* everybody knows where the host's is */
    if (threadIdx.x == 0)
        v->table = to;
}

void cuda_tables(cuda_impl *c, const tables_args *a)
{
    launch(c, "tables", tables_kernel, a->n_seqs, THREADS, 0, *a);
}

/* ---- rotations ---- */

static __global__ void rope_rows_kernel(rope_rows_args a)
{
    after_previous();

    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    double angle, s, cos_of;

    if (i >= (int64_t)a.n * a.half)
        return;
    angle = (double)((float)a.pos[i / a.half] * a.freq[i % a.half]);
    sincos(angle, &s, &cos_of);
    a.cs[2 * i] = (float)cos_of;
    a.cs[2 * i + 1] = (float)s;
}

void cuda_rope_rows(cuda_impl *c, const rope_rows_args *a)
{
    launch(c, "rope_rows", rope_rows_kernel, blocks_of((int64_t)a->n * a->half), THREADS, 0, *a);
}

/* ---- keep_rows ---- */

#define KEEP_AHEAD 8

/* A thread moves one unit of every row, rows ascending. Rows are read KEEP_AHEAD at a time before
 * the first of them is written: none of them is a place that an earlier one of them writes, because
 * rows[i] >= i. */
template <typename T> static __global__ void keep_rows_kernel(keep_rows_args a, int64_t units)
{
    after_previous();

    int64_t u = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    T *buf = (T *)a.buf, ahead[KEEP_AHEAD];

    if (u >= units)
        return;
    for (int i = 0; i < a.n; i += KEEP_AHEAD) {
#pragma unroll
        for (int j = 0; j < KEEP_AHEAD; j++)
            if (i + j < a.n)
                ahead[j] = buf[a.rows[i + j] * units + u];
#pragma unroll
        for (int j = 0; j < KEEP_AHEAD; j++)
            if (i + j < a.n)
                buf[(int64_t)(i + j) * units + u] = ahead[j];
    }
}

template <typename T> static void keep(cuda_impl *c, const keep_rows_args *a)
{
    int64_t units = (int64_t)(a->row_bytes / sizeof(T));

    launch(c, "keep_rows", keep_rows_kernel<T>, blocks_of(units), THREADS, 0, *a, units);
}

void cuda_keep_rows(cuda_impl *c, const keep_rows_args *a)
{
    if (a->n == 0)
        return;
    if (a->row_bytes % 16 == 0)
        keep<uint4>(c, a);
    else if (a->row_bytes % 4 == 0)
        keep<uint32_t>(c, a);
    else
        keep<uint8_t>(c, a);
}

/* ---- copies of state ---- */

#define COPIES     128 /* in a launch: they travel as its parameters */
#define COPY_PARTS 16  /* blocks that share a copy */

typedef struct copy_list {
    kv_copy c[COPIES];
} copy_list;

template <typename T> static __device__ void copy_as(const kv_copy &c)
{
    int64_t n = (int64_t)(c.bytes / sizeof(T));

    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += COPY_PARTS * THREADS)
        ((T *)c.dst)[i] = ((const T *)c.src)[i];
}

static __global__ void copy_kernel(const __grid_constant__ copy_list list)
{
    after_previous();

    const kv_copy &c = list.c[blockIdx.y];

    if ((((uintptr_t)c.dst | (uintptr_t)c.src | c.bytes) & 15) == 0)
        copy_as<uint4>(c);
    else
        copy_as<uint8_t>(c);
}

static bool meet(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* Does c read or write what one of the n copies before it writes, or write what one reads? */
static bool must_wait(const kv_copy *before, int n, const kv_copy *c)
{
    for (int i = 0; i < n; i++)
        if (meet(c->dst, c->bytes, before[i].dst, before[i].bytes) ||
            meet(c->src, c->bytes, before[i].dst, before[i].bytes) ||
            meet(c->dst, c->bytes, before[i].src, before[i].bytes))
            return true;
    return false;
}

/* Copies that do not meet go together. */
void cuda_copy(cuda_impl *c, const kv_copy *copies, int n)
{
    for (int first = 0, m; first < n; first += m) {
        copy_list list;

        for (m = 0; m < COPIES && first + m < n && !must_wait(list.c, m, &copies[first + m]); m++)
            list.c[m] = copies[first + m];
        launch(c, "copy", copy_kernel, dim3(COPY_PARTS, (unsigned)m), THREADS, 0, list);
    }
}

/* ---- Q8 ---- */

/* Four values a thread; the 32 of a group lie in eight lanes. n is a multiple of 32, so that lanes
 * of a group are all there; lanes without one take part in the exchange. */
static __global__ void quantize_kernel(const uint2 *x, uint2 *q8, int64_t n)
{
    after_previous();

    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    uint2 in = i < n / 4 ? x[i] : make_uint2(0, 0);
    float v[4] = {from_bf((bf16)in.x), from_bf((bf16)(in.x >> 16)), from_bf((bf16)in.y),
                  from_bf((bf16)(in.y >> 16))};
    float s = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));

    s = q8_scale(lanes_max(s, 8));
#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = e4m3(to_e4m3(fminf(fmaxf(v[j] / s, -448.0f), 448.0f))) * s;
    if (i < n / 4)
        q8[i] = make_uint2((uint32_t)to_bf(v[0]) | (uint32_t)to_bf(v[1]) << 16,
                           (uint32_t)to_bf(v[2]) | (uint32_t)to_bf(v[3]) << 16);
}

void cuda_quantize(cuda_impl *c, const quantize_args *a)
{
    int64_t n = (int64_t)a->n * a->cols;

    launch(c, "quantize", quantize_kernel, blocks_of(n / 4), THREADS, 0, (const uint2 *)a->x,
           (uint2 *)a->q8, n);
}

/* ---- Engram ---- */

/* Columns of a thread: one read, which counts where the table is in host memory. */
#define WIDE 16

/* Two threads per 32 columns of a table row: decode (exact), round, Q8. `n` threads. */
static __global__ void engram_gather_kernel(weight table, engram_gather_args a, uint32_t n)
{
    after_previous();

    uint32_t i = blockIdx.x * THREADS + threadIdx.x, per_row = (uint32_t)(table.cols / WIDE), col;
    bool mine = i < n;
    int64_t id;
    float x[WIDE], amax = 0, scale, inverse;
    uint4 code, out[2];

    i = mine ? i : (uint32_t)n - 1; /* whole warps take part in the maximum */
    col = i % per_row * WIDE;
    id = a.ids[i / per_row];
    code = *(const uint4 *)((const uint8_t *)table.data + id * table.cols + col);
    scale = ue8m0(table.scale[id * (table.cols / 32) + col / 32]);
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
        x[j] = bf16_round(e4m3(((const uint8_t *)&code)[j]) * scale);
        amax = fmaxf(amax, fabsf(x[j]));
    }
    scale = q8_scale(fmaxf(amax, __shfl_xor_sync(~0u, amax, 1)));
    inverse = 1.0f / scale;
#pragma unroll
    for (int j = 0; j < WIDE; j += 2)
        ((uint32_t *)out)[j / 2] =
            bf16_pair(q8_near(x[j], scale, inverse), q8_near(x[j + 1], scale, inverse));
    for (int j = 0; j < 2 && mine; j++)
        ((uint4 *)a.out_q8)[2 * (int64_t)i + j] = out[j];
}

void cuda_engram_gather(cuda_impl *c, const engram_gather_args *a)
{
    int64_t n = (int64_t)a->n * a->n_cols * a->table->cols / WIDE;

    launch(c, "engram_gather", engram_gather_kernel, blocks_of(n), THREADS, 0, *a->table, *a,
           (uint32_t)n);
}

/* One block per copy of a row. */
static __global__ void engram_apply_kernel(weight q_w, weight k_w, engram_apply_args a)
{
    after_previous();

    int64_t row = blockIdx.x / a.hc, i = blockIdx.x % a.hc, dim = a.dim;
    const bf16 *kv = (const bf16 *)a.kv + row * (a.hc + 1) * dim, *key = kv + i * dim;
    const bf16 *value = kv + a.hc * dim;
    bf16 *x = (bf16 *)a.x + (row * a.hc + i) * dim;
    float dot = 0, xx = 0, kk = 0, g = 0;

    for (int64_t d = threadIdx.x; d < dim; d += THREADS) {
        float xd = from_bf(x[d]), kd = from_bf(key[d]);
        float w = vec(q_w, i * dim + d) * vec(k_w, i * dim + d);

        dot = fmaf(xd * w, kd, dot);
        xx = fmaf(xd, xd, xx);
        kk = fmaf(kd, kd, kk);
    }
    dot = block_sum(dot);
    xx = block_sum(xx);
    kk = block_sum(kk);
    if (!(a.image && a.image[row])) {
        float n = (float)dim;

        dot = dot * (1.0f / sqrtf(xx / n + a.eps)) * (1.0f / sqrtf(kk / n + a.eps)) / sqrtf(n);
        g = sigmoid(copysignf(sqrtf(fmaxf(fabsf(dot), 1e-6f)), dot));
    }
    for (int64_t d = threadIdx.x; d < dim; d += THREADS)
        x[d] = to_bf(from_bf(x[d]) + g * from_bf(value[d]));
    if (a.gate && threadIdx.x == 0)
        a.gate[row * a.hc + i] = g;
}

void cuda_engram_apply(cuda_impl *c, const engram_apply_args *a)
{
    launch(c, "engram_apply", engram_apply_kernel, a->n * a->hc, THREADS, 0, *a->q_w, *a->k_w, *a);
}

/* ---- draft ---- */

static __global__ void tap_kernel(tap_args a)
{
    after_previous();

    int64_t row = blockIdx.x, dim = a.dim;
    const bf16 *x = (const bf16 *)a.x + row * a.hc * dim;
    bf16 *out = (bf16 *)a.out + row * a.out_stride;

    for (int64_t d = (int64_t)blockIdx.y * THREADS + threadIdx.x; d < dim;
         d += gridDim.y * THREADS) {
        float sum = 0;

        for (int64_t i = 0; i < a.hc; i++)
            sum += from_bf(x[i * dim + d]);
        out[d] = to_bf(sum / (float)a.hc);
    }
}

void cuda_tap(cuda_impl *c, const tap_args *a)
{
    launch(c, "tap", tap_kernel, blocks_of_rows(a->n, a->dim), THREADS, 0, *a);
}

static __global__ void confidence_kernel(const bf16 *w, confidence_args a)
{
    after_previous();

    int64_t row = blockIdx.x;
    const bf16 *h = (const bf16 *)a.h + row * a.dim, *e = (const bf16 *)a.e + row * a.rank;
    float sum = 0;

    for (int64_t i = threadIdx.x; i < a.dim; i += THREADS)
        sum = fmaf(from_bf(w[i]), from_bf(h[i]), sum);
    for (int64_t i = threadIdx.x; i < a.rank; i += THREADS)
        sum = fmaf(from_bf(w[a.dim + i]), from_bf(e[i]), sum);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        a.out[row] = sum;
}

void cuda_confidence(cuda_impl *c, const confidence_args *a)
{
    launch(c, "confidence", confidence_kernel, a->n, THREADS, 0, (const bf16 *)a->w->data, *a);
}
