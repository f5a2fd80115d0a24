/* Products of many tokens with packed weights on wgmma: weights as A in registers, tokens as B in
 * shared memory.
 *
 * Blocks of a cluster have neighbouring rows of weights and the same tokens: each copies its share
 * of the tokens to all of them, which divides what is read from L2. A block owns a processor; the
 * cluster walks over tiles of rows x N tokens. One thread of a block's first warpgroup has panels
 * of weights and of tokens copied into a ring; the other two warpgroups decode 64 or 2 x 64 rows
 * each, a panel ahead of the product that runs: twice the rows for the same tokens where K is one
 * chunk, so that sums need no second set of registers. When there are fewer tiles than processors,
 * each chunk of K is a tile of its own, and a second kernel adds the chunks.
 */
#pragma once

#include <cuda.h>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma.cuh"

#define CONSUMERS    2
#define GEMM_THREADS (128 * (1 + CONSUMERS))

/* ---- barriers and copies ---- */

/* Arrive at the same barrier of block `rank` of the cluster. What this thread has read needs no
 * fence; a release at the cluster's scope would wait for all its memory operations. */
static __device__ __forceinline__ void barrier_arrive_at(uint64_t *b, uint32_t rank)
{
    asm volatile("{.reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [r];}" ::"r"(shared_of(b)),
                 "r"(rank)
                 : "memory");
}

static __device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_of(b)),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

static __device__ __forceinline__ void bulk_copy(void *to, const void *from, int bytes, uint64_t *b)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(shared_of(to)),
        "l"(from), "r"(bytes), "r"(shared_of(b))
        : "memory");
}

/* Box of 64 columns of tokens, to the same place in all C blocks of the cluster; what lies outside
 * the matrix becomes zeros. */
template <int C>
static __device__ __forceinline__ void box_copy(void *to, const CUtensorMap *map, int column,
                                                int row, uint64_t *b)
{
    if (C == 1)
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
            "[%1, {%2, %3}], [%4];" ::"r"(shared_of(to)),
            "l"(map), "r"(column), "r"(row), "r"(shared_of(b))
            : "memory");
    else
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_of(to)),
                     "l"(map), "r"(column), "r"(row), "r"(shared_of(b)),
                     "h"((uint16_t)((1 << C) - 1))
                     : "memory");
}

/* ---- shape of a kernel ---- */

/* A kernel's shape: kind of the panels, and of those of a product that goes first (or PACK_NONE);
 * N tokens of a tile, MB x 128 rows of a block, C blocks of a cluster. */
#define SHAPE      int MODE, int FIRST, int N, int MB, int C
#define SHAPE_ARGS MODE, FIRST, N, MB, C

/* Bytes of panels of a stage: two side by side for each row block. */
static __host__ __device__ constexpr int panels_bytes(int mode, int first, int mb)
{
    int other = first == PACK_NONE ? 0 : panel_bytes(first), most = panel_bytes(mode);

    return mb * CONSUMERS * (other > most ? other : most);
}

static __host__ __device__ constexpr int blocks_per_processor(int n)
{
    return n <= 32 ? 2 : 1;
}

/* Products of several chunks need a second set of sums. Larger tiles have none: they are for
 * weights of one chunk. */
static __host__ __device__ constexpr bool has_chunks(int n, int mb)
{
    return mb == 1 && n <= 192;
}

/* How much of it a thread has in registers; the rest is in shared memory. */
static __host__ __device__ constexpr int kept_registers(int n)
{
    return n <= 128 ? n / 2 : n <= 160 ? 64 : 44;
}

static __host__ __device__ constexpr int kept_bytes(int n, int mb)
{
    return has_chunks(n, mb) ? (n / 2 - kept_registers(n)) * 128 * CONSUMERS * 4 : 0;
}

/* Where a warpgroup turns its sums round: some tokens at a time, rows of 128 bytes and a gap
 * against bank conflicts. */
#define TURN_PITCH 144

static __host__ __device__ constexpr int turn_tokens(int n)
{
    return n == 128 ? 64 : n >= 64 ? 32 : n == 48 ? 16 : n;
}

static __host__ __device__ constexpr int turn_bytes(int n)
{
    return (turn_tokens(n) < 32 ? 32 : turn_tokens(n)) * TURN_PITCH;
}

#define MAX_STAGES 10

/* Stages of the ring: what fits beside each other in the shared memory that is left, or in half of
 * it for small tiles, of which two blocks share a processor. */
static __host__ __device__ constexpr int stages_of(int mode, int first, int n, int mb)
{
    int left = 229000 / blocks_per_processor(n) - CONSUMERS * turn_bytes(n) - kept_bytes(n, mb);
    int fit = left / (n * 128 + panels_bytes(mode, first, mb));

    return fit > MAX_STAGES ? MAX_STAGES : fit;
}

static __host__ __device__ constexpr int smem_bytes(int mode, int first, int n, int mb)
{
    return stages_of(mode, first, n, mb) * (n * 128 + panels_bytes(mode, first, mb)) +
           CONSUMERS * turn_bytes(n) + kept_bytes(n, mb);
}

/* What a kernel does: products that may share it, the first one last in the list. */
typedef struct gemm_work {
    CUtensorMap map[2];
    gemm_job job[2];
} gemm_work;

/* Place in the ring of stages, and in that of tiles. */
typedef struct ring_at {
    int stage, phase, tile;
} ring_at;

/* ---- tiles ---- */

typedef struct __align__(16) gemm_tile
{
    int block;   /* of ROW_BLOCK rows, the first */
    int base, n; /* tokens */
    int chunk;   /* the first */
}
gemm_tile;

#define TILES_AHEAD 16 /* more than tiles begun within the panels of a ring */

typedef struct gemm_shared {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    gemm_tile tile[TILES_AHEAD];
    float weight[CONSUMERS][256]; /* of the tile's tokens */
} gemm_shared;

template <int STAGES> static __device__ __forceinline__ void next_stage(ring_at *r)
{
    if (++r->stage == STAGES) {
        r->stage = 0;
        r->phase ^= 1;
    }
}

static __device__ __forceinline__ int splits_of(const gemm_job &j)
{
    return j.part ? j.n_panels / j.chunk : 1;
}

/* Of the cluster: `rows` row blocks high. */
static __device__ __forceinline__ int tiles_of(const gemm_job &j, int n_tile, int rows)
{
    return (j.tile ? *j.n_tiles : (j.n + n_tile - 1) / n_tile) * (j.n_blocks / rows) * splits_of(j);
}

/* Token tiles of a row block follow each other, so that its weights stay in L2; of a plain product
 * at most j.group of them, so that the tokens stay there for the next row block. */
template <int N, int ROWS>
static __device__ __forceinline__ gemm_tile tile_at(const gemm_job &j, int at, int *expert)
{
    gemm_tile x = {};
    int n = j.n, n_tiles, splits = splits_of(j), n_rows = j.n_blocks / ROWS, first = 0;

    *expert = 0;
    x.chunk = at % splits;
    at /= splits;
    if (j.tile) {
        int2 entry = j.tile[at / n_rows];

        *expert = entry.x;
        x.base = j.first[entry.x];
        n = j.first[entry.x + 1] - x.base;
        at -= (at / n_rows - entry.y) * n_rows; /* among the expert's */
        n_tiles = (n + N - 1) / N;
    } else {
        first = at / (j.group * n_rows) * j.group;
        at -= first * n_rows;
        n_tiles = min((n + N - 1) / N - first, j.group);
    }
    x.block = at / n_tiles * ROWS;
    first = (first + at % n_tiles) * N;
    x.n = min(N, n - first);
    x.base += first;
    return x;
}

/* ---- producer ---- */

/* Where panel p of a tile's weights lies. */
static __device__ __forceinline__ const uint8_t *weights_at(const gemm_job &j, const gemm_tile &x,
                                                            int expert, int wb)
{
    return j.w + expert * j.expert_bytes + ((int64_t)x.block * j.n_panels + x.chunk * j.chunk) * wb;
}

/* Copies of panel p of the weights, into an empty stage. */
template <SHAPE>
static __device__ __forceinline__ void copy_weights(const gemm_job &j, const uint8_t *w, int p,
                                                    uint8_t *to, uint64_t *full)
{
    const int WB = CONSUMERS * panel_bytes(MODE);

    barrier_expect(full, MB * WB + N * 128);
#pragma unroll
    for (int mb = 0; mb < MB; mb++)
        bulk_copy(to + mb * WB, w + ((int64_t)mb * j.n_panels + p) * WB, WB, full);
}

/* Fill the ring with weights of a plain product's first tile, which depend on nothing; returns how
 * many stages. */
template <SHAPE>
static __device__ __forceinline__ int begin(const gemm_job &j, int at, uint8_t *ws, gemm_shared *s)
{
    const int STAGES = stages_of(MODE, FIRST, N, MB), PANELS = panels_bytes(MODE, FIRST, MB);
    int n = min(STAGES, j.n_panels / splits_of(j)), expert;
    gemm_tile x;
    const uint8_t *w;

    if (j.tile || at >= tiles_of(j, N, MB * C))
        return 0;
    x = tile_at<N, MB * C>(j, at, &expert);
    x.block += C > 1 ? blockIdx.x % C * MB : 0;
    w = weights_at(j, x, expert, CONSUMERS * panel_bytes(MODE));
    for (int p = 0; p < n; p++)
        copy_weights<SHAPE_ARGS>(j, w, p, ws + p * PANELS, &s->full[p]);
    return n;
}

/* Copies for the cluster's tiles of a product, `at` the first; returns the first of the next one.
 * `begun`: stages that have their weights. */
template <SHAPE>
static __device__ __forceinline__ int produce(const gemm_job &j, const CUtensorMap *map, int at,
                                              int begun, uint8_t *xs, uint8_t *ws, gemm_shared *s,
                                              ring_at *r)
{
    const int STAGES = stages_of(MODE, FIRST, N, MB), PANELS = panels_bytes(MODE, FIRST, MB);
    int rank = C > 1 ? blockIdx.x % C : 0, n_tiles = tiles_of(j, N, MB * C);
    int n_panels = j.n_panels / splits_of(j);

    for (; at < n_tiles; at += gridDim.x / C) {
        int expert;
        gemm_tile x = tile_at<N, MB * C>(j, at, &expert);
        int column = x.chunk * j.chunk * PANEL;
        const uint8_t *w;

        x.block += rank * MB;
        w = weights_at(j, x, expert, CONSUMERS * panel_bytes(MODE));
        if (j.group_rows)
            column += x.block * ROW_BLOCK / j.group_rows * j.n_panels * PANEL;
        s->tile[r->tile++ % TILES_AHEAD] = x;
        for (int p = 0; p < n_panels; p++) {
            uint64_t *full = &s->full[r->stage];

            if (begun-- <= 0) {
                barrier_wait(&s->empty[r->stage], r->phase ^ 1);
                copy_weights<SHAPE_ARGS>(j, w, p, ws + r->stage * PANELS, full);
            }
            box_copy<C>(xs + (r->stage * N + rank * (N / C)) * 128, map, column + p * PANEL,
                        x.base + rank * (N / C), full);
            next_stage<STAGES>(r);
        }
    }
    return at - n_tiles;
}

/* ---- ends of sums ---- */

/* Four 8 x 8 matrices, transposed; lane l gives the place of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void store_turned(uint8_t *to, const uint32_t *m)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_of(to)),
                 "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
}

/* Of a warpgroup that multiplies. */
static __device__ __forceinline__ void warpgroup_sync(void)
{
    asm volatile("bar.sync %0, 128;" ::"r"(threadIdx.x / 128) : "memory");
}

/* f32 sums: thread (g, t) of a warp has rows g and g + 8 of its 16 and tokens 8i + 2t, 8i + 2t + 1.
 * Sums of a chunk lie [chunk][token][row]. */
template <int N>
static __device__ void store_f32(const gemm_job &j, const gemm_tile &x, int strip,
                                 const float (&sum)[N / 2])
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int64_t row = (int64_t)x.block * ROW_BLOCK + strip * 16 + g,
            rows = (int64_t)j.n_blocks * ROW_BLOCK;
    int64_t at =
        j.part ? ((int64_t)x.chunk * j.n + x.base) * rows + row : x.base * j.y_stride + row;
    int64_t stride = j.part ? rows : j.y_stride;
    float *y = (j.part ? j.part : (float *)j.y) + at;
    bool add = !j.part && j.end == END_ADD;

#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int token = i / 4 * 8 + 2 * t + i % 2;
        float *to = y + token * stride + i / 2 % 2 * 8;

        if (token < x.n)
            *to = add ? *to + sum[i] : sum[i];
    }
}

/* bf16 rows of 64 columns, or 32 of h, of a warpgroup; put into the order of tokens through `turn`.
 */
template <int N>
static __device__ void store_act(const gemm_job &j, const gemm_tile &x, int wg,
                                 const float (&sum)[N / 2], uint8_t *turn, const float *weight)
{
    const int TOKENS = turn_tokens(N);
    int th = threadIdx.x % 128, lane = th % 32, t = th % 4;
    bool up = j.end == END_SWIGLU;
    int log_units = up ? 2 : 3; /* of 16 bytes in a token's row */
    int64_t column = ((int64_t)x.block * ROW_BLOCK + wg * PANEL) >> (up ? 1 : 0);
    bf16 *y = (bf16 *)j.y + x.base * j.y_stride + column;

#pragma unroll
    for (int part = 0; part < N / TOKENS; part++) {
        warpgroup_sync(); /* the last rows have been read; weights are there */
        if (up) {
            uint8_t *to = turn + lane * TURN_PITCH + th / 32 * 16;

#pragma unroll
            for (int i = 0; i < (TOKENS + 31) / 32; i++) {
                uint32_t m[4] = {0};

#pragma unroll
                for (int k = 0; k < 4 && 32 * i + 8 * k < TOKENS; k++) {
                    int b = part * TOKENS / 8 + 4 * i + k;
                    float2 w = ((const float2 *)weight)[4 * b + t];

                    m[k] = bf16_pair(swiglu(sum[4 * b], sum[4 * b + 2], j.limit, w.x),
                                     swiglu(sum[4 * b + 1], sum[4 * b + 3], j.limit, w.y));
                }
                store_turned(to + i * 32 * TURN_PITCH, m);
            }
        } else {
            uint8_t *to =
                turn + (lane / 16 * 8 + lane % 8) * TURN_PITCH + th / 32 * 32 + lane / 8 % 2 * 16;

#pragma unroll
            for (int i = 0; i < TOKENS / 16; i++) {
                uint32_t m[4];

#pragma unroll
                for (int k = 0; k < 4; k++) {
                    int at = part * TOKENS / 2 + 8 * i + 2 * k;

                    m[k] = bf16_pair(sum[at], sum[at + 1]);
                }
                store_turned(to + i * 16 * TURN_PITCH, m);
            }
        }
        warpgroup_sync();
        for (int i = th; i < TOKENS << log_units; i += 128) { /* whole warps */
            int token = i >> log_units, unit = i - (token << log_units);
            uint4 v = *(const uint4 *)(turn + token * TURN_PITCH + unit * 16);

            token += part * TOKENS;
            if (j.end != END_ACT)
                v = q8_of_lanes(v);
            if (token < x.n)
                *(uint4 *)(y + token * j.y_stride + unit * 8) = v;
        }
    }
}

template <int N>
static __device__ __forceinline__ void store_tile(const gemm_job &j, const gemm_tile &x, int wg,
                                                  const float (&sum)[N / 2], uint8_t *turn,
                                                  const float *weight)
{
    if (j.part || j.end == END_F32 || j.end == END_ADD)
        store_f32<N>(j, x, wg * 4 + threadIdx.x % 128 / 32, sum);
    else
        store_act<N>(j, x, wg, sum, turn, weight);
}

/* ---- consumer ---- */

/* Words of the panels of a stage, decoded: MB blocks of rows. */
template <int MODE, int MB>
static __device__ __forceinline__ void take_panels(uint32_t (&a)[MB][16], const uint8_t *panels,
                                                   int wg, int th)
{
#pragma unroll
    for (int mb = 0; mb < MB; mb++) {
        panel_words<MODE> w;

        load_panel<MODE>(&w, panels + (mb * CONSUMERS + wg) * panel_bytes(MODE), th);
        decode_panel<MODE>(w, a[mb]);
    }
}

/* This warp has read the stage; the others may be behind. Every block of the cluster waits for it.
 */
template <int C> static __device__ __forceinline__ void release(gemm_shared *s, int stage)
{
    if (threadIdx.x % 32 < C)
        barrier_arrive_at(&s->empty[stage], threadIdx.x % 32);
}

/* The sum of the chunks so far, in registers as far as they go, else in shared memory (of this
 * thread, 16 bytes beside those of the next): add a chunk's sum d to it. */
template <int N>
static __device__ __forceinline__ void add_chunk(float (&sum)[kept_registers(N)], float4 *kept,
                                                 const float (&d)[N / 2], bool first)
{
    const int REGISTERS = kept_registers(N);

#pragma unroll
    for (int i = 0; i < REGISTERS; i++)
        sum[i] = first ? d[i] : sum[i] + d[i];
#pragma unroll
    for (int i = 0; i < (N / 2 - REGISTERS) / 4; i++) {
        const float *add = &d[REGISTERS + 4 * i];
        float4 v = make_float4(add[0], add[1], add[2], add[3]);

        if (!first) {
            float4 w = kept[i * 128 * CONSUMERS];

            v = make_float4(w.x + v.x, w.y + v.y, w.z + v.z, w.w + v.w);
        }
        kept[i * 128 * CONSUMERS] = v;
    }
}

template <int N>
static __device__ __forceinline__ void
take_sum(float (&all)[N / 2], const float (&sum)[kept_registers(N)], const float4 *kept)
{
    const int REGISTERS = kept_registers(N);

#pragma unroll
    for (int i = 0; i < REGISTERS; i++)
        all[i] = sum[i];
#pragma unroll
    for (int i = 0; i < (N / 2 - REGISTERS) / 4; i++) {
        float4 v = kept[i * 128 * CONSUMERS];

        all[REGISTERS + 4 * i] = v.x;
        all[REGISTERS + 4 * i + 1] = v.y;
        all[REGISTERS + 4 * i + 2] = v.z;
        all[REGISTERS + 4 * i + 3] = v.w;
    }
}

template <SHAPE>
static __device__ __forceinline__ int consume(const gemm_job &j, int at, const uint8_t *xs,
                                              const uint8_t *ws, uint8_t *turns, gemm_shared *s,
                                              ring_at *r)
{
    const int STAGES = stages_of(MODE, FIRST, N, MB), PANELS = panels_bytes(MODE, FIRST, MB);
    const bool CHUNKS = has_chunks(N, MB);
    int wg = threadIdx.x / 128 - 1, th = threadIdx.x % 128;
    int n_tiles = tiles_of(j, N, MB * C), n_chunks = j.n_panels / j.chunk / splits_of(j);
    uint8_t *rows = turns + wg * turn_bytes(N);
    float4 *kept = (float4 *)(turns + CONSUMERS * turn_bytes(N)) + threadIdx.x - 128;

    for (; at < n_tiles; at += gridDim.x / C) {
        float d[MB][N / 2], sum[kept_registers(N)], weight[(N + 127) / 128];
        uint32_t a[2][MB][16];
        gemm_tile x;
        int prev = -1;

        barrier_wait(&s->full[r->stage], r->phase);
        x = s->tile[r->tile++ % TILES_AHEAD];
#pragma unroll
        for (int i = 0; i < (N + 127) / 128; i++) {
            weight[i] = 1;
            if (j.weights && 128 * i + th < x.n)
                weight[i] = j.weights[x.base + 128 * i + th];
        }
        take_panels<MODE, MB>(a[0], ws + r->stage * PANELS, wg, th);
        for (int chunk = 0; chunk < n_chunks; chunk++) {
            for (int p = 0; p < j.chunk; p += 2) { /* chunks have an even number of panels */
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint64_t b = matrix_descriptor(xs + r->stage * N * 128);

                    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                    for (int k = 0; k < 4; k++)
#pragma unroll
                        for (int mb = 0; mb < MB; mb++)
                            wgmma<N>::bf16_rs(d[mb], &a[h][mb][4 * k], b + 2 * k,
                                              k > 0 || h > 0 || p > 0);
                    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                    if (prev >= 0)
                        release<C>(s, prev);
                    prev = r->stage;
                    next_stage<STAGES>(r);
                    if (h == 0 || p + 2 < j.chunk || chunk + 1 < n_chunks) {
                        barrier_wait(&s->full[r->stage], r->phase);
                        take_panels<MODE, MB>(a[h ^ 1], ws + r->stage * PANELS, wg, th);
                    }
                }
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (CHUNKS)
                add_chunk<N>(sum, kept, d[0], chunk == 0);
        }
        release<C>(s, prev);
        if (j.end == END_SWIGLU) /* reads for the last tile ended before a sync */
#pragma unroll
            for (int i = 0; i < (N + 127) / 128; i++)
                if (128 * i + th < N)
                    s->weight[wg][128 * i + th] = weight[i];
        if constexpr (CHUNKS) {
            float all[N / 2]; /* d itself stays what the last product has made it */

            take_sum<N>(all, sum, kept);
            store_tile<N>(j, x, wg, all, rows, s->weight[wg]);
        } else {
#pragma unroll
            for (int mb = 0; mb < MB; mb++, x.block++)
                store_tile<N>(j, x, wg, d[mb], rows, s->weight[wg]);
        }
    }
    return at - n_tiles;
}

template <SHAPE>
static __global__ __cluster_dims__(C, 1, 1) __launch_bounds__(
    GEMM_THREADS, blocks_per_processor(N)) void gemm_kernel(const __grid_constant__ gemm_work work)
{
    const int STAGES = stages_of(MODE, FIRST, N, MB);
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ gemm_shared s;
    uint8_t *ws = smem + STAGES * N * 128, *turns = ws + STAGES * panels_bytes(MODE, FIRST, MB);
    ring_at r = {};
    int at = blockIdx.x / C;

    if (threadIdx.x < STAGES) {
        barrier_init(&s.full[threadIdx.x], 1);
        barrier_init(&s.empty[threadIdx.x], CONSUMERS * 4 * C);
    }
    barriers_made();
    if (C > 1)
        cluster_sync();
    else
        __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            int begun = FIRST != PACK_NONE ? begin<FIRST, MODE, N, MB, C>(work.job[1], at, ws, &s)
                                           : begin<SHAPE_ARGS>(work.job[0], at, ws, &s);

            after_previous();
            if (FIRST != PACK_NONE) {
                at = produce<FIRST, MODE, N, MB, C>(work.job[1], &work.map[1], at, begun, smem, ws,
                                                    &s, &r);
                begun = 0;
            }
            produce<SHAPE_ARGS>(work.job[0], &work.map[0], at, begun, smem, ws, &s, &r);
        }
    } else {
        if (blocks_per_processor(N) == 1)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        else
            asm volatile("setmaxnreg.inc.sync.aligned.u32 96;");
        after_previous();
        if (FIRST != PACK_NONE)
            at = consume<FIRST, MODE, N, MB, C>(work.job[1], at, smem, ws, turns, &s, &r);
        consume<SHAPE_ARGS>(work.job[0], at, smem, ws, turns, &s, &r);
    }
    if (C > 1) /* others still arrive at this block's barriers */
        cluster_sync();
}
