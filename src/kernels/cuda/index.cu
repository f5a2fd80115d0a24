/* Indexer: scores and selection (kernels/index.h). */
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

void cuda_index_scores(cuda_impl *c, const index_scores_args *a)
{
    size_t dim = (size_t)a->layout->index_dim;
    size_t smem = ((size_t)a->heads * dim + ENTRIES * dim) * sizeof(float);
    dim3 grid((unsigned)((a->stride + ENTRIES - 1) / ENTRIES), (unsigned)a->n);

    cuda_note(c,
              cudaFuncSetAttribute((const void *)scores_kernel,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
              "index_scores");
    scores_kernel<<<grid, THREADS, smem, c->stream>>>(*a, *a->s, *a->layout, by_value(a->filter));
    cuda_launched(c, "index_scores");
}

/* ---- selection ---- */

/* Indices of the k best of n values, ascending; of equals the lower ones. Returns how many. */
template <typename F, typename G>
static __device__ int32_t best(F value, int64_t n, int64_t k, G put)
{
    int64_t above = 0, ties = n, taken = 0, equal = 0;
    uint32_t cut = 0;

    if (n <= k) {
        for (int64_t i = threadIdx.x; i < n; i += THREADS)
            put(i, i);
        return (int32_t)n;
    }
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

    if (out.block > 0) {
        int64_t blocks = (visible + out.block - 1) / out.block;

        n = -1;
        if (blocks > out.max_blocks) {
            int32_t *ids = out.ids + row * out.max_blocks;

            n = best(
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
    n = best([&](int64_t e) { return score[e]; }, eligible, a.topk,
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
