/* Few rows: routing, listing by expert and sorting of rows in one launch. All blocks route some
 * rows and meet (up to a row per warp: each block routes all of them, and nobody waits); then each
 * lists all slots in its shared memory, writes its part of the lists, and copies its part of the
 * rows. The lists are those of the kernels for many rows (moe.cu). */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe.cuh"

#define MOST_SLOTS 2048
#define AHEAD      8 /* rows that are read before one is written */

/* What is used before the blocks meet, and behind. Places in lists take 16 bits. */
typedef union few_smem {
    float score[WARPS][MAX_EXPERTS];
    struct {
        uint16_t count[WARPS][MAX_EXPERTS]; /* slots of an expert: a warp's, then those before */
        uint16_t first[MAX_EXPERTS];
        uint16_t id[MOST_SLOTS], place[MOST_SLOTS], order[MOST_SLOTS];
        int part[WARPS];
    } list;
} few_smem;

/* Wait until all blocks are here, which have room on the device together. `meet`: how many are, and
 * a number that changes when all are. */
static __device__ void meet_all(uint32_t *meet)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t turn = *(volatile uint32_t *)&meet[1];

        __threadfence();
        if (atomicAdd(&meet[0], 1) == gridDim.x - 1) {
            meet[0] = 0;
            __threadfence();
            atomicAdd(&meet[1], 1);
        } else {
            while (*(volatile uint32_t *)&meet[1] == turn)
                ;
        }
        __threadfence();
    }
    __syncthreads();
}

/* Slots of a warp: neighbours, so that warps in order list ascending slots. */
static __device__ int slots_of_warp(int n)
{
    return (n + THREADS - 1) / THREADS * 32;
}

/* Per warp and expert, how many slots; `place` of a slot among them. */
static __device__ void count_slots(few_smem *m, int n, int n_experts)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, each = slots_of_warp(n);
    uint16_t *count = m->list.count[warp];

    for (int e = lane; e < n_experts; e += 32)
        count[e] = 0;
    __syncwarp();
    for (int i0 = warp * each; i0 < min((warp + 1) * each, n); i0 += 32) {
        int i = i0 + lane, id = i < n ? m->list.id[i] : MAX_EXPERTS;
        uint32_t same = __match_any_sync(ALL, id);
        int before = i < n ? count[id] : 0, rank = __popc(same & ((1u << lane) - 1));

        __syncwarp();
        if (i < n) {
            m->list.place[i] = (uint16_t)(before + rank);
            if (rank == 0)
                count[id] = (uint16_t)(before + __popc(same));
        }
        __syncwarp();
    }
    __syncthreads();
}

/* First place of every expert, and of every warp in it; block 0 lists them and their tiles. */
static __device__ void place_experts(few_smem *m, int n_experts, int n_tile, const cuda_scratch &to)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = 0, sum;
    int own = n_experts / THREADS + 1; /* experts of a thread; one has the end behind all */

    for (int k = 0; k < own; k++) { /* slots, and tiles in the upper half */
        int e = (int)threadIdx.x * own + k, n = 0;

        for (int w = 0; w < WARPS && e < n_experts; w++) {
            int here = m->list.count[w][e];

            m->list.count[w][e] = (uint16_t)n;
            n += here;
        }
        if (e < n_experts)
            m->list.first[e] = (uint16_t)n; /* how many, for now */
        mine += n + ((n + n_tile - 1) / n_tile << 16);
    }
    sum = mine;
    for (int d = 1; d < 32; d *= 2) {
        int x = __shfl_up_sync(ALL, sum, d);

        sum += lane >= d ? x : 0;
    }
    if (lane == 31)
        m->list.part[warp] = sum;
    __syncthreads();
    sum -= mine;
    for (int w = 0; w < warp; w++)
        sum += m->list.part[w];
    for (int k = 0; k < own; k++) {
        int e = (int)threadIdx.x * own + k;
        int n = e < n_experts ? m->list.first[e] : 0, tiles = (n + n_tile - 1) / n_tile;

        if (e < n_experts)
            m->list.first[e] = (uint16_t)(sum & 0xFFFF);
        if (blockIdx.x == 0 && e <= n_experts) {
            to.first[e] = sum & 0xFFFF;
            for (int t = 0; t < tiles; t++)
                ((int2 *)to.tile)[(sum >> 16) + t] = make_int2(e, t);
            if (e == n_experts)
                to.tile[2 * to.n_max_tiles] = sum >> 16;
        }
        sum += n + (tiles << 16);
    }
    __syncthreads();
}

/* Rows of x by place: this block's places are blockIdx.x, + gridDim.x, ... */
static __device__ void sort_rows(const few_smem *m, const uint4 *x, int n, int k, int units,
                                 uint4 *sorted)
{
    int step = gridDim.x;

    for (int p = blockIdx.x; p < n; p += AHEAD * step)
        for (int u = threadIdx.x; u < units; u += THREADS) {
            uint4 v[AHEAD];

#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (p + i * step < n)
                    v[i] = x[(int64_t)(m->list.order[p + i * step] / k) * units + u];
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (p + i * step < n)
                    sorted[(int64_t)(p + i * step) * units + u] = v[i];
        }
}

static __global__ void __launch_bounds__(THREADS)
    few_kernel(route_args a, const float *bias, const float *bias_vl, int n_tile, const uint4 *x,
               int units, cuda_scratch to)
{
    __shared__ few_smem m;
    __shared__ int32_t own_id[WARPS * MAX_ACTIVE];
    __shared__ float own_weight[WARPS * MAX_ACTIVE];
    int warp = threadIdx.x / 32, n = a.n * a.k, each = slots_of_warp(n);
    bool alone = a.n <= WARPS;

    after_previous();
    if (alone) {
        if (warp < a.n)
            route_row(a, bias, bias_vl, warp, m.score[warp], own_id + warp * a.k,
                      own_weight + warp * a.k);
        __syncthreads();
    } else {
        for (int row = warp * (int)gridDim.x + (int)blockIdx.x; row < a.n; row += WARPS * gridDim.x)
            route_row(a, bias, bias_vl, row, m.score[warp], a.ids + row * a.k,
                      a.weights + row * a.k);
        meet_all(to.meet);
    }
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int id = alone ? own_id[i] : __ldcg(&a.ids[i]); /* of other blocks, too */

        m.list.id[i] = (uint16_t)id;
        if (alone && blockIdx.x == 0) {
            a.ids[i] = id;
            a.weights[i] = own_weight[i];
        }
    }
    __syncthreads();
    count_slots(&m, n, a.n_experts);
    place_experts(&m, a.n_experts, n_tile, to);
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int id = m.list.id[i];
        int place = m.list.first[id] + m.list.count[i / each][id] + m.list.place[i];

        m.list.order[place] = (uint16_t)i;
        if (i % (int)gridDim.x != (int)blockIdx.x)
            continue;
        to.slot[place] = i;
        to.slot_weight[place] = alone ? own_weight[i] : __ldcg(&a.weights[i]);
        to.pos[i] = place;
    }
    __syncthreads();
    sort_rows(&m, x, n, a.k, units, (uint4 *)to.ye);
}

bool cuda_route_few(cuda_impl *c, const experts_args *a, int n_tile)
{
    const route_args *r = a->route;
    int slots = a->n * a->k, most = 2 * c->n_processors, hidden = a->w->experts->hidden;

    if (!r || slots > MOST_SLOTS)
        return false;
    launch(c, "experts", few_kernel, (unsigned)(slots < most ? slots : most), THREADS, 0, *r,
           (const float *)r->bias->data, r->bias_vl ? (const float *)r->bias_vl->data : NULL,
           n_tile, (const uint4 *)a->x_q8, hidden / 8, c->s);
    return true;
}
