/* What batch invariance costs dense products: the back end's kernels with the chunks of K that the
 * weight fixes, against the number of chunks that is fastest for the number of rows at hand, whose
 * bits are those of no other number.
 *
 *   cuda_invariance     CSV: weight,rows,invariant us,chunks,free us,chunks,cost,us of 1 2 4 8
 * chunks
 */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/gemm.cu"
#include "kernels/cuda/pack.cu"

#define COPIES 12
#define ROUNDS 5
#define CALLS  24 /* of a recorded graph */

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(2);
}

extern "C" void cuda_note(cuda_impl *c, cudaError_t e, const char *what)
{
    (void)c;
    check(e, what);
}

extern "C" void cuda_launched(cuda_impl *c, const char *what)
{
    (void)c;
    check(cudaGetLastError(), what);
}

/* Random bytes: FP8 codes that are numbers, or the bytes of bf16 values of about 1. */
static __global__ void fill(uint8_t *p, size_t n, bool codes)
{
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n;
         i += gridDim.x * (size_t)THREADS) {
        uint64_t x = (i + 1) * 0x9E3779B97F4A7C15u;

        x ^= x >> 29;
        x *= 0xBF58476D1CE4E5B9u;
        x ^= x >> 32;
        p[i] = codes ? (uint8_t)(x & 0xF7u) : i % 2 ? (uint8_t)((x & 0x80u) | 0x3Fu) : (uint8_t)x;
    }
}

static uint8_t *device(size_t n)
{
    void *p;

    check(cudaMalloc(&p, n), "memory");
    return (uint8_t *)p;
}

/* CALLS of a product in a row, recorded. */
static cudaGraphExec_t recorded(cuda_impl *c, gemm_job j, const uint8_t *const *w, int copies)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    check(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "recording");
    for (int i = 0; i < CALLS; i++) {
        j.w = w[i % copies];
        cuda_gemm(c, PACK_FP8, &j);
    }
    check(cudaStreamEndCapture(c->stream, &graph), "recording");
    check(cudaGraphInstantiate(&exec, graph, 0), "recording");
    cudaGraphDestroy(graph);
    return exec;
}

/* Microseconds of a product: the median of some rounds over weights that do not fit L2. */
static double time_of(cuda_impl *c, gemm_job j, const uint8_t *const *w, int copies)
{
    double t[ROUNDS], flop = 2.0 * j.n * j.n_blocks * ROW_BLOCK * j.n_panels * PANEL;
    int n = (int)(10e-3 / (flop / 500e12 + 5e-6) / CALLS) + 1;
    cudaGraphExec_t exec = recorded(c, j, w, copies);
    cudaEvent_t a, b;

    cudaEventCreate(&a);
    cudaEventCreate(&b);
    for (int r = -1; r < ROUNDS; r++) {
        float ms = 0;

        cudaEventRecord(a, c->stream);
        for (int i = 0; i < n; i++)
            check(cudaGraphLaunch(exec, c->stream), "a product");
        cudaEventRecord(b, c->stream);
        check(cudaEventSynchronize(b), "a product");
        cudaEventElapsedTime(&ms, a, b);
        if (r >= 0)
            t[r] = ms * 1e3 / n / CALLS;
    }
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    cudaGraphExecDestroy(exec);
    for (int i = 1; i < ROUNDS; i++)
        for (int k = i; k > 0 && t[k] < t[k - 1]; k--) {
            double swap = t[k];

            t[k] = t[k - 1];
            t[k - 1] = swap;
        }
    return t[ROUNDS / 2];
}

static void shape(cuda_impl *c, const char *name, int64_t rows, int64_t cols)
{
    const int most = 4096;
    size_t bytes = cuda_packed_bytes(PACK_FP8, rows, cols), n_scales = (size_t)(rows * cols / 1024);
    uint8_t *codes = device((size_t)(rows * cols)), *scales = device(n_scales), *w[COPIES];
    uint8_t *x = device((size_t)most * (size_t)cols * 2),
            *y = device((size_t)most * (size_t)rows * 2);
    int copies = (int)(((size_t)400 << 20) / bytes) + 1;
    gemm_job j = {};

    copies = copies < COPIES ? copies : COPIES;
    fill<<<1024, THREADS, 0, c->stream>>>(codes, (size_t)(rows * cols), true);
    fill<<<1024, THREADS, 0, c->stream>>>(x, (size_t)most * (size_t)cols * 2, false);
    check(cudaMemsetAsync(scales, 119, n_scales, c->stream), "scales");
    for (int i = 0; i < copies; i++) {
        w[i] = device(bytes);
        cuda_pack(c, PACK_FP8, codes, scales, NULL, NULL, rows, cols, w[i]);
    }
    j.n_blocks = (int)(rows / ROW_BLOCK);
    j.n_panels = (int)(cols / PANEL);
    j.end = END_ACT;
    j.x = (const bf16 *)x;
    j.x_stride = cols;
    j.y = y;
    j.y_stride = rows;
    for (j.n = 1; j.n <= most; j.n *= 4) {
        int fixed_chunks = chunks_of(j.n_panels, rows), best = fixed_chunks;
        double fixed, least;
        char all[64] = "";

        j.chunk = j.n_panels / fixed_chunks;
        fixed = least = time_of(c, j, w, copies);
        for (int n = 1; n <= 8 && j.n_panels % (2 * n) == 0; n *= 2) {
            double us;

            j.chunk = j.n_panels / n;
            us = n == fixed_chunks ? fixed : time_of(c, j, w, copies);
            if (us < least) {
                least = us;
                best = n;
            }
            snprintf(all + strlen(all), sizeof all - strlen(all), " %.1f", us);
        }
        printf("%s %lldx%lld,%d,%.1f,%d,%.1f,%d,%.1f %%,%s\n", name, (long long)rows,
               (long long)cols, j.n, fixed, fixed_chunks, least, best, (fixed / least - 1) * 100,
               all + 1);
        fflush(stdout);
    }
    for (int i = 0; i < copies; i++)
        cudaFree(w[i]);
    cudaFree(codes);
    cudaFree(scales);
    cudaFree(x);
    cudaFree(y);
}

int main(void)
{
    cuda_impl c = {};

    check(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking), "a stream");
    check(cudaDeviceGetAttribute(&c.n_processors, cudaDevAttrMultiProcessorCount, 0), "the device");
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &c.encode, 12000,
                                           cudaEnableDefault, NULL),
          "a function of the driver");
    c.s.part = (float *)device(cuda_part_bytes(c.n_processors));
    printf("weight,rows,invariant us,chunks,free us,chunks,cost,us of 1 2 4 8 chunks\n");
    shape(&c, "wqkv", 1792, 5120);
    shape(&c, "wq_b", 32768, 1280);
    shape(&c, "wo_b", 5120, 8192);
    shape(&c, "shared_up", 4608, 5120);
    shape(&c, "shared_down", 5120, 2304);
    shape(&c, "engram_wkv", 25600, 6144);
    return 0;
}
