/* Linear layers for any shape: a warp makes one output column of a few rows. Lane l sums the inputs
 * l, l + 32, ... in order, then the lanes are added in a fixed tree. */
#include "kernels/cuda/device.cuh"

#define ROWS 8 /* rows that share a decoded weight */

/* Weight (r, k) as f32, exact. */
static __device__ __forceinline__ float weight_at(const weight &w, int64_t r, int64_t k)
{
    int64_t blocks = (w.cols + Q8_COLS - 1) / Q8_COLS;
    int64_t tile =
        r < w.rows0 ? r / Q8_COLS : (w.rows0 + Q8_COLS - 1) / Q8_COLS + (r - w.rows0) / Q8_COLS;

    if (w.kind == WEIGHT_FP8)
        return e4m3(((const uint8_t *)w.data)[r * w.cols + k]) *
               ue8m0(w.scale[tile * blocks + k / Q8_COLS]);
    return from_bf(((const bf16 *)w.data)[r * w.cols + k]);
}

static __device__ void store(const linear_args &a, int64_t at, float v)
{
    float *f = (float *)a.y + at;

    if (a.out == LINEAR_F32)
        *f = a.accumulate ? *f + v : v;
    else
        ((bf16 *)a.y)[at] = to_bf(v);
}

static __global__ void linear_kernel(linear_args a, weight w, int64_t groups)
{
    int64_t c = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, row = (int64_t)blockIdx.y * ROWS;
    int64_t n_in = w.cols, g = c / (w.rows / groups), lane = threadIdx.x % 32;
    const bf16 *x = (const bf16 *)a.x + (row * groups + g) * n_in;
    int n = a.n - row < ROWS ? (int)(a.n - row) : ROWS;
    float sum[ROWS] = {0};

    if (c >= w.rows)
        return;
    for (int64_t k = lane; k < n_in; k += 32) {
        float v = weight_at(w, c, k);

#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (i < n)
                sum[i] = fmaf(from_bf(x[i * groups * n_in + k]), v, sum[i]);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float total = warp_sum(sum[i]);

        if (i < n && lane == 0)
            store(a, (row + i) * w.rows + c, total);
    }
}

void cuda_linear(cuda_impl *c, const linear_args *a)
{
    const weight *w = a->w;
    int64_t groups = a->groups > 1 ? a->groups : 1;
    dim3 grid((unsigned)((w->rows + WARPS - 1) / WARPS), (unsigned)((a->n + ROWS - 1) / ROWS));

    linear_kernel<<<grid, THREADS, 0, c->stream>>>(*a, *w, groups);
    cuda_launched(c, "linear");
    if (a->out == LINEAR_Q8) {
        quantize_args q = {};

        q.n = a->n;
        q.cols = (int)w->rows;
        q.x = q.q8 = a->y;
        cuda_quantize(c, &q);
    }
}
