/* Indexer: scores and selection (kernels/index.h). */
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/order.cuh"

/* A filter or output of candidates, by value; block 0: there is none. */
static candidates by_value(const candidates *c)
{
    candidates none = {};

    return c ? *c : none;
}

/* The e-th eligible entry of a row. Only the last candidate block can be ragged. */
static __device__ int64_t eligible_entry(const candidates &f, int64_t row, int64_t e)
{
    if (f.block == 0 || f.count[row] < 0)
        return e;
    return (int64_t)f.ids[row * f.max_blocks + e / f.block] * f.block + e % f.block;
}

static __device__ int64_t eligible_of(const candidates &f, int64_t row, int64_t visible)
{
    return index_eligible(visible, f.block ? &f : NULL, (int)row);
}

/* ---- scores ---- */

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

/* ---- scores on the matrix units: 128 dims, up to 32 heads ----
 *
 * Queries are quantised once per row. A block takes up to 8 rows and SPAN entries; a tile of 64
 * keys is decoded to bf16 (exact) for all of them. Rows of one sequence share the tile, a warp
 * each; otherwise the warps share a row, 8 keys each. A score has the same products in the same
 * order. */

#define QUERY_DIM   128
#define QUERY_HEADS 32
#define KEYS        64
#define SPAN        1024
#define KEY_STRIDE  (QUERY_DIM + 8)

typedef struct query_scratch {
    bf16 *q;  /* [rows][QUERY_HEADS][QUERY_DIM] behind rope and Q4i; missing heads are zero */
    float *w; /* [rows][QUERY_HEADS] */
} query_scratch;

/* A block per row, a warp per 32 dims of a head. */
static __global__ void queries_kernel(index_scores_args a, query_scratch out)
{
    int64_t row = blockIdx.x;
    const bf16 *iq = (const bf16 *)a.iq + (a.row0 + row) * a.heads * QUERY_DIM;
    const float *cs = a.cs + (a.row0 + row) * a.rope;
    float norm = (float)(1.0 / sqrt((double)QUERY_DIM) / sqrt((double)a.heads));
    int nope = QUERY_DIM - a.rope;

    for (int i = threadIdx.x; i < QUERY_HEADS * QUERY_DIM; i += THREADS) {
        int d = i % QUERY_DIM;
        float x = i / QUERY_DIM < a.heads ? from_bf(iq[i]) : 0, s;
        float other = __shfl_xor_sync(ALL, x, 1);

        if (d >= nope) {
            const float *turn = cs + (d - nope) / 2 * 2;
            float first = d & 1 ? other : x, second = d & 1 ? x : other;

            rotate(&first, &second, turn[0], turn[1]);
            x = d & 1 ? second : first;
        }
        s = pow2_ceil(fmaxf(lanes_max(fabsf(x), 32), 6.0f * 0x1p-126f) * (1.0f / 6.0f));
        out.q[row * QUERY_HEADS * QUERY_DIM + i] =
            to_bf(e2m1(to_e2m1(fminf(fmaxf(x / s, -6.0f), 6.0f))) * s);
    }
    if (threadIdx.x < QUERY_HEADS) {
        int h = threadIdx.x;

        out.w[row * QUERY_HEADS + h] =
            h < a.heads
                ? bf16_round(from_bf(((const bf16 *)a.iw)[(a.row0 + row) * a.heads + h]) * norm)
                : 0;
    }
}

/* Words of 32 dims of one key, as stored. */
typedef struct key_words {
    uint32_t code[4];
    uint8_t scale;
} key_words;

static __device__ key_words fetch_key(const index_scores_args &a, const kv_layout &l,
                                      const kv_view *v, const candidates &filter, int64_t row,
                                      int64_t entry, int64_t n)
{
    key_words w = {};

    if (entry < n) {
        const uint8_t *key = kv_key(&l, v, a.owner, eligible_entry(filter, row, entry));
        int part = threadIdx.x % 4;

#pragma unroll
        for (int i = 0; i < 4; i++)
            w.code[i] = ((const uint32_t *)key)[part * 4 + i];
        w.scale = key[QUERY_DIM / 2 + part];
    }
    return w;
}

static __device__ __forceinline__ void put_key(bf16 *to, const key_words &w)
{
    uint32_t s = both((bf16)(f32_bits(ue8m0(w.scale)) >> 16)), v[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        decode8_e2m1(v, w.code[i], s);
        *(uint4 *)(to + 8 * i) = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

/* Fragments of a row's queries: [step of 16 dims][16 heads]. */
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

/* Scores of 8 keys of the tile for one row; valid in lanes 0..3, two each. */
static __device__ __forceinline__ float2 score8(const uint32_t (&q)[8][2][4], const float (&w)[4],
                                                const bf16 *key)
{
    int lane = threadIdx.x % 32;
    float d[2][4] = {}, x, y;

    key += lane % 8 * KEY_STRIDE + lane / 8 * 8;
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
        uint32_t b[4];

        load_matrices(b, key + k * 16);
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

/* Eligible entries of a row, 0 when it needs no scores. */
static __device__ int64_t scored_entries(const index_scores_args &a, const step &s,
                                         const kv_layout &l, const candidates &filter, int64_t row)
{
    int64_t visible = (s.pos[row] + 1) / l.owner[a.owner].ratio;
    int64_t eligible = eligible_of(filter, row, visible);
    bool blocks = a.source_blocks > 0 && (visible + a.block - 1) / a.block > a.source_blocks;

    return eligible <= a.topk && !blocks ? 0 : eligible;
}

/* Rows first .. first + n - 1 of the call, which share their keys: a warp per row, or (n = 1) all
 * warps on one. */
static __device__ void score_rows(const index_scores_args &a, const step &s, const kv_layout &l,
                                  const candidates &filter, const query_scratch &scratch, int first,
                                  int n, bf16 (*tile)[KEY_STRIDE])
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int mine = n == 1 ? 0 : warp < n ? warp : n - 1; /* a warp without a row repeats the last */
    int64_t row = a.row0 + first, most = 0, own, e0 = (int64_t)blockIdx.x * SPAN, end;
    const kv_view *v = &s.view[s.seq[row]];
    float *score = a.scores + (first + mine) * a.stride;
    uint32_t q[8][2][4];
    float w[4];
    key_words next;

    for (int i = 0; i < n; i++) {
        int64_t entries = scored_entries(a, s, l, filter, row + i);

        most = entries > most ? entries : most;
    }
    own = warp < n || n == 1 ? scored_entries(a, s, l, filter, row + mine) : 0;
    end = most < e0 + SPAN ? most : e0 + SPAN;
    if (e0 >= end)
        return;
    load_query(q, w, scratch, first + mine);
    next = fetch_key(a, l, v, filter, row, e0 + threadIdx.x / 4, end);
    for (; e0 < end; e0 += KEYS) {
        __syncthreads();
        put_key(&tile[threadIdx.x / 4][threadIdx.x % 4 * 32], next);
        __syncthreads();
        next = fetch_key(a, l, v, filter, row, e0 + KEYS + threadIdx.x / 4, end);
        for (int i = n == 1 ? warp : 0; i < (n == 1 ? warp + 1 : KEYS / 8); i++) {
            float2 x = score8(q, w, tile[8 * i]);
            int64_t e = e0 + 8 * i + 2 * lane;

            if (lane < 4 && e < own)
                score[e] = x.x;
            if (lane < 4 && e + 1 < own)
                score[e + 1] = x.y;
        }
    }
}

/* Block (span of entries, `together` rows). */
static __global__ __launch_bounds__(THREADS) void scores_mma_kernel(
    index_scores_args a, step s, const __grid_constant__ kv_layout l, candidates filter,
    query_scratch scratch, int together)
{
    __shared__ __align__(16) bf16 tile[KEYS][KEY_STRIDE];
    int first = (int)blockIdx.y * together, last = min(first + together, a.n);

    while (first < last) {
        int n = 1;

        while (filter.block == 0 && first + n < last &&
               s.seq[a.row0 + first + n] == s.seq[a.row0 + first])
            n++;
        score_rows(a, s, l, filter, scratch, first, n, tile);
        first += n;
    }
}

static bool scores_mma(cuda_impl *c, const index_scores_args *a)
{
    const step *s = a->s;
    int together = !a->filter && s->n_rows >= 2 * s->n_seqs ? 8 : 1;
    query_scratch scratch = {c->s.query, c->s.query_w};
    dim3 grid((unsigned)((a->stride + SPAN - 1) / SPAN),
              (unsigned)((a->n + together - 1) / together));

    if (a->layout->index_dim != QUERY_DIM || a->heads > QUERY_HEADS || a->layout->key_bytes % 4)
        return false;
    queries_kernel<<<a->n, THREADS, 0, c->stream>>>(*a, scratch);
    cuda_launched(c, "index_scores");
    scores_mma_kernel<<<grid, THREADS, 0, c->stream>>>(*a, *s, *a->layout, by_value(a->filter),
                                                       scratch, together);
    cuda_launched(c, "index_scores");
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

/* ---- selection ---- */

#define BINS     2048 /* of 11 bits of a key */
#define LIST_CAP 2048
#define SORT_CAP 512

typedef struct select_smem {
    int count[BINS];
    uint32_t key[LIST_CAP];
    int32_t id[LIST_CAP];
    int32_t chosen[SORT_CAP];
    int n, n_chosen, bin, before;
} select_smem;

static __device__ void clear_bins(select_smem *m)
{
    for (int i = threadIdx.x; i < BINS; i += THREADS)
        m->count[i] = 0;
    __syncthreads();
}

/* The bin of the k-th largest, and how many lie in higher ones. */
static __device__ int find_bin(select_smem *m, int k, int *above)
{
    int lane = threadIdx.x % 32, seen = 0;

    for (int b = BINS - 32; threadIdx.x < 32 && b >= 0; b -= 32) {
        int c = m->count[b + 31 - lane], sum = c; /* lane 0 has the highest */
        uint32_t reached;

        for (int d = 1; d < 32; d *= 2) {
            int other = __shfl_up_sync(ALL, sum, d);

            sum += lane >= d ? other : 0;
        }
        reached = __ballot_sync(ALL, seen + sum >= k);
        if (reached) {
            if (lane == __ffs(reached) - 1) {
                m->bin = b + 31 - lane;
                m->before = seen + sum - c;
            }
            break;
        }
        seen += __shfl_sync(ALL, sum, 31);
    }
    __syncthreads();
    *above = m->before;
    return m->bin;
}

/* Ascending order of the first k ids of m->chosen. */
static __device__ void sort_chosen(select_smem *m, int k)
{
    int size = 1;

    while (size < k)
        size *= 2;
    for (int i = threadIdx.x; i < size; i += THREADS)
        if (i >= k)
            m->chosen[i] = INT32_MAX;
    for (int span = 2; span <= size; span *= 2)
        for (int d = span / 2; d > 0; d /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < size / 2; i += THREADS) {
                int lo = i / d * 2 * d + i % d, hi = lo + d;
                int32_t x = m->chosen[lo], y = m->chosen[hi];

                if ((x > y) == ((lo & span) == 0)) {
                    m->chosen[lo] = y;
                    m->chosen[hi] = x;
                }
            }
        }
    __syncthreads();
}

/* Narrow the k-th largest of the listed keys that share the bits above `shift + bits` with
 * `prefix`: its next bits; *k becomes its rank among those that share these too. */
static __device__ uint32_t next_bits(select_smem *m, uint32_t prefix, int shift, int bits, int *k)
{
    int above, bin;

    clear_bins(m);
    for (int i = threadIdx.x; i < m->n; i += THREADS)
        if (m->key[i] >> (shift + bits) == prefix >> (shift + bits))
            atomicAdd(&m->count[m->key[i] >> shift & ((1u << bits) - 1u)], 1);
    __syncthreads();
    bin = find_bin(m, *k, &above);
    *k -= above;
    return prefix | (uint32_t)bin << shift;
}

/* The k best of n values, n > k, when few enough lie in the upper bits' bin of the k-th: false
 * otherwise. Two passes over the values; everything else is in shared memory. */
template <typename F, typename G>
static __device__ bool best_of_list(select_smem *m, F value, int64_t n, int64_t k, G put)
{
    int above, left = (int)k, bin;
    uint32_t cut;

    if (k > SORT_CAP)
        return false;
    clear_bins(m);
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        atomicAdd(&m->count[order_key(value(i)) >> 21], 1);
    if (threadIdx.x == 0)
        m->n = m->n_chosen = 0;
    __syncthreads();
    bin = find_bin(m, left, &above);
    if (above + m->count[bin] > LIST_CAP)
        return false;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t key = order_key(value(i));

        if ((int)(key >> 21) >= bin) {
            int at = atomicAdd(&m->n, 1); /* any order: sorted in the end */

            m->key[at] = key;
            m->id[at] = (int32_t)i;
        }
    }
    __syncthreads();
    left -= above;
    cut = next_bits(m, (uint32_t)bin << 21, 10, 11, &left);
    cut =
        next_bits(m, cut, 0, 10, &left); /* the k-th key; `left` of those equal to it are chosen */
    for (int i = threadIdx.x; i < m->n; i += THREADS) {
        int before = 0;

        if (m->key[i] < cut)
            continue;
        for (int j = 0; m->key[i] == cut && j < m->n; j++)
            before += m->key[j] == cut && m->id[j] < m->id[i];
        if (before < left || m->key[i] > cut)
            m->chosen[atomicAdd(&m->n_chosen, 1)] = m->id[i];
    }
    __syncthreads();
    sort_chosen(m, (int)k);
    for (int i = threadIdx.x; i < k; i += THREADS)
        put(i, m->chosen[i]);
    __syncthreads();
    return true;
}

/* Indices of the k best of n values, ascending; of equals the lower ones. Returns how many. */
template <typename F, typename G>
static __device__ int32_t best(select_smem *m, F value, int64_t n, int64_t k, G put)
{
    int64_t above = 0, ties = n, taken = 0, equal = 0;
    uint32_t cut = 0;

    if (n <= k) {
        for (int64_t i = threadIdx.x; i < n; i += THREADS)
            put(i, i);
        return (int32_t)n;
    }
    if (best_of_list(m, value, n, k, put))
        return (int32_t)k;
    cut = kth_largest(value, n, k, &above);
    ties = k - above;
    for (int64_t i0 = 0; i0 < n; i0 += THREADS) {
        int64_t i = i0 + threadIdx.x, nth;
        uint32_t key = i < n ? order_key(value(i)) : 0;
        bool tie = i < n && key == cut, take;

        nth = place(tie, &equal);
        take = i < n && (key > cut || (tie && nth < ties));
        nth = place(take, &taken);
        if (take)
            put(nth, i);
    }
    return (int32_t)taken;
}

/* One block per row. The scores of a row whose entries all fit may be missing: they are not read.
 */
static __global__ void select_kernel(select_args a, step s, const __grid_constant__ kv_layout l,
                                     candidates filter, candidates out)
{
    int64_t row = a.row0 + blockIdx.x, visible = (s.pos[row] + 1) / l.owner[a.owner].ratio;
    int64_t eligible = eligible_of(filter, row, visible);
    const float *score = a.scores + blockIdx.x * a.stride;
    int32_t *sel = a.sel + row * a.topk, n;
    __shared__ select_smem m;

    if (out.block > 0) {
        int64_t blocks = (visible + out.block - 1) / out.block;

        n = -1;
        if (blocks > out.max_blocks) {
            int32_t *ids = out.ids + row * out.max_blocks;

            n = best(
                &m,
                [&](int64_t b) {
                    float top = -INFINITY;
                    int64_t end = (b + 1) * out.block;

                    if (b == blocks - 1)
                        return INFINITY; /* the newest entry's */
                    for (int64_t e = b * out.block; e < end; e++)
                        top = fmaxf(top, score[e]);
                    return top;
                },
                blocks, out.max_blocks, [&](int64_t at, int64_t b) { ids[at] = (int32_t)b; });
        }
        if (threadIdx.x == 0)
            out.count[row] = n;
        __syncthreads();
    }
    n = best(
        &m, [&](int64_t e) { return score[e]; }, eligible, a.topk,
        [&](int64_t at, int64_t e) { sel[at] = (int32_t)eligible_entry(filter, row, e); });
    if (threadIdx.x == 0)
        a.n_sel[row] = n;
}

void cuda_select(cuda_impl *c, const select_args *a)
{
    select_kernel<<<a->n, THREADS, 0, c->stream>>>(*a, *a->s, *a->layout, by_value(a->filter),
                                                   by_value(a->out));
    cuda_launched(c, "select");
}
