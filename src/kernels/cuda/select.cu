/* Selection of entries and candidate blocks (kernels/index.h).
 *
 * Up to HELD values of a row are held in registers, and a search by bits finds the cut. A longer
 * row is read once, in full, for the best score of every tile of 32 entries (8 for a candidate
 * source, whose blocks they are), by as many processors as there are. The k-th best of these tops
 * is a lower bound of the k-th best score, so that only tiles with a top above it are read again:
 * about k of them. What lies above the bound is chosen from in shared memory. Rows with too many
 * ties for that, and shapes beyond the caps, take several passes over all values instead. */
#include "kernels/cuda/index.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/order.cuh"

#define PICKERS   512 /* threads of a row */
#define PICKWARPS (PICKERS / 32)
#define HELD_EACH 32                    /* values of a thread */
#define HELD      (PICKERS * HELD_EACH) /* of a block */
#define FEW_EACH  8
#define CHUNK     1024                 /* scores that a warp makes tops of */
#define TILE_CAP  1024                 /* tiles above the bound */
#define LIST_CAP  (PICKERS * FEW_EACH) /* scores above the bound */
#define SLACK     64                   /* more tiles than needed, for a shorter search */

typedef struct select_smem {
    int part[2][PICKWARPS];
    uint32_t low[PICKWARPS], high[PICKWARPS];
    int32_t tile[TILE_CAP];
    uint32_t key[LIST_CAP];
    int32_t id[LIST_CAP];
} select_smem;

/* ---- tops ---- */

static __device__ __forceinline__ float4 four_scores(const float *score, int e, int n)
{
    float4 v = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);

    if (e + 3 < n && (uintptr_t)(score + e) % 16 == 0)
        return *(const float4 *)(score + e);
    if (e < n)
        v.x = score[e];
    if (e + 1 < n)
        v.y = score[e + 1];
    if (e + 2 < n)
        v.z = score[e + 2];
    if (e + 3 < n)
        v.w = score[e + 3];
    return v;
}

/* One step of a maximum over lanes that also deals out the values: of 2 * N values each lane keeps
 * the half that the bit d of its number says, N of them. */
template <int N> static __device__ __forceinline__ void deal_max(float *v, int d)
{
    bool upper = threadIdx.x & d;

#pragma unroll
    for (int i = 0; i < N; i++) {
        float keep = upper ? v[i + N] : v[i], give = upper ? v[i] : v[i + N];

        v[i] = fmaxf(keep, __shfl_xor_sync(ALL, give, d));
    }
}

/* Whether a row is selected from by its tops. */
static __device__ bool by_tops(const select_args &a, int64_t eligible, bool blocks)
{
    return blocks || (eligible > a.topk && eligible > HELD);
}

/* A warp per chunk, blockIdx.y = row. */
template <int TILE>
static __global__ __launch_bounds__(THREADS) void tops_kernel(select_args a, step s,
                                                              const __grid_constant__ kv_layout l,
                                                              candidates filter, candidates out,
                                                              float *tops, int64_t tops_stride)
{
    after_previous();

    int lane = threadIdx.x % 32;
    int64_t row = a.row0 + blockIdx.y, visible = visible_of(s, l, a.owner, row);
    int64_t n = eligible_of(filter, row, visible);
    int64_t e0 = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * CHUNK;
    const float *score = a.scores + blockIdx.y * a.stride;
    float4 v[8];
    float top[8];
    int left = n - e0 < CHUNK ? (int)(n - e0) : CHUNK;

    if (e0 >= n || !by_tops(a, n, has_blocks(visible, out.block, out.max_blocks)))
        return;
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = four_scores(score + e0, i * 128 + lane * 4, left);
#pragma unroll
    for (int i = 0; i < 8; i++)
        top[i] = fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w));
    tops += blockIdx.y * tops_stride + e0 / TILE;
    deal_max<4>(top, 1);
    if (TILE == 8) {
#pragma unroll
        for (int i = 0; i < 4; i++) /* past the row's end: -infinity, in the stride */
            tops[((lane & 1) * 4 + i) * 16 + lane / 2] = top[i];
        return;
    }
    deal_max<2>(top, 2);
    deal_max<1>(top, 4);
    tops[((lane & 1) * 4 + (lane & 2) + (lane >> 2 & 1)) * 4 + lane / 8] = top[0];
}

/* ---- sums and places in a block ---- */

static __device__ __forceinline__ int block_total(int c, int *part)
{
    int sum = 0;

    c = __reduce_add_sync(ALL, c);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = c;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PICKWARPS; i++)
        sum += part[i];
    return sum;
}

/* Sum of c over the threads before this one, and over all. */
static __device__ int sum_before(int c, int *part, int *total)
{
    int lane = threadIdx.x % 32, sum = c, before = 0;

#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(ALL, sum, d);

        sum += lane >= d ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    *total = 0;
#pragma unroll
    for (int i = 0; i < PICKWARPS; i++) {
        before += i < (int)threadIdx.x / 32 ? part[i] : 0;
        *total += part[i];
    }
    return before + sum - c;
}

/* Where to cut: keys above `key` are in, and, while there are less than k of them, the first of
 * those equal to it. */
typedef struct cut {
    uint32_t key;
    int above;
} cut;

/* The cut of the k-th largest of the block's keys (0 is none), bit by bit. It may stop with up to
 * `slack` keys too many above. `part` is written in turns, so that one barrier per bit is enough.
 */
template <int N>
static __device__ cut cut_of(select_smem *m, const uint32_t (&key)[N], int k, int slack)
{
    uint32_t low = UINT32_MAX, high = 0;
    cut c = {0, 0};

#pragma unroll
    for (int i = 0; i < N; i++) {
        low = min(low, key[i] - 1);
        high = max(high, key[i]);
    }
    low = __reduce_min_sync(ALL, low);
    high = __reduce_max_sync(ALL, high);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        m->low[threadIdx.x / 32] = low;
        m->high[threadIdx.x / 32] = high;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PICKWARPS; i++) {
        low = min(low, m->low[i]);
        high = max(high, m->high[i]);
    }
    low++;
    if (low == high)
        return {low, 0};
    c.key = high & ~((2u << (31 - __clz((int)(low ^ high)))) - 1u); /* the bits that all share */
    for (int bit = 31 - __clz((int)(low ^ high)); bit >= 0; bit--) {
        uint32_t v = c.key | 1u << bit;
        int n = 0;

#pragma unroll
        for (int i = 0; i < N; i++)
            n += key[i] >= v;
        n = block_total(n, m->part[bit & 1]);
        if (n >= k)
            c.key = v;
        else
            c.above = n;
        if (n >= k && n <= k + slack)
            return {v - 1, n};
    }
    return c;
}

/* ---- values in registers ---- */

/* How many of a block's n values this thread holds: N in a row, from value thread * N on. */
template <int N> static __device__ __forceinline__ int held_of(int64_t n)
{
    int64_t left = n - (int64_t)threadIdx.x * N;

    return left < 0 ? 0 : left < N ? (int)left : N;
}

/* Their keys; 0 behind the last one. */
template <int N>
static __device__ __forceinline__ void hold(uint32_t (&key)[N], const float *value, int64_t n)
{
    int held = held_of<N>(n);

    value += (int64_t)threadIdx.x * N;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        float4 v = four_scores(value, i, held);

        key[i] = i < held ? order_key(v.x) : 0;
        key[i + 1] = i + 1 < held ? order_key(v.y) : 0;
        key[i + 2] = i + 2 < held ? order_key(v.z) : 0;
        key[i + 3] = i + 3 < held ? order_key(v.w) : 0;
        if (i % 16 == 12)
            asm volatile("" ::: "memory"); /* all loads at once would take too many registers */
    }
}

/* The k best of the n > k values behind the keys, ascending. */
template <int N, typename G>
static __device__ void best_held(select_smem *m, const uint32_t (&key)[N], int64_t n, int k, G put)
{
    cut c = cut_of(m, key, k, 0);
    int held = held_of<N>(n), ties, at, total;
    uint32_t above = 0, equal = 0; /* bits of this thread's values */

#pragma unroll
    for (int i = 0; i < N; i++) {
        above |= (uint32_t)(key[i] > c.key) << i;
        equal |= (uint32_t)(i < held && key[i] == c.key) << i;
    }
    if (c.above < k) {
        ties =
            k - c.above - sum_before(__popc(equal), m->part[0], &total); /* left for this thread */
        while (__popc(equal) > max(ties, 0))                             /* without the last ones */
            equal &= ~(1u << (31 - __clz((int)equal)));
        above |= equal;
    }
    at = sum_before(__popc(above), m->part[1], &total);
    for (; above; above &= above - 1)
        put(at++, (int64_t)threadIdx.x * N + __ffs((int)above) - 1);
}

/* The same for values in memory, n <= HELD. */
template <typename G>
static __device__ void best_of_few(select_smem *m, const float *value, int64_t n, int k, G put)
{
    if (n <= LIST_CAP) {
        uint32_t key[FEW_EACH];

        hold(key, value, n);
        best_held(m, key, n, k, put);
    } else {
        uint32_t key[HELD_EACH];

        hold(key, value, n);
        best_held(m, key, n, k, put);
    }
}

/* The candidate blocks of a row by their tops: the last one, of the newest entry, is always in. */
template <typename G>
static __device__ void best_blocks(select_smem *m, const float *top, int64_t n, int k, G put)
{
    uint32_t key[HELD_EACH];

    hold(key, top, n);
#pragma unroll
    for (int i = 0; i < HELD_EACH; i++)
        if (i == held_of<HELD_EACH>(n) - 1 && (threadIdx.x + 1) * HELD_EACH >= n)
            key[i] = order_key(INFINITY);
    best_held(m, key, n, k, put);
}

/* ---- values by their tops ---- */

/* List the tiles whose tops are among the k best, or equal to the last of these, in order. Returns
 * the key that k scores reach. */
template <int N>
static __device__ uint32_t list_tiles(select_smem *m, const float *top, int64_t n, int k,
                                      int *n_tiles)
{
    uint32_t key[N], bound, take = 0;
    cut c;
    int at;

    hold(key, top, n);
    c = cut_of(m, key, k, SLACK);
    bound = c.key + (c.above >= k);
#pragma unroll
    for (int i = 0; i < N; i++)
        take |= (uint32_t)(key[i] && key[i] >= bound) << i;
    at = sum_before(__popc(take), m->part[0], n_tiles);
    for (; take && at < TILE_CAP; take &= take - 1)
        m->tile[at++] = (int32_t)(threadIdx.x * N) + __ffs((int)take) - 1;
    __syncthreads();
    return bound;
}

/* List what reaches the bound in the listed tiles, in order; returns how much, of which LIST_CAP is
 * listed. */
template <int TILE>
static __device__ int list_scores(select_smem *m, const float *score, int n, uint32_t bound,
                                  int n_tiles)
{
    const int AT_ONCE = 4, PARTS = TILE / 4;
    int parts = n_tiles * PARTS, listed = 0;

    for (int i0 = 0; i0 < parts; i0 += AT_ONCE * PICKERS) {
        int i = i0 + (int)threadIdx.x * AT_ONCE, at, total;
        float4 v[AT_ONCE];
        int32_t e[AT_ONCE];
        uint32_t key[4 * AT_ONCE], take = 0;

#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            e[j] = i + j < parts ? m->tile[(i + j) / PARTS] * TILE + (i + j) % PARTS * 4 : n;
            v[j] = four_scores(score, e[j], n);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            key[4 * j] = order_key(v[j].x);
            key[4 * j + 1] = order_key(v[j].y);
            key[4 * j + 2] = order_key(v[j].z);
            key[4 * j + 3] = order_key(v[j].w);
#pragma unroll
            for (int h = 0; h < 4; h++)
                take |= (uint32_t)(e[j] + h < n && key[4 * j + h] >= bound) << (4 * j + h);
        }
        at = listed + sum_before(__popc(take), m->part[1], &total);
#pragma unroll
        for (int j = 0; j < 4 * AT_ONCE; j++)
            if (take >> j & 1u) {
                if (at < LIST_CAP) {
                    m->key[at] = key[j];
                    m->id[at] = e[j / 4] + j % 4;
                }
                at++;
            }
        listed += total;
    }
    __syncthreads();
    return listed;
}

/* The k best of the n listed. */
template <int N, typename G> static __device__ void best_listed(select_smem *m, int n, int k, G put)
{
    uint32_t key[N];

#pragma unroll
    for (int i = 0; i < N; i++)
        key[i] = i < held_of<N>(n) ? m->key[threadIdx.x * N + i] : 0;
    best_held(m, key, n, k, [&](int64_t at, int64_t i) { put(at, m->id[i]); });
}

/* The k best of n scores, n > k; false when a list is too short for that. */
template <int TILE, typename G>
static __device__ bool best_by_tops(select_smem *m, const float *score, const float *top, int64_t n,
                                    int k, G put)
{
    int64_t n_tops = (n + TILE - 1) / TILE;
    int n_tiles, listed;
    uint32_t bound;

    if (n_tops < k || n_tops > HELD)
        return false;
    bound = n_tops <= LIST_CAP ? list_tiles<FEW_EACH>(m, top, n_tops, k, &n_tiles)
                               : list_tiles<HELD_EACH>(m, top, n_tops, k, &n_tiles);
    if (n_tiles > TILE_CAP)
        return false;
    listed = list_scores<TILE>(m, score, (int)n, bound, n_tiles);
    if (listed > LIST_CAP)
        return false;
    if (listed <= 2 * PICKERS)
        best_listed<2>(m, listed, k, put);
    else
        best_listed<FEW_EACH>(m, listed, k, put);
    return true;
}

/* ---- any values ---- */

/* The k best of n > k values, ascending; of equals the lower ones. */
template <typename F, typename G>
static __device__ void best_of_any(F value, int64_t n, int64_t k, G put)
{
    int64_t above = 0, taken = 0, equal = 0;
    uint32_t last = kth_largest(value, n, k, &above);

    for (int64_t i0 = 0; i0 < n; i0 += PICKERS) {
        int64_t i = i0 + threadIdx.x, nth;
        uint32_t key = i < n ? order_key(value(i)) : 0;
        bool tie = i < n && key == last, take;

        nth = place(tie, &equal);
        take = i < n && (key > last || (tie && nth < k - above));
        nth = place(take, &taken);
        if (take)
            put(nth, i);
    }
}

/* ---- rows ---- */

template <int TILE>
static __device__ void keep_blocks(select_smem *m, const candidates &out, const float *score,
                                   const float *top, int64_t row, int64_t visible)
{
    int64_t blocks = (visible + out.block - 1) / out.block;
    int32_t *ids = out.ids + row * out.max_blocks;
    auto put = [&](int64_t at, int64_t b) { ids[at] = (int32_t)b; };

    if (TILE == out.block && blocks <= HELD) {
        best_blocks(m, top, blocks, out.max_blocks, put);
        return;
    }
    best_of_any(
        [&](int64_t b) {
            float best = -INFINITY;

            if (b == blocks - 1)
                return INFINITY; /* the newest entry's */
            for (int64_t e = b * out.block; e < (b + 1) * out.block; e++)
                best = fmaxf(best, score[e]);
            return best;
        },
        blocks, out.max_blocks, put);
}

/* One block per row. The scores of a row whose entries all fit may be missing: they are not read.
 */
template <int TILE>
static __global__ __launch_bounds__(PICKERS,
                                    2) void select_kernel(select_args a, step s,
                                                          const __grid_constant__ kv_layout l,
                                                          candidates filter, candidates out,
                                                          const float *tops, int64_t tops_stride)
{
    after_previous();

    int64_t row = a.row0 + blockIdx.x, visible = visible_of(s, l, a.owner, row);
    int64_t n = eligible_of(filter, row, visible);
    bool blocks = has_blocks(visible, out.block, out.max_blocks);
    const float *score = a.scores + blockIdx.x * a.stride, *top = tops + blockIdx.x * tops_stride;
    int32_t *sel = a.sel + row * a.topk;
    auto put = [&](int64_t at, int64_t e) { sel[at] = eligible_entry(filter, row, (uint32_t)e); };
    __shared__ select_smem m;

    if (threadIdx.x == 0)
        a.n_sel[row] = (int32_t)(n < a.topk ? n : a.topk);
    if (out.block > 0 && threadIdx.x == 0)
        out.count[row] = blocks ? out.max_blocks : -1;
    if (blocks)
        keep_blocks<TILE>(&m, out, score, top, row, visible);
    if (n <= a.topk) {
        for (int64_t e = threadIdx.x; e < n; e += PICKERS)
            put(e, e);
        return;
    }
    if (n <= HELD)
        best_of_few(&m, score, n, a.topk, put);
    else if (!tops || !best_by_tops<TILE>(&m, score, top, n, a.topk, put))
        best_of_any([&](int64_t e) { return score[e]; }, n, a.topk, put);
}

/* Whether a row may be longer than what is held: candidates are not, in any row that has some. */
static bool needs_tops(const select_args *a)
{
    int64_t most = a->stride;

    if (a->filter && (int64_t)a->filter->max_blocks * a->filter->block < most)
        most = (int64_t)a->filter->max_blocks * a->filter->block;
    return a->out || most > HELD;
}

/* Rows that the tops' room is enough for. */
template <int TILE> static void select_rows(cuda_impl *c, const select_args *a, int64_t chunks)
{
    int64_t stride = chunks * (CHUNK / TILE);
    dim3 grid((unsigned)((chunks + WARPS - 1) / WARPS), (unsigned)a->n);
    float *tops = needs_tops(a) ? c->s.tops : NULL;

    if (tops)
        launch(c, "select", tops_kernel<TILE>, grid, THREADS, 0, *a, *a->s, *a->layout,
               by_value(a->filter), by_value(a->out), tops, stride);
    launch(c, "select", select_kernel<TILE>, a->n, PICKERS, 0, *a, *a->s, *a->layout,
           by_value(a->filter), by_value(a->out), (const float *)tops, stride);
}

void cuda_select(cuda_impl *c, const select_args *a)
{
    int64_t chunks = (a->stride + CHUNK - 1) / CHUNK;
    int64_t each = (int64_t)c->s.n_tops / (chunks * (CHUNK / (a->out ? 8 : 32)));
    select_args part = *a;

    for (part.n = (int)(each < a->n ? each : a->n); part.row0 < a->row0 + a->n;
         part.row0 += part.n, part.scores += part.n * a->stride) {
        int left = a->row0 + a->n - part.row0;

        part.n = part.n < left ? part.n : left;
        if (a->out)
            select_rows<8>(c, &part, chunks);
        else
            select_rows<32>(c, &part, chunks);
    }
}
