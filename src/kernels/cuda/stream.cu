/* Products of few tokens (up to 16) with packed weights: as fast as memory gives the weights.
 *
 * A warp owns R strips of 16 rows and one chunk of K; its loads run AHEAD panels ahead in
 * registers. The chunks of a strip are added in ascending order through shared memory. */
#include "kernels/cuda/gemm.cuh"

/* Panels in flight for a warp: about 64 registers of codes. */
static __host__ __device__ constexpr int ahead_of(int mode, int r)
{
    return mode == PACK_FP4 ? 8 / r : mode == PACK_FP8 ? (r == 4 ? 2 : 4 / r) : (r == 1 ? 2 : 1);
}

/* Tokens base .. base + n - 1 of block y. */
typedef struct token_tile {
    int expert, base, n;
} token_tile;

static __device__ bool tile_of(const gemm_job &j, int most, token_tile *t)
{
    int end = j.n;

    *t = {0, (int)blockIdx.y * most, 0};
    if (j.tile) {
        if ((int)blockIdx.y >= *j.n_tiles)
            return false;
        t->expert = j.tile[blockIdx.y].x;
        t->base = j.first[t->expert] + j.tile[blockIdx.y].y * most;
        end = j.first[t->expert + 1];
    }
    t->n = min(most, end - t->base);
    return true;
}

/* The end of a strip: the sum over the chunks of element (row, token). */
template <int NT>
static __device__ void finish_strip(const gemm_job &j, const token_tile &t, const float *part,
                                    int n_chunks, int64_t strip, int thread, int n_threads)
{
    const int tokens = 8 * NT, rows = j.end == END_SWIGLU ? 8 : 16;

    for (int i = thread; i < rows * tokens; i += n_threads) {
        int row = i % rows, token = i / rows;
        int64_t at = (t.base + token) * j.y_stride;
        float sum = part[row * tokens + token], up = 0;

        if (token >= t.n)
            continue;
        for (int c = 1; c < n_chunks; c++)
            sum += part[c * 16 * tokens + row * tokens + token];
        if (j.end != END_SWIGLU) {
            put_sum(j, at + strip * 16 + row, sum);
            continue;
        }
        up = part[(row + 8) * tokens + token];
        for (int c = 1; c < n_chunks; c++)
            up += part[c * 16 * tokens + (row + 8) * tokens + token];
        ((bf16 *)j.y)[at + strip * 8 + row] =
            to_bf(swiglu(sum, up, j.limit, weight_of(j, t.base + token)));
    }
}

template <int MODE, int R, int NT>
static __global__ __launch_bounds__(THREADS) void stream_kernel(gemm_job j, int n_chunks)
{
    const int AHEAD = ahead_of(MODE, R), PB = panel_bytes(MODE);
    __shared__ float part[WARPS * R][16 * 8 * NT];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int chunk = warp % n_chunks, sets = WARPS / n_chunks;
    int64_t strip = ((int64_t)blockIdx.x * sets + warp / n_chunks) * R;
    panel_words<MODE> words[AHEAD][R];
    float d[R][NT][4] = {};
    token_tile tile;
    const uint8_t *panel;
    const uint32_t *x[NT];

    if (!tile_of(j, 8 * NT, &tile))
        return;
    panel = j.w + tile.expert * j.expert_bytes +
            ((strip / 8 * j.n_panels + chunk * j.chunk) * 2 + strip / 4 % 2) * PB;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int r = 0; r < R; r++)
            if (i < j.chunk)
                load_panel<MODE>(&words[i][r], panel + i * 2 * PB,
                                 (int)(strip % 4 + r) * 32 + lane);
#pragma unroll
    for (int i = 0; i < NT; i++) {
        int64_t row = tile.base + 8 * i + g, k = (int64_t)chunk * j.chunk * PANEL;

        if (j.group_rows)
            k += strip * 16 / j.group_rows * j.n_panels * PANEL;
        if (8 * i + g >= tile.n) {
            x[i] = NULL;
            continue;
        }
        if (j.x_div)
            row = j.slot[row] / j.x_div;
        x[i] = (const uint32_t *)(j.x + row * j.x_stride + k) + t;
    }
    for (int p0 = 0; p0 < j.chunk; p0 += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int p = p0 + i;
            uint32_t b[NT][8];

            if (p >= j.chunk)
                break;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int k = 0; k < 8; k++)
                    b[n][k] = x[n] ? x[n][p * (PANEL / 2) + 4 * k] : 0;
#pragma unroll
            for (int r = 0; r < R; r++) {
                uint32_t a[16];

                decode_panel<MODE>(words[i][r], a);
                if (p + AHEAD < j.chunk)
                    load_panel<MODE>(&words[i][r], panel + (int64_t)(p + AHEAD) * 2 * PB,
                                     (int)(strip % 4 + r) * 32 + lane);
#pragma unroll
                for (int k = 0; k < 4; k++)
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        mma(d[r][n], a + 4 * k, b[n][2 * k], b[n][2 * k + 1]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float *to = part[(warp / n_chunks * R + r) * n_chunks + chunk];

#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[(g + i / 2 * 8) * 8 * NT + 8 * n + 2 * t + i % 2] = d[r][n][i];
    }
    __syncthreads();
    for (int s = 0; s < sets * R; s++)
        finish_strip<NT>(j, tile, part[s * n_chunks], n_chunks, (int64_t)blockIdx.x * sets * R + s,
                         threadIdx.x, THREADS);
}

template <int MODE, int R> static void run(cuda_impl *c, const gemm_job *j, int max_tiles)
{
    int n_chunks = j->n_panels / j->chunk, sets = WARPS / n_chunks;
    dim3 grid((unsigned)(j->n_blocks * 8 / (sets * R)), (unsigned)max_tiles);

    if (j->n <= 8 || j->tile)
        stream_kernel<MODE, R, 1><<<grid, THREADS, 0, c->stream>>>(*j, n_chunks);
    else
        stream_kernel<MODE, R, 2><<<grid, THREADS, 0, c->stream>>>(*j, n_chunks);
    cuda_launched(c, "a product of few rows");
}

/* More strips per warp share the loads of x; but all processors need work. */
template <int MODE> static void choose(cuda_impl *c, const gemm_job *j, int max_tiles)
{
    int sets = WARPS / (j->n_panels / j->chunk);
    int64_t blocks = (int64_t)j->n_blocks * 8 / sets * max_tiles; /* of one strip per warp */
    bool wide = j->group_rows == 0 || j->group_rows % PANEL == 0; /* strips of one group */

    if (wide && blocks >= 4 * 264 && j->n_blocks * 8 % (sets * 4) == 0)
        run<MODE, 4>(c, j, max_tiles);
    else if (wide && blocks >= 2 * 264 && j->n_blocks * 8 % (sets * 2) == 0)
        run<MODE, 2>(c, j, max_tiles);
    else
        run<MODE, 1>(c, j, max_tiles);
}

/* Tokens in tiles of 8 (experts, and when there are no more) or 16; max_tiles: how many. */
void cuda_stream(cuda_impl *c, int mode, const gemm_job *j, int max_tiles)
{
    if (mode == PACK_FP4)
        choose<PACK_FP4>(c, j, max_tiles);
    else if (mode == PACK_FP8)
        choose<PACK_FP8>(c, j, max_tiles);
    else
        choose<PACK_BF16>(c, j, max_tiles);
}
