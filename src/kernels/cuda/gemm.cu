/* Products of many tokens with packed weights on wgmma: weights as A in registers, tokens as B in
 * shared memory.
 *
 * A block owns a processor and walks over tiles of 128 rows x N tokens. One thread of its first
 * warpgroup has panels of weights and of tokens copied into a ring; the other two warpgroups decode
 * 64 or 2 x 64 rows each, a panel ahead of the product that runs: twice the rows for the same
 * tokens where K is one chunk, so that sums need no second set of registers. When there are fewer
 * tiles than processors, each chunk of K is a tile of its own, and a second kernel adds the chunks.
 */
#include <cuda.h>
#include <cudaTypedefs.h>

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

/* Box of 64 columns x N tokens; what lies outside the matrix becomes zeros. */
static __device__ __forceinline__ void box_copy(void *to, const CUtensorMap *map, int column,
                                                int row, uint64_t *b)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3}], [%4];" ::"r"(shared_of(to)),
        "l"(map), "r"(column), "r"(row), "r"(shared_of(b))
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
static __host__ __device__ constexpr int stage_bytes(int mode, int n, int mb)
{
    return n * 128 + mb * CONSUMERS * panel_bytes(mode);
}

static __host__ __device__ constexpr int blocks_per_processor(int n)
{
    return n <= 32 ? 2 : 1;
}

static __host__ __device__ constexpr int stages_of(int mode, int n, int mb)
{
    int fit = 200 * 1024 / blocks_per_processor(n) / stage_bytes(mode, n, mb);

    return fit > 8 ? 8 : fit;
}

/* ---- tiles ---- */

typedef struct gemm_tile {
    int block, expert;
    int base, n;         /* tokens */
    int chunk, n_chunks; /* the first, and how many */
} gemm_tile;

static __device__ __forceinline__ int splits_of(const gemm_job &j)
{
    return j.part ? j.n_panels / j.chunk : 1;
}

static __device__ __forceinline__ int tiles_of(const gemm_job &j, int n_tile, int mb)
{
    return (j.tile ? *j.n_tiles : (j.n + n_tile - 1) / n_tile) * (j.n_blocks / mb) * splits_of(j);
}

/* Token tiles of a row block follow each other: its weights stay in L2. */
template <int N, int MB>
static __device__ __forceinline__ gemm_tile tile_at(const gemm_job &j, int at)
{
    gemm_tile x = {};
    int n = j.n, n_tiles, splits = splits_of(j), n_blocks = j.n_blocks / MB;

    x.n_chunks = j.n_panels / j.chunk / splits;
    x.chunk = at % splits;
    at /= splits;
    if (j.tile) {
        int2 entry = j.tile[at / n_blocks];

        x.expert = entry.x;
        x.base = j.first[x.expert];
        n = j.first[x.expert + 1] - x.base;
        at -= (at / n_blocks - entry.y) * n_blocks; /* among the expert's */
    }
    n_tiles = (n + N - 1) / N;
    x.block = at / n_tiles * MB;
    x.n = min(N, n - at % n_tiles * N);
    x.base += at % n_tiles * N;
    return x;
}

/* ---- producer ---- */

template <int MODE, int N, int MB>
static __device__ void produce(const gemm_job &j, const CUtensorMap *map, uint8_t *xs, uint8_t *ws,
                               uint64_t *full, uint64_t *empty)
{
    const int STAGES = stages_of(MODE, N, MB), WB = CONSUMERS * panel_bytes(MODE);
    int stage = 0, phase = 0, n_tiles = tiles_of(j, N, MB);

    for (int at = blockIdx.x; at < n_tiles; at += gridDim.x) {
        gemm_tile x = tile_at<N, MB>(j, at);
        int panel = x.chunk * j.chunk, column = panel * PANEL;
        const uint8_t *w =
            j.w + x.expert * j.expert_bytes + ((int64_t)x.block * j.n_panels + panel) * WB;

        if (j.group_rows)
            column += x.block * ROW_BLOCK / j.group_rows * j.n_panels * PANEL;
        for (int p = 0; p < x.n_chunks * j.chunk; p++) {
            barrier_wait(&empty[stage], phase ^ 1);
            barrier_expect(&full[stage], MB * WB + N * 128);
#pragma unroll
            for (int mb = 0; mb < MB; mb++)
                bulk_copy(ws + (stage * MB + mb) * WB, w + ((int64_t)mb * j.n_panels + p) * WB, WB,
                          &full[stage]);
            box_copy(xs + stage * N * 128, map, column + p * PANEL, x.base, &full[stage]);
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
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

    if (j.part) {
        float *part = j.part + ((int64_t)x.chunk * j.n + x.base) * j.n_blocks * ROW_BLOCK + row0;

#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            int token = i / 4 * 8 + 2 * t + i % 2;

            if (token < x.n)
                part[(int64_t)token * j.n_blocks * ROW_BLOCK + g + i / 2 % 2 * 8] = sum[i];
        }
        return;
    }
    if (j.end == END_F32 || j.end == END_ADD) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            int token = i / 4 * 8 + 2 * t + i % 2;

            if (token < x.n)
                put_sum(j, (x.base + token) * j.y_stride + row0 + g + i / 2 % 2 * 8, sum[i]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        int token = 8 * i + g, t0 = 8 * i + 2 * t; /* behind and before the transposition */
        bf16 *y = (bf16 *)j.y + (x.base + token) * j.y_stride + 2 * t;

        if (j.end == END_SWIGLU) {
            float w0 = t0 < x.n ? weight_of(j, x.base + t0) : 0;
            float w1 = t0 + 1 < x.n ? weight_of(j, x.base + t0 + 1) : 0;
            uint32_t h =
                transpose8x8(bf16_pair(swiglu(sum[4 * i], sum[4 * i + 2], j.limit, w0),
                                       swiglu(sum[4 * i + 1], sum[4 * i + 3], j.limit, w1)));

            if (token < x.n)
                *(uint32_t *)(y + row0 / 2) = h;
        } else {
            uint32_t u = transpose8x8(bf16_pair(sum[4 * i], sum[4 * i + 1]));
            uint32_t v = transpose8x8(bf16_pair(sum[4 * i + 2], sum[4 * i + 3]));

            if (token < x.n) {
                *(uint32_t *)(y + row0) = u;
                *(uint32_t *)(y + row0 + 8) = v;
            }
        }
    }
}

/* Words of the panels of a stage, decoded: MB blocks of rows. */
template <int MODE, int MB>
static __device__ __forceinline__ void take_panels(uint32_t (&a)[MB][16], const uint8_t *ws,
                                                   int stage, int wg, int th)
{
#pragma unroll
    for (int mb = 0; mb < MB; mb++) {
        panel_words<MODE> w;

        load_panel<MODE>(&w, ws + ((stage * MB + mb) * CONSUMERS + wg) * panel_bytes(MODE), th);
        decode_panel<MODE>(w, a[mb]);
    }
}

template <int MODE, int N, int MB>
static __device__ void consume(const gemm_job &j, const uint8_t *xs, const uint8_t *ws,
                               uint64_t *full, uint64_t *empty)
{
    const int STAGES = stages_of(MODE, N, MB);
    int wg = threadIdx.x / 128 - 1, th = threadIdx.x % 128, stage = 0, phase = 0;
    int n_tiles = tiles_of(j, N, MB);

    for (int at = blockIdx.x; at < n_tiles; at += gridDim.x) {
        gemm_tile x = tile_at<N, MB>(j, at);
        float d[MB][N / 2], sum[MB == 1 ? N / 2 : 1];
        uint32_t a[2][MB][16];
        int prev = -1;

        if (MB == 1)
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                sum[i] = 0;
        barrier_wait(&full[stage], phase);
        take_panels<MODE, MB>(a[0], ws, stage, wg, th);
        for (int left = x.n_chunks; left > 0; left--) {
            for (int p = 0; p < j.chunk; p += 2) { /* chunks have an even number of panels */
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint64_t b = b_descriptor(xs + stage * N * 128);

                    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                    for (int k = 0; k < 4; k++)
#pragma unroll
                        for (int mb = 0; mb < MB; mb++)
                            wgmma<N>::bf16_rs(d[mb], &a[h][mb][4 * k], b + 2 * k,
                                              k > 0 || h > 0 || p > 0);
                    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                    if (prev >= 0 && th % 32 == 0) /* each warp: the others may be behind */
                        barrier_arrive(&empty[prev]);
                    prev = stage;
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                    if (h == 0 || p + 2 < j.chunk || left > 1) {
                        barrier_wait(&full[stage], phase);
                        take_panels<MODE, MB>(a[h ^ 1], ws, stage, wg, th);
                    }
                }
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (MB == 1)
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    sum[i] += d[0][i];
        }
        if (th % 32 == 0)
            barrier_arrive(&empty[prev]);
        if constexpr (MB == 1) {
            store_tile<N>(j, x, wg * 4 + th / 32, sum);
        } else {
#pragma unroll
            for (int mb = 0; mb < MB; mb++, x.block++)
                store_tile<N>(j, x, wg * 4 + th / 32, d[mb]);
        }
    }
}

template <int MODE, int N, int MB>
static __global__ __launch_bounds__(GEMM_THREADS, blocks_per_processor(N)) void gemm_kernel(
    gemm_job j, const __grid_constant__ CUtensorMap map)
{
    const int STAGES = stages_of(MODE, N, MB);
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ __align__(8) uint64_t full[8], empty[8];
    uint8_t *ws = smem + STAGES * N * 128;

    if (threadIdx.x < STAGES) {
        barrier_init(&full[threadIdx.x], 1);
        barrier_init(&empty[threadIdx.x], CONSUMERS * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            produce<MODE, N, MB>(j, &map, smem, ws, full, empty);
    } else {
        if (blocks_per_processor(N) == 1)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        else
            asm volatile("setmaxnreg.inc.sync.aligned.u32 96;");
        consume<MODE, N, MB>(j, smem, ws, full, empty);
    }
}

/* The chunks of every sum in ascending order, then its end; a thread per pair of rows 8 apart. */
static __global__ void finish_kernel(gemm_job j, int n_chunks)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, rows = (int64_t)j.n_blocks * ROW_BLOCK;
    int64_t token = i / (rows / 2), pair = i % (rows / 2), row = pair / 8 * 16 + pair % 8;
    const float *part = j.part + token * rows + row;
    float a = 0, b = 0;

    if (token >= j.n)
        return;
    for (int c = 0; c < n_chunks; c++) {
        a += part[c * j.n * rows];
        b += part[c * j.n * rows + 8];
    }
    if (j.end == END_SWIGLU) {
        ((bf16 *)j.y)[token * j.y_stride + pair] =
            to_bf(swiglu(a, b, j.limit, weight_of(j, (int)token)));
        return;
    }
    put_sum(j, token * j.y_stride + row, a);
    put_sum(j, token * j.y_stride + row + 8, b);
}

/* Tokens as boxes of 64 columns and `tile` rows, swizzled as wgmma wants them. */
static bool map_of(cuda_impl *c, const gemm_job *j, int tile, CUtensorMap *map)
{
    PFN_cuTensorMapEncodeTiled_v12000 encode = (PFN_cuTensorMapEncodeTiled_v12000)c->encode;
    cuuint64_t size[2] = {(cuuint64_t)j->x_stride, (cuuint64_t)j->n};
    cuuint64_t stride[1] = {(cuuint64_t)j->x_stride * sizeof(bf16)};
    cuuint32_t box[2] = {PANEL, (cuuint32_t)tile}, step[2] = {1, 1};

    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)j->x, size, stride,
                            box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int MODE, int N, int MB> static void run(cuda_impl *c, const gemm_job *job)
{
    int smem = stages_of(MODE, N, MB) * stage_bytes(MODE, N, MB),
        n_chunks = job->n_panels / job->chunk;
    int blocks = c->n_processors * blocks_per_processor(N);
    gemm_job j = *job;
    CUtensorMap map;

    if (!map_of(c, &j, N, &map)) {
        cuda_note(c, cudaErrorNotSupported, "a tensor map");
        return;
    }
    if (!j.tile && n_chunks > 1 && (j.n + N - 1) / N * j.n_blocks < c->n_processors)
        j.part = c->s.part;
    cuda_note(c,
              cudaFuncSetAttribute((const void *)gemm_kernel<MODE, N, MB>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, smem),
              "a product");
    gemm_kernel<MODE, N, MB><<<(unsigned)blocks, GEMM_THREADS, smem, c->stream>>>(j, map);
    cuda_launched(c, "a product");
    if (j.part) {
        int64_t threads = (int64_t)j.n * j.n_blocks * ROW_BLOCK / 2;

        finish_kernel<<<(unsigned)((threads + THREADS - 1) / THREADS), THREADS, 0, c->stream>>>(
            j, n_chunks);
        cuda_launched(c, "a product");
    }
}

/* Largest scratch of chunk sums: fewer tiles than processors, 8 chunks. */
size_t cuda_part_bytes(int n_processors)
{
    return (size_t)n_processors * ROW_BLOCK * 128 * 8 * sizeof(float);
}

template <int MODE> static void choose(cuda_impl *c, const gemm_job *j, int tile)
{
    if (tile == 32)
        run<MODE, 32, 1>(c, j);
    else if (tile == 64)
        run<MODE, 64, 1>(c, j);
    else if (j->chunk == j->n_panels && j->n_blocks % 2 == 0)
        run<MODE, 128, 2>(c, j);
    else
        run<MODE, 128, 1>(c, j);
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
