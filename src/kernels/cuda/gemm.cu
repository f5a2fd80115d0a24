/* Products of many tokens with packed weights on wgmma: weights as A in registers, tokens as B in
 * shared memory.
 *
 * A block owns a processor and walks over tiles of 128 rows x N tokens. Its first warpgroup brings
 * panels of weights (bulk copies) and of tokens (16 bytes at a time, gathered and swizzled) into a
 * ring; the other two decode 64 rows each, a panel ahead of the product that runs. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/wgmma.cuh"

#define CONSUMERS    2
#define GEMM_THREADS (128 * (1 + CONSUMERS))

/* ---- barriers and copies ---- */

static __device__ __forceinline__ uint32_t shared_of(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void barrier_init(uint64_t *b, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_of(b)), "r"(count));
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_of(b)) : "memory");
}

static __device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_of(b)),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint64_t *b, int phase)
{
    uint32_t done = 0;

    while (!done)
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(shared_of(b)), "r"(phase)
                     : "memory");
}

static __device__ __forceinline__ void bulk_copy(void *to, const void *from, int bytes, uint64_t *b)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(shared_of(to)),
        "l"(from), "r"(bytes), "r"(shared_of(b))
        : "memory");
}

/* 16 bytes, or zeros. */
static __device__ __forceinline__ void copy16(uint32_t to, const void *from, bool real)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(real ? 16 : 0)
                 : "memory");
}

/* B of 64 columns: rows of 128 bytes, 128-byte swizzle. A step of 16 columns adds 2. */
static __device__ __forceinline__ uint64_t b_descriptor(const void *p)
{
    return (uint64_t)((shared_of(p) & 0x3FFFFu) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

/* ---- shape of a kernel ---- */

/* Stages of the ring: what fits beside each other in 200 KB, or in half of it for small tiles, of
 * which two blocks share a processor. */
static __host__ __device__ constexpr int stage_bytes(int mode, int n)
{
    return n * 128 + CONSUMERS * panel_bytes(mode);
}

static __host__ __device__ constexpr int blocks_per_processor(int n)
{
    return n <= 32 ? 2 : 1;
}

static __host__ __device__ constexpr int stages_of(int mode, int n)
{
    int fit = 200 * 1024 / blocks_per_processor(n) / stage_bytes(mode, n);

    return fit > 8 ? 8 : fit;
}

/* ---- tiles ---- */

typedef struct gemm_tile {
    int block, expert;
    token_tile t;
} gemm_tile;

static __device__ __forceinline__ int tiles_of(const gemm_job &j, int n_tile)
{
    return (j.tile ? *j.n_tiles : (j.n + n_tile - 1) / n_tile) * j.n_blocks;
}

/* Token tiles of a row block follow each other: its weights stay in L2. */
template <int N> static __device__ __forceinline__ gemm_tile tile_at(const gemm_job &j, int at)
{
    gemm_tile x = {};
    int n = j.n, n_tiles, tile;

    if (j.tile) {
        int2 entry = j.tile[at / j.n_blocks];

        x.expert = entry.x;
        x.t.slot = j.slot + j.first[x.expert];
        n = j.first[x.expert + 1] - j.first[x.expert];
        at -= (at / j.n_blocks - entry.y) * j.n_blocks; /* among the expert's */
    }
    n_tiles = (n + N - 1) / N;
    x.block = at / n_tiles;
    tile = at % n_tiles;
    x.t.base = tile * N;
    if (x.t.slot)
        x.t.slot += x.t.base;
    x.t.n = min(N, n - x.t.base);
    return x;
}

/* ---- producer ---- */

template <int MODE, int N>
static __device__ void produce(const gemm_job &j, uint8_t *xs, uint8_t *ws, uint64_t *full,
                               uint64_t *empty)
{
    const int STAGES = stages_of(MODE, N), WB = CONSUMERS * panel_bytes(MODE), EACH = N / 16;
    const int LAG = STAGES - 2; /* copies of a thread that may be open */
    int th = threadIdx.x, piece = th % 8, stage = 0, phase = 0, n_issued = 0, landed = 0;
    int n_tiles = tiles_of(j, N);

    for (int at = blockIdx.x; at < n_tiles; at += gridDim.x) {
        gemm_tile x = tile_at<N>(j, at);
        const uint8_t *w = j.w + x.expert * j.expert_bytes + (int64_t)x.block * j.n_panels * WB;
        const bf16 *base = j.x + piece * 8;
        int row[EACH];

        if (j.group_rows)
            base += (int64_t)(x.block * ROW_BLOCK / j.group_rows) * j.n_panels * PANEL;

#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int slot = slot_of(x.t, th / 8 + 16 * i);

            row[i] = slot < 0 ? -1 : slot / j.x_div;
        }
        for (int p = 0; p < j.n_panels; p++) {
            barrier_wait(&empty[stage], phase ^ 1);
            if (th == 0) {
                barrier_expect(&full[stage], WB);
                bulk_copy(ws + stage * WB, w + (int64_t)p * WB, WB, &full[stage]);
            }
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                int token = th / 8 + 16 * i;
                uint32_t to =
                    shared_of(xs + stage * N * 128) + token * 128 + ((piece ^ token % 8) << 4);

                copy16(to, base + (row[i] < 0 ? 0 : row[i] * j.x_stride) + p * PANEL, row[i] >= 0);
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
            if (++n_issued > LAG) {
                asm volatile("cp.async.wait_group %0;" ::"n"(LAG) : "memory");
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                barrier_arrive(&full[landed]);
                landed = landed + 1 == STAGES ? 0 : landed + 1;
                n_issued--;
            }
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    for (; n_issued > 0; n_issued--) {
        barrier_arrive(&full[landed]);
        landed = landed + 1 == STAGES ? 0 : landed + 1;
    }
}

/* ---- consumer ---- */

static __device__ __forceinline__ uint32_t transpose8x8(uint32_t a)
{
    uint32_t r;

    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}

static __device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    return (uint32_t)to_bf(low) | (uint32_t)to_bf(high) << 16;
}

/* Thread (g, t) of a warp has rows g and g + 8 of its 16 and tokens 8i + 2t, 8i + 2t + 1. */
template <int N>
static __device__ void store_tile(const gemm_job &j, const gemm_tile &x, int strip,
                                  const float (&sum)[N / 2])
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int64_t row0 = (int64_t)x.block * ROW_BLOCK + strip * 16;

#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        if (j.end == END_F32 || j.end == END_ADD) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int slot = slot_of(x.t, 8 * i + 2 * t + e % 2);

                if (slot >= 0)
                    put_sum(j, slot * j.y_stride + row0 + g + e / 2 * 8, sum[4 * i + e]);
            }
        } else {
            int slot = slot_of(x.t, 8 * i + g); /* behind the transposition */
            bf16 *y = (bf16 *)j.y + slot * j.y_stride + 2 * t;

            if (j.end == END_SWIGLU) {
                int s0 = slot_of(x.t, 8 * i + 2 * t), s1 = slot_of(x.t, 8 * i + 2 * t + 1);
                float w0 = j.weights && s0 >= 0 ? j.weights[s0] : 1.0f;
                float w1 = j.weights && s1 >= 0 ? j.weights[s1] : 1.0f;
                uint32_t h =
                    transpose8x8(bf16_pair(swiglu(sum[4 * i], sum[4 * i + 2], j.limit, w0),
                                           swiglu(sum[4 * i + 1], sum[4 * i + 3], j.limit, w1)));

                if (slot >= 0)
                    *(uint32_t *)(y + row0 / 2) = h;
            } else {
                uint32_t u = transpose8x8(bf16_pair(sum[4 * i], sum[4 * i + 1]));
                uint32_t v = transpose8x8(bf16_pair(sum[4 * i + 2], sum[4 * i + 3]));

                if (slot >= 0) {
                    *(uint32_t *)(y + row0) = u;
                    *(uint32_t *)(y + row0 + 8) = v;
                }
            }
        }
    }
}

template <int MODE, int N>
static __device__ void consume(const gemm_job &j, const uint8_t *xs, const uint8_t *ws,
                               uint64_t *full, uint64_t *empty)
{
    const int STAGES = stages_of(MODE, N), PB = panel_bytes(MODE);
    int wg = threadIdx.x / 128 - 1, th = threadIdx.x % 128, stage = 0, phase = 0;
    int n_tiles = tiles_of(j, N);

    for (int at = blockIdx.x; at < n_tiles; at += gridDim.x) {
        gemm_tile x = tile_at<N>(j, at);
        float d[N / 2], sum[N / 2];
        uint32_t a[2][16];
        int prev = -1;

#pragma unroll
        for (int i = 0; i < N / 2; i++)
            sum[i] = 0;
        {
            panel_words<MODE> w;

            barrier_wait(&full[stage], phase);
            load_panel<MODE>(&w, ws + (stage * CONSUMERS + wg) * PB, th);
            decode_panel<MODE>(w, a[0]);
        }
        for (int left = j.n_panels; left > 0; left -= j.chunk) {
            for (int p = 0; p < j.chunk; p += 2) { /* chunks have an even number of panels */
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint64_t b = b_descriptor(xs + stage * N * 128);

                    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        wgmma<N>::bf16_rs(d, &a[h][4 * k], b + 2 * k, k > 0 || h > 0 || p > 0);
                    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                    if (prev >= 0 && th == 0)
                        barrier_arrive(&empty[prev]);
                    prev = stage;
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                    if (h == 0 || p + 2 < j.chunk || left > j.chunk) {
                        panel_words<MODE> w;

                        barrier_wait(&full[stage], phase);
                        load_panel<MODE>(&w, ws + (stage * CONSUMERS + wg) * PB, th);
                        decode_panel<MODE>(w, a[h ^ 1]);
                    }
                }
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                sum[i] += d[i];
        }
        if (th == 0)
            barrier_arrive(&empty[prev]);
        store_tile<N>(j, x, wg * 4 + th / 32, sum);
    }
}

template <int MODE, int N>
static __global__ __launch_bounds__(GEMM_THREADS,
                                    blocks_per_processor(N)) void gemm_kernel(gemm_job j)
{
    const int STAGES = stages_of(MODE, N);
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ __align__(8) uint64_t full[8], empty[8];
    uint8_t *ws = smem + STAGES * N * 128;

    if (threadIdx.x < STAGES) {
        barrier_init(&full[threadIdx.x], 128 + 1); /* each producer thread, and the bulk copy's */
        barrier_init(&empty[threadIdx.x], CONSUMERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        produce<MODE, N>(j, smem, ws, full, empty);
    } else {
        if (blocks_per_processor(N) == 1)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        else
            asm volatile("setmaxnreg.inc.sync.aligned.u32 96;");
        consume<MODE, N>(j, smem, ws, full, empty);
    }
}

template <int MODE, int N> static void run(cuda_impl *c, const gemm_job *j)
{
    int smem = stages_of(MODE, N) * stage_bytes(MODE, N);

    cuda_note(c,
              cudaFuncSetAttribute((const void *)gemm_kernel<MODE, N>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, smem),
              "a product");
    gemm_kernel<MODE, N>
        <<<(unsigned)(c->n_processors * blocks_per_processor(N)), GEMM_THREADS, smem, c->stream>>>(
            *j);
    cuda_launched(c, "a product");
}

template <int MODE> static void choose(cuda_impl *c, const gemm_job *j, int tile)
{
    if (tile == 32)
        run<MODE, 32>(c, j);
    else if (tile == 64)
        run<MODE, 64>(c, j);
    else
        run<MODE, 128>(c, j);
}

void cuda_gemm(cuda_impl *c, int mode, const gemm_job *j, int tile)
{
    if (mode == PACK_FP4)
        choose<PACK_FP4>(c, j, tile);
    else if (mode == PACK_FP8)
        choose<PACK_FP8>(c, j, tile);
    else
        choose<PACK_BF16>(c, j, tile);
}
