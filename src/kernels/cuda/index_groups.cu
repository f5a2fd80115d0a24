/* Index scores of groups of rows: keys as rows of wgmma, the heads of 8 rows as its columns.
 *
 * Three warpgroups of a block: one decodes tiles of KEYS keys into a ring in shared memory, two
 * multiply them by the queries of 8 rows each, which stay there, and add heads. Of a group of up to
 * 8 rows, the two take every other tile. They take turns at the matrix units, so that one adds
 * heads while the other multiplies. */

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/index_mma.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma.cuh"

#define ROWS          8                    /* of a warpgroup */
#define COLUMNS       (ROWS * QUERY_HEADS) /* of its product */
#define QUERY_HALF    (COLUMNS * 128)      /* bytes of 64 columns of 8 rows' queries */
#define KEY_HALF      (KEYS * 128)         /* of a tile of keys */
#define STAGES        4
#define GROUP_THREADS 384
#define GROUP_SMEM    (4 * QUERY_HALF + STAGES * 2 * KEY_HALF)

typedef struct group_smem {
    float w[TOGETHER][4][8]; /* of heads, as a thread of add_heads wants them */
    uint64_t full[STAGES], empty[STAGES];
} group_smem;

/* Where a block is: its tiles [from, to), a group at a time. */
typedef struct group_walk {
    int from, to, group;
} group_walk;

static __device__ group_walk walk_of(const row_group *group)
{
    int64_t n_tiles = group[0].before;
    int behind = group[0].n + 1;
    group_walk w = {(int)(n_tiles * blockIdx.x / gridDim.x),
                    (int)(n_tiles * (blockIdx.x + 1) / gridDim.x), 1};

    while (behind - w.group > 1) { /* the group of the first tile */
        int mid = (w.group + behind) / 2;

        if (group[mid].before <= w.from)
            w.group = mid;
        else
            behind = mid;
    }
    return w;
}

static __device__ __forceinline__ void everyone(void)
{
    asm volatile("bar.sync 0, %0;" ::"n"(GROUP_THREADS) : "memory");
}

/* Queries of a group into shared memory: [8 rows][half of the columns][row][head]. All threads. */
static __device__ __forceinline__ void place_queries(uint8_t *to, group_smem *m,
                                                     const query_scratch &s, const row_group &g)
{
    const uint4 *from = (const uint4 *)(s.q + (int64_t)g.first * QUERY_HEADS * QUERY_DIM);
    int rows = g.n > ROWS ? 2 * ROWS : ROWS;

    everyone(); /* nobody needs the last group's */
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * QUERY_HEADS * 16; i += GROUP_THREADS) {
        int row = i / 16, part = i % 16;
        uint4 v = row < g.n * QUERY_HEADS ? from[i] : make_uint4(0, 0, 0, 0);

        *(uint4 *)(to + (row / COLUMNS * 2 + part / 8) * QUERY_HALF + row % COLUMNS * 128 +
                   ((part % 8 ^ row % 8) << 4)) = v;
    }
    for (int i = threadIdx.x; i < TOGETHER * QUERY_HEADS; i += GROUP_THREADS) {
        int row = i / QUERY_HEADS, h = i % QUERY_HEADS;

        m->w[row][h % 8 / 2][h / 8 * 2 + h % 2] =
            row < g.n ? s.w[(g.first + row) * QUERY_HEADS + h] : 0;
    }
    fence_shared();
    everyone();
}

/* Words of a tile's keys: thread i has word i % 16 of keys i / 16, i / 16 + 8, .. */
#define MY_WORDS (KEYS / 8)

typedef struct tile_words {
    uint32_t code[MY_WORDS], scale[MY_WORDS];
} tile_words;

static __device__ __forceinline__ void fetch_tile(tile_words &t, const uint8_t *keys)
{
    int th = threadIdx.x % 128;
    const uint32_t *words = (const uint32_t *)keys + th / 16 * KEY_WORDS;

#pragma unroll
    for (int i = 0; i < MY_WORDS; i++) {
        t.code[i] = words[8 * i * KEY_WORDS + th % 16];
        t.scale[i] = words[8 * i * KEY_WORDS + KEY_WORDS - 1];
    }
}

/* The columns as query_place says: four bytes in each of four steps and halves. */
static __device__ __forceinline__ void place_tile(uint8_t *tile, const tile_words &t)
{
    int th = threadIdx.x % 128, group = th % 16 / 4, word = th % 4, key = th / 16;
    uint8_t *to = tile + word / 2 * KEY_HALF + key * 128 + group * 4;

#pragma unroll
    for (int i = 0; i < MY_WORDS; i++) {
        uint32_t v[4];

        decode_key(v, t.code[i], scale_pair(t.scale[i] >> 8 * group & 255u));
#pragma unroll
        for (int c = 0; c < 4; c++)
            *(uint32_t *)(to + i * 8 * 128 + ((word % 2 * 4 + c) ^ key) * 16) = v[c];
    }
}

/* Address of a tile. A tile lies in one block of the sequence. */
static __device__ __forceinline__ const uint8_t *tile_at(const key_table &k, uint32_t tile)
{
    uint32_t entry = tile * KEYS;

    return k.base + (size_t)k.table[entry / k.per_block] * k.block_bytes +
           entry % k.per_block * k.key_bytes;
}

static __device__ __forceinline__ void decode_tiles(const index_scores_args &a, const step &s,
                                                    const kv_layout &l, const query_scratch &q,
                                                    uint8_t *queries, uint8_t *ring, group_smem *m)
{
    group_walk at = walk_of(q.group);
    int stage = 0, phase = 1;

    while (at.from < at.to) {
        row_group g = q.group[at.group++];
        int n = min(at.to - g.before, g.tiles), tile = at.from - g.before;
        key_table keys = keys_of(l, &s.view[s.seq[a.row0 + g.first]], a.owner);
        tile_words next;

        place_queries(queries, m, q, g);
        fetch_tile(next, tile_at(keys, tile));
        at.from = g.before + n;
        for (; tile < n; tile++) {
            barrier_wait(&m->empty[stage], phase);
            place_tile(ring + stage * 2 * KEY_HALF, next);
            fence_shared();
            barrier_arrive(&m->full[stage]);
            fetch_tile(next, tile_at(keys, min(tile + 1, n - 1)));
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
    }
}

/* Weighted sums over the heads of two keys (lane / 4 and 8 behind) and all rows of the group: out
 * [2 * key + i] for row 4 * (lane & 1) + (lane & 2) + i. */
static __device__ __forceinline__ void add_heads(float (&out)[4], const float (&d)[COLUMNS / 2],
                                                 const float (*w)[4][8])
{
    int t = threadIdx.x % 4;
    float sum[ROWS][2];

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float4 w0 = *(const float4 *)&w[r][t][0], w1 = *(const float4 *)&w[r][t][4];
        float wt[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};

#pragma unroll
        for (int key = 0; key < 2; key++) {
            float x[2];

#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float *v = &d[r * 16 + 2 * key + e];

                x[e] = fmaxf(v[0], 0.0f) * wt[e];
#pragma unroll
                for (int j = 1; j < 4; j++)
                    x[e] = fmaf(fmaxf(v[4 * j], 0.0f), wt[2 * j + e], x[e]);
            }
            sum[r][key] = x[0] + x[1];
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int key = 0; key < 2; key++) {
            float keep = t & 1 ? sum[r + 4][key] : sum[r][key];
            float give = t & 1 ? sum[r][key] : sum[r + 4][key];

            sum[r][key] = keep + __shfl_xor_sync(ALL, give, 1);
        }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int key = 0; key < 2; key++) {
            float keep = t & 2 ? sum[r + 2][key] : sum[r][key];
            float give = t & 2 ? sum[r][key] : sum[r + 2][key];

            out[2 * key + r] = keep + __shfl_xor_sync(ALL, give, 2);
        }
}

static __device__ __forceinline__ void turn_wait(int wg)
{
    asm volatile("bar.sync %0, 256;" ::"r"(1 + wg) : "memory");
}

static __device__ __forceinline__ void turn_pass(int wg)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - wg) : "memory");
}

/* One tile by a warpgroup: its products, and (behind its turn) the sums of heads. */
static __device__ __forceinline__ void multiply_tile(float (&d)[COLUMNS / 2], const uint8_t *tile,
                                                     const uint8_t *queries)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 8; i++)
        wgmma<COLUMNS>::bf16_ss(d, matrix_descriptor(tile + i / 4 * KEY_HALF) + i % 4 * 2,
                                matrix_descriptor(queries + i / 4 * QUERY_HALF) + i % 4 * 2, i > 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void multiply_tiles(const index_scores_args &a,
                                                      const query_scratch &q, uint8_t *queries,
                                                      uint8_t *ring, group_smem *m)
{
    group_walk at = walk_of(q.group);
    int wg = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, t = lane % 4, stage = 0, phase = 0;

    if (wg == 1)
        turn_pass(1); /* the first one begins */
    while (at.from < at.to) {
        row_group g = q.group[at.group++];
        int n = min(at.to - g.before, g.tiles), tile = at.from - g.before;
        bool both = g.n > ROWS, last = g.before + n == at.to, mine = both || wg == 0;
        int row0 = both ? wg * ROWS : 0, r = row0 + 4 * (t & 1) + (t & 2), own[2];
        int e = tile * KEYS + threadIdx.x % 128 / 32 * 16 + lane / 4;
        float *score = a.scores + (g.first + r) * a.stride;

        for (int i = 0; i < 2; i++)
            own[i] = r + i < g.n ? q.n[g.first + r + i] : 0;
        place_queries(queries, m, q, g);
        at.from = g.before + n;
        for (; tile < n; tile++, e += KEYS) {
            float d[COLUMNS / 2], x[4];

            barrier_wait(&m->full[stage], phase);
            if (mine) {
                turn_wait(wg);
                multiply_tile(d, ring + stage * 2 * KEY_HALF,
                              queries + row0 / ROWS * 2 * QUERY_HALF);
                if (!(last && wg == 1 && tile + 1 == n))
                    turn_pass(wg);
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            }
            if (lane == 0) /* each warp: the others may be behind */
                barrier_arrive(&m->empty[stage]);
            if (mine) {
                add_heads(x, d, m->w + row0);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (e + i / 2 * 8 < own[i % 2])
                        score[i % 2 * a.stride + e + i / 2 * 8] = x[i];
            }
            mine = both || !mine;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        if (!both && wg == 1 && mine) { /* the odd tile went without this one */
            turn_wait(1);
            if (!last)
                turn_pass(1);
        }
    }
}

/* As many blocks as processors, which share out the tiles of all groups evenly. */
static __global__ __launch_bounds__(GROUP_THREADS,
                                    1) void scores_group_kernel(index_scores_args a, step s,
                                                                const __grid_constant__ kv_layout l,
                                                                query_scratch q)
{
    after_previous();

    extern __shared__ __align__(1024) uint8_t queries[];
    __shared__ __align__(16) group_smem m;
    uint8_t *ring = queries + 4 * QUERY_HALF;

    if (threadIdx.x < STAGES) {
        barrier_init(&m.full[threadIdx.x], 128);
        barrier_init(&m.empty[threadIdx.x], 8);
    }
    barriers_made();
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        decode_tiles(a, s, l, q, queries, ring, &m);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
        multiply_tiles(a, q, queries, ring, &m);
    }
}

void cuda_score_groups(cuda_impl *c, const index_scores_args *a, const query_scratch *q)
{
    cuda_note(c,
              cudaFuncSetAttribute((const void *)scores_group_kernel,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, GROUP_SMEM),
              "index_scores");
    launch(c, "index_scores", scores_group_kernel, c->n_processors, GROUP_THREADS, GROUP_SMEM, *a,
           *a->s, *a->layout, *q);
}
