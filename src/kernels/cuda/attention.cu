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

#define CHUNK 128 /* columns of a warp at once, four of a lane */

static __device__ __forceinline__ float4 four_values(uint2 v)
{
    return make_float4(from_bf((bf16)v.x), from_bf((bf16)(v.x >> 16)), from_bf((bf16)v.y),
                       from_bf((bf16)(v.y >> 16)));
}

static __device__ __forceinline__ float4 four_of(const weight &w, int i)
{
    return w.kind == WEIGHT_VEC_BF16 ? four_values(*(const uint2 *)((const bf16 *)w.data + i))
                                     : *(const float4 *)((const float *)w.data + i);
}

/* Codes of four values of a group of 32 in eight lanes, and the power of its scale. */
static __device__ __forceinline__ uint32_t four_codes(float4 v, uint8_t *power)
{
    float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    float s = q8_scale(lanes_max(most, 8)), inverse = 1.0f / s;

    *power = (uint8_t)(__float_as_uint(s) >> 23);
    return (uint32_t)q8_byte_near(v.x, inverse) | (uint32_t)q8_byte_near(v.y, inverse) << 8 |
           (uint32_t)q8_byte_near(v.z, inverse) << 16 | (uint32_t)q8_byte_near(v.w, inverse) << 24;
}

/* Four columns from i on of a ring row. */
static __device__ __forceinline__ void put_key(uint8_t *row, int dim, int i, uint32_t codes,
                                               uint8_t power, bool words)
{
    if (words)
        *(uint32_t *)(row + i) = codes;
    else
        for (int j = 0; j < 4; j++)
            row[i + j] = (uint8_t)(codes >> 8 * j);
    if (i % 32 == 0)
        row[dim + i / 32] = power;
}

/* PARTS warps make a latent query or a window key, of which each has at most EACH chunks; squares
 * are summed chunk by chunk, so that bits do not depend on PARTS. Without queries (q_rank 0) all
 * are keys. No rows in `s`: the rings are left alone. */
template <int PARTS, int EACH>
static __global__ void __launch_bounds__(THREADS)
    qkv_kernel(qkv_args a, weight q_norm, weight kv_norm, step s,
               const __grid_constant__ kv_layout l)
{
    __shared__ float part[PARTS * EACH];
    int warp = threadIdx.x / 32, kinds = a.q_rank > 0 ? 2 : 1, nope = a.dim - a.rope;
    int item = (int)blockIdx.x * (WARPS / PARTS) + warp / PARTS, row = item / kinds;
    bool key = item % kinds == kinds - 1, words = l.ring_row_bytes % 4 == 0;
    int n = key ? a.dim : a.q_rank, first = warp % PARTS * CHUNK + (int)threadIdx.x % 32 * 4;
    const bf16 *in = (const bf16 *)a.qkv + (int64_t)row * (a.q_rank + a.dim) + (key ? a.q_rank : 0);
    const float *cs = a.cs + (int64_t)row * a.rope;
    uint8_t *out = a.kv_rows + row * l.ring_row_bytes, *place = NULL;
    float sum[EACH], all = 0, r;
    float4 w[EACH];
    uint2 x[EACH];

    if (PARTS > 1) /* few rows: while the kernel before ends */
#pragma unroll
        for (int k = 0; k < EACH; k++)
            w[k] = first + k * PARTS * CHUNK < n
                       ? four_of(key ? kv_norm : q_norm, first + k * PARTS * CHUNK)
                       : make_float4(0, 0, 0, 0);
    after_previous();
    if (row >= a.n) /* whole warps, and of one part alone */
        return;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = first + k * PARTS * CHUNK;

        x[k] = i < n ? *(const uint2 *)(in + i) : make_uint2(0, 0);
    }
    if (key && row < s.n_rows)
        place = ring_place(s, l, a.ring, row);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        float4 v = four_values(x[k]);

        sum[k] = warp_sum(fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, v.x * v.x))));
        if (PARTS == 1)
            all += sum[k];
        else if (threadIdx.x % 32 == 0)
            part[warp % PARTS + k * PARTS] = sum[k];
    }
    if (PARTS > 1) {
        __syncthreads();
        for (int k = 0; k < PARTS * EACH; k++)
            all += part[k];
    }
    r = 1.0f / sqrtf(all / (float)n + a.eps);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = first + k * PARTS * CHUNK;
        float4 v = four_values(x[k]), g;
        uint32_t codes;
        uint8_t power;
        float scale;

        if (i - (int)threadIdx.x % 32 * 4 >= n) /* whole warps */
            break;
        g = PARTS > 1 ? w[k] : i < n ? four_of(key ? kv_norm : q_norm, i) : v;
        v = make_float4(bf16_round(g.x * (v.x * r)), bf16_round(g.y * (v.y * r)),
                        bf16_round(g.z * (v.z * r)), bf16_round(g.w * (v.w * r)));
        if (key && i >= nope && i < n) {
            const float4 turn = *(const float4 *)(cs + i - nope);

            rotate(&v.x, &v.y, turn.x, turn.y);
            rotate(&v.z, &v.w, turn.z, turn.w);
        }
        codes = four_codes(v, &power);
        if (i >= n)
            continue;
        if (key) {
            put_key(out, n, i, codes, power, words);
            if (place)
                put_key(place, n, i, codes, power, words);
            continue;
        }
        scale = ue8m0(power);
        *(uint2 *)((bf16 *)a.qr_q8 + (int64_t)row * n + i) =
            make_uint2(bf16_pair(e4m3(codes & 0xFF) * scale, e4m3(codes >> 8 & 0xFF) * scale),
                       bf16_pair(e4m3(codes >> 16 & 0xFF) * scale, e4m3(codes >> 24) * scale));
    }
}

/* Rows from which on a warp makes a whole query or key. */
#define MANY_ROWS 512

void cuda_qkv(cuda_impl *c, const qkv_args *a)
{
    int widest = a->dim > a->q_rank ? a->dim : a->q_rank, kinds = a->q_rank > 0 ? 2 : 1;
    bool many = a->n >= MANY_ROWS && widest <= 16 * CHUNK;
    unsigned items = (unsigned)(a->n * kinds);
    weight none = {};
    step left = {};

    if (widest > WARPS * 8 * CHUNK || a->rope % 4 || a->dim % 4) {
        cuda_note(c, cudaErrorNotSupported, "qkv: more than 8192 columns, or columns not by four");
        return;
    }
    launch(c, "qkv",
           many                          ? qkv_kernel<1, 16>
           : widest <= WARPS * 2 * CHUNK ? qkv_kernel<WARPS, 2>
                                         : qkv_kernel<WARPS, 8>,
           many ? (items + WARPS - 1) / WARPS : items, THREADS, 0, *a,
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
    if (dim > MAX_DIM || dim % 32) {
        cuda_note(c, cudaErrorNotSupported, "attention: head_dim");
        return;
    }
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
