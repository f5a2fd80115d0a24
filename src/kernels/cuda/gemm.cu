/* Products of packed weights: which shape of the kernel runs, and how K is split. */
#include <cudaTypedefs.h>
#include <stdint.h>

#include "kernels/cuda/gemm_few.cuh"

/* The chunks of every sum in ascending order, then its end; a thread per pair of rows 8 apart. */
static __global__ void finish_kernel(gemm_job j, int n_chunks)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, rows = (int64_t)j.n_blocks * ROW_BLOCK;
    int64_t token = i / (rows / 2), pair = i % (rows / 2), row = pair / 8 * 16 + pair % 8;
    const float *part = j.part + token * rows + row;
    float a, b;

    after_previous();
    if (token >= j.n)
        return;
    a = part[0];
    b = part[8];
    for (int c = 1; c < n_chunks; c++) {
        a += part[c * j.n * rows];
        b += part[c * j.n * rows + 8];
    }
    if (j.end == END_Q8) { /* 32 columns in 16 lanes */
        float s;

        a = from_bf(to_bf(a));
        b = from_bf(to_bf(b));
        s = q8_scale(lanes_max(fmaxf(fabsf(a), fabsf(b)), 16));
        a = q8_near(a, s, 1.0f / s);
        b = q8_near(b, s, 1.0f / s);
    }
    put_sum(j, token * j.y_stride + row, a);
    put_sum(j, token * j.y_stride + row + 8, b);
}

/* Tokens as boxes of 64 columns and some rows, swizzled as wgmma wants them. */
static bool map_of(cuda_impl *c, const gemm_job *j, int box_rows, CUtensorMap *map)
{
    PFN_cuTensorMapEncodeTiled_v12000 encode = (PFN_cuTensorMapEncodeTiled_v12000)c->encode;
    cuuint64_t size[2] = {(cuuint64_t)j->x_stride, (cuuint64_t)j->n};
    cuuint64_t stride[1] = {(cuuint64_t)j->x_stride * sizeof(bf16)};
    cuuint32_t box[2] = {PANEL, (cuuint32_t)box_rows}, step[2] = {1, 1};

    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)j->x, size, stride,
                            box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Token tiles whose columns of x fill some part of L2. */
static int group_of(const gemm_job *j, int n)
{
    int64_t bytes = (int64_t)n * j->n_panels * PANEL * (int64_t)sizeof(bf16), most = 20 << 20;

    return bytes < most ? (int)(most / bytes) : 1;
}

/* Add the chunks of a product. */
static void finish(cuda_impl *c, const gemm_job *j)
{
    int64_t threads = (int64_t)j->n * j->n_blocks * ROW_BLOCK / 2;

    launch(c, "a product", finish_kernel, (unsigned)((threads + THREADS - 1) / THREADS), THREADS, 0,
           *j, j->n_panels / j->chunk);
}

/* Room for the chunks' sums of a split product. */
size_t cuda_part_bytes(int n_processors)
{
    return (size_t)n_processors * ROW_BLOCK * 256 * 4 * sizeof(float);
}

/* The products of one launch and their tokens, in tiles of n, copied `box` at a time. `first`: as
 * well, or NULL. */
static bool work_of(cuda_impl *c, const gemm_job *j, const gemm_job *first, int n, int box,
                    gemm_work *work)
{
    work->job[0] = *j;
    if (first)
        work->job[1] = *first;
    for (int i = 0; i < (first ? 2 : 1); i++) {
        work->job[i].group = group_of(&work->job[i], n);
        if (!map_of(c, &work->job[i], box, &work->map[i])) {
            cuda_note(c, cudaErrorNotSupported, "a tensor map");
            return false;
        }
    }
    return true;
}

/* `first`: of kind FIRST, or NULL. `split`: every chunk of K is a tile of its own. */
template <SHAPE> static void run(cuda_impl *c, const gemm_job *j, const gemm_job *first, bool split)
{
    int smem = smem_bytes(MODE, FIRST, N, MB);
    int blocks = c->n_processors * blocks_per_processor(N) / C * C;
    gemm_work work = {};

    if (!work_of(c, j, first, N, N / C, &work))
        return;
    work.job[0].part = split ? c->s.part : NULL;
    cuda_note(c,
              cudaFuncSetAttribute((const void *)gemm_kernel<SHAPE_ARGS>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, smem),
              "a product");
    launch(c, "a product", gemm_kernel<SHAPE_ARGS>, (unsigned)blocks, GEMM_THREADS, (size_t)smem,
           work);
    if (split)
        finish(c, work.job);
}

/* As run(), for few tokens per weight. */
template <int MODE, int FIRST>
static void run_few(cuda_impl *c, const gemm_job *j, const gemm_job *first)
{
    gemm_work work = {};
    int smem = few_ring<MODE, FIRST>::bytes;

    if (!work_of(c, j, first, FEW_TOKENS, FEW_BOX, &work))
        return;
    cuda_note(c,
              cudaFuncSetAttribute((const void *)few_kernel<MODE, FIRST>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, smem),
              "a product");
    launch(c, "a product", few_kernel<MODE, FIRST>, (unsigned)c->n_processors, FEW_THREADS,
           (size_t)smem, work);
}

/* Rows of a cluster belong to one group. */
static bool cluster_fits(const gemm_job *j, int blocks)
{
    return j->n_blocks % blocks == 0 && j->group_rows % (blocks * ROW_BLOCK) == 0;
}

/* Cycles of a plain product, about: waves of tiles, each panel of which has its own cost and one
 * per token; chunks of a split product go through memory. */
static int64_t cost_of(const cuda_impl *c, const gemm_job *j, int n, bool split)
{
    int64_t chunks = split ? j->n_panels / j->chunk : 1,
            blocks = c->n_processors * blocks_per_processor(n);
    int64_t tiles = (j->n + n - 1) / n * j->n_blocks * chunks, per_panel = 200 + n * 43 / 10;
    int64_t bytes = split ? 8 * chunks * j->n * j->n_blocks * ROW_BLOCK : 0;

    per_panel = n <= 32 ? 2 * per_panel : per_panel;
    return (tiles + blocks - 1) / blocks * (j->n_panels / chunks) * per_panel + (split ? 4000 : 0) +
           bytes / 1500;
}

/* Chunk sums of a split product have room. */
static bool may_split(const cuda_impl *c, const gemm_job *j)
{
    return j->chunk < j->n_panels && (size_t)j->n_panels / (size_t)j->chunk * (size_t)j->n *
                                             (size_t)j->n_blocks * ROW_BLOCK * sizeof(float) <=
                                         cuda_part_bytes(c->n_processors);
}

/* Tokens of a tile and whether to split. */
static int tile_of(const cuda_impl *c, const gemm_job *j, const int *sizes, int n_sizes,
                   bool *split)
{
    int64_t least = INT64_MAX;
    int best = sizes[0];

    for (int i = 0; i < n_sizes; i++)
        for (int s = 0; s <= (int)may_split(c, j); s++) {
            int64_t cost = cost_of(c, j, sizes[i], s);

            if (cost < least) {
                least = cost;
                best = sizes[i];
                *split = s;
            }
        }
    return best;
}

/* Clusters pay for large tiles only. */
template <int MODE, int N> static void run_plain(cuda_impl *c, const gemm_job *j, bool split)
{
    const int C = N > 128 ? 2 : 1;

    if (cluster_fits(j, C))
        run<MODE, PACK_NONE, N, 1, C>(c, j, NULL, split);
    else
        run<MODE, PACK_NONE, N, 1, 1>(c, j, NULL, split);
}

static void gemm_fp8(cuda_impl *c, const gemm_job *j)
{
    const int sizes[] = {16, 32, 64, 96, 128, 160, 192, 224, 256};
    bool split = false;
    int n = tile_of(c, j, sizes, j->chunk == j->n_panels ? 9 : 7, &split);

    if (n == 16)
        run_plain<PACK_FP8, 16>(c, j, split);
    else if (n == 32)
        run_plain<PACK_FP8, 32>(c, j, split);
    else if (n == 64)
        run_plain<PACK_FP8, 64>(c, j, split);
    else if (n == 96)
        run_plain<PACK_FP8, 96>(c, j, split);
    else if (n == 128)
        run_plain<PACK_FP8, 128>(c, j, split);
    else if (n == 160)
        run_plain<PACK_FP8, 160>(c, j, split);
    else if (n == 192)
        run_plain<PACK_FP8, 192>(c, j, split);
    else if (n == 224)
        run_plain<PACK_FP8, 224>(c, j, split);
    else
        run_plain<PACK_FP8, 256>(c, j, split);
}

static void gemm_bf16(cuda_impl *c, const gemm_job *j)
{
    const int sizes[] = {16, 32, 64, 128};
    bool split = false;
    int n = tile_of(c, j, sizes, 4, &split);

    if (n == 16)
        run_plain<PACK_BF16, 16>(c, j, split);
    else if (n == 32)
        run_plain<PACK_BF16, 32>(c, j, split);
    else if (n == 64)
        run_plain<PACK_BF16, 64>(c, j, split);
    else
        run_plain<PACK_BF16, 128>(c, j, split);
}

void cuda_gemm(cuda_impl *c, int mode, const gemm_job *j)
{
    if (mode == PACK_FP8)
        gemm_fp8(c, j);
    else
        gemm_bf16(c, j);
}

void cuda_gemm_experts(cuda_impl *c, const gemm_job *routed, const gemm_job *shared, int tile)
{
    if (tile == FEW_TOKENS && cluster_fits(routed, FEW_ROWS))
        run_few<PACK_FP4, PACK_FP8>(c, routed, shared);
    else if (tile == FEW_TOKENS)
        run<PACK_FP4, PACK_FP8, 64, 1, 1>(c, routed, shared, false);
    else if (tile == 128 && cluster_fits(routed, 2)) /* an even number of row blocks */
        run<PACK_FP4, PACK_FP8, 128, 2, 1>(c, routed, shared, false);
    else if (tile == 128)
        run<PACK_FP4, PACK_FP8, 128, 1, 1>(c, routed, shared, false);
    else
        run<PACK_FP4, PACK_FP8, 256, 1, 1>(c, routed, shared, false);
}
