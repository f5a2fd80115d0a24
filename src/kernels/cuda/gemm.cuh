/* Weights in the order of matrix fragments, and what the two kernels over them share.
 *
 * A weight matrix [N, K] (N a multiple of 128, K of 128) is cut into panels of 64 rows and 64
 * columns; a block of 128 rows has its two panels of the same columns side by side:
 *   [N/128][K/64][2][panel]
 * A panel holds, for each of 128 threads, the words of its A fragments of m64k16 (wgmma) or, a warp
 * at a time, of m16k16 (mma.sync; the same layout), then the scales. Weights are decoded to bf16
 * exactly: the code's bits are placed as a bf16 of a fixed power of two times the value, and one
 * multiplication by the scale sets the exponent right.
 *
 * Sums: columns ascend in steps of 16 in one accumulator, a chunk of panels at a time (a constant
 * of K); the chunks' sums are added in ascending order. All kernels do so, and matrix units give
 * the same bits for every number of rows, so bits do not depend on which kernel runs. */
#pragma once

#include "kernels/cuda/mma.cuh"

#define PANEL     64  /* rows and columns */
#define ROW_BLOCK 128 /* rows */

static __host__ __device__ constexpr int code_bytes(int mode)
{
    return mode == PACK_FP4 ? 2048 : mode == PACK_FP8 ? 4096 : 8192;
}

/* FP4: a word of scales (SCALES) for each row and the row 8 below it. FP8: for each 16 rows. */
static __host__ __device__ constexpr int panel_bytes(int mode)
{
    return code_bytes(mode) + (mode == PACK_FP4 ? 128 : mode == PACK_FP8 ? 16 : 0);
}

/* What a scale byte is stored as: exponent of the factor that undoes the placing of the bits. */
static __host__ __device__ constexpr int scale_shift(int mode)
{
    return mode == PACK_FP4 ? 126 : 120;
}

/* A word of scales: those of the row and of the row 8 below it as bf16 powers of two, for the
 * panel's first 32 columns; behind a turn by 8 bits, for the others. */
#define SCALES 0x7F807F80u

static __host__ __device__ __forceinline__ uint32_t turned(uint32_t w, int left)
{
    return w << left | w >> (32 - left);
}

/* Half i of a word in both halves. */
static __device__ __forceinline__ uint32_t both_halves(uint32_t w, int i)
{
    uint32_t r;

    if (i)
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(r) : "r"(w));
    else
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(r) : "r"(w));
    return r;
}

/* Eight E2M1 codes of a word -> the fragment of 16 columns: the codes of the pairs (row, k),
 * (row + 8, k), (row, k + 8), (row + 8, k + 8) lie where few instructions bring them to bits 15,
 * 8..6 of a half (pack.cu). Products by powers of two run on another pipe than shifts. */
static __device__ __forceinline__ void decode_fp4(uint32_t w, uint32_t s0, uint32_t s1, uint32_t *a)
{
    a[0] = mul_bf16x2(w & 0x81C081C0u, s0);
    a[1] = mul_bf16x2(w * 16u & 0x81C081C0u, s1);
    a[2] = mul_bf16x2(turned(w, 10) & 0x81C081C0u, s0);
    a[3] = mul_bf16x2((turned(w, 30) & 0x81808180u) | (w * 64u & 0x00400040u), s1);
}

/* Four E4M3 codes of a word -> the fragment of 8 columns. */
static __device__ __forceinline__ void decode_fp8(uint32_t w, uint32_t s0, uint32_t s1, uint32_t *a)
{
    a[0] = mul_bf16x2(w & 0x87F087F0u, s0);
    a[1] = mul_bf16x2((w * 16u & 0x80F080F0u) | (w >> 4 & 0x07000700u), s1);
}

/* The words of one thread of one panel, as loaded. */
template <int MODE> struct panel_words {
    uint4 code[code_bytes(MODE) / 2048];
    uint32_t scale;
};

/* `thread`: 0..127 of the panel. */
template <int MODE>
static __device__ __forceinline__ void load_panel(panel_words<MODE> *p, const uint8_t *panel,
                                                  int thread)
{
#pragma unroll
    for (int i = 0; i < code_bytes(MODE) / 2048; i++)
        p->code[i] = ((const uint4 *)panel)[i * 128 + thread];
    if (MODE == PACK_FP4)
        p->scale =
            ((const uint32_t *)(panel + code_bytes(MODE)))[thread / 32 * 8 + thread % 32 / 4];
    if (MODE == PACK_FP8)
        p->scale = ((const uint32_t *)(panel + code_bytes(MODE)))[thread / 32];
}

/* Fragments of two steps of 16 columns, of the panel's first or second 32 columns. */
template <int MODE>
static __device__ __forceinline__ void decode_half(const panel_words<MODE> &p, int half,
                                                   uint32_t *a)
{
    uint32_t scales = (half ? turned(p.scale, 8) : p.scale) & SCALES;
    uint32_t s0 = both_halves(scales, 0), s1 = both_halves(scales, 1);

    if (MODE == PACK_FP4) {
        decode_fp4(half ? p.code[0].z : p.code[0].x, s0, s1, a);
        decode_fp4(half ? p.code[0].w : p.code[0].y, s0, s1, a + 4);
    } else if (MODE == PACK_FP8) {
        decode_fp8(p.code[half].x, s0, s1, a);
        decode_fp8(p.code[half].y, s0, s1, a + 2);
        decode_fp8(p.code[half].z, s0, s1, a + 4);
        decode_fp8(p.code[half].w, s0, s1, a + 6);
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[4 * i] = p.code[2 * half + i].x;
            a[4 * i + 1] = p.code[2 * half + i].y;
            a[4 * i + 2] = p.code[2 * half + i].z;
            a[4 * i + 3] = p.code[2 * half + i].w;
        }
    }
}

/* Fragments of the panel's four steps of 16 columns. */
template <int MODE>
static __device__ __forceinline__ void decode_panel(const panel_words<MODE> &p, uint32_t *a)
{
    decode_half<MODE>(p, 0, a);
    decode_half<MODE>(p, 1, a + 8);
}

/* What becomes of a sum. */
typedef enum gemm_end {
    END_ACT,   /* bf16 */
    END_Q8,    /* the value behind Q8 of it as bf16; not cuda_narrow_groups */
    END_F32,   /* f32 */
    END_ADD,   /* f32, added to what is there */
    END_SWIGLU /* rows of a strip of 16: 8 of w1, the same 8 of w3; h of the 8 behind Q8 */
} gemm_end;

/* One product: y[token][row] for all rows of a packed matrix, or of one per expert, whose tokens
 * lie one after the other (sorted by expert). */
typedef struct gemm_job {
    const uint8_t *w;
    int64_t expert_bytes; /* from one expert's matrix to the next */
    int n_blocks;         /* of ROW_BLOCK rows */
    int n_panels, chunk;  /* panels of K; of a chunk */
    gemm_end end;
    const bf16 *x;
    int64_t x_stride; /* elements */
    int group_rows; /* block-diagonal: rows of a group, which reads its own K columns of x; 0: plain
                     */
    int n;          /* tokens; of all experts together */
    /* Experts: tiles (expert, token tile) listed on the device, first token of each expert; NULL:
     * one matrix for every token. */
    const int2 *tile;
    const int32_t *n_tiles, *first;
    bool listed; /* before the launch in front of this one began */
    void *y;
    int64_t y_stride; /* elements */
    float limit;
    const float *weights; /* of sorted tokens; NULL: 1 */
    /* Set by cuda_gemm. */
    float *part; /* sums of chunks, added by a second kernel; else NULL */
    int group;   /* token tiles that share L2 */
} gemm_job;

/* How many chunks K has, of an even number of panels each: one where K is short (long sums in one
 * accumulator lose bits) and the rows alone give enough blocks to stream the weights, else at
 * most 8, or 4 where the rows are so few that chunks are tiles of their own for some hundred tokens
 * too, and written and read. A property of the weight. Experts have one: their outputs are rounded
 * to bf16, and there are many of them. */
static inline int chunks_of(int n_panels, int64_t rows)
{
    int n = rows >= 16384 && n_panels <= 20 ? 1 : rows < 4096 ? 4 : 8;

    while (n_panels % (2 * n))
        n /= 2;
    return n;
}

/* Store the finished sum of one row and token (not END_SWIGLU; END_Q8: behind Q8). */
static __device__ __forceinline__ void put_sum(const gemm_job &j, int64_t at, float v)
{
    if (j.end == END_ACT || j.end == END_Q8)
        ((bf16 *)j.y)[at] = to_bf(v);
    else if (j.end == END_F32)
        ((float *)j.y)[at] = v;
    else
        ((float *)j.y)[at] += v;
}

/* Routing weight of a token. */
static __device__ __forceinline__ float weight_of(const gemm_job &j, int token)
{
    return j.weights ? j.weights[token] : 1.0f;
}

/* Products of any number of tokens; groups of rows are multiples of ROW_BLOCK. */
void cuda_gemm(cuda_impl *c, int mode, const gemm_job *j);

/* The routed experts' product and the shared one's, of the same shape, in one launch. `tile`:
 * tokens of a tile of the routed ones' list. */
void cuda_gemm_experts(cuda_impl *c, const gemm_job *routed, const gemm_job *shared, int tile);

/* Tokens of a tile for about `n` per expert; 64 of them have a kernel of their own (gemm_few.cuh),
 * whose tiles most experts should fit. */
static inline int expert_tile(int n)
{
    return n <= 48 ? 64 : n <= 160 ? 128 : 256;
}

/* Products whose groups are multiples of 16 rows, no more: no real shape. */
void cuda_narrow_groups(cuda_impl *c, int mode, const gemm_job *j);
