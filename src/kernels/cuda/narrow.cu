/* Linear layers of few outputs, whose weights are too narrow to be packed: the index heads'
 * weights, the router of a rank that holds a part of the experts. A block makes 16 outputs of some
 * tokens: each of its warps sums its part of the columns on the matrix units, and the parts are
 * added in order, so that bits depend neither on the number of tokens nor on how many a block has.
 */
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/launch.cuh"

#define STRIP 16 /* outputs of a block */
#define STEP  32 /* columns of a step: 16 bytes a lane */

/* Tiles of 8 tokens. A lane holds columns 8q .. 8q + 7 of a step (q = lane % 4), of weight and
 * token alike; which of them the matrix unit takes for which column does not matter for their sum.
 */
template <int TILES>
static __global__ void __launch_bounds__(THREADS) narrow_kernel(linear_args a, weight w)
{
    __shared__ float part[WARPS][TILES * 8][STRIP + 1];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, cols = (int)w.cols, mine = cols / WARPS;
    int first = (int)blockIdx.y * TILES * 8;
    const bf16 *wp = (const bf16 *)w.data + ((int64_t)blockIdx.x * STRIP + lane / 4) * cols +
                     warp * mine + lane % 4 * 8;
    const bf16 *xp[TILES];
    float sum[TILES][4] = {};

    after_previous();
#pragma unroll
    for (int t = 0; t < TILES; t++)
        xp[t] = (const bf16 *)a.x + (int64_t)min(first + t * 8 + lane / 4, a.n - 1) * cols +
                warp * mine + lane % 4 * 8;
#pragma unroll 4
    for (int k = 0; k < mine; k += STEP) {
        uint4 up = *(const uint4 *)(wp + k), down = *(const uint4 *)(wp + 8 * cols + k);
        uint32_t even[4] = {up.x, down.x, up.y, down.y}, odd[4] = {up.z, down.z, up.w, down.w};

#pragma unroll
        for (int t = 0; t < TILES; t++) {
            uint4 x = *(const uint4 *)(xp[t] + k);

            mma(sum[t], even, x.x, x.y);
            mma(sum[t], odd, x.z, x.w);
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            part[warp][t * 8 + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = sum[t][i];
    __syncthreads();
    for (int i = threadIdx.x; i < TILES * 8 * STRIP; i += THREADS) {
        int token = i / STRIP, row = i % STRIP;
        int64_t at = (int64_t)(first + token) * w.rows + (int)blockIdx.x * STRIP + row;
        float total = 0;

        if (first + token >= a.n)
            break;
        for (int p = 0; p < WARPS; p++)
            total += part[p][token][row];
        if (a.out != LINEAR_F32)
            ((bf16 *)a.y)[at] = to_bf(total);
        else
            ((float *)a.y)[at] = a.accumulate ? ((float *)a.y)[at] + total : total;
    }
}

bool cuda_is_narrow(const linear_args *a)
{
    const weight *w = a->w;

    return w->kind == WEIGHT_BF16 && a->groups <= 1 && w->rows % STRIP == 0 &&
           w->cols % (STEP * WARPS) == 0;
}

void cuda_narrow(cuda_impl *c, const linear_args *a)
{
    unsigned strips = (unsigned)(a->w->rows / STRIP);

    if (a->n <= 64)
        launch(c, "linear", narrow_kernel<1>, dim3(strips, (unsigned)((a->n + 7) / 8)), THREADS, 0,
               *a, *a->w);
    else
        launch(c, "linear", narrow_kernel<4>, dim3(strips, (unsigned)((a->n + 31) / 32)), THREADS,
               0, *a, *a->w);
}
