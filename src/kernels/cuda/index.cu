/* Index scores (kernels/index.h): a plain kernel for any shape, and two on the matrix units.
 *
 * Those: up to 32 heads of 128 dims. Queries are quantised once per row, in a permuted order of
 * columns in which 16 bytes of a stored key are a thread's part of every fragment; keys are decoded
 * to bf16, which is exact, in registers. Both kernels form the same products and add them in the
 * same order: 16 columns at a time, heads of a residue mod 8 in a row, the eight residues in a
 * tree. So which of them runs is a choice of speed. */
#include "kernels/cuda/index.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/wgmma.cuh"

/* ---- any shape ---- */

#define AT_ONCE 8 /* entries of a warp that share the loads of q */
#define ENTRIES (WARPS * AT_ONCE)

/* Block (e, row): ENTRIES entries of a row. A lane is a head: it walks over the columns of its
 * query while the keys are broadcast; then the heads are added in a fixed tree. */
static __global__ void scores_kernel(index_scores_args a, step s,
                                     const __grid_constant__ kv_layout l, candidates filter)
{
    extern __shared__ float smem[];
    float *q = smem, *key = smem + a.heads * l.index_dim; /* [dim][heads], [ENTRIES][dim] */
    int64_t dim = l.index_dim, heads = a.heads, row = a.row0 + blockIdx.y;
    int64_t visible = (s.pos[row] + 1) / l.owner[a.owner].ratio;
    int64_t eligible = eligible_of(filter, row, visible), e0 = (int64_t)blockIdx.x * ENTRIES;
    bool blocks = a.source_blocks > 0 && (visible + a.block - 1) / a.block > a.source_blocks;
    const kv_view *v = &s.view[s.seq[row]];
    const bf16 *iq = (const bf16 *)a.iq + row * heads * dim;
    const float *cs = a.cs + row * a.rope;
    float norm = (float)(1.0 / sqrt((double)dim) / sqrt((double)heads));
    float sum[AT_ONCE] = {0};

    if ((eligible <= a.topk && !blocks) || e0 >= eligible)
        return;
    for (int64_t i = threadIdx.x; i < heads * dim; i += THREADS) { /* whole warps */
        int64_t h = i / dim, d = i % dim, nope = dim - a.rope;
        float x = from_bf(iq[i]), other = __shfl_xor_sync(ALL, x, 1), sc;

        if (d >= nope) {
            const float *turn = cs + (d - nope) / 2 * 2;
            float first = d & 1 ? other : x, second = d & 1 ? x : other;

            rotate(&first, &second, turn[0], turn[1]);
            x = d & 1 ? second : first;
        }
        sc = pow2_ceil(fmaxf(lanes_max(fabsf(x), 32), 6.0f * 0x1p-126f) * (1.0f / 6.0f));
        q[d * heads + h] = e2m1(to_e2m1(fminf(fmaxf(x / sc, -6.0f), 6.0f))) * sc;
    }
    for (int64_t i = threadIdx.x; i < ENTRIES * dim; i += THREADS) {
        int64_t e = e0 + i / dim, d = i % dim;
        float x = 0;

        if (e < eligible) {
            const uint8_t *at = kv_key(&l, v, a.owner, eligible_entry(filter, row, e));

            x = e2m1(at[d / 2] >> (4 * (d & 1)) & 15u) * ue8m0(at[dim / 2 + d / 32]);
        }
        key[i] = x;
    }
    __syncthreads();
    key += threadIdx.x / 32 * AT_ONCE * dim;
    for (int64_t h0 = 0; h0 < heads; h0 += 32) {
        int64_t h = h0 + threadIdx.x % 32;
        float dot[AT_ONCE] = {0}, w = 0;

        if (h < heads) {
            w = bf16_round(from_bf(((const bf16 *)a.iw)[row * heads + h]) * norm);
            for (int64_t d = 0; d < dim; d++) {
                float x = q[d * heads + h];

#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
                    dot[j] = fmaf(x, key[j * dim + d], dot[j]);
            }
        }
        for (int j = 0; j < AT_ONCE; j++)
            sum[j] += warp_sum(fmaxf(dot[j], 0.0f) * w);
    }
    for (int j = 0; j < AT_ONCE; j++) {
        int64_t e = e0 + threadIdx.x / 32 * AT_ONCE + j;

        if (threadIdx.x % 32 == 0 && e < eligible)
            a.scores[blockIdx.y * a.stride + e] = sum[j];
    }
}

/* ---- queries, and rows that share their keys ---- */

#define QUERY_DIM   128
#define QUERY_HEADS 32
#define TOGETHER    8   /* rows of a group */
#define PAIR        128 /* keys of a tile: 64 for each of two warpgroups */

/* Consecutive rows of one sequence; the tiles of the groups before it. */
typedef struct row_group {
    int first, n, before, tiles;
} row_group;

typedef struct query_scratch {
    bf16 *q;    /* [rows][QUERY_HEADS][QUERY_DIM] behind rope and Q4i; missing heads are zero */
    float *w;   /* [rows][QUERY_HEADS] */
    int32_t *n; /* [rows] entries that get a score */
    row_group *group; /* [0]: how many (n) and all their tiles (before); the groups follow */
} query_scratch;

/* Where column d of a query lies. A thread t of four has columns 32 t .. 32 t + 31 of a key; word i
 * of these, columns k and k + 4 of it in a register, feeds steps 2 i and 2 i + 1 of 16 columns. */
static __device__ __forceinline__ int query_place(int d)
{
    int t = d / 32, word = d / 8 % 4, second = d / 4 % 2, step = d / 2 % 2, half = d % 2;

    return word * 32 + step * 16 + half * 8 + t * 2 + second;
}

/* Entries of a row, 0 when it needs no scores. */
static __device__ int64_t scored_entries(const index_scores_args &a, const step &s,
                                         const kv_layout &l, const candidates &filter, int64_t row)
{
    int64_t visible = visible_of(s, l, a.owner, row), n = eligible_of(filter, row, visible);

    return n <= a.topk && !has_blocks(visible, a.block, a.source_blocks) ? 0 : n;
}

/* Rows of the group of a row of the call: from the first row of its sequence on, TOGETHER by
 * TOGETHER. */
static __device__ row_group group_of(const index_scores_args &a, const step &s, int i)
{
    int64_t row = a.row0 + i, seq = s.seq[row];
    int begin = max(s.row0[seq] - a.row0, 0), end = min(s.row0[seq + 1] - a.row0, a.n);
    int first = begin + (i - begin) / TOGETHER * TOGETHER;

    return {first, min(TOGETHER, end - first), 0, 0};
}

/* One block: the groups of at least min_group rows that have scores, in order. */
static __device__ void list_groups(const index_scores_args &a, const step &s, const kv_layout &l,
                                   int min_group, row_group *group)
{
    __shared__ int part[2][WARPS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_groups = 0, n_tiles = 0;
    candidates none = {};

    for (int i0 = 0; i0 < a.n; i0 += THREADS) {
        int i = i0 + threadIdx.x, tiles = 0, groups, sum;
        row_group g = {};

        if (i < a.n)
            g = group_of(a, s, i);
        if (i < a.n && g.first == i && g.n >= min_group) {
            int64_t most = 0;

            for (int r = 0; r < g.n; r++)
                most = max(most, scored_entries(a, s, l, none, a.row0 + i + r));
            tiles = (int)((most + PAIR - 1) / PAIR);
        }
        g.tiles = sum = tiles;
        groups = tiles > 0;
        for (int d = 1; d < 32; d *= 2) {
            int x = __shfl_up_sync(ALL, sum, d), y = __shfl_up_sync(ALL, groups, d);

            sum += lane >= d ? x : 0;
            groups += lane >= d ? y : 0;
        }
        __syncthreads();
        if (lane == 31) {
            part[0][warp] = sum;
            part[1][warp] = groups;
        }
        __syncthreads();
        for (int w = 0; w < warp; w++) {
            sum += part[0][w];
            groups += part[1][w];
        }
        if (tiles > 0) {
            g.before = n_tiles + sum - tiles;
            group[n_groups + groups] = g;
        }
        for (int w = 0; w < WARPS; w++) {
            n_tiles += part[0][w];
            n_groups += part[1][w];
        }
    }
    if (threadIdx.x == 0)
        group[0] = {0, n_groups, n_tiles, 0};
}

#define QUERY_PARTS 4 /* blocks of a row */

/* Block (row, part of its heads), 16 lanes per 32 dims of a head; one more block of part 0 for the
 * groups. */
static __global__ void queries_kernel(index_scores_args a, step s,
                                      const __grid_constant__ kv_layout l, candidates filter,
                                      int min_group, float norm, query_scratch out)
{
    const int PAIRS = QUERY_HEADS * QUERY_DIM / 2 / QUERY_PARTS, EACH = PAIRS / THREADS;
    int64_t row = blockIdx.x, pair0 = blockIdx.y * PAIRS;
    const uint32_t *iq =
        (const uint32_t *)((const bf16 *)a.iq + (a.row0 + row) * a.heads * QUERY_DIM);
    const float *cs = a.cs + (a.row0 + row) * a.rope;
    bf16 *q = out.q + row * QUERY_HEADS * QUERY_DIM;
    int nope = QUERY_DIM - a.rope;
    uint32_t in[EACH];

    if (row == a.n) {
        if (blockIdx.y == 0)
            list_groups(a, s, l, min_group, out.group);
        return;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int64_t i = pair0 + j * THREADS + threadIdx.x;

        in[j] = i < a.heads * QUERY_DIM / 2 ? iq[i] : 0;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = 2 * (int)(pair0 + j * THREADS + threadIdx.x), d = i % QUERY_DIM;
        float x = from_bf((bf16)in[j]), y = from_bf((bf16)(in[j] >> 16)), sc;

        if (d >= nope)
            rotate(&x, &y, cs[d - nope], cs[d - nope + 1]);
        sc = lanes_max(fmaxf(fabsf(x), fabsf(y)), 16);
        sc = pow2_ceil(fmaxf(sc, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
        q[i - d + query_place(d)] = to_bf(e2m1(to_e2m1(fminf(fmaxf(x / sc, -6.0f), 6.0f))) * sc);
        q[i - d + query_place(d + 1)] =
            to_bf(e2m1(to_e2m1(fminf(fmaxf(y / sc, -6.0f), 6.0f))) * sc);
    }
    if (blockIdx.y > 0)
        return;
    if (threadIdx.x == 32)
        out.n[row] = (int32_t)scored_entries(a, s, l, filter, a.row0 + row);
    if (threadIdx.x < QUERY_HEADS) {
        int h = threadIdx.x;

        out.w[row * QUERY_HEADS + h] =
            h < a.heads
                ? bf16_round(from_bf(((const bf16 *)a.iw)[(a.row0 + row) * a.heads + h]) * norm)
                : 0;
    }
}

/* ---- keys ---- */

/* A thread's 32 dims of a key, as stored. */
typedef struct key_words {
    uint32_t code[4], scale;
} key_words;

/* Keys of a sequence. Entries are counted in 32 bits. */
typedef struct key_table {
    const uint8_t *base;
    const int32_t *table;
    size_t block_bytes, key_bytes;
    uint32_t per_block;
} key_table;

static __device__ __forceinline__ key_table keys_of(const kv_layout &l, const kv_view *v, int owner)
{
    return {v->blocks + l.owner[owner].key_off, v->table, l.block_bytes, l.key_bytes,
            KV_BLOCK_TOKENS / (uint32_t)l.owner[owner].ratio};
}

static __device__ __forceinline__ key_words fetch_key(const key_table &k, uint32_t entry,
                                                      int32_t block)
{
    const uint8_t *key = k.base + (size_t)block * k.block_bytes + entry % k.per_block * k.key_bytes;
    const uint32_t *words = (const uint32_t *)key + threadIdx.x % 4 * 4;
    key_words w;

#pragma unroll
    for (int i = 0; i < 4; i++)
        w.code[i] = words[i];
    w.scale = key[QUERY_DIM / 2 + threadIdx.x % 4];
    return w;
}

/* Eight codes of a word to four registers: [2 * step + half] as query_place says. */
static __device__ __forceinline__ void decode_key(uint32_t (&out)[4], uint32_t w, uint32_t s)
{
    const uint32_t SIGN = 0x80008000u, REST = 0x01C001C0u; /* of bf16: 2^-126 times the value */
    uint32_t v[4] = {(w << 12 & SIGN) | (w << 6 & REST), (w << 8 & SIGN) | (w << 2 & REST),
                     (w << 4 & SIGN) | (w >> 2 & REST), (w & SIGN) | (w >> 6 & REST)};

#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = mul_bf16x2(mul_bf16x2(v[i], both(BF16_2_POW(126))), s);
}

/* The power of two in both halves. 2^-127, below all others, is subnormal in bf16. */
static __device__ __forceinline__ uint32_t key_scale(const key_words &w)
{
    return both(w.scale ? (bf16)(w.scale << 7) : (bf16)0x40);
}

/* ---- a few rows: keys as columns, a warp 8 of them at a time ---- */

#define SPAN 512

/* Fragments of a row's queries: [step of 16 columns][16 heads]. */
static __device__ __forceinline__ void load_query(uint32_t (&q)[8][2][4], float (&w)[4],
                                                  const query_scratch &s, int64_t row)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t *from = (const uint32_t *)(s.q + row * QUERY_HEADS * QUERY_DIM);

#pragma unroll
    for (int k = 0; k < 8; k++)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[k][m][i] =
                    from[((m * 16 + g + i % 2 * 8) * QUERY_DIM + k * 16 + i / 2 * 8) / 2 + t];
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = s.w[row * QUERY_HEADS + g + 8 * i];
}

/* Scores of 8 keys; valid in lanes 0..3, two each. */
static __device__ __forceinline__ float2 score8(const uint32_t (&q)[8][2][4], const float (&w)[4],
                                                const key_words &key)
{
    float d[2][4] = {}, x, y;
    uint32_t s = key_scale(key);

#pragma unroll
    for (int k = 0; k < 8; k += 2) {
        uint32_t b[4];

        decode_key(b, key.code[k / 2], s);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mma(d[m], q[k][m], b[0], b[1]);
            mma(d[m], q[k + 1][m], b[2], b[3]);
        }
    }
    x = fmaf(fmaxf(d[0][2], 0.0f), w[1], fmaxf(d[0][0], 0.0f) * w[0]);
    y = fmaf(fmaxf(d[0][3], 0.0f), w[1], fmaxf(d[0][1], 0.0f) * w[0]);
    x = fmaf(fmaxf(d[1][0], 0.0f), w[2], x);
    y = fmaf(fmaxf(d[1][1], 0.0f), w[2], y);
    x = fmaf(fmaxf(d[1][2], 0.0f), w[3], x);
    y = fmaf(fmaxf(d[1][3], 0.0f), w[3], y);
#pragma unroll
    for (int i = 4; i < 32; i *= 2) {
        x += __shfl_xor_sync(ALL, x, i);
        y += __shfl_xor_sync(ALL, y, i);
    }
    return make_float2(x, y);
}

/* Block (span of entries, row). Rows of larger groups are left to the other kernel. */
static __global__ __launch_bounds__(THREADS,
                                    2) void scores_few_kernel(index_scores_args a, step s,
                                                              const __grid_constant__ kv_layout l,
                                                              candidates filter,
                                                              query_scratch scratch, int max_group)
{
    int64_t row = a.row0 + blockIdx.y;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t n = (uint32_t)scratch.n[blockIdx.y], e = blockIdx.x * SPAN, end;
    key_table keys = keys_of(l, &s.view[s.seq[row]], a.owner);
    float *score = a.scores + blockIdx.y * a.stride;
    auto fetch = [&](uint32_t at) {
        uint32_t entry = eligible_entry(filter, row, min(at, n - 1));

        return fetch_key(keys, entry, keys.table[entry / keys.per_block]);
    };
    uint32_t q[8][2][4];
    float w[4];
    key_words next;

    if (e >= n || (max_group && group_of(a, s, blockIdx.y).n > max_group))
        return;
    end = min(n, e + SPAN);
    e += warp * 8;
    next = fetch(e + lane / 4);
    load_query(q, w, scratch, blockIdx.y);
    for (; e < end; e += WARPS * 8) {
        key_words key = next;
        float2 x;
        uint32_t at = e + 2 * lane;

        next = fetch(e + WARPS * 8 + lane / 4);
        x = score8(q, w, key);
        if (lane < 4 && at < end)
            score[at] = x.x;
        if (lane < 4 && at + 1 < end)
            score[at + 1] = x.y;
    }
}

/* ---- groups of rows: keys as rows of wgmma, the heads of 8 rows as its columns ---- */

#define COLUMNS   (TOGETHER * QUERY_HEADS)
#define HALF_SIZE (COLUMNS * 128) /* bytes of 64 columns of all queries */

static __device__ __forceinline__ uint32_t shared_of(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Rows of 128 bytes, 128-byte swizzle. A step of 16 columns adds 2. */
static __device__ __forceinline__ uint64_t b_descriptor(const void *p)
{
    return (uint64_t)((shared_of(p) & 0x3FFFFu) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

/* Queries of a group into shared memory: [half of the columns][row][head]. */
static __device__ void place_queries(uint8_t *to, float (*w)[4][8], const query_scratch &s,
                                     const row_group &g)
{
    const uint4 *from = (const uint4 *)(s.q + (int64_t)g.first * QUERY_HEADS * QUERY_DIM);

    for (int i = threadIdx.x; i < COLUMNS * 16; i += THREADS) {
        int row = i / 16, part = i % 16;
        uint4 v = row < g.n * QUERY_HEADS ? from[i] : make_uint4(0, 0, 0, 0);

        *(uint4 *)(to + part / 8 * HALF_SIZE + row * 128 + ((part % 8 ^ row % 8) << 4)) = v;
    }
    for (int i = threadIdx.x; i < COLUMNS; i += THREADS) {
        int row = i / QUERY_HEADS, h = i % QUERY_HEADS;

        w[row][h % 8 / 2][h / 8 * 2 + h % 2] =
            row < g.n ? s.w[(g.first + row) * QUERY_HEADS + h] : 0;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Weighted sums over the heads of two keys (lane / 4 and 8 behind) and all rows of the group: out
 * [2 * key + i] for row 4 * (lane & 1) + (lane & 2) + i. */
static __device__ __forceinline__ void add_heads(float (&out)[4], const float (&d)[COLUMNS / 2],
                                                 const float (*w)[4][8])
{
    int t = threadIdx.x % 4;
    float sum[TOGETHER][2];

#pragma unroll
    for (int r = 0; r < TOGETHER; r++) {
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

/* Tiles [from, to) of a group by two warpgroups, which take turns at the matrix units: one adds
 * heads and decodes while the other multiplies. `last`: no more tiles follow. */
static __device__ __forceinline__ void score_tiles(const index_scores_args &a, const step &s,
                                                   const kv_layout &l, const row_group &g,
                                                   uint32_t from, uint32_t to, bool last,
                                                   const query_scratch &scratch,
                                                   const uint8_t *queries, const float (*w)[4][8])
{
    int wg = threadIdx.x / 128, lane = threadIdx.x % 32, t = lane % 4;
    int r = 4 * (t & 1) + (t & 2);
    key_table keys = keys_of(l, &s.view[s.seq[a.row0 + g.first]], a.owner);
    uint32_t most = 0, own[2], e = from * PAIR + threadIdx.x / 32 * 16 + lane / 4;
    float *score = a.scores + (g.first + r) * a.stride;
    int32_t block[2];
    key_words next[2];
    int32_t entries[TOGETHER];

#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        entries[i] = i < g.n ? scratch.n[g.first + i] : 0;
        most = max(most, (uint32_t)entries[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        own[i] = t == 0   ? entries[i]
                 : t == 1 ? entries[4 + i]
                 : t == 2 ? entries[2 + i]
                          : entries[6 + i];
    most--; /* entries behind are not fetched */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t at = min(e + 8 * i, most);

        next[i] = fetch_key(keys, at, keys.table[at / keys.per_block]);
        block[i] = keys.table[min(e + PAIR + 8 * i, most) / keys.per_block];
    }
    for (uint32_t tile = from; tile < to; tile++, e += PAIR) {
        float d[COLUMNS / 2], x[4];
        uint32_t k[8][4], scale[2] = {key_scale(next[0]), key_scale(next[1])};

#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t v[2][4];

            decode_key(v[0], next[0].code[i], scale[0]);
            decode_key(v[1], next[1].code[i], scale[1]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                k[2 * i + h][0] = v[0][2 * h];
                k[2 * i + h][1] = v[1][2 * h];
                k[2 * i + h][2] = v[0][2 * h + 1];
                k[2 * i + h][3] = v[1][2 * h + 1];
            }
        }
        turn_wait(wg);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 8; i++)
            wgmma<COLUMNS>::bf16_rs(d, k[i], b_descriptor(queries + i / 4 * HALF_SIZE) + i % 4 * 2,
                                    i > 0);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (!(last && wg == 1 && tile == to - 1))
            turn_pass(wg);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            next[i] = fetch_key(keys, min(e + PAIR + 8 * i, most), block[i]);
            block[i] = keys.table[min(e + 2 * PAIR + 8 * i, most) / keys.per_block];
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        add_heads(x, d, w);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (e + i / 2 * 8 < own[i % 2])
                score[i % 2 * a.stride + e + i / 2 * 8] = x[i];
    }
}

/* As many blocks as processors, which share out the tiles of all groups evenly. */
static __global__ __launch_bounds__(THREADS,
                                    1) void scores_group_kernel(index_scores_args a, step s,
                                                                const __grid_constant__ kv_layout l,
                                                                query_scratch scratch)
{
    extern __shared__ __align__(1024) uint8_t queries[];
    __shared__ __align__(16) float w[TOGETHER][4][8];
    int64_t n_tiles = scratch.group[0].before;
    int from = (int)(n_tiles * blockIdx.x / gridDim.x), group = 1;
    int to = (int)(n_tiles * (blockIdx.x + 1) / gridDim.x), behind = scratch.group[0].n + 1;

    if (from >= to)
        return;
    while (behind - group > 1) { /* the group of the first tile */
        int mid = (group + behind) / 2;

        if (scratch.group[mid].before <= from)
            group = mid;
        else
            behind = mid;
    }
    if (threadIdx.x >= 128)
        turn_pass(1); /* the first warpgroup begins */
    while (from < to) {
        row_group g = scratch.group[group++];
        int end = min(to, g.before + g.tiles);

        __syncthreads();
        place_queries(queries, w, scratch, g);
        __syncthreads();
        score_tiles(a, s, l, g, (uint32_t)(from - g.before), (uint32_t)(end - g.before), end == to,
                    scratch, queries, w);
        from = end;
    }
}

/* Groups of fewer rows than this go to the kernel for few, when there are others. */
#define MIN_GROUP 3

static bool scores_mma(cuda_impl *c, const index_scores_args *a)
{
    const step *s = a->s;
    const int bytes = 2 * HALF_SIZE;
    bool groups = !a->filter && s->n_rows > s->n_seqs;
    int min_group = s->n_seqs == 1 ? 1 : MIN_GROUP;
    query_scratch scratch = {c->s.query, c->s.query_w, c->s.query_n, (row_group *)c->s.group};
    dim3 grid((unsigned)((a->stride + SPAN - 1) / SPAN), (unsigned)a->n);

    if (a->layout->index_dim != QUERY_DIM || a->heads > QUERY_HEADS || a->layout->key_bytes % 4)
        return false;
    queries_kernel<<<dim3((unsigned)(a->n + groups), QUERY_PARTS), THREADS, 0, c->stream>>>(
        *a, *s, *a->layout, by_value(a->filter), min_group,
        (float)(1.0 / sqrt((double)QUERY_DIM) / sqrt((double)a->heads)), scratch);
    cuda_launched(c, "index_scores");
    if (groups) {
        cuda_note(c,
                  cudaFuncSetAttribute((const void *)scores_group_kernel,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "index_scores");
        scores_group_kernel<<<c->n_processors, THREADS, bytes, c->stream>>>(*a, *s, *a->layout,
                                                                            scratch);
        cuda_launched(c, "index_scores");
    }
    if (!groups || min_group > 1) {
        scores_few_kernel<<<grid, THREADS, 0, c->stream>>>(*a, *s, *a->layout, by_value(a->filter),
                                                           scratch, groups ? min_group - 1 : 0);
        cuda_launched(c, "index_scores");
    }
    return true;
}

void cuda_index_scores(cuda_impl *c, const index_scores_args *a)
{
    size_t dim = (size_t)a->layout->index_dim;
    size_t smem = ((size_t)a->heads * dim + ENTRIES * dim) * sizeof(float);
    dim3 grid((unsigned)((a->stride + ENTRIES - 1) / ENTRIES), (unsigned)a->n);

    if (scores_mma(c, a))
        return;
    cuda_note(c,
              cudaFuncSetAttribute((const void *)scores_kernel,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
              "index_scores");
    scores_kernel<<<grid, THREADS, smem, c->stream>>>(*a, *a->s, *a->layout, by_value(a->filter));
    cuda_launched(c, "index_scores");
}
