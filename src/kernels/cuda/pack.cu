/* Puts weights into the order of gemm.cuh, once, at load. */
#include "kernels/cuda/gemm.cuh"

/* A matrix as it is stored, or two of the same shape with their rows in turn, 8 by 8. */
typedef struct source {
    const void *data[2];
    const uint8_t *scale[2];
    int64_t rows, cols; /* of the packed matrix */
    bool both;
} source;

static __device__ void locate(const source &s, int64_t row, int *m, int64_t *r)
{
    *m = s.both ? (int)(row / 8 % 2) : 0;
    *r = s.both ? row / 16 * 8 + row % 8 : row;
}

static __device__ uint32_t code_of(const source &s, int mode, int64_t row, int64_t k)
{
    int m;
    int64_t r;

    locate(s, row, &m, &r);
    k += r * s.cols;
    if (mode == PACK_FP4)
        return ((const uint8_t *)s.data[m])[k / 2] >> (4 * (k & 1)) & 15u;
    if (mode == PACK_FP8)
        return ((const uint8_t *)s.data[m])[k];
    return ((const bf16 *)s.data[m])[k];
}

static __device__ uint32_t scale_of(const source &s, int mode, int64_t row, int64_t k)
{
    int m;
    int64_t r;

    locate(s, row, &m, &r);
    if (mode == PACK_FP8)
        r /= Q8_COLS;
    return (uint32_t)s.scale[m][r * (s.cols / Q8_COLS) + k / Q8_COLS] + (uint32_t)scale_shift(mode);
}

/* Where decode_fp4 looks for the bits of a code, lowest first; those of the pair's other code are
 * 16 bits on, around the end. */
static __constant__ const uint8_t fp4_places[4][4] = {
    {6, 7, 8, 15}, {2, 3, 4, 11}, {28, 29, 30, 5}, {0, 9, 10, 17}};

static __device__ uint32_t fp4_word(const source &s, int64_t row, int64_t k)
{
    uint32_t w = 0;

    for (int pair = 0; pair < 4; pair++)
        for (int half = 0; half < 2; half++) {
            uint32_t c = code_of(s, PACK_FP4, row + pair % 2 * 8, k + pair / 2 * 8 + half);

            for (int i = 0; i < 4; i++)
                w |= (c >> i & 1u) << (fp4_places[pair][i] + 16 * half) % 32;
        }
    return w;
}

static __device__ uint32_t fp8_word(const source &s, int64_t row, int64_t k)
{
    uint32_t w = 0;

    for (int half = 0; half < 2; half++) {
        uint32_t a = code_of(s, PACK_FP8, row, k + half),
                 b = code_of(s, PACK_FP8, row + 8, k + half);

        w |= ((a >> 7) << 15 | (a & 127u) << 4) << (16 * half);
        w |= ((b >> 7) << 11 | (b & 15u) | (b >> 4 & 7u) << 12) << (16 * half);
    }
    return w;
}

/* A block of 128 threads per panel. */
static __global__ void pack_kernel(source s, int mode, uint8_t *out)
{
    int64_t n_panels = s.cols / PANEL, panel = blockIdx.x;
    int64_t row0 = panel / (2 * n_panels) * ROW_BLOCK + panel % 2 * PANEL;
    int64_t k0 = panel / 2 % n_panels * PANEL;
    int th = threadIdx.x, warp = th / 32, g = th % 32 / 4, t = th % 4;
    int64_t row = row0 + 16 * warp + g;
    uint32_t *code = (uint32_t *)(out + panel * panel_bytes(mode));
    uint32_t *scale = code + code_bytes(mode) / 4;

    for (int i = 0; i < code_bytes(mode) / 512; i++) {
        uint32_t w;

        if (mode == PACK_FP4)
            w = fp4_word(s, row, k0 + 16 * i + 2 * t);
        else if (mode == PACK_FP8)
            w = fp8_word(s, row, k0 + 8 * i + 2 * t);
        else {
            int64_t r = row + i % 2 * 8, k = k0 + i / 2 * 8 + 2 * t;

            w = code_of(s, mode, r, k) | code_of(s, mode, r, k + 1) << 16;
        }
        code[i / 4 * 512 + th * 4 + i % 4] = w;
    }
    if (mode == PACK_BF16 || t > 0 || (mode == PACK_FP8 && g > 0))
        return;
    scale[mode == PACK_FP4 ? warp * 8 + g : warp] =
        scale_of(s, mode, row, k0) << 7 | scale_of(s, mode, row + 8, k0) << 23 |
        turned(scale_of(s, mode, row, k0 + 32) << 7 | scale_of(s, mode, row + 8, k0 + 32) << 23,
               24);
}

size_t cuda_packed_bytes(int mode, int64_t rows, int64_t cols)
{
    return (size_t)(rows / PANEL) * (size_t)(cols / PANEL) * (size_t)panel_bytes(mode);
}

bool cuda_can_pack(int64_t rows, int64_t cols)
{
    return rows > 0 && rows % ROW_BLOCK == 0 && cols % ROW_BLOCK == 0;
}

bool cuda_scale_fits(int mode, uint8_t scale)
{
    return scale + scale_shift(mode) <= 254;
}

void cuda_pack(cuda_impl *c, int mode, const void *data, const uint8_t *scale, const void *data2,
               const uint8_t *scale2, int64_t rows, int64_t cols, uint8_t *out)
{
    source s = {{data, data2}, {scale, scale2}, rows, cols, data2 != NULL};

    pack_kernel<<<(unsigned)(rows / PANEL * (cols / PANEL)), 128, 0, c->stream>>>(s, mode, out);
    cuda_launched(c, "packing weights");
}
