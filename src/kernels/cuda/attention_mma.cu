/* Sparse attention of the real geometry (512 dims, up to 640 keys of packed rows) on the matrix
 * units: a block per row and 64 heads.
 *
 * First all scores, which stay in registers; so the maximum is final before probabilities are
 * rounded. Then, over the same keys again, the values. Rows of state come in tiles of 64 keys, a
 * tile ahead, as they are stored, and are decoded to bf16 (exact). Warp w has heads 16 (w % 4) ..;
 * of the scores 32 keys of a tile, of the output 256 dims. */
#include "kernels/cuda/attention.cuh"

#define DIM       512
#define KEYS      64
#define MAX_TILES 10
#define HEADS     64
#define STRIDE    (DIM + 8) /* elements of a row of q and keys: no bank conflicts */
#define RAW_BYTES 528       /* longest row of state */
#define P_STRIDE  (KEYS * MAX_TILES + 8)

typedef struct attention_smem {
    uint8_t raw[KEYS][RAW_BYTES];
    bf16 key[KEYS][STRIDE];
    union {
        bf16 q[HEADS][STRIDE];
        bf16 p[HEADS][P_STRIDE]; /* when the scores are done */
    };
    float top[2][HEADS], sum[2][HEADS];
} attention_smem;

static __device__ __forceinline__ void mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices, lane l giving row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

static __device__ __forceinline__ void load_transposed(uint32_t *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

static __device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t r;

    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

static __device__ __forceinline__ uint32_t both(bf16 x)
{
    return (uint32_t)x << 16 | x;
}

#define BF16_2_POW_120 ((bf16)((120 + 127) << 7))
#define BF16_2_POW_126 ((bf16)((126 + 127) << 7))

/* ---- rows of state ---- */

/* Tile t of the keys, as stored, into smem->raw; four threads a row. */
static __device__ void fetch(const attention_args &a, const kv_layout &l, const key_list &k, int t,
                             attention_smem *smem)
{
    int key = t * KEYS + threadIdx.x / 4, n;
    uint32_t to = (uint32_t)__cvta_generic_to_shared(smem->raw[threadIdx.x / 4]);
    const uint8_t *row;

    if (key < k.n) {
        row = key_row(a, l, k, key);
        n = (int)(key < k.n_window ? l.ring_row_bytes : l.latent_bytes) / 16;
        for (int i = threadIdx.x % 4; i < n; i += 4)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 16 * i),
                         "l"(row + 16 * i)
                         : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* 32 codes of E4M3 with their scale. */
static __device__ __forceinline__ void decode_ring(uint32_t *out, const uint8_t *code,
                                                   uint8_t scale)
{
    uint32_t s = both((bf16)(f32_bits(ue8m0(scale)) >> 16)), up = both(BF16_2_POW_120);

#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t w = ((const uint32_t *)code)[i];

#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t v = __byte_perm(w, 0, h ? 0x3424 : 0x1404); /* a byte atop each half */

            v = (v & 0x80008000u) | (v & 0x7F007F00u) >> 4;
            out[2 * i + h] = mul_bf16x2(mul_bf16x2(v, up), s);
        }
    }
}

/* 32 codes of E2M1 with their two scales. */
static __device__ __forceinline__ void decode_latent(uint32_t *out, const uint8_t *code,
                                                     const uint8_t *scale)
{
    uint32_t up = both(BF16_2_POW_126);

#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w = ((const uint32_t *)code)[i], s = both(to_bf(e4m3(scale[i / 2])));

#pragma unroll
        for (int p = 0; p < 4; p++) {
            uint32_t x = w >> (8 * p);
            uint32_t v = (x & 7u) << 6 | (x & 8u) << 12 | (x & 0x70u) << 18 | (x & 0x80u) << 24;

            out[4 * i + p] = mul_bf16x2(mul_bf16x2(v, up), s);
        }
    }
}

/* smem->raw -> smem->key; absent keys are zero. A thread has 128 dims of a row. */
static __device__ void decode(const key_list &k, int t, attention_smem *smem)
{
    int r = threadIdx.x / 4, d0 = threadIdx.x % 4 * 128, key = t * KEYS + r;
    const uint8_t *raw = smem->raw[r];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int d = d0 + 32 * i;
        uint32_t v[16];

        if (key >= k.n) {
#pragma unroll
            for (int j = 0; j < 16; j++)
                v[j] = 0;
        } else if (key < k.n_window) {
            decode_ring(v, raw + d, raw[DIM + d / 32]);
        } else {
            decode_latent(v, raw + d / 2, raw + DIM / 2 + d / 16);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(uint4 *)&smem->key[r][d + 8 * j] =
                make_uint4(v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]);
    }
}

/* Wait for tile t, decode it, and have the next one fetched. */
static __device__ void next_tile(const attention_args &a, const kv_layout &l, const key_list &k,
                                 int t, int n_tiles, attention_smem *smem)
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads(); /* raw is there; nobody reads the last tile any more */
    decode(k, t, smem);
    __syncthreads();
    if (t + 1 < n_tiles)
        fetch(a, l, k, t + 1, smem);
}

/* ---- the parts ---- */

/* Queries with rope, rounded. */
static __device__ void load_queries(const attention_args &a, int64_t row, int head0,
                                    attention_smem *smem)
{
    const float *cs = a.cs + row * a.rope;
    int nope = DIM - a.rope;

    for (int i = threadIdx.x; i < HEADS * DIM / 2; i += THREADS) {
        int head = i / (DIM / 2), d = i % (DIM / 2) * 2;
        uint32_t pair = 0;

        if (head0 + head < a.n_heads)
            pair = ((const uint32_t *)a.q)[((row * a.n_heads + head0 + head) * DIM + d) / 2];
        if (d >= nope) {
            float x = from_bf((bf16)pair), y = from_bf((bf16)(pair >> 16));

            rotate(&x, &y, cs[d - nope], cs[d - nope + 1]);
            pair = (uint32_t)to_bf(x) | (uint32_t)to_bf(y) << 16;
        }
        *(uint32_t *)&smem->q[head][d] = pair;
    }
}

/* Scores of the warp's 16 heads and 32 keys of the tile. */
static __device__ __forceinline__ void score_tile(float (&s)[4][4], const attention_smem *smem,
                                                  int warp, int lane)
{
    const bf16 *q = &smem->q[warp % 4 * 16 + lane % 16][lane / 16 * 8];
    const bf16 *key = &smem->key[warp / 4 * 32 + lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[i][e] = 0;
#pragma unroll 4
    for (int k = 0; k < DIM; k += 16) {
        uint32_t x[4], b[8];

        load_matrices(x, q + k);
        load_matrices(b, key + k);
        load_matrices(b + 4, key + 16 * STRIDE + k);
#pragma unroll
        for (int i = 0; i < 4; i++)
            mma(s[i], x, b[2 * i], b[2 * i + 1]);
    }
}

/* Probabilities of all tiles into smem->p, their sums and maxima. top: of rows g and g + 8. */
static __device__ void probabilities(float (&s)[MAX_TILES][4][4], float scale, int n, int n_tiles,
                                     attention_smem *smem, int warp, int lane, float *top,
                                     float *total)
{
    int g = lane / 4, t = lane % 4, head = warp % 4 * 16 + g, half = warp / 4;

    top[0] = top[1] = -1e30f;
    total[0] = total[1] = 0;
#pragma unroll
    for (int tile = 0; tile < MAX_TILES; tile++)
        if (tile < n_tiles)
#pragma unroll
            for (int i = 0; i < 16; i++) {
                int key = tile * KEYS + half * 32 + i / 4 * 8 + 2 * t + i % 2;
                float *x = &s[tile][i / 4][i % 4];

                *x = key < n ? *x * scale : -INFINITY;
                top[i / 2 % 2] = fmaxf(top[i / 2 % 2], *x);
            }
    for (int i = 0; i < 2; i++)
        top[i] = lanes_max(top[i], 4);
    __syncthreads(); /* q is not read any more */
    if (t == 0) {
        smem->top[half][head] = top[0];
        smem->top[half][head + 8] = top[1];
    }
    __syncthreads();
    for (int i = 0; i < 2; i++)
        top[i] = fmaxf(smem->top[0][head + 8 * i], smem->top[1][head + 8 * i]);
#pragma unroll
    for (int tile = 0; tile < MAX_TILES; tile++)
        if (tile < n_tiles)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float p0 = expf(s[tile][i / 2][i % 2 * 2] - top[i % 2]);
                float p1 = expf(s[tile][i / 2][i % 2 * 2 + 1] - top[i % 2]);

                total[i % 2] += p0 + p1;
                *(uint32_t *)&smem
                     ->p[head + i % 2 * 8][tile * KEYS + half * 32 + i / 2 * 8 + 2 * t] =
                    (uint32_t)to_bf(p0) | (uint32_t)to_bf(p1) << 16;
            }
    for (int i = 0; i < 2; i++) {
        total[i] += __shfl_xor_sync(ALL, total[i], 1);
        total[i] += __shfl_xor_sync(ALL, total[i], 2);
    }
    if (t == 0) {
        smem->sum[half][head] = total[0];
        smem->sum[half][head + 8] = total[1];
    }
    __syncthreads();
    for (int i = 0; i < 2; i++)
        total[i] = smem->sum[0][head + 8 * i] + smem->sum[1][head + 8 * i];
}

/* Output of the warp's 16 heads and 256 dims += probabilities times values of the tile. */
static __device__ __forceinline__ void value_tile(float (&o)[32][4], const attention_smem *smem,
                                                  int tile, int warp, int lane)
{
    const bf16 *p = &smem->p[warp % 4 * 16 + lane % 16][tile * KEYS + lane / 16 * 8];
    const bf16 *v = &smem->key[lane % 16][warp / 4 * 256 + lane / 16 * 8];

#pragma unroll
    for (int k = 0; k < KEYS; k += 16) {
        uint32_t x[4];

        load_matrices(x, p + k);
#pragma unroll
        for (int d = 0; d < 256; d += 16) {
            uint32_t b[4];

            load_transposed(b, v + k * STRIDE + d);
            mma(o[d / 8], x, b[0], b[1]);
            mma(o[d / 8 + 1], x, b[2], b[3]);
        }
    }
}

static __device__ void store_output(const attention_args &a, int64_t row, int head0,
                                    const float *sink, float (&o)[32][4], int n_keys,
                                    const float *top, const float *total, int warp, int lane)
{
    int g = lane / 4, t = lane % 4, nope = DIM - a.rope;
    const float *cs = a.cs + row * a.rope;

    for (int h = 0; h < 2; h++) {
        int head = head0 + warp % 4 * 16 + g + 8 * h;
        float den;

        if (head >= a.n_heads)
            continue;
        den = total[h] + expf(sink[head] - top[h]);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            int d = warp / 4 * 256 + 8 * i + 2 * t;
            float x = n_keys ? bf16_round(o[i][2 * h] / den) : 0;
            float y = n_keys ? bf16_round(o[i][2 * h + 1] / den) : 0;

            if (d >= nope)
                rotate(&x, &y, cs[d - nope], -cs[d - nope + 1]);
            ((uint32_t *)a.o)[((row * a.n_heads + head) * DIM + d) / 2] =
                (uint32_t)to_bf(x) | (uint32_t)to_bf(y) << 16;
        }
    }
}

static __global__ __launch_bounds__(THREADS, 1) void attention_mma_kernel(
    attention_args a, step st, const __grid_constant__ kv_layout l, const float *sink)
{
    extern __shared__ __align__(16) uint8_t bytes[];
    attention_smem *smem = (attention_smem *)bytes;
    int64_t row = blockIdx.x;
    int head0 = (int)blockIdx.y * HEADS, warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_tiles;
    key_list k = keys_of(a, st, l, row);
    float s[MAX_TILES][4][4], o[32][4], top[2], total[2];

    n_tiles = (k.n + KEYS - 1) / KEYS;
    if (n_tiles > 0)
        fetch(a, l, k, 0, smem);
    load_queries(a, row, head0, smem);
#pragma unroll
    for (int t = 0; t < MAX_TILES; t++)
        if (t < n_tiles) {
            next_tile(a, l, k, t, n_tiles, smem);
            score_tile(s[t], smem, warp, lane);
        }
    if (n_tiles > 0)
        fetch(a, l, k, 0, smem);
    probabilities(s, a.scale, k.n, n_tiles, smem, warp, lane, top, total);
#pragma unroll
    for (int i = 0; i < 32; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[i][e] = 0;
    for (int t = 0; t < n_tiles; t++) {
        next_tile(a, l, k, t, n_tiles, smem);
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
    attention_mma_kernel<<<grid, THREADS, sizeof(attention_smem), c->stream>>>(
        *a, *a->s, *l, (const float *)a->sink->data);
    cuda_launched(c, "attention");
    return true;
}
