/* What this GPU copies and multiplies at this moment: the ceilings of deepinfer bench. */
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/wgmma.cuh"

#define COPY_BYTES ((size_t)512 << 20) /* beyond the caches */
#define SMEM       (16384 + 32768)     /* two tiles of 64 x 64 and one of 256 x 64, bf16 */
#define PRODUCTS   4000                /* rounds of 64 columns */
#define TURNS      3

static __device__ uint64_t tile_at(const void *p)
{
    uint32_t a = (uint32_t)__cvta_generic_to_shared(p);

    return (uint64_t)((a & 0x3FFFFu) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

/* Two warpgroups of 64 rows on one tile of 256 tokens, operands in shared memory: finite numbers of
 * about 1. */
static __global__ __launch_bounds__(256, 1) void products_kernel(float *out)
{
    extern __shared__ __align__(1024) uint8_t smem[];
    const uint8_t *a = smem + threadIdx.x / 128 * 8192, *b = smem + 16384;
    float d[128];

    for (int i = 0; i < 128; i++)
        d[i] = 0;
    for (int i = threadIdx.x; i < SMEM / 4; i += 256) {
        uint32_t x = (uint32_t)i * 2654435761u ^ blockIdx.x << 7;

        x = (x ^ x >> 15) * 0x2C1B3C6Du;
        ((uint32_t *)smem)[i] = ((x ^ x >> 13) & 0x80FF80FFu) | 0x3F003F00u;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < PRODUCTS; i++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma<256>::bf16_ss(d, tile_at(a) + 2 * k, tile_at(b) + 2 * k, 1);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    for (int i = 0; i < 128; i++)
        out[((size_t)blockIdx.x * 256 + threadIdx.x) * 128 + i] = d[i];
}

/* Seconds of one of TURNS calls, by events. */
template <typename F> static double seconds(cuda_impl *c, F run)
{
    cudaEvent_t from = NULL, to = NULL;
    float ms = 0;

    run();
    cuda_note(c, cudaEventCreate(&from), "making an event");
    cuda_note(c, cudaEventCreate(&to), "making an event");
    cuda_note(c, cudaEventRecord(from, c->stream), "measuring");
    for (int i = 0; i < TURNS; i++)
        run();
    cuda_note(c, cudaEventRecord(to, c->stream), "measuring");
    cuda_note(c, cudaEventSynchronize(to), "measuring");
    cuda_note(c, cudaEventElapsedTime(&ms, from, to), "measuring");
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return ms * 1e-3 / TURNS;
}

/* Bytes read and written, and bf16 operations, a second; 0 where there is no memory to measure. */
void cuda_peak(cuda_impl *c, double *bytes, double *flops)
{
    uint8_t *mem = NULL;
    float *out;
    double s;

    *bytes = *flops = 0;
    if (cudaMalloc((void **)&mem, 2 * COPY_BYTES) != cudaSuccess) {
        cudaGetLastError();
        return;
    }
    s = seconds(c, [&] {
        cuda_note(
            c,
            cudaMemcpyAsync(mem + COPY_BYTES, mem, COPY_BYTES, cudaMemcpyDeviceToDevice, c->stream),
            "measuring");
    });
    *bytes = s > 0 ? 2.0 * (double)COPY_BYTES / s : 0;
    out = (float *)mem;
    cuda_note(c,
              cudaFuncSetAttribute((const void *)products_kernel,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM),
              "measuring");
    s = seconds(c, [&] {
        products_kernel<<<c->n_processors, 256, SMEM, c->stream>>>(out);
        cuda_launched(c, "measuring");
    });
    *flops = s > 0 ? 2.0 * 128 * 256 * 64 * PRODUCTS * c->n_processors / s : 0;
    cudaFree(mem);
}
