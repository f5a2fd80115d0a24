/* Products with packed weights whose rows form groups too narrow for a block of cuda_gemm. No real
 * shape has such; the same bits all the same. A warp has a strip of 16 rows and 8 tokens. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/launch.cuh"

template <int MODE> static __global__ void groups_kernel(gemm_job j)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int strip = (int)blockIdx.x * WARPS + warp, base = (int)blockIdx.y * 8;
    const uint8_t *panels =
        j.w + ((int64_t)(strip / 8) * j.n_panels * 2 + strip / 4 % 2) * panel_bytes(MODE);
    const uint32_t *x =
        (const uint32_t *)(j.x + (int64_t)min(base + g, j.n - 1) * j.x_stride +
                           (int64_t)(strip * 16 / j.group_rows) * j.n_panels * PANEL);
    float sum[4];

    after_previous();
    for (int chunk = 0; chunk < j.n_panels; chunk += j.chunk) {
        float d[4] = {0};

        for (int p = chunk; p < chunk + j.chunk; p++) {
            const uint32_t *b = x + p * (PANEL / 2) + t;
            panel_words<MODE> words;
            uint32_t a[16];

            load_panel<MODE>(&words, panels + (int64_t)p * 2 * panel_bytes(MODE),
                             strip % 4 * 32 + lane);
            decode_panel<MODE>(words, a);
#pragma unroll
            for (int k = 0; k < 4; k++)
                mma(d, a + 4 * k, b[8 * k], b[8 * k + 4]);
        }
        for (int i = 0; i < 4; i++)
            sum[i] = chunk ? sum[i] + d[i] : d[i];
    }
    for (int i = 0; i < 4; i++)
        if (base + 2 * t + i % 2 < j.n)
            put_sum(j, (base + 2 * t + i % 2) * j.y_stride + strip * 16 + g + i / 2 * 8, sum[i]);
}

void cuda_narrow_groups(cuda_impl *c, int mode, const gemm_job *j)
{
    dim3 grid((unsigned)j->n_blocks, (unsigned)((j->n + 7) / 8));

    launch(c, "a product of narrow groups",
           mode == PACK_FP8 ? groups_kernel<PACK_FP8> : groups_kernel<PACK_BF16>, grid, THREADS, 0,
           *j);
}
