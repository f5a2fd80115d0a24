/* Compressors of the KV owners (kernels/compress.h). */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

/* out = RMS(x, w) of a row in shared memory; in place. */
static __device__ void rms_row(float *x, const weight &w, int64_t n, float eps)
{
    float sum = 0, r;

    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum = fmaf(x[i], x[i], sum);
    r = 1.0f / sqrtf(block_sum(sum) / (float)n + eps);
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        x[i] = bf16_round(vec(w, i) * (x[i] * r));
    __syncthreads();
}

/* ---- pool ---- */

/* Projection (a, then z) of token t of a group: a row of this step, or the open ring. */
static __device__ const float *group_token(const compress_pool_args &a, const step &s,
                                           const kv_layout &l, int ratio, int32_t last,
                                           int64_t entry, int t)
{
    int64_t row = (int64_t)last - (ratio - 1) + t;
    int32_t seq = s.seq[last];

    if (row >= s.row0[seq])
        return (const float *)a.proj + row * 2 * l.head_dim;
    return kv_open(&l, &s.view[seq], a.owner, entry * ratio + t);
}

/* Per channel: softmax over the gates of the group's tokens weights their values. */
static __device__ float pool_channel(const compress_pool_args &a, const step &s, const kv_layout &l,
                                     int ratio, int32_t last, int64_t entry, int64_t d)
{
    float top = -INFINITY, total = 0, sum = 0;

    for (int t = 0; t < ratio; t++)
        top = fmaxf(top, group_token(a, s, l, ratio, last, entry, t)[l.head_dim + d]);
    for (int t = 0; t < ratio; t++)
        total += expf(group_token(a, s, l, ratio, last, entry, t)[l.head_dim + d] - top);
    for (int t = 0; t < ratio; t++) {
        const float *token = group_token(a, s, l, ratio, last, entry, t);

        sum = fmaf(token[d], expf(token[l.head_dim + d] - top) / total, sum);
    }
    return bf16_round(sum);
}

/* Latent of a group. */
static __device__ void pool_group(const compress_pool_args &a, const step &s, const step_groups &g,
                                  const kv_layout &l, const weight &norm, int group)
{
    extern __shared__ float x[];
    int64_t dim = l.head_dim;
    int32_t last = g.last_row[group];
    int64_t entry = g.entry[group];

    if (last == STEP_NO_GROUP)
        return;
    for (int64_t d = threadIdx.x; d < dim; d += THREADS)
        x[d] = g.ratio == 1 ? from_bf(((const bf16 *)a.proj)[last * dim + d])
                            : pool_channel(a, s, l, g.ratio, last, entry, d);
    rms_row(x, norm, dim, a.eps);
    for (int64_t d = threadIdx.x; d < dim; d += THREADS)
        ((bf16 *)a.lat)[group * dim + d] = to_bf(x[d]);
}

/* A row among the last open_rows of its sequence is kept for groups of later steps. */
static __device__ void keep_open(const compress_pool_args &a, const step &s, const kv_layout &l,
                                 int row)
{
    int32_t seq = s.seq[row];
    const float *from = (const float *)a.proj + (int64_t)row * 2 * l.head_dim;
    float *to;

    if (row < s.row0[seq + 1] - l.owner[a.owner].open_rows)
        return;
    to = kv_open(&l, &s.view[seq], a.owner, s.pos[row]);
    for (int i = threadIdx.x; i < 2 * l.head_dim; i += THREADS)
        to[i] = from[i];
}

/* One block per group, then one per row. `first`: how many of them are left out. */
static __global__ void pool_kernel(compress_pool_args a, step s, step_groups g,
                                   const __grid_constant__ kv_layout l, weight norm, int first)
{
    int at = first + (int)blockIdx.x;

    after_previous();
    if (at < g.n)
        pool_group(a, s, g, l, norm, at);
    else
        keep_open(a, s, l, at - g.n);
}

static void pool_blocks(cuda_impl *c, const compress_pool_args *a, int first, int n)
{
    if (n > 0)
        launch(c, "compress_pool", pool_kernel, (unsigned)n, THREADS,
               (size_t)a->layout->head_dim * sizeof(float), *a, *a->s, *a->g, *a->layout, *a->norm,
               first);
}

void cuda_compress_pool(cuda_impl *c, const compress_pool_args *a)
{
    int groups = a->g->n, kept = a->g->ratio > 1 ? a->s->n_rows : 0;

    if (a->few) {
        pool_blocks(c, a, 0, groups + kept);
        return;
    }
    pool_blocks(c, a, 0, groups);
    pool_blocks(c, a, groups, kept);
}

/* ---- store ---- */

static __device__ void rope_row(float *x, int64_t dim, int rope, const float *cs)
{
    float *at = x + dim - rope;

    for (int i = threadIdx.x; i < rope / 2; i += THREADS)
        rotate(&at[2 * i], &at[2 * i + 1], cs[2 * i], cs[2 * i + 1]);
    __syncthreads();
}

/* E2M1 codes of x / scale, two per byte; the even lane writes. */
static __device__ void put_e2m1(uint8_t *codes, int64_t i, float x, float scale)
{
    uint32_t code = to_e2m1(fminf(fmaxf(x / scale, -6.0f), 6.0f));
    uint32_t next = __shfl_down_sync(ALL, code, 1);

    if (i % 2 == 0)
        codes[i / 2] = (uint8_t)(code | next << 4);
}

/* Q4i (spec 2.3): one UE8M0 scale per 32. n a multiple of 32: whole warps. */
static __device__ void store_key(uint8_t *row, const float *x, int64_t n)
{
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        float amax = fmaxf(lanes_max(fabsf(x[i]), 32), 6.0f * 0x1p-126f);
        float s = pow2_ceil(amax * (1.0f / 6.0f));

        put_e2m1(row, i, x[i], s);
        if (i % 32 == 0)
            row[n / 2 + i / 32] = (uint8_t)(__float_as_uint(s) >> 23);
    }
}

/* Q4c: one E4M3 scale per 16. */
static __device__ void store_latent(uint8_t *row, const float *x, int64_t n)
{
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        float amax = fmaxf(lanes_max(fabsf(x[i]), 16), 6.0f * 0x1p-9f);
        uint8_t code = to_e4m3(amax / 6.0f);

        put_e2m1(row, i, x[i], e4m3(code));
        if (i % 16 == 0)
            row[n / 2 + i / 16] = code;
    }
}

/* One block per group. */
static __global__ void store_kernel(compress_store_args a, step s, step_groups g,
                                    const __grid_constant__ kv_layout l, weight k_norm)
{
    after_previous();

    extern __shared__ float x[];
    int64_t dim = l.head_dim, idim = l.index_dim, at = blockIdx.x;
    int32_t last = g.last_row[at];
    const kv_view *v;
    const float *cs = a.cs + at * a.rope;

    if (last == STEP_NO_GROUP)
        return;
    v = &s.view[s.seq[last]];

    for (int64_t i = threadIdx.x; i < idim; i += THREADS)
        x[i] = from_bf(((const bf16 *)a.key_raw)[at * idim + i]);
    __syncthreads();
    rms_row(x, k_norm, idim, a.eps);
    rope_row(x, idim, a.rope, cs);
    store_key(kv_key(&l, v, a.owner, g.entry[at]), x, idim);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < dim; i += THREADS)
        x[i] = from_bf(((const bf16 *)a.lat)[at * dim + i]);
    __syncthreads();
    rope_row(x, dim, a.rope, cs);
    store_latent(kv_latent(&l, v, a.owner, g.entry[at]), x, dim);
}

void cuda_compress_store(cuda_impl *c, const compress_store_args *a)
{
    const kv_layout *l = a->layout;
    int most = l->head_dim > l->index_dim ? l->head_dim : l->index_dim;

    if (a->g->n == 0)
        return;
    launch(c, "compress_store", store_kernel, a->g->n, THREADS, (size_t)most * sizeof(float), *a,
           *a->s, *a->g, *l, *a->k_norm);
}
