/* Sparse attention of the real geometry (512 dims, up to 640 keys of packed rows) on the matrix
 * units: a block per row and 64 heads.
 *
 * First all scores, which stay in registers; so the maximum is final before probabilities are
 * rounded. Then, over the same keys again, the values. Rows of state come in tiles of 64 keys, a
 * tile ahead, as they are stored, and are decoded to bf16 (exact). Warp w has heads 16 (w % 4) ..;
 * of the scores 32 keys of a tile, of the output 256 dims. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

#define DIM       512
#define KEYS      64
#define MAX_TILES 10
#define HEADS     64
#define STRIDE    (DIM + 8) /* elements of a row of q and keys: no bank conflicts */
#define RAW_BYTES 528       /* longest row of state */
#define P_STRIDE  (KEYS * MAX_TILES + 8)
#define N_THREADS 512
#define QUARTERS  4 /* of a tile's keys, and of the dims */

typedef struct attention_smem {
    uint8_t raw[KEYS][RAW_BYTES];
    bf16 key[KEYS][STRIDE];
    union {
        bf16 q[HEADS][STRIDE];
        bf16 p[HEADS][P_STRIDE]; /* when the scores are done */
    };
    float top[QUARTERS][HEADS], sum[QUARTERS][HEADS];
    const uint8_t *row[KEYS * MAX_TILES];
} attention_smem;

/* ---- rows of state ---- */

/* Addresses of all rows, so that a tile's copies need not wait for them. */
static __device__ void find_rows(const attention_args &a, const kv_layout &l, const key_list &k,
                                 attention_smem *smem)
{
    for (int t = threadIdx.x; t < k.n; t += N_THREADS)
        smem->row[t] = key_row(a, l, k, t);
    __syncthreads();
}

/* Tile t of the keys, as stored, into smem->raw; eight threads a row. */
static __device__ void fetch(const kv_layout &l, const key_list &k, int t, attention_smem *smem)
{
    int key = t * KEYS + threadIdx.x / 8;
    uint32_t to = (uint32_t)__cvta_generic_to_shared(smem->raw[threadIdx.x / 8]);

    if (key < k.n) {
        const uint8_t *row = smem->row[key];
        int n = (int)(key < k.n_window ? l.ring_row_bytes : l.latent_bytes) / 16;

        for (int i = threadIdx.x % 8; i < n; i += 8)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 16 * i),
                         "l"(row + 16 * i)
                         : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Eight dims of a row. */
static __device__ __forceinline__ uint4 decode_dims(const uint8_t *raw, int d, bool window)
{
    uint32_t v[4];

    if (window) {
        uint2 w = *(const uint2 *)(raw + d);
        uint32_t s = both((bf16)(f32_bits(ue8m0(raw[DIM + d / 32])) >> 16));

        decode4_e4m3(v, w.x, s);
        decode4_e4m3(v + 2, w.y, s);
    } else {
        uint32_t scale =
            mul_bf16x2(both((bf16)(raw[DIM / 2 + d / 16] << 4)), both(BF16_2_POW(120)));

        decode8_e2m1(v, *(const uint32_t *)(raw + d / 2), scale);
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* smem->raw -> smem->key; absent keys are zero. 16 threads a row, eight dims of each 128. */
static __device__ void decode(const key_list &k, int t, attention_smem *smem)
{
#pragma unroll 1
    for (int m = 0; m < 2; m++) {
        int r = threadIdx.x / 16 + 32 * m, key = t * KEYS + r;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            int d = 128 * i + threadIdx.x % 16 * 8;
            uint4 v = make_uint4(0, 0, 0, 0);

            if (key < k.n)
                v = decode_dims(smem->raw[r], d, key < k.n_window);
            *(uint4 *)&smem->key[r][d] = v;
        }
    }
}

/* Wait for tile t, decode it, and have the next one fetched. Not inlined: the loop over scores is
 * unrolled, and ten copies would not fit the instruction cache. */
static __device__ __noinline__ void next_tile(const kv_layout &l, const key_list &k, int t,
                                              int n_tiles, attention_smem *smem)
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads(); /* raw is there; nobody reads the last tile any more */
    decode(k, t, smem);
    __syncthreads();
    if (t + 1 < n_tiles)
        fetch(l, k, t + 1, smem);
}

/* ---- the parts ---- */

/* Queries with rope, rounded. */
static __device__ void load_queries(const attention_args &a, int64_t row, int head0,
                                    attention_smem *smem)
{
    const float *cs = a.cs + row * a.rope;
    int nope = DIM - a.rope;

#pragma unroll 4
    for (int i = threadIdx.x; i < HEADS * DIM / 8; i += N_THREADS) {
        int head = i / (DIM / 8), d = i % (DIM / 8) * 8;
        uint32_t pair[4] = {0, 0, 0, 0};

        if (head0 + head < a.n_heads)
            *(uint4 *)pair = ((const uint4 *)a.q)[((row * a.n_heads + head0 + head) * DIM + d) / 8];
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (d + 2 * j >= nope) {
                float x = from_bf((bf16)pair[j]), y = from_bf((bf16)(pair[j] >> 16));

                rotate(&x, &y, cs[d + 2 * j - nope], cs[d + 2 * j + 1 - nope]);
                pair[j] = (uint32_t)to_bf(x) | (uint32_t)to_bf(y) << 16;
            }
        *(uint4 *)&smem->q[head][d] = *(uint4 *)pair;
    }
}

/* Scores of the warp's 16 heads and 16 keys of the tile. */
static __device__ __forceinline__ void score_tile(float (&s)[2][4], const attention_smem *smem,
                                                  int warp, int lane)
{
    const bf16 *q = &smem->q[warp % 4 * 16 + lane % 16][lane / 16 * 8];
    const bf16 *key = &smem->key[warp / 4 * 16 + lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];

#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[i][e] = 0;
#pragma unroll 4
    for (int k = 0; k < DIM; k += 16) {
        uint32_t x[4], b[4];

        load_matrices(x, q + k);
        load_matrices(b, key + k);
        mma(s[0], x, b[0], b[1]);
        mma(s[1], x, b[2], b[3]);
    }
}

/* Probabilities of all tiles into smem->p, their sums and maxima. top: of rows g and g + 8. */
static __device__ __forceinline__ void probabilities(float (&s)[MAX_TILES][2][4], float scale,
                                                     int n, int n_tiles, attention_smem *smem,
                                                     int warp, int lane, float *top, float *total)
{
    int g = lane / 4, t = lane % 4, head = warp % 4 * 16 + g, quarter = warp / 4;

    top[0] = top[1] = -1e30f;
    total[0] = total[1] = 0;
#pragma unroll
    for (int tile = 0; tile < MAX_TILES; tile++)
        if (tile < n_tiles)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int key = tile * KEYS + quarter * 16 + i / 4 * 8 + 2 * t + i % 2;
                float *x = &s[tile][i / 4][i % 4];

                *x = key < n ? *x * scale : -INFINITY;
                top[i / 2 % 2] = fmaxf(top[i / 2 % 2], *x);
            }
    for (int i = 0; i < 2; i++)
        top[i] = lanes_max(top[i], 4);
    __syncthreads(); /* q is not read any more */
    if (t == 0) {
        smem->top[quarter][head] = top[0];
        smem->top[quarter][head + 8] = top[1];
    }
    __syncthreads();
    for (int i = 0; i < 2; i++)
        top[i] = fmaxf(fmaxf(smem->top[0][head + 8 * i], smem->top[1][head + 8 * i]),
                       fmaxf(smem->top[2][head + 8 * i], smem->top[3][head + 8 * i]));
#pragma unroll
    for (int tile = 0; tile < MAX_TILES; tile++)
        if (tile < n_tiles)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float p0 = expf(s[tile][i / 2][i % 2 * 2] - top[i % 2]);
                float p1 = expf(s[tile][i / 2][i % 2 * 2 + 1] - top[i % 2]);

                total[i % 2] += p0 + p1;
                *(uint32_t *)&smem
                     ->p[head + i % 2 * 8][tile * KEYS + quarter * 16 + i / 2 * 8 + 2 * t] =
                    (uint32_t)to_bf(p0) | (uint32_t)to_bf(p1) << 16;
            }
    for (int i = 0; i < 2; i++) {
        total[i] += __shfl_xor_sync(ALL, total[i], 1);
        total[i] += __shfl_xor_sync(ALL, total[i], 2);
    }
    if (t == 0) {
        smem->sum[quarter][head] = total[0];
        smem->sum[quarter][head + 8] = total[1];
    }
    __syncthreads();
    for (int i = 0; i < 2; i++)
        total[i] = (smem->sum[0][head + 8 * i] + smem->sum[1][head + 8 * i]) +
                   (smem->sum[2][head + 8 * i] + smem->sum[3][head + 8 * i]);
}

/* Output of the warp's 16 heads and 128 dims += probabilities times values of the tile. */
static __device__ __forceinline__ void value_tile(float (&o)[16][4], const attention_smem *smem,
                                                  int tile, int warp, int lane)
{
    const bf16 *p = &smem->p[warp % 4 * 16 + lane % 16][tile * KEYS + lane / 16 * 8];
    const bf16 *v = &smem->key[lane % 16][warp / 4 * 128 + lane / 16 * 8];

#pragma unroll
    for (int k = 0; k < KEYS; k += 16) {
        uint32_t x[4];

        load_matrices(x, p + k);
#pragma unroll
        for (int d = 0; d < 128; d += 16) {
            uint32_t b[4];

            load_transposed(b, v + k * STRIDE + d);
            mma(o[d / 8], x, b[0], b[1]);
            mma(o[d / 8 + 1], x, b[2], b[3]);
        }
    }
}

static __device__ __forceinline__ void store_output(const attention_args &a, int64_t row, int head0,
                                                    const float *sink, float (&o)[16][4],
                                                    int n_keys, const float *top,
                                                    const float *total, int warp, int lane)
{
    int g = lane / 4, t = lane % 4, nope = DIM - a.rope;
    const float *cs = a.cs + row * a.rope;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int head = head0 + warp % 4 * 16 + g + 8 * h;
        float den;

        den = head < a.n_heads ? total[h] + expf(sink[head] - top[h]) : 1.0f;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int d = warp / 4 * 128 + 8 * i + 2 * t;
            float x = n_keys ? bf16_round(o[i][2 * h] / den) : 0;
            float y = n_keys ? bf16_round(o[i][2 * h + 1] / den) : 0;

            if (d >= nope)
                rotate(&x, &y, cs[d - nope], -cs[d - nope + 1]);
            if (head < a.n_heads)
                ((uint32_t *)a.o)[((row * a.n_heads + head) * DIM + d) / 2] =
                    (uint32_t)to_bf(x) | (uint32_t)to_bf(y) << 16;
        }
    }
}

static __global__ __launch_bounds__(N_THREADS, 1) void attention_mma_kernel(
    attention_args a, step st, const __grid_constant__ kv_layout l, const float *sink)
{
    extern __shared__ __align__(16) uint8_t bytes[];
    attention_smem *smem = (attention_smem *)bytes;
    int64_t row = blockIdx.x;
    int head0 = (int)blockIdx.y * HEADS, warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_tiles;
    key_list k = keys_of(a, st, l, row);
    float s[MAX_TILES][2][4], o[16][4], top[2], total[2];

    n_tiles = (k.n + KEYS - 1) / KEYS;
    find_rows(a, l, k, smem);
    if (n_tiles > 0)
        fetch(l, k, 0, smem);
    load_queries(a, row, head0, smem);
#pragma unroll
    for (int t = 0; t < MAX_TILES; t++)
        if (t < n_tiles) {
            next_tile(l, k, t, n_tiles, smem);
            score_tile(s[t], smem, warp, lane);
        }
    if (n_tiles > 0)
        fetch(l, k, 0, smem);
    probabilities(s, a.scale, k.n, n_tiles, smem, warp, lane, top, total);
#pragma unroll
    for (int i = 0; i < 16; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[i][e] = 0;
    for (int t = 0; t < n_tiles; t++) {
        next_tile(l, k, t, n_tiles, smem);
        value_tile(o, smem, t, warp, lane);
    }
    store_output(a, row, head0, sink, o, k.n, top, total, warp, lane);
}

bool cuda_attention_mma(cuda_impl *c, const attention_args *a)
{
    const kv_layout *l = a->layout;
    dim3 grid((unsigned)a->s->n_rows, (unsigned)((a->n_heads + HEADS - 1) / HEADS));
    int most = l->window + (a->draft ? l->max_draft : a->owner >= 0 ? a->topk : 0);

    if (l->head_dim != DIM || l->ring_row_bytes != RAW_BYTES || l->latent_bytes % 16 ||
        l->block_bytes % 16 || most > KEYS * MAX_TILES || a->rope % 2)
        return false;
    for (int i = 0; i < l->n_owners; i++)
        if (l->owner[i].latent_off % 16)
            return false;
    cuda_note(c,
              cudaFuncSetAttribute((const void *)attention_mma_kernel,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)sizeof(attention_smem)),
              "attention");
    attention_mma_kernel<<<grid, N_THREADS, sizeof(attention_smem), c->stream>>>(
        *a, *a->s, *l, (const float *)a->sink->data);
    cuda_launched(c, "attention");
    return true;
}
