/* Queries, window keys, sparse attention, rings (kernels/attention.h). */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launch.cuh"

/* ---- qkv ---- */

/* Where a row of the step lies in its sequence's ring; NULL: behind it come ring_rows others. A
 * step of one sequence may lack `seq`. */
static __device__ uint8_t *ring_place(const step &s, const kv_layout &l, int ring, int32_t row)
{
    int32_t seq = s.n_seqs > 1 ? s.seq[row] : 0;

    return row < s.row0[seq + 1] - l.ring_rows ? NULL : kv_ring(&l, &s.view[seq], ring, s.pos[row]);
}

/* A thread has the values threadIdx.x, + THREADS, ... of a row of n, at most EACH: x = RMS(x, w).
 * Values behind the row are 0. */
template <int EACH>
static __device__ __forceinline__ void norm_row(float (&x)[EACH], const float (&w)[EACH], int n,
                                                float eps)
{
    float sum = 0, r;

#pragma unroll
    for (int k = 0; k < EACH; k++)
        sum = fmaf(x[k], x[k], sum);
    r = 1.0f / sqrtf(block_sum(sum) / (float)n + eps);
#pragma unroll
    for (int k = 0; k < EACH; k++)
        x[k] = bf16_round(w[k] * (x[k] * r));
}

/* Blocks (row, part): the latent query, if there is one, and last the window key. Norms are fetched
 * while the kernel before ends. No rows in `s`: the rings are left alone. */
template <int EACH>
static __global__ void __launch_bounds__(THREADS)
    qkv_kernel(qkv_args a, weight q_norm, weight kv_norm, step s,
               const __grid_constant__ kv_layout l)
{
    bool key = blockIdx.y == gridDim.y - 1;
    int row = blockIdx.x, rank = a.q_rank, n = key ? a.dim : rank, nope = a.dim - a.rope;
    const bf16 *in = (const bf16 *)a.qkv + (int64_t)row * (rank + a.dim) + (key ? rank : 0);
    const float *cs = a.cs + (int64_t)row * a.rope;
    uint8_t *out = a.kv_rows + row * l.ring_row_bytes, *place = NULL;
    float x[EACH], w[EACH];

#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = k * THREADS + (int)threadIdx.x;

        w[k] = i < n ? vec(key ? kv_norm : q_norm, i) : 0;
    }
    after_previous();
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = k * THREADS + (int)threadIdx.x;

        x[k] = i < n ? from_bf(in[i]) : 0;
    }
    if (key && row < s.n_rows)
        place = ring_place(s, l, a.ring, row);
    norm_row(x, w, n, a.eps);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = k * THREADS + (int)threadIdx.x;
        float scale, other, first, second;
        uint8_t code;

        if (i >= n) /* whole warps */
            break;
        if (!key) {
            ((bf16 *)a.qr_q8)[(int64_t)row * rank + i] = q8_value(x[k]);
            continue;
        }
        other = __shfl_xor_sync(ALL, x[k], 1); /* the other one of a pair */
        first = i & 1 ? other : x[k];
        second = i & 1 ? x[k] : other;
        if (i >= nope) {
            rotate(&first, &second, cs[(i - nope) / 2 * 2], cs[(i - nope) / 2 * 2 + 1]);
            x[k] = i & 1 ? second : first;
        }
        code = q8_code(x[k], &scale);
        out[i] = code;
        if (place)
            place[i] = code;
        if (i % 32)
            continue;
        out[n + i / 32] = (uint8_t)(__float_as_uint(scale) >> 23);
        if (place)
            place[n + i / 32] = (uint8_t)(__float_as_uint(scale) >> 23);
    }
}

void cuda_qkv(cuda_impl *c, const qkv_args *a)
{
    int widest = a->dim > a->q_rank ? a->dim : a->q_rank;
    dim3 grid((unsigned)a->n, a->q_rank > 0 ? 2 : 1);
    weight none = {};
    step left = {};

    if (widest > 32 * THREADS)
        cuda_note(c, cudaErrorNotSupported, "qkv: more than 8192 columns");
    launch(c, "qkv", widest > 8 * THREADS ? qkv_kernel<32> : qkv_kernel<8>, grid, THREADS, 0, *a,
           a->q_norm ? *a->q_norm : none, *a->kv_norm, a->commit ? *a->commit : left, *a->layout);
}

/* ---- attention ---- */

#define HEADS    WARPS /* of a block, a warp each */
#define KEYS     32    /* of a tile, a lane each when scores are exchanged */
#define MAX_DIM  512
#define PER_LANE (MAX_DIM / 32)

/* Element d of key t. */
static __device__ float key_at(const attention_args &a, const kv_layout &l, const key_list &k,
                               int t, int d)
{
    const uint8_t *row = key_row(a, l, k, t);

    if (t < k.n_window)
        return e4m3(row[d]) * ue8m0(row[l.head_dim + d / 32]);
    return e2m1(row[d / 2] >> (4 * (d & 1)) & 15u) * e4m3(row[l.head_dim / 2 + d / 16]);
}

/* Tile of keys t0.. as bf16 (exact) [KEYS][dim]; absent keys are zero. */
static __device__ void load_keys(const attention_args &a, const kv_layout &l, const key_list &k,
                                 int t0, bf16 *tile)
{
    __syncthreads();
    for (int i = threadIdx.x; i < KEYS * l.head_dim; i += THREADS) {
        int t = t0 + i / l.head_dim;

        tile[i] = t < k.n ? to_bf(key_at(a, l, k, t, i % l.head_dim)) : (bf16)0;
    }
    __syncthreads();
}

/* One block per row and HEADS heads, a warp per head. Two passes over the keys: all scores and
 * their maximum, then probabilities and values; so the keys are summed in order and the maximum is
 * final before anything is rounded. Lane l holds the elements l, l + 32, ... of q and o. */
static __global__ void attention_kernel(attention_args a, step s,
                                        const __grid_constant__ kv_layout l, const float *sink,
                                        int max_keys)
{
    extern __shared__ uint8_t smem[];
    bf16 *tile = (bf16 *)smem;
    float *scores = (float *)(smem + KEYS * l.head_dim * sizeof(bf16));
    int64_t row = blockIdx.x, head = (int64_t)blockIdx.y * HEADS + threadIdx.x / 32;
    int lane = threadIdx.x % 32, per_lane = l.head_dim / 32, nope = l.head_dim - a.rope;
    bool live = head < a.n_heads;
    int64_t at = (row * a.n_heads + (live ? head : 0)) * l.head_dim;
    const float *cs = a.cs + row * a.rope;
    key_list k = keys_of(a, s, l, row, s.seq[row]);
    float q[PER_LANE], o[PER_LANE], top = -1e30f, total = 0, den;
    float *score = scores + threadIdx.x / 32 * max_keys;

    for (int i = 0; i < PER_LANE; i++) {
        int d = i * 32 + lane;
        float other;

        o[i] = 0;
        q[i] = i < per_lane ? from_bf(((const bf16 *)a.q)[at + d]) : 0;
        other = __shfl_xor_sync(ALL, q[i], 1); /* pairs lie in neighbouring lanes */
        if (i < per_lane && d >= nope) {
            const float *turn = cs + (d - nope) / 2 * 2;
            float first = d & 1 ? other : q[i], second = d & 1 ? q[i] : other;

            rotate(&first, &second, turn[0], turn[1]);
            q[i] = d & 1 ? second : first;
        }
    }
    for (int t0 = 0; t0 < k.n; t0 += KEYS) {
        load_keys(a, l, k, t0, tile);
        for (int t = 0; t < KEYS && t0 + t < k.n; t++) {
            float sum = 0;

#pragma unroll
            for (int i = 0; i < PER_LANE; i++)
                if (i < per_lane)
                    sum = fmaf(q[i], from_bf(tile[t * l.head_dim + i * 32 + lane]), sum);
            sum = warp_sum(sum) * a.scale;
            top = fmaxf(top, sum);
            if (lane == 0)
                score[t0 + t] = sum;
        }
    }
    for (int t0 = 0; t0 < k.n; t0 += KEYS) {
        load_keys(a, l, k, t0, tile);
        for (int t = 0; t < KEYS && t0 + t < k.n; t++) {
            float p = expf(score[t0 + t] - top);

            total += p;
            p = bf16_round(p);
#pragma unroll
            for (int i = 0; i < PER_LANE; i++)
                if (i < per_lane)
                    o[i] = fmaf(p, from_bf(tile[t * l.head_dim + i * 32 + lane]), o[i]);
        }
    }
    if (!live)
        return; /* whole warps */
    den = total + expf(sink[head] - top);
    for (int i = 0; i < per_lane; i++) {
        int d = i * 32 + lane;
        float v = k.n ? bf16_round(o[i] / den) : 0, other = __shfl_xor_sync(ALL, v, 1);

        if (d >= nope && k.n) {
            const float *turn = cs + (d - nope) / 2 * 2;
            float first = d & 1 ? other : v, second = d & 1 ? v : other;

            rotate(&first, &second, turn[0], -turn[1]);
            v = d & 1 ? second : first;
        }
        ((bf16 *)a.o)[at + d] = to_bf(v);
    }
}

void cuda_attention(cuda_impl *c, const attention_args *a)
{
    int dim = a->layout->head_dim;
    size_t smem = KEYS * (size_t)dim * sizeof(bf16) + HEADS * (size_t)c->max_keys * sizeof(float);
    dim3 grid((unsigned)a->s->n_rows, (unsigned)((a->n_heads + HEADS - 1) / HEADS));

    if (cuda_attention_mma(c, a))
        return;
    if (dim > MAX_DIM || dim % 32)
        cuda_note(c, cudaErrorNotSupported, "attention: head_dim");
    cuda_note(c,
              cudaFuncSetAttribute((const void *)attention_kernel,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
              "attention");
    attention_kernel<<<grid, THREADS, smem, c->stream>>>(*a, *a->s, *a->layout,
                                                         (const float *)a->sink->data, c->max_keys);
    cuda_launched(c, "attention");
}

/* ---- ring_commit ---- */

/* One warp per row; rows before the last ring_rows of their sequence have no place. */
static __global__ void ring_commit_kernel(step s, const __grid_constant__ kv_layout l, int ring,
                                          const uint8_t *kv_rows)
{
    after_previous();

    int32_t row = (int32_t)blockIdx.x * WARPS + (int32_t)threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint8_t *from = kv_rows + (size_t)row * l.ring_row_bytes;
    uint8_t *to = row < s.n_rows ? ring_place(s, l, ring, row) : NULL;

    if (!to)
        return;
    if (l.ring_row_bytes % 16 == 0)
        for (size_t i = lane; i < l.ring_row_bytes / 16; i += 32)
            ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    else
        for (size_t i = lane; i < l.ring_row_bytes; i += 32)
            to[i] = from[i];
}

void cuda_ring_commit(cuda_impl *c, const ring_commit_args *a)
{
    launch(c, "ring_commit", ring_commit_kernel, (a->s->n_rows + WARPS - 1) / WARPS, THREADS, 0,
           *a->s, *a->layout, a->ring, a->kv_rows);
}
