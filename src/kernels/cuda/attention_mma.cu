/* Sparse attention of the real geometry (64 heads of 512 dims, up to 640 keys of packed rows) on
 * wgmma. A block owns a processor and takes one row of the step after the other.
 *
 * The first warpgroup gathers rows of state and decodes them to bf16 (exact), once, two tiles of 64
 * keys ahead; a tile is key and value at once. Of the other two, each has every second tile's
 * scores and probabilities, and of all tiles' values half the dims.
 *
 * Probabilities are 2^(x - ref) with x = s log2(e) and ref the smallest integer not below any x so
 * far: all rescaling is by powers of two and exact, so their rounding to bf16 does not depend on
 * which keys came before. The sum that divides is of the rounded ones: where one key has nearly all
 * of the weight, its rounding cancels. */
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/wgmma.cuh"

#define N_THREADS (FILLERS + 256)
#define LOG2E     1.44269504f

/* ---- wgmma ---- */

static __device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* All but the last N groups are done. */
template <int N> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keys as values: 64 dims of each slab are contiguous, and a slab follows the other. A step of 16
 * keys adds 128. */
static __device__ __forceinline__ uint64_t values_descriptor(const void *p)
{
    return matrix_descriptor(p) + ((uint64_t)(KEYS * 128 / 16 - 1) << 16);
}

/* ---- pieces of a row ---- */

/* 2^d, d an integer, at most 0; exact, below 2^-126 zero. */
static __device__ __forceinline__ float power_of_two(float d)
{
    return __int_as_float(max((int)d + 127, 0) << 23);
}

static __device__ __forceinline__ float exp2_of(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Scores of all heads with the keys of a buffer. */
static __device__ __forceinline__ void scores(float (&s)[32], const attention_smem *smem, int b)
{
    uint64_t q = matrix_descriptor(smem->q), key = matrix_descriptor(smem->key[b]);

    wgmma_begin();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        int at = k / 4 * (KEYS * 128 / 16) + k % 4 * 2;

        wgmma<64>::bf16_ss(s, q + at, key + at, k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
}

/* Half the dims of the output += probabilities times values of a buffer, which is free then. */
static __device__ __forceinline__ void values(float (&o)[2][64], attention_smem *smem, int b,
                                              int half, bool keep)
{
    uint64_t p = matrix_descriptor(smem->p[b]);
    uint64_t v = values_descriptor(smem->key[b][half * SLABS / 2]);

    wgmma_begin();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
#pragma unroll
        for (int n = 0; n < 2; n++)
            wgmma<128>::bf16_ss_n(o[n], p + k * 2,
                                  v + k * (16 * 128 / 16) + n * (2 * KEYS * 128 / 16),
                                  k > 0 || keep);
        if (k == KEYS / 32 - 1)
            wgmma_commit();
    }
    wgmma_commit();
    wgmma_wait<1>();
    arrive_warp(&smem->empty[b][0]);
    wgmma_wait<0>();
    arrive_warp(&smem->empty[b][1]);
}

/* Probabilities of tile t into smem->p. Thread (g, t) of a warp has rows g and g + 8 of its 16; of
 * these, keys 8 i + 2 t and 8 i + 2 t + 1. ref: in, of the tile before; out, of this one. */
static __device__ __forceinline__ void probabilities(float (&s)[32], float scale, int left,
                                                     bool first, float (&ref)[2], float (&sum)[2],
                                                     float (&sum_ref)[2], attention_smem *smem,
                                                     int b)
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;

    if (left < KEYS)
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= left)
                s[i] = -INFINITY;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint8_t *p = (uint8_t *)smem->p[b][row + 8 * h] + lane % 4 * 4;
        float top = fmaxf(s[2 * h], s[2 * h + 1]), total = 0;

#pragma unroll
        for (int i = 1; i < 8; i++)
            top = fmaxf(top, fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
        top = fmaxf(ceilf(lanes_max(top, 4) * scale), first ? -1e30f : ref[h]);
        ref[h] = top;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float x = exp2_of(fmaf(s[4 * i + 2 * h], scale, -top));
            float y = exp2_of(fmaf(s[4 * i + 2 * h + 1], scale, -top));

            uint32_t rounded = pack_bf16(x, y);

            total +=
                __int_as_float((int)(rounded << 16)) + __int_as_float((int)(rounded & 0xFFFF0000u));
            *(uint32_t *)(p + (i ^ row % 8) * 16) = rounded;
        }
        sum[h] = fmaf(sum[h], power_of_two(sum_ref[h] - top), total);
        sum_ref[h] = top;
        if (lane % 4 == 0)
            smem->ref[b][row + 8 * h] = top;
    }
}

/* The output to what a tile's probabilities are relative to. */
static __device__ __forceinline__ void follow(float (&o)[2][64], float (&ref)[2], bool first,
                                              const attention_smem *smem, int b)
{
    int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    float now[2] = {smem->ref[b][row], smem->ref[b][row + 8]};
    bool same = now[0] == ref[0] && now[1] == ref[1];

    if (!first && !__all_sync(ALL, same)) {
        float by[2] = {power_of_two(ref[0] - now[0]), power_of_two(ref[1] - now[1])};

#pragma unroll
        for (int i = 0; i < 128; i++)
            o[i / 64][i % 64] *= by[i / 2 % 2];
    }
    ref[0] = now[0];
    ref[1] = now[1];
}

/* Pairs of dims turned back. */
static __device__ __forceinline__ void turn_back(uint32_t (&w)[4], const float2 *turns)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 turn = turns[i];
        float x = from_bf((bf16)w[i]), y = from_bf((bf16)(w[i] >> 16));

        w[i] = pack_bf16(x * turn.x + y * turn.y, y * turn.x - x * turn.y);
    }
}

/* sum: of this warpgroup's tiles, relative to ref. */
static __device__ __forceinline__ void store_row(const attention_args &a, int64_t item,
                                                 const attention_smem *smem, const float2 *turns,
                                                 int n_keys, const float (&o)[2][64],
                                                 const float (&ref)[2], float (&sum)[2],
                                                 float (*shared_sum)[HEADS])
{
    int lane = threadIdx.x % 32, wg = (threadIdx.x - FILLERS) / 128;
    int row = threadIdx.x / 32 % 4 * 16 + lane / 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(ALL, sum[h], 1);
        sum[h] += __shfl_xor_sync(ALL, sum[h], 2);
        if (lane % 4 == 0)
            shared_sum[wg][row + 8 * h] = sum[h];
    }
    asm volatile("bar.sync 2, 256;" ::: "memory");
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int head = row + 8 * h;
        float total = shared_sum[0][head] + shared_sum[1][head], by;
        uint4 *out;

        if (head >= a.n_heads)
            continue;
        by = n_keys ? KEY_SCALE / (total + exp2_of(smem->sink[head] - ref[h])) : 0;
        out = (uint4 *)a.o + ((item * a.n_heads + head) * DIM + wg * (DIM / 2)) / 8 + lane % 4;
#pragma unroll
        for (int m = 0; m < DIM / 2 / 32; m++) {
            const float *x = &o[m / 4][m % 4 * 16 + 2 * h]; /* dims 0, 4, 1, 5, ... */
            uint32_t w[4] = {pack_bf16(x[0] * by, x[4] * by), pack_bf16(x[8] * by, x[12] * by),
                             pack_bf16(x[1] * by, x[5] * by), pack_bf16(x[9] * by, x[13] * by)};

            if (m >= (DIM / 2 - ROPE) / 32 && wg == 1)
                turn_back(w, turns + (m - (DIM / 2 - ROPE) / 32) * 16 + lane % 4 * 4);
            out[m * 4] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

/* ---- the other two warpgroups ---- */

static __device__ void attend(const attention_args &a, int64_t n_items, attention_smem *smem)
{
    int wg = (threadIdx.x - FILLERS) / 128, q_phase = 0, count = 0,
        phase = 0; /* bit b of buffer b */
    float scale = a.scale * KEY_SCALE * LOG2E;

    for (int64_t item = blockIdx.x; item < n_items; item += gridDim.x, count++) {
        float o[2][64], s[32], ref[2] = {0, 0}, sum[2] = {0, 0}, sum_ref[2] = {0, 0};
        int n, n_tiles;

        barrier_wait(&smem->q_full, q_phase);
        q_phase ^= 1;
        n = smem->n_keys;
        n_tiles = (n + KEYS - 1) / KEYS;
        if (n_tiles <= wg)
            arrive_warp(&smem->q_empty);
        if (n_tiles == 0)
#pragma unroll
            for (int i = 0; i < 128; i++)
                o[i / 64][i % 64] = 0;
        for (int pair = 0; pair < n_tiles; pair += 2) {
            int mine = pair + wg;

            if (mine < n_tiles) {
                float new_ref[2] = {ref[0], ref[1]};
                int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;

                barrier_wait(&smem->full[wg], phase >> wg & 1);
                scores(s, smem, wg);
                if (mine + 2 >= n_tiles)
                    arrive_warp(&smem->q_empty);
                if (wg == 1) {
                    barrier_wait(&smem->p_full[0], phase & 1);
                    new_ref[0] = smem->ref[0][row];
                    new_ref[1] = smem->ref[0][row + 8];
                }
                probabilities(s, scale, n - mine * KEYS, mine == 0, new_ref, sum, sum_ref, smem,
                              wg);
                announce(&smem->p_full[wg]);
            }
#pragma unroll 1
            for (int b = 0; b < 2; b++)
                if (pair + b < n_tiles) {
                    barrier_wait(&smem->full[b], phase >> b & 1);
                    barrier_wait(&smem->p_full[b], phase >> b & 1);
                    phase ^= 1 << b;
                    follow(o, ref, pair + b == 0, smem, b);
                    values(o, smem, b, wg, pair + b > 0);
                }
        }
        sum[0] *= power_of_two(sum_ref[0] - ref[0]);
        sum[1] *= power_of_two(sum_ref[1] - ref[1]);
        store_row(a, item, smem, smem->turn[count % ROWS_AHEAD], n, o, ref, sum,
                  smem->sum[count % 2]);
    }
}

static __global__ __launch_bounds__(N_THREADS, 1) void attention_mma_kernel(
    attention_args a, step st, const __grid_constant__ kv_layout l, const float *sink)
{
    extern __shared__ __align__(1024) uint8_t bytes[];
    attention_smem *smem = (attention_smem *)bytes;

    if (threadIdx.x == 0) {
        for (int b = 0; b < 2; b++) {
            barrier_init(&smem->full[b], FILLERS / 32);
            barrier_init(&smem->empty[b][0], 8);
            barrier_init(&smem->empty[b][1], 8);
            barrier_init(&smem->p_full[b], 4);
        }
        barrier_init(&smem->q_full, FILLERS / 32);
        barrier_init(&smem->q_empty, 8);
    }
    if (threadIdx.x < HEADS && threadIdx.x < a.n_heads)
        smem->sink[threadIdx.x] = sink[threadIdx.x] * LOG2E;
    barriers_made();
    __syncthreads();
    if (threadIdx.x < FILLERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
        fill(a, st, l, smem);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 192;");
        attend(a, st.n_rows, smem);
    }
}

bool cuda_attention_mma(cuda_impl *c, const attention_args *a)
{
    const kv_layout *l = a->layout;
    int most = l->window + (a->draft ? l->max_draft : a->owner >= 0 ? a->topk : 0);
    int n_blocks = a->s->n_rows < c->n_processors ? a->s->n_rows : c->n_processors;

    if (l->head_dim != DIM || l->ring_row_bytes != RING_ROW || l->latent_bytes != LATENT ||
        l->block_bytes % 16 || most > MAX_KEYS || a->rope != ROPE || a->n_heads > HEADS)
        return false;
    for (int i = 0; i < l->n_owners; i++)
        if (l->owner[i].latent_off % 16)
            return false;
    cuda_note(c,
              cudaFuncSetAttribute((const void *)attention_mma_kernel,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)sizeof(attention_smem)),
              "attention");
    attention_mma_kernel<<<n_blocks, N_THREADS, sizeof(attention_smem), c->stream>>>(
        *a, *a->s, *l, (const float *)a->sink->data);
    cuda_launched(c, "attention");
    return true;
}
