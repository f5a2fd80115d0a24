/* Ceilings of this GPU, to judge the kernels by: copy and read bandwidth, wgmma rates fed from
 * shared memory, what a launch costs in a graph. Random data; burst (one launch of about 2 ms, the
 * median of nine) and sustained (the same launch back to back for 1.5 s, power-limited) apart.
 *
 * Prints CSV: name,case,value,unit. tools/gpu.sh bench builds and runs it. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/wgmma.cuh"

#define REPEATS 9

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(2);
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Milliseconds of run(arg), the median of REPEATS after two that warm up. */
template <typename F> static float burst_ms(F run)
{
    cudaEvent_t a, b;
    float ms[REPEATS];

    check(cudaEventCreate(&a), "event");
    check(cudaEventCreate(&b), "event");
    run();
    run();
    for (int i = 0; i < REPEATS; i++) {
        check(cudaEventRecord(a), "event");
        run();
        check(cudaEventRecord(b), "event");
        check(cudaEventSynchronize(b), "run");
        check(cudaEventElapsedTime(&ms[i], a, b), "event");
    }
    check(cudaGetLastError(), "launch");
    qsort(ms, REPEATS, sizeof *ms, compare);
    return ms[REPEATS / 2];
}

template <typename F> static float sustained_ms(F run, float each)
{
    cudaEvent_t a, b;
    int n = (int)(1500 / each) + 1;
    float ms;

    check(cudaEventCreate(&a), "event");
    check(cudaEventCreate(&b), "event");
    check(cudaEventRecord(a), "event");
    for (int i = 0; i < n; i++)
        run();
    check(cudaEventRecord(b), "event");
    check(cudaEventSynchronize(b), "run");
    check(cudaEventElapsedTime(&ms, a, b), "event");
    return ms / (float)n;
}

static void print(const char *name, const char *what, double value, const char *unit)
{
    printf("%s,%s,%.4g,%s\n", name, what, value, unit);
    fflush(stdout);
}

/* ---- memory ---- */

static __global__ void copy_kernel(uint4 *to, const uint4 *from, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, step = (size_t)gridDim.x * blockDim.x;

    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];

        to[i] = a;
        to[i + step] = b;
        to[i + 2 * step] = c;
        to[i + 3 * step] = d;
    }
}

static __global__ void read_kernel(const uint4 *from, size_t n, uint32_t *sink)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, step = (size_t)gridDim.x * blockDim.x;
    uint32_t x = 0;

    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];

        x ^= a.x ^ a.w ^ b.y ^ b.z ^ c.x ^ c.y ^ d.z ^ d.w;
    }
    if (x == 0x12345678u)
        *sink = x;
}

static __global__ void random_kernel(uint32_t *p, size_t n, uint32_t keep)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, step = (size_t)gridDim.x * blockDim.x;

    for (; i < n; i += step) {
        uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull;

        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        p[i] = (uint32_t)(z >> 17) & keep;
    }
}

static void memory(int n_sm)
{
    const size_t bytes = (size_t)2 << 30, n = bytes / sizeof(uint4);
    uint4 *a, *b;
    float ms;

    check(cudaMalloc(&a, bytes), "memory");
    check(cudaMalloc(&b, bytes), "memory");
    random_kernel<<<4096, 256>>>((uint32_t *)a, bytes / 4, 0xFFFFFFFFu);
    ms = burst_ms([&] { copy_kernel<<<n_sm * 8, 512>>>(b, a, n); });
    print("copy", "2 GiB, read and write", 2.0 * (double)bytes / ms * 1e-9, "TB/s");
    ms = burst_ms([&] { check(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice), "copy"); });
    print("copy", "cudaMemcpy 2 GiB, read and write", 2.0 * (double)bytes / ms * 1e-9, "TB/s");
    ms = burst_ms([&] { read_kernel<<<n_sm * 8, 512>>>(a, n, (uint32_t *)b); });
    print("read", "2 GiB", (double)bytes / ms * 1e-9, "TB/s");
    check(cudaFree(a), "memory");
    check(cudaFree(b), "memory");
}

/* ---- matrix rates ---- */

static __device__ uint64_t descriptor(const void *p)
{
    uint32_t a = (uint32_t)__cvta_generic_to_shared(p);

    return (uint64_t)((a & 0x3FFFFu) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

/* Two warpgroups of 64 rows on one tile of 256 tokens; 64 columns of bf16 or 128 of e4m3. */
template <bool FP8> static __global__ __launch_bounds__(256, 1) void rate_kernel(float *out, int n)
{
    extern __shared__ __align__(1024) uint8_t smem[];
    const uint8_t *a = smem + threadIdx.x / 128 * 8192, *b = smem + 16384;
    float d[128];

    for (int i = 0; i < 128; i++)
        d[i] = 0;
    for (int i = threadIdx.x; i < (16384 + 32768) / 4; i += 256) {
        uint32_t x = (uint32_t)i * 2654435761u ^ (blockIdx.x << 7);

        x = (x ^ x >> 15) * 0x2C1B3C6Du;
        x ^= x >> 13;
        /* finite numbers of about 1 */
        ((uint32_t *)smem)[i] = FP8 ? x & 0xBFBFBFBFu : (x & 0x80FF80FFu) | 0x3F003F00u;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < n; i++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (FP8)
                wgmma<256>::e4m3_ss(d, descriptor(a) + 2 * k, descriptor(b) + 2 * k, 1);
            else
                wgmma<256>::bf16_ss(d, descriptor(a) + 2 * k, descriptor(b) + 2 * k, 1);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    for (int i = 0; i < 128; i++)
        out[((size_t)blockIdx.x * 256 + threadIdx.x) * 128 + i] = d[i];
}

template <bool FP8> static void rate(const char *name, int n_sm)
{
    const int n = 8000, smem = 16384 + 32768;
    double flop = 2.0 * 128 * 256 * (FP8 ? 128 : 64) * n * n_sm;
    float *out, ms;
    auto run = [&] { rate_kernel<FP8><<<n_sm, 256, smem>>>(out, n); };

    check(cudaMalloc(&out, (size_t)n_sm * 256 * 128 * sizeof *out), "memory");
    check(cudaFuncSetAttribute((const void *)rate_kernel<FP8>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, smem),
          "shared memory");
    ms = burst_ms(run);
    print(name, "m64n256, burst", flop / ms * 1e-9, "TFLOP/s");
    ms = sustained_ms(run, ms);
    print(name, "m64n256, sustained 1.5 s", flop / ms * 1e-9, "TFLOP/s");
    check(cudaFree(out), "memory");
}

/* ---- launches ---- */

static __global__ void nothing_kernel(int *p)
{
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (p)
        *p = 1;
}

static void launches(int blocks, bool dependent)
{
    const int n = 480;
    char text[64];
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t x;
    cudaLaunchAttribute attr = {};
    cudaLaunchConfig_t c = {};
    float ms;

    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = 1;
    check(cudaStreamCreate(&s), "stream");
    c.gridDim = dim3((unsigned)blocks);
    c.blockDim = dim3(256);
    c.stream = s;
    c.attrs = &attr;
    c.numAttrs = dependent ? 1 : 0;
    check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < n; i++)
        check(cudaLaunchKernelEx(&c, nothing_kernel, (int *)NULL), "launch");
    check(cudaStreamEndCapture(s, &g), "capture");
    check(cudaGraphInstantiate(&x, g, 0), "graph");
    ms = burst_ms([&] { check(cudaGraphLaunch(x, 0), "graph"); });
    snprintf(text, sizeof text, "graph of %d; %d blocks%s", n, blocks,
             dependent ? "; dependent" : "");
    print("launch", text, ms * 1e3 / n, "us");
    check(cudaGraphExecDestroy(x), "graph");
    check(cudaGraphDestroy(g), "graph");
}

int main(void)
{
    struct cudaDeviceProp p;

    check(cudaGetDeviceProperties(&p, 0), "device");
    fprintf(stderr, "%s, %d multiprocessors, %.1f MB L2\n", p.name, p.multiProcessorCount,
            p.l2CacheSize * 1e-6);
    printf("name,case,value,unit\n");
    memory(p.multiProcessorCount);
    rate<false>("bf16", p.multiProcessorCount);
    rate<true>("e4m3", p.multiProcessorCount);
    for (int blocks = 1; blocks <= 264; blocks += 131 + (blocks > 1)) {
        launches(blocks, false);
        launches(blocks, true);
    }
    return 0;
}
