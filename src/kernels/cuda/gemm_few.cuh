/* Products of few tokens per weight: experts in decode steps. As gemm_kernel.cuh, with four
 * warpgroups that decode 64 rows each, since decoding sets the pace: 256 rows of weights share the
 * tokens, of which only as many are read and multiplied as a tile has, in sixteens.
 */
#pragma once

#include "kernels/cuda/gemm_kernel.cuh"

#define FEW_GROUPS  4 /* warpgroups that multiply */
#define FEW_THREADS (128 * (1 + FEW_GROUPS))
#define FEW_ROWS    2  /* blocks of ROW_BLOCK rows in a tile */
#define FEW_TOKENS  64 /* of a tile, at most */
#define FEW_BOX     16 /* tokens copied at once */

/* Panels of K in a stage. */
static __host__ __device__ constexpr int few_panels(int mode)
{
    return mode == PACK_FP4 ? 2 : 1;
}

static __host__ __device__ constexpr int few_token_bytes(int mode)
{
    return few_panels(mode) * FEW_TOKENS * 128;
}

static __host__ __device__ constexpr int few_weight_bytes(int mode)
{
    return few_panels(mode) * FEW_GROUPS * panel_bytes(mode);
}

static __host__ __device__ constexpr int most_of(int a, int b)
{
    return a > b ? a : b;
}

/* The ring of a kernel for panels of `mode`, and of `first` or PACK_NONE. */
template <int MODE, int FIRST> struct few_ring {
    static constexpr int tokens =
        most_of(few_token_bytes(MODE), FIRST == PACK_NONE ? 0 : few_token_bytes(FIRST));
    static constexpr int weights =
        most_of(few_weight_bytes(MODE), FIRST == PACK_NONE ? 0 : few_weight_bytes(FIRST));
    static constexpr int turns = FEW_GROUPS * 32 * TURN_PITCH;
    static constexpr int fit = (227 * 1024 - 2048 - 1024 - turns) / (tokens + weights);
    static constexpr int stages = fit < MAX_STAGES ? fit : MAX_STAGES;
    static constexpr int bytes = stages * (tokens + weights) + turns;
};

typedef struct few_shared {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    gemm_tile tile[TILES_AHEAD];
    float weight[FEW_GROUPS][FEW_TOKENS]; /* of the tile's tokens */
} few_shared;

/* Copies of stage p of a tile's weights, into an empty stage that also waits for the tokens. */
template <int MODE>
static __device__ __forceinline__ void few_weights(const gemm_job &j, const uint8_t *w, int p,
                                                   int n, uint8_t *to, uint64_t *full)
{
    const int BYTES = few_weight_bytes(MODE) / FEW_ROWS;

    barrier_expect(full, FEW_ROWS * BYTES +
                             few_panels(MODE) * 128 * ((n + FEW_BOX - 1) / FEW_BOX * FEW_BOX));
#pragma unroll
    for (int r = 0; r < FEW_ROWS; r++)
        bulk_copy(to + r * BYTES,
                  w + (int64_t)r * j.n_panels * 2 * panel_bytes(MODE) + (int64_t)p * BYTES, BYTES,
                  full);
}

/* Fill the ring with weights of the first tile, which depend on nothing; returns how many stages.
 */
template <typename RING, int MODE>
static __device__ __forceinline__ int few_begin(const gemm_job &j, int at, uint8_t *ws,
                                                few_shared *s)
{
    int n = min(RING::stages, j.n_panels / few_panels(MODE)), expert;
    gemm_tile x;
    const uint8_t *w;

    if ((j.tile && !j.listed) || at >= tiles_of(j, FEW_TOKENS, FEW_ROWS))
        return 0;
    x = tile_at<FEW_TOKENS, FEW_ROWS>(j, at, &expert);
    w = weights_at(j, x, expert, 2 * panel_bytes(MODE));
    for (int p = 0; p < n; p++)
        few_weights<MODE>(j, w, p, x.n, ws + p * RING::weights, &s->full[p]);
    return n;
}

/* As produce(). */
template <typename RING, int MODE>
static __device__ __forceinline__ int few_produce(const gemm_job &j, const CUtensorMap *map, int at,
                                                  int begun, uint8_t *xs, uint8_t *ws,
                                                  few_shared *s, ring_at *r)
{
    int n_tiles = tiles_of(j, FEW_TOKENS, FEW_ROWS);
    int n_stages = j.n_panels / few_panels(MODE);

    for (; at < n_tiles; at += gridDim.x) {
        int expert;
        gemm_tile x = tile_at<FEW_TOKENS, FEW_ROWS>(j, at, &expert);
        const uint8_t *w = weights_at(j, x, expert, 2 * panel_bytes(MODE));

        s->tile[r->tile++ % TILES_AHEAD] = x;
        for (int p = 0; p < n_stages; p++) {
            uint64_t *full = &s->full[r->stage];

            if (begun-- <= 0) {
                barrier_wait(&s->empty[r->stage], r->phase ^ 1);
                few_weights<MODE>(j, w, p, x.n, ws + r->stage * RING::weights, full);
            }
#pragma unroll
            for (int h = 0; h < few_panels(MODE); h++)
                for (int t = 0; t < x.n; t += FEW_BOX)
                    box_copy<1>(xs + r->stage * RING::tokens + (h * FEW_TOKENS + t) * 128, map,
                                (p * few_panels(MODE) + h) * PANEL, x.base + t, full);
            next_stage<RING::stages>(r);
        }
    }
    return at - n_tiles;
}

/* A value that is kept in its register: the compiler would make it anew in every step. */
static __device__ __forceinline__ uint32_t kept_value(uint32_t x)
{
    uint32_t y;

    asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* As load_panel(), from shared memory: `code` and `scale` are where this thread's words lie. */
template <int MODE>
static __device__ __forceinline__ void few_load(panel_words<MODE> *p, uint32_t code, uint32_t scale)
{
#pragma unroll
    for (int i = 0; i < code_bytes(MODE) / 2048; i++)
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(p->code[i].x), "=r"(p->code[i].y), "=r"(p->code[i].z),
                       "=r"(p->code[i].w)
                     : "r"(code + i * 2048));
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(p->scale) : "r"(scale));
}

/* One tile of at most N tokens; its first stage is there. */
template <typename RING, int MODE, int N>
static __device__ __forceinline__ void few_tile(const gemm_job &j, gemm_tile x, const uint8_t *xs,
                                                const uint8_t *ws, uint8_t *turn, few_shared *s,
                                                ring_at *r)
{
    const int STEP = few_panels(MODE);
    int wg = threadIdx.x / 128 - 1, th = threadIdx.x % 128;
    int n_panels = j.n_panels, prev = -1;
    float d[N / 2] = {0}, weight = 1; /* else the d of every width would stay alive */
    uint32_t a[2][8];
    panel_words<MODE> w[STEP];
    uint64_t b = 0;
    uint32_t tokens = kept_value(shared_of(xs)), lane = kept_value(threadIdx.x % 32);
    uint32_t panel = shared_of(ws) + (wg / 2 * STEP * 2 + wg % 2) * panel_bytes(MODE);
    uint32_t code = kept_value(panel + th * 16);
    uint32_t scale = kept_value(panel + code_bytes(MODE) +
                                (MODE == PACK_FP4 ? th / 32 * 8 + th % 32 / 4 : th / 32) * 4);

    if (j.weights && th < x.n)
        weight = j.weights[x.base + th];
    for (int p = 0; p < n_panels; p += 2) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = STEP == 2 ? h : 0;

            if (at == 0) { /* all of the stage at once: one latency */
                uint32_t stage = r->stage * RING::weights;

                b = uniform_descriptor(tokens + r->stage * RING::tokens);
                barrier_wait(&s->full[r->stage], r->phase);
#pragma unroll
                for (int i = 0; i < STEP; i++)
                    few_load<MODE>(&w[i], code + stage + i * 2 * panel_bytes(MODE),
                                   scale + stage + i * 2 * panel_bytes(MODE));
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                decode_half<MODE>(w[at], half, a[half]);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int k = 0; k < 2; k++)
                    wgmma<N>::bf16_rs(d, &a[half][4 * k],
                                      b + at * FEW_TOKENS * 128 / 16 + 4 * half + 2 * k,
                                      k > 0 || half > 0 || h > 0 || p > 0);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (at == 0 && half == 0 && prev >= 0 && lane == 0)
                    barrier_arrive(&s->empty[prev]);
            }
            if (at + 1 == STEP) {
                prev = r->stage;
                next_stage<RING::stages>(r);
            }
        }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (lane == 0)
        barrier_arrive(&s->empty[prev]);
    if (j.end == END_SWIGLU && th < FEW_TOKENS) /* reads for the last tile ended before a sync */
        s->weight[wg][th] = weight;
    x.block += wg / 2;
    store_tile<N>(j, x, wg % 2, d, turn + wg * 32 * TURN_PITCH, s->weight[wg]);
}

template <typename RING, int MODE>
static __device__ __forceinline__ int few_consume(const gemm_job &j, int at, const uint8_t *xs,
                                                  const uint8_t *ws, uint8_t *turns, few_shared *s,
                                                  ring_at *r)
{
    int n_tiles = tiles_of(j, FEW_TOKENS, FEW_ROWS);

    for (; at < n_tiles; at += gridDim.x) {
        gemm_tile x;

        barrier_wait(&s->full[r->stage], r->phase);
        x = s->tile[r->tile++ % TILES_AHEAD];
        if (x.n <= 16)
            few_tile<RING, MODE, 16>(j, x, xs, ws, turns, s, r);
        else if (x.n <= 32)
            few_tile<RING, MODE, 32>(j, x, xs, ws, turns, s, r);
        else if (x.n <= 48)
            few_tile<RING, MODE, 48>(j, x, xs, ws, turns, s, r);
        else
            few_tile<RING, MODE, 64>(j, x, xs, ws, turns, s, r);
    }
    return at - n_tiles;
}

template <int MODE, int FIRST>
static __global__ __launch_bounds__(FEW_THREADS,
                                    1) void few_kernel(const __grid_constant__ gemm_work work)
{
    typedef few_ring<MODE, FIRST> ring;
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ few_shared s;
    uint8_t *ws = smem + ring::stages * ring::tokens, *turns = ws + ring::stages * ring::weights;
    ring_at r = {};
    int at = blockIdx.x;

    if (threadIdx.x < ring::stages) {
        barrier_init(&s.full[threadIdx.x], 1);
        barrier_init(&s.empty[threadIdx.x], FEW_GROUPS * 4);
    }
    barriers_made();
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (threadIdx.x == 0) {
            int first = 0, begun = 0, before = 0;

            if (FIRST != PACK_NONE) {
                first = few_begin<ring, FIRST>(work.job[1], at, ws, &s);
                before = tiles_of(work.job[1], FEW_TOKENS, FEW_ROWS);
            }
            if (first == 0)
                begun = few_begin<ring, MODE>(work.job[0], at - before, ws, &s);
            after_previous();
            if (FIRST != PACK_NONE)
                at = few_produce<ring, FIRST>(work.job[1], &work.map[1], at, first, smem, ws, &s,
                                              &r);
            few_produce<ring, MODE>(work.job[0], &work.map[0], at, begun, smem, ws, &s, &r);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
        after_previous();
        if (FIRST != PACK_NONE)
            at = few_consume<ring, FIRST>(work.job[1], at, smem, ws, turns, &s, &r);
        few_consume<ring, MODE>(work.job[0], at, smem, ws, turns, &s, &r);
    }
}
