/* Linear layers. Packed weights and narrow ones go to the matrix units; for any other shape, a warp
 * makes one output column of a few rows. Lane l sums the inputs l, l + 32, ... in order, then the
 * lanes are added in a fixed tree. */
#include "kernels/cuda/gemm.cuh"

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

/* true: LINEAR_Q8 is done. */
static bool linear_packed(cuda_impl *c, const linear_args *a, int64_t groups)
{
    const weight *w = a->w;
    gemm_job j = {};

    j.w = (const uint8_t *)w->data;
    j.n_blocks = (int)(w->rows / ROW_BLOCK);
    j.n_panels = (int)(w->cols / PANEL);
    j.chunk = j.n_panels / chunks_of(j.n_panels, w->rows);
    j.end = a->out != LINEAR_F32 ? END_ACT : a->accumulate ? END_ADD : END_F32;
    j.x = (const bf16 *)a->x;
    j.x_stride = groups * w->cols;
    j.group_rows = groups > 1 ? (int)(w->rows / groups) : 0;
    j.n = a->n;
    j.y = a->y;
    j.y_stride = w->rows;
    if (j.group_rows % 16) {
        cuda_note(c, cudaErrorNotSupported, "linear: groups of fewer than 16 rows");
        return false;
    }
    if (j.group_rows % ROW_BLOCK) {
        cuda_narrow_groups(c, w->packed, &j);
        return false;
    }
    if (a->out == LINEAR_Q8)
        j.end = END_Q8;
    cuda_gemm(c, w->packed, &j);
    return true;
}

static void linear_stored(cuda_impl *c, const linear_args *a, int64_t groups)
{
    const weight *w = a->w;
    dim3 grid((unsigned)((w->rows + WARPS - 1) / WARPS), (unsigned)((a->n + ROWS - 1) / ROWS));

    linear_kernel<<<grid, THREADS, 0, c->stream>>>(*a, *w, groups);
    cuda_launched(c, "linear");
}

void cuda_linear(cuda_impl *c, const linear_args *a)
{
    int64_t groups = a->groups > 1 ? a->groups : 1;
    bool done = a->w->packed && linear_packed(c, a, groups);

    if (!a->w->packed && cuda_is_narrow(a))
        cuda_narrow(c, a);
    else if (!a->w->packed)
        linear_stored(c, a, groups);
    if (a->out == LINEAR_Q8 && !done) {
        quantize_args q = {};

        q.n = a->n;
        q.cols = (int)a->w->rows;
        q.x = q.q8 = a->y;
        cuda_quantize(c, &q);
    }
}
