/* Index scores (kernels/index.h): a plain kernel for any shape, and two on the matrix units.
 *
 * Those: up to 32 heads of 128 dims. Queries are quantised once per row, in a permuted order of
 * columns in which 16 bytes of a stored key are a thread's part of every fragment; keys are decoded
 * to bf16, which is exact, in registers. Both kernels form the same products and add them in the
 * same order: 16 columns at a time, heads of a residue mod 8 in a row, the eight residues in a
 * tree. So which of them runs is a choice of speed. */
#include "kernels/cuda/index.cuh"
#include "kernels/cuda/index_mma.cuh"
#include "kernels/cuda/launch.cuh"

/* ---- any shape ---- */

#define AT_ONCE 8 /* entries of a warp that share the loads of q */
#define ENTRIES (WARPS * AT_ONCE)

/* Block (e, row): ENTRIES entries of a row. A lane is a head: it walks over the columns of its
 * query while the keys are broadcast; then the heads are added in a fixed tree. */
static __global__ void scores_kernel(index_scores_args a, step s,
                                     const __grid_constant__ kv_layout l, candidates filter)
{
    after_previous();

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
            tiles = (int)((most + KEYS - 1) / KEYS);
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
    after_previous();

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
    uint32_t s = scale_pair(key.scale);

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
    after_previous();

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

/* Groups of fewer rows than this go to the kernel for few, when there are others. */
#define MIN_GROUP 3

/* Whether a tile never crosses from one block of a sequence into the next. */
static bool whole_tiles(const index_scores_args *a)
{
    return KV_BLOCK_TOKENS / a->layout->owner[a->owner].ratio % KEYS == 0 &&
           a->layout->key_bytes == KEY_WORDS * sizeof(uint32_t);
}

static bool scores_mma(cuda_impl *c, const index_scores_args *a)
{
    const step *s = a->s;
    bool groups = !a->filter && s->n_rows > s->n_seqs && whole_tiles(a);
    int min_group = s->n_seqs == 1 ? 1 : MIN_GROUP;
    query_scratch scratch = {c->s.query, c->s.query_w, c->s.query_n, (row_group *)c->s.group};
    dim3 grid((unsigned)((a->stride + SPAN - 1) / SPAN), (unsigned)a->n);

    if (a->layout->index_dim != QUERY_DIM || a->heads > QUERY_HEADS || a->layout->key_bytes % 4)
        return false;
    launch(c, "index_scores", queries_kernel, dim3((unsigned)(a->n + groups), QUERY_PARTS), THREADS,
           0, *a, *s, *a->layout, by_value(a->filter), min_group,
           (float)(1.0 / sqrt((double)QUERY_DIM) / sqrt((double)a->heads)), scratch);
    if (groups)
        cuda_score_groups(c, a, &scratch);
    if (!groups || min_group > 1)
        launch(c, "index_scores", scores_few_kernel, grid, THREADS, 0, *a, *s, *a->layout,
               by_value(a->filter), scratch, groups ? min_group - 1 : 0);
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
    launch(c, "index_scores", scores_kernel, grid, THREADS, smem, *a, *a->s, *a->layout,
           by_value(a->filter));
}
